/* How fast PyTorch's own operators are, for the planner's estimates: constants that keep the order right, and for
 * convolution on the CPU what weft.backends.calibrate() has measured, kind by kind.
 * A kind is what makes PyTorch take another way through its code: rank, window and groups, pass, layout, data type. */
#include <math.h>
#include <string.h>

#include "core/internal.h"
#include "seat.h"
#include "settings.h"

enum { FAMILIES = 6, PASSES = 4, LAYOUTS = 2, TYPES = 3, KINDS = 2 * FAMILIES * PASSES * LAYOUTS * TYPES };
static const double tie = 0.9; /* weft must be faster than this share of PyTorch's time */

static struct {
    int way;
    double ns, slower; /* of a call; times what the way costs by its constants; 0: not measured */
} known[KINDS];
static _Thread_local const weft_rates *instead; /* of an estimate of PyTorch: what the machine could do */

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

/* What PyTorch computes one value after the other is no faster on cores with a higher peak than those where its share
 * of the peak was found. */
static double scalar(const weft_problem *p) {
    const double found_at = 150; /* GFLOP/s of a thread */
    weft__hw hw;
    return weft__ctx_hw(wt_context(), p, &hw) == WEFT_OK ? fmin(1, found_at / hw.gflops[hw.isa]) : 1;
}

/* relu, clip, sigmoid and all gradients run at the speed of memory, but what does not fit the caches goes through them;
 * tanh is computed one value after the other. cat of two clamps, and its gradient, make ncrelu. */
static weft_rates guess_cpu_pointwise(const weft_problem *p) {
    double count = 1;
    for (int a = 0; a < p->tensor[0].rank; a++) count *= (double)p->tensor[0].dims[a];
    const bool fwd = p->pass == WEFT_PASS_FWD, large = count > 1 << 20 && p->tensor[0].dtype == WEFT_DTYPE_F32;
    if (p->op == WEFT_OP_NCRELU) return (weft_rates){20000, 1, fwd ? 0.35 : 0.15};
    if (p->op == WEFT_OP_TANH && fwd) return (weft_rates){2000, 0.0025 * scalar(p), 1};
    return (weft_rates){2000, 1, fwd && large && p->op == WEFT_OP_SIGMOID ? 0.6 : 1.1};
}

/* What PyTorch's pooling takes on one thread, ns of each: an output, a tap of one, an input. Channels-last a window, a
 * tap of one, and for each of these a vector of channels and each channel that is left over. */
enum { OUT, TAP, IN, WINDOW, WINDOW_TAP, VECTOR, REST, POOL_COSTS };
typedef const double pool_costs[POOL_COSTS];

/* Of max, average, adaptive, the last two in 3D; pass; f32 or 16 bits. Global means are sums, and divisions of an
 * expanded tensor. */
static const double *pool_costs_of(const weft_problem *p, bool by_vectors) {
    static pool_costs one[5][2][2] = {
        {{{5.5, 0.77, 0.02}, {6.5, 0.85, 0.02}}, {{0.7, 0, 0.08}, {1.9, 0, 0.04}}},
        {{{5.3, 0.35, 0.06}, {5.5, 0.5, 0.06}}, {{6, 0.28, 0.12}, {7.5, 1.2, 0.14}}},
        {{{7.4, 0, 0.6}, {6.5, 0, 0.8}}, {{9.2, 0, 0.26}, {16, 0, 0.6}}},
        {{{5, 0.36, 0.73}, {5.5, 0.5, 0.73}}, {{9, 0.26, 0.28}, {9, 1.2, 0.3}}}, /* 3D channels-last: copies */
        {{{8, 0, 0.96}, {10, 0, 5.1}}, {{9.1, 0, 0.48}, {18, 0, 1.44}}},         /* 3D: sums of short rows */
    };
    static pool_costs vectors[3][2][2] = {
        {{{0.34, 0, 0, 7, 0.15, 1.6, 0.62}, {0.4, 0, 0, 10, 0.5, 2.3, 0.45}}, {{0.8, 0, 0.08}, {1.9, 0, 0.04}}},
        {{{0.2, 0, 0, 7, 0.3, 0.8, 0.37}, {0.28, 0, 0, 6, 1.5, 0.9, 0.17}},
         {{0, 0, 0.08, 8, 0.3, 1.45, 0.26}, {0, 0, 0.08, 1, 4, 11.7, 0.58}}},
        {{{0.16, 0, 0, 15, 0.6, 1.6, 0.37}, {0.3, 0, 0, 10, 1.7, 1.5, 0.16}},
         {{0, 0, 0, 18, 0.3, 3, 0.5}, {0, 0, 0, 38, 2, 18, 1.2}}},
    };
    static pool_costs global[2][2] = {{{2.5, 0, 0.046}, {3, 0, 0.134}}, {{2, 0, 0.46}, {6, 0, 0.086}}};
    const int op = p->op == WEFT_OP_MAX_POOL ? 0 : p->op == WEFT_OP_AVG_POOL ? 1 : 2;
    const int back = p->pass != WEFT_PASS_FWD, half = p->tensor[0].dtype != WEFT_DTYPE_F32;
    if (op == 2 && p->out[0] * p->out[1] * p->out[2] == 1) return global[back][half];
    if (by_vectors) return vectors[op][back][half];
    return one[op == 1 && p->rank == 3 && is_last(p) ? 3 : op == 2 && p->rank == 3 ? 4 : op][back][half];
}

