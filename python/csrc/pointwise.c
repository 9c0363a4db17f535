/* relu, clip, tanh and sigmoid of a tensor of any rank and strides, into the strides that PyTorch gives; out may be
 * the input itself. ncrelu along dimension 1, and its gradient. The gradients of the others are PyTorch's own, from
 * the result alone: weft.functional.pointwise. */
#include <string.h>

#include "rows.h"

/* ---------------------------------------------------------------- axes in the order of memory */
/* From the nearest to the farthest, as PyTorch's loops take them: an expanded axis (stride 0) stays where it is
 * among the others, and of equal strides the smaller axis is nearer. */
static void order(const wt_shape *s, const int64_t *strides, int *axis) {
    for (int a = 0; a < s->rank; a++) axis[a] = s->rank - 1 - a;
    for (int i = 1; i < s->rank; i++)
        for (int at = i, to = i - 1; to >= 0; to--) {
            int a = axis[to], b = axis[at];
            if (!strides[a] || !strides[b] || (strides[a] == strides[b] && s->sizes[a] <= s->sizes[b])) continue;
            if (strides[a] < strides[b]) break;
            axis[to] = b, axis[at] = a, at = to;
        }
}

/* Strides of a result: those of the input where it is dense, else dense in the order of its memory. What is
 * contiguous or channels-last gets the plain strides of that format, also along axes of one element, but from
 * hardtanh. false: too many elements. */
static bool preserve(const wt_shape *s, const int64_t *input, const int *axis, bool plainly, int64_t *strides) {
    static const int last[4] = {1, 3, 2, 0};
    bool empty = false;
    for (int a = 0; a < s->rank; a++) empty |= !s->sizes[a];
    if (!wt_dense_along(strides, s->sizes, s->rank, NULL)) return false;
    if (plainly && (empty || wt_lie_alike(s->rank, s->sizes, input, strides))) return true;
    if (plainly && s->rank == 4) {
        wt_dense_along(strides, s->sizes, 4, last);
        if (wt_lie_alike(s->rank, s->sizes, input, strides)) return true;
    }
    wt_dense_along(strides, s->sizes, s->rank, axis);
    if (empty || wt_lie_alike(s->rank, s->sizes, input, strides))
        memcpy(strides, input, (size_t)s->rank * sizeof(*strides));
    return true;
}

/* Input and result as a problem sees them: behind one channel, the axes from the farthest to the nearest, so that
 * dense ones fold into one row whatever their order. There are fewer than 63 of more than one element. Where they do
 * not fold, dense copies do. */
static bool fold(wt_call *call, const wt_shape *s, const int *axis, wt_rows t[2], wt_view v[2]) {
    int plain[WT_MAX_AXES];
    for (bool copied = false;; copied = true) {
        wt_shape row = {.rank = 1, .sizes = {1}};
        wt_rows u[2] = {t[0], t[1]};
        for (int i = s->rank - 1; i >= 0; i--) {
            if (s->sizes[axis[i]] == 1) continue;
            row.sizes[row.rank] = s->sizes[axis[i]];
            for (int k = 0; k < 2; k++) u[k].strides[row.rank] = t[k].strides[axis[i]];
            row.rank++;
        }
        if (wt_rows_view(&row, u, 2, v)) return true;
        if (copied || !wt_rows_copy(call, s, &t[0]) || !wt_rows_copy(call, s, &t[1]))
            return wt_fail(call, "%d dimensions could not be folded", s->rank);
        for (int a = 0; a < s->rank; a++) plain[a] = s->rank - 1 - a;
        axis = plain;
    }
}

/* ---------------------------------------------------------------- relu, clip, tanh, sigmoid */
static bool check_in_place(wt_call *call, const wt_shape *s) {
    const wt_tensor *x = &ARG(input).tensor;
    if (!call->op->into || call->arg[call->op->nargs - 1].tensor.data != x->data) return true;
    for (int64_t a = 0; a < x->rank; a++)
        if (s->sizes[a] > 1 && !x->strides[a])
            return wt_fail(call, "input: is expanded along dimension %lld, allowed in place: memory for every element",
                           (long long)a);
    return true;
}

