/* What PyTorch's convolution costs on the CPU: the way it takes through its code, and the work of that way.
 * PyTorch has columns and a product of its own for small single images, and oneDNN for the rest; oneDNN has code in
 * blocks of channels, made for 1x1, for strides in the gradient of data, for one filter per channel (volumes are
 * turned channels-last for it), and a product per group and image for what none of these takes. ONEDNN_VERBOSE=1 names
 * the code of a call: 97 of 100 among 12,600 random problems take the way that is found here. The work of each way was
 * fitted to their times, on two cores with AVX-512 and BF16 (2026-11-18); with one core it fits as well. Half of the
 * estimates are within a quarter of the time, and nine of ten within a factor of two. */
#include <math.h>

#include "settings.h"

/* ---------------------------------------------------------------- the way */
typedef enum way { COLUMNS, PRODUCTS, BLOCKS, POINTS, STRIDED, DEPTHWISE, TURNED, WAYS } way;

static int64_t largest(const int64_t v[3]) {
    const int64_t two = v[0] > v[1] ? v[0] : v[1];
    return two > v[2] ? two : v[2];
}

/* 1x1, and every position of it. */
static bool is_plain(const weft_problem *p) {
    return largest(p->kernel) == 1 && largest(p->stride) == 1 && largest(p->dilation) == 1;
}

/* Small ones stay with PyTorch's own columns; of a volume the width is not counted. A single thread keeps plain 1x1. */
static bool takes_onednn(const weft_problem *p) {
    const int32_t dtype = p->tensor[0].dtype;
    if (dtype != WEFT_DTYPE_F32) return dtype != WEFT_DTYPE_F64;
    const double counted = (double)p->n * (double)p->c * (double)(p->in[0] * p->in[1] * (p->rank == 3 ? 1 : p->in[2]));
    if (is_plain(p) && p->n < 16 && wt_threads() == 1) return false;
    return p->groups > 1 || p->n > 1 || (p->kernel[1] > 3 && p->kernel[2] > 3) || counted > 20480;
}

/* One filter per channel: some volumes, gradients of weights, padding of more pixels than oneDNN's tile has and what is
 * dilated are left to products. */
static way of_depthwise(const weft_problem *p, weft_pass pass, bool last) {
    const bool dilated = largest(p->dilation) > 1, volume = p->rank == 3, half = p->tensor[0].dtype == WEFT_DTYPE_BF16;
    const bool strided = largest(p->stride) > 1, beyond = largest(p->pad_lo) > 6 || largest(p->pad_hi) > 6;
    const way other = last ? BLOCKS : PRODUCTS;
    if (pass == WEFT_PASS_FWD && volume) return dilated ? other : last ? DEPTHWISE : TURNED;
    if (pass == WEFT_PASS_FWD) return beyond && (!last || dilated) ? PRODUCTS : DEPTHWISE;
    if (pass == WEFT_PASS_BWD_WEIGHTS && largest(p->kernel) > 14) return PRODUCTS;
    if (dilated || volume) return other;
    if (pass == WEFT_PASS_BWD_DATA) return half && strided ? STRIDED : DEPTHWISE;
    return largest(p->kernel) <= 4 ? DEPTHWISE : other;
}

/* Channels-first groups whose channels fill no blocks, and the weights of what is dilated, are left to products. */
static way of_gradient_of_weights(const weft_problem *p, int64_t in, int64_t out) {
    const bool half = p->tensor[0].dtype == WEFT_DTYPE_BF16, volume = p->rank == 3;
    const bool dilated = largest(p->dilation) > 1;
    if (p->groups == 1) return in < 16 && (volume || dilated || (half && out < 16)) ? PRODUCTS : BLOCKS;
    if (dilated || volume || half) return in % 16 || out % 16 ? PRODUCTS : BLOCKS;
    return in % 8 || out % 8 || (in == 8 && out == 8) ? PRODUCTS : BLOCKS;
}

