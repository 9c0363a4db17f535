/* AVX2: integers, 16-bit floats and bytes. See simd.h and dtype.h. There are no masked loads and stores of 8 or 16
 * bits: by count they are done in pieces of 4, 2 and 1 values, by mask value after value. */
#ifndef WEFT_CPU_SIMD_AVX2_INT_H
#define WEFT_CPU_SIMD_AVX2_INT_H

VF_INLINE vi vf_bits(vf v) { return _mm256_castps_si256(v); }
VF_INLINE vf vf_from_bits(vi v) { return _mm256_castsi256_ps(v); }
VF_INLINE vi vi_trunc(vf v) { return _mm256_cvttps_epi32(v); }
VF_INLINE vi vi_nearest(vf v) { return _mm256_cvtps_epi32(v); }
VF_INLINE vf vf_from(vi v) { return _mm256_cvtepi32_ps(v); }

VF_INLINE vi vi_set1(int32_t x) { return _mm256_set1_epi32(x); }
VF_INLINE vi vi_iota(void) { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
VF_INLINE vi vi_load(const int32_t *p) { return _mm256_loadu_si256((const void *)p); }
VF_INLINE void vi_store(int32_t *p, vi v) { _mm256_storeu_si256((void *)p, v); }
VF_INLINE vi vi_add(vi a, vi b) { return _mm256_add_epi32(a, b); }
VF_INLINE vi vi_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
VF_INLINE vi vi_mul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
VF_INLINE vi vi_min(vi a, vi b) { return _mm256_min_epi32(a, b); }
VF_INLINE vi vi_max(vi a, vi b) { return _mm256_max_epi32(a, b); }
VF_INLINE vi vi_and(vi a, vi b) { return _mm256_and_si256(a, b); }
VF_INLINE vi vi_or(vi a, vi b) { return _mm256_or_si256(a, b); }
VF_INLINE vi vi_xor(vi a, vi b) { return _mm256_xor_si256(a, b); }
VF_INLINE vi vi_shl(vi v, const int n) { return _mm256_slli_epi32(v, n); }
VF_INLINE vi vi_shr(vi v, const int n) { return _mm256_srli_epi32(v, n); }
VF_INLINE vi vi_sar(vi v, const int n) { return _mm256_srai_epi32(v, n); }
VF_INLINE vmask vi_lt(vi a, vi b) { return _mm256_cmpgt_epi32(b, a); }
VF_INLINE vmask vi_eq(vi a, vi b) { return _mm256_cmpeq_epi32(a, b); }
VF_INLINE vf vf_gather_in(vmask m, const float *p, vi i) {
    return _mm256_mask_i32gather_ps(_mm256_setzero_ps(), p, i, _mm256_castsi256_ps(m), 4);
}

/* v * 2^n in two exact steps but for the last: a half of n each, so that neither factor leaves the range. */
VF_INLINE vf vf_scale(vf v, vf n) {
    const vi bias = vi_set1(127), whole = vi_nearest(n), half = vi_sar(whole, 1), rest = vi_sub(whole, half);
    v = vf_mul(v, vf_from_bits(vi_shl(vi_add(half, bias), 23)));
    return vf_mul(v, vf_from_bits(vi_shl(vi_add(rest, bias), 23)));
}

/* VF_LANES values of 16 bits. */
typedef __m128i vh;
VF_INLINE vh vh_load(const uint16_t *p) { return _mm_loadu_si128((const void *)p); }
VF_INLINE void vh_store(uint16_t *p, vh v) { _mm_storeu_si128((void *)p, v); }
VF_INLINE vh vh_load_in(vmask m, const uint16_t *p) {
    const uint32_t bits = vm_bits(m);
    uint16_t lane[8] = {0};
    if (bits == 0xff) return vh_load(p);
    for (int i = 0; i < 8; i++)
        if (bits >> i & 1) lane[i] = p[i];
    return vh_load(lane);
}
VF_INLINE void vh_store_in(vmask m, uint16_t *p, vh v) {
    const uint32_t bits = vm_bits(m);
    uint16_t lane[8];
    vh_store(bits == 0xff ? p : lane, v);
    if (bits == 0xff) return;
    for (int i = 0; i < 8; i++)
        if (bits >> i & 1) p[i] = lane[i];
}
VF_INLINE vh vh_load_count(const uint16_t *p, int64_t n) {
    if (n >= 8) return vh_load(p);
    if (n <= 0) return _mm_setzero_si128();
    uint64_t rest = 0, four;
    uint32_t two;
    if (n & 1) rest = p[n - 1];
    if (n & 2) memcpy(&two, p + (n & 4), sizeof two), rest = rest << 32 | two;
    if (!(n & 4)) return _mm_cvtsi64_si128((long long)rest);
    memcpy(&four, p, sizeof four);
    return _mm_set_epi64x((long long)rest, (long long)four);
}
VF_INLINE void vh_store_count(uint16_t *p, vh v, int64_t n) {
    if (n >= 8) {
        vh_store(p, v);
        return;
    }
    if (n <= 0) return;
    uint64_t rest = (uint64_t)_mm_cvtsi128_si64(v);
    if (n & 4) {
        memcpy(p, &rest, 8);
        rest = (uint64_t)_mm_extract_epi64(v, 1), p += 4;
    }
    if (n & 2) {
        memcpy(p, &rest, 4);
        rest >>= 32, p += 2;
    }
    if (n & 1) *p = (uint16_t)rest;
}
VF_INLINE void vh_stream(uint16_t *p, vh v) { _mm_stream_si128((void *)p, v); }
VF_INLINE vi vi_from_u16(vh v) { return _mm256_cvtepu16_epi32(v); }
/* The low half of each lane: pack would saturate, so the high halves go first. */
VF_INLINE vh vi_to_u16(vi v) {
    v = vi_and(v, vi_set1(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}
VF_INLINE vf vf_from_f16(vh v) { return _mm256_cvtph_ps(v); }
VF_INLINE vh vf_to_f16(vf v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

VF_INLINE vi vi_load_u8(const uint8_t *p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)); }
VF_INLINE uint64_t vi_low_bytes(vi v) {
    const __m128i half = vi_to_u16(vi_and(v, vi_set1(0xff)));
    return (uint64_t)_mm_cvtsi128_si64(_mm_packus_epi16(half, half));
}
VF_INLINE void vi_store_u8(uint8_t *p, vi v) {
    const uint64_t bytes = vi_low_bytes(v);
    memcpy(p, &bytes, 8);
}
VF_INLINE vi vi_load_u8_count(const uint8_t *p, int64_t n) {
    uint64_t bytes = 0;
    uint32_t four;
    uint16_t two;
    if (n >= 8) return vi_load_u8(p);
    if (n <= 0) return vi_set1(0);
    if (n & 1) bytes = p[n - 1];
    if (n & 2) memcpy(&two, p + (n & 4), sizeof two), bytes = bytes << 16 | two;
    if (n & 4) memcpy(&four, p, sizeof four), bytes = bytes << 32 | four;
    return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)bytes));
}
VF_INLINE void vi_store_u8_count(uint8_t *p, vi v, int64_t n) {
    uint64_t bytes = vi_low_bytes(v);
    if (n >= 8) memcpy(p, &bytes, 8);
    if (n >= 8 || n <= 0) return;
    if (n & 4) {
        memcpy(p, &bytes, 4);
        bytes >>= 32, p += 4;
    }
    if (n & 2) {
        memcpy(p, &bytes, 2);
        bytes >>= 16, p += 2;
    }
    if (n & 1) *p = (uint8_t)bytes;
}

#endif
