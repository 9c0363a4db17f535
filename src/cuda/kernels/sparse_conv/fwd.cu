/* Convolution with sparse weights, forward, channels-first, 1D to 3D; f32, f16, bf16.
 * Math:      as in src/ref/sparse_conv.h; products are added in f32, in the order of the entries
 * Blocking:  a block has one output channel and THREADS outputs. THREADS entries of the row at a time are decoded into
 *            shared memory, one by each thread: the offset from a window's first place, the distances that tell whether
 *            it is padding, the value. Then each thread goes over them with its output
 * Traffic:   an element of src for every product, from L1 and L2; dst once
 * Roofline:  L2, then the latency of a load for each entry. Measured on an H200, f32, 90% zeros: 1x64@28 13 us,
 *            8x512@7 140 us (PyTorch's dense convolution 25 us for the first)
 * Assumes:   src and dst dense channels-first and of the type of the weights, less than 2^30 elements of an image
 * Try:       weft bench sparse_conv2d:fwd:f32:nchw:n1c64h28w28:o64k3p1nnz3686@cuda */
#include "sparse_conv/sparse.h"

#ifndef __CUDACC_RTC__
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *refusal = sparse_refusal(p);
    (void)variant;
    if (refusal) return refusal;
    const double entries = (double)p->attr[WEFT_SPARSE_NNZ] / (double)p->o;
    const int64_t plane = p->out[0] * p->out[1] * p->out[2];
    d->ns = cuda_ns(hw, 0, 1, 1) + sparse_walk_ns(hw, p->n * plane, plane, p->o, entries, 376);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    sparse_defines(p, text);
}

static weft_status run(const weft__exec *e) {
    const sparse_args a = sparse_args_of(e);
    const weft__launch launch = {.grid = {(uint32_t)cuda_ceil(a.outputs, THREADS), (uint32_t)e->p->o, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_sparse_conv_fwd = {
    .name = "sparse_conv_fwd_nchw__cuda",
    .version = 2,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__EPILOGUE_STEPS,
    .exact = true,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"sparse_conv/fwd.cu", "sparse_fwd", defines, false}),
};

#else
enum { NOWHERE = 1 << 29 }; /* a distance that leads out of every image */

/* An entry: the offset from a window's first place, the distances along h and w, the value; along d beside it. */
struct entry {
    int offset, y, x;
    float value;
};

static __device__ __forceinline__ entry decode(const sparse_args &a, int64_t j, int &z) {
    const column c = column_of(a, j);
    const float value = widen(((const T *)a.weights)[j]);
    z = c.z;
    if (c.channel < 0) return {0, NOWHERE, 0, value};
    return {((c.channel * a.in[0] + c.z) * a.in[1] + c.y) * a.in[2] + c.x, c.y, c.x, value};
}

/* The window's first place of an output. */
struct window {
    int z, y, x;
    const T *at;
    int64_t dst;
};

static __device__ __forceinline__ window window_of(const sparse_args &a, int o, int output) {
    const int row = output / a.out[2], plane = row / a.out[1], n = plane / a.out[0];
    window w;
    w.x = (output - row * a.out[2]) * a.stride[2] - a.pad[2];
    w.y = (row - plane * a.out[1]) * a.stride[1] - a.pad[1];
    w.z = (plane - n * a.out[0]) * a.stride[0] - a.pad[0];
    w.at = (const T *)a.src + n * a.image + o / a.outs * a.group + (((int64_t)w.z * a.in[1] + w.y) * a.in[2] + w.x);
    const int64_t pixels = (int64_t)a.out[0] * a.out[1] * a.out[2];
    w.dst = ((int64_t)n * a.channels + o) * pixels + (output - n * pixels);
    if (output >= a.outputs) w.y = NOWHERE;
    return w;
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_fwd(const __grid_constant__ sparse_args a) {
    __shared__ __align__(16) entry entries[THREADS];
    __shared__ int deep[DEEP ? THREADS : 1];
    const int o = (int)blockIdx.y, output = (int)(blockIdx.x * THREADS + threadIdx.x);
    const window w = window_of(a, o, output);
    float sum = 0;
    const int64_t end = row_begin(a, o + 1);
    for (int64_t begin = row_begin(a, o); begin < end; begin += THREADS) {
        const int count = (int)min((int64_t)THREADS, end - begin);
        __syncthreads();
        if ((int)threadIdx.x < count) {
            int z;
            entries[threadIdx.x] = decode(a, begin + threadIdx.x, z);
            if (DEEP) deep[DEEP ? threadIdx.x : 0] = z;
        }
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const entry e = entries[i];
            const bool inside = (unsigned)(w.y + e.y) < (unsigned)a.in[1] &&
                                (unsigned)(w.x + e.x) < (unsigned)a.in[2] &&
                                (!DEEP || (unsigned)(w.z + deep[DEEP ? i : 0]) < (unsigned)a.in[0]);
            if (inside) sum = fmaf(widen(w.at[e.offset]), e.value, sum);
        }
    }
    const float bias = weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[o]) : 0;
    if (output < a.outputs) ((T *)a.dst)[w.dst] = narrow<T>(weft__epilogue_apply(a.epilogue, bias, sum));
}
#endif
