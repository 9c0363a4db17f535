/* The weights of a call as the product wants them: for each chunk and each channel written a span of entries, each an
 * offset into the chunk's panel and a value. Counted and placed in parallel, each region by itself:
 *   forward         a region is a row of the CSR; its entries are spread over the chunks
 *   data gradient   a region is the rows of one chunk; its entries are spread over the channels written
 * Entries may come in any order and equal columns add up, as in the reference. What weft_sparse_check refuses is not
 * placed but reported: the caller then runs the reference, which says what such weights mean. */
#ifndef WEFT_CPU_SPARSE_CONV_ENTRIES_H
#define WEFT_CPU_SPARSE_CONV_ENTRIES_H

#include "cpu/sparse_conv/view.h"
#include "ref/sparse_conv.h"

typedef struct sp_entry {
    int32_t offset;
    union {
        float value;
        int32_t index; /* weight gradient: of the CSR */
    };
} sp_entry;

typedef struct sp_span {
    int64_t begin, end;
} sp_span;

typedef struct sp_column { /* what its entries are: offset -1 none; span: the chunk forward, the channel backward */
    int32_t offset, span, used; /* used: the flag of its place, in its chunk */
} sp_column;

typedef struct sp_entries {
    const sp_view *v;
    conv_view weights, rows, cols; /* weights.ptr NULL: entries hold their index */
    int64_t columns;
    sp_column *column; /* by plain column */
    sp_entry *entry;
    sp_span *span;       /* [channel written, of all groups][chunk] */
    unsigned char *used; /* [group][chunk][place][channel of the chunk]: whether an entry reads it; NULL: not asked */
    unsigned char bad[SP_SLOTS];
} sp_entries;

/* Columns of the CSR, whichever way the view looks. */
VF_INLINE int64_t sp_columns(const sp_view *v) {
    return v->p->c / v->p->groups * v->p->kernel[0] * v->p->kernel[1] * v->p->kernel[2];
}
VF_INLINE int64_t sp_spans(const sp_view *v) { return v->chunks * v->p->groups * v->oc; }

VF_INLINE int64_t sp_used(const sp_view *v) { return sp_skips(v) ? v->chunk * sp_places(v) : 0; }

/* Bytes of the four tables, each a multiple of 64. */
VF_INLINE int64_t sp_entries_bytes(const sp_view *v) {
    return cpu_round_up(sp_columns(v) * (int64_t)sizeof(sp_column), 64) +
           cpu_round_up(v->p->attr[WEFT_SPARSE_NNZ] * (int64_t)sizeof(sp_entry), 64) +
           cpu_round_up(sp_spans(v) * (int64_t)sizeof(sp_span), 64) +
           cpu_round_up(v->p->groups * v->chunks * sp_used(v), 64);
}

/* Where the R vectors that a tap reads begin in the panel of its channel, -1 where it feeds nothing, and the span. */
VF_INLINE void sp_columns_of(const sp_view *v, sp_column *column) {
    const sp_axis *axis = v->axis;
    const int64_t per_phase = v->phases ? v->rows / v->phases : 0,
                  window = axis[0].kernel * axis[1].kernel * axis[2].kernel;
    int64_t k = 0, reach[3], place[3] = {0, 0, 0};
    for (int64_t r = 0; r < axis[0].kernel; r++) {
        const bool d = sp_reach(v, 0, r, &reach[0]);
        place[1] = 0;
        for (int64_t s = 0; s < axis[1].kernel; s++) {
            const bool h = sp_reach(v, 1, s, &reach[1]);
            const int64_t far = reach[1] - axis[1].low, step = axis[1].step;
            const int64_t row = v->shared ? far % step * per_phase + far / step : place[1] * v->r;
            place[2] = 0;
            for (int64_t t = 0; t < axis[2].kernel; t++, k++) {
                const bool w = sp_reach(v, 2, t, &reach[2]);
                const int64_t wide = place[0] * axis[2].taps + place[2], at = wide * v->rows + row;
                const int64_t used = (v->shared ? wide : wide * axis[1].taps + place[1]) * v->chunk;
                column[k] = (sp_column){d && h && w ? (int32_t)(at * VF_LANES) : -1, 0, (int32_t)used};
                place[2] += w;
            }
            place[1] += h;
        }
        place[0] += d;
    }
    const int64_t channels = v->p->c / v->p->groups;
    for (int64_t c = channels - 1; c >= 0; c--)
        for (k = 0; k < window; k++) {
            sp_column *to = &column[c * window + k];
            *to = column[k];
            if (to->offset >= 0 && !v->back) to->offset += (int32_t)(c % v->chunk * v->channel);
            if (!v->back) to->used += (int32_t)(c % v->chunk);
            to->span = (int32_t)(v->back ? c : c / v->chunk);
        }
}

