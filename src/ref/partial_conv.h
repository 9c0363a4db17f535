/* Partial convolution, the reference: src counts only where the mask m is, and the sum is scaled up for what is
 * missing.
 *   I = c/groups, the channels an output channel sees; W = I * kd*kh*kw
 *   S[n,g,y] = sum_{i,k} m[n, g*I+i, x]        over the taps k of position y that fall on a position x of src;
 *   padding is a hole.
 *              A mask of one channel counts for each of the I: S[n,y] = I * sum_k m[n,x]. So r is right under groups.
 *   u = clamp(S, 0, 1), r = W / (S + 1e-8) * u; in double, where the epsilon does not vanish beside S = 0 or become
 *   0 as in f16 A[n,o,y] = sum_{i,k} (src*m)[n, g*I+i, x] * weights[o,i,k] fwd           dst = A*r; the bias step
 *   makes it (A*r + bias)*u; the rest of the epilogue follows. new_mask = u, sums = S bwd_data      diff_src[n,c,x]
 *   = m * sum_{o in group, k} D[n,o,y] * weights[o,i,k] bwd_weights   diff_weights[o,i,k] = sum_{n,y}
 *   (src*m)[n,g*I+i,x] * D[n,o,y] bwd_bias      diff_bias[o] = sum_{n,y} diff_dst[n,o,y] * u
 * with D = diff_dst * r, and * u when the forward pass had a bias; r and u come from the saved sums. A u8 mask
 * selects (any value but 0 is 1, and a NaN in a hole stays out), a float mask multiplies. Masks have no gradient.
 * Convolution joins y to x = y*s - p + k*d; transposed convolution joins them the other way, y = x*s - p + k*d, and
 * its weights[c,j,k] are those of input channel c and output channel j of its group. All else is the same. */
#ifndef WEFT_REF_PARTIAL_CONV_H
#define WEFT_REF_PARTIAL_CONV_H

#include "conv.h"

/* The position of src (to_src) or of dst that tap number `tap` joins to `at` of the other; 0: none. k: the tap's
 * coordinates. */
WEFT_ITEM int partial_join(const weft_problem *p, int to_src, const int64_t *at, int64_t tap, int64_t *k, int64_t *to) {
    int ahead = to_src != (p->attr[WEFT_PARTIAL_TRANSPOSED] != 0);
    for (int a = 2; a >= 0; a--) {
        k[a] = tap % p->kernel[a];
        tap /= p->kernel[a];
        int64_t delta = k[a] * p->dilation[a], size = to_src ? p->in[a] : p->out[a];
        to[a] = ahead ? conv_ahead(p, a, at[a], delta, size) : conv_back(p, a, at[a], delta, size);
        if (to[a] < 0) return 0;
    }
    return 1;
}

WEFT_ITEM double partial_at(conv_view v, int64_t a, int64_t b, const int64_t *at) {
    return conv_get(v, a, b, at[0], at[1], at[2]);
}

WEFT_ITEM double partial_weight(const weft_problem *p, conv_view weights, int64_t o, int64_t c, const int64_t *k) {
    if (p->attr[WEFT_PARTIAL_TRANSPOSED]) return partial_at(weights, c, o % (p->o / p->groups), k);
    return partial_at(weights, o, c % (p->c / p->groups), k);
}

/* v * m[n,c,at]. */
WEFT_ITEM double partial_masked(const weft_problem *p, conv_view mask, int64_t n, int64_t c, const int64_t *at,
                                double v) {
    if (p->attr[WEFT_PARTIAL_MASK] == 0) return v;
    double m = partial_at(mask, p->attr[WEFT_PARTIAL_SHARED] ? 0 : n, p->attr[WEFT_PARTIAL_MASK] == 2 ? c : 0, at);
    if (mask.t->dtype == WEFT_DTYPE_U8) return m != 0 ? v : 0;
    return v * m;
}

/* ---------------------------------------------------------------- sums, u and r */
WEFT_ITEM double partial_u(double sum) { return sum < 0 ? 0 : sum > 1 ? 1 : sum; } /* NaN stays NaN */

WEFT_ITEM double partial_r(const weft_problem *p, double sum) {
    double window = (double)(p->c / p->groups) * (double)p->kernel[0] * (double)p->kernel[1] * (double)p->kernel[2];
    return window / (sum + 1e-8) * partial_u(sum);
}

