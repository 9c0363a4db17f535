/* Runs of floats between device memory and shared memory, whatever their alignment. For device code only.
 * In shared memory a run keeps its position inside 16 bytes: it begins at slot + span_shift(), so that its 16-byte
 * lines are lines there too. A load takes whole lines, up to three floats of the neighbours with it; a line that the
 * tensor only partly owns, its first or last, comes by plain accesses. A store writes the run and nothing else: the
 * whole lines, and plain stores for up to three floats at either end. With BULK lines go by the bulk copy engine
 * (compute capability 9.0 and up), else by float4. */
#ifndef WEFT_CUDA_SPAN_H
#define WEFT_CUDA_SPAN_H

#include "ptx.h"

/* Floats from the line's begin to element `at` of a tensor: both matter modulo 4 only. */
static __device__ __forceinline__ int span_shift(const float *tensor, uint32_t at) {
    return (int)((((uint32_t)(uintptr_t)tensor >> 2) + at) & 3);
}

#if BULK
enum { SPAN_THREADS = 32 }; /* the first threads of the block move spans, the others go on */

static __device__ __forceinline__ void arrival_init(uint64_t *bar) { ptx_mbarrier_init(bar, 1); }
static __device__ __forceinline__ void fence_async() { ptx_fence_async(); }
static __device__ __forceinline__ void arrival_wait(uint64_t *bar, uint32_t parity) { ptx_mbarrier_wait(bar, parity); }

static __device__ __forceinline__ void lines_load(float *to, const float *from, int count, uint64_t *bar) {
    if (threadIdx.x) return;
    ptx_mbarrier_expect(bar, (uint32_t)count * 4);
    if (count) ptx_bulk_load(to, from, (uint32_t)count * 4, bar);
}

static __device__ __forceinline__ void lines_store(float *to, const float *from, int count) {
    if (threadIdx.x) return;
    if (count) ptx_bulk_store(to, from, (uint32_t)count * 4);
    ptx_bulk_commit();
}

/* All stores of this block have read their slots. Barrier after it. */
static __device__ __forceinline__ void span_store_wait() {
    if (threadIdx.x == 0) ptx_bulk_wait_read<0>();
}

#else
enum { SPAN_THREADS = 1024 };

static __device__ __forceinline__ void arrival_init(uint64_t *) {}
static __device__ __forceinline__ void fence_async() {}
static __device__ __forceinline__ void arrival_wait(uint64_t *, uint32_t) {}
static __device__ __forceinline__ void span_store_wait() {}

static __device__ __forceinline__ void lines_store(float *to, const float *from, int count) {
    for (int i = 4 * (int)threadIdx.x; i < count; i += 4 * (int)blockDim.x)
        *(float4 *)(to + i) = *(const float4 *)(from + i);
}

static __device__ __forceinline__ void lines_load(float *to, const float *from, int count, uint64_t *) {
    lines_store(to, from, count);
}
#endif

/* Elements at .. at + count - 1 of a tensor of `total`. Called by the whole block; the data is there after
 * arrival_wait, and a block barrier between the two. */
static __device__ __forceinline__ void span_load(float *slot, const float *tensor, int64_t total, int64_t at, int count,
                                                 uint64_t *bar) {
    if (threadIdx.x >= SPAN_THREADS) return;
    int skew = span_shift(tensor, 0);
    const float *line = tensor - skew;                  /* the tensor's first line: positions below are from here */
    int64_t begin = (skew + at) & ~(int64_t)3;          /* the line that is the slot's first */
    int lo = (int)(skew + at - begin), hi = lo + count; /* the run, from there */
    int first = begin < skew ? 4 : 0;                   /* whole lines of the tensor: first .. last - 1 */
    int last = (int)min((int64_t)((hi + 3) & ~3), ((skew + total) & ~(int64_t)3) - begin);
    lines_load(slot + first, line + begin + first, max(last - first, 0), bar);
    if (first > lo || last < hi)
        for (int i = (int)threadIdx.x; i < hi; i += min((int)blockDim.x, (int)SPAN_THREADS))
            if (i >= lo && (i < first || i >= last)) slot[i] = line[begin + i];
}

/* Called by the whole block, after fence_async in every thread that wrote the slot and a block barrier. */
static __device__ __forceinline__ void span_store(float *tensor, int64_t at, int count, const float *slot) {
    if (threadIdx.x >= SPAN_THREADS) return;
    float *to = tensor + at;
    int shift = span_shift(to, 0), head = min((4 - shift) & 3, count), last = head + ((count - head) & ~3);
    int i = (int)threadIdx.x;
    const float *from = slot + shift;
    lines_store(to + head, from + head, last - head);
    if (i < head) to[i] = from[i];
    if (i < count - last) to[last + i] = from[last + i];
}

#endif
