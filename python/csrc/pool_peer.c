/* Pooling by PyTorch's own operators, in 2D and 3D. On CUDA some of its gradients add in an order that changes from
 * run to run: those are never called. On the CPU it has kernels for 16 bits in some of them only, and sums in 16
 * bits in others. The byte index of max pooling is weft's alone. */
#include <stdio.h>

#include "pool_peer.h"

static bool on_cpu(const wt_call *call) { return call->device_type == wt.aoti_torch_device_type_cpu(); }

/* It reject some strides: those of dense data, channels-first or in a batch channels-last, it takes. */
static bool has_kernels(const wt_call *call, const wt_pool_state *c) {
    const wt_window *g = c->g;
    const wt_tensor *t = &call->arg[0].tensor;
    wt_view v = c->gradient ? *c->gradient : wt_see(t, g->rank);
    int64_t strides[5];
    bool last = wt_is_last(&v), dense = wt_dense(strides, v.dims, last) && (g->batched || !last);
    for (int a = 0; a < 5; a++) dense = dense && (v.dims[a] == 1 || v.strides[a] == strides[a]);
    return dense && (!on_cpu(call) || t->dtype == WEFT_DTYPE_F32 || t->dtype == WEFT_DTYPE_F64);
}

static const char *named(char text[64], const char *format, int rank) {
    snprintf(text, 64, format, rank);
    return text;
}

static void push_window(wt_stack *s, const wt_window *g, bool dilated) {
    WT_PUSH(s, wt_of_axes(s, g->kernel, g->rank), wt_of_axes(s, g->stride, g->rank), wt_of_axes(s, g->pad, g->rank));
    if (dilated) WT_PUSH(s, wt_of_axes(s, g->dilation, g->rank));
    WT_PUSH(s, wt_of_bool(g->up));
}

/* ---------------------------------------------------------------- forward */
static bool take_first(wt_call *call, const wt_stack *s, const wt_pool_state *c) {
    return wt_take(call, 0, s->item[0], c->result, c->g->rank, c->g->batched);
}

static bool max_pool(wt_call *call, const void *state) {
    const wt_pool_state *c = state;
    char name[64];
    wt_stack s = {.n = 0};
    wt_drop(call, 0);
    if (c->index) wt_drop(call, 1);
    WT_PUSH(&s, wt_of_tensor(&s, call->arg[0].tensor.handle));
    push_window(&s, c->g, true);
    if (!wt_aten(call, &s, named(name, "aten::max_pool%dd_with_indices", c->g->rank), "", 2)) return false;
    bool ok = take_first(call, &s, c);
    if (c->index && ok) return wt_take(call, 1, s.item[1], c->index, c->g->rank, c->g->batched);
    wt_free(s.item[1]);
    return ok;
}

static bool avg_pool(wt_call *call, const void *state) {
    const wt_pool_state *c = state;
    char name[64];
    wt_stack s = {.n = 0};
    wt_drop(call, 0);
    WT_PUSH(&s, wt_of_tensor(&s, call->arg[0].tensor.handle));
    push_window(&s, c->g, false);
    WT_PUSH(&s, wt_of_bool(call->arg[c->include].integer),
            wt_of_optional_int(&s, call->arg[c->include + 1].integer != 0, call->arg[c->include + 1].integer));
    return wt_aten(call, &s, named(name, "aten::avg_pool%dd", c->g->rank), "", 1) && take_first(call, &s, c);
}

static bool adaptive_avg_pool(wt_call *call, const void *state) {
    const wt_pool_state *c = state;
    char name[64];
    wt_stack s = {.n = 0};
    wt_drop(call, 0);
    WT_PUSH(&s, wt_of_tensor(&s, call->arg[0].tensor.handle), wt_of_axes(&s, c->g->out, c->g->rank));
    /* to one pixel: a mean */
    return wt_aten(call, &s, named(name, "aten::adaptive_avg_pool%dd", c->g->rank), "", 1) && take_first(call, &s, c);
}

