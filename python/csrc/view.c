/* Tensors on the canonical axes of a problem, n c d h w or o i d h w: seeing one that exists, making a new one,
 * putting it into a problem; and the lists of whole numbers that give a geometry. */
#include <string.h>

#include "binding.h"
#include "core/internal.h"

/* ---------------------------------------------------------------- seeing */
unsigned wt_axes(int rank, bool batch, bool channels) {
    return (unsigned)batch | (unsigned)channels << 1 | (unsigned)(28 << (3 - rank) & 28);
}

wt_view wt_see_along(const wt_tensor *t, unsigned axes) {
    wt_view v = {t->handle, t->data, t->dtype, {1, 1, 1, 1, 1}, {0}};
    for (int a = 0, i = 0; a < 5; a++)
        if (axes >> a & 1) v.dims[a] = t->sizes[i], v.strides[a] = t->strides[i++];
    return v;
}

wt_view wt_see(const wt_tensor *t, int rank) { return wt_see_along(t, wt_axes(rank, t->rank == rank + 2, true)); }

bool wt_is_last(const wt_view *v) {
    int64_t channel = v->strides[1], pixel = v->strides[4];
    return channel > 0 && (channel < pixel || (channel == pixel && v->dims[1] == 1 && v->dims[4] > 1));
}

bool wt_is_empty(const wt_view *v) {
    for (int a = 0; a < 5; a++)
        if (v->dims[a] == 0) return true;
    return false;
}

wt_view wt_see_vector(const wt_tensor *t) {
    return (wt_view){t->handle, t->data, t->dtype, {t->sizes[0]}, {t->sizes[0] > 1 ? t->strides[0] : 1}};
}

/* ---------------------------------------------------------------- making */
bool wt_dense_along(int64_t *strides, const int64_t *sizes, int64_t rank, const int *axis) {
    int64_t step = 1;
    bool fits = true;
    for (int64_t i = 0; i < rank; i++) {
        int64_t a = axis ? axis[i] : rank - 1 - i;
        strides[a] = step;
        fits = fits && !__builtin_mul_overflow(step, sizes[a] ? sizes[a] : 1, &step);
    }
    return fits;
}

bool wt_dense(int64_t strides[5], const int64_t dims[5], bool last) {
    static const int order[5] = {1, 4, 3, 2, 0};
    return wt_dense_along(strides, dims, 5, last ? order : NULL);
}

bool wt_lie_alike(int64_t rank, const int64_t *sizes, const int64_t *strides, const int64_t *others) {
    for (int64_t a = 0; a < rank; a++)
        if (sizes[a] != 1 && strides[a] != others[a]) return false;
    return true;
}

bool wt_is_dense(const wt_view *v, bool last) {
    int64_t strides[5];
    return wt_dense(strides, v->dims, last) && wt_lie_alike(5, v->dims, v->strides, strides);
}

bool wt_create_along(wt_call *call, int slot, wt_view *v, const int64_t dims[5], unsigned axes, bool last,
                     int32_t code) {
    int64_t dense[5], sizes[5], strides[5];
    wt_tensor t = {.sizes = sizes, .strides = strides, .code = code};
    if (!wt_dense(dense, dims, last))
        return wt_fail(call, "the result has %lld x %lld x %lld x %lld x %lld elements, allowed: fewer than 2^63",
                       (long long)dims[0], (long long)dims[1], (long long)dims[2], (long long)dims[3],
                       (long long)dims[4]);
    for (int a = 0; a < 5; a++)
        if (axes >> a & 1) sizes[t.rank] = dims[a], strides[t.rank++] = dense[a];
    if (!wt_result(call, slot, &t)) return false;
    *v = wt_see_along(&t, axes);
    return true;
}

bool wt_create(wt_call *call, int slot, wt_view *v, const int64_t dims[5], int rank, bool last, bool batched,
               int32_t code) {
    return wt_create_along(call, slot, v, dims, wt_axes(rank, batched, true), last, code);
}

bool wt_create_vector(wt_call *call, int slot, wt_view *v, int64_t length, int32_t code) {
    const int64_t unit = 1;
    wt_tensor t = {.rank = 1, .sizes = &length, .strides = &unit, .code = code};
    if (!wt_result(call, slot, &t)) return false;
    *v = wt_see_vector(&t);
    return true;
}

