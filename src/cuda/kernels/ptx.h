/* Every instruction that CUDA C has no name for: inline PTX stands here and nowhere else, one function each, so that
 * tests/emulator can put plain code in its place. For device code only. */
#ifndef WEFT_CUDA_PTX_H
#define WEFT_CUDA_PTX_H

/* ---------------------------------------------------------------- arithmetic */
/* 2^x with an error of 2 units in the last place; what is subnormal is 0. */
static __device__ __forceinline__ float ptx_ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* 1 / x with an error of 1 unit in the last place; what is subnormal is 0. */
static __device__ __forceinline__ float ptx_rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The root with an error of 1 unit in the last place; what is subnormal is 0. */
static __device__ __forceinline__ float ptx_sqrt(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* ---------------------------------------------------------------- conversions, to nearest, ties to even */
static __device__ __forceinline__ float ptx_f16_to_f32(uint16_t v) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
    return f;
}

static __device__ __forceinline__ uint16_t ptx_f32_to_f16(float v) {
    uint16_t r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
}

static __device__ __forceinline__ uint16_t ptx_f32_to_bf16(float v) {
#if __CUDA_ARCH__ >= 800
    uint16_t r;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(v));
    return r;
#else
    uint32_t u = __float_as_uint(v);
    return (uint16_t)(v != v ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
#endif
}

/* Two at once: lo in the lower half. */
static __device__ __forceinline__ uint32_t ptx_f32_to_f16x2(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#else
    return ptx_f32_to_f16(lo) | (uint32_t)ptx_f32_to_f16(hi) << 16;
#endif
}

static __device__ __forceinline__ uint32_t ptx_f32_to_bf16x2(float lo, float hi) {
#if __CUDA_ARCH__ >= 800
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
#else
    return ptx_f32_to_bf16(lo) | (uint32_t)ptx_f32_to_bf16(hi) << 16;
#endif
}

/* ---------------------------------------------------------------- registers */
/* The same address, held in a register: the compiler would else compute it again in every branch. */
static __device__ __forceinline__ const float *ptx_pin(const float *p) {
    asm("" : "+l"(p));
    return p;
}

static __device__ __forceinline__ const float *ptx_pin_shared(const float *p) {
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm("" : "+r"(at));
    return (const float *)__cvta_shared_to_generic(at);
}

/* ---------------------------------------------------------------- copies to shared memory: compute capability 8.0 */
#if __CUDA_ARCH__ >= 800
/* BYTES, 4, 8 or 16, zeros where `there` is false; part of the group that the next commit ends. */
template <int BYTES> static __device__ __forceinline__ void ptx_copy_part(void *to, const void *from, bool there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "n"(BYTES), "r"(there ? BYTES : 0)
                 : "memory");
}

/* 16 bytes to shared memory, zeros where `there` is false; part of the group that the next commit ends. */
static __device__ __forceinline__ void ptx_copy_async(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
}

/* The first `bytes` of 16, and zeros. */
static __device__ __forceinline__ void ptx_copy_some(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void ptx_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Until at most `Left` of this thread's groups are under way. */
template <int Left> static __device__ __forceinline__ void ptx_copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
}

/* ---------------------------------------------------------------- matrices of 16-bit data: compute capability 8.0 */
/* Four 8 x 8 matrices: lanes 8 i .. 8 i + 7 give the rows of matrix i; of each, a lane gets row lane / 4, columns
 * 2 (lane % 4) and the next, or of the transposed. */
static __device__ __forceinline__ void ptx_load_matrices(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

static __device__ __forceinline__ void ptx_load_transposed(uint32_t (&to)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

/* sum (16 x 8) += a (16 x 16) b (16 x 8), of bf16 or f16. */
static __device__ __forceinline__ void ptx_multiply_bf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                                         uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void ptx_multiply_f16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                                        uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#else
/* At once. */
template <int BYTES> static __device__ __forceinline__ void ptx_copy_part(void *to, const void *from, bool there) {
    for (int i = 0; i < BYTES / 4; i++) ((uint32_t *)to)[i] = there ? ((const uint32_t *)from)[i] : 0;
}
static __device__ __forceinline__ void ptx_copy_some(void *to, const void *from, int bytes) {
    for (int i = 0; i < 8; i++) ((uint16_t *)to)[i] = 2 * i < bytes ? ((const uint16_t *)from)[i] : 0;
}
static __device__ __forceinline__ void ptx_copy_commit() {}
template <int Left> static __device__ __forceinline__ void ptx_copy_wait() {}
#endif

/* ---------------------------------------------------------------- the bulk copy engine: compute capability 9.0 */
#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ uint32_t ptx_shared(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* A barrier that `count` arrivals and the bytes they expect complete. One thread; the block's barrier after it. */
static __device__ __forceinline__ void ptx_mbarrier_init(uint64_t *bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(ptx_shared(bar)), "r"(count) : "memory");
}

static __device__ __forceinline__ void ptx_mbarrier_expect(uint64_t *bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(ptx_shared(bar)), "r"(bytes)
                 : "memory");
}

/* Until the phase of that parity is complete. */
static __device__ __forceinline__ void ptx_mbarrier_wait(uint64_t *bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile(
            "{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(ptx_shared(bar)), "r"(parity)
            : "memory");
}

/* Ordinary shared-memory accesses of this thread before those the copy engine makes after the next barrier. */
static __device__ __forceinline__ void ptx_fence_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* To shared memory, 16-byte aligned and a multiple of 16 bytes; completes bytes of the barrier. */
static __device__ __forceinline__ void ptx_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(ptx_shared(to)),
        "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(ptx_shared(bar))
        : "memory");
}

/* From shared memory; part of the group that the next commit ends. */
static __device__ __forceinline__ void ptx_bulk_store(void *to, const void *from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(ptx_shared(from)), "r"(bytes)
                 : "memory");
}

static __device__ __forceinline__ void ptx_bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until at most `Left` of this thread's groups of stores have still to read their shared memory. */
template <int Left> static __device__ __forceinline__ void ptx_bulk_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}

/* ---------------------------------------------------------------- clusters */
/* This thread's writes to shared memory are seen by all threads of the cluster that wait; every thread calls both. */
static __device__ __forceinline__ void ptx_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
static __device__ __forceinline__ void ptx_cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* The same place in the shared memory of block `rank` of the cluster. */
static __device__ __forceinline__ double ptx_cluster_load(const double *place, uint32_t rank) {
    double v;
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(ptx_shared(place)), "r"(rank));
    asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(v) : "r"(at) : "memory");
    return v;
}
#else
static __device__ __forceinline__ void ptx_cluster_arrive() {}
static __device__ __forceinline__ void ptx_cluster_wait() {}
static __device__ __forceinline__ double ptx_cluster_load(const double *place, uint32_t) { return *place; }
#endif

#endif
