/* weft: the convolution-family operators that frameworks neglect, on the CPU and on NVIDIA GPUs.
 * SPDX-License-Identifier: BSD-3-Clause
 *
 * This header is the manual. Read it from the top: each section needs only the ones before it.
 *
 *   1. Ten lines        a convolution from start to end
 *   2. Status           every call returns one; the text of the last error is per thread
 *   3. Words            data types, layouts, passes, roles, devices, math
 *   4. The problem      one struct and one text for every operator
 *   5. The context      engines, threads, limits, allocators, log
 *   6. The plan         choose a kernel, ask about it, run it
 *   7. Kernels          what exists, what applies, and why not
 *   8. Wisdom           measured choices, kept in a file
 *   9. Sparse weights   building the CSR form that sparse_conv takes
 *
 * 1. Ten lines
 * ------------
 *   weft_ctx *ctx;  weft_plan *plan;  weft_problem p = WEFT_PROBLEM_INIT;
 *   weft_ctx_create(&ctx, NULL);
 *   weft_problem_parse(&p, "conv2d:fwd:f32:nchw:n1c8h32w32:o8k3p1g8");
 *   weft_plan_create(&plan, ctx, &p, NULL);
 *   weft_args a = WEFT_ARGS_INIT;
 *   a.ptr[WEFT_ROLE_SRC] = x;  a.ptr[WEFT_ROLE_WEIGHTS] = w;  a.ptr[WEFT_ROLE_DST] = y;
 *   size_t need = (weft_plan_workspace_bytes(plan) + 63) / 64 * 64;  void *scratch = aligned_alloc(64, need);
 *   if (weft_execute(plan, &a, scratch, need, NULL) != WEFT_OK) puts(weft_last_error());
 *   weft_plan_release(plan);
 *   weft_ctx_release(ctx);
 * Every call can fail; examples/00_hello.c shows the same with the checks in.
 *
 * Rules that hold everywhere
 *   - Nothing aborts, exits or prints unless asked. Bad input gives an error that names the argument,
 *     what it got and what is allowed, and writes nothing.
 *   - A struct with a WEFT_*_INIT begins with its size, which that sets, and grows only at its end: a caller built
 *     against an older or a newer header is served as long as it asks for nothing this library does not know. Other
 *     structs (weft_tensor, weft_step, weft_rates) stand inside of such a struct or call and never grow.
 *   - 64 KB of stack are enough for every call.
 *   - Callbacks alloc, free and log may call weft_version, weft_status_* and weft_last_error, and nothing else of weft.
 *     parallel_for, reject, estimate and run_once may call everything but the release of their context; reject and
 *     estimate must not plan the problem they are asked about.
 *   - Releasing NULL is fine. Objects are reference-counted where it says so.
 *   - A context, a plan and every call are safe to use from many threads at once, and in the child after fork (CUDA
 *     apart).
 *   - Results of one kernel and variant have the same bits on every run and for every number of threads. The first
 *     choice of a kernel for a problem holds for the process, until the problem is measured or wisdom is loaded or
 *     forgotten. What is chosen first depends on the number of threads and on measured rates, unless `deterministic`
 *     is set.
 */
#ifndef WEFT_H
#define WEFT_H

#ifndef __CUDACC_RTC__ /* the CUDA engine compiles this header too, without a C library */
#include <stddef.h>
#include <stdint.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(__CUDACC_RTC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif
#if defined(__GNUC__)
#define WEFT__UNION __extension__ union /* nameless: C11, C++ and, as an extension, C99 */
#else
#define WEFT__UNION union
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0
#define WEFT_VERSION "0.1.0"

/* ------------------------------------------------------------------ 2. Status
 * X(NAME, what it means) */
/* clang-format off */
#define WEFT_ERR_LIST(X)                                                                           \
    X(INVALID, "an argument is wrong: shape, type, size, pointer or alignment")                    \
    X(SYNTAX, "a text could not be parsed: the error gives the column")                            \
    X(UNSUPPORTED, "a valid request that no kernel or engine here can serve")                      \
    X(WORKSPACE, "the workspace is missing or too small")                                          \
    X(MEMORY, "out of memory")                                                                     \
    X(IO, "a file could not be read or written")                                                   \
    X(DEVICE, "the device or its driver reported an error")                                        \
    X(INTERNAL, "a fault inside weft: please report it")
/* clang-format on */

#define WEFT__STATUS(NAME, meaning) WEFT_ERR_##NAME,
typedef enum weft_status { WEFT_OK, WEFT_ERR_LIST(WEFT__STATUS) WEFT_STATUS_COUNT } weft_status;

