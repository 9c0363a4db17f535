/* Depthwise 3x3, channels-first: forward at stride 1 and 2 (o = m c too), data gradient at stride 1. f32; with AVX-512
 * f16 and bf16 too, widened as they are loaded.
 * Math:      out[y,x] = sum_{r,s} in[S y + r - ph, S x + s - pw] * w[r,s], see dwconv3x3.h
 * Blocking:  4 rows x 1 vector of outputs; a row of taps is loaded once for the up to 3 output rows it feeds: 4 sums,
 *            9 weights, 3 taps live. Rows and columns outside the plane are skipped or masked, there is no padded copy
 * Output:    the 4 rows are one contiguous piece; it leaves through the stage (see stage.h), or is written in place
 *            where it is f32 that is not streamed. Vectors run from right to left: what one writes past its row is
 *            covered by the first vector of the next row
 * Traffic:   8 bytes and 18 flops an output at stride 1: memory-bound
 * Roofline:  bandwidth / 8 outputs a second; measured against a copy of the same bytes:
 *            82% with AVX-512, 74% with AVX2 (one Zen 4 core, data from memory, 8x128x56x56). 16-bit data takes 0.87 of
 *            the time of f32: loads that convert are the limit
 * Try:       weft bench conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128 */
#include "cpu/conv/dwconv3x3.h"

enum { ROWS = 4 }; /* of outputs in a block */

/* A slot takes a run of blocks, counted through all planes. */
static int64_t blocks_of(const dw_window *g) { return g->n * g->c * g->m * ((g->oh + ROWS - 1) / ROWS); }

static int64_t slots_of(const weft_problem *p, const dw_window *g) { return cpu_slots(blocks_of(g), weft__bytes(p)); }

/* ROWS x VF_LANES outputs from row y on, to out with rows ow apart. edge: some tap may lie outside the plane. */
VF_INLINE void block(float *out, const void *in, int64_t plane, const dw_window *g, const dw_columns *k, int64_t y,
                     const vf w[9], const vf ends[3], const int S, const bool edge, const int dtype) {
    vf sum[ROWS];
    VF_UNROLL for (int j = 0; j < ROWS; j++) sum[j] = ends[0];
    VF_UNROLL for (int i = 0; i < S * (ROWS - 1) + 3; i++) {
        const int64_t row = S * y - g->ph + i;
        if (edge && (row < 0 || row >= g->ih)) continue;
        vf t[3];
        dw_taps(t, k, in, plane + row * g->iw, S, edge, dtype);
        VF_UNROLL for (int j = 0; j < ROWS; j++) {
            const int r = i - S * j;
            if (r < 0 || r > 2) continue;
            VF_UNROLL for (int s = 0; s < 3; s++) sum[j] = dw_fma(k, s, t[s], w[3 * r + s], sum[j], edge);
        }
    }
    VF_UNROLL for (int j = 0; j < ROWS; j++) vf_store(out + j * g->ow, vf_clip(sum[j], ends[1], ends[2]));
}

/* ROWS whole rows of outputs, right to left. only: the columns of a row that is one vector. */
VF_INLINE void rows(float *out, const void *in, int64_t plane, const dw_window *g, const dw_columns *only, int64_t y,
                    const vf w[9], const vf ends[3], const int S, const int dtype) {
    const int64_t top = S * y - g->ph;
    if (g->ow <= VF_LANES) {
        dw_prefetch(in, plane + (top + 2) * g->iw, g->iw, 0, S * ROWS, S, dtype);
        block(out, in, plane, g, only, y, w, ends, S, true, dtype);
        return;
    }
    const bool border = top < 0 || top + S * (ROWS - 1) + 3 > g->ih;
    for (int64_t x = (g->ow - 1) / VF_LANES * VF_LANES; x >= 0; x -= VF_LANES) {
        const dw_columns k = dw_columns_of(g, x, S, border);
        dw_prefetch(in, plane + (top + 2) * g->iw, g->iw, x, S * ROWS, S, dtype);
        if (k.edge)
            block(out + x, in, plane, g, &k, y, w, ends, S, true, dtype);
        else
            block(out + x, in, plane, g, &k, y, w, ends, S, false, dtype);
    }
}

