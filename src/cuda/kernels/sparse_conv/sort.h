/* Entries by input channel, for the data gradient with sparse weights: a stable counting sort in two launches. Both
 * sides read this file.
 * A slab is some rows of a group, and a block's warps have neighbouring rows of it. The first launch counts the entries
 * of each slab and channel. In the second one each block adds up the counts of all channels and of the slabs before its
 * own, counts its warps' entries, and puts them in their order: the places follow from the matrix alone. */
#ifndef WEFT_CUDA_SPARSE_SORT_H
#define WEFT_CUDA_SPARSE_SORT_H

#include "sparse_conv/sparse.h"

enum { MOST_SLABS = 64, RANGE = 1024, SORT_WARPS = THREADS / 32 }; /* RANGE: channels at a time */

typedef struct sort_args {
    sparse_args a;
    int32_t *counts;     /* [slab][input channel] */
    int32_t slabs, rows; /* of a group; of a warp in a slab */
} sort_args;

#ifndef __CUDACC_RTC__
static inline int64_t sort_rows(const weft_problem *p) { return cuda_ceil(p->o / p->groups, MOST_SLABS * SORT_WARPS); }
static inline int64_t sort_slabs(const weft_problem *p) {
    return cuda_ceil(p->o / p->groups, SORT_WARPS * sort_rows(p));
}
static inline size_t sort_bytes(const weft_problem *p) { return (size_t)(sort_slabs(p) * p->c) * sizeof(int32_t); }

/* Cycles of an entry of a warp, in all passes. Measured on an H200. */
static inline double sort_ns(const weft_problem *p, const weft__hw *hw) {
    const double entries = (double)(p->attr[WEFT_SPARSE_NNZ] * sort_rows(p)) / (double)p->o;
    return 3000 + sparse_cycles_ns(hw, 60 * entries);
}

static inline weft__launch sort_launch(const weft_problem *p) {
    return (weft__launch){.grid = {(uint32_t)sort_slabs(p), (uint32_t)p->groups, 1}, .block = {THREADS, 1, 1}};
}

/* The first launch, of part 0; counts: sort_bytes of workspace. */
static inline weft_status sort_count(const weft__exec *e, const sparse_args *a, void *counts, sort_args *s) {
    *s = (sort_args){*a, counts, (int32_t)sort_slabs(e->p), (int32_t)sort_rows(e->p)};
    const weft__launch launch = sort_launch(e->p);
    return weft__cuda_launch(e, 0, &launch, s);
}

#else
/* f(row, entry, channel - first) for 32 entries at a time of a warp's rows; negative: none of those channels. */
template <class F> static __device__ __forceinline__ void each_entry(const sort_args &s, int first, const F &f) {
    enum { AHEAD = 4 };
    const sparse_args &a = s.a;
    const int lane = (int)threadIdx.x % 32, window = (int)(a.columns / a.inside), low = (int)blockIdx.y * a.outs;
    const int begin = ((int)blockIdx.x * SORT_WARPS + (int)threadIdx.x / 32) * s.rows;
    for (int row = low + begin; row < low + min(begin + s.rows, a.outs); row++) {
        const int end = (int)row_begin(a, row + 1);
        for (int j = (int)row_begin(a, row) + lane; j - lane < end; j += AHEAD * 32) {
            int channel[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int64_t col = j + k * 32 < end ? (int64_t)((const COLS_T *)a.cols)[j + k * 32] : -1;
                const int at = col < 0 || col >= a.columns ? -1 : (int)((uint32_t)col / (uint32_t)window) - first;
                channel[k] = at < RANGE ? at : -1;
            }
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (j - lane + k * 32 < end) f(row, j + k * 32, channel[k]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_count(const __grid_constant__ sort_args s) {
    __shared__ int count[RANGE];
    for (int first = 0; first < s.a.inside; first += RANGE) {
        const int channels = min((int)RANGE, s.a.inside - first);
        int32_t *to = s.counts + ((int64_t)blockIdx.x * gridDim.y + blockIdx.y) * s.a.inside + first;
        for (int i = (int)threadIdx.x; i < channels; i += THREADS) count[i] = 0;
        __syncthreads();
        each_entry(s, first, [&](int, int, int channel) {
            if (channel >= 0) atomicAdd(&count[channel], 1);
        });
        __syncthreads();
        for (int i = (int)threadIdx.x; i < channels; i += THREADS) to[i] = count[i];
    }
}

/* The sum of v of all threads before this one; all: of the block. */
static __device__ __forceinline__ int scan(int v, int &all) {
    __shared__ int sums[SORT_WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int sum = v;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    int before = sum - v;
    all = 0;
    for (int i = 0; i < SORT_WARPS; i++) {
        if (i < warp) before += sums[i];
        all += sums[i];
    }
    __syncthreads();
    return before;
}

/* Entries of a channel before a slab, and in all. */
struct tally {
    int before, all;
};
static __device__ __forceinline__ tally tally_of(const sort_args &s, int channel) {
    const int32_t *counts = s.counts + (int64_t)blockIdx.y * s.a.inside + channel;
    tally t = {0, 0};
#pragma unroll 16
    for (int i = 0; i < s.slabs; i++) {
        const int n = counts[(int64_t)i * gridDim.y * s.a.inside];
        t.all += n;
        if (i < (int)blockIdx.x) t.before += n;
    }
    return t;
}

/* The second launch. put(row, entry, place) for each entry; range(channel, begin, end) for each channel of the group,
 * by one block. Returns where the entries of the group end that have a channel. */
template <class Put, class Range>
static __device__ __forceinline__ int sort_entries(const sort_args &s, const Put &put, const Range &range) {
    __shared__ int where[SORT_WARPS][RANGE];
    const sparse_args &a = s.a;
    const int warp = (int)threadIdx.x / 32;
    const unsigned lower = (1u << threadIdx.x % 32) - 1;
    int base = (int)row_begin(a, blockIdx.y * a.outs);
    for (int first = 0; first < a.inside; first += RANGE) {
        const int channels = min((int)RANGE, a.inside - first);
        for (int w = 0; w < SORT_WARPS; w++)
            for (int i = (int)threadIdx.x; i < channels; i += THREADS) where[w][i] = 0;
        __syncthreads();
        each_entry(s, first, [&](int, int, int channel) {
            if (channel >= 0) atomicAdd(&where[warp][channel], 1);
        });
        __syncthreads();
        for (int set = 0; set < channels; set += THREADS) {
            const int i = set + (int)threadIdx.x;
            const tally t = i < channels ? tally_of(s, first + i) : tally{0, 0};
            int all;
            const int begin = base + scan(t.all, all);
            int place = begin + t.before;
            for (int w = 0; i < channels && w < SORT_WARPS; w++) {
                const int n = where[w][i];
                where[w][i] = place;
                place += n;
            }
            if (i < channels && blockIdx.x == 0) range(first + i, begin, begin + t.all);
            base += all;
        }
        __syncthreads();
        each_entry(s, first, [&](int row, int entry, int channel) {
            const unsigned same = __match_any_sync(0xffffffffu, channel);
            int *const next = &where[warp][max(channel, 0)];
            const int place = *next + __popc(same & lower);
            __syncwarp();
            if (channel >= 0 && !(same & lower)) *next += __popc(same);
            if (channel >= 0 && (unsigned)place < (unsigned)a.nnz) put(row, entry, place); /* rows in no order */
            __syncwarp();
        });
        __syncthreads();
    }
    return base;
}
#endif

#endif
