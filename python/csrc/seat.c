/* The entries of the seat. A call that weft takes runs weft's plans; every other one goes straight to PyTorch's
 * implementation, and so do all calls while the seat is switched off or bypassed on this thread.
 * Cost (least of many, tiny tensors): docs/enable.md. */
#include "seat.h"

#include <stdio.h>
#include <string.h>

#include "settings.h"

static _Atomic int switched; /* bit 2 * family + device: what it is on for */
static _Atomic int math_asked = WEFT_MATH_STRICT;
static bool is_on(const seat_call *c) {
    return atomic_load_explicit(&switched, memory_order_relaxed) >> (2 * c->op->family + c->cuda) & 1;
}

/* ---------------------------------------------------------------- arguments */
void seat_free_call(seat_call *c) {
    for (int i = 0; i < SEAT_INPUTS; i++)
        if (c->in[i].handle && !c->borrowed) wt.aoti_torch_delete_tensor_object(c->in[i].handle);
    seat_drop_results(c);
    if (c->guard) wt.aoti_torch_delete_cuda_guard(c->guard);
}

/* C++ callers give a tensor that is not defined where there is none. */
wt_handle seat_defined(wt_handle tensor) {
    bool defined = true;
    if (wt.aoti_torch_is_defined) wt.aoti_torch_is_defined(tensor, &defined);
    return defined ? tensor : NULL;
}

static wt_handle take_optional(wt_value slot) {
    wt_handle tensor = slot ? wt_unbox(slot) : NULL, defined = tensor ? seat_defined(tensor) : NULL;
    if (tensor && !defined) wt.aoti_torch_delete_tensor_object(tensor);
    return defined;
}

/* More values than any of these operators has: PyTorch refuses those that are kept as well. */
static void take_list(seat_call *c, wt_list *to, wt_value slot) {
    c->plain &= !wt_read_list((wt_handle)(uintptr_t)slot, to) && to->size <= 3;
    if (to->size > WT_MAX_LIST) to->size = WT_MAX_LIST;
}

static void take_sizes(seat_call *c, wt_value slot) {
    c->biased = slot != 0;
    if (slot) take_list(c, &c->bias_sizes, (wt_value)(uintptr_t)wt_unbox(slot));
}

static void take_mask(seat_call *c, wt_value slot) {
    wt_list mask;
    take_list(c, &mask, slot);
    for (size_t i = 0; i < mask.size && i < 3; i++) c->want |= (mask.item[i] & 0xff ? 1 : 0) << i;
}

/* The number, and whether it is given. */
static void take_maybe(int64_t *value, wt_value slot) {
    value[1] = slot != 0;
    value[0] = slot ? (int64_t)(uintptr_t)wt_unbox(slot) : 0;
}

#define TAKE_TENSOR(at) c->in[SEAT_##at].handle = (wt_handle)(uintptr_t) * stack++
#define TAKE_OPTIONAL(at) c->in[SEAT_##at].handle = take_optional(*stack++)
#define TAKE_LIST(at) take_list(c, &c->list[SEAT_##at], *stack++)
#define TAKE_SIZES(at) take_sizes(c, *stack++)
#define TAKE_MASK(at) take_mask(c, *stack++)
#define TAKE_BOOL(at) c->value[SEAT_##at] = *stack++ & 0xff ? 1 : 0
#define TAKE_INT(at) c->value[SEAT_##at] = (int64_t) * stack++
#define TAKE_MAYBE(at) take_maybe(&c->value[SEAT_##at], *stack++)
#define TAKE_REAL(at) memcpy(&c->real[SEAT_##at], stack++, sizeof(double))
#define TAKE_TYPE(at) c->type = (int32_t)(*stack++ & 0xffffffff)
#define X(name) \
    static void take_##name(seat_call *c, const wt_value *stack) { WT_ARGS_##name(TAKE); }
SEAT_OPS(X)
#undef X

/* ---------------------------------------------------------------- one call */
/* torch.jit.trace writes down what PyTorch's implementation calls, not the operator itself. */
static bool is_traced(void) { return wt.WT_TRACING_STATE && *wt.WT_TRACING_STATE(); }

