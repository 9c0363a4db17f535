/* Batch normalisation in training and its gradients, channels-first, each tensor read once; f32, f16, bf16 with f32
 * statistics.
 * Math:      as in src/ref/batch_norm.h; sums as batch_norm.h says
 * Blocking:  a channel stays on chip: in the registers of a block, or of a cluster of up to 8 blocks that exchange
 *            their sums through shared memory; the gradient keeps dy in shared memory. A thread has EACH vectors
 * Traffic:   each tensor once
 * Roofline:  bandwidth. Measured on an H200, 64x256x56x56: 3.0 TB/s forward, 2.9 backward in f32, 2.8 backward in f16
 * Assumes:   all tensors dense channels-first; a channel of at most about 800 KB (of x), clusters beyond 100 KB
 * Try:       weft bench batch_norm2d:fwd:f32:nchw:n64c256h56w56:train1@cuda */
#include "batch_norm/batch_norm.h"

enum {
    REGISTERS = 100,
    MANY = 56
}; /* of a thread's vectors: at most; more than that leaves two blocks a multiprocessor */

typedef struct resident_args {
    batch_norm_args a;
    int64_t span; /* vectors of a channel that a block has */
    /* from one vector of a thread to the next: vectors in memory, more where an image ends, places in the image */
    int64_t jump, wrap, rest;
} resident_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    cuda_data d;
    int vec, each, blocks; /* blocks: of a cluster */
} tile;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = cuda_data_of(p, &t->d);
    const bool fwd = p->pass == WEFT_PASS_FWD;
    /* blocks of a cluster: of gradients, which keep dy in shared memory, 16 where a GPU has such */
    const int most = fwd || hw->gpu->cc < 90 || hw->gpu->cc >= 120 ? 8 : 16;
    (void)variant;
    if (refusal) return refusal;
    if (t->d.inner == 1) return "channels-last, or one pixel";
    if (!p->attr[WEFT_BN_TRAIN]) return "inference: no sum comes before the result";
    if (t->d.channels > 1 << 24) return "2^24 channels or more";
    t->vec = cuda_vec(p, t->d.inner);
    const int64_t size = t->vec * (int64_t)weft__dtype_size(p->tensor[0].dtype);
    const int64_t vectors = t->d.outer * (t->d.inner / t->vec), bytes = WEFT__MAX(size, 4);
    for (t->blocks = 1; t->blocks <= most; t->blocks *= 2) {
        const int64_t each = cuda_ceil(vectors, (int64_t)t->blocks * THREADS);
        t->each = (int)WEFT__MIN(each, 1 << 20);
        if (each * bytes / 4 <= (t->blocks < most ? MANY : REGISTERS) && each <= 64) break;
    }
    if (t->blocks > most) return "a channel does not fit on chip";
    if (t->blocks > 1 && hw->gpu->cc < 90) return "a channel does not fit into a block, and there are no clusters";
    d->ns = cuda_ns(hw, weft__bytes(p), t->vec * size > 8 ? 0.75 : 0.6, 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    batch_norm_defines(p, &t->d, t->vec, text);
    weft__put(text, " -DEACH=%d -DBLOCKS=%d", t->each, t->blocks);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    resident_args r = {.a = batch_norm_args_of(e, &t->d, t->vec)};
    r.span = cuda_ceil(r.a.outer * r.a.inner, t->blocks);
    r.jump = THREADS / r.a.inner * r.a.channels * r.a.inner + THREADS % r.a.inner;
    r.wrap = (r.a.channels - 1) * r.a.inner;
    r.rest = THREADS % r.a.inner;
    weft__launch launch = {.grid = {(uint32_t)(r.a.channels * t->blocks), 1, 1}, .block = {THREADS, 1, 1}};
    if (t->blocks > 1) launch.cluster[0] = (uint32_t)t->blocks, launch.cluster[1] = launch.cluster[2] = 1;
    if (e->p->pass != WEFT_PASS_FWD)
        launch.smem = (size_t)t->each * THREADS * (size_t)t->vec * weft__dtype_size(e->p->tensor[0].dtype);
    return weft__cuda_launch(e, 0, &launch, &r);
}

const weft__kernel weft__cuda_batch_norm_resident = {
    .name = "batch_norm_resident__cuda",
    .version = 1,
    .op = WEFT_OP_BATCH_NORM,
    .engine = WEFT_ENGINE_CUDA,
    .dtypes = CUDA_FLOATS,
    .bound = 4,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"batch_norm/resident.cu", "resident", defines, false}),
};

#else
#include "ptx.h"

