/* softmax and log_softmax along any dimension of a tensor of any rank, and their gradient from the result alone. The
 * result is dense and channels-first whatever the input, as PyTorch's; its type may be another than that of the
 * input. */
#include "rows.h"

enum { INPUT, DIM, DTYPE };
enum { B_GRAD, B_OUTPUT, B_DIM, B_LOG, B_DTYPE };

/* The type of the result. */
static bool check_dtype(wt_call *call, int at) {
    int32_t code = (int32_t)call->arg[at].integer;
    return wt_is_float(wt_dtype_of(code)) ||
           wt_fail(call, "dtype: is %s, allowed: float32, float64, float16 or bfloat16", wt_dtype_name(code));
}

static bool read_shape(wt_call *call, int tensor, int dim, wt_shape *s) {
    int64_t at = call->arg[dim].integer;
    if (!wt_check_float(call, tensor) || !wt_shape_of(call, tensor, s)) return false;
    if (at < -s->rank || at >= s->rank)
        return wt_fail(call, "dim: is %lld, allowed: %d to %d", (long long)at, -s->rank, s->rank - 1);
    s->channel = (int)(at < 0 ? at + s->rank : at);
    return true;
}

/* ---------------------------------------------------------------- PyTorch's own
 * The caller's out may lie in a way that it does not follow. On the CPU it is asked for the types that it computes
 * in. */
static bool torch_takes(const wt_call *call, int tensor, int dtype) {
    const wt_tensor *t = &call->arg[tensor].tensor;
    return t->rank && !call->op->into && t->code == (int32_t)call->arg[dtype].integer &&
           (call->cuda || t->dtype == WEFT_DTYPE_F32 || t->dtype == WEFT_DTYPE_F64);
}

/* ---------------------------------------------------------------- operators */
static bool forward(wt_call *call, weft_op op) {
    wt_shape s;
    wt_rows t[2];
    wt_view v[2];
    if (!check_dtype(call, DTYPE) || !read_shape(call, INPUT, DIM, &s) || !wt_rows_of(call, INPUT, &s, true, &t[0]) ||
        !wt_rows_create(call, 0, &s, true, false, (int32_t)call->arg[DTYPE].integer, &t[1]))
        return false;
    if (!wt_shape_rows(&s) || !s.sizes[s.channel]) return true;
    if (!wt_rows_fold(call, &s, t, 2, v)) return false;
    wt_rows_begin(call, op, WEFT_PASS_FWD, v);
    WT_PUT(call, {WEFT_ROLE_SRC, &v[0]}, {WEFT_ROLE_DST, &v[1]});
    return wt_rows_run(call, torch_takes(call, INPUT, DTYPE), t, 2);
}

static bool run_softmax(wt_call *call) { return forward(call, WEFT_OP_SOFTMAX); }
WT_OPERATOR_IN_PLACE(softmax, "(Tensor input, int dim, ScalarType dtype) -> Tensor")

static bool run_log_softmax(wt_call *call) { return forward(call, WEFT_OP_LOG_SOFTMAX); }
WT_OPERATOR_IN_PLACE(log_softmax, "(Tensor input, int dim, ScalarType dtype) -> Tensor")

/* dtype: that of the forward operator's input, and of the result here. */
static bool run_softmax_backward(wt_call *call) {
    wt_shape s;
    wt_rows t[3];
    wt_view v[3];
    if (!check_dtype(call, B_DTYPE) || !read_shape(call, B_OUTPUT, B_DIM, &s) ||
        !wt_check_same_type(call, B_GRAD, B_OUTPUT) || !wt_rows_of(call, B_OUTPUT, &s, true, &t[0]) ||
        !wt_rows_of(call, B_GRAD, &s, true, &t[1]) ||
        !wt_rows_create(call, 0, &s, true, false, (int32_t)call->arg[B_DTYPE].integer, &t[2]))
        return false;
    if (!wt_shape_rows(&s) || !s.sizes[s.channel]) return true;
    if (!wt_rows_fold(call, &s, t, 3, v)) return false;
    wt_rows_begin(call, call->arg[B_LOG].integer ? WEFT_OP_LOG_SOFTMAX : WEFT_OP_SOFTMAX, WEFT_PASS_BWD, v);
    WT_PUT(call, {WEFT_ROLE_DST, &v[0]}, {WEFT_ROLE_DIFF_DST, &v[1]}, {WEFT_ROLE_DIFF_SRC, &v[2]});
    return wt_rows_run(call, torch_takes(call, B_OUTPUT, B_DTYPE), t, 3);
}
WT_OPERATOR(softmax_backward, "(Tensor grad_output, Tensor output, int dim, bool log, ScalarType dtype) -> Tensor")
