/* Deciding, once for each kind of call: is it one that weft computes, in which strides would PyTorch give the results,
 * and are weft's plans faster than PyTorch by estimate (or by measurement, where that is asked for)? */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "seat.h"
#include "settings.h"

typedef struct draft { /* a decision being made */
    const seat_call *c;
    seat_entry *e;
    int math;
    wt_geometry g;
    wt_view view[SEAT_SLOTS]; /* what each plan's roles are; results have no memory yet */
    bool last;                /* PyTorch computes in channels-last */
} draft;

/* ---------------------------------------------------------------- PyTorch's formats */
/* The rule of c10: strides that rise from channels over columns to the batch. Where sizes of 1 leave it open, the
 * batch's stride must differ from the channels'. */
bool seat_suggests_last(const wt_tensor *t) {
    if (t->rank < 4 || t->rank > 5 || t->strides[1] == 0) return false;
    int64_t least = 0;
    for (int64_t i = 0; i < t->rank; i++) {
        int64_t a = i == 0 ? 1 : i == t->rank - 1 ? 0 : t->rank - i;
        if (t->sizes[a] == 0 || t->strides[a] < least || (a == 0 && least == t->strides[1])) return false;
        least = t->strides[a] * (t->sizes[a] > 1 ? t->sizes[a] : 1);
    }
    return true;
}

static bool is_dense(const wt_view *v, bool last) {
    int64_t strides[5];
    if (!wt_dense(strides, v->dims, last)) return false;
    for (int a = 0; a < 5; a++)
        if (v->dims[a] > 1 && v->strides[a] != strides[a]) return false;
    return true;
}

/* Which format PyTorch computes in, and whether that is sure. In 3D and on CUDA it depends on which of its kernels
 * runs: it must be asked. */
static bool know_format(draft *d) {
    const seat_call *c = d->c;
    d->last = seat_suggests_last(&c->in[SEAT_X]) || seat_suggests_last(&c->in[SEAT_W]);
    return !d->last || (d->g.rank == 2 && !seat_is_cuda(c));
}

static void shape_of(seat_shape *s, const wt_view *v, int rank) {
    s->rank = 0;
    for (int a = 0; a < 5; a++)
        if (a < 2 || a >= 5 - rank) s->sizes[s->rank] = v->dims[a], s->strides[s->rank++] = v->strides[a];
}

/* A result of these dims, dense in PyTorch's format. */
static bool plan_result(draft *d, int i, const int64_t dims[5]) {
    wt_view *v = &d->view[SEAT_OUT + i];
    memset(v, 0, sizeof(*v));
    memcpy(v->dims, dims, sizeof(v->dims));
    v->dtype = d->c->in[SEAT_X].dtype;
    if (!wt_dense(v->strides, dims, d->last)) return false;
    shape_of(&d->e->out[i], v, d->g.rank);
    return true;
}

/* PyTorch runs once, and its results show the strides. */
static bool learn_format(draft *d) {
    seat_call again = *d->c;
    wt_tensor is;
    memset(again.out, 0, sizeof(again.out));
    bool ok = seat_delegate(&again);
    for (int i = 0; i < 2 && ok; i++) {
        if (d->c->backward ? !(d->c->want >> i & 1) : i > 0) continue;
        ok = !wt_read_tensor(again.out[i], &is);
        if (ok) d->last = seat_suggests_last(&is);
    }
    seat_drop_results(&again);
    return ok;
}

/* ---------------------------------------------------------------- the call */
static bool read_axes(const wt_list *l, int rank, int64_t least, int64_t *to) {
    if (l->size != 1 && l->size != (size_t)rank) return false;
    for (int a = 0; a < rank; a++) {
        int64_t v = l->item[l->size == 1 ? 0 : a];
        if (v < least || v > 1 << 20) return false;
        to[3 - rank + a] = v;
    }
    return true;
}

