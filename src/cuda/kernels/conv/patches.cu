/* Convolution whose windows lie side by side (kernel = stride, no padding: patch embedding), channels-first, f16 and
 * bf16: forward and gradients, each one matrix product on the tensor cores.
 * Math:      with patches P[p, k] (k = c, kd, kh, kw), weights W[o, k] and Y[o, p]:
 *            fwd Y = W P^T;  data gradient dP = dY^T W;  weight gradient dW = dY P
 * Blocking:  128 x 128 results per block, 32 of the reduction per step, STAGES steps under way by asynchronous copies;
 *            8 warps of 64 x 32 by mma 16 x 8 x 16. Patches are read where they lie: 8 elements of a kernel row are 16
 *            bytes. An operand whose reduction is not contiguous is transposed on the way from shared memory. The
 *            gradient of the weights is cut into slices of patches, which a last launch adds up in f64
 * Traffic:   each operand (size of the other side) / 128 times, from L2
 * Roofline:  the tensor cores: 2 o p k flops
 * Assumes:   kernel width a multiple of 8, rows and images of whole 16 bytes, in = out * kernel
 * Try:       weft bench conv3d:fwd:bf16:ncdhw:n16c3d16h224w224:o1024k2x16x16s2x16x16@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "epilogue.h"

enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS };
enum { THREADS = 256, TILE = 128, STEP = 32, STAGES = 4, FINISH_THREADS = 256 };
enum { STAGE_BYTES = 2 * TILE * STEP * 2 };

typedef struct patches_args {
    const void *src, *weights, *bias, *diff_dst;
    void *dst, *diff_src, *diff_weights, *diff_bias;
    float *partial;                 /* [slice][o][k] */
    int64_t image, volume, plane;   /* elements of an image, a channel, a plane of src */
    int32_t o, k, pixels, patches;  /* pixels: patches of an image */
    int32_t kd, kh, kw, od, oh, ow; /* window; patches along d h w */
    int32_t w;                      /* row of src */
    int32_t slices, per;            /* of the patches, in steps */
    weft__epilogue epilogue;
} patches_args;

#ifndef __CUDACC_RTC__
typedef struct patches_tile {
    int32_t slices, per;
} patches_tile;

static const char *refusal_of(const weft_problem *p, const weft__hw *hw) {
    if (hw->gpu->cc < 80) return "a GPU older than compute capability 8.0";
    if (p->groups != 1) return "groups";
    if (p->pass == WEFT_PASS_BWD_DATA && p->nsteps) return "an epilogue of transposed convolution";
    for (int a = 0; a < 3; a++) {
        if (p->kernel[a] != p->stride[a] && p->out[a] > 1) return "kernel and stride differ";
        if (p->pad_lo[a] || p->pad_hi[a] || p->dilation[a] != 1) return "padding or dilation";
        if (p->in[a] != p->out[a] * p->kernel[a]) return "windows that do not cover the image";
    }
    if (p->kernel[2] % 8) return "a kernel width that is not a multiple of 8";
    if (p->out[0] * p->out[1] * p->out[2] % 8) return "patches of an image that are not a multiple of 8";
    if (p->n * p->out[0] * p->out[1] * p->out[2] > INT32_MAX / 2 || p->o > 1 << 20) return "2^30 patches or more";
    for (int i = 0; i < p->ntensors; i++) {
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense channels-first";
        if (p->tensor[i].rank == 5 && p->tensor[i].align % 16) return "data that is not aligned to 16 bytes";
        if (p->tensor[i].rank == 5 && p->tensor[i].dtype != p->tensor[0].dtype) return "data of several types";
    }
    return NULL;
}

