/* Batch normalisation, training and inference, and its gradients; f32, f16, bf16 with f32 statistics; both layouts.
 * Math:      as in src/ref/batch_norm.h. Sums are of x - K with K the channel's first element, and of dy and dy (x -
 *            m): in f32 within a thread, in f64 from there on. The mean is kept as two floats: x - m loses nothing
 *            where they are close
 * Blocking:  a block has one channel (channels-first) or LX x VEC neighbouring ones, and a slice of the rest; slices
 *            follow from the problem. Launches: sums of slices; a warp a channel adds them up; all elements
 * Traffic:   inputs twice, outputs once; inference once
 * Roofline:  bandwidth. Measured on an H200, 64x256x56x56 channels-last: 2.4 TB/s of each tensor once in f32 (170 us
 *            forward, 262 gradients; cuDNN 178 and 265), 2.1 in f16, training; inference 4.1
 * Assumes:   all tensors dense in one order
 * Try:       weft bench batch_norm2d:fwd:f32:nchw:n64c256h56w56:train1@cuda */
#include "batch_norm/batch_norm.h"

enum { UNROLL = 4, MANY = 64 }; /* steps of a block, at least; slices that a block adds up, and not a warp */

#ifndef __CUDACC_RTC__
typedef struct tile {
    cuda_data d;
    int vec, lx;
    int64_t tiles;
} tile;

/* Slices that make about so many blocks, each with something to do. */
static int64_t slices_of(const tile *t, int64_t blocks) {
    const int64_t steps =
        t->d.inner == 1 ? cuda_ceil(t->d.outer, THREADS / t->lx) : cuda_ceil(t->d.outer * t->d.inner / t->vec, THREADS);
    return WEFT__MAX(WEFT__MIN(cuda_ceil(blocks, t->tiles), cuda_ceil(steps, UNROLL)), 1);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = cuda_data_of(p, &t->d);
    (void)variant;
    if (refusal) return refusal;
    const bool last = t->d.inner == 1;
    t->vec = cuda_vec(p, last ? t->d.channels : t->d.inner);
    if (last) t->vec = WEFT__MIN(t->vec, 4); /* each channel of a thread takes registers */
    t->lx = last ? WEFT__MIN(cuda_power(t->d.channels / t->vec), 32) : THREADS;
    t->tiles = last ? cuda_ceil(t->d.channels / t->vec, t->lx) : t->d.channels;
    if (t->tiles > 1 << 24) return "2^24 channels or more";
    const double bytes = weft__bytes(p);
    d->workspace = !batch_norm_sums_needed(p)
                       ? 0
                       : (size_t)t->d.channels *
                             ((size_t)slices_of(t, 1024) * sizeof(batch_norm_sums) + sizeof(batch_norm_channel));
    /* as measured on an H200 */
    const bool wide = p->tensor[0].dtype == WEFT_DTYPE_F32;
    d->ns = batch_norm_sums_needed(p) ? cuda_ns(hw, bytes,
                                                !last  ? 0.5
                                                : wide ? 0.55
                                                       : 0.48,
                                                3)
                                      : cuda_ns(hw, bytes, 0.9, 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    batch_norm_defines(p, &t->d, t->vec, text);
    weft__put(text, " -DLX=%d", t->lx);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const tile *t = e->params;
    const bool last = t->d.inner == 1;
    batch_norm_args a = batch_norm_args_of(e, &t->d, t->vec);
    a.tiles = t->tiles;
    const int64_t vectors = last ? a.outer : a.outer * a.inner;
    weft__launch launch = {.block = {THREADS, 1, 1}};
    if (batch_norm_sums_needed(p)) {
        a.slices = slices_of(t, 1024);
        a.slice = cuda_ceil(vectors, a.slices);
        a.sums = e->workspace;
        a.channel = (float *)(a.sums + a.slices * t->d.channels);
        launch.grid[0] = (uint32_t)(a.tiles * a.slices), launch.grid[1] = launch.grid[2] = 1;
        WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
        launch.grid[0] = (uint32_t)(a.slices > MANY ? t->d.channels : cuda_ceil(t->d.channels, THREADS / 32));
        WEFT__TRY(weft__cuda_launch(e, 1, &launch, &a));
    }
    a.slices = slices_of(t, last ? 2048 : 8192); /* where the channels lie together every thread reads many of them */
    a.slice = cuda_ceil(vectors, a.slices);
    launch.grid[0] = (uint32_t)(a.tiles * a.slices), launch.grid[1] = launch.grid[2] = 1;
    return weft__cuda_launch(e, 2, &launch, &a);
}

const weft__kernel weft__cuda_batch_norm = {
    .name = "batch_norm_slices__cuda",
    .version = 1,
    .op = WEFT_OP_BATCH_NORM,
    .engine = WEFT_ENGINE_CUDA,
    .dtypes = CUDA_FLOATS,
    .bound = 4,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"batch_norm/batch_norm.cu", "sums", defines, false},
                {"batch_norm/batch_norm.cu", "finish", defines, false},
                {"batch_norm/batch_norm.cu", "apply", defines, false}),
};

