/* f32 depthwise 3x3 stride 1 forward, channels-first.
 * Math:      dst[n,c,y,x] = epilogue(sum_{r,s} src[n,c,y+r-pt,x+s-pl] * weights[c,r,s])
 * Blocking:  a unit is a run of whole planes, or a strip of rows of one plane: contiguous in src and in dst. Blocks
 *            stay on their multiprocessor and walk over units: bulk copies bring the next units into shared memory (up
 *            to 4 under way) while 14 rows x 1 column a thread (7, 4 or 1 where they divide the image
 *            better) are summed in registers; results leave through shared memory, again by bulk copy. One barrier a
 *            unit
 * Traffic:   8 bytes and 18 flops an output: memory-bound; strips read 2 rows again, mostly from L2
 * Roofline:  bandwidth / 8 outputs per second. Instructions are the second bound, about 24 an output: so sizes are
 *            divided by reciprocals, and a tap column that a thread does not have is jumped over, not tested by row.
 *            Stores straight from registers would split sectors wherever a row is not a multiple of 128 bytes; a
 *            contiguous bulk store never does. Measured share of a plain copy of the same bytes on an H200, cache
 *            emptied: 64x128x56x56 0.87, 57x57 0.83, 64x64x112x112 0.88, 64x256x28x28 0.81, 64x512x14x14 0.73,
 *            64x1024x7x7 0.72
 * Assumes:   any n, c, h, pads 0..2; any w of which 3 rows of src and 1 of dst fit shared memory twice (over 6000
 *            columns); 4-byte alignment. Taps in the padding are left out, not multiplied by 0: infinite weights
 *            behave. Rows that two threads or two blocks share are written twice, with the same values
 * Try:       weft bench --kernel f32_dwconv3x3_fwd_nchw_14x1__cuda
 *            conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda */
#ifndef __CUDACC_RTC__
#include "dwconv.h"
#endif
#include "epilogue.h"

enum { MAX_STAGES = 4, MAX_THREADS = 768 }; /* threads of a multiprocessor, over its blocks */
enum { RESERVED = 128 }; /* bytes of shared memory for the barriers, with the alignment of what follows */

typedef struct divisor {
    uint32_t by, factor, shift;
} divisor; /* n / by = n * factor >> shift, for n < 2^31 */

typedef struct dwconv_args {
    const float *src, *weights, *bias;
    float *dst;
    int64_t total;          /* elements of src */
    uint32_t planes, units; /* planes: n * c */
    int32_t h, w, oh, ow, pt, pl;
    int32_t batch, rows; /* a unit is `batch` planes; or, with strips of a plane, `rows` output rows of one */
    int32_t tall;        /* output rows a thread: 14, 7, 4 or 1, at most `rows` */
    divisor channels, strips, groups, columns; /* groups: of `tall` rows in a unit's plane; columns: ow */
    int32_t stages, in_slot, out_slot;         /* input slots; floats of a slot */
    weft__epilogue epilogue;
} dwconv_args;

#ifndef __CUDACC_RTC__
typedef struct tile {
    uint32_t grid, threads;
    size_t smem;
    double price; /* time of the busiest multiprocessor, over that of an even share copied */
    dwconv_args args;
} tile;

/* Blocks a multiprocessor, slots a block. `price`: few loads under way, or few blocks, hide less of the waiting. */
typedef struct occupancy {
    int blocks, stages, outs;
    double price;
} occupancy;
static const occupancy bulk_tries[] = {{3, 4, 2, 1},    {3, 3, 2, 1.01}, {2, 4, 2, 1.03},
                                       {2, 3, 2, 1.04}, {3, 2, 2, 1.06}, {2, 2, 2, 1.08},
                                       {1, 4, 2, 1.1},  {1, 3, 2, 1.1},  {1, 2, 2, 1.15}};
static const occupancy plain_tries[] = {{4, 1, 1, 1}, {3, 1, 1, 1.05}, {2, 1, 1, 1.1}, {1, 1, 1, 1.5}};

static bool is_bulk(const weft__gpu *gpu) { return gpu->cc >= 90; }
/* A run may begin up to 3 floats past a multiple of 16 bytes. */
static int64_t slot_of(int64_t floats) { return dwconv_ceil(floats + 3, 4) * 4; }

static divisor divisor_of(int64_t by) {
    uint32_t bits = 0;
    while (((int64_t)1 << bits) < by) bits++;
    uint64_t factor = (((uint64_t)1 << (31 + bits)) + (uint64_t)by - 1) / (uint64_t)by;
    return (divisor){(uint32_t)by, (uint32_t)factor, 31 + bits};
}

