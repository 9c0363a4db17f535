/* Depthwise 3D convolution, channels-first, stride 1: forward and gradients; f32, f16, bf16.
 * Math:      see depthwise.h. The gradients are the forward sum with the window turned: a source meets dest
 *            source + pad - tap, with pad and tap counted from the other end
 * Blocking:  a block has one channel, a strip of rows of its planes and a chunk of its depth, and walks through the
 *            depth. Source planes come by bulk copies, RING ahead; each is read from shared memory once and meets the
 *            KZ dest planes of its taps, whose sums are under way in registers, RY x RX dests of each per thread. So
 *            are the values of x in the gradient of the weights. Dests leave by bulk copies. Windows of many taps
 *            have blocks for each plane of taps in the gradient of the weights
 * Traffic:   each tensor once; planes where the depth is cut, and rows between strips, again from L2
 * Roofline:  multiply-adds, 27 or 54 per dest of 3x3x3, or bandwidth
 * Assumes:   all tensors dense; compute capability 9.0. Not strict
 * Try:       weft bench conv3d:bwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g64@cuda */
#include "conv/depthwise.h"

enum { OUTS = 3, MARGIN = 32 }; /* slots of dests that leave */

#ifndef __CUDACC_RTC__
enum { RING = 4, OWNS = 3, MOST_SUMS = 32 };

/* What distinguishes a tile: the rest follows from the problem. */
typedef struct march_shape {
    int32_t mode, ry, rx, threads, blocks, across, down, strips, deep, chunks, slot, own, span, units;
    uint32_t grid;
    size_t smem;
} march_shape;

typedef struct march_plan {
    march_shape first, second; /* second: the weights, where one launch for both has too many sums */
} march_plan;

static march_shape shape_of(const depthwise_tile *t) {
    const depthwise_args *a = &t->a;
    return (march_shape){t->mode, t->ry,     t->rx,   t->threads, t->blocks, a->across, a->down, a->strips,
                         a->deep, a->chunks, a->slot, a->own,     a->span,   a->units,  t->grid, t->smem};
}

static depthwise_tile restored(const weft_problem *p, const march_shape *s) {
    depthwise_tile t = {0};
    (void)depthwise_refusal(p, &t);
    t.mode = s->mode, t.ry = s->ry, t.rx = s->rx, t.threads = s->threads, t.blocks = s->blocks, t.vec = 1;
    t.grid = s->grid, t.smem = s->smem;
    t.a.across = s->across, t.a.down = s->down, t.a.strips = s->strips, t.a.deep = s->deep, t.a.chunks = s->chunks;
    t.a.slot = s->slot, t.a.own = s->own, t.a.span = s->span, t.a.units = s->units, t.a.per = 1, t.a.run = 1;
    return t;
}

static int64_t slot_of(int64_t elements, int64_t size) { return (cuda_ceil(elements * size, 16) + 1) * 16 / size; }

static int planes_of_taps(const depthwise_tile *t) {
    return t->mode >= MODE_WEIGHTS && depthwise_taps(t) > MOST_SUMS ? 1 : t->kernel[0];
}

/* Source rows of a strip. */
static int64_t source_rows(const depthwise_tile *t, int64_t rows) {
    return WEFT__MIN(rows + t->kernel[1] - 1, t->a.from[1]);
}

/* Instructions of a thread for one source plane, and its registers. */
static double work_of(const depthwise_tile *t) {
    const double dests = t->ry * t->rx, taps = (double)(planes_of_taps(t) * t->kernel[1] * t->kernel[2]);
    const bool weights = t->mode >= MODE_WEIGHTS;
    return taps * dests * (t->mode == MODE_BOTH ? 2 : 1) + (weights ? 1.2 : 0) * dests +
           (t->mode != MODE_WEIGHTS ? 2 : 0) * dests + 1.2 * (t->ry + t->kernel[1] - 1) * (t->rx + t->kernel[2] - 1) +
           (taps > 27 ? taps : 0) + 60;
}
static int registers_of(const depthwise_tile *t) {
    const int dests = t->ry * t->rx * planes_of_taps(t), taps = planes_of_taps(t) * t->kernel[1] * t->kernel[2];
    return dests * (t->mode == MODE_BOTH ? 2 : 1) + t->rx + t->kernel[2] + (t->mode >= MODE_WEIGHTS ? taps : 0) +
           (t->mode < MODE_WEIGHTS && taps <= 27 ? taps : 0) + 32;
}

