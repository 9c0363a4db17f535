/* What the kernels of the causal convolution share: the layer as they see it,
 * silu and its slope, the small parts that are not worth a vector (states,
 * weights in f32). */
#ifndef WEFT_CPU_CAUSAL_H
#define WEFT_CPU_CAUSAL_H

#include <string.h>

#include "cpu/frame.h"
#include "cpu/simd/math.h"
#include "ref/item.h"

enum { CAUSAL_WIDTH = 128 }; /* the widest window; also the room for tokens before and behind a chunk */

#define CAUSAL_DTYPES (WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16))
#define CAUSAL_STEPS (WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(SILU))

typedef struct causal_tensor { /* absent: t is NULL */
    const weft_tensor *t;
    void *ptr;
} causal_tensor;

VF_INLINE causal_tensor causal_find(const weft__exec *e, int role) {
    return (causal_tensor){weft__tensor(e->p, role), e->ptr[role]};
}

/* Element (n, c, at), by whatever strides. */
VF_INLINE int64_t causal_offset(const weft_tensor *t, int64_t n, int64_t c, int64_t at) {
    return n * t->strides[0] + c * t->strides[1] + at * t->strides[4];
}
VF_INLINE float causal_at(causal_tensor v, int64_t n, int64_t c, int64_t at) {
    const int64_t i = causal_offset(v.t, n, c, at);
    return v.t->dtype == WEFT_DTYPE_F32 ? ((const float *)v.ptr)[i] : (float)item_load(v.t->dtype, v.ptr, i);
}
VF_INLINE void causal_set(causal_tensor v, int64_t n, int64_t c, int64_t at, float value) {
    const int64_t i = causal_offset(v.t, n, c, at);
    if (v.t->dtype == WEFT_DTYPE_F32)
        ((float *)v.ptr)[i] = value;
    else
        item_store(v.t->dtype, v.ptr, i, (double)value);
}

VF_INLINE double causal_numel(const weft_problem *p) { return (double)p->n * (double)p->c * (double)p->in[2]; }

/* e^-z is 2^v with v = -z log2(e), and that 2^n 2^f with v = n + f, 0 <= f < 1. The polynomials of degree 3, 4, 5 err
 * by 7.5e-5, 2.6e-6 and 7.5e-8. z -infinity gives infinity or NaN, either of which becomes NaN in silu, as in PyTorch;
 * infinity gives 0. */
#define CAUSAL_SCALE -0x1.715476p+0f
VF_INLINE vf causal_exp2(vf v, const int degree) {
    static const float p[3][6] = {
        {0x1.fff632p-1f, 0x1.64444cp-1f, 0x1.cefc4cp-3f, 0x1.3f96a4p-4f},
        {0x1.00002cp+0f, 0x1.62d166p-1f, 0x1.ee798ap-3f, 0x1.aa13f0p-5f, 0x1.bb7cd4p-7f},
        {0x1.fffffep-1f, 0x1.62e4f6p-1f, 0x1.ebd5a8p-3f, 0x1.c95446p-5f, 0x1.26900cp-7f, 0x1.ec320ap-10f},
    };
#if defined(WEFT__VECTORS_AVX512)
    const vf f = _mm512_reduce_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(vf_polynomial(f, p[degree - 3], degree), v);
#else
    const vf bounded = vf_max(vf_set1(-126), v), n = vf_floor(bounded);
    return vf_scale(vf_polynomial(vf_sub(bounded, n), p[degree - 3], degree), vf_min(n, vf_set1(126)));
#endif
}
/* 1 / (1 + e^-z). Where the machine has an estimate of 14 bits, one step of Newton's costs a third of a division
 * (infinity times 0 in it is 2), and none is needed for a result of 16 bits. */
VF_INLINE vf causal_sigmoid(vf z, const int degree, const bool estimate) {
    const vf sum = vf_add(vf_set1(1), causal_exp2(vf_mul(z, vf_set1(CAUSAL_SCALE)), degree));
#if defined(WEFT__VECTORS_AVX512)
    const vf near = _mm512_rcp14_ps(sum), two = vf_set1(2);
    return estimate ? near : vf_mul(near, vf_min(vf_fnma(sum, near, two), two));
#else
    (void)estimate;
    return vf_div(vf_set1(1), sum);
#endif
}
/* For a result of that type: of 16 bits, it errs by less than a fifth of the last place. */
VF_INLINE vf causal_silu_as(vf z, const int dtype) {
    const int degree = dtype == WEFT_DTYPE_BF16 ? 3 : dtype == WEFT_DTYPE_F16 ? 4 : 5;
    return vf_mul(z, causal_sigmoid(z, degree, dtype != WEFT_DTYPE_F32));
}
VF_INLINE vf causal_silu(vf z) { return causal_silu_as(z, WEFT_DTYPE_F32); }
/* The same for bf16 of v = z CAUSAL_SCALE, which weights and bias with that factor give: v / (CAUSAL_SCALE (1 + 2^v)).
 * It saves a product. */
VF_INLINE vf causal_silu_scaled(vf v) {
    const vf scale = vf_set1(CAUSAL_SCALE), sum = vf_fma(causal_exp2(v, 3), scale, scale);
#if defined(WEFT__VECTORS_AVX512)
    return vf_mul(v, _mm512_rcp14_ps(sum));
#else
    return vf_div(v, sum);
#endif
}
/* s + z s (1 - s), which sums of f32 are made of, whatever the data is. */
VF_INLINE vf causal_slope(vf z) {
    const vf sigmoid = causal_sigmoid(z, 5, false);
    return vf_fma(vf_mul(z, sigmoid), vf_sub(vf_set1(1), sigmoid), sigmoid);
}

