/* f32 depthwise 3x3 stride 1 forward, channels-last.
 * Math:      dst[n,y,x,c] = epilogue(sum_{r,s} src[n,y+r-pt,x+s-pl,c] * weights[c,r,s])
 * Blocking:  a warp is 32 x VEC neighbouring channels (VEC 2 where c is even), a thread 7 rows x 2 columns of them: it
 *            walks down the rows with the sums of the three output rows under way in registers. 8 warps a block, side
 *            by side. The last rows and columns of an image are shifted to end with it
 * Traffic:   8 bytes and 18 flops an output: memory-bound. Of the 4 columns a thread reads, two are its neighbour's too
 *            (L1); strips read 2 rows in 9 again (L2)
 * Roofline:  bandwidth / 8 outputs per second. Measured share of a plain copy of the same bytes on an H200, cache
 *            emptied: 64x128x56x56 0.86, 64x512x14x14 0.81, 64x1024x7x7 0.75, 64x50x56x56 0.79
 * Assumes:   any n, c, h, w, pads 0..2; VEC x 4 bytes of alignment. Taps in the padding are left
 *            out, not multiplied by 0. Outputs that two warps share are written twice, with the same values
 * Try:       weft bench --kernel f32_dwconv3x3_fwd_nhwc_7x2__cuda
 *            conv2d:fwd:f32:nhwc:n64c128h56w56:o128k3p1g128@cuda */
#ifndef __CUDACC_RTC__
#include "dwconv.h"
#endif
#include "epilogue.h"

enum { ROWS = 7, COLUMNS = 2, LANES = 32, WARPS = 8 };
enum { AHEAD = 2 }; /* rows loaded before they are summed: none is 12% slower, one 6%; 8 rows a tile gain nothing */

typedef struct dwconv_args {
    const float *src, *weights, *bias;
    float *dst;
    int32_t channels, slabs; /* slabs: of LANES * VEC channels */
    int32_t h, w, oh, ow, pt, pl;
    int32_t strips, pairs; /* of ROWS output rows in a plane; of COLUMNS columns in a row */
    uint32_t groups;       /* n * strips * pairs: one a warp */
    weft__epilogue epilogue;
} dwconv_args;

#ifndef __CUDACC_RTC__
static int vec_of(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].align < 8 && p->tensor[i].rank == 5) return 1;
    return p->c % 2 ? 1 : 2;
}

static double groups_of(const weft_problem *p) {
    return (double)p->n * (double)dwconv_ceil(p->out[1], ROWS) * (double)dwconv_ceil(p->out[2], COLUMNS);
}

