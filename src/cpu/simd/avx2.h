/* AVX2 with FMA: 8 lanes, a mask is a vector of sign bits. See simd.h. */
#ifndef WEFT_CPU_SIMD_AVX2_H
#define WEFT_CPU_SIMD_AVX2_H

#include <immintrin.h>

#define VF_LANES 8
#define VF_REGS 16
typedef __m256 vf;
typedef __m256i vmask;

VF_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
VF_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
VF_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
VF_INLINE vf vf_load_in(vmask m, const float *p) { return _mm256_maskload_ps(p, m); }
VF_INLINE void vf_store_in(vmask m, float *p, vf v) { _mm256_maskstore_ps(p, m, v); }
VF_INLINE vf vf_keep(vf v) {
    __asm__("" : "+x"(v));
    return v;
}
VF_INLINE void vf_stream(float *p, vf v) { _mm256_stream_ps(p, v); }
VF_INLINE void vf_stream_end(void) { _mm_sfence(); }

VF_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
/* 0 * 0 + c outside m. Compilers share the masked factors of a tile, which a blend of the sums would not allow. */
VF_INLINE vf vf_fma_in(vmask m, vf a, vf b, vf c) {
    const vf f = _mm256_castsi256_ps(m);
    return _mm256_fmadd_ps(_mm256_and_ps(a, f), _mm256_and_ps(b, f), c);
}
/* max and min return their second operand when either is NaN. */
VF_INLINE vf vf_clip(vf v, vf lo, vf hi) { return _mm256_min_ps(hi, _mm256_max_ps(lo, v)); }

VF_INLINE float vf_sum(vf v) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* shuffle works inside halves and leaves the quarters in the order a0 b0 a1 b1: the second permutation sorts them. */
VF_INLINE vf vf_quarters(vf v) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(v), 0xd8)); }
VF_INLINE vf vf_even(vf a, vf b) { return vf_quarters(_mm256_shuffle_ps(a, b, 0x88)); }
VF_INLINE vf vf_odd(vf a, vf b) { return vf_quarters(_mm256_shuffle_ps(a, b, 0xdd)); }
VF_INLINE vf vf_zip_lo(vf a, vf b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
VF_INLINE vf vf_zip_hi(vf a, vf b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}

VF_INLINE vmask vm_range(int64_t lo, int64_t hi) {
    const int l = (int)(lo < 0 ? 0 : lo > 8 ? 8 : lo), h = (int)(hi < 0 ? 0 : hi > 8 ? 8 : hi);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(l), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(h), lane));
}
VF_INLINE vmask vm_and(vmask a, vmask b) { return _mm256_and_si256(a, b); }
VF_INLINE vmask vm_all(void) { return _mm256_set1_epi32(-1); }

#endif
