/* Recurrent layers forward: rnn_relu, rnn_tanh, lstm, gru; whole and packed sequences, both directions.
 * Math:      as in src/ref/rnn.h; sums in f32
 * Blocking:  of each layer first the products of all rows with Wx, 32 rows of weights a slot; then the steps, by a team
 *            of threads that keep their blocks of 32 hidden units (team.h), both directions side by side: products with
 *            Wh, gates and state. Weights are read as they lie; 8 rows of data and more are turned, lanes along them
 * Traffic:   Wh once a step from the cache that holds it; all else once
 * Roofline:  one sequence: bandwidth of the caches; many: multiply-adds
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512): lstm of 100 steps, 512 units, one sequence 4.2 ms, of
 *            which 2.9 are steps at 69 GB/s a core (L3: 80 to 90); 50 steps of 32 sequences 190 GFLOP/s
 * Assumes:   rows of all tensors contiguous, no projection; 16-bit data as wide.c has it
 * Try:       weft bench lstm:fwd:f32:dense:t100n1c512o512:l1 lstm:fwd:f32:dense:t50n32c512o512:l1 */
#include "cpu/rnn/layers.h"

/* ---------------------------------------------------------------- shared with the gradient */
void layers_inputs(const layers *q, int64_t l) {
    const int64_t P = q->v.P, width = q->v.D * P;
    const bool drops = q->p->real[WEFT_RNN_DROPOUT] > 0 && q->p->attr[WEFT_RNN_TRAIN];
    for (int64_t row = 0; row < q->v.rows; row++)
        for (int64_t d = 0; d < q->v.D; d++) {
            float *to = q->inputs + row * width + d * P;
            memcpy(to, h_of(q, l - 1, d, row), (size_t)P * sizeof(float));
            for (int64_t i = 0; drops && i < P; i++) to[i] *= (float)rnn_dropout(&q->v, l - 1, row, d * P + i);
        }
}

const char *layers_refusal(const weft_problem *p) {
    if (p->attr[WEFT_RNN_PROJECTION]) return "a projection";
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (t->dims[t->rank - 1] > 1 && t->strides[t->rank - 1] != 1)
            return "a tensor is not contiguous along its rows";
    }
    return NULL;
}

/* Steps of few sequences read Wh from the caches, at some 0.75 bytes in the time of a flop; all else is multiply-adds.
 * A step ends with a wait, and the cells take 3 ns for each unit. */
double layers_cost(const weft_problem *p, const weft__hw *hw) {
    const rnn v = rnn_of(p, NULL, NULL);
    const double rate = hw->gflops[WEFT__ISA_HERE] * hw->threads * (VF_REGS == 32 ? 1 : 0.8),
                 weights = (double)(v.D * v.G * v.H * v.H);
    const double sums = 2 * weights * (double)v.n / ((v.n < MANY ? 0.65 : 0.85) * rate);
    const double step =
        fmax(sums, v.n < MANY ? 4 * weights / (0.75 * rate) : 0) + 1500 + 3.0 * (double)(v.D * v.n * v.H) / hw->threads;
    const double others = fmax(weft__flops(p) - 2 * weights * (double)(v.L * v.rows), 0);
    return 3000 + (double)(v.L * v.T) * step + others / (0.85 * rate) + 0.5 * weft__bytes(p) / hw->gbs;
}

/* ---------------------------------------------------------------- products with the input */
static void turn_lot(void *arg, int64_t slot) {
    const layers *q = arg;
    const int64_t K = rnn_inputs(&q->v, q->l), row = slot * LOT, n = WEFT__MIN(LOT, q->v.rows - row);
    const float *list[LOT];
    float *to = q->lots + slot * K * LOT;
    for (int64_t i = 0; i < n; i++) list[i] = input_of(q, q->l, row + i);
    if (n < LOT) memset(to, 0, (size_t)(K * LOT) * sizeof(float));
    layers_turn(list, n, K, to, LOT);
}

/* `count` gates from g on of n rows: out[i][gate]. */
static void few_gates(const layers *q, int64_t d, int64_t g, int64_t count, int64_t row, int64_t n, const float *bias) {
    const int64_t K = rnn_inputs(&q->v, q->l);
    float out[SIDE][GATE_ROWS];
    const float *a[SIDE];
    for (int64_t i = 0; i < n; i++) a[i] = input_of(q, q->l, row + i);
    layers_dots(weights_of(q, q->l, d, false) + g * K, K, count, a, n, K, out[0], GATE_ROWS);
    for (int64_t i = 0; i < n; i++) {
        float *to = record_of(q, q->l, d, row + i) + g;
        for (int64_t k = 0; k < count; k++) to[k] = out[i][k] + bias[k];
    }
}

