/* Convolution, transposed convolution and their gradients. Padding holds a low and a high value an axis.
 * Transposed convolution is the data gradient with the roles swapped: in the problem its input is diff_dst, its
 * output diff_src. */
#include <string.h>

#include "binding.h"

/* Where the arguments stand; the two forward operators and conv_backward share what they can. */
enum { INPUT, WEIGHT, BIAS, STRIDE, PADDING, DILATION, GROUPS, ACT, LO, HI, OUTPUT_PADDING };
enum { B_GRAD, B_INPUT, B_WEIGHT, B_TRANSPOSED = 7, B_WANT, B_BIAS_DTYPE };

/* ---------------------------------------------------------------- forward operators */
/* PyTorch's takes one type for all. */
static bool torch_takes(const wt_call *call) {
    const wt_tensor *b = &call->arg[BIAS].tensor;
    return !b->handle || b->code == call->arg[INPUT].tensor.code;
}

static bool run_conv(wt_call *call) {
    wt_geometry g;
    if (!wt_check_pair(call, &g, INPUT, WEIGHT) || !wt_read_geometry(call, &g, STRIDE)) return false;
    wt_view x = wt_see(&call->arg[INPUT].tensor, g.rank), w = wt_see(&call->arg[WEIGHT].tensor, g.rank), y;
    int64_t dims[5] = {x.dims[0], w.dims[0]};
    if (!wt_check_channels(call, &g, &x, &w, 1, "input") || !wt_check_bias(call, BIAS, w.dims[0]) ||
        !wt_out_sizes(call, &g, &x, &w, NULL, dims))
        return false;
    if (!x.dims[1]) dims[1] = 0; /* PyTorch's result of no channels */
    if (!wt_create(call, 0, &y, dims, g.rank, wt_is_last(&x), g.batched, call->arg[INPUT].tensor.code)) return false;
    if (wt_is_empty(&y)) return wt_check_act(call, ACT);
    wt_begin_conv(&call->p, WEFT_OP_CONV, WEFT_PASS_FWD, &g, &x, &w);
    WT_PUT(call, {WEFT_ROLE_SRC, &x}, {WEFT_ROLE_WEIGHTS, &w}, {WEFT_ROLE_DST, &y});
    return wt_put_epilogue(call, BIAS, ACT) && wt_run(call, torch_takes(call));
}
WT_OPERATOR_OUT(conv, "(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] "
                      "dilation, SymInt groups, str act, float lo, float hi) -> Tensor")

/* output_padding adds pixels that no tap of the last position reaches, or only some: fewer than a stride change
 * nothing in the geometry of the problem; more are taken off the high padding, so that its dst has exactly the size
 * of input. Where there is not as much padding, no problem says it, and PyTorch computes it. */
static bool run_conv_transpose(wt_call *call) {
    wt_geometry g;
    int64_t extra[3] = {0};
    if (!wt_check_pair(call, &g, INPUT, WEIGHT) || !wt_read_geometry(call, &g, STRIDE) ||
        !wt_read_axes(call, OUTPUT_PADDING, g.rank, 1, extra, NULL))
        return false;
    wt_view x = wt_see(&call->arg[INPUT].tensor, g.rank), w = wt_see(&call->arg[WEIGHT].tensor, g.rank), y;
    int64_t dims[5] = {x.dims[0]}, spare[3];
    /* On CUDA PyTorch's result in these cases is channels-first whatever the input is. */
    bool unsaid = false, first = call->cuda && g.rank == 1;
    for (int a = 0; a < 3; a++) {
        spare[a] = extra[a] < g.stride[a] ? 0 : extra[a];
        first |= spare[a] && call->cuda;
        unsaid |= spare[a] > g.pad_hi[a];
        if (extra[a] < 0 || (extra[a] >= g.stride[a] && extra[a] >= g.dilation[a]))
            return wt_fail(call,
                           "output_padding: is %lld along spatial axis %d, allowed: 0 or more, and less than the "
                           "stride, %lld, or than the dilation, %lld",
                           (long long)extra[a], a - 3 + g.rank, (long long)g.stride[a], (long long)g.dilation[a]);
    }
    if (!wt_grouped_channels(call, &g, &w, &dims[1]) || !wt_check_channels(call, &g, &x, &w, 0, "input") ||
        !wt_check_bias(call, BIAS, dims[1]) || !wt_out_sizes(call, &g, &x, &w, extra, dims))
        return false;
    if (!wt_create(call, 0, &y, dims, g.rank, !first && wt_is_last(&x), g.batched, call->arg[INPUT].tensor.code))
        return false;
    if (wt_is_empty(&y)) return wt_check_act(call, ACT);
    if (unsaid) return wt_check_act(call, ACT) && (call->shape || wt_by_torch(call, WT_ALL));
    for (int a = 0; a < 3; a++) g.pad_hi[a] -= spare[a];
    wt_begin_conv(&call->p, WEFT_OP_CONV, WEFT_PASS_BWD_DATA, &g, &y, &w);
    WT_PUT(call, {WEFT_ROLE_DIFF_DST, &x}, {WEFT_ROLE_WEIGHTS, &w}, {WEFT_ROLE_DIFF_SRC, &y});
    return wt_put_epilogue(call, BIAS, ACT) && wt_run(call, torch_takes(call));
}
WT_OPERATOR_OUT(conv_transpose,
                "(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
                "SymInt groups, str act, float lo, float hi, SymInt[] output_padding) -> Tensor")

/* ---------------------------------------------------------------- gradients */
static void begin(wt_call *call, const wt_gradients *d, weft_pass pass) {
    wt_begin_conv(&call->p, WEFT_OP_CONV, pass, &d->g, &d->x, &d->w);
}

