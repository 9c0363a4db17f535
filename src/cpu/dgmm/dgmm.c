/* Matrices times a diagonal, real (dgmm) and complex (cdgmm, pairs of numbers), and the gradients, on f32, f16, bf16.
 * Math:      dst = src * v; diff_src = diff_dst * conj(v); diff_weights = sums of diff_dst * conj(src). v goes along
 *            the columns (right side) or the rows (left side). See src/ref/dgmm.h
 * Blocking:  vectors along a row; pairs are parted into real and imaginary vectors in registers. Both gradients are one
 *            pass. Sums for the right side: four rows at a time into a row of sums per slot, added up at the end; for
 *            the left side: one sum per row, added up over the matrices at the end
 *            Products alone go row by row, as one long stream each way: several at a time are 1.5 times as slow
 *            from memory
 * Slots:     runs of rows; sums per slot or row follow from the problem alone
 * Output:    streamed past the caches where it is large and its rows are whole cache lines
 * Traffic:   each tensor once: memory-bound
 * Measured:  4096x4096, one core of an EPYC with AVX-512, against PyTorch: forward 1.5 times as fast, with both
 *            gradients 2.1; 2048x2048, which stays in cache, 1.0 and 1.4; complex 1.1 to 1.5
 * Assumes:   all tensors dense and of one data type
 * Try:       weft bench dgmm:fwd:f32:dense:n1h4096w4096:side1 cdgmm:bwd:f32:dense:n1h4096w2048:side1 */
#include "cpu/frame.h"

enum { ROWS = 4 }; /* that share the loads and stores of sums */

typedef struct params {
    int64_t slots, sums; /* floats of sums per slot, or in all */
} params;

typedef struct task {
    const weft__exec *e;
    params s;
    const void *in, *src, *v;   /* in: src, or diff_dst, which the products and sums take */
    void *out, *diff_v;         /* NULL: not asked for */
    int64_t rows, cols, height; /* rows of all matrices, and of one */
    int dtype;
    bool pair, right, stream;
} task;

typedef struct number { /* VF_LANES of them; im is not used where they are real */
    vf re, im;
} number;

VF_INLINE number load(const void *p, int64_t at, int64_t n, const bool pair, const int dtype) {
    if (!pair) return (number){n >= VF_LANES ? vf_load_as(dtype, p, at) : vf_load_count_as(dtype, p, at, n), vf_zero()};
    vf a, b;
    if (n >= VF_LANES)
        a = vf_load_as(dtype, p, 2 * at), b = vf_load_as(dtype, p, 2 * at + VF_LANES);
    else
        a = vf_load_count_as(dtype, p, 2 * at, 2 * n),
        b = vf_load_count_as(dtype, p, 2 * at + VF_LANES, 2 * n - VF_LANES);
    return (number){vf_even(a, b), vf_odd(a, b)};
}

VF_INLINE void put(void *p, int64_t at, vf v, int64_t n, bool stream, const int dtype) {
    if (stream && n >= VF_LANES)
        vf_stream_as(dtype, p, at, v);
    else if (n >= VF_LANES)
        vf_store_as(dtype, p, at, v);
    else
        vf_store_count_as(dtype, p, at, v, n);
}
VF_INLINE void store(void *p, int64_t at, number v, int64_t n, bool stream, const bool pair, const int dtype) {
    if (!pair) {
        put(p, at, v.re, n, stream, dtype);
        return;
    }
    put(p, 2 * at, vf_zip_lo(v.re, v.im), 2 * n, stream, dtype);
    put(p, 2 * at + VF_LANES, vf_zip_hi(v.re, v.im), 2 * n - VF_LANES, stream, dtype);
}

/* a * b, or a * conj(b), and that on top of a sum. */
VF_INLINE number times(number a, number b, const bool conj, const bool pair) {
    if (!pair) return (number){vf_mul(a.re, b.re), a.im};
    const vf re = vf_mul(a.im, b.im), im = vf_mul(a.re, b.im);
    return conj ? (number){vf_fma(a.re, b.re, re), vf_fms(a.im, b.re, im)}
                : (number){vf_fms(a.re, b.re, re), vf_fma(a.im, b.re, im)};
}
VF_INLINE number add_conj(number sum, number a, number b, const bool pair) {
    sum.re = vf_fma(a.re, b.re, sum.re);
    if (!pair) return sum;
    sum.re = vf_fma(a.im, b.im, sum.re);
    return (number){sum.re, vf_fma(a.im, b.re, vf_fnma(a.re, b.im, sum.im))};
}

