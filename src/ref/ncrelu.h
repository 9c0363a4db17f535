/* NCReLU, the reference. One item is one element of src:
 *   fwd   dst[n,c] = max(x, 0), dst[n,C+c] = min(x, 0); NaN in both parts
 *   bwd   diff_src[n,c] = x >= 0 ? diff_dst[n,c] : diff_dst[n,C+c]; at NaN the sum of both, as the two parts give */
#ifndef WEFT_REF_NCRELU_H
#define WEFT_REF_NCRELU_H

#include "item.h"

WEFT_ITEM int64_t ncrelu_count(const weft_problem *p, int phase) {
    (void)phase;
    return p->n * p->c * p->in[0] * p->in[1] * p->in[2];
}

WEFT_ITEM void ncrelu_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace, (void)phase;
    int fwd = p->pass == WEFT_PASS_FWD, wide_role = fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_DST;
    const weft_tensor *src = item_tensor(p, WEFT_ROLE_SRC), *wide = item_tensor(p, wide_role);
    int64_t at[5], offset = item_at(src, i, at), first = 0;
    for (int a = 0; a < 5; a++) first += at[a] * wide->strides[a];
    int64_t second = first + p->c * wide->strides[1];
    double x = item_load(src->dtype, ptr[WEFT_ROLE_SRC], offset);
    if (fwd) {
        item_out(p, wide, ptr[wide_role], first, x < 0 ? 0 : x);
        item_out(p, wide, ptr[wide_role], second, x > 0 ? 0 : x);
        return;
    }
    double positive = item_load(wide->dtype, ptr[wide_role], first),
           negative = item_load(wide->dtype, ptr[wide_role], second);
    const weft_tensor *diff_src = item_tensor(p, WEFT_ROLE_DIFF_SRC);
    double v = x >= 0 ? positive : x < 0 ? negative : positive + negative;
    item_out(p, diff_src, ptr[WEFT_ROLE_DIFF_SRC], item_at(diff_src, i, at), v);
}

#endif
