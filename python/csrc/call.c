/* One operator call: arguments off PyTorch's stack, results onto it, nothing leaked on any path.
 * The kernel owns each argument. Lists, strings and boxes are copied and freed while decoding; tensors live until
 * the end. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "binding.h"
#include "core/internal.h"

bool wt_fail(wt_call *call, const char *format, ...) {
    va_list args;
    if (!call) return false;
    va_start(args, format);
    vsnprintf(call->error, sizeof(call->error), format, args);
    va_end(args);
    return false;
}

/* ---------------------------------------------------------------- data types */
static struct {
    int32_t code;
    int dtype;
    const char *name;
} dtypes[10];

void wt_dtypes_init(void) {
    size_t n = 0;
#define ADD(torch, weft) \
    dtypes[n].code = wt.aoti_torch_dtype_##torch(), dtypes[n].dtype = weft, dtypes[n++].name = #torch
    ADD(float32, WEFT_DTYPE_F32);
    ADD(float64, WEFT_DTYPE_F64);
    ADD(float16, WEFT_DTYPE_F16);
    ADD(bfloat16, WEFT_DTYPE_BF16);
    ADD(uint8, WEFT_DTYPE_U8);
    ADD(int32, WEFT_DTYPE_I32);
    ADD(int64, WEFT_DTYPE_I64);
    ADD(bool, WEFT_DTYPE_U8);
    ADD(complex64, WEFT_DTYPE_C64);
    ADD(complex128, WEFT_DTYPE_C128);
#undef ADD
}

const char *wt_dtype_name(int32_t code) {
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (dtypes[i].code == code) return dtypes[i].name;
    return "another type";
}

int wt_dtype_of(int32_t code) {
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++)
        if (dtypes[i].code == code) return dtypes[i].dtype;
    return WEFT_DTYPE_NONE;
}

int32_t wt_wide_code(int32_t code) {
    return wt_dtype_of(code) == WEFT_DTYPE_F64 ? code : wt.aoti_torch_dtype_float32();
}

void wt_shape_text(char text[96], int64_t rank, const int64_t *sizes) {
    int n = snprintf(text, 96, "[");
    for (int64_t a = 0; a < rank && n < 70; a++)
        n += snprintf(text + n, 96 - (size_t)n, a ? ", %lld" : "%lld", (long long)sizes[a]);
    snprintf(text + n, 96 - (size_t)n, "]");
}

bool wt_check_shape(wt_call *call, const char *name, const wt_tensor *t, int64_t rank, const int64_t *sizes,
                    const char *whose) {
    bool same = t->rank == rank;
    for (int64_t a = 0; same && a < rank; a++) same = t->sizes[a] == sizes[a];
    if (same) return true;
    char got[96], allowed[96];
    wt_shape_text(got, t->rank, t->sizes);
    wt_shape_text(allowed, rank, sizes);
    return wt_fail(call, "%s: has the shape %s, allowed: %s%s", name, got, whose, allowed);
}

/* ---------------------------------------------------------------- the schema: "name(Type arg, ...) -> ..." */
static bool compose(wt_op *op) {
    static const char *const given[] = {"", ", Tensor(a!) out", ", Tensor(a!) out, Tensor(b!) out1"};
    const char *results = strstr(op->schema, ") ->");
    int length = snprintf(op->text, sizeof(op->text), "%s%s%.*s%s%s", op->base, op->into ? "_out" : "",
                          (int)(results - op->schema), op->schema, given[op->into], op->into ? ") -> ()" : results);
    op->nout = 0;
    while ((results = strstr(results + 1, "Tensor"))) op->nout++;
    return length > 0 && (size_t)length < sizeof(op->text);
}

const char *wt_op_prepare(wt_op *op) {
    static const struct {
        const char *type;
        wt_kind kind;
    } kinds[] = {
        {"SymInt[]", WT_LIST},    {"SymInt", WT_INT}, {"int", WT_INT},  {"bool", WT_BOOL},
        {"ScalarType", WT_DTYPE}, {"float", WT_REAL}, {"str", WT_TEXT},
    };
    static const char *const names[] = {
#define NAME(name) #name,
#include "operators.def"
    };
    if (!compose(op)) return op->schema;
    const char *s = strchr(op->text, '(');
    op->nargs = 0;
    while (s && *s != ')') {
        s += strspn(s, "(, ");
        size_t type = strcspn(s, " "), name = strcspn(s + type + 1, ",)"), k = 0,
               count = sizeof(kinds) / sizeof(kinds[0]);
        const bool tensor = !strncmp(s, "Tensor", 6); /* (a!) behind it: written to */
        while (!tensor && k < count && (strlen(kinds[k].type) != type || strncmp(kinds[k].type, s, type))) k++;
        if (k == count || op->nargs == WT_MAX_ARGS || name >= sizeof(op->name[0])) return op->schema;
        op->kind[op->nargs] = !tensor ? kinds[k].kind : s[type - 1] == '?' ? WT_TENSOR_OR_NONE : WT_TENSOR;
        memcpy(op->name[op->nargs++], s + type + 1, name);
        s += type + 1 + name;
    }
    for (int i = 0; i < WT_NAMES; i++) {
        op->at[i] = -1;
        for (int j = 0; j < op->nargs; j++)
            if (!strcmp(names[i], op->name[j])) op->at[i] = (int8_t)j;
    }
    return s ? NULL : op->schema;
}

