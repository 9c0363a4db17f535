/* What the depthwise kernels share: sizes, the relation of a tile of outputs to its sources, and the sums of weight
 * gradients over blocks. A "dest" is dst in fwd and diff_src in the gradients, where src is read at the same places; a
 * "source" is src in fwd and diff_dst in the gradients. Both sides read this file.
 * Work is cut into segments of channels, and segments into units; a block has `per` units that follow each other. The
 * gradient of the weights over the units of one block and one segment is a partial sum: number block + segment. */
#ifndef WEFT_CUDA_DEPTHWISE_H
#define WEFT_CUDA_DEPTHWISE_H

#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "epilogue.h"

enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS, MODE_BOTH };
enum { FINISH_THREADS = 256 };

typedef struct depthwise_args {
    const void *source, *weights, *bias, *at; /* at: src in the gradient of the weights */
    void *dest, *diff_weights, *diff_bias;
    float *partial; /* [block + segment][tap, then bias][channel of the segment] */
    int64_t channels;
    int32_t n, from[3], to[3]; /* images; d h w of source and dest */
    int32_t run, strips;       /* channels of a segment; segments of the same channels */
    int32_t span, per, units;  /* units of a segment, of a block, of all */
    int32_t across, down;      /* tiles of a row, tile rows of a strip */
    int32_t chunks;            /* planes: units of a volume */
    int32_t slot, own;         /* planes: elements of the slots in shared memory */
    int32_t deep;              /* march: dest planes of a unit */
    weft__epilogue epilogue;
} depthwise_args;

#ifndef __CUDACC_RTC__
typedef struct depthwise_tile {
    int32_t kernel[3], stride[3], pad[3], dilation[3];
    int32_t mode, vec, ry, rx;
    int32_t threads, blocks;      /* of a block; of a multiprocessor */
    int32_t lanes;                /* last: threads side by side along channels */
    int32_t deep, ring, owns;     /* planes: of a unit; slots of sources and of dests */
    int32_t aligned, bulk, pairs; /* planes: spans of whole lines; copied in bulk; two elements at a time */
    bool last;
    uint32_t grid;
    size_t smem;
    depthwise_args a; /* but for pointers */
} depthwise_tile;

static inline int depthwise_taps(const depthwise_tile *t) { return t->kernel[0] * t->kernel[1] * t->kernel[2]; }

static inline void depthwise_swap(int32_t *axes) {
    const int32_t kept = axes[1];
    axes[1] = axes[2];
    axes[2] = kept;
}

/* Sizes and mode; NULL, or why not. Sequences lie along h: tiles are taller than wide. */
static inline const char *depthwise_refusal(const weft_problem *p, depthwise_tile *t) {
    if (p->groups != p->c || p->o != p->c) return "not depthwise with one filter a channel";
    if (p->pass == WEFT_PASS_BWD_DATA && p->nsteps) return "an epilogue of transposed convolution";
    t->mode = p->pass == WEFT_PASS_FWD           ? MODE_FWD
              : p->pass == WEFT_PASS_BWD_DATA    ? MODE_DATA
              : p->pass == WEFT_PASS_BWD_WEIGHTS ? MODE_WEIGHTS
                                                 : MODE_BOTH;
    depthwise_args *a = &t->a;
    a->channels = p->c;
    if (p->n > 1 << 24) return "2^24 images or more";
    a->n = (int32_t)p->n;
    for (int i = 0; i < 3; i++) {
        if (p->in[i] > 1 << 24 || p->out[i] > 1 << 24) return "an axis of 2^24 or more";
        const int64_t reach = (p->kernel[i] - 1) * p->dilation[i];
        if (p->stride[i] > 4 || p->kernel[i] > 16 || p->dilation[i] > 16)
            return "stride over 4, dilation or kernel over 16";
        if (p->pad_lo[i] > reach || p->pad_hi[i] > reach) return "padding as wide as the window";
        t->kernel[i] = (int32_t)p->kernel[i], t->stride[i] = (int32_t)p->stride[i];
        t->pad[i] = (int32_t)p->pad_lo[i], t->dilation[i] = (int32_t)p->dilation[i];
        a->from[i] = (int32_t)(t->mode == MODE_FWD ? p->in[i] : p->out[i]);
        a->to[i] = (int32_t)(t->mode == MODE_FWD ? p->out[i] : p->in[i]);
    }
    if (p->in[1] == 1 && p->out[1] == 1 && p->kernel[1] == 1) {
        int32_t *const axes[] = {t->kernel, t->stride, t->pad, t->dilation, a->from, a->to};
        for (size_t i = 0; i < WEFT__COUNT(axes); i++) depthwise_swap(axes[i]);
    }
    if (depthwise_taps(t) > (t->mode >= MODE_WEIGHTS ? 128 : 343) || t->kernel[1] * t->kernel[2] > 121)
        return "a window of too many taps";
    return cuda_dense(p, &t->last);
}

