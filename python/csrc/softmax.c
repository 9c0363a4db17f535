/* softmax and log_softmax along any dimension of a tensor of any rank, and their gradient from the result alone. The
 * result is dense and channels-first whatever the input, as PyTorch's; its type may be another than that of the
 * input. */
#include "rows.h"

/* The type of the result, the shape of a tensor and the dimension in it. */
static bool read_shape(wt_call *call, int tensor, wt_shape *s) {
    const int32_t code = (int32_t)ARG(dtype).integer;
    const int64_t dim = ARG(dim).integer;
    if (!wt_is_float(wt_dtype_of(code)))
        return wt_fail(call, "dtype: is %s, allowed: float32, float64, float16 or bfloat16", wt_dtype_name(code));
    if (!wt_check_float(call, tensor) || !wt_shape_of(call, tensor, s)) return false;
    if (dim < -s->rank || dim >= s->rank)
        return wt_fail(call, "dim: is %lld, allowed: %d to %d", (long long)dim, -s->rank, s->rank - 1);
    s->channel = (int)(dim < 0 ? dim + s->rank : dim);
    return true;
}

/* PyTorch's own: the caller's out may lie in a way that it does not follow. On the CPU it is asked for the types that
 * it computes in. */
static bool torch_takes(const wt_call *call, int tensor) {
    const wt_tensor *t = &call->arg[tensor].tensor;
    return t->rank && !call->op->into && t->code == (int32_t)ARG(dtype).integer &&
           (call->cuda || t->dtype == WEFT_DTYPE_F32 || t->dtype == WEFT_DTYPE_F64);
}

/* dtype is that of the result; of the gradient, that of the forward operator's input. */
bool wt_run_softmax(wt_call *call) {
    const bool back = call->op->pass == WEFT_PASS_BWD;
    const int of = back ? AT(output) : AT(input), count = back ? 3 : 2;
    const int32_t code = (int32_t)ARG(dtype).integer;
    wt_shape s;
    wt_rows t[3];
    wt_view v[3];
    if (!read_shape(call, of, &s) || !wt_rows_of(call, of, &s, true, &t[0]) ||
        (back &&
         (!wt_check_same_type(call, AT(grad_output), of) || !wt_rows_of(call, AT(grad_output), &s, true, &t[1]))) ||
        !wt_rows_create(call, 0, &s, true, false, code, &t[count - 1]))
        return false;
    if (!wt_shape_rows(&s) || !s.sizes[s.channel]) return true;
    if (!wt_rows_fold(call, &s, t, count, v)) return false;
    wt_rows_begin(call, back && ARG(log).integer ? WEFT_OP_LOG_SOFTMAX : call->op->op, call->op->pass, v);
    WT_PUT(call, {WEFT_ROLE_SRC, &v[0]}, {WEFT_ROLE_DST, &v[!back]}, {WEFT_ROLE_DIFF_DST, &v[1]},
           {WEFT_ROLE_DIFF_SRC, &v[2]});
    return wt_rows_run(call, torch_takes(call, of), t, count);
}
