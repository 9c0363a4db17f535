/* Gradients of convolution with sparse weights, channels-first, 1D to 3D; f32, f16, bf16.
 * Math:      as in src/ref/sparse_conv.h; products are added in f32, sums of threads in f64, all in a fixed order
 * Blocking:  data: two launches sort the entries by input channel into the workspace (sort.h). Then a block has one
 *            input channel and THREADS places, and goes over the channel's entries through shared memory, as the
 *            forward pass does over those of a row.
 *            Weights: a block has MANY entries and goes over all outputs; what a thread knows of an output serves all
 *            entries, and diff_dst too where they are of one row. Bias: a block has an output channel
 * Traffic:   an element of diff_dst, or one of src too, for every product, from L1 and L2
 * Roofline:  instructions: some 10 for each product
 * Assumes:   all tensors dense channels-first and of one type, less than 2^30 elements of an image
 * Try:       weft bench sparse_conv2d:bwd_data:f32:nchw:n8c256h56w56:o256k3p1nnz58982@cuda */
#include "sparse_conv/sort.h"

enum { MANY = 8, WARPS = THREADS / 32 };

/* An entry of an input channel, in the workspace: what is added to a place's position in diff_dst, the negative
 * distances along h and w, the value; along d beside it. */
typedef struct entry {
    int32_t at, y, x;
    float value;
} entry;

/* The entries of a channel: begin .. end - 1. */
typedef struct range {
    int32_t begin, end;
} range;

typedef struct lists {
    entry *entries;
    range *ranges;
    int32_t *deep;
} lists;

typedef struct data_args {
    sort_args s;
    lists l;
} data_args;

#ifndef __CUDACC_RTC__
static bool is_biased(const weft_problem *p) { return weft__has_step(p, WEFT_STEP_BIAS); }

static const char *refusal_of(const weft_problem *p) {
    const char *refusal = sparse_refusal(p);
    if (refusal) return refusal;
    if (p->attr[WEFT_SPARSE_NNZ] >= 1 << 30) return "2^30 entries or more";
    double in = (double)p->c, out = (double)p->o;
    for (int i = 0; i < 3; i++) in *= (double)p->in[i], out *= (double)p->out[i];
    return in >= 1 << 30 || out >= 1 << 30 ? "2^30 elements or more of an image" : NULL;
}

static const char *plan_data(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *refusal = refusal_of(p);
    (void)variant;
    if (refusal) return refusal;
    const int64_t plane = p->in[0] * p->in[1] * p->in[2], nnz = p->attr[WEFT_SPARSE_NNZ];
    d->workspace = (size_t)nnz * (sizeof(entry) + sizeof(int32_t)) + (size_t)p->c * sizeof(range) + sort_bytes(p);
    d->ns = cuda_ns(hw, 0, 1, 1) + sort_ns(p, hw) +
            sparse_walk_ns(hw, p->n * plane, plane, p->c, (double)nnz / (double)p->c, 210);
    return NULL;
}

static const char *plan_weights(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *refusal = refusal_of(p);
    (void)variant;
    if (refusal) return refusal;
    const int64_t outputs = p->n * p->out[0] * p->out[1] * p->out[2];
    const double blocks = (double)cuda_ceil(p->attr[WEFT_SPARSE_NNZ], MANY); /* cycles: to find rows, for an output */
    d->ns = cuda_ns(hw, 0, 1, 1 + is_biased(p)) +
            sparse_cycles_ns(hw, blocks / hw->gpu->sms * (1700 + 470.0 * (double)cuda_ceil(outputs, THREADS)));
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    weft__put(text, "-DUNIT=%d", p->stride[0] == 1 && p->stride[1] == 1 && p->stride[2] == 1);
    sparse_defines(p, text);
}

static weft_status run_data(const weft__exec *e) {
    const sparse_args a = sparse_args_of(e);
    data_args d = {.l = {.entries = e->workspace}};
    d.l.ranges = (range *)(d.l.entries + a.nnz);
    d.l.deep = (int32_t *)(d.l.ranges + e->p->c);
    const weft__launch sort = sort_launch(e->p),
                       launch = {.grid = {(uint32_t)cuda_ceil(a.outputs, THREADS), (uint32_t)e->p->c, 1},
                                 .block = {THREADS, 1, 1}};
    WEFT__TRY(sort_count(e, &a, d.l.deep + a.nnz, &d.s));
    WEFT__TRY(weft__cuda_launch(e, 1, &sort, &d));
    return weft__cuda_launch(e, 2, &launch, &d);
}

static weft_status run_weights(const weft__exec *e) {
    const sparse_args a = sparse_args_of(e);
    const weft__launch entries = {.grid = {(uint32_t)cuda_ceil(a.nnz, MANY), 1, 1}, .block = {THREADS, 1, 1}},
                       channels = {.grid = {(uint32_t)a.channels, 1, 1}, .block = {THREADS, 1, 1}};
    if (a.nnz) WEFT__TRY(weft__cuda_launch(e, 0, &entries, &a));
    return is_biased(e->p) ? weft__cuda_launch(e, 1, &channels, &a) : WEFT_OK;
}

