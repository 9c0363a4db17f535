/* AVX-512 (F, VL, BW, DQ): 16 lanes, masks in their own registers. See simd.h. */
#ifndef WEFT_CPU_SIMD_AVX512_H
#define WEFT_CPU_SIMD_AVX512_H

#include <immintrin.h>

#define VF_LANES 16
#define VF_REGS 32
typedef __m512 vf;
typedef __mmask16 vmask;

VF_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
VF_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
VF_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
VF_INLINE vf vf_load_in(vmask m, const float *p) { return _mm512_maskz_loadu_ps(m, p); }
VF_INLINE void vf_store_in(vmask m, float *p, vf v) { _mm512_mask_storeu_ps(p, m, v); }
VF_INLINE vf vf_keep(vf v) {
    __asm__("" : "+v"(v));
    return v;
}
VF_INLINE void vf_stream(float *p, vf v) { _mm512_stream_ps(p, v); }
VF_INLINE void vf_stream_end(void) { _mm_sfence(); }

VF_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_INLINE vf vf_fma_in(vmask m, vf a, vf b, vf c) { return _mm512_mask3_fmadd_ps(a, b, c, m); }
/* max and min return their second operand when either is NaN. */
VF_INLINE vf vf_clip(vf v, vf lo, vf hi) { return _mm512_min_ps(hi, _mm512_max_ps(lo, v)); }

VF_INLINE float vf_sum(vf v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

VF_INLINE vf vf_even(vf a, vf b) {
    const __m512i at = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_permutex2var_ps(a, at, b);
}
VF_INLINE vf vf_odd(vf a, vf b) {
    const __m512i at = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_permutex2var_ps(a, at, b);
}
VF_INLINE vf vf_zip_lo(vf a, vf b) {
    const __m512i at = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, at, b);
}
VF_INLINE vf vf_zip_hi(vf a, vf b) {
    const __m512i at = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, at, b);
}

VF_INLINE vmask vm_range(int64_t lo, int64_t hi) {
    const uint32_t l = (uint32_t)(lo < 0 ? 0 : lo > 16 ? 16 : lo), h = (uint32_t)(hi < 0 ? 0 : hi > 16 ? 16 : hi);
    return (vmask)(((1u << h) - 1u) & ~((1u << l) - 1u));
}
VF_INLINE vmask vm_and(vmask a, vmask b) { return (vmask)(a & b); }
VF_INLINE vmask vm_all(void) { return (vmask)0xffff; }

#endif
