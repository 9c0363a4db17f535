/* Panels: vectors of pixels gathered from a tensor of either layout and any of the three types. Channels-last data
 * is turned in registers, VF_LANES channels by VF_LANES pixels. */
#ifndef WEFT_CPU_SPARSE_CONV_PANEL_H
#define WEFT_CPU_SPARSE_CONV_PANEL_H

#include "cpu/sparse_conv/view.h"

typedef struct sp_tensor {
    const weft_tensor *t;
    void *ptr;
    bool last; /* channels-last; else channels-first */
} sp_tensor;

/* ---------------------------------------------------------------- channels-first */
/* A run of a vector as loads of it: lane i is element at + i*step, where the mask allows. step 2: the even of two. */
typedef struct sp_load {
    int64_t at;
    vmask mask, next;
} sp_load;

/* Loads of a vector's runs at that reach; *whole: one load of all lanes does. */
VF_INLINE int sp_loads(const sp_view *v, const sp_tensor *x, const sp_vector *vector, int64_t reach, sp_load *load,
                       bool *whole) {
    const int64_t step = v->axis[2].step, wide = v->axis[2].in;
    for (int i = 0; i < vector->runs; i++) {
        const sp_run *run = &vector->run[i];
        const int64_t first = run->x * step + reach - run->lane * step; /* of lane 0 */
        const int64_t lo = WEFT__MAX(run->lane * step, -first);
        const int64_t hi = WEFT__MIN((run->lane + run->count - 1) * step + 1, wide - first);
        load[i] =
            (sp_load){run->n * x->t->strides[0] + first, vm_range(lo, hi), vm_range(lo - VF_LANES, hi - VF_LANES)};
        *whole = step == 1 && lo == 0 && hi == VF_LANES;
    }
    return vector->runs;
}

/* Any stride along w: lane by lane, each store covering the excess of the one before. */
VF_INLINE vf sp_gather(const sp_view *v, const sp_tensor *x, const sp_vector *vector, int64_t reach, int64_t base,
                       const int dtype) {
    float lanes[2 * VF_LANES] = {0};
    for (int i = 0; i < vector->runs; i++)
        for (int l = 0; l < vector->run[i].count; l++) {
            const sp_run *run = &vector->run[i];
            const int64_t at = (run->x + l) * v->axis[2].step + reach;
            const bool in = at >= 0 && at < v->axis[2].in;
            const int64_t index = base + run->n * x->t->strides[0] + at;
            vf_store(lanes + run->lane + l, in ? vf_broadcast_as(dtype, x->ptr, index) : vf_zero());
        }
    const int used = vector->runs ? vector->run[vector->runs - 1].lane + vector->run[vector->runs - 1].count : 0;
    vf_store(lanes + used, vf_zero());
    return vf_load(lanes);
}

/* `count` rows of one channel and plane, y, y + step, ... of the input, as vectors one behind the other. */
VF_INLINE void sp_rows_first(const sp_view *v, const sp_tensor *x, const sp_vector *vector, const sp_load *load,
                             const int loads, bool whole, int64_t reach, int64_t plane, int64_t y, int64_t count,
                             float *to, const int dtype) {
    const int64_t step = v->axis[2].step;
    for (int64_t u = 0; u < count; u++, y += v->axis[1].step, to += VF_LANES) {
        const int64_t base = plane + y * x->t->strides[3];
        vf value = vf_zero();
        if (y < 0 || y >= v->axis[1].in)
            value = vf_zero();
        else if (whole)
            value = vf_load_as(dtype, x->ptr, base + load->at);
        else if (step == 1)
            for (int i = 0; i < loads; i++)
                value = vf_add(value, vf_load_in_as(dtype, load[i].mask, x->ptr, base + load[i].at));
        else if (step == 2)
            for (int i = 0; i < loads; i++)
                value =
                    vf_add(value, vf_even(vf_load_in_as(dtype, load[i].mask, x->ptr, base + load[i].at),
                                          vf_load_in_as(dtype, load[i].next, x->ptr, base + load[i].at + VF_LANES)));
        else
            value = sp_gather(v, x, vector, reach, base, dtype);
        vf_store(to, value);
    }
}

/* Channels [c, c + count) of the tensor for one vector of the block (shared: for its whole band) and one tap along
 * w. */
VF_INLINE void sp_pack_vector(const sp_view *v, const sp_block *b, const sp_tensor *x, int64_t c, int64_t count, int i,
                              int64_t reach, float *panel, const int dtype) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1];
    const sp_vector *vector = &b->at[i];
    const int64_t per_phase = v->phases ? v->rows / v->phases : 0;
    sp_load load[VF_LANES];
    bool whole = false;
    const int loads = sp_loads(v, x, vector, reach, load, &whole);
    for (int64_t r = 0, place = 0, depth; r < d->kernel; r++) {
        if (!sp_reach(v, 0, r, &depth)) continue;
        const int64_t z = vector->z * d->step + depth;
        float *to = panel + place++ * v->axis[2].taps * v->rows * VF_LANES;
        for (int64_t k = 0; k < count; k++, to += v->channel) {
            const int64_t plane = (c + k) * x->t->strides[1] + z * x->t->strides[2];
            if (z < 0 || z >= d->in) {
                for (int64_t j = v->shared ? 0 : i; j < v->rows; j += v->shared ? 1 : v->r)
                    vf_store(to + j * VF_LANES, vf_zero());
                continue;
            }
            if (v->shared) {
                for (int64_t f = 0; f < v->phases; f++)
                    sp_rows_first(v, x, vector, load, loads, whole, reach, plane, vector->y * h->step + h->low + f,
                                  per_phase, to + f * per_phase * VF_LANES, dtype);
                continue;
            }
            for (int64_t s = 0, row = i, height; s < h->kernel; s++) {
                if (!sp_reach(v, 1, s, &height)) continue;
                sp_rows_first(v, x, vector, load, loads, whole, reach, plane, vector->y * h->step + height, 1,
                              to + row * VF_LANES, dtype);
                row += v->r;
            }
        }
    }
}

