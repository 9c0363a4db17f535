/* Batch norm channels-last and of rows (n, c), both passes, training and evaluation; f32, bf16, f16.
 * Math:      as in src/ref/batch_norm.h; moments and sums as in norm.h
 * Blocking:  channels in lanes. Slots take rows: of a block of 128, strips of 4 vectors go down the rows with their
 *            sums in registers, the first one fetching whole rows; the blocks of a slot are merged by channel, then the
 *            slots. A second sweep takes rows again, the last ones first
 * Traffic:   inputs twice, output once; evaluation each tensor once. Large outputs are streamed
 * Roofline:  bandwidth / 12 (forward) or 20 (gradient) elements per second in f32
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 8x256x56x56 f32: training 0.39 of the copy forward,
 *            0.48 gradient
 * Assumes:   data dense channels-last of one type; parameters of any type. Fewer channels than lanes waste the others
 * Try:       weft bench batch_norm2d:fwd:f32:nhwc:n8c256h56w56:train1 batch_norm2d:bwd:f32:nhwc:n8c256h56w56:train1 */
#include "cpu/batch_norm/norm.h"

enum { ROWS = 128, AHEAD = 4 }; /* of a block; from what is read to what is fetched */

/* A whole row, while the first strip goes down the block: the others find theirs near, and memory is read in order. */
VF_INLINE void fetch(const norm *q, const int dtype, const bool fwd, int64_t at) {
    const int64_t size = vf_size_of(dtype);
    for (int64_t i = 0; i < q->v.channels * size; i += 64) {
        vf_prefetch(q->x, at * size + i);
        if (!fwd) vf_prefetch(q->dy, at * size + i);
    }
}

/* The sums of a strip over the rows of a block: of x, then of squares and distances about their mean; or of the
 * gradient. */
VF_INLINE void strip(const norm *q, const int dtype, const bool fwd, int64_t at, int64_t c, int64_t left, int64_t rows,
                     float *first, float *second, float *rest, const int vectors) {
    const int64_t step = q->v.channels;
    vf a[STRIP], b[STRIP], m[STRIP], e[STRIP];
    VF_UNROLL for (int k = 0; k < vectors; k++) {
        a[k] = b[k] = e[k] = vf_zero();
        m[k] = fwd ? vf_zero() : vf_load(q->m + c + k * VF_LANES);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (c == 0 && step > STRIP * VF_LANES) fetch(q, dtype, fwd, at + (r + AHEAD) * step);
        VF_UNROLL for (int k = 0; k < vectors; k++) {
            const int64_t i = at + r * step + k * VF_LANES;
            const vf x = run_load(dtype, q->x, i, left), dy = fwd ? x : norm_diff(q, dtype, i, left);
            a[k] = vf_add(a[k], dy);
            if (!fwd) b[k] = vf_fma(dy, vf_sub(x, m[k]), b[k]);
        }
    }
    if (fwd) {
        VF_UNROLL for (int k = 0; k < vectors; k++) a[k] = vf_mul(a[k], vf_set1(1 / (float)rows));
        for (int64_t r = 0; r < rows; r++) {
            VF_UNROLL for (int k = 0; k < vectors; k++) {
                const vf d = vf_sub(run_load(dtype, q->x, at + r * step + k * VF_LANES, left), a[k]);
                b[k] = vf_fma(d, d, b[k]), e[k] = vf_add(e[k], d);
            }
        }
    }
    VF_UNROLL for (int k = 0; k < vectors; k++) {
        vf_store(first + k * VF_LANES, a[k]);
        vf_store(second + k * VF_LANES, b[k]);
        vf_store(rest + k * VF_LANES, e[k]);
    }
}

/* The moments of a slot's rows, by channel, a group of channels after the other. */
VF_INLINE void sums_of(const norm *q, int64_t slot, const int dtype, const bool fwd) {
    const int64_t begin = cpu_first(q->v.outer, q->pieces, slot), end = cpu_first(q->v.outer, q->pieces, slot + 1);
    moments *all = q->parts + slot * q->v.channels;
    float first[STRIP * VF_LANES], second[STRIP * VF_LANES], rest[STRIP * VF_LANES];
    for (int64_t c = 0; c < q->v.channels; c++) all[c] = (moments){0, 0, 0};
    for (int64_t row = begin; row < end; row += ROWS) {
        const int64_t rows = WEFT__MIN(ROWS, end - row), at = row * q->v.channels;
        for (int64_t c = 0, left; c < q->v.channels; c += left) {
            left = q->v.channels - c;
            if (left >= STRIP * VF_LANES)
                strip(q, dtype, fwd, at + c, c, left = STRIP * VF_LANES, rows, first, second, rest, STRIP);
            else
                strip(q, dtype, fwd, at + c, c, left = WEFT__MIN(left, VF_LANES), rows, first, second, rest, 1);
            for (int64_t i = 0; i < left; i++)
                moments_add(&all[c + i], moments_of((double)rows, first[i], second[i], rest[i]), fwd);
        }
    }
}

