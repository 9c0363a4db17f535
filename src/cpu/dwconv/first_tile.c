/* Depthwise, channels-first: sums of a window over rows in cache.
 * Blocking:  4 rows x up to 4 vectors (2 with 16 registers) of outputs stay in registers over all taps. Where
 *            neighbours share rows a vector of a row is loaded once for the up to 4 output rows it feeds (with a
 *            stride of 2 in windows of 3, 5 and 7), and a weight once for the vectors of a row: 3x3 has its weights in
 *            registers, and with 32 of them the second and third tap of all vectors but the last two are slid out of
 *            what the first one loaded, which is a tenth faster than loads that split lines; larger windows load 8
 *            values for 16 multiply-adds. The last vector of a row and the last 4 rows overlap what was done: no lane
 *            is masked from one vector on
 * Roofline:  multiply-adds; loads at odd offsets split lines, at most one load for two multiply-adds in the shared
 *            case */
#include "cpu/dwconv/first_tile.h"

enum { ROWS = 4, VECTORS = VF_REGS >= 32 ? 4 : 2, SLID = VF_REGS >= 32 };
/* How taps reach rows: 3x3 unrolled; rows shared, taps of a row in order; the same with a stride of 2; rows apart, any
 * step and gap. */
enum { UNROLLED, SHARED, SHARED_BY_2, APART };

/* Vectors of one input row at tap s. last: where the last of them begins. m: lanes whose taps lie inside the row, V for
 * each tap. */
VF_INLINE void load_row(vf t[], const float *in, int64_t s, int64_t last, const vmask *m, const int V,
                        const bool masked) {
    VF_UNROLL for (int v = 0; v < V; v++) {
        const float *p = in + (v == V - 1 ? last : v * VF_LANES);
        t[v] = vf_keep(masked ? vf_load_in(m[s * V + v], p) : vf_load(p));
    }
}

/* The same pointer, about which the compiler knows nothing: weights are loaded where they are used, not kept for later
 * rows in registers that are not there. */
VF_INLINE const float *fresh(const float *p) {
    __asm__("" : "+r"(p));
    return p;
}

/* One tap of an input row for output rows [from, to]; w: its weight for output row `from`, kw apart. */
VF_INLINE void shared_tap(vf sum[], const float *in, const float *w, int64_t s, int64_t kw, int64_t last,
                          const vmask *m, const int V, const bool masked, const int from, const int to) {
    vf t[VECTORS];
    load_row(t, in, s, last, m, V, masked);
    VF_UNROLL for (int j = from; j <= to; j++) {
        const vf weight = vf_broadcast(w + s - (j - from) * kw);
        VF_UNROLL for (int v = 0; v < V; v++) sum[j * V + v] = vf_fma(t[v], weight, sum[j * V + v]);
    }
}

VF_INLINE void shared_row(vf sum[], const dwf_block *b, const float *in, const float *w, int64_t last, const vmask *m,
                          const int V, const int KW, const bool masked, const int from, const int to) {
    w = fresh(w);
    if (KW) {
        VF_UNROLL for (int s = 0; s < KW; s++) shared_tap(sum, in + s, w, s, KW, last, m, V, masked, from, to);
    } else {
        for (int64_t s = 0; s < b->kw; s++) shared_tap(sum, in + b->col[s], w, s, b->kw, last, m, V, masked, from, to);
    }
}

/* kh >= ROWS - 1: rows that feed the first outputs only, all, the last only. */
VF_INLINE void shared(vf sum[], const dwf_block *b, const float *in, const float *w, int64_t y, int64_t last,
                      const vmask *m, const int V, const int KW, const bool masked) {
    const int64_t kw = KW ? KW : b->kw, lo = b->lo - y, hi = b->hi - y;
    VF_UNROLL for (int i = 0; i < ROWS - 1; i++) if (i >= lo && i < hi)
        shared_row(sum, b, in + i * b->row, w + i * kw, last, m, V, KW, masked, 0, i);
    const int64_t end = WEFT__MIN(hi, b->kh);
    for (int64_t i = WEFT__MAX(lo, ROWS - 1); i < end; i++)
        shared_row(sum, b, in + i * b->row, w + i * kw, last, m, V, KW, masked, 0, ROWS - 1);
    VF_UNROLL for (int i = 0; i < ROWS - 1; i++) if (b->kh + i >= lo && b->kh + i < hi)
        shared_row(sum, b, in + (b->kh + i) * b->row, w + (b->kh - 1) * kw, last, m, V, KW, masked, i + 1, ROWS - 1);
}

