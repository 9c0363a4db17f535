/* Max and average pooling in 2D, channels-first, windows of 2x2 or 3x3 places and stride 2, on f32, f16 and bf16.
 * Math:      as in first.c
 * Blocking:  one vector of windows at a time, all in registers: the rows of a window are reduced in two vectors of
 *            places, which are parted into even and odd columns; the third column is one of them, slid by a lane
 * Index:     a vector beside has the number of the row that each greatest came from. Of equals the first row wins and
 *            then the first column, of NaN the last
 * Slots:     runs of output rows; each has its own buffer
 * Traffic:   src once, dst and index once: memory-bound
 * Measured:  8x256x56x56, window 3, two cores of an EPYC with AVX-512: 80% (max) and 76% (average) of a copy's rate, 26
 *            and 7 times PyTorch's speed; with an index 3.1 ms where first.c takes 5.2
 * Assumes:   all tensors dense channels-first, data of one type; index of any type
 * Try:       weft bench max_pool2d:fwd:f32:nchw:n8c256h56w56:k3s2p1 avg_pool2d:fwd:f32:nchw:n8c256h56w56:k3s2p1 */
#include "pool.h"
#include "rows.h"

enum { AHEAD = 4096 };      /* bytes from what is read to what is fetched */
enum { NOWHERE = 1 << 30 }; /* the number of a row outside of the image, beyond all others */
typedef enum kind { MAX, MAX_INDEX, MEAN } kind;

typedef struct params {
    int64_t slots, bytes; /* bytes of scratch per slot */
} params;

typedef struct task {
    const weft__exec *e;
    params s;
    bool place; /* the index is a place of the channel, else a number of the window */
    int index_dtype;
} task;

typedef struct source { /* an input row of the windows */
    int64_t at, count;  /* count 0: outside of the image */
    int32_t base;       /* index of its tap 0: the number in the window, or the place for window 0 */
} source;

typedef struct column { /* a vector of places, reduced over the rows of their windows */
    vf best;
    vi base;
} column;

/* ---------------------------------------------------------------- rows */
VF_INLINE column outside(const kind k) { return (column){vf_set1(k == MEAN ? 0 : -INFINITY), vi_set1(NOWHERE)}; }

/* Places x, x + 1, ... */
VF_INLINE column down(const void *src, const source *from, int64_t x, const kind k, const int rows, const int dtype) {
    column c = outside(k);
    VF_UNROLL for (int r = 0; r < rows; r++) {
        const int64_t n = from[r].count - x, at = from[r].at + x;
        const vf v = n >= VF_LANES ? vf_load_as(dtype, src, at) : vf_load_count_as(dtype, src, at, n);
        vf_prefetch(src, at * vf_size_of(dtype) + AHEAD);
        if (r == 0) {
            c = (column){v, vi_set1(from[r].base)};
        } else if (k == MEAN) {
            c.best = vf_add(c.best, v);
        } else if (k == MAX) {
            c.best = vf_max_nan(c.best, v);
        } else {
            const vmask greater = vm_or(vf_gt(v, c.best), vf_is_nan(v));
            c.best = vf_select(greater, v, c.best);
            c.base = vi_select(greater, vi_set1(from[r].base), c.base);
        }
    }
    const int64_t left = from[0].count - x;
    if (left >= VF_LANES || k == MEAN) return c;
    const vmask in = vm_first(left);
    return (column){vf_select(in, c.best, vf_set1(-INFINITY)), vi_select(in, c.base, vi_set1(NOWHERE))};
}

/* ---------------------------------------------------------------- columns */
typedef struct parted { /* even and odd columns of two vectors */
    column even, odd;
} parted;

VF_INLINE parted part(const void *src, const source *from, int64_t x, const kind k, const int rows, const int dtype) {
    const column a = down(src, from, x, k, rows, dtype), b = down(src, from, x + VF_LANES, k, rows, dtype);
    parted p = {{vf_even(a.best, b.best), a.base}, {vf_odd(a.best, b.best), a.base}};
    if (k == MAX_INDEX) p.even.base = vi_even(a.base, b.base), p.odd.base = vi_odd(a.base, b.base);
    return p;
}

VF_INLINE column slide(column a, column b, const int lanes, const kind k) {
    a.best = vf_slide(a.best, b.best, lanes);
    if (k == MAX_INDEX) a.base = vf_bits(vf_slide(vf_from_bits(a.base), vf_from_bits(b.base), lanes));
    return a;
}

