/* Convolution and its data gradient as one sum, so that the same loops serve both.
 *   out[q] = sum over taps j and reduced channels of weights[tap(j)] * in[q * move + at + j * hop]     along each axis
 * fwd           positions q are those of dst, move is the stride
 * bwd_data      one view for each residue of the stride: positions first + q * step of diff_src meet every stride-th
 * tap,
 *               and diff_dst is read at unit distance. A residue that no tap meets has an empty sum.
 *               Windows side by side (kernel = stride, no padding) are one view: a position of diff_dst makes a window
 *               of diff_src, and the taps of a channel are as many rows of the product (`spread`).
 * The order of the sum is k = tap * ci + channel, in weights and in data. */
#ifndef WEFT_CPU_CONV_GEMM_VIEW_H
#define WEFT_CPU_CONV_GEMM_VIEW_H

#include <stdatomic.h>

#include "cpu/gemm/gemm.h"

typedef struct gemm_axis {
    int64_t count, first, step;  /* output positions first + q * step, q < count */
    int64_t out, in;             /* sizes of the tensors */
    int64_t move, at, hop;       /* input position of q and tap j */
    int64_t taps, tap, tap_step; /* tap j of the view is tap + j * tap_step of the window */
} gemm_axis;

typedef struct gemm_view {
    gemm_axis x[3];
    int64_t n, groups, ci, co;   /* reduced and produced channels of a group; co counts each `spread` times */
    int64_t spread;              /* positions that one position of the view makes of a channel: its taps, or 1 */
    int64_t in_plane, out_plane; /* positions of an image in the tensors */
    int64_t taps, k, pixels;     /* pixels: produced positions of the batch */
    int64_t first_tap;           /* taps of the views before this one */
    int64_t across;              /* pairs of taps along a row: how far apart they are; 0: none, or pairs of channels */
} gemm_view;

VF_INLINE int64_t gemm_gcd(int64_t a, int64_t b) {
    while (b) {
        const int64_t r = a % b;
        a = b, b = r;
    }
    return a;
}

VF_INLINE gemm_axis gemm_axis_fwd(const weft_problem *p, int a) {
    return (gemm_axis){.count = p->out[a],
                       .step = 1,
                       .out = p->out[a],
                       .in = p->in[a],
                       .move = p->stride[a],
                       .at = -p->pad_lo[a],
                       .hop = p->dilation[a],
                       .taps = p->kernel[a],
                       .tap_step = 1};
}

/* Taps r with (first + pad - r * dilation) divisible by the stride s: r = tap + j * (s / gcd(s, dilation)). */
VF_INLINE gemm_axis gemm_axis_bwd(const weft_problem *p, int a, int64_t first) {
    const int64_t s = p->stride[a], d = p->dilation[a], every = s / gemm_gcd(s, d), base = first + p->pad_lo[a];
    gemm_axis x = {.first = first,
                   .step = s,
                   .out = p->in[a],
                   .in = p->out[a],
                   .move = 1,
                   .tap_step = every,
                   .hop = -(every * d / s)};
    x.count = first < p->in[a] ? cpu_ceil(p->in[a] - first, s) : 0;
    while (x.tap < every && x.tap < p->kernel[a] && (base - x.tap * d) % s) x.tap++;
    if (x.tap < every && x.tap < p->kernel[a]) {
        x.taps = cpu_ceil(p->kernel[a] - x.tap, every);
        x.at = (base - x.tap * d) / s;
    }
    return x;
}

VF_INLINE bool gemm_is_pointwise(const weft_problem *p) {
    for (int a = 0; a < 3; a++)
        if (p->kernel[a] != 1 || p->stride[a] != 1 || p->pad_lo[a] || p->pad_hi[a]) return false;
    return true;
}

VF_INLINE int64_t gemm_window(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }

