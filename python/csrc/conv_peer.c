/* Convolution by PyTorch's own operators: aten::convolution and its gradient.
 * They know one padding an axis. Where low and high differ, as for 'same' with an even window (the stride is 1
 * then), both sides get the larger one, and the results that belong to the pixels added are cut off: of the forward
 * pass, or as zeros ahead of its gradient. */
#include <string.h>

#include "conv_peer.h"
#include "seat.h"

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* On CUDA its gradients may add in an order that changes from run to run; in float64, where people compare bits and
 * differences, they are weft's own. */
bool wt_conv_backward_has_peer(const wt_call *call, const wt_geometry *g) {
    return wt_conv_has_peer(g) &&
           (call->device_type == wt.aoti_torch_device_type_cpu() || call->arg[0].tensor.dtype != WEFT_DTYPE_F64);
}

bool wt_conv_has_peer(const wt_geometry *g) {
    for (int a = 0; a < 3; a++)
        if (g->pad_lo[a] != g->pad_hi[a] && g->stride[a] != 1) return false;
    return true;
}

/* A batch of one in front of an unbatched tensor. */
static wt_handle batch_of_one(wt_call *call, wt_handle tensor, bool batched) {
    wt_stack s = {.n = 0};
    if (batched) return tensor;
    WT_PUSH(&s, wt_of_tensor(&s, tensor), wt_of_int(0));
    return wt_aten_scratch(call, &s, "aten::unsqueeze", "");
}

static wt_handle narrow(wt_call *call, wt_handle tensor, int64_t dim, int64_t start, int64_t length) {
    wt_stack s = {.n = 0};
    WT_PUSH(&s, wt_of_tensor(&s, tensor), wt_of_int(dim), wt_of_int(start), wt_of_int(length));
    return wt_aten_scratch(call, &s, "aten::narrow", "");
}

/* Its pixels that are not from the added padding; skip: how many of those come first along each axis. */
static wt_handle inner(wt_call *call, wt_handle tensor, const int64_t skip[3], const int64_t size[3], int rank) {
    for (int a = 3 - rank; a < 3 && tensor; a++)
        if (skip[a] >= 0) tensor = narrow(call, tensor, 2 + a - (3 - rank), skip[a], size[a]);
    return tensor;
}

/* Axes whose paddings differ: both become the larger, the results before the first are to be skipped. Returns false
 * if there are none. */
static bool even_out(const wt_geometry *g, int64_t pad[3], int64_t skip[3]) {
    bool uneven = false;
    for (int a = 0; a < 3; a++) {
        pad[a] = larger(g->pad_lo[a], g->pad_hi[a]);
        skip[a] = g->pad_lo[a] == g->pad_hi[a] ? -1 : pad[a] - g->pad_lo[a];
        uneven |= skip[a] >= 0;
    }
    return uneven;
}

static bool take_result(wt_call *call, int slot, wt_value tensor, const wt_view *v, const wt_geometry *g, bool batched,
                        bool part) {
    if (!batched) {
        wt_stack s = {.n = 0};
        WT_PUSH(&s, wt_of_tensor(&s, (wt_handle)(uintptr_t)tensor), wt_of_int(0));
        wt_free(tensor);
        if (!wt_aten(call, &s, "aten::squeeze", "dim", 1)) return false;
        tensor = s.item[0];
    }
    /* part of a tensor would keep all of its memory */
    return (part ? wt_take_copy : wt_take)(call, slot, tensor, v, g->rank, batched);
}

/* A number as a tensor without dimensions: PyTorch's C interface has no scalars. Its type does not decide that of a
 * result. */
static wt_handle scalar(wt_call *call, double value) {
    wt_handle *slot = wt_scratch(call);
    void *data;
    if (!slot || !wt_empty(call, slot, 0, NULL, NULL, wt.aoti_torch_dtype_float64(), &data)) return NULL;
    *(double *)data = value;
    return *slot;
}

static bool clamp(wt_call *call, wt_handle y, double lo, double hi) {
    wt_stack s = {.n = 0};
    wt_handle least = scalar(call, lo), most = least ? scalar(call, hi) : NULL;
    if (!most) return false;
    WT_PUSH(&s, wt_of_tensor(&s, y), wt_of_optional(&s, least), wt_of_optional(&s, most));
    bool ok = wt_aten(call, &s, "aten::clamp_", "Tensor", 1);
    if (ok) wt_free(s.item[0]);
    return ok;
}

/* In place on PyTorch's result. On a GPU bounds other than those of relu6 are a clip of weft's own: nothing is
 * copied there for them. */