/* Whole planes, at most `most`, so that the busiest block has the fewest. */
static int64_t balance(int64_t planes, int64_t most, int64_t wave) {
    int64_t least = dwconv_ceil(planes, wave * most), best = 0, best_share = INT64_MAX;
    for (int64_t rounds = least; rounds <= WEFT__MIN(2 * least, least + 8); rounds++) {
        int64_t batch = dwconv_ceil(planes, wave * rounds);
        int64_t share = dwconv_ceil(dwconv_ceil(planes, batch), wave) * batch;
        if (share < best_share) {
            best = batch;
            best_share = share;
        }
    }
    return best;
}

/* The rows of a thread that read the fewest input rows. */
static int tall_of(int64_t rows) {
    static const int talls[] = {14, 7, 4, 1};
    int64_t best = 1, least = INT64_MAX;
    for (size_t i = 0; i < WEFT__COUNT(talls); i++) {
        int64_t reads = dwconv_ceil(rows, talls[i]) * (talls[i] + 2);
        if (talls[i] <= rows && reads < least) {
            best = talls[i];
            least = reads;
        }
    }
    return (int)best;
}

/* As few rounds over a unit's items as there can be, all of them as full. */
static uint32_t best_threads(int64_t items, int64_t most) {
    int64_t rounds = dwconv_ceil(items, most);
    return (uint32_t)(dwconv_ceil(dwconv_ceil(items, rounds), 32) * 32);
}

/* The unit for one occupancy; false: not a row of a plane fits. */
static bool fit_one(tile *t, const weft__gpu *gpu, const occupancy *o) {
    dwconv_args *a = &t->args;
    int64_t floats = ((int64_t)(gpu->smem + 1024) / o->blocks - 1024 - RESERVED) / 4 - 8 * (o->stages + o->outs);
    int64_t in_plane = (int64_t)a->h * a->w, out_plane = (int64_t)a->oh * a->ow;
    int64_t plane = in_plane * o->stages + out_plane * o->outs, wave = (int64_t)gpu->sms * o->blocks;
    int64_t rows = a->oh, batch = 1, strips;
    if (plane <= floats)
        batch = balance(a->planes, floats / plane, wave);
    else
        rows = (floats - (int64_t)2 * a->w * o->stages) / ((int64_t)a->w * o->stages + (int64_t)a->ow * o->outs);
    if (rows < 1) return false;
    if (a->planes < wave) /* too few planes for the device: strips, none shorter than a thread's rows */
        rows = WEFT__MIN(rows, WEFT__MAX(dwconv_ceil(a->oh, dwconv_ceil(wave, a->planes)), 7));
    rows = dwconv_ceil(a->oh, dwconv_ceil(a->oh, rows));
    strips = dwconv_ceil(a->oh, rows);
    if (strips > 1) batch = 1;
    int64_t rows_in = WEFT__MIN(rows + 2, a->h), units = dwconv_ceil(a->planes, batch) * strips;
    int64_t in = strips > 1 ? rows_in * a->w : batch * in_plane, out = batch * rows * a->ow;
    if (units > INT32_MAX) return false;
    a->batch = (int32_t)batch;
    a->rows = (int32_t)rows;
    a->tall = tall_of(rows);
    a->strips = divisor_of(strips);
    a->groups = divisor_of(dwconv_ceil(rows, a->tall));
    a->stages = o->stages;
    a->in_slot = (int32_t)slot_of(in);
    a->out_slot = (int32_t)slot_of(out);
    a->units = (uint32_t)units;
    t->smem = 4 * ((size_t)a->in_slot * (size_t)a->stages + (size_t)a->out_slot * (size_t)o->outs);
    t->threads = best_threads(batch * a->groups.by * a->ow, MAX_THREADS / WEFT__MIN(o->blocks, 3));
    t->grid = (uint32_t)WEFT__MIN(units, wave);
    /* Half of a halo comes from L2. Input rows that threads read count a little: 7 rows a thread read 9. */
    int64_t rest = units % wave, busiest = units / wave * o->blocks + dwconv_ceil(rest, gpu->sms);
    double halo = strips > 1 ? (double)(strips * in - in_plane) : 0;
    double reads = (double)(strips * a->groups.by * (a->tall + 2)) / (double)a->oh;
    t->price = o->price * (0.8 + 0.2 * reads) * (double)busiest * gpu->sms / (double)units *
               ((double)in_plane + 0.5 * halo + (double)(strips * rows * a->ow)) / (double)(in_plane + out_plane);
    return true;
}

