/* Causal convolution of sequences whose tokens lie side by side: forward, and every gradient in one pass. Any width to
 * 128, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      z[t] = bias + sum_j w[j] v[t - (k-1) + j], dst = silu(z); dz = diff_dst silu'(z);
 *            diff_src[t] = sum_j w[j] dz[t + (k-1) - j], diff_weights[j] = sum dz[t] v[t - (k-1) + j]
 * Blocking:  a row is one channel of one sequence, cut into chunks of 512 tokens that stay in the nearest cache as f32
 *            (f32 is read in place but for the first chunk); gradients go from the last chunk to the first and carry
 *            the k - 1 dz behind a chunk
 * Sums:      k + 1 for each row, in the workspace; those of a channel are then added in the order of n
 * Edges:     taps outside of a sequence are left out by masks, never multiplied by 0
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth for short windows, which short_first.c and pairs_first_bf16.c take; multiply-adds for long ones
 * Try:       weft bench causal_conv1d:fwd:f32:ncw:n1c256w2048:k31:bias+silu */
#include "cpu/causal_conv/causal.h"

enum { CHUNK = CPU_CUT(512, CAUSAL_WIDTH), PAD = CAUSAL_WIDTH };

typedef struct job {
    const weft__exec *e;
    causal_tensor src, dst, diff_src, diff_dst, weights, bias, h0, diff_h0, diff_hn, seq;
    int64_t n, c, w, k, rows, slots;
    int dtype;
    bool silu, stream;
    float *sums; /* k + 1 of each row; NULL: not wanted */
} job;

typedef struct row { /* one channel of one sequence */
    int64_t n, c;
    float weight[CAUSAL_WIDTH], bias;
    float token[PAD + CHUNK + VF_LANES];       /* from token t0 - PAD on */
    float dz[CHUNK + PAD + 2 * VF_LANES];      /* from token t0 on */
    int32_t seq[PAD + CHUNK + PAD + VF_LANES]; /* from token t0 - PAD on; none: INT32_MIN */
    float sum[(CAUSAL_WIDTH + 1) * VF_LANES];
    const float *v; /* token t0 */
    int64_t t0, count;
} row;

/* ---------------------------------------------------------------- memory */
VF_INLINE void take_as(const int dtype, const void *from, int64_t at, float *to, int64_t count) {
    int64_t i = 0;
    for (; i + VF_LANES <= count; i += VF_LANES) vf_store(to + i, vf_load_as(dtype, from, at + i));
    if (i < count) vf_store(to + i, vf_load_count_as(dtype, from, at + i, count - i));
}
static void take(int dtype, const void *from, int64_t at, float *to, int64_t count) {
    if (dtype == WEFT_DTYPE_F32)
        take_as(WEFT_DTYPE_F32, from, at, to, count);
    else if (dtype == WEFT_DTYPE_F16)
        take_as(WEFT_DTYPE_F16, from, at, to, count);
    else
        take_as(WEFT_DTYPE_BF16, from, at, to, count);
}
VF_INLINE vf get(int dtype, const void *from, int64_t at, int64_t count) {
    if (dtype == WEFT_DTYPE_F32) return vf_load_count_as(WEFT_DTYPE_F32, from, at, count);
    if (dtype == WEFT_DTYPE_F16) return vf_load_count_as(WEFT_DTYPE_F16, from, at, count);
    return vf_load_count_as(WEFT_DTYPE_BF16, from, at, count);
}
VF_INLINE vf get_full(int dtype, const void *from, int64_t at) {
    if (dtype == WEFT_DTYPE_F32) return vf_load_as(WEFT_DTYPE_F32, from, at);
    if (dtype == WEFT_DTYPE_F16) return vf_load_as(WEFT_DTYPE_F16, from, at);
    return vf_load_as(WEFT_DTYPE_BF16, from, at);
}
VF_INLINE void put(int dtype, void *to, int64_t at, vf v, int64_t count) {
    if (dtype == WEFT_DTYPE_F32)
        vf_store_count_as(WEFT_DTYPE_F32, to, at, v, count);
    else if (dtype == WEFT_DTYPE_F16)
        vf_store_count_as(WEFT_DTYPE_F16, to, at, v, count);
    else
        vf_store_count_as(WEFT_DTYPE_BF16, to, at, v, count);
}
VF_INLINE void put_full(int dtype, void *to, int64_t at, vf v, bool stream) {
    if (dtype == WEFT_DTYPE_F32 && stream)
        vf_stream_as(WEFT_DTYPE_F32, to, at, v);
    else if (dtype == WEFT_DTYPE_F32)
        vf_store_as(WEFT_DTYPE_F32, to, at, v);
    else if (dtype == WEFT_DTYPE_F16 && stream)
        vf_stream_as(WEFT_DTYPE_F16, to, at, v);
    else if (dtype == WEFT_DTYPE_F16)
        vf_store_as(WEFT_DTYPE_F16, to, at, v);
    else if (stream)
        vf_stream_as(WEFT_DTYPE_BF16, to, at, v);
    else
        vf_store_as(WEFT_DTYPE_BF16, to, at, v);
}
/* May whole vectors from element `at` on be streamed? */
VF_INLINE bool lies(const job *q, const void *to, int64_t at) {
    const uintptr_t bytes = (uintptr_t)weft__dtype_size(q->dtype);
    return q->stream && ((uintptr_t)to + (uintptr_t)at * bytes) % (VF_LANES * bytes) == 0;
}

