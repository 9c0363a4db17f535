/* NCReLU: forward, and the gradient from the input, on f32, f16 and bf16. See src/ref/ncrelu.h.
 * Math:      dst = cat(max(src, 0), min(src, 0)) along the channels; diff_src = the gradient of the part x is in
 * Blocking:  src is rows that become two rows each: c d h w of an image channels-first, c of a pixel channels-last.
 *            Forward in blocks of 1024 elements, which give the positive part, and then the negative one from cache
 * Output:    streamed past the caches where it is large: a third of the traffic is not reading it first
 * Traffic:   three tensors' worth forward, four backward: memory-bound
 *            8x256x56x56 on two cores of an EPYC with AVX-512: 75% of the floor, with the gradient 77%; 2.5 and 6.7
 *            times as fast as PyTorch's two clamps and cat
 * Assumes:   all tensors dense in one order and of one data type
 * Try:       weft bench ncrelu2d:fwd:f32:nchw:n8c256h56w56 ncrelu2d:bwd:f32:nchw:n8c256h56w56 */
#include "span.h"

typedef struct job {
    span_args a;
    int64_t count, length, slots; /* elements of src, and of its rows */
} job;

enum { BLOCK = 1024 };

VF_INLINE const void *at(const void *p, int64_t index, const int dtype) {
    return (const char *)p + index * vf_size_of(dtype);
}

/* Elements i .. end - 1 of src, all of one row; shift: elements between a row of src and its positive part. */
VF_INLINE void split(const job *q, int64_t i, int64_t end, int64_t shift, const int dtype) {
    span_args positive = q->a, negative = q->a;
    positive.out = (char *)q->a.out + shift * vf_size_of(dtype), positive.lo = 0, positive.hi = INFINITY;
    negative.out = (char *)positive.out + q->length * vf_size_of(dtype), negative.lo = -INFINITY, negative.hi = 0;
    for (int64_t next; i < end; i = next) {
        next = WEFT__MIN(i + BLOCK, end);
        span_run(&positive, i, next, SPAN_CLIP, false, dtype);
        span_run(&negative, i, next, SPAN_CLIP, false, dtype);
    }
}

VF_INLINE void merge(const job *q, int64_t i, int64_t end, int64_t shift, const int dtype) {
    span_args a = q->a;
    a.diff[0] = at(q->a.diff[0], shift, dtype), a.diff[1] = at(a.diff[0], q->length, dtype);
    span_run(&a, i, end, SPAN_MERGE, true, dtype);
}

VF_INLINE void part(const job *q, int64_t slot, const bool bwd, const int dtype) {
    const int64_t lines = cpu_ceil(q->count, SPAN_LINE), end = SPAN_LINE * cpu_first(lines, q->slots, slot + 1);
    const int64_t last = WEFT__MIN(q->count, end);
    for (int64_t next, i = SPAN_LINE * cpu_first(lines, q->slots, slot); i < last; i = next) {
        const int64_t shift = i / q->length * q->length;
        next = WEFT__MIN(last, shift + q->length);
        if (bwd)
            merge(q, i, next, shift, dtype);
        else
            split(q, i, next, shift, dtype);
    }
    if (q->a.stream) vf_stream_end();
}

#define PART(pass, type)                                                     \
    static void part_##pass##_##type(void *q, int64_t slot) {                \
        part(q, slot, WEFT_PASS_##pass == WEFT_PASS_BWD, WEFT_DTYPE_##type); \
    }
PART(FWD, F32)
PART(FWD, F16)
PART(FWD, BF16)
PART(BWD, F32)
PART(BWD, F16)
PART(BWD, BF16)
#define TYPES_OF(pass) \
    {[WEFT_DTYPE_F32] = part_##pass##_F32, [WEFT_DTYPE_F16] = part_##pass##_F16, [WEFT_DTYPE_BF16] = part_##pass##_BF16}
static const weft_task parts[2][WEFT_DTYPE_COUNT] = {TYPES_OF(FWD), TYPES_OF(BWD)};

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool bwd = p->pass == WEFT_PASS_BWD, first = !cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
    const int64_t pixels = p->in[0] * p->in[1] * p->in[2];
    job q = {.a = {.in = e->ptr[WEFT_ROLE_SRC],
                   .diff = {bwd ? e->ptr[WEFT_ROLE_DIFF_DST] : NULL},
                   .out = e->ptr[bwd ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST]},
             .count = p->n * p->c * pixels,
             .length = p->c * (first ? pixels : 1)};
    q.slots = cpu_slots(cpu_ceil(q.count, SPAN_LINE), weft__bytes(p));
    /* rows shorter than a few lines are written in parts of lines, which do not stream well */
    const double out = (double)(q.count * (bwd ? 1 : 2) * vf_size_of(p->tensor[0].dtype));
    q.a.stream = cpu_streams(e->hw, out) && (bwd || q.length * vf_size_of(p->tensor[0].dtype) >= 512);
    weft__parallel(e->ctx, q.slots, parts[bwd][p->tensor[0].dtype], &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    const bool rows = cpu_layout_refusal(p, WEFT_LAYOUT_FIRST) != NULL;
    const double each = rows ? 8 + 300 / (double)WEFT__MAX(p->c, 1) : 8;
    d->ns = cpu_cost(hw, weft__bytes(p), each * weft__flops(p), 1);
    return span_refusal(p);
}

WEFT__KERNEL(ncrelu) = {
    .name = WEFT__NAME("ncrelu_1v"),
    .version = 2,
    .op = WEFT_OP_NCRELU,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .exact = true,
    .plan = plan,
    .run = run,
};
