/* Grouped convolution with few channels in a group, 1D to 3D, channels-first: gradient of the weights, alone or after
 * that of the data; f32, f16, bf16.
 * Math:      dw[o,c,k] = sum_q dy[o,q] x[c, q stride - pad + k dilation]
 * Blocking:  a warp has OUTS output channels, INS input channels and one plane of taps, K1 x K2: all those sums are in
 *            its registers. Strips of rows of dy, and those of x that they meet, come by bulk copies, one strip ahead;
 *            the warps of a block have other input channels and planes of taps, and share the strip of dy. A lane takes
 *            RX positions of a row at a time. Slices of the strips follow from the problem; a last launch adds them up
 *            in f64
 * Traffic:   dy from L2 once for each (input channels, planes of taps) of a block, x likewise
 * Roofline:  multiply-adds: K1 K2 OUTS INS RX of them for OUTS RX + INS K1 (RX + 2) loads from shared memory.
 *            Measured on an H200, f32, 64 channels of 50^3: 8 in a group 169 us (0.31 of them), 2 in a group 63 us
 * Assumes:   all data dense channels-first; compute capability 9.0. Not strict
 * Try:       weft bench conv3d:bwd_weights:f32:ncdhw:n1c64d50h50w50:o64k3p1g8@cuda */
#include "conv/grouped.h"

enum { STAGES = 2 };

#ifndef __CUDACC_RTC__
enum { WARPS_WANTED = 8, BLOCKS_WANTED = 264 };

typedef struct sums_tile {
    grouped_tile data; /* the data gradient's */
    int32_t outs, ins, combos, taken, shares, rx, rows, strips, slot, own, right, spare, slices, per, blocks;
    int64_t grid;
    size_t smem;
} sums_tile;

static int64_t source_rows(const weft_problem *p, int64_t rows) {
    return WEFT__MIN((rows - 1) * p->stride[1] + (p->kernel[1] - 1) * p->dilation[1] + 1, p->in[1]);
}

/* Slots of `rows` rows of dy and of the rows of x that they meet, tiles of rx columns; the bytes of all. */
static size_t slots_of(const weft_problem *p, sums_tile *t, int64_t rows, int64_t rx) {
    const int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype), across = cuda_ceil(p->out[2], rx);
    const int64_t last = grouped_first(p, true, (across - 1) * rx) + grouped_line(p, true, 2, (int)rx) - p->in[2];
    const int64_t reach = WEFT__MAX(WEFT__MAX(last, p->pad_lo[2]), 0);
    t->own = cuda_slot(rows * p->out[2], 0, size); /* behind it is a slot of the same stage */
    t->slot = cuda_slot(source_rows(p, rows) * p->in[2], reach, size);
    return (size_t)(8 * STAGES + size * (ZEROS + STAGES * (t->outs * t->own + t->taken * t->ins * t->slot)));
}

/* Rows of a strip: few lanes idle, few strips. */
static void best_strip(const weft_problem *p, sums_tile *t, double each) {
    double least = 1e300;
    for (int rx = 7; rx >= 1; rx -= 2)
        for (int64_t rows = 1; rows <= p->out[1] && slots_of(p, t, rows, rx) <= 112 << 10; rows++) {
            const int64_t across = cuda_ceil(p->out[2], rx), strips = cuda_ceil(p->out[1], rows);
            const int64_t rest = p->out[1] - (strips - 1) * rows, lanes = 32 * t->shares;
            const double turns =
                (double)((strips - 1) * cuda_ceil(rows * across, lanes) + cuda_ceil(rest * across, lanes));
            const double cost = turns * (each * rx + 30 + (double)(t->ins * p->kernel[1]) * 3) + 400.0 * (double)strips;
            if (cost >= least) continue;
            least = cost;
            t->rx = rx, t->rows = (int32_t)rows, t->strips = (int32_t)strips;
        }
    t->data.work = least;
}