typedef pack<T, VEC> vector;
enum { WORDS = (VEC * sizeof(T) + 3) / 4, RESIDENT = EACH * WORDS > MANY ? 2 : 3 }; /* blocks of a multiprocessor */

/* Over the blocks of a cluster, in their order; thread 0 has the result. No block may leave before cluster_end. */
static __device__ __forceinline__ batch_norm_sums over_cluster(batch_norm_sums s) {
    __shared__ double mine[2], parts[2 * BLOCKS];
    if (BLOCKS == 1) return s;
    if (threadIdx.x == 0) mine[0] = s.first, mine[1] = s.second;
    ptx_cluster_arrive();
    ptx_cluster_wait();
    if (threadIdx.x < 2 * BLOCKS) parts[threadIdx.x] = ptx_cluster_load(&mine[threadIdx.x % 2], threadIdx.x / 2);
    ptx_cluster_arrive();
    __syncthreads();
    s = {parts[0], parts[1]};
#pragma unroll 1
    for (int i = 1; i < BLOCKS; i++) s.first += parts[2 * i], s.second += parts[2 * i + 1];
    return s;
}

static __device__ __forceinline__ void cluster_end() {
    if (BLOCKS > 1) ptx_cluster_wait();
}

/* The vectors of a thread, one after the other. */
struct walk {
    int64_t at; /* in vectors */
    INDEX place;
    __device__ __forceinline__ void next(const resident_args &r) {
        at += r.jump;
        place += (INDEX)r.rest;
        if (place >= (INDEX)r.a.inner) place -= (INDEX)r.a.inner, at += r.wrap;
    }
};

/* One vector of a channel: x, and dy of a gradient. */
typedef typename access<VEC * sizeof(T)>::word word;
static __device__ __forceinline__ void fetch(const batch_norm_args &a, int64_t at, vector &x, word *dy) {
    load_raw((const T *)a.src + at * VEC, x);
    if (BWD) *dy = ((const word *)a.diff_dst)[at];
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) resident(const __grid_constant__ resident_args r) {
    extern __shared__ uint4 slots[];
    __shared__ double scratch[2][THREADS / 32];
    __shared__ batch_norm_channel result;
    word *kept = (word *)slots + threadIdx.x;
    const batch_norm_args &a = r.a;
    const int64_t channel = blockIdx.x / BLOCKS, first = blockIdx.x % BLOCKS * r.span + threadIdx.x,
                  end = min((blockIdx.x % BLOCKS + 1) * r.span, a.outer * a.inner);
    const int count = first < end ? (int)((end - first + THREADS - 1) / THREADS) : 0;
    const INDEX image = (INDEX)first / (INDEX)a.inner;
    const walk start = {(image * a.channels + channel) * a.inner + ((INDEX)first - image * (INDEX)a.inner),
                        (INDEX)first - image * (INDEX)a.inner};
    vector x[EACH];
    walk w = start;
#pragma unroll
    for (int k = 0; k < EACH; k++, w.next(r))
        if (k < count) fetch(a, w.at, x[k], kept + k * THREADS);
    const float from = BWD ? given_mean(a, channel) : shift(a, channel);
    float one = 0, two = 0;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        vector dy;
        if (k >= count) continue;
        if (BWD) dy.word = kept[k * THREADS];
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const float d = widen(x[k].v[i]) - from, by = BWD ? widen(dy.v[i]) : d;
            one += by;
            two = fmaf(by, d, two);
        }
    }
    const batch_norm_sums s = over_cluster(
        {block_all<plus, THREADS>((double)one, scratch[0]), block_all<plus, THREADS>((double)two, scratch[1])});
    if (threadIdx.x == 0) {
        const bool writes = blockIdx.x % BLOCKS == 0;
        result = BWD ? gradients(a, channel, s, writes) : statistics(a, channel, s, writes);
    }
    __syncthreads();
    const batch_norm_channel c = result;
    const float weight = AFFINE ? widen(((const WEIGHTS_T *)a.weights)[channel]) : 1,
                bias = AFFINE && !BWD ? widen(((const BIAS_T *)a.bias)[channel]) : 0;
    w = start;
#pragma unroll
    for (int k = 0; k < EACH; k++, w.next(r)) {
        vector dy;
        float y[VEC];
        if (k >= count) continue;
        if (BWD) dy.word = kept[k * THREADS];
#pragma unroll
        for (int i = 0; i < VEC; i++)
            y[i] = batch_norm_value(c, widen(x[k].v[i]), BWD ? widen(dy.v[i]) : 0, weight, bias);
        store((T *)a.dst + w.at * VEC, y);
    }
    cluster_end();
}
#endif
