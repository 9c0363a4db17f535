/* Grouped convolution with few channels in a group, 2D and 3D, channels-first, stride 1, f32: forward and data gradient
 * on the tensor cores.
 * Math:      dst[o] = epilogue(sum_{c,k} src[c, p + k] weights[o,c,k]); of each tap, 16 dests x 8 channels are a
 *            product with 8 source channels. An f32 number is the sum of two of TF32, x = hi + lo: three products,
 *            hi hi + hi lo + lo hi, leave out 2^-21 of each. Groups of fewer than 8 channels share a product, with zeros
 *            between them
 * Blocking:  a block has 8 dest channels and ROWS rows of a chunk of planes, and walks through the planes. A source plane
 *            comes by asynchronous copies while the one before is worked on, and serves the K0 dest planes it meets. Its
 *            rows lie behind each other with zeros between: dests are numbered in the same way, 16 of them are a tile,
 *            and a tap is a constant distance. A warp has TILES tiles
 * Traffic:   each source once from memory, borders of strips and chunks again from L2; dests once
 * Roofline:  loads from shared memory: 4 for a tile and tap, 3 products of 16 x 8 x 8
 * Assumes:   all data dense channels-first; groups of 2, 4 or 8 channels, or of whole eights up to 16 sources. What is
 *            not finite is computed again as direct sums
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g8@cuda */
#include "conv/grouped.h"

enum { CHANNELS = 8 }; /* dests of a block */

#ifndef __CUDACC_RTC__
typedef struct mma_tile {
    grouped_tile g; /* ry: rows; parts: blocks of dest channels; across: tiles of a warp; per: planes of a chunk */
    int32_t pitch, plane, sources; /* elements of a row and of a channel in shared memory; channels of a block */
    bool images;                   /* 2D: the walk goes through images */
} mma_tile;

static int32_t plane_of(const weft_problem *p, const mma_tile *t) {
    const int64_t tiles = cuda_ceil((t->g.ry - 1) * t->pitch + t->pitch - p->kernel[2] + 1, 16);
    int64_t plane = tiles * 16 + (p->kernel[1] - 1) * t->pitch + p->kernel[2];
    while (plane % 32 != 8) plane++; /* channels in different banks */
    return (int32_t)plane;
}

static const char *refusal_of(const weft_problem *p, const weft__hw *hw, mma_tile *t) {
    const char *refusal = grouped_refusal(p);
    if (refusal) return refusal;
    if (hw->gpu->cc < 80) return "a GPU older than compute capability 8.0";
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const int64_t outer = (fwd ? p->o : p->c) / p->groups, inner = (fwd ? p->c : p->o) / p->groups;
    const bool small = inner == outer && 8 % inner == 0 && p->c % 8 == 0, whole = outer % 8 == 0 && inner <= 16;
    if (!small && !whole) return "groups that do not fill 8 channels";
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense channels-first";
    for (int a = 0; a < 3; a++)
        if (p->stride[a] != 1 || p->dilation[a] != 1) return "stride or dilation";
    t->g.mode = fwd ? MODE_FWD : MODE_DATA;
    t->g.parts = (int32_t)((fwd ? p->o : p->c) / CHANNELS);
    t->sources = (int32_t)(small ? 8 : cuda_ceil(inner, 8) * 8);
    t->images = p->in[0] == 1 && p->out[0] == 1 && p->kernel[0] == 1;
    return NULL;
}