/* Slots, threads and blocks of one shape; the time of all blocks in instructions of a scheduler. */
static double try_shape(const weft_problem *p, const weft__hw *hw, depthwise_tile *t, int64_t down, int64_t chunks) {
    depthwise_args *a = &t->a;
    const int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype), all = cuda_ceil(a->to[1], t->ry);
    const bool weights = t->mode >= MODE_WEIGHTS, out = t->mode != MODE_WEIGHTS;
    a->across = (int32_t)cuda_ceil(a->to[2], t->rx);
    a->down = (int32_t)down;
    a->strips = (int32_t)cuda_ceil(all, down);
    a->deep = (int32_t)cuda_ceil(a->to[0], chunks);
    a->chunks = (int32_t)cuda_ceil(a->to[0], a->deep);
    t->threads = (int32_t)cuda_ceil(down * a->across, 32) * 32;
    const int64_t rows = WEFT__MIN(down * t->ry, a->to[1]);
    a->slot = (int32_t)slot_of(source_rows(t, rows) * a->from[2], size);
    a->own = (int32_t)slot_of(rows * a->to[2], size);
    t->smem = (size_t)(8 * (RING + OWNS + 1) + 4 * (depthwise_taps(t) + 4) + 2 * MARGIN * size +
                       (weights ? 4 * t->threads / 32 * (depthwise_taps(t) + 1) : 0) +
                       size * (RING * a->slot + ((weights ? OWNS : 0) + (out ? OUTS : 0)) * a->own));
    if (t->smem > hw->gpu->smem) return 1e300;
    const int64_t fit = (int64_t)(hw->gpu->smem + 1024) / (int64_t)(t->smem + 1024), warps = t->threads / 32;
    for (t->blocks = (int32_t)WEFT__MIN(fit, 8); t->blocks > 1; t->blocks--)
        if (16384 / cuda_ceil(t->blocks * warps, 4) / 32 >= registers_of(t)) break;
    if (16384 / cuda_ceil(warps, 4) / 32 < registers_of(t)) return 1e300;
    const int kz = planes_of_taps(t);
    const double blocks = (double)(a->channels * a->n * a->strips * a->chunks * (t->kernel[0] / kz));
    const double each = work_of(t) * (a->deep + kz - 1) + 600, busy = (double)(t->blocks * warps) / 4;
    const double waves = blocks / (double)(hw->gpu->sms * t->blocks), whole = (double)(int64_t)(waves + 0.999);
    /* few warps do not fill a scheduler; a last wave of few blocks is faster */
    return (0.5 * waves + 0.5 * whole) * each * WEFT__MAX(busy, 2.5);
}

static const char *const variants[] = {"auto", "5x2", "5x1", "7x1", "7x2", "3x4", NULL};
static const int tiles[][2] = {{0, 0}, {5, 2}, {5, 1}, {7, 1}, {7, 2}, {3, 4}};

