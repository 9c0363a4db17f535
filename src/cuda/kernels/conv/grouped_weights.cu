/* Grouped convolution with few channels in a group, 1D to 3D, both layouts: gradient of the weights, alone or after
 * that of the data; f32, f16, bf16.
 * Math:      dw[o,c,k] = sum_q dy[o,q] x[c, q stride - pad + k dilation]
 * Blocking:  a warp has OUTS x INS channels and one row of taps, K2: all those sums are in its registers while it walks
 *            over positions of dy, a lane each. The warps of a block have the other rows of taps and meet the same
 *            positions, so that loads come from L1. Slices of the positions follow from the problem; a last launch adds
 *            them up in f64
 * Traffic:   OUTS + INS K2 loads from L1 for OUTS INS K2 products
 * Roofline:  L1. Measured on an H200: 0.11 of the multiply-adds at 8 x 2 channels, 0.04 at 2 x 2
 * Assumes:   any strides of the data. Under strict math sums that are not finite are made again without the padding
 * Try:       weft bench conv3d:bwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g8@cuda */
#include "conv/grouped.h"

#ifndef __CUDACC_RTC__
enum { BLOCKS_WANTED = 528, WARPS_MOST = 9 };

static int64_t blocks_of(const weft_problem *p, const grouped_tile *t) {
    const int64_t in = p->c / p->groups, out = p->o / p->groups, rows = p->kernel[0] * p->kernel[1];
    return p->groups * (out / t->outs) * (in / t->ins) * cuda_ceil(rows, t->warps);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    grouped_tile *t = WEFT__PARAMS(grouped_tile, d);
    const char *refusal = grouped_refusal(p);
    (void)variant;
    if (refusal || (refusal = grouped_tile_of(p, t))) return refusal;
    if ((double)weft__numel(&p->tensor[0]) > 1e9) return "2^30 tiles or more";
    const int64_t in = p->c / p->groups, out = p->o / p->groups, rows = p->kernel[0] * p->kernel[1];
    t->outs = grouped_divisor(out, 8);
    t->ins = grouped_divisor(in, WEFT__MAX(64 / (t->outs * (int)p->kernel[2]), 1));
    t->warps = (int32_t)cuda_ceil(rows, cuda_ceil(rows, WARPS_MOST));
    const int64_t chunks = p->n * p->out[0] * cuda_ceil(p->out[1] * p->out[2], 32);
    const int64_t slices = WEFT__MAX(WEFT__MIN(cuda_ceil(chunks, 16), BLOCKS_WANTED / blocks_of(p, t)), 1);
    t->per = (int32_t)cuda_ceil(chunks, slices);
    t->slices = (int32_t)cuda_ceil(chunks, t->per);
    if (blocks_of(p, t) * t->slices > INT32_MAX) return "2^31 blocks or more";
    d->workspace = (size_t)(t->slices * grouped_sums_of(p)) * sizeof(float);
    const bool both = p->pass == WEFT_PASS_BWD; /* the bytes count once */
    const double weights = t->outs * t->ins >= 16 ? 0.11 : t->outs * t->ins >= 8 ? 0.07 : 0.04;
    const double full = (both ? 0 : weft__bytes(p) / (hw->gpu->gbs * 0.3)) +
                        weft__flops(p) / (both ? 2 : 1) / (weights * hw->gpu->gflops);
    /* the chunks of a warp one after the other, some 32 warps of a multiprocessor at a time, as measured */
    const double waves = (double)(blocks_of(p, t) * t->slices * t->warps) / (32 * hw->gpu->sms);
    /* channels-last each load of a warp meets 32 sectors, which wait for one another */
    const double apart = (double)(t->outs + t->ins * p->kernel[2]) * (85 + 320 * waves);
    const double chunk = p->tensor[0].layout == WEFT_LAYOUT_LAST ? apart : 700 * WEFT__MAX(waves, 1);
    d->ns = 6600 + WEFT__MAX(full, chunk * t->per) + (both ? 1500 + grouped_tile_ns(p, hw, t) : 0);
    return NULL;
}

static void weights_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const grouped_tile *t = params;
    (void)hw;
    grouped_defines(p, MODE_WEIGHTS, text);
    weft__put(text, " -DOUTS=%d -DINS=%d -DWARPS=%d", t->outs, t->ins, t->warps);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const grouped_tile *t = e->params;
    const int first = p->pass == WEFT_PASS_BWD; /* part of the weights */
    if (first) WEFT__TRY(grouped_run(e));
    grouped_args a = grouped_args_of(e, false);
    a.slices = t->slices;
    a.per = t->per;
    a.chunks = (int32_t)cuda_ceil(p->out[1] * p->out[2], 32);
    const weft__launch launch = {.grid = {(uint32_t)(blocks_of(p, t) * t->slices), 1, 1},
                                 .block = {(uint32_t)t->warps * 32, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, first, &launch, &a));
    return grouped_finish(e, first + 1, &a);
}

GROUPED_GRADIENT(conv_grouped_bwd_weights, "conv_grouped_bwd_weights_rows__cuda", BWD_WEIGHTS, true,
                 {"conv/grouped_weights.cu", "grouped_weights", weights_defines, false},
                 {"conv/grouped_weights.cu", "finish", weights_defines, false});
