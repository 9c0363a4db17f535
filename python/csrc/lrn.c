/* Local response normalisation across channels, and its gradient. Data has 3 to 5 dimensions, (n, c) and spatial
 * axes. */
#include "binding.h"

enum { INPUT, SIZE, ALPHA, BETA, K };
enum { B_GRAD, B_INPUT }; /* size, alpha, beta and k follow as above, one further on */

static bool check_data(wt_call *call, int at) {
    return wt_check_data(call, at, 3, 5, "3 to 5, batch and channels first");
}

static bool check_size(wt_call *call, int at) {
    int64_t size = call->arg[at].integer;
    return (size >= 1 && size <= INT64_C(1) << 40) ||
           wt_fail(call, "size: is %lld, allowed: 1 to 2^40", (long long)size);
}

/* at: where size stands */
static void begin(wt_call *call, weft_pass pass, const wt_view *x, int rank, int at) {
    weft_problem *p = wt_begin(call, WEFT_OP_LRN, pass, rank, x);
    p->attr[WEFT_LRN_SIZE] = call->arg[at].integer;
    p->real[WEFT_LRN_ALPHA] = call->arg[at + ALPHA - SIZE].real;
    p->real[WEFT_LRN_BETA] = call->arg[at + BETA - SIZE].real;
    p->real[WEFT_LRN_K] = call->arg[at + K - SIZE].real;
}

static bool run_lrn(wt_call *call) {
    if (!check_data(call, INPUT) || !check_size(call, SIZE)) return false;
    const wt_tensor *t = &call->arg[INPUT].tensor;
    int rank = (int)t->rank - 2;
    wt_view x = wt_see(t, rank), y;
    if (!wt_create(call, 0, &y, x.dims, rank, wt_is_last(&x), true, t->code)) return false;
    if (wt_is_empty(&y)) return true;
    begin(call, WEFT_PASS_FWD, &x, rank, SIZE);
    WT_PUT(call, {WEFT_ROLE_SRC, &x}, {WEFT_ROLE_DST, &y});
    return wt_run(call, false);
}
WT_OPERATOR_OUT(lrn, "(Tensor input, SymInt size, float alpha, float beta, float k) -> Tensor")

static bool run_lrn_backward(wt_call *call) {
    const wt_tensor *t = &call->arg[B_INPUT].tensor, *grad = &call->arg[B_GRAD].tensor;
    if (!check_data(call, B_INPUT) || !wt_check_same_type(call, B_GRAD, B_INPUT) || !check_size(call, SIZE + 1))
        return false;
    if (!wt_check_shape(call, "grad_output", grad, t->rank, t->sizes, "the shape of input, ")) return false;
    int rank = (int)t->rank - 2;
    wt_view x = wt_see(t, rank), dy = wt_see(grad, rank), dx;
    bool last = wt_is_last(&x);
    if (!wt_create(call, 0, &dx, x.dims, rank, last, true, t->code)) return false;
    if (wt_is_empty(&dx)) return true;
    if (!wt_match_format(call, &dy, rank, last, true, t->code, "grad_output")) return false;
    begin(call, WEFT_PASS_BWD, &x, rank, SIZE + 1);
    WT_PUT(call, {WEFT_ROLE_SRC, &x}, {WEFT_ROLE_DIFF_DST, &dy}, {WEFT_ROLE_DIFF_SRC, &dx});
    return wt_run(call, false);
}
WT_OPERATOR(lrn_backward, "(Tensor grad_output, Tensor input, SymInt size, float alpha, float beta, float k) -> Tensor")
