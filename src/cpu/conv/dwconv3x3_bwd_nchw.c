/* Depthwise 3x3, channels-first: weight gradient at stride 1 and 2 (o = m c too), both gradients at stride 1. f32; with
 * AVX-512 f16 and bf16 too, with f32 sums.
 * Math:      diff_weights[r,s] = sum_{n,y,x} center[y,x] * in[S y + r - ph, S x + s - pw]
 *            weights alone: center = diff_dst, in = src. Both: center = src, in = diff_dst seen through the window of
 *            the data gradient (see dwconv3x3.h): diff_weights, turned by 180 degrees, from the taps diff_src needs
 * Blocking:  4 rows (2 with 16 registers) x 1 vector of centers; 9 vectors of sums stay in registers along a row
 * Sums:      a slot owns whole channels, or a part of one channel's rows where channels are few; the parts are then
 *            added in order. Slots and parts follow from the problem alone
 * Output:    diff_src is staged like the forward's dst
 * Traffic:   weights alone 8 bytes and 18 flops an element, both 12 bytes and 36 flops: memory-bound
 * Roofline:  bandwidth / 12 elements a second; measured against a copy of the same bytes:
 *            58% with AVX-512, 51% with AVX2 (one Zen 4 core, data from memory, 8x128x56x56). 16-bit data takes 0.75 of
 *            the time of f32
 * Try:       weft bench conv2d:bwd:f32:nchw:n8c128h56w56:o128k3p1g128 */
#include "cpu/conv/dwconv3x3.h"

enum { ROWS = VF_REGS >= 32 ? 4 : 2, SUMS = 10 }; /* 9 weights and the bias */
#if VF_REGS >= 32
#define TILE "4x1v"
#else
#define TILE "2x1v"
#endif

/* parts > 1: slot = channel * parts + part, a part being a run of row blocks through all images.
 * parts = 1: a slot is a run of channels. */
typedef struct split {
    int64_t slots, parts, channels, blocks; /* channels: most of one slot; blocks: of one channel in one image */
} split;

static split split_of(const weft_problem *p, const dw_window *g) {
    split d = {.blocks = (g->oh + ROWS - 1) / ROWS};
    const int64_t o = g->c * g->m, want = cpu_slots(o * g->n * d.blocks, weft__bytes(p));
    d.parts = o >= want ? 1 : WEFT__MIN(g->n * d.blocks, (want + o - 1) / o);
    d.slots = d.parts == 1 ? WEFT__MIN(o, want) : o * d.parts;
    d.channels = d.parts == 1 ? (o + d.slots - 1) / d.slots : 1;
    return d;
}

/* Of a slot, in floats: running sums of its channels, then the stage. */
static int64_t slot_floats(const weft_problem *p, const dw_window *g, const split *d) {
    const int64_t sums = d->channels * SUMS * VF_LANES;
    return (sums + 15) / 16 * 16 + (p->pass == WEFT_PASS_BWD ? stage_floats(ROWS * g->ow) : 0);
}

typedef struct planes { /* of one channel in one image: where they begin in their tensors */
    const void *in, *center;
    int64_t in_at, center_at;
} planes;

