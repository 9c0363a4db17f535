/* What the pooling kernels share: arguments, options, and windows along an axis. Both sides read this file. */
#ifndef WEFT_CUDA_POOL_H
#define WEFT_CUDA_POOL_H

#include "weft.h"

enum { THREADS = 256 };

typedef struct pool_args {
    const void *from; /* src, diff_dst */
    void *to;         /* dst, diff_src */
    void *index;
    int64_t units;  /* threads with work, or warps */
    int64_t planes; /* n c, or n where the channels lie together */
    int32_t in[3], out[3], pad_hi[3];
    int32_t channels;       /* vectors of a pixel; 1 where the pixels lie together */
    int32_t groups, across; /* tiles down and across */
} pool_args;

#ifndef __CUDACC_RTC__
#include "frame.h"

/* Adaptive windows of one size that touch: pooling with that window and stride. */
static inline bool pool_even(const weft_problem *p) {
    for (int a = 0; a < 3; a++)
        if (p->out[a] < 1 || p->in[a] % p->out[a] || p->in[a] / p->out[a] > 1 << 12) return false;
    return p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
}

static inline int64_t pool_window(const weft_problem *p, int a) {
    return pool_even(p) ? p->in[a] / p->out[a] : p->kernel[a];
}

static inline int64_t pool_step(const weft_problem *p, int a) {
    return pool_even(p) ? p->in[a] / p->out[a] : p->stride[a];
}

/* A thread has rows x columns neighbouring places of `vec` channels; channels-first vec is that of loads. */
typedef struct pool_tile {
    bool last;
    int vec, rows, columns, warp;
} pool_tile;

static inline const char *pool_refusal(const weft_problem *p, pool_tile *t) {
    const char *refusal = cuda_dense(p, &t->last);
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    const bool adaptive = p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    if (refusal) return refusal;
    for (int a = 0; a < 3; a++)
        if (p->in[a] > 1 << 28 || p->out[a] > 1 << 28 || p->kernel[a] > 1 << 12 || p->stride[a] > 1 << 20 ||
            p->dilation[a] > 1 << 16 || (adaptive && p->in[a] * p->out[a] > 1 << 30))
            return "an axis of 2^28 or more, or a window of 2^12 or more";
    t->vec = t->last ? cuda_vec(p, p->c) : 1;
    t->rows = t->columns = 1;
    t->warp = 0;
    if (index && index->align < 16) t->vec = 1;
    if (p->c / t->vec > INT32_MAX / 2) return "2^30 channels or more";
    return NULL;
}

/* What every window is divided by; 0: it differs. */
static inline int64_t pool_divisor(const weft_problem *p) {
    if (p->op == WEFT_OP_MAX_POOL || (p->op == WEFT_OP_ADAPTIVE_AVG_POOL && !pool_even(p))) return 0;
    if (p->op == WEFT_OP_AVG_POOL && p->attr[WEFT_AVG_POOL_DIVISOR]) return p->attr[WEFT_AVG_POOL_DIVISOR];
    for (int a = 0; a < 3 && p->op == WEFT_OP_AVG_POOL; a++) {
        const bool padded = p->pad_lo[a] || p->pad_hi[a];
        if ((p->out[a] - 1) * p->stride[a] + p->kernel[a] > p->in[a] + p->pad_lo[a] + p->pad_hi[a]) return 0;
        if (padded && !p->attr[WEFT_AVG_POOL_INCLUDE_PAD]) return 0;
    }
    return pool_window(p, 0) * pool_window(p, 1) * pool_window(p, 2);
}