bool wt_activate(wt_call *call, wt_handle y, const wt_view *v, int act, int rank) {
    const char *kind = call->arg[act].text;
    double lo = call->arg[act + 1].real, hi = call->arg[act + 2].real;
    if (!kind[0]) return true;
    if (!strcmp(kind, "relu") || (lo == 0 && hi == 6)) {
        wt_stack s = {.n = 0};
        WT_PUSH(&s, wt_of_tensor(&s, y));
        bool ok = wt_aten(call, &s, strcmp(kind, "relu") ? "aten::relu6_" : "aten::relu_", "", 1);
        if (ok) wt_free(s.item[0]);
        return ok;
    }
    if (call->device_type == wt.aoti_torch_device_type_cpu()) return clamp(call, y, lo, hi);
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    wt_view w = *v;
    if (wt.aoti_torch_get_data_ptr(y, &w.data)) return wt_fail(call, "the result has no memory");
    p.size = sizeof(p);
    weft_problem_init(&p, WEFT_OP_CLIP, WEFT_PASS_FWD, rank);
    p.n = w.dims[0], p.c = w.dims[1];
    memcpy(p.in, w.dims + 2, sizeof(p.in));
    p.real[WEFT_CLIP_LO] = lo, p.real[WEFT_CLIP_HI] = hi;
    WT_PUT(&p, &args, {WEFT_ROLE_SRC, &w}, {WEFT_ROLE_DST, &w});
    return wt_execute(call, wt_plan(call, &p), &args);
}

bool wt_conv_peer(wt_call *call, const void *state) {
    const wt_conv_state *c = state;
    const wt_geometry *g = c->g;
    int64_t pad[3], skip[3];
    wt_stack s = {.n = 0};
    bool uneven = !c->transposed && even_out(g, pad, skip);
    wt_handle x = batch_of_one(call, call->arg[0].tensor.handle, g->batched);
    if (!x) return false;
    wt_drop(call, 0);
    WT_PUSH(&s, wt_of_tensor(&s, x), wt_of_tensor(&s, call->arg[1].tensor.handle),
            wt_of_optional(&s, call->arg[2].tensor.handle), wt_of_axes(&s, g->stride, g->rank),
            wt_of_axes(&s, c->transposed ? g->pad_lo : pad, g->rank), wt_of_axes(&s, g->dilation, g->rank),
            wt_of_bool(c->transposed), wt_of_axes(&s, c->extra, g->rank), wt_of_int(g->groups));
    if (!wt_aten(call, &s, "aten::convolution", "", 1)) return false;
    wt_value y = s.item[0];
    if (uneven) {
        wt_handle cut = inner(call, (wt_handle)(uintptr_t)y, skip, c->y->dims + 2, g->rank), kept = NULL;
        wt_free(y);
        if (!cut || wt.aoti_torch_new_tensor_handle(cut, &kept)) return false;
        y = (wt_value)(uintptr_t)kept;
    }
    if (!take_result(call, 0, y, c->y, g, g->batched, uneven)) return false;
    return wt_activate(call, call->out[0] ? call->out[0] : call->arg[call->op->nargs - 1].tensor.handle, c->y, c->act,
                       g->rank);
}

/* grad_output with zeros where the forward pass was cut. */
static wt_handle widen(wt_call *call, const wt_gradients *d, const int64_t pad[3], const int64_t skip[3],
                       int32_t code) {
    int64_t sizes[5], strides[5], n = 0, step = 1;
    void *data;
    for (int a = 0; a < 5; a++) {
        if (a >= 2 && a < 5 - d->g.rank) continue;
        int64_t more = a < 2 || skip[a - 2] < 0 ? 0 : 2 * pad[a - 2] - d->g.pad_lo[a - 2] - d->g.pad_hi[a - 2];
        sizes[n++] = d->dy.dims[a] + more;
    }
    for (int64_t a = n - 1; a >= 0; a--) strides[a] = step, step *= sizes[a];
    wt_handle *wide = wt_scratch(call);
    if (!wide || !wt_empty(call, wide, n, sizes, strides, code, &data)) return NULL;
    wt_handle kept = wt.aoti_torch_zero_(*wide) ? NULL : inner(call, *wide, skip, d->dy.dims + 2, d->g.rank);
    wt_handle dy = batch_of_one(call, d->dy.handle, d->g.batched);
    if (!kept || !dy || wt.aoti_torch_copy_(kept, dy, 0)) {
        wt_fail(call, "grad_output: could not be copied");
        return NULL;
    }
    return *wide;
}

