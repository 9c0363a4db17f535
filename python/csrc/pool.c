/* Max, average and adaptive average pooling and their gradients. The length of kernel_size (adaptive: of
 * output_size; gradients: of input_size, which holds the spatial sizes only) says 1D, 2D or 3D; data has one axis
 * more than that, or two with a batch. A gradient pass needs the sizes of the input and its format, never the input
 * itself. */
#include <string.h>

#include "binding.h"

typedef struct pooling {
    wt_geometry w;
    weft_op op;
    bool back, last;            /* last: the result is channels-last */
    wt_view given, made, index; /* src and dst, or diff_dst and diff_src */
} pooling;

/* ---------------------------------------------------------------- arguments */
static bool read_window(wt_call *call, wt_geometry *g) {
    if (!wt_window_read(call, g)) return false;
    for (int a = 3 - g->rank; a < 3; a++)
        if (g->pad_lo[a] < 0 || g->pad_lo[a] > g->kernel[a] / 2)
            return wt_fail(call, "padding: is %lld along spatial axis %d, allowed: 0 to half of kernel_size, %lld",
                           (long long)g->pad_lo[a], a - 3 + g->rank, (long long)(g->kernel[a] / 2));
    return true;
}

/* Input or grad_output, and the sizes of the input. */
static bool read_data(wt_call *call, pooling *q) {
    const wt_tensor *t = &call->arg[0].tensor;
    const bool adaptive = q->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    wt_geometry *g = &q->w;
    const int list = q->back ? AT(input_size) : adaptive ? AT(output_size) : AT(kernel_size);
    if (!wt_window_begin(call, g, list) || !wt_window_rank(call, g, 0, g->rank + 1)) return false;
    q->given = wt_see(t, g->rank);
    q->last = q->back ? ARG(channels_last).integer : wt_is_last(&q->given);
    if (q->back) return wt_read_axes(call, AT(input_size), g->rank, 1, 40, g->in, NULL);
    memcpy(g->in, q->given.dims + 2, sizeof(g->in));
    /* of adaptive pooling the channels may be empty too, but for those of a batch in 3D, as in PyTorch */
    return wt_window_filled(call, 0, t->rank - g->rank - (!adaptive || (g->rank == 3 && g->batched)));
}

/* A tensor must have the shape of the forward operator's result. */
static bool check_fits(wt_call *call, const pooling *q, int at, const wt_view *v) {
    for (int a = 0; a < 5; a++) {
        int64_t expected = a < 2 ? q->given.dims[a] : q->w.out[a - 2];
        if (v->dims[a] != expected)
            return wt_fail(call, "%s: its shape does not fit input_size: %lld elements where the geometry gives %lld",
                           call->op->name[at], (long long)v->dims[a], (long long)expected);
    }
    return true;
}

static bool read_pooling(wt_call *call, pooling *q) {
    wt_geometry *g = &q->w;
    if (!read_data(call, q)) return false;
    if (q->op != WEFT_OP_ADAPTIVE_AVG_POOL)
        return read_window(call, g) &&
               wt_window_sizes(call, g, q->back ? "input_size" : "input", q->op == WEFT_OP_AVG_POOL && g->rank == 3) &&
               (!q->back || check_fits(call, q, 0, &q->given));
    if (!q->back) return wt_read_axes(call, AT(output_size), g->rank, 0, 40, g->out, NULL);
    memcpy(g->out, q->given.dims + 2, sizeof(g->out));
    return true;
}

/* ---------------------------------------------------------------- the index of max pooling */
/* flat: it holds places in the image, as PyTorch counts them; else places in the window, one byte each while they fit.
 */
static int32_t index_code(const wt_geometry *g, bool flat) {
    int64_t taps = 1; /* stays below 2^60: each factor is at most 2^20 */
    for (int a = 0; a < 3; a++) taps *= g->kernel[a];
    return flat || taps > 256 ? wt.aoti_torch_dtype_int64() : wt.aoti_torch_dtype_uint8();
}

