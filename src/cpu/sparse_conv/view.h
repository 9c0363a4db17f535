/* Sparse convolution as a stride-1 product of a sparse matrix with shifted copies of the data.
 *
 * Both directions have one shape: out[q] = sum_j in[row_j, q*step + reach(tap_j)] * value_j along each axis.
 *   forward         in = src, step = stride, reach = tap*dilation - pad, out position q
 *   data gradient   in = diff_dst, step 1; positions x = q*stride + at are one class for each `at` below stride, with
 *                   reach = (at + pad - tap*dilation) / stride where that is whole; other taps do not feed the class
 *
 * Pixels: VF_LANES positions are one vector; a block is R vectors. Its panel holds for each channel, each tap along d
 * and w, and some rows a vector of the input, zero in the padding: aligned, in L1, f32 whatever the data is. An entry
 * of the matrix is then one offset into the panel and one value:
 *   shared      positions are counted along (n, x), and the vectors of a block are R neighbours along h; taps along h
 *               read neighbouring rows of one copy. Rows stand by phase of `step`, so that the vectors of a tap always
 *               follow each other
 *   apart       positions are counted along (n, z, y, x), for small images; each tap has its own R vectors
 * A place is what a panel holds of a channel for one tap along d and w, apart also along h. Where rows are few or
 * nearly empty many places have no entry: they are not written.
 * A chunk is as many channels as a panel holds. Where blocks are few the channels written are cut into parts, too, and
 * the panels are packed and kept before all parts read them. */
#ifndef WEFT_CPU_SPARSE_CONV_VIEW_H
#define WEFT_CPU_SPARSE_CONV_VIEW_H

#include "cpu/frame.h"

/* Vectors of a block at most; slots at most; bytes of panels that are kept at most. */
enum { SP_R = 8, SP_SLOTS = 32, SP_STAGED = 32 << 20 };

typedef struct sp_axis {
    int64_t in, out, step, up, at; /* q of 0 .. out stands at q*up + at of the output */
    int64_t kernel, dilation, pad, stride;
    int64_t taps, low, high; /* taps that reach, and the range of reach */
} sp_axis;

typedef struct sp_view {
    const weft_problem *p;
    bool back, shared, last;        /* last: the data read is channels-last */
    int r;                          /* vectors of a block */
    sp_axis axis[3];                /* d, h, w */
    int64_t ic, oc;                 /* channels of a group, read and written */
    int64_t phases, rows;           /* of a panel, for one channel and taps along d and w */
    int64_t channel, chunk, chunks; /* floats of a channel in the panel; channels of a chunk; chunks of a group */
    double used, sought;            /* shares of the panel and of its places that some entry reads, expected */
    int64_t across, blocks;         /* vectors along (n, x), apart: of all positions; blocks in all */
    int64_t parts, part;            /* of the channels written; how many in each */
    int64_t items, slots;           /* (group, part, block), and how they are spread */
    double cycles;                  /* estimated, of one core */
} sp_view;

/* Channels-last; one channel is either. */
VF_INLINE bool sp_is_last(const weft_tensor *t) { return !weft__is_first(t) && t->dims[1] > 1; }

/* The reach of a tap; false: it feeds no position of the class. */
VF_INLINE bool sp_reach(const sp_view *v, int a, int64_t tap, int64_t *reach) {
    const sp_axis *x = &v->axis[a];
    const int64_t distance = tap * x->dilation - x->pad;
    *reach = v->back ? (x->at - distance) / x->stride : distance;
    return !v->back || (x->at - distance) % x->stride == 0;
}

/* What a panel holds of each channel: places, each the vectors for taps along d and w and, apart, along h. */
VF_INLINE int64_t sp_places(const sp_view *v) {
    return v->axis[0].taps * v->axis[2].taps * (v->shared ? 1 : v->axis[1].taps);
}
VF_INLINE int64_t sp_place_floats(const sp_view *v) { return (v->shared ? v->rows : v->r) * VF_LANES; }
VF_INLINE int64_t sp_panel_bytes(const sp_view *v) {
    return cpu_round_up(v->chunk * v->channel * (int64_t)sizeof(float), 64);
}
/* Whether it pays to find out which places of which channels are read. */
VF_INLINE bool sp_skips(const sp_view *v) { return v->used < 0.9; }

