/* Depthwise convolution, channels-last: weight gradient, and every gradient at once. Any window, stride, dilation,
 * padding and channel multiplier, one to three axes, f32, f16 and bf16 with f32 sums.
 * Math:      diff_weights[k] = sum center * in at tap k of the window of dw.h
 *            weights alone: center = diff_dst, in = src. All at stride 1: center = src, in = diff_dst through the
 *            window of the data gradient: each pixel of diff_dst is loaded once for both. Else one pass after the
 *            other
 * Blocking:  8 centers of a row (4 with 16 registers) x 1 vector of channels, one row of taps at a time: the sums of
 *            a row of taps, its weights, and a center and an output for each pixel live
 * Sums:      a slot owns a run of rows and a group of channels, and an array of sums for these, [c / VF_LANES][taps
 *            + 1] [VF_LANES]; the arrays are then added in order. Slots follow from the problem alone
 * Traffic:   src, diff_dst and diff_src once
 * Roofline:  bandwidth for small windows, multiply-adds from about 5x5 on
 *            Measured on two Zen 4 cores of a shared machine, all gradients: 51% of a streaming copy for 3x3
 *            8x128x56x56, 156 Gflop/s for 7x7 8x96x56x56
 * Try:       weft bench conv2d:bwd:f32:nhwc:n8c128h56w56:o128k3p1g128 */
#include "cpu/dwconv/last.h"

enum { SLOTS = 32 };

typedef struct grad_params {
    dwl_plan data, weights; /* data: where it is a pass of its own; its slots are 0 where not */
    bool up;                /* weights: through the window of the data gradient */
} grad_params;

typedef struct job {
    const weft__exec *e;
    const grad_params *g;
    const void *center, *diff_dst;
    float *partial;
    dwl_outputs o;
} job;

typedef struct rows { /* of one unit */
    const dwl_work *w;
    dw_axis v;
    const void *center; /* at column x0, channel c0 */
    int64_t pixel;      /* elements from one center to the next */
    float *sums;
    void *out; /* diff_src, the row at channel 0; NULL: weights alone */
    bool stream;
} rows;

static int64_t sum_floats(const weft_problem *p) { return (dwl_taps(p) + 1) * cpu_round_up(p->o, VF_LANES); }

/* Where rows come from the ring: the last vector may be a part, data types of load and store differ. */
static void put(const rows *a, int64_t x, int64_t c, vf v) {
    const dwl_work *w = a->w;
    const int64_t index = x * w->channels + c;
    if (w->dtype == WEFT_DTYPE_F16)
        vf_store_count_as(WEFT_DTYPE_F16, a->out, index, v, w->c1 - c);
    else if (w->dtype == WEFT_DTYPE_BF16)
        vf_store_count_as(WEFT_DTYPE_BF16, a->out, index, v, w->c1 - c);
    else
        vf_store_count_as(WEFT_DTYPE_F32, a->out, index, v, w->c1 - c);
}

VF_INLINE void put_all(const rows *a, int64_t x, int64_t live, int64_t c, const vf sum[], const int P, const bool edge,
                       const int dtype) {
    const int64_t index = x * a->w->channels + c, next = a->w->channels;
    if (a->w->f->ring) {
        for (int i = 0; i < P && i < live; i++) put(a, x + i, c, sum[i]);
    } else if (a->stream) {
        VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < live)
            vf_stream_as(dtype, a->out, index + i * next, sum[i]);
    } else {
        VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < live)
            vf_store_as(dtype, a->out, index + i * next, sum[i]);
    }
}

