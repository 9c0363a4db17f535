/* Partial convolution by PyTorch's convolution, some images at a time: a masked copy of a few images, their
 * convolution, and the scale by the ratio stay within the workspace limit, however large the batch.
 *   fwd        y = conv(x*m) * (r*u) + b*u with a bias, conv(x*m) * r without one; legacy: (conv(x*m) + b - b) in
 *   place of conv(x*m) gradients  D = dy * (r*u), or dy * r; dx = m * conv_backward_data(D), dw = the sum over the
 *   images of conv_backward_weight(x*m, D)
 * The window sums, u and r are planes of one channel, or of one a group: weft's own kernels make them, with sums
 * that are exact for whole masks, which a fast convolution of ones does not promise. So does the gradient of the
 * bias. Uneven padding is put into the copy. */
#include <string.h>

#include "conv_peer.h"
#include "partial_conv.h"
#include "settings.h"

#define HELD 48
typedef struct road {
    wt_call *call;
    const wt_partial *q;
    int64_t from, count; /* the images at hand */
    int64_t planes;      /* channels of sums, u and r: groups where masks have a channel each, else 1 */
    int32_t code, wide;  /* PyTorch's types of data and of planes */
    bool uneven, last;   /* last: copies are channels-last */
    /* one, zero: numbers on the device, of the type of planes and of data. held: freed after these images */
    wt_handle one, zero, held[HELD];
    int nheld;
} road;

/* ---------------------------------------------------------------- tensors */
static bool hold(road *r, wt_handle t) {
    if (r->nheld < HELD) {
        r->held[r->nheld++] = t;
        return true;
    }
    wt_free((wt_value)(uintptr_t)t);
    return wt_fail(r->call, "more tensors are held than there is room for");
}

static void let_go(road *r, int keep) {
    while (r->nheld > keep) wt_free((wt_value)(uintptr_t)r->held[--r->nheld]);
}

/* v as PyTorch's operators take it: n, c and the spatial axes of its rank; split > 0: c apart, as groups of so many
 * channels. */
static wt_handle as_tensor(road *r, const wt_view *v, int64_t split) {
    int64_t sizes[6], strides[6], n = 0;
    wt_handle view = NULL;
    for (int a = 0; a < 5; a++) {
        if (a >= 2 && a < 5 - r->q->d.g.rank) continue;
        sizes[n] = v->dims[a], strides[n++] = v->strides[a];
        if (a == 1 && split)
            sizes[n - 1] /= split, strides[n - 1] *= split, sizes[n] = split, strides[n++] = v->strides[1];
    }
    void *at = NULL;
    if (!v->handle || wt.aoti_torch_get_data_ptr(v->handle, &at)) return NULL;
    int64_t offset = ((char *)v->data - (char *)at) / (int64_t)wt_dtype_bytes(v->dtype);
    return wt.aoti_torch__reinterpret_tensor(v->handle, n, sizes, strides, offset, &view) || !hold(r, view) ? NULL
                                                                                                            : view;
}

/* The images at hand of v; of one that serves all, that one. */
static wt_view of_images(const road *r, const wt_view *v) {
    wt_view part = *v;
    if (v->dims[0] == 1) return part;
    part.dims[0] = r->count;
    part.data = (char *)v->data + r->from * v->strides[0] * (int64_t)wt_dtype_bytes(v->dtype);
    return part;
}

static bool make(road *r, wt_view *v, const int64_t dims[5], bool last, int32_t code) {
    memcpy(v->dims, dims, sizeof(v->dims));
    v->dtype = wt_dtype_of(code);
    if (!wt_dense(v->strides, dims, last))
        return wt_fail(r->call, "a copy of the input has more elements than memory, allowed: fewer than 2^63");
    return wt_empty(r->call, &v->handle, 5, v->dims, v->strides, code, &v->data) && hold(r, v->handle);
}

