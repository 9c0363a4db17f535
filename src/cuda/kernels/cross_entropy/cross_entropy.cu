/* Cross entropy and its gradient; classes or probabilities, weights, smoothing; f32, f16, bf16; both layouts.
 * Math:      as in src/ref/cross_entropy.h. fwd saves the log-sum-exp of each row, bwd reads the logits once
 * Blocking:  channels-first: VEC pixels a thread, which walks the classes CHUNK at a time and carries m and the sum of
 *            exp(x - m). Channels-last with few classes the same, a row a thread, through shared memory; else LANES
 *            threads share a row: up to 32, or the block. Losses are added up in f64: threads,
 *            block, then one block over the blocks, whose number follows from the problem
 * Traffic:   each tensor once; probabilities twice in bwd, the second time from a cache
 * Roofline:  bandwidth. Measured on an H200: 8x21x512x512 f32 2.8 TB/s forward, 3.5 backward
 * Assumes:   all tensors dense in one order, lse in f32, below 2^31 classes
 * Try:       weft bench cross_entropy2d:bwd:f32:nchw:n8c21h512w512@cuda */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "cross_entropy/cross_entropy.h"

#ifndef __CUDACC_RTC__
typedef struct tile {
    cuda_data d;
    int vec, lanes, chunk,
        copy; /* chunk: classes at a time; copy: elements of a vector through shared memory, 0: none */
    int64_t units, blocks;
    bool aligned; /* neighbouring rows of target and lse, by vectors */
} tile;

static bool aligned(const weft_problem *p, int role) {
    const weft_tensor *t = weft__tensor(p, role);
    return !t || t->align >= 16;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = cuda_data_of(p, &t->d);
    (void)variant;
    if (refusal) return refusal;
    if (t->d.channels > INT32_MAX / 2) return "2^30 classes or more";
    if (p->math == WEFT_MATH_STRICT && (p->attr[WEFT_CE_PROBABILITIES] || p->real[WEFT_CE_SMOOTHING] > 0))
        return "strict math with shares of every class: they are added up before the logarithm";
    const bool rows = t->d.inner == 1, mean = p->attr[WEFT_CE_REDUCTION] == WEFT_CE_MEAN;
    t->vec = cuda_vec(p, rows ? t->d.channels : t->d.inner);
    if (!rows) t->vec = WEFT__MIN(t->vec, 4); /* a chunk of wider ones takes too many registers */
    if (!rows)                                /* few pixels: more threads rather than wide ones */
        while (t->vec > 1 && t->d.outer * t->d.inner / t->vec < 1 << 16) t->vec /= 2;
    t->copy = 0;
    if (rows && t->d.channels <= STAGED_MOST && !p->attr[WEFT_CE_PROBABILITIES]) {
        const int64_t rest = t->d.outer % THREADS * t->d.channels; /* elements of the last block */
        t->copy = cuda_vec(p, rest ? rest : 16);
        t->vec = 1;
    }
    t->chunk = 8;
    for (int chunk = 7; chunk > 4; chunk--)
        if (cuda_ceil(t->d.channels, chunk) * chunk < cuda_ceil(t->d.channels, t->chunk) * t->chunk) t->chunk = chunk;
    t->lanes = rows && !t->copy ? cuda_power(cuda_ceil(t->d.channels, t->vec)) : 1;
    if (hw->gpu->smem < (size_t)(STAGED_MOST + 1) * THREADS * sizeof(float) && t->copy)
        return "too little shared memory";
    if (t->lanes > 32) t->lanes = t->d.channels > 4096 ? THREADS : 32;
    t->aligned = !rows && aligned(p, WEFT_ROLE_LSE) && aligned(p, WEFT_ROLE_TARGET);
    t->units = t->d.outer * t->d.inner / (rows ? 1 : t->vec);
    t->blocks = cuda_ceil(t->units, THREADS / t->lanes);
    const bool reduces = p->pass == WEFT_PASS_FWD ? p->attr[WEFT_CE_REDUCTION] != WEFT_CE_NONE : mean;
    d->workspace = reduces ? SUMS * sizeof(cross_entropy_sum) : 0;
    d->ns = cuda_ns(hw, weft__bytes(p), 0.75, 1 + reduces);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const tile *t = params;
    (void)hw;
    cuda_defines(p, t->vec, text);
    weft__put(
        text,
        " -DROWS=%d -DSTAGED=%d -DCOPY=%d -DCHUNK=%d -DLANES=%d -DPROBS=%d -DWEIGHTED=%d -DSMOOTH=%d -DREDUCTION=%d "
        "-DALIGNED=%d",
        t->d.inner == 1 && !t->copy, t->copy != 0, t->copy ? t->copy : 1, t->chunk, t->lanes,
        p->attr[WEFT_CE_PROBABILITIES] != 0, p->attr[WEFT_CE_WEIGHTED] != 0, p->real[WEFT_CE_SMOOTHING] > 0,
        (int)p->attr[WEFT_CE_REDUCTION], t->aligned);
    cuda_define_type(p, WEFT_ROLE_WEIGHTS, "WEIGHTS_T", text);
    cuda_define_type(p, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_DST, "LOSS_T", text);
}

