/* Depthwise 3D convolution, channels-first, stride 1: forward and data gradient; f32, f16, bf16.
 * Math:      see depthwise.h. The gradient is the forward sum with the window turned: a source meets dest
 *            source + pad - tap, with pad and tap counted from the other end
 * Blocking:  a block has one channel, a strip of rows of its planes and a chunk of its depth, and walks through the
 *            depth. Source planes come by bulk copies, RING ahead; each is read from shared memory once and meets the
 *            K0 dest planes of its taps, whose sums are under way in registers, RY x RX dests of each per thread. Dests
 *            leave by bulk copies
 * Traffic:   each tensor once; planes where the depth is cut, and rows between strips, again from L2
 * Roofline:  multiply-adds, or bandwidth. Measured on an H200 (GB/s of tensors moved once; a plain copy 4270), 3x3x3 in
 *            f32: 1x64x50^3 2210, 4x64x50^3 3010, 8x54x16x56x56 2610, 8x256x8x28x28 2160. The gradient of the weights
 *            by the same walk was slower than planes, and so were windows of 5
 * Assumes:   all tensors dense, up to 32 taps; compute capability 9.0. Not strict
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g64@cuda */
#include "conv/depthwise.h"

enum { OUTS = 3, MARGIN = 32 }; /* slots of dests that leave */

#ifndef __CUDACC_RTC__
enum { RING = 4, MOST_TAPS = 32 };

/* Source rows of a strip. */
static int64_t source_rows(const depthwise_tile *t, int64_t rows) {
    return WEFT__MIN(rows + t->kernel[1] - 1, t->a.from[1]);
}

/* Instructions of a thread for one source plane, and its registers. */
static double work_of(const depthwise_tile *t) {
    const double dests = t->ry * t->rx, lines = (t->ry + t->kernel[1] - 1) * (t->rx + t->kernel[2] - 1);
    return depthwise_taps(t) * dests + 2 * dests + 1.2 * lines + 60;
}
static int registers_of(const depthwise_tile *t) {
    return t->ry * t->rx * t->kernel[0] + t->rx + t->kernel[2] + depthwise_taps(t) + 32;
}

/* Slots, threads and blocks of one shape; the time of all blocks in instructions of a scheduler. */
static double try_shape(const weft_problem *p, const weft__hw *hw, depthwise_tile *t, int64_t down, int64_t chunks) {
    depthwise_args *a = &t->a;
    const int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype), all = cuda_ceil(a->to[1], t->ry);
    a->across = (int32_t)cuda_ceil(a->to[2], t->rx);
    a->down = (int32_t)down;
    a->strips = (int32_t)cuda_ceil(all, down);
    a->deep = (int32_t)cuda_ceil(a->to[0], chunks);
    a->chunks = (int32_t)cuda_ceil(a->to[0], a->deep);
    t->threads = (int32_t)cuda_ceil(down * a->across, 32) * 32;
    const int64_t rows = WEFT__MIN(down * t->ry, a->to[1]);
    a->slot = cuda_slot(source_rows(t, rows) * a->from[2], depthwise_reach(t), size);
    a->own = cuda_slot(rows * a->to[2], 0, size);
    t->smem =
        (size_t)(8 * RING + 4 * (depthwise_taps(t) + 4) + 2 * MARGIN * size + size * (RING * a->slot + OUTS * a->own));
    if (t->smem > hw->gpu->smem) return 1e300;
    const int64_t fit = (int64_t)(hw->gpu->smem + 1024) / (int64_t)(t->smem + 1024), warps = t->threads / 32;
    for (t->blocks = (int32_t)WEFT__MIN(fit, 8); t->blocks > 1; t->blocks--)
        if (16384 / cuda_ceil(t->blocks * warps, 4) / 32 >= registers_of(t)) break;
    if (16384 / cuda_ceil(warps, 4) / 32 < registers_of(t)) return 1e300;
    const double blocks = (double)(a->channels * a->n * a->strips * a->chunks);
    const double each = work_of(t) * (a->deep + t->kernel[0] - 1) + 600, busy = (double)(t->blocks * warps) / 4;
    const double waves = blocks / (double)(hw->gpu->sms * t->blocks), whole = (double)(int64_t)(waves + 0.999);
    /* few warps do not fill a scheduler; a last wave of few blocks is faster */
    return (0.5 * waves + 0.5 * whole) * each * WEFT__MAX(busy, 3.2);
}

