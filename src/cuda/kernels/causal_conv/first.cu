/* Causal convolution of sequences whose tokens lie side by side: forward, and every gradient in one pass; widths to
 * 128, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      z[t] = bias + sum_b w[b] x[t - b], dst = silu(z); dz = diff_dst silu'(z);
 *            diff_src[t] = sum_b w[b] dz[t + b], diff_w[b] = sum dz[t] x[t - b]; b is the tap counted backwards
 * Blocking:  LANES lanes have one row, each 16 bytes of tokens; the 16 bytes before are read again, from L1. A unit of
 *            lanes walks the chunks of a segment of its row, so that weights are loaded once. Gradients go from the
 *            last chunk to the first, of one sequence after the other: chunks come through shared memory by
 *            asynchronous copies, dz of the tokens behind from the next lane, and those of the chunk behind are kept
 * Sums:      in registers over a unit's chunks (windows over 8: in shared memory), then over lanes and over the units
 *            of a channel in a block; where these are not all, a second launch adds the blocks up in their order
 * Edges:     tokens outside are 0; under strict math and with seq_idx such taps are left out
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; instructions come close in 16 bits: two of them, exp and 1/x, run at a quarter of the rate.
 *            Measured on an H200, share of a copy: bf16 forward 0.84 to 0.90, gradients 0.71 to 0.76 (16 sequences of
 *            512 tokens: 0.57), f16 the same; f32 0.94 to 0.97 and 0.75. Loads into registers reached 0.52 to 0.72 in
 *            16 bits; two chunks ahead in registers were slower than one: fewer blocks fit
 * Try:       weft bench causal_conv1d:bwd:bf16:ncw:n8c4096w2048:k4:bias+silu@cuda */
#include "causal_conv/causal.h"

#ifndef __CUDACC_RTC__
enum { CHUNKS = 16, MANY_THREADS = 1 << 18 }; /* gradients: chunks of a unit, and threads that keep a GPU busy */