static double best_shape(const weft_problem *p, const weft__hw *hw, int variant, depthwise_tile *t) {
    static const int cuts[] = {1, 2, 3, 4, 5, 6, 8, 12, 16};
    depthwise_tile best = *t;
    double least = 1e300;
    for (t->rx = 1; t->rx <= 7; t->rx += 2)
        for (t->ry = 1; t->ry <= 4; t->ry++) {
            const int64_t across = cuda_ceil(t->a.to[2], t->rx), all = cuda_ceil(t->a.to[1], t->ry);
            if (variant && (tiles[variant][0] != t->rx || tiles[variant][1] != t->ry)) continue;
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

static const char *tile_of(const weft_problem *p, const weft__hw *hw, int mode, int variant, depthwise_tile *t,
                           double *ns) {
    const char *refusal = depthwise_refusal(p, t);
    if (refusal) return refusal;
    if (t->last && p->c > 1) return "a tensor is not dense channels-first";
    if (hw->gpu->cc < 90) return "a GPU without bulk copies";
    for (int i = 0; i < 3; i++)
        if (t->stride[i] != 1 || t->dilation[i] != 1) return "stride or dilation is not 1";
    if (t->kernel[0] < 2 || t->kernel[0] > 7 || t->kernel[1] * t->kernel[2] > 49) return "a window of other taps";
    t->mode = mode;
    t->vec = 1;
    const double instructions = best_shape(p, hw, variant, t);
    if (instructions > 1e299) return "rows that do not fit into shared memory";
    t->a.run = 1;
    refusal = depthwise_split(p, t, p->c * t->a.strips, (int64_t)t->a.n * t->a.chunks, INT32_MAX, NULL);
    t->grid *= (uint32_t)(t->kernel[0] / planes_of_taps(t));
    *ns += instructions / 1.75 / 0.7;
    return refusal;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    march_plan *t = WEFT__PARAMS(march_plan, d);
    const char *refusal;
    double ns = 0;
    const bool many = p->kernel[0] * p->kernel[1] * p->kernel[2] > MOST_SUMS, both = p->pass == WEFT_PASS_BWD;
    const int mode = p->pass == WEFT_PASS_FWD           ? MODE_FWD
                     : p->pass == WEFT_PASS_BWD_DATA    ? MODE_DATA
                     : p->pass == WEFT_PASS_BWD_WEIGHTS ? MODE_WEIGHTS
                     : many                             ? MODE_DATA
                                                        : MODE_BOTH;
    depthwise_tile first = {0}, second = {0};
    if ((refusal = tile_of(p, hw, mode, variant, &first, &ns))) return refusal;
    if (both && many && (refusal = tile_of(p, hw, MODE_WEIGHTS, variant, &second, &ns))) return refusal;
    const depthwise_tile *w = both && many ? &second : &first;
    if (w->mode >= MODE_WEIGHTS)
        d->workspace = (size_t)(((int64_t)w->a.units + p->c * w->a.strips) * depthwise_sums(p)) * sizeof(float);
    t->first = shape_of(&first), t->second = shape_of(&second);
    d->ns = 2500 + 1500 * (1 + (w->mode >= MODE_WEIGHTS) + (both && many)) +
            WEFT__MAX(ns, weft__bytes(p) / (hw->gpu->gbs * 0.75));
    return NULL;
}

static void shape_defines(const weft_problem *p, const weft__hw *hw, const march_shape *shape, weft__text *text) {
    const depthwise_tile tile = restored(p, shape), *t = &tile;
    depthwise_defines(p, hw, t, text);
    const int pad = t->mode == MODE_FWD ? t->pad[2] : t->kernel[2] - 1 - t->pad[2], line = t->rx + t->kernel[2] - 1;
    const int first = (t->a.across - 1) * t->rx - pad; /* source column of the last tile */
    const int there = WEFT__MAX(WEFT__MIN(t->a.from[2] - first, line), 0);
    weft__put(text, " -DLAST=0 -DKZ=%d -DRING=%d -DOWNS=%d -DRIGHT=%d -DSPARE=%d", planes_of_taps(t), RING, OWNS,
              line - there, t->a.across * t->rx - t->a.to[2]);
}
static void first_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    shape_defines(p, hw, &((const march_plan *)params)->first, text);
}
static void weights_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const march_plan *t = params;
    shape_defines(p, hw, t->second.threads ? &t->second : &t->first, text);
}

static weft_status launch(const weft__exec *e, int part, const march_shape *s, depthwise_args *a) {
    const depthwise_tile t = restored(e->p, s);
    *a = depthwise_args_of(e, &t);
    const weft__launch launch = {.grid = {t.grid, 1, 1}, .block = {(uint32_t)t.threads, 1, 1}, .smem = t.smem};
    return weft__cuda_launch(e, part, &launch, a);
}

static weft_status run(const weft__exec *e) {
    const march_plan *t = e->params;
    depthwise_args a;
    WEFT__TRY(launch(e, 0, &t->first, &a));
    const bool weights = e->p->pass == WEFT_PASS_BWD || e->p->pass == WEFT_PASS_BWD_WEIGHTS;
    if (!weights) return WEFT_OK;
    if (t->second.threads) WEFT__TRY(launch(e, 1, &t->second, &a));
    return depthwise_finish(e, 2, &a);
}

