/* Max, average and adaptive average pooling and their gradients, channels-last, on f32, f16 and bf16.
 * Math:      see src/ref/pool.h. Forward, a pixel of dst is the maximum or mean of pixels of src; backward, a pixel of
 *            diff_src is a sum over the windows that hold it: no place is written twice
 * Blocking:  one output pixel at a time: a list of the input pixels it takes, in the order of taps, then vectors along
 *            the channels, several at once. Pixels shared with neighbours come from the nearest caches
 * Few:       fewer channels than a vector has lanes fill no vector, and a list for each pixel costs more than its sum.
 *            Forward goes by rows as channels-first (first.c), adaptive means by runs of memory; gradients by adding
 *            (scatter.c). Each where its estimate is less: with 2 channels 20 us for 560 (max, 4x4298, window 5)
 * Slots:     runs of output pixels
 * Output:    streamed past the caches where it is large and its pixels are whole cache lines
 * Traffic:   each tensor once: memory-bound for small windows
 * Measured:  8x256x56x56, window 3, stride 2, two cores of an EPYC with AVX-512, caches emptied: 80% of the copy,
 *            average 1.3 and max 1.7 times as fast as PyTorch; with four times the slots, or fetched into the nearest
 *            cache, 60 to 70%
 * Assumes:   all tensors dense channels-last, data of one type; index of any type
 * Try:       weft bench max_pool2d:fwd:f32:nhwc:n8c256h56w56:k3s2p1 avg_pool2d:bwd:f32:nhwc:n8c256h56w56:k3s2p1 */
#include "pool.h"

/* The gradient of a mean by divisors that are all the same, or not. */
typedef enum kind { MAX, MAX_INDEX, MEAN, MAX_GRAD, MEAN_GRAD, MIXED_GRAD } kind;

enum { WIDE = VF_REGS / 4, WIDEST = VF_REGS / 2 }; /* vectors of channels at once; of a plain sum or maximum */
enum { AHEAD = 16 };                               /* pixels from what is read to what is fetched */

typedef struct entry {
    int64_t at;    /* first element of the pixel */
    int32_t name;  /* what the index calls it */
    float divisor; /* of its window */
} entry;

typedef struct params {
    int64_t slots, most;  /* most: entries of a list */
    pool_scatter scatter; /* backward: if it is faster */
    pool_rows rows;       /* forward: if it is faster */
} params;

typedef struct task {
    const weft__exec *e;
    params s;
    const void *in;
    void *out, *index;
    int dtype, index_dtype;
    bool stream, place;
    bool runs;     /* forward: windows are summed by runs of pixels */
    int64_t ahead; /* elements from what is read to what is fetched */
} task;

/* ---------------------------------------------------------------- lists */
/* Along an axis: places or windows first, first + step, ... that an output takes, and tap numbers from `tap` on, up or
 * down. */
typedef struct reach {
    int64_t first, step, count, tap, tap_step;
} reach;

static reach window_reach(const weft_problem *p, int a, int64_t o) {
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) {
        const int64_t first = o * p->in[a] / p->out[a], last = cpu_ceil((o + 1) * p->in[a], p->out[a]);
        return (reach){first, 1, last - first, 0, 1};
    }
    const pool_range r = pool_taps(p, a, o);
    const int64_t d = p->dilation[a];
    return (reach){o * p->stride[a] - p->pad_lo[a] + r.first * d, d, r.last - r.first, r.first, 1};
}

static int64_t counted(const weft_problem *p, int a, int64_t o) {
    return p->op == WEFT_OP_ADAPTIVE_AVG_POOL ? window_reach(p, a, o).count : pool_counted(p, a, o);
}

/* The windows over place x, rising: their taps fall. */
static reach place_reach(const weft_problem *p, int a, int64_t x) {
    reach r = {0, 1, 0, 0, 0};
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) {
        r.first = x * p->out[a] / p->in[a];
        r.count = cpu_ceil((x + 1) * p->out[a], p->in[a]) - r.first;
        return r;
    }
    int64_t previous = -1;
    for (int64_t k = p->kernel[a] - 1; k >= 0; k--) {
        const int64_t at = x + p->pad_lo[a] - k * p->dilation[a], o = at / p->stride[a];
        if (at < 0 || at % p->stride[a] || o >= p->out[a]) continue;
        if (!r.count) r.first = o, r.tap = k;
        if (r.count == 1) r.step = o - previous, r.tap_step = k - r.tap;
        previous = o, r.count++;
    }
    return r;
}

