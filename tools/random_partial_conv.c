/* Random problems of partial convolution: the geometry of convolution, every kind of mask. */
#include <math.h>

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

/* Any byte but 0 is a 1. */
static void draw_bytes(const weft_tensor *mask, void *at, uint64_t seed) {
    harness_rng r = {harness_mix(seed, 3)};
    for (harness_walk w = harness_first(mask); !w.done; harness_step(&w)) {
        uint8_t *m = (uint8_t *)at + w.offset;
        if (*m && harness_chance(&r, 30)) *m = (uint8_t)(1 + harness_below(&r, 255));
    }
}

/* Of every second seed there is no number in the holes of a u8 mask, which keeps it out. A repeated axis of src has
 * elements that are in a hole and elsewhere. */
static void relate(const weft_problem *p, harness_buffer *in, harness_kind kind, uint64_t seed) {
    const weft_tensor *src = weft__tensor(p, WEFT_ROLE_SRC), *mask = weft__tensor(p, WEFT_ROLE_MASK);
    if (!mask || mask->dtype != WEFT_DTYPE_U8) return;
    draw_bytes(mask, in[WEFT_ROLE_MASK].at, seed);
    if (kind == HARNESS_INTEGERS || seed / 5 % 2 || !src) return;
    for (int a = 0; a < src->rank; a++)
        if (src->strides[a] == 0 && src->dims[a] > 1) return;
    for (harness_walk w = harness_first(src); !w.done; harness_step(&w)) {
        int64_t at = 0;
        for (int a = 0; a < mask->rank; a++) at += WEFT__MIN(w.index[a], mask->dims[a] - 1) * mask->strides[a];
        if (((const uint8_t *)in[WEFT_ROLE_MASK].at)[at] == 0)
            harness_store(src->dtype, (char *)in[WEFT_ROLE_SRC].at + w.offset * (int64_t)weft__dtype_size(src->dtype),
                          (double)NAN);
    }
}

const harness_generator harness_partial_conv = {draw, terms, NULL, 0, NULL, relate};
