/* Depthwise convolution: forward and data gradient. Any window, stride, dilation, padding and channel multiplier, one
 * to three axes, f32, f16 and bf16 with f32 sums, both layouts.
 * Math:      see dw.h
 * Blocking:  channels-first: units of rows in the nearest cache, see first.h; 4 rows x up to 4 vectors of sums, see
 *            first_tile.c. Channels-last: rows of outputs, see last.h; 8 pixels x 1 vector of channels, see last_tile.c
 * Traffic:   every input from memory once, but for the halo of a strip, its rows from the caches once for each row of
 *            taps; every output once, past the caches where it is large (channels-last: and its pixels are whole lines)
 * Roofline:  bandwidth for small windows, multiply-adds from about 7x7 on
 *            Measured on two Zen 4 cores of a shared machine: 48% of a streaming copy for 3x3 8x128x56x56 in either
 *            layout, 73 Gflop/s for 3x3x3 1x64x50x50x50 channels-first, 132 for 7x7 8x96x56x56 channels-last
 * Assumes:   dense tensors; any sizes. Nothing is read or written out of bounds
 * Try:       weft bench conv2d:fwd:f32:nhwc:n8c128h56w56:o128k3p1g128 */
#include "cpu/dwconv/first.h"
#include "cpu/dwconv/last.h"

/* Variants, channels-last: channels of a unit. Few of them keep their rows in the nearest cache, many read memory in
 * longer runs. */
static const char *const variants[] = {"c128", "c512", NULL};
static const int64_t chunk_of[] = {DWL_NEAR, DWL_MANY};

typedef struct job {
    const weft__exec *e;
    dwl_outputs o;
    dwl_plan last; /* channels-last: see cut_last */
    int64_t units;
} job;

static bool is_up(const weft_problem *p) { return p->pass == WEFT_PASS_BWD_DATA; }

static void first_units(void *arg, int64_t slot) {
    const job *q = arg;
    const weft_problem *p = q->e->p;
    const dwf_plan *f = q->e->params;
    const int64_t each = f->chunks * f->strips * f->tiles;
    dwf_work w;
    dwf_start(&w, f, q->e, is_up(p), (float *)q->e->workspace + slot * f->floats);
    w.e = q->o.e, w.stream = q->o.stream;
    for (int64_t u = cpu_first(q->units, f->slots, slot); u < cpu_first(q->units, f->slots, slot + 1); u++) {
        dwf_unit(&w, u / each / p->c, u / each % p->c, u % each);
        for (int64_t z = w.from[0]; z < w.to[0]; z++) {
            dwf_fill(&w, z);
            for (int64_t i = 0; i < w.g.outs; i++) dwf_outputs(&w, z, i);
        }
    }
    if (q->o.stream) vf_stream_end();
}

static void last_units(void *arg, int64_t slot) {
    const job *q = arg;
    const dwl_plan *f = &q->last;
    dwl_work w;
    dwl_start(&w, f, q->e, is_up(q->e->p), (float *)q->e->workspace + slot * f->floats);
    dwl_sum(&w, &q->o, cpu_first(q->units, f->slots, slot), cpu_first(q->units, f->slots, slot + 1));
}

static job job_of(const weft__exec *e, const weft_tensor **out) {
    const int role = is_up(e->p) ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST;
    *out = weft__tensor(e->p, role);
    return (job){.e = e, .o = {cpu_epilogue_of(e), e->ptr[role], false}};
}

static weft_status run_first(const weft__exec *e) {
    const dwf_plan *f = e->params;
    const weft_tensor *out;
    job q = job_of(e, &out);
    q.o.stream = cpu_streams(e->hw, (double)weft__numel(out) * (double)weft__dtype_size(out->dtype));
    q.units = e->p->n * e->p->c * f->chunks * f->strips * f->tiles;
    weft__parallel(e->ctx, f->slots, first_units, &q);
    return WEFT_OK;
}

/* The parameter is the chunk alone, and the rest is worked out again: packed weights then serve images of all sizes. */
static const char *cut_last(dwl_plan *f, const weft_problem *p, int64_t chunk) {
    const dw_window g = dw_window_of(p, is_up(p));
    return dwl_cut(f, &g, chunk, false, weft__bytes(p));
}

static weft_status run_last(const weft__exec *e) {
    const int64_t *chunk = e->params;
    const weft_tensor *out;
    job q = job_of(e, &out);
    const dwl_plan *f = &q.last;
    cut_last(&q.last, e->p, *chunk);
    q.o.stream = dwl_streams(e->hw, out, q.o.out);
    q.units = e->p->n * out->dims[2] * out->dims[3] * f->tiles * f->chunks;
    weft__parallel(e->ctx, f->slots, last_units, &q);
    return WEFT_OK;
}

