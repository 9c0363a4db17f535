/* Gradients of maximum, average and adaptive average pooling, in gather form; f32, f16, bf16; both layouts.
 * Math:      as in src/ref/pool.h: each input adds up the windows that hold it, in their order; no atomics
 * Blocking:  ROWS x COLUMNS neighbouring inputs per thread, of VEC channels where they lie together; it reads each
 *            window over them once
 * Traffic:   each tensor once from memory; windows over several threads' inputs again from L1
 * Roofline:  bandwidth. Measured on an H200, 64x256x56x56 f32, 3 s2: max and average 3.5 TB/s, both layouts
 * Assumes:   all tensors dense in one order
 * Try:       weft bench max_pool2d:bwd:f32:nchw:n64c256h56w56:k3s2p1@cuda */
#include "pool/pool.h"

#ifndef __CUDACC_RTC__
static const char *const *const variants = NULL;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    pool_tile *t = WEFT__PARAMS(pool_tile, d);
    const char *refusal = pool_refusal(p, t);
    (void)variant;
    if (refusal) return refusal;
    if (p->op != WEFT_OP_ADAPTIVE_AVG_POOL || pool_even(p)) {
        /* whole strides, so that windows lie around every tile in the same way */
        const int64_t sh = pool_step(p, 1), sw = pool_step(p, 2);
        const int vec = cuda_vec(p, p->in[2]);
        t->columns = t->last ? (int)(sw <= 2 ? WEFT__MIN(p->in[2], 2) : 1) : vec % sw && sw <= 4 ? (int)sw : vec;
        t->rows = (int)WEFT__MIN(p->in[1], sh <= 4 && sh > 1 ? sh : 2);
    }
    d->ns = cuda_ns(hw, weft__bytes(p), 0.75, 1) + weft__flops(p) / (0.1 * hw->gpu->gflops);
    return NULL;
}

static weft_status run(const weft__exec *e) {
    pool_args a = pool_args_of(e);
    return pool_launch(e, &a, a.in);
}

POOL_KERNELS(bwd, BWD, "pool/bwd.cu", "pool_bwd");

#else
enum { PLACES = ROWS * COLUMNS };

/* Tap number along an axis with which window o reads place x; negative: with none. */
template <int A> static __device__ __forceinline__ int tap(int o, int x) {
    const int distance = x + pad<A>() - o * stride<A>();
    if (distance < 0 || distance % dilation<A>() || distance / dilation<A>() >= kernel<A>()) return -1;
    return distance / dilation<A>();
}

template <int A> static __device__ __forceinline__ bool holds(const pool_args &a, int o, int x) {
    if (!ADAPTIVE) return tap<A>(o, x) >= 0;
    const span w = reads<A>(a, o);
    return x >= w.lo && x < w.hi;
}

/* Tiles of whole strides, or means over windows side by side that hold whole tiles: how far each place is from the
 * windows around it is known when this is compiled. Window j along an axis is number at / S + P / S + j of a tile at
 * `at`. */
template <int K, int S, int P, int D, int PLACES_> struct around {
    static constexpr bool WITHIN = !MAXIMUM && K == S && P == 0 && D == 1 && S % PLACES_ == 0;
    static constexpr bool FIXED = WITHIN || PLACES_ % S == 0;
    static constexpr int LO = !WITHIN && (K - 1) * D > P % S ? -(((K - 1) * D - P % S) / S) : 0,
                         HI = WITHIN ? 0 : (PLACES_ - 1 + P % S) / S;
    /* The tap with which window j reads place k; negative: none. WITHIN: some tap. */
    static __device__ constexpr int tap(int j, int k) {
        const int distance = k + P % S - j * S;
        return !WITHIN && (distance < 0 || distance % D || distance / D >= K) ? -1 : distance / D;
    }
};
typedef around<K1, S1, P1, D1, ROWS> rows_around;
typedef around<K2, S2, P2, D2, COLUMNS> columns_around;
enum { JLO = rows_around::LO, JHI = rows_around::HI, ILO = columns_around::LO, IHI = columns_around::HI };
enum { FIXED = !ADAPTIVE && rows_around::FIXED && columns_around::FIXED };

