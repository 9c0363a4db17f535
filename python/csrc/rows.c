/* Folding tensors of any rank onto the axes of a problem. */
#include "rows.h"

#define PLACES 4                /* axes of a problem besides the channels: n d h w */
#define MOST (INT64_C(1) << 40) /* the largest size of one axis of a problem */

/* ---------------------------------------------------------------- shapes */
bool wt_shape_of(wt_call *call, int at, wt_shape *s) {
    const wt_tensor *t = &call->arg[at].tensor;
    if (t->rank > WT_MAX_AXES)
        return wt_fail(call, "%s: has %lld dimensions, allowed: at most %d", call->op->name[at], (long long)t->rank,
                       WT_MAX_AXES);
    if (!wt_check_sizes(call, at)) return false;
    s->scalar = !t->rank;
    s->rank = s->scalar ? 1 : (int)t->rank;
    s->channel = 0;
    s->sizes[0] = 1;
    for (int a = 0; a < t->rank; a++) s->sizes[a] = t->sizes[a];
    return true;
}

int64_t wt_shape_rows(const wt_shape *s) {
    int64_t rows = 1;
    bool fits = true;
    for (int a = 0; a < s->rank; a++)
        if (a != s->channel) {
            if (!s->sizes[a]) return 0;
            fits = fits && !__builtin_mul_overflow(rows, s->sizes[a], &rows);
        }
    return fits ? rows : INT64_MAX;
}

/* ---------------------------------------------------------------- seeing */
bool wt_rows_of(wt_call *call, int at, const wt_shape *s, bool channels, wt_rows *t) {
    const wt_tensor *x = &call->arg[at].tensor;
    const bool scalar = s->scalar && channels;
    int64_t sizes[WT_MAX_AXES], rank = 0;
    for (int i = 0; i < s->rank && !scalar; i++)
        if (channels || i != s->channel) sizes[rank++] = s->sizes[i];
    if (!wt_check_shape(call, call->op->name[at], x, rank, sizes, "")) return false;
    *t = (wt_rows){.handle = x->handle, .data = x->data, .code = x->code, .channels = channels};
    for (int i = 0, a = 0; i < s->rank && !scalar; i++)
        if (channels || i != s->channel) t->strides[i] = x->strides[a++];
    return true;
}

bool wt_rows_last(const wt_shape *s, const wt_rows *t) {
    if (s->rank < 3) return false;
    int64_t channel = t->strides[s->channel], pixel = t->strides[s->rank - 1];
    return channel > 0 &&
           (channel < pixel || (channel == pixel && s->sizes[s->channel] == 1 && s->sizes[s->rank - 1] > 1));
}

/* ---------------------------------------------------------------- making */
/* Strides in which the channels, if there are any, come first or where they stand. */
static bool dense(const wt_shape *s, bool channels, bool last, int64_t *strides) {
    int axis[WT_MAX_AXES], n = 0;
    if (channels && last) axis[n++] = s->channel;
    for (int a = s->rank - 1; a >= 0; a--)
        if (a != s->channel || (channels && !last)) axis[n++] = a;
    if (!channels) strides[s->channel] = 0;
    return wt_dense_along(strides, s->sizes, n, axis);
}

/* slot -1: scratch */
static bool make(wt_call *call, int slot, const wt_shape *s, bool channels, int32_t code, wt_rows *r) {
    int64_t sizes[WT_MAX_AXES], strides[WT_MAX_AXES];
    wt_tensor t = {.sizes = sizes, .strides = strides, .code = code};
    const bool scalar = s->scalar && channels;
    for (int a = 0; a < s->rank && !scalar; a++)
        if (channels || a != s->channel) sizes[t.rank] = s->sizes[a], strides[t.rank++] = r->strides[a];
    if (!wt_result(call, slot, &t)) return false;
    r->handle = t.handle, r->copy_of = NULL, r->data = t.data, r->code = code;
    r->channels = channels, r->written = true;
    for (int a = 0, i = 0; a < s->rank && !scalar; a++)
        if (channels || a != s->channel) r->strides[a] = t.strides[i++];
    return true;
}