/* Channels-first, one output after the other. Channels-last, vectors along the channels, but for means in 3D; the
 * gradient image by image. A call of weft costs 6 to 16 us more than one of PyTorch, with autograd: tiny problems are
 * PyTorch's. */
static weft_rates guess_cpu_pool(const weft_problem *p) {
    const double found_at = 118; /* GFLOP/s of a thread */
    const bool fwd = p->pass == WEFT_PASS_FWD, max = p->op == WEFT_OP_MAX_POOL, last = is_last(p);
    const bool adaptive = p->op == WEFT_OP_ADAPTIVE_AVG_POOL, half = p->tensor[0].dtype != WEFT_DTYPE_F32;
    const bool global = adaptive && p->out[0] * p->out[1] * p->out[2] == 1, by_vectors = last && (max || p->rank < 3);
    const double *cost = pool_costs_of(p, by_vectors);
    const int64_t lanes = half ? 32 : 16;
    double windows = (double)p->n, taps = 1, places = (double)p->n;
    for (int a = 0; a < 3; a++) {
        windows *= (double)p->out[a], places *= (double)p->in[a];
        taps *= adaptive ? fmax((double)p->in[a] / fmax((double)p->out[a], 1), 1) : (double)p->kernel[a];
    }
    const double c = (double)p->c, tap = cost[WINDOW_TAP] + cost[VECTOR] * (double)(p->c / lanes);
    double work = windows * (c * (cost[OUT] + taps * cost[TAP]) + cost[WINDOW]) + places * c * cost[IN];
    work += windows * taps * (tap + cost[REST] * (double)(p->c % lanes));
    double call = fwd ? -5500 : -16000;
    if (global) call += fwd ? (half ? 6000 : 3500) : last ? 13000 : 5000;
    weft__hw hw;
    if (weft__ctx_hw(wt_context(), p, &hw) != WEFT_OK) return (weft_rates){call + work, 1, 1};
    const double peak = hw.gflops[hw.isa], units = !last ? (double)p->n * c : fwd ? windows : (double)p->n;
    double cores = fmax(fmin(hw.threads, hw.cores), 1), shared = fmax(fmin(cores, units), 1);
    if (global) shared = places * c > 1 << 15 ? cores : 1;
    if (shared > 1) call += 4500; /* for waking them */
    work *= found_at / fmin(peak, 150) / shared;
    return (weft_rates){call, weft__flops(p) / fmax(work * peak * cores, 1e-9), 1};
}

/* A second sweep does not find in the caches what the first has read. */
static bool is_large(const weft_problem *p) { return p->n * p->c * p->in[0] * p->in[1] * p->in[2] > 2 << 20; }

/* Batch norm in f32: the statistics channels-first are summed one value after the other, and channels-last data takes
 * some operations an element; else near the speed of memory. By layout, training, gradient. */