/* Calls that weft's own functions made: the graph of PyTorch that holds one does not say so, so its gradient is known
 * by its problem. A plain module of the same shape may get weft's gradient then. */
enum { MARKS = 1024, MARK_STEPS = 8 };
static _Atomic uint64_t marks[MARKS];
static _Atomic bool any_mark;
static _Thread_local int marked;
void wt_seat_mark(int step) { marked += step; }

static bool find_mark(const seat_call *c, bool make) {
    const uint64_t problem = seat_problem(c) | 1;
    for (uint64_t i = 0; i < MARK_STEPS; i++) {
        _Atomic uint64_t *m = &marks[(problem >> 8 ^ i) % MARKS];
        uint64_t there = atomic_load_explicit(m, memory_order_relaxed);
        if (there == problem) return true;
        if (there) continue;
        if (make) atomic_store_explicit(m, problem, memory_order_relaxed);
        return make;
    }
    if (make) atomic_store_explicit(&marks[(problem >> 8) % MARKS], problem, memory_order_relaxed);
    return make;
}

/* Before anything of a tensor is read. */
static bool may_be_ours(const seat_call *c) {
    if (c->op->backward) return atomic_load_explicit(&any_mark, memory_order_relaxed);
    if (marked) atomic_store_explicit(&any_mark, true, memory_order_relaxed);
    return marked;
}

/* While PyTorch is measured, its gradients are its own on every thread: those of CUDA run on threads of PyTorch. */
static _Atomic int measuring;

bool seat_try(seat_call *c) {
    if (!c->plain || seat_bypassed() || atomic_load_explicit(&measuring, memory_order_relaxed)) return false;
    bool on = is_on(c), ours = may_be_ours(c);
    if ((!on && !ours) || !seat_read(c)) return false;
    ours = ours && find_mark(c, !c->op->backward);
    if (!on && !ours) return false;
    if (c->cuda && wt.aoti_torch_create_cuda_guard(c->in[SEAT_X].device_index, &c->guard)) return false;
    const int asked =
        wt_settings()->math || ours ? wt_settings()->math : atomic_load_explicit(&math_asked, memory_order_relaxed);
    seat_entry *e = seat_find(c, asked);
    if (!e) return false;
    atomic_fetch_add_explicit(&e->calls, 1, memory_order_relaxed);
    bool ran = false;
    if (atomic_load_explicit(&e->taken, memory_order_relaxed) && !is_traced()) {
        ran = seat_run(c, e);
        if (!ran && !c->cuda) e->reason = "weft's kernel failed", atomic_store(&e->taken, false);
    }
    if (ours && !ran) wt_note_torch();
    seat_release(e);
    return ran;
}

static void end_bypass(const int *step) { wt_seat_bypass(-*step); }

bool seat_run_throwing(seat_call *c, void **made) {
    __attribute__((cleanup(end_bypass))) const int step = 1;
    wt_seat_bypass(step);
    return !seat_is_dangerous(c) && c->op->throwing(c, made);
}

static bool run_throwing(seat_call *c) {
    void *made[SEAT_RESULTS];
    if (!seat_run_throwing(c, made)) return false;
    for (int i = 0; i < c->op->nout; i++) {
        if (wt.aoti_torch_new_uninitialized_tensor(&c->out[i])) return false;
        *(void **)c->out[i] = made[c->op->nout - 1 - i];
    }
    return true;
}

void seat_raise(const seat_call *c) {
    char text[160], name[64];
    snprintf(name, sizeof(name), "aten::%s", c->op->name);
    snprintf(text, sizeof(text), "%s failed; PyTorch's own error shows after weft.disable()", name);
    wt.aoti_torch_check(false, name, "python/csrc/seat.c", __LINE__, wt_torch_error(text));
}

