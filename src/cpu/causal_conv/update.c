/* The next tokens of a causal convolution: results behind the tokens that a state holds, and the state moved on in
 * place.
 * Any width to 128, f32, f16 and bf16 with f32 sums, shifted states and rings, gathered rows, bias and silu.
 * Math:      dst[t] = silu(bias + sum_j w[j] (state, src)[t - (k-1) + j])
 * Blocking:  a vector of channels of one row: the k - 1 tokens before the first new one and the weights of these
 *            channels are brought into rows of f32 in the nearest cache, whatever their strides; then a token at a time
 *            One token, width 4 and a short channel-major state: see quads.h
 * Traffic:   state, weights and tokens once
 * Roofline:  the calls: a token of 2048 channels is a few microseconds of one core. Measured there: channel-major
 *            state 3.0 us in f32, 2.0 in bf16; time-major 6.3
 * Try:       weft bench causal_update1d:fwd:f32:ncw:n1c2048w1:k4len3:bias+silu */
#include "cpu/causal_conv/quads.h"

typedef struct job {
    const weft__exec *e;
    causal_tensor src, dst, weights, bias, state, lengths, index;
    int64_t c, w, k, len, rows, vectors, slots, items;
    bool silu, quads; /* quads: one token, and a state, for quads.h */
} job;

/* Lane l of `to` becomes element at + l * step. */
VF_INLINE void bring(float *to, int dtype, const void *from, int64_t at, int64_t step, int64_t count) {
    if (step == 1) {
        vf_store(to, dtype == WEFT_DTYPE_F32   ? vf_load_count_as(WEFT_DTYPE_F32, from, at, count)
                     : dtype == WEFT_DTYPE_F16 ? vf_load_count_as(WEFT_DTYPE_F16, from, at, count)
                                               : vf_load_count_as(WEFT_DTYPE_BF16, from, at, count));
        return;
    }
    if (dtype == WEFT_DTYPE_F32 && count == VF_LANES) {
        const float *f = (const float *)from + at;
        VF_UNROLL for (int64_t l = 0; l < VF_LANES; l++) to[l] = f[l * step];
        return;
    }
    for (int64_t l = 0; l < VF_LANES; l++) to[l] = l < count ? (float)item_load(dtype, from, at + l * step) : 0;
}
VF_INLINE void send(const float *from, int dtype, void *to, int64_t at, int64_t step, int64_t count) {
    if (step == 1) {
        const vf v = vf_load(from);
        if (dtype == WEFT_DTYPE_F32)
            vf_store_count_as(WEFT_DTYPE_F32, to, at, v, count);
        else if (dtype == WEFT_DTYPE_F16)
            vf_store_count_as(WEFT_DTYPE_F16, to, at, v, count);
        else
            vf_store_count_as(WEFT_DTYPE_BF16, to, at, v, count);
        return;
    }
    for (int64_t l = 0; l < count && l < VF_LANES; l++) {
        if (dtype == WEFT_DTYPE_F32)
            ((float *)to)[at + l * step] = from[l];
        else
            item_store(dtype, to, at + l * step, (double)from[l]);
    }
}
VF_INLINE void bring_tokens(float *to, causal_tensor v, int64_t n, int64_t c, int64_t t, int64_t count) {
    bring(to, v.t->dtype, v.ptr, causal_offset(v.t, n, c, t), v.t->strides[1], count);
}
VF_INLINE void send_tokens(const float *from, causal_tensor v, int64_t n, int64_t c, int64_t t, int64_t count) {
    send(from, v.t->dtype, v.ptr, causal_offset(v.t, n, c, t), v.t->strides[1], count);
}

/* Elements of 2 or 4 bytes are moved as they are: no bits change on the way through a state. */
VF_INLINE void move(causal_tensor to, int64_t row, int64_t at, causal_tensor from, int64_t n, int64_t t, int64_t c,
                    int64_t end) {
    const int64_t i = causal_offset(to.t, row, 0, at), j = causal_offset(from.t, n, 0, t);
    const int64_t a = to.t->strides[1], b = from.t->strides[1];
    const size_t bytes = weft__dtype_size(to.t->dtype);
    if (a == 1 && b == 1)
        memmove((char *)to.ptr + (size_t)(i + c) * bytes, (const char *)from.ptr + (size_t)(j + c) * bytes,
                (size_t)(end - c) * bytes);
    else if (to.t->dtype == WEFT_DTYPE_F32)
        for (; c < end; c++) ((uint32_t *)to.ptr)[i + c * a] = ((const uint32_t *)from.ptr)[j + c * b];
    else
        for (; c < end; c++) ((uint16_t *)to.ptr)[i + c * a] = ((const uint16_t *)from.ptr)[j + c * b];
}

