/* Depthwise 2D convolution with large windows by Fourier transforms, both layouts: forward and gradients; f32, f16,
 * bf16.
 * Math:      dst = inverse(X conj(W)); the data gradient is the same with the window turned; dW = inverse(X conj(DY)).
 *            Two images are one complex plane, x = x1 + i x2: a real window keeps them apart, and the sum of their
 *            gradients is the real part of the product's inverse
 * Blocking:  a thread transforms a line of N points in its registers: columns straight from memory, rows from shared
 *            memory, where one complex plane of N1 x N2 points is for each pair of images; the product and the way back
 *            follow at once. A first launch transforms the windows. Planes that do not fit are cut into tiles, which
 *            overlap by the window. In the gradient of the weights the products of a block's planes stay in registers,
 *            of each two points that are conjugate one sum; a last launch adds up blocks in f64
 * Traffic:   each tensor once, but where tiles overlap; spectra of the windows from L2
 * Roofline:  instructions: 2.7 N log2 N of a line, four lines of N points for N outputs of two images, whatever the
 *            window
 * Accuracy:  0.3 of the bound of a direct sum, relative to the largest in the tile, not to each output. What is not
 *            finite spreads: outputs of such planes are made once more as direct sums. Gradients of weights: not strict
 * Assumes:   stride 1, all tensors dense, windows up to 51
 * Try:       weft bench conv2d:fwd:f32:nchw:n32c128h56w56:o128k31p15g128@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "epilogue.h"

enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS, MODE_SPECTRUM };
enum { FINISH_THREADS = 256 };

/* A tensor of data. */
typedef struct fft_view {
    void *at;
    int64_t image, channel;    /* elements from one to the next */
    int32_t row, column, h, w; /* likewise, and the size */
} fft_view;

typedef struct fft_args {
    fft_view in, out; /* weights: src and diff_dst */
    const void *weights, *bias;
    void *diff_weights, *diff_bias;
    float *spectrum; /* [channel][column][row][re, im] */
    float *partial;  /* weights: [block + segment][tap, then bias][lane] */
    int64_t channels;
    int32_t n, pad[2], tile[2], across; /* of out: rows and columns of a tile, tiles of a row */
    int32_t rounds;                     /* of the pairs of images, each for the lanes of a block */
    int32_t span, per, units;           /* units of a segment, of a block, of all */
    weft__epilogue epilogue;
} fft_args;

#ifndef __CUDACC_RTC__
enum { WAVE = 132, MOST_POINTS = 72 };

typedef struct fft_tile {
    int32_t mode, last, points[2];
    int32_t planes, channels, threads, blocks; /* of a block; channels: lanes of different channels; blocks: of an SM */
    int32_t tile[2], across, rounds, span, per, units; /* as in the arguments */
    uint32_t grid;
    size_t smem;
} fft_tile;

typedef struct fft_plan {
    fft_tile spectrum, data, weights; /* data: or forward */
} fft_plan;

/* Points of a line that `tiles` tiles of outputs take: one that holds the whole may share its zeros. */
static int points_for(const weft_problem *p, int axis, int64_t tile, int64_t tiles) {
    static const int sizes[] = {8, 10, 12, 16, 18, 20, 24, 30, 32, 36, 40, 48, 60, 64, MOST_POINTS, 0};
    const int64_t reach = (p->kernel[axis] - 1) * p->dilation[axis], pad = p->pad_lo[axis];
    const int64_t least = tiles > 1 ? tile + reach : WEFT__MAX(p->in[axis] + pad, p->out[axis] + reach - pad);
    for (int i = 0; sizes[i]; i++)
        if (sizes[i] >= least) return sizes[i];
    return 0;
}

/* The tiles of an axis that cost least. */
static void best_tiles(const weft_problem *p, int axis, int64_t size, fft_tile *t, int i) {
    double least = 1e300;
    t->points[i] = 0;
    for (int64_t tiles = 1; tiles <= WEFT__MIN(size, 512); tiles++) {
        const int64_t tile = cuda_ceil(size, tiles);
        const int points = points_for(p, axis, tile, tiles);
        const double cost = (double)(cuda_ceil(size, tile) * points);
        if (!points || cost >= least) continue;
        least = cost;
        t->points[i] = points;
        t->tile[i] = (int32_t)tile;
    }
}

