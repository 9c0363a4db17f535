/* How long PyTorch's own operators take on CUDA: constants that keep the order right, found on an H200. */
#include "torch_rates.h"

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
    const bool last = wt_rates_last(p) && p->rank > 1;
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
    const bool fwd = p->pass == WEFT_PASS_FWD, last = wt_rates_last(p);
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
static weft_rates guess_cuda_other(const weft_problem *p) {
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
    if (!shares[p->op].ns) return (weft_rates){4000, 0.3, 0.4};
    const bool rows = wt_rates_last(p) || p->in[0] * p->in[1] * p->in[2] == 1, fwd = p->pass == WEFT_PASS_FWD;
    double share = fwd ? shares[p->op].fwd : shares[p->op].bwd, ns = shares[p->op].ns;
    if (p->op == WEFT_OP_BATCH_NORM) { /* inference reads less; the operators below torch.nn's, which is cuDNN's */
        share = wt_rates_last(p) ? 0.48 : fwd ? 0.46 : 0.38;
        if (!p->attr[WEFT_BN_TRAIN]) share = 0.67;
    }
    if (p->op == WEFT_OP_SOFTMAX || p->op == WEFT_OP_LOG_SOFTMAX) {
        if (rows) share = 0.6;
        if (!rows) ns += (fwd ? 500 : 200) * steps_of_softmax(p);
    }
    if (p->op == WEFT_OP_MAX_POOL || p->op == WEFT_OP_AVG_POOL || p->op == WEFT_OP_ADAPTIVE_AVG_POOL)
        return guess_cuda_pool(p, share);
    if ((p->op == WEFT_OP_IM2COL && fwd) || (p->op == WEFT_OP_COL2IM && !fwd)) ns += 5000 * (double)(p->n - 1);
    if (p->op == WEFT_OP_COL2IM && fwd) ns = 5300;
    if (p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS) { /* two results, one of them a sum */
        if (p->op == WEFT_OP_DGMM) ns = 9000;
        if (p->op == WEFT_OP_CDGMM) ns = 12000;
    }
    return (weft_rates){ns, 1, share};
}

weft_rates wt_guess_cuda(const weft_problem *p) {
    const bool conv = p->op == WEFT_OP_CONV, partial = p->op == WEFT_OP_PARTIAL_CONV;
    weft_rates r = conv ? guess_cuda_conv(p) : guess_cuda_other(p);
    if (partial) r = (weft_rates){200000, 0.3, 0.1}; /* a score of calls for some images, and planes besides */
    if (p->tensor[0].dtype == WEFT_DTYPE_F64 && (conv || r.of_peak < 1)) r.of_peak *= 0.25;
    return r;
}
