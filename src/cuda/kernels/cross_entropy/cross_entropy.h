/* What the launches of cross entropy share: arguments, the target of a row, and the walk over its logits. */
#ifndef WEFT_CUDA_CROSS_ENTROPY_H
#define WEFT_CUDA_CROSS_ENTROPY_H

#include "weft.h"

enum {
    THREADS = 256,
    SUMS = 4096,
    WEIGHTS = 512,
    STAGED_MOST = 96
}; /* blocks that leave a sum of losses, or of
 weights alone, at most */

typedef struct cross_entropy_sum {
    double loss, weight;
} cross_entropy_sum;

typedef struct cross_entropy_args {
    const void *src, *weights, *target, *diff_dst;
    void *dst, *diff_src;
    float *lse;
    cross_entropy_sum *sums;
    int64_t rows, channels, inner; /* inner: elements from one class to the next */
    int64_t ignore;
    int64_t units, nsums; /* units: vectors of pixels, or rows */
    float smooth;
} cross_entropy_args;

#ifdef __CUDACC_RTC__
#include "softmax/running.h"

enum { WIDE = ROWS ? 1 : VEC }; /* rows a thread works on at once */

static __device__ __forceinline__ float class_weight(const cross_entropy_args &a, int64_t c) {
    return WEIGHTED ? widen(((const WEIGHTS_T *)a.weights)[c]) : 1;
}

struct target {
    int label; /* -1: none, or not a class */
    bool ignored;
    float weight;
};

static __device__ __forceinline__ target target_as(const cross_entropy_args &a, int64_t label) {
    target t = {-1, false, 1};
    if (PROBS) return t;
    const bool valid = label >= 0 && label < a.channels;
    t.ignored = label == a.ignore;
    if (valid) t.label = (int)label;
    t.weight = t.ignored ? 0 : valid ? class_weight(a, label) : NAN;
    return t;
}

/* Of WIDE neighbouring rows: one access, or few, where they are aligned. */
static __device__ __forceinline__ void targets_of(const cross_entropy_args &a, int64_t row, target (&t)[WIDE]) {
    pack<int64_t, WIDE> label;
    if (!PROBS && ALIGNED)
        load_raw((const int64_t *)a.target + row, label);
    else if (!PROBS)
#pragma unroll
        for (int i = 0; i < WIDE; i++) label.v[i] = ((const int64_t *)a.target)[row + i];
#pragma unroll
    for (int i = 0; i < WIDE; i++) t[i] = target_as(a, PROBS ? 0 : label.v[i]);
}

/* The share a_c of class c that smoothing or probabilities give; the target's own (1 - s) w_t comes on top. */
static __device__ __forceinline__ float share(const cross_entropy_args &a, int64_t c, float probability) {
    if (PROBS)
        return class_weight(a, c) * (SMOOTH ? fmaf(1 - a.smooth, probability, a.smooth / a.channels) : probability);
    return SMOOTH ? a.smooth * class_weight(a, c) / a.channels : 0;
}

/* Where the elements of the WIDE rows of a unit lie: the first at `at`, class k of this thread `step` further on each.
 * With ROWS, LANES threads share a row and the elements of a vector are classes. With STAGED a thread has a row, and
 * the rows of a block go through shared memory as floats, an odd number of them apart. */
struct walk {
    int64_t row, at, step;
    int first, stride, count; /* class of the first vector; classes from one vector to the next; vectors */
};

static __device__ __forceinline__ walk walk_of(const cross_entropy_args &a, int64_t unit) {
    walk w;
    if (STAGED) {
        w.row = unit;
        w.at = threadIdx.x * (a.channels | 1);
        w.step = w.stride = 1;
        w.first = 0;
    } else if (ROWS) {
        const int lane = (int)threadIdx.x % LANES;
        w.row = unit;
        w.at = unit * a.channels + lane * VEC;
        w.step = w.stride = LANES * VEC;
        w.first = lane * VEC;
    } else {
        w.row = unit * VEC;
        w.at = w.row / a.inner * a.inner * a.channels + w.row % a.inner;
        w.step = a.inner;
        w.first = 0;
        w.stride = 1;
    }
    w.count = w.first < a.channels ? ((int)a.channels - w.first + w.stride - 1) / w.stride : 0;
    if (unit >= a.units) w.count = 0;
    return w;
}

/* Units of this block: begin, begin + step, ... below end; a whole block takes part in each turn. */
static __device__ __forceinline__ int64_t unit_of(int64_t turn) {
    return turn * (THREADS / LANES) + threadIdx.x / LANES;
}

extern __shared__ float stage[];

/* The logits of the rows of a turn, row by row, into shared memory, or results from there. Barriers around it. */
static __device__ __forceinline__ void stage_in(const cross_entropy_args &a, int64_t turn) {
    const int64_t first = turn * THREADS * a.channels, left = a.rows * a.channels - first;
    const int channels = (int)a.channels, count = (int)min((int64_t)THREADS * channels, left);
    for (int i = (int)threadIdx.x * COPY; i < count; i += THREADS * COPY) {
        float x[COPY];
        load((const T *)a.src + first + i, x);
#pragma unroll
        for (int k = 0; k < COPY; k++) stage[(i + k) / channels * (channels | 1) + (i + k) % channels] = x[k];
    }
}

static __device__ __forceinline__ void stage_out(const cross_entropy_args &a, int64_t turn) {
    const int64_t first = turn * THREADS * a.channels, left = a.rows * a.channels - first;
    const int channels = (int)a.channels, count = (int)min((int64_t)THREADS * channels, left);
    for (int i = (int)threadIdx.x * COPY; i < count; i += THREADS * COPY) {
        float x[COPY];
#pragma unroll
        for (int k = 0; k < COPY; k++) x[k] = stage[(i + k) / channels * (channels | 1) + (i + k) % channels];
        store((T *)a.diff_src + first + i, x);
    }
}

static __device__ __forceinline__ void fetch(const cross_entropy_args &a, int64_t at, float (&x)[VEC]) {
    if (STAGED)
        x[0] = stage[at];
    else
        load((const T *)a.src + at, x);
}

template <class E> static __device__ __forceinline__ E row_sum(E v) {
    if (!ROWS || LANES == 1) return v;
    if (LANES <= 32) return lanes_all < plus, LANES <= 32 ? LANES : 32 > (v);
    __shared__ E scratch[THREADS / 32];
    __syncthreads();
    return block_all<plus, THREADS>(v, scratch);
}
#endif

#endif
