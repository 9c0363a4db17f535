/* Pointwise operators, the reference. One item is one element; NaN stays NaN; gradients come from the output y alone.
 *   relu      y = max(x, 0)             dx = y <= 0 ? 0 : dy
 *   clip      y = min(max(x, lo), hi)   dx = y <= lo or y >= hi ? 0 : dy
 *   tanh      y = tanh(x)               dx = dy (1 - y^2)
 *   sigmoid   y = 1 / (1 + exp(-x))     dx = dy y (1 - y) */
#ifndef WEFT_REF_POINTWISE_H
#define WEFT_REF_POINTWISE_H

#include "item.h"

WEFT_ITEM double pointwise_value(const weft_problem *p, double x) {
    double lo = p->op == WEFT_OP_CLIP ? p->real[WEFT_CLIP_LO] : 0;
    switch (p->op) {
    case WEFT_OP_TANH:
        return tanh(x);
    case WEFT_OP_SIGMOID:
        return 1 / (1 + exp(-x));
    default:
        if (x < lo) x = lo;
        return p->op == WEFT_OP_CLIP && x > p->real[WEFT_CLIP_HI] ? p->real[WEFT_CLIP_HI] : x;
    }
}

WEFT_ITEM double pointwise_gradient(const weft_problem *p, double y, double dy) {
    switch (p->op) {
    case WEFT_OP_TANH:
        return dy * (1 - y * y);
    case WEFT_OP_SIGMOID:
        return dy * y * (1 - y);
    case WEFT_OP_CLIP:
        return y <= p->real[WEFT_CLIP_LO] || y >= p->real[WEFT_CLIP_HI] ? 0 : dy;
    default:
        return y <= 0 ? 0 : dy;
    }
}

WEFT_ITEM int64_t pointwise_count(const weft_problem *p, int phase) {
    (void)phase;
    return item_numel(p->tensor);
}

WEFT_ITEM void pointwise_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace, (void)phase;
    int64_t at[5];
    if (p->pass == WEFT_PASS_FWD) {
        const weft_tensor *src = item_tensor(p, WEFT_ROLE_SRC), *dst = item_tensor(p, WEFT_ROLE_DST);
        double x = item_load(src->dtype, ptr[WEFT_ROLE_SRC], item_at(src, i, at));
        item_out(p, dst, ptr[WEFT_ROLE_DST], item_at(dst, i, at), pointwise_value(p, x));
    } else {
        const weft_tensor *dst = item_tensor(p, WEFT_ROLE_DST), *diff_dst = item_tensor(p, WEFT_ROLE_DIFF_DST),
                          *diff_src = item_tensor(p, WEFT_ROLE_DIFF_SRC);
        double y = item_load(dst->dtype, ptr[WEFT_ROLE_DST], item_at(dst, i, at));
        double dy = item_load(diff_dst->dtype, ptr[WEFT_ROLE_DIFF_DST], item_at(diff_dst, i, at));
        item_out(p, diff_src, ptr[WEFT_ROLE_DIFF_SRC], item_at(diff_src, i, at), pointwise_gradient(p, y, dy));
    }
}

#endif
