/* im2col, an image to the columns of its windows, and col2im, columns to the image they add up to. Each is the
 * gradient of the other. The length of kernel_size says 1D, 2D or 3D. An image is (n) c d h w. Columns are (n) c kd
 * kh kw do ho wo, or, flat, PyTorch's (n) c*kd*kh*kw do*ho*wo: both are eight axes by strides, so nothing is copied.
 * Results are contiguous whatever the input, as PyTorch's. */
#include <string.h>

#include "binding.h"

#define MOST (INT64_C(1) << 40) /* the largest size of one axis of a problem */

typedef struct columns {
    int rank;
    bool batched, flat;
    int64_t n, c, in[3], out[3];
    int64_t kernel[3], stride[3], pad[3], dilation[3];
} columns;

/* ---------------------------------------------------------------- arguments */
/* The rank from kernel_size, in list `list`; flat is the last argument but for out. */
static bool begin(wt_call *call, columns *g, int list) {
    size_t rank = call->arg[list].list.size;
    if (rank < 1 || rank > 3)
        return wt_fail(call, "%s: has %zu values, allowed: 1 (1D), 2 (2D) or 3 (3D)", call->op->name[list], rank);
    g->rank = (int)rank;
    g->flat = call->arg[call->op->nargs - 1 - call->op->into].integer;
    for (int a = 0; a < 3; a++) g->in[a] = g->out[a] = g->kernel[a] = g->stride[a] = g->dilation[a] = 1, g->pad[a] = 0;
    return true;
}

/* unbatched: how many axes input has without a batch. Only the batch may be empty. */
static bool check_input(wt_call *call, columns *g, int unbatched) {
    const wt_tensor *t = &call->arg[0].tensor;
    g->batched = t->rank == unbatched + 1;
    if (!g->batched && t->rank != unbatched)
        return wt_fail(call, "input: has %lld dimensions, allowed: %d (batched) or %d (unbatched)", (long long)t->rank,
                       unbatched + 1, unbatched);
    if (!wt_check_float(call, 0) || !wt_check_sizes(call, 0)) return false;
    g->n = g->batched ? t->sizes[0] : 1;
    for (int64_t a = g->batched; a < t->rank; a++)
        if (!t->sizes[a])
            return wt_fail(
                call, "input: has 0 elements along dimension %lld, allowed: 1 or more; only the batch may be empty",
                (long long)a);
    return true;
}

/* at: where kernel_size stands; stride, padding and dilation follow it. */
static bool read_window(wt_call *call, columns *g, int at) {
    bool ok = wt_read_axes(call, at, g->rank, 1, g->kernel, NULL) &&
              wt_read_axes(call, at + 1, g->rank, 1, g->stride, NULL) &&
              wt_read_axes(call, at + 2, g->rank, 1, g->pad, NULL) &&
              wt_read_axes(call, at + 3, g->rank, 1, g->dilation, NULL);
    if (!ok || !wt_check_range(call, at, g->rank, g->kernel, 1) ||
        !wt_check_range(call, at + 3, g->rank, g->dilation, 1))
        return false;
    for (int a = 3 - g->rank; a < 3; a++) {
        if (g->stride[a] < 1 || g->stride[a] > MOST)
            return wt_fail(call, "stride: is %lld along spatial axis %d, allowed: 1 to 2^40", (long long)g->stride[a],
                           a - 3 + g->rank);
        if (g->pad[a] < 0 || g->pad[a] > MOST)
            return wt_fail(call, "padding: is %lld along spatial axis %d, allowed: 0 to 2^40", (long long)g->pad[a],
                           a - 3 + g->rank);
    }
    return true;
}

/* out = floor((in + 2 pad - window) / stride) + 1 */
static bool out_sizes(wt_call *call, columns *g, const char *name) {
    for (int a = 3 - g->rank; a < 3; a++) {
        int64_t spare = g->in[a] + 2 * g->pad[a] - g->dilation[a] * (g->kernel[a] - 1) - 1;
        if (spare < 0)
            return wt_fail(
                call,
                "%s: spatial axis %d has %lld elements, too few for kernel_size %lld, padding %lld, dilation %lld",
                name, a - 3 + g->rank, (long long)g->in[a], (long long)g->kernel[a], (long long)g->pad[a],
                (long long)g->dilation[a]);
        g->out[a] = spare / g->stride[a] + 1;
    }
    return true;
}

