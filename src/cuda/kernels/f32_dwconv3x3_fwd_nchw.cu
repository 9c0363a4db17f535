/* f32 depthwise 3x3 stride 1 forward, channels-first.
 * Math:      dst[n,c,y,x] = epilogue(sum_{r,s} src[n,c,y+r-pt,x+s-pl] * weights[c,r,s])
 * Blocking:  a unit is a run of whole planes, or a strip of rows of one plane: contiguous in src and in dst. Blocks
 *            stay on their multiprocessor and walk over units: bulk copies bring the next units into shared memory (up
 *            to 4 under way) while 7 rows x 1 column a thread are summed in registers; results leave through shared
 *            memory, again by bulk copy
 * Traffic:   8 bytes and 18 flops an output: memory-bound; strips read 2 rows again, mostly from L2
 * Roofline:  bandwidth / 8 outputs per second. Stores straight from registers would split sectors wherever a row is not
 *            a multiple of 128 bytes; a contiguous bulk store never does
 * Assumes:   any n, c, h, pads 0..2; any w of which 3 rows of src and 1 of dst fit shared memory twice (over 6000
 *            columns); 4-byte alignment. Taps in the padding are left out, not multiplied by 0: infinite weights behave
 * Try:       weft bench --kernel f32_dwconv3x3_fwd_nchw_7x1__cuda
 *            conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda */
#ifndef __CUDACC_RTC__
#include "dwconv.h"
#endif
#include "epilogue.h"

enum { ROWS = 7, MAX_STAGES = 4, MIN_THREADS = 64, MAX_THREADS = 256 };
enum { RESERVED = 128 };             /* bytes of shared memory for the barriers, with the alignment of what follows */

typedef struct dwconv_args {
    const float *src, *weights, *bias;
    float *dst;
    uint32_t planes, channels, units;    /* planes: n * c */
    int32_t h, w, oh, ow, pt, pl;
    int32_t batch, rows, strips; /* a unit is `batch` planes; or, with strips of a plane, `rows` output rows of one */
    int32_t stages, in_slot, out_slot;   /* input slots; floats of a slot */
    weft__epilogue epilogue;
} dwconv_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    uint32_t grid, threads;
    size_t smem;
    dwconv_args args;
} tile;

/* Blocks a multiprocessor and input slots a block, best first: loads under way against rows a strip. */
typedef struct occupancy { int blocks, stages, outs; } occupancy;
static const occupancy bulk_tries[] = {{3, 4, 2}, {3, 3, 2}, {2, 3, 2}, {1, 3, 2}, {1, 2, 2}};
static const occupancy plain_tries[] = {{4, 1, 1}, {2, 1, 1}, {1, 1, 1}};

static bool is_bulk(const weft__gpu *gpu) { return gpu->cc >= 90; }
/* A run may begin up to 3 floats past a multiple of 16 bytes. */
static int64_t slot_of(int64_t floats) { return dwconv_ceil(floats + 3, 4) * 4; }

/* Whole planes, as many as make every block's share the same number of units; a run of 4 planes is always aligned. */
static int64_t balance(int64_t planes, int64_t most, int64_t wave) {
    int64_t rounds = dwconv_ceil(planes, wave * most), batch = dwconv_ceil(planes, wave * rounds);
    return batch >= 8 && dwconv_ceil(batch, 4) * 4 <= most ? dwconv_ceil(batch, 4) * 4 : batch;
}