/* P centers from column x on, `live` of them exist. KW 0: any window. */
VF_INLINE void tile(const rows *a, int64_t x, int64_t live, int64_t c, const int P, const int KW, const int S,
                    const bool data, const bool edge, const int dtype) {
    const dwl_work *w = a->w;
    const int64_t left = x * a->v.step + a->v.off, cols = w->until, taps = dwl_taps(w->g.p), pixel = w->pixel;
    const int64_t at = dwl_at(w, left, c), next = a->v.next * VF_LANES;
    const float *weights = data ? w->weights + (dwl_vector(c) * taps + a->v.first) * VF_LANES : NULL;
    float *sums = a->sums + (dwl_vector(c) * (taps + 1) + a->v.first) * VF_LANES;
    vf center[DWL_PIXELS], sum[DWL_PIXELS];
    VF_UNROLL for (int i = 0; i < P; i++) {
        center[i] = !edge || i < live ? vf_keep(vf_load_as(dtype, a->center, (x - w->x0 + i) * a->pixel + c - w->c0))
                                      : vf_zero();
        sum[i] = vf_zero();
    }
    for (int r = 0; r < w->rows; r++) {
        const float *of_row = data ? weights + w->tap[r] * VF_LANES : NULL;
        const void *p = w->row[r];
        float *to = sums + w->tap[r] * VF_LANES;
        if (KW) {
            vf d[8], weight[8];
            VF_UNROLL for (int s = 0; s < KW; s++) d[s] = vf_load(to + s * next);
            VF_UNROLL for (int s = 0; s < KW; s++) weight[s] = data ? vf_keep(vf_load(of_row + s * next)) : d[s];
            VF_UNROLL for (int i = 0; i < S * (P - 1) + KW; i++) {
                if (edge && (left + i < 0 || left + i >= cols)) continue;
                const vf t = vf_keep(vf_load_as(dtype, p, at + i * pixel));
                VF_UNROLL for (int j = 0; j < P; j++) {
                    const int s = i - S * j;
                    if (s < 0 || s >= KW || (edge && j >= live)) continue;
                    d[s] = vf_fma(t, center[j], d[s]);
                    if (data) sum[j] = vf_fma(t, weight[s], sum[j]);
                }
            }
            VF_UNROLL for (int s = 0; s < KW; s++) vf_store(to + s * next, d[s]);
        } else {
            for (int64_t s = 0; s < a->v.count; s++, to += next) {
                const vf weight = data ? vf_load(of_row + s * next) : vf_zero();
                vf d = vf_load(to);
                VF_UNROLL for (int j = 0; j < P; j++) {
                    const int64_t col = j * a->v.step + s * a->v.gap;
                    if (edge && (left + col < 0 || left + col >= cols || j >= live)) continue;
                    const vf t = vf_load_as(dtype, p, at + col * pixel);
                    d = vf_fma(t, center[j], d);
                    if (data) sum[j] = vf_fma(t, weight, sum[j]);
                }
                vf_store(to, d);
            }
        }
    }
    if (data) put_all(a, x, live, c, sum, P, edge, dtype);
}

VF_INLINE void channels(const rows *a, int64_t x, int64_t live, const int P, const int KW, const int S, const bool data,
                        const bool edge, const int dtype) {
    const dwl_work *w = a->w;
    const int64_t left = x * a->v.step + a->v.off, line = 64 / vf_size_of(dtype);
    for (int64_t c = w->c0; c < w->c1; c += VF_LANES) {
        if (c % line == 0 && w->rows && !w->f->ring) {
            dwl_ahead(w->row[w->rows - 1], dwl_at(w, left, c), w->g.in[2] * w->pixel, w->next, w->pixel, S ? S * P : P,
                      dtype);
            dwl_ahead(a->center, (x - w->x0) * a->pixel + c - w->c0, w->g.out[2] * a->pixel, 1, a->pixel, P, dtype);
        }
        tile(a, x, live, dwl_whole(w, c), P, KW, S, data, edge, dtype);
    }
}

VF_INLINE void add_span(const rows *a, const int KW, const int S, const bool data, const int dtype) {
    const dwl_work *w = a->w;
    const int64_t step = a->v.step, inside = a->v.off < 0 ? cpu_ceil(-a->v.off, step) : 0;
    const int64_t past = dw_floor(w->g.in[2] - 1 - a->v.off - (a->v.count - 1) * a->v.gap, step) + 1;
    const int P = S > 1 ? DWL_EDGE : DWL_PIXELS;
    for (int64_t x = w->x0; x < w->x1;) {
        if (x >= inside && x + P <= WEFT__MIN(past, w->x1)) {
            channels(a, x, P, P, KW, S, data, false, dtype);
            x += P;
        } else {
            channels(a, x, w->x1 - x, DWL_EDGE, KW, S, data, true, dtype);
            x += DWL_EDGE;
        }
    }
}

VF_INLINE void add_row(const rows *a, const int dtype) {
    const int64_t kw = a->v.gap == 1 ? a->v.count : 0;
#define WINDOW(KW, S, data)                                       \
    if (kw == KW && a->v.step == S && (a->out != NULL) == data) { \
        add_span(a, KW, S, data, dtype);                          \
        return;                                                   \
    }
    WINDOW(3, 1, true)
    WINDOW(5, 1, true)
    WINDOW(7, 1, true)
    WINDOW(3, 1, false)
    WINDOW(3, 2, false)
    WINDOW(5, 1, false)
    WINDOW(5, 2, false)
    WINDOW(7, 1, false)
#undef WINDOW
    if (a->out)
        add_span(a, 0, 0, true, dtype);
    else
        add_span(a, 0, 0, false, dtype);
}