/* ---------------------------------------------------------------- a chunk */
static void open_row(const job *q, row *r, int64_t at) {
    r->n = at / q->c;
    r->c = at % q->c;
    for (int64_t j = 0; j < q->k; j++) r->weight[j] = causal_at(q->weights, r->c, 0, j);
    r->bias = q->bias.t ? (float)item_load(q->bias.t->dtype, q->bias.ptr, r->c * q->bias.t->strides[0]) : 0;
}

/* Tokens [t0, t0 + count) with the k - 1 before them, and the sequences that they and the k - 1 behind belong to. */
static void open_chunk(const job *q, row *r, int64_t t0, int64_t count) {
    const int64_t last = q->k - 1, base = causal_offset(q->src.t, r->n, r->c, 0);
    r->t0 = t0;
    r->count = count;
    if (q->dtype == WEFT_DTYPE_F32 && t0 >= last) {
        r->v = (const float *)q->src.ptr + base + t0;
    } else {
        const int64_t before = WEFT__MIN(last, t0);
        take(q->dtype, q->src.ptr, base + t0 - before, r->token + PAD - before, count + before);
        for (int64_t t = t0 - last; t < 0; t++)
            r->token[PAD + t - t0] = q->h0.t ? causal_at(q->h0, r->n, r->c, t + last) : 0;
        r->v = r->token + PAD;
    }
    for (int64_t i = -last; q->seq.t && i < count + last + VF_LANES; i++) {
        const int64_t t = t0 + i;
        r->seq[PAD + i] =
            t < 0 || t >= q->w ? INT32_MIN : ((const int32_t *)q->seq.ptr)[causal_offset(q->seq.t, r->n, 0, t)];
    }
}

/* Lanes of the vector at token t0 + i whose tap `back` tokens before it counts; back < 0: behind it. */
VF_INLINE vmask seen(const job *q, const row *r, int64_t i, int64_t count, int64_t back) {
    const vmask live = vm_first(count);
    const int64_t t = r->t0 + i - back;
    if (q->seq.t) return vm_and(live, vi_eq(vi_load(r->seq + PAD + i - back), vi_load(r->seq + PAD + i)));
    return vm_and(live, vm_range(q->h0.t && back > 0 ? 0 : -t, q->w - t));
}
VF_INLINE vmask valid(const job *q, const row *r, int64_t i, int64_t count) {
    const vmask live = vm_first(count);
    return q->seq.t ? vm_andnot(live, vi_lt(vi_load(r->seq + PAD + i), vi_zero())) : live;
}
/* The first tokens see less than a window, unless states stand before them. */
VF_INLINE bool is_head(const job *q, const row *r, int64_t i) { return q->seq.t || (!q->h0.t && r->t0 + i < q->k - 1); }

