/* What the kernels of the causal convolution share: tensors by strides, silu and its slope, and the sums of weight
 * gradients over slices. Both sides read this file. A row is one channel of one sequence; "back" is how many tokens
 * before its own a tap reads: tap k - 1 - back. */
#ifndef WEFT_CUDA_CAUSAL_H
#define WEFT_CUDA_CAUSAL_H

#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { CAUSAL_THREADS = 128, CAUSAL_NARROW = 8 }; /* NARROW: the widest window that is unrolled */
enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS, MODE_BOTH };

typedef struct causal_view { /* element (n, c, t) is at n * by_n + c * by_c + t * by_t */
    void *at;
    int64_t by_n, by_c, by_t;
} causal_view;

typedef struct causal_args {
    causal_view src, dst, h0, hn, weights, bias, seq;
    causal_view diff_src, diff_dst, diff_h0, diff_hn, diff_weights, diff_bias;
    float *partial;       /* [slice][channel][back, then bias] */
    int64_t n, c, slices; /* slices: of one sequence, for the grid; all of them, for the sums */
    int64_t units, parts; /* of a channel: what is summed apart, and blocks that do */
    int32_t w, run, each; /* tokens; tokens of a slice; sequences that share a slice */
} causal_args;

#ifndef __CUDACC_RTC__
static inline causal_view causal_find(const weft__exec *e, int role) {
    const weft_tensor *t = weft__tensor(e->p, role);
    if (!t) return (causal_view){NULL, 0, 0, 0};
    if (t->rank < 5) return (causal_view){e->ptr[role], t->strides[0], t->strides[0], 0};
    if (role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_DIFF_WEIGHTS)
        return (causal_view){e->ptr[role], 0, t->strides[0], t->strides[4]};
    return (causal_view){e->ptr[role], t->strides[0], t->strides[1], t->strides[4]};
}

static inline causal_args causal_args_of(const weft__exec *e) {
    return (causal_args){.src = causal_find(e, WEFT_ROLE_SRC),
                         .dst = causal_find(e, WEFT_ROLE_DST),
                         .h0 = causal_find(e, WEFT_ROLE_H0),
                         .hn = causal_find(e, WEFT_ROLE_HN),
                         .weights = causal_find(e, WEFT_ROLE_WEIGHTS),
                         .bias = causal_find(e, WEFT_ROLE_BIAS),
                         .seq = causal_find(e, WEFT_ROLE_SEQ_IDX),
                         .diff_src = causal_find(e, WEFT_ROLE_DIFF_SRC),
                         .diff_dst = causal_find(e, WEFT_ROLE_DIFF_DST),
                         .diff_h0 = causal_find(e, WEFT_ROLE_DIFF_H0),
                         .diff_hn = causal_find(e, WEFT_ROLE_DIFF_HN),
                         .diff_weights = causal_find(e, WEFT_ROLE_DIFF_WEIGHTS),
                         .diff_bias = causal_find(e, WEFT_ROLE_DIFF_BIAS),
                         .partial = e->workspace,
                         .n = e->p->n,
                         .c = e->p->c,
                         .w = (int32_t)e->p->in[2]};
}

static inline int causal_mode(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD           ? MODE_FWD
           : p->pass == WEFT_PASS_BWD_DATA    ? MODE_DATA
           : p->pass == WEFT_PASS_BWD_WEIGHTS ? MODE_WEIGHTS
                                              : MODE_BOTH;
}

static inline bool causal_is_data(int role) {
    return role == WEFT_ROLE_SRC || role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_DST;
}
static inline bool causal_is_state(int role) {
    return role == WEFT_ROLE_H0 || role == WEFT_ROLE_HN || role == WEFT_ROLE_DIFF_H0 || role == WEFT_ROLE_DIFF_HN;
}

/* Data and states are of one type, and data has unit steps along `axis` (4: tokens, 1: channels). */
static inline const char *causal_refusal(const weft_problem *p, int axis) {
    const int dtype = weft__tensor(p, WEFT_ROLE_SRC)->dtype;
    if (p->kernel[2] > 128) return "the window is over 128 tokens";
    if (p->in[2] > 1 << 30) return "over 2^30 tokens";
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        const bool data = causal_is_data(t->role);
        if ((data || causal_is_state(t->role)) && t->dtype != dtype) return "data or states of several types";
        if (data && t->dims[axis] > 1 && t->strides[axis] != 1)
            return axis == 4 ? "tokens are not side by side" : "channels are not side by side";
    }
    return NULL;
}

