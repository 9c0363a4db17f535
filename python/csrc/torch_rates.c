/* How fast PyTorch's own operators are, for the planner's estimates: constants that keep the order right, and for
 * convolution on the CPU what weft.backends.calibrate() has measured, kind by kind.
 * A kind is what makes PyTorch take another way through its code: rank, window and groups, pass, layout, data type. */
#include <math.h>
#include <string.h>

#include "seat.h"
#include "settings.h"

enum { FAMILIES = 6, PASSES = 4, LAYOUTS = 2, TYPES = 3, KINDS = 2 * FAMILIES * PASSES * LAYOUTS * TYPES };
static const double tie = 0.9; /* weft must be faster than this share of PyTorch's time; not in the constants for
                                * convolution, where the way to PyTorch costs about as much */

static struct {
    double ns, share; /* of a call, and of what the machine could do; share 0: not measured */
} known[KINDS];
static _Thread_local bool bare; /* the estimate is what the machine could do */

/* Depthwise by the size of the window, groups, dense 1x1, dense. */
static int family_of(const weft_problem *p) {
    int64_t window = 1, inside = p->c / (p->groups ? p->groups : 1);
    for (int a = 0; a < 3; a++) window = p->kernel[a] > window ? p->kernel[a] : window;
    if (inside == 1 && p->groups > 1) return window <= 3 ? 0 : window <= 9 ? 1 : 2;
    return p->groups > 1 ? 3 : window == 1 ? 4 : 5;
}

/* Of the data, not of the weights, which are channels-first by default. */
static bool is_last(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++) {
        int role = p->tensor[i].role;
        if (role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_DST) return p->tensor[i].layout == WEFT_LAYOUT_LAST;
    }
    return false;
}

static int kind_of(const weft_problem *p) {
    static const int pass[WEFT_PASS_COUNT] = {
        [WEFT_PASS_FWD] = 1, [WEFT_PASS_BWD_DATA] = 2, [WEFT_PASS_BWD_WEIGHTS] = 3, [WEFT_PASS_BWD] = 4};
    static const int type[WEFT_DTYPE_COUNT] = {[WEFT_DTYPE_F32] = 1, [WEFT_DTYPE_BF16] = 2, [WEFT_DTYPE_F16] = 3};
    const weft_tensor *t = &p->tensor[0];
    if (p->op != WEFT_OP_CONV || p->device != WEFT_DEVICE_CPU || !pass[p->pass] || !type[t->dtype]) return -1;
    int kind = (p->rank == 3) * FAMILIES + family_of(p);
    kind = (kind * PASSES + pass[p->pass] - 1) * LAYOUTS + is_last(p);
    return kind * TYPES + type[t->dtype] - 1;
}

/* Convolution on the CPU, measured on two AVX-512 cores, as shares of the peak: one filter per channel by the size of
 * its window, few channels in a group, dense 1x1, dense. One filter per channel runs well forward (not channels-first
 * with a large window or in 3D) and badly backward. Large tensors go through oneDNN, which looks for its code and
 * reorders data in a tenth of a millisecond; channels that do not fill its blocks of 16 cost a fifth, and fewer results
 * than a block cost the whole. bf16 is faster than f32 where the CPU has its dot products, and 16-bit types are slow
 * otherwise. */
#if defined(__x86_64__)
#define HAS_BF16_DOTS __builtin_cpu_supports("avx512bf16")
#else
#define HAS_BF16_DOTS false
#endif

/* One small image without groups stays with PyTorch's own columns and product. Of a volume in f32 PyTorch counts the
 * first four sizes, so it is small up to 20480 rows. */
