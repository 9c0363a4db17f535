/* Convolution with sparse weights, channels-first, 2D and 3D, by tiles of the input: forward, and the data gradient of
 * stride 1, which is the forward pass of the transposed weights; f32, f16, bf16.
 * Math:      as in src/ref/sparse_conv.h; products are added in f32: by chunks of CHUNK input channels, in each in the
 *            order of the entries
 * Blocking:  data gradient: a first launch transposes the matrix of the weights. A launch sorts the entries of ROWS output channels by chunks, each as an offset in a tile and a
 *            value. A block has ROWS channels of each of its warps, and 32 PIXELS outputs: a lane has PIXELS outputs
 *            below each other, and TX lanes lie side by side in a part, which is some rows of one plane. The inputs of
 *            a chunk's channels, zeros around them, come into shared memory while the chunk before is at work. A warp
 *            takes its entries through shared memory, STAGE at a time
 * Traffic:   src once for each 32 output channels, from L2; entries once for each block; dst once
 * Roofline:  shared memory: PIXELS + 1 loads for PIXELS products of a warp
 * Assumes:   src and dst dense channels-first and of the type of the weights, less than 2^30 elements of an image; taps
 *            side by side. Not strict: products with zeros around an image are made
 * Try:       weft bench --kernel sparse_conv_fwd_tiles__cuda sparse_conv2d:fwd:f32:nchw:n8c256h56w56:o256k3p1nnz58982@cuda */
#if defined(__CUDACC_RTC__) && TURNED /* the matrix is the one that sparse_turn made */
#undef ROWS_T
#undef COLS_T
#define ROWS_T int32_t
#define COLS_T int32_t
#endif
#include "sparse_conv/sparse.h"

enum { ROWS = 4, WARPS = THREADS / 32, BLOCK_ROWS = ROWS * WARPS, STAGE = 128, MOST_CHUNKS = 256 };
enum { SORTERS = 32 * ROWS }; /* threads of a block that sorts */

typedef struct spot { /* an entry: the offset of its input from an output's first in a tile */
    int32_t at;
    float value;
} spot;

typedef struct tiles_args {
    sparse_args a;
    spot *spots;     /* by ROWS output channels, chunks, output channels */
    int32_t *bounds; /* [ROWS channels][chunk]: where the spots of each begin, and where the last ones end */
    int32_t chunks, across, parts, strips; /* of the channels; tiles of a row; parts in all, and of a plane */
} tiles_args;

typedef struct turn_args { /* the transposed matrix */
    sparse_args a;
    int32_t *rows, *cols;
    void *values;
    int32_t kernel[3];
} turn_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    int32_t tx, pixels, size[3], part, chunk; /* size: of a part's inputs; part: floats of it; chunk: channels */
    int32_t chunks, across, parts, strips;
    size_t smem;
} tile;

/* The forward pass that this is: channels and sizes of what it reads and writes. */
typedef struct pass {
    int64_t inside, outs;
    const int64_t *in, *out;
} pass;
static pass pass_of(const weft_problem *p) {
    if (p->pass == WEFT_PASS_FWD) return (pass){p->c / p->groups, p->o, p->in, p->out};
    return (pass){p->o / p->groups, p->c, p->out, p->in};
}

static int64_t channel_floats(const tile *t) { return (int64_t)(32 / t->tx) * t->part; }

/* Parts of a warp's lanes lie in different banks. */
static int32_t part_floats(const tile *t) {
    const int64_t inputs = (int64_t)t->size[0] * t->size[1] * t->size[2];
    return (int32_t)(t->tx == 32 ? inputs : cuda_ceil(WEFT__MAX(inputs - t->tx, 0), 32) * 32 + t->tx);
}

