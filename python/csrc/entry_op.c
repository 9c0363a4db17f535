/* weft's own operators without the dispatcher. Python's long way reads the arguments of a function and ends in an
 * operator: `run` calls that one here, by its schema. If a front has refused the call before, what ran is noted; the
 * long way ends with `kept`, and it becomes the answer: the operator and its settings, or PyTorch's builtin where
 * PyTorch won. */
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "settings.h"

/* ---------------------------------------------------------------- arguments by the schema */
static bool read_text(py_object *value, char *to, size_t capacity) {
    intptr_t size = 0;
    if (value->type != py.PyUnicode_Type) return false;
    const char *text = py.PyUnicode_AsUTF8AndSize(value, &size);
    if (!text) py.PyErr_Clear();
    if (!text || (size_t)size >= capacity) return false;
    memcpy(to, text, (size_t)size + 1);
    return true;
}

/* What cannot be read is the dispatcher's. */
static bool read_one(wt_kind kind, py_object *value, wt_arg *to) {
    switch (kind) {
    case WT_TENSOR:
        return value != py._Py_NoneStruct && entry_read(value, &to->tensor);
    case WT_TENSOR_OR_NONE:
        return entry_read(value, &to->tensor);
    case WT_LIST:
        return entry_ints(value, to->list.item, WT_MAX_LIST, &to->list.size);
    case WT_INT:
        return entry_int(value, &to->integer);
    case WT_BOOL:
        to->integer = value == py._Py_TrueStruct;
        return value == py._Py_TrueStruct || value == py._Py_FalseStruct;
    case WT_REAL:
        if (value->type != py.PyFloat_Type) return false;
        to->real = py.PyFloat_AsDouble(value);
        return true;
    case WT_TEXT:
        return read_text(value, to->text, sizeof(to->text));
    case WT_DTYPE:
        return entry_read_dtype(value, &to->integer);
    }
    return false;
}

static bool read_all(const wt_op *op, py_object *const *args, intptr_t nargs, wt_arg *to) {
    bool ok = nargs == op->nargs;
    for (int i = 0; ok && i < op->nargs; i++) ok = read_one(op->kind[i], args[i], &to[i]);
    return ok;
}

bool entry_read_op(long long number, py_object *const *args, intptr_t nargs, wt_call *call) {
    wt_call_begin(call, &wt_ops[number]);
    return read_all(call->op, args, nargs, call->arg);
}

/* ---------------------------------------------------------------- running */
/* Results are in call->out; false: nothing is, and the dispatcher will say why. */
static bool run(wt_call *call, bool slow) {
    void *thread = slow ? py.PyEval_SaveThread() : NULL;
    bool ok = wt_call_run(call);
    if (thread) py.PyEval_RestoreThread(thread);
    for (int i = 0; i < WT_MAX_OUTS && !ok; i++) wt_drop(call, i);
    return ok;
}

static bool replay(const entry_call *k, const entry_record *r, wt_handle *out) {
    void *slot[ENTRY_TENSORS + 1], *thread = r->slow ? py.PyEval_SaveThread() : NULL;
    wt_handle guard;
    wt_tensor y = {.data = NULL};
    *out = NULL;
    bool ok = entry_enter_device(k, &guard) && seat_make(&r->replay->out, &k->in[0], &y, out);
    for (int i = 0; i < k->front->tensors; i++) slot[i] = k->in[i].data;
    slot[ENTRY_RESULT] = y.data;
    wt_kernels_clear();
    ok = ok && seat_run_step(&r->replay->step, slot, NULL, &k->in[0]);
    entry_leave_device(guard);
    if (thread) py.PyEval_RestoreThread(thread);
    if (*out && !ok) wt.aoti_torch_delete_tensor_object(*out);
    return ok;
}