typedef struct tile {
    int vec, lanes, each, stages; /* each: sequences of a unit; stages: chunks under way and the one at work */
    int share;                    /* gradients: units of a block that have one channel, whose sums it adds up */
    int32_t run;
    int64_t segments, units, parts; /* of a sequence; units of a channel, and blocks */
    uint32_t blocks;
} tile;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = causal_refusal(p, 4);
    const bool fwd = p->pass == WEFT_PASS_FWD;
    (void)variant;
    if (refusal) return refusal;
    const int64_t tokens = 16 / (int64_t)weft__dtype_size(weft__tensor(p, WEFT_ROLE_SRC)->dtype);
    t->vec = causal_vec(p, 4, 16);
    t->stages = tokens > 4 ? 4 : 3;
    t->lanes = WEFT__MIN(cuda_power(cuda_ceil(WEFT__MAX(p->in[2], p->kernel[2] - 1), tokens)), 32);
    const int64_t chunk = tokens * t->lanes, chunks = cuda_ceil(p->in[2], chunk);
    t->segments = cuda_ceil(chunks, fwd ? 4 : CHUNKS);
    t->run = (int32_t)(cuda_ceil(chunks, t->segments) * chunk);
    t->segments = cuda_ceil(p->in[2], t->run);
    t->each = fwd ? 1 : (int)WEFT__MAX(WEFT__MIN(CHUNKS / cuda_ceil(t->run, chunk), p->n), 1);
    while (t->each > 1 && cuda_ceil(p->n, t->each) * p->c * t->segments * t->lanes < MANY_THREADS) t->each /= 2;
    t->units = cuda_ceil(p->n, t->each) * t->segments;
    const int of_block = CAUSAL_THREADS / t->lanes;
    t->share = fwd || p->kernel[2] > CAUSAL_NARROW ? 1 : WEFT__MIN(cuda_power(t->units), of_block);
    t->parts = cuda_ceil(t->units, t->share);
    const int64_t blocks = cuda_ceil(fwd ? p->n * p->c : p->c, of_block / t->share) * (fwd ? t->segments : t->parts);
    if (blocks > INT32_MAX) return "2^31 blocks or more";
    t->blocks = (uint32_t)blocks;
    if (t->parts > 1 && (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS))
        d->workspace = (size_t)(t->parts * p->c * (p->kernel[2] + 1)) * sizeof(float);
    d->ns = cuda_ns(hw, weft__bytes(p), (t->vec == tokens ? 0.7 : 0.3), fwd ? 1 : 2) +
            weft__flops(p) / (0.2 * hw->gpu->gflops);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    causal_defines(p, text);
    weft__put(text, " -DVEC=%d -DLANES=%d -DSTAGES=%d -DSHARE=%d -DINDEX=%s", t->vec, t->lanes, t->stages, t->share,
              p->n * p->c < INT32_MAX && t->units < INT32_MAX ? "uint32_t" : "uint64_t");
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    causal_args a = causal_args_of(e);
    a.run = t->run;
    a.slices = t->segments;
    a.each = t->each;
    a.units = t->units;
    a.parts = t->parts;
    const weft__launch launch = {.grid = {t->blocks, 1, 1}, .block = {CAUSAL_THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return causal_mode(e->p) < MODE_WEIGHTS || t->parts == 1 ? WEFT_OK : causal_finish(e, 1, a, t->parts);
}

CAUSAL_KERNELS("causal_conv/first.cu", ncw, "ncw_16b");

#else
enum { TOK = 16 / sizeof(T), CHUNK = TOK * LANES, UNITS = CAUSAL_THREADS / LANES };
enum { NARROW = K <= CAUSAL_NARROW, TAPS = NARROW ? K : 1, GROUPS = (K + TOK - 1) / TOK };
enum { LOW = NARROW ? (K - 1 + TOK - 1) / TOK : 0 }; /* windows before a lane's own that are kept */
enum { REACH = GROUPS * TOK };                       /* tokens before a chunk that are loaded with it */

struct place { /* what a unit of lanes works on: a segment of a row; gradients: of those of `each` sequences in turn */
    int64_t n, c;
    int lane, begin, end; /* tokens begin .. end - 1 */
    bool live;
    float weight[TAPS], bias;
};

struct window { /* TOK tokens */
    float v[TOK];
    int seq[SEQ ? TOK : 1];
};

static __device__ __forceinline__ place open_row(const causal_args &a) {
    place p;
    const uint32_t unit = threadIdx.x / LANES;
    if (FWD) { /* a block has neighbouring rows */
        const uint32_t some = blockIdx.x / (uint32_t)a.slices;
        const INDEX rows = (INDEX)(a.n * a.c), row = (INDEX)some * UNITS + unit;
        const INDEX near = row < rows ? row : rows - 1, n = near / (INDEX)a.c;
        p.live = row < rows;
        p.n = n;
        p.c = near - n * (INDEX)a.c;
        p.begin = (int)(blockIdx.x - some * (uint32_t)a.slices) * a.run;
    } else { /* SHARE units of neighbouring channels */
        const uint32_t some = blockIdx.x / (uint32_t)a.parts, part = blockIdx.x - some * (uint32_t)a.parts;
        const int64_t c = (int64_t)some * (UNITS / SHARE) + unit / SHARE;
        const INDEX own = (INDEX)part * SHARE + unit % SHARE, near = own < (INDEX)a.units ? own : (INDEX)a.units - 1;
        const INDEX group = near / (INDEX)a.slices;
        p.live = c < a.c && own < (INDEX)a.units;
        p.n = (int64_t)group * a.each;
        p.c = c < a.c ? c : a.c - 1;
        p.begin = (int)(near - group * (INDEX)a.slices) * a.run;
    }
    p.end = min(p.begin + a.run, a.w);
    p.lane = (int)threadIdx.x % LANES;
    p.bias = bias_at(a, p.c);
    if (NARROW)
#pragma unroll
        for (int b = 0; b < TAPS; b++) p.weight[b] = weight_at(a, p.c, b);
    return p;
}

/* TOK elements from t on; 0 outside of the row. Here and below, WHOLE: the chunk, what its taps read, and no token of
 * the final state are inside. */
template <bool WHOLE = false>
static __device__ __forceinline__ pack<T, TOK> fetch(const causal_args &a, const T *row, int t) {
    pack<T, TOK> to;
    if (!WHOLE)
#pragma unroll
        for (int i = 0; i < TOK; i++) to.v[i] = narrow<T>(0);
    if (WHOLE || (t >= 0 && t + TOK <= a.w)) {
#pragma unroll
        for (int i = 0; i < TOK; i += VEC) {
            pack<T, VEC> part;
            load_raw(row + t + i, part);
#pragma unroll
            for (int k = 0; k < VEC; k++) to.v[i + k] = part.v[k];
        }
    } else if (t + TOK > 0 && t < a.w) {
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i >= 0 && t + i < a.w) to.v[i] = row[t + i];
    }
    return to;
}

/* Tokens from t on as floats, behind those of the state. */
template <bool WHOLE>
static __device__ __forceinline__ void open_window(const causal_args &a, const place &p, int t, pack<T, TOK> raw,
                                                   window &x) {
    widen_all(raw, x.v);
    if (!WHOLE && HAS_H0 && t < 0)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i < 0 && t + i >= 1 - K) x.v[i] = widen(row_of<T>(a.h0, p.n, p.c)[(t + i + K - 1) * a.h0.by_t]);
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++) x.seq[SEQ ? i : 0] = seq_at(a, p.n, t + i);
}
template <bool WHOLE>
static __device__ __forceinline__ void open_window(const causal_args &a, const place &p, int t, window &x) {
    open_window<WHOLE>(a, p, t, fetch<WHOLE>(a, row_of<T>(a.src, p.n, p.c), t), x);
}

/* f(r, i, x[t + i - b]) for the taps b = g TOK + r, r < TOK, that token t + i sees: high are the tokens from t - g TOK
 * on, low those before them, own those from t on. */
