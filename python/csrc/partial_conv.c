/* Partial convolution, transposed or not, and its gradients: (output, new mask, window sums). A mask is (n, c,
 * spatial), each of n and c those of input or 1, or (n, spatial): one channel, and the new mask then has none
 * either; beside unbatched input n is left out. float32 sums hold counts up to 2^24 exactly, also beside 16-bit
 * data; backward needs them, the mask, input and weight. */
#include "core/internal.h"
#include "settings.h"

typedef struct partial {
    wt_gradients d;                 /* first: the passes of gradients are planned from it */
    wt_view mask, fresh, sums, y;   /* mask.handle NULL: none. fresh and y: forward only */
    bool transposed, plane, biased; /* plane: the mask has no axis for channels; biased: the forward pass had a bias */
    int64_t extra[3];               /* output_padding */
    int64_t out[5];                 /* dims of the result */
} partial;

/* ---------------------------------------------------------------- arguments */
static bool see_mask(wt_call *call, partial *q) {
    const wt_tensor *t = &ARG(mask).tensor;
    const wt_geometry *g = &q->d.g;
    int full = g->rank + (g->batched ? 2 : 1);
    q->mask = (wt_view){.handle = t->handle};
    q->plane = t->handle && t->rank == full - 1;
    if (!t->handle) return true;
    if (t->rank != full && t->rank != full - 1)
        return wt_fail(call, "mask: has %lld dimensions, allowed with input of %d: %d, or %d without channels",
                       (long long)t->rank, full, full, full - 1);
    if (!wt_is_float(t->dtype) && t->dtype != WEFT_DTYPE_U8)
        return wt_fail(call, "mask: is %s, allowed: bool, uint8, float32, float64, float16 or bfloat16",
                       wt_dtype_name(t->code));
    q->mask = wt_see_along(t, wt_axes(g->rank, g->batched, !q->plane));
    for (int a = 0; a < 5; a++) {
        int64_t got = q->mask.dims[a], allowed = q->d.x.dims[a];
        if (got != allowed && (a > 1 || got != 1))
            return wt_fail(call, "mask: has %lld elements along axis %c, allowed: %s%lld, as input has", (long long)got,
                           "ncdhw"[a], a > 1 ? "" : "1 or ", (long long)allowed);
    }
    return true;
}

static bool read_output_padding(wt_call *call, partial *q) {
    const wt_geometry *g = &q->d.g;
    for (int a = 0; a < 3; a++) q->extra[a] = 0;
    if (!wt_read_axes(call, AT(output_padding), g->rank, 0, 0, q->extra, NULL)) return false;
    for (int a = 0; a < 3; a++) {
        int64_t most = !q->transposed ? 1 : g->stride[a] > g->dilation[a] ? g->stride[a] : g->dilation[a];
        if (q->extra[a] < 0 || q->extra[a] >= most)
            return wt_fail(call, "output_padding: is %lld along spatial axis %d, allowed: 0%s", (long long)q->extra[a],
                           a - 3 + g->rank,
                           q->transposed ? " or more, below the stride or the dilation"
                                         : " unless the convolution is transposed");
    }
    return true;
}

/* What both operators have: input, weight, mask and geometry; and the dims of the result. */
static bool open_partial(wt_call *call, partial *q) {
    wt_gradients *d = &q->d;
    q->transposed = ARG(transposed).integer;
    if (!wt_open_pair(call, d)) return false;
    q->out[0] = d->x.dims[0];
    q->out[1] = d->w.dims[0];
    if (q->transposed && !wt_grouped_channels(call, &d->g, &d->w, &q->out[1])) return false;
    if (!d->x.dims[1]) return wt_fail(call, "input: has 0 channels, allowed: 1 or more");
    return wt_check_channels(call, &d->g, &d->x, &d->w, q->transposed ? 0 : 1, "input") &&
           read_output_padding(call, q) && see_mask(call, q) &&
           wt_out_sizes(call, &d->g, &d->x, &d->w, q->transposed ? q->extra : NULL, q->out);
}

