/* Depthwise, channels-last: sums of a window over listed rows.
 * Blocking:  4 outputs of a row (8 from 5 columns of taps on, with 32 registers) x 1 vector of channels stay in
 *            registers over all taps; windows of 1, 2, 3, 5 and 7 columns load a pixel once for the outputs of the row
 *            it feeds, others once for each tap. Channels run inside pixels, pixels along the row
 * Edges:     pixels whose windows reach out of the row ask at each tap; nothing is multiplied by a zero of the
 *            padding */
#include "cpu/dwconv/last.h"

typedef struct span { /* a run of outputs of one phase of columns */
    dw_axis v;
    int64_t phases, f;    /* output column: f + phases j */
    int64_t inside, past; /* [inside, past): all taps within the row */
} span;

/* How outputs leave. temp: a row of f32, [column - x0][chunk]. */
typedef struct sink {
    const dwl_outputs *o;
    float *temp;
    int64_t row, channels; /* first element of the row of `out`; of a pixel */
    float lo, hi;
} sink;

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

VF_INLINE void put_all(const dwl_work *w, const span *a, const sink *k, int64_t j, int64_t live, int64_t c,
                       const vf sum[], const int P, const bool edge, const int dtype) {
    const int64_t first = a->f + a->phases * j, index = k->row + first * k->channels + c;
    const int64_t next = a->phases * k->channels;
    if (w->f->ring) {
        for (int x = 0; x < P && x < live; x++) put(w, k, first + a->phases * x, c, sum[x]);
    } else if (k->o->stream) {
        VF_UNROLL for (int x = 0; x < P; x++) if (!edge || x < live)
            vf_stream_as(dtype, k->o->out, index + x * next, sum[x]);
    } else {
        VF_UNROLL for (int x = 0; x < P; x++) if (!edge || x < live)
            vf_store_as(dtype, k->o->out, index + x * next, sum[x]);
    }
}

VF_INLINE vf bias_of(const dwl_work *w, const sink *k, int64_t c) {
    const cpu_epilogue *e = &k->o->e;
    if (!e->bias || k->temp) return vf_zero();
    if (e->bias_dtype == WEFT_DTYPE_F32) return vf_load_count((const float *)e->bias + c, w->c1 - c);
    return e->bias_dtype == WEFT_DTYPE_F16 ? vf_load_count_as(WEFT_DTYPE_F16, e->bias, c, w->c1 - c)
                                           : vf_load_count_as(WEFT_DTYPE_BF16, e->bias, c, w->c1 - c);
}

/* P outputs j .. of a span, `live` of them exist; at: where the first tap of the first lies in its row, weights: of the
 * first tap of a row. KW 0: any window. */
VF_INLINE void tile(const dwl_work *w, const span *a, const sink *k, int64_t j, int64_t live, int64_t c, int64_t at,
                    const float *weights, const int P, const int KW, const int S, const bool edge, const int dtype) {
    const int64_t left = j * a->v.step + a->v.off, cols = w->until, pixel = w->pixel, next = a->v.next * VF_LANES;
    vf sum[DWL_PIXELS];
    sum[0] = bias_of(w, k, c);
    VF_UNROLL for (int i = 1; i < P; i++) sum[i] = sum[0];
    for (int r = 0; r < w->rows; r++) {
        const float *of_row = weights + w->tap[r] * VF_LANES;
        const void *p = w->row[r];
        if (KW) {
            vf weight[8];
            VF_UNROLL for (int s = 0; s < KW; s++) weight[s] = vf_keep(vf_load(of_row + s * next));
            VF_UNROLL for (int i = 0; i < S * (P - 1) + KW; i++) {
                if (edge && (left + i < 0 || left + i >= cols)) continue;
                const vf t = vf_keep(vf_load_as(dtype, p, at + i * pixel));
                VF_UNROLL for (int x = 0; x < P; x++) {
                    const int s = i - S * x;
                    if (s >= 0 && s < KW) sum[x] = vf_fma(t, weight[s], sum[x]);
                }
            }
        } else {
            for (int64_t s = 0; s < a->v.count; s++, of_row += next) {
                const vf weight = vf_load(of_row);
                VF_UNROLL for (int x = 0; x < P; x++) {
                    const int64_t col = x * a->v.step + s * a->v.gap;
                    if (edge && (left + col < 0 || left + col >= cols || x >= live)) continue;
                    sum[x] = vf_fma(vf_load_as(dtype, p, at + col * pixel), weight, sum[x]);
                }
            }
        }
    }
    const vf lo = vf_set1(k->lo), hi = vf_set1(k->hi);
    VF_UNROLL for (int i = 0; i < P; i++) sum[i] = vf_clip(sum[i], lo, hi);
    put_all(w, a, k, j, live, c, sum, P, edge, dtype);
}

