/* Depthwise, and few channels a group, channels-last: how a pass is cut into rows, and the rows of one.
 *
 * Lanes lie along channels. A unit is one row of outputs, some of its columns and some channels. The rows of inputs it
 * meets are listed, those in the padding left out. They are read where they lie, 16-bit values widened in registers;
 * the last vector of channels overlaps the one before it, so that no lane is masked. Rows of a channel multiplier, or
 * of fewer channels than a vector has, are copied once into a ring of rows in scratch, as f32 and with one channel for
 * each output. */
#ifndef WEFT_CPU_DWCONV_LAST_H
#define WEFT_CPU_DWCONV_LAST_H

#include "cpu/dwconv/dw.h"

/* Channels of a unit; columns of a row that takes many. */
enum { DWL_NEAR = 128, DWL_MANY = 512, DWL_NARROW = 16 };
enum { DWL_ROWS = 256 };                                   /* most rows one output may be summed from */
enum { DWL_PIXELS = VF_REGS >= 32 ? 8 : 4, DWL_EDGE = 4 }; /* of a tile; at an edge of the row, or at stride 2 */

typedef struct dwl_plan {
    int64_t chunk, cols;                /* channels and columns of a unit */
    int64_t chunks, tiles;              /* units of a row */
    int64_t strip;                      /* rows of a plane that are worked on through all planes, for the caches */
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
    /* the unit: outputs [x0, x1) of row y of plane z of image n, channels [c0, c1) */
    int64_t n, z, y, x0, x1, c0, c1;
    int64_t listed, key, filled; /* the row whose inputs are listed; what is in the ring */
    int64_t from, until;         /* columns that listed rows have */
    int64_t col0, channel0;      /* of the first element of the rows below: of the ring, or 0 */
    int64_t pixel;               /* elements from one column to the next */
    int64_t next;                /* rows of inputs that the next row of outputs adds */
    int rows;
    const void *row[DWL_ROWS];
    int64_t tap[DWL_ROWS]; /* the first weight of that row of taps */
} dwl_work;

/* NULL, or why not. chunk: channels of a unit. */
const char *WEFT__ISA_NAME(weft__dwl_cut)(dwl_plan *f, const dw_window *g, int64_t chunk, bool gradient, double bytes);
#define dwl_cut WEFT__ISA_NAME(weft__dwl_cut)
void WEFT__ISA_NAME(weft__dwl_start)(dwl_work *w, const dwl_plan *f, const weft__exec *e, bool up, float *scratch);
#define dwl_start WEFT__ISA_NAME(weft__dwl_start)
/* Go to row `index` of the outputs, counted by strips, planes, rows; a chunk of channels and a tile of columns. */
void WEFT__ISA_NAME(weft__dwl_unit)(dwl_work *w, int64_t index, int64_t chunk, int64_t tile);
#define dwl_unit WEFT__ISA_NAME(weft__dwl_unit)
/* Forward or data gradient of units [first, last), without an epilogue or with one. */
typedef struct dwl_outputs {
    cpu_epilogue e;
    void *out;
    bool stream;
} dwl_outputs;
void WEFT__ISA_NAME(weft__dwl_sum)(dwl_work *w, const dwl_outputs *o, int64_t first, int64_t last);
#define dwl_sum WEFT__ISA_NAME(weft__dwl_sum)

/* Weights and sums lie as [vector][taps][VF_LANES]; vector v begins with channel dwl_channel(v). Channels that do not
 * exist are 0. */
VF_INLINE int64_t dwl_taps(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }
VF_INLINE bool dwl_in_place(const weft_problem *p) { return p->o == p->c && p->c >= VF_LANES; }
VF_INLINE int64_t dwl_chunk(const weft_problem *p) { return p->out[2] <= DWL_NARROW ? DWL_MANY : DWL_NEAR; }
VF_INLINE int64_t dwl_channel(const weft_problem *p, int64_t v) {
    return dwl_in_place(p) ? WEFT__MIN(v * VF_LANES, p->c - VF_LANES) : v * VF_LANES;
}
VF_INLINE int64_t dwl_vector(int64_t channel) { return cpu_ceil(channel, VF_LANES); }
VF_INLINE size_t dwl_packed(const weft_problem *p) {
    return (size_t)(dwl_taps(p) * cpu_round_up(p->o, VF_LANES)) * sizeof(float);
}
weft_status WEFT__ISA_NAME(weft__dwl_pack)(const weft__exec *e, const void *weights, void *packed);
#define dwl_pack WEFT__ISA_NAME(weft__dwl_pack)

/* The vector of channels at or before c that may be read whole. */
VF_INLINE int64_t dwl_whole(const dwl_work *w, int64_t c) {
    return w->f->ring ? c : WEFT__MIN(c, w->channels - VF_LANES);
}
/* Of the element at a column and channel, in a listed row. */
VF_INLINE int64_t dwl_at(const dwl_work *w, int64_t column, int64_t c) {
    return (column - w->col0) * w->pixel + c - w->channel0;
}

/* Whole cache lines can be streamed where every pixel begins with one. */
VF_INLINE bool dwl_streams(const weft__hw *hw, const weft_tensor *out, const void *p) {
    const int64_t size = (int64_t)weft__dtype_size(out->dtype);
    return out->dtype == WEFT_DTYPE_F32 && out->dims[1] % 16 == 0 && (uintptr_t)p % 64 == 0 &&
           cpu_streams(hw, (double)(weft__numel(out) * size));
}

/* Channels from c on of the bias; those that do not exist are 0. */
VF_INLINE vf dwl_bias(const cpu_epilogue *e, int64_t c, int64_t count) {
    if (e->bias_dtype == WEFT_DTYPE_F32) return vf_load_count((const float *)e->bias + c, count);
    return e->bias_dtype == WEFT_DTYPE_F16 ? vf_load_count_as(WEFT_DTYPE_F16, e->bias, c, count)
                                           : vf_load_count_as(WEFT_DTYPE_BF16, e->bias, c, count);
}

/* Ask for the lines of `count` columns of `rows` rows, each `row` elements after the one before; a few at a time. */
VF_INLINE void dwl_ahead(const void *p, int64_t at, int64_t row, int64_t rows, int64_t pixel, const int count,
                         const int dtype) {
    const int64_t size = vf_size_of(dtype);
    for (int64_t r = 1; r <= rows; r++)
        VF_UNROLL for (int i = 0; i < count; i++) vf_prefetch(p, (at + r * row + i * pixel) * size);
}

#endif