static fft_view view_of(const weft__exec *e, int role, bool last) {
    const weft_tensor *t = weft__tensor(e->p, role);
    const int64_t c = t->dims[1], h = t->dims[3], w = t->dims[4];
    return (fft_view){.at = e->ptr[role],
                      .image = c * h * w,
                      .channel = last ? 1 : h * w,
                      .row = (int32_t)(last ? w * c : w),
                      .column = (int32_t)(last ? c : 1),
                      .h = (int32_t)h,
                      .w = (int32_t)w};
}

/* Elements of a plane, columns between rows and planes apart in banks. */
static int pitch_of(const fft_tile *t) {
    const int apart = t->last ? WEFT__MAX(16 / t->channels, 1) : 1;
    int plane = t->points[0] * (t->points[1] + 1);
    while (plane % 16 != apart % 16) plane++;
    return plane;
}

/* Registers of a thread, of which each quarter of an SM has 16384. */
static int registers_of(const fft_tile *t) {
    return 2 * WEFT__MAX(t->points[0], t->points[1]) + 24 + (t->mode == MODE_WEIGHTS ? 16 : 0);
}

static const char *const variants[] = {"2", "1", "4", "8", "16", NULL};
static const int lanes_of_variant[] = {2, 1, 4, 8, 16};

/* Lanes, threads and blocks for the sizes that are set; NULL, or why not. */
static const char *lay_out(const weft_problem *p, const weft__hw *hw, int lanes, fft_tile *t) {
    const int most = WEFT__MAX(t->points[0], t->points[1]), both = t->mode == MODE_WEIGHTS ? 2 : 1;
    const int64_t pairs = (p->n + 1) / 2;
    if (t->mode == MODE_WEIGHTS && lanes > 1) lanes /= 2;
    t->channels = t->last || t->mode == MODE_SPECTRUM ? lanes : 1;
    while (t->channels < lanes && t->channels * pairs < lanes) t->channels *= 2;
    while (t->channels > 1 && t->channels >= 2 * p->c) t->channels /= 2, lanes /= 2;
    t->planes = lanes * both;
    t->threads = (int32_t)cuda_ceil(t->planes * most, 32) * 32;
    t->smem = (size_t)(t->planes * pitch_of(t)) * 8;
    if (t->threads > 512 || t->smem > hw->gpu->smem) return "too many planes";
    const int64_t by_memory = ((int64_t)hw->gpu->smem + 1024) / ((int64_t)t->smem + 1024);
    for (t->blocks = (int32_t)WEFT__MIN(by_memory, 8); t->blocks > 1; t->blocks--)
        if (16384 / cuda_ceil(t->blocks * t->threads / 32, 4) / 32 >= registers_of(t)) break;
    return NULL;
}

/* Units of a segment of channels, and blocks. */
static const char *split(const weft_problem *p, const int64_t size[2], fft_tile *t) {
    const int64_t lanes = t->planes / (t->mode == MODE_WEIGHTS ? 2 : 1), segments = cuda_ceil(p->c, t->channels);
    t->across = (int32_t)cuda_ceil(size[1], t->tile[1]);
    t->rounds = (int32_t)cuda_ceil((p->n + 1) / 2, lanes / t->channels);
    const int64_t span = t->mode == MODE_SPECTRUM ? 1 : cuda_ceil(size[0], t->tile[0]) * t->across * t->rounds;
    if (segments * span > INT32_MAX / 2) return "2^30 units or more";
    t->span = (int32_t)span;
    t->units = (int32_t)(segments * span);
    t->per = (int32_t)cuda_ceil(t->units, WAVE * t->blocks);
    t->grid = (uint32_t)cuda_ceil(t->units, t->per);
    return NULL;
}

static const char *tile_of(const weft_problem *p, const weft__hw *hw, int mode, int lanes, bool last, fft_tile *t) {
    const bool data = mode == MODE_DATA || (mode == MODE_SPECTRUM && p->pass != WEFT_PASS_FWD);
    const int64_t size[2] = {data ? p->in[1] : p->out[1], data ? p->in[2] : p->out[2]};
    t->mode = mode;
    t->last = last;
    for (int i = 0; i < 2; i++) {
        best_tiles(p, i + 1, size[i], t, i);
        if (!t->points[i]) return "a window too large for lines of 72 points";
    }
    const char *refusal = lay_out(p, hw, lanes, t);
    return refusal ? refusal : split(p, size, t);
}

