/* Causal convolution of sequences whose tokens lie side by side: forward, and every gradient in one pass; widths to
 * 128, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      z[t] = bias + sum_b w[b] x[t - b], dst = silu(z); dz = diff_dst silu'(z);
 *            diff_src[t] = sum_b w[b] dz[t + b], diff_w[b] = sum dz[t] x[t - b]; b is the tap counted backwards
 * Blocking:  LANES lanes have one row, each 16 bytes of tokens; the 16 bytes before are read again, from L1. A unit of
 *            lanes walks the chunks of a segment of its row, and of other sequences where these are short, so that
 *            weights are loaded and sums added up once. Gradients go from the last chunk to the first: dz of the tokens
 *            behind come from the next lane, and those of the chunk behind are kept
 * Sums:      in registers over a segment (windows over 8: in shared memory), then over lanes; a second launch adds the
 *            segments up in their order
 * Edges:     tokens outside are 0; under strict math and with seq_idx such taps are left out
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; instructions come close in 16 bits: two of them, exp and 1/x, run at a quarter of the rate
 * Try:       weft bench causal_conv1d:bwd:bf16:ncw:n8c4096w2048:k4:bias+silu@cuda */
#include "causal_conv/causal.h"

#ifndef __CUDACC_RTC__
typedef struct tile {
    int vec, lanes, resident; /* resident: blocks of a multiprocessor, at least */
    int32_t run, together;    /* tokens of a segment; sequences that a unit of lanes walks */
    int64_t segments, units;
    uint32_t blocks;
} tile;

static const char *const variants[] = {"7", "8", NULL};

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = causal_refusal(p, 4);
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t most = fwd ? 4 : 16; /* chunks that a unit walks */
    if (refusal) return refusal;
    t->resident = 7 + variant;
    const int64_t tokens = 16 / (int64_t)weft__dtype_size(weft__tensor(p, WEFT_ROLE_SRC)->dtype);
    t->vec = causal_vec(p, 4, 16);
    t->lanes = WEFT__MIN(cuda_power(cuda_ceil(WEFT__MAX(p->in[2], p->kernel[2] - 1), tokens)), 32);
    const int64_t chunk = tokens * t->lanes, chunks = cuda_ceil(p->in[2], chunk);
    t->segments = cuda_ceil(chunks, most);
    t->run = (int32_t)(cuda_ceil(chunks, t->segments) * chunk);
    t->segments = cuda_ceil(p->in[2], t->run);
    t->together = 1;
    while (2 * t->together * chunks <= most && p->n * p->c / (2 * t->together) >= 8192) t->together *= 2;
    t->units = cuda_ceil(p->n, t->together) * p->c;
    const int64_t blocks = cuda_ceil(t->units, CAUSAL_THREADS / t->lanes) * t->segments;
    if (blocks > INT32_MAX) return "2^31 blocks or more";
    t->blocks = (uint32_t)blocks;
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(t->units * t->segments * (p->kernel[2] + 1)) * sizeof(float);
    d->ns = cuda_ns(hw, weft__bytes(p), (t->vec == tokens ? 0.7 : 0.3) - 0.01 * variant, fwd ? 1 : 2) +
            weft__flops(p) / (0.2 * hw->gpu->gflops);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    causal_defines(p, text);
    weft__put(text, " -DVEC=%d -DLANES=%d -DRESIDENT=%d -DINDEX=%s", t->vec, t->lanes, t->resident,
              p->n * p->c < INT32_MAX ? "uint32_t" : "uint64_t");
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    causal_args a = causal_args_of(e);
    a.run = t->run;
    a.together = t->together;
    a.slices = t->segments;
    const weft__launch launch = {.grid = {t->blocks, 1, 1}, .block = {CAUSAL_THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return causal_mode(e->p) < MODE_WEIGHTS ? WEFT_OK : causal_finish(e, 1, a, t->units / a.c * t->segments);
}

const weft__kernel weft__cuda_causal_conv_fwd_ncw = {
    .name = "causal_conv_fwd_ncw_16b__cuda",
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CAUSAL_STEPS,
    .dtypes = CUDA_FLOATS,
    .bound = 2,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"causal_conv/first.cu", "causal_fwd", defines, false}),
};

