/* The transform of inputs that Winograd's F(2x2, 3x3) has forward and in the weight gradient. */
#ifndef WEFT_CPU_CONV_WINOGRAD_H
#define WEFT_CPU_CONV_WINOGRAD_H

#include "cpu/conv/gemm_view.h"

enum { WINOGRAD_POINTS = 16 };

typedef struct winograd_plane {
    const float *at, *factors; /* factors NULL: none */
    int64_t h, w;
    bool selects;
} winograd_plane;

/* VF_LANES values of row y from column x on; 0 outside of the plane. */
VF_INLINE vf winograd_load(const winograd_plane *p, int64_t y, int64_t x) {
    const vmask in = vm_range(-x, p->w - x);
    const vf v = vf_load_in(in, p->at + y * p->w + x);
    return p->factors ? gemm_factor_apply(v, vf_load_in(in, p->factors + y * p->w + x), p->selects) : v;
}

/* d0 - d2, d1 + d2, d2 - d1, d1 - d3 */
VF_INLINE void winograd_turn_in(const vf d[4], vf to[4]) {
    to[0] = vf_sub(d[0], d[2]), to[1] = vf_add(d[1], d[2]), to[2] = vf_sub(d[2], d[1]), to[3] = vf_sub(d[1], d[3]);
}

/* VF_LANES tiles from column x on of four rows from y on, to every `point`-th float. */
VF_INLINE void winograd_tile_in(const winograd_plane *p, int64_t y, int64_t x, float *to, int64_t point) {
    vf half[4][4];
    VF_UNROLL for (int i = 0; i < 4; i++) {
        vf d[4];
        VF_UNROLL for (int j = 0; j < 4; j++) d[j] = vf_zero();
        if (y + i >= 0 && y + i < p->h) {
            const vf a = winograd_load(p, y + i, x), b = winograd_load(p, y + i, x + VF_LANES);
            const vf c = winograd_load(p, y + i, x + 2), e = winograd_load(p, y + i, x + 2 + VF_LANES);
            d[0] = vf_even(a, b), d[1] = vf_odd(a, b), d[2] = vf_even(c, e), d[3] = vf_odd(c, e);
        }
        winograd_turn_in(d, half[i]);
    }
    VF_UNROLL for (int j = 0; j < 4; j++) {
        const vf column[4] = {half[0][j], half[1][j], half[2][j], half[3][j]};
        vf turned[4];
        winograd_turn_in(column, turned);
        VF_UNROLL for (int i = 0; i < 4; i++) vf_store(to + (4 * i + j) * point, turned[i]);
    }
}

#endif
