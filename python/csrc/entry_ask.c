/* Who would compute a call, forward and backward? The operator plans and stops there; its gradient is planned from its
 * problem. */
#include <math.h>
#include <string.h>

#include "entry.h"
#include "settings.h"

static bool is_columns(const weft_problem *p) { return p->op == WEFT_OP_IM2COL || p->op == WEFT_OP_COL2IM; }

/* The gradient of each is the other. */
static bool make_adjoint(const weft_problem *p, weft_problem *back) {
    weft_problem_init(back, p->op == WEFT_OP_IM2COL ? WEFT_OP_COL2IM : WEFT_OP_IM2COL, WEFT_PASS_FWD, p->rank);
    back->device = p->device, back->ordinal = p->ordinal, back->n = p->n, back->c = p->c;
    memcpy(back->in, p->in, sizeof(p->in));
    memcpy(back->kernel, p->kernel, sizeof(p->kernel));
    memcpy(back->stride, p->stride, sizeof(p->stride));
    memcpy(back->dilation, p->dilation, sizeof(p->dilation));
    memcpy(back->pad_lo, p->pad_lo, sizeof(p->pad_lo));
    memcpy(back->pad_hi, p->pad_hi, sizeof(p->pad_hi));
    weft_problem_tensor(back, WEFT_ROLE_SRC)->dtype = weft_problem_tensor(back, WEFT_ROLE_DST)->dtype =
        p->tensor[0].dtype;
    return weft_problem_complete(back) == WEFT_OK;
}

/* The problem of the gradient; false: it cannot be said. */
static bool make_gradient(weft_problem *p, weft_problem *back) {
    char text[WEFT_TEXT_MAX];
    if (is_columns(p)) return make_adjoint(p, back);
    if (p->op == WEFT_OP_SOFTMAX || p->op == WEFT_OP_LOG_SOFTMAX) { /* it reads the result alone, dense as that is */
        weft_tensor *src = weft_problem_tensor(p, WEFT_ROLE_SRC);
        *src = *weft_problem_tensor(p, WEFT_ROLE_DST);
        src->role = WEFT_ROLE_SRC;
    }
    weft_status status = weft_problem_format(p, text, sizeof(text), NULL);
    char *pass = status == WEFT_OK ? strstr(text, ":fwd:") : NULL;
    if (!pass) return false;
    memcpy(pass, ":bwd:", 5);
    return weft_problem_parse(back, text) == WEFT_OK;
}

/* On CUDA PyTorch's gradients of pooling add up in any order, or come out wrong (entry_seat.c), but for averages of
 * channels-first images and for means. */
static bool may_leave_pooling(const weft_problem *p) {
    const weft_tensor *src = weft_problem_find(p, WEFT_ROLE_SRC);
    const int64_t *to = &p->attr[WEFT_ADAPTIVE_AVG_POOL_TO];
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) return to[0] <= 1 && to[1] <= 1 && to[2] <= 1;
    return p->op == WEFT_OP_AVG_POOL && p->rank == 2 && src->layout == WEFT_LAYOUT_FIRST;
}

static bool is_pool(const weft_problem *p) {
    return p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
}

static bool is_pointwise(const weft_problem *p) {
    return p->op == WEFT_OP_RELU || p->op == WEFT_OP_CLIP || p->op == WEFT_OP_TANH || p->op == WEFT_OP_SIGMOID;
}

/* Estimates of both sides; weft's is infinite where it has the reference alone. */
static void estimate(weft_problem *p, double *torch_ns, double *own_ns) {
    wt_rehearse(wt_never, NULL);
    *torch_ns = wt_external_ns(p);
    wt_rehearse(NULL, NULL);
    weft_plan *plan = wt_plan_by(p, true, WEFT_ENGINE_CPU | WEFT_ENGINE_CUDA);
    *own_ns = plan ? wt_estimate(plan) : INFINITY;
    weft_plan_release(plan);
}

/* ns of a pass that are in the estimates of PyTorch because weft's operator hands it over by way of Python. PyTorch's
 * own function is called at once. */
