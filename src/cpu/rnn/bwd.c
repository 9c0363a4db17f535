/* f32 recurrent layers, the gradient: rnn_relu, rnn_tanh, lstm, gru; whole and packed sequences, both directions.
 * Math:      as in src/ref/rnn.h; sums in f32
 * Blocking:  of each layer, from the last: Wh transposed once; step by step, slots of 32 hidden units: what the step
 *            after sends back (products with the transposed weights), then the gradients before the activations; then
 *            one product per layer and direction for each of Wx, Wh and the input, slots of 64 columns or rows
 * Traffic:   the transposed Wh once a step from the cache that holds it; weights and gradients once
 * Roofline:  one sequence: bandwidth of the cache in the steps, multiply-adds in the products
 * Assumes:   f32, rows of src and dst contiguous, no projection
 * Try:       weft bench lstm:bwd:f32:dense:t100n1c512o512:train1 */
#include "cpu/rnn/layers.h"

enum { COLUMNS = 64, GATE_ROWS = 32 };

/* Gradients before the activations at a row, as Wx (hidden: as Wh) sees them. */
VF_INLINE float *grads_of(const layers *q, int64_t d, int64_t row, bool hidden) {
    const int64_t GH = q->v.G * q->v.H;
    return (hidden && q->p->op == WEFT_OP_GRU ? q->dh : q->dx) + (d * q->v.rows + row) * GH;
}
VF_INLINE float *back_of(const layers *q, float *array, int64_t d, int64_t row) {
    return array + (d * q->v.rows + row) * q->v.H;
}

/* ---------------------------------------------------------------- Wh transposed: H rows of G H */
static void transpose_rows(void *arg, int64_t slot) {
    const layers *q = arg;
    const int64_t H = q->v.H, GH = q->v.G * H, blocks = cpu_ceil(GH, VF_LANES), d = slot / blocks;
    const int64_t g = slot % blocks * VF_LANES, rows = WEFT__MIN(VF_LANES, GH - g);
    const float *w = weights_of(q, q->l, d, true) + g * H;
    float *to = q->transposed + d * H * GH + g;
    for (int64_t j = 0; j < H; j += VF_LANES) {
        vf v[VF_LANES];
        for (int64_t i = 0; i < VF_LANES; i++) v[i] = i < rows ? vf_load_count(w + i * H + j, H - j) : vf_zero();
        vf_transpose(v);
        for (int64_t i = 0; i < VF_LANES && j + i < H; i++) vf_store_count(to + (j + i) * GH, v[i], rows);
    }
}

