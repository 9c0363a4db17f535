/* f32 weight gradient by Winograd's F(2x2, 3x3), channels-first, one group: of 3x3 convolution with stride 1, and by
 * the phases of winograd_phases.h of 3x3 and 5x5 with stride 2, whose slots and products take the place of the points.
 * Math:      the forward pass of a tile, out = A'((G w G') . (B' d B))A, is linear in w: its gradient is
 *            G'((A diff A') . (B' d B))G, and the sum over tiles lies between the transforms. 16 products for a tile of
 *            2 x 2 positions and a pair of channels instead of 36
 * Blocking:  a strip of rows of tiles is transformed: src to [point][channel][tile], diff_dst to [point][tile][output],
 *            whose blocks of VF_LANES channels are turned for that. For each point the register tiles of cpu/gemm sum
 *            over the tiles of the strip, ROWS channels beside a panel of outputs; the sums, [point][channel][output],
 *            wait for the next strip. They are made for a part of the outputs at a time, and transformed back near the
 *            last-level cache
 * Traffic:   16 values for each tile and channel, written and read near the last-level cache; the sums twice a strip
 * Roofline:  32 * tiles * c * o flops at the multiply-add peak
 *            Measured beside float_conv_bwd_weights_gemm on two Zen 4 cores: 1.8x for 768 to 256 channels of 32x32 and
 *            for 1024 to 512 of 16x16, 1.4x for those of 8x8, 1.8x for 64 channels of 112x112
 *            With stride 2, one core, partial convolution: 1.7x and 1.6x for 64 to 128 and 128 to 256 channels of 5x5,
 *            1.3x for 256 to 512 of 3x3
 * Accuracy:  as forward: relative to the largest of the gradient. Not strict
 * Try:       weft bench conv2d:bwd_weights:f32:nchw:n1c384h64w64:o128k3p1 */
#include "cpu/conv/gemm_bias.h"
#include "cpu/conv/winograd_phases.h"

enum {
    STRIP_BYTES = CPU_CUT(17 << 20, 8 << 10),
    PART_BYTES = CPU_CUT(6 << 20, 4 << 10),
    MOST_BYTES = CPU_CUT(24 << 20, 8 << 10)
};
enum { SLOTS = 32, PRODUCTS = 64, ROWS = 48 }; /* slots of transforms and of products; channels of a product */

typedef struct params {
    gemm_bias bias;
} params;
_Static_assert(sizeof(params) <= GEMM_PARAMS, "the kernels that use this one keep its parameters");

typedef struct shape {
    winograd_form form;
    int64_t c, o, id, ih, iw, od, oh, ow, pd, ph, pw;
    int64_t down, across, rows, strip; /* rows and columns of tiles of a plane; rows of the batch, and of a strip */
    int64_t pitch;                     /* floats of the tiles of a strip */
    int64_t vectors, part;             /* of outputs: all, and those of a part */
    int64_t y_point;                   /* floats of a product of diff_dst */
    int64_t x_slot[WINOGRAD_SLOTS];    /* where the slots begin: of src, and of the sums */
    int64_t w_slot[WINOGRAD_SLOTS];
} shape;

static shape shape_of(const weft_problem *p) {
    shape s = {.c = p->c, .o = p->o, .id = p->in[0], .ih = p->in[1], .iw = p->in[2], .od = p->out[0]};
    s.oh = p->out[1], s.ow = p->out[2], s.pd = p->pad_lo[0], s.ph = p->pad_lo[1], s.pw = p->pad_lo[2];
    s.down = cpu_ceil(s.oh, 2), s.across = cpu_ceil(s.ow, 2), s.rows = p->n * s.od * s.down;
    s.form = p->stride[2] == 1 ? winograd_form_3(false) : winograd_form_phases((int)p->kernel[2], false, p->pad_lo + 1);
    s.vectors = cpu_ceil(s.o, VF_LANES);
    const int64_t slots = s.form.slots, products = s.form.products;
    const int64_t row = WEFT__MAX((slots * s.c + products * s.vectors * VF_LANES) * s.across * 4, 1);
    const int64_t strips = WEFT__MAX(cpu_ceil(s.rows, WEFT__MAX(STRIP_BYTES / row, 1)), 1);
    s.strip = WEFT__MAX(cpu_ceil(s.rows, strips), 1);
    s.pitch = cpu_round_up(s.strip * s.across, 2 * VF_LANES) + VF_LANES; /* no strides of 4 KB */
    const int64_t one = slots * s.c * VF_LANES * 4, most = strips > 1 ? MOST_BYTES : PART_BYTES;
    s.part = cpu_ceil(s.vectors, cpu_ceil(s.vectors, cpu_round_up(WEFT__MAX(most / one, 1), GEMM_NV)));
    s.y_point = s.strip * s.across * s.vectors * VF_LANES + 16;
    winograd_place_slots(&s.form, s.c * s.pitch, s.x_slot);
    winograd_place_slots(&s.form, s.c * s.part * VF_LANES, s.w_slot);
    return s;
}
static int64_t x_floats(const shape *s) { return winograd_floats(&s->form, s->c * s->pitch); }
static int64_t w_floats(const shape *s) { return winograd_floats(&s->form, s->c * s->part * VF_LANES); }
static int64_t strips_of(const shape *s) { return cpu_ceil(s->rows, s->strip); }

