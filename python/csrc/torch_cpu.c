/* How long PyTorch's own operators take on the CPU, but for convolution: constants that keep the order right. */
#include "torch_rates.h"

/* What PyTorch computes one value after the other is no faster on cores with a higher peak than those where its share
 * of the peak was found. */
static double scalar(const weft_problem *p) {
    const double found_at = 150; /* GFLOP/s of a thread */
    weft__hw hw;
    return weft__ctx_hw(wt_context(), p, &hw) == WEFT_OK ? fmin(1, found_at / hw.gflops[hw.isa]) : 1;
}

/* relu, clip, sigmoid and all gradients run at the speed of memory, but what does not fit the caches goes through them,
 * and 16 bits are clipped in f32; tanh is computed one value after the other. cat of two clamps, and its gradient, make
 * ncrelu. */
static weft_rates guess_cpu_pointwise(const weft_problem *p) {
    double count = 1;
    for (int a = 0; a < p->tensor[0].rank; a++) count *= (double)p->tensor[0].dims[a];
    const bool fwd = p->pass == WEFT_PASS_FWD, large = count > 1 << 20 && p->tensor[0].dtype == WEFT_DTYPE_F32;
    if (p->op == WEFT_OP_NCRELU) return (weft_rates){20000, 1, fwd ? 0.35 : 0.15};
    if (p->op == WEFT_OP_TANH && fwd) return (weft_rates){2000, 0.0025 * scalar(p), 1};
    if (p->op == WEFT_OP_CLIP && fwd && wt_is_half(p->tensor[0].dtype)) return (weft_rates){2000, 1, 0.5};
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
    return one[op == 1 && p->rank == 3 && wt_rates_last(p) ? 3 : op == 2 && p->rank == 3 ? 4 : op][back][half];
}

/* Channels-first, one output after the other. Channels-last, vectors along the channels, but for means in 3D; the
 * gradient image by image. A call of weft costs 6 to 16 us more than one of PyTorch, with autograd: tiny problems are
 * PyTorch's. */
static weft_rates guess_cpu_pool(const weft_problem *p) {
    const double found_at = 118; /* GFLOP/s of a thread */
    const bool fwd = p->pass == WEFT_PASS_FWD, max = p->op == WEFT_OP_MAX_POOL, last = wt_rates_last(p);
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
    const bool last = wt_rates_last(p) && p->rank > 1; /* in 1D PyTorch puts it in the other order first */
    weft_rates r = rates[last][p->attr[WEFT_BN_TRAIN] != 0][back];
    if (back && is_large(p) && !last) r.of_bandwidth /= 2;
    if (wt_rates_last(p) && !last) r.of_bandwidth = fmin(r.of_bandwidth, 0.06);
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
    if (wt_rates_last(p)) return (weft_rates){3000, 0.3, back ? 0.22 : 0.09};
    return (weft_rates){3000, apart[log][back], is_large(p) ? 0.25 : back ? 0.6 : 0.4};
}

/* lrn is made of several of PyTorch's operators, columns take some 2 ns an element, 4 to add them up, and the product
 * with a diagonal runs at the speed of memory, but for complex numbers and sums. Tiny problems are PyTorch's, as
 * above. */
static weft_rates guess_cpu_other(const weft_problem *p) {
    const bool fwd = p->pass == WEFT_PASS_FWD, scales = fwd || p->pass == WEFT_PASS_BWD_DATA;
    if (p->op == WEFT_OP_LRN) return (weft_rates){10000, fwd ? 0.016 : 0.05, 0.1};
    if (p->op == WEFT_OP_IM2COL || p->op == WEFT_OP_COL2IM) {
        const bool columns = (p->op == WEFT_OP_IM2COL) == fwd;
        return (weft_rates){10000, (columns ? 0.0045 : 0.0025) * scalar(p), 1};
    }
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

/* A score of calls for some images, and planes besides; and the convolution, of 16 bits in f32. */
static weft_rates guess_cpu_partial(const weft_problem *p) {
    weft_problem conv = *p;
    weft_rates r = {100000, 0.3, 0.1};
    if (p->pass == WEFT_PASS_BWD_BIAS) return r;
    if (wt_is_half(p->tensor[0].dtype)) conv.tensor[0].dtype = WEFT_DTYPE_F32;
    const wt_conv_work w = wt_torch_conv(&conv, wt_rates_last(p));
    r.ns += w.ns;
    r.of_peak = fmin(0.3, w.asked / w.flops);
    return r;
}

/* Log-softmax, likelihood and lse one after the other, from Python; the gradient makes the log-softmax again. */
static weft_rates guess_cpu_cross_entropy(const weft_problem *p) {
    return (weft_rates){50000, 0.3, wt_rates_last(p) ? 0.03 : 0.07};
}

/* One call costs its allocations and checks; 16-bit types have fast kernels in few operators. */
weft_rates wt_guess_cpu(const weft_problem *p) {
    static weft_rates (*const by_op[WEFT_OP_COUNT])(const weft_problem *) = {
        [WEFT_OP_RELU] = guess_cpu_pointwise,
        [WEFT_OP_CLIP] = guess_cpu_pointwise,
        [WEFT_OP_TANH] = guess_cpu_pointwise,
        [WEFT_OP_SIGMOID] = guess_cpu_pointwise,
        [WEFT_OP_NCRELU] = guess_cpu_pointwise,
        [WEFT_OP_MAX_POOL] = guess_cpu_pool,
        [WEFT_OP_AVG_POOL] = guess_cpu_pool,
        [WEFT_OP_ADAPTIVE_AVG_POOL] = guess_cpu_pool,
        [WEFT_OP_LRN] = guess_cpu_other,
        [WEFT_OP_IM2COL] = guess_cpu_other,
        [WEFT_OP_COL2IM] = guess_cpu_other,
        [WEFT_OP_DGMM] = guess_cpu_other,
        [WEFT_OP_CDGMM] = guess_cpu_other,
        [WEFT_OP_BATCH_NORM] = guess_cpu_batch_norm,
        [WEFT_OP_PARTIAL_CONV] = guess_cpu_partial,
        [WEFT_OP_CROSS_ENTROPY] = guess_cpu_cross_entropy,
        [WEFT_OP_SOFTMAX] = guess_cpu_softmax,
        [WEFT_OP_LOG_SOFTMAX] = guess_cpu_softmax,
        [WEFT_OP_LSTM] = guess_cpu_rnn,
        [WEFT_OP_GRU] = guess_cpu_rnn,
        [WEFT_OP_RNN_TANH] = guess_cpu_rnn,
        [WEFT_OP_RNN_RELU] = guess_cpu_rnn,
    };
    weft_rates r = by_op[p->op] ? by_op[p->op](p) : (weft_rates){5000, 0.3, 0.4};
    if (p->tensor[0].dtype == WEFT_DTYPE_F64) r.of_peak *= 0.25;
    return r;
}
