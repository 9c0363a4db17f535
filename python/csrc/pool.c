/* Max, average and adaptive average pooling and their gradients. The length of kernel_size (adaptive: of
 * output_size; gradients: of input_size, which holds the spatial sizes only) says 1D, 2D or 3D; data has one axis
 * more than that, or two with a batch. A gradient pass needs the sizes of the input and its format, never the input
 * itself. */
#include <string.h>

#include "pool_peer.h"

/* ---------------------------------------------------------------- arguments */
/* The rank from list `list`, and the tensor `at` that it must fit. */
static bool begin(wt_call *call, wt_pool *g, int at, int list) {
    const wt_tensor *t = &call->arg[at].tensor;
    size_t rank = call->arg[list].list.size;
    if (rank < 1 || rank > 3)
        return wt_fail(call, "%s: has %zu values, allowed: 1 (1D), 2 (2D) or 3 (3D)", call->op->name[list], rank);
    g->rank = (int)rank;
    g->batched = t->rank == g->rank + 2;
    if (!g->batched && t->rank != g->rank + 1)
        return wt_fail(call, "%s: has %lld dimensions, allowed: %d (batched) or %d (unbatched)", call->op->name[at],
                       (long long)t->rank, g->rank + 2, g->rank + 1);
    for (int a = 0; a < 3; a++) g->in[a] = g->out[a] = g->kernel[a] = g->stride[a] = g->dilation[a] = 1, g->pad[a] = 0;
    return wt_check_float(call, at) && wt_check_sizes(call, at);
}

/* Only the batch may be empty; of adaptive pooling the channels too, but for those of a batch in 3D, as in PyTorch. */
static bool check_filled(wt_call *call, const wt_pool *g, int at, bool channels) {
    const wt_tensor *t = &call->arg[at].tensor;
    for (int64_t a = t->rank - g->rank - channels; a < t->rank; a++)
        if (!t->sizes[a])
            return wt_fail(call,
                           "%s: has 0 elements along dimension %lld, allowed: 1 or more; only the batch may be empty",
                           call->op->name[at], (long long)a);
    return true;
}

/* at: where kernel_size stands; stride, padding, perhaps dilation, and ceil_mode follow it. */
static bool read_window(wt_call *call, wt_pool *g, int at, bool dilated) {
    const int64_t most = INT64_C(1) << 40; /* as sizes: sums of a few stay far below 2^63 */
    bool ok = wt_read_axes(call, at, g->rank, 1, g->kernel, NULL) &&
              wt_read_axes(call, at + 1, g->rank, 1, g->stride, NULL) &&
              wt_read_axes(call, at + 2, g->rank, 1, g->pad, NULL) &&
              (!dilated || wt_read_axes(call, at + 3, g->rank, 1, g->dilation, NULL));
    if (!ok || !wt_check_range(call, at, g->rank, g->kernel, 1) ||
        (dilated && !wt_check_range(call, at + 3, g->rank, g->dilation, 1)))
        return false;
    for (int a = 3 - g->rank; a < 3; a++) {
        if (g->stride[a] < 1 || g->stride[a] > most)
            return wt_fail(call, "stride: is %lld along spatial axis %d, allowed: 1 to 2^40", (long long)g->stride[a],
                           a - 3 + g->rank);
        if (g->pad[a] < 0 || g->pad[a] > g->kernel[a] / 2)
            return wt_fail(call, "padding: is %lld along spatial axis %d, allowed: 0 to half of kernel_size, %lld",
                           (long long)g->pad[a], a - 3 + g->rank, (long long)(g->kernel[a] / 2));
    }
    g->up = call->arg[at + (dilated ? 4 : 3)].integer;
    return true;
}

/* out = floor((in + 2 pad - window) / stride) + 1; rounded up in ceil mode, less a last window that starts past the
 * input. */
bool wt_pool_out_size(wt_pool *g, int a) {
    int64_t window = g->dilation[a] * (g->kernel[a] - 1) + 1,
            padded = g->in[a] + 2 * g->pad[a] + (g->up ? g->stride[a] - 1 : 0);
    if (padded < window) return false;
    g->out[a] = (padded - window) / g->stride[a] + 1;
    if (g->up && (g->out[a] - 1) * g->stride[a] >= g->in[a] + g->pad[a]) g->out[a]--;
    return true;
}

