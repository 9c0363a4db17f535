/* Random problems of the recurrent layers: short and narrow, for the steps multiply; packed sequences of falling
 * length. */
#include <math.h>

#include "harness.h"

static void draw(weft_problem *p, harness_rng *r, bool usual) {
    static const int sizes[] = {1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 24, 33};
    int64_t *attr = p->attr;
    attr[WEFT_RNN_STEPS] = 1 + harness_below(r, 5);
    attr[WEFT_RNN_LAYERS] = harness_chance(r, 70) ? 1 : 2;
    attr[WEFT_RNN_BIDIRECTIONAL] = harness_chance(r, 40);
    p->n = harness_chance(r, 3) ? 0 : harness_chance(r, 30) ? 5 + harness_below(r, 16) : 1 + harness_below(r, 4);
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

/* The bound of recurrent layers. A recurrence multiplies what it is wrong by: with any weights no bound holds for long
 * sequences. The random layers are such that their condition is known, and the general bound of harness.c follows.
 *
 * Forward. |weights| <= 1 / (2 G max(inputs, H)), |biases| <= 1/4. Then each row of Wx and of Wh, and each column of
 * all gates, has a sum of magnitudes of at most 1/2 (G = 1), 1/6 (gru) or 1/8 (lstm), sums before activations stay
 * below 1.5, gates below 0.82, and the map of a step from the state before, (h), or (h, c) of lstm, does not expand
 * differences: sigmoid has the slope 1/4, tanh and relu 1. So errors of steps and layers add up, they do not multiply:
 * after T steps and L layers at most T L times what one step adds, which is (inputs + H + a few) u times the sum before
 * the activation; that is at most 4 times the largest output, the factor that these kernels declare. M is the largest
 * value of the output.
 *
 * Gradient. The records of the forward pass are given, so it is a linear recurrence with known factors, all of them
 * >= 0 in the run on magnitudes: gates lie in 0.1 .. 0.9 (alike in both runs), |g|, |m|, |h| of rnn <= 0.9, and m of
 * gru is negative there, so that h' - m is |h'| + |m|. Slopes 1 - y and 1 - y^2 are then right to a few roundings.
 * Every path from an input to an output is a product of factors that are right to a few roundings each, and M bounds
 * the sum of all paths, element by element: the bound holds with L = the roundings along the longest path, whatever the
 * weights are. */
enum { CELL = 16 }; /* roundings of one cell beside its sums: activations, products of gates */

static double terms(const weft_problem *p, int role) {
    const double steps = (double)(p->attr[WEFT_RNN_STEPS] * p->attr[WEFT_RNN_LAYERS]), H = (double)p->o;
    const double both = (double)(1 + p->attr[WEFT_RNN_BIDIRECTIONAL]), rows = (double)(p->attr[WEFT_RNN_STEPS] * p->n);
    const double inputs = p->attr[WEFT_RNN_LAYERS] > 1 ? fmax((double)p->c, both * H) : (double)p->c;
    if (p->pass == WEFT_PASS_FWD) return steps * (inputs + H + CELL);
    const double gates = H * (p->op == WEFT_OP_LSTM ? 4 : p->op == WEFT_OP_GRU ? 3 : 1);
    const double path = steps * (gates + CELL) + (double)p->attr[WEFT_RNN_LAYERS] * both * gates;
    return path + (role == WEFT_ROLE_DIFF_WEIGHTS || role == WEFT_ROLE_DIFF_BIAS ? rows : 0);
}

/* A number of a record, from a real x or its magnitude: state 0.. is a gate, or c, q, h. */
static double recorded(const weft_problem *p, int64_t state, double x, harness_kind kind) {
    const bool lstm = p->op == WEFT_OP_LSTM, gru = p->op == WEFT_OP_GRU;
    if ((lstm && (state < 2 || state == 3)) || (gru && state < 2)) return 0.1 + 0.8 * fabs(x);
    if (lstm && state == 2) return 0.9 * x;
    if (gru && state == 2)
        return kind == HARNESS_MAGNITUDES || kind == HARNESS_SPECIAL_MAGNITUDES ? -0.9 * fabs(x) : 0.9 * x;
    if (!lstm && !gru) return 0.9 * x; /* h, the result of the activation */
    return x;
}

static void settle(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    (void)seed;
    const weft_tensor *t = &b->tensor;
    const int64_t lstm = p->op == WEFT_OP_LSTM, gru = p->op == WEFT_OP_GRU, H = p->o;
    const int64_t P = p->attr[WEFT_RNN_PROJECTION] ? p->attr[WEFT_RNN_PROJECTION] : H;
    const int64_t record = (lstm ? 5 : gru ? 4 : 0) * H + P;
    const double inputs = fmax((double)p->c, (double)(H * (1 + p->attr[WEFT_RNN_BIDIRECTIONAL])));
    const double factor = t->role == WEFT_ROLE_WEIGHTS ? 0.5 / ((double)(lstm  ? 4
                                                                         : gru ? 3
                                                                               : 1) *
                                                                inputs)
                          : t->role == WEFT_ROLE_BIAS  ? 0.25
                                                       : 1;
    if (factor == 1 && t->role != WEFT_ROLE_RESERVE) return;
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        char *at = (char *)b->at + w.offset * (int64_t)weft__dtype_size(t->dtype);
        const double x = harness_load(t->dtype, at);
        harness_store(t->dtype, at, factor != 1 ? x * factor : recorded(p, w.index[0] % record / H, x, kind));
    }
}

const harness_generator harness_rnn = {draw, terms, NULL, WEFT__PASS_SET(FWD), settle, NULL};