const weft__kernel weft__cuda_causal_conv_bwd_ncw = {
    .name = "causal_conv_bwd_ncw_16b__cuda",
    .version = 1,
    .op = WEFT_OP_CAUSAL_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = CAUSAL_GRADIENTS,
    .steps = CAUSAL_STEPS,
    .dtypes = CUDA_FLOATS,
    .bound = 2,
    .variants = variants,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"causal_conv/first.cu", "causal_bwd", defines, false},
                {"causal_conv/first.cu", "causal_sums", defines, false}),
};

#else
enum { TOK = 16 / sizeof(T), CHUNK = TOK * LANES, UNITS = CAUSAL_THREADS / LANES };
enum { NARROW = K <= CAUSAL_NARROW, TAPS = NARROW ? K : 1, GROUPS = (K + TOK - 1) / TOK };
enum { BLOCKS = NARROW && !SEQ && !STRICT ? RESIDENT : 1 };
enum { LOW = NARROW ? (K - 1 + TOK - 1) / TOK : 0 }; /* windows before a lane's own that are kept */

struct place { /* a row: what a unit of lanes works on */
    int64_t n, c, slice;
    int lane, begin, end; /* tokens of the segment */
    bool live;
    float weight[TAPS], scaled[TAPS], bias; /* scaled, as bias is: see SCALE */
};

struct window { /* TOK tokens */
    float v[TOK];
    int seq[SEQ ? TOK : 1];
};

/* The first row of a unit. */
static __device__ __forceinline__ place open_unit(const causal_args &a) {
    place p;
    const uint32_t block = blockIdx.x / (uint32_t)a.slices, segment = blockIdx.x - block * (uint32_t)a.slices;
    const INDEX groups = (INDEX)((a.n + a.together - 1) / a.together), units = groups * (INDEX)a.c;
    const INDEX unit = (INDEX)block * UNITS + threadIdx.x / LANES;
    const INDEX near = unit < units ? unit : units - 1, group = near / (INDEX)a.c;
    p.live = unit < units;
    p.n = (int64_t)group * a.together;
    p.c = near - group * (INDEX)a.c;
    p.slice = (int64_t)group * a.slices + segment;
    p.lane = (int)threadIdx.x % LANES;
    p.begin = (int)segment * a.run;
    p.end = min(p.begin + a.run, a.w);
    p.bias = bias_at(a, p.c) * SCALE;
    if (NARROW)
#pragma unroll
        for (int b = 0; b < TAPS; b++) {
            p.weight[b] = weight_at(a, p.c, b);
            p.scaled[b] = p.weight[b] * SCALE;
        }
    return p;
}

/* TOK elements at the token t; 0 outside of the row. WHOLE: they are inside. */
template <bool WHOLE> static __device__ __forceinline__ pack<T, TOK> fetch(const T *at, int t, int w) {
    pack<T, TOK> to;
    if (WHOLE || (t >= 0 && t + TOK <= w)) {
#pragma unroll
        for (int i = 0; i < TOK; i += VEC) {
            pack<T, VEC> part;
            load_raw(at + i, part);
#pragma unroll
            for (int k = 0; k < VEC; k++) to.v[i + k] = part.v[k];
        }
        return to;
    }
#pragma unroll
    for (int i = 0; i < TOK; i++) to.v[i] = t + i >= 0 && t + i < w ? at[i] : narrow<T>(0);
    return to;
}