static const char *tile_of(const weft_problem *p, const weft__hw *hw, int64_t share, tile *t) {
    const pass s = pass_of(p);
    t->tx = (int32_t)WEFT__MAX(WEFT__MIN(cuda_power(s.out[2]), 32), 4);
    for (int a = 0; a < 3; a++) {
        const int64_t outs = a == 0 ? 1 : a == 1 ? t->pixels : t->tx, reach = (p->kernel[a] - 1) * p->dilation[a];
        if (reach > 64) return "a window over 65 wide";
        t->size[a] = (int32_t)((outs - 1) * p->stride[a] + reach + 1);
    }
    t->part = part_floats(t);
    const int64_t room = (int64_t)hw->gpu->smem / share - WARPS * STAGE * (int64_t)sizeof(spot) - 1024;
    const int64_t most = room / (2 * 4 * channel_floats(t));
    if (most < 4) return "tiles that do not fit into shared memory";
    t->chunks = (int32_t)cuda_ceil(s.inside, WEFT__MIN(most, 32));
    t->chunk = (int32_t)cuda_ceil(s.inside, t->chunks);
    if (t->chunks > MOST_CHUNKS) return "too many channels";
    t->across = (int32_t)cuda_ceil(s.out[2], t->tx);
    t->strips = (int32_t)cuda_ceil(s.out[1], t->pixels);
    const int64_t parts = p->n * s.out[0] * t->strips;
    if (parts > INT32_MAX / 2 || cuda_ceil(parts, 32 / t->tx) * t->across > INT32_MAX) return "2^30 parts or more";
    t->parts = (int32_t)parts;
    t->smem = (size_t)(2 * 4 * t->chunk * channel_floats(t)) + WARPS * STAGE * sizeof(spot);
    return NULL;
}

static const char *refusal_of(const weft_problem *p) {
    const char *refusal = sparse_refusal(p);
    const pass s = pass_of(p);
    if (refusal) return refusal;
    if (p->attr[WEFT_SPARSE_STRETCHED]) return "stretched columns";
    if (p->groups > 1 && s.outs / p->groups % BLOCK_ROWS) return "channels of a group that are not 32, 64, ...";
    if (s.out[1] == 1) return "one row";
    if (p->attr[WEFT_SPARSE_NNZ] >= 1 << 30) return "2^30 entries or more";
    if (p->pass == WEFT_PASS_FWD) return NULL;
    for (int a = 0; a < 3; a++)
        if (p->stride[a] != 1) return "stride is not 1";
    return NULL;
}

/* Outputs of a lane; small: less shared memory, more blocks. */
static const char *const variants[] = {"y4", "y8", "y4s", "y8s", NULL};

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = refusal_of(p);
    const pass s = pass_of(p);
    if (refusal) return refusal;
    t->pixels = variant % 2 ? 8 : 4;
    if ((refusal = tile_of(p, hw, variant < 2 ? 3 : 5, t))) return refusal;
    const int64_t nnz = p->attr[WEFT_SPARSE_NNZ], sets = cuda_ceil(s.outs, ROWS);
    d->workspace = (size_t)nnz * sizeof(spot) + (size_t)(sets * t->chunks) * (ROWS + 1) * sizeof(int32_t);
    if (p->pass != WEFT_PASS_FWD) d->workspace += (size_t)(s.outs + 1 + 2 * nnz) * sizeof(int32_t);
    const double tiles = (double)cuda_ceil(t->parts, 32 / t->tx) * t->across,
                 blocks = tiles * (double)cuda_ceil(s.outs, BLOCK_ROWS);
    const double idle = WEFT__MAX(hw->gpu->sms * 2.0 / blocks, 1), lanes = 0.5 * hw->gpu->gflops * 0.6;
    const double copies = (double)(s.inside * s.outs) / BLOCK_ROWS;
    d->ns = cuda_ns(hw, weft__bytes(p), 0.5, p->pass == WEFT_PASS_FWD ? 3 : 4) +
            idle * tiles * 32 * t->pixels * ((double)nnz * 3.5 + 3.0 * copies) / lanes;
    if (variant) d->ns *= 1.0 + 0.01 * variant;
    return NULL;
}

