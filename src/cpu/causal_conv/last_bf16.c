/* Causal convolution of sequences whose channels lie side by side: forward, and every gradient in one pass. Any width
 * to 128, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu. Built for AVX512-BF16 too, which rounds to
 * bf16.
 * Math:      as in first.c; a vector is VF_LANES channels of one token
 * Blocking:  4 tokens x 1 group of channels, along the channels of a block of a row. A group is one vector, or two of
 *            bf16: the even channels and the odd ones, which take one instruction each to widen. Rows of f32 (weights,
 *            dz, sums) have the channels in that order. The rows of the next 4 tokens are prefetched. Gradients
 *            go from the last token to the first: dz of the tokens behind stand in a ring of rows
 * Sums:      a slot owns runs of tokens of blocks of channels, and k + 1 rows of sums; those are then added in the
 *            order of the slots, which follow from the problem alone. A run computes the k - 1 dz behind it once more
 * Edges:     tokens near the ends of a sequence, and all of them with seq_idx, are done one at a time, and taps outside
 *            left out, never multiplied by 0
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; in 16 bits silu and its slope cost as much. Measured on two Zen 4 cores of a shared machine,
 *            1x1024x4096 with bias and silu, share of a streaming copy: f32 71% and 64%, bf16 57% and 33%
 * Try:       weft bench causal_conv1d:fwd:f32:nwc:n1c1024w4096:k4:bias+silu */
#include "cpu/causal_conv/causal.h"

/* The build with instructions of bf16 is for bf16 alone. */
#ifdef __AVX512BF16__
enum { ONLY_BF16 = 1, DTYPES_HERE = WEFT__DTYPE_SET(BF16) };
#else
enum { ONLY_BF16 = 0, DTYPES_HERE = CAUSAL_DTYPES };
#endif

enum { P = 4, SLOTS = 16, BLOCK = 2048 }; /* BLOCK: bytes of a row */

typedef struct job {
    const weft__exec *e;
    causal_tensor src, dst, diff_src, diff_dst, h0, diff_h0, diff_hn, seq;
    int64_t n, c, w, k;
    int64_t group, pitch;       /* channels of a group; channels, rounded up to groups */
    int64_t block, blocks;      /* channels side by side */
    int64_t run, runs;          /* tokens of an item */
    int64_t items, slots, ring; /* ring: rows of dz, a power of two */
    bool silu, stream;
    const float *weights; /* of each vector: k rows, then that of the bias */
    float *sums, *dz;     /* of each slot: k + 1 rows of each vector, and the ring; sums NULL: not wanted */
} job;

typedef struct span { /* a block of channels of a run of tokens, in one slot */
    const job *q;
    int64_t n, c0, c1;
    float *sums, *dz;
} span;

typedef struct line { /* the tokens that one sees: where each tap reads; p NULL: nowhere */
    const void *p;
    int64_t at;
} line;

/* ---------------------------------------------------------------- groups of channels */
typedef struct group {
    vf v[2];
} group;

VF_INLINE int dtype_of(const job *q) { return ONLY_BF16 ? WEFT_DTYPE_BF16 : (int)q->src.t->dtype; }
VF_INLINE int vectors_of(const int dtype) { return dtype == WEFT_DTYPE_BF16 ? 2 : 1; }
#define EACH(v, dtype) VF_UNROLL for (int v = 0; v < vectors_of(dtype); v++)