static int64_t window_of(const weft_problem *p) { return p->c * p->kernel[0] * p->kernel[1] * p->kernel[2]; }

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    patches_tile *t = WEFT__PARAMS(patches_tile, d);
    const char *refusal = refusal_of(p, hw);
    (void)variant;
    if (refusal) return refusal;
    const int64_t k = window_of(p), patches = p->n * p->out[0] * p->out[1] * p->out[2];
    if (k > INT32_MAX / 2) return "2^30 taps or more";
    if (cuda_ceil(patches, TILE) > 65535 || cuda_ceil(k, TILE) > 65535 || cuda_ceil(p->o, TILE) > 65535)
        return "2^16 tiles or more";
    const bool weights = p->pass == WEFT_PASS_BWD_WEIGHTS || p->pass == WEFT_PASS_BWD;
    if (weights) {
        const int64_t steps = cuda_ceil(patches, STEP), tiles = cuda_ceil(p->o, TILE) * cuda_ceil(k, TILE);
        const int64_t slices = WEFT__MIN(WEFT__MAX(264 / tiles, 1), cuda_ceil(steps, 8));
        t->per = (int32_t)cuda_ceil(steps, slices);
        t->slices = (int32_t)cuda_ceil(steps, t->per);
        d->workspace = (size_t)(t->slices * p->o * k) * sizeof(float);
    }
    /* 16-bit products run at 4 times the f32 rate and more */
    const double tiles = (double)cuda_ceil(p->pass == WEFT_PASS_BWD_DATA ? k : p->o, TILE) *
                         (double)cuda_ceil(weights ? k : patches, TILE) * (weights ? t->slices : 1);
    const double waves = WEFT__MAX(tiles / (2 * hw->gpu->sms), 1);
    d->ns =
        cuda_ns(hw, weft__bytes(p), 0.5, weights ? 2 : 1) +
        weft__flops(p) / (4 * hw->gpu->gflops) * ((int64_t)waves < waves ? ((double)(int64_t)waves + 1) / waves : 1);
    return NULL;
}

static void put(const weft_problem *p, int mode, weft__text *text) {
    cuda_defines(p, 1, text);
    weft__put(text, " -DMODE=%d", mode);
    cuda_define_type(p, mode == MODE_FWD ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    if (mode == MODE_FWD)
        weft__epilogue_defines(p, text);
    else
        weft__put(text, " -DSTEP0=0 -DSTEP1=0 -DSTEP2=0 -DSTEP3=0");
}
static void fwd_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    put(p, p->pass == WEFT_PASS_FWD ? MODE_FWD : MODE_DATA, text);
}
static void weights_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    put(p, MODE_WEIGHTS, text);
}

static patches_args args_of(const weft__exec *e) {
    const weft_problem *p = e->p;
    const patches_tile *t = e->params;
    patches_args a = {.src = e->ptr[WEFT_ROLE_SRC],
                      .weights = e->ptr[WEFT_ROLE_WEIGHTS],
                      .bias = e->ptr[WEFT_ROLE_BIAS],
                      .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                      .dst = e->ptr[WEFT_ROLE_DST],
                      .diff_src = e->ptr[WEFT_ROLE_DIFF_SRC],
                      .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
                      .diff_bias = e->ptr[WEFT_ROLE_DIFF_BIAS],
                      .partial = e->workspace,
                      .plane = p->in[1] * p->in[2],
                      .o = (int32_t)p->o,
                      .k = (int32_t)window_of(p),
                      .kd = (int32_t)p->kernel[0],
                      .kh = (int32_t)p->kernel[1],
                      .kw = (int32_t)p->kernel[2],
                      .od = (int32_t)p->out[0],
                      .oh = (int32_t)p->out[1],
                      .ow = (int32_t)p->out[2],
                      .w = (int32_t)p->in[2],
                      .slices = t->slices,
                      .per = t->per};
    a.volume = a.plane * p->in[0];
    a.image = a.volume * p->c;
    a.pixels = a.od * a.oh * a.ow;
    a.patches = (int32_t)(p->n * a.pixels);
    if (p->pass == WEFT_PASS_FWD) a.epilogue = weft__epilogue_args(p);
    return a;
}

/* x: tiles along the side that is read more often, so that blocks side by side share the other. */
static weft_status product(const weft__exec *e, int part, const patches_args *a, int mode) {
    const int64_t rows = mode == MODE_DATA ? a->patches : a->o, columns = mode == MODE_FWD ? a->patches : a->k;
    const weft__launch launch = {.grid = {(uint32_t)cuda_ceil(rows, TILE), (uint32_t)cuda_ceil(columns, TILE),
                                          mode == MODE_WEIGHTS ? (uint32_t)a->slices : 1},
                                 .block = {THREADS, 1, 1},
                                 .smem = STAGES * STAGE_BYTES};
    return weft__cuda_launch(e, part, &launch, a);
}