void seat_begin_call(seat_call *c, const seat_op *op, bool cuda) {
    memset(c, 0, offsetof(seat_call, list));
    for (int i = 0; i < SEAT_LISTS; i++) c->list[i].size = 0;
    c->bias_sizes.size = 0;
    c->op = op;
    c->cuda = cuda;
    c->plain = true;
}

/* What is thrown runs through here: seat_free_call runs on that way too. */
static void enter(const seat_op *op, bool cuda, void (*take)(seat_call *c, const wt_value *stack), wt_value *stack) {
    __attribute__((cleanup(seat_free_call))) seat_call c;
    seat_begin_call(&c, op, cuda);
    take(&c, stack);
    if (!seat_try(&c) && !run_throwing(&c) && !seat_delegate(&c)) seat_raise(&c);
    for (int i = 0; i < op->nout; i++) {
        stack[i] = (wt_value)(uintptr_t)c.out[i];
        c.out[i] = NULL;
    }
}

#define X(name)                                                                   \
    static void enter_cpu_##name(wt_value *stack, uint64_t nin, uint64_t nout) {  \
        (void)nin, (void)nout;                                                    \
        enter(&seat_op_##name, false, take_##name, stack);                        \
    }                                                                             \
    static void enter_cuda_##name(wt_value *stack, uint64_t nin, uint64_t nout) { \
        (void)nin, (void)nout;                                                    \
        enter(&seat_op_##name, true, take_##name, stack);                         \
    }
SEAT_OPS(X)
#undef X

/* ---------------------------------------------------------------- for Python */
static const struct {
    const seat_op *op;
    wt_kernel entry[2];
} seats[] = {
#define X(name) {&seat_op_##name, {enter_cpu_##name, enter_cuda_##name}},
    SEAT_OPS(X)
#undef X
};

static bool belongs(const seat_op *op, int family, bool cuda) {
    return op->family == family && (cuda || !op->only_cuda);
}

static int unboxed;
WEFT_API int32_t weft_torch_seat_unboxed(void) { return unboxed; } /* how many operators are called so */

/* Put the operators of a family at a dispatch key, "CPU" or "CUDA"; once. NULL, or why not. unbox: not by
 * the public interface alone. */
WEFT_API const char *weft_torch_seat_register(const char *key, int32_t family, bool unbox) {
    static wt_handle library[2]; /* registrations live as long as these */
    const bool cuda = !strcmp(key, "CUDA");
    const size_t n = sizeof(seats) / sizeof(seats[0]);
    bool there = wt.aoti_torch_new_uninitialized_tensor && (!cuda || wt_shim_has_cuda());
    for (size_t i = 0; i < n && there; i++) there = !belongs(seats[i].op, family, cuda) || seats[i].op->has_torch(cuda);
    if (!there) return "this PyTorch has no way back to its own implementation";
    bool ok =
        library[cuda] || !wt.aoti_torch_library_init_impl("aten", key, "python/csrc/seat.c", __LINE__, &library[cuda]);
    for (size_t i = 0; i < n && ok; i++)
        if (belongs(seats[i].op, family, cuda))
            ok = !wt.torch_library_impl(library[cuda], seats[i].op->name, seats[i].entry[cuda], WT_BUILD_VERSION);
    for (size_t i = 0; i < n && ok && unbox; i++)
        if (belongs(seats[i].op, family, cuda)) unboxed += seat_unbox(seats[i].op, seats[i].entry[cuda], cuda);
    return ok ? NULL : "PyTorch refused the registration";
}

/* on: bit 2 * family + device; math: a weft_math. Returns what was on before. */
WEFT_API int32_t weft_torch_seat_switch(int32_t on, int32_t math) {
    atomic_store(&math_asked, math);
    return atomic_exchange(&switched, on);
}
WEFT_API int32_t weft_torch_seat_state(void) { return atomic_load(&switched); }
WEFT_API int32_t weft_torch_seat_math(void) { return atomic_load(&math_asked); }
WEFT_API void weft_torch_seat_bypass(int32_t step, int32_t everywhere) {
    wt_seat_bypass(step);
    if (everywhere) atomic_fetch_add(&measuring, step);
}
