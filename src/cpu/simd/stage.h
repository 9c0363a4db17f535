/* Output written as one contiguous run, through a small buffer in the nearest cache.
 *
 * Kernels write whole vectors, also past the end of what they mean to write: the next write covers the excess, so that
 * nobody needs masked stores. What leaves the buffer leaves it as whole cache lines, either streamed past the caches
 * (a regular store reads the line first: a third more traffic) or stored, where the output is small enough to stay.
 *
 *   at = stage_room(&s)             write up to `run` floats and VF_LANES of excess here
 *   stage_commit(&s, count, dtype)  count of them are meant
 * f32 that is not streamed need not go through the buffer: stage_in_place after stage_begin, and the room is the output
 * itself as long as the excess stays inside it.
 * dtype: of the output, a constant. What leaves is rounded to it. */
#ifndef WEFT_CPU_SIMD_STAGE_H
#define WEFT_CPU_SIMD_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "cpu/simd/simd.h"

enum { STAGE_LINE = 16, STAGE_FULL = 512 }; /* elements: a cache line of f32; keep at least this many together */

typedef struct weft__stage {
    float *buffer;      /* same place in its line as dst */
    char *dst;          /* where buffer[0] goes, a line's begin */
    int64_t skip, fill; /* buffer[skip..fill) is meant; skip > 0 only in the run's first line */
    bool stream;
    float *at; /* in place: the room, while left >= 0 */
    int64_t left;
} weft__stage;

/* Floats of buffer for commits of at most `run`. */
VF_INLINE int64_t stage_floats(int64_t run) {
    return (STAGE_LINE + STAGE_FULL + run + VF_LANES + STAGE_LINE - 1) / STAGE_LINE * STAGE_LINE;
}

/* buffer: 64-byte aligned. */
VF_INLINE void stage_begin(weft__stage *s, float *buffer, void *dst, bool stream, const int dtype) {
    s->buffer = buffer;
    s->skip = s->fill = (int64_t)(uintptr_t)dst / vf_size_of(dtype) % STAGE_LINE;
    s->dst = (char *)dst - s->skip * vf_size_of(dtype);
    s->stream = stream;
    s->left = -1;
}

/* total: elements of the output that this stage writes, from dst on; run: as for stage_floats. */
VF_INLINE void stage_in_place(weft__stage *s, void *dst, int64_t total, int64_t run, const int dtype) {
    if (dtype != WEFT_DTYPE_F32 || s->stream) return;
    s->at = dst, s->left = total - run - VF_LANES;
}

VF_INLINE float *stage_room(const weft__stage *s) { return s->left >= 0 ? s->at : s->buffer + s->fill; }

/* Elements [i, end) of one line or less. */
VF_INLINE void stage_some(weft__stage *s, int64_t i, int64_t end, const int dtype) {
    for (; i < end; i += VF_LANES) vf_store_count_as(dtype, s->dst, i, vf_load_count(s->buffer + i, end - i), end - i);
}

VF_INLINE void stage_lines(weft__stage *s, const int dtype) {
    int64_t i = 0;
    if (s->skip) {
        stage_some(s, s->skip, STAGE_LINE, dtype);
        s->skip = 0;
        i = STAGE_LINE;
    }
    const int64_t end = s->fill / STAGE_LINE * STAGE_LINE;
    if (s->stream)
        for (; i < end; i += VF_LANES) vf_stream_as(dtype, s->dst, i, vf_load(s->buffer + i));
    else
        for (; i < end; i += VF_LANES) vf_store_as(dtype, s->dst, i, vf_load(s->buffer + i));
    memcpy(s->buffer, s->buffer + end, STAGE_LINE * sizeof(float));
    s->dst += end * vf_size_of(dtype);
    s->fill -= end;
}

VF_INLINE void stage_commit(weft__stage *s, int64_t count, const int dtype) {
    if (s->left >= 0) {
        s->at += count, s->left -= count;
        if (s->left < 0) stage_begin(s, s->buffer, s->at, false, dtype);
        return;
    }
    s->fill += count;
    if (s->fill >= STAGE_FULL) stage_lines(s, dtype);
}

VF_INLINE void stage_end(weft__stage *s, const int dtype) {
    if (s->fill >= STAGE_LINE) stage_lines(s, dtype);
    stage_some(s, s->skip, s->fill, dtype);
    if (s->stream) vf_stream_end();
}

#endif