/* ---------------------------------------------------------------- choosing the block */
/* Flops of a cycle at the peak: one multiply-add of AVX-512, or two of AVX2. */
enum { SP_CYCLE = VF_LANES >= 8 ? 32 : 2 * VF_LANES };
/* The share of groups of so many columns that have an entry, if entries fall anywhere. */
VF_INLINE double sp_share(const sp_view *v, double columns) {
    const weft_problem *p = v->p;
    const double window = (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    const double density = (double)p->attr[WEFT_SPARSE_NNZ] / ((double)(p->groups * v->ic * v->oc) * window);
    return density >= 1 ? 1 : 1 - pow(1 - density, columns);
}

/* Cycles to pack the panels of a block: for each place where its vectors are; then each vector that is read, from as
 * many loads as it has runs and strides; channels-last a square of registers is turned, whose lines no other tap reads
 * where there are strides. */
VF_INLINE double sp_pack_cycles(const sp_view *v, double runs) {
    const bool half = weft__dtype_size(v->p->tensor[0].dtype) == 2;
    const double places = (double)sp_places(v), written = (double)sp_place_floats(v) / VF_LANES;
    const double sought = places * v->sought * (v->shared ? 1 : v->r), steps = (double)v->axis[2].step - 1;
    const double turn = VF_LANES * (steps > 0 ? 10 : 5);
    if (v->last) return sought * 40 + (double)cpu_ceil(v->ic, VF_LANES) * places * v->used * written * turn;
    const double apart = WEFT__MIN(steps, VF_LANES - 1) * (1 - runs / (VF_LANES + 1)), loads = runs + apart;
    const double vector = 2.5 + 5 * (runs - 1) + (half ? 12 : 10) * apart;
    return sought * 15 * loads + (double)v->ic * places * (2 + v->used * written * vector);
}

/* Cycles to store the sums of a block. */
VF_INLINE double sp_finish_cycles(const sp_view *v, double runs) {
    if (v->last) return (double)(cpu_ceil(v->oc, VF_LANES) * v->r) * VF_LANES * 9;
    return (double)(v->oc * v->r) * (v->axis[2].up > 1 ? 10 + 4 * VF_LANES : 8 + 10 * runs);
}

/* Cycles of one core, roughly: an entry costs a multiply-add a vector, more where the panel is not in L1, and one for
 * itself; a row of a chunk reads and writes its sums, and ends a loop of unforeseen length; kept panels are read by
 * each part. */
VF_INLINE double sp_cycles(const sp_view *v, const weft__hw *hw) {
    const double entries = (double)v->p->attr[WEFT_SPARSE_NNZ] / (double)(v->p->groups * v->oc);
    const double panel = 4.0 * (double)(v->channel * v->chunk) * v->used, l1 = (double)hw->l1;
    const double far = panel <= l1 ? 1 : panel <= 2 * l1 ? 1.15 : 1.7;
    const double vector = VF_LANES == 8 ? 0.6 : 1; /* AVX2 takes two each cycle */
    const double row = entries * WEFT__MAX(v->r * far * vector + 1, 4) + (double)v->chunks * (20 + 4 * v->r * vector);
    const double runs = 1 + (VF_LANES - 1) / (double)WEFT__MAX(v->axis[2].out, 1);
    const double again = v->parts > 1 ? (double)(v->parts * v->ic * v->channel / VF_LANES) * v->used * 2 : 0;
    const double block = (double)v->r * (5 + 15 * runs) + sp_pack_cycles(v, runs) + sp_finish_cycles(v, runs);
    return (double)(v->p->groups * v->blocks) * ((double)v->oc * row + again + block);
}

/* The rest of the view for one block shape; false: it does not fit. */
VF_INLINE bool sp_shape(sp_view *v, bool shared, int r, int64_t bytes) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1], *w = &v->axis[2];
    const int64_t span = h->taps ? h->high - h->low + 1 : 0;
    v->shared = shared;
    v->r = r;
    v->phases = WEFT__MIN(h->step, span);
    v->rows = shared ? v->phases * (r + (span + h->step - 1) / h->step - 1) : h->taps * r;
    v->channel = d->taps * w->taps * v->rows * VF_LANES;
    if (v->channel * (int64_t)sizeof(float) > bytes) return false;
    const int64_t most = v->channel ? bytes / (v->channel * (int64_t)sizeof(float)) : v->ic;
    v->chunks = cpu_ceil(v->ic, WEFT__MIN(most, v->ic));
    v->chunk = cpu_ceil(v->ic, v->chunks);
    v->chunks = cpu_ceil(v->ic, v->chunk);
    v->across = cpu_ceil(v->p->n * w->out * (shared ? 1 : d->out * h->out), VF_LANES);
    v->blocks = shared ? d->out * cpu_ceil(h->out, r) * v->across : cpu_ceil(v->across, r);
    const int64_t all = v->p->groups * v->blocks, panels = all * v->chunks * sp_panel_bytes(v);
    v->parts = WEFT__MIN(cpu_ceil(SP_SLOTS / 2, WEFT__MAX(all, 1)), cpu_ceil(v->oc, 16));
    if (panels > CPU_CUT(SP_STAGED, 65536)) v->parts = 1;
    v->part = cpu_round_up(cpu_ceil(v->oc, v->parts), VF_LANES);
    v->parts = cpu_ceil(v->oc, v->part);
    v->items = v->p->groups * v->parts * v->blocks;
    v->slots = WEFT__MIN(v->items, SP_SLOTS);
    return true;
}

