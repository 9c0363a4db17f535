/* Convolution with sparse weights and its gradients; building the weights' CSR form in host memory. `shape` is that
 * of the dense weights: output channels, input channels of a group, kernel. Columns are plain, so that they do not
 * depend on the size of input. What is in rows and cols is checked where they are made (sparse_build,
 * sparse_positions): kernels stay in bounds whatever it is. */
#include <string.h>

#include "binding.h"
#include "core/internal.h"

typedef struct sparse {
    wt_gradients d; /* first: the passes of gradients are planned from it; d.w holds the values */
    wt_view dense;  /* the dims of the dense weights */
} sparse;

/* ---------------------------------------------------------------- arguments */
static bool read_shape(wt_call *call, int *rank, wt_view *w) {
    const wt_list *list = &ARG(shape).list;
    if (list->size < 3 || list->size > 5)
        return wt_fail(call,
                       "shape: has %zu values, allowed: 3 to 5 (output channels, input channels of a group, kernel)",
                       list->size);
    *rank = (int)list->size - 2;
    *w = (wt_view){.dims = {1, 1, 1, 1, 1}};
    for (size_t i = 0; i < list->size; i++) {
        int64_t size = list->item[i];
        if (size < 1 || size > INT64_C(1) << 40)
            return wt_fail(call, "shape: value %zu is %lld, allowed: 1 to 2^40", i, (long long)size);
        w->dims[i < 2 ? i : i + 3 - (size_t)*rank] = size;
    }
    return true;
}

static bool check_index(wt_call *call, int at) {
    const wt_tensor *t = &call->arg[at].tensor;
    return t->dtype == WEFT_DTYPE_I32 || t->dtype == WEFT_DTYPE_I64 ||
           wt_fail(call, "%s: is %s, allowed: int32 or int64", call->op->name[at], wt_dtype_name(t->code));
}

static bool check_csr(wt_call *call, int64_t outputs, int64_t nnz) {
    return check_index(call, AT(rows)) && check_index(call, AT(cols)) &&
           wt_check_length(call, AT(rows), outputs + 1, "one more than the output channels") &&
           wt_check_length(call, AT(cols), nnz, "as many as values");
}

/* What both operators have. */
static bool open_sparse(wt_call *call, sparse *q) {
    const wt_tensor *x = &ARG(input).tensor, *values = &ARG(values).tensor;
    wt_geometry *g = &q->d.g;
    if (!read_shape(call, &g->rank, &q->dense)) return false;
    g->batched = x->rank == g->rank + 2;
    if (!g->batched && x->rank != g->rank + 1)
        return wt_fail(call, "input: has %lld dimensions, allowed with a weight of %d: %d (batched) or %d (unbatched)",
                       (long long)x->rank, g->rank + 2, g->rank + 2, g->rank + 1);
    if (!wt_check_float(call, AT(input)) || !wt_check_same_type(call, AT(values), AT(input)) ||
        !wt_check_sizes(call, AT(input)) || !wt_read_geometry(call, g))
        return false;
    if (values->rank != 1) return wt_fail(call, "values: has %lld dimensions, allowed: 1", (long long)values->rank);
    if (!wt_check_sizes(call, AT(values)) || !check_csr(call, q->dense.dims[0], values->sizes[0])) return false;
    q->d.x = wt_see(x, g->rank);
    q->d.w = wt_see_vector(values);
    return wt_check_channels(call, g, &q->d.x, &q->dense, 1, "input");
}

/* ---------------------------------------------------------------- the problem */
static void begin(wt_call *call, const wt_gradients *d, weft_pass pass) {
    const sparse *q = (const sparse *)d;
    wt_begin_conv(&call->p, WEFT_OP_SPARSE_CONV, pass, &d->g, &d->x, &q->dense);
    call->p.attr[WEFT_SPARSE_NNZ] = d->w.dims[0];
    if (pass == WEFT_PASS_BWD_BIAS) return;
    wt_put_vector(call, WEFT_ROLE_ROWS, AT(rows));
    wt_put_vector(call, WEFT_ROLE_COLS, AT(cols));
}

/* ---------------------------------------------------------------- forward */
bool wt_run_sparse_conv(wt_call *call) {
    sparse q;
    wt_view y;
    if (!open_sparse(call, &q)) return false;
    int64_t dims[5] = {q.d.x.dims[0], q.dense.dims[0]};
    if (!wt_check_bias(call, dims[1]) || !wt_check_act(call) ||
        !wt_out_sizes(call, &q.d.g, &q.d.x, &q.dense, NULL, dims) ||
        !wt_create(call, 0, &y, dims, q.d.g.rank, wt_is_last(&q.d.x), q.d.g.batched, ARG(input).tensor.code))
        return false;
    if (wt_is_empty(&y)) return true;
    begin(call, &q.d, WEFT_PASS_FWD);
    WT_PUT(call, {WEFT_ROLE_SRC, &q.d.x}, {WEFT_ROLE_WEIGHTS, &q.d.w}, {WEFT_ROLE_DST, &y});
    return wt_put_epilogue(call) && wt_run(call, false);
}

