/* What softmax and cross entropy share: dense data seen as outer x channels x inner, runs of elements of any length,
 * and the sweeps over the channels of a tile of pixels.
 *
 * A tile is `count` neighbouring pixels of one outer and all their channels; a sweep takes the channels one after the
 * other, with a run of pixels in lanes and one f32 per pixel in an array. Arrays are in the nearest cache, and the tile
 * in the second: only the first sweep reads memory. Arrays have TILE_MOST floats and a vector more: a tail reads and
 * writes whole vectors of them. */
#ifndef WEFT_CPU_SOFTMAX_LINES_H
#define WEFT_CPU_SOFTMAX_LINES_H

#include "cpu/frame.h"
#include "cpu/simd/math.h"

enum { ROW_SUMS = 4 };
enum { TILE_MOST = 512, TILE_ARRAY = TILE_MOST + VF_LANES, TILE_AHEAD = 8 };

typedef struct lines_view {
    int64_t outer, channels, inner;
} lines_view;

/* The tensor as outer x channels x inner; false: it is not dense. */
VF_INLINE bool lines_of(const weft_problem *p, const weft_tensor *t, lines_view *v) {
    const int64_t places = p->in[0] * p->in[1] * p->in[2];
    *v = (lines_view){p->n, p->c, places};
    if (weft__is_first(t)) return true;
    *v = (lines_view){p->n * places, p->c, 1};
    return weft__is_last(t);
}

/* One way of lying for the data tensors of all the roles in the set, or a refusal. */
VF_INLINE const char *lines_view_of(const weft_problem *p, uint64_t roles, lines_view *v) {
    bool first = true;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        lines_view own;
        if (!(roles & WEFT__BIT(t->role))) continue;
        if (!lines_of(p, t, &own)) return "a tensor is not dense";
        if (!first && own.inner != v->inner) return "one tensor is channels-first and another channels-last";
        *v = own;
        first = false;
    }
    return NULL;
}

/* Every tensor of floating point in the set of roles has one data type. */
VF_INLINE bool lines_same_type(const weft_problem *p, uint64_t roles) {
    int type = WEFT_DTYPE_NONE;
    for (int i = 0; i < p->ntensors; i++) {
        if (!(roles & WEFT__BIT(p->tensor[i].role))) continue;
        if (type != WEFT_DTYPE_NONE && type != p->tensor[i].dtype) return false;
        type = p->tensor[i].dtype;
    }
    return true;
}

/* ---------------------------------------------------------------- runs: `left` elements from `at` on, or a vector */
VF_INLINE vf run_load(const int dtype, const void *p, int64_t at, int64_t left) {
    return left >= VF_LANES ? vf_load_as(dtype, p, at) : vf_load_count_as(dtype, p, at, left);
}
VF_INLINE void run_store(const int dtype, void *p, int64_t at, vf v, int64_t left, const bool stream) {
    if (left < VF_LANES)
        vf_store_count_as(dtype, p, at, v, left);
    else if (stream)
        vf_stream_as(dtype, p, at, v);
    else
        vf_store_as(dtype, p, at, v);
}

/* May results be streamed in pieces of planes? Vectors of half a line, in planes that begin within one, would leave
 * lines half streamed, and the other half to be read. Rows are written as they lie. */
VF_INLINE bool lines_stream(const lines_view *v, int dtype) {
    const int64_t size = vf_size_of(dtype);
    return v->inner == 1 || v->inner * size % 64 == 0 || VF_LANES * size == 64;
}

/* Elements before the first that may be streamed; at most count. */
VF_INLINE int64_t run_head(const int dtype, const void *p, int64_t at, int64_t count) {
    const int64_t size = vf_size_of(dtype), vector = VF_LANES * size;
    const int64_t over = (int64_t)(((uintptr_t)p + (uintptr_t)(at * size)) % (uintptr_t)vector);
    if (over == 0) return 0;
    return over % size ? count : WEFT__MIN((vector - over) / size, count);
}

/* ns on this build of one exponential and of what else a sweep does to an element (one Zen 4 core, see math.h), and of
 * `exps` of the first and `sweeps` of the second for each element beside `bytes` of memory traffic. A core with a
 * higher peak of multiply-adds is as much faster. */
