/* Max, average and adaptive average pooling and their gradients. The length of kernel_size (adaptive: of
 * output_size; gradients: of input_size, which holds the spatial sizes only) says 1D, 2D or 3D; data has one axis
 * more than that, or two with a batch. A gradient pass needs the sizes of the input and its format, never the input
 * itself. */
#include <string.h>

#include "binding.h"

/* ---------------------------------------------------------------- arguments */
/* The rank from list `list`, and the tensor `at` that it must fit. */
static bool begin(wt_call *call, wt_window *g, int at, int list) {
    return wt_window_begin(call, g, list) && wt_window_rank(call, g, at, g->rank + 1);
}

/* ceil_mode follows the window. */
static bool read_window(wt_call *call, wt_window *g, int at, bool dilated) {
    if (!wt_window_read(call, g, at, dilated)) return false;
    for (int a = 3 - g->rank; a < 3; a++)
        if (g->pad[a] < 0 || g->pad[a] > g->kernel[a] / 2)
            return wt_fail(call, "padding: is %lld along spatial axis %d, allowed: 0 to half of kernel_size, %lld",
                           (long long)g->pad[a], a - 3 + g->rank, (long long)(g->kernel[a] / 2));
    g->up = call->arg[at + (dilated ? 4 : 3)].integer;
    return true;
}

/* ---------------------------------------------------------------- the problem */
/* include: where count_include_pad stands; the divisor follows it, 0 for none. */
static void put_divisor(wt_call *call, int include) {
    weft_problem *p = &call->p;
    p->attr[WEFT_AVG_POOL_INCLUDE_PAD] = call->arg[include].integer;
    p->attr[WEFT_AVG_POOL_DIVISOR] = call->arg[include + 1].integer;
}

/* dst of the sizes in g, in the format of src; also the index of max pooling, of the type `code`, where the operator
 * has one. */
typedef struct images {
    wt_view src, dst, index;
} images;

static bool create(wt_call *call, const wt_window *g, images *v, const int32_t *code) {
    int64_t dims[5] = {v->src.dims[0], v->src.dims[1], g->out[0], g->out[1], g->out[2]};
    bool last = wt_is_last(&v->src);
    return wt_create(call, 0, &v->dst, dims, g->rank, last, g->batched, call->arg[0].tensor.code) &&
           (!code || wt_create(call, 1, &v->index, dims, g->rank, last, g->batched, *code));
}

/* ---------------------------------------------------------------- PyTorch's own
 * It has 2D and 3D, and rejects some strides: those of dense data, channels-first or in a batch channels-last, it
 * takes. On the CPU it has kernels for 16 bits in some of them only, and sums in 16 bits in others. */
static bool torch_takes(const wt_call *call, const wt_window *g, const wt_view *v) {
    const int32_t dtype = call->arg[0].tensor.dtype;
    const bool last = wt_is_last(v);
    return g->rank > 1 && wt_is_dense(v, last) && (g->batched || !last) &&
           (call->cuda || dtype == WEFT_DTYPE_F32 || dtype == WEFT_DTYPE_F64);
}

/* ---------------------------------------------------------------- forward operators */
enum { INPUT, KERNEL, MAX_FLAT = 6, AVG_INCLUDE = 5, OUTPUT_SIZE = 1 };

/* flat: the index holds places in the image, as PyTorch counts them; else places in the window, one byte each while
 * they fit. */
static int32_t index_code(const wt_window *g, bool flat) {
    int64_t taps = 1; /* stays below 2^60: each factor is at most 2^20 */
    for (int a = 0; a < 3; a++) taps *= g->kernel[a];
    return flat || taps > 256 ? wt.aoti_torch_dtype_int64() : wt.aoti_torch_dtype_uint8();
}

static bool see_input(wt_call *call, wt_window *g, images *v, int list, bool adaptive) {
    /* of adaptive pooling the channels may be empty too, but for those of a batch in 3D, as in PyTorch */
    if (!begin(call, g, INPUT, list)) return false;
    int64_t channels = !adaptive || (g->rank == 3 && g->batched);
    if (!wt_window_filled(call, INPUT, call->arg[INPUT].tensor.rank - g->rank - channels)) return false;
    v->src = wt_see(&call->arg[INPUT].tensor, g->rank);
    memcpy(g->in, v->src.dims + 2, sizeof(g->in));
    return true;
}

