/* Depthwise convolution, channels-last, 1D to 3D: forward and gradients; f32, f16, bf16.
 * Math:      see depthwise.h; dx[p] = sum w[k] dy[q] and dw[k] = sum x[p] dy[q] share the window of dy: x is read once
 * Blocking:  a warp has LANES x VEC neighbouring channels, a thread RX columns of RY rows of VEC of them. It walks down
 *            the rows of sources, AHEAD rows loaded before they are used; the dest rows that a source row meets are
 *            under way in registers, and leave when their last source has passed. Of small tensors RY is as little as
 *            can be. The sums of the weights' gradient stay in registers while a block walks over its tiles
 * Traffic:   each tensor once from memory; columns beside a tile again from L1, rows above and below from L2
 * Roofline:  bandwidth for windows up to 5x5. Measured on an H200 (GB/s of tensors moved once; a plain copy 4270),
 *            forward and both gradients: 64x128@56 f32 3540, 3180, f16 2650, 2200; 256x64@112 stride 2 f16 3790, 3670;
 *            64x240@28 5x5 bf16 1170, 630; 64x384@14 7x7 bf16 525, 270
 * Assumes:   all tensors dense. Under strict math what is not finite is computed again, products with the padding
 *            left out
 * Try:       weft bench conv2d:bwd:f32:nhwc:n64c128h56w56:o128k3p1g128@cuda */
#include "conv/depthwise.h"

#ifndef __CUDACC_RTC__
enum { WAVE = 132 };

static const char *const variants[] = {"tall", "flat", NULL};

/* Bytes of a thread's vector, as measured: wide where registers last. */
static int width_of(const depthwise_tile *t, int size) {
    const bool weights = t->mode >= MODE_WEIGHTS, small = depthwise_taps(t) <= 9;
    if (size == 4) return small && !weights ? 16 : 8;
    return (small && !weights) || (weights && (t->kernel[0] > 1 || (small && t->stride[2] == 2))) ? 8 : 4;
}

