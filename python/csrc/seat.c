/* The operators of the seat. A call that weft takes runs weft's plans; every other one goes straight to PyTorch's
 * implementation, and so do all calls while the seat is switched off or bypassed on this thread.
 * Cost (least of many, tiny tensors): docs/enable.md. */
#include "seat.h"

#include <string.h>

#include "settings.h"

enum { ON_CPU = 1, ON_CUDA = 2 };
static _Atomic int switched; /* ON_*: the devices it is on for */
static _Atomic int math_asked = WEFT_MATH_STRICT;

/* ---------------------------------------------------------------- arguments */
static void free_call(seat_call *c) {
    for (int i = 0; i < SEAT_INPUTS; i++)
        if (c->in[i].handle) wt.aoti_torch_delete_tensor_object(c->in[i].handle);
    seat_drop_results(c);
    if (c->guard) wt.aoti_torch_delete_cuda_guard(c->guard);
}

static void take_tensor(seat_call *c, int at, wt_value slot) {
    c->plain &= !wt_read_tensor((wt_handle)(uintptr_t)slot, &c->in[at]) && c->in[at].rank <= 5;
}

/* C++ callers give a tensor that is not defined where there is none. */
static void take_optional(seat_call *c, int at, wt_value slot) {
    bool defined = true;
    wt_handle tensor = slot ? wt_unbox(slot) : NULL;
    if (tensor && wt.aoti_torch_is_defined) wt.aoti_torch_is_defined(tensor, &defined);
    if (tensor && defined) take_tensor(c, at, (wt_value)(uintptr_t)tensor);
    if (tensor && !defined) wt.aoti_torch_delete_tensor_object(tensor);
}

/* More values than any convolution has: PyTorch refuses those that are kept as well. */
static void take_list(seat_call *c, wt_list *to, wt_value slot) {
    c->plain &= !wt_read_list((wt_handle)(uintptr_t)slot, to) && to->size <= 3;
    if (to->size > WT_MAX_LIST) to->size = WT_MAX_LIST;
}

/* stride, padding, dilation, transposed, output_padding, groups */
static void take_geometry(seat_call *c, const wt_value *stack) {
    static const int at[SEAT_LISTS] = {0, 1, 2, 4};
    for (int i = 0; i < SEAT_LISTS; i++) take_list(c, &c->list[i], stack[at[i]]);
    c->transposed = stack[3] & 0xff;
    c->groups = (int64_t)stack[5];
}

static void take_forward(seat_call *c, const wt_value *stack) {
    take_tensor(c, SEAT_X, stack[0]);
    take_tensor(c, SEAT_W, stack[1]);
    take_optional(c, SEAT_BIAS, stack[2]);
    take_geometry(c, stack + 3);
}

static void take_backward(seat_call *c, const wt_value *stack) {
    wt_list mask;
    take_tensor(c, SEAT_DY, stack[0]);
    take_tensor(c, SEAT_X, stack[1]);
    take_tensor(c, SEAT_W, stack[2]);
    c->biased = stack[3] != 0;
    if (c->biased) take_list(c, &c->bias_sizes, (wt_value)(uintptr_t)wt_unbox(stack[3]));
    take_geometry(c, stack + 4);
    take_list(c, &mask, stack[10]);
    for (size_t i = 0; i < mask.size && i < 3; i++) c->want |= (mask.item[i] & 0xff ? 1 : 0) << i;
}

/* ---------------------------------------------------------------- one call */
/* torch.jit.trace writes down what PyTorch's implementation calls, not the convolution itself. */
static bool is_traced(void) { return wt.WT_TRACING_STATE && *wt.WT_TRACING_STATE(); }

/* Convolutions that weft's own functions called: the graph of PyTorch that holds one does not say so, so its
 * gradient is known by its problem. A plain module of the same shape may get weft's gradient then. */
enum { MARKS = 1024, MARK_STEPS = 8 };
static _Atomic uint64_t marks[MARKS];
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

static bool is_ours(const seat_call *c) {
    static _Atomic bool any;
    if (!c->backward && !marked) return false;
    if (!c->backward) atomic_store_explicit(&any, true, memory_order_relaxed);
    return atomic_load_explicit(&any, memory_order_relaxed) && find_mark(c, !c->backward);
}

static bool try_weft(seat_call *c) {
    bool cuda = seat_is_cuda(c);
    if (!c->plain || seat_bypassed()) return false;
    bool ours = is_ours(c);
    if (!ours && !(atomic_load_explicit(&switched, memory_order_relaxed) & (cuda ? ON_CUDA : ON_CPU))) return false;
    if (cuda && wt.aoti_torch_create_cuda_guard(c->in[SEAT_X].device_index, &c->guard)) return false;
    const int asked =
        wt_settings()->math || ours ? wt_settings()->math : atomic_load_explicit(&math_asked, memory_order_relaxed);
    seat_entry *e = seat_find(c, asked);
    if (!e) return false;
    atomic_fetch_add_explicit(&e->calls, 1, memory_order_relaxed);
    bool ran = false;
    if (atomic_load_explicit(&e->taken, memory_order_relaxed) && !is_traced()) {
        ran = seat_run(c, e);
        if (!ran && !seat_is_cuda(c)) e->reason = "weft's kernel failed", atomic_store(&e->taken, false);
    }
    if (ours && !ran) wt_note_torch();
    seat_release(e);
    return ran;
}