/* ROWS x VF_LANES centers from (y, x) on, `live` rows of them real, to sums; with data their window sums to out. */
VF_INLINE void block(vf sums[9], float *out, const planes *p, const dw_window *g, const dw_columns *k, int64_t y,
                     int64_t x, int64_t live, const vf w[9], const int S, const bool data, const bool edge,
                     const int dtype) {
    vf at[ROWS], sum[ROWS];
    vmask both[3];
    if (edge) {
        const vmask inside = vm_range(0, g->ow - x);
        VF_UNROLL for (int s = 0; s < 3; s++) both[s] = vm_and(k->tap[s], inside);
        VF_UNROLL for (int j = 0; j < ROWS; j++) at[j] =
            j < live ? vf_load_in_as(dtype, inside, p->center, p->center_at + (y + j) * g->ow + x) : vf_zero();
    } else {
        VF_UNROLL for (int j = 0; j < ROWS; j++) at[j] =
            vf_load_as(dtype, p->center, p->center_at + (y + j) * g->ow + x);
    }
    VF_UNROLL for (int j = 0; j < ROWS; j++) sum[j] = vf_zero();
    VF_UNROLL for (int i = 0; i < S * (ROWS - 1) + 3; i++) {
        const int64_t row = S * y - g->ph + i;
        if (edge && (row < 0 || row >= g->ih)) continue;
        vf t[3];
        dw_taps(t, k, p->in, p->in_at + row * g->iw, S, edge, dtype);
        VF_UNROLL for (int j = 0; j < ROWS; j++) {
            const int r = i - S * j;
            if (r < 0 || r > 2 || (edge && j >= live)) continue;
            VF_UNROLL for (int s = 0; s < 3; s++) {
                vf *to = &sums[3 * r + s];
                *to = edge ? vf_fma_in(both[s], t[s], at[j], *to) : vf_fma(t[s], at[j], *to);
                if (data) sum[j] = dw_fma(k, s, t[s], w[3 * r + s], sum[j], edge);
            }
        }
    }
    if (data) {
        VF_UNROLL for (int j = 0; j < ROWS; j++) vf_store(out + j * g->ow, sum[j]);
    }
}

/* ROWS whole rows, right to left. */
VF_INLINE void rows(float *memory, float *out, const planes *p, const dw_window *g, int64_t y, const vf w[9],
                    const int S, const bool data, const int dtype) {
    const int64_t top = S * y - g->ph, live = WEFT__MIN(ROWS, g->oh - y);
    const bool border = top < 0 || top + S * (ROWS - 1) + 3 > g->ih || live < ROWS;
    vf sums[9];
    VF_UNROLL for (int k = 0; k < 9; k++) sums[k] = vf_load(memory + k * VF_LANES);
    for (int64_t x = (g->ow - 1) / VF_LANES * VF_LANES; x >= 0; x -= VF_LANES) {
        const dw_columns k = dw_columns_of(g, x, S, border || x + VF_LANES > g->ow);
        dw_prefetch(p->in, p->in_at + (top + 2) * g->iw, g->iw, x, S * ROWS, S, dtype);
        dw_prefetch(p->center, p->center_at + y * g->ow, g->ow, x, ROWS, 1, dtype);
        if (k.edge)
            block(sums, out + x, p, g, &k, y, x, live, w, S, data, true, dtype);
        else
            block(sums, out + x, p, g, &k, y, x, live, w, S, data, false, dtype);
    }
    VF_UNROLL for (int k = 0; k < 9; k++) vf_store(memory + k * VF_LANES, sums[k]);
}

/* Row blocks [from, to) where a row is one vector: its masks are the same in all rows, and the sums stay in
 * registers. */
VF_INLINE void narrow_rows(float *memory, weft__stage *stage, const planes *p, const dw_window *g, int64_t from,
                           int64_t to, const vf w[9], const int S, const bool data, const int dtype) {
    const dw_columns k = dw_columns_of(g, 0, S, true);
    vf sums[9];
    VF_UNROLL for (int i = 0; i < 9; i++) sums[i] = vf_load(memory + i * VF_LANES);
    for (int64_t y = from * ROWS; y < to * ROWS; y += ROWS) {
        const int64_t live = WEFT__MIN(ROWS, g->oh - y);
        dw_prefetch(p->in, p->in_at + (S * y - g->ph + 2) * g->iw, g->iw, 0, S * ROWS, S, dtype);
        dw_prefetch(p->center, p->center_at + y * g->ow, g->ow, 0, ROWS, 1, dtype);
        block(sums, data ? stage_room(stage) : NULL, p, g, &k, y, 0, live, w, S, data, true, dtype);
        if (data) stage_commit(stage, live * g->ow, dtype);
    }
    VF_UNROLL for (int i = 0; i < 9; i++) vf_store(memory + i * VF_LANES, sums[i]);
}