/* Two rows of dests per thread, as measured; other sizes by their cost. */
static double best_shape(const weft_problem *p, const weft__hw *hw, depthwise_tile *t) {
    static const int cuts[] = {1, 2, 3, 4, 5, 6, 8, 12, 16};
    depthwise_tile best = *t;
    double least = 1e300;
    t->ry = WEFT__MIN(2, t->a.to[1]);
    for (t->rx = 1; t->rx <= 7; t->rx += 2) {
        const int64_t across = cuda_ceil(t->a.to[2], t->rx), all = cuda_ceil(t->a.to[1], t->ry);
        for (int64_t strips = 1; strips <= all; strips += 1 + strips / 8) {
            const int64_t down = cuda_ceil(all, strips);
            if (down * across > 320) continue;
            if (down * across < 48 && strips > 1 && cuda_ceil(all, strips - 1) * across <= 320) break;
            for (size_t i = 0; i < WEFT__COUNT(cuts) && cuts[i] <= t->a.to[0]; i++) {
                depthwise_tile one = *t;
                const double cost = try_shape(p, hw, &one, down, cuts[i]);
                if (cost < least) least = cost, best = one;
            }
        }
    }
    *t = best;
    return least;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = depthwise_refusal(p, t);
    (void)variant;
    if (refusal) return refusal;
    if (t->last && p->c > 1) return "a tensor is not dense channels-first";
    if (hw->gpu->cc < 90) return "a GPU without bulk copies";
    for (int i = 0; i < 3; i++)
        if (t->stride[i] != 1 || t->dilation[i] != 1) return "stride or dilation is not 1";
    if (t->kernel[0] < 2 || depthwise_taps(t) > MOST_TAPS) return "one plane of taps, or over 32 taps";
    t->vec = 1;
    const double instructions = best_shape(p, hw, t);
    if (instructions > 1e299) return "rows that do not fit into shared memory";
    t->a.run = 1;
    refusal = depthwise_split(p, t, p->c * t->a.strips, (int64_t)t->a.n * t->a.chunks, INT32_MAX, d);
    d->ns = 4000 + 1.2 * WEFT__MAX(instructions / 1.75 / 0.7, weft__bytes(p) / (hw->gpu->gbs * 0.75));
    return refusal;
}

static void march_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    depthwise_defines(p, hw, t, text);
    weft__put(text, " -DLAST=0 -DRING=%d -DRIGHT=%d -DSPARE=%d", RING, depthwise_right(t),
              t->a.across * t->rx - t->a.to[2]);
}

const weft__kernel weft__cuda_dwconv_march = {
    .name = "dwconv_ncdhw_march__cuda",
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .dtypes = CUDA_FLOATS,
    .steps = WEFT__EPILOGUE_STEPS,
    .exact = true,
    .not_strict = true,
    .plan = plan,
    .run = depthwise_run,
    WEFT__PARTS({"conv/depthwise_march.cu", "depthwise", march_defines, false}),
};

#else
#define BULK 1
#define ALIGNED 0
#include "span.h"

enum { KEEP = TAPS <= 27 }; /* weights in registers */
enum { PAD0 = FWD ? P0 : K0 - 1 - P0, PAD1 = FWD ? P1 : K1 - 1 - P1, PAD2 = FWD ? P2 : K2 - 1 - P2 };
enum { LINE = RX + K2 - 1 };

/* The number of a tap that is counted from the other end in the gradients. */
static __device__ __forceinline__ int tap_number(int t) { return FWD ? t : TAPS - 1 - t; }

