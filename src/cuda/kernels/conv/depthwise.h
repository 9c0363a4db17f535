/* What the depthwise kernels share: arguments, the relation of a tile of outputs to its sources, and the sums of weight
 * gradients over slices. A "dest" is dst in fwd and diff_src in the gradients, where src is read at the same places; a
 * "source" is src in fwd and diff_dst in the gradients. Both sides read this file.
 *   fwd         source = dest * stride - pad + tap * dilation
 *   gradients   dest = source * stride - pad + tap * dilation; a tile begins at a dest with (dest + pad) % stride =
 *   0 */
#ifndef WEFT_CUDA_DEPTHWISE_H
#define WEFT_CUDA_DEPTHWISE_H

#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "epilogue.h"

enum { THREADS = 256 };
enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS, MODE_BOTH };

typedef struct depthwise_args {
    const void *source, *weights, *bias, *at; /* at: src in the gradient of the weights */
    void *dest, *diff_weights, *diff_bias;
    float *partial; /* [slice][tap, then bias][channel] */
    int64_t n, channels, slices, per;
    int32_t from[3], to[3];     /* d h w of source and dest */
    int32_t deep, down, across; /* tiles along d h w */
    int32_t batch, rows, pitch,
        xlo;                /* shared memory, channels-first: planes, dest rows of a strip, row length, first column */
    int32_t strips, height; /* strips of a plane; source rows of a strip */
    int64_t units;
    weft__epilogue epilogue;
} depthwise_args;

#ifndef __CUDACC_RTC__
typedef struct depthwise_tile {
    bool last;
    int vec, lx, ry, rx, mode;
    int64_t tiles; /* of channels */
    size_t smem;
    depthwise_args a; /* but for pointers */
} depthwise_tile;

static inline int depthwise_mode(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD           ? MODE_FWD
           : p->pass == WEFT_PASS_BWD_DATA    ? MODE_DATA
           : p->pass == WEFT_PASS_BWD_WEIGHTS ? MODE_WEIGHTS
                                              : MODE_BOTH;
}

/* Fills the sizes and the tile of a thread. */
static inline const char *depthwise_refusal(const weft_problem *p, depthwise_tile *t) {
    if (p->groups != p->c || p->o != p->c) return "not depthwise with one filter a channel";
    if (p->pass == WEFT_PASS_BWD_DATA && p->nsteps) return "an epilogue of transposed convolution";
    for (int a = 0; a < 3; a++) {
        if (p->in[a] > 1 << 24 || p->out[a] > 1 << 24) return "an axis of 2^24 or more";
        if (p->stride[a] > 4 || p->dilation[a] > 16 || p->pad_lo[a] > 64)
            return "stride over 4, dilation over 16 or padding over 64";
    }
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2];
    t->mode = depthwise_mode(p);
    if (p->kernel[1] > 11 || p->kernel[2] > 11 || taps > (t->mode >= MODE_WEIGHTS ? 64 : 343))
        return "a window of too many taps";
    const char *refusal = cuda_dense(p, &t->last);
    if (refusal) return refusal;
    const bool fwd = t->mode == MODE_FWD;
    const int sy = (int)p->stride[1], sx = (int)p->stride[2];
    t->ry = fwd ? (sy == 1 ? 4 : 2) : sy * (int)cuda_ceil(4, sy);
    t->rx = fwd ? (t->last ? 2 : 1) : sx * (t->last ? (int)cuda_ceil(2, sx) : 1);
    depthwise_args *a = &t->a;
    a->n = p->n;
    a->channels = p->c;
    for (int i = 0; i < 3; i++) {
        a->from[i] = (int32_t)(fwd ? p->in[i] : p->out[i]);
        a->to[i] = (int32_t)(fwd ? p->out[i] : p->in[i]);
    }
    /* gradients: every source belongs to a tile, also those that only padding reads */
    int32_t extent[3];
    for (int i = 0; i < 3; i++)
        extent[i] = fwd ? a->to[i] : (int32_t)WEFT__MAX(p->in[i] + p->pad_lo[i], p->out[i] * p->stride[i]);
    a->deep = t->mode >= MODE_WEIGHTS ? extent[0] : a->to[0];
    a->down = (int32_t)cuda_ceil(extent[1], t->ry);
    a->across = (int32_t)cuda_ceil(extent[2], t->rx);
    return NULL;
}