/* Add count elements to the vector at memory, lane by lane. */
VF_INLINE void add_all(float *memory, const void *p, int64_t index, int64_t count, const int dtype) {
    vf sum = vf_load(memory);
    int64_t i = 0;
    for (; i + VF_LANES <= count; i += VF_LANES) sum = vf_add(sum, vf_load_as(dtype, p, index + i));
    if (i < count) sum = vf_add(sum, vf_load_count_as(dtype, p, index + i, count - i));
    vf_store(memory, sum);
}

typedef struct job {
    dw_window g;
    split d;
    const void *in, *center, *diff_dst, *weights;
    void *out, *diff_weights, *diff_bias;
    int dtype, bias_dtype;
    float *workspace, *partial;
    int64_t dst_h, dst_w, slot_floats, stage_at;
    bool stream;
} job;

/* Row blocks [from, to) of one image in one plane. */
VF_INLINE void run_plane(const job *q, int64_t n, int64_t c, int64_t from, int64_t to, float *sums, weft__stage *stage,
                         const int S, const bool data, const int dtype) {
    const dw_window *g = &q->g;
    const int64_t plane = n * g->c * g->m + c;
    const planes p = {q->in, q->center, plane / g->m * g->ih * g->iw, plane * g->oh * g->ow};
    vf w[9];
    if (data) dw_weights(w, q->weights, c, true, dtype);
    if (g->ow <= VF_LANES) narrow_rows(sums, stage, &p, g, from, to, w, S, data, dtype);
    for (int64_t b = from; b < to && g->ow > VF_LANES; b++) {
        rows(sums, data ? stage_room(stage) : NULL, &p, g, b * ROWS, w, S, data, dtype);
        if (data) stage_commit(stage, WEFT__MIN(ROWS, g->oh - b * ROWS) * g->ow, dtype);
    }
    if (q->diff_bias) { /* the rows of diff_dst are split in the same proportion, whichever tensor is the center */
        const int64_t y0 = from * q->dst_h / q->d.blocks, y1 = to * q->dst_h / q->d.blocks;
        add_all(sums + 9 * VF_LANES, q->diff_dst, (plane * q->dst_h + y0) * q->dst_w, (y1 - y0) * q->dst_w, dtype);
    }
}

static void put_sums(const job *q, int64_t c, const float value[SUMS]) {
    for (int k = 0; k < 9; k++) cpu_put(q->dtype, q->diff_weights, 9 * c + k, value[q->g.flip ? 8 - k : k]);
    if (q->diff_bias) cpu_put(q->bias_dtype, q->diff_bias, c, value[9]);
}

/* The sums of channel c: final, or of one part. */
static void write_sums(const job *q, int64_t c, int64_t part, const float *sums) {
    float value[SUMS];
    for (int k = 0; k < SUMS; k++) value[k] = vf_sum(vf_load(sums + k * VF_LANES));
    if (q->d.parts > 1) {
        memcpy(q->partial + (c * q->d.parts + part) * SUMS, value, sizeof value);
        return;
    }
    put_sums(q, c, value);
}

VF_INLINE void run_slot(const job *q, int64_t slot, const int S, const bool data, const int dtype) {
    const dw_window *g = &q->g;
    const int64_t o = g->c * g->m, blocks = q->d.blocks, parts = q->d.parts, part = slot % parts;
    const int64_t c0 = parts > 1 ? slot / parts : slot * o / q->d.slots,
                  c1 = parts > 1 ? c0 + 1 : (slot + 1) * o / q->d.slots;
    const int64_t first = part * g->n * blocks / parts, last = (part + 1) * g->n * blocks / parts;
    float *sums = q->workspace + slot * q->slot_floats;
    memset(sums, 0, (size_t)((c1 - c0) * SUMS * VF_LANES) * sizeof(float));
    for (int64_t b = first; b < last;) {
        const int64_t n = b / blocks, from = b - n * blocks, to = WEFT__MIN(blocks, from + last - b);
        weft__stage stage;
        if (data) {
            char *out = (char *)q->out + ((n * o + c0) * g->oh + from * ROWS) * g->ow * vf_size_of(dtype);
            const int64_t rows = (c1 - 1 - c0) * g->oh + WEFT__MIN(g->oh, to * ROWS) - from * ROWS;
            stage_begin(&stage, sums + q->stage_at, out, q->stream, dtype);
            stage_in_place(&stage, out, rows * g->ow, ROWS * g->ow, dtype);
        }
        for (int64_t c = c0; c < c1; c++)
            run_plane(q, n, c, from, to, sums + (c - c0) * SUMS * VF_LANES, &stage, S, data, dtype);
        if (data) stage_end(&stage, dtype);
        b += to - from;
    }
    for (int64_t c = c0; c < c1; c++) write_sums(q, c, part, sums + (c - c0) * SUMS * VF_LANES);
}