static way way_of(const weft_problem *p, weft_pass pass, bool last) {
    const int64_t in = p->c / p->groups, out = p->o / p->groups, window = largest(p->kernel);
    const bool strided = largest(p->stride) > 1, dilated = largest(p->dilation) > 1, data = pass == WEFT_PASS_BWD_DATA;
    const bool weights = pass == WEFT_PASS_BWD_WEIGHTS;
    if (!takes_onednn(p)) return COLUMNS;
    if (window == 1 && p->groups == 1) return data && strided && !dilated ? STRIDED : POINTS;
    if (window > 1 && dilated && strided && data) return PRODUCTS;
    if (dilated && weights && (strided || p->rank == 3)) return PRODUCTS;
    if (in == 1 && out == 1 && p->groups > 1) return of_depthwise(p, pass, last);
    if (data && strided && window > 1 && (p->groups == 1 || out > 16)) return STRIDED;
    if (last) return BLOCKS;
    if (weights) return of_gradient_of_weights(p, in, out);
    return p->groups > 1 && (in % 4 || out % 4) ? PRODUCTS : BLOCKS;
}

/* ---------------------------------------------------------------- its work */
/* us of a call; operations at the machine's peak for each one that is asked for, without those on padding, for each
 * one of channels filled up to blocks of 16, for each byte of data, of weights and of columns; ns of a product. */
typedef struct costs {
    double call, useful, padded, data, weights, columns, product;
} costs;
enum { FWD, DATA, WEIGHTS, PASSES };
enum { F32, BF16, TYPES };
enum { FIRST, LAST, LAYOUTS };
static const costs table[WAYS][PASSES][TYPES][LAYOUTS] = {
    [COLUMNS] = {[FWD][F32][FIRST] = {2.5, 1.2, 0.17, 0, 23, 41, 0},
                 [DATA][F32][FIRST] = {6.4, 0.86, 0.5, 4.4, 13, 51, 0},
                 [WEIGHTS][F32] = {{9.2, 1.5, 0.2, 0, 13, 38, 0}, {12, 0.96, 0, 33, 8.5, 22, 0}}},
    [PRODUCTS] = {[FWD][F32][FIRST] = {47, 1.2, 0.019, 2.3, 293, 18, 236},
                  [FWD][BF16][FIRST] = {21, 1.9, 0, 11, 231, 37, 589},
                  [DATA][F32][FIRST] = {55, 1.4, 0, 0, 13, 28, 240},
                  [DATA][BF16][FIRST] = {69, 0.91, 0.059, 0, 0, 43, 261},
                  [WEIGHTS][F32] = {{60, 2, 0.039, 0, 67, 18, 94}, {60, 0.72, 0.028, 15, 274, 21, 2012}},
                  [WEIGHTS][BF16] = {{56, 0.61, 0.038, 0, 90, 50, 107}, {43, 0.14, 0, 29, 336, 62, 0}}},
    [BLOCKS] = {[FWD][F32] = {{53, 1.1, 0.058, 12, 28, 0.67, 118}, {28, 0.79, 0.05, 2.9, 92, 5.9, 187}},
                [FWD][BF16] = {{53, 0.58, 0.033, 21, 17, 0.99, 0}, {31, 0.57, 0.099, 3.4, 38, 3.7, 410}},
                [DATA][F32] = {{65, 1.1, 0.066, 13, 12, 0.16, 81}, {29, 0.69, 0.1, 7, 122, 0, 124}},
                [DATA][BF16] = {{62, 0.6, 0.039, 21, 15, 0.12, 26}, {39, 0.64, 0.1, 4.3, 23, 0, 320}},
                [WEIGHTS][F32] = {{65, 1.3, 0, 8.8, 26, 0.15, 123}, {55, 0.96, 0.042, 3.7, 50, 4.4, 34}},
                [WEIGHTS][BF16] = {{64, 0.63, 0, 40, 71, 0.85, 9.2}, {54, 0.42, 0.11, 18, 81, 2.8, 590}}},
    [POINTS] = {[FWD][F32] = {{56, 0, 1.2, 8, 12, 0, 0}, {31, 0.71, 0.41, 2, 13, 0, 323}},
                [FWD][BF16] = {{57, 0, 0.56, 24, 9.1, 7.4, 0}, {33, 0.31, 0.22, 1, 35, 2.2, 66}},
                [DATA][F32] = {{66, 0, 1.2, 8.5, 5.5, 0.55, 0}, {44, 0.73, 0.42, 1.3, 11, 0, 0}},
                [DATA][BF16] = {{65, 0, 0.54, 28, 12, 0, 0}, {42, 0.51, 0, 3.9, 19, 0, 0}},
                [WEIGHTS][F32] = {{71, 0, 1.2, 6.6, 15, 0, 396}, {49, 0.91, 0.25, 0.65, 22, 0, 930}},
                [WEIGHTS][BF16] = {{69, 0, 0.54, 29, 55, 0, 0}, {47, 0.28, 0.25, 6.4, 49, 4.1, 1014}}},
    [STRIDED] = {[DATA][F32] = {{74, 0.55, 0.62, 38, 26, 2, 655}, {70, 0.55, 0.62, 12, 50, 0, 0}},
                 [DATA][BF16] = {{68, 0.27, 0.33, 59, 34, 3.3, 5490}, {68, 0.22, 0, 18, 93, 0, 0}}},
    [DEPTHWISE] = {[FWD][F32] = {{58, 1.6, 0, 7.4, 0, 0, 0}, {37, 1.6, 0, 1.7, 46, 0, 0}},
                   [FWD][BF16] = {{50, 1.9, 0, 24, 0, 0, 0}, {40, 1.4, 0, 1.2, 0, 0, 0}},
                   [DATA][F32] = {{72, 1.8, 0, 7.3, 39, 0, 0}, {50, 2.1, 0, 1.2, 21, 0, 0}},
                   [DATA][BF16] = {{64, 2.5, 0, 20, 0, 0, 0}, {50, 1.9, 0, 1.2, 0, 0, 0}},
                   [WEIGHTS][F32] = {{69, 0.43, 0, 7.2, 0, 0, 0}, {54, 1.1, 0, 3.2, 0, 0, 0}},
                   [WEIGHTS][BF16] = {{81, 0.22, 0, 26, 0, 0, 0}, {49, 1.1, 0, 3.6, 84, 0, 0}}},
    [TURNED] = {[FWD][F32][FIRST] = {72, 1.8, 0, 16, 150, 0, 0}, [FWD][BF16][FIRST] = {63, 1.6, 0, 33, 22, 0, 0}},
};

