/* Random problems of partial convolution: the geometry of convolution, every kind of mask, and sums that a mask can
 * give. */
#include "harness.h"

/* Any geometry but one that leaves nothing of dst; smaller, since dst is larger than src. */
static void transpose(weft_problem *p, harness_rng *r) {
    p->attr[WEFT_PARTIAL_TRANSPOSED] = 1;
    for (int a = 3 - p->rank; a < 3; a++) {
        p->in[a] = WEFT__MAX(1, WEFT__MIN(p->in[a], 12));
        p->stride[a] = WEFT__MIN(p->stride[a], 2);
        int64_t reach = (p->in[a] - 1) * p->stride[a] + p->dilation[a] * (p->kernel[a] - 1) + 1;
        if (reach <= p->pad_lo[a] + p->pad_hi[a]) p->pad_lo[a] = p->pad_hi[a] = 0;
        p->attr[WEFT_PARTIAL_OUTPAD + a] =
            harness_chance(r, 50) ? 0 : harness_below(r, WEFT__MAX(p->stride[a], p->dilation[a]));
    }
}

static void draw(weft_problem *p, harness_rng *r, bool usual) {
    harness_conv.draw(p, r, usual);
    p->attr[WEFT_PARTIAL_MASK] = harness_chance(r, usual ? 80 : 40) ? 1 : harness_below(r, 3);
    p->attr[WEFT_PARTIAL_SHARED] = harness_chance(r, 20);
    p->attr[WEFT_PARTIAL_BIASED] = harness_chance(r, 30);
    if (!usual && harness_chance(r, 40)) transpose(p, r);
}

static double terms(const weft_problem *p, int role) {
    return harness_conv.terms(p, role == WEFT_ROLE_NEW_MASK || role == WEFT_ROLE_SUMS ? WEFT_ROLE_DST : role);
}

/* Holes, ones, and for float masks some quarters between: the same for every kind of data, as masks are never
 * negative. */
static bool fill(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    (void)kind;
    int role = b->tensor.role;
    if (role != WEFT_ROLE_MASK && role != WEFT_ROLE_SUMS) return false;
    harness_rng r = {seed};
    int64_t window = p->c / p->groups * p->kernel[0] * p->kernel[1] * p->kernel[2],
            size = (int64_t)weft__dtype_size(b->tensor.dtype);
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w)) {
        bool whole = b->tensor.dtype == WEFT_DTYPE_U8 || harness_chance(&r, 80);
        double v = role == WEFT_ROLE_SUMS ? (double)harness_below(&r, window + 1) : (double)harness_chance(&r, 70);
        harness_store(b->tensor.dtype, (char *)b->at + w.offset * size, whole ? v : (double)harness_below(&r, 5) / 4);
    }
    return true;
}

const harness_generator harness_partial_conv = {draw, terms, fill, false};
