/* Random problems of softmax, cross entropy, batch norm and LRN, with labels that are no
 * class. */
#include "harness.h"

#include <math.h>

enum { ELEMENTS = 6000 };

/* ---------------------------------------------------------------- softmax, log_softmax */
static void softmax_draw(weft_problem *p, harness_rng *r, bool usual) {
    (void)usual;
    harness_draw_data(p, r, ELEMENTS);
}

/* Logits as they come in practice, most of them small: all of them large, some, or some left out by -infinity, here the
 * first half of the channels. The exponential of one that is not the greatest overflows. */
enum { SMALL, LARGE, SOME_LARGE, MASKED };
static void settle_logits(harness_buffer *b, harness_kind kind, int how, uint64_t seed) {
    harness_rng r = {harness_mix(seed, 2)};
    const bool signs = kind == HARNESS_REALS || kind == HARNESS_SPECIALS;
    const weft_tensor *t = &b->tensor;
    if (how == SMALL) return;
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        char *at = (char *)b->at + w.offset * (int64_t)weft__dtype_size(t->dtype);
        const bool chosen = harness_chance(&r, how == LARGE ? 100 : 6), first = w.index[1] < t->dims[1] / 2;
        const double x = harness_load(t->dtype, at);
        if (how == MASKED && (first || (chosen && w.index[1] + 1 < t->dims[1])))
            harness_store(t->dtype, at, -(double)INFINITY);
        else if (how != MASKED && chosen && x < 0x1p10 && x > -0x1p10) /* a repeated axis: not twice */
            harness_store(t->dtype, at, signs || x == 0 ? x * 0x1p9 : fabs(x) * 0x1p9);
    }
}

static void softmax_settle(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    if (p->pass == WEFT_PASS_FWD) settle_logits(b, kind, (int)(seed / 5 % 4), seed);
}

/* The sum of c exponentials: roundings of rms u / sqrt(3) of partial sums that grow evenly come to sqrt(c) u / 3, and
 * 8 times that holds as in harness.c. Kernels declare the factor 4, so a quarter of it stands here, beside the five
 * operations of an element. */
static double softmax_terms(const weft_problem *p, int role) {
    (void)role;
    return 2.5 + (p->pass == WEFT_PASS_FWD ? sqrt((double)p->c) * 2 / 3 : 0);
}

const harness_generator harness_softmax = {softmax_draw, softmax_terms, NULL, HARNESS_EVERY_PASS, softmax_settle, NULL};

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

/* Some labels are no class at all, some only by their high half. */
static void cross_entropy_spoil(const weft_problem *p, harness_buffer *b, uint64_t seed) {
    const int64_t far = (int64_t)1 << 32, ignored = p->attr[WEFT_CE_IGNORE];
    const int64_t bad[] = {p->c, INT64_MIN, -1, INT64_MAX, far, far + p->c - 1, ignored + far, ignored - far};
    harness_rng r = {harness_mix(seed, 1)};
    if (b->tensor.dtype != WEFT_DTYPE_I64) return;
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        if (harness_chance(&r, 5)) ((int64_t *)b->at)[w.offset] = HARNESS_PICK(&r, bad);
}

static void cross_entropy_settle(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    const int how = (int)(seed / 5 % 4);
    if (p->pass != WEFT_PASS_FWD || b->tensor.role != WEFT_ROLE_SRC || b->tensor.dtype == WEFT_DTYPE_F16) return;
    if (how != MASKED || p->math == WEFT_MATH_STRICT) settle_logits(b, kind, how, seed);
}

const harness_generator harness_cross_entropy = {cross_entropy_draw,   NULL, cross_entropy_spoil, HARNESS_EVERY_PASS,
                                                 cross_entropy_settle, NULL};

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

/* Of every third seed the mean is large beside the deviation. */
static void batch_norm_settle(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    const weft_tensor *t = &b->tensor;
    const double mean = t->dtype == WEFT_DTYPE_F32 || t->dtype == WEFT_DTYPE_F64 ? 1000 : 8;
    (void)kind;
    if (p->pass != WEFT_PASS_FWD || !p->attr[WEFT_BN_TRAIN] || t->role != WEFT_ROLE_SRC || seed / 5 % 3) return;
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        char *at = (char *)b->at + w.offset * (int64_t)weft__dtype_size(t->dtype);
        const double x = harness_load(t->dtype, at);
        if (!(fabs(x) > 1)) harness_store(t->dtype, at, x + mean);
    }
}

const harness_generator harness_batch_norm = {batch_norm_draw, NULL, NULL, HARNESS_EVERY_PASS, batch_norm_settle, NULL};

/* ---------------------------------------------------------------- clip */
static void clip_draw(weft_problem *p, harness_rng *r, bool usual) {
    static const double lo[] = {0, -1, 0.1, -0.7, 0.3, -0.3}, width[] = {0.5, 1, 6, 0.3, 0.1};
    (void)usual;
    harness_draw_data(p, r, ELEMENTS);
    p->real[WEFT_CLIP_LO] = HARNESS_PICK(r, lo);
    p->real[WEFT_CLIP_HI] = p->real[WEFT_CLIP_LO] + HARNESS_PICK(r, width);
}

/* Results of a clip lie at its bounds more often than not: as near as their type comes, above or below. */
static void clip_settle(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    harness_rng r = {harness_mix(seed, 2)};
    if (kind != HARNESS_REALS && kind != HARNESS_SPECIALS) return;
    if (b->tensor.role == WEFT_ROLE_DIFF_DST) return;
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        if (harness_chance(&r, 25))
            harness_store(b->tensor.dtype, (char *)b->at + w.offset * (int64_t)weft__dtype_size(b->tensor.dtype),
                          p->real[harness_chance(&r, 50) ? WEFT_CLIP_LO : WEFT_CLIP_HI]);
}

const harness_generator harness_clip = {clip_draw, NULL, NULL, 0, clip_settle, NULL};

/* ---------------------------------------------------------------- lrn */
static void lrn_draw(weft_problem *p, harness_rng *r, bool usual) {
    static const double alpha[] = {1e-4, 1, 0.3}, beta[] = {0.75, 0.5, 1, 2}, k[] = {1, 2, 0.5};
    harness_draw_data(p, r, ELEMENTS / 4);
    p->attr[WEFT_LRN_SIZE] = usual ? 5 : 1 + harness_below(r, 9);
    p->real[WEFT_LRN_ALPHA] = HARNESS_PICK(r, alpha);
    p->real[WEFT_LRN_BETA] = HARNESS_PICK(r, beta);
    p->real[WEFT_LRN_K] = HARNESS_PICK(r, k);
}

const harness_generator harness_lrn = {lrn_draw, NULL, NULL, HARNESS_EVERY_PASS, NULL, NULL};
