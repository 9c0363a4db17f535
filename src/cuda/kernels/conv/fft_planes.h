/* The device code of depthwise_fft.cu: units of tiles and pairs of images, the way of a plane through columns and rows,
 * and the sums of the weights' gradient. For device code only. */
#ifndef WEFT_CUDA_FFT_PLANES_H
#define WEFT_CUDA_FFT_PLANES_H

#include "conv/fft.h"

/* Point (row, column) of a plane. */
static __device__ __forceinline__ point &point_at(int plane, int row, int column) {
    return ((point *)bytes)[plane * PITCH + row * (N2 + 1) + column];
}

/* What a block works on: a tile of two images for each lane. */
struct unit {
    int segment, round, y, x; /* first outputs of the tile */
};
static __device__ __forceinline__ unit unit_at(const fft_args &a, int number) {
    unit u;
    u.segment = number / a.span;
    const int rest = number - u.segment * a.span, tile = rest / a.rounds;
    u.round = rest - tile * a.rounds;
    u.y = tile / a.across * a.tile[0];
    u.x = (tile - tile / a.across * a.across) * a.tile[1];
    return u;
}

/* The images of a lane. */
struct place {
    int64_t channel;
    int image;
    bool first, second; /* they exist */
};
static __device__ __forceinline__ place place_of(const fft_args &a, const unit &u, int lane) {
    place p;
    p.channel = (int64_t)u.segment * CHANNELS + lane % CHANNELS;
    p.image = 2 * (u.round * (LANES / CHANNELS) + lane / CHANNELS);
    p.first = p.channel < a.channels && p.image < a.n;
    p.second = p.channel < a.channels && p.image + 1 < a.n;
    return p;
}

/* The part of a tensor that a plane holds: point (0, 0) is element (top, left); columns first .. first + count - 1
 * exist, and rows before `rows`. */
struct window {
    int top, left, first, count, rows;
};
static __device__ __forceinline__ window window_of(const fft_args &a, const unit &u, bool out) {
    window w;
    if (out) {
        w = {u.y, u.x, 0, min(a.tile[1], a.out.w - u.x), min(a.tile[0], a.out.h - u.y)};
    } else {
        w = {u.y - a.pad[0], u.x - a.pad[1], max(a.pad[1] - u.x, 0), 0, N1};
        w.count = max(min(N2, a.in.w - w.left) - w.first, 0);
    }
    return w;
}

/* Thread to plane and column, neighbours in memory side by side. */
struct line {
    int plane, at;
};
static __device__ __forceinline__ line line_of(int count) {
    const int side = LAST ? CHANNELS : 1, i = (int)threadIdx.x / side, group = i / count;
    return {group * side + (int)threadIdx.x % side, i - group * count};
}

static __device__ __forceinline__ void load_column(const fft_view &v, const window &w, const place &p, int column,
                                                   point (&to)[N1]) {
    const T *at = (const T *)v.at + p.image * v.image + p.channel * v.channel + (int64_t)w.top * v.row +
                  (int64_t)(w.left + column) * v.column;
#pragma unroll
    for (int i = 0; i < N1; i++) {
        const bool there = (unsigned)(w.top + i) < (unsigned)v.h && i < w.rows;
        T first = narrow<T>(0), second = narrow<T>(0);
        if (there && p.first) first = at[(int64_t)i * v.row];
        if (there && p.second) second = at[v.image + (int64_t)i * v.row];
        to[i] = {widen(first), widen(second)};
    }
}

/* One output as a direct sum, without the padding. */
static __device__ float careful(const fft_args &a, int64_t image, int64_t channel, int y, int x) {
    float sum = 0;
    for (int k = 0; k < TAPS; k++) {
        const int sy = y - a.pad[0] + k / K2 * D1, sx = x - a.pad[1] + k % K2 * D2;
        if ((unsigned)sy >= (unsigned)a.in.h || (unsigned)sx >= (unsigned)a.in.w) continue;
        const int64_t at = image * a.in.image + channel * a.in.channel + (int64_t)sy * a.in.row + sx * a.in.column;
        sum = fmaf(widen(((const T *)a.in.at)[at]), tap_of(a, channel, k), sum);
    }
    return sum;
}