/* Where a layout or a type has no line of its own, that of channels-first or f32 is taken. */
static const costs *costs_of(way taken, weft_pass pass, int type, bool last) {
    const int row = pass == WEFT_PASS_FWD ? FWD : pass == WEFT_PASS_BWD_DATA ? DATA : WEIGHTS;
    for (int t = type; t >= F32; t--)
        for (int l = last; l >= FIRST; l--)
            if (table[taken][row][t][l].call > 0) return &table[taken][row][t][l];
    return &table[BLOCKS][row][F32][FIRST];
}

/* The share of the taps that lie on the image. */
static double share_on_image(const weft_problem *p) {
    double share = 1;
    for (int a = 0; a < 3; a++) {
        double count = 0;
        for (int64_t t = 0; t < p->kernel[a] && p->out[a] > 0; t++) {
            const int64_t at = t * p->dilation[a] - p->pad_lo[a], s = p->stride[a];
            const int64_t lo = at < 0 ? (-at + s - 1) / s : 0, end = at < p->in[a] ? (p->in[a] - 1 - at) / s + 1 : 0;
            const int64_t hi = end < p->out[a] ? end : p->out[a];
            count += hi > lo ? (double)(hi - lo) : 0;
        }
        share *= count / (double)(p->kernel[a] * (p->out[a] > 0 ? p->out[a] : 1));
    }
    return share;
}

static double up(double count, double to) { return ceil(count / to) * to; }

/* Channels of both sides of a group, multiplied. Without groups channels-first blocks are full ones of 16, but few that
 * are only read, which are of 4; of groups and channels-last, some of the full blocks count beside what is asked.
 * Groups that fill no half of a block take narrow vectors. */
