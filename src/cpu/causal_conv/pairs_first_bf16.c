/* bf16 causal convolution of sequences whose tokens lie side by side, windows of 2 to 4 tokens: forward, and every
 * gradient in one pass; f32 sums, states, bias and silu. Built for AVX512-BF16 too, which rounds to bf16.
 * Math:      as in first.c
 * Blocking:  a row, one channel of one sequence, passes through registers once, 2 vectors of tokens at a time: the even
 *            ones and the odd ones. So widening takes one instruction for each, and a tap is one of the two, as it is
 *            or shifted: three shifts serve both. Gradients go from the last tokens to the first and carry dz of those
 *            behind; rows too, so that memory is read in one direction
 * Sums:      k + 1 for each row, in the workspace; those of a channel are then added in the order of n
 * Edges:     tokens outside of a sequence are 0; under strict math such taps are left out, by masks
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; silu and its slope cost as much. Measured on two Zen 4 cores of a shared machine, 1x1024x4096
 *            with bias and silu, share of a streaming copy: forward 61%, gradients 45%. In cache 0.25 ns a token and
 *            core forward, 0.27 where silu multiplies by its factor itself; half of it is silu
 * Try:       weft bench causal_conv1d:fwd:bf16,weights=f32,bias=f32:ncw:n1c1024w4096:k4:bias+silu */
#include "cpu/causal_conv/causal.h"

enum { STEP = 2 * VF_LANES, AHEAD = 1024 }; /* AHEAD: tokens of the rows that are prefetched */
typedef causal_pair pair;

typedef struct job {
    const weft__exec *e;
    causal_tensor src, dst, diff_src, diff_dst, weights, bias, h0, diff_h0, diff_hn;
    int64_t n, c, w, k, rows, slots;
    bool silu, stream, strict;
    float *sums; /* k + 1 of each row; NULL: not wanted */
} job;

typedef struct row { /* one channel of one sequence */
    const job *q;
    int64_t n, c;
    const uint16_t *src, *dy;
    uint16_t *out; /* dst or diff_src */
    vf w[4], bias; /* w[b]: of the tap b tokens back */
    pair first;    /* the tokens before the first */
    bool stream;
} row;

static const uint16_t *row_at(causal_tensor v, int64_t n, int64_t c) {
    return v.t ? (const uint16_t *)v.ptr + causal_offset(v.t, n, c, 0) : NULL;
}

/* factor: of the weights and the bias. */
static row open_row(const job *q, int64_t at, causal_tensor out, float factor) {
    row r = {.q = q, .n = at / q->c, .c = at % q->c};
    uint16_t before[STEP] = {0};
    r.src = row_at(q->src, r.n, r.c);
    r.dy = row_at(q->diff_dst, r.n, r.c);
    r.out = (uint16_t *)(uintptr_t)row_at(out, r.n, r.c);
    r.stream = q->stream && (uintptr_t)r.out % (2 * STEP) == 0;
    for (int64_t b = 0; b < q->k; b++) r.w[b] = vf_set1(factor * causal_at(q->weights, r.c, 0, q->k - 1 - b));
    const double bias = q->bias.t ? item_load(q->bias.t->dtype, q->bias.ptr, r.c * q->bias.t->strides[0]) : 0;
    r.bias = vf_set1(factor * (float)bias);
    for (int64_t i = 0; q->h0.t && i < q->k - 1; i++)
        before[STEP - (q->k - 1) + i] = row_at(q->h0, r.n, r.c)[i * q->h0.t->strides[4]];
    r.first = causal_load_pair(before, STEP);
    return r;
}

/* Lanes of the even (0) or odd (1) tokens from t on that see the token `back` before them. */
VF_INLINE vmask sees(const row *r, int64_t t, int64_t back, const int odd) {
    return vm_range(r->q->h0.t ? 0 : (back - t - odd + 1) >> 1, (r->q->w - t - odd + 1) >> 1);
}