static const char *refusal_of(const weft_problem *p, bool *last) {
    if (p->groups != p->c || p->o != p->c) return "not depthwise with one filter a channel";
    if (p->pass == WEFT_PASS_BWD_DATA && p->nsteps) return "an epilogue of transposed convolution";
    if (p->in[0] != 1 || p->out[0] != 1 || p->kernel[0] != 1) return "three spatial axes";
    if (p->n > 1 << 24) return "2^24 images or more";
    for (int a = 1; a < 3; a++) {
        const int64_t reach = (p->kernel[a] - 1) * p->dilation[a];
        if (p->in[a] > 1 << 24 || p->out[a] > 1 << 24) return "an axis of 2^24 or more";
        if (p->stride[a] != 1) return "stride is not 1";
        if (p->kernel[a] < 2 || reach > 60) return "a window of one row or column, or over 61 of them";
        if (p->pad_lo[a] > reach || p->pad_hi[a] > reach) return "padding as wide as the window";
    }
    if (p->kernel[1] * p->kernel[2] < 25) return "under 25 taps: a direct sum is shorter";
    if (p->c * p->in[1] * p->in[2] > INT32_MAX || p->c * p->out[1] * p->out[2] > INT32_MAX)
        return "an image of 2^31 elements or more";
    return cuda_dense(p, last);
}

/* Instructions of a line. */
static double line_cost(int points) {
    double log2 = 0;
    for (double x = 1; x < points; x *= 1.25) log2 += 0.3219;
    return points * (2.7 * log2 + 6);
}

static double tile_ns(const weft_problem *p, const weft__hw *hw, const fft_tile *t) {
    const int lanes = t->planes / (t->mode == MODE_WEIGHTS ? 2 : 1);
    const double rows = t->points[0] * line_cost(t->points[1]), column = line_cost(t->points[0]);
    const double in = (double)WEFT__MIN(p->in[2], t->points[1]), out = t->tile[1];
    const double one = (in + out) * column + 2 * rows + (t->mode == MODE_WEIGHTS ? 8 : 4) * t->points[0] * t->points[1];
    return t->units * (double)lanes * one / (0.5 * hw->gpu->gflops * 0.4);
}

static size_t spectrum_bytes(const weft_problem *p, const fft_tile *t) {
    return (size_t)p->c * (size_t)(t->points[0] * t->points[1]) * 8;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    fft_plan *t = WEFT__PARAMS(fft_plan, d);
    bool last = false;
    const char *refusal = refusal_of(p, &last);
    const int lanes = lanes_of_variant[variant];
    if (refusal) return refusal;
    const bool weights = p->pass == WEFT_PASS_BWD_WEIGHTS || p->pass == WEFT_PASS_BWD;
    const double memory = weft__bytes(p) / (hw->gpu->gbs * 0.7);
    double compute = 0;
    if (p->pass != WEFT_PASS_BWD_WEIGHTS) {
        if ((refusal = tile_of(p, hw, p->pass == WEFT_PASS_FWD ? MODE_FWD : MODE_DATA, lanes, last, &t->data)))
            return refusal;
        if ((refusal = tile_of(p, hw, MODE_SPECTRUM, lanes, last, &t->spectrum))) return refusal;
        compute += 6000 + tile_ns(p, hw, &t->data);
        d->workspace = spectrum_bytes(p, &t->data);
    }
    if (weights) {
        if ((refusal = tile_of(p, hw, MODE_WEIGHTS, lanes, last, &t->weights))) return refusal;
        const fft_tile *w = &t->weights;
        const int64_t sums = p->kernel[1] * p->kernel[2] + weft__has_step(p, WEFT_STEP_BIAS);
        const size_t partial = (size_t)((w->grid + w->units / w->span) * sums * (w->planes / 2)) * sizeof(float);
        d->workspace = WEFT__MAX(d->workspace, partial);
        compute += 6000 + tile_ns(p, hw, w);
    }
    d->ns = 2500 + WEFT__MAX(memory, compute);
    return NULL;
}

