/* Batch normalisation by PyTorch's own operators. They take data and parameters of one type, or data of 16 bits with
 * float32 beside it; that is also what makes the statistics they return those that weft keeps. */
#include "batch_norm_peer.h"

/* Its gradient reads parameters as if they lay side by side (2.13, CPU): a vector with gaps is not for it. */
static bool has_gaps(const wt_tensor *t) {
    int64_t next = 1;
    for (int64_t a = t->rank - 1; a >= 0; next *= t->sizes[a--])
        if (t->sizes[a] > 1 && t->strides[a] != next) return true;
    return false;
}

static bool fits_beside(const wt_tensor *x, const wt_tensor *t) {
    bool narrow = x->dtype == WEFT_DTYPE_F16 || x->dtype == WEFT_DTYPE_BF16;
    if (t->handle && has_gaps(t)) return false;
    return !t->handle || (narrow ? t->dtype == WEFT_DTYPE_F32 : t->code == x->code);
}

bool wt_batch_norm_has_peer(const wt_call *call, int data, int weight) {
    const wt_tensor *x = &call->arg[data].tensor;
    bool narrow = x->dtype == WEFT_DTYPE_F16 || x->dtype == WEFT_DTYPE_BF16,
         cuda = call->device_type != wt.aoti_torch_device_type_cpu();
    /* there the float32 gradients of its parameters are good to 16 bits, and this forward pass is not the one that
     * torch.nn takes, cuDNN's, but one of half the speed */
    if (narrow && cuda) return false;
    for (int at = weight;
         at < weight + 4 && (call->op->kind[at] == WT_TENSOR || call->op->kind[at] == WT_TENSOR_OR_NONE); at++)
        if (!fits_beside(x, &call->arg[at].tensor)) return false;
    return !narrow || call->arg[weight].tensor.handle;
}

static bool take_vector(wt_call *call, int slot, wt_value tensor, int64_t length) {
    wt_view v = {.dims = {1, length, 1, 1, 1}, .strides = {length, 1, 1, 1, 1}};
    wt_drop(call, slot);
    return wt_take(call, slot, tensor, &v, 0, false);
}

/* A call (input, weight, bias, running_mean, running_var, eps[, momentum]); state: the view of the result. */
static bool forward(wt_call *call, const wt_view *y, bool training) {
    const wt_tensor *x = &call->arg[0].tensor;
    int rank = (int)x->rank - 2;
    wt_stack s = {.n = 0};
    wt_drop(call, 0);
    WT_PUSH(&s, wt_of_tensor(&s, x->handle));
    for (int at = 1; at <= 4; at++) WT_PUSH(&s, wt_of_optional(&s, call->arg[at].tensor.handle));
    WT_PUSH(&s, wt_of_bool(training), wt_of_real(training ? call->arg[6].real : 0), wt_of_real(call->arg[5].real));
    if (!wt_aten(call, &s, "aten::native_batch_norm", "", 3)) return false;
    bool ok = wt_take(call, 0, s.item[0], y, rank, true);
    for (int i = 1; i < 3; i++) {
        if (training && ok)
            ok = take_vector(call, i, s.item[i], y->dims[1]);
        else
            wt_free(s.item[i]);
    }
    return ok;
}

bool wt_batch_norm_peer(wt_call *call, const void *state) { return forward(call, state, false); }
bool wt_batch_norm_train_peer(wt_call *call, const void *state) { return forward(call, state, true); }

/* A call (grad_output, input, weight, mean, spread, training, eps); state: the view of the input's gradient. With
 * given statistics those of the batch are tensors of no elements, as its own forward pass returns them. */
bool wt_batch_norm_backward_peer(wt_call *call, const void *state) {
    const wt_view *dx = state;
    bool training = call->arg[5].integer, affine = call->arg[2].tensor.handle;
    wt_handle given[] = {call->arg[3].tensor.handle, call->arg[4].tensor.handle};
    wt_stack s = {.n = 0};
    const int64_t zero = 0, unit = 1;
    void *nothing;
    wt_handle *none = wt_scratch(call);
    if (!none || !wt_empty(call, none, 1, &zero, &unit, call->arg[3].tensor.code, &nothing)) return false;
    wt_drop(call, 0);
    for (int at = 0; at < 2; at++) WT_PUSH(&s, wt_of_tensor(&s, call->arg[at].tensor.handle));
    WT_PUSH(&s, wt_of_optional(&s, call->arg[2].tensor.handle));
    for (int i = 0; i < 2; i++) WT_PUSH(&s, wt_of_optional(&s, training ? NULL : given[i]));
    for (int i = 0; i < 2; i++) WT_PUSH(&s, wt_of_optional(&s, training ? given[i] : *none));
    WT_PUSH(&s, wt_of_bool(training), wt_of_real(call->arg[6].real), wt_of_bools(&s, affine ? 7 : 1, 3));
    if (!wt_aten(call, &s, "aten::native_batch_norm_backward", "", 3)) return false;
    bool ok = wt_take(call, 0, s.item[0], dx, (int)call->arg[1].tensor.rank - 2, true);
    for (int i = 1; i < 3; i++) {
        if (affine && ok)
            ok = take_vector(call, i, s.item[i], dx->dims[1]);
        else
            wt_free(s.item[i]);
    }
    return ok;
}
