/* Gradients of dense and grouped convolution of few positions, channels-first f32, by columns in the order of the
 * weights, (channel, tap): weights are read, and their gradient is written, where they lie.
 * Math:      bwd_data: columns[q][c, tap] = sum_o diff_dst[o][q] * weights[o][c, tap], each added to the position of
 *            diff_src that tap and q meet
 *            bwd_weights: diff_weights[o][c, tap] = sum_q diff_dst[o][q] * columns[q][c, tap], columns a copy of src
 * Blocking:  an item is CHANNELS channels of a group; their columns of all positions are in the second-level cache.
 *            They are multiplied in the register tiles of cpu/gemm by panels of diff_dst, which are made first. A plane
 *            with its padding takes the columns of a channel, or gives them, so that no tap is outside
 * Traffic:   weights, or their gradient, once; src or diff_src once; diff_dst from the last-level cache for each item
 * Roofline:  of few positions the memory traffic of the weights, which the other kernels pack or turn in every call;
 *            else the multiply-add peak; a column that is added or copied costs COLUMN_FLOPS
 *            Measured beside float_conv_nchw_gemm and float_conv_bwd_weights_gemm, one core, partial convolution of 512
 *            to 512 channels, 3x3, stride 2: 1.6x and 1.6x for 16x16, 2.7x and 2.2x for 8x8; 2.6x and 2.3x for 1024 to
 *            512 channels of 4x4
 * Assumes:   all dense channels-first f32; a block of channels, or more
 * Try:       weft bench conv2d:bwd_data:f32:nchw:n1c512h8w8:o512k3s2p1
 *            weft bench conv2d:bwd_weights:f32:nchw:n1c512h7w7:o512k3p1 */
#include "cpu/conv/gemm_bias.h"

enum { CHANNELS = 16, POSITIONS = 1024, COLUMN_FLOPS = 110, PACK_FLOPS = 64 };

typedef struct params {
    gemm_bias bias;
    int64_t items;
    size_t panels, room; /* bytes: of diff_dst; of the bias that is added */
    size_t columns, scratch;
} params;
_Static_assert(sizeof(params) <= GEMM_PARAMS, "the kernels that use this one keep its parameters");

typedef struct shape {
    int64_t n, groups, ci, co;       /* channels of a group: of src, and of dst */
    int64_t taps, row;               /* weights of a channel and of an output */
    int64_t image, positions, plane; /* positions of dst: of an image, of all; of src: of a channel */
    int64_t padded[3];               /* a plane of src with its padding */
    int64_t blocks;                  /* of the channels of a group */
} shape;

static shape shape_of(const weft_problem *p) {
    shape s = {.n = p->n, .groups = p->groups, .ci = p->c / p->groups, .co = p->o / p->groups, .taps = gemm_window(p)};
    s.row = s.ci * s.taps, s.image = s.plane = 1;
    for (int a = 0; a < 3; a++) {
        const int64_t reach = (p->out[a] - 1) * p->stride[a] + (p->kernel[a] - 1) * p->dilation[a] + 1;
        s.padded[a] = WEFT__MAX(reach, p->pad_lo[a] + p->in[a]);
        s.image *= p->out[a], s.plane *= p->in[a];
    }
    s.positions = s.n * s.image, s.blocks = cpu_ceil(s.ci, CHANNELS);
    return s;
}

typedef struct job {
    const weft__exec *e;
    const params *d;
    shape s;
    const gemm_factors *factors;
    const float *diff_dst, *from; /* from: src or weights */
    float *panels, *to;           /* to: diff_weights */
    gemm_out out;                 /* diff_src */
    const float *bias;            /* of each channel; NULL: none */
    bool scaled;                  /* results have factors: the bias is added before them */
    gemm_scratch scratch;
    int64_t slots;
} job;

/* Some channels of a group, and the columns that they have. */
typedef struct block {
    int64_t group, c0, c1, n, vectors;
    float *columns, *plane;
} block;
static block block_of(const job *q, int64_t item, char *scratch) {
    const shape *s = &q->s;
    block b = {.group = item / s->blocks};
    b.c0 = gemm_first(s->ci, s->blocks, item % s->blocks), b.c1 = gemm_first(s->ci, s->blocks, item % s->blocks + 1);
    b.n = (b.c1 - b.c0) * s->taps, b.vectors = cpu_ceil(b.n, VF_LANES);
    b.columns = (float *)(void *)scratch, b.plane = (float *)(void *)(scratch + q->d->columns);
    return b;
}

