/* Panels: vectors of pixels gathered from a tensor of either layout and any of the three types. Channels-last data
 * is turned in registers, VF_LANES channels by VF_LANES pixels. */
#ifndef WEFT_CPU_SPARSE_CONV_PANEL_H
#define WEFT_CPU_SPARSE_CONV_PANEL_H

#include "cpu/simd/permute.h"
#include "cpu/sparse_conv/view.h"

typedef struct sp_tensor {
    const weft_tensor *t;
    void *ptr;
    bool last; /* channels-last; else channels-first */
} sp_tensor;

/* The channels [first, first + count) of a chunk, from channel c of the tensor on, and which of them are read. */
typedef struct sp_range {
    int64_t c, first, count;
    const unsigned char *used; /* [place][channel of the chunk]; NULL: all */
} sp_range;

VF_INLINE const unsigned char *sp_used_at(const sp_view *v, const sp_range *g, int64_t place) {
    return g->used ? g->used + place * v->chunk + g->first : NULL;
}
/* Whether any of `count` channels is read. */
VF_INLINE bool sp_any(const unsigned char *used, int64_t count) {
    bool any = !used;
    for (int64_t k = 0; used && k < count; k++) any = any || used[k];
    return any;
}

/* ---------------------------------------------------------------- channels-first */
/* A load of a vector: the elements `mask` from `at` on hold `lanes` of it; lane i is element i * step of that row. */
typedef struct sp_load {
    int64_t at;
    vmask mask, lanes;
} sp_load;

typedef struct sp_loads {
    int count;
    bool whole; /* one load of all lanes does */
    sp_load load[VF_LANES];
} sp_loads;

/* The loads of a vector for one tap. A run whose row is in the padding has none; shared: rows are not looked at. */
VF_INLINE void sp_loads_of(const sp_view *v, const sp_tensor *x, const sp_vector *vector, const int64_t reach[3],
                           sp_loads *to) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1];
    const int64_t step = v->axis[2].step, wide = v->axis[2].in, *stride = x->t->strides;
    to->count = 0;
    to->whole = false;
    for (int i = 0; i < vector->runs; i++) {
        const sp_run *run = &vector->run[i];
        const int64_t z = run->z * d->step + reach[0], y = run->y * h->step + reach[1];
        if (!v->shared && (z < 0 || z >= d->in || y < 0 || y >= h->in)) continue;
        const int64_t row = run->n * stride[0] + (v->shared ? 0 : z * stride[2] + y * stride[3]);
        const int64_t first = (run->x - run->lane) * step + reach[2]; /* of lane 0 */
        const int64_t past = wide - 1 - first;
        const int64_t lo = WEFT__MAX(run->lane, first < 0 ? cpu_ceil(-first, step) : 0);
        const int64_t hi = WEFT__MIN(run->lane + run->count, past < 0 ? 0 : past / step + 1);
        for (int64_t lane = lo; lane < hi;) {
            const int64_t from = lane * step / VF_LANES * VF_LANES;
            const int64_t end = WEFT__MIN(hi, cpu_ceil(from + VF_LANES, step));
            to->load[to->count++] = (sp_load){
                row + first + from, vm_range(lane * step - from, (end - 1) * step + 1 - from), vm_range(lane, end)};
            lane = end;
        }
        to->whole = step == 1 && lo == 0 && hi == VF_LANES;
    }
}

/* pick: lane i of it is the element of lane i in its load, i * step modulo VF_LANES. */
VF_INLINE vi sp_pick(const sp_view *v) {
    return vi_and(vi_mul(vi_iota(), vi_set1((int32_t)(v->axis[2].step % VF_LANES))), vi_set1(VF_LANES - 1));
}

VF_INLINE vf sp_load_vector(const sp_tensor *x, const sp_loads *from, int64_t base, vi pick, bool strided,
                            const int dtype) {
    if (from->whole) return vf_load_as(dtype, x->ptr, base + from->load[0].at);
    vf value = vf_zero();
    for (int i = 0; i < from->count; i++) {
        const sp_load *load = &from->load[i];
        const vf piece = vf_load_in_as(dtype, load->mask, x->ptr, base + load->at);
        value = vf_select(load->lanes, strided ? vf_permute(piece, pick) : piece, value);
    }
    return value;
}