/* Tokens from t on as floats, behind those of the state. */
static __device__ __forceinline__ void open_window(const causal_args &a, const place &p, int t, const pack<T, TOK> &raw,
                                                   window &x) {
    widen_all(raw, x.v);
    if (HAS_H0 && t < 0)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i < 0 && t + i >= 1 - K) x.v[i] = widen(row_of<T>(a.h0, p.n, p.c)[(t + i + K - 1) * a.h0.by_t]);
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++) x.seq[SEQ ? i : 0] = seq_at(a, p.n, t + i);
}
/* The window g TOK tokens before the token t, which is at `at`. WHOLE: all there but before the first token. */
template <bool WHOLE>
static __device__ __forceinline__ void open_before(const causal_args &a, const place &p, const T *at, int t, int g,
                                                   window &x) {
    pack<T, TOK> raw;
    const int from = t - g * TOK;
    if (WHOLE && from < 0)
#pragma unroll
        for (int i = 0; i < TOK; i++) raw.v[i] = narrow<T>(0);
    else
        raw = fetch<WHOLE>(at - g * TOK, from, a.w);
    open_window(a, p, from, raw, x);
}

/* f(r, i, x[t + i - b]) for the taps b = g TOK + r, r < TOK, that token t + i sees: high are the tokens from t - g TOK
 * on, low those before them, own those from t on. */
template <class F>
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
                const int mine = own.seq[SEQ ? i : 0], other = (at < 0 ? low.seq : high.seq)[SEQ ? at & (TOK - 1) : 0];
                counts = mine == other && mine >= 0;
            } else if (CAREFUL) {
                counts = t + i < w && (HAS_H0 || t + i - (g * TOK + r) >= 0);
            }
            if (counts) f(r, i, at < 0 ? low.v[at & (TOK - 1)] : high.v[at & (TOK - 1)]);
        }
    }
}

static __device__ __forceinline__ void weights_of(const causal_args &a, const place &p, int g, float scale,
                                                  float (&weight)[TOK]) {
#pragma unroll
    for (int r = 0; r < TOK; r++) weight[r] = g * TOK + r < K ? weight_at(a, p.c, g * TOK + r) * scale : 0;
}

/* Scaled sums of TOK tokens from t on, which is at `at`; x: their window and, where these are kept, those before it,
 * which are loaded here. */
template <bool WHOLE>
static __device__ __forceinline__ void sums_of(const causal_args &a, const place &p, const T *at, int t,
                                               window (&x)[LOW + 1], float (&z)[TOK]) {
#pragma unroll
    for (int i = 0; i < TOK; i++) z[i] = p.bias;
    if (NARROW) {
#pragma unroll
        for (int g = 1; g <= LOW; g++) open_before<WHOLE>(a, p, at, t, g, x[g]);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            each_tap(a.w, t, g, x[0], x[g < LOW ? g : LOW], x[g + 1 < LOW ? g + 1 : LOW],
                     [&](int r, int i, float v) { z[i] = fmaf(p.scaled[NARROW ? g * TOK + r : 0], v, z[i]); });
        return;
    }
    window high = x[0], low;
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        float weight[TOK];
        weights_of(a, p, g, SCALE, weight);
        open_before<WHOLE>(a, p, at, t, g + 1, low);
        each_tap(a.w, t, g, x[0], high, low, [&](int r, int i, float v) { z[i] = fmaf(weight[r], v, z[i]); });
        high = low;
    }
}