/* Some of diff_src is behind the last window. */
VF_INLINE bool gemm_has_rest(const weft_problem *p) {
    for (int a = 0; a < 3; a++)
        if (p->in[a] != p->out[a] * p->stride[a]) return true;
    return false;
}

/* The windows of diff_src lie side by side. What they leave out is 0: not with an epilogue, which would work on it. */
VF_INLINE bool gemm_is_spread(const weft_problem *p) {
    for (int a = 0; a < 3; a++)
        if (p->kernel[a] != p->stride[a] || (p->kernel[a] > 1 && p->dilation[a] > 1) || p->pad_lo[a] || p->pad_hi[a] ||
            p->out[a] < 1)
            return false;
    return gemm_window(p) > 1 && (p->pass != WEFT_PASS_BWD_DATA || p->nsteps == 0 || !gemm_has_rest(p));
}

enum { GEMM_VIEWS = 4096 }; /* at most */
VF_INLINE int64_t gemm_views(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD || gemm_is_spread(p) ? 1 : p->stride[0] * p->stride[1] * p->stride[2];
}

VF_INLINE gemm_axis gemm_axis_spread(const weft_problem *p, int a) {
    return (gemm_axis){.count = p->out[a],
                       .step = p->stride[a],
                       .out = p->in[a],
                       .in = p->out[a],
                       .move = 1,
                       .taps = 1,
                       .tap_step = 1};
}

/* Taps of the residues before `first`; those of all together are the window. */
VF_INLINE int64_t gemm_taps_before(const weft_problem *p, int a, int64_t first) {
    int64_t taps = 0;
    for (int64_t i = 0; i < first; i++) taps += gemm_axis_bwd(p, a, i).taps;
    return taps;
}

/* View number i. A 1x1 window makes rows of whole images. */
VF_INLINE gemm_view gemm_view_of(const weft_problem *p, bool fwd, int64_t i) {
    const bool spread = !fwd && gemm_is_spread(p);
    int64_t before = 1; /* taps of the axes so far */
    gemm_view v = {.n = p->n, .groups = p->groups, .spread = spread ? gemm_window(p) : 1};
    v.ci = (fwd ? p->c : p->o) / p->groups;
    v.co = (fwd ? p->o : p->c) / p->groups * v.spread;
    for (int a = 2; a >= 0; i /= p->stride[a], a--)
        v.x[a] = fwd ? gemm_axis_fwd(p, a) : spread ? gemm_axis_spread(p, a) : gemm_axis_bwd(p, a, i % p->stride[a]);
    if (gemm_is_pointwise(p)) {
        gemm_axis *x = &v.x[2];
        x->count = x->out = x->in = x->count * v.x[0].count * v.x[1].count;
        for (int a = 0; a < 2; a++) v.x[a].count = v.x[a].out = v.x[a].in = 1;
    }
    for (int a = 0; a < 3 && !fwd && !spread; a++)
        v.first_tap = v.first_tap * p->kernel[a] + before * gemm_taps_before(p, a, v.x[a].first), before *= v.x[a].taps;
    v.in_plane = v.x[0].in * v.x[1].in * v.x[2].in;
    v.out_plane = v.x[0].out * v.x[1].out * v.x[2].out;
    v.taps = v.x[0].taps * v.x[1].taps * v.x[2].taps;
    v.k = v.taps * v.ci;
    v.pixels = v.n * v.x[0].count * v.x[1].count * v.x[2].count;
    return v;
}

/* The weight of output channel 0 of the group, reduced channel 0 and tap number `tap` of the view. */
VF_INLINE int64_t gemm_weight_at(const weft_problem *p, const gemm_view *v, int64_t group, int64_t tap) {
    int64_t at[3];
    for (int a = 2; a >= 0; tap /= v->x[a].taps, a--) at[a] = v->x[a].tap + tap % v->x[a].taps * v->x[a].tap_step;
    return group * v->ci * v->co * (gemm_window(p) / v->spread) + (at[0] * p->kernel[1] + at[1]) * p->kernel[2] + at[2];
}
/* Steps in the weights from one output channel, or row of a spread one, and from one reduced channel, to the next. */
VF_INLINE int64_t gemm_weight_out(const weft_problem *p, const gemm_view *v, bool fwd) {
    return (fwd ? v->ci : 1) * gemm_window(p) / v->spread;
}
VF_INLINE int64_t gemm_weight_in(const weft_problem *p, const gemm_view *v, bool fwd) {
    return (fwd ? 1 : v->co) * gemm_window(p) / v->spread;
}