/* The saved S that output channel o has at a position of dst. */
WEFT_ITEM double partial_sum(const weft_problem *p, conv_view sums, int64_t n, int64_t o, const int64_t *at) {
    int shared = p->attr[WEFT_PARTIAL_SHARED] || p->attr[WEFT_PARTIAL_MASK] == 0;
    return partial_at(sums, shared ? 0 : n, p->attr[WEFT_PARTIAL_MASK] == 2 ? o / (p->o / p->groups) : 0, at);
}

/* One sum, and the elements of the new mask that it gives: one channel, or those of the group. */
WEFT_ITEM void partial_sums(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view mask = conv_see(p, ptr, WEFT_ROLE_MASK), sums = conv_see(p, ptr, WEFT_ROLE_SUMS),
              fresh = conv_see(p, ptr, WEFT_ROLE_NEW_MASK);
    int64_t at[5], offset = item_at(sums.t, i, at), k[3], x[3];
    int64_t per_group = p->c / p->groups, window = p->kernel[0] * p->kernel[1] * p->kernel[2];
    int every = p->attr[WEFT_PARTIAL_MASK] == 2;
    double sum = 0;
    for (int64_t tap = 0; tap < window; tap++) {
        if (!partial_join(p, 1, at + 2, tap, k, x)) continue;
        for (int64_t c = 0; c < (every ? per_group : 1); c++)
            sum += partial_masked(p, mask, at[0], at[1] * per_group + c, x, 1);
    }
    if (!every) sum *= (double)per_group;
    item_out(p, sums.t, sums.ptr, offset, sum);
    int64_t channels = every ? p->o / p->groups : 1;
    const int64_t *s = fresh.t->strides;
    int64_t place = at[0] * s[0] + at[1] * channels * s[1] + at[2] * s[2] + at[3] * s[3] + at[4] * s[4];
    for (int64_t o = 0; o < channels; o++) item_out(p, fresh.t, fresh.ptr, place + o * s[1], partial_u(sum));
}

/* ---------------------------------------------------------------- the passes */
WEFT_ITEM void partial_fwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), weights = conv_see(p, ptr, WEFT_ROLE_WEIGHTS),
              dst = conv_see(p, ptr, WEFT_ROLE_DST);
    conv_view mask = conv_see(p, ptr, WEFT_ROLE_MASK), sums = conv_see(p, ptr, WEFT_ROLE_SUMS);
    int64_t at[5], offset = item_at(dst.t, i, at), n = at[0], o = at[1], k[3], x[3];
    int64_t per_group = p->c / p->groups, first = o / (p->o / p->groups) * per_group,
            window = p->kernel[0] * p->kernel[1] * p->kernel[2];
    double v = 0, sum = partial_sum(p, sums, n, o, at + 2);
    for (int64_t tap = 0; tap < window; tap++) {
        if (!partial_join(p, 1, at + 2, tap, k, x)) continue;
        for (int64_t c = first; c < first + per_group; c++)
            v += partial_masked(p, mask, n, c, x, partial_at(src, n, c, x)) * partial_weight(p, weights, o, c, k);
    }
    v *= partial_r(p, sum);
    for (int s = 0; s < p->nsteps; s++) {
        v = item_step(p, ptr, &p->step[s], o, v);
        if (p->step[s].kind == WEFT_STEP_BIAS) v *= partial_u(sum);
    }
    item_out(p, dst.t, dst.ptr, offset, v);
}

/* D = diff_dst * r, and * u if a bias was added. */
WEFT_ITEM double partial_scaled(const weft_problem *p, conv_view diff_dst, conv_view sums, int64_t n, int64_t o,
                                const int64_t *y) {
    double sum = partial_sum(p, sums, n, o, y), d = partial_at(diff_dst, n, o, y) * partial_r(p, sum);
    return p->attr[WEFT_PARTIAL_BIASED] || conv_biased(p) ? d * partial_u(sum) : d;
}