static bool read_index(wt_call *call, pooling *q) {
    const wt_tensor *t = &ARG(index).tensor, *dy = &ARG(grad_output).tensor;
    int32_t byte = wt.aoti_torch_dtype_uint8(), wide = wt.aoti_torch_dtype_int64();
    if (t->code != wide && (t->code != byte || index_code(&q->w, false) != byte))
        return wt_fail(call, "index: is %s, allowed: int64, or uint8 where a window has at most 256 places",
                       wt_dtype_name(t->code));
    if (t->rank != dy->rank)
        return wt_fail(call, "index: has %lld dimensions, allowed: as many as grad_output, %lld", (long long)t->rank,
                       (long long)dy->rank);
    q->index = wt_see(t, q->w.rank);
    return check_fits(call, q, AT(index), &q->index);
}

/* ---------------------------------------------------------------- PyTorch's own
 * It has 2D and 3D, and rejects some strides: those of dense data, channels-first or in a batch channels-last, it
 * takes. On the CPU it has kernels for 16 bits in some of them only, and sums in 16 bits in others. The byte index is
 * weft's alone. On CUDA some of PyTorch's gradients add in an order that changes from run to run, and its mean over
 * windows is wrong for channels-last data (2.11: off by as much as the gradient itself): those are never called. */
static bool torch_takes(const wt_call *call, const pooling *q, bool indexed) {
    const wt_geometry *g = &q->w;
    const int32_t dtype = q->given.dtype;
    const bool last = wt_is_last(&q->given), to_one = g->out[0] == 1 && g->out[1] == 1 && g->out[2] == 1;
    if (g->rank == 1 || !wt_is_dense(&q->given, last) || (last && !g->batched)) return false;
    if (!call->cuda && dtype != WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_F64) return false;
    if (indexed && q->index.dtype != WEFT_DTYPE_I64) return false;
    return !q->back || !call->cuda || (!q->last && g->rank == 2 && (q->op == WEFT_OP_AVG_POOL || to_one) && !indexed);
}

/* ---------------------------------------------------------------- all of them */
bool wt_run_pool(wt_call *call) {
    const bool back = call->op->pass == WEFT_PASS_BWD, indexed = AT(flat) >= 0 || AT(index) >= 0;
    const int32_t code = call->arg[0].tensor.code;
    pooling q = {.op = call->op->op, .back = back};
    const wt_geometry *g = &q.w;
    if (!read_pooling(call, &q) || (back && indexed && !read_index(call, &q))) return false;
    const int64_t *to = back ? g->in : g->out, dims[5] = {q.given.dims[0], q.given.dims[1], to[0], to[1], to[2]};
    if (!wt_create(call, 0, &q.made, dims, g->rank, q.last, g->batched, code)) return false;
    if (!back && indexed &&
        !wt_create(call, 1, &q.index, dims, g->rank, q.last, g->batched, index_code(g, ARG(flat).integer)))
        return false;
    if (wt_is_empty(back ? &q.given : &q.made)) return !back || wt_zero(call, call->out[0]);
    if (back && !wt_match_format(call, &q.given, g->rank, q.last, g->batched, code, "grad_output")) return false;
    weft_problem *p = wt_begin_with(&call->p, q.op, call->op->pass, g, dims[0], dims[1]);
    if (q.op == WEFT_OP_MAX_POOL) p->attr[WEFT_MAX_POOL_INDEX] = indexed;
    if (q.op == WEFT_OP_AVG_POOL) {
        p->attr[WEFT_AVG_POOL_INCLUDE_PAD] = ARG(count_include_pad).integer;
        p->attr[WEFT_AVG_POOL_DIVISOR] = ARG(divisor).integer;
    }
    WT_PUT(call, {WEFT_ROLE_SRC, &q.given}, {WEFT_ROLE_DIFF_DST, &q.given}, {WEFT_ROLE_DST, &q.made},
           {WEFT_ROLE_DIFF_SRC, &q.made}, {WEFT_ROLE_INDEX, &q.index});
    return wt_run(call, torch_takes(call, &q, indexed));
}
