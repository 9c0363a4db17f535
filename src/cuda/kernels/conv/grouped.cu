/* Grouped convolution with few channels in a group, 1D to 3D, both layouts: forward and data gradient; f32, f16, bf16.
 * Math:      dst[o] = epilogue(sum_{c,k} src[c, p + k] weights[o,c,k]); the gradient is the same sum over o
 * Blocking:  a block has MANY dest channels of one group, a thread RY x RX dests of each. For each source channel and
 *            tap plane the window of the tile is held in registers and meets all weights, which come from shared memory
 *            MANY at a time
 * Traffic:   sources come from L1, each some (RY + K1 - 1) (RX + K2 - 1) / (RY RX) times a tap plane
 * Roofline:  loads from L1. Measured on an H200: 0.33 of the multiply-adds at 8 channels in a group (50^3, 177 us),
 *            0.14 at 2 (103 us)
 * Assumes:   any strides of the data. Sources in the padding count as 0; under strict math what is not finite is
 *            computed again, those products left out
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g8@cuda */
#include "conv/grouped.h"

#ifndef __CUDACC_RTC__
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    grouped_tile *t = WEFT__PARAMS(grouped_tile, d);
    const char *refusal = grouped_refusal(p);
    (void)variant;
    if (refusal || (refusal = grouped_tile_of(p, t))) return refusal;
    if ((double)weft__numel(&p->tensor[0]) > 1e9) return "2^30 tiles or more";
    d->ns = 4000 + grouped_tile_ns(p, hw, t);
    return NULL;
}

const weft__kernel weft__cuda_conv_grouped = {
    .name = "conv_grouped_direct__cuda",
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__EPILOGUE_STEPS,
    .exact = true,
    .plan = plan,
    .run = grouped_run,
    WEFT__PARTS({"conv/grouped.cu", "grouped", grouped_tile_defines, false}),
};

#else
#include "conv/grouped_tile.h"

extern __shared__ __align__(16) float filter[]; /* [source channel][tap][dest channel] */

struct place {
    int64_t n;
    int z, y, x; /* first dest */
};

/* All products of a tile with one source plane. */
static __device__ __forceinline__ void products(const grouped_args &a, const T *plane, const place &p,
                                                const float *weights, float (&sum)[RY][RX][MANY]) {
    const int y = origin<1>(p.y) + LOW1, x = origin<2>(p.x) + LOW2;
    float window[ROWS][LINE];
#pragma unroll
    for (int l = 0; l < ROWS; l++)
#pragma unroll
        for (int i = 0; i < LINE; i++) {
            const bool there = (unsigned)(y + l) < (unsigned)a.from[1] && (unsigned)(x + i) < (unsigned)a.from[2];
            window[l][i] = there ? widen(plane[(y + l) * a.source_step[3] + (x + i) * a.source_step[4]]) : 0;
        }
    multiply(window, weights, sum);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) grouped(const __grid_constant__ grouped_args a) {
    const int parts = a.outer / MANY, group = (int)blockIdx.y / parts, first = ((int)blockIdx.y - group * parts) * MANY;
    for (int i = (int)threadIdx.x; i < a.inner * TAPS * MANY; i += THREADS)
        filter[i] = weight_at(a, group, i / (TAPS * MANY), first + i % MANY, i / MANY % TAPS);
    __syncthreads();
    const int tile = (int)blockIdx.x * THREADS + (int)threadIdx.x;
    if (tile >= a.tiles) return;
    place p;
    const int row = tile / a.across, plane = row / a.down;
    p.x = (tile - row * a.across) * RX - PHASE2;
    p.y = (row - plane * a.down) * RY - PHASE1;
    p.n = plane / a.to[0];
    p.z = plane - (int)p.n * a.to[0];
    float sum[RY][RX][MANY] = {};
    const T *from = (const T *)a.source + p.n * a.source_step[0] + (int64_t)group * a.inner * a.source_step[1];
    for (int c = 0; c < a.inner; c++)
        for (int r = 0; r < K0; r++) {
            const int z = source_of<0>(a, p.z, r);
            if (z >= 0)
                products(a, from + c * a.source_step[1] + z * a.source_step[2], p,
                         filter + (c * TAPS + r * (K1 * K2)) * MANY, sum);
        }
    T *to =
        (T *)a.dest + p.n * a.dest_step[0] + ((int64_t)group * a.outer + first) * a.dest_step[1] + p.z * a.dest_step[2];
#pragma unroll
    for (int o = 0; o < MANY; o++) {
        const float bias = bias_of(a, (int64_t)group * a.outer + first + o);
#pragma unroll
        for (int k = 0; k < RY; k++)
#pragma unroll
            for (int c = 0; c < RX; c++) {
                const int y = p.y + k, x = p.x + c;
                if ((unsigned)y >= (unsigned)a.to[1] || (unsigned)x >= (unsigned)a.to[2]) continue;
                to[o * a.dest_step[1] + y * a.dest_step[3] + x * a.dest_step[4]] =
                    result_of(a, p.n, group, first + o, p.z, y, x, bias, sum[k][c][o]);
            }
    }
}
#endif
