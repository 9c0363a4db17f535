/* AVX-512: integers, 16-bit floats and bytes. See simd.h and dtype.h. */
#ifndef WEFT_CPU_SIMD_AVX512_INT_H
#define WEFT_CPU_SIMD_AVX512_INT_H

VF_INLINE vi vf_bits(vf v) { return _mm512_castps_si512(v); }
VF_INLINE vf vf_from_bits(vi v) { return _mm512_castsi512_ps(v); }
VF_INLINE vi vi_trunc(vf v) { return _mm512_cvttps_epi32(v); }
VF_INLINE vi vi_nearest(vf v) { return _mm512_cvtps_epi32(v); }
VF_INLINE vf vf_from(vi v) { return _mm512_cvtepi32_ps(v); }

VF_INLINE vi vi_set1(int32_t x) { return _mm512_set1_epi32(x); }
VF_INLINE vi vi_iota(void) { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
VF_INLINE vi vi_load(const int32_t *p) { return _mm512_loadu_si512(p); }
VF_INLINE void vi_store(int32_t *p, vi v) { _mm512_storeu_si512(p, v); }
VF_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
VF_INLINE vi vi_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
VF_INLINE vi vi_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
VF_INLINE vi vi_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
VF_INLINE vi vi_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
VF_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
VF_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
VF_INLINE vi vi_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
VF_INLINE vi vi_shl(vi v, const int n) { return _mm512_slli_epi32(v, (unsigned)n); }
VF_INLINE vi vi_shr(vi v, const int n) { return _mm512_srli_epi32(v, (unsigned)n); }
VF_INLINE vi vi_sar(vi v, const int n) { return _mm512_srai_epi32(v, (unsigned)n); }
VF_INLINE vmask vi_lt(vi a, vi b) { return _mm512_cmplt_epi32_mask(a, b); }
VF_INLINE vmask vi_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }
VF_INLINE vf vf_gather_in(vmask m, const float *p, vi i) {
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), m, i, p, 4);
}

VF_INLINE vi vi_load_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }
VF_INLINE void vi_store_u8(uint8_t *p, vi v) { _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(v)); }
VF_INLINE vi vi_load_u8_count(const uint8_t *p, int64_t n) {
    return _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(vm_range(0, n), p));
}
VF_INLINE void vi_store_u8_count(uint8_t *p, vi v, int64_t n) {
    _mm_mask_storeu_epi8(p, vm_range(0, n), _mm512_cvtepi32_epi8(v));
}

/* VF_LANES values of 16 bits. */
typedef __m256i vh;
VF_INLINE vh vh_load(const uint16_t *p) { return _mm256_loadu_si256((const void *)p); }
VF_INLINE void vh_store(uint16_t *p, vh v) { _mm256_storeu_si256((void *)p, v); }
VF_INLINE vh vh_load_in(vmask m, const uint16_t *p) { return _mm256_maskz_loadu_epi16(m, p); }
VF_INLINE void vh_store_in(vmask m, uint16_t *p, vh v) { _mm256_mask_storeu_epi16(p, m, v); }
VF_INLINE vh vh_load_count(const uint16_t *p, int64_t n) { return vh_load_in(vm_range(0, n), p); }
VF_INLINE void vh_store_count(uint16_t *p, vh v, int64_t n) { vh_store_in(vm_range(0, n), p, v); }
VF_INLINE void vh_stream(uint16_t *p, vh v) { _mm256_stream_si256((void *)p, v); }
VF_INLINE vi vi_from_u16(vh v) { return _mm512_cvtepu16_epi32(v); }
VF_INLINE vh vi_to_u16(vi v) { return _mm512_cvtepi32_epi16(v); }
VF_INLINE vf vf_from_f16(vh v) { return _mm512_cvtph_ps(v); }
VF_INLINE vh vf_to_f16(vf v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

#endif