/* Window (j, i) around a tile, at element `at`; r: its tap along z. */
static __device__ __forceinline__ void fixed_window(const pool_args &a, const tile &t, int r, int j, int i, int64_t at,
                                                    float (&sum)[PLACES][VEC]) {
    float dy[VEC];
    load((const T *)a.from + at, dy);
#if MAXIMUM
    pack<INDEX_T, VEC> said;
    const int64_t first = ((int64_t)t.z * a.in[1] + t.y) * a.in[2] + t.x;
    load_raw((const INDEX_T *)a.index + at, said);
#else
    const int oy = t.y / S1 + P1 / S1 + j, ox = t.x / S2 + P2 / S2 + i;
    const float share = DIVISOR ? 1 : share_of(reads<0>(a, (t.z + P0 - r * D0) / S0), reads<1>(a, oy), reads<2>(a, ox));
#pragma unroll
    for (int v = 0; v < VEC; v++) dy[v] *= share;
#endif
#pragma unroll
    for (int k = 0; k < PLACES; k++) {
        const int y = rows_around::tap(j, k / COLUMNS), x = columns_around::tap(i, k % COLUMNS);
        if (y < 0 || x < 0) continue;
#pragma unroll
        for (int v = 0; v < VEC; v++) {
#if MAXIMUM
            const bool mine = TAPS ? (int)said.v[v] == (r * K1 + y) * K2 + x
                                   : (int64_t)said.v[v] - first == (int64_t)(k / COLUMNS) * a.in[2] + k % COLUMNS;
            if (mine) sum[k][v] += dy[v];
#else
            sum[k][v] += dy[v];
#endif
        }
    }
}

#if MAXIMUM
/* Which place of the tile window (oz, oy, ox) says, in its own count; negative: none. r: its tap along z. */
static __device__ __forceinline__ int place_said(const pool_args &a, const tile &t, int r, int oy, int ox,
                                                 int64_t said) {
    if (TAPS) {
        const unsigned tap = (unsigned)((int)said - r * (K1 * K2));
        const int y = oy * S1 - P1 + (int)(tap / K2) * D1 - t.y, x = ox * S2 - P2 + (int)(tap % K2) * D2 - t.x;
        return tap < K1 * K2 && (unsigned)y < ROWS && (unsigned)x < COLUMNS ? y * COLUMNS + x : -1;
    }
    const int64_t from = said - (((int64_t)t.z * a.in[1] + t.y) * a.in[2] + t.x);
    int place = -1;
#pragma unroll
    for (int k = 0; k < PLACES; k++)
        if (from == (int64_t)(k / COLUMNS) * a.in[2] + k % COLUMNS && holds<1>(a, oy, t.y + k / COLUMNS) &&
            t.x + k % COLUMNS < a.in[2] && holds<2>(a, ox, t.x + k % COLUMNS))
            place = k;
    return place;
}

static __device__ __forceinline__ void window(const pool_args &a, const tile &t, int oz, int oy, int ox, int64_t at,
                                              float (&sum)[PLACES][VEC]) {
    const int r = tap<0>(oz, t.z);
    if (r < 0) return;
    pack<INDEX_T, VEC> said;
    float dy[VEC];
    load((const T *)a.from + at, dy);
    said.word = *(const typename access<sizeof(INDEX_T) * VEC>::word *)((const INDEX_T *)a.index + at);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const int place = place_said(a, t, r, oy, ox, (int64_t)said.v[i]);
#pragma unroll
        for (int k = 0; k < PLACES; k++)
            if (place == k) sum[k][i] += dy[i];
    }
}
#else
static __device__ __forceinline__ void window(const pool_args &a, const tile &t, int oz, int oy, int ox, int64_t at,
                                              float (&sum)[PLACES][VEC]) {
    float dy[VEC];
    load((const T *)a.from + at, dy);
    const float share = share_of(reads<0>(a, oz), reads<1>(a, oy), reads<2>(a, ox));
#pragma unroll
    for (int i = 0; i < VEC; i++) dy[i] *= share;
#pragma unroll
    for (int k = 0; k < PLACES; k++)
        if (PLACES == 1 || (holds<1>(a, oy, t.y + k / COLUMNS) && holds<2>(a, ox, t.x + k % COLUMNS)))
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[k][i] += dy[i];
}
#endif

