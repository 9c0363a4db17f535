/* The reference on the GPU: one item a thread, the same text the CPU reference runs. Both sides read this file: the
 * host for the argument, NVRTC for the kernel, with WEFT_OP_SOURCE and WEFT_OP_ITEM naming the operator's items. */
#ifndef WEFT_CUDA_REF_H
#define WEFT_CUDA_REF_H

#include "weft.h"

typedef struct weft__ref_args {
    weft_problem p;
    void *ptr[WEFT_ROLE_COUNT];
    void *workspace;
    int64_t count; /* items of this phase */
    int64_t phase;
} weft__ref_args;

#ifdef __CUDACC_RTC__
#include WEFT_OP_SOURCE

/* __grid_constant__: items take the problem's address, which would else copy it to every thread's local memory. */
extern "C" __global__ void __launch_bounds__(256) weft_ref(const __grid_constant__ weft__ref_args a) {
    int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += step)
        WEFT_OP_ITEM(&a.p, a.ptr, a.workspace, (int)a.phase, i);
}
#endif

#endif