const weft__kernel weft__cuda_sparse_conv_bwd_data = {
    .name = "sparse_conv_bwd_data_nchw__cuda",
    .version = 4,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .dtypes = CUDA_FLOATS,
    .exact = true,
    .plan = plan_data,
    .run = run_data,
    WEFT__PARTS({"sparse_conv/bwd.cu", "sparse_count", defines, false},
                {"sparse_conv/bwd.cu", "sparse_sort", defines, false},
                {"sparse_conv/bwd.cu", "sparse_data", defines, false}),
};

const weft__kernel weft__cuda_sparse_conv_bwd_weights = {
    .name = "sparse_conv_bwd_weights_nchw__cuda",
    .version = 3,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__STEP_SET(BIAS),
    .exact = true,
    .plan = plan_weights,
    .run = run_weights,
    WEFT__PARTS({"sparse_conv/bwd.cu", "sparse_weights", defines, false},
                {"sparse_conv/bwd.cu", "sparse_bias", defines, false}),
};

#else
#include "reduce.h"

enum { NOWHERE = 1 << 29 }; /* a distance that leads out of every image */
enum { AHEAD = 8 };         /* entries whose loads are on the way together */
static_assert(THREADS % AHEAD == 0, "whole batches");

static __device__ __forceinline__ int outputs_of(const sparse_args &a) { return a.out[0] * a.out[1] * a.out[2]; }

/* ---------------------------------------------------------------- data */
/* The entries of each channel of the input, in their order. */
extern "C" __global__ void __launch_bounds__(THREADS) sparse_sort(const __grid_constant__ data_args d) {
    const sparse_args &a = d.s.a;
    const auto put = [&](int row, int j, int at) {
        const column c = column_of(a, j);
        const int back = UNIT ? (c.z * a.out[1] + c.y) * a.out[2] + c.x : 0;
        d.l.entries[at] = {row * outputs_of(a) - back, -c.y, -c.x, widen(((const T *)a.weights)[j])};
        if (DEEP) d.l.deep[at] = -c.z;
    };
    sort_entries(d.s, put,
                 [&](int channel, int begin, int end) { d.l.ranges[blockIdx.y * a.inside + channel] = {begin, end}; });
}

struct place {
    int z, y, x;
    const T *from; /* diff_dst of the output that a distance of 0 leads to; else of the image */
};
static __device__ __forceinline__ place place_of(const sparse_args &a, int64_t i) {
    const int row = (int)i / a.in[2], plane = row / a.in[1], n = plane / a.in[0];
    place p = {plane - n * a.in[0] + a.pad[0], row - plane * a.in[1] + a.pad[1], (int)i - row * a.in[2] + a.pad[2]};
    p.from = (const T *)a.diff_dst + n * a.channels * outputs_of(a);
    if (UNIT) p.from += ((int64_t)p.z * a.out[1] + p.y) * a.out[2] + p.x;
    if (i >= a.outputs) p.y = NOWHERE;
    return p;
}

