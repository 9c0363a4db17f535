/* Convolution with sparse weights, channels-first, 2D and 3D, by tiles of the input: forward, and the data gradient of
 * stride 1, which is the forward pass of the transposed weights; f32, f16, bf16.
 * Math:      as in src/ref/sparse_conv.h; products are added in f32: by chunks of CHUNK input channels, in each in the
 *            order of the entries
 * Blocking:  data gradient: two launches transpose the matrix of the weights (sort.h). The next one sorts the entries
 *            of ROWS output channels by chunks, each as an offset in a tile and a value. A block has ROWS channels of
 *            each of its warps, and 32 PIXELS outputs: a lane has PIXELS outputs below each other, and TX lanes lie
 *            side by side in a part, which is some rows of one plane. The inputs of a chunk's channels, zeros around
 *            them, come into shared memory while the chunk before is at work. A warp takes its entries through shared
 *            memory, STAGE at a time, and MANY of them at once
 * Traffic:   src once for each 32 output channels, from L2; entries once for each block; dst once
 * Roofline:  shared memory: PIXELS + 1 loads for PIXELS products of a warp. Measured on an H200, f32, 90% zeros,
 *            8x256@56: 350 us forward and 357 back (PyTorch's dense convolution 975 us forward)
 * Assumes:   src and dst dense channels-first and of the type of the weights, less than 2^30 elements of an image; taps
 *            side by side. Not strict: products with zeros around an image are made
 * Try:       weft bench sparse_conv2d:fwd:f32:nchw:n8c256h56w56:o256k3p1nnz58982@cuda */
#include "sparse_conv/tiles.h"

#include "sparse_conv/sort.h"

typedef struct turn_args { /* the transposed matrix */
    sort_args s;
    int32_t *rows, *cols;
    void *values;
    int32_t kernel[3];
} turn_args;

#ifndef __CUDACC_RTC__
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = tiles_refusal(p);
    if (refusal) return refusal;
    if ((refusal = tile_of(p, hw, &shapes[variant], t))) return refusal;
    const int64_t nnz = p->attr[WEFT_SPARSE_NNZ];
    d->workspace = lists_bytes(p, t);
    if (p->pass != WEFT_PASS_FWD) d->workspace += (size_t)(p->c + 1 + 2 * nnz) * sizeof(int32_t) + sort_bytes(p);
    const int64_t tiles = cuda_ceil(t->parts, 32 / t->tx) * t->across;
    d->ns = cuda_ns(hw, 0, 1, p->pass == WEFT_PASS_FWD ? 3 : 5) +
            blocks_ns(p, hw, t, shapes[variant].pixels, tiles * row_blocks(p, t), warp_entries(p, t),
                      shapes[variant].products);
    if (p->pass != WEFT_PASS_FWD) d->ns += sort_ns(p, hw);
    return NULL;
}

static void turn_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    tiles_defines(p, params, false, text);
}
static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    tiles_defines(p, params, p->pass != WEFT_PASS_FWD, text);
}

/* The transposed matrix, and the arguments of the forward pass with it. */
static weft_status turn(const weft__exec *e, void *at, sparse_args *a) {
    const weft_problem *p = e->p;
    turn_args t = {.rows = at};
    t.cols = t.rows + p->c + 1;
    t.values = t.cols + a->nnz;
    WEFT__TRY(sort_count(e, a, t.cols + 2 * a->nnz, &t.s));
    for (int i = 0; i < 3; i++) {
        t.kernel[i] = (int32_t)p->kernel[i];
        a->in[i] = (int32_t)p->out[i], a->out[i] = (int32_t)p->in[i];
        a->pad[i] = (int32_t)((p->kernel[i] - 1) * p->dilation[i] - p->pad_lo[i]);
    }
    a->src = a->diff_dst, a->weights = t.values, a->rows = t.rows, a->cols = t.cols;
    a->channels = p->c, a->inside = t.s.a.outs, a->outs = t.s.a.inside;
    a->group = (int64_t)a->inside * p->out[0] * p->out[1] * p->out[2];
    a->image = a->group * p->groups;
    a->columns = (int64_t)a->inside * p->kernel[0] * p->kernel[1] * p->kernel[2];
    const weft__launch launch = sort_launch(p);
    return weft__cuda_launch(e, 1, &launch, &t);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    const bool fwd = e->p->pass == WEFT_PASS_FWD;
    tiles_args a = tiles_args_of(e, t);
    if (!fwd) WEFT__TRY(turn(e, (char *)e->workspace + lists_bytes(e->p, t), &a.a));
    const weft__launch sort = lists_launch(e->p, t),
                       launch = {.grid = {(uint32_t)(cuda_ceil(t->parts, 32 / t->tx) * t->across),
                                          (uint32_t)row_blocks(e->p, t), 1},
                                 .block = {THREADS, 1, 1},
                                 .smem = t->smem};
    WEFT__TRY(weft__cuda_launch(e, fwd ? 0 : 2, &sort, &a));
    return weft__cuda_launch(e, fwd ? 1 : 3, &launch, &a);
}

#define SOURCE "sparse_conv/tiles.cu"
#define TILES \
    {SOURCE, "sparse_chunks", defines, false}, { SOURCE, "sparse_tiles", defines, false }
