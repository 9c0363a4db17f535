/* Local response normalisation across channels and its gradient; f32, f16, bf16; both layouts.
 * Math:      q_c = k + alpha / size * sum of x_j^2 over the window of c; dst_c = x_c / q_c^beta
 *            diff_src_c = dy_c / q_c^beta - 2 alpha beta / size * x_c * sum of dy_j x_j / q_j^(beta+1) over the j whose
 *            window holds c. See src/ref/lrn.h. Each window is summed anew: a running sum would never lose an infinity
 * Blocking:  channels-first: a thread goes through a chunk of channels of VEC pixels; what a window needs waits in a
 *            ring of registers, and the next ring is under way. Channels-last: a thread has VEC channels of a pixel and
 *            reads those around them; in the gradient the terms of neighbours come through shared memory, and H
 *            threads at either end of a block make terms only
 * Traffic:   each tensor once from memory; the channels around a chunk, or a vector, again from the caches
 * Roofline:  bandwidth. Measured on an H200, 64x256x56x56 f32, size 5: channels-first 3.4 TB/s forward, 3.7 backward;
 *            channels-last 3.9, 3.7. Wider vectors of pixels were slower: 2.6 forward
 * Assumes:   all tensors dense in one order, windows of up to 16 channels (channels-first) or 32 (channels-last)
 * Try:       weft bench lrn2d:fwd:f32:nchw:n64c256h56w56:size5@cuda lrn2d:bwd:f32:nhwc:n64c256h56w56:size5@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 128, CHUNK = 64, RING_MOST = 16, AROUND_MOST = 32 };

typedef struct lrn_args {
    const void *src, *diff_dst;
    void *out;
    int64_t outer, channels, inner; /* channels in vectors where they lie together, else inner is */
    int64_t chunks;
    float k, alpha, beta, slope;
} lrn_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    cuda_data d;
    int vec, before, after, around; /* channels of a window before and after its own; vectors of it, channels-last */
} tile;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = cuda_data_of(p, &t->d);
    (void)variant;
    const int64_t size = p->attr[WEFT_LRN_SIZE], most = p->c - 1;
    const bool last = t->d.inner == 1, bwd = p->pass != WEFT_PASS_FWD;
    if (refusal) return refusal;
    if (WEFT__MIN(size, 2 * most + 1) > (last ? AROUND_MOST : RING_MOST)) return "a window of too many channels";
    t->before = (int)WEFT__MIN(size / 2, most), t->after = (int)WEFT__MIN((size - 1) / 2, most);
    t->vec = cuda_vec(p, last ? t->d.channels : t->d.inner);
    const int rows = t->before + t->after + 1; /* of the ring: its vectors take registers */
    if (!last)
        t->vec = (int)WEFT__MIN(t->vec, bwd ? (rows <= 7 ? 2 : 1) : 4 / (int)weft__dtype_size(p->tensor[0].dtype));
    t->around = last ? (int)cuda_ceil(WEFT__MAX(t->before, t->after), t->vec) : 0;
    d->ns = cuda_ns(hw, weft__bytes(p), 0.75, 1);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    const double beta = p->real[WEFT_LRN_BETA];
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(text, " -DBEFORE=%d -DAFTER=%d -DLAST=%d -DH=%d -DBWD=%d -DROOTS=%d", t->before, t->after,
              t->d.inner == 1, t->around, p->pass != WEFT_PASS_FWD,
              beta == 0.75  ? 2
              : beta == 0.5 ? 1
              : beta == 1   ? 0
                            : 3);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const tile *t = e->params;
    const bool last = t->d.inner == 1, fwd = p->pass == WEFT_PASS_FWD;
    const double alpha = p->real[WEFT_LRN_ALPHA] / (double)p->attr[WEFT_LRN_SIZE], beta = p->real[WEFT_LRN_BETA];
    lrn_args a = {.src = e->ptr[WEFT_ROLE_SRC],
                  .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                  .out = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                  .outer = t->d.outer,
                  .channels = last ? t->d.channels / t->vec : t->d.channels,
                  .inner = last ? 1 : t->d.inner / t->vec,
                  .chunks = cuda_ceil(t->d.channels, CHUNK),
                  .k = (float)p->real[WEFT_LRN_K],
                  .alpha = (float)alpha,
                  .beta = (float)beta,
                  .slope = (float)(2 * alpha * beta)};
    const int64_t units =
        last ? cuda_ceil(a.outer * a.channels, THREADS - 2 * t->around) * THREADS : a.outer * a.chunks * a.inner;
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(cuda_ceil(units, THREADS), 1 << 30), 1, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_lrn = {
    .name = "lrn_ring__cuda",
    .version = 1,
    .op = WEFT_OP_LRN,
    .engine = WEFT_ENGINE_CUDA,
    .dtypes = CUDA_FLOATS,
    .bound = 4,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"lrn/lrn.cu", "lrn", defines, false}),
};