GROUPED_GRADIENT(conv_grouped_bwd, "conv_grouped_bwd_rows__cuda", BWD, true,
                 {"conv/grouped.cu", "grouped", grouped_tile_defines, false},
                 {"conv/grouped_weights.cu", "grouped_weights", weights_defines, false},
                 {"conv/grouped_weights.cu", "finish", weights_defines, false});

#else
#include "reduce.h"
#include "vec.h"

#include "conv/grouped_finish.h"

enum { TAPS = K0 * K1 * K2 };

struct sums {
    float dw[OUTS][INS][K2], db[OUTS];
};

/* What a warp has: channels, a row of taps, and chunks of 32 positions. */
struct share {
    int64_t out, in; /* first channels, of all */
    int group, row, begin, end;
};

/* Adds what the lane's positions give. CAREFUL: products with the padding are left out, not multiplied by 0. */
template <bool CAREFUL> static __device__ __forceinline__ void add(const grouped_args &a, const share &w, sums &s) {
    const int lane = (int)threadIdx.x % 32, r = w.row / K1, t1 = w.row - r * K1, pixels = a.from[1] * a.from[2];
    int plane = w.begin / a.chunks, chunk = w.begin - plane * a.chunks;
    for (int i = w.begin; i < w.end; i++) {
        const int n = plane / a.from[0], z = plane - n * a.from[0], q = chunk * 32 + lane;
        if (++chunk == a.chunks) chunk = 0, plane++;
        const int qy = q / a.from[2], qx = q - qy * a.from[2];
        const int sz = z * S0 - P0 + r * D0, y = qy * S1 - P1 + t1 * D1, x = qx * S2 - P2;
        const bool here = q < pixels, row = here && (unsigned)sz < (unsigned)a.to[0] && (unsigned)y < (unsigned)a.to[1];
        const T *dy = (const T *)a.source + n * a.source_step[0] + w.out * a.source_step[1] + z * a.source_step[2] +
                      qy * a.source_step[3] + qx * a.source_step[4];
        const T *at = (const T *)a.at + n * a.at_step[0] + w.in * a.at_step[1] + sz * a.at_step[2] + y * a.at_step[3] +
                      x * a.at_step[4];
        float g[OUTS], v[INS][K2];
        bool there[K2];
#pragma unroll
        for (int o = 0; o < OUTS; o++) g[o] = here ? widen(dy[o * a.source_step[1]]) : 0;
#pragma unroll
        for (int t = 0; t < K2; t++) there[t] = row && (unsigned)(x + t * D2) < (unsigned)a.to[2];
#pragma unroll
        for (int c = 0; c < INS; c++)
#pragma unroll
            for (int t = 0; t < K2; t++) v[c][t] = there[t] ? widen(at[c * a.at_step[1] + t * D2 * a.at_step[4]]) : 0;
#pragma unroll
        for (int o = 0; o < OUTS; o++) {
            if (BIASED) s.db[o] += g[o];
#pragma unroll
            for (int c = 0; c < INS; c++)
#pragma unroll
                for (int t = 0; t < K2; t++)
                    if (!CAREFUL || there[t]) s.dw[o][c][t] = fmaf(g[o], v[c][t], s.dw[o][c][t]);
        }
    }
}

static __device__ __forceinline__ bool finite(const sums &s) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < OUTS * INS * K2; i++) zero = fmaf(s.dw[i / (INS * K2)][i / K2 % INS][i % K2], 0, zero);
    return zero == 0;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) grouped_weights(const __grid_constant__ grouped_args a) {
    constexpr int ROWS = K0 * K1, GROUPS_OF_ROWS = (ROWS + WARPS - 1) / WARPS;
    const int outs = a.inner / OUTS, ins = a.outer / INS;
    int block = (int)blockIdx.x;
    const int slice = block % a.slices;
    block /= a.slices;
    share w;
    w.row = block % GROUPS_OF_ROWS * WARPS + (int)threadIdx.x / 32;
    block /= GROUPS_OF_ROWS;
    const int in = block % ins, out = block / ins % outs;
    w.group = block / (ins * outs);
    w.out = (int64_t)w.group * a.inner + out * OUTS;
    w.in = (int64_t)w.group * a.outer + in * INS;
    w.begin = slice * a.per;
    w.end = min(w.begin + a.per, a.n * a.from[0] * a.chunks);
    if (w.row >= ROWS) return;
    sums s = {};
    add<false>(a, w, s);
    if (STRICT && !finite(s)) {
        s = {};
        add<true>(a, w, s);
    }
    const int64_t weights = (int64_t)a.groups * a.inner * a.outer * TAPS;
    float *to = a.partial + slice * (weights + (BIASED ? (int64_t)a.groups * a.inner : 0));
#pragma unroll
    for (int i = 0; i < OUTS * INS * K2; i++) {
        const int o = i / (INS * K2), c = i / K2 % INS, t = i % K2;
        const float sum = lanes_all<plus, 32>(s.dw[o][c][t]);
        if (threadIdx.x % 32 == 0) to[((w.out + o) * a.outer + in * INS + c) * TAPS + w.row * K2 + t] = sum;
    }
    if (!BIASED || w.row || in) return;
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
        const float sum = lanes_all<plus, 32>(s.db[o]);
        if (threadIdx.x % 32 == 0) to[weights + w.out + o] = sum;
    }
}
#endif
