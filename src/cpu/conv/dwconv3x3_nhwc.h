/* Channels-last: lanes lie along channels. Weights are wanted tap by tap, a vector of channels each. */
#ifndef WEFT_CPU_CONV_DWCONV3X3_NHWC_H
#define WEFT_CPU_CONV_DWCONV3X3_NHWC_H

#include "cpu/conv/dwconv3x3.h"

/* Channels taken along a row before the next ones: 3 rows of a few pixels and the 9 weights of these stay in L1. */
enum { DW_CHUNK = 128 };

VF_INLINE int64_t dw_vectors(int64_t c) { return (c + VF_LANES - 1) / VF_LANES; }

/* [c][9] -> [c / VF_LANES][9][VF_LANES], turned for a data gradient; channels that do not exist are 0. */
VF_INLINE size_t dw_packed(const weft_problem *p, const weft__hw *hw) {
    (void)hw;
    return (size_t)(9 * VF_LANES * dw_vectors(p->c)) * sizeof(float);
}

VF_INLINE weft_status dw_pack(const weft__exec *e, const void *weights, void *packed) {
    const int64_t c1 = e->p->c;
    const bool flip = e->p->pass != WEFT_PASS_FWD;
    float *to = packed;
    memset(to, 0, dw_packed(e->p, e->hw));
    for (int64_t c = 0; c < c1; c++)
        for (int k = 0; k < 9; k++)
            to[c / VF_LANES * 9 * VF_LANES + k * VF_LANES + c % VF_LANES] =
                ((const float *)weights)[9 * c + (flip ? 8 - k : k)];
    return WEFT_OK;
}

/* A pixel of each of the rows top, top + 1, top + 2 of an image; NULL: the row lies outside. column may. */
typedef struct dw_rows {
    const float *at[3];
} dw_rows;

VF_INLINE dw_rows dw_rows_of(const dw_window *g, const float *image, int64_t top, int64_t column) {
    dw_rows rows;
    for (int r = 0; r < 3; r++)
        rows.at[r] = top + r < 0 || top + r >= g->ih ? NULL : image + ((top + r) * g->iw + column) * g->c;
    return rows;
}

/* Channels c .. c + VF_LANES - 1 of one pixel; tail: only those of m exist. */
VF_INLINE vf dw_load_channels(const float *p, vmask m, const bool tail) {
    return tail ? vf_load_in(m, p) : vf_keep(vf_load(p));
}

/* Ask for the line at p of `count` pixels of c in the next `rows` rows of w pixels, a few at a time. */
VF_INLINE void dw_prefetch_rows(const float *p, int64_t w, int64_t c, const int count, const int rows) {
    VF_UNROLL for (int r = 1; r <= rows; r++) VF_UNROLL for (int i = 0; i < count; i++)
        vf_prefetch(p, (r * w + i) * c * 4);
}

VF_INLINE void dw_store_channels(float *p, vf v, vmask m, const bool tail, bool stream) {
    if (tail)
        vf_store_in(m, p, v);
    else if (stream)
        vf_stream(p, v);
    else
        vf_store(p, v);
}

/* Whole cache lines can be streamed where every pixel begins with one. */
VF_INLINE bool dw_streams_channels(const weft__hw *hw, const dw_window *g, const float *out) {
    const double bytes = 4.0 * (double)(g->n * g->c) * (double)(g->oh * g->ow);
    return g->c % 16 == 0 && (uintptr_t)out % 64 == 0 && dw_streams(hw, bytes);
}

#endif
