/* Depthwise convolution, channels-first: weight gradient, and every gradient at once. Any window, stride, dilation,
 * padding and channel multiplier, one to three axes, f32, f16 and bf16 with f32 sums.
 * Math:      diff_weights[k] = sum center * in at tap k of the window of dw.h
 *            weights alone: center = diff_dst, in = src. All at stride 1: center = src, in = diff_dst through the
 *            window of the data gradient, whose rows are in cache once for both. All at other strides: one after the
 *            other
 * Blocking:  units as in dwconv.c, the centers copied beside; tiles of taps in registers, see first_grad.c
 * Sums:      an item is a channel and a part of its units, the same for any number of threads; parts are added in
 *            order. A zero of the padding does not vanish beside a center that is not finite: where a sum is not
 *            finite the item is summed again, tap after tap
 * Traffic:   src, diff_dst and diff_src once
 * Roofline:  bandwidth for small windows, multiply-adds from about 5x5 on
 *            Measured on two Zen 4 cores of a shared machine, all gradients: 107 Gflop/s for 7x7 8x96x56x56, 70 for
 *            3x3x3 1x64x50x50x50
 * Try:       weft bench conv2d:bwd:f32:nchw:n8c128h56w56:o128k3p1g128 */
#include "cpu/dwconv/first.h"

enum { ITEMS = 32 }; /* channels and parts of them, at least, where there are enough units */

typedef struct grad_params {
    dwf_plan data, weights; /* data: where it is a pass of its own; its slots are 0 where not */
    bool up;                /* weights: through the window of the data gradient */
} grad_params;

typedef struct job {
    const weft__exec *e;
    const grad_params *g;
    float *partial; /* [parts][o][taps + 1], the last for the bias */
    bool stream;
} job;

static int64_t each_of(const dwf_plan *f) { return f->chunks * f->strips * f->tiles; }

/* ---------------------------------------------------------------- one item: a channel, some of its units */
VF_INLINE void fill_center(const dwf_work *w, const void *center, int64_t plane, const int dtype) {
    const int64_t *size = w->g.out, cols = w->to[2] - w->from[2];
    float *to = w->center;
    for (int64_t y = w->from[1]; y < w->to[1]; y++, to += w->f->pitch) {
        const int64_t index = (plane * size[1] + y) * size[2] + w->from[2];
        int64_t x = 0;
        for (; x + VF_LANES <= cols; x += VF_LANES) vf_store(to + x, vf_load_as(dtype, center, index + x));
        if (x < cols) vf_store(to + x, vf_load_count_as(dtype, center, index + x, cols - x));
    }
}

VF_INLINE void sum_values(float *sum, const void *p, int64_t index, int64_t count, const int dtype) {
    vf sums[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VF_LANES <= count; i += 4 * VF_LANES)
        VF_UNROLL for (int j = 0; j < 4; j++) sums[j] = vf_add(sums[j], vf_load_as(dtype, p, index + i + j * VF_LANES));
    for (; i < count; i += VF_LANES) sums[0] = vf_add(sums[0], vf_load_count_as(dtype, p, index + i, count - i));
    *sum += vf_sum(vf_add(vf_add(sums[0], sums[1]), vf_add(sums[2], sums[3])));
}

/* Add plane z of the centers of the unit, beside every plane of taps that it meets. */
static void add_plane(dwf_work *w, const void *center, int64_t z, const dw_axis axis[3]) {
    const weft_problem *p = w->g.p;
    const int64_t m = w->g.ins * w->g.outs, taps = dwf_taps(p), rows = w->to[1] - w->from[1];
    if (w->b_at != 2 * w->at) w->first = dwf_block_of(&w->b, w, &axis[1], &axis[2]), w->b_at = 2 * w->at;
    for (int64_t i = 0; i < m; i++) {
        const int64_t plane = ((w->n * p->c + w->c) * w->g.outs + (w->g.up ? 0 : i)) * w->g.out[0] + z;
        if (i == 0 || !w->g.up) {
            DW_BY_DTYPE(w->dtype, fill_center, w, center, plane)
        }
        for (int64_t t = 0; t < axis[0].count; t++) {
            const int64_t iz = z * axis[0].step + axis[0].off + t * axis[0].gap;
            if (iz < 0 || iz >= w->g.in[0]) continue;
            dwf_grad(&w->b, dwf_plane(w, w->g.up ? i : 0, iz) + w->first,
                     w->sums + (i * taps + t * p->kernel[1] * p->kernel[2]) * VF_LANES, w->center, w->f->pitch, rows,
                     w->to[2] - w->from[2]);
        }
    }
}