/* Elements of a vector along `axis` of at most `bytes` that every row of data begins at a multiple of. */
static inline int causal_vec(const weft_problem *p, int axis, int bytes) {
    const int64_t size = (int64_t)weft__dtype_size(weft__tensor(p, WEFT_ROLE_SRC)->dtype);
    int64_t vec = bytes / size;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (!causal_is_data(t->role)) continue;
        while (vec > 1 && (t->align % (vec * size) || (t->dims[0] > 1 && t->strides[0] % vec) ||
                           (t->dims[5 - axis] > 1 && t->strides[5 - axis] % vec)))
            vec /= 2;
    }
    return (int)vec;
}

static inline void causal_defines(const weft_problem *p, weft__text *text) {
    weft__put(text, "-DT=%s -DK=%d -DMODE=%d -DSTRICT=%d", cuda_type(weft__tensor(p, WEFT_ROLE_SRC)->dtype),
              (int)p->kernel[2], causal_mode(p), p->math == WEFT_MATH_STRICT);
    /* gradients find at run time whether there is a bias or a final state: fewer kernels to compile */
    const bool fwd = p->pass == WEFT_PASS_FWD;
    weft__put(text, " -DSILU=%d -DSEQ=%d -DHAS_H0=%d -DHAS_HN=%d -DBIASED=%d", weft__has_step(p, WEFT_STEP_SILU),
              p->attr[WEFT_CAUSAL_SEQ_IDX] != 0, p->attr[WEFT_CAUSAL_H0] != 0, !fwd || p->attr[WEFT_CAUSAL_HN] != 0,
              !fwd || weft__has_step(p, WEFT_STEP_BIAS));
    cuda_define_type(p, WEFT_ROLE_WEIGHTS, "WEIGHTS_T", text);
    cuda_define_type(p, WEFT_ROLE_BIAS, "BIAS_T", text);
    cuda_define_type(p, WEFT_ROLE_DIFF_WEIGHTS, "DIFF_WEIGHTS_T", text);
    cuda_define_type(p, WEFT_ROLE_DIFF_BIAS, "DIFF_BIAS_T", text);
}

/* Adds the slices up, for the gradient of weights and bias. */
static inline weft_status causal_finish(const weft__exec *e, int part, causal_args a, int64_t slices) {
    a.slices = slices;
    const weft__launch launch = {.grid = {(uint32_t)cuda_ceil(a.c * (e->p->kernel[2] + 1), 32), 1, 1},
                                 .block = {CAUSAL_THREADS, 1, 1}};
    return weft__cuda_launch(e, part, &launch, &a);
}

/* The two kernels of a file: causal_fwd, and causal_bwd with its sums. */
#define CAUSAL_RECORD(id, text, set, ...)  \
    const weft__kernel weft__cuda_##id = { \
        .name = text,                      \
        .version = 1,                      \
        .op = WEFT_OP_CAUSAL_CONV,         \
        .engine = WEFT_ENGINE_CUDA,        \
        .passes = set,                     \
        .steps = CAUSAL_STEPS,             \
        .dtypes = CUDA_FLOATS,             \
        .bound = 2,                        \
        .plan = plan,                      \
        .run = run,                        \
        WEFT__PARTS(__VA_ARGS__),          \
    }
#define CAUSAL_KERNELS(file, way, text)                                                         \
    CAUSAL_RECORD(causal_conv_fwd_##way, "causal_conv_fwd_" text "__cuda", WEFT__PASS_SET(FWD), \
                  {file, "causal_fwd", defines, false});                                        \
    CAUSAL_RECORD(causal_conv_bwd_##way, "causal_conv_bwd_" text "__cuda", CAUSAL_GRADIENTS,    \
                  {file, "causal_bwd", defines, false}, {file, "causal_sums", defines, false})

#define CAUSAL_STEPS (WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(SILU))
#define CAUSAL_GRADIENTS (WEFT__PASS_SET(BWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS))

#else
#include "ptx.h"
#include "reduce.h"
#include "vec.h"

enum { FWD = MODE == MODE_FWD, DATA = MODE == MODE_DATA || MODE == MODE_BOTH, WEIGHTS = MODE >= MODE_WEIGHTS };
enum { CAREFUL = SEQ || STRICT }; /* taps that read outside are left out, not multiplied by 0 */
enum { NONE = (int)0x80000000 };  /* seq_idx of a place without a token */

