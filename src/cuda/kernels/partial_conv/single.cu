/* Partial convolution with one input and one output channel in each group: forward and the gradient of the data; any
 * strides; f32, f16, bf16. The planes that any partial convolution has besides its products, sums, mask and ratio, are
 * such a problem of ones.
 * Math:      as in src/ref/partial_conv.h; sums of masks in f32, all else in f64
 * Blocking:  an output of each thread, which goes over the taps
 * Traffic:   windows from L1 and L2, results once
 * Roofline:  latency: planes are small beside the data
 * Assumes:   axes below 2^24; no epilogue
 * Try:       weft verify --device cuda --kernel partial_conv_single__cuda --random 20 */
#ifndef __CUDACC_RTC__
#include "frame.h"
#endif
#include "weft.h"

enum { THREADS = 128 };

typedef struct partial_view {
    void *at;
    int64_t step[5]; /* n c d h w, or of the window */
} partial_view;

typedef struct partial_args {
    partial_view src, weights, mask, diff_dst, sums, dst, fresh; /* dst: or diff_src */
    int64_t count;                                               /* outputs */
    double window;                                               /* elements of it */
    int32_t channels, to[3], from[3];                            /* sizes of dst, and of what is read */
    int32_t kernel[3], stride[3], pad[3], dilation[3];
} partial_args;

