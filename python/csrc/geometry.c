/* What the operators of convolution share: its geometry, the checks of data, weights and bias, the epilogue. The rank
 * of the weights says 1D, 2D or 3D; data with one axis less than the weights is unbatched. */
#include <string.h>

#include "binding.h"

/* ---------------------------------------------------------------- arguments */
wt_geometry wt_plain_geometry(int rank) {
    wt_geometry g = {.rank = rank, .groups = 1};
    for (int a = 0; a < 3; a++) g.in[a] = g.out[a] = g.kernel[a] = g.stride[a] = g.dilation[a] = 1;
    return g;
}

bool wt_read_geometry(wt_call *call, wt_geometry *g) {
    const bool batched = g->batched;
    *g = wt_plain_geometry(g->rank);
    g->batched = batched;
    g->groups = ARG(groups).integer;
    if (g->groups < 1 || g->groups > 1 << 30)
        return wt_fail(call, "groups: is %lld, allowed: 1 to 2^30", (long long)g->groups);
    return wt_read_axes(call, AT(stride), g->rank, 1, 20, g->stride, NULL) &&
           wt_read_axes(call, AT(padding), g->rank, 0, 20, g->pad_lo, g->pad_hi) &&
           wt_read_axes(call, AT(dilation), g->rank, 1, 20, g->dilation, NULL);
}

/* The rank from the weights, and whether input has a batch. */
static bool check_pair(wt_call *call, wt_geometry *g) {
    const wt_tensor *x = &ARG(input).tensor, *w = &ARG(weight).tensor;
    if (w->rank < 3 || w->rank > 5)
        return wt_fail(call, "weight: has %lld dimensions, allowed: 3 (1D), 4 (2D) or 5 (3D)", (long long)w->rank);
    g->rank = (int)w->rank - 2;
    g->batched = x->rank == w->rank;
    if (!g->batched && x->rank != w->rank - 1)
        return wt_fail(call,
                       "input: has %lld dimensions, allowed with a weight of %lld: %lld (batched) or %lld (unbatched)",
                       (long long)x->rank, (long long)w->rank, (long long)w->rank, (long long)w->rank - 1);
    return wt_check_float(call, AT(input)) && wt_check_float(call, AT(weight)) &&
           wt_check_same_type(call, AT(weight), AT(input)) && wt_check_sizes(call, AT(input)) &&
           wt_check_sizes(call, AT(weight));
}

bool wt_open_pair(wt_call *call, wt_gradients *d) {
    if (!check_pair(call, &d->g) || !wt_read_geometry(call, &d->g)) return false;
    d->x = wt_see(&ARG(input).tensor, d->g.rank);
    d->w = wt_see(&ARG(weight).tensor, d->g.rank);
    return true;
}

bool wt_check_length(wt_call *call, int at, int64_t length, const char *what) {
    const wt_tensor *t = &call->arg[at].tensor;
    const char *name = call->op->name[at];
    if (t->rank != 1)
        return wt_fail(call, "%s: has %lld dimensions, allowed: one of %lld elements, %s", name, (long long)t->rank,
                       (long long)length, what);
    if (t->sizes[0] != length)
        return wt_fail(call, "%s: has %lld elements, allowed: %lld, %s", name, (long long)t->sizes[0],
                       (long long)length, what);
    return true;
}

bool wt_check_bias(wt_call *call, int64_t channels) {
    const wt_tensor *b = &ARG(bias).tensor, *x = &ARG(input).tensor;
    if (!b->handle) return true;
    if (!wt_check_length(call, AT(bias), channels, "the output channels")) return false;
    return b->code == x->code || b->dtype == WEFT_DTYPE_F32 ||
           wt_fail(call, "bias: is %s, allowed: the type of input, %s, or float32", wt_dtype_name(b->code),
                   wt_dtype_name(x->code));
}

bool wt_check_bias_dtype(wt_call *call) {
    int32_t code = (int32_t)ARG(bias_dtype).integer, allowed = ARG(input).tensor.code;
    return code == allowed || wt_dtype_of(code) == WEFT_DTYPE_F32 ||
           wt_fail(call, "bias_dtype: is %s, allowed: the type of input, %s, or float32", wt_dtype_name(code),
                   wt_dtype_name(allowed));
}

bool wt_grouped_channels(wt_call *call, const wt_geometry *g, const wt_view *w, int64_t *channels) {
    if (!__builtin_mul_overflow(w->dims[1], g->groups, channels)) return true;
    return wt_fail(call, "groups: is %lld with %lld channels each, allowed: fewer than 2^63 in all",
                   (long long)g->groups, (long long)w->dims[1]);
}