/* Where in the state the token t stands, 0 being the first new one. */
VF_INLINE int64_t held(const job *q, int64_t n, int64_t t) {
    if (!q->lengths.t) return q->len + t;
    const int64_t at = ((const int32_t *)q->lengths.ptr)[n * q->lengths.t->strides[0]] % q->len + t % q->len;
    return (at % q->len + q->len) % q->len;
}

static void move_on(const job *q, int64_t n, int64_t row, int64_t c, int64_t end) {
    if (q->lengths.t) {
        for (int64_t t = 0; t < q->w; t++) move(q->state, row, held(q, n, t), q->src, n, t, c, end);
        return;
    }
    for (int64_t i = 0; i < q->len; i++) {
        const int64_t from = i + q->w;
        if (from < q->len)
            move(q->state, row, i, q->state, row, from, c, end);
        else
            move(q->state, row, i, q->src, n, from - q->len, c, end);
    }
}

VF_INLINE vf finish(const job *q, vf z) { return q->silu ? causal_silu(z) : z; }

/* count channels from c on; the rows of f32 are a ring of k tokens. */
static void next_tokens(const job *q, int64_t n, int64_t row, int64_t c, int64_t count) {
    float token[CAUSAL_WIDTH][VF_LANES], weight[CAUSAL_WIDTH][VF_LANES], bias[VF_LANES] = {0}, y[VF_LANES];
    const int64_t k = q->k;
    const weft_tensor *w = q->weights.t;
    if (k == 4 && count == VF_LANES && w->dtype == WEFT_DTYPE_F32 && w->strides[0] == 4 && w->strides[4] == 1) {
        vf v[4];
        VF_UNROLL for (int j = 0; j < 4; j++) v[j] = vf_load((const float *)q->weights.ptr + c * 4 + j * VF_LANES);
        vf_unzip4(v);
        VF_UNROLL for (int j = 0; j < 4; j++) vf_store(weight[j], v[j]);
    } else {
        for (int64_t j = 0; j < k; j++)
            bring(weight[j], w->dtype, q->weights.ptr, c * w->strides[0] + j * w->strides[4], w->strides[0], count);
    }
    if (q->bias.t) bring(bias, q->bias.t->dtype, q->bias.ptr, c * q->bias.t->strides[0], q->bias.t->strides[0], count);
    for (int64_t j = 0; j < k - 1; j++) bring_tokens(token[j], q->state, row, c, held(q, n, j - (k - 1)), count);
    for (int64_t t = 0; t < q->w; t++) {
        vf z = vf_load(bias);
        bring_tokens(token[(t + k - 1) % k], q->src, n, c, t, count);
        for (int64_t j = 0; j < k; j++) z = vf_fma(vf_load(weight[j]), vf_load(token[(t + j) % k]), z);
        vf_store(y, finish(q, z));
        send_tokens(y, q->dst, n, c, t, count);
    }
}

#if defined(WEFT__VECTORS_AVX512)
static vf load_any(int dtype, const void *from, int64_t at) {
    return dtype == WEFT_DTYPE_F32   ? vf_load_as(WEFT_DTYPE_F32, from, at)
           : dtype == WEFT_DTYPE_F16 ? vf_load_as(WEFT_DTYPE_F16, from, at)
                                     : vf_load_as(WEFT_DTYPE_BF16, from, at);
}

/* VF_LANES channels. */
VF_INLINE void next_token(const job *q, int64_t n, int64_t row, int64_t c, const int dtype, const int len) {
    const int64_t x = causal_offset(q->src.t, n, c, 0), y = causal_offset(q->dst.t, n, c, 0);
    const int64_t state = causal_offset(q->state.t, row, c, 0);
    vf w[4], z, f[4];
    vi h[2];
    VF_UNROLL for (int i = 0; i < 4; i++) w[i] = load_any(q->weights.t->dtype, q->weights.ptr, c * 4 + i * VF_LANES);
    if (dtype == WEFT_DTYPE_F32) {
        quads_f32((float *)q->state.ptr + state, vf_load((const float *)q->src.ptr + x), f, len);
        z = quads_sum_f32(f, w);
    } else {
        quads_bf16((uint16_t *)q->state.ptr + state, vh_load((const uint16_t *)q->src.ptr + x), h, len);
        z = quads_sum_bf16(h, w);
    }
    if (q->bias.t) z = vf_add(z, load_any(q->bias.t->dtype, q->bias.ptr, c));
    vf_store_as(dtype, q->dst.ptr, y, q->silu ? causal_silu_as(z, dtype) : z);
}

