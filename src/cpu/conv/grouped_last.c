/* Convolution with 2, 4 or 8 channels a group, as many out as in, and its data gradient, channels-last: direct sums
 * with lanes along the channels. One to three axes, any stride, dilation and padding, f32, f16 and bf16 with f32 sums.
 * Math:      out[l] = end(sum over taps and d < G of in[l ^ d] * w_d[l]): with groups of a power of two, l ^ d runs
 *            through the channels of the group of l. A vector of a pixel is permuted once for each d
 * Blocking:  rows of outputs as in dwconv/last.h, read where they lie; 8 outputs of a row (4 with 16 registers, or at a
 *            stride) x 1 vector of channels stay in registers over all taps
 * Traffic:   every input from memory once, its rows from the caches once for each row of taps; every output once
 * Roofline:  multiply-adds; windows of 3 columns permute 10 vectors for 24 of them
 *            Measured on two Zen 4 cores of a shared machine, k 3, 64 channels of 50^3: groups of 2 109 Gflop/s
 *            (7.9 ms, transposed planes, grouped.c, take 12.7), groups of 8 141 (24.4 ms against 26.7)
 * Assumes:   dense tensors; at least one vector of channels. Nothing is read or written out of bounds
 * Try:       weft bench conv3d:fwd:f32:ndhwc:n1c64d50h50w50:o64k3p1g8 */
#include "cpu/dwconv/last_row.h"

typedef struct job {
    const weft__exec *e;
    dwl_plan f;
    cpu_epilogue end;
    void *out;
    bool stream;
    int64_t units;
} job;

static bool is_up(const weft_problem *p) { return p->pass == WEFT_PASS_BWD_DATA; }
static int64_t size_of(const weft_problem *p) { return p->c / p->groups; } /* channels of a group */

/* Outputs f + phases j, .. of a row, `live` of them exist. */
typedef struct run {
    const dwl_work *w;
    const job *q;
    dw_axis v;
    int64_t phases, f, j, live;
    int32_t lane[8][VF_LANES]; /* l ^ d */
} run;

/* P outputs of every vector of channels of the unit. */
VF_INLINE void channels(const run *t, const int P, const int KW, const bool edge, const int dtype) {
    const dwl_work *w = t->w;
    const job *job = t->q;
    const int64_t G = size_of(w->g.p), size = vf_size_of(dtype), line = 64 / size, c1 = w->c1, rows = w->rows;
    const int64_t taps = dwl_taps(w->g.p) * G * VF_LANES, apart = t->phases * w->channels;
    const dwl_view q = {w->pixel, t->j * t->v.step + t->v.off, w->until, t->live, t->v.count, t->v.step,
                        t->v.gap, t->v.next * G * VF_LANES};
    const bool stream = job->stream, biased = job->end.bias != NULL;
    const vf lo = vf_set1(job->end.lo), hi = vf_set1(job->end.hi);
    const int64_t row = ((w->n * w->g.out[0] + w->z) * w->g.out[1] + w->y) * w->g.out[2];
    const float *weights = w->weights + dwl_vector(w->c0) * taps + t->v.first * G * VF_LANES;
    char *out = (char *)job->out + (row + t->f + t->phases * t->j) * w->channels * size;
    int64_t at = dwl_at(w, q.left, w->c0);
    for (int64_t c = w->c0; c < c1; c += VF_LANES, at += VF_LANES, weights += taps) {
        const int64_t back = WEFT__MAX(0, c + VF_LANES - c1), from = (at - back) * size;
        vf sum[DWL_PIXELS];
        if (c % line == 0 && rows) dwl_ahead(w->row[rows - 1], at, w->g.in[2] * q.pixel, w->next, q.pixel, P, dtype);
        sum[0] = biased ? dwl_bias(&job->end, c - back, VF_LANES) : vf_zero();
        VF_UNROLL for (int i = 1; i < P; i++) sum[i] = sum[0];
        for (int64_t r = 0; r < rows; r++)
            for (int64_t d = 0; d < G; d++)
                dwl_add_row(&q, sum, (const char *)w->row[r] + from, weights + (w->tap[r] * G + d) * VF_LANES,
                            vi_load(t->lane[d]), P, KW, 1, edge, true, dtype);
        VF_UNROLL for (int i = 0; i < P; i++) sum[i] = vf_clip(sum[i], lo, hi);
        if (stream) {
            VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < q.live)
                vf_stream_as(dtype, out, i * apart + c - back, sum[i]);
        } else {
            VF_UNROLL for (int i = 0; i < P; i++) if (!edge || i < q.live)
                vf_store_as(dtype, out, i * apart + c - back, sum[i]);
        }
    }
}

/* ---------------------------------------------------------------- windows */
/* [window is 3 columns side by side][data type][edge] */
#define EACH(name, dtype)                                                                \
    static void edge_0_##name(const run *t) { channels(t, DWL_EDGE, 0, true, dtype); }   \
    static void inner_0_##name(const run *t) { channels(t, DWL_EDGE, 0, false, dtype); } \
    static void edge_3_##name(const run *t) { channels(t, DWL_EDGE, 3, true, dtype); }   \
    static void inner_3_##name(const run *t) { channels(t, DWL_PIXELS, 3, false, dtype); }
EACH(f32, WEFT_DTYPE_F32)
EACH(f16, WEFT_DTYPE_F16)
EACH(bf16, WEFT_DTYPE_BF16)
typedef void (*run_fn)(const run *);
static const run_fn functions[2][3][2] = {
    {{inner_0_f32, edge_0_f32}, {inner_0_f16, edge_0_f16}, {inner_0_bf16, edge_0_bf16}},
    {{inner_3_f32, edge_3_f32}, {inner_3_f16, edge_3_f16}, {inner_3_bf16, edge_3_bf16}},
};

