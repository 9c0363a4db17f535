/* Deciding, once for each kind of call: in which strides would PyTorch give the results, and are weft's plans faster
 * than PyTorch by estimate (or by measurement, where that is asked for)? What an operator is, its own file says. */
#include <stdio.h>
#include <string.h>

#include "core/internal.h"
#include "seat.h"
#include "settings.h"

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

static void shape_of(const seat_draft *d, seat_shape *s, const wt_view *v, int32_t code) {
    s->rank = 0;
    s->code = code;
    for (int a = d->g.batched ? 0 : 1; a < 5; a++)
        if (a < 2 || a >= 5 - d->g.rank) s->sizes[s->rank] = v->dims[a], s->strides[s->rank++] = v->strides[a];
}

bool seat_add_result(seat_draft *d, int i, const int64_t dims[5], int32_t code) {
    wt_view *v = &d->view[SEAT_OUT + i];
    memset(v, 0, sizeof(*v));
    memcpy(v->dims, dims, sizeof(v->dims));
    v->dtype = wt_dtype_of(code);
    if (!wt_dense(v->strides, dims, d->result_last[i])) return false;
    shape_of(d, &d->e->out[i], v, code);
    return true;
}

static void set_format(seat_draft *d, bool last) {
    d->last = last;
    for (int i = 0; i < SEAT_RESULTS; i++) d->result_last[i] = last;
}

/* PyTorch runs once, and its results show the strides. The gradient of weights may have others than that of data. */
static bool learn_format(seat_draft *d) {
    const bool several = d->c->op->nout == 3;
    seat_call again = *d->c;
    wt_tensor is;
    memset(again.out, 0, sizeof(again.out));
    set_format(d, seat_suggests_last(&d->c->in[SEAT_X]));
    bool ok = seat_delegate(&again);
    for (int i = 0; i < 2 && ok; i++) {
        if (several ? !(d->c->want >> i & 1) : i > 0) continue;
        ok = !wt_read_tensor(again.out[i], &is);
        if (ok && i == 0) set_format(d, seat_suggests_last(&is));
        if (ok) d->result_last[i] = seat_suggests_last(&is);
    }
    seat_drop_results(&again);
    return ok;
}

const char *seat_fix_format(seat_draft *d, bool last, bool sure) {
    set_format(d, last);
    if (!sure && !learn_format(d)) return "PyTorch refuses it";
    return NULL;
}

static const char *copy_where_needed(seat_draft *d, int at, seat_shape *to) {
    wt_view *v = &d->view[at];
    if (wt_is_dense(v, d->last)) return NULL;
    v->data = NULL; /* the copy's memory is PyTorch's, aligned */
    if (!wt_dense(v->strides, v->dims, d->last)) return "its sizes";
    shape_of(d, to, v, d->c->in[at].code);
    return NULL;
}

/* PyTorch's convolutions make the same copy. What is expanded is theirs. */
const char *seat_fix_input(seat_draft *d, bool may_copy) {
    const wt_tensor *x = &d->c->in[SEAT_X];
    if (!may_copy) return wt_is_dense(&d->view[SEAT_X], d->last) ? NULL : "the strides of its input";
    for (int64_t a = 0; a < x->rank; a++)
        if (x->sizes[a] > 1 && x->strides[a] == 0) return "an expanded input";
    return copy_where_needed(d, SEAT_X, &d->e->x);
}

const char *seat_fix_gradient(seat_draft *d) { return copy_where_needed(d, SEAT_DY, &d->e->dy); }

/* ---------------------------------------------------------------- the call */
bool seat_read_axes(const wt_list *l, int rank, int64_t least, int64_t *to) {
    if (l->size != 1 && l->size != (size_t)rank) return false;
    for (int a = 0; a < rank; a++) {
        int64_t v = l->item[l->size == 1 ? 0 : a];
        if (v < least || v > 1 << 20) return false;
        to[3 - rank + a] = v;
    }
    return true;
}

bool seat_is_beside(const wt_tensor *t, const wt_tensor *x) {
    return t->device_type == x->device_type && t->device_index == x->device_index;
}

const char *seat_compare(const wt_tensor *t, const wt_tensor *x) {
    if (t->code != x->code) return "its data types differ";
    if (!seat_is_beside(t, x)) return "its devices differ";
    return t->rank == x->rank && !memcmp(t->sizes, x->sizes, (size_t)x->rank * sizeof(x->sizes[0])) ? NULL
                                                                                                    : "its sizes";
}

const char *seat_see_tensors(seat_draft *d) {
    const seat_call *c = d->c;
    const wt_tensor *x = &c->in[SEAT_X];
    if (!wt_is_float(x->dtype)) return "its data type";
    for (int i = 0; i < SEAT_INPUTS; i++) {
        const wt_tensor *t = &c->in[i];
        if (!t->handle) continue;
        if (i != SEAT_INDEX && t->code != x->code) return "its data types differ";
        if (!seat_is_beside(t, x)) return "its devices differ";
        if (i == SEAT_BIAS) continue;
        if (t->rank != x->rank) return "the ranks of its tensors";
        for (int64_t a = 0; a < t->rank; a++)
            if (t->sizes[a] < 1 || t->sizes[a] > INT64_C(1) << 40 || t->strides[a] < 0) return "an empty tensor";
        d->view[i] = wt_see(t, d->g.rank);
    }
    return NULL;
}