static void put_defines(const weft_problem *p, const tile *t, bool turned, weft__text *text) {
    sparse_defines(p, text);
    weft__put(text,
              " -DTX=%d -DPIXELS=%d -DSIZE0=%d -DSIZE1=%d -DSIZE2=%d -DPART=%d -DCHUNK=%d -DS1=%d -DS2=%d -DTURNED=%d",
              t->tx, t->pixels, t->size[0], t->size[1], t->size[2], t->part, t->chunk, (int)p->stride[1],
              (int)p->stride[2], turned);
}
static void turn_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    put_defines(p, params, false, text);
}
static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    put_defines(p, params, p->pass != WEFT_PASS_FWD, text);
}

/* The transposed matrix, and the arguments of the forward pass with it. */
static weft_status turn(const weft__exec *e, void *at, sparse_args *a) {
    const weft_problem *p = e->p;
    turn_args t = {.a = *a, .rows = at};
    t.cols = t.rows + p->c + 1;
    t.values = t.cols + a->nnz;
    for (int i = 0; i < 3; i++) {
        t.kernel[i] = (int32_t)p->kernel[i];
        a->in[i] = (int32_t)p->out[i], a->out[i] = (int32_t)p->in[i];
        a->pad[i] = (int32_t)((p->kernel[i] - 1) * p->dilation[i] - p->pad_lo[i]);
    }
    a->src = a->diff_dst, a->weights = t.values, a->rows = t.rows, a->cols = t.cols;
    a->channels = p->c, a->inside = t.a.outs, a->outs = t.a.inside;
    a->group = (int64_t)a->inside * p->out[0] * p->out[1] * p->out[2];
    a->image = a->group * p->groups;
    a->columns = (int64_t)a->inside * p->kernel[0] * p->kernel[1] * p->kernel[2];
    const weft__launch launch = {.grid = {(uint32_t)p->c, 1, 1}, .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &t);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    const bool fwd = e->p->pass == WEFT_PASS_FWD;
    tiles_args a = {.a = sparse_args_of(e), .spots = e->workspace};
    const int64_t outs = pass_of(e->p).outs, sets = cuda_ceil(outs, ROWS);
    a.bounds = (int32_t *)(a.spots + a.a.nnz);
    a.chunks = t->chunks, a.across = t->across, a.parts = t->parts, a.strips = t->strips;
    if (!fwd) WEFT__TRY(turn(e, a.bounds + sets * t->chunks * (ROWS + 1), &a.a));
    const weft__launch sort = {.grid = {(uint32_t)sets, 1, 1}, .block = {SORTERS, 1, 1}},
                       launch = {.grid = {(uint32_t)(cuda_ceil(t->parts, 32 / t->tx) * t->across),
                                          (uint32_t)cuda_ceil(outs, BLOCK_ROWS), 1},
                                 .block = {THREADS, 1, 1},
                                 .smem = t->smem};
    WEFT__TRY(weft__cuda_launch(e, fwd ? 0 : 1, &sort, &a));
    return weft__cuda_launch(e, fwd ? 1 : 2, &launch, &a);
}

#define SOURCE "sparse_conv/tiles.cu"
#define TILES \
    {SOURCE, "sparse_chunks", defines, false}, { SOURCE, "sparse_tiles", defines, false }
#define TILES_KERNEL(id, text, pass, set, ...)                            \
    const weft__kernel weft__cuda_##id = {.name = text,                   \
                                          .version = 1,                   \
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
             {SOURCE, "sparse_turn", turn_defines, false}, TILES);

#else
#include "ptx.h"
#include "sparse_conv/sort.h"

enum { PARTS = 32 / TX, CHANNEL = PARTS * PART, INPUTS = SIZE0 * SIZE1 * SIZE2 };

/* ---------------------------------------------------------------- the transposed matrix */
/* A row for each input channel; taps are counted from the other end. */
extern "C" __global__ void __launch_bounds__(THREADS) sparse_turn(const __grid_constant__ turn_args t) {
    const sparse_args &a = t.a;
    const sorted s = sort_channel(a, (int)blockIdx.x, [&](int j, int at, int low) {
        const int row = row_of(a, j, low, low + a.outs) - low, taps = t.kernel[0] * t.kernel[1] * t.kernel[2];
        t.cols[at] = row * taps + taps - 1 - (int)(((const COLS_T *)a.cols)[j] % taps);
        ((T *)t.values)[at] = ((const T *)a.weights)[j];
    });
    for (int i = s.end + (int)threadIdx.x; i < s.group_end; i += THREADS) t.cols[i] = -1; /* those without a column */
    if (threadIdx.x == 0) t.rows[blockIdx.x] = s.begin;
    if (threadIdx.x == 0 && blockIdx.x + 1 == gridDim.x) t.rows[gridDim.x] = s.group_end;
}

