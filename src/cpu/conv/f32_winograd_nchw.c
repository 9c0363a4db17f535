/* f32 3x3 convolution by Winograd's F(2x2, 3x3), channels-first, stride 1, 2D: forward and data gradient.
 * Math:      a tile of 2 x 2 outputs has 4 x 4 inputs d: out = A'((G w G') . (B' d B))A, summed over channels between
 *            the transforms: 16 products for a tile and a pair of channels instead of 36. The data gradient is the same
 *            with the window turned and channels exchanged. Partial convolution comes with factors of the positions
 * Blocking:  lanes are tiles of a row. The transformed inputs of a strip of rows of tiles, [point][channel][tile], are
 *            multiplied by the packed weights of each point in the register tiles of cpu/gemm, then transformed back
 * Traffic:   16 values for each tile and channel, written and read once near the last-level cache; weights once a strip
 * Roofline:  32 * tiles * c * o flops at the multiply-add peak
 *            Measured beside float_conv_nchw_gemm on two busy Zen 4 cores, weights transformed in the call: 2.4x for
 *            256 channels of 56x56, 1.5x for 512 of 28x28, 2.9x for 8 images of 128 of 28x28, 1.25x for 8 of 512 of 7x7
 * Accuracy:  0.1 of the bound of a direct sum, relative to the largest in the tensor, not to each output. Not strict
 * Try:       weft bench conv2d:fwd:f32:nchw:n1c256h56w56:o256k3p1 */
#include "cpu/conv/gemm_view.h"

enum { POINTS = 16, STRIP_BYTES = 12 << 20, SLOTS = 32 };

typedef struct shape {
    bool back;
    int64_t n, groups, ic, oc; /* channels of a group, read and written */
    int64_t ih, iw, oh, ow, ph, pw;
    int64_t down, across, rows;        /* rows and columns of tiles of an image; rows of the batch */
    int64_t strip, pitch;              /* rows of a strip; floats of its tiles */
    int64_t x_point, y_point, w_point; /* floats of one point */
} shape;

static shape shape_of(const weft_problem *p) {
    const bool back = p->pass == WEFT_PASS_BWD_DATA;
    shape s = {.back = back, .n = p->n, .groups = p->groups};
    s.ic = (back ? p->o : p->c) / p->groups, s.oc = (back ? p->c : p->o) / p->groups;
    s.ih = back ? p->out[1] : p->in[1], s.iw = back ? p->out[2] : p->in[2];
    s.oh = back ? p->in[1] : p->out[1], s.ow = back ? p->in[2] : p->out[2];
    s.ph = back ? 2 - p->pad_lo[1] : p->pad_lo[1], s.pw = back ? 2 - p->pad_lo[2] : p->pad_lo[2];
    s.down = cpu_ceil(s.oh, 2), s.across = cpu_ceil(s.ow, 2), s.rows = s.n * s.down;
    const int64_t row = POINTS * s.groups * (s.ic + s.oc) * s.across * (int64_t)sizeof(float);
    const int64_t strips = cpu_ceil(s.rows, WEFT__MAX(STRIP_BYTES / WEFT__MAX(row, 1), 1));
    s.strip = cpu_ceil(s.rows, WEFT__MAX(strips, 1));
    s.pitch = cpu_round_up(s.strip * s.across, GEMM_NR) + VF_LANES; /* an odd number of vectors: no strides of 4 KB */
    s.x_point = s.groups * s.ic * s.pitch + 16, s.y_point = s.groups * s.oc * s.pitch + 16;
    s.w_point = cpu_round_up(s.groups * s.ic * s.oc, 16) + 16;
    return s;
}

typedef struct job {
    shape s;
    cpu_epilogue f;
    const gemm_factors *factors;
    const float *in, *weights;
    float *out, *w, *x, *y;
    int64_t first, count; /* rows of tiles of this strip */
} job;

/* ---------------------------------------------------------------- weights */
/* w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2, w2 */
VF_INLINE void turn_weights(vf a, vf b, vf c, vf to[4]) {
    const vf half = vf_set1(0.5f), ends = vf_add(a, c);
    to[0] = a, to[1] = vf_mul(half, vf_add(ends, b)), to[2] = vf_mul(half, vf_sub(ends, b)), to[3] = c;
}

