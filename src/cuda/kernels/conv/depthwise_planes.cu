/* Depthwise convolution, channels-first, 1D to 3D: forward and gradients; f32, f16, bf16.
 * Math:      see depthwise.h; dx[p] = sum w[k] dy[q] and dw[k] = sum x[p] dy[q] share the window of dy: x is read once
 * Blocking:  a unit is a plane of one channel, a strip of rows of one, some planes of a volume, or the planes of a run
 *            of channels: contiguous in memory. Blocks walk over units of the same channels, through images and depth.
 *            Bulk copies bring planes of sources into a ring of slots, ahead of their use; a thread has one place of a
 *            unit, RY x RX dests, for as long as the channels stay. Dests leave by bulk copy from slots of their own;
 *            in the gradient dx takes the slot of x. Sums of the weights' gradient stay in registers while the
 *            channels do
 * Traffic:   each tensor once; rows between strips, and planes where the depth is cut, again from L2
 * Roofline:  bandwidth for windows up to 5x5. RX is odd, so that threads side by side read different banks; rows that
 *            do not exist are read from a row of zeros: no branches between loads
 *            Measured on an H200 (GB/s of tensors moved once; a plain copy 4270), forward and both gradients, f32:
 *            64x128@56 3500, 3370; 64x64@112 stride 2 3380, 3470; 64x512@14 2530, 2280; 64x1024@7 1930, 1530; 64x240@28
 *            5x5 2530, 2010
 * Assumes:   all tensors dense, rows that fit shared memory. Under strict math what is not finite is computed again,
 *            products with the padding left out
 * Try:       weft bench conv2d:bwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda */
#include "conv/depthwise.h"

enum { SCRATCH = 4 }; /* sums of the weights' gradient that a block adds up at a time */

#ifndef __CUDACC_RTC__
enum { WAVE = 132, MOST_THREADS = 512, MARGIN = 256 };

static const char *const *const variants = NULL;

/* Dests of a thread along an axis: the cost of loads and products, with what a last tile wastes. */
static int best_many(const depthwise_tile *t, int axis, int most) {
    const int step = (t->mode == MODE_FWD ? 1 : t->stride[axis]) * (axis == 2 && t->pairs ? 2 : 1);
    int best = step;
    double least = 1e30;
    for (int odd = 1; odd * step <= WEFT__MAX(most, step); odd += axis == 2 || t->a.to[2] == 1 ? 2 : 1) {
        const int many = odd * step;
        const double cost =
            depthwise_tiles(t, axis, many) * (0.7 * depthwise_line(t, axis, many) + many * t->kernel[axis]);
        if (cost < least * 0.999) best = many, least = cost;
    }
    return best;
}

/* Sources of dests lo .. hi - 1 along an axis, as many as exist at most. */
static int64_t sources(const depthwise_tile *t, int axis, int64_t dests) {
    const int64_t s = t->stride[axis], reach = (t->kernel[axis] - 1) * t->dilation[axis];
    return WEFT__MIN(t->mode == MODE_FWD ? (dests - 1) * s + reach + 1 : (dests + reach - 1) / s + 1, t->a.from[axis]);
}

static int64_t planes_of(const depthwise_tile *t) { return t->a.channels * t->a.n * t->a.to[0]; }