/* ---------------------------------------------------------------- a step */
typedef struct place {
    const float *sent, *above; /* what the step after sends to h, and what comes from above, from the first unit on */
    const float *record, *before, *cell, *later; /* later: the gradient of c that the step after sends */
    const float *h;
    float *dh, *dc, *gates, *hidden;
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
    vf_store_count(k->dh + j, dh, left);
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

/* What a step sends to the h before it, of `count` units: n rows of out. Of no step: the gradient of the last state. */
static void send_back(const layers *q, int64_t d, const int64_t *after, int64_t b, int64_t n, int64_t j, int64_t count,
                      float out[SIDE][UNITS + VF_LANES]) {
    const int64_t GH = q->v.G * q->v.H;
    const float *a[SIDE], *w = q->transposed + (d * q->v.H + j) * GH;
    for (int64_t i = 0, run; i < n; i += run) {
        for (run = 0; i + run < n && after[i + run] >= 0; run++) a[run] = grads_of(q, d, after[i + run], true);
        if (run) layers_dots(w, GH, count, a, run, GH, out[i], UNITS + VF_LANES);
        for (int64_t r = 0; r < run && q->p->op == WEFT_OP_GRU; r++)
            for (int64_t u = 0; u < count; u++) out[i + r][u] += back_of(q, q->dcell, d, after[i + r])[j + u];
        if (run) continue;
        run = 1;
        memcpy(out[i], state_of(q, WEFT_ROLE_DIFF_HN, q->l, d, b + i) + j, (size_t)count * sizeof(float));
    }
}

static void step_units(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t H = v->H, blocks = cpu_ceil(H, UNITS), at = q->step % 2 ? v->D * blocks - 1 - slot : slot;
    const int64_t d = at / blocks, j = at % blocks * UNITS, count = WEFT__MIN(UNITS, H - j);
    const int64_t t = d ? v->T - 1 - q->step : q->step;
    const bool lstm = q->p->op == WEFT_OP_LSTM, top = q->l == v->L - 1;
    float sent[SIDE][UNITS + VF_LANES];
    for (int64_t b = 0; b < v->n; b += SIDE) {
        int64_t n = 0, rows[SIDE], after[SIDE];
        for (; n < SIDE && b + n < v->n && (rows[n] = rnn_row(v, t, b + n)) >= 0; n++)
            after[n] = rnn_after(v, d, t, b + n);
        if (n == 0) break; /* sequences are sorted: those that follow have ended too */
        send_back(q, d, after, b, n, j, count, sent);
        for (int64_t i = 0; i < n; i++) {
            const int64_t row = rows[i];
            const place k = {.sent = sent[i],
                             .H = H,
                             .record = record_of(q, q->l, d, row),
                             .h = h_of(q, q->l, d, row),
                             .above =
                                 (top ? data_of(q, WEFT_ROLE_DIFF_DST, row) : q->below + row * v->D * v->P) + d * v->P,
                             .before = h_before(q, q->l, d, t, b + i),
                             .cell = lstm ? c_before(q, q->l, d, t, b + i) : NULL,
                             .later = !lstm          ? NULL
                                      : after[i] < 0 ? state_of(q, WEFT_ROLE_DIFF_CN, q->l, d, b + i)
                                                     : back_of(q, q->dcell, d, after[i]),
                             .dh = back_of(q, q->dstate, d, row),
                             .dc = back_of(q, q->dcell, d, row),
                             .gates = grads_of(q, d, row, false),
                             .hidden = grads_of(q, d, row, true)};
            switch (q->p->op) {
            case WEFT_OP_LSTM:
                grads(&k, WEFT_OP_LSTM, j, count);
                break;
            case WEFT_OP_GRU:
                grads(&k, WEFT_OP_GRU, j, count);
                break;
            case WEFT_OP_RNN_TANH:
                grads(&k, WEFT_OP_RNN_TANH, j, count);
                break;
            default:
                grads(&k, WEFT_OP_RNN_RELU, j, count);
            }
        }
    }
}

/* ---------------------------------------------------------------- gradients of weights, biases and inputs */
/* GATE_ROWS rows of Wx and of Wh of one direction, and of their biases. */
static void weight_rows(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, K = rnn_inputs(v, q->l), blocks = cpu_ceil(GH, GATE_ROWS), d = slot / blocks;
    const int64_t g = slot % blocks * GATE_ROWS, count = WEFT__MIN(GATE_ROWS, GH - g);
    float *w = (float *)q->ptr[WEFT_ROLE_DIFF_WEIGHTS] + rnn_begin(v, q->l, d);
    layers_outer(grads_of(q, d, 0, false) + g, GH, 1, count, q->input_rows, v->rows, 0, K, w + g * K, K, false);
    layers_outer(grads_of(q, d, 0, true) + g, GH, 1, count, q->state_rows + d * v->rows, v->rows, 0, v->P,
                 w + GH * K + g * v->P, v->P, false);
    if (!q->p->attr[WEFT_RNN_BIAS]) return;
    for (int hidden = 0; hidden < 2; hidden++) {
        float *bias = (float *)q->ptr[WEFT_ROLE_DIFF_BIAS] + ((q->l * v->D + d) * 2 + hidden) * GH + g;
        for (int64_t i = 0; i < count; i++) bias[i] = 0;
        for (int64_t row = 0; row < v->rows; row++)
            for (int64_t i = 0; i < count; i++) bias[i] += grads_of(q, d, row, hidden)[g + i];
    }
}

/* COLUMNS of the gradient of the layer's input, both directions added. */
static void input_columns(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, K = rnn_inputs(v, q->l), first = slot * COLUMNS,
                  last = WEFT__MIN(first + COLUMNS, K);
    for (int64_t d = 0; d < v->D; d++)
        for (int64_t row = 0; row < v->rows; row++) {
            float *to = q->l ? q->below + row * K : data_of(q, WEFT_ROLE_DIFF_SRC, row);
            const int64_t ld = q->l ? K : q->source_step;
            const int64_t rows = ld ? WEFT__MIN(SIDE, v->rows - row) : 1;
            layers_outer(grads_of(q, d, row, false), 1, GH, rows, q->weight_rows + d * GH, GH, first, last, to, ld,
                         d > 0);
            row += rows - 1;
        }
}

/* ---------------------------------------------------------------- driver */
static void list_rows(layers *q) {
    const rnn *v = &q->v;
    const int64_t K = rnn_inputs(v, q->l);
    for (int64_t row = 0; row < v->rows; row++) {
        q->input_rows[row] = input_of(q, q->l, row);
        for (int64_t d = 0; d < v->D; d++) q->state_rows[d * v->rows + row] = q->zeros;
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

static void first_states(const layers *q) {
    const rnn *v = &q->v;
    float out[SIDE][UNITS + VF_LANES];
    if (!weft__tensor(q->p, WEFT_ROLE_DIFF_H0)) return;
    for (int64_t d = 0; d < v->D; d++)
        for (int64_t b = 0; b < v->n; b++) {
            const int64_t row = rnn_row(v, d ? rnn_last(v, b) : 0, b);
            float *dh = (float *)(uintptr_t)state_of(q, WEFT_ROLE_DIFF_H0, q->l, d, b);
            for (int64_t j = 0; j < v->H; j += UNITS) {
                const int64_t count = WEFT__MIN(UNITS, v->H - j);
                send_back(q, d, &row, b, 1, j, count, out);
                memcpy(dh + j, out[0], (size_t)count * sizeof(float));
            }
            if (q->p->op != WEFT_OP_LSTM) continue;
            const float *dc = row < 0 ? state_of(q, WEFT_ROLE_DIFF_CN, q->l, d, b) : back_of(q, q->dcell, d, row);
            memcpy((float *)(uintptr_t)state_of(q, WEFT_ROLE_DIFF_C0, q->l, d, b), dc, (size_t)v->H * sizeof(float));
        }
}

/* Everything in the workspace, one after the other; at NULL: the size alone, in bytes. */
static size_t place_all(layers *q, char *at) {
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, rows = v->D * v->rows;
    const bool gru = q->p->op == WEFT_OP_GRU;
    size_t used = 0;
#define PLACE(member, count) \
    q->member = at ? (void *)(at + used) : NULL, used += (size_t)cpu_round_up((count) * (int64_t)sizeof(*q->member), 64)
    PLACE(input_rows, v->rows);
    PLACE(state_rows, rows);
    PLACE(weight_rows, v->D * GH);
    PLACE(zeros, v->H);
    PLACE(inputs, v->L > 1 ? rows * v->P : 0);
    PLACE(below, v->L > 1 ? rows * v->P : 0);
    PLACE(transposed, v->D * GH * v->H);
    PLACE(dx, rows * GH);
    PLACE(dh, gru ? rows * GH : 0);
    PLACE(dstate, rows * v->H);
    PLACE(dcell, rows * v->H);
#undef PLACE
    return used;
}

static weft_status run(const weft__exec *e) {
    layers q = {.v = rnn_of(e->p, e->ptr, e->workspace), .p = e->p, .ptr = e->ptr, .save = e->ptr[WEFT_ROLE_RESERVE]};
    const rnn *v = &q.v;
    place_all(&q, e->workspace);
    memset(q.zeros, 0, (size_t)v->H * sizeof(float));
    const weft_tensor *src = weft__tensor(e->p, WEFT_ROLE_DIFF_SRC);
    const int64_t *step = src->strides;
    q.source_step = src->rank == 2 || v->n == 1 ? step[0] : v->T == 1 || step[0] == v->n * step[1] ? step[1] : 0;
    for (q.l = v->L - 1; q.l >= 0; q.l--) {
        if (q.l) layers_inputs(&q, q.l);
        list_rows(&q);
        weft__parallel(e->ctx, v->D * cpu_ceil(v->G * v->H, VF_LANES), transpose_rows, &q);
        for (q.step = v->T - 1; q.step >= 0; q.step--)
            weft__parallel(e->ctx, v->D * cpu_ceil(v->H, UNITS), step_units, &q);
        first_states(&q);
        weft__parallel(e->ctx, v->D * cpu_ceil(v->G * v->H, GATE_ROWS), weight_rows, &q);
        weft__parallel(e->ctx, cpu_ceil(rnn_inputs(v, q.l), COLUMNS), input_columns, &q);
        if (q.l) drop(&q);
    }
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    layers q = {.v = rnn_of(p, NULL, NULL), .p = p};
    const rnn *v = &q.v;
    (void)variant;
    const char *refusal = layers_refusal(p);
    if (refusal) return refusal;
    d->workspace = place_all(&q, NULL);
    const double weights = 4.0 * (double)(v->L * v->D * v->G * v->H * v->H);
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p), 0.4) +
            (double)(v->L * v->T) * (3000 + weights / (double)v->L / (1.5 * hw->gbs * hw->threads));
    return NULL;
}

#define RNN(NAME, name_)                               \
    WEFT__KERNEL(name_##_bwd) = {                      \
        .name = WEFT__NAME("f32_" #name_ "_bwd_dots"), \
        .version = 1,                                  \
        .op = WEFT_OP_##NAME,                          \
        .engine = WEFT_ENGINE_CPU,                     \
        .isa = WEFT__ISA_HERE,                         \
        .passes = WEFT__PASS_SET(BWD),                 \
        .dtypes = WEFT__DTYPE_SET(F32),                \
        .plan = plan,                                  \
        .run = run,                                    \
    }
RNN(RNN_RELU, rnn_relu);
RNN(RNN_TANH, rnn_tanh);
RNN(LSTM, lstm);
RNN(GRU, gru);
