/* Convolution, transposed convolution and their gradients. The rank of the weights says 1D, 2D or 3D; data with one axis less than
 * the weights is unbatched. Padding holds a low and a high value an axis.
 * Transposed convolution is the data gradient with the roles swapped: in the problem its input is diff_dst, its output diff_src. */
#include <string.h>

#include "binding.h"

/* Where the arguments stand; the two forward operators and conv_backward share what they can. */
enum { INPUT, WEIGHT, BIAS, STRIDE, PADDING, DILATION, GROUPS, ACT, LO, HI, OUTPUT_PADDING };
enum { B_GRAD, B_INPUT, B_WEIGHT, B_TRANSPOSED = 7, B_WANT, B_BIAS_DTYPE };
enum { WANT_INPUT = 1, WANT_WEIGHT = 2, WANT_BIAS = 4 };

typedef struct geometry {
    int rank;
    bool batched;
    int64_t stride[3], pad_lo[3], pad_hi[3], dilation[3], groups;
} geometry;

/* ---------------------------------------------------------------- arguments */
/* at: where stride stands; padding, dilation and groups follow it. */
static bool read_geometry(wt_call *call, geometry *g, int at) {
    for (int a = 0; a < 3; a++) g->stride[a] = g->dilation[a] = 1, g->pad_lo[a] = g->pad_hi[a] = 0;
    g->groups = call->arg[at + 3].integer;
    if (g->groups < 1 || g->groups > 1 << 30) return wt_fail(call, "groups: is %lld, allowed: 1 to 2^30", (long long)g->groups);
    return wt_read_axes(call, at, g->rank, 1, g->stride, NULL) && wt_read_axes(call, at + 1, g->rank, 2, g->pad_lo, g->pad_hi) &&
           wt_read_axes(call, at + 2, g->rank, 1, g->dilation, NULL) && wt_check_range(call, at, g->rank, g->stride, 1) && wt_check_range(call, at + 1, g->rank, g->pad_lo, 0) &&
           wt_check_range(call, at + 1, g->rank, g->pad_hi, 0) && wt_check_range(call, at + 2, g->rank, g->dilation, 1);
}

/* Ranks, sizes and types of data and weights; sets rank and batched. */
static bool check_pair(wt_call *call, geometry *g, int data, int weight) {
    const wt_tensor *x = &call->arg[data].tensor, *w = &call->arg[weight].tensor;
    const char *name = call->op->name[data];
    if (w->rank < 3 || w->rank > 5) return wt_fail(call, "weight: has %lld dimensions, allowed: 3 (1D), 4 (2D) or 5 (3D)", (long long)w->rank);
    g->rank = (int)w->rank - 2;
    g->batched = x->rank == w->rank;
    if (!g->batched && x->rank != w->rank - 1)
        return wt_fail(call, "%s: has %lld dimensions, allowed with a weight of %lld: %lld (batched) or %lld (unbatched)", name, (long long)x->rank,
                       (long long)w->rank, (long long)w->rank, (long long)w->rank - 1);
    return wt_check_float(call, data) && wt_check_float(call, weight) && wt_check_same_type(call, weight, data) && wt_check_sizes(call, data) &&
           wt_check_sizes(call, weight);
}

static bool check_bias(wt_call *call, int64_t channels) {
    const wt_tensor *b = &call->arg[BIAS].tensor, *x = &call->arg[INPUT].tensor;
    if (!b->handle) return true;
    if (b->rank != 1 || b->sizes[0] != channels)
        return wt_fail(call, "bias: has %lld dimensions of which the first is %lld, allowed: one dimension of %lld, the output channels",
                       (long long)b->rank, (long long)(b->rank ? b->sizes[0] : 0), (long long)channels);
    if (b->code != x->code && b->dtype != WEFT_F32)
        return wt_fail(call, "bias: is %s, allowed: the type of input, %s, or float32", wt_dtype_name(b->code), wt_dtype_name(x->code));
    return true;
}

/* groups times the second dimension of the weights: the channels on the side of src. */
static bool grouped_channels(wt_call *call, const geometry *g, const wt_view *w, int64_t *channels) {
    if (!__builtin_mul_overflow(w->dims[1], g->groups, channels)) return true;
    return wt_fail(call, "groups: is %lld with %lld channels each, allowed: fewer than 2^63 in all", (long long)g->groups, (long long)w->dims[1]);
}