static weft_status run(const weft__exec *e) {
    const patches_args a = args_of(e);
    return product(e, 0, &a, e->p->pass == WEFT_PASS_FWD ? MODE_FWD : MODE_DATA);
}

static weft_status run_weights(const weft__exec *e) {
    const patches_args a = args_of(e);
    const int first = e->p->pass == WEFT_PASS_BWD;
    if (first) WEFT__TRY(product(e, 0, &a, MODE_DATA));
    WEFT__TRY(product(e, first, &a, MODE_WEIGHTS));
    const uint32_t blocks = (uint32_t)cuda_ceil((int64_t)a.o * a.k, FINISH_THREADS);
    const weft__launch finish = {.grid = {blocks, 1, 1}, .block = {FINISH_THREADS, 1, 1}};
    const weft__launch bias = {.grid = {(uint32_t)a.o, 1, 1}, .block = {FINISH_THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, first + 1, &finish, &a));
    return a.diff_bias ? weft__cuda_launch(e, first + 2, &bias, &a) : WEFT_OK;
}

#define PATCHES(name_, text_, passes_, steps_, run_, ...)                                            \
    const weft__kernel weft__cuda_##name_ = {.name = text_,                                          \
                                             .version = 1,                                           \
                                             .op = WEFT_OP_CONV,                                     \
                                             .engine = WEFT_ENGINE_CUDA,                             \
                                             .passes = passes_,                                      \
                                             .dtypes = WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
                                             .steps = steps_,                                        \
                                             .exact = true,                                          \
                                             .plan = plan,                                           \
                                             .run = run_,                                            \
                                             WEFT__PARTS(__VA_ARGS__)}
#define SOURCE "conv/patches.cu"
PATCHES(conv_patches, "conv_patches_mma__cuda", WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA), WEFT__EPILOGUE_STEPS,
        run, {SOURCE, "product", fwd_defines, false});
PATCHES(conv_patches_bwd_weights, "conv_patches_bwd_weights_mma__cuda", WEFT__PASS_SET(BWD_WEIGHTS),
        WEFT__STEP_SET(BIAS), run_weights, {SOURCE, "product", weights_defines, false},
        {SOURCE, "finish", weights_defines, false}, {SOURCE, "bias_sums", weights_defines, false});
PATCHES(conv_patches_bwd, "conv_patches_bwd_mma__cuda", WEFT__PASS_SET(BWD), WEFT__STEP_SET(BIAS), run_weights,
        {SOURCE, "product", fwd_defines, false}, {SOURCE, "product", weights_defines, false},
        {SOURCE, "finish", weights_defines, false}, {SOURCE, "bias_sums", weights_defines, false});

#else
#include "reduce.h"
#include "vec.h"

enum { FWD = MODE == MODE_FWD, DATA = MODE == MODE_DATA, WEIGHTS = MODE == MODE_WEIGHTS };
template <class E> static __device__ constexpr bool is_bf16() { return false; }
template <> __device__ constexpr bool is_bf16<bf16_t>() { return true; }
/* Operands that lie with the reduction not contiguous. */
enum { TURNED_A = DATA, TURNED_B = !FWD };

/* ---------------------------------------------------------------- the three matrices, 8 elements at a time */
static __device__ __forceinline__ int64_t window_at(const patches_args &a, int k) {
    const int row = k / a.kw, plane = row / a.kh, c = plane / a.kd;
    return c * a.volume + (plane - c * a.kd) * a.plane + (int64_t)(row - plane * a.kh) * a.w + (k - row * a.kw);
}
static __device__ __forceinline__ int64_t patch_at(const patches_args &a, int p) {
    const int row = p / a.ow, plane = row / a.oh, n = plane / a.od;
    return n * a.image + (int64_t)(plane - n * a.od) * a.kd * a.plane + (int64_t)(row - plane * a.oh) * a.kh * a.w +
           (p - row * a.ow) * a.kw;
}
static __device__ __forceinline__ int64_t result_at(const patches_args &a, int o, int p) {
    const int n = p / a.pixels;
    return ((int64_t)n * a.o + o) * a.pixels + p - n * a.pixels;
}

