/* Winograd's forms for windows of 3x3 and 5x5 with a stride of 2.
 * Math:      taps of even and of odd number meet positions of one parity each: along an axis the window of K taps is
 *            two phases of t = (K + 1) / 2 and K / 2 taps, each a convolution of stride 1. F(2, t) of 3, 2 and 1 taps,
 *              in       d0 - d2, d1 + d2, d2 - d1, d1 - d3    d0 - d1, d1, -, d1 - d2    d0, -, -, d1
 *              window   w0, (w0 + w1 + w2) / 2,               w0, w0 + w1, -, w1         w0, -, -, -w0
 *                       (w0 - w1 + w2) / 2, w2
 *              out      m0 + m1 + m2, m1 - m2 - m3            for all, a missing product is 0
 *            has the same results, so that phases are summed between the transforms, as channels are, at the points
 *            that they have: 7 slots in 4 products for 5 taps, 5 in 3 for 3; in two dimensions 49 instead of 100
 *            products for 2 x 2 outputs, and 25 instead of 36.
 *            The data gradient of a phase is F(2, t) of diff_dst with its taps turned: a product for each slot, and
 *            4 x 4 positions of diff_src for a tile. Phase a, of position parity (a + padding) % 2, begins `late`
 *            positions of diff_dst after the first one
 *            The weight gradient has the slots of the forward pass */
#ifndef WEFT_CPU_CONV_WINOGRAD_PHASES_H
#define WEFT_CPU_CONV_WINOGRAD_PHASES_H

#include "cpu/conv/winograd.h"

/* Taps of phase a of K; does a phase of t taps have point i; phases with it; slots before it; slots of an axis. */
VF_INLINE int phase_taps(const int K, const int a) { return (K + 1 - a) / 2; }
VF_INLINE bool phase_has(const int t, const int i) { return i == 0 || i == 3 || t > i; }
VF_INLINE int phase_count(const int K, const int i) {
    return phase_has(phase_taps(K, 0), i) + phase_has(phase_taps(K, 1), i);
}
VF_INLINE int phase_before(const int K, const int i) {
    return (i > 0 ? 2 : 0) + (i > 1 ? phase_count(K, 1) : 0) + (i > 2 ? phase_count(K, 2) : 0);
}
VF_INLINE int phase_slots(const int K) { return phase_before(K, 3) + 2; }
/* The slot of points i, j and phases a, b; points that are there, before point i. */
VF_INLINE int phase_slot(const int K, const int i, const int a, const int j, const int b) {
    return phase_before(K, i) * phase_slots(K) + phase_count(K, i) * phase_before(K, j) + a * phase_count(K, j) + b;
}
VF_INLINE int phase_rank(const int K, const int i) { return i - (i == 3 && phase_count(K, 2) == 0); }
VF_INLINE int phase_product(const int K, const int i, const int j) {
    return phase_rank(K, i) * (phase_rank(K, 3) + 1) + phase_rank(K, j);
}

/* ---------------------------------------------------------------- one axis */
VF_INLINE void phase_in(const int t, const vf d[4], vf to[4]) {
    if (t == 3) {
        winograd_turn_in(d, to);
    } else {
        to[0] = t == 2 ? vf_sub(d[0], d[1]) : d[0], to[3] = t == 2 ? vf_sub(d[1], d[2]) : d[1];
        to[1] = d[1], to[2] = vf_zero();
    }
}
VF_INLINE void phase_window(const int t, const vf w[3], vf to[4]) {
    if (t == 3) {
        winograd_turn_window(w[0], w[1], w[2], to);
    } else {
        to[0] = w[0], to[1] = t == 2 ? vf_add(w[0], w[1]) : vf_zero(), to[2] = vf_zero();
        to[3] = t == 2 ? w[1] : vf_sub(vf_zero(), w[0]);
    }
}
VF_INLINE void phase_out(const int t, const vf m[4], vf to[2]) {
    if (t == 3)
        winograd_turn_out(m, to);
    else if (t == 2)
        to[0] = vf_add(m[0], m[1]), to[1] = vf_sub(m[1], m[3]);
    else
        to[0] = m[0], to[1] = vf_sub(vf_zero(), m[3]);
}
VF_INLINE void phase_gradient(const int t, const vf m[4], vf to[3]) {
    if (t == 3)
        winograd_turn_taps(m, to);
    else if (t == 2)
        to[0] = vf_add(m[0], m[1]), to[1] = vf_add(m[1], m[3]);
    else
        to[0] = vf_sub(m[0], m[3]);
}

