/* softmax and log-softmax over channels that lie together, and their gradients; f32, bf16, f16.
 * Math:      as in src/ref/softmax.h; sums in f32, four vectors of lanes, added by halves
 * Blocking:  rows of few channels (48 forward, 8 or 4 gradient) in tiles that are turned, see turn.h. Else a row at a
 *            time, its channels in lanes; softmax keeps exponentials of up to 4096 channels on the stack and computes
 *            them again of longer rows. Few long rows (a whole instance) are cut into chunks of 32768: a
 *            first sweep leaves the greatest and the sum of each, which the caller merges, a second one the results
 * Traffic:   each tensor once; of chunks the inputs twice
 * Roofline:  bandwidth / 8 (forward) or 12 (gradient) elements per second in f32; below 64 channels the sums over lanes
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 8x256x56x56 f32: 0.76 of the copy forward, 1.0
 *            gradient
 * Assumes:   all tensors dense of one type with the channels innermost; dst may be src
 * Try:       weft bench softmax2d:fwd:f32:nhwc:n8c256h56w56 softmax1d:fwd:f32:ncw:n4c1000000w1 */
#include "cpu/softmax/turn.h"

enum { KEEP = CPU_CUT(4096, 64), CHUNK = CPU_CUT(32768, 64), FEW = 64 };

/* Of a chunk: forward m and sum exp(x - m), gradient 0 and the sum. Merged into the first chunk of the row. */
typedef struct part {
    float greatest, sum;
} part;

typedef struct rows {
    lines_view v;
    const void *x, *dy; /* x: of the gradient y */
    void *out;
    part *parts;
    int64_t chunks, tile, slots; /* chunks of a row; rows of a tile that is turned, or 0 */
    bool stream;
} rows;

/* ---------------------------------------------------------------- a run of one row */
VF_INLINE vf term(const rows *q, const int dtype, const bool log, int64_t at, int64_t left, vf sum) {
    const vf dy = run_load(dtype, q->dy, at, left);
    return log ? vf_add(sum, dy) : vf_fma(run_load(dtype, q->x, at, left), dy, sum);
}

VF_INLINE float grad_sum(const rows *q, const int dtype, const bool log, int64_t at, int64_t count) {
    vf s[ROW_SUMS];
    VF_UNROLL for (int k = 0; k < ROW_SUMS; k++) s[k] = vf_zero();
    int64_t i = 0;
    for (; i + ROW_SUMS * VF_LANES <= count; i += ROW_SUMS * VF_LANES) {
        VF_UNROLL for (int k = 0; k < ROW_SUMS; k++) s[k] = term(q, dtype, log, at + i + k * VF_LANES, VF_LANES, s[k]);
    }
    for (; i < count; i += VF_LANES) s[0] = term(q, dtype, log, at + i, count - i, s[0]);
    return vf_sum(vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3])));
}

/* What a result takes: the greatest, and 1 / sum, log sum, or the sum of the gradient. */
typedef struct scale {
    vf m, by;
} scale;

VF_INLINE void put(const rows *q, const int dtype, const bool log, const bool bwd, int64_t at, int64_t i, int64_t left,
                   scale s, const float *kept, const bool stream) {
    const vf x = kept ? vf_load(kept + i) : run_load(dtype, q->x, at + i, left);
    vf y;
    if (bwd) {
        const vf dy = run_load(dtype, q->dy, at + i, left);
        y = log ? vf_fnma(vf_exp(x), s.by, dy) : vf_mul(x, vf_sub(dy, s.by));
    } else {
        y = log ? vf_sub(vf_sub(x, s.m), s.by) : vf_mul(kept ? x : vf_exp(vf_sub(x, s.m)), s.by);
    }
    run_store(dtype, q->out, at + i, y, left, stream);
}

VF_INLINE void put_run(const rows *q, const int dtype, const bool log, const bool bwd, int64_t at, int64_t count,
                       scale s, const float *kept) {
    if (q->stream) {
        int64_t i = run_head(dtype, q->out, at, count);
        for (int64_t k = 0; k < i; k += VF_LANES) put(q, dtype, log, bwd, at, k, i - k, s, kept, false);
        for (; i < count; i += VF_LANES) put(q, dtype, log, bwd, at, i, count - i, s, kept, true);
    } else {
        for (int64_t i = 0; i < count; i += VF_LANES) put(q, dtype, log, bwd, at, i, count - i, s, kept, false);
    }
}

VF_INLINE scale scale_of(part p, const bool log, const bool bwd) {
    const vf sum = vf_set1(p.sum);
    return (scale){vf_set1(p.greatest), bwd ? sum : log ? vf_log(sum) : vf_div(vf_set1(1), sum)};
}