/* How far tap number `tap` of a spread window is from its first, in positions of the output. */
VF_INLINE int64_t gemm_spread_at(const weft_problem *p, const gemm_view *v, int64_t tap) {
    const int64_t t = tap % p->kernel[2], s = tap / p->kernel[2] % p->kernel[1], r = tap / p->kernel[2] / p->kernel[1];
    return v->spread == 1 ? 0 : (r * v->x[1].out + s) * v->x[2].out + t;
}

/* ---------------------------------------------------------------- scratch
 * One piece for each slot that may run at a time. A slot takes the first that is free, so that few threads stay in few
 * pieces, hot in their caches; what is in a piece before does not matter. */
enum { GEMM_SLOTS = 48 };
typedef struct gemm_scratch {
    char *base;
    size_t bytes; /* of one */
    _Atomic uint64_t taken;
} gemm_scratch;

VF_INLINE int gemm_take(gemm_scratch *s) {
    uint64_t taken = atomic_load(&s->taken);
    for (;;) {
        const int i = __builtin_ctzll(~taken);
        if (atomic_compare_exchange_weak(&s->taken, &taken, taken | UINT64_C(1) << i)) return i;
    }
}
VF_INLINE void gemm_give(gemm_scratch *s, int i) { atomic_fetch_and(&s->taken, ~(UINT64_C(1) << i)); }

/* ---------------------------------------------------------------- elements */
/* call(..., dtype) with the data type as a constant. */
#define GEMM_BY_DTYPE(dtype, call, ...)         \
    do {                                        \
        if ((dtype) == WEFT_DTYPE_F32)          \
            call(__VA_ARGS__, WEFT_DTYPE_F32);  \
        else if ((dtype) == WEFT_DTYPE_BF16)    \
            call(__VA_ARGS__, WEFT_DTYPE_BF16); \
        else                                    \
            call(__VA_ARGS__, WEFT_DTYPE_F16);  \
    } while (0)

VF_INLINE float gemm_load(int dtype, const void *p, int64_t at) {
    const uint16_t *h = (const uint16_t *)p + at;
    if (dtype == WEFT_DTYPE_F32) return ((const float *)p)[at];
    if (dtype == WEFT_DTYPE_BF16) {
        const uint32_t bits = (uint32_t)*h << 16;
        float f;
        memcpy(&f, &bits, sizeof(f));
        return f;
    }
    float lane[VF_LANES];
    vf_store(lane, vf_load_f16_count(h, 1));
    return lane[0];
}

/* Lanes lo <= i < hi of every move-th element from `at` on, the others 0; move a constant where it matters. */
VF_INLINE vf gemm_load_every(const void *in, int64_t at, int64_t move, int64_t lo, int64_t hi, const int dtype) {
    if (move == 1) return vf_load_in_as(dtype, vm_range(lo, hi), in, at);
    if (move == 2) {
        const vf a = vf_load_in_as(dtype, vm_range(2 * lo, 2 * hi - 1), in, at);
        const vf b = vf_load_in_as(dtype, vm_range(2 * lo - VF_LANES, 2 * hi - 1 - VF_LANES), in, at + VF_LANES);
        return vf_even(a, b);
    }
    float lane[VF_LANES] = {0};
    for (int64_t j = lo; j < WEFT__MIN(hi, VF_LANES); j++) lane[j] = gemm_load(dtype, in, at + j * move);
    return vf_load(lane);
}