static bool to_one(const wt_window *g) { return g->out[0] == 1 && g->out[1] == 1 && g->out[2] == 1; }

wt_peer wt_pool_peer(const wt_call *call, const wt_pool_state *c, weft_op op) {
    if (c->g->rank == 1 || !has_kernels(call, c)) return NULL;
    if (op == WEFT_OP_MAX_POOL) return c->index && c->index->dtype != WEFT_DTYPE_I64 ? NULL : max_pool;
    return op == WEFT_OP_AVG_POOL ? avg_pool : adaptive_avg_pool;
}

/* ---------------------------------------------------------------- gradients
 * PyTorch's ask for the input and look at its shape alone: the result that was made for weft stands for it, and goes
 * afterwards. */
static bool finish(wt_call *call, wt_stack *s, const char *name, const wt_pool_state *c) {
    if (!wt_aten(call, s, name, "", 1)) return false;
    wt_drop(call, 0);
    return take_first(call, s, c);
}

static bool max_pool_backward(wt_call *call, const void *state) {
    const wt_pool_state *c = state;
    char name[64];
    wt_stack s = {.n = 0};
    WT_PUSH(&s, wt_of_tensor(&s, c->gradient->handle), wt_of_tensor(&s, c->result->handle));
    push_window(&s, c->g, true);
    WT_PUSH(&s, wt_of_tensor(&s, call->arg[1].tensor.handle));
    return finish(call, &s, named(name, "aten::max_pool%dd_with_indices_backward", c->g->rank), c);
}

static bool avg_pool_backward(wt_call *call, const void *state) {
    const wt_pool_state *c = state;
    char name[64];
    wt_stack s = {.n = 0};
    WT_PUSH(&s, wt_of_tensor(&s, c->gradient->handle), wt_of_tensor(&s, c->result->handle));
    push_window(&s, c->g, false);
    WT_PUSH(&s, wt_of_bool(call->arg[c->include].integer),
            wt_of_optional_int(&s, call->arg[c->include + 1].integer != 0, call->arg[c->include + 1].integer));
    return finish(call, &s, named(name, "aten::avg_pool%dd_backward", c->g->rank), c);
}

static bool adaptive_avg_pool_backward(wt_call *call, const void *state) {
    const wt_pool_state *c = state;
    char name[64];
    wt_stack s = {.n = 0};
    WT_PUSH(&s, wt_of_tensor(&s, c->gradient->handle), wt_of_tensor(&s, c->result->handle));
    if (to_one(c->g)) { /* of a window as large as the image */
        WT_PUSH(&s, wt_of_axes(&s, c->g->in, c->g->rank), wt_of_axes(&s, c->g->in, c->g->rank),
                wt_of_axes(&s, (const int64_t[3]){0, 0, 0}, c->g->rank), wt_of_bool(false), wt_of_bool(true), 0);
        return finish(call, &s, named(name, "aten::avg_pool%dd_backward", c->g->rank), c);
    }
    return finish(call, &s, named(name, "aten::_adaptive_avg_pool%dd_backward", c->g->rank), c);
}

/* On CUDA its mean over windows is also wrong for channels-last data (2.11: off by as much as the gradient itself). */
wt_peer wt_pool_backward_peer(const wt_call *call, const wt_pool_state *c, weft_op op) {
    bool settled = on_cpu(call), first = !wt_is_last(c->result);
    if (c->g->rank == 1 || !has_kernels(call, c)) return NULL;
    if (op == WEFT_OP_MAX_POOL) return settled && c->index->dtype == WEFT_DTYPE_I64 ? max_pool_backward : NULL;
    if (op == WEFT_OP_AVG_POOL) return settled || (first && c->g->rank == 2) ? avg_pool_backward : NULL;
    return settled || (first && c->g->rank == 2 && to_one(c->g)) ? adaptive_avg_pool_backward : NULL;
}