typedef struct job {
    shape s;
    const gemm_factors *factors;
    const float *src, *diff_dst;
    float *diff_weights, *x, *y, *w;
    int64_t first, count; /* rows of tiles of this strip */
    int64_t v0, vectors;  /* of outputs of this part */
} job;

typedef struct volume { /* src or diff_dst */
    const float *at;
    const gemm_factor *factor;
    int64_t channels, d, h, w, pd, ph; /* ph rows and pd planes of padding are in front */
    int step;                          /* rows from tile to tile */
} volume;

/* The plane of channel c that a row of tiles is in, and its first row there, *y: behind the last if there is none. */
VF_INLINE winograd_plane plane_of(const shape *s, const volume *v, int64_t c, int64_t row, int64_t *y) {
    const int64_t n = row / s->down / s->od, z = row / s->down % s->od - v->pd;
    const gemm_factor *f = v->factor;
    *y = z < 0 || z >= v->d ? v->h : row % s->down * v->step - v->ph;
    return (winograd_plane){v->at + ((n * v->channels + c) * v->d + z) * v->h * v->w,
                            f->at ? f->at + n * f->image + z * v->h * v->w : NULL, v->h, v->w, f->selects};
}

/* ---------------------------------------------------------------- transforms in */
/* A vector that reaches into the next row of tiles is written before that row. */
static void channel_in(const job *q, int64_t c) {
    const shape *s = &q->s;
    const volume src = {q->src, &q->factors->in, s->c, s->id, s->ih, s->iw, s->pd, s->ph, s->form.step_in};
    for (int64_t r = 0; r < q->count; r++) {
        int64_t y;
        const winograd_plane plane = plane_of(s, &src, c, q->first + r, &y);
        float *to = q->x + c * s->pitch + r * s->across;
        for (int64_t t = 0; t < s->across; t += VF_LANES)
            s->form.in(&s->form, &plane, y, s->form.step_in * t - s->pw, to + t, s->x_slot);
    }
}

/* Row r of tiles of a vector of outputs, tiles down and outputs across. */
static void outputs_in(const job *q, int64_t vector, int64_t r) {
    enum { POINT = VF_LANES * VF_LANES };
    const shape *s = &q->s;
    const int64_t o0 = vector * VF_LANES, ld = s->vectors * VF_LANES;
    const volume diff = {q->diff_dst, &q->factors->diff, s->o, s->od, s->oh, s->ow, 0, 0, 2};
    float block[16 * POINT];
    for (int64_t t = 0; t < s->across; t += VF_LANES) {
        for (int64_t l = 0; l < VF_LANES; l++) {
            int64_t y;
            winograd_plane plane = plane_of(s, &diff, WEFT__MIN(o0 + l, s->o - 1), q->first + r, &y);
            if (o0 + l >= s->o) plane.w = 0; /* zeros */
            s->form.diff(&plane, y, 2 * t, block + l * VF_LANES, POINT);
        }
        float *to = q->y + (r * s->across + t) * ld + o0;
        for (int64_t k = 0; k < s->form.products; k++, to += s->y_point) {
            vf v[VF_LANES];
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) v[l] = vf_load(block + k * POINT + l * VF_LANES);
            vf_transpose(v);
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                if (t + l < s->across) vf_store(to + l * ld, v[l]);
            }
        }
    }
}