/* The unit for one occupancy; false: less than `least` rows of a plane fit. */
static bool size_unit(dwconv_args *a, const weft__gpu *gpu, const occupancy *o, int64_t least) {
    int64_t floats = ((int64_t)(gpu->smem + 1024) / o->blocks - 1024 - RESERVED) / 4 - 8 * (o->stages + o->outs);
    int64_t plane = (int64_t)a->h * a->w * o->stages + (int64_t)a->oh * a->ow * o->outs,
            wave = (int64_t)gpu->sms * o->blocks;
    int64_t batch = 1, rows = a->oh;
    if (plane <= floats) batch = balance(a->planes, floats / plane, wave);
    else rows = (floats - (int64_t)2 * a->w * o->stages) / ((int64_t)a->w * o->stages + (int64_t)a->ow * o->outs);
    if (rows < WEFT__MIN(least, a->oh)) return false;
    if (a->planes < (uint32_t)gpu->sms) /* too few planes for the device: strips, none shorter than a thread's rows */
        rows = WEFT__MIN(rows, WEFT__MAX(dwconv_ceil(a->oh, dwconv_ceil(gpu->sms, a->planes)), ROWS));
    a->strips = (int32_t)dwconv_ceil(a->oh, rows);
    a->rows = (int32_t)dwconv_ceil(a->oh, a->strips);
    a->strips = (int32_t)dwconv_ceil(a->oh, a->rows);   /* even rows may need fewer strips */
    a->batch = a->strips > 1 ? 1 : (int32_t)batch;
    a->stages = o->stages;
    return true;
}

/* Threads that leave the fewest idle in the last round over a unit's columns of ROWS outputs. */
static uint32_t best_threads(int64_t items) {
    int64_t best = MAX_THREADS, least = INT64_MAX;
    for (int64_t t = MAX_THREADS; t >= MIN_THREADS; t -= 32)
        if (dwconv_ceil(items, t) * t < least) {
            best = t;
            least = dwconv_ceil(items, t) * t;
        }
    return (uint32_t)best;
}

static bool fit(const weft_problem *p, const weft__gpu *gpu, tile *t) {
    const occupancy *tries = is_bulk(gpu) ? bulk_tries : plain_tries, *o = NULL;
    size_t count = is_bulk(gpu) ? WEFT__COUNT(bulk_tries) : WEFT__COUNT(plain_tries);
    dwconv_args *a = &t->args;
    *a = (dwconv_args){
        .planes = (uint32_t)(p->n * p->c), .channels = (uint32_t)p->c,
        .h = (int32_t)p->in[1], .w = (int32_t)p->in[2], .oh = (int32_t)p->out[1], .ow = (int32_t)p->out[2],
        .pt = (int32_t)p->pad_lo[1], .pl = (int32_t)p->pad_lo[2], .epilogue = weft__epilogue_args(p),
    };
    for (size_t i = 0; i < count && !o; i++)
        if (size_unit(a, gpu, &tries[i], i + 1 < count ? ROWS : 1)) o = &tries[i];
    if (!o) return false;
    int64_t rows_in = WEFT__MIN((int64_t)a->rows + 2, a->h);
    a->in_slot = (int32_t)slot_of(a->strips > 1 ? rows_in * a->w : (int64_t)a->batch * a->h * a->w);
    a->out_slot = (int32_t)slot_of((int64_t)a->batch * a->rows * a->ow);
    a->units = (uint32_t)(dwconv_ceil(a->planes, a->batch) * a->strips);
    t->smem = 4 * ((size_t)a->in_slot * (size_t)a->stages + (size_t)a->out_slot * (size_t)o->outs);
    t->threads = best_threads((int64_t)a->batch * dwconv_ceil(a->rows, ROWS) * a->ow);
    t->grid = (uint32_t)WEFT__MIN((int64_t)a->units, (int64_t)gpu->sms * o->blocks);
    return true;
}

static const char *ok(const weft_problem *p, const weft__hw *hw) {
    const char *refusal = dwconv_refusal(p, WEFT_FWD, hw->gpu);
    if (refusal) return refusal;
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense channels-first";
    if (p->in[2] > 1 << 20) return "an image wider than 2^20";   /* far over shared memory; keeps sums in range */
    tile t;
    return fit(p, hw->gpu, &t) ? NULL : "rows too wide for shared memory";
}

