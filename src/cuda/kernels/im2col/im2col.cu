/* Image to columns and back, each the gradient of the other, the whole batch at once; f32, f16, bf16; both layouts.
 * Math:      columns[n,c,k,o] = image[n,c,o s - p + k d], 0 in the padding
 *            image[n,c,x] = sum_k columns[n,c,k,(x + p - k d) / s], whole quotients only: in gather form, no atomics
 * Blocking:  columns: a thread has VEC windows of a row, or VEC channels of a window where they lie together, and
 *            writes all their taps; a row of the image is read once per row of taps. Image: a thread has a place (VEC
 *            channels of it where they lie together) and adds up the windows over it, neighbours in neighbouring lanes
 * Traffic:   image once, columns once; taps of windows that overlap from L1
 * Roofline:  bandwidth. Measured on an H200, 32x64x56x56 window 3: columns 3.6, image 3.7 TB/s in f32; 3.1 and 3.3 in
 *            f16
 * Assumes:   both tensors dense in one order and of one data type
 * Try:       weft bench im2col2d:fwd:f32:nchw:n32c64h56w56:k3p1@cuda col2im2d:fwd:f32:nchw:n32c64h56w56:k3p1@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 256, SEGMENT_MOST = 24 };

typedef struct im2col_args {
    const void *from;
    void *to;
    int64_t units;         /* threads with work */
    int64_t planes, pixel; /* planes: n c, or n where the channels lie together; pixel: elements of one there, else 1 */
    int32_t in[3], out[3];
} im2col_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    bool last, columns;
    int vec;
} tile;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = cuda_dense(p, &t->last);
    (void)variant;
    if (refusal) return refusal;
    for (int a = 0; a < 3; a++)
        if (p->in[a] > 1 << 28 || p->out[a] > 1 << 28 || p->kernel[a] > 1 << 12 || p->stride[a] > 1 << 20 ||
            p->dilation[a] > 1 << 16 || p->pad_lo[a] > 1 << 28)
            return "an axis of 2^28 or more, or a window of 2^12 or more";
    t->columns = (p->op == WEFT_OP_IM2COL) == (p->pass == WEFT_PASS_FWD);
    t->vec = cuda_vec(p, t->last ? p->c : p->out[2]);
    const int64_t reach = (p->kernel[2] - 1) * p->dilation[2] + 1; /* places of a row that a window spans */
    if (!t->last && t->columns)
        while (t->vec > 1 && (t->vec - 1) * p->stride[2] + reach > SEGMENT_MOST) t->vec /= 2;
    if (!t->last && !t->columns)
        t->vec = p->stride[2] == 1 && p->kernel[2] <= 16 ? WEFT__MIN(t->vec, cuda_vec(p, p->in[2])) : 1;
    const double taps = (double)p->kernel[0] * (double)p->kernel[1] * (double)p->kernel[2];
    if (taps > 1 << 20) return "a window has over 2^20 places";
    d->ns = cuda_ns(hw, weft__bytes(p), t->vec * (int)weft__dtype_size(p->tensor[0].dtype) >= 4 ? 0.8 : 0.5, 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(text, " -DLAST=%d -DTO_COLUMNS=%d", t->last, t->columns);
    for (int a = 0; a < 3; a++)
        weft__put(text, " -DK%d=%d -DS%d=%d -DP%d=%d -DD%d=%d", a, (int)p->kernel[a], a, (int)p->stride[a], a,
                  (int)p->pad_lo[a], a, (int)p->dilation[a]);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const tile *t = e->params;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    im2col_args a = {.from = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST],
                     .to = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                     .planes = t->last ? p->n : p->n * p->c,
                     .pixel = t->last ? p->c : 1};
    a.units = a.planes * a.pixel;
    for (int i = 0; i < 3; i++) {
        a.in[i] = (int32_t)p->in[i], a.out[i] = (int32_t)p->out[i];
        a.units *= t->columns ? p->out[i] : p->in[i];
    }
    a.units /= t->vec;
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(cuda_ceil(a.units, THREADS), 1 << 30), 1, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

#define COLUMNS(NAME, name_)                                         \
    const weft__kernel weft__cuda_##name_ = {                        \
        .name = #name_ "_gather__cuda",                              \
        .version = 1,                                                \
        .op = WEFT_OP_##NAME,                                        \
        .engine = WEFT_ENGINE_CUDA,                                  \
        .dtypes = CUDA_FLOATS,                                       \
        .exact = true,                                               \
        .plan = plan,                                                \
        .run = run,                                                  \
        WEFT__PARTS({"im2col/im2col.cu", "im2col", defines, false}), \
    }
COLUMNS(IM2COL, im2col);
COLUMNS(COL2IM, col2im);