/* ---------------------------------------------------------------- entries by chunks */
/* The chunk of an entry and its spot; negative: its column is none. */
static __device__ __forceinline__ int spot_of(const sparse_args &a, int j, spot &s) {
    const column c = column_of(a, j);
    const int chunk = c.channel < 0 ? -1 : c.channel / CHUNK;
    s.at = (c.channel - chunk * CHUNK) * CHANNEL + (c.z * SIZE1 + c.y) * SIZE2 + c.x;
    s.value = widen(((const T *)a.weights)[j]);
    return chunk;
}

/* A warp has one output channel. Rows that are not in order share no place: each begins where the one before ends. */
extern "C" __global__ void __launch_bounds__(SORTERS) sparse_chunks(const __grid_constant__ tiles_args t) {
    __shared__ int count[MOST_CHUNKS * ROWS], where[MOST_CHUNKS * ROWS]; /* [chunk][channel] */
    const sparse_args &a = t.a;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, all = t.chunks * ROWS;
    const int64_t first = (int64_t)blockIdx.x * ROWS;
    const int base = (int)row_begin(a, first);
    int begin = base, end = base;
    for (int r = 0; r <= warp; r++) {
        begin = end;
        end = max(end, (int)row_begin(a, min(first + r + 1, a.channels)));
    }
    for (int i = (int)threadIdx.x; i < all; i += SORTERS) count[i] = 0;
    __syncthreads();
    spot s;
    for (int j = begin; j < end; j += 32) {
        const int chunk = j + lane < end ? spot_of(a, j + lane, s) : -1;
        const unsigned same = __match_any_sync(0xffffffffu, chunk);
        if (chunk >= 0 && __ffs((int)same) - 1 == lane) count[chunk * ROWS + warp] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < all; i += SORTERS) {
        int sum = base;
        for (int k = 0; k < i; k++) sum += count[k];
        where[i] = sum;
        int32_t *bounds = t.bounds + ((int64_t)blockIdx.x * t.chunks + i / ROWS) * (ROWS + 1) + i % ROWS;
        bounds[0] = sum;
        if (i % ROWS == ROWS - 1) bounds[1] = sum + count[i];
    }
    __syncthreads();
    for (int j = begin; j < end; j += 32) {
        const int chunk = j + lane < end ? spot_of(a, j + lane, s) : -1;
        const unsigned same = __match_any_sync(0xffffffffu, chunk), before = same & ((1u << lane) - 1);
        int *const at = &where[max(chunk, 0) * ROWS + warp];
        const int to = *at + __popc(before);
        __syncwarp();
        if (chunk >= 0 && !before) *at += __popc(same);
        if (chunk >= 0) t.spots[to] = s;
        __syncwarp();
    }
}

/* ---------------------------------------------------------------- tiles */
extern __shared__ __align__(16) float tiles[];

/* Some rows of a plane of outputs; n < 0: none. */
struct part {
    int n, z, y;
};
static __device__ __forceinline__ part part_at(const tiles_args &t, int number) {
    const int plane = number / t.strips, n = plane / t.a.out[0];
    return {number < t.parts ? n : -1, plane - n * t.a.out[0], (number - plane * t.strips) * PIXELS};
}

/* What a thread copies of every channel: LOADS places of a tile. */
enum { LOADS = (CHANNEL + THREADS - 1) / THREADS };
struct loader {
    const T *from[LOADS];
    bool there[LOADS];