static void lot_of_gates(const layers *q, int64_t d, int64_t g, int64_t count, int64_t lot, const float *bias) {
    const int64_t K = rnn_inputs(&q->v, q->l), n = WEFT__MIN(LOT, q->v.rows - lot * LOT);
    float out[GATE_ROWS][LOT];
    const float *list[GATE_ROWS];
    layers_product(weights_of(q, q->l, d, false) + g * K, K, count, q->lots + lot * K * LOT, LOT, n, K, out[0]);
    for (int64_t i = 0; i < count; i++) {
        list[i] = out[i];
        for (int64_t k = 0; k < n; k += VF_LANES) vf_store(out[i] + k, vf_add(vf_load(out[i] + k), vf_set1(bias[i])));
    }
    layers_turn(list, count, n, record_of(q, q->l, d, lot * LOT) + g, q->v.record);
}

static void input_gates(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, blocks = cpu_ceil(GH, GATE_ROWS), d = slot / blocks;
    const int64_t g = slot % blocks * GATE_ROWS, count = WEFT__MIN(GATE_ROWS, GH - g);
    const float *bx = bias_of(q, q->l, d, 0), *bh = bias_of(q, q->l, d, 1);
    float bias[GATE_ROWS] = {0};
    /* gru's third gate has its second bias inside of the product with r */
    for (int64_t i = 0; bx && i < count; i++)
        bias[i] = bx[g + i] + (q->p->op == WEFT_OP_GRU && g + i >= 2 * v->H ? 0 : bh[g + i]);
    if (v->rows < MANY)
        for (int64_t row = 0; row < v->rows; row += SIDE)
            few_gates(q, d, g, count, row, WEFT__MIN(SIDE, v->rows - row), bias);
    else
        for (int64_t lot = 0; lot * LOT < v->rows; lot++) lot_of_gates(q, d, g, count, lot, bias);
}

/* ---------------------------------------------------------------- a step */
/* What a vector of units of one sequence works on: their products with Wh, the record, the states before. */
typedef struct place {
    const float *z; /* UNITS of each gate */
    float *record, *h, *dst;
    const float *before, *cell, *bias; /* bias: gru's, of q; NULL: none */
    int64_t H;
} place;

VF_INLINE vf sum_of(const place *k, int gate, int64_t j, int64_t i, int64_t left) {
    return vf_add(vf_load(k->z + gate * UNITS + i), vf_load_count(k->record + gate * k->H + j, left));
}
VF_INLINE void keep(const place *k, int state, int64_t j, int64_t left, vf x) {
    vf_store_count(k->record + state * k->H + j, x, left);
}

VF_INLINE void cell(const place *k, const int op, int64_t j, int64_t i, int64_t left) {
    vf h;
    if (op == WEFT_OP_LSTM) {
        const vf in = vf_sigmoid(sum_of(k, 0, j, i, left)), f = vf_sigmoid(sum_of(k, 1, j, i, left));
        const vf g = vf_tanh(sum_of(k, 2, j, i, left)), o = vf_sigmoid(sum_of(k, 3, j, i, left));
        const vf c = vf_fma(f, vf_load_count(k->cell + j, left), vf_mul(in, g));
        keep(k, 0, j, left, in), keep(k, 1, j, left, f), keep(k, 2, j, left, g), keep(k, 3, j, left, o);
        keep(k, 4, j, left, c);
        h = vf_mul(o, vf_tanh(c));
    } else if (op == WEFT_OP_GRU) {
        const vf r = vf_sigmoid(sum_of(k, 0, j, i, left)), z = vf_sigmoid(sum_of(k, 1, j, i, left));
        const vf bias = k->bias ? vf_load_count(k->bias + j, left) : vf_zero(),
                 q = vf_add(vf_load(k->z + 2 * UNITS + i), bias);
        const vf m = vf_tanh(vf_fma(r, q, vf_load_count(k->record + 2 * k->H + j, left)));
        keep(k, 0, j, left, r), keep(k, 1, j, left, z), keep(k, 2, j, left, m), keep(k, 3, j, left, q);
        h = vf_fma(z, vf_load_count(k->before + j, left), vf_mul(vf_sub(vf_set1(1), z), m));
    } else {
        h = sum_of(k, 0, j, i, left);
        h = op == WEFT_OP_RNN_TANH ? vf_tanh(h) : vf_max(vf_zero(), h);
    }
    vf_store_count(k->h + j, h, left);
    if (k->dst) vf_store_count(k->dst + j, h, left);
}

