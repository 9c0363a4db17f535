/* Convolution with sparse weights, the reference. The weights are a matrix of o rows and (c/groups)*kd*kh*kw columns in
 * CSR: row o has the entries j of [rows[o], rows[o+1]), with value weights[j] at column cols[j]. A column says
 * channel i of the group and a tap:
 *   plain       cols[j] = ((i*kd + r)*kh + s)*kw + t                tap (r, s, t), which reads (r*dd, s*dh, t*dw)
 *   after the first stretched   cols[j] = ((i*Pd + r*dd)*Ph + s*dh)*Pw + t*dw,  P = in + lo + hi: the offset from
 *   the window's first tap in the
 *               padded image of the group, channels-first. Distances below P read back from it whole, so row ends
 *               are never mistaken and no padded image need exist: the padding is where the position falls outside
 *               of src.
 * One item is one element of the phase's output, x = y*s - p + distance:
 *   fwd           dst[n,o,y] = epilogue(sum_{j in row o} src[n, g*I+i, x] * weights[j])
 *   bwd_data      diff_src[n,c,x] = sum_{o in group} sum_{j in row o of channel c} diff_dst[n,o,y] * weights[j]
 *   bwd_weights   diff_weights[j] = sum_{n,y} src[n, g*I+i, x] * diff_dst[n,o,y], o the row of j: gradients of the
 *   entries only bwd_bias      as in convolution
 * Entries of a row may come in any order, and equal columns add up. Of rows and columns that weft_sparse_check
 * refuses nothing is promised but this: row ends are taken as the nearest of 0 .. nnz, a column that is none is left
 * out (its gradient is 0), and so no access leaves a tensor. */
#ifndef WEFT_REF_SPARSE_CONV_H
#define WEFT_REF_SPARSE_CONV_H

#include "conv.h"

/* The channel in the group and the distance along each axis that a column stands for; 0: it is none. */
WEFT_ITEM int sparse_column(const weft_problem *p, int64_t col, int64_t *channel, int64_t *distance) {
    int stretched = p->attr[WEFT_SPARSE_STRETCHED] != 0;
    if (col < 0) return 0;
    for (int a = 2; a >= 0; a--) {
        int64_t size = stretched ? p->in[a] + p->pad_lo[a] + p->pad_hi[a] : p->kernel[a];
        distance[a] = col % size * (stretched ? 1 : p->dilation[a]);
        col /= size;
    }
    *channel = col;
    return col < p->c / p->groups;
}

/* The channel that a column of the group stands for: one division, where sparse_column takes six. */
WEFT_ITEM int64_t sparse_channel(const weft_problem *p, int64_t col) {
    int64_t size = 1;
    for (int a = 0; a < 3; a++)
        size *= p->attr[WEFT_SPARSE_STRETCHED] ? p->in[a] + p->pad_lo[a] + p->pad_hi[a] : p->kernel[a];
    return col < 0 ? -1 : col / size;
}

WEFT_ITEM int sparse_entry(const weft_problem *p, conv_view cols, int64_t j, int64_t *channel, int64_t *distance) {
    return sparse_column(p, item_whole(cols.t->dtype, cols.ptr, j * cols.t->strides[0]), channel, distance);
}

/* The first entry of row o; of the row after the last: the end. */
WEFT_ITEM int64_t sparse_begin(const weft_problem *p, conv_view rows, int64_t o) {
    int64_t j = item_whole(rows.t->dtype, rows.ptr, o * rows.t->strides[0]), nnz = p->attr[WEFT_SPARSE_NNZ];
    return j < 0 ? 0 : j > nnz ? nnz : j;
}

/* The row of entry j: the last that begins at or before it, if it also ends after it; else -1. */
WEFT_ITEM int64_t sparse_row(const weft_problem *p, conv_view rows, int64_t j) {
    int64_t low = 0, high = p->o;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (sparse_begin(p, rows, middle) <= j)
            low = middle;
        else
            high = middle;
    }
    return sparse_begin(p, rows, low) <= j && j < sparse_begin(p, rows, low + 1) ? low : -1;
}

/* The position of src that the window of y reads at that distance; 0: padding. */
WEFT_ITEM int sparse_reads(const weft_problem *p, const int64_t *y, const int64_t *distance, int64_t *x) {
    for (int a = 0; a < 3; a++)
        if ((x[a] = conv_ahead(p, a, y[a], distance[a], p->in[a])) < 0) return 0;
    return 1;
}