#define MARCH(name_, text_, passes_, steps_, ...)                        \
    const weft__kernel weft__cuda_##name_ = {.name = text_,              \
                                             .version = 1,               \
                                             .op = WEFT_OP_CONV,         \
                                             .engine = WEFT_ENGINE_CUDA, \
                                             .passes = passes_,          \
                                             .dtypes = CUDA_FLOATS,      \
                                             .steps = steps_,            \
                                             .exact = true,              \
                                             .not_strict = true,         \
                                             .variants = variants,       \
                                             .plan = plan,               \
                                             .run = run,                 \
                                             WEFT__PARTS(__VA_ARGS__)}
#define SOURCE "conv/depthwise_march.cu"
MARCH(dwconv_march, "dwconv_ncdhw_march__cuda", WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA), WEFT__EPILOGUE_STEPS,
      {SOURCE, "march", first_defines, false});
MARCH(dwconv_bwd_march, "dwconv_bwd_ncdhw_march__cuda", WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),
      WEFT__STEP_SET(BIAS), {SOURCE, "march", first_defines, false}, {SOURCE, "march", weights_defines, false},
      {SOURCE, "finish", weights_defines, false});

#else
#define BULK 1
#define ALIGNED 0
#include "span.h"

enum { OUT = FWD || DATA, KT = K0 / KZ, PLANE = K1 * K2, KEEP = OUT && !WEIGHTS && KZ * PLANE <= 27 };
enum { PAD0 = FWD ? P0 : K0 - 1 - P0, PAD1 = FWD ? P1 : K1 - 1 - P1, PAD2 = FWD ? P2 : K2 - 1 - P2 };
enum { LINE = RX + K2 - 1, WARPS = THREADS / 32, MINE = KZ * PLANE + BIASED };

/* The number of a tap that is counted from the other end in the gradients. */
static __device__ __forceinline__ int tap_number(int t) { return FWD ? t : TAPS - 1 - t; }

/* What a block has. */
struct part {
    int64_t channel;
    int unit, segment, image, first_tap;                           /* plane of taps */
    int top, rows, source_top, source_rows, z, planes, begin, end; /* steps with a source: begin .. end - 1 */
};
static __device__ __forceinline__ part part_of(const depthwise_args &a) {
    part p;
    p.unit = (int)blockIdx.x / KT;
    p.first_tap = (int)blockIdx.x - p.unit * KT;
    p.segment = p.unit / a.span;
    const int rest = p.unit - p.segment * a.span, strip = p.segment % a.strips;
    p.channel = p.segment / a.strips;
    p.image = rest / a.chunks;
    p.z = (rest - p.image * a.chunks) * a.deep;
    p.planes = min(a.deep, a.to[0] - p.z);
    p.top = strip * a.down * RY;
    p.rows = min(a.down * RY, a.to[1] - p.top);
    p.source_top = max(p.top - PAD1, 0);
    p.source_rows = max(min(p.top + p.rows - 1 - PAD1 + K1 - 1, a.from[1] - 1) - p.source_top + 1, 0);
    const int first = p.z - PAD0 + p.first_tap; /* the source of step 0 */
    p.begin = max(-first, 0);
    p.end = p.source_rows ? min(p.planes + KZ - 1, a.from[0] - first) : 0;
    return p;
}
static __device__ __forceinline__ int64_t source_at(const depthwise_args &a, const part &p, int step) {
    const int z = p.z - PAD0 + p.first_tap + step;
    return (((p.image * a.channels + p.channel) * a.from[0] + z) * a.from[1] + p.source_top) * a.from[2];
}
static __device__ __forceinline__ int64_t dest_at(const depthwise_args &a, const part &p, int plane) {
    return (((p.image * a.channels + p.channel) * a.to[0] + p.z + plane) * a.to[1] + p.top) * a.to[2];
}

struct memory {
    uint64_t *arrival;
    float *filter, *scratch;
    T *zeros, *ring, *own, *out;
};
static __device__ __forceinline__ memory memory_of(const depthwise_args &a, unsigned char *at) {
    memory m;
    m.arrival = (uint64_t *)at;
    m.filter = (float *)(m.arrival + (RING + OWNS + 1) / 2 * 2);
    m.scratch = m.filter + (TAPS + 3) / 4 * 4;
    m.zeros = (T *)(m.scratch + (WEIGHTS ? (WARPS * MINE + 3) / 4 * 4 : 0));
    m.ring = m.zeros + MARGIN;
    m.own = m.ring + RING * a.slot;
    m.out = m.own + (WEIGHTS ? OWNS * a.own : 0);
    return m;
}