/* ns of one thread: with a stride each phase of the rows and columns of a plane of a data gradient is a sum of its own,
 * and they are put together. */
static double of_phases(const dw_window *g, const dwf_plan *f) {
    const int64_t phases = g->phases[1] * g->phases[2];
    if (phases * g->phases[0] == 1) return 0;
    const double strips = (double)(g->p->n * g->p->c * g->out[0] * f->strips * f->tiles);
    return strips * (120 * (double)phases + (g->phases[2] > 2 ? 0.5 : 0.15) * (double)(f->rows * f->cols));
}

static const char *plan_first(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_FIRST);
    if (why) return why;
    const dw_window g = dw_window_of(p, is_up(p));
    dwf_plan *f = WEFT__PARAMS(dwf_plan, d);
    if ((why = dwf_cut(f, &g, false, weft__bytes(p)))) return why;
    d->workspace = (size_t)(f->slots * f->floats) * sizeof(float);
    const double lanes = (double)cpu_round_up(p->out[2], VF_LANES) / (double)p->out[2];
    d->ns = dw_cost(p, hw, WEFT__MIN(lanes, 2), dw_first_extra(p, false)) * (dw_apart(p) ? 1.4 : 1);
    if (VF_LANES == 8) d->ns *= 1.25;
    const double rows = (double)(p->n * p->c * g.ins) * (double)(g.in[0] * g.in[1]) / hw->threads;
    if (!f->in_place && g.in[2] < 2 * VF_LANES) d->ns += 8 * rows; /* what a short row costs to copy */
    if (p->kernel[0] > 1 && g.in[2] <= 2 * VF_LANES) d->ns += 12 * rows;
    if (VF_LANES < 16 && f->in_place && g.in[2] < 2 * VF_LANES) /* or to load by mask, and a small plane */
        d->ns += 8 * rows + 60 * rows / (double)g.in[1];
    if (!g.up) d->ns += dwf_sorted(p, rows * (double)g.in[2]) + (p->stride[2] > 1 ? 18 * rows : 0);
    d->ns += of_phases(&g, f) / hw->threads;
    return NULL;
}

static const char *plan_last(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *why = dw_refusal(p, WEFT_LAYOUT_LAST);
    if (why) return why;
    if (variant && !(dwl_in_place(p) && p->c > DWL_NEAR)) return "one chunk has all channels, or rows go to scratch";
    int64_t *chunk = WEFT__PARAMS(int64_t, d);
    dwl_plan f = {0};
    *chunk = chunk_of[variant];
    if ((why = cut_last(&f, p, *chunk))) return why;
    d->workspace = (size_t)(f.slots * f.floats) * sizeof(float);
    d->packed = dwl_packed(p);
    const double outputs = (double)weft__numel(weft__tensor(p, is_up(p) ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST));
    d->ns = dw_cost(p, hw, (double)cpu_round_up(p->o, VF_LANES) / (double)p->o, DW_LAST_EXTRA) *
            (chunk_of[variant] == dwl_chunk(p) ? 1 : 1.02) * (weft__flops(p) > 512 * outputs ? 1.3 : 1);
    d->ns += dw_last_fill(p, hw);
    return NULL;
}

#if VF_REGS >= 32
#define FIRST_TILE "4x4v"
#define LAST_TILE "8x1v"
#else
#define FIRST_TILE "4x2v"
#define LAST_TILE "4x1v"
#endif
#define RECORD(id, tile, PASS, ...)                                                    \
    WEFT__KERNEL(id) = {                                                               \
        .name = WEFT__NAME(#id "_" tile),                                              \
        .version = 3,                                                                  \
        .op = WEFT_OP_CONV,                                                            \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(PASS),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .steps = CPU_EPILOGUE_STEPS,                                                   \
        .exact = true,                                                                 \
        __VA_ARGS__,                                                                   \
    }
RECORD(dwconv_fwd_nchw, FIRST_TILE, FWD, .plan = plan_first, .run = run_first);
RECORD(dwconv_bwd_data_nchw, FIRST_TILE, BWD_DATA, .plan = plan_first, .run = run_first);
#define PACKED .variants = variants, .plan = plan_last, .pack = dwl_pack, .run = run_last
RECORD(dwconv_fwd_nhwc, LAST_TILE, FWD, PACKED);
RECORD(dwconv_bwd_data_nhwc, LAST_TILE, BWD_DATA, PACKED);
