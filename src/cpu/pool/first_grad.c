/* Gradients of max and average pooling, channels-first, any window, stride, dilation and padding, on f32, f16 and bf16.
 * Math:      max: diff_src[x] = sum of diff_dst[o] over the windows o whose index says x
 *            average: diff_src[x] = sum of diff_dst[o] / count(o) over the windows o that hold x
 * Blocking:  one row of diff_src at a time, gathered: no place is written twice, whatever the windows. Places m, m + s,
 *            m + 2 s, ... of a row (s: the stride) have the same taps, and a tap of a vector of them is a vector of
 *            neighbouring windows: one load of diff_dst, and one of the index with a comparison. Vectors of the
 *            classes m are zipped to the row. The rows of windows over a band of rows wait in the nearest cache: f32
 *            with zeros around them, divided where it is an average, and the index as 32 bits. They are all made
 *            before the first is read: a load across two stores that are on their way waits for both
 *            Where rows are short or windows few, scatter.c adds instead: by the estimate
 * Slots:     runs of rows of diff_src; each has its own rows and buffer
 * Traffic:   diff_dst and index once, diff_src once and streamed where it is large: memory-bound for small windows
 * Measured:  8x256x56x56, window 3, stride 2, two cores of an EPYC with AVX-512: in cache 0.65 (max) and 0.51 ns
 *            (average) a place and core: the work on a row, not memory, is the bound. pairs_grad.c is faster for the
 *            windows that it takes
 * Assumes:   all tensors dense channels-first, data of one type; index of any type
 * Try:       weft bench max_pool2d:bwd:f32:nchw:n8c256h56w56:k3s2p1 avg_pool2d:bwd:f32:nchw:n8c256h56w56:k3s2p1 */
#include "pool.h"
#include "rows.h"

enum { BAND = 8, NEAR = 4096 }; /* rows of diff_src at a time; floats of the rows of windows over them */
typedef enum kind { MAX_TAP, MAX_PLACE, MEAN } kind;

typedef struct params {
    int64_t slots, bytes; /* bytes of scratch per slot */
    int64_t before, row;  /* windows of zeros before a row of diff_dst; its length with those and others behind */
    int64_t band, span;   /* rows of diff_src at a time, and rows of windows over them */
    pool_scatter scatter; /* if it is faster */
} params;

typedef struct source { /* a row of windows over the row of diff_src, and what its tap 0 is called in the index */
    const float *diff;
    const int32_t *index;
    int32_t tap;
} source;

typedef struct tap { /* number in the row, and which window it is for place 0 of its class */
    int64_t number, window;
} tap;

typedef struct window { /* over a place, and which of its taps that is */
    int64_t number, tap;
} window;

typedef struct state { /* of a slot */
    const weft_problem *p;
    float *rows;
    int32_t *indices;
    tap *taps;
    int64_t *classes; /* class m has the taps classes[m] .. classes[m + 1] - 1 */
    window *over[2];  /* along depth and height: those over place x are begin[x] .. begin[x + 1] - 1 */
    int64_t *begin[2];
    source *from;
    int sources;
    int32_t place; /* of the row's first element in its channel */
    float *counts;
    sink out;
} state;

typedef struct task {
    const weft__exec *e;
    params s;
    int index_dtype;
} task;

/* ---------------------------------------------------------------- one row */
VF_INLINE vf add_window(const float *diff, const int32_t *index, int64_t o, vi mine, vf sum, const kind k) {
    const vf dy = vf_load(diff + o);
    return vf_add(sum, k == MEAN ? dy : vf_select(vi_eq(vi_load(index + o), mine), dy, vf_zero()));
}

/* The gradients of places m + s j, m + s (j + 1), ... */
VF_INLINE vf places(const state *t, int64_t m, int64_t j, const kind k) {
    const vi x = vi_add(vi_mul(vi_add(vi_set1((int32_t)j), vi_iota()), vi_set1((int32_t)t->p->stride[2])),
                        vi_set1((int32_t)(t->place + m)));
    vf sum = vf_zero();
    for (int r = 0; r < t->sources; r++)
        for (int64_t i = t->classes[m]; i < t->classes[m + 1]; i++)
            sum = add_window(t->from[r].diff, t->from[r].index, t->taps[i].window + j,
                             k == MAX_PLACE ? x : vi_set1(t->from[r].tap + (int32_t)t->taps[i].number), sum, k);
    return sum;
}