/* G w G' of `count` windows in as many lanes, to every `point`-th vector. */
static void transform_windows(const float *const from[VF_LANES], int64_t count, bool turned, float *to, int64_t point) {
    vf v[VF_LANES], w[9], half[4][3];
    VF_UNROLL for (int l = 0; l < VF_LANES; l++) v[l] = l < count ? vf_load_count(from[l], 9) : vf_zero();
    vf_transpose(v);
    VF_UNROLL for (int k = 0; k < 9; k++) {
        float lane[VF_LANES] = {0};
        for (int64_t l = 0; l < count && k >= VF_LANES; l++) lane[l] = from[l][k];
        w[k] = k < VF_LANES ? v[k % VF_LANES] : vf_load(lane);
    }
    for (int j = 0; j < 3; j++) {
        vf column[4];
        turn_weights(w[turned ? 8 - j : j], w[turned ? 5 - j : 3 + j], w[turned ? 2 - j : 6 + j], column);
        for (int i = 0; i < 4; i++) half[i][j] = column[i];
    }
    for (int i = 0; i < 4; i++) {
        vf row[4];
        turn_weights(half[i][0], half[i][1], half[i][2], row);
        for (int j = 0; j < 4; j++) vf_store_count(to + (4 * i + j) * point, row[j], count);
    }
}

/* One slot: a panel of output channels of a group, [point][group][panel][channel][row]. */
static void weights_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t mp = gemm_split(s->oc, GEMM_MR), g = slot / mp;
    const int64_t m = gemm_first(s->oc, mp, slot % mp), rows = gemm_first(s->oc, mp, slot % mp + 1) - m;
    float *to = q->w + (g * s->oc + m) * s->ic;
    for (int64_t i = 0, c = 0, r = 0; i < s->ic * rows; i += VF_LANES) {
        const int64_t count = WEFT__MIN(s->ic * rows - i, VF_LANES);
        const float *from[VF_LANES];
        for (int64_t l = 0; l < count; l++) {
            const int64_t at = s->back ? (g * s->ic + c) * s->oc + m + r : (g * s->oc + m + r) * s->ic + c;
            from[l] = q->weights + at * 9;
            if (++r == rows) r = 0, c++;
        }
        transform_windows(from, count, s->back, to + i, s->w_point);
    }
}

/* ---------------------------------------------------------------- tiles in */
VF_INLINE vf load_in(const job *q, const float *row, const float *factor, int64_t x) {
    const vmask in = vm_range(-x, q->s.iw - x);
    const vf v = vf_load_in(in, row + x);
    return factor ? gemm_factor_apply(v, vf_load_in(in, factor + x), q->factors->in.selects) : v;
}

/* d0 - d2, d1 + d2, d2 - d1, d1 - d3 */
VF_INLINE void turn_in(const vf d[4], vf to[4]) {
    to[0] = vf_sub(d[0], d[2]), to[1] = vf_add(d[1], d[2]), to[2] = vf_sub(d[2], d[1]), to[3] = vf_sub(d[1], d[3]);
}

/* VF_LANES tiles from column x on of four rows from y on. */
VF_INLINE void tile_in(const job *q, const float *plane, const float *factors, int64_t y, int64_t x, float *to) {
    const shape *s = &q->s;
    vf half[4][4];
    VF_UNROLL for (int i = 0; i < 4; i++) {
        vf d[4];
        VF_UNROLL for (int j = 0; j < 4; j++) d[j] = vf_zero();
        if (y + i >= 0 && y + i < s->ih) {
            const float *row = plane + (y + i) * s->iw, *factor = factors ? factors + (y + i) * s->iw : NULL;
            const vf a = load_in(q, row, factor, x), b = load_in(q, row, factor, x + VF_LANES);
            const vf c = load_in(q, row, factor, x + 2), e = load_in(q, row, factor, x + 2 + VF_LANES);
            d[0] = vf_even(a, b), d[1] = vf_odd(a, b), d[2] = vf_even(c, e), d[3] = vf_odd(c, e);
        }
        turn_in(d, half[i]);
    }
    VF_UNROLL for (int j = 0; j < 4; j++) {
        const vf column[4] = {half[0][j], half[1][j], half[2][j], half[3][j]};
        vf turned[4];
        turn_in(column, turned);
        VF_UNROLL for (int i = 0; i < 4; i++) vf_store(to + (4 * i + j) * s->x_point, turned[i]);
    }
}

