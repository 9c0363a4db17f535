/* Pooling in 2D and its gradients for the seat: is it one that weft computes, which problem is it, and the way back to
 * PyTorch's implementation. Indices are PyTorch's: int64, places in the image, the first of equal ones, the last NaN.
 */
#include <string.h>

#include "seat.h"

/* ---------------------------------------------------------------- the call */
static bool is_adaptive(const seat_call *c) { return c->op->family == SEAT_ADAPTIVE_AVG_POOL; }
static bool is_max(const seat_call *c) { return c->op->family == SEAT_MAX_POOL; }

/* No stride is that of the kernel. A window without a tap in the image, which a dilation beyond its size can make, has
 * no place: PyTorch's index is of its own making there. */
static bool read_window(seat_draft *d) {
    const wt_list *l = d->c->list;
    wt_geometry *g = &d->g;
    if (!seat_read_axes(&l[SEAT_KERNEL], 2, 1, g->kernel) ||
        !seat_read_axes(&l[l[SEAT_STRIDE].size ? SEAT_STRIDE : SEAT_KERNEL], 2, 1, g->stride) ||
        !seat_read_axes(&l[SEAT_PADDING], 2, 0, g->pad_lo) ||
        (is_max(d->c) && !seat_read_axes(&l[SEAT_DILATION], 2, 1, g->dilation)))
        return false;
    memcpy(g->pad_hi, g->pad_lo, sizeof(g->pad_hi));
    for (int a = 1; a < 3; a++)
        if (g->pad_lo[a] > g->kernel[a] / 2 || g->dilation[a] > g->in[a] || !wt_window_out(g, a)) return false;
    return true;
}

/* Output sizes of the call; of adaptive pooling those of the list, or of grad_output. */
static bool read_sizes(seat_draft *d) {
    const seat_call *c = d->c;
    wt_geometry *g = &d->g;
    memcpy(g->in, d->view[SEAT_X].dims + 2, sizeof(g->in));
    g->up = !is_adaptive(c) && c->value[SEAT_CEIL];
    if (!is_adaptive(c)) return read_window(d);
    if (!c->op->backward) return c->list[SEAT_EXTRA].size == 2 && seat_read_axes(&c->list[SEAT_EXTRA], 2, 1, g->out);
    memcpy(g->out, d->view[SEAT_DY].dims + 2, sizeof(g->out));
    return true;
}

static bool has_dims(const wt_view *v, const int64_t dims[5]) { return !memcmp(v->dims, dims, sizeof(v->dims)); }

static const char *read_call(seat_draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X], *index = &c->in[SEAT_INDEX];
    const int32_t code = x->code, wide = wt.aoti_torch_dtype_int64();
    if (x->rank < 3 || x->rank > 4) return "the ranks of its tensors";
    d->g = wt_plain_geometry(2);
    d->g.batched = x->rank == 4;
    const char *why = seat_see_tensors(d);
    if (why) return why;
    if (!read_sizes(d)) return "its geometry";
    const int64_t *from = d->view[SEAT_X].dims, *to = d->g.out, dims[5] = {from[0], from[1], to[0], to[1], to[2]};
    if (c->op->backward && !has_dims(&d->view[SEAT_DY], dims)) return "its sizes";
    if (index->handle && (index->code != wide || !has_dims(&d->view[SEAT_INDEX], dims))) return "its indices";
    if (c->value[SEAT_DIVIDED] && c->value[SEAT_DIVISOR] < 1) return "its divisor";
    d->e->sound = true;
    const bool last = seat_suggests_last(x);
    why = seat_fix_format(d, last, !last || !c->cuda);
    if (!why) why = seat_fix_input(d, false);
    if (why) return why;
    if (index->handle && !wt_is_dense(&d->view[SEAT_INDEX], d->last)) return "the strides of its indices";
    if (c->op->backward) return seat_add_result(d, 0, from, code) ? seat_fix_gradient(d) : "its sizes";
    if (!seat_add_result(d, 0, dims, code) || (is_max(c) && !seat_add_result(d, 1, dims, wide))) return "its sizes";
    return NULL;
}

static bool choose(seat_draft *d) {
    static const weft_op ops[SEAT_FAMILIES] = {[SEAT_MAX_POOL] = WEFT_OP_MAX_POOL,
                                               [SEAT_AVG_POOL] = WEFT_OP_AVG_POOL,
                                               [SEAT_ADAPTIVE_AVG_POOL] = WEFT_OP_ADAPTIVE_AVG_POOL};
    const seat_call *c = d->c;
    const weft_op op = ops[c->op->family];
    weft_problem p = WEFT_PROBLEM_INIT;
    wt_begin_with(&p, op, c->op->backward ? WEFT_PASS_BWD : WEFT_PASS_FWD, &d->g, d->view[SEAT_X].dims[0],
                  d->view[SEAT_X].dims[1]);
    if (op == WEFT_OP_MAX_POOL) p.attr[WEFT_MAX_POOL_INDEX] = 1;
    if (op == WEFT_OP_AVG_POOL) {
        p.attr[WEFT_AVG_POOL_INCLUDE_PAD] = c->value[SEAT_INCLUDE];
        p.attr[WEFT_AVG_POOL_DIVISOR] = c->value[SEAT_DIVISOR];
    }
    seat_put_roles(d, &p, &d->e->step[0]);
    /* 16 bits PyTorch sums as such on the CPU: they are weft's, and what is tiny costs no more there */
    const bool rounds = !c->cuda && wt_is_half(d->view[SEAT_X].dtype);
    return seat_plan_alone(d, &p, !rounds);
}

/* ---------------------------------------------------------------- the operators */
#define POOL(id, of, outs, back) SEAT_BY_TORCH(id, outs) SEAT_OP(id, of, outs, back, by_torch_##id)
POOL(max_pool2d_with_indices, SEAT_MAX_POOL, 2, false)
POOL(max_pool2d_with_indices_backward, SEAT_MAX_POOL, 1, true)
POOL(avg_pool2d, SEAT_AVG_POOL, 1, false)
POOL(avg_pool2d_backward, SEAT_AVG_POOL, 1, true)
POOL(_adaptive_avg_pool2d, SEAT_ADAPTIVE_AVG_POOL, 1, false)
POOL(_adaptive_avg_pool2d_backward, SEAT_ADAPTIVE_AVG_POOL, 1, true)