VF_INLINE void channels(const dwl_work *w, const span *a, const sink *k, int64_t j, int64_t live, const int P,
                        const int KW, const int S, const bool edge, const int dtype) {
    const int64_t left = j * a->v.step + a->v.off, line = 64 / vf_size_of(dtype), taps = dwl_taps(w->g.p) * VF_LANES;
    const float *weights = w->weights + dwl_vector(w->c0) * taps + a->v.first * VF_LANES;
    int64_t at = dwl_at(w, left, w->c0);
    for (int64_t c = w->c0; c < w->c1; c += VF_LANES, at += VF_LANES, weights += taps) {
        const int64_t back = c - dwl_whole(w, c);
        if (c % line == 0 && w->rows && !w->f->ring)
            dwl_ahead(w->row[w->rows - 1], at, w->g.in[2] * w->pixel, w->next, w->pixel, S ? S * P : P, dtype);
        tile(w, a, k, j, live, c - back, at - back, weights, P, KW, S, edge, dtype);
    }
}

VF_INLINE void sum_span(const dwl_work *w, const span *a, const sink *k, int64_t from, int64_t to, const int KW,
                        const int S, const int dtype) {
    const int P =
        S > 1 || (KW && KW <= 3) ? DWL_EDGE : DWL_PIXELS; /* fewer misses at a time where memory is the limit */
    for (int64_t j = from; j < to;) {
        if (j >= a->inside && j + P <= WEFT__MIN(a->past, to)) {
            channels(w, a, k, j, P, P, KW, S, false, dtype);
            j += P;
        } else {
            channels(w, a, k, j, to - j, DWL_EDGE, KW, S, true, dtype);
            j += DWL_EDGE;
        }
    }
}

/* Every phase of the columns of the unit. */
VF_INLINE void sum_row(const dwl_work *w, const sink *k, const int dtype) {
    span a = {.phases = w->g.phases[2]};
    for (a.f = 0; a.f < a.phases; a.f++) {
        a.v = dw_axis_of(&w->g, 2, a.f);
        const int64_t step = a.v.step, from = cpu_ceil(w->x0 - a.f, a.phases), to = cpu_ceil(w->x1 - a.f, a.phases);
        a.inside = a.v.off < 0 ? cpu_ceil(-a.v.off, step) : 0;
        a.past = dw_floor(w->g.in[2] - 1 - a.v.off - (a.v.count - 1) * a.v.gap, step) + 1;
#define WINDOW(KW, S)                                       \
    if (a.v.count == KW && a.v.step == S && a.v.gap == 1) { \
        sum_span(w, &a, k, from, to, KW, S, dtype);         \
        continue;                                           \
    }
        WINDOW(1, 1)
        WINDOW(2, 1)
        WINDOW(3, 1)
        WINDOW(3, 2)
        WINDOW(5, 1)
        WINDOW(5, 2)
        WINDOW(7, 1)
#undef WINDOW
        sum_span(w, &a, k, from, to, 0, 0, dtype);
    }
}

/* diff_src of a channel is the sum over its outputs. */
static void fold(const dwl_work *w, const sink *k, const dwl_outputs *o) {
    const int64_t m = w->g.ins;
    for (int64_t x = w->x0; x < w->x1; x++)
        for (int64_t c = w->c0 / m; c < w->c1 / m; c++) {
            const float *from = k->temp + (x - w->x0) * w->f->chunk + c * m - w->c0;
            float sum = o->e.bias ? dw_get(o->e.bias_dtype, o->e.bias, c) : 0;
            for (int64_t i = 0; i < m; i++) sum += from[i];
            sum = sum < o->e.lo ? o->e.lo : sum;
            dw_put(w->dtype, o->out, k->row + x * k->channels + c, sum > o->e.hi ? o->e.hi : sum);
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
        DW_BY_DTYPE(f->ring ? WEFT_DTYPE_F32 : w->dtype, sum_row, w, &k)
        if (k.temp) fold(w, &k, o);
    }
    if (o->stream) vf_stream_end();
}