static weft_rates guess_cpu_batch_norm(const weft_problem *p) {
    static const weft_rates rates[2][2][2] = {
        {{{3000, 1, 1.2}, {3000, 1, 0.63}}, {{3000, 0.0225, 1}, {3000, 1, 0.6}}},
        {{{3000, 0.09, 1.2}, {3000, 0.108, 0.8}}, {{3000, 0.095, 0.72}, {3000, 0.075, 0.75}}}};
    const bool back = p->pass != WEFT_PASS_FWD;
    if (p->tensor[0].dtype != WEFT_DTYPE_F32) return (weft_rates){5000, 0.3, 0.4};
    const bool last = is_last(p) && p->rank > 1; /* in 1D PyTorch puts it in the other order first */
    weft_rates r = rates[last][p->attr[WEFT_BN_TRAIN] != 0][back];
    if (back && is_large(p) && !last) r.of_bandwidth /= 2;
    if (is_last(p) && !last) r.of_bandwidth = fmin(r.of_bandwidth, 0.06);
    if (last && p->c % 16) { /* what is left behind its vectors goes through memory, for each pixel and sweep */
        const double sweeps = back || p->attr[WEFT_BN_TRAIN] ? 2.4 : 1;
        r.ns += 25 * sweeps * (double)(p->n * p->in[0] * p->in[1] * p->in[2]) / wt_threads();
    }
    return r;
}

/* Exponentials and sweeps, over channels that lie apart or together; channels-last data of images is copied first. */
static weft_rates guess_cpu_softmax(const weft_problem *p) {
    static const double apart[2][2] = {{0.0194, 0.1}, {0.044, 0.05}}, together[2][2] = {{0.0415, 0.16}, {0.048, 0.08}};
    const bool back = p->pass != WEFT_PASS_FWD, log = p->op == WEFT_OP_LOG_SOFTMAX;
    if (p->in[0] * p->in[1] * p->in[2] == 1) return (weft_rates){3000, together[log][back], 1};
    if (is_last(p)) return (weft_rates){3000, 0.3, back ? 0.22 : 0.09};
    return (weft_rates){3000, apart[log][back], is_large(p) ? 0.25 : back ? 0.6 : 0.4};
}

/* lrn is made of several of PyTorch's operators, columns take some 1.6 ns an element, and the product with a diagonal
 * runs at the speed of memory, but for complex numbers and sums. Tiny problems are PyTorch's, as above. */
