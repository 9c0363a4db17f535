/* What the depthwise 3x3 kernels share, channels-first: the geometry of one pass, who may use them, the estimate,
 * and how the three taps of a row reach the lanes of VF_LANES outputs. Lanes lie along a row.
 *
 * Forward and the data gradient at stride 1 are one operation, a window of 3x3 taps over a plane:
 *   out[y,x] = sum_{r,s} in[S y + r - ph, S x + s - pw] * w[r,s]            taps outside the plane are left out
 * forward:        in = src,      out = dst,      S = the stride, ph, pw = the pads, w = weights
 * data gradient:  in = diff_dst, out = diff_src, S = 1, ph, pw = 2 - the pads,      w = weights turned by 180 degrees
 * Only low pads enter; the high ones are in the sizes. Negative pads crop. */
#ifndef WEFT_CPU_CONV_DWCONV3X3_H
#define WEFT_CPU_CONV_DWCONV3X3_H

#include "cpu/frame.h"
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

/* The 9 weights of output channel c in the order the window reads them. */
VF_INLINE void dw_weights(vf w[9], const void *weights, int64_t c, bool flip, const int dtype) {
    for (int k = 0; k < 9; k++) w[k] = vf_broadcast_as(dtype, weights, 9 * c + (flip ? 8 - k : k));
}

/* Where a sum begins, and the interval it is cut to, for channel c. */
VF_INLINE void dw_ends(vf ends[3], const cpu_epilogue *f, int64_t c) {
    ends[0] = vf_set1(f->bias ? cpu_get(f->bias_dtype, f->bias, c) : 0);
    ends[1] = vf_set1(f->lo), ends[2] = vf_set1(f->hi);
}

/* NULL, or why not. strides: the least and the largest this kernel has; multiplier: it takes o = m c. */
VF_INLINE const char *dw_refusal(const weft_problem *p, int64_t least, int64_t most, bool multiplier) {
    if (p->groups != p->c) return "not depthwise: groups differ from c";
    if (p->o != p->c && !multiplier) return "a channel multiplier: o differs from c";
    if (p->in[0] != 1 || p->out[0] != 1 || p->kernel[0] != 1) return "not 2D: depth is not 1";
    if (p->kernel[1] != 3 || p->kernel[2] != 3) return "the kernel is not 3x3";
    if (p->dilation[1] != 1 || p->dilation[2] != 1) return "dilation is not 1";
    if (p->stride[1] != p->stride[2] || p->stride[1] < least || p->stride[1] > most)
        return least == 2 ? "stride is not 2x2" : most == 1 ? "stride is not 1" : "stride is neither 1x1 nor 2x2";
    if (p->pad_lo[0] || p->pad_hi[0]) return "padding in depth";
    const char *why = cpu_dtype_refusal(p);
    if (!why) why = cpu_epilogue_refusal(p);
    return why ? why : cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
}

/* lanes: multiply-adds done, with those of unused lanes and rows; width: of a row of outputs. A row of one vector of
 * f32 costs less than its lanes. Narrower vectors pay more, most at the ends of a row, where AVX2 loads by mask. */
VF_INLINE double dw_cost(const weft_problem *p, const weft__hw *hw, double lanes, int64_t width) {
    const bool f32 = p->tensor[0].dtype == WEFT_DTYPE_F32;
    const double ends = WEFT__MIN(2.0 / (double)cpu_ceil(width, VF_LANES), 1);
    const double slower = VF_LANES >= 16 ? (width <= VF_LANES && f32 ? 0.85 : 1) : VF_LANES >= 8 ? 1.25 + ends : 1.8;
    return cpu_cost(hw, weft__bytes(p), 2 * lanes * slower, f32 ? 0.5 : 0.43);
}