static inline void depthwise_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(text, " -DSTRICT=%d -DMODE=%d -DLX=%d -DRY=%d -DRX=%d -DBIASED=%d", p->math == WEFT_MATH_STRICT, t->mode,
              t->lx, t->ry, t->rx, t->mode >= MODE_WEIGHTS && weft__has_step(p, WEFT_STEP_BIAS));
    for (int a = 0; a < 3; a++)
        weft__put(text, " -DK%d=%d -DS%d=%d -DP%d=%d -DD%d=%d", a, (int)p->kernel[a], a, (int)p->stride[a], a,
                  (int)p->pad_lo[a], a, (int)p->dilation[a]);
    cuda_define_type(p, t->mode == MODE_FWD ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    if (t->mode == MODE_FWD)
        weft__epilogue_defines(p, text);
    else
        weft__put(text, " -DSTEP0=0 -DSTEP1=0 -DSTEP2=0 -DSTEP3=0");
}

static inline depthwise_args depthwise_args_of(const weft__exec *e) {
    const depthwise_tile *t = e->params;
    const bool fwd = t->mode == MODE_FWD;
    depthwise_args a = t->a;
    a.source = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    a.weights = e->ptr[WEFT_ROLE_WEIGHTS];
    a.bias = e->ptr[WEFT_ROLE_BIAS];
    a.at = e->ptr[WEFT_ROLE_SRC];
    a.dest = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC];
    a.diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS];
    a.diff_bias = e->ptr[WEFT_ROLE_DIFF_BIAS];
    a.partial = e->workspace;
    if (fwd) a.epilogue = weft__epilogue_args(e->p);
    return a;
}

static inline int64_t depthwise_sums(const weft_problem *p) {
    return p->kernel[0] * p->kernel[1] * p->kernel[2] + weft__has_step(p, WEFT_STEP_BIAS);
}

/* One launch, and for the gradient of the weights the sums over slices. */
static inline weft_status depthwise_run(const weft__exec *e) {
    const depthwise_tile *t = e->params;
    const depthwise_args a = depthwise_args_of(e);
    const weft__launch launch = {
        .grid = {(uint32_t)(t->tiles * a.slices), 1, 1}, .block = {THREADS, 1, 1}, .smem = t->smem};
    const weft__launch finish = {.grid = {(uint32_t)cuda_ceil(a.channels, 32), (uint32_t)depthwise_sums(e->p), 1},
                                 .block = {THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return t->mode >= MODE_WEIGHTS ? weft__cuda_launch(e, 1, &finish, &a) : WEFT_OK;
}

static inline double depthwise_ns(const weft_problem *p, const weft__hw *hw, const depthwise_tile *t, double share) {
    return cuda_ns(hw, weft__bytes(p), share, t->mode >= MODE_WEIGHTS ? 2 : 1) +
           0.5 * weft__flops(p) / (0.3 * hw->gpu->gflops);
}

#define DEPTHWISE_KERNELS(layout_, source_)                                                                           \
    const weft__kernel weft__cuda_dwconv_##layout_ = {.name = "dwconv_" #layout_ "_tile__cuda",                       \
                                                      .version = 1,                                                   \
                                                      .op = WEFT_OP_CONV,                                             \
                                                      .engine = WEFT_ENGINE_CUDA,                                     \
                                                      .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),       \
                                                      .dtypes = CUDA_FLOATS,                                          \
                                                      .steps = WEFT__EPILOGUE_STEPS,                                  \
                                                      .exact = true,                                                  \
                                                      .plan = plan,                                                   \
                                                      .run = depthwise_run,                                           \
                                                      WEFT__PARTS({source_, "depthwise", depthwise_defines, false})}; \
    const weft__kernel weft__cuda_dwconv_bwd_##layout_ = {                                                            \
        .name = "dwconv_bwd_" #layout_ "_tile__cuda",                                                                 \
        .version = 1,                                                                                                 \
        .op = WEFT_OP_CONV,                                                                                           \
        .engine = WEFT_ENGINE_CUDA,                                                                                   \
        .passes = WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),                                                  \
        .dtypes = CUDA_FLOATS,                                                                                        \
        .steps = WEFT__STEP_SET(BIAS),                                                                                \
        .exact = true,                                                                                                \
        .plan = plan,                                                                                                 \
        .run = depthwise_run,                                                                                         \
        WEFT__PARTS({source_, "depthwise", depthwise_defines, false}, {source_, "finish", depthwise_defines, false})}

