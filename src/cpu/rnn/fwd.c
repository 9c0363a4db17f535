/* f32 recurrent layers forward: rnn_relu, rnn_tanh, lstm, gru; whole and packed sequences, both directions.
 * Math:      as in src/ref/rnn.h; sums in f32, lanes along the products
 * Blocking:  of each layer first the products of all rows with Wx, 16 rows of weights a slot; then step by step slots
 *            of 32 hidden units, both directions side by side: their products with Wh, gates and state. Steps walk
 *            the slots to and fro, so that what of the weights the last step left in the caches is used first
 * Traffic:   Wh once a step from the cache that holds it; all else once
 * Roofline:  one sequence: bandwidth of the cache; many: multiply-adds
 * Assumes:   f32, rows of src and dst contiguous, no projection
 * Try:       weft bench lstm:fwd:f32:dense:t100n1c512o512:l1 */
#include "cpu/rnn/layers.h"

enum { WEIGHT_ROWS = 16 }; /* of Wx in a slot */

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

/* ---------------------------------------------------------------- products with the input */
static void input_rows(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t GH = v->G * v->H, K = rnn_inputs(v, q->l), blocks = cpu_ceil(GH, WEIGHT_ROWS), d = slot / blocks;
    const int64_t g = slot % blocks * WEIGHT_ROWS, count = WEFT__MIN(WEIGHT_ROWS, GH - g);
    const float *w = weights_of(q, q->l, d, false) + g * K, *bx = bias_of(q, q->l, d, 0), *bh = bias_of(q, q->l, d, 1);
    float bias[WEIGHT_ROWS] = {0}, out[SIDE][WEIGHT_ROWS];
    /* gru's third gate has its second bias inside of the product with r */
    for (int64_t i = 0; bx && i < count; i++)
        bias[i] = bx[g + i] + (q->p->op == WEFT_OP_GRU && g + i >= 2 * v->H ? 0 : bh[g + i]);
    for (int64_t row = 0; row < v->rows; row += SIDE) {
        const int64_t n = WEFT__MIN(SIDE, v->rows - row);
        const float *a[SIDE];
        for (int64_t j = 0; j < n; j++) a[j] = input_of(q, q->l, row + j);
        layers_dots(w, K, count, a, n, K, out[0], WEIGHT_ROWS);
        for (int64_t j = 0; j < n; j++) {
            float *to = record_of(q, q->l, d, row + j) + g;
            for (int64_t i = 0; i < count; i++) to[i] = out[j][i] + bias[i];
        }
    }
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

static void step_units(void *arg, int64_t slot) {
    const layers *q = arg;
    const rnn *v = &q->v;
    const int64_t H = v->H, blocks = cpu_ceil(H, UNITS), at = q->step % 2 ? v->D * blocks - 1 - slot : slot;
    const int64_t d = at / blocks, j = at % blocks * UNITS, count = WEFT__MIN(UNITS, H - j);
    const int64_t t = d ? v->T - 1 - q->step : q->step;
    const float *w = weights_of(q, q->l, d, true), *bias = bias_of(q, q->l, d, 1);
    float z[SIDE][4 * UNITS + VF_LANES];
    for (int64_t b = 0; b < v->n; b += SIDE) {
        int64_t n = 0, rows[SIDE];
        const float *a[SIDE];
        for (; n < SIDE && b + n < v->n && (rows[n] = rnn_row(v, t, b + n)) >= 0; n++)
            a[n] = h_before(q, q->l, d, t, b + n);
        if (n == 0) break; /* sequences are sorted: those that follow have ended too */
        for (int64_t g = 0; g < v->G; g++)
            layers_dots(w + (g * H + j) * H, H, count, a, n, H, z[0] + g * UNITS, 4 * UNITS + VF_LANES);
        for (int64_t i = 0; i < n; i++) {
            const place k = {.z = z[i],
                             .record = record_of(q, q->l, d, rows[i]),
                             .h = h_of(q, q->l, d, rows[i]),
                             .dst = q->l == v->L - 1 ? data_of(q, WEFT_ROLE_DST, rows[i]) + d * v->P : NULL,
                             .before = a[i],
                             .cell = q->p->op == WEFT_OP_LSTM ? c_before(q, q->l, d, t, b + i) : NULL,
                             .bias = bias ? bias + 2 * H : NULL,
                             .H = H};
            switch (q->p->op) {
            case WEFT_OP_LSTM:
                cells(&k, WEFT_OP_LSTM, j, count);
                break;
            case WEFT_OP_GRU:
                cells(&k, WEFT_OP_GRU, j, count);
                break;
            case WEFT_OP_RNN_TANH:
                cells(&k, WEFT_OP_RNN_TANH, j, count);
                break;
            default:
                cells(&k, WEFT_OP_RNN_RELU, j, count);
            }
        }
    }
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

static int64_t records(const rnn *v) { return v->L * v->D * v->rows * v->record; }

static weft_status run(const weft__exec *e) {
    layers q = {.v = rnn_of(e->p, e->ptr, e->workspace), .p = e->p, .ptr = e->ptr};
    float *at = e->workspace;
    const rnn *v = &q.v;
    q.zeros = memset(at, 0, (size_t)v->H * sizeof(float)), at += v->H;
    q.inputs = at, at += v->L > 1 ? v->rows * v->D * v->P : 0;
    q.save = e->p->attr[WEFT_RNN_TRAIN] ? e->ptr[WEFT_ROLE_RESERVE] : at;
    for (q.l = 0; q.l < v->L; q.l++) {
        if (q.l) layers_inputs(&q, q.l);
        weft__parallel(e->ctx, v->D * cpu_ceil(v->G * v->H, WEIGHT_ROWS), input_rows, &q);
        for (q.step = 0; q.step < v->T; q.step++) weft__parallel(e->ctx, v->D * cpu_ceil(v->H, UNITS), step_units, &q);
    }
    last_states(&q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const rnn v = rnn_of(p, NULL, NULL);
    (void)variant;
    const char *refusal = layers_refusal(p);
    if (refusal) return refusal;
    const int64_t inputs = v.L > 1 ? v.rows * v.D * v.P : 0, own = p->attr[WEFT_RNN_TRAIN] ? 0 : records(&v);
    d->workspace = (size_t)(v.H + inputs + own) * sizeof(float);
    const double weights = 4.0 * (double)(v.L * v.D * v.G * v.H * v.H);
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p), v.n < SIDE ? 0.25 : 0.5) +
            (double)(v.L * v.T) * (3000 + weights / (double)v.L / (1.5 * hw->gbs * hw->threads));
    return NULL;
}

#define RNN(NAME, name_)                               \
    WEFT__KERNEL(name_##_fwd) = {                      \
        .name = WEFT__NAME("f32_" #name_ "_fwd_dots"), \
        .version = 1,                                  \
        .op = WEFT_OP_##NAME,                          \
        .engine = WEFT_ENGINE_CPU,                     \
        .isa = WEFT__ISA_HERE,                         \
        .passes = WEFT__PASS_SET(FWD),                 \
        .dtypes = WEFT__DTYPE_SET(F32),                \
        .bound = 4,                                    \
        .plan = plan,                                  \
        .run = run,                                    \
    }
RNN(RNN_RELU, rnn_relu);
RNN(RNN_TANH, rnn_tanh);
RNN(LSTM, lstm);
RNN(GRU, gru);