#else
#include "vec.h"

enum { TAPS = K0 * K1 * K2, ACROSS = LAST ? 1 : VEC }; /* ACROSS: neighbouring places of a thread */
enum { SEGMENT = (ACROSS - 1) * S2 + (K2 - 1) * D2 + 1 };
enum { UNROLL_ROWS = K1 <= 3 ? K1 : 1, UNROLL_TAPS = K2 <= 8 ? K2 : 4 };

/* The first place of a unit among `size`, and where its channels lie. */
struct place {
    int64_t plane, channel;
    int z, y, x;
};

static __device__ __forceinline__ place place_of(const im2col_args &a, int64_t unit, const int32_t (&size)[3]) {
    place p;
    INDEX rest = (INDEX)unit;
    p.channel = 0;
    if (LAST) {
        const INDEX vectors = (INDEX)a.pixel / VEC, at = rest / vectors;
        p.channel = (int64_t)(rest - at * vectors) * VEC;
        rest = at;
    }
    const INDEX wide = (INDEX)size[2] / ACROSS, row = rest / wide, slab = row / (INDEX)size[1];
    p.x = (int)(rest - row * wide) * ACROSS;
    p.y = (int)(row - slab * (INDEX)size[1]);
    p.plane = size[0] == 1 ? slab : slab / (INDEX)size[0];
    p.z = size[0] == 1 ? 0 : (int)(slab - (INDEX)p.plane * (INDEX)size[0]);
    return p;
}

/* A row of taps of windows that lie side by side: each place of the image row is loaded once. */
static __device__ __forceinline__ void tap_row(const T *row, bool inside, int x, int width, T *to, int64_t tap) {
    pack<T, 1> segment[SEGMENT];
#pragma unroll
    for (int i = 0; i < SEGMENT; i++) {
        segment[i].v[0] = narrow<T>(0);
        if (inside && (unsigned)(x + i) < (unsigned)width) load_raw(row + x + i, segment[i]);
    }
#pragma unroll
    for (int s = 0; s < K2; s++) {
        pack<T, VEC> v;
#pragma unroll
        for (int i = 0; i < VEC; i++) v.v[i] = segment[i * S2 + s * D2].v[0];
        *(typename access<sizeof(T) * VEC>::word *)(to + s * tap) = v.word;
    }
}

