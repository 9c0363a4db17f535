/* Causal convolution of sequences whose tokens lie side by side, windows of 2 to 4 tokens: forward, and every gradient
 * in one pass; f32 and f16 with f32 sums, states, bias and silu.
 * Math:      as in first.c
 * Blocking:  a row, one channel of one sequence, passes through registers once, a vector at a time: a tap is two
 *            neighbouring vectors shifted. Gradients go from the last vector to the first and carry dz of the one
 *            behind; rows too, so that memory is read in one direction
 * Sums:      k + 1 for each row, in the workspace; those of a channel are then added in the order of n
 * Edges:     tokens outside of a sequence are 0; under strict math such taps are left out, by masks
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; in 16 bits silu and its slope cost as much. Measured on two Zen 4 cores of a shared machine,
 *            1x1024x4096 f32 with bias and silu, share of a streaming copy: forward 77%, gradients 67%
 * Try:       weft bench causal_conv1d:fwd:f32:ncw:n1c1024w4096:k4:bias+silu */
#include "cpu/causal_conv/causal.h"

enum { AHEAD = 2048 }; /* bytes of the rows that are prefetched */

typedef struct job {
    const weft__exec *e;
    causal_tensor src, dst, diff_src, diff_dst, weights, bias, h0, diff_h0, diff_hn;
    int64_t n, c, w, k, rows, slots;
    bool silu, stream, strict;
    float *sums; /* k + 1 of each row; NULL: not wanted */
} job;

typedef struct row { /* one channel of one sequence */
    const job *q;
    int64_t n, c, at, dy_at, dx_at; /* at: element of src; dx_at: of dst or diff_src */
    vf w[4], bias;                  /* w[b]: of the tap b tokens back */
    vf first;                       /* the vector before the first token */
    bool stream;
} row;

VF_INLINE void open_row(const job *q, int64_t at, row *r, causal_tensor out, const int dtype, const int K) {
    const int64_t lane = VF_LANES * vf_size_of(dtype);
    float before[VF_LANES] = {0};
    r->n = at / q->c;
    r->c = at % q->c;
    r->at = causal_offset(q->src.t, r->n, r->c, 0);
    if (q->diff_dst.t) r->dy_at = causal_offset(q->diff_dst.t, r->n, r->c, 0);
    if (out.t) r->dx_at = causal_offset(out.t, r->n, r->c, 0);
    r->stream =
        q->stream && out.t && ((uintptr_t)out.ptr + (uintptr_t)(r->dx_at * vf_size_of(dtype))) % (uintptr_t)lane == 0;
    VF_UNROLL for (int b = 0; b < K; b++) r->w[b] = vf_set1(causal_at(q->weights, r->c, 0, K - 1 - b));
    r->bias = vf_set1(q->bias.t ? (float)item_load(q->bias.t->dtype, q->bias.ptr, r->c * q->bias.t->strides[0]) : 0);
    for (int i = 0; q->h0.t && i < K - 1; i++) before[VF_LANES - (K - 1) + i] = causal_at(q->h0, r->n, r->c, i);
    r->first = vf_load(before);
}

/* Lanes of the vector at t that see the token `back` before; where `edge` is not set, all do. */
VF_INLINE vmask sees(const row *r, int64_t t, int64_t back) { return vm_range(r->q->h0.t ? 0 : back - t, r->q->w - t); }

/* The taps of a vector, from the one before it; and z. */
VF_INLINE vf taps(const row *r, int64_t t, vf before, vf own, vf *v, const bool edge, const int K) {
    vf z = r->bias;
    VF_UNROLL for (int b = 0; b < K; b++) {
        v[b] = b ? vf_slide(before, own, VF_LANES - b) : own;
        z = edge ? vf_fma_in(sees(r, t, b), r->w[b], v[b], z) : vf_fma(r->w[b], v[b], z);
    }
    return z;
}

/* ---------------------------------------------------------------- forward */
VF_INLINE void forward_row(const row *r, const int dtype, const bool silu, const int K) {
    const job *q = r->q;
    vf before = r->first, v[4];
    int64_t t = 0;
    for (; t + VF_LANES <= q->w; t += VF_LANES) {
        const vf own = vf_load_as(dtype, q->src.ptr, r->at + t);
        vf_prefetch(q->src.ptr, (r->at + t) * vf_size_of(dtype) + AHEAD);
        const vf z = t || !q->strict ? taps(r, t, before, own, v, false, K) : taps(r, t, before, own, v, true, K);
        causal_store(dtype, q->dst.ptr, r->dx_at + t, silu ? causal_silu_as(z, dtype) : z, r->stream);
        before = own;
    }
    if (t == q->w) return;
    const vf own = vf_load_count_as(dtype, q->src.ptr, r->at + t, q->w - t), z = taps(r, t, before, own, v, true, K);
    vf_store_count_as(dtype, q->dst.ptr, r->dx_at + t, silu ? causal_silu_as(z, dtype) : z, q->w - t);
}