WEFT_API const char *weft_version(void);              /* "0.1.0" */
WEFT_API const char *weft_status_name(weft_status s); /* "INVALID" */
WEFT_API const char *weft_status_text(weft_status s); /* the meaning above */
WEFT_API const char *weft_last_error(void);           /* this thread's; "" before the first error */

/* ------------------------------------------------------------------- 3. Words
 * Where an enum has a NONE, it is 0 and means "not given": weft_problem_complete() fills in the default, except for the
 * operator and the pass, which have none. */

/* X(NAME, text, bytes) */
/* clang-format off */
#define WEFT_DTYPE_LIST(X)                                                                         \
    X(F32, f32, 4) X(F64, f64, 8) X(F16, f16, 2) X(BF16, bf16, 2) X(U8, u8, 1) X(I32, i32, 4)      \
    X(I64, i64, 8) X(C64, c64, 8) X(C128, c128, 16)
/* clang-format on */

#define WEFT__DTYPE(NAME, text, bytes) WEFT_DTYPE_##NAME,
typedef enum weft_dtype { WEFT_DTYPE_NONE, WEFT_DTYPE_LIST(WEFT__DTYPE) WEFT_DTYPE_COUNT } weft_dtype;

/* Dims are always in the order n c d h w; the layout says how they lie in memory.
 * first: nchw (ncw, ncdhw; for weights oihw, ...). last: nhwc (for weights ohwi, ...). */
typedef enum weft_layout { WEFT_LAYOUT_NONE, WEFT_LAYOUT_FIRST, WEFT_LAYOUT_LAST, WEFT_LAYOUT_STRIDED } weft_layout;

/* X(NAME, name) */
/* clang-format off */
#define WEFT_OP_LIST(X)                                                                            \
    X(CONV, conv) X(PARTIAL_CONV, partial_conv) X(SPARSE_CONV, sparse_conv)                        \
    X(MAX_POOL, max_pool) X(AVG_POOL, avg_pool) X(ADAPTIVE_AVG_POOL, adaptive_avg_pool)            \
    X(RELU, relu) X(CLIP, clip) X(TANH, tanh) X(SIGMOID, sigmoid) X(NCRELU, ncrelu)                \
    X(SOFTMAX, softmax) X(LOG_SOFTMAX, log_softmax) X(CROSS_ENTROPY, cross_entropy)                \
    X(BATCH_NORM, batch_norm) X(LRN, lrn)                                                          \
    X(DGMM, dgmm) X(CDGMM, cdgmm) X(IM2COL, im2col) X(COL2IM, col2im)                              \
    X(RNN_RELU, rnn_relu) X(RNN_TANH, rnn_tanh) X(LSTM, lstm) X(GRU, gru)                          \
    X(CAUSAL_CONV, causal_conv) X(CAUSAL_UPDATE, causal_update)
/* clang-format on */

#define WEFT__OP(NAME, name) WEFT_OP_##NAME,
typedef enum weft_op { WEFT_OP_NONE, WEFT_OP_LIST(WEFT__OP) WEFT_OP_COUNT } weft_op;

/* bwd computes every gradient in one go (diff_src, diff_weights and, with a bias, diff_bias).
 * Transposed convolution is bwd_data with the roles swapped: its input is diff_dst, its output diff_src;
 * it may carry an epilogue (bias of length c, relu, clip). */
/* clang-format off */
#define WEFT_PASS_LIST(X)                                                                          \
    X(FWD, fwd) X(BWD_DATA, bwd_data) X(BWD_WEIGHTS, bwd_weights) X(BWD_BIAS, bwd_bias)            \
    X(BWD, bwd)
/* clang-format on */

#define WEFT__PASS(NAME, name) WEFT_PASS_##NAME,
typedef enum weft_pass { WEFT_PASS_NONE, WEFT_PASS_LIST(WEFT__PASS) WEFT_PASS_COUNT } weft_pass;

/* What a tensor is to its operator. Arguments are given by role: args.ptr[WEFT_ROLE_SRC] = x. */
/* clang-format off */
#define WEFT_ROLE_LIST(X)                                                                          \
    X(SRC, src) X(WEIGHTS, weights) X(BIAS, bias) X(DST, dst) X(DIFF_SRC, diff_src)                \
    X(DIFF_WEIGHTS, diff_weights) X(DIFF_BIAS, diff_bias) X(DIFF_DST, diff_dst) X(MASK, mask)      \
    X(NEW_MASK, new_mask) X(SUMS, sums) X(INDEX, index) X(TARGET, target) X(LSE, lse)              \
    X(MEAN, mean) X(VAR, var) X(SAVE_MEAN, save_mean) X(SAVE_INVSTD, save_invstd) X(ROWS, rows)    \
    X(COLS, cols) X(H0, h0) X(C0, c0) X(HN, hn) X(CN, cn) X(RESERVE, reserve)                      \
    X(LENGTHS, lengths) X(DIFF_H0, diff_h0) X(DIFF_C0, diff_c0) X(DIFF_HN, diff_hn)                \
    X(DIFF_CN, diff_cn) X(SEQ_IDX, seq_idx) X(STATE, state)
