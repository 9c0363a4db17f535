/* Who would compute a call, forward and backward? The operator plans and stops there; its gradient is planned from its
 * problem. */
#include <string.h>

#include "entry.h"
#include "settings.h"

/* The problem of the gradient; false: it cannot be said. */
static bool make_gradient(weft_problem *p, weft_problem *back) {
    char text[WEFT_TEXT_MAX];
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

/* Is the gradient of a problem PyTorch's, as the planner would have it? Of elements it is always PyTorch's formula. */
static bool leaves_gradient(weft_problem *p) {
    weft_problem back = WEFT_PROBLEM_INIT;
    const bool pools = p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    if (pools && p->device == WEFT_DEVICE_CUDA) return false; /* its sums have no order, or are wrong: entry_seat.c */
    if (p->op == WEFT_OP_RELU || p->op == WEFT_OP_CLIP || p->op == WEFT_OP_TANH || p->op == WEFT_OP_SIGMOID)
        return true;
    if (!make_gradient(p, &back)) return false;
    wt_rehearse(wt_never, NULL);
    weft_plan *plan = wt_plan_by(&back, true, WEFT_ENGINE_ALL);
    wt_rehearse(NULL, NULL);
    const bool torchs = wt_is_torch(plan);
    weft_plan_release(plan);
    return torchs;
}

/* ns that PyTorch would save, beside the best of weft's kernels. */
static double gain_of_torch(weft_problem *p) {
    wt_rehearse(wt_never, NULL);
    const double theirs = wt_external_ns(p);
    weft_plan *plan = wt_plan_by(p, true, WEFT_ENGINE_ALL & ~(uint32_t)WEFT_ENGINE_EXTERNAL);
    wt_rehearse(NULL, NULL);
    const double ours = plan ? wt_estimate(plan) : theirs;
    weft_plan_release(plan);
    return ours - theirs;
}

/* Both passes are PyTorch's or both are weft's, whose gradient is recorded from Python: one of each would have the cost
 * of either. */
static bool goes_together(const wt_question *q) {
    const int op = q->problem.op;
    return q->allowed && !wt_settings()->pin[0] && q->problem.device == WEFT_DEVICE_CPU &&
           (op == WEFT_OP_SOFTMAX || op == WEFT_OP_LOG_SOFTMAX || op == WEFT_OP_BATCH_NORM);
}
static bool leaves_both(weft_problem *p) {
    enum { RECORDED_NS = 80000 };
    weft_problem back = WEFT_PROBLEM_INIT;
    const double gain = gain_of_torch(p) + RECORDED_NS;
    return make_gradient(p, &back) && gain + gain_of_torch(&back) > 0;
}

/* leaves(operator's number, gradient, its arguments...) -> True if the planner leaves the call to PyTorch; with
 * gradient True, that of its gradient as well. What is measured is decided pass by pass, and not here. */
py_object *entry_leaves(py_object *self, py_object *const *args, intptr_t nargs) {
    wt_call call;
    wt_question q = {.torchs = false};
    (void)self;
    const long long number = nargs > 2 && entry_is_open() && entry_is_plain_here() ? py.PyLong_AsLongLong(args[0]) : -1;
    if (number < 0 || wt_settings()->mode == WEFT_MODE_MEASURE || !wt_settings()->delegate) return entry_bool(false);
    if (!entry_read_op(number, args + 2, nargs - 2, &call)) return entry_bool(false);
    wt_ask(&q);
    wt_call_run(&call);
    wt_ask(NULL);
    for (int i = 0; i < WT_MAX_OUTS; i++) wt_drop(&call, i);
    if (args[1] != py._Py_TrueStruct) return entry_bool(q.torchs);
    return entry_bool(goes_together(&q) ? leaves_both(&q.problem) : q.torchs && leaves_gradient(&q.problem));
}
