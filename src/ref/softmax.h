/* Softmax and log-softmax over the channels, the reference. One item is one row x_1 .. x_C, with m = max_c x_c:
 *   softmax       y_c = exp(x_c - m) / sum_k exp(x_k - m)         dx_c = y_c (dy_c - sum_k y_k dy_k)
 *   log_softmax   y_c = x_c - m - log sum_k exp(x_k - m)          dx_c = dy_c - exp(y_c) sum_k dy_k
 * A row with a NaN or +infinity, or of nothing but -infinity, is NaN throughout. */
#ifndef WEFT_REF_SOFTMAX_H
#define WEFT_REF_SOFTMAX_H

#include "rows.h"

WEFT_ITEM void softmax_fwd(const weft_problem *p, void *const *ptr, int64_t i) {
    row src = row_of(p, ptr, WEFT_ROLE_SRC, i), dst = row_of(p, ptr, WEFT_ROLE_DST, i);
    row_exp e = row_exp_sum(src, p->c);
    double log_sum = log(e.sum);
    for (int64_t c = 0; c < p->c; c++) {
        double x = row_get(src, c) - e.greatest;
        row_put(p, dst, c, p->op == WEFT_OP_SOFTMAX ? exp(x) / e.sum : x - log_sum);
    }
}

WEFT_ITEM void softmax_bwd(const weft_problem *p, void *const *ptr, int64_t i) {
    row dst = row_of(p, ptr, WEFT_ROLE_DST, i), diff_dst = row_of(p, ptr, WEFT_ROLE_DIFF_DST, i),
        diff_src = row_of(p, ptr, WEFT_ROLE_DIFF_SRC, i);
    int plain = p->op == WEFT_OP_SOFTMAX;
    double sum = 0;
    for (int64_t c = 0; c < p->c; c++) sum += (plain ? row_get(dst, c) : 1) * row_get(diff_dst, c);
    for (int64_t c = 0; c < p->c; c++) {
        double y = row_get(dst, c), dy = row_get(diff_dst, c);
        row_put(p, diff_src, c, plain ? y * (dy - sum) : dy - exp(y) * sum);
    }
}

WEFT_ITEM int64_t softmax_count(const weft_problem *p, int phase) {
    (void)phase;
    return p->c ? row_count(p) : 0;
}

WEFT_ITEM void softmax_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace, (void)phase;
    if (p->pass == WEFT_PASS_FWD)
        softmax_fwd(p, ptr, i);
    else
        softmax_bwd(p, ptr, i);
}

#endif
