/* Losses and log-sum-exps of rows, and their total: the device half of cross_entropy.cu. */
#include "cross_entropy/cross_entropy.h"

/* What the classes of one row add up to: the log-sum-exp, the target's logit, and sums of shares and of share *
 * (logit - base), base the first logit where it is finite. */
struct row_state {
    running lse;
    float own, shares, products, base;
};

static __device__ __forceinline__ void add(const cross_entropy_args &a, row_state &s, const target &t, int c, float x,
                                           float probability) {
    if (c == t.label) s.own = x;
    if (PROBS || SMOOTH) {
        const float part = share(a, c, probability);
        s.shares += part;
        s.products += part * (x - s.base);
    }
}

static __device__ __forceinline__ float loss_of(const cross_entropy_args &a, const row_state &s, const target &t) {
    if (t.ignored) return 0;
    const float log_sum = logf(s.lse.sum);
    float loss = 0;
    if (!PROBS) {
        const float weight = SMOOTH ? (1 - a.smooth) * t.weight : t.weight;
        loss = weight * (t.label < 0 ? NAN : (s.lse.m - s.own) + log_sum);
    }
    return PROBS || SMOOTH ? loss + ((s.lse.m - s.base + log_sum) * s.shares - s.products) : loss;
}

/* The loss by the formula of the reference, where sums of infinite shares gave NaN. */
static __device__ __noinline__ float exact_loss(const cross_entropy_args &a, const running &lse, const target &t,
                                                int64_t at) {
    const int64_t step = ROWS || STAGED ? 1 : a.inner;
    const float log_sum = logf(lse.sum), own = PROBS ? 0 : (1 - a.smooth) * t.weight;
    float loss = 0;
    for (int c = 0; c < a.channels; c++, at += step) {
        const float part = share(a, c, PROBS ? widen(((const T *)a.target)[at]) : 0);
        loss += (part + (c == t.label || (!PROBS && t.label < 0) ? own : 0)) *
                (lse.m - widen(((const T *)a.src)[at]) + log_sum);
    }
    return loss;
}

/* CHUNK classes of WIDE rows, or CHUNK vectors of classes of one row. */
static __device__ __forceinline__ void chunk(const cross_entropy_args &a, const walk &w, int k, row_state (&s)[WIDE],
                                             const target (&t)[WIDE]) {
    constexpr int VECTORS = ROWS ? 2 : CHUNK;
    float x[VECTORS][VEC], p[VECTORS][VEC];
#pragma unroll
    for (int j = 0; j < VECTORS; j++) {
        const int64_t at = w.at + (k + j) * w.step;
        if (k + j < w.count) {
            fetch(a, at, x[j]);
            if (PROBS) load((const T *)a.target + at, p[j]);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++) x[j][i] = -INFINITY;
        }
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        constexpr int MEMBERS = ROWS ? VECTORS * VEC : VECTORS;
        float member[MEMBERS];
#pragma unroll
        for (int j = 0; j < MEMBERS; j++) member[j] = ROWS ? x[j / VEC][j % VEC] : x[j][i];
        s[i].lse = merge(s[i].lse, running_of(member));
    }
#pragma unroll
    for (int j = 0; j < VECTORS; j++)
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (k + j < w.count)
                add(a, s[i % WIDE], t[i % WIDE], w.first + (k + j) * w.stride + (ROWS ? i : 0), x[j][i], p[j][i]);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3) losses(const __grid_constant__ cross_entropy_args a) {
    __shared__ double scratch[2][THREADS / 32];
    const int64_t turns = (a.units + THREADS / LANES - 1) / (THREADS / LANES);
    cross_entropy_sum sum = {0, 0};
    for (int64_t turn = blockIdx.x; turn < turns; turn += gridDim.x) {
        if (STAGED) {
            __syncthreads();
            stage_in(a, turn);
            __syncthreads();
        }
        const int64_t unit = unit_of(turn);
        const bool there = unit < a.units;
        const walk w = walk_of(a, unit);
        row_state s[WIDE];
        target t[WIDE];
        if (there) targets_of(a, w.row, t);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            s[i] = {{-INFINITY, 0}, 0, 0, 0, 0};
            if (!there) continue;
            if (PROBS || SMOOTH) {
                const float x = STAGED ? stage[w.at] : widen(((const T *)a.src)[ROWS ? w.row * a.channels : w.at + i]);
                if (fabsf(x) < INFINITY) s[i].base = x;
            }
        }
        for (int k = 0; k < w.count; k += ROWS ? 2 : CHUNK) chunk(a, w, k, s, t);
        float lse[WIDE];
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            if (ROWS && LANES > 1) {
                s[i].lse =
                    LANES <= 32 ? lanes_merge < LANES <= 32 ? LANES : 32 > (s[i].lse) : block_merge<THREADS>(s[i].lse);
                s[i].own = row_sum(s[i].own);
                if (PROBS || SMOOTH) s[i].shares = row_sum(s[i].shares), s[i].products = row_sum(s[i].products);
            }
            if (!there || threadIdx.x % LANES) continue;
            /* nothing but -infinity: its sum is NaN */
            if (s[i].lse.m == -INFINITY) s[i].lse.sum = NAN;
            float loss = loss_of(a, s[i], t[i]);
            if ((PROBS || SMOOTH) && isnan(loss))
                loss = exact_loss(a, s[i].lse, t[i], ROWS || STAGED ? w.row * a.channels : w.at + i);
            lse[i] = s[i].lse.m + logf(s[i].lse.sum);
            if (!ALIGNED) a.lse[w.row + i] = lse[i];
            if (REDUCTION == WEFT_CE_NONE) ((LOSS_T *)a.dst)[w.row + i] = narrow<LOSS_T>(loss);
            sum.loss += loss;
            sum.weight += t[i].weight;
        }
        if (ALIGNED && there && threadIdx.x % LANES == 0) store(a.lse + w.row, lse);
    }
    if (REDUCTION == WEFT_CE_NONE) return;
    sum.loss = block_all<plus, THREADS>(sum.loss, scratch[0]);
    sum.weight = block_all<plus, THREADS>(sum.weight, scratch[1]);
    if (threadIdx.x == 0) a.sums[blockIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) total(const __grid_constant__ cross_entropy_args a) {
    __shared__ double scratch[2][THREADS / 32];
    cross_entropy_sum sum = {0, 0};
    for (int64_t i = threadIdx.x; i < a.nsums; i += THREADS) {
        sum.loss += a.sums[i].loss;
        sum.weight += a.sums[i].weight;
    }
    sum.loss = block_all<plus, THREADS>(sum.loss, scratch[0]);
    sum.weight = block_all<plus, THREADS>(sum.weight, scratch[1]);
    if (threadIdx.x == 0)
        ((LOSS_T *)a.dst)[0] = narrow<LOSS_T>((float)(REDUCTION == WEFT_CE_MEAN ? sum.loss / sum.weight : sum.loss));
}
