/* Max and average pooling forward, channels-first, any window, stride, dilation and padding, on f32, f16 and bf16.
 * Math:      dst[o] = max or sum / count of src[o s - p + k d] over the taps k inside the input; see src/ref/pool.h
 * Blocking:  along the height first: the input rows of an output row become one line, f32 in the nearest cache with the
 *            padding around it, vectors along it; then along the width: a tap of a vector of windows is a load of the
 *            line, for stride 2 two and a permutation. Lines of several output rows are made before the first is read:
 *            a load across two stores that are on their way waits for both
 * Index:     a line beside has the number of the row that each greatest came from. Of equals the first row wins and
 *            then the first column, of NaN the last
 * Last:      for last.c, few channels: a row of pixels is a line, too, whose taps are the channels apart. With a stride
 *            windows begin at every pixel and those between are left out
 * Slots:     runs of output rows; each has its own lines and buffer
 * Traffic:   src once, dst and index once: memory-bound for small windows
 * Measured:  8x256x56x56, window 3, stride 2, two cores of an EPYC with AVX-512: 61% of a copy's rate. In cache 0.26 ns
 *            an input and core: a row kept in the order of its taps and reduced there took 0.46. pairs.c is faster for
 *            the windows that it takes
 * Assumes:   all tensors dense in one layout, data of one type; index of any type
 * Try:       weft bench max_pool2d:fwd:f32:nchw:n8c256h56w56:k3s2p1 avg_pool2d:fwd:f32:nchw:n8c256h56w56:k3s2p1 */
#include "pool.h"
#include "rows.h"

/* Lines at a time, and floats of them but for the last; bytes from what is read to what is fetched. */
enum { BAND = 8, NEAR = 4096, AHEAD = 4096 };
typedef enum kind { MAX, MAX_INDEX, MEAN } kind;

typedef struct source { /* an input row of the windows of one output row */
    int64_t at;
    int32_t base; /* index of its tap 0: the number in the window, or the place for window 0 */
} source;

typedef struct task {
    const weft__exec *e;
    pool_rows s;
    bool place; /* the index is a place of the channel, else a number of the window */
    int dtype, index_dtype;
} task;

typedef struct state { /* of a slot */
    const weft_problem *p;
    float *lines;
    int32_t *bases; /* of each element of the lines */
    source *from;
    int sources;
    float *counts;    /* of each window along the row: places that count */
    int32_t *along;   /* channels-last: the place of each element of a line */
    float *values;    /* channels-last with a stride: of windows at every place, */
    int32_t *names;   /* and their indices */
    int32_t *indices; /* of the rows of a band */
    sink out;
} state;

/* ---------------------------------------------------------------- rows to a line */
VF_INLINE vf part(const void *src, int64_t at, int64_t left, const int dtype) {
    return left >= VF_LANES ? vf_load_as(dtype, src, at) : vf_load_count_as(dtype, src, at, left);
}

VF_INLINE void add_row(const void *src, const source *from, int64_t x, int64_t left, vf *best, vi *base, const kind k,
                       const int dtype) {
    const vf v = part(src, from->at + x, left, dtype);
    vf_prefetch(src, (from->at + x) * vf_size_of(dtype) + AHEAD);
    if (k == MEAN) {
        *best = vf_add(*best, v);
    } else if (k == MAX) {
        *best = vf_max_nan(*best, v);
    } else {
        const vmask greater = vm_or(vf_gt(v, *best), vf_is_nan(v));
        *best = vf_select(greater, v, *best);
        *base = vi_select(greater, vi_set1(from->base), *base);
    }
}

/* count: the rows if they are 2 or 3, else 0. */
VF_INLINE void down(const task *q, const state *t, int64_t line, const kind k, const int count, const int dtype) {
    const void *src = q->e->ptr[WEFT_ROLE_SRC];
    const int64_t width = t->p->in[2] * q->s.inner, to = line * q->s.pitch + t->p->pad_lo[2] * q->s.inner;
    float *values = t->lines + to;
    int32_t *bases = t->bases + to;
    source from[3]; /* nearer than those that a store might change */
    memcpy(from, t->from, (size_t)(count ? count : 1) * sizeof(source));
    for (int64_t x = 0; x < width; x += VF_LANES) {
        const int64_t left = width - x;
        vf best = part(src, from[0].at + x, left, dtype);
        vi base = vi_set1(from[0].base);
        if (count) {
            VF_UNROLL for (int r = 1; r < count; r++) add_row(src, &from[r], x, left, &best, &base, k, dtype);
        } else {
            for (int r = 1; r < t->sources; r++) add_row(src, &t->from[r], x, left, &best, &base, k, dtype);
        }
        if (left < VF_LANES && k != MEAN) { /* the padding behind the row stays what it is; zeros are a mean's */
            best = vf_select(vm_first(left), best, vf_set1(-INFINITY));
            base = vi_select(vm_first(left), base, vi_set1(INT32_MAX));
        }
        vf_store(values + x, best);
        if (k == MAX_INDEX) vi_store(bases + x, base);
    }
}