bool wt_match_format(wt_call *call, wt_view *v, int rank, bool last, bool batched, int32_t code, const char *name) {
    wt_view given = *v;
    return wt_is_dense(v, last) || (wt_create(call, -1, v, given.dims, rank, last, batched, code) &&
                                    wt_copy(call, v->handle, given.handle, name));
}

/* ---------------------------------------------------------------- into a problem */
weft_problem *wt_begin(wt_call *call, weft_op op, weft_pass pass, int rank, const wt_view *data) {
    weft_problem *p = &call->p;
    weft_problem_init(p, op, pass, rank);
    p->n = data->dims[0];
    p->c = data->dims[1];
    memcpy(p->in, data->dims + 2, sizeof(p->in));
    return p;
}

int32_t wt_alignment(const void *data) {
    uintptr_t address = (uintptr_t)data;
    return address & 15 ? (int32_t)(address & (~address + 1)) : 16;
}

void wt_describe(weft_problem *p, weft_role role, const wt_view *v) {
    weft_tensor *t = weft_problem_tensor(p, role);
    /* NONE would ask for the default, not for an error */
    t->dtype = (int16_t)(v->dtype == WEFT_DTYPE_NONE ? WEFT_DTYPE_COUNT : v->dtype);
    t->layout = WEFT_LAYOUT_STRIDED;
    t->align = wt_alignment(v->data);
    memcpy(t->strides, v->strides, sizeof(v->strides));
}

void wt_put(wt_call *call, weft_role role, const wt_view *v) {
    wt_describe(&call->p, role, v);
    call->args.ptr[role] = v->data;
}

void wt_put_all(wt_call *call, const wt_placed *tensors, size_t count) {
    const uint64_t roles = weft__roles(&call->p);
    for (size_t i = 0; i < count; i++)
        if (roles & WEFT__BIT(tensors[i].role)) wt_put(call, tensors[i].role, tensors[i].view);
}

void wt_put_vector(wt_call *call, weft_role role, int at) {
    const wt_tensor *t = &call->arg[at].tensor;
    if (!t->handle) return;
    wt_view v = wt_see_vector(t);
    wt_put(call, role, &v);
}

/* ---------------------------------------------------------------- arguments */
bool wt_read_axes(wt_call *call, int at, int rank, int64_t least, int bits, int64_t *first, int64_t *second) {
    const wt_list *list = &call->arg[at].list;
    const int per_axis = second ? 2 : 1;
    const char *name = call->op->name[at];
    if (list->size != (size_t)(per_axis * rank))
        return wt_fail(call, "%s: has %zu values, allowed: %d (%s for each of %d spatial axes)", name, list->size,
                       per_axis * rank, per_axis == 2 ? "low and high" : "one", rank);
    for (int a = 0; a < rank; a++) {
        first[3 - rank + a] = list->item[a * per_axis];
        if (second) second[3 - rank + a] = list->item[a * per_axis + 1];
    }
    return !bits || (wt_check_axes(call, name, rank, first, least, bits) &&
                     (!second || wt_check_axes(call, name, rank, second, least, bits)));
}

bool wt_check_axes(wt_call *call, const char *name, int rank, const int64_t *values, int64_t least, int bits) {
    for (int a = 3 - rank; a < 3; a++)
        if (values[a] < least || values[a] > INT64_C(1) << bits)
            return wt_fail(call, "%s: is %lld along spatial axis %d, allowed: %lld to 2^%d", name, (long long)values[a],
                           a - 3 + rank, (long long)least, bits);
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

bool wt_is_half(int32_t dtype) { return dtype == WEFT_DTYPE_F16 || dtype == WEFT_DTYPE_BF16; }
bool wt_is_float(int32_t dtype) { return dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64 || wt_is_half(dtype); }

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

bool wt_check_data(wt_call *call, int at, int least, int most, const char *allowed) {
    const wt_tensor *t = &call->arg[at].tensor;
    if (t->rank < least || t->rank > most)
        return wt_fail(call, "%s: has %lld dimensions, allowed: %s", call->op->name[at], (long long)t->rank, allowed);
    return wt_check_float(call, at) && wt_check_sizes(call, at);
}