VF_INLINE group load(const int dtype, line x, int64_t c, int64_t count, const bool tail) {
    if (dtype == WEFT_DTYPE_BF16) {
        const uint16_t *from = (const uint16_t *)x.p + x.at + c;
        const causal_pair two = causal_load_pair(from, tail ? count : 2 * VF_LANES);
        return (group){{two.even, two.odd}};
    }
    const vf v = tail ? vf_load_count_as(dtype, x.p, x.at + c, count) : vf_load_as(dtype, x.p, x.at + c);
    return (group){{v, v}};
}
VF_INLINE void store(const int dtype, line x, int64_t c, group g, int64_t count, const bool tail, bool stream) {
    void *to = (void *)(uintptr_t)x.p;
    if (dtype == WEFT_DTYPE_BF16)
        causal_store_pair((uint16_t *)to + x.at + c, (causal_pair){g.v[0], g.v[1]}, tail ? count : 2 * VF_LANES,
                          stream && !tail);
    else if (tail)
        vf_store_count_as(dtype, to, x.at + c, g.v[0], count);
    else
        causal_store(dtype, to, x.at + c, g.v[0], stream);
}
/* Rows of f32 lie by vectors, all rows of one vector side by side: rows as long as those of the data would meet these
 * in the same sets of the cache. `step`: from a vector to the next. */
VF_INLINE group row_load(const int dtype, const float *row, int64_t step) {
    const vf v = vf_load(row);
    return (group){{v, dtype == WEFT_DTYPE_BF16 ? vf_load(row + step) : v}};
}
VF_INLINE void row_store(const int dtype, float *row, int64_t step, group g) {
    EACH(v, dtype) vf_store(row + v * step, g.v[v]);
}
VF_INLINE int64_t row_at(const job *q, int64_t c, int64_t j) { return c * (q->k + 1) + j * VF_LANES; }
VF_INLINE group none(void) { return (group){{vf_zero(), vf_zero()}}; }
VF_INLINE group fma_of(const int dtype, group a, group b, group sum) {
    EACH(v, dtype) sum.v[v] = vf_fma(a.v[v], b.v[v], sum.v[v]);
    return sum;
}
VF_INLINE group silu_of(const int dtype, group z) {
    EACH(v, dtype) z.v[v] = causal_silu_as(z.v[v], dtype);
    return z;
}
VF_INLINE group slope_of(const int dtype, group dy, group z) {
    EACH(v, dtype) dy.v[v] = vf_mul(dy.v[v], causal_slope(z.v[v]));
    return dy;
}
/* Where channel c stands in the rows of weights and sums, the first of them. */
static int64_t place_of(const job *q, int64_t c) {
    const int64_t at = c % q->group, place = q->group == VF_LANES ? c : c - at + at % 2 * VF_LANES + at / 2;
    return row_at(q, place - place % VF_LANES, 0) + place % VF_LANES;
}

/* May whole vectors of a block be streamed to all of its rows? */
VF_INLINE bool lies(const job *q, causal_tensor v, int64_t c) {
    const uintptr_t bytes = (uintptr_t)weft__dtype_size(q->src.t->dtype), vector = (uintptr_t)q->group * bytes;
    return q->stream && ((uintptr_t)v.ptr + (uintptr_t)c * bytes) % vector == 0 &&
           (uintptr_t)v.t->strides[4] * bytes % vector == 0 && (uintptr_t)v.t->strides[0] * bytes % vector == 0;
}
VF_INLINE int32_t seq_of(const job *q, int64_t n, int64_t t) {
    return q->seq.t ? ((const int32_t *)q->seq.ptr)[causal_offset(q->seq.t, n, 0, t)] : 0;
}
VF_INLINE line line_of(causal_tensor v, int64_t n, int64_t t) { return (line){v.ptr, causal_offset(v.t, n, 0, t)}; }
VF_INLINE float *ring_at(const span *s, int64_t t, int64_t c) {
    return s->dz + (c - s->c0) * s->q->ring + (t & (s->q->ring - 1)) * VF_LANES;
}
/* Into the second cache: the sets of the first would hold too few rows. */
VF_INLINE void prefetch(const int dtype, line x, int64_t c) {
    __builtin_prefetch((const void *)((uintptr_t)x.p + (uintptr_t)((x.at + c) * vf_size_of(dtype))), 0, 2);
}