static void like_images(const road *r, int64_t channels, const int64_t *spatial, int64_t dims[5]) {
    dims[0] = r->count, dims[1] = channels;
    memcpy(dims + 2, spatial, 3 * sizeof(*dims));
}

/* A number as a tensor on the CPU, which PyTorch's operators take beside any device. ranked: with one dimension. */
static wt_handle number(road *r, double value, bool ranked) {
    const int64_t unit = 1;
    wt_handle t = NULL;
    void *data;
    int32_t type = r->call->device_type, index = r->call->device_index;
    r->call->device_type = wt.aoti_torch_device_type_cpu(), r->call->device_index = 0;
    bool ok = wt_empty(r->call, &t, ranked, &unit, &unit, wt.aoti_torch_dtype_float64(), &data);
    r->call->device_type = type, r->call->device_index = index;
    if (!ok || !hold(r, t)) return NULL;
    *(double *)data = value;
    return t;
}

/* ---------------------------------------------------------------- PyTorch's operators */
/* An operator of tensors, the last of them the result (out) or the first changed in place. */
static bool aten(road *r, const char *name, const char *overload, int n, const wt_handle *tensors) {
    wt_stack s = {.n = 0};
    for (int i = 0; i < n; i++) {
        if (!tensors[i]) return wt_fail(r->call, "%s: a tensor could not be made", name);
        WT_PUSH(&s, wt_of_tensor(&s, tensors[i]));
    }
    if (!wt_aten(r->call, &s, name, overload, 1)) return false;
    wt_free(s.item[0]);
    return true;
}
#define ATEN(r, name, overload, ...) \
    aten(r, name, overload, (int)(sizeof((wt_handle[]){__VA_ARGS__}) / sizeof(wt_handle)), (wt_handle[]){__VA_ARGS__})

static bool copy(road *r, wt_handle into, wt_handle from) {
    return (into && from && !wt.aoti_torch_copy_(into, from, 0)) ||
           wt_fail(r->call, "a part of a result could not be copied");
}

static void push_one_of_a_list(wt_stack *s, wt_handle tensor) {
    wt_handle list = NULL, item = NULL;
    s->failed |= wt.torch_new_list_reserve_size(1, &list) || wt.aoti_torch_new_tensor_handle(tensor, &item) ||
                 wt.torch_list_push_back(list, (wt_value)(uintptr_t)item);
    WT_PUSH(s, wt_of_int((int64_t)(uintptr_t)list));
}

/* t += scale * a * b. Of PyTorch's sums only those of lists need no number of a type that its C interface lacks. */
static bool add_product(road *r, wt_handle t, wt_handle a, wt_handle b, double scale) {
    wt_stack s = {.n = 0};
    wt_handle factor = number(r, scale, true);
    if (!t || !a || !b || !factor) return wt_fail(r->call, "a sum could not be made");
    push_one_of_a_list(&s, t);
    push_one_of_a_list(&s, a);
    push_one_of_a_list(&s, b);
    WT_PUSH(&s, wt_of_tensor(&s, factor));
    return wt_aten(r->call, &s, "aten::_foreach_addcmul_", "Tensor", 0);
}

/* Numbers where an operator would copy those of the CPU, which a CUDA graph forbids. */
static bool make_numbers(road *r) {
    wt_handle like = NULL;
    void *data;
    wt_stack s = {.n = 0};
    if (!wt_empty(r->call, &like, 0, NULL, NULL, r->wide, &data) || !hold(r, like)) return false;
    WT_PUSH(&s, wt_of_tensor(&s, like));
    for (int i = 0; i < 5; i++) WT_PUSH(&s, 0);
    if (!wt_aten(r->call, &s, "aten::ones_like", "", 1) || !hold(r, r->one = (wt_handle)(uintptr_t)s.item[0]))
        return false;
    return wt_empty(r->call, &r->zero, 0, NULL, NULL, r->code, &data) && hold(r, r->zero) &&
           !wt.aoti_torch_zero_(r->zero);
}