/* ---------------------------------------------------------------- diff_dst */
/* The value of output o of all groups at position i of the batch. */
VF_INLINE float diff_at(const job *q, const gemm_factor *f, int64_t o, int64_t i) {
    const shape *s = &q->s;
    const int64_t n = i / s->image, at = i - n * s->image;
    const float value = q->diff_dst[(n * s->groups * s->co + o) * s->image + at];
    if (!f->at) return value;
    const float factor = f->at[n * f->image + at];
    return !f->selects ? value * factor : factor == 0 ? 0 : value;
}

/* One slot: outputs of a group. Panels of positions, [o][row], or of outputs, [q][row]. */
static void pack_positions(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t slots = q->slots, o0 = cpu_first(s->groups * s->co, slots, slot);
    const int64_t mp = gemm_split(s->positions, GEMM_MR);
    for (int64_t o = o0; o < cpu_first(s->groups * s->co, slots, slot + 1); o++)
        for (int64_t m = 0; m < mp; m++) {
            const int64_t first = gemm_first(s->positions, mp, m), rows = gemm_first(s->positions, mp, m + 1) - first;
            float *to = q->panels + (o / s->co * s->positions + first) * s->co + o % s->co * rows;
            for (int64_t r = 0; r < rows; r++) to[r] = diff_at(q, &q->factors->in, o, first + r);
        }
}
static void pack_outputs(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t mp = gemm_split(s->co, GEMM_MR), items = s->groups * mp, slots = q->slots;
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++) {
        const int64_t first = gemm_first(s->co, mp, i % mp), rows = gemm_first(s->co, mp, i % mp + 1) - first;
        const int64_t o = i / mp * s->co + first;
        float *to = q->panels + o * s->positions;
        for (int64_t k = 0; k < s->positions; k++)
            for (int64_t r = 0; r < rows; r++) to[k * rows + r] = diff_at(q, &q->factors->diff, o + r, k);
    }
}

/* ---------------------------------------------------------------- planes and columns */
/* Columns of channel c and image n to a plane with padding, added up, or the other way. */
VF_INLINE void move_columns(const job *q, const block *b, int64_t n, int64_t c, int64_t ld, const bool out) {
    const shape *s = &q->s;
    const weft_problem *p = q->e->p;
    float *columns = b->columns + n * s->image * ld + (c - b->c0) * s->taps;
    const int64_t height = s->padded[1], width = s->padded[2], stride = p->stride[2];
    for (int64_t tap = 0; tap < s->taps; tap++, columns++) {
        const int64_t kx = tap % p->kernel[2], ky = tap / p->kernel[2] % p->kernel[1];
        const int64_t kz = tap / p->kernel[2] / p->kernel[1];
        float *column = columns;
        for (int64_t z = 0; z < p->out[0]; z++)
            for (int64_t y = 0; y < p->out[1]; y++) {
                const int64_t iz = z * p->stride[0] + kz * p->dilation[0], iy = y * p->stride[1] + ky * p->dilation[1];
                float *at = b->plane + (iz * height + iy) * width + kx * p->dilation[2];
                for (int64_t x = 0; x < p->out[2]; x++, at += stride, column += ld)
                    if (out)
                        *at += *column;
                    else
                        *column = *at;
            }
    }
}
VF_INLINE int64_t padded_of(const shape *s) { return s->padded[0] * s->padded[1] * s->padded[2]; }
/* Row y of plane z of a channel, without its padding. */
VF_INLINE float *inside(const job *q, const block *b, int64_t z, int64_t y) {
    const int64_t *pad = q->e->p->pad_lo, *size = q->s.padded;
    return b->plane + ((z + pad[0]) * size[1] + y + pad[1]) * size[2] + pad[2];
}

static void put_channel(const job *q, const block *b, int64_t n, int64_t c, int64_t ld) {
    const shape *s = &q->s;
    const weft_problem *p = q->e->p;
    const int64_t channel = b->group * s->ci + c;
    memset(b->plane, 0, (size_t)padded_of(s) * sizeof(float));
    move_columns(q, b, n, c, ld, true);
    for (int64_t z = 0; z < p->in[0]; z++)
        for (int64_t y = 0; y < p->in[1]; y++) {
            float *row = inside(q, b, z, y);
            const int64_t at = (z * p->in[1] + y) * p->in[2];
            if (q->scaled) gemm_scale(q->factors, n, at, 1, row, p->in[2], q->bias ? q->bias[channel] : 0);
            gemm_put_run(&q->out, (n * s->groups * s->ci + channel) * s->plane + at, 1, row, p->in[2], channel, false);
        }
}
static void get_channel(const job *q, const block *b, int64_t n, int64_t c, int64_t ld) {
    const shape *s = &q->s;
    const weft_problem *p = q->e->p;
    const gemm_factor *f = &q->factors->in;
    const float *from = q->from + ((n * s->groups + b->group) * s->ci + c) * s->plane;
    for (int64_t z = 0; z < p->in[0]; z++)
        for (int64_t y = 0; y < p->in[1]; y++)
            for (int64_t x = 0; x < p->in[2]; x += VF_LANES) {
                const int64_t at = (z * p->in[1] + y) * p->in[2] + x, left = p->in[2] - x;
                vf v = vf_load_count(from + at, left);
                if (f->at) v = gemm_factor_apply(v, vf_load_count(f->at + n * f->image + at, left), f->selects);
                vf_store_count(inside(q, b, z, y) + x, v, left);
            }
    move_columns(q, b, n, c, ld, false);
}