VF_INLINE vf careful_sum(const job *q, const row *r, int64_t i, int64_t count) {
    vf z = vf_set1(r->bias);
    for (int64_t j = 0; j < q->k; j++) {
        const vmask m = seen(q, r, i, count, q->k - 1 - j);
        z = vf_fma_in(m, vf_set1(r->weight[j]), vf_load_in(m, r->v + i - (q->k - 1) + j), z);
    }
    return z;
}

/* U vectors of sums from token t0 + i on, all of them whole. */
VF_INLINE void sums(const job *q, const row *r, int64_t i, vf *z, const int U) {
    const float *v = r->v + i - (q->k - 1);
    VF_UNROLL for (int u = 0; u < U; u++) z[u] = vf_set1(r->bias);
    for (int64_t j = 0; j < q->k; j++) {
        const vf weight = vf_set1(r->weight[j]);
        VF_UNROLL for (int u = 0; u < U; u++) z[u] = vf_fma(weight, vf_load(v + j + u * VF_LANES), z[u]);
    }
}

/* ---------------------------------------------------------------- forward */
static void forward_chunk(const job *q, const row *r) {
    const int64_t base = causal_offset(q->dst.t, r->n, r->c, r->t0);
    const bool stream = lies(q, q->dst.ptr, base);
    enum { U = 4 };
    vf z[U];
    int64_t i = 0;
    for (; i < r->count && (is_head(q, r, i) || i + VF_LANES > r->count); i += VF_LANES) {
        const int64_t count = WEFT__MIN(r->count - i, VF_LANES);
        vf y = careful_sum(q, r, i, count);
        y = q->silu ? causal_silu(y) : y;
        put(q->dtype, q->dst.ptr, base + i, vf_select(valid(q, r, i, count), y, vf_zero()), count);
    }
    for (; i + U * VF_LANES <= r->count; i += U * VF_LANES) {
        sums(q, r, i, z, U);
        VF_UNROLL for (int u = 0; u < U; u++)
            put_full(q->dtype, q->dst.ptr, base + i + u * VF_LANES, q->silu ? causal_silu(z[u]) : z[u], stream);
    }
    for (; i + VF_LANES <= r->count; i += VF_LANES) {
        sums(q, r, i, z, 1);
        put_full(q->dtype, q->dst.ptr, base + i, q->silu ? causal_silu(z[0]) : z[0], stream);
    }
    if (i < r->count) {
        const vf y = careful_sum(q, r, i, r->count - i);
        put(q->dtype, q->dst.ptr, base + i, q->silu ? causal_silu(y) : y, r->count - i);
    }
}