/* What the token t sees through each tap. */
static void look(const span *s, int64_t t, line *tap) {
    const job *q = s->q;
    const int32_t own = seq_of(q, s->n, t);
    for (int64_t j = 0; j < q->k; j++) {
        const int64_t from = t - (q->k - 1) + j;
        const bool state = from < 0, counts = state ? q->h0.t != NULL : seq_of(q, s->n, from) == own;
        tap[j] = !counts ? (line){NULL, 0}
                 : state ? line_of(q->h0, s->n, from + q->k - 1)
                         : line_of(q->src, s->n, from);
    }
}

/* For each whole group of the block; then what is left of one, in code for any width and data type. */
#define EACH_GROUP(s, dtype, whole_group, part_group)            \
    do {                                                         \
        const int64_t whole = vectors_of(dtype) * VF_LANES;      \
        int64_t c = (s)->c0;                                     \
        for (; c + whole <= (s)->c1; c += whole) whole_group(c); \
        if (c < (s)->c1) part_group(s, &g, c, (s)->c1 - c);      \
    } while (0)

/* P tokens: where the k - 1 before them begin, their gradients, and steps from one token to the next. */
typedef struct tile {
    line x, y, dy;
    int64_t x_step, y_step, dy_step;
    int64_t t;
    bool stream;
} tile;
VF_INLINE line at_step(line x, int64_t step, int64_t i) { return (line){x.p, x.at + i * step}; }

/* A group as it lies in memory, and one of its vectors: registers do for the vectors of one part at a time. */
VF_INLINE vf raw_load(const int dtype, line x, int64_t c, int64_t count, const bool tail) {
    if (dtype != WEFT_DTYPE_BF16) return load(dtype, x, c, count, tail).v[0];
    uint16_t some[2 * VF_LANES] = {0};
    const uint16_t *from = (const uint16_t *)x.p + x.at + c;
    if (!tail) return vf_from_bits(vi_load((const int32_t *)(const void *)from));
    memcpy(some, from, sizeof(*some) * (size_t)count);
    return vf_from_bits(vi_load((const int32_t *)(const void *)some));
}
VF_INLINE vf part_of(const int dtype, vf raw, const int part) {
    if (dtype != WEFT_DTYPE_BF16) return raw;
    const causal_pair two = causal_widen(vf_bits(raw));
    return part ? two.odd : two.even;
}

/* The tokens that P tokens see through tap j. K 0: any width, they are loaded for each tap. */
typedef struct window {
    const tile *g;
    int64_t c, count;
    vf raw[P + 3], v[P + 3];
} window;
VF_INLINE void open_window(window *x, const tile *g, int64_t c, int64_t count, const int dtype, const int K,
                           const bool tail) {
    const int many = K ? P + K - 1 : 0;
    x->g = g, x->c = c, x->count = count;
    VF_UNROLL for (int i = 0; i < many; i++) x->raw[i] = raw_load(dtype, at_step(g->x, g->x_step, i), c, count, tail);
}
VF_INLINE void open_part(window *x, const int dtype, const int K, const int part) {
    const int many = K ? P + K - 1 : 0;
    VF_UNROLL for (int i = 0; i < many; i++) x->v[i] = part_of(dtype, x->raw[i], part);
}
VF_INLINE vf token(const window *x, int64_t i, const int dtype, const int K, const int part, const bool tail) {
    if (K) return x->v[i];
    return part_of(dtype, raw_load(dtype, at_step(x->g->x, x->g->x_step, i), x->c, x->count, tail), part);
}
VF_INLINE void tile_sums(const job *q, const window *x, const float *w, vf *z, const int dtype, const int K,
                         const int part, const bool tail) {
    VF_UNROLL for (int i = 0; i < P; i++) z[i] = vf_load(w + q->k * VF_LANES);
    for (int64_t j = 0; j < (K ? K : q->k); j++) {
        const vf weight = vf_load(w + j * VF_LANES);
        VF_UNROLL for (int i = 0; i < P; i++) z[i] = vf_fma(weight, token(x, i + j, dtype, K, part, tail), z[i]);
    }
}

