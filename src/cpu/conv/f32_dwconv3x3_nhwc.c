/* f32 depthwise 3x3, channels-last: forward at stride 1 and 2, data gradient at stride 1.
 * Math:      out[y,x] = sum_{r,s} in[S y + r - ph, S x + s - pw] * w[r,s], see dwconv3x3.h
 * Blocking:  4 outputs of a row x 1 vector of channels; a pixel of `in` is loaded once for the outputs of the row it
 *            feeds. Channels run inside pixels, pixels along the row, in chunks of channels that keep the taps in L1
 * Output:    streamed past the caches where it is large and its pixels are whole cache lines
 * Traffic:   8 bytes and 18 flops an output at stride 1: memory-bound; the three rows come from L2
 * Roofline:  bandwidth / 8 outputs a second; measured against a copy of the same bytes:
 *            62% with AVX-512, 70% with AVX2 (one Zen 4 core, data from memory, 8x128x56x56)
 * Try:       weft bench conv2d:fwd:f32:nhwc:n8c128h56w56:o128k3p1g128 */
#include "cpu/conv/dwconv3x3_nhwc.h"

enum { PIXELS = 4 };

/* A slot takes a run of output rows, counted through all images. */
static int64_t slots_of(const weft_problem *p, const dw_window *g) { return dw_slots(g->n * g->oh, weft__bytes(p)); }

static double cost(const weft_problem *p, const weft__hw *hw) {
    const dw_window g = dw_window_of(p);
    return dw_cost(p, hw, 9.0 * (double)(g.n * g.oh) * dw_round_up(g.ow, PIXELS) * dw_round_up(g.c, VF_LANES));
}

typedef struct job {
    dw_window g;
    dw_epilogue f;
    const float *in, *weights; /* weights packed */
    float *out;
    int64_t slots;
    bool stream;
} job;

/* PIXELS outputs from column x on, in the channels from c on. rows: at the leftmost tap. edge: some lie outside. */
VF_INLINE void block(const job *q, float *out, const dw_rows *rows, int64_t x, int64_t c, const int S, const bool edge,
                     const bool tail) {
    const dw_window *g = &q->g;
    const vmask m = tail ? vm_range(0, g->c - c) : vm_all();
    const float *w = q->weights + 9 * c;
    const vf begin = q->f.bias ? dw_load_channels(q->f.bias + c, m, tail) : vf_zero();
    const int64_t left = S * x - g->pw;
    vf sum[PIXELS];
    VF_UNROLL for (int i = 0; i < PIXELS; i++) sum[i] = begin;
    VF_UNROLL for (int r = 0; r < 3; r++) {
        if (edge && !rows->at[r]) continue;
        const float *p = rows->at[r] + c;
        vf weight[3];
        VF_UNROLL for (int s = 0; s < 3; s++) weight[s] = vf_keep(vf_load(w + (3 * r + s) * VF_LANES));
        VF_UNROLL for (int j = 0; j < S * (PIXELS - 1) + 3; j++) {
            if (edge && (left + j < 0 || left + j >= g->iw)) continue;
            const vf t = dw_load_channels(p + j * g->c, m, tail);
            VF_UNROLL for (int i = 0; i < PIXELS; i++) {
                const int s = j - S * i;
                if (s >= 0 && s < 3) sum[i] = vf_fma(t, weight[s], sum[i]);
            }
        }
    }
    const vf lo = vf_set1(q->f.lo), hi = vf_set1(q->f.hi);
    VF_UNROLL for (int i = 0; i < PIXELS; i++) if (!edge || x + i < g->ow)
        dw_store_channels(out + i * g->c + c, vf_clip(sum[i], lo, hi), m, tail, q->stream);
}

VF_INLINE void pixels(const job *q, float *out, const dw_rows *rows, int64_t x, int64_t c, const int S,
                      const bool edge) {
    const int64_t last = WEFT__MIN(q->g.c, c + DW_CHUNK);
    for (; c + VF_LANES <= last; c += VF_LANES) {
        if (c % 16 == 0 && rows->at[2]) dw_prefetch_rows(rows->at[2] + c, q->g.iw, q->g.c, S * PIXELS, S);
        block(q, out, rows, x, c, S, edge, false);
    }
    if (c < last) block(q, out, rows, x, c, S, edge, true);
}

VF_INLINE void run_rows(const job *q, int64_t slot, const int S) {
    const dw_window *g = &q->g;
    const int64_t first = slot * g->n * g->oh / q->slots, last = (slot + 1) * g->n * g->oh / q->slots;
    for (int64_t row = first; row < last; row++) {
        const int64_t top = S * (row % g->oh) - g->ph;
        const float *in = q->in + row / g->oh * g->ih * g->iw * g->c;
        float *out = q->out + row * g->ow * g->c;
        const bool border = top < 0 || top + 3 > g->ih;
        for (int64_t c = 0; c < g->c; c += DW_CHUNK)
            for (int64_t x = 0; x < g->ow; x += PIXELS) {
                const int64_t left = S * x - g->pw;
                const dw_rows rows = dw_rows_of(g, in, top, left);
                if (border || left < 0 || left + S * (PIXELS - 1) + 3 > g->iw || x + PIXELS > g->ow)
                    pixels(q, out + x * g->c, &rows, x, c, S, true);
                else
                    pixels(q, out + x * g->c, &rows, x, c, S, false);
            }
    }
    if (q->stream) vf_stream_end();
}

static void task_s1(void *arg, int64_t slot) { run_rows(arg, slot, 1); }
static void task_s2(void *arg, int64_t slot) { run_rows(arg, slot, 2); }

static weft_status run(const weft__exec *e) {
    const bool fwd = e->p->pass == WEFT_PASS_FWD;
    job q = {.g = dw_window_of(e->p), .f = dw_epilogue_of(e), .weights = e->packed};
    q.in = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.out = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC];
    q.slots = slots_of(e->p, &q.g);
    q.stream = dw_streams_channels(e->hw, &q.g, q.out);
    weft__parallel(e->ctx, q.slots, q.g.stride == 1 ? task_s1 : task_s2, &q);
    return WEFT_OK;
}

static const char *plan_fwd(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = dw_ok(p, WEFT_PASS_FWD, DW_LAST, 2, false);
    (void)variant;
    if (reason) return reason;
    d->packed = dw_packed(p, hw);
    d->ns = cost(p, hw);
    return NULL;
}

static const char *plan_bwd_data(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = dw_ok(p, WEFT_PASS_BWD_DATA, DW_LAST, 1, false);
    (void)variant;
    if (reason) return reason;
    d->packed = dw_packed(p, hw);
    d->ns = cost(p, hw);
    return NULL;
}

WEFT__KERNEL(f32_dwconv3x3_fwd_nhwc) = {
    .name = WEFT__NAME("f32_dwconv3x3_fwd_nhwc_4x1v"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .exact = true,
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
    .plan = plan_fwd,
    .pack = dw_pack,
    .run = run,
};

WEFT__KERNEL(f32_dwconv3x3_bwd_data_nhwc) = {
    .name = WEFT__NAME("f32_dwconv3x3_bwd_data_nhwc_4x1v"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .exact = true,
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
    .plan = plan_bwd_data,
    .pack = dw_pack,
    .run = run,
};
