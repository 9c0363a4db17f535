/* The way of a block of depthwise_planes.cu through its units, and the copies that run ahead of it. For device code
 * only.
 * A volume is one channel of one image, or with FLAT the planes of a segment's channels. Of a volume a block has a
 * piece: some of its planes of dests, and the sources of those, which are loaded GROUP planes at a time into a ring of
 * slots. */
#ifndef WEFT_CUDA_PLANES_H
#define WEFT_CUDA_PLANES_H

#include "span.h"

enum { GROUP = FLAT ? 1 : DEEP };

/* Where a block is: chunks of DEEP planes, then images, then segments. */
struct walk {
    int unit, segment, image, chunk;
};

static __device__ __forceinline__ walk walk_at(const depthwise_args &a, int unit) {
    walk w;
    w.unit = unit;
    w.segment = unit / a.span;
    const int rest = unit - w.segment * a.span;
    w.image = FLAT ? rest : rest / a.chunks;
    w.chunk = FLAT ? 0 : rest - w.image * a.chunks;
    return w;
}

static __device__ __forceinline__ void next_volume(const depthwise_args &a, walk &w) {
    w.unit += FLAT ? 1 : a.chunks - w.chunk;
    w.chunk = 0;
    if (++w.image == a.n) w.image = 0, w.segment++;
}

static __device__ __forceinline__ void next_unit(const depthwise_args &a, walk &w) {
    if (FLAT || w.chunk + 1 == a.chunks) return next_volume(a, w);
    w.unit++, w.chunk++;
}

/* Channels and rows of a segment. */
struct segment {
    int64_t first; /* channel */
    int channels, top, rows, source_top, source_rows;
};

static __device__ __forceinline__ segment segment_of(const depthwise_args &a, int number) {
    segment s;
    const int run = a.strips == 1 ? number : number / a.strips, strip = number - run * a.strips;
    s.first = (int64_t)run * a.run;
    s.channels = (int)min((int64_t)a.run, a.channels - s.first);
    const int lo = strip * a.down * RY - PHASE1, hi = min(lo + a.down * RY, a.to[1]);
    s.top = max(lo, 0);
    s.rows = hi - s.top;
    const int first = FWD ? s.top * S1 - P1 : (s.top + P1 - (K1 - 1) * D1 + S1 - 1) / S1;
    const int last = FWD ? (hi - 1) * S1 - P1 + (K1 - 1) * D1 : (hi - 1 + P1) / S1;
    const bool before = !FWD && s.top + P1 - (K1 - 1) * D1 < 0;
    s.source_top = before ? 0 : max(first, 0);
    s.source_rows = max(min(last, a.from[1] - 1) - s.source_top + 1, 0);
    if (a.strips == 1) s.source_top = 0, s.source_rows = a.from[1]; /* planes behind each other */
    return s;
}

/* First and last source planes of a unit. */
static __device__ __forceinline__ int plane_first(int chunk) {
    if (FLAT) return 0;
    const int z = chunk * DEEP;
    return FWD ? max(z * S0 - P0, 0) : max(z + P0 - (K0 - 1) * D0 + S0 - 1, 0) / S0;
}
static __device__ __forceinline__ int plane_last(const depthwise_args &a, int chunk) {
    if (FLAT) return 0;
    const int z = min(chunk * DEEP + DEEP, a.to[0]) - 1;
    return min(FWD ? z * S0 - P0 + (K0 - 1) * D0 : (z + P0) / S0, a.from[0] - 1);
}

/* The part of a volume that this block has: source planes first .. end - 1, loaded in groups. */
struct piece {
    int first, end;
};
static __device__ __forceinline__ piece piece_of(const depthwise_args &a, const walk &w, int end) {
    if (FLAT) return {0, 1};
    const int last = min(a.chunks, w.chunk + end - w.unit) - 1;
    const piece p = {plane_first(w.chunk), plane_last(a, last) + 1};
    return p;
}
static __device__ __forceinline__ int groups(const piece &p) {
    return FLAT ? 1 : max(p.end - p.first + GROUP - 1, 0) / GROUP;
}

