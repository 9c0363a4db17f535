/* The gradients of pooling by adding what each window says to the place its index names, or for a mean to all its
 * places: no search for the windows over a place. For first_grad.c, adaptive.c and last.c, which take it where its
 * estimate is less.
 * Math:      max: diff_src[x] = sum of diff_dst[o] over the windows o whose index says x
 *            mean: diff_src[x] = sum of diff_dst[o] / count(o) over the windows o that hold x
 * Blocking:  a strip of a channel (channels-first) or of an image (channels-last) at a time, in the second cache:
 *            places first .. last - 1 of its outermost axis, and all windows over them. Gradient and index of the
 *            windows are made f32 and 32 bits by vectors; then one window after the other
 * Check:     an index may say anything. The table has a bit along each axis for the tap that a number, or a place
 *            relative to the window, is of; a window knows the taps that it may have in this strip
 * Slots:     runs of strips. What a window over two strips says is added in the one that has the place
 * Traffic:   diff_dst and index once, diff_src in f32 zeroed and added to in the caches
 * Measured:  max, 168 planes of 7x7x7, window 3, stride 3: 8 us where rows (first_grad.c) take 200 to 290; 4x2x10x10x10
 *            channels-last, window 2: 5 us for 80 by lists (last.c). Mean, 1352 planes of 5x5x5, window 3, stride 3:
 *            220 to 310 us for 890. Two cores of an EPYC with AVX-512, caches warm */
#include "pool.h"

enum { MOST_TAPS = 20, STRIP = 1 << 15 };    /* bits for an axis; elements of a strip, about */
typedef enum kind { TAP, PLACE, MEAN } kind; /* what an index says; there is none */
static const uint64_t nothing = UINT64_C(1) << 63;

typedef struct task {
    const weft__exec *e;
    const pool_scatter *s;
    int dtype, index_dtype;
} task;

typedef struct state {  /* of a slot */
    uint64_t *taps;     /* by number (u8), or by the place relative to the window */
    int32_t *offsets;   /* u8: the place of a number */
    uint64_t *may[3];   /* the taps that each window of an axis may have */
    pool_range in[3];   /* places of the strip */
    float *counts;      /* mean: of each window along the width */
    pool_range over[3]; /* the windows of each axis that are over the strip */
    float *diff, *sums;
    int32_t *said;
} state;

/* ---------------------------------------------------------------- geometry */
/* The outermost axis that has more than one place or window. */
static int outermost(const weft_problem *p) {
    for (int a = 0; a < 2; a++)
        if (p->in[a] > 1 || p->out[a] > 1) return a;
    return 2;
}

static int64_t reach(const weft_problem *p, int a) { return (p->kernel[a] - 1) * p->dilation[a]; }

/* Places that taps (i, j, k) are from tap 0. */
static int64_t offset_of(const weft_problem *p, int64_t i, int64_t j, int64_t k) {
    return (i * p->dilation[0] * p->in[1] + j * p->dilation[1]) * p->in[2] + k * p->dilation[2];
}

static int64_t table_size(const weft_problem *p, bool place) {
    return place ? offset_of(p, p->kernel[0] - 1, p->kernel[1] - 1, p->kernel[2] - 1) + 1 : 256;
}

/* The windows over places first .. last - 1 of an axis. */
static pool_range windows_over(const weft_problem *p, int a, int64_t first, int64_t last) {
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL)
        return (pool_range){first * p->out[a] / p->in[a], cpu_ceil(last * p->out[a], p->in[a])};
    const int64_t at = first + p->pad_lo[a] - reach(p, a), end = (last - 1 + p->pad_lo[a]) / p->stride[a] + 1;
    return (pool_range){at <= 0 ? 0 : cpu_ceil(at, p->stride[a]), WEFT__MIN(end, p->out[a])};
}

