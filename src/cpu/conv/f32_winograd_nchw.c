/* f32 convolution by Winograd's F(2x2, 3x3), channels-first: forward and data gradient of 3x3 windows with stride 1, 2D
 * and 3D, and by the phases of winograd_phases.h of 3x3 and 5x5 windows with stride 2, 2D, one group.
 * Math:      a tile of 2 x 2 outputs has 4 x 4 inputs d: out = A'((G w G') . (B' d B))A, summed over channels between
 *            the transforms: 16 products for a tile and a pair of channels instead of 36. The data gradient is the same
 *            with the window turned and channels exchanged. Taps along depth are summed as channels are, each a plane
 *            of its own. Partial convolution comes with factors of the positions. With stride 2 there are 25 (3x3) or
 *            49 (5x5) slots in place of the 16 points, some of which are summed as channels are
 * Blocking:  lanes are tiles of a row. A strip of one group that fits the near caches is one thread's from the first
 *            transform to the last; with more channels a strip is shared, step by step. The transformed inputs of a
 *            strip of rows of tiles, [slot][channel][tile], are multiplied by the packed weights of each product in the
 *            register tiles of cpu/gemm, then transformed back
 *            Few tiles and many channels: the weights of BLOCK_BYTES of output channels at a time are transformed near
 *            the last-level cache, used and dropped, and there are none to pack
 * Traffic:   16 values for each tile and channel, written and read once near the last-level cache; weights once a strip
 * Roofline:  32 * tiles * c * o flops at the multiply-add peak
 *            Measured beside float_conv_nchw_gemm on two Zen 4 cores, weights transformed in the call: 1.5x for 8
 *            images of 512 channels of 7x7, 1.8x for 8 of 128 of 28x28, 1.5x for 512 of 28x28, 1.6x for 64 of 56x56,
 *            2.0x for 64 channels of 16x28x28; beside float_conv_grouped 1.3x for 8 channels a group of 50x50x50
 *            With stride 2, one core, partial convolution: 1.8x and 1.6x for 64 to 128 and 128 to 256 channels of 5x5
 *            forward, 1.7x and 1.6x for the data gradient; 1.3x for 256 to 512 of 3x3 forward
 * Accuracy:  0.1 of the bound of a direct sum, relative to the largest in the tensor, not to each output. Not strict
 * Try:       weft bench conv2d:fwd:f32:nchw:n1c256h56w56:o256k3p1 */
#include "cpu/conv/winograd_phases.h"

enum { STRIP_BYTES = CPU_CUT(12 << 20, 8 << 10), LOCAL_BYTES = CPU_CUT(768 << 10, 16 << 10), SLOTS = 32 };
enum { LEAST_TILES = 48, BLOCK_BYTES = CPU_CUT(6 << 20, 64 << 10) };
enum { WANTED = 16, DEEP = 8 }; /* strips for each group; planes of a strip */

typedef struct shape {
    winograd_form form;
    bool back;
    bool local;          /* a strip has one group and fits the near caches: each is one thread's */
    bool blocks;         /* weights are transformed in the call, `step` output channels at a time */
    int64_t step;        /* else: all of a group */
    int64_t all, groups; /* groups, and those of a strip */
    int64_t n, ic, oc;   /* channels of a group, read and written */
    int64_t k;           /* products of a point: channels read and taps along depth */
    int64_t id, ih, iw, od, oh, ow, pd, ph, pw, kd;
    int64_t down, across;             /* rows and columns of tiles of a plane */
    int64_t rows, strip;              /* kd 1: rows of the batch, and of a strip */
    int64_t ycuts, zcuts, wide, deep; /* else: parts of a plane and of a volume; rows and planes of a strip, at most */
    int64_t pitch;                    /* floats of the tiles of a strip */
    int64_t y_point, w_point;         /* floats of one product, and of the weights of one slot */
    int64_t x_slot[WINOGRAD_SLOTS];   /* where the slots of a channel begin */
} shape;

/* Bytes of a row of tiles of one group, as it is read and as it is written. */
static int64_t row_bytes(const shape *s, int64_t values, int64_t channels) { return values * channels * s->across * 4; }

