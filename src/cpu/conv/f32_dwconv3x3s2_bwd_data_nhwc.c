/* f32 depthwise 3x3 stride 2, channels-last: data gradient.
 * Math:      diff_src[v,u] = sum diff_dst[y,x] * weights[r,s] over 2 y + r = v + ph, 2 x + s = u + pw
 *            Even and odd columns meet 2 and 1 taps of a row: the parity of the pad is a compile-time constant. Even
 *            and odd rows meet 2 and 1 rows: the others are left out as if they lay outside
 * Blocking:  4 outputs of a row x 1 vector of channels, from 4 pixels of each row of diff_dst
 * Output:    streamed past the caches where it is large and its pixels are whole cache lines
 * Traffic:   5 bytes and 4.5 flops an output: memory-bound
 * Roofline:  bandwidth / 5 outputs a second; measured against a copy of the same bytes:
 *            99% with AVX-512, 85% with AVX2 (one Zen 4 core, data from memory, 8x64x112x112)
 * Try:       weft bench conv2d:bwd_data:f32:nhwc:n8c64h112w112:o64k3s2p1g64 */
#include "cpu/conv/dwconv3x3_nhwc.h"

enum { PIXELS = 4, TAPS = PIXELS / 2 + 2 }; /* outputs; pixels of diff_dst they meet */

static int64_t slots_of(const weft_problem *p, const dw_window *g) { return dw_slots(g->n * g->oh, weft__bytes(p)); }

static double cost(const weft_problem *p, const weft__hw *hw) {
    const dw_window g = dw_window_of(p);
    return dw_cost(p, hw, 2.25 * (double)(g.n * g.oh) * dw_round_up(g.ow, PIXELS) * dw_round_up(g.c, VF_LANES));
}

typedef struct job {
    dw_window g;
    dw_epilogue f;
    const float *in, *weights; /* weights packed, and turned as for stride 1: tap k is at 8 - k */
    float *out;
    int64_t slots;
    bool stream;
} job;

/* PIXELS outputs from the even column x on, in the channels from c on. rows: at the leftmost tap, by r; NULL: none. */
VF_INLINE void block(const job *q, float *out, const dw_rows *rows, int64_t x, int64_t c, const int odd_w,
                     const bool edge, const bool tail) {
    const dw_window *g = &q->g;
    const vmask m = tail ? vm_range(0, g->c - c) : vm_all();
    const vf begin = q->f.bias ? dw_load_channels(q->f.bias + c, m, tail) : vf_zero();
    const int64_t left = x / 2 - g->pw;
    vf sum[PIXELS];
    VF_UNROLL for (int u = 0; u < PIXELS; u++) sum[u] = begin;
    VF_UNROLL for (int r = 0; r < 3; r++) {
        if (!rows->at[r]) continue;
        const float *p = rows->at[r] + c, *w = q->weights + 9 * c + (8 - 3 * r) * VF_LANES;
        vf weight[3];
        VF_UNROLL for (int s = 0; s < 3; s++) weight[s] = vf_keep(vf_load(w - s * VF_LANES));
        VF_UNROLL for (int j = 0; j < TAPS; j++) {
            if (edge && (left + j < 0 || left + j >= g->iw)) continue;
            const vf t = dw_load_channels(p + j * g->c, m, tail);
            VF_UNROLL for (int u = 0; u < PIXELS; u++) {
                const int s = u + odd_w - 2 * (j - 1);
                if (s >= 0 && s < 3) sum[u] = vf_fma(t, weight[s], sum[u]);
            }
        }
    }
    const vf lo = vf_set1(q->f.lo), hi = vf_set1(q->f.hi);
    VF_UNROLL for (int u = 0; u < PIXELS; u++) if (!edge || x + u < g->ow)
        dw_store_channels(out + u * g->c + c, vf_clip(sum[u], lo, hi), m, tail, q->stream);
}

VF_INLINE void pixels(const job *q, float *out, const dw_rows *rows, int64_t x, int64_t c, const int odd_w,
                      const bool edge) {
    const int64_t last = WEFT__MIN(q->g.c, c + DW_CHUNK);
    for (; c + VF_LANES <= last; c += VF_LANES) {
        if (c % 16 == 0 && rows->at[0]) dw_prefetch_rows(rows->at[0] + c, q->g.iw, q->g.c, PIXELS / 2, 1);
        block(q, out, rows, x, c, odd_w, edge, false);
    }
    if (c < last) block(q, out, rows, x, c, odd_w, edge, true);
}

/* The rows of diff_dst that diff_src row v meets, by r, at a column. */
VF_INLINE dw_rows rows_of(const dw_window *g, const float *image, int64_t v, int odd_h, int64_t column) {
    dw_rows rows;
    for (int r = 0; r < 3; r++) {
        const int64_t twice = v + odd_h - r, y = twice / 2 + 1 - g->ph;
        rows.at[r] = twice % 2 || y < 0 || y >= g->ih ? NULL : image + (y * g->iw + column) * g->c;
    }
    return rows;
}

VF_INLINE void run_rows(const job *q, int64_t slot, const int odd_h, const int odd_w) {
    const dw_window *g = &q->g;
    const int64_t first = slot * g->n * g->oh / q->slots, last = (slot + 1) * g->n * g->oh / q->slots;
    for (int64_t row = first; row < last; row++) {
        const float *in = q->in + row / g->oh * g->ih * g->iw * g->c;
        for (int64_t c = 0; c < g->c; c += DW_CHUNK)
            for (int64_t x = 0; x < g->ow; x += PIXELS) {
                const int64_t left = x / 2 - g->pw;
                const dw_rows rows = rows_of(g, in, row % g->oh, odd_h, left);
                float *out = q->out + (row * g->ow + x) * g->c;
                if (left < 0 || left + TAPS > g->iw || x + PIXELS > g->ow)
                    pixels(q, out, &rows, x, c, odd_w, true);
                else
                    pixels(q, out, &rows, x, c, odd_w, false);
            }
    }
    if (q->stream) vf_stream_end();
}

static void task_00(void *arg, int64_t slot) { run_rows(arg, slot, 0, 0); }
static void task_01(void *arg, int64_t slot) { run_rows(arg, slot, 0, 1); }
static void task_10(void *arg, int64_t slot) { run_rows(arg, slot, 1, 0); }
static void task_11(void *arg, int64_t slot) { run_rows(arg, slot, 1, 1); }

static weft_status run(const weft__exec *e) {
    static const weft_task tasks[2][2] = {{task_00, task_01}, {task_10, task_11}};
    const dw_up u = dw_up_of(e->p);
    job q = {.g = u.g,
             .f = dw_epilogue_of(e),
             .in = e->ptr[WEFT_ROLE_DIFF_DST],
             .weights = e->packed,
             .out = e->ptr[WEFT_ROLE_DIFF_SRC]};
    q.slots = slots_of(e->p, &q.g);
    q.stream = dw_streams_channels(e->hw, &q.g, q.out);
    weft__parallel(e->ctx, q.slots, tasks[u.odd_h][u.odd_w], &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = dw_ok_up(p, WEFT_PASS_BWD_DATA, DW_LAST);
    (void)variant;
    if (reason) return reason;
    d->packed = dw_packed(p, hw);
    d->ns = cost(p, hw);
    return NULL;
}

WEFT__KERNEL(f32_dwconv3x3s2_bwd_data_nhwc) = {
    .name = WEFT__NAME("f32_dwconv3x3s2_bwd_data_nhwc_4x1v"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .exact = true,
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
    .plan = plan,
    .pack = dw_pack,
    .run = run,
};