/* whole: the input without padding must hold the kernel, as PyTorch asks of avg_pool3d. */
static bool out_sizes(wt_call *call, wt_pool *g, const char *name, bool whole) {
    for (int a = 3 - g->rank; a < 3; a++)
        if (!wt_pool_out_size(g, a) || (whole && g->in[a] < g->kernel[a]))
            return wt_fail(call,
                           "%s: spatial axis %d has %lld elements, too few for kernel_size %lld, stride %lld, padding "
                           "%lld, dilation %lld",
                           name, a - 3 + g->rank, (long long)g->in[a], (long long)g->kernel[a], (long long)g->stride[a],
                           (long long)g->pad[a], (long long)g->dilation[a]);
    return true;
}

/* ---------------------------------------------------------------- the problem */
void wt_pool_describe(weft_problem *p, const wt_pool *g, weft_op op, weft_pass pass, const wt_view *data) {
    p->size = sizeof(*p);
    weft_problem_init(p, op, pass, g->rank);
    p->n = data->dims[0];
    p->c = data->dims[1];
    memcpy(p->in, g->in, sizeof(p->in));
    if (op == WEFT_OP_ADAPTIVE_AVG_POOL) {
        memcpy(p->attr + WEFT_ADAPTIVE_AVG_POOL_TO, g->out, sizeof(g->out));
        return;
    }
    memcpy(p->kernel, g->kernel, sizeof(p->kernel));
    memcpy(p->stride, g->stride, sizeof(p->stride));
    memcpy(p->pad_lo, g->pad, sizeof(p->pad_lo));
    memcpy(p->pad_hi, g->pad, sizeof(p->pad_hi));
    memcpy(p->dilation, g->dilation, sizeof(p->dilation));
    p->attr[WEFT_POOL_CEIL] = g->up;
}

/* include: where count_include_pad stands; the divisor follows it, 0 for none. */
static void put_divisor(wt_call *call, weft_problem *p, int include) {
    p->attr[WEFT_AVG_POOL_INCLUDE_PAD] = call->arg[include].integer;
    p->attr[WEFT_AVG_POOL_DIVISOR] = call->arg[include + 1].integer;
}

/* dst of the sizes in g, in the format of src; also the index of max pooling, of the type `code`, where the operator
 * has one. */
typedef struct images {
    wt_view src, dst, index;
} images;

static bool create(wt_call *call, const wt_pool *g, images *v, const int32_t *code) {
    int64_t dims[5] = {v->src.dims[0], v->src.dims[1], g->out[0], g->out[1], g->out[2]};
    bool last = wt_is_last(&v->src);
    return wt_create(call, 0, &v->dst, dims, g->rank, last, g->batched, call->arg[0].tensor.code) &&
           (!code || wt_create(call, 1, &v->index, dims, g->rank, last, g->batched, *code));
}

/* ---------------------------------------------------------------- forward operators */
enum { INPUT, KERNEL, MAX_FLAT = 6, AVG_INCLUDE = 5, OUTPUT_SIZE = 1 };

/* flat: the index holds places in the image, as PyTorch counts them; else places in the window, one byte each while
 * they fit. */
static int32_t index_code(const wt_pool *g, bool flat) {
    int64_t taps = 1; /* stays below 2^60: each factor is at most 2^20 */
    for (int a = 0; a < 3; a++) taps *= g->kernel[a];
    return flat || taps > 256 ? wt.aoti_torch_dtype_int64() : wt.aoti_torch_dtype_uint8();
}

static bool see_input(wt_call *call, wt_pool *g, images *v, int list, bool adaptive) {
    if (!begin(call, g, INPUT, list) || !check_filled(call, g, INPUT, !adaptive || (g->rank == 3 && g->batched)))
        return false;
    v->src = wt_see(&call->arg[INPUT].tensor, g->rank);
    memcpy(g->in, v->src.dims + 2, sizeof(g->in));
    return true;
}

static bool run_max(wt_call *call, bool indexed) {
    wt_pool g;
    images v;
    if (!see_input(call, &g, &v, KERNEL, false) || !read_window(call, &g, KERNEL, true) ||
        !out_sizes(call, &g, "input", false))
        return false;
    int32_t code = indexed ? index_code(&g, call->arg[MAX_FLAT].integer) : 0;
    if (!create(call, &g, &v, indexed ? &code : NULL)) return false;
    if (wt_is_empty(&v.dst)) return true;
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    wt_pool_describe(&p, &g, WEFT_OP_MAX_POOL, WEFT_PASS_FWD, &v.src);
    p.attr[WEFT_MAX_POOL_INDEX] = indexed;
    wt_put(&p, &args, WEFT_ROLE_SRC, &v.src);
    wt_put(&p, &args, WEFT_ROLE_DST, &v.dst);
    if (indexed) wt_put(&p, &args, WEFT_ROLE_INDEX, &v.index);
    wt_pool_state state = {&g, &v.dst, indexed ? &v.index : NULL, NULL, 0};
    return wt_run(call, &p, &args, wt_pool_peer(call, &state, WEFT_OP_MAX_POOL), &state);
}