/* ---------------------------------------------------------------- masks */
/* Which elements of a mask count, as a bool tensor; split: see as_tensor. */
static wt_handle selected(road *r, const wt_view *mask, int64_t split) {
    wt_stack s = {.n = 0};
    wt_handle m = as_tensor(r, mask, split), zero = number(r, 0, false);
    if (!m || !zero) return NULL;
    WT_PUSH(&s, wt_of_tensor(&s, m), wt_of_tensor(&s, zero));
    if (!wt_aten(r->call, &s, "aten::ne", "Tensor", 1) || !hold(r, (wt_handle)(uintptr_t)s.item[0])) return NULL;
    return (wt_handle)(uintptr_t)s.item[0];
}

/* into = t * m; without a mask into = t. */
static bool apply_mask(road *r, wt_handle t, wt_handle into) {
    if (!r->q->mask.handle) return copy(r, into, t);
    wt_view mask = of_images(r, &r->q->mask);
    if (mask.dtype != WEFT_DTYPE_U8) return ATEN(r, "aten::mul", "out", t, as_tensor(r, &mask, 0), into);
    return ATEN(r, "aten::where", "self_out", selected(r, &mask, 0), t, r->zero, into);
}

/* The pixels of a padded copy that are not padding. */
static wt_view inner(const road *r, const wt_view *padded) {
    wt_view v = *padded;
    for (int a = 0; a < 3; a++) {
        v.dims[2 + a] = r->q->d.x.dims[2 + a];
        v.data = (char *)v.data + r->q->d.g.pad_lo[a] * v.strides[2 + a] * (int64_t)wt_dtype_bytes(v.dtype);
    }
    return v;
}

/* x * m of the images at hand, with the padding around it if that is uneven; x itself if it is all that is needed. */
static wt_handle seen(road *r) {
    const wt_partial *q = r->q;
    wt_view x = of_images(r, &q->d.x), copied;
    wt_handle whole = as_tensor(r, &x, 0);
    if (!q->mask.handle && !r->uneven && wt_is_last(&q->d.x) == r->last) return whole;
    int64_t dims[5];
    memcpy(dims, x.dims, sizeof(dims));
    for (int a = 0; a < 3 && r->uneven; a++) dims[2 + a] += q->d.g.pad_lo[a] + q->d.g.pad_hi[a];
    if (!make(r, &copied, dims, r->last, r->code)) return NULL;
    wt_view part = r->uneven ? inner(r, &copied) : copied;
    if (r->uneven && wt.aoti_torch_zero_(copied.handle)) return NULL;
    return apply_mask(r, whole, as_tensor(r, &part, 0)) ? as_tensor(r, &copied, 0) : NULL;
}

/* ---------------------------------------------------------------- planes, by weft's kernels */
static wt_view constant(const road *r, const int64_t dims[5]) {
    wt_view v = {r->one, NULL, wt_dtype_of(r->wide), {0}, {0}};
    memcpy(v.dims, dims, sizeof(v.dims));
    wt.aoti_torch_get_data_ptr(r->one, &v.data);
    return v;
}

/* The mask with its channels added up for each group. */
static bool add_channels(road *r, wt_view *mask) {
    const int64_t axis = 2;
    wt_stack s = {.n = 0};
    wt_view part = of_images(r, &r->q->mask);
    int64_t each = part.dims[1] / r->planes,
            dims[5] = {part.dims[0], r->planes, part.dims[2], part.dims[3], part.dims[4]};
    wt_handle counted = part.dtype == WEFT_DTYPE_U8 ? selected(r, &part, each) : as_tensor(r, &part, each);
    wt_handle into = counted && make(r, mask, dims, false, r->wide) ? as_tensor(r, mask, 0) : NULL;
    if (!into) return false;
    WT_PUSH(&s, wt_of_tensor(&s, counted), wt_of_optional_list(&s, &axis, 1), wt_of_bool(false), 0,
            wt_of_tensor(&s, into));
    if (!wt_aten(r->call, &s, "aten::sum", "IntList_out", 1)) return false;
    wt_free(s.item[0]);
    return true;
}

