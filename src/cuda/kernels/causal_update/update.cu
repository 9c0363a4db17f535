/* The next tokens of a causal convolution: results behind the tokens that a state holds, and the state moved on in
 * place; widths to 128, f32, f16 and bf16 with f32 sums, shifted states and rings, gathered rows, bias and silu.
 * Math:      dst[t] = silu(bias + sum_j w[j] (state, src)[t - (k-1) + j])
 * Blocking:  a thread has VEC channels of one row at a time, and all of their state. One new token behind a short
 *            shifted state: the state passes through registers, read and written once, by 16 bytes where channels of
 *            a state or its tokens lie side by side. Else tokens are read as they are needed
 * Traffic:   state, tokens and results once; weights once for every 4 rows, or more where rows are many
 * Roofline:  L2, where states are warm; a launch for a few rows
 * Assumes:   rows of the state that differ. An index outside of the state is padding: 0, and nothing moves
 * Try:       weft bench causal_update1d:fwd:bf16:ncw:n64c8192w1:k4len3:bias+silu@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 128, SHORT = 16 }; /* SHORT: tokens of a state that fit into registers */
enum { STATE_ANY, STATE_PACKED, STATE_VECTORS };

typedef struct update_view { /* element (n, c, t) is at n * by_n + c * by_c + t * by_t */
    void *at;
    int64_t by_n, by_c, by_t;
} update_view;

typedef struct update_args {
    update_view src, dst, weights, bias, state, lengths, index;
    int64_t n, c, len, rows, w;
} update_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    int vec, state, one; /* one: a single token behind a short shifted state */
    int dense;           /* weights and bias of a thread are whole vectors */
    uint32_t grid[2];
} tile;

static bool side_by_side(const weft_tensor *t, int axis) { return t->dims[axis] < 2 || t->strides[axis] == 1; }