/* ---------------------------------------------------------------- items */
/* Whole vectors are read of the weights: those of the last channels begin among the ones before them. */
static void data_item(const job *q, const block *b) {
    const shape *s = &q->s;
    const int64_t first = WEFT__MIN(b->c0 * s->taps, s->row - b->vectors * VF_LANES), ld = b->vectors * VF_LANES;
    const int64_t mp = gemm_split(s->positions, GEMM_MR), np = gemm_split(b->vectors, GEMM_NV);
    for (int64_t j = 0; j < np; j++)
        for (int64_t i = 0; i < mp; i++) {
            const int64_t v0 = gemm_first(b->vectors, np, j), v1 = gemm_first(b->vectors, np, j + 1);
            const int64_t m = gemm_first(s->positions, mp, i), rows = gemm_first(s->positions, mp, i + 1) - m;
            const gemm_tile t = {.k = s->co,
                                 .a = q->panels + (b->group * s->positions + m) * s->co,
                                 .lda = rows,
                                 .b = q->from + b->group * s->co * s->row + first + v0 * VF_LANES,
                                 .ldb = s->row,
                                 .c = b->columns + m * ld + v0 * VF_LANES,
                                 .ldc = ld,
                                 .tail = VF_LANES};
            gemm_run(&t, GEMM_STRIDED, rows, v1 - v0);
        }
    block at = *b;
    at.columns += b->c0 * s->taps - first;
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t c = b->c0; c < b->c1; c++) put_channel(q, &at, n, c, ld);
}

static void weights_item(const job *q, const block *b) {
    const shape *s = &q->s;
    const int64_t ld = b->vectors * VF_LANES;
    const int64_t mp = gemm_split(s->co, GEMM_MR), np = gemm_split(b->vectors, GEMM_NV);
    memset(b->plane, 0, (size_t)padded_of(s) * sizeof(float));
    for (int64_t i = 0; i < s->positions && b->n < ld; i++) vf_store(b->columns + (i + 1) * ld - VF_LANES, vf_zero());
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t c = b->c0; c < b->c1; c++) get_channel(q, b, n, c, ld);
    for (int64_t i = 0; i < mp; i++)
        for (int64_t j = 0; j < np; j++) {
            const int64_t v0 = gemm_first(b->vectors, np, j), v1 = gemm_first(b->vectors, np, j + 1);
            const int64_t m = gemm_first(s->co, mp, i), rows = gemm_first(s->co, mp, i + 1) - m;
            const int64_t o = b->group * s->co + m;
            const gemm_tile t = {.k = s->positions,
                                 .a = q->panels + o * s->positions,
                                 .lda = rows,
                                 .b = b->columns + v0 * VF_LANES,
                                 .ldb = ld,
                                 .c = q->to + o * s->row + b->c0 * s->taps + v0 * VF_LANES,
                                 .ldc = s->row,
                                 .tail = (int)(WEFT__MIN(b->n, v1 * VF_LANES) - (v1 - 1) * VF_LANES)};
            gemm_run(&t, GEMM_STRIDED, rows, v1 - v0);
        }
}

static void task(void *arg, int64_t slot) {
    job *q = arg;
    const int mine = gemm_take(&q->scratch);
    char *scratch = q->scratch.base + (size_t)mine * q->scratch.bytes;
    for (int64_t i = cpu_first(q->d->items, q->slots, slot); i < cpu_first(q->d->items, q->slots, slot + 1); i++) {
        const block b = block_of(q, i, scratch);
        if (q->to)
            weights_item(q, &b);
        else
            data_item(q, &b);
    }
    gemm_give(&q->scratch, mine);
}

/* ---------------------------------------------------------------- the driver */
static job job_of(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    job q = {.e = e, .d = d, .s = shape_of(e->p), .factors = factors, .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST]};
    q.panels = e->workspace, q.slots = WEFT__MIN(d->items, GEMM_SLOTS);
    q.scratch.base = (char *)e->workspace + d->panels + d->room, q.scratch.bytes = d->scratch;
    return q;
}

