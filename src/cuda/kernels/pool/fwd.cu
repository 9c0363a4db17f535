/* Maximum, average and adaptive average pooling, forward; f32, f16, bf16; both layouts.
 * Math:      as in src/ref/pool.h
 * Blocking:  channels-first: COLUMNS neighbouring outputs of ROWS rows per thread, from vectors of VEC places of a row
 *            of the input; results are stored in whole lines. Channels-last: VEC channels of ROWS outputs below each
 *            other. Of small tensors ROWS is 1. Adaptive windows of more than 64 places, channels-first: an output per
 *            warp
 * Traffic:   each tensor once from memory; windows that overlap read again from L1
 * Roofline:  bandwidth. Measured on an H200, 64x256x56x56 f32, 3 s2: max 3.3 TB/s with a byte index, 2.9 channels-last;
 *            average 3.6. Through shared memory, whole planes at a time, it was 2.1 and 2.8
 * Assumes:   all tensors dense in one order
 * Try:       weft bench max_pool2d:fwd:f32:nchw:n64c256h56w56:k3s2p1index1@cuda */
#include "pool/pool.h"

enum { SEGMENT_MOST = 32 };

#ifndef __CUDACC_RTC__
/* Channels-first: neighbouring outputs of a thread, and vectors of a row that hold what they read. A row of tiles is
 * stored in whole lines. */
static void across(const weft_problem *p, pool_tile *t) {
    const int64_t step = pool_step(p, 2), reach = (pool_window(p, 2) - 1) * p->dilation[2] + 1;
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    t->columns = index && index->align < 16 ? 1 : cuda_vec(p, p->out[2]);
    while (t->columns > 1 && (t->columns - 1) * step + reach > SEGMENT_MOST) t->columns /= 2;
    t->vec = reach > SEGMENT_MOST ? 1 : cuda_vec(p, p->in[2]);
    while (t->columns * step % t->vec) t->vec /= 2;
}

static const char *const variants[] = {"rows", "row", NULL};

/* A thread waits for one place after the other, but for those of a short window of an adaptive pool; as measured on an
 * H200. */
static double serial_ns(const weft_problem *p, const pool_tile *t, double places) {
    if (t->warp) return 450 * (double)cuda_ceil((int64_t)places, 32);
    if (p->op != WEFT_OP_ADAPTIVE_AVG_POOL) return t->last ? 400 * places : 0;
    return (t->last && (places > 64 || p->in[0] > p->out[0]) ? 300 : 20) * places;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    pool_tile *t = WEFT__PARAMS(pool_tile, d);
    const char *refusal = pool_refusal(p, t);
    if (refusal) return refusal;
    const double outputs = (double)weft__numel(weft__tensor(p, WEFT_ROLE_DST)), places = weft__flops(p) / outputs;
    t->warp = p->op == WEFT_OP_ADAPTIVE_AVG_POOL && !t->last && places > 64;
    bool either = false; /* are there two variants? */
    if (!t->warp && (p->op != WEFT_OP_ADAPTIVE_AVG_POOL || pool_even(p))) {
        if (!t->last) across(p, t);
        const int rows = t->last ? 2 : t->columns == 1 ? 4 : p->op == WEFT_OP_MAX_POOL ? 2 : 1;
        t->rows = (int)WEFT__MIN(p->out[1], variant ? 1 : rows);
        if (variant && rows == 1) return "one row either way";
        either = rows > 1 && p->out[1] > 1;
        /* code for every row that a tile reads */
        while (t->rows > 1 && ((t->rows - 1) * pool_step(p, 1) + (pool_window(p, 1) - 1) * p->dilation[1] + 1) *
                                      pool_window(p, 2) * t->columns >
                                  128)
            t->rows--;
    }
    if (variant && (t->warp || (p->op == WEFT_OP_ADAPTIVE_AVG_POOL && !pool_even(p)))) return "one row either way";
    const bool small = outputs <= 8.0 * CUDA_WAVE * (t->last ? t->vec : t->columns);
    d->ns = cuda_ns(hw, weft__bytes(p), 0.7, 1) +
            WEFT__MAX(outputs * places / (0.1 * hw->gpu->gflops), serial_ns(p, t, places));
    if (either && small != (variant == 1)) d->ns *= 1.2;
    return NULL;
}

static weft_status run(const weft__exec *e) {
    pool_args a = pool_args_of(e);
    return pool_launch(e, &a, a.out);
}

POOL_KERNELS(fwd, FWD, "pool/fwd.cu", "pool_fwd");

