/* Random problems of partial convolution: the geometry of convolution, every kind of mask. */
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

const harness_generator harness_partial_conv = {draw, terms, NULL, 0, NULL};