/* ---------------------------------------------------------------- slots */
/* Pixels [first, last) of diff_dst, channels [c0, c1), to the sum of the bias. */
VF_INLINE void add_bias(float *sums, const void *p, int64_t first, int64_t last, int64_t c0, int64_t c1,
                        const weft_problem *q, const int dtype) {
    const int64_t taps = dwl_taps(q);
    for (int64_t v = dwl_vector(c0); v < dwl_vector(c1); v++) {
        const int64_t c = dwl_channel(q, v);
        float *to = sums + (v * (taps + 1) + taps) * VF_LANES;
        vf sum = vf_load(to);
        for (int64_t i = first; i < last; i++) sum = vf_add(sum, vf_load_count_as(dtype, p, i * q->o + c, c1 - c));
        vf_store(to, sum);
    }
}

VF_INLINE void fill_center(const dwl_work *w, float *to, const void *p, int64_t row, const int dtype) {
    for (int64_t x = w->x0; x < w->x1; x++, to += w->f->chunk)
        for (int64_t c = w->c0; c < w->c1; c += VF_LANES)
            vf_store(to + c - w->c0, vf_load_count_as(dtype, p, (row * w->g.out[2] + x) * w->channels + c, w->c1 - c));
}

static void run_row(const job *q, dwl_work *w, float *sums, int64_t index, int64_t chunk, int64_t tile_of) {
    const int64_t *out = w->g.out, size = (int64_t)weft__dtype_size(w->dtype);
    dwl_unit(w, index, chunk, tile_of);
    const int64_t row = (w->n * out[0] + w->z) * out[1] + w->y, first = row * out[2];
    rows a = {.w = w, .v = dw_axis_of(&w->g, 2, 0), .sums = sums, .stream = q->o.stream};
    a.out = q->g->up ? (char *)q->o.out + first * w->channels * size : NULL;
    a.center = (const char *)q->center + ((first + w->x0) * w->channels + w->c0) * size, a.pixel = w->channels;
    if (w->f->ring) {
        float *to = w->ring + w->f->center_at;
        DW_BY_DTYPE(w->dtype, fill_center, w, to, q->center, row)
        a.center = to, a.pixel = w->f->chunk;
    }
    DW_BY_DTYPE(w->f->ring ? WEFT_DTYPE_F32 : w->dtype, add_row, &a)
}

static void run_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const weft_problem *p = q->e->p;
    const dwl_plan *f = &q->g->weights;
    const int64_t part = slot / f->groups, group = slot % f->groups, taps = dwl_taps(p),
                  pixels = p->n * p->out[0] * p->out[1] * p->out[2];
    const int64_t chunk0 = cpu_first(f->chunks, f->groups, group), chunk1 = cpu_first(f->chunks, f->groups, group + 1);
    const int64_t c0 = chunk0 * f->chunk, c1 = WEFT__MIN(p->o, chunk1 * f->chunk);
    float *sums = q->partial + part * sum_floats(p);
    dwl_work w;
    dwl_start(&w, f, q->e, q->g->up, (float *)q->e->workspace + slot * f->floats);
    const int64_t all = p->n * w.g.out[0] * w.g.out[1], from = cpu_first(all, f->parts, part),
                  to = cpu_first(all, f->parts, part + 1);
    memset(sums + dwl_vector(c0) * (taps + 1) * VF_LANES, 0,
           (size_t)(cpu_round_up(c1 - c0, VF_LANES) * (taps + 1)) * sizeof(float));
    if (weft__tensor(p, WEFT_ROLE_DIFF_BIAS)) {
        DW_BY_DTYPE(w.dtype, add_bias, sums, q->diff_dst, cpu_first(pixels, f->parts, part),
                    cpu_first(pixels, f->parts, part + 1), c0, c1, p)
    }
    if (f->ring) {
        for (int64_t piece = chunk0 * f->tiles; piece < chunk1 * f->tiles; piece++)
            for (int64_t row = from; row < to; row++) run_row(q, &w, sums, row, piece / f->tiles, piece % f->tiles);
    } else {
        for (int64_t row = from; row < to; row++)
            for (int64_t piece = chunk0 * f->tiles; piece < chunk1 * f->tiles; piece++)
                run_row(q, &w, sums, row, piece / f->tiles, piece % f->tiles);
    }
    if (q->o.stream) vf_stream_end();
}

static void run_data(void *arg, int64_t slot) {
    const job *q = arg;
    const dwl_plan *f = &q->g->data;
    const weft_problem *p = q->e->p;
    const int64_t units = p->n * p->in[0] * p->in[1] * f->tiles * f->chunks;
    dwl_work w;
    dwl_start(&w, f, q->e, true, (float *)q->e->workspace + slot * f->floats);
    dwl_sum(&w, &q->o, cpu_first(units, f->slots, slot), cpu_first(units, f->slots, slot + 1));
}