/* v[b]: the tokens b back. An odd one is behind the even one of its pair. */
VF_INLINE void taps(pair before, pair own, pair *v, const int K) {
    const vf odd = vf_slide(before.odd, own.odd, VF_LANES - 1);
    v[0] = own;
    v[1] = (pair){odd, own.even};
    if (K > 2) v[2] = (pair){vf_slide(before.even, own.even, VF_LANES - 1), odd};
    if (K > 3) v[3] = (pair){vf_slide(before.odd, own.odd, VF_LANES - 2), v[2].even};
}
VF_INLINE pair sums_of(const row *r, int64_t t, const pair *v, const bool edge, const int K) {
    pair z = {r->bias, r->bias};
    VF_UNROLL for (int b = 0; b < K; b++) {
        z.even = edge ? vf_fma_in(sees(r, t, b, 0), r->w[b], v[b].even, z.even) : vf_fma(r->w[b], v[b].even, z.even);
        z.odd = edge ? vf_fma_in(sees(r, t, b, 1), r->w[b], v[b].odd, z.odd) : vf_fma(r->w[b], v[b].odd, z.odd);
    }
    return z;
}

/* ---------------------------------------------------------------- forward */
VF_INLINE pair forward(const row *r, int64_t t, pair before, pair own, const bool edge, const bool silu, const int K) {
    pair v[4], z;
    taps(before, own, v, K);
    z = sums_of(r, t, v, edge, K);
    if (!silu) return z;
    return (pair){causal_silu_scaled(z.even), causal_silu_scaled(z.odd)};
}

VF_INLINE void forward_row(const row *r, const bool silu, const int K) {
    const int64_t w = r->q->w;
    pair before = r->first;
    for (int64_t t = 0; t < w; t += STEP) {
        const pair own = causal_load_pair(r->src + t, w - t);
        vf_prefetch(r->src, 2 * (t + AHEAD));
        if (t + STEP <= w && (t || !r->q->strict))
            causal_store_pair(r->out + t, forward(r, t, before, own, false, silu, K), STEP, r->stream);
        else
            causal_store_pair(r->out + t, forward(r, t, before, own, true, silu, K), w - t, false);
        before = own;
    }
}