/* ---------------------------------------------------------------- results */
VF_INLINE void put(const norm *q, const int dtype, const bool fwd, const bool train, int64_t at, int64_t c,
                   int64_t left, const bool stream) {
    const vf x = fwd || train ? run_load(dtype, q->x, at + c, left) : vf_zero();
    const vf dy = fwd ? vf_zero() : norm_diff(q, dtype, at + c, left);
    const vf y = norm_value(q, fwd, train, x, dy, vf_load(q->m + c), vf_load(q->a + c), vf_load(q->b + c),
                            fwd ? vf_zero() : vf_load(q->k + c));
    run_store(dtype, q->out, at + c, y, left, stream);
}

VF_INLINE void put_rows(const norm *q, int64_t slot, const int dtype, const bool fwd, const bool train) {
    const int64_t last = cpu_first(q->v.outer, q->slots, slot + 1), n = q->v.channels;
    for (int64_t row = cpu_first(q->v.outer, q->slots, slot), c; row < last; row++) {
        if (q->stream) {
            const int64_t head = run_head(dtype, q->out, row * n, n);
            for (c = 0; c < head; c += VF_LANES) put(q, dtype, fwd, train, row * n, c, head - c, false);
            for (c = head; c < n; c += VF_LANES) put(q, dtype, fwd, train, row * n, c, n - c, true);
        } else {
            for (c = 0; c < n; c += VF_LANES) put(q, dtype, fwd, train, row * n, c, n - c, false);
        }
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- driver */
/* The last rows first: they were read last, and are the ones that the caches may still hold. */
VF_INLINE void rows_of(const norm *q, int64_t turn, const int dtype) {
    const int64_t slot = q->slots - 1 - turn;
    if (q->fwd)
        put_rows(q, slot, dtype, true, true);
    else if (q->train)
        put_rows(q, slot, dtype, false, true);
    else
        put_rows(q, slot, dtype, false, false);
}

VF_INLINE void sums_any(const norm *q, int64_t slot, const int dtype) {
    if (q->fwd)
        sums_of(q, slot, dtype, true);
    else
        sums_of(q, slot, dtype, false);
}

/* A group of channels: their slots merged, their coefficients. */
enum { GROUP = 64 };
static void merge(void *arg, int64_t slot) {
    const norm *q = arg;
    for (int64_t c = slot * GROUP; c < WEFT__MIN(q->v.channels, (slot + 1) * GROUP); c++) {
        moments all = {0, 0, 0};
        for (int64_t i = 0; i < q->pieces && q->sums; i++) moments_add(&all, q->parts[i * q->v.channels + c], q->fwd);
        norm_finish(q, c, all);
    }
}

static void means(const norm *q) {
    double m, r;
    for (int64_t c = 0; c < q->v.channels; c++) {
        norm_given(q, c, &m, &r);
        q->m[c] = (float)m;
    }
}

#define TASKS(type, DTYPE)                                                                    \
    static void sums_##type(void *q, int64_t slot) { sums_any(q, slot, WEFT_DTYPE_##DTYPE); } \
    static void rows_##type(void *q, int64_t slot) { rows_of(q, slot, WEFT_DTYPE_##DTYPE); }
TASKS(f32, F32)
TASKS(f16, F16)
TASKS(bf16, BF16)
static const weft_task tasks[WEFT_DTYPE_COUNT][2] = {
    [WEFT_DTYPE_F32] = {sums_f32, rows_f32},
    [WEFT_DTYPE_F16] = {sums_f16, rows_f16},
    [WEFT_DTYPE_BF16] = {sums_bf16, rows_bf16},
};

static weft_status run(const weft__exec *e) {
    norm q = WEFT__ISA_NAME(weft__batch_norm_begin)(e);
    const weft_task *task = tasks[weft__tensor(e->p, WEFT_ROLE_SRC)->dtype];
    memset(q.m, 0, (size_t)norm_pitch(q.v.channels) * 4 * sizeof(float));
    if (!q.fwd) means(&q);
    if (q.sums) weft__parallel(e->ctx, q.pieces, task[0], &q);
    weft__parallel(e->ctx, cpu_ceil(q.v.channels, GROUP), merge, &q);
    weft__parallel(e->ctx, q.slots, task[1], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    norm *q = WEFT__PARAMS(norm, d);
    const double bytes = weft__bytes(p);
    (void)variant;
    const char *refusal = WEFT__ISA_NAME(weft__batch_norm_plan)(p, hw, q);
    if (refusal) return refusal;
    if (q->v.inner != 1) return "the channels of a pixel do not lie together";
    q->pieces = cpu_slots(cpu_ceil(q->v.outer, ROWS), bytes);
    q->slots = cpu_slots(q->v.outer, bytes);
    d->workspace = (size_t)norm_pitch(q->v.channels) * 4 * sizeof(float);
    if (q->sums) d->workspace += (size_t)(q->v.channels * q->pieces) * sizeof(moments);
    const double lanes = (double)cpu_round_up(q->v.channels, VF_LANES) / (double)q->v.channels;
    const double again = q->sums ? (q->fwd ? 1.5 : 1.67) : 1;
    d->ns = lines_cost(hw, bytes * again, (double)(q->elements * q->v.channels) * lanes, 0, q->sums ? 3 : 1, q->slots) +
            (double)q->v.channels * (q->sums ? 40 : 10) * (double)q->pieces /
                (WEFT__MIN(hw->threads, (double)q->slots) * cpu_speed(hw));
    return NULL;
}

NORM_KERNEL(batch_norm_last);