static cross_entropy_args args_of(const weft__exec *e) {
    const weft_problem *p = e->p;
    const tile *t = e->params;
    const cross_entropy_args a = {.src = e->ptr[WEFT_ROLE_SRC],
                                  .weights = e->ptr[WEFT_ROLE_WEIGHTS],
                                  .target = e->ptr[WEFT_ROLE_TARGET],
                                  .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST],
                                  .dst = e->ptr[WEFT_ROLE_DST],
                                  .diff_src = e->ptr[WEFT_ROLE_DIFF_SRC],
                                  .lse = e->ptr[WEFT_ROLE_LSE],
                                  .sums = e->workspace,
                                  .rows = t->d.outer * t->d.inner,
                                  .channels = t->d.channels,
                                  .inner = t->d.inner,
                                  .ignore = p->attr[WEFT_CE_IGNORE],
                                  .units = t->units,
                                  .nsums = WEFT__MIN(t->blocks, SUMS),
                                  .smooth = (float)p->real[WEFT_CE_SMOOTHING]};
    return a;
}

static size_t stage_bytes(const tile *t) {
    return t->copy ? (size_t)THREADS * (size_t)(t->d.channels | 1) * sizeof(float) : 0;
}

static weft_status run_fwd(const weft__exec *e) {
    const tile *t = e->params;
    const cross_entropy_args a = args_of(e);
    const bool reduces = e->p->attr[WEFT_CE_REDUCTION] != WEFT_CE_NONE;
    const int64_t blocks = reduces ? a.nsums : WEFT__MIN(t->blocks, 1 << 30);
    const weft__launch launch = {.grid = {(uint32_t)blocks, 1, 1}, .block = {THREADS, 1, 1}, .smem = stage_bytes(t)};
    const weft__launch one = {.grid = {1, 1, 1}, .block = {THREADS, 1, 1}};
    WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    return reduces ? weft__cuda_launch(e, 1, &one, &a) : WEFT_OK;
}

/* A mean over classes divides by the weights of the targets, which are added up first. */
static weft_status run_bwd(const weft__exec *e) {
    const tile *t = e->params;
    cross_entropy_args a = args_of(e);
    a.nsums = WEFT__MIN(cuda_ceil(a.rows, 4 * THREADS), WEIGHTS);
    const weft__launch weigh = {.grid = {(uint32_t)a.nsums, 1, 1}, .block = {THREADS, 1, 1}};
    const weft__launch launch = {
        .grid = {(uint32_t)WEFT__MIN(t->blocks, 1 << 30), 1, 1}, .block = {THREADS, 1, 1}, .smem = stage_bytes(t)};
    if (e->p->attr[WEFT_CE_REDUCTION] == WEFT_CE_MEAN && !e->p->attr[WEFT_CE_PROBABILITIES])
        WEFT__TRY(weft__cuda_launch(e, 0, &weigh, &a));
    return weft__cuda_launch(e, 1, &launch, &a);
}

const weft__kernel weft__cuda_cross_entropy_fwd = {
    .name = "cross_entropy_fwd__cuda",
    .version = 1,
    .op = WEFT_OP_CROSS_ENTROPY,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD),
    .dtypes = CUDA_FLOATS,
    .bound = 4,
    .plan = plan,
    .run = run_fwd,
    WEFT__PARTS({"cross_entropy/fwd.h", "losses", defines, false}, {"cross_entropy/fwd.h", "total", defines, false}),
};

const weft__kernel weft__cuda_cross_entropy_bwd = {
    .name = "cross_entropy_bwd__cuda",
    .version = 1,
    .op = WEFT_OP_CROSS_ENTROPY,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(BWD),
    .dtypes = CUDA_FLOATS,
    .bound = 4,
    .plan = plan,
    .run = run_bwd,
    WEFT__PARTS({"cross_entropy/bwd.h", "weigh", defines, false}, {"cross_entropy/bwd.h", "gradients", defines, false}),
};
#endif
