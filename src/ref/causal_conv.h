/* Short causal convolution, the reference. A row is one channel of one sequence; v is its tokens, with those of h0 in
 * the k - 1 places before t = 0 (nothing stands there without h0: these taps are left out).
 *   z[t]         = bias + sum_j w[j] v[t - (k-1) + j]      taps of another seq_idx are left out
 *   dst[t]       = silu(z[t]), or z[t]; 0 where seq_idx is negative
 *   hn           = the last k - 1 tokens of v, 0 where there are fewer
 *   dz[t]        = diff_dst[t] silu'(z[t]); 0 where seq_idx is negative
 *   diff_v[t]    = sum_j w[j] dz[t + (k-1) - j] + the element of diff_hn that holds v[t]: diff_src, before 0 diff_h0
 *   diff_weights = sum over n, t of dz[t] v[t - (k-1) + j];  diff_bias = sum over n, t of dz[t]
 * causal_update computes dst of new tokens behind those of a state, and moves the state on: shifted, so that its last
 * tokens are the newest, or as a ring, written from lengths mod len on. index names a row's state; one that is not in
 * the state gives 0 and moves nothing. */
#ifndef WEFT_REF_CAUSAL_CONV_H
#define WEFT_REF_CAUSAL_CONV_H

#include "item.h"

WEFT_ITEM int causal_has(const weft_problem *p, int role) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == role) return 1;
    return 0;
}

WEFT_ITEM int causal_step(const weft_problem *p, int kind) {
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == kind) return 1;
    return 0;
}

/* Element (n, c, at) of a tensor n c 1 1 w, or c 1 1 1 w. */
WEFT_ITEM int64_t causal_place(const weft_tensor *t, int64_t n, int64_t c, int64_t at) {
    return n * t->strides[0] + c * t->strides[1] + at * t->strides[4];
}

WEFT_ITEM double causal_get(const weft_problem *p, void *const *ptr, int role, int64_t n, int64_t c, int64_t at) {
    const weft_tensor *t = item_tensor(p, role);
    return item_load(t->dtype, ptr[role], causal_place(t, n, c, at));
}

WEFT_ITEM double causal_weight(const weft_problem *p, void *const *ptr, int64_t c, int64_t j) {
    return causal_get(p, ptr, WEFT_ROLE_WEIGHTS, c, 0, j);
}

/* The sequence of token t; all are 0 without seq_idx. */
WEFT_ITEM int64_t causal_seq(const weft_problem *p, void *const *ptr, int64_t n, int64_t t) {
    if (!p->attr[WEFT_CAUSAL_SEQ_IDX]) return 0;
    const weft_tensor *s = item_tensor(p, WEFT_ROLE_SEQ_IDX);
    return item_whole(s->dtype, ptr[WEFT_ROLE_SEQ_IDX], causal_place(s, n, 0, t));
}

/* Is there a token at `from` that the token t sees? */
WEFT_ITEM int causal_sees(const weft_problem *p, void *const *ptr, int64_t n, int64_t t, int64_t from) {
    if (from < 0) return p->attr[WEFT_CAUSAL_H0] != 0;
    return from < p->in[2] && causal_seq(p, ptr, n, t) == causal_seq(p, ptr, n, from);
}

WEFT_ITEM double causal_token(const weft_problem *p, void *const *ptr, int64_t n, int64_t c, int64_t t) {
    if (t < 0) return causal_get(p, ptr, WEFT_ROLE_H0, n, c, t + p->kernel[2] - 1);
    return causal_get(p, ptr, WEFT_ROLE_SRC, n, c, t);
}

WEFT_ITEM double causal_sum(const weft_problem *p, void *const *ptr, int64_t n, int64_t c, int64_t t) {
    double sum = 0;
    for (int64_t j = 0; j < p->kernel[2]; j++) {
        int64_t from = t - (p->kernel[2] - 1) + j;
        if (causal_sees(p, ptr, n, t, from)) sum += causal_weight(p, ptr, c, j) * causal_token(p, ptr, n, c, from);
    }
    return sum;
}

