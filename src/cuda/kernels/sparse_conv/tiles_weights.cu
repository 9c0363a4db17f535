/* Gradient of sparse weights, channels-first, 2D and 3D, by tiles of the input; f32, f16, bf16.
 * Math:      as in src/ref/sparse_conv.h: diff_w of an entry is the sum of diff_dst times the input that it reads
 * Blocking:  entries sorted by chunks and inputs in shared memory as in tiles.cu. A block has a slice of the tiles; a
 *            lane keeps PIXELS elements of diff_dst of each of its warp's ROWS channels. A warp takes MANY entries of a
 *            channel at a time, a sum of each in every lane, and adds the lanes up so that each has the sum of one
 *            entry, which goes to the slice's partial sums. A last launch adds the slices up in their order, in f64
 * Traffic:   src once for each 32 output channels, from L2; diff_dst once; partial sums for each tile, from L2
 * Roofline:  shared memory: a load for each product of a warp, and two exchanges of lanes for each entry. Measured on
 *            an H200, f32, 90% zeros: 8x256@56 505 us, 8x512@14 191 us
 * Assumes:   as tiles.cu. Not strict
 * Try:       weft bench sparse_conv2d:bwd_weights:f32:nchw:n8c256h56w56:o256k3p1nnz58982@cuda */
#include "sparse_conv/tiles.h"

enum { MANY = 8, FINISHERS = 4 }; /* FINISHERS: blocks that add up the slices of ROWS channels */

typedef struct weights_args {
    tiles_args t;
    float *partial;             /* [slice][spot] */
    int32_t tiles, per, slices; /* tiles in all, of a slice */
} weights_args;

#ifndef __CUDACC_RTC__
enum { MOST_PARTIAL = 32 << 20 }; /* bytes of partial sums: they stay in L2 */

typedef struct split {
    tile t;
    int32_t tiles, per, slices;
} split;

static bool is_biased(const weft_problem *p) { return weft__has_step(p, WEFT_STEP_BIAS); }

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    split *s = WEFT__PARAMS(split, d);
    tile *t = &s->t;
    const char *refusal = tiles_refusal(p);
    if (refusal) return refusal;
    const shape *shape = &shapes[WEIGHTS_FIRST + variant];
    if ((refusal = tile_of(p, hw, shape, t))) return refusal;
    const int64_t nnz = p->attr[WEFT_SPARSE_NNZ], rows = row_blocks(p, t);
    const int64_t tiles = cuda_ceil(t->parts, 32 / t->tx) * t->across;
    const int64_t fit = MOST_PARTIAL / (WEFT__MAX(nnz, 1) * (int64_t)sizeof(float));
    s->tiles = (int32_t)tiles;
    s->per = (int32_t)cuda_ceil(tiles, WEFT__MAX(WEFT__MIN(fit, tiles), 1));
    s->slices = (int32_t)cuda_ceil(tiles, s->per);
    d->workspace = lists_bytes(p, t) + (size_t)(s->slices * nnz) * sizeof(float);
    d->ns = cuda_ns(hw, 0, 1, 5 + is_biased(p)) +
            s->per * blocks_ns(p, hw, t, shape->pixels, rows * s->slices, warp_entries(p, t), shape->weights);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    tiles_defines(p, &((const split *)params)->t, false, text);
}
static void bias_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    sparse_defines(p, text);
    weft__put(text, " -DUNIT=1 -DPIXELS=1");
}

static weft_status run(const weft__exec *e) {
    const split *s = e->params;
    const tile *t = &s->t;
    weights_args w = {.t = tiles_args_of(e, t),
                      .partial = (float *)((char *)e->workspace + lists_bytes(e->p, t)),
                      .tiles = s->tiles,
                      .per = s->per,
                      .slices = s->slices};
    const sparse_args *a = &w.t.a;
    const uint32_t sets = (uint32_t)sets_of(e->p, t), rows = (uint32_t)row_blocks(e->p, t);
    const weft__launch sort = lists_launch(e->p, t),
                       main = {.grid = {(uint32_t)s->slices, rows, 1}, .block = {THREADS, 1, 1}, .smem = t->smem},
                       finish = {.grid = {sets, FINISHERS, 1}, .block = {THREADS, 1, 1}},
                       bias = {.grid = {(uint32_t)a->channels, 1, 1}, .block = {THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &sort, &w.t));
    WEFT__TRY(weft__cuda_launch(e, 1, &main, &w));
    WEFT__TRY(weft__cuda_launch(e, 2, &finish, &w));
    return is_biased(e->p) ? weft__cuda_launch(e, 3, &bias, a) : WEFT_OK;
}

#define SOURCE "sparse_conv/tiles_weights.cu"
const weft__kernel weft__cuda_sparse_conv_bwd_weights_tiles = {
    .name = "sparse_conv_bwd_weights_tiles__cuda",
    .version = 2,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__STEP_SET(BIAS),
    .exact = true,
    .not_strict = true,
    .variants = variants + WEIGHTS_FIRST,
    .plan = plan,
    .run = run,
    WEFT__PARTS({SOURCE, "sparse_chunks", defines, false}, {SOURCE, "sparse_tiles_weights", defines, false},
                {SOURCE, "sparse_finish", defines, false}, {"sparse_conv/bwd.cu", "sparse_bias", bias_defines, false}),
};

