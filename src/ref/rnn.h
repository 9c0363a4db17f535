/* Recurrent layers, the reference. T steps, n sequences, c inputs, H hidden units, P outputs per direction (P = H
 * without projection), L layers, D directions. Of each step, with x the input of the layer (layer 0: src; above: the
 * outputs of both directions below, times the dropout factor) and h', c' the state before the step:
 *   rnn    h = act(Wx x + bx + Wh h' + bh)
 *   lstm   i, f, g, o = sigma, sigma, tanh, sigma of (Wx x + bx + Wh h' + bh);  c = f c' + i g;  h = o tanh(c),
 *   projected: Wr h gru    r, z = sigma(Wx x + bx + Wh h' + bh);  q = Wh h' + bh;  m = tanh(Wx x + bx + r q);  h =
 *   (1 - z) m + z h'
 * Weights are one vector: for each layer and direction Wx (G*H, inputs), Wh (G*H, P), Wr (P, H) if projected; biases
 * another: bx, bh (G*H). What a step leaves for the gradient is a record in `reserve`: its gates, c or q, and h. The
 * gradient runs the steps backwards and leaves in the workspace, per step, the gradients before the activations (d),
 * of h (dh) and of c (dc). A row is one step of one sequence: t*n + b, or, packed, lengths[t] + b where lengths
 * holds T+1 offsets of the steps' rows and sequences are sorted, longest first; a sequence that has ended has no row
 * (-1). Phases are steps: forward in time within a layer. */
#ifndef WEFT_REF_RNN_H
#define WEFT_REF_RNN_H

#include "item.h"

typedef struct rnn {
    const weft_problem *p;
    void *const *ptr;
    void *save;   /* records: reserve, or the workspace when nothing is kept */
    double *grad; /* backward: the workspace */
    int64_t T, n, c, H, P, L, D, G, rows;
    int64_t states, record; /* states a unit and elements of a record: states*H + P */
    int64_t slots, grads;   /* gradients a unit and doubles of a step: slots*H + P + H */
    int64_t save_step;      /* stride of the reserve */
    int save_type, projected;
} rnn;

WEFT_ITEM rnn rnn_of(const weft_problem *p, void *const *ptr, void *workspace) {
    rnn v;
    v.p = p;
    v.ptr = ptr;
    v.T = p->attr[WEFT_RNN_STEPS], v.n = p->n, v.c = p->c, v.H = p->o, v.L = p->attr[WEFT_RNN_LAYERS],
    v.D = 1 + p->attr[WEFT_RNN_BIDIRECTIONAL];
    v.projected = p->attr[WEFT_RNN_PROJECTION] > 0;
    v.P = v.projected ? p->attr[WEFT_RNN_PROJECTION] : v.H;
    v.rows = p->attr[WEFT_RNN_ROWS] ? p->attr[WEFT_RNN_ROWS] : v.T * v.n;
    v.G = p->op == WEFT_OP_LSTM ? 4 : p->op == WEFT_OP_GRU ? 3 : 1;
    v.states = p->op == WEFT_OP_LSTM ? 5 : p->op == WEFT_OP_GRU ? 4 : 0;
    v.slots = p->op == WEFT_OP_GRU ? 4 : v.G; /* gru: the fourth is that of q */
    v.record = v.states * v.H + v.P;
    v.grads = v.slots * v.H + v.P + v.H;
    int kept = p->attr[WEFT_RNN_TRAIN] != 0 || p->pass == WEFT_PASS_BWD;
    v.save = kept ? (ptr ? ptr[WEFT_ROLE_RESERVE] : workspace) : workspace;
    v.save_type = kept ? item_tensor(p, WEFT_ROLE_RESERVE)->dtype : WEFT_DTYPE_F64;
    v.save_step = kept ? item_tensor(p, WEFT_ROLE_RESERVE)->strides[0] : 1;
    v.grad = (double *)workspace;
    return v;
}