/* Weights and bias are multiplied by SCALE when they are loaded, so that sums of taps are v = -z log2(e), and
 * 2^v = e^-z; dz is held divided by SCALE, which sums of weights times dz make up for, and causal_sums for those of
 * tokens times dz. Without silu SCALE is 1. 2^v errs by 2 + |z| roundoffs and is less than 1 where z > 0; infinity
 * gives 0. */
#define SCALE (SILU ? -1.44269504f : 1.0f)
static __device__ __forceinline__ float activate(float v) {
    return SILU ? v * ptx_rcp(fmaf(ptx_ex2(v), SCALE, SCALE)) : v;
}
/* silu'(z) / SCALE, silu'(z) = s + z s (1 - s), from s / SCALE with s = 1 / (1 + e^-z) */
static __device__ __forceinline__ float slope(float v) {
    const float s = ptx_rcp(fmaf(ptx_ex2(v), SCALE, SCALE));
    return fmaf(v * s, 1 / SCALE - s, s);
}

/* All elements of a vector as floats: of bf16 an even one is a shift, an odd one a mask. */
template <class E, int N> static __device__ __forceinline__ void widen_all(const pack<E, N> &from, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = widen(from.v[i]);
}
template <int N> static __device__ __forceinline__ void widen_all(const pack<bf16_t, N> &from, float (&to)[N]) {
    union {
        typename access<2 * N>::word word;
        uint32_t two[N > 1 ? N / 2 : 1];
        bf16_t v[N];
    } u;
    u.word = from.word;
#pragma unroll
    for (int i = 0; i < N; i++)
        to[i] = N == 1  ? widen(u.v[0])
                : i % 2 ? __uint_as_float(u.two[i / 2] & 0xffff0000u)
                        : __uint_as_float(u.two[i / 2] << 16);
}

template <class E> static __device__ __forceinline__ const E *row_of(const causal_view &v, int64_t n, int64_t c) {
    return (const E *)v.at + n * v.by_n + c * v.by_c;
}
static __device__ __forceinline__ float weight_at(const causal_args &a, int64_t c, int back) {
    return widen(row_of<WEIGHTS_T>(a.weights, 0, c)[(K - 1 - back) * a.weights.by_t]) * SCALE;
}
static __device__ __forceinline__ float bias_at(const causal_args &a, int64_t c) {
    return BIASED && (FWD || a.bias.at) ? widen(row_of<BIAS_T>(a.bias, 0, c)[0]) * SCALE : 0;
}
static __device__ __forceinline__ int seq_at(const causal_args &a, int64_t n, int t) {
    return t < 0 || t >= a.w ? NONE : row_of<int>(a.seq, n, 0)[t * a.seq.by_t];
}

/* The gradient of a tap's weight, or behind the taps of the bias. */
static __device__ __forceinline__ void put_sum(const causal_args &a, int64_t c, int back, float sum) {
    sum *= SCALE;
    if (back < K)
        ((DIFF_WEIGHTS_T *)a.diff_weights.at)[c * a.diff_weights.by_c + (K - 1 - back) * a.diff_weights.by_t] =
            narrow<DIFF_WEIGHTS_T>(sum);
    else if (a.diff_bias.at)
        ((DIFF_BIAS_T *)a.diff_bias.at)[c * a.diff_bias.by_c] = narrow<DIFF_BIAS_T>(sum);
}

/* Sums over slices in their order, in f64. A block has 32 sums that lie together, and 4 threads for each. */
extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_sums(const __grid_constant__ causal_args a) {
    __shared__ double scratch[CAUSAL_THREADS / 32][32];
    const int lane = (int)threadIdx.x % 32, part = (int)threadIdx.x / 32;
    const int64_t count = a.c * (K + 1), i = (int64_t)blockIdx.x * 32 + lane;
    double sum = 0;
    if (i < count)
#pragma unroll 4
        for (int64_t s = part; s < a.slices; s += CAUSAL_THREADS / 32) sum += a.partial[s * count + i];
    scratch[part][lane] = sum;
    __syncthreads();
    if (part || i >= count) return;
    for (int k = 1; k < CAUSAL_THREADS / 32; k++) sum += scratch[k][lane];
    const int64_t c = i / (K + 1);
    put_sum(a, c, (int)(i - c * (K + 1)), (float)sum);
}
#endif

#endif