#else
template <int D, int N> static __device__ __forceinline__ void halve(float (&v)[N]) {
#pragma unroll
    for (int i = 0; i < D; i++) {
        const bool upper = threadIdx.x & D;
        const float keep = upper ? v[i + D] : v[i], give = upper ? v[i] : v[i + D];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, D);
    }
}
/* The sums of N numbers of every lane over the lanes, N is 4 or 8, one in each: v[lane % N]. */
template <int N> static __device__ __forceinline__ float fold(float (&v)[N]) {
    if (N == 8) halve<N / 2>(v);
    halve<2>(v), halve<1>(v);
    if (N == 4) v[0] += __shfl_xor_sync(0xffffffffu, v[0], 4);
    v[0] += __shfl_xor_sync(0xffffffffu, v[0], 8);
    return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 16);
}

typedef float gradients[ROWS][PIXELS]; /* of a lane's outputs */

static __device__ __forceinline__ void load_gradients(const tiles_args &t, int64_t set, int parts, int x,
                                                      gradients &dy) {
    const sparse_args &a = t.a;
    const int lane = (int)threadIdx.x % 32, column = x + lane % TX;
    const part p = part_at(t, parts + lane / TX);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t o = set * ROWS + r;
        const bool there = p.n >= 0 && o < a.channels && column < a.out[2];
        const int64_t at = (((p.n * a.channels + o) * a.out[0] + p.z) * a.out[1] + p.y) * a.out[2] + column;
#pragma unroll
        for (int k = 0; k < PIXELS; k++)
            dy[r][k] = there && p.y + k < a.out[1] ? widen(((const T *)a.diff_dst)[at + (int64_t)k * a.out[2]]) : 0;
    }
}

/* The sums of the entries of lanes `first` and on, one in each lane as fold() has them. */
template <int N>
static __device__ __forceinline__ float sums_of(int at, int first, const float *tile, const float (&dy)[PIXELS]) {
    float v[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float *x = tile + __shfl_sync(0xffffffffu, at, first + i);
        v[i] = x[0] * dy[0];
#pragma unroll
        for (int k = 1; k < PIXELS; k++) v[i] = fmaf(x[k * S1 * SIZE2], dy[k], v[i]);
    }
    return fold(v);
}

/* The sum of this lane's entry, of `count` up to 32; at: where each lane's entry is in a tile. */
static __device__ __forceinline__ float sum_of(int at, int count, const float *tile, const float (&dy)[PIXELS]) {
    float own = 0;
#pragma unroll 1
    for (int first = 0; first < count; first += MANY) {
        const float sum =
            count - first > MANY / 2 ? sums_of<MANY>(at, first, tile, dy) : sums_of<MANY / 2>(at, first, tile, dy);
        if ((int)threadIdx.x % 32 / MANY * MANY == first) own = sum;
    }
    return own;
}

/* Adds the sums of the entries of a warp's channels in a chunk to the partial ones; first: there are none yet. */
static __device__ __forceinline__ void add_sums(const tiles_args &t, int own, const float *tile, spot *stage,
                                                const gradients &dy, float *partial, bool first) {
    const int lane = (int)threadIdx.x % 32;
    int bound[ROWS + 1];
#pragma unroll
    for (int r = 0; r <= ROWS; r++) bound[r] = __shfl_sync(0xffffffffu, own, r);
    for (int begin = bound[0]; begin < bound[ROWS]; begin += STAGE) {
        load_stage(t, begin, bound[ROWS], stage);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int end = min(bound[r + 1] - begin, (int)STAGE);
            for (int i = max(bound[r] - begin, 0); i < end; i += 32) {
                float *const to = partial + begin + i + lane;
                const bool there = i + lane < end;
                const float before = there && !first ? *to : 0;
                const float sum = sum_of(there ? stage[i + lane].at : 0, min(end - i, 32), tile, dy[r]);
                if (there) *to = before + sum;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    sparse_tiles_weights(const __grid_constant__ weights_args w) {
    const tiles_args &t = w.t;
    const sparse_args &a = t.a;
    const int64_t set = (int64_t)blockIdx.y * WARPS + (int)threadIdx.x / 32;
    const bool works = set * ROWS < a.channels;
    const int begin = (int)blockIdx.x * w.per, end = min(begin + w.per, w.tiles);
    float *const partial = w.partial + blockIdx.x * a.nnz;
    spot *const stage = stage_of();
    for (int i = begin; i < end; i++) {
        const int parts = i / t.across * PARTS, x = i % t.across * TX;
        loader l;
        gradients dy;
        __syncthreads(); /* with the tile before all are done */
        l.open(t, parts, x, (int64_t)blockIdx.y * BLOCK_ROWS / a.outs);
        load_gradients(t, set, parts, x, dy);
        int ahead = bounds_ahead(t, set, 0);
        l.each_chunk(t, [&](int chunk, const float *tile) {
            const int own = ahead;
            ahead = bounds_ahead(t, set, chunk + 1);
            if (works) add_sums(t, own, tile, stage, dy, partial, i == begin);
        });
    }
}

/* The slices in their order. A block has the entries of ROWS output channels. */
extern "C" __global__ void __launch_bounds__(THREADS) sparse_finish(const __grid_constant__ weights_args w) {
    const tiles_args &t = w.t;
    const int32_t *bounds = t.bounds + (int64_t)blockIdx.x * t.chunks * (ROWS + 1);
    const int end = bounds[t.chunks * (ROWS + 1) - 1];
    for (int i = bounds[0] + (int)(blockIdx.y * THREADS + threadIdx.x); i < end; i += FINISHERS * THREADS) {
        double sum = 0;
#pragma unroll 16
        for (int s = 0; s < w.slices; s++) sum += w.partial[s * t.a.nnz + i];
        ((T *)t.a.diff_weights)[__float_as_int(t.spots[i].value)] = narrow<T>((float)sum);
    }
}
#endif
