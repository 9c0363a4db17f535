/* A run of elements through a function of one, in a data type that is a constant: what relu, clip, tanh, sigmoid and
 * ncrelu share. Output that is large is streamed past the caches. */
#ifndef WEFT_CPU_POINTWISE_SPAN_H
#define WEFT_CPU_POINTWISE_SPAN_H

#include "cpu/frame.h"
#include "cpu/simd/math.h"

/* relu is clip without an upper end; MERGE is the gradient of ncrelu. */
typedef enum span_kind { SPAN_CLIP, SPAN_TANH, SPAN_SIGMOID, SPAN_MERGE, SPAN_KINDS } span_kind;

typedef struct span_args {
    const void *in;      /* src; of a gradient dst, of MERGE src */
    const void *diff[2]; /* of a gradient: diff_dst; of MERGE the positive part's and the negative part's */
    void *out;
    float lo, hi;
    bool stream;
} span_args;

enum { SPAN_LINE = 64, SPAN_AHEAD = 4096 }; /* elements: work is cut at multiples of them; bytes fetched ahead */

VF_INLINE vf span_value(const span_kind s, vf x, vf lo, vf hi) {
    return s == SPAN_TANH ? vf_tanh(x) : s == SPAN_SIGMOID ? vf_sigmoid(x) : vf_clip(x, lo, hi);
}

VF_INLINE vf span_gradient(const span_kind s, vf y, vf dy, vf lo, vf hi) {
    const vf one = vf_set1(1), rest = vf_sub(one, y);
    if (s == SPAN_TANH) return vf_mul(dy, vf_mul(rest, vf_add(one, y)));
    if (s == SPAN_SIGMOID) return vf_mul(vf_mul(dy, y), rest);
    return vf_select(vm_or(vf_le(y, lo), vf_ge(y, hi)), vf_zero(), dy);
}

/* At NaN both parts have taken it. */
VF_INLINE vf span_merge(vf x, vf positive, vf negative) {
    const vf part = vf_select(vf_lt(x, vf_zero()), negative, positive);
    return vf_select(vf_is_nan(x), vf_add(positive, negative), part);
}

/* n lanes from element i on: all of them, or the first few. */
VF_INLINE vf span_result(const span_args *q, int64_t i, int64_t n, const span_kind s, const bool bwd, const int dtype) {
    const vf lo = vf_set1(q->lo), hi = vf_set1(q->hi);
#define SPAN_LOAD(p) (n == VF_LANES ? vf_load_as(dtype, p, i) : vf_load_count_as(dtype, p, i, n))
    const vf v = SPAN_LOAD(q->in);
    if (!bwd) return span_value(s, v, lo, hi);
    const vf dy = SPAN_LOAD(q->diff[0]);
    return s == SPAN_MERGE ? span_merge(v, dy, SPAN_LOAD(q->diff[1])) : span_gradient(s, v, dy, lo, hi);
#undef SPAN_LOAD
}

VF_INLINE void span_store(const span_args *q, int64_t i, int64_t end, const span_kind s, const bool bwd,
                          const int dtype) {
    for (; i + VF_LANES <= end; i += VF_LANES)
        vf_store_as(dtype, q->out, i, span_result(q, i, VF_LANES, s, bwd, dtype));
    if (i < end) vf_store_count_as(dtype, q->out, i, span_result(q, i, end - i, s, bwd, dtype), end - i);
}

/* Elements i .. end - 1 of each pointer. Whole lines are streamed: half a line beside a plain store takes as long as
 * ten lines. The caller ends the streaming. */
VF_INLINE void span_run(const span_args *q, int64_t i, int64_t end, const span_kind s, const bool bwd,
                        const int dtype) {
    if (q->stream) {
        const int64_t line = 64 / vf_size_of(dtype);
        const int64_t past = ((int64_t)(uintptr_t)q->out + i * vf_size_of(dtype)) % 64 / vf_size_of(dtype);
        const int64_t head = WEFT__MIN((line - past) % line, end - i);
        span_store(q, i, i + head, s, bwd, dtype);
        for (i += head; i + line <= end; i += line) {
            vf_prefetch(q->in, i * vf_size_of(dtype) + SPAN_AHEAD);
            VF_UNROLL for (int64_t j = 0; j < line; j += VF_LANES)
                vf_stream_as(dtype, q->out, i + j, span_result(q, i + j, VF_LANES, s, bwd, dtype));
        }
    }
    span_store(q, i, end, s, bwd, dtype);
}

/* All tensors of one data type and dense in one order, NULL; else why not. */
VF_INLINE const char *span_refusal(const weft_problem *p) {
    if (!weft__all_dtype(p, p->tensor[0].dtype)) return "tensors of several data types";
    if (cpu_layout_refusal(p, WEFT_LAYOUT_FIRST) && cpu_layout_refusal(p, WEFT_LAYOUT_LAST))
        return "tensors are not dense in one order";
    return NULL;
}

#endif