VF_INLINE number broadcast(const void *p, int64_t at, const bool pair, const int dtype) {
    return pair ? (number){vf_broadcast_as(dtype, p, 2 * at), vf_broadcast_as(dtype, p, 2 * at + 1)}
                : (number){vf_broadcast_as(dtype, p, at), vf_zero()};
}

/* `count` rows from `row` on. sums: of the columns (right side), or one number for each row (left side). */
VF_INLINE void rows_block(const task *q, int64_t row, float *sums, const int count, const bool right, const bool pair,
                          const int dtype) {
    const bool conj = q->e->p->pass != WEFT_PASS_FWD, scales = q->out != NULL, adds = q->diff_v != NULL;
    number left[ROWS], sum[ROWS];
    for (int r = 0; r < ROWS; r++) {
        sum[r] = left[r] = (number){vf_zero(), vf_zero()};
        if (!right && scales && r < count) left[r] = broadcast(q->v, (row + r) % q->height, pair, dtype);
    }
    for (int64_t x = 0; x < q->cols; x += VF_LANES) {
        const int64_t n = q->cols - x;
        number v = {vf_zero(), vf_zero()}, column = v;
        if (right && scales) v = load(q->v, x, n, pair, dtype);
        float *at = sums + (pair ? 2 : 1) * x;
        if (right && adds) column = (number){vf_load(at), pair ? vf_load(at + VF_LANES) : vf_zero()};
        VF_UNROLL for (int r = 0; r < count; r++) {
            const int64_t from = (row + r) * q->cols + x;
            const number a = load(q->in, from, n, pair, dtype);
            if (scales) store(q->out, from, times(a, right ? v : left[r], conj, pair), n, q->stream, pair, dtype);
            if (!adds) continue;
            const number b = load(q->src, from, n, pair, dtype);
            if (right)
                column = add_conj(column, a, b, pair);
            else
                sum[r] = add_conj(sum[r], a, b, pair);
        }
        if (right && adds) {
            vf_store(at, column.re);
            if (pair) vf_store(at + VF_LANES, column.im);
        }
    }
    for (int r = 0; !right && adds && r < count; r++) {
        sums[(row + r) * (pair ? 2 : 1)] = vf_sum(sum[r].re);
        if (pair) sums[(row + r) * 2 + 1] = vf_sum(sum[r].im);
    }
}

VF_INLINE void slot_as(const task *q, int64_t slot, const bool right, const bool pair, const int dtype) {
    float *sums = (float *)q->e->workspace + (right ? slot * q->s.sums : 0);
    if (right && q->diff_v) memset(sums, 0, (size_t)q->s.sums * sizeof(float));
    int64_t row = cpu_first(q->rows, q->s.slots, slot);
    const int64_t end = cpu_first(q->rows, q->s.slots, slot + 1);
    for (; q->diff_v && !q->stream && row + ROWS <= end; row += ROWS)
        rows_block(q, row, sums, ROWS, right, pair, dtype);
    for (; row < end; row++) rows_block(q, row, sums, 1, right, pair, dtype);
    if (q->stream) vf_stream_end();
}