/* ---------------------------------------------------------------- the problem */
/* 0: none, 1: one channel, 2: a channel each */
static int64_t mask_kind(const partial *q) { return !q->mask.handle ? 0 : q->mask.dims[1] == 1 ? 1 : 2; }

static void begin(wt_call *call, const wt_gradients *d, weft_pass pass) {
    const partial *q = (const partial *)d;
    weft_problem *p = &call->p;
    wt_begin_conv(p, WEFT_OP_PARTIAL_CONV, pass, &d->g, &d->x, &d->w);
    p->o = q->out[1];
    p->attr[WEFT_PARTIAL_MASK] = mask_kind(q);
    p->attr[WEFT_PARTIAL_SHARED] = q->mask.handle && q->mask.dims[0] != q->d.x.dims[0];
    p->attr[WEFT_PARTIAL_TRANSPOSED] = q->transposed;
    p->attr[WEFT_PARTIAL_BIASED] = pass != WEFT_PASS_FWD && q->biased;
    for (int a = 0; a < 3; a++) p->attr[WEFT_PARTIAL_OUTPAD + a] = q->extra[a];
    WT_PUT(call, {WEFT_ROLE_MASK, &q->mask}, {WEFT_ROLE_SUMS, &q->sums});
}

/* The dims of the new mask (channels: of the result) or of the sums (channels: groups); one for all without a mask. */
static void mask_dims(const partial *q, int64_t channels, int64_t dims[5]) {
    dims[0] = q->mask.handle ? q->mask.dims[0] : 1;
    dims[1] = mask_kind(q) == 2 ? channels : 1;
    for (int a = 2; a < 5; a++) dims[a] = q->out[a];
}

/* ---------------------------------------------------------------- PyTorch's own
 * weft.functional.partial_conv: convolution of masked copies, some images at a time, within the limit of workspace. */
static int64_t pixels(const int64_t *spatial) { return spatial[0] * spatial[1] * spatial[2]; }

/* Bytes that one image needs besides the results: the copy and a result of convolution of either side, and planes. */
static int64_t bytes_an_image(const partial *q) {
    int64_t planes = mask_kind(q) == 2 ? q->d.g.groups : 1, wide = q->d.x.dtype == WEFT_DTYPE_F64 ? 8 : 4, of_mask = 0;
    int64_t in = pixels(q->d.x.dims + 2), out = pixels(q->out + 2), data = q->d.x.dims[1] * in + q->out[1] * out;
    if (q->mask.handle && q->mask.dims[0] > 1) of_mask = q->mask.dims[1] * in + wide * planes * (4 * out + in);
    return data * (int64_t)weft__dtype_size(q->d.x.dtype) + of_mask;
}

/* What is needed once: the sums, which are no result to the caller, planes that serve all images, and weights in
 * forms of PyTorch's. */
static int64_t bytes_for_all(const partial *q) {
    const int64_t *w = q->d.w.dims;
    int64_t wide = q->d.x.dtype == WEFT_DTYPE_F64 ? 8 : 4, sums = 1;
    for (int a = 0; a < 5; a++) sums *= q->sums.dims[a];
    return wide * (sums * (q->sums.dims[0] == 1 ? 4 : 1) + 4 * w[0] * w[1] * pixels(w + 2));
}

/* How many images the call of this thread that PyTorch computes now may take at once, for Python: one at least where
 * the caller has set no limit. */
static _Thread_local int64_t images;
WEFT_API int64_t weft_torch_images(void) { return images; }

/* NULL, or why PyTorch takes no part. backward: in the gradients. */
static const char *torch_refuses(const wt_call *call, const partial *q, bool backward) {
    const wt_config *set = wt_settings();
    const bool exact = set->math && set->math != WEFT_MATH_TF32, bound = set->workspace_limit != WEFT_NO_LIMIT;
    const int64_t limit = (int64_t)(set->workspace_limit ? set->workspace_limit : (size_t)64 << 20);
    for (int a = 0; a < 3; a++)
        if (q->transposed && q->d.g.pad_lo[a] != q->d.g.pad_hi[a]) return "uneven padding of a transposed convolution";
    if (!q->d.x.dims[0]) return "there is no image";
    if (set->workspace_limit && bound && bytes_an_image(q) + bytes_for_all(q) > limit)
        return "one image needs more than the workspace limit";
    if (backward && call->cuda && q->d.x.dtype == WEFT_DTYPE_F32 && exact)
        return "PyTorch's gradients may round to TF32, and the math asked for does not";
    const int64_t fit = bound ? (limit - bytes_for_all(q)) / bytes_an_image(q) : INT64_MAX;
    images = fit < 1 ? 1 : fit;
    return NULL;
}

