/* Sums and maxima over lanes and blocks in a fixed order: the same bits on every run. For device code only. */
#ifndef WEFT_CUDA_REDUCE_H
#define WEFT_CUDA_REDUCE_H

struct plus {
    template <class E> static __device__ __forceinline__ E of(E a, E b) { return a + b; }
};
/* NaN loses: sums that follow find it. */
struct greatest {
    template <class E> static __device__ __forceinline__ E of(E a, E b) { return b > a ? b : a; }
};

/* Over groups of Lanes neighbouring lanes, a power of two up to 32; every lane has the result. The whole warp calls. */
template <class Op, int Lanes, class E> static __device__ __forceinline__ E lanes_all(E v) {
#pragma unroll
    for (int d = Lanes / 2; d > 0; d /= 2) v = Op::of(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

/* Over a block of Threads, a multiple of 32; every thread has the result. scratch: Threads / 32 numbers in shared
 * memory, free again after the next barrier. */
template <class Op, int Threads, class E> static __device__ __forceinline__ E block_all(E v, E *scratch) {
    v = lanes_all<Op, 32>(v);
    if (Threads == 32) return v;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = scratch[0];
#pragma unroll
    for (int i = 1; i < Threads / 32; i++) v = Op::of(v, scratch[i]);
    return v;
}

#endif