/* The slots for one number of strips and of blocks on a multiprocessor; false: they do not fit. */
static bool fit(const weft_problem *p, depthwise_tile *t, int64_t smem, int blocks, int strips) {
    depthwise_args *a = &t->a;
    const int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype), tiles = depthwise_tiles(t, 1, t->ry);
    const bool flat = a->from[0] == 1 && a->to[0] == 1 && t->kernel[0] == 1, weights = t->mode >= MODE_WEIGHTS;
    a->down = (int32_t)cuda_ceil(tiles, strips);
    a->strips = (int32_t)cuda_ceil(tiles, a->down);
    const int64_t items = (int64_t)a->down * a->across, most = flat && size == 2 ? 256 : 128;
    if (items > MOST_THREADS) return false;
    const int64_t rows = WEFT__MIN((int64_t)a->down * t->ry, a->to[1]), own = rows * a->to[2];
    const int64_t source = (a->strips == 1 ? a->from[1] : sources(t, 1, (int64_t)a->down * t->ry)) * a->from[2];
    const int64_t budget = (smem + 1024) / blocks - 1024 - MARGIN;
    int64_t many = a->strips > 1 || (!flat && t->stride[0] > 1) ? 1 : WEFT__MAX(most / items, 1);
    many = WEFT__MIN(WEFT__MIN(many, flat ? a->channels : a->to[0]), WEFT__MAX(planes_of(t) / WAVE, 1));
    for (int64_t power = cuda_power(many + 1) / 2; power >= 1; power /= 2) {
        many = power;
        const int window = flat ? 1 : (int)sources(t, 0, many);
        const int group = flat ? 1 : (int)many, least = flat ? 1 : (window + group - 2) / group + 1;
        a->run = flat ? (int32_t)many : 1;
        t->deep = flat ? 1 : (int32_t)many;
        a->slot = cuda_slot(source * many, depthwise_reach(t) + t->pairs, size);
        a->own = cuda_slot(own * many, weights ? t->rx : 0, size);
        t->threads = (int32_t)(cuda_ceil(items * many, 32) * 32 + 32);
        const int64_t fixed =
            4 * (a->run * depthwise_taps(t) + 4 + (weights ? SCRATCH * t->threads : 0)) + size * 64 + 8 * 24;
        for (int ahead = size == 2 ? 4 : 3; ahead >= (flat ? 2 : group == 1 ? 2 : 1); ahead--) {
            t->ring = t->bulk ? least + ahead : WEFT__MAX(2 * least, least + ahead);
            t->owns = weights ? (ahead > 2 ? 4 : 3) : 2;
            t->smem = (size_t)(fixed + size * ((int64_t)t->ring * a->slot + (int64_t)t->owns * a->own));
            if ((int64_t)t->smem <= budget) return true;
        }
    }
    return false;
}

/* Few strips, then the blocks of a multiprocessor that were asked for; 0: not a row of tiles fits. */
static int blocks_of(const weft_problem *p, depthwise_tile *t, int64_t smem, int wanted) {
    const int tiles = depthwise_tiles(t, 1, t->ry);
    const int64_t least = cuda_ceil(WAVE, planes_of(t)); /* every multiprocessor has work */
    for (int strips = (int)WEFT__MIN(least, tiles); strips <= tiles; strips += strips < 8 ? 1 : strips / 2)
        for (int blocks = wanted; blocks >= (strips > 1 ? wanted - 1 : wanted); blocks--)
            if (fit(p, t, smem, blocks, strips)) return blocks;
    return fit(p, t, smem, 1, tiles);
}

/* The tensors of data begin at a multiple of so many bytes. */
static bool begin_at(const weft_problem *p, int bytes) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].rank >= 5 && p->tensor[i].role != WEFT_ROLE_WEIGHTS &&
            p->tensor[i].role != WEFT_ROLE_DIFF_WEIGHTS && p->tensor[i].align % bytes)
            return false;
    return true;
}

/* 16-bit data whose rows begin at 4 bytes. */
static bool is_paired(const weft_problem *p, const depthwise_tile *t) {
    return weft__dtype_size(p->tensor[0].dtype) == 2 && begin_at(p, 4) && t->a.from[2] % 2 == 0 && t->a.to[2] % 2 == 0;
}

/* A source plane meets the dest planes of all its taps at once: sums of so many planes are under way. */
static bool rolls(const depthwise_tile *t) {
    return t->mode < MODE_WEIGHTS && t->kernel[0] > 1 && t->stride[0] == 1 && t->dilation[0] == 1 && t->deep == 1;
}

/* Every run of elements begins and ends at a line. */
static bool is_aligned(const weft_problem *p, const depthwise_tile *t) {
    const int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype);
    if (!begin_at(p, 16)) return false;
    const depthwise_args *a = &t->a;
    const int32_t *const sizes[] = {a->from, a->to};
    for (int i = 0; i < 2; i++) {
        const int64_t row = sizes[i][2] * size, plane = row * sizes[i][1], volume = plane * sizes[i][0];
        if (a->strips > 1 ? row % 16 : t->deep > 1 || sizes[i][0] > 1 ? plane % 16 : volume * a->run % 16) return false;
        if (volume * a->channels % 16 || volume * (a->channels % a->run) % 16) return false;
    }
    return true;
}