template <bool WHOLE> static __device__ __forceinline__ void put(T *at, int t, int w, const float (&v)[TOK]) {
    if (WHOLE || (t >= 0 && t + TOK <= w)) {
#pragma unroll
        for (int i = 0; i < TOK; i += VEC) {
            float part[VEC];
#pragma unroll
            for (int k = 0; k < VEC; k++) part[k] = v[i + k];
            store(at + i, part);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < TOK; i++)
        if (t + i >= 0 && t + i < w) at[i] = narrow<T>(v[i]);
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
static __device__ __forceinline__ void forward(const causal_args &a, const place &p, const T *src, T *dst, int t,
                                               const pack<T, TOK> &raw) {
    window x[LOW + 1];
    float z[TOK];
    open_window(a, p, t, raw, x[0]);
    sums_of<WHOLE>(a, p, src, t, x, z);
#pragma unroll
    for (int i = 0; i < TOK; i++) z[i] = SEQ && x[0].seq[SEQ ? i : 0] < 0 ? 0 : activate(z[i]);
    put<WHOLE>(dst, t, a.w, z);
}

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_fwd(const __grid_constant__ causal_args a) {
    enum { AHEAD = 2 };
    place p = open_unit(a);
    if (!p.live) return;
    for (int64_t last = min(p.n + a.together, a.n); p.n < last; p.n++) {
        const T *src = row_of<T>(a.src, p.n, p.c);
        T *dst = (T *)row_of<T>(a.dst, p.n, p.c);
        int t = p.begin + p.lane * TOK;
        for (; t - p.lane * TOK + AHEAD * CHUNK <= p.end; t += AHEAD * CHUNK) {
            pack<T, TOK> raw[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) raw[k] = fetch<true>(src + t + k * CHUNK, t + k * CHUNK, a.w);
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                forward<true>(a, p, src + t + k * CHUNK, dst + t + k * CHUNK, t + k * CHUNK, raw[k]);
        }
        for (; t < p.end; t += CHUNK) forward<false>(a, p, src + t, dst + t, t, fetch<false>(src + t, t, a.w));
        if (HAS_HN && p.end == a.w) keep_last(a, p);
    }
}

/* ---------------------------------------------------------------- gradients */
#else
/* dz of TOK tokens from the windows of x and from diff_dst; 0 where there is no token. */
template <bool WHOLE>
static __device__ __forceinline__ void diff_sums_of(const causal_args &a, const place &p, const T *src, int t,
                                                    window (&x)[LOW + 1], const pack<T, TOK> &dy, float (&dz)[TOK]) {
    float z[TOK];
    if (SILU || (WEIGHTS && NARROW)) sums_of<WHOLE>(a, p, src, t, x, z);
    widen_all(dy, dz);
#pragma unroll
    for (int i = 0; i < TOK; i++) dz[i] *= SILU ? slope(z[i]) : 1.0f;
    if (!WHOLE && t + TOK > a.w)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i >= a.w) dz[i] = 0;
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (x[0].seq[SEQ ? i : 0] < 0) dz[i] = 0;
    if (!p.live)
#pragma unroll
        for (int i = 0; i < TOK; i++) dz[i] = 0;
}

/* dz of the tokens g lanes behind: of this chunk, or of the one behind it. The first `count` of them. */
static __device__ __forceinline__ void behind(const place &p, int g, int count, const float (&dz)[TOK],
                                              const float (&kept)[TOK], float (&to)[TOK]) {
#pragma unroll
    for (int i = 0; i < TOK; i++)
        if (i < count) to[i] = __shfl_sync(0xffffffffu, p.lane < g ? kept[i] : dz[i], (p.lane + g) % LANES, LANES);
}

/* Adds w[b] dz[t + i + b] for the taps b = g TOK + r. */
static __device__ __forceinline__ void diff_taps(const causal_args &a, const place &p, int t, int g,
                                                 const float *weight, const float (&low)[TOK], const float (&high)[TOK],
                                                 float (&dx)[TOK]) {
#pragma unroll
    for (int r = 0; r < TOK; r++) {
        if (g * TOK + r >= K) continue;
#pragma unroll
        for (int i = 0; i < TOK; i++) {
            const int to = t + i + g * TOK + r;
            bool counts = true;
            if (SEQ)
                counts = seq_at(a, p.n, to) == seq_at(a, p.n, t + i);
            else if (STRICT)
                counts = to >= 0 && to < a.w;
            const float v = i + r < TOK ? low[(i + r) & (TOK - 1)] : high[(i + r) & (TOK - 1)];
            if (counts) dx[i] = fmaf(weight[r], v, dx[i]);
        }
    }
}

/* diff_src of TOK tokens, at `at`; before the first token, diff_h0. The whole warp calls. */
template <bool WHOLE>
static __device__ __forceinline__ void put_diff(const causal_args &a, const place &p, T *at, int t,
                                                const float (&dz)[TOK], const float (&kept)[TOK]) {
    float dx[TOK] = {}, low[TOK], high[TOK];
#pragma unroll
    for (int i = 0; i < TOK; i++) low[i] = dz[i];
    if (NARROW) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            behind(p, g + 1, K - 1 - g * TOK, dz, kept, high);
            diff_taps(a, p, t, g, p.weight + (NARROW ? g * TOK : 0), low, high, dx);
#pragma unroll
            for (int i = 0; i < TOK; i++) low[i] = high[i];
        }
    } else {
#pragma unroll 1
        for (int g = 0; g < GROUPS; g++) {
            float weight[TOK];
            weights_of(a, p, g, 1, weight);
            behind(p, g + 1, TOK, dz, kept, high);
            diff_taps(a, p, t, g, weight, low, high, dx);
#pragma unroll
            for (int i = 0; i < TOK; i++) low[i] = high[i];
        }
    }
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (seq_at(a, p.n, t + i) < 0) dx[i] = 0;
    if (HAS_HN && t + TOK > a.w - (K - 1))
