/* Causal convolution of sequences whose channels lie side by side: forward, and every gradient in one pass; widths to
 * 8, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      as in first.cu
 * Blocking:  a thread has VEC channels, 8 bytes, and walks a run of tokens forwards: the k - 1 tokens before, weights
 *            and sums stay in registers, tokens come through shared memory by asynchronous copies, AHEAD in a stage and
 *            STAGES - 1 stages under way. Gradients walk k - 1 tokens further than their run, for the dz that the last
 *            of its tokens need, and write diff_src k - 1 tokens behind
 * Sums:      in registers over a run, then over the runs of a block; a second launch adds the blocks up in their order.
 *            Runs follow from the problem
 * Edges:     tokens outside are 0; under strict math and with seq_idx such taps are left out
 * Traffic:   src and dst once; src, diff_dst and diff_src once; k - 1 tokens of a run again, from L2
 * Roofline:  bandwidth. Measured on an H200, share of a copy: bf16 forward 0.85 to 0.91, gradients 0.77 to 0.88 (16
 *            sequences of 512 tokens: 0.73 and 0.61); f32 0.88 and 0.87. Loads into registers reached 0.76 to 0.86 and
 *            0.54 to 0.75; vectors of 4 bytes are slower by 7%
 * Try:       weft bench causal_conv1d:bwd:bf16:nwc:n8c4096w2048:k4:bias+silu@cuda */
#include "causal_conv/causal.h"

#ifndef __CUDACC_RTC__
typedef struct tile {
    int vec, lanes, dense; /* dense: weights and bias of a thread are whole vectors */
    int32_t run;
    int64_t slices, tiles; /* blocks along the tokens of a sequence, and along its channels */
    uint32_t blocks;
} tile;

/* Runs so short that many threads are busy, and so long that what a run repeats, k - 1 tokens, weighs little. */
static int32_t run_of(const weft_problem *p, int vec) {
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t work = p->n * p->in[2] * (p->c / vec), run = fwd ? work >> 20 : work >> 18, least = fwd ? 32 : 64;
    return (int32_t)WEFT__MAX(WEFT__MIN(cuda_ceil(run, 8) * 8, 256), least);
}

