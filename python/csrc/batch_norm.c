/* Batch normalisation with given statistics (batch_norm), with those of the batch (batch_norm_train, which moves the
 * running ones), and the gradients of both. Data has 2 to 5 dimensions, (n, c) and spatial axes; parameters and
 * statistics have one value a channel. Weight and bias come together or not at all. Statistics are kept in float32,
 * or float64 for such data: running ones of 16 bits are read and written through a copy. */
#include "binding.h"

/* ---------------------------------------------------------------- arguments */
static bool check_data(wt_call *call) {
    return wt_check_data(call, AT(input), 2, 5, "2 to 5, batch and channels first");
}

/* One value a channel, in the type of the data or, beside data of 16 bits, in float32. */
static bool check_vector(wt_call *call, int at) {
    const wt_tensor *t = &call->arg[at].tensor, *x = &ARG(input).tensor;
    if (!t->handle) return true;
    if (!wt_check_length(call, at, x->sizes[1], "the channels of input")) return false;
    const bool narrow = wt_is_half(x->dtype);
    if (t->code != x->code && !(narrow && t->dtype == WEFT_DTYPE_F32))
        return wt_fail(call, "%s: is %s, allowed: the type of input, %s%s", call->op->name[at], wt_dtype_name(t->code),
                       wt_dtype_name(x->code), narrow ? ", or float32" : "");
    return true;
}

/* Two arguments that are given together. */
static bool check_both(wt_call *call, int one, int two) {
    bool has_one = call->arg[one].tensor.handle, has_two = call->arg[two].tensor.handle;
    return has_one == has_two || wt_fail(call, "%s: is None with %s given, allowed: both or none",
                                         call->op->name[has_one ? two : one], call->op->name[has_one ? one : two]);
}

static bool check_forward(wt_call *call) {
    int first = 0;
    if (!check_data(call) || !check_both(call, AT(weight), AT(bias)) ||
        !check_both(call, AT(running_mean), AT(running_var)))
        return false;
    for (int at = AT(weight); at <= AT(running_var); at++) {
        if (!check_vector(call, at) || (first && !wt_check_same_type(call, at, first))) return false;
        if (!first && call->arg[at].tensor.handle) first = at;
    }
    return true;
}

/* ---------------------------------------------------------------- running statistics */
/* A view of the argument, or of a float32 copy where it has 16 bits. written: memory that PyTorch shares between
 * tensors until the first write becomes its own. */
static bool see_statistic(wt_call *call, int at, wt_view *v, bool written) {
    const wt_tensor *t = &call->arg[at].tensor;
    const int64_t unit = 1;
    wt_tensor copy = {.rank = 1, .sizes = t->sizes, .strides = &unit, .code = wt.aoti_torch_dtype_float32()};
    const bool wide = t->dtype == WEFT_DTYPE_F32 || t->dtype == WEFT_DTYPE_F64;
    if (written && t->sizes[0] > 1 && t->strides[0] == 0)
        return wt_fail(call, "%s: is expanded, allowed in training: memory for every channel", call->op->name[at]);
    if (!wide && (!wt_scratch(call, &copy) || !wt_copy(call, copy.handle, t->handle, call->op->name[at]))) return false;
    *v = wt_see_vector(wide ? t : &copy);
    return !written || !wide || !wt.aoti_torch_get_data_ptr(t->handle, &v->data) ||
           wt_fail(call, "%s: cannot be written", call->op->name[at]);
}

static bool close_statistic(wt_call *call, int at, const wt_view *v) {
    wt_handle own = call->arg[at].tensor.handle;
    return v->handle == own || wt_copy(call, own, v->handle, call->op->name[at]);
}

/* ---------------------------------------------------------------- the problem */
static weft_problem *begin(wt_call *call, weft_pass pass, const wt_view *x, bool training) {
    const int rank = (int)ARG(input).tensor.rank - 2;
    weft_problem *p = wt_begin(call, WEFT_OP_BATCH_NORM, pass, rank > 1 ? rank : 1, x);
    p->attr[WEFT_BN_TRAIN] = training;
    p->attr[WEFT_BN_AFFINE] = ARG(weight).tensor.handle != NULL;
    p->real[WEFT_BN_EPS] = ARG(eps).real;
    wt_put(call, WEFT_ROLE_SRC, x);
    wt_put_vector(call, WEFT_ROLE_WEIGHTS, AT(weight));
    return p;
}

/* ---------------------------------------------------------------- PyTorch's own
 * It takes data and parameters of one type, or data of 16 bits with float32 beside it; that is also what makes the
 * statistics it returns those that weft keeps. Its gradient reads parameters as if they lay side by side (2.13, CPU): a
 * vector with gaps is not for it. */
static bool fits_beside(const wt_tensor *x, const wt_tensor *t, bool narrow) {
    return !t->handle ||
           ((t->sizes[0] <= 1 || t->strides[0] == 1) && (narrow ? t->dtype == WEFT_DTYPE_F32 : t->code == x->code));
}

