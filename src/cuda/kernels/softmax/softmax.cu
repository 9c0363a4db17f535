/* softmax and log-softmax over the channels, and their gradients, a row at a time in registers; f32, f16, bf16.
 * Math:      as in src/ref/softmax.h; m and the sum are reduced in f32 in a fixed order
 * Blocking:  columns (channels-first): a block has LX x VEC pixels and all channels; thread (x, y) holds channels y,
 *            y + RY, ... of its VEC pixels. rows (the channels lie together): RY lanes share a row, 256 / RY rows a
 *            block
 * Traffic:   each tensor once
 * Roofline:  bandwidth. Measured on an H200: 64x256x56x56 f32 3.4 TB/s forward with one exchange (3.2 with two), 4.0
 *            backward
 * Assumes:   all tensors dense in one order; rows that fit into the registers of a block. dst may be src
 * Try:       weft bench softmax2d:fwd:f32:nchw:n64c256h56w56@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 256, MOST = 1024, BYTES = 256 }; /* BYTES: of data that a thread keeps */

typedef struct softmax_args {
    const void *src, *diff_dst; /* src: dst in a gradient */
    void *dst;
    int64_t outer, channels, inner; /* channels in vectors where they lie together, else inner is */
    int64_t tiles;                  /* of LX vectors in an inner */
} softmax_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    cuda_data d;
    int vec, lx, ry, each, once; /* each: vectors a thread; once: maximum and sum in one exchange */
} tile;

static const char *tile_of(const weft_problem *p, int variant, tile *t) {
    const char *refusal = cuda_data_of(p, &t->d);
    if (refusal) return refusal;
    const bool rows = t->d.inner == 1;
    t->vec = cuda_vec(p, rows ? t->d.channels : t->d.inner);
    t->once = variant == 2;
    if (rows && variant) return "rows that lie together have one tile";
    if (t->once && p->pass != WEFT_PASS_FWD) return "a gradient has one exchange";
    if (t->once && (p->op != WEFT_OP_SOFTMAX || p->tensor[0].dtype != WEFT_DTYPE_F32))
        return "exponentials that are not kept: slower, as measured";
    const int bytes = t->vec * (int)weft__dtype_size(p->tensor[0].dtype);
    const int64_t most = BYTES / bytes / (p->pass == WEFT_PASS_FWD ? 1 : 2), few = WEFT__MIN(rows           ? 4
                                                                                             : variant == 3 ? 8
                                                                                                            : 16,
                                                                                             most);
    const int64_t vectors = rows ? t->d.channels / t->vec : t->d.channels;
    t->lx = rows ? 1 : WEFT__MIN(cuda_power(t->d.inner / t->vec), (variant == 1 ? 256 : 128) / bytes);
    if (vectors > most * (MOST / t->lx)) return "a row is longer than the registers of a block hold";
    t->ry = cuda_power(cuda_ceil(vectors, few));
    while (t->ry * t->lx > MOST || (t->ry > 2 * THREADS && cuda_ceil(vectors, t->ry / 2) <= most)) t->ry /= 2;
    t->each = (int)cuda_ceil(vectors, t->ry);
    while (!rows && t->ry * t->lx < THREADS / 2 && t->lx * t->vec < t->d.inner) t->lx *= 2;
    if (rows && t->ry < THREADS && t->ry > 32) t->lx = 1;
    if (rows && t->ry <= 32) t->lx = THREADS / t->ry;
    if (!rows && t->ry * t->lx < 32) t->ry = 32 / t->lx;
    return NULL;
}