static const char *sums_tile_of(const weft_problem *p, const weft__hw *hw, sums_tile *t) {
    const int64_t in = p->c / p->groups, out = p->o / p->groups, taps = p->kernel[1] * p->kernel[2];
    t->outs = grouped_divisor(out, WEFT__MIN(8, 72 / taps));
    t->ins = grouped_divisor(in, WEFT__MAX(72 / (taps * t->outs), 1));
    while (t->ins > 1 && t->ins * p->kernel[1] * 9 > 64) t->ins /= 2; /* their windows are in registers too */
    t->combos = (int32_t)(in / t->ins * p->kernel[0]);
    t->taken = WEFT__MIN(t->combos, WARPS_WANTED);
    t->taken = (int32_t)cuda_ceil(t->combos, cuda_ceil(t->combos, t->taken));
    t->shares = WEFT__MAX(WARPS_WANTED / t->taken, 1);
    const double each = (double)(taps * t->outs * t->ins) + t->outs + 1.3 * (double)(t->ins * p->kernel[1]);
    t->rows = 0;
    best_strip(p, t, each);
    if (!t->rows) return "rows that do not fit into shared memory";
    const int64_t across = cuda_ceil(p->out[2], t->rx), line = grouped_line(p, true, 2, t->rx);
    if (line * p->kernel[1] * t->ins > 100) return "a window of too many taps";
    const int64_t last = grouped_first(p, true, (across - 1) * t->rx);
    t->right = (int32_t)(line - WEFT__MAX(WEFT__MIN(p->in[2] - last, line), 0));
    t->spare = (int32_t)(across * t->rx - p->out[2]);
    t->smem = slots_of(p, t, t->rows, t->rx);
    const int64_t warps = t->taken * t->shares;
    t->blocks = (int32_t)WEFT__MIN(hw->gpu->smem / (t->smem + 1024), WEFT__MAX(16 / warps, 1));
    const int64_t units = p->n * p->out[0] * t->strips;
    const int64_t many = p->groups * (out / t->outs) * cuda_ceil(t->combos, t->taken);
    const int64_t slices = WEFT__MAX(WEFT__MIN(units, BLOCKS_WANTED / many), 1);
    if (units > INT32_MAX / 2) return "2^30 strips or more";
    t->per = (int32_t)cuda_ceil(units, slices);
    t->slices = (int32_t)cuda_ceil(units, t->per);
    t->grid = many * t->slices;
    return t->grid > INT32_MAX ? "2^31 blocks or more" : NULL;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    sums_tile *t = WEFT__PARAMS(sums_tile, d);
    const bool both = p->pass == WEFT_PASS_BWD;
    const char *refusal = grouped_planes_of(p, hw, &t->data);
    (void)variant;
    if (refusal) return refusal;
    const double data = both ? 1500 + grouped_planes_ns(p, hw, &t->data) : 0;
    if ((refusal = sums_tile_of(p, hw, t))) return refusal;
    d->workspace = (size_t)(t->slices * t->shares * grouped_sums_of(p)) * sizeof(float);
    const int64_t out = p->o / p->groups / t->outs;
    const double planes = (double)(p->n * p->out[0]) * (double)(p->groups * out * t->combos * t->shares);
    const double memory = both ? 0 : weft__bytes(p) / (hw->gpu->gbs * 0.5); /* counted with the data */
    const double full = memory + planes * t->data.work * 32 / (0.5 * hw->gpu->gflops * 0.5);
    const double serial = 0.9 * t->data.work * t->per; /* the strips of a block, as measured */
    d->ns = 6500 + data + WEFT__MAX(full, serial);
    return NULL;
}

static void sums_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const sums_tile *t = params;
    (void)hw;
    grouped_defines(p, MODE_WEIGHTS, text);
    weft__put(text, " -DOUTS=%d -DINS=%d -DCOMBOS=%d -DTAKEN=%d -DSHARES=%d -DRX=%d -DRIGHT=%d -DSPARE=%d -DBLOCKS=%d",
              t->outs, t->ins, t->combos, t->taken, t->shares, t->rx, t->right, t->spare, t->blocks);
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const sums_tile *t = e->params;
    const int first = p->pass == WEFT_PASS_BWD; /* part of the weights */
    if (first) WEFT__TRY(grouped_planes_run(e));
    grouped_args a = grouped_args_of(e, false);
    a.slices = t->slices, a.per = t->per, a.strips = t->strips;
    a.down = t->rows, a.across = (int32_t)cuda_ceil(p->out[2], t->rx);
    a.slot = t->slot, a.own = t->own;
    const weft__launch launch = {
        .grid = {(uint32_t)t->grid, 1, 1}, .block = {(uint32_t)(t->taken * t->shares) * 32, 1, 1}, .smem = t->smem};
    WEFT__TRY(weft__cuda_launch(e, first, &launch, &a));
    a.slices *= t->shares;
    return grouped_finish(e, first + 1, &a);
}

#define SOURCE "conv/grouped_sums.cu"
GROUPED_GRADIENT(conv_grouped_bwd_weights_sums, "conv_grouped_bwd_weights_strips__cuda", BWD_WEIGHTS, false,
                 {SOURCE, "grouped_sums", sums_defines, false}, {SOURCE, "finish", sums_defines, false});