/* The throughput of a full machine, or what a block takes for its units one after the other: however small they are, a
 * unit waits for its copy, longer where it begins within a line, and for all threads; and the sums of the weights are
 * added up over the block, a tap after the other, where the channels end. As measured. */
static double ns_of(const weft_problem *p, const weft__hw *hw, const depthwise_tile *t) {
    const depthwise_args *a = &t->a;
    const int taps = depthwise_taps(t), half = weft__dtype_size(p->tensor[0].dtype) == 2;
    const bool weights = t->mode >= MODE_WEIGHTS;
    const double loads =
        (double)(depthwise_line(t, 1, t->ry) * depthwise_line(t, 2, t->rx) * t->kernel[0]) / (t->ry * t->rx);
    double full = depthwise_ns(p, hw, t, 0.8, loads * (half ? 2 : 1) + 4);
    if (taps > 9) full *= t->kernel[0] > 1 ? (weights ? 1.8 : 1.5) : weights ? 1.5 : 1.2;
    const double wait = t->aligned ? 600 : 1200, unit = wait + depthwise_serial(t, t->rx * t->ry);
    const double sums = weights ? 370.0 * taps * (double)cuda_ceil(a->per, a->span) : 0;
    return (weights ? 7500 : 4600) + WEFT__MAX(full, unit * a->per - wait + sums);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    depthwise_tile *t = WEFT__PARAMS(depthwise_tile, d);
    const char *refusal = depthwise_refusal(p, t);
    if (refusal) return refusal;
    if (t->last && p->c > 1) return "a tensor is not dense channels-first";
    depthwise_args *a = &t->a;
    const int taps = depthwise_taps(t);
    /* dests of a thread, as measured: few in 3D where the sums of the weights take registers or planes are few */
    t->pairs = is_paired(p, t);
    const bool few = !t->pairs && t->kernel[0] > 1 && (t->mode >= MODE_WEIGHTS || planes_of(t) < 48 * WAVE);
    const int most = taps <= 9 ? 28 : taps <= 32 && !few ? 20 : taps <= 64 ? 14 : 10;
    (void)variant;
    t->vec = 1;
    t->bulk = hw->gpu->cc >= 90;
    t->rx = best_many(t, 2, WEFT__MIN(most, t->pairs ? 14 : t->mode == MODE_FWD ? 7 : 7 * t->stride[2]));
    t->ry = best_many(t, 1, WEFT__MIN(most / t->rx, 8));
    if (depthwise_line(t, 2, t->rx) > 30 || t->rx > 30) return "a window wider than 30 columns";
    a->across = depthwise_tiles(t, 2, t->rx);
    const int64_t smem = (int64_t)hw->gpu->smem;
    const int step = t->mode == MODE_FWD ? 1 : t->stride[1];
    while (!(t->blocks = blocks_of(p, t, smem, taps > 9 && t->kernel[0] == 1 ? 3 : 2)) && t->ry > step) t->ry -= step;
    if (!t->blocks) return "rows that do not fit into shared memory";
    const int registers = 24 +
                          t->rx * t->ry *
                              (t->mode == MODE_BOTH ? 2
                               : rolls(t)           ? t->kernel[0]
                                                    : 1) +
                          depthwise_line(t, 2, t->rx) + WEFT__MIN(taps, 27) + (t->mode >= MODE_WEIGHTS ? taps : 0);
    t->blocks = WEFT__MAX(WEFT__MIN(t->blocks, 65536 / (t->threads * registers)), 1);
    t->aligned = is_aligned(p, t);
    a->chunks = (int32_t)cuda_ceil(a->to[0], t->deep);
    refusal =
        depthwise_split(p, t, cuda_ceil(p->c, a->run) * a->strips, (int64_t)a->n * a->chunks, WAVE * t->blocks, d);
    if (refusal) return refusal;
    d->ns = ns_of(p, hw, t);
    return NULL;
}

