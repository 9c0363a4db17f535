/* Causal convolution of sequences whose channels lie side by side: forward, and every gradient in one pass. Any width
 * to 128, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      as in first.c; a vector is VF_LANES channels of one token
 * Blocking:  4 tokens x 1 vector, along the channels of a block of a row; weights as [k][c] in f32. A block stays in
 *            the nearest cache from one 4 tokens to the next. Gradients go from the last token to the first: dz of the
 *            tokens behind stand in a ring of rows
 * Sums:      a slot owns runs of tokens of blocks of channels, and k + 1 rows of sums; those are then added in the
 *            order of the slots, which follow from the problem alone. A run computes the k - 1 dz behind it once more
 * Edges:     tokens near the ends of a sequence, and all of them with seq_idx, are done one at a time, and taps outside
 *            left out, never multiplied by 0
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; silu costs about as much as reading and writing f32, more than that of 16 bits
 *            Measured on two Zen 4 cores of a shared machine, 1x1024x4096, bias and silu, share of a streaming copy:
 *            f32 forward 58%, gradients 45%; bf16 29%, 21%
 * Try:       weft bench causal_conv1d:fwd:f32:nwc:n1c1024w4096:k4:bias+silu */
#include "cpu/causal_conv/causal.h"

enum { P = 4, SLOTS = 16 };

