/* The weights of the targets, and the gradients of the logits: the device half of cross_entropy.cu. */
#include "cross_entropy/cross_entropy.h"

/* The sum of the weights of all targets, by blocks. */
extern "C" __global__ void __launch_bounds__(THREADS) weigh(const __grid_constant__ cross_entropy_args a) {
    enum { UNROLL = 8 };
    __shared__ double scratch[THREADS / 32];
    const int64_t step = (int64_t)gridDim.x * THREADS;
    double sum = 0;
    for (int64_t row = (int64_t)blockIdx.x * THREADS + threadIdx.x; row < a.rows; row += UNROLL * step) {
        int64_t label[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (row + u * step < a.rows) label[u] = ((const int64_t *)a.target)[row + u * step];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            if (row + u * step < a.rows) sum += target_as(a, label[u]).weight;
    }
    sum = block_all<plus, THREADS>(sum, scratch);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = {0, sum};
}

/* What the gradient of a mean is divided by; 1 for others. The same in every thread. */
static __device__ __forceinline__ double divisor_of(const cross_entropy_args &a) {
    __shared__ double scratch[THREADS / 32];
    if (REDUCTION != WEFT_CE_MEAN) return 1;
    if (PROBS) return (double)a.rows;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.nsums; i += THREADS) sum += a.sums[i].weight;
    return block_all<plus, THREADS>(sum, scratch);
}

/* The sum of all shares that smoothing gives. */
static __device__ __forceinline__ float smoothed(const cross_entropy_args &a) {
    __shared__ float scratch[THREADS / 32];
    if (PROBS || !SMOOTH) return 0;
    float sum = 0;
    for (int64_t c = threadIdx.x; c < a.channels; c += THREADS) sum += share(a, c, 0);
    __syncthreads();
    return block_all<plus, THREADS>(sum, scratch);
}

struct row_gradient {
    target t;
    float lse, g, own,
        sum; /* g: that of the loss; own: g times the target's share beside smoothing; sum: g times all */
};

static __device__ __forceinline__ row_gradient row_of(const cross_entropy_args &a, int64_t row, const target &t,
                                                      float lse, double divisor, float all) {
    row_gradient r;
    r.t = t;
    r.lse = lse;
    const float g = widen(((const LOSS_T *)a.diff_dst)[REDUCTION == WEFT_CE_NONE ? row : 0]);
    r.g = r.t.ignored ? 0 : REDUCTION == WEFT_CE_MEAN ? (float)(g / divisor) : g;
    const float weight = PROBS ? 0 : SMOOTH ? (1 - a.smooth) * r.t.weight : r.t.weight;
    r.own = r.t.ignored ? 0 : r.g * weight;
    r.sum = r.t.ignored ? 0 : r.own + r.g * all;
    if (!PROBS && !r.t.ignored && !(fabsf(r.g) < INFINITY)) { /* as products that are added up, some of them with 0 */
        r.sum = 0;
        for (int c = 0; c < a.channels; c++) r.sum += r.g * (share(a, c, 0) + (c == r.t.label ? weight : 0));
    }
    return r;
}

static __device__ __forceinline__ void chunk(const cross_entropy_args &a, const walk &w, int k,
                                             const row_gradient (&r)[WIDE]) {
    constexpr int VECTORS = ROWS ? 4 : CHUNK;
    float x[VECTORS][VEC], p[VECTORS][VEC];
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        if (k + j < w.count) {
            fetch(a, w.at + (k + j) * w.step, x[j]);
            if (PROBS) load((const T *)a.target + w.at + (k + j) * w.step, p[j]);
        }
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
        if (k + j < w.count) {
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const row_gradient &row = r[i % WIDE];
                const int c = w.first + (k + j) * w.stride + (ROWS ? i : 0);
                float v = exp_small(x[j][i] - row.lse) * row.sum;
                if ((PROBS || SMOOTH) && !row.t.ignored) v -= row.g * share(a, c, p[j][i]);
                if (!PROBS && (c == row.t.label || (row.t.label < 0 && !row.t.ignored))) v -= row.own;
                x[j][i] = v;
            }
            if (STAGED)
                stage[w.at + (k + j)] = x[j][0];
            else
                store((T *)a.diff_src + w.at + (k + j) * w.step, x[j]);
        }
}

extern "C" __global__ void __launch_bounds__(THREADS) gradients(const __grid_constant__ cross_entropy_args a) {
    const double divisor = divisor_of(a);
    const float all = smoothed(a);
    const int64_t turns = (a.units + THREADS / LANES - 1) / (THREADS / LANES);
    for (int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        if (STAGED) {
            __syncthreads();
            stage_in(a, turn);
            __syncthreads();
        }
        const int64_t unit = unit_of(turn);
        const walk w = walk_of(a, unit);
        row_gradient r[WIDE];
        if (unit < a.units) {
            target t[WIDE];
            float lse[WIDE];
            targets_of(a, w.row, t);
            if (ALIGNED) load(a.lse + w.row, lse);
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                r[i] = row_of(a, w.row + i, t[i], ALIGNED ? lse[i] : a.lse[w.row + i], divisor, all);
        }
        if (PROBS) {
            float sum[WIDE] = {};
            for (int k = 0; k < w.count; k++) {
                float p[VEC];
                load((const T *)a.target + w.at + k * w.step, p);
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    sum[i % WIDE] += r[i % WIDE].g * share(a, w.first + k * w.stride + (ROWS ? i : 0), p[i]);
            }
#pragma unroll
            for (int i = 0; i < WIDE; i++) r[i].sum = row_sum(sum[i]);
        }
        for (int k = 0; k < w.count; k += ROWS ? 4 : CHUNK) chunk(a, w, k, r);
        if (STAGED) {
            __syncthreads();
            stage_out(a, turn);
        }
    }
}