/* ---------------------------------------------------------------- rows, weights, records */
WEFT_ITEM int64_t rnn_row(const rnn *v, int64_t t, int64_t b) {
    if (t < 0 || t >= v->T) return -1;
    if (!v->p->attr[WEFT_RNN_ROWS]) return t * v->n + b;
    const int64_t *lengths = (const int64_t *)v->ptr[WEFT_ROLE_LENGTHS],
                  step = item_tensor(v->p, WEFT_ROLE_LENGTHS)->strides[0];
    int64_t begin = lengths[t * step], end = lengths[(t + 1) * step];
    /* the offsets are the caller's data: whatever they are, no row outside is used and no sum overflows */
    return begin >= 0 && begin < end && begin < v->rows && b < end - begin && b < v->rows - begin ? begin + b : -1;
}

WEFT_ITEM int64_t rnn_last(const rnn *v, int64_t b) {
    int64_t t = v->T - 1;
    while (t > 0 && rnn_row(v, t, b) < 0) t--;
    return t;
}

/* The step after which t comes, and the one that comes after t, in the order of the direction. */
WEFT_ITEM int64_t rnn_before(const rnn *v, int64_t d, int64_t t, int64_t b) { return rnn_row(v, d ? t + 1 : t - 1, b); }
WEFT_ITEM int64_t rnn_after(const rnn *v, int64_t d, int64_t t, int64_t b) { return rnn_row(v, d ? t - 1 : t + 1, b); }

WEFT_ITEM int64_t rnn_inputs(const rnn *v, int64_t l) { return l ? v->D * v->P : v->c; }

WEFT_ITEM int64_t rnn_block(const rnn *v, int64_t l) {
    return v->G * v->H * (rnn_inputs(v, l) + v->P) + (v->projected ? v->P * v->H : 0);
}

WEFT_ITEM int64_t rnn_begin(const rnn *v, int64_t l, int64_t d) {
    return l ? v->D * rnn_block(v, 0) + ((l - 1) * v->D + d) * rnn_block(v, 1) : d * rnn_block(v, 0);
}

WEFT_ITEM double rnn_vector(const rnn *v, int role, int64_t i) {
    const weft_tensor *t = item_tensor(v->p, role);
    return item_load(t->dtype, v->ptr[role], i * t->strides[0]);
}

WEFT_ITEM double rnn_wx(const rnn *v, int64_t l, int64_t d, int64_t g, int64_t i) {
    return rnn_vector(v, WEFT_ROLE_WEIGHTS, rnn_begin(v, l, d) + g * rnn_inputs(v, l) + i);
}

WEFT_ITEM double rnn_wh(const rnn *v, int64_t l, int64_t d, int64_t g, int64_t j) {
    return rnn_vector(v, WEFT_ROLE_WEIGHTS, rnn_begin(v, l, d) + v->G * v->H * rnn_inputs(v, l) + g * v->P + j);
}

WEFT_ITEM double rnn_wr(const rnn *v, int64_t l, int64_t d, int64_t q, int64_t j) {
    return rnn_vector(v, WEFT_ROLE_WEIGHTS,
                      rnn_begin(v, l, d) + v->G * v->H * (rnn_inputs(v, l) + v->P) + q * v->H + j);
}

WEFT_ITEM double rnn_bias(const rnn *v, int64_t l, int64_t d, int hidden, int64_t g) {
    return v->p->attr[WEFT_RNN_BIAS] ? rnn_vector(v, WEFT_ROLE_BIAS, ((l * v->D + d) * 2 + hidden) * v->G * v->H + g)
                                     : 0;
}

WEFT_ITEM int64_t rnn_at(const rnn *v, int64_t l, int64_t d, int64_t row) { return (l * v->D + d) * v->rows + row; }