/* Dests before the first whole tile's origin: tiles begin at a dest with (dest + pad) % stride = 0. */
static inline int depthwise_phase(const depthwise_tile *t, int axis) {
    return t->mode == MODE_FWD ? 0 : t->pad[axis] % t->stride[axis];
}

/* Tiles of `many` dests along an axis. */
static inline int32_t depthwise_tiles(const depthwise_tile *t, int axis, int many) {
    return (int32_t)cuda_ceil(t->a.to[axis] + depthwise_phase(t, axis), many);
}

/* Sources of `many` dests along an axis that begin a tile. */
static inline int depthwise_line(const depthwise_tile *t, int axis, int many) {
    const int reach = (t->kernel[axis] - 1) * t->dilation[axis], s = t->stride[axis];
    return t->mode == MODE_FWD ? (many - 1) * s + reach + 1 : (many - 1) / s + reach / s + 1;
}

/* The first source column of a tile that begins at a dest; how far tiles of t->rx columns read past the ends of a row;
 * of the last one, how many columns it reads there. */
static inline int depthwise_first(const depthwise_tile *t, int dest) {
    const int reach = (t->kernel[2] - 1) * t->dilation[2], s = t->stride[2];
    return t->mode == MODE_FWD ? dest * s - t->pad[2] : (dest + t->pad[2]) / s - reach / s;
}
static inline int depthwise_last(const depthwise_tile *t) {
    return depthwise_first(t, (t->a.across - 1) * t->rx - depthwise_phase(t, 2));
}
static inline int depthwise_reach(const depthwise_tile *t) {
    const int left = -depthwise_first(t, -depthwise_phase(t, 2));
    return WEFT__MAX(WEFT__MAX(left, depthwise_last(t) + depthwise_line(t, 2, t->rx) - t->a.from[2]), 0);
}
static inline int depthwise_right(const depthwise_tile *t) {
    const int line = depthwise_line(t, 2, t->rx);
    return line - WEFT__MAX(WEFT__MIN(t->a.from[2] - depthwise_last(t), line), 0);
}

static inline void depthwise_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(text, " -DSTRICT=%d -DMODE=%d -DRY=%d -DRX=%d -DTHREADS=%d -DBLOCKS=%d -DBIASED=%d",
              p->math == WEFT_MATH_STRICT, t->mode, t->ry, t->rx, t->threads, t->blocks,
              t->mode >= MODE_WEIGHTS && weft__has_step(p, WEFT_STEP_BIAS));
    for (int a = 0; a < 3; a++)
        weft__put(text, " -DK%d=%d -DS%d=%d -DP%d=%d -DD%d=%d", a, t->kernel[a], a, t->stride[a], a, t->pad[a], a,
                  t->dilation[a]);
    cuda_define_type(p, t->mode == MODE_FWD ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    if (t->mode == MODE_FWD)
        weft__epilogue_defines(p, text);
    else
        weft__put(text, " -DSTEP0=0 -DSTEP1=0 -DSTEP2=0 -DSTEP3=0");
}

