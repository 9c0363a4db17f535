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
 *            Measured on two Zen 4 cores of a shared machine, all gradients: 62% of a streaming copy for 3x3
 *            8x128x56x56 (1.7 ms, weights alone 1.4), 156 Gflop/s for 7x7 8x96x56x56
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
    int64_t x, live; /* centers from column x on, `live` of them exist */
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

/* P outputs from `sums` on, where put is needed. */
static void put_each(const rows *a, int64_t c, const float *sums, int P) {
    for (int i = 0; i < P && i < a->live; i++) put(a, a->x + i, c, vf_load(sums + i * VF_LANES));
}

/* What the loops over channels use of a row, in registers: a store could change what lies in memory. */
typedef struct view {
    int64_t pixel, left, cols, live; /* left: column of the first tap of the first center */
    int64_t count, step, gap, next;  /* of the taps; next: floats of weights and sums */
} view;

/* One row of taps. p: at the first tap of the first center; to, weights: of the first tap. KW 0: any window. */
VF_INLINE void add_taps(const view *q, vf sum[], const vf center[], const void *p, float *to, const float *weights,
                        const int P, const int KW, const int S, const bool data, const bool edge, const int dtype) {
    if (KW) {
        vf d[8], weight[8];
        VF_UNROLL for (int s = 0; s < KW; s++) d[s] = vf_load(to + s * q->next);
        VF_UNROLL for (int s = 0; s < KW; s++) weight[s] = data ? vf_keep(vf_load(weights + s * q->next)) : d[s];
        VF_UNROLL for (int i = 0; i < S * (P - 1) + KW; i++) {
            if (edge && (q->left + i < 0 || q->left + i >= q->cols)) continue;
            const vf t = vf_keep(vf_load_as(dtype, p, i * q->pixel));
            VF_UNROLL for (int j = 0; j < P; j++) {
                const int s = i - S * j;
                if (s < 0 || s >= KW || (edge && j >= q->live)) continue;
                d[s] = vf_fma(t, center[j], d[s]);
                if (data) sum[j] = vf_fma(t, weight[s], sum[j]);
            }
        }
        VF_UNROLL for (int s = 0; s < KW; s++) vf_store(to + s * q->next, d[s]);
        return;
    }
    for (int64_t s = 0; s < q->count; s++, to += q->next) {
        const vf weight = data ? vf_load(weights + s * q->next) : vf_zero();
        vf d = vf_load(to);
        VF_UNROLL for (int j = 0; j < P; j++) {
            const int64_t col = j * q->step + s * q->gap;
            if (edge && (q->left + col < 0 || q->left + col >= q->cols || j >= q->live)) continue;
            const vf t = vf_load_as(dtype, p, col * q->pixel);
            d = vf_fma(t, center[j], d);
            if (data) sum[j] = vf_fma(t, weight, sum[j]);
        }
        vf_store(to, d);
    }
}