/* Rows of a strip and tiles of a warp: the least work whose planes fit, two blocks of a multiprocessor. */
static double best_shape(const weft_problem *p, const weft__hw *hw, mma_tile *t) {
    const bool fwd = t->g.mode == MODE_FWD;
    const int64_t *to = fwd ? p->out : p->in, ring = p->kernel[0] + 1;
    const int64_t taps = p->kernel[0] * p->kernel[1] * p->kernel[2];
    mma_tile best = *t;
    double least = 1e300;
    t->pitch = (int32_t)(to[2] + p->kernel[2] - 1);
    for (t->g.ry = 1; t->g.ry <= WEFT__MIN(to[1], 64); t->g.ry++)
        for (t->g.across = 2; t->g.across <= 4; t->g.across++) {
            t->plane = plane_of(p, t);
            t->g.strips = (int32_t)cuda_ceil(to[1], t->g.ry);
            const int64_t tiles = cuda_ceil((t->g.ry - 1) * t->pitch + to[2], 16);
            const int64_t warps = cuda_ceil(tiles, t->g.across);
            t->g.threads = (int32_t)warps * 32;
            t->g.smem = (size_t)(4 * (ring * t->sources * t->plane + taps * t->sources / 8 * 128));
            if (warps > 16 || t->g.smem > (hw->gpu->smem - 2048) / 2) continue;
            const double each = (double)(t->g.across * (taps * 17 + 30) + taps * 5 + 150),
                         lines = (double)(t->g.ry + p->kernel[1] - 1) * (double)cuda_ceil(to[2], 32) * t->sources * 8;
            const double idle = warps < 5 ? 5.0 / (double)warps : 1; /* few warps do not fill a multiprocessor */
            const double cost = t->g.strips * ((double)warps * each * idle * t->sources / 8 + lines);
            if (cost >= least) continue;
            least = cost;
            best = *t;
        }
    *t = best;
    return least;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    mma_tile *t = WEFT__PARAMS(mma_tile, d);
    const char *refusal = refusal_of(p, hw, t);
    (void)variant;
    if (refusal) return refusal;
    const double cost = best_shape(p, hw, t);
    if (cost >= 1e300) return "rows or weights that do not fit into shared memory";
    const int64_t deep = t->images ? p->n : t->g.mode == MODE_FWD ? p->out[0] : p->in[0];
    const int64_t columns = (t->images ? 1 : p->n) * t->g.parts * t->g.strips;
    /* chunks: about two blocks' turns for each place, but not so many that their first planes count */
    const int64_t chunks =
        WEFT__MAX(WEFT__MIN(cuda_ceil(4 * hw->gpu->sms, columns), cuda_ceil(deep, t->images ? 1 : 3)), 1);
    t->g.per = (int32_t)cuda_ceil(deep, chunks);
    t->g.slices = (int32_t)cuda_ceil(deep, t->g.per);
    if (columns * t->g.slices > INT32_MAX) return "2^31 blocks or more";
    const double planes = (double)(t->images ? 1 : p->n) * (double)deep * t->g.parts;
    d->ns = cuda_ns(hw, weft__bytes(p), 0.7, 1) + planes * cost / (hw->gpu->sms * 4 * 1.2);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    const mma_tile *t = params;
    (void)hw;
    grouped_defines(p, t->g.mode, text);
    weft__put(text,
              " -DRY=1 -DRX=1 -DMANY=1 -DLINES=%d -DTILES=%d -DWIDE=%d -DPITCH=%d -DPLANE=%d -DSOURCES=%d -DIMAGES=%d",
              t->g.ry, t->g.across, t->g.threads, t->pitch, t->plane, t->sources, t->images);
}

static weft_status run(const weft__exec *e) {
    const mma_tile *t = e->params;
    grouped_args a = grouped_args_of(e, t->g.mode == MODE_FWD);
    a.strips = t->g.strips, a.per = t->g.per, a.slices = t->g.slices;
    const int64_t blocks = (int64_t)(t->images ? 1 : a.n) * t->g.parts * a.strips * a.slices;
    const weft__launch launch = {
        .grid = {(uint32_t)blocks, 1, 1}, .block = {(uint32_t)t->g.threads, 1, 1}, .smem = t->g.smem};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_conv_grouped_mma = {
    .name = "conv_grouped_mma__cuda",
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .dtypes = WEFT__DTYPE_SET(F32),
    .steps = WEFT__EPILOGUE_STEPS,
    .not_strict = true,
    .exact = true,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"conv/grouped_mma.cu", "grouped_mma", defines, false}),
};

#else
#include "conv/grouped_tile.h"

enum { LEAD0 = FWD ? P0 : K0 - 1 - P0, LEAD1 = FWD ? P1 : K1 - 1 - P1, LEAD2 = FWD ? P2 : K2 - 1 - P2 };
enum { RING = K0 + 1, SLOT = SOURCES * PLANE, SOURCE_LINES = LINES + K1 - 1, WIDTH = PITCH - K2 + 1 };