VF_INLINE void causal_store(const int dtype, void *to, int64_t at, vf v, bool stream) {
    if (stream)
        vf_stream_as(dtype, to, at, v);
    else
        vf_store_as(dtype, to, at, v);
}

/* Pairs of bf16, the form in which a vector of 2 VF_LANES of them is quickly widened: the even ones and the odd ones.
 * Where the machine rounds to bf16 by itself, subnormal results become 0. */
typedef struct causal_pair {
    vf even, odd;
} causal_pair;
VF_INLINE causal_pair causal_widen(vi two) {
    return (causal_pair){vf_from_bits(vi_shl(two, 16)), vf_from_bits(vi_and(two, vi_set1((int32_t)0xffff0000u)))};
}
VF_INLINE vi causal_round_bits(vf v) {
    const vi bits = vf_bits(v), last = vi_and(vi_shr(bits, 16), vi_set1(1));
    const vi rounded = vi_add(vi_add(bits, vi_set1(0x7fff)), last), quiet = vi_or(bits, vi_set1(0x400000));
    return vi_select(vf_is_nan(v), quiet, rounded);
}
VF_INLINE vi causal_narrow(causal_pair v) {
#if defined(__AVX512BF16__)
    static const uint16_t order[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                       8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), (__m512i)_mm512_cvtne2ps_pbh(v.odd, v.even));
#else
    const vi high = vi_and(causal_round_bits(v.odd), vi_set1((int32_t)0xffff0000u));
    return vi_or(high, vi_shr(causal_round_bits(v.even), 16));
#endif
}
/* count of them, 0 behind. */
VF_INLINE causal_pair causal_load_pair(const uint16_t *from, int64_t count) {
    uint16_t some[2 * VF_LANES] = {0};
    if (count >= 2 * VF_LANES) return causal_widen(vi_load((const int32_t *)(const void *)from));
    memcpy(some, from, sizeof(*some) * (size_t)WEFT__MAX(count, 0));
    return causal_widen(vi_load((const int32_t *)(const void *)some));
}
VF_INLINE void causal_store_pair(uint16_t *to, causal_pair v, int64_t count, bool stream) {
    uint16_t some[2 * VF_LANES];
    if (count >= 2 * VF_LANES && stream) {
        vf_stream((float *)(void *)to, vf_from_bits(causal_narrow(v)));
    } else if (count >= 2 * VF_LANES) {
        vi_store((int32_t *)(void *)to, causal_narrow(v));
    } else {
        vi_store((int32_t *)(void *)some, causal_narrow(v));
        memcpy(to, some, sizeof(*some) * (size_t)WEFT__MAX(count, 0));
    }
}

/* Every data tensor has unit steps along `axis` (4: tokens, 1: channels), and
 * one data type. */
VF_INLINE const char *causal_refusal(const weft_problem *p, int axis) {
    const int dtype = weft__tensor(p, WEFT_ROLE_SRC)->dtype;
    if (p->kernel[2] > CAUSAL_WIDTH) return "the window is over 128 tokens";
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        const bool data = t->role == WEFT_ROLE_SRC || t->role == WEFT_ROLE_DST || t->role == WEFT_ROLE_DIFF_SRC ||
                          t->role == WEFT_ROLE_DIFF_DST;
        const bool state = t->role == WEFT_ROLE_H0 || t->role == WEFT_ROLE_DIFF_H0 || t->role == WEFT_ROLE_DIFF_HN;
        if (data && t->dtype != dtype) return "data of several types";
        if (state && axis == 1 && t->dtype != dtype) return "states of another type";
        if ((data || (state && axis == 1)) && t->dims[axis] > 1 && t->strides[axis] != 1)
            return axis == 4 ? "tokens are not side by side" : "channels are not side by side";
    }
    return NULL;
}

/* The last k - 1 tokens of channels [c, end) of sequence n. */
VF_INLINE void causal_keep(const weft__exec *e, int64_t n, int64_t c, int64_t end) {
    const causal_tensor hn = causal_find(e, WEFT_ROLE_HN), h0 = causal_find(e, WEFT_ROLE_H0),
                        src = causal_find(e, WEFT_ROLE_SRC);
    const int64_t last = e->p->kernel[2] - 1, w = e->p->in[2];
    if (!hn.t) return;
    for (; c < end; c++)
        for (int64_t i = 0; i < last; i++) {
            const int64_t from = w - last + i;
            causal_set(hn, n, c, i, from >= 0 ? causal_at(src, n, c, from) : h0.t ? causal_at(h0, n, c, w + i) : 0);
        }
}

/* diff_weights and diff_bias of channel c from k + 1 sums. */
VF_INLINE void causal_put_sums(const weft__exec *e, int64_t c, const float *sums, int64_t step) {
    const causal_tensor weights = causal_find(e, WEFT_ROLE_DIFF_WEIGHTS), bias = causal_find(e, WEFT_ROLE_DIFF_BIAS);
    const int64_t k = e->p->kernel[2];
    for (int64_t j = 0; weights.t && j < k; j++) causal_set(weights, c, 0, j, sums[j * step]);
    if (bias.t) item_store(bias.t->dtype, bias.ptr, c * bias.t->strides[0], (double)sums[k * step]);
}

/* The gradients of channels [c, end) from k + 1 sums of each of their rows, added in the order of n. */
VF_INLINE void causal_add_rows(const weft__exec *e, const float *sums, int64_t c, int64_t end) {
    const int64_t k = e->p->kernel[2];
    float sum[CAUSAL_WIDTH + 1];
    for (; c < end; c++) {
        for (int64_t j = 0; j <= k; j++) {
            sum[j] = 0;
            for (int64_t n = 0; n < e->p->n; n++) sum[j] += sums[(n * e->p->c + c) * (k + 1) + j];
        }
        causal_put_sums(e, c, sum, 1);
    }
}

#endif