/* ---------------------------------------------------------------- forward */
VF_INLINE void forward_group(const span *s, const tile *g, int64_t c, int64_t count, const int dtype, const int K,
                             const bool tail) {
    const job *q = s->q;
    group y[P];
    vf z[P];
    window x;
    VF_UNROLL for (int i = 0; i < P; i++) y[i] = none();
    VF_UNROLL for (int i = 0; i < P; i++) prefetch(dtype, at_step(g->x, g->x_step, 2 * P + i - 1), c);
    open_window(&x, g, c, count, dtype, K, tail);
    EACH(part, dtype) {
        open_part(&x, dtype, K, part);
        tile_sums(q, &x, q->weights + row_at(q, c + part * VF_LANES, 0), z, dtype, K, part, tail);
        VF_UNROLL for (int i = 0; i < P; i++) y[i].v[part] = q->silu ? causal_silu_as(z[i], dtype) : z[i];
    }
    VF_UNROLL for (int i = 0; i < P; i++) store(dtype, at_step(g->y, g->y_step, i), c, y[i], count, tail, g->stream);
}

static __attribute__((noinline)) void forward_part(const span *s, const tile *g, int64_t c, int64_t count) {
    forward_group(s, g, c, count, dtype_of(s->q), 0, true);
}

VF_INLINE void forward_tile(const span *s, int64_t t, bool stream, const int dtype, const int K) {
    const job *q = s->q;
    const tile g = {.x = line_of(q->src, s->n, t - (q->k - 1)),
                    .y = line_of(q->dst, s->n, t),
                    .x_step = q->src.t->strides[4],
                    .y_step = q->dst.t->strides[4],
                    .stream = stream};
#define WHOLE(c) forward_group(s, &g, c, 0, dtype, K, false)
    EACH_GROUP(s, dtype, WHOLE, forward_part);
#undef WHOLE
}

VF_INLINE group careful_sum(const span *s, const line *tap, int64_t c, int64_t count, const int dtype) {
    const job *q = s->q;
    const int64_t step = row_at(q, VF_LANES, 0);
    group z = row_load(dtype, q->weights + row_at(q, c, q->k), step);
    for (int64_t j = 0; j < q->k; j++)
        if (tap[j].p)
            z = fma_of(dtype, row_load(dtype, q->weights + row_at(q, c, j), step), load(dtype, tap[j], c, count, true),
                       z);
    return z;
}

VF_INLINE void forward_token(const span *s, int64_t t, const int dtype) {
    const job *q = s->q;
    const line y = line_of(q->dst, s->n, t);
    const bool padding = seq_of(q, s->n, t) < 0;
    line tap[CAUSAL_WIDTH];
    look(s, t, tap);
    for (int64_t c = s->c0; c < s->c1; c += q->group) {
        const int64_t count = s->c1 - c;
        const group z = padding ? none() : careful_sum(s, tap, c, count, dtype);
        store(dtype, y, c, q->silu && !padding ? silu_of(dtype, z) : z, count, true, false);
    }
}

VF_INLINE void forward_tiles(const span *s, int64_t t, bool stream, const int dtype) {
    switch (s->q->k) {
    case 2:
        forward_tile(s, t, stream, dtype, 2);
        return;
    case 3:
        forward_tile(s, t, stream, dtype, 3);
        return;
    case 4:
        forward_tile(s, t, stream, dtype, 4);
        return;
    default:
        forward_tile(s, t, stream, dtype, 0);
    }
}

VF_INLINE void forward_span(const span *s, int64_t t, int64_t end, const int dtype) {
    const job *q = s->q;
    const bool stream = lies(q, q->dst, s->c0);
    while (t < end) {
        if (q->seq.t || t < q->k - 1 || t + P > end) {
            forward_token(s, t++, dtype);
            continue;
        }
        forward_tiles(s, t, stream, dtype);
        t += P;
    }
    if (end == q->w) causal_keep(q->e, s->n, s->c0, s->c1);
}

