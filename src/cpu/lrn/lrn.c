/* Local response normalisation across channels and its gradient, both layouts, on f32, f16 and bf16.
 * Math:      q_c = k + alpha / size * sum of x_j^2 over the window of c; dst_c = x_c / q_c^beta
 *            diff_src_c = dy_c / q_c^beta - 2 alpha beta / size * x_c * sum of dy_j x_j / q_j^(beta+1) over the j whose
 *            window holds c. See src/ref/lrn.h
 * Blocking:  channels-first: strips of 64 pixels go through the channels; the squares of a window, and in the
 *            gradient its terms, wait in a ring of rows in the nearest cache. Channels-last: a pixel at a time, its
 *            squares and terms in a row with zeros around it, so a window is a few shifted loads.
 *            Each window is summed anew: a running sum would lose digits, and never lose an infinity
 * Power:     q^-0.75 by two inverse roots from estimates where q is at least a k that is a normal number: roots and
 *            quotients would take most of the time. Else by square roots for beta 0.75, 0.5 and 1, or exp and log
 * Slots:     runs of strips or pixels; each has its own rows
 * Traffic:   each tensor once; near the memory's speed for windows of a few channels
 * Measured:  8x256x56x56, size 5, two cores of an EPYC with AVX-512, caches emptied: half of the copy's rate forward
 *            and backward, 24 and 22 times PyTorch's speed; without fetching early 25 to 40%
 * Assumes:   all tensors dense in one order and of one data type
 * Try:       weft bench lrn2d:fwd:f32:nchw:n8c256h56w56:size5 lrn2d:bwd:f32:nchw:n8c256h56w56:size5 */
#include <float.h>

#include "cpu/frame.h"
#include "cpu/simd/math.h"

enum { STRIP = 64, RING_MOST = 256, AHEAD = 8 }; /* pixels of a strip; AHEAD: channels that are fetched early */

typedef struct params {
    int64_t slots, floats; /* floats of scratch per slot */
    int64_t before, after; /* channels of a window around its own */
} params;

typedef struct task {
    const weft__exec *e;
    params s;
    const void *src, *diff_dst;
    void *out;
    int64_t pixels; /* of an image */
    float k, alpha, beta, slope;
    int dtype, roots; /* how q^beta is made. 4: 1 / q^beta, of inverse roots; 2 and 1: of roots; 0: q; 3: exp and log */
    bool stream;
} task;

VF_INLINE vf power(const task *q, vf v) {
    if (q->roots == 0) return v;
    if (q->roots == 3) return vf_exp(vf_mul(vf_set1(q->beta), vf_log(v)));
    const vf root = vf_sqrt(v);
    return q->roots == 1 ? root : vf_mul(root, vf_sqrt(root));
}

VF_INLINE vf load(const void *p, int64_t at, int64_t n, const int dtype) {
    return n >= VF_LANES ? vf_load_as(dtype, p, at) : vf_load_count_as(dtype, p, at, n);
}
VF_INLINE void store(void *p, int64_t at, vf v, int64_t n, bool stream, const int dtype) {
    if (stream)
        vf_stream_as(dtype, p, at, v);
    else if (n >= VF_LANES)
        vf_store_as(dtype, p, at, v);
    else
        vf_store_count_as(dtype, p, at, v, n);
}

/* The sum of count vectors, a step of floats apart. */
VF_INLINE vf sum_of(const float *at, int64_t count, int64_t step) {
    vf sum = vf_load(at);
    for (int64_t i = 1; i < count; i++) sum = vf_add(sum, vf_load(at + i * step));
    return sum;
}

VF_INLINE vf scale_of(const task *q, vf squares) { return vf_fma(vf_set1(q->alpha), squares, vf_set1(q->k)); }

/* 1 / sqrt(v) of positive normal numbers: an estimate of 12 or 14 bits, and one step to the root. */
VF_INLINE vf inverse_root(vf v) {
#if defined(WEFT__VECTORS_AVX512)
    const vf near = _mm512_rsqrt14_ps(v);
#elif defined(WEFT__VECTORS_AVX2)
    const vf near = _mm256_rsqrt_ps(v);
#else
    const vf near = vf_div(vf_set1(1), vf_sqrt(v));
#endif
    return vf_fma(vf_mul(near, vf_set1(0.5f)), vf_fnma(vf_mul(v, near), near, vf_set1(1)), near);
}

/* q^-0.75, and q^-0.5; both 0 where q is infinite. */
VF_INLINE vf inverse_power(vf scale, vf *root) {
    const vf r = inverse_root(scale), all = vf_mul(r, inverse_root(vf_mul(scale, r)));
    const vmask infinite = vf_eq(scale, vf_set1(INFINITY));
    *root = vf_select(infinite, vf_zero(), r);
    return vf_select(infinite, vf_zero(), all);
}

/* v / q^beta */
VF_INLINE vf divided(const task *q, vf v, vf scale) {
    vf root;
    return q->roots == 4 ? vf_mul(v, inverse_power(scale, &root)) : vf_div(v, power(q, scale));
}

