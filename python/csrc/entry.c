/* The builtins. Cost of a call that runs a plan of weft, without the computing: docs/enable.md. */
#include "entry.h"

#include <string.h>

static _Atomic bool opened;
bool entry_is_open(void) { return atomic_load_explicit(&opened, memory_order_relaxed); }

static py_object *register_seat; /* of Python: true if the seat is at its key */

#define ENTRY_FRONTS(X)                                \
    X(conv1d, 3, ENTRY_CONV)                           \
    X(conv2d, 3, ENTRY_CONV)                           \
    X(conv3d, 3, ENTRY_CONV)                           \
    X(conv_transpose1d, 3, ENTRY_CONV_TRANSPOSE)       \
    X(conv_transpose2d, 3, ENTRY_CONV_TRANSPOSE)       \
    X(conv_transpose3d, 3, ENTRY_CONV_TRANSPOSE)       \
    X(relu, 1, ENTRY_UNARY)                            \
    X(hardtanh, 1, ENTRY_UNARY)                        \
    X(tanh, 1, ENTRY_UNARY)                            \
    X(sigmoid, 1, ENTRY_UNARY)                         \
    X(softmax, 1, ENTRY_SOFTMAX)                       \
    X(log_softmax, 1, ENTRY_LOG_SOFTMAX)               \
    X(max_pool1d, 1, ENTRY_OTHER)                      \
    X(max_pool2d, 1, ENTRY_MAX_POOL)                   \
    X(max_pool3d, 1, ENTRY_OTHER)                      \
    X(avg_pool1d, 1, ENTRY_OTHER)                      \
    X(avg_pool2d, 1, ENTRY_AVG_POOL)                   \
    X(avg_pool3d, 1, ENTRY_OTHER)                      \
    X(adaptive_avg_pool1d, 1, ENTRY_OTHER)             \
    X(adaptive_avg_pool2d, 1, ENTRY_ADAPTIVE_AVG_POOL) \
    X(adaptive_avg_pool3d, 1, ENTRY_OTHER)             \
    X(batch_norm, 5, ENTRY_BATCH_NORM)                 \
    X(unfold, 1, ENTRY_OTHER)                          \
    X(fold, 1, ENTRY_OTHER)                            \
    X(cross_entropy, 3, ENTRY_CROSS_ENTROPY)           \
    X(dgmm, 2, ENTRY_OTHER)

/* ---------------------------------------------------------------- the ways */
bool entry_register_seat(int family, bool cuda) {
    py_object *number = py.PyLong_FromUnsignedLongLong((unsigned long long)family);
    py_object *const args[] = {number, cuda ? py._Py_TrueStruct : py._Py_FalseStruct};
    py_object *answer = number ? py.PyObject_Vectorcall(register_seat, args, 2, NULL) : NULL;
    if (!answer) py.PyErr_Clear();
    bool yes = answer == py._Py_TrueStruct;
    if (answer) py.Py_DecRef(answer);
    if (number) py.Py_DecRef(number);
    return yes;
}

bool entry_on_cuda(const entry_call *k) { return k->in[0].device_type == wt.aoti_torch_device_type_cuda(); }

bool entry_enter_device(const entry_call *k, wt_handle *guard) {
    *guard = NULL;
    return !entry_on_cuda(k) || (wt_shim_has_cuda() && !wt.aoti_torch_create_cuda_guard(k->in[0].device_index, guard));
}

void entry_leave_device(wt_handle guard) {
    if (guard) wt.aoti_torch_delete_cuda_guard(guard);
}

/* Trailing arguments that are the defaults, the very objects, need not be read by PyTorch. */
static size_t arguments_of(const entry_call *k) {
    intptr_t known = py.PyTuple_Size(k->front->defaults), n = k->nargs;
    while (known > 0 && k->arg[n - 1] == py.PyTuple_GetItem(k->front->defaults, known - 1)) n--, known--;
    return (size_t)n;
}

/* Marked for the seat, or past it, also where PyTorch's operator calls others that have one. */
static py_object *by_torch(const entry_call *k, entry_record *r, bool marked) {
    void (*pass)(int) = marked ? wt_seat_mark : wt_seat_bypass;
    wt_handle out = NULL;
    pass(1);
    py_object *result = NULL;
    if (entry_call_torch(k, r, &out))
        result = entry_wrap(out);
    else if (!py.PyErr_Occurred()) /* one of Python's own, as of a hook, stands already */
        result = py.PyObject_Vectorcall(k->front->builtin, k->arg, arguments_of(k), NULL);
    pass(-1);
    if (!marked) wt_note_torch();
    return result;
}

static py_object *by_seat(const entry_call *k, entry_record *r) {
    wt_handle out = NULL;
    const void *packed = NULL;
    py_object *pack = k->packs ? entry_pack(k, r, &packed) : NULL;
    r->refs++;
    void *thread = r->slow ? py.PyEval_SaveThread() : NULL;
    wt_handle guard;
    bool ok = entry_enter_device(k, &guard) && entry_run_seat(k, r, packed, &out);
    entry_leave_device(guard);
    if (thread) py.PyEval_RestoreThread(thread);
    if (pack) py.Py_DecRef(pack);
    entry_release(r);
    return ok ? entry_wrap(out) : entry_refuse();
}

static py_object *by_operator(const entry_call *k, entry_record *r) {
    wt_handle out[WT_MAX_OUTS];
    r->refs++;
    int n = entry_run_op(k, r, out);
    entry_release(r);
    for (int i = 1; i < n; i++) wt.aoti_torch_delete_tensor_object(out[i]);
    return n > 0 ? entry_wrap(out[0]) : entry_refuse();
}