/* Element (row, r) of the left or right operand, r along the reduction: a place for the row and one for r add up. */
template <bool B> static __device__ __forceinline__ const T *operand(const patches_args &a) {
    return (const T *)((B ? DATA : FWD) ? a.weights : B ? a.src : a.diff_dst);
}
template <bool B> static __device__ __forceinline__ int64_t row_at(const patches_args &a, int row) {
    if (B ? DATA : FWD) return B ? row : (int64_t)row * a.k;
    if (B) return FWD ? patch_at(a, row) : window_at(a, row);
    return DATA ? result_at(a, 0, row) : result_at(a, row, 0);
}
template <bool B> static __device__ __forceinline__ int64_t reduced_at(const patches_args &a, int r) {
    if (B ? DATA : FWD) return B ? (int64_t)r * a.k : r;
    if (B) return FWD ? window_at(a, r) : patch_at(a, r);
    return DATA ? result_at(a, r, 0) : result_at(a, 0, r);
}

/* Where 16-byte piece j of a row lies: pieces are mixed so that 8 rows of one piece are in different banks. */
template <bool TURNED> static __device__ __forceinline__ T *piece(T *tile, int row, int j) {
    return TURNED ? tile + row * TILE + (j ^ (row & 7)) * 8 : tile + row * STEP + (j ^ (row >> 1 & 3)) * 8;
}

/* The part of an operand that a thread copies: the same rows in every step. */
template <bool B> struct share {
    enum { TURNED = B ? TURNED_B : TURNED_A, PIECES = TURNED ? TILE / 8 : STEP / 8, MANY = TILE * STEP / 8 / THREADS };
    const T *from[MANY];
    bool there[MANY];
};

template <bool B> static __device__ __forceinline__ share<B> share_of(const patches_args &a, int first, int rows) {
    share<B> s;
#pragma unroll
    for (int i = 0; i < share<B>::MANY; i++) {
        const int at = (int)threadIdx.x + i * THREADS;
        const int row = first + (share<B>::TURNED ? at % share<B>::PIECES * 8 : at / share<B>::PIECES);
        s.there[i] = row < rows;
        s.from[i] = operand<B>(a) + row_at<B>(a, min(row, rows - 1));
    }
    return s;
}

/* One step: STEP of the reduction from r. */
template <bool B>
static __device__ __forceinline__ void fetch(const patches_args &a, const share<B> &s, T *tile, int r, int end) {
    int64_t reduced = 0;
#pragma unroll
    for (int i = 0; i < share<B>::MANY; i++) {
        const int at = (int)threadIdx.x + i * THREADS, line = at / share<B>::PIECES, j = at % share<B>::PIECES;
        const int along = r + (share<B>::TURNED ? line : j * 8);
        const bool there = s.there[i] && along < end;
        if (share<B>::TURNED || i == 0) reduced = reduced_at<B>(a, min(along, end - 1)); /* else the same for all */
        ptx_copy_async(piece<share<B>::TURNED>(tile, line, j), there ? s.from[i] + reduced : (const T *)a.weights,
                       there);
    }
}

/* 16 rows x 16 of the reduction; for the right operand two of 8 rows. */
template <bool TURNED>
static __device__ __forceinline__ void fragment(uint32_t (&to)[4], T *tile, int row, int r, bool left) {
    const int lane = (int)threadIdx.x % 32, eight = lane / 8, in = lane % 8;
    /* matrices in the order of the registers: left rows first, right reduction first */
    const int down = (left ? eight % 2 : eight / 2) * 8, along = (left ? eight / 2 : eight % 2) * 8;
    if (TURNED)
        ptx_load_transposed(to, piece<true>(tile, r + along + in, (row + down) / 8));
    else
        ptx_load_matrices(to, piece<false>(tile, row + down + in, (r + along) / 8));
}

static __device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (is_bf16<T>())
        ptx_multiply_bf16(sum, a, b0, b1);
    else
        ptx_multiply_f16(sum, a, b0, b1);
}

/* Where results lie: again a place for the row and one for the column add up. */
static __device__ __forceinline__ int64_t out_row(const patches_args &a, int row) {
    return FWD ? result_at(a, row, 0) : DATA ? patch_at(a, row) : ((int64_t)blockIdx.z * a.o + row) * a.k;
}
static __device__ __forceinline__ int64_t out_column(const patches_args &a, int column) {
    return FWD ? result_at(a, 0, column) : DATA ? window_at(a, column) : column;
}