int entry_run_op(const entry_call *k, const entry_record *r, wt_handle out[WT_MAX_OUTS]) {
    wt_call call;
    if (r->replay) return replay(k, r, out) ? 1 : -1;
    wt_call_begin(&call, r->op);
    memcpy(call.arg, r->arg, (size_t)r->op->nargs * sizeof(call.arg[0]));
    for (int i = 0; i < r->op->nargs; i++) {
        wt_arg *a = &call.arg[i];
        if (wt_is_tensor(r->op, i)) a->tensor = k->in[a->integer]; /* where it stands in the front's arguments */
    }
    if (!run(&call, r->slow)) return -1;
    int n = 0;
    while (n < r->op->nout) out[n] = call.out[n], n++;
    return n;
}

/* ---------------------------------------------------------------- learning */
/* The call of this thread that a front has refused, and what the long way has run for it since. */
static _Thread_local struct {
    bool waits;
    entry_call call; /* of its arguments only the key is used: they may be gone */
    const void *impl[ENTRY_TENSORS];
    int runs;      /* of operators */
    entry_way way; /* of the last one, UNKNOWN: no answer */
    const wt_op *op;
    wt_arg arg[WT_MAX_ARGS];
    bool replays;
    entry_replay replay; /* its plan is a reference */
} offered;

static const void *impl_of(const wt_tensor *t) { return t->handle ? *(void **)t->handle : NULL; }

static void forget_plan(void);

void entry_offer(const entry_call *k) {
    offered.waits = k != NULL;
    if (!k) return;
    forget_plan();
    offered.runs = 0;
    offered.way = ENTRY_UNKNOWN;
    memcpy(&offered.call, k, sizeof(*k));
    for (int i = 0; i < k->front->tensors; i++) offered.impl[i] = impl_of(&k->in[i]);
}

/* Which of the front's tensors it is; -1: another one. */
static int place_of(const wt_tensor *t) {
    for (int i = 0; i < offered.call.front->tensors; i++)
        if (offered.impl[i] == impl_of(t)) return i;
    return -1;
}

static void forget_plan(void) {
    if (offered.replays) weft_plan_release(offered.replay.step.plan);
    offered.replays = false;
}

/* Is what ran one plan on tensors of the front and on the one result? Takes the capture's plan over if so. */
static bool can_replay(const wt_call *call, wt_capture *ran) {
    seat_step *step = &offered.replay.step;
    seat_shape *out = &offered.replay.out;
    wt_tensor y;
    if (ran->runs != 1 || call->nscratch || call->op->nout != 1 || wt_read_tensor(call->out[0], &y) || y.rank > 8)
        return false;
    *out = (seat_shape){.rank = (int)y.rank, .code = y.code};
    memcpy(out->sizes, y.sizes, (size_t)y.rank * sizeof(out->sizes[0]));
    memcpy(out->strides, y.strides, (size_t)y.rank * sizeof(out->strides[0]));
    *step = (seat_step){.plan = ran->plan};
    for (int role = 0; role < WEFT_MAX_ROLES; role++) {
        const void *data = ran->args.ptr[role];
        int place = data == y.data ? ENTRY_RESULT : -1;
        for (int i = 0; i < call->op->nargs && data && place < 0; i++)
            if (wt_is_tensor(call->op, i) && call->arg[i].tensor.handle && call->arg[i].tensor.data == data)
                place = place_of(&call->arg[i].tensor);
        if (data && (place < 0 || step->n == (int)sizeof(step->role))) return false;
        if (data) step->role[step->n] = (uint8_t)role, step->slot[step->n++] = (uint8_t)place;
    }
    ran->plan = NULL;
    return true;
}

static void note(const wt_call *call, bool torchs, wt_capture *ran) {
    const wt_op *op = call->op;
    bool ok = offered.runs++ == 0 && !offered.call.records;
    for (int i = 0; ok && i < op->nargs; i++) {
        offered.arg[i] = call->arg[i];
        if (!wt_is_tensor(op, i)) continue;
        memset(&offered.arg[i], 0, sizeof(offered.arg[i]));
        offered.arg[i].integer = place_of(&call->arg[i].tensor);
        ok = offered.arg[i].integer >= 0;
    }
    offered.op = op;
    forget_plan();
    offered.replays = ok && !torchs && can_replay(call, ran);
    offered.way = !ok ? ENTRY_UNKNOWN : torchs ? ENTRY_TORCH : ENTRY_OP;
}

