/* NCReLU and its gradient; f32, f16, bf16; both layouts.
 * Math:      dst[:C] = max(x, 0), dst[C:] = min(x, 0); diff_src = x >= 0 ? diff_dst[:C] : diff_dst[C:]
 * Blocking:  16 bytes of src a thread, which is faster than twice as many; halves of dst lie one chunk apart (c d h w
 *            channels-first, c channels-last)
 * Traffic:   src once, dst once
 * Roofline:  bandwidth. Measured on an H200: 64x256x56x56 f32 4.1 TB/s forward, 4.3 backward
 * Assumes:   all tensors dense in one order
 * Try:       weft bench ncrelu2d:fwd:f32:nchw:n64c256h56w56@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 256 };

typedef struct ncrelu_args {
    const void *src;
    void *wide, *diff_src;  /* wide: dst, diff_dst */
    int64_t vectors, chunk; /* chunk: vectors of one half of dst that lie together */
} ncrelu_args;

#ifndef __CUDACC_RTC__
static int64_t chunk_of(const weft_problem *p) {
    cuda_data d;
    cuda_data_of(p, &d);
    return d.channels * d.inner;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    cuda_data data;
    (void)variant;
    d->ns = cuda_ns(hw, weft__bytes(p), 0.85, 1);
    return cuda_data_of(p, &data);
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *t) {
    (void)hw, (void)params;
    cuda_defines(p, cuda_vec(p, chunk_of(p)), t);
    weft__put(t, " -DBWD=%d", p->pass != WEFT_PASS_FWD);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t chunk = chunk_of(p), vec = cuda_vec(p, chunk);
    const ncrelu_args a = {e->ptr[WEFT_ROLE_SRC], e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_DST],
                           e->ptr[WEFT_ROLE_DIFF_SRC], weft__numel(weft__tensor(p, WEFT_ROLE_SRC)) / vec, chunk / vec};
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(cuda_ceil(a.vectors, THREADS), 1 << 30), 1, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_ncrelu = {
    .name = "ncrelu_16b__cuda",
    .version = 1,
    .op = WEFT_OP_NCRELU,
    .engine = WEFT_ENGINE_CUDA,
    .dtypes = CUDA_FLOATS,
    .exact = true,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"ncrelu/ncrelu.cu", "ncrelu", defines, false}),
};

#else
#include "vec.h"

/* Vector i of src, x, and its two places in the wide tensor, in elements. */
static __device__ __forceinline__ void one(const ncrelu_args &a, INDEX i, const float (&x)[VEC]) {
    const INDEX chunk = (INDEX)a.chunk;
    T *first = (T *)a.wide + ((int64_t)i + i / chunk * chunk) * VEC, *second = first + a.chunk * VEC;
    float positive[VEC], negative[VEC];
    if (BWD) {
        load(first, positive);
        load(second, negative);
#pragma unroll
        for (int k = 0; k < VEC; k++)
            positive[k] = x[k] >= 0 ? positive[k] : x[k] < 0 ? negative[k] : positive[k] + negative[k];
        store((T *)a.diff_src + (int64_t)i * VEC, positive);
    } else {
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            positive[k] = x[k] < 0 ? 0 : x[k];
            negative[k] = x[k] > 0 ? 0 : x[k];
        }
        store(first, positive);
        store(second, negative);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) ncrelu(const __grid_constant__ ncrelu_args a) {
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.vectors; i += step) {
        float x[VEC];
        load((const T *)a.src + i * VEC, x);
        one(a, (INDEX)i, x);
    }
}
#endif