#else
enum { SPAN = (ROWS - 1) * S1 + (K1 - 1) * D1 + 1 };            /* rows that a tile reads */
enum { SEGMENT = (COLUMNS - 1) * S2 + (K2 - 1) * D2 + 1 };      /* places of a row, channels-first */
enum { KEPT = !LAST && SEGMENT <= SEGMENT_MOST ? SEGMENT : 1 }; /* of them in registers, or one after the other */
enum { OUTS = LAST ? VEC : COLUMNS }; /* outputs of a thread and row: channels, or neighbours */
enum { SMALL = SPAN * K2 <= 64, UNROLL_TAPS = SMALL ? K2 : 1, UNROLL_SPAN = SMALL ? SPAN : 1 };

/* The greatest so far of each output's window and its number, or the sum. */
struct best {
    float value[OUTS];
    int tap[OUTS];
};

/* First tap of a window along an axis that is inside. */
template <int A> static __device__ __forceinline__ int first_tap(int o) {
    const int at = o * stride<A>() - pad<A>();
    return at < 0 ? (dilation<A>() - 1 - at) / dilation<A>() : 0;
}

template <int A> static __device__ __forceinline__ bool has_tap(const pool_args &a, int o) {
    const int first = first_tap<A>(o);
    if (dilation<A>() == 1) return true; /* padding is at most half of a window */
    return first < kernel<A>() && o * stride<A>() - pad<A>() + first * dilation<A>() < a.in[A];
}

/* Places of a row from x * S2 - P2 on, by vectors of VEC, which lie inside the row or outside as a whole. Outside
 * nothing is greater, and nothing is added. */
static __device__ __forceinline__ void segment_of(const pool_args &a, const T *row, int x, float (&to)[KEPT]) {
    constexpr int SKIP = (VEC - P2 % VEC) % VEC, GROUPS = (SKIP + SEGMENT + VEC - 1) / VEC;
    const int first = x * S2 - P2 - SKIP;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        const int at = first + g * VEC;
        const bool inside = (unsigned)at < (unsigned)a.in[2];
        float v[VEC], one[1] = {MAXIMUM ? -INFINITY : 0};
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = one[0];
        if (g == 0 && SKIP == VEC - 1) { /* the last place alone */
            if (inside) load(row + at + SKIP, one);
            v[VEC - 1] = one[0];
        } else if (inside) {
            load(row + at, v);
        }
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (g * VEC + i >= SKIP && g * VEC + i - SKIP < KEPT) to[g * VEC + i - SKIP] = v[i];
    }
}

static __device__ __forceinline__ void take(best &b, int i, float v, int tap) {
    if (!MAXIMUM)
        b.value[i] += v;
    else if (v > b.value[i] || v != v)
        b.value[i] = v, b.tap[i] = tap;
}

/* A row of the input, its first element at src, goes into every window of the tile that reads it; l: its number in the
 * tile's span, r: the tap along z. */
static __device__ __forceinline__ void into(best (&b)[ROWS], int s, int r, int l, const float (&v)[OUTS]) {
#pragma unroll
    for (int k = 0; k < ROWS; k++)
        if (l >= k * S1 && (l - k * S1) % D1 == 0 && (l - k * S1) / D1 < K1)
#pragma unroll
            for (int i = 0; i < OUTS; i++) take(b[k], i, v[i], (r * K1 + (l - k * S1) / D1) * K2 + s);
}

static __device__ __forceinline__ void row_into(const pool_args &a, const T *src, const tile &t, int r, int l,
                                                best (&b)[ROWS]) {
    float v[OUTS], kept[KEPT];
    if (LAST || SEGMENT > KEPT) {
#pragma unroll(UNROLL_TAPS)
        for (int s = 0; s < K2; s++) {
            const int x = t.x * S2 - P2 + s * D2;
            if ((unsigned)x >= (unsigned)a.in[2]) continue;
            load(src + x * t.pixel, v);
            into(b, s, r, l, v);
        }
        return;
    }
    segment_of(a, src, t.x, kept);
#pragma unroll
    for (int s = 0; s < K2; s++) {
#pragma unroll
        for (int i = 0; i < OUTS; i++) v[i] = kept[(i * S2 + s * D2) % KEPT];
        into(b, s, r, l, v);
    }
}

static __device__ __forceinline__ void put_index(const pool_args &a, int64_t at, const best &b, const tile &t, int oy) {
    pack<INDEX_T, OUTS> p;
    const bool rows = has_tap<0>(a, t.z) && has_tap<1>(a, oy);
#pragma unroll
    for (int i = 0; i < OUTS; i++) {
        const int ox = t.x + (LAST ? 0 : i), tap = b.tap[i], z = t.z * S0 - P0 + tap / (K1 * K2) * D0,
                  y = oy * S1 - P1 + tap / K2 % K1 * D1, x = ox * S2 - P2 + tap % K2 * D2;
        const bool any = rows && has_tap<2>(a, ox);
        p.v[i] = (INDEX_T)(TAPS ? any ? tap : 0 : any ? (z * a.in[1] + y) * a.in[2] + x : -1);
    }
    *(typename access<sizeof(INDEX_T) * OUTS>::word *)((INDEX_T *)a.index + at) = p.word;
}