#pragma unroll
        for (int i = 0; i < TOK; i++) {
            const int held = t + i - a.w + K - 1;
            if (held >= 0 && held < K - 1 && t + i >= 1 - K)
                dx[i] += widen(row_of<T>(a.diff_hn, p.n, p.c)[held * a.diff_hn.by_t]);
        }
    if (!p.live) return;
    put<WHOLE>(at, t, a.w, dx);
    if (HAS_H0 && !WHOLE && t < 0)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i < 0 && t + i >= 1 - K)
                ((T *)row_of<T>(a.diff_h0, p.n, p.c))[(t + i + K - 1) * a.diff_h0.by_t] = narrow<T>(dx[i]);
}

/* Sums of dz x over the tokens of a segment. */
struct totals {
    float own[TAPS], bias; /* of this lane */
    float *unit;           /* wide windows: of all lanes, in shared memory */
};

template <bool WHOLE>
static __device__ __forceinline__ void add_up(const causal_args &a, const place &p, const T *src, int t,
                                              const window (&x)[LOW + 1], const float (&dz)[TOK], totals &s) {
#pragma unroll
    for (int i = 0; i < TOK; i++) s.bias += dz[i];
    if (NARROW) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            each_tap(a.w, t, g, x[0], x[g < LOW ? g : LOW], x[g + 1 < LOW ? g + 1 : LOW], [&](int r, int i, float v) {
                s.own[NARROW ? g * TOK + r : 0] = fmaf(dz[i], v, s.own[NARROW ? g * TOK + r : 0]);
            });
        return;
    }
    window high = x[0], low;
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        float sum[TOK] = {};
        open_before<WHOLE>(a, p, src, t, g + 1, low);
        each_tap(a.w, t, g, x[0], high, low, [&](int r, int i, float v) { sum[r] = fmaf(dz[i], v, sum[r]); });
#pragma unroll
        for (int r = 0; r < TOK; r++) {
            const float all = lanes_all<plus, LANES>(sum[r]);
            if (p.lane == r % LANES && g * TOK + r < K) s.unit[g * TOK + r] += all;
        }
        high = low;
    }
}

static __device__ __forceinline__ void put_totals(const causal_args &a, const place &p, bool live, totals &s) {
    float *to = a.partial + (p.slice * a.c + p.c) * (K + 1);
#pragma unroll
    for (int b = 0; b < TAPS && NARROW; b++) {
        const float all = lanes_all<plus, LANES>(s.own[b]);
        if (live && p.lane == 0) to[b] = all;
    }
    const float bias = lanes_all<plus, LANES>(s.bias);
    if (!live) return;
    if (p.lane == 0) to[K] = bias;
    for (int b = p.lane; b < K && !NARROW; b += LANES) to[b] = s.unit[b];
}

