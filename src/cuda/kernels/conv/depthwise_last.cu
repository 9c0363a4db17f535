/* Depthwise convolution, channels-last, 1D to 3D, any window, stride up to 4: forward and gradients; f32, f16, bf16.
 * Math:      see depthwise.h; dx[p] = sum w[k] dy[q] and dw[k] = sum x[p] dy[q] share the window of dy
 * Blocking:  a warp has LX x VEC neighbouring channels, a thread RY x RX outputs of VEC of them; rows of sources come
 *            from L1 and meet every output row of the tile. The gradient of the weights stays in registers while a
 *            block walks its slice of tiles; slices follow from the problem, and a second launch adds them up
 * Traffic:   each tensor once from memory, rows at the edges of tiles again from L1 and L2
 * Roofline:  bandwidth for windows up to 5x5
 * Assumes:   all tensors dense. Sources in the padding count as 0; under strict math what is not finite is computed
 *            again with those products left out
 * Try:       weft bench conv2d:bwd:f32:nhwc:n64c128h56w56:o128k3p1g128@cuda */
#include "conv/depthwise.h"

#ifndef __CUDACC_RTC__
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = depthwise_refusal(p, t);
    (void)variant;
    if (refusal) return refusal;
    if (!t->last) return "a tensor is not dense channels-last";
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2];
    t->vec = WEFT__MIN(cuda_vec(p, p->c), t->mode < MODE_WEIGHTS ? 4 : taps > 30 ? 1 : 2);
    t->lx = WEFT__MIN(cuda_power(p->c / t->vec), 32);
    t->tiles = cuda_ceil(p->c / t->vec, t->lx);
    const int64_t units = p->n * t->a.deep * t->a.down * t->a.across, steps = cuda_ceil(units, THREADS / t->lx);
    const int64_t most = t->mode >= MODE_WEIGHTS ? WEFT__MAX(cuda_ceil(528, t->tiles), 1) : INT64_C(1) << 40;
    t->a.units = units;
    t->a.slices = WEFT__MIN(steps, most);
    if (t->tiles * t->a.slices > INT32_MAX) return "2^31 blocks or more";
    t->smem = (size_t)(taps * t->lx * t->vec) * sizeof(float);
    if (t->smem > 48 << 10) return "weights that do not fit into shared memory";
    if (t->mode >= MODE_WEIGHTS) {
        d->workspace = (size_t)(t->a.slices * depthwise_sums(p) * p->c) * sizeof(float);
        t->smem = WEFT__MAX(t->smem, (size_t)(THREADS * t->vec) * sizeof(float));
    }
    const bool half = weft__dtype_size(p->tensor[0].dtype) == 2;
    d->ns = depthwise_ns(p, hw, t, !half ? 0.65 : taps > 30 ? 0.1 : 0.4);
    return NULL;
}

DEPTHWISE_KERNELS(nhwc, "conv/depthwise_last.cu");

#else
extern __shared__ float shared[]; /* weights: [tap][channel of the block]; then sums of the gradient */

/* Blocks of a multiprocessor: as many as the registers of the usual path let in. */
enum { BLOCKS = 2 };
enum { HIGH2 = high<2>(), LOW2 = low<2>(), LINE = HIGH2 - LOW2 + 1 };

struct sums {
    float dw[WEIGHTS ? TAPS : 1][VEC], db[VEC];
};

struct place {
    int64_t n;
    int z, y, x; /* first dest */
};

static __device__ __forceinline__ place place_of(const depthwise_args &a, int64_t unit) {
    place p;
    const INDEX u = (INDEX)unit, row = u / (INDEX)a.across, plane = row / (INDEX)a.down;
    p.x = (int)(u - row * (INDEX)a.across) * RX - (FWD ? 0 : P2);
    p.y = (int)(row - plane * (INDEX)a.down) * RY - (FWD ? 0 : P1);
    p.n = a.deep == 1 ? plane : plane / (INDEX)a.deep;
    p.z = a.deep == 1 ? 0 : (int)(plane - (INDEX)p.n * (INDEX)a.deep);
    if (WEIGHTS) p.z -= P0;
    return p;
}

