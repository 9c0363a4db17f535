/* softmax and log-softmax of channels-last data into a channels-first result, as PyTorch lays it out; f32, bf16, f16.
 * Math:      as in src/ref/softmax.h
 * Blocking:  the rows of up to 64 pixels, channels in lanes, into 64 KB of the slot; from there squares of lanes are
 *            transposed and go to the planes
 * Traffic:   each tensor once; large outputs are streamed
 * Roofline:  bandwidth / 8 elements per second in f32
 * Assumes:   src dense channels-last, dst dense channels-first, of one type; up to 1024 channels
 * Try:       weft bench softmax2d:fwd:f32:nhwc,dst=nchw:n8c256h56w56 */
#include "cpu/softmax/lines.h"

enum { KEEP = 16384, PIXELS = 64, SLOTS = 32 };

typedef struct turned {
    const void *x;
    void *out;
    float *kept;                                           /* KEEP of each slot */
    int64_t images, channels, inner, pixels, tiles, slots; /* pixels of a tile, tiles of an image */
    bool stream;
} turned;

/* One row into `to`, whole vectors. */
VF_INLINE void row(const turned *q, const int dtype, const bool log, int64_t at, float *to) {
    const int64_t n = q->channels;
    const float m = row_greatest(dtype, q->x, at, n), sum = row_exp_sum(dtype, q->x, at, n, m, log ? NULL : to);
    const vf scale = log ? vf_log(vf_set1(sum)) : vf_div(vf_set1(1), vf_set1(sum));
    for (int64_t c = 0; c < n; c += VF_LANES) {
        const vf x = log ? vf_sub(run_load(dtype, q->x, at + c, n - c), vf_set1(m)) : vf_load(to + c);
        vf_store(to + c, log ? vf_sub(x, scale) : vf_mul(x, scale));
    }
}

/* A square of lanes: channels from c on of pixels from i on, of which there are `count` and `left`. */
VF_INLINE void square(const turned *q, const int dtype, const float *from, int64_t pitch, int64_t at, int64_t count,
                      int64_t left) {
    vf v[VF_LANES];
    VF_UNROLL for (int k = 0; k < VF_LANES; k++) v[k] = vf_load(from + k * pitch);
    vf_transpose(v);
    for (int64_t k = 0; k < VF_LANES && k < count; k++, at += q->inner) {
        const bool stream = q->stream && left >= VF_LANES && run_head(dtype, q->out, at, 1) == 0;
        if (stream)
            run_store(dtype, q->out, at, v[k], left, true);
        else
            run_store(dtype, q->out, at, v[k], left, false);
    }
}

VF_INLINE void tiles(const turned *q, int64_t slot, const int dtype, const bool log) {
    float *kept = q->kept + slot * KEEP;
    const int64_t items = q->images * q->tiles, last = cpu_first(items, q->slots, slot + 1), n = q->channels;
    const int64_t pitch = cpu_round_up(n, VF_LANES);
    for (int64_t item = cpu_first(items, q->slots, slot); item < last; item++) {
        const int64_t image = item / q->tiles, first = item % q->tiles * q->pixels;
        const int64_t count = WEFT__MIN(q->pixels, q->inner - first);
        for (int64_t i = 0; i < count; i++) row(q, dtype, log, ((image * q->inner + first) + i) * n, kept + i * pitch);
        for (int64_t c = 0; c < n; c += VF_LANES)
            for (int64_t i = 0; i < count; i += VF_LANES)
                square(q, dtype, kept + i * pitch + c, pitch, (image * n + c) * q->inner + first + i, n - c, count - i);
    }
    if (q->stream) vf_stream_end();
}

#define TILES(type, DTYPE)                                                                        \
    static void soft_##type(void *q, int64_t slot) { tiles(q, slot, WEFT_DTYPE_##DTYPE, false); } \
    static void log_##type(void *q, int64_t slot) { tiles(q, slot, WEFT_DTYPE_##DTYPE, true); }
TILES(f32, F32)
TILES(f16, F16)
TILES(bf16, BF16)

static weft_status run(const weft__exec *e) {
    static const weft_task tasks[WEFT_DTYPE_COUNT][2] = {[WEFT_DTYPE_F32] = {soft_f32, log_f32},
                                                         [WEFT_DTYPE_F16] = {soft_f16, log_f16},
                                                         [WEFT_DTYPE_BF16] = {soft_bf16, log_bf16}};
    turned q = *(const turned *)e->params;
    q.x = e->ptr[WEFT_ROLE_SRC];
    q.out = e->ptr[WEFT_ROLE_DST];
    q.kept = e->workspace;
    weft__parallel(e->ctx, q.slots, tasks[e->p->tensor[0].dtype][e->p->op == WEFT_OP_LOG_SOFTMAX], &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    turned *q = WEFT__PARAMS(turned, d);
    (void)variant;
    const weft_tensor *src = weft__tensor(p, WEFT_ROLE_SRC), *dst = weft__tensor(p, WEFT_ROLE_DST);
    if (!weft__is_last(src) || !weft__is_first(dst)) return "not from channels-last to channels-first";
    if (weft__is_first(src) || weft__is_last(dst)) return "both tensors lie in one order";
    if (!lines_same_type(p, ~UINT64_C(0))) return "tensors of several data types";
    if (p->c > KEEP / 16) return "more than 1024 channels";
    q->images = p->n, q->channels = p->c, q->inner = p->in[0] * p->in[1] * p->in[2];
    q->pixels = WEFT__MIN(PIXELS, KEEP / cpu_round_up(p->c, 16) / 16 * 16);
    q->tiles = cpu_ceil(q->inner, q->pixels);
    const double bytes = weft__bytes(p), lanes = (double)cpu_round_up(p->c, VF_LANES) / (double)p->c;
    q->slots = WEFT__MIN(cpu_slots(q->images * q->tiles, bytes), SLOTS);
    d->workspace = (size_t)q->slots * KEEP * sizeof(float);
    q->stream = VF_LANES == 16 && cpu_streams(hw, bytes / 2);
    d->ns = lines_cost(hw, bytes, weft__flops(p) / 5 * lanes, 1, 6, q->slots) +
            (double)(q->images * q->inner) * (VF_LANES == 4 ? 30 : 15) / (double)WEFT__MIN(hw->threads, q->slots);
    return NULL;
}

#define TURNED(NAME, name_)                                                            \
    WEFT__KERNEL(name_##_turned) = {                                                   \
        .name = WEFT__NAME(#name_ "_turned"),                                          \
        .version = 1,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .passes = WEFT__PASS_SET(FWD),                                                 \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .bound = 4,                                                                    \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
TURNED(SOFTMAX, softmax);
TURNED(LOG_SOFTMAX, log_softmax);