#ifndef __CUDACC_RTC__
static const char *refusal_of(const weft_problem *p) {
    if (p->groups != p->c || p->o != p->c) return "more than one channel in a group";
    if (p->nsteps) return "an epilogue";
    if (p->c > 1 << 30) return "2^30 channels or more";
    for (int a = 0; a < 3; a++)
        if (p->in[a] >= 1 << 24 || p->out[a] >= 1 << 24 || p->kernel[a] >= 1 << 24 || p->stride[a] > 1 << 6 ||
            p->dilation[a] > 1 << 6 || p->kernel[a] > 1 << 12)
            return "an axis of 2^24 or more, a stride or dilation over 64, a window over 4096";
    for (int i = 0; i < p->ntensors; i++)
        if (!(CUDA_FLOATS & WEFT__BIT(p->tensor[i].dtype)) && p->tensor[i].dtype != WEFT_DTYPE_U8) return "64-bit data";
    return NULL;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const double taps = (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    const double outputs =
        (double)weft__numel(weft__tensor(p, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC));
    d->ns = cuda_ns(hw, weft__bytes(p), 0.3, 1) + outputs * taps * 30 / (0.5 * hw->gpu->gflops);
    return refusal_of(p);
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    static const struct {
        int role;
        const char *name;
    } types[] = {{WEFT_ROLE_SRC, "SRC_T"},   {WEFT_ROLE_WEIGHTS, "WEIGHTS_T"}, {WEFT_ROLE_DIFF_DST, "DIFF_T"},
                 {WEFT_ROLE_SUMS, "SUMS_T"}, {WEFT_ROLE_NEW_MASK, "FRESH_T"},  {WEFT_ROLE_MASK, "MASK_T"}};
    const bool fwd = p->pass == WEFT_PASS_FWD;
    (void)hw, (void)params;
    weft__put(text, "-DMASK=%d -DONE=%d -DTRANSPOSED=%d -DBWD=%d -DBIASED=%d", (int)p->attr[WEFT_PARTIAL_MASK],
              p->attr[WEFT_PARTIAL_SHARED] || !p->attr[WEFT_PARTIAL_MASK], p->attr[WEFT_PARTIAL_TRANSPOSED] != 0, !fwd,
              p->attr[WEFT_PARTIAL_BIASED] != 0);
    cuda_define_type(p, fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC, "T", text);
    for (size_t i = 0; i < WEFT__COUNT(types); i++) {
        const weft_tensor *t = weft__tensor(p, types[i].role);
        if (t && t->dtype == WEFT_DTYPE_U8)
            weft__put(text, " -D%s=uint8_t", types[i].name);
        else
            cuda_define_type(p, types[i].role, types[i].name, text);
    }
}

static partial_view view_of(const weft__exec *e, int role) {
    const weft_tensor *t = weft__tensor(e->p, role);
    partial_view v = {.at = e->ptr[role]};
    for (int a = 0; t && a < 5; a++) v.step[a] = t->strides[a];
    return v;
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int role = fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC;
    partial_args a = {.src = view_of(e, WEFT_ROLE_SRC),
                      .weights = view_of(e, WEFT_ROLE_WEIGHTS),
                      .mask = view_of(e, WEFT_ROLE_MASK),
                      .diff_dst = view_of(e, WEFT_ROLE_DIFF_DST),
                      .sums = view_of(e, WEFT_ROLE_SUMS),
                      .dst = view_of(e, role),
                      .fresh = view_of(e, WEFT_ROLE_NEW_MASK),
                      .count = weft__numel(weft__tensor(p, role)),
                      .window = (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]),
                      .channels = (int32_t)p->c};
    for (int i = 0; i < 3; i++) {
        a.to[i] = (int32_t)(fwd ? p->out[i] : p->in[i]), a.from[i] = (int32_t)(fwd ? p->in[i] : p->out[i]);
        a.kernel[i] = (int32_t)p->kernel[i], a.stride[i] = (int32_t)p->stride[i];
        a.pad[i] = (int32_t)p->pad_lo[i], a.dilation[i] = (int32_t)p->dilation[i];
    }
    const weft__launch launch = {.grid = {(uint32_t)WEFT__MIN(cuda_ceil(a.count, THREADS), 1 << 30), 1, 1},
                                 .block = {THREADS, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_partial_conv_single = {
    .name = "partial_conv_single__cuda",
    .version = 1,
    .op = WEFT_OP_PARTIAL_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .dtypes = CUDA_FLOATS,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"partial_conv/single.cu", "partial_single", defines, false}),
};

#else
#include "vec.h"

enum { AHEAD = BWD == TRANSPOSED }; /* from = to * stride - pad + tap; else the other way */

struct place {
    int64_t n;
    int c, at[3];
};

/* The place that a tap joins to one along an axis; negative: none. */
static __device__ __forceinline__ int join(const partial_args &a, int axis, int at, int tap) {
    const int delta = tap * a.dilation[axis];
    int to = at * a.stride[axis] - a.pad[axis] + delta;
    if (!AHEAD) {
        const int back = at + a.pad[axis] - delta;
        to = back >= 0 && back % a.stride[axis] == 0 ? back / a.stride[axis] : -1;
    }
    return to < a.from[axis] ? to : -1;
}

template <class E>
static __device__ __forceinline__ E &element(const partial_view &v, int64_t n, int64_t c, int z, int y, int x) {
    return ((E *)v.at)[n * v.step[0] + c * v.step[1] + z * v.step[2] + y * v.step[3] + x * v.step[4]];
}

static __device__ __forceinline__ float masked(uint8_t m, float v) { return m ? v : 0; }
template <class E> static __device__ __forceinline__ float masked(E m, float v) { return v * widen(m); }
static __device__ __forceinline__ float mask_of(const partial_args &a, const place &p, int z, int y, int x, float v) {
    if (!MASK) return v;
    return masked(element<MASK_T>(a.mask, ONE ? 0 : p.n, MASK == 2 ? p.c : 0, z, y, x), v);
}

static __device__ __forceinline__ double share(double sum) { return sum < 0 ? 0 : sum > 1 ? 1 : sum; }
static __device__ __forceinline__ double ratio(const partial_args &a, double sum) {
    return a.window / (sum + 1e-8) * share(sum);
}

/* diff_dst times the ratio of its window. */
static __device__ __forceinline__ double scaled(const partial_args &a, const place &p, int z, int y, int x) {
    const double sum = widen(element<SUMS_T>(a.sums, ONE ? 0 : p.n, MASK == 2 ? p.c : 0, z, y, x));
    const double d = widen(element<DIFF_T>(a.diff_dst, p.n, p.c, z, y, x)) * ratio(a, sum);
    return BIASED ? d * share(sum) : d;
}

template <class E> static __device__ __forceinline__ E narrow_mask(float v) { return narrow<E>(v); }
template <> __device__ __forceinline__ uint8_t narrow_mask<uint8_t>(float v) { return (uint8_t)v; }

/* Of one mask for several outputs the first writes: those of channel 0, of image 0. */
static __device__ __forceinline__ void put_sums(const partial_args &a, const place &p, float sum) {
    if ((ONE && p.n) || (MASK != 2 && p.c)) return;
    element<SUMS_T>(a.sums, p.n, p.c, p.at[0], p.at[1], p.at[2]) = narrow<SUMS_T>(sum);
    element<FRESH_T>(a.fresh, p.n, p.c, p.at[0], p.at[1], p.at[2]) = narrow_mask<FRESH_T>((float)share(sum));
}

static __device__ __forceinline__ void output(const partial_args &a, const place &p) {
    double total = 0;
    float sum = 0;
    for (int r = 0; r < a.kernel[0]; r++) {
        const int z = join(a, 0, p.at[0], r);
        for (int s = 0; z >= 0 && s < a.kernel[1]; s++) {
            const int y = join(a, 1, p.at[1], s);
            for (int t = 0; y >= 0 && t < a.kernel[2]; t++) {
                const int x = join(a, 2, p.at[2], t);
                if (x < 0) continue;
                const float w = widen(element<WEIGHTS_T>(a.weights, p.c, 0, r, s, t));
                if (BWD) {
                    total += scaled(a, p, z, y, x) * w;
                } else {
                    sum += mask_of(a, p, z, y, x, 1);
                    total += (double)mask_of(a, p, z, y, x, widen(element<SRC_T>(a.src, p.n, p.c, z, y, x))) * w;
                }
            }
        }
    }
    if (!BWD) put_sums(a, p, sum);
    const float v = BWD ? mask_of(a, p, p.at[0], p.at[1], p.at[2], (float)total) : (float)(total * ratio(a, sum));
    element<T>(a.dst, p.n, p.c, p.at[0], p.at[1], p.at[2]) = narrow<T>(v);
}

extern "C" __global__ void __launch_bounds__(THREADS) partial_single(const __grid_constant__ partial_args a) {
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < a.count; i += (int64_t)gridDim.x * THREADS) {
        place p;
        int64_t rest = i;
        for (int axis = 2; axis >= 0; axis--) {
            p.at[axis] = (int)(rest % a.to[axis]);
            rest /= a.to[axis];
        }
        p.c = (int)(rest % a.channels);
        p.n = rest / a.channels;
        output(a, p);
    }
}
#endif
