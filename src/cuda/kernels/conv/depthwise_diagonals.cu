/* Depthwise 2D convolution of 16-bit data, channels-last, stride 1, small windows: forward and gradients on the tensor
 * cores, straight from the pixels.
 * Math:      see depthwise.h. 16 pixels x 8 channels times a diagonal matrix of 8 weights is one tap; two taps are one
 *            product 16 x 16 by 16 x 8. The gradient of the weights is the product the other way, 8 channels of two taps
 *            x 16 pixels by 16 pixels x 8 channels, of which the diagonals count
 * Blocking:  a block has CHANNELS channels of a tile of HEIGHT x WIDTH pixels of IMAGES images, with its border, in shared
 *            memory; a warp has 16 of the channels. It walks down 8 columns: 16 pixels are 8 columns of two rows, and a
 *            row that was loaded serves all rows of taps. Dests leave as whole sectors of 32 bytes
 * Traffic:   each tensor once from memory; borders of tiles again from L2
 * Roofline:  bandwidth. One eighth of each product is not zeros
 * Assumes:   all tensors dense, channels in whole 16 bytes, windows up to 5x5, 3x3 for gradients of weights. Outputs that
 *            are not finite are computed again as direct sums; gradients of weights are not strict
 * Try:       weft bench conv2d:fwd:f16:nhwc:n64c128h56w56:o128k3p1g128@cuda */
#include "conv/depthwise.h"

#ifndef __CUDACC_RTC__
enum { WAVE = 132 };

/* Blocks of a multiprocessor. */
static const char *const variants[] = {"b4", "b3", "b6", NULL};
static const int32_t blocks_of[] = {4, 3, 6};

/* Bytes of a pixel in shared memory: an odd number of 16 bytes, so that neighbours lie in different banks. */
static int64_t pixel_bytes(int64_t channels) { return 2 * channels + (channels / 8 % 2 ? 0 : 16); }

static int64_t tile_bytes(const depthwise_tile *t, bool halo) {
    const int64_t h = t->ry + (halo ? t->kernel[1] - 1 : 0), w = 8 * t->rx + (halo ? t->kernel[2] - 1 : 0);
    return cuda_ceil(t->owns * h * w * pixel_bytes(t->a.run), 128) * 128;
}

/* Rows, columns and images of a tile: few pixels of the border, and few past the end, in the shared memory of a block.
 * Rows are whole pairs of two. */
static bool best_shape(const weft_problem *p, const weft__hw *hw, depthwise_tile *t) {
    depthwise_tile best = *t;
    double least = 1e300;
    const bool weights = t->mode >= MODE_WEIGHTS;
    depthwise_args *a = &t->a;
    for (t->rx = 1; t->rx <= 7; t->rx++)
        for (t->ry = 2 * t->deep; t->ry <= 56; t->ry += 2 * t->deep)
            for (t->owns = 1; t->owns <= WEFT__MIN(8, p->n); t->owns++) {
                t->smem = (size_t)(tile_bytes(t, true) + (weights ? tile_bytes(t, false) : 0));
                if (t->smem > hw->gpu->smem / (size_t)t->blocks - 1024) break;
                const int64_t across = cuda_ceil(a->to[2], 8 * t->rx), down = cuda_ceil(a->to[1], t->ry),
                              deep = cuda_ceil(p->n, t->owns), tiles = across * down * deep;
                const double border = (double)((t->ry + t->kernel[1] - 1) * (8 * t->rx + t->kernel[2] - 1));
                const double work = t->owns * (border + (weights ? 3 : 2) * t->ry * t->rx * 8) + 200;
                if ((double)tiles * work >= least) continue;
                least = (double)tiles * work;
                a->across = (int32_t)across, a->down = (int32_t)down, a->chunks = (int32_t)tiles;
                best = *t;
            }
    *t = best;
    return least < 1e300;
}

