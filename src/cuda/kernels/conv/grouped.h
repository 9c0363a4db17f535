/* What the grouped kernels share: sizes, strides and the relation of dests to sources, as in depthwise.h. In fwd a
 * group's dests are its output channels and the sources src; in the data gradient they are its input channels and
 * diff_dst. Both sides read this file. */
#ifndef WEFT_CUDA_GROUPED_H
#define WEFT_CUDA_GROUPED_H

#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "epilogue.h"

enum { MODE_FWD, MODE_DATA, MODE_WEIGHTS, MODE_BOTH };
enum { THREADS = 128, FINISH_THREADS = 256 };
enum { PLANE_SLOTS = 4, ZEROS = 40 }; /* by planes: slots of sources; a row of zeros, of the widest line and more */

typedef struct grouped_args {
    const void *source, *weights, *bias, *at; /* at: src in the gradient of the weights */
    void *dest, *diff_weights, *diff_bias;
    float *partial;                                   /* [slice][weight] */
    int64_t source_step[5], dest_step[5], at_step[5]; /* elements between neighbours in n c d h w */
    int32_t from[3], to[3];                           /* d h w of source and dest */
    int32_t inner, outer;                             /* channels of a group in source and dest */
    int32_t across, down, tiles;                      /* tiles of a row, of a column, of all images */
    int32_t n, groups;
    int32_t slices, per, chunks; /* weights: of all positions; chunks of a slice, and of a plane */
    int32_t strips, slot, own;   /* planes: strips of a plane; elements of the slots in shared memory */
    weft__epilogue epilogue;
} grouped_args;

#ifndef __CUDACC_RTC__
typedef struct grouped_tile {
    int32_t mode, ry, rx, many, parts; /* dests of a thread: rows, columns, channels; parts: of a group's dests */
    size_t smem;
    int32_t outs, ins, warps, slices, per; /* weights: channels of a warp, warps of a block; slices of the positions */
    int32_t across, down, strips, threads, blocks, slot, own, right; /* planes */
    double work;                                                     /* planes: of the warps of one, in instructions */
} grouped_tile;

static inline int grouped_mode(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD           ? MODE_FWD
           : p->pass == WEFT_PASS_BWD_DATA    ? MODE_DATA
           : p->pass == WEFT_PASS_BWD_WEIGHTS ? MODE_WEIGHTS
                                              : MODE_BOTH;
}

/* NULL, or why not. */
static inline const char *grouped_refusal(const weft_problem *p) {
    const int64_t in = p->c / p->groups, out = p->o / p->groups;
    if (in < 2 || out < 1 || in > 32 || out > 64) return "2 to 32 input channels of a group, up to 64 output channels";
    if (p->groups < 2) return "one group";
    if (p->groups > 4096) return "over 4096 groups";
    if (p->pass == WEFT_PASS_BWD_DATA && p->nsteps) return "an epilogue of transposed convolution";
    if (p->n > 1 << 20) return "2^20 images or more";
    for (int a = 0; a < 3; a++) {
        if (p->in[a] > 1 << 20 || p->out[a] > 1 << 20) return "an axis of 2^20 or more";
        if (p->stride[a] > 2 || p->dilation[a] > 4 || p->kernel[a] > 7)
            return "stride over 2, dilation over 4, kernel over 7";
        if (p->pad_lo[a] > (p->kernel[a] - 1) * p->dilation[a]) return "padding as wide as the window";
    }
    if (p->kernel[1] * p->kernel[2] > 25) return "a window of too many taps";
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        const bool weights = t->role == WEFT_ROLE_WEIGHTS || t->role == WEFT_ROLE_DIFF_WEIGHTS;
        if (t->rank < 5 && !weft__is_first(t)) return "a bias with gaps";
        if (weights && !weft__is_first(t) && !weft__is_last(t)) return "weights that are not dense";
        if (t->rank == 5 && t->dtype != p->tensor[0].dtype) return "data of several types";
    }
    return NULL;
}

static inline void grouped_steps(const weft_tensor *t, int64_t step[5]) {
    for (int a = 0; a < 5 && t; a++) step[a] = t->strides[a];
}