#else
/* Vectors of a tensor under way per thread: narrow ones are more, of two tensors less. */
enum { FLIGHT = (BWD ? 2 : 4) * (16 / (VEC * sizeof(T)) < 4 ? 16 / (VEC * sizeof(T)) : 4) };
enum { WIDE = LAST ? VEC : 1, RY = THREADS / LX }; /* channels of a thread; threads that share them */

struct place {
    int64_t channel;          /* the first of WIDE; negative: none */
    int64_t begin, end, step; /* vectors of the slice that are this thread's */
};

static __device__ __forceinline__ place place_of(const batch_norm_args &a, uint32_t block) {
    place p;
    const int64_t tile = block % a.tiles, slice = block / a.tiles;
    const int64_t vector = LAST ? tile * LX + threadIdx.x % LX : tile;
    p.channel = vector < a.channels ? vector * WIDE : -1;
    p.begin = slice * a.slice + (LAST ? threadIdx.x / LX : threadIdx.x);
    p.end = vector < a.channels ? min((slice + 1) * a.slice, LAST ? a.outer : a.outer * a.inner) : 0;
    p.step = LAST ? RY : THREADS;
    return p;
}

/* The offset in elements of vector j of the channel. */
static __device__ __forceinline__ int64_t offset(const batch_norm_args &a, const place &p, int64_t j) {
    if (LAST) return j * a.channels * VEC + p.channel;
    const INDEX n = (INDEX)j / (INDEX)a.inner;
    return ((n * a.channels + p.channel) * a.inner + ((INDEX)j - n * (INDEX)a.inner)) * VEC;
}

extern "C" __global__ void __launch_bounds__(THREADS) sums(const __grid_constant__ batch_norm_args a) {
    __shared__ batch_norm_sums scratch[LAST ? THREADS * VEC : THREADS / 32];
    const place p = place_of(a, blockIdx.x);
    float first[WIDE] = {}, second[WIDE] = {}, from[WIDE];
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (p.channel >= 0) from[i] = BWD ? given_mean(a, p.channel + i) : shift(a, p.channel + i);
    for (int64_t j = p.begin; j < p.end; j += FLIGHT * p.step) {
        pack<T, VEC> x[FLIGHT], dy[FLIGHT];
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (j + u * p.step < p.end) {
                const int64_t at = offset(a, p, j + u * p.step);
                load_raw((const T *)a.src + at, x[u]);
                if (BWD) load_raw((const T *)a.diff_dst + at, dy[u]);
            }
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
#pragma unroll
            for (int i = 0; i < VEC; i++)
                if (j + u * p.step < p.end) {
                    const float d = widen(x[u].v[i]) - from[i % WIDE], by = BWD ? widen(dy[u].v[i]) : d;
                    first[i % WIDE] += by;
                    second[i % WIDE] = fmaf(by, d, second[i % WIDE]);
                }
    }
    batch_norm_sums *out = a.sums + blockIdx.x / a.tiles; /* of channel c at c * slices */
    if (!LAST) {
        double *room = (double *)scratch;
        const batch_norm_sums s = {block_all<plus, THREADS>((double)first[0], room),
                                   block_all<plus, THREADS>((double)second[0], room + THREADS / 32)};
        if (threadIdx.x == 0) out[p.channel * a.slices] = s;
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++) scratch[i * THREADS + threadIdx.x] = {first[i], second[i]};
    __syncthreads();
    for (int k = threadIdx.x; k < LX * WIDE; k += THREADS) {
        const int lane = k / WIDE, i = k % WIDE;
        const int64_t channel = (blockIdx.x % a.tiles * LX + lane) * WIDE + i;
        batch_norm_sums s = {0, 0};
        for (int y = 0; y < RY; y++) {
            s.first += scratch[i * THREADS + y * LX + lane].first;
            s.second += scratch[i * THREADS + y * LX + lane].second;
        }
        if (channel < a.channels * WIDE) out[channel * a.slices] = s;
    }
}

