/* softmax and log-softmax over channels that lie a plane apart, and their gradients; f32, bf16, f16.
 * Math:      as in src/ref/softmax.h; sums in f32, the channels in order
 * Blocking:  a tile of pixels, in lanes, with all its channels. Forward: the greatest, exp and sum, the quotient;
 *            softmax keeps the exponentials of the tile in 64 KB of its slot where they fit (up to 512 channels) and
 *            computes them again where not. Gradient: the sum, then the result. See lines.h
 * Traffic:   each tensor once: the tile stays in the second-level cache between its sweeps, large outputs are streamed
 * Roofline:  bandwidth / 8 (forward) or 12 (gradient) elements per second in f32
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 8x256x56x56 f32: 0.45 of the copy forward, 0.64
 *            gradient; log-softmax 0.5 and 0.63
 * Assumes:   all tensors dense channels-first of one type; dst may be src. Fewer pixels than lanes waste the others
 * Try:       weft bench softmax2d:fwd:f32:nchw:n8c256h56w56 softmax2d:bwd:f32:nchw:n8c256h56w56 */
#include "cpu/softmax/lines.h"

/* Floats of exponentials in a slot, those and a vector for a tail, slots that have them. */
enum { KEEP = 16384, KEEP_ROOM = KEEP + 16, SLOTS = 32 };

typedef struct columns {
    lines_view v;
    const void *x, *dy; /* x: of the gradient y */
    void *out;
    float *kept;                  /* KEEP of each slot; NULL: none */
    int64_t pixels, tiles, slots; /* of a tile; tiles of an outer; slots in all */
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

VF_INLINE void forward(const columns *q, const int dtype, const bool log, int64_t at, int64_t count, float *kept) {
    _Alignas(64) float m[TILE_ARRAY], scale[TILE_ARRAY];
    const int64_t pitch = cpu_round_up(count, VF_LANES);
    const bool keep = !log && kept && pitch * q->v.channels <= KEEP;
    sweep_max(dtype, &q->v, q->x, at, count, m);
    sweep_exp(dtype, &q->v, q->x, at, count, m, scale, keep ? kept : NULL, pitch, count);
    for (int64_t i = 0; i < count; i += VF_LANES) {
        const vf sum = vf_load(scale + i);
        vf_store(scale + i, log ? vf_log(sum) : vf_div(vf_set1(1), sum));
    }
    for (int64_t c = 0; c < q->v.channels; c++, at += q->v.inner)
        put_run(q, dtype, log, at, count, m, scale, keep ? kept + c * pitch : NULL);
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
VF_INLINE void tiles(const columns *q, int64_t slot, const int dtype, const bool log, const bool bwd) {
    const int64_t items = q->v.outer * q->tiles, last = cpu_first(items, q->slots, slot + 1);
    for (int64_t item = cpu_first(items, q->slots, slot); item < last; item++) {
        const int64_t pixel = item % q->tiles * q->pixels, count = WEFT__MIN(q->pixels, q->v.inner - pixel);
        const int64_t at = item / q->tiles * q->v.channels * q->v.inner + pixel;
        if (bwd)
            backward(q, dtype, log, at, count);
        else
            forward(q, dtype, log, at, count, q->kept ? q->kept + slot * KEEP_ROOM : NULL);
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
    q->tiles = cpu_ceil(q->v.inner, q->pixels);
    const double bytes = weft__bytes(p), lanes = (double)cpu_round_up(q->pixels, VF_LANES) / (double)q->pixels;
    q->slots = cpu_slots(q->v.outer * q->tiles, bytes);
    if (keep) q->slots = WEFT__MIN(q->slots, SLOTS);
    d->workspace = keep ? (size_t)q->slots * KEEP_ROOM * sizeof(float) : 0;
    q->stream = cpu_streams(hw, bytes / (bwd ? 3 : 2));
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
