/* softmax and log-softmax of channels-last data into a channels-first result, as PyTorch lays it out, and the gradient
 * where diff_dst is channels-last and the others are channels-first; f32, bf16, f16.
 * Math:      as in src/ref/softmax.h
 * Blocking:  a tile of up to 256 pixels in 256 KB of the slot. Forward: the rows of VF_LANES pixels, channels in lanes,
 *            whose greatest and sums are transposed once and then found for all of them; from the tile squares of lanes
 *            are transposed, scaled and go to the planes; up to 48 channels are transposed first (turn.h). Gradient:
 *            squares of diff_dst are transposed into the tile, pixels in lanes, and added up with dst; then the result
 * Traffic:   each tensor once, tiles from the second-level cache; large outputs are streamed, lines of 1 KB a channel
 * Roofline:  bandwidth / 8 (forward) or 12 (gradient) elements per second in f32
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 8x256x56x56 f32: tiles of 64 pixels and a sweep of their
 *            own for the scale 0.32 of the copy forward, these 0.48
 * Assumes:   tensors dense and of one type; up to 1024 channels
 * Try:       weft bench softmax2d:fwd:f32:nhwc,dst=nchw:n8c256h56w56
 *            weft bench softmax2d:bwd:f32:nchw,diff_dst=nhwc:n8c256h56w56 */
#include "cpu/softmax/turn.h"

enum { KEEP = 65536, PIXELS = 256, SLOTS = 32 };

typedef struct turned {
    const void *x, *dy; /* x: of the gradient dst */
    void *out;
    float *kept;                                           /* KEEP of each slot */
    int64_t images, channels, inner, pixels, tiles, slots; /* pixels of a tile, tiles of an image */
    bool stream, few;
} turned;

/* A run of `left` pixels of one channel. */
VF_INLINE void put(const turned *q, const int dtype, int64_t at, vf v, int64_t left) {
    if (q->stream && left >= VF_LANES && run_head(dtype, q->out, at, 1) == 0)
        run_store(dtype, q->out, at, v, left, true);
    else
        run_store(dtype, q->out, at, v, left, false);
}

/* ---------------------------------------------------------------- forward */
/* VF_LANES results of one vector each: the greatest of every one, or the sum. */
VF_INLINE vf by_pixel(vf v[VF_LANES], const bool sum) {
    vf_transpose(v);
    VF_UNROLL for (int step = VF_LANES / 2; step > 0; step /= 2) {
        VF_UNROLL for (int k = 0; k < step; k++) v[k] = sum ? vf_add(v[k], v[k + step]) : vf_max(v[k], v[k + step]);
    }
    return v[0];
}

/* Rows of `count` pixels: exponentials, or distances from the greatest, into `to`; the sums by pixel. */
VF_INLINE vf rows(const turned *q, const int dtype, const bool log, int64_t at, int64_t count, float *to,
                  int64_t pitch) {
    const int64_t n = q->channels;
    float greatest[VF_LANES];
    vf v[VF_LANES];
    for (int64_t i = 0; i < VF_LANES; i++) v[i] = i < count ? row_most(dtype, q->x, at + i * n, n) : vf_zero();
    vf_store(greatest, by_pixel(v, false));
    for (int64_t i = 0; i < VF_LANES; i++) {
        float *row = to + i * pitch;
        v[i] = i < count ? row_exp_lanes(dtype, q->x, at + i * n, n, greatest[i], log ? NULL : row) : vf_set1(1);
        for (int64_t c = 0; log && i < count && c < n; c += VF_LANES)
            vf_store(row + c, vf_sub(run_load(dtype, q->x, at + i * n + c, n - c), vf_set1(greatest[i])));
    }
    return by_pixel(v, true);
}

/* A square of lanes: `count` channels of `left` pixels. */
VF_INLINE void square(const turned *q, const int dtype, const bool log, const float *from, int64_t pitch, vf scale,
                      int64_t at, int64_t count, int64_t left) {
    vf v[VF_LANES];
    VF_UNROLL for (int k = 0; k < VF_LANES; k++) v[k] = vf_load(from + k * pitch);
    vf_transpose(v);
    for (int64_t k = 0; k < VF_LANES && k < count; k++, at += q->inner)
        put(q, dtype, at, log ? vf_sub(v[k], scale) : vf_mul(v[k], scale), left);
}