/* A slot has whole channels: a vector that reaches into the next row of tiles is written before that row. */
static void in_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t channels = s->groups * s->ic, slots = WEFT__MIN(channels, SLOTS);
    const gemm_factor *f = &q->factors->in;
    for (int64_t c = cpu_first(channels, slots, slot); c < cpu_first(channels, slots, slot + 1); c++)
        for (int64_t r = 0; r < q->count; r++) {
            const int64_t n = (q->first + r) / s->down, y = (q->first + r) % s->down * 2 - s->ph;
            const float *plane = q->in + (n * channels + c) * s->ih * s->iw;
            float *to = q->x + c * s->pitch + r * s->across;
            for (int64_t t = 0; t < s->across; t += VF_LANES)
                tile_in(q, plane, f->at ? f->at + n * f->image : NULL, y, 2 * t - s->pw, to + t);
        }
}

/* ---------------------------------------------------------------- product */
static void product_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t vectors = cpu_ceil(q->count * s->across, VF_LANES), np = gemm_split(vectors, GEMM_NV);
    const int64_t mp = gemm_split(s->oc, GEMM_MR), items = POINTS * s->groups * np, slots = WEFT__MIN(items, SLOTS);
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++) {
        const int64_t g = i / np % s->groups, point = i / np / s->groups;
        const int64_t v0 = gemm_first(vectors, np, i % np), v1 = gemm_first(vectors, np, i % np + 1);
        for (int64_t k = 0; k < mp; k++) {
            const int64_t m = gemm_first(s->oc, mp, k), rows = gemm_first(s->oc, mp, k + 1) - m;
            const gemm_tile t = {.k = s->ic,
                                 .a = q->w + point * s->w_point + (g * s->oc + m) * s->ic,
                                 .lda = rows,
                                 .b = q->x + point * s->x_point + g * s->ic * s->pitch + v0 * VF_LANES,
                                 .ldb = s->pitch,
                                 .c = q->y + point * s->y_point + (g * s->oc + m) * s->pitch + v0 * VF_LANES,
                                 .ldc = s->pitch,
                                 .tail = VF_LANES};
            gemm_run(&t, GEMM_STRIDED, rows, v1 - v0);
        }
    }
}

/* ---------------------------------------------------------------- tiles out */
/* m0 + m1 + m2, m1 - m2 - m3 */
VF_INLINE void turn_out(const vf m[4], vf to[2]) {
    to[0] = vf_add(vf_add(m[0], m[1]), m[2]), to[1] = vf_sub(vf_sub(m[1], m[2]), m[3]);
}

/* count outputs from `at` of image n and channel c on. */
VF_INLINE void put_out(const job *q, int64_t n, int64_t c, int64_t at, vf v, int64_t count, vf bias) {
    const shape *s = &q->s;
    const gemm_factor *ratio = &q->factors->ratio, *keep = &q->factors->out;
    if (ratio->at) v = vf_mul(v, vf_load_count(ratio->at + n * ratio->image + at, count));
    v = vf_add(v, bias);
    if (keep->at) v = gemm_factor_apply(v, vf_load_count(keep->at + n * keep->image + at, count), keep->selects);
    v = vf_clip(v, vf_set1(q->f.lo), vf_set1(q->f.hi));
    vf_store_count(q->out + (n * s->groups * s->oc + c) * s->oh * s->ow + at, v, count);
}

VF_INLINE void tile_out(const job *q, int64_t n, int64_t c, int64_t y, int64_t x, const float *from, vf bias) {
    const shape *s = &q->s;
    vf half[2][4];
    VF_UNROLL for (int j = 0; j < 4; j++) {
        vf m[4], turned[2];
        VF_UNROLL for (int i = 0; i < 4; i++) m[i] = vf_load(from + (4 * i + j) * s->y_point);
        turn_out(m, turned);
        half[0][j] = turned[0], half[1][j] = turned[1];
    }
    VF_UNROLL for (int i = 0; i < 2; i++) {
        vf out[2];
        const int64_t at = (y + i) * s->ow + x, left = s->ow - x;
        if (y + i >= s->oh) break;
        turn_out(half[i], out);
        put_out(q, n, c, at, vf_zip_lo(out[0], out[1]), left, bias);
        if (left > VF_LANES) put_out(q, n, c, at + VF_LANES, vf_zip_hi(out[0], out[1]), left - VF_LANES, bias);
    }
}