/* ---------------------------------------------------------------- columns on the axes n c kd kh kw do ho wo */
/* a * b * c * d; false: 2^63 or more */
static bool product(int64_t *result, int64_t a, const int64_t b[3]) {
    bool fits = true;
    for (int i = 0; i < 3; i++) fits = fits && !__builtin_mul_overflow(a, b[i], &a);
    *result = a;
    return fits;
}

/* The sizes of columns as the caller sees them; how many. */
static int sizes_of(const columns *g, int64_t sizes[8], bool *fits) {
    int n = 0;
    if (g->batched) sizes[n++] = g->n;
    *fits = true;
    if (g->flat) {
        *fits = product(&sizes[n], g->c, g->kernel) && product(&sizes[n + 1], 1, g->out);
        return n + 2;
    }
    sizes[n++] = g->c;
    for (int a = 3 - g->rank; a < 3; a++) sizes[n++] = g->kernel[a];
    for (int a = 3 - g->rank; a < 3; a++) sizes[n++] = g->out[a];
    return n;
}

/* The strides of a tensor of those sizes along the eight axes. */
static void spread_out(const columns *g, const int64_t *strides, int64_t step[8]) {
    memset(step, 0, 8 * sizeof(*step));
    if (g->batched) step[0] = *strides++;
    if (!g->flat) {
        step[1] = strides[0];
        for (int a = 3 - g->rank, i = 1; a < 3; a++, i++) step[2 + a] = strides[i], step[5 + a] = strides[i + g->rank];
        return;
    }
    step[4] = strides[0];
    step[7] = strides[1];
    for (int a = 1; a >= 0; a--)
        step[2 + a] = step[3 + a] * g->kernel[a + 1], step[5 + a] = step[6 + a] * g->out[a + 1];
    step[1] = step[2] * g->kernel[0];
}

static void put_columns(weft_problem *p, weft_args *args, weft_role role, const columns *g, const wt_view *v,
                        const int64_t *strides) {
    wt_put(p, args, role, v);
    spread_out(g, strides, weft_problem_tensor(p, role)->strides);
}

static void describe(weft_problem *p, const columns *g, weft_op op) {
    p->size = sizeof(*p);
    weft_problem_init(p, op, WEFT_PASS_FWD, g->rank);
    p->n = g->n;
    p->c = g->c;
    memcpy(p->in, g->in, sizeof(p->in));
    memcpy(p->kernel, g->kernel, sizeof(p->kernel));
    memcpy(p->stride, g->stride, sizeof(p->stride));
    memcpy(p->pad_lo, g->pad, sizeof(p->pad_lo));
    memcpy(p->pad_hi, g->pad, sizeof(p->pad_hi));
    memcpy(p->dilation, g->dilation, sizeof(p->dilation));
}

/* ---------------------------------------------------------------- PyTorch's own operators, which are flat and 2D */
enum { INPUT, KERNEL, SIZE = 1, BACK_KERNEL };

/* Another shape, of the same memory where strides allow it; the tensor given is freed. 0: failed, as is what is
 * given as 0. */
static wt_value viewed(wt_call *call, wt_value tensor, const int64_t *sizes, int rank) {
    wt_stack s = {.n = 0};
    if (!tensor) return 0;
    wt_push_tensor(&s, (wt_handle)(uintptr_t)tensor);
    wt_push_list(&s, sizes, rank);
    bool ok = wt_aten(call, &s, "aten::reshape", "", 1);
    wt_free(tensor);
    return ok ? s.item[0] : 0;
}

