/* Gradients of convolution with sparse weights, channels-first, 1D to 3D; f32, f16, bf16.
 * Math:      as in src/ref/sparse_conv.h; products are added in f32, sums of threads in f64, all in a fixed order
 * Blocking:  data: a block has one input channel and THREADS x PIXELS places. It looks at all entries of the group, one
 *            by each thread, keeps those of its channel in shared memory, in their order, and goes over them with all
 *            of its places. Weights: a block has an entry, whose row it finds by bisection, and goes over all outputs.
 *            Bias: a block has an output channel
 * Traffic:   an element of diff_dst, or one of src too, for every product, from L1 and L2
 * Roofline:  instructions: some 10 for each product of the data, 40 of the weights, and the look at the entries
 * Assumes:   all tensors dense channels-first and of one type, less than 2^30 elements of an image
 * Try:       weft bench sparse_conv2d:bwd_data:f32:nchw:n8c256h56w56:o256k3p1nnz58982@cuda */
#include "sparse_conv/sparse.h"

enum { PIXELS = 4, ROOM = 4 * THREADS }; /* ROOM: entries in shared memory */

#ifndef __CUDACC_RTC__
static bool is_biased(const weft_problem *p) { return weft__has_step(p, WEFT_STEP_BIAS); }

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *refusal = sparse_refusal(p);
    (void)variant;
    if (refusal) return refusal;
    if (p->attr[WEFT_SPARSE_NNZ] >= 1 << 30) return "2^30 entries or more";
    const double lanes = 0.5 * hw->gpu->gflops * 0.6, places = (double)(p->n * p->in[0] * p->in[1] * p->in[2]);
    const double entries = (double)p->attr[WEFT_SPARSE_NNZ] / (double)p->groups;
    if (p->pass == WEFT_PASS_BWD_DATA)
        d->ns = cuda_ns(hw, weft__bytes(p), 0.5, 1) +
                (weft__flops(p) / 2 * 10 +
                 (double)p->c * (double)cuda_ceil((int64_t)places, THREADS * PIXELS) * entries * 60) /
                    lanes;
    else
        d->ns = cuda_ns(hw, weft__bytes(p), 0.5, 1 + is_biased(p)) + weft__flops(p) / 2 * 40 / lanes;
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    weft__put(text, "-DUNIT=%d", p->stride[0] == 1 && p->stride[1] == 1 && p->stride[2] == 1);
    sparse_defines(p, text);
}