/* Values that leave: bias, clip, accumulation, one rounding. */
typedef struct gemm_out {
    void *dst;
    int dtype;
    const float *bias; /* f32, whole vectors; NULL: none */
    float lo, hi, alpha, beta;
    bool acc;
} gemm_out;

VF_INLINE size_t gemm_bias_bytes(const weft_problem *p, int64_t channels) {
    return weft__tensor(p, WEFT_ROLE_BIAS) ? (size_t)cpu_round_up(channels + VF_LANES, 16) * sizeof(float) : 0;
}

/* room: gemm_bias_bytes of it. */
static inline gemm_out gemm_out_of(const weft__exec *e, int role, float *room) {
    const weft_problem *p = e->p;
    gemm_out f = {e->ptr[role], weft__tensor(p, role)->dtype, NULL, -INFINITY, INFINITY, 1, 0, false};
    for (int i = 0; i < p->nsteps; i++) {
        const weft_step *step = &p->step[i];
        if (step->kind == WEFT_STEP_RELU) f.lo = 0;
        if (step->kind == WEFT_STEP_CLIP) f.lo = fmaxf(f.lo, (float)step->lo), f.hi = (float)step->hi;
        if (step->kind == WEFT_STEP_ACC) f.acc = true, f.alpha = (float)step->alpha, f.beta = (float)step->beta;
    }
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_BIAS);
    if (bias) {
        const int64_t count = weft__numel(bias);
        for (int64_t i = 0; i < count; i++) room[i] = gemm_load(bias->dtype, e->ptr[WEFT_ROLE_BIAS], i);
        for (int64_t i = count; i < count + VF_LANES; i++) room[i] = 0;
        f.bias = room;
    }
    return f;
}

/* The first `left` lanes to consecutive elements from `at`. */
VF_INLINE void gemm_put_vector(const gemm_out *f, int64_t at, vf v, vf bias, int64_t left, const int dtype) {
    v = vf_clip(vf_add(v, bias), vf_set1(f->lo), vf_set1(f->hi));
    if (f->acc) v = vf_mul(v, vf_set1(f->alpha));
    if (f->acc && f->beta != 0) v = vf_fma(vf_load_count_as(dtype, f->dst, at, left), vf_set1(f->beta), v);
    vf_store_count_as(dtype, f->dst, at, v, left);
}

/* count values to consecutive elements from `at`, or to every `step`-th. */
VF_INLINE void gemm_put(const gemm_out *f, int64_t at, int64_t step, const float *values, vf bias, const float *biases,
                        int64_t count, const int dtype) {
    const vf lo = vf_set1(f->lo), hi = vf_set1(f->hi), alpha = vf_set1(f->alpha), beta = vf_set1(f->beta);
    const vmask even = vi_eq(vi_and(vi_iota(), vi_set1(1)), vi_zero());
    for (int64_t j = 0; j < count; j += VF_LANES) {
        const int64_t left = count - j;
        const vf value = vf_load_count(values + j, left), start = biases ? vf_load(biases + j) : bias;
        if (step == 1) {
            gemm_put_vector(f, at + j, value, start, left, dtype);
            continue;
        }
        float lane[VF_LANES];
        const int64_t here = WEFT__MIN(left, VF_LANES);
        vf v = vf_clip(vf_add(value, start), lo, hi);
        if (VF_LANES == 16 && step == 2 && dtype == WEFT_DTYPE_F32 && !f->acc) {
            float *to = (float *)f->dst + at + 2 * j;
            vf_store_in(vm_and(even, vm_first(2 * left - 1)), to, vf_zip_lo(v, v));
            vf_store_in(vm_and(even, vm_first(2 * left - 1 - VF_LANES)), to + VF_LANES, vf_zip_hi(v, v));
            continue;
        }
        if (!f->acc) {
            vf_store_as(dtype, lane, 0, v);
            for (int64_t i = 0; i < here; i++)
                if (dtype == WEFT_DTYPE_F32)
                    ((float *)f->dst)[at + (j + i) * step] = lane[i];
                else
                    memcpy((uint16_t *)f->dst + at + (j + i) * step, (char *)lane + 2 * i, 2);
            continue;
        }
        vf_store(lane, vf_mul(v, alpha));
        for (int64_t i = 0; i < here; i++) {
            const int64_t to = at + (j + i) * step;
            vf one = vf_set1(lane[i]);
            if (f->beta != 0) one = vf_fma(vf_load_count_as(dtype, f->dst, to, 1), beta, one);
            vf_store_count_as(dtype, f->dst, to, one, 1);
        }
    }
}

