/* Depthwise with rows end to end, channels-first: one plane of outputs, and of gradients of weights.
 *
 * The planes of a channel lie in scratch as f32, row after row, with the zeros of the padding between rows: those right
 * of a row are those left of the next one. A tap is an offset, and lanes run across the ends of rows. Outputs and
 * centers lie the same way; lanes between their rows are zeros in a center and are left out of the outputs. */
#ifndef WEFT_CPU_DWCONV_FLAT_H
#define WEFT_CPU_DWCONV_FLAT_H

#include "cpu/dwconv/dw.h"
#include "cpu/simd/permute.h"

enum { FLAT_OUTS = 8 };             /* vectors of outputs summed together */
enum { FLAT_SLID = VF_REGS >= 32 }; /* taps of a row of 3 are slid out of what the first one loaded */

typedef struct flat_spot { /* one vector of a plane whose rows lie end to end */
    int32_t first, live;   /* elements of the plane before it, and in it */
    vf_spread spread;
} flat_spot;

typedef struct flat_tap {
    int64_t at, weight; /* floats from the output, or the center; number of the weight */
} flat_tap;

typedef struct flat_window {
    const flat_tap *tap;
    int64_t taps;
    bool threes; /* taps of a row are 3 neighbours */
} flat_window;

typedef struct flat_sink { /* outputs leave to out[at] on */
    float *out;
    int64_t at;
    float bias, lo, hi;
} flat_sink;

/* `wide` vectors of outputs, at most FLAT_OUTS; weights: in the order of the taps. */
void WEFT__ISA_NAME(weft__flat_sum)(const flat_window *f, const float *in, const float *weights, int64_t wide,
                                    const flat_spot *s, flat_sink *k);
#define flat_sum WEFT__ISA_NAME(weft__flat_sum)
/* sums[tap][VF_LANES] += center * in, over `vectors` centers. */
void WEFT__ISA_NAME(weft__flat_grad)(const flat_window *f, const float *in, const float *center, int64_t vectors,
                                     float *sums);
#define flat_grad WEFT__ISA_NAME(weft__flat_grad)
/* Both at once. */
VF_INLINE bool flat_has_both(const flat_window *f) { return FLAT_SLID && f->threes && f->taps == 9; }
void WEFT__ISA_NAME(weft__flat_both)(const flat_window *f, const float *in, const float *weights, const float *center,
                                     int64_t vectors, float *sums, const flat_spot *s, flat_sink *k);
#define flat_both WEFT__ISA_NAME(weft__flat_both)

#endif