static inline grouped_args grouped_args_of(const weft__exec *e, bool fwd) {
    const weft_problem *p = e->p;
    const int64_t in = p->c / p->groups, out = p->o / p->groups;
    grouped_args a = {.source = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST],
                      .weights = e->ptr[WEFT_ROLE_WEIGHTS],
                      .bias = e->ptr[WEFT_ROLE_BIAS],
                      .at = e->ptr[WEFT_ROLE_SRC],
                      .dest = e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC],
                      .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS],
                      .diff_bias = e->ptr[WEFT_ROLE_DIFF_BIAS],
                      .partial = e->workspace,
                      .inner = (int32_t)(fwd ? in : out),
                      .outer = (int32_t)(fwd ? out : in),
                      .n = (int32_t)p->n,
                      .groups = (int32_t)p->groups};
    grouped_steps(weft__tensor(p, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST), a.source_step);
    grouped_steps(weft__tensor(p, fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC), a.dest_step);
    grouped_steps(weft__tensor(p, WEFT_ROLE_SRC), a.at_step);
    for (int i = 0; i < 3; i++) {
        a.from[i] = (int32_t)(fwd ? p->in[i] : p->out[i]);
        a.to[i] = (int32_t)(fwd ? p->out[i] : p->in[i]);
    }
    if (fwd) a.epilogue = weft__epilogue_args(p);
    return a;
}

/* Weights whose input channels are nearer than their taps. */
static inline bool grouped_turned(const weft_problem *p, int role) {
    const weft_tensor *t = weft__tensor(p, role);
    return t && !weft__is_first(t);
}

static inline void grouped_defines(const weft_problem *p, int mode, weft__text *text) {
    cuda_defines(p, 1, text);
    weft__put(text, " -DSTRICT=%d -DMODE=%d -DBIASED=%d", p->math == WEFT_MATH_STRICT, mode,
              mode == MODE_WEIGHTS && weft__has_step(p, WEFT_STEP_BIAS));
    for (int a = 0; a < 3; a++)
        weft__put(text, " -DK%d=%d -DS%d=%d -DP%d=%d -DD%d=%d", a, (int)p->kernel[a], a, (int)p->stride[a], a,
                  (int)p->pad_lo[a], a, (int)p->dilation[a]);
    weft__put(text, " -DWEIGHTS_LAST=%d -DDIFF_WEIGHTS_LAST=%d", grouped_turned(p, WEFT_ROLE_WEIGHTS),
              grouped_turned(p, WEFT_ROLE_DIFF_WEIGHTS));
    cuda_define_type(p, mode == MODE_FWD ? WEFT_ROLE_BIAS : WEFT_ROLE_DIFF_BIAS, "BIAS_T", text);
    if (mode == MODE_FWD)
        weft__epilogue_defines(p, text);
    else
        weft__put(text, " -DSTEP0=0 -DSTEP1=0 -DSTEP2=0 -DSTEP3=0");
}

/* Columns or rows of a thread: few past the end. */
static inline int grouped_best(const weft_problem *p, int axis, const int *many, int step) {
    const int64_t to = p->pass == WEFT_PASS_FWD ? p->out[axis] : p->in[axis];
    int best = step;
    double least = 1e30;
    for (int i = 0; many[i]; i++) {
        if (many[i] % step) continue;
        const double cost = (double)cuda_ceil(to + step - 1, many[i]) * (many[i] + 0.3 * (double)p->kernel[axis]);
        if (cost < least) best = many[i], least = cost;
    }
    return best;
}

static inline const char *grouped_tile_of(const weft_problem *p, grouped_tile *t) {
    static const int columns[] = {5, 4, 2, 1, 0}, wide[] = {4, 2, 0}, two[] = {2, 1, 0}, four[] = {4, 2, 1, 0};
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t outer = (fwd ? p->o : p->c) / p->groups, inner = (fwd ? p->c : p->o) / p->groups;
    t->mode = fwd ? MODE_FWD : MODE_DATA;
    t->many = outer % 8 == 0 ? 8 : outer % 4 == 0 ? 4 : outer % 2 == 0 ? 2 : 1;
    t->parts = (int32_t)(outer / t->many);
    t->rx = grouped_best(p, 2, fwd ? columns : p->stride[2] == 2 ? wide : columns, fwd ? 1 : (int)p->stride[2]);
    t->ry = grouped_best(p, 1, t->many == 8 ? two : four, fwd ? 1 : (int)p->stride[1]);
    t->smem = (size_t)(inner * p->kernel[0] * p->kernel[1] * p->kernel[2] * t->many) * sizeof(float);
    if (t->smem > 96 << 10) return "weights that do not fit into shared memory";
    return NULL;
}