/* clang-format on */

#define WEFT__ROLE(NAME, name) WEFT_ROLE_##NAME,
typedef enum weft_role { WEFT_ROLE_LIST(WEFT__ROLE) WEFT_ROLE_COUNT } weft_role;

typedef enum weft_device { WEFT_DEVICE_NONE, WEFT_DEVICE_CPU, WEFT_DEVICE_CUDA } weft_device;

/* strict: the error of each output element is within the bound of the direct f32 sum of its products; NaN and infinity
 *   come only where the formula sends them.
 * fast (default): within 4 times that bound; of methods that work on tiles (FFT, Winograd) relative to the largest
 * sum of
 *   products within the tile instead of each element's own, and they may spread a NaN or an infinity inside the tile.
 * 16-bit results are rounded once: sums stay f32 to the end, and accumulation reads the old value once.
 * tf32: products rounded to 10 bits on hardware that has such units; else the same as fast. */
typedef enum weft_math { WEFT_MATH_NONE, WEFT_MATH_FAST, WEFT_MATH_STRICT, WEFT_MATH_TF32 } weft_math;

/* ------------------------------------------------------------- 4. The problem
 * What is to be computed: never how. Attributes give the geometry once; the tensors follow from it.
 * A tensor of the problem carries data type, layout or strides, and alignment; its dims are filled in
 * (or, if given, checked) by weft_problem_complete().
 *
 * The text, the same in the command, wisdom, logs, errors and tests (docs/problem.md has the grammar):
 *   conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cpu
 *   op+rank : pass : dtypes : layouts : sizes : attributes [: epilogue] [: math] [@device]
 *   conv2d:fwd:bf16,bias=f32:nhwc:n8c64h112w112:o64k3s2p1g64:bias+relu
 *   conv2d:fwd:f32:nchw,src=[602112.4704.56.1],dst=nhwc/4:n1c8h56w56:o8k3p1g8     strides; 4-byte alignment
 *   conv2d:bwd_data:f32:nchw:n1c8h56w56:o16k3x5p1+0x2:strict@cuda                  kh 3, kw 5; pads 1 above, 0
 *   below, 2 left and right
 */
#define WEFT_MAX_RANK 8
#define WEFT_MAX_TENSORS 16
#define WEFT_MAX_STEPS 4
#define WEFT_MAX_ATTRS 12
#define WEFT_MAX_ROLES 64

/* Names of attr[] and real[], by operator. */
enum { WEFT_CLIP_LO, WEFT_CLIP_HI }; /* clip, real: bounds, 0 and 6 if not given */
enum { WEFT_POOL_CEIL };             /* max_pool, avg_pool, attr: round output sizes up 0/1 */
enum { WEFT_MAX_POOL_INDEX = 1 };    /* max_pool, attr: fwd writes the index that bwd needs 0/1 */
/* avg_pool, attr: padding counts in the divisor 0/1, 1 if not given; a fixed divisor, 0: none */
enum { WEFT_AVG_POOL_INCLUDE_PAD = 1, WEFT_AVG_POOL_DIVISOR };
enum { WEFT_ADAPTIVE_AVG_POOL_TO }; /* adaptive_avg_pool, attr: output size, three axes */
/* dgmm, cdgmm, attr: sizes of a matrix; 1: one factor per column, 0: per row */
enum { WEFT_DGMM_ROWS, WEFT_DGMM_COLS, WEFT_DGMM_SIDE };
/* rnn_relu, rnn_tanh, lstm, gru. attr: steps; layers; both directions 0/1; projected size (lstm); biases 0/1; first
 * states given 0/1; rows of packed data, 0: not packed; train 0/1 (fwd keeps the reserve that bwd needs); seed of
 * dropout. real: dropout between layers */