/* K x K taps: a row feeds every second one of the rows of taps, and up to (K + 1) / 2 rows of outputs. */
VF_INLINE void shared_by_2(vf sum[], const dwf_block *b, const float *in, const float *w, int64_t y, int64_t last,
                           const int V, const int K) {
    const int64_t lo = b->lo - 2 * y, hi = b->hi - 2 * y;
    VF_UNROLL for (int i = 0; i < 2 * (ROWS - 1) + K; i++) {
        const int from = i < K ? 0 : (i - K) / 2 + 1, to = i / 2 < ROWS ? i / 2 : ROWS - 1;
        if (i < lo || i >= hi) continue;
        for (int64_t s = 0; s < K; s++) {
            vf t[VECTORS];
            load_row(t, in + i * b->tap_row + b->col[s], s, last, NULL, V, false);
            VF_UNROLL for (int j = from; j <= to; j++) {
                const vf weight = vf_broadcast(w + (i - 2 * j) * K + s);
                VF_UNROLL for (int v = 0; v < V; v++) sum[j * V + v] = vf_fma(t[v], weight, sum[j * V + v]);
            }
        }
    }
}

VF_INLINE void unrolled(vf sum[], const dwf_block *b, const float *in, const float *weights, int64_t y, int64_t last,
                        const vmask *m, const int V, const int S, const bool masked) {
    vf w[9];
    VF_UNROLL for (int k = 0; k < 9; k++) w[k] =
        VF_REGS >= 32 ? vf_keep(vf_broadcast(weights + k)) : vf_broadcast(weights + k);
    VF_UNROLL for (int i = 0; i < S * (ROWS - 1) + 3; i++) {
        if (S == 1 && (y + i < b->lo || y + i >= b->hi)) continue;
        vf t[VECTORS], first[VECTORS];
        VF_UNROLL for (int s = 0; s < 3; s++) {
            const float *row = in + i * b->tap_row + s % S * b->phase + s / S;
            if (s == 0) load_row(first, row, s, last, m, V, masked);
            VF_UNROLL for (int v = 0; v < V; v++) {
                const bool slid = SLID && S == 1 && v + 2 < V;
                const float *p = row + (v == V - 1 ? last : v * VF_LANES);
                t[v] = s == 0 ? first[v]
                       : slid ? vf_slide(first[v], first[v + 1 < V ? v + 1 : v], s)
                              : vf_keep(masked ? vf_load_in(m[s * V + v], p) : vf_load(p));
                VF_UNROLL for (int j = 0; j < ROWS; j++) {
                    const int r = i - S * j;
                    if (r >= 0 && r <= 2) sum[j * V + v] = vf_fma(t[v], w[3 * r + s], sum[j * V + v]);
                }
            }
        }
    }
}

VF_INLINE void apart(vf sum[], const dwf_block *b, const float *in, const float *w, int64_t y, int64_t last,
                     const vmask *m, const int R, const int V, const bool masked) {
    for (int64_t r = 0; r < b->kh; r++, in += b->tap_row)
        for (int64_t s = 0; s < b->kw; s++) {
            const vf weight = vf_broadcast(w++);
            VF_UNROLL for (int j = 0; j < R; j++) {
                const int64_t row = (y + j) * b->step_h + r * b->gap_h;
                vf t[VECTORS];
                if (row < b->lo || row >= b->hi) continue;
                load_row(t, in + b->col[s] + j * b->row, s, last, m, V, masked);
                VF_UNROLL for (int v = 0; v < V; v++) sum[j * V + v] = vf_fma(t[v], weight, sum[j * V + v]);
            }
        }
}

