/* Depthwise 2D convolution with large windows by Fourier transforms, both layouts: forward and gradients; f32, f16,
 * bf16.
 * Math:      dst = inverse(X conj(W)); the data gradient is the same with the window turned; dW = inverse(X conj(DY)).
 *            Two images are one complex plane, x = x1 + i x2: a real window keeps them apart, and the sum of their
 *            gradients is the real part of the product's inverse
 * Blocking:  a thread transforms a line of N points in its registers: columns straight from memory, rows from shared
 *            memory, where one complex plane of N1 x N2 points is for each pair of images; the product and the way back
 *            follow at once. A first launch transforms the windows. Planes that do not fit are cut into tiles, which
 *            overlap by the window. In the gradient of the weights the products of a block's planes stay in registers,
 *            of each two points that are conjugate one sum; a last launch adds up blocks in f64. Channels-last data
 *            has neighbouring channels side by side in a block, or is copied to planes and back
 * Traffic:   each tensor once, but where tiles overlap; spectra of the windows from L2
 * Roofline:  instructions: 2.7 N log2 N of a line, four lines of N points for N outputs of two images, whatever the
 *            window. Measured on an H200, forward; both gradients, us: 31x31 32x128@56 f32 110-118; 303 (PyTorch 3408;
 *            22500), bf16 channels-last 154; 380 (38000; 30000); 13x13 32x256@28 f32 47; 108; 7x7 64x384@14 bf16
 *            channels-last 29; 70
 * Accuracy:  0.3 of the bound of a direct sum, relative to the largest in the tile, not to each output. What is not
 *            finite spreads: outputs of such planes are made once more as direct sums. Gradients of weights: not strict
 * Assumes:   stride 1, all tensors dense, windows up to 51
 * Try:       weft bench conv2d:fwd:f32:nchw:n32c128h56w56:o128k31p15g128@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "epilogue.h"

#include "conv/planar.h"

enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS };
enum { SMALL_THREADS = 256, SPECTRUM_PARTS = 4 }; /* threads of spectrum and finish; blocks of a window */

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
    fft_tile data, weights; /* data: or forward */
    size_t planes;          /* of the workspace, before planar copies of two tensors; 0: none */
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

/* Bytes of a planar copy: of src and diff_src, or of dst and diff_dst. */
static size_t copy_bytes(const weft_problem *p, bool out) {
    const int64_t pixels = out ? p->out[1] * p->out[2] : p->in[1] * p->in[2];
    return ((size_t)(p->n * p->c * pixels) * weft__dtype_size(p->tensor[0].dtype) + 255) / 256 * 256;
}

/* Where the data of a role is as planes: src and diff_src follow each other in one place. */
static void *copy_of(const weft__exec *e, int role) {
    char *at = (char *)e->workspace + ((const fft_plan *)e->params)->planes;
    return role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_DST ? at + copy_bytes(e->p, false) : at;
}

