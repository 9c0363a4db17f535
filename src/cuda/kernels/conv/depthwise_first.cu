/* Depthwise convolution, channels-first, 1D to 3D, any window, stride up to 4: forward and gradients; f32, f16, bf16.
 * Math:      see depthwise.h; dx[p] = sum w[k] dy[q] and dw[k] = sum x[p] dy[q] share the window of dy
 * Blocking:  a block has one channel and a slice of its units: a strip of rows of a plane, or `batch` whole planes. The
 *            sources of a unit, padding as zeros, go through shared memory as floats; a thread has RY x RX outputs,
 *            neighbours in x. The gradient of the weights stays in registers over the slice; slices follow from the
 *            problem, and a second launch adds them up
 * Traffic:   each tensor once from memory; rows between strips, and in 3D planes, again from L2
 * Roofline:  bandwidth for windows up to 5x5
 * Assumes:   all tensors dense. Under strict math what is not finite is computed again, products with the padding
 *            left out
 * Try:       weft bench conv2d:bwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda */
#include "conv/depthwise.h"

#ifndef __CUDACC_RTC__
enum { ROOM = 45 << 10 }; /* bytes of shared memory: several blocks share a multiprocessor */

/* Source rows or columns of `count` tiles, and the first of them counted from the first tile's. */
static int64_t sources(const weft_problem *p, const depthwise_tile *t, int axis, int64_t count, int64_t *lo) {
    const int64_t many = axis == 1 ? t->ry : t->rx, s = p->stride[axis],
                  reach = (p->kernel[axis] - 1) * p->dilation[axis];
    *lo = t->mode == MODE_FWD ? 0 : -(reach / s);
    return t->mode == MODE_FWD ? (count * many - 1) * s + reach + 1 : (count * many - 1) / s - *lo + 1;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = depthwise_refusal(p, t);
    (void)variant;
    if (refusal) return refusal;
    if (t->last) return "a tensor is not dense channels-first";
    depthwise_args *a = &t->a;
    int64_t lo, row = 4 * p->kernel[0], most = WEFT__MIN((int64_t)hw->gpu->smem - 4096, 2 * ROOM);
    t->lx = 1;
    a->pitch = (int32_t)sources(p, t, 2, a->across, &lo);
    a->xlo = (int32_t)lo;
    row *= a->pitch;
    a->rows = a->down; /* tiles of a strip */
    while (a->rows > 1 && row * sources(p, t, 1, a->rows, &lo) > ROOM) a->rows = (int32_t)cuda_ceil(a->rows, 2);
    a->strips = (int32_t)cuda_ceil(a->down, a->rows);
    a->height = (int32_t)sources(p, t, 1, a->rows, &lo);
    t->vec = cuda_vec(p, a->strips > 1 ? a->from[2] : (int64_t)a->from[1] * a->from[2]);
    const int64_t plane = row * a->height, tiles = (int64_t)a->rows * a->across;
    if (plane > most) return "rows that do not fit into shared memory";
    a->batch = a->strips > 1 ? 1 : (int32_t)WEFT__MAX(WEFT__MIN(WEFT__MIN(2 * THREADS / tiles, ROOM / plane), p->n), 1);
    a->units = cuda_ceil(p->n, a->batch) * a->deep * a->strips;
    t->smem = (size_t)(plane * a->batch);
    t->tiles = p->c;
    a->slices = WEFT__MIN(a->units, WEFT__MAX(cuda_ceil(t->mode >= MODE_WEIGHTS ? 2112 : 8448, p->c), 1));
    a->per = cuda_ceil(a->units, a->slices);
    a->slices = cuda_ceil(a->units, a->per);
    if (t->tiles * a->slices > INT32_MAX) return "2^31 blocks or more";
    if (t->mode >= MODE_WEIGHTS) d->workspace = (size_t)(a->slices * depthwise_sums(p) * p->c) * sizeof(float);
    d->ns = depthwise_ns(p, hw, t, 0.5);
    return NULL;
}

DEPTHWISE_KERNELS(nchw, "conv/depthwise_first.cu");

#else
extern __shared__ float planes[]; /* [image of the batch][tap plane][row][column] */