/* ---------------------------------------------------------------- decoding */
wt_error wt_read_tensor(wt_handle handle, wt_tensor *t) {
    const void *data = NULL;
    t->handle = handle; /* first, so that it is freed whatever follows */
    wt_error failed = wt.aoti_torch_get_dim(handle, &t->rank);
    failed |= wt.aoti_torch_get_sizes(handle, (int64_t **)&t->sizes);
    failed |= wt.aoti_torch_get_strides(handle, (int64_t **)&t->strides);
    failed |= wt.aoti_torch_get_dtype(handle, &t->code);
    failed |= wt.aoti_torch_get_device_type(handle, &t->device_type);
    failed |= wt.aoti_torch_get_device_index(handle, &t->device_index);
    failed |= wt.torch_get_const_data_ptr(handle, &data);
    t->data = (void *)(uintptr_t)data; /* the roles of a problem say which pointers are only read */
    t->dtype = wt_dtype_of(t->code);
    return failed;
}

static bool take_tensor(wt_call *call, const char *name, wt_handle handle, wt_tensor *t) {
    return !wt_read_tensor(handle, t) || wt_fail(call, "%s: not a dense tensor with memory of its own", name);
}

wt_error wt_read_list(wt_handle list, wt_list *out) {
    wt_value item = 0;
    out->size = 0;
    wt_error failed = wt.torch_list_size(list, &out->size);
    for (size_t i = 0; i < out->size && i < WT_MAX_LIST; i++) {
        failed |= wt.torch_list_get_item(list, i, &item);
        out->item[i] = (int64_t)item;
    }
    wt.torch_delete_list(list);
    return failed;
}

static bool take_list(wt_call *call, const char *name, wt_handle list, wt_list *out) {
    if (wt_read_list(list, out)) return wt_fail(call, "%s: the list cannot be read", name);
    return out->size <= WT_MAX_LIST ||
           wt_fail(call, "%s: has %zu values, allowed: at most %d", name, out->size, WT_MAX_LIST);
}

static bool take_text(wt_call *call, const char *name, wt_handle string, char *out, size_t capacity) {
    const char *text = NULL;
    wt_error failed = wt.torch_string_c_str(string, &text);
    int length = failed ? 0 : snprintf(out, capacity, "%s", text);
    wt.torch_delete_string(string);
    if (failed || (size_t)length >= capacity) return wt_fail(call, "%s: '%s...' is too long", name, failed ? "" : out);
    return true;
}

wt_handle wt_unbox(wt_value slot) {
    wt_value *box = (wt_value *)(uintptr_t)slot, content = *box;
    if (wt.torch_delete_stable_ivalue)
        wt.torch_delete_stable_ivalue(box);
    else
        wt._ZdlPv(box);
    return (wt_handle)(uintptr_t)content;
}

static bool take_one(wt_call *call, int i, wt_value slot) {
    wt_arg *arg = &call->arg[i];
    const char *name = call->op->name[i];
    switch (call->op->kind[i]) {
    case WT_TENSOR:
        return take_tensor(call, name, (wt_handle)(uintptr_t)slot, &arg->tensor);
    case WT_TENSOR_OR_NONE:
        return slot ? take_tensor(call, name, wt_unbox(slot), &arg->tensor) : true;
    case WT_LIST:
        return take_list(call, name, (wt_handle)(uintptr_t)slot, &arg->list);
    case WT_TEXT:
        return take_text(call, name, (wt_handle)(uintptr_t)slot, arg->text, sizeof(arg->text));
    case WT_INT:
        arg->integer = (int64_t)slot;
        return true;
    case WT_BOOL:
        arg->integer = slot & 0xff;
        return true;
    case WT_DTYPE:
        arg->integer = (int32_t)(slot & 0xffffffff);
        return true;
    case WT_REAL:
        memcpy(&arg->real, &slot, sizeof(slot));
        return true;
    }
    return true;
}

