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

/* Offsets of the steps' rows: all n sequences at the first step, then never more than before, `rows` in all. */
static bool fill(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    (void)kind;
    if (b->tensor.role != WEFT_ROLE_LENGTHS) return false;
    harness_rng r = {seed};
    int64_t begin = 0, rows = p->attr[WEFT_RNN_ROWS], alive = p->n;
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w)) {
        int64_t t = w.index[0], left = p->attr[WEFT_RNN_STEPS] - t, rest = rows - begin;
        harness_store(b->tensor.dtype, (char *)b->at + w.offset * (int64_t)sizeof(int64_t), (double)begin);
        if (left == 0) break;
        int64_t least = (rest + left - 1) / left; /* fewer now would leave more than the later steps can take */
        if (t) alive = least + harness_below(&r, WEFT__MIN(alive, rest) - least + 1);
        begin += alive;
    }
    return true;
}

const harness_generator harness_rnn = {draw, terms, fill, false};