typedef struct job {
    dw_window g;
    cpu_epilogue f;
    const void *in, *weights;
    void *out;
    float *workspace;
    int64_t slots;
    bool stream;
} job;

/* Where the outputs of block b begin. */
VF_INLINE int64_t place(const dw_window *g, int64_t b) {
    const int64_t per_plane = (g->oh + ROWS - 1) / ROWS;
    return (b / per_plane * g->oh + b % per_plane * ROWS) * g->ow;
}

VF_INLINE void run_blocks(const job *q, int64_t slot, const int S, const int dtype) {
    const dw_window *g = &q->g;
    const int64_t per_plane = (g->oh + ROWS - 1) / ROWS, blocks = blocks_of(g);
    const int64_t first = slot * blocks / q->slots, last = (slot + 1) * blocks / q->slots;
    const dw_columns only = dw_columns_of(g, 0, S, true);
    char *out = (char *)q->out + place(g, first) * vf_size_of(dtype);
    weft__stage stage;
    stage_begin(&stage, q->workspace + slot * stage_floats(ROWS * g->ow), out, q->stream, dtype);
    stage_in_place(&stage, out, place(g, last) - place(g, first), ROWS * g->ow, dtype);
    for (int64_t b = first; b < last;) {
        const int64_t plane = b / per_plane, c = plane % (g->c * g->m);
        const int64_t in = plane / g->m * g->ih * g->iw;
        vf w[9], ends[3];
        dw_ends(ends, &q->f, c);
        dw_weights(w, q->weights, c, g->flip, dtype);
        const int64_t end = WEFT__MIN(last, (plane + 1) * per_plane);
        for (; b < end; b++) {
            const int64_t y = (b - plane * per_plane) * ROWS;
            rows(stage_room(&stage), q->in, in, g, &only, y, w, ends, S, dtype);
            stage_commit(&stage, WEFT__MIN(ROWS, g->oh - y) * g->ow, dtype);
        }
    }
    stage_end(&stage, dtype);
}

DW_TASKS(task_s1, run_blocks, 1)
DW_TASKS(task_s2, run_blocks, 2)

static weft_status run(const weft__exec *e) {
    const bool fwd = e->p->pass == WEFT_PASS_FWD;
    const int dtype = e->p->tensor[0].dtype;
    job q = {.g = dw_window_of(e->p),
             .f = cpu_epilogue_of(e),
             .weights = e->ptr[WEFT_ROLE_WEIGHTS],
             .workspace = e->workspace};
    q.in = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.out = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC];
    q.slots = slots_of(e->p, &q.g);
    q.stream = cpu_streams(e->hw, (double)weft__dtype_size(dtype) * (double)(q.g.n * q.g.c * q.g.m) *
                                      (double)(q.g.oh * q.g.ow));
    weft__parallel(e->ctx, q.slots, q.g.stride == 1 ? DW_TASK(task_s1, dtype) : DW_TASK(task_s2, dtype), &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const char *why = dw_refusal(p, 1, fwd ? 2 : 1, fwd);
    (void)variant;
    if (why) return why;
    const dw_window g = dw_window_of(p);
    const double rows = (double)(g.n * g.c * g.m * cpu_round_up(g.oh, ROWS));
    d->workspace = (size_t)(slots_of(p, &g) * stage_floats(ROWS * g.ow)) * sizeof(float);
    d->ns = dw_cost(p, hw, 9 * rows * (double)cpu_round_up(g.ow, VF_LANES), g.ow);
    return NULL;
}

DW_RECORD(dwconv3x3_fwd_nchw, "dwconv3x3_fwd_nchw_4x1v", FWD, CPU_EPILOGUE_STEPS, .pack = NULL);
DW_RECORD(dwconv3x3_bwd_data_nchw, "dwconv3x3_bwd_data_nchw_4x1v", BWD_DATA, CPU_EPILOGUE_STEPS, .pack = NULL);