/* Only of a call that is under way: the sizes are the tensor's own. */
static int64_t count_of_first(void) { return wt_count(offered.call.in[0].sizes, offered.call.in[0].rank); }

static void learn(void) {
    const size_t bytes = offered.way == ENTRY_OP ? (size_t)offered.op->nargs * sizeof(wt_arg) : 0;
    wt_arg *arg = bytes ? malloc(bytes) : NULL;
    const bool known = (bytes && !arg) || entry_look(&offered.call);
    entry_record *r = known ? NULL : entry_keep(&offered.call, offered.way);
    if (!r) {
        free(arg);
        return;
    }
    if (bytes) memcpy(arg, offered.arg, bytes);
    r->op = offered.op;
    r->arg = arg;
    r->slow = offered.way != ENTRY_TORCH || count_of_first() > ENTRY_LONG_COUNT;
    if (!offered.replays || !(r->replay = malloc(sizeof(*r->replay)))) return;
    *r->replay = offered.replay;
    r->slow = wt_estimate(r->replay->step.plan) > ENTRY_LONG_NS;
    offered.replays = false;
}

/* kept(result of the long way) -> the same: what has run for the call that was refused is its answer from now on. */
static py_object *kept(py_object *self, py_object *const *args, intptr_t nargs) {
    (void)self;
    if (nargs != 1) return entry_refuse();
    if (offered.waits && offered.way != ENTRY_UNKNOWN) learn();
    offered.waits = false;
    py.Py_IncRef(args[0]);
    return args[0];
}

/* update(x, conv_state, weight, bias, cache_seqlens, conv_state_indices, silu) -> the result of causal_conv1d_update.
 * conv_state is changed, which the caller counts. The numbers of places and rows are read at each call: with them the
 * operator itself runs. */
static py_object *update(py_object *self, py_object *const *args, intptr_t nargs) {
    enum { STATE = 1, LENGTHS = 4, INDEX = 5, TENSORS = 6 };
    static entry_front front = {"causal_conv1d_update", TENSORS, ENTRY_OTHER, 0, NULL, NULL, NULL};
    entry_call k = {.front = &front, .arg = args, .nargs = (int)nargs};
    wt_call call;
    (void)self;
    entry_offer(NULL);
    if (nargs != TENSORS + 1 || !entry_read_call(&k) || !k.in[STATE].handle || !entry_may_write(args[STATE]))
        return entry_refuse();
    entry_record *r = entry_look(&k);
    if (r && r->replay) {
        wt_handle out;
        r->refs++;
        const bool ok = replay(&k, r, &out);
        entry_release(r);
        return ok ? entry_wrap(out) : entry_refuse();
    }
    wt_call_begin(&call, &wt_ops[WT_OP_causal_conv1d_update]);
    if (!read_all(call.op, args, nargs, call.arg)) return entry_refuse();
    const bool replays = !r && !k.in[LENGTHS].handle && !k.in[INDEX].handle;
    wt_capture ran = {.runs = 0};
    k.records = false; /* whatever the weight requires */
    if (replays) entry_offer(&k), wt_capture_into(&ran);
    const bool ok = run(&call, true);
    wt_capture_into(NULL);
    if (ok && replays) note(&call, false, &ran);
    if (ok && replays && offered.way != ENTRY_UNKNOWN) learn();
    offered.waits = false;
    weft_plan_release(ran.plan);
    return ok ? entry_wrap(call.out[0]) : entry_refuse();
}

/* PyTorch's estimate counts that a gradient recorded from Python costs 10 us more than its own. Without one, a problem
 * that weft computes in less time than PyTorch's builtin takes to come to its kernel is weft's, and on CUDA one that is
 * no more than a launch: `call` and `ran` become those of weft's plan. */
