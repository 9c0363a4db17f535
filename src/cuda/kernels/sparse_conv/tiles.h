/* What the kernels by tiles share: the tile, the entries of ROWS output channels sorted by chunks of input channels,
 * and the copies of a chunk's inputs into shared memory. Both sides read this file. "Output" is what a forward pass
 * writes, also where that is the transposed pass (TURNED), and "input" what it reads. */
#ifndef WEFT_CUDA_SPARSE_TILES_H
#define WEFT_CUDA_SPARSE_TILES_H

#if defined(__CUDACC_RTC__) && TURNED /* the matrix is the one that sparse_turn made */
#undef ROWS_T
#undef COLS_T
#define ROWS_T int32_t
#define COLS_T int32_t
#endif
#include "sparse_conv/sparse.h"

enum { WARPS = THREADS / 32, STAGE = 128, MOST_CHUNKS = 256, BLOCKS = 3 }; /* BLOCKS: of a multiprocessor */

typedef struct spot { /* an entry: the offset of its input from an output's first in a tile */
    int32_t at;
    float value; /* gradient of the weights: bits of its number */
} spot;

typedef struct tiles_args {
    sparse_args a;
    spot *spots;     /* by ROWS output channels, chunks, output channels */
    int32_t *bounds; /* [ROWS channels][chunk]: where the spots of each begin, and where the last ones end */
    int32_t chunks, across, parts, strips; /* of the channels; tiles of a row; parts in all, and of a plane */
} tiles_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    int32_t rows, tx, pixels, size[3], part, chunk; /* size: of a part's inputs; part: floats of it; chunk: channels */
    int32_t unit, shift;                            /* floats of a copy, and how many lie before a tile's first */
    int32_t chunks, across, parts, strips;
    size_t smem;
} tile;

/* The forward pass that this is: channels and sizes of what it reads and writes. */
typedef struct pass {
    int64_t inside, outs;
    const int64_t *in, *out;
} pass;
static pass pass_of(const weft_problem *p) {
    if (p->pass != WEFT_PASS_BWD_DATA) return (pass){p->c / p->groups, p->o, p->in, p->out};
    return (pass){p->o / p->groups, p->c, p->out, p->in};
}

static int64_t channel_floats(const tile *t) { return (int64_t)(32 / t->tx) * t->part; }

/* Parts of a warp's lanes lie in different banks. */
static int32_t part_floats(const tile *t) {
    const int64_t inputs = (int64_t)t->size[0] * t->size[1] * t->size[2];
    return (int32_t)(t->tx == 32 ? inputs : cuda_ceil(WEFT__MAX(inputs - t->tx, 0), 32) * 32 + t->tx);
}

/* How many floats a copy takes: rows of f32 by 16 or 8 bytes where each copy lies in a row or out of it. */
static int32_t copy_unit(const weft_problem *p, int64_t row) {
    const weft_tensor *src = weft__tensor(p, p->pass == WEFT_PASS_BWD_DATA ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC);
    int32_t unit = src->dtype == WEFT_DTYPE_F32 ? 4 : 1;
    while (unit > 1 && (row % unit || src->align % (4 * unit))) unit /= 2;
    return unit;
}

/* The most outputs of a lane, and its output channels. Cycles of an entry of each warp where a multiprocessor has one
 * block, and more for every further one: of products, of gradients of the weights, for which the first has too few
 * registers. Measured on an H200. */
static const char *const variants[] = {"y8", "y8o2", "y4o1", NULL};
typedef struct shape {
    int32_t pixels, rows;
    double products[2], weights[2];
} shape;
static const shape shapes[] = {{8, 4, {172, 73}, {0, 0}}, {8, 2, {179, 84}, {278, 111}}, {4, 1, {183, 50}, {262, 78}}};
enum { WEIGHTS_FIRST = 1 }; /* the first variant of the gradient of the weights */