/* The value of a vector of windows and, without the columns before them, its index. NaN in a sum of columns, of which
 * there may be others, sends them the careful way. */
VF_INLINE vf across(const column *c, const int taps, const kind k, vi *index) {
    vf best = c[0].best, sum = c[0].best;
    VF_UNROLL for (int i = 1; i < taps; i++) {
        best = k == MEAN ? vf_add(best, c[i].best) : k == MAX ? vf_max_nan(best, c[i].best) : vf_max(best, c[i].best);
        sum = vf_add(sum, c[i].best);
    }
    if (k != MAX_INDEX) return best;
    if (vm_none(vf_is_nan(sum))) {
        *index = vi_select(vf_eq(c[0].best, best), c[0].base, vi_set1(NOWHERE));
        VF_UNROLL for (int i = 1; i < taps; i++) {
            const vi name = vi_add(c[i].base, vi_set1(i));
            *index = vi_min(*index, vi_select(vf_eq(c[i].best, best), name, vi_set1(NOWHERE)));
        }
        return best;
    }
    vi base = c[0].base;
    best = c[0].best, *index = base;
    for (int i = 1; i < taps; i++) {
        const vmask wins = pool_wins(c[i].best, c[i].base, best, base);
        best = vf_select(wins, c[i].best, best);
        base = vi_select(wins, c[i].base, base);
        *index = vi_select(wins, vi_add(c[i].base, vi_set1(i)), *index);
    }
    return best;
}

/* A row of windows. pad: places before the row; rows and taps of a window are as many. */
VF_INLINE void windows(const task *q, const source *from, float scale, const float *counts, float *to, int64_t at,
                       const kind k, const int pad, const int taps, const int dtype) {
    const weft_problem *p = q->e->p;
    const void *src = q->e->ptr[WEFT_ROLE_SRC];
    const int64_t wide = p->out[2];
    const bool ahead = !pad && taps == 3; /* the third column is the first of the windows that follow */
    parted now = {outside(k), outside(k)}, next = now;
    if (ahead) next = part(src, from, 0, k, taps, dtype);
    for (int64_t o = 0; o < wide; o += VF_LANES) {
        const parted before = now;
        now = ahead ? next : part(src, from, 2 * o, k, taps, dtype);
        if (ahead) next = part(src, from, 2 * (o + VF_LANES), k, taps, dtype);
        column c[3];
        if (pad) {
            c[0] = slide(before.odd, now.odd, VF_LANES - 1, k), c[1] = now.even, c[2] = now.odd;
        } else {
            c[0] = now.even, c[1] = now.odd, c[2] = slide(now.even, next.even, 1, k);
        }
        vi index;
        vf best = across(c, taps, k, &index);
        if (k == MEAN) best = vf_div(best, vf_mul(vf_load(counts + o), vf_set1(scale)));
        vf_store(to + o, best);
        if (k == MAX_INDEX) {
            const vi first = vi_add(vi_set1((int32_t)(2 * o)), vi_add(vi_iota(), vi_iota()));
            pool_put_index(q->e->ptr[WEFT_ROLE_INDEX], q->index_dtype, at + o, q->place ? vi_add(index, first) : index,
                           wide - o);
        }
    }
}

VF_INLINE void windows_as(const task *q, const source *from, float scale, const float *counts, float *to, int64_t at,
                          const kind k, const int dtype) {
    const bool three = q->e->p->kernel[2] == 3, pad = q->e->p->pad_lo[2];
    if (three && pad)
        windows(q, from, scale, counts, to, at, k, 1, 3, dtype);
    else if (three)
        windows(q, from, scale, counts, to, at, k, 0, 3, dtype);
    else if (pad)
        windows(q, from, scale, counts, to, at, k, 1, 2, dtype);
    else
        windows(q, from, scale, counts, to, at, k, 0, 2, dtype);
}

/* ---------------------------------------------------------------- a slot */
/* The input rows of the windows at height y. In the place of one outside of the image is the last again, which changes
 * nothing, or for a mean none. */
VF_INLINE void collect(const task *q, int64_t plane, int64_t y, source from[3]) {
    const weft_problem *p = q->e->p;
    const pool_range in = pool_taps(p, 1, y);
    for (int64_t i = 0; i < 3; i++) {
        const int64_t r = WEFT__MIN(i + in.first, in.last - 1), row = 2 * y - p->pad_lo[1] + r;
        from[i] = (source){(plane * p->in[1] + row) * p->in[2], p->in[2],
                           (int32_t)(q->place ? row * p->in[2] - p->pad_lo[2] : r * p->kernel[2])};
        if (p->op == WEFT_OP_AVG_POOL && i + in.first >= in.last) from[i].count = 0;
    }
}

