/* Depthwise, channels-first: how a pass is cut into units, and the work of one.
 *
 * A unit is a strip of outputs of one channel of one image: `deep` planes x `rows` x `cols`. The rows it reads are
 * copied once into scratch as f32, with zeros for the padding and columns sorted by their place in the stride, and
 * stay in the nearest caches for all taps; along d the last planes are kept in a ring. Outputs are summed in scratch
 * where they are to be converted, interleaved or streamed, else in place. Where a weight is not finite, zeros of the
 * padding would not vanish: such a channel takes the slow way, tap after tap. */
#ifndef WEFT_CPU_DWCONV_FIRST_H
#define WEFT_CPU_DWCONV_FIRST_H

#include "cpu/dwconv/first_tile.h"

typedef struct dwf_plan {
    int64_t deep, rows, cols;        /* outputs of a unit */
    int64_t chunks, strips, tiles;   /* units of a plane or volume, along each axis */
    int64_t ring, phase, row, plane; /* planes kept; floats of one phase of columns, of a row, of a plane */
    int64_t in_place;                /* 1: rows are read where they lie, if the weights are finite */
    int64_t lead;                    /* floats before a row, so that its data begins with a line */
    int64_t split;                   /* floats from one row of one phase of outputs to the next; 0: one phase */
    int64_t pitch;                   /* of the centers of a weight gradient */
    int64_t planes_at, strip_at, split_at, line_at, raw_at, ordered_at, col_at, center_at, sums_at; /* in scratch */
    int64_t floats;                                                                                 /* of scratch */
    int64_t slots, parts; /* parts: of the images, for weight gradients */
} dwf_plan;

typedef struct dwf_work { /* of one slot */
    const dwf_plan *f;
    dw_window g;
    int dtype;
    const void *in, *weights;
    void *out;
    cpu_epilogue e;
    bool stream;
    float *planes, *strip, *split, *line, *raw, *ordered, *center, *sums;
    int64_t *col;
    /* the unit: its image and channel, outputs [from, to) and the inputs [lo, hi) they meet */
    int64_t n, c, at, from[3], to[3], lo[3], hi[3];
    int64_t filled;      /* planes up to here are in the ring */
    bool finite;         /* the weights of the channel */
    dwf_block b;         /* of the unit, where outputs have one phase */
    int64_t b_at, first; /* of unit 2 at + in_place; where its first tap lies in a plane */
} dwf_work;

/* Cut the window of a pass; gradient: weights too. NULL, or why not. */
const char *WEFT__ISA_NAME(weft__dwf_cut)(dwf_plan *f, const dw_window *g, bool gradient, double bytes);
#define dwf_cut WEFT__ISA_NAME(weft__dwf_cut)
void WEFT__ISA_NAME(weft__dwf_start)(dwf_work *w, const dwf_plan *f, const weft__exec *e, bool up, float *scratch);
#define dwf_start WEFT__ISA_NAME(weft__dwf_start)
/* Unit `at` of channel c of image n: chunks, strips, tiles, innermost last. */
void WEFT__ISA_NAME(weft__dwf_unit)(dwf_work *w, int64_t n, int64_t c, int64_t at);
#define dwf_unit WEFT__ISA_NAME(weft__dwf_unit)
/* Bring in what plane z of the outputs meets. */
void WEFT__ISA_NAME(weft__dwf_fill)(dwf_work *w, int64_t z);
#define dwf_fill WEFT__ISA_NAME(weft__dwf_fill)
/* Sum and store plane z of the outputs, of output `i` of the channel. */
void WEFT__ISA_NAME(weft__dwf_outputs)(dwf_work *w, int64_t z, int64_t i);
#define dwf_outputs WEFT__ISA_NAME(weft__dwf_outputs)
/* The taps of one phase, as a block: everything but planes and weights. Where the first of them lies in a plane. */
int64_t WEFT__ISA_NAME(weft__dwf_block_of)(dwf_block *b, dwf_work *w, const dw_axis *h, const dw_axis *v);
#define dwf_block_of WEFT__ISA_NAME(weft__dwf_block_of)

VF_INLINE bool dwf_in_place(const dwf_work *w) { return w->f->in_place && w->finite; }
/* Where plane iz of input i of the channel lies. */
VF_INLINE const float *dwf_plane(const dwf_work *w, int64_t i, int64_t iz) {
    const int64_t channel = (w->n * w->g.p->c + w->c) * w->g.ins + i;
    if (dwf_in_place(w)) return (const float *)w->in + (channel * w->g.in[0] + iz) * w->g.in[1] * w->g.in[2];
    return w->planes + (i * w->f->ring + iz % w->f->ring) * w->f->plane;
}
VF_INLINE int64_t dwf_taps(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }
/* ns to sort the columns of `count` values by their place in a stride. */
VF_INLINE double dwf_sorted(const weft_problem *p, double count) {
    return count * (p->stride[2] < 3 ? 0 : p->stride[2] == 3 ? 0.5 : 0.9);
}
/* The column that is `rel` columns after the first of a row in scratch. */
VF_INLINE int64_t dwf_column(const dwf_work *w, int64_t rel) {
    const int64_t step = w->g.up ? 1 : w->g.p->stride[2];
    return rel % step * w->f->phase + rel / step;
}

#endif