/* NULL, or why it is PyTorch's to compute or to refuse. */
static const char *read_geometry(draft *d, int64_t extra[3]) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X], *w = &c->in[SEAT_W];
    for (int a = 0; a < 3; a++) d->g.stride[a] = d->g.dilation[a] = 1, d->g.pad_lo[a] = extra[a] = 0;
    d->g.rank = (int)w->rank - 2;
    d->g.batched = true;
    d->g.groups = c->groups;
    if (w->rank < 3 || w->rank > 5 || x->rank != w->rank) return "the ranks of its tensors";
    if (c->groups < 1 || c->groups > 1 << 30 || !read_axes(&c->list[SEAT_STRIDE], d->g.rank, 1, d->g.stride) ||
        !read_axes(&c->list[SEAT_PADDING], d->g.rank, 0, d->g.pad_lo) ||
        !read_axes(&c->list[SEAT_DILATION], d->g.rank, 1, d->g.dilation) ||
        (c->transposed && !read_axes(&c->list[SEAT_EXTRA], d->g.rank, 0, extra)))
        return "its geometry";
    memcpy(d->g.pad_hi, d->g.pad_lo, sizeof(d->g.pad_hi));
    return NULL;
}

static const char *read_tensors(draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X];
    if (!wt_is_float(x->dtype)) return "its data type";
    for (int i = 0; i < SEAT_INPUTS; i++) {
        const wt_tensor *t = &c->in[i];
        if (!t->handle) continue;
        if (t->code != x->code) return "its data types differ";
        if (t->device_type != x->device_type || t->device_index != x->device_index) return "its devices differ";
        if (i == SEAT_BIAS) continue;
        if (t->rank != x->rank) return "the ranks of its tensors";
        for (int64_t a = 0; a < t->rank; a++)
            if (t->sizes[a] < 1 || t->sizes[a] > INT64_C(1) << 40 || t->strides[a] < 0) return "an empty tensor";
        d->view[i] = wt_see(t, d->g.rank);
    }
    return NULL;
}

/* dims of the far side of the convolution: y from x, or grad_output checked against x. */
static bool out_dims(const draft *d, const int64_t extra[3], int64_t dims[5]) {
    const wt_view *x = &d->view[SEAT_X], *w = &d->view[SEAT_W];
    bool transposed = d->c->transposed;
    dims[0] = x->dims[0];
    dims[1] = transposed ? w->dims[1] * d->g.groups : w->dims[0];
    if (x->dims[1] != (transposed ? w->dims[0] : w->dims[1] * d->g.groups) || w->dims[0] % d->g.groups) return false;
    for (int a = 0; a < 3; a++) {
        int64_t window = d->g.dilation[a] * (w->dims[2 + a] - 1) + 1, pads = 2 * d->g.pad_lo[a], in = x->dims[2 + a];
        dims[2 + a] = transposed ? (in - 1) * d->g.stride[a] + window + extra[a] - pads
                                 : (in + pads - window < 0 ? 0 : (in + pads - window) / d->g.stride[a] + 1);
        if (dims[2 + a] < 1) return false;
    }
    return true;
}

/* output_padding beyond a stride is taken off the high padding, where there is as much: see run_conv_transpose. */
static bool fit_padding(draft *d, const int64_t extra[3]) {
    for (int a = 0; a < 3; a++) {
        if (extra[a] < d->g.stride[a]) continue;
        if (extra[a] > d->g.pad_hi[a] || extra[a] >= d->g.dilation[a]) return false;
        d->g.pad_hi[a] -= extra[a];
    }
    return true;
}

static const char *read_call(draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *b = &c->in[SEAT_BIAS];
    int64_t extra[3], dims[5];
    const char *why = read_geometry(d, extra);
    if (!why) why = read_tensors(d);
    if (why) return why;
    if (!out_dims(d, extra, dims)) return "its sizes";
    if (c->transposed && !fit_padding(d, extra)) return "its output padding";
    if (b->handle && (b->rank != 1 || b->sizes[0] != dims[1] || b->strides[0] < 1)) return "its bias";
    if (c->backward && memcmp(dims, d->view[SEAT_DY].dims, sizeof(dims))) return "its sizes";
    if (b->handle) d->view[SEAT_BIAS] = (wt_view){b->handle, b->data, b->dtype, {b->sizes[0]}, {b->strides[0]}};
    d->e->sound = true;
    if (c->backward && !(c->want & (WT_WANT_INPUT | WT_WANT_WEIGHT))) return "only the gradient of a bias is asked for";
    if (!know_format(d) && !learn_format(d)) return "PyTorch refuses it";
    if (!is_dense(&d->view[SEAT_X], d->last)) return "the strides of its input";
    if (!is_dense(&d->view[SEAT_W], false) && !is_dense(&d->view[SEAT_W], true)) return "the strides of its weight";
    if (!c->backward) return plan_result(d, 0, dims) ? NULL : "its sizes";
    if (!is_dense(&d->view[SEAT_DY], d->last)) {
        d->view[SEAT_DY].data = NULL; /* the copy's memory is PyTorch's, aligned */
        wt_dense(d->view[SEAT_DY].strides, dims, d->last);
        shape_of(&d->e->dy, &d->view[SEAT_DY], d->g.rank);
    }
    if ((c->want & WT_WANT_INPUT && !plan_result(d, 0, d->view[SEAT_X].dims)) ||
        (c->want & WT_WANT_WEIGHT && !plan_result(d, 1, d->view[SEAT_W].dims)))
        return "its sizes";
    return NULL;
}