VF_INLINE void cells(const place *k, const int op, int64_t j, int64_t count) {
    for (int64_t i = 0; i < count; i += VF_LANES) cell(k, op, j + i, i, count - i);
}

VF_INLINE void cells_of(const place *k, const int op, int64_t j, int64_t count) {
    switch (op) {
    case WEFT_OP_LSTM:
        cells(k, WEFT_OP_LSTM, j, count);
        break;
    case WEFT_OP_GRU:
        cells(k, WEFT_OP_GRU, j, count);
        break;
    case WEFT_OP_RNN_TANH:
        cells(k, WEFT_OP_RNN_TANH, j, count);
        break;
    default:
        cells(k, WEFT_OP_RNN_RELU, j, count);
    }
}

enum { SUMS = 4 * UNITS + VF_LANES }; /* of one sequence: UNITS of each gate, and room for a vector */

/* Products of Wh with h of n sequences from b on, for `count` units from j on of every gate. */
static void step_products(const layers *q, int64_t step, int64_t d, int64_t j, int64_t count, int64_t b, int64_t n,
                          const float *const *before, float z[GROUP][SUMS]) {
    const int64_t H = q->v.H;
    const float *w = weights_of(q, q->l, d, true), *list[UNITS], *turned = turned_of(q, step % 2, d, H) + b;
    float out[UNITS][LOT];
    for (int64_t i = 0; i < UNITS; i++) list[i] = out[i];
    for (int64_t g = 0; g < q->v.G; g++) {
        if (!is_many(q)) {
            layers_dots(w + (g * H + j) * H, H, count, before, n, H, z[0] + g * UNITS, SUMS);
            continue;
        }
        layers_product(w + (g * H + j) * H, H, count, turned, q->span, n, H, out[0]);
        layers_turn(list, count, n, z[0] + g * UNITS, SUMS);
    }
}

static void step_block(const layers *q, int64_t step, int64_t at) {
    const rnn *v = &q->v;
    const int64_t H = v->H, blocks = cpu_ceil(H, UNITS), most = is_many(q) ? GROUP : SIDE;
    const int64_t d = at / blocks, j = at % blocks * UNITS, count = WEFT__MIN(UNITS, H - j);
    const int64_t t = d ? v->T - 1 - step : step;
    const float *bias = bias_of(q, q->l, d, 1);
    float z[GROUP][SUMS];
    for (int64_t b = 0; b < v->n; b += most) {
        int64_t n = 0, rows[GROUP];
        const float *before[GROUP], *after[GROUP];
        for (; n < most && b + n < v->n && (rows[n] = rnn_row(v, t, b + n)) >= 0; n++)
            before[n] = h_before(q, q->l, d, t, b + n);
        if (n == 0) break; /* sequences are sorted: those that follow have ended too */
        step_products(q, step, d, j, count, b, n, before, z);
        for (int64_t i = 0; i < n; i++) {
            const place k = {.z = z[i],
                             .record = record_of(q, q->l, d, rows[i]),
                             .h = h_of(q, q->l, d, rows[i]),
                             .dst = q->l == v->L - 1 ? data_of(q, WEFT_ROLE_DST, rows[i]) + d * v->P : NULL,
                             .before = before[i],
                             .cell = q->p->op == WEFT_OP_LSTM ? c_before(q, q->l, d, t, b + i) : NULL,
                             .bias = bias ? bias + 2 * H : NULL,
                             .H = H};
            cells_of(&k, q->p->op, j, count);
            after[i] = k.h + j;
        }
        if (is_many(q)) layers_turn(after, n, count, turned_of(q, (step + 1) % 2, d, H) + j * q->span + b, q->span);
    }
}

static void step_unit(void *arg, int64_t step, int64_t unit) {
    const layers *q = arg;
    const int64_t blocks = layers_blocks(q), units = layers_units(q), last = cpu_first(blocks, units, unit + 1);
    for (int64_t at = cpu_first(blocks, units, unit); at < last; at++) step_block(q, step, at);
}