static double handing(const weft_problem *p) {
    if (p->device == WEFT_DEVICE_CUDA) return 0;
    if (p->op == WEFT_OP_CROSS_ENTROPY) return 45000;
    return p->op == WEFT_OP_DGMM || is_columns(p) ? 8000 : 0;
}

/* A gradient that is recorded from Python costs more than PyTorch's own node: on the CPU, where that time adds up with
 * the computing, both passes are one choice. The estimates of PyTorch's pooling count it already. On CUDA it passes
 * while the device computes, if that has much to do: columns alone are weighed there, whose gradients PyTorch sums in
 * order. */
static bool is_shorter(weft_problem *p, weft_problem *back) {
    const bool cuda = p->device == WEFT_DEVICE_CUDA;
    const double recording = (cuda ? 40000 : is_pool(p) ? 0 : 15000) + 2 * handing(p); /* ns */
    double torch_ns[2], own_ns[2];
    if (cuda && !is_columns(p)) return false;
    estimate(p, &torch_ns[0], &own_ns[0]);
    estimate(back, &torch_ns[1], &own_ns[1]);
    return torch_ns[0] + torch_ns[1] < own_ns[0] + own_ns[1] + recording;
}

/* Are both passes of a problem PyTorch's, as the planner would have it? The gradient of elements is always its formula.
 * forward: the first one is. */
static bool decide_both(weft_problem *p, bool forward) {
    weft_problem back = WEFT_PROBLEM_INIT;
    if (is_pointwise(p)) return forward;
    if (is_pool(p) && p->device == WEFT_DEVICE_CUDA && !may_leave_pooling(p)) return false;
    if (!make_gradient(p, &back)) return false;
    wt_rehearse(wt_never, NULL);
    weft_plan *plan = forward ? wt_plan_by(&back, true, WEFT_ENGINE_ALL) : NULL;
    wt_rehearse(NULL, NULL);
    const bool torchs = wt_is_torch(plan);
    weft_plan_release(plan);
    return torchs || is_shorter(p, &back);
}

/* The same, decided once: a slot holds the hash of a problem and, in its lowest bit, the answer. Later problems take
 * the slots of earlier ones. */
static bool leaves_both(weft_problem *p, bool forward) {
    enum { SLOTS = 512, WORDS = sizeof(*p) / sizeof(int64_t), KEY = WORDS + 2 };
    static _Atomic uint64_t slots[SLOTS];
    int64_t key[KEY];
    _Static_assert(sizeof(*p) % sizeof(int64_t) == 0, "whole words");
    memcpy(key, p, sizeof(*p));
    key[WORDS] = wt_seat_settings() * 2 + forward;
    key[WORDS + 1] = wt_threads();
    const uint64_t hash = seat_hash(key, KEY) | 1;
    _Atomic uint64_t *slot = &slots[(hash >> 1) % SLOTS];
    const uint64_t known = atomic_load(slot);
    if ((known | 1) == hash) return known & 1;
    const bool both = decide_both(p, forward);
    atomic_store(slot, both ? hash : hash - 1);
    return both;
}

/* leaves(operator's number, gradient, its arguments...) -> True if the planner leaves the call to PyTorch; with
 * gradient True, that of its gradient as well. What is measured is decided pass by pass, and not here. */
py_object *entry_leaves(py_object *self, py_object *const *args, intptr_t nargs) {
    wt_call call;
    wt_question q = {.torchs = false};
    (void)self;
    const long long number = nargs > 2 && entry_is_open() && entry_is_plain_here() ? py.PyLong_AsLongLong(args[0]) : -1;
    if (number < 0 || wt_settings()->mode == WEFT_MODE_MEASURE) return entry_bool(false);
    if (!entry_read_op(number, args + 2, nargs - 2, &call)) return entry_bool(false);
    wt_ask(&q);
    wt_call_run(&call);
    wt_ask(NULL);
    for (int i = 0; i < WT_MAX_OUTS; i++) wt_drop(&call, i);
    const bool may = q.allowed && wt_settings()->delegate && !wt_settings()->pin[0];
    return entry_bool(args[1] == py._Py_TrueStruct ? may && leaves_both(&q.problem, q.torchs) : q.torchs);
}