/* Channels of data and weights. data_axis: which dimension of the weights, times groups if it is 1, counts the data's channels. */
static bool check_channels(wt_call *call, const geometry *g, const wt_view *x, const wt_view *w, int data_axis, const char *name) {
    int64_t other = data_axis ? w->dims[0] : x->dims[1], expected = w->dims[0];
    if (w->dims[!data_axis] < 1) return wt_fail(call, "weight: has %lld output channels, allowed: 1 or more", (long long)w->dims[!data_axis]);
    if (data_axis && !grouped_channels(call, g, w, &expected)) return false;
    if (x->dims[1] != expected)
        return wt_fail(call, "%s: has %lld channels, allowed with groups=%lld and a weight of (%lld, %lld, ...): %lld", name, (long long)x->dims[1],
                       (long long)g->groups, (long long)w->dims[0], (long long)w->dims[1], (long long)expected);
    if (other % g->groups)
        return wt_fail(call, "groups: is %lld, allowed: a divisor of the first dimension of weight, %lld", (long long)g->groups, (long long)w->dims[0]);
    return true;
}

/* ---------------------------------------------------------------- the problem */
/* The geometry of a convolution from src to dst; batch, channels and sizes are those of src and the weights. */
static void begin(weft_problem *p, const geometry *g, weft_pass pass, const wt_view *src, const wt_view *weights) {
    weft_problem_init(p, WEFT_CONV, pass, g->rank);
    p->n = src->dims[0];
    p->c = src->dims[1];
    p->o = weights->dims[0];
    p->groups = g->groups;
    memcpy(p->in, src->dims + 2, sizeof(p->in));
    memcpy(p->kernel, weights->dims + 2, sizeof(p->kernel));
    memcpy(p->stride, g->stride, sizeof(p->stride));
    memcpy(p->dilation, g->dilation, sizeof(p->dilation));
    memcpy(p->pad_lo, g->pad_lo, sizeof(p->pad_lo));
    memcpy(p->pad_hi, g->pad_hi, sizeof(p->pad_hi));
}

static void add_step(weft_problem *p, int kind, double lo, double hi) { p->step[p->nsteps++] = (weft_step){kind, 0, lo, hi}; }

static bool check_act(wt_call *call) {
    const char *act = call->arg[ACT].text;
    double lo = call->arg[LO].real, hi = call->arg[HI].real;
    if (act[0] && strcmp(act, "relu") && strcmp(act, "clip")) return wt_fail(call, "act: is '%s', allowed: '', 'relu' or 'clip'", act);
    return strcmp(act, "clip") || lo <= hi || wt_fail(call, "lo: is %g with hi %g, allowed: a low bound not above the high one", lo, hi);
}

/* bias and act of a forward operator */
static bool put_epilogue(wt_call *call, weft_problem *p, weft_args *args) {
    const wt_tensor *b = &call->arg[BIAS].tensor;
    const char *act = call->arg[ACT].text;
    if (!check_act(call)) return false;
    if (b->handle) {
        add_step(p, WEFT_STEP_BIAS, 0, 0);
        wt_put_vector(p, args, WEFT_BIAS, b->data, b->dtype, b->strides[0]);
    }
    if (!strcmp(act, "relu")) add_step(p, WEFT_STEP_RELU, 0, 0);
    if (!strcmp(act, "clip")) add_step(p, WEFT_STEP_CLIP, call->arg[LO].real, call->arg[HI].real);
    return true;
}

/* The size of dst from that of src, or of src from dst; what is not positive is an error, but for an empty batch of src. */
static bool out_sizes(wt_call *call, const geometry *g, const wt_view *x, const wt_view *w, const int64_t *extra, int64_t dims[5]) {
    for (int a = 0; a < 3; a++) {
        int64_t window = g->dilation[a] * (w->dims[2 + a] - 1) + 1, pads = g->pad_lo[a] + g->pad_hi[a], in = x->dims[2 + a];
        bool fits = extra ? (in - 1) * g->stride[a] + window + extra[a] - pads >= (x->dims[0] ? 1 : 0) : in + pads >= window;
        if (!fits || w->dims[2 + a] < 1)
            return wt_fail(call, "input: spatial axis %d has %lld elements, too few for kernel %lld, stride %lld, dilation %lld, padding %lld+%lld",
                           a - 3 + g->rank, (long long)in, (long long)w->dims[2 + a], (long long)g->stride[a], (long long)g->dilation[a],
                           (long long)g->pad_lo[a], (long long)g->pad_hi[a]);
        dims[2 + a] = extra ? (in - 1) * g->stride[a] + window + extra[a] - pads : (in + pads - window) / g->stride[a] + 1;
    }
    return true;
}