typedef struct job {
    const weft__exec *e;
    causal_tensor src, dst, diff_src, diff_dst, h0, diff_h0, diff_hn, seq;
    int64_t n, c, w, k;
    int64_t pitch;              /* floats of a row of weights or of sums: channels, rounded up */
    int64_t block, blocks;      /* channels side by side */
    int64_t run, runs;          /* tokens of an item */
    int64_t items, slots, ring; /* ring: rows of dz, a power of two */
    bool silu, stream;
    const float *weights; /* k rows, then that of the bias */
    float *sums, *dz;     /* k + 1 rows, and the ring, of each slot; sums NULL: not wanted */
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

VF_INLINE int32_t seq_of(const job *q, int64_t n, int64_t t) {
    return q->seq.t ? ((const int32_t *)q->seq.ptr)[causal_offset(q->seq.t, n, 0, t)] : 0;
}
VF_INLINE line line_of(causal_tensor v, int64_t n, int64_t t) { return (line){v.ptr, causal_offset(v.t, n, 0, t)}; }
VF_INLINE float *ring_row(const span *s, int64_t t) { return s->dz + (t & (s->q->ring - 1)) * s->q->block - s->c0; }

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

VF_INLINE vf load(const int dtype, line x, int64_t c, int64_t count, const bool tail) {
    return tail ? vf_load_count_as(dtype, x.p, x.at + c, count) : vf_load_as(dtype, x.p, x.at + c);
}
VF_INLINE void store(const int dtype, line x, int64_t c, vf v, int64_t count, const bool tail, bool stream) {
    if (tail)
        vf_store_count_as(dtype, (void *)(uintptr_t)x.p, x.at + c, v, count);
    else if (stream)
        vf_stream_as(dtype, (void *)(uintptr_t)x.p, x.at + c, v);
    else
        vf_store_as(dtype, (void *)(uintptr_t)x.p, x.at + c, v);
}
/* May whole vectors of a block be streamed to all of its rows? */
VF_INLINE bool lies(const job *q, causal_tensor v, int64_t c) {
    const uintptr_t bytes = (uintptr_t)weft__dtype_size(q->src.t->dtype), vector = VF_LANES * bytes;
    return q->stream && ((uintptr_t)v.ptr + (uintptr_t)c * bytes) % vector == 0 &&
           (uintptr_t)v.t->strides[4] * bytes % vector == 0 && (uintptr_t)v.t->strides[0] * bytes % vector == 0;
}

/* For each vector of the block, the last one perhaps in part. */
#define EACH_VECTOR(s, body)                                                     \
    do {                                                                         \
        int64_t c = (s)->c0;                                                     \
        for (; c + VF_LANES <= (s)->c1; c += VF_LANES) body(c, VF_LANES, false); \
        if (c < (s)->c1) body(c, (s)->c1 - c, true);                             \
    } while (0)

/* ---------------------------------------------------------------- forward */
/* P tokens from t on that see whole windows. K 0: any width. */
VF_INLINE void forward_vector(const span *s, line x, int64_t step, line y, int64_t y_step, int64_t c, int64_t count,
                              bool stream, const int dtype, const int K, const bool tail) {
    const job *q = s->q;
    const float *w = q->weights + c;
    vf z[P];
    VF_UNROLL for (int i = 0; i < P; i++) z[i] = vf_load(w + q->k * q->pitch);
    if (K) {
        vf v[P + 8];
        VF_UNROLL for (int i = 0; i < P + K - 1; i++) v[i] = load(dtype, (line){x.p, x.at + i * step}, c, count, tail);
        VF_UNROLL for (int j = 0; j < K; j++) {
            const vf weight = vf_load(w + j * q->pitch);
            VF_UNROLL for (int i = 0; i < P; i++) z[i] = vf_fma(weight, v[i + j], z[i]);
        }
    } else {
        for (int64_t j = 0; j < q->k; j++) {
            const vf weight = vf_load(w + j * q->pitch);
            VF_UNROLL for (int i = 0; i < P; i++) z[i] =
                vf_fma(weight, load(dtype, (line){x.p, x.at + (i + j) * step}, c, count, tail), z[i]);
        }
    }
    VF_UNROLL for (int i = 0; i < P; i++)
        store(dtype, (line){y.p, y.at + i * y_step}, c, q->silu ? causal_silu(z[i]) : z[i], count, tail, stream);
}

VF_INLINE void forward_tile(const span *s, int64_t t, bool stream, const int dtype, const int K) {
    const job *q = s->q;
    const line x = line_of(q->src, s->n, t - (q->k - 1)), y = line_of(q->dst, s->n, t);
    const int64_t step = q->src.t->strides[4], y_step = q->dst.t->strides[4];
#define BODY(c, count, tail) forward_vector(s, x, step, y, y_step, c, count, stream, dtype, K, tail)
    EACH_VECTOR(s, BODY);
#undef BODY
}

VF_INLINE vf careful_sum(const span *s, const line *tap, int64_t c, int64_t count, const int dtype) {
    const job *q = s->q;
    vf z = vf_load(q->weights + q->k * q->pitch + c);
    for (int64_t j = 0; j < q->k; j++)
        if (tap[j].p) z = vf_fma(vf_load(q->weights + j * q->pitch + c), load(dtype, tap[j], c, count, true), z);
    return z;
}

VF_INLINE void forward_token(const span *s, int64_t t, const int dtype) {
    const job *q = s->q;
    const line y = line_of(q->dst, s->n, t);
    const bool padding = seq_of(q, s->n, t) < 0;
    line tap[CAUSAL_WIDTH];
    look(s, t, tap);
    for (int64_t c = s->c0; c < s->c1; c += VF_LANES) {
        const int64_t count = s->c1 - c;
        vf z = padding ? vf_zero() : careful_sum(s, tap, c, count, dtype);
        store(dtype, y, c, q->silu && !padding ? causal_silu(z) : z, count, true, false);
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
        if (q->k == 4)
            forward_tile(s, t, stream, dtype, 4);
        else
            forward_tile(s, t, stream, dtype, 0);
        t += P;
    }
    if (end == q->w) causal_keep(q->e, s->n, s->c0, s->c1);
}

/* ---------------------------------------------------------------- gradients */
typedef struct tile { /* P tokens: where their data begins, and steps from one to the next */
    line x, dy, dx;
    int64_t x_step, dy_step, dx_step;
    float *ring[P + CAUSAL_WIDTH]; /* dz of the P tokens and of the k - 1 behind them */
    bool stream;
} tile;

/* dz of P tokens, from z or, without silu, diff_dst itself; kept in the ring. Width 4: the tokens too. */
VF_INLINE void tile_dz(const span *s, const tile *g, int64_t c, int64_t count, vf *dz, vf *v, const int dtype,
                       const int K, const bool tail) {
    const job *q = s->q;
    const float *w = q->weights + c;
    vf z[P];
    if (K)
        VF_UNROLL for (int i = 0; i < P + K - 1; i++) v[i] =
            load(dtype, (line){g->x.p, g->x.at + i * g->x_step}, c, count, tail);
    VF_UNROLL for (int i = 0; i < P; i++) {
        dz[i] = load(dtype, (line){g->dy.p, g->dy.at + i * g->dy_step}, c, count, tail);
        z[i] = vf_load(w + q->k * q->pitch);
    }
    if (q->silu) {
        for (int64_t j = 0; j < (K ? K : q->k); j++) {
            const vf weight = vf_load(w + j * q->pitch);
            VF_UNROLL for (int i = 0; i < P; i++) z[i] =
                vf_fma(weight,
                       K ? v[i + j] : load(dtype, (line){g->x.p, g->x.at + (i + j) * g->x_step}, c, count, tail), z[i]);
        }
        VF_UNROLL for (int i = 0; i < P; i++) dz[i] = vf_mul(dz[i], causal_slope(z[i]));
    }
    if (tail) VF_UNROLL for (int i = 0; i < P; i++) dz[i] = vf_select(vm_first(count), dz[i], vf_zero());
    VF_UNROLL for (int i = 0; i < P; i++) vf_store(g->ring[i] + c, dz[i]);
}

VF_INLINE void tile_sums(const span *s, const tile *g, int64_t c, int64_t count, const vf *dz, const vf *v,
                         const int dtype, const int K, const bool tail) {
    const job *q = s->q;
    float *to = s->sums + c;
    for (int64_t j = 0; j < (K ? K : q->k); j++) {
        vf sum = vf_load(to + j * q->pitch);
        VF_UNROLL for (int i = 0; i < P; i++) sum = vf_fma(
            dz[i], K ? v[i + j] : load(dtype, (line){g->x.p, g->x.at + (i + j) * g->x_step}, c, count, tail), sum);
        vf_store(to + j * q->pitch, sum);
    }
    to += q->k * q->pitch;
    vf_store(to, vf_add(vf_load(to), vf_add(vf_add(dz[0], dz[1]), vf_add(dz[2], dz[3]))));
}

VF_INLINE void tile_diff(const span *s, const tile *g, int64_t c, int64_t count, const vf *dz, const int dtype,
                         const int K, const bool tail) {
    const job *q = s->q;
    const int64_t k = K ? K : q->k;
    vf sum[P];
    VF_UNROLL for (int i = 0; i < P; i++) sum[i] = vf_zero();
    for (int64_t j = 0; j < k; j++) {
        const vf weight = vf_load(q->weights + c + j * q->pitch);
        VF_UNROLL for (int i = 0; i < P; i++) {
            const int64_t at = i + k - 1 - j;
            sum[i] = vf_fma(weight, K && at < P ? dz[at < P ? at : 0] : vf_load(g->ring[at] + c), sum[i]);
        }
    }
    VF_UNROLL for (int i = 0; i < P; i++)
        store(dtype, (line){g->dx.p, g->dx.at + i * g->dx_step}, c, sum[i], count, tail, g->stream);
}

VF_INLINE void backward_vector(const span *s, const tile *g, int64_t c, int64_t count, const int dtype, const int K,
                               const bool tail) {
    vf dz[P], v[P + 8];
    tile_dz(s, g, c, count, dz, v, dtype, K, tail);
    if (s->q->sums) tile_sums(s, g, c, count, dz, v, dtype, K, tail);
    if (s->q->diff_src.t) tile_diff(s, g, c, count, dz, dtype, K, tail);
}

VF_INLINE void backward_tile(const span *s, int64_t t, bool stream, const int dtype, const int K) {
    const job *q = s->q;
    tile g = {.x = line_of(q->src, s->n, t - (q->k - 1)), .dy = line_of(q->diff_dst, s->n, t), .stream = stream};
    g.x_step = q->src.t->strides[4];
    g.dy_step = q->diff_dst.t->strides[4];
    if (q->diff_src.t) g.dx = line_of(q->diff_src, s->n, t), g.dx_step = q->diff_src.t->strides[4];
    for (int64_t i = 0; i < P + q->k - 1; i++) g.ring[i] = ring_row(s, t + i);
#define BODY(c, count, tail) backward_vector(s, &g, c, count, dtype, K, tail)
    EACH_VECTOR(s, BODY);
#undef BODY
}

/* dz of one token into the ring; own: it counts in this slot's sums. */
VF_INLINE void dz_of_token(const span *s, int64_t t, bool own, const int dtype) {
    const job *q = s->q;
    const line dy = line_of(q->diff_dst, s->n, t);
    const bool padding = seq_of(q, s->n, t) < 0;
    float *ring = ring_row(s, t);
    line tap[CAUSAL_WIDTH];
    look(s, t, tap);
    for (int64_t c = s->c0; c < s->c1; c += VF_LANES) {
        const int64_t count = s->c1 - c;
        vf dz = padding ? vf_zero() : load(dtype, dy, c, count, true);
        if (q->silu && !padding) dz = vf_mul(dz, causal_slope(careful_sum(s, tap, c, count, dtype)));
        dz = vf_select(vm_first(count), dz, vf_zero());
        vf_store(ring + c, dz);
        if (!q->sums || !own || padding) continue;
        float *to = s->sums + c;
        for (int64_t j = 0; j < q->k; j++, to += q->pitch)
            if (tap[j].p) vf_store(to, vf_fma(dz, load(dtype, tap[j], c, count, true), vf_load(to)));
        vf_store(to, vf_add(vf_load(to), dz));
    }
}

/* diff_src of one token, or, before the first, diff_h0. */
VF_INLINE void diff_of_token(const span *s, int64_t t, const int dtype) {
    const job *q = s->q;
    const int64_t last = q->k - 1, kept = t - q->w + last;
    const line dx = t < 0 ? line_of(q->diff_h0, s->n, t + last) : line_of(q->diff_src, s->n, t);
    const int32_t own = t < 0 ? 0 : seq_of(q, s->n, t);
    for (int64_t c = s->c0; c < s->c1; c += VF_LANES) {
        const int64_t count = s->c1 - c;
        vf sum = vf_zero();
        for (int64_t j = 0; j <= last; j++) {
            const int64_t to = t + last - j;
            if (to < 0 || to >= q->w || own < 0 || seq_of(q, s->n, to) != own) continue;
            sum = vf_fma(vf_load(q->weights + j * q->pitch + c), vf_load(ring_row(s, to) + c), sum);
        }
        if (q->diff_hn.t && kept >= 0) sum = vf_add(sum, load(dtype, line_of(q->diff_hn, s->n, kept), c, count, true));
        store(dtype, dx, c, sum, count, true, false);
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
        if (q->k == 4)
            backward_tile(s, from, stream, dtype, 4);
        else
            backward_tile(s, from, stream, dtype, 0);
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

static void forward_slot(void *arg, int64_t slot) {
    const job *q = arg;
    if (q->src.t->dtype == WEFT_DTYPE_F32)
        run_items(q, slot, true, WEFT_DTYPE_F32);
    else if (q->src.t->dtype == WEFT_DTYPE_F16)
        run_items(q, slot, true, WEFT_DTYPE_F16);
    else
        run_items(q, slot, true, WEFT_DTYPE_BF16);
}
static void backward_slot(void *arg, int64_t slot) {
    const job *q = arg;
    if (q->src.t->dtype == WEFT_DTYPE_F32)
        run_items(q, slot, false, WEFT_DTYPE_F32);
    else if (q->src.t->dtype == WEFT_DTYPE_F16)
        run_items(q, slot, false, WEFT_DTYPE_F16);
    else
        run_items(q, slot, false, WEFT_DTYPE_BF16);
}

/* Weights and bias as rows of f32, 0 in the lanes behind the last channel. */
static void pack_block(void *arg, int64_t block) {
    const job *q = arg;
    const causal_tensor weights = causal_find(q->e, WEFT_ROLE_WEIGHTS), bias = causal_find(q->e, WEFT_ROLE_BIAS);
    float *to = (float *)(uintptr_t)q->weights;
    for (int64_t c = block * q->block; c < WEFT__MIN((block + 1) * q->block, q->pitch); c++) {
        for (int64_t j = 0; j < q->k; j++) to[j * q->pitch + c] = c < q->c ? causal_at(weights, c, 0, j) : 0;
        to[q->k * q->pitch + c] =
            bias.t && c < q->c ? (float)item_load(bias.t->dtype, bias.ptr, c * bias.t->strides[0]) : 0;
    }
}

static void add_block(void *arg, int64_t block) {
    const job *q = arg;
    const int64_t rows = (q->k + 1) * q->pitch;
    for (int64_t c = block * q->block; c < WEFT__MIN((block + 1) * q->block, q->c); c++) {
        for (int64_t j = 0; j <= q->k; j++)
            for (int64_t slot = 1; slot < q->slots; slot++)
                q->sums[j * q->pitch + c] += q->sums[slot * rows + j * q->pitch + c];
        causal_put_sums(q->e, c, q->sums + c, q->pitch);
    }
}

/* How the work is cut: from the problem alone. */
static job cut(const weft_problem *p) {
    const int64_t bytes = (int64_t)weft__dtype_size(weft__tensor(p, WEFT_ROLE_SRC)->dtype), k = p->kernel[2];
    const bool forward = p->pass == WEFT_PASS_FWD;
    job q = {.n = p->n, .c = p->c, .w = p->in[2], .k = k};
    q.pitch = cpu_round_up(q.c, VF_LANES);
    q.block = WEFT__MIN(1024 / bytes, q.pitch);
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
    const double silu = weft__has_step(p, WEFT_STEP_SILU) ? 40 * causal_numel(p) : 0; /* as flops */
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p) + silu, 0.5);
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
    .dtypes = CAUSAL_DTYPES,
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
    .dtypes = CAUSAL_DTYPES,
    .bound = 2,
    .plan = plan,
    .run = run,
};