/* One sum, tap after tap: what is in the padding is left out. */
static float one_sum(const dwf_work *w, const void *center, int64_t i, const dw_axis axis[3], int64_t t, int64_t r,
                     int64_t s) {
    const dw_window *g = &w->g;
    const int64_t volume = w->n * g->p->c + w->c, of_in = volume * g->ins + (g->up ? i : 0);
    const int64_t of_center = volume * g->outs + (g->up ? 0 : i), *in = g->in, *out = g->out;
    float sum = 0;
    for (int64_t z = w->from[0]; z < w->to[0]; z++)
        for (int64_t y = w->from[1]; y < w->to[1]; y++)
            for (int64_t x = w->from[2]; x < w->to[2]; x++) {
                const int64_t iz = z * axis[0].step + axis[0].off + t * axis[0].gap;
                const int64_t iy = y * axis[1].step + axis[1].off + r * axis[1].gap;
                const int64_t ix = x * axis[2].step + axis[2].off + s * axis[2].gap;
                if (iz < 0 || iz >= in[0] || iy < 0 || iy >= in[1] || ix < 0 || ix >= in[2]) continue;
                sum += cpu_get(w->dtype, w->in, ((of_in * in[0] + iz) * in[1] + iy) * in[2] + ix) *
                       cpu_get(w->dtype, center, ((of_center * out[0] + z) * out[1] + y) * out[2] + x);
            }
    return sum;
}

static void again(dwf_work *w, const void *center, const dw_axis axis[3], float *to, int64_t from, int64_t last) {
    const int64_t *k = w->g.p->kernel, m = w->g.ins * w->g.outs, taps = dwf_taps(w->g.p), each = each_of(w->f);
    for (int64_t i = 0; i < m; i++)
        for (int64_t tap = 0; tap < taps; tap++) {
            float sum = 0;
            for (int64_t u = from; u < last; u++) {
                dwf_unit(w, u / each, w->c, u % each);
                sum += one_sum(w, center, i, axis, tap / k[2] / k[1], tap / k[2] % k[1], tap % k[2]);
            }
            to[i * (taps + 1) + (w->g.up ? taps - 1 - tap : tap)] = sum;
        }
}