static void planes_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const depthwise_tile *t = params;
    const depthwise_args *a = &t->a;
    depthwise_defines(p, hw, params, text);
    weft__put(text,
              " -DLAST=0 -DBULK=%d -DALIGNED=%d -DFLAT=%d -DDEEP=%d -DRING=%d -DOWNS=%d -DRIGHT=%d -DSPARE=%d "
              "-DDIRECT=%d -DPAIRS=%d -DROLL=%d",
              t->bulk, t->aligned, a->from[0] == 1 && a->to[0] == 1 && t->kernel[0] == 1, t->deep, t->ring, t->owns,
              depthwise_right(t), a->across * t->rx - depthwise_phase(t, 2) - a->to[2],
              t->mode == MODE_BOTH && !begin_at(p, 16), t->pairs, rolls(t));
}

DEPTHWISE_KERNELS(planes, "nchw_planes", "conv/depthwise_planes.cu", planes_defines);

#else
#include "conv/planes.h"

enum { OUT = FWD || DATA }; /* DIRECT: straight to memory, since dx does not begin at a line where x does */
enum { LOW1 = low<1>(), HIGH1 = high<1>(RY), LOW2 = low<2>(), LINE = high<2>(RX) - low<2>() + 1 };
/* PAIRS: the parity of the first column that a tile reads, and of its own first. */
enum { SKEW = PAIRS ? (FWD ? P2 : P2 / S2 - LOW2) % 2 : 0, OWN_SKEW = PAIRS ? PHASE2 % 2 : 0 };
enum { LEFT_MOST = FWD ? P2 : -LOW2 - P2 / S2, LEFT = LEFT_MOST > 0 ? LEFT_MOST : 0 };

/* The place of a thread: it stays while the segment does. */
struct place {
    bool there;
    int channel, deep; /* of the unit */
    int y, x;          /* first dest */
};

static __device__ __forceinline__ place place_of(const depthwise_args &a, int number, const segment &s) {
    place p;
    const int tile = (int)threadIdx.x, line = tile / a.across, outer = line / a.down;
    const int strip = a.strips == 1 ? 0 : number % a.strips;
    p.there = tile < THREADS - 32 && outer < (FLAT ? s.channels : DEEP);
    p.channel = FLAT ? outer : 0;
    p.deep = FLAT ? 0 : outer;
    p.y = (strip * a.down + line - outer * a.down) * RY - PHASE1;
    p.x = (tile - line * a.across) * RX - PHASE2;
    return p;
}

struct sums {
    float dw[WEIGHTS ? TAPS : 1], db;
};

static __device__ __forceinline__ float filter_at(const float *filter, int number) {
    return TAPS > 27 ? *(const volatile float *)(filter + number) : filter[number];
}

/* Elements from `row` on. PAIRS: two at a time, Skew tells whether the first is the second of a pair. */
template <int Skew, int N> static __device__ __forceinline__ void load_row(const T *row, float (&to)[N]) {
#pragma unroll
    for (int i = -Skew; i < N; i += 1 + PAIRS) {
        float two[1 + PAIRS];
        load(row + i, two);
        if (i >= 0) to[i < 0 ? 0 : i] = two[0];
        if (PAIRS && i + 1 < N) to[i + 1 < N ? i + 1 : 0] = two[PAIRS];
    }
}

/* The sums of a tile. ROLL: of the dest planes that the last source plane of a window meets, the unit's first. */
enum { PLANES = ROLL ? K0 : 1 };
typedef float tile_sums[PLANES][RY][RX];