static float divisor_of(const weft_problem *p, int64_t z, int64_t y, int64_t x) {
    if (p->op == WEFT_OP_AVG_POOL && p->attr[WEFT_AVG_POOL_DIVISOR]) return (float)p->attr[WEFT_AVG_POOL_DIVISOR];
    return (float)(counted(p, 0, z) * counted(p, 1, y) * counted(p, 2, x));
}

/* What an output pixel takes of the input pixels of image n, sizes in. place: of the output pixel. */
static int64_t list(const task *q, int64_t n, const reach r[3], const int64_t in[3], bool bwd, int32_t place,
                    entry *to) {
    const weft_problem *p = q->e->p;
    const bool divided = bwd && p->op != WEFT_OP_MAX_POOL;
    int64_t count = 0;
    for (int64_t i = 0; i < r[0].count; i++)
        for (int64_t j = 0; j < r[1].count; j++) {
            const int64_t z = r[0].first + i * r[0].step, y = r[1].first + j * r[1].step;
            int64_t x = r[2].first, pixel = (z * in[1] + y) * in[2] + x;
            int64_t at = (n * in[0] * in[1] * in[2] + pixel) * p->c;
            int64_t tap =
                ((r[0].tap + i * r[0].tap_step) * p->kernel[1] + r[1].tap + j * r[1].tap_step) * p->kernel[2] +
                r[2].tap;
            for (int64_t k = 0; k < r[2].count; k++) {
                to[count++] = (entry){at,
                                      (int32_t)(!q->place ? tap
                                                : bwd     ? place
                                                          : pixel),
                                      divided ? divisor_of(p, z, y, x) : 1};
                x += r[2].step, pixel += r[2].step, at += r[2].step * p->c, tap += r[2].tap_step;
            }
        }
    return count;
}

/* ---------------------------------------------------------------- pixels */
/* Into the second cache, which waits for more lines at a time than the nearest. */
VF_INLINE void fetch(const void *base, int64_t bytes) {
    __builtin_prefetch((const void *)((uintptr_t)base + (uintptr_t)bytes), 0, 2);
}

/* Channels c .. of an output pixel at `at`: nv vectors, the last of them of n lanes. */
VF_INLINE void channels(const task *q, const entry *list, int64_t count, float divisor, int64_t at, int64_t c,
                        int64_t n, const int nv, const kind k, const int dtype) {
    vf best[WIDEST];
    vi index[WIDEST];
    VF_UNROLL for (int v = 0; v < nv; v++) {
        best[v] = vf_set1(k == MAX || k == MAX_INDEX ? -INFINITY : 0);
        index[v] = vi_set1(list[0].name);
    }
    for (int64_t t = 0; t < count; t++) VF_UNROLL for (int v = 0; v < nv; v++) {
            const int64_t from = list[t].at + c + v * VF_LANES;
            if (k == MEAN || k == MAX) fetch(q->in, (from + q->ahead) * vf_size_of(dtype));
            vf x = n == VF_LANES ? vf_load_as(dtype, q->in, from) : vf_load_count_as(dtype, q->in, from, n);
            if (k == MAX) {
                best[v] = vf_max_nan(best[v], x);
            } else if (k == MAX_INDEX) {
                const vmask greater = vm_or(vf_gt(x, best[v]), vf_is_nan(x));
                best[v] = vf_select(greater, x, best[v]);
                index[v] = vi_select(greater, vi_set1(list[t].name), index[v]);
            } else if (k == MAX_GRAD) {
                const vmask mine = vi_eq(pool_index(q->index, q->index_dtype, from, n), vi_set1(list[t].name));
                best[v] = vf_add(best[v], vf_select(mine, x, vf_zero()));
            } else {
                if (k == MIXED_GRAD) x = vf_div(x, vf_set1(list[t].divisor));
                best[v] = vf_add(best[v], x);
            }
        }
    VF_UNROLL for (int v = 0; v < nv; v++) {
        const int64_t to = at + c + v * VF_LANES;
        if (k == MEAN || k == MEAN_GRAD) best[v] = vf_div(best[v], vf_set1(divisor));
        if (q->stream)
            vf_stream_as(dtype, q->out, to, best[v]);
        else if (n == VF_LANES)
            vf_store_as(dtype, q->out, to, best[v]);
        else
            vf_store_count_as(dtype, q->out, to, best[v], n);
        if (k == MAX_INDEX) pool_put_index(q->index, q->index_dtype, to, index[v], n);
    }
}