/* ---------------------------------------------------------------- forward */
bool wt_run_partial_conv(wt_call *call) {
    partial q;
    if (!open_partial(call, &q) || !wt_check_bias(call, q.out[1]) || !wt_check_act(call)) return false;
    const wt_geometry *g = &q.d.g;
    int32_t code = ARG(input).tensor.code, of_mask = q.mask.handle ? ARG(mask).tensor.code : code;
    bool last = wt_is_last(&q.d.x);
    int64_t fresh[5], sums[5];
    mask_dims(&q, q.out[1], fresh);
    mask_dims(&q, g->groups, sums);
    /* the new mask has the axes that the mask has */
    if (!wt_create(call, 0, &q.y, q.out, g->rank, last, g->batched, code) ||
        !wt_create_along(call, 1, &q.fresh, fresh, wt_axes(g->rank, g->batched, !q.plane), last, of_mask) ||
        !wt_create(call, 2, &q.sums, sums, g->rank, last, g->batched, wt_wide_code(code)))
        return false;
    if (wt_is_empty(&q.sums)) return true; /* an empty batch still has a new mask where one mask serves all */
    const bool legacy = ARG(bias).tensor.handle && ARG(legacy).integer;
    const char *why = torch_refuses(call, &q, false);
    if (legacy && call->shape) return true;
    if (legacy && !why) { /* no kernel of weft rounds that way */
        wt_kernels_add("torch");
        return wt_by_torch(call, WT_ALL);
    }
    if (legacy && q.out[0]) return wt_fail(call, "legacy: is true, allowed: false, for %s", why);
    begin(call, &q.d, WEFT_PASS_FWD);
    WT_PUT(call, {WEFT_ROLE_SRC, &q.d.x}, {WEFT_ROLE_WEIGHTS, &q.d.w}, {WEFT_ROLE_DST, &q.y},
           {WEFT_ROLE_NEW_MASK, &q.fresh});
    return wt_put_epilogue(call) && wt_run(call, !why);
}

/* ---------------------------------------------------------------- gradients */
static bool open_gradients(wt_call *call, partial *q) {
    int64_t dims[5];
    q->biased = ARG(biased).integer;
    q->d.want = ARG(want).integer;
    q->d.begin = begin;
    mask_dims(q, q->d.g.groups, dims);
    const int32_t code = ARG(sums).tensor.code, wide = wt_wide_code(ARG(input).tensor.code);
    if (!wt_see_exactly(call, AT(grad_output), &q->d.g, q->out, &q->d.dy) ||
        !wt_see_exactly(call, AT(sums), &q->d.g, dims, &q->sums) ||
        !wt_check_same_type(call, AT(grad_output), AT(input)))
        return false;
    if (code != wide) return wt_fail(call, "sums: is %s, allowed: %s", wt_dtype_name(code), wt_dtype_name(wide));
    if (q->d.want & WT_WANT_BIAS && !q->biased)
        return wt_fail(
            call,
            "want: is %lld with biased false, allowed: the gradient of a bias only where the forward operator had one",
            (long long)q->d.want);
    return true;
}

bool wt_run_partial_conv_backward(wt_call *call) {
    partial q;
    if (!open_partial(call, &q) || !wt_check_bias_dtype(call) || !open_gradients(call, &q) ||
        !wt_create_wanted(call, &q.d, false))
        return false;
    if (wt_is_empty(&q.d.dy)) return wt_zero_wanted(call);
    q.d.torch = !torch_refuses(call, &q, true);
    q.d.torch_bias = false;
    /* whatever the strides of grad_output: a copy of it would be the largest tensor of all */
    return wt_run_wanted(call, &q.d);
}
