/* What the passes of the recurrent layers share: the job, where rows and records lie, and their matrix products.
 *
 * src/ref/rnn.h has the formulas and the layout of weights, biases and records; its functions that only compute places
 * (rows, dropout, the begin of weights) are used here too. A record of a row begins with the gates: the products with
 * the input are put there before the steps, which add those with the state. */
#ifndef WEFT_CPU_RNN_LAYERS_H
#define WEFT_CPU_RNN_LAYERS_H

#include "cpu/frame.h"
#include "cpu/gemm/gemm.h"
#include "cpu/rnn/team.h"
#include "cpu/simd/math.h"
#include "ref/rnn.h"

/* UNITS: hidden units of a block. SIDE: rows of data in a tile of dots. MANY: from so many rows on they are turned.
 * LOT: turned rows side by side at most; in a step GROUP, as stacks are small. GATE_ROWS: rows of weights whose
 * gradients are made together, in so many slots at most. */
enum { UNITS = 32, SIDE = 4, MANY = 8, LOT = GEMM_NR, GROUP = LOT < 32 ? LOT : 32, GATE_ROWS = 64 };
enum { WEIGHT_SLOTS = CPU_CUT(32, 1) };
/* Rows and columns of a gradient of weights that are summed together, and floats that this takes. */
enum { CHUNK = 128, ACROSS = 256, WEIGHT_FLOATS = CHUNK * (GATE_ROWS + LOT) + GATE_ROWS * ACROSS };

typedef struct layers {
    rnn v;
    const weft_problem *p;
    void *const *ptr;
    float *save;   /* records of every layer, direction and row */
    float *inputs; /* of the layer: rows of all the outputs below, where these do not lie so already */
    float *zeros;  /* a first state */
    int64_t l;     /* the layer that runs */
    /* MANY rows: the layer's inputs turned, lots of (inputs, LOT); of the last two steps what the products of a step
     * read, turned too: h, or the gradients as Wh sees them; (2, D, rows of weights or units, span) */
    float *lots, *turned;
    int64_t span; /* sequences up to a whole vector */
    /* bwd: gradients before the activations, as Wx and as Wh see them (gru: they differ); of c (gru: what goes straight
     * to the h before) of the last two steps; of the layer's inputs; Wh turned; or, of few sequences, what each block
     * of units sends to h of the step before, of the last two steps: (2, D, blocks, n, H). Rows as lists */
    float *dx, *dh, *dcell, *below, *transposed, *parts, *scratch;
    const float **input_rows, **state_rows, **weight_rows, **grad_rows;
    bool streams;        /* diff_weights outgrow the caches */
    int64_t source_step; /* between rows of diff_src; 0: they do not lie at one distance */
} layers;

VF_INLINE float *record_of(const layers *q, int64_t l, int64_t d, int64_t row) {
    return q->save + rnn_at(&q->v, l, d, row) * q->v.record;
}
VF_INLINE float *h_of(const layers *q, int64_t l, int64_t d, int64_t row) {
    return record_of(q, l, d, row) + q->v.states * q->v.H;
}
VF_INLINE const float *weights_of(const layers *q, int64_t l, int64_t d, bool hidden) {
    return (const float *)q->ptr[WEFT_ROLE_WEIGHTS] + rnn_begin(&q->v, l, d) +
           (hidden ? q->v.G * q->v.H * rnn_inputs(&q->v, l) : 0);
}
VF_INLINE const float *bias_of(const layers *q, int64_t l, int64_t d, int hidden) {
    if (!q->p->attr[WEFT_RNN_BIAS]) return NULL;
    return (const float *)q->ptr[WEFT_ROLE_BIAS] + ((l * q->v.D + d) * 2 + hidden) * q->v.G * q->v.H;
}
/* A row of src, dst or their gradients. */
VF_INLINE float *data_of(const layers *q, int role, int64_t row) {
    return (float *)q->ptr[role] + rnn_data_at(&q->v, weft__tensor(q->p, role), row, 0);
}
/* One sequence's state in h0, c0 and the like; zeros where the problem has none. */
VF_INLINE const float *state_of(const layers *q, int role, int64_t l, int64_t d, int64_t b) {
    const weft_tensor *t = weft__tensor(q->p, role);
    return t ? (const float *)q->ptr[role] + rnn_state_at(&q->v, t, l, d, b, 0) : q->zeros;
}
/* The input of layer l at a row. */
VF_INLINE const float *input_of(const layers *q, int64_t l, int64_t row) {
    return l ? q->inputs + row * q->v.D * q->v.P : data_of(q, WEFT_ROLE_SRC, row);
}
/* h, and c of lstm, before step t of sequence b. */
VF_INLINE const float *h_before(const layers *q, int64_t l, int64_t d, int64_t t, int64_t b) {
    const int64_t row = rnn_before(&q->v, d, t, b);
    return row < 0 ? state_of(q, WEFT_ROLE_H0, l, d, b) : h_of(q, l, d, row);
}
VF_INLINE const float *c_before(const layers *q, int64_t l, int64_t d, int64_t t, int64_t b) {
    const int64_t row = rnn_before(&q->v, d, t, b);
    return row < 0 ? state_of(q, WEFT_ROLE_C0, l, d, b) : record_of(q, l, d, row) + 4 * q->v.H;
}

