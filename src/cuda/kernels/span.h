/* Runs of elements of type T between device memory and shared memory, whatever their alignment. For device code only.
 * In shared memory a run keeps its position inside 16 bytes: it begins at slot + span_shift(), so that its 16-byte
 * lines are lines there too. A load takes whole lines, some elements of the neighbours with it; a line that the tensor
 * only partly owns, its first or last, comes by plain accesses. A store writes the run and nothing else: the whole
 * lines, and plain stores for the elements at either end. With BULK lines go by the bulk copy engine (compute
 * capability 9.0 and up), else by 16-byte accesses. ALIGNED: every run begins and ends at a line. */
#ifndef WEFT_CUDA_SPAN_H
#define WEFT_CUDA_SPAN_H

#include "ptx.h"

enum { SPAN = 16 / sizeof(T) }; /* elements of a line */

/* Elements from the line's begin to element `at` of a tensor: both matter modulo SPAN only. */
static __device__ __forceinline__ int span_shift(const T *tensor, uint32_t at) {
    return ALIGNED ? 0 : (int)(((uint32_t)(uintptr_t)tensor / (uint32_t)sizeof(T) + at) % SPAN);
}

#if BULK
static __device__ __forceinline__ void arrival_init(uint64_t *bar) { ptx_mbarrier_init(bar, 1); }
static __device__ __forceinline__ void fence_async() { ptx_fence_async(); }
static __device__ __forceinline__ void arrival_wait(uint64_t *bar, uint32_t parity) { ptx_mbarrier_wait(bar, parity); }

static __device__ __forceinline__ void lines_load(T *to, const T *from, int count, uint64_t *bar) {
    if (threadIdx.x % 32) return;
    ptx_mbarrier_expect(bar, (uint32_t)count * (uint32_t)sizeof(T));
    if (count) ptx_bulk_load(to, from, (uint32_t)count * (uint32_t)sizeof(T), bar);
}

static __device__ __forceinline__ void lines_store(T *to, const T *from, int count) {
    if (threadIdx.x % 32) return;
    if (count) ptx_bulk_store(to, from, (uint32_t)count * (uint32_t)sizeof(T));
    ptx_bulk_commit();
}

/* All but the last `Left` stores have read their slots, as the whole warp knows after it. */
template <int Left> static __device__ __forceinline__ void span_store_wait() {
    if (threadIdx.x % 32 == 0) ptx_bulk_wait_read<Left>();
    __syncwarp();
}

#else
static __device__ __forceinline__ void arrival_init(uint64_t *) {}
static __device__ __forceinline__ void fence_async() {}
static __device__ __forceinline__ void arrival_wait(uint64_t *, uint32_t) {}
template <int Left> static __device__ __forceinline__ void span_store_wait() {}

static __device__ __forceinline__ void lines_store(T *to, const T *from, int count) {
#pragma unroll 8
    for (int i = SPAN * (int)(threadIdx.x % 32); i < count; i += SPAN * 32)
        *(uint4 *)(to + i) = *(const uint4 *)(from + i);
}

static __device__ __forceinline__ void lines_load(T *to, const T *from, int count, uint64_t *) {
    lines_store(to, from, count);
}
#endif

/* Elements at .. at + count - 1 of a tensor of `total`. Called by one warp; the data is there after arrival_wait,
 * without BULK after a block barrier. */
static __device__ __forceinline__ void span_load(T *slot, const T *tensor, int64_t total, int64_t at, int count,
                                                 uint64_t *bar) {
    if (ALIGNED) return lines_load(slot, tensor + at, count, bar);
    const int skew = span_shift(tensor, 0);
    const T *line = tensor - skew;                            /* the tensor's first line: positions count from here */
    const int64_t begin = (skew + at) / SPAN * SPAN;          /* the line that is the slot's first */
    const int lo = (int)(skew + at - begin), hi = lo + count; /* the run, from there */
    const int first = begin < skew ? SPAN : 0;                /* whole lines of the tensor: first .. last - 1 */
    const int last = (int)min((int64_t)((hi + SPAN - 1) / SPAN * SPAN), (skew + total) / SPAN * SPAN - begin);
    if (first > lo || last < hi)
        for (int i = (int)threadIdx.x % 32; i < hi; i += 32)
            if (i >= lo && (i < first || i >= last)) slot[i] = line[begin + i];
    __syncwarp(); /* plain accesses before the arrival, which tells of both */
    lines_load(slot + first, line + begin + first, max(last - first, 0), bar);
}

/* Called by one warp, after fence_async in every thread that wrote the slot and a block barrier. */
static __device__ __forceinline__ void span_store(T *tensor, int64_t at, int count, const T *slot) {
    if (ALIGNED) return lines_store(tensor + at, slot, count);
    T *to = tensor + at;
    const int shift = span_shift(to, 0), head = min((SPAN - shift) % SPAN, count);
    const int last = head + (count - head) / SPAN * SPAN, i = (int)threadIdx.x % 32;
    const T *from = slot + shift;
    lines_store(to + head, from + head, last - head);
    if (i < head) to[i] = from[i];
    if (i < count - last) to[last + i] = from[last + i];
}

#endif