/* ---------------------------------------------------------------- gradients */
VF_INLINE void add_tile(const job *q, const window *x, float *to, const vf *dz, const int dtype, const int K,
                        const int part, const bool tail) {
    for (int64_t j = 0; j < (K ? K : q->k); j++, to += VF_LANES) {
        vf sum = vf_load(to);
        VF_UNROLL for (int i = 0; i < P; i++) sum = vf_fma(dz[i], token(x, i + j, dtype, K, part, tail), sum);
        vf_store(to, sum);
    }
    vf_store(to, vf_add(vf_load(to), vf_add(vf_add(dz[0], dz[1]), vf_add(dz[2], dz[3]))));
}

/* dx of P tokens from t on, from their dz and those behind. */
VF_INLINE void diff_tile(const span *s, int64_t t, int64_t c, const vf *dz, vf *dx, const int K) {
    const job *q = s->q;
    const int64_t k = K ? K : q->k;
    VF_UNROLL for (int i = 0; i < P; i++) dx[i] = vf_zero();
    for (int64_t j = 0; j < k; j++) {
        const vf weight = vf_load(q->weights + row_at(q, c, j));
        VF_UNROLL for (int i = 0; i < P; i++) {
            const int64_t at = i + k - 1 - j;
            dx[i] = vf_fma(weight, K && at < P ? dz[at < P ? at : 0] : vf_load(ring_at(s, t + at, c)), dx[i]);
        }
    }
}

VF_INLINE void backward_group(const span *s, const tile *g, int64_t c, int64_t count, const int dtype, const int K,
                              const bool tail) {
    const job *q = s->q;
    vf dy[P], dz[P], z[P], dx[P];
    group out[P];
    window x;
    VF_UNROLL for (int i = 0; i < P; i++) out[i] = none();
    VF_UNROLL for (int i = 1; i <= P; i++) {
        prefetch(dtype, at_step(g->x, g->x_step, -i), c);
        prefetch(dtype, at_step(g->dy, g->dy_step, -i), c);
    }
    open_window(&x, g, c, count, dtype, K, tail);
    VF_UNROLL for (int i = 0; i < P; i++) dy[i] = raw_load(dtype, at_step(g->dy, g->dy_step, i), c, count, tail);
    EACH(part, dtype) {
        const int64_t at = c + part * VF_LANES;
        const int kept = K ? K - 1 : 0;
        open_part(&x, dtype, K, part);
        VF_UNROLL for (int i = 0; i < P; i++) dz[i] = part_of(dtype, dy[i], part);
        if (q->silu) {
            tile_sums(q, &x, q->weights + row_at(q, at, 0), z, dtype, K, part, tail);
            VF_UNROLL for (int i = 0; i < P; i++) dz[i] = vf_mul(dz[i], causal_slope(z[i]));
        }
        if (q->sums) add_tile(q, &x, s->sums + row_at(q, at, 0), dz, dtype, K, part, tail);
        if (!q->diff_src.t) continue;
        if (!K) VF_UNROLL for (int i = 0; i < P; i++) vf_store(ring_at(s, g->t + i, at), dz[i]);
        diff_tile(s, g->t, at, dz, dx, K);
        VF_UNROLL for (int i = 0; i < kept; i++) vf_store(ring_at(s, g->t + i, at), dz[i]);
        VF_UNROLL for (int i = 0; i < P; i++) out[i].v[part] = dx[i];
    }
    if (q->diff_src.t)
        VF_UNROLL for (int i = 0; i < P; i++)
            store(dtype, at_step(g->y, g->y_step, i), c, out[i], count, tail, g->stream);
}

static __attribute__((noinline)) void backward_part(const span *s, const tile *g, int64_t c, int64_t count) {
    backward_group(s, g, c, count, dtype_of(s->q), 0, true);
}