static inline void grouped_place(const weft_problem *p, const grouped_tile *t, grouped_args *a) {
    const bool fwd = t->mode == MODE_FWD;
    const int64_t phase[2] = {fwd ? 0 : p->pad_lo[1] % p->stride[1], fwd ? 0 : p->pad_lo[2] % p->stride[2]};
    a->across = (int32_t)cuda_ceil(a->to[2] + phase[1], t->rx);
    a->down = (int32_t)cuda_ceil(a->to[1] + phase[0], t->ry);
    a->tiles = (int32_t)((int64_t)a->n * a->to[0] * a->down * a->across);
}

/* Of the device's multiply-adds, as loads let it. */
static inline double grouped_share(const grouped_tile *t) { return t->many == 8 ? 0.3 : t->many == 4 ? 0.2 : 0.13; }

static inline int grouped_line(const weft_problem *p, bool fwd, int axis, int many) {
    const int64_t reach = (p->kernel[axis] - 1) * p->dilation[axis], s = p->stride[axis];
    return (int)(fwd ? (many - 1) * s + reach + 1 : (many - 1) / s + reach / s + 1);
}

/* The time of the tiles but for the launch: what loads leave of the multiply-adds, or a thread's windows one after the
 * other, some blocks of a multiprocessor at a time; channels-last each lane of a load reads another line. As measured
 * on an H200. */
static inline double grouped_tile_ns(const weft_problem *p, const weft__hw *hw, const grouped_tile *t) {
    const bool fwd = t->mode == MODE_FWD;
    const int64_t *from = fwd ? p->in : p->out, *to = fwd ? p->out : p->in;
    const double sms = hw->gpu->sms;
    const bool half = weft__dtype_size(p->tensor[0].dtype) == 2;
    const int64_t down = cuda_ceil(to[1], t->ry), across = cuda_ceil(to[2], t->rx);
    const int64_t blocks = cuda_ceil(p->n * to[0] * down * across, THREADS) * p->groups * t->parts;
    const int rows = grouped_line(p, fwd, 1, t->ry), line = grouped_line(p, fwd, 2, t->rx);
    const double planes = (double)((fwd ? p->c : p->o) / p->groups * p->kernel[0]), loads = planes * rows * line;
    const double serial = loads * (40 + 13 * t->many) * WEFT__MAX((double)blocks / (4 * sms), 1);
    double lines = 0;
    if (weft__tensor(p, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST)->strides[1] == 1 && p->groups * planes > 1) {
        const double warps = (double)(p->n * to[0] * down * across) / 32 * (double)(p->groups * t->parts);
        const double inside = WEFT__MIN((double)from[1] * (double)from[2] / ((double)(down * across) * rows * line), 1);
        lines = 13 * warps * (loads * inside + t->ry * t->rx * t->many) / sms;
    }
    const double each = weft__flops(p) / (p->pass == WEFT_PASS_BWD ? 2 : 1);
    const double full =
        weft__bytes(p) / (hw->gpu->gbs * (half ? 0.3 : 0.5)) + each / (grouped_share(t) * hw->gpu->gflops);
    return WEFT__MAX(full, serial + lines);
}

static inline void grouped_tile_defines(const weft_problem *p, const weft__hw *hw, const void *params,
                                        weft__text *text) {
    const grouped_tile *t = params;
    (void)hw;
    grouped_defines(p, t->mode, text);
    weft__put(text, " -DRY=%d -DRX=%d -DMANY=%d", t->ry, t->rx, t->many);
}

static inline weft_status grouped_run(const weft__exec *e) {
    const grouped_tile *t = e->params;
    grouped_args a = grouped_args_of(e, t->mode == MODE_FWD);
    grouped_place(e->p, t, &a);
    const weft__launch launch = {.grid = {(uint32_t)cuda_ceil(a.tiles, THREADS), (uint32_t)(a.groups * t->parts), 1},
                                 .block = {THREADS, 1, 1},
                                 .smem = t->smem};
    return weft__cuda_launch(e, 0, &launch, &a);
}

/* ---------------------------------------------------------------- by planes: grouped_planes.cu */
/* Sources of a strip of `dests` rows, as many as exist at most. */
static inline int64_t grouped_sources(const weft_problem *p, bool fwd, int64_t dests) {
    const int64_t s = p->stride[1], reach = (p->kernel[1] - 1) * p->dilation[1];
    return fwd ? WEFT__MIN((dests - 1) * s + reach + 1, p->in[1]) : WEFT__MIN((dests + reach - 1) / s + 2, p->out[1]);
}