static weft_status run_data(const weft__exec *e) {
    const sparse_args a = sparse_args_of(e);
    const weft__launch launch = {.grid = {(uint32_t)cuda_ceil(a.outputs, THREADS * PIXELS), (uint32_t)e->p->c, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

static weft_status run_weights(const weft__exec *e) {
    const sparse_args a = sparse_args_of(e);
    const weft__launch entries = {.grid = {(uint32_t)a.nnz, 1, 1}, .block = {THREADS, 1, 1}},
                       channels = {.grid = {(uint32_t)a.channels, 1, 1}, .block = {THREADS, 1, 1}};
    if (a.nnz) WEFT__TRY(weft__cuda_launch(e, 0, &entries, &a));
    return is_biased(e->p) ? weft__cuda_launch(e, 1, &channels, &a) : WEFT_OK;
}

const weft__kernel weft__cuda_sparse_conv_bwd_data = {
    .name = "sparse_conv_bwd_data_nchw__cuda",
    .version = 1,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .dtypes = CUDA_FLOATS,
    .exact = true,
    .plan = plan,
    .run = run_data,
    WEFT__PARTS({"sparse_conv/bwd.cu", "sparse_data", defines, false}),
};

const weft__kernel weft__cuda_sparse_conv_bwd_weights = {
    .name = "sparse_conv_bwd_weights_nchw__cuda",
    .version = 1,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__STEP_SET(BIAS),
    .exact = true,
    .plan = plan,
    .run = run_weights,
    WEFT__PARTS({"sparse_conv/bwd.cu", "sparse_weights", defines, false},
                {"sparse_conv/bwd.cu", "sparse_bias", defines, false}),
};

#else
#include "reduce.h"

/* The row of entry j among rows low .. high - 1: the last that begins at or before it. */
static __device__ __forceinline__ int row_of(const sparse_args &a, int64_t j, int low, int high) {
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (row_begin(a, middle) <= j)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* ---------------------------------------------------------------- data */
/* An entry that reads the block's channel. */
struct entry {
    int o, z, y, x;
    float value;
};

struct place {
    int n, z, y, x; /* n < 0: none */
};
static __device__ __forceinline__ place place_of(const sparse_args &a, int64_t i) {
    const int row = (int)i / a.in[2], plane = row / a.in[1], n = plane / a.in[0];
    return {i < a.outputs ? n : -1, plane - n * a.in[0], row - plane * a.in[1], (int)i - row * a.in[2]};
}

/* The output along an axis that an entry joins to a place; negative: none. */
static __device__ __forceinline__ int joins(const sparse_args &a, int axis, int at, int distance) {
    const int back = at + a.pad[axis] - distance, to = UNIT ? back : back / a.stride[axis];
    return back < 0 || to >= a.out[axis] || (!UNIT && to * a.stride[axis] != back) ? -1 : to;
}

static __device__ __forceinline__ void add_entries(const sparse_args &a, const entry *list, int count,
                                                   const place (&p)[PIXELS], float (&sum)[PIXELS]) {
    for (int i = 0; i < count; i++) {
        const entry e = list[i];
#pragma unroll
        for (int k = 0; k < PIXELS; k++) {
            const int z = DEEP ? joins(a, 0, p[k].z, e.z) : 0, y = joins(a, 1, p[k].y, e.y),
                      x = joins(a, 2, p[k].x, e.x);
            if (p[k].n < 0 || (z | y | x) < 0) continue;
            const int64_t at = (((p[k].n * a.channels + e.o) * a.out[0] + z) * a.out[1] + y) * a.out[2] + x;
            sum[k] = fmaf(widen(((const T *)a.diff_dst)[at]), e.value, sum[k]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_data(const __grid_constant__ sparse_args a) {
    __shared__ entry list[ROOM];
    __shared__ int found[THREADS / 32];
    const int channel = (int)blockIdx.y, group = channel / a.inside, mine = channel - group * a.inside;
    const int low = group * a.outs, lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t first = (int64_t)blockIdx.x * (THREADS * PIXELS) + threadIdx.x, end = row_begin(a, low + a.outs);
    place p[PIXELS];
    float sum[PIXELS] = {};
#pragma unroll
    for (int k = 0; k < PIXELS; k++) p[k] = place_of(a, first + k * THREADS);
    int count = 0;
    for (int64_t begin = row_begin(a, low); begin < end; begin += THREADS) {
        const int64_t j = begin + threadIdx.x;
        const column c = j < end ? column_of(a, j) : column{-1, 0, 0, 0};
        const unsigned votes = __ballot_sync(0xffffffffu, c.channel == mine);
        if (lane == 0) found[warp] = __popc(votes);
        __syncthreads();
        int at = count + __popc(votes & ((1u << lane) - 1));
        for (int i = 0; i < THREADS / 32; i++) {
            if (i < warp) at += found[i];
            count += found[i];
        }
        if (c.channel == mine)
            list[at] = {row_of(a, j, low, low + a.outs), c.z, c.y, c.x, widen(((const T *)a.weights)[j])};
        __syncthreads();
        if (count <= ROOM - THREADS) continue;
        add_entries(a, list, count, p, sum);
        count = 0;
        __syncthreads();
    }
    add_entries(a, list, count, p, sum);
    const int64_t pixels = (int64_t)a.in[0] * a.in[1] * a.in[2];
#pragma unroll
    for (int k = 0; k < PIXELS; k++)
        if (p[k].n >= 0)
            ((T *)a.dst)[p[k].n * a.image + channel * pixels + (first + k * THREADS - p[k].n * pixels)] =
                narrow<T>(sum[k]);
}

/* ---------------------------------------------------------------- weights and bias */
extern "C" __global__ void __launch_bounds__(THREADS) sparse_weights(const __grid_constant__ sparse_args a) {
    __shared__ double scratch[THREADS / 32];
    const int64_t j = blockIdx.x;
    const int o = row_of(a, j, 0, (int)a.channels);
    const column c = column_of(a, j);
    const bool there = row_begin(a, o) <= j && j < row_begin(a, o + 1) && c.channel >= 0;
    const int pixels = a.out[0] * a.out[1] * a.out[2], all = there ? a.n * pixels : 0;
    const T *src = (const T *)a.src + o / a.outs * a.group + (int64_t)c.channel * a.in[0] * a.in[1] * a.in[2];
    float sum = 0;
    for (int i = (int)threadIdx.x; i < all; i += THREADS) {
        const int row = i / a.out[2], plane = row / a.out[1], n = plane / a.out[0];
        const int x = (i - row * a.out[2]) * a.stride[2] - a.pad[2] + c.x,
                  y = (row - plane * a.out[1]) * a.stride[1] - a.pad[1] + c.y,
                  z = (plane - n * a.out[0]) * a.stride[0] - a.pad[0] + c.z;
        if ((unsigned)x >= (unsigned)a.in[2] || (unsigned)y >= (unsigned)a.in[1] || (unsigned)z >= (unsigned)a.in[0])
            continue;
        const int64_t at = ((int64_t)n * a.channels + o) * pixels + (i - n * pixels);
        sum = fmaf(widen(src[n * a.image + ((int64_t)z * a.in[1] + y) * a.in[2] + x]),
                   widen(((const T *)a.diff_dst)[at]), sum);
    }
    const double total = block_all<plus, THREADS>((double)sum, scratch);
    if (threadIdx.x == 0) ((T *)a.diff_weights)[j] = narrow<T>((float)total);
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_bias(const __grid_constant__ sparse_args a) {
    __shared__ double scratch[THREADS / 32];
    const int pixels = a.out[0] * a.out[1] * a.out[2], all = a.n * pixels;
    const T *from = (const T *)a.diff_dst + (int64_t)blockIdx.x * pixels;
    double sum = 0;
    for (int i = (int)threadIdx.x; i < all; i += THREADS) {
        const int n = i / pixels;
        sum += widen(from[(int64_t)n * a.channels * pixels + (i - n * pixels)]);
    }
    sum = block_all<plus, THREADS>(sum, scratch);
    if (threadIdx.x == 0) ((BIAS_T *)a.diff_bias)[blockIdx.x] = narrow<BIAS_T>((float)sum);
}
#endif
