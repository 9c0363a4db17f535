/* Partial convolution under a mask with a channel each. The products of gemm.c know factors of positions, not of
 * elements, so they get a masked copy of some images at a time, in the workspace; diff_src is masked where it lies.
 * Sums over the channels of the mask make the planes of r and u, as for one channel. */
#ifndef WEFT_CPU_PARTIAL_CONV_EVERY_H
#define WEFT_CPU_PARTIAL_CONV_EVERY_H

#include "cpu/conv/gemm_view.h"

/* Of a copy; pieces of an image; of planes. */
enum { EVERY_BYTES = CPU_CUT(8 << 20, 4 << 10), EVERY_PIECES = 16, PLANE_BYTES = CPU_CUT(3 << 20, 4 << 10) };

VF_INLINE bool every_is(const weft_problem *p) { return p->attr[WEFT_PARTIAL_MASK] == 2; }
VF_INLINE int64_t every_image(const weft_problem *p) { return p->c * p->in[0] * p->in[1] * p->in[2]; }
VF_INLINE const weft_tensor *every_data(const weft_problem *p) {
    const weft_tensor *src = weft__tensor(p, WEFT_ROLE_SRC), *diff = weft__tensor(p, WEFT_ROLE_DIFF_SRC);
    return src ? src : diff ? diff : weft__tensor(p, WEFT_ROLE_DIFF_DST);
}

VF_INLINE bool every_is_shared(const weft_problem *p) {
    return p->attr[WEFT_PARTIAL_MASK] == 0 || p->attr[WEFT_PARTIAL_SHARED];
}

/* Images of one product: as many as the copy, or the planes of the factors, have room for, the same number in each.
 * Gradients of 16-bit weights are rounded once: all images. */
static inline int64_t every_step(const weft_problem *p) {
    const weft_tensor *weights = weft__tensor(p, WEFT_ROLE_DIFF_WEIGHTS), *src = weft__tensor(p, WEFT_ROLE_SRC);
    if (p->pass == WEFT_PASS_BWD_BIAS || (weights && weights->dtype != WEFT_DTYPE_F32)) return p->n;
    const bool whole = every_is_shared(p) || p->math == WEFT_MATH_STRICT || weft__has_step(p, WEFT_STEP_ACC);
    if (!every_is(p) && whole) return p->n;
    const int64_t in = p->in[0] * p->in[1] * p->in[2], out = p->out[0] * p->out[1] * p->out[2];
    const int64_t copy = every_image(p) * (src ? (int64_t)weft__dtype_size(src->dtype) : 0);
    const int64_t bytes = every_is(p) ? copy : 4 * (in + 3 * out) + 8 * in;
    const int64_t most = (every_is(p) ? EVERY_BYTES : PLANE_BYTES) / WEFT__MAX(bytes, 1);
    int64_t step = WEFT__MAX(1, WEFT__MIN(p->n, most));
    while (step > 1 && p->n % step) step--;
    return step;
}

/* NULL, or why not. */
static inline const char *every_refusal(const weft_problem *p) {
    if (!every_is(p)) return NULL;
    const weft_tensor *mask = weft__tensor(p, WEFT_ROLE_MASK), *fresh = weft__tensor(p, WEFT_ROLE_NEW_MASK);
    const bool last = !weft__is_first(every_data(p));
    if (p->groups > 1) return "a mask with a channel each, and groups";
    if (p->n < 1) return "no images";
    if (p->math == WEFT_MATH_STRICT) return "strict math under a mask with a channel each";
    if (weft__has_step(p, WEFT_STEP_ACC)) return "accumulation under a mask with a channel each";
    if (mask && (last ? !weft__is_last(mask) : !weft__is_first(mask))) return "the mask has another layout than src";
    if (fresh && (last ? !weft__is_last(fresh) : !weft__is_first(fresh))) return "new_mask has another layout than src";
    if (mask && mask->dtype != WEFT_DTYPE_U8 &&
        (mask->dtype != WEFT_DTYPE_F32 || every_data(p)->dtype != WEFT_DTYPE_F32))
        return "a mask of floats with a channel each, and 16-bit data";
    return NULL;
}

/* The problem of `step` images without its masks. */
static inline void every_reduce(weft_problem *p, int64_t step) {
    int kept = 0;
    for (int i = 0; i < p->ntensors; i++) {
        weft_tensor t = p->tensor[i];
        if (t.role == WEFT_ROLE_MASK || t.role == WEFT_ROLE_NEW_MASK || t.role == WEFT_ROLE_SUMS) continue;
        if (t.role == WEFT_ROLE_SRC || t.role == WEFT_ROLE_DST || t.role == WEFT_ROLE_DIFF_SRC ||
            t.role == WEFT_ROLE_DIFF_DST)
            t.dims[0] = step;
        p->tensor[kept++] = t;
    }
    p->ntensors = kept, p->n = step;
}