/* ---------------------------------------------------------------- gradients */
bool wt_run_sparse_conv_backward(wt_call *call) {
    sparse q;
    if (!open_sparse(call, &q) || !wt_check_bias_dtype(call)) return false;
    int64_t dims[5] = {q.d.x.dims[0], q.dense.dims[0]};
    if (!wt_check_same_type(call, AT(grad_output), AT(input)) ||
        !wt_out_sizes(call, &q.d.g, &q.d.x, &q.dense, NULL, dims) ||
        !wt_see_exactly(call, AT(grad_output), &q.d.g, dims, &q.d.dy))
        return false;
    q.d.begin = begin;
    q.d.torch = q.d.torch_bias = false;
    if (!wt_create_wanted(call, &q.d, true)) return false;
    if (wt_is_empty(&q.d.dy)) return wt_zero_wanted(call);
    return wt_match_format(call, &q.d.dy, q.d.g.rank, wt_is_last(&q.d.x), q.d.g.batched, ARG(grad_output).tensor.code,
                           "grad_output") &&
           wt_run_wanted(call, &q.d);
}

/* ---------------------------------------------------------------- the CSR itself, in host memory */
static bool on_host(wt_call *call) {
    return call->shape || call->device_type == wt.aoti_torch_device_type_cpu() ||
           wt_fail(call, "%s: is not on the CPU, allowed: CPU tensors", call->op->name[0]);
}

/* A problem of the smallest input that such weights take: their CSR does not depend on it. */
static weft_problem *begin_weights(wt_call *call, int rank, const wt_view *dense, int64_t nnz) {
    const wt_geometry g = wt_plain_geometry(rank);
    wt_view src = *dense;
    src.dims[0] = 1;
    wt_begin_conv(&call->p, WEFT_OP_SPARSE_CONV, WEFT_PASS_FWD, &g, &src, dense);
    call->p.attr[WEFT_SPARSE_NNZ] = nnz;
    return &call->p;
}

static bool failed(wt_call *call, weft_status status) {
    return status != WEFT_OK && !wt_fail(call, "%s", weft_last_error());
}

/* The elements of the dense weights that are not 0. Indices are int32 where the number of all elements fits. */
bool wt_run_sparse_build(wt_call *call) {
    const wt_tensor *t = &call->arg[0].tensor;
    if (!on_host(call) || !wt_check_data(call, 0, 3, 5, "3 (1D), 4 (2D) or 5 (3D)")) return false;
    int rank = (int)t->rank - 2;
    wt_view w = wt_see(t, rank);
    if (wt_is_empty(&w)) return wt_fail(call, "weight: has no elements, allowed: 1 or more along each dimension");
    int64_t all = 1, nnz = 0;
    bool small = true;
    for (int a = 0; a < 5; a++) small = small && !__builtin_mul_overflow(all, w.dims[a], &all) && all <= INT32_MAX;
    int32_t index = small ? wt.aoti_torch_dtype_int32() : wt.aoti_torch_dtype_int64();
    weft_tensor dense = {
        .dtype = (int16_t)w.dtype, .layout = WEFT_LAYOUT_STRIDED, .align = (int32_t)weft__dtype_size(w.dtype)};
    memcpy(dense.strides, w.strides, sizeof(w.strides));
    weft_problem *p = begin_weights(call, rank, &w, 0);
    if (!call->shape && failed(call, weft_sparse_count(p, &dense, t->data, &nnz))) return false;
    wt_view values, rows, cols;
    if (!wt_create_vector(call, 0, &values, nnz, t->code) || !wt_create_vector(call, 1, &rows, w.dims[0] + 1, index) ||
        !wt_create_vector(call, 2, &cols, nnz, index))
        return false;
    if (call->shape) return true; /* with no elements: how many there are stands in the memory */
    begin_weights(call, rank, &w, nnz);
    WT_PUT(call, {WEFT_ROLE_WEIGHTS, &values}, {WEFT_ROLE_ROWS, &rows}, {WEFT_ROLE_COLS, &cols});
    return !failed(call, weft_sparse_build(p, &dense, t->data, values.data, rows.data, cols.data));
}

static int64_t item_of(const wt_tensor *t, int64_t i) {
    return t->dtype == WEFT_DTYPE_I32 ? ((const int32_t *)t->data)[i * t->strides[0]]
                                      : ((const int64_t *)t->data)[i * t->strides[0]];
}

/* Where in the dense weights each value lies, counted channels-first; what is not CSR for such weights is an error. */
bool wt_run_sparse_positions(wt_call *call) {
    const wt_tensor *rows = &call->arg[0].tensor, *cols = &call->arg[1].tensor;
    int rank = 0;
    wt_view w;
    int64_t nnz = cols->rank == 1 ? cols->sizes[0] : 0, columns = 1, all;
    if (!on_host(call) || !read_shape(call, &rank, &w) || !check_csr(call, w.dims[0], nnz)) return false;
    bool fits = true;
    for (int a = 1; a < 5; a++) fits = fits && !__builtin_mul_overflow(columns, w.dims[a], &columns);
    if (!fits || __builtin_mul_overflow(columns, w.dims[0], &all))
        return wt_fail(call, "shape: has 2^63 elements or more, allowed: fewer");
    wt_view places;
    weft_problem *p = begin_weights(call, rank, &w, nnz);
    weft_problem_tensor(p, WEFT_ROLE_WEIGHTS)->dtype = WEFT_DTYPE_F32;
    wt_put_vector(call, WEFT_ROLE_ROWS, AT(rows));
    wt_put_vector(call, WEFT_ROLE_COLS, AT(cols));
    if (!call->shape && failed(call, weft_sparse_check(p, rows->data, cols->data))) return false;
    if (!wt_create_vector(call, 0, &places, nnz, wt.aoti_torch_dtype_int64())) return false;
    if (call->shape) return true;
    for (int64_t o = 0; o < w.dims[0]; o++)
        for (int64_t j = item_of(rows, o), end = item_of(rows, o + 1); j < end; j++)
            ((int64_t *)places.data)[j] = o * columns + item_of(cols, j);
    return true;
}
