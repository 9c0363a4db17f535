/* Convolution with few channels a group, and its data gradient, both layouts, stride 1: a direct sum in register
 * tiles.
 * Math:      dst[o][q] = end(sum_k weights[o][k] * image[k][q]),  k = (tap, channel), as in gemm_nchw.c
 * Blocking:  an item is some rows of one plane of a bundle of groups, its input a slab of f32 (grouped.h). Along depth
 *            only the new plane is laid. Sums wait in scratch and leave without what is between the rows; for
 *            channels-last they are transposed on that way
 * Traffic:   the input once, with a halo of rows; each output once
 * Roofline:  multiply-add peak; with 2 outputs a group the loads, which split cache lines, are as many as the sums
 *            Measured on two Zen 4 cores (a dense product: 197 Gflop/s), k 3, 64 channels of 50^3: 8 channels a group
 *            160 Gflop/s, channels-last 145; 2 channels 100 and 74
 * Assumes:   src and dst dense in one layout, weights dense
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g32 */
#include "cpu/conv/grouped.h"

extern WEFT__KERNEL(conv_gemm_nchw);

enum { SLAB_BYTES = 288 << 10 };

typedef struct params {
    grouped_slab slab;
    int64_t items, ld;             /* ld: floats of the sums of an output */
    size_t bias, offsets, scratch; /* bytes; offsets, scratch: of one slot */
} params;

typedef struct job {
    const params *d;
    gemm_view v;
    grouped_image in;
    const float *weights;
    gemm_out out;
    gemm_scratch scratch;
    int64_t slots;
} job;

/* ---------------------------------------------------------------- sums out */
VF_INLINE void put_last(const job *q, const grouped_block *b, const float *sums, const int dtype) {
    const gemm_view *v = &q->v;
    const int64_t outs = b->groups * v->co, channels = v->groups * v->co, channel = b->first * v->co;
    for (int64_t y = b->y0; y < b->y1; y++, sums += q->d->slab.pitch)
        for (int64_t j = 0; j < v->x[2].count; j += VF_LANES)
            for (int64_t c = 0; c < outs; c += VF_LANES) {
                const int64_t pixel = ((b->n * v->x[0].out + b->z) * v->x[1].out + y) * v->x[2].out + j;
                const vf bias = q->out.bias ? vf_load(q->out.bias + channel + c) : vf_zero();
                vf block[VF_LANES];
                VF_UNROLL for (int l = 0; l < VF_LANES; l++) block[l] =
                    c + l < outs ? vf_load(sums + (c + l) * q->d->ld + j) : vf_zero();
                vf_transpose(block);
                VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                    if (j + l < v->x[2].count)
                        gemm_put_vector(&q->out, (pixel + l) * channels + channel + c, block[l], bias, outs - c, dtype);
                }
            }
}

static void put_sums(const job *q, const grouped_block *b, const float *sums) {
    const gemm_view *v = &q->v;
    if (q->d->slab.last) {
        GEMM_BY_DTYPE(q->out.dtype, put_last, q, b, sums);
        return;
    }
    for (int64_t o = 0; o < b->groups * v->co; o++) {
        const int64_t channel = b->first * v->co + o;
        const int64_t to = ((b->n * v->groups * v->co + channel) * v->x[0].out + b->z) * v->x[1].out;
        for (int64_t y = b->y0; y < b->y1; y++)
            gemm_put_run(&q->out, (to + y) * v->x[2].out, 1, sums + o * q->d->ld + (y - b->y0) * q->d->slab.pitch,
                         v->x[2].count, channel, false);
    }
}

/* ---------------------------------------------------------------- one item */
static void find_offsets(const job *q, int64_t z, int64_t *to) {
    const gemm_view *v = &q->v;
    const grouped_slab *d = &q->d->slab;
    for (int64_t r = 0; r < v->x[0].taps; r++)
        for (int64_t s = 0; s < v->x[1].taps; s++)
            for (int64_t t = 0; t < v->x[2].taps; t++)
                for (int64_t c = 0; c < v->ci; c++) *to++ = c * d->channel + grouped_offset(d, v, z, r, s, t);
}

