/* Depthwise 2D convolution of 16-bit data, channels-last, stride 1: forward and gradients on the tensor cores.
 * Math:      see depthwise.h. Of one channel and one row of taps, 8 neighbouring dests of a row are a product of 16
 *            neighbouring sources with a band matrix of the taps, B[k][n] = w[k - n]; 16 strips of rows at once are a
 *            product 16 x 16 by 16 x 8. The gradient of the weights is the product the other way, summed over strips:
 *            C[k][n] = sum source[k] x[n], and dw[t] = sum_n C[n + t][n] at the end
 * Blocking:  a block has 16 channels of a tile of STRIPS x H rows and 8 TX columns of IMAGES images. Data is turned to
 *            planes in shared memory, two pixels of 8 channels per thread; a warp has a channel, whose dests take the
 *            place of sources that were used; then planes are turned back
 * Traffic:   each tensor once from memory; borders of tiles again from L2
 * Roofline:  shared memory, then bandwidth. 0.44 of a product is not zeros for 7 columns of taps. Measured on an H200,
 *            bf16, forward and both gradients: 64x384@14 7x7 22.6 and 56 us, 64x240@28 5x5 35 and 92 us,
 *            64x96@56 7x7 54 and 101 us. Of all shapes of a tile those taken are the fastest, or within 1% of it
 * Assumes:   all tensors dense, channels in whole 16 bytes, windows up to 9x9. Outputs that are not finite are
 *            computed again as direct sums; gradients of weights are not strict
 * Try:       weft bench conv2d:fwd:bf16:nhwc:n64c384h14w14:o384k7p3g384@cuda */
#include "conv/depthwise.h"

enum { CHANNELS = 16, OCTETS = CHANNELS / 8, MOST_STRIPS = 16 }; /* of a block; rows of a product */

#ifndef __CUDACC_RTC__
enum { WAVE = 132 };

static const char *const *const variants = NULL;

/* Bytes of planes in shared memory, as planes_of() below. */
static int64_t row_bytes(const depthwise_tile *t, bool halo) { return 16 * (t->rx + halo); }
static int64_t image_bytes(const depthwise_tile *t, bool halo) {
    const int64_t pitch = row_bytes(t, halo), skew = t->ry * (pitch / 16) % 2 ? 0 : 16;
    const int64_t own = t->a.down * (t->ry * pitch + skew), reach = halo ? t->kernel[1] - 1 : 0;
    return own + cuda_ceil(reach * pitch + cuda_ceil(reach, t->ry) * skew, 128) * 128;
}
static int64_t plane_bytes(const depthwise_tile *t, bool halo) {
    return t->lanes * image_bytes(t, halo) * CHANNELS + 64 * OCTETS;
}

/* Cycles of a multiprocessor for one tile. */
static double tile_cost(const depthwise_tile *t) {
    const double rows = t->a.down * t->ry, lines = rows + t->kernel[1] - 1, images = t->lanes;
    const double turned = images * (lines * 4 * (t->rx + 1) + rows * 4 * t->rx * (t->mode == MODE_BOTH ? 2 : 1));
    const int products = t->mode == MODE_BOTH ? 2 : 1;
    const double reads = products * 4 * (t->ry + t->kernel[1] - 1) + (products - 1) * 2 * t->ry,
                 sums = products * 1.5 * t->ry * t->kernel[1];
    return OCTETS * turned / 32 * 16 + CHANNELS * (0.8 * t->rx * (reads + sums) + 40) + 1000;
}

