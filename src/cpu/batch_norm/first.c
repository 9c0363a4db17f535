/* Batch norm channels-first, both passes, training and evaluation; f32, bf16, f16.
 * Math:      as in src/ref/batch_norm.h; moments and sums as in norm.h
 * Blocking:  a channel's elements are runs of a plane each, taken in blocks of up to 4096. Where the channel fits into
 *            the second-level cache a slot takes it from the first look to the result; else, and where they are few,
 *            pieces of channels leave their sums, which the caller merges, and a second sweep takes planes in order
 * Traffic:   each tensor once where a channel fits, else the inputs twice; large outputs are streamed
 * Roofline:  bandwidth / 8 (forward) or 12 (gradient) elements per second in f32
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 8x256x56x56 f32: training 0.56 of the copy forward,
 *            0.73 gradient; evaluation 1.0 and 0.82
 * Assumes:   data dense channels-first of one type; parameters of any type. Fewer pixels than lanes waste the others
 * Try:       weft bench batch_norm2d:fwd:f32:nchw:n8c256h56w56:train1 batch_norm2d:bwd:f32:nchw:n8c256h56w56:train1 */
#include "cpu/batch_norm/norm.h"

/* Elements of a block; bytes of a channel that stays in cache. */
enum { BLOCK = CPU_CUT(4096, 64), SUMS = 4, FITS = CPU_CUT(448 << 10, 1 << 10) };
enum { X, SQUARES, GRADIENTS }; /* what is summed */

/* Two sums of a vector's worth. */
typedef struct pair {
    vf first, second;
} pair;

VF_INLINE pair term(const norm *q, const int dtype, const int what, int64_t at, int64_t left, vf m, pair s) {
    const bool whole = left >= VF_LANES;
    const vf x = run_load(dtype, q->x, at, left);
    if (what == X) return (pair){vf_add(s.first, x), s.second};
    vf d = vf_sub(x, m);
    if (what == SQUARES) {
        if (!whole) d = vf_select(vm_first(left), d, vf_zero());
        return (pair){vf_fma(d, d, s.first), vf_add(s.second, d)};
    }
    const vf dy = norm_diff(q, dtype, at, left);
    return (pair){vf_add(s.first, dy), whole ? vf_fma(dy, d, s.second) : vf_fma_in(vm_first(left), dy, d, s.second)};
}

/* Runs of elements [lo, hi) of channel c: where one begins, and how long it is. */
VF_INLINE int64_t run_of(const norm *q, int64_t c, int64_t lo, int64_t hi, int64_t *at) {
    const int64_t image = lo / q->v.inner, pixel = lo % q->v.inner;
    *at = (image * q->v.channels + c) * q->v.inner + pixel;
    return WEFT__MIN(q->v.inner - pixel, hi - lo);
}

VF_INLINE void reduce(const norm *q, const int dtype, const int what, int64_t c, int64_t lo, int64_t hi, float mean,
                      float out[2]) {
    const vf m = vf_set1(mean);
    pair s[SUMS];
    VF_UNROLL for (int k = 0; k < SUMS; k++) s[k] = (pair){vf_zero(), vf_zero()};
    for (int64_t at, run; lo < hi; lo += run) {
        run = run_of(q, c, lo, hi, &at);
        int64_t i = 0;
        for (; i + SUMS * VF_LANES <= run; i += SUMS * VF_LANES) {
            VF_UNROLL for (int k = 0; k < SUMS; k++) s[k] =
                term(q, dtype, what, at + i + k * VF_LANES, VF_LANES, m, s[k]);
        }
        for (; i < run; i += VF_LANES) s[0] = term(q, dtype, what, at + i, run - i, m, s[0]);
    }
    out[0] = vf_sum(vf_add(vf_add(s[0].first, s[1].first), vf_add(s[2].first, s[3].first)));
    if (what != X) out[1] = vf_sum(vf_add(vf_add(s[0].second, s[1].second), vf_add(s[2].second, s[3].second)));
}

