/* src/cuda/kernels/ptx.h as plain code: the emulator's compiler puts this file in its place. */
#ifndef WEFT_CUDA_PTX_H
#define WEFT_CUDA_PTX_H

/* ---------------------------------------------------------------- arithmetic */
static inline float ptx_ex2(float x) { return exp2f(x); }
static inline float ptx_rcp(float x) { return 1 / x; }
static inline float ptx_sqrt(float x) { return sqrtf(x); }

/* ---------------------------------------------------------------- conversions */
static inline float ptx_f16_to_f32(uint16_t v) {
    _Float16 f;
    memcpy(&f, &v, sizeof(f));
    return (float)f;
}

static inline uint16_t ptx_f32_to_f16(float v) {
    const _Float16 f = (_Float16)v;
    uint16_t bits;
    memcpy(&bits, &f, sizeof(f));
    return bits;
}

static inline uint16_t ptx_f32_to_bf16(float v) {
    const uint32_t u = __float_as_uint(v);
    return (uint16_t)(v != v ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline uint32_t ptx_f32_to_f16x2(float lo, float hi) {
    return ptx_f32_to_f16(lo) | (uint32_t)ptx_f32_to_f16(hi) << 16;
}
static inline uint32_t ptx_f32_to_bf16x2(float lo, float hi) {
    return ptx_f32_to_bf16(lo) | (uint32_t)ptx_f32_to_bf16(hi) << 16;
}

/* ---------------------------------------------------------------- registers */
static inline const float *ptx_pin(const float *p) { return p; }
static inline const float *ptx_pin_shared(const float *p) { return p; }

/* ---------------------------------------------------------------- matrices of 16-bit data */
static inline void ptx_copy_async(void *to, const void *from, bool there) {
    if (((uintptr_t)to | (uintptr_t)(there ? from : to)) & 15) emulated->fail("a copy that is not aligned to 16 bytes");
    if (there)
        memcpy(to, from, 16);
    else
        memset(to, 0, 16);
}
template <int BYTES> static inline void ptx_copy_part(void *to, const void *from, bool there) {
    if (((uintptr_t)to | (uintptr_t)(there ? from : to)) & (BYTES - 1)) emulated->fail("a copy that is not aligned");
    if (there)
        memcpy(to, from, BYTES);
    else
        memset(to, 0, BYTES);
}
static inline void ptx_copy_some(void *to, const void *from, int bytes) {
    if (((uintptr_t)to | (uintptr_t)(bytes ? from : to)) & 15) emulated->fail("a copy that is not aligned to 16 bytes");
    memset(to, 0, 16);
    memcpy(to, from, (size_t)bytes);
}
static inline void ptx_copy_commit() {}
template <int Left> static inline void ptx_copy_wait() {}

static inline void emulated_matrices(uint32_t (&to)[4], const void *row, bool transposed) {
    const uint64_t *all = emulated->exchange(0xffffffffu, (uint64_t)(uintptr_t)row);
    const int lane = (int)threadIdx.x % 32, r = lane / 4, c = 2 * (lane % 4);
    for (int i = 0; i < 4; i++) {
        uint16_t pair[2];
        for (int j = 0; j < 2; j++) {
            const uint16_t *from = (const uint16_t *)(uintptr_t)all[8 * i + (transposed ? c + j : r)];
            pair[j] = from[transposed ? r : c + j];
        }
        memcpy(&to[i], pair, sizeof(pair));
    }
    emulated->exchange(0xffffffffu, 0); /* nobody writes before all have read */
}
static inline void ptx_load_matrices(uint32_t (&to)[4], const void *row) { emulated_matrices(to, row, false); }
static inline void ptx_load_transposed(uint32_t (&to)[4], const void *row) { emulated_matrices(to, row, true); }

static inline float emulated_bf16(uint16_t v) { return __uint_as_float((uint32_t)v << 16); }
static inline void emulated_multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                     float (*widen)(uint16_t)) {
    uint64_t rows[2][32], columns[32];
    const uint64_t mine[3] = {a[0] | (uint64_t)a[1] << 32, a[2] | (uint64_t)a[3] << 32, b0 | (uint64_t)b1 << 32};
    for (int i = 0; i < 3; i++)
        memcpy(i < 2 ? rows[i] : columns, emulated->exchange(0xffffffffu, mine[i]), sizeof(columns));
    const int lane = (int)threadIdx.x % 32;
    for (int i = 0; i < 4; i++) {
        const int r = lane / 4, high = i / 2, c = 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 16; k++) {
            const uint64_t at = rows[k / 8][4 * r + k % 8 / 2], bt = columns[4 * c + k % 8 / 2];
            const uint16_t x = (uint16_t)(at >> (32 * high + 16 * (k % 2)));
            const uint16_t y = (uint16_t)(bt >> (32 * (k / 8) + 16 * (k % 2)));
            sum[i] += widen(x) * widen(y);
        }
    }
}
static inline void ptx_multiply_bf16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated_multiply(sum, a, b0, b1, emulated_bf16);
}
static inline void ptx_multiply_f16(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    emulated_multiply(sum, a, b0, b1, ptx_f16_to_f32);
}

/* ---------------------------------------------------------------- the bulk copy engine
 * Copies are made at once. A barrier holds the arrivals it waits for in each phase, those that came, and the phase. */
struct emulated_mbarrier {
    uint16_t count, came;
    uint32_t phase;
};
static inline emulated_mbarrier *emulated_bar(uint64_t *bar) { return (emulated_mbarrier *)bar; }

static inline void emulated_aligned(const void *a, const void *b, uint32_t bytes) {
    if (((uintptr_t)a | (uintptr_t)b | bytes) & 15) emulated->fail("a bulk copy that is not aligned to 16 bytes");
}

static inline uint32_t ptx_shared(const void *p) { return (uint32_t)(uintptr_t)p; }
static inline void ptx_mbarrier_init(uint64_t *bar, uint32_t count) {
    *emulated_bar(bar) = emulated_mbarrier{(uint16_t)count, 0, 0};
}
static inline void ptx_mbarrier_arrive(uint64_t *bar) {
    emulated_mbarrier *b = emulated_bar(bar);
    if (++b->came == b->count) b->came = 0, b->phase++;
}
static inline void ptx_mbarrier_expect(uint64_t *bar, uint32_t) { ptx_mbarrier_arrive(bar); }
/* The data of a phase is copied by the thread that expects it, behind the arrival: others must not run in between. They
 * do not: a thread runs alone until it waits. */
static inline void ptx_mbarrier_wait(uint64_t *bar, uint32_t parity) {
    while ((emulated_bar(bar)->phase & 1) == parity) emulated->poll();
}
static inline void ptx_fence_async() {}
static inline void ptx_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *) {
    emulated_aligned(to, from, bytes);
    memcpy(to, from, bytes);
}
static inline void ptx_bulk_store(void *to, const void *from, uint32_t bytes) {
    emulated_aligned(to, from, bytes);
    memcpy(to, from, bytes);
}
static inline void ptx_bulk_commit() {}
template <int Left> static inline void ptx_bulk_wait_read() {}

/* Writes are seen at once; all threads meet where they wait. */
static inline void ptx_cluster_arrive() {}
static inline void ptx_cluster_wait() { emulated->cluster_barrier(); }
static inline double ptx_cluster_load(const double *place, uint32_t rank) {
    return *(const double *)emulated->shared_of(place, rank);
}

#endif
