/* Depthwise 3x3 stride 2, channels-first: data gradient. f32; with AVX-512 f16 and bf16 too.
 * Math:      diff_src[v,u] = sum diff_dst[y,x] * weights[r,s] over 2 y + r = v + ph, 2 x + s = u + pw
 *            Even and odd rows and columns meet 4, 2, 2 and 1 taps: the parity of the pads is a compile-time constant
 * Blocking:  4 rows (2 with 16 registers) x 2 vectors of outputs, even and odd columns apart, zipped at the end
 * Output:    staged like the forward's dst (see stage.h), vectors from right to left
 * Traffic:   5 bytes and 4.5 flops an output: memory-bound
 * Roofline:  bandwidth / 5 outputs a second; measured against a copy of the same bytes:
 *            99% with AVX-512, 85% with AVX2 (one Zen 4 core, data from memory, 8x64x112x112)
 * Try:       weft bench conv2d:bwd_data:f32:nchw:n8c64h112w112:o64k3s2p1g64 */
#include "cpu/conv/dwconv3x3.h"

enum { ROWS = VF_REGS >= 32 ? 4 : 2 };
#if VF_REGS >= 32
#define TILE "4x2v"
#else
#define TILE "2x2v"
#endif

static int64_t blocks_of(const dw_window *g) { return g->n * g->c * ((g->oh + ROWS - 1) / ROWS); }

static int64_t slots_of(const weft_problem *p, const dw_window *g) { return cpu_slots(blocks_of(g), weft__bytes(p)); }

static int64_t slot_floats(const dw_window *g) { return stage_floats(ROWS * g->ow + VF_LANES); }

/* ROWS x 2 VF_LANES outputs from the even row y on; edge: some tap may lie outside the plane. */
VF_INLINE void block(float *out, const void *in, int64_t plane, const dw_window *g, const dw_columns *k, int64_t y,
                     const vf w[9], const vf ends[3], const int odd_h, const int odd_w, const bool edge,
                     const int dtype) {
    vf sum[ROWS][2];
    VF_UNROLL for (int v = 0; v < ROWS; v++) sum[v][0] = sum[v][1] = ends[0];
    VF_UNROLL for (int i = 0; i < ROWS / 2 + 2; i++) {
        const int64_t row = y / 2 - g->ph + i;
        if (edge && (row < 0 || row >= g->ih)) continue;
        vf t[3];
        dw_taps(t, k, in, plane + row * g->iw, 1, edge, dtype);
        VF_UNROLL for (int v = 0; v < ROWS; v++) {
            const int r = v + odd_h - 2 * (i - 1);
            if (r < 0 || r > 2) continue;
            VF_UNROLL for (int u = 0; u < 2; u++) VF_UNROLL for (int j = 0; j < 3; j++) {
                const int s = u + odd_w - 2 * (j - 1);
                if (s >= 0 && s < 3) sum[v][u] = dw_fma(k, j, t[j], w[3 * r + s], sum[v][u], edge);
            }
        }
    }
    VF_UNROLL for (int v = 0; v < ROWS; v++) {
        const vf a = vf_clip(sum[v][0], ends[1], ends[2]), b = vf_clip(sum[v][1], ends[1], ends[2]);
        vf_store(out + v * g->ow, vf_zip_lo(a, b));
        vf_store(out + v * g->ow + VF_LANES, vf_zip_hi(a, b));
    }
}

