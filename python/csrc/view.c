/* Tensors on the canonical axes of a problem, n c d h w or o i d h w: seeing one that exists, making a new one,
 * putting it into a problem; and the lists of whole numbers that give a geometry. */
#include <string.h>

#include "binding.h"

/* ---------------------------------------------------------------- seeing */
wt_view wt_see(const wt_tensor *t, int rank) {
    wt_view v = {t->handle, t->data, t->dtype, {1, 1, 1, 1, 1}, {0}};
    int64_t missing = rank + 2 - t->rank;
    for (int64_t a = 0; a < t->rank; a++) {
        int64_t at = a + missing < 2 ? a + missing : a + missing + 3 - rank;
        v.dims[at] = t->sizes[a];
        v.strides[at] = t->strides[a];
    }
    return v;
}

bool wt_is_last(const wt_view *v) {
    int64_t channel = v->strides[1], pixel = v->strides[4];
    return channel > 0 && (channel < pixel || (channel == pixel && v->dims[1] == 1 && v->dims[4] > 1));
}

bool wt_is_empty(const wt_view *v) {
    for (int a = 0; a < 5; a++)
        if (v->dims[a] == 0) return true;
    return false;
}

/* ---------------------------------------------------------------- making */
bool wt_dense(int64_t strides[5], const int64_t dims[5], bool last) {
    static const int order[2][5] = {{4, 3, 2, 1, 0}, {1, 4, 3, 2, 0}}; /* fastest first */
    int64_t step = 1;
    bool fits = true;
    for (int i = 0; i < 5; i++) {
        strides[order[last][i]] = step;
        fits = fits && !__builtin_mul_overflow(step, dims[order[last][i]] ? dims[order[last][i]] : 1, &step);
    }
    return fits;
}

/* Which canonical axis each axis of a tensor of this rank is; their number. */
static int axes_of(int rank, bool batched, int axis[5]) {
    int n = 0;
    for (int a = batched ? 0 : 1; a < 5; a++)
        if (a < 2 || a >= 5 - rank) axis[n++] = a;
    return n;
}

/* Scratch, or, where that is NULL, result number `slot`. */
static bool make(wt_call *call, wt_handle *scratch, int slot, wt_view *v, const int64_t dims[5], int rank, bool last,
                 bool batched, int32_t code) {
    int64_t sizes[5], strides[5];
    int axis[5], n = axes_of(rank, batched, axis);
    memcpy(v->dims, dims, sizeof(v->dims));
    if (!wt_dense(v->strides, dims, last))
        return wt_fail(call, "the result has %lld x %lld x %lld x %lld x %lld elements, allowed: fewer than 2^63",
                       (long long)dims[0], (long long)dims[1], (long long)dims[2], (long long)dims[3],
                       (long long)dims[4]);
    for (int i = 0; i < n; i++) sizes[i] = v->dims[axis[i]], strides[i] = v->strides[axis[i]];
    v->dtype = wt_dtype_of(code);
    bool ok = scratch ? wt_empty(call, scratch, n, sizes, strides, code, &v->data)
                      : wt_result(call, slot, n, sizes, strides, code, &v->data);
    if (!ok) return false;
    v->handle = scratch           ? *scratch
                : call->out[slot] ? call->out[slot]
                                  : call->arg[call->op->nargs - call->op->into + slot].tensor.handle;
    for (int i = 0; i < n; i++) v->strides[axis[i]] = strides[i];
    return true;
}

bool wt_create(wt_call *call, int slot, wt_view *v, const int64_t dims[5], int rank, bool last, bool batched,
               int32_t code) {
    return make(call, NULL, slot, v, dims, rank, last, batched, code);
}

bool wt_match_format(wt_call *call, wt_view *v, int rank, bool last, bool batched, int32_t code, const char *name) {
    int64_t strides[5];
    wt_view copy;
    bool same = wt_dense(strides, v->dims, last);
    for (int a = 0; a < 5; a++) same = same && (v->dims[a] == 1 || v->strides[a] == strides[a]);
    if (same) return true;
    wt_handle *slot = wt_scratch(call);
    if (!slot || !make(call, slot, 0, &copy, v->dims, rank, last, batched, code)) return false;
    if (wt.aoti_torch_copy_(copy.handle, v->handle, 0)) return wt_fail(call, "%s: could not be copied", name);
    *v = copy;
    return true;
}

