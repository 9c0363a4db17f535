/* Lanes moved by a table.
 *   vf_permute(v, at)   lane i is lane at[i] of v
 *   vf_expand(s, v)     the first lanes of v, in order, to the lanes of s; the others 0
 *   vf_compress(s, v)   the other way: the lanes of s, in order, to the first lanes; the others are anything */
#ifndef WEFT_CPU_SIMD_PERMUTE_H
#define WEFT_CPU_SIMD_PERMUTE_H

#include "cpu/simd/simd.h"

VF_INLINE vf vf_permute(vf v, vi at) {
#if defined(WEFT__VECTORS_AVX512)
    return _mm512_permutexvar_ps(at, v);
#elif defined(WEFT__VECTORS_AVX2)
    return _mm256_permutevar8x32_ps(v, at);
#else
    vf r = v;
    for (int i = 0; i < VF_LANES; i++) r[i] = v[at[i]];
    return r;
#endif
}

#if defined(WEFT__VECTORS_AVX512)
typedef struct vf_spread {
    uint32_t lanes;
} vf_spread;
VF_INLINE vf_spread vf_spread_of(uint32_t lanes) { return (vf_spread){lanes}; }
VF_INLINE vf vf_expand(const vf_spread *s, vf v) { return _mm512_maskz_expand_ps((__mmask16)s->lanes, v); }
VF_INLINE vf vf_compress(const vf_spread *s, vf v) { return _mm512_maskz_compress_ps((__mmask16)s->lanes, v); }
#else
typedef struct vf_spread {
    uint8_t expand[VF_LANES], compress[VF_LANES]; /* expand: VF_LANES where there is no lane of v */
} vf_spread;
VF_INLINE vf_spread vf_spread_of(uint32_t lanes) {
    vf_spread s;
    int count = 0;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < VF_LANES; i++) {
        const bool here = lanes >> i & 1;
        s.expand[i] = (uint8_t)(here ? count : VF_LANES);
        if (here) s.compress[count++] = (uint8_t)i;
    }
    return s;
}
VF_INLINE vf vf_expand(const vf_spread *s, vf v) {
    const vi at = vi_load_u8(s->expand);
    return vf_select(vi_lt(at, vi_set1(VF_LANES)), vf_permute(v, vi_and(at, vi_set1(VF_LANES - 1))), vf_zero());
}
VF_INLINE vf vf_compress(const vf_spread *s, vf v) { return vf_permute(v, vi_load_u8(s->compress)); }
#endif

#endif