/* dz of a token whose seq_idx is not negative. */
WEFT_ITEM double causal_dz(const weft_problem *p, void *const *ptr, int64_t n, int64_t c, int64_t t) {
    double dy = causal_get(p, ptr, WEFT_ROLE_DIFF_DST, n, c, t), z, sigmoid;
    if (!causal_step(p, WEFT_STEP_SILU)) return dy;
    z = causal_sum(p, ptr, n, c, t);
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_BIAS) z = item_step(p, ptr, &p->step[i], c, z);
    sigmoid = 1 / (1 + exp(-z));
    return dy * (sigmoid * (1 + z * (1 - sigmoid)));
}

WEFT_ITEM double causal_diff_token(const weft_problem *p, void *const *ptr, int64_t n, int64_t c, int64_t t) {
    int64_t last = p->kernel[2] - 1, kept = t - p->in[2] + last;
    double sum = 0;
    for (int64_t j = 0; j <= last; j++) {
        int64_t to = t + last - j;
        if (to < 0 || to >= p->in[2] || causal_seq(p, ptr, n, to) < 0) continue;
        if (causal_sees(p, ptr, n, to, t)) sum += causal_weight(p, ptr, c, j) * causal_dz(p, ptr, n, c, to);
    }
    if (p->attr[WEFT_CAUSAL_HN] && kept >= 0) sum += causal_get(p, ptr, WEFT_ROLE_DIFF_HN, n, c, kept);
    return sum;
}

/* j < 0: of the bias. */
WEFT_ITEM double causal_diff_weight(const weft_problem *p, void *const *ptr, int64_t c, int64_t j) {
    double sum = 0;
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t t = 0; t < p->in[2]; t++) {
            int64_t from = t - (p->kernel[2] - 1) + j;
            if (causal_seq(p, ptr, n, t) < 0 || (j >= 0 && !causal_sees(p, ptr, n, t, from))) continue;
            sum += causal_dz(p, ptr, n, c, t) * (j < 0 ? 1 : causal_token(p, ptr, n, c, from));
        }
    return sum;
}

WEFT_ITEM double causal_output(const weft_problem *p, void *const *ptr, int role, const int64_t *at) {
    int64_t last = p->kernel[2] - 1, from;
    switch (role) {
    case WEFT_ROLE_DST:
        if (causal_seq(p, ptr, at[0], at[4]) < 0) return 0;
        return item_epilogue(p, ptr, at[1], causal_sum(p, ptr, at[0], at[1], at[4]));
    case WEFT_ROLE_HN:
        from = p->in[2] - last + at[4];
        return from < 0 && !p->attr[WEFT_CAUSAL_H0] ? 0 : causal_token(p, ptr, at[0], at[1], from);
    case WEFT_ROLE_DIFF_SRC:
        return causal_diff_token(p, ptr, at[0], at[1], at[4]);
    case WEFT_ROLE_DIFF_H0:
        return causal_diff_token(p, ptr, at[0], at[1], at[4] - last);
    case WEFT_ROLE_DIFF_WEIGHTS:
        return causal_diff_weight(p, ptr, at[0], at[4]);
    default:
        return causal_diff_weight(p, ptr, at[0], -1);
    }
}

WEFT_ITEM int causal_is_output(int role) {
    return role == WEFT_ROLE_DST || role == WEFT_ROLE_HN || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_H0 ||
           role == WEFT_ROLE_DIFF_WEIGHTS || role == WEFT_ROLE_DIFF_BIAS;
}

/* Each phase fills one output: those of the pass in role order. */
WEFT_ITEM const weft_tensor *causal_conv_tensor(const weft_problem *p, int phase) {
    for (int i = 0; i < p->ntensors; i++)
        if (causal_is_output(p->tensor[i].role) && phase-- == 0) return &p->tensor[i];
    return p->tensor;
}

WEFT_ITEM int causal_conv_phases(const weft_problem *p) {
    int phases = 0;
    for (int i = 0; i < p->ntensors; i++) phases += causal_is_output(p->tensor[i].role);
    return phases;
}

WEFT_ITEM int64_t causal_conv_count(const weft_problem *p, int phase) {
    return item_numel(causal_conv_tensor(p, phase));
}