VF_INLINE void down_as(const task *q, const state *t, int64_t line, const kind k, const int dtype) {
    if (t->sources == 3)
        down(q, t, line, k, 3, dtype);
    else if (t->sources == 2)
        down(q, t, line, k, 2, dtype);
    else
        down(q, t, line, k, 0, dtype);
}

VF_INLINE void down_any(const task *q, const state *t, int64_t line, const kind k) {
    if (q->dtype == WEFT_DTYPE_F32)
        down_as(q, t, line, k, WEFT_DTYPE_F32);
    else if (q->dtype == WEFT_DTYPE_F16)
        down_as(q, t, line, k, WEFT_DTYPE_F16);
    else
        down_as(q, t, line, k, WEFT_DTYPE_BF16);
}

/* ---------------------------------------------------------------- a line to windows */
/* Elements at, at + stride, ... of a line. Of stride 2 the odd taps of a dense window share the loads of the even. */
VF_INLINE vf tap(const float *line, int64_t at, int64_t stride, int64_t left, const int step, const bool odd) {
    if (step == 1) return vf_load(line + at);
    if (step == 2 && odd) return vf_odd(vf_load(line + at - 1), vf_load(line + at - 1 + VF_LANES));
    if (step == 2) return vf_even(vf_load(line + at), vf_load(line + at + VF_LANES));
    return vf_gather_in(vm_first(left), line + at, vi_mul(vi_iota(), vi_set1((int32_t)stride)));
}
VF_INLINE vi tap_base(const int32_t *bases, int64_t at, int64_t stride, int64_t left, const int step, const bool odd) {
    return vf_bits(tap((const float *)(const void *)bases, at, stride, left, step, odd));
}

typedef struct winners { /* of a vector of windows: the value or sum, its row, its index */
    vf best;
    vi base, index;
} winners;

VF_INLINE void add_tap(const float *line, const int32_t *bases, int64_t at, int64_t stride, int64_t left,
                       int32_t number, winners *w, const kind k, const int step, const bool odd) {
    const vf v = tap(line, at, stride, left, step, odd);
    if (k == MEAN) {
        w->best = vf_add(w->best, v);
    } else if (k == MAX) {
        w->best = vf_max_nan(w->best, v);
    } else {
        const vi row = tap_base(bases, at, stride, left, step, odd);
        const vmask greater = pool_wins(v, row, w->best, w->base);
        w->best = vf_select(greater, v, w->best);
        w->base = vi_select(greater, row, w->base);
        w->index = vi_select(greater, vi_add(row, vi_set1(number)), w->index);
    }
}

/* step: the stride if it is 1 or 2, else 0; kw: the taps if they are 2 or 3 and, for step 2, dense, else 0.
 * Channels-last the windows begin at every place: a line is as one of channels-first whose taps are a place's channels
 * apart. */
VF_INLINE void across(const task *q, const state *t, int64_t line, float scale, float *to, int32_t *indices,
                      const kind k, const int step, const int kw) {
    const weft_problem *p = t->p;
    const float *from = t->lines + line * q->s.pitch;
    const int32_t *bases = t->bases + line * q->s.pitch;
    const int64_t stride = step ? step : p->stride[2], each = kw && step == 2 ? 1 : p->dilation[2] * q->s.inner;
    const int32_t number = (int32_t)(q->place ? p->dilation[2] : 1);
    const int64_t wide = q->s.wide, taps = p->kernel[2];
    const int32_t *places = q->s.last ? t->along : NULL;
    const float *counts = t->counts;
    const bool place = q->place;
    for (int64_t o = 0; o < wide; o += VF_LANES) {
        const int64_t at = o * stride, left = wide - o;
        winners w = {.best = tap(from, at, stride, left, step, false)};
        if (k == MAX_INDEX) w.index = w.base = tap_base(bases, at, stride, left, step, false);
#define TAP(i) add_tap(from, bases, at + (i) * each, stride, left, (int32_t)(i) * number, &w, k, step, kw && (i) % 2)
        if (kw) {
            VF_UNROLL for (int i = 1; i < kw; i++) TAP(i);
        } else {
            for (int64_t i = 1; i < taps; i++) TAP(i);
        }
#undef TAP
        if (k == MEAN) w.best = vf_div(w.best, vf_mul(vf_load(counts + o), vf_set1(scale)));
        vf_store(to + o, w.best);
        if (k == MAX_INDEX) {
            if (place && places)
                w.index = vi_add(w.index, vi_load(places + o));
            else if (place)
                w.index = vi_add(w.index, vi_mul(vi_add(vi_set1((int32_t)o), vi_iota()), vi_set1((int32_t)stride)));
            vi_store(indices + o, w.index);
        }
    }
}