/* What lies over places first .. last - 1 of an axis. */
static void look(const weft_problem *p, int a, pool_range in, state *t) {
    t->in[a] = in;
    t->over[a] = windows_over(p, a, in.first, in.last);
    if (p->op != WEFT_OP_MAX_POOL) return;
    for (int64_t o = t->over[a].first; o < t->over[a].last; o++) {
        uint64_t bits = 0;
        for (int64_t k = 0, x = o * p->stride[a] - p->pad_lo[a]; k < p->kernel[a]; k++, x += p->dilation[a])
            if (x >= in.first && x < in.last) bits |= UINT64_C(1) << (a * MOST_TAPS + k);
        t->may[a][o] = bits;
    }
}

/* ---------------------------------------------------------------- a strip */
/* The windows of one row. base: the place of tap 0 of the first; sums: of the strip, `from` its first place. What is
 * not of this strip adds zero to its first element: whether it is cannot be foreseen. */
VF_INLINE void add_row(const state *t, const float *diff, const int32_t *said, int64_t stride, int64_t base,
                       int64_t size, uint64_t rows, float *sums, int64_t from, int64_t channels, const kind k) {
    const uint64_t *const taps = t->taps, *const along = t->may[2] + t->over[2].first;
    const int32_t *const offsets = t->offsets;
    const int64_t count = t->over[2].last - t->over[2].first;
    for (int64_t o = 0; o < count; o++, base += stride) {
        const uint64_t other = ~(rows | along[o]);
        for (int64_t c = 0; c < channels; c++, diff++, said++) {
            int64_t key = k == PLACE ? *said - base : *said;
            const bool known = k == TAP || (uint64_t)key < (uint64_t)size;
            key = known ? key : 0;
            const uint32_t mine = -(uint32_t)(known & !(taps[key] & other));
            const int64_t at = (base + (k == PLACE ? key : offsets[key]) - from) * channels + c;
            uint32_t bits;
            float value;
            memcpy(&bits, diff, sizeof(bits));
            bits &= mine;
            memcpy(&value, &bits, sizeof(value));
            sums[at & (int64_t)(int32_t)mine] += value;
        }
    }
}

/* The taps of window o of an axis inside the strip, as places. */
VF_INLINE pool_range inside(const weft_problem *p, int a, int64_t o, pool_range in) {
    const bool adaptive = p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    const int64_t at = adaptive ? o * p->in[a] / p->out[a] : o * p->stride[a] - p->pad_lo[a];
    const int64_t end = adaptive ? cpu_ceil((o + 1) * p->in[a], p->out[a]) : at + p->kernel[a];
    return (pool_range){WEFT__MAX(at, in.first), WEFT__MIN(end, in.last)};
}

/* How many places of window o count in its divisor. */
VF_INLINE int64_t counted(const weft_problem *p, int a, int64_t o) {
    if (p->op != WEFT_OP_ADAPTIVE_AVG_POOL) return pool_counted(p, a, o);
    const pool_range all = inside(p, a, o, (pool_range){0, p->in[a]});
    return all.last - all.first;
}

/* The windows at depth z and height y: quotients to all their places in the strip. */
VF_INLINE void spread_row(const weft_problem *p, const state *t, float *diff, int64_t z, int64_t y, float *sums,
                          int64_t from, int64_t channels) {
    const pool_range iz = inside(p, 0, z, t->in[0]), iy = inside(p, 1, y, t->in[1]);
    const bool given = p->op == WEFT_OP_AVG_POOL && p->attr[WEFT_AVG_POOL_DIVISOR];
    const float scale = given ? 1 : (float)(counted(p, 0, z) * counted(p, 1, y));
    for (int64_t o = t->over[2].first; o < t->over[2].last; o++, diff += channels) {
        const pool_range ix = inside(p, 2, o, t->in[2]);
        const float divisor = t->counts[o] * scale;
        for (int64_t c = 0; c < channels; c++) diff[c] /= divisor;
        for (int64_t i = iz.first; i < iz.last; i++)
            for (int64_t j = iy.first; j < iy.last; j++) {
                float *to = sums + ((i * p->in[1] + j) * p->in[2] + ix.first - from) * channels;
                for (int64_t x = ix.first; x < ix.last; x++, to += channels)
                    for (int64_t c = 0; c < channels; c++) to[c] += diff[c];
            }
    }
}

