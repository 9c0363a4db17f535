/* Convolution and its gradient for the seat: is it one that weft computes, which passes of which problem is it, and the
 * way back to PyTorch's implementation. */
#include <math.h>
#include <string.h>

#include "seat.h"
#include "settings.h"

static bool is_transposed(const seat_call *c) { return c->value[SEAT_TRANSPOSED]; }

/* ---------------------------------------------------------------- the call */
static const char *read_geometry(seat_draft *d, int64_t extra[3]) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X], *w = &c->in[SEAT_W];
    const int64_t groups = c->value[SEAT_GROUPS];
    for (int a = 0; a < 3; a++) extra[a] = 0;
    d->g = wt_plain_geometry((int)w->rank - 2);
    d->g.batched = true;
    d->g.groups = groups;
    if (w->rank < 3 || w->rank > 5 || x->rank != w->rank) return "the ranks of its tensors";
    if (groups < 1 || groups > 1 << 30 || !seat_read_axes(&c->list[SEAT_STRIDE], d->g.rank, 1, d->g.stride) ||
        !seat_read_axes(&c->list[SEAT_PADDING], d->g.rank, 0, d->g.pad_lo) ||
        !seat_read_axes(&c->list[SEAT_DILATION], d->g.rank, 1, d->g.dilation) ||
        (is_transposed(c) && !seat_read_axes(&c->list[SEAT_EXTRA], d->g.rank, 0, extra)))
        return "its geometry";
    memcpy(d->g.pad_hi, d->g.pad_lo, sizeof(d->g.pad_hi));
    return NULL;
}

/* dims of the far side of the convolution: y from x, or grad_output checked against x. */
static bool out_dims(const seat_draft *d, const int64_t extra[3], int64_t dims[5]) {
    const wt_view *x = &d->view[SEAT_X], *w = &d->view[SEAT_W];
    const bool transposed = is_transposed(d->c);
    dims[0] = x->dims[0];
    dims[1] = transposed ? w->dims[1] * d->g.groups : w->dims[0];
    return wt_check_channels(NULL, &d->g, x, w, !transposed, "") &&
           wt_out_sizes(NULL, &d->g, x, w, transposed ? extra : NULL, dims);
}

/* output_padding beyond a stride is taken off the high padding, where there is as much: see conv.c. */
static bool fit_padding(seat_draft *d, const int64_t extra[3]) {
    for (int a = 0; a < 3; a++) {
        if (extra[a] < d->g.stride[a]) continue;
        if (extra[a] > d->g.pad_hi[a] || extra[a] >= d->g.dilation[a]) return false;
        d->g.pad_hi[a] -= extra[a];
    }
    return true;
}

static const char *read_call(seat_draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *b = &c->in[SEAT_BIAS];
    const int32_t code = c->in[SEAT_X].code;
    int64_t extra[3], dims[5];
    const char *why = read_geometry(d, extra);
    if (!why) why = seat_see_tensors(d);
    if (why) return why;
    if (!out_dims(d, extra, dims)) return "its sizes";
    if (is_transposed(c) && !fit_padding(d, extra)) return "its output padding";
    if (b->handle && (b->rank != 1 || b->sizes[0] != dims[1] || b->strides[0] < 1)) return "its bias";
    if (c->op->backward && memcmp(dims, d->view[SEAT_DY].dims, sizeof(dims))) return "its sizes";
    if (b->handle) d->view[SEAT_BIAS] = (wt_view){b->handle, b->data, b->dtype, {b->sizes[0]}, {b->strides[0]}};
    d->e->sound = true;
    if (c->op->backward && !(c->want & (WT_WANT_INPUT | WT_WANT_WEIGHT)))
        return "only the gradient of a bias is asked for";
    /* in 3D and on CUDA it depends on which of its kernels runs whether PyTorch keeps to channels-last */
    bool last = seat_suggests_last(&c->in[SEAT_X]) || seat_suggests_last(&c->in[SEAT_W]);
    const bool sure = !last || (d->g.rank == 2 && !c->cuda);
    why = seat_fix_format(d, last, sure);
    if (!why) why = seat_fix_input(d, sure);
    if (why) return why;
    /* in 1D PyTorch goes by weights that lie turned */
    if (!wt_is_dense(&d->view[SEAT_W], false) && (d->g.rank == 1 || !wt_is_dense(&d->view[SEAT_W], true)))
        return "the strides of its weight";
    if (!c->op->backward) return seat_add_result(d, 0, dims, code) ? NULL : "its sizes";
    if ((c->want & WT_WANT_INPUT && !seat_add_result(d, 0, d->view[SEAT_X].dims, code)) ||
        (c->want & WT_WANT_WEIGHT && !seat_add_result(d, 1, d->view[SEAT_W].dims, code)))
        return "its sizes";
    return seat_fix_gradient(d);
}

