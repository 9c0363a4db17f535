/* Pooling, the reference. One item is one element of the output; NaN wins a maximum and spreads in a mean.
 *   max   dst[n,c,o] = max_k src[n,c,o*s - p + k*d], over taps inside the input; none: -infinity
 *         index: the first greatest tap (of several NaN the last, as torch has it), as its number in the window (u8)
 *         or as the flat place in d h w of the channel (i32, i64; a window without a tap has -1) diff_src[n,c,x] =
 *         sum of diff_dst[n,c,o] over the windows o whose index says x
 *   avg   dst[n,c,o] = sum of src over window o / divisor
 *         diff_src[n,c,x] = sum of diff_dst[n,c,o] / divisor over the windows o that hold x
 *         the divisor is given, or the number of places of the window: inside the input, or (include_pad) inside its
 *         padding too
 *   adaptive avg: the same with windows floor(o*in/out) .. ceil((o+1)*in/out) - 1 along each axis. */
#ifndef WEFT_REF_POOL_H
#define WEFT_REF_POOL_H

#include "conv.h"

/* ---------------------------------------------------------------- max */
WEFT_ITEM int64_t pool_place(const int64_t size[3], int64_t z, int64_t y, int64_t x) {
    return (z * size[1] + y) * size[2] + x;
}

WEFT_ITEM void pool_max_fwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), dst = conv_see(p, ptr, WEFT_ROLE_DST);
    int64_t at[5], offset = item_at(dst.t, i, at), place = -1, tap = 0;
    double best = item_unpack(0xfc00, 5, 10); /* -infinity */
    CONV_TAPS(conv_reads) {
        double v = conv_get(src, at[0], at[1], z, y, x);
        if (place >= 0 && !(v > best || v != v)) continue;
        best = v;
        place = pool_place(p->in, z, y, x);
        tap = pool_place(p->kernel, r, s, t);
    }
    item_out(p, dst.t, dst.ptr, offset, best);
    if (!p->attr[WEFT_MAX_POOL_INDEX]) return;
    conv_view index = conv_see(p, ptr, WEFT_ROLE_INDEX);
    item_store(index.t->dtype, index.ptr, item_at(index.t, i, at),
               (double)(index.t->dtype == WEFT_DTYPE_U8 ? tap : place));
}

WEFT_ITEM int64_t pool_said(conv_view index, const int64_t *at, int64_t z, int64_t y, int64_t x) {
    const int64_t *s = index.t->strides;
    return item_whole(index.t->dtype, index.ptr, at[0] * s[0] + at[1] * s[1] + z * s[2] + y * s[3] + x * s[4]);
}

WEFT_ITEM void pool_max_bwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view index = conv_see(p, ptr, WEFT_ROLE_INDEX), diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST),
              diff_src = conv_see(p, ptr, WEFT_ROLE_DIFF_SRC);
    int64_t at[5], offset = item_at(diff_src.t, i, at), place = pool_place(p->in, at[2], at[3], at[4]);
    double sum = 0;
    CONV_TAPS(conv_feeds) {
        int64_t mine = index.t->dtype == WEFT_DTYPE_U8 ? pool_place(p->kernel, r, s, t) : place;
        if (pool_said(index, at, z, y, x) == mine) sum += conv_get(diff_dst, at[0], at[1], z, y, x);
    }
    item_out(p, diff_src.t, diff_src.ptr, offset, sum);
}

/* ---------------------------------------------------------------- average */
/* Places lo .. hi - 1 along an axis; size: how many count in the divisor. */
typedef struct pool_span {
    int64_t lo, hi, size;
} pool_span;

/* What window o reads. */
WEFT_ITEM pool_span pool_reads(const weft_problem *p, int a, int64_t o) {
    pool_span w;
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) {
        w.lo = o * p->in[a] / p->out[a];
        w.hi = ((o + 1) * p->in[a] + p->out[a] - 1) / p->out[a];
        w.size = w.hi - w.lo;
        return w;
    }
    w.lo = o * p->stride[a] - p->pad_lo[a];
    w.hi = w.lo + p->kernel[a];
    /* a last window of ceil mode ends with the padding */
    if (w.hi > p->in[a] + p->pad_hi[a]) w.hi = p->in[a] + p->pad_hi[a];
    w.size = w.hi - w.lo;
    if (w.lo < 0) w.lo = 0;
    if (w.hi > p->in[a]) w.hi = p->in[a];
    if (!p->attr[WEFT_AVG_POOL_INCLUDE_PAD]) w.size = w.hi - w.lo;
    return w;
}