static weft_rates guess_cpu_other(const weft_problem *p) {
    const bool fwd = p->pass == WEFT_PASS_FWD, scales = fwd || p->pass == WEFT_PASS_BWD_DATA;
    if (p->op == WEFT_OP_LRN) return (weft_rates){10000, fwd ? 0.016 : 0.05, 0.1};
    if (p->op == WEFT_OP_IM2COL || p->op == WEFT_OP_COL2IM) return (weft_rates){10000, 0.006 * scalar(p), 1};
    const bool large = (double)p->n * (double)p->attr[WEFT_DGMM_ROWS] * (double)p->attr[WEFT_DGMM_COLS] > 1 << 22;
    if (p->op == WEFT_OP_DGMM && !large) /* by way of Python */
        return (weft_rates){10000, 1, scales ? 1 : 0.5};
    if (p->op == WEFT_OP_DGMM) return (weft_rates){-10000, 1, scales ? 0.7 : 0.5};
    return (weft_rates){large ? -10000 : 10000, 1, scales ? 0.5 : 0.3};
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

/* Convolution on CUDA, measured on an H200: ns of a call at least, shares of the f32 peak and of the bandwidth. Work
 * that is not counted in the problem's operations is given in picoseconds of a full machine, as operations at the
 * peak. */
static weft_rates by_picoseconds(const weft_problem *p, double ns, double ps) {
    static const double peak = 60; /* operations of a picosecond, as weft counts an H200's */
    const double flops = weft__flops(p);
    return (weft_rates){ns, ps > 0 && flops > 0 ? flops / (ps * peak) : 1, 0.8};
}

static bool is_half(const weft_problem *p) { return wt_is_half(p->tensor[0].dtype); }

static double places(const int64_t size[3]) { return (double)size[0] * (double)size[1] * (double)size[2]; }

/* PyTorch's own kernels of one filter per channel, channels-first: a thread per result goes from tap to tap; the
 * gradient of the weights has a block per tap, whose warps go from image to image and whose lanes from place to place:
 * steps one after the other, as many at a time as threads are resident. cuDNN takes f16 of 32 channels and more
 * without a stride. */
static weft_rates guess_cuda_depthwise(const weft_problem *p) {
    static const double resident = 132 * 2048;
    const double taps = places(p->kernel), n = (double)p->n, out = places(p->out), warps = fmax(fmin(n, 8), 1);
    const bool data = p->pass == WEFT_PASS_BWD_DATA || p->pass == WEFT_PASS_BWD, fwd = p->pass == WEFT_PASS_FWD;
    bool cudnn = p->tensor[0].dtype == WEFT_DTYPE_F16 && p->c >= 32 && p->rank < 3;
    for (int a = 0; a < 3; a++)
        cudnn = cudnn && p->stride[a] == 1 && p->dilation[a] == 1 && p->kernel[a] % 2 && p->kernel[a] <= 5;
    double ns = 4400, ps = 0;
    if (fwd) ps += n * (double)p->o * out * (5 + 0.6 * taps) * (cudnn ? 0.3 : 1);
    if (data) ps += n * (double)p->c * places(p->in) * (8 + 0.8 * taps) * (cudnn ? 0.3 : 1);
    if (fwd || data) ns += 70 * taps;
    if (!fwd && p->pass != WEFT_PASS_BWD_DATA) {
        const double threads = p->rank == 3 ? 256 : 32 * warps;
        const double steps = p->rank == 3 ? ceil(n * out / threads) : ceil(n / warps) * ceil(out / 32);
        const double waves = (double)p->o * taps * threads / resident;
        ns += 150 * steps + (data ? 2500 : 0);
        ps += 1e3 * waves * (5000 + 350 * steps) * (cudnn ? 0.6 : 1);
    }
    return by_picoseconds(p, ns, ps);
}

/* Channels-last it is cuDNN's: it has kernels for odd windows up to 7x7, and sums the others, and all of volumes, one
 * tap, or in the gradient of the weights one place, after the other; in 16 bits also what goes by more than 9 taps. */
static weft_rates guess_cuda_depthwise_last(const weft_problem *p) {
    static const double plane[2][4] = {{0.1, 0.65, 0.06, 0.3}, {0.17, 0.63, 0.06, 0.4}}; /* 16 bits */
    const bool fwd = p->pass == WEFT_PASS_FWD, both = p->pass == WEFT_PASS_BWD, half = is_half(p),
               weights = both || p->pass == WEFT_PASS_BWD_WEIGHTS;
    const double taps = places(p->kernel), terms = taps * (double)p->n * places(p->out), *row = plane[half];
    if (p->rank == 3) return (weft_rates){fwd && half ? 9000 : 30000, fwd || !half ? 0.007 : 0.0005, fwd ? 0.2 : 0.1};
    bool usual = taps > 1;
    for (int a = 1; a < 3; a++) usual = usual && p->kernel[a] % 2 && p->kernel[a] <= 7 && p->dilation[a] == 1;
    weft_rates r = {fwd ? 4700 : both ? 11500 : 6000, row[fwd ? 0 : 2], row[fwd ? 1 : 3]};
    if (fwd && half) r.ns += 110 * taps;
    if (weights && !usual) r.ns += 2000 + 0.18 * terms;
    if (weights && usual && half && taps > 9) r.ns += 0.0175 * terms;
    if (p->pass != WEFT_PASS_BWD_WEIGHTS && !usual && taps > 1) r.of_peak = 0.013;
    return r;
}

/* Groups of several channels, the gradient of the weights: ns of a place. Channels-last it goes from place to place, by
 * the channels of a group, 16 bits too while places are few; of many places cuDNN takes another kernel. */
static double each_place_grouped(const weft_problem *p, bool last) {
    const double inside = (double)(p->c / p->groups), spots = (double)p->n * places(p->out);
    if (last && spots > 16000) return 4;
    if (!last || (is_half(p) && spots > 4000)) return 7;
    if (is_half(p)) return 30;
    return inside < 4 ? 25 : 5 * fmin(inside, 16);
}

/* The others: cuDNN's kernels by the channels of a group. */
static weft_rates guess_cuda_grouped(const weft_problem *p, bool last) {
    static const double few[4] = {0.042, 0.3, 0.03, 0.2}, many[4] = {0.08, 0.5, 0.05, 0.3},
                        half_many[4] = {1, 0.5, 0.2, 0.3};
    const double inside = (double)(p->c / p->groups);
    const bool fwd = p->pass == WEFT_PASS_FWD, weights = p->pass == WEFT_PASS_BWD_WEIGHTS || p->pass == WEFT_PASS_BWD;
    const double *row = inside < 8 ? few : is_half(p) ? half_many : many;
    weft_rates r = {0, row[fwd ? 0 : 2], row[fwd ? 1 : 3]};
    if (p->pass != WEFT_PASS_BWD_WEIGHTS)
        r.ns += !last ? 12000 : fwd ? 20000 : is_half(p) || inside < 8 ? 30000 : 60000;
    if (weights)
        r.ns += 5500 + each_place_grouped(p, last) * (double)p->n * places(p->out) + (p->rank == 3 ? 10000 : 0);
    if (p->pass == WEFT_PASS_BWD_DATA && last && inside >= 8) r.of_peak = is_half(p) ? 0.2 : 0.12;
    return r;
}

/* One filter per channel, groups, or dense: 16-bit data on the tensor cores, but not where windows lie side by side.
 * cuDNN has no channels-last in 1D: both sides put it in the other order. */
static weft_rates guess_cuda_conv(const weft_problem *p) {
    static const double dense[4] = {0.5, 0.5, 0.5, 0.5}, half_dense[4] = {6, 0.5, 6, 0.5},
                        beside[4] = {0.43, 0.3, 0.4, 0.3};
    const bool last = is_last(p) && p->rank > 1;
    const int back = p->pass != WEFT_PASS_FWD;
    if (p->c == p->groups && (p->groups > 1 || p->o == 1))
        return last ? guess_cuda_depthwise_last(p) : guess_cuda_depthwise(p);
    if (p->groups > 1) return guess_cuda_grouped(p, last);
    bool side = places(p->kernel) > 1;
    for (int a = 0; a < 3; a++) side = side && (p->kernel[a] == p->stride[a] || p->out[a] == 1);
    const double *row = !is_half(p) ? dense : side ? beside : half_dense;
    return (weft_rates){15000, row[2 * back], row[2 * back + 1]};
}

/* Softmax over channels that lie apart: a thread goes from one channel to the next, with the latency of memory; up to
 * 64 pixels share a block of 1024 threads. */
static double steps_of_softmax(const weft_problem *p) {
    const int64_t inner = p->in[0] * p->in[1] * p->in[2],
                  share = inner > 0 && inner <= 64 && p->c >= 64 ? 1024 / inner : 1;
    return (double)(p->c / share);
}

/* Pooling by a thread per result; to one pixel it is a mean. */
static weft_rates guess_cuda_pool(const weft_problem *p, double share) {
    const bool fwd = p->pass == WEFT_PASS_FWD, last = is_last(p);
    const double window = places(p->in) / fmax(places(p->out), 1);
    double ns = last ? 6000 : 5500;
    if (p->op == WEFT_OP_MAX_POOL && last && fwd) ns = 25000;
    if (p->op == WEFT_OP_AVG_POOL && last && fwd) share = is_half(p) ? 0.09 : 0.18;
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL && places(p->out) > 1) ns = (last ? 12000 : 5000) + (fwd ? 64 * window : 0);
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL && places(p->out) <= 1)
        ns = last ? 6500 : fwd ? 4600 : 4000, share = fwd ? 0.75 : 0.5;
    return (weft_rates){ns, 1, share};
}