VF_INLINE void forward(const turned *q, const int dtype, const bool log, int64_t image, int64_t first, int64_t count,
                       float *kept) {
    const int64_t n = q->channels, pitch = cpu_round_up(n, 16) + 16; /* rows of a square in several sets of the cache */
    _Alignas(64) float scale[PIXELS];
    for (int64_t i = 0; i < count; i += VF_LANES) {
        const vf sum = rows(q, dtype, log, (image * q->inner + first + i) * n, WEFT__MIN(count - i, VF_LANES),
                            kept + i * pitch, pitch);
        vf_store(scale + i, log ? vf_log(sum) : vf_div(vf_set1(1), sum));
    }
    for (int64_t c = 0; c < n; c += VF_LANES)
        for (int64_t i = 0; i < count; i += VF_LANES)
            square(q, dtype, log, kept + i * pitch + c, pitch, vf_load(scale + i),
                   (image * n + c) * q->inner + first + i, n - c, count - i);
}

/* The same with pixels in the lanes, for few channels. */
static void compute_few(float *kept, int64_t pitch, int64_t channels, int64_t count, bool log) {
    if (log)
        turn_softmax(true, kept, pitch, channels, count);
    else
        turn_softmax(false, kept, pitch, channels, count);
}
VF_INLINE void forward_few(const turned *q, const int dtype, const bool log, int64_t image, int64_t first,
                           int64_t count, float *kept) {
    const int64_t n = q->channels, pitch = q->pixels + 16, plane = image * n * q->inner + first;
    turn_in(dtype, q->x, (image * q->inner + first) * n, n, count, kept, pitch);
    compute_few(kept, pitch, n, count, log);
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < count; i += VF_LANES)
            put(q, dtype, plane + c * q->inner + i, vf_load(kept + c * pitch + i), count - i);
}

/* ---------------------------------------------------------------- gradient */
/* diff_dst of `count` channels from c on and `left` pixels into the tile, pixels in lanes; the sum with these terms. */
VF_INLINE vf turn(const turned *q, const int dtype, const bool log, int64_t from, int64_t at, float *to, int64_t pitch,
                  int64_t count, int64_t left, vf sum) {
    vf v[VF_LANES];
    for (int64_t k = 0; k < VF_LANES; k++)
        v[k] = k < left ? run_load(dtype, q->dy, from + k * q->channels, count) : vf_zero();
    vf_transpose(v);
    for (int64_t k = 0; k < VF_LANES && k < count; k++, at += q->inner) {
        vf_store(to + k * pitch, v[k]);
        sum = log ? vf_add(sum, v[k]) : vf_fma(run_load(dtype, q->x, at, left), v[k], sum);
    }
    return sum;
}

VF_INLINE void backward(const turned *q, const int dtype, const bool log, int64_t image, int64_t first, int64_t count,
                        float *kept) {
    const int64_t n = q->channels, pitch = cpu_round_up(q->pixels, 16) + 16, plane = image * n * q->inner + first;
    _Alignas(64) float sums[PIXELS];
    for (int64_t i = 0; i < count; i += VF_LANES) {
        vf sum = vf_zero();
        for (int64_t c = 0; c < n; c += VF_LANES)
            sum = turn(q, dtype, log, (image * q->inner + first + i) * n + c, plane + c * q->inner + i,
                       kept + c * pitch + i, pitch, n - c, count - i, sum);
        vf_store(sums + i, sum);
    }
    for (int64_t c = 0; c < n; c++)
        for (int64_t i = 0; i < count; i += VF_LANES) {
            const int64_t at = plane + c * q->inner + i;
            const vf y = run_load(dtype, q->x, at, count - i), dy = vf_load(kept + c * pitch + i),
                     s = vf_load(sums + i);
            put(q, dtype, at, log ? vf_fnma(vf_exp(y), s, dy) : vf_mul(y, vf_sub(dy, s)), count - i);
        }
}

