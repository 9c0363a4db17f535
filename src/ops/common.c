/* What operator records share. */
#include "ops/common.h"

#include <string.h>

weft_status weft__bad_size(const weft_problem *p, const char *name, int axis, int64_t got, const char *allowed) {
    static const char *const axes[] = {"d", "h", "w", ""};
    return weft__fail(WEFT_ERR_INVALID, "%s: %s%s%s is %lld, allowed: %s", weft__op_of(p->op)->name, name,
                      axis < 3 ? " along " : "", axes[axis], (long long)got, allowed);
}

weft_status weft__check_data(const weft_problem *p, int64_t min_c) {
    if (p->n < 0 || p->n > WEFT__BIG) return weft__bad_size(p, "batch n", 3, p->n, "0..2^40");
    if (p->c < min_c || p->c > WEFT__BIG)
        return weft__bad_size(p, "channels c", 3, p->c, min_c ? "1..2^40" : "0..2^40");
    for (int a = 0; a < 3; a++)
        if (p->in[a] < 0 || p->in[a] > WEFT__BIG) return weft__bad_size(p, "input size", a, p->in[a], "0..2^40");
    return WEFT_OK;
}

weft_status weft__check_window(const weft_problem *p, int a) {
    if (p->kernel[a] < 1 || p->kernel[a] > (1 << 20))
        return weft__bad_size(p, "kernel size", a, p->kernel[a], "1..2^20");
    if (p->stride[a] < 1 || p->stride[a] > WEFT__BIG) return weft__bad_size(p, "stride", a, p->stride[a], "1..2^40");
    if (p->dilation[a] < 1 || p->dilation[a] > (1 << 20))
        return weft__bad_size(p, "dilation", a, p->dilation[a], "1..2^20");
    if (p->pad_lo[a] < 0 || p->pad_lo[a] > WEFT__BIG)
        return weft__bad_size(p, "low padding", a, p->pad_lo[a], "0..2^40");
    if (p->pad_hi[a] < 0 || p->pad_hi[a] > WEFT__BIG)
        return weft__bad_size(p, "high padding", a, p->pad_hi[a], "0..2^40");
    return WEFT_OK;
}

void weft__data_shape(weft_tensor *t, int64_t n, int64_t channels, const int64_t spatial[3]) {
    t->rank = 5;
    t->dims[0] = n;
    t->dims[1] = channels;
    memcpy(t->dims + 2, spatial, 3 * sizeof(*spatial));
}

void weft__vector_shape(weft_tensor *t, int64_t length) {
    t->rank = 1;
    t->dims[0] = length;
}

uint64_t weft__floats(const weft_problem *p, int role) {
    (void)p, (void)role;
    return WEFT__FLOATS;
}

double weft__data_numel(const weft_problem *p) {
    return (double)p->n * (double)p->c * (double)p->in[0] * (double)p->in[1] * (double)p->in[2];
}

size_t weft__no_workspace(const weft_problem *p) {
    (void)p;
    return 0;
}

int weft__one_phase(const weft_problem *p) {
    (void)p;
    return 1;
}
