/* The inner loop that dense, grouped and partial convolution share: c = a * b in register tiles, linked by name per
 * ISA.
 *
 * A tile is m <= GEMM_MR rows of v <= GEMM_NV vectors. Its columns are vectors of b, its rows broadcast values of a:
 *   GEMM_STRIDED   a(i, k) = a[k * lda + i]                     packed panels, or a matrix whose rows lie along k
 *   GEMM_ROWS      a(i, k) = rows[s * m + i][k - s * length]    rows that are somewhere, in segments of equal length
 *   GEMM_OFFSETS   as GEMM_STRIDED, and b(k, j) = b[offsets[k] + j]
 *   b(k, j)        = b[k * ldb + j]                             always whole vectors
 * The sum begins with 0 or with `from`, ends with bias and clip if there is an `end`, and goes to c; of the last vector
 * `tail` lanes are stored.
 *
 * Rows and vectors are shared out evenly (gemm_split), so that a remainder costs its share and no padding is stored:
 * 16 rows are 6 + 5 + 5. Panel i of a packed matrix begins at gemm_first(i) * k, whatever its height. */
#ifndef WEFT_CPU_GEMM_H
#define WEFT_CPU_GEMM_H

#include "cpu/frame.h"

#if VF_REGS == 32
enum { GEMM_MR = 6, GEMM_NV = 4 };
#elif VF_LANES == 8
enum { GEMM_MR = 6, GEMM_NV = 2 };
#else
enum { GEMM_MR = 4, GEMM_NV = 2 };
#endif
enum { GEMM_NR = GEMM_NV * VF_LANES };
enum { GEMM_STRIDED, GEMM_ROWS, GEMM_OFFSETS, GEMM_HOW };

typedef struct gemm_end {
    const float *row_bias, *col_bias; /* NULL: none; col_bias: whole vectors */
    float lo, hi;
} gemm_end;

typedef struct gemm_tile {
    int64_t k, segments; /* GEMM_ROWS: k products in each segment */
    const float *const *rows;
    const int64_t *offsets;
    const float *a, *b, *from; /* from NULL: 0 */
    int64_t lda, ldb, ld_from;
    float *c;
    int64_t ldc;
    int tail;
    const gemm_end *end; /* NULL: none */
} gemm_tile;

typedef void (*gemm_fn)(const gemm_tile *t);
/* [how a is read][m - 1][v - 1] */
extern const gemm_fn WEFT__ISA_NAME(weft__gemm_tiles)[GEMM_HOW][GEMM_MR][GEMM_NV];

/* GEMM_STRIDED where each value of a and b is a pair of bf16 along k. [m - 1][v - 1] */
extern const gemm_fn WEFT__ISA_NAME(weft__gemm_pairs)[GEMM_MR][GEMM_NV];

VF_INLINE void gemm_run(const gemm_tile *t, const int how, int64_t m, int64_t v) {
    WEFT__ISA_NAME(weft__gemm_tiles)[how][m - 1][v - 1](t);
}

/* Two rows of f32 that hold values of bf16 as one row of pairs. */
VF_INLINE vf gemm_pair(vf first, vf second) { return vf_from_bits(vi_or(vi_shr(vf_bits(first), 16), vf_bits(second))); }

/* How many panels of at most `most` for `size`, and where panel i begins. */
VF_INLINE int64_t gemm_split(int64_t size, int64_t most) { return cpu_ceil(size, most); }
VF_INLINE int64_t gemm_first(int64_t size, int64_t panels, int64_t i) { return i * size / panels; }

#endif