/* ---------------------------------------------------------------- driver */
VF_INLINE void tiles(const turned *q, int64_t slot, const int dtype, const bool log, const bool bwd) {
    float *kept = q->kept + slot * KEEP;
    const int64_t items = q->images * q->tiles, last = cpu_first(items, q->slots, slot + 1);
    for (int64_t item = cpu_first(items, q->slots, slot); item < last; item++) {
        const int64_t image = item / q->tiles, first = item % q->tiles * q->pixels;
        const int64_t count = WEFT__MIN(q->pixels, q->inner - first);
        if (bwd)
            backward(q, dtype, log, image, first, count, kept);
        else if (q->few)
            forward_few(q, dtype, log, image, first, count, kept);
        else
            forward(q, dtype, log, image, first, count, kept);
    }
    if (q->stream) vf_stream_end();
}

LINES_TASKS(tasks);

static weft_status run(const weft__exec *e) {
    const bool bwd = e->p->pass == WEFT_PASS_BWD, log = e->p->op == WEFT_OP_LOG_SOFTMAX;
    turned q = *(const turned *)e->params;
    q.x = e->ptr[bwd ? WEFT_ROLE_DST : WEFT_ROLE_SRC];
    q.dy = e->ptr[WEFT_ROLE_DIFF_DST];
    q.out = e->ptr[bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.kept = e->workspace;
    weft__parallel(e->ctx, q.slots, tasks[e->p->tensor[0].dtype][log][bwd], &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- plan */
static bool only(const weft_tensor *t, bool last) {
    return last ? weft__is_last(t) && !weft__is_first(t) : weft__is_first(t) && !weft__is_last(t);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    turned *q = WEFT__PARAMS(turned, d);
    const bool bwd = p->pass == WEFT_PASS_BWD, log = p->op == WEFT_OP_LOG_SOFTMAX;
    (void)variant;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        const bool last = t->role == (bwd ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC);
        if (!only(t, last)) return "not from channels-last to channels-first";
    }
    if (!lines_same_type(p, ~UINT64_C(0))) return "tensors of several data types";
    if (p->c > 1024) return "more than 1024 channels";
    q->images = p->n, q->channels = p->c, q->inner = p->in[0] * p->in[1] * p->in[2];
    const int64_t channels = cpu_round_up(p->c, 16) + 16; /* a tile is rows of that, or channels of its pixels and 16 */
    q->pixels = WEFT__MIN(PIXELS, KEEP / channels / 16 * 16);
    if (bwd) q->pixels = WEFT__MIN(PIXELS, (KEEP / channels - 16) / 16 * 16);
    q->tiles = cpu_ceil(q->inner, q->pixels);
    q->few = !bwd && p->c <= TURN_MOST;
    const double bytes = weft__bytes(p), lanes = q->few ? 1 : (double)cpu_round_up(p->c, VF_LANES) / (double)p->c;
    q->slots = WEFT__MIN(cpu_slots(q->images * q->tiles, bytes), SLOTS);
    d->workspace = (size_t)q->slots * KEEP * sizeof(float);
    q->stream = VF_LANES == 16 && cpu_streams(hw, bytes / (bwd ? 3 : 2));
    const double elements = weft__flops(p) / 5; /* the gradient computes with pixels in lanes */
    d->ns = bwd ? lines_cost(hw, bytes, elements, log ? 1 : 0, 4 + lanes, q->slots)
                : lines_cost(hw, bytes, elements * lanes, 1, 6, q->slots);
    return NULL;
}

#define TURNED(NAME, name_)                                                            \
    WEFT__KERNEL(name_##_turned) = {                                                   \
        .name = WEFT__NAME(#name_ "_turned"),                                          \
        .version = 3,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .bound = 4,                                                                    \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
TURNED(SOFTMAX, softmax);
TURNED(LOG_SOFTMAX, log_softmax);