/* R x V vectors of outputs from row y and column x on; count: lanes of them that exist, if there is one vector. */
VF_INLINE void tile(const dwf_block *b, float *out, int64_t pitch, int64_t y, int64_t x, int64_t last, int64_t count,
                    const vmask *m, const int R, const int V, const int mode, const int KW, const int S,
                    const bool masked) {
    vf sum[ROWS * VECTORS];
    VF_UNROLL for (int j = 0; j < R * V; j++) sum[j] = vf_set1(b->bias);
    for (int q = 0; q < b->planes; q++) {
        const float *in = b->plane[q] + y * b->row + x;
        if (mode == UNROLLED)
            unrolled(sum, b, in, b->weights[q], y, last, m, V, S, masked);
        else if (mode == SHARED)
            shared(sum, b, in, b->weights[q], y, last, m, V, KW, masked);
        else if (mode == SHARED_BY_2)
            shared_by_2(sum, b, in, b->weights[q], y, last, V, KW);
        else
            apart(sum, b, in, b->weights[q], y, last, m, R, V, masked);
    }
    const vf min = vf_set1(b->min), max = vf_set1(b->max);
    VF_UNROLL for (int j = 0; j < R; j++) VF_UNROLL for (int v = 0; v < V; v++) {
        float *to = out + (y + j) * pitch + x + (v == V - 1 ? last : v * VF_LANES);
        const vf value = vf_clip(sum[j * V + v], min, max);
        if (V == 1)
            vf_store_count(to, value, count);
        else
            vf_store(to, value);
    }
}

/* A row of outputs in tiles of `fit` vectors: where the last of them begins, from x on, and whether taps of the tile
 * lie outside the row. */
typedef struct step {
    int64_t x, fit, last;
    bool edge;
} step;

VF_INLINE step step_of(const dwf_block *b, int64_t x, int64_t cols) {
    const int64_t left = cpu_ceil(cols - x, VF_LANES);
    step t = {.x = x, .fit = left > VECTORS && left < 2 * VECTORS ? (left + 1) / 2 : WEFT__MIN(left, VECTORS)};
    if (t.fit == 1 && cols >= VF_LANES) t.x = WEFT__MIN(x, cols - VF_LANES);
    t.last = WEFT__MAX(0, WEFT__MIN((t.fit - 1) * VF_LANES, cols - VF_LANES - t.x));
    t.edge = b->left + t.x < 0 || b->left + t.x + t.last + VF_LANES + b->kw - 1 > b->width;
    return t;
}

/* Masks of the tiles of a row that lie at an edge, in order: a few, see dwf_cut. */
typedef struct masks {
    vmask of[DWF_EDGES][DWF_MASKED * VECTORS];
} masks;

VF_INLINE void find_masks(masks *m, const dwf_block *b, int64_t cols) {
    int64_t n = 0;
    for (int64_t x = 0; x < cols && n < DWF_EDGES;) {
        const step t = step_of(b, x, cols);
        for (int64_t i = 0; i < b->kw * t.fit && t.edge; i++) {
            const int64_t s = i / t.fit, v = i % t.fit,
                          at = b->left + s + t.x + (v == t.fit - 1 ? t.last : v * VF_LANES);
            m->of[n][i] = vm_range(-at, b->width - at);
        }
        n += t.edge, x += t.fit * VF_LANES;
    }
}

/* m NULL: the rows are in scratch, where the padding is zeros. */
VF_INLINE void columns(const dwf_block *b, const masks *m, float *out, int64_t pitch, int64_t y, int64_t cols,
                       const int R, const int mode, const int KW, const int S, const bool masked) {
    int64_t n = 0;
    for (int64_t x = 0; x < cols;) {
        const step t = step_of(b, x, cols);
        x += t.fit * VF_LANES;
#define TILE(V)                                                                         \
    if (t.fit == V && masked && m && t.edge)                                            \
        tile(b, out, pitch, y, t.x, t.last, cols, m->of[n++], R, V, mode, KW, S, true); \
    else if (t.fit == V)                                                                \
        tile(b, out, pitch, y, t.x, t.last, cols, NULL, R, V, mode, KW, S, false);
        TILE(1)
        TILE(2)
#if VF_REGS >= 32
        TILE(3)
        TILE(4)
#endif
#undef TILE
    }
}