/* Memory-bound operators on an H200: shares of the bandwidth, each tensor once, forward and gradients. Pointwise ones
 * run at the speed of memory; softmax does better where the rows lie together; gradients of pooling and columns go by
 * atomics or one element per thread, columns are made one image after the other; batch norm reads its input twice;
 * ncrelu, lrn and complex pairs take several calls. */
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
        [WEFT_OP_CDGMM] = {6000, 0.85, 0.4},       [WEFT_OP_IM2COL] = {4500, 0.2, 0.1},
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
    if (p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL) {
        *r = guess_cuda_pool(p, share);
        return true;
    }
    if ((p->op == WEFT_OP_IM2COL && fwd) || (p->op == WEFT_OP_COL2IM && !fwd)) ns += 5000 * (double)(p->n - 1);
    if (p->op == WEFT_OP_COL2IM && fwd) ns = 5300;
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS) { /* two results, one of them a sum */
        if (p->op == WEFT_OP_DGMM) ns = 9000;
        if (p->op == WEFT_OP_CDGMM) ns = 12000;
    }
    *r = (weft_rates){ns, 1, share};
    return true;
}

/* A score of calls for some images, and planes besides; and on the CPU the convolution, of 16 bits in f32. */
static weft_rates guess_partial(const weft_problem *p, bool cuda) {
    weft_problem conv = *p;
    weft_rates r = {cuda ? 200000 : 100000, 0.3, 0.1};
    if (cuda || p->pass == WEFT_PASS_BWD_BIAS) return r;
    if (wt_is_half(p->tensor[0].dtype)) conv.tensor[0].dtype = WEFT_DTYPE_F32;
    const wt_conv_work w = wt_torch_conv(&conv, is_last(p));
    r.ns += w.ns;
    r.of_peak = fmin(0.3, w.asked / w.flops);
    return r;
}