/* Rows of a tile: few, and few of them past the end. */
static int best_rows(const depthwise_tile *t) {
    const int step = t->mode == MODE_FWD ? 1 : t->stride[1];
    int best = step;
    double least = 1e30;
    for (int many = step; many <= WEFT__MAX(8, step); many += step) {
        const double cost = depthwise_tiles(t, 1, many) * (depthwise_line(t, 1, many) + 0.5 * many * t->kernel[1]);
        if (cost < least) best = many, least = cost;
    }
    return best;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = depthwise_refusal(p, t);
    if (refusal) return refusal;
    if (!t->last) return "a tensor is not dense channels-last";
    depthwise_args *a = &t->a;
    const int taps = depthwise_taps(t), size = (int)weft__dtype_size(p->tensor[0].dtype);
    const bool weights = t->mode >= MODE_WEIGHTS;
    t->vec = WEFT__MIN(cuda_vec(p, p->c), width_of(t, size) / size);
    while (weights && t->vec > 1 && t->vec * taps > (size == 2 ? 108 : 56)) t->vec /= 2; /* registers */
    const int step = t->mode == MODE_FWD ? 1 : t->stride[2];
    t->rx = step * (int)cuda_ceil(taps > 9 ? (!weights && t->vec < 4 ? 4 : 2) : 2, step);
    const int tall = best_rows(t), flat = t->mode == MODE_FWD ? 1 : t->stride[1];
    if (variant && tall == flat) return "tiles are flat anyway";
    t->ry = variant ? flat : tall;
    /* as measured: many columns share the weights from shared memory */
    const bool wide = size == 4 && taps > 25 && t->kernel[0] == 1 && !weights && t->stride[2] == 1;
    if (wide) t->rx = 7;
    t->lanes = WEFT__MIN(cuda_power(p->c / t->vec), 32);
    t->threads = taps <= 9 ? 256 : 128;
    t->blocks = taps > 9 && !weights ? 4 : 2;
    t->ring = t->kernel[0] > 1 ? 0 : 2;
    if (wide) t->blocks = 2, t->ring = 0;
    if (taps <= 9 && size == 2 && !weights && t->stride[2] == 1) t->threads = 128, t->blocks = 4, t->ring = 4;
    if (taps <= 9 && size == 2 && weights && step == 2) t->threads = 128, t->blocks = 3;
    a->run = t->lanes * t->vec;
    a->strips = 1;
    a->across = depthwise_tiles(t, 2, t->rx);
    a->down = depthwise_tiles(t, 1, t->ry);
    const int64_t tiles = p->n * a->to[0] * a->down * a->across, segments = cuda_ceil(p->c, a->run);
    if (tiles > INT32_MAX / 2) return "2^30 tiles or more";
    a->chunks = (int32_t)tiles;
    const int64_t steps = cuda_ceil(tiles, t->threads / t->lanes);
    const int64_t slices = WEFT__MIN(steps, cuda_ceil(WAVE * t->blocks, segments));
    refusal = depthwise_split(p, t, segments, slices, INT32_MAX, d);
    if (refusal) return refusal;
    t->smem = (size_t)(taps * a->run) * sizeof(float);
    if (weights) t->smem = WEFT__MAX(t->smem, (size_t)(t->threads * t->vec) * sizeof(float));
    if (t->smem > 48 << 10) return "weights that do not fit into shared memory";
    const double idle = (double)(segments * a->run) / (double)p->c;
    const double loads = (double)(depthwise_line(t, 1, t->ry) * depthwise_line(t, 2, t->rx) * t->kernel[0]) /
                             (t->ry * t->rx) * (size == 2 ? 1.5 : 1) +
                         (taps > 9 ? taps : 0) / (double)(t->vec * t->rx);
    const double full =
        depthwise_ns(p, hw, t, size == 4 || t->stride[2] > 1 ? 0.8 : 0.6, idle * (loads + 4)) * (taps <= 9 ? 1
                                                                                                 : weights ? 2.6
                                                                                                           : 1.7);
    /* as measured: few threads wait for their rows of sources, in volumes for each tap, and for their own products */
    const double rows = weights ? 0 : 200.0 * depthwise_line(t, 1, t->ry), volume = t->kernel[0] > 1 ? 130.0 * taps : 0;
    double ns = rows + WEFT__MAX(full, volume + depthwise_serial(t, t->rx * t->ry * t->vec));
    const bool small = (double)tiles * t->ry / flat * t->lanes * (double)segments < CUDA_WAVE;
    if (tall != flat && small != (variant == 1)) ns = 1.3 * ns + 1000;
    d->ns = (weights ? 6500 + 250 * taps : 4000) + ns;
    return NULL;
}

static void columns_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    double most = 0;
    for (int i = 0; i < p->ntensors; i++)
        most = WEFT__MAX(most, (double)weft__numel(&p->tensor[i]) * (double)weft__dtype_size(p->tensor[i].dtype));
    depthwise_defines(p, hw, params, text);
    weft__put(text, " -DLAST=1 -DLANES=%d -DAHEAD=%d -DOFFSET=%s", t->lanes, t->ring,
              most < 4e9 ? "uint32_t" : "uint64_t");
}

DEPTHWISE_KERNELS(columns, "nhwc_columns", "conv/depthwise_columns.cu", columns_defines);

#else
extern __shared__ __align__(16) float shared[]; /* weights: [tap][channel of the block]; then sums of the gradient */

enum { OUT = FWD || DATA, KEEP = TAPS <= 9 }; /* KEEP: weights in registers */
enum { LOW1 = low<1>(), HIGH1 = high<1>(RY), LOW2 = low<2>(), LINE = high<2>(RX) - low<2>() + 1 };

/* The first and last source row that dest row k of a tile meets. */
static __device__ constexpr int first_row(int k) {
    for (int l = LOW1; l <= HIGH1; l++)
        if (tap<1>(k, l) >= 0) return l;
    return LOW1;
}
static __device__ constexpr int last_row(int k) {
    for (int l = HIGH1; l >= LOW1; l--)
        if (tap<1>(k, l) >= 0) return l;
    return LOW1;
}