#else
#include "reduce.h"
#include "vec.h"

enum { TAPS = K0 * K1 * K2, SUMS = TAPS + BIASED };
enum { FWD = MODE == MODE_FWD, DATA = MODE == MODE_DATA || MODE == MODE_BOTH, WEIGHTS = MODE >= MODE_WEIGHTS };
template <int A> static __device__ constexpr int kernel() { return A == 1 ? K1 : K2; }
template <int A> static __device__ constexpr int stride() { return A == 1 ? S1 : S2; }
template <int A> static __device__ constexpr int dilation() { return A == 1 ? D1 : D2; }
template <int A> static __device__ constexpr int many() { return A == 1 ? RY : RX; }

/* Sources of a tile along an axis, counted from its first dest * stride - pad, or (first dest + pad) / stride. */
template <int A> static __device__ constexpr int low() {
    return FWD ? 0 : -((kernel<A>() - 1) * dilation<A>() / stride<A>());
}
template <int A> static __device__ constexpr int high() {
    return FWD ? (many<A>() - 1) * stride<A>() + (kernel<A>() - 1) * dilation<A>() : (many<A>() - 1) / stride<A>();
}
/* The tap between dest k and source l of a tile; negative: none. */
template <int A> static __device__ constexpr int tap(int k, int l) {
    const int d = FWD ? l - k * stride<A>() : k - l * stride<A>();
    return d >= 0 && d % dilation<A>() == 0 && d / dilation<A>() < kernel<A>() ? d / dilation<A>() : -1;
}

/* The source plane that tap r of dest plane z meets; negative: none. */
static __device__ __forceinline__ int source_z(const depthwise_args &a, int z, int r) {
    int s = FWD ? z * S0 - P0 + r * D0 : z + P0 - r * D0;
    if (!FWD) {
        if (s < 0 || s % S0) return -1;
        s /= S0;
    }
    return s < a.from[0] ? s : -1;
}

/* Sums over slices in their order, in f64. A block has 32 channels of one tap, or of the bias; 8 threads a channel. */
extern "C" __global__ void __launch_bounds__(THREADS) finish(const __grid_constant__ depthwise_args a) {
    __shared__ double scratch[8][32];
    const int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 32, tap = (int)blockIdx.y;
    const int64_t c = (int64_t)blockIdx.x * 32 + lane;
    double sum = 0;
    if (c < a.channels)
#pragma unroll 4
        for (int64_t s = part; s < a.slices; s += 8) sum += a.partial[(s * SUMS + tap) * a.channels + c];
    scratch[part][lane] = sum;
    __syncthreads();
    if (part || c >= a.channels) return;
    for (int i = 1; i < 8; i++) sum += scratch[i][lane];
    if (tap < TAPS)
        ((T *)a.diff_weights)[c * TAPS + tap] = narrow<T>((float)sum);
    else
        ((BIAS_T *)a.diff_bias)[c] = narrow<BIAS_T>((float)sum);
}
#endif

#endif