/* The rows of a band for one tap along d and w. */
VF_INLINE void sp_pack_band(const sp_view *v, const sp_block *b, const sp_tensor *x, const sp_range *g, int64_t place,
                            const int64_t reach[3], float *to, const int dtype) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1];
    const int64_t per_phase = v->phases ? v->rows / v->phases : 0, z = b->z * d->step + reach[0];
    const unsigned char *used = sp_used_at(v, g, place);
    const bool strided = v->axis[2].step > 1, inside = z >= 0 && z < d->in;
    const vi pick = sp_pick(v);
    sp_loads loads;
    if (!sp_any(used, g->count)) return;
    sp_loads_of(v, x, &b->at[0], reach, &loads);
    for (int64_t k = 0; k < g->count; k++) {
        const int64_t plane = (g->c + k) * x->t->strides[1] + z * x->t->strides[2];
        float *at = to + (g->first + k) * v->channel;
        if (used && !used[k]) continue;
        for (int64_t f = 0; f < v->phases; f++)
            for (int64_t u = 0, y = b->y * h->step + h->low + f; u < per_phase; u++, y += h->step, at += VF_LANES)
                vf_store(at, inside && y >= 0 && y < h->in
                                 ? sp_load_vector(x, &loads, plane + y * x->t->strides[3], pick, strided, dtype)
                                 : vf_zero());
    }
}

/* The vectors of a block for one tap. */
VF_INLINE void sp_pack_apart(const sp_view *v, const sp_block *b, const sp_tensor *x, const sp_range *g, int64_t place,
                             const int64_t reach[3], float *to, const int dtype) {
    const unsigned char *used = sp_used_at(v, g, place);
    const bool strided = v->axis[2].step > 1;
    const vi pick = sp_pick(v);
    sp_loads loads[SP_R];
    if (!sp_any(used, g->count)) return;
    for (int i = 0; i < v->r; i++) sp_loads_of(v, x, &b->at[i], reach, &loads[i]);
    for (int64_t k = 0; k < g->count; k++) {
        float *at = to + (g->first + k) * v->channel;
        if (used && !used[k]) continue;
        for (int i = 0; i < v->r; i++)
            vf_store(at + i * VF_LANES,
                     sp_load_vector(x, &loads[i], (g->c + k) * x->t->strides[1], pick, strided, dtype));
    }
}

/* ---------------------------------------------------------------- channels-last */
/* Where the pixels of a vector are for one tap, -1 in the padding; shared: without their row and plane. */
VF_INLINE void sp_offsets(const sp_view *v, const sp_tensor *x, const sp_vector *vector, const int64_t reach[3],
                          int64_t offset[VF_LANES]) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1], *w = &v->axis[2];
    const int64_t *stride = x->t->strides;
    for (int l = 0; l < VF_LANES; l++) offset[l] = -1;
    for (int j = 0; j < vector->runs; j++) {
        const sp_run *run = &vector->run[j];
        const int64_t z = run->z * d->step + reach[0], y = run->y * h->step + reach[1];
        if (!v->shared && (z < 0 || z >= d->in || y < 0 || y >= h->in)) continue;
        const int64_t row = run->n * stride[0] + (v->shared ? 0 : z * stride[2] + y * stride[3]);
        for (int l = 0; l < run->count; l++) {
            const int64_t at = (run->x + l) * w->step + reach[2];
            if (at >= 0 && at < w->in) offset[run->lane + l] = row + at * stride[4];
        }
    }
}

/* Channels [k, k + VF_LANES) of the range for VF_LANES pixels, at offset[l] from base, negative: outside. */
VF_INLINE void sp_turn(const sp_view *v, const sp_tensor *x, const sp_range *g, int64_t k, const int64_t *offset,
                       int64_t base, bool inside, float *to, const int dtype) {
    const int64_t some = WEFT__MIN(VF_LANES, g->count - k);
    vf lane[VF_LANES];
    VF_UNROLL for (int l = 0; l < VF_LANES; l++) lane[l] =
        inside && offset[l] >= 0 ? vf_load_count_as(dtype, x->ptr, base + offset[l] + g->c + k, some) : vf_zero();
    vf_transpose(lane);
    float *at = to + (g->first + k) * v->channel;
    VF_UNROLL for (int l = 0; l < VF_LANES; l++, at += v->channel) if (l < some) vf_store(at, lane[l]);
}

