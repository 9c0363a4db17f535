/* Grouped convolution with few channels in a group, 1D to 3D, channels-first: forward and data gradient; f32, f16,
 * bf16.
 * Math:      dst[o] = epilogue(sum_{c,k} src[c, p + k] weights[o,c,k]); the gradient is the same sum over o
 * Blocking:  a block has a strip of rows of one dest plane of MANY channels of a group, a thread RY x RX dests of each.
 *            Source planes come one after the other, channel by channel, their rows by bulk copies, 4 planes ahead; the
 *            window of a tile is held in registers and meets all weights, which come from shared memory MANY at a time.
 *            Dests leave by bulk copies too
 * Traffic:   each source plane from L2 once per tap plane; dests once
 * Roofline:  multiply-adds: a thread makes 9 RY RX MANY of them for (RY + 2) (RX + 2) loads and 9 of weights (3x3).
 *            Measured on an H200, f32, 64 channels of 50^3: 8 in a group 144 us (0.36 of the multiply-adds), 2 in a
 *            group 54 us
 * Assumes:   all data dense channels-first; compute capability 9.0. Sources in the padding count as 0; under strict
 *            math what is not finite is computed again, those products left out
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g8@cuda */
#include "conv/grouped.h"

#ifndef __CUDACC_RTC__
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    grouped_tile *t = WEFT__PARAMS(grouped_tile, d);
    const char *refusal = grouped_planes_of(p, hw, t);
    (void)variant;
    if (refusal) return refusal;
    d->ns = cuda_ns(hw, 0, 1, 1) + grouped_planes_ns(p, hw, t);
    return NULL;
}

const weft__kernel weft__cuda_conv_grouped_planes = {
    .name = "conv_grouped_planes__cuda",
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__EPILOGUE_STEPS,
    .exact = true,
    .plan = plan,
    .run = grouped_planes_run,
    WEFT__PARTS({"conv/grouped_planes.cu", "grouped_planes", grouped_planes_defines, false}),
};

#else
#define BULK 1
#define ALIGNED 0
#include "conv/grouped_tile.h"
#include "span.h"

enum { LEFT_MOST = FWD ? P2 : -LOW2 - P2 / S2, LEFT = LEFT_MOST > 0 ? LEFT_MOST : 0 };
static_assert(LINE <= ZEROS, "a row of zeros is as long as a line");

/* What a block has: rows of dests of one plane, and the rows of sources that they meet. */
struct strip {
    int64_t n;
    int group, first; /* dest channel of the group */
    int z, top, rows, source_top, source_rows;
};

static __device__ __forceinline__ strip strip_of(const grouped_args &a) {
    strip s;
    const int parts = a.outer / MANY, number = (int)blockIdx.x / a.strips, at = (int)blockIdx.x - number * a.strips;
    s.group = (int)blockIdx.y / parts;
    s.first = ((int)blockIdx.y - s.group * parts) * MANY;
    s.n = number / a.to[0];
    s.z = number - (int)s.n * a.to[0];
    const int lo = at * a.down * RY - PHASE1, hi = min(lo + a.down * RY, a.to[1]);
    s.top = max(lo, 0);
    s.rows = hi - s.top;
    const int first = origin<1>(lo) + LOW1, last = FWD ? origin<1>(hi - 1) + (K1 - 1) * D1 : (hi - 1 + P1) / S1;
    s.source_top = max(first, 0);
    s.source_rows = max(min(last, a.from[1] - 1) - s.source_top + 1, 0);
    return s;
}

/* The source planes of a strip in their order: channels, and the taps of the depth that meet one. */
struct walk {
    int c, r, z;
};
static __device__ __forceinline__ void find(const grouped_args &a, const strip &s, walk &w) {
    for (; w.c < a.inner; w.c++, w.r = 0)
        for (; w.r < K0; w.r++)
            if ((w.z = source_of<0>(a, s.z, w.r)) >= 0) return;
}
static __device__ __forceinline__ int64_t source_at(const grouped_args &a, const strip &s, const walk &w) {
    return s.n * a.source_step[0] + ((int64_t)s.group * a.inner + w.c) * a.source_step[1] + w.z * a.source_step[2] +
           s.source_top * a.source_step[3];
}