/* A run of values with one bias (bias_at), or with one each (bias_at + j). */
static inline void gemm_put_run(const gemm_out *f, int64_t at, int64_t step, const float *values, int64_t count,
                                int64_t bias_at, bool each) {
    const vf bias = f->bias && !each ? vf_set1(f->bias[bias_at]) : vf_zero();
    const float *biases = f->bias && each ? f->bias + bias_at : NULL;
    if (f->dtype == WEFT_DTYPE_F32)
        gemm_put(f, at, step, values, bias, biases, count, WEFT_DTYPE_F32);
    else if (f->dtype == WEFT_DTYPE_BF16)
        gemm_put(f, at, step, values, bias, biases, count, WEFT_DTYPE_BF16);
    else
        gemm_put(f, at, step, values, bias, biases, count, WEFT_DTYPE_F16);
}

/* ---------------------------------------------------------------- factors
 * What partial convolution adds: one factor for each position, the same for all channels. at NULL: none. */
typedef struct gemm_factor {
    const float *at; /* a plane for each image, or one for all */
    int64_t image;   /* floats from one to the next; 0: one for all */
    bool selects;    /* 0 makes 0 of anything, any other value leaves as it is */
} gemm_factor;
typedef struct gemm_factors {
    gemm_factor in;         /* of the image that is read */
    gemm_factor diff;       /* of diff_dst, in the weight gradient */
    gemm_factor bias;       /* of diff_dst, in the bias gradient */
    gemm_factor ratio, out; /* result = (sum * ratio + bias) * out */
} gemm_factors;
extern const gemm_factors WEFT__ISA_NAME(weft__gemm_no_factors);

VF_INLINE vf gemm_factor_apply(vf v, vf factor, const bool selects) {
    return selects ? vf_select(vf_eq(factor, vf_zero()), vf_zero(), v) : vf_mul(v, factor);
}

/* count values, at every step-th position from `at` of image n; one bias. */
static inline void gemm_scale(const gemm_factors *f, int64_t n, int64_t at, int64_t step, float *values, int64_t count,
                              float bias) {
    const float *ratio = f->ratio.at ? f->ratio.at + n * f->ratio.image + at : NULL;
    const float *out = f->out.at ? f->out.at + n * f->out.image + at : NULL;
    for (int64_t j = 0; j < count; j += VF_LANES) {
        const int64_t left = WEFT__MIN(count - j, VF_LANES);
        float r[VF_LANES] = {0}, u[VF_LANES] = {0};
        for (int64_t i = 0; i < left && step > 1; i++) {
            if (ratio) r[i] = ratio[(j + i) * step];
            if (out) u[i] = out[(j + i) * step];
        }
        vf v = vf_load_count(values + j, left);
        if (ratio) v = vf_mul(v, step > 1 ? vf_load(r) : vf_load_count(ratio + j, left));
        v = vf_add(v, vf_set1(bias));
        if (out) v = gemm_factor_apply(v, step > 1 ? vf_load(u) : vf_load_count(out + j, left), f->out.selects);
        vf_store_count(values + j, v, left);
    }
}
/* The same for `count` channels of one position; of values and bias whole vectors are read. */
static inline void gemm_scale_channels(const gemm_factors *f, int64_t n, int64_t at, float *values, int64_t count,
                                       const float *bias) {
    const vf ratio = vf_set1(f->ratio.at ? f->ratio.at[n * f->ratio.image + at] : 1);
    const vf out = vf_set1(f->out.at ? f->out.at[n * f->out.image + at] : 1);
    for (int64_t j = 0; j < count; j += VF_LANES) {
        const vf v = vf_fma(vf_load(values + j), ratio, bias ? vf_load(bias + j) : vf_zero());
        vf_store_count(values + j, gemm_factor_apply(v, out, f->out.selects), count - j);
    }
}

