/* Causal convolution of sequences whose channels lie side by side, windows of 9 to 128 tokens: forward, and every
 * gradient in one pass; f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      as in first.cu
 * Blocking:  a block has LX channels and walks a run of tokens, TILE at a time: tokens of a tile, those before it and
 *            weights lie in shared memory as f32. A thread has one channel and OUT tokens, TAPS taps at a time from a
 *            window in registers. Gradients make dz of the tile and of the tokens behind it first, then diff_src from
 *            it; of the weights a thread has TAPS taps of one channel, over all tokens of the run
 * Sums:      of a tap in one register over a run; a second launch adds the runs up in their order
 * Edges:     tokens outside are 0; under strict math and with seq_idx such taps are left out
 * Traffic:   each tensor once, and the tokens around a tile again, from L2
 * Roofline:  multiply-adds: two operations in shared memory for 16 of them
 * Try:       weft bench causal_conv1d:bwd:f32:nwc:n1c1024w4096:k64:bias+silu@cuda */
#include "causal_conv/causal.h"

enum { WIDE_THREADS = 256, TAPS = 8, OUT = 16 };

#ifndef __CUDACC_RTC__
typedef struct tile {
    int lanes, tokens; /* channels of a block; tokens of a tile */
    int32_t run;
    int64_t slices, tiles; /* blocks along the tokens of a sequence, and along its channels */
    uint32_t blocks;
    size_t smem;
} tile;

/* Tokens before the first that have results: of the state, whose gradients are made as theirs are. */
static int64_t lead_of(const weft_problem *p) {
    return p->pass != WEFT_PASS_FWD && p->attr[WEFT_CAUSAL_H0] ? cuda_ceil(p->kernel[2], OUT) * OUT : 0;
}

static size_t smem_of(const weft_problem *p, const tile *t) {
    const int64_t before = cuda_ceil(p->kernel[2], OUT) * OUT,
                  behind = p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_DATA ? before : 0,
                  x = before + t->tokens + behind, dz = p->pass == WEFT_PASS_FWD ? 0 : t->tokens + behind;
    return (size_t)((x + dz + p->kernel[2]) * t->lanes + x) * sizeof(float);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = causal_refusal(p, 1);
    const bool fwd = p->pass == WEFT_PASS_FWD;
    (void)variant;
    if (refusal) return refusal;
    if (p->kernel[2] <= CAUSAL_NARROW) return "the window is of 8 tokens or less";
    t->lanes = WEFT__MIN(cuda_power(p->c), 32);
    t->tokens = 128;
    t->tiles = cuda_ceil(p->c, t->lanes);
    t->smem = smem_of(p, t);
    if (t->smem > hw->gpu->smem) return "too little shared memory";
    const int64_t tokens = lead_of(p) + p->in[2], all = p->n * t->tiles * cuda_ceil(tokens, t->tokens);
    t->run = (int32_t)(WEFT__MAX(WEFT__MIN(all >> 10, 16), 1) * t->tokens);
    t->slices = WEFT__MAX(cuda_ceil(tokens, t->run), 1);
    const int64_t blocks = t->tiles * t->slices * p->n;
    if (blocks > INT32_MAX || t->tiles > INT32_MAX) return "2^31 blocks or more";
    t->blocks = (uint32_t)blocks;
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(p->n * t->slices * p->c * (p->kernel[2] + 1)) * sizeof(float);
    d->ns = cuda_ns(hw, weft__bytes(p), 0.5, fwd ? 1 : 2) + weft__flops(p) / (0.2 * hw->gpu->gflops);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    causal_defines(p, text);
    weft__put(text, " -DLX=%d -DTILE=%d", t->lanes, t->tokens);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    causal_args a = causal_args_of(e);
    a.run = t->run;
    a.slices = t->slices;
    const weft__launch launch = {.grid = {t->blocks, 1, 1}, .block = {WIDE_THREADS, 1, 1}, .smem = t->smem};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return causal_mode(e->p) < MODE_WEIGHTS ? WEFT_OK : causal_finish(e, 1, a, a.n * t->slices);
}

CAUSAL_KERNELS("causal_conv/wide.cu", wide, "nwc_wide");

#else
enum { RY = WIDE_THREADS / LX, BEFORE = (K + OUT - 1) / OUT * OUT, BEHIND = DATA ? BEFORE : 0 };
enum { ROWS = BEFORE + TILE + BEHIND, DZ_ROWS = FWD ? 0 : TILE + BEHIND, LEAD = !FWD && HAS_H0 ? BEFORE : 0 };
enum { STATE = NONE + 1, NEVER = NONE + 2 }; /* marks: a token of the state; one that sees none */

