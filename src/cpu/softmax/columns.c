/* softmax and log-softmax over channels that lie a plane apart, and their gradients; f32, bf16, f16.
 * Math:      as in src/ref/softmax.h; sums in f32, the channels in order
 * Blocking:  a tile of pixels, in lanes, with all its channels. Forward: the greatest, exp and sum, the quotient;
 *            softmax keeps the exponentials of the tile in 64 KB of its slot where they fit (up to 512 channels) and
 *            computes them again where not. Three tiles are on their way in a slot, and where they are whole their
 *            sweeps run as one: memory is read, exponentials are computed and results written at the same time.
 *            Gradient: the sum, then the result. See lines.h
 * Traffic:   each tensor once: tiles stay in the second-level cache between their sweeps, large outputs are streamed
 * Roofline:  bandwidth / 8 (forward) or 12 (gradient) elements per second in f32
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 8x256x56x56 f32: 0.58 of the copy forward, 0.69
 *            gradient; log-softmax 0.64 and 0.63. One tile after the other: 0.47 and 0.54 forward
 * Assumes:   all tensors dense channels-first of one type; dst may be src. Fewer pixels than lanes waste the others
 * Try:       weft bench softmax2d:fwd:f32:nchw:n8c256h56w56 softmax2d:bwd:f32:nchw:n8c256h56w56 */
#include "cpu/softmax/lines.h"

/* Floats of exponentials in a slot, those and a vector for a tail, slots that have them. */
enum { KEEP = 16384, KEEP_ROOM = KEEP + 16, SLOTS = 32 };

typedef struct columns {
    lines_view v;
    const void *x, *dy; /* x: of the gradient y */
    void *out;
    float *kept;                         /* KEEP of each slot; NULL: none */
    int64_t pixels, pitch, tiles, slots; /* of a tile, and of its rows that are kept; tiles of an outer; slots in all */
    bool stream, keep;
} columns;

/* ---------------------------------------------------------------- forward */
VF_INLINE void put(const columns *q, const int dtype, const bool log, int64_t at, int64_t i, int64_t left,
                   const float *m, const float *scale, const float *kept, const bool stream) {
    vf y;
    if (kept) {
        y = vf_mul(vf_load(kept + i), vf_load(scale + i));
    } else {
        const vf x = vf_sub(run_load(dtype, q->x, at + i, left), vf_load(m + i));
        y = log ? vf_sub(x, vf_load(scale + i)) : vf_mul(vf_exp(x), vf_load(scale + i));
    }
    run_store(dtype, q->out, at + i, y, left, stream);
}

VF_INLINE void put_run(const columns *q, const int dtype, const bool log, int64_t at, int64_t count, const float *m,
                       const float *scale, const float *kept) {
    if (q->stream) {
        int64_t i = run_head(dtype, q->out, at, count);
        for (int64_t k = 0; k < i; k += VF_LANES) put(q, dtype, log, at, k, i - k, m, scale, kept, false);
        for (; i < count; i += VF_LANES) put(q, dtype, log, at, i, count - i, m, scale, kept, true);
    } else {
        for (int64_t i = 0; i < count; i += VF_LANES) put(q, dtype, log, at, i, count - i, m, scale, kept, false);
    }
}

/* A tile on its way: where it is, its pixels, and what is known of each. */
typedef struct tile {
    int64_t at, count;
    _Alignas(64) float m[TILE_ARRAY], scale[TILE_ARRAY]; /* scale: the sum, at last its inverse or logarithm */
    float *kept;                                         /* exponentials, rows of `pitch`; NULL: none */
} tile;

VF_INLINE void find_most(const columns *q, const int dtype, tile *t) {
    sweep_max(dtype, &q->v, q->x, t->at, t->count, t->m);
}
VF_INLINE void add_up(const columns *q, const int dtype, tile *t) {
    sweep_exp(dtype, &q->v, q->x, t->at, t->count, t->m, t->scale, t->kept, q->pitch, t->count);
}
VF_INLINE void finish(const bool log, tile *t) {
    for (int64_t i = 0; i < t->count; i += VF_LANES) {
        const vf sum = vf_load(t->scale + i);
        vf_store(t->scale + i, log ? vf_log(sum) : vf_div(vf_set1(1), sum));
    }
}
VF_INLINE void write(const columns *q, const int dtype, const bool log, const tile *t) {
    for (int64_t c = 0, at = t->at; c < q->v.channels; c++, at += q->v.inner)
        put_run(q, dtype, log, at, t->count, t->m, t->scale, t->kept ? t->kept + c * q->pitch : NULL);
}

/* The three sweeps of three tiles, whole and aligned, in one: the first waits for memory, the second computes and the
 * third writes. */