/* Rows of a strip, strips and columns of a tile, images: the shape of least cost whose planes fit. */
static double best_shape(const weft_problem *p, const weft__hw *hw, depthwise_tile *t) {
    depthwise_tile best = *t;
    double least = 1e300;
    for (t->ry = 1; t->ry <= (t->mode == MODE_BOTH ? 4 : 7); t->ry++) /* registers */
        for (t->rx = 1; t->rx <= 7; t->rx++) {
            depthwise_args *a = &t->a;
            const int64_t strips = cuda_ceil(a->to[1], t->ry), down = cuda_ceil(strips, MOST_STRIPS);
            a->down = (int32_t)cuda_ceil(strips, down);
            t->lanes = (int32_t)WEFT__MIN(MOST_STRIPS / a->down, p->n);
            const int64_t across = cuda_ceil(a->to[2], 8 * t->rx), deep = cuda_ceil(p->n, t->lanes);
            t->smem = (size_t)(plane_bytes(t, true) + (t->mode >= MODE_WEIGHTS ? plane_bytes(t, false) : 0) +
                               (int64_t)CHANNELS * t->kernel[1] * 48 + 128);
            t->smem = WEFT__MAX(t->smem, (size_t)(128 + t->threads / 32 * t->kernel[1] * 512)); /* sums at the end */
            if (t->smem > hw->gpu->smem / (size_t)t->blocks - 1024) continue;
            const double tiles = (double)(down * across * deep), cost = tiles * tile_cost(t);
            if (cost >= least) continue;
            least = cost;
            a->across = (int32_t)across;
            a->chunks = (int32_t)tiles;
            best = *t;
        }
    *t = best;
    return least;
}

static const char *refusal_of(const weft_problem *p, const weft__hw *hw, depthwise_tile *t) {
    const char *refusal = depthwise_refusal(p, t);
    if (refusal) return refusal;
    if (hw->gpu->cc < 80) return "a GPU older than compute capability 8.0";
    if (p->tensor[0].dtype == WEFT_DTYPE_F32) return "32-bit data";
    if (!t->last || cuda_vec(p, p->c) != 8) return "not dense channels-last with channels in whole 16 bytes";
    if (t->a.from[0] != 1 || t->a.to[0] != 1 || t->kernel[0] != 1) return "three spatial axes";
    for (int i = 1; i < 3; i++)
        if (t->stride[i] != 1 || t->dilation[i] != 1 || t->kernel[i] > 9) return "stride, dilation or a window over 9";
    if (t->kernel[2] < 2 || depthwise_taps(t) <= 9) return "a small window: columns are faster, as measured";
    if (t->mode >= MODE_WEIGHTS && p->math == WEFT_MATH_STRICT) return "gradients of weights in strict math";
    return NULL;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = refusal_of(p, hw, t);
    if (refusal) return refusal;
    depthwise_args *a = &t->a;
    (void)variant;
    t->vec = 8;
    t->threads = 512; /* as measured: one large block of a multiprocessor */
    t->blocks = 1;
    const double cost = best_shape(p, hw, t);
    if (cost >= 1e300) return "planes that do not fit into shared memory";
    a->run = CHANNELS;
    a->strips = 1;
    const int64_t segments = cuda_ceil(p->c, CHANNELS);
    const int64_t slices =
        t->mode >= MODE_WEIGHTS ? WEFT__MIN(a->chunks, cuda_ceil(WAVE * t->blocks, segments)) : a->chunks;
    refusal = depthwise_split(p, t, segments, slices, INT32_MAX, d);
    if (refusal) return refusal;
    /* a multiprocessor has whole tiles, and fills and drains its phases once */
    const double tiles = (double)segments * a->chunks, rounds = (double)cuda_ceil((int64_t)tiles, hw->gpu->sms);
    const double issue = rounds * cost / WEFT__MAX(a->chunks, 1) / 0.74, memory = weft__bytes(p) / (hw->gpu->gbs * 0.8);
    d->ns = 7000 + 1500 * (t->mode >= MODE_WEIGHTS) + WEFT__MAX(issue, memory);
    return NULL;
}

static void bands_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    depthwise_defines(p, hw, params, text);
    weft__put(text, " -DLAST=1 -DIMAGES=%d -DSTRIPS=%d", t->lanes, (int)t->a.down);
}

DEPTHWISE_KERNELS(bands, "nhwc_bands", "conv/depthwise_bands.cu", bands_defines);

#else
enum { OUT = FWD || DATA, WARPS = THREADS / 32, MINE = CHANNELS / WARPS, H = RY, TX = RX };
enum { LEAD1 = FWD ? P1 : K1 - 1 - P1, LEAD2 = FWD ? P2 : K2 - 1 - P2 }; /* source = dest - LEAD + tap */
enum { HEIGHT = STRIPS * H, WIDTH = 8 * TX, LINES = HEIGHT + K1 - 1 };
enum { TAP_ROW = 24, BEFORE = 7 }; /* taps of a row between zeros */