struct place { /* LX channels and a run of sequence n; this thread has channel c */
    int64_t n, c, slice;
    int lane, y;    /* y: which of the threads of the channel */
    int begin, end; /* tokens; begin is negative where gradients of the state come first */
    bool there;
    float bias;
    float *x, *dz, *weight; /* of this channel: the next row is LX further. x: from BEFORE tokens before the tile on */
    int *mark;              /* CAREFUL: tokens of one mark see each other; as x */
};

extern __shared__ float room[];

static __device__ __forceinline__ place open_run(const causal_args &a) {
    place p;
    const uint32_t tiles = (uint32_t)((a.c + LX - 1) / LX);
    const uint32_t slice = blockIdx.x / tiles, n = slice / (uint32_t)a.slices;
    p.n = n;
    p.slice = slice;
    p.lane = (int)threadIdx.x % LX;
    p.y = (int)threadIdx.x / LX;
    p.c = (int64_t)(blockIdx.x - slice * tiles) * LX + p.lane;
    p.there = p.c < a.c;
    p.begin = (int)(slice - n * (uint32_t)a.slices) * a.run - LEAD;
    p.end = min(p.begin + a.run, a.w);
    p.bias = p.there ? bias_at(a, p.c) : 0;
    p.x = room + p.lane;
    p.dz = p.x + ROWS * LX;
    p.weight = p.dz + DZ_ROWS * LX;
    p.mark = (int *)(room + (ROWS + DZ_ROWS + K) * LX);
    for (int b = p.y; b < K; b += RY) p.weight[b * LX] = p.there ? weight_at(a, p.c, b) : 0;
    return p;
}

template <class E> static __device__ __forceinline__ E *token_at(const causal_view &v, const place &p, int t) {
    return (E *)v.at + p.n * v.by_n + p.c * v.by_c + t * v.by_t;
}

/* Tokens of the tile at t0 and around it, and their marks. */
static __device__ __forceinline__ void open_tile(const causal_args &a, const place &p, int t0) {
    __syncthreads(); /* the tile before is done with */
#pragma unroll 4
    for (int i = p.y; i < ROWS; i += RY) {
        const int t = t0 - BEFORE + i;
        float v = 0;
        if (p.there && t >= 0 && t < a.w)
            v = widen(*token_at<const T>(a.src, p, t));
        else if (HAS_H0 && p.there && t < 0 && t >= 1 - K)
            v = widen(*token_at<const T>(a.h0, p, t + K - 1));
        p.x[i * LX] = v;
    }
    for (int i = (int)threadIdx.x; CAREFUL && i < ROWS; i += WIDE_THREADS) {
        const int t = t0 - BEFORE + i;
        const int mark = SEQ ? seq_at(a, p.n, t) : t >= 0 && t < a.w ? 0 : HAS_H0 && t < 0 && t >= 1 - K ? STATE : NONE;
        p.mark[i] = SEQ && mark < 0 ? NONE : mark;
    }
    __syncthreads();
}

/* A result sees the tokens whose mark is its own. The state is seen by all results, and has none itself. */
static __device__ __forceinline__ int as_token(int mark) { return HAS_H0 && mark == STATE ? 0 : mark; }
static __device__ __forceinline__ int as_result(int mark) { return mark < 0 ? NEVER : mark; }

/* Adds w[b] s[(i - b) STEP LX] to z[i] for N taps b and OUT tokens i. v[TAPS + i] holds s[i STEP LX]. STEP 1: s
 * are tokens and z results; -1: the other way round. */