VF_INLINE void sweep_three(const columns *q, const int dtype, const bool log, const bool stream, tile *first,
                           tile *second, const tile *third) {
    const int64_t ahead = TILE_AHEAD * q->v.inner;
    for (int64_t i = 0; i < q->pixels; i += STRIP * VF_LANES) {
        vf most[STRIP], sum[STRIP];
        VF_UNROLL for (int k = 0; k < STRIP; k++) most[k] = vf_set1(-INFINITY), sum[k] = vf_zero();
        for (int64_t c = 0, at = i; c < q->v.channels; c++, at += q->v.inner) {
            VF_UNROLL for (int k = 0; k < STRIP; k++) {
                const int64_t lane = i + k * VF_LANES, j = at + k * VF_LANES;
                vf_prefetch(q->x, (first->at + j + ahead) * vf_size_of(dtype));
                most[k] = vf_max(vf_load_as(dtype, q->x, first->at + j), most[k]);
                const vf e = vf_exp_below(vf_sub(vf_load_as(dtype, q->x, second->at + j), vf_load(second->m + lane)));
                if (!log) vf_store(second->kept + c * q->pitch + lane, e);
                sum[k] = vf_add(sum[k], e);
                put(q, dtype, log, third->at + j - lane, lane, VF_LANES, third->m, third->scale,
                    log ? NULL : third->kept + c * q->pitch, stream);
            }
        }
        VF_UNROLL for (int k = 0; k < STRIP; k++) {
            vf_store(first->m + i + k * VF_LANES, most[k]);
            vf_store(second->scale + i + k * VF_LANES, sum[k]);
        }
    }
}

/* ---------------------------------------------------------------- gradient */
VF_INLINE void grad(const columns *q, const int dtype, const bool log, int64_t at, int64_t i, int64_t left,
                    const float *sum, const bool stream) {
    const int64_t size = vf_size_of(dtype), next = (at + i + q->pixels) * size;
    vf_prefetch(q->x, next); /* the tile that comes next */
    vf_prefetch(q->dy, next);
    const vf y = run_load(dtype, q->x, at + i, left), dy = run_load(dtype, q->dy, at + i, left), s = vf_load(sum + i);
    run_store(dtype, q->out, at + i, log ? vf_fnma(vf_exp(y), s, dy) : vf_mul(y, vf_sub(dy, s)), left, stream);
}

VF_INLINE void grad_run(const columns *q, const int dtype, const bool log, int64_t at, int64_t count,
                        const float *sum) {
    if (q->stream) {
        int64_t i = run_head(dtype, q->out, at, count);
        for (int64_t k = 0; k < i; k += VF_LANES) grad(q, dtype, log, at, k, i - k, sum, false);
        for (; i < count; i += VF_LANES) grad(q, dtype, log, at, i, count - i, sum, true);
    } else {
        for (int64_t i = 0; i < count; i += VF_LANES) grad(q, dtype, log, at, i, count - i, sum, false);
    }
}

VF_INLINE void strip_sum(const columns *q, const int dtype, const bool log, int64_t at, int64_t left, float *s,
                         const int vectors) {
    const int64_t size = vf_size_of(dtype), ahead = TILE_AHEAD * q->v.inner;
    vf sum[STRIP];
    VF_UNROLL for (int k = 0; k < vectors; k++) sum[k] = vf_zero();
    for (int64_t c = 0; c < q->v.channels; c++, at += q->v.inner) {
        VF_UNROLL for (int k = 0; k < vectors; k++) {
            const int64_t i = at + k * VF_LANES;
            const vf dy = run_load(dtype, q->dy, i, left);
            if (k * VF_LANES * size % 64 == 0) {
                vf_prefetch(q->dy, (i + ahead) * size);
                vf_prefetch(q->x, (i + ahead) * size);
            }
            sum[k] = log ? vf_add(sum[k], dy) : vf_fma(run_load(dtype, q->x, i, left), dy, sum[k]);
        }
    }
    VF_UNROLL for (int k = 0; k < vectors; k++) vf_store(s + k * VF_LANES, sum[k]);
}

VF_INLINE void backward(const columns *q, const int dtype, const bool log, int64_t at, int64_t count) {
    _Alignas(64) float sum[TILE_ARRAY];
#define CALL(vectors) strip_sum(q, dtype, log, at + i, left, sum + i, vectors)
    SWEEP_STRIPS(count, CALL);
#undef CALL
    for (int64_t c = 0; c < q->v.channels; c++, at += q->v.inner) grad_run(q, dtype, log, at, count, sum);
}

/* ---------------------------------------------------------------- driver */
VF_INLINE bool is_whole(const columns *q, const int dtype, const tile *t) {
    const int64_t row = q->v.inner * vf_size_of(dtype) % (VF_LANES * vf_size_of(dtype));
    return t->count == q->pixels && q->pixels % (STRIP * VF_LANES) == 0 &&
           (!q->stream || (row == 0 && run_head(dtype, q->out, t->at, 1) == 0));
}

