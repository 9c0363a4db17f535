/* relu, clip, tanh, sigmoid and their gradients; f32, f16, bf16; any dense order.
 * Math:      y = f(x); dx = g(y) dy, as in src/ref/pointwise.h
 * Blocking:  16 bytes of each thread, which is faster than four times as many; the last few elements one by one
 * Traffic:   each tensor once
 * Roofline:  bandwidth. Measured on an H200: 64x256x56x56 f32 4.1 TB/s forward, 4.2 backward
 * Assumes:   all tensors dense in one order; dst may be src, diff_src diff_dst
 * Try:       weft bench clip2d:fwd:f32:nchw:n64c256h56w56:hi6@cuda */
#ifndef __CUDACC_RTC__
#include <math.h>

#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 256 };

typedef struct pointwise_args {
    const void *src, *diff_dst; /* src: dst in a gradient */
    void *dst;
    int64_t count;
    float lo, hi;
} pointwise_args;

#ifndef __CUDACC_RTC__
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    bool last;
    (void)variant;
    d->ns = cuda_ns(hw, weft__bytes(p), 0.9, 1);
    return cuda_dense(p, &last);
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *t) {
    (void)hw, (void)params;
    cuda_defines(p, cuda_vec(p, 16), t);
    weft__put(t, " -DOP=%d -DBWD=%d", p->op, p->pass != WEFT_PASS_FWD);
}

/* y <= bound and y >= bound mean the same with the bound as the next float below or above it. */
static float down(double bound) {
    return (double)(float)bound > bound ? nextafterf((float)bound, -INFINITY) : (float)bound;
}
static float up(double bound) { return -down(-bound); }

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const double lo = p->op == WEFT_OP_CLIP ? p->real[WEFT_CLIP_LO] : 0,
                 hi = p->op == WEFT_OP_CLIP ? p->real[WEFT_CLIP_HI] : 0;
    const pointwise_args a = {e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DST],
                              e->ptr[WEFT_ROLE_DIFF_DST],
                              e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                              weft__numel(p->tensor),
                              fwd ? (float)lo : down(lo),
                              fwd ? (float)hi : up(hi)};
    const int64_t tile = (int64_t)THREADS * cuda_vec(p, 16);
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(cuda_ceil(a.count, tile), 1 << 30), 1, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

#define POINTWISE(NAME, name_, exact_)                                        \
    const weft__kernel weft__cuda_##name_ = {                                 \
        .name = #name_ "_16b__cuda",                                          \
        .version = 1,                                                         \
        .op = WEFT_OP_##NAME,                                                 \
        .engine = WEFT_ENGINE_CUDA,                                           \
        .dtypes = CUDA_FLOATS,                                                \
        .exact = exact_,                                                      \
        .bound = 4,                                                           \
        .plan = plan,                                                         \
        .run = run,                                                           \
        WEFT__PARTS({"pointwise/pointwise.cu", "pointwise", defines, false}), \
    }
POINTWISE(RELU, relu, true);
POINTWISE(CLIP, clip, true);
POINTWISE(TANH, tanh, false);
POINTWISE(SIGMOID, sigmoid, false);

#else
#include "vec.h"

static __device__ __forceinline__ float value(const pointwise_args &a, float x) {
    if (OP == WEFT_OP_TANH) return tanhf(x);
    if (OP == WEFT_OP_SIGMOID) return 1 / (1 + expf(-x));
    if (OP == WEFT_OP_CLIP) return x < a.lo ? a.lo : x > a.hi ? a.hi : x;
    return x < 0 ? 0 : x;
}

static __device__ __forceinline__ float gradient(const pointwise_args &a, float y, float dy) {
    if (OP == WEFT_OP_TANH) return dy * fmaf(-y, y, 1);
    if (OP == WEFT_OP_SIGMOID) return dy * (fabsf(y) < INFINITY ? fmaf(-y, y, y) : y * (1 - y));
    if (OP == WEFT_OP_CLIP) return y <= a.lo || y >= a.hi ? 0 : dy;
    return y <= 0 ? 0 : dy;
}

template <int N> static __device__ __forceinline__ void apply(const pointwise_args &a, int64_t at) {
    float x[N], dy[N];
    load((const T *)a.src + at, x);
    if (BWD) load((const T *)a.diff_dst + at, dy);
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = BWD ? gradient(a, x[i], dy[i]) : value(a, x[i]);
    store((T *)a.dst + at, x);
}

extern "C" __global__ void __launch_bounds__(THREADS) pointwise(const __grid_constant__ pointwise_args a) {
    const int64_t step = (int64_t)gridDim.x * THREADS, vectors = a.count / VEC;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < vectors; i += step) apply<VEC>(a, i * VEC);
    const int64_t rest = vectors * VEC + threadIdx.x;
    if (blockIdx.x == 0 && rest < a.count) apply<1>(a, rest);
}
#endif