WEFT_ITEM void partial_bwd_data(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST), weights = conv_see(p, ptr, WEFT_ROLE_WEIGHTS);
    conv_view diff_src = conv_see(p, ptr, WEFT_ROLE_DIFF_SRC), mask = conv_see(p, ptr, WEFT_ROLE_MASK),
              sums = conv_see(p, ptr, WEFT_ROLE_SUMS);
    int64_t at[5], offset = item_at(diff_src.t, i, at), n = at[0], c = at[1], k[3], y[3];
    int64_t outs = p->o / p->groups, first = c / (p->c / p->groups) * outs,
            window = p->kernel[0] * p->kernel[1] * p->kernel[2];
    double v = 0;
    for (int64_t tap = 0; tap < window; tap++) {
        if (!partial_join(p, 0, at + 2, tap, k, y)) continue;
        for (int64_t o = first; o < first + outs; o++)
            v += partial_scaled(p, diff_dst, sums, n, o, y) * partial_weight(p, weights, o, c, k);
    }
    item_out(p, diff_src.t, diff_src.ptr, offset, partial_masked(p, mask, n, c, at + 2, v));
}

WEFT_ITEM void partial_bwd_weights(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST);
    conv_view diff_weights = conv_see(p, ptr, WEFT_ROLE_DIFF_WEIGHTS), mask = conv_see(p, ptr, WEFT_ROLE_MASK),
              sums = conv_see(p, ptr, WEFT_ROLE_SUMS);
    int64_t at[5], offset = item_at(diff_weights.t, i, at), k[3], x[3], y[3];
    int64_t per_group = p->c / p->groups, outs = p->o / p->groups,
            tap = (at[2] * p->kernel[1] + at[3]) * p->kernel[2] + at[4];
    int transposed = p->attr[WEFT_PARTIAL_TRANSPOSED] != 0;
    int64_t o = transposed ? at[0] / per_group * outs + at[1] : at[0],
            c = transposed ? at[0] : at[0] / outs * per_group + at[1];
    double v = 0;
    for (int64_t n = 0; n < p->n; n++)
        for (y[0] = 0; y[0] < p->out[0]; y[0]++)
            for (y[1] = 0; y[1] < p->out[1]; y[1]++)
                for (y[2] = 0; y[2] < p->out[2]; y[2]++)
                    if (partial_join(p, 1, y, tap, k, x))
                        v += partial_masked(p, mask, n, c, x, partial_at(src, n, c, x)) *
                             partial_scaled(p, diff_dst, sums, n, o, y);
    item_out(p, diff_weights.t, diff_weights.ptr, offset, v);
}

WEFT_ITEM void partial_bwd_bias(const weft_problem *p, void *const *ptr, int64_t o) {
    conv_view diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST), diff_bias = conv_see(p, ptr, WEFT_ROLE_DIFF_BIAS),
              sums = conv_see(p, ptr, WEFT_ROLE_SUMS);
    int64_t y[3];
    double v = 0;
    for (int64_t n = 0; n < p->n; n++)
        for (y[0] = 0; y[0] < p->out[0]; y[0]++)
            for (y[1] = 0; y[1] < p->out[1]; y[1]++)
                for (y[2] = 0; y[2] < p->out[2]; y[2]++)
                    v += partial_at(diff_dst, n, o, y) * partial_u(partial_sum(p, sums, n, o, y));
    item_out(p, diff_bias.t, diff_bias.ptr, o * diff_bias.t->strides[0], v);
}

/* fwd: the sums with the new mask, then dst. The gradients are those of convolution, in its order. */
WEFT_ITEM int partial_conv_phases(const weft_problem *p) { return p->pass == WEFT_PASS_FWD ? 2 : conv_phases(p); }

WEFT_ITEM int64_t partial_conv_count(const weft_problem *p, int phase) {
    return p->pass == WEFT_PASS_FWD && phase == 0 ? item_numel(item_tensor(p, WEFT_ROLE_SUMS)) : conv_count(p, phase);
}

WEFT_ITEM void partial_conv_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace;
    switch (p->pass == WEFT_PASS_FWD && phase == 0 ? WEFT_ROLE_SUMS : conv_output(p, phase)) {
    case WEFT_ROLE_SUMS:
        partial_sums(p, ptr, i);
        break;
    case WEFT_ROLE_DST:
        partial_fwd(p, ptr, i);
        break;
    case WEFT_ROLE_DIFF_SRC:
        partial_bwd_data(p, ptr, i);
        break;
    case WEFT_ROLE_DIFF_WEIGHTS:
        partial_bwd_weights(p, ptr, i);
        break;
    default:
        partial_bwd_bias(p, ptr, i);
        break;
    }
}

#endif
