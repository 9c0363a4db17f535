/* Depthwise, channels-first: units, scratch, copies into and out of it. See first.h. */
#include "cpu/dwconv/first.h"

/* Floats of scratch that planes should keep to: the nearest cache; with several planes the next one. */
enum { NEAR = 8192, NEXT = 32768, MOST = 1 << 22, WIDE = CPU_CUT(1024, 32) };
enum { FLUSH = 16 }; /* rows of outputs that leave scratch together, of more than twice as many */

static int64_t take(int64_t *floats, int64_t count) {
    const int64_t at = *floats;
    *floats += cpu_round_up(count, 16);
    return at;
}

static int64_t reach(const dw_window *g, int axis, int64_t count) {
    int64_t lo, hi;
    dw_reach(g, axis, 0, count, &lo, &hi);
    return hi - lo + (g->up && g->phases[axis] > 1);
}

const char *dwf_cut(dwf_plan *f, const dw_window *g, bool gradient, double bytes) {
    const weft_problem *p = g->p;
    const int64_t step = g->up ? 1 : p->stride[2], taps = dwf_taps(p), m = p->o / p->c;
    if (g->ins * p->kernel[0] > DW_PLANES) return "an output is a sum over more than 64 planes";
    const int64_t left = g->up ? p->kernel[2] - 1 - p->pad_lo[2] : p->pad_lo[2];
    const int64_t right = g->out[2] - left + p->kernel[2] - 1 - g->in[2];
    f->in_place = !gradient && p->tensor[0].dtype == WEFT_DTYPE_F32 &&
                  p->stride[0] * p->stride[1] * p->stride[2] == 1 && p->dilation[2] == 1 &&
                  p->kernel[2] <= DWF_MASKED && left <= VF_LANES && right <= VF_LANES;
    f->cols = WEFT__MIN(g->out[2], cpu_round_up(WIDE, VF_LANES * g->phases[2]));
    f->tiles = cpu_ceil(g->out[2], f->cols);
    f->lead =
        g->up ? 0 : cpu_round_up(WEFT__MAX(0, p->pad_lo[2]), 16 * step) / step - WEFT__MAX(0, p->pad_lo[2]) / step;
    if (g->up)
        f->lead = cpu_round_up(
                      WEFT__MAX(0, -dw_floor(p->pad_lo[2] - (p->kernel[2] - 1) * p->dilation[2], p->stride[2])), 16) -
                  WEFT__MAX(0, -dw_floor(p->pad_lo[2] - (p->kernel[2] - 1) * p->dilation[2], p->stride[2]));
    f->phase = cpu_round_up(f->lead + cpu_ceil(reach(g, 2, f->cols), step) + VF_LANES, 16);
    f->row = step * f->phase + (step * f->phase % 1024 == 0 ? 16 : 0);
    f->ring = reach(g, 0, 1);

    const int64_t want = f->ring * g->ins > 1 ? NEXT : NEAR, unit = 4 * g->phases[1];
    const int64_t halo = 2 * (p->kernel[1] - 1) * p->dilation[1] / (g->up ? 1 : p->stride[1]);
    f->rows = g->out[1];
    while (f->rows > WEFT__MAX(2 * unit, halo) && g->ins * f->ring * reach(g, 1, f->rows) * f->row > want)
        f->rows = cpu_round_up(f->rows / 2, unit);
    f->strips = cpu_ceil(g->out[1], f->rows);
    f->rows = WEFT__MIN(g->out[1], cpu_round_up(cpu_ceil(g->out[1], f->strips), unit));
    f->strips = cpu_ceil(g->out[1], f->rows);
    f->plane = reach(g, 1, f->rows) * f->row + 16;

    const int64_t few = p->n * p->c * f->strips * f->tiles;
    f->chunks = WEFT__MAX(1, WEFT__MIN(cpu_ceil(32, few), g->out[0] / (2 * f->ring)));
    f->deep = WEFT__MIN(g->out[0], cpu_round_up(cpu_ceil(g->out[0], f->chunks), g->phases[0]));
    f->chunks = cpu_ceil(g->out[0], f->deep);

    f->split = g->phases[2] > 1 ? cpu_round_up(cpu_ceil(f->cols, g->phases[2]) + VF_LANES, 16) : 0;
    f->pitch = cpu_round_up(f->cols, 16);
    f->planes_at = take(&f->floats, g->ins * f->ring * f->plane + VF_LANES);
    f->strip_at = take(&f->floats, f->rows * f->cols + 2 * VF_LANES * g->phases[2]);
    f->split_at = take(&f->floats, g->phases[2] * f->rows * f->split);
    f->line_at = take(&f->floats, step > 2 ? reach(g, 2, f->cols) + VF_LANES : 0);
    f->raw_at = take(&f->floats, m * taps + VF_LANES);
    f->ordered_at = take(&f->floats, g->ins * taps);
    f->col_at = take(&f->floats, 2 * p->kernel[2]);
    f->center_at = take(&f->floats, gradient ? f->rows * f->pitch + VF_LANES : 0);
    f->sums_at = take(&f->floats, gradient ? m * taps * VF_LANES : 0);
    if (f->floats > MOST) return "the window is too large for the caches";

    const int64_t units = p->n * p->c * f->chunks * f->strips * f->tiles;
    const int64_t worth = WEFT__MAX(16, (int64_t)(bytes / (double)(32 * f->floats)));
    f->slots = WEFT__MIN(cpu_slots(units, bytes), worth);
    return NULL;
}