/* A row where the stride is 2 and there are few taps, `even` and `odd` of the two classes, and few rows of windows:
 * what a vector needs is in registers, where no store can change it. */
VF_INLINE void row_of_pairs(const state *t, float *to, const kind k, const int even, const int odd, const int rows) {
    const int64_t width = t->p->in[2];
    const float *diff[2];
    const int32_t *index[2];
    int64_t window[4];
    vi mine[2][4], x = vi_add(vi_add(vi_iota(), vi_iota()), vi_set1(t->place));
    VF_UNROLL for (int r = 0; r < rows; r++) {
        diff[r] = t->from[r].diff, index[r] = t->from[r].index;
        VF_UNROLL for (int i = 0; i < even + odd; i++) {
            window[i] = t->taps[i].window;
            mine[r][i] = vi_set1(t->from[r].tap + (int32_t)t->taps[i].number);
        }
    }
    for (int64_t at = 0, j = 0; at < width; at += 2 * VF_LANES, j += VF_LANES) {
        vf sum[2] = {vf_zero(), vf_zero()};
        VF_UNROLL for (int r = 0; r < rows; r++) {
            VF_UNROLL for (int i = 0; i < even + odd; i++) {
                const int m = i >= even;
                const vi place = vi_add(x, vi_set1(m));
                sum[m] = add_window(diff[r], index[r], window[i] + j, k == MAX_PLACE ? place : mine[r][i], sum[m], k);
            }
        }
        vf_store(to + at, vf_zip_lo(sum[0], sum[1]));
        vf_store(to + at + VF_LANES, vf_zip_hi(sum[0], sum[1]));
        x = vi_add(x, vi_set1(2 * VF_LANES));
    }
}

/* false: there are more taps or rows of windows. */
VF_INLINE bool row_of_few(const state *t, float *to, const kind k) {
    const int64_t even = t->classes[1] - t->classes[0], odd = t->classes[2] - t->classes[1];
    const int64_t what =
        t->sources < 1 || t->sources > 2 || even > 2 || odd > 2 ? 0 : t->sources * 100 + even * 10 + odd;
    switch (what) {
#define FEW(rows, even, odd)                     \
    case rows * 100 + even * 10 + odd:           \
        row_of_pairs(t, to, k, even, odd, rows); \
        return true;
        FEW(1, 1, 1)
        FEW(1, 1, 2)
        FEW(1, 2, 1)
        FEW(2, 1, 1)
        FEW(2, 1, 2)
        FEW(2, 2, 1)
#undef FEW
    default:
        return false;
    }
}

VF_INLINE void row_of_places(const state *t, const kind k) {
    const int64_t width = t->p->in[2], stride = t->p->stride[2];
    float *to = sink_room(&t->out);
    if (stride == 1) {
        for (int64_t x = 0; x < width; x += VF_LANES) vf_store(to + x, places(t, 0, x, k));
    } else if (stride == 2) {
        if (row_of_few(t, to, k)) return;
        for (int64_t x = 0, j = 0; x < width; x += 2 * VF_LANES, j += VF_LANES) {
            const vf even = places(t, 0, j, k), odd = places(t, 1, j, k);
            vf_store(to + x, vf_zip_lo(even, odd));
            vf_store(to + x + VF_LANES, vf_zip_hi(even, odd));
        }
    } else {
        float lane[VF_LANES];
        for (int64_t m = 0; m < WEFT__MIN(stride, width); m++)
            for (int64_t j = 0; m + j * stride < width; j += VF_LANES) {
                vf_store(lane, places(t, m, j, k));
                for (int64_t i = 0; i < VF_LANES && m + (j + i) * stride < width; i++)
                    to[m + (j + i) * stride] = lane[i];
            }
    }
}

/* ---------------------------------------------------------------- a slot */
/* Rows of windows from the first to the last that is over one of the rows y .. end - 1. */
VF_INLINE pool_range rows_over(const weft_problem *p, int64_t y, int64_t end) {
    const int64_t reach = (p->kernel[1] - 1) * p->dilation[1], at = y + p->pad_lo[1] - reach;
    const int64_t first = at <= 0 ? 0 : cpu_ceil(at, p->stride[1]), last = (end - 1 + p->pad_lo[1]) / p->stride[1] + 1;
    return (pool_range){first, WEFT__MIN(last, p->out[1])};
}