/* Every phase of the columns of the unit. */
static void sum_row(const dwl_work *w, const job *q) {
    const int d = w->dtype == WEFT_DTYPE_F16 ? 1 : w->dtype == WEFT_DTYPE_BF16 ? 2 : 0;
    run t = {.w = w, .q = q, .phases = w->g.phases[2]};
    for (int64_t i = 0; i < size_of(w->g.p); i++)
        for (int l = 0; l < VF_LANES; l++) t.lane[i][l] = l ^ (int)i;
    for (t.f = 0; t.f < t.phases; t.f++) {
        t.v = dw_axis_of(&w->g, 2, t.f);
        const bool three = t.v.count == 3 && t.v.step == 1 && t.v.gap == 1;
        const int64_t step = t.v.step, to = cpu_ceil(w->x1 - t.f, t.phases), pixels = three ? DWL_PIXELS : DWL_EDGE;
        const int64_t inside = t.v.off < 0 ? cpu_ceil(-t.v.off, step) : 0;
        const int64_t past = dw_floor(w->g.in[2] - 1 - t.v.off - (t.v.count - 1) * t.v.gap, step) + 1;
        for (t.j = cpu_ceil(w->x0 - t.f, t.phases); t.j < to;) {
            const bool inner = t.j >= inside && t.j + pixels <= WEFT__MIN(past, to);
            t.live = to - t.j;
            functions[three][d][!inner](&t);
            t.j += inner ? pixels : DWL_EDGE;
        }
    }
}

static void task(void *arg, int64_t slot) {
    const job *q = arg;
    const dwl_plan *f = &q->f;
    const int64_t pieces = f->tiles * f->chunks;
    dwl_work w;
    dwl_start(&w, f, q->e, is_up(q->e->p), NULL);
    for (int64_t u = cpu_first(q->units, f->slots, slot); u < cpu_first(q->units, f->slots, slot + 1); u++) {
        dwl_unit(&w, u / pieces, u % pieces % f->chunks, u % pieces / f->chunks);
        sum_row(&w, q);
    }
    if (q->stream) vf_stream_end();
}

static const char *cut(dwl_plan *f, const weft_problem *p) {
    const dw_window g = dw_window_of(p, is_up(p));
    return dwl_cut(f, &g, dwl_chunk(p), false, weft__bytes(p));
}

static weft_status run_all(const weft__exec *e) {
    const int role = is_up(e->p) ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST;
    const weft_tensor *out = weft__tensor(e->p, role);
    job q = {.e = e, .end = cpu_epilogue_of(e), .out = e->ptr[role]};
    cut(&q.f, e->p);
    q.stream = dwl_streams(e->hw, out, q.out);
    q.units = e->p->n * out->dims[2] * out->dims[3] * q.f.tiles * q.f.chunks;
    weft__parallel(e->ctx, q.f.slots, task, &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- weights */
/* [vector][tap][d][VF_LANES]: of lane l the weight between l and l ^ d. */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    const weft_problem *p = e->p;
    const int64_t taps = dwl_taps(p), G = size_of(p);
    const int dtype = weft__tensor(p, WEFT_ROLE_WEIGHTS)->dtype;
    float *to = packed;
    for (int64_t v = 0; v < dwl_vector(p->o); v++)
        for (int64_t k = 0; k < taps; k++)
            for (int64_t d = 0; d < G; d++)
                for (int64_t l = 0; l < VF_LANES; l++) {
                    const int64_t c = dwl_channel(p, v) + l, other = c - c % G + (c % G ^ d);
                    const int64_t o = is_up(p) ? other : c, i = (is_up(p) ? c : other) % G;
                    *to++ = cpu_get(dtype, weights, (o * G + i) * taps + k);
                }
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    for (int a = 0; a < 3; a++)
        if (p->in[a] < 1) return "an axis is empty";
    const int64_t G = p->groups ? size_of(p) : 0;
    if (p->o != p->c) return "o differs from c";
    if ((G != 2 && G != 4 && G != 8) || G > VF_LANES) return "a group has not 2, 4 or 8 channels";
    if (p->c < VF_LANES) return "fewer channels than a vector has";
    const char *why = cpu_dtype_refusal(p);
    if (!why) why = cpu_epilogue_refusal(p);
    if (!why) why = cpu_layout_refusal(p, WEFT_LAYOUT_LAST);
    dwl_plan f = {0};
    if (!why) why = cut(&f, p);
    if (why) return why;
    d->packed = dwl_packed(p) * (size_t)G;
    const double sums = (double)(dwl_taps(p) * G), lanes = (double)cpu_round_up(p->o, VF_LANES) / (double)p->o;
    const bool three = p->kernel[2] == 3 && p->stride[2] == 1 && p->dilation[2] == 1;
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p) * lanes, (three ? 0.8 : 0.4) * sums / (sums + 12));
    return NULL;
}

#if VF_REGS >= 32
#define TILE "8x1v"
#else
#define TILE "4x1v"
#endif
#define RECORD(id, PASS)                                                               \
    WEFT__KERNEL(id) = {                                                               \
        .name = WEFT__NAME(#id "_" TILE),                                              \
        .version = 1,                                                                  \
        .op = WEFT_OP_CONV,                                                            \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(PASS),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .steps = CPU_EPILOGUE_STEPS,                                                   \
        .exact = true,                                                                 \
        .plan = plan,                                                                  \
        .pack = pack,                                                                  \
        .run = run_all,                                                                \
    }
RECORD(conv_fwd_nhwc_groups, FWD);
RECORD(conv_bwd_data_nhwc_groups, BWD_DATA);