/* What a block has. */
struct part {
    int64_t channel;
    int image, top, rows, source_top, source_rows, z, planes, begin, end; /* steps with a source: begin .. end - 1 */
};
static __device__ __forceinline__ part part_of(const depthwise_args &a) {
    part p;
    const int segment = (int)blockIdx.x / a.span, rest = (int)blockIdx.x - segment * a.span;
    p.channel = segment / a.strips;
    p.image = rest / a.chunks;
    p.z = (rest - p.image * a.chunks) * a.deep;
    p.planes = min(a.deep, a.to[0] - p.z);
    p.top = segment % a.strips * a.down * RY;
    p.rows = min(a.down * RY, a.to[1] - p.top);
    p.source_top = max(p.top - PAD1, 0);
    p.source_rows = max(min(p.top + p.rows - 1 - PAD1 + K1 - 1, a.from[1] - 1) - p.source_top + 1, 0);
    const int first = p.z - PAD0; /* the source of step 0 */
    p.begin = max(-first, 0);
    p.end = p.source_rows ? min(p.planes + K0 - 1, a.from[0] - first) : 0;
    return p;
}
static __device__ __forceinline__ int64_t source_at(const depthwise_args &a, const part &p, int step) {
    const int z = p.z - PAD0 + step;
    return (((p.image * a.channels + p.channel) * a.from[0] + z) * a.from[1] + p.source_top) * a.from[2];
}
static __device__ __forceinline__ int64_t dest_at(const depthwise_args &a, const part &p, int plane) {
    return (((p.image * a.channels + p.channel) * a.to[0] + p.z + plane) * a.to[1] + p.top) * a.to[2];
}

struct memory {
    uint64_t *arrival;
    float *filter;
    T *zeros, *ring, *out;
};
static __device__ __forceinline__ memory memory_of(const depthwise_args &a, unsigned char *at) {
    memory m;
    m.arrival = (uint64_t *)at;
    m.filter = (float *)(m.arrival + RING);
    m.zeros = (T *)(m.filter + (TAPS + 3) / 4 * 4);
    m.ring = m.zeros + MARGIN;
    m.out = m.ring + RING * a.slot;
    return m;
}

static __device__ __forceinline__ void load_source(const depthwise_args &a, const memory &m, const part &p, int step) {
    const int number = step - p.begin, slot = number % RING;
    if (step >= p.end) return;
    span_load(m.ring + slot * a.slot, (const T *)a.source,
              (int64_t)a.n * a.channels * a.from[0] * a.from[1] * a.from[2], source_at(a, p, step),
              p.source_rows * a.from[2], &m.arrival[slot]);
}
/* The place of a thread in the strip. */
struct place {
    bool there;
    int y, x;
};

struct state {
    float sum[K0][RY][RX], filter[KEEP ? TAPS : 1];
};

/* Column c of a tile exists; most are known to. */
static __device__ __forceinline__ bool column(const depthwise_args &a, const place &q, int c) {
    return c < RX - SPARE || q.x + c < a.to[2];
}

/* All products of a source plane. Phase: the step modulo K0; dest plane i is number i % K0 of the registers. */
template <int Phase>
static __device__ __forceinline__ void meet(const depthwise_args &a, const memory &m, const part &p, const place &q,
                                            int step, state &s) {
    const int slot = (step - p.begin) % RING, y = p.top + q.y - PAD1 - p.source_top, x = q.x - PAD2;
    const T *plane = m.ring + slot * a.slot + span_shift((const T *)a.source, (uint32_t)source_at(a, p, step));
#pragma unroll
    for (int l = 0; l < RY + K1 - 1; l++) {
        const bool inside = (unsigned)(y + l) < (unsigned)p.source_rows;
        const T *row = inside ? plane + (y + l) * a.from[2] + x : m.zeros;
        float line[LINE];
#pragma unroll
        for (int i = 0; i < LINE; i++) {
            const float v = widen(row[i]);
            line[i] = (i >= PAD2 && i < LINE - RIGHT) || (unsigned)(x + i) < (unsigned)a.from[2] ? v : 0;
        }
#pragma unroll
        for (int i = 0; i < K0 * RY * K2; i++) {
            const int j = i / (RY * K2), k = i / K2 % RY, t = i % K2; /* dest plane, the oldest first; row; tap */
            if (l - k < 0 || l - k >= K1) continue;
            const int ring = (Phase + 1 + j) % K0, number = ((K0 - 1 - j) * K1 + l - k) * K2 + t;
            const float weight = KEEP ? s.filter[KEEP ? number : 0] : m.filter[number];
#pragma unroll
            for (int c = 0; c < RX; c++) s.sum[ring][k][c] = fmaf(line[c + t], weight, s.sum[ring][k][c]);
        }
    }
}