#define TILES_KERNEL(id, text, pass, set, ...)                            \
    const weft__kernel weft__cuda_##id = {.name = text,                   \
                                          .version = 3,                   \
                                          .op = WEFT_OP_SPARSE_CONV,      \
                                          .engine = WEFT_ENGINE_CUDA,     \
                                          .passes = WEFT__PASS_SET(pass), \
                                          .dtypes = CUDA_FLOATS,          \
                                          .steps = set,                   \
                                          .exact = true,                  \
                                          .not_strict = true,             \
                                          .variants = variants,           \
                                          .plan = plan,                   \
                                          .run = run,                     \
                                          WEFT__PARTS(__VA_ARGS__)}
TILES_KERNEL(sparse_conv_fwd_tiles, "sparse_conv_fwd_tiles__cuda", FWD, WEFT__EPILOGUE_STEPS, TILES);
TILES_KERNEL(sparse_conv_bwd_data_tiles, "sparse_conv_bwd_data_tiles__cuda", BWD_DATA, 0,
             {SOURCE, "sparse_count", turn_defines, false}, {SOURCE, "sparse_turn", turn_defines, false}, TILES);

#else
/* ---------------------------------------------------------------- the transposed matrix */
/* A row for each input channel; taps are counted from the other end. */
extern "C" __global__ void __launch_bounds__(THREADS) sparse_turn(const __grid_constant__ turn_args t) {
    const sparse_args &a = t.s.a;
    const int low = (int)blockIdx.y * a.outs, taps = t.kernel[0] * t.kernel[1] * t.kernel[2];
    const auto put = [&](int row, int j, int at) {
        t.cols[at] = (row - low) * taps + taps - 1 - (int)((uint32_t)((const COLS_T *)a.cols)[j] % (uint32_t)taps);
        ((T *)t.values)[at] = ((const T *)a.weights)[j];
    };
    int end =
        sort_entries(t.s, put, [&](int channel, int begin, int) { t.rows[blockIdx.y * a.inside + channel] = begin; });
    if (blockIdx.x > 0) return;
    const int group_end = (int)row_begin(a, low + a.outs);
    for (end = max(end, 0) + (int)threadIdx.x; end < group_end; end += THREADS) t.cols[end] = -1; /* without a column */
    if (threadIdx.x == 0 && blockIdx.y + 1 == gridDim.y) t.rows[a.inside * gridDim.y] = group_end;
}

/* ---------------------------------------------------------------- tiles */
enum { MANY = PIXELS > 4 ? 4 : 8 };

/* N entries at once, so that their loads are on the way together. */
template <int N>
static __device__ __forceinline__ void add(const spot *stage, const float *tile, float (&sum)[PIXELS]) {
    spot s[N];
    float v[N][PIXELS];
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = stage[i];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k < PIXELS; k++) v[i][k] = tile[s[i].at + k * S1 * SIZE2];
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int k = 0; k < PIXELS; k++) sum[k] = fmaf(v[i][k], s[i].value, sum[k]);
}

/* The entries of a warp's channels in a chunk. */
static __device__ __forceinline__ void add_entries(const tiles_args &t, int own, const float *tile, spot *stage,
                                                   float (&sum)[ROWS][PIXELS]) {
    int bound[ROWS + 1];
#pragma unroll
    for (int r = 0; r <= ROWS; r++) bound[r] = __shfl_sync(0xffffffffu, own, r);
    for (int begin = bound[0]; begin < bound[ROWS]; begin += STAGE) {
        load_stage(t, begin, bound[ROWS], stage);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int end = min(bound[r + 1] - begin, (int)STAGE);
            int i = max(bound[r] - begin, 0);
#pragma unroll 1
            for (; i + MANY <= end; i += MANY) add<MANY>(stage + i, tile, sum[r]);
            if (MANY > 4 && i + 4 <= end) add<4>(stage + i, tile, sum[r]), i += 4;
            if (i + 2 <= end) add<2>(stage + i, tile, sum[r]), i += 2;
            if (i < end) add<1>(stage + i, tile, sum[r]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sparse_tiles(const __grid_constant__ tiles_args t) {
    const sparse_args &a = t.a;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int parts = (int)blockIdx.x / t.across * PARTS, x = ((int)blockIdx.x % t.across) * TX;
    const int64_t set = (int64_t)blockIdx.y * WARPS + warp;
    const bool works = set * ROWS < a.channels;
    spot *const stage = stage_of();
    loader l;
    l.open(t, parts, x, (int64_t)blockIdx.y * BLOCK_ROWS / a.outs);
    float sum[ROWS][PIXELS] = {};
    int ahead = bounds_ahead(t, set, 0);
    l.each_chunk(t, [&](int chunk, const float *tile) {
        const int own = ahead;
        ahead = bounds_ahead(t, set, chunk + 1);
        if (works) add_entries(t, own, tile, stage, sum);
    });
    const part p = part_at(t, parts + lane / TX);
    const int column = x + lane % TX;
    if (!works || p.n < 0 || column >= a.out[2]) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int64_t o = set * ROWS + r;
        if (o >= a.channels) break;
        const float bias = weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[o]) : 0;
        T *dst = (T *)a.dst + (((p.n * a.channels + o) * a.out[0] + p.z) * a.out[1] + p.y) * a.out[2] + column;
#pragma unroll
        for (int k = 0; k < PIXELS; k++)
            if (p.y + k < a.out[1])
                dst[(int64_t)k * a.out[2]] = narrow<T>(weft__epilogue_apply(a.epilogue, bias, sum[r][k]));
    }
}
#endif