/* The first source column of a tile that begins at a dest. */
static inline int64_t grouped_first(const weft_problem *p, bool fwd, int64_t dest) {
    const int64_t s = p->stride[2], pad = p->pad_lo[2], reach = (p->kernel[2] - 1) * p->dilation[2];
    return fwd ? dest * s - pad : (dest + pad) / s - reach / s;
}

/* Instructions of a thread for one source plane. */
static inline double grouped_work(const weft_problem *p, bool fwd, const grouped_tile *t) {
    const double taps = (double)(p->kernel[1] * p->kernel[2]), steps = fwd ? 1 : (double)(p->stride[1] * p->stride[2]);
    return taps * t->ry * t->rx * t->many / steps + taps * ((t->many + 3) / 4) +
           1.2 * grouped_line(p, fwd, 1, t->ry) * grouped_line(p, fwd, 2, t->rx) + 30;
}

/* The tile of a thread and the strip of a block: the least work, with what threads past the end waste. Columns are odd,
 * so that threads side by side read different banks. */
static inline double grouped_best_strip(const weft_problem *p, grouped_tile *t) {
    const bool fwd = t->mode == MODE_FWD;
    const int64_t *to = fwd ? p->out : p->in;
    const int sy = fwd ? 1 : (int)p->stride[1], sx = fwd ? 1 : (int)p->stride[2];
    const int64_t py = fwd ? 0 : p->pad_lo[1] % sy, px = fwd ? 0 : p->pad_lo[2] % sx;
    double least = 1e300;
    grouped_tile best = *t;
    for (int rx = sx; rx <= 7 * sx; rx += 2 * sx)
        for (int ry = sy; ry <= 5 * sy && rx * ry * t->many <= (rx * ry == sx * sy ? 1024 : 56); ry += sy) {
            const int64_t across = cuda_ceil(to[2] + px, rx), all = cuda_ceil(to[1] + py, ry);
            t->rx = rx, t->ry = ry;
            for (int64_t down = 1; down <= all && across * down <= 256; down++) {
                const double strips = (double)cuda_ceil(all, down), warps = (double)cuda_ceil(across * down, 32);
                const double cost = strips * (warps * grouped_work(p, fwd, t) + 40);
                if (cost >= least) continue;
                least = cost;
                best = *t;
                best.down = (int32_t)down, best.across = (int32_t)across, best.strips = (int32_t)strips;
                best.threads = (int32_t)warps * 32;
            }
        }
    *t = best;
    return least;
}

static inline const char *grouped_planes_of(const weft_problem *p, const weft__hw *hw, grouped_tile *t) {
    const char *refusal = grouped_refusal(p);
    if (refusal) return refusal;
    if (hw->gpu->cc < 90) return "a GPU without bulk copies";
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense channels-first";
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t outer = (fwd ? p->o : p->c) / p->groups, inner = (fwd ? p->c : p->o) / p->groups;
    const int64_t *from = fwd ? p->in : p->out, *to = fwd ? p->out : p->in;
    const int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype);
    t->mode = fwd ? MODE_FWD : MODE_DATA;
    t->many = outer % 8 == 0 ? 8 : outer % 4 == 0 ? 4 : outer % 2 == 0 ? 2 : 1;
    t->parts = (int32_t)(outer / t->many);
    t->work = grouped_best_strip(p, t);
    if (t->work > 1e299) return "rows that are too long for a block";
    if (p->n * to[0] * t->strips > INT32_MAX) return "2^31 strips or more";
    const int64_t rows = (int64_t)t->down * t->ry,
                  window = grouped_line(p, fwd, 1, t->ry) * grouped_line(p, fwd, 2, t->rx);
    if (window > 128) return "a window of too many taps";
    const int64_t phase = fwd ? 0 : p->pad_lo[2] % p->stride[2], line = grouped_line(p, fwd, 2, t->rx);
    const int64_t first = grouped_first(p, fwd, -phase), last = grouped_first(p, fwd, (t->across - 1) * t->rx - phase);
    t->right = (int32_t)(line - WEFT__MAX(WEFT__MIN(from[2] - last, line), 0));
    const int64_t reach = WEFT__MAX(WEFT__MAX(-first, last + line - from[2]), 0);
    t->slot = cuda_slot(grouped_sources(p, fwd, rows) * from[2], reach, size);
    t->own = cuda_slot(WEFT__MIN(rows, to[1]) * to[2], 0, size);
    const int64_t filter = inner * p->kernel[0] * p->kernel[1] * p->kernel[2] * t->many;
    t->smem = (size_t)(8 * PLANE_SLOTS + (filter + 4) * 4 +
                       (ZEROS + WEFT__MAX(PLANE_SLOTS * t->slot, t->many * t->own)) * size);
    if (t->smem > 100 << 10) return "strips or weights that do not fit into shared memory";
    const int64_t registers = t->rx * t->ry * t->many + window + t->many + 12;
    for (t->blocks = (int32_t)WEFT__MIN(hw->gpu->smem / (t->smem + 1024), 8); t->blocks > 1; t->blocks--)
        if (16384 / cuda_ceil(t->blocks * t->threads / 32, 4) / 32 >= registers) break;
    return NULL;
}

