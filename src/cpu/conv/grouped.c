/* Convolution with few channels a group, or few in or out of it, and its data gradient, both layouts: a direct sum in
 * register tiles.
 * Math:      dst[o][q] = end(sum_k weights[o][k] * image[k][q]),  k = (tap, channel), as in gemm_nchw.c
 * Blocking:  an item is some rows of one plane of a bundle of groups, its input a slab of f32 (grouped.h). Along depth
 *            only the new plane is laid. Sums wait in scratch and leave without what is between the rows; for
 *            channels-last they are transposed on that way
 * Traffic:   the input once, with a halo of rows; each output once
 * Roofline:  multiply-add peak; with 2 outputs a group the loads, which split cache lines, are as many as the sums
 *            Measured on two Zen 4 cores (a dense product: 197 Gflop/s), k 3, 64 channels of 50^3: 8 channels a group
 *            160 Gflop/s, channels-last 145; 2 channels 100 and 74
 * Assumes:   src and dst dense in one layout, weights dense
 * Try:       weft bench conv3d:fwd:f32:ncdhw:n1c64d50h50w50:o64k3p1g32 */
#include "cpu/conv/grouped.h"

extern WEFT__KERNEL(conv_gemm_nchw);

enum { SLAB_BYTES = CPU_CUT(288 << 10, 8 << 10), CHANNELS = 128 }; /* of a group, in and out, at most */

typedef struct params {
    bool last;                     /* channels-last */
    int64_t items;                 /* of all views: bwd_data has one for each residue of the stride */
    size_t bias, offsets, scratch; /* bytes; offsets, scratch: of one slot */
} params;
_Static_assert(sizeof(params) <= GEMM_PARAMS, "the kernels that use this one keep its parameters");

typedef struct job {
    const weft_problem *p;
    const params *d;
    bool fwd;
    grouped_image in;
    const float *weights;
    const gemm_factors *factors;
    const float *bias; /* of each channel; NULL: none */
    bool scaled;       /* results have factors: the bias is added before them */
    gemm_out out;
    gemm_scratch scratch;
    int64_t slots;
} job;

typedef struct part { /* a view and its blocks */
    gemm_view v;
    grouped_slab slab;
    int64_t items, ld; /* ld: floats of the sums of an output */
} part;

static const char *part_of(part *t, const weft_problem *p, bool fwd, bool last, int64_t number) {
    t->v = gemm_view_of(p, fwd, number);
    t->items = t->ld = 0;
    if (t->v.pixels == 0) return NULL;
    const char *reason = grouped_cut(&t->slab, &t->v, last, SLAB_BYTES, t->v.co);
    if (reason) return reason;
    t->items = t->slab.bundles * t->v.n * t->slab.blocks * t->v.x[0].count;
    t->ld = t->slab.rows * t->slab.pitch + GEMM_NR;
    return NULL;
}

/* ---------------------------------------------------------------- sums out */
/* Position (z, y, 0) of the view, in rows of the output of one channel, or of all. */
VF_INLINE int64_t row_of(const gemm_view *v, int64_t plane, int64_t z, int64_t y) {
    const int64_t at = (plane * v->x[0].out + v->x[0].first + z * v->x[0].step) * v->x[1].out;
    return (at + v->x[1].first + y * v->x[1].step) * v->x[2].out + v->x[2].first;
}

VF_INLINE void put_last(const job *q, const part *t, const grouped_block *b, const float *sums, const int dtype) {
    const gemm_view *v = &t->v;
    const int64_t outs = b->groups * v->co, channels = v->groups * v->co, channel = b->first * v->co;
    for (int64_t y = b->y0; y < b->y1; y++, sums += t->slab.pitch)
        for (int64_t j = 0; j < v->x[2].count; j += VF_LANES)
            for (int64_t c = 0; c < outs; c += VF_LANES) {
                const int64_t pixel = row_of(v, b->n, b->z, y), step = v->x[2].step;
                const vf bias = q->out.bias ? vf_load(q->out.bias + channel + c) : vf_zero();
                vf block[VF_LANES];
                VF_UNROLL for (int l = 0; l < VF_LANES; l++) block[l] =
                    c + l < outs ? vf_load(sums + (c + l) * t->ld + j) : vf_zero();
                vf_transpose(block);
                VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                    if (j + l < v->x[2].count)
                        gemm_put_vector(&q->out, (pixel + (j + l) * step) * channels + channel + c, block[l], bias,
                                        outs - c, dtype);
                }
            }
}