template <int STEP> struct window {
    float v[TAPS + OUT];
    int mark[CAREFUL ? TAPS + OUT : 1], own[CAREFUL ? OUT : 1];

    static __device__ __forceinline__ int seen(int mark) { return STEP > 0 ? as_token(mark) : as_result(mark); }
    static __device__ __forceinline__ int sees(int mark) { return STEP > 0 ? as_result(mark) : as_token(mark); }

    template <int N>
    __device__ __forceinline__ void add(const float *s, const int *m, const float *weight, float (&z)[OUT]) {
#pragma unroll
        for (int j = TAPS - N + 1; j < TAPS; j++) {
            v[j] = s[(j - TAPS) * STEP * LX];
            if (CAREFUL) mark[CAREFUL ? j : 0] = seen(m[(j - TAPS) * STEP]);
        }
#pragma unroll
        for (int r = 0; r < N; r++) {
            const float w = weight[r * LX];
#pragma unroll
            for (int i = 0; i < OUT; i++)
                if (!CAREFUL || own[CAREFUL ? i : 0] == mark[CAREFUL ? TAPS + i - r : 0])
                    z[i] = fmaf(w, v[TAPS + i - r], z[i]);
        }
    }

    __device__ __forceinline__ void all(const float *s, const int *m, const float *weight, float (&z)[OUT]) {
#pragma unroll
        for (int i = 0; i < OUT; i++) {
            v[TAPS + i] = s[i * STEP * LX];
            if (CAREFUL) {
                mark[CAREFUL ? TAPS + i : 0] = seen(m[i * STEP]);
                own[CAREFUL ? i : 0] = sees(m[i * STEP]);
            }
        }
#pragma unroll 1
        for (int b = 0; b + TAPS <= K; b += TAPS, s -= TAPS * STEP * LX, m -= TAPS * STEP, weight += TAPS * LX) {
            add<TAPS>(s, m, weight, z);
            v[0] = s[-TAPS * STEP * LX];
            if (CAREFUL) mark[0] = seen(m[-TAPS * STEP]);
#pragma unroll
            for (int j = TAPS + OUT - 1; j >= TAPS; j--) {
                v[j] = v[j - TAPS];
                if (CAREFUL) mark[CAREFUL ? j : 0] = mark[CAREFUL ? j - TAPS : 0];
            }
        }
        if (K % TAPS) add<K % TAPS ? K % TAPS : 1>(s, m, weight, z);
    }
};

/* z of the OUT tokens from row `at` of the tile on. */
static __device__ __forceinline__ void sums_of(const place &p, int at, float (&z)[OUT]) {
    window<1> w;
#pragma unroll
    for (int i = 0; i < OUT; i++) z[i] = p.bias;
    w.all(p.x + (BEFORE + at) * LX, p.mark + BEFORE + at, p.weight, z);
}

static __device__ __forceinline__ bool is_padding(const place &p, int at) { return SEQ && p.mark[BEFORE + at] == NONE; }

/* ---------------------------------------------------------------- forward */
#if MODE == 0
static __device__ __forceinline__ void keep_last(const causal_args &a, const place &p) {
    for (int k = p.y; p.there && k < K - 1; k += RY) {
        const int from = a.w - (K - 1) + k;
        *token_at<T>(a.hn, p, k) = from >= 0 ? *token_at<const T>(a.src, p, from)
                                   : HAS_H0  ? *token_at<const T>(a.h0, p, from + K - 1)
                                             : narrow<T>(0);
    }
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS) causal_fwd(const __grid_constant__ causal_args a) {
    const place p = open_run(a);
    for (int t0 = p.begin; t0 < p.end; t0 += TILE) {
        open_tile(a, p, t0);
        for (int at = p.y * OUT; at < TILE && t0 + at < p.end; at += RY * OUT) {
            float z[OUT];
            sums_of(p, at, z);
            if (!p.there) continue;
#pragma unroll
            for (int i = 0; i < OUT; i++)
                if (t0 + at + i < a.w)
                    *token_at<T>(a.dst, p, t0 + at + i) = narrow<T>(is_padding(p, at + i) ? 0 : activate(z[i]));
        }
    }
    if (HAS_HN && p.end == a.w) keep_last(a, p);
}

/* ---------------------------------------------------------------- gradients */
#else
/* dz of the OUT tokens from row `at` on, 0 where there is no token, to shared memory; returns the sum of those of the
 * tile. */
static __device__ __forceinline__ float put_dz(const causal_args &a, const place &p, int t0, int at) {
    float z[OUT], sum = 0;
    if (SILU) sums_of(p, at, z);
#pragma unroll
    for (int i = 0; i < OUT; i++) {
        const int t = t0 + at + i;
        float dz = 0;
        if (p.there && t >= 0 && t < a.w && !is_padding(p, at + i))
            dz = widen(*token_at<const T>(a.diff_dst, p, t)) * (SILU ? slope(z[i]) : 1.0f);
        p.dz[(at + i) * LX] = dz;
        if (at < TILE && t < p.end) sum += dz;
    }
    return sum;
}