static const char *refusal_of(const weft_problem *p, const weft__hw *hw, depthwise_tile *t) {
    const char *refusal = depthwise_refusal(p, t);
    if (refusal) return refusal;
    if (hw->gpu->cc < 80) return "a GPU older than compute capability 8.0";
    if (p->tensor[0].dtype == WEFT_DTYPE_F32) return "32-bit data";
    if (!t->last || cuda_vec(p, p->c) != 8) return "not dense channels-last with channels in whole 16 bytes";
    if (t->a.from[0] != 1 || t->a.to[0] != 1 || t->kernel[0] != 1) return "three spatial axes";
    const int most = t->mode >= MODE_WEIGHTS ? 3 : 5;
    for (int i = 1; i < 3; i++)
        if (t->stride[i] != 1 || t->dilation[i] != 1 || t->kernel[i] > most)
            return "stride, dilation or a large window";
    if (t->kernel[2] < 2) return "a window of one column";
    if (t->mode >= MODE_WEIGHTS && p->math == WEFT_MATH_STRICT) return "gradients of weights in strict math";
    return NULL;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = refusal_of(p, hw, t);
    if (refusal) return refusal;
    const bool weights = t->mode >= MODE_WEIGHTS;
    depthwise_args *a = &t->a;
    t->vec = 8;
    t->blocks = blocks_of[variant];
    if (weights && t->blocks > 4) return "registers for fewer blocks";
    a->run = p->c % 64 == 0 ? 64 : p->c % 48 == 0 ? 48 : p->c > 16 ? 32 : 16;
    a->strips = 1;
    t->threads = a->run == 48 ? 96 : 128;
    t->deep = a->to[1] < 3 ? 1 : 2; /* pairs of rows of a walk */
    if (!best_shape(p, hw, t)) return "tiles that do not fit into shared memory";
    t->smem = WEFT__MAX(t->smem, (size_t)(weights ? t->threads / 32 * 16 * 10 * 4 : 0)); /* sums at the end */
    const int64_t segments = cuda_ceil(p->c, a->run);
    const int64_t slices = weights ? WEFT__MIN(a->chunks, cuda_ceil(WAVE * t->blocks, segments)) : a->chunks;
    refusal = depthwise_split(p, t, segments, slices, INT32_MAX, d);
    if (refusal) return refusal;
    const double idle = (double)(segments * a->run) / (double)p->c * a->across * 8 * t->rx / a->to[2];
    d->ns = cuda_ns(hw, weft__bytes(p) * idle, 0.72 - 0.01 * variant, weights ? 2 : 1);
    if (depthwise_taps(t) > 9) d->ns *= 1.3;
    return NULL;
}

static void diagonals_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    depthwise_defines(p, hw, params, text);
    weft__put(text, " -DLAST=1 -DIMAGES=%d -DCHANNELS=%d -DPAIRS=%d", t->owns, t->a.run, t->deep);
}

DEPTHWISE_KERNELS(diagonals, "nhwc_diagonals", "conv/depthwise_diagonals.cu", diagonals_defines);

#else
enum { OUT = FWD || DATA, OCTETS = CHANNELS / 8, TEAMS = CHANNELS / 16, SIDES = THREADS / 32 / TEAMS };
enum { LEAD1 = FWD ? P1 : K1 - 1 - P1, LEAD2 = FWD ? P2 : K2 - 1 - P2 }; /* source = dest - LEAD + tap */
enum { HEIGHT = RY, WIDTH = 8 * RX, LINES = HEIGHT + K1 - 1, COLUMNS = WIDTH + K2 - 1, HALVES = (K2 + 1) / 2 };
enum { PIXEL = 2 * CHANNELS + (OCTETS % 2 ? 0 : 16), TILE = (IMAGES * LINES * COLUMNS * PIXEL + 127) / 128 * 128 };

struct place {
    int n, y, x; /* first dest */
};
static __device__ __forceinline__ place place_of(const depthwise_args &a, int tile) {
    const int row = tile / a.across, deep = row / a.down;
    return {deep * IMAGES, (row - deep * a.down) * HEIGHT, (tile - row * a.across) * WIDTH};
}

