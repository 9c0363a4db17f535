/* What the passes of cross entropy share: the job, its tiles of places, the labels.
 *
 * Places (n, d, h, w) are counted as they lie in the target and lse. A tile is a run of them: pixels of a plane where
 * the classes lie a plane apart (columns), else rows of classes. Class c of place i of a tile is the logit at
 * at + c * across + i * along. Rows of few classes are turned into columns first. */
#ifndef WEFT_CPU_CROSS_ENTROPY_JOB_H
#define WEFT_CPU_CROSS_ENTROPY_JOB_H

#include "cpu/softmax/turn.h"

enum { SWEEP = CPU_CUT(49152, 1024) }; /* floats of a tile, which stays in the second-level cache */

typedef struct sums {
    double loss, weight;
} sums;

typedef struct job {
    lines_view v;
    const void *x, *probs, *grad;
    const char *labels; /* int64_t, perhaps unaligned */
    const float *weights;
    float *lse;
    void *out;                            /* losses of each place, or the gradient */
    sums *parts;                          /* of each slot */
    double smooth, weights_sum, total;    /* total: what the gradient of a mean is divided by */
    int64_t ignore, places, tiles, slots; /* places of a tile, tiles in all */
    bool weighted, each, stream, turned;  /* each: no reduction */
} job;

typedef struct tile {
    int64_t at, place, count, across, along;
} tile;

VF_INLINE tile tile_of(const job *q, int64_t item) {
    if (q->v.inner == 1) {
        const int64_t place = item * q->places;
        return (tile){place * q->v.channels, place, WEFT__MIN(q->places, q->v.outer - place), 1, q->v.channels};
    }
    const int64_t planes = cpu_ceil(q->v.inner, q->places), outer = item / planes, pixel = item % planes * q->places;
    return (tile){outer * q->v.channels * q->v.inner + pixel, outer * q->v.inner + pixel,
                  WEFT__MIN(q->places, q->v.inner - pixel), q->v.inner, 1};
}

/* A tile of few classes, turned: logits, or the gradient; probabilities, then the rows of the gradient. */
typedef struct planes {
    _Alignas(64) float x[TURN], other[TURN_ROWS];
} planes;

/* The job of such tiles alone, in f32. */
VF_INLINE job job_of_planes(const job *q, planes *r) {
    job own = *q;
    own.v = (lines_view){1, q->v.channels, q->places};
    own.x = own.out = r->x;
    if (q->probs) own.probs = r->other;
    own.stream = false;
    return own;
}

VF_INLINE tile turn_tile(const job *q, const int dtype, const tile *t, planes *r) {
    turn_in(dtype, q->x, t->at, q->v.channels, t->count, r->x, q->places);
    if (q->probs) turn_in(dtype, q->probs, t->at, q->v.channels, t->count, r->other, q->places);
    return (tile){0, t->place, t->count, q->places, 1};
}

/* The label of a place: -1 if ignored, -2 if no class. */
VF_INLINE int64_t label_of(const job *q, int64_t place) {
    int64_t label;
    memcpy(&label, q->labels + place * 8, sizeof label);
    return label == q->ignore ? -1 : label >= 0 && label < q->v.channels ? label : -2;
}

/* The same of n <= VF_LANES places, lanes behind them ignored. Only where has_vectors. */
VF_INLINE vi labels_at(const job *q, int64_t place, int64_t n) {
    const int32_t *half = (const int32_t *)(const void *)(q->labels + place * 8);
    const vi a = vi_load_count(half, 2 * n), b = vi_load_count(half + VF_LANES, 2 * n - VF_LANES);
    const vi low = vi_even(a, b), high = vi_odd(a, b), none = vi_set1(-1);
    const vmask ignored = vm_and(vi_eq(low, vi_set1((int32_t)(q->ignore & 0xffffffff))),
                                 vi_eq(high, vi_set1((int32_t)(q->ignore >> 32))));
    const vmask inside =
        vm_and(vm_and(vi_eq(high, vi_zero()), vi_lt(none, low)), vi_lt(low, vi_set1((int32_t)q->v.channels)));
    return vi_select(vm_andnot(vm_first(n), ignored), vi_select(inside, low, vi_set1(-2)), none);
}
VF_INLINE bool has_vectors(const job *q) {
    return !q->probs && (uintptr_t)q->labels % 4 == 0 && q->v.channels * q->v.inner < INT32_MAX &&
           q->v.channels * VF_LANES < INT32_MAX;
}

VF_INLINE float weight_of(const job *q, int64_t c) { return q->weighted ? q->weights[c] : 1; }

/* Weights of the classes; 0 where ignored, NaN where there is no class. */
VF_INLINE vf weights_of(const job *q, vi label) {
    const vmask classes = vi_lt(vi_set1(-1), label);
    const vf known = q->weighted ? vf_gather_in(classes, q->weights, label) : vf_set1(1);
    return vf_select(classes, known, vf_select(vi_eq(label, vi_set1(-1)), vf_zero(), vf_set1(NAN)));
}

/* Weights may be of both signs: a sum in f32 could lose all of its digits. */
VF_INLINE double sum_in_double(vf v) {
    float lane[VF_LANES];
    double sum[4] = {0, 0, 0, 0};
    vf_store(lane, v);
    for (int i = 0; i < VF_LANES; i += 4)
        for (int k = 0; k < 4; k++) sum[k] += lane[i + k];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

VF_INLINE float element(const int dtype, const void *p, int64_t at) {
    float lanes[VF_LANES];
    if (dtype == WEFT_DTYPE_F32) return ((const float *)p)[at];
    vf_store(lanes, vf_broadcast_as(dtype, p, at));
    return lanes[0];
}

/* The share of one class with probabilities as the target. */
VF_INLINE vf share_of(const job *q, const int dtype, int64_t at, int64_t left, vf weight) {
    const vf t = run_load(dtype, q->probs, at, left);
    const vf given =
        q->smooth > 0 ? vf_fma(vf_set1((float)(1 - q->smooth)), t, vf_set1((float)(q->smooth / (double)q->v.channels)))
                      : t;
    return vf_mul(weight, given);
}

/* Weights of classes c .. as a vector; behind the last class 0. */
VF_INLINE vf weights_at(const job *q, int64_t c, int64_t left) {
    if (q->weighted) return vf_load(q->weights + c); /* padded */
    return left >= VF_LANES ? vf_set1(1) : vf_select(vm_first(left), vf_set1(1), vf_zero());
}

/* ---------------------------------------------------------------- setting up, in core order: see fwd.c, bwd.c */
enum { DATA_ROLES = WEFT__BIT(WEFT_ROLE_SRC) | WEFT__BIT(WEFT_ROLE_DIFF_SRC) };

const char *WEFT__ISA_NAME(weft__cross_entropy_plan)(const weft_problem *p, const weft__hw *hw, weft__decision *d);
job WEFT__ISA_NAME(weft__cross_entropy_job)(const weft__exec *e);

#endif