static inline void pool_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const pool_tile *t = params;
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    (void)hw;
    cuda_defines(p, t->vec, text);
    const bool sized = p->op == WEFT_OP_ADAPTIVE_AVG_POOL, adaptive = sized && !pool_even(p),
               average = p->op == WEFT_OP_AVG_POOL;
    weft__put(text, " -DADAPTIVE=%d -DMAXIMUM=%d -DLAST=%d -DROWS=%d -DCOLUMNS=%d -DWARP=%d -DWHOLE=%d", adaptive,
              p->op == WEFT_OP_MAX_POOL, t->last, t->rows, t->columns, t->warp,
              cuda_vec(p, p->in[2]) % t->columns == 0);
    weft__put(text, " -DINDEXED=%d -DINDEX_T=%s -DTAPS=%d", index != NULL,
              index && index->dtype == WEFT_DTYPE_I32   ? "int32_t"
              : index && index->dtype == WEFT_DTYPE_I64 ? "int64_t"
                                                        : "uint8_t",
              index && index->dtype == WEFT_DTYPE_U8);
    for (int a = 0; a < 3; a++)
        weft__put(text, " -DK%d=%d -DS%d=%d -DP%d=%d -DD%d=%d", a, adaptive ? 1 : (int)pool_window(p, a), a,
                  adaptive ? 1 : (int)pool_step(p, a), a, sized ? 0 : (int)p->pad_lo[a], a,
                  sized ? 1 : (int)p->dilation[a]);
    weft__put(text, " -DINCLUDE_PAD=%d -DDIVISOR=%lld", average && p->attr[WEFT_AVG_POOL_INCLUDE_PAD] != 0,
              (long long)pool_divisor(p));
}

static inline pool_args pool_args_of(const weft__exec *e) {
    const weft_problem *p = e->p;
    const pool_tile *t = e->params;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    pool_args a = {.from = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST],
                   .to = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                   .index = e->ptr[WEFT_ROLE_INDEX],
                   .planes = t->last ? p->n : p->n * p->c,
                   .channels = t->last ? (int32_t)(p->c / t->vec) : 1};
    for (int i = 0; i < 3; i++) {
        a.in[i] = (int32_t)p->in[i];
        a.out[i] = (int32_t)p->out[i];
        a.pad_hi[i] = (int32_t)p->pad_hi[i];
    }
    return a;
}

static inline weft_status pool_launch(const weft__exec *e, pool_args *a, const int32_t size[3]) {
    const pool_tile *t = e->params;
    a->groups = (int32_t)cuda_ceil(size[1], t->rows);
    a->across = (int32_t)cuda_ceil(size[2], t->columns);
    a->units = a->planes * size[0] * a->groups * a->across * a->channels;
    const int64_t blocks = cuda_ceil(a->units, t->warp ? THREADS / 32 : THREADS);
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(blocks, 1 << 30), 1, 1}, .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, a);
}

#define POOL_KERNELS(pass_, PASS_, source_, entry_)                                                                 \
    const weft__kernel weft__cuda_max_pool_##pass_ = {.name = "max_pool_" #pass_ "_gather__cuda",                   \
                                                      .version = 1,                                                 \
                                                      .op = WEFT_OP_MAX_POOL,                                       \
                                                      .engine = WEFT_ENGINE_CUDA,                                   \
                                                      .passes = WEFT__PASS_SET(PASS_),                              \
                                                      .dtypes = CUDA_FLOATS,                                        \
                                                      .exact = true,                                                \
                                                      .variants = variants,                                         \
                                                      .plan = plan,                                                 \
                                                      .run = run,                                                   \
                                                      WEFT__PARTS({source_, entry_, pool_defines, false})};         \
    const weft__kernel weft__cuda_avg_pool_##pass_ = {.name = "avg_pool_" #pass_ "_gather__cuda",                   \
                                                      .version = 1,                                                 \
                                                      .op = WEFT_OP_AVG_POOL,                                       \
                                                      .engine = WEFT_ENGINE_CUDA,                                   \
                                                      .passes = WEFT__PASS_SET(PASS_),                              \
                                                      .dtypes = CUDA_FLOATS,                                        \
                                                      .variants = variants,                                         \
                                                      .plan = plan,                                                 \
                                                      .run = run,                                                   \
                                                      WEFT__PARTS({source_, entry_, pool_defines, false})};         \
    const weft__kernel weft__cuda_adaptive_avg_pool_##pass_ = {.name = "adaptive_avg_pool_" #pass_ "_gather__cuda", \
                                                               .version = 1,                                        \
                                                               .op = WEFT_OP_ADAPTIVE_AVG_POOL,                     \
                                                               .engine = WEFT_ENGINE_CUDA,                          \
                                                               .passes = WEFT__PASS_SET(PASS_),                     \
                                                               .dtypes = CUDA_FLOATS,                               \
                                                               .variants = variants,                                \
                                                               .plan = plan,                                        \
                                                               .run = run,                                          \
                                                               WEFT__PARTS({source_, entry_, pool_defines, false})}