WEFT_ITEM double rnn_saved(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t state, int64_t j) {
    return item_load(v->save_type, v->save, (rnn_at(v, l, d, row) * v->record + state * v->H + j) * v->save_step);
}

WEFT_ITEM void rnn_save(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t state, int64_t j, double x) {
    item_store(v->save_type, v->save, (rnn_at(v, l, d, row) * v->record + state * v->H + j) * v->save_step, x);
}

WEFT_ITEM double rnn_h(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t q) {
    return rnn_saved(v, l, d, row, v->states, q);
}

/* A state tensor (L*D, n, size) at (l, d, b, j); 0 when the problem has no such tensor. */
WEFT_ITEM int64_t rnn_state_at(const rnn *v, const weft_tensor *t, int64_t l, int64_t d, int64_t b, int64_t j) {
    return (l * v->D + d) * t->strides[0] + b * t->strides[1] + j * t->strides[2];
}

WEFT_ITEM double rnn_state(const rnn *v, int role, int64_t l, int64_t d, int64_t b, int64_t j) {
    const weft_tensor *t = item_tensor(v->p, role);
    return t->role == role ? item_load(t->dtype, v->ptr[role], rnn_state_at(v, t, l, d, b, j)) : 0;
}

/* Rows of src, dst and their gradients: (T, n, width), or packed (rows, width). */
WEFT_ITEM int64_t rnn_data_at(const rnn *v, const weft_tensor *t, int64_t row, int64_t i) {
    if (t->rank == 2) return row * t->strides[0] + i * t->strides[1];
    return row / v->n * t->strides[0] + row % v->n * t->strides[1] + i * t->strides[2];
}

WEFT_ITEM double rnn_data(const rnn *v, int role, int64_t row, int64_t i) {
    const weft_tensor *t = item_tensor(v->p, role);
    return item_load(t->dtype, v->ptr[role], rnn_data_at(v, t, row, i));
}

/* 0 or 1/(1 - drop), from a hash of the seed and the place: the same on every engine and in both passes. */
WEFT_ITEM double rnn_dropout(const rnn *v, int64_t l, int64_t row, int64_t i) {
    double drop = v->p->real[WEFT_RNN_DROPOUT];
    if (drop <= 0 || !v->p->attr[WEFT_RNN_TRAIN]) return 1;
    uint64_t x = (uint64_t)v->p->attr[WEFT_RNN_SEED] +
                 UINT64_C(0x9e3779b97f4a7c15) * (uint64_t)((l * v->rows + row) * v->D * v->P + i + 1);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (double)(x >> 11) * 0x1p-53 < drop ? 0 : 1 / (1 - drop);
}

WEFT_ITEM double rnn_input(const rnn *v, int64_t l, int64_t row, int64_t i) {
    return l ? rnn_h(v, l - 1, i / v->P, row, i % v->P) * rnn_dropout(v, l - 1, row, i)
             : rnn_data(v, WEFT_ROLE_SRC, row, i);
}

WEFT_ITEM double rnn_h_before(const rnn *v, int64_t l, int64_t d, int64_t t, int64_t b, int64_t q) {
    int64_t row = rnn_before(v, d, t, b);
    return row < 0 ? rnn_state(v, WEFT_ROLE_H0, l, d, b, q) : rnn_h(v, l, d, row, q);
}

WEFT_ITEM double rnn_c_before(const rnn *v, int64_t l, int64_t d, int64_t t, int64_t b, int64_t j) {
    int64_t row = rnn_before(v, d, t, b);
    return row < 0 ? rnn_state(v, WEFT_ROLE_C0, l, d, b, j) : rnn_saved(v, l, d, row, 4, j);
}

WEFT_ITEM double rnn_sigma(double x) { return 1 / (1 + exp(-x)); }