static __device__ __forceinline__ bool inside(const depthwise_args &a, const place &p, int k, int c) {
    return (unsigned)(p.y + k) < (unsigned)a.to[1] && (unsigned)(p.x + c) < (unsigned)a.to[2] &&
           (!WEIGHTS || (unsigned)p.z < (unsigned)a.to[0]);
}

static __device__ __forceinline__ int64_t dest_at(const depthwise_args &a, const place &p, int k, int c,
                                                  int64_t channel) {
    return (((p.n * a.to[0] + p.z) * a.to[1] + p.y + k) * a.to[2] + p.x + c) * a.channels + channel;
}

/* The nearest place that exists, where loads do not wait for the question. */
static __device__ __forceinline__ int near(int at, int size) { return sizeof(T) == 2 ? min(max(at, 0), size - 1) : at; }

/* A tile's products. CAREFUL: those with padding are left out, not multiplied by 0. */
template <bool CAREFUL>
static __device__ __forceinline__ void products(const depthwise_args &a, const place &p, int64_t channel, int lane,
                                                const float (&x)[WEIGHTS ? RY : 1][WEIGHTS ? RX : 1][VEC],
                                                float (&sum)[RY][RX][VEC], sums &s) {
    const int y = FWD ? p.y * S1 - P1 : (p.y + P1) / S1, first = FWD ? p.x * S2 - P2 : (p.x + P2) / S2;
#pragma unroll(WEIGHTS ? K0 : 1)
    for (int r = 0; r < K0; r++) {
        const int z = source_z(a, p.z, r);
        if (z < 0) continue;
#pragma unroll
        for (int l = low<1>(); l <= high<1>(); l++) {
            const bool row = (unsigned)(y + l) < (unsigned)a.from[1];
            /* 16 bits: no branches, so that all loads of a tile may be under way at once; padding reads the nearest
             * place and counts as 0. 32 bits have no registers for that. */
            const int64_t line = (p.n * a.from[0] + z) * a.from[1] + near(y + l, a.from[1]);
            const T *from = (const T *)a.source + line * a.from[2] * a.channels + channel;
            float v[LINE][VEC];
#pragma unroll
            for (int m = 0; m < LINE; m++) {
                const bool there = row && (unsigned)(first + LOW2 + m) < (unsigned)a.from[2];
                if (sizeof(T) == 2) {
                    load(from + near(first + LOW2 + m, a.from[2]) * a.channels, v[m]);
#pragma unroll
                    for (int i = 0; i < VEC; i++) v[m][i] = there ? v[m][i] : 0;
                } else if (there) {
                    load(from + (first + LOW2 + m) * a.channels, v[m]);
                } else {
#pragma unroll
                    for (int i = 0; i < VEC; i++) v[m][i] = 0;
                }
            }
            if (BIASED && r == 0 && l >= 0 && p.z + P0 == z * S0)
#pragma unroll
                for (int m = -LOW2; m < LINE; m++)
#pragma unroll
                    for (int i = 0; i < VEC; i++) s.db[i] += v[m][i];
#pragma unroll
            for (int k = 0; k < RY; k++) {
                if (tap<1>(k, l) < 0) continue;
#pragma unroll
                for (int t = 0; t < K2; t++) {
                    const int number = (r * K1 + tap<1>(k, l)) * K2 + t;
                    float w[VEC];
                    if (FWD || DATA)
#pragma unroll
                        for (int i = 0; i < VEC; i++) w[i] = shared[(number * LX + lane) * VEC + i];
#pragma unroll
                    for (int c = 0; c < RX; c++)
#pragma unroll
                        for (int m = 0; m < LINE; m++) {
                            if (tap<2>(c, LOW2 + m) != t) continue;
                            if (CAREFUL && !(row && (unsigned)(first + LOW2 + m) < (unsigned)a.from[2])) continue;
                            if (FWD || DATA)
#pragma unroll
                                for (int i = 0; i < VEC; i++) sum[k][c][i] = fmaf(v[m][i], w[i], sum[k][c][i]);
                            if (WEIGHTS && (!CAREFUL || inside(a, p, k, c)))
#pragma unroll
                                for (int i = 0; i < VEC; i++)
                                    s.dw[WEIGHTS ? number : 0][i] = fmaf(x[WEIGHTS ? k : 0][WEIGHTS ? c : 0][i],
                                                                         v[m][i], s.dw[WEIGHTS ? number : 0][i]);
                        }
                }
            }
        }
    }
}

