/* softmax and log-softmax of few long rows, as of whole instances, and their gradients; f32, f16, bf16.
 * Math:      as in src/ref/softmax.h
 * Blocking:  a row is cut into at most 1024 spans of LEAST elements or more. The first launch leaves (m, sum) of
 *            each span in the workspace, or the sum of a gradient; in the second every block adds up those of its row
 *            in their order, and writes its span
 * Traffic:   inputs twice, the second time in part from the L2 cache, outputs once
 * Roofline:  bandwidth. Measured on an H200, 64 rows of 602112 f32: 2.5 TB/s of each tensor once
 * Assumes:   rows that lie together (channels-last, or one pixel). dst may be src
 * Try:       weft bench softmax1d:fwd:f32:ncw:n8c602112w1@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 256, LEAST = 4096, UNROLL = 4 };

typedef struct softmax_args {
    const void *src, *diff_dst;
    void *dst;
    float *partial;                     /* m of every span, then the sums */
    int64_t rows, vectors, spans, span; /* vectors of a row, and of a span */
} softmax_args;

#ifndef __CUDACC_RTC__
/* A multiple of every vector. */
static int64_t span_size(const cuda_data *d) {
    int64_t span = LEAST;
    while (cuda_ceil(d->channels, span) > 1024) span *= 2;
    return span;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    cuda_data data;
    const char *refusal = cuda_data_of(p, &data);
    (void)variant;
    if (refusal) return refusal;
    if (data.inner != 1) return "the channels do not lie together";
    const int64_t spans = cuda_ceil(data.channels, span_size(&data));
    d->workspace = (size_t)(2 * data.outer * spans) * sizeof(float);
    const double in = weft__bytes(p) * (p->pass == WEFT_PASS_FWD ? 0.5 : 0.67);
    d->ns = cuda_ns(hw, (weft__bytes(p) + in) * WEFT__MAX(hw->gpu->sms * 2.0 / ((double)data.outer * (double)spans), 1),
                    0.8, 2);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    cuda_defines(p, cuda_vec(p, p->c), text);
    weft__put(text, " -DLOG=%d -DBWD=%d", p->op == WEFT_OP_LOG_SOFTMAX, p->pass != WEFT_PASS_FWD);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    cuda_data d;
    cuda_data_of(p, &d);
    const int64_t vec = cuda_vec(p, d.channels), span = span_size(&d);
    const softmax_args a = {.src = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DST],
                            .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                            .dst = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                            .partial = e->workspace,
                            .rows = d.outer,
                            .vectors = d.channels / vec,
                            .spans = cuda_ceil(d.channels, span),
                            .span = span / vec};
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(a.rows * a.spans, 1 << 30), 1, 1},
                                 .block = {THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return weft__cuda_launch(e, 1, &launch, &a);
}

#define SOFTMAX(NAME, name_)                                                                                         \
    const weft__kernel weft__cuda_##name_##_split = {                                                                \
        .name = #name_ "_split__cuda",                                                                               \
        .version = 1,                                                                                                \
        .op = WEFT_OP_##NAME,                                                                                        \
        .engine = WEFT_ENGINE_CUDA,                                                                                  \
        .dtypes = CUDA_FLOATS,                                                                                       \
        .bound = 4,                                                                                                  \
        .plan = plan,                                                                                                \
        .run = run,                                                                                                  \
        WEFT__PARTS({"softmax/split.cu", "partial", defines, false}, {"softmax/split.cu", "apply", defines, false}), \
    }
SOFTMAX(SOFTMAX, softmax);
SOFTMAX(LOG_SOFTMAX, log_softmax);

#else
#include "softmax/softmax.h"
#include "softmax/running.h"

/* UNROLL vectors of a row, THREADS apart, those below `end`; x of others is left as it is. */
struct batch {
    float x[UNROLL][VEC], dy[UNROLL][VEC];
};

static __device__ __forceinline__ void fetch(const softmax_args &a, int64_t row, int64_t v, int64_t end, batch &b) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (v + u * THREADS < end) {
            const int64_t at = (row * a.vectors + v + u * THREADS) * VEC;
            load((const T *)a.src + at, b.x[u]);
            if (BWD) load((const T *)a.diff_dst + at, b.dy[u]);
        }
}

static __device__ __forceinline__ running sum_span(const softmax_args &a, int64_t row, int64_t begin, int64_t end) {
    running r = {-INFINITY, 0};
    for (int64_t v = begin + threadIdx.x; v < end; v += UNROLL * THREADS) {
        batch b;
        fetch(a, row, v, end, b);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (v + u * THREADS >= end) continue;
            if (!BWD) r = merge(r, running_of(b.x[u]));
#pragma unroll
            for (int i = 0; i < VEC && BWD; i++) r.sum = softmax_term(b.x[u][i], b.dy[u][i], r.sum);
        }
    }
    return r;
}

extern "C" __global__ void __launch_bounds__(THREADS) partial(const __grid_constant__ softmax_args a) {
    __shared__ float scratch[THREADS / 32];
    for (int64_t block = blockIdx.x; block < a.rows * a.spans; block += gridDim.x) {
        const int64_t row = block / a.spans, begin = block % a.spans * a.span;
        running r = sum_span(a, row, begin, min(begin + a.span, a.vectors));
        if (BWD)
            r.sum = block_all<plus, THREADS>(r.sum, scratch);
        else
            r = block_merge<THREADS>(r);
        if (threadIdx.x == 0) {
            a.partial[block] = r.m;
            a.partial[a.rows * a.spans + block] = r.sum;
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) apply(const __grid_constant__ softmax_args a) {
    __shared__ float scratch[THREADS / 32];
    /* what was read last is still in the L2 cache: from the end to the beginning */
    for (int64_t block = a.rows * a.spans - 1 - blockIdx.x; block >= 0; block -= gridDim.x) {
        const int64_t row = block / a.spans, begin = block % a.spans * a.span, end = min(begin + a.span, a.vectors);
        const float *m = a.partial + row * a.spans, *sum = a.partial + (a.rows + row) * a.spans;
        running r = {-INFINITY, 0};
        for (int64_t i = threadIdx.x; i < a.spans; i += THREADS) {
            running one = {m[i], sum[i]};
            r = BWD ? running{0, r.sum + one.sum} : merge(r, one);
        }
        if (BWD)
            r.sum = block_all<plus, THREADS>(r.sum, scratch);
        else
            r = block_merge<THREADS>(r);
        const float scale = BWD ? 0 : softmax_scale(r.sum);
        for (int64_t v = begin + threadIdx.x; v < end; v += UNROLL * THREADS) {
            batch b;
            fetch(a, row, v, end, b);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                if (v + u * THREADS >= end) continue;
#pragma unroll
                for (int i = 0; i < VEC; i++)
                    b.x[u][i] =
                        BWD ? softmax_gradient(b.x[u][i], b.dy[u][i], r.sum) : softmax_value(b.x[u][i], r.m, scale);
                store((T *)a.dst + (row * a.vectors + v + u * THREADS) * VEC, b.x[u]);
            }
        }
        __syncthreads();
    }
}
#endif
