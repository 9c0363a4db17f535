/* Batch normalisation, the reference. Over the N = n d h w elements x of a channel, with weight w and bias b (1 and
 * 0 if not affine):
 *   fwd, train   m = sum x / N, v = sum (x - m)^2 / N, r = 1 / sqrt(v + eps);  running mean and var move by the
 *   momentum f:
 *                mean = (1 - f) mean + f m,  var = (1 - f) var + f v N / (N - 1)
 *   fwd, eval    m = running mean, r = 1 / sqrt(running var + eps)
 *                dst = (x - m) r w + b
 *   bwd          diff_bias = B = sum dy,  diff_weights = D = sum dy (x - m) r
 *   train        diff_src = r w (dy - B / N - (x - m) r D / N)
 *   eval         diff_src = r w dy
 *   relu         dst = max(dst, 0) after all; bwd: dy = 0 where dst <= 0, before all
 * Without elements m and v are 0, the running statistics stay, and B and D are 0.
 * A first phase takes the channels one by one and leaves two numbers of each in the workspace, m and r or B and D; a
 * second one takes the elements. */
#ifndef WEFT_REF_BATCH_NORM_H
#define WEFT_REF_BATCH_NORM_H

#include "rows.h"

/* The gradient before a relu: dst takes part in bwd if there is one. */
WEFT_ITEM double batch_norm_diff(double diff, double dst) { return dst <= 0 ? 0 : diff; }

/* What the first phase leaves of a channel. */
typedef struct batch_norm_sums {
    double first, second;
} batch_norm_sums;

/* m and r of a channel where an earlier pass or training left them. */
WEFT_ITEM batch_norm_sums batch_norm_given(const weft_problem *p, void *const *ptr, int64_t c) {
    int train = p->attr[WEFT_BN_TRAIN] != 0;
    batch_norm_sums s;
    s.first = vector_get(p, ptr, train ? WEFT_ROLE_SAVE_MEAN : WEFT_ROLE_MEAN, c);
    s.second = vector_get(p, ptr, train ? WEFT_ROLE_SAVE_INVSTD : WEFT_ROLE_VAR, c);
    if (!train) s.second = 1 / sqrt(s.second + p->real[WEFT_BN_EPS]);
    return s;
}

WEFT_ITEM void batch_norm_move(const weft_problem *p, void *const *ptr, int role, int64_t c, double to) {
    double f = p->real[WEFT_BN_MOMENTUM];
    vector_put(p, ptr, role, c, (1 - f) * vector_get(p, ptr, role, c) + f * to);
}

WEFT_ITEM batch_norm_sums batch_norm_statistics(const weft_problem *p, void *const *ptr, int64_t c) {
    int64_t count = row_count(p);
    double sum = 0, squares = 0, n = count ? (double)count : 1;
    batch_norm_sums s;
    for (int64_t i = 0; i < count; i++) sum += row_get(row_of(p, ptr, WEFT_ROLE_SRC, i), c);
    s.first = sum / n;
    for (int64_t i = 0; i < count; i++) {
        double x = row_get(row_of(p, ptr, WEFT_ROLE_SRC, i), c) - s.first;
        squares += x * x;
    }
    s.second = 1 / sqrt(squares / n + p->real[WEFT_BN_EPS]);
    vector_put(p, ptr, WEFT_ROLE_SAVE_MEAN, c, s.first);
    vector_put(p, ptr, WEFT_ROLE_SAVE_INVSTD, c, s.second);
    if (p->attr[WEFT_BN_TRACK] && count) {
        batch_norm_move(p, ptr, WEFT_ROLE_MEAN, c, s.first);
        batch_norm_move(p, ptr, WEFT_ROLE_VAR, c, squares / (n - 1));
    }
    return s;
}

WEFT_ITEM batch_norm_sums batch_norm_gradients(const weft_problem *p, void *const *ptr, int64_t c) {
    batch_norm_sums given = batch_norm_given(p, ptr, c), s = {0, 0};
    for (int64_t i = 0; i < row_count(p); i++) {
        double dy = row_get(row_of(p, ptr, WEFT_ROLE_DIFF_DST, i), c), x = row_get(row_of(p, ptr, WEFT_ROLE_SRC, i), c);
        if (item_tensor(p, WEFT_ROLE_DST)->role == WEFT_ROLE_DST)
            dy = batch_norm_diff(dy, row_get(row_of(p, ptr, WEFT_ROLE_DST, i), c));
        s.first += dy;
        s.second += dy * (x - given.first);
    }
    s.second *= given.second;
    if (p->attr[WEFT_BN_AFFINE]) {
        vector_put(p, ptr, WEFT_ROLE_DIFF_BIAS, c, s.first);
        vector_put(p, ptr, WEFT_ROLE_DIFF_WEIGHTS, c, s.second);
    }
    return s;
}

