/* Matrices times a diagonal, real (dgmm) and complex (cdgmm, pairs of numbers), and the gradients; f32, f16, bf16.
 * Math:      dst = src v; diff_src = diff_dst conj(v); diff_weights = sums of diff_dst conj(src): see src/ref/dgmm.h
 * Blocking:  one factor per column (right): a thread keeps VEC columns and goes down a strip of rows, factors and sums
 *            in registers. One factor per row (left): LX threads share a row of a strip of columns. Both gradients are
 *            one pass. Each strip leaves its sums in f32, a second launch adds them up in f64
 * Traffic:   each tensor once
 * Roofline:  bandwidth. Measured on an H200, 8192x8192 f32: 3.9 to 4.1 TB/s, forward and both gradients
 * Assumes:   all tensors dense and of one data type. Strips, and so the bits of the sums, follow from the problem
 * Try:       weft bench dgmm:bwd:f32:dense:n1h8192w8192:side1@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 256, UNROLL = 4, FINISH_X = 32 };

typedef struct dgmm_args {
    const void *in, *src, *weights; /* in: src, or diff_dst */
    void *out, *diff_weights;
    float *sums;                   /* [strip][element of the vector] */
    int64_t rows, height, vectors; /* rows of all matrices, and of one; vectors of a row */
    int64_t tiles, strip, strips;  /* tiles across what is not cut into strips; rows or vectors of a strip */
    int64_t length, parts;         /* elements of the vector, and how many sums each has */
} dgmm_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    int vec, access, lx; /* access: elements of one load, less than vec where pairs are not aligned */
    int64_t rows, vectors, tiles, strip, strips;
    bool right, sums, data;
} tile;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const int64_t pair = p->op == WEFT_OP_CDGMM ? 2 : 1, cols = p->attr[WEFT_DGMM_COLS] * pair;
    (void)variant;
    if (!weft__all_dtype(p, p->tensor[0].dtype)) return "tensors of several data types";
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense";
    t->right = p->attr[WEFT_DGMM_SIDE] != 0;
    t->sums = p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS;
    t->data = p->pass != WEFT_PASS_BWD_WEIGHTS;
    t->access = cuda_vec(p, cols);
    const weft_tensor *v = weft__tensor(p, WEFT_ROLE_WEIGHTS);
    while (t->right && v && t->access > 1 && v->align % ((int64_t)weft__dtype_size(v->dtype) * t->access))
        t->access /= 2;
    t->vec = WEFT__MAX(t->access, (int)pair);
    t->rows = p->n * p->attr[WEFT_DGMM_ROWS];
    t->vectors = cols / t->vec;
    /* strips of rows for columns, of columns for rows */
    t->lx = WEFT__MIN(cuda_power(t->vectors), t->right ? 64 : t->vectors >= 1024 ? THREADS : 32);
    const int64_t ry = THREADS / t->lx, long_ = t->right ? t->rows : t->vectors, step = t->right ? ry : t->lx;
    t->tiles = t->right ? cuda_ceil(t->vectors, t->lx) : cuda_ceil(t->rows, ry);
    const int64_t blocks = t->sums ? 1024 : 8192, most = cuda_ceil(long_, step * UNROLL);
    t->strip = cuda_ceil(long_, WEFT__MAX(WEFT__MIN(cuda_ceil(blocks, t->tiles), most), 1));
    t->strips = cuda_ceil(long_, t->strip);
    if (t->tiles > INT32_MAX / t->strips) return "2^31 tiles or more";
    d->workspace = t->sums ? (size_t)(t->strips * (t->right ? cols : t->rows * pair)) * sizeof(float) : 0;
    d->ns = cuda_ns(hw, weft__bytes(p) + 2 * (double)d->workspace, 0.9, t->sums ? 2 : 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(text, " -DACCESS=%d -DPAIR=%d -DRIGHT=%d -DSUMS=%d -DDATA=%d -DBWD=%d -DLX=%d", t->access,
              p->op == WEFT_OP_CDGMM, t->right, t->sums, t->data, p->pass != WEFT_PASS_FWD, t->lx);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const tile *t = e->params;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t pair = p->op == WEFT_OP_CDGMM ? 2 : 1;
    dgmm_args a = {.in = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST],
                   .src = e->ptr[WEFT_ROLE_SRC],
                   .weights = e->ptr[WEFT_ROLE_WEIGHTS],
                   .out = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                   .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
                   .sums = e->workspace,
                   .rows = t->rows,
                   .height = p->attr[WEFT_DGMM_ROWS],
                   .vectors = t->vectors,
                   .tiles = t->tiles,
                   .strip = t->strip,
                   .strips = t->strips};
    a.length = pair * (t->right ? p->attr[WEFT_DGMM_COLS] : a.height);
    a.parts = t->right ? t->strips : t->strips * p->n;
    weft__launch launch = {.grid = {(uint32_t)(t->tiles * t->strips), 1, 1}, .block = {THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    if (!t->sums) return WEFT_OK;
    launch.grid[0] = (uint32_t)cuda_ceil(a.length, FINISH_X);
    return weft__cuda_launch(e, 1, &launch, &a);
}

#define DGMM(NAME, name_)                                                                                   \
    const weft__kernel weft__cuda_##name_ = {                                                               \
        .name = #name_ "_16b__cuda",                                                                        \
        .version = 1,                                                                                       \
        .op = WEFT_OP_##NAME,                                                                               \
        .engine = WEFT_ENGINE_CUDA,                                                                         \
        .dtypes = CUDA_FLOATS,                                                                              \
        .exact = true,                                                                                      \
        .plan = plan,                                                                                       \
        .run = run,                                                                                         \
        WEFT__PARTS({"dgmm/dgmm.cu", "scale", defines, false}, {"dgmm/dgmm.cu", "finish", defines, false}), \
    }