static void tile_defines(const weft_problem *p, const fft_tile *t, weft__text *text) {
    cuda_defines(p, 1, text);
    weft__put(text,
              " -DMODE=%d -DN1=%d -DN2=%d -DK1=%d -DK2=%d -DD1=%d -DD2=%d -DPLANES=%d -DCHANNELS=%d -DLAST=%d "
              "-DPITCH=%d -DTHREADS=%d -DBLOCKS=%d -DTURNED=%d -DBIASED=%d",
              t->mode, t->points[0], t->points[1], (int)p->kernel[1], (int)p->kernel[2], (int)p->dilation[1],
              (int)p->dilation[2], t->planes, t->channels, t->last, pitch_of(t), t->threads, t->blocks,
              p->pass != WEFT_PASS_FWD, t->mode == MODE_WEIGHTS && weft__has_step(p, WEFT_STEP_BIAS));
    cuda_define_type(p, t->mode == MODE_FWD ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    if (t->mode == MODE_FWD)
        weft__epilogue_defines(p, text);
    else
        weft__put(text, " -DSTEP0=0 -DSTEP1=0 -DSTEP2=0 -DSTEP3=0");
}

static void spectrum_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    tile_defines(p, &((const fft_plan *)params)->spectrum, text);
}
static void data_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    tile_defines(p, &((const fft_plan *)params)->data, text);
}
static void weights_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw;
    tile_defines(p, &((const fft_plan *)params)->weights, text);
}
static void finish_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    weights_defines(p, hw, params, text);
    weft__put(text, " -DFINISH=1");
}

static fft_args args_of(const weft__exec *e, const fft_tile *t) {
    const weft_problem *p = e->p;
    const bool data = t->mode == MODE_DATA;
    fft_args a = {.weights = e->ptr[WEFT_ROLE_WEIGHTS],
                  .bias = e->ptr[WEFT_ROLE_BIAS],
                  .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
                  .diff_bias = e->ptr[WEFT_ROLE_DIFF_BIAS],
                  .spectrum = e->workspace,
                  .partial = e->workspace,
                  .channels = p->c,
                  .n = (int32_t)p->n,
                  .tile = {t->tile[0], t->tile[1]},
                  .across = t->across,
                  .rounds = t->rounds,
                  .span = t->span,
                  .per = t->per,
                  .units = t->units};
    for (int i = 0; i < 2; i++)
        a.pad[i] = (int32_t)(data ? (p->kernel[i + 1] - 1) * p->dilation[i + 1] - p->pad_lo[i + 1] : p->pad_lo[i + 1]);
    if (t->mode == MODE_SPECTRUM) return a;
    a.in = view_of(e, data ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC, t->last);
    a.out = view_of(e, t->mode == MODE_FWD ? WEFT_ROLE_DST : data ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DIFF_DST, t->last);
    if (t->mode == MODE_FWD) a.epilogue = weft__epilogue_args(p);
    return a;
}

static weft_status launch(const weft__exec *e, int part, const fft_tile *t) {
    const fft_args a = args_of(e, t);
    const weft__launch main = {.grid = {t->grid, 1, 1}, .block = {(uint32_t)t->threads, 1, 1}, .smem = t->smem};
    WEFT__TRY(weft__cuda_launch(e, part, &main, &a));
    if (t->mode != MODE_WEIGHTS) return WEFT_OK;
    const int64_t sums = e->p->c * (e->p->kernel[1] * e->p->kernel[2] + weft__has_step(e->p, WEFT_STEP_BIAS));
    const weft__launch finish = {.grid = {(uint32_t)cuda_ceil(sums, FINISH_THREADS), 1, 1},
                                 .block = {FINISH_THREADS, 1, 1}};
    return weft__cuda_launch(e, part + 1, &finish, &a);
}

static weft_status run(const weft__exec *e) {
    const fft_plan *t = e->params;
    int part = 0;
    if (e->p->pass != WEFT_PASS_BWD_WEIGHTS) {
        WEFT__TRY(launch(e, part++, &t->spectrum));
        WEFT__TRY(launch(e, part++, &t->data));
    }
    return e->p->pass == WEFT_PASS_BWD_WEIGHTS || e->p->pass == WEFT_PASS_BWD ? launch(e, part, &t->weights) : WEFT_OK;
}

