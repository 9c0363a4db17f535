/* Cross entropy, the reference. With l_c = log softmax(x)_c of a row (a place n, d, h, w), smoothing s and class
 * weights w (1 if none):
 *   share     a_c = (1 - s) w_t [c = t] + s w_c / C           for a target class t
 *             a_c = w_c ((1 - s) t_c + s / C)                 for target probabilities t_1 .. t_C
 *   loss      L = -sum_c a_c l_c;  an ignored target has L = 0
 *   weight    W = w_t, 0 if ignored;  1 for probabilities
 *   dst       L by row, sum L, or sum L / sum W
 *   diff_src  g (softmax(x)_c sum_k a_k - a_c), g = diff_dst, for the mean divided by sum W; softmax(x) = exp(x - lse)
 * Without rows the sum is 0 and the mean NaN, and so it is where every target is ignored. A target that is neither a
 * class nor ignored has weight NaN: its loss, the sum and the mean are NaN, and so are the gradients that they lead
 * to: those of its row, and with the mean those of every row that is not ignored.
 *
 * Reduction takes two phases: an item of the first walks a span of rows and leaves (sum L, sum W) in the workspace;
 * the only item of the second adds the spans up. The number of spans follows from the rows alone. */
#ifndef WEFT_REF_CROSS_ENTROPY_H
#define WEFT_REF_CROSS_ENTROPY_H

#include "rows.h"

enum { CROSS_ENTROPY_SPANS = 4096 };

typedef struct cross_entropy_sum {
    double loss, weight;
} cross_entropy_sum;

WEFT_ITEM double cross_entropy_class(const weft_problem *p, void *const *ptr, int64_t c) {
    return p->attr[WEFT_CE_WEIGHTED] ? vector_get(p, ptr, WEFT_ROLE_WEIGHTS, c) : 1;
}

/* The target of one row. */
typedef struct cross_entropy_target {
    row probs;     /* of probabilities */
    int64_t label; /* of a class; -1: none */
    int ignored;
    double weight;
} cross_entropy_target;

WEFT_ITEM cross_entropy_target cross_entropy_target_of(const weft_problem *p, void *const *ptr, int64_t i) {
    cross_entropy_target t;
    t.probs = row_of(p, ptr, WEFT_ROLE_TARGET, i);
    t.label = -1;
    t.ignored = 0;
    t.weight = 1;
    if (p->attr[WEFT_CE_PROBABILITIES]) return t;
    int64_t label = item_whole(t.probs.t->dtype, t.probs.ptr, t.probs.at);
    int valid = label >= 0 && label < p->c;
    t.ignored = label == p->attr[WEFT_CE_IGNORE];
    if (valid) t.label = label;
    t.weight = t.ignored ? 0 : valid ? cross_entropy_class(p, ptr, label) : nan("");
    return t;
}

/* a_c; of a target out of range NaN for every class. */
WEFT_ITEM double cross_entropy_share(const weft_problem *p, void *const *ptr, const cross_entropy_target *t,
                                     int64_t c) {
    double s = p->real[WEFT_CE_SMOOTHING], w = cross_entropy_class(p, ptr, c);
    if (t->ignored) return 0;
    if (p->attr[WEFT_CE_PROBABILITIES])
        return w * (s > 0 ? (1 - s) * row_get(t->probs, c) + s / (double)p->c : row_get(t->probs, c));
    double own = c == t->label || t->label < 0 ? (1 - s) * t->weight : 0;
    return s > 0 ? own + s * w / (double)p->c : own;
}

/* Classes without a share do not count, whatever their logit; probabilities all do, as their products may be NaN. */
WEFT_ITEM double cross_entropy_loss(const weft_problem *p, void *const *ptr, const cross_entropy_target *t, row src,
                                    row_exp e) {
    double log_sum = log(e.sum), loss = 0;
    int every = p->attr[WEFT_CE_PROBABILITIES] || p->real[WEFT_CE_SMOOTHING] > 0;
    if (t->ignored) return 0;
    for (int64_t c = 0; c < p->c; c++)
        if (every || c == t->label || t->label < 0)
            loss -= cross_entropy_share(p, ptr, t, c) * (row_get(src, c) - e.greatest - log_sum);
    return loss;
}

WEFT_ITEM cross_entropy_sum cross_entropy_fwd_row(const weft_problem *p, void *const *ptr, int64_t i) {
    row src = row_of(p, ptr, WEFT_ROLE_SRC, i);
    cross_entropy_target t = cross_entropy_target_of(p, ptr, i);
    row_exp e = row_exp_sum(src, p->c);
    cross_entropy_sum s;
    s.loss = cross_entropy_loss(p, ptr, &t, src, e);
    s.weight = t.weight;
    row_put(p, row_of(p, ptr, WEFT_ROLE_LSE, i), 0, e.greatest + log(e.sum));
    if (p->attr[WEFT_CE_REDUCTION] == WEFT_CE_NONE) row_put(p, row_of(p, ptr, WEFT_ROLE_DST, i), 0, s.loss);
    return s;
}