static void run_alone(wt_call *call, wt_capture *ran) {
    const int64_t count = count_of_first();
    if (offered.call.records || offered.call.front->tensors > 1 || call->once || !count || count > ENTRY_SHORT_COUNT ||
        wt_settings()->mode == WEFT_MODE_MEASURE)
        return;
    wt_call again;
    wt_capture other = {.runs = 0};
    wt_call_begin(&again, call->op);
    memcpy(again.arg, call->arg, (size_t)call->op->nargs * sizeof(call->arg[0]));
    wt_plan_alone(true);
    wt_capture_into(&other);
    bool ok = run(&again, false);
    wt_capture_into(NULL);
    wt_plan_alone(false);
    bool short_enough = ok && other.runs == 1 && !strstr(weft_plan_kernel_name(other.plan), "_ref") &&
                        wt_estimate(other.plan) <= (call->cuda ? ENTRY_SHORT_CUDA_NS : ENTRY_SHORT_NS);
    wt_call *worse = short_enough ? call : &again;
    for (int i = 0; i < WT_MAX_OUTS && ok; i++) wt_drop(worse, i);
    if (short_enough) {
        weft_plan_release(ran->plan);
        *ran = other, *call = again;
    } else {
        weft_plan_release(other.plan);
        wt_note_torch();
    }
}

/* run(operator's number, its arguments...) -> its result, a tuple of them, or NotImplemented. Gradients are not
 * recorded. */
static py_object *run_by_number(py_object *self, py_object *const *args, intptr_t nargs) {
    wt_call call;
    py_object *result = NULL;
    (void)self;
    if (nargs < 2 || !entry_is_plain_here()) return entry_refuse();
    const long long number = py.PyLong_AsLongLong(args[0]);
    if (number < 0) return entry_refuse();
    const wt_op *op = &wt_ops[number];
    if (strchr(op->text, '!')) return entry_refuse(); /* the dispatcher counts what is written to */
    wt_call_begin(&call, op);
    if (!read_all(op, args + 1, nargs - 1, call.arg)) return entry_refuse();
    wt_capture ran = {.runs = 0};
    if (offered.waits) wt_capture_into(&ran);
    bool ok = run(&call, true);
    wt_capture_into(NULL);
    if (ok && offered.waits && entry_is_torchs()) run_alone(&call, &ran);
    if (ok && offered.waits) note(&call, entry_is_torchs(), &ran);
    weft_plan_release(ran.plan);
    if (!ok) return entry_refuse();
    const int n = op->nout;
    if (n == 1) return entry_wrap(call.out[0]);
    result = py.PyTuple_New(n);
    for (int i = 0; i < n; i++) py.PyTuple_SetItem(result, i, entry_wrap(call.out[i]));
    return result;
}

/* torchs(): the call that was refused is PyTorch's, forward and backward. */
static py_object *torchs(py_object *self, py_object *const *args, intptr_t nargs) {
    (void)self, (void)args, (void)nargs;
    wt_note_torch();
    if (offered.waits) offered.way = offered.runs ? ENTRY_UNKNOWN : ENTRY_TORCH;
    return entry_none();
}

/* bypass(True or False): on this thread PyTorch's operators are its own from here on, or again weft's as well; bypass(
 * True or False, True): on every thread. */
static py_object *bypass(py_object *self, py_object *const *args, intptr_t nargs) {
    (void)self;
    weft_torch_seat_bypass(nargs && args[0] == py._Py_TrueStruct ? 1 : -1, nargs == 2);
    return entry_none();
}

/* The number of an operator for run(); -1: there is none. */
WEFT_API int32_t weft_torch_entry_op(const char *name) {
    for (int32_t i = 0; i < WT_OPS; i++)
        if (strlen(name) == strcspn(wt_ops[i].text, "(") && !strncmp(name, wt_ops[i].text, strlen(name))) return i;
    return -1;
}

WEFT_API py_object *weft_torch_entry_run(int32_t which) {
    static py_method methods[] = {
        {"run", run_by_number, PY_FASTCALL, NULL}, {"torchs", torchs, PY_FASTCALL, NULL},
        {"bypass", bypass, PY_FASTCALL, NULL},     {"kept", kept, PY_FASTCALL, NULL},
        {"update", update, PY_FASTCALL, NULL},     {"leaves", entry_leaves, PY_FASTCALL, NULL}};
    return py.PyCFunction_NewEx(&methods[which], NULL, NULL);
}