static bool run_max(wt_call *call, bool indexed) {
    wt_window g;
    images v;
    if (!see_input(call, &g, &v, KERNEL, false) || !read_window(call, &g, KERNEL, true) ||
        !wt_window_sizes(call, &g, "input", false))
        return false;
    int32_t code = indexed ? index_code(&g, call->arg[MAX_FLAT].integer) : 0;
    if (!create(call, &g, &v, indexed ? &code : NULL)) return false;
    if (wt_is_empty(&v.dst)) return true;
    wt_window_describe(&call->p, &g, WEFT_OP_MAX_POOL, WEFT_PASS_FWD, v.src.dims[0], v.src.dims[1]);
    call->p.attr[WEFT_MAX_POOL_INDEX] = indexed;
    WT_PUT(call, {WEFT_ROLE_SRC, &v.src}, {WEFT_ROLE_DST, &v.dst});
    if (indexed) wt_put(call, WEFT_ROLE_INDEX, &v.index);
    /* the byte index is weft's alone */
    return wt_run(call, torch_takes(call, &g, &v.src) && (!indexed || v.index.dtype == WEFT_DTYPE_I64));
}

static bool run_max_pool(wt_call *call) { return run_max(call, false); }
WT_OPERATOR_OUT(max_pool, "(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] dilation, "
                          "bool ceil_mode) -> Tensor")

static bool run_max_pool_index(wt_call *call) { return run_max(call, true); }
WT_OPERATOR_OUT_PAIR(max_pool_index, "(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] "
                                     "dilation, bool ceil_mode, bool flat) -> (Tensor, Tensor)")

static bool run_mean(wt_call *call, const wt_window *g, images *v, weft_op op) {
    if (!create(call, g, v, NULL)) return false;
    if (wt_is_empty(&v->dst)) return true;
    wt_window_describe(&call->p, g, op, WEFT_PASS_FWD, v->src.dims[0], v->src.dims[1]);
    if (op == WEFT_OP_AVG_POOL) put_divisor(call, AVG_INCLUDE);
    WT_PUT(call, {WEFT_ROLE_SRC, &v->src}, {WEFT_ROLE_DST, &v->dst});
    return wt_run(call, torch_takes(call, g, &v->src));
}

static bool run_avg_pool(wt_call *call) {
    wt_window g;
    images v;
    return see_input(call, &g, &v, KERNEL, false) && read_window(call, &g, KERNEL, false) &&
           wt_window_sizes(call, &g, "input", g.rank == 3) && run_mean(call, &g, &v, WEFT_OP_AVG_POOL);
}
WT_OPERATOR_OUT(avg_pool, "(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool ceil_mode, "
                          "bool count_include_pad, SymInt divisor) -> Tensor")

static bool run_adaptive_avg_pool(wt_call *call) {
    wt_window g;
    images v;
    if (!see_input(call, &g, &v, OUTPUT_SIZE, true) || !wt_read_axes(call, OUTPUT_SIZE, g.rank, 1, g.out, NULL))
        return false;
    if (!wt_window_size(call, &g, "output_size", g.out, 0)) return false;
    return run_mean(call, &g, &v, WEFT_OP_ADAPTIVE_AVG_POOL);
}
WT_OPERATOR_OUT(adaptive_avg_pool, "(Tensor input, SymInt[] output_size) -> Tensor")

/* ---------------------------------------------------------------- gradients */
enum { GRAD, MAX_INDEX, MAX_IN = 2, MAX_KERNEL, AVG_IN = 1, AVG_KERNEL, B_INCLUDE = 6, ADAPTIVE_IN = 1 };

typedef struct gradient {
    wt_view dy, dx, index;
} gradient;

/* grad_output and the sizes of the input, in list `in`. */
static bool see_gradient(wt_call *call, wt_window *g, gradient *d, int in) {
    if (!begin(call, g, GRAD, in) || !wt_read_axes(call, in, g->rank, 1, g->in, NULL)) return false;
    if (!wt_window_size(call, g, "input_size", g->in, 1)) return false;
    d->dy = wt_see(&call->arg[GRAD].tensor, g->rank);
    return true;
}

