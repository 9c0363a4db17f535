/* Runs of floats between device memory and shared memory, whatever their alignment. For device code only.
 * A run of any length and position is a head and a tail of up to three floats, moved by plain accesses, and a middle
 * that begins and ends on 16 bytes. In shared memory a run keeps its position inside 16 bytes: it begins at slot +
 * span.shift, so the middle is aligned there too. With BULK the middle goes by the bulk copy engine (compute capability
 * 9.0 and up), else by float4. Nothing outside the run is read or written. */
#ifndef WEFT_CUDA_SPAN_H
#define WEFT_CUDA_SPAN_H

struct span { int shift, head, middle, tail; };   /* in floats; middle is a multiple of 4 */

static __device__ __forceinline__ span span_of(const float *at, int count) {
    span s;
    s.shift = (int)(((uintptr_t)at >> 2) & 3);
    s.head = min((4 - s.shift) & 3, count);
    s.middle = (count - s.head) & ~3;
    s.tail = count - s.head - s.middle;
    return s;
}

/* The ends, by the first threads of the block. */
static __device__ __forceinline__ void span_ends(const span &s, float *to, const float *from) {
    int i = (int)threadIdx.x, last = s.head + s.middle;
    if (i < s.head) to[i] = from[i];
    if (i < s.tail) to[last + i] = from[last + i];
}

#if BULK
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ void arrival_init(uint64_t *bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
}

/* Ordinary shared-memory accesses of this thread before those the copy engine makes after the next barrier. */
static __device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

static __device__ __forceinline__ void arrival_wait(uint64_t *bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(shared_address(bar)), "r"(parity)
            : "memory");
}

/* Called by the whole block. Data is there after arrival_wait and a block barrier (the ends). */
static __device__ __forceinline__ void span_load(float *slot, const float *from, int count, uint64_t *bar) {
    span s = span_of(from, count);
    if (threadIdx.x == 0) {
        uint32_t bytes = (uint32_t)s.middle * 4;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                     : "memory");
        if (bytes)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
                         "r"(shared_address(slot + s.shift + s.head)), "l"(__cvta_generic_to_global(from + s.head)),
                         "r"(bytes), "r"(shared_address(bar)) : "memory");
    }
    span_ends(s, slot + s.shift, from);
}

/* Called by the whole block, after fence_async in every thread that wrote the slot and a block barrier. */
static __device__ __forceinline__ void span_store(float *to, const float *slot, int count) {
    span s = span_of(to, count);
    if (threadIdx.x == 0) {
        if (s.middle)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             __cvta_generic_to_global(to + s.head)),
                         "r"(shared_address(slot + s.shift + s.head)), "r"((uint32_t)s.middle * 4)
                         : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    span_ends(s, to, slot + s.shift);
}

/* All stores of this block but the last PENDING have read their slot. Barrier after it. */
template <int PENDING> static __device__ __forceinline__ void span_store_wait() {
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

#else
static __device__ __forceinline__ void arrival_init(uint64_t *) {}
static __device__ __forceinline__ void fence_async() {}
static __device__ __forceinline__ void arrival_wait(uint64_t *, uint32_t) {}
template <int PENDING> static __device__ __forceinline__ void span_store_wait() {}

static __device__ __forceinline__ void span_copy(const span &s, float *to, const float *from) {
    for (int i = s.head + 4 * (int)threadIdx.x; i < s.head + s.middle; i += 4 * (int)blockDim.x)
        *(float4 *)(to + i) = *(const float4 *)(from + i);
    span_ends(s, to, from);
}

static __device__ __forceinline__ void span_load(float *slot, const float *from, int count, uint64_t *) {
    span s = span_of(from, count);
    span_copy(s, slot + s.shift, from);
}

static __device__ __forceinline__ void span_store(float *to, const float *slot, int count) {
    span s = span_of(to, count);
    span_copy(s, to, slot + s.shift);
}
#endif

#endif