/* Bytes at the device's rate, the halo of strips at half price (it comes from L2 mostly), and the launch. */
static double cost(const weft_problem *p, const weft__hw *hw) {
    tile t;
    if (!fit(p, hw->gpu, &t)) return 1e18;
    double halo = t.args.strips > 1 ? 0.25 * 2 / t.args.rows : 0;
    return 3000 + (1 + halo) * (is_bulk(hw->gpu) ? 1.1 : 1.3) * weft__bytes(p) / hw->gpu->gbs;
}

static void defines(const weft_problem *p, const weft__hw *hw, weft__text *t) {
    weft__put(t, "-DBULK=%d", is_bulk(hw->gpu));
    weft__epilogue_defines(p, t);
}

static weft_status run(const weft__exec *e) {
    tile t;
    if (!fit(e->p, e->hw->gpu, &t))
        return weft__fail(WEFT_INTERNAL, "dwconv3x3: planned for a problem that does not fit");
    t.args.src = e->ptr[WEFT_SRC];
    t.args.weights = e->ptr[WEFT_WEIGHTS];
    t.args.bias = e->ptr[WEFT_BIAS];
    t.args.dst = e->ptr[WEFT_DST];
    return weft__cuda_launch(e, (uint32_t[]){t.grid, 1, 1}, (uint32_t[]){t.threads, 1, 1}, t.smem, (void *[]){&t.args});
}

const weft__kernel weft__cuda_f32_dwconv3x3_fwd_nchw = {
    .name = "f32_dwconv3x3_fwd_nchw_7x1__cuda", .version = 1, .op = WEFT_CONV, .engine = WEFT_ENGINE_CUDA,
    .exact = true, .ok = ok, .cost = cost, .run = run,
    .source = "f32_dwconv3x3_fwd_nchw.cu", .entry = "dwconv3x3", .defines = defines,
};

#else
#include "span.h"

struct unit {
    uint32_t first;                  /* plane */
    int planes, y0, rows;            /* output rows y0 .. y0 + rows - 1 of each */
    int lo, hi;                      /* input rows lo .. hi - 1 of each */
    const float *src;
    float *dst;
    int in_count, out_count;
};

static __device__ __forceinline__ unit unit_of(const dwconv_args &a, uint32_t u) {
    unit t;
    uint32_t run = u / (uint32_t)a.strips;
    int64_t in_plane = (int64_t)a.h * a.w, out_plane = (int64_t)a.oh * a.ow;
    t.first = run * (uint32_t)a.batch;
    t.planes = (int)min((uint32_t)a.batch, a.planes - t.first);
    t.y0 = (int)(u - run * (uint32_t)a.strips) * a.rows;
    t.rows = min(a.rows, a.oh - t.y0);
    t.lo = max(t.y0 - a.pt, 0);
    t.hi = min(t.y0 + t.rows + 2 - a.pt, a.h);
    t.src = a.src + (t.first * in_plane + (int64_t)t.lo * a.w);
    t.dst = a.dst + (t.first * out_plane + (int64_t)t.y0 * a.ow);
    t.in_count = (int)((t.planes - 1) * in_plane) + (t.hi - t.lo) * a.w;
    t.out_count = (int)((t.planes - 1) * out_plane) + t.rows * a.ow;
    return t;
}

/* One column of ROWS outputs. `in` is at the input row and column under the first tap of the first output; row_lo ..
 * row_hi - 1 are the input rows there are, counted from it. A row that is not there is skipped; a column that is not
 * there has value and weight 0. INSIDE: all rows are there, and all outputs are wanted. */