struct sums {
    float dw[WEIGHTS ? TAPS : 1][VEC], db[VEC];
};
struct filters {
    float w[KEEP ? TAPS : 1][VEC];
};

struct place {
    int n, z, y, x; /* first dest */
};

static __device__ __forceinline__ place place_of(const depthwise_args &a, int tile) {
    place p;
    const int row = tile / a.across, plane = row / a.down;
    p.x = (tile - row * a.across) * RX - PHASE2;
    p.y = (row - plane * a.down) * RY - PHASE1;
    p.n = a.to[0] == 1 ? plane : plane / a.to[0];
    p.z = a.to[0] == 1 ? 0 : plane - p.n * a.to[0];
    return p;
}

/* VEC elements as they lie. */
typedef access<VEC * sizeof(T)>::word word;

static __device__ __forceinline__ float element_of(const word &w, int i) {
    pack<T, VEC> p;
    p.word = w;
    return widen(p.v[i]);
}

/* A place along an axis, and whether it exists. 16-bit data is read from the nearest that does, and what does not exist
 * counts as 0 afterwards: a load that depends on a question would be waited for where it is asked. */
enum { NEAR = sizeof(T) == 2 };
static __device__ __forceinline__ int near(int at, int size) { return NEAR ? min(max(at, 0), size - 1) : at; }

static __device__ __forceinline__ word fetch(const void *from, OFFSET at, bool there) {
    const word *place = (const word *)((const char *)from + at);
    word w = {};
    if (NEAR) {
        const word near = *place;
        return there ? near : w;
    }
    if (there) w = *place;
    return w;
}

/* One row of dests leaves. false: not finite. */
static __device__ __forceinline__ bool leave(const depthwise_args &a, const place &p, int k, int channel, OFFSET at,
                                             float (&sum)[RX][VEC]) {
    float zero = 0;
    if ((unsigned)(p.y + k) >= (unsigned)a.to[1]) return true;
#pragma unroll
    for (int c = 0; c < RX; c++) {
        if ((unsigned)(p.x + c) >= (unsigned)a.to[2]) continue;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (STRICT) zero = fmaf(sum[c][i], 0, zero);
            const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[channel + i]) : 0;
            if (FWD) sum[c][i] = weft__epilogue_apply(a.epilogue, bias, sum[c][i]);
        }
        store((T *)((char *)a.dest + (at + (OFFSET)c * (OFFSET)a.channels * (OFFSET)sizeof(T))), sum[c]);
    }
    return zero == 0;
}

/* The weights of a tap. From shared memory they are read each time: the compiler would else keep them in registers. */
static __device__ __forceinline__ void weights_of(const filters &f, int number, int lane, float (&w)[VEC]) {
    const float *at = shared + (number * LANES + lane) * VEC;
#pragma unroll
    for (int j = 0; j < VEC; j++) {
        if (KEEP) {
            w[j] = f.w[KEEP ? number : 0][j];
        } else if (VEC % 2) {
            w[j] = *(const volatile float *)(at + j);
        } else if (j % 2 == 0) {
            const uint64_t two = *(const volatile uint64_t *)(at + j);
            w[j] = __uint_as_float((uint32_t)two);
            w[j + 1 < VEC ? j + 1 : j] = __uint_as_float((uint32_t)(two >> 32));
        }
    }
}