#else
#include "vec.h"

enum { ROWS = BEFORE + AFTER + 1 };

/* q^-beta and 1 / q. */
struct powers {
    float beta, one;
};

static __device__ __forceinline__ powers powers_of(const lrn_args &a, float squares) {
    const float q = fmaf(a.alpha, squares, a.k), root = rsqrtf(q);
    if (ROOTS == 0) return {1 / q, 1 / q};
    if (ROOTS == 1) return {root, root * root};
    if (ROOTS == 2) return {root * ptx_sqrt(root), root * root};
    return {powf(q, -a.beta), 1 / q};
}

/* ---------------------------------------------------------------- channels-first */
enum { STEPS = ROWS < 4 ? (4 + ROWS - 1) / ROWS * ROWS : ROWS }; /* channels loaded together: whole rings */
enum { LEAD = BWD ? BEFORE + AFTER : BEFORE, TRAIL = BWD ? BEFORE + AFTER : AFTER };

/* Of channel c slot c % ROWS has x; dy, and once its window is complete dy / q^beta; and the term that goes to its
 * neighbours. */
struct ring {
    float x[ROWS][VEC], own[ROWS][VEC], term[ROWS][VEC];
};

static __device__ __forceinline__ void fetch(const lrn_args &a, int64_t at, int channel, int end,
                                             pack<T, VEC> (&x)[STEPS], pack<T, VEC> (&dy)[STEPS]) {
#pragma unroll
    for (int u = 0; u < STEPS; u++) {
        if (channel + u < 0 || channel + u >= end) continue;
        const int64_t from = at + (channel + u) * a.inner * VEC;
        load_raw((const T *)a.src + from, x[u]);
        if (BWD) load_raw((const T *)a.diff_dst + from, dy[u]);
    }
}

/* Channel c = j - AFTER has all of its window: slot j is the newest. */
template <int J> static __device__ __forceinline__ void complete(const lrn_args &a, ring &r, int c, float (&y)[VEC]) {
    constexpr int C = (J + ROWS - AFTER) % ROWS;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float squares = 0;
#pragma unroll
        for (int k = 1; k <= ROWS; k++) squares = fmaf(r.x[(J + k) % ROWS][i], r.x[(J + k) % ROWS][i], squares);
        const powers q = powers_of(a, squares);
        const bool there = c >= 0 && c < a.channels;
        if (!BWD) y[i] = r.x[C][i] * q.beta;
        if (BWD) r.own[C][i] *= q.beta;
        if (BWD) r.term[C][i] = there ? r.own[C][i] * r.x[C][i] * q.one : 0;
    }
}

/* Channel b = c - BEFORE has the terms of all windows that hold it. */
template <int J> static __device__ __forceinline__ void collect(const lrn_args &a, const ring &r, float (&y)[VEC]) {
    constexpr int B = (J + 1) % ROWS;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float terms = 0;
#pragma unroll
        for (int k = 1; k <= ROWS; k++) terms += r.term[(J + ROWS - AFTER + k) % ROWS][i];
        y[i] = fmaf(-a.slope * r.x[B][i], terms, r.own[B][i]);
    }
}

template <int U> struct step {
    static __device__ __forceinline__ void run(const lrn_args &a, ring &r, int64_t at, int j, int lo, int hi,
                                               const pack<T, VEC> (&x)[STEPS], const pack<T, VEC> (&dy)[STEPS]) {
        constexpr int J = U % ROWS;
        const bool there = j + U >= 0 && j + U < a.channels;
        float y[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            r.x[J][i] = there ? widen(x[U].v[i]) : 0;
            if (BWD) r.own[J][i] = there ? widen(dy[U].v[i]) : 0;
        }
        complete<J>(a, r, j + U - AFTER, y);
        const int out = j + U - TRAIL;
        if (BWD) collect<J>(a, r, y);
        if (out >= lo && out < hi) store((T *)a.out + at + out * a.inner * VEC, y);
        step<U + 1>::run(a, r, at, j, lo, hi, x, dy);
    }
};
template <> struct step<STEPS> {
    static __device__ __forceinline__ void run(const lrn_args &, ring &, int64_t, int, int, int,
                                               const pack<T, VEC> (&)[STEPS], const pack<T, VEC> (&)[STEPS]) {}
};