static __device__ __forceinline__ void put(const pool_args &a, best &b, const tile &t, int oy) {
    const int64_t at = (((t.plane * a.out[0] + t.z) * a.out[1] + oy) * a.out[2] + t.x) * t.pixel + t.channel;
#pragma unroll
    for (int i = 0; i < OUTS && !MAXIMUM; i++)
        b.value[i] *= share_of(reads<0>(a, t.z), reads<1>(a, oy), reads<2>(a, t.x + (LAST ? 0 : i)));
    store((T *)a.to + at, b.value);
    if (INDEXED) put_index(a, at, b, t, oy);
}

static __device__ __forceinline__ void windows(const pool_args &a, const T *src, const tile &t) {
    best b[ROWS];
#pragma unroll
    for (int k = 0; k < ROWS; k++)
#pragma unroll
        for (int i = 0; i < OUTS; i++) {
            b[k].value[i] = MAXIMUM ? -INFINITY : 0;
            b[k].tap[i] = (first_tap<0>(t.z) * K1 + first_tap<1>(t.y + k)) * K2 + first_tap<2>(t.x + (LAST ? 0 : i));
        }
    for (int r = 0; r < K0; r++) {
        const int z = t.z * S0 - P0 + r * D0;
        if ((unsigned)z >= (unsigned)a.in[0]) continue;
#pragma unroll(UNROLL_SPAN)
        for (int l = 0; l < SPAN; l++) {
            const int y = t.y * S1 - P1 + l;
            bool used = false;
#pragma unroll
            for (int k = 0; k < ROWS; k++)
                used = used || (l >= k * S1 && (l - k * S1) % D1 == 0 && (l - k * S1) / D1 < K1);
            if (!used || (unsigned)y >= (unsigned)a.in[1]) continue;
            row_into(a, src + ((int64_t)z * a.in[1] + y) * a.in[2] * t.pixel, t, r, l, b);
        }
    }
#pragma unroll
    for (int k = 0; k < ROWS; k++)
        if (t.y + k < a.out[1]) put(a, b[k], t, t.y + k);
}

static __device__ __forceinline__ void adaptive(const pool_args &a, const T *src, const tile &t) {
    const span d = reads<0>(a, t.z), h = reads<1>(a, t.y), w = reads<2>(a, t.x);
    best b = {};
    for (int z = d.lo; z < d.hi; z++)
        for (int y = h.lo; y < h.hi; y++)
#pragma unroll 4
            for (int x = w.lo; x < w.hi; x++) {
                float v[VEC];
                load(src + (((int64_t)z * a.in[1] + y) * a.in[2] + x) * t.pixel, v);
#pragma unroll
                for (int i = 0; i < VEC; i++) b.value[i] += v[i];
            }
    put(a, b, t, t.y);
}

/* Averages: the lanes of a warp share the places of a window. */
static __device__ __forceinline__ void window_of_warp(const pool_args &a, const T *src, const tile &t) {
    const span d = reads<0>(a, t.z), h = reads<1>(a, t.y), w = reads<2>(a, t.x);
    const uint32_t width = w.hi - w.lo, height = h.hi - h.lo, count = (d.hi - d.lo) * height * width;
    float sum = 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32) {
        const uint32_t y = i / width, z = y / height;
        sum += widen(src[((int64_t)(d.lo + z) * a.in[1] + h.lo + (y - z * height)) * a.in[2] + w.lo + (i - y * width)]);
    }
    best b = {{lanes_all<plus, 32>(sum)}, {0}};
    if (threadIdx.x % 32 == 0) put(a, b, t, t.y);
}

static __device__ __forceinline__ void pool(const pool_args &a, const tile &t) {
    const T *src = (const T *)a.from + t.plane * a.in[0] * a.in[1] * a.in[2] * t.pixel + t.channel;
    if (WARP)
        window_of_warp(a, src, t);
    else if (ADAPTIVE)
        adaptive(a, src, t);
    else
        windows(a, src, t);
}

enum { UNITS = WARP ? THREADS / 32 : THREADS }; /* of a block */

extern "C" __global__ void __launch_bounds__(THREADS) pool_fwd(const __grid_constant__ pool_args a) {
    for (int64_t unit = (int64_t)blockIdx.x * UNITS + threadIdx.x / (THREADS / UNITS); unit < a.units;
         unit += (int64_t)gridDim.x * UNITS)
        pool(a, tile_of(a, unit, a.out[0]));
}
#endif