/* Every row and token begins at a multiple of vec elements. */
static bool lies(const weft_tensor *t, int64_t vec) {
    const int64_t size = (int64_t)weft__dtype_size(t->dtype);
    return t->align % (vec * size) == 0 && (t->dims[0] < 2 || t->strides[0] % vec == 0) &&
           (t->dims[4] < 2 || t->strides[4] % vec == 0);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const weft_tensor *src = weft__tensor(p, WEFT_ROLE_SRC), *dst = weft__tensor(p, WEFT_ROLE_DST),
                      *state = weft__tensor(p, WEFT_ROLE_STATE), *weights = weft__tensor(p, WEFT_ROLE_WEIGHTS),
                      *bias = weft__tensor(p, WEFT_ROLE_BIAS);
    const int64_t len = p->attr[WEFT_CAUSAL_LEN], k = p->kernel[2];
    const int64_t full = 16 / (int64_t)weft__dtype_size(src->dtype);
    (void)variant;
    if (k > 128) return "the window is over 128 tokens";
    if (state->dtype != src->dtype || dst->dtype != src->dtype) return "data or a state of several types";
    t->one = p->in[2] == 1 && !p->attr[WEFT_CAUSAL_RING] && len >= 1 && len <= SHORT;
    t->vec = 1;
    t->state = STATE_ANY;
    const bool channels = side_by_side(src, 1) && side_by_side(dst, 1);
    if (channels && t->one && side_by_side(state, 4) && state->strides[1] == len && state->align % 16 == 0 &&
        state->strides[0] % full == 0 && p->c % full == 0 && lies(src, full) && lies(dst, full)) {
        t->state = STATE_PACKED;
        t->vec = (int)full;
    } else if (channels && side_by_side(state, 1)) {
        for (t->vec = (int)full; t->vec > 1; t->vec /= 2)
            if (p->c % t->vec == 0 && lies(src, t->vec) && lies(dst, t->vec) && lies(state, t->vec)) break;
        t->state = STATE_VECTORS;
    }
    t->dense = k <= 8 && weights->align % 16 == 0 && side_by_side(weights, 4) && weights->strides[0] == k &&
               t->vec * k * (int64_t)weft__dtype_size(weights->dtype) % 16 == 0 &&
               (!bias || (bias->align % 16 == 0 && bias->strides[0] == 1 &&
                          t->vec * (int64_t)weft__dtype_size(bias->dtype) % 16 == 0));
    const int64_t across = cuda_ceil(p->c / t->vec, 32);
    const int64_t per =
        WEFT__MAX(WEFT__MIN(p->n * p->c / t->vec >> 16, 8), 1); /* rows of a warp: weights once for all */
    if (across > INT32_MAX) return "2^31 blocks or more";
    t->grid[0] = (uint32_t)across;
    t->grid[1] = (uint32_t)WEFT__MIN(cuda_ceil(p->n, THREADS / 32 * per), 65535);
    d->ns = cuda_ns(hw,
                    weft__bytes(p) * (double)WEFT__MIN(p->n, p->attr[WEFT_CAUSAL_ROWS]) /
                        (double)WEFT__MAX(p->attr[WEFT_CAUSAL_ROWS], 1),
                    0.5, 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    weft__put(text, "-DT=%s -DK=%d -DVEC=%d -DSTATE=%d -DONE=%d -DLEN=%d -DDENSE=%d",
              cuda_type(weft__tensor(p, WEFT_ROLE_SRC)->dtype), (int)p->kernel[2], t->vec, t->state, t->one,
              t->one ? (int)p->attr[WEFT_CAUSAL_LEN] : 1, t->dense);
    weft__put(text, " -DSILU=%d -DBIASED=%d -DRING=%d -DINDEXED=%d", weft__has_step(p, WEFT_STEP_SILU),
              weft__has_step(p, WEFT_STEP_BIAS), p->attr[WEFT_CAUSAL_RING] != 0, p->attr[WEFT_CAUSAL_INDEX] != 0);
    cuda_define_type(p, WEFT_ROLE_WEIGHTS, "WEIGHTS_T", text);
    cuda_define_type(p, WEFT_ROLE_BIAS, "BIAS_T", text);
}

static update_view find(const weft__exec *e, int role) {
    const weft_tensor *t = weft__tensor(e->p, role);
    if (!t) return (update_view){NULL, 0, 0, 0};
    if (t->rank < 5) return (update_view){e->ptr[role], t->strides[0], t->strides[0], 0};
    if (role == WEFT_ROLE_WEIGHTS) return (update_view){e->ptr[role], 0, t->strides[0], t->strides[4]};
    return (update_view){e->ptr[role], t->strides[0], t->strides[1], t->strides[4]};
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    const update_args a = {.src = find(e, WEFT_ROLE_SRC),
                           .dst = find(e, WEFT_ROLE_DST),
                           .weights = find(e, WEFT_ROLE_WEIGHTS),
                           .bias = find(e, WEFT_ROLE_BIAS),
                           .state = find(e, WEFT_ROLE_STATE),
                           .lengths = find(e, WEFT_ROLE_LENGTHS),
                           .index = find(e, WEFT_ROLE_INDEX),
                           .n = e->p->n,
                           .c = e->p->c,
                           .len = e->p->attr[WEFT_CAUSAL_LEN],
                           .rows = e->p->attr[WEFT_CAUSAL_ROWS],
                           .w = e->p->in[2]};
    const weft__launch launch = {.grid = {t->grid[0], t->grid[1], 1}, .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_causal_update = {
    .name = "causal_update__cuda",
    .version = 1,
    .op = WEFT_OP_CAUSAL_UPDATE,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD),
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(SILU),
    .dtypes = CUDA_FLOATS,
    .bound = 2,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"causal_update/update.cu", "causal_update", defines, false}),
};

#else
#include "ptx.h"
#include "vec.h"

enum { UNROLLED = K <= 8, AT_ONCE = UNROLLED ? K : 1 }; /* AT_ONCE: taps in a row */

struct channels { /* VEC of them, from c on: what every row needs */
    int64_t c;
    bool there; /* packed: lanes without channels help to move the others' states */
    float weight[UNROLLED ? K : 1][VEC], bias[VEC];
};

static __device__ __forceinline__ float activate(float z) {
    return SILU ? z * ptx_rcp(1 + ptx_ex2(z * -1.44269504f)) : z;
}

static __device__ __forceinline__ float weight_at(const update_args &a, int64_t c, int64_t j) {
    return widen(((const WEIGHTS_T *)a.weights.at)[c * a.weights.by_c + j * a.weights.by_t]);
}