static bool run_max_pool(wt_call *call) { return run_max(call, false); }
WT_OPERATOR_OUT(max_pool, "max_pool(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] "
                          "dilation, bool ceil_mode) -> Tensor")

static bool run_max_pool_index(wt_call *call) { return run_max(call, true); }
WT_OPERATOR_OUT_PAIR(
    max_pool_index,
    "max_pool_index(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
    "bool ceil_mode, bool flat) -> (Tensor, Tensor)")

static bool run_mean(wt_call *call, const wt_pool *g, images *v, weft_op op) {
    if (!create(call, g, v, NULL)) return false;
    if (wt_is_empty(&v->dst)) return true;
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    wt_pool_describe(&p, g, op, WEFT_PASS_FWD, &v->src);
    if (op == WEFT_OP_AVG_POOL) put_divisor(call, &p, AVG_INCLUDE);
    wt_put(&p, &args, WEFT_ROLE_SRC, &v->src);
    wt_put(&p, &args, WEFT_ROLE_DST, &v->dst);
    wt_pool_state state = {g, &v->dst, NULL, NULL, AVG_INCLUDE};
    return wt_run(call, &p, &args, wt_pool_peer(call, &state, op), &state);
}

static bool run_avg_pool(wt_call *call) {
    wt_pool g;
    images v;
    return see_input(call, &g, &v, KERNEL, false) && read_window(call, &g, KERNEL, false) &&
           out_sizes(call, &g, "input", g.rank == 3) && run_mean(call, &g, &v, WEFT_OP_AVG_POOL);
}
WT_OPERATOR_OUT(avg_pool, "avg_pool(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool "
                          "ceil_mode, bool count_include_pad, "
                          "SymInt divisor) -> Tensor")

static bool run_adaptive_avg_pool(wt_call *call) {
    wt_pool g;
    images v;
    if (!see_input(call, &g, &v, OUTPUT_SIZE, true) || !wt_read_axes(call, OUTPUT_SIZE, g.rank, 1, g.out, NULL))
        return false;
    for (int a = 3 - g.rank; a < 3; a++)
        if (g.out[a] < 0 || g.out[a] > INT64_C(1) << 40)
            return wt_fail(call, "output_size: is %lld along spatial axis %d, allowed: 0 to 2^40", (long long)g.out[a],
                           a - 3 + g.rank);
    return run_mean(call, &g, &v, WEFT_OP_ADAPTIVE_AVG_POOL);
}
WT_OPERATOR_OUT(adaptive_avg_pool, "adaptive_avg_pool(Tensor input, SymInt[] output_size) -> Tensor")

/* ---------------------------------------------------------------- gradients */
enum { GRAD, MAX_INDEX, MAX_IN = 2, MAX_KERNEL, AVG_IN = 1, AVG_KERNEL, B_INCLUDE = 6, ADAPTIVE_IN = 1 };

typedef struct gradient {
    wt_view dy, dx, index;
} gradient;

/* grad_output and the sizes of the input, in list `in`. */
static bool see_gradient(wt_call *call, wt_pool *g, gradient *d, int in) {
    if (!begin(call, g, GRAD, in) || !wt_read_axes(call, in, g->rank, 1, g->in, NULL)) return false;
    for (int a = 3 - g->rank; a < 3; a++)
        if (g->in[a] < 1 || g->in[a] > INT64_C(1) << 40)
            return wt_fail(call, "input_size: is %lld along spatial axis %d, allowed: 1 to 2^40", (long long)g->in[a],
                           a - 3 + g->rank);
    d->dy = wt_see(&call->arg[GRAD].tensor, g->rank);
    return true;
}

/* A tensor must have the shape of the forward operator's result. */
static bool check_fits(wt_call *call, const wt_pool *g, int at, const wt_view *v, const wt_view *like) {
    for (int a = 0; a < 5; a++) {
        int64_t expected = a < 2 ? like->dims[a] : g->out[a - 2];
        if (v->dims[a] != expected)
            return wt_fail(call, "%s: its shape does not fit input_size: %lld elements where the geometry gives %lld",
                           call->op->name[at], (long long)v->dims[a], (long long)expected);
    }
    return true;
}