#else
#include "reduce.h"
#include "vec.h"

template <int A> static __device__ constexpr int kernel() { return A == 0 ? K0 : A == 1 ? K1 : K2; }
template <int A> static __device__ constexpr int stride() { return A == 0 ? S0 : A == 1 ? S1 : S2; }
template <int A> static __device__ constexpr int pad() { return A == 0 ? P0 : A == 1 ? P1 : P2; }
template <int A> static __device__ constexpr int dilation() { return A == 0 ? D0 : A == 1 ? D1 : D2; }

/* Places lo .. hi - 1 along an axis; size: how many count in the divisor. */
struct span {
    int lo, hi, size;
};

template <int A> static __device__ __forceinline__ span reads(const pool_args &a, int o) {
    span w;
    if (ADAPTIVE) {
        w.lo = o * a.in[A] / a.out[A];
        w.hi = ((o + 1) * a.in[A] + a.out[A] - 1) / a.out[A];
        w.size = w.hi - w.lo;
        return w;
    }
    w.lo = o * stride<A>() - pad<A>();
    w.hi = min(w.lo + kernel<A>(), a.in[A] + a.pad_hi[A]);
    w.size = w.hi - w.lo;
    w.lo = max(w.lo, 0);
    w.hi = min(w.hi, a.in[A]);
    if (!INCLUDE_PAD) w.size = w.hi - w.lo;
    return w;
}

/* 1 over the divisor. */
static __device__ __forceinline__ float share_of(const span &z, const span &y, const span &x) {
    return DIVISOR ? 1 / (float)DIVISOR : ptx_rcp((float)z.size * (float)y.size * (float)x.size);
}

/* A tile: its first place, and where its channels lie. */
struct tile {
    int64_t plane;
    int z, y, x;
    int64_t channel, pixel; /* elements before them in a pixel; elements of a pixel */
};

static __device__ __forceinline__ tile tile_of(const pool_args &a, int64_t unit, int depth) {
    tile t;
    INDEX rest = (INDEX)unit;
    t.channel = 0;
    t.pixel = LAST ? (int64_t)a.channels * VEC : 1;
    if (LAST) {
        const INDEX pixel = rest / (INDEX)a.channels;
        t.channel = (int64_t)(rest - pixel * (INDEX)a.channels) * VEC;
        rest = pixel;
    }
    const INDEX row = rest / (INDEX)a.across, group = row / (INDEX)a.groups;
    t.x = (int)(rest - row * (INDEX)a.across) * COLUMNS;
    t.y = (int)(row - group * (INDEX)a.groups) * ROWS;
    t.plane = depth == 1 ? group : group / (INDEX)depth;
    t.z = depth == 1 ? 0 : (int)(group - (INDEX)t.plane * (INDEX)depth);
    return t;
}

/* The windows that read one of the places x .. x + many - 1. */
template <int A> static __device__ __forceinline__ span feeds(const pool_args &a, int x, int many) {
    span w;
    if (ADAPTIVE) {
        w.lo = x * a.out[A] / a.in[A];
        w.hi = ((x + many) * a.out[A] + a.in[A] - 1) / a.in[A];
    } else {
        const int before = x + pad<A>() - (kernel<A>() - 1) * dilation<A>();
        w.lo = before <= 0 ? 0 : (before + stride<A>() - 1) / stride<A>();
        w.hi = min((x + many - 1 + pad<A>()) / stride<A>() + 1, a.out[A]);
    }
    return w;
}
#endif

#endif