static void out_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t channels = s->groups * s->oc, slots = WEFT__MIN(channels, SLOTS);
    for (int64_t c = cpu_first(channels, slots, slot); c < cpu_first(channels, slots, slot + 1); c++) {
        const vf bias = vf_set1(q->f.bias ? ((const float *)q->f.bias)[c] : 0);
        for (int64_t r = 0; r < q->count; r++) {
            const int64_t n = (q->first + r) / s->down, y = (q->first + r) % s->down * 2;
            const float *from = q->y + c * s->pitch + r * s->across;
            for (int64_t t = 0; t < s->across; t += VF_LANES) tile_out(q, n, c, y, 2 * t, from + t, bias);
        }
    }
}

/* ---------------------------------------------------------------- the driver */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    job q = {.s = shape_of(e->p), .weights = weights, .w = packed};
    weft__parallel(e->ctx, q.s.groups * gemm_split(q.s.oc, GEMM_MR), weights_slot, &q);
    return WEFT_OK;
}

weft_status WEFT__ISA_NAME(weft__winograd_nchw)(const weft__exec *e, const gemm_factors *factors) {
    job q = {.s = shape_of(e->p), .f = cpu_epilogue_of(e), .factors = factors, .w = (float *)e->packed};
    const shape *s = &q.s;
    const int64_t vectors = cpu_ceil(s->strip * s->across, VF_LANES);
    const int64_t products = POINTS * s->groups * gemm_split(vectors, GEMM_NV);
    q.in = e->ptr[s->back ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.out = e->ptr[s->back ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.x = e->workspace;
    q.y = q.x + POINTS * s->x_point + VF_LANES;
    for (q.first = 0; q.first < s->rows; q.first += q.count) {
        q.count = WEFT__MIN(s->strip, s->rows - q.first);
        weft__parallel(e->ctx, WEFT__MIN(s->groups * s->ic, SLOTS), in_slot, &q);
        weft__parallel(e->ctx, WEFT__MIN(products, SLOTS), product_slot, &q);
        weft__parallel(e->ctx, WEFT__MIN(s->groups * s->oc, SLOTS), out_slot, &q);
    }
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__winograd_nchw)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

static const char *refusal(const weft_problem *p) {
    const char *reason = cpu_epilogue_refusal(p);
    if (reason) return reason;
    if (p->in[0] != 1 || p->kernel[0] != 1 || p->pad_lo[0] || p->pad_hi[0]) return "three spatial axes";
    for (int a = 1; a < 3; a++) {
        if (p->kernel[a] != 3) return "the window is not 3x3";
        if (p->stride[a] != 1 || p->dilation[a] != 1) return "stride or dilation is not 1";
        if (p->pad_lo[a] > 2 || p->pad_hi[a] > 2) return "outputs that see only padding";
    }
    if (p->c / p->groups < 4 || p->o / p->groups < 4) return "under 4 channels a group: transforms cost more";
    return cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = refusal(p);
    (void)variant;
    if (reason) return reason;
    const shape s = shape_of(p);
    const double tiles = (double)(s.rows * s.across), g = (double)s.groups, ic = (double)s.ic, oc = (double)s.oc;
    const double product = 2.0 * POINTS * tiles * g * ic * oc;
    const double turns = 2.0 * POINTS * tiles * g * (ic + oc) * 12; /* as multiply-adds: mostly stores and loads */
    d->packed = (size_t)(POINTS * s.w_point) * sizeof(float);
    d->workspace = (size_t)(POINTS * (s.x_point + s.y_point) + 2 * VF_LANES) * sizeof(float);
    const double weights = 1200 * g * ic * oc; /* not in vectors */
    d->ns = cpu_cost(hw, weft__bytes(p) + (double)d->packed, (product + turns + weights) / GEMM_SHARE, 1) +
            0.1 * (double)(d->packed + d->workspace); /* first touch */
    return NULL;
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