static void in_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t c0 = cpu_first(q->s.c, SLOTS, slot), c1 = cpu_first(q->s.c, SLOTS, slot + 1);
    for (int64_t c = c0; c < c1; c++) channel_in(q, c);
    const int64_t items = q->count * q->s.vectors;
    for (int64_t i = cpu_first(items, SLOTS, slot); i < cpu_first(items, SLOTS, slot + 1); i++)
        outputs_in(q, i / q->count, i % q->count);
}

/* ---------------------------------------------------------------- products */
/* Rows of a product: the channels of its slots, in blocks of ROWS. */
static int64_t blocks_of(const shape *s, int64_t product) {
    return gemm_split(s->c, ROWS) * winograd_in_product(&s->form, product);
}
static int64_t products_of(const job *q) {
    return q->s.form.slots * gemm_split(q->s.c, ROWS) * gemm_split(q->vectors, GEMM_NV);
}
static void product_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t np = gemm_split(q->vectors, GEMM_NV), items = products_of(q), slots = WEFT__MIN(items, PRODUCTS);
    const int64_t ldy = s->vectors * VF_LANES, ldw = s->part * VF_LANES;
    int64_t point = 0, before = 0; /* items of the products before this one */
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++) {
        while (i - before >= blocks_of(s, point) * np) before += blocks_of(s, point++) * np;
        const int64_t blocks = blocks_of(s, point), block = (i - before) % blocks, j = (i - before) / blocks;
        const int64_t v0 = gemm_first(q->vectors, np, j), v1 = gemm_first(q->vectors, np, j + 1);
        const int64_t all = s->c * winograd_in_product(&s->form, point), c0 = gemm_first(all, blocks, block);
        const int64_t rows = gemm_first(all, blocks, block + 1) - c0, mp = gemm_split(rows, GEMM_MR);
        const float *x = q->x + s->x_slot[s->form.first[point]];
        for (int64_t k = 0; k < mp; k++) {
            const int64_t c = c0 + gemm_first(rows, mp, k), m = c0 + gemm_first(rows, mp, k + 1) - c;
            float *to = q->w + s->w_slot[s->form.first[point]] + c * ldw + v0 * VF_LANES;
            const float *row[GEMM_MR];
            for (int64_t r = 0; r < m; r++) row[r] = x + (c + r) * s->pitch;
            const gemm_tile t = {.k = q->count * s->across,
                                 .segments = 1,
                                 .rows = row,
                                 .b = q->y + point * s->y_point + (q->v0 + v0) * VF_LANES,
                                 .ldb = ldy,
                                 .from = q->first ? to : NULL,
                                 .ld_from = ldw,
                                 .c = to,
                                 .ldc = ldw,
                                 .tail = VF_LANES};
            gemm_run(&t, GEMM_ROWS, m, v1 - v0);
        }
    }
}

/* ---------------------------------------------------------------- transform out */
/* VF_LANES channels of a vector of outputs: their weights of each output lie in a row. */
static void weights_out(const job *q, int64_t c0, int64_t vector) {
    const shape *s = &q->s;
    const int64_t channels = WEFT__MIN(s->c - c0, VF_LANES), outs = WEFT__MIN(s->o - vector * VF_LANES, VF_LANES);
    const int64_t ldw = s->part * VF_LANES, window = s->form.window * s->form.window, all = window * channels;
    const float *from = q->w + c0 * ldw + (vector - q->v0) * VF_LANES;
    float *to = q->diff_weights + (vector * VF_LANES * s->c + c0) * window;
    float windows[25 * VF_LANES * VF_LANES];
    for (int64_t c = 0; c < channels; c++) s->form.taps(from + c * ldw, s->w_slot, windows + c * window * VF_LANES);
    for (int64_t i = 0; i < all; i += VF_LANES) {
        vf v[VF_LANES];
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) v[l] =
            i + l < all ? vf_load(windows + (i + l) * VF_LANES) : vf_zero();
        vf_transpose(v);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
            if (l < outs) vf_store_count(to + l * s->c * window + i, v[l], all - i);
        }
    }
}