/* A strip is some rows, all planes and images end to end. */
static void cut_rows(shape *s) {
    const int64_t row = WEFT__MAX(row_bytes(s, s->form.slots, s->ic) + row_bytes(s, s->form.products, s->oc), 1);
    const int64_t near = WEFT__MIN(LOCAL_BYTES / row, cpu_ceil(s->all * s->rows, WANTED));
    s->local = near * s->across >= LEAST_TILES && s->all * cpu_ceil(s->rows, WEFT__MAX(near, 1)) >= WANTED / 2;
    const int64_t most = s->local ? near : WEFT__MAX(STRIP_BYTES / (row * s->all), 1);
    s->strip = WEFT__MAX(cpu_ceil(s->rows, WEFT__MAX(cpu_ceil(s->rows, most), 1)), 1);
    s->pitch = s->strip * s->across;
}

/* A strip is the same rows of some planes: a plane is transformed once for all taps along depth. */
static void cut_planes(shape *s) {
    const int64_t deep = WEFT__MIN(s->od, DEEP);
    const int64_t slots = s->form.slots, planes = deep + s->kd - 1;
    const int64_t row = row_bytes(s, slots, s->ic) * planes + row_bytes(s, slots, s->oc) * deep,
                  near = LOCAL_BYTES / row;
    s->zcuts = cpu_ceil(s->od, deep), s->deep = cpu_ceil(s->od, s->zcuts);
    s->local = near * deep * s->across >= LEAST_TILES &&
               s->all * s->n * s->zcuts * cpu_ceil(s->down, WEFT__MAX(near, 1)) >= WANTED / 2;
    const int64_t most = s->local ? near : WEFT__MAX(STRIP_BYTES / (row * s->all), 1);
    s->ycuts = cpu_ceil(s->down, WEFT__MIN(most, s->down)), s->wide = cpu_ceil(s->down, s->ycuts);
    s->pitch = (s->deep + s->kd - 1) * s->wide * s->across;
}

static int64_t strips_of(const shape *s) {
    return s->kd > 1 ? s->n * s->ycuts * s->zcuts : cpu_ceil(s->rows, s->strip);
}

/* Positions that the first tile of the data gradient reads before the first one. */
static int64_t ahead_of(const weft_problem *p, int axis) {
    return p->stride[axis] == 1 ? 2 - p->pad_lo[axis] : phase_ahead((int)p->kernel[axis], p->pad_lo[axis]);
}

static shape shape_of(const weft_problem *p) {
    const bool back = p->pass == WEFT_PASS_BWD_DATA;
    shape s = {.back = back, .n = p->n, .all = p->groups, .kd = p->kernel[0]};
    s.ic = (back ? p->o : p->c) / p->groups, s.oc = (back ? p->c : p->o) / p->groups, s.k = s.ic * s.kd;
    s.id = back ? p->out[0] : p->in[0], s.od = back ? p->in[0] : p->out[0];
    s.ih = back ? p->out[1] : p->in[1], s.iw = back ? p->out[2] : p->in[2];
    s.oh = back ? p->in[1] : p->out[1], s.ow = back ? p->in[2] : p->out[2];
    s.pd = back ? s.kd - 1 - p->pad_lo[0] : p->pad_lo[0];
    s.ph = back ? ahead_of(p, 1) : p->pad_lo[1], s.pw = back ? ahead_of(p, 2) : p->pad_lo[2];
    s.form = p->stride[2] == 1 ? winograd_form_3(back) : winograd_form_phases((int)p->kernel[2], back, p->pad_lo + 1);
    const winograd_form *f = &s.form;
    s.down = cpu_ceil(s.oh, f->step_out), s.across = cpu_ceil(s.ow, f->step_out), s.rows = s.n * s.od * s.down;
    if (s.kd == 1)
        cut_rows(&s);
    else
        cut_planes(&s);
    s.groups = s.local ? 1 : s.all;
    s.pitch = cpu_round_up(s.pitch, GEMM_NR) + VF_LANES; /* an odd number of vectors: no strides of 4 KB */
    const int64_t fit = BLOCK_BYTES / (f->slots * s.k * 4) / GEMM_MR * GEMM_MR;
    s.blocks = s.all == 1 && !s.local && strips_of(&s) == 1 && fit > 0 && fit < s.oc;
    s.step = s.blocks ? fit : s.oc;
    winograd_place_slots(f, s.groups * s.ic * s.pitch, s.x_slot);
    s.y_point = s.groups * s.step * s.pitch + 16;
    s.w_point = cpu_round_up(s.all * s.k * s.step, 16) + 16;
    return s;
}

