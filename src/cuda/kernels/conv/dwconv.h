/* What the depthwise 3x3 kernels of the CUDA engine share on the host. */
#ifndef WEFT_CUDA_DWCONV_H
#define WEFT_CUDA_DWCONV_H

#ifndef __CUDACC_RTC__
#include "core/internal.h"

static inline int64_t dwconv_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* f32, 3x3, stride and dilation 1, one filter a channel, padding up to 2, sizes that 32 bits count; NULL or the
 * reason. */
static inline const char *dwconv_refusal(const weft_problem *p, int pass, const weft__gpu *gpu) {
    if (p->pass != pass) return "another pass";
    if (!weft__all_dtype(p, WEFT_DTYPE_F32)) return "a tensor is not f32";
    if (p->groups != p->c || p->o != p->c) return "not depthwise with one filter a channel";
    if (p->in[0] != 1 || p->kernel[0] != 1 || p->out[0] != 1 || p->pad_lo[0]) return "three spatial axes";
    for (int a = 1; a < 3; a++) {
        if (p->kernel[a] != 3 || p->stride[a] != 1 || p->dilation[a] != 1)
            return "not a 3x3 kernel with stride and dilation 1";
        if (p->pad_lo[a] > 2 || p->pad_hi[a] > 2) return "padding over 2";
        if (p->in[a] > 1 << 30) return "an image side over 2^30";
    }
    if (p->n < 1 || p->in[1] < 1 || p->in[2] < 1) return "an empty tensor";
    if (p->n > INT32_MAX / p->c) return "2^31 planes or more";
    if (gpu->cc < 75) return "compute capability below 7.5";
    return NULL;
}
#endif

#endif