VF_INLINE void backward_tile(const span *s, int64_t t, bool stream, const int dtype, const int K) {
    const job *q = s->q;
    tile g = {.x = line_of(q->src, s->n, t - (q->k - 1)), .dy = line_of(q->diff_dst, s->n, t), .stream = stream};
    g.x_step = q->src.t->strides[4];
    g.dy_step = q->diff_dst.t->strides[4];
    if (q->diff_src.t) g.y = line_of(q->diff_src, s->n, t), g.y_step = q->diff_src.t->strides[4];
    g.t = t;
#define WHOLE(c) backward_group(s, &g, c, 0, dtype, K, false)
    EACH_GROUP(s, dtype, WHOLE, backward_part);
#undef WHOLE
}

/* dz of one token into the ring; own: it counts in this slot's sums. */
VF_INLINE void dz_of_token(const span *s, int64_t t, bool own, const int dtype) {
    const job *q = s->q;
    const line dy = line_of(q->diff_dst, s->n, t);
    const bool padding = seq_of(q, s->n, t) < 0;
    const int64_t step = row_at(q, VF_LANES, 0), ring = q->ring * VF_LANES;
    line tap[CAUSAL_WIDTH];
    look(s, t, tap);
    for (int64_t c = s->c0; c < s->c1; c += q->group) {
        const int64_t count = s->c1 - c;
        group dz = padding ? none() : load(dtype, dy, c, count, true);
        if (q->silu && !padding) dz = slope_of(dtype, dz, careful_sum(s, tap, c, count, dtype));
        row_store(dtype, ring_at(s, t, c), ring, dz);
        if (!q->sums || !own || padding) continue;
        float *to = s->sums + row_at(q, c, 0);
        for (int64_t j = 0; j < q->k; j++, to += VF_LANES)
            if (tap[j].p)
                row_store(dtype, to, step,
                          fma_of(dtype, dz, load(dtype, tap[j], c, count, true), row_load(dtype, to, step)));
        group sum = row_load(dtype, to, step);
        EACH(v, dtype) sum.v[v] = vf_add(sum.v[v], dz.v[v]);
        row_store(dtype, to, step, sum);
    }
}

/* diff_src of one token, or, before the first, diff_h0. */
VF_INLINE void diff_of_token(const span *s, int64_t t, const int dtype) {
    const job *q = s->q;
    const int64_t last = q->k - 1, kept = t - q->w + last;
    const line dx = t < 0 ? line_of(q->diff_h0, s->n, t + last) : line_of(q->diff_src, s->n, t);
    const int32_t own = t < 0 ? 0 : seq_of(q, s->n, t);
    const int64_t step = row_at(q, VF_LANES, 0), ring = q->ring * VF_LANES;
    for (int64_t c = s->c0; c < s->c1; c += q->group) {
        const int64_t count = s->c1 - c;
        group sum = none();
        for (int64_t j = 0; j <= last; j++) {
            const int64_t to = t + last - j;
            if (to < 0 || to >= q->w || own < 0 || seq_of(q, s->n, to) != own) continue;
            sum = fma_of(dtype, row_load(dtype, q->weights + row_at(q, c, j), step),
                         row_load(dtype, ring_at(s, to, c), ring), sum);
        }
        if (q->diff_hn.t && kept >= 0) {
            const group more = load(dtype, line_of(q->diff_hn, s->n, kept), c, count, true);
            EACH(v, dtype) sum.v[v] = vf_add(sum.v[v], more.v[v]);
        }
        store(dtype, dx, c, sum, count, true, false);
    }
}

VF_INLINE void backward_tiles(const span *s, int64_t t, bool stream, const int dtype) {
    switch (s->q->k) {
    case 2:
        backward_tile(s, t, stream, dtype, 2);
        return;
    case 3:
        backward_tile(s, t, stream, dtype, 3);
        return;
    case 4:
        backward_tile(s, t, stream, dtype, 4);
        return;
    default:
        backward_tile(s, t, stream, dtype, 0);
    }
}