/* A row of diff_dst, divided for an average, and of the index. */
VF_INLINE void fill_as(const task *q, const state *t, int64_t row, int64_t slot, float scale, const int dtype) {
    float *to = t->rows + slot * q->s.row + q->s.before;
    int32_t *index = t->indices + slot * q->s.row + q->s.before;
    const int64_t wide = t->p->out[2], at = row * wide;
    for (int64_t o = 0; o < wide; o += VF_LANES) {
        const int64_t n = WEFT__MIN(wide - o, VF_LANES);
        const vf dy = n == VF_LANES ? vf_load_as(dtype, q->e->ptr[WEFT_ROLE_DIFF_DST], at + o)
                                    : vf_load_count_as(dtype, q->e->ptr[WEFT_ROLE_DIFF_DST], at + o, n);
        if (t->p->op == WEFT_OP_AVG_POOL) {
            vf_store(to + o, vf_div(dy, vf_mul(vf_load(t->counts + o), vf_set1(scale))));
        } else {
            vf_store(to + o, dy);
            vi_store(index + o, pool_index(q->e->ptr[WEFT_ROLE_INDEX], q->index_dtype, at + o, n));
        }
    }
}

/* The rows of windows over rows y .. end - 1 at depth z. */
static void fill(const task *q, const state *t, int64_t plane, int64_t z, int64_t y, int64_t end) {
    const weft_problem *p = t->p;
    const pool_range rows = rows_over(p, y, end);
    for (int64_t i = t->begin[0][z]; i < t->begin[0][z + 1]; i++)
        for (int64_t o = rows.first; o < rows.last; o++) {
            const int64_t depth = t->over[0][i].number, row = (plane * p->out[0] + depth) * p->out[1] + o;
            const int64_t to = (i - t->begin[0][z]) * q->s.span + o - rows.first;
            float scale = 1;
            if (p->op == WEFT_OP_AVG_POOL && !p->attr[WEFT_AVG_POOL_DIVISOR])
                scale = (float)(pool_counted(p, 0, depth) * pool_counted(p, 1, o));
            if (t->out.dtype == WEFT_DTYPE_F32)
                fill_as(q, t, row, to, scale, WEFT_DTYPE_F32);
            else if (t->out.dtype == WEFT_DTYPE_F16)
                fill_as(q, t, row, to, scale, WEFT_DTYPE_F16);
            else
                fill_as(q, t, row, to, scale, WEFT_DTYPE_BF16);
        }
}

/* The window whose tap k is place x; false: none. */
static bool window_of(const weft_problem *p, int a, int64_t x, int64_t k, int64_t *o) {
    const int64_t at = x + p->pad_lo[a] - k * p->dilation[a];
    *o = at / p->stride[a];
    return at >= 0 && at % p->stride[a] == 0 && *o < p->out[a];
}

/* What is over row y at depth z; first: the first row of windows that is there. */
VF_INLINE void collect(const task *q, state *t, int64_t z, int64_t y, int64_t first) {
    const weft_problem *p = t->p;
    const int64_t *dz = t->begin[0] + z, *dy = t->begin[1] + y;
    t->sources = 0;
    for (int64_t i = dz[0]; i < dz[1]; i++)
        for (int64_t j = dy[0]; j < dy[1]; j++) {
            const window a = t->over[0][i], b = t->over[1][j];
            const int64_t at = ((i - dz[0]) * q->s.span + b.number - first) * q->s.row + q->s.before;
            t->from[t->sources++] =
                (source){t->rows + at, t->indices + at, (int32_t)((a.tap * p->kernel[1] + b.tap) * p->kernel[2])};
        }
    t->place = (int32_t)((z * p->in[1] + y) * p->in[2]);
}

/* Windows over one place of an axis, at most. */
static int64_t most_over(const weft_problem *p, int a) {
    return WEFT__MIN((p->kernel[a] - 1) * p->dilation[a] / p->stride[a] + 1, p->out[a]);
}

static void *carve(char **at, int64_t bytes) {
    void *here = *at;
    *at += cpu_round_up(bytes, 64);
    return here;
}