/* All products of a tile, by source planes. ROLL: those but the last were met by the units before, unless `fresh`. */
static __device__ __forceinline__ void products(const depthwise_args &a, const memory &m, const segment &s,
                                                const walk &w, const window &v, const place &p, bool fresh,
                                                const float (&x)[WEIGHTS ? RY : 1][WEIGHTS ? RX : 1], tile_sums &sum,
                                                sums &total) {
    const float *filter = m.filter + p.channel * TAPS;
    const int z = w.chunk * DEEP + p.deep, y = origin<1>(p.y) - s.source_top, first = origin<2>(p.x) + LOW2;
    const int from = p.channel * s.source_rows * a.from[2] + first;
#pragma unroll
    for (int q = 0; q < K0; q++) {
        if (ROLL && q < K0 - 1 && !fresh) continue;
        const int source = FLAT ? 0 : source_of<0>(a, z, FWD ? q : K0 - 1 - q);
        const T *plane = plane_at(a, m, s, w, v, FLAT ? 0 : max(source, v.part.first)) + from;
#pragma unroll
        for (int l = LOW1; l <= HIGH1; l++) {
            const bool there = (unsigned)(y + l) < (unsigned)s.source_rows && (FLAT || source >= 0);
            const T *row = there ? plane + (y + l) * a.from[2] : m.zeros + SKEW;
            float line[LINE];
            load_row<SKEW>(row, line);
#pragma unroll
            for (int i = 0; i < LINE; i++)
                if (i < LEFT || i >= LINE - RIGHT) line[i] = (unsigned)(first + i) < (unsigned)a.from[2] ? line[i] : 0;
#pragma unroll
            for (int i = 0; i < PLANES * RY * K2; i++) {
                const int j = i / (RY * K2), k = i / K2 % RY, t = i % K2;
                const int r = FWD ? q - j : K0 - 1 - q + j; /* the tap plane of dest plane j */
                if (r < 0 || r >= K0 || tap<1>(k, l) < 0) continue;
                const int number = (r * K1 + tap<1>(k, l)) * K2 + t;
                const float weight = OUT ? filter_at(filter, number) : 0;
#pragma unroll
                for (int c = 0; c < RX; c++) {
                    if (!FWD && (c - t * D2) % S2) continue;
                    const int at = FWD ? c * S2 + t * D2 : (c - t * D2) / S2 - LOW2;
                    if (OUT) sum[j][k][c] = fmaf(line[at], weight, sum[j][k][c]);
                    if (WEIGHTS)
                        total.dw[WEIGHTS ? number : 0] =
                            fmaf(x[WEIGHTS ? k : 0][WEIGHTS ? c : 0], line[at], total.dw[WEIGHTS ? number : 0]);
                }
            }
        }
    }
}

static __device__ __forceinline__ void sum_clear(tile_sums &sum) {
#pragma unroll
    for (int i = 0; i < PLANES * RY * RX; i++) sum[i / (RY * RX)][i / RX % RY][i % RX] = 0;
}

/* To the next unit of a volume. */
static __device__ __forceinline__ void roll(tile_sums &sum) {
#pragma unroll
    for (int i = 0; i < PLANES * RY * RX; i++)
        sum[i / (RY * RX)][i / RX % RY][i % RX] =
            i < (PLANES - 1) * RY * RX ? sum[(i / (RY * RX) + 1) % PLANES][i / RX % RY][i % RX] : 0;
}

/* Whether dest column c of a tile exists; most are known to. */
static __device__ __forceinline__ bool column(const depthwise_args &a, const place &p, int c) {
    return (c >= PHASE2 && c < RX - SPARE) || (unsigned)(p.x + c) < (unsigned)a.to[2];
}