/* The kernels of this family as functions: run with factors, and plan. Their records do the same without. */
weft_status WEFT__ISA_NAME(weft__gemm_nchw)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__gemm_nhwc)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__gemm_weights)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__gemm_columns_data)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__gemm_columns_weights)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__conv_grouped)(const weft__exec *e, const gemm_factors *f); /* channels-first */
weft_status WEFT__ISA_NAME(weft__winograd_nchw)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__fft_nchw)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__fft_weights)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__conv_grouped_weights)(const weft__exec *e, const gemm_factors *f);
weft_status WEFT__ISA_NAME(weft__winograd_weights)(const weft__exec *e, const gemm_factors *f);
enum { GEMM_PARAMS = 224 }; /* bytes of the parameters of any kernel that others keep, at most */
/* Into how many parts, at most `most`, each of `items` is cut so that 16 threads, and half of them, have nearly as much
 * to do each: the fewest that leave an eighth of the time idle or less; if none does, those that leave the least. It
 * follows from the problem alone, so that sums by parts have the same bits for any number of threads. */
VF_INLINE int64_t gemm_parts(int64_t items, int64_t most) {
    const int64_t threads = 16;
    int64_t best = 1;
    double least = 16;
    for (int64_t parts = 1; parts <= most && items; parts++) {
        const int64_t all = items * parts, idle = cpu_round_up(all, threads) - all;
        const double share = (double)idle / (double)all;
        if (share < least) best = parts, least = share;
        if (8 * idle <= all) break;
    }
    return best;
}

enum { GEMM_WEIGHTS_PARAMS = 128 }; /* bytes of the parameters of weft__gemm_weights, at most */

/* ---------------------------------------------------------------- pairs of bf16
 * For files that say by GEMM_PAIRS what they multiply. Without the instruction a pair is taken apart. */
#if defined(__AVX512BF16__)
#define GEMM_PAIR_COST 1.12
#else
#define GEMM_PAIR_COST 6.0
#endif
#define gemm_multiply(t, m, v)                                          \
    (GEMM_PAIRS ? WEFT__ISA_NAME(weft__gemm_pairs)[(m) - 1][(v) - 1](t) \
                : WEFT__ISA_NAME(weft__gemm_tiles)[GEMM_STRIDED][(m) - 1][(v) - 1](t))

VF_INLINE bool gemm_is_bf16(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (t->role != WEFT_ROLE_BIAS && t->role != WEFT_ROLE_DIFF_BIAS && t->dtype != WEFT_DTYPE_BF16) return false;
    }
    return true;
}

/* ---------------------------------------------------------------- what windows side by side leave out */
typedef struct gemm_rest {
    char *at;
    int64_t bytes;
} gemm_rest;
enum { GEMM_REST_SLOTS = 16 };
static void gemm_clear(void *arg, int64_t slot) {
    const gemm_rest *r = arg;
    const int64_t first = cpu_first(r->bytes, GEMM_REST_SLOTS, slot);
    memset(r->at + first, 0, (size_t)(cpu_first(r->bytes, GEMM_REST_SLOTS, slot + 1) - first));
}
/* All of diff_src is 0 before the windows are written. */
static inline void gemm_clear_rest(const weft__exec *e) {
    const weft_problem *p = e->p;
    if (p->pass != WEFT_PASS_BWD_DATA || !gemm_is_spread(p) || !gemm_has_rest(p)) return;
    const weft_tensor *t = weft__tensor(p, WEFT_ROLE_DIFF_SRC);
    gemm_rest r = {e->ptr[WEFT_ROLE_DIFF_SRC], weft__numel(t) * (int64_t)weft__dtype_size(t->dtype)};
    weft__parallel(e->ctx, GEMM_REST_SLOTS, gemm_clear, &r);
}