/* P centers of every vector of channels of the unit, with R rows of taps; R 0: with any number. */
VF_INLINE void channels(const rows *a, const int P, const int KW, const int S, const int R, const bool data,
                        const bool edge, const int dtype) {
    const dwl_work *w = a->w;
    const int64_t size = vf_size_of(dtype), line = 64 / size, taps = dwl_taps(w->g.p) * VF_LANES, c0 = w->c0,
                  count = w->c1 - c0;
    const view q = {w->pixel, a->x * a->v.step + a->v.off, w->until, a->live, a->v.count, a->v.step,
                    a->v.gap, a->v.next * VF_LANES};
    const bool ring = w->f->ring, stream = a->stream;
    const int64_t apart = w->channels, center_pixel = a->pixel, ahead = ring || !w->rows ? 0 : w->next,
                  down = w->g.in[2] * q.pixel, center_down = w->g.out[2] * center_pixel;
    const int64_t first = (dwl_vector(c0) * dwl_taps(w->g.p) + a->v.first) * VF_LANES;
    const float *weights = data ? w->weights + first : NULL, *of_row[3];
    float *sums = a->sums + first + dwl_vector(c0) * VF_LANES, *to_row[3];
    const char *centers = (const char *)a->center + (a->x - w->x0) * center_pixel * size, *row[3];
    char *out = data ? (char *)a->out + (a->x * apart + c0) * size : NULL;
    int64_t at = dwl_at(w, q.left, c0);
    const void *lowest = ahead ? w->row[w->rows - 1] : NULL;
    VF_UNROLL for (int r = 0; r < R; r++) {
        row[r] = w->row[r], to_row[r] = sums + w->tap[r] * VF_LANES;
        of_row[r] = data ? weights + w->tap[r] * VF_LANES : NULL;
    }
    for (int64_t c = 0, v = 0, s = 0; c < count; c += VF_LANES, at += VF_LANES, v += taps, s += taps + VF_LANES) {
        const int64_t back = ring ? 0 : WEFT__MAX(0, c + VF_LANES - count), from = (at - back) * size;
        vf center[DWL_PIXELS], sum[DWL_PIXELS];
        if (c % line == 0 && ahead) {
            dwl_ahead(lowest, at, down, ahead, q.pixel, S ? S * P : P, dtype);
            dwl_ahead(centers, c, center_down, 1, center_pixel, P, dtype);
        }
        VF_UNROLL for (int i = 0; i < P; i++) {
            center[i] =
                !edge || i < q.live ? vf_keep(vf_load_as(dtype, centers, i * center_pixel + c - back)) : vf_zero();
            sum[i] = vf_zero();
        }
        if (R) {
            VF_UNROLL for (int r = 0; r < R; r++) add_taps(&q, sum, center, row[r] + from, to_row[r] + s,
                                                           data ? of_row[r] + v : NULL, P, KW, S, data, edge, dtype);
        } else {
            for (int r = 0; r < w->rows; r++) {
                const int64_t tap = w->tap[r] * VF_LANES;
                add_taps(&q, sum, center, (const char *)w->row[r] + from, sums + s + tap,
                         data ? weights + v + tap : NULL, P, KW, S, data, edge, dtype);
            }
        }
        if (data && ring) {
            float values[DWL_PIXELS * VF_LANES];
            VF_UNROLL for (int i = 0; i < P; i++) vf_store(values + i * VF_LANES, sum[i]);
            put_each(a, c0 + c, values, P);
        } else if (data && stream) {
            VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < q.live)
                vf_stream_as(dtype, out, i * apart + c - back, sum[i]);
        } else if (data) {
            VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < q.live)
                vf_store_as(dtype, out, i * apart + c - back, sum[i]);
        }
    }
}

/* ---------------------------------------------------------------- windows */
typedef struct window { /* a function of its own for each, so that each has the registers */
    int64_t count, step, pixels;
    bool data;
    void (*inner[3])(const rows *);
    void (*edge[3])(const rows *);
} window;

#define PIXELS_OF(S) (S > 1 ? DWL_EDGE : DWL_PIXELS)
#define ONE(name, P, KW, S, data, is_edge, dtype)           \
    static void name(const rows *a) {                       \
        if (KW == 3 && !is_edge && a->w->rows == 3)         \
            channels(a, P, KW, S, 3, data, is_edge, dtype); \
        else                                                \
            channels(a, P, KW, S, 0, data, is_edge, dtype); \
    }
