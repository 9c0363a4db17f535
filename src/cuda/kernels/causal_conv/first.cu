/* Causal convolution of sequences whose tokens lie side by side: forward, and every gradient in one pass; widths to
 * 128, f32, f16 and bf16 with f32 sums, states, seq_idx, bias and silu.
 * Math:      z[t] = bias + sum_b w[b] x[t - b], dst = silu(z); dz = diff_dst silu'(z);
 *            diff_src[t] = sum_b w[b] dz[t + b], diff_w[b] = sum dz[t] x[t - b]; b is the tap counted backwards
 * Blocking:  LANES lanes have one row, each 16 bytes of tokens; the 16 bytes before are read again, from L1. A unit of
 *            lanes walks the chunks of a segment of its row, so that weights are loaded once. Gradients go from the
 *            last chunk to the first: dz of the tokens behind come from the next lane, and those of the chunk behind
 *            are kept
 * Sums:      in registers over a segment (windows over 8: in shared memory), then over lanes; a second launch adds the
 *            segments up in their order
 * Edges:     tokens outside are 0; under strict math and with seq_idx such taps are left out
 * Traffic:   src and dst once; src, diff_dst and diff_src once
 * Roofline:  bandwidth; instructions come close in 16 bits: two of them, exp and 1/x, run at a quarter of the rate.
 *            Measured on an H200, share of a copy: bf16 forward 0.84 to 0.90, gradients 0.52 to 0.72; f32 0.94 to
 *            0.97 and 0.75 to 0.86
 * Try:       weft bench causal_conv1d:bwd:bf16:ncw:n8c4096w2048:k4:bias+silu@cuda */
#include "causal_conv/causal.h"

#ifndef __CUDACC_RTC__
typedef struct tile {
    int vec, lanes;
    int32_t run;
    int64_t segments, rows;
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
    t->lanes = WEFT__MIN(cuda_power(cuda_ceil(WEFT__MAX(p->in[2], p->kernel[2] - 1), tokens)), 32);
    const int64_t chunk = tokens * t->lanes, chunks = cuda_ceil(p->in[2], chunk);
    t->segments = cuda_ceil(chunks, fwd ? 4 : 16);
    t->run = (int32_t)(cuda_ceil(chunks, t->segments) * chunk);
    t->segments = cuda_ceil(p->in[2], t->run);
    t->rows = p->n * p->c;
    const int64_t blocks = cuda_ceil(t->rows, CAUSAL_THREADS / t->lanes) * t->segments;
    if (blocks > INT32_MAX) return "2^31 blocks or more";
    t->blocks = (uint32_t)blocks;
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS)
        d->workspace = (size_t)(t->rows * t->segments * (p->kernel[2] + 1)) * sizeof(float);
    d->ns = cuda_ns(hw, weft__bytes(p), t->vec == tokens ? 0.7 : 0.3, fwd ? 1 : 2) +
            weft__flops(p) / (0.2 * hw->gpu->gflops);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    causal_defines(p, text);
    weft__put(text, " -DVEC=%d -DLANES=%d -DINDEX=%s", t->vec, t->lanes, t->rows < INT32_MAX ? "uint32_t" : "uint64_t");
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    causal_args a = causal_args_of(e);
    a.run = t->run;
    a.slices = t->segments;
    const weft__launch launch = {.grid = {t->blocks, 1, 1}, .block = {CAUSAL_THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return causal_mode(e->p) < MODE_WEIGHTS ? WEFT_OK : causal_finish(e, 1, a, a.n * t->segments);
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
    .plan = plan,
    .run = run,
    WEFT__PARTS({"causal_conv/first.cu", "causal_bwd", defines, false},
                {"causal_conv/first.cu", "causal_sums", defines, false}),
};

#else
enum { TOK = 16 / sizeof(T), CHUNK = TOK * LANES, UNITS = CAUSAL_THREADS / LANES };
enum { NARROW = K <= CAUSAL_NARROW, TAPS = NARROW ? K : 1, GROUPS = (K + TOK - 1) / TOK };
enum { LOW = NARROW ? (K - 1 + TOK - 1) / TOK : 0 }; /* windows before a lane's own that are kept */

struct place { /* a row: what a unit of lanes works on */
    int64_t n, c;
    int lane;
    bool live;
    float weight[TAPS], bias;
};

struct window { /* TOK tokens */
    float v[TOK];
    int seq[SEQ ? TOK : 1];
};

static __device__ __forceinline__ place open_row(const causal_args &a) {
    place p;
    const INDEX rows = (INDEX)(a.n * a.c), row = (INDEX)(blockIdx.x / (uint32_t)a.slices) * UNITS + threadIdx.x / LANES;
    const INDEX near = row < rows ? row : rows - 1, n = near / (INDEX)a.c;
    p.live = row < rows;
    p.n = n;
    p.c = near - n * (INDEX)a.c;
    p.lane = (int)threadIdx.x % LANES;
    p.bias = bias_at(a, p.c);
    if (NARROW)
#pragma unroll
        for (int b = 0; b < TAPS; b++) p.weight[b] = weight_at(a, p.c, b);
    return p;
}

/* TOK elements from t on; 0 outside of the row. */
static __device__ __forceinline__ pack<T, TOK> fetch(const causal_args &a, const T *row, int t) {
    pack<T, TOK> to;
#pragma unroll
    for (int i = 0; i < TOK; i++) to.v[i] = narrow<T>(0);
    if (t >= 0 && t + TOK <= a.w) {
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
static __device__ __forceinline__ void open_window(const causal_args &a, const place &p, int t, pack<T, TOK> raw,
                                                   window &x) {
#pragma unroll
    for (int i = 0; i < TOK; i++) x.v[i] = widen(raw.v[i]);
    if (HAS_H0 && t < 0)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i < 0 && t + i >= 1 - K) x.v[i] = widen(row_of<T>(a.h0, p.n, p.c)[(t + i + K - 1) * a.h0.by_t]);
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++) x.seq[SEQ ? i : 0] = seq_at(a, p.n, t + i);
}
static __device__ __forceinline__ void open_window(const causal_args &a, const place &p, int t, window &x) {
    open_window(a, p, t, fetch(a, row_of<T>(a.src, p.n, p.c), t), x);
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
                const int mine = own.seq[SEQ ? i : 0],
                          other = SEQ ? (at < 0 ? low.seq : high.seq)[SEQ ? at & (TOK - 1) : 0] : 0;
                counts = mine == other && mine >= 0;
            } else if (CAREFUL) {
                counts = t + i < w && (HAS_H0 || t + i - (g * TOK + r) >= 0);
            }
            if (counts) f(r, i, at < 0 ? low.v[at & (TOK - 1)] : high.v[at & (TOK - 1)]);
        }
    }
}

