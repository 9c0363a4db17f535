/* What the Winograd kernels share: a form, which says how tiles, windows and results are transformed, and the form
 * F(2x2, 3x3) of stride 1. Forms of stride 2 are in winograd_phases.h. */
#ifndef WEFT_CPU_CONV_WINOGRAD_H
#define WEFT_CPU_CONV_WINOGRAD_H

#include "cpu/conv/gemm_view.h"

enum { WINOGRAD_SLOTS = 49, WINOGRAD_BLOCK = 16 }; /* transformed values of a tile and results of one, at most */

typedef struct winograd_plane {
    const float *at, *factors; /* factors NULL: none */
    int64_t h, w;
    bool selects;
} winograd_plane;

/* A tile of a channel becomes `slots` values. Those of a product follow each other, and are summed as channels are. */
typedef struct winograd_form {
    int window, stride;
    bool back;                         /* the data gradient */
    int step_in, step_out;             /* positions from one tile to the next, as they are read and written */
    int slots, products;               /* at most WINOGRAD_SLOTS */
    uint8_t first[WINOGRAD_SLOTS + 1]; /* slot of each product */
    int late[2];                       /* see winograd_phases.h */
    /* VF_LANES tiles from column x on of rows from y on, slot k to to[slot[k]] */
    void (*in)(const struct winograd_form *f, const winograd_plane *p, int64_t y, int64_t x, float *to,
               const int64_t *slot);
    /* `count` windows in as many lanes, the same way */
    void (*windows)(const struct winograd_form *f, const float *const from[VF_LANES], int64_t count, float *to,
                    const int64_t *slot);
    /* products of a vector of tiles, every `point`-th, to step_out * step_out results of each */
    void (*out)(const struct winograd_form *f, const float *from, int64_t point, vf to[WINOGRAD_BLOCK]);
    /* weight gradient: diff_dst as `in`, every `point`-th a product; slots of a vector of windows to their taps */
    void (*diff)(const winograd_plane *p, int64_t y, int64_t x, float *to, int64_t point);
    void (*taps)(const float *from, const int64_t *slot, float *to);
} winograd_form;

/* The windows that have a form: 3x3, with stride 2 also 5x5; not what they are in depth. */
static inline const char *winograd_window_refusal(const weft_problem *p, int stride) {
    const int64_t window = p->kernel[2];
    if (p->kernel[1] != window || (window != 3 && (window != 5 || stride == 1)))
        return stride == 1 ? "the window is not 3x3" : "the window is not 3x3 or 5x5";
    for (int a = 0; a < 3; a++) {
        if (p->dilation[a] != 1) return "dilation is not 1";
        if (p->stride[a] != (a ? stride : 1)) return stride == 1 ? "stride is not 1" : "stride is not 2";
    }
    return NULL;
}

VF_INLINE int winograd_in_product(const winograd_form *f, int64_t i) { return f->first[i + 1] - f->first[i]; }

/* Where the slots of a channel begin, each with so many floats; products are 16 apart: no strides of 4 KB. */
static inline void winograd_place_slots(const winograd_form *f, int64_t floats, int64_t *slot) {
    for (int i = 0; i < f->products; i++)
        for (int k = f->first[i]; k < f->first[i + 1]; k++) slot[k] = k * floats + 16 * i;
}
VF_INLINE int64_t winograd_floats(const winograd_form *f, int64_t floats) {
    return f->slots * floats + 16 * f->products;
}

/* VF_LANES values of row y from column x on; 0 outside of the plane. */
VF_INLINE vf winograd_load(const winograd_plane *p, int64_t y, int64_t x) {
    const vmask in = vm_range(-x, p->w - x);
    const vf v = vf_load_in(in, p->at + y * p->w + x);
    return p->factors ? gemm_factor_apply(v, vf_load_in(in, p->factors + y * p->w + x), p->selects) : v;
}