/* size: that of the image, for col2im. */
static wt_value torchs(wt_call *call, const columns *g, const char *name, wt_value input, bool size) {
    wt_stack s = {.n = 0};
    if (!input) return 0;
    wt_drop(call, 0);
    wt_push_tensor(&s, (wt_handle)(uintptr_t)input);
    if (size) wt_push_list(&s, g->in + 1, 2);
    wt_push_list(&s, g->kernel + 1, 2);
    wt_push_list(&s, g->dilation + 1, 2);
    wt_push_list(&s, g->pad + 1, 2);
    wt_push_list(&s, g->stride + 1, 2);
    bool ok = wt_aten(call, &s, name, "", 1);
    wt_free(input);
    return ok ? s.item[0] : 0;
}

static wt_value input_of(wt_call *call) {
    wt_handle own = NULL;
    wt.aoti_torch_new_tensor_handle(call->arg[INPUT].tensor.handle, &own);
    return (wt_value)(uintptr_t)own;
}

/* What PyTorch gives is contiguous, as results are here. */
static bool take(wt_call *call, wt_value tensor, const int64_t *sizes, int rank) {
    tensor = viewed(call, tensor, sizes, rank);
    if (!tensor) return false;
    int64_t *strides = NULL;
    bool failed = wt.aoti_torch_get_strides((wt_handle)(uintptr_t)tensor, &strides);
    if (!call->op->into && !failed) return wt_keep(call, 0, tensor, rank, sizes, strides);
    failed = failed || !call->op->into ||
             wt.aoti_torch_copy_(call->arg[call->op->nargs - 1].tensor.handle, (wt_handle)(uintptr_t)tensor, 0);
    wt_free(tensor);
    return !failed || wt_fail(call, "%s: could not be written", call->op->into ? "out" : "the result");
}

static bool im2col_peer(wt_call *call, const void *state) {
    const columns *g = state;
    int64_t image[4] = {g->n, g->c, g->in[1], g->in[2]}, sizes[8];
    bool fits;
    int rank = sizes_of(g, sizes, &fits);
    return take(call, torchs(call, g, "aten::im2col", viewed(call, input_of(call), image, 4), false), sizes, rank);
}

static bool col2im_peer(wt_call *call, const void *state) {
    const columns *g = state;
    columns flat = *g;
    int64_t sizes[8], image[4];
    bool fits;
    int rank = 0;
    flat.batched = flat.flat = true;
    sizes_of(&flat, sizes, &fits);
    if (g->batched) image[rank++] = g->n;
    image[rank++] = g->c;
    for (int a = 3 - g->rank; a < 3; a++) image[rank++] = g->in[a];
    return take(call, torchs(call, g, "aten::col2im", viewed(call, input_of(call), sizes, 3), true), image, rank);
}

/* PyTorch's col2im sums in the type of the data: of 16 bits that is not enough. On CUDA both count the elements of a
 * sample in 32 bits. */
static wt_peer peer_of(const wt_call *call, const columns *g, bool sums) {
    int32_t dtype = call->arg[INPUT].tensor.dtype;
    int64_t taps = 0, image = 0;
    if (g->rank > 2 || (sums && dtype != WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_F64)) return NULL;
    bool fits = product(&taps, g->c, g->kernel) && product(&taps, taps, g->out) && product(&image, g->c, g->in);
    if (call->device_type != wt.aoti_torch_device_type_cpu() && !(fits && taps <= INT32_MAX && image <= INT32_MAX))
        return NULL;
    return sums ? col2im_peer : im2col_peer;
}

/* ---------------------------------------------------------------- operators */

static bool create_columns(wt_call *call, const columns *g, wt_view *v, int64_t strides[8]) {
    int64_t sizes[8], step = 1;
    bool fits;
    int rank = sizes_of(g, sizes, &fits);
    for (int a = rank - 1; a >= 0; a--) {
        strides[a] = step;
        fits = fits && !__builtin_mul_overflow(step, sizes[a] ? sizes[a] : 1, &step);
    }
    if (!fits) return wt_fail(call, "the result has 2^63 elements or more, allowed: fewer");
    int32_t code = call->arg[INPUT].tensor.code;
    *v = (wt_view){.dtype = wt_dtype_of(code)};
    return wt_result(call, 0, rank, sizes, strides, code, &v->data);
}

