/* Matrices times a diagonal, the reference: dgmm of real numbers, cdgmm of complex ones (pairs along a last axis of 2).
 * One item is one number of the output; v(y,x) is the number of the vector there: v[x] on the right side, v[y] on
 * the left.
 *   dst[n,y,x]      = src[n,y,x] * v(y,x)
 *   diff_src[n,y,x] = diff_dst[n,y,x] * conj(v(y,x))
 *   diff_weights[j] = sum of diff_dst[n,y,x] * conj(src[n,y,x]) over all n and all places (y,x) that v[j] scales */
#ifndef WEFT_REF_DGMM_H
#define WEFT_REF_DGMM_H

#include "item.h"

typedef struct dgmm_number {
    double re, im;
} dgmm_number;

WEFT_ITEM dgmm_number dgmm_load(const weft_tensor *t, const void *ptr, int64_t at, int pair) {
    dgmm_number v;
    v.re = item_load(t->dtype, ptr, at);
    v.im = pair < 0 ? 0 : item_load(t->dtype, ptr, at + t->strides[pair]);
    return v;
}

/* pair: the axis of a number's real and imaginary part; negative: real numbers. */
WEFT_ITEM dgmm_number dgmm_matrix(const weft_problem *p, void *const *ptr, int role, int64_t n, int64_t y, int64_t x) {
    const weft_tensor *t = item_tensor(p, role);
    return dgmm_load(t, ptr[role], n * t->strides[0] + y * t->strides[1] + x * t->strides[2],
                     p->op == WEFT_OP_CDGMM ? 3 : -1);
}

WEFT_ITEM dgmm_number dgmm_vector(const weft_problem *p, void *const *ptr, int64_t y, int64_t x) {
    const weft_tensor *t = item_tensor(p, WEFT_ROLE_WEIGHTS);
    return dgmm_load(t, ptr[WEFT_ROLE_WEIGHTS], (p->attr[WEFT_DGMM_SIDE] ? x : y) * t->strides[0],
                     p->op == WEFT_OP_CDGMM ? 1 : -1);
}

/* a * b; sign -1: a * conj(b). */
WEFT_ITEM dgmm_number dgmm_times(const weft_problem *p, dgmm_number a, dgmm_number b, double sign) {
    dgmm_number v;
    if (p->op == WEFT_OP_CDGMM) {
        v.re = a.re * b.re - sign * a.im * b.im;
        v.im = a.im * b.re + sign * a.re * b.im;
    } else {
        v.re = a.re * b.re;
        v.im = 0;
    }
    return v;
}

/* A number of dst (from src) or of diff_src (from diff_dst, with the conjugate). */
WEFT_ITEM dgmm_number dgmm_scaled(const weft_problem *p, void *const *ptr, int from, const int64_t *at, double sign) {
    return dgmm_times(p, dgmm_matrix(p, ptr, from, at[0], at[1], at[2]), dgmm_vector(p, ptr, at[1], at[2]), sign);
}

WEFT_ITEM dgmm_number dgmm_diff_weight(const weft_problem *p, void *const *ptr, int64_t j) {
    int right = p->attr[WEFT_DGMM_SIDE] != 0;
    int64_t along = right ? p->attr[WEFT_DGMM_ROWS] : p->attr[WEFT_DGMM_COLS];
    dgmm_number sum = {0, 0};
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t k = 0; k < along; k++) {
            int64_t y = right ? k : j, x = right ? j : k;
            dgmm_number v = dgmm_times(p, dgmm_matrix(p, ptr, WEFT_ROLE_DIFF_DST, n, y, x),
                                       dgmm_matrix(p, ptr, WEFT_ROLE_SRC, n, y, x), -1);
            sum.re += v.re;
            sum.im += v.im;
        }
    return sum;
}

/* Each phase fills one output. */
WEFT_ITEM int dgmm_output(const weft_problem *p, int phase) {
    if (p->pass == WEFT_PASS_FWD) return WEFT_ROLE_DST;
    return p->pass == WEFT_PASS_BWD_WEIGHTS || phase ? WEFT_ROLE_DIFF_WEIGHTS : WEFT_ROLE_DIFF_SRC;
}

WEFT_ITEM int dgmm_phases(const weft_problem *p) { return p->pass == WEFT_PASS_BWD ? 2 : 1; }

WEFT_ITEM int64_t dgmm_count(const weft_problem *p, int phase) {
    return item_numel(item_tensor(p, dgmm_output(p, phase))) / (p->op == WEFT_OP_CDGMM ? 2 : 1);
}

WEFT_ITEM void dgmm_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace;
    int role = dgmm_output(p, phase), pair = p->op == WEFT_OP_CDGMM;
    const weft_tensor *t = item_tensor(p, role);
    int64_t at[4], offset = item_at(t, pair ? 2 * i : i, at);
    dgmm_number v;
    if (role == WEFT_ROLE_DIFF_WEIGHTS)
        v = dgmm_diff_weight(p, ptr, i);
    else
        v = dgmm_scaled(p, ptr, role == WEFT_ROLE_DST ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, at,
                        role == WEFT_ROLE_DST ? 1 : -1);
    item_out(p, t, ptr[role], offset, v.re);
    if (pair) item_out(p, t, ptr[role], offset + t->strides[t->rank - 1], v.im);
}

#endif
