/* What the f32 depthwise 3x3 kernels share: the geometry of one pass, who may use them, slots and the estimate.
 *
 * Forward and the data gradient at stride 1 are one operation, a window of 3x3 taps over a plane:
 *   out[y,x] = sum_{r,s} in[S y + r - ph, S x + s - pw] * w[r,s]            taps outside the plane are left out
 * forward:        in = src,      out = dst,      S = the stride, ph, pw = the pads, w = weights
 * data gradient:  in = diff_dst, out = diff_src, S = 1, ph, pw = 2 - the pads,      w = weights turned by 180 degrees
 * Only low pads enter; the high ones are in the sizes. Negative pads crop. */
#ifndef WEFT_CPU_CONV_DWCONV3X3_H
#define WEFT_CPU_CONV_DWCONV3X3_H

#include <math.h>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "cpu/simd/stage.h"

typedef struct dw_window {
    int64_t n, c, m; /* images, planes of `in` an image, planes of `out` for each of them */
    int64_t ih, iw, oh, ow, ph, pw;
    int stride;
    bool flip;
} dw_window;

/* The pass as a window; for bwd_weights that of the forward, for bwd that of the data gradient. */
VF_INLINE dw_window dw_window_of(const weft_problem *p) {
    dw_window g = {.n = p->n, .c = p->c, .m = p->o / p->c, .stride = (int)p->stride[1]};
    g.flip = p->pass == WEFT_PASS_BWD_DATA || p->pass == WEFT_PASS_BWD;
    g.ih = g.flip ? p->out[1] : p->in[1], g.iw = g.flip ? p->out[2] : p->in[2];
    g.oh = g.flip ? p->in[1] : p->out[1], g.ow = g.flip ? p->in[2] : p->out[2];
    g.ph = g.flip ? 2 - p->pad_lo[1] : p->pad_lo[1], g.pw = g.flip ? 2 - p->pad_lo[2] : p->pad_lo[2];
    return g;
}

/* The data gradient at stride 2: diff_src[v,u] takes diff_dst[y,x] * weights[r,s], v + ph = 2 y + r, u + pw = 2 x + s.
 * With the odd part of the pads apart, v counted from an even row and y from the row -ph' + v / 2 of this window:
 *   v + odd_h = 2 (y - 1) + r,  and so for columns: which taps meet is then known at compile time. */
typedef struct dw_up {
    dw_window g;
    int odd_h, odd_w;
} dw_up;

VF_INLINE dw_up dw_up_of(const weft_problem *p) {
    dw_up u = {.g = dw_window_of(p), .odd_h = (int)(p->pad_lo[1] % 2), .odd_w = (int)(p->pad_lo[2] % 2)};
    u.g.ph = 1 - p->pad_lo[1] / 2;
    u.g.pw = 1 - p->pad_lo[2] / 2;
    return u;
}

/* The 9 weights of one plane in the order the window reads them. */
VF_INLINE void dw_weights(vf w[9], const float *weights, bool flip) {
    for (int k = 0; k < 9; k++) w[k] = vf_set1(weights[flip ? 8 - k : k]);
}

/* bias, then relu, then clip, each or not: an offset to begin the sum with, and an interval. */
typedef struct dw_epilogue {
    const float *bias; /* NULL: none */
    float lo, hi;
} dw_epilogue;

VF_INLINE dw_epilogue dw_epilogue_of(const weft__exec *e) {
    dw_epilogue f = {NULL, -INFINITY, INFINITY};
    for (int i = 0; i < e->p->nsteps; i++) {
        const weft_step *step = &e->p->step[i];
        if (step->kind == WEFT_STEP_BIAS) f.bias = e->ptr[WEFT_ROLE_BIAS];
        if (step->kind == WEFT_STEP_RELU) f.lo = 0;
        if (step->kind == WEFT_STEP_CLIP) f.lo = fmaxf(f.lo, (float)step->lo), f.hi = (float)step->hi;
    }
    return f;
}

typedef enum dw_layout { DW_FIRST, DW_LAST } dw_layout;

/* NULL, or why not. max_stride: the largest this kernel has; multiplier: it takes o = m c. */
VF_INLINE const char *dw_ok(const weft_problem *p, int pass, dw_layout layout, int max_stride, bool multiplier) {
    if (p->pass != pass) return "another pass";
    if (p->groups != p->c) return "not depthwise: groups differ from c";
    if (p->o != p->c && !multiplier) return "a channel multiplier: o differs from c";
    if (p->in[0] != 1 || p->out[0] != 1 || p->kernel[0] != 1) return "not 2D: depth is not 1";
    if (p->kernel[1] != 3 || p->kernel[2] != 3) return "the kernel is not 3x3";
    if (p->dilation[1] != 1 || p->dilation[2] != 1) return "dilation is not 1";
    if (p->stride[1] != p->stride[2] || p->stride[1] > max_stride)
        return max_stride == 1 ? "stride is not 1" : "stride is neither 1x1 nor 2x2";
    if (p->pad_lo[0] || p->pad_hi[0]) return "padding in depth";
    if (!weft__all_dtype(p, WEFT_DTYPE_F32)) return "a tensor is not f32";
    for (int i = 1; i < p->nsteps; i++)
        if (p->step[i].kind <= p->step[i - 1].kind) return "the epilogue is not in the order bias, relu, clip";
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        const weft_tensor *t = weft__tensor(p, role);
        const bool data =
            role == WEFT_ROLE_SRC || role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_DST;
        if (!t) continue;
        if (data && layout == DW_FIRST && !weft__is_first(t)) return "src or dst is not dense channels-first";
        if (data && layout == DW_LAST && !weft__is_last(t)) return "src or dst is not dense channels-last";
        if (!data && !weft__is_first(t) && !weft__is_last(t)) return "weights or bias are not dense";
    }
    return NULL;
}

VF_INLINE const char *dw_ok_up(const weft_problem *p, int pass, dw_layout layout) {
    const char *why = dw_ok(p, pass, layout, 2, false);
    return why ? why : p->stride[1] != 2 ? "stride is not 2" : NULL;
}

/* How many slots for `items` equal pieces of `bytes` in all: enough for many cores, each worth waking a thread for. */
VF_INLINE int64_t dw_slots(int64_t items, double bytes) {
    const double want = bytes / 131072;
    const int64_t most = want > 128 ? 128 : want < 1 ? 1 : (int64_t)want;
    return items < most ? items : most;
}

/* Streaming pays where the output would push itself out of the caches before anyone reads it. Of a last-level cache
 * over 32 MB the rest is taken to be other people's. */
VF_INLINE bool dw_streams(const weft__hw *hw, double out_bytes) {
    return out_bytes > (double)WEFT__MIN(hw->l3, (size_t)32 << 20) / 8;
}

/* Memory and arithmetic overlap for the most part. lanes: multiply-adds done, with those of unused lanes and rows. */
VF_INLINE double dw_cost(const weft_problem *p, const weft__hw *hw, double lanes) {
    const double slower = VF_LANES >= 16 ? 1.0 : VF_LANES >= 8 ? 1.1 : 1.4;
    const double memory = weft__bytes(p) / hw->gbs;
    const double sums = 2 * lanes / (0.5 * hw->gflops[WEFT__ISA_HERE] * hw->threads);
    return (1000 + WEFT__MAX(memory, sums) + 0.2 * WEFT__MIN(memory, sums)) * slower;
}

VF_INLINE double dw_round_up(int64_t size, int64_t tile) { return (double)((size + tile - 1) / tile * tile); }

#endif
