/* dgmm and cdgmm, matrices times a diagonal, and their gradients. The last two axes of input are a matrix, all
 * before them its batch; x is the diagonal. Complex numbers are PyTorch's complex types, or pairs of real ones along
 * a last axis of 2: one memory, seen the same way. side: "right" (input . diag(x), one factor a column), "left"
 * (diag(x) . input, one a row); "" is the right one if the length of x allows it, else the left. Results are
 * contiguous. */
#include <string.h>

#include "binding.h"

#define MOST (INT64_C(1) << 40) /* the largest size of one axis of a problem */
#define AXES 64                 /* as many as PyTorch's own loops take */

typedef struct product {
    weft_op op;
    bool pair, native; /* a last axis of 2; a complex type */
    bool right;
    int64_t n, rows, cols;
    int lead; /* axes before the matrix */
} product;

/* ---------------------------------------------------------------- arguments */
static bool check_types(wt_call *call, product *m) {
    const wt_tensor *t = &ARG(input).tensor;
    m->native = m->op == WEFT_OP_CDGMM && (t->dtype == WEFT_DTYPE_C64 || t->dtype == WEFT_DTYPE_C128);
    m->pair = m->op == WEFT_OP_CDGMM && !m->native;
    if (!m->native && !wt_is_float(t->dtype))
        return wt_fail(call, "input: is %s, allowed: float32, float64, float16 or bfloat16%s", wt_dtype_name(t->code),
                       m->op == WEFT_OP_CDGMM ? " in pairs, complex64 or complex128" : "; cdgmm takes complex numbers");
    return wt_check_same_type(call, AT(x), AT(input));
}

/* So many axes and, of pairs, one more of 2. least: there may be further axes in front. */
static bool check_rank(wt_call *call, const product *m, int at, int axes, bool least) {
    const wt_tensor *t = &call->arg[at].tensor;
    int rank = axes + m->pair;
    if (t->rank > AXES || (least ? t->rank < rank : t->rank != rank))
        return wt_fail(call, "%s: has %lld dimensions, allowed: %d%s%s", call->op->name[at], (long long)t->rank, rank,
                       least ? " or more" : "", m->pair ? ", the last for the two halves of a number" : "");
    if (m->pair && t->sizes[t->rank - 1] != 2)
        return wt_fail(call,
                       "%s: has %lld elements along its last dimension, allowed: 2, the halves of a complex number",
                       call->op->name[at], (long long)t->sizes[t->rank - 1]);
    return wt_check_sizes(call, at);
}

static bool read_side(wt_call *call, product *m) {
    const char *text = ARG(side).text;
    int64_t length = ARG(x).tensor.sizes[0];
    bool fits[2] = {length == m->rows && strcmp(text, "right"), length == m->cols && strcmp(text, "left")};
    if (*text && strcmp(text, "left") && strcmp(text, "right"))
        return wt_fail(call, "side: is '%s', allowed: 'left', 'right' or '' for either", text);
    m->right = fits[1];
    if (fits[0] || fits[1]) return true;
    if (*text)
        return wt_fail(call, "x: has %lld elements, allowed with side '%s': %lld, one for each %s", (long long)length,
                       text, (long long)(*text == 'l' ? m->rows : m->cols), *text == 'l' ? "row" : "column");
    return wt_fail(call, "x: has %lld elements, allowed: %lld, one for each column, or %lld, one for each row",
                   (long long)length, (long long)m->cols, (long long)m->rows);
}

static bool read(wt_call *call, product *m) {
    m->op = call->op->op;
    if (!check_types(call, m) || !check_rank(call, m, AT(input), 2, true) || !check_rank(call, m, AT(x), 1, false))
        return false;
    const wt_tensor *t = &ARG(input).tensor;
    m->lead = (int)t->rank - 2 - m->pair;
    m->rows = t->sizes[m->lead];
    m->cols = t->sizes[m->lead + 1];
    m->n = 1;
    int64_t all = 1;
    bool fits = true;
    for (int a = 0; a < t->rank; a++) {
        if (a < m->lead) fits = !__builtin_mul_overflow(m->n, t->sizes[a], &m->n) && m->n <= MOST;
        fits = fits && !__builtin_mul_overflow(all, t->sizes[a] ? t->sizes[a] : 1, &all);
        if (!fits) return wt_fail(call, "%s: has more than 2^40 matrices or 2^63 elements, allowed: fewer", "input");
    }
    return read_side(call, m);
}