/* Which windows read x. */
WEFT_ITEM pool_span pool_feeds(const weft_problem *p, int a, int64_t x) {
    pool_span w;
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) {
        w.lo = x * p->out[a] / p->in[a];
        w.hi = ((x + 1) * p->out[a] + p->in[a] - 1) / p->in[a];
    } else {
        int64_t before = x + p->pad_lo[a] - p->kernel[a]; /* windows that start there or earlier end before x */
        w.lo = before < 0 ? 0 : before / p->stride[a] + 1;
        w.hi = (x + p->pad_lo[a]) / p->stride[a] + 1;
        if (w.hi > p->out[a]) w.hi = p->out[a];
    }
    w.size = w.hi - w.lo;
    return w;
}

WEFT_ITEM double pool_divisor(const weft_problem *p, pool_span z, pool_span y, pool_span x) {
    if (p->op == WEFT_OP_AVG_POOL && p->attr[WEFT_AVG_POOL_DIVISOR]) return (double)p->attr[WEFT_AVG_POOL_DIVISOR];
    return (double)z.size * (double)y.size * (double)x.size;
}

WEFT_ITEM void pool_avg_fwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view src = conv_see(p, ptr, WEFT_ROLE_SRC), dst = conv_see(p, ptr, WEFT_ROLE_DST);
    int64_t at[5], offset = item_at(dst.t, i, at);
    pool_span d = pool_reads(p, 0, at[2]), h = pool_reads(p, 1, at[3]), w = pool_reads(p, 2, at[4]);
    double sum = 0;
    for (int64_t z = d.lo; z < d.hi; z++)
        for (int64_t y = h.lo; y < h.hi; y++)
            for (int64_t x = w.lo; x < w.hi; x++) sum += conv_get(src, at[0], at[1], z, y, x);
    item_out(p, dst.t, dst.ptr, offset, sum / pool_divisor(p, d, h, w));
}

WEFT_ITEM void pool_avg_bwd(const weft_problem *p, void *const *ptr, int64_t i) {
    conv_view diff_dst = conv_see(p, ptr, WEFT_ROLE_DIFF_DST), diff_src = conv_see(p, ptr, WEFT_ROLE_DIFF_SRC);
    int64_t at[5], offset = item_at(diff_src.t, i, at);
    pool_span d = pool_feeds(p, 0, at[2]), h = pool_feeds(p, 1, at[3]), w = pool_feeds(p, 2, at[4]);
    double sum = 0;
    for (int64_t z = d.lo; z < d.hi; z++)
        for (int64_t y = h.lo; y < h.hi; y++)
            for (int64_t x = w.lo; x < w.hi; x++) {
                double divisor = pool_divisor(p, pool_reads(p, 0, z), pool_reads(p, 1, y), pool_reads(p, 2, x));
                sum += conv_get(diff_dst, at[0], at[1], z, y, x) / divisor;
            }
    item_out(p, diff_src.t, diff_src.ptr, offset, sum);
}

/* ---------------------------------------------------------------- items */
WEFT_ITEM int64_t pool_count(const weft_problem *p, int phase) {
    (void)phase;
    return item_numel(item_tensor(p, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC));
}

WEFT_ITEM void pool_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace, (void)phase;
    if (p->op == WEFT_OP_MAX_POOL && p->pass == WEFT_PASS_FWD)
        pool_max_fwd(p, ptr, i);
    else if (p->op == WEFT_OP_MAX_POOL)
        pool_max_bwd(p, ptr, i);
    else if (p->pass == WEFT_PASS_FWD)
        pool_avg_fwd(p, ptr, i);
    else
        pool_avg_bwd(p, ptr, i);
}

#endif