/* ---------------------------------------------------------------- the problem */
/* A pass of the convolution, bias with it if there is one to add or to sum up. */
static void describe(seat_draft *d, weft_problem *p, seat_step *s, weft_pass pass, bool bias) {
    const seat_call *c = d->c;
    const wt_view *src = &d->view[!is_transposed(c) ? SEAT_X : c->op->backward ? SEAT_DY : SEAT_OUT];
    wt_begin_conv(p, WEFT_OP_CONV, pass, &d->g, src, &d->view[SEAT_W]);
    if (bias) wt_add_step(p, WEFT_STEP_BIAS, 0, 0);
    seat_put_roles(d, p, s);
}

/* ---------------------------------------------------------------- choosing */
static bool choose_pass(seat_draft *d, weft_pass pass, bool bias) {
    weft_problem p = WEFT_PROBLEM_INIT;
    describe(d, &p, &d->e->step[0], pass, bias);
    return seat_plan_alone(d, &p, true);
}

/* One of two passes, without PyTorch. */
static weft_plan *plan_of(seat_draft *d, seat_step *s, weft_pass pass, bool bias, double *ns, double *torch_ns) {
    weft_problem p = WEFT_PROBLEM_INIT;
    describe(d, &p, s, pass, bias);
    return seat_plan(d, &p, s, false, ns, torch_ns);
}

/* Two passes against `limit`, what the same costs otherwise; 0: PyTorch's two. */
static bool choose_pair(seat_draft *d, weft_pass first, weft_pass second, bool bias, double limit) {
    seat_entry *e = d->e;
    seat_step step[2];
    double ns[2], torch_ns[2];
    if (!plan_of(d, &step[0], first, false, &ns[0], &torch_ns[0])) return false;
    if (!plan_of(d, &step[1], second, bias, &ns[1], &torch_ns[1]) ||
        ns[0] + ns[1] >= (limit > 0 ? limit : torch_ns[0] + torch_ns[1])) {
        weft_plan_release(step[0].plan);
        weft_plan_release(step[1].plan);
        return false;
    }
    for (int i = 0; i < e->nsteps; i++) weft_plan_release(e->step[i].plan);
    memcpy(e->step, step, sizeof(step));
    e->nsteps = 2;
    e->ns = ns[0] + ns[1];
    if (e->torch_ns <= 0) e->torch_ns = torch_ns[0] + torch_ns[1];
    return true;
}

static bool choose(seat_draft *d) {
    const seat_call *c = d->c;
    const wt_config *set = wt_settings();
    bool data = c->want & WT_WANT_INPUT, weights = c->want & WT_WANT_WEIGHT, bias = c->want & WT_WANT_BIAS,
         free = set->delegate && !set->pin[0], estimates = set->mode != WEFT_MODE_MEASURE || !free;
    if (!c->op->backward)
        return choose_pass(d, is_transposed(c) ? WEFT_PASS_BWD_DATA : WEFT_PASS_FWD, c->in[SEAT_BIAS].handle);
    /* of a transposed one the bias belongs to what is src here, and without the weights no plan sums it up */
    d->e->sums = bias && (is_transposed(c) || !weights);
    bias = bias && !d->e->sums;
    if (bias) {
        int64_t channels[5] = {d->view[SEAT_DY].dims[1], 0, 0, 0, 0};
        d->view[SEAT_OUT + 2] = (wt_view){NULL, NULL, c->in[SEAT_X].dtype, {channels[0]}, {1}};
        d->e->out[2] = (seat_shape){1, c->in[SEAT_X].code, {channels[0]}, {1}};
    }
    if (!data) return choose_pass(d, WEFT_PASS_BWD_WEIGHTS, bias);
    if (!weights) return choose_pass(d, is_transposed(c) ? WEFT_PASS_FWD : WEFT_PASS_BWD_DATA, false);
    if (is_transposed(c))
        return estimates && choose_pair(d, WEFT_PASS_FWD, WEFT_PASS_BWD_WEIGHTS, false, free ? 0 : HUGE_VAL);
    bool both = choose_pass(d, WEFT_PASS_BWD, bias);
    double limit = both ? d->e->ns : free ? d->e->torch_ns : HUGE_VAL;
    return (estimates && choose_pair(d, WEFT_PASS_BWD_DATA, WEFT_PASS_BWD_WEIGHTS, bias, limit)) || both;
}

/* ---------------------------------------------------------------- PyTorch's */
SEAT_BY_TORCH(convolution, 1)
SEAT_BY_TORCH(convolution_backward, 3)