/* A tensor must have the shape of the forward operator's result. */
static bool check_fits(wt_call *call, const wt_window *g, int at, const wt_view *v, const wt_view *like) {
    for (int a = 0; a < 5; a++) {
        int64_t expected = a < 2 ? like->dims[a] : g->out[a - 2];
        if (v->dims[a] != expected)
            return wt_fail(call, "%s: its shape does not fit input_size: %lld elements where the geometry gives %lld",
                           call->op->name[at], (long long)v->dims[a], (long long)expected);
    }
    return true;
}

static bool check_index(wt_call *call, const wt_window *g, gradient *d) {
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

/* On CUDA some of PyTorch's gradients add in an order that changes from run to run, and its mean over windows is wrong
 * for channels-last data (2.11: off by as much as the gradient itself): those are never called. */
static bool torch_takes_gradient(const wt_call *call, const wt_window *g, const gradient *d, weft_op op, bool last) {
    const bool to_one = g->out[0] == 1 && g->out[1] == 1 && g->out[2] == 1;
    if (op == WEFT_OP_MAX_POOL) return !call->cuda && d->index.dtype == WEFT_DTYPE_I64;
    return !call->cuda || (!last && g->rank == 2 && (op == WEFT_OP_AVG_POOL || to_one));
}

/* The last argument says whether the input is channels-last, which its gradient shall be too. */
static bool run_gradient(wt_call *call, const wt_window *g, gradient *d, weft_op op) {
    bool last = call->arg[call->op->nargs - 1].integer;
    int32_t code = call->arg[GRAD].tensor.code;
    int64_t dims[5] = {d->dy.dims[0], d->dy.dims[1], g->in[0], g->in[1], g->in[2]};
    if (!wt_create(call, 0, &d->dx, dims, g->rank, last, g->batched, code)) return false;
    if (wt_is_empty(&d->dy)) return wt_zero(call, call->out[0]);
    if (!wt_match_format(call, &d->dy, g->rank, last, g->batched, code, "grad_output")) return false;
    wt_window_describe(&call->p, g, op, WEFT_PASS_BWD, d->dy.dims[0], d->dy.dims[1]);
    if (op == WEFT_OP_AVG_POOL) put_divisor(call, B_INCLUDE);
    if (op == WEFT_OP_MAX_POOL) wt_put(call, WEFT_ROLE_INDEX, &d->index);
    WT_PUT(call, {WEFT_ROLE_DIFF_DST, &d->dy}, {WEFT_ROLE_DIFF_SRC, &d->dx});
    return wt_run(call, torch_takes(call, g, &d->dy) && torch_takes_gradient(call, g, d, op, last));
}

static bool run_max_pool_backward(wt_call *call) {
    wt_window g;
    gradient d;
    return see_gradient(call, &g, &d, MAX_IN) && read_window(call, &g, MAX_KERNEL, true) &&
           wt_window_sizes(call, &g, "input_size", false) && check_fits(call, &g, GRAD, &d.dy, &d.dy) &&
           check_index(call, &g, &d) && run_gradient(call, &g, &d, WEFT_OP_MAX_POOL);
}
WT_OPERATOR(max_pool_backward,
            "(Tensor grad_output, Tensor index, SymInt[] input_size, SymInt[] kernel_size, SymInt[] stride, SymInt[] "
            "padding, SymInt[] dilation, bool ceil_mode, bool channels_last) -> Tensor")

static bool run_avg_pool_backward(wt_call *call) {
    wt_window g;
    gradient d;
    return see_gradient(call, &g, &d, AVG_IN) && read_window(call, &g, AVG_KERNEL, false) &&
           wt_window_sizes(call, &g, "input_size", g.rank == 3) && check_fits(call, &g, GRAD, &d.dy, &d.dy) &&
           run_gradient(call, &g, &d, WEFT_OP_AVG_POOL);
}
WT_OPERATOR(avg_pool_backward,
            "(Tensor grad_output, SymInt[] input_size, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, bool "
            "ceil_mode, bool count_include_pad, SymInt divisor, bool channels_last) -> Tensor")

static bool run_adaptive_avg_pool_backward(wt_call *call) {
    wt_window g;
    gradient d;
    if (!see_gradient(call, &g, &d, ADAPTIVE_IN)) return false;
    memcpy(g.out, d.dy.dims + 2, sizeof(g.out));
    return run_gradient(call, &g, &d, WEFT_OP_ADAPTIVE_AVG_POOL);
}
WT_OPERATOR(adaptive_avg_pool_backward, "(Tensor grad_output, SymInt[] input_size, bool channels_last) -> Tensor")