/* Argument i, if it is a tensor and given; else NULL. */
static wt_tensor *tensor_of(wt_call *call, int i) {
    return wt_is_tensor(call->op, i) && call->arg[i].tensor.handle ? &call->arg[i].tensor : NULL;
}

static const char *device_name(int32_t type) {
    return type == wt.aoti_torch_device_type_cpu()    ? "cpu"
           : type == wt.aoti_torch_device_type_cuda() ? "cuda"
                                                      : "another device";
}

/* Where the calls for shapes of this thread will run. */
static _Thread_local bool shapes_on_cuda;
WEFT_API void weft_torch_shapes_on_cuda(bool cuda) { shapes_on_cuda = cuda; }

/* All tensors on the device of the first, which must be one weft runs on; it becomes PyTorch's current one for the
 * call. Tensors of the device "meta" have no memory: the call is for shapes. */
static bool enter_device(wt_call *call) {
    const wt_tensor *first = &call->arg[0].tensor, *t;
    for (int i = 1; i < call->op->nargs; i++) {
        if (i == AT(batch_sizes)) continue; /* it lies on the CPU whatever the device */
        if ((t = tensor_of(call, i)) &&
            (t->device_type != first->device_type || t->device_index != first->device_index))
            return wt_fail(call, "%s: is on %s (index %d), allowed: the device of %s, %s (index %d)", call->op->name[i],
                           device_name(t->device_type), t->device_index, call->op->name[0],
                           device_name(first->device_type), first->device_index);
    }
    call->device_type = first->device_type;
    call->device_index = first->device_index;
    call->shape = first->device_type == wt.aoti_torch_device_type_meta();
    call->cuda = call->shape ? shapes_on_cuda : first->device_type == wt.aoti_torch_device_type_cuda();
    if (call->shape) return true;
    if (first->device_type == wt.aoti_torch_device_type_cpu()) return true;
    if (first->device_type != wt.aoti_torch_device_type_cuda() || !wt_shim_has_cuda())
        return wt_fail(call, "%s: is on %s, allowed: a CPU tensor, or a CUDA tensor of a PyTorch built with CUDA",
                       call->op->name[0], device_name(first->device_type));
    if (wt.aoti_torch_create_cuda_guard(first->device_index, &call->guard))
        return wt_fail(call, "%s: cuda:%d cannot be made the current device", call->op->name[0], first->device_index);
    return true;
}

/* ---------------------------------------------------------------- results */
bool wt_new(wt_tensor *t, const wt_tensor *beside, wt_handle *place) {
    t->dtype = wt_dtype_of(t->code);
    t->device_type = beside->device_type, t->device_index = beside->device_index;
    bool ok =
        !wt.aoti_torch_empty_strided(t->rank, t->sizes, t->strides, t->code, t->device_type, t->device_index, place);
    t->handle = *place;
    return ok && !wt.aoti_torch_get_data_ptr(t->handle, &t->data);
}

const char *wt_torch_error(const char *otherwise) {
    return wt.torch_exception_get_what_without_backtrace ? wt.torch_exception_get_what_without_backtrace() : otherwise;
}

bool wt_no_room(wt_call *call, const wt_tensor *t) {
    return wt_fail(call, "PyTorch could not allocate %lld elements of %s on %s: %s",
                   (long long)wt_count(t->sizes, t->rank), wt_dtype_name(t->code), device_name(t->device_type),
                   wt_torch_error(WT_NO_REASON));
}

bool wt_empty(wt_call *call, wt_handle *place, wt_tensor *t) {
    return wt_new(t, &call->arg[0].tensor, place) || wt_no_room(call, t);
}

bool wt_scratch(wt_call *call, wt_tensor *t) {
    if (call->nscratch == WT_MAX_SCRATCH) return wt_fail(call, "more scratch is asked for than there is room for");
    return wt_empty(call, &call->scratch[call->nscratch++], t);
}

bool wt_zero(wt_call *call, wt_handle tensor) {
    return !wt.aoti_torch_zero_(tensor) || wt_fail(call, "a result could not be set to 0");
}

bool wt_copy(wt_call *call, wt_handle into, wt_handle from, const char *name) {
    return !wt.aoti_torch_copy_(into, from, 0) || wt_fail(call, "%s: could not be copied", name);
}

/* The bytes from a tensor's first element to its last; dense: no gaps between them. */
static size_t extent(const wt_tensor *t, bool *dense) {
    int64_t last = 0, count = 1;
    for (int64_t a = 0; a < t->rank; a++) {
        if (!t->sizes[a]) return 0;
        last += (t->sizes[a] - 1) * t->strides[a];
        count *= t->sizes[a];
    }
    *dense = last + 1 == count;
    return (size_t)(last + 1) * weft__dtype_size(t->dtype);
}