WEFT_ITEM void cross_entropy_bwd_row(const weft_problem *p, void *const *ptr, double weights, int64_t i) {
    row src = row_of(p, ptr, WEFT_ROLE_SRC, i), diff_src = row_of(p, ptr, WEFT_ROLE_DIFF_SRC, i);
    cross_entropy_target t = cross_entropy_target_of(p, ptr, i);
    int none = p->attr[WEFT_CE_REDUCTION] == WEFT_CE_NONE;
    double g = none ? row_get(row_of(p, ptr, WEFT_ROLE_DIFF_DST, i), 0) : vector_get(p, ptr, WEFT_ROLE_DIFF_DST, 0);
    double lse = row_get(row_of(p, ptr, WEFT_ROLE_LSE, i), 0), sum = 0;
    g = t.ignored ? 0 : g / weights; /* where nothing but ignored targets leave weights 0, too */
    for (int64_t c = 0; c < p->c; c++) sum += g * cross_entropy_share(p, ptr, &t, c);
    for (int64_t c = 0; c < p->c; c++)
        row_put(p, diff_src, c, exp(row_get(src, c) - lse) * sum - g * cross_entropy_share(p, ptr, &t, c));
}

/* ---------------------------------------------------------------- phases
 * With a reduction to do (losses in fwd, the weights of the mean in bwd): spans, then the total; else, and then in
 * bwd: rows. */
typedef enum cross_entropy_step { CROSS_ENTROPY_SPAN, CROSS_ENTROPY_TOTAL, CROSS_ENTROPY_ROW } cross_entropy_step;

WEFT_ITEM int cross_entropy_reduces(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD ? p->attr[WEFT_CE_REDUCTION] != WEFT_CE_NONE
                                    : p->attr[WEFT_CE_REDUCTION] == WEFT_CE_MEAN;
}

WEFT_ITEM int cross_entropy_phases(const weft_problem *p) {
    return !cross_entropy_reduces(p) ? 1 : p->pass == WEFT_PASS_FWD ? 2 : 3;
}

WEFT_ITEM cross_entropy_step cross_entropy_step_of(const weft_problem *p, int phase) {
    return cross_entropy_reduces(p) ? (cross_entropy_step)phase : CROSS_ENTROPY_ROW;
}

WEFT_ITEM int64_t cross_entropy_spans(const weft_problem *p) {
    int64_t rows = row_count(p);
    return rows < CROSS_ENTROPY_SPANS ? rows : CROSS_ENTROPY_SPANS;
}

WEFT_ITEM int64_t cross_entropy_count(const weft_problem *p, int phase) {
    switch (cross_entropy_step_of(p, phase)) {
    case CROSS_ENTROPY_SPAN:
        return cross_entropy_spans(p);
    case CROSS_ENTROPY_TOTAL:
        return 1;
    default:
        return row_count(p);
    }
}

/* The spans and the total. */
WEFT_ITEM size_t cross_entropy_workspace(const weft_problem *p) {
    return cross_entropy_reduces(p) ? (size_t)(cross_entropy_spans(p) + 1) * sizeof(cross_entropy_sum) : 0;
}

WEFT_ITEM cross_entropy_sum cross_entropy_span(const weft_problem *p, void *const *ptr, int64_t span) {
    int64_t spans = cross_entropy_spans(p), step = row_count(p) / spans, rest = row_count(p) % spans;
    int64_t i = span * step + (span < rest ? span : rest), end = i + step + (span < rest);
    cross_entropy_sum all = {0, 0};
    for (; i < end; i++) {
        cross_entropy_sum one = {0, 0};
        if (p->pass == WEFT_PASS_FWD)
            one = cross_entropy_fwd_row(p, ptr, i);
        else
            one.weight = cross_entropy_target_of(p, ptr, i).weight;
        all.loss += one.loss;
        all.weight += one.weight;
    }
    return all;
}

WEFT_ITEM void cross_entropy_total(const weft_problem *p, void *const *ptr, cross_entropy_sum *sums) {
    int64_t spans = cross_entropy_spans(p);
    cross_entropy_sum all = {0, 0};
    for (int64_t i = 0; i < spans; i++) {
        all.loss += sums[i].loss;
        all.weight += sums[i].weight;
    }
    sums[spans] = all;
    if (p->pass == WEFT_PASS_FWD)
        vector_put(p, ptr, WEFT_ROLE_DST, 0,
                   p->attr[WEFT_CE_REDUCTION] == WEFT_CE_MEAN ? all.loss / all.weight : all.loss);
}

WEFT_ITEM void cross_entropy_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    cross_entropy_sum *sums = (cross_entropy_sum *)workspace;
    switch (cross_entropy_step_of(p, phase)) {
    case CROSS_ENTROPY_SPAN:
        sums[i] = cross_entropy_span(p, ptr, i);
        break;
    case CROSS_ENTROPY_TOTAL:
        cross_entropy_total(p, ptr, sums);
        break;
    default:
        if (p->pass == WEFT_PASS_FWD)
            cross_entropy_fwd_row(p, ptr, i);
        else
            cross_entropy_bwd_row(p, ptr, cross_entropy_reduces(p) ? sums[cross_entropy_spans(p)].weight : 1, i);
    }
}

#endif