/* A channel's slices, by a block or, where they are few, by a warp. */
extern "C" __global__ void __launch_bounds__(THREADS) finish(const __grid_constant__ batch_norm_args a) {
    __shared__ double scratch[2][THREADS / 32];
    const bool many = a.slices > MANY;
    const int threads = many ? THREADS : 32;
    const int64_t channels = a.channels * WIDE,
                  c = many ? blockIdx.x : (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    if (c >= channels) return;
    batch_norm_sums s = {0, 0};
    for (int64_t i = threadIdx.x % threads; i < a.slices; i += threads) {
        const batch_norm_sums part = a.sums[c * a.slices + i];
        s.first += part.first;
        s.second += part.second;
    }
    if (many) {
        s.first = block_all<plus, THREADS>(s.first, scratch[0]);
        s.second = block_all<plus, THREADS>(s.second, scratch[1]);
    } else {
        s.first = lanes_all<plus, 32>(s.first);
        s.second = lanes_all<plus, 32>(s.second);
    }
    if (threadIdx.x % threads) return;
    const batch_norm_channel k = BWD ? gradients(a, c, s, true) : statistics(a, c, s, true);
    const float members[5] = {k.mean, k.rest, k.scale, k.flat, k.slope};
#pragma unroll
    for (int i = 0; i < 5; i++) a.channel[i * channels + c] = members[i];
}

/* What WIDE neighbouring channels from c on have in the planes of `channel`. */
static __device__ __forceinline__ void channels_of(const batch_norm_args &a, int64_t c, batch_norm_channel (&k)[WIDE]) {
    const int64_t channels = a.channels * WIDE;
    float mean[WIDE], rest[WIDE], scale[WIDE], flat[WIDE], slope[WIDE];
    load(a.channel + c, mean);
    load(a.channel + channels + c, rest);
    load(a.channel + 2 * channels + c, scale);
    load(a.channel + 3 * channels + c, flat);
    load(a.channel + 4 * channels + c, slope);
#pragma unroll
    for (int i = 0; i < WIDE; i++) k[i] = {mean[i], rest[i], scale[i], flat[i], slope[i]};
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) apply(const __grid_constant__ batch_norm_args a) {
    /* what was summed last is still in the L2 cache: from the end to the beginning */
    const place p = place_of(a, gridDim.x - 1 - blockIdx.x);
    if (p.channel < 0) return;
    batch_norm_channel k[WIDE];
    if (SUMS) channels_of(a, p.channel, k);
    float weight[WIDE], bias[WIDE];
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        const int64_t c = p.channel + i;
        weight[i] = AFFINE ? widen(((const WEIGHTS_T *)a.weights)[c]) : 1;
        bias[i] = AFFINE && !BWD ? widen(((const BIAS_T *)a.bias)[c]) : 0;
        if (!SUMS) k[i] = {given_mean(a, c), 0, given_scale(a, c) * (BWD ? weight[i] : 1), 0, 0};
    }
    for (int64_t j = p.begin; j < p.end; j += FLIGHT * p.step) {
        pack<T, VEC> x[FLIGHT], dy[FLIGHT];
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (j + u * p.step < p.end) {
                const int64_t at = offset(a, p, j + u * p.step);
                if (!BWD || TRAIN) load_raw((const T *)a.src + at, x[u]);
                if (BWD) load_raw((const T *)a.diff_dst + at, dy[u]);
            }
#pragma unroll
        for (int u = 0; u < FLIGHT; u++)
            if (j + u * p.step < p.end) {
                float y[VEC];
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const float v = !BWD || TRAIN ? widen(x[u].v[i]) : 0, g = BWD ? widen(dy[u].v[i]) : 0;
                    y[i] = batch_norm_value(k[i % WIDE], v, g, weight[i % WIDE], bias[i % WIDE]);
                }
                store((T *)a.dst + offset(a, p, j + u * p.step), y);
            }
    }
}
#endif
