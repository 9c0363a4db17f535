/* What the batch-norm kernels of both layouts share: the moments of a set of values, and what is made of them.
 *
 * Moments are merged by Chan's rule in double; inside a block of a few thousand values, which is read twice from the
 * nearest cache, f32 sums of x and then of (x - mean)^2 and of x - mean, which mends the rounded mean. So memory is
 * read once, and a large mean does no harm. The gradient's sums, of dy and of dy (x - m), add up in the same blocks.
 *
 * Coefficients of a channel, arrays of whole vectors:
 *   fwd         dst = (x - m) a + b
 *   bwd train   diff_src = (dy - b - (x - m) k) a
 *   bwd eval    diff_src = dy a
 * relu, if it follows: dst = max(dst, 0), and dy counts where dst is above 0. */
#ifndef WEFT_CPU_BATCH_NORM_H
#define WEFT_CPU_BATCH_NORM_H

#include "cpu/softmax/lines.h"

typedef struct moments {
    double count, first, second; /* mean and sum of squares about it; or the sums of dy and dy (x - m) */
} moments;

typedef struct norm {
    const weft__exec *e;
    lines_view v;
    const void *x, *dy, *y; /* y: of the gradient behind a relu, else NULL */
    void *out;
    float *m, *a, *b, *k; /* coefficients by channel */
    moments *parts;
    int64_t slots, pieces, elements; /* pieces of a channel; elements of a channel */
    float least;                     /* of what forward writes: 0 for a relu */
    bool stream, fwd, train, affine, sums;
} norm;

/* Of sums about a mean that was rounded: `rest`, the sum of the distances from it, says by how much. */
VF_INLINE moments moments_of(double count, double mean, double squares, double rest) {
    if (!isfinite(rest)) return (moments){count, mean, squares};
    return (moments){count, mean + rest / count, squares - rest * rest / count};
}

VF_INLINE void moments_add(moments *to, moments of, const bool mean) {
    if (of.count == 0) return;
    const double count = to->count + of.count, apart = of.first - to->first;
    if (mean) {
        to->second += of.second + apart * apart * (to->count * of.count / count);
        if (isfinite(apart))
            to->first += apart * (of.count / count);
        else /* an infinite mean stays so, as that of all values would */
            to->first = to->first * (to->count / count) + of.first * (of.count / count);
    } else {
        to->first += of.first;
        to->second += of.second;
    }
    to->count = count;
}

/* ---------------------------------------------------------------- scalars by channel, of any type */
VF_INLINE float norm_get(const norm *q, int role, int64_t c) {
    const void *p = q->e->ptr[role];
    float lanes[VF_LANES];
    switch (weft__tensor(q->e->p, role)->dtype) {
    case WEFT_DTYPE_F32:
        return ((const float *)p)[c];
    case WEFT_DTYPE_F16:
        vf_store(lanes, vf_broadcast_as(WEFT_DTYPE_F16, p, c));
        return lanes[0];
    default:
        vf_store(lanes, vf_broadcast_as(WEFT_DTYPE_BF16, p, c));
        return lanes[0];
    }
}
VF_INLINE void norm_put(const norm *q, int role, int64_t c, double value) {
    void *p = q->e->ptr[role];
    const vf v = vf_set1((float)value);
    switch (weft__tensor(q->e->p, role)->dtype) {
    case WEFT_DTYPE_F32:
        ((float *)p)[c] = (float)value;
        return;
    case WEFT_DTYPE_F16:
        vf_store_count_as(WEFT_DTYPE_F16, p, c, v, 1);
        return;
    default:
        vf_store_count_as(WEFT_DTYPE_BF16, p, c, v, 1);
    }
}

