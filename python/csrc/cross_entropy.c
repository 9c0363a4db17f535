/* Cross entropy of logits (C), (N, C) or (N, C, d1 .. dk) and its gradient: log-softmax and negative log-likelihood
 * in one. The target is a class a row (int64) or, in the type and shape of the logits, a probability an element.
 * Besides the loss there is the log-sum-exp of every row, which the gradient needs. On the CPU a label that is no
 * class is refused, after the run: it makes the loss NaN, and only then the labels are looked at. On CUDA, where
 * nobody waits for the result, the loss and the gradients that it leads to are NaN. */
#include <string.h>

#include "rows.h"

enum { SRC, LABELS, MOST = 5 }; /* logits and target come first among the tensors of a loss */

typedef struct loss {
    wt_shape s;
    wt_rows t[MOST]; /* what lies along the rows, each with its role */
    weft_role role[MOST];
    int count;
    wt_view reduced; /* a loss that is one number, or its gradient */
    weft_role reduced_role;
    bool weighted, probs;
    int64_t ignore, reduction;
    double smoothing;
} loss;

/* A place for one more tensor along the rows. */
static wt_rows *along(loss *l, weft_role role) {
    l->role[l->count] = role;
    return &l->t[l->count++];
}

static bool is_none(const loss *l) { return l->reduction == WEFT_CE_NONE; }

static bool on_cpu(const wt_call *call) { return call->device_type == wt.aoti_torch_device_type_cpu(); }

/* ---------------------------------------------------------------- arguments */
static bool read_target(wt_call *call, loss *l) {
    const wt_tensor *x = &ARG(input).tensor, *t = &ARG(target).tensor;
    l->probs = t->code == x->code;
    if (!l->probs && t->dtype != WEFT_DTYPE_I64)
        return wt_fail(call, "target: is %s, allowed: int64 (classes) or the type of input, %s (probabilities)",
                       wt_dtype_name(t->code), wt_dtype_name(x->code));
    return wt_rows_of(call, AT(target), &l->s, l->probs, along(l, WEFT_ROLE_TARGET));
}

static bool read_settings(wt_call *call, loss *l) {
    l->ignore = ARG(ignore_index).integer;
    l->reduction = ARG(reduction).integer;
    l->smoothing = ARG(label_smoothing).real;
    if (l->reduction < WEFT_CE_NONE || l->reduction > WEFT_CE_SUM)
        return wt_fail(call, "reduction: is %lld, allowed: 0 (none), 1 (mean) or 2 (sum)", (long long)l->reduction);
    return (l->smoothing >= 0 && l->smoothing <= 1) ||
           wt_fail(call, "label_smoothing: is %g, allowed: 0 to 1", l->smoothing);
}

static bool read_loss(wt_call *call, loss *l) {
    if (!ARG(input).tensor.rank)
        return wt_fail(call, "input: has 0 dimensions, allowed: 1 (classes), 2 (batch, classes) or more");
    if (!wt_check_float(call, AT(input)) || !wt_shape_of(call, AT(input), &l->s)) return false;
    l->s.channel = l->s.rank > 1;
    l->count = 0;
    l->weighted = ARG(weight).tensor.handle;
    return wt_rows_of(call, AT(input), &l->s, true, along(l, WEFT_ROLE_SRC)) && read_target(call, l) &&
           (!l->weighted || (wt_check_length(call, AT(weight), l->s.sizes[l->s.channel], "the classes") &&
                             wt_check_same_type(call, AT(weight), AT(input)))) &&
           read_settings(call, l);
}

/* ---------------------------------------------------------------- the problem */
static void put_loss(wt_call *call, const loss *l, const wt_view *v, weft_pass pass) {
    weft_problem *p = wt_rows_begin(call, WEFT_OP_CROSS_ENTROPY, pass, v);
    p->attr[WEFT_CE_PROBABILITIES] = l->probs;
    p->attr[WEFT_CE_WEIGHTED] = l->weighted;
    p->attr[WEFT_CE_IGNORE] = l->ignore;
    p->attr[WEFT_CE_REDUCTION] = l->reduction;
    p->real[WEFT_CE_SMOOTHING] = l->smoothing;
    for (int i = 0; i < l->count; i++) wt_put(call, l->role[i], &v[i]);
    if (!is_none(l)) wt_put(call, l->reduced_role, &l->reduced);
    if (l->weighted) wt_put_vector(call, WEFT_ROLE_WEIGHTS, AT(weight));
}

/* Without classes a row has no loss: what is reduced is that of no rows at all. */
static bool run_without_classes(wt_call *call, loss *l, wt_view *v) {
    for (int i = 2; i < l->count; i++)
        if (!wt_zero(call, l->t[i].handle)) return false;
    if (is_none(l)) return wt_rows_finish(call, l->t, l->count);
    l->weighted = false;
    for (int i = 0; i < l->count; i++) v[i].dims[0] = 0, v[i].dims[1] = 1;
    put_loss(call, l, v, WEFT_PASS_FWD);
    return wt_run(call, false);
}

/* ---------------------------------------------------------------- labels */
static bool is_nan(const void *value, int32_t dtype) {
    uint16_t half;
    float single;
    double wide;
    switch (dtype) {
    case WEFT_DTYPE_F32:
        memcpy(&single, value, sizeof(single));
        return single != single;
    case WEFT_DTYPE_F64:
        memcpy(&wide, value, sizeof(wide));
        return wide != wide;
    default:
        memcpy(&half, value, sizeof(half));
        return (half & 0x7fff) > (dtype == WEFT_DTYPE_F16 ? 0x7c00 : 0x7f80);
    }
}