/* count elements of diff_dst and the index from `at` on. */
VF_INLINE void read_as(const task *q, const state *t, int64_t at, int64_t count, const int dtype) {
    const void *from = q->e->ptr[WEFT_ROLE_DIFF_DST], *index = q->e->ptr[WEFT_ROLE_INDEX];
    for (int64_t i = 0; i < count; i += VF_LANES) {
        const int64_t n = count - i;
        vf_store(t->diff + i,
                 n >= VF_LANES ? vf_load_as(dtype, from, at + i) : vf_load_count_as(dtype, from, at + i, n));
        if (index) vi_store(t->said + i, pool_index(index, q->index_dtype, at + i, n));
    }
}
VF_INLINE void write_as(void *to, int64_t at, const float *from, int64_t count, const int dtype) {
    for (int64_t i = 0; i < count; i += VF_LANES)
        if (count - i >= VF_LANES)
            vf_store_as(dtype, to, at + i, vf_load(from + i));
        else
            vf_store_count_as(dtype, to, at + i, vf_load(from + i), count - i);
}

/* Places `in` of the outermost axis of a unit: a channel or an image. */
VF_INLINE void strip_as(const task *q, state *t, int64_t unit, pool_range in, const int dtype, const kind k) {
    const weft_problem *p = q->e->p;
    const pool_scatter *s = q->s;
    const int64_t channels = s->last ? p->c : 1, thick = s->thick * channels, deep = s->thick_out * channels;
    const pool_range *over = t->over;
    const int64_t from = unit * p->in[s->axis] * thick, count = (in.last - in.first) * thick, per_row = p->out[2];
    const int64_t windows = (over[s->axis].last - over[s->axis].first) * deep;
    float *sums = dtype == WEFT_DTYPE_F32 ? (float *)q->e->ptr[WEFT_ROLE_DIFF_SRC] + from + in.first * thick : t->sums;
    memset(sums, 0, (size_t)count * sizeof(float));
    if (windows > 0) read_as(q, t, (unit * p->out[s->axis] + over[s->axis].first) * deep, windows, dtype);
    float *diff = t->diff;
    const int32_t *said = t->said;
    const int64_t step = (s->axis == 2 ? over[2].last - over[2].first : per_row) * channels;
    const int64_t first = in.first * s->thick;
    for (int64_t z = over[0].first; z < over[0].last; z++)
        for (int64_t y = over[1].first; y < over[1].last; y++, diff += step, said += step) {
            if (k == MEAN) {
                spread_row(p, t, diff, z, y, sums, first, channels == 1 ? 1 : channels);
                continue;
            }
            const int64_t iz = z * p->stride[0] - p->pad_lo[0], iy = y * p->stride[1] - p->pad_lo[1];
            const int64_t base = (iz * p->in[1] + iy) * p->in[2] + over[2].first * p->stride[2] - p->pad_lo[2];
            const uint64_t rows = t->may[0][z] | t->may[1][y];
            if (channels == 1)
                add_row(t, diff, said, p->stride[2], base, s->table, rows, sums, first, 1, k);
            else
                add_row(t, diff, said, p->stride[2], base, s->table, rows, sums, first, channels, k);
        }
    if (dtype != WEFT_DTYPE_F32)
        write_as(q->e->ptr[WEFT_ROLE_DIFF_SRC], from + in.first * thick, t->sums, count, dtype);
}

/* ---------------------------------------------------------------- a slot */
static void *carve(char **at, int64_t bytes) {
    void *here = *at;
    *at += cpu_round_up(bytes, 64);
    return here;
}

