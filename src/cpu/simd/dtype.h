/* Elements of 16 bits, and of a data type that is a constant of the build: one kernel source serves f32, f16 and bf16.
 * Registers hold f32; a store rounds to nearest, ties to even, as src/ref/item.h does. NaN stays NaN.
 *
 *   vf_load_f16(p), vf_store_f16(p, v), and _bf16     VF_LANES values; with _in(m, ...) and _count(..., n) as in
 *   simd.h.
 *                                                     _in is slow on AVX2 unless all lanes are in: prefer _count
 *   vf_stream_f16(p, v), _bf16                        past the caches, p a multiple of 2 * VF_LANES bytes
 *   vf_from_bf16(h), vf_to_bf16(v), and _f16          in registers; vh: VF_LANES values of 16 bits
 *   vf_dot_bf16(sum, a, b)                            sum + a0 * b0 + a1 * b1, where each lane of a and b is a pair of
 *                                                     bf16 (vi_load). Products are exact. Where the build has
 *                                                     AVX512-BF16, subnormal numbers count as 0 in it
 *
 * The type as an argument, always a constant: WEFT_DTYPE_F32, F16 or BF16. index counts elements of the type from p.
 *   vf_load_as(dtype, p, index)           vf_load_in_as(dtype, m, p, index)      vf_load_count_as(dtype, p, index, n)
 *   vf_store_as(dtype, p, index, v)       vf_store_in_as(dtype, m, p, index, v)  vf_store_count_as(dtype, p, index,
 *   v, n) vf_stream_as(dtype, p, index, v)      vf_broadcast_as(dtype, p, index): one element in all lanes
 *   vf_size_of(dtype)                     bytes of an element
 *
 *   VF_INLINE void rows(const job *q, int64_t slot, const int dtype) { ... vf_load_as(dtype, q->src, i) ... }
 *   static void rows_bf16(void *q, int64_t slot) { rows(q, slot, WEFT_DTYPE_BF16); } */
#ifndef WEFT_CPU_SIMD_DTYPE_H
#define WEFT_CPU_SIMD_DTYPE_H

#include "weft.h"

/* ---------------------------------------------------------------- bf16 is the upper half of f32 */
VF_INLINE vf vf_from_bf16(vh h) { return vf_from_bits(vi_shl(vi_from_u16(h), 16)); }
VF_INLINE vh vf_to_bf16(vf v) {
    const vi bits = vf_bits(v), last = vi_and(vi_shr(bits, 16), vi_set1(1));
    const vi rounded = vi_add(vi_add(bits, vi_set1(0x7fff)), last), quiet = vi_or(bits, vi_set1(0x400000));
    return vi_to_u16(vi_shr(vi_select(vf_is_nan(v), quiet, rounded), 16));
}

VF_INLINE vf vf_dot_bf16(vf sum, vi a, vi b) {
#if defined(__AVX512BF16__)
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    const vi high = vi_set1((int32_t)0xffff0000u);
    sum = vf_fma(vf_from_bits(vi_and(a, high)), vf_from_bits(vi_and(b, high)), sum);
    return vf_fma(vf_from_bits(vi_shl(a, 16)), vf_from_bits(vi_shl(b, 16)), sum);
#endif
}

/* ---------------------------------------------------------------- f16 and bf16 in memory */
#define VF_HALF(type)                                                                                                 \
    VF_INLINE vf vf_load_##type(const uint16_t *p) { return vf_from_##type(vh_load(p)); }                             \
    VF_INLINE vf vf_load_##type##_in(vmask m, const uint16_t *p) { return vf_from_##type(vh_load_in(m, p)); }         \
    VF_INLINE vf vf_load_##type##_count(const uint16_t *p, int64_t n) { return vf_from_##type(vh_load_count(p, n)); } \
    VF_INLINE void vf_store_##type(uint16_t *p, vf v) { vh_store(p, vf_to_##type(v)); }                               \
    VF_INLINE void vf_store_##type##_in(vmask m, uint16_t *p, vf v) { vh_store_in(m, p, vf_to_##type(v)); }           \
    VF_INLINE void vf_store_##type##_count(uint16_t *p, vf v, int64_t n) { vh_store_count(p, vf_to_##type(v), n); }   \
    VF_INLINE void vf_stream_##type(uint16_t *p, vf v) { vh_stream(p, vf_to_##type(v)); }
