/* Short causal convolution: the forward pass (result, final states), its gradients, and the update of a state by new
 * tokens. Data is (batch, dim, seqlen), weight (dim, width), bias (dim). */
#include <string.h>

#include "binding.h"

/* ---------------------------------------------------------------- arguments */
/* Sizes as given, -1: any. */
static bool check_shape(wt_call *call, int at, int64_t rank, const int64_t *sizes) {
    const wt_tensor *t = &call->arg[at].tensor;
    bool same = t->rank == rank;
    for (int64_t a = 0; same && a < rank; a++) same = sizes[a] < 0 || t->sizes[a] == sizes[a];
    if (same) return true;
    char got[96], allowed[96];
    wt_shape_text(got, t->rank, t->sizes);
    wt_shape_text(allowed, rank, sizes);
    return wt_fail(call, "%s: has the shape %s, allowed: %s%s", call->op->name[at], got, allowed,
                   strstr(allowed, "-1") ? ", any size for -1" : "");
}

/* of x's type, or float32 */
static bool check_parameter(wt_call *call, int at, int x) {
    const wt_tensor *t = &call->arg[at].tensor, *data = &call->arg[x].tensor;
    return t->code == data->code || t->dtype == WEFT_DTYPE_F32 ||
           wt_fail(call, "%s: is %s, allowed: float32 or the type of x, %s", call->op->name[at], wt_dtype_name(t->code),
                   wt_dtype_name(data->code));
}

static bool check_int32(wt_call *call, int at) {
    const wt_tensor *t = &call->arg[at].tensor;
    return t->dtype == WEFT_DTYPE_I32 ||
           wt_fail(call, "%s: is %s, allowed: int32", call->op->name[at], wt_dtype_name(t->code));
}

/* x at its place, weight and bias behind it (bias may be missing); sets what the three have in common. */
typedef struct layer {
    wt_view x, w;
    const wt_tensor *bias;
    int64_t width;
    bool last, silu;
} layer;

static bool open_layer(wt_call *call, layer *l) {
    const wt_tensor *t = &ARG(x).tensor, *w = &ARG(weight).tensor;
    const int x = AT(x), weight = AT(weight), bias = AT(bias);
    l->bias = ARG(bias).tensor.handle ? &ARG(bias).tensor : NULL;
    l->silu = ARG(silu).integer;
    if (!wt_check_float(call, x) || !wt_check_sizes(call, x)) return false;
    int64_t dim = t->sizes[1];
    if (dim < 1) return wt_fail(call, "x: has 0 channels, allowed: 1 or more");
    if (!check_shape(call, weight, 2, (int64_t[]){dim, -1}) || !check_parameter(call, weight, x)) return false;
    if (w->sizes[1] < 1 || w->sizes[1] > 1 << 20)
        return wt_fail(call, "weight: has the width %lld, allowed: 1 to 2^20", (long long)w->sizes[1]);
    if (l->bias && (!check_shape(call, bias, 1, &dim) || !check_parameter(call, bias, x))) return false;
    l->width = w->sizes[1];
    l->w = wt_see_along(w, wt_axes(1, true, false));
    return true;
}

/* (batch, dim, seqlen) with channels or tokens next to each other in memory: a copy where neither are. */
static bool see_data(wt_call *call, int at, wt_view *v) {
    const wt_tensor *t = &call->arg[at].tensor;
    *v = wt_see(t, 1);
    if ((v->strides[1] == 1 || v->dims[1] == 1) || (v->strides[4] == 1 || v->dims[4] == 1)) return true;
    return wt_match_format(call, v, 1, wt_is_last(v), true, t->code, call->op->name[at]);
}

static weft_problem *begin(wt_call *call, weft_op op, weft_pass pass, const layer *l) {
    weft_problem *p = wt_begin(call, op, pass, 1, &l->x);
    p->kernel[2] = l->width;
    if (l->bias) wt_add_step(p, WEFT_STEP_BIAS, 0, 0);
    if (l->silu) wt_add_step(p, WEFT_STEP_SILU, 0, 0);
    WT_PUT(call, {WEFT_ROLE_SRC, &l->x}, {WEFT_ROLE_WEIGHTS, &l->w});
    if (l->bias) {
        wt_view b = wt_see_vector(l->bias);
        wt_put(call, WEFT_ROLE_BIAS, &b);
    }
    return p;
}

