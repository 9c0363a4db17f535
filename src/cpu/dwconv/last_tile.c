/* Depthwise, channels-last: sums of a window over listed rows.
 * Blocking:  4 outputs of a row (8 from 5 columns of taps on, with 32 registers) x 1 vector of channels stay in
 *            registers over all taps; windows of 1, 2, 3, 5 and 7 columns load a pixel once for the outputs of the row
 *            it feeds, others once for each tap. Channels run inside pixels, pixels along the row
 *            Each window has a function of its own, and what its loop over channels uses is in registers: one
 *            function for all of them reloaded it after each store and took a third longer
 * Edges:     pixels whose windows reach out of the row ask at each tap; nothing is multiplied by a zero of the
 *            padding */
#include "cpu/dwconv/last_row.h"

/* How outputs leave. temp: a row of f32, [column - x0][chunk]. */
typedef struct sink {
    const dwl_outputs *o;
    float *temp;
    int64_t row, channels; /* first element of the row of `out`; of a pixel */
    float lo, hi;
} sink;

/* Outputs f + phases j, .. of a row: `live` of them exist. */
typedef struct run {
    const dwl_work *w;
    const sink *k;
    dw_axis v;
    int64_t phases, f, j, live;
} run;

/* Where rows come from the ring: the last vector may be a part, data types of load and store differ. */
static void put(const dwl_work *w, const sink *k, int64_t x, int64_t c, vf v) {
    const int64_t index = k->row + x * k->channels + c, count = w->c1 - c;
    if (k->temp)
        vf_store(k->temp + (x - w->x0) * w->f->chunk + c - w->c0, v);
    else if (w->dtype == WEFT_DTYPE_F32)
        vf_store_count_as(WEFT_DTYPE_F32, k->o->out, index, v, count);
    else if (w->dtype == WEFT_DTYPE_F16)
        vf_store_count_as(WEFT_DTYPE_F16, k->o->out, index, v, count);
    else
        vf_store_count_as(WEFT_DTYPE_BF16, k->o->out, index, v, count);
}
static void put_each(const run *t, int64_t c, const float *sums, int P) {
    for (int x = 0; x < P && x < t->live; x++)
        put(t->w, t->k, t->f + t->phases * (t->j + x), c, vf_load(sums + x * VF_LANES));
}

/* P outputs of every vector of channels of the unit, from R rows; R 0: of any number. */
VF_INLINE void channels(const run *t, const int P, const int KW, const int S, const int R, const bool edge,
                        const int dtype) {
    const dwl_work *w = t->w;
    const sink *k = t->k;
    const int64_t size = vf_size_of(dtype), line = 64 / size, taps = dwl_taps(w->g.p) * VF_LANES, c1 = w->c1;
    const dwl_view q = {w->pixel, t->j * t->v.step + t->v.off, w->until, t->live, t->v.count, t->v.step,
                        t->v.gap, t->v.next * VF_LANES};
    const bool ring = w->f->ring, stream = k->o->stream, biased = k->o->e.bias && !k->temp;
    const int64_t apart = t->phases * k->channels, ahead = ring || !w->rows ? 0 : w->next, down = w->g.in[2] * q.pixel;
    const vf lo = vf_set1(k->lo), hi = vf_set1(k->hi);
    const float *weights = w->weights + dwl_vector(w->c0) * taps + t->v.first * VF_LANES, *of_row[3];
    char *out = (char *)k->o->out + (k->row + (t->f + t->phases * t->j) * k->channels) * size;
    const char *row[3];
    int64_t at = dwl_at(w, q.left, w->c0);
    VF_UNROLL for (int r = 0; r < R; r++) row[r] = w->row[r], of_row[r] = weights + w->tap[r] * VF_LANES;
    const void *lowest = ahead ? w->row[w->rows - 1] : NULL;
    for (int64_t c = w->c0, v = 0; c < c1; c += VF_LANES, at += VF_LANES, v += taps) {
        const int64_t back = ring ? 0 : WEFT__MAX(0, c + VF_LANES - c1), from = (at - back) * size;
        vf sum[DWL_PIXELS];
        if (c % line == 0) dwl_ahead(lowest, at, down, ahead, q.pixel, S ? S * P : P, dtype);
        sum[0] = biased ? dwl_bias(&k->o->e, c - back, c1 - c + back) : vf_zero();
        VF_UNROLL for (int i = 1; i < P; i++) sum[i] = sum[0];
        if (R) {
            VF_UNROLL for (int r = 0; r < R; r++)
                dwl_add_row(&q, sum, row[r] + from, of_row[r] + v, vi_set1(0), P, KW, S, edge, false, dtype);
        } else {
            for (int r = 0; r < w->rows; r++)
                dwl_add_row(&q, sum, (const char *)w->row[r] + from, weights + v + w->tap[r] * VF_LANES, vi_set1(0), P,
                            KW, S, edge, false, dtype);
        }
        VF_UNROLL for (int i = 0; i < P; i++) sum[i] = vf_clip(sum[i], lo, hi);
        if (ring) {
            float sums[DWL_PIXELS * VF_LANES];
            VF_UNROLL for (int i = 0; i < P; i++) vf_store(sums + i * VF_LANES, sum[i]);
            put_each(t, c, sums, P);
        } else if (stream) {
            VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < q.live)
                vf_stream_as(dtype, out, i * apart + c - back, sum[i]);
        } else {
            VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < q.live)
                vf_store_as(dtype, out, i * apart + c - back, sum[i]);
        }
    }
}