/* PyTorch's own exception, type and text, by the C++ function that throws it; it runs through these frames. */
static void raise_forward(seat_call *c) {
#if defined(__x86_64__)
    const wt_list *l = c->list;
    struct {
        wt_handle tensor; /* by value, as an optional of C++ holds it */
        bool given;
    } bias = {NULL, false};
    if (!wt.WT_THROWING_CONVOLUTION || wt.aoti_torch_new_uninitialized_tensor(&c->out[0])) return;
    if (c->in[SEAT_BIAS].handle) bias.tensor = *(wt_handle *)c->in[SEAT_BIAS].handle, bias.given = true;
    wt.WT_THROWING_CONVOLUTION(c->out[0], c->in[SEAT_X].handle, c->in[SEAT_W].handle, &bias,
                               (wt_array){l[SEAT_STRIDE].item, l[SEAT_STRIDE].size},
                               (wt_array){l[SEAT_PADDING].item, l[SEAT_PADDING].size},
                               (wt_array){l[SEAT_DILATION].item, l[SEAT_DILATION].size}, c->transposed,
                               (wt_array){l[SEAT_EXTRA].item, l[SEAT_EXTRA].size}, c->groups);
#else
    (void)c;
#endif
}

static void raise_text(const seat_call *c) {
    const char *what =
        wt.torch_exception_get_what_without_backtrace
            ? wt.torch_exception_get_what_without_backtrace()
            : (c->backward ? "aten::convolution_backward failed; PyTorch's own error shows after weft.disable()"
                           : "aten::convolution failed; PyTorch's own error shows after weft.disable()");
    wt.aoti_torch_check(false, "aten::convolution", "python/csrc/seat.c", __LINE__, what);
}

/* What is thrown runs through here: free_call runs on that way too. */
static void enter(wt_value *stack, uint64_t nout, bool backward) {
    __attribute__((cleanup(free_call))) seat_call c;
    memset(&c, 0, offsetof(seat_call, list));
    c.biased = false;
    c.bias_sizes.size = 0;
    c.guard = c.out[0] = c.out[1] = c.out[2] = NULL;
    c.packed = NULL;
    c.backward = backward;
    c.plain = true;
    (backward ? take_backward : take_forward)(&c, stack);
    if (!try_weft(&c) && !seat_delegate(&c)) {
        if (!backward) raise_forward(&c);
        if (!c.out[0]) raise_text(&c);
    }
    for (uint64_t i = 0; i < nout; i++) {
        stack[i] = (wt_value)(uintptr_t)c.out[i];
        c.out[i] = NULL;
    }
}

static void enter_forward(wt_value *stack, uint64_t nin, uint64_t nout) {
    (void)nin;
    enter(stack, nout, false);
}

static void enter_backward(wt_value *stack, uint64_t nin, uint64_t nout) {
    (void)nin;
    enter(stack, nout, true);
}

/* ---------------------------------------------------------------- for Python */
/* Put the operators at a dispatch key, "CPU" or "CUDA", once. NULL, or why not. */
WEFT_API const char *weft_torch_seat_register(const char *key) {
    static wt_handle library[2]; /* registrations live as long as these */
    bool cuda = !strcmp(key, "CUDA");
    if (library[cuda]) return NULL;
    bool there = wt.aoti_torch_new_uninitialized_tensor &&
                 (cuda ? wt_shim_has_cuda() && wt.aoti_torch_cuda_convolution && wt.aoti_torch_cuda_convolution_backward
                       : wt.aoti_torch_cpu_convolution && wt.aoti_torch_cpu_convolution_backward);
    if (!there) return "this PyTorch has no way back to its own convolution";
    if (wt.aoti_torch_library_init_impl("aten", key, "python/csrc/seat.c", __LINE__, &library[cuda]) ||
        wt.torch_library_impl(library[cuda], "convolution", enter_forward, WT_BUILD_VERSION) ||
        wt.torch_library_impl(library[cuda], "convolution_backward", enter_backward, WT_BUILD_VERSION))
        return "PyTorch refused the registration";
    return NULL;
}

/* devices: ON_*; math: a weft_math. Returns what was on before. */
WEFT_API int32_t weft_torch_seat_switch(int32_t devices, int32_t math) {
    atomic_store(&math_asked, math);
    return atomic_exchange(&switched, devices);
}
WEFT_API int32_t weft_torch_seat_state(void) { return atomic_load(&switched); }
WEFT_API int32_t weft_torch_seat_math(void) { return atomic_load(&math_asked); }
WEFT_API void weft_torch_seat_bypass(int32_t step) { wt_seat_bypass(step); }
