/* What the kernels of sparse convolution share: arguments, refusals, and entries as they stand in the rows. Both sides
 * read this file. */
#ifndef WEFT_CUDA_SPARSE_CONV_H
#define WEFT_CUDA_SPARSE_CONV_H

#ifndef __CUDACC_RTC__
#include <math.h>

#include "frame.h"
#endif
#include "epilogue.h"

enum { THREADS = 256 };

typedef struct sparse_args {
    const void *src, *weights, *rows, *cols, *bias, *diff_dst;
    void *dst, *diff_weights, *diff_bias; /* dst: or diff_src */
    int64_t outputs, channels, nnz;       /* outputs: of dst in one channel; channels: of the output */
    int64_t image, group;                 /* elements of an image of src, of a group of it */
    int64_t columns;                      /* what a column may be */
    int32_t n, inside, outs;              /* inside, outs: input and output channels of a group */
    int32_t in[3], out[3], size[3];       /* size: of a column's digits */
    int32_t step[3], pad[3], stride[3];   /* step: the distance of one along a digit */
    weft__epilogue epilogue;
} sparse_args;

#ifndef __CUDACC_RTC__
static inline const char *sparse_refusal(const weft_problem *p) {
    const int role = weft__tensor(p, WEFT_ROLE_WEIGHTS) ? WEFT_ROLE_WEIGHTS : WEFT_ROLE_DIFF_WEIGHTS;
    const int data = p->pass == WEFT_PASS_FWD ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST;
    bool last;
    const char *refusal = cuda_dense(p, &last);
    if (refusal) return refusal;
    if (last) return "channels-last";
    if (weft__tensor(p, role)->dtype != weft__tensor(p, data)->dtype) return "data of several types";
    if (p->o > 65535 || p->c > 65535) return "2^16 channels or more";
    double places = (double)(p->c / p->groups), outputs = (double)p->n;
    for (int a = 0; a < 3; a++) {
        const int64_t padded = p->in[a] + p->pad_lo[a] + p->pad_hi[a];
        if (padded > 1 << 24 || p->stride[a] > 1 << 20 || p->dilation[a] > 1 << 20) return "an axis of 2^24 or more";
        places *= (double)padded, outputs *= (double)padded;
    }
    return places >= 1 << 30 || outputs >= 1 << 30 ? "2^30 elements or more of an image" : NULL;
}

/* Clock cycles as nanoseconds. */
static inline double sparse_cycles_ns(const weft__hw *hw, double cycles) {
    return cycles * 0.9 * 256 * hw->gpu->sms / hw->gpu->gflops;
}

/* One output for each thread, `entries` one after the other. Cycles of an entry for a full multiprocessor, more where
 * the outputs of a warp lie in several images of `plane` outputs, and at least the latency; then those of a block's
 * begin. Measured on an H200. */
static inline double sparse_walk_ns(const weft__hw *hw, int64_t outputs, int64_t plane, int64_t channels,
                                    double entries, double latency) {
    const double full = 2048.0 / THREADS * hw->gpu->sms;
    const double waves = ceil((double)(cuda_ceil(outputs, THREADS) * channels) / full);
    const double each = 300 * waves * (1 + 31.0 / (double)plane);
    return sparse_cycles_ns(hw, entries * WEFT__MAX(each, latency) + 3000 * waves);
}

static inline const char *sparse_index_type(const weft_problem *p, int role) {
    return weft__tensor(p, role)->dtype == WEFT_DTYPE_I32 ? "int32_t" : "int64_t";
}

static inline void sparse_defines(const weft_problem *p, weft__text *text) {
    const bool fwd = p->pass == WEFT_PASS_FWD;
    cuda_define_type(p, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, "T", text);
    weft__put(text, " -DDEEP=%d -DROWS_T=%s -DCOLS_T=%s", p->in[0] != 1 || p->kernel[0] != 1 || p->out[0] != 1,
              sparse_index_type(p, WEFT_ROLE_ROWS), sparse_index_type(p, WEFT_ROLE_COLS));
    cuda_define_type(p, fwd ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    if (fwd)
        weft__epilogue_defines(p, text);
    else
        weft__put(text, " -DSTEP0=0 -DSTEP1=0 -DSTEP2=0 -DSTEP3=0");
}

static inline sparse_args sparse_args_of(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool stretched = p->attr[WEFT_SPARSE_STRETCHED], fwd = p->pass == WEFT_PASS_FWD;
    const int64_t *to = fwd ? p->out : p->in;
    sparse_args a = {.src = e->ptr[WEFT_ROLE_SRC],
                     .weights = e->ptr[WEFT_ROLE_WEIGHTS],
                     .rows = e->ptr[WEFT_ROLE_ROWS],
                     .cols = e->ptr[WEFT_ROLE_COLS],
                     .bias = e->ptr[WEFT_ROLE_BIAS],
                     .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                     .dst = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                     .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
                     .diff_bias = e->ptr[WEFT_ROLE_DIFF_BIAS],
                     .outputs = p->n * to[0] * to[1] * to[2],
                     .channels = p->o,
                     .nnz = p->attr[WEFT_SPARSE_NNZ],
                     .group = p->c / p->groups * p->in[0] * p->in[1] * p->in[2],
                     .columns = p->c / p->groups,
                     .n = (int32_t)p->n,
                     .inside = (int32_t)(p->c / p->groups),
                     .outs = (int32_t)(p->o / p->groups)};
    if (fwd) a.epilogue = weft__epilogue_args(p);
    a.image = a.group * p->groups;
    for (int i = 0; i < 3; i++) {
        a.in[i] = (int32_t)p->in[i], a.out[i] = (int32_t)p->out[i];
        a.size[i] = (int32_t)(stretched ? p->in[i] + p->pad_lo[i] + p->pad_hi[i] : p->kernel[i]);
        a.step[i] = stretched ? 1 : (int32_t)p->dilation[i];
        a.pad[i] = (int32_t)p->pad_lo[i], a.stride[i] = (int32_t)p->stride[i];
        a.columns *= a.size[i];
    }
    return a;
}

#else
#include "vec.h"

/* The first entry of row o, or the end of the last. */
static __device__ __forceinline__ int64_t row_begin(const sparse_args &a, int64_t o) {
    const int64_t j = ((const ROWS_T *)a.rows)[o];
    return j < 0 ? 0 : j > a.nnz ? a.nnz : j;
}

/* Where an entry reads: the channel of the group, negative where its column is none, and the distances. */
struct column {
    int channel, z, y, x;
};
static __device__ __forceinline__ column column_of(const sparse_args &a, int64_t j) {
    const int64_t col = ((const COLS_T *)a.cols)[j];
    if (col < 0 || col >= a.columns) return {-1, 0, 0, 0};
    const uint32_t row = (uint32_t)col / a.size[2], plane = row / a.size[1], channel = plane / a.size[0];
    return {(int)channel, (int)(plane - channel * a.size[0]) * a.step[0], (int)(row - plane * a.size[1]) * a.step[1],
            (int)((uint32_t)col - row * a.size[2]) * a.step[2]};
}
#endif

#endif
