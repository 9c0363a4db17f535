/* Rows of images as pooling works on them: f32 in the nearest cache, with the padding around them.
 * A row comes in split by the stride s of the windows: place x of the padded row is element x / s of phase x % s. So
 * tap k of the windows o, o + 1, ... is a run of memory for any stride: element o + k d / s of phase k d % s.
 * A row goes out through a buffer that is written to memory in whole cache lines. */
#ifndef WEFT_CPU_POOL_ROWS_H
#define WEFT_CPU_POOL_ROWS_H

#include "cpu/frame.h"

/* ---------------------------------------------------------------- in */
typedef struct split_row {
    int64_t width, stride, pad; /* of the image's row; padding before it */
    int64_t pitch;              /* floats from phase to phase */
    float outside;              /* what the padding holds */
    float *line;                /* width + VF_LANES floats of scratch, for strides without a permutation */
} split_row;

/* Where source places m, m + s, m + 2 s, ... begin. */
VF_INLINE float *split_class(const split_row *q, float *to, int64_t m) {
    return to + (m + q->pad) % q->stride * q->pitch + (m + q->pad) / q->stride;
}

VF_INLINE vf split_load(const split_row *q, const void *src, int64_t at, int64_t x, const int dtype) {
    const int64_t n = q->width - x;
    if (n >= VF_LANES) return vf_load_as(dtype, src, at + x);
    return n <= 0 ? vf_set1(q->outside)
                  : vf_select(vm_first(n), vf_load_count_as(dtype, src, at + x, n), vf_set1(q->outside));
}

VF_INLINE void split_row_as(const split_row *q, float *to, const void *src, int64_t at, const int dtype) {
    if (q->stride == 1) {
        float *all = split_class(q, to, 0);
        for (int64_t x = 0; x < q->width; x += VF_LANES) vf_store(all + x, split_load(q, src, at, x, dtype));
    } else if (q->stride == 2) {
        float *even = split_class(q, to, 0), *odd = split_class(q, to, 1);
        for (int64_t x = 0; x < q->width; x += 2 * VF_LANES, even += VF_LANES, odd += VF_LANES) {
            const vf a = split_load(q, src, at, x, dtype), b = split_load(q, src, at, x + VF_LANES, dtype);
            vf_store(even, vf_even(a, b));
            vf_store(odd, vf_odd(a, b));
        }
    } else {
        for (int64_t x = 0; x < q->width; x += VF_LANES) vf_store(q->line + x, split_load(q, src, at, x, dtype));
        for (int64_t m = 0; m < WEFT__MIN(q->stride, q->width); m++) {
            float *class = split_class(q, to, m);
            for (int64_t x = m; x < q->width; x += q->stride) *class ++ = q->line[x];
        }
    }
}

/* One row from element `at` of src on. */
VF_INLINE void split_row_in(const split_row *q, float *to, const void *src, int64_t at, int dtype) {
    if (dtype == WEFT_DTYPE_F32)
        split_row_as(q, to, src, at, WEFT_DTYPE_F32);
    else if (dtype == WEFT_DTYPE_F16)
        split_row_as(q, to, src, at, WEFT_DTYPE_F16);
    else
        split_row_as(q, to, src, at, WEFT_DTYPE_BF16);
}

/* ---------------------------------------------------------------- out */
enum { SINK_FULL = 1024 }; /* elements that are kept together at least */

typedef struct sink {
    float *buffer; /* SINK_FULL + the longest row + VF_LANES */
    void *dst;
    int64_t at, fill; /* buffer[0] is element `at` of dst */
    int dtype;
    bool stream;
} sink;

VF_INLINE int64_t sink_floats(int64_t row) { return cpu_round_up(SINK_FULL + row + 2 * VF_LANES, 16); }
/* Room for a row and VF_LANES of excess. */
VF_INLINE float *sink_room(const sink *s) { return s->buffer + s->fill; }

/* Whole lines from a line's begin on; what is left goes to the buffer's begin, or out as well if it is the end. */
VF_INLINE void sink_write_as(sink *s, bool end, const int dtype) {
    const int64_t size = vf_size_of(dtype), line = 64 / size;
    const int64_t past = (int64_t)(uintptr_t)s->dst % 64 / size + s->at, head = (line - past % line) % line;
    int64_t i = 0;
    for (int64_t to = WEFT__MIN(head, s->fill); i < to; i += VF_LANES)
        vf_store_count_as(dtype, s->dst, s->at + i, vf_load(s->buffer + i), to - i);
    i = WEFT__MIN(head, s->fill);
    const int64_t lines = i + (s->fill - i) / line * line;
    if (s->stream)
        for (; i < lines; i += VF_LANES) vf_stream_as(dtype, s->dst, s->at + i, vf_load(s->buffer + i));
    else
        for (; i < lines; i += VF_LANES) vf_store_as(dtype, s->dst, s->at + i, vf_load(s->buffer + i));
    if (end)
        for (; i < s->fill; i += VF_LANES)
            vf_store_count_as(dtype, s->dst, s->at + i, vf_load(s->buffer + i), s->fill - i);
    else
        memmove(s->buffer, s->buffer + i, (size_t)(s->fill - i) * sizeof(float));
    s->at += i;
    s->fill -= i;
}

VF_INLINE void sink_write(sink *s, bool end) {
    if (s->dtype == WEFT_DTYPE_F32)
        sink_write_as(s, end, WEFT_DTYPE_F32);
    else if (s->dtype == WEFT_DTYPE_F16)
        sink_write_as(s, end, WEFT_DTYPE_F16);
    else
        sink_write_as(s, end, WEFT_DTYPE_BF16);
}

/* count elements of the room are meant. */
VF_INLINE void sink_commit(sink *s, int64_t count) {
    s->fill += count;
    if (s->fill >= SINK_FULL) sink_write(s, false);
}

VF_INLINE void sink_end(sink *s) {
    sink_write(s, true);
    if (s->stream) vf_stream_end();
}

#endif