static __device__ __forceinline__ bool finite(const float (&v)[RY][RX][VEC]) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < RY * RX * VEC; i++) zero = fmaf(v[i / (RX * VEC)][i / VEC % RX][i % VEC], 0, zero);
    return zero == 0;
}

static __device__ __forceinline__ bool finite(const sums &s) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < (WEIGHTS ? TAPS : 1) * VEC; i++) zero = fmaf(s.dw[i / VEC][i % VEC], 0, zero);
    return zero == 0;
}

/* false: a result is not finite. */
template <bool CAREFUL>
static __device__ __forceinline__ bool tile(const depthwise_args &a, int64_t unit, int64_t channel, int lane, sums &s) {
    const place p = place_of(a, unit);
    float sum[RY][RX][VEC] = {}, x[WEIGHTS ? RY : 1][WEIGHTS ? RX : 1][VEC] = {};
    if (WEIGHTS)
#pragma unroll
        for (int k = 0; k < RY; k++)
#pragma unroll
            for (int c = 0; c < RX; c++)
                if (inside(a, p, k, c))
                    load((const T *)a.at + dest_at(a, p, k, c, channel), x[WEIGHTS ? k : 0][WEIGHTS ? c : 0]);
    products<CAREFUL>(a, p, channel, lane, x, sum, s);
    if (!FWD && !DATA) return true;
    if (STRICT && !CAREFUL && !finite(sum)) return false;
#pragma unroll
    for (int k = 0; k < RY; k++)
#pragma unroll
        for (int c = 0; c < RX; c++) {
            if (!inside(a, p, k, c)) continue;
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[channel + i]) : 0;
                if (FWD) sum[k][c][i] = weft__epilogue_apply(a.epilogue, bias, sum[k][c][i]);
            }
            store((T *)a.dest + dest_at(a, p, k, c, channel), sum[k][c]);
        }
    return true;
}

/* The sums of the block's threads over each channel, a tap at a time. */
static __device__ __forceinline__ void put_sums(const depthwise_args &a, const sums &s, int64_t slice, int64_t first) {
    float *out = a.partial + slice * SUMS * a.channels;
#pragma unroll
    for (int k = 0; k < SUMS; k++) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < VEC; i++) shared[threadIdx.x * VEC + i] = k < TAPS ? s.dw[k < TAPS ? k : 0][i] : s.db[i];
        __syncthreads();
        if (threadIdx.x < LX * VEC && first + threadIdx.x < a.channels) {
            float sum = 0;
#pragma unroll 8
            for (int y = 0; y < THREADS / LX; y++) sum += shared[y * LX * VEC + threadIdx.x];
            out[k * a.channels + first + threadIdx.x] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    const int64_t tiles = (a.channels / VEC + LX - 1) / LX, slice = blockIdx.x / tiles;
    const int64_t first = blockIdx.x % tiles * (LX * VEC), step = a.slices * (THREADS / LX);
    const int lane = (int)threadIdx.x % LX;
    const int64_t channel = first + lane * VEC;
    if (FWD || DATA)
        for (int i = (int)threadIdx.x; i < TAPS * LX * VEC; i += THREADS)
            if (first + i / TAPS < a.channels)
                shared[i % TAPS * (LX * VEC) + i / TAPS] = widen(((const T *)a.weights)[first * TAPS + i]);
    __syncthreads();
    sums s = {};
    const bool there = channel < a.channels;
    const int64_t begin = slice * (THREADS / LX) + threadIdx.x / LX;
    bool good = true;
    if (there)
        for (int64_t unit = begin; unit < a.units; unit += step) good &= tile<false>(a, unit, channel, lane, s);
    if (STRICT && (!good || (WEIGHTS && !finite(s)))) {
        s = {};
        for (int64_t unit = begin; unit < a.units; unit += step) tile<true>(a, unit, channel, lane, s);
    }
    if (WEIGHTS) put_sums(a, s, slice, first);
}
#endif