VF_INLINE void pixel(const task *q, const entry *list, int64_t count, float divisor, int64_t at, const kind k,
                     const int dtype) {
    int64_t c = 0;
    if (k == MAX || k == MEAN)
        for (; c + WIDEST * VF_LANES <= q->e->p->c; c += WIDEST * VF_LANES)
            channels(q, list, count, divisor, at, c, VF_LANES, WIDEST, k, dtype);
    for (; c + WIDE * VF_LANES <= q->e->p->c; c += WIDE * VF_LANES)
        channels(q, list, count, divisor, at, c, VF_LANES, WIDE, k, dtype);
    for (; c + VF_LANES <= q->e->p->c; c += VF_LANES) channels(q, list, count, divisor, at, c, VF_LANES, 1, k, dtype);
    if (c < q->e->p->c) channels(q, list, count, divisor, at, c, q->e->p->c - c, 1, k, dtype);
}

#define PIXEL(type)                                                                                                \
    static void pixel_##type(const task *q, const entry *list, int64_t count, float divisor, int64_t at, kind k) { \
        switch (k) {                                                                                               \
        case MAX:                                                                                                  \
            pixel(q, list, count, divisor, at, MAX, WEFT_DTYPE_##type);                                            \
            break;                                                                                                 \
        case MAX_INDEX:                                                                                            \
            pixel(q, list, count, divisor, at, MAX_INDEX, WEFT_DTYPE_##type);                                      \
            break;                                                                                                 \
        case MAX_GRAD:                                                                                             \
            pixel(q, list, count, divisor, at, MAX_GRAD, WEFT_DTYPE_##type);                                       \
            break;                                                                                                 \
        case MIXED_GRAD:                                                                                           \
            pixel(q, list, count, divisor, at, MIXED_GRAD, WEFT_DTYPE_##type);                                     \
            break;                                                                                                 \
        default:                                                                                                   \
            pixel(q, list, count, divisor, at, MEAN, WEFT_DTYPE_##type);                                           \
        }                                                                                                          \
    }
PIXEL(F32)
PIXEL(F16)
PIXEL(BF16)

/* A mean of adaptive pooling with few channels: the pixels of a row are one run of memory. After as many vectors as
 * there are channels a lane has the same channel again. */
VF_INLINE void mean_of_runs(const task *q, int64_t n, const reach r[3], float divisor, int64_t to, const int dtype) {
    const weft_problem *p = q->e->p;
    const int64_t c = p->c, size = r[2].count * c, turn = c * VF_LANES;
    float lanes[VF_LANES * VF_LANES] = {0}, sums[VF_LANES] = {0};
    for (int64_t i = 0; i < r[0].count; i++)
        for (int64_t j = 0; j < r[1].count; j++) {
            const int64_t row = (n * p->in[0] + r[0].first + i) * p->in[1] + r[1].first + j;
            const int64_t at = (row * p->in[2] + r[2].first) * c;
            for (int64_t v = 0; v < turn && v < size; v += VF_LANES) {
                vf sum = vf_load(lanes + v);
                int64_t x = v;
                for (; x + VF_LANES <= size; x += turn) sum = vf_add(sum, vf_load_as(dtype, q->in, at + x));
                if (x < size) sum = vf_add(sum, vf_load_count_as(dtype, q->in, at + x, size - x));
                vf_store(lanes + v, sum);
            }
        }
    for (int64_t k = 0; k < turn; k += c)
        for (int64_t m = 0; m < c; m++) sums[m] += lanes[k + m];
    vf_store_count_as(dtype, q->out, to, vf_div(vf_load(sums), vf_set1(divisor)), c);
}

static void mean_of_runs_any(const task *q, int64_t n, const reach r[3], float divisor, int64_t to) {
    if (q->dtype == WEFT_DTYPE_F32)
        mean_of_runs(q, n, r, divisor, to, WEFT_DTYPE_F32);
    else if (q->dtype == WEFT_DTYPE_F16)
        mean_of_runs(q, n, r, divisor, to, WEFT_DTYPE_F16);
    else
        mean_of_runs(q, n, r, divisor, to, WEFT_DTYPE_BF16);
}

/* Are windows some vectors long? */
static bool by_runs(const weft_problem *p) {
    return p->op == WEFT_OP_ADAPTIVE_AVG_POOL && p->pass == WEFT_PASS_FWD && p->c <= VF_LANES && p->out[2] > 0 &&
           p->in[2] / p->out[2] * p->c >= 2 * VF_LANES;
}

/* How the pixel z, y, x of the output is made of its list; for a mean by one divisor also that. */
static kind kind_of(const task *q, const entry *list, int64_t count, const int64_t at[3], float *divisor) {
    const weft_problem *p = q->e->p;
    const bool bwd = p->pass == WEFT_PASS_BWD;
    if (p->op == WEFT_OP_MAX_POOL) return bwd ? MAX_GRAD : q->index ? MAX_INDEX : MAX;
    *divisor = !bwd ? divisor_of(p, at[0], at[1], at[2]) : count ? list[0].divisor : 1;
    for (int64_t t = 1; bwd && t < count; t++)
        if (list[t].divisor != *divisor) return MIXED_GRAD;
    return bwd ? MEAN_GRAD : MEAN;
}

static void pixels(void *arg, int64_t slot) {
    const task *q = arg;
    const weft_problem *p = q->e->p;
    const bool bwd = p->pass == WEFT_PASS_BWD;
    const int64_t *in = bwd ? p->out : p->in, *out = bwd ? p->in : p->out, per_image = out[0] * out[1] * out[2];
    entry *to = (entry *)q->e->workspace + slot * q->s.most;
    reach r[3] = {0};
    int64_t last[3] = {-1, -1, -1}; /* what r is for */
    const int64_t end = cpu_first(p->n * per_image, q->s.slots, slot + 1);
    for (int64_t i = cpu_first(p->n * per_image, q->s.slots, slot); i < end; i++) {
        const int64_t at[3] = {i % per_image / (out[1] * out[2]), i % (out[1] * out[2]) / out[2], i % out[2]};
        for (int a = 0; a < 3; a++)
            if (at[a] != last[a]) r[a] = bwd ? place_reach(p, a, at[a]) : window_reach(p, a, at[a]), last[a] = at[a];
        if (q->runs) {
            mean_of_runs_any(q, i / per_image, r, divisor_of(p, at[0], at[1], at[2]), i * p->c);
            continue;
        }
        const int64_t count = list(q, i / per_image, r, in, bwd, (int32_t)(i % per_image), to);
        float divisor = 1;
        const kind k = kind_of(q, to, count, at, &divisor);
        if (q->dtype == WEFT_DTYPE_F32)
            pixel_F32(q, to, count, divisor, i * p->c, k);
        else if (q->dtype == WEFT_DTYPE_F16)
            pixel_F16(q, to, count, divisor, i * p->c, k);
        else
            pixel_BF16(q, to, count, divisor, i * p->c, k);
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- the record */
static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool bwd = p->pass == WEFT_PASS_BWD;
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    const weft_tensor *out = weft__tensor(p, bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST);
    task q = {.e = e, .s = *(const params *)e->params, .dtype = out->dtype};
    if (q.s.scatter.slots) return WEFT__ISA_NAME(weft__pool_scatter_run)(e, &q.s.scatter), WEFT_OK;
    if (q.s.rows.slots) return WEFT__ISA_NAME(weft__pool_rows_run)(e, &q.s.rows), WEFT_OK;
    q.in = e->ptr[bwd ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC], q.out = e->ptr[out->role];
    q.index = index ? e->ptr[WEFT_ROLE_INDEX] : NULL, q.index_dtype = index ? index->dtype : WEFT_DTYPE_U8;
    q.place = q.index_dtype != WEFT_DTYPE_U8;
    const int64_t size = (int64_t)weft__dtype_size(out->dtype);
    q.stream =
        cpu_streams(e->hw, (double)(weft__numel(out) * size)) && p->c * size % 64 == 0 && (uintptr_t)q.out % 64 == 0;
    q.ahead = AHEAD * p->c;
    q.runs = by_runs(p);
    weft__parallel(e->ctx, q.s.slots, pixels, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const bool bwd = p->pass == WEFT_PASS_BWD, adaptive = p->op == WEFT_OP_ADAPTIVE_AVG_POOL;
    const char *reason = adaptive ? NULL : pool_refusal(p);
    if (!reason) reason = pool_layout_refusal(p, WEFT_LAYOUT_LAST);
    if (reason) return reason;
    double most = 1, taps = 1; /* at most, and on average */
    for (int a = 0; a < 3; a++) {
        const double in = (double)p->in[a], out = (double)p->out[a], k = (double)p->kernel[a], s = (double)p->stride[a];
        most *= adaptive ? (bwd ? out / in : in / out) + 2 : bwd ? k * (double)p->dilation[a] / s + 1 : k;
        taps *= adaptive ? WEFT__MAX(bwd ? out / in : in / out, 1) : bwd ? WEFT__MAX(k / s, 1) : k;
    }
    if (most > 1 << 16) return "a list of over 65536 pixels";
    params *s = WEFT__PARAMS(params, d);
    const int64_t pixels = weft__numel(weft__tensor(p, bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST)) / WEFT__MAX(p->c, 1);
    s->most = (int64_t)most + 1;
    const int64_t rows = pixels / (bwd ? p->in[2] : p->out[2]); /* several to a slot: neighbours share what they read */
    s->slots = WEFT__MIN(cpu_slots(pixels, weft__bytes(p)), WEFT__MAX(32, rows / 6));
    d->workspace = (size_t)(s->slots * s->most) * sizeof(entry);
    const double each = weft__tensor(p, WEFT_ROLE_INDEX) ? 2.5 : 0.8, vectors = (double)cpu_ceil(p->c, VF_LANES);
    double ns = (double)pixels * (taps * (2 + each * vectors) + 20 + (each > 1 ? 2 : 1) * vectors);
    if (by_runs(p)) ns = (double)pixels * (40 + (double)p->c * VF_LANES + 1.5 * taps * (double)p->c / VF_LANES);
    d->ns = pool_cost(p, hw, s->slots, ns);
    memset(&s->rows, 0, sizeof(s->rows));
    if (!bwd && !adaptive) WEFT__ISA_NAME(weft__pool_rows_plan)(p, hw, &s->rows, d);
    s->scatter.slots = 0;
    if (bwd) WEFT__ISA_NAME(weft__pool_scatter_plan)(p, hw, true, &s->scatter, d);
    return NULL;
}

POOL_RECORD(MAX_POOL, max_pool_fwd_nhwc, "max_pool_fwd_nhwc_wide", FWD, true);
POOL_RECORD(MAX_POOL, max_pool_bwd_nhwc, "max_pool_bwd_nhwc_wide", BWD, true);
POOL_RECORD(AVG_POOL, avg_pool_fwd_nhwc, "avg_pool_fwd_nhwc_wide", FWD, true);
POOL_RECORD(AVG_POOL, avg_pool_bwd_nhwc, "avg_pool_bwd_nhwc_wide", BWD, false);
POOL_RECORD(ADAPTIVE_AVG_POOL, adaptive_avg_pool_fwd_nhwc, "adaptive_avg_pool_fwd_nhwc_wide", FWD, false);
POOL_RECORD(ADAPTIVE_AVG_POOL, adaptive_avg_pool_bwd_nhwc, "adaptive_avg_pool_bwd_nhwc_wide", BWD, false);