static void run_group(const job *q, int64_t group, const int64_t *offsets, int64_t vectors, const float *slab,
                      float *sums) {
    const gemm_view *v = &q->v;
    const int64_t np = gemm_split(vectors, GEMM_NV), mp = gemm_split(v->co, GEMM_MR);
    for (int64_t j = 0; j < np; j++) {
        const int64_t a = gemm_first(vectors, np, j), b = gemm_first(vectors, np, j + 1);
        for (int64_t i = 0; i < mp; i++) {
            const int64_t m = gemm_first(v->co, mp, i), count = gemm_first(v->co, mp, i + 1) - m;
            gemm_tile t = {.k = v->k,
                           .a = q->weights + (group * v->co + m) * v->k,
                           .lda = count,
                           .b = slab + a * VF_LANES,
                           .offsets = offsets,
                           .c = sums + m * q->d->ld + a * VF_LANES,
                           .ldc = q->d->ld,
                           .tail = VF_LANES};
            gemm_run(&t, GEMM_OFFSETS, count, b - a);
        }
    }
}

/* ---------------------------------------------------------------- driver */
static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const gemm_view *v = &q->v;
    const int mine = gemm_take(&q->scratch);
    char *scratch = q->scratch.base + (size_t)mine * q->scratch.bytes;
    int64_t *offsets = (int64_t *)(void *)scratch;
    float *slab = (float *)(void *)(scratch + d->offsets), *sums = slab + d->slab.size;
    const int64_t first = cpu_first(d->items, q->slots, slot), last = cpu_first(d->items, q->slots, slot + 1);
    const int64_t blocks = d->items / d->slab.bundles;
    for (int64_t i = first; i < last; i++) {
        const grouped_block b = grouped_block_of(&d->slab, v, i / blocks, i % blocks);
        const int64_t vectors = cpu_ceil((b.y1 - b.y0 - 1) * d->slab.pitch + v->x[2].count, VF_LANES);
        grouped_move(&d->slab, v, &q->in, &b, i > first, slab);
        find_offsets(q, b.z, offsets);
        for (int64_t g = 0; g < b.groups; g++)
            run_group(q, b.first + g, offsets, vectors, slab + g * v->ci * d->slab.channel, sums + g * v->co * d->ld);
        put_sums(q, &b, sums);
    }
    gemm_give(&q->scratch, mine);
}

static weft_status run(const weft__exec *e) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    job q = {.d = d, .v = gemm_view_of(p, fwd, 0), .weights = e->packed, .slots = WEFT__MIN(d->items, GEMM_SLOTS)};
    q.in = grouped_image_of(e, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, fwd ? p->c : p->o, fwd ? p->in : p->out,
                            d->slab.last);
    q.out = gemm_out_of(e, fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC, e->workspace);
    q.scratch.base = (char *)e->workspace + d->bias, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}

/* The packed weights are those of the matrix product. */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    return WEFT__RECORD(conv_gemm_nchw).pack(e, weights, packed);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    params *d = WEFT__PARAMS(params, out);
    const gemm_view v = gemm_view_of(p, p->pass == WEFT_PASS_FWD, 0);
    const char *reason = grouped_plan(&d->slab, p, &v, SLAB_BYTES);
    if (reason) return reason;
    d->items = d->slab.bundles * v.n * d->slab.blocks * v.x[0].count;
    d->ld = d->slab.rows * d->slab.pitch + GEMM_NR;
    d->bias = gemm_bias_bytes(p, v.co * v.groups);
    d->offsets = (size_t)cpu_round_up(v.k * 8, 64);
    d->scratch = d->offsets + (size_t)cpu_round_up((d->slab.size + d->slab.bundle * v.co * d->ld) * 4, 64);
    out->workspace = d->bias + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    out->packed = (size_t)(v.ci * v.co * v.groups * v.taps) * sizeof(float);
    /* for each vector: its multiply-adds, loads that split lines, and the way in and out, 4 a vector, 10 transposed */
    const double halo = (double)(d->slab.rows + d->slab.span[1]) / (double)d->slab.rows, way = d->slab.last ? 10 : 4;
    const double sums = (double)v.k * ((double)v.co + 1 + 0.3 * (double)gemm_split(v.co, GEMM_MR)) +
                        way * (halo * (double)v.ci + (double)v.co);
    const double vectors = (double)(v.n * v.groups * v.x[0].count) * (double)(v.x[1].count * d->slab.pitch);
    out->ns = cpu_cost(hw, weft__bytes(p), 2 * sums * vectors, GEMM_SHARE);
    return NULL;
}

WEFT__KERNEL(conv_grouped) = {
    .name = WEFT__NAME("float_conv_grouped"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .not_strict = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};
