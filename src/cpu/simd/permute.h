/* Lane i of the result is lane at[i] of v. */
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

#endif