/* Cuts the scratch of a slot into its parts; returns how long it is. */
static int64_t layout(const weft_problem *p, const params *s, char *at, state *t) {
    char *const begin = at;
    const int64_t rows = most_over(p, 0) * s->span;
    t->rows = carve(&at, rows * s->row * 4);
    t->indices = carve(&at, p->op == WEFT_OP_MAX_POOL ? rows * s->row * 4 : 0);
    t->out.buffer = carve(&at, sink_floats(p->in[2] + VF_LANES) * 4);
    t->counts = carve(&at, cpu_round_up(p->out[2], VF_LANES) * 4);
    t->taps = carve(&at, p->kernel[2] * (int64_t)sizeof(tap));
    t->classes = carve(&at, (WEFT__MIN(p->stride[2], p->in[2]) + 2) * 8);
    for (int a = 0; a < 2; a++) {
        t->over[a] = carve(&at, p->in[a] * most_over(p, a) * (int64_t)sizeof(window));
        t->begin[a] = carve(&at, (p->in[a] + 1) * 8);
    }
    t->from = carve(&at, p->kernel[0] * p->kernel[1] * (int64_t)sizeof(source));
    return at - begin;
}

/* Which taps each class has. */
static void sort_taps(const weft_problem *p, state *t) {
    int64_t count = 0;
    for (int64_t m = 0; m < WEFT__MAX(WEFT__MIN(p->stride[2], p->in[2]), 2); m++) {
        t->classes[m] = count;
        for (int64_t k = 0; k < p->kernel[2] && m < p->stride[2]; k++) {
            const int64_t at = m + p->pad_lo[2] - k * p->dilation[2];
            if (at % p->stride[2] == 0) t->taps[count++] = (tap){k, at / p->stride[2]};
        }
        t->classes[m + 1] = count;
    }
}

/* Which windows are over each place of an axis, by rising taps. */
static void sort_windows(const weft_problem *p, int a, state *t) {
    int64_t count = 0, o;
    for (int64_t x = 0; x < p->in[a]; x++) {
        t->begin[a][x] = count;
        for (int64_t k = 0; k < p->kernel[a]; k++)
            if (window_of(p, a, x, k, &o)) t->over[a][count++] = (window){o, k};
    }
    t->begin[a][p->in[a]] = count;
}

static void start(const task *q, int64_t slot, state *t) {
    const weft_problem *p = t->p = q->e->p;
    const int64_t rows = most_over(p, 0) * q->s.span;
    layout(p, &q->s, (char *)q->e->workspace + slot * q->s.bytes, t);
    memset(t->rows, 0, (size_t)(rows * q->s.row) * sizeof(float));
    for (int64_t i = 0; p->op == WEFT_OP_MAX_POOL && i < rows * q->s.row; i++) t->indices[i] = -1;
    for (int64_t o = 0; p->op == WEFT_OP_AVG_POOL && o < cpu_round_up(p->out[2], VF_LANES); o++) {
        const int64_t given = p->attr[WEFT_AVG_POOL_DIVISOR];
        t->counts[o] = (float)(given ? given : pool_counted(p, 2, WEFT__MIN(o, p->out[2] - 1)));
    }
    sort_taps(p, t);
    sort_windows(p, 0, t);
    sort_windows(p, 1, t);
    const weft_tensor *dx = weft__tensor(p, WEFT_ROLE_DIFF_SRC);
    t->out.dst = q->e->ptr[WEFT_ROLE_DIFF_SRC], t->out.dtype = dx->dtype, t->out.fill = 0;
    t->out.stream = cpu_streams(q->e->hw, (double)weft__numel(dx) * (double)weft__dtype_size(dx->dtype));
}

VF_INLINE void rows_of_places(const task *q, int64_t slot, const kind k) {
    const weft_problem *p = q->e->p;
    state t = {0};
    start(q, slot, &t);
    const int64_t per_plane = p->in[0] * p->in[1], all = p->n * p->c * per_plane;
    int64_t row = cpu_first(all, q->s.slots, slot);
    const int64_t end = cpu_first(all, q->s.slots, slot + 1);
    int64_t plane = row / per_plane, z = row % per_plane / p->in[1], y = row % p->in[1];
    t.out.at = row * p->in[2];
    while (row < end) {
        const int64_t rows = WEFT__MIN(WEFT__MIN(q->s.band, end - row), p->in[1] - y), last = y + rows;
        const int64_t first = rows_over(p, y, last).first;
        fill(q, &t, plane, z, y, last);
        for (int64_t i = 0, at = z; i < rows; i++, pool_next_row(&plane, &z, &y, p->in[0], p->in[1])) {
            collect(q, &t, at, last - rows + i, first);
            row_of_places(&t, k);
            sink_commit(&t.out, p->in[2]);
        }
        row += rows;
    }
    sink_end(&t.out);
}

