/* Who would compute a call, forward and backward? The operator plans and stops there; its gradient is planned from its
 * problem. */
#include <string.h>

#include "entry.h"
#include "settings.h"

/* Is the gradient of a problem PyTorch's, as the planner would have it? Of elements it is always PyTorch's formula. */
static bool leaves_gradient(weft_problem *p) {
    char text[WEFT_TEXT_MAX];
    weft_problem back = WEFT_PROBLEM_INIT;
    if (p->op == WEFT_OP_RELU || p->op == WEFT_OP_CLIP || p->op == WEFT_OP_TANH || p->op == WEFT_OP_SIGMOID)
        return true;
    if (p->op == WEFT_OP_SOFTMAX || p->op == WEFT_OP_LOG_SOFTMAX) { /* it reads the result alone, dense as that is */
        weft_tensor *src = weft_problem_tensor(p, WEFT_ROLE_SRC);
        *src = *weft_problem_tensor(p, WEFT_ROLE_DST);
        src->role = WEFT_ROLE_SRC;
    }
    weft_status status = weft_problem_format(p, text, sizeof(text), NULL);
    char *pass = status == WEFT_OK ? strstr(text, ":fwd:") : NULL;
    if (!pass) return false;
    memcpy(pass, ":bwd:", 5);
    if (weft_problem_parse(&back, text) != WEFT_OK) return false;
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
    if (number < 0 || wt_settings()->mode == WEFT_MODE_MEASURE || !wt_settings()->delegate) return entry_bool(false);
    if (!entry_read_op(number, args + 2, nargs - 2, &call)) return entry_bool(false);
    wt_ask(&q);
    wt_call_run(&call);
    wt_ask(NULL);
    for (int i = 0; i < WT_MAX_OUTS; i++) wt_drop(&call, i);
    return entry_bool(q.torchs && (args[1] != py._Py_TrueStruct || leaves_gradient(&q.problem)));
}