/* Bytes of a channel that a block reads together; maximum and sum in one exchange. */
static const char *const variants[] = {"128b", "256b", "once", NULL};

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = tile_of(p, variant, t);
    if (refusal) return refusal;
    /* blocks that leave multiprocessors idle take as long as full ones */
    const double blocks = t->d.inner == 1 ? (double)t->d.outer / t->lx
                                          : (double)t->d.outer * (double)cuda_ceil(t->d.inner, (int64_t)t->lx * t->vec);
    const double idle = WEFT__MAX(hw->gpu->sms * 256.0 / (t->lx * t->ry) / WEFT__MAX(blocks, 1), 1);
    d->ns = cuda_ns(hw, weft__bytes(p) * idle, t->once ? 0.84 : 0.8 - 0.01 * variant, 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(text, " -DROWS=%d -DLX=%d -DRY=%d -DEACH=%d -DLOG=%d -DBWD=%d -DONCE=%d", t->d.inner == 1, t->lx, t->ry,
              t->each, p->op == WEFT_OP_LOG_SOFTMAX, p->pass != WEFT_PASS_FWD, t->once);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    const bool fwd = e->p->pass == WEFT_PASS_FWD, rows = t->d.inner == 1;
    softmax_args a = {.src = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DST],
                      .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                      .dst = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                      .outer = t->d.outer,
                      .channels = rows ? t->d.channels / t->vec : t->d.channels,
                      .inner = rows ? 1 : t->d.inner / t->vec};
    a.tiles = cuda_ceil(a.inner, t->lx);
    const int64_t blocks = rows ? cuda_ceil(a.outer, t->lx) : a.outer * a.tiles;
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(blocks, 1 << 30), 1, 1},
                                 .block = {(uint32_t)(t->lx * t->ry), 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

#define SOFTMAX(NAME, name_)                                            \
    const weft__kernel weft__cuda_##name_ = {                           \
        .name = #name_ "_rows__cuda",                                   \
        .version = 1,                                                   \
        .op = WEFT_OP_##NAME,                                           \
        .engine = WEFT_ENGINE_CUDA,                                     \
        .dtypes = CUDA_FLOATS,                                          \
        .bound = 4,                                                     \
        .variants = variants,                                           \
        .plan = plan,                                                   \
        .run = run,                                                     \
        WEFT__PARTS({"softmax/softmax.cu", "softmax", defines, false}), \
    }
SOFTMAX(SOFTMAX, softmax);
SOFTMAX(LOG_SOFTMAX, log_softmax);

#else
#include "reduce.h"
#include "softmax/running.h"
#include "softmax/softmax.h"
#include "vec.h"

enum { BLOCK = LX * RY };
enum { WIDTH = ROWS ? 1 : VEC };        /* rows that a thread works on */
enum { KEPT = !LOG && sizeof(T) == 4 }; /* exp(x - m) stays in the place of x, which has room for it */

/* Over the threads of a row, or of each of VEC rows. Barriers: the whole block calls. */
template <class Op> static __device__ __forceinline__ void over_row(float (&v)[WIDTH]) {
    __shared__ float scratch[BLOCK * WIDTH + 32];
    if (ROWS) {
        if (RY > 32) {
            __syncthreads();
            v[0] = block_all<Op, BLOCK>(v[0], scratch);
        } else {
            v[0] = lanes_all<Op, RY>(v[0]);
        }
        return;
    }
    const int x = (int)threadIdx.x % LX, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
#pragma unroll
        for (int d = LX; d < 32 && d < BLOCK; d *= 2) v[i] = Op::of(v[i], __shfl_xor_sync(0xffffffffu, v[i], d));
    constexpr int LEFT = LX >= 32 ? RY : BLOCK / 32; /* partial results of each pixel */
    if (LEFT == 1) return;
    const int mine = LX >= 32 ? (int)threadIdx.x / LX : (int)threadIdx.x / 32;
    __syncthreads();
    if (LX >= 32 || lane < LX)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) scratch[(mine * WIDTH + i) * LX + x] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WIDTH; i++) v[i] = scratch[i * LX + x];
#pragma unroll 8
    for (int r = 1; r < LEFT; r++)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) v[i] = Op::of(v[i], scratch[(r * WIDTH + i) * LX + x]);
}

/* The same of maximum and sum together, for columns. */
static __device__ __forceinline__ void over_column(running (&v)[WIDTH]) {
    __shared__ running scratch[BLOCK * WIDTH];
    const int x = (int)threadIdx.x % LX, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < WIDTH; i++)
#pragma unroll
        for (int d = LX; d < 32 && d < BLOCK; d *= 2) {
            const running other = {__shfl_xor_sync(0xffffffffu, v[i].m, d), __shfl_xor_sync(0xffffffffu, v[i].sum, d)};
            v[i] = lane & d ? merge(other, v[i]) : merge(v[i], other);
        }
    constexpr int LEFT = LX >= 32 ? RY : BLOCK / 32;
    if (LEFT == 1) return;
    const int mine = LX >= 32 ? (int)threadIdx.x / LX : (int)threadIdx.x / 32;
    __syncthreads(); /* where a block has several places */
    if (LX >= 32 || lane < LX)
#pragma unroll
        for (int i = 0; i < WIDTH; i++) scratch[(mine * WIDTH + i) * LX + x] = v[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
        float m = scratch[i * LX + x].m, sum = 0;
#pragma unroll 8
        for (int r = 1; r < LEFT; r++) m = greatest::of(m, scratch[(r * WIDTH + i) * LX + x].m);
#pragma unroll 8
        for (int r = 0; r < LEFT; r++) {
            const running part = scratch[(r * WIDTH + i) * LX + x];
            sum = fmaf(part.sum, exp_small(part.m - running_base(m)), sum);
        }
        v[i] = {m, sum};
    }
}