weft_status WEFT__ISA_NAME(weft__gemm_columns_data)(const weft__exec *e, const gemm_factors *factors) {
    job q = job_of(e, factors);
    q.from = e->ptr[WEFT_ROLE_WEIGHTS];
    q.out = gemm_out_of(e, WEFT_ROLE_DIFF_SRC, (float *)(void *)((char *)e->workspace + q.d->panels));
    q.scaled = factors->ratio.at || factors->out.at, q.bias = q.out.bias;
    if (q.scaled) q.out.bias = NULL;
    weft__parallel(e->ctx, q.slots, pack_positions, &q);
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}
weft_status WEFT__ISA_NAME(weft__gemm_columns_weights)(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    WEFT__TRY(gemm_bias_run(e, &d->bias, factors));
    job q = job_of(e, factors);
    q.from = e->ptr[WEFT_ROLE_SRC], q.to = e->ptr[WEFT_ROLE_DIFF_WEIGHTS];
    weft__parallel(e->ctx, q.slots, pack_outputs, &q);
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}
static weft_status run_data(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__gemm_columns_data)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}
static weft_status run_weights(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__gemm_columns_weights)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

/* Also for partial convolution, whose record knows more data types and steps. */
static const char *refusal(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++) {
        const int role = p->tensor[i].role;
        const bool data = role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_DST ||
                          role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_DIFF_WEIGHTS;
        if (data && p->tensor[i].dtype != WEFT_DTYPE_F32) return "not all is f32";
    }
    if (p->pass == WEFT_PASS_BWD_WEIGHTS && weft__has_step(p, WEFT_STEP_ACC)) return "accumulated weights";
    if (p->pass == WEFT_PASS_BWD_WEIGHTS && p->math == WEFT_MATH_STRICT && gemm_is_padded(p))
        return "strict math, and padding that is multiplied";
    return gemm_refusal(p, WEFT_LAYOUT_FIRST);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    const char *reason = refusal(p);
    if (reason) return reason;
    const shape s = shape_of(p);
    if (s.positions < 1 || s.positions > POSITIONS) return "not few positions";
    if (s.ci < CHANNELS) return "few channels";
    params *d = WEFT__PARAMS(params, out);
    weft__decision bias = {0};
    reason = p->pass == WEFT_PASS_BWD_WEIGHTS ? gemm_bias_plan(p, hw, variant, &bias, &d->bias) : NULL;
    if (reason) return reason;
    const int64_t width = cpu_round_up(cpu_ceil(s.ci, s.blocks) * s.taps, VF_LANES);
    d->items = s.groups * s.blocks;
    d->panels = (size_t)cpu_round_up(p->o * s.positions * 4, 64);
    d->room = p->pass == WEFT_PASS_BWD_DATA ? (size_t)cpu_round_up((int64_t)gemm_bias_bytes(p, p->c), 64) : 0;
    d->columns = (size_t)cpu_round_up(s.positions * width * 4, 64);
    d->scratch = d->columns + (size_t)cpu_round_up(padded_of(&s) * 4, 64);
    out->workspace = d->panels + d->room + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    out->workspace = WEFT__MAX(out->workspace, bias.workspace);
    const double columns = (double)(s.positions * s.blocks * width), co = (double)s.co, g = (double)s.groups;
    const double sums = g * (columns * (2 * co + COLUMN_FLOPS) + PACK_FLOPS * (double)s.positions * co);
    /* columns with a stride are added to results that lie apart: 1.5 ns for each */
    const bool apart = p->pass == WEFT_PASS_BWD_DATA && p->stride[2] > 1;
    const double results = apart ? 1.5 * (double)p->n * (double)(p->c * p->in[0] * p->in[1] * p->in[2]) : 0;
    out->ns =
        cpu_cost(hw, weft__bytes(p), cpu_uneven(hw, d->items) * sums, GEMM_SHARE) + bias.ns + results / hw->threads;
    return NULL;
}

WEFT__KERNEL(conv_gemm_columns_bwd_data) = {
    .name = WEFT__NAME("f32_conv_bwd_data_nchw_columns"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .steps = GEMM_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .exact = true,
    .plan = plan,
    .run = run_data,
};

WEFT__KERNEL(conv_gemm_columns_bwd_weights) = {
    .name = WEFT__NAME("f32_conv_bwd_weights_nchw_columns"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = WEFT__STEP_SET(BIAS),
    .dtypes = WEFT__DTYPE_SET(F32),
    .exact = true,
    .plan = plan,
    .run = run_weights,
};