/* H x W pixels of each image from (y, x) on; what does not exist is 0. */
template <int H, int W>
static __device__ __forceinline__ void fetch(const depthwise_args &a, const void *from, const int32_t (&size)[3],
                                             int first, int n, int y, int x, unsigned char *to) {
    for (int i = (int)threadIdx.x; i < IMAGES * H * W * OCTETS; i += THREADS) {
        const int octet = i % OCTETS, pixel = i / OCTETS, row = pixel / W, image = row / H;
        const int at_n = n + image, at_y = y + row - image * H, at_x = x + pixel - row * W, c = first + 8 * octet;
        const bool there =
            at_n < a.n && (unsigned)at_y < (unsigned)size[1] && (unsigned)at_x < (unsigned)size[2] && c < a.channels;
        const int64_t at = (((int64_t)at_n * size[1] + at_y) * size[2] + at_x) * a.channels + c;
        ptx_copy_async(to + pixel * PIXEL + octet * 16, (const T *)from + (there ? at : 0), there);
    }
}

template <class E> static __device__ constexpr bool is_bf16() { return false; }
template <> __device__ constexpr bool is_bf16<bf16_t>() { return true; }
static __device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (is_bf16<T>())
        ptx_multiply_bf16(sum, a, b0, b1);
    else
        ptx_multiply_f16(sum, a, b0, b1);
}