VF_INLINE void backward_span(const span *s, int64_t begin, int64_t end, const int dtype) {
    const job *q = s->q;
    const int64_t last = q->k - 1, whole = q->diff_hn.t ? q->w - last : q->w;
    const bool stream = q->diff_src.t && lies(q, q->diff_src, s->c0);
    int64_t t = end;
    for (int64_t behind = WEFT__MIN(end + last, q->w) - 1; behind >= end; behind--)
        dz_of_token(s, behind, false, dtype);
    while (t > begin) {
        const int64_t from = t - P;
        if (q->seq.t || from < WEFT__MAX(begin, last) || t + last > q->w || t > whole) {
            dz_of_token(s, --t, true, dtype);
            if (q->diff_src.t) diff_of_token(s, t, dtype);
            continue;
        }
        backward_tiles(s, from, stream, dtype);
        t = from;
    }
    for (t = -1; q->diff_h0.t && !begin && t >= -last; t--) diff_of_token(s, t, dtype);
}

/* ---------------------------------------------------------------- running */
VF_INLINE void run_items(const job *q, int64_t slot, const bool forward, const int dtype) {
    span s = {.q = q};
    if (q->sums) s.sums = q->sums + slot * (q->k + 1) * q->pitch;
    if (q->dz) s.dz = q->dz + slot * q->ring * q->block;
    if (s.sums) memset(s.sums, 0, sizeof(float) * (size_t)((q->k + 1) * q->pitch));
    for (int64_t i = cpu_first(q->items, q->slots, slot); i < cpu_first(q->items, q->slots, slot + 1); i++) {
        const int64_t begin = i / q->blocks % q->runs * q->run, end = WEFT__MIN(begin + q->run, q->w);
        s.n = i / q->blocks / q->runs;
        s.c0 = i % q->blocks * q->block;
        s.c1 = WEFT__MIN(s.c0 + q->block, q->c);
        if (forward)
            forward_span(&s, begin, end, dtype);
        else
            backward_span(&s, begin, end, dtype);
    }
    if (q->stream) vf_stream_end();
}

VF_INLINE void run_by_dtype(const job *q, int64_t slot, const bool forward) {
    if (!ONLY_BF16 && q->src.t->dtype == WEFT_DTYPE_F32)
        run_items(q, slot, forward, WEFT_DTYPE_F32);
    else if (!ONLY_BF16 && q->src.t->dtype == WEFT_DTYPE_F16)
        run_items(q, slot, forward, WEFT_DTYPE_F16);
    else
        run_items(q, slot, forward, WEFT_DTYPE_BF16);
}
static void forward_slot(void *arg, int64_t slot) { run_by_dtype(arg, slot, true); }
static void backward_slot(void *arg, int64_t slot) { run_by_dtype(arg, slot, false); }

/* Weights and bias as rows of f32, 0 in the lanes behind the last channel. */
static void pack_block(void *arg, int64_t block) {
    const job *q = arg;
    const causal_tensor weights = causal_find(q->e, WEFT_ROLE_WEIGHTS), bias = causal_find(q->e, WEFT_ROLE_BIAS);
    float *to = (float *)(uintptr_t)q->weights;
    for (int64_t c = block * q->block; c < WEFT__MIN((block + 1) * q->block, q->pitch); c++) {
        for (int64_t j = 0; j < q->k; j++)
            to[place_of(q, c) + j * VF_LANES] = c < q->c ? causal_at(weights, c, 0, j) : 0;
        to[place_of(q, c) + q->k * VF_LANES] =
            bias.t && c < q->c ? (float)item_load(bias.t->dtype, bias.ptr, c * bias.t->strides[0]) : 0;
    }
}

static void add_block(void *arg, int64_t block) {
    const job *q = arg;
    const int64_t rows = (q->k + 1) * q->pitch;
    for (int64_t c = block * q->block; c < WEFT__MIN((block + 1) * q->block, q->c); c++) {
        const int64_t at = place_of(q, c);
        for (int64_t j = 0; j <= q->k; j++)
            for (int64_t slot = 1; slot < q->slots; slot++)
                q->sums[at + j * VF_LANES] += q->sums[slot * rows + at + j * VF_LANES];
        causal_put_sums(q->e, c, q->sums + at, VF_LANES);
    }
}

