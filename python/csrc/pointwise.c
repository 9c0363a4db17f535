/* relu, clip, tanh and sigmoid of a tensor of any rank and strides, into the strides that PyTorch gives; out may be
 * the input itself. ncrelu along dimension 1, and its gradient. The gradients of the others are PyTorch's own, from
 * the result alone: weft.functional.pointwise. */
#include <string.h>

#include "rows.h"

enum { INPUT, LO, HI };

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

/* Strides of axes of one element name no other memory. */
static bool agree(const wt_shape *s, const int64_t *a, const int64_t *b) {
    for (int i = 0; i < s->rank; i++)
        if (s->sizes[i] > 1 && a[i] != b[i]) return false;
    return true;
}

/* Strides of a result: those of the input where it is dense, else dense in the order of its memory. What is
 * contiguous or channels-last gets the plain strides of that format, also along axes of one element, but from
 * hardtanh. false: too many elements. */
static bool preserve(const wt_shape *s, const int64_t *input, const int *axis, bool plainly, int64_t *strides) {
    static const int last[4] = {1, 3, 2, 0};
    bool empty = false;
    for (int a = 0; a < s->rank; a++) empty |= !s->sizes[a];
    if (!wt_dense_along(strides, s->sizes, s->rank, NULL)) return false;
    if (plainly && (empty || agree(s, input, strides))) return true;
    if (plainly && s->rank == 4) {
        wt_dense_along(strides, s->sizes, 4, last);
        if (agree(s, input, strides)) return true;
    }
    wt_dense_along(strides, s->sizes, s->rank, axis);
    if (empty || agree(s, input, strides)) memcpy(strides, input, (size_t)s->rank * sizeof(*strides));
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
    const wt_tensor *x = &call->arg[INPUT].tensor;
    if (!call->op->into || call->arg[call->op->nargs - 1].tensor.data != x->data) return true;
    for (int64_t a = 0; a < x->rank; a++)
        if (s->sizes[a] > 1 && !x->strides[a])
            return wt_fail(call, "input: is expanded along dimension %lld, allowed in place: memory for every element",
                           (long long)a);
    return true;
}

static bool run_with(wt_call *call, weft_op op, double lo, double hi) {
    wt_shape s;
    wt_rows t[2];
    wt_view v[2];
    int axis[WT_MAX_AXES];
    if (!wt_check_float(call, INPUT) || !wt_shape_of(call, INPUT, &s) || !check_in_place(call, &s) ||
        !wt_rows_of(call, INPUT, &s, true, &t[0]))
        return false;
    order(&s, t[0].strides, axis);
    if (!preserve(&s, t[0].strides, axis, op != WEFT_OP_CLIP, t[1].strides))
        return wt_fail(call, "the result has 2^63 elements or more, allowed: fewer");
    if (!wt_rows_make(call, 0, &s, t[0].code, &t[1])) return false;
    if (!wt_shape_rows(&s) || !s.sizes[0]) return true;
    if (!fold(call, &s, axis, t, v)) return false;
    weft_problem *p = wt_rows_begin(call, op, WEFT_PASS_FWD, v);
    if (op == WEFT_OP_CLIP) p->real[WEFT_CLIP_LO] = lo, p->real[WEFT_CLIP_HI] = hi;
    WT_PUT(call, {WEFT_ROLE_SRC, &v[0]}, {WEFT_ROLE_DST, &v[1]});
    return wt_rows_run(call, !call->op->into && (op != WEFT_OP_CLIP || !(s.scalar || call->cuda)), t, 2);
}

static bool run_relu(wt_call *call) { return run_with(call, WEFT_OP_RELU, 0, 0); }
WT_OPERATOR_IN_PLACE(relu, "(Tensor input) -> Tensor")

static bool run_tanh(wt_call *call) { return run_with(call, WEFT_OP_TANH, 0, 0); }
WT_OPERATOR_IN_PLACE(tanh, "(Tensor input) -> Tensor")

static bool run_sigmoid(wt_call *call) { return run_with(call, WEFT_OP_SIGMOID, 0, 0); }
WT_OPERATOR_IN_PLACE(sigmoid, "(Tensor input) -> Tensor")

