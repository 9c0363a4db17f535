/* PyTorch as an alternative to weft's kernels: an operator that PyTorch has too is also one of Python,
 * weft_torch::<operator>, of the same arguments and results, made of PyTorch's own (weft._core.rules, Rule.torch). Here
 * it is called through the dispatcher, and here is what the planner asks about it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rows.h"
#include "seat.h"
#include "settings.h"

/* ---------------------------------------------------------------- the arguments of an operator */
void wt_push(wt_stack *s, wt_value value) {
    if (s->n < (int)(sizeof(s->item) / sizeof(s->item[0])))
        s->item[s->n++] = value;
    else
        s->failed = true;
}

wt_value wt_boxed(wt_stack *s, wt_value content) {
    wt_value *box = NULL;
    if (wt.torch_new_stable_ivalue)
        s->failed |= wt.torch_new_stable_ivalue(&box) != 0;
    else if (wt._Znwm)
        box = wt._Znwm(sizeof(*box));
    if (box)
        *box = content;
    else
        s->failed = true;
    return (wt_value)(uintptr_t)box;
}

wt_value wt_of_list(wt_stack *s, const int64_t *values, int count) {
    wt_handle list = NULL;
    s->failed |= wt.torch_new_list_reserve_size((size_t)count, &list) != 0;
    for (int i = 0; i < count && !s->failed; i++) s->failed |= wt.torch_list_push_back(list, (wt_value)values[i]) != 0;
    return (wt_value)(uintptr_t)list;
}

wt_value wt_of_tensor(wt_stack *s, wt_handle tensor) {
    wt_handle copy = NULL; /* the operator takes a reference of its own */
    s->failed |= wt.aoti_torch_new_tensor_handle(tensor, &copy) != 0;
    return (wt_value)(uintptr_t)copy;
}

static wt_value value_of(wt_stack *s, wt_kind kind, const wt_arg *arg) {
    wt_value bits = 0;
    switch (kind) {
    case WT_TENSOR:
        return wt_of_tensor(s, arg->tensor.handle);
    case WT_TENSOR_OR_NONE:
        return arg->tensor.handle ? wt_boxed(s, wt_of_tensor(s, arg->tensor.handle)) : 0;
    case WT_LIST:
        return wt_of_list(s, arg->list.item, (int)arg->list.size);
    case WT_TEXT: /* as a number of its letters: who frees a string differs from version to version */
        s->failed |= strlen(arg->text) > sizeof(bits);
        memcpy(&bits, arg->text, s->failed ? 0 : strlen(arg->text));
        return bits;
    case WT_REAL:
        memcpy(&bits, &arg->real, sizeof(bits));
        return bits;
    case WT_INT:
    case WT_BOOL:
    case WT_DTYPE:
        return (wt_value)arg->integer;
    }
    return 0;
}

/* ---------------------------------------------------------------- results */
typedef struct promise { /* how a result lies that was made for weft; rank -1: none was */
    int64_t rank, sizes[WT_MAX_AXES], strides[WT_MAX_AXES];
    int32_t code;
} promise;

void wt_drop(wt_call *call, int slot) {
    if (!call->out[slot]) return;
    wt.aoti_torch_delete_tensor_object(call->out[slot]);
    call->out[slot] = NULL;
}

/* The memory of a result goes before PyTorch makes its own. */
static void note_and_drop(wt_call *call, int slot, promise *p) {
    wt_tensor t;
    p->rank = -1;
    if (!call->out[slot] || wt_read_tensor(call->out[slot], &t) || t.rank > WT_MAX_AXES) return;
    p->rank = t.rank, p->code = t.code;
    memcpy(p->sizes, t.sizes, (size_t)t.rank * sizeof(*p->sizes));
    memcpy(p->strides, t.strides, (size_t)t.rank * sizeof(*p->strides));
    wt_drop(call, slot);
}