/* seq_idx and initial_states of a sequence: both may be missing, and only one of them given. */
static bool put_context(wt_call *call) {
    weft_problem *p = &call->p;
    const wt_tensor *s = &ARG(seq_idx).tensor, *h = &ARG(initial_states).tensor;
    const int64_t last = p->kernel[2] - 1;
    if (s->handle) {
        if (!check_shape(call, AT(seq_idx), 2, (int64_t[]){p->n, p->in[2]}) || !check_int32(call, AT(seq_idx)))
            return false;
        wt_view v = wt_see_along(s, wt_axes(1, true, false));
        p->attr[WEFT_CAUSAL_SEQ_IDX] = 1;
        wt_put(call, WEFT_ROLE_SEQ_IDX, &v);
    }
    if (h->handle) {
        if (s->handle) return wt_fail(call, "initial_states: is given beside seq_idx, allowed: one of them");
        if (!check_shape(call, AT(initial_states), 3, (int64_t[]){p->n, p->c, last}) ||
            !wt_check_same_type(call, AT(initial_states), AT(x)))
            return false;
        wt_view v = wt_see(h, 1);
        p->attr[WEFT_CAUSAL_H0] = 1;
        wt_put(call, WEFT_ROLE_H0, &v);
    }
    return true;
}

static bool no_result(wt_call *call, int slot, int32_t code) {
    wt_view none;
    return wt_create_vector(call, slot, &none, 0, code);
}

/* ---------------------------------------------------------------- forward */
bool wt_run_causal_conv1d(wt_call *call) {
    layer l;
    const wt_tensor *x = &ARG(x).tensor;
    if (!check_shape(call, AT(x), 3, (int64_t[]){-1, -1, -1})) return false;
    if (!open_layer(call, &l) || !see_data(call, AT(x), &l.x)) return false;
    weft_problem *p = begin(call, WEFT_OP_CAUSAL_CONV, WEFT_PASS_FWD, &l);
    if (!put_context(call)) return false;
    wt_view y, hn;
    const bool last = wt_is_last(&l.x), final = ARG(final_states).integer;
    if (final && ARG(seq_idx).tensor.handle)
        return wt_fail(call, "return_final_states: is True beside seq_idx, allowed: False");
    if (!wt_create(call, 0, &y, l.x.dims, 1, last, true, x->code)) return false;
    wt_put(call, WEFT_ROLE_DST, &y);
    if (final) {
        const int64_t dims[5] = {p->n, p->c, 1, 1, l.width - 1};
        if (!wt_create(call, 1, &hn, dims, 1, last, true, x->code)) return false;
        p->attr[WEFT_CAUSAL_HN] = 1;
        wt_put(call, WEFT_ROLE_HN, &hn);
    } else if (!no_result(call, 1, x->code)) {
        return false;
    }
    return wt_run(call, false);
}

/* ---------------------------------------------------------------- backward */
enum { WANT_X = 1, WANT_PARAMETERS = 2 };

/* dx and, with initial states, theirs. */
static bool put_diff_data(wt_call *call, const layer *l, bool wanted, bool last) {
    const weft_problem *p = &call->p;
    const int32_t code = ARG(x).tensor.code;
    const int64_t states[5] = {p->n, p->c, 1, 1, l->width - 1};
    wt_view v;
    if (!wanted) return no_result(call, 0, code) && no_result(call, 3, code);
    if (!wt_create(call, 0, &v, l->x.dims, 1, last, true, code)) return false;
    wt_put(call, WEFT_ROLE_DIFF_SRC, &v);
    if (!p->attr[WEFT_CAUSAL_H0]) return no_result(call, 3, code);
    if (!wt_create(call, 3, &v, states, 1, last, true, code)) return false;
    wt_put(call, WEFT_ROLE_DIFF_H0, &v);
    return true;
}

static bool put_diff_parameters(wt_call *call, const layer *l, bool wanted) {
    const wt_tensor *w = &ARG(weight).tensor;
    const int32_t bias_code = l->bias ? l->bias->code : w->code;
    const int64_t dims[5] = {l->x.dims[1], 1, 1, 1, l->width};
    wt_view v;
    if (!wanted) return no_result(call, 1, w->code) && no_result(call, 2, bias_code);
    if (!wt_create_along(call, 1, &v, dims, wt_axes(1, true, false), false, w->code)) return false;
    wt_put(call, WEFT_ROLE_DIFF_WEIGHTS, &v);
    if (!l->bias) return no_result(call, 2, bias_code);
    if (!wt_create_vector(call, 2, &v, dims[0], bias_code)) return false;
    wt_put(call, WEFT_ROLE_DIFF_BIAS, &v);
    return true;
}