/* ---------------------------------------------------------------- driver */
static void last_states(const layers *q) {
    const rnn *v = &q->v;
    for (int64_t l = 0; l < v->L; l++)
        for (int64_t d = 0; d < v->D; d++)
            for (int64_t b = 0; b < v->n; b++) {
                const int64_t row = rnn_row(v, d ? 0 : rnn_last(v, b), b);
                const bool lstm = q->p->op == WEFT_OP_LSTM;
                const float *h = row < 0 ? state_of(q, WEFT_ROLE_H0, l, d, b) : h_of(q, l, d, row);
                memcpy((float *)(uintptr_t)state_of(q, WEFT_ROLE_HN, l, d, b), h, (size_t)v->P * sizeof(float));
                if (!lstm) continue;
                const float *c = row < 0 ? state_of(q, WEFT_ROLE_C0, l, d, b) : record_of(q, l, d, row) + 4 * v->H;
                memcpy((float *)(uintptr_t)state_of(q, WEFT_ROLE_CN, l, d, b), c, (size_t)v->H * sizeof(float));
            }
}

/* The first states in both buffers: a sequence that begins later than others finds its own there. */
static void turn_states(const layers *q) {
    const int64_t H = q->v.H, n = q->v.n;
    const float *list[LOT];
    memset(q->turned, 0, (size_t)(2 * q->v.D * H * q->span) * sizeof(float));
    for (int64_t d = 0; d < q->v.D; d++)
        for (int64_t b = 0; b < n; b += LOT) {
            const int64_t count = WEFT__MIN(LOT, n - b);
            for (int64_t i = 0; i < count; i++) list[i] = state_of(q, WEFT_ROLE_H0, q->l, d, b + i);
            for (int parity = 0; parity < 2; parity++)
                layers_turn(list, count, H, turned_of(q, parity, d, H) + b, q->span);
        }
}

/* Everything in the workspace, one after the other; at NULL: the size alone, in bytes. */
static size_t place_all(layers *q, char *at) {
    const rnn *v = &q->v;
    const int64_t widest = WEFT__MAX(v->c, v->L > 1 ? v->D * v->P : 0);
    size_t used = 0;
    q->span = cpu_round_up(v->n, VF_LANES);
    LAYERS_PLACE(zeros, v->H);
    LAYERS_PLACE(inputs, v->L > 1 ? v->rows * v->D * v->P : 0);
    LAYERS_PLACE(lots, v->rows < MANY ? 0 : cpu_round_up(v->rows, LOT) * widest);
    LAYERS_PLACE(turned, is_many(q) ? 2 * v->D * v->H * q->span : 0);
    LAYERS_PLACE(save, q->p->attr[WEFT_RNN_TRAIN] ? 0 : v->L * v->D * v->rows * v->record);
    return used;
}

static weft_status run_f32(const weft__exec *e) {
    layers q = {.v = rnn_of(e->p, e->ptr, e->workspace), .p = e->p, .ptr = e->ptr};
    const rnn *v = &q.v;
    place_all(&q, e->workspace);
    memset(q.zeros, 0, (size_t)v->H * sizeof(float));
    if (e->p->attr[WEFT_RNN_TRAIN]) q.save = e->ptr[WEFT_ROLE_RESERVE];
    for (q.l = 0; q.l < v->L; q.l++) {
        if (q.l) layers_inputs(&q, q.l);
        if (is_many(&q)) turn_states(&q);
        if (v->rows >= MANY) weft__parallel(e->ctx, cpu_ceil(v->rows, LOT), turn_lot, &q);
        weft__parallel(e->ctx, v->D * cpu_ceil(v->G * v->H, GATE_ROWS), input_gates, &q);
        team steps = {.run = step_unit, .arg = &q, .steps = v->T, .units = layers_units(&q)};
        team_go(e->ctx, &steps);
    }
    last_states(&q);
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
    WEFT__KERNEL(name_##_fwd) = {                                                      \
        .name = WEFT__NAME(#name_ "_fwd_team"),                                        \
        .version = 1,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(FWD),                                                 \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .bound = 4,                                                                    \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
RNN(RNN_RELU, rnn_relu);
RNN(RNN_TANH, rnn_tanh);
RNN(LSTM, lstm);
RNN(GRU, gru);