static bool fits(const promise *p, const wt_tensor *t) {
    return p->rank == t->rank && p->code == t->code &&
           !memcmp(p->sizes, t->sizes, (size_t)t->rank * sizeof(*t->sizes)) &&
           wt_lie_alike(t->rank, t->sizes, p->strides, t->strides);
}

/* PyTorch's tensor as result `slot`, in the strides that were promised: copied only if it has others or the caller gave
 * `out`. It is no view of anything afterwards: a Function's result that is one cannot be changed in place. */
static bool take(wt_call *call, int slot, wt_handle got, const promise *p) {
    wt_tensor t;
    if (slot < call->op->into)
        return wt_copy(call, call->arg[call->op->nargs - call->op->into + slot].tensor.handle, got,
                       "a result of PyTorch");
    if (wt_read_tensor(got, &t)) return wt_fail(call, "a result of PyTorch could not be read");
    const bool free = p->rank < 0;
    if (free || fits(p, &t))
        return !wt.aoti_torch__reinterpret_tensor(got, t.rank, t.sizes, free ? t.strides : p->strides, 0,
                                                  &call->out[slot]) ||
               wt_fail(call, "a result of PyTorch could not be taken over");
    t = (wt_tensor){.rank = p->rank, .sizes = p->sizes, .strides = p->strides, .code = p->code};
    return wt_empty(call, &call->out[slot], &t) && wt_copy(call, t.handle, got, "a result of PyTorch");
}

/* ---------------------------------------------------------------- the call */
static _Thread_local int inside;
bool wt_is_inside(void) { return inside > 0; }

bool wt_by_torch(wt_call *call, int64_t want) {
    const wt_op *op = call->op;
    const int nout = op->nout;
    char name[64];
    wt_stack s = {.n = 0};
    promise promised[WT_MAX_OUTS];
    snprintf(name, sizeof(name), "weft_torch::%s", op->base);
    for (int i = 0; i < op->nargs - op->into; i++) {
        wt_arg arg = call->arg[i];
        if (want != WT_ALL && i == AT(want)) arg.integer = want;
        wt_push(&s, value_of(&s, op->kind[i], &arg));
    }
    if (s.failed) return wt_fail(call, "the arguments of %s could not be made", name);
    for (int i = 0; i < nout; i++)
        if (want >> i & 1) note_and_drop(call, i, &promised[i]);
    inside++, wt_seat_bypass(1);
    wt_error failed = wt.torch_call_dispatcher(name, "", s.item, WT_BUILD_VERSION);
    inside--, wt_seat_bypass(-1);
    if (failed) return wt_fail(call, "%s: %s", name, wt_torch_error(WT_NO_REASON));
    bool ok = true;
    for (int i = 0; i < nout; i++) {
        wt_handle got = (wt_handle)(uintptr_t)s.item[i];
        if (want >> i & 1) ok = ok && take(call, i, got, &promised[i]);
        wt.aoti_torch_delete_tensor_object(got);
    }
    return ok;
}

/* ---------------------------------------------------------------- the external */
static const char external_name[] = "torch";
/* whose plan is being made on this thread */
static _Thread_local struct stage {
    wt_call *call;
    int64_t want;     /* 0: no operator's */
    wt_rehearsal run; /* instead of one: the seat's */
    const void *state;
} stage;

void wt_rehearse(wt_rehearsal run, const void *state) { stage.run = run, stage.state = state; }
bool wt_never(const void *state) { return state; }

double wt_external_ns(const weft_problem *p) {
    wt_follow_threads();
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    size_t last = weft_kernel_count(wt_context(), p) - 1;
    return weft_kernel_info(wt_context(), p, last, &d) == WEFT_OK && d.applies ? d.ns : 0;
}

/* Exact sums in f32 are promised by `fast` and `strict`; PyTorch's convolutions on CUDA may round products to TF32. */
static const char *reject(void *user, const weft_problem *p) {
    (void)user;
    if (!stage.want && !stage.run) return "PyTorch has no operator for it";
    if (p->device == WEFT_DEVICE_CUDA && p->op == WEFT_OP_CONV && p->tensor[0].dtype == WEFT_DTYPE_F32 &&
        wt_settings()->math)
        return "PyTorch's may round to TF32, and the math asked for does not";
    return NULL;
}

