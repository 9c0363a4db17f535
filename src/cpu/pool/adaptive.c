/* Adaptive average pooling and its gradient, channels-first, on f32, f16 and bf16. Global pooling is one window.
 * Math:      dst[o] = mean of src[floor(o in/out) .. ceil((o+1) in/out) - 1] along each axis; diff_src[x] = sum of
 *            diff_dst[o] / count(o) over the windows o that hold x
 * Blocking:  one output row at a time. Forward: the rows of its windows are added up in registers, then each window
 *            sums its places of that row. Backward: the rows of windows over it are divided and added up, then each
 *            place sums its windows; scatter.c where its estimate is less. Where one window takes the whole height and
 *            width, the two are one long row
 * Slots:     runs of output rows
 * Traffic:   each tensor once: memory-bound
 * Assumes:   all tensors dense channels-first, of one data type
 * Try:       weft bench adaptive_avg_pool2d:fwd:f32:nchw:n8c2048h7w7:to1 */
#include "pool.h"
#include "rows.h"

typedef struct params {
    int64_t slots, bytes;
    int64_t in[3], out[3]; /* with the axes that one window takes put together */
    pool_scatter scatter;  /* backward: if it is faster */
} params;

typedef struct state { /* of a slot */
    float *line;
    pool_range *along;     /* of each output of the row: the inputs it takes */
    pool_range *across[2]; /* the same along depth and height */
    float *counts;         /* of each window along the row */
    sink to;
} state;

typedef struct task {
    const weft__exec *e;
    params s;
    const void *from;
    void *to;
    int dtype;
    bool bwd, stream;
} task;

/* Inputs that output o takes of an axis of `in`, which has `out` outputs: windows' places, or places' windows. The two
 * are the same formula with the sizes changed round. */
VF_INLINE pool_range taken(int64_t in, int64_t out, int64_t o) {
    return (pool_range){o * in / out, cpu_ceil((o + 1) * in, out)};
}
VF_INLINE int64_t taken_count(int64_t in, int64_t out, int64_t o) {
    const pool_range r = taken(in, out, o);
    return r.last - r.first;
}

VF_INLINE vf part(const void *from, int64_t at, int64_t n, const int dtype) {
    return n >= VF_LANES ? vf_load_as(dtype, from, at) : vf_load_count_as(dtype, from, at, n);
}

/* One row into a sum: line += row, or for a window that takes it all the sum of its values. */
VF_INLINE vf add_row(const task *q, state *t, int64_t at, int64_t width, bool all, float divisor, const int dtype) {
    vf sum[2] = {vf_zero(), vf_zero()};
    if (all) {
        int64_t x = 0;
        for (; x + 2 * VF_LANES <= width; x += 2 * VF_LANES) {
            sum[0] = vf_add(sum[0], vf_load_as(dtype, q->from, at + x));
            sum[1] = vf_add(sum[1], vf_load_as(dtype, q->from, at + x + VF_LANES));
        }
        for (; x < width; x += VF_LANES) sum[0] = vf_add(sum[0], part(q->from, at + x, width - x, dtype));
        return vf_add(sum[0], sum[1]);
    }
    for (int64_t x = 0; x < width; x += VF_LANES) {
        vf v = part(q->from, at + x, width - x, dtype);
        if (q->bwd) v = vf_div(v, vf_mul(vf_load(t->counts + x), vf_set1(divisor)));
        vf_store(t->line + x, vf_add(vf_load(t->line + x), v));
    }
    return sum[0];
}

/* Forward: the rows of windows, in registers. */
VF_INLINE void add_rows(const task *q, state *t, int64_t plane, pool_range rz, pool_range ry, const int dtype) {
    const int64_t *in = q->s.in, width = in[2];
    for (int64_t x = 0; x < width; x += VF_LANES) {
        vf sum = vf_zero();
        for (int64_t i = rz.first; i < rz.last; i++) {
            const int64_t at = ((plane * in[0] + i) * in[1] + ry.first) * width + x;
            for (int64_t j = 0; j < ry.last - ry.first; j++)
                sum = vf_add(sum, part(q->from, at + j * width, width - x, dtype));
        }
        vf_store(t->line + x, sum);
    }
}

