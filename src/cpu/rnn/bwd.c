/* Recurrent layers, the gradient: rnn_relu, rnn_tanh, lstm, gru; whole and packed sequences, both directions.
 * Math:      as in src/ref/rnn.h; sums in f32
 * Blocking:  of each layer, from the last, the steps by a team of threads that keep their blocks of 32 hidden units
 *            (team.h): what the step after sends back, then the gradients before the activations. Few sequences: a
 *            block multiplies its own rows of Wh, which thus are read as they lie, and the next step adds up the
 *            blocks. 8 and more: products of Wh, turned once, with the turned gradients. Then one product per layer
 *            and direction for each of Wx, Wh and the input, slots of 64 columns or 32 rows
 * Traffic:   Wh once a step from the cache that holds it; weights and gradients once
 * Roofline:  one sequence: bandwidth of the caches in the steps, multiply-adds in the products
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512): lstm of 100 steps, 512 units, one sequence 6.9 ms; 50
 *            steps of 32 sequences 180 GFLOP/s
 * Assumes:   rows of all tensors contiguous, no projection; 16-bit data as wide.c has it
 * Try:       weft bench lstm:bwd:f32:dense:t100n1c512o512:train1 */
#include "cpu/rnn/layers.h"

enum { COLUMNS = 64, NEAR = 256, SENT = UNITS + VF_LANES }; /* NEAR: rows of Wx that stay in the cache */

/* Gradients before the activations at a row, as Wx (hidden: as Wh) sees them. */
VF_INLINE float *grads_of(const layers *q, int64_t d, int64_t row, bool hidden) {
    const int64_t GH = q->v.G * q->v.H;
    return (hidden && q->p->op == WEFT_OP_GRU ? q->dh : q->dx) + (d * q->v.rows + row) * GH;
}
/* Of a step's parity and a sequence. */
VF_INLINE float *cell_of(const layers *q, int64_t parity, int64_t d, int64_t b) {
    return q->dcell + ((parity * q->v.D + d) * q->v.n + b) * q->v.H;
}
VF_INLINE float *part_of(const layers *q, int64_t parity, int64_t d, int64_t block, int64_t b) {
    const int64_t blocks = cpu_ceil(q->v.H, UNITS);
    return q->parts + (((parity * q->v.D + d) * blocks + block) * q->v.n + b) * q->v.H;
}

/* ---------------------------------------------------------------- Wh turned: H rows of G H */
static void turn_weights(void *arg, int64_t slot) {
    const layers *q = arg;
    const int64_t H = q->v.H, GH = q->v.G * H, blocks = cpu_ceil(GH, UNITS), d = slot / blocks;
    const int64_t g = slot % blocks * UNITS, rows = WEFT__MIN(UNITS, GH - g);
    const float *list[UNITS];
    for (int64_t i = 0; i < rows; i++) list[i] = weights_of(q, q->l, d, true) + (g + i) * H;
    layers_turn(list, rows, H, q->transposed + d * H * GH + g, GH);
}

/* ---------------------------------------------------------------- a step */
typedef struct place {
    const float *sent, *above; /* what the step after sends to h, and what comes from above, from the first unit on */
    const float *record, *before, *cell, *later; /* later: the gradient of c that the step after sends */
    const float *h;
    float *dc, *gates, *hidden;
    int64_t H;
} place;

VF_INLINE vf saved(const place *k, int state, int64_t j, int64_t left) {
    return vf_load_count(k->record + state * k->H + j, left);
}
VF_INLINE vf slope(vf y) { return vf_mul(y, vf_sub(vf_set1(1), y)); } /* of sigmoid */
VF_INLINE vf tanh_slope(vf y) { return vf_fnma(y, y, vf_set1(1)); }

