/* f32 depthwise 3x3, channels-last: weight gradient at stride 1 and 2, and both gradients at once at stride 1.
 * Math:      diff_weights[r,s] = sum_{n,y,x} center[y,x] * in[S y + r - ph, S x + s - pw]
 *            weights alone: center = diff_dst, in = src. Both: center = src, in = diff_dst seen through the window of
 *            the data gradient (see dwconv3x3.h): diff_weights, turned by 180 degrees, from the taps diff_src needs
 * Blocking:  8 pixels (4 with 16 registers) of a row x 1 vector of channels, one row of taps at a time: 3 sums of the
 *            weight gradient, 3 weights, and a center and a window sum a pixel live
 * Sums:      a slot owns a run of rows and one array of 10 sums a channel, of which a chunk stays in L1; the arrays of
 *            all slots are then added in order. Slots follow from the problem alone
 * Output:    diff_src is streamed past the caches where it is large and its pixels are whole cache lines
 * Traffic:   weights alone 8 bytes and 18 flops an element, both 12 bytes and 36 flops: memory-bound
 * Roofline:  bandwidth / 12 elements a second; measured against a copy of the same bytes:
 *            50% with AVX-512, 62% with AVX2 (one Zen 4 core, data from memory, 8x128x56x56)
 * Try:       weft bench conv2d:bwd:f32:nhwc:n8c128h56w56:o128k3p1g128 */
#include "cpu/conv/dwconv3x3_nhwc.h"

enum { PIXELS = VF_REGS >= 32 ? 8 : 4, SUMS = 10 }; /* 9 weights and the bias */
#if VF_REGS >= 32
#define TILE "8x1v"
#else
#define TILE "4x1v"
#endif

/* Runs of rows of the center; so few that the sums stay a small part of what a slot reads. */
static int64_t slots_of(const weft_problem *p, const dw_window *g) {
    const int64_t most = (int64_t)(weft__bytes(p) / (double)(8 * SUMS * 4 * g->c)),
                  slots = dw_slots(g->n * g->oh, weft__bytes(p));
    return WEFT__MAX(1, WEFT__MIN(slots, most));
}

/* Of a slot, in floats: [c / VF_LANES][SUMS][VF_LANES]. */
static int64_t slot_floats(const dw_window *g) { return (SUMS * VF_LANES * dw_vectors(g->c) + 15) / 16 * 16; }

static size_t workspace(const weft_problem *p, const weft__hw *hw) {
    const dw_window g = dw_window_of(p);
    (void)hw;
    return (size_t)(slots_of(p, &g) * slot_floats(&g)) * sizeof(float);
}

static double cost(const weft_problem *p, const weft__hw *hw) {
    const dw_window g = dw_window_of(p);
    const double lanes = (double)(g.n * g.oh) * dw_round_up(g.ow, PIXELS) * dw_round_up(g.c, VF_LANES);
    return dw_cost(p, hw, (p->pass == WEFT_PASS_BWD ? 18 : 9) * lanes);
}

typedef struct job {
    dw_window g;
    const float *in, *center, *diff_dst, *weights; /* weights packed */
    float *out, *diff_weights, *diff_bias, *workspace;
    int64_t dst_h, dst_w, slots, slot_floats;
    bool stream;
} job;