static bool is_dense(const weft_problem *p, int64_t vec) {
    const weft_tensor *w = weft__tensor(p, WEFT_ROLE_WEIGHTS), *b = weft__tensor(p, WEFT_ROLE_BIAS);
    const int64_t k = p->kernel[2], size = (int64_t)weft__dtype_size(w->dtype);
    if (w->align % 16 || w->strides[0] != k || (k > 1 && w->strides[4] != 1) || vec * k * size % 16) return false;
    return !b || (b->align % 16 == 0 && b->strides[0] == 1 && vec * (int64_t)weft__dtype_size(b->dtype) % 8 == 0);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = causal_refusal(p, 1);
    const bool fwd = p->pass == WEFT_PASS_FWD;
    (void)variant;
    if (refusal) return refusal;
    if (p->kernel[2] > CAUSAL_NARROW) return "the window is over 8 tokens";
    t->vec = causal_vec(p, 1, 8);
    while (p->c % t->vec) t->vec /= 2;
    t->lanes = WEFT__MIN(cuda_power(p->c / t->vec), 32);
    t->tiles = cuda_ceil(p->c / t->vec, t->lanes);
    t->run = run_of(p, t->vec);
    t->dense = is_dense(p, t->vec);
    t->slices = cuda_ceil(cuda_ceil(p->in[2], t->run), CAUSAL_THREADS / t->lanes);
    const int64_t blocks = t->tiles * t->slices * p->n;
    if (blocks > INT32_MAX || t->tiles > INT32_MAX) return "2^31 blocks or more";
    t->blocks = (uint32_t)blocks;
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(p->n * t->slices * p->c * (p->kernel[2] + 1)) * sizeof(float);
    const bool half = weft__dtype_size(weft__tensor(p, WEFT_ROLE_SRC)->dtype) == 2;
    d->ns = cuda_ns(hw, weft__bytes(p), t->vec > 1 || !half ? 0.8 : 0.4, fwd ? 1 : 2);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    causal_defines(p, text);
    weft__put(text, " -DVEC=%d -DLX=%d -DDENSE=%d", t->vec, t->lanes, t->dense);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    causal_args a = causal_args_of(e);
    a.run = t->run;
    a.slices = t->slices;
    const weft__launch launch = {.grid = {t->blocks, 1, 1}, .block = {CAUSAL_THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return causal_mode(e->p) < MODE_WEIGHTS ? WEFT_OK : causal_finish(e, 1, a, a.n * t->slices);
}

CAUSAL_KERNELS("causal_conv/last.cu", nwc, "nwc");

#else
enum { AHEAD = 4, STAGES = 4, RUNS = CAUSAL_THREADS / LX };

struct place { /* VEC channels from c on, of a run of sequence n */
    int64_t n, c, slice;
    int begin, end; /* tokens; none where they are equal */
    float weight[K][VEC], bias[VEC];
};

static __device__ __forceinline__ void open_channels(const causal_args &a, place &p) {
    pack<WEIGHTS_T, DENSE ? VEC * K : 1> w;
    if (DENSE) load_raw(row_of<WEIGHTS_T>(a.weights, 0, p.c), w);
    if (DENSE && a.bias.at) load(row_of<BIAS_T>(a.bias, 0, p.c), p.bias);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        p.bias[i] = !DENSE ? bias_at(a, p.c + i) : a.bias.at ? p.bias[i] * SCALE : 0;
#pragma unroll
        for (int b = 0; b < K; b++)
            p.weight[b][i] = DENSE ? widen(w.v[DENSE ? i * K + K - 1 - b : 0]) * SCALE : weight_at(a, p.c + i, b);
    }
}

static __device__ __forceinline__ place open_run(const causal_args &a) {
    place p;
    const uint32_t tiles = (uint32_t)((a.c / VEC + LX - 1) / LX);
    const uint32_t slice = blockIdx.x / tiles, n = slice / (uint32_t)a.slices;
    p.n = n;
    p.slice = slice;
    p.c = ((int64_t)(blockIdx.x - slice * tiles) * LX + threadIdx.x % LX) * VEC;
    const int64_t first = ((int64_t)(slice - n * (uint32_t)a.slices) * RUNS + threadIdx.x / LX) * a.run;
    p.begin = (int)(first < a.w ? first : a.w);
    p.end = p.c < a.c ? min(p.begin + a.run, a.w) : p.begin;
    if (p.begin < p.end) open_channels(a, p);
    return p;
}

template <class E> static __device__ __forceinline__ E *token_at(const causal_view &v, const place &p, int t) {
    return (E *)v.at + p.n * v.by_n + p.c * v.by_c + t * v.by_t;
}

/* A token of the state, or of its gradients: index t + k - 1, whatever its strides. */
static __device__ __forceinline__ void load_state(const causal_view &v, const place &p, int at, float (&to)[VEC]) {
    const T *from = token_at<T>(v, p, at);
#pragma unroll
    for (int i = 0; i < VEC; i++) to[i] = widen(from[i * v.by_c]);
}
static __device__ __forceinline__ void store_state(const causal_view &v, const place &p, int at,
                                                   const float (&from)[VEC]) {
    T *to = token_at<T>(v, p, at);
#pragma unroll
    for (int i = 0; i < VEC; i++) to[i * v.by_c] = narrow<T>(from[i]);
}

/* The tokens in registers: the k - 1 before t, and AHEAD from t on. */
struct tokens {
    float v[K - 1 + AHEAD][VEC];
    int seq[SEQ ? K - 1 + AHEAD : 1];
};

static __device__ __forceinline__ void open_tokens(const causal_args &a, const place &p, tokens &x) {
#pragma unroll
    for (int k = 0; k < K - 1; k++) {
        const int t = p.begin - (K - 1) + k;
#pragma unroll
        for (int i = 0; i < VEC; i++) x.v[k][i] = 0;
        if (t >= 0)
            load(token_at<T>(a.src, p, t), x.v[k]);
        else if (HAS_H0)
            load_state(a.h0, p, t + K - 1, x.v[k]);
        if (SEQ) x.seq[SEQ ? k : 0] = seq_at(a, p.n, t);
    }
}

static __device__ __forceinline__ void move_tokens(tokens &x) {
#pragma unroll
    for (int k = 0; k < K - 1; k++) {
#pragma unroll
        for (int i = 0; i < VEC; i++) x.v[k][i] = x.v[k + AHEAD][i];
        if (SEQ) x.seq[SEQ ? k : 0] = x.seq[SEQ ? k + AHEAD : 0];
    }
}

/* Does token t, the one at `at`, see the one `back` before it? */
static __device__ __forceinline__ bool sees(const tokens &x, int t, int at, int back) {
    if (SEQ) return x.seq[SEQ ? at : 0] == x.seq[SEQ ? at - back : 0];
    return !CAREFUL || HAS_H0 || t - back >= 0;
}

static __device__ __forceinline__ void sums_of(const place &p, const tokens &x, int t, int at, float (&z)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i++) z[i] = p.bias[i];
#pragma unroll
    for (int b = 0; b < K; b++)
        if (sees(x, t, at, b))
#pragma unroll
            for (int i = 0; i < VEC; i++) z[i] = fmaf(p.weight[b][i], x.v[at - b][i], z[i]);
}