static bool check_label(wt_call *call, const loss *l, const int64_t *at) {
    int64_t classes = l->s.sizes[l->s.channel], label;
    memcpy(&label, at, sizeof(label)); /* it may lie unaligned */
    if ((label >= 0 && label < classes) || label == l->ignore) return true;
    return wt_fail(call, "target: is %lld, allowed: a class, 0 or more and below %lld, or ignore_index, %lld",
                   (long long)label, (long long)classes, (long long)l->ignore);
}

static bool check_labels(wt_call *call, const loss *l, const wt_view *v) {
    const int64_t *label = v->data, *d = v->dims, *s = v->strides;
    for (int64_t n = 0; n < d[0]; n++)
        for (int64_t z = 0; z < d[2]; z++)
            for (int64_t y = 0; y < d[3]; y++)
                for (int64_t x = 0; x < d[4]; x++)
                    if (!check_label(call, l, label + n * s[0] + z * s[2] + y * s[3] + x * s[4])) return false;
    return true;
}

/* A loss by row may hold NaN anywhere: reading the labels is cheaper than reading it. */
static bool check_target(wt_call *call, const loss *l, const wt_view *v) {
    if (l->probs || !on_cpu(call)) return true; /* a GPU's memory cannot be read here */
    return (!is_none(l) && v->dims[1] && !is_nan(l->reduced.data, v[SRC].dtype)) || check_labels(call, l, &v[LABELS]);
}

/* ---------------------------------------------------------------- operators */
/* PyTorch's is for classes. On the CPU it sums 16 bits as such. On CUDA a label that is no class would end the
 * process's use of the GPU, and its likelihood of images adds in an order that changes from run to run. */
static bool torch_takes(const wt_call *call, const loss *l) {
    const int32_t dtype = wt_dtype_of(l->t[SRC].code);
    return on_cpu(call) && !l->probs && l->smoothing == 0 && !call->op->into &&
           (dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64);
}

static bool create_loss(wt_call *call, loss *l) {
    const int64_t none = 0;
    wt_tensor t = {.sizes = &none, .strides = &none, .code = l->t[SRC].code};
    l->reduced_role = WEFT_ROLE_DST;
    bool ok = is_none(l) ? wt_rows_create(call, 0, &l->s, false, false, t.code, along(l, WEFT_ROLE_DST))
                         : wt_result(call, 0, &t);
    l->reduced = (wt_view){t.handle, t.data, t.dtype, {1}, {1}};
    return ok && wt_rows_create(call, 1, &l->s, false, false, wt_wide_code(t.code), along(l, WEFT_ROLE_LSE));
}

bool wt_run_cross_entropy(wt_call *call) {
    loss l;
    wt_view v[MOST];
    if (!read_loss(call, &l) || !create_loss(call, &l)) return false;
    if (is_none(&l) && !wt_shape_rows(&l.s)) return true;
    if (!wt_rows_fold(call, &l.s, l.t, l.count, v)) return false;
    if (!v->dims[1]) return check_target(call, &l, v) && run_without_classes(call, &l, v);
    put_loss(call, &l, v, WEFT_PASS_FWD);
    weft_plan *plan = wt_plan_with(call, torch_takes(call, &l) ? WT_ALL : 0);
    bool theirs = wt_is_torch(plan), ok = wt_finish(call, plan, &call->args, WT_ALL);
    /* the label that it stumbled over, if that was it */
    if (theirs) return ok || (on_cpu(call) && check_labels(call, &l, &v[LABELS]) && false);
    return ok && check_target(call, &l, v) && wt_rows_finish(call, l.t, l.count);
}

static bool check_grad(wt_call *call, loss *l) {
    const wt_tensor *g = &ARG(grad_output).tensor, *lse = &ARG(lse).tensor;
    if (!wt_check_same_type(call, AT(grad_output), AT(input))) return false;
    if (lse->dtype != WEFT_DTYPE_F32 && lse->dtype != WEFT_DTYPE_F64)
        return wt_fail(call, "lse: is %s, allowed: float32 or float64", wt_dtype_name(lse->code));
    if (!wt_rows_of(call, AT(lse), &l->s, false, along(l, WEFT_ROLE_LSE))) return false;
    if (is_none(l)) return wt_rows_of(call, AT(grad_output), &l->s, false, along(l, WEFT_ROLE_DIFF_DST));
    l->reduced = (wt_view){g->handle, g->data, g->dtype, {1}, {1}};
    l->reduced_role = WEFT_ROLE_DIFF_DST;
    return !g->rank || wt_fail(call, "grad_output: has %lld dimensions, allowed: 0, as the loss that is reduced",
                               (long long)g->rank);
}

bool wt_run_cross_entropy_backward(wt_call *call) {
    loss l;
    wt_view v[MOST];
    if (!read_loss(call, &l) || !check_grad(call, &l) ||
        !wt_rows_create(call, 0, &l.s, true, wt_rows_last(&l.s, &l.t[SRC]), l.t[SRC].code,
                        along(&l, WEFT_ROLE_DIFF_SRC)))
        return false;
    if (!wt_shape_rows(&l.s) || !l.s.sizes[l.s.channel]) return true;
    if (!wt_rows_fold(call, &l.s, l.t, l.count, v)) return false;
    put_loss(call, &l, v, WEFT_PASS_BWD);
    return wt_rows_run(call, torch_takes(call, &l), l.t, l.count);
}