static __device__ __forceinline__ void load_source(const depthwise_args &a, const memory &m, const part &p, int step) {
    const int number = step - p.begin, slot = number % RING;
    if (step >= p.end) return;
    span_load(m.ring + slot * a.slot, (const T *)a.source,
              (int64_t)a.n * a.channels * a.from[0] * a.from[1] * a.from[2], source_at(a, p, step),
              p.source_rows * a.from[2], &m.arrival[slot]);
}
static __device__ __forceinline__ void load_own(const depthwise_args &a, const memory &m, const part &p, int plane) {
    const int slot = plane % OWNS;
    if (!WEIGHTS || plane >= p.planes) return;
    span_load(m.own + slot * a.own, (const T *)a.at, (int64_t)a.n * a.channels * a.to[0] * a.to[1] * a.to[2],
              dest_at(a, p, plane), p.rows * a.to[2], &m.arrival[RING + slot]);
}

/* The place of a thread in the strip. */
struct place {
    bool there;
    int y, x;
};

struct state {
    float sum[OUT ? KZ : 1][RY][RX], own[WEIGHTS ? KZ : 1][RY][RX], dw[WEIGHTS ? KZ * PLANE : 1], db;
    float filter[KEEP ? KZ * PLANE : 1];
};

/* Column c of a tile exists; most are known to. */
static __device__ __forceinline__ bool column(const depthwise_args &a, const place &q, int c) {
    return c < RX - SPARE || q.x + c < a.to[2];
}

/* x of a plane to registers. */
static __device__ __forceinline__ void take(const depthwise_args &a, const memory &m, const part &p, const place &q,
                                            int plane, float (&to)[RY][RX]) {
    const T *at = m.own + plane % OWNS * a.own + span_shift((const T *)a.at, (uint32_t)dest_at(a, p, plane)) + q.x;
#pragma unroll
    for (int k = 0; k < RY; k++) {
        const T *row = q.y + k < p.rows ? at + (q.y + k) * a.to[2] : m.zeros;
#pragma unroll
        for (int c = 0; c < RX; c++) {
            const float v = widen(row[c]);
            to[k][c] = column(a, q, c) ? v : 0;
        }
    }
}

/* The bias: sources that count with the dests of this block, each with one; once more from memory. */
static __device__ __forceinline__ float bias_sum(const depthwise_args &a, const part &p) {
    const int top = bias_from<1>(a, p.top), count = (bias_from<1>(a, p.top + p.rows) - top) * a.from[2];
    float sum = 0;
    for (int z = bias_from<0>(a, p.z); z < bias_from<0>(a, p.z + p.planes) && !p.first_tap; z++) {
        const T *at =
            (const T *)a.source + (((p.image * a.channels + p.channel) * a.from[0] + z) * a.from[1] + top) * a.from[2];
        for (int i = (int)threadIdx.x; i < count; i += THREADS) sum += widen(at[i]);
    }
    return sum;
}