static void put_sums(const job *q, const part *t, const grouped_block *b, float *sums) {
    const gemm_view *v = &t->v;
    if (q->d->last) {
        GEMM_BY_DTYPE(q->out.dtype, put_last, q, t, b, sums);
        return;
    }
    for (int64_t o = 0; o < b->groups * v->co; o++) {
        const int64_t channel = b->first * v->co + o;
        for (int64_t y = b->y0; y < b->y1; y++) {
            float *row = sums + o * t->ld + (y - b->y0) * t->slab.pitch;
            const int64_t count = v->x[2].count, step = v->x[2].step;
            if (q->scaled)
                gemm_scale(q->factors, b->n, row_of(v, 0, b->z, y), step, row, count, q->bias ? q->bias[channel] : 0);
            gemm_put_run(&q->out, row_of(v, b->n * v->groups * v->co + channel, b->z, y), step, row, count, channel,
                         false);
        }
    }
}

/* ---------------------------------------------------------------- one item */
static void find_offsets(const part *p, int64_t z, int64_t *to) {
    const gemm_view *v = &p->v;
    const grouped_slab *d = &p->slab;
    for (int64_t r = 0; r < v->x[0].taps; r++)
        for (int64_t s = 0; s < v->x[1].taps; s++)
            for (int64_t t = 0; t < v->x[2].taps; t++)
                for (int64_t c = 0; c < v->ci; c++) *to++ = c * d->channel + grouped_offset(d, v, z, r, s, t);
}

static void run_group(const part *p, const float *weights, const int64_t *offsets, int64_t vectors, const float *slab,
                      float *sums) {
    const gemm_view *v = &p->v;
    const int64_t np = gemm_split(vectors, GEMM_NV), mp = gemm_split(v->co, GEMM_MR);
    for (int64_t j = 0; j < np; j++) {
        const int64_t a = gemm_first(vectors, np, j), b = gemm_first(vectors, np, j + 1);
        for (int64_t i = 0; i < mp; i++) {
            const int64_t m = gemm_first(v->co, mp, i), count = gemm_first(v->co, mp, i + 1) - m;
            gemm_tile t = {.k = v->k,
                           .a = weights + m * v->k,
                           .lda = count,
                           .b = slab + a * VF_LANES,
                           .offsets = offsets,
                           .c = sums + m * p->ld + a * VF_LANES,
                           .ldc = p->ld,
                           .tail = VF_LANES};
            gemm_run(&t, GEMM_OFFSETS, count, b - a);
        }
    }
}

/* ---------------------------------------------------------------- driver */
static void run_block(const job *q, const part *t, const grouped_block *b, bool next, char *scratch) {
    const gemm_view *v = &t->v;
    int64_t *offsets = (int64_t *)(void *)scratch;
    float *slab = (float *)(void *)(scratch + q->d->offsets), *sums = slab + t->slab.size;
    const float *weights = q->weights + (v->first_tap * v->groups + b->first * v->taps) * v->ci * v->co;
    const int64_t vectors = cpu_ceil((b->y1 - b->y0 - 1) * t->slab.pitch + v->x[2].count, VF_LANES);
    grouped_move(&t->slab, v, &q->in, b, next, slab);
    find_offsets(t, b->z, offsets);
    for (int64_t g = 0; g < b->groups; g++)
        run_group(t, weights + g * v->co * v->k, offsets, vectors, slab + g * v->ci * t->slab.channel,
                  sums + g * v->co * t->ld);
    put_sums(q, t, b, sums);
}