template <bool INSIDE>
static __device__ __forceinline__ void column(const dwconv_args &a, const float *in, float *out,
                                              const float (&weights)[9], float bias, const bool (&there)[3], int row_lo,
                                              int row_hi, int wanted) {
    float sum[ROWS];
#pragma unroll
    for (int j = 0; j < ROWS; j++) sum[j] = 0;
#pragma unroll
    for (int r = 0; r < ROWS + 2; r++) {
        if (!INSIDE && (r < row_lo || r >= row_hi)) continue;
        float v[3];
#pragma unroll
        for (int s = 0; s < 3; s++) v[s] = there[s] ? in[r * a.w + s] : 0;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            int j = r - k;           /* the output for which this row is tap row k */
            if (j < 0 || j >= ROWS) continue;
#pragma unroll
            for (int s = 0; s < 3; s++) sum[j] = fmaf(v[s], weights[3 * k + s], sum[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < ROWS; j++)
        if (INSIDE || j < wanted) out[j * a.ow] = weft__epilogue_apply(a.epilogue, bias, sum[j]);
}

static __device__ __forceinline__ void compute(const dwconv_args &a, const unit &t, const float *in, float *out) {
    uint32_t groups = (uint32_t)(t.rows + ROWS - 1) / ROWS, items = (uint32_t)t.planes * groups * (uint32_t)a.ow;
    for (uint32_t i = threadIdx.x; i < items; i += blockDim.x) {
        uint32_t line = i / (uint32_t)a.ow, plane = line / groups;
        int x = (int)(i - line * (uint32_t)a.ow), y = (int)(line - plane * groups) * ROWS;
        const float *filter = a.weights + (int64_t)((t.first + plane) % a.channels) * 9;
        bool there[3];
        float weights[9], bias = 0;
#pragma unroll
        for (int s = 0; s < 3; s++) there[s] = (uint32_t)(x - a.pl + s) < (uint32_t)a.w;
#pragma unroll
        for (int k = 0; k < 9; k++) weights[k] = there[k % 3] ? __ldg(filter + k) : 0;
        if (weft__epilogue_biased())
            bias = __ldg(a.bias + (t.first + plane) % a.channels);
        int top = t.y0 + y - a.pt;   /* the input row under the first tap */
        const float *from = in + ((int)plane * a.h + top - t.lo) * a.w + x - a.pl;
        float *to = out + ((int)plane * a.oh + y) * a.ow + x;
        if (top >= t.lo && top + ROWS + 2 <= t.hi) column<true>(a, from, to, weights, bias, there, 0, ROWS + 2, ROWS);
        else column<false>(a, from, to, weights, bias, there, t.lo - top, t.hi - top, t.rows - y);
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 3) dwconv3x3(const __grid_constant__ dwconv_args a) {
    extern __shared__ __align__(128) float smem[];
    __shared__ uint64_t arrival[MAX_STAGES];
    float *out = smem + a.stages * a.in_slot;
    if (threadIdx.x == 0) {
        for (int s = 0; s < MAX_STAGES; s++) arrival_init(&arrival[s]);
        fence_async();
    }
    __syncthreads();
    for (int s = 0; s < a.stages; s++) {
        uint32_t u = blockIdx.x + s * gridDim.x;
        if (u >= a.units) break;
        unit t = unit_of(a, u);
        span_load(smem + s * a.in_slot, t.src, t.in_count, &arrival[s]);
    }
    uint32_t parity = 0;
    int stage = 0;
    bool odd = false;                /* which of the two output slots; without BULK there is one */
    for (uint32_t u = blockIdx.x; u < a.units; u += gridDim.x) {
        unit t = unit_of(a, u);
        float *in_slot = smem + stage * a.in_slot, *out_slot = out + (BULK && odd ? a.out_slot : 0);
        span_store_wait<1>();
        __syncthreads();             /* the output slot is free, the ends of the input run are there */
        arrival_wait(&arrival[stage], parity);
        compute(a, t, in_slot + span_of(t.src, 0).shift, out_slot + span_of(t.dst, 0).shift);
        fence_async();
        __syncthreads();             /* the output slot is full, the input slot is free */
        span_store(t.dst, out_slot, t.out_count);
        uint32_t next = u + (uint32_t)a.stages * gridDim.x;
        if (next < a.units) {
            unit n = unit_of(a, next);
            span_load(in_slot, n.src, n.in_count, &arrival[stage]);
        }
        if (++stage == a.stages) {
            stage = 0;
            parity ^= 1;
        }
        odd = !odd;
    }
    span_store_wait<0>();            /* shared memory must outlive the copies that read it */
}
#endif