/* diff_src of the OUT tokens from row `at` on; before the first token, diff_h0. */
static __device__ __forceinline__ void put_diff(const causal_args &a, const place &p, int t0, int at) {
    float dx[OUT] = {};
    window<-1> w; /* dx[i] is of the token OUT - 1 - i */
    w.all(p.dz + (at + OUT - 1) * LX, p.mark + BEFORE + at + OUT - 1, p.weight, dx);
    if (!p.there) return;
#pragma unroll
    for (int i = 0; i < OUT; i++) {
        const int t = t0 + at + OUT - 1 - i, held = t - a.w + K - 1;
        if (t >= p.end || t < (HAS_H0 ? 1 - K : 0)) continue;
        if (a.diff_hn.at && held >= 0) dx[i] += widen(*token_at<const T>(a.diff_hn, p, held));
        if (t >= 0)
            *token_at<T>(a.diff_src, p, t) = narrow<T>(dx[i]);
        else
            *token_at<T>(a.diff_h0, p, t + K - 1) = narrow<T>(dx[i]);
    }
}

/* Adds dz[t] x[t - b] for the taps b = first .. first + TAPS - 1 over the tokens of the tile. */
static __device__ __forceinline__ void add_up(const place &p, int t0, int first, float (&sum)[TAPS]) {
    const float *x = p.x + (BEFORE - first) * LX;
    const int *mark = p.mark + BEFORE;
    float v[2 * TAPS]; /* v[TAPS + i]: of the token i, less `first` */
    int seen[CAREFUL ? 2 * TAPS : 1];
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        v[TAPS + j] = x[(j - TAPS) * LX];
        if (CAREFUL) seen[CAREFUL ? TAPS + j : 0] = as_token(mark[j - TAPS - first]);
    }
    const int count = min((int)TILE, p.end - t0);
#pragma unroll 1
    for (int at = 0; at < count; at += TAPS) {
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            v[j] = v[TAPS + j];
            if (CAREFUL) seen[CAREFUL ? j : 0] = seen[CAREFUL ? TAPS + j : 0];
        }
#pragma unroll
        for (int j = 0; j < TAPS; j++) {
            v[TAPS + j] = x[(at + j) * LX];
            if (CAREFUL) seen[CAREFUL ? TAPS + j : 0] = as_token(mark[at + j - first]);
        }
#pragma unroll
        for (int i = 0; i < TAPS; i++) {
            const float dz = at + i < count ? p.dz[(at + i) * LX] : 0;
            const int own = CAREFUL ? as_result(mark[at + i]) : 0;
#pragma unroll
            for (int r = 0; r < TAPS; r++)
                if (!CAREFUL || own == seen[CAREFUL ? TAPS + i - r : 0]) sum[r] = fmaf(dz, v[TAPS + i - r], sum[r]);
        }
    }
}

enum { SHARES = (K + TAPS * RY - 1) / (TAPS * RY) }; /* groups of taps of a thread */

static __device__ __forceinline__ void put_totals(const causal_args &a, const place &p,
                                                  const float (&sum)[SHARES][TAPS], float bias) {
    __syncthreads();
    p.x[p.y * LX] = bias;
    __syncthreads();
    if (!p.there) return;
    float *to = a.partial + (p.slice * a.c + p.c) * (K + 1);
#pragma unroll
    for (int s = 0; s < SHARES; s++)
#pragma unroll
        for (int r = 0; r < TAPS; r++) {
            const int b = (s * RY + p.y) * TAPS + r;
            if (b < K) to[b] = sum[s][r];
        }
    if (p.y) return;
    for (int y = 1; y < RY; y++) bias += p.x[y * LX];
    to[K] = bias;
}

extern "C" __global__ void __launch_bounds__(WIDE_THREADS) causal_bwd(const __grid_constant__ causal_args a) {
    const place p = open_run(a);
    float sum[SHARES][TAPS] = {}, bias = 0;
    for (int t0 = p.begin; t0 < p.end; t0 += TILE) {
        open_tile(a, p, t0);
        for (int at = p.y * OUT; at < DZ_ROWS; at += RY * OUT) bias += put_dz(a, p, t0, at);
        __syncthreads();
        for (int at = p.y * OUT; DATA && at < TILE && t0 + at < p.end; at += RY * OUT) put_diff(a, p, t0, at);
#pragma unroll
        for (int s = 0; s < SHARES && WEIGHTS; s++)
            if ((s * RY + p.y) * TAPS < K) add_up(p, t0, (s * RY + p.y) * TAPS, sum[s]);
    }
    if (WEIGHTS) put_totals(a, p, sum, bias);
}
#endif
#endif