void dwf_start(dwf_work *w, const dwf_plan *f, const weft__exec *e, bool up, float *scratch) {
    *w = (dwf_work){.f = f, .g = dw_window_of(e->p, up), .dtype = e->p->tensor[0].dtype};
    w->c = w->at = w->b_at = -1;
    w->in = e->ptr[up ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    w->out = e->ptr[up ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    w->weights = e->ptr[WEFT_ROLE_WEIGHTS];
    w->planes = scratch + f->planes_at, w->strip = scratch + f->strip_at, w->split = scratch + f->split_at;
    w->line = scratch + f->line_at, w->raw = scratch + f->raw_at, w->ordered = scratch + f->ordered_at;
    w->center = scratch + f->center_at, w->sums = scratch + f->sums_at;
    w->col = (int64_t *)(void *)(scratch + f->col_at);
}

void dwf_unit(dwf_work *w, int64_t n, int64_t c, int64_t at) {
    const dwf_plan *f = w->f;
    if (c != w->c && w->weights) {
        const int64_t count = w->g.ins * w->g.outs * dwf_taps(w->g.p);
        DW_BY_DTYPE(w->dtype, dw_widen, w->raw, w->weights, c * count, count)
        w->finite = dw_finite(w->raw, count);
    }
    w->n = n, w->c = c;
    w->filled = w->lo[0];
    if (at == w->at) return;
    const int64_t size[3] = {f->deep, f->rows, f->cols};
    const int64_t index[3] = {at / f->tiles / f->strips, at / f->tiles % f->strips, at % f->tiles};
    w->at = at;
    for (int a = 0; a < 3; a++) {
        w->from[a] = index[a] * size[a];
        w->to[a] = WEFT__MIN(w->g.out[a], w->from[a] + size[a]);
        dw_reach(&w->g, a, w->from[a], w->to[a], &w->lo[a], &w->hi[a]);
    }
    w->filled = w->lo[0];
}

/* ---------------------------------------------------------------- copies in */
/* count columns from `index` on, to column rel of a row whose columns are sorted by rel % 2. */
VF_INLINE void fill_pairs(float *row, int64_t phase, int64_t rel, const void *in, int64_t index, int64_t count,
                          const int dtype) {
    float *a = row + rel % 2 * phase + rel / 2, *b = row + (rel + 1) % 2 * phase + (rel + 1) / 2;
    int64_t i = 0;
    for (; i + 2 * VF_LANES <= count; i += 2 * VF_LANES) {
        const vf u = vf_load_as(dtype, in, index + i), v = vf_load_as(dtype, in, index + i + VF_LANES);
        vf_store(a + i / 2, vf_even(u, v));
        vf_store(b + i / 2, vf_odd(u, v));
    }
    if (i >= count) return;
    const vf u = vf_load_count_as(dtype, in, index + i, count - i);
    const vf v = vf_load_count_as(dtype, in, index + i + VF_LANES, count - i - VF_LANES);
    vf_store_count(a + i / 2, vf_even(u, v), (count - i + 1) / 2);
    vf_store_count(b + i / 2, vf_odd(u, v), (count - i) / 2);
}

/* The same for any step; of 3 the compiler makes shuffles. */
static void sort_columns(float *row, int64_t phase, int64_t rel, const float *line, int64_t count, int64_t step) {
    int64_t done = 0;
    if (step == 3 && count >= 3) {
        float *restrict a = row + rel % 3 * phase + rel / 3, *restrict b = row + (rel + 1) % 3 * phase + (rel + 1) / 3;
        float *restrict c = row + (rel + 2) % 3 * phase + (rel + 2) / 3;
        for (int64_t j = 0; j < count / 3; j++) a[j] = line[3 * j], b[j] = line[3 * j + 1], c[j] = line[3 * j + 2];
        done = count / 3 * 3;
    }
    for (int64_t i = done; i < WEFT__MIN(done + step, count); i++) {
        float *at = row + (rel + i) % step * phase + (rel + i) / step;
        for (int64_t j = i; j < count; j += step) *at++ = line[j];
    }
}

/* To whole vectors: what follows is filled later, or slack. */
VF_INLINE void zeros(float *to, int64_t count) {
    for (int64_t i = 0; i < count; i += VF_LANES) vf_store(to + i, vf_keep(vf_zero()));
}

/* Columns [lo, hi) of a row of width cols at in[index], to a row in scratch. */
VF_INLINE void fill_row(const dwf_work *w, float *row, const void *in, int64_t index, int64_t from, int64_t count,
                        int64_t step, const int dtype) {
    const int64_t rel = from - w->lo[2], phase = w->f->phase;
    if (step == 1) {
        int64_t i = 0;
        zeros(row, rel);
        row += rel;
        for (; i + VF_LANES <= count; i += VF_LANES) vf_store(row + i, vf_load_as(dtype, in, index + i));
        vf_store(row + i, vf_load_count_as(dtype, in, index + i, count - i));
        zeros(row + i + VF_LANES, phase - w->f->lead - rel - i - VF_LANES);
    } else if (step == 2) {
        zeros(row, 2 * phase - w->f->lead);
        fill_pairs(row, phase, rel, in, index, count, dtype);
    } else {
        zeros(row, step * phase - w->f->lead);
        dw_widen(w->line, in, index, count, dtype);
        sort_columns(row, phase, rel, w->line, count, step);
    }
}

VF_INLINE void fill_plane(const dwf_work *w, float *plane, int64_t channel, int64_t iz, const int dtype) {
    const int64_t *in = w->g.in, volume = ((w->n * w->g.p->c * w->g.ins + channel) * in[0] + iz) * in[1];
    /* columns that lie in the padding alone have none of the input */
    const int64_t from = WEFT__MIN(WEFT__MAX(0, w->lo[2]), w->hi[2]), to = WEFT__MAX(from, WEFT__MIN(in[2], w->hi[2]));
    const int64_t step = w->g.up ? 1 : w->g.p->stride[2];
    float *row = plane + w->f->lead;
    for (int64_t y = w->lo[1]; y < w->hi[1]; y++, row += w->f->row) {
        if (y < 0 || y >= in[1])
            zeros(row, w->f->row - w->f->lead);
        else
            fill_row(w, row, w->in, (volume + y) * in[2] + from, from, to - from, step, dtype);
    }
}

void dwf_fill(dwf_work *w, int64_t z) {
    int64_t lo, hi;
    dw_reach(&w->g, 0, z, z + 1, &lo, &hi);
    for (int64_t iz = WEFT__MAX(0, WEFT__MAX(lo, w->filled)); iz < WEFT__MIN(hi, w->g.in[0]) && !dwf_in_place(w); iz++)
        for (int64_t i = 0; i < w->g.ins; i++) {
            DW_BY_DTYPE(w->dtype, fill_plane, w, w->planes + (i * w->f->ring + iz % w->f->ring) * w->f->plane,
                        w->c * w->g.ins + i, iz)
        }
    w->filled = WEFT__MAX(hi, w->filled);
}

/* ---------------------------------------------------------------- outputs */
/* Phases of columns side by side, to one row. */
VF_INLINE void interleave(float *to, const float *split, int64_t pitch, int64_t phases, int64_t cols) {
    int64_t x = 0;
    if (phases == 2)
        for (; x < cols; x += 2 * VF_LANES) {
            const vf a = vf_load(split + x / 2), b = vf_load(split + pitch + x / 2);
            vf_store(to + x, vf_zip_lo(a, b));
            vf_store(to + x + VF_LANES, vf_zip_hi(a, b));
        }
    else if (phases == 3)
        for (const float *a = split, *b = a + pitch, *c = b + pitch; x + 3 <= cols; x += 3)
            to[x] = *a++, to[x + 1] = *b++, to[x + 2] = *c++;
    for (int64_t f = 0; f < phases && x + f < cols; f++) {
        const float *from = split + f * pitch + x / phases;
        for (int64_t at = x + f; at < cols; at += phases) to[at] = *from++;
    }
}

int64_t dwf_block_of(dwf_block *b, dwf_work *w, const dw_axis *h, const dw_axis *v) {
    const int64_t *phases = w->g.phases, *in = w->g.in, top = w->from[1] / phases[1] * h->step + h->off;
    const bool in_place = dwf_in_place(w);
    const int64_t row = in_place ? in[2] : w->f->row, reach = w->hi[1] - w->lo[1], rows = w->to[1] - w->from[1];
    b->row = h->step * row, b->tap_row = h->gap * row, b->phase = w->f->phase;
    b->kh = h->count, b->kw = v->count, b->step_h = h->step, b->step_w = v->step, b->gap_h = h->gap, b->gap_w = v->gap;
    b->lo = -top, b->hi = in[1] - top;
    b->pace = cpu_ceil(4 * (in_place ? rows : reach) * in[2] * (int64_t)weft__dtype_size(w->dtype), rows);
    for (int64_t s = 0; s < v->count; s++) w->col[s] = dwf_column(w, s * v->gap);
    b->col = w->col;
    b->in_place = in_place, b->left = w->from[2] + v->off, b->width = in[2];
    if (in_place) return top * row + b->left;
    return (top - w->lo[1]) * row + w->from[2] / phases[2] * v->step + v->off - w->lo[2] + w->f->lead;
}

/* The weights of the planes that meet plane z, in the order of the taps. */
static void order_weights(dwf_block *b, dwf_work *w, int64_t z, int64_t i, const dw_axis axis[3], int64_t at) {
    const int64_t *k = w->g.p->kernel, taps = dwf_taps(w->g.p);
    const dw_axis d = axis[0], h = axis[1], v = axis[2];
    float *to = w->ordered;
    b->planes = 0;
    if (!h.count || !v.count) return;
    for (int64_t in = 0; in < w->g.ins; in++)
        for (int64_t t = 0; t < d.count; t++) {
            const int64_t iz = z / w->g.phases[0] * d.step + d.off + t * d.gap;
            const float *from = w->raw + (i + in) * taps + (d.first + t * d.next) * k[1] * k[2];
            if (iz < 0 || iz >= w->g.in[0]) continue;
            b->plane[b->planes] = dwf_plane(w, in, iz) + at;
            b->weights[b->planes++] = w->g.up ? to : from;
            if (!w->g.up) continue;
            for (int64_t r = 0; r < h.count; r++)
                for (int64_t s = 0; s < v.count; s++)
                    *to++ = from[(h.first + r * h.next) * k[2] + v.first + s * v.next];
        }
}

/* Tap after tap: those in the padding are left out, whatever the weight. */
static float one_output(const dwf_work *w, const int64_t at[3], int64_t i, float sum) {
    const dw_window *g = &w->g;
    dw_axis a[3];
    int64_t j[3];
    for (int x = 0; x < 3; x++)
        a[x] = dw_axis_of(g, x, at[x] % g->phases[x]), j[x] = at[x] / g->phases[x] * a[x].step + a[x].off;
    for (int64_t in = 0; in < g->ins; in++)
        for (int64_t t = 0; t < a[0].count; t++)
            for (int64_t r = 0; r < a[1].count; r++)
                for (int64_t s = 0; s < a[2].count; s++) {
                    const int64_t z = j[0] + t * a[0].gap, y = j[1] + r * a[1].gap, x = j[2] + s * a[2].gap;
                    const int64_t *k = g->p->kernel;
                    const int64_t tap = ((a[0].first + t * a[0].next) * k[1] + a[1].first + r * a[1].next) * k[2] +
                                        a[2].first + s * a[2].next;
                    if (z < 0 || z >= g->in[0] || y < 0 || y >= g->in[1] || x < 0 || x >= g->in[2]) continue;
                    sum += dwf_plane(w, in, z)[w->f->lead + (y - w->lo[1]) * w->f->row + dwf_column(w, x - w->lo[2])] *
                           w->raw[(i + in) * dwf_taps(g->p) + tap];
                }
    return sum;
}

static void slowly(const dwf_work *w, const dwf_block *b, int64_t z, int64_t i, float *out, int64_t pitch) {
    for (int64_t y = w->from[1]; y < w->to[1]; y++)
        for (int64_t x = w->from[2]; x < w->to[2]; x++) {
            const float sum = one_output(w, (int64_t[3]){z, y, x}, i, b->bias), low = sum < b->min ? b->min : sum;
            out[(y - w->from[1]) * pitch + x - w->from[2]] = low > b->max ? b->max : low;
        }
}

/* The next rows of the input follow those of this unit in memory. */
static const void *read_ahead(const dwf_work *w) {
    const int64_t *in = w->g.in, volume = (w->n * w->g.p->c + w->c) * w->g.ins, row = WEFT__MIN(in[1], w->hi[1]);
    const int64_t plane = volume * in[0] + WEFT__MAX(0, WEFT__MIN(in[0], w->filled) - 1);
    const int64_t done = plane * in[1] + (dwf_in_place(w) ? w->lo[1] + w->g.p->kernel[1] + 8 : row);
    return (const char *)w->in + done * in[2] * (int64_t)weft__dtype_size(w->dtype);
}

/* Every phase of the rows and columns of plane z; to rows `pitch` apart. */
static void all_phases(dwf_work *w, int64_t z, int64_t i, const dwf_block *like, float *to, int64_t pitch) {
    const int64_t *phases = w->g.phases, split = w->f->split, rows = w->to[1] - w->from[1],
                  cols = w->to[2] - w->from[2];
    dw_axis axis[3] = {dw_axis_of(&w->g, 0, z % phases[0])};
    for (int64_t fh = 0; fh < WEFT__MIN(phases[1], rows); fh++) {
        axis[1] = dw_axis_of(&w->g, 1, fh);
        for (int64_t fw = 0; fw < WEFT__MIN(phases[2], cols); fw++) {
            axis[2] = dw_axis_of(&w->g, 2, fw);
            dwf_block b = *like;
            const int64_t at = dwf_block_of(&b, w, &axis[1], &axis[2]);
            if (fh + fw) b.pace = 0;
            order_weights(&b, w, z, i, axis, at);
            float *first = split ? w->split + fh * phases[2] * split + fw * split : to + fh * pitch;
            dwf_sum(&b, first, phases[1] * (split ? phases[2] * split : pitch), cpu_ceil(rows - fh, phases[1]),
                    cpu_ceil(cols - fw, phases[2]));
        }
    }
    for (int64_t y = 0; y < rows && split; y++)
        interleave(to + y * pitch, w->split + y * phases[2] * split, split, phases[2], cols);
}

/* The same where there is one phase: the block is the same for every channel. */
static void one_phase(dwf_work *w, int64_t z, int64_t i, const dwf_block *like) {
    const dw_axis axis[3] = {dw_axis_of(&w->g, 0, 0), dw_axis_of(&w->g, 1, 0), dw_axis_of(&w->g, 2, 0)};
    if (w->b_at != 2 * w->at + dwf_in_place(w))
        w->first = dwf_block_of(&w->b, w, &axis[1], &axis[2]), w->b_at = 2 * w->at + dwf_in_place(w);
    w->b.bias = like->bias, w->b.min = like->min, w->b.max = like->max, w->b.ahead = like->ahead;
    order_weights(&w->b, w, z, i, axis, w->first);
}

/* rows of outputs, cols each, from scratch to out[index]. */
static void store_rows(const dwf_work *w, int64_t index, int64_t rows, int64_t cols) {
    const int64_t width = w->g.out[2], runs = cols == width ? 1 : rows, run = cols == width ? rows * cols : cols;
    for (int64_t y = 0; y < runs; y++) {
        DW_BY_DTYPE(w->dtype, dw_narrow, w->out, index + y * width, w->strip + y * run, run, w->stream)
    }
}

/* A few rows at a time, so that loads and stores take turns. */
static void sum_and_store(const dwf_work *w, int64_t index, int64_t rows, int64_t cols) {
    dwf_block b = w->b;
    for (int64_t y = 0; y < rows; y += FLUSH) {
        const int64_t count = rows - y < 2 * FLUSH ? rows - y : FLUSH;
        dwf_sum(&b, w->strip, cols, count, cols);
        store_rows(w, index + y * w->g.out[2], count, cols);
        if (count != FLUSH) break;
        for (int q = 0; q < b.planes; q++) b.plane[q] += FLUSH * b.row;
        b.lo -= FLUSH * b.step_h, b.hi -= FLUSH * b.step_h;
        b.ahead = (const char *)b.ahead + FLUSH / 4 * b.pace;
    }
}

void dwf_outputs(dwf_work *w, int64_t z, int64_t i) {
    const int64_t *out = w->g.out, *phases = w->g.phases, rows = w->to[1] - w->from[1], cols = w->to[2] - w->from[2];
    const int64_t plane = ((w->n * w->g.p->c + w->c) * w->g.outs + i) * out[0] + z;
    const int64_t index = (plane * out[1] + w->from[1]) * out[2] + w->from[2];
    const bool in_place = w->dtype == WEFT_DTYPE_F32 && !w->stream && phases[2] == 1;
    float *to = in_place ? (float *)w->out + index : w->strip;
    const int64_t pitch = in_place ? out[2] : cols;
    dwf_block like;
    like.bias = w->e.bias ? cpu_get(w->e.bias_dtype, w->e.bias, w->c * w->g.outs + i) : 0;
    like.min = w->e.lo, like.max = w->e.hi, like.ahead = read_ahead(w);
    if (w->finite && phases[0] * phases[1] * phases[2] == 1) {
        one_phase(w, z, i, &like);
        if (in_place)
            dwf_sum(&w->b, to, pitch, rows, cols);
        else
            sum_and_store(w, index, rows, cols);
        return;
    }
    if (w->finite)
        all_phases(w, z, i, &like, to, pitch);
    else
        slowly(w, &like, z, i, to, pitch);
    if (!in_place) store_rows(w, index, rows, cols);
}