/* Views with gaps may lie between each other, and are the caller's to keep apart. */
static bool shares(const wt_tensor *a, const wt_tensor *b) {
    bool dense_a = false, dense_b = false;
    size_t of_a = extent(a, &dense_a), of_b = extent(b, &dense_b);
    uintptr_t at_a = (uintptr_t)a->data, at_b = (uintptr_t)b->data;
    return (dense_a && dense_b) || at_a == at_b ? at_a < at_b + of_b && at_b < at_a + of_a : false;
}

static bool is_same(const wt_tensor *a, const wt_tensor *b) {
    return a->data == b->data && a->rank == b->rank &&
           !memcmp(a->sizes, b->sizes, (size_t)a->rank * sizeof(*a->sizes)) &&
           wt_lie_alike(a->rank, a->sizes, a->strides, b->strides);
}

static bool check_out(wt_call *call, int at, const wt_tensor *result) {
    const wt_tensor *out = &call->arg[at].tensor;
    const char *name = call->op->name[at];
    if (!wt_check_shape(call, name, out, result->rank, result->sizes, "the shape of the result, ")) return false;
    if (out->code != result->code)
        return wt_fail(call, "%s: is %s, allowed: the type of the result, %s", name, wt_dtype_name(out->code),
                       wt_dtype_name(result->code));
    for (int64_t a = 0; a < out->rank; a++)
        if (out->sizes[a] > 1 && out->strides[a] == 0)
            return wt_fail(call, "%s: is expanded along dimension %lld, allowed: memory for every element", name,
                           (long long)a);
    const wt_tensor *t;
    for (int i = 0; i < call->op->nargs; i++)
        if (i != at && !call->shape && (t = tensor_of(call, i)) && shares(out, t) &&
            !(call->op->in_place && i == 0 && is_same(out, t)))
            return wt_fail(call, "%s: shares memory with %s, allowed: memory of its own", name, call->op->name[i]);
    return true;
}

bool wt_result(wt_call *call, int slot, wt_tensor *t) {
    if (slot < 0) return wt_scratch(call, t);
    if (slot >= call->op->into) return wt_empty(call, &call->out[slot], t);
    int at = call->op->nargs - call->op->into + slot;
    if (!check_out(call, at, t)) return false;
    call->once |= call->op->in_place;
    *t = call->arg[at].tensor;
    return true;
}

static void drop(wt_handle *tensor) {
    if (*tensor) wt.aoti_torch_delete_tensor_object(*tensor);
    *tensor = NULL;
}

void wt_call_begin(wt_call *call, const wt_op *op) {
    call->op = op;
    call->guard = NULL;
    call->nscratch = 0;
    call->once = call->shape = call->made = call->cuda = false;
    call->p.size = sizeof(call->p);
    call->args = (weft_args)WEFT_ARGS_INIT;
    memset(call->out, 0, sizeof(call->out));
    memset(call->scratch, 0, sizeof(call->scratch));
    for (int i = 0; i < op->nargs; i++) call->arg[i].tensor.handle = NULL;
}

bool wt_call_run(wt_call *call) {
    wt_kernels_clear();
    bool ok = enter_device(call) && (call->op->run(call) || call->made);
    for (int i = 0; i < call->nscratch; i++) drop(&call->scratch[i]);
    if (call->guard) wt.aoti_torch_delete_cuda_guard(call->guard);
    return ok;
}

void wt_dispatch(const wt_op *op, wt_value *stack, uint64_t nin, uint64_t nout) {
    wt_call call;
    bool ok = true;
    wt_call_begin(&call, op);
    /* Every argument is decoded even after a failure: each one must be freed. */
    for (int i = 0; i < op->nargs && (uint64_t)i < nin; i++) ok &= take_one(&call, i, stack[i]);
    ok = ok && wt_call_run(&call);
    for (int i = 0; i < op->nargs; i++)
        if (tensor_of(&call, i)) drop(&call.arg[i].tensor.handle);
    if (ok) {
        for (uint64_t i = 0; i < nout && i < WT_MAX_OUTS; i++) stack[i] = (wt_value)(uintptr_t)call.out[i];
        /* what an operator with out makes besides */
        for (uint64_t i = nout; i < WT_MAX_OUTS; i++) drop(&call.out[i]);
        return;
    }
    for (int i = 0; i < WT_MAX_OUTS; i++) drop(&call.out[i]);
    char message[sizeof(call.error) + 64];
    int length = (int)strcspn(op->text, "(");
    snprintf(message, sizeof(message), "weft::%.*s: %s", length, op->text, call.error);
    wt.aoti_torch_check(false, "wt_dispatch", "python/csrc/call.c", __LINE__, message);
}
