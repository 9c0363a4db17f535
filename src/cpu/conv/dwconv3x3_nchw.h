/* Channels-first: lanes lie along a row. How the three taps of a row reach the lanes of VF_LANES outputs. */
#ifndef WEFT_CPU_CONV_DWCONV3X3_NCHW_H
#define WEFT_CPU_CONV_DWCONV3X3_NCHW_H

#include "cpu/conv/dwconv3x3.h"

/* Where the taps of outputs x .. x + VF_LANES - 1 lie in a row. Lane i of tap s is column at + s + S i. */
typedef struct dw_columns {
    int64_t at;
    bool edge;     /* some lie outside the row, or the caller asks for masks */
    vmask load[4]; /* what may be read; set at an edge: S = 1 [s], S = 2 the four loads in order */
    vmask tap[3];  /* lanes of tap s inside the row; set at an edge */
} dw_columns;

VF_INLINE dw_columns dw_columns_of(const dw_window *g, int64_t x, const int S, bool masked) {
    dw_columns k;
    k.at = S * x - g->pw;
    k.edge = masked || k.at < 0 || k.at + S * (VF_LANES - 1) + 2 + (S - 1) >= g->iw;
    if (!k.edge) return k;
    if (S == 1) {
        VF_UNROLL for (int s = 0; s < 3; s++) k.tap[s] = k.load[s] = vm_range(-k.at - s, g->iw - k.at - s);
    } else {
        VF_UNROLL for (int i = 0; i < 4; i++) {
            const int64_t from = k.at + 2 * (i / 2) + VF_LANES * (i % 2);
            k.load[i] = vm_range(-from, g->iw - from);
        }
        /* at + s + 2 i >= 0 and < iw; both bounds by a shift that rounds down. */
        VF_UNROLL for (int s = 0; s < 3; s++) k.tap[s] = vm_range((1 - k.at - s) >> 1, (g->iw - k.at - s + 1) >> 1);
    }
    return k;
}

VF_INLINE vf dw_load(const dw_columns *k, const float *p, int i, const bool edge) {
    return edge ? vf_load_in(k->load[i], p) : vf_load(p);
}

/* row: column 0 of the row. At an edge lanes outside the row are 0. */
VF_INLINE void dw_taps(vf t[3], const dw_columns *k, const float *row, const int S, const bool edge) {
    const float *p = row + k->at;
    if (S == 1) {
        VF_UNROLL for (int s = 0; s < 3; s++) t[s] = dw_load(k, p + s, s, edge);
        return;
    }
    const vf a = dw_load(k, p, 0, edge), b = dw_load(k, p + VF_LANES, 1, edge);
    t[0] = vf_even(a, b);
    t[1] = vf_odd(a, b);
    t[2] = vf_even(dw_load(k, p + 2, 2, edge), dw_load(k, p + 2 + VF_LANES, 3, edge));
}

VF_INLINE vf dw_fma(const dw_columns *k, int s, vf a, vf b, vf c, const bool edge) {
    return edge ? vf_fma_in(k->tap[s], a, b, c) : vf_fma(a, b, c);
}

/* Ask for the S VF_LANES columns from S x on of `rows` rows of w, two blocks of rows (at least 2 KB) ahead.
 * A few lines at a time: a burst fills the miss buffers and stalls the loads behind it. */
VF_INLINE void dw_prefetch(const float *row, int64_t w, int64_t x, const int rows, const int S) {
    const int64_t ahead = WEFT__MAX(2048, 2 * rows * w * 4);
    if (S * x % 16) return;
    VF_UNROLL for (int i = 0; i < rows; i++) VF_UNROLL for (int b = 0; b < S * VF_LANES; b += 16)
        vf_prefetch(row, ahead + (i * w + S * x + b) * 4);
}

#endif