WEFT_ITEM void batch_norm_fwd(const weft_problem *p, void *const *ptr, const batch_norm_sums *sums, int64_t i) {
    const weft_tensor *src = item_tensor(p, WEFT_ROLE_SRC), *dst = item_tensor(p, WEFT_ROLE_DST);
    int64_t at[5];
    double x = item_load(src->dtype, ptr[WEFT_ROLE_SRC], item_at(src, i, at));
    batch_norm_sums s = p->attr[WEFT_BN_TRAIN] ? sums[at[1]] : batch_norm_given(p, ptr, at[1]);
    double v = (x - s.first) * s.second;
    if (p->attr[WEFT_BN_AFFINE])
        v = v * vector_get(p, ptr, WEFT_ROLE_WEIGHTS, at[1]) + vector_get(p, ptr, WEFT_ROLE_BIAS, at[1]);
    item_out(p, dst, ptr[WEFT_ROLE_DST], item_at(dst, i, at), item_epilogue(p, ptr, at[1], v));
}

WEFT_ITEM void batch_norm_bwd(const weft_problem *p, void *const *ptr, const batch_norm_sums *sums, int64_t i) {
    const weft_tensor *src = item_tensor(p, WEFT_ROLE_SRC), *diff_dst = item_tensor(p, WEFT_ROLE_DIFF_DST),
                      *diff_src = item_tensor(p, WEFT_ROLE_DIFF_SRC);
    int64_t at[5];
    double x = item_load(src->dtype, ptr[WEFT_ROLE_SRC], item_at(src, i, at)), n = (double)row_count(p);
    double v = item_load(diff_dst->dtype, ptr[WEFT_ROLE_DIFF_DST], item_at(diff_dst, i, at));
    const weft_tensor *dst = item_tensor(p, WEFT_ROLE_DST);
    if (dst->role == WEFT_ROLE_DST)
        v = batch_norm_diff(v, item_load(dst->dtype, ptr[WEFT_ROLE_DST], item_at(dst, i, at)));
    batch_norm_sums given = batch_norm_given(p, ptr, at[1]);
    if (p->attr[WEFT_BN_TRAIN]) v -= (sums[at[1]].first + (x - given.first) * given.second * sums[at[1]].second) / n;
    v *= given.second;
    if (p->attr[WEFT_BN_AFFINE]) v *= vector_get(p, ptr, WEFT_ROLE_WEIGHTS, at[1]);
    item_out(p, diff_src, ptr[WEFT_ROLE_DIFF_SRC], item_at(diff_src, i, at), v);
}

/* fwd in eval has nothing to sum. */
WEFT_ITEM int batch_norm_phases(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD && !p->attr[WEFT_BN_TRAIN] ? 1 : 2;
}

WEFT_ITEM int batch_norm_by_channel(const weft_problem *p, int phase) { return phase + 1 < batch_norm_phases(p); }

WEFT_ITEM int64_t batch_norm_count(const weft_problem *p, int phase) {
    return batch_norm_by_channel(p, phase) ? p->c : p->c * row_count(p);
}

WEFT_ITEM size_t batch_norm_workspace(const weft_problem *p) {
    return batch_norm_phases(p) > 1 ? (size_t)p->c * sizeof(batch_norm_sums) : 0;
}

WEFT_ITEM void batch_norm_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    batch_norm_sums *sums = (batch_norm_sums *)workspace;
    int fwd = p->pass == WEFT_PASS_FWD;
    if (batch_norm_by_channel(p, phase))
        sums[i] = fwd ? batch_norm_statistics(p, ptr, i) : batch_norm_gradients(p, ptr, i);
    else if (fwd)
        batch_norm_fwd(p, ptr, sums, i);
    else
        batch_norm_bwd(p, ptr, sums, i);
}

#endif
