/* Sparse convolution, gradient of the stored weights (and of the bias), and all gradients at once; f32, f16, bf16, both
 * layouts, any geometry.
 * Math:      diff_weights[j] = sum over q of panel[offset_j + q] * diff_dst[row of j, q], see view.h: sums only for the
 *            entries that are stored
 * Blocking:  the R vectors of diff_dst of one row in registers, the panel of a chunk of channels in L1 or L2; a slot
 *            is a chunk and a range of blocks, with sums of its own for its entries, added up at the end in a fixed
 *            order
 * Traffic:   as the forward pass, and one sum across lanes for each entry and block: some 40% of the time
 * Strict:    padding is zero in the panel; where a NaN comes out, the reference tells whether it belongs there
 * Try:       weft bench sparse_conv2d:bwd_weights:f32:nchw:n1c256h56w56:o256k3p1nnz58982 */
#include <stdatomic.h>

#include "cpu/sparse_conv/entries.h"
#include "cpu/sparse_conv/panel.h"

enum { WANT_SLOTS = 16 }; /* blocks are split over slots until there are so many */

typedef struct job {
    sp_view v, dy; /* dy: diff_dst itself as a panel, one vector a vector of the block */
    sp_entries entries;
    sp_tensor src, diff_dst;
    float *sums, *bias; /* [split][entry], [split][o]; bias NULL: none */
    char *room;         /* of the slots: a panel and the vectors of diff_dst */
    int64_t splits;
    const weft__exec *e;
    atomic_bool nan;
} job;

static int64_t floats_up(int64_t floats) { return cpu_round_up(floats, 16); }
static int64_t splits_of(const sp_view *v) {
    const int64_t slots = v->p->groups * v->chunks;
    return WEFT__MIN(cpu_ceil(WANT_SLOTS, slots), v->blocks);
}
static int64_t slot_floats(const sp_view *v) { return floats_up(v->chunk * v->channel) + v->oc * v->r * VF_LANES; }

/* The products of one row with the entries of its span. */
VF_INLINE void row(const sp_entry *e, const sp_entry *end, const float *panel, const float *dy, float *sums,
                   const int R) {
    vf of[SP_R];
    VF_UNROLL for (int i = 0; i < R; i++) of[i] = vf_load(dy + i * VF_LANES);
    for (; e < end; e++) {
        const float *at = panel + e->offset;
        vf even = vf_mul(vf_load(at), of[0]), odd = R > 1 ? vf_mul(vf_load(at + VF_LANES), of[1]) : vf_zero();
        VF_UNROLL for (int i = 2; i < R; i++) {
            if (i % 2)
                odd = vf_fma(vf_load(at + i * VF_LANES), of[i], odd);
            else
                even = vf_fma(vf_load(at + i * VF_LANES), of[i], even);
        }
        sums[e->index] += vf_sum(vf_add(even, odd));
    }
}

VF_INLINE void rows(const job *q, const sp_block *b, int64_t chunk, const float *panel, const float *dy, float *sums,
                    const int R) {
    for (int64_t o = 0; o < q->v.oc; o++, dy += R * VF_LANES) {
        const sp_span *span = &q->entries.span[(b->group * q->v.oc + o) * q->v.chunks + chunk];
        row(q->entries.entry + span->begin, q->entries.entry + span->end, panel, dy, sums, R);
    }
}

static void rows_of(const job *q, const sp_block *b, int64_t chunk, const float *panel, const float *dy, float *sums) {
    switch (q->v.r) {
    case 1:
        rows(q, b, chunk, panel, dy, sums, 1);
        break;
    case 2:
        rows(q, b, chunk, panel, dy, sums, 2);
        break;
    case 3:
        rows(q, b, chunk, panel, dy, sums, 3);
        break;
    case 4:
        rows(q, b, chunk, panel, dy, sums, 4);
        break;
    case 5:
        rows(q, b, chunk, panel, dy, sums, 5);
        break;
    case 6:
        rows(q, b, chunk, panel, dy, sums, 6);
        break;
    case 7:
        rows(q, b, chunk, panel, dy, sums, 7);
        break;
    default:
        rows(q, b, chunk, panel, dy, sums, 8);
        break;
    }
}