/* Planes of 16 channels in shared memory, in bytes. Strips lie an odd number of 16 bytes apart: no bank serves two of
 * them at once. */
template <bool HALO> struct planes {
    enum { PITCH = 16 * (TX + HALO), SKEW = H * (TX + HALO) % 2 ? 0 : 16, STRIP = H * PITCH + SKEW };
    enum { REACH = HALO ? K1 - 1 : 0, BEHIND = REACH * PITCH + (REACH + H - 1) / H * SKEW };
    enum { IMAGE = STRIPS * STRIP + (BEHIND + 127) / 128 * 128, CHANNEL = IMAGES * IMAGE };
    enum { BYTES = CHANNELS * CHANNEL + 64 * OCTETS, ROWS = HALO ? LINES : HEIGHT, PAIRS = PITCH / 4 };
    static __device__ __forceinline__ int row(int y) { return y * PITCH + y / H * SKEW; }
    static __device__ __forceinline__ int channel(int c) { return c * CHANNEL + c / 8 * 64; }
};
typedef planes<true> sources;
typedef planes<false> owns;

struct place {
    int n, y, x; /* first dest */
};
static __device__ __forceinline__ place place_of(const depthwise_args &a, int tile) {
    const int row = tile / a.across, down = (a.to[1] + HEIGHT - 1) / HEIGHT, deep = row / down;
    return {deep * IMAGES, (row - deep * down) * HEIGHT, (tile - row * a.across) * WIDTH};
}

/* ---------------------------------------------------------------- channels-last to planes, and back */
/* Two pixels of 8 channels, by number. */
template <class P, int ROWS> struct item {
    int octet, pair, row, image;
    __device__ __forceinline__ item(int i) {
        octet = i % OCTETS;
        pair = i / OCTETS % P::PAIRS;
        row = i / (OCTETS * P::PAIRS) % ROWS;
        image = i / (OCTETS * P::PAIRS * ROWS);
    }
    __device__ __forceinline__ int at() const {
        return P::channel(8 * octet) + image * P::IMAGE + P::row(row) + pair * 4;
    }
};

/* Two neighbouring pixels of a row: where the first would be, and which of them exist. */
struct two_pixels {
    int64_t at;
    bool first, second;
};
static __device__ __forceinline__ two_pixels pixels_at(const depthwise_args &a, const int32_t (&size)[3], int n, int y,
                                                       int x, int c) {
    const bool row = n < a.n && (unsigned)y < (unsigned)size[1] && c < a.channels;
    return {(((int64_t)n * size[1] + y) * size[2] + x) * a.channels + c, row && (unsigned)x < (unsigned)size[2],
            row && (unsigned)(x + 1) < (unsigned)size[2]};
}

/* (y, x): of the first row and column of the planes. */
template <class P>
static __device__ __forceinline__ void turn_in(const depthwise_args &a, const void *from, const int32_t (&size)[3],
                                               int first, int n, int y, int x, unsigned char *to) {
    enum { COUNT = IMAGES * P::ROWS * P::PAIRS * OCTETS, BATCH = 4 };
    for (int begin = (int)threadIdx.x; begin < COUNT; begin += BATCH * THREADS) {
        uint4 v[BATCH][2];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const item<P, P::ROWS> i(begin + k * THREADS);
            const two_pixels p = pixels_at(a, size, n + i.image, y + i.row, x + 2 * i.pair,
                                           i.image < IMAGES ? first + 8 * i.octet : INT32_MAX);
            v[k][0] = v[k][1] = uint4{0, 0, 0, 0};
            if (p.first) v[k][0] = __ldg((const uint4 *)((const T *)from + p.at));
            if (p.second) v[k][1] = __ldg((const uint4 *)((const T *)from + p.at + a.channels));
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (begin + k * THREADS >= COUNT) break;
            unsigned char *at = to + item<P, P::ROWS>(begin + k * THREADS).at();
            const uint32_t lo[4] = {v[k][0].x, v[k][0].y, v[k][0].z, v[k][0].w},
                           hi[4] = {v[k][1].x, v[k][1].y, v[k][1].z, v[k][1].w};
#pragma unroll
            for (int c = 0; c < 8; c++)
                *(uint32_t *)(at + c * P::CHANNEL) = __byte_perm(lo[c / 2], hi[c / 2], c % 2 ? 0x7632 : 0x5410);
        }
    }
}