VF_INLINE void across_as(const task *q, const state *t, int64_t line, float scale, float *to, int32_t *indices,
                         const kind k, const int step) {
    const int64_t kw = step == 1 || t->p->dilation[2] == 1 ? t->p->kernel[2] : 0;
    if (kw == 3)
        across(q, t, line, scale, to, indices, k, step, 3);
    else if (kw == 2)
        across(q, t, line, scale, to, indices, k, step, 2);
    else
        across(q, t, line, scale, to, indices, k, step, 0);
}

VF_INLINE void across_any(const task *q, const state *t, int64_t line, float scale, float *to, int32_t *indices,
                          const kind k) {
    if (q->s.last || t->p->stride[2] == 1)
        across_as(q, t, line, scale, to, indices, k, 1);
    else if (t->p->stride[2] == 2)
        across_as(q, t, line, scale, to, indices, k, 2);
    else
        across(q, t, line, scale, to, indices, k, 0, 0);
}

/* Every place that is a multiple of the stride. A store may go on into the next place, which is written later. */
VF_INLINE void keep_windows(const task *q, const state *t, int64_t line, float *to, int32_t *indices, const kind k) {
    const int64_t inner = q->s.inner, step = inner * t->p->stride[2];
    const float *from = t->values + line * q->s.pitch;
    const int32_t *names = t->names + line * q->s.pitch;
    for (int64_t o = 0; o < t->p->out[2]; o++, from += step, names += step, to += inner, indices += inner)
        for (int64_t c = 0; c < inner; c += VF_LANES) {
            vf_store(to + c, vf_load(from + c));
            if (k == MAX_INDEX) vi_store(indices + c, vi_load(names + c));
        }
}

/* ---------------------------------------------------------------- a slot */
/* The rows of the windows at depth z and height y. */
VF_INLINE void collect(const task *q, state *t, int64_t plane, int64_t z, int64_t y) {
    const weft_problem *p = t->p;
    const pool_range dz = pool_taps(p, 0, z), dy = pool_taps(p, 1, y);
    t->sources = 0;
    for (int64_t i = dz.first; i < dz.last; i++)
        for (int64_t j = dy.first; j < dy.last; j++) {
            const int64_t iz = z * p->stride[0] - p->pad_lo[0] + i * p->dilation[0];
            const int64_t iy = y * p->stride[1] - p->pad_lo[1] + j * p->dilation[1];
            const int64_t row = iz * p->in[1] + iy;
            source *s = &t->from[t->sources++];
            s->at = (plane * p->in[0] * p->in[1] + row) * p->in[2] * q->s.inner;
            s->base = (int32_t)(q->place ? row * p->in[2] - p->pad_lo[2] : (i * p->kernel[1] + j) * p->kernel[2]);
        }
}

static void *carve(char **at, int64_t bytes) {
    void *here = *at;
    *at += cpu_round_up(bytes, 64);
    return here;
}

/* Cuts the scratch of a slot into its parts; returns how long it is. */
static int64_t layout(const weft_problem *p, const pool_rows *s, char *at, state *t) {
    char *const begin = at;
    const bool index = weft__tensor(p, WEFT_ROLE_INDEX) != NULL, parted = s->last && p->stride[2] > 1;
    const int64_t wide = cpu_round_up(s->wide, VF_LANES), row = p->out[2] * s->inner;
    t->lines = carve(&at, s->band * s->pitch * 4);
    t->bases = carve(&at, index ? s->band * s->pitch * 4 : 0);
    t->out.buffer = carve(&at, sink_floats(row) * 4);
    t->counts = carve(&at, (wide + s->inner + VF_LANES) * 4);
    t->along = carve(&at, s->last && index ? (wide + s->inner + VF_LANES) * 4 : 0);
    t->values = carve(&at, parted ? s->band * s->pitch * 4 : 0);
    t->names = carve(&at, parted && index ? s->band * s->pitch * 4 : 0);
    t->indices = carve(&at, index ? (s->band * row + VF_LANES) * 4 : 0);
    t->from = carve(&at, p->kernel[0] * p->kernel[1] * (int64_t)sizeof(source));
    return at - begin;
}