static bool run_im2col(wt_call *call) {
    columns g;
    wt_view y;
    int64_t strides[8];
    if (!begin(call, &g, KERNEL) || !check_input(call, &g, g.rank + 1) || !read_window(call, &g, KERNEL)) return false;
    wt_view x = wt_see(&call->arg[INPUT].tensor, g.rank);
    g.c = x.dims[1];
    memcpy(g.in, x.dims + 2, sizeof(g.in));
    if (!out_sizes(call, &g, "input") || !create_columns(call, &g, &y, strides)) return false;
    if (!g.n) return true;
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    describe(&p, &g, WEFT_OP_IM2COL);
    wt_put(&p, &args, WEFT_ROLE_SRC, &x);
    put_columns(&p, &args, WEFT_ROLE_DST, &g, &y, strides);
    return wt_run(call, &p, &args, peer_of(call, &g, false), &g);
}
WT_OPERATOR_OUT(im2col, "im2col(Tensor input, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, SymInt[] "
                        "dilation, bool flat) -> Tensor")

/* Columns must have the sizes that the image and the window give. */
static bool check_fits(wt_call *call, columns *g) {
    const wt_tensor *t = &call->arg[INPUT].tensor;
    int64_t taps, sizes[8], channels = t->sizes[g->batched];
    bool fits = product(&taps, 1, g->kernel);
    if (g->flat && channels % taps)
        return wt_fail(call,
                       "input: has %lld elements along dimension %d, allowed: a multiple of the elements of a window, "
                       "%lld, from kernel_size",
                       (long long)channels, g->batched, (long long)taps);
    g->c = g->flat ? channels / taps : channels;
    int rank = sizes_of(g, sizes, &fits);
    for (int a = g->batched; a < rank && fits; a++)
        if (t->sizes[a] != sizes[a])
            return wt_fail(call,
                           "input: has %lld elements along dimension %d, allowed with this %s, kernel_size, stride, "
                           "padding and dilation: %lld",
                           (long long)t->sizes[a], a, g->flat ? "output_size" : "input_size", (long long)sizes[a]);
    return fits || wt_fail(call, "padding: gives 2^63 windows or more, allowed: fewer");
}

static bool run_col2im(wt_call *call) {
    columns g;
    wt_view y;
    if (!begin(call, &g, BACK_KERNEL) || !check_input(call, &g, g.flat ? 2 : 2 * g.rank + 1) ||
        !read_window(call, &g, BACK_KERNEL) || !wt_read_axes(call, SIZE, g.rank, 1, g.in, NULL))
        return false;
    const char *name = g.flat ? "output_size" : "input_size";
    for (int a = 3 - g.rank; a < 3; a++)
        if (g.in[a] < 1 || g.in[a] > MOST)
            return wt_fail(call, "%s: is %lld along spatial axis %d, allowed: 1 to 2^40", name, (long long)g.in[a],
                           a - 3 + g.rank);
    if (!out_sizes(call, &g, name) || !check_fits(call, &g)) return false;
    int64_t dims[5] = {g.n, g.c, g.in[0], g.in[1], g.in[2]};
    const wt_tensor *t = &call->arg[INPUT].tensor;
    wt_view x = {.handle = t->handle, .data = t->data, .dtype = t->dtype};
    if (!wt_create(call, 0, &y, dims, g.rank, false, g.batched, t->code)) return false;
    if (!g.n) return true;
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    describe(&p, &g, WEFT_OP_COL2IM);
    put_columns(&p, &args, WEFT_ROLE_SRC, &g, &x, t->strides);
    wt_put(&p, &args, WEFT_ROLE_DST, &y);
    return wt_run(call, &p, &args, peer_of(call, &g, true), &g);
}
WT_OPERATOR_OUT(col2im, "col2im(Tensor input, SymInt[] size, SymInt[] kernel_size, SymInt[] stride, SymInt[] padding, "
                        "SymInt[] dilation, bool flat) -> Tensor")