/* ---------------------------------------------------------------- tensors on the axes n h w, and 2 of complex
 * numbers */
typedef struct matrix {
    wt_view v;
    wt_handle into; /* a result whose batch is not one axis: it is computed into a copy */
} matrix;

/* The type of a number's halves. */
static int32_t part_of(const wt_tensor *t) {
    return t->dtype == WEFT_DTYPE_C64 ? WEFT_DTYPE_F32 : t->dtype == WEFT_DTYPE_C128 ? WEFT_DTYPE_F64 : t->dtype;
}

/* False: the axes before the matrix are not one by strides. */
static bool fold(const product *m, const wt_tensor *t, wt_view *v) {
    int64_t scale = m->native ? 2 : 1, step = 0, count = 1;
    for (int a = m->lead - 1; a >= 0; a--) {
        if (t->sizes[a] == 1) continue;
        if (count == 1)
            step = t->strides[a];
        else if (t->strides[a] != step * count)
            return false;
        count *= t->sizes[a];
    }
    *v = (wt_view){.handle = t->handle, .data = t->data, .dtype = part_of(t)};
    v->strides[0] = scale * step;
    v->strides[1] = scale * t->strides[m->lead];
    v->strides[2] = scale * t->strides[m->lead + 1];
    v->strides[3] = m->native ? 1 : m->pair ? t->strides[m->lead + 2] : 0;
    return true;
}

/* A contiguous tensor of that shape and type; slot -1: scratch. */
static bool make_like(wt_call *call, int slot, const wt_tensor *like, int64_t strides[AXES], wt_tensor *t) {
    *t = (wt_tensor){.rank = like->rank, .sizes = like->sizes, .strides = strides, .code = like->code};
    wt_dense_along(strides, t->sizes, t->rank, NULL); /* read() has counted the elements */
    return wt_result(call, slot, t);
}

/* The same, folded. */
static bool make(wt_call *call, const product *m, int slot, const wt_tensor *like, matrix *y) {
    int64_t strides[AXES];
    wt_tensor t;
    if (!make_like(call, slot, like, strides, &t)) return false;
    y->into = NULL;
    if (fold(m, &t, &y->v)) return true;
    if (!make(call, m, -1, like, y)) return false;
    y->into = t.handle;
    return true;
}

static bool see(wt_call *call, const product *m, int at, wt_view *v) {
    const wt_tensor *t = &call->arg[at].tensor;
    matrix copy;
    if (fold(m, t, v)) return true;
    if (!make(call, m, -1, t, &copy) || !wt_copy(call, copy.v.handle, t->handle, call->op->name[at])) return false;
    *v = copy.v;
    return true;
}

static bool run_product(wt_call *call, int64_t want, const matrix *y) {
    weft_plan *plan = wt_plan_with(call, want);
    const bool written = !y->into || wt_is_torch(plan);
    return wt_finish(call, plan, &call->args, want) && (written || wt_copy(call, y->into, y->v.handle, "out"));
}

/* x and its gradient: one axis, and 2 of complex numbers. */
static wt_view vector(const product *m, const wt_tensor *t) {
    wt_view v = {.handle = t->handle, .data = t->data, .dtype = part_of(t)};
    v.strides[0] = t->strides[0] * (m->native ? 2 : 1);
    v.strides[1] = m->native ? 1 : m->pair ? t->strides[1] : 0;
    return v;
}