/* Two neighbouring results. */
static __device__ __forceinline__ void put(const patches_args &a, int row, int64_t at, float v0, float v1) {
    float v[2] = {v0, v1};
    if (FWD) {
        const float bias = weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[row]) : 0;
        for (int i = 0; i < 2; i++) v[i] = weft__epilogue_apply(a.epilogue, bias, v[i]);
        store((T *)a.dst + at, v);
    } else if (DATA) {
        store((T *)a.diff_src + at, v);
    } else {
        store(a.partial + at, v);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) product(const __grid_constant__ patches_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    T *tiles = (T *)bytes;
    const int rows = DATA ? a.patches : a.o, columns = FWD ? a.patches : a.k, all = FWD ? a.k : DATA ? a.o : a.patches;
    const int row = (int)blockIdx.x * TILE, column = (int)blockIdx.y * TILE;
    const int begin = WEIGHTS ? (int)blockIdx.z * a.per * STEP : 0,
              end = WEIGHTS ? min(begin + a.per * STEP, all) : all;
    const int steps = (end - begin + STEP - 1) / STEP;
    const int warp = (int)threadIdx.x / 32, down = warp / 4 * 64, across = warp % 4 * 32;
    const share<false> rows_of = share_of<false>(a, row, rows);
    const share<true> columns_of = share_of<true>(a, column, columns);
    float sum[4][4][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) {
            fetch(a, rows_of, tiles + s * 2 * TILE * STEP, begin + s * STEP, end);
            fetch(a, columns_of, tiles + (s * 2 + 1) * TILE * STEP, begin + s * STEP, end);
        }
        ptx_copy_commit();
    }
    for (int s = 0; s < steps; s++) {
        ptx_copy_wait<STAGES - 2>();
        __syncthreads();
        const int next = s + STAGES - 1, slot = next % STAGES;
        if (next < steps) {
            fetch(a, rows_of, tiles + slot * 2 * TILE * STEP, begin + next * STEP, end);
            fetch(a, columns_of, tiles + (slot * 2 + 1) * TILE * STEP, begin + next * STEP, end);
        }
        ptx_copy_commit();
        T *left = tiles + s % STAGES * 2 * TILE * STEP, *right = left + TILE * STEP;
#pragma unroll
        for (int r = 0; r < STEP; r += 16) {
            uint32_t x[4][4], y[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++) fragment<TURNED_A>(x[i], left, down + i * 16, r, true);
#pragma unroll
            for (int i = 0; i < 2; i++) fragment<TURNED_B>(y[i], right, across + i * 16, r, false);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) multiply(sum[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
        }
    }
    const int lane = (int)threadIdx.x % 32, x = column + across + lane % 4 * 2;
    int64_t places[4];
#pragma unroll
    for (int j = 0; j < 4; j++) places[j] = out_column(a, min(x + j * 8, columns - 2));
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int y = row + down + i * 8 + lane / 4;
        if (y >= rows) continue;
        const int64_t place = out_row(a, y);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (x + j * 8 < columns)
                put(a, y, place + places[j], sum[i / 2][j][i % 2 * 2], sum[i / 2][j][i % 2 * 2 + 1]);
    }
}

/* Sums over slices in their order, in f64. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS) finish(const __grid_constant__ patches_args a) {
    const int64_t all = (int64_t)a.o * a.k, i = (int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    if (i >= all) return;
    double sum = 0;
#pragma unroll 4
    for (int s = 0; s < a.slices; s++) sum += a.partial[s * all + i];
    ((T *)a.diff_weights)[i] = narrow<T>((float)sum);
}

/* The bias: a block per channel. */
extern "C" __global__ void __launch_bounds__(FINISH_THREADS) bias_sums(const __grid_constant__ patches_args a) {
    __shared__ double scratch[FINISH_THREADS / 32];
    const int o = (int)blockIdx.x;
    double sum = 0;
    for (int p = (int)threadIdx.x * 8; p < a.patches; p += FINISH_THREADS * 8) {
        float v[8];
        load((const T *)a.diff_dst + result_at(a, o, p), v);
        float part = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) part += v[i];
        sum += part;
    }
    sum = block_all<plus, FINISH_THREADS>(sum, scratch);
    if (threadIdx.x == 0) ((BIAS_T *)a.diff_bias)[o] = narrow<BIAS_T>((float)sum);
}
#endif