VF_INLINE int64_t place_of(const columns *q, int64_t item, int64_t *count) {
    const int64_t pixel = item % q->tiles * q->pixels;
    *count = WEFT__MIN(q->pixels, q->v.inner - pixel);
    return item / q->tiles * q->v.channels * q->v.inner + pixel;
}

/* Tiles of a slot, three on their way. */
VF_INLINE void forward(const columns *q, int64_t slot, int64_t begin, int64_t end, const int dtype, const bool log) {
    tile t[3];
    for (int i = 0; i < 3; i++) t[i].kept = q->kept ? q->kept + (slot * 3 + i) * KEEP_ROOM : NULL;
    for (int64_t item = begin; item < end + 2; item++) {
        tile *first = &t[item % 3], *second = &t[(item + 2) % 3], *third = &t[(item + 1) % 3];
        const bool in = item<end, middle = item> begin && item <= end, out = item > begin + 1;
        if (in) first->at = place_of(q, item, &first->count);
        if (in && middle && out && (log || q->kept) && is_whole(q, dtype, first) && is_whole(q, dtype, second) &&
            is_whole(q, dtype, third)) {
            if (q->stream)
                sweep_three(q, dtype, log, true, first, second, third);
            else
                sweep_three(q, dtype, log, false, first, second, third);
        } else {
            if (in) find_most(q, dtype, first);
            if (middle) add_up(q, dtype, second);
            if (out) write(q, dtype, log, third);
        }
        if (middle) finish(log, second);
    }
}

VF_INLINE void tiles(const columns *q, int64_t slot, const int dtype, const bool log, const bool bwd) {
    const int64_t items = q->v.outer * q->tiles, last = cpu_first(items, q->slots, slot + 1);
    const int64_t begin = cpu_first(items, q->slots, slot);
    if (!bwd) forward(q, slot, begin, last, dtype, log);
    for (int64_t item = begin, count; bwd && item < last; item++) {
        const int64_t at = place_of(q, item, &count);
        backward(q, dtype, log, at, count);
    }
    if (q->stream) vf_stream_end();
}

LINES_TASKS(tasks);

static weft_status run(const weft__exec *e) {
    const bool bwd = e->p->pass == WEFT_PASS_BWD, log = e->p->op == WEFT_OP_LOG_SOFTMAX;
    columns q = *(const columns *)e->params;
    q.x = e->ptr[bwd ? WEFT_ROLE_DST : WEFT_ROLE_SRC];
    q.dy = e->ptr[WEFT_ROLE_DIFF_DST];
    q.out = e->ptr[bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.kept = q.keep ? e->workspace : NULL;
    weft__parallel(e->ctx, q.slots, tasks[e->p->tensor[0].dtype][log][bwd], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    columns *q = WEFT__PARAMS(columns, d);
    const bool bwd = p->pass == WEFT_PASS_BWD, log = p->op == WEFT_OP_LOG_SOFTMAX;
    (void)variant;
    const char *refusal = lines_view_of(p, ~UINT64_C(0), &q->v);
    if (refusal) return refusal;
    if (!lines_same_type(p, ~UINT64_C(0))) return "tensors of several data types";
    if (q->v.inner == 1) return "the channels of a pixel lie together";
    const bool keep = !bwd && !log && q->v.channels <= KEEP / 32;
    q->keep = keep;
    q->pixels = tile_pixels(&q->v, keep ? KEEP : WEFT__MAX(KEEP, 64 * q->v.channels));
    if (q->pixels > STRIP * 16) q->pixels -= q->pixels % (STRIP * 16);
    q->pitch = cpu_round_up(q->pixels, 16);
    q->tiles = cpu_ceil(q->v.inner, q->pixels);
    const double bytes = weft__bytes(p), lanes = (double)cpu_round_up(q->pixels, VF_LANES) / (double)q->pixels;
    q->slots = cpu_slots(q->v.outer * q->tiles, bytes);
    if (!bwd) q->slots = WEFT__MIN(q->slots, SLOTS);
    d->workspace = keep ? (size_t)q->slots * 3 * KEEP_ROOM * sizeof(float) : 0;
    q->stream = lines_stream(&q->v, p->tensor[0].dtype) && cpu_streams(hw, bytes / (bwd ? 3 : 2));
    const double exps = bwd ? (log ? 1 : 0) : keep || log ? 1 : 2;
    d->ns = lines_cost(hw, bytes, weft__flops(p) / 5 * lanes, exps, bwd ? 3 : 4, q->slots);
    return NULL;
}

#define COLUMNS(NAME, name_)                                                           \
    WEFT__KERNEL(name_##_columns) = {                                                  \
        .name = WEFT__NAME(#name_ "_columns"),                                         \
        .version = 1,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .bound = 4,                                                                    \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
COLUMNS(SOFTMAX, softmax);
COLUMNS(LOG_SOFTMAX, log_softmax);