VF_INLINE void sp_pack_first(const sp_view *v, const sp_block *b, const sp_tensor *x, int64_t c, int64_t count,
                             float *panel, const int dtype) {
    for (int64_t t = 0, place = 0, reach; t < v->axis[2].kernel; t++) {
        if (!sp_reach(v, 2, t, &reach)) continue;
        for (int i = 0; i < (v->shared ? 1 : v->r); i++)
            sp_pack_vector(v, b, x, c, count, i, reach, panel + place * v->rows * VF_LANES, dtype);
        place++;
    }
}

/* ---------------------------------------------------------------- channels-last */
/* Channels [c, c + count) of the pixels at y, z: lane l is at offset[l] of its image, negative: outside. to: of the
 * first channel; the others are `channel` floats apart. */
VF_INLINE void sp_turn(const sp_tensor *x, const int64_t *offset, int64_t base, bool inside, int64_t c, int64_t count,
                       int64_t channel, float *to, const int dtype) {
    for (int64_t k = 0; k < count; k += VF_LANES, to += VF_LANES * channel) {
        const int64_t some = WEFT__MIN(VF_LANES, count - k);
        vf lane[VF_LANES];
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) lane[l] =
            inside && offset[l] >= 0 ? vf_load_count_as(dtype, x->ptr, base + offset[l] + c + k, some) : vf_zero();
        vf_transpose(lane);
        float *at = to;
        VF_UNROLL for (int l = 0; l < VF_LANES; l++, at += channel) if (l < some) vf_store(at, lane[l]);
    }
}

VF_INLINE void sp_pack_last(const sp_view *v, const sp_block *b, const sp_tensor *x, int64_t c, int64_t count,
                            float *panel, const int dtype) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1], *w = &v->axis[2];
    const int64_t per_phase = v->shared && v->phases ? v->rows / v->phases : 0, *stride = x->t->strides;
    for (int64_t t = 0, wide = 0, reach; t < w->kernel; t++) {
        if (!sp_reach(v, 2, t, &reach)) continue;
        for (int i = 0; i < (v->shared ? 1 : v->r); i++) {
            const sp_vector *vector = &b->at[i];
            int64_t offset[VF_LANES];
            for (int l = 0; l < VF_LANES; l++) offset[l] = -1;
            for (int j = 0; j < vector->runs; j++)
                for (int l = 0; l < vector->run[j].count; l++) {
                    const int64_t at = (vector->run[j].x + l) * w->step + reach;
                    if (at >= 0 && at < w->in)
                        offset[vector->run[j].lane + l] = vector->run[j].n * stride[0] + at * stride[4];
                }
            for (int64_t r = 0, deep = 0, depth; r < d->kernel; r++) {
                if (!sp_reach(v, 0, r, &depth)) continue;
                const int64_t z = vector->z * d->step + depth;
                float *to = panel + (deep++ * w->taps + wide) * v->rows * VF_LANES;
                for (int64_t s = 0, row = 0, height; s < (v->shared ? v->rows : h->kernel); s++) {
                    int64_t y =
                        vector->y * h->step + h->low + (v->shared ? s / per_phase + s % per_phase * h->step : 0);
                    if (!v->shared) {
                        if (!sp_reach(v, 1, s, &height)) continue;
                        y = vector->y * h->step + height;
                    }
                    const bool inside = z >= 0 && z < d->in && y >= 0 && y < h->in;
                    sp_turn(x, offset, z * stride[2] + y * stride[3], inside, c, count, v->channel,
                            to + (v->shared ? s : row++ * v->r + i) * VF_LANES, dtype);
                }
            }
        }
        wide++;
    }
}

VF_INLINE void sp_pack_as(const sp_view *v, const sp_block *b, const sp_tensor *x, int64_t c, int64_t count,
                          float *panel, const int dtype) {
    if (x->last)
        sp_pack_last(v, b, x, c, count, panel, dtype);
    else
        sp_pack_first(v, b, x, c, count, panel, dtype);
}
/* Channels [c, c + count) of x for the block. */
static void sp_pack(const sp_view *v, const sp_block *b, const sp_tensor *x, int64_t c, int64_t count, float *panel) {
    switch (x->t->dtype) {
    case WEFT_DTYPE_F32:
        sp_pack_as(v, b, x, c, count, panel, WEFT_DTYPE_F32);
        break;
    case WEFT_DTYPE_F16:
        sp_pack_as(v, b, x, c, count, panel, WEFT_DTYPE_F16);
        break;
    default:
        sp_pack_as(v, b, x, c, count, panel, WEFT_DTYPE_BF16);
        break;
    }
}

#endif