/* The time: bytes at the device's rate, the idle lanes of a last slab, and the launch. */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *refusal = dwconv_refusal(p, WEFT_PASS_FWD, hw->gpu);
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_BIAS);
    (void)variant;
    if (refusal) return refusal;
    if (!weft__is_last(weft__tensor(p, WEFT_ROLE_SRC))) return "src is not dense channels-last";
    if (!weft__is_last(weft__tensor(p, WEFT_ROLE_DST))) return "dst is not dense channels-last";
    if (!weft__is_first(weft__tensor(p, WEFT_ROLE_WEIGHTS))) return "weights are not dense channels-first";
    if (bias && !weft__is_first(bias)) return "bias is not dense";
    if (groups_of(p) * (double)dwconv_ceil(p->c, LANES) > 2e9) return "2^31 blocks or more";
    const double slab = LANES * vec_of(p), idle = (double)dwconv_ceil(p->c, (int64_t)slab) * slab / (double)p->c;
    d->ns = 4000 + 1.2 * WEFT__MAX(1, 0.5 * idle) * weft__bytes(p) / hw->gpu->gbs;
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *t) {
    (void)hw, (void)params;
    weft__put(t, "-DVEC=%d", vec_of(p));
    weft__epilogue_defines(p, t);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    dwconv_args a = {
        .src = e->ptr[WEFT_ROLE_SRC],
        .weights = e->ptr[WEFT_ROLE_WEIGHTS],
        .bias = e->ptr[WEFT_ROLE_BIAS],
        .dst = e->ptr[WEFT_ROLE_DST],
        .channels = (int32_t)p->c,
        .slabs = (int32_t)dwconv_ceil(p->c, LANES * vec_of(p)),
        .h = (int32_t)p->in[1],
        .w = (int32_t)p->in[2],
        .oh = (int32_t)p->out[1],
        .ow = (int32_t)p->out[2],
        .pt = (int32_t)p->pad_lo[1],
        .pl = (int32_t)p->pad_lo[2],
        .strips = (int32_t)dwconv_ceil(p->out[1], ROWS),
        .pairs = (int32_t)dwconv_ceil(p->out[2], COLUMNS),
        .groups = (uint32_t)groups_of(p),
        .epilogue = weft__epilogue_args(p),
    };
    uint32_t grid = (uint32_t)(dwconv_ceil(a.groups, WARPS) * a.slabs);
    const weft__launch launch = {.grid = {grid, 1, 1}, .block = {LANES * WARPS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_f32_dwconv3x3_fwd_nhwc = {
    .name = "f32_dwconv3x3_fwd_nhwc_7x2__cuda",
    .version = 4,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .exact = true,
    .steps = WEFT__EPILOGUE_STEPS,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"conv/f32_dwconv3x3_fwd_nhwc.cu", "dwconv3x3", defines, false}),
};

#else
#if VEC == 2
typedef float2 channels_t;
#else
typedef float channels_t;
#endif
struct __align__(4 * VEC) vec { float v[VEC]; };

static __device__ __forceinline__ vec load(const float *at) {
    vec r;
    *(channels_t *)r.v = __ldg((const channels_t *)at);
    return r;
}

/* Counted from the pixel under the first tap of the first output: rows and columns that exist, lo .. hi - 1; and
 * outputs wanted. */
struct window {
    int row_lo, row_hi, column_lo, column_hi, rows, columns;
};

/* What to test. INSIDE: nothing, every pixel exists and all outputs are wanted. EDGE: all outputs are wanted, so only
 * the first two and the last two rows can be padding. SMALL: everything. */
enum { INSIDE, EDGE, SMALL };

template <int CARE> static __device__ __forceinline__ bool row_there(const window &at, int r) {
    if (CARE == INSIDE || (CARE == EDGE && r >= 2 && r < ROWS)) return true;
    return r >= at.row_lo && r < at.row_hi;
}

/* ROWS x COLUMNS outputs of VEC channels. */
template <int CARE>
static __device__ __forceinline__ void outputs(const dwconv_args &a, const float *src, float *dst,
                                               const vec (&weights)[9], const vec &bias, const window &at) {
    vec sum[3][COLUMNS]; /* output row y is in sum[y % 3] while its three input rows pass */
    vec pixel[AHEAD + 1][COLUMNS + 2];
    int64_t in_row = (int64_t)a.w * a.channels, out_row = (int64_t)a.ow * a.channels;
    bool there[COLUMNS + 2];
#pragma unroll
    for (int q = 0; q < COLUMNS + 2; q++) there[q] = CARE == INSIDE || (q >= at.column_lo && q < at.column_hi);
#pragma unroll
    for (int l = 0; l < ROWS + 2 + AHEAD; l++) { /* row l is loaded, row r summed */
        int r = l - AHEAD;
        if (l < ROWS + 2 && row_there<CARE>(at, l))
#pragma unroll
            for (int q = 0; q < COLUMNS + 2; q++)
                if (there[q]) pixel[l % (AHEAD + 1)][q] = load(src + l * in_row + (int64_t)q * a.channels);
        if (r < 0) continue;
#pragma unroll
        for (int x = 0; x < COLUMNS; x++)
#pragma unroll
            for (int i = 0; i < VEC; i++) sum[r % 3][x].v[i] = 0;
        if (row_there<CARE>(at, r)) {
#pragma unroll
            for (int q = 0; q < COLUMNS + 2; q++) {
                if (!there[q]) continue;
#pragma unroll
                for (int k = 0; k < 3; k++) /* tap row k of output row r - k, tap column s of output column q - s */
#pragma unroll
                    for (int s = 0; s < 3; s++) {
                        int y = r - k, x = q - s;
                        if (x < 0 || x >= COLUMNS || y < 0 || y >= ROWS) continue;
#pragma unroll
                        for (int i = 0; i < VEC; i++)
                            sum[y % 3][x].v[i] =
                                fmaf(pixel[r % (AHEAD + 1)][q].v[i], weights[3 * k + s].v[i], sum[y % 3][x].v[i]);
                    }
            }
        }
        int y = r - 2; /* complete now */
        if (y < 0 || (CARE == SMALL && y >= at.rows)) continue;
#pragma unroll
        for (int x = 0; x < COLUMNS; x++) {
            if (CARE == SMALL && x >= at.columns) continue;
            vec result;
#pragma unroll
            for (int i = 0; i < VEC; i++) result.v[i] = weft__epilogue_apply(a.epilogue, bias.v[i], sum[y % 3][x].v[i]);
            *(channels_t *)(dst + y * out_row + (int64_t)x * a.channels) = *(channels_t *)result.v;
        }
    }
}

extern "C" __global__ void __launch_bounds__(LANES *WARPS, 3) dwconv3x3(const __grid_constant__ dwconv_args a) {
    __shared__ float taps[9 * LANES * VEC]; /* weights of this slab, channels fastest */
    uint32_t slab = blockIdx.x % (uint32_t)a.slabs,
             group = blockIdx.x / (uint32_t)a.slabs * WARPS + threadIdx.x / LANES;
    int first = (int)slab * (LANES * VEC), here = min(LANES * VEC, a.channels - first);
    int lane = (int)(threadIdx.x % LANES) * VEC;
    for (int i = (int)threadIdx.x; i < here * 9; i += LANES * WARPS)
        taps[i % 9 * (LANES * VEC) + i / 9] = a.weights[(int64_t)first * 9 + i];
    __syncthreads();
    if (group >= a.groups || lane >= here) return;
    uint32_t line = group / (uint32_t)a.pairs, image = line / (uint32_t)a.strips;
    int x = max(min((int)(group - line * (uint32_t)a.pairs) * COLUMNS, a.ow - COLUMNS), 0);
    int y = max(min((int)(line - image * (uint32_t)a.strips) * ROWS, a.oh - ROWS), 0);
    int top = y - a.pt, left = x - a.pl;
    vec weights[9], bias = {};
#pragma unroll
    for (int k = 0; k < 9; k++)
#pragma unroll
        for (int i = 0; i < VEC; i++) weights[k].v[i] = taps[k * (LANES * VEC) + lane + i];
    if (weft__epilogue_biased())
#pragma unroll
        for (int i = 0; i < VEC; i++) bias.v[i] = __ldg(a.bias + first + lane + i);
    const float *src = a.src + (((int64_t)image * a.h + top) * a.w + left) * a.channels + first + lane;
    float *dst = a.dst + (((int64_t)image * a.oh + y) * a.ow + x) * a.channels + first + lane;
    window at = {-top, a.h - top, -left, a.w - left, a.oh - y, a.ow - x};
    bool inside = top >= 0 && left >= 0 && at.row_hi >= ROWS + 2 && at.column_hi >= COLUMNS + 2;
    if (inside)
        outputs<INSIDE>(a, src, dst, weights, bias, at);
    else if (at.rows >= ROWS && at.columns >= COLUMNS)
        outputs<EDGE>(a, src, dst, weights, bias, at);
    else
        outputs<SMALL>(a, src, dst, weights, bias, at);
}
#endif
