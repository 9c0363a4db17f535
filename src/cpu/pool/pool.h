/* Geometry that pooling kernels share. An axis is 0 depth, 1 height, 2 width. */
#ifndef WEFT_CPU_POOL_H
#define WEFT_CPU_POOL_H

#include <stdlib.h>

#include "cpu/frame.h"

/* Windows first .. last - 1 of an axis, or taps; see below. */
typedef struct pool_range {
    int64_t first, last;
} pool_range;

/* The taps of window o inside the input. */
VF_INLINE pool_range pool_taps(const weft_problem *p, int a, int64_t o) {
    const int64_t at = o * p->stride[a] - p->pad_lo[a], d = p->dilation[a];
    if (d == 1) return (pool_range){WEFT__MAX(-at, 0), WEFT__MIN(p->in[a] - at, p->kernel[a])};
    const int64_t first = at >= 0 ? 0 : cpu_ceil(-at, d), last = at >= p->in[a] ? 0 : (p->in[a] - 1 - at) / d + 1;
    return (pool_range){first, WEFT__MIN(last, p->kernel[a])};
}

/* How many places of window o count in the divisor of an average. */
VF_INLINE int64_t pool_counted(const weft_problem *p, int a, int64_t o) {
    const int64_t at = o * p->stride[a] - p->pad_lo[a], end = WEFT__MIN(at + p->kernel[a], p->in[a] + p->pad_hi[a]);
    if (p->attr[WEFT_AVG_POOL_INCLUDE_PAD]) return end - at;
    return WEFT__MIN(end, p->in[a]) - WEFT__MAX(at, 0);
}

/* Every window has a tap inside the input (see src/ops/pool.c: padding is at most half of the window), and an index of
 * 32 bits will do; else why not. */
VF_INLINE const char *pool_refusal(const weft_problem *p) {
    double places = 1, taps = 1;
    for (int a = 0; a < 3; a++) {
        places *= (double)p->in[a], taps *= (double)p->kernel[a];
        if (p->op == WEFT_OP_MAX_POOL && p->dilation[a] > p->in[a]) return "the dilation is over the input size";
    }
    if (p->op == WEFT_OP_AVG_POOL && llabs(p->attr[WEFT_AVG_POOL_DIVISOR]) > 1 << 24) return "the divisor is over 2^24";
    if (places > INT32_MAX) return "a channel has over 2^31 - 1 places";
    return taps > 1 << 20 ? "a window has over 2^20 places" : NULL;
}

/* The data tensors of one data type and dense in one layout, the index too; else why not. */
VF_INLINE const char *pool_layout_refusal(const weft_problem *p, weft_layout layout) {
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (layout == WEFT_LAYOUT_FIRST ? !weft__is_first(t) : !weft__is_last(t))
            return layout == WEFT_LAYOUT_FIRST ? "a tensor is not dense channels-first"
                                               : "a tensor is not dense channels-last";
        if (t != index &&
            t->dtype != weft__tensor(p, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC)->dtype)
            return "tensors of several data types";
    }
    return NULL;
}

/* 2D, windows of 2 or 3 places and stride 2 along height and width; else why not. */
VF_INLINE const char *pool_pairs_refusal(const weft_problem *p) {
    if (p->in[0] != 1 || p->out[0] != 1 || p->kernel[0] != 1) return "three spatial axes";
    for (int a = 1; a < 3; a++) {
        if (p->stride[a] != 2) return "a stride other than 2";
        if ((p->kernel[a] != 2 && p->kernel[a] != 3) || p->dilation[a] != 1) return "a window not of 2 or 3 places";
    }
    if (p->in[2] > 1 << 17) return "a row is over 2^17 elements";
    return (double)p->in[1] * (double)p->in[2] > 1 << 30 ? "a channel has over 2^30 places" : NULL;
}

/* Is v of the row `base` to be taken before best, of a column further left? Of equals the first row wins and then the
 * first column, of NaN the last. */
VF_INLINE vmask pool_wins(vf v, vi base, vf best, vi best_base) {
    const vmask above = vi_lt(base, best_base), nan = vm_andnot(vf_is_nan(v), vm_and(vf_is_nan(best), above));
    return vm_or(vm_or(vf_gt(v, best), nan), vm_and(vf_eq(v, best), above));
}

/* Which of `rows` kept rows holds row y. Sizes are below 2^31: a short division. */
VF_INLINE int64_t pool_kept(int64_t y, int64_t rows) { return rows == 1 ? 0 : (uint32_t)y % (uint32_t)rows; }