static fft_view view_of(const weft__exec *e, int role, bool last) {
    const weft_tensor *t = weft__tensor(e->p, role);
    const int64_t c = t->dims[1], h = t->dims[3], w = t->dims[4];
    return (fft_view){.at = ((const fft_plan *)e->params)->planes ? copy_of(e, role) : e->ptr[role],
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

/* Channels-last data is read where it lies, or copied to planes first. */
static const char *const variants[] = {"direct", "planar", NULL};

/* Lanes, threads and blocks for the sizes that are set. Neighbouring channels are lanes where data is channels-last:
 * as many as fit. */
static void lay_out(const weft_problem *p, const weft__hw *hw, fft_tile *t) {
    const int most = WEFT__MAX(t->points[0], t->points[1]), both = t->mode == MODE_WEIGHTS ? 2 : 1;
    const int64_t pairs = (p->n + 1) / 2;
    int lanes = 1;
    const int64_t plane = 8 * (int64_t)t->points[0] * (t->points[1] + 3);
    while (2 * lanes * both * most <= (t->last ? 288 : 160) && 2 * lanes * both * plane <= (int64_t)hw->gpu->smem)
        lanes *= 2;
    t->channels = t->last ? lanes : 1;
    while (t->channels < lanes && t->channels * pairs < lanes) t->channels *= 2;
    while (t->channels > 1 && t->channels >= 2 * p->c) t->channels /= 2, lanes /= 2;
    t->planes = lanes * both;
    t->threads = (int32_t)cuda_ceil(t->planes * most, 32) * 32;
    t->smem = (size_t)(t->planes * pitch_of(t)) * 8;
    const int64_t by_memory = ((int64_t)hw->gpu->smem + 1024) / ((int64_t)t->smem + 1024);
    for (t->blocks = (int32_t)WEFT__MIN(by_memory, 8); t->blocks > 1; t->blocks--)
        if (16384 / cuda_ceil(t->blocks * t->threads / 32, 4) / 32 >= registers_of(t)) break;
}

/* Units of a segment of channels, and blocks. */
static const char *split(const weft_problem *p, const int64_t size[2], fft_tile *t) {
    const int64_t lanes = t->planes / (t->mode == MODE_WEIGHTS ? 2 : 1), segments = cuda_ceil(p->c, t->channels);
    t->across = (int32_t)cuda_ceil(size[1], t->tile[1]);
    t->rounds = (int32_t)cuda_ceil((p->n + 1) / 2, lanes / t->channels);
    const int64_t span = cuda_ceil(size[0], t->tile[0]) * t->across * t->rounds;
    if (segments * span > INT32_MAX / 2) return "2^30 units or more";
    t->span = (int32_t)span;
    t->units = (int32_t)(segments * span);
    t->per = (int32_t)cuda_ceil(t->units, WAVE * t->blocks);
    t->grid = (uint32_t)cuda_ceil(t->units, t->per);
    return NULL;
}

static const char *tile_of(const weft_problem *p, const weft__hw *hw, int mode, bool last, fft_tile *t) {
    const bool data = mode == MODE_DATA;
    const int64_t size[2] = {data ? p->in[1] : p->out[1], data ? p->in[2] : p->out[2]};
    t->mode = mode;
    t->last = last;
    for (int i = 0; i < 2; i++) {
        best_tiles(p, i + 1, size[i], t, i);
        if (!t->points[i]) return "a window too large for lines of 72 points";
    }
    lay_out(p, hw, t);
    if (t->smem > hw->gpu->smem) return "planes that do not fit into shared memory";
    return split(p, size, t);
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

/* Channels-last data comes in pieces of a lane's channels: sectors of 32 bytes are read for less. */
static double tile_ns(const weft_problem *p, const weft__hw *hw, const fft_tile *t) {
    const int lanes = t->planes / (t->mode == MODE_WEIGHTS ? 2 : 1);
    const double rows = t->points[0] * line_cost(t->points[1]), column = line_cost(t->points[0]);
    const double in = (double)WEFT__MIN(p->in[2], t->points[1]), out = t->tile[1];
    const double one = (in + out) * column + 2 * rows + (t->mode == MODE_WEIGHTS ? 8 : 4) * t->points[0] * t->points[1];
    const double piece = t->last ? t->channels * (double)weft__dtype_size(p->tensor[0].dtype) : 32;
    const double more = piece < 32 ? 32 / piece - 1 : 0, bytes = (double)(copy_bytes(p, false) + copy_bytes(p, true));
    const double share = t->mode == MODE_WEIGHTS ? 0.25 : 0.33; /* of the multiply-adds, as measured */
    return t->units * (double)lanes * one / (0.5 * hw->gpu->gflops * share) + bytes * more / (0.7 * hw->gpu->gbs);
}

static size_t spectrum_bytes(const weft_problem *p, const fft_tile *t) {
    return (size_t)p->c * (size_t)(t->points[0] * t->points[1]) * 8;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    fft_plan *t = WEFT__PARAMS(fft_plan, d);
    bool last = false;
    const char *refusal = refusal_of(p, &last);
    if (refusal) return refusal;
    const bool planar = variant == 1, weights = p->pass == WEFT_PASS_BWD_WEIGHTS || p->pass == WEFT_PASS_BWD;
    const size_t copies = copy_bytes(p, false) + copy_bytes(p, true);
    if (planar && !last) return "data that is planes as it is";
    if (planar && !planar_fits(p->n, p->c, WEFT__MAX(p->in[1] * p->in[2], p->out[1] * p->out[2])))
        return "an axis that is too long";
    double compute = 0;
    if (p->pass != WEFT_PASS_BWD_WEIGHTS) {
        const int mode = p->pass == WEFT_PASS_FWD ? MODE_FWD : MODE_DATA;
        if ((refusal = tile_of(p, hw, mode, last && !planar, &t->data))) return refusal;
        compute += 6000 + tile_ns(p, hw, &t->data);
        d->workspace = spectrum_bytes(p, &t->data);
    }
    if (weights) {
        if ((refusal = tile_of(p, hw, MODE_WEIGHTS, last && !planar, &t->weights))) return refusal;
        const fft_tile *w = &t->weights;
        const int64_t sums = p->kernel[1] * p->kernel[2] + weft__has_step(p, WEFT_STEP_BIAS);
        const size_t partial = (size_t)((w->grid + w->units / w->span) * sums * (w->planes / 2)) * sizeof(float);
        d->workspace = WEFT__MAX(d->workspace, partial);
        compute += 6000 + tile_ns(p, hw, w);
    }
    if (planar) {
        t->planes = (d->workspace + 255) / 256 * 256;
        d->workspace = t->planes + copies;
        compute += (p->pass == WEFT_PASS_BWD ? 1.5 : 1) * (6000 + 2 * (double)copies / (0.4 * hw->gpu->gbs));
    }
    d->ns = (weights ? 7500 : 4000) + WEFT__MAX(weft__bytes(p) / (hw->gpu->gbs * 0.7), compute);
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
    tile_defines(p, &((const fft_plan *)params)->data, text);
    weft__put(text, " -DSPECTRUM");
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
    (void)hw;
    tile_defines(p, &((const fft_plan *)params)->weights, text);
    weft__put(text, " -DFINISH");
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
    a.in = view_of(e, data ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC, t->last);
    a.out = view_of(e, t->mode == MODE_FWD ? WEFT_ROLE_DST : data ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DIFF_DST, t->last);
    if (t->mode == MODE_FWD) a.epilogue = weft__epilogue_args(p);
    return a;
}

static weft_status launch(const weft__exec *e, int part, const fft_tile *t, const fft_args *a) {
    const weft__launch main = {.grid = {t->grid, 1, 1}, .block = {(uint32_t)t->threads, 1, 1}, .smem = t->smem};
    return weft__cuda_launch(e, part, &main, a);
}

/* The windows' spectra, then the images. */
static weft_status run_data(const weft__exec *e, const fft_tile *t) {
    const int64_t k1 = e->p->kernel[1], k2 = e->p->kernel[2];
    const fft_args a = args_of(e, t);
    const size_t floats = (size_t)(k1 * k2 + 2 * (t->points[0] + t->points[1]) + 2 * t->points[0] * k2);
    const weft__launch spectrum = {
        .grid = {(uint32_t)e->p->c, SPECTRUM_PARTS, 1}, .block = {SMALL_THREADS, 1, 1}, .smem = floats * sizeof(float)};
    WEFT__TRY(weft__cuda_launch(e, 0, &spectrum, &a));
    return launch(e, 1, t, &a);
}

static weft_status run_weights(const weft__exec *e, int part, const fft_tile *t) {
    const int64_t sums = e->p->c * (e->p->kernel[1] * e->p->kernel[2] + weft__has_step(e->p, WEFT_STEP_BIAS));
    const fft_args a = args_of(e, t);
    const weft__launch finish = {.grid = {(uint32_t)cuda_ceil(sums, SMALL_THREADS), 1, 1},
                                 .block = {SMALL_THREADS, 1, 1}};
    WEFT__TRY(launch(e, part, t, &a));
    return weft__cuda_launch(e, part + 1, &finish, &a);
}

/* Between a tensor and its planes. */
static weft_status copy(const weft__exec *e, int part, int role, bool back) {
    const weft_tensor *t = weft__tensor(e->p, role);
    const int64_t pixels = t->dims[3] * t->dims[4], channels = t->dims[1];
    if (back) return planar_run(e, part, copy_of(e, role), e->ptr[role], channels, pixels);
    return planar_run(e, part, e->ptr[role], copy_of(e, role), pixels, channels);
}

static weft_status run(const weft__exec *e) {
    const fft_plan *t = e->params;
    const int pass = e->p->pass, last = pass == WEFT_PASS_BWD ? 4 : 2; /* the part that copies planes */
    const bool planar = t->planes, fwd = pass == WEFT_PASS_FWD;
    const bool data = pass != WEFT_PASS_BWD_WEIGHTS, weights = pass == WEFT_PASS_BWD || !data;
    if (planar) WEFT__TRY(copy(e, last, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, false));
    if (data) {
        WEFT__TRY(run_data(e, &t->data));
        if (planar) WEFT__TRY(copy(e, last, fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC, true));
    }
    if (!weights) return WEFT_OK;
    if (planar) WEFT__TRY(copy(e, last, WEFT_ROLE_SRC, false));
    return run_weights(e, data ? 2 : 0, &t->weights);
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
    {SOURCE, "spectrum", spectrum_defines, false}, { SOURCE, "transform", data_defines, false }
#define SUMMED \
    {SOURCE, "transform", weights_defines, false}, { SOURCE, "finish", finish_defines, false }
#define PLANAR {"conv/planar.h", "planar", planar_defines, false}
FFT_KERNEL(dwconv_fft, "dwconv_fft__cuda", WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA), WEFT__EPILOGUE_STEPS, true,
           TRANSFORMED, PLANAR);
FFT_KERNEL(dwconv_bwd_weights_fft, "dwconv_bwd_weights_fft__cuda", WEFT__PASS_SET(BWD_WEIGHTS), WEFT__STEP_SET(BIAS),
           false, SUMMED, PLANAR);
FFT_KERNEL(dwconv_bwd_fft, "dwconv_bwd_fft__cuda", WEFT__PASS_SET(BWD), WEFT__STEP_SET(BIAS), false, TRANSFORMED,
           SUMMED, PLANAR);

#else
#include "vec.h"

enum { TAPS = K1 * K2, SUMS = TAPS + BIASED, WEIGHTS = MODE == MODE_WEIGHTS, LANES = WEIGHTS ? PLANES / 2 : PLANES };
extern __shared__ __align__(16) unsigned char bytes[];

static __device__ __forceinline__ float tap_of(const fft_args &a, int64_t channel, int k) {
    return widen(((const T *)a.weights)[channel * TAPS + (TURNED ? TAPS - 1 - k : k)]);
}

#ifdef SPECTRUM
/* The window of one channel: columns, then a part of the rows, by the sums as they are written. Conjugate, with the
 * factor of all transforms. */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS) spectrum(const __grid_constant__ fft_args a) {
    const int64_t channel = blockIdx.x;
    float2 *root1 = (float2 *)bytes, *root2 = root1 + N1, *half = root2 + N2; /* half: [row][column of the window] */
    float *taps = (float *)(half + N1 * K2);
    for (int i = (int)threadIdx.x; i < N1 + N2; i += SMALL_THREADS)
        sincospif(i < N1 ? 2.0f * i / N1 : 2.0f * (i - N1) / N2, &root1[i].y, &root1[i].x);
    for (int i = (int)threadIdx.x; i < TAPS; i += SMALL_THREADS) taps[i] = tap_of(a, channel, i);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < N1 * K2; i += SMALL_THREADS) {
        float2 sum = {0, 0};
        const int step = i / K2 * D1 % N1;
        for (int k = 0, e = 0; k < K1; k++) {
            const float tap = taps[k * K2 + i % K2];
            sum = {fmaf(tap, root1[e].x, sum.x), fmaf(tap, root1[e].y, sum.y)};
            e += step - (e + step >= N1 ? N1 : 0);
        }
        half[i] = sum;
    }
    __syncthreads();
    const int first = (int)(blockIdx.y * SMALL_THREADS + threadIdx.x);
    for (int i = first; i < N1 * N2; i += SMALL_THREADS * (int)gridDim.y) {
        const int step = i / N1 * D2 % N2;
        float2 sum = {0, 0};
        for (int k = 0, e = 0; k < K2; k++) {
            const float2 root = root2[e], v = half[i % N1 * K2 + k];
            sum.x = fmaf(v.x, root.x, fmaf(-v.y, root.y, sum.x));
            sum.y = fmaf(v.x, root.y, fmaf(v.y, root.x, sum.y));
            e += step - (e + step >= N2 ? N2 : 0);
        }
        constexpr float scale = 1.0f / (N1 * N2);
        ((float2 *)a.spectrum)[channel * (N1 * N2) + i] = {sum.x * scale, sum.y * scale};
    }
}

#elif defined(FINISH)
/* Partial sums in their order, in f64: a thread has one sum of one channel. */
extern "C" __global__ void __launch_bounds__(SMALL_THREADS) finish(const __grid_constant__ fft_args a) {
    const int64_t i = (int64_t)blockIdx.x * SMALL_THREADS + threadIdx.x;
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
#include "conv/fft_planes.h"
#endif
#endif
