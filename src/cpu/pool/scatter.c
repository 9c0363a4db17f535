/* The gradient of max pooling by adding what each window says where its index says: one addition a window and no search
 * for the windows over a place. For first_grad.c and last.c, which take it where its estimate is the less.
 * Math:      diff_src[x] = sum of diff_dst[o] over the windows o whose index says x
 * Blocking:  a strip of a channel (channels-first) or of an image (channels-last) at a time, in the second cache: places
 *            first .. last - 1 of its outermost axis, and all windows over them. Gradient and index of the windows are
 *            made f32 and 32 bits by vectors; then one window after the other
 * Check:     an index may say anything. The table has a bit along each axis for the tap that a number, or a place
 *            relative to the window, is of; a window knows the taps that it may have in this strip
 * Slots:     runs of strips. A window over two strips is read by both and added by one: bits are the same
 * Traffic:   diff_dst and index once, diff_src in f32 zeroed and added to in the caches
 * Measured:  see first_grad.c and last.c */
#include "pool.h"

enum { MOST_TAPS = 20, STRIP = 1 << 14 }; /* bits for an axis; elements of a strip, about */
static const uint64_t nothing = UINT64_C(1) << 63;

typedef struct task {
    const weft__exec *e;
    const pool_scatter *s;
    int dtype, index_dtype;
} task;

typedef struct state { /* of a slot */
    uint64_t *taps;    /* by number (u8), or by the place relative to the window */
    int32_t *offsets;  /* u8: the place of a number */
    uint64_t *along;   /* the taps that each window along the width may have */
    float *diff, *sums;
    int32_t *said;
} state;

/* ---------------------------------------------------------------- geometry */
static int64_t channels_inside(const weft_problem *p, bool last) { return last ? p->c : 1; }

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
    const int64_t at = first + p->pad_lo[a] - reach(p, a), end = (last - 1 + p->pad_lo[a]) / p->stride[a] + 1;
    return (pool_range){at <= 0 ? 0 : cpu_ceil(at, p->stride[a]), WEFT__MIN(end, p->out[a])};
}

/* The bits of the taps of window o of an axis that are at places first .. last - 1. */
static uint64_t allowed(const weft_problem *p, int a, int64_t o, pool_range in) {
    uint64_t bits = 0;
    for (int64_t k = 0, x = o * p->stride[a] - p->pad_lo[a]; k < p->kernel[a]; k++, x += p->dilation[a])
        if (x >= in.first && x < in.last) bits |= UINT64_C(1) << (a * MOST_TAPS + k);
    return bits;
}

/* ---------------------------------------------------------------- a strip */
/* The windows of one row. base: the place of tap 0 of the first; sums: of place 0 of the channel, which may be before
 * the strip. */