/* Blocks of a multiprocessor: as many as the registers of the usual path let in. */
enum { BLOCKS = STRICT ? 3 : !WEIGHTS || TAPS <= 9 ? 4 : TAPS <= 27 ? 3 : 2 };

struct sums {
    float dw[WEIGHTS ? TAPS : 1], db;
};

struct unit {
    int64_t n;
    int z, first; /* first: tile row of the strip */
};

/* Planes of a strip follow each other: in 3D they share all but one of their sources. */
static __device__ __forceinline__ unit unit_of(const depthwise_args &a, int64_t i) {
    unit u;
    const int64_t strip = i / a.deep, group = strip / a.strips;
    u.z = (int)(i - strip * a.deep) - (WEIGHTS ? P0 : 0);
    u.first = (int)(strip - group * a.strips) * a.rows;
    u.n = group * a.batch;
    return u;
}

/* The slot of a source plane: those of neighbouring units stay where they are. */
enum { RING = S0 == 1 && D0 == 1 };
static __device__ __forceinline__ int slot_of(int z, int r) { return RING ? z % K0 : r; }

/* Source row of tile row 0's offset 0. */
static __device__ __forceinline__ int source_y(const unit &u) {
    return FWD ? u.first * (RY * S1) - P1 : u.first * (RY / S1);
}

static __device__ __forceinline__ void zero(int first, int count) {
    for (int i = (int)threadIdx.x; i < count; i += THREADS) planes[first + i] = 0;
}

/* Rows of one source plane, which lie together, into a slot. Columns of the padding hold zeros since the beginning, and
 * rows of it where a plane is not cut into strips. */
static __device__ __forceinline__ void fill(const depthwise_args &a, const unit &u, int64_t channel, int images, int z,
                                            int slot) {
    const int top = source_y(u) + low<1>(), left = (FWD ? P2 : 0) - a.xlo, width = a.from[2];
    const int begin = max(top, 0), end = min(top + a.height, a.from[1]), count = max(end - begin, 0) * width / VEC;
    const int64_t plane =
        (int64_t)a.from[0] * a.from[1] * width; /* of one channel; images are a.channels of them apart */
    const T *from =
        (const T *)a.source + (u.n * a.channels + channel) * plane + ((int64_t)z * a.from[1] + begin) * width;
    const int first = (slot * a.height + begin - top) * a.pitch + left, image_pitch = K0 * a.height * a.pitch;
    if (a.strips > 1) { /* then there is one image */
        const int above = min(begin - top, a.height), below = max(end - top, above);
        zero(slot * a.height * a.pitch, above * a.pitch);
        zero((slot * a.height + below) * a.pitch, (a.height - below) * a.pitch);
    }
    constexpr int UNROLL = VEC >= 4 ? 4 : 8;
    const int total = count * images;
    for (int i = (int)threadIdx.x; i < total; i += THREADS * UNROLL) {
        float v[UNROLL][VEC];
#pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            const int at = min(i + j * THREADS, total - 1), image = images == 1 ? 0 : at / count;
            load(from + image * a.channels * plane + (at - image * count) * VEC, v[j]);
        }
#pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            if (i + j * THREADS >= total) break;
            const int image = images == 1 ? 0 : (i + j * THREADS) / count;
            const unsigned at = (unsigned)(i + j * THREADS - image * count) * VEC;
            int row = (int)(at / (unsigned)width), column = (int)(at - (unsigned)row * (unsigned)width);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                if (column < a.pitch - left) planes[image * image_pitch + first + row * a.pitch + column] = v[j][k];
                if (++column == width) column = 0, row++;
            }
        }
    }
}

/* The sources of a unit, as far as the unit before it did not leave them. */
struct ring {
    int64_t strip; /* what the slots are of; -1: nothing, but zeros */
    int plane[K0]; /* source plane of a slot; -1: none */
};