    __device__ __forceinline__ void open(const tiles_args &t, int parts, int x, int64_t group) {
        const sparse_args &a = t.a;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int place = (int)threadIdx.x + i * THREADS, at = place % PART;
            const part p = part_at(t, parts + place / PART);
            const int sz = p.z * a.stride[0] - a.pad[0] + at / (SIZE1 * SIZE2),
                      sy = p.y * S1 - a.pad[1] + at / SIZE2 % SIZE1, sx = x * S2 - a.pad[2] + at % SIZE2;
            there[i] = p.n >= 0 && at < INPUTS && (unsigned)sz < (unsigned)a.in[0] &&
                       (unsigned)sy < (unsigned)a.in[1] && (unsigned)sx < (unsigned)a.in[2];
            from[i] = (const T *)a.src;
            if (there[i]) from[i] += p.n * a.image + group * a.group + ((int64_t)sz * a.in[1] + sy) * a.in[2] + sx;
        }
    }

    __device__ __forceinline__ void load(const sparse_args &a, int chunk, float *to) const {
        const int64_t plane = (int64_t)a.in[0] * a.in[1] * a.in[2];
        const int first = chunk * CHUNK, count = min((int)CHUNK, a.inside - first);
#pragma unroll 4
        for (int c = 0; c < count; c++)
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int place = (int)threadIdx.x + i * THREADS;
                const T *at = from[i] + (there[i] ? (first + c) * plane : 0);
                if (place >= CHANNEL) continue;
                if (sizeof(T) == 4)
                    ptx_copy_part<4>(to + c * CHANNEL + place, at, there[i]);
                else
                    to[c * CHANNEL + place] = there[i] ? widen(*at) : 0;
            }
    }
};

/* The entries of a warp's channels in a chunk. */
static __device__ __forceinline__ void add_entries(const tiles_args &t, int64_t set, int chunk, const float *tile,
                                                   spot *stage, float (&sum)[ROWS][PIXELS]) {
    const int lane = (int)threadIdx.x % 32;
    const int own = lane <= ROWS ? t.bounds[(set * t.chunks + chunk) * (ROWS + 1) + lane] : 0;
    int bound[ROWS + 1];
#pragma unroll
    for (int r = 0; r <= ROWS; r++) bound[r] = __shfl_sync(0xffffffffu, own, r);
    for (int begin = bound[0]; begin < bound[ROWS]; begin += STAGE) {
        __syncwarp();
#pragma unroll
        for (int i = lane; i < STAGE; i += 32)
            if (begin + i < bound[ROWS]) stage[i] = t.spots[begin + i];
        __syncwarp();
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int end = min(bound[r + 1] - begin, (int)STAGE);
#pragma unroll 4
            for (int i = max(bound[r] - begin, 0); i < end; i++) {
                const spot s = stage[i];
                const float *at = tile + s.at;
#pragma unroll
                for (int k = 0; k < PIXELS; k++) sum[r][k] = fmaf(at[k * S1 * SIZE2], s.value, sum[r][k]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_tiles(const __grid_constant__ tiles_args t) {
    const sparse_args &a = t.a;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int parts = (int)blockIdx.x / t.across * PARTS, x = ((int)blockIdx.x % t.across) * TX;
    const int64_t set = (int64_t)blockIdx.y * WARPS + warp;
    const bool works = set * ROWS < a.channels;
    spot *const stage = (spot *)(tiles + 2 * CHUNK * CHANNEL) + warp * STAGE;
    loader l;
    l.open(t, parts, x, (int64_t)blockIdx.y * BLOCK_ROWS / a.outs);
    float sum[ROWS][PIXELS] = {};
    l.load(a, 0, tiles);
    ptx_copy_commit();
    for (int chunk = 0; chunk < t.chunks; chunk++) {
        if (chunk + 1 < t.chunks) l.load(a, chunk + 1, tiles + (chunk + 1) % 2 * (CHUNK * CHANNEL));
        ptx_copy_commit();
        ptx_copy_wait<1>();
        __syncthreads();
        const float *tile = tiles + chunk % 2 * (CHUNK * CHANNEL) + lane / TX * PART + lane % TX * S2;
        if (works) add_entries(t, set, chunk, tile, stage, sum);
        __syncthreads();
    }
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
