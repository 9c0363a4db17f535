/* The products of a thread of the grouped kernels: RY x RX dests of MANY channels with the window of one source plane.
 * For device code only. */
#ifndef WEFT_CUDA_GROUPED_TILE_H
#define WEFT_CUDA_GROUPED_TILE_H

#include "conv/taps.h"
#include "vec.h"

enum { LOW1 = low<1>(), HIGH1 = high<1>(RY), LOW2 = low<2>(), LINE = high<2>(RX) - low<2>() + 1 };
enum { ROWS = HIGH1 - LOW1 + 1 };

/* Of source channel c and dest channel o of a group. */
static __device__ __forceinline__ float weight_at(const grouped_args &a, int group, int c, int o, int k) {
    const int out = FWD ? o : c, in = FWD ? c : o, outs = FWD ? a.outer : a.inner, ins = FWD ? a.inner : a.outer;
    const int64_t row = (int64_t)group * outs + out;
    return widen(((const T *)a.weights)[WEIGHTS_LAST ? (row * TAPS + k) * ins + in : (row * ins + in) * TAPS + k]);
}

/* One dest, products with the padding left out. */
static __device__ __noinline__ float careful(const grouped_args &a, int64_t n, int group, int o, int z, int y, int x) {
    float sum = 0;
    for (int c = 0; c < a.inner; c++)
        for (int k = 0; k < TAPS; k++) {
            const int sz = source_of<0>(a, z, k / (K1 * K2)), sy = source_of<1>(a, y, k / K2 % K1),
                      sx = source_of<2>(a, x, k % K2);
            if (sz < 0 || sy < 0 || sx < 0) continue;
            const int64_t at = n * a.source_step[0] + ((int64_t)group * a.inner + c) * a.source_step[1] +
                               sz * a.source_step[2] + sy * a.source_step[3] + sx * a.source_step[4];
            sum = fmaf(widen(((const T *)a.source)[at]), weight_at(a, group, c, o, k), sum);
        }
    return sum;
}

/* The result of a sum: the epilogue, and under strict math the sum once more where it is not finite. */
static __device__ __forceinline__ T result_of(const grouped_args &a, int64_t n, int group, int o, int z, int y, int x,
                                              float bias, float v) {
    if (STRICT && v * 0 != 0) v = careful(a, n, group, o, z, y, x);
    return narrow<T>(FWD ? weft__epilogue_apply(a.epilogue, bias, v) : v);
}

static __device__ __forceinline__ float bias_of(const grouped_args &a, int64_t channel) {
    return FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[channel]) : 0;
}

/* weights: [tap of the plane][dest channel], in shared memory. */
static __device__ __forceinline__ void multiply(const float (&window)[ROWS][LINE], const float *weights,
                                                float (&sum)[RY][RX][MANY]) {
    enum { FOUR = MANY >= 4 ? 4 : MANY };
#pragma unroll
    for (int t = 0; t < K1 * K2; t++) {
        float w[MANY];
#pragma unroll
        for (int j = 0; j < MANY; j += FOUR) {
            const pack<float, FOUR> four = *(const pack<float, FOUR> *)(weights + t * MANY + j);
#pragma unroll
            for (int i = 0; i < FOUR; i++) w[j + i] = four.v[i];
        }
#pragma unroll
        for (int k = 0; k < RY; k++) {
            if (!FWD && (k - t / K2 * D1) % S1) continue;
            const int l = FWD ? k * S1 + t / K2 * D1 : (k - t / K2 * D1) / S1 - LOW1;
#pragma unroll
            for (int c = 0; c < RX; c++) {
                if (!FWD && (c - t % K2 * D2) % S2) continue;
                const int i = FWD ? c * S2 + t % K2 * D2 : (c - t % K2 * D2) / S2 - LOW2;
#pragma unroll
                for (int o = 0; o < MANY; o++) sum[k][c][o] = fmaf(window[l][i], w[o], sum[k][c][o]);
            }
        }
    }
}

#endif