/* ---------------------------------------------------------------- into a problem */
static int32_t alignment(const void *data) {
    uintptr_t address = (uintptr_t)data;
    return address & 15 ? (int32_t)(address & (~address + 1)) : 16;
}

void wt_put(weft_problem *p, weft_args *args, weft_role role, const wt_view *v) {
    weft_tensor *t = weft_problem_tensor(p, role);
    /* NONE would ask for the default, not for an error */
    t->dtype = (int16_t)(v->dtype == WEFT_DTYPE_NONE ? WEFT_DTYPE_COUNT : v->dtype);
    t->layout = WEFT_LAYOUT_STRIDED;
    t->align = alignment(v->data);
    memcpy(t->strides, v->strides, sizeof(v->strides));
    args->ptr[role] = v->data;
}

void wt_put_all(weft_problem *p, weft_args *args, const wt_placed *tensors, size_t count) {
    for (size_t i = 0; i < count; i++) wt_put(p, args, tensors[i].role, tensors[i].view);
}

void wt_put_vector(weft_problem *p, weft_args *args, weft_role role, void *data, int32_t dtype, int64_t stride) {
    wt_view v = {NULL, data, dtype, {0}, {stride}};
    wt_put(p, args, role, &v);
}

/* ---------------------------------------------------------------- arguments */
bool wt_read_axes(wt_call *call, int at, int rank, int per_axis, int64_t *first, int64_t *second) {
    const wt_list *list = &call->arg[at].list;
    if (list->size != (size_t)(per_axis * rank))
        return wt_fail(call, "%s: has %zu values, allowed: %d (%s for each of %d spatial axes)", call->op->name[at],
                       list->size, per_axis * rank, per_axis == 2 ? "low and high" : "one", rank);
    for (int a = 0; a < rank; a++) {
        first[3 - rank + a] = list->item[a * per_axis];
        if (second) second[3 - rank + a] = list->item[a * per_axis + 1];
    }
    return true;
}

bool wt_check_range(wt_call *call, int at, int rank, const int64_t *values, int64_t least) {
    const int64_t most = 1 << 20; /* with sizes of at most 2^40, keeps every sum and product below 2^63 */
    for (int a = 3 - rank; a < 3; a++)
        if (values[a] < least || values[a] > most)
            return wt_fail(call, "%s: is %lld along spatial axis %d, allowed: %lld to 2^20", call->op->name[at],
                           (long long)values[a], a - 3 + rank, (long long)least);
    return true;
}

bool wt_check_sizes(wt_call *call, int at) {
    const wt_tensor *t = &call->arg[at].tensor;
    for (int64_t a = 0; a < t->rank; a++)
        if (t->sizes[a] > INT64_C(1) << 40)
            return wt_fail(call, "%s: has %lld elements along dimension %lld, allowed: at most 2^40",
                           call->op->name[at], (long long)t->sizes[a], (long long)a);
    return true;
}

bool wt_is_float(int32_t dtype) {
    return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || dtype == WEFT_DTYPE_F16 || dtype == WEFT_DTYPE_BF16;
}

bool wt_check_float(wt_call *call, int at) {
    const wt_tensor *t = &call->arg[at].tensor;
    return wt_is_float(t->dtype) || wt_fail(call, "%s: is %s, allowed: float32, float64, float16 or bfloat16",
                                            call->op->name[at], wt_dtype_name(t->code));
}

bool wt_check_same_type(wt_call *call, int at, int as) {
    const wt_tensor *t = &call->arg[at].tensor, *x = &call->arg[as].tensor;
    return !t->handle || t->code == x->code ||
           wt_fail(call, "%s: is %s, allowed: the type of %s, %s", call->op->name[at], wt_dtype_name(t->code),
                   call->op->name[as], wt_dtype_name(x->code));
}