/* ---------------------------------------------------------------- forward */
/* One unit of one step: its gates, and h unless a projection follows. */
WEFT_ITEM void rnn_unit(const rnn *v, int64_t l, int64_t d, int64_t t, int64_t b, int64_t j) {
    int64_t row = rnn_row(v, t, b), width = rnn_inputs(v, l);
    if (row < 0) return;
    double x[4] = {0, 0, 0, 0}, h[4] = {0, 0, 0, 0}, out;
    for (int g = 0; g < v->G; g++) {
        x[g] = rnn_bias(v, l, d, 0, g * v->H + j);
        h[g] = rnn_bias(v, l, d, 1, g * v->H + j);
        for (int64_t i = 0; i < width; i++) x[g] += rnn_wx(v, l, d, g * v->H + j, i) * rnn_input(v, l, row, i);
        for (int64_t q = 0; q < v->P; q++) h[g] += rnn_wh(v, l, d, g * v->H + j, q) * rnn_h_before(v, l, d, t, b, q);
    }
    if (v->p->op == WEFT_OP_LSTM) {
        double i = rnn_sigma(x[0] + h[0]), f = rnn_sigma(x[1] + h[1]), g = tanh(x[2] + h[2]),
               o = rnn_sigma(x[3] + h[3]);
        double c = f * rnn_c_before(v, l, d, t, b, j) + i * g, keep[5] = {i, f, g, o, c};
        for (int s = 0; s < 5; s++) rnn_save(v, l, d, row, s, j, keep[s]);
        out = o * tanh(c);
    } else if (v->p->op == WEFT_OP_GRU) {
        double r = rnn_sigma(x[0] + h[0]), z = rnn_sigma(x[1] + h[1]), m = tanh(x[2] + r * h[2]),
               keep[4] = {r, z, m, h[2]};
        for (int s = 0; s < 4; s++) rnn_save(v, l, d, row, s, j, keep[s]);
        out = (1 - z) * m + z * rnn_h_before(v, l, d, t, b, j);
    } else {
        out = x[0] + h[0];
        out = v->p->op == WEFT_OP_RNN_TANH ? tanh(out) : out < 0 ? 0 : out;
    }
    if (!v->projected) rnn_save(v, l, d, row, v->states, j, out);
}

WEFT_ITEM double rnn_unprojected(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t j) {
    return rnn_saved(v, l, d, row, 3, j) * tanh(rnn_saved(v, l, d, row, 4, j));
}

WEFT_ITEM void rnn_project(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t q) {
    double sum = 0;
    for (int64_t j = 0; j < v->H; j++) sum += rnn_wr(v, l, d, q, j) * rnn_unprojected(v, l, d, row, j);
    rnn_save(v, l, d, row, v->states, q, sum);
}

/* The last state of each sequence: of h, or of c. */
WEFT_ITEM void rnn_final(const rnn *v, int role, int64_t i) {
    const weft_tensor *out = item_tensor(v->p, role);
    int64_t at[3], offset = item_at(out, i, at), l = at[0] / v->D, d = at[0] % v->D;
    int64_t row = rnn_row(v, d ? 0 : rnn_last(v, at[1]), at[1]);
    double x;
    /* an empty sequence: its first state */
    if (row < 0)
        x = rnn_state(v, role == WEFT_ROLE_HN ? WEFT_ROLE_H0 : WEFT_ROLE_C0, l, d, at[1], at[2]);
    else
        x = role == WEFT_ROLE_HN ? rnn_h(v, l, d, row, at[2]) : rnn_saved(v, l, d, row, 4, at[2]);
    item_out(v->p, out, v->ptr[role], offset, x);
}

/* ---------------------------------------------------------------- backward */
WEFT_ITEM double *rnn_grad(const rnn *v, int64_t l, int64_t d, int64_t row) {
    return v->grad + rnn_at(v, l, d, row) * v->grads;
}

