/* Local response normalisation across channels, and its gradient. Data has 3 to 5 dimensions, (n, c) and spatial
 * axes. */
#include "binding.h"

bool wt_run_lrn(wt_call *call) {
    const bool back = call->op->pass == WEFT_PASS_BWD;
    const wt_tensor *t = &ARG(input).tensor, *grad = back ? &ARG(grad_output).tensor : NULL;
    const int64_t size = ARG(size).integer;
    if (!wt_check_data(call, AT(input), 3, 5, "3 to 5, batch and channels first") ||
        (back && !wt_check_same_type(call, AT(grad_output), AT(input))))
        return false;
    if (size < 1 || size > INT64_C(1) << 40) return wt_fail(call, "size: is %lld, allowed: 1 to 2^40", (long long)size);
    if (back && !wt_check_shape(call, "grad_output", grad, t->rank, t->sizes, "the shape of input, ")) return false;
    const int rank = (int)t->rank - 2;
    wt_view x = wt_see(t, rank), dy, y;
    const bool last = wt_is_last(&x);
    if (!wt_create(call, 0, &y, x.dims, rank, last, true, t->code)) return false;
    if (wt_is_empty(&y)) return true;
    weft_problem *p = wt_begin(call, WEFT_OP_LRN, call->op->pass, rank, &x);
    p->attr[WEFT_LRN_SIZE] = size;
    p->real[WEFT_LRN_ALPHA] = ARG(alpha).real;
    p->real[WEFT_LRN_BETA] = ARG(beta).real;
    p->real[WEFT_LRN_K] = ARG(k).real;
    if (back) dy = wt_see(grad, rank);
    if (back && !wt_match_format(call, &dy, rank, last, true, t->code, "grad_output")) return false;
    WT_PUT(call, {WEFT_ROLE_SRC, &x}, {WEFT_ROLE_DST, &y}, {WEFT_ROLE_DIFF_DST, &dy}, {WEFT_ROLE_DIFF_SRC, &y});
    return wt_run(call, false);
}