enum {
    WEFT_RNN_STEPS,
    WEFT_RNN_LAYERS,
    WEFT_RNN_BIDIRECTIONAL,
    WEFT_RNN_PROJECTION,
    WEFT_RNN_BIAS,
    WEFT_RNN_STATE,
    WEFT_RNN_ROWS,
    WEFT_RNN_TRAIN,
    WEFT_RNN_SEED
};
enum { WEFT_RNN_DROPOUT };
/* cross_entropy. attr: target holds probabilities 0/1; class weights 0/1; the label that does not count, -100 if not
 * given; a weft_ce. real: label smoothing */
enum { WEFT_CE_PROBABILITIES, WEFT_CE_WEIGHTED, WEFT_CE_IGNORE, WEFT_CE_REDUCTION };
enum { WEFT_CE_SMOOTHING };
typedef enum weft_ce { WEFT_CE_NONE, WEFT_CE_MEAN, WEFT_CE_SUM } weft_ce; /* mean if not given */
/* batch_norm. attr: statistics of the batch 0/1; weights and bias 0/1; running statistics 0/1; all 1 if not given.
 * real: added to the variance; what the newest batch counts in the running statistics. 1e-5 and 0.1 if not given */
enum { WEFT_BN_TRAIN, WEFT_BN_AFFINE, WEFT_BN_TRACK };
enum { WEFT_BN_EPS, WEFT_BN_MOMENTUM };
enum { WEFT_LRN_SIZE };                             /* lrn, attr: channels in the window */
enum { WEFT_LRN_ALPHA, WEFT_LRN_BETA, WEFT_LRN_K }; /* lrn, real: 1e-4, 0.75 and 1 if not given */
/* partial_conv. attr: mask 0 none, 1 one channel, 2 every channel; one mask for the batch 0/1; the forward pass had
 * a bias 0/1 (gradient passes without a bias step); transposed 0/1; output padding along d h w (transposed) */
enum { WEFT_PARTIAL_MASK, WEFT_PARTIAL_SHARED, WEFT_PARTIAL_BIASED, WEFT_PARTIAL_TRANSPOSED, WEFT_PARTIAL_OUTPAD };
/* sparse_conv. attr: stored weights; columns are stretched 0/1: see section 9 */
enum { WEFT_SPARSE_NNZ, WEFT_SPARSE_STRETCHED };

/* causal_conv, attr: tokens before the first, h0, given 0/1; the last tokens, hn, wanted 0/1; seq_idx given 0/1.
 * causal_update, attr: rows of state, n if 0; tokens in a row; state is a ring, lengths given 0/1; index given 0/1 */
enum { WEFT_CAUSAL_H0, WEFT_CAUSAL_HN, WEFT_CAUSAL_SEQ_IDX };
enum { WEFT_CAUSAL_ROWS, WEFT_CAUSAL_LEN, WEFT_CAUSAL_RING, WEFT_CAUSAL_INDEX };

typedef struct weft_tensor {
    int16_t role, dtype, layout;    /* weft_role, weft_dtype, weft_layout */
    int16_t rank;                   /* 0: dims not given */
    int32_t align;                  /* the pointer is a multiple of this; 0: the default, 16 */
    int32_t derived;                /* set by weft_problem_complete: the dims follow from the sizes and need no check */
    int64_t dims[WEFT_MAX_RANK];    /* canonical: n c d h w, or o i d h w; unit where absent */
    int64_t strides[WEFT_MAX_RANK]; /* in elements; read when layout is WEFT_LAYOUT_STRIDED, else filled in */
} weft_tensor;

typedef enum weft_step_kind {
    WEFT_STEP_NONE,
    WEFT_STEP_BIAS,
    WEFT_STEP_RELU,
    WEFT_STEP_CLIP, /* min(max(x, lo), hi); NaN stays NaN */
    WEFT_STEP_ACC,  /* gradient passes, last: out = alpha * x + beta * out; with beta 0 the old value is not read */
    WEFT_STEP_SILU  /* x / (1 + exp(-x)): causal_conv and causal_update, after the bias; gradient passes too */
} weft_step_kind;
typedef struct weft_step {
    int32_t kind, reserved;
    WEFT__UNION { double lo, alpha; }; /* clip: the lower bound; acc: the factor of the new value */
    WEFT__UNION { double hi, beta; };  /* clip: the upper bound; acc: the factor of the old value */
} weft_step;