/* All products of a source plane. Phase: the step modulo KZ; dest plane i is number i % KZ of the registers. */
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
        for (int i = 0; i < KZ * RY * K2; i++) {
            const int j = i / (RY * K2), k = i / K2 % RY, t = i % K2; /* dest plane, the oldest first; row; tap */
            const int ring = (Phase + 1 + j) % KZ, r = KZ - 1 - j;
            if (l - k < 0 || l - k >= K1) continue;
            const int number = r * PLANE + (l - k) * K2 + t;
            const float weight = !OUT ? 0 : KEEP ? s.filter[KEEP ? number : 0] : m.filter[p.first_tap * PLANE + number];
#pragma unroll
            for (int c = 0; c < RX; c++) {
                if (OUT) s.sum[OUT ? ring : 0][k][c] = fmaf(line[c + t], weight, s.sum[OUT ? ring : 0][k][c]);
                if (WEIGHTS)
                    s.dw[WEIGHTS ? number : 0] =
                        fmaf(s.own[WEIGHTS ? ring : 0][k][c], line[c + t], s.dw[WEIGHTS ? number : 0]);
            }
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
    const int done = step - (KZ - 1); /* the plane that is complete after this step */
    if (WEIGHTS && step < p.planes) arrival_wait(&m.arrival[RING + step % OWNS], (uint32_t)(step / OWNS & 1));
    const bool source = step >= p.begin && step < p.end;
    if (source) arrival_wait(&m.arrival[(step - p.begin) % RING], (uint32_t)((step - p.begin) / RING & 1));
    if (q.there) {
#pragma unroll
        for (int i = 0; i < RY * RX; i++) {
            if (OUT) s.sum[OUT ? Phase : 0][i / RX][i % RX] = 0;
            if (WEIGHTS) s.own[WEIGHTS ? Phase : 0][i / RX][i % RX] = 0;
        }
        if (WEIGHTS && step < p.planes) take(a, m, p, q, step, s.own[WEIGHTS ? Phase : 0]);
        if (source) meet<Phase>(a, m, p, q, step, s);
        if (OUT && done >= 0) leave(a, m, p, q, done, s.sum[OUT ? (Phase + 1) % KZ : 0]);
    }
    if (OUT) fence_async();
    __syncthreads();
    if (threadIdx.x >= 32) return;
    if (OUT && done >= 0) span_store((T *)a.dest, dest_at(a, p, done), p.rows * a.to[2], m.out + done % OUTS * a.own);
    if (OUT) span_store_wait<1>();
    if (source) load_source(a, m, p, step + RING);
    load_own(a, m, p, step + OWNS);
}

template <int Phase>
static __device__ __forceinline__ void turn(const depthwise_args &a, const memory &m, const part &p, const place &q,
                                            int step, state &s) {
    if constexpr (Phase < KZ) {
        if (step + Phase >= p.planes + KZ - 1) return;
        step_through<Phase>(a, m, p, q, step + Phase, s);
        turn<Phase + 1>(a, m, p, q, step, s);
    }
}

/* The sums of the block's threads. */
static __device__ __forceinline__ void put_sums(const depthwise_args &a, const memory &m, const part &p,
                                                const state &s) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < (WEIGHTS ? MINE : 0); k++) {
        const float sum = lanes_all<plus, 32>(k < KZ * PLANE ? s.dw[WEIGHTS && k < KZ * PLANE ? k : 0] : s.db);
        if (lane == 0) m.scratch[warp * MINE + k] = sum;
    }
    __syncthreads();
    for (int k = (int)threadIdx.x; k < MINE; k += THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++) sum += m.scratch[w * MINE + k];
        const bool bias = k == KZ * PLANE;
        if (bias && p.first_tap) continue;
        a.partial[((int64_t)p.unit + p.segment) * SUMS + (bias ? TAPS : tap_number(p.first_tap * PLANE + k))] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) march(const __grid_constant__ depthwise_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    const memory m = memory_of(a, bytes);
    const part p = part_of(a);
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING + OWNS; i++) arrival_init(&m.arrival[i]);
        fence_async();
    }
    for (int i = (int)threadIdx.x; i < MARGIN; i += THREADS) m.zeros[i] = narrow<T>(0);
    if (OUT)
        for (int i = (int)threadIdx.x; i < TAPS; i += THREADS)
            m.filter[i] = widen(((const T *)a.weights)[p.channel * TAPS + tap_number(i)]);
    __syncthreads();
    if (threadIdx.x < 32) {
        for (int i = 0; i < RING; i++) load_source(a, m, p, p.begin + i);
        for (int i = 0; i < OWNS; i++) load_own(a, m, p, i);
    }
    place q;
    const int line = (int)threadIdx.x / a.across;
    q.there = line < a.down;
    q.y = line * RY;
    q.x = ((int)threadIdx.x - line * a.across) * RX;
    state s = {};
    if (KEEP)
#pragma unroll
        for (int i = 0; i < (KEEP ? KZ * PLANE : 1); i++) s.filter[i] = m.filter[i];
    for (int step = 0; step < p.planes + KZ - 1; step += KZ) turn<0>(a, m, p, q, step, s);
    if (BIASED) s.db = bias_sum(a, p);
    if (WEIGHTS) put_sums(a, m, p, s);
    if (OUT && threadIdx.x < 32) span_store_wait<0>(); /* shared memory must outlive the copies that read it */
}
#endif