VF_INLINE void add_row(const state *t, const float *diff, const int32_t *said, int64_t count, int64_t stride,
                       int64_t base, int64_t size, uint64_t rows, float *sums, int64_t channels, const bool place) {
    for (int64_t o = 0; o < count; o++, base += stride) {
        const uint64_t other = ~(rows | t->along[o]);
        for (int64_t c = 0; c < channels; c++, diff++, said++) {
            const int64_t key = place ? *said - base : *said;
            if ((uint64_t)key >= (uint64_t)size || t->taps[key] & other) continue;
            sums[(base + (place ? key : t->offsets[key])) * channels + c] += *diff;
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
        vi_store(t->said + i, pool_index(index, q->index_dtype, at + i, n));
    }
}
VF_INLINE void write_as(void *to, int64_t at, const float *from, int64_t count, const int dtype) {
    for (int64_t i = 0; i < count; i += VF_LANES)
        if (count - i >= VF_LANES)
            vf_store_as(dtype, to, at + i, vf_load(from + i));
        else
            vf_store_count_as(dtype, to, at + i, vf_load(from + i), count - i);
}

VF_INLINE void strip_as(const task *q, const state *t, int64_t unit, pool_range in, const int dtype, const bool place) {
    const weft_problem *p = q->e->p;
    const int axis = outermost(p);
    const int64_t channels = channels_inside(p, q->s->last), inner = p->in[0] * p->in[1] * p->in[2] / p->in[axis];
    const int64_t places = p->in[0] * p->in[1] * p->in[2], out = p->out[0] * p->out[1] * p->out[2];
    const int64_t from = (unit * places + in.first * inner) * channels, count = (in.last - in.first) * inner * channels;
    float *sums = dtype == WEFT_DTYPE_F32 ? (float *)q->e->ptr[WEFT_ROLE_DIFF_SRC] + from : t->sums;
    memset(sums, 0, (size_t)count * sizeof(float));
    pool_range limit[3], over[3];
    for (int a = 0; a < 3; a++) {
        limit[a] = a == axis ? in : (pool_range){0, p->in[a]};
        over[a] = a == axis ? windows_over(p, a, in.first, in.last) : (pool_range){0, p->out[a]};
    }
    const int64_t per_row = over[2].last - over[2].first, first = over[axis].first * (out / p->out[axis]);
    const int64_t windows = (over[axis].last - over[axis].first) * (out / p->out[axis]);
    const int64_t size = table_size(p, place);
    if (windows > 0) read_as(q, t, (unit * out + first) * channels, windows * channels, dtype);
    for (int64_t o = 0; o < per_row; o++) t->along[o] = allowed(p, 2, over[2].first + o, limit[2]);
    const float *diff = t->diff;
    const int32_t *said = t->said;
    for (int64_t z = over[0].first; z < over[0].last; z++) {
        const uint64_t deep = allowed(p, 0, z, limit[0]);
        for (int64_t y = over[1].first; y < over[1].last; y++, diff += per_row * channels, said += per_row * channels) {
            const int64_t iz = z * p->stride[0] - p->pad_lo[0], iy = y * p->stride[1] - p->pad_lo[1];
            const int64_t base = (iz * p->in[1] + iy) * p->in[2] + over[2].first * p->stride[2] - p->pad_lo[2];
            const uint64_t rows = deep | allowed(p, 1, y, limit[1]);
            float *to = sums - in.first * inner * channels;
            if (channels == 1)
                add_row(t, diff, said, per_row, p->stride[2], base, size, rows, to, 1, place);
            else
                add_row(t, diff, said, per_row, p->stride[2], base, size, rows, to, channels, place);
        }
    }
    if (dtype != WEFT_DTYPE_F32) write_as(q->e->ptr[WEFT_ROLE_DIFF_SRC], from, t->sums, count, dtype);
}

/* ---------------------------------------------------------------- a slot */
static void *carve(char **at, int64_t bytes) {
    void *here = *at;
    *at += cpu_round_up(bytes, 64);
    return here;
}

/* Cuts the scratch of a slot into its parts; returns how long it is. */
static int64_t layout(const weft_problem *p, const pool_scatter *s, bool place, char *at, state *t) {
    char *const begin = at;
    t->taps = carve(&at, table_size(p, place) * 8);
    t->offsets = carve(&at, place ? 0 : 256 * 4);
    t->along = carve(&at, p->out[2] * 8);
    t->diff = carve(&at, (s->windows + VF_LANES) * 4);
    t->said = carve(&at, (s->windows + VF_LANES) * 4);
    const bool f32 = weft__tensor(p, WEFT_ROLE_DIFF_SRC)->dtype == WEFT_DTYPE_F32;
    t->sums = carve(&at, f32 ? 0 : (s->places + VF_LANES) * 4);
    return at - begin;
}

static void fill_table(const weft_problem *p, bool place, state *t) {
    for (int64_t i = 0; i < table_size(p, place); i++) t->taps[i] = nothing;
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

VF_INLINE void strips(const task *q, int64_t slot, const int dtype, const bool place) {
    const weft_problem *p = q->e->p;
    const pool_scatter *s = q->s;
    state t;
    layout(p, s, place, (char *)q->e->workspace + slot * s->bytes, &t);
    fill_table(p, place, &t);
    const int64_t all = p->n * (s->last ? 1 : p->c) * s->strips, end = cpu_first(all, s->slots, slot + 1);
    const int64_t size = p->in[outermost(p)];
    for (int64_t i = cpu_first(all, s->slots, slot); i < end; i++) {
        const int64_t n = i % s->strips;
        strip_as(q, &t, i / s->strips, (pool_range){cpu_first(size, s->strips, n), cpu_first(size, s->strips, n + 1)},
                 dtype, place);
    }
}

#define TASKS(type)                                                                               \
    static void taps_##type(void *q, int64_t slot) { strips(q, slot, WEFT_DTYPE_##type, false); } \
    static void places_##type(void *q, int64_t slot) { strips(q, slot, WEFT_DTYPE_##type, true); }
TASKS(F32)
TASKS(F16)
TASKS(BF16)
static const weft_task tasks[WEFT_DTYPE_COUNT][2] = {
    [WEFT_DTYPE_F32] = {taps_F32, places_F32},
    [WEFT_DTYPE_F16] = {taps_F16, places_F16},
    [WEFT_DTYPE_BF16] = {taps_BF16, places_BF16},
};

void WEFT__ISA_NAME(pool_scatter_run)(const weft__exec *e, const pool_scatter *s) {
    task q = {.e = e, .s = s, .dtype = weft__tensor(e->p, WEFT_ROLE_DIFF_SRC)->dtype};
    q.index_dtype = weft__tensor(e->p, WEFT_ROLE_INDEX)->dtype;
    weft__parallel(e->ctx, s->slots, tasks[q.dtype][q.index_dtype != WEFT_DTYPE_U8], &q);
}

/* ---------------------------------------------------------------- planning */
void WEFT__ISA_NAME(pool_scatter_plan)(const weft_problem *p, const weft__hw *hw, bool last, pool_scatter *s,
                                       weft__decision *d) {
    const int axis = outermost(p);
    const bool place = weft__tensor(p, WEFT_ROLE_INDEX)->dtype != WEFT_DTYPE_U8;
    for (int a = 0; a < 3; a++) /* no two taps are one place apart by a whole row or plane */
        if (p->kernel[a] > MOST_TAPS || (place && a > 0 && reach(p, a) >= p->in[a])) return;
    const int64_t channels = channels_inside(p, last), per_place = p->in[0] * p->in[1] * p->in[2] / p->in[axis];
    const int64_t per_window = p->out[0] * p->out[1] * p->out[2] / p->out[axis];
    if ((double)per_place * (double)channels > 1 << 16 || (double)per_window * (double)channels > 1 << 16) return;
    if ((double)reach(p, 0) * (double)(p->in[1] * p->in[2]) + (double)reach(p, 1) * (double)p->in[2] > 1 << 13) return;
    if (table_size(p, place) > 1 << 13) return;
    const int64_t thick = WEFT__MAX(1, CPU_CUT(STRIP, 256) / WEFT__MAX(per_place * channels, 1));
    *s = (pool_scatter){.last = last, .strips = cpu_ceil(p->in[axis], thick)};
    const int64_t most = cpu_ceil(p->in[axis], s->strips), over = (most - 1 + reach(p, axis)) / p->stride[axis] + 1;
    s->places = most * per_place * channels;
    s->windows = WEFT__MIN(over, p->out[axis]) * per_window * channels;
    if (s->windows > 1 << 18) return;
    const int64_t items = p->n * (last ? 1 : p->c) * s->strips;
    state unused;
    s->bytes = layout(p, s, place, NULL, &unused);
    const int64_t slots = cpu_slots(items, weft__bytes(p));
    const double added = (double)items * (double)s->windows, rows = added / (double)(channels * p->out[2]);
    const double sums = (double)weft__numel(weft__tensor(p, WEFT_ROLE_DIFF_SRC));
    const double ns = (double)items * 30 + rows * 8 + added * 1.6 + sums * 0.15 + (double)slots * 200;
    const double cost = cpu_work_cost(p, hw, ns);
    if (cost >= d->ns) return;
    s->slots = slots;
    d->ns = cost;
    d->workspace = (size_t)(s->slots * s->bytes);
}