typedef struct weft_problem {
    size_t size; /* sizeof(weft_problem) */
    int32_t op, pass, device, ordinal, math;
    int32_t rank;            /* spatial axes the user sees, 1..3; kernels always see three */
    int64_t n, c, o, groups; /* batch, channels in, channels out, groups */
    int64_t in[3];           /* d h w of src */
    int64_t kernel[3], stride[3], dilation[3], pad_lo[3], pad_hi[3];
    /* further whole numbers and switches; each operator names its own (WEFT_<OP>_<NAME> above) */
    int64_t attr[WEFT_MAX_ATTRS];
    double real[WEFT_MAX_ATTRS]; /* further real numbers, likewise */
    int64_t out[3];              /* d h w of dst: derived */
    int32_t nsteps, ntensors;
    weft_step step[WEFT_MAX_STEPS]; /* the epilogue, in order. In a backward pass, bias asks for diff_bias */
    weft_tensor tensor[WEFT_MAX_TENSORS];
} weft_problem;

/* clang-format off */
#define WEFT_PROBLEM_INIT                                                                                              \
    {sizeof(weft_problem), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, {0}, 0, 0,            \
     {{0, 0, {0}, {0}}}, {{0, 0, 0, 0, 0, 0, {0}, {0}}}}
/* clang-format on */

/* A convolution with unit stride, dilation and groups and no padding, to be adjusted by assignment and completed:
 *   weft_problem p = WEFT_PROBLEM_INIT;
 *   weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 2);
 *   p.n = 8; p.c = p.o = p.groups = 64; p.in[1] = p.in[2] = 56;
 *   p.kernel[1] = p.kernel[2] = 3; p.pad_lo[1] = p.pad_hi[1] = p.pad_lo[2] = p.pad_hi[2] = 1;
 *   weft_problem_tensor(&p, WEFT_ROLE_SRC)->dtype = WEFT_DTYPE_BF16;
 *   weft_problem_complete(&p); */
WEFT_API weft_status weft_problem_init(weft_problem *p, weft_op op, weft_pass pass, int rank);

/* The tensor of that role; added, with nothing given, if the problem has none yet and there is room. NULL: p or role is
 * wrong. */
WEFT_API weft_tensor *weft_problem_tensor(weft_problem *p, weft_role role);
/* The same, but nothing is added; NULL: no such tensor. A completed problem has one for each role that takes part. */
WEFT_API const weft_tensor *weft_problem_find(const weft_problem *p, weft_role role);
/* Bytes of memory from its first element to its last, in a completed problem. */
WEFT_API size_t weft_tensor_bytes(const weft_tensor *t);

/* Validate, derive what was not given, and bring into the one normal form that the text names. Idempotent; on failure
 * *p is as it was. To go on from a completed problem, assign sizes or attributes and complete again: shapes follow.
 * Sorts the tensors by role, so pointers from weft_problem_tensor end here. What an operator does not use is set
 * back to its default. Data tensors not given take the data type and layout of the first one given (else f32,
 * channels-first). */
WEFT_API weft_status weft_problem_complete(weft_problem *p);

/* Text to completed problem, from any p with its size set. On WEFT_ERR_SYNTAX the error gives the column and what
 * was expected. */
WEFT_API weft_status weft_problem_parse(weft_problem *p, const char *text);

/* Completed problem to text, always 0-terminated if capacity > 0. *length (may be NULL) is what it takes without the
 * 0. */
WEFT_API weft_status weft_problem_format(const weft_problem *p, char *text, size_t capacity, size_t *length);
#define WEFT_TEXT_MAX 4096 /* room for any problem's text */

/* ------------------------------------------------------------- 5. The context */
typedef struct weft_ctx weft_ctx;
typedef struct weft_plan weft_plan;

typedef enum weft_mode {
    WEFT_MODE_DEFAULT,
    WEFT_MODE_ESTIMATE,   /* wisdom, else the least estimated time; no timing, microseconds */
    WEFT_MODE_MEASURE,    /* wisdom, else time the best few on private buffers and remember */
    WEFT_MODE_WISDOM_ONLY /* wisdom, else an error that names the problem; nothing is estimated or timed */
} weft_mode;

enum { WEFT_ENGINE_REF = 1, WEFT_ENGINE_CPU = 2, WEFT_ENGINE_CUDA = 4, WEFT_ENGINE_EXTERNAL = 8, WEFT_ENGINE_ALL = 15 };
/* dispatch: which kernel and why; tune: measurements, compilations; exec: every run; error: what went wrong without
 * failing a call */
enum { WEFT_LOG_DISPATCH = 1, WEFT_LOG_TUNE = 2, WEFT_LOG_EXEC = 4, WEFT_LOG_ERROR = 8, WEFT_LOG_ALL = 15 };
#define WEFT_NO_LIMIT SIZE_MAX

typedef void (*weft_log_fn)(void *user, int topic, const char *line);
typedef void (*weft_task)(void *arg, int64_t slot);
/* Run task(arg, 0) ... task(arg, slots - 1), in any order, on any threads, and return when all are done. */
typedef void (*weft_parallel_for)(void *user, int64_t slots, weft_task task, void *arg);