/* m and r of a channel that are given: saved, or running. */
VF_INLINE void norm_given(const norm *q, int64_t c, double *m, double *r) {
    const bool train = q->train;
    *m = norm_get(q, train ? WEFT_ROLE_SAVE_MEAN : WEFT_ROLE_MEAN, c);
    *r = norm_get(q, train ? WEFT_ROLE_SAVE_INVSTD : WEFT_ROLE_VAR, c);
    if (!train) *r = 1 / sqrt(*r + q->e->p->real[WEFT_BN_EPS]);
}

/* Coefficients of a channel, and what else the pass writes of it. */
VF_INLINE void norm_finish(const norm *q, int64_t c, moments s) {
    const double n = (double)q->elements, f = q->e->p->real[WEFT_BN_MOMENTUM];
    double m, r;
    if (q->fwd && q->train) {
        m = s.first, r = 1 / sqrt(s.second / n + q->e->p->real[WEFT_BN_EPS]);
        norm_put(q, WEFT_ROLE_SAVE_MEAN, c, m);
        norm_put(q, WEFT_ROLE_SAVE_INVSTD, c, r);
        if (q->e->p->attr[WEFT_BN_TRACK]) {
            norm_put(q, WEFT_ROLE_MEAN, c, (1 - f) * norm_get(q, WEFT_ROLE_MEAN, c) + f * m);
            norm_put(q, WEFT_ROLE_VAR, c, (1 - f) * norm_get(q, WEFT_ROLE_VAR, c) + f * (s.second / (n - 1)));
        }
    } else {
        norm_given(q, c, &m, &r);
    }
    q->m[c] = (float)m;
    q->a[c] = (float)(q->affine ? r * norm_get(q, WEFT_ROLE_WEIGHTS, c) : r);
    if (q->fwd) {
        q->b[c] = q->affine ? norm_get(q, WEFT_ROLE_BIAS, c) : 0;
        const double lost = (m - (double)q->m[c]) * (double)q->a[c]; /* values may be nearer to each other than that */
        if (q->train && isfinite(lost)) q->b[c] = (float)((double)q->b[c] - lost);
        return;
    }
    q->b[c] = (float)(s.first / n);
    q->k[c] = (float)(s.second / n * r * r);
    if (!q->affine) return;
    norm_put(q, WEFT_ROLE_DIFF_BIAS, c, s.first);
    norm_put(q, WEFT_ROLE_DIFF_WEIGHTS, c, s.second * r);
}

/* The gradient of the result, or of what a relu took. */
VF_INLINE vf norm_diff(const norm *q, const int dtype, int64_t at, int64_t left) {
    const vf dy = run_load(dtype, q->dy, at, left);
    return q->y ? vf_select(vf_le(run_load(dtype, q->y, at, left), vf_zero()), vf_zero(), dy) : dy;
}

/* What is written of x and dy: x alone forward, dy alone in the gradient of an evaluation. */
VF_INLINE vf norm_value(const norm *q, const bool fwd, const bool train, vf x, vf dy, vf m, vf a, vf b, vf k) {
    if (fwd) return vf_max(vf_set1(q->least), vf_fma(vf_sub(x, m), a, b));
    return vf_mul(train ? vf_fnma(vf_sub(x, m), k, vf_sub(dy, b)) : dy, a);
}

/* ---------------------------------------------------------------- planning and setting up: common.c */
const char *WEFT__ISA_NAME(weft__batch_norm_plan)(const weft_problem *p, const weft__hw *hw, norm *q);
/* Floats of coefficients of one kind. */
VF_INLINE int64_t norm_pitch(int64_t channels) { return cpu_round_up(channels + VF_LANES, 16); }
norm WEFT__ISA_NAME(weft__batch_norm_begin)(const weft__exec *e);

#define NORM_KERNEL(name_)                                                             \
    WEFT__KERNEL(name_) = {                                                            \
        .name = WEFT__NAME(#name_),                                                    \
        .version = 1,                                                                  \
        .op = WEFT_OP_BATCH_NORM,                                                      \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .steps = WEFT__STEP_SET(RELU),                                                 \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .bound = 4,                                                                    \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }

#endif