/* What is not finite spreads over its plane and to the other image: there the sums are made once more. */
static __device__ __noinline__ void careful_column(const fft_args &a, const window &w, const place &p, int column) {
    const int x = w.left + column;
    const float bias = weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[p.channel]) : 0;
    for (int i = 0; i < 2 * w.rows; i++) {
        const int64_t image = p.image + i % 2;
        if (image >= a.n) continue;
        const float sum = careful(a, image, p.channel, w.top + i / 2, x);
        ((T *)a.out.at)[image * a.out.image + p.channel * a.out.channel + (int64_t)(w.top + i / 2) * a.out.row +
                        (int64_t)x * a.out.column] = narrow<T>(weft__epilogue_apply(a.epilogue, bias, sum));
    }
}

static __device__ __forceinline__ void store_column(const fft_args &a, const window &w, const place &p, int column,
                                                    const point (&from)[N1]) {
    if (!p.first) return;
    if (from[0].re * 0 != 0 || from[0].im * 0 != 0) return careful_column(a, w, p, column);
    T *to = (T *)a.out.at + p.image * a.out.image + p.channel * a.out.channel + (int64_t)w.top * a.out.row +
            (int64_t)(w.left + column) * a.out.column;
    const float bias = weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[p.channel]) : 0;
#pragma unroll
    for (int i = 0; i < N1; i++) {
        if (i >= w.rows) continue;
        to[(int64_t)i * a.out.row] = narrow<T>(weft__epilogue_apply(a.epilogue, bias, from[i].im));
        if (p.second)
            to[a.out.image + (int64_t)i * a.out.row] = narrow<T>(weft__epilogue_apply(a.epilogue, bias, from[i].re));
    }
}

/* A row of a plane; columns that do not exist are 0. */
static __device__ __forceinline__ void load_row(int plane, int row, int first, int count, point (&to)[N2]) {
#pragma unroll
    for (int i = 0; i < N2; i++) {
        to[i] = {0, 0};
        if ((unsigned)(i - first) < (unsigned)count) to[i] = point_at(plane, row, i);
    }
}
static __device__ __forceinline__ void store_row(int plane, int row, const point (&from)[N2]) {
#pragma unroll
    for (int i = 0; i < N2; i++) point_at(plane, row, i) = from[i];
}

/* ---------------------------------------------------------------- sums of the weights' gradient */
/* A thread has one column of frequencies of a lane, and every GAP-th row of the upper half of the plane. */
enum { GAP = WEIGHTS ? THREADS / (LANES * N2) : 1, OWN = WEIGHTS ? (N1 / 2 + GAP) / GAP : 1 };
struct sums {
    point of[OWN];
    float bias; /* the first sum of a lane is the mean's: the thread that has it sums the bias */
};

struct frequency {
    int lane, row, column, mirror; /* row: the first; mirror: the column of the conjugate */
};
static __device__ __forceinline__ frequency frequency_of() {
    const int lane = (int)threadIdx.x / (GAP * N2), rest = (int)threadIdx.x - lane * (GAP * N2), column = rest % N2;
    return {lane, rest / N2, column, column ? N2 - column : 0};
}

/* x conj(dy) at a point and at its conjugate. */
static __device__ __forceinline__ void add_products(sums &s) {
    const frequency f = frequency_of();
    if (f.lane >= LANES) return;
    const point *one = &point_at(f.lane, f.row, f.column), *other = &point_at(f.lane, N1 - f.row, f.mirror);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        if (f.row + i * GAP > N1 / 2) continue;
        const point *at = one + i * GAP * (N2 + 1), *away = other - i * GAP * (N2 + 1);
        if (i == 0 && f.row == 0) away = &point_at(f.lane, 0, f.mirror);
        const point x = at[0], y = at[LANES * PITCH], u = away[0], v = away[LANES * PITCH];
        s.of[i].re = fmaf(x.re, y.re, fmaf(x.im, y.im, fmaf(u.re, v.re, fmaf(u.im, v.im, s.of[i].re))));
        s.of[i].im = fmaf(x.im, y.re, fmaf(-x.re, y.im, fmaf(u.re, v.im, fmaf(-u.im, v.re, s.of[i].im))));
        if (BIASED && i == 0 && f.row + f.column == 0) s.bias += y.re + y.im;
    }
}