VF_INLINE void sum_rows(const dwf_block *b, const masks *m, float *out, int64_t pitch, int64_t rows, int64_t cols,
                        const int mode, const int KW, const int S, const bool masked) {
    int64_t ahead = 0;
    for (int64_t y = 0; y < rows; y += ROWS) {
        for (const int64_t end = ahead + b->pace; ahead < end; ahead += 64) vf_prefetch(b->ahead, ahead);
        columns(b, m, out, pitch, WEFT__MIN(y, rows - ROWS), cols, ROWS, mode, KW, S, masked);
    }
}

/* A function for each kind of window: all in one take twice as long to compile. */
#define ROWS_OF(name, ...)                                                                                    \
    static __attribute__((noinline)) void name(const dwf_block *b, const masks *m, float *out, int64_t pitch, \
                                               int64_t rows, int64_t cols) {                                  \
        sum_rows(b, m, out, pitch, rows, cols, __VA_ARGS__);                                                  \
    }
ROWS_OF(rows_3, UNROLLED, 3, 1, true)
ROWS_OF(rows_3_by_2, UNROLLED, 3, 2, false)
ROWS_OF(rows_5, SHARED, 5, 1, true)
ROWS_OF(rows_7, SHARED, 7, 1, true)
ROWS_OF(rows_5_by_2, SHARED_BY_2, 5, 2, false)
ROWS_OF(rows_7_by_2, SHARED_BY_2, 7, 2, false)
ROWS_OF(rows_shared, SHARED, 0, 0, true)
ROWS_OF(rows_apart, APART, 0, 0, true)
#undef ROWS_OF

static void few_rows(const dwf_block *b, const masks *m, float *out, int64_t pitch, int64_t rows, int64_t cols) {
    for (int64_t y = 0; y < rows; y++) columns(b, m, out, pitch, y, cols, 1, APART, 0, 0, true);
}

static void sum_all(const dwf_block *b, const masks *m, float *out, int64_t pitch, int64_t rows, int64_t cols) {
    const bool plain = b->gap_h == 1 && b->gap_w == 1 && b->step_h == b->step_w;
    const bool by_2 = !m && plain && b->step_h == 2;
    const bool share = b->step_h == 1 && b->gap_h == 1 && b->kh >= ROWS - 1, next = b->step_w == 1 && b->gap_w == 1;
    if (rows < ROWS)
        few_rows(b, m, out, pitch, rows, cols);
    else if (plain && b->kh == 3 && b->kw == 3 && b->step_h == 1)
        rows_3(b, m, out, pitch, rows, cols);
    else if (by_2 && b->kh == 3 && b->kw == 3)
        rows_3_by_2(b, m, out, pitch, rows, cols);
    else if (by_2 && b->kh == 5 && b->kw == 5)
        rows_5_by_2(b, m, out, pitch, rows, cols);
    else if (by_2 && b->kh == 7 && b->kw == 7)
        rows_7_by_2(b, m, out, pitch, rows, cols);
    else if (share && next && b->kw == 5)
        rows_5(b, m, out, pitch, rows, cols);
    else if (share && next && b->kw == 7)
        rows_7(b, m, out, pitch, rows, cols);
    else if (share)
        rows_shared(b, m, out, pitch, rows, cols);
    else
        rows_apart(b, m, out, pitch, rows, cols);
}

/* in_place: rows as the caller has them; else rows in scratch. */
void dwf_sum(const dwf_block *b, float *out, int64_t pitch, int64_t rows, int64_t cols) {
    if (b->in_place) {
        masks m;
        find_masks(&m, b, cols);
        sum_all(b, &m, out, pitch, rows, cols);
    } else {
        sum_all(b, NULL, out, pitch, rows, cols);
    }
}