/* ---------------------------------------------------------------- the driver */
/* A slot: the group, the chunk and the range of blocks. */
static void blocks(void *arg, int64_t slot) {
    job *q = arg;
    const sp_view *v = &q->v;
    const int64_t split = slot % q->splits, chunk = slot / q->splits % v->chunks, group = slot / q->splits / v->chunks;
    const int64_t c = chunk * v->chunk, count = WEFT__MIN(v->chunk, v->ic - c), nnz = v->p->attr[WEFT_SPARSE_NNZ];
    float *panel = (float *)(void *)q->room + slot * slot_floats(v), *dy = panel + floats_up(v->chunk * v->channel);
    float *sums = q->sums + split * floats_up(nnz), *bias = q->bias ? q->bias + split * v->p->o : NULL;
    const sp_range src = {group * v->ic + c, 0, count, sp_used_of(&q->entries, group, chunk)};
    const sp_range diff_dst = {group * v->oc, 0, v->oc, NULL};
    for (int64_t o = group * v->oc; o < (group + 1) * v->oc; o++) {
        const sp_span *span = &q->entries.span[o * v->chunks + chunk];
        for (int64_t j = span->begin; j < span->end; j++) sums[q->entries.entry[j].index] = 0;
        if (bias && chunk == 0) bias[o] = 0;
    }
    for (int64_t i = cpu_first(v->blocks, q->splits, split); i < cpu_first(v->blocks, q->splits, split + 1); i++) {
        sp_block b;
        sp_block_at(v, i, &b);
        b.group = group;
        sp_pack(v, &b, &q->src, &src, panel);
        sp_pack(&q->dy, &b, &q->diff_dst, &diff_dst, dy);
        rows_of(q, &b, chunk, panel, dy, sums);
        for (int64_t o = 0; bias && chunk == 0 && o < v->oc; o++) {
            vf sum = vf_zero();
            for (int k = 0; k < v->r; k++) sum = vf_add(sum, vf_load(dy + (o * v->r + k) * VF_LANES));
            bias[group * v->oc + o] += vf_sum(sum);
        }
    }
}

/* Sums of the splits, in their order; false: one is NaN. */
static bool merge(float *sums, int64_t splits, int64_t step, int64_t first, int64_t last) {
    bool nan = false;
    for (int64_t j = first; j < last; j++) {
        for (int64_t s = 1; s < splits; s++) sums[j] += sums[s * step + j];
        nan = nan || isnan(sums[j]);
    }
    return !nan;
}

static void store(const weft__exec *e, int role, const float *sums, int64_t first, int64_t last) {
    const weft_tensor *t = weft__tensor(e->p, role);
    for (int64_t j = first; j < last; j++) item_out(e->p, t, e->ptr[role], j * t->strides[0], sums[j]);
}

static void merge_slot(void *arg, int64_t slot) {
    job *q = arg;
    const int64_t nnz = q->v.p->attr[WEFT_SPARSE_NNZ], step = floats_up(nnz);
    if (!merge(q->sums, q->splits, step, cpu_first(nnz, WANT_SLOTS, slot), cpu_first(nnz, WANT_SLOTS, slot + 1)))
        atomic_store(&q->nan, true);
}

static void store_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t nnz = q->v.p->attr[WEFT_SPARSE_NNZ];
    store(q->e, WEFT_ROLE_DIFF_WEIGHTS, q->sums, cpu_first(nnz, WANT_SLOTS, slot),
          cpu_first(nnz, WANT_SLOTS, slot + 1));
}

/* diff_dst as a panel of its own: one tap, where the output stands. */
static sp_view dy_view(const sp_view *v) {
    sp_view dy = *v;
    for (int a = 0; a < 3; a++)
        dy.axis[a] = (sp_axis){.in = v->axis[a].out,
                               .out = v->axis[a].out,
                               .step = 1,
                               .up = 1,
                               .kernel = 1,
                               .dilation = 1,
                               .stride = 1,
                               .taps = 1};
    dy.phases = 1;
    dy.rows = v->r;
    dy.channel = v->r * VF_LANES;
    return dy;
}

static sp_tensor tensor_of(const weft__exec *e, int role) {
    const weft_tensor *t = weft__tensor(e->p, role);
    return (sp_tensor){t, e->ptr[role], sp_is_last(t)};
}

/* The floats of all slots together. */
static int64_t sums_floats(const sp_view *v) {
    return splits_of(v) * (floats_up(v->p->attr[WEFT_SPARSE_NNZ]) + floats_up(v->p->o));
}