DW_TASKS(task_s1, run_slot, 1, false)
DW_TASKS(task_s2, run_slot, 2, false)
DW_TASKS(task_both, run_slot, 1, true)

static void add_parts(const job *q) {
    const int64_t o = q->g.c * q->g.m, parts = q->d.parts;
    for (int64_t c = 0; c < o; c++) {
        float *total = q->partial + c * parts * SUMS;
        for (int64_t i = 1; i < parts; i++)
            for (int k = 0; k < SUMS; k++) total[k] += total[i * SUMS + k];
        put_sums(q, c, total);
    }
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool data = p->pass == WEFT_PASS_BWD;
    job q = {.g = dw_window_of(p),
             .weights = e->ptr[WEFT_ROLE_WEIGHTS],
             .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
             .out = e->ptr[WEFT_ROLE_DIFF_SRC],
             .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
             .dtype = p->tensor[0].dtype,
             .workspace = e->workspace,
             .dst_h = p->out[1],
             .dst_w = p->out[2]};
    q.in = e->ptr[data ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.center = e->ptr[data ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.diff_bias = weft__has_step(p, WEFT_STEP_BIAS) ? e->ptr[WEFT_ROLE_DIFF_BIAS] : NULL;
    if (q.diff_bias) q.bias_dtype = weft__tensor(p, WEFT_ROLE_DIFF_BIAS)->dtype;
    q.d = split_of(p, &q.g);
    q.slot_floats = slot_floats(p, &q.g, &q.d);
    q.stage_at = (q.d.channels * SUMS * VF_LANES + 15) / 16 * 16;
    q.partial = q.workspace + q.d.slots * q.slot_floats;
    q.stream =
        cpu_streams(e->hw, (double)weft__dtype_size(q.dtype) * (double)(q.g.n * q.g.c) * (double)(q.g.oh * q.g.ow));
    const weft_task task = data              ? DW_TASK(task_both, q.dtype)
                           : q.g.stride == 1 ? DW_TASK(task_s1, q.dtype)
                                             : DW_TASK(task_s2, q.dtype);
    weft__parallel(e->ctx, q.d.slots, task, &q);
    if (q.d.parts > 1) add_parts(&q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const bool alone = p->pass == WEFT_PASS_BWD_WEIGHTS;
    const char *why = dw_refusal(p, 1, alone ? 2 : 1, alone);
    (void)variant;
    if (why) return why;
    const dw_window g = dw_window_of(p);
    const split s = split_of(p, &g);
    const double rows = (double)(g.n * g.c * g.m * cpu_round_up(g.oh, ROWS));
    d->workspace = (size_t)(s.slots * (slot_floats(p, &g, &s) + (s.parts > 1 ? SUMS : 0))) * sizeof(float);
    d->ns = dw_cost(p, hw, (alone ? 9 : 18) * rows * (double)cpu_round_up(g.ow, VF_LANES), g.ow);
    if (VF_LANES == 8) d->ns *= 1.2;
    return NULL;
}

DW_RECORD(dwconv3x3_bwd_weights_nchw, "dwconv3x3_bwd_weights_nchw_" TILE, BWD_WEIGHTS, WEFT__STEP_SET(BIAS),
          .pack = NULL);
DW_RECORD(dwconv3x3_bwd_nchw, "dwconv3x3_bwd_nchw_" TILE, BWD, WEFT__STEP_SET(BIAS), .pack = NULL);