typedef struct weft_ctx_opts {
    size_t size;      /* sizeof(weft_ctx_opts) */
    uint32_t engines; /* WEFT_ENGINE_*; 0: all */
    uint32_t verbose; /* WEFT_LOG_*; the variable WEFT_VERBOSE=dispatch,tune,exec,error|all adds to it */
    int32_t threads;  /* of the own pool; 0: WEFT_THREADS, else one per core */
    int32_t mode;     /* weft_mode; default estimate */
    /* bytes a plan may ask for, the reference apart: every valid problem has a plan; 0: 64 MB */
    size_t workspace_limit;
    size_t plan_cache;      /* plans kept; 0: 1024 */
    double measure_seconds; /* time limit of one measurement; 0: 2 s */
    weft_log_fn log;        /* NULL: lines asked for go to stderr */
    void *log_user;
    /* both or neither, from any thread, aligned as malloc's; NULL: malloc and free. Of host memory all comes from there
     * but the table of loaded CUDA functions, which outlives every context */
    void *(*alloc)(void *user, size_t bytes);
    void (*free)(void *user, void *block);
    void *alloc_user;
    const char *isa; /* "scalar" | "avx2" | "avx512" | "avx512bf16": only its instructions; NULL: WEFT_ISA, else all */
    const char *nvrtc; /* path of libnvrtc; NULL: WEFT_NVRTC, else by name */
    /* compiled CUDA code; NULL: WEFT_CACHE_DIR, else the user's cache; "": none. Used if it is the user's or root's and
     * nobody else may write to it. A setuid program does not read WEFT_* and HOME */
    const char *cache_dir;
    double lock_seconds; /* how long weft_wisdom_save waits for another process that saves; 0: 10 s */
    /* 1: choices use neither the number of threads nor anything measured, so that they, and with them the bits of
     * results, are the same wherever the hardware is the same */
    int32_t deterministic;
    int32_t reserved;
} weft_ctx_opts;
#define WEFT_CTX_OPTS_INIT \
    {sizeof(weft_ctx_opts), 0, 0, 0, 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0}

WEFT_API weft_status weft_ctx_create(weft_ctx **ctx, const weft_ctx_opts *opts);
WEFT_API void weft_ctx_release(weft_ctx *ctx); /* plans made from it stay usable */

/* Lend a thread pool; NULL: back to the own one. threads: how many run at once (estimates use it, bits do not).
 * A run that has begun goes on with the pool it has: wait for such runs before the pool goes away. The log, the
 * allocator and a lent pool serve until the last plan made from the context is released. */
WEFT_API weft_status weft_ctx_set_parallel_for(weft_ctx *ctx, weft_parallel_for fn, void *user, int threads);

/* Which topics are logged from now on: a sum of WEFT_LOG_*. WEFT_VERBOSE adds to them. */
WEFT_API weft_status weft_ctx_set_verbose(weft_ctx *ctx, uint32_t topics);

/* A description of the machine as weft sees it: one "key: value" line each. Engines that are absent say why: it
 * opens CUDA to look. */
WEFT_API weft_status weft_ctx_describe(weft_ctx *ctx, char *text, size_t capacity, size_t *length);

/* ---------------------------------------------------------------- 6. The plan
 * Immutable and reference-counted. Equal problems give the same plan from a bounded cache. */
typedef struct weft_plan_opts {
    size_t size;            /* sizeof(weft_plan_opts) */
    int32_t mode;           /* weft_mode; default: the context's */
    uint32_t engines;       /* of the context's, only these; 0: all of them */
    size_t workspace_limit; /* 0: the context's; WEFT_NO_LIMIT: none */
    const char *kernel;     /* pin this kernel; an error with the reason if it does not apply */
    double measure_seconds; /* time limit of this measurement; 0: the context's */
    int32_t deterministic;  /* 1: as in the context's options; 0: the context's */
    int32_t reserved;
} weft_plan_opts;
#define WEFT_PLAN_OPTS_INIT {sizeof(weft_plan_opts), 0, 0, 0, NULL, 0, 0, 0}

typedef struct weft_args {
    size_t size; /* sizeof(weft_args) */
    /* from weft_pack, for plans with weft_plan_packed_bytes() > 0; NULL: packed at each call in workspace */
    const void *packed;
    void *ptr[WEFT_MAX_ROLES]; /* by role; device pointers for a CUDA plan */
} weft_args;
#define WEFT_ARGS_INIT                    \
    {                                     \
        sizeof(weft_args), NULL, { NULL } \
    }

