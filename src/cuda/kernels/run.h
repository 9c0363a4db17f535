/* Runs of elements of any type between device memory and shared memory, whatever their alignment, by 16-byte accesses.
 * In shared memory a run keeps its position inside 16 bytes. Called by a whole block. For device code only. */
#ifndef WEFT_CUDA_RUN_H
#define WEFT_CUDA_RUN_H

enum { RUN_UNROLL = 4 }; /* loads of a thread under way */

/* The run's first element in its slot, which begins at a multiple of 16 bytes and has 15 to spare. */
template <class E> static __device__ __forceinline__ E *run_in_slot(void *slot, const E *run) {
    return (E *)((char *)slot + ((uintptr_t)run & 15));
}

/* Both begin at the same position inside 16 bytes. */
template <int Threads, class E> static __device__ __forceinline__ void run_copy(E *to, const E *from, int count) {
    constexpr int N = 16 / sizeof(E);
    const int head = min((int)((16 - ((uintptr_t)to & 15)) & 15) / (int)sizeof(E), count), vectors = (count - head) / N;
    uint4 *lines = (uint4 *)(to + head);
    const uint4 *source = (const uint4 *)(from + head);
    for (int i = (int)threadIdx.x; i < vectors; i += RUN_UNROLL * Threads) {
        uint4 v[RUN_UNROLL];
#pragma unroll
        for (int u = 0; u < RUN_UNROLL; u++)
            if (i + u * Threads < vectors) v[u] = source[i + u * Threads];
#pragma unroll
        for (int u = 0; u < RUN_UNROLL; u++)
            if (i + u * Threads < vectors) lines[i + u * Threads] = v[u];
    }
    const int rest = head + vectors * N + (int)threadIdx.x;
    if ((int)threadIdx.x < head) to[threadIdx.x] = from[threadIdx.x];
    if (rest < count) to[rest] = from[rest];
}

#endif