/* ---------------------------------------------------------------- elements */
typedef struct every_job {
    const weft_problem *p;
    const void *from, *mask;
    void *to;
    int dtype, mask_dtype;
    int64_t image, mask_image; /* elements; mask_image 0: one for all */
} every_job;

VF_INLINE void every_mask(const every_job *q, int64_t at, int64_t mask_at, int64_t count, const int dtype) {
    for (int64_t j = 0; j < count; j += VF_LANES) {
        vf v = vf_load_count_as(dtype, q->from, at + j, count - j);
        if (q->mask_dtype == WEFT_DTYPE_U8) {
            const vi m = vi_load_u8_count((const uint8_t *)q->mask + mask_at + j, count - j);
            v = vf_select(vi_eq(m, vi_zero()), vf_zero(), v);
        } else {
            v = vf_mul(v, vf_load_count((const float *)q->mask + mask_at + j, count - j));
        }
        vf_store_count_as(dtype, q->to, at + j, v, count - j);
    }
}

static inline void every_slot(void *arg, int64_t slot) {
    const every_job *q = arg;
    const int64_t n = slot / EVERY_PIECES, piece = slot % EVERY_PIECES;
    const int64_t first = cpu_first(q->image, EVERY_PIECES, piece), last = cpu_first(q->image, EVERY_PIECES, piece + 1);
    GEMM_BY_DTYPE(q->dtype, every_mask, q, n * q->image + first, n * q->mask_image + first, last - first);
}

/* Images n .. n + count of `from`, which begins with the first of them, times the mask. */
static inline void every_apply(const weft__exec *e, int64_t n, int64_t count, const void *from, void *to, int dtype) {
    const weft_tensor *mask = weft__tensor(e->p, WEFT_ROLE_MASK);
    every_job q = {.p = e->p, .from = from, .to = to, .dtype = dtype, .mask_dtype = mask->dtype};
    q.image = every_image(e->p), q.mask_image = e->p->attr[WEFT_PARTIAL_SHARED] ? 0 : q.image;
    q.mask = (const char *)e->ptr[WEFT_ROLE_MASK] + n * q.mask_image * (int64_t)weft__dtype_size(mask->dtype);
    weft__parallel(e->ctx, count * EVERY_PIECES, every_slot, &q);
}

/* Sums over the channels of positions first .. end of one image of the mask. */
static inline void every_sum(const weft_problem *p, const void *mask, int dtype, int64_t n, int64_t first, int64_t end,
                             double *to) {
    const int64_t in = p->in[0] * p->in[1] * p->in[2], c = p->c;
    const bool last = weft__is_last(weft__tensor(p, WEFT_ROLE_MASK));
    const uint8_t *bytes = (const uint8_t *)mask + n * c * in;
    const float *floats = (const float *)mask + n * c * in;
    for (int64_t i = first; i < end; i++) to[i] = 0;
    if (last)
        for (int64_t i = first; i < end; i++)
            for (int64_t k = i * c; k < (i + 1) * c; k++)
                to[i] += dtype == WEFT_DTYPE_U8 ? bytes[k] != 0 : (double)floats[k];
    else
        for (int64_t k = 0; k < c; k++)
            for (int64_t i = first; i < end; i++)
                to[i] += dtype == WEFT_DTYPE_U8 ? bytes[k * in + i] != 0 : (double)floats[k * in + i];
}

/* The new mask of image n has its first channel: copy it to the others. */
static inline void every_spread(const weft_problem *p, void *fresh, int64_t n) {
    const weft_tensor *t = weft__tensor(p, WEFT_ROLE_NEW_MASK);
    const size_t size = weft__dtype_size(t->dtype);
    const int64_t out = p->out[0] * p->out[1] * p->out[2];
    char *image = (char *)fresh + n * p->o * out * (int64_t)size;
    if (weft__is_first(t)) {
        for (int64_t o = 1; o < p->o; o++) memcpy(image + o * out * (int64_t)size, image, (size_t)out * size);
        return;
    }
    for (int64_t i = 0; i < out; i++, image += p->o * (int64_t)size)
        for (int64_t o = 1; o < p->o; o++) memcpy(image + o * (int64_t)size, image, size);
}
/* Where the first channel of position i of image n is. */
VF_INLINE int64_t every_place(const weft_problem *p, int64_t n, int64_t i) {
    const int64_t out = p->out[0] * p->out[1] * p->out[2];
    return weft__is_first(weft__tensor(p, WEFT_ROLE_NEW_MASK)) ? n * p->o * out + i : (n * out + i) * p->o;
}

#endif
