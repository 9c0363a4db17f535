/* Cross entropy of classes by PyTorch's operators: log-softmax and the negative log-likelihood of it; lse by itself.
 * The gradient makes the log-softmax again, as nothing of the logits' size is kept. PyTorch's likelihood knows rows
 * (n, c) and images (n, c, h, w): other ranks are read as images. */
#include "cross_entropy_peer.h"

static wt_handle reshape(wt_call *call, wt_handle t, const int64_t *sizes, int rank) {
    wt_stack s = {.n = 0};
    WT_PUSH(&s, wt_of_tensor(&s, t), wt_of_list(&s, sizes, rank));
    return wt_aten_scratch(call, &s, "aten::reshape", "");
}

/* The logits' shape as the likelihood takes it; the second axis are the classes. */
static int shape_of(const wt_tensor *x, int64_t sizes[4]) {
    if (x->rank <= 2) {
        for (int a = 0; a < x->rank; a++) sizes[a] = x->sizes[a];
        return (int)x->rank;
    }
    sizes[0] = x->sizes[0], sizes[1] = x->sizes[1], sizes[2] = x->sizes[2], sizes[3] = 1;
    for (int64_t a = 3; a < x->rank; a++) sizes[3] *= x->sizes[a];
    return 4;
}

/* What both passes begin with: x and target in that shape, and p, the log-softmax of x. */
typedef struct rows {
    wt_handle x, target, p;
    int64_t sizes[4];
    int rank, dim;
} rows;

static bool begin(wt_call *call, const wt_ce_state *c, rows *r) {
    const wt_tensor *x = &call->arg[c->input].tensor, *target = &call->arg[c->input + 1].tensor;
    wt_stack s = {.n = 0};
    r->rank = shape_of(x, r->sizes);
    r->dim = r->rank > 1;
    const int64_t places[3] = {r->sizes[0], r->sizes[2], r->sizes[3]};
    bool images = r->rank == 4 && x->rank != 4;
    r->x = images ? reshape(call, x->handle, r->sizes, 4) : x->handle;
    r->target = images && r->x ? reshape(call, target->handle, places, 3) : target->handle;
    if (!r->x || !r->target) return false;
    WT_PUSH(&s, wt_of_tensor(&s, r->x), wt_of_int(r->dim), wt_of_bool(false));
    return (r->p = wt_aten_scratch(call, &s, "aten::_log_softmax", "")) != NULL;
}

/* loss and the weight of all rows, both the call's to free at its end */
static bool likelihood(wt_call *call, const wt_ce_state *c, const rows *r, wt_handle *loss, wt_handle *total) {
    wt_stack s = {.n = 0};
    wt_handle *slots[2] = {wt_scratch(call), wt_scratch(call)};
    WT_PUSH(&s, wt_of_tensor(&s, r->p), wt_of_tensor(&s, r->target),
            wt_of_optional(&s, call->arg[c->input + 2].tensor.handle), wt_of_int(call->arg[c->settings + 1].integer),
            wt_of_int(call->arg[c->settings].integer));
    if (!slots[0] || !slots[1] ||
        !wt_aten(call, &s, r->rank == 4 ? "aten::nll_loss2d_forward" : "aten::nll_loss_forward", "", 2))
        return false;
    *loss = *slots[0] = (wt_handle)(uintptr_t)s.item[0];
    *total = *slots[1] = (wt_handle)(uintptr_t)s.item[1];
    return true;
}

static bool copy_to(wt_call *call, wt_handle into, wt_handle from, const wt_tensor *x, int rank) {
    int64_t places[8], n = 0;
    for (int64_t a = 0; a < x->rank; a++)
        if (a != 1) places[n++] = x->sizes[a];
    if (rank == 4 && x->rank != 4 && !(from = reshape(call, from, places, (int)n))) return false;
    return !wt.aoti_torch_copy_(into, from, 0) || wt_fail(call, "a result of PyTorch could not be copied");
}

static bool forward(wt_call *call, const void *state) {
    const wt_ce_state *c = state;
    const wt_tensor *x = &call->arg[c->input].tensor;
    rows r;
    wt_handle loss, total;
    if (!begin(call, c, &r) || !likelihood(call, c, &r, &loss, &total)) return false;
    wt_stack s = {.n = 0};
    const int64_t dim = r.dim;
    WT_PUSH(&s, wt_of_tensor(&s, r.x), wt_of_list(&s, &dim, 1), wt_of_bool(false));
    wt_handle lse = wt_aten_scratch(call, &s, "aten::logsumexp", "");
    bool none = !call->arg[c->settings + 1].integer;
    return lse && copy_to(call, c->lse, lse, x, r.rank) &&
           (none ? copy_to(call, c->result, loss, x, r.rank)
                 : !wt.aoti_torch_copy_(c->result, loss, 0) || wt_fail(call, "the loss could not be copied"));
}

static bool backward(wt_call *call, const void *state) {
    const wt_ce_state *c = state;
    const wt_tensor *x = &call->arg[c->input].tensor, *dy = &call->arg[0].tensor;
    rows r;
    wt_handle loss, total;
    if (!begin(call, c, &r) || !likelihood(call, c, &r, &loss, &total)) return false;
    const int64_t places[3] = {r.sizes[0], r.sizes[2], r.sizes[3]};
    bool images = r.rank == 4 && x->rank != 4 && dy->rank;
    wt_handle grad = images ? reshape(call, dy->handle, places, 3) : dy->handle;
    wt_stack s = {.n = 0}, t = {.n = 0};
    if (!grad) return false;
    WT_PUSH(&s, wt_of_tensor(&s, grad), wt_of_tensor(&s, r.p), wt_of_tensor(&s, r.target),
            wt_of_optional(&s, call->arg[c->input + 2].tensor.handle), wt_of_int(call->arg[c->settings + 1].integer),
            wt_of_int(call->arg[c->settings].integer), wt_of_tensor(&s, total));
    wt_handle dp = wt_aten_scratch(call, &s, r.rank == 4 ? "aten::nll_loss2d_backward" : "aten::nll_loss_backward", "");
    if (!dp) return false;
    WT_PUSH(&t, wt_of_tensor(&t, dp), wt_of_tensor(&t, r.p), wt_of_int(r.dim), wt_of_int(x->code));
    wt_handle dx = wt_aten_scratch(call, &t, "aten::_log_softmax_backward_data", "");
    if (dx && r.rank == 4 && x->rank != 4) dx = reshape(call, dx, x->sizes, (int)x->rank);
    return dx && (!wt.aoti_torch_copy_(c->result, dx, 0) || wt_fail(call, "the gradient could not be copied"));
}

/* On the CPU 16 bits are summed as such. On CUDA a label that is no class would end the process's use of the GPU,
 * and its likelihood of images adds in an order that changes from run to run. */
wt_peer wt_cross_entropy_peer(const wt_call *call, const wt_ce_state *c, bool gradient) {
    const wt_tensor *x = &call->arg[c->input].tensor;
    bool cpu = call->device_type == wt.aoti_torch_device_type_cpu(),
         classes = call->arg[c->input + 1].tensor.dtype == WEFT_DTYPE_I64;
    bool plain = call->arg[c->settings + 2].real == 0 && !call->op->into && x->rank <= 8,
         wide = x->dtype == WEFT_DTYPE_F32 || x->dtype == WEFT_DTYPE_F64;
    return cpu && classes && plain && wide ? (gradient ? backward : forward) : NULL;
}
