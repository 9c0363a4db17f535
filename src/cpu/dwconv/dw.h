/* What the depthwise kernels share: the window of a pass, along each axis, and who may use them.
 *
 * Forward and the data gradient are one operation. Outputs v = f + F j of phase f meet the inputs
 *   in[j step + off + i gap],  i < count,  with the weights first + i next
 * forward:        in = src,      out = dst,      F = 1,          step = the stride
 * data gradient:  in = diff_dst, out = diff_src, F = the stride, step = 1: each phase meets some of the taps
 * Inputs outside the tensor are left out. Only low pads enter; the high ones are in the sizes. Negative pads crop. */
#ifndef WEFT_CPU_DWCONV_DW_H
#define WEFT_CPU_DWCONV_DW_H

#include "cpu/frame.h"

enum { DW_PLANES = 64 }; /* most planes one output may be summed from */

typedef struct dw_axis {
    int64_t count, step, off, gap, first, next;
} dw_axis;

typedef struct dw_window {
    const weft_problem *p;
    bool up;           /* the data gradient */
    int64_t ins, outs; /* planes of `in` and of `out` that belong to one channel of src */
    int64_t in[3], out[3], phases[3];
} dw_window;

VF_INLINE int64_t dw_floor(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

/* The window of forward, or of the data gradient. */
VF_INLINE dw_window dw_window_of(const weft_problem *p, bool up) {
    const int64_t m = p->o / p->c;
    dw_window g = {.p = p, .up = up, .ins = up ? m : 1, .outs = up ? 1 : m};
    for (int a = 0; a < 3; a++) {
        g.in[a] = up ? p->out[a] : p->in[a];
        g.out[a] = up ? p->in[a] : p->out[a];
        g.phases[a] = up ? p->stride[a] : 1;
    }
    return g;
}

VF_INLINE dw_axis dw_axis_of(const dw_window *g, int a, int64_t f) {
    const int64_t k = g->p->kernel[a], s = g->p->stride[a], d = g->p->dilation[a], pad = g->p->pad_lo[a];
    if (!g->up) return (dw_axis){k, s, -pad, d, 0, 1};
    int64_t every = 1, t = 0; /* taps t, t + every, ... reach whole positions of diff_dst */
    while (every * d % s) every++;
    while (t < every && (f + pad - t * d) % s) t++;
    if (t == every || t >= k) return (dw_axis){0, 1, 0, 1, 0, 0};
    const int64_t count = (k - 1 - t) / every + 1, last = t + (count - 1) * every;
    return (dw_axis){count, 1, (f + pad - last * d) / s, every * d / s, last, -every};
}

/* The inputs that outputs [from, to) meet lie in [lo, hi). */
VF_INLINE void dw_reach(const dw_window *g, int a, int64_t from, int64_t to, int64_t *lo, int64_t *hi) {
    const int64_t s = g->p->stride[a], pad = g->p->pad_lo[a], span = (g->p->kernel[a] - 1) * g->p->dilation[a];
    *lo = g->up ? dw_floor(from + pad - span, s) : from * s - pad;
    *hi = (g->up ? dw_floor(to - 1 + pad, s) : (to - 1) * s - pad + span) + 1;
}

/* NULL, or why a depthwise kernel of that layout does not take it. */
VF_INLINE const char *dw_refusal(const weft_problem *p, weft_layout layout) {
    if (p->groups != p->c) return "not depthwise: groups differ from c";
    for (int a = 0; a < 3; a++)
        if (p->in[a] < 1) return "an axis is empty";
    const char *why = cpu_dtype_refusal(p);
    if (!why) why = cpu_epilogue_refusal(p);
    return why ? why : cpu_layout_refusal(p, layout);
}

/* What an output costs beside its taps, in multiply-adds, measured on two Zen 4 cores: 3x3 reaches 0.25 of the peak,
 * 7x7 0.5 to 0.65, large windows 0.7 to 0.9; 3x3x3 channels-first 0.5. Narrower vectors pay more. */
enum { DW_FIRST_EXTRA = 30, DW_LAST_EXTRA = 25 };
VF_INLINE double dw_first_extra(const weft_problem *p, bool weights) {
    if (p->kernel[0] * p->kernel[1] * p->kernel[2] == 1) return 9;
    if (p->kernel[0] == 1) return DW_FIRST_EXTRA;
    return VF_LANES >= 16 && weights ? 38 : 25;
}
/* Windows whose rows of taps are not shared by rows of outputs, channels-first. */
VF_INLINE bool dw_apart(const weft_problem *p) { return p->kernel[1] < 3 || p->dilation[1] > 1 || p->dilation[2] > 1; }
VF_INLINE double dw_cost(const weft_problem *p, const weft__hw *hw, double lanes, double extra) {
    const double slower = VF_LANES >= 16 ? 1 : VF_LANES >= 8 ? 1.15 : 1.6;
    const double taps = (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    return cpu_cost(hw, weft__bytes(p), weft__flops(p) * lanes, taps / (taps + extra)) * slower;
}

/* Channels-last rows of a channel multiplier are put together element by element. */
VF_INLINE double dw_last_fill(const weft_problem *p, const weft__hw *hw) {
    const int64_t in = p->in[0] * p->in[1] * p->in[2], out = p->out[0] * p->out[1] * p->out[2];
    return p->o == p->c ? 0 : 2.4 * (double)(p->n * WEFT__MAX(in, out) * p->o) / hw->threads;
}

/* A function with the data type as its last argument, called with each as a constant. */
#define DW_BY_DTYPE(dtype, call, ...)       \
    switch (dtype) {                        \
    case WEFT_DTYPE_F16:                    \
        call(__VA_ARGS__, WEFT_DTYPE_F16);  \
        break;                              \
    case WEFT_DTYPE_BF16:                   \
        call(__VA_ARGS__, WEFT_DTYPE_BF16); \
        break;                              \
    default:                                \
        call(__VA_ARGS__, WEFT_DTYPE_F32);  \
        break;                              \
    }

/* count elements from p[index] on as f32. */
VF_INLINE void dw_widen(float *to, const void *p, int64_t index, int64_t count, const int dtype) {
    int64_t i = 0;
    for (; i + VF_LANES <= count; i += VF_LANES) vf_store(to + i, vf_load_as(dtype, p, index + i));
    if (i < count) vf_store_count(to + i, vf_load_count_as(dtype, p, index + i, count - i), count - i);
}

/* The other way, rounded; in whole lines past the caches if `stream`. */
VF_INLINE void dw_narrow(void *p, int64_t index, const float *from, int64_t count, bool stream, const int dtype) {
    const int64_t size = vf_size_of(dtype), address = (int64_t)(uintptr_t)p + index * size;
    int64_t i = 0;
    if (stream) {
        i = WEFT__MIN(count, (64 - address % 64) % 64 / size);
        for (int64_t j = 0; j < i; j += VF_LANES)
            vf_store_count_as(dtype, p, index + j, vf_load_count(from + j, i - j), i - j);
        for (; i + 64 / size <= count; i += 64 / size)
            VF_UNROLL for (int j = 0; j < 64 / size; j += VF_LANES)
                vf_stream_as(dtype, p, index + i + j, vf_load(from + i + j));
    }
    for (; i + VF_LANES <= count; i += VF_LANES) vf_store_as(dtype, p, index + i, vf_load(from + i));
    if (i < count) vf_store_count_as(dtype, p, index + i, vf_load_count(from + i, count - i), count - i);
}

/* Whether every one of count numbers is finite: then 0 times each is 0. */
VF_INLINE bool dw_finite(const float *x, int64_t count) {
    vf sum = vf_zero();
    for (int64_t i = 0; i < count; i += VF_LANES) sum = vf_fma(vf_load_count(x + i, count - i), vf_zero(), sum);
    return vf_sum(sum) == 0;
}

/* X(1) to X(8), for the cases of a switch by the width of a tile. */
#define DW_TO_8(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

/* The records of a channels-first design whose plan() and run() serve every pass. */
#define DW_RECORD(id, PASS, STEPS)                                                     \
    WEFT__KERNEL(id) = {                                                               \
        .name = WEFT__NAME(#id),                                                       \
        .version = 1,                                                                  \
        .op = WEFT_OP_CONV,                                                            \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(PASS),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .steps = STEPS,                                                                \
        .exact = true,                                                                 \
        .not_strict = true,                                                            \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
#define DW_EVERY_PASS(design)                                                       \
    DW_RECORD(dwconv_fwd_nchw_##design, FWD, CPU_EPILOGUE_STEPS);                   \
    DW_RECORD(dwconv_bwd_data_nchw_##design, BWD_DATA, CPU_EPILOGUE_STEPS);         \
    DW_RECORD(dwconv_bwd_weights_nchw_##design, BWD_WEIGHTS, WEFT__STEP_SET(BIAS)); \
    DW_RECORD(dwconv_bwd_nchw_##design, BWD, WEFT__STEP_SET(BIAS))

#endif