/* The other parameters and statistics follow the weight. */
static bool torch_takes(const wt_call *call) {
    const wt_tensor *x = &ARG(input).tensor;
    const bool narrow = wt_is_half(x->dtype);
    /* there the float32 gradients of its parameters are good to 16 bits, and this forward pass is not the one that
     * torch.nn takes, cuDNN's, but one of half the speed */
    if (narrow && (call->cuda || !ARG(weight).tensor.handle)) return false;
    for (int at = AT(weight); wt_is_tensor(call->op, at); at++)
        if (!fits_beside(x, &call->arg[at].tensor, narrow)) return false;
    return true;
}

/* ---------------------------------------------------------------- operators */
/* In training there are two more results, the mean and inverse deviation of each channel of the batch, and the running
 * statistics, if they are given, are moved. */
bool wt_run_batch_norm(wt_call *call) {
    const bool training = AT(momentum) >= 0, track = ARG(running_mean).tensor.handle, moves = training && track;
    const wt_tensor *t = &ARG(input).tensor;
    wt_view y, mean, var, save_mean, save_invstd;
    if (!check_forward(call)) return false;
    const int rank = (int)t->rank - 2, names[] = {AT(running_mean), AT(running_var)};
    const wt_view x = wt_see(t, rank);
    if (!wt_create(call, 0, &y, x.dims, rank, wt_is_last(&x), true, t->code) ||
        (training && (!wt_create_vector(call, 1, &save_mean, x.dims[1], wt_wide_code(t->code)) ||
                      !wt_create_vector(call, 2, &save_invstd, x.dims[1], wt_wide_code(t->code)))) ||
        (track && (!see_statistic(call, names[0], &mean, moves) || !see_statistic(call, names[1], &var, moves))))
        return false;
    if (!x.dims[1]) return true; /* nothing, and a problem has channels */
    weft_problem *p = begin(call, WEFT_PASS_FWD, &x, training);
    p->attr[WEFT_BN_TRACK] = track;
    wt_put_vector(call, WEFT_ROLE_BIAS, AT(bias));
    if (training) p->real[WEFT_BN_MOMENTUM] = ARG(momentum).real;
    WT_PUT(call, {WEFT_ROLE_DST, &y}, {WEFT_ROLE_MEAN, &mean}, {WEFT_ROLE_VAR, &var}, {WEFT_ROLE_SAVE_MEAN, &save_mean},
           {WEFT_ROLE_SAVE_INVSTD, &save_invstd});
    call->once |= moves; /* a rehearsal would move the running statistics */
    return wt_run(call, torch_takes(call)) &&
           (!moves || (close_statistic(call, names[0], &mean) && close_statistic(call, names[1], &var)));
}

static bool check_backward(wt_call *call) {
    const wt_tensor *dy = &ARG(grad_output).tensor, *x = &ARG(input).tensor;
    if (!check_data(call) || !wt_check_same_type(call, AT(grad_output), AT(input))) return false;
    if (!wt_check_shape(call, "grad_output", dy, x->rank, x->sizes, "the shape of input, ")) return false;
    for (int at = AT(weight); at <= AT(spread); at++)
        if (!check_vector(call, at)) return false;
    return true;
}

/* mean and spread: in training those of the batch, mean and inverse deviation; else the running ones, mean and
 * variance. Without a weight its gradient and that of the bias have no elements. */
bool wt_run_batch_norm_backward(wt_call *call) {
    const wt_tensor *t = &ARG(input).tensor, *w = &ARG(weight).tensor;
    wt_view mean, spread, dx, dw, db;
    if (!check_backward(call)) return false;
    const bool training = ARG(training).integer;
    const int rank = (int)t->rank - 2;
    wt_view x = wt_see(t, rank), dy = wt_see(&ARG(grad_output).tensor, rank);
    const bool last = wt_is_last(&x);
    const int64_t length = w->handle ? x.dims[1] : 0;
    const int32_t code = w->handle ? w->code : t->code;
    if (!wt_create(call, 0, &dx, x.dims, rank, last, true, t->code) || !wt_create_vector(call, 1, &dw, length, code) ||
        !wt_create_vector(call, 2, &db, length, code) || !see_statistic(call, AT(mean), &mean, false) ||
        !see_statistic(call, AT(spread), &spread, false))
        return false;
    if (!x.dims[1]) return true;
    if (!wt_match_format(call, &dy, rank, last, true, t->code, "grad_output")) return false;
    begin(call, WEFT_PASS_BWD, &x, training)->attr[WEFT_BN_TRACK] = !training;
    WT_PUT(call, {WEFT_ROLE_DIFF_DST, &dy}, {WEFT_ROLE_DIFF_SRC, &dx}, {WEFT_ROLE_SAVE_MEAN, &mean},
           {WEFT_ROLE_MEAN, &mean}, {WEFT_ROLE_SAVE_INVSTD, &spread}, {WEFT_ROLE_VAR, &spread},
           {WEFT_ROLE_DIFF_WEIGHTS, &dw}, {WEFT_ROLE_DIFF_BIAS, &db});
    return wt_run(call, torch_takes(call));
}
