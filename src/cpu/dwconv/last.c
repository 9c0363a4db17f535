/* Depthwise, channels-last: units, rows in place or in scratch, packed weights. See last.h. */
#include "cpu/dwconv/last.h"

enum { CHUNK = 128, COLS = 512, RING = 65536 }; /* channels, columns of a unit; floats of a ring, if that is enough */

static int64_t reach(const dw_window *g, int axis, int64_t count) {
    int64_t lo, hi;
    dw_reach(g, axis, 0, count, &lo, &hi);
    return hi - lo + (g->up && g->phases[axis] > 1);
}

const char *dwl_cut(dwl_plan *f, const dw_window *g, bool gradient, double bytes) {
    const weft_problem *p = g->p;
    const int64_t m = p->o / p->c;
    if (p->kernel[0] * p->kernel[1] > DWL_ROWS) return "an output is a sum over more than 256 rows";
    const bool in_place = p->tensor[0].dtype == WEFT_DTYPE_F32 && m == 1;
    f->cols = WEFT__MIN(g->out[2], cpu_round_up(COLS, g->phases[2]));
    f->tiles = cpu_ceil(g->out[2], f->cols);
    f->ring = in_place ? 0 : reach(g, 1, 1);
    const int64_t unit = m == 1 ? VF_LANES : VF_LANES * m, deep = p->kernel[0] * f->ring * reach(g, 2, f->cols);
    f->chunk = cpu_round_up(WEFT__MIN(p->o, WEFT__MAX(CHUNK, unit)), unit);
    while (f->chunk > unit && deep * f->chunk > RING) f->chunk = cpu_round_up(f->chunk / 2, unit);
    f->chunks = cpu_ceil(p->o, f->chunk);
    f->ring_row = in_place ? 0 : reach(g, 2, f->cols) * f->chunk;
    f->temp_at = cpu_round_up(p->kernel[0] * f->ring * f->ring_row, 16);
    f->center_at = f->temp_at + (g->up && m > 1 ? f->cols * f->chunk : 0);
    f->floats = cpu_round_up(f->center_at + (gradient && !in_place ? f->cols * f->chunk : 0), 16);
    if (f->floats > 1 << 23) return "the window is too large for the caches";
    const int64_t units = p->n * g->out[0] * g->out[1] * f->tiles * f->chunks;
    const int64_t worth = f->floats ? WEFT__MAX(16, (int64_t)(bytes / (double)(32 * f->floats))) : units;
    f->slots = WEFT__MIN(cpu_slots(units, bytes), worth);
    return NULL;
}

void dwl_start(dwl_work *w, const dwl_plan *f, const weft__exec *e, bool up, float *scratch) {
    w->f = f, w->g = dw_window_of(e->p, up), w->dtype = e->p->tensor[0].dtype;
    w->in = e->ptr[up ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    w->weights = e->packed;
    w->channels = e->p->o, w->multiple = w->g.outs;
    w->ring = scratch, w->key = -1, w->filled = 0;
}

/* Columns [from, until) and channels [c0, c1) of a row, as f32. */
VF_INLINE void fill_row(const dwl_work *w, float *to, int64_t row, const int dtype) {
    const int64_t per_pixel = w->channels / w->multiple, m = w->multiple;
    for (int64_t x = w->from; x < w->until; x++, to += w->f->chunk) {
        const int64_t index = (row * w->g.in[2] + x) * per_pixel;
        if (m == 1)
            for (int64_t c = w->c0; c < w->c1; c += VF_LANES)
                vf_store(to + c - w->c0, vf_load_count_as(dtype, w->in, index + c, w->c1 - c));
        else
            for (int64_t c = w->c0; c < w->c1; c++) to[c - w->c0] = dw_get(dtype, w->in, index + c / m);
    }
}

void dwl_unit(dwl_work *w, int64_t n, int64_t z, int64_t y, int64_t chunk, int64_t tile) {
    const dwl_plan *f = w->f;
    const dw_window *g = &w->g;
    const int64_t key = ((n * g->out[0] + z) * f->chunks + chunk) * f->tiles + tile, *in = g->in;
    const dw_axis d = dw_axis_of(g, 0, z % g->phases[0]), h = dw_axis_of(g, 1, y % g->phases[1]);
    int64_t lo, hi;
    w->n = n, w->z = z, w->y = y;
    w->c0 = chunk * f->chunk, w->c1 = WEFT__MIN(w->channels, w->c0 + f->chunk);
    w->x0 = tile * f->cols, w->x1 = WEFT__MIN(g->out[2], w->x0 + f->cols);
    dw_reach(g, 2, w->x0, w->x1, &lo, &hi);
    w->from = WEFT__MAX(0, lo), w->until = WEFT__MAX(w->from, WEFT__MIN(in[2], hi));
    w->pixel = f->ring ? f->chunk : w->channels;
    dw_reach(g, 1, y, y + 1, &lo, &hi);
    if (key != w->key) w->key = key, w->filled = lo;
    w->rows = 0;
    for (int64_t t = 0; t < d.count; t++) {
        const int64_t iz = z / g->phases[0] * d.step + d.off + t * d.gap;
        if (iz < 0 || iz >= in[0]) continue;
        const int64_t plane = (n * in[0] + iz) * in[1];
        float *ring = w->ring + t * f->ring * f->ring_row;
        if (f->ring)
            for (int64_t iy = WEFT__MAX(0, WEFT__MAX(lo, w->filled)); iy < WEFT__MIN(hi, in[1]); iy++) {
                DW_BY_DTYPE(w->dtype, fill_row, w, ring + iy % f->ring * f->ring_row, plane + iy)
            }
        for (int64_t r = 0; r < h.count; r++) {
            const int64_t iy = y / g->phases[1] * h.step + h.off + r * h.gap;
            if (iy < 0 || iy >= in[1]) continue;
            w->row[w->rows] = f->ring ? ring + iy % f->ring * f->ring_row
                                      : (const float *)w->in + ((plane + iy) * in[2] + w->from) * w->channels + w->c0;
            w->tap[w->rows++] = ((d.first + t * d.next) * g->p->kernel[1] + h.first + r * h.next) * g->p->kernel[2];
        }
    }
    w->filled = WEFT__MAX(w->filled, hi);
}

VF_INLINE void pack(float *to, const void *weights, int64_t channels, int64_t taps, const int dtype) {
    for (int64_t c = 0; c < channels; c++)
        for (int64_t k = 0; k < taps; k++)
            to[(c / VF_LANES * taps + k) * VF_LANES + c % VF_LANES] = dw_get(dtype, weights, c * taps + k);
}

weft_status dwl_pack(const weft__exec *e, const void *weights, void *packed) {
    memset(packed, 0, dwl_packed(e->p));
    DW_BY_DTYPE(weft__tensor(e->p, WEFT_ROLE_WEIGHTS)->dtype, pack, packed, weights, e->p->o, dwl_taps(e->p))
    return WEFT_OK;
}