/* Work of all planes at so many warp instructions in a nanosecond, and the bytes; or the planes of a block one after
 * the other, each a wait for all threads and the instructions of a warp. */
static inline double grouped_planes_ns(const weft_problem *p, const weft__hw *hw, const grouped_tile *t) {
    const bool fwd = t->mode == MODE_FWD;
    const double inner = (double)((fwd ? p->c : p->o) / p->groups * p->kernel[0]);
    const double planes =
        (double)(p->n * (fwd ? p->out[0] : p->in[0]) * p->groups * t->parts) * inner / (fwd ? 1 : (double)p->stride[0]);
    const double full = planes * t->work * 32 / (0.5 * hw->gpu->gflops * 0.6) + weft__bytes(p) / (hw->gpu->gbs * 0.5);
    return WEFT__MAX(full, inner * (550 + 1.5 * t->work / t->strips * 32 / t->threads));
}

static inline void grouped_planes_defines(const weft_problem *p, const weft__hw *hw, const void *params,
                                          weft__text *text) {
    const grouped_tile *t = params;
    grouped_tile_defines(p, hw, params, text);
    weft__put(text, " -DWIDE=%d -DBLOCKS=%d -DRIGHT=%d", t->threads, t->blocks, t->right);
}

static inline weft_status grouped_planes_run(const weft__exec *e) {
    const grouped_tile *t = e->params;
    grouped_args a = grouped_args_of(e, t->mode == MODE_FWD);
    a.across = t->across, a.down = t->down, a.strips = t->strips;
    a.slot = t->slot, a.own = t->own;
    const weft__launch launch = {
        .grid = {(uint32_t)((int64_t)a.n * a.to[0] * a.strips), (uint32_t)(a.groups * t->parts), 1},
        .block = {(uint32_t)t->threads, 1, 1},
        .smem = t->smem};
    return weft__cuda_launch(e, 0, &launch, &a);
}

/* ---------------------------------------------------------------- gradients of weights and bias: slices, then sums */
/* Sums of a slice. */
static inline int64_t grouped_sums_of(const weft_problem *p) {
    return p->o * (p->c / p->groups) * p->kernel[0] * p->kernel[1] * p->kernel[2] +
           (weft__has_step(p, WEFT_STEP_BIAS) ? p->o : 0);
}

/* The greatest power of two up to `most` that divides n. */
static inline int grouped_divisor(int64_t n, int64_t most) {
    int best = 1;
    for (int i = 2; i <= most; i *= 2)
        if (n % i == 0) best = i;
    return best;
}

/* Adds the slices up. */
static inline weft_status grouped_finish(const weft__exec *e, int part, const grouped_args *a) {
    const weft__launch launch = {.grid = {(uint32_t)cuda_ceil(grouped_sums_of(e->p), FINISH_THREADS), 1, 1},
                                 .block = {FINISH_THREADS, 1, 1}};
    return weft__cuda_launch(e, part, &launch, a);
}

#define GROUPED_GRADIENT(id, text, pass, strictly, ...)                   \
    const weft__kernel weft__cuda_##id = {.name = text,                   \
                                          .version = 1,                   \
                                          .op = WEFT_OP_CONV,             \
                                          .engine = WEFT_ENGINE_CUDA,     \
                                          .passes = WEFT__PASS_SET(pass), \
                                          .dtypes = CUDA_FLOATS,          \
                                          .steps = WEFT__STEP_SET(BIAS),  \
                                          .not_strict = !(strictly),      \
                                          .exact = true,                  \
                                          .plan = plan,                   \
                                          .run = run,                     \
                                          WEFT__PARTS(__VA_ARGS__)}
#endif

#endif
