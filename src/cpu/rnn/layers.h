/* What the passes of the recurrent layers share: the job, where rows and records lie, and two small matrix products.
 *
 * src/ref/rnn.h has the formulas and the layout of weights, biases and records; its functions that only compute places
 * (rows, dropout, the begin of weights) are used here too. A record of a row begins with the gates: the products with
 * the input are put there before the steps, which add those with the state. */
#ifndef WEFT_CPU_RNN_LAYERS_H
#define WEFT_CPU_RNN_LAYERS_H

#include "cpu/frame.h"
#include "cpu/simd/math.h"
#include "ref/rnn.h"

enum { UNITS = 32, SIDE = 4 }; /* hidden units of a slot; rows of a tile */

typedef struct layers {
    rnn v;
    const weft_problem *p;
    void *const *ptr;
    float *save;     /* records of every layer, direction and row */
    float *inputs;   /* of the layer: rows of all the outputs below, where these do not lie so already */
    float *zeros;    /* a first state */
    int64_t l, step; /* what runs */
    /* bwd: gradients before the activations, as Wx and as Wh see them (gru: they differ), of h, of c (gru: what goes
     * straight to the h before) and of the layer's inputs; Wh transposed; rows as lists */
    float *dx, *dh, *dstate, *dcell, *below, *transposed;
    const float **input_rows, **state_rows, **weight_rows;
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

/* ---------------------------------------------------------------- products.c */
/* out[j * ldo + i] = sum_k w[i][k] a[j][k] for all rows of weights and n <= SIDE rows of data, contiguous along k. */
#define layers_dots WEFT__ISA_NAME(weft__rnn_dots)
void layers_dots(const float *w, int64_t ldw, int64_t rows, const float *const *a, int64_t n, int64_t k, float *out,
                 int64_t ldo);
/* c[i][j] = (add ? c[i][j] : 0) + sum_k a[k * step + i * side] b[k][j] for `rows` of c and columns first <= j < last.
 */
#define layers_outer WEFT__ISA_NAME(weft__rnn_outer)
void layers_outer(const float *a, int64_t step, int64_t side, int64_t rows, const float *const *b, int64_t k,
                  int64_t first, int64_t last, float *c, int64_t ldc, bool add);

/* ---------------------------------------------------------------- fwd.c, for both passes */
/* The inputs of layer l > 0: the outputs of every direction below, times the dropout factor. */
#define layers_inputs WEFT__ISA_NAME(weft__rnn_inputs)
void layers_inputs(const layers *q, int64_t l);
/* NULL, or why these kernels do not take it. */
#define layers_refusal WEFT__ISA_NAME(weft__rnn_refusal)
const char *layers_refusal(const weft_problem *p);

#endif