static __device__ __forceinline__ void tile(const depthwise_args &a, const memory &m, const segment &s, const walk &w,
                                            const window &v, const place &p, bool fresh, T *own, T *out, tile_sums &sum,
                                            sums &total) {
    float x[WEIGHTS ? RY : 1][WEIGHTS ? RX : 1] = {};
    const int offset = ((p.deep + p.channel) * s.rows + p.y - s.top) * a.to[2] + p.x;
    const T *at = own + offset;
    T *to = out + offset;
    if (WEIGHTS)
#pragma unroll
        for (int k = 0; k < RY; k++) {
            const T *row = (unsigned)(p.y + k - s.top) < (unsigned)s.rows ? at + k * a.to[2] : m.zeros + OWN_SKEW;
            float line[RX];
            load_row<OWN_SKEW>(row, line);
#pragma unroll
            for (int c = 0; c < RX; c++) x[WEIGHTS ? k : 0][WEIGHTS ? c : 0] = column(a, p, c) ? line[c] : 0;
        }
    products(a, m, s, w, v, p, fresh, x, sum, total);
    if (BIASED) {
        const int z = w.chunk * DEEP + p.deep;
        for (int q = FLAT ? 0 : bias_from<0>(a, z); q < (FLAT ? 1 : bias_from<0>(a, z + 1)); q++)
            for (int sy = bias_from<1>(a, p.y); sy < bias_from<1>(a, p.y + RY); sy++) {
                const T *row = plane_at(a, m, s, w, v, q) + (p.channel * s.source_rows + sy - s.source_top) * a.from[2];
                for (int sx = bias_from<2>(a, p.x); sx < bias_from<2>(a, p.x + RX); sx++) total.db += widen(row[sx]);
            }
    }
    if (!OUT) return;
    float zero = 0;
    const float bias = FWD && weft__epilogue_biased() ? widen(((const BIAS_T *)a.bias)[s.first + p.channel]) : 0;
#pragma unroll
    for (int k = 0; k < RY; k++) {
        if ((unsigned)(p.y + k - s.top) >= (unsigned)s.rows) continue;
#pragma unroll
        for (int c = 0; c < RX; c++) {
            if (STRICT) zero = fmaf(sum[0][k][c], 0, zero);
            if (FWD) sum[0][k][c] = weft__epilogue_apply(a.epilogue, bias, sum[0][k][c]);
        }
#pragma unroll
        for (int c = -OWN_SKEW; c < RX; c += 1 + PAIRS) {
            T *const here = to + k * a.to[2] + c;
            if (PAIRS && c >= 0 && c + 1 < RX) { /* both exist, or none */
                const float two[2] = {sum[0][k][c < 0 ? 0 : c], sum[0][k][c + 1 < RX ? c + 1 : 0]};
                if (column(a, p, c)) store(here, two);
            } else {
                const int only = c < 0 ? c + 1 : c;
                if (column(a, p, only)) here[only - c] = narrow<T>(sum[0][k][only]);
            }
        }
    }
    if (STRICT && zero != 0)
        for (int i = 0; i < RY * RX; i++) {
            const int y = p.y + i / RX, c = p.x + i % RX;
            if ((unsigned)(y - s.top) >= (unsigned)s.rows || (unsigned)c >= (unsigned)a.to[2]) continue;
            const float value = careful_dest(a, w.image, s.first + p.channel, w.chunk * DEEP + p.deep, y, c);
            to[(y - p.y) * a.to[2] + c - p.x] = narrow<T>(FWD ? weft__epilogue_apply(a.epilogue, bias, value) : value);
        }
}

/* The partial sums of units begin .. end - 1, which are of one segment. */
static __device__ __forceinline__ void flush(const depthwise_args &a, const memory &m, const segment &s, const place &p,
                                             int number, int begin, int end, sums &total) {
    float zero = 0;
#pragma unroll
    for (int k = 0; k < (WEIGHTS ? TAPS : 1); k++) zero = fmaf(total.dw[k], 0, zero);
    if (STRICT && zero != 0 && p.there)
        for (int k = 0; k < TAPS; k++) {
            float sum = 0;
            for (walk w = walk_at(a, begin); w.unit < end; next_unit(a, w))
                sum += careful_sum(a, w.image, s.first + p.channel, w.chunk * DEEP + p.deep, p.y, p.x, k);
#pragma unroll
            for (int i = 0; i < (WEIGHTS ? TAPS : 1); i++) total.dw[i] = i == k ? sum : total.dw[i];
        }
    const int each = a.down * a.across * (FLAT ? 1 : DEEP), warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float *out = a.partial + ((int64_t)blockIdx.x + number) * SUMS * a.run;
#pragma unroll
    for (int k = 0; k < SUMS; k += SCRATCH) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SCRATCH; i++)
            if (k + i < SUMS)
                m.scratch[i * THREADS + threadIdx.x] =
                    k + i < TAPS ? total.dw[WEIGHTS && k + i < TAPS ? k + i : 0] : total.db;
        __syncthreads();
        const int many = min(SCRATCH, SUMS - k);
        if (each <= 32) { /* a thread for each sum */
            for (int j = (int)threadIdx.x; j < many * s.channels; j += THREADS) {
                const int i = j / s.channels, channel = j - i * s.channels;
                float sum = 0;
                for (int t = 0; t < each; t++) sum += m.scratch[i * THREADS + channel * each + t];
                out[(k + i) * a.run + channel] = sum;
            }
        } else { /* a warp */
            for (int j = warp; j < many * s.channels; j += THREADS / 32) {
                const int channel = j / many, i = j - channel * many;
                float sum = 0;
                for (int t = lane; t < each; t += 32) sum += m.scratch[i * THREADS + channel * each + t];
                sum = lanes_all<plus, 32>(sum);
                if (lane == 0) out[(k + i) * a.run + channel] = sum;
            }
        }
    }
}