DGMM(DGMM, dgmm);
DGMM(CDGMM, cdgmm);

#else
#include "reduce.h"
#include "vec.h"

enum { RY = THREADS / LX };

static __device__ __forceinline__ void fetch(const void *from, int64_t at, float (&to)[VEC]) {
#pragma unroll
    for (int k = 0; k < VEC; k += ACCESS) {
        float part[ACCESS];
        load((const T *)from + at + k, part);
#pragma unroll
        for (int i = 0; i < ACCESS; i++) to[k + i] = part[i];
    }
}

static __device__ __forceinline__ void put(void *to, int64_t at, const float (&from)[VEC]) {
#pragma unroll
    for (int k = 0; k < VEC; k += ACCESS) {
        float part[ACCESS];
#pragma unroll
        for (int i = 0; i < ACCESS; i++) part[i] = from[k + i];
        store((T *)to + at + k, part);
    }
}

/* x v, in a gradient x conj(v): VEC numbers, or VEC / 2 pairs. */
static __device__ __forceinline__ void product(const float (&x)[VEC], const float (&v)[VEC], float (&y)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i += 1 + PAIR) {
        if (!PAIR) {
            y[i] = x[i] * v[i];
            continue;
        }
        const float im = BWD ? -v[i + 1] : v[i + 1];
        y[i] = fmaf(x[i], v[i], -x[i + 1] * im);
        y[i + 1] = fmaf(x[i + 1], v[i], x[i] * im);
    }
}

/* sum += dy conj(x) */
static __device__ __forceinline__ void add(const float (&dy)[VEC], const float (&x)[VEC], float (&sum)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i += 1 + PAIR) {
        sum[i] = fmaf(dy[i], x[i], sum[i]);
        if (!PAIR) continue;
        sum[i] = fmaf(dy[i + 1], x[i + 1], sum[i]);
        sum[i + 1] = fmaf(dy[i + 1], x[i], sum[i + 1]);
        sum[i + 1] = fmaf(-dy[i], x[i + 1], sum[i + 1]);
    }
}

/* The factor of a row, in every number of a vector. */
static __device__ __forceinline__ void factor_of_row(const dgmm_args &a, int64_t row, float (&v)[VEC]) {
    const int64_t at = row % a.height * (1 + PAIR);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = widen(((const T *)a.weights)[at + (PAIR ? i % 2 : 0)]);
}