bool wt_rows_make(wt_call *call, int slot, const wt_shape *s, int32_t code, wt_rows *r) {
    return make(call, slot, s, true, code, r);
}

bool wt_rows_create(wt_call *call, int slot, const wt_shape *s, bool channels, bool last, int32_t code, wt_rows *t) {
    if (!dense(s, channels, last, t->strides))
        return wt_fail(call, "the result has 2^63 elements or more, allowed: fewer");
    return make(call, slot, s, channels, code, t);
}

/* ---------------------------------------------------------------- folding */
/* Axes in order, sizes of one left out, each joined to the one before it where every tensor has them one after the
 * other. outer: the axes before the channels. False: more are left than a problem has. */
bool wt_rows_view(const wt_shape *s, const wt_rows *t, int count, wt_view *v) {
    int64_t size[PLACES];
    int from[PLACES], used = 0, outer = 0; /* from: the last axis of the group, whose stride is the group's */
    for (int a = 0; a < s->rank; a++) {
        if (a == s->channel) outer = used;
        if (a == s->channel || s->sizes[a] == 1) continue;
        bool joins =
            used > 0 && !(a > s->channel && used == outer) && s->sizes[a] && size[used - 1] <= MOST / s->sizes[a];
        for (int i = 0; joins && i < count; i++) joins = t[i].strides[from[used - 1]] == t[i].strides[a] * s->sizes[a];
        if (!joins && used == PLACES) return false;
        if (!joins) size[used++] = 1;
        size[used - 1] *= s->sizes[a];
        from[used - 1] = a;
    }
    /* n is what lies outside of the channels; the others end with w */
    for (int i = 0; i < count; i++) {
        v[i] = (wt_view){t[i].handle,
                         t[i].data,
                         wt_dtype_of(t[i].code),
                         {1, s->sizes[s->channel], 1, 1, 1},
                         {0, t[i].strides[s->channel]}};
        for (int g = 0; g < used; g++) {
            int at = g == 0 && (outer > 0 || used == PLACES) ? 0 : 5 - used + g;
            v[i].dims[at] = size[g];
            v[i].strides[at] = t[i].strides[from[g]];
        }
    }
    return true;
}

/* In a dense copy the axes before the channels are one, and those behind them. */
bool wt_rows_copy(wt_call *call, const wt_shape *s, wt_rows *t) {
    wt_rows old = *t;
    if (!wt_rows_create(call, -1, s, old.channels, false, old.code, t)) return false;
    t->written = old.written;
    if (old.written) t->copy_of = old.handle;
    return old.written || wt_copy(call, t->handle, old.handle, "a tensor");
}

bool wt_rows_fold(wt_call *call, const wt_shape *s, wt_rows *t, int count, wt_view *v) {
    if (wt_rows_view(s, t, count, v)) return true;
    for (int i = 0; i < count; i++)
        if (!wt_rows_copy(call, s, &t[i])) return false;
    return wt_rows_view(s, t, count, v) || wt_fail(call, "%d dimensions could not be folded", s->rank);
}

bool wt_rows_finish(wt_call *call, const wt_rows *t, int count) {
    for (int i = 0; i < count; i++)
        if (t[i].copy_of && !wt_copy(call, t[i].copy_of, t[i].handle, "a result")) return false;
    return true;
}

bool wt_rows_run(wt_call *call, bool torch, const wt_rows *t, int count) {
    const int64_t want = torch ? WT_ALL : 0;
    weft_plan *plan = wt_plan_with(call, want);
    const bool theirs = wt_is_torch(plan); /* PyTorch's result is in its place */
    return wt_finish(call, plan, &call->args, want) && (theirs || wt_rows_finish(call, t, count));
}

weft_problem *wt_rows_begin(wt_call *call, weft_op op, weft_pass pass, const wt_view *v) {
    return wt_begin(call, op, pass, v->dims[2] > 1 ? 3 : v->dims[3] > 1 ? 2 : 1, v);
}
