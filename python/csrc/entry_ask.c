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

/* On CUDA PyTorch's gradients of pooling add up in any order, or come out wrong (entry_seat.c), but for averages of
 * channels-first images and for means. */
static bool may_leave_pooling(const weft_problem *p) {
    const weft_tensor *src = weft_problem_find(p, WEFT_ROLE_SRC);
    const int64_t *to = &p->attr[WEFT_ADAPTIVE_AVG_POOL_TO];
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) return to[0] <= 1 && to[1] <= 1 && to[2] <= 1;
    return p->op == WEFT_OP_AVG_POOL && p->rank == 2 && src->layout == WEFT_LAYOUT_FIRST;
}

/* Is the gradient of a problem PyTorch's, as the planner would have it? Of elements it is always PyTorch's formula. */
static bool leaves_gradient(weft_problem *p) {
    weft_problem back = WEFT_PROBLEM_INIT;
    const bool pools = p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    if (p->op == WEFT_OP_RELU || p->op == WEFT_OP_CLIP || p->op == WEFT_OP_TANH || p->op == WEFT_OP_SIGMOID)
        return true;
    if (pools && p->device == WEFT_DEVICE_CUDA && !may_leave_pooling(p)) return false;
    if (!make_gradient(p, &back)) return false;
    wt_rehearse(wt_never, NULL);
    weft_plan *plan = wt_plan_by(&back, true, WEFT_ENGINE_ALL);
    wt_rehearse(NULL, NULL);
    const bool torchs = wt_is_torch(plan);
    weft_plan_release(plan);
    return torchs;
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
    return entry_bool(q.torchs && (args[1] != py._Py_TrueStruct || leaves_gradient(&q.problem)));
}
