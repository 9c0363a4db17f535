/* Random problems of dgmm and cdgmm. */
#include "harness.h"

static void draw(weft_problem *p, harness_rng *r, bool usual) {
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65};
    (void)usual;
    p->n = harness_chance(r, 2) ? 0 : 1 + harness_below(r, 4);
    p->attr[WEFT_DGMM_ROWS] = harness_chance(r, 1) ? 0 : HARNESS_SIZE(r, sizes);
    p->attr[WEFT_DGMM_COLS] = harness_chance(r, 1) ? 0 : HARNESS_SIZE(r, sizes);
    p->attr[WEFT_DGMM_SIDE] = harness_chance(r, 50);
}

/* Half a complex number is the sum of two products. */
static double terms(const weft_problem *p, int role) {
    int64_t parts = p->op == WEFT_OP_CDGMM ? 2 : 1;
    if (role != WEFT_ROLE_DIFF_WEIGHTS) return (double)parts;
    return (double)(parts * p->n * p->attr[p->attr[WEFT_DGMM_SIDE] ? WEFT_DGMM_ROWS : WEFT_DGMM_COLS]);
}

const harness_generator harness_dgmm = {draw, terms, NULL, 0, NULL, NULL};
/* A part of a complex product is a difference of products. */
const harness_generator harness_cdgmm = {draw, terms, NULL, HARNESS_EVERY_PASS, NULL, NULL};