VF_HALF(f16)
VF_HALF(bf16)
#undef VF_HALF

/* ---------------------------------------------------------------- the type as an argument */
/* The case of each type, with p as f32 or as h; any other type has no case. */
#define VF_BY_DTYPE(f32, f16, bf16) \
    switch (dtype) {                \
    case WEFT_DTYPE_F32:            \
        f32;                        \
    case WEFT_DTYPE_F16:            \
        f16;                        \
    case WEFT_DTYPE_BF16:           \
        bf16;                       \
    default:                        \
        __builtin_trap();           \
    }

VF_INLINE int64_t vf_size_of(const int dtype){VF_BY_DTYPE(return 4, return 2, return 2)}

VF_INLINE vf vf_load_as(const int dtype, const void *p, int64_t index) {
    const float *f = (const float *)p + index;
    const uint16_t *h = (const uint16_t *)p + index;
    VF_BY_DTYPE(return vf_load(f), return vf_load_f16(h), return vf_load_bf16(h))
}
VF_INLINE vf vf_load_in_as(const int dtype, vmask m, const void *p, int64_t index) {
    const float *f = (const float *)p + index;
    const uint16_t *h = (const uint16_t *)p + index;
    VF_BY_DTYPE(return vf_load_in(m, f), return vf_load_f16_in(m, h), return vf_load_bf16_in(m, h))
}
VF_INLINE vf vf_load_count_as(const int dtype, const void *p, int64_t index, int64_t n) {
    const float *f = (const float *)p + index;
    const uint16_t *h = (const uint16_t *)p + index;
    VF_BY_DTYPE(return vf_load_count(f, n), return vf_load_f16_count(h, n), return vf_load_bf16_count(h, n))
}
VF_INLINE vf vf_broadcast_as(const int dtype, const void *p, int64_t index) {
    const uint16_t *h = (const uint16_t *)p + index;
    VF_BY_DTYPE(return vf_broadcast((const float *)p + index), return vf_from_f16(vi_to_u16(vi_set1(*h))),
                       return vf_from_bits(vi_set1((int32_t)((uint32_t)*h << 16))))
}
VF_INLINE void vf_store_as(const int dtype, void *p, int64_t index, vf v) {
    float *f = (float *)p + index;
    uint16_t *h = (uint16_t *)p + index;
    VF_BY_DTYPE(vf_store(f, v); return, vf_store_f16(h, v); return, vf_store_bf16(h, v); return)
}
VF_INLINE void vf_store_in_as(const int dtype, vmask m, void *p, int64_t index, vf v) {
    float *f = (float *)p + index;
    uint16_t *h = (uint16_t *)p + index;
    VF_BY_DTYPE(vf_store_in(m, f, v); return, vf_store_f16_in(m, h, v); return, vf_store_bf16_in(m, h, v); return)
}
VF_INLINE void vf_store_count_as(const int dtype, void *p, int64_t index, vf v, int64_t n) {
    float *f = (float *)p + index;
    uint16_t *h = (uint16_t *)p + index;
    VF_BY_DTYPE(vf_store_count(f, v, n); return, vf_store_f16_count(h, v, n); return, vf_store_bf16_count(h, v, n);
                return)
}
VF_INLINE void vf_stream_as(const int dtype, void *p, int64_t index, vf v) {
    float *f = (float *)p + index;
    uint16_t *h = (uint16_t *)p + index;
    VF_BY_DTYPE(vf_stream(f, v); return, vf_stream_f16(h, v); return, vf_stream_bf16(h, v); return)
}

#endif