struct place {
    int64_t at, step; /* of this thread's first vector, and between two of its vectors; in elements */
    int count;        /* vectors that exist */
};

static __device__ __forceinline__ place place_of(const softmax_args &a, int64_t block) {
    const int x = (int)threadIdx.x % LX, y = (int)threadIdx.x / LX;
    place p;
    if (ROWS) {
        const int64_t row = block * LX + threadIdx.x / RY;
        const int lane = (int)threadIdx.x % RY;
        p.at = (row * a.channels + lane) * VEC;
        p.step = RY * VEC;
        p.count = row < a.outer ? ((int)a.channels - lane + RY - 1) / RY : 0;
    } else {
        const int64_t outer = block / a.tiles, pixel = block % a.tiles * LX + x;
        p.at = ((outer * a.channels + y) * a.inner + pixel) * VEC;
        p.step = RY * a.inner * VEC;
        p.count = pixel < a.inner ? ((int)a.channels - y + RY - 1) / RY : 0;
    }
    return p;
}

/* What a thread has seen: exp(x - m), of its own m, stays in the place of x where KEPT. */
static __device__ __forceinline__ void seen(pack<T, VEC> (&x)[EACH], int count, const float (&m)[WIDTH],
                                            float (&s)[WIDTH]) {
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (k < count) {
                const float e = exp_small(widen(x[k].v[i]) - m[i % WIDTH]);
                s[i % WIDTH] += e;
                if (KEPT) x[k].v[i] = narrow<T>(e);
            }
}

static __device__ __forceinline__ void forward(const softmax_args &a, const place &p) {
    pack<T, VEC> x[EACH];
    float m[WIDTH], s[WIDTH], f[WIDTH]; /* f: what the kept are multiplied with */
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < p.count) load_raw((const T *)a.src + p.at + k * p.step, x[k]);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) m[i] = -INFINITY, s[i] = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (k < p.count) m[i % WIDTH] = greatest::of(m[i % WIDTH], widen(x[k].v[i]));
    if (ONCE) {
        running all[WIDTH];
        float base[WIDTH];
#pragma unroll
        for (int i = 0; i < WIDTH; i++) base[i] = running_base(m[i]);
        seen(x, p.count, base, s);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) all[i] = {m[i], s[i]};
        over_column(all);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) {
            m[i] = running_base(all[i].m);
            s[i] = softmax_scale(all[i].sum);
            f[i] = exp_small(base[i] - m[i]) * s[i];
        }
    } else {
        over_row<greatest>(m);
        seen(x, p.count, m, s);
        over_row<plus>(s);
#pragma unroll
        for (int i = 0; i < WIDTH; i++) f[i] = s[i] = softmax_scale(s[i]);
    }
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < p.count) {
            float y[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float v = widen(x[k].v[i]);
                y[i] = KEPT ? v * f[i % WIDTH] : softmax_value(v, m[i % WIDTH], s[i % WIDTH]);
            }
            store((T *)a.dst + p.at + k * p.step, y);
        }
}

static __device__ __forceinline__ void backward(const softmax_args &a, const place &p) {
    pack<T, VEC> y[EACH], dy[EACH];
    float s[WIDTH] = {};
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < p.count) {
            load_raw((const T *)a.src + p.at + k * p.step, y[k]);
            load_raw((const T *)a.diff_dst + p.at + k * p.step, dy[k]);
        }
#pragma unroll
    for (int k = 0; k < EACH; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (k < p.count) s[i % WIDTH] = softmax_term(widen(y[k].v[i]), widen(dy[k].v[i]), s[i % WIDTH]);
    over_row<plus>(s);
#pragma unroll
    for (int k = 0; k < EACH; k++)
        if (k < p.count) {
            float dx[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) dx[i] = softmax_gradient(widen(y[k].v[i]), widen(dy[k].v[i]), s[i % WIDTH]);
            store((T *)a.dst + p.at + k * p.step, dx);
        }
}

extern "C" __global__ void __launch_bounds__(BLOCK) softmax(const __grid_constant__ softmax_args a) {
    const int64_t blocks = ROWS ? (a.outer + LX - 1) / LX : a.outer * a.tiles;
    for (int64_t block = blockIdx.x; block < blocks; block += gridDim.x) {
        const place p = place_of(a, block);
        BWD ? backward(a, p) : forward(a, p);
    }
}
#endif