VF_INLINE void forward_rows(const job *q, int64_t slot, const int K) {
    for (int64_t at = cpu_first(q->rows, q->slots, slot); at < cpu_first(q->rows, q->slots, slot + 1); at++) {
        const row r = open_row(q, at, q->dst, q->silu ? CAUSAL_SCALE : 1);
        if (q->silu)
            forward_row(&r, true, K);
        else
            forward_row(&r, false, K);
        causal_keep(q->e, r.n, r.c, r.c + 1);
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- gradients */
/* What the final states add to the tokens from t on. */
static pair kept_diff(const row *r, int64_t t) {
    float more[2][VF_LANES] = {{0}};
    const int64_t last = r->q->k - 1;
    for (int64_t i = WEFT__MAX(r->q->w - last, t); i < WEFT__MIN(r->q->w, t + STEP); i++)
        more[(i - t) % 2][(i - t) / 2] = causal_at(r->q->diff_hn, r->n, r->c, i - r->q->w + last);
    return (pair){vf_load(more[0]), vf_load(more[1])};
}

typedef struct sweep { /* from the last tokens to the first */
    pair own, behind;  /* tokens of this step; dz of those behind */
    pair sum[5];
} sweep;

VF_INLINE pair diff_of(const row *r, int64_t t, pair dz, pair behind, const bool edge, const int K) {
    const vf even = vf_slide(dz.even, behind.even, 1);
    pair v[4] = {dz, {dz.odd, even}}, dx;
    if (K > 2) v[2] = (pair){even, vf_slide(dz.odd, behind.odd, 1)};
    if (K > 3) v[3] = (pair){v[2].odd, vf_slide(dz.even, behind.even, 2)};
    if (!edge) dx = (pair){vf_mul(r->w[0], dz.even), vf_mul(r->w[0], dz.odd)};
    if (edge) dx = r->q->diff_hn.t ? kept_diff(r, t) : (pair){vf_zero(), vf_zero()};
    VF_UNROLL for (int b = edge ? 0 : 1; b < K; b++) {
        const int64_t there = r->q->w - t - b;
        dx.even = edge ? vf_fma_in(vm_first((there + 1) >> 1), r->w[b], v[b].even, dx.even)
                       : vf_fma(r->w[b], v[b].even, dx.even);
        dx.odd = edge ? vf_fma_in(vm_first(there >> 1), r->w[b], v[b].odd, dx.odd) : vf_fma(r->w[b], v[b].odd, dx.odd);
    }
    return dx;
}

VF_INLINE void backward(const row *r, int64_t t, pair before, sweep *s, const bool edge, const bool silu, const int K) {
    const int64_t count = edge ? r->q->w - t : STEP;
    pair v[4], dz = causal_load_pair(r->dy + t, count);
    taps(before, s->own, v, K);
    if (silu) {
        const pair z = sums_of(r, t, v, edge, K);
        dz = (pair){vf_mul(dz.even, causal_slope(z.even)), vf_mul(dz.odd, causal_slope(z.odd))};
    }
    if (edge) {
        dz.even = vf_select(vm_first((count + 1) >> 1), dz.even, vf_zero());
        dz.odd = vf_select(vm_first(count >> 1), dz.odd, vf_zero());
    }
    VF_UNROLL for (int b = 0; b < K; b++) {
        pair *sum = &s->sum[b];
        sum->even =
            edge ? vf_fma_in(sees(r, t, b, 0), dz.even, v[b].even, sum->even) : vf_fma(dz.even, v[b].even, sum->even);
        sum->even =
            edge ? vf_fma_in(sees(r, t, b, 1), dz.odd, v[b].odd, sum->even) : vf_fma(dz.odd, v[b].odd, sum->even);
    }
    s->sum[K].even = vf_add(s->sum[K].even, vf_add(dz.even, dz.odd));
    if (r->out) causal_store_pair(r->out + t, diff_of(r, t, dz, s->behind, edge, K), count, !edge && r->stream);
    s->behind = dz;
    s->own = before;
}

/* The tokens of the state, from dz of the first ones. */
static void diff_state(const row *r, pair first) {
    const job *q = r->q;
    const int64_t last = q->k - 1;
    float dz[2][VF_LANES];
    vf_store(dz[0], first.even);
    vf_store(dz[1], first.odd);
    for (int64_t t = -last; t < 0; t++) {
        float sum = 0;
        for (int64_t b = -t; b <= last && t + b < q->w; b++)
            sum += causal_at(q->weights, r->c, 0, last - b) * dz[(t + b) % 2][(t + b) / 2];
        if (q->diff_hn.t && t - q->w + last >= 0) sum += causal_at(q->diff_hn, r->n, r->c, t - q->w + last);
        causal_set(q->diff_h0, r->n, r->c, t + last, sum);
    }
}

/* Are the tokens from t on not all there, or not only sums of dz? But for strict math, dz behind them is 0. */
VF_INLINE bool at_end(const row *r, int64_t t) {
    const job *q = r->q;
    return t + STEP > q->w || ((q->strict || q->diff_hn.t) && t + STEP + q->k - 1 > q->w);
}

VF_INLINE void backward_row(const row *r, float *sums, const bool silu, const int K) {
    const job *q = r->q;
    sweep s = {.behind = {vf_zero(), vf_zero()}};
    int64_t t = (q->w - 1) / STEP * STEP;
    VF_UNROLL for (int b = 0; b <= K; b++) s.sum[b].even = vf_zero();
    s.own = causal_load_pair(r->src + t, q->w - t);
    for (; t > 0; t -= STEP) {
        const pair before = causal_load_pair(r->src + t - STEP, STEP);
        vf_prefetch(r->src, 2 * (t - AHEAD));
        vf_prefetch(r->dy, 2 * (t - AHEAD));
        if (at_end(r, t))
            backward(r, t, before, &s, true, silu, K);
        else
            backward(r, t, before, &s, false, silu, K);
    }
    if (q->strict || at_end(r, 0))
        backward(r, 0, r->first, &s, true, silu, K);
    else
        backward(r, 0, r->first, &s, false, silu, K);
    if (q->diff_h0.t) diff_state(r, s.behind);
    VF_UNROLL for (int b = 0; b <= K; b++) if (sums) sums[b < K ? K - 1 - b : K] = vf_sum(s.sum[b].even);
}

VF_INLINE void backward_rows(const job *q, int64_t slot, const int K) {
    for (int64_t at = cpu_first(q->rows, q->slots, slot + 1) - 1; at >= cpu_first(q->rows, q->slots, slot); at--) {
        float *sums = q->sums ? q->sums + at * (K + 1) : NULL;
        const row r = open_row(q, at, q->diff_src, 1);
        if (q->silu)
            backward_row(&r, sums, true, K);
        else
            backward_row(&r, sums, false, K);
    }
    if (q->stream) vf_stream_end();
}

static void add_rows(void *arg, int64_t slot) {
    const job *q = arg;
    causal_add_rows(q->e, q->sums, cpu_first(q->c, q->slots, slot), cpu_first(q->c, q->slots, slot + 1));
}

/* ---------------------------------------------------------------- running */
static void forward_2(void *q, int64_t slot) { forward_rows(q, slot, 2); }
static void forward_3(void *q, int64_t slot) { forward_rows(q, slot, 3); }
static void forward_4(void *q, int64_t slot) { forward_rows(q, slot, 4); }
static void backward_2(void *q, int64_t slot) { backward_rows(q, slot, 2); }
static void backward_3(void *q, int64_t slot) { backward_rows(q, slot, 3); }
static void backward_4(void *q, int64_t slot) { backward_rows(q, slot, 4); }
static const weft_task tasks[2][3] = {{forward_2, forward_3, forward_4}, {backward_2, backward_3, backward_4}};

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool forward = p->pass == WEFT_PASS_FWD;
    job q = {.e = e, .n = p->n, .c = p->c, .w = p->in[2], .k = p->kernel[2], .rows = p->n * p->c};
    q.src = causal_find(e, WEFT_ROLE_SRC);
    q.dst = causal_find(e, WEFT_ROLE_DST);
    q.diff_src = causal_find(e, WEFT_ROLE_DIFF_SRC);
    q.diff_dst = causal_find(e, WEFT_ROLE_DIFF_DST);
    q.weights = causal_find(e, WEFT_ROLE_WEIGHTS);
    q.bias = causal_find(e, WEFT_ROLE_BIAS);
    q.h0 = causal_find(e, WEFT_ROLE_H0);
    q.diff_h0 = causal_find(e, WEFT_ROLE_DIFF_H0);
    q.diff_hn = causal_find(e, WEFT_ROLE_DIFF_HN);
    q.silu = weft__has_step(p, WEFT_STEP_SILU);
    q.strict = p->math == WEFT_MATH_STRICT;
    const double bytes = 2.0 * (double)(q.rows * q.w);
    q.stream = cpu_streams(e->hw, bytes);
    q.slots = cpu_slots(q.rows, (forward ? 2 : 3) * bytes);
    q.sums = forward || p->pass == WEFT_PASS_BWD_DATA ? NULL : e->workspace;
    weft__parallel(e->ctx, q.slots, tasks[!forward][q.k - 2], &q);
    q.slots = cpu_slots(q.c, (double)(q.rows * (q.k + 1)) * 4);
    if (q.sums) weft__parallel(e->ctx, q.slots, add_rows, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const weft_tensor *h0 = weft__tensor(p, WEFT_ROLE_H0), *src = weft__tensor(p, WEFT_ROLE_SRC);
    (void)variant;
    if (p->kernel[2] < 2 || p->kernel[2] > 4) return "not a window of 2 to 4 tokens";
    if (p->attr[WEFT_CAUSAL_SEQ_IDX]) return "seq_idx";
    if (src->dtype != WEFT_DTYPE_BF16 || (h0 && h0->dtype != WEFT_DTYPE_BF16)) return "data that is not bf16";
    const double silu = weft__has_step(p, WEFT_STEP_SILU) ? 16 * causal_numel(p) : 0; /* as flops */
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p) + silu, 0.6);
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(p->n * p->c * (p->kernel[2] + 1)) * sizeof(float);
    return causal_refusal(p, 4);
}

WEFT__KERNEL(causal_conv_pairs_fwd_ncw) = {
    .name = WEFT__NAME("bf16_causal_conv_pairs_fwd_ncw_2v"),
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

WEFT__KERNEL(causal_conv_pairs_bwd_ncw) = {
    .name = WEFT__NAME("bf16_causal_conv_pairs_bwd_ncw_2v"),
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