static void rows_tap(void *q, int64_t slot) { rows_of_places(q, slot, MAX_TAP); }
static void rows_place(void *q, int64_t slot) { rows_of_places(q, slot, MAX_PLACE); }
static void rows_mean(void *q, int64_t slot) { rows_of_places(q, slot, MEAN); }

static weft_status run(const weft__exec *e) {
    const weft_tensor *index = weft__tensor(e->p, WEFT_ROLE_INDEX);
    task q = {.e = e, .s = *(const params *)e->params, .index_dtype = index ? index->dtype : WEFT_DTYPE_U8};
    if (q.s.scatter.slots) return WEFT__ISA_NAME(weft__pool_scatter_run)(e, &q.s.scatter), WEFT_OK;
    weft__parallel(e->ctx, q.s.slots, !index ? rows_mean : q.index_dtype == WEFT_DTYPE_U8 ? rows_tap : rows_place, &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *reason = pool_refusal(p);
    if (!reason) reason = pool_layout_refusal(p, WEFT_LAYOUT_FIRST);
    if (reason) return reason;
    params *s = WEFT__PARAMS(params, d);
    const int64_t reach = cpu_ceil((p->kernel[2] - 1) * p->dilation[2], p->stride[2]),
                  all = p->n * p->c * p->in[0] * p->in[1];
    const int64_t last = cpu_ceil(p->in[2] + p->pad_lo[2], p->stride[2]);
    s->before = cpu_round_up(reach, 16);
    s->row = s->before + cpu_round_up(WEFT__MAX(p->out[2], last) + 2 * VF_LANES, 16);
    const int64_t reached = (p->kernel[1] - 1) * p->dilation[1], deep = most_over(p, 0);
    for (s->band = BAND;; s->band /= 2) {
        s->span = WEFT__MIN((s->band - 1 + reached) / p->stride[1] + 1, p->out[1]);
        if (s->band == 1 || deep * s->span * s->row <= NEAR) break;
    }
    if ((double)deep * (double)s->span * (double)s->row > 1 << 16) return "the rows of a window are over 512 KB";
    if (p->stride[2] > 1 << 12) return "the stride is over 4096";
    if ((double)(p->in[0] * deep) + (double)(p->in[1] * most_over(p, 1)) > 1 << 15)
        return "over 2^15 windows are over the places of an axis";
    state unused;
    s->bytes = layout(p, s, NULL, &unused);
    s->slots = cpu_slots(all, weft__bytes(p));
    d->workspace = (size_t)(s->slots * s->bytes);
    double share = 1; /* of the taps a place has */
    for (int a = 0; a < 3; a++) share /= (double)WEFT__MIN(p->stride[a], p->kernel[a]);
    const int64_t classes = WEFT__MIN(p->stride[2], p->in[2]);
    const double vectors = (double)(classes * cpu_ceil(p->in[2], classes * VF_LANES)) * POOL_VECTOR;
    const double taps = share * (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]), lane = p->stride[2] > 2 ? 1 : 0;
    const double each = 2 + taps * (VF_LANES > 8 ? 5 : 2.5) * (p->op == WEFT_OP_MAX_POOL ? 1 : 0.6);
    d->ns = pool_cost(p, hw, s->slots, (double)all * (20 + vectors * each + lane * (double)p->in[2]));
    s->scatter.slots = 0;
    WEFT__ISA_NAME(weft__pool_scatter_plan)(p, hw, false, &s->scatter, d);
    return NULL;
}

POOL_RECORD(MAX_POOL, max_pool_bwd_nchw, "max_pool_bwd_nchw_1v", BWD, true);
POOL_RECORD(AVG_POOL, avg_pool_bwd_nchw, "avg_pool_bwd_nchw_1v", BWD, false);