VF_INLINE void grad(const place *k, const int op, int64_t j, int64_t i, int64_t left) {
    const int64_t H = k->H;
    const vf dh = vf_add(vf_load(k->sent + i), vf_load_count(k->above + j, left));
    if (op == WEFT_OP_LSTM) {
        const vf in = saved(k, 0, j, left), f = saved(k, 1, j, left), g = saved(k, 2, j, left),
                 o = saved(k, 3, j, left);
        const vf u = vf_tanh(saved(k, 4, j, left));
        const vf dc = vf_fma(vf_mul(dh, o), tanh_slope(u), vf_load_count(k->later + j, left));
        vf_store_count(k->dc + j, vf_mul(dc, f), left); /* as the step before wants it */
        vf_store_count(k->gates + j, vf_mul(vf_mul(dc, g), slope(in)), left);
        vf_store_count(k->gates + H + j, vf_mul(vf_mul(dc, vf_load_count(k->cell + j, left)), slope(f)), left);
        vf_store_count(k->gates + 2 * H + j, vf_mul(vf_mul(dc, in), tanh_slope(g)), left);
        vf_store_count(k->gates + 3 * H + j, vf_mul(vf_mul(dh, u), slope(o)), left);
    } else if (op == WEFT_OP_GRU) {
        const vf r = saved(k, 0, j, left), z = saved(k, 1, j, left), m = saved(k, 2, j, left), q = saved(k, 3, j, left);
        const vf dm = vf_mul(vf_mul(dh, vf_sub(vf_set1(1), z)), tanh_slope(m));
        const vf dr = vf_mul(vf_mul(dm, q), slope(r));
        const vf dz = vf_mul(vf_mul(dh, vf_sub(vf_load_count(k->before + j, left), m)), slope(z));
        vf_store_count(k->gates + j, dr, left), vf_store_count(k->gates + H + j, dz, left);
        vf_store_count(k->gates + 2 * H + j, dm, left);
        vf_store_count(k->hidden + j, dr, left), vf_store_count(k->hidden + H + j, dz, left);
        vf_store_count(k->hidden + 2 * H + j, vf_mul(dm, r), left);
        vf_store_count(k->dc + j, vf_mul(dh, z), left); /* straight to the h before */
    } else {
        const vf h = vf_load_count(k->h + j, left);
        const vf d = op == WEFT_OP_RNN_TANH ? vf_mul(dh, tanh_slope(h)) : vf_select(vf_le(h, vf_zero()), vf_zero(), dh);
        vf_store_count(k->gates + j, d, left);
    }
}

VF_INLINE void grads(const place *k, const int op, int64_t j, int64_t count) {
    for (int64_t i = 0; i < count; i += VF_LANES) grad(k, op, j + i, i, count - i);
}

VF_INLINE void grads_of_cell(const place *k, const int op, int64_t j, int64_t count) {
    switch (op) {
    case WEFT_OP_LSTM:
        grads(k, WEFT_OP_LSTM, j, count);
        break;
    case WEFT_OP_GRU:
        grads(k, WEFT_OP_GRU, j, count);
        break;
    case WEFT_OP_RNN_TANH:
        grads(k, WEFT_OP_RNN_TANH, j, count);
        break;
    default:
        grads(k, WEFT_OP_RNN_RELU, j, count);
    }
}

/* What the step of that parity sends to h of the step before, of `count` units and n sequences: rows of out. */
static void send_back(const layers *q, int64_t parity, int64_t d, int64_t b, int64_t n, int64_t j, int64_t count,
                      float out[GROUP][SENT]) {
    const int64_t H = q->v.H, GH = q->v.G * H;
    if (is_many(q)) {
        float sums[UNITS][LOT];
        const float *list[UNITS];
        for (int64_t i = 0; i < UNITS; i++) list[i] = sums[i];
        layers_product(q->transposed + (d * H + j) * GH, GH, count, turned_of(q, parity, d, GH) + b, q->span, n, GH,
                       sums[0]);
        layers_turn(list, count, n, out[0], SENT);
    }
    for (int64_t i = 0; i < n; i++)
        for (int64_t u = 0; u < count; u += VF_LANES) {
            vf sum = is_many(q) ? vf_load_count(out[i] + u, count - u) : vf_zero();
            for (int64_t block = 0; !is_many(q) && block * UNITS < H; block++)
                sum = vf_add(sum, vf_load_count(part_of(q, parity, d, block, b + i) + j + u, count - u));
            if (q->p->op == WEFT_OP_GRU)
                sum = vf_add(sum, vf_load_count(cell_of(q, parity, d, b + i) + j + u, count - u));
            vf_store(out[i] + u, sum);
        }
}

/* What this block of units has for send_back. */
static void leave(const layers *q, int64_t parity, int64_t d, int64_t b, int64_t n, const int64_t *rows, int64_t j,
                  int64_t count) {
    const int64_t H = q->v.H, G = q->v.G;
    const float *list[GROUP], *weights[4 * UNITS];
    for (int64_t g = 0; is_many(q) && g < G; g++) {
        for (int64_t i = 0; i < n; i++) list[i] = grads_of(q, d, rows[i], true) + g * H + j;
        layers_turn(list, n, count, turned_of(q, parity, d, G * H) + (g * H + j) * q->span + b, q->span);
    }
    if (is_many(q)) return;
    float grads[SIDE][4 * UNITS];
    for (int64_t g = 0; g < G; g++) {
        for (int64_t u = 0; u < count; u++) weights[g * count + u] = weights_of(q, q->l, d, true) + (g * H + j + u) * H;
        for (int64_t i = 0; i < n; i++)
            memcpy(grads[i] + g * count, grads_of(q, d, rows[i], true) + g * H + j, (size_t)count * sizeof(float));
    }
    layers_outer(grads[0], 1, 4 * UNITS, n, weights, G * count, 0, H, part_of(q, parity, d, j / UNITS, b), H, false);
}