static void run_item(const job *q, dwf_work *w, int64_t c, int64_t part) {
    const weft_problem *p = q->e->p;
    const dwf_plan *f = w->f;
    const int64_t m = p->o / p->c, taps = dwf_taps(p), each = each_of(f), units = p->n * each;
    const int64_t from = cpu_first(units, f->parts, part), last = cpu_first(units, f->parts, part + 1);
    const void *center = q->e->ptr[w->g.up ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    const void *diff_dst = q->e->ptr[WEFT_ROLE_DIFF_DST];
    const bool biased = weft__tensor(p, WEFT_ROLE_DIFF_BIAS) != NULL;
    const dw_axis axis[3] = {dw_axis_of(&w->g, 0, 0), dw_axis_of(&w->g, 1, 0), dw_axis_of(&w->g, 2, 0)};
    float *to = q->partial + (part * p->o + c * m) * (taps + 1);
    memset(w->sums, 0, (size_t)(m * taps * VF_LANES) * sizeof(float));
    memset(to, 0, (size_t)(m * (taps + 1)) * sizeof(float));
    for (int64_t u = from; u < last; u++) {
        dwf_unit(w, u / each, c, u % each);
        const int64_t volume = p->out[0] * p->out[1] * p->out[2];
        for (int64_t i = 0; i < m && biased && u % each == 0; i++) {
            DW_BY_DTYPE(w->dtype, sum_values, &to[i * (taps + 1) + taps], diff_dst, (w->n * p->o + c * m + i) * volume,
                        volume)
        }
        for (int64_t z = w->from[0]; z < w->to[0]; z++) {
            dwf_fill(w, z);
            if (w->g.up) dwf_outputs(w, z, 0);
            add_plane(w, center, z, axis);
        }
    }
    for (int64_t i = 0; i < m; i++)
        for (int64_t tap = 0; tap < taps; tap++)
            to[i * (taps + 1) + (w->g.up ? taps - 1 - tap : tap)] =
                vf_sum(vf_load(w->sums + (i * taps + tap) * VF_LANES));
    bool finite = true;
    for (int64_t i = 0; i < m; i++) finite &= dw_finite(to + i * (taps + 1), taps);
    if (!finite) again(w, center, axis, to, from, last);
}

/* ---------------------------------------------------------------- slots */
static void run_items(void *arg, int64_t slot) {
    const job *q = arg;
    const dwf_plan *f = &q->g->weights;
    const int64_t items = q->e->p->c * f->parts;
    dwf_work w;
    dwf_start(&w, f, q->e, q->g->up, (float *)q->e->workspace + slot * f->floats);
    w.e = (cpu_epilogue){NULL, WEFT_DTYPE_F32, -INFINITY, INFINITY};
    w.stream = q->stream;
    for (int64_t i = cpu_first(items, f->slots, slot); i < cpu_first(items, f->slots, slot + 1); i++)
        run_item(q, &w, i / f->parts, i % f->parts);
    if (q->stream) vf_stream_end();
}

static void run_data(void *arg, int64_t slot) {
    const job *q = arg;
    const dwf_plan *f = &q->g->data;
    const weft_problem *p = q->e->p;
    const int64_t each = each_of(f), units = p->n * p->c * each;
    dwf_work w;
    dwf_start(&w, f, q->e, true, (float *)q->e->workspace + slot * f->floats);
    w.e = (cpu_epilogue){NULL, WEFT_DTYPE_F32, -INFINITY, INFINITY};
    w.stream = q->stream;
    for (int64_t u = cpu_first(units, f->slots, slot); u < cpu_first(units, f->slots, slot + 1); u++) {
        dwf_unit(&w, u / each / p->c, u / each % p->c, u % each);
        for (int64_t z = w.from[0]; z < w.to[0]; z++) dwf_fill(&w, z), dwf_outputs(&w, z, 0);
    }
    if (q->stream) vf_stream_end();
}

/* Parts of a channel, in order, and rounded once. */
static void finish(void *arg, int64_t o) {
    const job *q = arg;
    const weft_problem *p = q->e->p;
    const int64_t taps = dwf_taps(p), parts = q->g->weights.parts;
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_DIFF_BIAS);
    for (int64_t tap = 0; tap <= taps; tap++) {
        float sum = 0;
        for (int64_t part = 0; part < parts; part++) sum += q->partial[(part * p->o + o) * (taps + 1) + tap];
        if (tap < taps)
            cpu_put(p->tensor[0].dtype, q->e->ptr[WEFT_ROLE_DIFF_WEIGHTS], o * taps + tap, sum);
        else if (bias)
            cpu_put(bias->dtype, q->e->ptr[WEFT_ROLE_DIFF_BIAS], o, sum);
    }
}

static void finish_all(void *arg, int64_t slot) {
    const int64_t o = ((const job *)arg)->e->p->o, slots = WEFT__MIN(o, 16);
    for (int64_t i = cpu_first(o, slots, slot); i < cpu_first(o, slots, slot + 1); i++) finish(arg, i);
}