/* Fills the padding on both sides of the lines, and what is known of each element along them. */
static void start(const task *q, int64_t slot, state *t) {
    const weft_problem *p = t->p = q->e->p;
    layout(p, &q->s, (char *)q->e->workspace + slot * q->s.bytes, t);
    const bool max = p->op == WEFT_OP_MAX_POOL, index = weft__tensor(p, WEFT_ROLE_INDEX) != NULL;
    const int64_t inner = q->s.inner, before = p->pad_lo[2] * inner, end = before + p->in[2] * inner;
    for (int64_t n = 0; n < q->s.band; n++) {
        float *line = t->lines + n * q->s.pitch;
        int32_t *bases = t->bases + n * q->s.pitch;
        for (int64_t i = before ? 0 : end; i < q->s.pitch; i = i + 1 == before ? end : i + 1) {
            line[i] = max ? -INFINITY : 0;
            if (index) bases[i] = INT32_MAX;
        }
    }
    const int64_t given = p->attr[WEFT_AVG_POOL_DIVISOR], each = q->s.last ? p->stride[2] : 1;
    const int64_t wide = cpu_round_up(q->s.wide, VF_LANES);
    for (int64_t o = 0; !max && o * inner < wide; o++) {
        const int64_t count = given ? given : pool_counted(p, 2, WEFT__MIN(o / each, p->out[2] - 1));
        for (int64_t c = 0; c < inner; c += VF_LANES) vf_store(t->counts + o * inner + c, vf_set1((float)count));
    }
    for (int64_t o = 0; q->s.last && q->place && o * inner < wide; o++)
        for (int64_t c = 0; c < inner; c += VF_LANES) vi_store(t->along + o * inner + c, vi_set1((int32_t)o));
    t->out.dst = q->e->ptr[WEFT_ROLE_DST], t->out.dtype = q->dtype, t->out.fill = 0;
    t->out.stream = cpu_streams(q->e->hw, (double)(weft__numel(weft__tensor(p, WEFT_ROLE_DST)) * vf_size_of(q->dtype)));
}

static void put_indices(const task *q, const state *t, int64_t at, int64_t count) {
    for (int64_t i = 0; i < count; i += VF_LANES)
        pool_put_index(q->e->ptr[WEFT_ROLE_INDEX], q->index_dtype, at + i, vi_load(t->indices + i), count - i);
}

VF_INLINE void rows_of_windows(const task *q, int64_t slot, const kind k) {
    const weft_problem *p = q->e->p;
    state t = {0};
    start(q, slot, &t);
    const int64_t per_plane = p->out[0] * p->out[1], all = p->n * p->c / q->s.inner * per_plane;
    const int64_t wide = p->out[2] * q->s.inner, pitch = q->s.pitch;
    const bool parted = q->s.last && p->stride[2] > 1;
    int64_t row = cpu_first(all, q->s.slots, slot);
    const int64_t end = cpu_first(all, q->s.slots, slot + 1);
    int64_t plane = row / per_plane, z = row % per_plane / p->out[1], y = row % p->out[1];
    t.out.at = row * wide;
    while (row < end) {
        const int64_t lines = WEFT__MIN(q->s.band, end - row);
        float scale[BAND] = {0};
        for (int64_t i = 0; i < lines; i++, pool_next_row(&plane, &z, &y, p->out[0], p->out[1])) {
            collect(q, &t, plane, z, y);
            down_any(q, &t, i, k);
            if (k == MEAN)
                scale[i] = p->attr[WEFT_AVG_POOL_DIVISOR] ? 1 : (float)(pool_counted(p, 0, z) * pool_counted(p, 1, y));
        }
        for (int64_t i = 0; parted && i < lines; i++)
            across_any(q, &t, i, scale[i], t.values + i * pitch, t.names + i * pitch, k);
        for (int64_t i = 0; i < lines; i++) {
            float *to = sink_room(&t.out);
            if (parted)
                keep_windows(q, &t, i, to, t.indices + i * wide, k);
            else
                across_any(q, &t, i, scale[i], to, t.indices + i * wide, k);
            sink_commit(&t.out, wide);
        }
        if (k == MAX_INDEX) put_indices(q, &t, row * wide, lines * wide);
        row += lines;
    }
    sink_end(&t.out);
}

