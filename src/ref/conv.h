/* Convolution, the reference. One item is one element of the phase's output:
 *   fwd           dst[n,o,out]      = epilogue(sum_{i,k} src[n, g*I+i, out*s - p + k*d] * weights[o,i,k])
 *   bwd_data      diff_src[n,c,in]  = epilogue(sum_{o in group, k} diff_dst[n,o,(in + p - k*d)/s] * weights[o, c mod
 *   I, k]), whole quotients only bwd_weights   diff_weights[o,i,k] = sum_{n,out} src[n, g*I+i, out*s - p + k*d] *
 *   diff_dst[n,o,out] bwd_bias      diff_bias[o]      = sum_{n,out} diff_dst[n,o,out]
 * I = c/groups, g = the group of the output channel; in, out, k, s, p, d have three axes. */
#ifndef WEFT_REF_CONV_H
#define WEFT_REF_CONV_H

#include "item.h"

/* A tensor and its data, ready to read. */
typedef struct conv_view {
    const weft_tensor *t;
    void *ptr;
} conv_view;

WEFT_ITEM conv_view conv_see(const weft_problem *p, void *const *ptr, int role) {
    conv_view v;
    v.t = item_tensor(p, role);
    v.ptr = ptr[role];
    return v;
}

WEFT_ITEM double conv_get(conv_view v, int64_t a, int64_t b, int64_t z, int64_t y, int64_t x) {
    const int64_t *s = v.t->strides;
    return item_load(v.t->dtype, v.ptr, a * s[0] + b * s[1] + z * s[2] + y * s[3] + x * s[4]);
}

/* Where the window of position `at` reads, `delta` after its first tap, along an axis of that size; negative in the
 * padding. */
WEFT_ITEM int64_t conv_ahead(const weft_problem *p, int a, int64_t at, int64_t delta, int64_t size) {
    int64_t to = at * p->stride[a] - p->pad_lo[a] + delta;
    return to < size ? to : -1;
}

/* The other way: the position below `size` whose window reads `at` there; negative if there is none. */
WEFT_ITEM int64_t conv_back(const weft_problem *p, int a, int64_t at, int64_t delta, int64_t size) {
    int64_t to = at + p->pad_lo[a] - delta;
    if (to < 0 || to % p->stride[a]) return -1;
    to /= p->stride[a];
    return to < size ? to : -1;
}

/* Where tap k of output position `out` reads; negative when it falls into the padding. */
WEFT_ITEM int64_t conv_reads(const weft_problem *p, int a, int64_t out, int64_t k) {
    return conv_ahead(p, a, out, k * p->dilation[a], p->in[a]);
}

/* Which output position tap k of input position `in` feeds; negative for none. */
WEFT_ITEM int64_t conv_feeds(const weft_problem *p, int a, int64_t in, int64_t k) {
    return conv_back(p, a, in, k * p->dilation[a], p->out[a]);
}

/* For every tap (r, s, t) of the window at at[2..4] that `where`, conv_reads or conv_feeds, sends to a position (z,
 * y, x). */
#define CONV_TAPS(where)                                          \
    for (int64_t r = 0, z; r < p->kernel[0]; r++)                 \
        if ((z = where(p, 0, at[2], r)) >= 0)                     \
            for (int64_t s = 0, y; s < p->kernel[1]; s++)         \
                if ((y = where(p, 1, at[3], s)) >= 0)             \
                    for (int64_t t = 0, x; t < p->kernel[2]; t++) \
                        if ((x = where(p, 2, at[4], t)) >= 0)

WEFT_ITEM void conv_fwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), weights = conv_see(p, ptr, WEFT_ROLE_WEIGHTS),
              dst = conv_see(p, ptr, WEFT_ROLE_DST);
    int64_t at[5], offset = item_at(dst.t, i, at);
    int64_t per_group = p->c / p->groups, first = at[1] / (p->o / p->groups) * per_group;
    double sum = 0;
    CONV_TAPS(conv_reads) {
        for (int64_t c = 0; c < per_group; c++)
            sum += conv_get(src, at[0], first + c, z, y, x) * conv_get(weights, at[1], c, r, s, t);
    }
    item_out(p, dst.t, dst.ptr, offset, item_epilogue(p, ptr, at[1], sum));
}

