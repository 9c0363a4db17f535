/* softmax and log-softmax, and their gradients from the result alone, for the seat: is it one that weft computes, which
 * problem is it, and the way back to PyTorch's implementation. Results are dense and channels-first, as PyTorch's. */
#include <string.h>

#include "seat.h"

/* ---------------------------------------------------------------- the call */
static seat_shape contiguous(const wt_tensor *t) {
    seat_shape s = {.rank = (int)t->rank, .code = t->code};
    memcpy(s.sizes, t->sizes, (size_t)t->rank * sizeof(s.sizes[0]));
    wt_dense_along(s.strides, t->sizes, t->rank, NULL);
    return s;
}

static bool is_contiguous(const wt_tensor *t) {
    const seat_shape s = contiguous(t);
    return wt_lie_alike(t->rank, t->sizes, t->strides, s.strides);
}

/* What lies before the dimension as the batch, what lies behind it as one axis. */
static wt_view fold(const wt_tensor *t, int64_t axis) {
    int64_t n = 1, w = 1, c = t->sizes[axis];
    for (int64_t a = 0; a < axis; a++) n *= t->sizes[a];
    for (int64_t a = axis + 1; a < t->rank; a++) w *= t->sizes[a];
    return (wt_view){t->handle, t->data, t->dtype, {n, c, 1, 1, w}, {c * w, w, w, w, 1}};
}

static const char *read_call(seat_draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X], *dy = &c->in[SEAT_DY];
    const int64_t axis = c->value[SEAT_AXIS] < 0 ? c->value[SEAT_AXIS] + x->rank : c->value[SEAT_AXIS];
    if (!wt_is_float(x->dtype) || c->value[SEAT_TO_FLOAT] || (dy->handle && c->type != x->code)) return "its data type";
    if (axis < 0 || axis >= x->rank) return "its dimension";
    if (!wt_count(x->sizes, x->rank)) return "an empty tensor";
    if (!is_contiguous(x)) return "the strides of its input";
    d->view[SEAT_X] = fold(x, axis);
    if (dy->handle) {
        const char *why = seat_compare(dy, x);
        if (why) return why;
        d->view[SEAT_DY] = fold(dy, axis);
        if (!is_contiguous(dy)) d->e->dy = contiguous(dy), d->view[SEAT_DY].data = NULL; /* a copy, aligned */
    }
    d->e->sound = true;
    d->e->out[0] = contiguous(x);
    d->view[SEAT_OUT] = d->view[SEAT_X];
    d->view[SEAT_OUT].data = NULL;
    return NULL;
}

static bool choose(seat_draft *d) {
    const bool log = d->c->op->family == SEAT_LOG_SOFTMAX;
    const wt_view *x = &d->view[SEAT_X];
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_problem_init(&p, log ? WEFT_OP_LOG_SOFTMAX : WEFT_OP_SOFTMAX,
                      d->c->op->backward ? WEFT_PASS_BWD : WEFT_PASS_FWD, 1);
    p.n = x->dims[0], p.c = x->dims[1];
    memcpy(p.in, x->dims + 2, sizeof(p.in));
    seat_put_roles(d, &p, &d->e->step[0]);
    return seat_plan_alone(d, &p, true);
}

/* ---------------------------------------------------------------- the operators */
#define SOFTMAX(id, of, back) SEAT_CPP_CALL(id) SEAT_CPP_OP(id, of, 1, back, false, call_##id)
SOFTMAX(_softmax, SEAT_SOFTMAX, false)
SOFTMAX(_softmax_backward_data, SEAT_SOFTMAX, true)
SOFTMAX(_log_softmax, SEAT_LOG_SOFTMAX, false)
SOFTMAX(_log_softmax_backward_data, SEAT_LOG_SOFTMAX, true)