/* The weights of 8 channels as diagonals: a lane has rows 2 (lane % 4) and the next of column lane / 4. */
struct filter {
    uint32_t tap[OUT ? TAPS : 1];
    float bias[2];
};
static __device__ __forceinline__ filter filter_of(const depthwise_args &a, int first) {
    const int lane = (int)threadIdx.x % 32, n = lane / 4, mine = first + 2 * (lane % 4);
    filter f;
#pragma unroll
    for (int k = 0; k < (OUT ? TAPS : 1); k++) {
        const bool there = OUT && n / 2 == lane % 4 && first + n < a.channels;
        const uint32_t w =
            there ? ((const T *)a.weights)[(int64_t)(first + n) * TAPS + (FWD ? k : TAPS - 1 - k)].bits : 0;
        f.tap[k] = n % 2 ? w << 16 : w;
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        f.bias[i] =
            FWD && weft__epilogue_biased() && mine + i < a.channels ? widen(((const BIAS_T *)a.bias)[mine + i]) : 0;
    return f;
}

/* 8 pixels x 8 channels of a row, at each column of taps. at: of this lane, pixel lane % 8. */
struct row_of_taps {
    uint32_t at[HALVES * 2];
};
template <bool TURNED> static __device__ __forceinline__ row_of_taps load_row(const unsigned char *at) {
    const int lane = (int)threadIdx.x % 32;
    row_of_taps r;
#pragma unroll
    for (int s = 0; s < K2; s += 4) { /* lanes 8 i on: tap s + i, as far as there are */
        uint32_t v[4];
        const unsigned char *mine = at + min(s + lane / 8, K2 - 1) * PIXEL;
        if (TURNED)
            ptx_load_transposed(v, mine);
        else
            ptx_load_matrices(v, mine);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (s + i < HALVES * 2) r.at[s + i] = v[i];
    }
    return r;
}

/* Sums of the gradient: of each row of taps and two columns of them, 8 channels x 8 channels twice. */
struct sums {
    float dw[WEIGHTS ? K1 : 1][HALVES][4];
};

/* One dest as a direct sum, where products with what is not finite reached other channels. */
static __device__ __noinline__ void careful_dests(const depthwise_args &a, int n, int y, int x, int c,
                                                  float (&to)[PAIRS * 4]) {
    for (int i = 0; i < PAIRS * 4; i++) {
        const int at_y = y + i / 2, at_c = c + i % 2;
        if (n < a.n && at_y < a.to[1] && x < a.to[2] && at_c < a.channels) to[i] = careful_dest(a, n, at_c, 0, at_y, x);
    }
}

/* 2 PAIRS rows of 8 columns and 8 channels. source, own: of this lane's pixel of the first row. packed: the dests of
 * channels 2 (lane % 4) and the next, pixel lane / 4, of each row. */
static __device__ __forceinline__ void walk(const depthwise_args &a, int n, int y, int x, int c, const filter &f,
                                            const unsigned char *source, const unsigned char *own,
                                            uint32_t (&packed)[PAIRS * 2], sums &total) {
    const int lane = (int)threadIdx.x % 32;
    float sum[PAIRS][4] = {};
    uint32_t mine[WEIGHTS ? PAIRS : 1][2];
    if (WEIGHTS)
#pragma unroll
        for (int p = 0; p < PAIRS; p += 2) { /* lanes 8 i on: row 2 p + i */
            uint32_t v[4];
            ptx_load_transposed(v, own + min(2 * p + lane / 8, 2 * PAIRS - 1) * (WIDTH * PIXEL));
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (p + i / 2 < PAIRS) mine[WEIGHTS ? p + i / 2 : 0][i % 2] = v[i];
        }
    row_of_taps before, turned_before;
#pragma unroll
    for (int j = -1; j < 2 * PAIRS + K1 - 2; j++) { /* rows j and j + 1 */
        const unsigned char *row = source + (j + 1) * (COLUMNS * PIXEL);
        row_of_taps now, turned;
        if (OUT) now = load_row<false>(row);
        if (WEIGHTS) turned = load_row<true>(row);
#pragma unroll
        for (int i = 0; i < PAIRS * HALVES; i++) {
            const int p = i / HALVES, s = i % HALVES * 2, r = j - 2 * p;
            if (j < 0 || r < 0 || r >= K1) continue;
            const bool two = s + 1 < K2;
            const int t = two ? s + 1 : s;
            if (OUT) {
                const uint32_t v[4] = {before.at[s], now.at[s], before.at[t], now.at[t]};
                multiply(sum[p], v, f.tap[OUT ? r * K2 + s : 0], two ? f.tap[OUT ? r * K2 + t : 0] : 0);
            }
            if (WEIGHTS) {
                const uint32_t v[4] = {turned_before.at[s], turned_before.at[t], turned.at[s], turned.at[t]};
                multiply(total.dw[WEIGHTS ? r : 0][s / 2], v, mine[WEIGHTS ? p : 0][0], mine[WEIGHTS ? p : 0][1]);
            }
        }
        before = now, turned_before = turned;
    }
    if (!OUT) return;
    float zero = 0;
#pragma unroll
    for (int i = 0; i < PAIRS * 4; i++) zero = fmaf(sum[i / 4][i % 4], 0, zero);
    if (zero != 0) {
        float again[PAIRS * 4] = {};
        careful_dests(a, n, y, x + lane / 4, c + 2 * (lane % 4), again);
#pragma unroll
        for (int i = 0; i < PAIRS * 4; i++) sum[i / 4][i % 4] = again[i];
    }
#pragma unroll
    for (int k = 0; k < PAIRS * 2; k++) {
        float v[2] = {sum[k / 2][k % 2 * 2], sum[k / 2][k % 2 * 2 + 1]};
        if (FWD)
#pragma unroll
            for (int i = 0; i < 2; i++) v[i] = weft__epilogue_apply(a.epilogue, f.bias[i], v[i]);
        packed[k] = narrow_two(T(), v[0], v[1]);
    }
}

/* Two times 8 channels of a pixel: lanes side by side exchange, and each stores 8 bytes of a sector. */
static __device__ __forceinline__ void leave(const depthwise_args &a, int n, int y, int x, int c,
                                             const uint32_t (&packed)[2][PAIRS * 2]) {
    const int lane = (int)threadIdx.x % 32, odd = lane % 2, at_x = x + lane / 4, at_c = c + 8 * odd + lane % 4 / 2 * 4;
#pragma unroll
    for (int k = 0; k < PAIRS * 2; k++) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? packed[0][k] : packed[1][k], 1);
        const uint2 v = odd ? uint2{other, packed[1][k]} : uint2{packed[0][k], other};
        if (n < a.n && y + k < a.to[1] && at_x < a.to[2] && at_c < a.channels)
            *(uint2 *)((T *)a.dest + (((int64_t)n * a.to[1] + y + k) * a.to[2] + at_x) * a.channels + at_c) = v;
    }
}

/* The bias's part of a tile: sources that count with it, 16 channels of this warp. Lanes: channel, and two pixels at a
 * time. */
static __device__ __forceinline__ float add_bias(const depthwise_args &a, const place &p, const unsigned char *source,
                                                 int side) {
    const int top = bias_from<1>(a, p.y), rows = bias_from<1>(a, p.y + HEIGHT) - top, left = bias_from<2>(a, p.x),
              columns = bias_from<2>(a, p.x + WIDTH) - left, lane = (int)threadIdx.x % 32;
    float sum = 0;
    for (int i = side; i < min(IMAGES, a.n - p.n) * rows; i += SIDES) {
        const int image = i / rows, line = image * LINES + top + i - image * rows - p.y + LEAD1;
        for (int x = lane / 16; x < columns; x += 2)
            sum += widen(((const T *)(source + (line * COLUMNS + left + x - p.x + LEAD2) * PIXEL))[lane % 16]);
    }
    return sum;
}