typedef struct job {
    shape s;
    cpu_epilogue f;
    const gemm_factors *factors;
    const float *in, *weights;
    float *out, *w, *x, *y;
    int64_t *offsets;              /* of products, from the first: kd > 1 */
    int64_t m0, outs;              /* output channels of each group in this block: the first, and how many */
    int64_t group, count;          /* of this strip: the first group, and rows of tiles */
    int64_t first, n, z, y0, wide; /* kd 1: the first row; else image, plane, row of a plane, rows of a plane */
    gemm_scratch scratch;
} job;

/* Row r of a strip: image, plane and row of tiles. */
typedef struct place {
    int64_t n, z, y;
} place;
VF_INLINE place place_of(const job *q, int64_t r) {
    const shape *s = &q->s;
    if (s->kd > 1) return (place){q->n, q->z + r / q->wide, q->y0 + r % q->wide};
    const int64_t row = q->first + r;
    return (place){row / s->down / s->od, row / s->down % s->od, row % s->down};
}

/* ---------------------------------------------------------------- weights */
/* One slot: a panel of output channels of a group, [product][group][panel][slot][channel][row]. */
static void weights_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t mp = gemm_split(q->outs, GEMM_MR), g = slot / mp;
    const int64_t first = gemm_first(q->outs, mp, slot % mp), rows = gemm_first(q->outs, mp, slot % mp + 1) - first;
    const int64_t m = q->m0 + first;
    const winograd_form *f = &s->form;
    int64_t slots[WINOGRAD_SLOTS];
    for (int i = 0; i < f->products; i++)
        for (int k = f->first[i]; k < f->first[i + 1]; k++)
            slots[k] = f->first[i] * s->w_point + (g * q->outs + first) * s->k * winograd_in_product(f, i) +
                       (k - f->first[i]) * s->k * rows;
    const int64_t window = f->window * f->window, across = s->kd * window, channel = (s->back ? s->oc : 1) * across,
                  row = (s->back ? 1 : s->ic) * across;
    const float *at = q->weights + g * s->ic * s->oc * across + m * row; /* of this channel and row 0 */
    for (int64_t i = 0, tap = 0, r = 0; i < s->k * rows; i += VF_LANES) {
        const int64_t count = WEFT__MIN(s->k * rows - i, VF_LANES);
        const float *from[VF_LANES];
        for (int64_t l = 0; l < count; l++) {
            from[l] = at + r * row + (s->back ? s->kd - 1 - tap : tap) * window;
            if (++r < rows) continue;
            r = 0;
            if (++tap == s->kd) tap = 0, at += channel;
        }
        f->windows(f, from, count, q->w + i, slots);
    }
}

/* ---------------------------------------------------------------- tiles in */
/* A slot has whole channels: a vector that reaches into the next row of tiles is written before that row. */
static void in_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t channels = s->groups * s->ic, slots = WEFT__MIN(channels, SLOTS);
    const gemm_factor *factor = &q->factors->in;
    const winograd_form *f = &s->form;
    for (int64_t c = cpu_first(channels, slots, slot); c < cpu_first(channels, slots, slot + 1); c++)
        for (int64_t r = 0; r < q->count + (s->kd - 1) * q->wide; r++) {
            const place at = place_of(q, r);
            const int64_t z = at.z - s->pd, y = z < 0 || z >= s->id ? s->ih : at.y * f->step_in - s->ph;
            const int64_t channel = (at.n * s->all + q->group) * s->ic + c;
            const winograd_plane plane = {q->in + (channel * s->id + z) * s->ih * s->iw,
                                          factor->at ? factor->at + at.n * factor->image + z * s->ih * s->iw : NULL,
                                          s->ih, s->iw, factor->selects};
            float *to = q->x + c * s->pitch + r * s->across;
            for (int64_t t = 0; t < s->across; t += VF_LANES)
                f->in(f, &plane, y, f->step_in * t - s->pw, to + t, s->x_slot);
        }
}