GROUPED_GRADIENT(conv_grouped_bwd_sums, "conv_grouped_bwd_strips__cuda", BWD, false,
                 {"conv/grouped_planes.cu", "grouped_planes", grouped_planes_defines, false},
                 {SOURCE, "grouped_sums", sums_defines, false}, {SOURCE, "finish", sums_defines, false});

#else
#define BULK 1
#define ALIGNED 0
#include "reduce.h"
#include "vec.h"

#include "conv/grouped_finish.h"
#include "span.h"

enum { WARPS = TAKEN * SHARES, PLANES = TAKEN * INS, LINE = (RX - 1) * S2 + (K2 - 1) * D2 + 1, LEFT = P2 };
enum { TAPS = K0 * K1 * K2 };
static_assert(LINE <= ZEROS, "a row of zeros is as long as a line");

/* A strip of rows of dy, and the rows of x that it meets. */
struct strip {
    int64_t n;
    int z, top, rows, x_top, x_rows;
};
static __device__ __forceinline__ strip strip_of(const grouped_args &a, int unit) {
    strip s;
    const int plane = unit / a.strips;
    s.top = (unit - plane * a.strips) * a.down;
    s.n = plane / a.from[0];
    s.z = plane - (int)s.n * a.from[0];
    s.rows = min(a.down, a.from[1] - s.top);
    s.x_top = max(s.top * S1 - P1, 0);
    s.x_rows = max(min((s.top + s.rows - 1) * S1 - P1 + (K1 - 1) * D1, a.to[1] - 1) - s.x_top + 1, 0);
    return s;
}

/* What a block has: dy of OUTS channels from `out`, and combinations of INS channels of x and a plane of taps. */
struct work {
    int64_t out, in; /* the group's first channel of x */
    int combo;
};
static __device__ __forceinline__ int plane_of(const grouped_args &a, const strip &s, int combo) {
    const int z = s.z * S0 - P0 + combo % K0 * D0;
    return combo < COMBOS && (unsigned)z < (unsigned)a.to[0] ? z : -1;
}
static __device__ __forceinline__ int64_t dy_at(const grouped_args &a, const work &w, const strip &s, int o) {
    return s.n * a.source_step[0] + (w.out + o) * a.source_step[1] + s.z * a.source_step[2] + s.top * a.source_step[3];
}
static __device__ __forceinline__ int64_t x_at(const grouped_args &a, const work &w, const strip &s, int combo, int i,
                                               int z) {
    return s.n * a.at_step[0] + (w.in + combo / K0 * INS + i) * a.at_step[1] + z * a.at_step[2] +
           s.x_top * a.at_step[3];
}

/* Each warp loads some of the planes of a unit: dy first. */
static __device__ __forceinline__ void load_unit(const grouped_args &a, const work &w, int unit, T *stage,
                                                 uint64_t *bar) {
    const strip s = strip_of(a, unit);
    for (int i = (int)threadIdx.x / 32; i < OUTS + PLANES; i += WARPS) {
        const int j = i - OUTS, combo = w.combo + j / INS, z = j < 0 ? 0 : plane_of(a, s, combo);
        if (j < 0)
            span_load(stage + i * a.own, (const T *)a.source, a.n * a.source_step[0], dy_at(a, w, s, i),
                      s.rows * a.from[2], bar);
        else if (z >= 0)
            span_load(stage + OUTS * a.own + j * a.slot, (const T *)a.at, a.n * a.at_step[0],
                      x_at(a, w, s, combo, j % INS, z), s.x_rows * a.to[2], bar);
        else if (threadIdx.x % 32 == 0)
            ptx_mbarrier_expect(bar, 0);
    }
}

struct sums {
    float dw[OUTS][INS][K1 * K2], db[OUTS];
};