/* Channels-first the columns of a row lie together: one store where the rows are whole tiles. */
static __device__ __forceinline__ void put(const pool_args &a, const tile &t, const float (&sum)[PLACES][VEC]) {
    T *to = (T *)a.to + (((t.plane * a.in[0] + t.z) * a.in[1] + t.y) * a.in[2] + t.x) * t.pixel + t.channel;
#pragma unroll
    for (int y = 0; y < ROWS; y++) {
        if (t.y + y >= a.in[1]) break;
        T *row = to + (int64_t)y * a.in[2] * t.pixel;
        if (LAST || !WHOLE) {
#pragma unroll
            for (int x = 0; x < COLUMNS; x++)
                if (t.x + x < a.in[2]) store(row + x * t.pixel, sum[y * COLUMNS + x]);
        } else {
            float v[COLUMNS];
#pragma unroll
            for (int x = 0; x < COLUMNS; x++) v[x] = sum[y * COLUMNS + x][0];
            store(row, v);
        }
    }
}

static __device__ __forceinline__ void gather_fixed(const pool_args &a, const tile &t, float (&sum)[PLACES][VEC]) {
    const span d = feeds<0>(a, t.z, 1);
    const int y = t.y / S1 + P1 / S1, x = t.x / S2 + P2 / S2;
    for (int oz = d.lo; oz < d.hi; oz++) {
        const int r = K0 == 1 ? 0 : tap<0>(oz, t.z);
        if (r < 0) continue;
        const int64_t from = ((t.plane * a.out[0] + oz) * a.out[1]) * a.out[2] * t.pixel + t.channel;
#pragma unroll
        for (int j = JLO; j <= JHI; j++)
#pragma unroll
            for (int i = ILO; i <= IHI; i++)
                if ((unsigned)(y + j) < (unsigned)a.out[1] && (unsigned)(x + i) < (unsigned)a.out[2])
                    fixed_window(a, t, r, j, i, from + (int64_t)((y + j) * a.out[2] + x + i) * t.pixel, sum);
    }
    if (DIVISOR)
#pragma unroll
        for (int k = 0; k < PLACES; k++)
#pragma unroll
            for (int v = 0; v < VEC; v++) sum[k][v] *= 1 / (float)DIVISOR;
}

static __device__ __forceinline__ void gather_any(const pool_args &a, const tile &t, float (&sum)[PLACES][VEC]) {
    const span d = feeds<0>(a, t.z, 1), h = feeds<1>(a, t.y, ROWS), w = feeds<2>(a, t.x, COLUMNS);
    for (int oz = d.lo; oz < d.hi; oz++) {
        const int64_t from = ((t.plane * a.out[0] + oz) * a.out[1]) * a.out[2] * t.pixel + t.channel;
        for (int oy = h.lo; oy < h.hi; oy++)
            for (int ox = w.lo; ox < w.hi; ox++)
                window(a, t, oz, oy, ox, from + ((int64_t)oy * a.out[2] + ox) * t.pixel, sum);
    }
}

static __device__ __forceinline__ void gather(const pool_args &a, const tile &t) {
    /* windows around a tile in fixed places: code for each */
    constexpr bool SMALL = FIXED && (JHI - JLO + 1) * (IHI - ILO + 1) <= 32;
    float sum[PLACES][VEC] = {};
    if (SMALL)
        gather_fixed(a, t, sum);
    else
        gather_any(a, t, sum);
    put(a, t, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) pool_bwd(const __grid_constant__ pool_args a) {
    for (int64_t unit = (int64_t)blockIdx.x * THREADS + threadIdx.x; unit < a.units;
         unit += (int64_t)gridDim.x * THREADS)
        gather(a, tile_of(a, unit, a.in[0]));
}
#endif