/* PIXELS centers from column x on, in the channels from c on. rows: at the leftmost tap. edge: some lie outside. */
VF_INLINE void block(const job *q, float *sums, float *out, const float *center, const dw_rows *rows, int64_t x,
                     int64_t c, const int S, const bool data, const bool edge, const bool tail) {
    const dw_window *g = &q->g;
    const vmask m = tail ? vm_range(0, g->c - c) : vm_all();
    const int64_t left = S * x - g->pw, live = edge ? g->ow - x : PIXELS;
    vf at[PIXELS], sum[PIXELS];
    VF_UNROLL for (int i = 0; i < PIXELS; i++) {
        at[i] = i < live ? dw_load_channels(center + i * g->c + c, m, tail) : vf_zero();
        sum[i] = vf_zero();
    }
    VF_UNROLL for (int r = 0; r < 3; r++) {
        if (edge && !rows->at[r]) continue;
        const float *p = rows->at[r] + c;
        float *to = sums + SUMS * c + 3 * r * VF_LANES;
        vf d[3], w[3];
        VF_UNROLL for (int s = 0; s < 3; s++) d[s] = vf_load(to + s * VF_LANES);
        if (data) {
            VF_UNROLL for (int s = 0; s < 3; s++) w[s] = vf_keep(vf_load(q->weights + 9 * c + (3 * r + s) * VF_LANES));
        }
        VF_UNROLL for (int j = 0; j < S * (PIXELS - 1) + 3; j++) {
            if (edge && (left + j < 0 || left + j >= g->iw)) continue;
            const vf t = dw_load_channels(p + j * g->c, m, tail);
            VF_UNROLL for (int i = 0; i < PIXELS; i++) {
                const int s = j - S * i;
                if (s < 0 || s > 2 || (edge && i >= live)) continue;
                d[s] = vf_fma(t, at[i], d[s]);
                if (data) sum[i] = vf_fma(t, w[s], sum[i]);
            }
        }
        VF_UNROLL for (int s = 0; s < 3; s++) vf_store(to + s * VF_LANES, d[s]);
    }
    if (!data) return;
    VF_UNROLL for (int i = 0; i < PIXELS; i++) if (!edge || i < live)
        dw_store_channels(out + i * g->c + c, sum[i], m, tail, q->stream);
}

VF_INLINE void pixels(const job *q, float *sums, float *out, const float *center, const dw_rows *rows, int64_t x,
                      int64_t c, const int S, const bool data, const bool edge) {
    const int64_t last = WEFT__MIN(q->g.c, c + DW_CHUNK);
    for (; c + VF_LANES <= last; c += VF_LANES) {
        if (c % 16 == 0 && rows->at[2]) {
            dw_prefetch_rows(rows->at[2] + c, q->g.iw, q->g.c, S * PIXELS, S);
            dw_prefetch_rows(center + c, q->g.ow, q->g.c, PIXELS, 1);
        }
        block(q, sums, out, center, rows, x, c, S, data, edge, false);
    }
    if (c < last) block(q, sums, out, center, rows, x, c, S, data, edge, true);
}

/* Add the pixels of rows [first, last) of diff_dst, counted through all images, to the sum of the bias. */
static void add_rows(const job *q, float *sums, int64_t first, int64_t last) {
    const int64_t c1 = q->g.c;
    for (int64_t c = 0; c < c1; c += VF_LANES) {
        const vmask m = vm_range(0, c1 - c);
        float *to = sums + SUMS * c + 9 * VF_LANES;
        vf sum = vf_load(to);
        for (int64_t i = first * q->dst_w; i < last * q->dst_w; i++)
            sum = vf_add(sum, vf_load_in(m, q->diff_dst + i * c1 + c));
        vf_store(to, sum);
    }
}

VF_INLINE void run_rows(const job *q, int64_t slot, const int S, const bool data) {
    const dw_window *g = &q->g;
    const int64_t first = slot * g->n * g->oh / q->slots, last = (slot + 1) * g->n * g->oh / q->slots;
    float *sums = q->workspace + slot * q->slot_floats;
    memset(sums, 0, (size_t)q->slot_floats * sizeof(float));
    for (int64_t row = first; row < last; row++) {
        const int64_t top = S * (row % g->oh) - g->ph;
        const float *in = q->in + row / g->oh * g->ih * g->iw * g->c;
        const bool border = top < 0 || top + 3 > g->ih;
        for (int64_t c = 0; c < g->c; c += DW_CHUNK)
            for (int64_t x = 0; x < g->ow; x += PIXELS) {
                const int64_t left = S * x - g->pw, at = (row * g->ow + x) * g->c;
                const dw_rows rows = dw_rows_of(g, in, top, left);
                float *out = data ? q->out + at : NULL;
                if (border || left < 0 || left + S * (PIXELS - 1) + 3 > g->iw || x + PIXELS > g->ow)
                    pixels(q, sums, out, q->center + at, &rows, x, c, S, data, true);
                else
                    pixels(q, sums, out, q->center + at, &rows, x, c, S, data, false);
            }
        /* diff_dst is split in the same proportion, whichever tensor is the center */
        if (q->diff_bias) add_rows(q, sums, row * q->dst_h / g->oh, (row + 1) * q->dst_h / g->oh);
    }
    if (q->stream) vf_stream_end();
}

