/* The log-sum-exp of what was seen so far: the greatest m, and the sum of exp(x - m). Nothing but -infinity has m =
 * -infinity and sum 0; a NaN or +infinity makes the sum NaN. For device code only. */
#ifndef WEFT_CUDA_RUNNING_H
#define WEFT_CUDA_RUNNING_H

#include "reduce.h"
#include "vec.h"

struct running {
    float m, sum;
};

/* What is subtracted: -infinity - -infinity would be NaN. */
static __device__ __forceinline__ float running_base(float m) { return m == -INFINITY ? 0 : m; }

static __device__ __forceinline__ running merge(running a, running b) {
    const float m = greatest::of(a.m, b.m), base = running_base(m);
    running r = {m, a.sum * exp_small(a.m - base) + b.sum * exp_small(b.m - base)};
    return r;
}

template <int N> static __device__ __forceinline__ running running_of(const float (&x)[N]) {
    running r = {x[0], 0};
#pragma unroll
    for (int i = 1; i < N; i++) r.m = greatest::of(r.m, x[i]);
    const float base = running_base(r.m);
#pragma unroll
    for (int i = 0; i < N; i++) r.sum += exp_small(x[i] - base);
    return r;
}

/* Over groups of Lanes neighbouring lanes, a power of two; every lane has the result. The whole warp calls. */
template <int Lanes> static __device__ __forceinline__ running lanes_merge(running v) {
#pragma unroll
    for (int d = Lanes / 2; d > 0; d /= 2) {
        running other = {__shfl_xor_sync(0xffffffffu, v.m, d), __shfl_xor_sync(0xffffffffu, v.sum, d)};
        v = threadIdx.x & d ? merge(other, v) : merge(v, other); /* the same order in both lanes */
    }
    return v;
}

/* Over a block; every thread has the result. */
template <int Threads> static __device__ __forceinline__ running block_merge(running v) {
    __shared__ running scratch[Threads / 32];
    v = lanes_merge<32>(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[0];
    for (int i = 1; i < Threads / 32; i++) v = merge(v, scratch[i]);
    return v;
}

#endif