static __device__ __forceinline__ void fill_unit(const depthwise_args &a, const unit &u, int64_t strip, int64_t channel,
                                                 ring &have) {
    const int size = a.height * a.pitch;
    if (have.strip != strip || !RING)
#pragma unroll
        for (int r = 0; r < K0; r++) have.plane[r] = -1;
    if (have.strip < 0) {
        zero(0, a.batch * K0 * size);
        __syncthreads();
    }
    have.strip = strip;
    const int images = (int)min((int64_t)a.batch, a.n - u.n);
    zero(images * K0 * size, (a.batch - images) * K0 * size);
#pragma unroll
    for (int r = 0; r < K0; r++) {
        const int z = source_z(a, u.z, r), slot = slot_of(max(z, 0), r);
        bool there = z < 0; /* products leave it out */
#pragma unroll
        for (int k = 0; k < K0; k++) {
            there = there || (k == slot && have.plane[k] == z);
            if (k == slot && z >= 0) have.plane[k] = z;
        }
        if (!there) fill(a, u, channel, images, z, slot);
    }
}

struct place {
    int64_t n;
    int z, y, x;            /* first dest */
    int image, row, column; /* of its sources in shared memory, offset 0 */
};

static __device__ __forceinline__ place place_of(const depthwise_args &a, const unit &u, int tile) {
    place p;
    const int line = tile / a.across;
    p.image = a.batch == 1 ? 0 : line / a.rows;
    p.row = line - p.image * a.rows;
    p.column = tile - line * a.across;
    p.n = u.n + p.image;
    p.z = u.z;
    p.y = (u.first + p.row) * RY - (FWD ? 0 : P1);
    p.x = p.column * RX - (FWD ? 0 : P2);
    p.row *= FWD ? RY * S1 : RY / S1;
    p.column *= FWD ? RX * S2 : RX / S2;
    return p;
}

static __device__ __forceinline__ bool inside(const depthwise_args &a, const place &p, int k, int c) {
    return (unsigned)(p.y + k) < (unsigned)a.to[1] && (unsigned)(p.x + c) < (unsigned)a.to[2] && p.n < a.n &&
           (!WEIGHTS || (unsigned)p.z < (unsigned)a.to[0]);
}

static __device__ __forceinline__ int64_t dest_at(const depthwise_args &a, const place &p, int k, int c,
                                                  int64_t channel) {
    return (((p.n * a.channels + channel) * a.to[0] + p.z) * a.to[1] + p.y + k) * a.to[2] + p.x + c;
}

/* A tile's products. CAREFUL: those with padding are left out, not multiplied by 0. */
template <bool CAREFUL>
static __device__ __forceinline__ void products(const depthwise_args &a, const place &p, const float *weights,
                                                const float (&x)[WEIGHTS ? RY : 1][WEIGHTS ? RX : 1],
                                                float (&sum)[RY][RX], sums &s) {
    constexpr int LOW2 = low<2>(), LINE = high<2>() - LOW2 + 1;
    const int y = FWD ? p.y * S1 - P1 : (p.y + P1) / S1, first = (FWD ? p.x * S2 - P2 : (p.x + P2) / S2) + LOW2;
#pragma unroll(WEIGHTS ? K0 : 1)
    for (int r = 0; r < K0; r++) {
        const int z = source_z(a, p.z, r);
        if (z < 0) continue;
        const float *plane = planes + (p.image * K0 + slot_of(max(z, 0), r)) * a.height * a.pitch + p.column;
#pragma unroll
        for (int l = low<1>(); l <= high<1>(); l++) {
            const float *row = plane + (p.row + l - low<1>()) * a.pitch;
            const bool there = (unsigned)(y + l) < (unsigned)a.from[1] && z >= 0 && p.n < a.n;
            float v[LINE];
#pragma unroll
            for (int m = 0; m < LINE; m++) v[m] = row[m];
            if (BIASED && r == 0 && l >= 0 && p.z + P0 == z * S0)
#pragma unroll
                for (int m = -LOW2; m < LINE; m++) s.db += v[m];
#pragma unroll
            for (int k = 0; k < RY; k++) {
                if (tap<1>(k, l) < 0) continue;
#pragma unroll
                for (int t = 0; t < K2; t++) {
                    const int number = (r * K1 + tap<1>(k, l)) * K2 + t;
#pragma unroll
                    for (int c = 0; c < RX; c++)
#pragma unroll
                        for (int m = 0; m < LINE; m++) {
                            if (tap<2>(c, LOW2 + m) != t) continue;
                            if (CAREFUL && !(there && (unsigned)(first + m) < (unsigned)a.from[2])) continue;
                            if (FWD || DATA) sum[k][c] = fmaf(v[m], weights[number], sum[k][c]);
                            if (WEIGHTS && (!CAREFUL || inside(a, p, k, c)))
                                s.dw[WEIGHTS ? number : 0] =
                                    fmaf(x[WEIGHTS ? k : 0][WEIGHTS ? c : 0], v[m], s.dw[WEIGHTS ? number : 0]);
                        }
                }
            }
        }
    }
}