/* On the call's own tensors: PyTorch chooses its kernels by more than a problem says. A copy of the call takes what
 * it makes. */
static weft_status run_once(void *user, const weft_problem *p, const weft_args *args, void *stream) {
    (void)user, (void)args;
    if (stage.run) return stage.run(stage.state) ? WEFT_OK : WEFT_ERR_INTERNAL;
    wt_handle guard = NULL;
    wt_call copy = *stage.call;
    memset(copy.out, 0, sizeof(copy.out));
    if (p->device == WEFT_DEVICE_CUDA && wt.aoti_torch_create_cuda_stream_guard)
        wt.aoti_torch_create_cuda_stream_guard(stream, copy.device_index, &guard);
    bool ok = wt_by_torch(&copy, stage.want);
    if (guard) wt.aoti_torch_delete_cuda_stream_guard(guard);
    for (int i = 0; i < WT_MAX_OUTS; i++) wt_drop(&copy, i);
    return ok ? WEFT_OK : WEFT_ERR_INTERNAL;
}

const weft_external wt_external = {sizeof(weft_external), external_name, 1, 0, NULL, reject, wt_torch_rates, run_once};

static _Thread_local bool alone;
void wt_plan_alone(bool on) { alone = on; }

static _Thread_local wt_question *question;
void wt_ask(wt_question *q) { question = q; }
bool wt_is_asked(void) { return question; }

/* From true to false the operators of weft_shapes on this thread only say who would compute them. */
WEFT_API int32_t weft_torch_asks(bool begin) {
    static _Thread_local wt_question traced;
    wt_ask(begin ? &traced : NULL);
    if (begin) traced = (wt_question){.torchs = false};
    return traced.torchs ? 2 : traced.allowed;
}

weft_plan *wt_plan_with(wt_call *call, int64_t want) {
    const struct stage outer = stage; /* PyTorch's way may use operators of weft, also while it is measured */
    stage = (struct stage){.call = call, .want = want};
    const bool allowed = want && !alone && !inside;
    weft_plan *plan = wt_plan_among(call, allowed);
    stage = outer;
    if (!question || !plan) return plan;
    question->problem = *weft_plan_problem(plan);
    question->torchs = wt_is_torch(plan), question->allowed = allowed;
    weft_plan_release(plan);
    wt_fail(call, "it was only asked for");
    return NULL;
}

bool wt_is_torch(const weft_plan *plan) { return plan && strcmp(weft_plan_kernel_name(plan), external_name) == 0; }

static bool run_torch(wt_call *call, const weft_plan *plan, int64_t want) {
    struct timespec from, to;
    bool shown = wt_settings()->verbose & WEFT_LOG_EXEC;
    char text[WEFT_TEXT_MAX] = "";
    wt_kernels_add(external_name);
    if (!shown) return wt_by_torch(call, want);
    clock_gettime(CLOCK_MONOTONIC, &from);
    bool ok = wt_by_torch(call, want);
    clock_gettime(CLOCK_MONOTONIC, &to);
    weft_problem_format(weft_plan_problem(plan), text, sizeof(text), NULL);
    fprintf(stderr, "weft: exec: %s %s %s %lld ns\n", text, external_name, ok ? "OK" : "failed",
            (long long)(to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec));
    return ok;
}

bool wt_finish(wt_call *call, weft_plan *plan, const weft_args *args, int64_t want) {
    if (!wt_is_torch(plan)) return wt_execute(call, plan, args);
    bool ok = run_torch(call, plan, want);
    weft_plan_release(plan);
    return ok;
}

bool wt_run(wt_call *call, bool torch) {
    const int64_t want = torch ? WT_ALL : 0;
    return wt_finish(call, wt_plan_with(call, want), &call->args, want);
}