static void forward_rows(void *arg, int64_t slot) {
    const job *q = arg;
    row r;
    for (int64_t at = cpu_first(q->rows, q->slots, slot); at < cpu_first(q->rows, q->slots, slot + 1); at++) {
        open_row(q, &r, at);
        for (int64_t t0 = 0; t0 < q->w; t0 += CHUNK) {
            open_chunk(q, &r, t0, WEFT__MIN(CHUNK, q->w - t0));
            forward_chunk(q, &r);
        }
        causal_keep(q->e, r.n, r.c, r.c + 1);
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- gradients */
VF_INLINE void add_to(float *sum, vf v) { vf_store(sum, vf_add(vf_load(sum), v)); }

/* dz of one vector, some lanes of it or some taps missing, and what it adds to the sums. */
static void careful_dz(const job *q, row *r, int64_t i, int64_t count, int64_t base) {
    const vmask m = valid(q, r, i, count);
    vf dz = get(q->dtype, q->diff_dst.ptr, base + i, count);
    if (q->silu) dz = vf_mul(dz, causal_slope(careful_sum(q, r, i, count)));
    dz = vf_select(m, dz, vf_zero());
    vf_store(r->dz + i, dz);
    if (!q->sums) return;
    for (int64_t j = 0; j < q->k; j++) {
        const vmask tap = vm_and(m, seen(q, r, i, count, q->k - 1 - j));
        float *sum = r->sum + j * VF_LANES;
        vf_store(sum, vf_fma_in(tap, dz, vf_load_in(tap, r->v + i - (q->k - 1) + j), vf_load(sum)));
    }
    add_to(r->sum + q->k * VF_LANES, dz);
}

/* Whole vectors; the sums of four taps at a time. */
static void dz_of_vectors(const job *q, row *r, int64_t begin, int64_t end, int64_t base) {
    for (int64_t i = begin; i < end; i += VF_LANES) {
        vf z, dz = get_full(q->dtype, q->diff_dst.ptr, base + i);
        if (q->silu) {
            sums(q, r, i, &z, 1);
            dz = vf_mul(dz, causal_slope(z));
        }
        vf_store(r->dz + i, dz);
    }
    for (int64_t j = 0; q->sums && j <= q->k; j += 4) {
        const int64_t many = WEFT__MIN(q->k - j, 4);
        vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()}, all = vf_zero();
        for (int64_t i = begin; i < end; i += VF_LANES) {
            const vf dz = vf_load(r->dz + i);
            const float *v = r->v + i - (q->k - 1) + j;
            VF_UNROLL for (int t = 0; t < 4; t++) if (t < many) sum[t] = vf_fma(dz, vf_load(v + t), sum[t]);
            if (many < 4) all = vf_add(all, dz);
        }
        VF_UNROLL for (int t = 0; t < 4; t++) if (t < many) add_to(r->sum + (j + t) * VF_LANES, sum[t]);
        if (many < 4) add_to(r->sum + q->k * VF_LANES, all);
    }
}

static void dz_of_chunk(const job *q, row *r) {
    const int64_t base = causal_offset(q->diff_dst.t, r->n, r->c, r->t0);
    int64_t i = 0, end;
    for (; i < r->count && (is_head(q, r, i) || i + VF_LANES > r->count); i += VF_LANES)
        careful_dz(q, r, i, WEFT__MIN(r->count - i, VF_LANES), base);
    end = i + WEFT__MAX(r->count - i, 0) / VF_LANES * VF_LANES;
    dz_of_vectors(q, r, i, end, base);
    if (end < r->count) careful_dz(q, r, end, r->count - end, base);
}

VF_INLINE vf careful_diff(const job *q, const row *r, int64_t i, int64_t count) {
    vf sum = vf_zero();
    for (int64_t j = 0; j < q->k; j++) {
        const vmask m = seen(q, r, i, count, j - (q->k - 1));
        sum = vf_fma_in(m, vf_set1(r->weight[j]), vf_load_in(m, r->dz + i + q->k - 1 - j), sum);
    }
    return vf_select(valid(q, r, i, count), sum, vf_zero());
}

static void diff_of_chunk(const job *q, const row *r) {
    const int64_t k = q->k, base = causal_offset(q->diff_src.t, r->n, r->c, r->t0);
    const bool stream = lies(q, q->diff_src.ptr, base);
    int64_t i = 0;
    for (; !q->seq.t && r->t0 + i + VF_LANES + k - 1 <= q->w && i + VF_LANES <= r->count; i += VF_LANES) {
        const float *dz = r->dz + i + k - 1;
        vf sum = vf_zero();
        for (int64_t j = 0; j < k; j++) sum = vf_fma(vf_set1(r->weight[j]), vf_load(dz - j), sum);
        put_full(q->dtype, q->diff_src.ptr, base + i, sum, stream);
    }
    for (; i < r->count; i += VF_LANES) {
        const int64_t count = WEFT__MIN(r->count - i, VF_LANES);
        put(q->dtype, q->diff_src.ptr, base + i, careful_diff(q, r, i, count), count);
    }
}

/* One place of diff_src or, before the first token, of diff_h0: a token that the final states hold, too. */
static void diff_of_token(const job *q, const row *r, int64_t t) {
    float sum = 0;
    const int64_t last = q->k - 1, kept = t - q->w + last;
    for (int64_t j = 0; j <= last; j++) {
        const int64_t to = t + last - j;
        if (to >= 0 && to < q->w) sum += r->weight[j] * r->dz[to - r->t0];
    }
    if (q->diff_hn.t && kept >= 0) sum += causal_at(q->diff_hn, r->n, r->c, kept);
    causal_set(t < 0 ? q->diff_h0 : q->diff_src, r->n, r->c, t < 0 ? t + last : t, sum);
}

static void diff_states(const job *q, const row *r) {
    const int64_t last = q->k - 1, end = r->t0 + r->count;
    for (int64_t t = WEFT__MAX(q->w - last, r->t0); q->diff_hn.t && t < end; t++) diff_of_token(q, r, t);
    for (int64_t t = -last; q->diff_h0.t && r->t0 == 0 && t < 0; t++) diff_of_token(q, r, t);
}

static void backward_row(const job *q, row *r, int64_t at) {
    const int64_t last = q->k - 1, t_last = (q->w - 1) / CHUNK * CHUNK;
    open_row(q, r, at);
    memset(r->sum, 0, sizeof(*r->sum) * (size_t)((q->k + 1) * VF_LANES));
    for (int64_t t0 = t_last; t0 >= 0; t0 -= CHUNK) {
        const int64_t count = WEFT__MIN(CHUNK, q->w - t0);
        if (t0 == t_last) /* whole vectors of 0 behind the last token */
            memset(r->dz + count / VF_LANES * VF_LANES, 0, sizeof(float) * (size_t)(last + 2 * VF_LANES));
        else
            memmove(r->dz + CHUNK, r->dz, sizeof(float) * (size_t)last);
        open_chunk(q, r, t0, count);
        dz_of_chunk(q, r);
        if (!q->diff_src.t) continue;
        diff_of_chunk(q, r);
        diff_states(q, r);
    }
    for (int64_t j = 0; q->sums && j <= q->k; j++)
        q->sums[at * (q->k + 1) + j] = vf_sum(vf_load(r->sum + j * VF_LANES));
}

static void backward_rows(void *arg, int64_t slot) {
    const job *q = arg;
    row r;
    for (int64_t at = cpu_first(q->rows, q->slots, slot); at < cpu_first(q->rows, q->slots, slot + 1); at++)
        backward_row(q, &r, at);
    if (q->stream) vf_stream_end();
}

static void add_rows(void *arg, int64_t slot) {
    const job *q = arg;
    causal_add_rows(q->e, q->sums, cpu_first(q->c, q->slots, slot), cpu_first(q->c, q->slots, slot + 1));
}

/* ---------------------------------------------------------------- running */
static job job_of(const weft__exec *e) {
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
    q.seq = causal_find(e, WEFT_ROLE_SEQ_IDX);
    q.dtype = q.src.t->dtype;
    q.silu = weft__has_step(p, WEFT_STEP_SILU);
    const double bytes = (double)(q.rows * q.w) * (double)weft__dtype_size(q.dtype);
    q.stream = cpu_streams(e->hw, bytes);
    q.slots = cpu_slots(q.rows, (forward ? 2 : 3) * bytes);
    q.sums = forward || p->pass == WEFT_PASS_BWD_DATA ? NULL : e->workspace;
    return q;
}

static weft_status run_fwd(const weft__exec *e) {
    job q = job_of(e);
    weft__parallel(e->ctx, q.slots, forward_rows, &q);
    return WEFT_OK;
}

static weft_status run_bwd(const weft__exec *e) {
    job q = job_of(e);
    weft__parallel(e->ctx, q.slots, backward_rows, &q);
    q.slots = cpu_slots(q.c, (double)(q.rows * (q.k + 1)) * 4);
    if (q.sums) weft__parallel(e->ctx, q.slots, add_rows, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const double silu = weft__has_step(p, WEFT_STEP_SILU) ? 40 * causal_numel(p) : 0; /* as flops */
    d->ns = cpu_cost(hw, weft__bytes(p), weft__flops(p) + silu, 0.5);
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(p->n * p->c * (p->kernel[2] + 1)) * sizeof(float);
    return causal_refusal(p, 4);
}

WEFT__KERNEL(causal_conv_fwd_ncw) = {
    .name = WEFT__NAME("causal_conv_fwd_ncw_4v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CAUSAL_STEPS,
    .dtypes = CAUSAL_DTYPES,
    .bound = 2,
    .plan = plan,
    .run = run_fwd,
};

WEFT__KERNEL(causal_conv_bwd_ncw) = {
    .name = WEFT__NAME("causal_conv_bwd_ncw_1v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = CAUSAL_STEPS,
    .dtypes = CAUSAL_DTYPES,
    .bound = 2,
    .plan = plan,
    .run = run_bwd,
};