static weft_status run_weights(const weft__exec *e) {
    const int64_t at[3] = {0, 0, 0}, nnz = e->p->attr[WEFT_SPARSE_NNZ];
    const bool biased = weft__has_step(e->p, WEFT_STEP_BIAS);
    job q = {.e = e, .src = tensor_of(e, WEFT_ROLE_SRC), .diff_dst = tensor_of(e, WEFT_ROLE_DIFF_DST)};
    sp_view_of(&q.v, e->p, e->hw, false, at);
    q.dy = dy_view(&q.v);
    q.splits = splits_of(&q.v);
    if (!sp_entries_of(&q.entries, &q.v, e, false, e->workspace)) return weft__ref_kernels[WEFT_OP_SPARSE_CONV]->run(e);
    q.sums = (float *)(void *)((char *)e->workspace + sp_entries_bytes(&q.v));
    q.bias = biased ? q.sums + q.splits * floats_up(nnz) : NULL;
    q.room = (char *)(q.sums + sums_floats(&q.v));
    weft__parallel(e->ctx, e->p->groups * q.v.chunks * q.splits, blocks, &q);
    weft__parallel(e->ctx, WANT_SLOTS, merge_slot, &q);
    if (atomic_load(&q.nan) && e->p->math == WEFT_MATH_STRICT) return weft__ref_kernels[WEFT_OP_SPARSE_CONV]->run(e);
    weft__parallel(e->ctx, WANT_SLOTS, store_slot, &q);
    if (q.bias) merge(q.bias, q.splits, e->p->o, 0, e->p->o);
    if (q.bias) store(e, WEFT_ROLE_DIFF_BIAS, q.bias, 0, e->p->o);
    return WEFT_OK;
}

static const char *plan_weights(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = sp_refusal(p);
    const int64_t at[3] = {0, 0, 0};
    sp_view v;
    (void)variant;
    if (reason) return reason;
    if (!sp_view_of(&v, p, hw, false, at)) return "the window of one channel does not fit the cache";
    const double slots = (double)(p->groups * v.chunks * splits_of(&v));
    const double entries = (double)p->attr[WEFT_SPARSE_NNZ];
    d->workspace =
        (size_t)((double)sp_entries_bytes(&v) + 4 * ((double)sums_floats(&v) + slots * (double)slot_floats(&v)));
    d->ns =
        cpu_cost(hw, weft__bytes(p),
                 (v.cycles * cpu_uneven(hw, (int64_t)slots) + entries * (5.0 * (double)v.blocks + 14)) * SP_CYCLE, 1);
    return NULL;
}

WEFT__KERNEL(sparse_conv_bwd_weights) = {
    .name = WEFT__NAME("sparse_conv_bwd_weights_panel"),
    .version = 2,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(ACC),
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .exact = true,
    .plan = plan_weights,
    .run = run_weights,
};

/* ---------------------------------------------------------------- all gradients: one pass behind the other */
extern const weft__kernel WEFT__RECORD(sparse_conv_bwd_data);

/* The data gradient alone, with the step of accumulation if there is one. */
static weft_problem data_half(const weft_problem *p) {
    weft_problem half = *p;
    half.pass = WEFT_PASS_BWD_DATA;
    half.nsteps = 0;
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_ACC) half.step[half.nsteps++] = p->step[i];
    return half;
}

static weft_status run_both(const weft__exec *e) {
    const weft_problem data = data_half(e->p);
    weft_problem weights = *e->p;
    weights.pass = WEFT_PASS_BWD_WEIGHTS;
    weft__exec call = *e;
    call.p = &data;
    WEFT__TRY(WEFT__RECORD(sparse_conv_bwd_data).run(&call));
    call.p = &weights;
    return run_weights(&call);
}

static const char *plan_both(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const weft_problem half = data_half(p);
    weft__decision data = {0};
    const char *reason = plan_weights(p, hw, variant, d);
    if (reason) return reason;
    reason = WEFT__RECORD(sparse_conv_bwd_data).plan(&half, hw, variant, &data);
    d->workspace = WEFT__MAX(d->workspace, data.workspace);
    d->ns += data.ns;
    return reason;
}

WEFT__KERNEL(sparse_conv_bwd) = {
    .name = WEFT__NAME("sparse_conv_bwd_panel"),
    .version = 2,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD),
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(ACC),
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .exact = true,
    .plan = plan_both,
    .run = run_both,
};