static void out_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t blocks = cpu_ceil(q->s.c, VF_LANES), items = blocks * q->vectors, slots = WEFT__MIN(items, SLOTS);
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++)
        weights_out(q, i % blocks * VF_LANES, q->v0 + i / blocks);
}

/* ---------------------------------------------------------------- the driver */
weft_status WEFT__ISA_NAME(weft__winograd_weights)(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    WEFT__TRY(gemm_bias_run(e, &d->bias, factors));
    job q = {.s = shape_of(e->p), .factors = factors, .src = e->ptr[WEFT_ROLE_SRC]};
    const shape *s = &q.s;
    q.diff_dst = e->ptr[WEFT_ROLE_DIFF_DST], q.diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS];
    q.x = e->workspace, q.y = q.x + x_floats(s), q.w = q.y + s->form.products * s->y_point;
    for (q.v0 = 0; q.v0 < s->vectors; q.v0 += s->part) {
        q.vectors = WEFT__MIN(s->part, s->vectors - q.v0);
        for (q.first = 0; q.first < s->rows; q.first += q.count) {
            q.count = WEFT__MIN(s->strip, s->rows - q.first);
            if (strips_of(s) > 1 || q.v0 == 0) weft__parallel(e->ctx, SLOTS, in_slot, &q);
            weft__parallel(e->ctx, WEFT__MIN(products_of(&q), PRODUCTS), product_slot, &q);
        }
        weft__parallel(e->ctx, WEFT__MIN(cpu_ceil(s->c, VF_LANES) * q.vectors, SLOTS), out_slot, &q);
    }
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__winograd_weights)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

static const char *refusal(const weft_problem *p, int stride) {
    if (p->groups > 1) return "more than one group";
    if (p->kernel[0] != 1) return "a window in depth";
    const char *reason = winograd_window_refusal(p, stride);
    if (reason) return reason;
    if (p->n == 0 || p->out[0] == 0 || p->out[1] == 0 || p->out[2] == 0) return "no positions";
    if (p->c < 4 || p->o < 4) return "under 4 channels: transforms cost more";
    return cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
}

static const char *plan_of(const weft_problem *p, const weft__hw *hw, int stride, weft__decision *out) {
    const char *reason = refusal(p, stride);
    if (reason) return reason;
    params *d = WEFT__PARAMS(params, out);
    weft__decision bias = {0};
    reason = gemm_bias_plan(p, hw, 0, &bias, &d->bias);
    if (reason) return reason;
    const shape s = shape_of(p);
    const double tiles = (double)(s.rows * s.across), lanes = (double)(s.rows * cpu_round_up(s.across, VF_LANES));
    const double outs = (double)(s.vectors * VF_LANES), c = (double)s.c, strips = (double)strips_of(&s);
    const double parts = strips > 1 ? (double)cpu_ceil(s.vectors, s.part) : 1; /* that transform src again */
    const double slots = s.form.slots, products = s.form.products, product = 2.0 * slots * tiles * c * outs;
    /* as multiply-adds: mostly stores and loads */
    const double turns =
        2.0 * parts * lanes * (slots * c + products * 2 * outs) * (VF_REGS == 32 ? 8 : 12) * cpu_move(hw);
    const double back = 25 * slots * c * outs, sums = 8 * slots * c * outs * (2 * strips - 1);
    const int64_t floats = x_floats(&s) + s.form.products * s.y_point + w_floats(&s);
    out->workspace = WEFT__MAX(bias.workspace, (size_t)floats * sizeof(float));
    out->ns = cpu_cost(hw, weft__bytes(p) + (strips > 1 ? sums : 0), (product + turns + back) / GEMM_SHARE, 1) +
              0.06 * (double)out->workspace / WEFT__MIN(hw->threads, 8) + bias.ns; /* first touch */
    return NULL;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_of(p, hw, 1, out);
}
static const char *plan_s2(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_of(p, hw, 2, out);
}

WEFT__KERNEL(f32_winograd_bwd_weights_nchw) = {
    .name = WEFT__NAME("f32_conv3x3_bwd_weights_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = WEFT__STEP_SET(BIAS),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan,
    .run = run,
};

WEFT__KERNEL(f32_winograd_s2_bwd_weights_nchw) = {
    .name = WEFT__NAME("f32_conv_s2_bwd_weights_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = WEFT__STEP_SET(BIAS),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan_s2,
    .run = run,
};