extern "C" __global__ void __launch_bounds__(WIDE, BLOCKS) grouped_planes(const __grid_constant__ grouped_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    uint64_t *arrival = (uint64_t *)bytes;
    float *filter = (float *)(arrival + PLANE_SLOTS);
    T *zeros = (T *)(filter + (a.inner * TAPS * MANY + 3) / 4 * 4), *slots = zeros + ZEROS;
    const strip s = strip_of(a);
    if (threadIdx.x == 0) {
        for (int i = 0; i < PLANE_SLOTS; i++) arrival_init(&arrival[i]);
        fence_async();
    }
    for (int i = (int)threadIdx.x; i < ZEROS; i += WIDE) zeros[i] = narrow<T>(0);
    __syncthreads();
    walk load = {0, 0, 0}, w = {0, 0, 0};
    find(a, s, load), find(a, s, w);
    const int count = s.source_rows * a.from[2];
    const int64_t total = a.n * a.source_step[0];
    int loaded = 0, used = 0;
    const bool feeds = threadIdx.x < 32 && count;
    for (; feeds && load.c < a.inner && loaded < PLANE_SLOTS; loaded++, load.r++, find(a, s, load))
        span_load(slots + loaded * a.slot, (const T *)a.source, total, source_at(a, s, load), count, &arrival[loaded]);
    for (int i = (int)threadIdx.x; i < a.inner * TAPS * MANY; i += WIDE)
        filter[i] = weight_at(a, s.group, i / (TAPS * MANY), s.first + i % MANY, i / MANY % TAPS);
    __syncthreads();
    const int line = (int)threadIdx.x / a.across, at = (int)blockIdx.x % a.strips;
    const int y = (at * a.down + line) * RY - PHASE1, x = ((int)threadIdx.x - line * a.across) * RX - PHASE2;
    const int from_y = origin<1>(y) + LOW1 - s.source_top, from_x = origin<2>(x) + LOW2;
    const bool there = line < a.down && count;
    float sum[RY][RX][MANY] = {};
    for (; w.c < a.inner; w.r++, find(a, s, w)) {
        const int slot = used % PLANE_SLOTS;
        const T *plane = slots + slot * a.slot + span_shift((const T *)a.source, (uint32_t)source_at(a, s, w)) + from_x;
        if (count) arrival_wait(&arrival[slot], (uint32_t)(used / PLANE_SLOTS & 1));
        if (there) {
            float window[ROWS][LINE];
#pragma unroll
            for (int l = 0; l < ROWS; l++) {
                const bool inside = (unsigned)(from_y + l) < (unsigned)s.source_rows;
                const T *row = inside ? plane + (from_y + l) * a.from[2] : zeros;
#pragma unroll
                for (int i = 0; i < LINE; i++) {
                    const float v = widen(row[i]);
                    window[l][i] =
                        (i >= LEFT && i < LINE - RIGHT) || (unsigned)(from_x + i) < (unsigned)a.from[2] ? v : 0;
                }
            }
            multiply(window, filter + (w.c * TAPS + w.r * (K1 * K2)) * MANY, sum);
        }
        __syncthreads(); /* the slot is free */
        used++;
        if (!feeds || load.c >= a.inner) continue;
        span_load(slots + slot * a.slot, (const T *)a.source, total, source_at(a, s, load), count, &arrival[slot]);
        loaded++, load.r++;
        find(a, s, load);
    }
    const int64_t to = s.n * a.dest_step[0] + ((int64_t)s.group * a.outer + s.first) * a.dest_step[1] +
                       s.z * a.dest_step[2] + s.top * a.dest_step[3];
#pragma unroll
    for (int o = 0; o < MANY; o++) {
        const float bias = bias_of(a, (int64_t)s.group * a.outer + s.first + o);
        T *own = slots + o * a.own + span_shift((const T *)a.dest, (uint32_t)(to + o * a.dest_step[1]));
#pragma unroll
        for (int i = 0; i < RY * RX; i++) {
            const int k = i / RX, c = i % RX;
            if (line >= a.down || (unsigned)(y + k - s.top) >= (unsigned)s.rows ||
                (unsigned)(x + c) >= (unsigned)a.to[2])
                continue;
            own[(y + k - s.top) * a.to[2] + x + c] =
                result_of(a, s.n, s.group, s.first + o, s.z, y + k, x + c, bias, sum[k][c][o]);
        }
    }
    fence_async();
    __syncthreads();
    for (int o = (int)threadIdx.x / 32; o < MANY; o += WIDE / 32)
        span_store((T *)a.dest, to + o * a.dest_step[1], s.rows * a.to[2], slots + o * a.own);
    span_store_wait<0>(); /* shared memory must outlive the copies that read it */
}
#endif
