/* Output written as one contiguous run, through a small buffer in the nearest cache.
 *
 * Kernels write whole vectors, also past the end of what they mean to write: the next write covers the excess, so that
 * nobody needs masked stores. What leaves the buffer leaves it as whole cache lines, either streamed past the caches
 * (a regular store reads the line first: a third more traffic) or stored, where the output is small enough to stay.
 *
 *   at = stage_room(&s)       write up to `run` floats and VF_LANES of excess here
 *   stage_commit(&s, count)   count of them are meant */
#ifndef WEFT_CPU_SIMD_STAGE_H
#define WEFT_CPU_SIMD_STAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "cpu/simd/simd.h"

enum { STAGE_LINE = 16, STAGE_FULL = 512 }; /* floats: a cache line; keep at least this many together */

typedef struct weft__stage {
    float *buffer;      /* same place in its line as dst */
    float *dst;         /* where buffer[0] goes, a line's begin */
    int64_t skip, fill; /* buffer[skip..fill) is meant; skip > 0 only in the run's first line */
    bool stream;
} weft__stage;

/* Floats of buffer for commits of at most `run`. */
VF_INLINE int64_t stage_floats(int64_t run) {
    return (STAGE_LINE + STAGE_FULL + run + VF_LANES + STAGE_LINE - 1) / STAGE_LINE * STAGE_LINE;
}

/* buffer: 64-byte aligned. */
VF_INLINE void stage_begin(weft__stage *s, float *buffer, float *dst, bool stream) {
    s->buffer = buffer;
    s->skip = s->fill = (int64_t)((uintptr_t)dst / sizeof(float) % STAGE_LINE);
    s->dst = (float *)((uintptr_t)dst - (uintptr_t)s->skip * sizeof(float));
    s->stream = stream;
}

VF_INLINE float *stage_room(const weft__stage *s) { return s->buffer + s->fill; }

VF_INLINE void stage_lines(weft__stage *s) {
    int64_t i = 0;
    if (s->skip) {
        memcpy(s->dst + s->skip, s->buffer + s->skip, (size_t)(STAGE_LINE - s->skip) * sizeof(float));
        s->skip = 0;
        i = STAGE_LINE;
    }
    const int64_t end = s->fill / STAGE_LINE * STAGE_LINE;
    if (s->stream)
        for (; i < end; i += VF_LANES) vf_stream(s->dst + i, vf_load(s->buffer + i));
    else
        for (; i < end; i += VF_LANES) vf_store(s->dst + i, vf_load(s->buffer + i));
    memcpy(s->buffer, s->buffer + end, STAGE_LINE * sizeof(float));
    s->dst += end;
    s->fill -= end;
}

VF_INLINE void stage_commit(weft__stage *s, int64_t count) {
    s->fill += count;
    if (s->fill >= STAGE_FULL) stage_lines(s);
}

VF_INLINE void stage_end(weft__stage *s) {
    if (s->fill >= STAGE_LINE) stage_lines(s);
    memcpy(s->dst + s->skip, s->buffer + s->skip, (size_t)(s->fill - s->skip) * sizeof(float));
    if (s->stream) vf_stream_end();
}

#endif
