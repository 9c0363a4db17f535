/* Random problems of the causal convolution and of its update. */
#include "harness.h"

#include <math.h>

enum { PRODUCTS = 60000 }; /* of the reference, which computes dz again for every tap */
static const int widths[] = {4, 4, 4, 4, 3, 2, 1, 5, 6, 7, 8, 31, 64};
static const int tokens[] = {1,  2,  3,  4,  5,  7,  8,  9,  15,  16,  17,  18, 19,
                             20, 31, 32, 33, 48, 63, 64, 65, 127, 128, 129, 130};
static const int channels[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 65};

static bool has_silu(const weft_problem *p) { return weft__has_step(p, WEFT_STEP_SILU); }

static void draw_sizes(weft_problem *p, harness_rng *r, bool usual) {
    p->n = harness_chance(r, 1) ? 0 : 1 + harness_below(r, 3);
    p->c = HARNESS_SIZE(r, channels);
    p->in[2] = harness_chance(r, 1) ? 0 : HARNESS_SIZE(r, tokens);
    p->kernel[2] = usual ? 4 : HARNESS_PICK(r, widths);
    const double back = p->pass == WEFT_PASS_FWD ? 1 : (double)p->kernel[2];
    for (int turn = 0; (double)p->n * (double)p->c * (double)p->in[2] * (double)p->kernel[2] * back > PRODUCTS;
         turn++) {
        int64_t *size = turn % 3 == 0 ? &p->n : turn % 3 == 1 ? &p->c : &p->in[2];
        *size = (*size + 1) / 2;
        if (p->n == 1 && p->c == 1 && p->in[2] == 1) break;
    }
}

static void causal_conv_draw(weft_problem *p, harness_rng *r, bool usual) {
    draw_sizes(p, r, usual);
    p->attr[WEFT_CAUSAL_SEQ_IDX] = harness_chance(r, 20);
    p->attr[WEFT_CAUSAL_H0] = !p->attr[WEFT_CAUSAL_SEQ_IDX] && harness_chance(r, 30);
    p->attr[WEFT_CAUSAL_HN] = !p->attr[WEFT_CAUSAL_SEQ_IDX] && harness_chance(r, 30);
}

/* With |x|, |w|, |b| <= 1 a sum z of k products errs by sqrt(k) roundoffs of at most k + 1; silu's slope, which moves
 * by at most half of that, errs as much, and with it all that dz is multiplied by. */
static double causal_conv_terms(const weft_problem *p, int role) {
    const double k = (double)p->kernel[2], sums = (double)p->n * (double)p->in[2];
    const double own = role == WEFT_ROLE_DIFF_WEIGHTS || role == WEFT_ROLE_DIFF_BIAS ? sums : k;
    const double slope = p->pass != WEFT_PASS_FWD && has_silu(p) ? sqrt(k) * (k + 1) : 0;
    return (sqrt(own) + slope) * (sqrt(own) + slope);
}

/* Of every fourth seed sums so far from 0 that exponentials of them overflow. Forward alone: the bound of the gradient
 * is for small ones. */
static void causal_settle(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    const weft_tensor *t = &b->tensor;
    (void)kind;
    if (p->pass != WEFT_PASS_FWD || t->role != WEFT_ROLE_SRC || seed / 5 % 4) return;
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        char *at = (char *)b->at + w.offset * (int64_t)weft__dtype_size(t->dtype);
        const double x = harness_load(t->dtype, at);
        if (fabs(x) <= 1) harness_store(t->dtype, at, x * 200);
    }
}

const harness_generator harness_causal_conv = {causal_conv_draw, causal_conv_terms, NULL, 0, causal_settle, NULL};

static void causal_update_draw(weft_problem *p, harness_rng *r, bool usual) {
    draw_sizes(p, r, usual);
    if (harness_chance(r, 70)) p->in[2] = 1 + harness_below(r, 5);
    p->n = harness_chance(r, 1) ? 0 : 1 + harness_below(r, 5);
    p->attr[WEFT_CAUSAL_RING] = harness_chance(r, 40);
    p->attr[WEFT_CAUSAL_INDEX] = harness_chance(r, 40);
    p->attr[WEFT_CAUSAL_LEN] = p->kernel[2] - 1 + (harness_chance(r, 50) ? 0 : harness_below(r, 9));
    if (p->attr[WEFT_CAUSAL_RING] && !p->attr[WEFT_CAUSAL_LEN]) p->attr[WEFT_CAUSAL_LEN] = 1;
    if (p->attr[WEFT_CAUSAL_INDEX]) p->attr[WEFT_CAUSAL_ROWS] = p->n + harness_below(r, 4);
}

static double causal_update_terms(const weft_problem *p, int role) {
    return role == WEFT_ROLE_STATE ? 1 : (double)p->kernel[2];
}

/* Some rows are none of the state's. */
static void causal_update_spoil(const weft_problem *p, harness_buffer *b, uint64_t seed) {
    harness_rng r = {harness_mix(seed, 1)};
    if (b->tensor.role != WEFT_ROLE_INDEX) return;
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        if (harness_chance(&r, 10))
            ((int32_t *)b->at)[w.offset] = harness_chance(&r, 50) ? (int32_t)p->attr[WEFT_CAUSAL_ROWS] : INT32_MIN;
}

const harness_generator harness_causal_update = {
    causal_update_draw, causal_update_terms, causal_update_spoil, 0, causal_settle, NULL};