VF_INLINE void forward_rows(const job *q, int64_t slot, const int dtype, const int K) {
    row r = {.q = q};
    for (int64_t at = cpu_first(q->rows, q->slots, slot); at < cpu_first(q->rows, q->slots, slot + 1); at++) {
        open_row(q, at, &r, q->dst, dtype, K);
        if (q->silu)
            forward_row(&r, dtype, true, K);
        else
            forward_row(&r, dtype, false, K);
        causal_keep(q->e, r.n, r.c, r.c + 1);
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- gradients */
/* What the final states add to the vector at t. */
static vf kept_diff(const row *r, int64_t t) {
    float more[VF_LANES] = {0};
    const int64_t last = r->q->k - 1;
    for (int64_t i = WEFT__MAX(r->q->w - last, t); i < WEFT__MIN(r->q->w, t + VF_LANES); i++)
        more[i - t] = causal_at(r->q->diff_hn, r->n, r->c, i - r->q->w + last);
    return vf_load(more);
}

typedef struct sweep { /* from the last vector to the first */
    vf own, behind;    /* tokens of this vector; dz of the one behind it */
    vf sum[5];
} sweep;

VF_INLINE void backward_vector(const row *r, int64_t t, vf before, sweep *s, const bool edge, const int dtype,
                               const bool silu, const int K) {
    const job *q = r->q;
    const int64_t count = q->w - t;
    vf v[4], dz = edge ? vf_load_count_as(dtype, q->diff_dst.ptr, r->dy_at + t, count)
                       : vf_load_as(dtype, q->diff_dst.ptr, r->dy_at + t);
    const vf z = taps(r, t, before, s->own, v, edge, K);
    if (silu) dz = vf_mul(dz, causal_slope(z));
    if (edge) dz = vf_select(vm_first(count), dz, vf_zero());
    VF_UNROLL for (int b = 0; b < K; b++) s->sum[b] =
        edge ? vf_fma_in(sees(r, t, b), dz, v[b], s->sum[b]) : vf_fma(dz, v[b], s->sum[b]);
    s->sum[K] = vf_add(s->sum[K], dz);
    if (q->diff_src.t) {
        vf dx = vf_zero();
        VF_UNROLL for (int b = 0; b < K; b++) {
            const vf to = b ? vf_slide(dz, s->behind, b) : dz;
            dx = edge ? vf_fma_in(vm_first(count - b), r->w[b], to, dx)
                 : b  ? vf_fma(r->w[b], to, dx)
                      : vf_mul(r->w[b], to);
        }
        if (edge && q->diff_hn.t) dx = vf_add(dx, kept_diff(r, t));
        if (edge)
            vf_store_count_as(dtype, q->diff_src.ptr, r->dx_at + t, dx, count);
        else
            causal_store(dtype, q->diff_src.ptr, r->dx_at + t, dx, r->stream);
    }
    s->behind = dz;
    s->own = before;
}

/* The tokens of the state, from dz of the first vector. */
static void diff_state(const row *r, vf first) {
    const job *q = r->q;
    const int64_t last = q->k - 1;
    float dz[VF_LANES];
    vf_store(dz, first);
    for (int64_t t = -last; t < 0; t++) {
        float sum = 0;
        for (int64_t b = -t; b <= last && t + b < WEFT__MIN(q->w, VF_LANES); b++)
            sum += causal_at(q->weights, r->c, 0, last - b) * dz[t + b];
        if (q->diff_hn.t && t - q->w + last >= 0) sum += causal_at(q->diff_hn, r->n, r->c, t - q->w + last);
        causal_set(q->diff_h0, r->n, r->c, t + last, sum);
    }
}

/* Are the tokens from t on not all there, or not only sums of dz? But for strict math, dz behind them is 0. */
VF_INLINE bool at_end(const row *r, int64_t t) {
    const job *q = r->q;
    return t + VF_LANES > q->w || ((q->strict || q->diff_hn.t) && t + VF_LANES + q->k - 1 > q->w);
}

VF_INLINE void backward_row(const row *r, float *sums, const int dtype, const bool silu, const int K) {
    const job *q = r->q;
    sweep s = {.behind = vf_zero()};
    int64_t t = (q->w - 1) / VF_LANES * VF_LANES;
    VF_UNROLL for (int b = 0; b <= K; b++) s.sum[b] = vf_zero();
    s.own = vf_load_count_as(dtype, q->src.ptr, r->at + t, q->w - t);
    for (; t > 0; t -= VF_LANES) {
        const vf before = vf_load_as(dtype, q->src.ptr, r->at + t - VF_LANES);
        vf_prefetch(q->src.ptr, (r->at + t) * vf_size_of(dtype) - AHEAD);
        vf_prefetch(q->diff_dst.ptr, (r->dy_at + t) * vf_size_of(dtype) - AHEAD);
        if (at_end(r, t))
            backward_vector(r, t, before, &s, true, dtype, silu, K);
        else
            backward_vector(r, t, before, &s, false, dtype, silu, K);
    }
    if (q->strict || at_end(r, 0))
        backward_vector(r, 0, r->first, &s, true, dtype, silu, K);
    else
        backward_vector(r, 0, r->first, &s, false, dtype, silu, K);
    if (q->diff_h0.t) diff_state(r, s.behind);
    VF_UNROLL for (int b = 0; b <= K; b++) if (sums) sums[b < K ? K - 1 - b : K] = vf_sum(s.sum[b]);
}

VF_INLINE void backward_rows(const job *q, int64_t slot, const int dtype, const int K) {
    row r = {.q = q};
    for (int64_t at = cpu_first(q->rows, q->slots, slot + 1) - 1; at >= cpu_first(q->rows, q->slots, slot); at--) {
        float *sums = q->sums ? q->sums + at * (K + 1) : NULL;
        open_row(q, at, &r, q->diff_src, dtype, K);
        if (q->silu)
            backward_row(&r, sums, dtype, true, K);
        else
            backward_row(&r, sums, dtype, false, K);
    }
    if (q->stream) vf_stream_end();
}

static void add_rows(void *arg, int64_t slot) {
    const job *q = arg;
    causal_add_rows(q->e, q->sums, cpu_first(q->c, q->slots, slot), cpu_first(q->c, q->slots, slot + 1));
}

/* ---------------------------------------------------------------- running */
#define SHORT_TASKS(type, dtype)                                                                 \
    static void forward_##type##_2(void *q, int64_t slot) { forward_rows(q, slot, dtype, 2); }   \
    static void forward_##type##_3(void *q, int64_t slot) { forward_rows(q, slot, dtype, 3); }   \
    static void forward_##type##_4(void *q, int64_t slot) { forward_rows(q, slot, dtype, 4); }   \
    static void backward_##type##_2(void *q, int64_t slot) { backward_rows(q, slot, dtype, 2); } \
    static void backward_##type##_3(void *q, int64_t slot) { backward_rows(q, slot, dtype, 3); } \
    static void backward_##type##_4(void *q, int64_t slot) { backward_rows(q, slot, dtype, 4); }
#define SHORT_ROW(pass, type) {pass##_##type##_2, pass##_##type##_3, pass##_##type##_4}
SHORT_TASKS(f32, WEFT_DTYPE_F32)
SHORT_TASKS(f16, WEFT_DTYPE_F16)
static const weft_task forward_of[2][3] = {SHORT_ROW(forward, f32), SHORT_ROW(forward, f16)};
static const weft_task backward_of[2][3] = {SHORT_ROW(backward, f32), SHORT_ROW(backward, f16)};

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
    const int dtype = q.src.t->dtype, type = dtype == WEFT_DTYPE_F16;
    const double bytes = (double)(q.rows * q.w) * (double)weft__dtype_size(dtype);
    q.stream = cpu_streams(e->hw, bytes);
    q.slots = cpu_slots(q.rows, (forward ? 2 : 3) * bytes);
    q.sums = forward || p->pass == WEFT_PASS_BWD_DATA ? NULL : e->workspace;
    weft__parallel(e->ctx, q.slots, (forward ? forward_of : backward_of)[type][q.k - 2], &q);
    q.slots = cpu_slots(q.c, (double)(q.rows * (q.k + 1)) * 4);
    if (q.sums) weft__parallel(e->ctx, q.slots, add_rows, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    if (p->kernel[2] < 2 || p->kernel[2] > 4) return "not a window of 2 to 4 tokens";
    if (p->attr[WEFT_CAUSAL_SEQ_IDX]) return "seq_idx";
    const double silu = weft__has_step(p, WEFT_STEP_SILU) ? 16 * causal_numel(p) : 0; /* as flops */
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p) + silu, 0.6);
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(p->n * p->c * (p->kernel[2] + 1)) * sizeof(float);
    return causal_refusal(p, 4);
}

WEFT__KERNEL(causal_conv_short_fwd_ncw) = {
    .name = WEFT__NAME("causal_conv_short_fwd_ncw_1v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CAUSAL_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16),
    .bound = 2,
    .plan = plan,
    .run = run,
};

WEFT__KERNEL(causal_conv_short_bwd_ncw) = {
    .name = WEFT__NAME("causal_conv_short_bwd_ncw_1v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = CAUSAL_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16),
    .bound = 2,
    .plan = plan,
    .run = run,
};