/* dy / q^beta, and the term that goes to the neighbours. */
VF_INLINE vf terms(const task *q, vf x, vf dy, vf scale, vf *term) {
    if (q->roots != 4) {
        const vf own = vf_div(dy, power(q, scale));
        *term = vf_div(vf_mul(own, x), scale);
        return own;
    }
    vf root;
    const vf own = vf_mul(dy, inverse_power(scale, &root));
    *term = vf_mul(vf_mul(own, x), vf_mul(root, root));
    return own;
}

/* ---------------------------------------------------------------- channels-first */
/* n pixels from element `at` of channel 0 on. The ring has a row of a strip for each channel of a window: squares,
 * then terms, then what is ready of the result. Channel j comes in, c = j - after has all squares of its window, and in
 * the gradient b = c - before all terms of the windows that hold it. */
VF_INLINE void strip(const task *q, float *ring, int64_t at, int64_t n, const bool bwd, const int dtype) {
    const int64_t before = q->s.before, after = q->s.after, rows = before + after + 1, channels = q->e->p->c;
    float *terms_of = ring + rows * STRIP, *own_of = terms_of + rows * STRIP;
    memset(ring, 0, (size_t)((bwd ? 3 : 1) * rows * STRIP) * sizeof(float));
    for (int64_t j = 0; j < channels + after + (bwd ? before : 0); j++) {
        const int64_t c = j - after, b = c - before;
        float *squares = ring + j % rows * STRIP, *term = terms_of + (c + rows) % rows * STRIP;
        float *own = own_of + (c + rows) % rows * STRIP;
        for (int64_t line = 0; line < n * vf_size_of(dtype); line += 64) {
            const int64_t next = (at + (j + AHEAD) * q->pixels) * vf_size_of(dtype) + line;
            vf_prefetch(q->src, next);
            if (bwd) vf_prefetch(q->diff_dst, next);
        }
        for (int64_t x = 0; x < n; x += VF_LANES) {
            vf v = vf_zero();
            if (j < channels) v = load(q->src, at + j * q->pixels + x, n - x, dtype);
            vf_store(squares + x, vf_mul(v, v));
            if (c < 0) continue;
            vf t = vf_zero();
            if (c < channels) {
                const int64_t from = at + c * q->pixels + x;
                const vf scale = scale_of(q, sum_of(ring + x, rows, STRIP)), xc = load(q->src, from, n - x, dtype);
                if (!bwd)
                    store(q->out, from, divided(q, xc, scale), n - x, q->stream, dtype);
                else
                    vf_store(own + x, terms(q, xc, load(q->diff_dst, from, n - x, dtype), scale, &t));
            }
            if (!bwd) continue;
            vf_store(term + x, t);
            if (b < 0 || b >= channels) continue;
            const int64_t to = at + b * q->pixels + x;
            const vf neighbours =
                vf_mul(vf_set1(q->slope), vf_mul(load(q->src, to, n - x, dtype), sum_of(terms_of + x, rows, STRIP)));
            store(q->out, to, vf_sub(vf_load(own_of + b % rows * STRIP + x), neighbours), n - x, q->stream, dtype);
        }
    }
}

/* ---------------------------------------------------------------- channels-last */
/* The pixel whose channels begin at element `at`. Rows have zeros for `rows` places before and behind. */
VF_INLINE void pixel(const task *q, float *line, int64_t at, const bool bwd, const int dtype) {
    const int64_t before = q->s.before, after = q->s.after, rows = before + after + 1, channels = q->e->p->c;
    const int64_t length = cpu_round_up(channels, VF_LANES) + 2 * rows + VF_LANES;
    float *squares = line + rows, *term = squares + length, *own = term + length;
    for (int64_t c = 0; c < channels; c += VF_LANES) {
        const vf v = load(q->src, at + c, channels - c, dtype);
        vf_store(squares + c, vf_mul(v, v));
    }
    for (int64_t c = 0; c < channels; c += VF_LANES) {
        const vf scale = scale_of(q, sum_of(squares + c - before, rows, 1)),
                 x = load(q->src, at + c, channels - c, dtype);
        vf t = vf_zero();
        if (!bwd)
            store(q->out, at + c, divided(q, x, scale), channels - c, q->stream, dtype);
        else
            vf_store(own + c, terms(q, x, load(q->diff_dst, at + c, channels - c, dtype), scale, &t));
        if (bwd) vf_store(term + c, vf_select(vm_first(channels - c), t, vf_zero()));
    }
    for (int64_t c = 0; bwd && c < channels; c += VF_LANES) {
        const vf x = load(q->src, at + c, channels - c, dtype);
        const vf neighbours = vf_mul(vf_set1(q->slope), vf_mul(x, sum_of(term + c - after, rows, 1)));
        store(q->out, at + c, vf_sub(vf_load(own + c), neighbours), channels - c, q->stream, dtype);
    }
}

/* ---------------------------------------------------------------- slots */
static bool is_first(const weft_problem *p) { return !cpu_layout_refusal(p, WEFT_LAYOUT_FIRST); }

static int64_t items_of(const weft_problem *p) {
    const int64_t pixels = p->in[0] * p->in[1] * p->in[2];
    return p->n * (is_first(p) ? cpu_ceil(pixels, STRIP) : pixels);
}