static void step_block(const layers *q, int64_t step, int64_t at) {
    const rnn *v = &q->v;
    const int64_t H = v->H, blocks = cpu_ceil(H, UNITS), most = is_many(q) ? GROUP : SIDE, parity = step % 2;
    const int64_t d = at / blocks, j = at % blocks * UNITS, count = WEFT__MIN(UNITS, H - j);
    const int64_t t = d ? step : v->T - 1 - step;
    const bool lstm = q->p->op == WEFT_OP_LSTM, top = q->l == v->L - 1;
    float sent[GROUP][SENT];
    for (int64_t b = 0; b < v->n; b += most) {
        int64_t n = 0, rows[GROUP];
        for (; n < most && b + n < v->n && (rows[n] = rnn_row(v, t, b + n)) >= 0; n++) {}
        if (n == 0) break; /* sequences are sorted: those that follow have ended too */
        if (step) send_back(q, !parity, d, b, n, j, count, sent);
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = rows[i];
            const bool last = rnn_after(v, d, t, b + i) < 0;
            if (last)
                memcpy(sent[i], state_of(q, WEFT_ROLE_DIFF_HN, q->l, d, b + i) + j, (size_t)count * sizeof(float));
            const place k = {.sent = sent[i],
                             .H = H,
                             .record = record_of(q, q->l, d, row),
                             .h = h_of(q, q->l, d, row),
                             .above =
                                 (top ? data_of(q, WEFT_ROLE_DIFF_DST, row) : q->below + row * v->D * v->P) + d * v->P,
                             .before = h_before(q, q->l, d, t, b + i),
                             .cell = lstm ? c_before(q, q->l, d, t, b + i) : NULL,
                             .later = !lstm  ? NULL
                                      : last ? state_of(q, WEFT_ROLE_DIFF_CN, q->l, d, b + i)
                                             : cell_of(q, !parity, d, b + i),
                             .dc = cell_of(q, parity, d, b + i),
                             .gates = grads_of(q, d, row, false),
                             .hidden = grads_of(q, d, row, true)};
            grads_of_cell(&k, q->p->op, j, count);
        }
        leave(q, parity, d, b, n, rows, j, count);
    }
}

/* Gradients of the first states, after all steps: what the first step of each sequence sends back. */
static void first_block(const layers *q, int64_t at) {
    const rnn *v = &q->v;
    const int64_t H = v->H, blocks = cpu_ceil(H, UNITS), most = is_many(q) ? GROUP : SIDE;
    const int64_t d = at / blocks, j = at % blocks * UNITS, count = WEFT__MIN(UNITS, H - j);
    const size_t bytes = (size_t)count * sizeof(float);
    float sent[2][GROUP][SENT];
    for (int64_t b = 0; b < v->n; b += most) {
        const int64_t n = WEFT__MIN(most, v->n - b);
        for (int parity = 0; parity < (v->T > 1 ? 2 : 1); parity++)
            send_back(q, parity, d, b, n, j, count, sent[parity]);
        for (int64_t i = 0; i < n; i++) {
            const int64_t t = d ? rnn_last(v, b + i) : 0, parity = (d ? t : v->T - 1) % 2;
            const bool none = rnn_row(v, t, b + i) < 0;
            const float *dh = none ? state_of(q, WEFT_ROLE_DIFF_HN, q->l, d, b + i) + j : sent[parity][i];
            memcpy((float *)(uintptr_t)state_of(q, WEFT_ROLE_DIFF_H0, q->l, d, b + i) + j, dh, bytes);
            if (q->p->op != WEFT_OP_LSTM) continue;
            const float *dc = none ? state_of(q, WEFT_ROLE_DIFF_CN, q->l, d, b + i) : cell_of(q, parity, d, b + i);
            memcpy((float *)(uintptr_t)state_of(q, WEFT_ROLE_DIFF_C0, q->l, d, b + i) + j, dc + j, bytes);
        }
    }
}