/* ---------------------------------------------------------------- forward operators */
static bool run_conv(wt_call *call) {
    geometry g;
    if (!check_pair(call, &g, INPUT, WEIGHT) || !read_geometry(call, &g, STRIDE)) return false;
    wt_view x = wt_see(&call->arg[INPUT].tensor, g.rank), w = wt_see(&call->arg[WEIGHT].tensor, g.rank), y;
    int64_t dims[5] = {x.dims[0], w.dims[0]};
    if (!check_channels(call, &g, &x, &w, 1, "input") || !check_bias(call, w.dims[0]) || !out_sizes(call, &g, &x, &w, NULL, dims)) return false;
    if (!wt_create(call, 0, &y, dims, g.rank, wt_is_last(&x), g.batched, call->arg[INPUT].tensor.code)) return false;
    if (wt_is_empty(&y)) return check_act(call);
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    begin(&p, &g, WEFT_FWD, &x, &w);
    wt_put(&p, &args, WEFT_SRC, &x);
    wt_put(&p, &args, WEFT_WEIGHTS, &w);
    wt_put(&p, &args, WEFT_DST, &y);
    return put_epilogue(call, &p, &args) && wt_execute(call, wt_plan(call, &p), &args);
}
WT_OPERATOR_OUT(conv, "conv(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, "
                  "str act, float lo, float hi) -> Tensor")

/* output_padding adds pixels that no tap of the last position reaches, or only some: fewer than a stride change nothing in the
 * geometry of the problem; more are taken off the high padding, so that its dst has exactly the size of input. */
static bool run_conv_transpose(wt_call *call) {
    geometry g;
    int64_t extra[3] = {0};
    if (!check_pair(call, &g, INPUT, WEIGHT) || !read_geometry(call, &g, STRIDE) || !wt_read_axes(call, OUTPUT_PADDING, g.rank, 1, extra, NULL)) return false;
    wt_view x = wt_see(&call->arg[INPUT].tensor, g.rank), w = wt_see(&call->arg[WEIGHT].tensor, g.rank), y;
    int64_t dims[5] = {x.dims[0]}, spare[3];
    for (int a = 0; a < 3; a++) {
        spare[a] = extra[a] < g.stride[a] ? 0 : extra[a];
        if (extra[a] < 0 || spare[a] > g.pad_hi[a])
            return wt_fail(call, "output_padding: is %lld along spatial axis %d, allowed: 0 or more, and less than the stride, %lld, or at most the padding, %lld",
                           (long long)extra[a], a - 3 + g.rank, (long long)g.stride[a], (long long)g.pad_hi[a]);
    }
    if (!grouped_channels(call, &g, &w, &dims[1]) || !check_channels(call, &g, &x, &w, 0, "input") || !check_bias(call, dims[1]) ||
        !out_sizes(call, &g, &x, &w, extra, dims))
        return false;
    for (int a = 0; a < 3; a++) g.pad_hi[a] -= spare[a];
    if (!wt_create(call, 0, &y, dims, g.rank, wt_is_last(&x), g.batched, call->arg[INPUT].tensor.code)) return false;
    if (wt_is_empty(&y)) return check_act(call);
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    begin(&p, &g, WEFT_BWD_DATA, &y, &w);
    wt_put(&p, &args, WEFT_DIFF_DST, &x);
    wt_put(&p, &args, WEFT_WEIGHTS, &w);
    wt_put(&p, &args, WEFT_DIFF_SRC, &y);
    return put_epilogue(call, &p, &args) && wt_execute(call, wt_plan(call, &p), &args);
}
WT_OPERATOR_OUT(conv_transpose, "conv_transpose(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
                            "SymInt groups, str act, float lo, float hi, SymInt[] output_padding) -> Tensor")

/* ---------------------------------------------------------------- gradients */
typedef struct gradients {           /* of y = conv(x, w) or y = conv_transpose(x, w) */
    geometry g;
    wt_view dy, x, w, dx, dw, db;
    int64_t want;
} gradients;

/* One pass of the convolution problem: what it reads and writes follows from the pass. */
static weft_plan *plan_pass(wt_call *call, const gradients *d, weft_pass pass, const wt_view *src, const wt_view *dst, bool bias, weft_args *args) {
    weft_problem p;
    begin(&p, &d->g, pass, src, &d->w);
    if (pass != WEFT_BWD_DATA && pass != WEFT_BWD_BIAS) wt_put(&p, args, WEFT_SRC, src);
    if (pass == WEFT_FWD || pass == WEFT_BWD_DATA || pass == WEFT_BWD) wt_put(&p, args, WEFT_WEIGHTS, &d->w);
    wt_put(&p, args, pass == WEFT_FWD ? WEFT_DST : WEFT_DIFF_DST, dst);
    if (pass == WEFT_BWD_DATA || pass == WEFT_BWD) wt_put(&p, args, WEFT_DIFF_SRC, &d->dx);
    if (pass == WEFT_BWD_WEIGHTS || pass == WEFT_BWD) wt_put(&p, args, WEFT_DIFF_WEIGHTS, &d->dw);
    if (bias && pass != WEFT_BWD_BIAS) add_step(&p, WEFT_STEP_BIAS, 0, 0);
    if (bias) wt_put_vector(&p, args, WEFT_DIFF_BIAS, d->db.data, d->db.dtype, 1);
    return wt_plan(call, &p);
}