/* Gradient before the activation of row g of Wx (hidden: of Wh; gru's third gate enters it through q). */
WEFT_ITEM double rnn_d(const rnn *v, int64_t l, int64_t d, int64_t row, int hidden, int64_t g) {
    return rnn_grad(v, l, d, row)[v->p->op == WEFT_OP_GRU && hidden && g >= 2 * v->H ? g + v->H : g];
}

WEFT_ITEM double *rnn_dh(const rnn *v, int64_t l, int64_t d, int64_t row) {
    return rnn_grad(v, l, d, row) + v->slots * v->H;
}
WEFT_ITEM double *rnn_dc(const rnn *v, int64_t l, int64_t d, int64_t row) { return rnn_dh(v, l, d, row) + v->P; }

/* What step `row` sends to the h, and to the c, before it. */
WEFT_ITEM double rnn_back_h(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t q) {
    double sum = v->p->op == WEFT_OP_GRU ? rnn_dh(v, l, d, row)[q] * rnn_saved(v, l, d, row, 1, q) : 0;
    for (int64_t g = 0; g < v->G * v->H; g++) sum += rnn_wh(v, l, d, g, q) * rnn_d(v, l, d, row, 1, g);
    return sum;
}

WEFT_ITEM double rnn_back_c(const rnn *v, int64_t l, int64_t d, int64_t row, int64_t j) {
    return rnn_dc(v, l, d, row)[j] * rnn_saved(v, l, d, row, 1, j);
}

/* Gradient of the input of layer l. */
WEFT_ITEM double rnn_dx(const rnn *v, int64_t l, int64_t row, int64_t i) {
    double sum = 0;
    for (int64_t d = 0; d < v->D; d++)
        for (int64_t g = 0; g < v->G * v->H; g++) sum += rnn_wx(v, l, d, g, i) * rnn_d(v, l, d, row, 0, g);
    return sum;
}

WEFT_ITEM void rnn_step_dh(const rnn *v, int64_t l, int64_t d, int64_t t, int64_t b, int64_t q) {
    int64_t row = rnn_row(v, t, b), i = d * v->P + q;
    if (row < 0) return;
    int64_t after = rnn_after(v, d, t, b);
    double above =
        l == v->L - 1 ? rnn_data(v, WEFT_ROLE_DIFF_DST, row, i) : rnn_dropout(v, l, row, i) * rnn_dx(v, l + 1, row, i);
    rnn_dh(v, l, d, row)[q] =
        above + (after < 0 ? rnn_state(v, WEFT_ROLE_DIFF_HN, l, d, b, q) : rnn_back_h(v, l, d, after, q));
}

WEFT_ITEM void rnn_step_gates(const rnn *v, int64_t l, int64_t d, int64_t t, int64_t b, int64_t j) {
    int64_t row = rnn_row(v, t, b), after = rnn_after(v, d, t, b);
    if (row < 0) return;
    double *out = rnn_grad(v, l, d, row), s[5] = {0, 0, 0, 0, 0}, dh = v->projected ? 0 : rnn_dh(v, l, d, row)[j];
    for (int64_t q = 0; v->projected && q < v->P; q++) dh += rnn_wr(v, l, d, q, j) * rnn_dh(v, l, d, row)[q];
    for (int k = 0; k < v->states; k++) s[k] = rnn_saved(v, l, d, row, k, j);
    if (v->p->op == WEFT_OP_LSTM) {
        double i = s[0], f = s[1], g = s[2], o = s[3], u = tanh(s[4]);
        double dc = dh * o * (1 - u * u) +
                    (after < 0 ? rnn_state(v, WEFT_ROLE_DIFF_CN, l, d, b, j) : rnn_back_c(v, l, d, after, j));
        rnn_dc(v, l, d, row)[j] = dc;
        out[j] = dc * g * i * (1 - i);
        out[v->H + j] = dc * rnn_c_before(v, l, d, t, b, j) * f * (1 - f);
        out[2 * v->H + j] = dc * i * (1 - g * g);
        out[3 * v->H + j] = dh * u * o * (1 - o);
    } else if (v->p->op == WEFT_OP_GRU) {
        double r = s[0], z = s[1], m = s[2], q = s[3], dm = dh * (1 - z) * (1 - m * m);
        out[j] = dm * q * r * (1 - r);
        out[v->H + j] = dh * (rnn_h_before(v, l, d, t, b, j) - m) * z * (1 - z);
        out[2 * v->H + j] = dm;
        out[3 * v->H + j] = dm * r;
    } else {
        double h = rnn_h(v, l, d, row, j);
        out[j] = v->p->op == WEFT_OP_RNN_TANH ? dh * (1 - h * h) : h <= 0 ? 0 : dh;
    }
}