bool wt_run_causal_conv1d_backward(wt_call *call) {
    layer l;
    const int64_t want = ARG(want).integer;
    const wt_tensor *dfinal = &ARG(grad_final).tensor;
    if (want < 1 || want > 3) return wt_fail(call, "want: is %lld, allowed: 1 to 3", (long long)want);
    const weft_pass pass = want == 3 ? WEFT_PASS_BWD : want == WANT_X ? WEFT_PASS_BWD_DATA : WEFT_PASS_BWD_WEIGHTS;
    if (!check_shape(call, AT(x), 3, (int64_t[]){-1, -1, -1})) return false;
    if (!open_layer(call, &l) || !see_data(call, AT(x), &l.x)) return false;
    if (!check_shape(call, AT(grad_output), 3, ARG(x).tensor.sizes) ||
        !wt_check_same_type(call, AT(grad_output), AT(x)))
        return false;
    weft_problem *p = begin(call, WEFT_OP_CAUSAL_CONV, pass, &l);
    if (!put_context(call)) return false;
    const bool last = wt_is_last(&l.x);
    wt_view dy = wt_see(&ARG(grad_output).tensor, 1);
    if (!wt_match_format(call, &dy, 1, last, true, ARG(x).tensor.code, "grad_output")) return false;
    wt_put(call, WEFT_ROLE_DIFF_DST, &dy);
    if (dfinal->handle && (want & WANT_X)) {
        if (!check_shape(call, AT(grad_final), 3, (int64_t[]){p->n, p->c, l.width - 1}) ||
            !wt_check_same_type(call, AT(grad_final), AT(x)))
            return false;
        wt_view v = wt_see(dfinal, 1);
        p->attr[WEFT_CAUSAL_HN] = 1;
        wt_put(call, WEFT_ROLE_DIFF_HN, &v);
    }
    return put_diff_data(call, &l, want & WANT_X, last) && put_diff_parameters(call, &l, want & WANT_PARAMETERS) &&
           wt_run(call, false);
}

/* ---------------------------------------------------------------- update */
/* A vector of n whole numbers of least .. most, looked at where that costs nothing: on the CPU. */
static bool put_vector(wt_call *call, weft_role role, int at, int64_t least, int64_t most) {
    const wt_tensor *t = &call->arg[at].tensor;
    const weft_problem *p = &call->p;
    if (!check_shape(call, at, 1, &p->n) || !check_int32(call, at)) return false;
    for (int64_t i = 0; i < p->n && t->device_type == wt.aoti_torch_device_type_cpu(); i++) {
        const int32_t v = ((const int32_t *)t->data)[i * t->strides[0]];
        if (v < least || v > most)
            return wt_fail(call, "%s: has %d at %lld, allowed: %lld to %lld", call->op->name[at], v, (long long)i,
                           (long long)least, (long long)most);
    }
    wt_put_vector(call, role, at);
    return true;
}

/* x (batch, dim) is one token; the result has its dimensions. */
bool wt_run_causal_conv1d_update(wt_call *call) {
    layer l;
    const wt_tensor *x = &ARG(x).tensor, *state = &ARG(conv_state).tensor;
    const bool gathers = ARG(conv_state_indices).tensor.handle, ring = ARG(cache_seqlens).tensor.handle;
    if (x->rank != 2 && !check_shape(call, AT(x), 3, (int64_t[]){-1, -1, -1})) return false;
    if (!open_layer(call, &l)) return false;
    l.x = wt_see(x, (int)x->rank - 2);
    if (!check_shape(call, AT(conv_state), 3, (int64_t[]){gathers ? -1 : x->sizes[0], x->sizes[1], -1}) ||
        !wt_check_same_type(call, AT(conv_state), AT(x)))
        return false;
    const int64_t len = state->sizes[2], least = l.width - 1 > ring ? l.width - 1 : ring;
    if (len < least)
        return wt_fail(call, "conv_state: holds %lld tokens, allowed with a width of %lld%s: %lld or more",
                       (long long)len, (long long)l.width, ring ? " and cache_seqlens" : "", (long long)least);
    weft_problem *p = begin(call, WEFT_OP_CAUSAL_UPDATE, WEFT_PASS_FWD, &l);
    p->attr[WEFT_CAUSAL_LEN] = len;
    p->attr[WEFT_CAUSAL_ROWS] = state->sizes[0];
    p->attr[WEFT_CAUSAL_RING] = ring;
    p->attr[WEFT_CAUSAL_INDEX] = gathers;
    if (ring && !put_vector(call, WEFT_ROLE_LENGTHS, AT(cache_seqlens), 0, INT32_MAX)) return false;
    if (gathers && !put_vector(call, WEFT_ROLE_INDEX, AT(conv_state_indices), -1, state->sizes[0] - 1)) return false;
    wt_view held = wt_see(state, 1), y;
    if (!wt_create(call, 0, &y, l.x.dims, (int)x->rank - 2, wt_is_last(&l.x), true, x->code)) return false;
    WT_PUT(call, {WEFT_ROLE_STATE, &held}, {WEFT_ROLE_DST, &y});
    call->once = true;
    return wt_run(call, false);
}
