/* Gradients of max and average pooling in 2D, channels-first, windows of 2 or 3 places and stride 2 along both axes, on
 * f32, f16 and bf16.
 * Math:      as in first_grad.c
 * Blocking:  two rows of diff_src at a time. In the padded image the rows 2m and 2m + 1 lie under the rows m and m - 1
 *            of windows (taps 0 and 2) and under m alone (tap 1), and so do the columns: what a vector of windows and
 *            the same one place beside it say goes to four vectors of places, which are zipped to two rows. Nothing is
 *            kept from row to row: windows are read where they lie, twice
 * Slots:     runs of pairs of rows; each has its own buffer
 * Traffic:   diff_dst and index once from memory and once from the nearest cache, diff_src once and streamed where it
 *            is large
 * Measured:  8x256x56x56, window 3, two cores of an EPYC with AVX-512: half of a copy's rate, max 2.9 ms where
 *            first_grad.c takes 5.5, average 2.5 and 4.3; with the forward pass 11 and 6.6 times PyTorch's speed
 * Assumes:   all tensors dense channels-first, data of one type; index of any type
 * Try:       weft bench max_pool2d:bwd:f32:nchw:n8c256h56w56:k3s2p1 avg_pool2d:bwd:f32:nchw:n8c256h56w56:k3s2p1 */
#include "pool.h"
#include "rows.h"

typedef enum kind { MAX_TAP, MAX_PLACE, MEAN } kind;

typedef struct params {
    int64_t slots, bytes, pairs; /* bytes of scratch per slot; pairs of rows of a plane */
} params;

typedef struct task {
    const weft__exec *e;
    params s;
    int index_dtype;
} task;

typedef struct row { /* of windows; count 0: there is none */
    int64_t at, count;
    float scale; /* of the divisors along the row */
} row;

typedef struct state {      /* of a slot */
    float *counts, *unused; /* divisors along a row; a row of places outside of the image */
    sink out;
} state;

typedef struct part { /* a vector of windows. max: of the rows m and m - 1; mean: their sum, and m alone */
    vf diff[2];
    vi index[2];
} part;

/* ---------------------------------------------------------------- two rows */
VF_INLINE vi index_of(const task *q, int64_t at, int64_t n) {
    const void *index = q->e->ptr[WEFT_ROLE_INDEX];
    if (q->index_dtype == WEFT_DTYPE_U8 && n >= VF_LANES) return vi_load_u8((const uint8_t *)index + at);
    return pool_index(index, q->index_dtype, at, n);
}

/* Windows j, j + 1, ... of both rows; whole: no row ends among them. Behind the end their gradient is 0, whatever their
 * index. */
VF_INLINE part see(const task *q, const state *t, const row r[2], int64_t j, const kind k, const int dtype,
                   const bool whole) {
    const void *diff = q->e->ptr[WEFT_ROLE_DIFF_DST];
    part p;
    VF_UNROLL for (int i = 0; i < 2; i++) {
        const int64_t n = r[i].count - j, at = r[i].at + j;
        p.diff[i] = vf_zero(), p.index[i] = vi_zero();
        if (n <= 0) continue;
        p.diff[i] = whole ? vf_load_as(dtype, diff, at) : vf_load_count_as(dtype, diff, at, n);
        if (k != MEAN) p.index[i] = index_of(q, at, whole ? VF_LANES : n);
        if (k == MEAN) p.diff[i] = vf_div(p.diff[i], vf_mul(vf_load(t->counts + j), vf_set1(r[i].scale)));
    }
    if (k == MEAN) {
        const vf alone = p.diff[0];
        p.diff[0] = vf_add(p.diff[0], p.diff[1]), p.diff[1] = alone;
    }
    return p;
}
/* The same where a row ends, for any kind and data type. */
static __attribute__((noinline)) void see_end(part *p, const task *q, const state *t, const row r[2], int64_t j,
                                              kind k) {
    *p = see(q, t, r, j, k, t->out.dtype, false);
}
VF_INLINE bool ends(row r, int64_t j) { return r.count > j && r.count - j < VF_LANES; }
VF_INLINE part see_windows(const task *q, const state *t, const row r[2], int64_t j, const kind k, const int dtype) {
    if (!ends(r[0], j) && !ends(r[1], j)) return see(q, t, r, j, k, dtype, true);
    part p;
    see_end(&p, q, t, r, j, k);
    return p;
}

/* The lanes one to the right, or one to the left. */
VF_INLINE part slide(part a, part b, const int lanes, const kind k) {
    VF_UNROLL for (int i = 0; i < 2; i++) {
        a.diff[i] = vf_slide(a.diff[i], b.diff[i], lanes);
        if (k != MEAN) a.index[i] = vf_bits(vf_slide(vf_from_bits(a.index[i]), vf_from_bits(b.index[i]), lanes));
    }
    return a;
}