struct cursors { /* of token t */
    const T *src, *diff_dst;
    T *diff_src;
};
static __device__ __forceinline__ cursors cursors_of(const causal_args &a, const place &p, int t) {
    return {row_of<T>(a.src, p.n, p.c) + t, row_of<T>(a.diff_dst, p.n, p.c) + t,
            (T *)row_of<T>(a.diff_src, p.n, p.c) + t};
}

template <bool WHOLE>
static __device__ __forceinline__ void backward(const causal_args &a, const place &p, const cursors &at, int t,
                                                const pack<T, TOK> &raw, const pack<T, TOK> &dy, float (&kept)[TOK],
                                                totals &s) {
    window x[LOW + 1];
    float dz[TOK];
    open_window(a, p, t, raw, x[0]);
    diff_sums_of<WHOLE>(a, p, at.src, t, x, dy, dz);
    if (WEIGHTS) add_up<WHOLE>(a, p, at.src, t, x, dz, s);
    if (!DATA) return;
    put_diff<WHOLE>(a, p, at.diff_src, t, dz, kept);
#pragma unroll
    for (int i = 0; i < TOK; i++) kept[i] = dz[i];
}

/* One row, from its last chunk to its first. */
static __device__ __forceinline__ void backward_row(const causal_args &a, const place &p, totals &s) {
    const int top = p.begin + (p.end - 1 - p.begin) / CHUNK * CHUNK;
    int t = top + p.lane * TOK;
    cursors at = cursors_of(a, p, t);
    float kept[TOK] = {};
    if (DATA && p.end < a.w && p.lane * TOK < K - 1) { /* dz behind the segment */
        window x[LOW + 1];
        const int behind = p.end + p.lane * TOK;
        const cursors there = cursors_of(a, p, behind);
        open_window(a, p, behind, fetch<false>(there.src, behind, a.w), x[0]);
        diff_sums_of<false>(a, p, there.src, behind, x, fetch<false>(there.diff_dst, behind, a.w), kept);
    }
    pack<T, TOK> raw = fetch<false>(at.src, t, a.w), dy = fetch<false>(at.diff_dst, t, a.w);
    for (int t0 = top; t0 >= p.begin; t0 -= CHUNK, t -= CHUNK) {
        const pack<T, TOK> own = raw, own_dy = dy;
        if (t0 > p.begin) {
            raw = fetch<true>(at.src - CHUNK, t - CHUNK, a.w);
            dy = fetch<true>(at.diff_dst - CHUNK, t - CHUNK, a.w);
        }
        if (t0 + CHUNK <= a.w)
            backward<true>(a, p, at, t, own, own_dy, kept, s);
        else
            backward<false>(a, p, at, t, own, own_dy, kept, s);
        at = {at.src - CHUNK, at.diff_dst - CHUNK, at.diff_src - CHUNK};
    }
    if (DATA && HAS_H0 && p.begin == 0) {
        const float dz[TOK] = {};
        put_diff<false>(a, p, at.diff_src, t, dz, kept);
    }
}

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS, BLOCKS) causal_bwd(const __grid_constant__ causal_args a) {
    __shared__ float unit_sums[NARROW ? 1 : UNITS * K];
    place p = open_unit(a);
    const bool live = p.live;
    const int64_t first = p.n;
    totals s = {};
    if (!NARROW) {
        s.unit = unit_sums + threadIdx.x / LANES * K;
        for (int b = p.lane; b < K; b += LANES) s.unit[b] = 0;
        __syncwarp();
    }
    for (int i = 0; i < a.together; i++) { /* as often in all lanes of a warp */
        p.live = live && first + i < a.n;
        p.n = min(first + i, a.n - 1);
        backward_row(a, p, s);
    }
    if (WEIGHTS) put_totals(a, p, live, s);
}
#endif
#endif