/* 16-bit types have fast CPU kernels in few operators; one call costs its allocations and checks. */
static void guess(const weft_problem *p, weft_rates *r) {
    bool cuda = p->device == WEFT_DEVICE_CUDA, wide = p->tensor[0].dtype == WEFT_DTYPE_F64;
    *r = (weft_rates){cuda ? 4000 : 5000, 0.3, 0.4};
    if (guess_cuda(p, r)) return;
    if (p->op == WEFT_OP_CONV && cuda) *r = guess_cuda_conv(p);
    bool pointwise = p->op == WEFT_OP_RELU || p->op == WEFT_OP_CLIP || p->op == WEFT_OP_TANH ||
                     p->op == WEFT_OP_SIGMOID || p->op == WEFT_OP_NCRELU;
    bool pool = p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    if (pointwise && !cuda) *r = guess_cpu_pointwise(p);
    bool other = p->op == WEFT_OP_LRN || p->op == WEFT_OP_IM2COL || p->op == WEFT_OP_COL2IM || p->op == WEFT_OP_DGMM ||
                 p->op == WEFT_OP_CDGMM;
    if (pool && !cuda) *r = guess_cpu_pool(p);
    if (other && !cuda) *r = guess_cpu_other(p);
    if (p->op == WEFT_OP_BATCH_NORM && !cuda) *r = guess_cpu_batch_norm(p);
    if (p->op == WEFT_OP_PARTIAL_CONV) *r = guess_partial(p, cuda);
    /* log-softmax, likelihood and lse one after the other, from Python; the gradient makes the log-softmax again */
    if (p->op == WEFT_OP_CROSS_ENTROPY && !cuda) *r = (weft_rates){50000, 0.3, is_last(p) ? 0.03 : 0.07};
    if ((p->op == WEFT_OP_SOFTMAX || p->op == WEFT_OP_LOG_SOFTMAX) && !cuda) *r = guess_cpu_softmax(p);
    bool recurrent =
        p->op == WEFT_OP_LSTM || p->op == WEFT_OP_GRU || p->op == WEFT_OP_RNN_TANH || p->op == WEFT_OP_RNN_RELU;
    if (recurrent && !cuda) *r = guess_cpu_rnn(p);
    if (wide) r->of_peak *= 0.25;
}

/* What was measured tells of problems that go the same way. */
static void guess_cpu_conv(const weft_problem *p, weft_rates *r) {
    const int kind = kind_of(p);
    wt_conv_work w = wt_torch_conv(p, is_last(p));
    if (kind >= 0 && known[kind].slower > 0 && known[kind].way == w.way) {
        w.flops *= known[kind].slower;
        w.ns = known[kind].ns;
    }
    /* what is moved counts as operations; of a slow memory it is as much, twice of what is put in another order */
    *r = (weft_rates){w.ns, w.asked / w.flops, is_last(p) ? 0.9 : 0.45};
}