VF_INLINE vf add_said(vf sum, vf diff, vi index, vi name) {
    return vf_add(sum, vf_select(vi_eq(index, name), diff, vf_zero()));
}

/* The taps along the width that the places of one class of columns have: tap `number` of window j + `window`. */
#define PAIRS_TAP(class, pad, number) (((class) + (pad) - (number)) % 2 == 0)
#define PAIRS_WINDOW(class, pad, number) (((class) + (pad) - (number)) / 2)

/* to[0]: the row under m and m - 1, to[1]: that under m alone; place: of their first elements in the channel. */
VF_INLINE void two_rows(const task *q, const state *t, const row r[2], float *const to[2], const int32_t place[2],
                        const kind k, const int pad, const int kw, const int dtype) {
    const int64_t width = q->e->p->in[2];
    part now = {{vf_zero(), vf_zero()}, {vi_zero(), vi_zero()}}, beside, next = now;
    if (pad) next = see_windows(q, t, r, 0, k, dtype);
    vi x = vi_add(vi_iota(), vi_iota());
    for (int64_t j = 0; 2 * j < width; j += VF_LANES) {
        if (pad) {
            now = next, next = see_windows(q, t, r, j + VF_LANES, k, dtype);
            beside = slide(now, next, 1, k);
        } else {
            const part before = now;
            now = see_windows(q, t, r, j, k, dtype);
            beside = slide(before, now, VF_LANES - 1, k);
        }
        vf sum[2][2];
        VF_UNROLL for (int class = 0; class < 2; class ++) {
            sum[0][class] = sum[1][class] = vf_zero();
            VF_UNROLL for (int i = 0; i < kw; i++) {
                if (!PAIRS_TAP(class, pad, i)) continue;
                const part *w = PAIRS_WINDOW(class, pad, i) ? &beside : &now;
                if (k == MEAN) {
                    VF_UNROLL for (int n = 0; n < 2; n++) sum[n][class] = vf_add(sum[n][class], w->diff[n]);
                    continue;
                }
                const vi here = vi_add(x, vi_set1(place[0] + class)), below = vi_add(x, vi_set1(place[1] + class));
                const bool tap = k == MAX_TAP;
                sum[0][class] = add_said(sum[0][class], w->diff[0], w->index[0], tap ? vi_set1(i) : here);
                sum[0][class] = add_said(sum[0][class], w->diff[1], w->index[1], tap ? vi_set1(2 * kw + i) : here);
                sum[1][class] = add_said(sum[1][class], w->diff[0], w->index[0], tap ? vi_set1(kw + i) : below);
            }
        }
        const int64_t left = width - 2 * j;
        VF_UNROLL for (int n = 0; n < 2; n++) {
            const vf lo = vf_zip_lo(sum[n][0], sum[n][1]), hi = vf_zip_hi(sum[n][0], sum[n][1]);
            float *at = to[n] + 2 * j;
            if (left >= 2 * VF_LANES) {
                vf_store(at, lo), vf_store(at + VF_LANES, hi);
            } else { /* behind the first row is the second */
                vf_store_count(at, lo, left), vf_store_count(at + VF_LANES, hi, left - VF_LANES);
            }
        }
        x = vi_add(x, vi_set1(2 * VF_LANES));
    }
}

VF_INLINE void two_rows_as(const task *q, const state *t, const row r[2], float *const to[2], const int32_t place[2],
                           const kind k, const int dtype) {
    const bool three = q->e->p->kernel[2] == 3, pad = q->e->p->pad_lo[2];
    if (three && pad)
        two_rows(q, t, r, to, place, k, 1, 3, dtype);
    else if (three)
        two_rows(q, t, r, to, place, k, 0, 3, dtype);
    else if (pad)
        two_rows(q, t, r, to, place, k, 1, 2, dtype);
    else
        two_rows(q, t, r, to, place, k, 0, 2, dtype);
}

/* ---------------------------------------------------------------- a slot */
/* Cuts the scratch of a slot into its parts; returns how long it is. */
static int64_t layout(const weft_problem *p, char *at, state *t) {
    const int64_t counts = cpu_round_up(WEFT__MAX(p->out[2], p->in[2] / 2) + 2 * VF_LANES, 16);
    const int64_t unused = cpu_round_up(p->in[2] + 2 * VF_LANES, 16);
    t->counts = (float *)(void *)at;
    t->unused = t->counts + counts;
    t->out.buffer = t->unused + unused;
    return (counts + unused + sink_floats(2 * p->in[2] + VF_LANES)) * 4;
}