/* ---------------------------------------------------------------- the problem */
/* Which tensor a role is; a transposed convolution is the gradient of another, from its result to its input. */
static int slot_of(const seat_call *c, int role) {
    switch (role) {
    case WEFT_ROLE_SRC:
        return c->transposed ? SEAT_DY : SEAT_X;
    case WEFT_ROLE_DIFF_DST:
        return c->transposed ? SEAT_X : SEAT_DY;
    case WEFT_ROLE_WEIGHTS:
        return SEAT_W;
    case WEFT_ROLE_BIAS:
        return SEAT_BIAS;
    case WEFT_ROLE_DIFF_WEIGHTS:
        return SEAT_OUT + 1;
    case WEFT_ROLE_DIFF_BIAS:
        return SEAT_OUT + 2;
    default:
        return SEAT_OUT;
    }
}

static void put(draft *d, weft_problem *p, seat_step *s, weft_role role) {
    weft_args unused = WEFT_ARGS_INIT;
    int slot = slot_of(d->c, role);
    wt_put(p, &unused, role, &d->view[slot]);
    s->role[s->n] = (uint8_t)role;
    s->slot[s->n++] = (uint8_t)slot;
}

/* A pass of the convolution, bias with it if there is one to add or to sum up. */
static void describe(draft *d, weft_problem *p, seat_step *s, weft_pass pass, bool bias) {
    static const struct {
        weft_pass pass;
        weft_role role[5];
        int n;
    } table[] = {
        {WEFT_PASS_FWD, {WEFT_ROLE_SRC, WEFT_ROLE_WEIGHTS, WEFT_ROLE_DST}, 3},
        {WEFT_PASS_BWD_DATA, {WEFT_ROLE_WEIGHTS, WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_SRC}, 3},
        {WEFT_PASS_BWD_WEIGHTS, {WEFT_ROLE_SRC, WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_WEIGHTS}, 3},
        {WEFT_PASS_BWD,
         {WEFT_ROLE_SRC, WEFT_ROLE_WEIGHTS, WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_SRC, WEFT_ROLE_DIFF_WEIGHTS},
         5},
    };
    const seat_call *c = d->c;
    const wt_view *src = &d->view[!c->transposed ? SEAT_X : c->backward ? SEAT_DY : SEAT_OUT];
    *s = (seat_step){.n = 0};
    wt_begin(p, WEFT_OP_CONV, pass, &d->g, src, &d->view[SEAT_W]);
    p->device = seat_is_cuda(c) ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
    p->ordinal = seat_is_cuda(c) ? c->in[SEAT_X].device_index : 0;
    p->math = d->math;
    if (bias) wt_add_step(p, WEFT_STEP_BIAS, 0, 0);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        for (int r = 0; table[i].pass == pass && r < table[i].n; r++) put(d, p, s, table[i].role[r]);
    if (bias) put(d, p, s, c->backward ? WEFT_ROLE_DIFF_BIAS : WEFT_ROLE_BIAS);
}

/* ---------------------------------------------------------------- choosing */
static bool rehearse(const void *state) {
    seat_call again = *(const seat_call *)state;
    memset(again.out, 0, sizeof(again.out));
    bool ok = seat_delegate(&again);
    seat_drop_results(&again);
    return ok;
}

/* The plan of a pass by one of weft's fast kernels; NULL: there is none, or PyTorch won where it took part. ns:
 * estimates of both. */
