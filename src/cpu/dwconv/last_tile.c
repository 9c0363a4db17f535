/* Depthwise, channels-last: sums of a window over listed rows.
 * Blocking:  8 outputs of a row (4 with 16 registers) x 1 vector of channels stay in registers over all taps;
 *            windows of 3, 5 and 7 columns load a pixel once for the outputs of the row it feeds, others once for
 *            each tap. Channels run inside pixels, pixels along the row
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
} sink;

VF_INLINE void put(const dwl_work *w, const sink *k, int64_t x, int64_t c, vf v, const bool tail) {
    const int64_t index = k->row + x * k->channels + c, count = w->c1 - c;
    void *out = k->o->out;
    if (k->temp) {
        vf_store(k->temp + (x - w->x0) * w->f->chunk + c - w->c0, v);
        return;
    }
    v = vf_clip(v, vf_set1(k->o->e.lo), vf_set1(k->o->e.hi));
    if (w->dtype == WEFT_DTYPE_F32) {
        if (tail)
            vf_store_count((float *)out + index, v, count);
        else if (k->o->stream)
            vf_stream((float *)out + index, v);
        else
            vf_store((float *)out + index, v);
    } else if (w->dtype == WEFT_DTYPE_F16)
        vf_store_count_as(WEFT_DTYPE_F16, out, index, v, count);
    else
        vf_store_count_as(WEFT_DTYPE_BF16, out, index, v, count);
}

/* P outputs j .. of a span, `live` of them exist. KW 0: any window. */
VF_INLINE void tile(const dwl_work *w, const span *a, const sink *k, int64_t j, int64_t live, int64_t c, vf begin,
                    const int P, const int KW, const int S, const bool edge, const bool tail) {
    const int64_t left = j * a->v.step + a->v.off, cols = w->g.in[2], count = w->c1 - c, taps = dwl_taps(w->g.p);
    const float *weights = w->weights + (c * taps + a->v.first * VF_LANES), *p;
    const int64_t at = (left - w->from) * w->pixel + c - w->c0, next = a->v.next * VF_LANES;
    vf sum[DWL_PIXELS];
    VF_UNROLL for (int i = 0; i < P; i++) sum[i] = begin;
    for (int r = 0; r < w->rows; r++) {
        const float *of_row = weights + w->tap[r] * VF_LANES;
        p = w->row[r];
        if (KW) {
            vf weight[8];
            VF_UNROLL for (int s = 0; s < KW; s++) weight[s] = vf_keep(vf_load(of_row + s * next));
            VF_UNROLL for (int i = 0; i < S * (P - 1) + KW; i++) {
                if (edge && (left + i < 0 || left + i >= cols)) continue;
                const vf t = dwl_load(p + at + i * w->pixel, count, tail);
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
                    sum[x] = vf_fma(dwl_load(p + at + col * w->pixel, count, tail), weight, sum[x]);
                }
            }
        }
    }
    VF_UNROLL for (int x = 0; x < P; x++) if (!edge || x < live) put(w, k, a->f + a->phases * (j + x), c, sum[x], tail);
}

VF_INLINE vf bias_of(const dwl_work *w, const sink *k, int64_t c) {
    const cpu_epilogue *e = &k->o->e;
    if (!e->bias || k->temp) return vf_zero();
    if (e->bias_dtype == WEFT_DTYPE_F32) return vf_load_count((const float *)e->bias + c, w->c1 - c);
    return e->bias_dtype == WEFT_DTYPE_F16 ? vf_load_count_as(WEFT_DTYPE_F16, e->bias, c, w->c1 - c)
                                           : vf_load_count_as(WEFT_DTYPE_BF16, e->bias, c, w->c1 - c);
}

VF_INLINE void channels(const dwl_work *w, const span *a, const sink *k, int64_t j, int64_t live, const int P,
                        const int KW, const int S, const bool edge) {
    const int64_t at = (j * a->v.step + a->v.off - w->from) * w->pixel - w->c0, below = w->g.in[2] * w->pixel;
    int64_t c = w->c0;
    for (; c + VF_LANES <= w->c1; c += VF_LANES) {
        if (c % 16 == 0 && w->rows && !w->f->ring)
            dwl_ahead(w->row[w->rows - 1] + at + c, below, w->pixel, S ? S * P : P);
        tile(w, a, k, j, live, c, bias_of(w, k, c), P, KW, S, edge, false);
    }
    if (c < w->c1) tile(w, a, k, j, live, c, bias_of(w, k, c), P, KW, S, edge, true);
}

VF_INLINE void sum_span(const dwl_work *w, const span *a, const sink *k, int64_t from, int64_t to, const int KW,
                        const int S) {
    for (int64_t j = from; j < to;) {
        if (j >= a->inside && j + DWL_PIXELS <= WEFT__MIN(a->past, to)) {
            channels(w, a, k, j, DWL_PIXELS, DWL_PIXELS, KW, S, false);
            j += DWL_PIXELS;
        } else {
            channels(w, a, k, j, to - j, DWL_EDGE, KW, S, true);
            j += DWL_EDGE;
        }
    }
}

/* Every phase of the columns of the unit. */
static void sum_row(const dwl_work *w, const sink *k) {
    const int64_t phases = w->g.phases[2];
    for (int64_t f = 0; f < WEFT__MIN(phases, w->x1 - w->x0); f++) {
        span a = {.v = dw_axis_of(&w->g, 2, f), .phases = phases, .f = f};
        const int64_t from = w->x0 / phases, to = from + cpu_ceil(w->x1 - w->x0 - f, phases), step = a.v.step;
        a.inside = a.v.off < 0 ? cpu_ceil(-a.v.off, step) : 0;
        a.past = dw_floor(w->g.in[2] - 1 - a.v.off - (a.v.count - 1) * a.v.gap, step) + 1;
        const int64_t kw = a.v.gap == 1 ? a.v.count : 0;
        if (kw == 3 && step == 1)
            sum_span(w, &a, k, from, to, 3, 1);
        else if (kw == 3 && step == 2)
            sum_span(w, &a, k, from, to, 3, 2);
        else if (kw == 5 && step == 1)
            sum_span(w, &a, k, from, to, 5, 1);
        else if (kw == 7 && step == 1)
            sum_span(w, &a, k, from, to, 7, 1);
        else
            sum_span(w, &a, k, from, to, 0, 0);
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

/* Units in the order n, z, y, tile, chunk where rows are read in place, else with y innermost, for the ring. */
void dwl_sum(dwl_work *w, const dwl_outputs *o, int64_t first, int64_t last) {
    const dwl_plan *f = w->f;
    const int64_t *out = w->g.out, pieces = f->tiles * f->chunks, in_plane = out[1] * pieces;
    for (int64_t u = first; u < last; u++) {
        const int64_t plane = u / in_plane, rest = u % in_plane, y = f->ring ? rest % out[1] : rest / pieces;
        const int64_t piece = f->ring ? rest / out[1] : rest % pieces;
        dwl_unit(w, plane / out[0], plane % out[0], y, piece % f->chunks, piece / f->chunks);
        sink k = {.o = o, .channels = w->g.up ? w->g.p->c : w->g.p->o};
        k.row = (plane * out[1] + y) * out[2] * k.channels;
        k.temp = w->g.ins > 1 ? w->ring + f->temp_at : NULL;
        sum_row(w, &k);
        if (k.temp) fold(w, &k, o);
    }
    if (o->stream) vf_stream_end();
}