static bool fit(const weft_problem *p, const weft__gpu *gpu, tile *best) {
    const occupancy *tries = is_bulk(gpu) ? bulk_tries : plain_tries;
    size_t count = is_bulk(gpu) ? WEFT__COUNT(bulk_tries) : WEFT__COUNT(plain_tries);
    tile t = {.args = {
                  .total = p->n * p->c * p->in[1] * p->in[2],
                  .planes = (uint32_t)(p->n * p->c),
                  .h = (int32_t)p->in[1],
                  .w = (int32_t)p->in[2],
                  .oh = (int32_t)p->out[1],
                  .ow = (int32_t)p->out[2],
                  .pt = (int32_t)p->pad_lo[1],
                  .pl = (int32_t)p->pad_lo[2],
                  .channels = divisor_of(p->c),
                  .columns = divisor_of(p->out[2]),
                  .epilogue = weft__epilogue_args(p),
              }};
    best->price = 0;
    for (size_t i = 0; i < count; i++)
        if (fit_one(&t, gpu, &tries[i]) && (best->price == 0 || t.price < best->price)) *best = t;
    return best->price > 0;
}

/* The time: what the busiest multiprocessor does, at the device's rate; the launch, with a first load and a last
 * store. */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    tile *t = WEFT__PARAMS(tile, d);
    const char *refusal = dwconv_refusal(p, WEFT_PASS_FWD, hw->gpu);
    (void)variant;
    if (refusal) return refusal;
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense channels-first";
    if (p->in[2] > 1 << 20) return "an image wider than 2^20"; /* far over shared memory; keeps sums in range */
    if (!fit(p, hw->gpu, t)) return "rows too wide for shared memory";
    d->ns = 4000 + t->price * (is_bulk(hw->gpu) ? 1.05 : 1.3) * weft__bytes(p) / hw->gpu->gbs;
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *t) {
    (void)params;
    weft__put(t, "-DBULK=%d", is_bulk(hw->gpu));
    weft__epilogue_defines(p, t);
}

static weft_status run(const weft__exec *e) {
    const tile *t = e->params;
    dwconv_args a = t->args;
    a.src = e->ptr[WEFT_ROLE_SRC];
    a.weights = e->ptr[WEFT_ROLE_WEIGHTS];
    a.bias = e->ptr[WEFT_ROLE_BIAS];
    a.dst = e->ptr[WEFT_ROLE_DST];
    const weft__launch launch = {.grid = {t->grid, 1, 1}, .block = {t->threads, 1, 1}, .smem = t->smem};
    return weft__cuda_launch(e, 0, &launch, &a);
}

const weft__kernel weft__cuda_f32_dwconv3x3_fwd_nchw = {
    .name = "f32_dwconv3x3_fwd_nchw_14x1__cuda",
    .version = 2,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CUDA,
    .exact = true,
    .steps = WEFT__EPILOGUE_STEPS,
    .plan = plan,
    .run = run,
    WEFT__PARTS({"conv/f32_dwconv3x3_fwd_nchw.cu", "dwconv3x3", defines, false}),
};

#else
#include "span.h"

static __device__ __forceinline__ uint32_t quotient(uint32_t n, const divisor &d) {
    return (uint32_t)((uint64_t)n * d.factor >> d.shift);
}

struct unit {
    uint32_t first;     /* plane */
    int planes, y0, lo; /* output rows y0 .. y0 + rows - 1 of each, input rows from lo */
};

/* The last strip ends where the plane does, over rows of the one before: all units have the same shape. */
static __device__ __forceinline__ unit unit_of(const dwconv_args &a, uint32_t u) {
    unit t;
    uint32_t run = quotient(u, a.strips);
    t.first = run * (uint32_t)a.batch;
    t.planes = (int)min((uint32_t)a.batch, a.planes - t.first);
    t.y0 = min((int)(u - run * a.strips.by) * a.rows, a.oh - a.rows);
    t.lo = max(t.y0 - a.pt, 0);
    return t;
}

static __device__ __forceinline__ void load(const dwconv_args &a, uint32_t u, float *slot, uint64_t *bar) {
    unit t = unit_of(a, u);
    int hi = min(t.y0 + a.rows + 2 - a.pt, a.h), count = ((t.planes - 1) * a.h + hi - t.lo) * a.w;
    span_load(slot, a.src, a.total, ((int64_t)t.first * a.h + t.lo) * a.w, count, bar);
}

static __device__ __forceinline__ void store(const dwconv_args &a, const unit &t, const float *slot) {
    span_store(a.dst, ((int64_t)t.first * a.oh + t.y0) * a.ow, ((t.planes - 1) * a.oh + a.rows) * a.ow, slot);
}

/* Items are columns of TALL outputs, the last of a plane shifted up to end with it. Only the first two and the last two
 * of the TALL + 2 input rows can be padding. */
