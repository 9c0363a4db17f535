/* What the kernels of batch normalisation share: arguments, options, and what follows from a channel's sums. Both
 * sides read this file. Sums are of x - K, K the channel's first element, and of dy and dy (x - mean): in f32 within a
 * thread, in f64 from there on. The mean is kept as two floats: x - mean loses nothing where they are close. */
#ifndef WEFT_CUDA_BATCH_NORM_H
#define WEFT_CUDA_BATCH_NORM_H

#include "weft.h"

enum { THREADS = 256 };

typedef struct batch_norm_sums {
    double first, second;
} batch_norm_sums;

/* What the last launch needs of a channel. fwd: the mean (two floats) and 1/sqrt(var + eps). bwd: the mean, and of dx =
 * scale (dy - flat - (x - mean) slope) the other three. */
typedef struct batch_norm_channel {
    float mean, rest, scale, flat, slope;
} batch_norm_channel;

typedef struct batch_norm_args {
    const void *src, *diff_dst, *weights, *bias;
    void *dst; /* or diff_src */
    void *diff_weights, *diff_bias;
    float *mean, *var, *save_mean, *save_invstd;
    batch_norm_sums *sums;          /* [channel][slice] */
    float *channel;                 /* five planes of one number per channel: the members of batch_norm_channel */
    int64_t outer, channels, inner; /* channels in vectors where they lie together, else inner is */
    int64_t tiles, slices, slice;   /* tiles of channels; slices of outer x inner, of `slice` vectors */
    double count, eps, momentum;
} batch_norm_args;

#ifndef __CUDACC_RTC__
#include "frame.h"

/* All of it but what says how the work is cut. */
static inline batch_norm_args batch_norm_args_of(const weft__exec *e, const cuda_data *d, int vec) {
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD, last = d->inner == 1;
    const batch_norm_args a = {.src = e->ptr[WEFT_ROLE_SRC],
                               .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                               .weights = e->ptr[WEFT_ROLE_WEIGHTS],
                               .bias = e->ptr[WEFT_ROLE_BIAS],
                               .dst = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                               .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
                               .diff_bias = e->ptr[WEFT_ROLE_DIFF_BIAS],
                               .mean = e->ptr[WEFT_ROLE_MEAN],
                               .var = e->ptr[WEFT_ROLE_VAR],
                               .save_mean = e->ptr[WEFT_ROLE_SAVE_MEAN],
                               .save_invstd = e->ptr[WEFT_ROLE_SAVE_INVSTD],
                               .outer = d->outer,
                               .channels = last ? d->channels / vec : d->channels,
                               .inner = last ? 1 : d->inner / vec,
                               .count = (double)d->outer * (double)d->inner,
                               .eps = p->real[WEFT_BN_EPS],
                               .momentum = p->real[WEFT_BN_MOMENTUM]};
    return a;
}

static inline bool batch_norm_sums_needed(const weft_problem *p) {
    return p->attr[WEFT_BN_TRAIN] || (p->pass == WEFT_PASS_BWD && p->attr[WEFT_BN_AFFINE]);
}

static inline void batch_norm_defines(const weft_problem *p, const cuda_data *d, int vec, weft__text *text) {
    cuda_defines(p, vec, text);
    weft__put(text, " -DLAST=%d -DTRAIN=%d -DAFFINE=%d -DTRACK=%d -DBWD=%d -DSUMS=%d", d->inner == 1,
              p->attr[WEFT_BN_TRAIN] != 0, p->attr[WEFT_BN_AFFINE] != 0, p->attr[WEFT_BN_TRACK] != 0,
              p->pass != WEFT_PASS_FWD, batch_norm_sums_needed(p));
    cuda_define_type(p, WEFT_ROLE_WEIGHTS, "WEIGHTS_T", text);
    cuda_define_type(p, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    cuda_define_type(p, WEFT_ROLE_DIFF_WEIGHTS, "DIFF_T", text);
}

#else
#include "reduce.h"
#include "vec.h"

static __device__ __forceinline__ float given_scale(const batch_norm_args &a, int64_t c) {
    return TRAIN ? a.save_invstd[c] : (float)(1 / sqrt((double)a.var[c] + a.eps));
}

static __device__ __forceinline__ float given_mean(const batch_norm_args &a, int64_t c) {
    return TRAIN ? a.save_mean[c] : a.mean[c];
}

/* K: the first element of the channel, if it is finite. */
static __device__ __forceinline__ float shift(const batch_norm_args &a, int64_t c) {
    const float x = widen(((const T *)a.src)[LAST ? c : c * a.inner * VEC]);
    return fabsf(x) < INFINITY ? x : 0;
}

/* Statistics, or gradients of the parameters, of channel c from its sums; written by one thread. */
static __device__ __forceinline__ batch_norm_channel statistics(const batch_norm_args &a, int64_t c, batch_norm_sums s,
                                                                bool writes) {
    const double distance = s.first / a.count, mean = shift(a, c) + distance;
    const double squares = s.second - s.first * distance,
                 var = squares > 0 || squares != squares ? squares / a.count : 0;
    const float scale = (float)(1 / sqrt(var + a.eps));
    if (writes) {
        a.save_mean[c] = (float)mean;
        a.save_invstd[c] = scale;
    }
    if (writes && TRACK) {
        a.mean[c] = (float)((1 - a.momentum) * a.mean[c] + a.momentum * mean);
        a.var[c] = (float)((1 - a.momentum) * a.var[c] + a.momentum * (var * a.count / (a.count - 1)));
    }
    const float high = (float)mean;
    return {high, fabsf(high) < INFINITY ? (float)(mean - high) : 0, scale, 0, 0};
}

static __device__ __forceinline__ batch_norm_channel gradients(const batch_norm_args &a, int64_t c, batch_norm_sums s,
                                                               bool writes) {
    const float scale = given_scale(a, c), weight = AFFINE ? widen(((const WEIGHTS_T *)a.weights)[c]) : 1;
    const double slope = s.second * scale;
    if (writes && AFFINE) {
        ((BIAS_T *)a.diff_bias)[c] = narrow<BIAS_T>((float)s.first);
        ((DIFF_T *)a.diff_weights)[c] = narrow<DIFF_T>((float)slope);
    }
    return {given_mean(a, c), 0, scale * weight, TRAIN ? (float)(s.first / a.count) : 0,
            TRAIN ? (float)(slope * scale / a.count) : 0};
}

/* An element of the result. x, dy: 0 where they are not used. */
static __device__ __forceinline__ float batch_norm_value(const batch_norm_channel &c, float x, float dy, float weight,
                                                         float bias) {
    if (BWD) return c.scale * (TRAIN ? dy - c.flat - (x - c.mean) * c.slope : dy);
    return fmaf((x - c.mean - c.rest) * c.scale, weight, bias);
}
#endif

#endif