/* The next row of images with `depth` times `height` rows. */
VF_INLINE void pool_next_row(int64_t *plane, int64_t *z, int64_t *y, int64_t depth, int64_t height) {
    if (++*y < height) return;
    *y = 0;
    if (++*z < depth) return;
    *z = 0;
    ++*plane;
}

/* n lanes of an index from element `at` on. */
VF_INLINE vi pool_index(const void *index, int dtype, int64_t at, int64_t n) {
    if (dtype == WEFT_DTYPE_U8) return vi_load_u8_count((const uint8_t *)index + at, n);
    if (dtype == WEFT_DTYPE_I32) return vi_load_count((const int32_t *)index + at, n);
    return vi_load_i64_count((const int64_t *)index + at, n);
}
VF_INLINE void pool_put_index(void *index, int dtype, int64_t at, vi v, int64_t n) {
    if (dtype == WEFT_DTYPE_U8)
        vi_store_u8_count((uint8_t *)index + at, v, n);
    else if (dtype == WEFT_DTYPE_I32)
        vi_store_count((int32_t *)index + at, v, n);
    else
        vi_store_i64_count((int64_t *)index + at, v, n);
}

/* Forward by rows, see first.c. slots 0: it is not taken. */
typedef struct pool_rows {
    int64_t slots, bytes; /* bytes of scratch per slot */
    int64_t pitch, band;  /* floats of a line; lines at a time */
    int64_t inner;        /* elements of a place: 1 channels-first, the channels channels-last */
    int64_t wide;         /* elements of a line that windows begin at, channels-last without a stride */
    bool last;
} pool_rows;

/* Channels-last: where it is expected to be faster than d it is taken: s and d are filled. */
void WEFT__ISA_NAME(weft__pool_rows_plan)(const weft_problem *p, const weft__hw *hw, pool_rows *s, weft__decision *d);
void WEFT__ISA_NAME(weft__pool_rows_run)(const weft__exec *e, const pool_rows *s);

/* Gradients by adding, see scatter.c. slots 0: it is not taken. */
typedef struct pool_scatter {
    int64_t slots, bytes;     /* bytes of scratch per slot */
    int64_t strips;           /* of a channel (channels-first) or an image */
    int64_t places, windows;  /* elements of a strip at most, and of the windows over it */
    int64_t thick, thick_out; /* places and windows for one of the outermost axis */
    int64_t table;
    int axis;  /* the outermost */
    bool last; /* channels-last */
} pool_scatter;

/* Where it is expected to be faster than d it is taken: s and d are filled. */
void WEFT__ISA_NAME(weft__pool_scatter_plan)(const weft_problem *p, const weft__hw *hw, bool last, pool_scatter *s,
                                             weft__decision *d);
void WEFT__ISA_NAME(weft__pool_scatter_run)(const weft__exec *e, const pool_scatter *s);

/* How many times as long plain code takes for a vector. */
#define POOL_VECTOR (VF_LANES > 4 ? 1 : 5)

/* ns of `work` ns on one thread in so many slots. */
VF_INLINE double pool_cost(const weft_problem *p, const weft__hw *hw, int64_t slots, double work) {
    const double each = work / (double)WEFT__MAX(1, WEFT__MIN(hw->threads, slots));
    return 1000 + WEFT__MAX(each, weft__bytes(p) / hw->gbs) + 0.2 * each;
}

/* The functions of a slot: `function` with each of three kinds and the data type as constants, and their list. */
#define POOL_TASK(function, kind, type) \
    static void function##_##kind##_##type(void *q, int64_t slot) { function(q, slot, kind, WEFT_DTYPE_##type); }
#define POOL_TASKS(function, a, b, c, type) \
    POOL_TASK(function, a, type) POOL_TASK(function, b, type) POOL_TASK(function, c, type)
#define POOL_TASK_LIST(function, a, b, c, type) \
    {function##_##a##_##type, function##_##b##_##type, function##_##c##_##type}

/* The record of a kernel of this operator and pass, with the plan and run of its file. */
#define POOL_RECORD(NAME, record, word, pass, exact_)                                  \
    WEFT__KERNEL(record) = {                                                           \
        .name = WEFT__NAME(word),                                                      \
        .version = 2,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(pass),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .exact = exact_,                                                               \
        .bound = exact_ ? 1 : 2, /* quotients are rounded before they are added */     \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }

#endif