VF_INLINE moments sums_of(const norm *q, const int dtype, int64_t c, int64_t lo, int64_t hi) {
    moments all = {0, 0, 0};
    double m = 0, r;
    if (!q->fwd) norm_given(q, c, &m, &r);
    for (int64_t end; lo < hi; lo = end) {
        end = WEFT__MIN(lo + BLOCK, hi);
        const double count = (double)(end - lo);
        float s[2];
        if (q->fwd) {
            float squares[2];
            reduce(q, dtype, X, c, lo, end, 0, s);
            s[0] = (float)(s[0] / count);
            reduce(q, dtype, SQUARES, c, lo, end, s[0], squares);
            moments_add(&all, moments_of(count, s[0], squares[0], squares[1]), true);
        } else {
            reduce(q, dtype, GRADIENTS, c, lo, end, (float)m, s);
            moments_add(&all, (moments){count, s[0], s[1]}, false);
        }
    }
    return all;
}

/* ---------------------------------------------------------------- results */
VF_INLINE void put(const norm *q, const int dtype, const bool fwd, const bool train, int64_t at, int64_t left,
                   const vf k[4], const bool stream) {
    const int64_t next = (at + q->v.inner) * vf_size_of(dtype); /* the channel that comes next */
    if (fwd || train) vf_prefetch(q->x, next);
    if (!fwd) vf_prefetch(q->dy, next);
    const vf x = fwd || train ? run_load(dtype, q->x, at, left) : vf_zero();
    const vf dy = fwd ? vf_zero() : norm_diff(q, dtype, at, left);
    run_store(dtype, q->out, at, norm_value(q, fwd, train, x, dy, k[0], k[1], k[2], k[3]), left, stream);
}

VF_INLINE void put_run(const norm *q, const int dtype, const bool fwd, const bool train, int64_t c, int64_t at,
                       int64_t run) {
    const vf k[4] = {vf_set1(q->m[c]), vf_set1(q->a[c]), vf_set1(q->b[c]), vf_set1(fwd ? 0 : q->k[c])};
    int64_t i = 0;
    if (q->stream) {
        const int64_t head = run_head(dtype, q->out, at, run);
        for (; i < head; i += VF_LANES) put(q, dtype, fwd, train, at + i, head - i, k, false);
        for (i = head; i < run; i += VF_LANES) put(q, dtype, fwd, train, at + i, run - i, k, true);
    } else {
        for (; i < run; i += VF_LANES) put(q, dtype, fwd, train, at + i, run - i, k, false);
    }
}

VF_INLINE void put_any(const norm *q, const int dtype, int64_t c, int64_t at, int64_t run) {
    if (q->fwd)
        put_run(q, dtype, true, true, c, at, run);
    else if (q->train)
        put_run(q, dtype, false, true, c, at, run);
    else
        put_run(q, dtype, false, false, c, at, run);
}

/* ---------------------------------------------------------------- driver */
VF_INLINE void channels(const norm *q, int64_t slot, const int dtype) {
    const int64_t last = cpu_first(q->v.channels, q->slots, slot + 1);
    for (int64_t c = cpu_first(q->v.channels, q->slots, slot); c < last; c++) {
        norm_finish(q, c, sums_of(q, dtype, c, 0, q->elements));
        for (int64_t at, run, lo = 0; lo < q->elements; lo += run) {
            run = run_of(q, c, lo, q->elements, &at);
            put_any(q, dtype, c, at, run);
        }
    }
    if (q->stream) vf_stream_end();
}

VF_INLINE void piece(const norm *q, int64_t slot, const int dtype) {
    const int64_t c = slot / q->pieces, i = slot % q->pieces;
    q->parts[slot] =
        sums_of(q, dtype, c, cpu_first(q->elements, q->pieces, i), cpu_first(q->elements, q->pieces, i + 1));
}

VF_INLINE void planes(const norm *q, int64_t slot, const int dtype) {
    const int64_t all = q->v.outer * q->v.channels, last = cpu_first(all, q->slots, slot + 1);
    for (int64_t i = cpu_first(all, q->slots, slot); i < last; i++)
        put_any(q, dtype, i % q->v.channels, i * q->v.inner, q->v.inner);
    if (q->stream) vf_stream_end();
}