/* The view of a class (forward: 0 0 0) with the block of least cost; false: no panel holds one channel. */
VF_INLINE bool sp_view_of(sp_view *v, const weft_problem *p, const weft__hw *hw, bool back, const int64_t at[3]) {
    sp_view best = {0};
    *v = (sp_view){.p = p, .back = back};
    for (int a = 0; a < 3; a++) {
        sp_axis *x = &v->axis[a];
        x->kernel = p->kernel[a], x->dilation = p->dilation[a], x->pad = p->pad_lo[a], x->stride = p->stride[a];
        x->in = back ? p->out[a] : p->in[a];
        x->at = at[a];
        x->up = back ? p->stride[a] : 1;
        x->step = back ? 1 : p->stride[a];
        x->out = back ? cpu_ceil(p->in[a] - at[a], x->up) : p->out[a];
        for (int64_t tap = 0, reach; tap < x->kernel; tap++)
            if (sp_reach(v, a, tap, &reach)) {
                x->low = x->taps ? WEFT__MIN(x->low, reach) : reach;
                x->high = x->taps ? WEFT__MAX(x->high, reach) : reach;
                x->taps++;
            }
    }
    v->last = sp_is_last(weft__tensor(p, back ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC));
    v->ic = (back ? p->o : p->c) / p->groups;
    v->oc = (back ? p->c : p->o) / p->groups;
    const int64_t l1 = CPU_CUT((int64_t)hw->l1, 4096), l2 = CPU_CUT((int64_t)hw->l2, 32768);
    const int64_t bytes[3] = {l1 * 3 / 4, l1 * 2, l2 / 2};
    for (int shared = 0; shared < 2; shared++) {
        const double columns = (double)(v->oc * (shared ? v->axis[1].taps : 1));
        v->used = sp_share(v, columns * (v->last ? (double)WEFT__MIN(v->ic, VF_LANES) : 1));
        v->sought = sp_share(v, columns * (double)v->ic);
        for (int r = shared ? 4 : 1; r <= SP_R; r++)
            for (int level = 0; level < 3; level++) {
                if (!sp_shape(v, shared, r, bytes[level])) continue;
                v->cycles = sp_cycles(v, hw);
                if (!best.r || v->cycles < best.cycles) best = *v;
            }
    }
    *v = best;
    return best.r != 0;
}

/* The next class of a data gradient, from 0 0 0 on; false: it was the last. */
VF_INLINE bool sp_next_class(const weft_problem *p, int64_t at[3]) {
    for (int a = 2; a >= 0; a--) {
        if (++at[a] < WEFT__MIN(p->stride[a], p->in[a])) return true;
        at[a] = 0;
    }
    return false;
}

/* NULL, or why the kernels do not take the problem. */
VF_INLINE const char *sp_refusal(const weft_problem *p) {
    const char *order = cpu_epilogue_refusal(p);
    if (order) return order;
    if (p->attr[WEFT_SPARSE_NNZ] > INT32_MAX) return "nnz is over 2^31";
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (t->rank == 5 && !weft__is_first(t) && !weft__is_last(t)) return "a data tensor is not dense";
    }
    return NULL;
}

/* ---------------------------------------------------------------- blocks */
typedef struct sp_run { /* lanes [lane, lane + count) are the positions from x on of a row */
    int64_t n, z, y, x;
    int lane, count;
} sp_run;

typedef struct sp_vector { /* one vector of a block; runs 0: it is past the end */
    int runs;
    sp_run run[VF_LANES];
} sp_vector;

typedef struct sp_block {
    int64_t group, first, last; /* channels [first, last) of the group are written */
    int64_t z, y;               /* shared: of the first vector */
    sp_vector at[SP_R];
} sp_block;

/* The positions of the vector from `index` on: shared: along row y of plane z of all images, else of everything. */
VF_INLINE void sp_lanes(const sp_view *v, int64_t index, int64_t z, int64_t y, sp_vector *to) {
    const int64_t width = v->axis[2].out, tall = v->axis[1].out;
    const int64_t image = v->shared ? width : v->axis[0].out * tall * width;
    const int64_t end = WEFT__MIN((index + 1) * VF_LANES, v->p->n * image);
    to->runs = 0;
    for (int64_t q = index * VF_LANES; q < end;) {
        sp_run *run = &to->run[to->runs++];
        const int64_t row = q % image / width;
        run->n = q / image, run->x = q % image % width;
        run->z = v->shared ? z : row / tall, run->y = v->shared ? y : row % tall;
        run->lane = (int)(q - index * VF_LANES);
        run->count = (int)WEFT__MIN(width - run->x, end - q);
        q += run->count;
    }
}

VF_INLINE void sp_block_at(const sp_view *v, int64_t item, sp_block *b) {
    const int64_t index = item % v->blocks, part = item / v->blocks % v->parts, tall = v->axis[1].out;
    const int64_t bands = cpu_ceil(tall, v->r);
    b->group = item / v->blocks / v->parts;
    b->first = part * v->part;
    b->last = WEFT__MIN(b->first + v->part, v->oc);
    b->z = index / v->across / bands, b->y = index / v->across % bands * v->r;
    for (int i = 0; i < v->r; i++) {
        if (!v->shared)
            sp_lanes(v, index * v->r + i, 0, 0, &b->at[i]);
        else if (b->y + i < tall)
            sp_lanes(v, index % v->across, b->z, b->y + i, &b->at[i]);
        else
            b->at[i].runs = 0;
    }
}

#endif
