/* Convolution with few channels a group, and its data gradient, channels-first, stride 1: a direct sum in register
 * tiles.
 * Math:      dst[o][q] = end(sum_k weights[o][k] * image[k][q]),  k = (tap, channel), as in gemm_nchw.c
 * Blocking:  an item is some rows of one plane of one group. Its input, padding included, is laid out once as f32
 *            with rows of one pitch: then a tap is an offset, the same for every position, and vectors run over
 *            whole blocks of rows. What they compute between the rows, span / pitch of it, is left out on the way to
 *            dst
 * Traffic:   the input once for each tap along depth, from the near caches; each output once
 * Roofline:  multiply-add peak; with 2 outputs a group the loads, which split cache lines, are as many as the sums
 * Assumes:   src and dst dense channels-first, weights dense
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g32 */
#include "cpu/conv/gemm_view.h"

extern WEFT__KERNEL(conv_gemm_nchw);

enum { SLAB_BYTES = 288 << 10, MOST_OUTS = 32 };

typedef struct params {
    int64_t rows, blocks, items; /* rows of an item; blocks of rows in a plane */
    int64_t lo[3], span[3];      /* where the window begins, and how far it reaches */
    int64_t pitch, height;       /* of the slab: floats of a row, rows of a plane */
    size_t bias, slab, sums, scratch;
} params;

typedef struct job {
    const weft__exec *e;
    const params *d;
    gemm_view v;
    const void *in;
    int in_dtype;
    const float *weights;
    int64_t *offsets;
    gemm_out out;
    gemm_scratch scratch;
    int64_t slots;
} job;

/* The input of rows y0 .. y0 + rows of plane z, zeros where there is none: [channel][tap along depth][row][pitch]. */
VF_INLINE void lay_slab(const job *q, int64_t n, int64_t group, int64_t z, int64_t y0, float *to, const int dtype) {
    const gemm_view *v = &q->v;
    const params *d = q->d;
    const gemm_axis *x = &v->x[2];
    const int64_t lo = WEFT__MAX(-d->lo[2], 0), hi = WEFT__MIN(d->pitch, x->in - d->lo[2]);
    for (int64_t c = 0; c < v->ci; c++)
        for (int64_t r = 0; r < v->x[0].taps; r++) {
            const int64_t iz = z + v->x[0].at + r * v->x[0].hop;
            const int64_t plane = ((n * v->groups + group) * v->ci + c) * v->in_plane + iz * v->x[1].in * x->in;
            for (int64_t i = 0; i < d->height; i++, to += d->pitch) {
                const int64_t iy = y0 + d->lo[1] + i;
                if (iz < 0 || iz >= v->x[0].in || iy < 0 || iy >= v->x[1].in || lo >= hi) {
                    for (int64_t j = 0; j < d->pitch; j += VF_LANES) vf_store(to + j, vf_zero());
                    continue;
                }
                const int64_t from = plane + iy * x->in + d->lo[2];
                for (int64_t j = 0; j < lo; j += VF_LANES) vf_store(to + j, vf_zero());
                int64_t j = lo;
                for (; j + VF_LANES <= hi; j += VF_LANES) vf_store(to + j, vf_load_as(dtype, q->in, from + j));
                if (j < hi) vf_store(to + j, vf_load_count_as(dtype, q->in, from + j, hi - j));
                for (j = hi; j < d->pitch; j += VF_LANES) vf_store(to + j, vf_zero());
            }
        }
}

static void run_item(const job *q, int64_t n, int64_t group, int64_t z, int64_t y0, int64_t rows, char *scratch) {
    const gemm_view *v = &q->v;
    const params *d = q->d;
    float *slab = (float *)(void *)scratch, *sums = (float *)(void *)(scratch + d->slab);
    if (q->in_dtype == WEFT_DTYPE_F32)
        lay_slab(q, n, group, z, y0, slab, WEFT_DTYPE_F32);
    else if (q->in_dtype == WEFT_DTYPE_BF16)
        lay_slab(q, n, group, z, y0, slab, WEFT_DTYPE_BF16);
    else
        lay_slab(q, n, group, z, y0, slab, WEFT_DTYPE_F16);
    const int64_t vectors = cpu_ceil((rows - 1) * d->pitch + v->x[2].count, VF_LANES),
                  ld = d->rows * d->pitch + GEMM_NR;
    const int64_t np = gemm_split(vectors, GEMM_NV), mp = gemm_split(v->co, GEMM_MR);
    for (int64_t j = 0; j < np; j++) {
        const int64_t a = gemm_first(vectors, np, j), b = gemm_first(vectors, np, j + 1);
        for (int64_t i = 0; i < mp; i++) {
            const int64_t m = gemm_first(v->co, mp, i), count = gemm_first(v->co, mp, i + 1) - m;
            gemm_tile t = {.k = v->k,
                           .a = q->weights + (group * v->co + m) * v->k,
                           .lda = count,
                           .b = slab + a * VF_LANES,
                           .offsets = q->offsets,
                           .c = sums + m * ld + a * VF_LANES,
                           .ldc = ld,
                           .tail = VF_LANES};
            gemm_run(&t, GEMM_OFFSETS, count, b - a);
        }
    }
    for (int64_t o = 0; o < v->co; o++) {
        const int64_t channel = group * v->co + o;
        const int64_t to = ((n * v->groups * v->co + channel) * v->x[0].out + z) * v->x[1].out + y0;
        for (int64_t i = 0; i < rows; i++)
            gemm_put_run(&q->out, (to + i) * v->x[2].out, 1, sums + o * ld + i * d->pitch, v->x[2].count, channel,
                         false);
    }
}