/* A unit whose dests are complete. */
struct leaving {
    T *slot;
    int64_t to;
    int count;
};

/* The last warp of a block feeds the others: stores of the unit before, loads of those to come. */
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) depthwise(const __grid_constant__ depthwise_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    const memory m = memory_of(a, bytes);
    const int begin = (int)blockIdx.x * a.per, end = min(begin + a.per, a.units);
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING + OWNS; i++) arrival_init(&m.arrival[i]);
        fence_async();
    }
    if (threadIdx.x < 32) m.zeros[threadIdx.x] = narrow<T>(0);
    __syncthreads();
    const bool feeds = threadIdx.x >= THREADS - 32;
    walk w = walk_at(a, begin);
    window v = {0, piece_of(a, w, end)};
    feed f = {w, w, v.part.first, v.part.end, 0, 0};
    if (feeds) load_more(a, m, f, end, 0, OWNS);
    segment s = segment_of(a, w.segment);
    place p = place_of(a, w.segment, s);
    sums total = {};
    tile_sums sum = {};
    bool fresh = true; /* the first unit of a piece */
    leaving last = {};
    int number = -1, since = begin, arrived = 0, done = 0;
    for (; w.unit < end; done++) {
        if (w.segment != number) {
            if (WEIGHTS && number >= 0) flush(a, m, s, p, number, since, w.unit, total);
            number = w.segment, since = w.unit;
            s = segment_of(a, number);
            p = place_of(a, number, s);
            total = {};
            if (OUT)
                for (int i = (int)threadIdx.x; i < s.channels * TAPS; i += THREADS)
                    m.filter[i] = widen(((const T *)a.weights)[s.first * TAPS + i]);
            __syncthreads();
        }
        T *own = m.own + done % OWNS * a.own;
        const int64_t to = dest_at(a, s, w.image, w.chunk * DEEP);
        if (feeds) {
            const int freed = v.before + (FLAT ? 0 : max(plane_first(w.chunk) - v.part.first, 0) / GROUP);
            if (OUT && !DIRECT && done) span_store((T *)a.dest, last.to, last.count, last.slot);
            if (OUT && WEIGHTS && !DIRECT) span_store_wait<1>();
            load_more(a, m, f, end, freed, done + OWNS - (OUT && !DIRECT));
            if (OUT && !WEIGHTS) span_store_wait<0>();
        } else {
            const int need = v.before + (FLAT ? 1 : (plane_last(a, w.chunk) - v.part.first + GROUP) / GROUP);
            for (; arrived < need; arrived++) arrival_wait(&m.arrival[arrived % RING], (uint32_t)(arrived / RING & 1));
            if (WEIGHTS) arrival_wait(&m.arrival[RING + done % OWNS], (uint32_t)(done / OWNS & 1));
            if (ROLL && fresh) sum_clear(sum);
            if (p.there && (FLAT || w.chunk * DEEP + p.deep < a.to[0])) {
                T *here = own + span_shift((const T *)(WEIGHTS ? a.at : a.dest), (uint32_t)to);
                tile(a, m, s, w, v, p, fresh, here, DIRECT ? (T *)a.dest + to : here, sum, total);
                roll(sum);
                fresh = false;
            }
            if (OUT && !DIRECT) fence_async();
        }
        last = {own, to, dest_count(a, s, w)};
        __syncthreads();
        const int image = w.image, before = w.segment;
        next_unit(a, w);
        if (FLAT || w.image != image || w.segment != before) {
            v.before += groups(v.part);
            fresh = true;
            if (w.unit < end) v.part = piece_of(a, w, end);
        }
    }
    if (WEIGHTS) flush(a, m, s, p, number, since, end, total);
    if (!OUT || DIRECT || !feeds) return;
    span_store((T *)a.dest, last.to, last.count, last.slot);
    span_store_wait<0>(); /* shared memory must outlive the copies that read it */
}
#endif