/* ---------------------------------------------------------------- windows */
/* Few outputs of narrow windows at a time: fewer misses where memory is the limit. */
#define PIXELS_OF(KW, S) (S > 1 || (KW && KW <= 3) ? DWL_EDGE : DWL_PIXELS)
typedef struct window { /* a function of its own for each, so that each has the registers */
    int64_t count, step, pixels;
    void (*inner[3])(const run *);
    void (*edge[3])(const run *);
} window;

#define ONE(name, P, KW, S, is_edge, dtype)           \
    static void name(const run *t) {                  \
        if (KW == 3 && !is_edge && t->w->rows == 3)   \
            channels(t, P, KW, S, 3, is_edge, dtype); \
        else                                          \
            channels(t, P, KW, S, 0, is_edge, dtype); \
    }
#define EACH(KW, S)                                                               \
    ONE(inner_##KW##_##S##_f32, PIXELS_OF(KW, S), KW, S, false, WEFT_DTYPE_F32)   \
    ONE(inner_##KW##_##S##_f16, PIXELS_OF(KW, S), KW, S, false, WEFT_DTYPE_F16)   \
    ONE(inner_##KW##_##S##_bf16, PIXELS_OF(KW, S), KW, S, false, WEFT_DTYPE_BF16) \
    ONE(edge_##KW##_##S##_f32, DWL_EDGE, KW, S, true, WEFT_DTYPE_F32)             \
    ONE(edge_##KW##_##S##_f16, DWL_EDGE, KW, S, true, WEFT_DTYPE_F16)             \
    ONE(edge_##KW##_##S##_bf16, DWL_EDGE, KW, S, true, WEFT_DTYPE_BF16)
#define ROW(KW, S)                                                              \
    {KW,                                                                        \
     S,                                                                         \
     PIXELS_OF(KW, S),                                                          \
     {inner_##KW##_##S##_f32, inner_##KW##_##S##_f16, inner_##KW##_##S##_bf16}, \
     {edge_##KW##_##S##_f32, edge_##KW##_##S##_f16, edge_##KW##_##S##_bf16}},
#define WINDOWS(X) X(1, 1) X(2, 1) X(3, 1) X(3, 2) X(5, 1) X(5, 2) X(7, 1) X(0, 0)
WINDOWS(EACH)
static const window windows[] = {WINDOWS(ROW)}; /* the last takes any */

/* Every phase of the columns of the unit. dtype: of the rows. */
static void sum_row(const dwl_work *w, const sink *k, int dtype) {
    const int d = dtype == WEFT_DTYPE_F16 ? 1 : dtype == WEFT_DTYPE_BF16 ? 2 : 0;
    run t = {.w = w, .k = k, .phases = w->g.phases[2]};
    for (t.f = 0; t.f < t.phases; t.f++) {
        t.v = dw_axis_of(&w->g, 2, t.f);
        const int64_t step = t.v.step, to = cpu_ceil(w->x1 - t.f, t.phases);
        const int64_t inside = t.v.off < 0 ? cpu_ceil(-t.v.off, step) : 0;
        const int64_t past = dw_floor(w->g.in[2] - 1 - t.v.off - (t.v.count - 1) * t.v.gap, step) + 1;
        const window *x = windows;
        while (x->count && (x->count != t.v.count || x->step != step || t.v.gap != 1)) x++;
        for (t.j = cpu_ceil(w->x0 - t.f, t.phases); t.j < to;) {
            const bool inner = t.j >= inside && t.j + x->pixels <= WEFT__MIN(past, to);
            t.live = to - t.j;
            (inner ? x->inner : x->edge)[d](&t);
            t.j += inner ? x->pixels : DWL_EDGE;
        }
    }
}

/* diff_src of a channel is the sum over its outputs. */
static void fold(const dwl_work *w, const sink *k, const dwl_outputs *o) {
    const int64_t m = w->g.ins;
    for (int64_t x = w->x0; x < w->x1; x++)
        for (int64_t c = w->c0 / m; c < w->c1 / m; c++) {
            const float *from = k->temp + (x - w->x0) * w->f->chunk + c * m - w->c0;
            float sum = o->e.bias ? cpu_get(o->e.bias_dtype, o->e.bias, c) : 0;
            for (int64_t i = 0; i < m; i++) sum += from[i];
            sum = sum < o->e.lo ? o->e.lo : sum;
            cpu_put(w->dtype, o->out, k->row + x * k->channels + c, sum > o->e.hi ? o->e.hi : sum);
        }
}

/* Units in the order row, tile, chunk where rows are read in place, else with the row of a plane innermost, for the
 * ring. */
void dwl_sum(dwl_work *w, const dwl_outputs *o, int64_t first, int64_t last) {
    const dwl_plan *f = w->f;
    const int64_t *out = w->g.out, pieces = f->tiles * f->chunks, in_plane = out[1] * pieces;
    for (int64_t u = first; u < last; u++) {
        const int64_t plane = u / in_plane, rest = u % in_plane, piece = f->ring ? rest / out[1] : u % pieces;
        dwl_unit(w, f->ring ? plane * out[1] + rest % out[1] : u / pieces, piece % f->chunks, piece / f->chunks);
        sink k = {.o = o, .channels = w->g.up ? w->g.p->c : w->g.p->o};
        k.row = ((w->n * out[0] + w->z) * out[1] + w->y) * out[2] * k.channels;
        k.temp = w->g.ins > 1 ? w->ring + f->temp_at : NULL;
        k.lo = k.temp ? -INFINITY : o->e.lo, k.hi = k.temp ? INFINITY : o->e.hi;
        sum_row(w, &k, f->ring ? WEFT_DTYPE_F32 : w->dtype);
        if (k.temp) fold(w, &k, o);
    }
    if (o->stream) vf_stream_end();
}