#define SOURCE "conv/depthwise_fft.cu"
#define FFT_KERNEL(name_, text_, passes_, steps_, strict_, ...)          \
    const weft__kernel weft__cuda_##name_ = {.name = text_,              \
                                             .version = 1,               \
                                             .op = WEFT_OP_CONV,         \
                                             .engine = WEFT_ENGINE_CUDA, \
                                             .passes = passes_,          \
                                             .dtypes = CUDA_FLOATS,      \
                                             .steps = steps_,            \
                                             .not_strict = !strict_,     \
                                             .tiled = true,              \
                                             .variants = variants,       \
                                             .plan = plan,               \
                                             .run = run,                 \
                                             WEFT__PARTS(__VA_ARGS__)}
#define TRANSFORMED \
    {SOURCE, "transform", spectrum_defines, false}, { SOURCE, "transform", data_defines, false }
#define SUMMED \
    {SOURCE, "transform", weights_defines, false}, { SOURCE, "finish", finish_defines, false }
FFT_KERNEL(dwconv_fft, "dwconv_fft__cuda", WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA), WEFT__EPILOGUE_STEPS, true,
           TRANSFORMED);
FFT_KERNEL(dwconv_bwd_weights_fft, "dwconv_bwd_weights_fft__cuda", WEFT__PASS_SET(BWD_WEIGHTS), WEFT__STEP_SET(BIAS),
           false, SUMMED);
FFT_KERNEL(dwconv_bwd_fft, "dwconv_bwd_fft__cuda", WEFT__PASS_SET(BWD), WEFT__STEP_SET(BIAS), false, TRANSFORMED,
           SUMMED);

#else
#include "vec.h"

enum { TAPS = K1 * K2, SUMS = TAPS + BIASED };
enum { WEIGHTS = MODE == MODE_WEIGHTS, SPECTRUM = MODE == MODE_SPECTRUM, LANES = WEIGHTS ? PLANES / 2 : PLANES };

#ifdef FINISH
/* Partial sums in their order, in f64: a thread has one sum of one channel. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS) finish(const __grid_constant__ fft_args a) {
    const int64_t i = (int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    if (i >= a.channels * SUMS) return;
    const int64_t c = i / SUMS, segment = c / CHANNELS;
    const int tap = (int)(i - c * SUMS), first = (int)(c - segment * CHANNELS);
    const int64_t begin = segment * a.span / a.per, end = ((segment + 1) * a.span - 1) / a.per;
    double sum = 0;
    for (int64_t b = begin; b <= end; b++)
        for (int lane = first; lane < LANES; lane += CHANNELS)
            sum += a.partial[((b + segment) * SUMS + tap) * LANES + lane];
    if (tap < TAPS)
        ((T *)a.diff_weights)[c * TAPS + tap] = narrow<T>((float)sum);
    else
        ((BIAS_T *)a.diff_bias)[c] = narrow<BIAS_T>((float)sum);
}
#else
#include "conv/fft.h"

extern __shared__ __align__(16) unsigned char bytes[];

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
    if (SPECTRUM) {
        w = {0, 0, 0, (K2 - 1) * D2 + 1, N1};
    } else if (out) {
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
        to[i] = {0, 0};
        if (there && p.first) to[i].re = widen(at[(int64_t)i * v.row]);
        if (there && p.second) to[i].im = widen(at[v.image + (int64_t)i * v.row]);
    }
}

static __device__ __forceinline__ void load_taps(const fft_args &a, const place &p, int column, point (&to)[N1]) {
#pragma unroll
    for (int i = 0; i < N1; i++) {
        to[i] = {0, 0};
        if (i % D1 || i / D1 >= K1 || column % D2 || p.channel >= a.channels) continue;
        const int tap = i / D1 * K2 + column / D2;
        to[i].re = widen(((const T *)a.weights)[p.channel * TAPS + (TURNED ? TAPS - 1 - tap : tap)]);
    }
}

/* One output as a direct sum, without the padding. */
static __device__ float careful(const fft_args &a, int64_t image, int64_t channel, int y, int x) {
    float sum = 0;
    for (int k = 0; k < TAPS; k++) {
        const int sy = y - a.pad[0] + k / K2 * D1, sx = x - a.pad[1] + k % K2 * D2;
        if ((unsigned)sy >= (unsigned)a.in.h || (unsigned)sx >= (unsigned)a.in.w) continue;
        const int64_t at = image * a.in.image + channel * a.in.channel + (int64_t)sy * a.in.row + sx * a.in.column;
        const float weight = widen(((const T *)a.weights)[channel * TAPS + (TURNED ? TAPS - 1 - k : k)]);
        sum = fmaf(widen(((const T *)a.in.at)[at]), weight, sum);
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
enum { HALF = (N1 / 2 + 1) * N2, OWN = WEIGHTS ? (LANES * HALF + THREADS - 1) / THREADS : 1 };
struct sums {
    point of[OWN];
    float bias; /* the first sum of a lane is the mean's: the thread that has it sums the bias */
};

struct frequency {
    int lane, row, column;
};
static __device__ __forceinline__ frequency frequency_of(int i) {
    const int at = (int)threadIdx.x + i * THREADS, lane = at / HALF, rest = at - lane * HALF;
    return {lane, rest / N2, rest % N2};
}

/* x conj(dy) at a point and at its conjugate. */
static __device__ __forceinline__ void add_products(sums &s) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const frequency f = frequency_of(i);
        if (f.lane >= LANES) continue;
        const int row = f.row ? N1 - f.row : 0, column = f.column ? N2 - f.column : 0;
        const point x = point_at(f.lane, f.row, f.column), y = point_at(LANES + f.lane, f.row, f.column);
        const point u = point_at(f.lane, row, column), v = point_at(LANES + f.lane, row, column);
        s.of[i] = s.of[i] + x * conjugate(y) + conjugate(u) * v;
        if (BIASED && f.row + f.column == 0) s.bias += y.re + y.im;
    }
}