/* The values of one output row from the sums in the line. */
static void spread(const task *q, const state *t, float scale, float *to) {
    const int64_t wide = q->bwd ? q->s.in[2] : q->s.out[2];
    if (q->bwd && q->s.out[2] == 1) {
        for (int64_t x = 0; x < wide; x += VF_LANES) vf_store(to + x, vf_set1(t->line[0]));
        return;
    }
    for (int64_t o = 0; o < wide; o++) {
        float sum = t->line[t->along[o].first];
        for (int64_t x = t->along[o].first + 1; x < t->along[o].last; x++) sum += t->line[x];
        to[o] = q->bwd ? sum : sum / (scale * t->counts[o]);
    }
}

VF_INLINE void row_as(const task *q, state *t, int64_t plane, int64_t z, int64_t y, const int dtype) {
    const params *s = &q->s;
    const int64_t *in = q->bwd ? s->out : s->in, *out = q->bwd ? s->in : s->out; /* of this pass */
    const pool_range rz = t->across[0][z], ry = t->across[1][y];
    const bool all = !q->bwd && s->out[2] == 1;
    vf sum = vf_zero();
    if (!q->bwd && !all) add_rows(q, t, plane, rz, ry, dtype);
    if (q->bwd) memset(t->line, 0, (size_t)cpu_round_up(in[2], VF_LANES) * sizeof(float));
    for (int64_t i = rz.first; (q->bwd || all) && i < rz.last; i++)
        for (int64_t j = ry.first; j < ry.last; j++) {
            const int64_t at = ((plane * in[0] + i) * in[1] + j) * in[2];
            const int64_t count =
                q->bwd ? taken_count(s->in[0], s->out[0], i) * taken_count(s->in[1], s->out[1], j) : 1;
            sum = vf_add(sum, add_row(q, t, at, in[2], all, (float)count, dtype));
        }
    const float places = (float)((rz.last - rz.first) * (ry.last - ry.first));
    float *to = sink_room(&t->to);
    if (all)
        to[0] = vf_sum(sum) / (places * (float)s->in[2]);
    else
        spread(q, t, places, to);
    sink_commit(&t->to, out[2]);
}

static void *carve(char **at, int64_t bytes) {
    void *here = *at;
    *at += cpu_round_up(bytes, 64);
    return here;
}

static int64_t layout(const params *s, bool bwd, char *at, state *t) {
    char *const begin = at;
    const int64_t in = bwd ? s->out[2] : s->in[2], out = bwd ? s->in[2] : s->out[2];
    t->line = carve(&at, cpu_round_up(in, VF_LANES) * 4);
    t->along = carve(&at, out * (int64_t)sizeof(pool_range));
    for (int a = 0; a < 2; a++) t->across[a] = carve(&at, (bwd ? s->in[a] : s->out[a]) * (int64_t)sizeof(pool_range));
    t->counts = carve(&at, cpu_round_up(s->out[2], VF_LANES) * 4);
    t->to.buffer = carve(&at, sink_floats(out) * 4);
    return at - begin;
}

static void rows(void *arg, int64_t slot) {
    const task *q = arg;
    const params *s = &q->s;
    const int64_t *in = q->bwd ? s->out : s->in, *out = q->bwd ? s->in : s->out;
    state t = {0};
    layout(s, q->bwd, (char *)q->e->workspace + slot * s->bytes, &t);
    const bool filled = q->bwd && s->out[2] == 1; /* each row is one value */
    for (int64_t o = 0; o < out[2] && !filled; o++) t.along[o] = taken(in[2], out[2], o);
    for (int a = 0; a < 2; a++)
        for (int64_t o = 0; o < out[a]; o++) t.across[a][o] = taken(in[a], out[a], o);
    for (int64_t o = 0; o < cpu_round_up(s->out[2], VF_LANES); o++)
        t.counts[o] = (float)taken_count(s->in[2], s->out[2], WEFT__MIN(o, s->out[2] - 1));
    const int64_t all = q->e->p->n * q->e->p->c * out[0] * out[1], end = cpu_first(all, s->slots, slot + 1);
    int64_t row = cpu_first(all, s->slots, slot);
    int64_t plane = row / (out[0] * out[1]), z = row / out[1] % out[0], y = row % out[1];
    t.to = (sink){t.to.buffer, q->to, row * out[2], 0, q->dtype, q->stream};
    for (; row < end; row++, pool_next_row(&plane, &z, &y, out[0], out[1]))
        if (q->dtype == WEFT_DTYPE_F32)
            row_as(q, &t, plane, z, y, WEFT_DTYPE_F32);
        else if (q->dtype == WEFT_DTYPE_F16)
            row_as(q, &t, plane, z, y, WEFT_DTYPE_F16);
        else
            row_as(q, &t, plane, z, y, WEFT_DTYPE_BF16);
    sink_end(&t.to);
}

