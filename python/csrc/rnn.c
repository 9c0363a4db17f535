/* Recurrent layers: rnn_relu, rnn_tanh, lstm, gru as torch._VF has them, but for the parameters: the weights are one
 * vector and the biases another (src/ref/rnn.h), and so are their gradients. Sequences of different lengths come
 * packed, with the number of rows of each step in batch_sizes, a tensor of the CPU. What a step leaves for the gradient
 * is the fourth result, `reserve`. */
#include <string.h>

#include "binding.h"
#include "core/internal.h"

static const struct {
    const char *torch; /* and, behind "torch_", the word of `kind` */
    weft_op op;
} kinds[] = {
    {"torch_rnn_relu", WEFT_OP_RNN_RELU},
    {"torch_rnn_tanh", WEFT_OP_RNN_TANH},
    {"torch_lstm", WEFT_OP_LSTM},
    {"torch_gru", WEFT_OP_GRU},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

typedef struct layers { /* sizes by the names of src/ref/rnn.h */
    int kind;
    bool packed, swapped; /* swapped: batch first */
    int64_t T, n, c, H, P, L, D, rows;
    int32_t code;
} layers;

/* The path that PyTorch's own layers took instead of an operator, for weft_torch_kernels(). */
WEFT_API void weft_torch_rnn_delegated(int kind) {
    wt_kernels_clear();
    if (kind >= 0 && kind < KINDS) wt_kernels_add(kinds[kind].torch);
}

/* ---------------------------------------------------------------- what was given */
static bool read_kind(wt_call *call, layers *s) {
    const char *text = ARG(kind).text;
    for (s->kind = 0; s->kind < KINDS; s->kind++)
        if (!strcmp(text, kinds[s->kind].torch + strlen("torch_"))) break;
    if (s->kind == KINDS) return wt_fail(call, "kind: is '%s', allowed: 'rnn_relu', 'rnn_tanh', 'lstm' or 'gru'", text);
    bool cell = ARG(c0).tensor.handle, lstm = kinds[s->kind].op == WEFT_OP_LSTM;
    return cell == lstm || wt_fail(call, "c0: is %s with kind '%s', allowed: %s", cell ? "given" : "None", text,
                                   lstm ? "a tensor" : "None");
}

/* Steps and sequences: of packed data, by batch_sizes, whose sum is the number of rows. */
static bool read_packed(wt_call *call, layers *s, const wt_tensor *x) {
    const wt_tensor *b = &ARG(batch_sizes).tensor;
    if (b->rank != 1 || b->dtype != WEFT_DTYPE_I64 ||
        (!call->shape && b->device_type != wt.aoti_torch_device_type_cpu()))
        return wt_fail(call, "batch_sizes: is %s of %lld dimensions, allowed: int64 of one dimension on the CPU",
                       wt_dtype_name(b->code), (long long)b->rank);
    const int64_t *sizes = b->data;
    int64_t sum = 0, last = INT64_MAX;
    s->T = b->sizes[0];
    s->rows = x->sizes[0];
    if (call->shape) {
        const wt_tensor *h = &ARG(h0).tensor;
        s->n = h->rank == 3 ? h->sizes[1] : 0;
        return true;
    }
    for (int64_t t = 0; t < s->T; t++) {
        int64_t size = sizes[t * b->strides[0]];
        if (size < 0 || size > last || size > s->rows - sum)
            return wt_fail(
                call,
                "batch_sizes: is %lld at step %lld, allowed: 0 or more, not rising, of the sum %lld, the rows of input",
                (long long)size, (long long)t, (long long)s->rows);
        sum += last = size;
        if (!t) s->n = size;
    }
    return sum == s->rows || wt_fail(call, "batch_sizes: has the sum %lld, allowed: the rows of input, %lld",
                                     (long long)sum, (long long)s->rows);
}

static bool read_input(wt_call *call, layers *s) {
    const wt_tensor *x = &ARG(input).tensor;
    int64_t rank = s->packed ? 2 : 3;
    if (!wt_check_float(call, AT(input)) || !wt_check_sizes(call, AT(input))) return false;
    if (x->rank != rank)
        return wt_fail(call, "input: has %lld dimensions, allowed: %lld", (long long)x->rank, (long long)rank);
    s->code = x->code;
    s->c = x->sizes[rank - 1];
    s->T = s->n = 0;
    if (s->packed && !read_packed(call, s, x)) return false;
    if (!s->packed) s->T = x->sizes[s->swapped], s->n = x->sizes[!s->swapped];
    if (s->T < 1 || s->T > (1 << 24))
        return wt_fail(call, "input: has %lld steps, allowed: 1 to 2^24", (long long)s->T);
    if (!s->packed && __builtin_mul_overflow(s->T, s->n, &s->rows))
        return wt_fail(call, "input: has more rows than 2^63");
    return true;
}

/* The hidden size is that of the states: of c0 where there is one, which h0 falls short of only if it is projected. */
static bool read_states(wt_call *call, layers *s) {
    const wt_tensor *h = &ARG(h0).tensor, *c = &ARG(c0).tensor;
    const wt_tensor *wide = c->handle ? c : h;
    s->L = ARG(num_layers).integer;
    s->D = 1 + (ARG(bidirectional).integer != 0);
    if (s->L < 1 || s->L > 1024) return wt_fail(call, "num_layers: is %lld, allowed: 1 to 1024", (long long)s->L);
    s->P = h->rank ? h->sizes[h->rank - 1] : 0;
    s->H = wide->rank ? wide->sizes[wide->rank - 1] : 0;
    if (h->rank == 3 && wide->rank == 3 && (s->H < 1 || s->H > (1 << 20) || s->P < 1 || s->P > s->H))
        return wt_fail(
            call,
            "h0: has %lld units beside a hidden size of %lld, allowed: 1 to the hidden size, which is at most 2^20",
            (long long)s->P, (long long)s->H);
    return true;
}

/* ---------------------------------------------------------------- the problem */
static void begin(wt_call *call, const layers *s, weft_pass pass, bool keep) {
    weft_problem *p = &call->p;
    weft_problem_init(p, kinds[s->kind].op, pass, 0);
    p->n = s->n;
    p->c = s->c;
    p->o = s->H;
    p->attr[WEFT_RNN_STEPS] = s->T;
    p->attr[WEFT_RNN_LAYERS] = s->L;
    p->attr[WEFT_RNN_BIDIRECTIONAL] = s->D - 1;
    p->attr[WEFT_RNN_PROJECTION] = s->P != s->H ? s->P : 0;
    p->attr[WEFT_RNN_BIAS] = ARG(biases).tensor.handle != NULL;
    p->attr[WEFT_RNN_STATE] = 1;
    p->attr[WEFT_RNN_ROWS] = s->packed ? s->rows + !s->rows : 0; /* without rows nothing is run */
    p->attr[WEFT_RNN_TRAIN] = keep;
    p->attr[WEFT_RNN_SEED] = ARG(dropout).real > 0 ? ARG(seed).integer : 0;
    p->real[WEFT_RNN_DROPOUT] = ARG(dropout).real;
}

static bool takes_part(const wt_call *call, weft_role role) { return weft__roles(&call->p) & WEFT__BIT(role); }

static bool is_rows(weft_role role) {
    return role == WEFT_ROLE_SRC || role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_DST;
}

/* The sizes of a role's tensor as the caller sees them; how many. */
static int sizes_of(const wt_call *call, const layers *s, weft_role role, int64_t sizes[3]) {
    weft_tensor t = {.role = (int16_t)role};
    weft__op_of(call->p.op)->shape(&call->p, role, &t);
    const bool swaps = s->swapped && is_rows(role);
    for (int a = 0; a < 3; a++) sizes[a] = t.dims[swaps && a < 2 ? 1 - a : a];
    if (!s->rows && s->packed && (is_rows(role) || role == WEFT_ROLE_RESERVE)) sizes[0] = 0;
    return t.rank;
}

/* The shape of its role, and the type of input; of parameters, their number. */
static bool check_tensor(wt_call *call, const layers *s, weft_role role, int at) {
    int64_t sizes[3];
    const int rank = sizes_of(call, s, role, sizes);
    return (role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_BIAS
                ? wt_check_length(call, at, sizes[0], "the parameters of the layers")
                : wt_check_shape(call, call->op->name[at], &call->arg[at].tensor, rank, sizes, "")) &&
           wt_check_same_type(call, at, AT(input));
}

/* The arguments that both operators have; begins the problem. keep: it has a reserve. */
static bool read_layers(wt_call *call, layers *s, weft_pass pass, bool keep) {
    const double drop = ARG(dropout).real;
    s->packed = ARG(batch_sizes).tensor.handle;
    s->swapped = !s->packed && ARG(batch_first).integer;
    if (!(drop >= 0 && drop <= 1)) return wt_fail(call, "dropout: is %g, allowed: 0 to 1", drop);
    if (!read_kind(call, s) || !read_input(call, s) || !read_states(call, s)) return false;
    const double rows = (double)s->rows + 1, H = (double)s->H, layers = (double)s->L * (double)s->D;
    if (rows * layers * 10 * H > 0x1p58 || 8 * H * ((double)s->c + 2 * H) * (double)s->L > 0x1p58)
        return wt_fail(call, "input: its states or weights have more than 2^58 elements, allowed: fewer");
    begin(call, s, pass, keep);
    return check_tensor(call, s, WEFT_ROLE_H0, AT(h0)) &&
           (!ARG(c0).tensor.handle || check_tensor(call, s, WEFT_ROLE_C0, AT(c0))) &&
           check_tensor(call, s, WEFT_ROLE_WEIGHTS, AT(weights)) &&
           (!ARG(biases).tensor.handle || check_tensor(call, s, WEFT_ROLE_BIAS, AT(biases)));
}

/* Rows in the problem's order: step, sequence, unit; packed: row, unit. A state is as it is. */
static void put(wt_call *call, weft_role role, const layers *s, const wt_tensor *t) {
    wt_view v = {t->handle, t->data, t->dtype, {0}, {0}};
    const bool swaps = s->swapped && is_rows(role);
    for (int64_t a = 0; a < t->rank; a++) v.strides[swaps && a < 2 ? 1 - a : a] = t->strides[a];
    if (t->rank == 1) v = wt_see_vector(t);
    wt_put(call, role, &v);
}

/* The result of a role, put there; one that takes no part has no elements. Its last axis is nearest, and of the others
 * the last is nearer; of rows the sequence, as PyTorch leaves them, batch first or not. */
static bool make(wt_call *call, weft_role role, const layers *s, int slot, int32_t code) {
    static const int order[] = {2, 0, 1};
    int64_t sizes[3] = {0}, strides[3] = {1};
    wt_tensor t = {.rank = 1, .sizes = sizes, .strides = strides, .code = code};
    const bool there = takes_part(call, role);
    if (there) t.rank = sizes_of(call, s, role, sizes);
    /* read_layers has counted the elements */
    wt_dense_along(strides, sizes, t.rank, s->swapped && is_rows(role) ? order : NULL);
    if (!wt_result(call, slot, &t)) return false;
    if (there) put(call, role, s, &t);
    return true;
}

/* Where the rows of each step begin, and the end of the last, on the call's device. */
static bool put_offsets(wt_call *call, const layers *s) {
    if (!s->packed) return true;
    const wt_tensor *b = &ARG(batch_sizes).tensor;
    const int64_t length = s->T + 1, unit = 1, *sizes = b->data;
    wt_tensor there = {.rank = 1, .sizes = &length, .strides = &unit, .code = wt.aoti_torch_dtype_int64()},
              host = there;
    if (!wt_scratch(call, &there)) return false;
    if (call->cuda && !wt_new(&host, b, &host.handle)) return wt_no_room(call, &host);
    int64_t *offsets = call->cuda ? host.data : there.data;
    offsets[0] = 0;
    for (int64_t t = 0; t < s->T; t++) offsets[t + 1] = offsets[t] + sizes[t * b->strides[0]];
    bool ok = !call->cuda || wt_copy(call, there.handle, host.handle, "batch_sizes");
    if (call->cuda) wt.aoti_torch_delete_tensor_object(host.handle);
    wt_view v = wt_see_vector(&there);
    wt_put(call, WEFT_ROLE_LENGTHS, &v);
    return ok;
}

static bool put_given(wt_call *call, const layers *s) {
    const struct {
        weft_role role;
        int at;
    } given[] = {{WEFT_ROLE_SRC, AT(input)},
                 {WEFT_ROLE_H0, AT(h0)},
                 {WEFT_ROLE_C0, AT(c0)},
                 {WEFT_ROLE_WEIGHTS, AT(weights)},
                 {WEFT_ROLE_BIAS, AT(biases)}};
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
        if (takes_part(call, given[i].role)) put(call, given[i].role, s, &call->arg[given[i].at].tensor);
    return put_offsets(call, s);
}

/* ---------------------------------------------------------------- forward */
/* Dropout needs the records of a step's kept states, even where nobody wants them afterwards: then they are scratch. */
bool wt_run_rnn_forward(wt_call *call) {
    layers s;
    const bool keep = ARG(keep).integer, drops = ARG(dropout).real > 0;
    if (!read_layers(call, &s, WEFT_PASS_FWD, keep || drops)) return false;
    const int32_t wide = wt_wide_code(s.code);
    wt_view none;
    if (!make(call, WEFT_ROLE_DST, &s, 0, s.code) || !make(call, WEFT_ROLE_HN, &s, 1, s.code) ||
        !make(call, WEFT_ROLE_CN, &s, 2, s.code) || !make(call, WEFT_ROLE_RESERVE, &s, drops && !keep ? -1 : 3, wide) ||
        (drops && !keep && !wt_create_vector(call, 3, &none, 0, wide)))
        return false;
    return !s.rows || call->shape || (put_given(call, &s) && wt_run(call, false));
}

/* ---------------------------------------------------------------- backward */
/* The gradient of a result; one that nobody used is one row of zeros, seen at every place. */
static bool put_gradient(wt_call *call, weft_role role, const layers *s, int at) {
    const wt_tensor *g = &call->arg[at].tensor;
    int64_t sizes[3];
    const int rank = sizes_of(call, s, role, sizes);
    const int64_t unit = 1, strides[3] = {0, rank == 2, 1};
    wt_tensor zero = {.rank = 1, .sizes = &sizes[rank - 1], .strides = &unit, .code = s->code};
    if (!takes_part(call, role)) return !g->handle || wt_fail(call, "grad_cn: is given without c0, allowed: None");
    if (g->handle ? !check_tensor(call, s, role, at) : !wt_scratch(call, &zero) || !wt_zero(call, zero.handle))
        return false;
    zero.rank = rank, zero.strides = strides;
    put(call, role, s, g->handle ? g : &zero);
    return true;
}

static bool put_reserve(wt_call *call, const layers *s) {
    const wt_tensor *r = &ARG(reserve).tensor;
    const int32_t code = wt_wide_code(s->code);
    int64_t sizes[3];
    const int rank = sizes_of(call, s, WEFT_ROLE_RESERVE, sizes);
    if (!wt_check_shape(call, "reserve", r, rank, sizes, "")) return false;
    put(call, WEFT_ROLE_RESERVE, s, r);
    return r->code == code || wt_fail(call, "reserve: is %s, allowed: %s", wt_dtype_name(r->code), wt_dtype_name(code));
}

bool wt_run_rnn_backward(wt_call *call) {
    static const weft_role made[] = {WEFT_ROLE_DIFF_SRC, WEFT_ROLE_DIFF_H0, WEFT_ROLE_DIFF_C0, WEFT_ROLE_DIFF_WEIGHTS,
                                     WEFT_ROLE_DIFF_BIAS};
    enum { MADE = sizeof(made) / sizeof(made[0]) };
    layers s;
    if (!read_layers(call, &s, WEFT_PASS_BWD, true) || !put_gradient(call, WEFT_ROLE_DIFF_CN, &s, AT(grad_cn)) ||
        !put_gradient(call, WEFT_ROLE_DIFF_DST, &s, AT(grad_output)) ||
        !put_gradient(call, WEFT_ROLE_DIFF_HN, &s, AT(grad_hn)) || !put_reserve(call, &s))
        return false;
    for (int i = 0; i < MADE; i++)
        if (!make(call, made[i], &s, i, s.code)) return false;
    for (int i = 0; !s.rows && i < MADE; i++) /* the gradients of nothing */
        if (!wt_zero(call, call->out[i])) return false;
    return !s.rows || call->shape || (put_given(call, &s) && wt_run(call, false));
}