/* ---------------------------------------------------------------- F(2, 3) along one axis */
/* d0 - d2, d1 + d2, d2 - d1, d1 - d3 */
VF_INLINE void winograd_turn_in(const vf d[4], vf to[4]) {
    to[0] = vf_sub(d[0], d[2]), to[1] = vf_add(d[1], d[2]), to[2] = vf_sub(d[2], d[1]), to[3] = vf_sub(d[1], d[3]);
}
/* w0, (w0 + w1 + w2) / 2, (w0 - w1 + w2) / 2, w2 */
VF_INLINE void winograd_turn_window(vf a, vf b, vf c, vf to[4]) {
    const vf half = vf_set1(0.5f), ends = vf_add(a, c);
    to[0] = a, to[1] = vf_mul(half, vf_add(ends, b)), to[2] = vf_mul(half, vf_sub(ends, b)), to[3] = c;
}
/* m0 + m1 + m2, m1 - m2 - m3 */
VF_INLINE void winograd_turn_out(const vf m[4], vf to[2]) {
    to[0] = vf_add(vf_add(m[0], m[1]), m[2]), to[1] = vf_sub(vf_sub(m[1], m[2]), m[3]);
}
/* y0, y0 + y1, y0 - y1, -y1 */
VF_INLINE void winograd_turn_diff(vf a, vf b, vf to[4]) {
    to[0] = a, to[1] = vf_add(a, b), to[2] = vf_sub(a, b), to[3] = vf_sub(vf_zero(), b);
}
/* m0 + (m1 + m2) / 2, (m1 - m2) / 2, (m1 + m2) / 2 + m3 */
VF_INLINE void winograd_turn_taps(const vf m[4], vf to[3]) {
    const vf half = vf_set1(0.5f), mean = vf_mul(half, vf_add(m[1], m[2]));
    to[0] = vf_add(m[0], mean), to[1] = vf_mul(half, vf_sub(m[1], m[2])), to[2] = vf_add(mean, m[3]);
}

/* Entries 0 to 3 of VF_LANES tiles that are two positions apart; zeros for a row outside. */
VF_INLINE void winograd_load_pairs(const winograd_plane *p, int64_t y, int64_t x, vf d[4]) {
    VF_UNROLL for (int j = 0; j < 4; j++) d[j] = vf_zero();
    if (y < 0 || y >= p->h) return;
    const vf a = winograd_load(p, y, x), b = winograd_load(p, y, x + VF_LANES);
    const vf c = winograd_load(p, y, x + 2), e = winograd_load(p, y, x + 2 + VF_LANES);
    d[0] = vf_even(a, b), d[1] = vf_odd(a, b), d[2] = vf_even(c, e), d[3] = vf_odd(c, e);
}

/* Both rows of 2 x 2 tiles of diff_dst, transformed along the row. */
VF_INLINE void winograd_diff_rows(const winograd_plane *p, int64_t y, int64_t x, vf half[2][4]) {
    VF_UNROLL for (int i = 0; i < 2; i++) {
        vf a = vf_zero(), b = vf_zero();
        if (y + i < p->h) {
            const vf first = winograd_load(p, y + i, x), second = winograd_load(p, y + i, x + VF_LANES);
            a = vf_even(first, second), b = vf_odd(first, second);
        }
        winograd_turn_diff(a, b, half[i]);
    }
}

/* ---------------------------------------------------------------- F(2x2, 3x3) */
static void winograd_in_3(const winograd_form *f, const winograd_plane *p, int64_t y, int64_t x, float *to,
                          const int64_t *slot) {
    vf half[4][4];
    (void)f;
    VF_UNROLL for (int i = 0; i < 4; i++) {
        vf d[4];
        winograd_load_pairs(p, y + i, x, d);
        winograd_turn_in(d, half[i]);
    }
    VF_UNROLL for (int j = 0; j < 4; j++) {
        const vf column[4] = {half[0][j], half[1][j], half[2][j], half[3][j]};
        vf turned[4];
        winograd_turn_in(column, turned);
        VF_UNROLL for (int i = 0; i < 4; i++) vf_store(to + slot[4 * i + j], turned[i]);
    }
}