/* A finite bound that the type of the data cannot hold is refused, as PyTorch does. */
static bool check_bound(wt_call *call, int at) {
    const double infinity = __builtin_inf(), value = call->arg[at].real, size = value < 0 ? -value : value;
    const wt_tensor *x = &ARG(input).tensor;
    double most = x->dtype == WEFT_DTYPE_F16    ? 65504.0
                  : x->dtype == WEFT_DTYPE_BF16 ? 0x1.fep127
                  : x->dtype == WEFT_DTYPE_F32  ? 0x1.fffffep127
                                                : infinity;
    return size == infinity || size <= most ||
           wt_fail(call, "%s: is %g, allowed for %s: -%g to %g, or infinity", call->op->name[at], value,
                   wt_dtype_name(x->code), most, most);
}

static bool check_bounds(wt_call *call) {
    const double lo = ARG(lo).real, hi = ARG(hi).real;
    return check_bound(call, AT(lo)) && check_bound(call, AT(hi)) &&
           (lo <= hi || wt_fail(call, "lo: is %g, allowed: not above hi, %g", lo, hi));
}

bool wt_run_pointwise(wt_call *call) {
    const bool clips = call->op->op == WEFT_OP_CLIP;
    wt_shape s;
    wt_rows t[2];
    wt_view v[2];
    int axis[WT_MAX_AXES];
    if ((clips && !check_bounds(call)) || !wt_check_float(call, AT(input)) || !wt_shape_of(call, AT(input), &s) ||
        !check_in_place(call, &s) || !wt_rows_of(call, AT(input), &s, true, &t[0]))
        return false;
    order(&s, t[0].strides, axis);
    if (!preserve(&s, t[0].strides, axis, !clips, t[1].strides))
        return wt_fail(call, "the result has 2^63 elements or more, allowed: fewer");
    if (!wt_rows_make(call, 0, &s, t[0].code, &t[1])) return false;
    if (!wt_shape_rows(&s) || !s.sizes[0]) return true;
    if (!fold(call, &s, axis, t, v)) return false;
    weft_problem *p = wt_rows_begin(call, call->op->op, WEFT_PASS_FWD, v);
    if (clips) p->real[WEFT_CLIP_LO] = ARG(lo).real, p->real[WEFT_CLIP_HI] = ARG(hi).real;
    WT_PUT(call, {WEFT_ROLE_SRC, &v[0]}, {WEFT_ROLE_DST, &v[1]});
    return wt_rows_run(call, !call->op->into && !(clips && (s.scalar || call->cuda)), t, 2);
}

/* ---------------------------------------------------------------- ncrelu */
/* t[1] has twice the channels of the others: dst or diff_dst. */
bool wt_run_ncrelu(wt_call *call) {
    const bool back = call->op->pass == WEFT_PASS_BWD;
    const int count = back ? 3 : 2;
    wt_shape s, wide;
    wt_rows t[3];
    wt_view v[3];
    if (!wt_check_float(call, AT(input)) || !wt_shape_of(call, AT(input), &s)) return false;
    if (ARG(input).tensor.rank < 2)
        return wt_fail(call, "input: has %lld dimensions, allowed: 2 or more", (long long)ARG(input).tensor.rank);
    s.channel = 1;
    wide = s;
    wide.sizes[1] *= 2;
    if (!wt_rows_of(call, AT(input), &s, true, &t[0])) return false;
    const bool last = wt_rows_last(&s, &t[0]);
    if (back && (!wt_check_same_type(call, AT(grad_output), AT(input)) || !wt_check_sizes(call, AT(grad_output)) ||
                 !wt_rows_of(call, AT(grad_output), &wide, true, &t[1])))
        return false;
    if (!wt_rows_create(call, 0, back ? &s : &wide, true, last, t[0].code, &t[count - 1])) return false;
    if (!wt_shape_rows(&s) || !s.sizes[1]) return true;
    /* of the tensor that is twice as wide, the views differ from the others' in nothing that a problem asks for */
    bool folded = wt_rows_view(&s, t, count, v);
    for (int i = 0; i < count && !folded; i++)
        if (!wt_rows_copy(call, i == 1 ? &wide : &s, &t[i])) return false;
    if (!folded && !wt_rows_view(&s, t, count, v)) return wt_fail(call, "%d dimensions could not be folded", s.rank);
    wt_rows_begin(call, WEFT_OP_NCRELU, call->op->pass, v);
    WT_PUT(call, {WEFT_ROLE_SRC, &v[0]}, {WEFT_ROLE_DST, &v[1]}, {WEFT_ROLE_DIFF_DST, &v[1]},
           {WEFT_ROLE_DIFF_SRC, &v[2]});
    return wt_rows_run(call, false, t, count);
}