/* What a block has. */
struct part {
    int64_t n;
    int channel, source; /* the first dest and source channels */
    int y, begin, end;   /* first row; planes */
};
static __device__ __forceinline__ part part_of(const grouped_args &a) {
    part s;
    const int parts = a.groups * a.outer / CHANNELS, slice = (int)blockIdx.x % a.slices,
              rest = (int)blockIdx.x / a.slices;
    const int strip = rest % a.strips, deep = IMAGES ? a.n : a.to[0];
    s.channel = rest / a.strips % parts * CHANNELS;
    s.n = rest / a.strips / parts;
    s.source = s.channel / a.outer * a.inner;
    s.y = strip * LINES;
    s.begin = slice * a.per;
    s.end = min(s.begin + a.per, deep);
    return s;
}

/* A source plane to its place in the ring; what does not exist is 0. A warp has a row. */
static __device__ __forceinline__ void fetch(const grouped_args &a, const part &s, int z, float *ring) {
    const int deep = IMAGES ? a.n : a.from[0], columns = min(a.from[2], PITCH - LEAD2), lane = (int)threadIdx.x % 32;
    float *slot = ring + (z + RING) % RING * SLOT;
    for (int i = (int)threadIdx.x / 32; i < SOURCES * SOURCE_LINES; i += WIDE / 32) {
        const int c = i / SOURCE_LINES, line = i - c * SOURCE_LINES, y = s.y - LEAD1 + line;
        const bool there =
            (unsigned)z < (unsigned)deep && (unsigned)y < (unsigned)a.from[1] && s.source + c < a.groups * a.inner;
        const float *row = (const float *)a.source;
        if (there)
            row += (IMAGES ? z : s.n) * a.source_step[0] + (s.source + c) * a.source_step[1] +
                   (IMAGES ? 0 : z) * a.source_step[2] + y * a.source_step[3];
        for (int x = lane; x < columns; x += 32)
            ptx_copy_part<4>(slot + c * PLANE + line * PITCH + LEAD2 + x, row + (there ? x : 0), there);
    }
    ptx_copy_commit();
}

/* Of source channel c and dest channel o of the block. */
static __device__ __forceinline__ float tap_at(const grouped_args &a, const part &s, int c, int o, int k) {
    const int group = (s.channel + o) / a.outer, from = s.source + c;
    if (from / a.inner != group) return 0;
    return weight_at(a, group, from - group * a.inner, s.channel + o - group * a.outer, FWD ? k : TAPS - 1 - k);
}

/* The bits of x that TF32 has. */
static __device__ __forceinline__ float high_of(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }

/* All taps: of a product's B a lane has [lane % 4][lane / 4] and that of 4 channels on, then what is left of both. */
static __device__ __forceinline__ void fill_taps(const grouped_args &a, const part &s, float4 *taps) {
    for (int i = (int)threadIdx.x; i < TAPS * (SOURCES / 8) * 32; i += WIDE) {
        const int lane = i % 32, c = i / 32 % (SOURCES / 8) * 8 + lane % 4, k = i / (32 * (SOURCES / 8));
        const float x = tap_at(a, s, c, lane / 4, k), y = tap_at(a, s, c + 4, lane / 4, k);
        taps[i] = {high_of(x), high_of(y), x - high_of(x), y - high_of(y)};
    }
}

/* sum += a tile with one tap of 8 channels. at: this lane's first source. */
static __device__ __forceinline__ void multiply_tile(const float *at, const float4 &b, float (&sum)[4]) {
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float v = at[i % 2 * 8 + i / 2 * 4 * PLANE], h = high_of(v);
        hi[i] = __float_as_uint(h);
        lo[i] = __float_as_uint(v - h);
    }
    ptx_multiply_tf32(sum, lo, __float_as_uint(b.x), __float_as_uint(b.y));
    ptx_multiply_tf32(sum, hi, __float_as_uint(b.z), __float_as_uint(b.w));
    ptx_multiply_tf32(sum, hi, __float_as_uint(b.x), __float_as_uint(b.y));
}