/* Tokens on their way through shared memory, AHEAD of them in a stage; every thread has its own. */
typedef typename access<VEC * sizeof(T)>::word word;
struct ring {
    word (*slots)[AHEAD][CAUSAL_THREADS];
    /* Tokens t .. t + AHEAD - 1, the first one at `from`; zeros from token `end` on. */
    __device__ __forceinline__ void fill(int stage, const T *from, int64_t step, int t, int end) const {
#pragma unroll
        for (int u = 0; u < AHEAD; u++, from += step) {
            word *to = &slots[stage][u][threadIdx.x];
            if (sizeof(word) >= 4)
                ptx_copy_part<sizeof(word) >= 4 ? (int)sizeof(word) : 4>(to, from, t + u < end);
            else
                *to = t + u < end ? *(const word *)from : word();
        }
    }
    __device__ __forceinline__ void take(int stage, int u, float (&to)[VEC]) const {
        pack<T, VEC> raw;
        raw.word = slots[stage][u][threadIdx.x];
        widen_all(raw, to);
    }
};

/* ---------------------------------------------------------------- forward */
static __device__ __forceinline__ void keep_last(const causal_args &a, const place &p) {
    for (int k = 0; k < K - 1; k++) {
        const int from = a.w - (K - 1) + k;
        float v[VEC] = {};
        if (from >= 0)
            load(token_at<T>(a.src, p, from), v);
        else if (HAS_H0)
            load_state(a.h0, p, from + K - 1, v);
        store_state(a.hn, p, k, v);
    }
}