static bool run_pass(wt_call *call, const gradients *d, weft_pass pass, const wt_view *src, const wt_view *dst, bool bias) {
    weft_args args = WEFT_ARGS_INIT;
    return wt_execute(call, plan_pass(call, d, pass, src, dst, bias, &args), &args);
}

/* Both large gradients: in one pass, unless two kernels of their own promise to be faster than the one for both. */
static bool run_both(wt_call *call, const gradients *d, bool bias) {
    const double worth_asking = 20e3;   /* ns; below it the question costs as much as the answer */
    weft_args args[3] = {WEFT_ARGS_INIT, WEFT_ARGS_INIT, WEFT_ARGS_INIT};
    weft_plan *both = plan_pass(call, d, WEFT_BWD, &d->x, &d->dy, bias, &args[0]);
    if (!both || wt_estimate(both) < worth_asking) return wt_execute(call, both, &args[0]);
    weft_plan *data = plan_pass(call, d, WEFT_BWD_DATA, &d->x, &d->dy, false, &args[1]);
    weft_plan *weights = data ? plan_pass(call, d, WEFT_BWD_WEIGHTS, &d->x, &d->dy, bias, &args[2]) : NULL;
    bool apart = weights && wt_estimate(data) + wt_estimate(weights) < wt_estimate(both);
    if (apart) {
        weft_plan_release(both);
        bool ok = wt_execute(call, data, &args[1]);
        if (ok) return wt_execute(call, weights, &args[2]);
        weft_plan_release(weights);
        return false;
    }
    weft_plan_release(data);
    weft_plan_release(weights);
    return wt_execute(call, both, &args[0]);
}

/* diff_bias of a transposed convolution sums what is src there: the same sum over a 1x1 convolution that ends in it. */
static bool run_bias_of_src(wt_call *call, const gradients *d) {
    gradients unit = *d;
    for (int a = 0; a < 3; a++) unit.g.stride[a] = unit.g.dilation[a] = unit.w.dims[2 + a] = 1, unit.g.pad_lo[a] = unit.g.pad_hi[a] = 0;
    unit.g.groups = unit.w.dims[0] = d->dy.dims[1];
    return run_pass(call, &unit, WEFT_BWD_BIAS, &d->dy, &d->dy, true);
}

static bool run_wanted(wt_call *call, const gradients *d, bool transposed) {
    bool data = d->want & WANT_INPUT, weights = d->want & WANT_WEIGHT, bias = d->want & WANT_BIAS;
    if (transposed)
        return (!data || run_pass(call, d, WEFT_FWD, &d->dy, &d->dx, false)) &&
               (!weights || run_pass(call, d, WEFT_BWD_WEIGHTS, &d->dy, &d->x, false)) && (!bias || run_bias_of_src(call, d));
    if (data && weights) return run_both(call, d, bias);
    if (weights) return run_pass(call, d, WEFT_BWD_WEIGHTS, &d->x, &d->dy, bias);
    return (!data || run_pass(call, d, WEFT_BWD_DATA, &d->x, &d->dy, false)) && (!bias || run_pass(call, d, WEFT_BWD_BIAS, &d->x, &d->dy, true));
}

/* Results that are not wanted have no elements. */
static bool create_wanted(wt_call *call, gradients *d, bool last) {
    const int64_t none = 0, unit = 1, channels = d->dy.dims[1];
    int32_t code = call->arg[B_INPUT].tensor.code, bias_code = (int32_t)call->arg[B_BIAS_DTYPE].integer;
    bool ok = d->want & WANT_INPUT ? wt_create(call, 0, &d->dx, d->x.dims, d->g.rank, last, d->g.batched, code)
                                   : wt_empty(call, &call->out[0], 1, &none, &unit, code, &d->dx.data);
    ok = ok && (d->want & WANT_WEIGHT ? wt_create(call, 1, &d->dw, d->w.dims, d->g.rank, wt_is_last(&d->w), true, code)
                                      : wt_empty(call, &call->out[1], 1, &none, &unit, code, &d->dw.data));
    ok = ok && wt_empty(call, &call->out[2], 1, d->want & WANT_BIAS ? &channels : &none, &unit, bias_code, &d->db.data);
    d->db.dtype = wt_dtype_of(bias_code);
    return ok;
}