/* The sums of one channel of a window, from a partial convolution of ones with one channel a plane. spare: memory
 * for its other results. */
static bool window_sums(road *r, const wt_view *sums, const wt_view spare[2]) {
    const wt_partial *q = r->q;
    wt_geometry g = q->d.g;
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    wt_view mask = q->mask.handle ? of_images(r, &q->mask) : q->mask;
    if (wt_mask_kind(q) == 2 && !add_channels(r, &mask)) return false;
    int64_t dims[5] = {sums->dims[0], r->planes, q->d.x.dims[2], q->d.x.dims[3], q->d.x.dims[4]}, kernel[5];
    memcpy(kernel, q->d.w.dims, sizeof(kernel));
    kernel[0] = r->planes, kernel[1] = 1;
    wt_view src = constant(r, dims), weights = constant(r, kernel);
    g.groups = r->planes;
    wt_begin(&p, WEFT_OP_PARTIAL_CONV, WEFT_PASS_FWD, &g, &src, &weights);
    p.attr[WEFT_PARTIAL_MASK] = !q->mask.handle ? 0 : r->planes > 1 ? 2 : 1;
    p.attr[WEFT_PARTIAL_TRANSPOSED] = q->transposed;
    for (int a = 0; a < 3; a++) p.attr[WEFT_PARTIAL_OUTPAD + a] = q->extra[a];
    WT_PUT(&p, &args, {WEFT_ROLE_SRC, &src}, {WEFT_ROLE_WEIGHTS, &weights});
    if (q->mask.handle) wt_put(&p, &args, WEFT_ROLE_MASK, &mask);
    WT_PUT(&p, &args, {WEFT_ROLE_DST, &spare[0]}, {WEFT_ROLE_NEW_MASK, &spare[1]}, {WEFT_ROLE_SUMS, sums});
    return wt_execute(r->call, wt_plan(r->call, &p), &args);
}

/* u = clamp(S, 0, 1) */
static bool clamp_sums(road *r, const wt_view *sums, const wt_view *u) {
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    p.size = sizeof(p);
    weft_problem_init(&p, WEFT_OP_CLIP, WEFT_PASS_FWD, r->q->d.g.rank);
    p.n = u->dims[0], p.c = u->dims[1];
    memcpy(p.in, u->dims + 2, sizeof(p.in));
    p.real[WEFT_CLIP_LO] = 0, p.real[WEFT_CLIP_HI] = 1;
    WT_PUT(&p, &args, {WEFT_ROLE_SRC, sums}, {WEFT_ROLE_DST, u});
    return wt_execute(r->call, wt_plan(r->call, &p), &args);
}

/* r = W / (S + 1e-8) * u, and * u after a bias: the data gradient of ones under a window of one pixel, times W. */
static bool ratios(road *r, const wt_view *sums, const wt_view *ratio) {
    const wt_partial *q = r->q;
    const int64_t pixel[5] = {r->planes, 1, 1, 1, 1};
    const wt_geometry g = {q->d.g.rank, true, {1, 1, 1}, {0}, {0}, {1, 1, 1}, r->planes};
    double window =
        (double)(q->d.x.dims[1] / q->d.g.groups) * (double)(q->d.w.dims[2] * q->d.w.dims[3] * q->d.w.dims[4]);
    weft_problem p;
    weft_args args = WEFT_ARGS_INIT;
    wt_view ones = constant(r, ratio->dims), weights = constant(r, pixel);
    wt_begin(&p, WEFT_OP_PARTIAL_CONV, WEFT_PASS_BWD_DATA, &g, ratio, &weights);
    p.attr[WEFT_PARTIAL_MASK] = r->planes > 1 ? 2 : 1;
    p.attr[WEFT_PARTIAL_BIASED] = q->biased;
    WT_PUT(&p, &args, {WEFT_ROLE_WEIGHTS, &weights}, {WEFT_ROLE_MASK, &ones}, {WEFT_ROLE_DIFF_DST, &ones},
           {WEFT_ROLE_SUMS, sums}, {WEFT_ROLE_DIFF_SRC, ratio});
    return wt_execute(r->call, wt_plan(r->call, &p), &args) &&
           ATEN(r, "aten::mul_", "Tensor", ratio->handle, number(r, window, false));
}

