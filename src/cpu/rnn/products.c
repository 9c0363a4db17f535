/* The matrix products of recurrent layers: weights are read as they lie, in rows; data are turned or copied where that
 * is cheaper than what they meet. See layers.h.
 * Blocking:  dots: 4 x 4 rows (AVX2 2 x 4), or 8 rows of weights against one of data; lanes along k, added at the end.
 *            product: tiles of cpu/gemm, lanes along the rows of turned data. outer: 4 rows by 4 vectors of columns
 *            (AVX2 by 2). weights: tiles of cpu/gemm, operands copied in runs of CHUNK, which are then near
 * Traffic:   dots of one row of data read each weight once: bound by the cache that holds them */
#include "cpu/gemm/gemm.h"
#include "cpu/rnn/layers.h"

enum { TALL = VF_REGS == 32 ? 4 : 2, WIDE = VF_REGS == 32 ? 4 : 2, LONG = VF_REGS == 32 ? 16 : 8 };

/* ---------------------------------------------------------------- few rows of data */
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

/* ---------------------------------------------------------------- many rows of data */
void layers_turn(const float *const *from, int64_t n, int64_t k, float *to, int64_t ld) {
    for (int64_t i = 0; i < n; i += VF_LANES)
        for (int64_t c = 0; c < k; c += VF_LANES) {
            vf v[VF_LANES];
            for (int64_t r = 0; r < VF_LANES; r++) v[r] = i + r < n ? vf_load_count(from[i + r] + c, k - c) : vf_zero();
            vf_transpose(v);
            for (int64_t r = 0; r < VF_LANES && c + r < k; r++) vf_store_count(to + (c + r) * ld + i, v[r], n - i);
        }
}

void layers_product(const float *w, int64_t ldw, int64_t rows, const float *turned, int64_t ld, int64_t n, int64_t k,
                    float *out) {
    const int64_t panels = gemm_split(rows, GEMM_MR);
    for (int64_t p = 0; p < panels; p++) {
        const int64_t first = gemm_first(rows, panels, p), m = gemm_first(rows, panels, p + 1) - first;
        const float *list[GEMM_MR];
        for (int64_t i = 0; i < m; i++) list[i] = w + (first + i) * ldw;
        const gemm_tile t = {.k = k,
                             .segments = 1,
                             .rows = list,
                             .b = turned,
                             .ldb = ld,
                             .c = out + first * LOT,
                             .ldc = LOT,
                             .tail = VF_LANES};
        gemm_run(&t, GEMM_ROWS, m, cpu_ceil(n, VF_LANES));
    }
}

/* ---------------------------------------------------------------- sums of rows */
VF_INLINE void outer_tile(const float *a, int64_t step, int64_t side, const float *const *b, int64_t k, int64_t col,
                          int64_t left, float *c, int64_t ldc, bool add, const int m, const int vectors) {
    const bool whole = left >= vectors * VF_LANES;
    vf sum[LONG];
    VF_UNROLL for (int i = 0; i < m; i++) {
        VF_UNROLL for (int j = 0; j < vectors; j++) {
            const float *from = c + i * ldc + col + j * VF_LANES;
            sum[i * vectors + j] = !add ? vf_zero() : whole ? vf_load(from) : vf_load_count(from, left);
        }
    }
    for (int64_t r = 0; r < k; r++, a += step) {
        vf y[4];
        VF_UNROLL for (int i = 0; i < m; i++) y[i] = vf_broadcast(a + i * side);
        VF_UNROLL for (int j = 0; j < vectors; j++) {
            const vf x = whole ? vf_load(b[r] + col + j * VF_LANES) : vf_load_count(b[r] + col, left);
            VF_UNROLL for (int i = 0; i < m; i++) sum[i * vectors + j] = vf_fma(y[i], x, sum[i * vectors + j]);
        }
    }
    VF_UNROLL for (int i = 0; i < m; i++) {
        VF_UNROLL for (int j = 0; j < vectors; j++) {
            if (whole)
                vf_store(c + i * ldc + col + j * VF_LANES, sum[i * vectors + j]);
            else
                vf_store_count(c + i * ldc + col, sum[i * vectors + j], left);
        }
    }
}