static __device__ __forceinline__ void turn_out(const depthwise_args &a, int first, const place &p,
                                                const unsigned char *from) {
    enum { HALF = WIDTH / 2, COUNT = IMAGES * HEIGHT * HALF * OCTETS };
    for (int i = (int)threadIdx.x; i < COUNT; i += THREADS) {
        const int octet = i % OCTETS, pair = i / OCTETS % HALF, row = i / (OCTETS * HALF) % HEIGHT,
                  image = i / (OCTETS * HALF * HEIGHT);
        const unsigned char *at =
            from + sources::channel(8 * octet) + image * sources::IMAGE + sources::row(row) + pair * 4;
        uint32_t w[8];
#pragma unroll
        for (int c = 0; c < 8; c++) w[c] = *(const uint32_t *)(at + c * sources::CHANNEL);
        const two_pixels to = pixels_at(a, a.to, p.n + image, p.y + row, p.x + 2 * pair, first + 8 * octet);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const unsigned part = k ? 0x7632 : 0x5410;
            const uint4 v = {__byte_perm(w[0], w[1], part), __byte_perm(w[2], w[3], part),
                             __byte_perm(w[4], w[5], part), __byte_perm(w[6], w[7], part)};
            if (k ? to.second : to.first) *(uint4 *)((T *)a.dest + to.at + k * a.channels) = v;
        }
    }
}

/* ---------------------------------------------------------------- products */
template <class E> static __device__ constexpr bool is_bf16() { return false; }
template <> __device__ constexpr bool is_bf16<bf16_t>() { return true; }

static __device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (is_bf16<T>())
        ptx_multiply_bf16(sum, a, b0, b1);
    else
        ptx_multiply_f16(sum, a, b0, b1);
}

/* The band matrices of a channel: a lane has B[2 (lane % 4) + 0, 1 and 8, 9][lane / 4]. */
struct bands {
    uint32_t b[OUT ? K1 : 1][2];
};
static __device__ __forceinline__ bands bands_of(const uint16_t *taps) {
    const int lane = (int)threadIdx.x % 32, at = BEFORE + 2 * (lane % 4) - lane / 4;
    bands f;
#pragma unroll
    for (int r = 0; r < (OUT ? K1 : 1); r++)
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint16_t *two = taps + r * TAP_ROW + at + 8 * k;
            f.b[r][k] = two[0] | (uint32_t)two[1] << 16;
        }
    return f;
}

/* Sums of one channel: of dw, products of 16 sources by 8 dests for each row of taps; of the bias, this lane's part. */
struct sums {
    float dw[WEIGHTS ? K1 : 1][4], db;
};

/* Where the strips of this lane lie for ptx_load_matrices: strip lane % 16, columns 8 (lane / 16) on. */
template <class P> static __device__ __forceinline__ int strip_at(int strip) {
    const int image = strip / STRIPS;
    return image < IMAGES ? image * P::IMAGE + (strip - image * STRIPS) * P::STRIP : 0;
}

/* What is not finite reaches the dests beside it: there the sums are made once more. Rows of this lane. */
static __device__ __noinline__ void careful_tile(const depthwise_args &a, const place &p, int c, int column, float bias,
                                                 unsigned char *plane) {
    const int lane = (int)threadIdx.x % 32, x = column + 2 * (lane % 4);
    for (int i = 0; i < 4 * H; i++) {
        const int strip = lane / 4 + 8 * (i % 2), image = strip / STRIPS, k = i / 4, at = x + i / 2 % 2,
                  y = (strip - image * STRIPS) * H + k;
        if (image >= min(IMAGES, a.n - p.n) || p.y + y >= a.to[1] || p.x + at >= a.to[2]) continue;
        const float v = careful_dest(a, p.n + image, c, 0, p.y + y, p.x + at);
        ((T *)(plane + strip_at<sources>(strip) + k * sources::PITCH))[at] =
            narrow<T>(FWD ? weft__epilogue_apply(a.epilogue, bias, v) : v);
    }
}

