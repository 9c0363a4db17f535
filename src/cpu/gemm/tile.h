/* Register tiles of the matrix product, one function for each height and width: of f32, or of pairs of bf16 along k,
 * which take the place of an f32 in a and b and are multiplied by one dot product. See gemm.h.
 * Math:      c[i][j] = end(from[i][j] + sum_k a(i, k) * b(k, j))
 * Blocking:  AVX-512 6 x 4 vectors (24 sums, 4 of b, broadcasts from memory), AVX2 6 x 2, portable 4 x 2
 * Traffic:   for each k of a full tile NV vectors of b and MR values of a for MR * NV multiply-adds
 * Roofline:  multiply-add peak while b comes from the second-level cache: 11 bytes a cycle at one zmm a cycle */
#ifndef WEFT_CPU_GEMM_TILE_H
#define WEFT_CPU_GEMM_TILE_H

#include "cpu/gemm/gemm.h"

VF_INLINE void step(vf sum[GEMM_MR][GEMM_NV], const float *const a[GEMM_MR], int64_t at, const float *b, const int m,
                    const int v, const bool pairs) {
    vf column[GEMM_NV];
    VF_UNROLL for (int j = 0; j < v; j++) column[j] = vf_load(b + j * VF_LANES);
    VF_UNROLL for (int i = 0; i < m; i++) {
        const vf x = vf_broadcast(a[i] + at);
        VF_UNROLL for (int j = 0; j < v; j++) sum[i][j] =
            pairs ? vf_dot_bf16(sum[i][j], vf_bits(x), vf_bits(column[j])) : vf_fma(x, column[j], sum[i][j]);
    }
}

VF_INLINE void finish(const gemm_tile *t, vf sum[GEMM_MR][GEMM_NV], const int m, const int v) {
    const gemm_end *end = t->end;
    if (end) {
        const vf lo = vf_set1(end->lo), hi = vf_set1(end->hi);
        if (end->row_bias) {
            VF_UNROLL for (int i = 0; i < m; i++) {
                const vf bias = vf_broadcast(end->row_bias + i);
                VF_UNROLL for (int j = 0; j < v; j++) sum[i][j] = vf_add(sum[i][j], bias);
            }
        }
        if (end->col_bias) {
            VF_UNROLL for (int j = 0; j < v; j++) {
                const vf bias = vf_load(end->col_bias + j * VF_LANES);
                VF_UNROLL for (int i = 0; i < m; i++) sum[i][j] = vf_add(sum[i][j], bias);
            }
        }
        VF_UNROLL for (int i = 0; i < m; i++) {
            VF_UNROLL for (int j = 0; j < v; j++) sum[i][j] = vf_clip(sum[i][j], lo, hi);
        }
    }
    VF_UNROLL for (int i = 0; i < m; i++) {
        float *c = t->c + i * t->ldc;
        VF_UNROLL for (int j = 0; j < v - 1; j++) vf_store(c + j * VF_LANES, sum[i][j]);
        if (t->tail == VF_LANES)
            vf_store(c + (v - 1) * VF_LANES, sum[i][v - 1]);
        else
            vf_store_count(c + (v - 1) * VF_LANES, sum[i][v - 1], t->tail);
    }
}

VF_INLINE void tile(const gemm_tile *t, const int how, const int m, const int v, const bool pairs) {
    vf sum[GEMM_MR][GEMM_NV];
    VF_UNROLL for (int i = 0; i < m; i++) {
        VF_UNROLL for (int j = 0; j < v; j++) sum[i][j] =
            t->from ? vf_load(t->from + i * t->ld_from + j * VF_LANES) : vf_zero();
    }
    const float *b = t->b;
    const int64_t ldb = t->ldb;
    const float *a[GEMM_MR];
    if (how == GEMM_STRIDED) {
        const float *at = t->a;
        for (int64_t k = 0; k < t->k; k++, b += ldb, at += t->lda) {
            VF_UNROLL for (int i = 0; i < m; i++) a[i] = at + i;
            step(sum, a, 0, b, m, v, pairs);
        }
    } else if (how == GEMM_OFFSETS) {
        const float *at = t->a;
        for (int64_t k = 0; k < t->k; k++, at += t->lda) {
            VF_UNROLL for (int i = 0; i < m; i++) a[i] = at + i;
            step(sum, a, 0, b + t->offsets[k], m, v, pairs);
        }
    } else {
        for (int64_t s = 0; s < t->segments; s++) {
            VF_UNROLL for (int i = 0; i < m; i++) a[i] = t->rows[s * m + i];
            for (int64_t k = 0; k < t->k; k++, b += ldb) step(sum, a, k, b, m, v, pairs);
        }
    }
    finish(t, sum, m, v);
}

/* The functions of a file, and their table: GEMM_HEIGHTS(GEMM_WIDTHS, how), GEMM_ROWS_OF(how). */
#define GEMM_TILE(how, m, v) \
    static void tile_##how##_##m##_##v(const gemm_tile *t) { tile(t, how, m, v, GEMM_PAIRS); }
#if VF_REGS == 32
#define GEMM_WIDTHS(how, m) GEMM_TILE(how, m, 1) GEMM_TILE(how, m, 2) GEMM_TILE(how, m, 3) GEMM_TILE(how, m, 4)
#define GEMM_ROW(how, m) {tile_##how##_##m##_1, tile_##how##_##m##_2, tile_##how##_##m##_3, tile_##how##_##m##_4}
#else
#define GEMM_WIDTHS(how, m) GEMM_TILE(how, m, 1) GEMM_TILE(how, m, 2)
#define GEMM_ROW(how, m) {tile_##how##_##m##_1, tile_##how##_##m##_2}
#endif
#if VF_LANES == 4
#define GEMM_HEIGHTS(X, how) X(how, 1) X(how, 2) X(how, 3) X(how, 4)
#define GEMM_ROWS_OF(how) {GEMM_ROW(how, 1), GEMM_ROW(how, 2), GEMM_ROW(how, 3), GEMM_ROW(how, 4)}
#else
#define GEMM_HEIGHTS(X, how) X(how, 1) X(how, 2) X(how, 3) X(how, 4) X(how, 5) X(how, 6)
#define GEMM_ROWS_OF(how) \
    {GEMM_ROW(how, 1), GEMM_ROW(how, 2), GEMM_ROW(how, 3), GEMM_ROW(how, 4), GEMM_ROW(how, 5), GEMM_ROW(how, 6)}
#endif

#endif