static __device__ __forceinline__ int64_t source_at(const depthwise_args &a, const segment &s, int image, int z) {
    return (((image * a.channels + s.first) * a.from[0] + z) * a.from[1] + s.source_top) * a.from[2];
}
static __device__ __forceinline__ int64_t dest_at(const depthwise_args &a, const segment &s, int image, int z) {
    return (((image * a.channels + s.first) * a.to[0] + z) * a.to[1] + s.top) * a.to[2];
}
static __device__ __forceinline__ int dest_count(const depthwise_args &a, const segment &s, const walk &w) {
    return (FLAT ? s.channels : min(DEEP, a.to[0] - w.chunk * DEEP)) * s.rows * a.to[2];
}

/* Shared memory, in this order. Reads past the ends of a row end where nothing is written: see cuda_slot. */
struct memory {
    uint64_t *arrival; /* of the ring, then of the dests' slots */
    float *filter, *scratch;
    T *zeros, *ring, *own;
};

static __device__ __forceinline__ memory memory_of(const depthwise_args &a, unsigned char *at) {
    memory m;
    m.arrival = (uint64_t *)at;
    m.filter = (float *)(m.arrival + (RING + OWNS + 1) / 2 * 2);
    m.scratch = m.filter + (a.run * TAPS + 3) / 4 * 4;
    m.zeros = (T *)(m.scratch + (WEIGHTS ? SCRATCH * THREADS : 0));
    m.ring = m.zeros + 32;
    m.own = m.ring + RING * a.slot;
    return m;
}

/* What is still to be loaded, by the last warp of the block. */
struct feed {
    walk source, dest;
    int plane, end;    /* of the piece that sources come from */
    int groups, units; /* loaded */
};

static __device__ __forceinline__ void load_more(const depthwise_args &a, const memory &m, feed &f, int end, int freed,
                                                 int units) {
    while (f.source.unit < end && f.groups < freed + RING) {
        const segment s = segment_of(a, f.source.segment);
        const int many = FLAT ? s.channels : min(GROUP, f.end - f.plane), slot = f.groups % RING;
        if (FLAT || many > 0) {
            span_load(m.ring + slot * a.slot, (const T *)a.source,
                      (int64_t)a.n * a.channels * a.from[0] * a.from[1] * a.from[2],
                      source_at(a, s, f.source.image, f.plane), many * s.source_rows * a.from[2], &m.arrival[slot]);
            f.groups++;
        }
        f.plane += GROUP;
        if (f.plane < f.end) continue;
        next_volume(a, f.source);
        if (FLAT) {
            f.plane = 0;
        } else if (f.source.unit < end) {
            const piece p = piece_of(a, f.source, end);
            f.plane = p.first, f.end = p.end;
        }
    }
    if (!WEIGHTS) return;
    while (f.dest.unit < end && f.units < units) {
        const segment s = segment_of(a, f.dest.segment);
        const int slot = f.units % OWNS;
        span_load(m.own + slot * a.own, (const T *)a.at, (int64_t)a.n * a.channels * a.to[0] * a.to[1] * a.to[2],
                  dest_at(a, s, f.dest.image, f.dest.chunk * DEEP), dest_count(a, s, f.dest), &m.arrival[RING + slot]);
        f.units++;
        next_unit(a, f.dest);
    }
}

/* A volume as the consumer sees it: groups before it, and its piece. */
struct window {
    int before;
    piece part;
};

/* Element 0 of a source plane in the ring. */
static __device__ __forceinline__ const T *plane_at(const depthwise_args &a, const memory &m, const segment &s,
                                                    const walk &w, const window &v, int z) {
    const int group = FLAT ? 0 : (z - v.part.first) / GROUP, begin = FLAT ? 0 : v.part.first + group * GROUP;
    const T *slot = m.ring + (v.before + group) % RING * a.slot;
    return slot + span_shift((const T *)a.source, (uint32_t)source_at(a, s, w.image, begin)) +
           (z - begin) * s.source_rows * a.from[2];
}

#endif