static double products_of(const weft_problem *p, way taken, weft_pass pass, bool last, const costs *c) {
    const double in = (double)(p->c / p->groups), out = (double)(p->o / p->groups);
    if (taken == BLOCKS && p->groups == 1 && !last)
        return c->useful * up(in, in < 16 && pass != WEFT_PASS_BWD_DATA ? 4 : 16) * up(out, 16) * share_on_image(p);
    const bool odd = p->c / p->groups % 8 || p->o / p->groups % 8;
    const bool halves = taken == BLOCKS && !last && odd && pass != WEFT_PASS_BWD_WEIGHTS;
    return (halves ? 1.7 : 1) * c->useful * in * out * share_on_image(p) + c->padded * up(in, 16) * up(out, 16);
}

/* 16 bits are slow where the CPU has no dot products of pairs, f16 everywhere; f64 has half the lanes. */
#if defined(__x86_64__)
#define HAS_BF16_DOTS __builtin_cpu_supports("avx512bf16")
#else
#define HAS_BF16_DOTS false
#endif
static double slower_by(int32_t dtype) {
    if (dtype == WEFT_DTYPE_BF16) return HAS_BF16_DOTS ? 1 : 5;
    return dtype == WEFT_DTYPE_F16 ? 20 : dtype == WEFT_DTYPE_F64 ? 3 : 1;
}

/* Operations for each byte of weights of a long sum over one pixel's channels, channels-last, where the weights do not
 * stay in the caches next to a core: 0.3 to 1.2 ms for 4 MB, as the channels have it. */
static double again_for_long_sums(const weft_problem *p, way taken, bool last, double weights) {
    const bool long_sum = taken == POINTS && last && p->c >= 2 * p->o && weights >= 1 << 20;
    return !long_sum ? 0 : p->tensor[0].dtype == WEFT_DTYPE_F32 ? 60 : 110;
}

static wt_conv_work work_of(const weft_problem *p, weft_pass pass, bool last) {
    const int32_t dtype = p->tensor[0].dtype;
    const way taken = way_of(p, pass, last);
    const costs *c = costs_of(taken, pass, dtype == WEFT_DTYPE_BF16 && HAS_BF16_DOTS ? BF16 : F32, last);
    const double groups = (double)p->groups, in = (double)p->c / groups, out = (double)p->o / groups;
    const double image = (double)(p->in[0] * p->in[1] * p->in[2]), n = (double)p->n;
    const double pixels = n * (double)(p->out[0] * p->out[1] * p->out[2]);
    const double taps = (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    const double bytes = dtype == WEFT_DTYPE_F64 ? 8 : dtype == WEFT_DTYPE_F32 ? 4 : 2;
    const double columns = c->columns * bytes * groups * in * pixels * taps;
    const bool alone = wt_threads() == 1 && taken == COLUMNS; /* columns are written by one thread of all */
    const double sums = 2 * pixels * groups * taps;
    wt_conv_work w = {.way = taken, .ns = 1e3 * c->call + c->product * n * groups, .asked = sums * in * out};
    const double weights = bytes * groups * in * out * taps;
    const bool filled = taken == DEPTHWISE && !last && p->c % 16 && dtype == WEFT_DTYPE_F32; /* the last block, up */
    const double again = pass == WEFT_PASS_FWD ? again_for_long_sums(p, taken, last, weights) : 0;
    w.flops = sums * products_of(p, taken, pass, last, c) +
              bytes * (filled ? 2 : 1) * c->data * groups * (in * n * image + out * pixels) +
              (c->weights + again) * weights;
    if (taken != COLUMNS || p->rank == 3 || !is_plain(p)) w.flops += alone ? columns / 2 : columns;
    w.flops *= slower_by(dtype);
    return w;
}

wt_conv_work wt_torch_conv(const weft_problem *p, bool last) {
    if (p->pass != WEFT_PASS_BWD) return work_of(p, p->pass, last);
    wt_conv_work data = work_of(p, WEFT_PASS_BWD_DATA, last), both = work_of(p, WEFT_PASS_BWD_WEIGHTS, last);
    both.way = both.way * WAYS + data.way;
    both.ns += data.ns;
    both.flops += data.flops;
    both.asked += data.asked;
    return both;
}