WEFT_ITEM void causal_conv_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    const weft_tensor *t = causal_conv_tensor(p, phase);
    int64_t at[5], offset = item_at(t, i, at);
    (void)workspace;
    item_out(p, t, ptr[t->role], offset, causal_output(p, ptr, t->role, at));
}

/* ---------------------------------------------------------------- causal_update */
/* The row of the state that sequence n has; -1: none. */
WEFT_ITEM int64_t causal_row(const weft_problem *p, void *const *ptr, int64_t n) {
    if (!p->attr[WEFT_CAUSAL_INDEX]) return n;
    const weft_tensor *s = item_tensor(p, WEFT_ROLE_INDEX);
    int64_t row = item_whole(s->dtype, ptr[WEFT_ROLE_INDEX], n * s->strides[0]);
    return row >= 0 && row < p->attr[WEFT_CAUSAL_ROWS] ? row : -1;
}

/* Where in the state the token t of sequence n stands or will stand, the first new one being 0: shifted, a place of
 * the state before it moves. */
WEFT_ITEM int64_t causal_held(const weft_problem *p, void *const *ptr, int64_t n, int64_t t) {
    int64_t len = p->attr[WEFT_CAUSAL_LEN], at;
    if (!p->attr[WEFT_CAUSAL_RING]) return len + t;
    const weft_tensor *s = item_tensor(p, WEFT_ROLE_LENGTHS);
    at = (item_whole(s->dtype, ptr[WEFT_ROLE_LENGTHS], n * s->strides[0]) % len + t % len) % len;
    return at < 0 ? at + len : at;
}

WEFT_ITEM double causal_next(const weft_problem *p, void *const *ptr, int64_t n, int64_t row, int64_t c, int64_t t) {
    double sum = 0, v;
    for (int64_t j = 0; j < p->kernel[2]; j++) {
        int64_t from = t - (p->kernel[2] - 1) + j;
        if (from < 0)
            v = causal_get(p, ptr, WEFT_ROLE_STATE, row, c, causal_held(p, ptr, n, from));
        else
            v = causal_get(p, ptr, WEFT_ROLE_SRC, n, c, from);
        sum += causal_weight(p, ptr, c, j) * v;
    }
    return item_epilogue(p, ptr, c, sum);
}

/* One channel of one row, from its first place to its last: a shift reads ahead of what it writes. */
WEFT_ITEM void causal_move(const weft_problem *p, void *const *ptr, int64_t n, int64_t row, int64_t c) {
    const weft_tensor *state = item_tensor(p, WEFT_ROLE_STATE);
    int64_t len = p->attr[WEFT_CAUSAL_LEN], many = p->in[2], ring = p->attr[WEFT_CAUSAL_RING];
    for (int64_t i = 0; i < (ring ? many : len) && len; i++) {
        int64_t from = ring ? i : i + many - len, to = ring ? causal_held(p, ptr, n, i) : i;
        double v = from < 0 ? causal_get(p, ptr, WEFT_ROLE_STATE, row, c, len + from)
                            : causal_get(p, ptr, WEFT_ROLE_SRC, n, c, from);
        item_store(state->dtype, ptr[WEFT_ROLE_STATE], causal_place(state, row, c, to), v);
    }
}

WEFT_ITEM int causal_update_phases(const weft_problem *p) {
    (void)p;
    return 2;
}

WEFT_ITEM int64_t causal_update_count(const weft_problem *p, int phase) {
    return phase ? p->n * p->c : p->n * p->c * p->in[2];
}

WEFT_ITEM void causal_update_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace;
    if (phase) {
        int64_t row = causal_row(p, ptr, i / p->c);
        if (row >= 0) causal_move(p, ptr, i / p->c, row, i % p->c);
        return;
    }
    const weft_tensor *dst = item_tensor(p, WEFT_ROLE_DST);
    int64_t at[5], offset = item_at(dst, i, at), row = causal_row(p, ptr, at[0]);
    item_out(p, dst, ptr[WEFT_ROLE_DST], offset, row < 0 ? 0 : causal_next(p, ptr, at[0], row, at[1], at[4]));
}

#endif
