/* The weight gradient of convolution with few channels a group, both layouts: dot products over positions.
 * Math:      diff_weights[o][k] = sum_q diff_dst[o][q] * image[k][q],  k = (channel, tap); diff_bias[o] = sum_q
 *            diff_dst[o][q]
 * Blocking:  an item is a bundle of groups and a range of blocks of rows. Image and diff_dst of a block are laid out as
 *            f32 planes of one pitch (grouped.h); diff_dst has zeros between the rows. A tile is the sums of m outputs
 *            and k products, a vector of positions each, 24 registers; from block to block they wait in scratch
 * Sums:      blocks are shared out by the problem alone, and the parts are added in their order: bits do not depend on
 *            threads
 * Traffic:   src and diff_dst once, src with a halo of rows
 * Roofline:  multiply-add peak; with 2 outputs a group the loads, which split cache lines, are as many as the sums
 *            Measured on two Zen 4 cores, k 3, 64 channels of 50^3: 8 channels a group 151 Gflop/s, channels-last 134;
 *            2 channels 72 and 55
 * Assumes:   src and diff_dst dense in one layout, diff_weights dense channels-first
 * Try:       weft bench conv3d:bwd_weights:f32:ncdhw:n1c64d50h50w50:o64k3p1g32 */
#include "cpu/conv/grouped.h"

enum { SLAB_BYTES = CPU_CUT(160 << 10, 4 << 10), WIDE_BYTES = 640 << 10 };
enum { WANTED = 48, CHANNELS = 128 }; /* CHANNELS: as in grouped.c */
#if VF_REGS == 32
enum { OUTS = 6, SUMS = 24 };
#else
enum { OUTS = 3, SUMS = 12 };
#endif
enum { MOST = SUMS / 2 }; /* products of a tile */

typedef struct params {
    grouped_slab slab;
    int64_t blocks, splits, items;          /* blocks of a bundle; parts of them */
    int64_t ld, width;                      /* floats of diff_dst of an output; results of a bundle, at most */
    size_t offsets, diff, partial, scratch; /* bytes; offsets, diff, scratch: of one slot */
} params;
_Static_assert(sizeof(params) <= GEMM_PARAMS, "the kernels that use this one keep its parameters");

typedef struct job {
    const weft__exec *e;
    const params *d;
    gemm_view v;
    grouped_image src, diff, of_bias; /* of_bias: diff_dst with another factor; at NULL: diff serves */
    bool weights_last;                /* diff_weights is [o][tap][channel] */
    float *partial;
    gemm_scratch scratch;
    int64_t slots;
} job;

/* ---------------------------------------------------------------- tiles */
/* sums[i][m] += a vector at a time of diff[m] * image at offsets[i]. */
VF_INLINE void tile(const float *diff, int64_t ld, const float *image, const int64_t *offsets, int64_t vectors,
                    float *sums, const int m, const int k) {
    vf sum[MOST][OUTS];
    VF_UNROLL for (int i = 0; i < k; i++) {
        VF_UNROLL for (int j = 0; j < m; j++) sum[i][j] = vf_load(sums + (i * m + j) * VF_LANES);
    }
    for (int64_t q = 0; q < vectors; q++, diff += VF_LANES, image += VF_LANES) {
        vf d[OUTS];
        VF_UNROLL for (int j = 0; j < m; j++) d[j] = vf_keep(vf_load(diff + j * ld));
        VF_UNROLL for (int i = 0; i < k; i++) {
            const vf x = vf_load(image + offsets[i]);
            VF_UNROLL for (int j = 0; j < m; j++) sum[i][j] = vf_fma(d[j], x, sum[i][j]);
        }
    }
    VF_UNROLL for (int i = 0; i < k; i++) {
        VF_UNROLL for (int j = 0; j < m; j++) vf_store(sums + (i * m + j) * VF_LANES, sum[i][j]);
    }
}

typedef void (*tile_fn)(const float *, int64_t, const float *, const int64_t *, int64_t, float *);
#define TILE(m, k)                                                                                        \
    static void tile_##m##_##k(const float *diff, int64_t ld, const float *image, const int64_t *offsets, \
                               int64_t vectors, float *sums) {                                            \
        tile(diff, ld, image, offsets, vectors, sums, m, k);                                              \
    }