static bool make_plane(road *r, wt_view *v) {
    int64_t dims[5];
    like_images(r, r->planes, r->q->out + 2, dims);
    dims[0] = r->q->sums.dims[0] == 1 ? 1 : r->count;
    return make(r, v, dims, false, r->wide);
}

/* The sums and the new mask of the images at hand; u and r for them. */
static bool make_planes(road *r, wt_view *u, wt_view *ratio) {
    const wt_partial *q = r->q;
    wt_view one_channel, spare[2], sums = of_images(r, &q->sums), fresh = of_images(r, &q->fresh);
    if (!make_plane(r, &one_channel) || !make_plane(r, u) || !make_plane(r, ratio)) return false;
    spare[0] = *u, spare[1] = *ratio;
    double channels = wt_mask_kind(q) == 2 ? 1 : (double)(q->d.x.dims[1] / q->d.g.groups);
    return window_sums(r, &one_channel, spare) &&
           ATEN(r, "aten::mul", "out", as_tensor(r, &one_channel, 0), number(r, channels, false),
                as_tensor(r, &sums, 0)) &&
           clamp_sums(r, &sums, u) && copy(r, as_tensor(r, &fresh, fresh.dims[1] / r->planes), as_tensor(r, u, 1)) &&
           ratios(r, &sums, ratio);
}

/* ---------------------------------------------------------------- some images at a time */
static int64_t pixels(const int64_t *spatial) { return spatial[0] * spatial[1] * spatial[2]; }

/* Bytes that one image needs besides the results: the copy and a result of convolution of either side, and planes. */
static int64_t bytes_an_image(const wt_partial *q) {
    int64_t planes = wt_mask_kind(q) == 2 ? q->d.g.groups : 1, wide = q->d.x.dtype == WEFT_DTYPE_F64 ? 8 : 4,
            of_mask = 0;
    int64_t in = pixels(q->d.x.dims + 2), out = pixels(q->out + 2), data = q->d.x.dims[1] * in + q->out[1] * out;
    if (q->mask.handle && q->mask.dims[0] > 1) of_mask = q->mask.dims[1] * in + wide * planes * (4 * out + in);
    return data * (int64_t)wt_dtype_bytes(q->d.x.dtype) + of_mask;
}

/* What is needed once: the sums, which are no result to the caller, planes that serve all images, and weights in
 * forms of PyTorch's. */
static int64_t bytes_for_all(const wt_partial *q) {
    const int64_t *w = q->d.w.dims;
    int64_t wide = q->d.x.dtype == WEFT_DTYPE_F64 ? 8 : 4, sums = 1;
    for (int a = 0; a < 5; a++) sums *= q->sums.dims[a];
    return wide * (sums * (q->sums.dims[0] == 1 ? 4 : 1) + 4 * w[0] * w[1] * pixels(w + 2));
}

/* Within the limit; one image at least where the caller has set none. */
static int64_t images_at_once(const wt_partial *q) {
    size_t limit = wt_settings()->workspace_limit;
    int64_t all = q->d.x.dims[0];
    if (limit == WEFT_NO_LIMIT) return all;
    int64_t fit = ((int64_t)(limit ? limit : (size_t)64 << 20) - bytes_for_all(q)) / bytes_an_image(q);
    return fit < 1 ? 1 : fit < all ? fit : all;
}

static bool exact_math(void) { return wt_settings()->math && wt_settings()->math != WEFT_MATH_TF32; }

