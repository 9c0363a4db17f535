/* PyTorch as an alternative to weft's kernels: calling its operators through the dispatcher, and what the planner
 * asks about it. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "seat.h"
#include "settings.h"

/* ---------------------------------------------------------------- the arguments of an operator of PyTorch */
void wt_push_all(wt_stack *s, const wt_value *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (s->n < (int)(sizeof(s->item) / sizeof(s->item[0])))
            s->item[s->n++] = values[i];
        else
            s->failed = true;
    }
}

static wt_value boxed(wt_stack *s, wt_value content) {
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

wt_value wt_of_optional(wt_stack *s, wt_handle tensor) { return tensor ? boxed(s, wt_of_tensor(s, tensor)) : 0; }
wt_value wt_of_optional_int(wt_stack *s, bool given, int64_t value) { return given ? boxed(s, (wt_value)value) : 0; }
wt_value wt_of_axes(wt_stack *s, const int64_t values[3], int rank) { return wt_of_list(s, values + 3 - rank, rank); }
wt_value wt_of_optional_list(wt_stack *s, const int64_t *values, int count) {
    return boxed(s, wt_of_list(s, values, count));
}

wt_value wt_of_real(double value) {
    wt_value bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

wt_value wt_of_bools(wt_stack *s, int bits, int count) {
    int64_t values[8];
    for (int i = 0; i < count && i < 8; i++) values[i] = bits >> i & 1;
    return wt_of_list(s, values, count);
}

bool wt_aten(wt_call *call, wt_stack *s, const char *name, const char *overload, int nout) {
    if (s->failed) return wt_fail(call, "the arguments of %s could not be made", name);
    wt_seat_bypass(1);
    wt_error failed = wt.torch_call_dispatcher(name, overload, s->item, WT_BUILD_VERSION);
    wt_seat_bypass(-1);
    if (!failed) return nout <= s->n || nout <= 16;
    const char *what = wt.torch_exception_get_what_without_backtrace ? wt.torch_exception_get_what_without_backtrace()
                                                                     : "PyTorch before 2.13 gives no reason here";
    return wt_fail(call, "%s: %s", name, what);
}

wt_handle wt_aten_scratch(wt_call *call, wt_stack *s, const char *name, const char *overload) {
    wt_handle *slot = wt_scratch(call);
    if (!slot || !wt_aten(call, s, name, overload, 1)) return NULL;
    return *slot = (wt_handle)(uintptr_t)s->item[0];
}

void wt_free(wt_value tensor) {
    if (tensor) wt.aoti_torch_delete_tensor_object((wt_handle)(uintptr_t)tensor);
}

/* ---------------------------------------------------------------- results */
void wt_drop(wt_call *call, int slot) {
    if (!call->out[slot]) return;
    wt.aoti_torch_delete_tensor_object(call->out[slot]);
    call->out[slot] = NULL;
}

static int axes_of(const wt_view *v, int rank, bool batched, int64_t sizes[5], int64_t strides[5]) {
    int n = 0;
    for (int a = batched ? 0 : 1; a < 5; a++)
        if (a < 2 || a >= 5 - rank) sizes[n] = v->dims[a], strides[n++] = v->strides[a];
    return n;
}

bool wt_take_copy(wt_call *call, int slot, wt_value tensor, const wt_view *v, int rank, bool batched) {
    wt_handle got = (wt_handle)(uintptr_t)tensor, into = NULL;
    int64_t sizes[5], strides[5];
    int n = axes_of(v, rank, batched, sizes, strides);
    int32_t code = 0;
    void *data;
    bool ok = !wt.aoti_torch_get_dtype(got, &code);
    if (slot < call->op->into)
        into = call->arg[call->op->nargs - call->op->into + slot].tensor.handle;
    else if (ok && (ok = wt_empty(call, &call->out[slot], n, sizes, strides, code, &data)))
        into = call->out[slot];
    if (ok && wt.aoti_torch_copy_(into, got, 0)) ok = wt_fail(call, "a result of PyTorch could not be copied");
    wt_free(tensor);
    return ok;
}

/* What PyTorch made by a squeeze or a reshape is a view to it, and a Function's result that is one cannot be changed
 * in place afterwards. */
bool wt_keep(wt_call *call, int slot, wt_value tensor, int64_t rank, const int64_t *sizes, const int64_t *strides) {
    wt_error failed =
        wt.aoti_torch__reinterpret_tensor((wt_handle)(uintptr_t)tensor, rank, sizes, strides, 0, &call->out[slot]);
    wt_free(tensor);
    return !failed || wt_fail(call, "a result of PyTorch could not be taken over");
}

/* Strides of axes of one element name no other memory: PyTorch's may differ there. */
bool wt_take(wt_call *call, int slot, wt_value tensor, const wt_view *v, int rank, bool batched) {
    int64_t sizes[5], strides[5], *has = NULL;
    int n = axes_of(v, rank, batched, sizes, strides);
    bool fits = slot >= call->op->into && !wt.aoti_torch_get_strides((wt_handle)(uintptr_t)tensor, &has);
    for (int i = 0; i < n && fits; i++) fits = sizes[i] == 1 || has[i] == strides[i];
    return fits ? wt_keep(call, slot, tensor, n, sizes, strides) : wt_take_copy(call, slot, tensor, v, rank, batched);
}

/* ---------------------------------------------------------------- the external */
static const char external_name[] = "torch";
/* whose plan is being made on this thread */
static _Thread_local struct {
    wt_call *call;
    wt_peer peer;
    wt_rehearsal run; /* instead of a peer: the seat's */
    const void *state;
} stage;

void wt_rehearse(wt_rehearsal run, const void *state) { stage.run = run, stage.state = state; }

double wt_external_ns(const weft_problem *p) {
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    size_t last = weft_kernel_count(wt_context(), p) - 1;
    return weft_kernel_info(wt_context(), p, last, &d) == WEFT_OK && d.applies ? d.ns : 0;
}

/* Exact sums in f32 are promised by `fast` and `strict`; PyTorch's convolutions on CUDA may round products to TF32. */
static const char *reject(void *user, const weft_problem *p) {
    (void)user;
    if (!stage.peer && !stage.run) return "PyTorch has no operator for it";
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
    memset(copy.scratch, 0, sizeof(copy.scratch));
    copy.nscratch = 0;
    if (p->device == WEFT_DEVICE_CUDA && wt.aoti_torch_create_cuda_stream_guard)
        wt.aoti_torch_create_cuda_stream_guard(stream, stage.call->device_index, &guard);
    bool ok = stage.peer(&copy, stage.state);
    if (guard) wt.aoti_torch_delete_cuda_stream_guard(guard);
    for (int i = 0; i < WT_MAX_OUTS; i++) wt_drop(&copy, i);
    for (int i = 0; i < copy.nscratch; i++) wt_free((wt_value)(uintptr_t)copy.scratch[i]);
    return ok ? WEFT_OK : WEFT_ERR_INTERNAL;
}

const weft_external wt_external = {sizeof(weft_external), external_name, 1, 0, NULL, reject, wt_torch_rates, run_once};

static _Thread_local bool alone;
void wt_plan_alone(bool on) { alone = on; }

static _Thread_local wt_question *question;
void wt_ask(wt_question *q) { question = q; }
bool wt_is_asked(void) { return question != NULL; }

weft_plan *wt_plan_with(wt_call *call, weft_problem *p, wt_peer peer, const void *state) {
    stage.call = call, stage.peer = peer, stage.state = state;
    weft_plan *plan = wt_plan_among(call, p, peer != NULL && !alone);
    if (question && plan) {
        question->problem = *weft_plan_problem(plan);
        question->torchs = wt_is_peer(plan);
    }
    stage.peer = NULL;
    if (!question || !plan) return plan;
    weft_plan_release(plan);
    wt_fail(call, "it was only asked for");
    return NULL;
}

bool wt_is_peer(const weft_plan *plan) { return plan && strcmp(weft_plan_kernel_name(plan), external_name) == 0; }

static bool run_peer(wt_call *call, const weft_plan *plan, wt_peer peer, const void *state) {
    struct timespec from, to;
    bool shown = wt_settings()->verbose & WEFT_LOG_EXEC;
    char text[WEFT_TEXT_MAX] = "";
    wt_kernels_add(external_name);
    if (!shown) return peer(call, state);
    clock_gettime(CLOCK_MONOTONIC, &from);
    bool ok = peer(call, state);
    clock_gettime(CLOCK_MONOTONIC, &to);
    weft_problem_format(weft_plan_problem(plan), text, sizeof(text), NULL);
    fprintf(stderr, "weft: exec: %s %s %s %lld ns\n", text, external_name, ok ? "OK" : "failed",
            (long long)(to.tv_sec - from.tv_sec) * 1000000000 + (to.tv_nsec - from.tv_nsec));
    return ok;
}

bool wt_finish(wt_call *call, weft_plan *plan, const weft_args *args, wt_peer peer, const void *state) {
    if (!wt_is_peer(plan)) return wt_execute(call, plan, args);
    bool ok = run_peer(call, plan, peer, state);
    weft_plan_release(plan);
    return ok;
}

bool wt_run(wt_call *call, weft_problem *p, const weft_args *args, wt_peer peer, const void *state) {
    return wt_finish(call, wt_plan_with(call, p, peer, state), args, peer, state);
}