/* The other way. */
WEFT_ITEM int sparse_feeds(const weft_problem *p, const int64_t *x, const int64_t *distance, int64_t *y) {
    for (int a = 0; a < 3; a++)
        if ((y[a] = conv_back(p, a, x[a], distance[a], p->out[a])) < 0) return 0;
    return 1;
}

WEFT_ITEM double sparse_value(conv_view weights, int64_t j) {
    return item_load(weights.t->dtype, weights.ptr, j * weights.t->strides[0]);
}

WEFT_ITEM void sparse_fwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), weights = conv_see(p, ptr, WEFT_ROLE_WEIGHTS),
              dst = conv_see(p, ptr, WEFT_ROLE_DST);
    conv_view rows = conv_see(p, ptr, WEFT_ROLE_ROWS), cols = conv_see(p, ptr, WEFT_ROLE_COLS);
    int64_t at[5], offset = item_at(dst.t, i, at), o = at[1], c, distance[3], x[3];
    int64_t first = o / (p->o / p->groups) * (p->c / p->groups), end = sparse_begin(p, rows, o + 1);
    double sum = 0;
    for (int64_t j = sparse_begin(p, rows, o); j < end; j++)
        if (sparse_entry(p, cols, j, &c, distance) && sparse_reads(p, at + 2, distance, x))
            sum += conv_get(src, at[0], first + c, x[0], x[1], x[2]) * sparse_value(weights, j);
    item_out(p, dst.t, dst.ptr, offset, item_epilogue(p, ptr, o, sum));
}

WEFT_ITEM void sparse_bwd_data(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST), weights = conv_see(p, ptr, WEFT_ROLE_WEIGHTS);
    conv_view diff_src = conv_see(p, ptr, WEFT_ROLE_DIFF_SRC), rows = conv_see(p, ptr, WEFT_ROLE_ROWS),
              cols = conv_see(p, ptr, WEFT_ROLE_COLS);
    int64_t at[5], offset = item_at(diff_src.t, i, at), per_group = p->c / p->groups, outs = p->o / p->groups;
    int64_t first = at[1] / per_group * outs, wanted = at[1] % per_group, c, distance[3], y[3];
    double sum = 0;
    for (int64_t o = first; o < first + outs; o++) {
        int64_t end = sparse_begin(p, rows, o + 1);
        for (int64_t j = sparse_begin(p, rows, o); j < end; j++) {
            int64_t col = item_whole(cols.t->dtype, cols.ptr, j * cols.t->strides[0]);
            if (sparse_channel(p, col) != wanted || !sparse_column(p, col, &c, distance)) continue;
            if (sparse_feeds(p, at + 2, distance, y))
                sum += conv_get(diff_dst, at[0], o, y[0], y[1], y[2]) * sparse_value(weights, j);
        }
    }
    item_out(p, diff_src.t, diff_src.ptr, offset, sum);
}

WEFT_ITEM void sparse_bwd_weights(const weft_problem *p, void *const *ptr, int64_t j) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST);
    conv_view diff_weights = conv_see(p, ptr, WEFT_ROLE_DIFF_WEIGHTS), rows = conv_see(p, ptr, WEFT_ROLE_ROWS),
              cols = conv_see(p, ptr, WEFT_ROLE_COLS);
    int64_t c = 0, distance[3], x[3], y[3], o = sparse_row(p, rows, j);
    int64_t batch = o >= 0 && sparse_entry(p, cols, j, &c, distance) ? p->n : 0,
            first = o / (p->o / p->groups) * (p->c / p->groups);
    double sum = 0;
    for (int64_t n = 0; n < batch; n++)
        for (y[0] = 0; y[0] < p->out[0]; y[0]++)
            for (y[1] = 0; y[1] < p->out[1]; y[1]++)
                for (y[2] = 0; y[2] < p->out[2]; y[2]++)
                    if (sparse_reads(p, y, distance, x))
                        sum +=
                            conv_get(src, n, first + c, x[0], x[1], x[2]) * conv_get(diff_dst, n, o, y[0], y[1], y[2]);
    item_out(p, diff_weights.t, diff_weights.ptr, j * diff_weights.t->strides[0], sum);
}

WEFT_ITEM void sparse_conv_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace;
    switch (conv_output(p, phase)) {
    case WEFT_ROLE_DST:
        sparse_fwd(p, ptr, i);
        break;
    case WEFT_ROLE_DIFF_SRC:
        sparse_bwd_data(p, ptr, i);
        break;
    case WEFT_ROLE_DIFF_WEIGHTS:
        sparse_bwd_weights(p, ptr, i);
        break;
    default:
        conv_bwd_bias(p, ptr, i);
        break;
    }
}

#endif