const char *wt_partial_no_peer(const wt_call *call, const wt_partial *q, bool backward) {
    size_t limit = wt_settings()->workspace_limit;
    for (int a = 0; a < 3; a++)
        if (q->transposed && q->d.g.pad_lo[a] != q->d.g.pad_hi[a]) return "uneven padding of a transposed convolution";
    if (!q->d.x.dims[0]) return "there is no image";
    if (limit && limit != WEFT_NO_LIMIT && bytes_an_image(q) + bytes_for_all(q) > (int64_t)limit)
        return "one image needs more than the workspace limit";
    if (backward && call->device_type == wt.aoti_torch_device_type_cuda() && q->d.x.dtype == WEFT_DTYPE_F32 &&
        exact_math())
        return "PyTorch's gradients may round to TF32, and the math asked for does not";
    return NULL;
}

static bool begin(road *r, wt_call *call, const wt_partial *q) {
    bool wide = q->d.x.dtype == WEFT_DTYPE_F64;
    *r = (road){.call = call, .q = q, .planes = wt_mask_kind(q) == 2 ? q->d.g.groups : 1};
    r->wide = wide ? wt.aoti_torch_dtype_float64() : wt.aoti_torch_dtype_float32();
    r->count = images_at_once(q);
    /* On the CPU PyTorch makes blocks out of planes, copies of its own on top of ours; but NVIDIA's module rounds as
     * planes do. */
    r->last = wt_is_last(&q->d.x) || (call->device_type == wt.aoti_torch_device_type_cpu() && !q->legacy);
    for (int a = 0; a < 3; a++) r->uneven |= q->d.g.pad_lo[a] != q->d.g.pad_hi[a];
    return !wt.aoti_torch_get_dtype(q->d.x.handle, &r->code) && make_numbers(r);
}

typedef bool (*step)(road *r, void *state);
static bool over_images(road *r, step run, void *state) {
    int keep = r->nheld;
    int64_t all = r->q->d.x.dims[0], most = r->count;
    bool ok = true;
    for (r->from = 0; ok && r->from < all; r->from += r->count) {
        r->count = all - r->from < most ? all - r->from : most;
        ok = run(r, state);
        let_go(r, keep);
    }
    return ok;
}

static void push_geometry(wt_stack *s, const road *r) {
    const wt_geometry *g = &r->q->d.g;
    const int64_t none[3] = {0};
    int at = 3 - g->rank;
    WT_PUSH(s, wt_of_list(s, g->stride + at, g->rank), wt_of_list(s, (r->uneven ? none : g->pad_lo) + at, g->rank),
            wt_of_list(s, g->dilation + at, g->rank), wt_of_bool(r->q->transposed),
            wt_of_list(s, r->q->extra + at, g->rank), wt_of_int(g->groups));
}

/* ---------------------------------------------------------------- forward */
/* The bias over (n, groups of planes, channels of one, spatial), or of convolution, which has the type of the data. */
static wt_handle bias_over(road *r) {
    const wt_tensor *b = &r->q->bias;
    int64_t each = r->q->out[1] / r->planes;
    wt_view v = {b->handle, b->data, b->dtype, {1, r->q->out[1], 1, 1, 1}, {0, b->strides[0], 0, 0, 0}};
    return as_tensor(r, &v, each);
}

static wt_handle bias_of_conv(road *r) {
    const wt_tensor *b = &r->q->bias;
    const int64_t unit = 1;
    wt_handle same = NULL;
    void *data;
    if (b->code == r->code) return b->handle;
    return wt_empty(r->call, &same, 1, b->sizes, &unit, r->code, &data) && hold(r, same) && copy(r, same, b->handle)
               ? same
               : NULL;
}