/* ---------------------------------------------------------------- driver */
VF_INLINE part sum_of(const rows *q, const int dtype, const bool log, const bool bwd, int64_t at, int64_t count,
                      float *kept) {
    if (bwd) return (part){0, grad_sum(q, dtype, log, at, count)};
    const float m = row_greatest(dtype, q->x, at, count);
    const float least = q->chunks > 1 && m == -INFINITY ? 0 : m; /* other chunks may have more than -infinity */
    return (part){m, row_exp_sum(dtype, q->x, at, count, least, kept)};
}

/* ---------------------------------------------------------------- few channels */
typedef struct planes {
    _Alignas(64) float x[TURN], other[TURN_ROWS]; /* other: diff_dst, then the rows that leave */
} planes;

static void compute(planes *r, int64_t pitch, int64_t channels, int64_t count, bool log, bool bwd) {
    if (bwd && log) turn_softmax_grad(true, r->x, r->other, pitch, channels, count);
    if (bwd && !log) turn_softmax_grad(false, r->x, r->other, pitch, channels, count);
    if (!bwd && log) turn_softmax(true, r->x, pitch, channels, count);
    if (!bwd && !log) turn_softmax(false, r->x, pitch, channels, count);
}

VF_INLINE void few(const rows *q, int64_t slot, const int dtype, const bool log, const bool bwd) {
    planes r;
    const int64_t c = q->v.channels, tiles = cpu_ceil(q->v.outer, q->tile), last = cpu_first(tiles, q->slots, slot + 1);
    for (int64_t i = cpu_first(tiles, q->slots, slot); i < last; i++) {
        const int64_t first = i * q->tile, count = WEFT__MIN(q->tile, q->v.outer - first);
        turn_in(dtype, q->x, first * c, c, count, r.x, q->tile);
        if (bwd) turn_in(dtype, q->dy, first * c, c, count, r.other, q->tile);
        compute(&r, q->tile, c, count, log, bwd);
        turn_out(dtype, r.x, q->tile, c, count, r.other, q->out, first * c, q->stream);
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- many channels */
VF_INLINE void whole(const rows *q, int64_t slot, const int dtype, const bool log, const bool bwd) {
    _Alignas(64) float kept[KEEP + VF_LANES];
    const int64_t c = q->v.channels, last = cpu_first(q->v.outer, q->slots, slot + 1);
    float *keep = !bwd && !log && c <= KEEP ? kept : NULL;
    for (int64_t row = cpu_first(q->v.outer, q->slots, slot); row < last; row++) {
        const part sum = sum_of(q, dtype, log, bwd, row * c, c, keep);
        put_run(q, dtype, log, bwd, row * c, c, scale_of(sum, log, bwd), keep);
    }
    if (q->stream) vf_stream_end();
}

/* One chunk of a row: the sum, or the results. */
VF_INLINE void chunk(const rows *q, int64_t slot, const int dtype, const bool log, const bool bwd, const bool results) {
    const int64_t c = q->v.channels, row = slot / q->chunks, i = slot % q->chunks;
    const int64_t first = cpu_first(c, q->chunks, i), count = cpu_first(c, q->chunks, i + 1) - first;
    if (results)
        put_run(q, dtype, log, bwd, row * c + first, count, scale_of(q->parts[row * q->chunks], log, bwd), NULL);
    else
        q->parts[slot] = sum_of(q, dtype, log, bwd, row * c + first, count, NULL);
    if (q->stream) vf_stream_end();
}

static void merge(const rows *q, bool bwd) {
    for (int64_t row = 0; row < q->v.outer; row++) {
        part *p = q->parts + row * q->chunks;
        double sum = 0;
        float m = p->greatest;
        for (int64_t i = 1; i < q->chunks; i++) m = p[i].greatest > m ? p[i].greatest : m;
        for (int64_t i = 0; i < q->chunks; i++) sum += (bwd ? 1 : exp((double)p[i].greatest - m)) * p[i].sum;
        *p = (part){m, (float)sum};
    }
}

#define STEPS(name, dtype, log, bwd)                                                                       \
    static void name##_few(void *q, int64_t slot) { few(q, slot, WEFT_DTYPE_##dtype, log, bwd); }          \
    static void name##_whole(void *q, int64_t slot) { whole(q, slot, WEFT_DTYPE_##dtype, log, bwd); }      \
    static void name##_sum(void *q, int64_t slot) { chunk(q, slot, WEFT_DTYPE_##dtype, log, bwd, false); } \
    static void name##_put(void *q, int64_t slot) { chunk(q, slot, WEFT_DTYPE_##dtype, log, bwd, true); }
#define STEPS_OF(type, dtype)                   \
    STEPS(soft_##type, dtype, false, false)     \
    STEPS(soft_grad_##type, dtype, false, true) \
    STEPS(log_##type, dtype, true, false) STEPS(log_grad_##type, dtype, true, true)
STEPS_OF(f32, F32)
STEPS_OF(f16, F16)
STEPS_OF(bf16, BF16)
#define TASKS(name) {name##_few, name##_whole, name##_sum, name##_put}
#define TASKS_OF(type)                                                                               \
    {                                                                                                \
        {TASKS(soft_##type), TASKS(soft_grad_##type)}, { TASKS(log_##type), TASKS(log_grad_##type) } \
    }
static const weft_task tasks[WEFT_DTYPE_COUNT][2][2][4] = {
    [WEFT_DTYPE_F32] = TASKS_OF(f32), [WEFT_DTYPE_F16] = TASKS_OF(f16), [WEFT_DTYPE_BF16] = TASKS_OF(bf16)};

static weft_status run(const weft__exec *e) {
    const bool bwd = e->p->pass == WEFT_PASS_BWD, log = e->p->op == WEFT_OP_LOG_SOFTMAX;
    const weft_task *task = tasks[e->p->tensor[0].dtype][log][bwd];
    rows q = *(const rows *)e->params;
    q.x = e->ptr[bwd ? WEFT_ROLE_DST : WEFT_ROLE_SRC];
    q.dy = e->ptr[WEFT_ROLE_DIFF_DST];
    q.out = e->ptr[bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.parts = e->workspace;
    if (q.chunks == 1) {
        weft__parallel(e->ctx, q.slots, task[q.tile ? 0 : 1], &q);
    } else {
        weft__parallel(e->ctx, q.slots, task[2], &q);
        merge(&q, bwd);
        weft__parallel(e->ctx, q.slots, task[3], &q);
    }
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
/* Of a row: the sums over lanes, and vectors that are not full. */
#define ROW_END_NS (VF_LANES == 16 ? 4 : VF_LANES == 8 ? 2 : 30)
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    rows *q = WEFT__PARAMS(rows, d);
    const bool bwd = p->pass == WEFT_PASS_BWD, log = p->op == WEFT_OP_LOG_SOFTMAX;
    (void)variant;
    const char *refusal = lines_view_of(p, ~UINT64_C(0), &q->v);
    if (refusal) return refusal;
    if (!lines_same_type(p, ~UINT64_C(0))) return "tensors of several data types";
    if (q->v.inner != 1) return "the channels of a pixel do not lie together";
    const double bytes = weft__bytes(p), elements = weft__flops(p) / 5;
    q->chunks = q->v.outer < FEW && q->v.channels > 2 * CHUNK ? cpu_ceil(q->v.channels, CHUNK) : 1;
    q->tile = turns(&q->v, bwd) ? turn_pixels(q->v.channels, q->v.outer) : 0;
    const int64_t items = q->tile ? cpu_ceil(q->v.outer, q->tile) : q->v.outer;
    q->slots = q->chunks > 1 ? q->v.outer * q->chunks : cpu_slots(items, bytes);
    d->workspace = q->chunks > 1 ? (size_t)q->slots * sizeof(part) : 0;
    q->stream = cpu_streams(hw, bytes / (bwd ? 3 : 2));
    const bool keep = q->chunks == 1 && q->v.channels <= KEEP;
    const double exps = bwd ? (log ? 1 : 0) : keep || log ? 1 : 2, again = q->chunks > 1 ? (bwd ? 5.0 / 3 : 1.5) : 1;
    const double lanes = (double)cpu_round_up(q->v.channels, VF_LANES) / (double)q->v.channels;
    const double ends = bwd && q->v.channels % VF_LANES == 0 ? 0 : ROW_END_NS;
    d->ns = lines_cost(hw, bytes * again, elements * lanes, exps, bwd ? 3 : 4, q->slots) +
            (double)q->v.outer * ends / (WEFT__MIN(hw->threads, (double)q->slots) * cpu_speed(hw));
    if (q->tile) d->ns = lines_cost(hw, bytes, elements, exps, bwd ? 8 : 7, q->slots);
    return NULL;
}

#define ROWS(NAME, name_)                                                              \
    WEFT__KERNEL(name_##_rows) = {                                                     \
        .name = WEFT__NAME(#name_ "_rows"),                                            \
        .version = 2,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .bound = 4,                                                                    \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
ROWS(SOFTMAX, softmax);
ROWS(LOG_SOFTMAX, log_softmax);