static size_t scratch_bytes(const grad_params *g) {
    const int64_t floats = WEFT__MAX(g->weights.slots * g->weights.floats, g->data.slots * g->data.floats);
    return (size_t)floats * sizeof(float);
}

static weft_status run(const weft__exec *e) {
    const grad_params *g = e->params;
    const weft_tensor *out = weft__tensor(e->p, WEFT_ROLE_DIFF_SRC);
    job q = {.e = e, .g = g, .partial = (float *)(void *)((char *)e->workspace + scratch_bytes(g))};
    q.stream = out && cpu_streams(e->hw, (double)weft__numel(out) * (double)weft__dtype_size(out->dtype));
    if (g->data.slots) weft__parallel(e->ctx, g->data.slots, run_data, &q);
    weft__parallel(e->ctx, g->weights.slots, run_items, &q);
    weft__parallel(e->ctx, WEFT__MIN(e->p->o, 16), finish_all, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_FIRST);
    if (why) return why;
    grad_params *g = WEFT__PARAMS(grad_params, d);
    const double bytes = weft__bytes(p);
    const bool all = p->pass == WEFT_PASS_BWD;
    g->up = all && p->stride[0] * p->stride[1] * p->stride[2] == 1;
    const dw_window data = dw_window_of(p, true), weights = dw_window_of(p, g->up);
    if ((why = dwf_cut(&g->weights, &weights, true, bytes))) return why;
    if (all && !g->up && (why = dwf_cut(&g->data, &data, false, bytes))) return why;
    dwf_plan *f = &g->weights;
    f->parts = WEFT__MAX(
        1, WEFT__MIN(cpu_ceil(ITEMS, p->c), WEFT__MIN(p->n * each_of(f), (int64_t)(bytes / CPU_CUT(65536, 1024)))));
    f->slots = WEFT__MIN(f->slots, p->c * f->parts);
    d->workspace = scratch_bytes(g) + (size_t)(f->parts * p->o * (dwf_taps(p) + 1)) * sizeof(float);
    const double lanes = (double)cpu_round_up(p->out[2], VF_LANES) / (double)p->out[2];
    const double rows = (double)(p->n * p->c * p->in[0] * p->in[1]) / hw->threads;
    d->ns = dw_cost(p, hw, WEFT__MIN(lanes, 2), dw_first_extra(p, true)) * (dw_apart(p) ? 1.5 : 1.15) *
            (VF_LANES == 8 ? 1.1 : 1) * (p->kernel[2] > 8 && p->kernel[1] > 2 ? 1.3 : 1);
    if (p->kernel[0] > 1 && p->out[2] <= 2 * VF_LANES) /* what a short row costs beside */
        d->ns += (VF_LANES >= 16 ? 25 : 12) * rows;
    if (p->stride[2] > 1) {
        const double met = fmin(1, (double)(p->out[1] * p->kernel[1]) / (double)p->in[1]); /* of the rows */
        d->ns += met * (dwf_sorted(p, rows * (double)p->in[2]) + (12 + 4.5 * (double)p->kernel[1]) * rows);
    }
    if (VF_LANES < 16) d->ns += 250 * (double)(p->n * p->c * p->in[0]) / hw->threads; /* what a plane costs beside */
    return NULL;
}

#define RECORD(pass_name, PASS)                                                        \
    WEFT__KERNEL(dwconv_##pass_name##_nchw) = {                                        \
        .name = WEFT__NAME("dwconv_" #pass_name "_nchw_" TILE),                        \
        .version = 2,                                                                  \
        .op = WEFT_OP_CONV,                                                            \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(PASS),                                                \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .steps = WEFT__STEP_SET(BIAS),                                                 \
        .exact = true,                                                                 \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
#if VF_REGS >= 32
#define TILE "25v"
#else
#define TILE "10v"
#endif
RECORD(bwd_weights, BWD_WEIGHTS);
RECORD(bwd, BWD);