/* ---------------------------------------------------------------- choosing */
/* Which tensor a role is; a transposed convolution is the gradient of another, from its result to its input. */
static int slot_of(const seat_call *c, int role) {
    static const int slots[WEFT_ROLE_COUNT] = {[WEFT_ROLE_SRC] = SEAT_X,
                                               [WEFT_ROLE_DIFF_DST] = SEAT_DY,
                                               [WEFT_ROLE_WEIGHTS] = SEAT_W,
                                               [WEFT_ROLE_BIAS] = SEAT_BIAS,
                                               [WEFT_ROLE_MEAN] = SEAT_MEAN,
                                               [WEFT_ROLE_VAR] = SEAT_VAR,
                                               [WEFT_ROLE_SAVE_MEAN] = SEAT_SAVED_MEAN,
                                               [WEFT_ROLE_SAVE_INVSTD] = SEAT_SAVED_INVSTD,
                                               [WEFT_ROLE_DST] = SEAT_OUT,
                                               [WEFT_ROLE_DIFF_SRC] = SEAT_OUT,
                                               [WEFT_ROLE_DIFF_WEIGHTS] = SEAT_OUT + 1,
                                               [WEFT_ROLE_DIFF_BIAS] = SEAT_OUT + 2};
    const bool swaps = c->op->family == SEAT_CONV && c->value[SEAT_TRANSPOSED];
    const bool back = c->op->backward;
    if (role == WEFT_ROLE_INDEX) return back ? SEAT_INDEX : SEAT_OUT + 1;
    if (role == WEFT_ROLE_DST && (c->op->family == SEAT_SOFTMAX || c->op->family == SEAT_LOG_SOFTMAX) && back)
        return SEAT_X;
    if (role == WEFT_ROLE_SAVE_MEAN && !back) return SEAT_OUT + 1;
    if (role == WEFT_ROLE_SAVE_INVSTD && !back) return SEAT_OUT + 2;
    if (swaps && (role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_DST)) return SEAT_X + SEAT_DY - slots[role];
    return slots[role];
}

void seat_put_roles(const seat_draft *d, weft_problem *p, seat_step *s) {
    const uint64_t roles = weft__roles(p);
    *s = (seat_step){.n = 0};
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        if (!(roles & WEFT__BIT(role))) continue;
        const int slot = slot_of(d->c, role);
        wt_describe(p, (weft_role)role, &d->view[slot]);
        s->role[s->n] = (uint8_t)role;
        s->slot[s->n++] = (uint8_t)slot;
    }
}

static bool rehearse(const void *state) {
    seat_call again = *(const seat_call *)state;
    memset(again.out, 0, sizeof(again.out));
    bool ok = seat_delegate(&again);
    seat_drop_results(&again);
    return ok;
}

weft_plan *seat_plan(seat_draft *d, weft_problem *p, seat_step *s, bool beside_torch, double *ns, double *torch_ns) {
    *torch_ns = 0;
    p->device = d->c->cuda ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
    p->ordinal = d->c->cuda ? d->c->in[SEAT_X].device_index : 0;
    p->math = d->math;
    if (weft_problem_complete(p) != WEFT_OK) return NULL;
    if (!d->e->text[0]) weft_problem_format(p, d->e->text, sizeof(d->e->text), NULL);
    *torch_ns = wt_external_ns(p);
    const wt_config *set = wt_settings();
    bool compete = beside_torch && set->delegate;
    const bool estimates = !d->c->op->torch; /* PyTorch's cannot be rehearsed */
    weft_plan *plan =
        wt_plan_by(p, estimates, WEFT_ENGINE_CPU | WEFT_ENGINE_CUDA | (compete ? WEFT_ENGINE_EXTERNAL : 0));
    const char *name = weft_plan_kernel_name(plan);
    if (plan && (wt_is_torch(plan) || (strstr(name, "_ref") && strcmp(name, set->pin)))) {
        weft_plan_release(plan);
        plan = NULL;
    }
    if (plan) *ns = wt_estimate(plan);
    s->plan = plan;
    return plan;
}

bool seat_plan_alone(seat_draft *d, weft_problem *p, bool beside_torch) {
    seat_entry *e = d->e;
    if (!seat_plan(d, p, &e->step[0], beside_torch, &e->ns, &e->torch_ns)) return false;
    e->nsteps = 1;
    return true;
}

void seat_decide(const seat_call *c, int math, seat_entry *e) {
    seat_draft d = {.c = c, .e = e, .math = math};
    e->op = c->op;
    e->reason = c->op->read(&d);
    if (!e->reason) {
        if (c->op->torch)
            wt_rehearse(rehearse, c);
        else
            wt_rehearse(wt_never, NULL);
        bool taken = strcmp(wt_settings()->pin, "torch") && c->op->choose(&d);
        wt_rehearse(NULL, NULL);
        atomic_store(&e->taken, taken);
        if (!taken)
            e->reason = e->ns > 0 ? "PyTorch is faster" : "weft has no fast kernel for it, or PyTorch is faster";
    }
    if (!e->text[0]) snprintf(e->text, sizeof(e->text), "%s", c->op->name);
}