#define EACH(KW, S, data)                                                                    \
    ONE(inner_##KW##_##S##_##data##_f32, PIXELS_OF(S), KW, S, data, false, WEFT_DTYPE_F32)   \
    ONE(inner_##KW##_##S##_##data##_f16, PIXELS_OF(S), KW, S, data, false, WEFT_DTYPE_F16)   \
    ONE(inner_##KW##_##S##_##data##_bf16, PIXELS_OF(S), KW, S, data, false, WEFT_DTYPE_BF16) \
    ONE(edge_##KW##_##S##_##data##_f32, DWL_EDGE, KW, S, data, true, WEFT_DTYPE_F32)         \
    ONE(edge_##KW##_##S##_##data##_f16, DWL_EDGE, KW, S, data, true, WEFT_DTYPE_F16)         \
    ONE(edge_##KW##_##S##_##data##_bf16, DWL_EDGE, KW, S, data, true, WEFT_DTYPE_BF16)
#define ROW(KW, S, data)                                                                                   \
    {KW,                                                                                                   \
     S,                                                                                                    \
     PIXELS_OF(S),                                                                                         \
     data,                                                                                                 \
     {inner_##KW##_##S##_##data##_f32, inner_##KW##_##S##_##data##_f16, inner_##KW##_##S##_##data##_bf16}, \
     {edge_##KW##_##S##_##data##_f32, edge_##KW##_##S##_##data##_f16, edge_##KW##_##S##_##data##_bf16}},
/* 0, 0: any */
#define WINDOWS(X) \
    X(3, 1, 1) X(5, 1, 1) X(7, 1, 1) X(0, 0, 1) X(3, 1, 0) X(3, 2, 0) X(5, 1, 0) X(5, 2, 0) X(7, 1, 0) X(0, 0, 0)
WINDOWS(EACH)
static const window windows[] = {WINDOWS(ROW)};

static void add_row(rows *a, int dtype) {
    const dwl_work *w = a->w;
    const int d = dtype == WEFT_DTYPE_F16 ? 1 : dtype == WEFT_DTYPE_BF16 ? 2 : 0;
    const int64_t step = a->v.step, inside = a->v.off < 0 ? cpu_ceil(-a->v.off, step) : 0;
    const int64_t past = dw_floor(w->g.in[2] - 1 - a->v.off - (a->v.count - 1) * a->v.gap, step) + 1;
    const window *x = windows;
    while (x->data != (a->out != NULL) || (x->count && (x->count != a->v.count || x->step != step || a->v.gap != 1)))
        x++;
    for (a->x = w->x0; a->x < w->x1;) {
        const bool inner = a->x >= inside && a->x + x->pixels <= WEFT__MIN(past, w->x1);
        a->live = w->x1 - a->x;
        (inner ? x->inner : x->edge)[d](a);
        a->x += inner ? x->pixels : DWL_EDGE;
    }
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
    add_row(&a, w->f->ring ? WEFT_DTYPE_F32 : w->dtype);
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

/* Parts in order, rounded once; a slot takes some vectors of channels. */
static int64_t finish_slots(const weft_problem *p) { return WEFT__MIN(dwl_vector(p->o), 16); }
static void finish(void *arg, int64_t slot) {
    const job *q = arg;
    const weft_problem *p = q->e->p;
    const int64_t taps = dwl_taps(p), slots = finish_slots(p), vectors = dwl_vector(p->o), each = sum_floats(p);
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_DIFF_BIAS);
    for (int64_t v = cpu_first(vectors, slots, slot); v < cpu_first(vectors, slots, slot + 1); v++)
        for (int64_t k = 0; k < taps + (bias != NULL); k++) {
            const float *from = q->partial + (v * (taps + 1) + k) * VF_LANES;
            float lane[VF_LANES];
            vf sum = vf_load(from);
            for (int64_t part = 1; part < q->g->weights.parts; part++) sum = vf_add(sum, vf_load(from + part * each));
            vf_store(lane, sum);
            for (int64_t c = v * VF_LANES; c < WEFT__MIN(p->o, (v + 1) * VF_LANES); c++) {
                const float value = lane[c - dwl_channel(p, v)];
                if (k < taps)
                    cpu_put(p->tensor[0].dtype, q->e->ptr[WEFT_ROLE_DIFF_WEIGHTS], c * taps + k, value);
                else
                    cpu_put(bias->dtype, q->e->ptr[WEFT_ROLE_DIFF_BIAS], c, value);
            }
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
    weft__parallel(e->ctx, finish_slots(e->p), finish, &q);
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
    f->parts = WEFT__MAX(
        1, WEFT__MIN(WEFT__MIN(rows_of_all, SLOTS), WEFT__MIN(worth, (int64_t)(bytes / CPU_CUT(65536, 1024)))));
    f->groups =
        WEFT__MAX(1, WEFT__MIN(f->chunks, WEFT__MIN(SLOTS / f->parts, (int64_t)(bytes / CPU_CUT(65536, 1024)))));
    f->slots = f->parts * f->groups;
    d->workspace = scratch_bytes(g) + (size_t)(f->parts * sum_floats(p)) * sizeof(float);
    d->packed = all ? dwl_packed(p) : 0;
    d->ns = dw_cost(p, hw, (double)cpu_round_up(p->o, VF_LANES) / (double)p->o, DW_LAST_EXTRA);
    if (g->up && p->kernel[2] <= 3) d->ns *= 0.85; /* memory is the limit, and diff_dst is read once */
    d->ns += dw_last_fill(p, hw);
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