/* Elements `at`, at + step, ... below end: UNROLL under way. */
static __device__ __forceinline__ void walk(const dgmm_args &a, int64_t at, int64_t step, int64_t end,
                                            const float (&v)[VEC], float (&sum)[VEC]) {
    for (; at < end; at += UNROLL * step) {
        float in[UNROLL][VEC], src[UNROLL][VEC];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (at + u * step < end) {
                fetch(a.in, at + u * step, in[u]);
                if (SUMS) fetch(a.src, at + u * step, src[u]);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (at + u * step < end) {
                float out[VEC];
                if (SUMS) add(in[u], src[u], sum);
                if (!DATA) continue;
                product(in[u], v, out);
                put(a.out, at + u * step, out);
            }
    }
}

/* Over the RY rows of a block's columns, in their order. */
static __device__ __forceinline__ void over_rows(float (&sum)[VEC]) {
    __shared__ float scratch[VEC][THREADS];
    if (RY == 1) return;
#pragma unroll
    for (int i = 0; i < VEC; i++) scratch[i][threadIdx.x] = sum[i];
    __syncthreads();
    if (threadIdx.x >= LX) return;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        for (int y = 1; y < RY; y++) sum[i] += scratch[i][y * LX + threadIdx.x];
}

static __device__ __forceinline__ void columns(const dgmm_args &a) {
    const int64_t strip = blockIdx.x / a.tiles, x = blockIdx.x % a.tiles * LX + threadIdx.x % LX,
                  y = strip * a.strip + threadIdx.x / LX, end = min((strip + 1) * a.strip, a.rows);
    const int64_t row = a.vectors * VEC;
    float v[VEC] = {}, sum[VEC] = {};
    if (x < a.vectors) {
        if (DATA) fetch(a.weights, x * VEC, v);
        walk(a, y * row + x * VEC, RY * row, end * row, v, sum);
    }
    if (!SUMS) return;
    over_rows(sum);
    if (threadIdx.x < LX && x < a.vectors)
#pragma unroll
        for (int i = 0; i < VEC; i++) a.sums[strip * row + x * VEC + i] = sum[i];
}

static __device__ __forceinline__ void rows(const dgmm_args &a) {
    __shared__ float scratch[2][THREADS / 32];
    const int64_t strip = blockIdx.x / a.tiles, y = blockIdx.x % a.tiles * RY + threadIdx.x / LX,
                  x = strip * a.strip + threadIdx.x % LX, end = min((strip + 1) * a.strip, a.vectors);
    const int64_t row = a.vectors * VEC;
    float v[VEC] = {}, sum[VEC] = {}, all[2] = {0, 0};
    if (y < a.rows) {
        if (DATA) factor_of_row(a, y, v);
        walk(a, y * row + x * VEC, LX * VEC, y * row + end * VEC, v, sum);
    }
    if (!SUMS) return;
#pragma unroll
    for (int i = 0; i < VEC; i++) all[PAIR ? i % 2 : 0] += sum[i];
#pragma unroll
    for (int i = 0; i < 1 + PAIR; i++) {
        all[i] = LX > 32 ? block_all<plus, THREADS>(all[i], scratch[i]) : lanes_all < plus,
        LX <= 32 ? LX : 32 > (all[i]);
        if (threadIdx.x % LX == 0 && y < a.rows)
            a.sums[((y / a.height * a.strips + strip) * a.height + y % a.height) * (1 + PAIR) + i] = all[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) scale(const __grid_constant__ dgmm_args a) {
    RIGHT ? columns(a) : rows(a);
}

/* Parts of FINISH_X neighbouring elements, each row of threads some of them. */
extern "C" __global__ void __launch_bounds__(THREADS) finish(const __grid_constant__ dgmm_args a) {
    constexpr int Y = THREADS / FINISH_X;
    __shared__ double scratch[Y][FINISH_X];
    const int x = (int)threadIdx.x % FINISH_X, y = (int)threadIdx.x / FINISH_X;
    const int64_t at = (int64_t)blockIdx.x * FINISH_X + x;
    double sum = 0;
    if (at < a.length)
        for (int64_t i = y; i < a.parts; i += Y) sum += a.sums[i * a.length + at];
    scratch[y][x] = sum;
    __syncthreads();
    if (y || at >= a.length) return;
    for (int i = 1; i < Y; i++) sum += scratch[i][x];
    ((T *)a.diff_weights)[at] = narrow<T>((float)sum);
}
#endif