static void step_unit(void *arg, int64_t step, int64_t unit) {
    const layers *q = arg;
    const int64_t blocks = layers_blocks(q), units = layers_units(q), last = cpu_first(blocks, units, unit + 1);
    for (int64_t at = cpu_first(blocks, units, unit); at < last; at++) {
        if (step < q->v.T)
            step_block(q, step, at);
        else
            first_block(q, at);
    }
}

/* ---------------------------------------------------------------- gradients of weights, biases and inputs */
/* GATE_ROWS rows of Wx and of Wh of one direction, and of their biases. */
static void weight_rows(const layers *q, int64_t block, float *scratch) {
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, K = rnn_inputs(v, q->l), blocks = cpu_ceil(GH, GATE_ROWS), d = block / blocks;
    const int64_t g = block % blocks * GATE_ROWS, count = WEFT__MIN(GATE_ROWS, GH - g);
    float *w = (float *)q->ptr[WEFT_ROLE_DIFF_WEIGHTS] + rnn_begin(v, q->l, d);
    const float *const *rows = q->grad_rows + d * v->rows;
    layers_weights(rows, g, count, q->input_rows, v->rows, K, w + g * K, K, q->streams, scratch);
    layers_weights(rows + v->D * v->rows, g, count, q->state_rows + d * v->rows, v->rows, v->P, w + GH * K + g * v->P,
                   v->P, q->streams, scratch);
    if (!q->p->attr[WEFT_RNN_BIAS]) return;
    for (int hidden = 0; hidden < 2; hidden++) {
        float *bias = (float *)q->ptr[WEFT_ROLE_DIFF_BIAS] + ((q->l * v->D + d) * 2 + hidden) * GH + g;
        for (int64_t i = 0; i < count; i++) bias[i] = 0;
        for (int64_t row = 0; row < v->rows; row++)
            for (int64_t i = 0; i < count; i++) bias[i] += grads_of(q, d, row, hidden)[g + i];
    }
}

static int64_t weight_blocks(const layers *q) { return q->v.D * cpu_ceil(q->v.G * q->v.H, GATE_ROWS); }
static int64_t weight_slots(const layers *q) { return WEFT__MIN(weight_blocks(q), WEIGHT_SLOTS); }

static void weight_slot(void *arg, int64_t slot) {
    const layers *q = arg;
    const int64_t blocks = weight_blocks(q), slots = weight_slots(q), last = cpu_first(blocks, slots, slot + 1);
    for (int64_t block = cpu_first(blocks, slots, slot); block < last; block++)
        weight_rows(q, block, q->scratch + slot * WEIGHT_FLOATS);
}

/* COLUMNS of the gradient of the layer's input, both directions added. */
static void input_columns(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, K = rnn_inputs(v, q->l), first = slot * COLUMNS,
                  last = WEFT__MIN(first + COLUMNS, K);
    const int64_t ld = q->l ? K : q->source_step, together = ld ? v->rows : 1;
    for (int64_t d = 0; d < v->D; d++)
        for (int64_t g = 0; g < GH; g += NEAR)
            for (int64_t row = 0; row < v->rows; row += together)
                layers_outer(grads_of(q, d, row, false) + g, 1, GH, together, q->weight_rows + d * GH + g,
                             WEFT__MIN(NEAR, GH - g), first, last,
                             q->l ? q->below + row * K : data_of(q, WEFT_ROLE_DIFF_SRC, row), ld, d > 0 || g > 0);
}

/* ---------------------------------------------------------------- driver */
static void list_rows(layers *q) {
    const rnn *v = &q->v;
    const int64_t K = rnn_inputs(v, q->l);
    for (int64_t row = 0; row < v->rows; row++) {
        q->input_rows[row] = input_of(q, q->l, row);
        for (int64_t d = 0; d < v->D; d++) {
            q->state_rows[d * v->rows + row] = q->zeros;
            for (int hidden = 0; hidden < 2; hidden++)
                q->grad_rows[(hidden * v->D + d) * v->rows + row] = grads_of(q, d, row, hidden);
        }
    }
    for (int64_t d = 0; d < v->D; d++)
        for (int64_t t = 0; t < v->T; t++)
            for (int64_t b = 0; b < v->n; b++) {
                const int64_t row = rnn_row(v, t, b);
                if (row >= 0) q->state_rows[d * v->rows + row] = h_before(q, q->l, d, t, b);
            }
    for (int64_t d = 0; d < v->D; d++)
        for (int64_t g = 0; g < v->G * v->H; g++)
            q->weight_rows[d * v->G * v->H + g] = weights_of(q, q->l, d, false) + g * K;
}