/* What the loops over entries read, in registers: their stores might alias the tables. */
typedef struct sp_reader {
    const weft_problem *p;
    const void *cols, *weights;
    int64_t step, weights_step, columns;
    int weights_dtype;
    bool wide, stretched; /* wide: columns are int64_t */
    const sp_column *column;
} sp_reader;

VF_INLINE sp_reader sp_reader_of(const sp_entries *q) {
    const weft_problem *p = q->v->p;
    return (sp_reader){.p = p,
                       .cols = q->cols.ptr,
                       .weights = q->weights.ptr,
                       .step = q->cols.t->strides[0],
                       .weights_step = q->weights.ptr ? q->weights.t->strides[0] : 0,
                       .columns = q->columns,
                       .weights_dtype = q->weights.ptr ? q->weights.t->dtype : 0,
                       .wide = q->cols.t->dtype != WEFT_DTYPE_I32,
                       .stretched = p->attr[WEFT_SPARSE_STRETCHED] != 0,
                       .column = q->column};
}

/* The column that entry j stands for; NULL: weft_sparse_check refuses it. */
VF_INLINE const sp_column *sp_column_at(const sp_reader *r, int64_t j) {
    const weft_problem *p = r->p;
    const int64_t at = j * r->step;
    int64_t col = r->wide ? ((const int64_t *)r->cols)[at] : ((const int32_t *)r->cols)[at];
    if (r->stretched) {
        int64_t distance[3], plain;
        if (!sparse_column(p, col, &plain, distance)) return NULL;
        for (int a = 0; a < 3; a++) {
            if (distance[a] % p->dilation[a] || distance[a] / p->dilation[a] >= p->kernel[a]) return NULL;
            plain = plain * p->kernel[a] + distance[a] / p->dilation[a];
        }
        col = plain;
    }
    return col >= 0 && col < r->columns ? &r->column[col] : NULL;
}

VF_INLINE float sp_value_at(const sp_reader *r, int64_t j) {
    return cpu_get(r->weights_dtype, r->weights, j * r->weights_step);
}

/* The rows [first, last) of the CSR spread over `count` spans, `step` apart. */
typedef struct sp_region {
    int64_t first, last, count, step;
    sp_span *span;
    unsigned char *used; /* of its group, backward of its chunk; NULL: not asked */
} sp_region;

VF_INLINE sp_region sp_region_at(const sp_entries *q, int64_t i) {
    const sp_view *v = q->v;
    if (!v->back)
        return (sp_region){i,
                           i + 1,
                           v->chunks,
                           1,
                           q->span + i * v->chunks,
                           q->used ? q->used + i / v->oc * v->chunks * sp_used(v) : NULL};
    const int64_t group = i / v->chunks, chunk = i % v->chunks, first = group * v->ic + chunk * v->chunk;
    return (sp_region){
        first,     WEFT__MIN(first + v->chunk, (group + 1) * v->ic), v->oc,
        v->chunks, q->span + group * v->oc * v->chunks + chunk,      q->used ? q->used + i * sp_used(v) : NULL};
}

/* How many entries each span gets, as its end; false: what weft_sparse_check refuses. */
static bool sp_count(const sp_entries *q, const sp_region *g) {
    const sp_reader r = sp_reader_of(q);
    sp_span *const span = g->span;
    const int64_t step = g->step;
    for (int64_t i = 0; i < g->count; i++) span[i * step] = (sp_span){0, 0};
    for (int64_t o = g->first; o < g->last; o++) {
        const int64_t begin = sparse_begin(r.p, q->rows, o), end = sparse_begin(r.p, q->rows, o + 1);
        if (begin > end) return false;
        for (int64_t j = begin; j < end; j++) {
            const sp_column *column = sp_column_at(&r, j);
            if (!column) return false;
            if (column->offset >= 0) span[column->span * step].end++;
        }
    }
    return true;
}

/* Rows of one group share flags: they may mark one at once. */
VF_INLINE void sp_mark(unsigned char *flag) {
    if (!__atomic_load_n(flag, __ATOMIC_RELAXED)) __atomic_store_n(flag, 1, __ATOMIC_RELAXED);
}