/* Parts in order, rounded once. */
static void finish(void *arg, int64_t slot) {
    const job *q = arg;
    const weft_problem *p = q->e->p;
    const int64_t taps = dwl_taps(p), slots = WEFT__MIN(p->o, 16), parts = q->g->weights.parts;
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_DIFF_BIAS);
    for (int64_t c = cpu_first(p->o, slots, slot); c < cpu_first(p->o, slots, slot + 1); c++)
        for (int64_t k = 0, v = c / VF_LANES; k <= taps; k++) {
            float sum = 0;
            for (int64_t part = 0; part < parts; part++)
                sum += q->partial[part * sum_floats(p) + (v * (taps + 1) + k) * VF_LANES + c - dwl_channel(p, v)];
            if (k < taps)
                dw_put(p->tensor[0].dtype, q->e->ptr[WEFT_ROLE_DIFF_WEIGHTS], c * taps + k, sum);
            else if (bias)
                dw_put(bias->dtype, q->e->ptr[WEFT_ROLE_DIFF_BIAS], c, sum);
        }
}

static size_t scratch_bytes(const grad_params *g) {
    const int64_t floats = WEFT__MAX(g->weights.slots * g->weights.floats, g->data.slots * g->data.floats);
    return (size_t)floats * sizeof(float);
}

static weft_status run(const weft__exec *e) {
    const grad_params *g = e->params;
    const weft_tensor *out = weft__tensor(e->p, WEFT_ROLE_DIFF_SRC);
    job q = {.e = e, .g = g, .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST]};
    q.center = e->ptr[g->up ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.partial = (float *)(void *)((char *)e->workspace + scratch_bytes(g));
    q.o = (dwl_outputs){{NULL, WEFT_DTYPE_F32, -INFINITY, INFINITY}, out ? e->ptr[WEFT_ROLE_DIFF_SRC] : NULL, false};
    q.o.stream = out && dwl_streams(e->hw, out, q.o.out);
    if (g->data.slots) weft__parallel(e->ctx, g->data.slots, run_data, &q);
    if (!g->up) q.o.stream = false;
    weft__parallel(e->ctx, g->weights.slots, run_slot, &q);
    weft__parallel(e->ctx, WEFT__MIN(e->p->o, 16), finish, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_LAST);
    if (why) return why;
    grad_params *g = WEFT__PARAMS(grad_params, d);
    const double bytes = weft__bytes(p);
    const bool all = p->pass == WEFT_PASS_BWD;
    g->up = all && p->stride[0] * p->stride[1] * p->stride[2] == 1 && p->o == p->c;
    const dw_window data = dw_window_of(p, true), weights = dw_window_of(p, g->up);
    if ((why = dwl_cut(&g->weights, &weights, dwl_chunk(p), true, bytes))) return why;
    if (all && !g->up && (why = dwl_cut(&g->data, &data, dwl_chunk(p), false, bytes))) return why;
    dwl_plan *f = &g->weights;
    const int64_t worth = (int64_t)(bytes / (double)(8 * 4 * sum_floats(p))),
                  rows_of_all = p->n * weights.out[0] * weights.out[1];
    f->parts = WEFT__MAX(1, WEFT__MIN(WEFT__MIN(rows_of_all, SLOTS), WEFT__MIN(worth, (int64_t)(bytes / 65536))));
    f->groups = WEFT__MAX(1, WEFT__MIN(f->chunks, WEFT__MIN(SLOTS / f->parts, (int64_t)(bytes / 65536))));
    f->slots = f->parts * f->groups;
    d->workspace = scratch_bytes(g) + (size_t)(f->parts * sum_floats(p)) * sizeof(float);
    d->packed = all ? dwl_packed(p) : 0;
    d->ns = dw_cost(p, hw, (double)cpu_round_up(p->o, VF_LANES) / (double)p->o, DW_LAST_EXTRA);
    return NULL;
}

#define RECORD(pass_name, PASS, ...)                                                                   \
    WEFT__KERNEL(dwconv_##pass_name##_nhwc) = {.name = WEFT__NAME("dwconv_" #pass_name "_nhwc_" TILE), \
                                               .version = 2,                                           \
                                               .op = WEFT_OP_CONV,                                     \
                                               .engine = WEFT_ENGINE_CPU,                              \
                                               .isa = WEFT__ISA_HERE,                                  \
                                               .passes = WEFT__PASS_SET(PASS),                         \
                                               .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | \
                                                         WEFT__DTYPE_SET(BF16),                        \
                                               .steps = WEFT__STEP_SET(BIAS),                          \
                                               .exact = true,                                          \
                                               .plan = plan,                                           \
                                               .run = run,                                             \
                                               __VA_ARGS__}
#if VF_REGS >= 32
#define TILE "8x1v"
#else
#define TILE "4x1v"
#endif
RECORD(bwd_weights, BWD_WEIGHTS, .pack = NULL);
RECORD(bwd, BWD, .pack = dwl_pack);