/* Strict math, and fast, do not round products to TF32; without either PyTorch's own flag decides. */
static bool convolve(road *r, wt_handle x, wt_view *y) {
    const wt_partial *q = r->q;
    bool exact = q->legacy || exact_math(), biased = q->legacy && q->bias.handle;
    wt_stack s = {.n = 0};
    wt_handle b = x && biased ? bias_of_conv(r) : NULL;
    int64_t *strides = NULL;
    if (!x || (biased && !b)) return false;
    WT_PUSH(&s, wt_of_tensor(&s, x), wt_of_tensor(&s, q->d.w.handle), wt_of_optional(&s, b));
    push_geometry(&s, r);
    /* benchmark, deterministic, cudnn_enabled, allow_tf32 */
    for (int i = 0; i < 4 && exact; i++) WT_PUSH(&s, wt_of_bool(i == 2));
    if (!wt_aten(r->call, &s, exact ? "aten::_convolution" : "aten::convolution", "", 1)) return false;
    *y = (wt_view){(wt_handle)(uintptr_t)s.item[0], NULL, q->d.x.dtype, {1, 1, 1, 1, 1}, {0}};
    like_images(r, q->out[1], q->out + 2, y->dims);
    if (!hold(r, y->handle) || wt.aoti_torch_get_strides(y->handle, &strides) ||
        wt.aoti_torch_get_data_ptr(y->handle, &y->data))
        return false;
    for (int a = 0, at = 0; a < 5; a++)
        if (a < 2 || a >= 5 - q->d.g.rank) y->strides[a] = strides[at++];
    return true;
}

typedef struct planes {
    wt_view u, ratio;
} planes; /* made once where one mask serves all images */

static bool forward_some(road *r, void *state) {
    const wt_partial *q = r->q;
    planes *all = state, own;
    int64_t each = q->out[1] / r->planes;
    wt_view part = of_images(r, &q->y), y;
    if (!all) {
        all = &own;
        if (!make_planes(r, &own.u, &own.ratio)) return false;
    }
    if (!convolve(r, seen(r), &y)) return false;
    wt_handle t = as_tensor(r, &y, each), u = as_tensor(r, &all->u, 1), b = q->bias.handle ? bias_over(r) : NULL;
    if (q->legacy && b && !add_product(r, t, b, r->one, -1)) return false;
    return ATEN(r, "aten::mul_", "Tensor", t, as_tensor(r, &all->ratio, 1)) && (!b || add_product(r, t, b, u, 1)) &&
           copy(r, as_tensor(r, &part, 0), as_tensor(r, &y, 0));
}

static bool is_shared(const wt_partial *q) { return q->sums.dims[0] == 1; }

bool wt_partial_peer(wt_call *call, const void *state) {
    const wt_partial *q = state;
    planes all;
    road r;
    bool shared = is_shared(q), ok = begin(&r, call, q) && (!shared || make_planes(&r, &all.u, &all.ratio)) &&
                                     over_images(&r, forward_some, shared ? &all : NULL) &&
                                     wt_activate(call, q->y.handle, &q->y, q->act, q->d.g.rank);
    let_go(&r, 0);
    return ok;
}

/* ---------------------------------------------------------------- gradients */
/* sum: of the weight gradients so far, where there is more than one */
typedef struct gradients {
    wt_view ratio, sum;
    int64_t want;
} gradients;

/* One of the two large gradients of convolution. */
static wt_handle convolve_back(road *r, wt_handle d, wt_handle x, int which) {
    wt_stack s = {.n = 0};
    wt_handle got = NULL;
    if (!d || !x) return NULL;
    WT_PUSH(&s, wt_of_tensor(&s, d), wt_of_tensor(&s, x), wt_of_tensor(&s, r->q->d.w.handle), 0);
    push_geometry(&s, r);
    WT_PUSH(&s, wt_of_bools(&s, 1 << which, 3));
    if (!wt_aten(r->call, &s, "aten::convolution_backward", "", 3)) return NULL;
    for (int i = 0; i < 3; i++) {
        if (i != which)
            wt_free(s.item[i]);
        else
            got = (wt_handle)(uintptr_t)s.item[i];
    }
    return hold(r, got) ? got : NULL;
}

/* A tensor of the shape and the format of seen(), whose values do not count: x, its memory read in the other order
 * where it has no gaps. */