/* The entries of row o to the ends of their spans; false: one is not finite. */
VF_INLINE bool sp_place_row(const sp_entries *q, const sp_region *g, const sp_reader *r, int64_t o) {
    const sp_view *v = q->v;
    const int64_t begin = sparse_begin(r->p, q->rows, o), end = sparse_begin(r->p, q->rows, o + 1), step = g->step;
    const int64_t row = v->back ? o - g->first : 0, used = v->back ? 0 : sp_used(v);
    const int32_t base = (int32_t)(row * v->channel);
    sp_entry *const entry = q->entry;
    sp_span *const span = g->span;
    unsigned char *const flags = g->used;
    bool finite = true;
    for (int64_t j = begin; j < end; j++) {
        const sp_column *column = sp_column_at(r, j);
        sp_entry e = {.offset = column->offset + base};
        if (r->weights) {
            e.value = sp_value_at(r, j);
            finite = finite && isfinite(e.value);
        } else {
            e.index = (int32_t)j;
        }
        if (column->offset < 0) continue;
        entry[span[column->span * step].end++] = e;
        if (flags) sp_mark(flags + column->used + row + column->span * used);
    }
    return finite;
}

static bool sp_place(const sp_entries *q, const sp_region *g) {
    const sp_reader r = sp_reader_of(q);
    bool finite = true;
    if (!sp_count(q, g)) return false;
    for (int64_t i = 0, at = sparse_begin(r.p, q->rows, g->first); i < g->count; i++) {
        sp_span *span = &g->span[i * g->step];
        span->begin = at;
        at += span->end;
        span->end = span->begin;
    }
    for (int64_t o = g->first; o < g->last; o++) finite = sp_place_row(q, g, &r, o) && finite;
    return finite || r.p->math != WEFT_MATH_STRICT;
}

static void sp_place_slot(void *arg, int64_t slot) {
    sp_entries *q = arg;
    const sp_view *v = q->v;
    const int64_t regions = v->back ? v->p->groups * v->chunks : v->p->o, slots = WEFT__MIN(regions, SP_SLOTS);
    for (int64_t i = cpu_first(regions, slots, slot); i < cpu_first(regions, slots, slot + 1); i++) {
        const sp_region g = sp_region_at(q, i);
        if (!sp_place(q, &g)) q->bad[slot] = 1;
    }
}

/* The flags of a chunk, as sp_pack wants them. */
VF_INLINE const unsigned char *sp_used_of(const sp_entries *q, int64_t group, int64_t chunk) {
    return q->used ? q->used + (group * q->v->chunks + chunk) * sp_used(q->v) : NULL;
}

/* Fills the tables in room, sp_entries_bytes of it. False: the weights are not what the kernels take; run the
 * reference. */
VF_INLINE bool sp_entries_of(sp_entries *q, const sp_view *v, const weft__exec *e, bool values, char *room) {
    const int64_t nnz = v->p->attr[WEFT_SPARSE_NNZ];
    *q = (sp_entries){
        .v = v, .rows = conv_see(v->p, e->ptr, WEFT_ROLE_ROWS), .cols = conv_see(v->p, e->ptr, WEFT_ROLE_COLS)};
    if (values) q->weights = conv_see(v->p, e->ptr, WEFT_ROLE_WEIGHTS);
    q->columns = sp_columns(v);
    q->column = (sp_column *)(void *)room;
    room += cpu_round_up(sp_columns(v) * (int64_t)sizeof(sp_column), 64);
    q->entry = (sp_entry *)(void *)room;
    room += cpu_round_up(nnz * (int64_t)sizeof(sp_entry), 64);
    q->span = (sp_span *)(void *)room;
    room += cpu_round_up(sp_spans(v) * (int64_t)sizeof(sp_span), 64);
    q->used = sp_used(v) ? (unsigned char *)room : NULL;
    if (q->used) memset(q->used, 0, (size_t)(v->p->groups * v->chunks * sp_used(v)));
    sp_columns_of(v, q->column);
    const int64_t regions = v->back ? v->p->groups * v->chunks : v->p->o;
    weft__parallel(e->ctx, WEFT__MIN(regions, SP_SLOTS), sp_place_slot, q);
    bool bad = sparse_begin(v->p, q->rows, 0) != 0 || sparse_begin(v->p, q->rows, v->p->o) != nnz;
    for (int i = 0; i < SP_SLOTS; i++) bad = bad || q->bad[i];
    return !bad;
}

#endif