/* false: a result is not finite. */
template <bool CAREFUL>
static __device__ __forceinline__ bool tile(const depthwise_args &a, const place &p, int64_t channel,
                                            const float *weights, sums &s) {
    float sum[RY][RX] = {}, x[WEIGHTS ? RY : 1][WEIGHTS ? RX : 1] = {};
    if (WEIGHTS)
#pragma unroll
        for (int k = 0; k < RY; k++)
#pragma unroll
            for (int c = 0; c < RX; c++)
                if (inside(a, p, k, c))
                    x[WEIGHTS ? k : 0][WEIGHTS ? c : 0] = widen(((const T *)a.at)[dest_at(a, p, k, c, channel)]);
    products<CAREFUL>(a, p, weights, x, sum, s);
    if (!FWD && !DATA) return true;
    float zero = 0;
    const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[channel]) : 0;
#pragma unroll
    for (int k = 0; k < RY; k++)
#pragma unroll
        for (int c = 0; c < RX; c++) zero = fmaf(sum[k][c], 0, zero);
    if (STRICT && !CAREFUL && zero != 0) return false;
#pragma unroll
    for (int k = 0; k < RY; k++)
#pragma unroll
        for (int c = 0; c < RX; c++) {
            if (!inside(a, p, k, c)) continue;
            float v[1] = {FWD ? weft__epilogue_apply(a.epilogue, bias, sum[k][c]) : sum[k][c]};
            store((T *)a.dest + dest_at(a, p, k, c, channel), v);
        }
    return true;
}

/* The slice of a block. false: a result of this thread is not finite. */
template <bool CAREFUL>
static __device__ __forceinline__ bool slice(const depthwise_args &a, int64_t channel, const float *weights, sums &s) {
    bool good = true;
    const int tiles = a.batch * a.rows * a.across;
    ring have = {-1, {}};
    const int64_t begin = blockIdx.x / a.channels * a.per, end = min(begin + a.per, a.units);
    for (int64_t i = begin; i < end; i++) {
        const unit u = unit_of(a, i);
        __syncthreads();
        fill_unit(a, u, i / a.deep, channel, have);
        __syncthreads();
        for (int t = (int)threadIdx.x; t < tiles; t += THREADS) {
            const place p = place_of(a, u, t);
            good &= tile<CAREFUL>(a, p, channel, weights, s);
        }
    }
    float zero = 0;
    if (WEIGHTS)
#pragma unroll
        for (int k = 0; k < (WEIGHTS ? TAPS : 1); k++) zero = fmaf(s.dw[k], 0, zero);
    return good && zero == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    __shared__ float weights[FWD || DATA ? TAPS : 1], scratch[SUMS][THREADS / 32];
    const int64_t channel = blockIdx.x % a.channels;
    if (FWD || DATA)
        for (int i = (int)threadIdx.x; i < TAPS; i += THREADS)
            weights[i] = widen(((const T *)a.weights)[channel * TAPS + i]);
    sums s = {};
    const bool good = slice<false>(a, channel, weights, s);
    if (STRICT && __syncthreads_or(!good)) {
        s = {};
        slice<true>(a, channel, weights, s);
    }
    if (!WEIGHTS) return;
#pragma unroll
    for (int k = 0; k < SUMS; k++) {
        const float v = lanes_all<plus, 32>(k < TAPS ? s.dw[WEIGHTS && k < TAPS ? k : 0] : s.db);
        if (threadIdx.x % 32 == 0) scratch[k][threadIdx.x / 32] = v;
    }
    __syncthreads();
    for (int k = (int)threadIdx.x; k < SUMS; k += THREADS) {
        float sum = scratch[k][0];
        for (int i = 1; i < THREADS / 32; i++) sum += scratch[k][i];
        a.partial[(blockIdx.x / a.channels * SUMS + k) * a.channels + channel] = sum;
    }
}
#endif