typedef struct weft_cost {
    size_t size;  /* sizeof(weft_cost) */
    double flops; /* of the direct sum, a multiply-add counted as two */
    double bytes; /* each tensor moved once */
    double ns;    /* estimated for the chosen kernel */
} weft_cost;
#define WEFT_COST_INIT {sizeof(weft_cost), 0, 0, 0}

WEFT_API weft_status weft_plan_create(weft_plan **plan, weft_ctx *ctx, const weft_problem *p,
                                      const weft_plan_opts *opts);
WEFT_API weft_plan *weft_plan_retain(weft_plan *plan);
WEFT_API void weft_plan_release(weft_plan *plan);
WEFT_API const weft_problem *weft_plan_problem(const weft_plan *plan);
WEFT_API const char *weft_plan_kernel_name(const weft_plan *plan); /* its name */
WEFT_API size_t weft_plan_workspace_bytes(const weft_plan *plan);  /* bytes weft_execute needs, 64-byte aligned */
WEFT_API size_t weft_plan_packed_bytes(const weft_plan *plan);     /* bytes of packed weights; 0: taken as they are */
WEFT_API weft_status weft_plan_cost(const weft_plan *plan, weft_cost *cost);
/* Packed weights serve every plan with the same id, in any process of this version of weft; 0: nothing is packed. */
WEFT_API uint64_t weft_plan_packed_id(const weft_plan *plan);
/* packed: weft_plan_packed_bytes() bytes, a multiple of 64. */
WEFT_API weft_status weft_pack(const weft_plan *plan, const void *weights, void *packed, void *stream);

/* Run. workspace may be NULL when weft_plan_workspace_bytes() is 0. stream: a CUstream for a CUDA plan, else NULL.
 * On the CPU the result is there on return; on CUDA the work is queued on the stream. Outputs must not overlap other
 * tensors, except that relu, clip, tanh, sigmoid, softmax and log_softmax may have dst = src or diff_src = diff_dst,
 * of one data type and with the same strides. An overlap of dense tensors is an error; of strided ones, if it shows
 * at their first elements. With args.packed neither the weights nor the part of the workspace that is for packing is
 * needed. Allocates nothing and synchronises nothing; safe inside CUDA graph capture. */
WEFT_API weft_status weft_execute(const weft_plan *plan, const weft_args *args, void *workspace, size_t bytes,
                                  void *stream);

/* ----------------------------------------------------------------- 7. Kernels */
typedef struct weft_kernel_desc {
    size_t size;                     /* sizeof(weft_kernel_desc) */
    const char *name, *engine, *isa; /* "ref" | "cpu" | "cuda" | "external"; "" where none is needed */
    int32_t op, version;
    int32_t exact;      /* 1: equal to the reference on integers; 0: within a stated bound */
    int32_t applies;    /* to the problem given */
    const char *reason; /* why not; NULL if it applies or no problem was given */
    size_t workspace, packed;
    double ns;           /* its estimate */
    const char *variant; /* of a kernel with several: "name#variant" names it; "" where there is one */
} weft_kernel_desc;
#define WEFT_KERNEL_DESC_INIT {sizeof(weft_kernel_desc), NULL, NULL, NULL, 0, 0, 0, 0, NULL, 0, 0, 0, NULL}

/* p NULL: every kernel of every operator; else those of p's operator, best ISA first, the references, and the
 * external implementation if there is one. */
WEFT_API size_t weft_kernel_count(const weft_ctx *ctx, const weft_problem *p);
WEFT_API weft_status weft_kernel_info(const weft_ctx *ctx, const weft_problem *p, size_t index, weft_kernel_desc *desc);

/* An external implementation: the host's own code for the same problems, a framework's convolution for one. The
 * planner compares it with weft's kernels, by estimate, by measuring and in wisdom. Where it wins, the plan has
 * its name and the host runs its code itself: weft_execute refuses it. rates: how it does on the problem, as shares of
 * the machine's f32 multiply-adds and of its memory bandwidth, and ns for each call. run_once: run once on these
 * buffers so that it can be timed; where the results go does not matter. */
typedef struct weft_rates {
    double ns, of_peak, of_bandwidth;
} weft_rates;
typedef struct weft_external {
    size_t size;               /* sizeof(weft_external) */
    const char *name;          /* lives as long as the context */
    int32_t version, reserved; /* wisdom of another version is not used */
    void *user;
    const char *(*reject)(void *user, const weft_problem *p); /* NULL: takes it; else why not */
    void (*estimate)(void *user, const weft_problem *p, weft_rates *rates);
    weft_status (*run_once)(void *user, const weft_problem *p, const weft_args *args, void *stream);
} weft_external;
#define WEFT_EXTERNAL_INIT {sizeof(weft_external), NULL, 1, 0, NULL, NULL, NULL, NULL}