/* The sums of a team's 16 channels over its warps, in their order. scratch: [warp][16][TAPS + 1]. */
static __device__ __forceinline__ void put_sums(const depthwise_args &a, const sums (&s)[2], float db, int segment,
                                                float *scratch) {
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32, g = lane / 4;
    float *mine = scratch + warp * (16 * (TAPS + 1));
    __syncthreads();
    if (lane % 4 == g / 2)
#pragma unroll
        for (int i = 0; i < 2 * K1 * K2; i++) { /* a diagonal: taps are counted from the other end */
            const int octet = i / (K1 * K2), k = i % (K1 * K2), r = k / K2, t = k % K2;
            mine[(octet * 8 + g) * (TAPS + 1) + TAPS - 1 - k] = g % 2
                                                                    ? s[octet].dw[WEIGHTS ? r : 0][t / 2][t % 2 * 2 + 1]
                                                                    : s[octet].dw[WEIGHTS ? r : 0][t / 2][t % 2 * 2];
        }
    db += __shfl_xor_sync(0xffffffffu, db, 16);
    if (lane < 16) mine[lane * (TAPS + 1) + TAPS] = db;
    __syncthreads();
    float *out = a.partial + ((int64_t)blockIdx.x + segment) * SUMS * CHANNELS;
    for (int i = (int)threadIdx.x; i < CHANNELS * SUMS; i += THREADS) {
        const int c = i % CHANNELS, k = i / CHANNELS;
        float sum = 0;
        for (int side = 0; side < SIDES; side++)
            sum += scratch[((side * TEAMS + c / 16) * 16 + c % 16) * (TAPS + 1) + k];
        out[k * CHANNELS + c] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    const int segments = a.units / a.span, segment = WEIGHTS ? (int)blockIdx.x / a.span : (int)blockIdx.x % segments;
    const int slice = WEIGHTS ? (int)blockIdx.x - segment * a.span : (int)blockIdx.x / segments;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, team = warp % TEAMS, side = warp / TEAMS;
    const int first = segment * CHANNELS, c = first + team * 16;
    const unsigned char *source = bytes + team * 32, *own = bytes + TILE + team * 32;
    const filter f[2] = {filter_of(a, c), filter_of(a, c + 8)};
    sums total[2] = {};
    float db = 0;
    for (int i = slice; i < a.chunks; i += a.span) {
        const place p = place_of(a, i);
        fetch<LINES, COLUMNS>(a, a.source, a.from, first, p.n, p.y - LEAD1, p.x - LEAD2, bytes);
        if (WEIGHTS) fetch<HEIGHT, WIDTH>(a, a.at, a.to, first, p.n, p.y, p.x, bytes + TILE);
        ptx_copy_commit();
        ptx_copy_wait<0>();
        __syncthreads();
        enum { DOWN = HEIGHT / (2 * PAIRS) };
#pragma unroll 1
        for (int k = side; k < IMAGES * DOWN * RX; k += SIDES) {
            const int column = k % RX * 8, line = k / RX % DOWN * (2 * PAIRS), image = k / (RX * DOWN);
            const unsigned char *from = source + ((image * LINES + line) * COLUMNS + column + lane % 8) * PIXEL,
                                *at = own + ((image * HEIGHT + line) * WIDTH + column + lane % 8) * PIXEL;
            uint32_t packed[2][PAIRS * 2];
#pragma unroll
            for (int octet = 0; octet < 2; octet++)
                walk(a, p.n + image, p.y + line, p.x + column, c + 8 * octet, f[octet], from + 16 * octet,
                     at + 16 * octet, packed[octet], total[octet]);
            if (OUT) leave(a, p.n + image, p.y + line, p.x + column, c, packed);
        }
        if (BIASED) db += add_bias(a, p, source, side);
        if (WEIGHTS) __syncthreads();
    }
    if (WEIGHTS) put_sums(a, total, db, segment, (float *)bytes);
}
#endif