/* RX positions of dy from (y, x) of the strip. */
static __device__ __forceinline__ void add(const grouped_args &a, const strip &s, const T *const (&dy)[OUTS],
                                           const T *const (&planes)[INS], const T *zeros, int y, int x, sums &total) {
    const int from_y = (s.top + y) * S1 - P1 - s.x_top, from_x = x * S2 - P2;
    float window[INS][K1][LINE];
#pragma unroll
    for (int c = 0; c < INS; c++)
#pragma unroll
        for (int t = 0; t < K1; t++) {
            const bool inside = (unsigned)(from_y + t * D1) < (unsigned)s.x_rows;
            const T *row = inside ? planes[c] + (from_y + t * D1) * a.to[2] + from_x : zeros;
#pragma unroll
            for (int i = 0; i < LINE; i++) {
                const float v = widen(row[i]);
                window[c][t][i] = (i >= LEFT && i < LINE - RIGHT) || (unsigned)(from_x + i) < (unsigned)a.to[2] ? v : 0;
            }
        }
#pragma unroll
    for (int o = 0; o < OUTS; o++)
#pragma unroll
        for (int i = 0; i < RX; i++) {
            const float v = widen(dy[o][y * a.from[2] + x + i]);
            const float g = i < RX - SPARE || x + i < a.from[2] ? v : 0;
            if (BIASED) total.db[o] += g;
#pragma unroll
            for (int k = 0; k < INS * K1 * K2; k++) {
                const int c = k / (K1 * K2), t = k / K2 % K1, u = k % K2;
                total.dw[o][c][k % (K1 * K2)] = fmaf(g, window[c][t][i * S2 + u * D2], total.dw[o][c][k % (K1 * K2)]);
            }
        }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS) grouped_sums(const __grid_constant__ grouped_args a) {
    extern __shared__ __align__(128) unsigned char bytes[];
    uint64_t *arrival = (uint64_t *)bytes;
    T *zeros = (T *)(arrival + STAGES), *stages = zeros + ZEROS;
    constexpr int GROUPS_OF_COMBOS = (COMBOS + TAKEN - 1) / TAKEN;
    const int each = OUTS * a.own + PLANES * a.slot, outs = a.inner / OUTS;
    int block = (int)blockIdx.x;
    const int slice = block % a.slices;
    block /= a.slices;
    work w;
    w.combo = block % GROUPS_OF_COMBOS * TAKEN;
    block /= GROUPS_OF_COMBOS;
    const int group = block / outs;
    w.out = (int64_t)group * a.inner + block % outs * OUTS;
    w.in = (int64_t)group * a.outer;
    const int begin = slice * a.per, end = min(begin + a.per, a.n * a.from[0] * a.strips);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) ptx_mbarrier_init(&arrival[i], OUTS + PLANES);
        fence_async();
    }
    for (int i = (int)threadIdx.x; i < ZEROS; i += WARPS * 32) zeros[i] = narrow<T>(0);
    __syncthreads();
    for (int i = 0; i < STAGES && begin + i < end; i++) load_unit(a, w, begin + i, stages + i * each, &arrival[i]);
    __syncthreads(); /* for racecheck alone, which does not see that an arrival follows the stores of other lanes */
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, mine = warp % TAKEN, share = warp / TAKEN;
    const int combo = w.combo + mine;
    sums total = {};
    for (int u = begin; u < end; u++) {
        const int stage = (u - begin) % STAGES;
        const strip s = strip_of(a, u);
        const int z = plane_of(a, s, combo);
        T *at = stages + stage * each;
        arrival_wait(&arrival[stage], (uint32_t)((u - begin) / STAGES & 1));
        if (z >= 0 || (BIASED && combo == 0)) {
            const T *dy[OUTS], *planes[INS];
#pragma unroll
            for (int o = 0; o < OUTS; o++)
                dy[o] = at + o * a.own + span_shift((const T *)a.source, (uint32_t)dy_at(a, w, s, o));
#pragma unroll
            for (int c = 0; c < INS; c++)
                planes[c] = at + OUTS * a.own + (mine * INS + c) * a.slot +
                            span_shift((const T *)a.at, (uint32_t)x_at(a, w, s, combo, c, z));
            strip seen = s;
            if (z < 0) seen.x_rows = 0; /* the bias alone */
            for (int i = share * 32 + lane; i < s.rows * a.across; i += SHARES * 32) {
                const int y = i / a.across;
                add(a, seen, dy, planes, zeros, y, (i - y * a.across) * RX, total);
            }
        }
        __syncthreads(); /* the stage is free */
        if (u + STAGES < end) load_unit(a, w, u + STAGES, at, &arrival[stage]);
    }
    if (combo >= COMBOS) return;
    const int64_t weights = (int64_t)a.groups * a.inner * a.outer * TAPS;
    float *to = a.partial + (slice * SHARES + share) * (weights + (BIASED ? (int64_t)a.groups * a.inner : 0));
#pragma unroll
    for (int i = 0; i < OUTS * INS * K1 * K2; i++) {
        const int o = i / (INS * K1 * K2), c = i / (K1 * K2) % INS, k = i % (K1 * K2);
        const float sum = lanes_all<plus, 32>(total.dw[o][c][k]);
        if (lane == 0) to[((w.out + o) * a.outer + combo / K0 * INS + c) * TAPS + combo % K0 * (K1 * K2) + k] = sum;
    }
    if (!BIASED || combo) return;
#pragma unroll
    for (int o = 0; o < OUTS; o++) {
        const float sum = lanes_all<plus, 32>(total.db[o]);
        if (lane == 0) to[weights + w.out + o] = sum;
    }
}
#endif