/* z of TOK tokens; x: their window and, where these are kept, those before it, which are loaded here. */
static __device__ __forceinline__ void sums_of(const causal_args &a, const place &p, int t, window (&x)[LOW + 1],
                                               float (&z)[TOK]) {
#pragma unroll
    for (int i = 0; i < TOK; i++) z[i] = p.bias;
    if (NARROW) {
#pragma unroll
        for (int g = 1; g <= LOW; g++) open_window(a, p, t - g * TOK, x[g]);
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            each_tap(a.w, t, g, x[0], x[g < LOW ? g : LOW], x[g + 1 < LOW ? g + 1 : LOW],
                     [&](int r, int i, float v) { z[i] = fmaf(p.weight[NARROW ? g * TOK + r : 0], v, z[i]); });
        return;
    }
    window high = x[0], low;
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        float weight[TOK];
#pragma unroll
        for (int r = 0; r < TOK; r++) weight[r] = g * TOK + r < K ? weight_at(a, p.c, g * TOK + r) : 0;
        open_window(a, p, t - (g + 1) * TOK, low);
        each_tap(a.w, t, g, x[0], high, low, [&](int r, int i, float v) { z[i] = fmaf(weight[r], v, z[i]); });
        high = low;
    }
}

static __device__ __forceinline__ void put(const causal_args &a, const place &p, const causal_view &to, int t,
                                           const float (&v)[TOK]) {
    T *row = (T *)row_of<T>(to, p.n, p.c);
    if (!p.live || t >= a.w) return;
    if (t >= 0 && t + TOK <= a.w) {
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
extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_fwd(const __grid_constant__ causal_args a) {
    enum { AHEAD = 2 };
    const place p = open_row(a);
    const int begin = (int)(blockIdx.x % (uint32_t)a.slices) * a.run, end = min(begin + a.run, a.w);
    const T *src = row_of<T>(a.src, p.n, p.c);
    for (int t0 = begin + p.lane * TOK; t0 < end; t0 += AHEAD * CHUNK) {
        pack<T, TOK> raw[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) raw[k] = fetch(a, src, t0 + k * CHUNK);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int t = t0 + k * CHUNK;
            if (t >= end) continue;
            window x[LOW + 1];
            float z[TOK];
            open_window(a, p, t, raw[k], x[0]);
            sums_of(a, p, t, x, z);
#pragma unroll
            for (int i = 0; i < TOK; i++) z[i] = SEQ && x[0].seq[SEQ ? i : 0] < 0 ? 0 : activate(z[i] * SCALE);
            put(a, p, a.dst, t, z);
        }
    }
    if (HAS_HN && p.live && end == a.w) keep_last(a, p);
}

/* ---------------------------------------------------------------- gradients */
#else
/* dz of TOK tokens from the windows of x and from diff_dst; 0 where there is no token. */
static __device__ __forceinline__ void diff_sums_of(const causal_args &a, const place &p, int t, window (&x)[LOW + 1],
                                                    const pack<T, TOK> &dy, float (&dz)[TOK]) {
    float z[TOK];
    if (SILU || (WEIGHTS && NARROW)) sums_of(a, p, t, x, z);
#pragma unroll
    for (int i = 0; i < TOK; i++) dz[i] = widen(dy.v[i]) * (SILU ? slope(z[i] * SCALE) : 1.0f);
    if (t + TOK > a.w)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i >= a.w) dz[i] = 0;
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (x[0].seq[SEQ ? i : 0] < 0) dz[i] = 0;
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
            if (counts)
                dx[i] = fmaf(weight[r], i + r < TOK ? low[(i + r) & (TOK - 1)] : high[(i + r) & (TOK - 1)], dx[i]);
        }
    }
}

