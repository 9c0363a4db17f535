/* im2col, an image to the columns of its windows, and col2im, columns to the image they add up to. Each is the
 * gradient of the other. The length of kernel_size says 1D, 2D or 3D. An image is (n) c d h w. Columns are (n) c kd
 * kh kw do ho wo, or, flat, PyTorch's (n) c*kd*kh*kw do*ho*wo: both are eight axes by strides, so nothing is copied.
 * Results are contiguous whatever the input, as PyTorch's. */
#include <string.h>

#include "binding.h"

typedef struct columns {
    wt_geometry w;
    bool flat;
    int64_t n, c;
} columns;

/* ---------------------------------------------------------------- arguments */
static bool begin(wt_call *call, columns *g) {
    g->flat = ARG(flat).integer;
    return wt_window_begin(call, &g->w, AT(kernel_size));
}

/* unbatched: how many axes input has without a batch. Only the batch may be empty. */
static bool check_input(wt_call *call, columns *g, int unbatched) {
    if (!wt_window_rank(call, &g->w, 0, unbatched)) return false;
    g->n = g->w.batched ? call->arg[0].tensor.sizes[0] : 1;
    return wt_window_filled(call, 0, g->w.batched);
}

static bool read_window(wt_call *call, columns *g) {
    return wt_window_read(call, &g->w) && wt_check_axes(call, "padding", g->w.rank, g->w.pad_lo, 0, 40);
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
    if (g->w.batched) sizes[n++] = g->n;
    *fits = true;
    if (g->flat) {
        *fits = product(&sizes[n], g->c, g->w.kernel) && product(&sizes[n + 1], 1, g->w.out);
        return n + 2;
    }
    sizes[n++] = g->c;
    for (int a = 3 - g->w.rank; a < 3; a++) sizes[n++] = g->w.kernel[a];
    for (int a = 3 - g->w.rank; a < 3; a++) sizes[n++] = g->w.out[a];
    return n;
}

/* The strides of a tensor of those sizes along the eight axes. */
static void spread_out(const columns *g, const int64_t *strides, int64_t step[8]) {
    memset(step, 0, 8 * sizeof(*step));
    if (g->w.batched) step[0] = *strides++;
    if (!g->flat) {
        step[1] = strides[0];
        for (int a = 3 - g->w.rank, i = 1; a < 3; a++, i++)
            step[2 + a] = strides[i], step[5 + a] = strides[i + g->w.rank];
        return;
    }
    step[4] = strides[0];
    step[7] = strides[1];
    for (int a = 1; a >= 0; a--)
        step[2 + a] = step[3 + a] * g->w.kernel[a + 1], step[5 + a] = step[6 + a] * g->w.out[a + 1];
    step[1] = step[2] * g->w.kernel[0];
}

static void put_columns(wt_call *call, weft_role role, const columns *g, const wt_tensor *t) {
    const wt_view v = {.data = t->data, .dtype = t->dtype};
    wt_put(call, role, &v);
    spread_out(g, t->strides, weft_problem_tensor(&call->p, role)->strides);
}

/* ---------------------------------------------------------------- PyTorch's own operators, which are 2D */
/* PyTorch's col2im sums in the type of the data: of 16 bits that is not enough. On CUDA both count the elements of a
 * sample in 32 bits. */
static bool torch_takes(const wt_call *call, const columns *g, bool sums) {
    int32_t dtype = ARG(input).tensor.dtype;
    int64_t taps = 0, image = 0;
    if (g->w.rank > 2 || (sums && dtype != WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_F64)) return false;
    bool fits = product(&taps, g->c, g->w.kernel) && product(&taps, taps, g->w.out) && product(&image, g->c, g->w.in);
    return !call->cuda || (fits && taps <= INT32_MAX && image <= INT32_MAX);
}

/* ---------------------------------------------------------------- operators */
bool wt_run_im2col(wt_call *call) {
    columns g;
    int64_t sizes[8], strides[8];
    bool fits;
    wt_tensor y = {.sizes = sizes, .strides = strides, .code = ARG(input).tensor.code};
    if (!begin(call, &g) || !check_input(call, &g, g.w.rank + 1) || !read_window(call, &g)) return false;
    wt_view x = wt_see(&ARG(input).tensor, g.w.rank);
    g.c = x.dims[1];
    memcpy(g.w.in, x.dims + 2, sizeof(g.w.in));
    if (!wt_window_sizes(call, &g.w, "input", false)) return false;
    y.rank = sizes_of(&g, sizes, &fits);
    if (!wt_dense_along(strides, sizes, y.rank, NULL) || !fits)
        return wt_fail(call, "the result has 2^63 elements or more, allowed: fewer");
    if (!wt_result(call, 0, &y)) return false;
    if (!g.n) return true;
    wt_begin_with(&call->p, WEFT_OP_IM2COL, WEFT_PASS_FWD, &g.w, g.n, g.c);
    wt_put(call, WEFT_ROLE_SRC, &x);
    put_columns(call, WEFT_ROLE_DST, &g, &y);
    return wt_run(call, torch_takes(call, &g, false));
}

/* Columns must have the sizes that the image and the window give. */
static bool check_fits(wt_call *call, columns *g) {
    const wt_tensor *t = &ARG(input).tensor;
    int64_t taps, sizes[8], channels = t->sizes[g->w.batched];
    bool fits = product(&taps, 1, g->w.kernel);
    if (g->flat && channels % taps)
        return wt_fail(call,
                       "input: has %lld elements along dimension %d, allowed: a multiple of the elements of a window, "
                       "%lld, from kernel_size",
                       (long long)channels, g->w.batched, (long long)taps);
    g->c = g->flat ? channels / taps : channels;
    int rank = sizes_of(g, sizes, &fits);
    for (int a = g->w.batched; a < rank && fits; a++)
        if (t->sizes[a] != sizes[a])
            return wt_fail(call,
                           "input: has %lld elements along dimension %d, allowed with this %s, kernel_size, stride, "
                           "padding and dilation: %lld",
                           (long long)t->sizes[a], a, g->flat ? "output_size" : "input_size", (long long)sizes[a]);
    return fits || wt_fail(call, "padding: gives 2^63 windows or more, allowed: fewer");
}

bool wt_run_col2im(wt_call *call) {
    columns g;
    wt_view y;
    if (!begin(call, &g) || !check_input(call, &g, g.flat ? 2 : 2 * g.w.rank + 1) || !read_window(call, &g) ||
        !wt_read_axes(call, AT(size), g.w.rank, 1, 0, g.w.in, NULL))
        return false;
    const char *name = g.flat ? "output_size" : "input_size";
    if (!wt_check_axes(call, name, g.w.rank, g.w.in, 1, 40)) return false;
    if (!wt_window_sizes(call, &g.w, name, false) || !check_fits(call, &g)) return false;
    int64_t dims[5] = {g.n, g.c, g.w.in[0], g.w.in[1], g.w.in[2]};
    const wt_tensor *t = &ARG(input).tensor;
    if (!wt_create(call, 0, &y, dims, g.w.rank, false, g.w.batched, t->code)) return false;
    if (!g.n) return true;
    wt_begin_with(&call->p, WEFT_OP_COL2IM, WEFT_PASS_FWD, &g.w, g.n, g.c);
    put_columns(call, WEFT_ROLE_SRC, &g, t);
    wt_put(call, WEFT_ROLE_DST, &y);
    return wt_run(call, torch_takes(call, &g, true));
}