/* ---------------------------------------------------------------- product */
/* In how many slots. */
static int64_t products_of(const job *q) {
    const int64_t vectors = cpu_ceil(q->count * q->s.across, VF_LANES);
    return WEFT__MIN(q->s.form.products * q->s.groups * gemm_split(vectors, GEMM_NV), SLOTS);
}
static void product_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t vectors = cpu_ceil(q->count * s->across, VF_LANES), np = gemm_split(vectors, GEMM_NV);
    const int64_t mp = gemm_split(q->outs, GEMM_MR), items = s->form.products * s->groups * np, slots = products_of(q);
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++) {
        const int64_t g = i / np % s->groups, point = i / np / s->groups;
        const int64_t slot = s->form.first[point], products = s->k * winograd_in_product(&s->form, point);
        const int64_t v0 = gemm_first(vectors, np, i % np), v1 = gemm_first(vectors, np, i % np + 1);
        for (int64_t k = 0; k < mp; k++) {
            const int64_t m = gemm_first(q->outs, mp, k), rows = gemm_first(q->outs, mp, k + 1) - m;
            const gemm_tile t = {.k = products,
                                 .a = q->w + slot * s->w_point + ((q->group + g) * q->outs + m) * products,
                                 .lda = rows,
                                 .b = q->x + s->x_slot[slot] + g * s->ic * s->pitch + v0 * VF_LANES,
                                 .ldb = s->pitch,
                                 .offsets = q->offsets,
                                 .c = q->y + point * s->y_point + (g * q->outs + m) * s->pitch + v0 * VF_LANES,
                                 .ldc = s->pitch,
                                 .tail = VF_LANES};
            gemm_run(&t, s->kd > 1 ? GEMM_OFFSETS : GEMM_STRIDED, rows, v1 - v0);
        }
    }
}

/* ---------------------------------------------------------------- tiles out */
/* count outputs from `at` of image n and channel c on. */
VF_INLINE void put_out(const job *q, int64_t n, int64_t c, int64_t at, vf v, int64_t count, vf bias) {
    const shape *s = &q->s;
    const gemm_factor *ratio = &q->factors->ratio, *keep = &q->factors->out;
    if (ratio->at) v = vf_mul(v, vf_load_count(ratio->at + n * ratio->image + at, count));
    v = vf_add(v, bias);
    if (keep->at) v = gemm_factor_apply(v, vf_load_count(keep->at + n * keep->image + at, count), keep->selects);
    v = vf_clip(v, vf_set1(q->f.lo), vf_set1(q->f.hi));
    vf_store_count(q->out + ((n * s->all + q->group) * s->oc + c) * s->od * s->oh * s->ow + at, v, count);
}

/* A vector of tiles: step x step results of each, those of a row side by side. */
static void tile_out(const job *q, const place *to, int64_t c, int64_t x, const float *from, vf bias) {
    const shape *s = &q->s;
    const int step = s->form.step_out;
    vf block[WINOGRAD_BLOCK];
    s->form.out(&s->form, from, s->y_point, block);
    for (int i = 0; i < WEFT__MIN(step, s->oh - step * to->y); i++) {
        const int64_t at = (to->z * s->oh + step * to->y + i) * s->ow + x, left = s->ow - x;
        const vf *v = block + i * step;
        vf row[4] = {vf_zip_lo(v[0], v[1]), vf_zip_hi(v[0], v[1])};
        if (step == 4) {
            const vf a = vf_zip_lo(v[0], v[2]), b = vf_zip_lo(v[1], v[3]);
            const vf d = vf_zip_hi(v[0], v[2]), e = vf_zip_hi(v[1], v[3]);
            row[0] = vf_zip_lo(a, b), row[1] = vf_zip_hi(a, b), row[2] = vf_zip_lo(d, e), row[3] = vf_zip_hi(d, e);
        }
        for (int j = 0; j < step && j * VF_LANES < left; j++)
            put_out(q, to->n, c, at + j * VF_LANES, row[j], left - j * VF_LANES, bias);
    }
}