static weft_plan *plan_of(draft *d, seat_step *s, weft_pass pass, bool bias, bool beside_torch, double *ns,
                          double *torch_ns) {
    weft_problem p = WEFT_PROBLEM_INIT;
    describe(d, &p, s, pass, bias);
    *torch_ns = 0;
    if (weft_problem_complete(&p) != WEFT_OK) return NULL;
    if (!d->e->text[0]) weft_problem_format(&p, d->e->text, sizeof(d->e->text), NULL);
    *torch_ns = wt_external_ns(&p);
    const wt_config *set = wt_settings();
    bool compete = beside_torch && set->delegate;
    weft_plan *plan = wt_plan_by(&p, false, WEFT_ENGINE_CPU | WEFT_ENGINE_CUDA | (compete ? WEFT_ENGINE_EXTERNAL : 0));
    const char *name = weft_plan_kernel_name(plan);
    if (plan && (wt_is_peer(plan) || (strstr(name, "_ref") && strcmp(name, set->pin)))) {
        weft_plan_release(plan);
        plan = NULL;
    }
    if (plan) *ns = wt_estimate(plan);
    s->plan = plan;
    return plan;
}

/* One pass, weft's or PyTorch's as the planner has it. */
static bool choose_pass(draft *d, weft_pass pass, bool bias) {
    seat_entry *e = d->e;
    if (!plan_of(d, &e->step[0], pass, bias, true, &e->ns, &e->torch_ns)) return false;
    e->nsteps = 1;
    return true;
}

/* Two passes against `limit`, what the same costs otherwise; 0: PyTorch's two. */
static bool choose_pair(draft *d, weft_pass first, weft_pass second, bool bias, double limit) {
    seat_entry *e = d->e;
    seat_step step[2];
    double ns[2], torch_ns[2];
    if (!plan_of(d, &step[0], first, false, false, &ns[0], &torch_ns[0])) return false;
    if (!plan_of(d, &step[1], second, bias, false, &ns[1], &torch_ns[1]) ||
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

static bool choose(draft *d) {
    const seat_call *c = d->c;
    const wt_config *set = wt_settings();
    bool data = c->want & WT_WANT_INPUT, weights = c->want & WT_WANT_WEIGHT, bias = c->want & WT_WANT_BIAS,
         free = set->delegate && !set->pin[0], estimates = set->mode != WEFT_MODE_MEASURE || !free;
    if (!strcmp(set->pin, "torch")) return false;
    if (!c->backward)
        return choose_pass(d, c->transposed ? WEFT_PASS_BWD_DATA : WEFT_PASS_FWD, c->in[SEAT_BIAS].handle);
    /* of a transposed one the bias belongs to what is src here, and without the weights no plan sums it up */
    d->e->sums = bias && (c->transposed || !weights);
    bias = bias && !d->e->sums;
    if (bias) {
        int64_t channels[5] = {d->view[SEAT_DY].dims[1], 0, 0, 0, 0};
        d->view[SEAT_OUT + 2] = (wt_view){NULL, NULL, c->in[SEAT_X].dtype, {channels[0]}, {1}};
        d->e->out[2] = (seat_shape){1, {channels[0]}, {1}};
    }
    if (!data) return choose_pass(d, WEFT_PASS_BWD_WEIGHTS, bias);
    if (!weights) return choose_pass(d, c->transposed ? WEFT_PASS_FWD : WEFT_PASS_BWD_DATA, false);
    if (c->transposed)
        return estimates && choose_pair(d, WEFT_PASS_FWD, WEFT_PASS_BWD_WEIGHTS, false, free ? 0 : HUGE_VAL);
    bool both = choose_pass(d, WEFT_PASS_BWD, bias);
    double limit = both ? d->e->ns : free ? d->e->torch_ns : HUGE_VAL;
    return (estimates && choose_pair(d, WEFT_PASS_BWD_DATA, WEFT_PASS_BWD_WEIGHTS, bias, limit)) || both;
}

void seat_decide(const seat_call *c, int math, seat_entry *e) {
    draft d = {.c = c, .e = e, .math = math};
    e->reason = read_call(&d);
    if (!e->reason) {
        wt_rehearse(rehearse, c);
        bool taken = choose(&d);
        wt_rehearse(NULL, NULL);
        atomic_store(&e->taken, taken);
        if (!taken)
            e->reason = e->ns > 0 ? "PyTorch is faster" : "weft has no fast kernel for it, or PyTorch is faster";
    }
    if (!e->text[0]) snprintf(e->text, sizeof(e->text), "convolution");
}
