/* The matrix products of recurrent layers on operands as they lie: nothing is packed. See layers.h.
 * Blocking:  dots: 4 x 4 rows (AVX2 2 x 4), or 8 rows of weights against one of data; lanes along k, added at the end.
 *            outer: 4 rows by 4 vectors of columns (AVX2 by 2), lanes along the columns
 * Traffic:   dots of one row of data read each weight once: bound by the cache that holds them */
#include "cpu/rnn/layers.h"

enum { TALL = VF_REGS == 32 ? 4 : 2, WIDE = VF_REGS == 32 ? 4 : 2 };

/* out[j * ldo + i] = sum_k w[i][k] a[j][k] for m rows of weights and n of data, both contiguous along k. */
VF_INLINE void dot_tile(const float *w, int64_t ldw, const float *const *a, int64_t k, float *out, int64_t ldo,
                        const int m, const int n) {
    vf sum[8][SIDE];
    VF_UNROLL for (int i = 0; i < m; i++) { VF_UNROLL for (int j = 0; j < n; j++) sum[i][j] = vf_zero(); }
    int64_t at = 0;
    for (; at + VF_LANES <= k; at += VF_LANES) {
        vf x[SIDE];
        VF_UNROLL for (int j = 0; j < n; j++) x[j] = vf_load(a[j] + at);
        VF_UNROLL for (int i = 0; i < m; i++) {
            const vf y = vf_load(w + i * ldw + at);
            VF_UNROLL for (int j = 0; j < n; j++) sum[i][j] = vf_fma(y, x[j], sum[i][j]);
        }
    }
    if (at < k) {
        VF_UNROLL for (int i = 0; i < m; i++) {
            const vf y = vf_load_count(w + i * ldw + at, k - at);
            VF_UNROLL for (int j = 0; j < n; j++) sum[i][j] = vf_fma(y, vf_load_count(a[j] + at, k - at), sum[i][j]);
        }
    }
    VF_UNROLL for (int i = 0; i < m; i++) {
        VF_UNROLL for (int j = 0; j < n; j++) out[j * ldo + i] = vf_sum(sum[i][j]);
    }
}

void layers_dots(const float *w, int64_t ldw, int64_t rows, const float *const *a, int64_t n, int64_t k, float *out,
                 int64_t ldo) {
    int64_t i = 0;
    if (n == SIDE)
        for (; i + TALL <= rows; i += TALL) dot_tile(w + i * ldw, ldw, a, k, out + i, ldo, TALL, SIDE);
    for (int64_t j = 0; j < n; j++) {
        int64_t r = i;
        for (; r + 8 <= rows; r += 8) dot_tile(w + r * ldw, ldw, a + j, k, out + j * ldo + r, ldo, 8, 1);
        for (; r < rows; r++) dot_tile(w + r * ldw, ldw, a + j, k, out + j * ldo + r, ldo, 1, 1);
    }
}

VF_INLINE void outer_tile(const float *a, int64_t step, int64_t side, const float *const *b, int64_t k, int64_t col,
                          int64_t left, float *c, int64_t ldc, bool add, const int m, const int vectors) {
    const bool whole = left >= vectors * VF_LANES;
    vf sum[4][WIDE];
    VF_UNROLL for (int i = 0; i < m; i++) {
        VF_UNROLL for (int j = 0; j < vectors; j++) {
            const float *from = c + i * ldc + col + j * VF_LANES;
            sum[i][j] = !add ? vf_zero() : whole ? vf_load(from) : vf_load_count(from, left);
        }
    }
    for (int64_t r = 0; r < k; r++, a += step) {
        vf x[WIDE];
        VF_UNROLL for (int j = 0; j < vectors; j++) x[j] =
            whole ? vf_load(b[r] + col + j * VF_LANES) : vf_load_count(b[r] + col, left);
        VF_UNROLL for (int i = 0; i < m; i++) {
            const vf y = vf_broadcast(a + i * side);
            VF_UNROLL for (int j = 0; j < vectors; j++) sum[i][j] = vf_fma(y, x[j], sum[i][j]);
        }
    }
    VF_UNROLL for (int i = 0; i < m; i++) {
        VF_UNROLL for (int j = 0; j < vectors; j++) {
            if (whole)
                vf_store(c + i * ldc + col + j * VF_LANES, sum[i][j]);
            else
                vf_store_count(c + i * ldc + col, sum[i][j], left);
        }
    }
}

void layers_outer(const float *a, int64_t step, int64_t side, int64_t rows, const float *const *b, int64_t k,
                  int64_t first, int64_t last, float *c, int64_t ldc, bool add) {
    for (int64_t col = first, width; col < last; col += width) {
        const bool wide = col + WIDE * VF_LANES <= last;
        width = wide ? WIDE * VF_LANES : VF_LANES;
        int64_t i = 0;
        for (; i + 4 <= rows; i += 4) {
            if (wide)
                outer_tile(a + i * side, step, side, b, k, col, width, c + i * ldc, ldc, add, 4, WIDE);
            else
                outer_tile(a + i * side, step, side, b, k, col, last - col, c + i * ldc, ldc, add, 4, 1);
        }
        for (; i < rows; i++) {
            if (wide)
                outer_tile(a + i * side, step, side, b, k, col, width, c + i * ldc, ldc, add, 1, WIDE);
            else
                outer_tile(a + i * side, step, side, b, k, col, last - col, c + i * ldc, ldc, add, 1, 1);
        }
    }
}