/* Columns from `col` on, as many as m rows have sums for; what is left beside them vector by vector. */
VF_INLINE int64_t outer_columns(const float *a, int64_t step, int64_t side, const float *const *b, int64_t k,
                                int64_t col, int64_t last, float *c, int64_t ldc, bool add, const int m,
                                const int vectors) {
    for (; col + vectors * VF_LANES <= last; col += vectors * VF_LANES)
        outer_tile(a, step, side, b, k, col, vectors * VF_LANES, c, ldc, add, m, vectors);
    for (; col < last; col += VF_LANES) outer_tile(a, step, side, b, k, col, last - col, c, ldc, add, m, 1);
    return col;
}

void layers_outer(const float *a, int64_t step, int64_t side, int64_t rows, const float *const *b, int64_t k,
                  int64_t first, int64_t last, float *c, int64_t ldc, bool add) {
    int64_t i = 0;
    for (; i + 4 <= rows; i += 4)
        outer_columns(a + i * side, step, side, b, k, first, last, c + i * ldc, ldc, add, 4, WIDE);
    for (; i < rows; i++) outer_columns(a + i * side, step, side, b, k, first, last, c + i * ldc, ldc, add, 1, LONG);
}

/* ---------------------------------------------------------------- gradients of weights */
/* `count` floats of each of `rows` rows, side by side, zeros up to `width`. */
VF_INLINE void copy_runs(const float *const *from, int64_t rows, int64_t at, int64_t count, float *to,
                         const int64_t width) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i += VF_LANES)
            vf_store(to + r * width + i, vf_load_count(from[r] + at + i, count - i));
}

VF_INLINE void put_run(float *to, const float *from, int64_t count, bool stream) {
    if (!stream || (uintptr_t)to % (VF_LANES * sizeof(float))) {
        memcpy(to, from, (size_t)count * sizeof(float));
        return;
    }
    int64_t i = 0;
    for (; i + VF_LANES <= count; i += VF_LANES) vf_stream(to + i, vf_load(from + i));
    if (i < count) vf_store_count(to + i, vf_load(from + i), count - i);
}

void layers_weights(const float *const *a, int64_t at, int64_t count, const float *const *b, int64_t rows,
                    int64_t columns, float *c, int64_t ldc, bool stream, float *scratch) {
    float *left = scratch, *right = left + CHUNK * GATE_ROWS, *sums = right + CHUNK * GEMM_NR;
    const int64_t panels = gemm_split(count, GEMM_MR);
    for (int64_t begin = 0; begin < columns; begin += ACROSS) {
        const int64_t end = WEFT__MIN(begin + ACROSS, columns);
        for (int64_t row = 0; row < rows; row += CHUNK) {
            const int64_t k = WEFT__MIN(CHUNK, rows - row);
            copy_runs(a + row, k, at, count, left, GATE_ROWS);
            for (int64_t col = begin; col < end; col += GEMM_NR) {
                const int64_t width = WEFT__MIN(GEMM_NR, end - col);
                copy_runs(b + row, k, col, width, right, GEMM_NR);
                for (int64_t p = 0; p < panels; p++) {
                    const int64_t first = gemm_first(count, panels, p), m = gemm_first(count, panels, p + 1) - first;
                    float *out = sums + first * ACROSS + (col - begin);
                    const gemm_tile t = {.k = k,
                                         .a = left + first,
                                         .lda = GATE_ROWS,
                                         .b = right,
                                         .ldb = GEMM_NR,
                                         .from = row ? out : NULL,
                                         .ld_from = ACROSS,
                                         .c = out,
                                         .ldc = ACROSS,
                                         .tail = VF_LANES};
                    gemm_run(&t, GEMM_STRIDED, m, cpu_ceil(width, VF_LANES));
                }
            }
        }
        for (int64_t i = 0; i < count; i++) put_run(c + i * ldc + begin, sums + i * ACROSS, end - begin, stream);
    }
    if (stream) vf_stream_end();
}
