/* Channels-last: lanes lie along channels. Weights are wanted tap by tap, a vector of channels each. */
#ifndef WEFT_CPU_CONV_DWCONV3X3_NHWC_H
#define WEFT_CPU_CONV_DWCONV3X3_NHWC_H

#include "cpu/conv/dwconv3x3.h"

/* Channels of one tap in packed weights and in sums, up to whole vectors and cache lines. */
VF_INLINE int64_t dw_pitch(int64_t c) { return (c + 15) / 16 * 16; }

/* [c][9] -> [9][pitch], turned for a data gradient; the excess is 0. */
VF_INLINE size_t dw_packed(const weft_problem *p, const weft__hw *hw) {
    (void)hw;
    return (size_t)(9 * dw_pitch(p->c)) * sizeof(float);
}

VF_INLINE weft_status dw_pack(const weft__exec *e, const void *weights, void *packed) {
    const int64_t c = e->p->c, pitch = dw_pitch(c);
    const bool flip = e->p->pass != WEFT_FWD;
    for (int k = 0; k < 9; k++) {
        const float *from = (const float *)weights + (flip ? 8 - k : k);
        float *to = (float *)packed + k * pitch;
        for (int64_t i = 0; i < c; i++) to[i] = from[9 * i];
        for (int64_t i = c; i < pitch; i++) to[i] = 0;
    }
    return WEFT_OK;
}

/* Channels c .. c + VF_LANES - 1 of one pixel; tail: only those of m exist. */
VF_INLINE vf dw_load_channels(const float *p, vmask m, const bool tail) { return tail ? vf_load_in(m, p) : vf_load(p); }

#endif