VF_INLINE void rows_of_windows(const task *q, int64_t slot, const kind k, const int dtype) {
    const weft_problem *p = q->e->p;
    const weft_tensor *dst = weft__tensor(p, WEFT_ROLE_DST);
    const int64_t wide = p->out[2], all = p->n * p->c * p->out[1], end = cpu_first(all, q->s.slots, slot + 1);
    const int64_t given = k == MEAN ? p->attr[WEFT_AVG_POOL_DIVISOR] : 0;
    float *counts = (float *)(void *)((char *)q->e->workspace + slot * q->s.bytes);
    sink out = {.buffer = counts + cpu_round_up(wide, 16), .dst = q->e->ptr[WEFT_ROLE_DST], .dtype = dtype};
    out.stream = cpu_streams(q->e->hw, (double)(weft__numel(dst) * vf_size_of(dtype)));
    for (int64_t o = 0; k == MEAN && o < cpu_round_up(wide, VF_LANES); o++)
        counts[o] = (float)(given ? given : pool_counted(p, 2, WEFT__MIN(o, wide - 1)));
    int64_t row = cpu_first(all, q->s.slots, slot);
    out.at = row * wide;
    for (; row < end; row++) {
        const int64_t y = row % p->out[1];
        source from[3];
        collect(q, row / p->out[1], y, from);
        const float scale = k == MEAN && !given ? (float)pool_counted(p, 1, y) : 1;
        windows_as(q, from, scale, counts, sink_room(&out), row * wide, k, dtype);
        sink_commit(&out, wide);
    }
    sink_end(&out);
}

POOL_TASKS(rows_of_windows, MAX, MAX_INDEX, MEAN, F32)
POOL_TASKS(rows_of_windows, MAX, MAX_INDEX, MEAN, F16)
POOL_TASKS(rows_of_windows, MAX, MAX_INDEX, MEAN, BF16)
static const weft_task tasks[WEFT_DTYPE_COUNT][3] = {
    [WEFT_DTYPE_F32] = POOL_TASK_LIST(rows_of_windows, MAX, MAX_INDEX, MEAN, F32),
    [WEFT_DTYPE_F16] = POOL_TASK_LIST(rows_of_windows, MAX, MAX_INDEX, MEAN, F16),
    [WEFT_DTYPE_BF16] = POOL_TASK_LIST(rows_of_windows, MAX, MAX_INDEX, MEAN, BF16),
};

static weft_status run(const weft__exec *e) {
    const weft_tensor *index = weft__tensor(e->p, WEFT_ROLE_INDEX);
    task q = {.e = e, .s = *(const params *)e->params, .index_dtype = index ? index->dtype : WEFT_DTYPE_U8};
    const kind k = e->p->op == WEFT_OP_AVG_POOL ? MEAN : index ? MAX_INDEX : MAX;
    q.place = q.index_dtype != WEFT_DTYPE_U8;
    weft__parallel(e->ctx, q.s.slots, tasks[e->p->tensor[0].dtype][k], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *reason = pool_refusal(p);
    if (!reason) reason = pool_layout_refusal(p, WEFT_LAYOUT_FIRST);
    if (!reason) reason = pool_pairs_refusal(p);
    if (reason) return reason;
    if (p->kernel[1] != p->kernel[2]) return "the window is not a square";
    params *s = WEFT__PARAMS(params, d);
    const int64_t all = p->n * p->c * p->out[1];
    s->bytes = (cpu_round_up(p->out[2], 16) + sink_floats(p->out[2])) * 4;
    s->slots = cpu_slots(all, weft__bytes(p));
    d->workspace = (size_t)(s->slots * s->bytes);
    const double vectors = (double)cpu_ceil(p->out[2], VF_LANES), each = weft__tensor(p, WEFT_ROLE_INDEX) ? 12 : 6;
    d->ns = pool_cost(p, hw, s->slots, (double)all * (5 + each * vectors));
    return NULL;
}

POOL_RECORD(MAX_POOL, max_pool_fwd_pairs, "max_pool_fwd_nchw_2v", FWD, true);
POOL_RECORD(AVG_POOL, avg_pool_fwd_pairs, "avg_pool_fwd_nchw_2v", FWD, true);
