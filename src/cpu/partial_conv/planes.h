/* The planes of partial convolution: the mask m as f32, and r, u and the factor of diff_dst that follow from its window
 * sums S. Made in bands of rows, for batch 1 as well: S of a row is the sum of the rows under its window, and of that
 * the sum along the row, kd * kh + kw additions a position, in double. */
#ifndef WEFT_CPU_PARTIAL_CONV_PLANES_H
#define WEFT_CPU_PARTIAL_CONV_PLANES_H

#include "cpu/partial_conv/every.h"

enum { BANDS = 16, BAND = 2048 }; /* of an image, at most; positions of one, at least */

typedef struct planes {
    const weft__exec *e;
    int64_t first, images, in, out; /* the first image, planes, and positions of each */
    int64_t bands;
    float *mask, *ratio, *keep, *scale;
    double *sources, *rows; /* what is summed, a plane for each image; two rows for each band */
} planes;

static inline bool planes_are_biased(const weft_problem *p) {
    return p->attr[WEFT_PARTIAL_BIASED] || weft__has_step(p, WEFT_STEP_BIAS);
}
static inline int64_t planes_in(const weft_problem *p) { return p->in[0] * p->in[1] * p->in[2]; }
static inline int64_t planes_out(const weft_problem *p) { return p->out[0] * p->out[1] * p->out[2]; }
/* Images that are made at a time. */
static inline int64_t planes_images(const weft_problem *p) {
    return every_is_shared(p) ? 1 : WEFT__MIN(p->n, every_step(p));
}
static inline int64_t planes_bands(const weft_problem *p) {
    return WEFT__MAX(1, WEFT__MIN(BANDS, WEFT__MAX(planes_in(p), planes_out(p)) / BAND));
}
static inline size_t planes_bytes(const weft_problem *p) {
    return (size_t)cpu_round_up(planes_images(p) * (planes_in(p) + 3 * planes_out(p)) * 4, 64);
}
static inline size_t planes_sum_bytes(const weft_problem *p) {
    const int64_t rows = planes_bands(p) * (p->in[2] + p->out[2]);
    return p->pass == WEFT_PASS_FWD ? (size_t)cpu_round_up(planes_images(p) * (planes_in(p) + rows) * 8, 64) : 0;
}

/* workspace: planes_bytes and planes_sum_bytes of it. */
static inline planes planes_of(const weft__exec *e) {
    const weft_problem *p = e->p;
    planes q = {.e = e, .images = planes_images(p), .in = planes_in(p), .out = planes_out(p), .bands = planes_bands(p)};
    q.mask = e->workspace;
    q.ratio = q.mask + q.images * q.in, q.keep = q.ratio + q.images * q.out, q.scale = q.keep + q.images * q.out;
    q.sources = (double *)(void *)((char *)e->workspace + planes_bytes(p)), q.rows = q.sources + q.images * q.in;
    return q;
}

/* ---------------------------------------------------------------- the mask */
/* A band of positions: the mask, and what is summed of it. */
static inline void planes_read(void *arg, int64_t slot) {
    const planes *q = arg;
    const weft_problem *p = q->e->p;
    const int64_t plane = slot / q->bands, band = slot % q->bands, n = q->first + plane;
    const int64_t first = cpu_first(q->in, q->bands, band), last = cpu_first(q->in, q->bands, band + 1);
    const weft_tensor *mask = weft__tensor(p, WEFT_ROLE_MASK);
    const void *from = q->e->ptr[WEFT_ROLE_MASK];
    float *to = q->mask + plane * q->in;
    double *sources = p->pass == WEFT_PASS_FWD ? q->sources + plane * q->in : NULL;
    if (mask && every_is(p)) {
        if (sources) every_sum(p, from, mask->dtype, n, first, last, sources);
        return;
    }
    if (mask && mask->dtype == WEFT_DTYPE_U8)
        for (int64_t i = first; i < last; i++) to[i] = ((const uint8_t *)from)[n * q->in + i] ? 1.0f : 0.0f;
    else if (mask)
        for (int64_t i = first; i < last; i++) to[i] = gemm_load(mask->dtype, from, n * q->in + i);
    for (int64_t i = first; i < last && sources; i++) sources[i] = mask ? (double)to[i] : 1;
}

/* ---------------------------------------------------------------- window sums */
/* The rows under the windows of row y of plane z, added up. */
static inline void planes_sum_down(const weft_problem *p, const double *plane, int64_t z, int64_t y, double *to) {
    for (int64_t x = 0; x < p->in[2]; x++) to[x] = 0;
    for (int64_t r = 0; r < p->kernel[0]; r++)
        for (int64_t s = 0; s < p->kernel[1]; s++) {
            const int64_t iz = z * p->stride[0] - p->pad_lo[0] + r * p->dilation[0];
            const int64_t iy = y * p->stride[1] - p->pad_lo[1] + s * p->dilation[1];
            if (iz < 0 || iz >= p->in[0] || iy < 0 || iy >= p->in[1]) continue;
            const double *row = plane + (iz * p->in[1] + iy) * p->in[2];
            for (int64_t x = 0; x < p->in[2]; x++) to[x] += row[x];
        }
}

