/* Depthwise, channels-first: gradients of weights over rows in cache.
 * Math:      sums[r,s] += center[y,x] * in[y step + r gap, x + col(s)]
 * Blocking:  T x K taps stay in registers over all centers. Where neighbours share rows the window rolls down a column
 *            of vectors: a step loads one center and K taps for T K multiply-adds, T centers are kept. Else a step
 *            loads one center and T K taps. Larger windows take several passes over the rows, which are in cache */
#include "cpu/dwconv/first_tile.h"

enum { DEEP = VF_REGS >= 32 ? 3 : 1 }; /* tap rows of a pass of 7 or 8 taps */

typedef struct pass { /* T x K taps */
    const float *in, *center;
    int64_t row, tap_row, pitch, rows, cols;
    const int64_t *col;
    float *sums; /* of the first tap, rows of them kw apart */
    int64_t kw;
} pass;

/* One input row: taps of centers [from, to]. */
VF_INLINE void step(vf sum[], const vf d[], const pass *p, const float *in, const int K, const int from, const int to) {
    VF_UNROLL for (int s = 0; s < K; s++) {
        const vf t = vf_load(in + p->col[s]);
        VF_UNROLL for (int j = from; j <= to; j++) sum[j * K + s] = vf_fma(t, d[j], sum[j * K + s]);
    }
}

/* d[j] is the center j rows above the newest. */
VF_INLINE void roll(vf d[], const float *center, const int T) {
    VF_UNROLL for (int j = T - 1; j > 0; j--) d[j] = d[j - 1];
    d[0] = vf_load(center);
}

VF_INLINE void rolling(vf sum[], const pass *p, int64_t x, const int T, const int K) {
    const float *in = p->in + x, *center = p->center + x;
    vf d[8];
    VF_UNROLL for (int j = 0; j < T; j++) d[j] = vf_zero();
    VF_UNROLL for (int i = 0; i < T - 1; i++, in += p->row, center += p->pitch) {
        roll(d, center, T);
        step(sum, d, p, in, K, 0, i);
    }
    for (int64_t i = T - 1; i < p->rows; i++, in += p->row, center += p->pitch) {
        roll(d, center, T);
        step(sum, d, p, in, K, 0, T - 1);
    }
    VF_UNROLL for (int i = 0; i < T - 1; i++, in += p->row) {
        VF_UNROLL for (int j = T - 1; j > 0; j--) d[j] = d[j - 1];
        step(sum, d, p, in, K, i + 1, T - 1);
    }
}

VF_INLINE void apart(vf sum[], const pass *p, int64_t x, const int T, const int K) {
    const float *in = p->in + x, *center = p->center + x;
    for (int64_t y = 0; y < p->rows; y++, in += p->row, center += p->pitch) {
        const vf d = vf_load(center);
        VF_UNROLL for (int j = 0; j < T; j++) VF_UNROLL for (int s = 0; s < K; s++) sum[j * K + s] =
            vf_fma(vf_load(in + j * p->tap_row + p->col[s]), d, sum[j * K + s]);
    }
}

VF_INLINE void run_pass(const pass *p, const int T, const int K) {
    const bool roll_down = T > 1 && p->row == p->tap_row && p->rows >= T;
    vf sum[25];
    VF_UNROLL for (int i = 0; i < T * K; i++) sum[i] = vf_zero();
    for (int64_t x = 0; x < p->cols; x += VF_LANES) {
        if (roll_down)
            rolling(sum, p, x, T, K);
        else
            apart(sum, p, x, T, K);
    }
    VF_UNROLL for (int j = 0; j < T; j++) VF_UNROLL for (int s = 0; s < K; s++) {
        float *to = p->sums + (j * p->kw + s) * VF_LANES;
        vf_store(to, vf_add(vf_load(to), sum[j * K + s]));
    }
}

/* Rows of taps r .. kh in passes of T, then of 1; columns of taps s .. s + K. */
VF_INLINE void passes(pass p, const dwf_block *b, int64_t s, const int T, const int K) {
    p.col += s, p.sums += s * VF_LANES;
    int64_t r = 0;
    for (; r + T <= b->kh; r += T, p.in += T * p.tap_row, p.sums += T * b->kw * VF_LANES) run_pass(&p, T, K);
    for (; r < b->kh; r++, p.in += p.tap_row, p.sums += b->kw * VF_LANES) run_pass(&p, 1, K);
}

void dwf_grad(const dwf_block *b, const float *in, float *sums, const float *center, int64_t pitch, int64_t rows,
              int64_t cols) {
    const pass p = {in, center, b->row, b->tap_row, pitch, rows, cols, b->col, sums, b->kw};
    if (b->kw == 3)
        passes(p, b, 0, 3, 3);
    else if (b->kw == 5)
        passes(p, b, 0, VF_REGS >= 32 ? 5 : 2, 5);
    else if (b->kw == 7)
        passes(p, b, 0, DEEP, 7);
    else {
        int64_t s = 0;
        for (; s + 8 <= b->kw; s += 8) passes(p, b, s, DEEP, 8);
        for (; s + 4 <= b->kw; s += 4) passes(p, b, s, DEEP, 4);
        for (; s < b->kw; s++) passes(p, b, s, DEEP, 1);
    }
}