static void winograd_windows_3(const winograd_form *f, const float *const from[VF_LANES], int64_t count, float *to,
                               const int64_t *slot) {
    const bool turned = f->back;
    vf v[VF_LANES], w[9], half[4][3];
    VF_UNROLL for (int l = 0; l < VF_LANES; l++) v[l] = l < count ? vf_load_count(from[l], 9) : vf_zero();
    vf_transpose(v);
    VF_UNROLL for (int k = 0; k < 9; k++) {
        float lane[VF_LANES] = {0};
        for (int64_t l = 0; l < count && k >= VF_LANES; l++) lane[l] = from[l][k];
        w[k] = k < VF_LANES ? v[k % VF_LANES] : vf_load(lane);
    }
    for (int j = 0; j < 3; j++) {
        vf column[4];
        winograd_turn_window(w[turned ? 8 - j : j], w[turned ? 5 - j : 3 + j], w[turned ? 2 - j : 6 + j], column);
        for (int i = 0; i < 4; i++) half[i][j] = column[i];
    }
    for (int i = 0; i < 4; i++) {
        vf row[4];
        winograd_turn_window(half[i][0], half[i][1], half[i][2], row);
        for (int j = 0; j < 4; j++) vf_store_count(to + slot[4 * i + j], row[j], count);
    }
}

static void winograd_out_3(const winograd_form *f, const float *from, int64_t point, vf to[WINOGRAD_BLOCK]) {
    vf half[2][4];
    (void)f;
    VF_UNROLL for (int j = 0; j < 4; j++) {
        vf m[4], turned[2];
        VF_UNROLL for (int i = 0; i < 4; i++) m[i] = vf_load(from + (4 * i + j) * point);
        winograd_turn_out(m, turned);
        half[0][j] = turned[0], half[1][j] = turned[1];
    }
    VF_UNROLL for (int i = 0; i < 2; i++) winograd_turn_out(half[i], to + 2 * i);
}

static void winograd_diff_3(const winograd_plane *p, int64_t y, int64_t x, float *to, int64_t point) {
    vf half[2][4];
    winograd_diff_rows(p, y, x, half);
    VF_UNROLL for (int j = 0; j < 4; j++) {
        vf turned[4];
        winograd_turn_diff(half[0][j], half[1][j], turned);
        VF_UNROLL for (int i = 0; i < 4; i++) vf_store(to + (4 * i + j) * point, turned[i]);
    }
}

static void winograd_taps_3(const float *from, const int64_t *slot, float *to) {
    vf half[3][4];
    VF_UNROLL for (int j = 0; j < 4; j++) {
        vf m[4], turned[3];
        VF_UNROLL for (int i = 0; i < 4; i++) m[i] = vf_load(from + slot[4 * i + j]);
        winograd_turn_taps(m, turned);
        VF_UNROLL for (int i = 0; i < 3; i++) half[i][j] = turned[i];
    }
    VF_UNROLL for (int i = 0; i < 3; i++) {
        vf row[3];
        winograd_turn_taps(half[i], row);
        VF_UNROLL for (int j = 0; j < 3; j++) vf_store(to + (3 * i + j) * VF_LANES, row[j]);
    }
}

static inline winograd_form winograd_form_3(bool back) {
    winograd_form f = {3,
                       1,
                       back,
                       2,
                       2,
                       16,
                       16,
                       {0},
                       {0},
                       winograd_in_3,
                       winograd_windows_3,
                       winograd_out_3,
                       winograd_diff_3,
                       winograd_taps_3};
    for (int i = 0; i <= 16; i++) f.first[i] = (uint8_t)i;
    return f;
}

#endif