/* ROWS whole rows of outputs, right to left. */
VF_INLINE void rows(float *out, const void *in, int64_t plane, const dw_window *g, int64_t y, const vf w[9],
                    const vf ends[3], const int odd_h, const int odd_w, const int dtype) {
    const int64_t top = y / 2 - g->ph;
    const bool border = top < 0 || top + ROWS / 2 + 2 > g->ih;
    for (int64_t x = (g->ow - 1) / (2 * VF_LANES) * (2 * VF_LANES); x >= 0; x -= 2 * VF_LANES) {
        const dw_columns k = dw_columns_of(g, x / 2, 1, border);
        dw_prefetch(in, plane + (top + 2) * g->iw, g->iw, x / 2, ROWS / 2, 1, dtype);
        if (k.edge)
            block(out + x, in, plane, g, &k, y, w, ends, odd_h, odd_w, true, dtype);
        else
            block(out + x, in, plane, g, &k, y, w, ends, odd_h, odd_w, false, dtype);
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

VF_INLINE void run_blocks(const job *q, int64_t slot, const int odd_h, const int odd_w, const int dtype) {
    const dw_window *g = &q->g;
    const int64_t per_plane = (g->oh + ROWS - 1) / ROWS, blocks = blocks_of(g);
    const int64_t first = slot * blocks / q->slots, last = (slot + 1) * blocks / q->slots;
    weft__stage stage;
    stage_begin(&stage, q->workspace + slot * slot_floats(g),
                (char *)q->out + (first / per_plane * g->oh + first % per_plane * ROWS) * g->ow * vf_size_of(dtype),
                q->stream, dtype);
    for (int64_t b = first; b < last;) {
        const int64_t plane = b / per_plane, c = plane % g->c, end = WEFT__MIN(last, (plane + 1) * per_plane);
        vf w[9], ends[3];
        dw_ends(ends, &q->f, c);
        dw_weights(w, q->weights, c, false, dtype);
        for (; b < end; b++) {
            const int64_t y = (b - plane * per_plane) * ROWS;
            rows(stage_room(&stage), q->in, plane * g->ih * g->iw, g, y, w, ends, odd_h, odd_w, dtype);
            stage_commit(&stage, WEFT__MIN(ROWS, g->oh - y) * g->ow, dtype);
        }
    }
    stage_end(&stage, dtype);
}

DW_TASKS(task_00, run_blocks, 0, 0)
DW_TASKS(task_01, run_blocks, 0, 1)
DW_TASKS(task_10, run_blocks, 1, 0)
DW_TASKS(task_11, run_blocks, 1, 1)

static weft_status run(const weft__exec *e) {
    const int dtype = e->p->tensor[0].dtype;
    const weft_task tasks[2][2] = {{DW_TASK(task_00, dtype), DW_TASK(task_01, dtype)},
                                   {DW_TASK(task_10, dtype), DW_TASK(task_11, dtype)}};
    const dw_up u = dw_up_of(e->p);
    job q = {.g = u.g,
             .f = cpu_epilogue_of(e),
             .in = e->ptr[WEFT_ROLE_DIFF_DST],
             .weights = e->ptr[WEFT_ROLE_WEIGHTS],
             .out = e->ptr[WEFT_ROLE_DIFF_SRC],
             .workspace = e->workspace};
    q.slots = slots_of(e->p, &q.g);
    q.stream =
        cpu_streams(e->hw, (double)weft__dtype_size(dtype) * (double)(q.g.n * q.g.c) * (double)(q.g.oh * q.g.ow));
    weft__parallel(e->ctx, q.slots, tasks[u.odd_h][u.odd_w], &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *why = dw_refusal(p, 2, 2, false);
    (void)variant;
    if (why) return why;
    const dw_window g = dw_up_of(p).g;
    const double rows = (double)(g.n * g.c * cpu_round_up(g.oh, ROWS));
    d->workspace = (size_t)(slots_of(p, &g) * slot_floats(&g)) * sizeof(float);
    d->ns = dw_cost(p, hw, 2.25 * rows * (double)cpu_round_up(g.ow, 2 * VF_LANES), g.ow);
    return NULL;
}

DW_RECORD(dwconv3x3s2_bwd_data_nchw, "dwconv3x3s2_bwd_data_nchw_" TILE, BWD_DATA, CPU_EPILOGUE_STEPS, .pack = NULL);