/* Sums of nothing: zeros in the sizes of the bias. */
static bool zero_bias(seat_call *c) {
    const int64_t unit = 1;
    wt_tensor t = {.rank = 1, .sizes = c->bias_sizes.item, .strides = &unit, .code = c->in[SEAT_X].code};
    if (c->out[2]) wt.aoti_torch_delete_tensor_object(c->out[2]);
    c->out[2] = NULL;
    return wt_new(&t, &c->in[SEAT_X], &c->out[2]) && !wt.aoti_torch_zero_(t.handle);
}

static bool backward_by_torch(seat_call *c) {
    const int want = c->want;
    const bool biased = c->biased;
    /* without elements PyTorch makes the gradient of the bias from its sizes, which 2.11 reads wrongly on CUDA */
    const bool zeros = want & WT_WANT_BIAS && c->bias_sizes.size == 1 && seat_read(c) &&
                       !wt_count(c->in[SEAT_X].sizes, c->in[SEAT_X].rank);
    if (zeros) c->want &= ~WT_WANT_BIAS, c->biased = false;
    const bool ok = by_torch_convolution_backward(c);
    c->want = want, c->biased = biased;
    return ok && (!zeros || zero_bias(c));
}

/* PyTorch 2.13 writes outside of its memory in the weight gradient of channels-last 1x1 convolutions with a stride
 * and fewer than 16 channels. It is not asked for that: contiguous tensors take another way through it. */
bool seat_is_dangerous(seat_call *c) {
    const wt_tensor *x = &c->in[SEAT_X], *w = &c->in[SEAT_W];
    bool strided = false;
    for (size_t i = 0; i < c->list[SEAT_STRIDE].size && i < WT_MAX_LIST; i++)
        strided |= c->list[SEAT_STRIDE].item[i] > 1;
    if (!strided || !(c->want & WT_WANT_WEIGHT) || c->cuda || !seat_read(c) || w->rank < 4 || x->rank != w->rank ||
        x->sizes[1] >= 16)
        return false;
    for (int64_t a = 2; a < w->rank; a++)
        if (w->sizes[a] != 1) return false;
    return seat_suggests_last(x) || seat_suggests_last(w);
}

static wt_handle copy_of(wt_handle from, const wt_tensor *like, const int64_t *sizes, const int64_t *strides) {
    wt_tensor t = {.rank = like->rank, .sizes = sizes, .strides = strides, .code = like->code};
    if (!wt_new(&t, like, &t.handle)) return NULL;
    if (!wt.aoti_torch_copy_(t.handle, from, 0)) return t.handle;
    wt.aoti_torch_delete_tensor_object(t.handle);
    return NULL;
}

/* A result in channels-last, as PyTorch would have given it. */
static bool turn_last(wt_handle *tensor, const wt_tensor *like) {
    wt_tensor is;
    int64_t strides[5];
    wt_view v;
    if (wt_read_tensor(*tensor, &is)) return false;
    v = wt_see(&is, (int)is.rank - 2);
    wt_dense(v.strides, v.dims, true);
    for (int64_t a = 0; a < is.rank; a++) strides[a] = v.strides[a < 2 ? a : a + 5 - is.rank];
    wt_handle turned = copy_of(*tensor, like, is.sizes, strides);
    if (!turned) return false;
    wt.aoti_torch_delete_tensor_object(*tensor);
    *tensor = turned;
    return true;
}

static bool backward_contiguously(seat_call *c) {
    seat_call safe = *c;
    static const int used[] = {SEAT_X, SEAT_W, SEAT_DY};
    bool ok = true, last = seat_suggests_last(&c->in[SEAT_X]) || seat_suggests_last(&c->in[SEAT_W]);
    for (int i = 0; i < 3; i++) {
        const wt_tensor *t = &c->in[used[i]];
        int64_t strides[5];
        wt_dense_along(strides, t->sizes, t->rank, NULL);
        safe.in[used[i]].handle = copy_of(t->handle, t, t->sizes, strides);
        ok &= safe.in[used[i]].handle != NULL;
    }
    ok = ok && backward_by_torch(&safe);
    for (int i = 0; i < 2 && ok && last; i++)
        if (c->want >> i & 1) ok = turn_last(&safe.out[i], &c->in[i ? SEAT_W : SEAT_X]);
    for (int i = 0; i < 3; i++)
        if (safe.in[used[i]].handle) wt.aoti_torch_delete_tensor_object(safe.in[used[i]].handle);
    memcpy(c->out, safe.out, sizeof(c->out));
    return ok;
}

static bool gradient_by_torch(seat_call *c) {
    return seat_is_dangerous(c) ? backward_contiguously(c) : backward_by_torch(c);
}

/* ---------------------------------------------------------------- the operators */
SEAT_OP(convolution, SEAT_CONV, 1, false, by_torch_convolution)
SEAT_OP(convolution_backward, SEAT_CONV, 3, true, gradient_by_torch)