/* Lanes of 16 bits by mask are slow without AVX-512. */
#if VF_LANES == 16
#define DW_DTYPES (WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16))
#define DW_BY_DTYPE(dtype, f32, f16, bf16) ((dtype) == WEFT_DTYPE_F32 ? f32 : (dtype) == WEFT_DTYPE_F16 ? f16 : bf16)
#define DW_16_BITS(code) code
#else
#define DW_DTYPES WEFT__DTYPE_SET(F32)
#define DW_BY_DTYPE(dtype, f32, f16, bf16) f32
#define DW_16_BITS(code)
#endif
/* Tasks for each data type, and the one for a problem. */
#define DW_TASKS(name, call, ...)                                                                                 \
    static void name##_f32(void *arg, int64_t slot) { call(arg, slot, __VA_ARGS__, WEFT_DTYPE_F32); }             \
    DW_16_BITS(static void name##_f16(void *arg, int64_t slot) { call(arg, slot, __VA_ARGS__, WEFT_DTYPE_F16); }) \
    DW_16_BITS(static void name##_bf16(void *arg, int64_t slot) { call(arg, slot, __VA_ARGS__, WEFT_DTYPE_BF16); })
#define DW_TASK(name, dtype) DW_BY_DTYPE(dtype, name##_f32, name##_f16, name##_bf16)

#define DW_RECORD(id, text, PASS, STEPS, ...)           \
    WEFT__KERNEL(id) = {.name = WEFT__NAME(text),       \
                        .version = 2,                   \
                        .op = WEFT_OP_CONV,             \
                        .engine = WEFT_ENGINE_CPU,      \
                        .isa = WEFT__ISA_HERE,          \
                        .passes = WEFT__PASS_SET(PASS), \
                        .dtypes = DW_DTYPES,            \
                        .steps = STEPS,                 \
                        .exact = true,                  \
                        .plan = plan,                   \
                        .run = run,                     \
                        __VA_ARGS__}

/* Where the taps of outputs x .. x + VF_LANES - 1 lie in a row. Lane i of tap s is column at + s + S i. */
typedef struct dw_columns {
    int64_t at;
    bool edge;     /* some lie outside the row, or the caller asks for masks */
    vmask load[4]; /* what may be read; set at an edge: S = 1 [s], S = 2 the four loads in order */
    vmask tap[3];  /* lanes of tap s inside the row; set at an edge */
} dw_columns;

VF_INLINE dw_columns dw_columns_of(const dw_window *g, int64_t x, const int S, bool masked) {
    dw_columns k = {.at = S * x - g->pw};
    k.edge = masked || k.at < 0 || k.at + S * (VF_LANES - 1) + 2 + (S - 1) >= g->iw;
    if (!k.edge) return k;
    if (S == 1) {
        VF_UNROLL for (int s = 0; s < 3; s++) k.tap[s] = k.load[s] = vm_range(-k.at - s, g->iw - k.at - s);
    } else {
        VF_UNROLL for (int i = 0; i < 4; i++) {
            const int64_t from = k.at + 2 * (i / 2) + VF_LANES * (i % 2);
            k.load[i] = vm_range(-from, g->iw - from);
        }
        /* at + s + 2 i >= 0 and < iw; both bounds by a shift that rounds down. */
        VF_UNROLL for (int s = 0; s < 3; s++) k.tap[s] = vm_range((1 - k.at - s) >> 1, (g->iw - k.at - s + 1) >> 1);
    }
    return k;
}

VF_INLINE vf dw_load(const dw_columns *k, const void *in, int64_t index, int i, const bool edge, const int dtype) {
    return edge ? vf_load_in_as(dtype, k->load[i], in, index) : vf_load_as(dtype, in, index);
}

/* row: column 0 of the row, counted from `in`. At an edge lanes outside the row are 0. */
VF_INLINE void dw_taps(vf t[3], const dw_columns *k, const void *in, int64_t row, const int S, const bool edge,
                       const int dtype) {
    const int64_t at = row + k->at;
    if (S == 1) {
        VF_UNROLL for (int s = 0; s < 3; s++) t[s] = dw_load(k, in, at + s, s, edge, dtype);
        return;
    }
    const vf a = dw_load(k, in, at, 0, edge, dtype), b = dw_load(k, in, at + VF_LANES, 1, edge, dtype);
    t[0] = vf_even(a, b);
    t[1] = vf_odd(a, b);
    t[2] = vf_even(dw_load(k, in, at + 2, 2, edge, dtype), dw_load(k, in, at + 2 + VF_LANES, 3, edge, dtype));
}

VF_INLINE vf dw_fma(const dw_columns *k, int s, vf a, vf b, vf c, const bool edge) {
    return edge ? vf_fma_in(k->tap[s], a, b, c) : vf_fma(a, b, c);
}

/* Ask for the S VF_LANES columns from S x on of `rows` rows of w, the first at `row` of `in`, two blocks of rows (at
 * least 2 KB) ahead. A few lines at a time: a burst fills the miss buffers and stalls the loads behind it. */
VF_INLINE void dw_prefetch(const void *in, int64_t row, int64_t w, int64_t x, const int rows, const int S,
                           const int dtype) {
    const int64_t size = vf_size_of(dtype), ahead = WEFT__MAX(2048, 2 * rows * w * size), line = 64 / size;
    if (S * x % line) return;
    VF_UNROLL for (int i = 0; i < rows; i++) VF_UNROLL for (int b = 0; b < S * VF_LANES; b += (int)line)
        vf_prefetch(in, ahead + (row + i * w + S * x + b) * size);
}

#endif