static __device__ __forceinline__ channels open_channels(const update_args &a, int64_t c) {
    channels o;
    o.c = c;
    if (DENSE && BIASED) {
        load((const BIAS_T *)a.bias.at + c, o.bias);
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++)
            o.bias[i] = BIASED ? widen(((const BIAS_T *)a.bias.at)[(c + i) * a.bias.by_c]) : 0;
    }
    if (DENSE) {
        pack<WEIGHTS_T, DENSE ? VEC * K : 1> w;
        load_raw((const WEIGHTS_T *)a.weights.at + c * K, w);
#pragma unroll
        for (int j = 0; j < K && DENSE; j++)
#pragma unroll
            for (int i = 0; i < VEC; i++) o.weight[UNROLLED ? j : 0][i] = widen(w.v[DENSE ? i * K + j : 0]);
    } else if (UNROLLED) {
#pragma unroll
        for (int j = 0; j < K && UNROLLED; j++)
#pragma unroll
            for (int i = 0; i < VEC; i++) o.weight[UNROLLED ? j : 0][i] = weight_at(a, c + i, j);
    }
    return o;
}

/* VEC channels of one token, as they are; VEC is 1 where channels do not lie side by side. */
static __device__ __forceinline__ T *token_at(const update_view &v, const channels &o, int64_t n, int64_t t) {
    return (T *)v.at + n * v.by_n + o.c * v.by_c + t * v.by_t;
}

/* ---------------------------------------------------------------- one token behind a short state */
/* The state of VEC channels: LEN tokens, token i of channel k at place(k, i). */
enum { PACKED = STATE == STATE_PACKED };
static __device__ constexpr int place(int k, int i) { return PACKED ? k * LEN + i : i * VEC + k; }
struct held {
    T v[VEC * LEN];
};

/* Packed: the states of a warp's channels lie side by side. They are read and written in that order, 16 bytes a lane,
 * and change hands in shared memory. The whole warp calls. */
struct staged {
    uint4 *warp; /* in shared memory */
    int lanes;   /* that have channels */
};
static __device__ __forceinline__ uint4 *packed_at(const update_args &a, const channels &o, int64_t row) {
    return (uint4 *)token_at(a.state, o, row, 0) - (int)threadIdx.x % 32 * LEN;
}

static __device__ __forceinline__ void load_held(const update_args &a, const channels &o, const staged &st, int64_t row,
                                                 held &h) {
    const int lane = (int)threadIdx.x % 32;
    const T *at = token_at(a.state, o, row, 0);
    if (PACKED) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < LEN; i++)
            if (lane + 32 * i < st.lanes * LEN) st.warp[lane + 32 * i] = packed_at(a, o, row)[lane + 32 * i];
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < LEN; i++) {
        pack<T, VEC> p;
        load_raw(PACKED ? (const T *)(st.warp + lane * LEN + i) : at + i * a.state.by_t, p);
#pragma unroll
        for (int k = 0; k < VEC; k++) h.v[i * VEC + k] = p.v[k];
    }
}
static __device__ __forceinline__ void store_held(const update_args &a, const channels &o, const staged &st,
                                                  int64_t row, const held &h) {
    const int lane = (int)threadIdx.x % 32;
    T *at = token_at(a.state, o, row, 0);
#pragma unroll
    for (int i = 0; i < LEN; i++) {
        pack<T, VEC> p;
#pragma unroll
        for (int k = 0; k < VEC; k++) p.v[k] = h.v[i * VEC + k];
        *(typename access<VEC * sizeof(T)>::word *)(PACKED ? (T *)(st.warp + lane * LEN + i) : at + i * a.state.by_t) =
            p.word;
    }
    if (!PACKED) return;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < LEN; i++)
        if (lane + 32 * i < st.lanes * LEN) packed_at(a, o, row)[lane + 32 * i] = st.warp[lane + 32 * i];
}

