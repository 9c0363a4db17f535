/* Batch norm and its gradient for the seat: is it one that weft computes, which problem is it, and the way back to
 * PyTorch's implementation. On CUDA torch.batch_norm takes one of two operators, PyTorch's own or cuDNN's, which keeps
 * memory of its own for the gradient: weft's has a single byte there, by which its gradients are known. */
#include <math.h>
#include <string.h>

#include "seat.h"

enum { OURS = 1 }; /* bytes of the memory for cuDNN's gradient */
enum { ALL = WT_WANT_INPUT | WT_WANT_WEIGHT | WT_WANT_BIAS };

static bool is_cudnn(const seat_call *c) { return c->op->only_cuda; }
static bool trains(const seat_call *c) { return c->value[SEAT_TRAINING] || (is_cudnn(c) && c->op->backward); }

/* cuDNN's gradient has no mask. */
static int want_of(const seat_call *c) { return is_cudnn(c) ? ALL : c->want; }

/* ---------------------------------------------------------------- the call */
/* A value for each channel, in float32, or float64 for such data, side by side: PyTorch's gradient (2.13, CPU) reads
 * parameters as if they lay so. */
static bool see_vector(seat_draft *d, int at) {
    const wt_tensor *t = &d->c->in[at], *x = &d->c->in[SEAT_X];
    if (t->dtype != (x->dtype == WEFT_DTYPE_F64 ? WEFT_DTYPE_F64 : WEFT_DTYPE_F32) || !seat_is_beside(t, x) ||
        t->rank != 1 || t->sizes[0] != x->sizes[1] || (t->sizes[0] > 1 && t->strides[0] != 1))
        return false;
    d->view[at] = wt_see_vector(t);
    return true;
}

/* Both or none; `needed`: both. */
static bool see_pair(seat_draft *d, int one, int two, bool needed) {
    const bool has = d->c->in[one].handle, both = has == (d->c->in[two].handle != NULL);
    return has ? both && see_vector(d, one) && see_vector(d, two) : both && !needed;
}

static const char *see_parameters(seat_draft *d) {
    const seat_call *c = d->c;
    const bool train = trains(c);
    if (!c->op->backward)
        return see_pair(d, SEAT_W, SEAT_BIAS, false) && see_pair(d, SEAT_MEAN, SEAT_VAR, !train)
                   ? NULL
                   : "its parameters and statistics";
    if (!c->in[SEAT_W].handle && want_of(c) & ~WT_WANT_INPUT) return "which gradients are asked for";
    if ((c->in[SEAT_W].handle && !see_vector(d, SEAT_W)) ||
        !see_pair(d, train ? SEAT_SAVED_MEAN : SEAT_MEAN, train ? SEAT_SAVED_INVSTD : SEAT_VAR, true))
        return "its parameters and statistics";
    return NULL;
}

static const char *see_data(seat_draft *d, int at) {
    const wt_tensor *t = &d->c->in[at];
    const char *why = seat_compare(t, &d->c->in[SEAT_X]);
    if (why) return why;
    for (int64_t a = 0; a < t->rank; a++)
        if (t->sizes[a] > INT64_C(1) << 40 || t->strides[a] < 0) return "its strides";
    d->view[at] = wt_see(t, d->g.rank);
    return NULL;
}

/* A result with a value for each channel, or of no elements. */
static void add_vector(seat_draft *d, int i, int32_t code, int64_t count) {
    d->view[SEAT_OUT + i] = (wt_view){NULL, NULL, wt_dtype_of(code), {count}, {1}};
    d->e->out[i] = (seat_shape){1, code, {count}, {1}};
}

static void add_results(seat_draft *d) {
    const seat_call *c = d->c;
    const int64_t channels = c->in[SEAT_X].sizes[1];
    const int32_t code = wt.aoti_torch_dtype_float32();
    if (c->op->backward) d->e->unwanted = ALL & ~want_of(c);
    if (c->op->backward && !c->in[SEAT_W].handle) return;
    add_vector(d, 1, code, c->op->backward || trains(c) ? channels : 0);
    add_vector(d, 2, code, c->op->backward || trains(c) ? channels : 0);
    if (is_cudnn(c) && !c->op->backward) add_vector(d, 3, wt.aoti_torch_dtype_uint8(), trains(c) ? OURS : 0);
}