static wt_handle shaped(road *r) {
    wt_view x = of_images(r, &r->q->d.x);
    bool dense = !r->uneven && wt_is_last(&x) == r->last;
    if (!r->uneven && !dense) {
        int64_t strides[5];
        dense = wt_dense(strides, x.dims, false);
        for (int a = 0; a < 5; a++) dense = dense && (x.dims[a] == 1 || x.strides[a] == strides[a]);
        wt_dense(x.strides, x.dims, r->last);
    }
    return dense ? as_tensor(r, &x, 0) : seen(r);
}

static bool backward_data(road *r, wt_handle d) {
    const wt_partial *q = r->q;
    wt_view x = of_images(r, &q->d.x), into = of_images(r, &q->d.dx), v = {NULL, NULL, x.dtype, {0}, {0}};
    int64_t *strides = NULL;
    v.handle = convolve_back(r, d, shaped(r), 0);
    if (!v.handle || wt.aoti_torch_get_strides(v.handle, &strides) || wt.aoti_torch_get_data_ptr(v.handle, &v.data))
        return false;
    memcpy(v.dims, x.dims, sizeof(v.dims));
    for (int a = 0, at = 0; a < 5; a++)
        if (a < 2 || a >= 5 - q->d.g.rank) v.strides[a] = strides[at++];
    if (r->uneven) v = inner(r, &v);
    return apply_mask(r, as_tensor(r, &v, 0), as_tensor(r, &into, 0));
}

static bool backward_some(road *r, void *state) {
    gradients *g = state;
    const wt_partial *q = r->q;
    wt_view dy = of_images(r, &q->d.dy), d, ratio = g->ratio;
    int64_t each = q->out[1] / r->planes;
    if (!is_shared(q)) {
        wt_view sums = of_images(r, &q->sums);
        if (!make_plane(r, &ratio) || !ratios(r, &sums, &ratio)) return false;
    }
    if (!make(r, &d, dy.dims, r->last, r->code) ||
        !ATEN(r, "aten::mul", "out", as_tensor(r, &dy, each), as_tensor(r, &ratio, 1), as_tensor(r, &d, each)))
        return false;
    wt_handle scaled = as_tensor(r, &d, 0);
    int keep = r->nheld;
    if (g->want & WT_WANT_WEIGHT) {
        wt_handle dw = convolve_back(r, scaled, seen(r), 1);
        bool ok = dw && (g->sum.handle ? add_product(r, g->sum.handle, dw, r->one, 1)
                                       : copy(r, as_tensor(r, &q->d.dw, 0), dw));
        if (!ok) return false;
        let_go(r, keep);
    }
    return !(g->want & WT_WANT_INPUT) || backward_data(r, scaled);
}

bool wt_partial_backward_peer(wt_call *call, const void *state) {
    const wt_share *share = state;
    const wt_partial *q = (const wt_partial *)share->d;
    gradients g = {.want = share->want};
    road r;
    bool ok = begin(&r, call, q);
    if (ok && is_shared(q)) ok = make_plane(&r, &g.ratio) && ratios(&r, &q->sums, &g.ratio);
    if (ok && share->want & WT_WANT_WEIGHT && r.count < q->d.x.dims[0]) {
        ok = make(&r, &g.sum, q->d.w.dims, wt_is_last(&q->d.w), r.wide) && (g.sum.handle = as_tensor(&r, &g.sum, 0)) &&
             !wt.aoti_torch_zero_(g.sum.handle);
    }
    ok = ok && over_images(&r, backward_some, &g) &&
         (!g.sum.handle || copy(&r, as_tensor(&r, &q->d.dw, 0), g.sum.handle));
    let_go(&r, 0);
    if (!ok || !(share->want & WT_WANT_BIAS)) return ok;
    weft_args args = WEFT_ARGS_INIT;
    return wt_execute(call, share->d->plan(call, share->d, WEFT_PASS_BWD_BIAS, true, &args), &args);
}