#define SLOT(type)                                                        \
    static void slot_##type(void *arg, int64_t slot) {                    \
        const task *q = arg;                                              \
        if (q->pair)                                                      \
            q->right ? slot_as(q, slot, true, true, WEFT_DTYPE_##type)    \
                     : slot_as(q, slot, false, true, WEFT_DTYPE_##type);  \
        else                                                              \
            q->right ? slot_as(q, slot, true, false, WEFT_DTYPE_##type)   \
                     : slot_as(q, slot, false, false, WEFT_DTYPE_##type); \
    }
SLOT(F32)
SLOT(F16)
SLOT(BF16)
static const weft_task slots[WEFT_DTYPE_COUNT] = {
    [WEFT_DTYPE_F32] = slot_F32, [WEFT_DTYPE_F16] = slot_F16, [WEFT_DTYPE_BF16] = slot_BF16};

/* ---------------------------------------------------------------- the sums of slots, or of matrices */
static void put_one(const task *q, int64_t at, float v) {
    if (q->dtype == WEFT_DTYPE_F32)
        vf_store_count_as(WEFT_DTYPE_F32, q->diff_v, at, vf_set1(v), 1);
    else if (q->dtype == WEFT_DTYPE_F16)
        vf_store_count_as(WEFT_DTYPE_F16, q->diff_v, at, vf_set1(v), 1);
    else
        vf_store_count_as(WEFT_DTYPE_BF16, q->diff_v, at, vf_set1(v), 1);
}

/* Where number j of a slot's sums is: pairs are VF_LANES real parts and then as many imaginary ones. */
VF_INLINE int64_t place_of(const task *q, int64_t j, int part) {
    if (!q->pair) return j;
    return q->right ? j / VF_LANES * 2 * VF_LANES + part * VF_LANES + j % VF_LANES : 2 * j + part;
}

enum { PIECE = 256 }; /* numbers */

static void add_up(void *arg, int64_t slot) {
    const task *q = arg;
    const int64_t count = q->right ? q->cols : q->height, parts = q->right ? q->s.slots : q->rows / q->height;
    const int64_t step = q->right ? q->s.sums : q->height * (q->pair ? 2 : 1);
    const float *sums = q->e->workspace;
    for (int64_t j = slot * PIECE; j < WEFT__MIN(count, (slot + 1) * PIECE); j++)
        for (int part = 0; part < 1 + q->pair; part++) {
            double sum = 0;
            for (int64_t i = 0; i < parts; i++) sum += sums[i * step + place_of(q, j, part)];
            put_one(q, j * (q->pair ? 2 : 1) + part, (float)sum);
        }
}

static weft_status run(const weft__exec *e) {
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    task q = {.e = e, .s = *(const params *)e->params, .dtype = p->tensor[0].dtype, .pair = p->op == WEFT_OP_CDGMM};
    q.right = p->attr[WEFT_DGMM_SIDE] != 0, q.height = p->attr[WEFT_DGMM_ROWS], q.cols = p->attr[WEFT_DGMM_COLS];
    q.rows = p->n * q.height;
    q.in = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.src = e->ptr[WEFT_ROLE_SRC], q.v = e->ptr[WEFT_ROLE_WEIGHTS];
    q.out = fwd ? e->ptr[WEFT_ROLE_DST] : p->pass != WEFT_PASS_BWD_WEIGHTS ? e->ptr[WEFT_ROLE_DIFF_SRC] : NULL;
    q.diff_v = p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS ? e->ptr[WEFT_ROLE_DIFF_WEIGHTS] : NULL;
    const int64_t row = q.cols * (q.pair ? 2 : 1) * vf_size_of(q.dtype);
    q.stream = q.out && cpu_streams(e->hw, (double)(q.rows * row)) && row % 64 == 0 && (uintptr_t)q.out % 64 == 0;
    weft__parallel(e->ctx, q.s.slots, slots[q.dtype], &q);
    if (q.diff_v) weft__parallel(e->ctx, cpu_ceil(q.right ? q.cols : q.height, PIECE), add_up, &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    if (!weft__all_dtype(p, p->tensor[0].dtype)) return "tensors of several data types";
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i])) return "a tensor is not dense";
    const int64_t rows = p->n * p->attr[WEFT_DGMM_ROWS], cols = p->attr[WEFT_DGMM_COLS];
    const int64_t each = p->op == WEFT_OP_CDGMM ? 2 : 1;
    const bool right = p->attr[WEFT_DGMM_SIDE] != 0,
               adds = p->pass == WEFT_PASS_BWD || p->pass == WEFT_PASS_BWD_WEIGHTS;
    params *s = WEFT__PARAMS(params, d);
    s->slots = cpu_slots(cpu_ceil(rows, ROWS), weft__bytes(p));
    s->sums = right ? cpu_round_up(cols, VF_LANES) * each : rows * each;
    if (adds) d->workspace = (size_t)(right ? s->slots * s->sums : s->sums) * sizeof(float);
    const double vectors = (double)rows * (double)(cpu_ceil(cols, VF_LANES) * each);
    const double ns = vectors * (adds ? 3 : 1.5) + 3 * (double)rows + (adds ? (double)d->workspace / 4 : 0);
    d->ns = cpu_work_cost(p, hw, ns);
    return NULL;
}

#define DGMM(NAME, word)                                                               \
    WEFT__KERNEL(word) = {                                                             \
        .name = WEFT__NAME(#word "_rows"),                                             \
        .version = 1,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .exact = true,                                                                 \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
DGMM(DGMM, dgmm);
DGMM(CDGMM, cdgmm);