/* Cuts the scratch of a slot into its parts; returns how long it is. */
static int64_t layout(const weft_problem *p, const pool_scatter *s, kind k, char *at, state *t) {
    char *const begin = at;
    t->taps = carve(&at, s->table * 8);
    t->offsets = carve(&at, k == TAP ? 256 * 4 : 0);
    t->counts = carve(&at, k == MEAN ? p->out[2] * 4 : 0);
    for (int a = 0; a < 3; a++) t->may[a] = carve(&at, p->out[a] * 8);
    t->diff = carve(&at, (s->windows + VF_LANES) * 4);
    t->said = carve(&at, k == MEAN ? 0 : (s->windows + VF_LANES) * 4);
    const bool f32 = weft__tensor(p, WEFT_ROLE_DIFF_SRC)->dtype == WEFT_DTYPE_F32;
    t->sums = carve(&at, f32 ? 0 : (s->places + VF_LANES) * 4);
    return at - begin;
}

static void fill_table(const weft_problem *p, const pool_scatter *s, bool place, state *t) {
    for (int64_t i = 0; i < s->table; i++) t->taps[i] = nothing;
    for (int64_t i = 0; !place && i < s->table; i++) t->offsets[i] = 0;
    int64_t number = 0;
    for (int64_t i = 0; i < p->kernel[0]; i++)
        for (int64_t j = 0; j < p->kernel[1]; j++)
            for (int64_t k = 0; k < p->kernel[2]; k++, number++) {
                const int64_t offset = offset_of(p, i, j, k);
                if (!place) t->offsets[number] = (int32_t)offset;
                t->taps[place ? offset : number] =
                    UINT64_C(1) << i | UINT64_C(1) << (MOST_TAPS + j) | UINT64_C(1) << (2 * MOST_TAPS + k);
            }
}

VF_INLINE void strips(const task *q, int64_t slot, const kind k, const int dtype) {
    const weft_problem *p = q->e->p;
    const pool_scatter *s = q->s;
    state t;
    layout(p, s, k, (char *)q->e->workspace + slot * s->bytes, &t);
    if (k != MEAN) fill_table(p, s, k == PLACE, &t);
    const int64_t given = p->op == WEFT_OP_AVG_POOL ? p->attr[WEFT_AVG_POOL_DIVISOR] : 0;
    for (int64_t o = 0; k == MEAN && o < p->out[2]; o++) t.counts[o] = (float)(given ? given : counted(p, 2, o));
    for (int a = 0; a < 3; a++) look(p, a, (pool_range){0, p->in[a]}, &t);
    const int64_t all = p->n * (s->last ? 1 : p->c) * s->strips, end = cpu_first(all, s->slots, slot + 1);
    const int64_t size = p->in[s->axis];
    for (int64_t i = cpu_first(all, s->slots, slot); i < end; i++) {
        const int64_t n = i % s->strips;
        const pool_range in = {cpu_first(size, s->strips, n), cpu_first(size, s->strips, n + 1)};
        if (s->strips > 1) look(p, s->axis, in, &t);
        strip_as(q, &t, i / s->strips, in, dtype, k);
    }
}

POOL_TASKS(strips, TAP, PLACE, MEAN, F32)
POOL_TASKS(strips, TAP, PLACE, MEAN, F16)
POOL_TASKS(strips, TAP, PLACE, MEAN, BF16)
static const weft_task tasks[WEFT_DTYPE_COUNT][3] = {
    [WEFT_DTYPE_F32] = POOL_TASK_LIST(strips, TAP, PLACE, MEAN, F32),
    [WEFT_DTYPE_F16] = POOL_TASK_LIST(strips, TAP, PLACE, MEAN, F16),
    [WEFT_DTYPE_BF16] = POOL_TASK_LIST(strips, TAP, PLACE, MEAN, BF16),
};

static kind kind_of(const weft_problem *p) {
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    return !index ? MEAN : index->dtype == WEFT_DTYPE_U8 ? TAP : PLACE;
}