static void quads(const job *q, int64_t n, int64_t row, int64_t c) {
    const bool f32 = q->src.t->dtype == WEFT_DTYPE_F32;
    if (f32 && q->len == 3)
        next_token(q, n, row, c, WEFT_DTYPE_F32, 3);
    else if (f32)
        next_token(q, n, row, c, WEFT_DTYPE_F32, 4);
    else if (q->len == 3)
        next_token(q, n, row, c, WEFT_DTYPE_BF16, 3);
    else
        next_token(q, n, row, c, WEFT_DTYPE_BF16, 4);
}

static bool has_quads(const weft_problem *p) {
    const weft_tensor *w = weft__tensor(p, WEFT_ROLE_WEIGHTS), *bias = weft__tensor(p, WEFT_ROLE_BIAS),
                      *state = weft__tensor(p, WEFT_ROLE_STATE), *src = weft__tensor(p, WEFT_ROLE_SRC),
                      *dst = weft__tensor(p, WEFT_ROLE_DST);
    const int64_t len = p->attr[WEFT_CAUSAL_LEN];
    return p->in[2] == 1 && p->kernel[2] == 4 && (len == 3 || len == 4) && !p->attr[WEFT_CAUSAL_RING] &&
           src->dtype != WEFT_DTYPE_F16 && dst->dtype == src->dtype && state->strides[4] == 1 &&
           state->strides[1] == len && src->strides[1] == 1 && dst->strides[1] == 1 && w->strides[0] == 4 &&
           w->strides[4] == 1 && (!bias || bias->strides[0] == 1);
}
#else
static void quads(const job *q, int64_t n, int64_t row, int64_t c) { (void)q, (void)n, (void)row, (void)c; }
static bool has_quads(const weft_problem *p) {
    (void)p;
    return false;
}
#endif

static void no_tokens(const job *q, int64_t n, int64_t c, int64_t count) {
    const float zero[VF_LANES] = {0};
    for (int64_t t = 0; t < q->w; t++) send_tokens(zero, q->dst, n, c, t, count);
}

static void update(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t first = cpu_first(q->items, q->slots, slot), last = cpu_first(q->items, q->slots, slot + 1);
    int64_t n = first / q->vectors, c = first % q->vectors * VF_LANES;
    for (int64_t i = first; i < last; i++) {
        const int64_t count = WEFT__MIN(q->c - c, VF_LANES);
        const int64_t row = q->index.t ? ((const int32_t *)q->index.ptr)[n * q->index.t->strides[0]] : n;
        if (row < 0 || row >= q->rows) {
            no_tokens(q, n, c, count);
        } else if (q->quads && count == VF_LANES) {
            quads(q, n, row, c);
        } else {
            next_tokens(q, n, row, c, count);
            move_on(q, n, row, c, c + count);
        }
        c += VF_LANES;
        if (c >= q->c) c = 0, n++;
    }
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    job q = {.e = e, .c = p->c, .w = p->in[2], .k = p->kernel[2], .len = p->attr[WEFT_CAUSAL_LEN]};
    q.rows = p->attr[WEFT_CAUSAL_ROWS];
    q.src = causal_find(e, WEFT_ROLE_SRC);
    q.dst = causal_find(e, WEFT_ROLE_DST);
    q.weights = causal_find(e, WEFT_ROLE_WEIGHTS);
    q.bias = causal_find(e, WEFT_ROLE_BIAS);
    q.state = causal_find(e, WEFT_ROLE_STATE);
    q.lengths = causal_find(e, WEFT_ROLE_LENGTHS);
    q.index = causal_find(e, WEFT_ROLE_INDEX);
    q.silu = weft__has_step(p, WEFT_STEP_SILU);
    q.quads = has_quads(p);
    q.vectors = cpu_ceil(q.c, VF_LANES);
    q.items = p->n * q.vectors;
    q.slots = cpu_slots(q.items, weft__bytes(p) - (double)(q.rows - p->n) * (double)(q.c * q.len) * 4);
    weft__parallel(e->ctx, q.slots, update, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const int dtype = weft__tensor(p, WEFT_ROLE_SRC)->dtype;
    if (p->kernel[2] > CAUSAL_WIDTH) return "the window is over 128 tokens";
    if (weft__tensor(p, WEFT_ROLE_STATE)->dtype != dtype) return "a state of another type";
    /* of a vector of channels: tokens and weights brought together, then the sums */
    const double vectors = (double)(p->n * p->in[2]) * (double)cpu_ceil(p->c, VF_LANES);
    d->ns = cpu_work_cost(p, hw, vectors * (has_quads(p) ? 20 : 20 + 16 * (double)p->kernel[2]));
    return NULL;
}

WEFT__KERNEL(causal_update) = {
    .name = WEFT__NAME("causal_update_1v"),
    .version = 1,
    .op = WEFT_OP_CAUSAL_UPDATE,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CAUSAL_STEPS,
    .dtypes = CAUSAL_DTYPES,
    .bound = 2,
    .plan = plan,
    .run = run,
};
