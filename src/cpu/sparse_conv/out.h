/* Sums on their way out: epilogue, accumulation, and the stores to a tensor of either layout and any of the three
 * types. Channels-last data is turned in registers as in panel.h. */
#ifndef WEFT_CPU_SPARSE_CONV_OUT_H
#define WEFT_CPU_SPARSE_CONV_OUT_H

#include "cpu/sparse_conv/panel.h"

typedef struct sp_ends { /* what happens to a sum on its way out */
    float lo, hi, alpha, beta;
    bool acc;
} sp_ends;

/* alpha 1, beta 0 without a step of accumulation. */
VF_INLINE sp_ends sp_ends_of(const weft__exec *e) {
    const cpu_epilogue f = cpu_epilogue_of(e);
    const weft_step *step = e->p->nsteps ? &e->p->step[e->p->nsteps - 1] : NULL;
    if (!step || step->kind != WEFT_STEP_ACC) return (sp_ends){f.lo, f.hi, 1, 0, false};
    return (sp_ends){f.lo, f.hi, (float)step->alpha, (float)step->beta, true};
}

VF_INLINE void sp_put(const sp_tensor *x, int64_t index, vf value, int64_t count, const sp_ends *f, const int dtype) {
    if (f->acc) value = vf_mul(value, vf_set1(f->alpha));
    if (f->acc && f->beta != 0) value = vf_fma(vf_set1(f->beta), vf_load_count_as(dtype, x->ptr, index, count), value);
    if (count == VF_LANES)
        vf_store_as(dtype, x->ptr, index, value);
    else
        vf_store_count_as(dtype, x->ptr, index, value, count);
}

/* Where the row of a run is, of the first channel. */
VF_INLINE int64_t sp_row_of(const sp_view *v, const sp_tensor *x, const sp_run *run) {
    const sp_axis *d = &v->axis[0], *h = &v->axis[1];
    const int64_t *stride = x->t->strides;
    return run->n * stride[0] + (run->z * d->up + d->at) * stride[2] + (run->y * h->up + h->at) * stride[3];
}

/* `count` lanes to every up-th element from index on. */
VF_INLINE void sp_put_apart(const sp_tensor *x, int64_t index, int64_t up, const float *lanes, int64_t count,
                            const sp_ends *f, const int dtype) {
    union {
        float wide[VF_LANES];
        uint16_t half[VF_LANES];
    } room;
    const sp_tensor to = {x->t, &room, false};
    const bool wide = dtype == WEFT_DTYPE_F32;
    float *const whole = (float *)x->ptr + (wide ? index : 0);
    uint16_t *const half = (uint16_t *)x->ptr + (wide ? 0 : index);
    for (int l = 0; f->acc && f->beta != 0 && l < count; l++) {
        if (wide)
            room.wide[l] = whole[l * up];
        else
            room.half[l] = half[l * up];
    }
    sp_put(&to, 0, vf_load_count(lanes, count), count, f, dtype);
    for (int l = 0; l < count; l++) {
        if (wide)
            whole[l * up] = room.wide[l];
        else
            half[l * up] = room.half[l];
    }
}

VF_INLINE void sp_finish_first(const sp_view *v, const sp_block *b, const sp_tensor *x, const float *sums,
                               const sp_ends *f, const int dtype) {
    const sp_axis *w = &v->axis[2];
    for (int64_t o = b->first; o < b->last; o++)
        for (int i = 0; i < v->r; i++, sums += VF_LANES) {
            const int64_t base = (b->group * v->oc + o) * x->t->strides[1] + w->at;
            const vf value = vf_clip(vf_load(sums), vf_set1(f->lo), vf_set1(f->hi));
            float lanes[2 * VF_LANES];
            vf_store(lanes, value), vf_store(lanes + VF_LANES, vf_zero());
            for (int j = 0; j < b->at[i].runs; j++) {
                const sp_run *run = &b->at[i].run[j];
                const int64_t index = base + sp_row_of(v, x, run) + run->x * w->up;
                if (w->up == 1)
                    sp_put(x, index, vf_load(lanes + run->lane), run->count, f, dtype);
                else
                    sp_put_apart(x, index, w->up, lanes + run->lane, run->count, f, dtype);
            }
        }
}

VF_INLINE void sp_finish_last(const sp_view *v, const sp_block *b, const sp_tensor *x, const float *sums,
                              const sp_ends *f, const int dtype) {
    const sp_axis *w = &v->axis[2];
    for (int64_t o = b->first; o < b->last; o += VF_LANES)
        for (int i = 0; i < v->r; i++) {
            const int64_t base = b->group * v->oc + o;
            const int64_t some = WEFT__MIN(VF_LANES, b->last - o);
            const float *from = sums + ((o - b->first) * v->r + i) * VF_LANES;
            vf lane[VF_LANES];
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) lane[l] =
                l < some ? vf_clip(vf_load(from + l * v->r * VF_LANES), vf_set1(f->lo), vf_set1(f->hi)) : vf_zero();
            vf_transpose(lane);
            float pixels[VF_LANES * VF_LANES];
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) vf_store(pixels + l * VF_LANES, lane[l]);
            for (int j = 0; j < b->at[i].runs; j++) {
                const sp_run *run = &b->at[i].run[j];
                const int64_t row = base + sp_row_of(v, x, run);
                for (int l = 0; l < run->count; l++)
                    sp_put(x, row + ((run->x + l) * w->up + w->at) * x->t->strides[4],
                           vf_load(pixels + (run->lane + l) * VF_LANES), some, f, dtype);
            }
        }
}

VF_INLINE void sp_finish_as(const sp_view *v, const sp_block *b, const sp_tensor *x, const float *sums,
                            const sp_ends *f, const int dtype) {
    if (x->last)
        sp_finish_last(v, b, x, sums, f, dtype);
    else
        sp_finish_first(v, b, x, sums, f, dtype);
}
/* Writes the block's sums, [channel][vector], to where they belong. */
static void sp_finish(const sp_view *v, const sp_block *b, const sp_tensor *x, const float *sums, const sp_ends *f) {
    switch (x->t->dtype) {
    case WEFT_DTYPE_F32:
        sp_finish_as(v, b, x, sums, f, WEFT_DTYPE_F32);
        break;
    case WEFT_DTYPE_F16:
        sp_finish_as(v, b, x, sums, f, WEFT_DTYPE_F16);
        break;
    default:
        sp_finish_as(v, b, x, sums, f, WEFT_DTYPE_BF16);
        break;
    }
}

#endif
