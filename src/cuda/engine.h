/* The CUDA engine inside: devices and loaded code are the process's, a weft__cuda is one context's view of them. */
#ifndef WEFT_CUDA_ENGINE_H
#define WEFT_CUDA_ENGINE_H

#include "cuda/driver.h"

struct weft__cuda {
    const weft_ctx *ctx; /* options, log and allocator */
    const weft__driver *driver;
};

/* The primary context of a device, which PyTorch and the CUDA runtime use too. Retained on first use, kept. */
weft_status weft__cuda_context(weft__cuda *cuda, int ordinal, CUcontext *context);
/* Make a context current; *pushed: weft__cuda_leave must take it off again. */
weft_status weft__cuda_enter(const weft__driver *d, CUcontext context, bool *pushed);
void weft__cuda_leave(const weft__driver *d, bool pushed);

#endif
