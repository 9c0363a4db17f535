/* softmax and log-softmax of one element, and of its gradient. For device code only. */
#ifndef WEFT_CUDA_SOFTMAX_H
#define WEFT_CUDA_SOFTMAX_H

#include "vec.h"

/* s: the sum of exp(x - m), or its logarithm. */
static __device__ __forceinline__ float softmax_scale(float sum) { return LOG ? logf(sum) : 1 / sum; }
static __device__ __forceinline__ float softmax_value(float x, float m, float scale) {
    return LOG ? x - m - scale : exp_small(x - m) * scale;
}

/* What is summed over a row, and the gradient with that sum. */
static __device__ __forceinline__ float softmax_term(float y, float dy, float sum) {
    return LOG ? sum + dy : fmaf(y, dy, sum);
}
static __device__ __forceinline__ float softmax_gradient(float y, float dy, float sum) {
    return LOG ? fmaf(-expf(y), sum, dy) : y * (dy - sum);
}

#endif