/* once, before the first plan */
WEFT_API weft_status weft_ctx_set_external(weft_ctx *ctx, const weft_external *external);

/* ------------------------------------------------------------------ 8. Wisdom
 * Text, one line for each entry: device, weft version, threads, problem, kernel and its version, ns, workspace. Lines
 * that begin with # are comments. A bad line is skipped and counted, never fatal. Saving merges with what the file
 * holds, under the lock of FILE.lock, and replaces it by rename: mode, owner and symbolic links stay. A file that is
 * not wisdom is left alone and is an error; so is a lock that another process holds for longer than lock_seconds. */
typedef struct weft_wisdom_report {
    size_t size;                                /* sizeof(weft_wisdom_report) */
    int64_t entries, bad_lines, other_machines; /* of this CPU or of any GPU; skipped; kept for other CPUs */
} weft_wisdom_report;
#define WEFT_WISDOM_REPORT_INIT {sizeof(weft_wisdom_report), 0, 0, 0}

WEFT_API weft_status weft_wisdom_load(weft_ctx *ctx, const char *path, weft_wisdom_report *report);
WEFT_API weft_status weft_wisdom_save(weft_ctx *ctx, const char *path, weft_wisdom_report *report);
WEFT_API weft_status weft_wisdom_parse(weft_ctx *ctx, const char *text, size_t length, weft_wisdom_report *report);
/* All entries as text, always 0-terminated if capacity > 0. *length (may be NULL) is what it takes without the 0. */
WEFT_API weft_status weft_wisdom_format(const weft_ctx *ctx, char *text, size_t capacity, size_t *length);
WEFT_API weft_status weft_wisdom_forget(weft_ctx *ctx, const weft_problem *p); /* p NULL: everything */
WEFT_API size_t weft_wisdom_count(const weft_ctx *ctx);

/* ---------------------------------------------------------- 9. Sparse weights
 * sparse_conv takes weights (o, (c/groups)*kd*kh*kw) in CSR: weights, the nnz values; rows, o+1 places where rows
 * begin and end; cols, the nnz columns. A column ((i*kd + r)*kh + s)*kw + t is channel i of the group and tap (r, s,
 * t). Stretched, it is the tap's offset in the padded input of the group, ((i*Pd + r*dd)*Ph + s*dh)*Pw + t*dw with P
 * = in + low pad + high pad; the input itself is never padded. The functions here work in host memory. p is a
 * sparse_conv problem whose pass is fwd, bwd_data or bwd; the data types and the strides of the vectors are those of
 * its tensors weights, rows and cols.
 *   weft_problem p = WEFT_PROBLEM_INIT;
 *   weft_problem_parse(&p, "sparse_conv2d:fwd:f32:nchw:n1c8h32w32:o8k3p1nnz0");
 *   weft_sparse_count(&p, NULL, dense, &nnz);                      say 123: room for 123 values, 9 rows, 123 columns
 *   weft_problem_parse(&p, "sparse_conv2d:fwd:f32:nchw:n1c8h32w32:o8k3p1nnz123");
 *   weft_sparse_build(&p, NULL, dense, values, rows, cols); */

/* Elements of the dense weights that are not 0 (NaN is not). dense: data type and layout or strides of the weights
 * of a convolution of the same geometry; NULL: channels-first, in the data type of p's weights. The nnz of p is not
 * looked at. */
WEFT_API weft_status weft_sparse_count(const weft_problem *p, const weft_tensor *dense, const void *weights,
                                       int64_t *nnz);
/* Fills the three vectors, columns rising in each row and stretched if p says so. There must be nnz elements that
 * are not 0. */
WEFT_API weft_status weft_sparse_build(const weft_problem *p, const weft_tensor *dense, const void *weights,
                                       void *values, void *rows, void *cols);
/* Plain columns to stretched ones for the geometry of p; the two may be the same memory. */
WEFT_API weft_status weft_sparse_stretch(const weft_problem *p, const void *cols, void *stretched);
/* Is it CSR for p? rows from 0 to nnz and never falling, columns in range; their order is free and equal ones add
 * up. weft_execute does not look: what fails here gives it wrong numbers, but never an access outside of a tensor. */
WEFT_API weft_status weft_sparse_check(const weft_problem *p, const void *rows, const void *cols);

#ifdef __cplusplus
}
#endif
#endif