/* The taps of one window in plane z of the image, or of VEC of its channels, BATCH loads under way. */
static __device__ __forceinline__ void taps_of_one(const im2col_args &a, const T *plane, bool inside, const place &p,
                                                   int64_t pixel, T *to, int64_t tap) {
    constexpr int BATCH = K1 * K2 <= 9 ? K1 * K2 : 8;
    for (int begin = 0; begin < K1 * K2; begin += BATCH) {
        pack<T, VEC> v[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int y = p.y * S1 - P1 + (begin + k) / K2 * D1, x = p.x * S2 - P2 + (begin + k) % K2 * D2;
#pragma unroll
            for (int i = 0; i < VEC; i++) v[k].v[i] = narrow<T>(0);
            if (inside && begin + k < K1 * K2 && (unsigned)y < (unsigned)a.in[1] && (unsigned)x < (unsigned)a.in[2])
                load_raw(plane + ((int64_t)y * a.in[2] + x) * pixel, v[k]);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (begin + k < K1 * K2) *(typename access<sizeof(T) * VEC>::word *)(to + (begin + k) * tap) = v[k].word;
    }
}

static __device__ __forceinline__ void columns(const im2col_args &a) {
    const int64_t pixel = LAST ? a.pixel : 1, tap = (int64_t)a.out[0] * a.out[1] * a.out[2] * pixel;
    for (int64_t unit = (int64_t)blockIdx.x * THREADS + threadIdx.x; unit < a.units;
         unit += (int64_t)gridDim.x * THREADS) {
        const place p = place_of(a, unit, a.out);
        const T *image = (const T *)a.from + p.plane * a.in[0] * a.in[1] * a.in[2] * pixel + p.channel;
        T *to =
            (T *)a.to + p.plane * TAPS * tap + (((int64_t)p.z * a.out[1] + p.y) * a.out[2] + p.x) * pixel + p.channel;
#pragma unroll 1
        for (int r = 0; r < K0; r++) {
            const int z = p.z * S0 - P0 + r * D0;
            const bool inside = (unsigned)z < (unsigned)a.in[0];
            const T *plane = image + (int64_t)z * a.in[1] * a.in[2] * pixel;
            T *first = to + r * K1 * K2 * tap;
            if (ACROSS == 1) taps_of_one(a, plane, inside, p, pixel, first, tap);
#pragma unroll(UNROLL_ROWS)
            for (int q = 0; q < K1 && ACROSS > 1; q++) {
                const int y = p.y * S1 - P1 + q * D1;
                tap_row(plane + (int64_t)y * a.in[2], inside && (unsigned)y < (unsigned)a.in[1], p.x * S2 - P2, a.in[2],
                        first + q * K2 * tap, tap);
            }
        }
    }
}

/* The windows over place x along an axis are o = (x + P) / S - i, i = 0 .. windows - 1; each with at most one tap. */
struct over {
    int o, tap; /* tap negative: none */
};
template <int K, int S, int P, int D> static __device__ __forceinline__ over window(int x, int i, int out) {
    const int last = (x + P) / S, distance = (x + P) % S + i * S;
    over w = {last - i, distance / D};
    if (distance % D || w.tap >= K || w.o < 0 || w.o >= out) w.tap = -1;
    return w;
}

/* Columns start .. start + VEC - 1 of a row of `width`, start = x + P - k D with x a multiple of VEC: one vector, or
 * parts of two, each inside the row or outside as a whole. */
template <int K> static __device__ __forceinline__ void add_tap(const T *row, int x, int width, float (&sum)[VEC]) {
    constexpr int AWAY = P2 - K * D2, SHIFT = (AWAY % VEC + VEC) % VEC;
    const int at = x + AWAY - SHIFT;
    float v[2 * VEC] = {}, part[VEC];
    if ((unsigned)at < (unsigned)width) {
        load(row + at, part);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = part[i];
    }
    if (SHIFT && (unsigned)(at + VEC) < (unsigned)width) {
        load(row + at + VEC, part);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[VEC + i] = part[i];
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) sum[i] += v[SHIFT + i];
}

template <int K> struct taps { /* of a row, from K on */
    static __device__ __forceinline__ void add(const T *row, int64_t tap, int x, int width, float (&sum)[VEC]) {
        add_tap<K>(row + K * tap, x, width, sum);
        taps<K + 1>::add(row, tap, x, width, sum);
    }
};
template <> struct taps<K2> {
    static __device__ __forceinline__ void add(const T *, int64_t, int, int, float (&)[VEC]) {}
};

/* The windows in one row over a place, or VEC of its channels, one by one. */
static __device__ __forceinline__ void add_windows(const T *row, int64_t tap, int64_t pixel, int at, int width,
                                                   float (&sum)[VEC]) {
    constexpr int W2 = (K2 - 1) * D2 / S2 + 1;
#pragma unroll(UNROLL_TAPS)
    for (int k = 0; k < W2; k++) {
        const over x = window<K2, S2, P2, D2>(at, k, width);
        float v[VEC];
        if (x.tap < 0) continue;
        load(row + x.tap * tap + x.o * pixel, v);
#pragma unroll
        for (int n = 0; n < VEC; n++) sum[n] += v[n];
    }
}

static __device__ __forceinline__ void image(const im2col_args &a) {
    constexpr int W0 = (K0 - 1) * D0 / S0 + 1, W1 = (K1 - 1) * D1 / S1 + 1;
    const int64_t pixel = LAST ? a.pixel : 1, tap = (int64_t)a.out[0] * a.out[1] * a.out[2] * pixel;
    for (int64_t unit = (int64_t)blockIdx.x * THREADS + threadIdx.x; unit < a.units;
         unit += (int64_t)gridDim.x * THREADS) {
        const place p = place_of(a, unit, a.in);
        const T *from = (const T *)a.from + p.plane * TAPS * tap + p.channel;
        float sum[VEC] = {};
#pragma unroll 1
        for (int i = 0; i < W0; i++) {
            const over z = window<K0, S0, P0, D0>(p.z, i, a.out[0]);
            if (z.tap < 0) continue;
#pragma unroll(UNROLL_ROWS)
            for (int j = 0; j < W1; j++) {
                const over y = window<K1, S1, P1, D1>(p.y, j, a.out[1]);
                if (y.tap < 0) continue;
                const T *row =
                    from + (z.tap * K1 + y.tap) * K2 * tap + ((int64_t)z.o * a.out[1] + y.o) * a.out[2] * pixel;
                if (ACROSS > 1)
                    taps<(ACROSS > 1 ? 0 : K2)>::add(row, tap, p.x, a.out[2], sum);
                else
                    add_windows(row, tap, pixel, p.x, a.out[2], sum);
            }
        }
        store((T *)a.to + (((p.plane * a.in[0] + p.z) * a.in[1] + p.y) * a.in[2] + p.x) * pixel + p.channel, sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) im2col(const __grid_constant__ im2col_args a) {
    TO_COLUMNS ? columns(a) : image(a);
}
#endif