/* ---------------------------------------------------------------- what is taken, and strict math */
/* ns to pack one weight, on one thread: it comes from memory, and goes there. */
#define GEMM_PACK_NS 1.3
/* Of the multiply-add peak, measured. */
#define GEMM_SHARE (VF_REGS == 32 ? 0.92 : 0.8)
#define GEMM_DTYPES (WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16))
#define GEMM_STEPS (CPU_EPILOGUE_STEPS | WEFT__STEP_SET(ACC))

/* The bounds of a clip are rounded to f32 here, the reference rounds after accumulation. */
VF_INLINE const char *gemm_epilogue_refusal(const weft_problem *p) {
    if (weft__has_step(p, WEFT_STEP_CLIP) && weft__has_step(p, WEFT_STEP_ACC)) return "accumulation after a clip";
    return cpu_epilogue_refusal(p);
}

/* What every kernel of this family refuses. */
VF_INLINE const char *gemm_refusal(const weft_problem *p, weft_layout layout) {
    if (p->op == WEFT_OP_CONV && p->groups > 1 && p->groups == p->c) return "depthwise: no channels to sum over";
    const char *reason = cpu_layout_refusal(p, layout);
    if (!reason) reason = gemm_epilogue_refusal(p);
    return reason;
}

/* Is diff_weights [o][tap][channel], as PyTorch wants it beside channels-last data? And the problem without it. */
VF_INLINE bool gemm_weights_last(const weft_problem *p) {
    const weft_tensor *t = weft__tensor(p, WEFT_ROLE_DIFF_WEIGHTS);
    return t && !weft__is_first(t) && weft__is_last(t);
}
static inline weft_problem gemm_drop_last(const weft_problem *p) {
    weft_problem rest = *p;
    rest.ntensors = 0;
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role != WEFT_ROLE_DIFF_WEIGHTS || !gemm_weights_last(p))
            rest.tensor[rest.ntensors++] = p->tensor[i];
    return rest;
}

VF_INLINE bool gemm_is_padded(const weft_problem *p) {
    for (int a = 0; a < 3; a++)
        if (p->pad_lo[a] || p->pad_hi[a]) return true;
    return false;
}

/* Padding is multiplied as zeros, which only a weight of infinity or NaN can tell from leaving it out. */
static inline bool gemm_all_finite(const weft_tensor *t, const void *p) {
    const int64_t count = weft__numel(t);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(gemm_load(t->dtype, p, i))) return false;
    return true;
}

typedef struct gemm_items {
    const weft__exec *e;
    int phase;
    int64_t count, slots;
} gemm_items;
static void gemm_item_range(void *arg, int64_t slot) {
    const gemm_items *q = arg;
    const weft__items *items = weft__op_of(q->e->p->op)->items;
    for (int64_t i = cpu_first(q->count, q->slots, slot); i < cpu_first(q->count, q->slots, slot + 1); i++)
        items->item(q->e->p, q->e->ptr, NULL, q->phase, i);
}
/* The definition itself, for the rare data that the fast path must not touch. */
static inline void gemm_run_reference(const weft__exec *e) {
    const weft__items *items = weft__op_of(e->p->op)->items;
    for (int phase = 0; phase < items->phases(e->p); phase++) {
        gemm_items q = {e, phase, items->count(e->p, phase), 0};
        q.slots = WEFT__MIN(q.count, 256);
        weft__parallel(e->ctx, q.slots, gemm_item_range, &q);
    }
}

#endif
