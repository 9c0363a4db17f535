/* relu, clip, tanh, sigmoid: forward, and the gradient from the output, on f32, f16 and bf16. See src/ref/pointwise.h.
 * Math:      y = clip(x) or tanh(x) or sigmoid(x); dx = dy where lo < y < hi, dy (1 - y)(1 + y), dy y (1 - y)
 * Blocking:  one vector at a time along memory; slots of whole cache lines
 * Output:    streamed past the caches where it is large and not written in place
 * Traffic:   each tensor once: memory-bound, but for tanh and sigmoid of 16-bit data in cache
 * Roofline:  bandwidth / bytes. 8x256x56x56 on two cores of an EPYC with AVX-512, share of the floor and ratio to
 *            PyTorch: relu 83%, 1.40; clip 85%, 1.37; tanh 55%, 5.2 (with its gradient 69%, 2.4); sigmoid 75%, 1.2
 * Assumes:   all tensors dense in one order and of one data type
 * Try:       weft bench tanh2d:fwd:f32:nchw:n8c64h56w56 */
#include "span.h"

typedef struct job {
    span_args a;
    int64_t count, slots;
} job;

VF_INLINE void part(const job *q, int64_t slot, const span_kind s, const bool bwd, const int dtype) {
    const int64_t lines = cpu_ceil(q->count, SPAN_LINE), end = SPAN_LINE * cpu_first(lines, q->slots, slot + 1);
    span_run(&q->a, SPAN_LINE * cpu_first(lines, q->slots, slot), WEFT__MIN(q->count, end), s, bwd, dtype);
    if (q->a.stream) vf_stream_end();
}

/* ---------------------------------------------------------------- one function per kind, pass and type */
#define PART(s, pass, type)                                                            \
    static void part_##s##_##pass##_##type(void *q, int64_t slot) {                    \
        part(q, slot, SPAN_##s, WEFT_PASS_##pass == WEFT_PASS_BWD, WEFT_DTYPE_##type); \
    }
#define PARTS(s) \
    PART(s, FWD, F32) PART(s, FWD, F16) PART(s, FWD, BF16) PART(s, BWD, F32) PART(s, BWD, F16) PART(s, BWD, BF16)
PARTS(CLIP)
PARTS(TANH)
PARTS(SIGMOID)
#define TYPES_OF(s, pass)                        \
    {[WEFT_DTYPE_F32] = part_##s##_##pass##_F32, \
     [WEFT_DTYPE_F16] = part_##s##_##pass##_F16, \
     [WEFT_DTYPE_BF16] = part_##s##_##pass##_BF16}
#define PASSES_OF(s) {TYPES_OF(s, FWD), TYPES_OF(s, BWD)}
static const weft_task parts[SPAN_MERGE][2][WEFT_DTYPE_COUNT] = {
    [SPAN_CLIP] = PASSES_OF(CLIP), [SPAN_TANH] = PASSES_OF(TANH), [SPAN_SIGMOID] = PASSES_OF(SIGMOID)};

static span_kind kind_of(const weft_problem *p) {
    return p->op == WEFT_OP_TANH ? SPAN_TANH : p->op == WEFT_OP_SIGMOID ? SPAN_SIGMOID : SPAN_CLIP;
}

/* ---------------------------------------------------------------- the driver */
/* The gradient compares with bounds in double: y <= lo for a float y is y <= the last float up to lo. */
static float float_below(double v) {
    const float f = (float)v;
    return (double)f > v ? nextafterf(f, -INFINITY) : f;
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool bwd = p->pass == WEFT_PASS_BWD, clip = p->op == WEFT_OP_CLIP;
    const double lo = clip ? p->real[WEFT_CLIP_LO] : 0, hi = p->real[WEFT_CLIP_HI];
    job q = {.a = {.in = e->ptr[bwd ? WEFT_ROLE_DST : WEFT_ROLE_SRC],
                   .diff = {bwd ? e->ptr[WEFT_ROLE_DIFF_DST] : NULL},
                   .out = e->ptr[bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST]},
             .count = weft__numel(p->tensor)};
    q.a.lo = bwd ? float_below(lo) : (float)lo;
    q.a.hi = clip ? bwd ? -float_below(-hi) : (float)hi : bwd ? NAN : INFINITY; /* above NaN is nothing */
    q.slots = cpu_slots(cpu_ceil(q.count, SPAN_LINE), weft__bytes(p));
    const double out = (double)q.count * (double)vf_size_of(p->tensor[0].dtype);
    q.a.stream = cpu_streams(e->hw, out) && q.a.out != q.a.in && q.a.out != q.a.diff[0];
    weft__parallel(e->ctx, q.slots, parts[kind_of(p)][bwd][p->tensor[0].dtype], &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const double tanh = VF_LANES >= 16 ? 35 : VF_LANES >= 8 ? 60 : 110; /* measured, in multiply-adds' time */
    const double smooth = kind_of(p) == SPAN_SIGMOID ? 0.7 * tanh : tanh;
    const double each = p->pass == WEFT_PASS_FWD && kind_of(p) != SPAN_CLIP ? smooth : 4;
    d->ns = cpu_cost(hw, weft__bytes(p), each * (double)weft__numel(p->tensor), 1);
    return span_refusal(p);
}

#define POINTWISE(NAME, word, exact_)                                                  \
    WEFT__KERNEL(word) = {                                                             \
        .name = WEFT__NAME(#word "_1v"),                                               \
        .version = 2,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .exact = exact_,                                                               \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
POINTWISE(RELU, relu, true);
POINTWISE(CLIP, clip, true);
POINTWISE(TANH, tanh, false);
POINTWISE(SIGMOID, sigmoid, false);