/* Whole planes from the sums, to be transformed back: parts exchanged. */
static __device__ __forceinline__ void put_sums(const fft_args &a, const unit &u, const sums &s) {
    constexpr float scale = 0.5f / (N1 * N2);
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const frequency f = frequency_of(i);
        if (f.lane >= LANES) continue;
        const point p = {s.of[i].re * scale, s.of[i].im * scale};
        point_at(f.lane, f.row, f.column) = exchanged(p);
        if (f.row && 2 * f.row < N1)
            point_at(f.lane, N1 - f.row, f.column ? N2 - f.column : 0) = exchanged(conjugate(p));
        if (BIASED && f.row + f.column == 0)
            a.partial[(((int64_t)blockIdx.x + u.segment) * SUMS + TAPS) * LANES + f.lane] = s.bias;
    }
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
    } else if (SPECTRUM) {
        load_taps(a, p, column, v);
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
    point *spectrum = (point *)a.spectrum + channel * (N1 * N2) + row;
    point v[N2];
    load_row(plane, row, back ? 0 : w.first, back ? N2 : w.count, v);
#pragma unroll 1
    for (int turn = 0; turn < (WEIGHTS || SPECTRUM ? 1 : 2); turn++) {
        if (turn)
#pragma unroll
            for (int i = 0; i < N2; i++) v[i] = exchanged(v[i] * spectrum[i * N1]);
        fft<N2>::run(v);
    }
    if (back) return put_taps(a, u, plane, row / D1, v);
    if (!SPECTRUM) return store_row(plane, row, v);
    constexpr float scale = 1.0f / (N1 * N2);
    if (p.channel >= a.channels) return;
#pragma unroll
    for (int i = 0; i < N2; i++) spectrum[i * N1] = {v[i].re * scale, -v[i].im * scale};
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) transform(const __grid_constant__ fft_args a) {
    const int begin = (int)blockIdx.x * a.per, end = min(begin + a.per, a.units);
    sums s = {};
    for (int i = begin; i < end; i++) {
        const unit u = unit_at(a, i);
        const bool last = WEIGHTS && (i + 1 == end || (i + 1) % a.span == 0); /* of its segment here */
#pragma unroll 1
        for (int back = 0; back < (SPECTRUM ? 1 : WEIGHTS ? 1 + last : 2); back++) {
            columns(a, u, back);
            __syncthreads();
            if (!back || WEIGHTS) rows(a, u, back);
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
#endif