template <int TALL>
static __device__ __forceinline__ void compute(const dwconv_args &a, const unit &t, const float *in, float *out) {
    uint32_t items = (uint32_t)t.planes * a.groups.by * a.columns.by;
    for (uint32_t i = threadIdx.x; i < items; i += blockDim.x) {
        uint32_t line = quotient(i, a.columns), plane = quotient(line, a.groups), image = t.first + plane;
        uint32_t channel = image - quotient(image, a.channels) * a.channels.by;
        int x = (int)(i - line * a.columns.by), left = x - a.pl;
        int y = min((int)(line - plane * a.groups.by) * TALL, a.rows - TALL), top = t.y0 + y - a.pt;
        const float *from = in + ((int)plane * a.h + top - t.lo) * a.w + left, *row[TALL + 2];
        const float *filter = ptx_pin(a.weights + (size_t)channel * 9);
        float sum[TALL];
#pragma unroll
        for (int r = 0; r < TALL + 2; r++) {
            row[r] = r % 4 < 3 ? ptx_pin_shared(from + r * a.w) : row[r - 1] + a.w; /* not all: 80 registers a thread */
        }
#pragma unroll
        for (int j = 0; j < TALL; j++) sum[j] = 0;
#pragma unroll
        for (int s = 0; s < 3; s++) {
            if ((uint32_t)(left + s) >= (uint32_t)a.w) continue;
            float weights[3];
#pragma unroll
            for (int k = 0; k < 3; k++) weights[k] = __ldg(filter + 3 * k + s);
#pragma unroll
            for (int r = 0; r < TALL + 2; r++) {
                bool there = (r >= 2 || top + r >= 0) && (r < TALL || top + r < a.h);
                float v = there ? row[r][s] : 0;
#pragma unroll
                for (int k = 0; k < 3; k++) /* the output row for which this one is tap row k */
                    if (r - k >= 0 && r - k < TALL && there) sum[r - k] = fmaf(v, weights[k], sum[r - k]);
            }
        }
        float bias = weft__epilogue_biased() ? __ldg(a.bias + channel) : 0;
        float *to = out + ((int)plane * a.oh + y) * a.ow + x;
#pragma unroll
        for (int j = 0; j < TALL; j++) to[j * a.ow] = weft__epilogue_apply(a.epilogue, bias, sum[j]);
    }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, 1) dwconv3x3(const __grid_constant__ dwconv_args a) {
    extern __shared__ __align__(128) float smem[];
    __shared__ uint64_t arrival[MAX_STAGES];
    float *outs = smem + a.stages * a.in_slot;
    if (threadIdx.x == 0) {
        for (int s = 0; s < MAX_STAGES; s++) arrival_init(&arrival[s]);
        fence_async();
    }
    __syncthreads();
    for (int s = 0; s < a.stages && blockIdx.x + s * gridDim.x < a.units; s++)
        load(a, blockIdx.x + s * gridDim.x, smem + s * a.in_slot, &arrival[s]);
    __syncthreads();
    uint32_t parity = 0;
    int stage = 0;
    bool odd = false; /* which of the two output slots; without BULK there is one */
    for (uint32_t u = blockIdx.x; u < a.units; u += gridDim.x) {
        unit t = unit_of(a, u);
        float *in_slot = smem + stage * a.in_slot, *out_slot = outs + (BULK && odd ? a.out_slot : 0);
        const float *in = in_slot + span_shift(a.src, (t.first * (uint32_t)a.h + (uint32_t)t.lo) * (uint32_t)a.w);
        float *out = out_slot + span_shift(a.dst, (t.first * (uint32_t)a.oh + (uint32_t)t.y0) * (uint32_t)a.ow);
        arrival_wait(&arrival[stage], parity);
        if (a.tall == 14)
            compute<14>(a, t, in, out);
        else if (a.tall == 7)
            compute<7>(a, t, in, out);
        else if (a.tall == 4)
            compute<4>(a, t, in, out);
        else
            compute<1>(a, t, in, out);
        span_store_wait(); /* the other output slot is free */
        fence_async();
        __syncthreads(); /* this one is full, the input slot is free */
        store(a, t, out_slot);
        uint32_t next = u + (uint32_t)a.stages * gridDim.x;
        if (next < a.units) load(a, next, in_slot, &arrival[stage]);
        if (!BULK) __syncthreads(); /* one slot each: the store has read its own, the load has filled its own */
        if (++stage == a.stages) {
            stage = 0;
            parity ^= 1;
        }
        odd = !odd;
    }
    span_store_wait(); /* shared memory must outlive the copies that read it */
}
#endif