static const char *read_call(seat_draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X];
    const double eps = c->real[SEAT_EPS];
    if (x->rank < 2 || x->rank > 5) return "the rank of its input";
    const int64_t count = wt_count(x->sizes, x->rank);
    if (!count) return "an empty tensor";
    if (!wt_is_float(x->dtype) || (wt_is_half(x->dtype) && !c->in[SEAT_W].handle)) return "its data type";
    d->g = wt_plain_geometry((int)x->rank - 2);
    d->g.batched = true;
    const char *why = see_data(d, SEAT_X);
    if (!why && c->op->backward) why = see_data(d, SEAT_DY);
    if (!why) why = see_parameters(d);
    if (why) return why;
    if (!(trains(c) ? eps > 0 : eps >= 0) || !isfinite(eps) || !isfinite(c->real[SEAT_MOMENTUM])) return "its settings";
    if (trains(c) && count == x->sizes[1]) return "one value per channel";
    d->e->sound = true;
    if (x->dtype == WEFT_DTYPE_F64) return "its data type";
    const bool last = seat_suggests_last(x);
    if (c->cuda && !is_cudnn(c) && !trains(c) && last) return "channels-last data, which PyTorch turns"; /* 2.11 */
    why = seat_fix_format(d, last, true);
    if (!why) why = seat_fix_input(d, !c->cuda);
    if (why) return why;
    if (!seat_add_result(d, 0, d->view[SEAT_X].dims, x->code)) return "its sizes";
    add_results(d);
    return c->op->backward ? seat_fix_gradient(d) : NULL;
}

static bool choose(seat_draft *d) {
    const seat_call *c = d->c;
    const bool train = trains(c), track = c->in[SEAT_MEAN].handle;
    const wt_view *x = &d->view[SEAT_X];
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_problem_init(&p, WEFT_OP_BATCH_NORM, c->op->backward ? WEFT_PASS_BWD : WEFT_PASS_FWD,
                      d->g.rank > 1 ? d->g.rank : 1);
    p.n = x->dims[0], p.c = x->dims[1];
    memcpy(p.in, x->dims + 2, sizeof(p.in));
    p.attr[WEFT_BN_TRAIN] = train;
    p.attr[WEFT_BN_AFFINE] = c->in[SEAT_W].handle != NULL;
    p.attr[WEFT_BN_TRACK] = c->op->backward ? !train : track;
    p.real[WEFT_BN_EPS] = c->real[SEAT_EPS];
    if (train && !c->op->backward) p.real[WEFT_BN_MOMENTUM] = c->real[SEAT_MOMENTUM];
    d->e->moves = train && track && !c->op->backward;
    seat_put_roles(d, &p, &d->e->step[0]);
    const bool copies = d->e->x.rank || d->e->dy.rank; /* PyTorch's goes through such data one value after the other */
    return seat_plan_alone(d, &p, !copies);
}

/* ---------------------------------------------------------------- the operators */
SEAT_CPP_CALL(native_batch_norm)
SEAT_CPP_CALL(native_batch_norm_backward)
SEAT_CPP_CALL(cudnn_batch_norm)
SEAT_CPP_CALL(cudnn_batch_norm_backward)

/* After a forward pass of weft's there is nothing for cuDNN to go by; PyTorch's own takes what was saved. */
static bool gradient_by_torch(seat_call *c, void *made[SEAT_RESULTS]) {
    const wt_tensor *t = &c->in[SEAT_RESERVE];
    if (!seat_read(c) || wt_count(t->sizes, t->rank) != OURS) return call_cudnn_batch_norm_backward(c, made);
    c->value[SEAT_TRAINING] = 1, c->want = ALL;
    return call_native_batch_norm_backward(c, made);
}

SEAT_CPP_OP(native_batch_norm, SEAT_BATCH_NORM, 3, false, false, call_native_batch_norm)
SEAT_CPP_OP(native_batch_norm_backward, SEAT_BATCH_NORM, 3, true, false, call_native_batch_norm_backward)
SEAT_CPP_OP(cudnn_batch_norm, SEAT_BATCH_NORM, 4, false, true, call_cudnn_batch_norm)
SEAT_CPP_OP(cudnn_batch_norm_backward, SEAT_BATCH_NORM, 3, true, true, gradient_by_torch)