static weft_status run(const weft__exec *e) {
    const bool bwd = e->p->pass == WEFT_PASS_BWD;
    const weft_tensor *out = weft__tensor(e->p, bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST);
    task q = {.e = e, .s = *(const params *)e->params, .dtype = out->dtype, .bwd = bwd};
    if (q.s.scatter.slots) return WEFT__ISA_NAME(weft__pool_scatter_run)(e, &q.s.scatter), WEFT_OK;
    q.from = e->ptr[bwd ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC], q.to = e->ptr[out->role];
    q.stream = cpu_streams(e->hw, (double)weft__numel(out) * (double)weft__dtype_size(out->dtype));
    weft__parallel(e->ctx, q.s.slots, rows, &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const bool bwd = p->pass == WEFT_PASS_BWD;
    const char *reason = pool_layout_refusal(p, WEFT_LAYOUT_FIRST);
    if (reason) return reason;
    params *s = WEFT__PARAMS(params, d);
    memcpy(s->in, p->in, sizeof(s->in)), memcpy(s->out, p->out, sizeof(s->out));
    if (s->out[2] == 1 && s->out[1] == 1) s->in[2] *= s->in[1], s->in[1] = 1;
    if (s->out[2] == 1 && s->out[1] == 1 && s->out[0] == 1) s->in[2] *= s->in[0], s->in[0] = 1;
    const int64_t *in = bwd ? s->out : s->in, *out = bwd ? s->in : s->out;
    if (s->in[2] > 1 << 17 || s->out[2] > 1 << 17) return "a row is over 2^17 elements";
    if (out[0] > 1 << 16 || out[1] > 1 << 16) return "over 2^16 rows or slices";
    state unused;
    s->bytes = layout(s, bwd, NULL, &unused);
    const int64_t all = p->n * p->c * out[0] * out[1];
    s->slots = cpu_slots(all, weft__bytes(p));
    d->workspace = (size_t)(s->slots * s->bytes);
    double taps = 1; /* rows that make one */
    for (int a = 0; a < 2; a++) taps *= WEFT__MAX((double)in[a] / (double)out[a], 1);
    const bool one = s->out[2] == 1;
    const double each = one ? 0 : 1.2 * (double)WEFT__MAX(in[2], out[2]);
    const double vectors = (double)cpu_ceil(in[2], VF_LANES) * POOL_VECTOR;
    const double row = bwd || one ? 15 + each + taps * (3 + 1.2 * vectors) : 8 + each / 2 + taps * (1 + 0.7 * vectors);
    const double ns = (double)all * row;
    d->ns = pool_cost(p, hw, s->slots, ns / cpu_speed(hw));
    s->scatter.slots = 0;
    if (bwd) WEFT__ISA_NAME(weft__pool_scatter_plan)(p, hw, false, &s->scatter, d);
    return NULL;
}

POOL_RECORD(ADAPTIVE_AVG_POOL, adaptive_avg_pool_fwd_nchw, "adaptive_avg_pool_fwd_nchw_1v", FWD, false);
POOL_RECORD(ADAPTIVE_AVG_POOL, adaptive_avg_pool_bwd_nchw, "adaptive_avg_pool_bwd_nchw_1v", BWD, false);