static bool takes_onednn(const weft_problem *p) {
    const bool rows = p->rank == 3 && p->tensor[0].dtype == WEFT_DTYPE_F32;
    const double elements = (double)p->n * (double)p->c * (double)(p->in[0] * p->in[1] * (rows ? 1 : p->in[2]));
    return p->groups > 1 || p->n > 1 || p->kernel[1] > 3 || elements > 20480;
}
/* An f32 window of more than a place, by columns: they are written and read once for all outputs of a position, for a
 * volume through memory. So few outputs are far from the peak. */
static bool takes_columns(const weft_problem *p) {
    return p->tensor[0].dtype == WEFT_DTYPE_F32 && family_of(p) == 5 && !takes_onednn(p);
}
/* kernel = stride: patches, and transposed convolution that enlarges. */
static bool is_side_by_side(const weft_problem *p) {
    return p->kernel[2] > 1 && p->kernel[2] == p->stride[2] && p->kernel[1] == p->stride[1] &&
           p->kernel[0] == p->stride[0];
}
/* oneDNN's blocks of weights are made in every call, channels-last by way of a copy: ns a weight, two threads. A part
 * of that without it. */
static double reorder_ns(const weft_problem *p) {
    const bool last = is_last(p), both = p->pass == WEFT_PASS_BWD, back = p->pass == WEFT_PASS_BWD_WEIGHTS;
    const double each = (!last  ? (back ? 0 : 0.6)
                         : both ? 2.2
                         : back ? 0.7
                                : 1.5) *
                        (p->tensor[0].dtype == WEFT_DTYPE_F32 ? 1 : 0.5);
    return each * (double)(p->c / p->groups) * (double)p->o * (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
}
static double conv_call_ns(const weft_problem *p) {
    if (!takes_onednn(p)) return 10000 + 0.5 * reorder_ns(p);
    return p->groups > 1 ? 30000 : 100000 + reorder_ns(p);
}

static int64_t taps_of(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }

/* The gradients of data and weights at once take the time of both. */
static double both_of(double data, double weights) { return 2 / (1 / data + 1 / weights); }

/* The columns of one position cost as much as the products of so many outputs. */
static double share_of_columns(const weft_problem *p, weft_pass pass) {
    static const double outputs[2][3] = {{15, 22, 17}, {62, 95, 58}}; /* images, volumes; fwd, bwd_data, bwd_weights */
    const double *by = outputs[p->rank == 3];
    if (pass == WEFT_PASS_BWD)
        return both_of(share_of_columns(p, WEFT_PASS_BWD_DATA), share_of_columns(p, WEFT_PASS_BWD_WEIGHTS));
    return 1 / (1.2 + by[pass == WEFT_PASS_FWD ? 0 : pass == WEFT_PASS_BWD_DATA ? 1 : 2] / (double)p->o);
}

/* Groups of 2, 4, 8, 16, 32 or more channels in 2D, oneDNN has other code for each: fwd, bwd_data, bwd_weights. */
static double share_of_groups(const weft_problem *p, int64_t inside) {
    static const double shares[2][2][3][5] = {
        /* f32, bf16; channels-first, channels-last */
        {{{0.03, 0.15, 0.4, 0.62, 0.8}, {0.022, 0.15, 0.3, 0.6, 0.75}, {0.022, 0.05, 0.47, 0.65, 0.65}},
         {{0.062, 0.2, 0.38, 0.75, 0.9}, {0.055, 0.24, 0.42, 0.75, 0.9}, {0.09, 0.19, 0.42, 0.7, 0.65}}},
        {{{0.04, 0.4, 0.7, 0.95, 1.35}, {0.02, 0.4, 0.7, 1, 1.3}, {0.017, 0.034, 0.066, 0.85, 1.05}},
         {{0.08, 0.38, 0.75, 1.4, 1.6}, {0.04, 0.5, 0.85, 1.4, 1.5}, {0.025, 0.12, 0.45, 1.1, 1.2}}}};
    const bool dots = p->tensor[0].dtype == WEFT_DTYPE_BF16 && HAS_BF16_DOTS;
    int size = 0;
    while (size < 4 && inside >= 4 << size) size++;
    const double(*by)[5] = shares[dots][is_last(p)];
    if (p->pass == WEFT_PASS_FWD) return by[0][size];
    if (p->pass == WEFT_PASS_BWD) return both_of(by[1][size], by[2][size]);
    return by[p->pass == WEFT_PASS_BWD_DATA ? 1 : 2][size];
}

static bool fills_blocks(const weft_problem *p) { return p->c / p->groups >= 16 && p->o / p->groups >= 16; }

/* Fewer channels than a block of 16 in what a dense convolution writes cost the whole block, and channels-first a
 * quarter more; few in what its data's gradient reads cost that two thirds, channels-first. */
static double share_of_block(const weft_problem *p, weft_pass pass) {
    const double src = fmin((double)p->c / 16, 1), dst = fmin((double)p->o / 16, 1);
    const bool last = is_last(p);
    if (pass == WEFT_PASS_BWD)
        return both_of(share_of_block(p, WEFT_PASS_BWD_DATA), share_of_block(p, WEFT_PASS_BWD_WEIGHTS));
    if (pass == WEFT_PASS_BWD_DATA) return src < 1 ? src : dst < 1 && !last ? 0.35 : 1;
    return dst < 1 && !last ? 0.75 * dst : dst;
}

static weft_rates guess_cpu_conv(const weft_problem *p) {
    static const double share[2][2][FAMILIES] = {
        /* backward, forward; channels-first, channels-last */
        {{0.02, 0.02, 0.01, 0.3, 0.8, 0.89}, {0.08, 0.08, 0.01, 0.3, 0.85, 0.89}},
        {{0.1, 0.22, 0.02, 0.4, 0.75, 0.97}, {0.15, 0.25, 0.75, 0.3, 0.85, 0.97}}};
    const int family = family_of(p), dtype = p->tensor[0].dtype;
    const bool fwd = p->pass == WEFT_PASS_FWD, last = is_last(p), deep = p->rank == 3 && family < 3;
    weft_rates r = {conv_call_ns(p), share[fwd][last][family], family < 4 ? 0.4 : 0.5};
    if (family == 1 && !last && taps_of(p) <= 9) r.of_peak = share[fwd][last][0]; /* 1x7 and 1D: few taps, too */
    if (deep) r.of_peak = fwd && last ? (family ? 0.6 : 0.28) : 0.02;
    if (family < 3 && p->o != p->c) r.of_peak = share_of_groups(p, 2); /* a channel multiplier */
    if (family == 3 && p->rank == 3 && !fwd) r.of_peak = last ? 0.2 : 0.08;
    if (family == 3 && p->rank == 3 && p->c / p->groups < 8) r.of_peak = 0.03;
    if (family == 3 && (p->rank < 3 || fills_blocks(p))) r.of_peak = share_of_groups(p, p->c / p->groups);
    if (takes_columns(p)) return (weft_rates){r.ns, share_of_columns(p, p->pass), r.of_bandwidth};
    if (!takes_onednn(p)) r.of_peak *= 0.5;
    if (p->pass == WEFT_PASS_BWD_DATA && !last && is_side_by_side(p)) r.of_peak = p->kernel[2] < 8 ? 0.4 : 0.1;
    if (family >= 4 && takes_onednn(p) && (p->c % 16 || p->o % 16)) r.of_peak *= 0.8;
    if (family >= 4 && takes_onednn(p)) r.of_peak *= share_of_block(p, p->pass);
    const bool told = (family < 3 && (!last || p->o != p->c)) || /* of bf16, by the shares above */
                      (family == 3 && (p->rank < 3 || fills_blocks(p)));
    if (dtype == WEFT_DTYPE_BF16) r.of_peak *= !HAS_BF16_DOTS ? 0.2 : told ? 1 : fwd ? 1.6 : 1.75;
    if (dtype == WEFT_DTYPE_BF16 && family < 3 && p->o == p->c && fwd && HAS_BF16_DOTS) {
        r = (weft_rates){100000, last ? (family || deep ? 0.6 : 0.27) : r.of_peak, 1};
        if (!last && !deep) r.of_peak = family ? 0.25 : 0.14;
    }
    if (dtype == WEFT_DTYPE_F16) r.of_peak *= 0.05;
    return r;
}

/* relu, clip, sigmoid and all gradients run at the speed of memory, but what does not fit the caches goes through them;
 * tanh is computed one value after the other. cat of two clamps, and its gradient, make ncrelu. */
static weft_rates guess_cpu_pointwise(const weft_problem *p) {
    double count = 1;
    for (int a = 0; a < p->tensor[0].rank; a++) count *= (double)p->tensor[0].dims[a];
    const bool fwd = p->pass == WEFT_PASS_FWD, large = count > 1 << 20 && p->tensor[0].dtype == WEFT_DTYPE_F32;
    if (p->op == WEFT_OP_NCRELU) return (weft_rates){20000, 1, fwd ? 0.35 : 0.15};
    if (p->op == WEFT_OP_TANH && fwd) return (weft_rates){2000, 0.0025, 1};
    return (weft_rates){2000, 1, !fwd || !large ? 1.1 : p->op == WEFT_OP_SIGMOID ? 0.6 : 0.7};
}

/* Channels-first, one output after the other: 1 to 3 ns a tap; one window for a whole image is a sum at memory's speed.
 * Channels-last, vectors along the channels. A call of weft costs some 10 us more than one of PyTorch, with autograd:
 * tiny problems are PyTorch's. */
static weft_rates guess_cpu_pool(const weft_problem *p) {
    const bool fwd = p->pass == WEFT_PASS_FWD, half = p->tensor[0].dtype != WEFT_DTYPE_F32,
               max = p->op == WEFT_OP_MAX_POOL;
    weft_rates r = {-10000, fwd && p->op == WEFT_OP_AVG_POOL ? 0.01 : 0.005, 1};
    if (is_last(p)) r.of_peak = (fwd ? max ? 0.026 : 0.065 : max ? 0.022 : 0.03) * (half ? 0.6 : 1);
    const bool adaptive = p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    if (adaptive && !is_last(p) && p->tensor[0].dtype == WEFT_DTYPE_F32) r.of_peak = fwd ? 0.03 : 0.04; /* 0.25 ns */
    if (adaptive && p->out[1] * p->out[2] == 1) r.of_peak = 1;
    return r;
}

/* Batch norm in f32: near the speed of memory but for the statistics channels-first. A call of weft costs some 50 us
 * more than one of PyTorch. */
static weft_rates guess_cpu_batch_norm(const weft_problem *p) {
    const bool fwd = p->pass == WEFT_PASS_FWD, train = p->attr[WEFT_BN_TRAIN];
    if (p->tensor[0].dtype != WEFT_DTYPE_F32) return (weft_rates){5000, 0.3, 0.4};
    if (!train) return (weft_rates){-50000, 1, fwd ? 1.2 : is_last(p) ? 0.8 : 0.63};
    if (!is_last(p)) return (weft_rates){0, 1, fwd ? 0.14 : 0.6}; /* a gradient's way from Python: entry_ask.c */
    return (weft_rates){-50000, 1, fwd ? 0.72 : 0.75};
}

/* Over channels in three sweeps of memory, and channels-last data is copied first. Tiny ones are PyTorch's, as of
 * pooling. */
static weft_rates guess_cpu_softmax(const weft_problem *p) {
    return (weft_rates){-5000, 0.3, p->pass != WEFT_PASS_FWD ? 0.4 : is_last(p) ? 0.12 : 0.27};
}

/* lrn is made of several of PyTorch's operators, columns take some 1.6 ns an element, and the product with a diagonal
 * runs at the speed of memory, but for complex numbers and sums. Tiny problems are PyTorch's, as above. */
static weft_rates guess_cpu_other(const weft_problem *p) {
    const bool fwd = p->pass == WEFT_PASS_FWD, scales = fwd || p->pass == WEFT_PASS_BWD_DATA;
    if (p->op == WEFT_OP_LRN) return (weft_rates){10000, fwd ? 0.016 : 0.05, 0.1};
    if (p->op == WEFT_OP_IM2COL || p->op == WEFT_OP_COL2IM) return (weft_rates){-10000, 0.006, 1};
    const bool large = (double)p->n * (double)p->attr[WEFT_DGMM_ROWS] * (double)p->attr[WEFT_DGMM_COLS] > 1 << 22;
    if (p->op == WEFT_OP_DGMM && !large) return (weft_rates){10000, 1, scales ? 0.7 : 0.5}; /* by way of Python */
    if (p->op == WEFT_OP_DGMM) return (weft_rates){-10000, 1, scales ? 0.7 : 0.5};
    return (weft_rates){-10000, 1, scales ? 0.5 : 0.3};
}

/* Recurrent layers. oneDNN has lstm without packed rows: products near the peak, of few sequences as fast as the caches
 * give the weights. The others are loops over the steps, with 15 us forward and 40 back for the calls of a cell, twice
 * that for gru; backward each step makes a whole gradient of the weights and adds it up. A call of weft costs some 60
 * us more than one of PyTorch, and gathers the weights. */
static weft_rates guess_cpu_rnn(const weft_problem *p) {
    const double cells = p->op == WEFT_OP_LSTM ? 4 : p->op == WEFT_OP_GRU ? 3 : 1, H = (double)p->o, n = (double)p->n;
    const double layers = (double)(p->attr[WEFT_RNN_LAYERS] * (1 + p->attr[WEFT_RNN_BIDIRECTIONAL]));
    const double steps = layers * (double)p->attr[WEFT_RNN_STEPS], weights = 4 * cells * H * H;
    const double call = -60000 - layers * 4 * cells * H * (H + (double)p->c) / 12;
    const bool fwd = p->pass == WEFT_PASS_FWD, few = n < 8;
    if (p->op == WEFT_OP_LSTM && !p->attr[WEFT_RNN_ROWS])
        return (weft_rates){call + (fwd ? 150000 : 300000) + steps * (fwd ? 2000 : 5000),
                            few ? fmin(0.34 * n, 0.75) : 0.85, 1};
    const double cell = (fwd ? 15000 : 40000) * (p->op == WEFT_OP_GRU ? 2.0 : 1.0) + cells * H * n * (fwd ? 2 : 4);
    return (weft_rates){call + steps * (cell + weights / 80 + (fwd ? 0 : 6 * weights / 25)), 0.85, 1};
}

/* Convolution on CUDA, measured on an H200, as shares of the f32 peak and of the bandwidth, forward and backward. cuDNN
 * has kernels of its own for one filter per channel in 2D, channels-last above all, and none in 3D. Dense 16-bit data
 * runs on the tensor cores, but not where windows lie side by side. */
static weft_rates guess_cuda_conv(const weft_problem *p) {
    static const double plane[2][2][4] = {{{0.1, 0.2, 0.036, 0.09}, {0.1, 0.27, 0.036, 0.16}},
                                          {{0.1, 0.65, 0.06, 0.3}, {0.17, 0.63, 0.06, 0.4}}}; /* last, 16 bits */
    static const double volume[2][4] = {{0.045, 0.2, 0.024, 0.1}, {0.007, 0.2, 0.0001, 0.1}}; /* last */
    static const double few[4] = {0.042, 0.3, 0.03, 0.2}, many[4] = {0.36, 0.5, 0.05, 0.3},
                        half_many[4] = {1, 0.5, 0.2, 0.3}, dense[4] = {0.5, 0.5, 0.5, 0.5},
                        half_dense[4] = {6, 0.5, 6, 0.5}, beside[4] = {0.43, 0.3, 0.4, 0.3};
    const int family = family_of(p), back = p->pass != WEFT_PASS_FWD;
    const bool half = p->tensor[0].dtype == WEFT_DTYPE_F16 || p->tensor[0].dtype == WEFT_DTYPE_BF16, last = is_last(p);
    bool side = p->kernel[0] * p->kernel[1] * p->kernel[2] > 1;
    for (int a = 0; a < 3; a++) side = side && (p->kernel[a] == p->stride[a] || p->out[a] == 1);
    const double *row = family < 3    ? (p->rank == 3 ? volume[last] : plane[last][half])
                        : family == 3 ? (p->c / p->groups < 8 ? few
                                         : half               ? half_many
                                                              : many)
                        : half        ? (side ? beside : half_dense)
                                      : dense;
    weft_rates r = {family >= 3 || !last ? 15000 : back ? 6000 : 5000, row[2 * back], row[2 * back + 1]};
    if (family == 2 && last && half) r.of_peak = 0.01;
    return r;
}

/* Softmax over channels that lie apart: a thread goes from one channel to the next, with the latency of memory; up to
 * 64 pixels share a block of 1024 threads. */
static double steps_of_softmax(const weft_problem *p) {
    const int64_t inner = p->in[0] * p->in[1] * p->in[2],
                  share = inner > 0 && inner <= 64 && p->c >= 64 ? 1024 / inner : 1;
    return (double)(p->c / share);
}

/* Memory-bound operators on an H200: shares of the bandwidth, each tensor once, forward and gradients. Pointwise ones
 * run at the speed of memory; softmax does better where the rows lie together; gradients of pooling and columns go by
 * atomics or one element per thread; batch norm reads its input twice; ncrelu, lrn and complex pairs take several
 * calls. */
static bool guess_cuda(const weft_problem *p, weft_rates *r) {
    static const struct {
        double ns, fwd, bwd;
    } shares[WEFT_OP_COUNT] = {
        [WEFT_OP_RELU] = {4000, 0.95, 0.95},       [WEFT_OP_CLIP] = {4000, 0.95, 0.95},
        [WEFT_OP_TANH] = {4000, 0.95, 0.95},       [WEFT_OP_SIGMOID] = {4000, 0.95, 0.95},
        [WEFT_OP_NCRELU] = {12000, 0.35, 0.3},     [WEFT_OP_SOFTMAX] = {4000, 0.15, 0.3},
        [WEFT_OP_LOG_SOFTMAX] = {4000, 0.27, 0.5}, [WEFT_OP_MAX_POOL] = {4000, 0.3, 0.15},
        [WEFT_OP_AVG_POOL] = {4000, 0.35, 0.07},   [WEFT_OP_ADAPTIVE_AVG_POOL] = {4000, 0.3, 0.15},
        [WEFT_OP_BATCH_NORM] = {6000, 0.5, 0.5},   [WEFT_OP_CROSS_ENTROPY] = {8000, 0.2, 0.3},
        [WEFT_OP_LRN] = {25000, 0.1, 0.1},         [WEFT_OP_DGMM] = {5000, 0.65, 0.45},
        [WEFT_OP_CDGMM] = {6000, 0.85, 0.4},       [WEFT_OP_IM2COL] = {4000, 0.2, 0.1},
        [WEFT_OP_COL2IM] = {4000, 0.1, 0.2},
    };
    if (p->device != WEFT_DEVICE_CUDA || !shares[p->op].ns) return false;
    const bool rows = is_last(p) || p->in[0] * p->in[1] * p->in[2] == 1, fwd = p->pass == WEFT_PASS_FWD;
    double share = fwd ? shares[p->op].fwd : shares[p->op].bwd, ns = shares[p->op].ns;
    if (p->op == WEFT_OP_BATCH_NORM) { /* inference reads less; the operators below torch.nn's, which is cuDNN's */
        share = is_last(p) ? 0.48 : fwd ? 0.46 : 0.38;
        if (!p->attr[WEFT_BN_TRAIN]) share = 0.67;
    }
    if (p->op == WEFT_OP_SOFTMAX || p->op == WEFT_OP_LOG_SOFTMAX) {
        if (rows) share = 0.6;
        if (!rows) ns += (fwd ? 500 : 200) * steps_of_softmax(p);
    }
    if (p->op == WEFT_OP_MAX_POOL && is_last(p) && fwd) ns = 25000;
    if ((p->op == WEFT_OP_AVG_POOL || (p->op == WEFT_OP_MAX_POOL && fwd)) && !is_last(p)) ns = 5500;
    *r = (weft_rates){ns, 1, share};
    return true;
}

/* 16-bit types have fast CPU kernels in few operators; one call costs its allocations and checks. */
static void guess(const weft_problem *p, weft_rates *r) {
    bool cuda = p->device == WEFT_DEVICE_CUDA, wide = p->tensor[0].dtype == WEFT_DTYPE_F64;
    *r = (weft_rates){cuda ? 4000 : 5000, 0.3, 0.4};
    if (guess_cuda(p, r)) return;
    if (p->op == WEFT_OP_CONV) *r = cuda ? guess_cuda_conv(p) : guess_cpu_conv(p);
    bool pointwise = p->op == WEFT_OP_RELU || p->op == WEFT_OP_CLIP || p->op == WEFT_OP_TANH ||
                     p->op == WEFT_OP_SIGMOID || p->op == WEFT_OP_NCRELU;
    bool pool = p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    if (pointwise && !cuda) *r = guess_cpu_pointwise(p);
    bool other = p->op == WEFT_OP_LRN || p->op == WEFT_OP_IM2COL || p->op == WEFT_OP_COL2IM || p->op == WEFT_OP_DGMM ||
                 p->op == WEFT_OP_CDGMM;
    if (pool && !cuda) *r = guess_cpu_pool(p);
    if (other && !cuda) *r = guess_cpu_other(p);
    if (p->op == WEFT_OP_BATCH_NORM && !cuda) *r = guess_cpu_batch_norm(p);
    /* a score of calls for some images, and planes besides */
    if (p->op == WEFT_OP_PARTIAL_CONV) *r = (weft_rates){cuda ? 200000 : 100000, 0.3, 0.1};
    /* log-softmax, likelihood and lse one after the other, the gradient makes the log-softmax again */
    if (p->op == WEFT_OP_CROSS_ENTROPY && !cuda) *r = (weft_rates){10000, 0.3, is_last(p) ? 0.05 : 0.15};
    if ((p->op == WEFT_OP_SOFTMAX || p->op == WEFT_OP_LOG_SOFTMAX) && !cuda) *r = guess_cpu_softmax(p);
    bool recurrent =
        p->op == WEFT_OP_LSTM || p->op == WEFT_OP_GRU || p->op == WEFT_OP_RNN_TANH || p->op == WEFT_OP_RNN_RELU;
    if (recurrent && !cuda) *r = guess_cpu_rnn(p);
    if (wide) r->of_peak *= 0.25;
}

/* What was measured are one filter per channel, groups of 4 channels, and dense convolutions of full blocks: the share
 * of p by that. What larger groups gain is a constant; those that fill blocks run as dense ones do. */
static double share_by_measured(const weft_problem *p, double measured, double guessed) {
    const int family = family_of(p);
    if (family < 3 && p->o != p->c) return guessed;
    if (family == 3 && fills_blocks(p)) return fmax(measured, guessed);
    if (family == 3 && p->rank < 3) { /* small ones, as were measured, run below what larger ones reach */
        const double beside = share_of_groups(p, p->c / p->groups) / share_of_groups(p, 4);
        return fmax(guessed, beside > 1 ? measured : measured * beside);
    }
    if (takes_columns(p)) return guessed;
    return family >= 4 && takes_onednn(p) ? measured * share_of_block(p, p->pass) : measured;
}

void wt_torch_rates(void *user, const weft_problem *p, weft_rates *r) {
    (void)user;
    int kind = kind_of(p);
    guess(p, r);
    if (kind >= 0 && known[kind].share > 0)
        *r = (weft_rates){known[kind].ns, share_by_measured(p, known[kind].share, r->of_peak), known[kind].share};
    if (kind >= 0 && family_of(p) >= 4) r->ns = fmax(r->ns, conv_call_ns(p)); /* what was measured is a small one */
    if (kind < 0 || known[kind].share > 0) r->ns *= tie, r->of_peak /= tie, r->of_bandwidth /= tie;
    if (bare) *r = (weft_rates){0, 1, 1};
}

/* ---------------------------------------------------------------- for weft.backends.calibrate() */
static double estimate(const char *problem, bool without_rates) {
    weft_problem p = WEFT_PROBLEM_INIT;
    if (weft_problem_parse(&p, problem) != WEFT_OK) return -1;
    wt_rehearse(wt_never, NULL);
    bare = without_rates;
    double ns = wt_external_ns(&p);
    bare = false;
    wt_rehearse(NULL, NULL);
    return ns;
}

/* What the machine could do a problem in, ns; and PyTorch by estimate. -1: the text is wrong. */
WEFT_API double weft_torch_bare_ns(const char *problem) { return estimate(problem, true); }
WEFT_API double weft_torch_estimate_ns(const char *problem) { return estimate(problem, false); }

/* The least estimate of weft's own kernels within the limit of workspace; infinity: only the reference. */
WEFT_API double weft_torch_own_ns(const char *problem) {
    weft_problem p = WEFT_PROBLEM_INIT;
    double least = INFINITY;
    const size_t limit = wt_settings()->workspace_limit ? wt_settings()->workspace_limit : (size_t)64 << 20;
    if (weft_problem_parse(&p, problem) != WEFT_OK) return -1;
    for (size_t i = weft_kernel_count(wt_context(), &p); i-- > 0;) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(wt_context(), &p, i, &d) != WEFT_OK || !d.applies || d.workspace > limit) continue;
        if (!strcmp(d.engine, "cpu") || !strcmp(d.engine, "cuda")) least = fmin(least, d.ns);
    }
    return least;
}