/* ---------------------------------------------------------------- tiles in */
/* Entries 0 to 3 of VF_LANES tiles that are four positions apart. */
VF_INLINE void phase_load(const winograd_plane *p, int64_t y, int64_t x, vf d[4]) {
    vf v[4];
    VF_UNROLL for (int i = 0; i < 4; i++) v[i] = winograd_load(p, y, x + i * VF_LANES);
    const vf even[2] = {vf_even(v[0], v[1]), vf_even(v[2], v[3])}, odd[2] = {vf_odd(v[0], v[1]), vf_odd(v[2], v[3])};
    d[0] = vf_even(even[0], even[1]), d[1] = vf_even(odd[0], odd[1]);
    d[2] = vf_odd(even[0], even[1]), d[3] = vf_odd(odd[0], odd[1]);
}

/* Rows that are transformed along x, half[row][2 * j + b], along y, and to their slots; of phase a, entry l is row
 * rows[a] + step * l. */
VF_INLINE void phase_columns(vf half[7][8], const int rows[2], const int step, float *to, const int64_t *slot,
                             const int K) {
    VF_UNROLL for (int j = 0; j < 4; j++) {
        VF_UNROLL for (int b = 0; b < 2; b++) {
            if (!phase_has(phase_taps(K, b), j)) continue;
            VF_UNROLL for (int a = 0; a < 2; a++) {
                const int t = phase_taps(K, a);
                vf column[4], turned[4];
                VF_UNROLL for (int l = 0; l <= t; l++) column[l] = half[rows[a] + step * l][2 * j + b];
                phase_in(t, column, turned);
                VF_UNROLL for (int i = 0; i < 4; i++) {
                    if (phase_has(t, i)) vf_store(to + slot[phase_slot(K, i, a, j, b)], turned[i]);
                }
            }
        }
    }
}

VF_INLINE void phase_tiles(const winograd_plane *p, int64_t y, int64_t x, float *to, const int64_t *slot, const int K) {
    const int rows[2] = {0, 1};
    vf half[7][8];
    VF_UNROLL for (int e = 0; e < K + 2; e++) {
        vf d[8];
        VF_UNROLL for (int i = 0; i < 8; i++) d[i] = vf_zero();
        if (y + e >= 0 && y + e < p->h) phase_load(p, y + e, x, d), phase_load(p, y + e, x + 4, d + 4);
        VF_UNROLL for (int b = 0; b < 2; b++) {
            vf entry[4], turned[4];
            VF_UNROLL for (int l = 0; l < 4; l++) entry[l] = d[2 * l + b];
            phase_in(phase_taps(K, b), entry, turned);
            VF_UNROLL for (int j = 0; j < 4; j++) half[e][2 * j + b] = turned[j];
        }
    }
    phase_columns(half, rows, 2, to, slot, K);
}

VF_INLINE void phase_tiles_back(const winograd_form *f, const winograd_plane *p, int64_t y, int64_t x, float *to,
                                const int64_t *slot, const int K) {
    const int rows[2] = {0, f->late[0]};
    vf half[7][8];
    VF_UNROLL for (int e = 0; e <= phase_taps(K, 0); e++) {
        vf d[4];
        winograd_load_pairs(p, y + e, x, d);
        VF_UNROLL for (int b = 0; b < 2; b++) {
            vf entry[4], turned[4];
            VF_UNROLL for (int l = 0; l < 4; l++) entry[l] = d[b && f->late[1] ? (l + 1) % 4 : l];
            phase_in(phase_taps(K, b), entry, turned);
            VF_UNROLL for (int j = 0; j < 4; j++) half[e][2 * j + b] = turned[j];
        }
    }
    phase_columns(half, rows, 1, to, slot, K);
}

