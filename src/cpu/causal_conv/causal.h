/* What the kernels of the causal convolution share: the layer as they see it,
 * silu and its slope, the small parts that are not worth a vector (states,
 * weights in f32). */
#ifndef WEFT_CPU_CAUSAL_H
#define WEFT_CPU_CAUSAL_H

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

/* e^-z as 2^n 2^f with -z log2(e) = n + f, |f| <= 1/2: within 3 roundoffs where
 * 1 + e^-z can tell. z is bounded from above alone, so that -infinity gives NaN
 * in what follows, as in PyTorch, and infinity does not. */
VF_INLINE vf causal_exp_minus(vf z) {
    static const float p[] = {1.0f,
                              6.931472028550421e-1f,
                              2.402264791363012e-1f,
                              5.550332471162809e-2f,
                              9.618437357674640e-3f,
                              1.339887440266574e-3f,
                              1.535336188319500e-4f};
    const vf scale = vf_set1(-0x1.715476p+0f), bounded = vf_min(vf_set1(100), z);
    const vf n = vf_nearest(vf_mul(bounded, scale)), f = vf_fms(bounded, scale, n);
    return vf_scale(vf_polynomial(f, p, 6), vf_min(n, vf_set1(120)));
}
/* 1 / (1 + e^-z). Where the machine has an estimate of 14 bits, one step of
 * Newton's costs a third of a division. */
VF_INLINE vf causal_sigmoid(vf z) {
    const vf one = vf_set1(1), sum = vf_add(one, causal_exp_minus(z));
#if defined(WEFT__VECTORS_AVX512)
    const vf near = _mm512_rcp14_ps(sum);
    return vf_fma(near, vf_fnma(sum, near, one), near);
#else
    return vf_div(one, sum);
#endif
}
VF_INLINE vf causal_silu(vf z) { return vf_mul(z, causal_sigmoid(z)); }
VF_INLINE vf causal_slope(vf z) {
    const vf one = vf_set1(1), sigmoid = causal_sigmoid(z);
    return vf_mul(sigmoid, vf_fma(z, vf_sub(one, sigmoid), one));
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

#endif