#define TASKS(type, DTYPE)                                                                        \
    static void channels_##type(void *q, int64_t slot) { channels(q, slot, WEFT_DTYPE_##DTYPE); } \
    static void piece_##type(void *q, int64_t slot) { piece(q, slot, WEFT_DTYPE_##DTYPE); }       \
    static void planes_##type(void *q, int64_t slot) { planes(q, slot, WEFT_DTYPE_##DTYPE); }
TASKS(f32, F32)
TASKS(f16, F16)
TASKS(bf16, BF16)
enum { CHANNELS, PIECE, PLANES };
static const weft_task tasks[WEFT_DTYPE_COUNT][3] = {
    [WEFT_DTYPE_F32] = {channels_f32, piece_f32, planes_f32},
    [WEFT_DTYPE_F16] = {channels_f16, piece_f16, planes_f16},
    [WEFT_DTYPE_BF16] = {channels_bf16, piece_bf16, planes_bf16},
};

static weft_status run(const weft__exec *e) {
    norm q = WEFT__ISA_NAME(weft__batch_norm_begin)(e);
    const weft_task *task = tasks[weft__tensor(e->p, WEFT_ROLE_SRC)->dtype];
    if (q.pieces == 1) {
        weft__parallel(e->ctx, q.slots, task[CHANNELS], &q);
        return WEFT_OK;
    }
    if (q.sums) weft__parallel(e->ctx, q.v.channels * q.pieces, task[PIECE], &q);
    for (int64_t c = 0; c < q.v.channels; c++) {
        moments all = {0, 0, 0};
        for (int64_t i = 0; i < q.pieces && q.sums; i++) moments_add(&all, q.parts[c * q.pieces + i], q.fwd);
        norm_finish(&q, c, all);
    }
    weft__parallel(e->ctx, q.slots, task[PLANES], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    norm *q = WEFT__PARAMS(norm, d);
    const double bytes = weft__bytes(p);
    (void)variant;
    const char *refusal = WEFT__ISA_NAME(weft__batch_norm_plan)(p, hw, q);
    if (refusal) return refusal;
    if (q->v.inner == 1) return "the channels of a pixel lie together";
    const double channel = bytes / (double)q->v.channels;
    const int64_t most = cpu_ceil(q->elements, BLOCK), cut = q->v.channels < 16 ? cpu_ceil(64, q->v.channels) : 1;
    const bool fits = channel * (q->fwd ? 0.5 : 0.67) <= FITS && (cut == 1 || bytes < 1 << 18);
    q->pieces = fits && q->sums ? 1 : WEFT__MAX(2, WEFT__MIN(most, WEFT__MAX(cut, (int64_t)(channel / (2 * FITS)))));
    q->slots = q->pieces == 1 ? cpu_slots(q->v.channels, bytes) : cpu_slots(q->v.outer * q->v.channels, bytes);
    d->workspace = (size_t)norm_pitch(q->v.channels) * 4 * sizeof(float);
    if (q->pieces > 1 && q->sums) d->workspace += (size_t)(q->v.channels * q->pieces) * sizeof(moments);
    const double lanes = (double)cpu_round_up(q->v.inner, VF_LANES) / (double)q->v.inner;
    /* a second look at the inputs; a streamed output costs no look at what it replaces */
    const double again = q->pieces > 1 && q->sums ? (q->fwd ? 1.5 : 1.67) : !q->sums && q->fwd && q->stream ? 0.6 : 1;
    d->ns = lines_cost(hw, bytes * again, (double)(q->elements * q->v.channels) * lanes, 0, q->sums ? 3 : 1, q->slots) +
            (double)q->v.channels * (100 * (double)q->pieces + 16 * (double)q->v.outer) /
                (double)WEFT__MIN(hw->threads, q->slots); /* of a block, and of a plane */
    return NULL;
}

NORM_KERNEL(batch_norm_first);