/* Whether `back` steps lead to an output along an axis, which it is then. */
static __device__ __forceinline__ bool leads(const sparse_args &a, int axis, int &back) {
    if (UNIT) return (unsigned)back < (unsigned)a.out[axis];
    const int to = back / a.stride[axis];
    const bool is = back >= 0 && to < a.out[axis] && to * a.stride[axis] == back;
    back = to;
    return is;
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_data(const __grid_constant__ data_args d) {
    __shared__ __align__(16) entry entries[THREADS];
    __shared__ int deep[DEEP ? THREADS : 1];
    const sparse_args &a = d.s.a;
    const int channel = (int)blockIdx.y;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    range all = d.l.ranges[channel];
    all.begin = max(all.begin, 0), all.end = min(all.end, (int)a.nnz); /* rows in no order */
    const place p = place_of(a, i);
    float sum = 0;
    for (int begin = all.begin; begin < all.end; begin += THREADS) {
        const int count = min((int)THREADS, all.end - begin);
        __syncthreads();
        if ((int)threadIdx.x < count) {
            entries[threadIdx.x] = d.l.entries[begin + threadIdx.x];
            if (DEEP) deep[DEEP ? threadIdx.x : 0] = d.l.deep[begin + threadIdx.x];
        }
        __syncthreads();
        for (int k = 0; k < count; k += AHEAD) {
            float v[AHEAD], value[AHEAD];
            bool there[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const entry e = entries[k + u];
                int z = DEEP ? p.z + deep[DEEP ? k + u : 0] : 0, y = p.y + e.y, x = p.x + e.x;
                there[u] = k + u < count && leads(a, 1, y) && leads(a, 2, x) && (!DEEP || leads(a, 0, z));
                v[u] = there[u] ? widen(p.from[UNIT ? e.at : e.at + (z * a.out[1] + y) * a.out[2] + x]) : 0;
                value[u] = e.value;
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                if (there[u]) sum = fmaf(v[u], value[u], sum);
        }
    }
    const int64_t pixels = (int64_t)a.in[0] * a.in[1] * a.in[2], n = (int)i / (int)pixels;
    if (i < a.outputs) ((T *)a.dst)[n * a.image + channel * pixels + (i - n * pixels)] = narrow<T>(sum);
}

/* ---------------------------------------------------------------- weights and bias */
/* The row of entry j: the last that begins at or before it. */
static __device__ __forceinline__ int row_of(const sparse_args &a, int64_t j) {
    int low = 0, high = (int)a.channels;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (row_begin(a, middle) <= j)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The entries of a block: what is added to an output's first place in src, and the distances; their outputs. */
struct work {
    int at[MANY], z[MANY], y[MANY], x[MANY], outputs[MANY];
};

/* A thread looks for each; all have them then. */
static __device__ __forceinline__ work work_of(const sparse_args &a, int64_t first) {
    __shared__ work all;
    const int k = (int)threadIdx.x;
    if (k < MANY) {
        const int64_t j = min(first + k, a.nnz - 1);
        const int o = row_of(a, j);
        const column c = column_of(a, j);
        const bool there = row_begin(a, o) <= j && j < row_begin(a, o + 1) && c.channel >= 0;
        all.at[k] = (int)(o / a.outs * a.group) + ((c.channel * a.in[0] + c.z) * a.in[1] + c.y) * a.in[2] + c.x;
        all.z[k] = c.z, all.y[k] = there ? c.y : NOWHERE, all.x[k] = c.x;
        all.outputs[k] = o * outputs_of(a);
    }
    __syncthreads();
    return all;
}

/* An output, and the way to the one THREADS further. */
struct walk {
    int x, y, z, n;
};
static __device__ __forceinline__ walk walk_at(const sparse_args &a, int i) {
    const int row = i / a.out[2], plane = row / a.out[1], n = plane / a.out[0];
    return {i - row * a.out[2], row - plane * a.out[1], plane - n * a.out[0], n};
}
static __device__ __forceinline__ void go(const sparse_args &a, const walk &step, walk &w) {
    w.x += step.x, w.y += step.y, w.z += step.z, w.n += step.n;
    if (w.x >= a.out[2]) w.x -= a.out[2], w.y++;
    if (w.y >= a.out[1]) w.y -= a.out[1], w.z++;
    if (w.z >= a.out[0]) w.z -= a.out[0], w.n++;
}

/* ONE: all entries are of one row. */
template <bool ONE>
static __device__ __forceinline__ void add_up(const sparse_args &a, const work &w, float (&sum)[MANY]) {
    const int pixels = outputs_of(a), all = a.n * pixels;
    const walk step = walk_at(a, THREADS);
    walk o = walk_at(a, (int)threadIdx.x);
    for (int i = (int)threadIdx.x; i < all; i += THREADS, go(a, step, o)) {
        const int x = o.x * a.stride[2] - a.pad[2], y = o.y * a.stride[1] - a.pad[1], z = o.z * a.stride[0] - a.pad[0];
        const T *src = (const T *)a.src + o.n * a.image + ((z * a.in[1] + y) * a.in[2] + x);
        const T *diff_dst = (const T *)a.diff_dst + o.n * (a.channels - 1) * pixels + i;
        const float only = ONE ? widen(diff_dst[w.outputs[0]]) : 0;
#pragma unroll
        for (int k = 0; k < MANY; k++) {
            const bool inside = (unsigned)(y + w.y[k]) < (unsigned)a.in[1] &&
                                (unsigned)(x + w.x[k]) < (unsigned)a.in[2] &&
                                (!DEEP || (unsigned)(z + w.z[k]) < (unsigned)a.in[0]);
            if (inside) sum[k] = fmaf(widen(src[w.at[k]]), ONE ? only : widen(diff_dst[w.outputs[k]]), sum[k]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_weights(const __grid_constant__ sparse_args a) {
    __shared__ double scratch[WARPS][MANY];
    const int64_t first = (int64_t)blockIdx.x * MANY;
    const work w = work_of(a, first);
    float sum[MANY] = {};
    bool one = true;
#pragma unroll
    for (int k = 1; k < MANY; k++) one = one && w.outputs[k] == w.outputs[0];
    if (one)
        add_up<true>(a, w, sum);
    else
        add_up<false>(a, w, sum);
#pragma unroll
    for (int k = 0; k < MANY; k++) {
        const double all = lanes_all<plus, 32>((double)sum[k]);
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32][k] = all;
    }
    __syncthreads();
    const int64_t j = first + threadIdx.x;
    if (threadIdx.x >= MANY || j >= a.nnz) return;
    double total = scratch[0][threadIdx.x];
    for (int i = 1; i < WARPS; i++) total += scratch[i][threadIdx.x];
    ((T *)a.diff_weights)[j] = narrow<T>((float)total);
}

extern "C" __global__ void __launch_bounds__(THREADS) sparse_bias(const __grid_constant__ sparse_args a) {
    __shared__ double scratch[THREADS / 32];
    const int pixels = outputs_of(a), all = a.n * pixels;
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