static void start(const task *q, int64_t slot, state *t) {
    const weft_problem *p = q->e->p;
    const weft_tensor *dx = weft__tensor(p, WEFT_ROLE_DIFF_SRC);
    layout(p, (char *)q->e->workspace + slot * q->s.bytes, t);
    for (float *c = t->counts; c < t->unused; c++) {
        const int64_t given = p->attr[WEFT_AVG_POOL_DIVISOR], o = WEFT__MIN(c - t->counts, p->out[2] - 1);
        *c = p->op != WEFT_OP_AVG_POOL ? 1 : (float)(given ? given : pool_counted(p, 2, o));
    }
    t->out = (sink){.buffer = t->out.buffer, .dst = q->e->ptr[WEFT_ROLE_DIFF_SRC], .dtype = dx->dtype};
    t->out.stream = cpu_streams(q->e->hw, (double)weft__numel(dx) * (double)weft__dtype_size(dx->dtype));
}

/* Row m of windows of a plane. */
VF_INLINE row row_of(const weft_problem *p, int64_t plane, int64_t m) {
    if (m < 0 || m >= p->out[1] || m * 2 - p->pad_lo[1] >= p->in[1]) return (row){0, 0, 1};
    const bool counts = p->op == WEFT_OP_AVG_POOL && !p->attr[WEFT_AVG_POOL_DIVISOR];
    return (row){(plane * p->out[1] + m) * p->out[2], p->out[2], counts ? (float)pool_counted(p, 1, m) : 1};
}

VF_INLINE void pairs(const task *q, int64_t slot, const kind k, const int dtype) {
    const weft_problem *p = q->e->p;
    const int64_t all = p->n * p->c * q->s.pairs, width = p->in[2], end = cpu_first(all, q->s.slots, slot + 1);
    state t;
    start(q, slot, &t);
    for (int64_t pair = cpu_first(all, q->s.slots, slot), first = true; pair < end; pair++) {
        const int64_t plane = pair / q->s.pairs, m = pair % q->s.pairs, y = 2 * m - p->pad_lo[1];
        const bool above = y >= 0, below = y + 1 < p->in[1];
        const row r[2] = {row_of(p, plane, m), p->kernel[1] == 3 ? row_of(p, plane, m - 1) : (row){0, 0, 1}};
        if (first) t.out.at = (plane * p->in[1] + WEFT__MAX(y, 0)) * width, first = false;
        float *room = sink_room(&t.out), *to[2] = {above ? room : t.unused, t.unused};
        if (below) to[1] = room + (above ? width : 0);
        const int32_t place[2] = {(int32_t)(y * width), (int32_t)((y + 1) * width)};
        two_rows_as(q, &t, r, to, place, k, dtype);
        sink_commit(&t.out, (above + below) * width);
    }
    sink_end(&t.out);
}

POOL_TASKS(pairs, MAX_TAP, MAX_PLACE, MEAN, F32)
POOL_TASKS(pairs, MAX_TAP, MAX_PLACE, MEAN, F16)
POOL_TASKS(pairs, MAX_TAP, MAX_PLACE, MEAN, BF16)
static const weft_task tasks[WEFT_DTYPE_COUNT][3] = {
    [WEFT_DTYPE_F32] = POOL_TASK_LIST(pairs, MAX_TAP, MAX_PLACE, MEAN, F32),
    [WEFT_DTYPE_F16] = POOL_TASK_LIST(pairs, MAX_TAP, MAX_PLACE, MEAN, F16),
    [WEFT_DTYPE_BF16] = POOL_TASK_LIST(pairs, MAX_TAP, MAX_PLACE, MEAN, BF16),
};

static weft_status run(const weft__exec *e) {
    const weft_tensor *index = weft__tensor(e->p, WEFT_ROLE_INDEX);
    task q = {.e = e, .s = *(const params *)e->params, .index_dtype = index ? index->dtype : WEFT_DTYPE_U8};
    const kind k = !index ? MEAN : q.index_dtype == WEFT_DTYPE_U8 ? MAX_TAP : MAX_PLACE;
    weft__parallel(e->ctx, q.s.slots, tasks[weft__tensor(e->p, WEFT_ROLE_DIFF_SRC)->dtype][k], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *reason = pool_refusal(p);
    if (!reason) reason = pool_layout_refusal(p, WEFT_LAYOUT_FIRST);
    if (!reason) reason = pool_pairs_refusal(p);
    if (reason) return reason;
    params *s = WEFT__PARAMS(params, d);
    s->pairs = (p->in[1] + p->pad_lo[1] + 1) / 2;
    state unused;
    s->bytes = layout(p, NULL, &unused);
    s->slots = cpu_slots(p->n * p->c * s->pairs, weft__bytes(p));
    d->workspace = (size_t)(s->slots * s->bytes);
    const double vectors = (double)cpu_ceil(p->in[2], 2 * VF_LANES);
    d->ns = pool_cost(p, hw, s->slots, (double)(p->n * p->c * s->pairs) * (12 + 16 * vectors));
    return NULL;
}

POOL_RECORD(MAX_POOL, max_pool_bwd_pairs, "max_pool_bwd_nchw_2x4v", BWD, true);
POOL_RECORD(AVG_POOL, avg_pool_bwd_pairs, "avg_pool_bwd_nchw_2x4v", BWD, false);
