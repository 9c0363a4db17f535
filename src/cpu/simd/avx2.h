/* AVX2 with FMA: 8 lanes, a mask is a vector of sign bits. See simd.h. Integers are in avx2_int.h. */
#ifndef WEFT_CPU_SIMD_AVX2_H
#define WEFT_CPU_SIMD_AVX2_H

#include <immintrin.h>

#define VF_LANES 8
#define VF_REGS 16
typedef __m256 vf;
typedef __m256i vi;
typedef __m256i vmask;

VF_INLINE vmask vm_range(int64_t lo, int64_t hi) {
    const int l = (int)(lo < 0 ? 0 : lo > 8 ? 8 : lo), h = (int)(hi < 0 ? 0 : hi > 8 ? 8 : hi);
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(l), lane),
                               _mm256_cmpgt_epi32(_mm256_set1_epi32(h), lane));
}
VF_INLINE vmask vm_all(void) { return _mm256_set1_epi32(-1); }
VF_INLINE vmask vm_and(vmask a, vmask b) { return _mm256_and_si256(a, b); }
VF_INLINE vmask vm_or(vmask a, vmask b) { return _mm256_or_si256(a, b); }
VF_INLINE vmask vm_not(vmask m) { return _mm256_xor_si256(m, vm_all()); }
VF_INLINE uint32_t vm_bits(vmask m) { return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m)); }

VF_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
VF_INLINE vf vf_set1(float x) { return _mm256_set1_ps(x); }
VF_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
VF_INLINE vf vf_load_in(vmask m, const float *p) { return _mm256_maskload_ps(p, m); }
VF_INLINE void vf_store_in(vmask m, float *p, vf v) { _mm256_maskstore_ps(p, m, v); }
/* In pieces of 4, 2 and 1: a masked store is many times slower on some CPUs. */
VF_INLINE void vf_store_count(float *p, vf v, int64_t n) {
    if (n >= 8) {
        vf_store(p, v);
        return;
    }
    if (n <= 0) return;
    __m128 rest = _mm256_castps256_ps128(v);
    if (n & 4) {
        _mm_storeu_ps(p, rest);
        rest = _mm256_extractf128_ps(v, 1), p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((void *)p, rest);
        rest = _mm_movehl_ps(rest, rest), p += 2;
    }
    if (n & 1) _mm_store_ss(p, rest);
}
VF_INLINE vf vf_keep(vf v) {
    __asm__("" : "+x"(v));
    return v;
}
VF_INLINE void vf_stream(float *p, vf v) { _mm256_stream_ps(p, v); }
VF_INLINE void vf_stream_end(void) { _mm_sfence(); }

VF_INLINE vf vf_add(vf a, vf b) { return _mm256_add_ps(a, b); }
VF_INLINE vf vf_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
VF_INLINE vf vf_div(vf a, vf b) { return _mm256_div_ps(a, b); }
VF_INLINE vf vf_sqrt(vf v) { return _mm256_sqrt_ps(v); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
VF_INLINE vf vf_fms(vf a, vf b, vf c) { return _mm256_fmsub_ps(a, b, c); }
VF_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm256_fnmadd_ps(a, b, c); }
/* 0 * 0 + c outside m. Compilers share the masked factors of a tile, which a blend of the sums would not allow. */
VF_INLINE vf vf_fma_in(vmask m, vf a, vf b, vf c) {
    const vf f = _mm256_castsi256_ps(m);
    return _mm256_fmadd_ps(_mm256_and_ps(a, f), _mm256_and_ps(b, f), c);
}
VF_INLINE vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
VF_INLINE vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
VF_INLINE vf vf_clip(vf v, vf lo, vf hi) { return vf_min(hi, vf_max(lo, v)); }
VF_INLINE vf vf_floor(vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
VF_INLINE vf vf_nearest(vf v) { return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

VF_INLINE vmask vf_lt(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
VF_INLINE vmask vf_le(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LE_OQ)); }
VF_INLINE vmask vf_eq(vf a, vf b) { return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
VF_INLINE vmask vf_is_nan(vf v) { return _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)); }
VF_INLINE vf vf_select(vmask m, vf a, vf b) { return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m)); }

VF_INLINE float vf_sum(vf v) {
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* ---------------------------------------------------------------- lanes moved */
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
VF_INLINE vf vf_reverse(vf v) { return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }

/* alignr works inside halves: below 4 from a and the middle half a1 b0, above from the middle and b. */
VF_INLINE vf vf_slide(vf a, vf b, const int k) {
    const __m256i x = _mm256_castps_si256(a), y = _mm256_castps_si256(b), mid = _mm256_permute2x128_si256(x, y, 0x21);
    switch (k) {
#define VF_CASE(k)                                                     \
    case k:                                                            \
        return _mm256_castsi256_ps(_mm256_alignr_epi8(mid, x, 4 * k)); \
    case 4 + k:                                                        \
        return _mm256_castsi256_ps(_mm256_alignr_epi8(y, mid, 4 * k));
        VF_CASE(1)
        VF_CASE(2)
        VF_CASE(3)
#undef VF_CASE
    case 4:
        return _mm256_castsi256_ps(mid);
    default:
        return k <= 0 ? a : b;
    }
}

/* Inside blocks of 4x4, then the blocks. */
VF_INLINE void vf_transpose(vf v[8]) {
    vf u[8];
    VF_UNROLL for (int g = 0; g < 8; g += 4) {
        const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(v[g], v[g + 1]));
        const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(v[g], v[g + 1]));
        const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(v[g + 2], v[g + 3]));
        const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(v[g + 2], v[g + 3]));
        u[g] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
        u[g + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
        u[g + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
        u[g + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
    }
    VF_UNROLL for (int j = 0; j < 4; j++) {
        v[j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x20);
        v[4 + j] = _mm256_permute2f128_ps(u[j], u[4 + j], 0x31);
    }
}

#endif