bool wt_check_channels(wt_call *call, const wt_geometry *g, const wt_view *x, const wt_view *w, int data_axis,
                       const char *name) {
    int64_t other = data_axis ? w->dims[0] : x->dims[1], expected = w->dims[0];
    if (w->dims[!data_axis] < 1)
        return wt_fail(call, "weight: has %lld output channels, allowed: 1 or more", (long long)w->dims[!data_axis]);
    if (data_axis && !wt_grouped_channels(call, g, w, &expected)) return false;
    if (x->dims[1] != expected)
        return wt_fail(call, "%s: has %lld channels, allowed with groups=%lld and a weight of (%lld, %lld, ...): %lld",
                       name, (long long)x->dims[1], (long long)g->groups, (long long)w->dims[0], (long long)w->dims[1],
                       (long long)expected);
    if (other % g->groups)
        return wt_fail(call, "groups: is %lld, allowed: a divisor of the first dimension of weight, %lld",
                       (long long)g->groups, (long long)w->dims[0]);
    return true;
}

bool wt_see_exactly(wt_call *call, int at, const wt_geometry *g, const int64_t dims[5], wt_view *v) {
    const wt_tensor *t = &call->arg[at].tensor;
    const int full = g->rank + (g->batched ? 2 : 1);
    const char *name = call->op->name[at];
    if (t->rank != full)
        return wt_fail(call, "%s: has %lld dimensions, allowed: as many as input, %d", name, (long long)t->rank, full);
    *v = wt_see(t, g->rank);
    for (int a = 0; a < 5; a++)
        if (v->dims[a] != dims[a])
            return wt_fail(call, "%s: has %lld elements along axis %c, allowed: %lld, as the forward operator gives",
                           name, (long long)v->dims[a], "ncdhw"[a], (long long)dims[a]);
    return true;
}

/* ---------------------------------------------------------------- the problem */
weft_problem *wt_begin_with(weft_problem *p, weft_op op, weft_pass pass, const wt_geometry *g, int64_t n, int64_t c) {
    weft_problem_init(p, op, pass, g->rank);
    p->n = n;
    p->c = c;
    p->groups = g->groups;
    for (int a = 0; a < 3; a++) {
        p->in[a] = g->in[a];
        if (op == WEFT_OP_ADAPTIVE_AVG_POOL) p->attr[WEFT_ADAPTIVE_AVG_POOL_TO + a] = g->out[a];
        p->kernel[a] = g->kernel[a], p->stride[a] = g->stride[a], p->dilation[a] = g->dilation[a];
        p->pad_lo[a] = g->pad_lo[a], p->pad_hi[a] = g->pad_hi[a];
    }
    if (op == WEFT_OP_MAX_POOL || op == WEFT_OP_AVG_POOL) p->attr[WEFT_POOL_CEIL] = g->up;
    return p;
}

void wt_begin_conv(weft_problem *p, weft_op op, weft_pass pass, const wt_geometry *g, const wt_view *src,
                   const wt_view *weights) {
    wt_begin_with(p, op, pass, g, src->dims[0], src->dims[1])->o = weights->dims[0];
    memcpy(p->in, src->dims + 2, sizeof(p->in));
    memcpy(p->kernel, weights->dims + 2, sizeof(p->kernel));
}

void wt_add_step(weft_problem *p, int kind, double lo, double hi) {
    p->step[p->nsteps++] = (weft_step){.kind = kind, .lo = lo, .hi = hi};
}

bool wt_check_act(wt_call *call) {
    const char *act = ARG(act).text;
    double lo = ARG(lo).real, hi = ARG(hi).real;
    if (act[0] && strcmp(act, "relu") && strcmp(act, "clip"))
        return wt_fail(call, "act: is '%s', allowed: '', 'relu' or 'clip'", act);
    return strcmp(act, "clip") || lo <= hi ||
           wt_fail(call, "lo: is %g with hi %g, allowed: a low bound not above the high one", lo, hi);
}

bool wt_put_epilogue(wt_call *call) {
    const char *act = ARG(act).text;
    if (!wt_check_act(call)) return false;
    if (ARG(bias).tensor.handle) wt_add_step(&call->p, WEFT_STEP_BIAS, 0, 0);
    wt_put_vector(call, WEFT_ROLE_BIAS, AT(bias));
    if (!strcmp(act, "relu")) wt_add_step(&call->p, WEFT_STEP_RELU, 0, 0);
    if (!strcmp(act, "clip")) wt_add_step(&call->p, WEFT_STEP_CLIP, ARG(lo).real, ARG(hi).real);
    return true;
}