static inline depthwise_args depthwise_args_of(const weft__exec *e, const depthwise_tile *t) {
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

/* Units to blocks, at most `wave` of them; the memory of the partial sums. NULL, or why not. */
static inline const char *depthwise_split(const weft_problem *p, depthwise_tile *t, int64_t segments, int64_t span,
                                          int64_t wave, weft__decision *d) {
    if (segments * span > INT32_MAX / 2) return "2^30 units or more";
    depthwise_args *a = &t->a;
    a->span = (int32_t)span;
    a->units = (int32_t)(segments * span);
    a->per = (int32_t)cuda_ceil(a->units, wave);
    t->grid = (uint32_t)cuda_ceil(a->units, a->per);
    if (t->mode >= MODE_WEIGHTS)
        d->workspace = (size_t)(((int64_t)t->grid + segments) * depthwise_sums(p) * a->run) * sizeof(float);
    return NULL;
}

/* Sums over blocks: a warp each. */
static inline weft_status depthwise_finish(const weft__exec *e, int part, const depthwise_args *a) {
    const int64_t sums = a->channels * depthwise_sums(e->p);
    const weft__launch finish = {.grid = {(uint32_t)cuda_ceil(sums, FINISH_THREADS / 32), 1, 1},
                                 .block = {FINISH_THREADS, 1, 1}};
    return weft__cuda_launch(e, part, &finish, a);
}

/* One launch, and for the gradient of the weights the sums. */
static inline weft_status depthwise_run(const weft__exec *e) {
    const depthwise_tile *t = e->params;
    const depthwise_args a = depthwise_args_of(e, t);
    const weft__launch launch = {.grid = {t->grid, 1, 1}, .block = {(uint32_t)t->threads, 1, 1}, .smem = t->smem};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return t->mode < MODE_WEIGHTS ? WEFT_OK : depthwise_finish(e, 1, &a);
}

/* ns that a thread takes for the products of `dests` of its own one after the other, with the loads between, as
 * measured; of both gradients they overlap. */
static inline double depthwise_serial(const depthwise_tile *t, double dests) {
    const int strides = t->mode == MODE_FWD ? 1 : t->stride[0] * t->stride[1] * t->stride[2];
    return 2.3 * dests * depthwise_taps(t) / strides;
}

/* Bytes at a share of the device's rate, or instructions: products, and `loads` besides, for each dest. */
static inline double depthwise_ns(const weft_problem *p, const weft__hw *hw, const depthwise_tile *t, double share,
                                  double loads) {
    const double dests = (double)t->a.n * (double)t->a.channels * t->a.to[0] * t->a.to[1] * t->a.to[2],
                 taps = (double)depthwise_taps(t);
    double products = taps * (t->mode == MODE_BOTH ? 2 : 1);
    if (t->mode != MODE_FWD) products /= (double)(t->stride[0] * t->stride[1] * t->stride[2]);
    const double issue = dests * (products + loads) / (0.5 * hw->gpu->gflops * 0.6);
    return WEFT__MAX(issue, weft__bytes(p) / (hw->gpu->gbs * share));
}

#define DEPTHWISE_KERNELS(name_, text_, source_, defines_)                                                    \
    const weft__kernel weft__cuda_dwconv_##name_ = {.name = "dwconv_" text_ "__cuda",                         \
                                                    .version = 2,                                             \
                                                    .op = WEFT_OP_CONV,                                       \
                                                    .engine = WEFT_ENGINE_CUDA,                               \
                                                    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA), \
                                                    .dtypes = CUDA_FLOATS,                                    \
                                                    .steps = WEFT__EPILOGUE_STEPS,                            \
                                                    .exact = true,                                            \
                                                    .variants = variants,                                     \
                                                    .plan = plan,                                             \
                                                    .run = depthwise_run,                                     \
                                                    WEFT__PARTS({source_, "depthwise", defines_, false})};    \
    const weft__kernel weft__cuda_dwconv_bwd_##name_ = {                                                      \
        .name = "dwconv_bwd_" text_ "__cuda",                                                                 \
        .version = 2,                                                                                         \
        .op = WEFT_OP_CONV,                                                                                   \
        .engine = WEFT_ENGINE_CUDA,                                                                           \
        .passes = WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),                                          \
        .dtypes = CUDA_FLOATS,                                                                                \
        .steps = WEFT__STEP_SET(BIAS),                                                                        \
        .exact = true,                                                                                        \
        .variants = variants,                                                                                 \
        .plan = plan,                                                                                         \
        .run = depthwise_run,                                                                                 \
        WEFT__PARTS({source_, "depthwise", defines_, false}, {source_, "finish", defines_, false})}