static inline void planes_sum_along(const weft_problem *p, const double *row, double *to) {
    const int64_t stride = p->stride[2];
    for (int64_t x = 0; x < p->out[2]; x++) to[x] = 0;
    for (int64_t t = 0; t < p->kernel[2]; t++) {
        const int64_t at = t * p->dilation[2] - p->pad_lo[2];
        const int64_t lo = at < 0 ? cpu_ceil(-at, stride) : 0;
        const int64_t hi = at < p->in[2] ? WEFT__MIN(p->out[2], (p->in[2] - 1 - at) / stride + 1) : 0;
        if (stride == 1)
            for (int64_t x = lo; x < hi; x++) to[x] += row[x + at];
        else
            for (int64_t x = lo; x < hi; x++) to[x] += row[x * stride + at];
    }
}

/* r and u of sums, as the definition has them, and the factor of diff_dst. */
static inline void planes_set(const planes *q, int64_t at, const double *sums, int64_t count) {
    const weft_problem *p = q->e->p;
    const double window = (double)(p->c / p->groups) * (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    const bool biased = planes_are_biased(p);
    for (int64_t i = 0; i < count; i++) {
        const double u = sums[i] < 0 ? 0 : sums[i] > 1 ? 1 : sums[i], r = window / (sums[i] + 1e-8) * u;
        q->ratio[at + i] = (float)r;
        q->keep[at + i] = (float)u;
        q->scale[at + i] = (float)(biased ? r * u : r);
    }
}

/* Sums, or what is left of them between 0 and 1, to every `step`-th element of a result from `at` on. */
static inline void planes_put(const planes *q, int role, int64_t at, int64_t step, const double *sums, int64_t count) {
    const int dtype = weft__tensor(q->e->p, role)->dtype;
    const bool fresh = role == WEFT_ROLE_NEW_MASK;
    void *to = q->e->ptr[role];
    for (int64_t i = 0; i < count; i++) {
        const double value = !fresh ? sums[i] : sums[i] < 0 ? 0 : sums[i] > 1 ? 1 : sums[i];
        if (dtype == WEFT_DTYPE_U8)
            ((uint8_t *)to)[at + i * step] = (uint8_t)value;
        else
            cpu_put(dtype, to, at + i * step, (float)value);
    }
}

/* A band of rows of the planes that follow from the mask. */
static inline void planes_make(void *arg, int64_t slot) {
    const planes *q = arg;
    const weft_problem *p = q->e->p;
    const int64_t plane = slot / q->bands, band = slot % q->bands, n = q->first + plane, width = p->out[2];
    const int64_t all = p->out[0] * p->out[1];
    const bool every = every_is(p);
    double *down = q->rows + slot * (p->in[2] + width), *along = down + p->in[2];
    for (int64_t row = cpu_first(all, q->bands, band); row < cpu_first(all, q->bands, band + 1); row++) {
        planes_sum_down(p, q->sources + plane * q->in, row / p->out[1], row % p->out[1], down);
        planes_sum_along(p, down, along);
        for (int64_t x = 0; x < width && !every; x++) along[x] *= (double)(p->c / p->groups);
        planes_set(q, plane * q->out + row * width, along, width);
        planes_put(q, WEFT_ROLE_SUMS, n * q->out + row * width, 1, along, width);
        const bool last = every && !weft__is_first(weft__tensor(p, WEFT_ROLE_NEW_MASK));
        const int64_t at = every ? every_place(p, n, row * width) : n * q->out + row * width;
        planes_put(q, WEFT_ROLE_NEW_MASK, at, last ? p->o : 1, along, width);
    }
}

/* The same from the sums that the forward pass has left. */
static inline void planes_make_again(void *arg, int64_t slot) {
    enum { CHUNK = 256 };
    const planes *q = arg;
    const int64_t plane = slot / q->bands, band = slot % q->bands;
    const float *sums = (const float *)q->e->ptr[WEFT_ROLE_SUMS] + (q->first + plane) * q->out;
    const int64_t last = cpu_first(q->out, q->bands, band + 1);
    for (int64_t i = cpu_first(q->out, q->bands, band); i < last; i += CHUNK) {
        const int64_t count = WEFT__MIN(CHUNK, last - i);
        double chunk[CHUNK];
        for (int64_t j = 0; j < count; j++) chunk[j] = (double)sums[i + j];
        planes_set(q, plane * q->out + i, chunk, count);
    }
}

static inline void planes_spread(void *arg, int64_t plane) {
    const planes *q = arg;
    every_spread(q->e->p, q->e->ptr[WEFT_ROLE_NEW_MASK], q->first + plane);
}

/* All planes of the images from q->first on. */
static inline void planes_run(planes *q) {
    const weft_problem *p = q->e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t slots = q->images * q->bands;
    if (fwd || (weft__tensor(p, WEFT_ROLE_MASK) && !every_is(p))) weft__parallel(q->e->ctx, slots, planes_read, q);
    weft__parallel(q->e->ctx, slots, fwd ? planes_make : planes_make_again, q);
    if (fwd && every_is(p)) weft__parallel(q->e->ctx, q->images, planes_spread, q);
}

#endif