template <bool WHOLE, class F>
static __device__ __forceinline__ void each_tap(int w, int t, int g, const window &own, const window &high,
                                                const window &low, F f) {
#pragma unroll
    for (int r = 0; r < TOK; r++) {
        if (g * TOK + r >= K) continue;
#pragma unroll
        for (int i = 0; i < TOK; i++) {
            const int at = i - r;
            bool counts = true;
            if (SEQ) {
                const int mine = own.seq[SEQ ? i : 0],
                          other = SEQ ? (at < 0 ? low.seq : high.seq)[SEQ ? at & (TOK - 1) : 0] : 0;
                counts = mine == other && mine >= 0;
            } else if (CAREFUL && !WHOLE) {
                counts = t + i < w && (HAS_H0 || t + i - (g * TOK + r) >= 0);
            }
            if (counts) f(r, i, at < 0 ? low.v[at & (TOK - 1)] : high.v[at & (TOK - 1)]);
        }
    }
}

/* The windows before a lane's own that are kept. */
template <bool WHOLE>
static __device__ __forceinline__ void open_low(const causal_args &a, const place &p, int t, window (&x)[LOW + 1]) {
#pragma unroll
    for (int g = 1; g <= LOW; g++) open_window<WHOLE>(a, p, t - g * TOK, x[g]);
}

/* z of TOK tokens; x: their window and, where these are kept, those before it. */
template <bool WHOLE>
static __device__ __forceinline__ void sums_of(const causal_args &a, const place &p, int t, window (&x)[LOW + 1],
                                               float (&z)[TOK]) {
#pragma unroll
    for (int i = 0; i < TOK; i++) z[i] = p.bias;
    if (NARROW) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            each_tap<WHOLE>(a.w, t, g, x[0], x[g < LOW ? g : LOW], x[g + 1 < LOW ? g + 1 : LOW],
                            [&](int r, int i, float v) { z[i] = fmaf(p.weight[NARROW ? g * TOK + r : 0], v, z[i]); });
        return;
    }
    window high = x[0], low;
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        float weight[TOK];
#pragma unroll
        for (int r = 0; r < TOK; r++) weight[r] = g * TOK + r < K ? weight_at(a, p.c, g * TOK + r) : 0;
        open_window<WHOLE>(a, p, t - (g + 1) * TOK, low);
        each_tap<WHOLE>(a.w, t, g, x[0], high, low, [&](int r, int i, float v) { z[i] = fmaf(weight[r], v, z[i]); });
        high = low;
    }
}

template <bool WHOLE>
static __device__ __forceinline__ void put(const causal_args &a, const place &p, const causal_view &to, int t,
                                           const float (&v)[TOK]) {
    T *row = (T *)row_of<T>(to, p.n, p.c);
    if (!p.live || (!WHOLE && t >= a.w)) return;
    if (WHOLE || (t >= 0 && t + TOK <= a.w)) {
#pragma unroll
        for (int i = 0; i < TOK; i += VEC) {
            float part[VEC];
#pragma unroll
            for (int k = 0; k < VEC; k++) part[k] = v[i + k];
            store(row + t + i, part);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < TOK; i++)
        if (t + i >= 0 && t + i < a.w) row[t + i] = narrow<T>(v[i]);
}

/* ---------------------------------------------------------------- forward */
static __device__ __forceinline__ void keep_last(const causal_args &a, const place &p) {
    const T *src = row_of<T>(a.src, p.n, p.c), *h0 = row_of<T>(a.h0, p.n, p.c);
    T *hn = (T *)row_of<T>(a.hn, p.n, p.c);
    for (int i = p.lane; i < K - 1; i += LANES) {
        const int from = a.w - (K - 1) + i;
        hn[i * a.hn.by_t] = from >= 0 ? src[from] : HAS_H0 ? h0[(from + K - 1) * a.h0.by_t] : narrow<T>(0);
    }
}

#if MODE == 0
template <bool WHOLE>
static __device__ __forceinline__ void forward(const causal_args &a, const place &p, int t, const pack<T, TOK> &raw) {
    window x[LOW + 1];
    float z[TOK];
    open_window<WHOLE>(a, p, t, raw, x[0]);
    open_low<WHOLE>(a, p, t, x);
    sums_of<WHOLE>(a, p, t, x, z);
#pragma unroll
    for (int i = 0; i < TOK; i++) z[i] = SEQ && x[0].seq[SEQ ? i : 0] < 0 ? 0 : activate(z[i]);
    put<WHOLE>(a, p, a.dst, t, z);
}

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_fwd(const __grid_constant__ causal_args a) {
    enum { AHEAD = 2 };
    const place p = open_row(a);
    const T *src = row_of<T>(a.src, p.n, p.c);
    const int end = p.end;
    for (int t0 = p.begin; t0 < end; t0 += AHEAD * CHUNK) {
        pack<T, TOK> raw[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) raw[k] = fetch(a, src, t0 + k * CHUNK + p.lane * TOK);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int from = t0 + k * CHUNK, t = from + p.lane * TOK;
            if (from >= REACH && from + CHUNK <= end)
                forward<true>(a, p, t, raw[k]);
            else if (t < end)
                forward<false>(a, p, t, raw[k]);
        }
    }
    if (HAS_HN && p.live && end == a.w) keep_last(a, p);
}

/* ---------------------------------------------------------------- gradients */
#else
#include "causal_conv/first_bwd.h"
#endif
#endif