#else
#include "conv/taps.h"
#include "reduce.h"
#include "vec.h"

/* Sources that count for the bias with dests from `dest` on: each source is of one dest. */
template <int A> static __device__ __forceinline__ int bias_from(const depthwise_args &a, int dest) {
    if (dest <= 0) return 0;
    return dest >= a.to[A] ? a.from[A] : min((dest + padding<A>() + stride<A>() - 1) / stride<A>(), a.from[A]);
}

/* ---------------------------------------------------------------- strict math: what was not finite, once more */
static __device__ __forceinline__ int64_t element(const depthwise_args &a, const int32_t (&size)[3], int64_t n,
                                                  int64_t c, int z, int y, int x) {
    if (LAST) return (((n * size[0] + z) * size[1] + y) * size[2] + x) * a.channels + c;
    return (((n * a.channels + c) * size[0] + z) * size[1] + y) * size[2] + x;
}

/* The source that a tap of a dest meets, in *at; false: none. */
static __device__ __forceinline__ bool meets(const depthwise_args &a, int64_t n, int64_t c, int z, int y, int x, int k,
                                             float *at) {
    const int sz = source_of<0>(a, z, k / (K1 * K2)), sy = source_of<1>(a, y, k / K2 % K1),
              sx = source_of<2>(a, x, k % K2);
    if (sz < 0 || sy < 0 || sx < 0) return false;
    *at = widen(((const T *)a.source)[element(a, a.from, n, c, sz, sy, sx)]);
    return true;
}

/* One dest, products with the padding left out. */
static __device__ __noinline__ float careful_dest(const depthwise_args &a, int64_t n, int64_t c, int z, int y, int x) {
    float sum = 0, at;
    for (int k = 0; k < TAPS; k++)
        if (meets(a, n, c, z, y, x, k, &at)) sum = fmaf(at, widen(((const T *)a.weights)[c * TAPS + k]), sum);
    return sum;
}

/* The gradient of one weight over a tile, likewise. */
static __device__ __noinline__ float careful_sum(const depthwise_args &a, int64_t n, int64_t c, int z, int y, int x,
                                                 int k) {
    float sum = 0, at;
    for (int i = 0; i < RY * RX && z < a.to[0]; i++) {
        const int dy = y + i / RX, dx = x + i % RX;
        if ((unsigned)dy >= (unsigned)a.to[1] || (unsigned)dx >= (unsigned)a.to[2]) continue;
        if (meets(a, n, c, z, dy, dx, k, &at))
            sum = fmaf(widen(((const T *)a.at)[element(a, a.to, n, c, z, dy, dx)]), at, sum);
    }
    return sum;
}

/* Partial sums in their order, in f64. A warp has one sum of one channel. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS) finish(const __grid_constant__ depthwise_args a) {
    const int64_t warp = (int64_t)blockIdx.x * (FINISH_THREADS / 32) + threadIdx.x / 32;
    if (warp >= a.channels * SUMS) return;
    const int tap = (int)(warp / a.channels), lane = (int)threadIdx.x % 32;
    const int64_t c = warp - tap * a.channels, run = c / a.run;
    double sum = 0;
    for (int64_t s = run * a.strips; s < (run + 1) * a.strips; s++) {
        const int64_t begin = s * a.span / a.per, end = ((s + 1) * a.span - 1) / a.per;
        for (int64_t b = begin + lane; b <= end; b += 32)
            sum += a.partial[((b + s) * SUMS + tap) * a.run + c - run * a.run];
    }
    sum = lanes_all<plus, 32>(sum);
    if (lane) return;
    if (tap < TAPS)
        ((T *)a.diff_weights)[c * TAPS + tap] = narrow<T>((float)sum);
    else
        ((BIAS_T *)a.diff_bias)[c] = narrow<BIAS_T>((float)sum);
}
#endif

#endif