void wt_torch_rates(void *user, const weft_problem *p, weft_rates *r) {
    (void)user;
    guess(p, r);
    const bool conv = p->op == WEFT_OP_CONV && p->device == WEFT_DEVICE_CPU && p->pass != WEFT_PASS_BWD_BIAS;
    if (conv) guess_cpu_conv(p, r);
    r->ns *= tie, r->of_peak /= tie, r->of_bandwidth /= tie;
    if (instead) *r = *instead;
}

/* ---------------------------------------------------------------- for weft.backends.calibrate() */
static double estimate(const weft_problem *p, const weft_rates *by) {
    wt_rehearse(wt_never, NULL);
    instead = by;
    const double ns = wt_external_ns(p);
    instead = NULL;
    wt_rehearse(NULL, NULL);
    return ns;
}
static double estimate_text(const char *problem, const weft_rates *by) {
    weft_problem p = WEFT_PROBLEM_INIT;
    return weft_problem_parse(&p, problem) == WEFT_OK ? estimate(&p, by) : -1;
}

/* What the machine could do a problem in, ns; and PyTorch by estimate. -1: the text is wrong. */
static const weft_rates machine = {0, 1, 1}, peak = {0, 1, INFINITY};
WEFT_API double weft_torch_bare_ns(const char *problem) { return estimate_text(problem, &machine); }
WEFT_API double weft_torch_estimate_ns(const char *problem) { return estimate_text(problem, NULL); }

/* The least estimate of weft's own kernels within the limit of workspace; infinity: only the reference. */
WEFT_API double weft_torch_own_ns(const char *problem) {
    weft_problem p = WEFT_PROBLEM_INIT;
    double least = INFINITY;
    wt_follow_threads();
    const size_t limit = wt_settings()->workspace_limit ? wt_settings()->workspace_limit : (size_t)64 << 20;
    if (weft_problem_parse(&p, problem) != WEFT_OK) return -1;
    for (size_t i = weft_kernel_count(wt_context(), &p); i-- > 0;) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(wt_context(), &p, i, &d) != WEFT_OK || !d.applies || d.workspace > limit) continue;
        if (!strcmp(d.engine, "cpu") || !strcmp(d.engine, "cuda")) least = fmin(least, d.ns);
    }
    return least;
}

/* Two measurements of the kind that both problems are of, a tiny one and a larger: the cost of a call, and how much
 * slower the way is than its constants say. Within some three fifths the constants, which are of many problems, stand.
 * false: they say nothing. */
WEFT_API bool weft_torch_learn(const char *tiny, double tiny_ns, const char *large, double large_ns) {
    static const double noise = 1.6;
    weft_problem p[2] = {WEFT_PROBLEM_INIT, WEFT_PROBLEM_INIT};
    if (weft_problem_parse(&p[0], tiny) != WEFT_OK || weft_problem_parse(&p[1], large) != WEFT_OK) return false;
    const int kind = kind_of(&p[1]);
    if (kind < 0 || !(large_ns > tiny_ns) || !(tiny_ns > 0)) return false;
    const wt_conv_work least = wt_torch_conv(&p[0], is_last(&p[0])), most = wt_torch_conv(&p[1], is_last(&p[1]));
    const double at_peak = estimate(&p[1], &peak) / most.asked; /* ns of an operation */
    const double slower = (large_ns - tiny_ns) / (at_peak * (most.flops - least.flops));
    if (!(most.flops > least.flops) || !isfinite(slower)) return false;
    const bool agrees = slower < noise && slower > 1 / noise;
    known[kind].way = most.way;
    known[kind].slower = agrees ? 1 : slower;
    known[kind].ns = agrees ? most.ns : fmax(tiny_ns - slower * at_peak * least.flops, 0);
    wt_seat_forget();
    return true;
}

/* Back to the constants. */
WEFT_API void weft_torch_unlearn(void) {
    memset(known, 0, sizeof(known));
    wt_seat_forget();
}