#define TILES_4(m) TILE(m, 1) TILE(m, 2) TILE(m, 3) TILE(m, 4)
#define TILES_6(m) TILES_4(m) TILE(m, 5) TILE(m, 6)
#define NAMES_4(m) tile_##m##_1, tile_##m##_2, tile_##m##_3, tile_##m##_4
#define NAMES_6(m) NAMES_4(m), tile_##m##_5, tile_##m##_6
#if VF_REGS == 32
#define TILES_8(m) TILES_6(m) TILE(m, 7) TILE(m, 8)
#define TILES_12(m) TILES_8(m) TILE(m, 9) TILE(m, 10) TILE(m, 11) TILE(m, 12)
#define NAMES_8(m) NAMES_6(m), tile_##m##_7, tile_##m##_8
#define NAMES_12(m) NAMES_8(m), tile_##m##_9, tile_##m##_10, tile_##m##_11, tile_##m##_12
#define TILES TILES_12(1) TILES_12(2) TILES_8(3) TILES_6(4) TILES_4(5) TILES_4(6)
#define NAMES \
    {NAMES_12(1)}, {NAMES_12(2)}, {NAMES_8(3)}, {NAMES_6(4)}, {NAMES_4(5)}, { NAMES_4(6) }
#else
#define TILES TILES_6(1) TILES_6(2) TILES_4(3)
#define NAMES \
    {NAMES_6(1)}, {NAMES_6(2)}, { NAMES_4(3) }
#endif
TILES
static const tile_fn tiles[OUTS][MOST] = {NAMES};

/* Every sum of one group, a vector each: [panel of outputs][product][output of the panel]. */
static void run_group(const job *q, const int64_t *offsets, int64_t vectors, const float *image, const float *diff,
                      float *sums) {
    const gemm_view *v = &q->v;
    const int64_t mp = gemm_split(v->co, OUTS);
    for (int64_t i = 0; i < mp; i++) {
        const int64_t m0 = gemm_first(v->co, mp, i), m = gemm_first(v->co, mp, i + 1) - m0;
        const int64_t kp = gemm_split(v->k, WEFT__MIN(SUMS / m, MOST));
        for (int64_t j = 0; j < kp; j++) {
            const int64_t k0 = gemm_first(v->k, kp, j), k = gemm_first(v->k, kp, j + 1) - k0;
            tiles[m - 1][k - 1](diff + m0 * q->d->ld, q->d->ld, image, offsets + k0, vectors,
                                sums + (m0 * v->k + k0 * m) * VF_LANES);
        }
    }
}

/* The lanes of the sums of one group added up: results[o][k]. */
static void add_lanes(const gemm_view *v, const float *sums, float *results) {
    const int64_t mp = gemm_split(v->co, OUTS);
    for (int64_t i = 0; i < mp; i++) {
        const int64_t m0 = gemm_first(v->co, mp, i), m = gemm_first(v->co, mp, i + 1) - m0;
        for (int64_t k = 0; k < v->k; k++)
            for (int64_t j = 0; j < m; j++, sums += VF_LANES) results[(m0 + j) * v->k + k] = vf_sum(vf_load(sums));
    }
}

/* ---------------------------------------------------------------- one item */
static void find_offsets(const job *q, int64_t z, int64_t *to) {
    const gemm_view *v = &q->v;
    const grouped_slab *d = &q->d->slab;
    const bool last = q->weights_last; /* products are in the order of diff_weights */
    for (int64_t i = 0; i < v->k; i++) {
        const int64_t c = last ? i % v->ci : i / v->taps, tap = last ? i / v->ci : i % v->taps, across = v->x[2].taps;
        const int64_t r = tap / across / v->x[1].taps, s = tap / across % v->x[1].taps;
        *to++ = c * d->channel + grouped_offset(d, v, z, r, s, tap % across);
    }
}

static void lay_diff(const job *q, const grouped_image *diff, const grouped_block *b, float *to) {
    const grouped_place at = {.n = b->n,
                              .channel = b->first * q->v.co,
                              .count = b->groups * q->v.co,
                              .z = b->z,
                              .y = b->y0,
                              .height = b->y1 - b->y0,
                              .pitch = q->d->slab.pitch,
                              .down = 1,
                              .move = 1};
    grouped_lay(diff, &at, to, q->d->ld);
}