/* From grad_output to input. diff_bias sums what is src there: the same sum over a 1x1 convolution that ends in it. */
static bool run_transposed(wt_call *call, const wt_gradients *d) {
    wt_gradients t = *d;
    t.x = d->dy, t.dy = d->dx;
    if (d->want & WT_WANT_INPUT && !wt_run_pass(call, &t, WEFT_PASS_FWD, false)) return false;
    t.dy = d->x;
    if (d->want & WT_WANT_WEIGHT && !wt_run_pass(call, &t, WEFT_PASS_BWD_WEIGHTS, false)) return false;
    for (int a = 0; a < 3; a++)
        t.g.stride[a] = t.g.dilation[a] = t.w.dims[2 + a] = 1, t.g.pad_lo[a] = t.g.pad_hi[a] = 0;
    t.g.groups = t.w.dims[0] = d->dy.dims[1];
    t.dy = d->dy;
    return !(d->want & WT_WANT_BIAS) || wt_run_pass(call, &t, WEFT_PASS_BWD_BIAS, true);
}

/* grad_output must have the shape the forward operator gives; of a transposed one, any that leads back to input. */
static bool check_grad(wt_call *call, const wt_gradients *d, bool transposed) {
    const wt_tensor *t = &call->arg[B_GRAD].tensor;
    const wt_view *src = transposed ? &d->dy : &d->x, *dst = transposed ? &d->x : &d->dy;
    int64_t dims[5] = {src->dims[0], d->w.dims[0]};
    if (t->code != call->arg[B_INPUT].tensor.code)
        return wt_fail(call, "grad_output: is %s, allowed: the type of input, %s", wt_dtype_name(t->code),
                       wt_dtype_name(call->arg[B_INPUT].tensor.code));
    int known = transposed && !src->dims[0] ? 2 : 5; /* an empty batch has no size to lead back to */
    if (!transposed && !src->dims[1]) dims[1] = 0;
    if (known == 5 && !wt_out_sizes(call, &d->g, src, &d->w, NULL, dims)) return false;
    for (int a = 0; a < known; a++)
        if (dst->dims[a] != dims[a])
            return wt_fail(
                call,
                "grad_output: its shape does not fit input and weight: %lld elements where the geometry gives %lld",
                (long long)dst->dims[a], (long long)dims[a]);
    return true;
}

/* As the forward operator does with output_padding: the high padding that gives input its size. true: there is not
 * as much padding. */
static bool fit_padding(wt_gradients *d) {
    bool unsaid = false;
    for (int a = 0; a < 3; a++) {
        int64_t spare = d->dy.dims[2 + a] + d->g.pad_lo[a] + d->g.pad_hi[a] -
                        wt_span(d->x.dims[2 + a], d->w.dims[2 + a], d->g.dilation[a], d->g.stride[a]);
        unsaid |= spare >= d->g.stride[a] && spare > d->g.pad_hi[a] && spare < d->g.dilation[a];
        if (spare >= d->g.stride[a] && spare <= d->g.pad_hi[a]) d->g.pad_hi[a] -= spare;
    }
    return unsaid;
}

static bool run_conv_backward(wt_call *call) {
    wt_gradients d;
    bool transposed = call->arg[B_TRANSPOSED].integer;
    if (!wt_check_pair(call, &d.g, B_INPUT, B_WEIGHT) || !wt_check_sizes(call, B_GRAD) ||
        !wt_check_bias_dtype(call, B_BIAS_DTYPE, B_INPUT) || !wt_read_geometry(call, &d.g, STRIDE))
        return false;
    const wt_tensor *dy = &call->arg[B_GRAD].tensor;
    if (dy->rank != call->arg[B_INPUT].tensor.rank)
        return wt_fail(call, "grad_output: has %lld dimensions, allowed: as many as input, %lld", (long long)dy->rank,
                       (long long)call->arg[B_INPUT].tensor.rank);
    d.dy = wt_see(dy, d.g.rank);
    d.x = wt_see(&call->arg[B_INPUT].tensor, d.g.rank);
    d.w = wt_see(&call->arg[B_WEIGHT].tensor, d.g.rank);
    d.want = call->arg[B_WANT].integer;
    d.begin = begin;
    /* on CUDA its gradients may add in an order that changes from run to run: in float64, where people compare bits and
     * differences, they are weft's own */
    d.torch = d.torch_bias = !(call->cuda && dy->dtype == WEFT_DTYPE_F64) &&
                             call->arg[B_BIAS_DTYPE].integer == call->arg[B_INPUT].tensor.code;
    bool last = wt_is_last(&d.x);
    const wt_view *src = transposed ? &d.dy : &d.x;
    if (!wt_check_channels(call, &d.g, src, &d.w, 1, transposed ? "grad_output" : "input")) return false;
    bool unsaid = transposed && fit_padding(&d);
    if ((!unsaid && !check_grad(call, &d, transposed)) || !wt_create_wanted(call, &d, false, B_INPUT, B_BIAS_DTYPE))
        return false;
    if (wt_is_empty(&d.dy)) return wt_zero_wanted(call);
    if (unsaid) return call->shape || wt_by_torch(call, d.want);
    return wt_match_format(call, &d.dy, d.g.rank, last, d.g.batched, dy->code, "grad_output") &&
           (transposed ? run_transposed(call, &d) : wt_run_wanted(call, &d));
}
WT_OPERATOR(conv_backward,
            "(Tensor grad_output, Tensor input, Tensor weight, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
            "SymInt groups, bool transposed, int want, ScalarType bias_dtype) -> (Tensor, Tensor, Tensor)")