static void drop(const layers *q) {
    const int64_t width = q->v.D * q->v.P;
    if (!(q->p->real[WEFT_RNN_DROPOUT] > 0)) return;
    for (int64_t row = 0; row < q->v.rows; row++)
        for (int64_t i = 0; i < width; i++) q->below[row * width + i] *= (float)rnn_dropout(&q->v, q->l - 1, row, i);
}

/* Everything in the workspace, one after the other; at NULL: the size alone, in bytes. */
static size_t place_all(layers *q, char *at) {
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, rows = v->D * v->rows;
    const bool gru = q->p->op == WEFT_OP_GRU;
    size_t used = 0;
    const bool many = is_many(q);
    q->span = cpu_round_up(v->n, VF_LANES);
    LAYERS_PLACE(input_rows, v->rows);
    LAYERS_PLACE(state_rows, rows);
    LAYERS_PLACE(grad_rows, 2 * rows);
    LAYERS_PLACE(weight_rows, v->D * GH);
    LAYERS_PLACE(zeros, v->H);
    LAYERS_PLACE(inputs, v->L > 1 ? rows * v->P : 0);
    LAYERS_PLACE(below, v->L > 1 ? rows * v->P : 0);
    LAYERS_PLACE(transposed, many ? v->D * GH * v->H : 0);
    LAYERS_PLACE(turned, many ? 2 * v->D * GH * q->span : 0);
    LAYERS_PLACE(parts, many ? 0 : 2 * v->D * cpu_ceil(v->H, UNITS) * v->n * v->H);
    LAYERS_PLACE(scratch, weight_slots(q) * WEIGHT_FLOATS);
    LAYERS_PLACE(dx, rows * GH);
    LAYERS_PLACE(dh, gru ? rows * GH : 0);
    LAYERS_PLACE(dcell, 2 * v->D * v->n * v->H);
    return used;
}

static weft_status run_f32(const weft__exec *e) {
    layers q = {.v = rnn_of(e->p, e->ptr, e->workspace), .p = e->p, .ptr = e->ptr, .save = e->ptr[WEFT_ROLE_RESERVE]};
    const rnn *v = &q.v;
    place_all(&q, e->workspace);
    memset(q.zeros, 0, (size_t)v->H * sizeof(float));
    q.streams = cpu_streams(e->hw, 4.0 * (double)rnn_begin(v, v->L, 0));
    const weft_tensor *src = weft__tensor(e->p, WEFT_ROLE_DIFF_SRC);
    const int64_t *step = src->strides;
    q.source_step = src->rank == 2 || v->n == 1 ? step[0] : v->T == 1 || step[0] == v->n * step[1] ? step[1] : 0;
    for (q.l = v->L - 1; q.l >= 0; q.l--) {
        if (q.l) layers_inputs(&q, q.l);
        list_rows(&q);
        if (is_many(&q)) {
            weft__parallel(e->ctx, v->D * cpu_ceil(v->G * v->H, UNITS), turn_weights, &q);
            memset(q.turned, 0, (size_t)(2 * v->D * v->G * v->H * q.span) * sizeof(float));
        }
        const bool states = weft__tensor(e->p, WEFT_ROLE_DIFF_H0);
        team steps = {.run = step_unit, .arg = &q, .steps = v->T + states, .units = layers_units(&q)};
        team_go(e->ctx, &steps);
        weft__parallel(e->ctx, weight_slots(&q), weight_slot, &q);
        weft__parallel(e->ctx, cpu_ceil(rnn_inputs(v, q.l), COLUMNS), input_columns, &q);
        if (q.l) drop(&q);
    }
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) { return layers_run_wide(e, run_f32); }

/* ---------------------------------------------------------------- plan */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    layers q = {.v = rnn_of(p, NULL, NULL), .p = p};
    (void)variant;
    const char *refusal = layers_refusal(p);
    if (refusal) return refusal;
    d->workspace = layers_wide_bytes(p) + place_all(&q, NULL);
    d->ns = layers_cost(p, hw);
    return NULL;
}

#define RNN(NAME, name_)                                                               \
    WEFT__KERNEL(name_##_bwd) = {                                                      \
        .name = WEFT__NAME(#name_ "_bwd_team"),                                        \
        .version = 1,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(BWD),                                                 \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
RNN(RNN_RELU, rnn_relu);
RNN(RNN_TANH, rnn_tanh);
RNN(LSTM, lstm);
RNN(GRU, gru);
