/* Convolution, transposed convolution and their gradients. Padding holds a low and a high value an axis.
 * Transposed convolution is the data gradient with the roles swapped: in the problem its input is diff_dst, its
 * output diff_src. */
#include "binding.h"

/* ---------------------------------------------------------------- forward operators */
/* output_padding adds pixels that no tap of the last position reaches, or only some: fewer than a stride change
 * nothing in the geometry of the problem; more are taken off the high padding, so that its dst has exactly the size
 * of input. Where there is not as much padding, *unsaid, no problem says it, and PyTorch computes it. */
static bool read_extra(wt_call *call, const wt_geometry *g, int64_t extra[3], int64_t spare[3], bool *unsaid) {
    if (!wt_read_axes(call, AT(output_padding), g->rank, 0, 0, extra, NULL)) return false;
    for (int a = 0; a < 3; a++) {
        spare[a] = extra[a] < g->stride[a] ? 0 : extra[a];
        *unsaid |= spare[a] > g->pad_hi[a];
        if (extra[a] < 0 || (extra[a] >= g->stride[a] && extra[a] >= g->dilation[a]))
            return wt_fail(call,
                           "output_padding: is %lld along spatial axis %d, allowed: 0 or more, and less than the "
                           "stride, %lld, or than the dilation, %lld",
                           (long long)extra[a], a - 3 + g->rank, (long long)g->stride[a], (long long)g->dilation[a]);
    }
    return true;
}

bool wt_run_conv(wt_call *call) {
    const bool back = call->op->pass == WEFT_PASS_BWD_DATA; /* transposed */
    const wt_tensor *t = &ARG(input).tensor, *b = &ARG(bias).tensor;
    wt_gradients d;
    int64_t extra[3] = {0}, spare[3] = {0}, dims[5];
    bool unsaid = false;
    if (!wt_open_pair(call, &d) || (back && !read_extra(call, &d.g, extra, spare, &unsaid))) return false;
    dims[0] = d.x.dims[0], dims[1] = d.w.dims[0];
    if ((back && !wt_grouped_channels(call, &d.g, &d.w, &dims[1])) ||
        !wt_check_channels(call, &d.g, &d.x, &d.w, !back, "input") || !wt_check_bias(call, dims[1]) ||
        !wt_out_sizes(call, &d.g, &d.x, &d.w, back ? extra : NULL, dims))
        return false;
    if (!back && !d.x.dims[1]) dims[1] = 0; /* PyTorch's result of no channels */
    /* there PyTorch's result is channels-first whatever the input is */
    const bool first = back && call->cuda && (d.g.rank == 1 || spare[0] || spare[1] || spare[2]);
    if (!wt_create(call, 0, &d.dy, dims, d.g.rank, !first && wt_is_last(&d.x), d.g.batched, t->code)) return false;
    if (wt_is_empty(&d.dy)) return wt_check_act(call);
    if (unsaid) return wt_check_act(call) && (call->shape || wt_by_torch(call, WT_ALL));
    for (int a = 0; a < 3; a++) d.g.pad_hi[a] -= spare[a];
    wt_begin_conv(&call->p, WEFT_OP_CONV, call->op->pass, &d.g, back ? &d.dy : &d.x, &d.w);
    WT_PUT(call, {WEFT_ROLE_SRC, &d.x}, {WEFT_ROLE_DIFF_DST, &d.x}, {WEFT_ROLE_WEIGHTS, &d.w}, {WEFT_ROLE_DST, &d.dy},
           {WEFT_ROLE_DIFF_SRC, &d.dy});
    return wt_put_epilogue(call) && wt_run(call, !b->handle || b->code == t->code); /* PyTorch's takes one type */
}

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
    const wt_view *src = transposed ? &d->dy : &d->x, *dst = transposed ? &d->x : &d->dy;
    int64_t dims[5] = {src->dims[0], d->w.dims[0]};
    if (!wt_check_same_type(call, AT(grad_output), AT(input))) return false;
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

bool wt_run_conv_backward(wt_call *call) {
    const wt_tensor *dy = &ARG(grad_output).tensor, *x = &ARG(input).tensor;
    const bool transposed = ARG(transposed).integer;
    wt_gradients d;
    if (!wt_open_pair(call, &d) || !wt_check_sizes(call, AT(grad_output)) || !wt_check_bias_dtype(call)) return false;
    if (dy->rank != x->rank)
        return wt_fail(call, "grad_output: has %lld dimensions, allowed: as many as input, %lld", (long long)dy->rank,
                       (long long)x->rank);
    d.dy = wt_see(dy, d.g.rank);
    d.begin = begin;
    /* on CUDA its gradients may add in an order that changes from run to run: in float64, where people compare bits and
     * differences, they are weft's own */
    d.torch = d.torch_bias =
        !(call->cuda && dy->dtype == WEFT_DTYPE_F64) && ARG(bias_dtype).integer == ARG(input).tensor.code;
    const wt_view *src = transposed ? &d.dy : &d.x;
    if (!wt_check_channels(call, &d.g, src, &d.w, 1, transposed ? "grad_output" : "input")) return false;
    const bool unsaid = transposed && fit_padding(&d);
    if ((!unsaid && !check_grad(call, &d, transposed)) || !wt_create_wanted(call, &d, false)) return false;
    if (wt_is_empty(&d.dy)) return wt_zero_wanted(call);
    if (unsaid) return call->shape || wt_by_torch(call, d.want);
    return wt_match_format(call, &d.dy, d.g.rank, wt_is_last(&d.x), d.g.batched, dy->code, "grad_output") &&
           (transposed ? run_transposed(call, &d) : wt_run_wanted(call, &d));
}