static void out_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t channels = s->groups * q->outs, slots = WEFT__MIN(channels, SLOTS);
    for (int64_t c = cpu_first(channels, slots, slot); c < cpu_first(channels, slots, slot + 1); c++) {
        const vf bias = vf_set1(q->f.bias ? ((const float *)q->f.bias)[q->group * s->oc + q->m0 + c] : 0);
        for (int64_t r = 0; r < q->count; r++) {
            const place at = place_of(q, r);
            const float *from = q->y + c * s->pitch + r * s->across;
            for (int64_t t = 0; t < s->across; t += VF_LANES)
                tile_out(q, &at, q->m0 + c, s->form.step_out * t, from + t, bias);
        }
    }
}

/* ---------------------------------------------------------------- the driver */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    job q = {.s = shape_of(e->p), .weights = weights, .w = packed};
    q.outs = q.s.oc;
    weft__parallel(e->ctx, q.s.all * gemm_split(q.s.oc, GEMM_MR), weights_slot, &q);
    return WEFT_OK;
}

static int64_t x_floats(const shape *s) { return winograd_floats(&s->form, s->groups * s->ic * s->pitch); }
static int64_t strip_floats(const shape *s) {
    return cpu_round_up(x_floats(s) + s->form.products * s->y_point + 2 * VF_LANES, 16);
}
static size_t strip_bytes(const shape *s) {
    return (size_t)strip_floats(s) * sizeof(float) + (s->kd > 1 ? (size_t)cpu_round_up(s->k * 8, 64) : 0);
}

static void set_strip(job *q, int64_t strip, void *scratch) {
    const shape *s = &q->s;
    q->x = scratch;
    q->y = q->x + x_floats(s) + VF_LANES;
    if (s->kd == 1) {
        q->first = strip * s->strip, q->count = WEFT__MIN(s->strip, s->rows - q->first);
        return;
    }
    const int64_t z = strip % s->zcuts, y = strip / s->zcuts % s->ycuts;
    q->n = strip / s->zcuts / s->ycuts, q->z = cpu_first(s->od, s->zcuts, z), q->y0 = cpu_first(s->down, s->ycuts, y);
    q->wide = cpu_first(s->down, s->ycuts, y + 1) - q->y0;
    q->count = (cpu_first(s->od, s->zcuts, z + 1) - q->z) * q->wide;
    q->offsets = (int64_t *)(void *)(q->x + strip_floats(s));
    for (int64_t i = 0; i < s->k; i++) q->offsets[i] = i / s->kd * s->pitch + i % s->kd * q->wide * s->across;
}
static int64_t items_of(const shape *s) { return s->all * strips_of(s); }

/* Some strips of one group each, from the first transform to the last. */
static void local_slots(void *arg, int64_t slot) {
    job *all = arg, q = {.s = all->s,
                         .f = all->f,
                         .factors = all->factors,
                         .in = all->in,
                         .out = all->out,
                         .w = all->w,
                         .outs = all->outs};
    const int mine = gemm_take(&all->scratch);
    const int64_t items = items_of(&q.s), slots = WEFT__MIN(items, GEMM_SLOTS);
    for (int64_t item = cpu_first(items, slots, slot); item < cpu_first(items, slots, slot + 1); item++) {
        q.group = item / strips_of(&q.s);
        set_strip(&q, item % strips_of(&q.s), all->scratch.base + (size_t)mine * all->scratch.bytes);
        for (int64_t i = 0; i < WEFT__MIN(q.s.ic, SLOTS); i++) in_slot(&q, i);
        for (int64_t i = 0; i < products_of(&q); i++) product_slot(&q, i);
        for (int64_t i = 0; i < WEFT__MIN(q.s.oc, SLOTS); i++) out_slot(&q, i);
    }
    gemm_give(&all->scratch, mine);
}

