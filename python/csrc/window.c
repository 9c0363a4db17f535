/* Windows that move over an image: their settings, and their number along each axis, which is the size of a result. The
 * only arithmetic of output sizes in the binding. */
#include <string.h>

#include "binding.h"

int64_t wt_span(int64_t windows, int64_t kernel, int64_t dilation, int64_t stride) {
    return (windows - 1) * stride + dilation * (kernel - 1) + 1;
}

int64_t wt_windows(int64_t padded, int64_t kernel, int64_t dilation, int64_t stride) {
    int64_t window = wt_span(1, kernel, dilation, stride);
    return padded < window ? 0 : (padded - window) / stride + 1;
}

/* ---------------------------------------------------------------- convolution */
bool wt_out_sizes(wt_call *call, const wt_geometry *g, const wt_view *x, const wt_view *w, const int64_t *extra,
                  int64_t dims[5]) {
    for (int a = 0; a < 3; a++) {
        int64_t in = x->dims[2 + a], kernel = w->dims[2 + a], pads = g->pad_lo[a] + g->pad_hi[a];
        if (!in && x->dims[0] && x->dims[1])
            return wt_fail(
                call,
                "input: spatial axis %d has 0 elements, allowed: 1 or more, but for an empty batch or no channels",
                a - 3 + g->rank);
        int64_t out = extra ? wt_span(in, kernel, g->dilation[a], g->stride[a]) + extra[a] - pads
                            : wt_windows(in + pads, kernel, g->dilation[a], g->stride[a]);
        if (kernel < 1 || out < (extra && !x->dims[0] ? 0 : 1))
            return wt_fail(call,
                           "input: spatial axis %d has %lld elements, too few for kernel %lld, stride %lld, dilation "
                           "%lld, padding %lld+%lld",
                           a - 3 + g->rank, (long long)in, (long long)kernel, (long long)g->stride[a],
                           (long long)g->dilation[a], (long long)g->pad_lo[a], (long long)g->pad_hi[a]);
        dims[2 + a] = out;
    }
    return true;
}

/* ---------------------------------------------------------------- pooling and columns */
bool wt_window_begin(wt_call *call, wt_geometry *g, int list) {
    size_t rank = call->arg[list].list.size;
    if (rank < 1 || rank > 3)
        return wt_fail(call, "%s: has %zu values, allowed: 1 (1D), 2 (2D) or 3 (3D)", call->op->name[list], rank);
    *g = wt_plain_geometry((int)rank);
    return true;
}

bool wt_window_rank(wt_call *call, wt_geometry *g, int at, int unbatched) {
    const wt_tensor *t = &call->arg[at].tensor;
    g->batched = t->rank == unbatched + 1;
    if (!g->batched && t->rank != unbatched)
        return wt_fail(call, "%s: has %lld dimensions, allowed: %d (batched) or %d (unbatched)", call->op->name[at],
                       (long long)t->rank, unbatched + 1, unbatched);
    return wt_check_float(call, at) && wt_check_sizes(call, at);
}

bool wt_window_filled(wt_call *call, int at, int64_t from) {
    const wt_tensor *t = &call->arg[at].tensor;
    for (int64_t a = from; a < t->rank; a++)
        if (!t->sizes[a])
            return wt_fail(call,
                           "%s: has 0 elements along dimension %lld, allowed: 1 or more; only the batch may be empty",
                           call->op->name[at], (long long)a);
    return true;
}

bool wt_window_read(wt_call *call, wt_geometry *g) {
    if (AT(ceil_mode) >= 0) g->up = ARG(ceil_mode).integer;
    bool ok = wt_read_axes(call, AT(kernel_size), g->rank, 1, 20, g->kernel, NULL) &&
              wt_read_axes(call, AT(stride), g->rank, 1, 40, g->stride, NULL) &&
              wt_read_axes(call, AT(padding), g->rank, 0, 0, g->pad_lo, NULL) &&
              (AT(dilation) < 0 || wt_read_axes(call, AT(dilation), g->rank, 1, 20, g->dilation, NULL));
    memcpy(g->pad_hi, g->pad_lo, sizeof(g->pad_hi));
    return ok;
}

/* In ceil mode rounded up, less a last window that starts past the input. */
bool wt_window_out(wt_geometry *g, int a) {
    int64_t padded = g->in[a] + 2 * g->pad_lo[a] + (g->up ? g->stride[a] - 1 : 0);
    g->out[a] = wt_windows(padded, g->kernel[a], g->dilation[a], g->stride[a]);
    if (g->up && g->out[a] && (g->out[a] - 1) * g->stride[a] >= g->in[a] + g->pad_lo[a]) g->out[a]--;
    return g->out[a] > 0;
}

bool wt_window_sizes(wt_call *call, wt_geometry *g, const char *name, bool whole) {
    for (int a = 3 - g->rank; a < 3; a++)
        if (!wt_window_out(g, a) || (whole && g->in[a] < g->kernel[a]))
            return wt_fail(call,
                           "%s: spatial axis %d has %lld elements, too few for kernel_size %lld, padding %lld, "
                           "dilation %lld, stride %lld",
                           name, a - 3 + g->rank, (long long)g->in[a], (long long)g->kernel[a], (long long)g->pad_lo[a],
                           (long long)g->dilation[a], (long long)g->stride[a]);
    return true;
}