WEFT_ITEM void conv_bwd_data(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST), weights = conv_see(p, ptr, WEFT_ROLE_WEIGHTS);
    conv_view diff_src = conv_see(p, ptr, WEFT_ROLE_DIFF_SRC);
    int64_t at[5], offset = item_at(diff_src.t, i, at);
    int64_t per_group = p->c / p->groups, outs = p->o / p->groups, c = at[1] % per_group,
            first = at[1] / per_group * outs;
    double sum = 0;
    CONV_TAPS(conv_feeds) {
        for (int64_t o = first; o < first + outs; o++)
            sum += conv_get(diff_dst, at[0], o, z, y, x) * conv_get(weights, o, c, r, s, t);
    }
    /* in bwd, bias only asks for diff_bias */
    if (p->pass == WEFT_PASS_BWD_DATA) sum = item_epilogue(p, ptr, at[1], sum);
    item_out(p, diff_src.t, diff_src.ptr, offset, sum);
}

WEFT_ITEM void conv_bwd_weights(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST);
    conv_view diff_weights = conv_see(p, ptr, WEFT_ROLE_DIFF_WEIGHTS);
    int64_t at[5], offset = item_at(diff_weights.t, i, at);
    int64_t c = at[0] / (p->o / p->groups) * (p->c / p->groups) + at[1];
    double sum = 0;
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t z = 0; z < p->out[0]; z++) {
            int64_t iz = conv_reads(p, 0, z, at[2]);
            if (iz < 0) continue;
            for (int64_t y = 0; y < p->out[1]; y++) {
                int64_t iy = conv_reads(p, 1, y, at[3]);
                if (iy < 0) continue;
                for (int64_t x = 0; x < p->out[2]; x++) {
                    int64_t ix = conv_reads(p, 2, x, at[4]);
                    if (ix < 0) continue;
                    sum += conv_get(src, n, c, iz, iy, ix) * conv_get(diff_dst, n, at[0], z, y, x);
                }
            }
        }
    item_out(p, diff_weights.t, diff_weights.ptr, offset, sum);
}

WEFT_ITEM void conv_bwd_bias(const weft_problem *p, void *const *ptr, int64_t o) {
    conv_view diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST), diff_bias = conv_see(p, ptr, WEFT_ROLE_DIFF_BIAS);
    double sum = 0;
    for (int64_t n = 0; n < p->n; n++)
        for (int64_t z = 0; z < p->out[0]; z++)
            for (int64_t y = 0; y < p->out[1]; y++)
                for (int64_t x = 0; x < p->out[2]; x++) sum += conv_get(diff_dst, n, o, z, y, x);
    item_out(p, diff_bias.t, diff_bias.ptr, o * diff_bias.t->strides[0], sum);
}

/* Each phase fills one output tensor: the outputs of the pass in role order. */
WEFT_ITEM int conv_output(const weft_problem *p, int phase) {
    switch (p->pass) {
    case WEFT_PASS_FWD:
        return WEFT_ROLE_DST;
    case WEFT_PASS_BWD_DATA:
        return WEFT_ROLE_DIFF_SRC;
    case WEFT_PASS_BWD_WEIGHTS:
        return WEFT_ROLE_DIFF_WEIGHTS + phase;
    case WEFT_PASS_BWD_BIAS:
        return WEFT_ROLE_DIFF_BIAS;
    default:
        return WEFT_ROLE_DIFF_SRC + phase;
    }
}

WEFT_ITEM int conv_biased(const weft_problem *p) {
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_BIAS) return 1;
    return 0;
}

WEFT_ITEM int conv_phases(const weft_problem *p) {
    return p->pass == WEFT_PASS_BWD ? 2 + conv_biased(p) : p->pass == WEFT_PASS_BWD_WEIGHTS ? 1 + conv_biased(p) : 1;
}

WEFT_ITEM int64_t conv_count(const weft_problem *p, int phase) {
    return item_numel(item_tensor(p, conv_output(p, phase)));
}

WEFT_ITEM size_t conv_workspace(const weft_problem *p) {
    (void)p;
    return 0;
}

WEFT_ITEM void conv_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace;
    switch (conv_output(p, phase)) {
    case WEFT_ROLE_DST:
        conv_fwd(p, ptr, i);
        break;
    case WEFT_ROLE_DIFF_SRC:
        conv_bwd_data(p, ptr, i);
        break;
    case WEFT_ROLE_DIFF_WEIGHTS:
        conv_bwd_weights(p, ptr, i);
        break;
    default:
        conv_bwd_bias(p, ptr, i);
        break;
    }
}

#endif