/* The gradients of an empty result: sums of nothing. */
static bool zero_wanted(wt_call *call) {
    for (int i = 0; i < 3; i++)
        if (wt.aoti_torch_zero_(call->out[i])) return wt_fail(call, "a gradient could not be set to 0");
    return true;
}

static bool check_bias_dtype(wt_call *call) {
    int32_t code = (int32_t)call->arg[B_BIAS_DTYPE].integer, input = call->arg[B_INPUT].tensor.code;
    return code == input || wt_dtype_of(code) == WEFT_F32 ||
           wt_fail(call, "bias_dtype: is %s, allowed: the type of input, %s, or float32", wt_dtype_name(code), wt_dtype_name(input));
}

/* grad_output must have the shape the forward operator gives; of a transposed one, any that leads back to input. */
static bool check_grad(wt_call *call, const gradients *d, bool transposed) {
    const wt_tensor *t = &call->arg[B_GRAD].tensor;
    const wt_view *src = transposed ? &d->dy : &d->x, *dst = transposed ? &d->x : &d->dy;
    int64_t dims[5] = {src->dims[0], d->w.dims[0]};
    if (t->code != call->arg[B_INPUT].tensor.code)
        return wt_fail(call, "grad_output: is %s, allowed: the type of input, %s", wt_dtype_name(t->code), wt_dtype_name(call->arg[B_INPUT].tensor.code));
    int known = transposed && !src->dims[0] ? 2 : 5;   /* an empty batch has no size to lead back to */
    if (known == 5 && !out_sizes(call, &d->g, src, &d->w, NULL, dims)) return false;
    for (int a = 0; a < known; a++)
        if (dst->dims[a] != dims[a])
            return wt_fail(call, "grad_output: its shape does not fit input and weight: %lld elements where the geometry gives %lld", (long long)dst->dims[a],
                           (long long)dims[a]);
    return true;
}

static bool run_conv_backward(wt_call *call) {
    gradients d;
    bool transposed = call->arg[B_TRANSPOSED].integer;
    if (!check_pair(call, &d.g, B_INPUT, B_WEIGHT) || !wt_check_sizes(call, B_GRAD) || !check_bias_dtype(call) || !read_geometry(call, &d.g, STRIDE)) return false;
    const wt_tensor *dy = &call->arg[B_GRAD].tensor;
    if (dy->rank != call->arg[B_INPUT].tensor.rank)
        return wt_fail(call, "grad_output: has %lld dimensions, allowed: as many as input, %lld", (long long)dy->rank,
                       (long long)call->arg[B_INPUT].tensor.rank);
    d.dy = wt_see(dy, d.g.rank);
    d.x = wt_see(&call->arg[B_INPUT].tensor, d.g.rank);
    d.w = wt_see(&call->arg[B_WEIGHT].tensor, d.g.rank);
    d.want = call->arg[B_WANT].integer;
    bool last = wt_is_last(&d.x);
    const wt_view *src = transposed ? &d.dy : &d.x;
    if (!check_channels(call, &d.g, src, &d.w, 1, transposed ? "grad_output" : "input")) return false;
    if (transposed)   /* as the forward operator does with output_padding: the high padding that gives input its size */
        for (int a = 0; a < 3; a++) {
            int64_t window = d.g.dilation[a] * (d.w.dims[2 + a] - 1) + 1;
            int64_t spare = d.dy.dims[2 + a] + d.g.pad_lo[a] + d.g.pad_hi[a] - window - (d.x.dims[2 + a] - 1) * d.g.stride[a];
            if (spare >= d.g.stride[a] && spare <= d.g.pad_hi[a]) d.g.pad_hi[a] -= spare;
        }
    if (!check_grad(call, &d, transposed) || !create_wanted(call, &d, last)) return false;
    if (wt_is_empty(&d.dy)) return zero_wanted(call);
    return wt_match_format(call, &d.dy, d.g.rank, last, d.g.batched, dy->code, "grad_output") && run_wanted(call, &d, transposed);
}
WT_OPERATOR(conv_backward, "conv_backward(Tensor grad_output, Tensor input, Tensor weight, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
                           "SymInt groups, bool transposed, int want, ScalarType bias_dtype) -> (Tensor, Tensor, Tensor)")