/* false: a result is not finite. */
static __device__ __forceinline__ bool tile(const depthwise_args &a, const place &p, int channel, int lane,
                                            const filters &f, sums &total) {
    const OFFSET pixel_bytes = (OFFSET)a.channels * (OFFSET)sizeof(T), from_row = pixel_bytes * (OFFSET)a.from[2],
                 to_row = pixel_bytes * (OFFSET)a.to[2];
    const int y = origin<1>(p.y), x = origin<2>(p.x) + LOW2;
    bool plane[K0], there[LINE], good = true;
    OFFSET from[K0], columns[LINE], at[RX];
#pragma unroll
    for (int r = 0; r < K0; r++) {
        const int z = source_of<0>(a, p.z, r);
        plane[r] = z >= 0;
        from[r] = (OFFSET)element(a, a.from, p.n, channel, near(z, a.from[0]), 0, 0) * (OFFSET)sizeof(T);
    }
#pragma unroll
    for (int i = 0; i < LINE; i++) {
        there[i] = (unsigned)(x + i) < (unsigned)a.from[2];
        columns[i] = (OFFSET)near(x + i, a.from[2]) * pixel_bytes;
    }
    const OFFSET to = (OFFSET)element(a, a.to, p.n, channel, p.z, 0, 0) * (OFFSET)sizeof(T);
#pragma unroll
    for (int c = 0; c < RX; c++) at[c] = (OFFSET)near(p.x + c, a.to[2]) * pixel_bytes;
    float sum[RY][RX][VEC] = {};
    word line[AHEAD + 1][K0][LINE], own[RY][RX];
#pragma unroll
    for (int l = LOW1; l <= HIGH1 + AHEAD; l++) { /* row l is loaded, row m summed */
        if (l <= HIGH1)
#pragma unroll
            for (int r = 0; r < K0; r++)
#pragma unroll
                for (int i = 0; i < LINE; i++)
                    line[(l - LOW1) % (AHEAD + 1)][r][i] =
                        fetch(a.source, from[r] + (OFFSET)near(y + l, a.from[1]) * from_row + columns[i],
                              plane[r] && there[i] && (unsigned)(y + l) < (unsigned)a.from[1]);
        if (WEIGHTS)
#pragma unroll
            for (int k = 0; k < RY; k++)
                if (first_row(k) == l)
#pragma unroll
                    for (int c = 0; c < RX; c++)
                        own[k][c] =
                            fetch(a.at, to + (OFFSET)near(p.y + k, a.to[1]) * to_row + at[c],
                                  (unsigned)(p.y + k) < (unsigned)a.to[1] && (unsigned)(p.x + c) < (unsigned)a.to[2]);
        const int m = l - AHEAD;
        if (m < LOW1) continue;
#pragma unroll
        for (int r = 0; r < K0; r++) {
            float v[LINE][VEC];
#pragma unroll
            for (int i = 0; i < LINE; i++)
#pragma unroll
                for (int j = 0; j < VEC; j++) v[i][j] = element_of(line[(m - LOW1) % (AHEAD + 1)][r][i], j);
#pragma unroll
            for (int k = 0; k < RY; k++) {
                if (tap<1>(k, m) < 0) continue;
#pragma unroll
                for (int t = 0; t < K2; t++) {
                    const int number = (r * K1 + tap<1>(k, m)) * K2 + t;
                    float w[VEC];
                    if (OUT) weights_of(f, number, lane, w);
#pragma unroll
                    for (int c = 0; c < RX; c++) {
                        if (!FWD && (c - t * D2) % S2) continue;
                        const int i = FWD ? c * S2 + t * D2 : (c - t * D2) / S2 - LOW2;
#pragma unroll
                        for (int j = 0; j < VEC; j++) {
                            if (OUT) sum[k][c][j] = fmaf(v[i][j], w[j], sum[k][c][j]);
                            if (WEIGHTS)
                                total.dw[WEIGHTS ? number : 0][j] =
                                    fmaf(element_of(own[k][c], j), v[i][j], total.dw[WEIGHTS ? number : 0][j]);
                        }
                    }
                }
            }
        }
        if (OUT)
#pragma unroll
            for (int k = 0; k < RY; k++)
                if (last_row(k) == m)
                    good &=
                        leave(a, p, k, channel, to + (OFFSET)(p.y + k) * to_row + (OFFSET)p.x * pixel_bytes, sum[k]);
    }
    return good;
}

/* The bias's part of a tile: sources that count with it. */
static __device__ __forceinline__ void add_bias(const depthwise_args &a, const place &p, int channel, sums &total) {
    for (int z = bias_from<0>(a, p.z); z < bias_from<0>(a, p.z + 1); z++)
        for (int y = bias_from<1>(a, p.y); y < bias_from<1>(a, p.y + RY); y++)
            for (int x = bias_from<2>(a, p.x); x < bias_from<2>(a, p.x + RX); x++) {
                float v[VEC];
                load((const T *)a.source + element(a, a.from, p.n, channel, z, y, x), v);
#pragma unroll
                for (int j = 0; j < VEC; j++) total.db[j] += v[j];
            }
}