static __device__ __forceinline__ void lrn_first(const lrn_args &a) {
    const int64_t units = a.outer * a.chunks * a.inner, inner = a.inner;
    for (int64_t unit = (int64_t)blockIdx.x * THREADS + threadIdx.x; unit < units;
         unit += (int64_t)gridDim.x * THREADS) {
        const INDEX row = (INDEX)unit / (INDEX)inner, n = row / (INDEX)a.chunks;
        const int64_t at = (n * a.channels * inner + ((INDEX)unit - row * (INDEX)inner)) * VEC;
        const int lo = (int)(row - n * (INDEX)a.chunks) * CHUNK, hi = min(lo + CHUNK, (int)a.channels);
        pack<T, VEC> x[STEPS], dy[STEPS], next_x[STEPS], next_dy[STEPS];
        ring r = {};
        const int end = min(hi + TRAIL, (int)a.channels);
        fetch(a, at, lo - LEAD, end, x, dy);
        for (int j = lo - LEAD; j < hi + TRAIL; j += STEPS) {
            fetch(a, at, j + STEPS, end, next_x, next_dy);
            step<0>::run(a, r, at, j, lo, hi, x, dy);
#pragma unroll
            for (int u = 0; u < STEPS; u++) x[u].word = next_x[u].word, dy[u].word = next_dy[u].word;
        }
    }
}

/* ---------------------------------------------------------------- channels-last */
enum { WIDE = (2 * H + 1) * VEC }; /* channels that a thread sees: its own and H vectors to either side */

/* Channel i of the thread's own: its window among those it sees. */
static __device__ __forceinline__ float sum_of(const float (&v)[WIDE], int i, int before, int after, bool squares) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
        const float x = v[H * VEC + i - before + k];
        sum = squares ? fmaf(x, x, sum) : sum + x;
    }
    return sum;
}

static __device__ __forceinline__ void lrn_last(const lrn_args &a) {
    __shared__ float terms[BWD ? (THREADS + 2 * H) * VEC : 1];
    constexpr int OUT = THREADS - 2 * H;
    const int64_t vectors = a.outer * a.channels;
    for (int64_t first = (int64_t)blockIdx.x * OUT; first < vectors; first += (int64_t)gridDim.x * OUT) {
        const int64_t at = first - H + threadIdx.x;
        const bool there = at >= 0 && at < vectors, mine = there && threadIdx.x >= H && threadIdx.x < THREADS - H;
        const int c = there ? (int)((INDEX)at % (INDEX)a.channels) : 0; /* the vector's place in its pixel */
        float x[WIDE], y[VEC], dy[VEC];
#pragma unroll
        for (int k = -H; k <= H; k++) {
            float v[VEC] = {};
            if (there && c + k >= 0 && c + k < a.channels) load((const T *)a.src + (at + k) * VEC, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) x[(k + H) * VEC + i] = v[i];
        }
        if (BWD && there) load((const T *)a.diff_dst + at * VEC, dy);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            const powers q = powers_of(a, sum_of(x, i, BEFORE, AFTER, true));
            y[i] = (BWD ? dy[i] : x[H * VEC + i]) * q.beta;
            if (BWD) terms[(H + threadIdx.x) * VEC + i] = y[i] * x[H * VEC + i] * q.one;
        }
        if (BWD) {
            __syncthreads();
            float t[WIDE];
#pragma unroll
            for (int k = -H; k <= H; k++)
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    t[(k + H) * VEC + i] =
                        c + k >= 0 && c + k < a.channels ? terms[(H + (int)threadIdx.x + k) * VEC + i] : 0;
#pragma unroll
            for (int i = 0; i < VEC; i++)
                y[i] = fmaf(-a.slope * x[H * VEC + i], sum_of(t, i, AFTER, BEFORE, false), y[i]);
            __syncthreads();
        }
        if (mine) store((T *)a.out + at * VEC, y);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) lrn(const __grid_constant__ lrn_args a) {
    LAST ? lrn_last(a) : lrn_first(a);
}
#endif