VF_INLINE void sp_turn_band(const sp_view *v, const sp_block *b, const sp_tensor *x, const sp_range *g, int64_t place,
                            const int64_t reach[3], float *to, const int dtype) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1];
    const int64_t per_phase = v->phases ? v->rows / v->phases : 0, z = b->z * d->step + reach[0];
    const unsigned char *used = sp_used_at(v, g, place);
    int64_t offset[VF_LANES];
    if (!sp_any(used, g->count)) return;
    sp_offsets(v, x, &b->at[0], reach, offset);
    for (int64_t row = 0; row < v->rows; row++) {
        const int64_t y = b->y * h->step + h->low + row / per_phase + row % per_phase * h->step;
        const bool inside = z >= 0 && z < d->in && y >= 0 && y < h->in;
        for (int64_t k = 0; k < g->count; k += VF_LANES)
            if (sp_any(used ? used + k : NULL, WEFT__MIN(VF_LANES, g->count - k)))
                sp_turn(v, x, g, k, offset, z * x->t->strides[2] + y * x->t->strides[3], inside, to + row * VF_LANES,
                        dtype);
    }
}

VF_INLINE void sp_turn_apart(const sp_view *v, const sp_block *b, const sp_tensor *x, const sp_range *g, int64_t place,
                             const int64_t reach[3], float *to, const int dtype) {
    const unsigned char *used = sp_used_at(v, g, place);
    for (int i = 0; i < v->r && sp_any(used, g->count); i++) {
        int64_t offset[VF_LANES];
        sp_offsets(v, x, &b->at[i], reach, offset);
        for (int64_t k = 0; k < g->count; k += VF_LANES)
            if (sp_any(used ? used + k : NULL, WEFT__MIN(VF_LANES, g->count - k)))
                sp_turn(v, x, g, k, offset, 0, true, to + i * VF_LANES, dtype);
    }
}

/* ---------------------------------------------------------------- both */
VF_INLINE void sp_pack_as(const sp_view *v, const sp_block *b, const sp_tensor *x, const sp_range *g, float *panel,
                          const int dtype) {
    int64_t reach[3] = {0, 0, 0}, place = 0;
    for (int64_t r = 0; r < v->axis[0].kernel; r++)
        for (int64_t t = 0; sp_reach(v, 0, r, &reach[0]) && t < v->axis[2].kernel; t++)
            for (int64_t s = 0; sp_reach(v, 2, t, &reach[2]) && s < (v->shared ? 1 : v->axis[1].kernel); s++) {
                if (!sp_reach(v, 1, s, &reach[1]) && !v->shared) continue;
                float *to = panel + place * sp_place_floats(v);
                if (v->shared && x->last)
                    sp_turn_band(v, b, x, g, place, reach, to, dtype);
                else if (v->shared)
                    sp_pack_band(v, b, x, g, place, reach, to, dtype);
                else if (x->last)
                    sp_turn_apart(v, b, x, g, place, reach, to, dtype);
                else
                    sp_pack_apart(v, b, x, g, place, reach, to, dtype);
                place++;
            }
}
/* A range of channels of x for the block. */
static void sp_pack(const sp_view *v, const sp_block *b, const sp_tensor *x, const sp_range *g, float *panel) {
    switch (x->t->dtype) {
    case WEFT_DTYPE_F32:
        sp_pack_as(v, b, x, g, panel, WEFT_DTYPE_F32);
        break;
    case WEFT_DTYPE_F16:
        sp_pack_as(v, b, x, g, panel, WEFT_DTYPE_F16);
        break;
    default:
        sp_pack_as(v, b, x, g, panel, WEFT_DTYPE_BF16);
        break;
    }
}

#endif