static void add_bias(const job *q, int64_t outs, int64_t vectors, const float *diff, float *bias) {
    for (int64_t o = 0; o < outs; o++, diff += q->d->ld, bias += VF_LANES) {
        vf sum = vf_load(bias);
        for (int64_t j = 0; j < vectors; j++) sum = vf_add(sum, vf_load(diff + j * VF_LANES));
        vf_store(bias, sum);
    }
}

/* results: of each output of the bundle its weights, then the bias of each output. */
static void run_item(const job *q, int64_t item, char *scratch, float *results) {
    const params *d = q->d;
    const gemm_view *v = &q->v;
    int64_t *offsets = (int64_t *)(void *)scratch;
    float *slab = (float *)(void *)(scratch + d->offsets), *diff = slab + d->slab.size;
    float *sums = (float *)(void *)((char *)diff + d->diff), *bias = sums + d->slab.bundle * v->co * v->k * VF_LANES;
    const int64_t bundle = item / d->splits, first = gemm_first(d->blocks, d->splits, item % d->splits);
    const int64_t last = gemm_first(d->blocks, d->splits, item % d->splits + 1);
    grouped_zero(sums, d->slab.bundle * v->co * (v->k + 1) * VF_LANES);
    grouped_block b = grouped_block_of(&d->slab, v, bundle, first);
    const int64_t outs = b.groups * v->co;
    for (int64_t i = first; i < last; i++) {
        b = grouped_block_of(&d->slab, v, bundle, i);
        const int64_t vectors = cpu_ceil((b.y1 - b.y0 - 1) * d->slab.pitch + v->x[2].count, VF_LANES);
        grouped_move(&d->slab, v, &q->src, &b, i > first, slab);
        if (q->of_bias.at) {
            lay_diff(q, &q->of_bias, &b, diff);
            add_bias(q, outs, vectors, diff, bias);
        }
        lay_diff(q, &q->diff, &b, diff);
        find_offsets(q, b.z, offsets);
        for (int64_t g = 0; g < b.groups; g++)
            run_group(q, offsets, vectors, slab + g * v->ci * d->slab.channel, diff + g * v->co * d->ld,
                      sums + g * v->co * v->k * VF_LANES);
        if (!q->of_bias.at) add_bias(q, outs, vectors, diff, bias);
    }
    for (int64_t g = 0; g < b.groups; g++) add_lanes(v, sums + g * v->co * v->k * VF_LANES, results + g * v->co * v->k);
    for (int64_t o = 0; o < outs; o++) results[outs * v->k + o] = vf_sum(vf_load(bias + o * VF_LANES));
}

/* ---------------------------------------------------------------- driver */
static void task(void *arg, int64_t slot) {
    job *q = arg;
    const int mine = gemm_take(&q->scratch);
    for (int64_t i = cpu_first(q->d->items, q->slots, slot); i < cpu_first(q->d->items, q->slots, slot + 1); i++)
        run_item(q, i, q->scratch.base + (size_t)mine * q->scratch.bytes, q->partial + i * q->d->width);
    gemm_give(&q->scratch, mine);
}

/* Parts of the positions, added to the first in their order. */
static void add_parts(const job *q, int64_t bundle) {
    const params *d = q->d;
    const gemm_view *v = &q->v;
    const weft_problem *p = q->e->p;
    const int64_t g0 = gemm_first(v->groups, d->slab.bundles, bundle), o0 = g0 * v->co;
    const int64_t outs = gemm_first(v->groups, d->slab.bundles, bundle + 1) * v->co - o0;
    float *to = q->partial + bundle * d->splits * d->width;
    for (int64_t i = 1; i < d->splits; i++)
        for (int64_t j = 0; j < outs * (v->k + 1); j++) to[j] += to[i * d->width + j];
    const gemm_out weights = gemm_out_of(q->e, WEFT_ROLE_DIFF_WEIGHTS, NULL);
    gemm_put_run(&weights, o0 * v->k, 1, to, outs * v->k, 0, false);
    if (!weft__tensor(p, WEFT_ROLE_DIFF_BIAS)) return;
    const gemm_out bias = gemm_out_of(q->e, WEFT_ROLE_DIFF_BIAS, NULL);
    gemm_put_run(&bias, o0, 1, to + outs * v->k, outs, 0, false);
}