VF_INLINE void slot_as(const task *q, int64_t slot, const bool bwd, const int dtype) {
    const weft_problem *p = q->e->p;
    const bool first = is_first(p);
    float *scratch = (float *)q->e->workspace + slot * q->s.floats;
    memset(scratch, 0, (size_t)q->s.floats * sizeof(float));
    const int64_t strips = cpu_ceil(q->pixels, STRIP), items = items_of(p);
    for (int64_t i = cpu_first(items, q->s.slots, slot); i < cpu_first(items, q->s.slots, slot + 1); i++) {
        const int64_t x = i % strips * STRIP;
        if (first)
            strip(q, scratch, i / strips * p->c * q->pixels + x, WEFT__MIN(q->pixels - x, STRIP), bwd, dtype);
        else
            pixel(q, scratch, i * p->c, bwd, dtype);
    }
    if (q->stream) vf_stream_end();
}

#define SLOT(pass, type)                                                        \
    static void slot_##pass##_##type(void *q, int64_t slot) {                   \
        slot_as(q, slot, WEFT_PASS_##pass == WEFT_PASS_BWD, WEFT_DTYPE_##type); \
    }
SLOT(FWD, F32)
SLOT(FWD, F16)
SLOT(FWD, BF16)
SLOT(BWD, F32)
SLOT(BWD, F16)
SLOT(BWD, BF16)
#define TYPES_OF(pass) \
    {[WEFT_DTYPE_F32] = slot_##pass##_F32, [WEFT_DTYPE_F16] = slot_##pass##_F16, [WEFT_DTYPE_BF16] = slot_##pass##_BF16}
static const weft_task slots[2][WEFT_DTYPE_COUNT] = {TYPES_OF(FWD), TYPES_OF(BWD)};

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool bwd = p->pass == WEFT_PASS_BWD, first = is_first(p);
    const double alpha = p->real[WEFT_LRN_ALPHA] / (double)p->attr[WEFT_LRN_SIZE], beta = p->real[WEFT_LRN_BETA];
    task q = {.e = e, .s = *(const params *)e->params, .src = e->ptr[WEFT_ROLE_SRC], .dtype = p->tensor[0].dtype};
    q.diff_dst = bwd ? e->ptr[WEFT_ROLE_DIFF_DST] : NULL;
    q.out = e->ptr[bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.pixels = p->in[0] * p->in[1] * p->in[2];
    q.k = (float)p->real[WEFT_LRN_K], q.alpha = (float)alpha, q.beta = (float)beta, q.slope = (float)(2 * alpha * beta);
    q.roots = beta == 0.75 ? 2 : beta == 0.5 ? 1 : beta == 1 ? 0 : 3;
    if (q.roots == 2 && q.k >= FLT_MIN && alpha >= 0) q.roots = 4;
    /* vectors are streamed where all of them are whole and begin at a multiple of their size */
    const int64_t size = vf_size_of(q.dtype), run = (first ? q.pixels : p->c) * size;
    q.stream =
        cpu_streams(e->hw, (double)(p->n * p->c * q.pixels * size)) && run % 64 == 0 && (uintptr_t)q.out % 64 == 0;
    weft__parallel(e->ctx, q.s.slots, slots[bwd][q.dtype], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const int64_t size = p->attr[WEFT_LRN_SIZE], most = p->c - 1;
    const bool bwd = p->pass == WEFT_PASS_BWD, first = is_first(p);
    if (!weft__all_dtype(p, p->tensor[0].dtype)) return "tensors of several data types";
    if (!first && cpu_layout_refusal(p, WEFT_LAYOUT_LAST)) return "tensors are not dense in one order";
    params *s = WEFT__PARAMS(params, d);
    s->before = WEFT__MIN(size / 2, most), s->after = WEFT__MIN((size - 1) / 2, most);
    const int64_t rows = s->before + s->after + 1;
    if (rows > RING_MOST) return "the window is over 256 channels";
    const int64_t line = first ? rows * STRIP : cpu_round_up(p->c, VF_LANES) + 2 * rows + VF_LANES;
    if (line > 1 << 20) return "over 2^20 channels";
    s->floats = cpu_round_up(3 * line, 16);
    s->slots = cpu_slots(items_of(p), weft__bytes(p));
    d->workspace = (size_t)(s->slots * s->floats) * sizeof(float);
    const double vectors = weft__numel(p->tensor) / (double)(first ? VF_LANES : WEFT__MIN(p->c, VF_LANES));
    const bool easy = p->real[WEFT_LRN_BETA] == 0.75 || p->real[WEFT_LRN_BETA] == 0.5;
    const double ns = vectors * ((bwd ? 0.8 : 0.4) * (double)rows + (easy ? 10 : 20) * (bwd ? 1.6 : 1));
    d->ns = cpu_work_cost(p, hw, ns);
    return NULL;
}

WEFT__KERNEL(lrn) = {
    .name = WEFT__NAME("lrn_ring"),
    .version = 1,
    .op = WEFT_OP_LRN,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .plan = plan,
    .run = run,
};
