/* Depthwise, channels-first: sums over a window of rows that lie in cache as f32, with the padding around them. No tap
 * needs a mask; lanes lie along a row. first_tile.c sums outputs, first_grad.c sums gradients of weights. */
#ifndef WEFT_CPU_DWCONV_FIRST_TILE_H
#define WEFT_CPU_DWCONV_FIRST_TILE_H

#include "cpu/dwconv/dw.h"

enum { DWF_MASKED = 8, DWF_EDGES = 4 }; /* where rows are read in place: most taps of a row, tiles at its edges */

typedef struct dwf_block { /* outputs of one phase, a few rows of them */
    int planes;            /* summed into one output: taps along d, times inputs of one channel */
    const float *plane[DW_PLANES], *weights[DW_PLANES]; /* at the first tap of the first output; [kh][kw] */
    int64_t row, tap_row; /* floats from one output row to the next, from one tap row to the next */
    int64_t phase;        /* floats of one phase of columns: column S j + i of a row is at i phase + j */
    int64_t kh, kw;
    int64_t step_h, step_w, gap_h, gap_w;
    const int64_t *col; /* where tap s lies */
    int64_t lo, hi;     /* rows below lo and from hi on are outside the plane, counted from the first tap */
    bool
        in_place; /* rows lie where the caller has them, without padding: taps outside are masked; step_w = gap_w = 1 */
    int64_t left, width; /* in_place: the column of the first tap of the first output; columns of a row */
    float bias, min, max;
    const void *ahead; /* read next: asked for while this is summed, `pace` bytes for each 4 rows */
    int64_t pace;
} dwf_block;

/* rows x cols outputs, rows `pitch` apart. */
void WEFT__ISA_NAME(weft__dwf_sum)(const dwf_block *b, float *out, int64_t pitch, int64_t rows, int64_t cols);
#define dwf_sum WEFT__ISA_NAME(weft__dwf_sum)

/* sums[(r kw + s) VF_LANES + lane] += center * in, over rows x cols centers; center has zeros from cols on. */
void WEFT__ISA_NAME(weft__dwf_grad)(const dwf_block *b, const float *in, float *sums, const float *center,
                                    int64_t pitch, int64_t rows, int64_t cols);
#define dwf_grad WEFT__ISA_NAME(weft__dwf_grad)

#endif