weft_status WEFT__ISA_NAME(weft__conv_grouped_weights)(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    job q = {.e = e, .d = d, .v = gemm_view_of(p, true, 0), .slots = WEFT__MIN(d->items, GEMM_SLOTS)};
    q.src = grouped_image_of(e, WEFT_ROLE_SRC, p->c, p->in, d->slab.last);
    q.diff = grouped_image_of(e, WEFT_ROLE_DIFF_DST, p->o, p->out, d->slab.last);
    q.of_bias = q.diff, q.src.factor = factors->in, q.diff.factor = factors->diff, q.of_bias.factor = factors->bias;
    if (!factors->diff.at || !weft__tensor(p, WEFT_ROLE_DIFF_BIAS)) q.of_bias.at = NULL;
    q.weights_last = gemm_weights_last(p);
    q.partial = e->workspace;
    q.scratch.base = (char *)e->workspace + d->partial, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    for (int64_t i = 0; i < d->slab.bundles; i++) add_parts(&q, i);
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__conv_grouped_weights)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

/* Many channels make long rows of the slab: it is larger then, so that its halo is not most of it. */
static const char *cut(grouped_slab *slab, const gemm_view *v, bool last) {
    const char *reason = grouped_cut(slab, v, last, SLAB_BYTES, 0);
    if (!reason && slab->rows > 2 * slab->reach[1]) return NULL;
    return grouped_cut(slab, v, last, WIDE_BYTES, 0);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    params *d = WEFT__PARAMS(params, out);
    const gemm_view v = gemm_view_of(p, true, 0);
    bool last;
    const weft_problem rest = gemm_drop_last(p);
    const char *reason = grouped_refusal(&rest, true, CHANNELS, &last);
    if (!reason && gemm_weights_last(p) && !last) reason = "diff_weights is channels-last beside channels-first data";
    if (!reason) reason = cut(&d->slab, &v, last);
    if (reason) return reason;
    d->blocks = v.n * d->slab.blocks * v.x[0].count;
    d->splits = WEFT__MIN(cpu_ceil(WANTED, d->slab.bundles), d->blocks);
    d->items = d->slab.bundles * d->splits;
    const int64_t outs = d->slab.bundle * v.co;
    d->ld = d->slab.rows * d->slab.pitch + VF_LANES;
    d->width = cpu_round_up(outs * (v.k + 1), 16);
    d->partial = (size_t)(d->items * d->width) * sizeof(float);
    d->offsets = (size_t)cpu_round_up(v.k * 8, 64);
    d->diff = (size_t)cpu_round_up(outs * d->ld, 16) * sizeof(float);
    d->scratch = d->offsets + d->diff + (size_t)(d->slab.size + outs * (v.k + 1) * VF_LANES) * sizeof(float);
    out->workspace = d->partial + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    /* for each vector: its multiply-adds, loads that split lines, and the layout, 4 a vector, 10 transposed */
    const double halo = (double)(v.x[1].move * v.x[2].move) * (double)(d->slab.rows + d->slab.reach[1]) /
                        (double)d->slab.rows,
                 way = d->slab.last ? 10 : 4;
    const double loads = (double)v.k * (1 + 0.8 * (double)gemm_split(v.co, OUTS));
    const double ways = way * (halo * (double)v.ci + (double)v.co);
    const double sums = (double)(v.k * v.co) + cpu_move(hw) * (loads + ways);
    const double vectors = (double)(v.n * v.groups * v.x[0].count) * (double)(v.x[1].count * d->slab.pitch);
    /* for each sum: its way through scratch with each block, which is long beyond the second-level cache, and its lanes
     * added up at the end of an item; as multiply-adds, measured */
    const double through = (double)(outs * v.k * VF_LANES) * sizeof(float) > 512 << 10 ? 40 : 4;
    const double waits = (double)(v.groups * v.co * v.k) * (through * (double)d->blocks + 60 * (double)d->splits);
    const double rows = (double)p->n * (double)(p->c * p->in[0] * p->in[1] + p->o * p->out[0] * p->out[1]);
    out->ns = cpu_cost(hw, weft__bytes(p), 2 * (sums * vectors + VF_LANES * waits), GEMM_SHARE) +
              12 * rows / hw->threads; /* as in grouped.c */
    return NULL;
}

WEFT__KERNEL(conv_grouped_bwd_weights) = {
    .name = WEFT__NAME("float_conv_bwd_weights_grouped"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .not_strict = true,
    .plan = plan,
    .run = run,
};
