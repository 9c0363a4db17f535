/* Random problems of convolution with sparse weights: the geometry of convolution, from no weight to all, rows of
 * uneven length. */
#include "harness.h"

enum { VISITS = 400000 }; /* of entries by the scan for diff_src, about */

static int64_t columns(const weft_problem *p) { return p->c / p->groups * p->kernel[0] * p->kernel[1] * p->kernel[2]; }

static void draw(weft_problem *p, harness_rng *r, bool usual) {
    static const int percent[] = {0, 5, 10, 10, 30, 40, 100};
    harness_conv.draw(p, r, usual);
    int64_t elements = p->n * (p->c / p->groups) * p->in[0] * p->in[1] * p->in[2];
    int64_t nnz = p->o * columns(p) * HARNESS_PICK(r, percent) / 100;
    p->attr[WEFT_SPARSE_NNZ] = WEFT__MIN(nnz, VISITS / (elements + 1));
    p->attr[WEFT_SPARSE_STRETCHED] = harness_chance(r, 40);
}

/* A row may hold every entry, as equal columns add up. */
static double terms(const weft_problem *p, int role) {
    return role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_SRC ? (double)(1 + p->attr[WEFT_SPARSE_NNZ])
                                                               : harness_conv.terms(p, role);
}

/* Of some calls the first entries belong to no row. */
static void spoil(const weft_problem *p, harness_buffer *b, uint64_t seed) {
    const weft_tensor *t = &b->tensor;
    if (t->role != WEFT_ROLE_ROWS || p->device != WEFT_DEVICE_CPU || !p->attr[WEFT_SPARSE_NNZ] || seed % 3) return;
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        char *at = (char *)b->at + w.offset * (int64_t)weft__dtype_size(t->dtype);
        harness_store(t->dtype, at, WEFT__MAX(1, harness_load(t->dtype, at)));
    }
}

const harness_generator harness_sparse_conv = {draw, terms, spoil, 0, NULL, NULL};