/* One weight: of Wx, Wh or Wr by its place in the vector. */
WEFT_ITEM double rnn_dw(const rnn *v, int64_t i) {
    int64_t first = v->D * rnn_block(v, 0), l = i < first ? 0 : 1 + (i - first) / (v->D * rnn_block(v, 1));
    int64_t d = (i - rnn_begin(v, l, 0)) / rnn_block(v, l), width = rnn_inputs(v, l), wh = v->G * v->H * width,
            wr = wh + v->G * v->H * v->P;
    i -= rnn_begin(v, l, d);
    double sum = 0;
    for (int64_t t = 0; t < v->T; t++)
        for (int64_t b = 0; b < v->n; b++) {
            int64_t row = rnn_row(v, t, b);
            if (row < 0) continue;
            if (i < wh)
                sum += rnn_d(v, l, d, row, 0, i / width) * rnn_input(v, l, row, i % width);
            else if (i < wr)
                sum += rnn_d(v, l, d, row, 1, (i - wh) / v->P) * rnn_h_before(v, l, d, t, b, (i - wh) % v->P);
            else
                sum += rnn_dh(v, l, d, row)[(i - wr) / v->H] * rnn_unprojected(v, l, d, row, (i - wr) % v->H);
        }
    return sum;
}

WEFT_ITEM double rnn_db(const rnn *v, int64_t i) {
    int64_t size = v->G * v->H, block = i / size, g = i % size;
    double sum = 0;
    for (int64_t row = 0; row < v->rows; row++)
        sum += rnn_d(v, block / 2 / v->D, block / 2 % v->D, row, (int)(block % 2), g);
    return sum;
}

/* Gradient of the first state of each sequence: what its first step sends back. */
WEFT_ITEM void rnn_first(const rnn *v, int role, int64_t i) {
    const weft_tensor *out = item_tensor(v->p, role);
    int64_t at[3], offset = item_at(out, i, at), l = at[0] / v->D, d = at[0] % v->D;
    int64_t row = rnn_row(v, d ? rnn_last(v, at[1]) : 0, at[1]);
    double x;
    if (row < 0)
        x = rnn_state(v, role == WEFT_ROLE_DIFF_H0 ? WEFT_ROLE_DIFF_HN : WEFT_ROLE_DIFF_CN, l, d, at[1], at[2]);
    else
        x = role == WEFT_ROLE_DIFF_H0 ? rnn_back_h(v, l, d, row, at[2]) : rnn_back_c(v, l, d, row, at[2]);
    item_out(v->p, out, v->ptr[role], offset, x);
}

/* ---------------------------------------------------------------- phases: the steps, then one phase an output */
WEFT_ITEM int64_t rnn_steps(const rnn *v) { return v->L * v->T * (v->p->pass == WEFT_PASS_BWD ? 2 : 1 + v->projected); }