/* ---------------------------------------------------------------- windows */
VF_INLINE void phase_windows(const winograd_form *f, const float *const from[VF_LANES], int64_t count, float *to,
                             const int64_t *slot, const int K) {
    vf w[32], half[8][5];
    VF_UNROLL for (int k = 0; k < K * K; k += VF_LANES) {
        vf v[VF_LANES];
        for (int l = 0; l < VF_LANES; l++) v[l] = l < count ? vf_load_count(from[l] + k, K * K - k) : vf_zero();
        vf_transpose(v);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) w[k + l] = v[l];
    }
    VF_UNROLL for (int x = 0; x < K; x++) {
        VF_UNROLL for (int a = 0; a < 2; a++) {
            const int t = phase_taps(K, a);
            vf column[3], turned[4];
            for (int l = 0; l < t; l++) column[l] = w[(2 * (f->back ? t - 1 - l : l) + a) * K + x];
            phase_window(t, column, turned);
            VF_UNROLL for (int i = 0; i < 4; i++) half[2 * i + a][x] = turned[i];
        }
    }
    VF_UNROLL for (int i = 0; i < 4; i++) {
        VF_UNROLL for (int a = 0; a < 2; a++) {
            if (!phase_has(phase_taps(K, a), i)) continue;
            VF_UNROLL for (int b = 0; b < 2; b++) {
                const int t = phase_taps(K, b);
                vf row[3], turned[4];
                for (int l = 0; l < t; l++) row[l] = half[2 * i + a][2 * (f->back ? t - 1 - l : l) + b];
                phase_window(t, row, turned);
                VF_UNROLL for (int j = 0; j < 4; j++) {
                    if (phase_has(t, j)) vf_store_count(to + slot[phase_slot(K, i, a, j, b)], turned[j], count);
                }
            }
        }
    }
}

/* Slots of a vector of windows to their taps: the weight gradient. */
VF_INLINE void phase_all_taps(const float *from, const int64_t *slot, float *to, const int K) {
    vf half[5][8];
    VF_UNROLL for (int j = 0; j < 4; j++) {
        VF_UNROLL for (int b = 0; b < 2; b++) {
            if (!phase_has(phase_taps(K, b), j)) continue;
            VF_UNROLL for (int a = 0; a < 2; a++) {
                const int t = phase_taps(K, a);
                vf m[4], turned[3];
                VF_UNROLL for (int i = 0; i < 4; i++) {
                    if (phase_has(t, i)) m[i] = vf_load(from + slot[phase_slot(K, i, a, j, b)]);
                }
                phase_gradient(t, m, turned);
                VF_UNROLL for (int l = 0; l < t; l++) half[2 * l + a][2 * j + b] = turned[l];
            }
        }
    }
    VF_UNROLL for (int y = 0; y < K; y++) {
        VF_UNROLL for (int b = 0; b < 2; b++) {
            const int t = phase_taps(K, b);
            vf m[4], turned[3];
            VF_UNROLL for (int j = 0; j < 4; j++) {
                if (phase_has(t, j)) m[j] = half[y][2 * j + b];
            }
            phase_gradient(t, m, turned);
            VF_UNROLL for (int l = 0; l < t; l++) vf_store(to + (y * K + 2 * l + b) * VF_LANES, turned[l]);
        }
    }
}

/* ---------------------------------------------------------------- tiles out */
VF_INLINE void phase_results(const float *from, int64_t point, vf to[WINOGRAD_BLOCK], const int K) {
    const int t = phase_taps(K, 0);
    vf half[2][4];
    VF_UNROLL for (int j = 0; j < 4; j++) {
        if (!phase_has(t, j)) continue;
        vf m[4], turned[2];
        VF_UNROLL for (int i = 0; i < 4; i++) {
            if (phase_has(t, i)) m[i] = vf_load(from + phase_product(K, i, j) * point);
        }
        phase_out(t, m, turned);
        half[0][j] = turned[0], half[1][j] = turned[1];
    }
    VF_UNROLL for (int i = 0; i < 2; i++) phase_out(t, half[i], to + 2 * i);
}

/* Phases a and b are every other row and column of 4 x 4 positions, from the first if they are late. */
VF_INLINE void phase_results_back(const winograd_form *f, const float *from, int64_t point, vf to[WINOGRAD_BLOCK],
                                  const int K) {
    VF_UNROLL for (int a = 0; a < 2; a++) {
        VF_UNROLL for (int b = 0; b < 2; b++) {
            const int t = phase_taps(K, a), u = phase_taps(K, b);
            const int y = a ? f->late[0] : 1 - f->late[0], x = b ? f->late[1] : 1 - f->late[1];
            vf half[2][4];
            VF_UNROLL for (int j = 0; j < 4; j++) {
                if (!phase_has(u, j)) continue;
                vf m[4], turned[2];
                VF_UNROLL for (int i = 0; i < 4; i++) {
                    if (phase_has(t, i)) m[i] = vf_load(from + phase_slot(K, i, a, j, b) * point);
                }
                phase_out(t, m, turned);
                half[0][j] = turned[0], half[1][j] = turned[1];
            }
            for (int i = 0; i < 2; i++) {
                vf out[2];
                phase_out(u, half[i], out);
                to[4 * (2 * i + y) + x] = out[0], to[4 * (2 * i + y) + x + 2] = out[1];
            }
        }
    }
}