static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const int mine = gemm_take(&q->scratch);
    const int64_t first = cpu_first(d->items, q->slots, slot), last = cpu_first(d->items, q->slots, slot + 1);
    int64_t number = 0, before = 0;
    part t;
    part_of(&t, q->p, q->fwd, d->last, 0);
    for (int64_t i = first; i < last; i++) {
        while (i >= before + t.items) {
            before += t.items;
            part_of(&t, q->p, q->fwd, d->last, ++number);
        }
        const int64_t blocks = t.items / t.slab.bundles, item = i - before;
        const grouped_block b = grouped_block_of(&t.slab, &t.v, item / blocks, item % blocks);
        run_block(q, &t, &b, i > first && item > 0, q->scratch.base + (size_t)mine * q->scratch.bytes);
    }
    gemm_give(&q->scratch, mine);
}

weft_status WEFT__ISA_NAME(weft__conv_grouped)(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    job q = {.p = p, .d = d, .fwd = fwd, .weights = e->packed, .slots = WEFT__MIN(d->items, GEMM_SLOTS)};
    q.in =
        grouped_image_of(e, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, fwd ? p->c : p->o, fwd ? p->in : p->out, d->last);
    q.in.factor = factors->in;
    q.out = gemm_out_of(e, fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC, e->workspace);
    q.factors = factors, q.scaled = factors->ratio.at || factors->out.at;
    q.bias = q.out.bias;
    if (q.scaled) q.out.bias = NULL;
    q.scratch.base = (char *)e->workspace + d->bias, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__conv_grouped)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

/* The packed weights are those of the matrix product. */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    return WEFT__RECORD(conv_gemm_nchw).pack(e, weights, packed);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    params *d = WEFT__PARAMS(params, out);
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const char *reason = grouped_refusal(p, fwd, CHANNELS, &d->last);
    if (reason) return reason;
    const double way = d->last ? 10 : 4, sorted = VF_LANES >= 16 ? 14 : 20;
    const int64_t *from = fwd ? p->in : p->out;
    double sums = 0, rows = 0;
    int64_t room = 0, k = 0;
    part t;
    for (int64_t i = 0; i < gemm_views(p); i++) {
        if ((reason = part_of(&t, p, fwd, d->last, i))) return reason;
        if (!t.items) continue;
        const gemm_view *v = &t.v;
        d->items += t.items, k = WEFT__MAX(k, v->k);
        room = WEFT__MAX(room, t.slab.size + t.slab.bundle * v->co * t.ld);
        /* for each vector: its multiply-adds, loads that split lines, the way in, 4 a vector, 10 transposed, 14
         * with a stride, 20 with narrow vectors, and the way out, through scratch, 16 */
        const double halo =
            (double)(v->x[1].move * v->x[2].move) * (double)(t.slab.rows + t.slab.reach[1]) / (double)t.slab.rows;
        const double loads = (double)v->k * (1 + 0.8 * (double)gemm_split(v->co, GEMM_MR));
        const double ways = (v->x[2].move > 1 ? sorted : way) * halo * (double)v->ci + 16 * (double)v->co;
        const double each = (double)(v->k * v->co) + cpu_move(hw) * (loads + ways);
        sums += each * (double)(v->n * v->groups * v->x[0].count) * (double)(v->x[1].count * t.slab.pitch);
        /* for each row that is laid or leaves 12 ns, 20 with a step between results, 25 for each part that a stride
         * makes of a row: they count where rows are short */
        const double of_row = v->x[2].move > 1 ? 25 * (double)v->x[2].move : 12;
        const double lay = v->taps ? of_row * (double)(v->ci * from[0] * from[1]) : 0;
        const double leave = (v->x[2].step > 1 ? 20 : 12) * (double)(v->co * v->x[0].count * v->x[1].count);
        rows += (lay + leave) * (double)(v->n * v->groups);
    }
    if (!d->items) return "no positions";
    d->bias = gemm_bias_bytes(p, t.v.co * t.v.groups);
    d->offsets = (size_t)cpu_round_up(k * 8, 64);
    d->scratch = d->offsets + (size_t)cpu_round_up(room * 4, 64);
    out->workspace = d->bias + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    out->packed = (size_t)(p->c / p->groups * p->o * gemm_window(p)) * sizeof(float);
    out->ns = cpu_cost(hw, weft__bytes(p), 2 * sums, GEMM_SHARE) + rows / hw->threads;
    return NULL;
}

WEFT__KERNEL(conv_grouped) = {
    .name = WEFT__NAME("float_conv_grouped"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .not_strict = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};