static void describe(wt_call *call, const product *m, weft_pass pass) {
    weft_problem *p = &call->p;
    weft_problem_init(p, m->op, pass, 0);
    p->n = m->n;
    p->attr[WEFT_DGMM_ROWS] = m->rows;
    p->attr[WEFT_DGMM_COLS] = m->cols;
    p->attr[WEFT_DGMM_SIDE] = m->right;
}

/* ---------------------------------------------------------------- operators */
/* PyTorch's complex numbers are of 32 or 64 bits, and pairs that lie together at even places; products of 16 bits it
 * rounds before it sums them. */
static bool torch_takes(const wt_call *call, const product *m, bool sums) {
    const int32_t dtype = call->arg[0].tensor.dtype;
    bool takes = (dtype != WEFT_DTYPE_F16 && dtype != WEFT_DTYPE_BF16) || !(m->pair || sums);
    for (int i = 0; takes && m->pair && call->op->kind[i] == WT_TENSOR; i++) {
        const wt_tensor *t = &call->arg[i].tensor;
        int64_t offset = 1;
        takes = !wt.aoti_torch_get_storage_offset(t->handle, &offset) && !(offset & 1) && t->strides[t->rank - 1] == 1;
        for (int64_t a = 0; a < t->rank - 1; a++) takes = takes && !(t->strides[a] & 1);
    }
    return takes;
}

static bool is_empty(const product *m) { return !m->n || !m->rows || !m->cols; }

enum { WANT_INPUT = 1, WANT_X = 2 };

static bool check_grad(wt_call *call) {
    const wt_tensor *g = &ARG(grad_output).tensor, *t = &ARG(input).tensor;
    return wt_check_shape(call, "grad_output", g, t->rank, t->sizes, "that of input, ") &&
           wt_check_same_type(call, AT(grad_output), AT(input));
}

static bool create_vector(wt_call *call, const product *m, wt_view *v) {
    int64_t strides[AXES];
    wt_tensor t;
    if (!make_like(call, 1, &ARG(x).tensor, strides, &t)) return false;
    *v = vector(m, &t);
    return true;
}

/* want: which of the two gradients; the other result has no elements. The forward pass computes what that of input
 * does, from input instead of grad_output. */
bool wt_run_dgmm(wt_call *call) {
    static const weft_pass passes[] = {WEFT_PASS_NONE, WEFT_PASS_BWD_DATA, WEFT_PASS_BWD_WEIGHTS, WEFT_PASS_BWD};
    product m;
    matrix y = {.into = NULL};
    wt_view g, a, dx;
    const bool back = AT(want) >= 0;
    const int64_t want = back ? ARG(want).integer : WANT_INPUT;
    const int32_t code = ARG(input).tensor.code;
    if (want < 0 || want > 3) return wt_fail(call, "want: is %lld, allowed: 0 to 3", (long long)want);
    if (!read(call, &m) || (back && !check_grad(call)) ||
        !(want & WANT_INPUT ? make(call, &m, 0, &ARG(input).tensor, &y) : wt_create_vector(call, 0, &y.v, 0, code)))
        return false;
    if (back && !(want & WANT_X ? create_vector(call, &m, &dx) : wt_create_vector(call, 1, &dx, 0, code))) return false;
    if (!want) return true;
    if (is_empty(&m)) return !(want & WANT_X) || wt_zero(call, call->out[1]);
    if (!see(call, &m, back ? AT(grad_output) : AT(input), &g) || (want & WANT_X && !see(call, &m, AT(input), &a)))
        return false;
    wt_view x = vector(&m, &ARG(x).tensor);
    describe(call, &m, back ? passes[want] : WEFT_PASS_FWD);
    WT_PUT(call, {WEFT_ROLE_SRC, back ? &a : &g}, {WEFT_ROLE_WEIGHTS, &x}, {WEFT_ROLE_DST, &y.v},
           {WEFT_ROLE_DIFF_DST, &g}, {WEFT_ROLE_DIFF_SRC, &y.v}, {WEFT_ROLE_DIFF_WEIGHTS, &dx});
    return run_product(call, !torch_takes(call, &m, want & WANT_X) ? 0 : back ? want : WT_ALL, &y);
}