static bool check_index(wt_call *call, const wt_pool *g, gradient *d) {
    const wt_tensor *t = &call->arg[MAX_INDEX].tensor, *dy = &call->arg[GRAD].tensor;
    int32_t byte = wt.aoti_torch_dtype_uint8(), wide = wt.aoti_torch_dtype_int64();
    if (t->code != wide && (t->code != byte || index_code(g, false) != byte))
        return wt_fail(call, "index: is %s, allowed: int64, or uint8 where a window has at most 256 places",
                       wt_dtype_name(t->code));
    if (t->rank != dy->rank)
        return wt_fail(call, "index: has %lld dimensions, allowed: as many as grad_output, %lld", (long long)t->rank,
                       (long long)dy->rank);
    d->index = wt_see(t, g->rank);
    return check_fits(call, g, MAX_INDEX, &d->index, &d->dy);
}

/* The last argument says whether the input is channels-last, which its gradient shall be too. */
static bool run_gradient(wt_call *call, const wt_pool *g, gradient *d, weft_op op) {
    bool last = call->arg[call->op->nargs - 1].integer;
    int32_t code = call->arg[GRAD].tensor.code;
    int64_t dims[5] = {d->dy.dims[0], d->dy.dims[1], g->in[0], g->in[1], g->in[2]};
    if (!wt_create(call, 0, &d->dx, dims, g->rank, last, g->batched, code)) return false;
    if (wt_is_empty(&d->dy))
        return !wt.aoti_torch_zero_(call->out[0]) || wt_fail(call, "the gradient could not be set to 0");
    if (!wt_match_format(call, &d->dy, g->rank, last, g->batched, code, "grad_output")) return false;
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    wt_pool_describe(&p, g, op, WEFT_PASS_BWD, &d->dy);
    if (op == WEFT_OP_AVG_POOL) put_divisor(call, &p, B_INCLUDE);
    if (op == WEFT_OP_MAX_POOL) wt_put(&p, &args, WEFT_ROLE_INDEX, &d->index);
    wt_put(&p, &args, WEFT_ROLE_DIFF_DST, &d->dy);
    wt_put(&p, &args, WEFT_ROLE_DIFF_SRC, &d->dx);
    wt_pool_state state = {g, &d->dx, &d->index, &d->dy, B_INCLUDE};
    return wt_run(call, &p, &args, wt_pool_backward_peer(call, &state, op), &state);
}

static bool run_max_pool_backward(wt_call *call) {
    wt_pool g;
    gradient d;
    return see_gradient(call, &g, &d, MAX_IN) && read_window(call, &g, MAX_KERNEL, true) &&
           out_sizes(call, &g, "input_size", false) && check_fits(call, &g, GRAD, &d.dy, &d.dy) &&
           check_index(call, &g, &d) && run_gradient(call, &g, &d, WEFT_OP_MAX_POOL);
}
WT_OPERATOR(
    max_pool_backward,
    "max_pool_backward(Tensor grad_output, Tensor index, SymInt[] input_size, SymInt[] kernel_size, SymInt[] stride, "
    "SymInt[] padding, SymInt[] dilation, bool ceil_mode, bool channels_last) -> Tensor")

static bool run_avg_pool_backward(wt_call *call) {
    wt_pool g;
    gradient d;
    return see_gradient(call, &g, &d, AVG_IN) && read_window(call, &g, AVG_KERNEL, false) &&
           out_sizes(call, &g, "input_size", g.rank == 3) && check_fits(call, &g, GRAD, &d.dy, &d.dy) &&
           run_gradient(call, &g, &d, WEFT_OP_AVG_POOL);
}
WT_OPERATOR(avg_pool_backward, "avg_pool_backward(Tensor grad_output, SymInt[] input_size, SymInt[] kernel_size, "
                               "SymInt[] stride, SymInt[] padding, "
                               "bool ceil_mode, bool count_include_pad, SymInt divisor, bool channels_last) -> Tensor")

static bool run_adaptive_avg_pool_backward(wt_call *call) {
    wt_pool g;
    gradient d;
    if (!see_gradient(call, &g, &d, ADAPTIVE_IN)) return false;
    memcpy(g.out, d.dy.dims + 2, sizeof(g.out));
    return run_gradient(call, &g, &d, WEFT_OP_ADAPTIVE_AVG_POOL);
}
WT_OPERATOR(adaptive_avg_pool_backward,
            "adaptive_avg_pool_backward(Tensor grad_output, SymInt[] input_size, bool channels_last) -> Tensor")
