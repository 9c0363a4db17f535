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

static int64_t draw_column(const weft_problem *p, harness_rng *r) {
    int64_t col = harness_below(r, p->c / p->groups);
    for (int a = 0; a < 3; a++) {
        int64_t tap = harness_below(r, p->kernel[a]);
        if (p->attr[WEFT_SPARSE_STRETCHED])
            col = col * (p->in[a] + p->pad_lo[a] + p->pad_hi[a]) + tap * p->dilation[a];
        else
            col = col * p->kernel[a] + tap;
    }
    return col;
}

static bool fill(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    (void)kind;
    int role = b->tensor.role;
    if (role != WEFT_ROLE_ROWS && role != WEFT_ROLE_COLS) return false;
    harness_rng r = {seed};
    int64_t begin = 0, size = (int64_t)weft__dtype_size(b->tensor.dtype);
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w)) {
        int64_t rest = p->attr[WEFT_SPARSE_NNZ] - begin, left = p->o - w.index[0];
        int64_t v = role == WEFT_ROLE_COLS ? draw_column(p, &r) : left ? begin : begin + rest;
        harness_store(b->tensor.dtype, (char *)b->at + w.offset * size, (double)v);
        if (role == WEFT_ROLE_ROWS && left) begin += harness_below(&r, WEFT__MIN(rest, 2 * rest / left) + 1);
    }
    return true;
}

const harness_generator harness_sparse_conv = {draw, terms, fill, false};