/* Dests of 8 columns of all strips: a lane has strips lane / 4 and that + 8, columns 2 (lane % 4) and the next. */
static __device__ __forceinline__ void leave(const depthwise_args &a, const place &p, int c, int column, float bias,
                                             const float (&sum)[H][4], unsigned char *plane) {
    const int lane = (int)threadIdx.x % 32, x = column + 2 * (lane % 4);
    float zero = 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int strip = lane / 4 + 8 * half;
        if (strip >= IMAGES * STRIPS) continue;
        unsigned char *to = plane + strip_at<sources>(strip) + x * 2;
#pragma unroll
        for (int k = 0; k < H; k++) {
            float v[2] = {sum[k][2 * half], sum[k][2 * half + 1]};
            zero = fmaf(v[0], 0, fmaf(v[1], 0, zero));
            if (FWD)
#pragma unroll
                for (int i = 0; i < 2; i++) v[i] = weft__epilogue_apply(a.epilogue, bias, v[i]);
            *(uint32_t *)(to + k * sources::PITCH) = narrow_two(T(), v[0], v[1]);
        }
    }
    if (zero != 0) careful_tile(a, p, c, column, bias, plane);
}

static __device__ __forceinline__ void channel_of(const depthwise_args &a, const place &p, int c, const bands &f,
                                                  unsigned char *source, const unsigned char *own,
                                                  const unsigned char *zeros, sums &total) {
    const int lane = (int)threadIdx.x % 32;
    const unsigned char *from = source + strip_at<sources>(lane % 16) + lane / 16 * 16;
    const unsigned char *at = lane % 16 < IMAGES * STRIPS ? own + strip_at<owns>(lane % 16) : zeros;
    const int down = lane % 16 < IMAGES * STRIPS ? owns::PITCH : 0, across = lane % 16 < IMAGES * STRIPS ? 16 : 0;
    const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[c]) : 0;
    for (int j = 0; j < TX; j++) {
        uint32_t x[WEIGHTS ? (H + 1) / 2 : 1][4];
        if (WEIGHTS)
#pragma unroll
            for (int k = 0; k < (H + 1) / 2; k++)
                ptx_load_transposed(x[WEIGHTS ? k : 0], at + j * across + min(2 * k + lane / 16, H - 1) * down);
        float sum[H][4] = {};
#pragma unroll
        for (int q = 0; q < H + K1 - 1; q++) {
            const unsigned char *row = from + sources::row(q) + 16 * j;
            uint32_t v[4];
            if (OUT) {
                ptx_load_matrices(v, row);
#pragma unroll
                for (int k = 0; k < H; k++)
                    if (q >= k && q - k < K1) multiply(sum[k], v, f.b[OUT ? q - k : 0][0], f.b[OUT ? q - k : 0][1]);
            }
            if (WEIGHTS) {
                ptx_load_transposed(v, row);
                const uint32_t turned[4] = {v[0], v[2], v[1], v[3]};
#pragma unroll
                for (int k = 0; k < H; k++)
                    if (q >= k && q - k < K1)
                        multiply(total.dw[WEIGHTS ? q - k : 0], turned, x[WEIGHTS ? k / 2 : 0][k % 2 * 2],
                                 x[WEIGHTS ? k / 2 : 0][k % 2 * 2 + 1]);
            }
        }
        __syncwarp();
        if (OUT) leave(a, p, c, 8 * j, bias, sum, source);
        __syncwarp();
    }
}

/* The bias's part of a tile: sources that count with it, as bias_from() has them. */
static __device__ __forceinline__ void add_bias(const depthwise_args &a, const place &p, const unsigned char *source,
                                                sums &total) {
    const int top = bias_from<1>(a, p.y), rows = bias_from<1>(a, p.y + HEIGHT) - top, left = bias_from<2>(a, p.x),
              columns = bias_from<2>(a, p.x + WIDTH) - left;
    for (int image = 0; image < min(IMAGES, a.n - p.n); image++)
        for (int y = 0; y < rows; y++)
            for (int x = (int)threadIdx.x % 32; x < columns; x += 32)
                total.db += widen(((const T *)(source + image * sources::IMAGE +
                                               sources::row(top + y - p.y + LEAD1)))[left + x - p.x + LEAD2]);
}

