/* The tiles of pairs of bf16. */
enum { GEMM_PAIRS = 1 };
#include "cpu/gemm/tile.h"

GEMM_HEIGHTS(GEMM_WIDTHS, GEMM_STRIDED)

const gemm_fn WEFT__ISA_NAME(weft__gemm_pairs)[GEMM_MR][GEMM_NV] = GEMM_ROWS_OF(GEMM_STRIDED);