static void rows_max(void *q, int64_t slot) { rows_of_windows(q, slot, MAX); }
static void rows_max_index(void *q, int64_t slot) { rows_of_windows(q, slot, MAX_INDEX); }
static void rows_mean(void *q, int64_t slot) { rows_of_windows(q, slot, MEAN); }

void WEFT__ISA_NAME(weft__pool_rows_run)(const weft__exec *e, const pool_rows *s) {
    const weft_tensor *index = weft__tensor(e->p, WEFT_ROLE_INDEX);
    task q = {.e = e, .s = *s, .dtype = e->p->tensor[0].dtype};
    q.index_dtype = index ? index->dtype : WEFT_DTYPE_U8;
    q.place = q.index_dtype != WEFT_DTYPE_U8;
    weft__parallel(e->ctx, q.s.slots, e->p->op == WEFT_OP_AVG_POOL ? rows_mean : index ? rows_max_index : rows_max, &q);
}

static weft_status run(const weft__exec *e) {
    WEFT__ISA_NAME(weft__pool_rows_run)(e, (const pool_rows *)e->params);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan_rows(const weft_problem *p, const weft__hw *hw, pool_rows *s, weft__decision *d) {
    const int64_t rows_out = p->n * p->c / s->inner * p->out[0] * p->out[1], stride = s->last ? 1 : p->stride[2];
    s->wide = s->last ? ((p->out[2] - 1) * p->stride[2] + 1) * s->inner : p->out[2];
    const int64_t wide = stride > 2 ? s->wide : cpu_round_up(s->wide, VF_LANES);
    const int64_t reach = wide * stride + (p->kernel[2] - 1) * p->dilation[2] * s->inner;
    s->pitch = cpu_round_up(WEFT__MAX((p->in[2] + p->pad_lo[2]) * s->inner, reach) + VF_LANES, 16);
    s->band = WEFT__MAX(1, WEFT__MIN(BAND, NEAR / s->pitch));
    if (s->pitch > 1 << 17) return "a row is over 2^17 elements";
    state unused;
    s->bytes = layout(p, s, NULL, &unused);
    s->slots = cpu_slots(rows_out, weft__bytes(p));
    d->workspace = (size_t)(s->slots * s->bytes);
    /* vectors of rows, of lines and of taps along them, and a row some time of its own; long lines are not near */
    const bool index = weft__tensor(p, WEFT_ROLE_INDEX) != NULL, parted = s->last && p->stride[2] > 1;
    const double rows = (double)(p->kernel[0] * p->kernel[1]) *
                        (2 + (index ? 1.5 : 0.5) * POOL_VECTOR * (double)cpu_ceil(p->in[2] * s->inner, VF_LANES));
    const double taps = (double)(p->kernel[2] * cpu_ceil(s->wide, VF_LANES)) * (index ? 2 : 1) * POOL_VECTOR *
                        (stride > 2 ? 0.5 * VF_LANES : 1);
    const double kept = parted ? (double)(p->out[2] * cpu_ceil(s->inner, VF_LANES)) * (index ? 3 : 1.5) : 0;
    const double near = s->last && s->pitch * 4 * (index ? 2 : 1) * (parted ? 2 : 1) > 24 << 10 ? 2.5 : 1;
    d->ns = pool_cost(p, hw, s->slots, (double)rows_out * (20 + near * (rows + taps) + kept));
    return NULL;
}

void WEFT__ISA_NAME(weft__pool_rows_plan)(const weft_problem *p, const weft__hw *hw, pool_rows *s, weft__decision *d) {
    weft__decision by_rows;
    pool_rows mine = {.inner = p->c, .last = true};
    if (p->c < 1 || p->stride[2] > 4 || (double)p->c * (double)p->in[2] > 1 << 17) return;
    if (plan_rows(p, hw, &mine, &by_rows) || by_rows.ns >= d->ns) return;
    *s = mine;
    d->ns = by_rows.ns, d->workspace = by_rows.workspace;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *reason = pool_refusal(p);
    if (!reason) reason = pool_layout_refusal(p, WEFT_LAYOUT_FIRST);
    if (reason) return reason;
    pool_rows *s = WEFT__PARAMS(pool_rows, d);
    *s = (pool_rows){.inner = 1};
    return plan_rows(p, hw, s, d);
}

POOL_RECORD(MAX_POOL, max_pool_fwd_nchw, "max_pool_fwd_nchw_1v", FWD, true);
POOL_RECORD(AVG_POOL, avg_pool_fwd_nchw, "avg_pool_fwd_nchw_1v", FWD, true);