/* ---------------------------------------------------------------- driver */
static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const gemm_view *v = &q->v;
    const int mine = gemm_take(&q->scratch);
    for (int64_t i = cpu_first(d->items, q->slots, slot); i < cpu_first(d->items, q->slots, slot + 1); i++) {
        const int64_t block = i % d->blocks, z = i / d->blocks % v->x[0].count, plane = i / d->blocks / v->x[0].count;
        const int64_t y0 = gemm_first(v->x[1].count, d->blocks, block);
        const int64_t y1 = gemm_first(v->x[1].count, d->blocks, block + 1);
        run_item(q, plane / v->groups, plane % v->groups, z, y0, y1 - y0,
                 q->scratch.base + (size_t)mine * q->scratch.bytes);
    }
    gemm_give(&q->scratch, mine);
}

static void find_offsets(const job *q) {
    const gemm_view *v = &q->v;
    const params *d = q->d;
    for (int64_t k = 0; k < v->k; k++) {
        const int64_t c = k % v->ci, tap = k / v->ci, t = tap % v->x[2].taps, s = tap / v->x[2].taps % v->x[1].taps;
        const int64_t r = tap / v->x[2].taps / v->x[1].taps;
        const int64_t y = v->x[1].at + s * v->x[1].hop - d->lo[1], x = v->x[2].at + t * v->x[2].hop - d->lo[2];
        q->offsets[k] = ((c * v->x[0].taps + r) * d->height + y) * d->pitch + x;
    }
}

static weft_status run(const weft__exec *e) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    job q = {
        .e = e, .d = d, .v = gemm_view_of(p, fwd, 0), .weights = e->packed, .slots = WEFT__MIN(d->items, GEMM_SLOTS)};
    const int in = fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, out = fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC;
    char *room = e->workspace;
    q.in = e->ptr[in], q.in_dtype = weft__tensor(p, in)->dtype;
    q.out = gemm_out_of(e, out, (float *)(void *)room);
    room += d->bias;
    q.offsets = (int64_t *)(void *)room;
    find_offsets(&q);
    room += cpu_round_up(q.v.k * 8, 64);
    q.scratch.base = room, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}

/* The packed weights are those of the matrix product. */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    return WEFT__RECORD(conv_gemm_nchw).pack(e, weights, packed);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const char *reason = gemm_refusal(p, WEFT_LAYOUT_FIRST);
    if (reason) return reason;
    for (int a = 0; a < 3; a++)
        if (p->stride[a] != 1) return "the stride is not 1";
    if (gemm_is_pointwise(p)) return "a 1x1 window";
    params *d = WEFT__PARAMS(params, out);
    const gemm_view v = gemm_view_of(p, fwd, 0);
    if (v.pixels == 0) return "no positions";
    if (v.co > MOST_OUTS) return "more than 32 outputs a group";
    for (int a = 0; a < 3; a++) {
        const int64_t end = v.x[a].at + (v.x[a].taps - 1) * v.x[a].hop;
        d->lo[a] = WEFT__MIN(v.x[a].at, end), d->span[a] = WEFT__MAX(v.x[a].at, end) - d->lo[a];
    }
    d->pitch = v.x[2].count + d->span[2];
    const int64_t planes = v.ci * v.x[0].taps, most = SLAB_BYTES / (planes * d->pitch * 4) - d->span[1];
    if (most < 1) return "one row of the group's input is larger than a cache";
    d->blocks = cpu_ceil(v.x[1].count, WEFT__MIN(most, v.x[1].count));
    d->rows = cpu_ceil(v.x[1].count, d->blocks);
    d->height = d->rows + d->span[1];
    d->items = v.n * v.groups * v.x[0].count * d->blocks;
    d->bias = gemm_bias_bytes(p, v.co * v.groups);
    d->slab = (size_t)cpu_round_up((planes * d->height * d->pitch + GEMM_NR + VF_LANES) * 4, 64);
    d->scratch = d->slab + (size_t)cpu_round_up(v.co * (d->rows * d->pitch + GEMM_NR) * 4, 64);
    out->workspace = d->bias + (size_t)cpu_round_up(v.k * 8, 64) + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    out->packed = (size_t)(v.ci * v.co * v.groups * v.taps) * sizeof(float);
    /* for each vector: its multiply-adds, loads that split lines, and the slab and the way out, 3 a vector */
    const double sums = (double)v.k * ((double)v.co + 1 + 0.3 * (double)gemm_split(v.co, GEMM_MR)) +
                        3 * (double)planes + 4 * (double)v.co;
    const double vectors = (double)d->items * (double)(d->rows * d->pitch);
    out->ns = cpu_cost(hw, weft__bytes(p), 2 * sums * vectors, GEMM_SHARE);
    return NULL;
}

WEFT__KERNEL(conv_grouped_nchw) = {
    .name = WEFT__NAME("float_conv_nchw_grouped"),
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
