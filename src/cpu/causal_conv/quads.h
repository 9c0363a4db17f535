/* One new token behind a state of 3 or 4 tokens of each channel side by side, for a window of 4: AVX-512 alone. The
 * tokens that a channel sees, 3 of the state and the new one, are a quad, as its weights are: a vector has 4 of them,
 * or 8 of bf16 as pairs. A state of 4 tokens is then that quad, one of 3 all of it but the first. */
#ifndef WEFT_CPU_CAUSAL_QUADS_H
#define WEFT_CPU_CAUSAL_QUADS_H

#include "cpu/causal_conv/causal.h"

#if defined(WEFT__VECTORS_AVX512)
/* 16 channels of f32: quads[i] has 4 of them. The state moves on. */
VF_INLINE void quads_f32(float *state, vf x, vf *quads, const int len) {
    const vi own = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3);
    const vi from3 = _mm512_setr_epi32(0, 1, 2, 0, 3, 4, 5, 0, 6, 7, 8, 0, 9, 10, 11, 0);
    const vi to3 = _mm512_setr_epi32(1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 0, 0, 0, 0);
    const vi from4 = _mm512_setr_epi32(1, 2, 3, 0, 5, 6, 7, 0, 9, 10, 11, 0, 13, 14, 15, 0);
    VF_UNROLL for (int i = 0; i < 4; i++) {
        const vf held = len == 3 ? _mm512_maskz_loadu_ps(0x0fff, state + 12 * i) : vf_load(state + 16 * i);
        const vf seen = _mm512_permutexvar_ps(len == 3 ? from3 : from4, held);
        quads[i] = _mm512_mask_permutexvar_ps(seen, 0x8888, vi_add(own, vi_set1(4 * i)), x);
    }
    VF_UNROLL for (int i = 0; i < 4; i++) {
        if (len == 3)
            _mm512_mask_storeu_ps(state + 12 * i, 0x0fff, _mm512_permutexvar_ps(to3, quads[i]));
        else
            vf_store(state + 16 * i, quads[i]);
    }
}
/* The sums of the quads of 16 channels with their weights. */
VF_INLINE vf quads_sum_f32(const vf *quads, const vf *w) {
    vf p[4];
    VF_UNROLL for (int i = 0; i < 4; i++) p[i] = vf_mul(quads[i], w[i]);
    vf_unzip4(p);
    return vf_add(vf_add(p[0], p[1]), vf_add(p[2], p[3]));
}

/* 16 channels of bf16: quads[i] has 8 of them. The tables name tokens of the state from 0 on, new ones from 48 on. */
VF_INLINE void quads_bf16(uint16_t *state, vh x, vi *quads, const int len) {
    static const uint16_t seen3[2][32] = {{0,  1,  2,  48, 3,  4,  5,  49, 6,  7,  8,  50, 9,  10, 11, 51,
                                           12, 13, 14, 52, 15, 16, 17, 53, 18, 19, 20, 54, 21, 22, 23, 55},
                                          {24, 25, 26, 56, 27, 28, 29, 57, 30, 31, 32, 58, 33, 34, 35, 59,
                                           36, 37, 38, 60, 39, 40, 41, 61, 42, 43, 44, 62, 45, 46, 47, 63}};
    static const uint16_t seen4[2][32] = {{1,  2,  3,  48, 5,  6,  7,  49, 9,  10, 11, 50, 13, 14, 15, 51,
                                           17, 18, 19, 52, 21, 22, 23, 53, 25, 26, 27, 54, 29, 30, 31, 55},
                                          {1,  2,  3,  56, 5,  6,  7,  57, 9,  10, 11, 58, 13, 14, 15, 59,
                                           17, 18, 19, 60, 21, 22, 23, 61, 25, 26, 27, 62, 29, 30, 31, 63}};
    static const uint16_t moved3[2][32] = {{1,  2,  48, 4,  5,  49, 7,  8,  50, 10, 11, 51, 13, 14, 52, 16,
                                            17, 53, 19, 20, 54, 22, 23, 55, 25, 26, 56, 28, 29, 57, 31, 32},
                                           {58, 34, 35, 59, 37, 38, 60, 40, 41, 61, 43, 44, 62, 46, 47, 63,
                                            0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0,  0}};
    if (len == 3) {
        const vi low = _mm512_loadu_si512(state);
        const vi high = _mm512_inserti64x4(_mm512_castsi256_si512(vh_load(state + 32)), x, 1);
        VF_UNROLL for (int i = 0; i < 2; i++) quads[i] =
            _mm512_permutex2var_epi16(low, _mm512_loadu_si512(seen3[i]), high);
        _mm512_storeu_si512(state, _mm512_permutex2var_epi16(low, _mm512_loadu_si512(moved3[0]), high));
        vh_store(state + 32,
                 _mm512_castsi512_si256(_mm512_permutex2var_epi16(low, _mm512_loadu_si512(moved3[1]), high)));
        return;
    }
    const vi fresh = _mm512_inserti64x4(_mm512_setzero_si512(), x, 1);
    VF_UNROLL for (int i = 0; i < 2; i++) {
        quads[i] = _mm512_permutex2var_epi16(_mm512_loadu_si512(state + 32 * i), _mm512_loadu_si512(seen4[i]), fresh);
        _mm512_storeu_si512(state + 32 * i, quads[i]);
    }
}
VF_INLINE vf quads_sum_bf16(const vi *quads, const vf *w) {
    vf p[2];
    VF_UNROLL for (int i = 0; i < 2; i++) {
        const causal_pair two = causal_widen(quads[i]);
        const vf even = vf_even(w[2 * i], w[2 * i + 1]), odd = vf_odd(w[2 * i], w[2 * i + 1]);
        p[i] = vf_fma(two.even, even, vf_mul(two.odd, odd));
    }
    return vf_add(vf_even(p[0], p[1]), vf_odd(p[0], p[1]));
}
#endif

#endif