#define LINES_EXP_NS (VF_LANES == 16 ? 0.2 : VF_LANES == 8 ? 0.38 : 1.2)
#define LINES_SWEEP_NS (VF_LANES == 16 ? 0.05 : VF_LANES == 8 ? 0.06 : 0.2)
VF_INLINE double lines_cost(const weft__hw *hw, double bytes, double elements, double exps, double sweeps,
                            int64_t slots) {
    const double memory = bytes / hw->gbs, threads = (double)WEFT__MIN(hw->threads, WEFT__MAX(slots, 1));
    const double sums = elements * (exps * LINES_EXP_NS + sweeps * LINES_SWEEP_NS) / (threads * cpu_speed(hw));
    return 1000 + WEFT__MAX(memory, sums) + 0.3 * WEFT__MIN(memory, sums);
}

/* Pixels of a tile: `floats` of all their channels, whole lines, no more than TILE_MOST and no more than there are. */
VF_INLINE int64_t tile_pixels(const lines_view *v, int64_t floats) {
    int64_t most = floats / v->channels / 16 * 16;
    most = most < 16 ? 16 : most > TILE_MOST ? TILE_MOST : most;
    const int64_t tiles = cpu_ceil(v->inner, most), even = cpu_round_up(cpu_ceil(v->inner, tiles), 16);
    return WEFT__MIN(even, v->inner);
}

/* ---------------------------------------------------------------- sweeps
 * A strip of `vectors` goes down all channels with its sums in registers; only a strip of one vector has a tail. */
enum { STRIP = 4 };
#define SWEEP_STRIPS(count, call)                                        \
    do {                                                                 \
        int64_t i = 0;                                                   \
        for (; i + STRIP * VF_LANES <= (count); i += STRIP * VF_LANES) { \
            const int64_t left = VF_LANES;                               \
            call(STRIP);                                                 \
        }                                                                \
        for (; i < (count); i += VF_LANES) {                             \
            const int64_t left = (count) - i;                            \
            call(1);                                                     \
        }                                                                \
    } while (0)

VF_INLINE void strip_max(const int dtype, const lines_view *v, const void *x, int64_t at, int64_t left, float *m,
                         const int vectors) {
    const int64_t ahead = TILE_AHEAD * v->inner * vf_size_of(dtype), step = VF_LANES * vf_size_of(dtype);
    vf most[STRIP];
    VF_UNROLL for (int k = 0; k < vectors; k++) most[k] = vf_set1(-INFINITY);
    for (int64_t c = 0; c < v->channels; c++, at += v->inner) {
        VF_UNROLL for (int k = 0; k < vectors; k++) {
            if (k * step % 64 == 0) vf_prefetch(x, (at + k * VF_LANES) * vf_size_of(dtype) + ahead);
            most[k] = vf_max(run_load(dtype, x, at + k * VF_LANES, left), most[k]);
        }
    }
    VF_UNROLL for (int k = 0; k < vectors; k++) vf_store(m + k * VF_LANES, most[k]);
}

/* m[i] = the greatest channel of pixel i; a NaN is left out, the sum of exponentials will have it. */
VF_INLINE void sweep_max(const int dtype, const lines_view *v, const void *x, int64_t at, int64_t count, float *m) {
#define CALL(vectors) strip_max(dtype, v, x, at + i, left, m + i, vectors)
    SWEEP_STRIPS(count, CALL);
#undef CALL
}

VF_INLINE void strip_exp(const int dtype, const lines_view *v, const void *x, int64_t at, int64_t left, const float *m,
                         float *s, float *keep, int64_t pitch, int64_t next, const int vectors) {
    const int64_t size = vf_size_of(dtype);
    vf most[STRIP], sum[STRIP];
    VF_UNROLL for (int k = 0; k < vectors; k++) most[k] = vf_load(m + k * VF_LANES), sum[k] = vf_zero();
    for (int64_t c = 0; c < v->channels; c++, at += v->inner) {
        VF_UNROLL for (int k = 0; k < vectors; k++) {
            if (k * VF_LANES * size % 64 == 0) vf_prefetch(x, (at + k * VF_LANES + next) * size);
            const vf e = vf_exp_below(vf_sub(run_load(dtype, x, at + k * VF_LANES, left), most[k]));
            if (keep) vf_store(keep + c * pitch + k * VF_LANES, e);
            sum[k] = vf_add(sum[k], e);
        }
    }
    VF_UNROLL for (int k = 0; k < vectors; k++) vf_store(s + k * VF_LANES, sum[k]);
}

/* s[i] = sum_c exp(x_c - m[i]); keep: the terms, channel after channel, `pitch` apart; NULL: nowhere. Meanwhile the
 * tile that comes next, `next` elements further, is fetched. */
VF_INLINE void sweep_exp(const int dtype, const lines_view *v, const void *x, int64_t at, int64_t count, const float *m,
                         float *s, float *keep, int64_t pitch, int64_t next) {
#define CALL(vectors) strip_exp(dtype, v, x, at + i, left, m + i, s + i, keep ? keep + i : NULL, pitch, next, vectors)
    SWEEP_STRIPS(count, CALL);
#undef CALL
}