/* How the work is cut: from the problem alone. */
static job cut(const weft_problem *p) {
    const int64_t bytes = (int64_t)weft__dtype_size(weft__tensor(p, WEFT_ROLE_SRC)->dtype), k = p->kernel[2];
    const bool forward = p->pass == WEFT_PASS_FWD;
    job q = {.n = p->n, .c = p->c, .w = p->in[2], .k = k};
    q.group = (weft__tensor(p, WEFT_ROLE_SRC)->dtype == WEFT_DTYPE_BF16 ? 2 : 1) * VF_LANES;
    q.pitch = cpu_round_up(q.c, q.group);
    q.block = WEFT__MIN(BLOCK / bytes, q.pitch);
    q.blocks = cpu_ceil(q.c, q.block);
    q.run = WEFT__MAX(128, 8 * k);
    q.runs = cpu_ceil(q.w, q.run);
    q.items = q.n * q.blocks * q.runs;
    q.slots = cpu_slots(q.items, (double)((forward ? 2 : 3) * bytes) * causal_numel(p));
    if (!forward) q.slots = WEFT__MIN(q.slots, SLOTS);
    for (q.ring = 1; q.ring < k - 1 + P; q.ring *= 2) continue;
    return q;
}

static int64_t weight_floats(const job *q) { return cpu_round_up((q->k + 1) * q->pitch, 16); }

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    job q = cut(p);
    float *scratch = e->workspace;
    q.e = e;
    q.src = causal_find(e, WEFT_ROLE_SRC);
    q.dst = causal_find(e, WEFT_ROLE_DST);
    q.diff_src = causal_find(e, WEFT_ROLE_DIFF_SRC);
    q.diff_dst = causal_find(e, WEFT_ROLE_DIFF_DST);
    q.h0 = causal_find(e, WEFT_ROLE_H0);
    q.diff_h0 = causal_find(e, WEFT_ROLE_DIFF_H0);
    q.diff_hn = causal_find(e, WEFT_ROLE_DIFF_HN);
    q.seq = causal_find(e, WEFT_ROLE_SEQ_IDX);
    q.silu = weft__has_step(p, WEFT_STEP_SILU);
    q.stream = cpu_streams(e->hw, causal_numel(p) * (double)weft__dtype_size(q.src.t->dtype));
    q.weights = scratch;
    weft__parallel(e->ctx, q.blocks, pack_block, &q);
    if (p->pass == WEFT_PASS_FWD) {
        weft__parallel(e->ctx, q.slots, forward_slot, &q);
        return WEFT_OK;
    }
    q.dz = scratch + weight_floats(&q);
    if (p->pass != WEFT_PASS_BWD_DATA) q.sums = q.dz + q.slots * q.ring * q.block;
    weft__parallel(e->ctx, q.slots, backward_slot, &q);
    if (q.sums) weft__parallel(e->ctx, q.blocks, add_block, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const char *reason = causal_refusal(p, 1);
    if (reason) return reason;
    const job q = cut(p);
    const double silu = weft__has_step(p, WEFT_STEP_SILU) ? 16 * causal_numel(p) : 0; /* as flops */
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p) + silu, 0.6);
    int64_t floats = weight_floats(&q);
    if (p->pass != WEFT_PASS_FWD) floats += q.slots * (q.ring * q.block + (q.k + 1) * q.pitch);
    d->workspace = (size_t)floats * sizeof(float);
    return NULL;
}

WEFT__KERNEL(causal_conv_fwd_nwc) = {
    .name = WEFT__NAME("causal_conv_fwd_nwc_4x1v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CAUSAL_STEPS,
    .dtypes = DTYPES_HERE,
    .bound = 2,
    .plan = plan,
    .run = run,
};

WEFT__KERNEL(causal_conv_bwd_nwc) = {
    .name = WEFT__NAME("causal_conv_bwd_nwc_4x1v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = CAUSAL_STEPS,
    .dtypes = DTYPES_HERE,
    .bound = 2,
    .plan = plan,
    .run = run,
};