/* diff_bias alone is the sum over all but the channels, whatever the geometry. */
static bool sum_of_channels(wt_call *call, const wt_gradients *d) {
    int64_t axes[4], n = 0;
    wt_stack s = {.n = 0};
    for (int a = d->g.batched ? 0 : 1; a < d->g.rank + 2; a++)
        if (a != 1) axes[n++] = a - !d->g.batched;
    wt_drop(call, 2);
    WT_PUSH(&s, wt_of_tensor(&s, d->dy.handle), wt_of_optional_list(&s, axes, (int)n), wt_of_bool(false), 0);
    if (!wt_aten(call, &s, "aten::sum", "dim_IntList", 1)) return false;
    call->out[2] = (wt_handle)(uintptr_t)s.item[0];
    return true;
}

/* PyTorch is not asked for weight gradients in which it writes outside of its memory: see seat_run.c. Copies
 * that are channels-first take another way through it. */
static wt_handle channels_first(wt_call *call, wt_handle tensor) {
    wt_tensor t;
    int64_t strides[5], step = 1;
    void *data;
    wt_handle *slot = wt_scratch(call);
    if (!slot || wt_read_tensor(tensor, &t)) return NULL;
    for (int64_t a = t.rank - 1; a >= 0; a--) strides[a] = step, step *= t.sizes[a];
    if (!wt_empty(call, slot, t.rank, t.sizes, strides, t.code, &data) || wt.aoti_torch_copy_(*slot, tensor, 0))
        return NULL;
    return *slot;
}

static bool is_dangerous(const wt_call *call, const wt_gradients *d, int64_t want) {
    return want & WT_WANT_WEIGHT && call->device_type == wt.aoti_torch_device_type_cpu() &&
           (wt_is_last(&d->x) || seat_suggests_last(&call->arg[2].tensor)) && d->x.dims[1] < 16 && d->w.dims[2] == 1 &&
           d->w.dims[3] == 1 && d->w.dims[4] == 1 && (d->g.stride[0] > 1 || d->g.stride[1] > 1 || d->g.stride[2] > 1);
}

bool wt_conv_backward_peer(wt_call *call, const void *state) {
    const wt_share *share = state;
    const wt_gradients *d = share->d;
    if (share->want == WT_WANT_BIAS) return sum_of_channels(call, d);
    const wt_geometry *g = &d->g;
    bool transposed = call->arg[7].integer;
    int64_t pad[3], skip[3], extra[3] = {0}, channels = d->dy.dims[1];
    memcpy(pad, g->pad_lo, sizeof(pad));
    bool uneven = !transposed && even_out(g, pad, skip);
    for (int a = 0; a < 3 && transposed; a++)
        extra[a] = d->dy.dims[2 + a] + 2 * g->pad_lo[a] -
                   wt_span(d->x.dims[2 + a], d->w.dims[2 + a], g->dilation[a], g->stride[a]);
    wt_handle dy =
        uneven ? widen(call, d, pad, skip, call->arg[0].tensor.code) : batch_of_one(call, d->dy.handle, g->batched);
    wt_handle x = dy ? batch_of_one(call, call->arg[1].tensor.handle, g->batched) : NULL;
    wt_handle w = call->arg[2].tensor.handle;
    wt_stack s = {.n = 0};
    if (x && is_dangerous(call, d, share->want)) {
        x = channels_first(call, x);
        dy = x ? channels_first(call, dy) : NULL;
        w = dy ? channels_first(call, w) : NULL;
        if (!w) return wt_fail(call, "input: could not be copied");
    }
    if (!x) return false;
    for (int i = 0; i < 3; i++)
        if (share->want >> i & 1) wt_drop(call, i);
    WT_PUSH(&s, wt_of_tensor(&s, dy), wt_of_tensor(&s, x), wt_of_tensor(&s, w));
    if (share->want & WT_WANT_BIAS)
        WT_PUSH(&s, wt_of_optional_list(&s, &channels, 1));
    else
        WT_PUSH(&s, 0);
    WT_PUSH(&s, wt_of_axes(&s, g->stride, g->rank), wt_of_axes(&s, pad, g->rank), wt_of_axes(&s, g->dilation, g->rank),
            wt_of_bool(transposed), wt_of_axes(&s, extra, g->rank), wt_of_int(g->groups),
            wt_of_bools(&s, (int)share->want, 3));
    if (!wt_aten(call, &s, "aten::convolution_backward", "", 3)) return false;
    const wt_view *views[] = {&d->dx, &d->dw};
    bool ok = true;
    for (int i = 0; i < 3; i++) {
        if (!(share->want >> i & 1))
            wt_free(s.item[i]);
        else if (i == 2)
            call->out[2] = (wt_handle)(uintptr_t)s.item[2];
        else
            ok &= take_result(call, i, s.item[i], views[i], g, i || g->batched, false);
    }
    return ok;
}