/* Of step parity 0 or 1 and direction d: turned rows, and rows of dcell. */
VF_INLINE float *turned_of(const layers *q, int64_t parity, int64_t d, int64_t width) {
    return q->turned + (parity * q->v.D + d) * width * q->span;
}
VF_INLINE bool is_many(const layers *q) { return q->v.n >= MANY; }

/* `count` of a member's elements in the workspace at `at`, aligned; at NULL: the size alone. */
#define LAYERS_PLACE(member, count) \
    q->member = at ? (void *)(at + used) : NULL, used += (size_t)cpu_round_up((count) * (int64_t)sizeof(*q->member), 64)

/* Blocks of UNITS of every direction: `at` of `blocks` of direction d; a unit of the team is one or several. */
VF_INLINE int64_t layers_blocks(const layers *q) { return q->v.D * cpu_ceil(q->v.H, UNITS); }
VF_INLINE int64_t layers_units(const layers *q) { return WEFT__MIN(layers_blocks(q), TEAM_UNITS); }

/* ---------------------------------------------------------------- products.c */
/* out[j * ldo + i] = sum_k w[i][k] a[j][k] for all rows of weights and n <= SIDE rows of data, contiguous along k. */
#define layers_dots WEFT__ISA_NAME(weft__rnn_dots)
void layers_dots(const float *w, int64_t ldw, int64_t rows, const float *const *a, int64_t n, int64_t k, float *out,
                 int64_t ldo);
/* to[c * ld + i] = from[i][c] for n rows of k; nothing else is written. */
#define layers_turn WEFT__ISA_NAME(weft__rnn_turn)
void layers_turn(const float *const *from, int64_t n, int64_t k, float *to, int64_t ld);
/* out[i * LOT + j] = sum_k w[i][k] turned[k * ld + j] for n <= LOT columns, up to a whole vector. */
#define layers_product WEFT__ISA_NAME(weft__rnn_product)
void layers_product(const float *w, int64_t ldw, int64_t rows, const float *turned, int64_t ld, int64_t n, int64_t k,
                    float *out);
/* c[i][j] = (add ? c[i][j] : 0) + sum_k a[k * step + i * side] b[k][j] for `rows` of c and columns first <= j < last.
 */
#define layers_outer WEFT__ISA_NAME(weft__rnn_outer)
void layers_outer(const float *a, int64_t step, int64_t side, int64_t rows, const float *const *b, int64_t k,
                  int64_t first, int64_t last, float *c, int64_t ldc, bool add);
/* c[i][j] = sum_k a[k][at + i] b[k][j] for count <= GATE_ROWS rows of c, all columns, k of `rows`; stream: past the
 * caches; scratch: WEIGHT_FLOATS. */
#define layers_weights WEFT__ISA_NAME(weft__rnn_weights)
void layers_weights(const float *const *a, int64_t at, int64_t count, const float *const *b, int64_t rows,
                    int64_t columns, float *c, int64_t ldc, bool stream, float *scratch);

/* ---------------------------------------------------------------- wide.c: data of 16 bits */
/* A pass of f32 on the problem with f32 in the places of 16-bit data, in the workspace; and how much that takes, in
 * front of what the pass does. */
#define layers_run_wide WEFT__ISA_NAME(weft__rnn_run_wide)
weft_status layers_run_wide(const weft__exec *e, weft_status (*run)(const weft__exec *e));
#define layers_wide_bytes WEFT__ISA_NAME(weft__rnn_wide_bytes)
size_t layers_wide_bytes(const weft_problem *p);

/* ---------------------------------------------------------------- fwd.c, for both passes */
/* The inputs of layer l > 0: the outputs of every direction below, times the dropout factor. */
#define layers_inputs WEFT__ISA_NAME(weft__rnn_inputs)
void layers_inputs(const layers *q, int64_t l);
/* NULL, or why these kernels do not take it. */
#define layers_refusal WEFT__ISA_NAME(weft__rnn_refusal)
const char *layers_refusal(const weft_problem *p);
#define layers_cost WEFT__ISA_NAME(weft__rnn_cost)
double layers_cost(const weft_problem *p, const weft__hw *hw); /* ns */

#endif