/* ---------------------------------------------------------------- rows: the channels of one pixel, in lanes
 * Behind the end of the row a vector has -infinity, which neither the greatest nor the sum sees. */
VF_INLINE vf row_load(const int dtype, const void *x, int64_t at, int64_t left) {
    if (left >= VF_LANES) return vf_load_as(dtype, x, at);
    return vf_select(vm_first(left), vf_load_count_as(dtype, x, at, left), vf_set1(-INFINITY));
}

/* The greatest by lanes. */
VF_INLINE vf row_most(const int dtype, const void *x, int64_t at, int64_t count) {
    vf m[ROW_SUMS];
    VF_UNROLL for (int k = 0; k < ROW_SUMS; k++) m[k] = vf_set1(-INFINITY);
    int64_t i = 0;
    for (; i + ROW_SUMS * VF_LANES <= count; i += ROW_SUMS * VF_LANES) {
        VF_UNROLL for (int k = 0; k < ROW_SUMS; k++) m[k] = vf_max(vf_load_as(dtype, x, at + i + k * VF_LANES), m[k]);
    }
    for (; i < count; i += VF_LANES) m[0] = vf_max(row_load(dtype, x, at + i, count - i), m[0]);
    return vf_max(vf_max(m[0], m[1]), vf_max(m[2], m[3]));
}
VF_INLINE float row_greatest(const int dtype, const void *x, int64_t at, int64_t count) {
    return vf_largest(row_most(dtype, x, at, count));
}

VF_INLINE vf row_exp(const int dtype, const void *x, int64_t at, int64_t i, int64_t left, vf m, float *kept) {
    const vf below = vf_exp_below(vf_sub(run_load(dtype, x, at + i, left), m));
    const vf e = left < VF_LANES ? vf_select(vm_first(left), below, vf_zero()) : below;
    if (kept) vf_store(kept + i, e);
    return e;
}

/* sum exp(x - m) by lanes; kept: the terms, whole vectors, or NULL. */
VF_INLINE vf row_exp_lanes(const int dtype, const void *x, int64_t at, int64_t count, float m, float *kept) {
    vf s[ROW_SUMS];
    VF_UNROLL for (int k = 0; k < ROW_SUMS; k++) s[k] = vf_zero();
    int64_t i = 0;
    for (; i + ROW_SUMS * VF_LANES <= count; i += ROW_SUMS * VF_LANES) {
        VF_UNROLL for (int k = 0; k < ROW_SUMS; k++) s[k] =
            vf_add(s[k], row_exp(dtype, x, at, i + k * VF_LANES, VF_LANES, vf_set1(m), kept));
    }
    for (; i < count; i += VF_LANES) s[0] = vf_add(s[0], row_exp(dtype, x, at, i, count - i, vf_set1(m), kept));
    return vf_add(vf_add(s[0], s[1]), vf_add(s[2], s[3]));
}
VF_INLINE float row_exp_sum(const int dtype, const void *x, int64_t at, int64_t count, float m, float *kept) {
    return vf_sum(row_exp_lanes(dtype, x, at, count, m, kept));
}

/* The tasks by data type, [log] and [gradient], of a file's tiles(job, slot, dtype, log, bwd). */
#define LINES_TASK(name, dtype, log, bwd) \
    static void name(void *q, int64_t slot) { tiles(q, slot, WEFT_DTYPE_##dtype, log, bwd); }
#define LINES_TASKS_OF(type, dtype)                  \
    LINES_TASK(soft_##type, dtype, false, false)     \
    LINES_TASK(soft_grad_##type, dtype, false, true) \
    LINES_TASK(log_##type, dtype, true, false) LINES_TASK(log_grad_##type, dtype, true, true)
#define LINES_ROW(type)                                                  \
    {                                                                    \
        {soft_##type, soft_grad_##type}, { log_##type, log_grad_##type } \
    }
#define LINES_TASKS(tasks)                                   \
    LINES_TASKS_OF(f32, F32)                                 \
    LINES_TASKS_OF(f16, F16)                                 \
    LINES_TASKS_OF(bf16, BF16)                               \
    static const weft_task tasks[WEFT_DTYPE_COUNT][2][2] = { \
        [WEFT_DTYPE_F32] = LINES_ROW(f32), [WEFT_DTYPE_F16] = LINES_ROW(f16), [WEFT_DTYPE_BF16] = LINES_ROW(bf16)}

#endif