/* The sums of a warp's channel: along the diagonals. scratch: K1 x 16 x 8 numbers. */
static __device__ __forceinline__ void put_sums(const depthwise_args &a, const sums &s, int segment, int c,
                                                float *scratch) {
    const int lane = (int)threadIdx.x % 32;
    float *out = a.partial + ((int64_t)blockIdx.x + segment) * SUMS * CHANNELS + c;
    __syncwarp();
#pragma unroll
    for (int r = 0; r < (WEIGHTS ? K1 : 0); r++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            scratch[(r * 16 + lane / 4 + i / 2 * 8) * 8 + 2 * (lane % 4) + i % 2] = s.dw[WEIGHTS ? r : 0][i];
    __syncwarp();
    for (int k = lane; k < TAPS; k += 32) { /* taps are counted from the other end */
        const int r = K1 - 1 - k / K2, t = K2 - 1 - k % K2;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += scratch[(r * 16 + i + t) * 8 + i];
        out[k * CHANNELS] = sum;
    }
    if (!BIASED) return;
    const float db = lanes_all<plus, 32>(s.db);
    if (lane == 0) out[TAPS * CHANNELS] = db;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    unsigned char *zeros = bytes, *source = bytes + 128, *own = source + sources::BYTES;
    uint16_t *taps = (uint16_t *)(own + (WEIGHTS ? owns::BYTES : 0));
    const int segments = a.units / a.span, segment = WEIGHTS ? (int)blockIdx.x / a.span : (int)blockIdx.x % segments;
    const int slice = WEIGHTS ? (int)blockIdx.x - segment * a.span : (int)blockIdx.x / segments;
    const int first = segment * CHANNELS, warp = (int)threadIdx.x / 32;
    if (threadIdx.x < 32) ((uint32_t *)zeros)[threadIdx.x] = 0;
    for (int i = (int)threadIdx.x; OUT && i < CHANNELS * K1 * TAP_ROW; i += THREADS) {
        const int t = i % TAP_ROW - BEFORE, r = i / TAP_ROW % K1, c = first + i / (TAP_ROW * K1);
        const bool there = t >= 0 && t < K2 && c < a.channels;
        const int k = FWD ? r * K2 + t : (K1 - 1 - r) * K2 + K2 - 1 - t;
        taps[i] = there ? ((const T *)a.weights)[(int64_t)c * TAPS + k].bits : 0;
    }
    sums total[WEIGHTS ? MINE : 1] = {};
    for (int i = slice; i < a.chunks; i += a.span) {
        const place p = place_of(a, i);
        turn_in<sources>(a, a.source, a.from, first, p.n, p.y - LEAD1, p.x - LEAD2, source);
        if (WEIGHTS) turn_in<owns>(a, a.at, a.to, first, p.n, p.y, p.x, own);
        __syncthreads();
#pragma unroll(WEIGHTS ? MINE : 1)
        for (int k = 0; k < MINE; k++) {
            const int c = warp * MINE + k;
            if (first + c >= a.channels) break;
            if (BIASED) add_bias(a, p, source + sources::channel(c), total[WEIGHTS ? k : 0]);
            __syncwarp();
            channel_of(a, p, first + c, bands_of(taps + c * K1 * TAP_ROW), source + sources::channel(c),
                       own + owns::channel(c), zeros, total[WEIGHTS ? k : 0]);
        }
        __syncthreads();
        if (OUT) turn_out(a, first, p, source);
        if (OUT) __syncthreads();
    }
    if (!WEIGHTS) return;
#pragma unroll
    for (int k = 0; k < MINE; k++)
        put_sums(a, total[WEIGHTS ? k : 0], segment, warp * MINE + k, (float *)source + warp * (K1 * 128));
}
#endif