static void task_s1(void *arg, int64_t slot) { run_rows(arg, slot, 1, false); }
static void task_s2(void *arg, int64_t slot) { run_rows(arg, slot, 2, false); }
static void task_both(void *arg, int64_t slot) { run_rows(arg, slot, 1, true); }

/* DW_CHUNK channels: the sums of all slots, in order, to where they belong. */
static void task_add(void *arg, int64_t chunk) {
    const job *q = arg;
    const int64_t c0 = chunk * DW_CHUNK, c1 = WEFT__MIN(q->g.c, c0 + DW_CHUNK);
    for (int64_t c = c0; c < c1; c += VF_LANES)
        for (int k = 0; k < (q->diff_bias ? SUMS : SUMS - 1); k++) {
            float *to = k == 9 ? q->diff_bias : q->diff_weights + (q->g.flip ? 8 - k : k), lane[VF_LANES];
            vf sum = vf_zero();
            for (int64_t i = 0; i < q->slots; i++)
                sum = vf_add(sum, vf_load(q->workspace + i * q->slot_floats + SUMS * c + k * VF_LANES));
            vf_store(lane, sum);
            for (int i = 0; i < VF_LANES && c + i < c1; i++) to[(c + i) * (k == 9 ? 1 : 9)] = lane[i];
        }
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool data = p->pass == WEFT_PASS_BWD;
    job q = {.g = dw_window_of(p),
             .weights = e->packed,
             .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
             .out = e->ptr[WEFT_ROLE_DIFF_SRC],
             .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
             .workspace = e->workspace,
             .dst_h = p->out[1],
             .dst_w = p->out[2]};
    q.in = e->ptr[data ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.center = e->ptr[data ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.diff_bias = weft__has_step(p, WEFT_STEP_BIAS) ? e->ptr[WEFT_ROLE_DIFF_BIAS] : NULL;
    q.slots = slots_of(p, &q.g);
    q.slot_floats = slot_floats(&q.g);
    q.stream = data && dw_streams_channels(e->hw, &q.g, q.out);
    weft__parallel(e->ctx, q.slots, data ? task_both : q.g.stride == 1 ? task_s1 : task_s2, &q);
    weft__parallel(e->ctx, (q.g.c + DW_CHUNK - 1) / DW_CHUNK, task_add, &q);
    return WEFT_OK;
}

static const char *plan_bwd_weights(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = dw_ok(p, WEFT_PASS_BWD_WEIGHTS, DW_LAST, 2, false);
    (void)variant;
    if (reason) return reason;
    d->workspace = workspace(p, hw);
    d->ns = cost(p, hw);
    return NULL;
}

static const char *plan_bwd(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = dw_ok(p, WEFT_PASS_BWD, DW_LAST, 1, false);
    (void)variant;
    if (reason) return reason;
    d->workspace = workspace(p, hw);
    d->packed = dw_packed(p, hw);
    d->ns = cost(p, hw);
    return NULL;
}

WEFT__KERNEL(f32_dwconv3x3_bwd_weights_nhwc) = {
    .name = WEFT__NAME("f32_dwconv3x3_bwd_weights_nhwc_" TILE),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .exact = true,
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
    .plan = plan_bwd_weights,
    .run = run,
};

WEFT__KERNEL(f32_dwconv3x3_bwd_nhwc) = {
    .name = WEFT__NAME("f32_dwconv3x3_bwd_nhwc_" TILE),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .exact = true,
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
    .plan = plan_bwd,
    .pack = dw_pack,
    .run = run,
};