/* A plane of dests is complete. */
static __device__ __forceinline__ void leave(const depthwise_args &a, const memory &m, const part &p, const place &q,
                                             int plane, const float (&sum)[RY][RX]) {
    T *to = m.out + plane % OUTS * a.own + span_shift((const T *)a.dest, (uint32_t)dest_at(a, p, plane)) + q.x;
    const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[p.channel]) : 0;
#pragma unroll
    for (int i = 0; i < RY * RX; i++) {
        const int k = i / RX, c = i % RX;
        if (q.y + k >= p.rows || !column(a, q, c)) continue;
        to[(q.y + k) * a.to[2] + c] = narrow<T>(FWD ? weft__epilogue_apply(a.epilogue, bias, sum[k][c]) : sum[k][c]);
    }
}

template <int Phase>
static __device__ __forceinline__ void step_through(const depthwise_args &a, const memory &m, const part &p,
                                                    const place &q, int step, state &s) {
    const int done = step - (K0 - 1); /* the plane that is complete after this step */
    const bool source = step >= p.begin && step < p.end;
    if (source) arrival_wait(&m.arrival[(step - p.begin) % RING], (uint32_t)((step - p.begin) / RING & 1));
    if (q.there) {
#pragma unroll
        for (int i = 0; i < RY * RX; i++) s.sum[Phase][i / RX][i % RX] = 0;
        if (source) meet<Phase>(a, m, p, q, step, s);
        if (done >= 0) leave(a, m, p, q, done, s.sum[(Phase + 1) % K0]);
    }
    fence_async();
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (done >= 0) span_store((T *)a.dest, dest_at(a, p, done), p.rows * a.to[2], m.out + done % OUTS * a.own);
    span_store_wait<1>();
    if (source) load_source(a, m, p, step + RING);
}

template <int Phase>
static __device__ __forceinline__ void turn(const depthwise_args &a, const memory &m, const part &p, const place &q,
                                            int step, state &s) {
    if constexpr (Phase < K0) {
        if (step + Phase >= p.planes + K0 - 1) return;
        step_through<Phase>(a, m, p, q, step + Phase, s);
        turn<Phase + 1>(a, m, p, q, step, s);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    const memory m = memory_of(a, bytes);
    const part p = part_of(a);
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; i++) arrival_init(&m.arrival[i]);
        fence_async();
    }
    for (int i = (int)threadIdx.x; i < MARGIN; i += THREADS) m.zeros[i] = narrow<T>(0);
    for (int i = (int)threadIdx.x; i < TAPS; i += THREADS)
        m.filter[i] = widen(((const T *)a.weights)[p.channel * TAPS + tap_number(i)]);
    __syncthreads();
    if (threadIdx.x < 32)
        for (int i = 0; i < RING; i++) load_source(a, m, p, p.begin + i);
    place q;
    const int line = (int)threadIdx.x / a.across;
    q.there = line < a.down;
    q.y = line * RY;
    q.x = ((int)threadIdx.x - line * a.across) * RX;
    state s = {};
    if (KEEP)
#pragma unroll
        for (int i = 0; i < (KEEP ? TAPS : 1); i++) s.filter[i] = m.filter[i];
    for (int step = 0; step < p.planes + K0 - 1; step += K0) turn<0>(a, m, p, q, step, s);
    if (threadIdx.x < 32) span_store_wait<0>(); /* shared memory must outlive the copies that read it */
}
#endif
