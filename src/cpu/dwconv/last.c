/* Depthwise, channels-last: units, rows in place or in scratch, packed weights. See last.h. */
#include "cpu/dwconv/last.h"

enum { COLS = CPU_CUT(512, 16), RING = 65536 }; /* columns of a unit; floats of a ring, if that is enough */
enum { STRIP = CPU_CUT(1 << 19, 4 << 10) };     /* bytes of rows that are kept from plane to plane */

static int64_t reach(const dw_window *g, int axis, int64_t count) {
    int64_t lo, hi;
    dw_reach(g, axis, 0, count, &lo, &hi);
    return hi - lo + (g->up && g->phases[axis] > 1);
}

const char *dwl_cut(dwl_plan *f, const dw_window *g, int64_t chunk, bool gradient, double bytes) {
    const weft_problem *p = g->p;
    const int64_t m = p->o / p->c;
    if (p->kernel[0] * p->kernel[1] > DWL_ROWS) return "an output is a sum over more than 256 rows";
    const bool in_place = dwl_in_place(p);
    f->cols = WEFT__MIN(g->out[2], cpu_round_up(COLS, g->phases[2]));
    f->tiles = cpu_ceil(g->out[2], f->cols);
    f->ring = in_place ? 0 : reach(g, 1, 1);
    const int64_t unit = m == 1 ? VF_LANES : VF_LANES * m, deep = p->kernel[0] * f->ring * reach(g, 2, f->cols);
    f->chunk = cpu_round_up(WEFT__MIN(p->o, WEFT__MAX(chunk, unit)), unit);
    while (f->chunk > unit && deep * f->chunk > RING) f->chunk = cpu_round_up(f->chunk / 2, unit);
    f->chunks = cpu_ceil(p->o, f->chunk);
    f->strip = g->out[1];
    const double row =
        (double)(g->in[2] * p->o) * (double)(p->kernel[0] * (int64_t)weft__dtype_size(p->tensor[0].dtype));
    while (in_place && p->kernel[0] > 1 && f->strip > 4 && row * (double)reach(g, 1, f->strip) > STRIP)
        f->strip = cpu_ceil(f->strip, 2);
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
    w->ring = scratch, w->key = w->listed = -1, w->filled = 0;
    w->next = up ? 1 : e->p->stride[1], w->col0 = w->channel0 = 0, w->until = w->g.in[2];
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
            for (int64_t c = w->c0; c < w->c1; c++) to[c - w->c0] = cpu_get(dtype, w->in, index + c / m);
    }
}

/* Image, plane and row of row `index`. */
static void go_to(dwl_work *w, int64_t index) {
    const int64_t *out = w->g.out, image = out[0] * out[1], strip = w->f->strip, rest = index % image;
    const int64_t y0 = rest / (out[0] * strip) * strip, rows = WEFT__MIN(strip, out[1] - y0),
                  of_strip = rest - y0 * out[0];
    w->n = index / image, w->z = of_strip / rows, w->y = y0 + of_strip % rows;
}

/* Rows [lo, hi) of a plane that are not in its ring yet. */
static void fill_ring(dwl_work *w, float *ring, int64_t plane, int64_t lo, int64_t hi) {
    for (int64_t y = WEFT__MAX(0, WEFT__MAX(lo, w->filled)); y < WEFT__MIN(hi, w->g.in[1]); y++) {
        DW_BY_DTYPE(w->dtype, fill_row, w, ring + y % w->f->ring * w->f->ring_row, plane + y)
    }
}

void dwl_unit(dwl_work *w, int64_t index, int64_t chunk, int64_t tile) {
    const dwl_plan *f = w->f;
    const dw_window *g = &w->g;
    const int64_t *in = g->in;
    int64_t lo, hi;
    w->c0 = chunk * f->chunk, w->c1 = WEFT__MIN(w->channels, w->c0 + f->chunk);
    w->x0 = tile * f->cols, w->x1 = WEFT__MIN(g->out[2], w->x0 + f->cols);
    if (!f->ring && index == w->listed) return;
    go_to(w, index);
    w->listed = index, w->rows = 0, w->pixel = w->channels;
    dw_reach(g, 1, w->y, w->y + 1, &lo, &hi);
    if (f->ring) {
        const int64_t key = ((w->n * g->out[0] + w->z) * f->chunks + chunk) * f->tiles + tile;
        int64_t left, right;
        dw_reach(g, 2, w->x0, w->x1, &left, &right);
        w->from = WEFT__MAX(0, left), w->until = WEFT__MAX(w->from, WEFT__MIN(in[2], right));
        w->pixel = f->chunk, w->col0 = w->from, w->channel0 = w->c0;
        if (key != w->key) w->key = key, w->filled = lo;
    }
    const dw_axis d = dw_axis_of(g, 0, w->z % g->phases[0]), h = dw_axis_of(g, 1, w->y % g->phases[1]);
    const int64_t z = w->z / g->phases[0] * d.step + d.off, y = w->y / g->phases[1] * h.step + h.off;
    for (int64_t t = 0; t < d.count; t++) {
        const int64_t iz = z + t * d.gap, plane = (w->n * in[0] + iz) * in[1];
        float *ring = w->ring + t * f->ring * f->ring_row;
        if (iz < 0 || iz >= in[0]) continue;
        if (f->ring) fill_ring(w, ring, plane, lo, hi);
        for (int64_t r = 0; r < h.count; r++) {
            const int64_t iy = y + r * h.gap;
            if (iy < 0 || iy >= in[1]) continue;
            w->row[w->rows] = f->ring ? (const void *)(ring + iy % f->ring * f->ring_row)
                                      : (const char *)w->in +
                                            (plane + iy) * in[2] * w->channels * (int64_t)weft__dtype_size(w->dtype);
            w->tap[w->rows++] = ((d.first + t * d.next) * g->p->kernel[1] + h.first + r * h.next) * g->p->kernel[2];
        }
    }
    w->filled = WEFT__MAX(w->filled, hi);
}

VF_INLINE void pack(float *to, const void *weights, const weft_problem *p, const int dtype) {
    const int64_t taps = dwl_taps(p);
    for (int64_t v = 0; v < dwl_vector(p->o); v++)
        for (int64_t i = 0; i < VF_LANES && dwl_channel(p, v) + i < p->o; i++)
            for (int64_t k = 0; k < taps; k++)
                to[(v * taps + k) * VF_LANES + i] = cpu_get(dtype, weights, (dwl_channel(p, v) + i) * taps + k);
}

weft_status dwl_pack(const weft__exec *e, const void *weights, void *packed) {
    memset(packed, 0, dwl_packed(e->p));
    DW_BY_DTYPE(weft__tensor(e->p, WEFT_ROLE_WEIGHTS)->dtype, pack, packed, weights, e->p)
    return WEFT_OK;
}
