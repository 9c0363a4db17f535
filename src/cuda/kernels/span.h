/* Runs of floats between device memory and shared memory, whatever their alignment. For device code only.
 * In shared memory a run keeps its position inside 16 bytes: it begins at slot + span_shift(), so that its 16-byte
 * lines are lines there too. A load takes whole lines, up to three floats of the neighbours with it; a line that the
 * tensor only partly owns, its first or last, comes by plain accesses. A store writes the run and nothing else: the
 * whole lines, and plain stores for up to three floats at either end. With BULK lines go by the bulk copy engine
 * (compute capability 9.0 and up), else by float4. */
#ifndef WEFT_CUDA_SPAN_H
#define WEFT_CUDA_SPAN_H

/* Floats from the line's begin to element `at` of a tensor: both matter modulo 4 only. */
static __device__ __forceinline__ int span_shift(const float *tensor, uint32_t at) {
    return (int)((((uint32_t)(uintptr_t)tensor >> 2) + at) & 3);
}

/* The same address, held in a register: the compiler would else compute it again in every branch. */
static __device__ __forceinline__ const float *pin(const float *p) {
    asm("" : "+l"(p));
    return p;
}

static __device__ __forceinline__ const float *shared_pin(const float *p) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm("" : "+r"(at));
    return (const float *)__cvta_shared_to_generic(at);
}

#if BULK
enum { SPAN_THREADS = 32 }; /* the first threads of the block move spans, the others go on */

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

static __device__ __forceinline__ void lines_load(float *to, const float *from, int count, uint64_t *bar) {
    if (threadIdx.x) return;
    uint32_t bytes = (uint32_t)count * 4;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
    if (bytes)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         shared_address(to)),
                     "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(bar))
                     : "memory");
}

static __device__ __forceinline__ void lines_store(float *to, const float *from, int count) {
    if (threadIdx.x) return;
    if (count)
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                     "r"(shared_address(from)), "r"((uint32_t)count * 4)
                     : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* All stores of this block have read their slots. Barrier after it. */
static __device__ __forceinline__ void span_store_wait() {
    if (threadIdx.x == 0) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
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