weft_status WEFT__ISA_NAME(weft__winograd_nchw)(const weft__exec *e, const gemm_factors *factors) {
    job q = {.s = shape_of(e->p), .f = cpu_epilogue_of(e), .factors = factors, .w = (float *)e->packed};
    const shape *s = &q.s;
    q.in = e->ptr[s->back ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.out = e->ptr[s->back ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.outs = s->oc;
    if (s->local) {
        q.scratch.base = e->workspace, q.scratch.bytes = strip_bytes(s);
        weft__parallel(e->ctx, WEFT__MIN(items_of(s), GEMM_SLOTS), local_slots, &q);
        return WEFT_OK;
    }
    if (s->blocks) {
        q.weights = e->ptr[WEFT_ROLE_WEIGHTS];
        q.w = (float *)(void *)((char *)e->workspace + cpu_round_up((int64_t)strip_bytes(s), 64));
    }
    for (int64_t i = 0; i < strips_of(s); i++) {
        set_strip(&q, i, e->workspace);
        weft__parallel(e->ctx, WEFT__MIN(s->groups * s->ic, SLOTS), in_slot, &q);
        for (q.m0 = 0; q.m0 < s->oc; q.m0 += s->step) {
            q.outs = WEFT__MIN(s->step, s->oc - q.m0);
            if (s->blocks) weft__parallel(e->ctx, gemm_split(q.outs, GEMM_MR), weights_slot, &q);
            weft__parallel(e->ctx, products_of(&q), product_slot, &q);
            weft__parallel(e->ctx, WEFT__MIN(s->groups * q.outs, SLOTS), out_slot, &q);
        }
    }
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__winograd_nchw)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

static const char *refusal(const weft_problem *p, int stride) {
    const char *reason = cpu_epilogue_refusal(p);
    if (!reason) reason = winograd_window_refusal(p, stride);
    if (reason) return reason;
    for (int a = 0; a < 3; a++)
        if (p->pad_lo[a] >= p->kernel[a] || p->pad_hi[a] >= p->kernel[a]) return "outputs that see only padding";
    if (stride == 2 && (p->kernel[0] != 1 || p->groups > 1)) return "a window in depth, or more than one group";
    if (p->c / p->groups < 4 || p->o / p->groups < 4) return "under 4 channels a group: transforms cost more";
    return cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
}

static const char *plan_of(const weft_problem *p, const weft__hw *hw, int stride, weft__decision *d) {
    const char *reason = refusal(p, stride);
    if (reason) return reason;
    const shape s = shape_of(p);
    const double tiles = (double)(s.rows * s.across), g = (double)s.all, ic = (double)s.ic, oc = (double)s.oc;
    const double again = s.kd > 1 ? (double)(s.deep + s.kd - 1) / (double)s.deep : 1; /* planes at the ends of strips */
    const double slots = s.form.slots, products = s.form.products;
    const double product = 2.0 * slots * tiles * g * (double)(s.k + 16) * oc; /* a short sum is stored as often */
    /* as multiply-adds: mostly stores and loads; of groups, in short runs */
    const double turn = (VF_REGS == 32 ? (s.local ? 14 : 12) : s.local ? 26 : 16) * (p->groups > 1 ? 1.5 : 1);
    const double turns = 2.0 * tiles * g * (slots * again * ic + products * oc) * turn * cpu_move(hw);
    const size_t transformed = (size_t)(s.form.slots * s.w_point) * sizeof(float);
    d->packed = s.blocks ? 0 : transformed;
    d->workspace = strip_bytes(&s) * (size_t)(s.local ? WEFT__MIN(items_of(&s), GEMM_SLOTS) : 1);
    if (s.blocks) d->workspace = (size_t)cpu_round_up((int64_t)d->workspace, 64) + transformed;
    const double weights = 43.75 * slots * g * (double)s.k * oc;
    const double planes = (double)p->n * (double)(p->in[0] * p->c + p->out[0] * p->o); /* 100 ns for each */
    d->ns = cpu_cost(hw, weft__bytes(p) + (double)d->packed, (product + turns + weights) / GEMM_SHARE, 1) +
            0.03 * (double)(transformed + strip_bytes(&s)) / WEFT__MIN(hw->threads, 8) + 100 * planes / hw->threads;
    return NULL;
}
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    return plan_of(p, hw, 1, d);
}
static const char *plan_s2(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    return plan_of(p, hw, 2, d);
}

WEFT__KERNEL(f32_winograd_fwd_nchw) = {
    .name = WEFT__NAME("f32_conv3x3_fwd_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_winograd_bwd_data_nchw) = {
    .name = WEFT__NAME("f32_conv3x3_bwd_data_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_winograd_s2_fwd_nchw) = {
    .name = WEFT__NAME("f32_conv_s2_fwd_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan_s2,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_winograd_s2_bwd_data_nchw) = {
    .name = WEFT__NAME("f32_conv_s2_bwd_data_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan_s2,
    .pack = pack,
    .run = run,
};