void WEFT__ISA_NAME(weft__pool_scatter_run)(const weft__exec *e, const pool_scatter *s) {
    const weft_tensor *index = weft__tensor(e->p, WEFT_ROLE_INDEX);
    task q = {.e = e, .s = s, .dtype = weft__tensor(e->p, WEFT_ROLE_DIFF_SRC)->dtype};
    q.index_dtype = index ? index->dtype : WEFT_DTYPE_U8;
    weft__parallel(e->ctx, s->slots, tasks[q.dtype][kind_of(e->p)], &q);
}

/* ---------------------------------------------------------------- planning */
void WEFT__ISA_NAME(weft__pool_scatter_plan)(const weft_problem *p, const weft__hw *hw, bool last, pool_scatter *s,
                                             weft__decision *d) {
    const int axis = outermost(p);
    const bool adaptive = p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    const kind k = kind_of(p);
    const bool place = k == PLACE;
    for (int a = 0; a < 3; a++) /* no two taps are one place apart by a whole row or plane */
        if ((k != MEAN && p->kernel[a] > MOST_TAPS) || (place && a > 0 && reach(p, a) >= p->in[a])) return;
    const int64_t channels = last ? p->c : 1, items = p->n * (last ? 1 : p->c);
    const int64_t thick = p->in[0] * p->in[1] * p->in[2] / p->in[axis];
    const int64_t thick_out = p->out[0] * p->out[1] * p->out[2] / WEFT__MAX(p->out[axis], 1);
    const double most_rows = (double)(p->out[0] + p->out[1] + p->out[2]);
    if ((double)WEFT__MAX(thick, thick_out) * (double)channels > 1 << 16 || most_rows > 1 << 17) return;
    if (k != MEAN && table_size(p, place) > 1 << 13) return;
    const int64_t places = WEFT__MAX(1, CPU_CUT(STRIP, 256) / WEFT__MAX(thick * channels, 1));
    *s = (pool_scatter){.last = last, .axis = axis, .thick = thick, .thick_out = thick_out};
    s->strips = cpu_ceil(p->in[axis], places), s->table = k == MEAN ? 0 : table_size(p, place);
    const int64_t most = cpu_ceil(p->in[axis], s->strips);
    const int64_t over =
        adaptive ? most * p->out[axis] / p->in[axis] + 2 : (most - 1 + reach(p, axis)) / p->stride[axis] + 1;
    s->places = most * thick * channels;
    s->windows = WEFT__MIN(over, p->out[axis]) * thick_out * channels;
    if (s->windows > 1 << 18) return;
    state unused;
    s->bytes = layout(p, s, k, NULL, &unused);
    const int64_t slots = cpu_slots(items * s->strips, weft__bytes(p));
    const double strips = (double)(items * s->strips), added = strips * (double)s->windows;
    const double sums = (double)weft__numel(weft__tensor(p, WEFT_ROLE_DIFF_SRC));
    const double rows = s->strips > 1 || axis < 2 ? added / (double)WEFT__MAX(channels * p->out[2], 1) : strips;
    double over_place = 1, taps = 1, runs = 2; /* windows: additions to one place wait for each other */
    for (int a = 0; a < 3; a++) {
        const double in = (double)p->in[a], out = (double)p->out[a], step = adaptive ? in / out : (double)p->stride[a];
        const double size =
            adaptive ? ceil(in / out) + (p->in[a] % WEFT__MAX(p->out[a], 1) != 0) : (double)p->kernel[a];
        over_place *= WEFT__MAX(size / step, 1), taps *= size, runs *= a < 2 ? size : 1;
    }
    double each = 2.5 + 0.6 * WEFT__MIN(over_place, 4); /* of an element of a window */
    if (k == MEAN) each = runs / (double)channels + taps * (VF_LANES > 8 ? 0.8 : 0.65);
    const double ns = strips * 30 + rows * 6 + added * each + sums * 0.2 + (double)(slots * s->table);
    const double cost = pool_cost(p, hw, slots, ns);
    if (cost >= d->ns) return;
    s->slots = slots;
    d->ns = cost;
    d->workspace = (size_t)(s->slots * s->bytes);
}