/* Where dest `at` of a strip is, and whether it exists. */
struct dest {
    int line, x;
    bool there;
};
static __device__ __forceinline__ dest dest_of(const grouped_args &a, const part &s, int at) {
    const int line = at / PITCH, x = at - line * PITCH;
    return {line, x, line < LINES && x < WIDTH && s.y + line < a.to[1]};
}
static __device__ __forceinline__ void put(const grouped_args &a, const part &s, int z, int channel, const dest &d,
                                           float v) {
    const int64_t plane = IMAGES ? z * a.dest_step[0] : s.n * a.dest_step[0] + z * a.dest_step[2];
    ((float *)a.dest)[plane + channel * a.dest_step[1] + (s.y + d.line) * a.dest_step[3] + d.x] =
        FWD ? weft__epilogue_apply(a.epilogue, bias_of(a, channel), v) : v;
}

/* What is not finite reaches the dests of other groups: this lane's sums of a tile once more. */
static __device__ __noinline__ void careful_tile(const grouped_args &a, const part &s, int z, int first, int channel) {
    for (int i = 0; i < 4; i++) {
        const dest d = dest_of(a, s, first + i / 2 * 8);
        const int c = channel + i % 2, group = c / a.outer;
        if (d.there)
            put(a, s, z, c, d,
                careful(a, IMAGES ? z : s.n, group, c - group * a.outer, IMAGES ? 0 : z, s.y + d.line, d.x));
    }
}

/* Dests of a tile: a lane has numbers lane / 4 and that + 8 of channels 2 (lane % 4) and the next. */
static __device__ __forceinline__ void leave(const grouped_args &a, const part &s, int z, int tile,
                                             const float (&sum)[4]) {
    const int lane = (int)threadIdx.x % 32, first = tile + lane / 4, channel = s.channel + 2 * (lane % 4);
    float zero = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const dest d = dest_of(a, s, first + i / 2 * 8);
        zero = fmaf(sum[i], 0, zero);
        if (d.there) put(a, s, z, channel + i % 2, d, sum[i]);
    }
    if (zero != 0) careful_tile(a, s, z, first, channel);
}

extern "C" __global__ void __launch_bounds__(WIDE, 2) grouped_mma(const __grid_constant__ grouped_args a) {
    extern __shared__ __align__(16) float4 taps[]; /* [tap][eight channels][lane] */
    float *ring = (float *)(taps + TAPS * (SOURCES / 8) * 32);
    const part s = part_of(a);
    const int lane = (int)threadIdx.x % 32, first = (int)threadIdx.x / 32 * TILES * 16;
    const float *from = ring + lane % 4 * PLANE + first + lane / 4;
    for (int i = (int)threadIdx.x; i < RING * SLOT; i += WIDE) ring[i] = 0; /* between the rows, and behind them */
    __syncthreads();
    for (int z = s.begin - LEAD0; z < s.begin - LEAD0 + K0; z++) fetch(a, s, z, ring);
    fill_taps(a, s, taps);
    for (int z = s.begin; z < s.end; z++) {
        ptx_copy_wait<0>();
        __syncthreads();
        if (z + 1 < s.end) fetch(a, s, z + K0 - LEAD0, ring);
        float sum[TILES][4] = {};
#pragma unroll 1
        for (int r = 0; r < K0 * (SOURCES / 8); r++) {
            const int tap = r / (SOURCES / 8), eight = r - tap * (SOURCES / 8);
            const float *plane = from + (z - LEAD0 + tap + RING) % RING * SLOT + eight * 8 * PLANE;
#pragma unroll
            for (int t = 0; t < K1 * K2; t++) {
                const float4 b = taps[((tap * (K1 * K2) + t) * (SOURCES / 8) + eight) * 32 + lane];
#pragma unroll
                for (int m = 0; m < TILES; m++) multiply_tile(plane + m * 16 + t / K2 * PITCH + t % K2, b, sum[m]);
            }
        }
#pragma unroll
        for (int m = 0; m < TILES; m++) leave(a, s, z, first + m * 16, sum[m]);
    }
}
#endif