#if MODE == 0
/* AHEAD tokens from t on; WHOLE: the run has them all. */
template <bool WHOLE>
static __device__ __forceinline__ void forward(const causal_args &a, const place &p, int t, const ring &src, int stage,
                                               T *dst, tokens &x) {
#pragma unroll
    for (int u = 0; u < AHEAD; u++, dst += a.dst.by_t) {
        if (!WHOLE && t + u >= p.end) break;
        src.take(stage, u, x.v[K - 1 + u]);
        if (SEQ) x.seq[SEQ ? K - 1 + u : 0] = seq_at(a, p.n, t + u);
        float z[VEC];
        sums_of(p, x, t + u, K - 1 + u, z);
        const bool padding = SEQ && x.seq[SEQ ? K - 1 + u : 0] < 0;
#pragma unroll
        for (int i = 0; i < VEC; i++) z[i] = padding ? 0 : activate(z[i]);
        store(dst, z);
    }
    move_tokens(x);
}

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_fwd(const __grid_constant__ causal_args a) {
    __shared__ word slots[STAGES][AHEAD][CAUSAL_THREADS];
    const place p = open_run(a);
    if (p.begin >= p.end) return;
    const ring src = {slots};
    const T *from = token_at<T>(a.src, p, p.begin);
    T *dst = token_at<T>(a.dst, p, p.begin);
    int next = p.begin; /* the first token that is not on its way */
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++, next += AHEAD, from += AHEAD * a.src.by_t) {
        src.fill(s, from, a.src.by_t, next, p.end);
        ptx_copy_commit();
    }
    tokens x;
    open_tokens(a, p, x);
    for (int t = p.begin, stage = 0; t < p.end; t += AHEAD, stage = (stage + 1) % STAGES) {
        src.fill((stage + STAGES - 1) % STAGES, from, a.src.by_t, next, p.end);
        ptx_copy_commit();
        ptx_copy_wait<STAGES - 1>();
        if (t + AHEAD <= p.end)
            forward<true>(a, p, t, src, stage, dst, x);
        else
            forward<false>(a, p, t, src, stage, dst, x);
        next += AHEAD;
        from += AHEAD * a.src.by_t;
        dst += AHEAD * a.dst.by_t;
    }
    if (HAS_HN && p.end == a.w) keep_last(a, p);
}

/* ---------------------------------------------------------------- gradients */
#else
struct totals {
    float weight[K][VEC], bias[VEC];
};

/* dz of token t; 0 where there is none. */
static __device__ __forceinline__ void diff_sums_of(const place &p, const tokens &x, int t, int at,
                                                    const float (&dy)[VEC], float (&dz)[VEC]) {
    float z[VEC];
    if (SILU) sums_of(p, x, t, at, z);
#pragma unroll
    for (int i = 0; i < VEC; i++) dz[i] = dy[i] * (SILU ? slope(z[i]) : 1.0f);
}

static __device__ __forceinline__ void add_up(const tokens &x, int t, int at, const float (&dz)[VEC], totals &s) {
#pragma unroll
    for (int i = 0; i < VEC; i++) s.bias[i] += dz[i];
#pragma unroll
    for (int b = 0; b < K; b++)
        if (sees(x, t, at, b))
#pragma unroll
            for (int i = 0; i < VEC; i++) s.weight[b][i] = fmaf(dz[i], x.v[at - b][i], s.weight[b][i]);
}

/* diff_src of the token k - 1 before t, at `place`; before the first token, diff_h0. `at`: its dz. WHOLE: the run has
 * it, and tokens behind its window. */
template <bool WHOLE>
static __device__ __forceinline__ void put_diff(const causal_args &a, const place &p, const tokens &x,
                                                const float (&dz)[K - 1 + AHEAD][VEC], int t, int at, T *place) {
    const int to = t - (K - 1), held = to - a.w + K - 1;
    if (!WHOLE && (to >= a.w || (to < p.begin && (to >= 0 || !HAS_H0)))) return;
    float dx[VEC] = {};
#pragma unroll
    for (int b = 0; b < K; b++) {
        if (SEQ && (x.seq[SEQ ? at + b : 0] != x.seq[SEQ ? at : 0] || x.seq[SEQ ? at : 0] < 0)) continue;
        if (!WHOLE && STRICT && (to + b < 0 || to + b >= a.w)) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) dx[i] = fmaf(p.weight[b][i], dz[at + b][i], dx[i]);
    }
    if (!WHOLE && a.diff_hn.at && held >= 0) {
        float more[VEC];
        load_state(a.diff_hn, p, held, more);
#pragma unroll
        for (int i = 0; i < VEC; i++) dx[i] += more[i];
    }
    if (WHOLE || to >= 0)
        store(place, dx);
    else
        store_state(a.diff_h0, p, to + K - 1, dx);
}

/* AHEAD tokens from t on; to: of the one that is written with the first. WHOLE: they and the k - 1 before them are of
 * the run. */
