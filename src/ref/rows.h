/* Rows along the channels of n c d h w, for operators that work across channels or over all else of one channel.
 * Row i is a place (n, d, h, w), the last axis fastest; its elements are a channel stride apart. Also vectors of one
 * value a channel. */
#ifndef WEFT_REF_ROWS_H
#define WEFT_REF_ROWS_H

#include "item.h"

typedef struct row {
    const weft_tensor *t;
    void *ptr;
    int64_t at, step;
} row;

WEFT_ITEM int64_t row_count(const weft_problem *p) { return p->n * p->in[0] * p->in[1] * p->in[2]; }

WEFT_ITEM row row_of(const weft_problem *p, void *const *ptr, int role, int64_t i) {
    row r;
    r.t = item_tensor(p, role);
    r.ptr = ptr[role];
    r.at = 0;
    r.step = r.t->strides[1];
    for (int a = 2; a >= 0; a--) {
        r.at += i % p->in[a] * r.t->strides[2 + a];
        i /= p->in[a];
    }
    r.at += i * r.t->strides[0];
    return r;
}

WEFT_ITEM double row_get(row r, int64_t c) { return item_load(r.t->dtype, r.ptr, r.at + c * r.step); }

WEFT_ITEM void row_put(const weft_problem *p, row r, int64_t c, double v) {
    item_out(p, r.t, r.ptr, r.at + c * r.step, v);
}

WEFT_ITEM double vector_get(const weft_problem *p, void *const *ptr, int role, int64_t c) {
    const weft_tensor *t = item_tensor(p, role);
    return item_load(t->dtype, ptr[role], c * t->strides[0]);
}

WEFT_ITEM void vector_put(const weft_problem *p, void *const *ptr, int role, int64_t c, double v) {
    const weft_tensor *t = item_tensor(p, role);
    item_out(p, t, ptr[role], c * t->strides[0], v);
}

/* The greatest m of x_1 .. x_C and sum_c exp(x_c - m), which cannot overflow: log sum_c exp(x_c) = m + log(sum).
 * A NaN, +infinity or nothing but -infinity in the row makes the sum NaN. At least one channel. */
typedef struct row_exp {
    double greatest, sum;
} row_exp;

WEFT_ITEM row_exp row_exp_sum(row x, int64_t channels) {
    row_exp r;
    r.greatest = row_get(x, 0);
    r.sum = 0;
    for (int64_t c = 1; c < channels; c++) {
        double v = row_get(x, c);
        if (v > r.greatest) r.greatest = v;
    }
    for (int64_t c = 0; c < channels; c++) r.sum += exp(row_get(x, c) - r.greatest);
    return r;
}

#endif