/* A finite bound that the type of the data cannot hold is refused, as PyTorch does. */
static bool check_bound(wt_call *call, int at, int32_t dtype) {
    const double infinity = __builtin_inf(), value = call->arg[at].real, size = value < 0 ? -value : value;
    double most = dtype == WEFT_DTYPE_F16    ? 65504.0
                  : dtype == WEFT_DTYPE_BF16 ? 0x1.fep127
                  : dtype == WEFT_DTYPE_F32  ? 0x1.fffffep127
                                             : infinity;
    return size == infinity || size <= most ||
           wt_fail(call, "%s: is %g, allowed for %s: -%g to %g, or infinity", call->op->name[at], value,
                   wt_dtype_name(call->arg[INPUT].tensor.code), most, most);
}

static bool run_clip(wt_call *call) {
    double lo = call->arg[LO].real, hi = call->arg[HI].real;
    int32_t dtype = call->arg[INPUT].tensor.dtype;
    if (!check_bound(call, LO, dtype) || !check_bound(call, HI, dtype)) return false;
    if (!(lo <= hi)) return wt_fail(call, "lo: is %g, allowed: not above hi, %g", lo, hi);
    return run_with(call, WEFT_OP_CLIP, lo, hi);
}
WT_OPERATOR_IN_PLACE(clip, "(Tensor input, float lo, float hi) -> Tensor")

/* ---------------------------------------------------------------- ncrelu */
enum { B_GRAD, B_INPUT };

/* The shape of argument `at` with the channels along dimension 1, and that with twice as many. */
static bool read_halves(wt_call *call, int at, wt_shape *s, wt_shape *wide) {
    if (!wt_check_float(call, at) || !wt_shape_of(call, at, s)) return false;
    if (call->arg[at].tensor.rank < 2)
        return wt_fail(call, "%s: has %lld dimensions, allowed: 2 or more", call->op->name[at],
                       (long long)call->arg[at].tensor.rank);
    s->channel = 1;
    *wide = *s;
    wide->sizes[1] *= 2;
    return true;
}

/* t[at] has twice the channels; its views differ from the others' in nothing that a problem asks for. */
static bool run_halves(wt_call *call, weft_pass pass, const wt_shape *s, const wt_shape *wide, wt_rows *t, int count,
                       int at, const weft_role *roles) {
    wt_view v[3];
    bool folded = wt_rows_view(s, t, count, v);
    for (int i = 0; i < count && !folded; i++)
        if (!wt_rows_copy(call, i == at ? wide : s, &t[i])) return false;
    if (!folded && !wt_rows_view(s, t, count, v)) return wt_fail(call, "%d dimensions could not be folded", s->rank);
    wt_rows_begin(call, WEFT_OP_NCRELU, pass, v);
    for (int i = 0; i < count; i++) wt_put(call, roles[i], &v[i]);
    return wt_rows_run(call, false, t, count);
}

static bool run_ncrelu(wt_call *call) {
    static const weft_role roles[] = {WEFT_ROLE_SRC, WEFT_ROLE_DST};
    wt_shape s, wide;
    wt_rows t[2];
    if (!read_halves(call, INPUT, &s, &wide) || !wt_rows_of(call, INPUT, &s, true, &t[0]) ||
        !wt_rows_create(call, 0, &wide, true, wt_rows_last(&s, &t[0]), t[0].code, &t[1]))
        return false;
    return !wt_shape_rows(&s) || !s.sizes[1] || run_halves(call, WEFT_PASS_FWD, &s, &wide, t, 2, 1, roles);
}
WT_OPERATOR_OUT(ncrelu, "(Tensor input) -> Tensor")

static bool run_ncrelu_backward(wt_call *call) {
    static const weft_role roles[] = {WEFT_ROLE_SRC, WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_SRC};
    wt_shape s, wide;
    wt_rows t[3];
    if (!read_halves(call, B_INPUT, &s, &wide) || !wt_check_same_type(call, B_GRAD, B_INPUT) ||
        !wt_check_sizes(call, B_GRAD) || !wt_rows_of(call, B_INPUT, &s, true, &t[0]) ||
        !wt_rows_of(call, B_GRAD, &wide, true, &t[1]) ||
        !wt_rows_create(call, 0, &s, true, wt_rows_last(&s, &t[0]), t[0].code, &t[2]))
        return false;
    return !wt_shape_rows(&s) || !s.sizes[1] || run_halves(call, WEFT_PASS_BWD, &s, &wide, t, 3, 1, roles);
}
WT_OPERATOR(ncrelu_backward, "(Tensor grad_output, Tensor input) -> Tensor")
