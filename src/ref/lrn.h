/* Local response normalisation across channels, the reference. One item is one element. The window of channel c is
 * c - size/2 .. c + (size-1)/2, cut at the first and last channel; q_c = k + alpha / size * sum of x_j^2 over its
 * window.
 *   fwd   dst_c = x_c / q_c^beta
 *   bwd   diff_src_c = dy_c / q_c^beta - 2 alpha beta / size * x_c * sum of dy_j x_j / q_j^(beta + 1) over the j
 *   whose window holds c,
 *         which are c - (size-1)/2 .. c + size/2 */
#ifndef WEFT_REF_LRN_H
#define WEFT_REF_LRN_H

#include "rows.h"

typedef struct lrn_span {
    int64_t first, last;
} lrn_span;

/* before .. after around c, cut at the ends. */
WEFT_ITEM lrn_span lrn_around(const weft_problem *p, int64_t c, int64_t before, int64_t after) {
    lrn_span s;
    s.first = c > before ? c - before : 0;
    s.last = after < p->c - 1 - c ? c + after : p->c - 1;
    return s;
}

WEFT_ITEM double lrn_scale(const weft_problem *p, row src, int64_t c) {
    int64_t size = p->attr[WEFT_LRN_SIZE];
    lrn_span s = lrn_around(p, c, size / 2, (size - 1) / 2);
    double sum = 0;
    for (int64_t j = s.first; j <= s.last; j++) sum += row_get(src, j) * row_get(src, j);
    return p->real[WEFT_LRN_K] + p->real[WEFT_LRN_ALPHA] / (double)size * sum;
}

WEFT_ITEM double lrn_gradient(const weft_problem *p, void *const *ptr, row src, int64_t i, int64_t c) {
    row diff_dst = row_of(p, ptr, WEFT_ROLE_DIFF_DST, i);
    int64_t size = p->attr[WEFT_LRN_SIZE];
    double alpha = p->real[WEFT_LRN_ALPHA], beta = p->real[WEFT_LRN_BETA], sum = 0;
    lrn_span s = lrn_around(p, c, (size - 1) / 2, size / 2);
    for (int64_t j = s.first; j <= s.last; j++)
        sum += row_get(diff_dst, j) * row_get(src, j) / pow(lrn_scale(p, src, j), beta + 1);
    return row_get(diff_dst, c) / pow(lrn_scale(p, src, c), beta) -
           2 * alpha * beta / (double)size * row_get(src, c) * sum;
}

WEFT_ITEM int64_t lrn_count(const weft_problem *p, int phase) {
    (void)phase;
    return p->c * row_count(p);
}

/* Items go through a row's channels first. */
WEFT_ITEM void lrn_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace, (void)phase;
    int64_t at = i / p->c, c = i % p->c;
    row src = row_of(p, ptr, WEFT_ROLE_SRC, at);
    double v = p->pass == WEFT_PASS_FWD ? row_get(src, c) / pow(lrn_scale(p, src, c), p->real[WEFT_LRN_BETA])
                                        : lrn_gradient(p, ptr, src, at, c);
    row_put(p, row_of(p, ptr, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC, at), c, v);
}

#endif