/* ---------------------------------------------------------------- gradients */
/* Results that are not wanted have no elements. */
bool wt_create_wanted(wt_call *call, wt_gradients *d, bool vector) {
    d->want = ARG(want).integer;
    const bool data = d->want & WT_WANT_INPUT, weight = d->want & WT_WANT_WEIGHT, bias = d->want & WT_WANT_BIAS;
    /* see conv on no channels */
    const int64_t channels = d->dy.dims[1] || vector ? d->dy.dims[1] : d->w.dims[0];
    const int32_t code = ARG(input).tensor.code;
    bool ok = data ? wt_create(call, 0, &d->dx, d->x.dims, d->g.rank, wt_is_last(&d->x), d->g.batched, code)
                   : wt_create_vector(call, 0, &d->dx, 0, code);
    ok = ok && (weight && !vector ? wt_create(call, 1, &d->dw, d->w.dims, d->g.rank, wt_is_last(&d->w), true, code)
                                  : wt_create_vector(call, 1, &d->dw, weight ? d->w.dims[0] : 0, code));
    return ok && wt_create_vector(call, 2, &d->db, bias ? channels : 0, (int32_t)ARG(bias_dtype).integer);
}

bool wt_zero_wanted(wt_call *call) {
    return wt_zero(call, call->out[0]) && wt_zero(call, call->out[1]) && wt_zero(call, call->out[2]);
}

/* Which gradients a pass gives. */
static int64_t wanted_of(weft_pass pass, bool bias) {
    bool data = pass == WEFT_PASS_BWD_DATA || pass == WEFT_PASS_BWD || pass == WEFT_PASS_FWD,
         weights = pass == WEFT_PASS_BWD_WEIGHTS || pass == WEFT_PASS_BWD;
    return (data ? WT_WANT_INPUT : 0) | (weights ? WT_WANT_WEIGHT : 0) | (bias ? WT_WANT_BIAS : 0);
}

typedef struct planned { /* one pass */
    weft_plan *plan;
    weft_args args;
    int64_t want;
} planned;

static weft_plan *plan_pass(wt_call *call, const wt_gradients *d, weft_pass pass, bool bias, planned *to) {
    const int64_t want = wanted_of(pass, bias);
    const bool alone = pass == WEFT_PASS_BWD_BIAS;
    call->args = (weft_args)WEFT_ARGS_INIT;
    d->begin(call, d, pass);
    if (bias && !alone) wt_add_step(&call->p, WEFT_STEP_BIAS, 0, 0);
    WT_PUT(call, {WEFT_ROLE_SRC, &d->x}, {WEFT_ROLE_WEIGHTS, &d->w}, {WEFT_ROLE_DST, &d->dy},
           {WEFT_ROLE_DIFF_DST, &d->dy}, {WEFT_ROLE_DIFF_SRC, &d->dx}, {WEFT_ROLE_DIFF_WEIGHTS, &d->dw},
           {WEFT_ROLE_DIFF_BIAS, &d->db});
    to->want = (alone ? d->torch_bias : d->torch) ? want : 0;
    to->plan = wt_plan_with(call, to->want);
    to->args = call->args;
    return to->plan;
}

static bool finish(wt_call *call, const planned *pass) { return wt_finish(call, pass->plan, &pass->args, pass->want); }

bool wt_run_pass(wt_call *call, const wt_gradients *d, weft_pass pass, bool bias) {
    planned one;
    plan_pass(call, d, pass, bias, &one);
    return finish(call, &one);
}

/* Both large gradients: in one pass, unless two kernels of their own promise to be faster than the one for both, by
 * more than estimates are worth. */
static bool run_both(wt_call *call, const wt_gradients *d, bool bias) {
    const double worth_asking = 20e3; /* ns; below it the question costs as much as the answer */
    const double margin = 0.9;
    planned both, data = {.plan = NULL}, weights = {.plan = NULL};
    if (!plan_pass(call, d, WEFT_PASS_BWD, bias, &both) || wt_estimate(both.plan) < worth_asking)
        return finish(call, &both);
    bool apart = plan_pass(call, d, WEFT_PASS_BWD_DATA, false, &data) &&
                 plan_pass(call, d, WEFT_PASS_BWD_WEIGHTS, bias, &weights) &&
                 wt_estimate(data.plan) + wt_estimate(weights.plan) < margin * wt_estimate(both.plan);
    if (apart) {
        weft_plan_release(both.plan);
        if (finish(call, &data)) return finish(call, &weights);
        weft_plan_release(weights.plan);
        return false;
    }
    weft_plan_release(data.plan);
    weft_plan_release(weights.plan);
    return finish(call, &both);
}

bool wt_run_wanted(wt_call *call, const wt_gradients *d) {
    bool data = d->want & WT_WANT_INPUT, weights = d->want & WT_WANT_WEIGHT, bias = d->want & WT_WANT_BIAS;
    if (data && weights) return run_both(call, d, bias);
    if (weights) return wt_run_pass(call, d, WEFT_PASS_BWD_WEIGHTS, bias);
    return (!data || wt_run_pass(call, d, WEFT_PASS_BWD_DATA, false)) &&
           (!bias || wt_run_pass(call, d, WEFT_PASS_BWD_BIAS, true));
}