/* Whole planes from the sums, to be transformed back: parts exchanged. */
static __device__ __forceinline__ void put_sums(const fft_args &a, const unit &u, const sums &s) {
    constexpr float scale = 0.5f / (N1 * N2);
    const frequency f = frequency_of();
    if (f.lane >= LANES) return;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int row = f.row + i * GAP;
        if (row > N1 / 2) continue;
        const point p = {s.of[i].re * scale, s.of[i].im * scale};
        point_at(f.lane, row, f.column) = exchanged(p);
        if (row && 2 * row < N1) point_at(f.lane, N1 - row, f.mirror) = exchanged(conjugate(p));
    }
    if (BIASED && f.row + f.column == 0)
        a.partial[(((int64_t)blockIdx.x + u.segment) * SUMS + TAPS) * LANES + f.lane] = s.bias;
}

static __device__ __forceinline__ void put_taps(const fft_args &a, const unit &u, int lane, int row,
                                                const point (&from)[N2]) {
    float *to = a.partial + (((int64_t)blockIdx.x + u.segment) * SUMS + row * K2) * LANES + lane;
#pragma unroll
    for (int t = 0; t < K2; t++) to[t * LANES] = from[t * D2].im;
}

/* ---------------------------------------------------------------- the two ways through a plane */
/* Columns, then rows, then, but for the gradient of the weights, columns back; there units are added up, and sums go
 * the same way once. BACK: the second way. The loop keeps one copy of the transforms. */
static __device__ __forceinline__ void columns(const fft_args &a, const unit &u, bool back) {
    const window in = window_of(a, u, false), out = window_of(a, u, true);
    const int count = back ? (WEIGHTS ? N2 : out.count) : WEIGHTS ? max(in.count, out.count) : in.count;
    const line l = line_of(max(count, 1));
    const bool other = WEIGHTS && l.plane >= LANES; /* diff_dst */
    const place p = place_of(a, u, other ? l.plane - LANES : l.plane);
    const window w = other || (back && !WEIGHTS) ? out : in;
    const int column = back ? l.at : w.first + l.at;
    const bool there = back ? l.plane < LANES && l.at < count : l.plane < PLANES && l.at < w.count;
    if (!there) return;
    point v[N1];
    if (back) {
#pragma unroll
        for (int i = 0; i < N1; i++) v[i] = point_at(l.plane, i, column);
    } else {
        load_column(other ? a.out : a.in, w, p, column, v);
    }
    fft<N1>::run(v);
    if (back && !WEIGHTS) return store_column(a, w, p, column, v);
#pragma unroll
    for (int i = 0; i < N1; i++) point_at(l.plane, i, column) = v[i];
}

static __device__ __forceinline__ void rows(const fft_args &a, const unit &u, bool back) {
    const int plane = (int)threadIdx.x / N1, row = (int)threadIdx.x - plane * N1;
    if (plane >= (back ? LANES : PLANES) || (back && (row % D1 || row / D1 >= K1))) return;
    const bool other = WEIGHTS && plane >= LANES;
    const window w = window_of(a, u, other);
    const place p = place_of(a, u, other ? plane - LANES : plane);
    const int64_t channel = min(p.channel, a.channels - 1);
    const point *spectrum = (const point *)a.spectrum + channel * (N1 * N2) + row;
    point v[N2];
    load_row(plane, row, back ? 0 : w.first, back ? N2 : w.count, v);
#pragma unroll 1
    for (int turn = 0; turn < (WEIGHTS ? 1 : 2); turn++) {
        if (turn)
#pragma unroll
            for (int i = 0; i < N2; i++) v[i] = exchanged(v[i] * spectrum[i * N1]);
        fft<N2>::run(v);
    }
    if (back) return put_taps(a, u, plane, row / D1, v);
    store_row(plane, row, v);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) transform(const __grid_constant__ fft_args a) {
    const int begin = (int)blockIdx.x * a.per, end = min(begin + a.per, a.units);
    sums s = {};
    for (int i = begin; i < end; i++) {
        const unit u = unit_at(a, i);
        const bool last = WEIGHTS && (i + 1 == end || (i + 1) % a.span == 0); /* of its segment here */
#pragma unroll 1
        for (int back = 0; back < (WEIGHTS ? 1 + last : 2); back++) {
            columns(a, u, back);
            __syncthreads();
            if (back && !WEIGHTS) continue;
            rows(a, u, back);
            __syncthreads();
            if (!WEIGHTS) continue;
            if (!back) add_products(s);
            if (!back && last) {
                __syncthreads();
                put_sums(a, u, s);
                s = {};
            }
            __syncthreads();
        }
    }
}

#endif