/* PyTorch's builtins take bounds in any order, its functions do not. */
static bool has_order(const entry_call *k) {
    if (k->nargs == 1) return true;
    const py_object *lo = k->arg[1]->type, *hi = k->arg[2]->type;
    return (lo == py.PyFloat_Type || lo == py.PyLong_Type) && (hi == py.PyFloat_Type || hi == py.PyLong_Type) &&
           py.PyFloat_AsDouble(k->arg[1]) <= py.PyFloat_AsDouble(k->arg[2]);
}

/* A gradient recorded from Python costs 10 us, which a comparison never earns back, and tanh and sigmoid only where
 * there is much to compute: elsewhere they are PyTorch's. */
static bool is_left(const entry_call *k) {
    const wt_tensor *x = &k->in[0];
    bool compares = !strcmp(k->front->name, "relu") || !strcmp(k->front->name, "hardtanh");
    return k->records && (compares || wt_count(x->sizes, x->rank) < 1 << 16);
}

/* Training batch norm has more results than its operator here, and writes. */
static bool trains(const entry_call *k) {
    return k->front->kind == ENTRY_BATCH_NORM && k->nargs > 5 && k->arg[5] == py._Py_TrueStruct;
}

static entry_record *decide(entry_call *k) {
    const bool conv = k->front->kind == ENTRY_CONV || k->front->kind == ENTRY_CONV_TRANSPOSE;
    entry_record draft = {.refs = 1};
    entry_way way = ENTRY_UNKNOWN;
    wt_handle guard;
    if (!entry_enter_device(k, &guard)) return NULL;
    if (conv || ((k->records || trains(k)) && entry_has_seat(k))) way = entry_decide_seat(k, &draft);
    entry_leave_device(guard);
    if (k->front->kind == ENTRY_UNARY && has_order(k) && is_left(k)) way = ENTRY_TORCH;
    if (way == ENTRY_UNKNOWN) {
        entry_offer(k);
        return NULL;
    }
    entry_record *r = entry_keep(k, way);
    if (r) r->slow = draft.slow, r->seat = draft.seat;
    if (!r) seat_release(draft.seat);
    return r;
}

bool entry_read_call(entry_call *k) {
    bool wanted = false;
    if (k->nargs < k->front->tensors || !entry_is_open() || !entry_is_plain_here()) return false;
    for (int i = 0; i < k->front->tensors; i++) {
        const wt_tensor *first = &k->in[0], *t = &k->in[i];
        if (!entry_read(k->arg[i], &k->in[i])) return false;
        if (t->handle && (t->device_type != first->device_type || t->device_index != first->device_index)) return false;
        wanted |= k->wants[i] = entry_requires_grad(&k->in[i]);
    }
    k->records = wanted && entry_records();
    for (int i = 0; i < k->front->tensors && !k->records; i++) k->wants[i] = false;
    return entry_make_key(k);
}

static py_object *enter(entry_front *front, py_object *const *args, intptr_t nargs) {
    entry_call k;
    k.front = front, k.arg = args, k.nargs = (int)nargs, k.packs = NULL;
    if (nargs && args[nargs - 1]->type == py.PyDict_Type) k.packs = args[--k.nargs];
    entry_offer(NULL);
    if (!entry_read_call(&k)) return entry_refuse();
    entry_record *r = entry_look(&k);
    if (!r) r = decide(&k);
    switch (r ? r->way : ENTRY_LONG) {
    case ENTRY_TORCH:
        return by_torch(&k, r, false);
    case ENTRY_MARK:
        return by_torch(&k, r, true);
    case ENTRY_SEAT:
    case ENTRY_SHIM:
        return by_seat(&k, r);
    case ENTRY_OP:
        return by_operator(&k, r);
    case ENTRY_UNKNOWN:
    case ENTRY_LONG:
        break;
    }
    return entry_refuse();
}

/* ---------------------------------------------------------------- for Python */
#define X(name, tensors, kind) FRONT_##name,
enum { ENTRY_FRONTS(X) FRONT_COUNT };
#undef X
static entry_front fronts[] = {
#define X(name, tensors, kind) {#name, tensors, kind, 0, NULL, NULL, NULL},
    ENTRY_FRONTS(X)
#undef X
};
#define X(name, tensors, kind)                                                                \
    static py_object *enter_##name(py_object *self, py_object *const *args, intptr_t nargs) { \
        (void)self;                                                                           \
        return enter(&fronts[FRONT_##name], args, nargs);                                     \
    }
ENTRY_FRONTS(X)
#undef X
static py_method methods[] = {
#define X(name, tensors, kind) {#name, enter_##name, PY_FASTCALL, NULL},
    ENTRY_FRONTS(X)
#undef X
};

/* The builtin of a front, in front of PyTorch's; defaults: a tuple. */
WEFT_API py_object *weft_torch_entry(const char *name, py_object *builtin, py_object *defaults) {
    for (int i = 0; i < FRONT_COUNT; i++) {
        if (strcmp(fronts[i].name, name)) continue;
        py.Py_IncRef(builtin);
        py.Py_IncRef(defaults);
        fronts[i].builtin = builtin, fronts[i].defaults = defaults;
        *(void **)&fronts[i].torch = entry_find_torch(name);
        fronts[i].rank = name[strlen(name) - 2] - '0'; /* conv2d */
        return py.PyCFunction_NewEx(&methods[i], NULL, NULL);
    }
    return entry_none();
}

WEFT_API void weft_torch_entry_seat(py_object *function) {
    py.Py_IncRef(function);
    register_seat = function;
}

/* Open: the planner chooses freely. */
WEFT_API void weft_torch_entry_open(int32_t open) { atomic_store(&opened, open); }
