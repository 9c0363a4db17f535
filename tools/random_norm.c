/* Random problems of softmax, cross entropy, batch norm and LRN, with labels that are no
 * class. */
#include "harness.h"

enum { ELEMENTS = 6000 };

/* ---------------------------------------------------------------- softmax, log_softmax */
static void softmax_draw(weft_problem *p, harness_rng *r, bool usual) {
    (void)usual;
    harness_draw_data(p, r, ELEMENTS);
}

const harness_generator harness_softmax = {softmax_draw, NULL, NULL, HARNESS_EVERY_PASS, NULL};

/* ---------------------------------------------------------------- cross_entropy */
static void cross_entropy_draw(weft_problem *p, harness_rng *r, bool usual) {
    static const double smooth[] = {0, 0, 0.1, 0.75, 1};
    harness_draw_data(p, r, ELEMENTS);
    p->attr[WEFT_CE_PROBABILITIES] = !usual && harness_chance(r, 50);
    p->attr[WEFT_CE_WEIGHTED] = harness_chance(r, 50);
    p->attr[WEFT_CE_IGNORE] = harness_chance(r, 50) ? -100 : harness_below(r, p->c);
    p->attr[WEFT_CE_REDUCTION] = harness_below(r, 3);
    p->real[WEFT_CE_SMOOTHING] = HARNESS_PICK(r, smooth);
}

/* Some labels are no class at all. */
static void cross_entropy_spoil(const weft_problem *p, harness_buffer *b, uint64_t seed) {
    harness_rng r = {harness_mix(seed, 1)};
    if (b->tensor.dtype != WEFT_DTYPE_I64) return;
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        if (harness_chance(&r, 5)) ((int64_t *)b->at)[w.offset] = harness_chance(&r, 50) ? p->c : INT64_MIN;
}

const harness_generator harness_cross_entropy = {cross_entropy_draw, NULL, cross_entropy_spoil, HARNESS_EVERY_PASS,
                                                 NULL};

/* ---------------------------------------------------------------- batch_norm */
static void batch_norm_draw(weft_problem *p, harness_rng *r, bool usual) {
    static const double momentum[] = {0.1, 0.1, 0, 1, 0.75};
    (void)usual;
    harness_draw_data(p, r, ELEMENTS);
    p->attr[WEFT_BN_TRAIN] = harness_chance(r, 60);
    p->attr[WEFT_BN_AFFINE] = harness_chance(r, 60);
    p->attr[WEFT_BN_TRACK] = !p->attr[WEFT_BN_TRAIN] || harness_chance(r, 60);
    p->real[WEFT_BN_EPS] = harness_chance(r, 60) ? 1e-5 : 0.125;
    p->real[WEFT_BN_MOMENTUM] = HARNESS_PICK(r, momentum);
    if (p->n == 1 && p->in[0] * p->in[1] * p->in[2] == 1) p->n = 2;
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_CLIP) p->step[i] = (weft_step){.kind = WEFT_STEP_RELU}; /* the one it takes */
}

const harness_generator harness_batch_norm = {batch_norm_draw, NULL, NULL, HARNESS_EVERY_PASS, NULL};

/* ---------------------------------------------------------------- lrn */
static void lrn_draw(weft_problem *p, harness_rng *r, bool usual) {
    static const double alpha[] = {1e-4, 1, 0.3}, beta[] = {0.75, 0.5, 1, 2}, k[] = {1, 2, 0.5};
    harness_draw_data(p, r, ELEMENTS / 4);
    p->attr[WEFT_LRN_SIZE] = usual ? 5 : 1 + harness_below(r, 9);
    p->real[WEFT_LRN_ALPHA] = HARNESS_PICK(r, alpha);
    p->real[WEFT_LRN_BETA] = HARNESS_PICK(r, beta);
    p->real[WEFT_LRN_K] = HARNESS_PICK(r, k);
}

const harness_generator harness_lrn = {lrn_draw, NULL, NULL, HARNESS_EVERY_PASS, NULL};