static const char *tile_of(const weft_problem *p, const weft__hw *hw, const shape *shape, tile *t) {
    const pass s = pass_of(p);
    t->pixels = (int32_t)cuda_ceil(s.out[1], cuda_ceil(s.out[1], shape->pixels)); /* strips of one height */
    t->rows = shape->rows;
    if (p->groups > 1 && s.outs / p->groups % (t->rows * WARPS)) return "channels of a group that do not fill blocks";
    t->tx = (int32_t)WEFT__MAX(WEFT__MIN(cuda_power(s.out[2]), 32), 4);
    for (int a = 0; a < 3; a++) {
        const int64_t outs = a == 0 ? 1 : a == 1 ? t->pixels : t->tx, reach = (p->kernel[a] - 1) * p->dilation[a];
        if (reach > 64) return "a window over 65 wide";
        t->size[a] = (int32_t)((outs - 1) * p->stride[a] + reach + 1);
    }
    t->unit = copy_unit(p, s.in[2]);
    const int64_t pad =
        p->pass == WEFT_PASS_BWD_DATA ? (p->kernel[2] - 1) * p->dilation[2] - p->pad_lo[2] : p->pad_lo[2];
    t->shift = (int32_t)(((-pad) % t->unit + t->unit) % t->unit);
    t->size[2] = (int32_t)cuda_ceil(t->size[2] + t->shift, t->unit) * t->unit;
    t->part = part_floats(t);
    const int64_t room = (int64_t)hw->gpu->smem / BLOCKS - WARPS * STAGE * (int64_t)sizeof(spot) - 1024;
    const int64_t most = room / (2 * 4 * channel_floats(t));
    if (most < 4) return "tiles that do not fit into shared memory";
    t->chunks = (int32_t)cuda_ceil(s.inside, WEFT__MIN(most, 48));
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

static const char *tiles_refusal(const weft_problem *p) {
    const char *refusal = sparse_refusal(p);
    const pass s = pass_of(p);
    if (refusal) return refusal;
    if (p->attr[WEFT_SPARSE_STRETCHED]) return "stretched columns";
    if (s.out[1] == 1) return "one row";
    if (p->attr[WEFT_SPARSE_NNZ] >= 1 << 30) return "2^30 entries or more";
    if (p->pass != WEFT_PASS_BWD_DATA) return NULL;
    for (int a = 0; a < 3; a++)
        if (p->stride[a] != 1) return "stride is not 1";
    return NULL;
}

/* The time of blocks whose warps take `entries` one after the other, each for so many cycles of a shape, fewer where a
 * lane has fewer outputs; and of the copies of their inputs. */
static double blocks_ns(const weft_problem *p, const weft__hw *hw, const tile *t, int most, int64_t blocks,
                        double entries, const double cycles[2]) {
    const double each = (double)cuda_ceil(blocks, hw->gpu->sms),
                 copied = (double)(pass_of(p).inside * channel_floats(t));
    const double work = entries * (cycles[0] + cycles[1] * (each - 1)) * (t->pixels + 2) / (most + 2);
    return sparse_cycles_ns(hw, work + 0.13 * each * copied);
}
/* Of a warp's output channels. */
static double warp_entries(const weft_problem *p, const tile *t) {
    return (double)p->attr[WEFT_SPARSE_NNZ] * t->rows / (double)pass_of(p).outs;
}

/* The warps and blocks that the output channels take. */
static int64_t sets_of(const weft_problem *p, const tile *t) { return cuda_ceil(pass_of(p).outs, t->rows); }
static int64_t row_blocks(const weft_problem *p, const tile *t) { return cuda_ceil(sets_of(p, t), WARPS); }

static size_t lists_bytes(const weft_problem *p, const tile *t) {
    const size_t bounds = (size_t)(sets_of(p, t) * t->chunks * (t->rows + 1)) * sizeof(int32_t);
    return (size_t)p->attr[WEFT_SPARSE_NNZ] * sizeof(spot) + bounds;
}
static weft__launch lists_launch(const weft_problem *p, const tile *t) {
    return (weft__launch){.grid = {(uint32_t)sets_of(p, t), 1, 1}, .block = {32 * (uint32_t)t->rows, 1, 1}};
}
static tiles_args tiles_args_of(const weft__exec *e, const tile *t) {
    tiles_args a = {sparse_args_of(e), e->workspace, NULL, t->chunks, t->across, t->parts, t->strips};
    a.bounds = (int32_t *)(a.spots + a.a.nnz);
    return a;
}

static void tiles_defines(const weft_problem *p, const tile *t, bool turned, weft__text *text) {
    sparse_defines(p, text);
    weft__put(text,
              " -DTX=%d -DPIXELS=%d -DSIZE0=%d -DSIZE1=%d -DSIZE2=%d -DPART=%d -DCHUNK=%d -DS1=%d -DS2=%d -DTURNED=%d "
              "-DWEIGHTS=%d -DROWS=%d -DUNIT=%d -DSHIFT=%d -DK0=%d -DK1=%d -DK2=%d",
              t->tx, t->pixels, t->size[0], t->size[1], t->size[2], t->part, t->chunk, (int)p->stride[1],
              (int)p->stride[2], turned, p->pass == WEFT_PASS_BWD_WEIGHTS, t->rows, t->unit, t->shift,
              (int)p->kernel[0], (int)p->kernel[1], (int)p->kernel[2]);
}

#else
#include "ptx.h"

enum { BLOCK_ROWS = ROWS * WARPS, SORTERS = 32 * ROWS }; /* SORTERS: threads of a block that sorts */
enum { PARTS = 32 / TX, CHANNEL = PARTS * PART, INPUTS = SIZE0 * SIZE1 * SIZE2 };

/* ---------------------------------------------------------------- entries by chunks */
/* The chunk of an entry and its spot; negative: its column is none. */
static __device__ __forceinline__ int spot_of(const sparse_args &a, int j, spot &s) {
    const int64_t col = ((const COLS_T *)a.cols)[j];
    const uint32_t row = (uint32_t)col / K2, plane = row / K1, channel = plane / K0, chunk = channel / CHUNK;
    const int z = (int)(plane % K0) * a.step[0], y = (int)(row % K1) * a.step[1],
              x = (int)((uint32_t)col % K2) * a.step[2];
    s.at = (int)(channel % CHUNK) * CHANNEL + (z * SIZE1 + y) * SIZE2 + x;
    s.value = WEIGHTS ? __int_as_float(j) : widen(((const T *)a.weights)[j]);
    return col < 0 || col >= a.columns ? -1 : (int)chunk;
}

/* f(entry, chunk, spot) for 32 entries at a time; chunk is negative where the column is none or there is no entry. */
template <class F>
static __device__ __forceinline__ void each_spot(const sparse_args &a, int begin, int end, const F &f) {
    enum { AHEAD = 8 };
    const int lane = (int)threadIdx.x % 32;
    for (; begin < end; begin += AHEAD * 32) {
        spot s[AHEAD];
        int chunk[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int j = begin + k * 32 + lane;
            chunk[k] = j < end ? spot_of(a, j, s[k]) : -1;
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (begin + k * 32 < end) f(begin + k * 32 + lane, chunk[k], s[k]);
    }
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
    each_spot(a, begin, end, [&](int, int chunk, const spot &) {
        if (chunk >= 0) atomicAdd(&count[chunk * ROWS + warp], 1);
    });
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
    each_spot(a, begin, end, [&](int j, int chunk, const spot &s) {
        const unsigned same = __match_any_sync(0xffffffffu, chunk), before = same & ((1u << lane) - 1);
        int *const at = &where[max(chunk, 0) * ROWS + warp];
        const int to = *at + __popc(before);
        __syncwarp();
        if (chunk >= 0 && !before) *at += __popc(same);
        if (chunk >= 0) t.spots[to] = s;
        if (WEIGHTS && chunk < 0 && j < end) ((T *)a.diff_weights)[j] = narrow<T>(0);
        __syncwarp();
    });
}

/* ---------------------------------------------------------------- tiles */
extern __shared__ __align__(16) float tiles[];

/* A warp's entries on their way, STAGE at a time: `begin` and those behind it up to `end`. */
static __device__ __forceinline__ spot *stage_of() {
    return (spot *)(tiles + 2 * CHUNK * CHANNEL) + threadIdx.x / 32 * STAGE;
}
static __device__ __forceinline__ void load_stage(const tiles_args &t, int begin, int end, spot *stage) {
    __syncwarp();
#pragma unroll
    for (int i = (int)threadIdx.x % 32; i < STAGE; i += 32)
        if (begin + i < end) stage[i] = t.spots[begin + i];
    __syncwarp();
}

/* Where a warp's entries in a chunk begin and end, by channel: of the next one, a number of each lane. */
static __device__ __forceinline__ int bounds_ahead(const tiles_args &t, int64_t set, int chunk) {
    const int lane = (int)threadIdx.x % 32;
    const bool there = lane <= ROWS && chunk < t.chunks && set * ROWS < t.a.channels;
    return there ? t.bounds[(set * t.chunks + chunk) * (ROWS + 1) + lane] : 0;
}

/* Some rows of a plane of outputs; n < 0: none. */
struct part {
    int n, z, y;
};
static __device__ __forceinline__ part part_at(const tiles_args &t, int number) {
    const int plane = number / t.strips, n = plane / t.a.out[0];
    return {number < t.parts ? n : -1, plane - n * t.a.out[0], (number - plane * t.strips) * PIXELS};
}

/* SPAN threads copy a channel, each LOADS places of UNIT floats. */
constexpr int span_of(int places) { return places > 128 ? 256 : places > 64 ? 128 : places > 32 ? 64 : 32; }
enum { PLACES = PARTS * INPUTS / UNIT, SPAN = span_of(PLACES), LOADS = (PLACES + SPAN - 1) / SPAN };
static __device__ __forceinline__ int place_of(int i) { return ((int)threadIdx.x % SPAN + i * SPAN) * UNIT; }
struct loader {
    const T *from[LOADS];
    bool there[LOADS];

    /* The first chunk is on its way then. */
    __device__ __forceinline__ void open(const tiles_args &t, int parts, int x, int64_t group) {
        const sparse_args &a = t.a;
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int place = place_of(i), at = place % INPUTS;
            const part p = part_at(t, parts + place / INPUTS);
            const int sz = p.z * a.stride[0] - a.pad[0] + at / (SIZE1 * SIZE2),
                      sy = p.y * S1 - a.pad[1] + at / SIZE2 % SIZE1, sx = x * S2 - a.pad[2] - SHIFT + at % SIZE2;
            there[i] = p.n >= 0 && place < PARTS * INPUTS && (unsigned)sz < (unsigned)a.in[0] &&
                       (unsigned)sy < (unsigned)a.in[1] && (unsigned)sx < (unsigned)a.in[2];
            from[i] = (const T *)a.src;
            if (there[i]) from[i] += p.n * a.image + group * a.group + ((int64_t)sz * a.in[1] + sy) * a.in[2] + sx;
        }
        load(a, 0, tiles);
        ptx_copy_commit();
    }

    __device__ __forceinline__ void load(const sparse_args &a, int chunk, float *to) const {
        const int64_t plane = (int64_t)a.in[0] * a.in[1] * a.in[2];
        const int first = chunk * CHUNK, count = min((int)CHUNK, a.inside - first);
#pragma unroll 4
        for (int c = (int)threadIdx.x / SPAN; c < count; c += THREADS / SPAN)
#pragma unroll
            for (int i = 0; i < LOADS; i++) {
                const int place = place_of(i), in = c * CHANNEL + place / INPUTS * PART + place % INPUTS;
                const T *at = from[i] + (there[i] ? (first + c) * plane : 0);
                if (place >= PARTS * INPUTS) continue;
                if (sizeof(T) == 4)
                    ptx_copy_part<4 * UNIT>(to + in, at, there[i]);
                else
                    to[in] = there[i] ? widen(*at) : 0;
            }
    }

    /* add(chunk, this lane's first input in its tile) for each chunk, while the next one is on its way. Where all warps
     * wait for a chunk, they are done with the one before, whose place the next one takes. */
    template <class F> __device__ __forceinline__ void each_chunk(const tiles_args &t, const F &add) const {
        const int lane = (int)threadIdx.x % 32;
        for (int chunk = 0; chunk < t.chunks; chunk++) {
            ptx_copy_wait<0>();
            __syncthreads();
            if (chunk + 1 < t.chunks) load(t.a, chunk + 1, tiles + (chunk + 1) % 2 * (CHUNK * CHANNEL));
            ptx_copy_commit();
            add(chunk, tiles + chunk % 2 * (CHUNK * CHANNEL) + lane / TX * PART + lane % TX * S2 + SHIFT);
        }
    }
};

#endif

#endif