static __device__ __noinline__ void careful_tile(const depthwise_args &a, const place &p, int channel) {
    for (int i = 0; i < RY * RX * VEC; i++) {
        const int c = channel + i % VEC, x = p.x + i / VEC % RX, y = p.y + i / (VEC * RX);
        if ((unsigned)y >= (unsigned)a.to[1] || (unsigned)x >= (unsigned)a.to[2]) continue;
        const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[c]) : 0;
        const float value = careful_dest(a, p.n, c, p.z, y, x);
        ((T *)a.dest)[element(a, a.to, p.n, c, p.z, y, x)] =
            narrow<T>(FWD ? weft__epilogue_apply(a.epilogue, bias, value) : value);
    }
}

/* The sums of the block's threads over each channel, a tap at a time. */
static __device__ __forceinline__ void put_sums(const depthwise_args &a, const sums &s, int segment) {
    float *out = a.partial + ((int64_t)blockIdx.x + segment) * SUMS * (LANES * VEC);
#pragma unroll
    for (int k = 0; k < SUMS; k++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < VEC; i++)
            shared[threadIdx.x * VEC + i] = k < TAPS ? s.dw[WEIGHTS && k < TAPS ? k : 0][i] : s.db[i];
        __syncthreads();
        for (int i = (int)threadIdx.x; i < LANES * VEC; i += THREADS) {
            float sum = 0;
#pragma unroll 8
            for (int y = 0; y < THREADS / LANES; y++) sum += shared[y * LANES * VEC + i];
            out[k * LANES * VEC + i] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    const int segments = a.units / a.span, segment = WEIGHTS ? (int)blockIdx.x / a.span : (int)blockIdx.x % segments;
    const int slice = WEIGHTS ? (int)blockIdx.x - segment * a.span : (int)blockIdx.x / segments;
    const int first = segment * (LANES * VEC), lane = (int)threadIdx.x % LANES, channel = first + lane * VEC;
    const int begin = slice * (THREADS / LANES) + (int)threadIdx.x / LANES, step = a.span * (THREADS / LANES);
    if (OUT)
        for (int i = (int)threadIdx.x; i < TAPS * LANES * VEC; i += THREADS)
            if (first + i / TAPS < a.channels)
                shared[i % TAPS * (LANES * VEC) + i / TAPS] = widen(((const T *)a.weights)[(int64_t)first * TAPS + i]);
    __syncthreads();
    sums s = {};
    if (channel < a.channels) {
        filters f;
        if (KEEP && OUT)
#pragma unroll
            for (int i = 0; i < (KEEP ? TAPS : 1) * VEC; i++)
                f.w[i / VEC][i % VEC] = shared[(i / VEC * LANES + lane) * VEC + i % VEC];
        for (int i = begin; i < a.chunks; i += step) {
            const place p = place_of(a, i);
            if (!tile(a, p, channel, lane, f, s) && STRICT) careful_tile(a, p, channel);
            if (BIASED) add_bias(a, p, channel, s);
        }
    }
    if (!WEIGHTS) return;
    float zero = 0;
#pragma unroll
    for (int i = 0; i < (WEIGHTS ? TAPS : 1) * VEC; i++) zero = fmaf(s.dw[i / VEC][i % VEC], 0, zero);
    if (STRICT && zero != 0)
        for (int k = 0; k < TAPS * VEC; k++) {
            float sum = 0;
            for (int i = begin; i < a.chunks; i += step) {
                const place p = place_of(a, i);
                sum += careful_sum(a, p.n, channel + k % VEC, p.z, p.y, p.x, k / VEC);
            }
#pragma unroll
            for (int i = 0; i < (WEIGHTS ? TAPS : 1) * VEC; i++)
                s.dw[i / VEC][i % VEC] = i == k ? sum : s.dw[i / VEC][i % VEC];
        }
    put_sums(a, s, segment);
}
#endif