/* diff_src of TOK tokens; before the first token, diff_h0. The whole warp calls. */
static __device__ __forceinline__ void put_diff(const causal_args &a, const place &p, int t, const float (&dz)[TOK],
                                                const float (&kept)[TOK]) {
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
#pragma unroll
            for (int r = 0; r < TOK; r++) weight[r] = g * TOK + r < K ? weight_at(a, p.c, g * TOK + r) : 0;
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
    put(a, p, a.diff_src, t, dx);
    if (HAS_H0 && t < 0 && p.live)
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

static __device__ __forceinline__ void add_up(const causal_args &a, const place &p, int t, const window (&x)[LOW + 1],
                                              const float (&dz)[TOK], totals &s) {
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
        open_window(a, p, t - (g + 1) * TOK, low);
        each_tap(a.w, t, g, x[0], high, low, [&](int r, int i, float v) { sum[r] = fmaf(dz[i], v, sum[r]); });
#pragma unroll
        for (int r = 0; r < TOK; r++) {
            const float all = lanes_all<plus, LANES>(sum[r]);
            if (p.lane == r % LANES && g * TOK + r < K) s.unit[g * TOK + r] += all;
        }
        high = low;
    }
}

static __device__ __forceinline__ void put_totals(const causal_args &a, const place &p, totals &s) {
    const int64_t slice = p.n * a.slices + blockIdx.x % (uint32_t)a.slices;
    float *to = a.partial + (slice * a.c + p.c) * (K + 1);
#pragma unroll
    for (int b = 0; b < TAPS && NARROW; b++) {
        const float all = lanes_all<plus, LANES>(s.own[b]);
        if (p.live && p.lane == 0) to[b] = all;
    }
    const float bias = lanes_all<plus, LANES>(s.bias);
    if (!p.live) return;
    if (p.lane == 0) to[K] = bias;
    for (int b = p.lane; b < K && !NARROW; b += LANES) to[b] = s.unit[b];
}

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_bwd(const __grid_constant__ causal_args a) {
    __shared__ float unit_sums[NARROW ? 1 : UNITS * K];
    const place p = open_row(a);
    const int segment = (int)(blockIdx.x % (uint32_t)a.slices), begin = segment * a.run, end = min(begin + a.run, a.w);
    const T *src = row_of<T>(a.src, p.n, p.c), *diff_dst = row_of<T>(a.diff_dst, p.n, p.c);
    float dz[TOK] = {}, kept[TOK] = {};
    window x[LOW + 1];
    totals s = {};
    if (!NARROW) {
        s.unit = unit_sums + threadIdx.x / LANES * K;
        for (int b = p.lane; b < K; b += LANES) s.unit[b] = 0;
        __syncwarp();
    }
    if (DATA && end < a.w && p.lane * TOK < K - 1) { /* dz behind the segment */
        open_window(a, p, end + p.lane * TOK, x[0]);
        diff_sums_of(a, p, end + p.lane * TOK, x, fetch(a, diff_dst, end + p.lane * TOK), kept);
    }
    int t = begin + (end - 1 - begin) / CHUNK * CHUNK + p.lane * TOK;
    pack<T, TOK> next = fetch(a, src, t), next_dy = fetch(a, diff_dst, t);
    for (int t0 = t - p.lane * TOK; t0 >= begin; t0 -= CHUNK, t -= CHUNK) {
        const pack<T, TOK> dy = next_dy;
        open_window(a, p, t, next, x[0]);
        if (t0 > begin) {
            next = fetch(a, src, t - CHUNK);
            next_dy = fetch(a, diff_dst, t - CHUNK);
        }
        diff_sums_of(a, p, t, x, dy, dz);
        if (WEIGHTS) add_up(a, p, t, x, dz, s);
        if (!DATA) continue;
        put_diff(a, p, t, dz, kept);
#pragma unroll
        for (int i = 0; i < TOK; i++) kept[i] = dz[i];
    }
    if (DATA && HAS_H0 && begin == 0) {
#pragma unroll
        for (int i = 0; i < TOK; i++) dz[i] = 0;
        put_diff(a, p, t, dz, kept);
    }
    if (WEIGHTS) put_totals(a, p, s);
}
#endif
#endif
