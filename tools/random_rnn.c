/* Random problems of the recurrent layers: short and narrow, for the steps multiply; packed sequences of falling
 * length. */
#include "harness.h"

static void draw(weft_problem *p, harness_rng *r, bool usual) {
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 33};
    int64_t *attr = p->attr;
    attr[WEFT_RNN_STEPS] = 1 + harness_below(r, 5);
    attr[WEFT_RNN_LAYERS] = harness_chance(r, 70) ? 1 : 2;
    attr[WEFT_RNN_BIDIRECTIONAL] = harness_chance(r, 40);
    p->n = harness_chance(r, 3) ? 0 : 1 + harness_below(r, 4);
    p->c = HARNESS_PICK(r, sizes);
    p->o = HARNESS_PICK(r, sizes);
    attr[WEFT_RNN_PROJECTION] =
        p->op == WEFT_OP_LSTM && p->o > 1 && harness_chance(r, 30) ? 1 + harness_below(r, p->o - 1) : 0;
    attr[WEFT_RNN_BIAS] = harness_chance(r, 75);
    attr[WEFT_RNN_STATE] = harness_chance(r, 60);
    attr[WEFT_RNN_TRAIN] = p->pass == WEFT_PASS_BWD || harness_chance(r, 50);
    attr[WEFT_RNN_SEED] = harness_below(r, 1000);
    p->real[WEFT_RNN_DROPOUT] = usual || harness_chance(r, 60) ? 0 : 0.25 * (double)harness_below(r, 5);
    int64_t all = attr[WEFT_RNN_STEPS] * p->n;
    attr[WEFT_RNN_ROWS] = all && harness_chance(r, 30) ? p->n + harness_below(r, all - p->n + 1) : 0;
}

/* Steps feed steps: the longest chain of products from an input to an output. */
static double terms(const weft_problem *p, int role) {
    double step = (double)(p->c + 2 * p->o + 2), chain = (double)(p->attr[WEFT_RNN_STEPS] * p->attr[WEFT_RNN_LAYERS]);
    (void)role;
    return step * chain * (double)WEFT__MAX(1, p->n);
}

const harness_generator harness_rnn = {draw, terms, NULL, false};