/* Two measurements of the kind that both problems are of, a tiny one and a larger: the cost of a call and the share.
 * false: they say nothing. */
WEFT_API bool weft_torch_learn(const char *tiny, double tiny_ns, const char *large, double large_ns) {
    weft_problem p = WEFT_PROBLEM_INIT;
    double least = weft_torch_bare_ns(tiny), most = weft_torch_bare_ns(large);
    int kind = weft_problem_parse(&p, large) == WEFT_OK ? kind_of(&p) : -1;
    if (kind < 0 || least < 0 || !(most > least) || !(large_ns > tiny_ns) || !(tiny_ns > 0)) return false;
    double slope = (large_ns - tiny_ns) / (most - least);
    known[kind].share = 1 / slope;
    if (family_of(&p) >= 4) { /* dense: a small measurement does not show how near to the peak a large one runs */
        weft_rates nominal;
        guess(&p, &nominal);
        known[kind].share = fmax(known[kind].share, nominal.of_peak);
    }
    known[kind].ns = fmax(tiny_ns - slope * least, 0);
    wt_seat_forget();
    return isfinite(known[kind].share);
}

/* Back to the constants. */
WEFT_API void weft_torch_unlearn(void) {
    memset(known, 0, sizeof(known));
    wt_seat_forget();
}