WEFT_ITEM int rnn_output(const weft_problem *p, int64_t k) {
    const int fwd[] = {WEFT_ROLE_DST, WEFT_ROLE_HN, WEFT_ROLE_CN},
              bwd[] = {WEFT_ROLE_DIFF_SRC, WEFT_ROLE_DIFF_WEIGHTS, WEFT_ROLE_DIFF_BIAS, WEFT_ROLE_DIFF_H0,
                       WEFT_ROLE_DIFF_C0};
    int count = p->pass == WEFT_PASS_BWD ? 5 : 3;
    for (int i = 0; i < count; i++) {
        int role = p->pass == WEFT_PASS_BWD ? bwd[i] : fwd[i];
        if (item_tensor(p, role)->role == role && k-- == 0) return role;
    }
    return -1;
}

WEFT_ITEM int rnn_phases(const weft_problem *p) {
    rnn v = rnn_of(p, 0, 0);
    int outputs = 0;
    while (rnn_output(p, outputs) >= 0) outputs++;
    return (int)rnn_steps(&v) + outputs;
}

WEFT_ITEM int64_t rnn_count(const weft_problem *p, int phase) {
    rnn v = rnn_of(p, 0, 0);
    if (phase >= rnn_steps(&v)) return item_numel(item_tensor(p, rnn_output(p, phase - rnn_steps(&v))));
    /* items of H units, else of P outputs */
    int units = p->pass == WEFT_PASS_BWD ? phase % 2 : !v.projected || phase % 2 == 0;
    return v.D * v.n * (units ? v.H : v.P);
}

WEFT_ITEM size_t rnn_workspace(const weft_problem *p) {
    rnn v = rnn_of(p, 0, 0);
    if (p->pass != WEFT_PASS_BWD && p->attr[WEFT_RNN_TRAIN]) return 0;
    return (size_t)(v.L * v.D * v.rows * (p->pass == WEFT_PASS_BWD ? v.grads : v.record)) * sizeof(double);
}

WEFT_ITEM void rnn_step(const rnn *v, int phase, int64_t i) {
    int backward = v->p->pass == WEFT_PASS_BWD, parts = backward ? 2 : 1 + v->projected, part = phase % parts;
    int64_t s = phase / parts % v->T, l = phase / parts / v->T;
    if (backward) s = v->T - 1 - s, l = v->L - 1 - l;
    int64_t width = backward ? (part ? v->H : v->P) : (part ? v->P : v->H);
    int64_t j = i % width, b = i / width % v->n, d = i / width / v->n, t = d ? v->T - 1 - s : s;
    if (backward && part)
        rnn_step_gates(v, l, d, t, b, j);
    else if (backward)
        rnn_step_dh(v, l, d, t, b, j);
    else if (!part)
        rnn_unit(v, l, d, t, b, j);
    else if (rnn_row(v, t, b) >= 0)
        rnn_project(v, l, d, rnn_row(v, t, b), j);
}

WEFT_ITEM void rnn_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    rnn v = rnn_of(p, ptr, workspace);
    if (phase < rnn_steps(&v)) {
        rnn_step(&v, phase, i);
        return;
    }
    int role = rnn_output(p, phase - rnn_steps(&v));
    const weft_tensor *out = item_tensor(p, role);
    int64_t width = out->dims[out->rank - 1], row = i / width, at = i % width;
    if (role == WEFT_ROLE_HN || role == WEFT_ROLE_CN)
        rnn_final(&v, role, i);
    else if (role == WEFT_ROLE_DIFF_H0 || role == WEFT_ROLE_DIFF_C0)
        rnn_first(&v, role, i);
    else if (role == WEFT_ROLE_DST)
        item_out(p, out, ptr[role], rnn_data_at(&v, out, row, at), rnn_h(&v, v.L - 1, at / v.P, row, at % v.P));
    else if (role == WEFT_ROLE_DIFF_SRC)
        item_out(p, out, ptr[role], rnn_data_at(&v, out, row, at), rnn_dx(&v, 0, row, at));
    else
        item_out(p, out, ptr[role], i * out->strides[0],
                 role == WEFT_ROLE_DIFF_WEIGHTS ? rnn_dw(&v, i) : rnn_db(&v, i));
}

#endif