template <bool WHOLE>
static __device__ __forceinline__ void backward(const causal_args &a, const place &p, int t, const ring &src,
                                                const ring &diff_dst, int stage, T *to, tokens &x,
                                                float (&dz)[K - 1 + AHEAD][VEC], totals &s) {
    enum { OWN = K - 1 };
    const int stop = DATA ? p.end + K - 1 : p.end;
#pragma unroll
    for (int u = 0; u < AHEAD; u++, to += a.diff_src.by_t) {
        const int now = t + u;
        if (!WHOLE && now >= stop) break;
        if (SEQ) x.seq[SEQ ? OWN + u : 0] = seq_at(a, p.n, now);
        const bool there = (WHOLE || now < a.w) && !(SEQ && x.seq[SEQ ? OWN + u : 0] < 0);
        float diff[VEC];
        src.take(stage, u, x.v[OWN + u]);
        diff_dst.take(stage, u, diff);
        if (!WHOLE || SEQ)
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                if (now >= a.w) x.v[OWN + u][i] = 0;
                dz[OWN + u][i] = 0;
            }
        if (there) diff_sums_of(p, x, now, OWN + u, diff, dz[OWN + u]);
        if (WEIGHTS && there && (WHOLE || now < p.end)) add_up(x, now, OWN + u, dz[OWN + u], s);
        if (DATA) put_diff<WHOLE>(a, p, x, dz, now, u, to);
    }
    move_tokens(x);
#pragma unroll
    for (int k = 0; k < K - 1; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++) dz[k][i] = dz[k + AHEAD][i];
}

/* The sums of the block's runs, a tap at a time. */
static __device__ __forceinline__ void put_totals(const causal_args &a, const place &p, const totals &s) {
    __shared__ float scratch[CAUSAL_THREADS * VEC];
    const int64_t first = p.c - threadIdx.x % LX * VEC;
#pragma unroll
    for (int b = 0; b <= K; b++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < VEC; i++) scratch[threadIdx.x * VEC + i] = b < K ? s.weight[b < K ? b : 0][i] : s.bias[i];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < LX * VEC; i += CAUSAL_THREADS) {
            float sum = 0;
#pragma unroll
            for (int y = 0; y < RUNS; y++) sum += scratch[y * LX * VEC + i];
            if (first + i < a.c) a.partial[(p.slice * a.c + first + i) * (K + 1) + b] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_bwd(const __grid_constant__ causal_args a) {
    __shared__ word slots[2][STAGES][AHEAD][CAUSAL_THREADS];
    const place p = open_run(a);
    totals s = {};
    if (p.begin < p.end) {
        const ring src = {slots[0]}, diff_dst = {slots[1]};
        const int stop = DATA ? p.end + K - 1 : p.end, last = min(stop, a.w);
        const T *from = token_at<T>(a.src, p, p.begin), *dy = token_at<T>(a.diff_dst, p, p.begin);
        T *to = token_at<T>(a.diff_src, p, p.begin - (K - 1));
        int next = p.begin; /* the first token that is not on its way */
        const auto ahead = [&](int stage) {
            src.fill(stage, from, a.src.by_t, next, last);
            diff_dst.fill(stage, dy, a.diff_dst.by_t, next, last);
            ptx_copy_commit();
            next += AHEAD;
            from += AHEAD * a.src.by_t;
            dy += AHEAD * a.diff_dst.by_t;
        };
#pragma unroll
        for (int k = 0; k < STAGES - 1; k++) ahead(k);
        tokens x;
        float dz[K - 1 + AHEAD][VEC] = {};
        open_tokens(a, p, x);
        for (int t = p.begin, stage = 0; t < stop; t += AHEAD, stage = (stage + 1) % STAGES) {
            ahead((stage + STAGES - 1) % STAGES);
            ptx_copy_wait<STAGES - 1>();
            if (t >= p.begin + K - 1 && t + AHEAD <= p.end)
                backward<true>(a, p, t, src, diff_dst, stage, to, x, dz, s);
            else
                backward<false>(a, p, t, src, diff_dst, stage, to, x, dz, s);
            to += AHEAD * a.diff_src.by_t;
        }
    }
    if (WEIGHTS) put_totals(a, p, s);
}
#endif
#endif