VF_INLINE void phase_diff(const winograd_plane *p, int64_t y, int64_t x, float *to, int64_t point, const int K) {
    const int t = phase_taps(K, 0);
    vf half[2][4];
    winograd_diff_rows(p, y, x, half);
    VF_UNROLL for (int j = 0; j < 4; j++) {
        vf turned[4];
        if (!phase_has(t, j)) continue;
        winograd_turn_diff(half[0][j], half[1][j], turned);
        VF_UNROLL for (int i = 0; i < 4; i++) {
            if (phase_has(t, i)) vf_store(to + phase_product(K, i, j) * point, turned[i]);
        }
    }
}

/* ---------------------------------------------------------------- the forms */
#define PHASE_FORM(K)                                                                                                  \
    static void phase_in_##K(const winograd_form *f, const winograd_plane *p, int64_t y, int64_t x, float *to,         \
                             const int64_t *slot) {                                                                    \
        (void)f;                                                                                                       \
        phase_tiles(p, y, x, to, slot, K);                                                                             \
    }                                                                                                                  \
    static void phase_in_back_##K(const winograd_form *f, const winograd_plane *p, int64_t y, int64_t x, float *to,    \
                                  const int64_t *slot) {                                                               \
        phase_tiles_back(f, p, y, x, to, slot, K);                                                                     \
    }                                                                                                                  \
    static void phase_windows_##K(const winograd_form *f, const float *const from[VF_LANES], int64_t count, float *to, \
                                  const int64_t *slot) {                                                               \
        phase_windows(f, from, count, to, slot, K);                                                                    \
    }                                                                                                                  \
    static void phase_out_##K(const winograd_form *f, const float *from, int64_t point, vf to[WINOGRAD_BLOCK]) {       \
        (void)f;                                                                                                       \
        phase_results(from, point, to, K);                                                                             \
    }                                                                                                                  \
    static void phase_out_back_##K(const winograd_form *f, const float *from, int64_t point, vf to[WINOGRAD_BLOCK]) {  \
        phase_results_back(f, from, point, to, K);                                                                     \
    }                                                                                                                  \
    static void phase_diff_##K(const winograd_plane *p, int64_t y, int64_t x, float *to, int64_t point) {              \
        phase_diff(p, y, x, to, point, K);                                                                             \
    }                                                                                                                  \
    static void phase_taps_##K(const float *from, const int64_t *slot, float *to) { phase_all_taps(from, slot, to, K); }
PHASE_FORM(3)
PHASE_FORM(5)

/* window: 3 or 5 */
static inline winograd_form winograd_form_phases(int window, bool back, const int64_t pad[2]) {
    const bool five = window == 5;
    winograd_form f = {.window = window, .stride = 2, .back = back, .step_in = back ? 2 : 4, .step_out = back ? 4 : 2};
    int slot = 0;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int all = phase_count(window, i) * phase_count(window, j);
            for (int k = 0; k < all; k++, slot++)
                if (back || k == 0) f.first[f.products++] = (uint8_t)slot;
        }
    f.slots = slot, f.first[f.products] = (uint8_t)slot;
    for (int a = 0; a < 2; a++) f.late[a] = (int)(1 - pad[a] % 2);
    f.in = back ? five ? phase_in_back_5 : phase_in_back_3 : five ? phase_in_5 : phase_in_3;
    f.out = back ? five ? phase_out_back_5 : phase_out_back_3 : five ? phase_out_5 : phase_out_3;
    f.windows = five ? phase_windows_5 : phase_windows_3;
    f.diff = five ? phase_diff_5 : phase_diff_3, f.taps = five ? phase_taps_5 : phase_taps_3;
    return f;
}
/* Positions of diff_dst before the first that the tile of position 0 of diff_src reads. */
VF_INLINE int64_t phase_ahead(int window, int64_t pad) { return phase_taps(window, 0) - 1 - (pad + 1) / 2; }

#endif
