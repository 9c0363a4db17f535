/* Depthwise, channels-last: how a pass is cut into rows, and the rows of one.
 *
 * Lanes lie along channels. A unit is one row of outputs, some of its columns and some channels. The rows of inputs it
 * meets are listed, those in the padding left out: f32 is read where it lies; 16-bit rows, and rows of a channel
 * multiplier, are copied once into a ring of rows in scratch, as f32 and with one channel for each output. */
#ifndef WEFT_CPU_DWCONV_LAST_H
#define WEFT_CPU_DWCONV_LAST_H

#include "cpu/dwconv/dw.h"

enum { DWL_ROWS = 256 };                                   /* most rows one output may be summed from */
enum { DWL_PIXELS = VF_REGS >= 32 ? 8 : 4, DWL_EDGE = 4 }; /* of a tile; of one at an edge of the row */

typedef struct dwl_plan {
    int64_t chunk, cols;                /* channels and columns of a unit */
    int64_t chunks, tiles;              /* units of a row */
    int64_t ring;                       /* rows kept along h, for each tap along d; 0: read in place */
    int64_t ring_row;                   /* floats of one */
    int64_t temp_at, center_at, floats; /* scratch: the ring, a row of outputs, a row of centers */
    int64_t slots, parts, groups;       /* parts of the rows and groups of channels, for weight gradients */
} dwl_plan;

typedef struct dwl_work { /* of one slot */
    const dwl_plan *f;
    dw_window g;
    int dtype;
    const void *in;
    const float *weights;       /* packed */
    int64_t channels, multiple; /* worked on: o; of `in` for each: 1 or o / c */
    float *ring;
    /* the unit: outputs [x0, x1) of a row, channels [c0, c1); inputs from column `from` on */
    int64_t n, z, y, x0, x1, c0, c1, from, until, key, filled;
    int rows;
    const float *row[DWL_ROWS]; /* at column `from`, channel c0 */
    int64_t tap[DWL_ROWS];      /* the first weight of that row of taps */
    int64_t pixel;              /* floats from one column to the next */
} dwl_work;

const char *WEFT__ISA_NAME(weft__dwl_cut)(dwl_plan *f, const dw_window *g, bool gradient, double bytes);
#define dwl_cut WEFT__ISA_NAME(weft__dwl_cut)
void WEFT__ISA_NAME(weft__dwl_start)(dwl_work *w, const dwl_plan *f, const weft__exec *e, bool up, float *scratch);
#define dwl_start WEFT__ISA_NAME(weft__dwl_start)
/* List the rows that the outputs of row y of plane z of image n meet, in a chunk of channels and a tile of columns. */
void WEFT__ISA_NAME(weft__dwl_unit)(dwl_work *w, int64_t n, int64_t z, int64_t y, int64_t chunk, int64_t tile);
#define dwl_unit WEFT__ISA_NAME(weft__dwl_unit)
/* Forward or data gradient of units [first, last), without an epilogue or with one. */
typedef struct dwl_outputs {
    cpu_epilogue e;
    void *out;
    bool stream;
} dwl_outputs;
void WEFT__ISA_NAME(weft__dwl_sum)(dwl_work *w, const dwl_outputs *o, int64_t first, int64_t last);
#define dwl_sum WEFT__ISA_NAME(weft__dwl_sum)

/* [o][taps] -> [o / VF_LANES][taps][VF_LANES]; channels that do not exist are 0. */
VF_INLINE int64_t dwl_taps(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }
VF_INLINE size_t dwl_packed(const weft_problem *p) {
    return (size_t)(dwl_taps(p) * cpu_round_up(p->o, VF_LANES)) * sizeof(float);
}
weft_status WEFT__ISA_NAME(weft__dwl_pack)(const weft__exec *e, const void *weights, void *packed);
#define dwl_pack WEFT__ISA_NAME(weft__dwl_pack)

/* Channels c .. of one column; tail: only `count` of them exist. */
VF_INLINE vf dwl_load(const float *p, int64_t count, const bool tail) {
    return tail ? vf_load_count(p, count) : vf_keep(vf_load(p));
}

/* Whole cache lines can be streamed where every pixel begins with one. */
VF_INLINE bool dwl_streams(const weft__hw *hw, const weft_tensor *out, const void *p) {
    const int64_t size = (int64_t)weft__dtype_size(out->dtype);
    return out->dims[1] * size % 64 == 0 && (uintptr_t)p % 64 == 0 &&
           cpu_streams(hw, (double)(weft__numel(out) * size));
}

/* Ask for the lines of `count` columns of the row below, a few at a time. */
VF_INLINE void dwl_ahead(const float *p, int64_t row, int64_t pixel, const int count) {
    VF_UNROLL for (int i = 0; i < count; i++) vf_prefetch(p, (row + i * pixel) * 4);
}

#endif