static __device__ __forceinline__ void one_token(const update_args &a, const channels &o, const staged &st, int64_t n,
                                                 int64_t row) {
    held h;
    pack<T, VEC> x;
    float y[VEC];
    load_raw(o.there ? token_at(a.src, o, n, 0) : (const T *)a.src.at, x);
    load_held(a, o, st, row, h);
#pragma unroll
    for (int k = 0; k < VEC; k++) {
        float z = o.bias[k];
#pragma unroll(AT_ONCE)
        for (int j = 0; j < K - 1; j++)
            z = fmaf(UNROLLED ? o.weight[UNROLLED ? j : 0][k] : weight_at(a, o.c + k, j),
                     widen(h.v[place(k, LEN - (K - 1) + j)]), z);
        z = fmaf(UNROLLED ? o.weight[UNROLLED ? K - 1 : 0][k] : weight_at(a, o.c + k, K - 1), widen(x.v[k]), z);
        y[k] = activate(z);
#pragma unroll
        for (int i = 0; i < LEN; i++) h.v[place(k, i)] = i + 1 < LEN ? h.v[place(k, i + 1 < LEN ? i + 1 : i)] : x.v[k];
    }
    store_held(a, o, st, row, h);
    if (o.there) store(token_at(a.dst, o, n, 0), y);
}

/* ---------------------------------------------------------------- any tokens, any state */
/* Where in the state the token t stands, 0 being the first new one; shifted: before it moves. */
static __device__ __forceinline__ int64_t place_of(const update_args &a, int64_t first, int64_t t) {
    if (!RING) return a.len + t;
    const int64_t at = (first + t % a.len) % a.len;
    return at < 0 ? at + a.len : at;
}

static __device__ __forceinline__ void any_tokens(const update_args &a, const channels &o, int64_t n, int64_t row) {
    const int64_t first = RING ? ((const int *)a.lengths.at)[n * a.lengths.by_n] % a.len : 0;
    for (int64_t t = 0; t < a.w; t++) {
        float z[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) z[k] = o.bias[k];
#pragma unroll(AT_ONCE)
        for (int j = 0; j < K; j++) {
            const int64_t from = t - (K - 1) + j;
            float v[VEC];
            load(from < 0 ? token_at(a.state, o, row, place_of(a, first, from)) : token_at(a.src, o, n, from), v);
#pragma unroll
            for (int k = 0; k < VEC; k++)
                z[k] = fmaf(UNROLLED ? o.weight[UNROLLED ? j : 0][k] : weight_at(a, o.c + k, j), v[k], z[k]);
        }
#pragma unroll
        for (int k = 0; k < VEC; k++) z[k] = activate(z[k]);
        store(token_at(a.dst, o, n, t), z);
    }
    /* from the first place to the last: a shift reads ahead of what it writes */
    for (int64_t i = 0; i < (RING ? a.w : a.len); i++) {
        const int64_t from = RING ? i : i + a.w - a.len;
        pack<T, VEC> v;
        load_raw(from < 0 ? token_at(a.state, o, row, a.len + from) : token_at(a.src, o, n, from), v);
        *(typename access<VEC * sizeof(T)>::word *)token_at(a.state, o, row, RING ? place_of(a, first, i) : i) = v.word;
    }
}

/* A warp has 32 VEC channels of one row; those of a block have the same channels, whose weights come from L1. */
extern "C" __global__ void __launch_bounds__(THREADS) causal_update(const __grid_constant__ update_args a) {
    enum { WARPS = THREADS / 32 };
    __shared__ uint4 stage[PACKED ? WARPS : 1][PACKED ? 32 * LEN : 1];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int64_t first = (int64_t)blockIdx.x * (32 * VEC), c = first + lane * VEC;
    const staged st = {stage[PACKED ? warp : 0], (int)min((int64_t)32, (a.c - first) / VEC)};
    if (!PACKED && c >= a.c) return;
    channels o = open_channels(a, min(c, a.c - VEC));
    o.c = c;
    o.there = c < a.c;
    for (int64_t n = (int64_t)blockIdx.y * WARPS + warp; n < a.n; n += (int64_t)gridDim.y * WARPS) {
        const int64_t row = INDEXED ? ((const int *)a.index.at)[n * a.index.by_n] : n;
        if (row < 0 || row >= a.rows) {
            const float zero[VEC] = {};
            for (int64_t t = 0; t < a.w && o.there; t++) store(token_at(a.dst, o, n, t), zero);
        } else if (ONE) {
            one_token(a, o, st, n, row);
        } else {
            any_tokens(a, o, n, row);
        }
    }
}
#endif
