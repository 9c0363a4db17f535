/* AVX-512 (F, VL, BW, DQ): 16 lanes, masks in their own registers. See simd.h. Integers are in avx512_int.h. */
#ifndef WEFT_CPU_SIMD_AVX512_H
#define WEFT_CPU_SIMD_AVX512_H

#include <immintrin.h>

#define VF_LANES 16
#define VF_REGS 32
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vmask;

VF_INLINE vmask vm_range(int64_t lo, int64_t hi) {
    const uint32_t l = (uint32_t)(lo < 0 ? 0 : lo > 16 ? 16 : lo), h = (uint32_t)(hi < 0 ? 0 : hi > 16 ? 16 : hi);
    return (vmask)(((1u << h) - 1u) & ~((1u << l) - 1u));
}
VF_INLINE vmask vm_all(void) { return (vmask)0xffff; }
VF_INLINE vmask vm_and(vmask a, vmask b) { return (vmask)(a & b); }
VF_INLINE vmask vm_or(vmask a, vmask b) { return (vmask)(a | b); }
VF_INLINE vmask vm_not(vmask m) { return (vmask)~m; }
VF_INLINE uint32_t vm_bits(vmask m) { return m; }

VF_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
VF_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
VF_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
VF_INLINE vf vf_load_in(vmask m, const float *p) { return _mm512_maskz_loadu_ps(m, p); }
VF_INLINE void vf_store_in(vmask m, float *p, vf v) { _mm512_mask_storeu_ps(p, m, v); }
VF_INLINE void vf_store_count(float *p, vf v, int64_t n) { vf_store_in(vm_range(0, n), p, v); }
VF_INLINE vf vf_keep(vf v) {
    __asm__("" : "+v"(v));
    return v;
}
VF_INLINE void vf_stream(float *p, vf v) { _mm512_stream_ps(p, v); }
VF_INLINE void vf_stream_end(void) { _mm_sfence(); }

VF_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VF_INLINE vf vf_sqrt(vf v) { return _mm512_sqrt_ps(v); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_INLINE vf vf_fms(vf a, vf b, vf c) { return _mm512_fmsub_ps(a, b, c); }
VF_INLINE vf vf_fnma(vf a, vf b, vf c) { return _mm512_fnmadd_ps(a, b, c); }
VF_INLINE vf vf_fma_in(vmask m, vf a, vf b, vf c) { return _mm512_mask3_fmadd_ps(a, b, c, m); }
VF_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
VF_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
VF_INLINE vf vf_clip(vf v, vf lo, vf hi) { return vf_min(hi, vf_max(lo, v)); }
VF_INLINE vf vf_floor(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
VF_INLINE vf vf_nearest(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
VF_INLINE vf vf_scale(vf v, vf n) { return _mm512_scalef_ps(v, n); }

VF_INLINE vmask vf_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
VF_INLINE vmask vf_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
VF_INLINE vmask vf_eq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
VF_INLINE vmask vf_is_nan(vf v) { return _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q); }
VF_INLINE vf vf_select(vmask m, vf a, vf b) { return _mm512_mask_blend_ps(m, b, a); }

VF_INLINE float vf_sum(vf v) {
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* ---------------------------------------------------------------- lanes moved */
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
VF_INLINE vf vf_reverse(vf v) {
    return _mm512_permutexvar_ps(_mm512_setr_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), v);
}

/* The instruction takes k as part of its code. */
VF_INLINE vf vf_slide(vf a, vf b, const int k) {
    const __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    switch (k) {
#define VF_CASE(k) \
    case k:        \
        return _mm512_castsi512_ps(_mm512_alignr_epi32(y, x, k));
        VF_CASE(1)
        VF_CASE(2)
        VF_CASE(3)
        VF_CASE(4)
        VF_CASE(5)
        VF_CASE(6)
        VF_CASE(7)
        VF_CASE(8)
        VF_CASE(9)
        VF_CASE(10)
        VF_CASE(11)
        VF_CASE(12)
        VF_CASE(13)
        VF_CASE(14)
        VF_CASE(15)
#undef VF_CASE
    default:
        return k <= 0 ? a : b;
    }
}

/* Inside blocks of 4x4, then the blocks: u[4 g + j] holds in its quarter q column 4 q + j of the rows 4 g .. 4 g +
 * 3. */
VF_INLINE void vf_transpose(vf v[16]) {
    vf u[16];
    VF_UNROLL for (int g = 0; g < 16; g += 4) {
        const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(v[g], v[g + 1]));
        const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(v[g], v[g + 1]));
        const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(v[g + 2], v[g + 3]));
        const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(v[g + 2], v[g + 3]));
        u[g] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        u[g + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        u[g + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        u[g + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    VF_UNROLL for (int j = 0; j < 4; j++) {
        const vf a = _mm512_shuffle_f32x4(u[j], u[4 + j], 0x88), b = _mm512_shuffle_f32x4(u[j], u[4 + j], 0xdd);
        const vf c = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0x88),
                 d = _mm512_shuffle_f32x4(u[8 + j], u[12 + j], 0xdd);
        v[j] = _mm512_shuffle_f32x4(a, c, 0x88);
        v[4 + j] = _mm512_shuffle_f32x4(b, d, 0x88);
        v[8 + j] = _mm512_shuffle_f32x4(a, c, 0xdd);
        v[12 + j] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

#endif
