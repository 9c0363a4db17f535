/* Sparse convolution, forward and data gradient; f32, f16, bf16, both layouts, any geometry.
 * Math:      sums[o, q] = sum of value_j * panel[offset_j + q] over the entries j of row o, see view.h
 * Blocking:  4 to 8 vectors of pixels as sums in registers; the panel of a chunk of channels in L1, or in L2 where rows
 *            have too few entries in a smaller chunk; sums of all rows in L2 between chunks
 * Traffic:   each entry reads its 8 bytes and R aligned vectors from L1 for R multiply-adds. The panel is written once
 *            per block: some 4% of the time at 256 channels, 10% for channels-last
 * Roofline:  one load a multiply-add: the load ports and the multiply-add units are both the limit
 * Strict:    padding is zero in the panel, so a value that is not finite is left to the reference
 * Try:       weft bench sparse_conv2d:fwd:f32:nchw:n1c256h56w56:o256k3p1nnz58982 */
#include "cpu/sparse_conv/entries.h"
#include "cpu/sparse_conv/out.h"

/* The rows [b->first, b->last) of the block, one chunk. */
typedef struct product {
    const sp_view *v;
    const sp_entry *entry;
    const float *panel;
} product;

/* R vectors of one row: sums += its entries. */
VF_INLINE void row(const product *q, const sp_span *span, float *sums, bool first, float start, const int R) {
    vf sum[SP_R];
    VF_UNROLL for (int i = 0; i < R; i++) sum[i] = first ? vf_set1(start) : vf_load(sums + i * VF_LANES);
    const sp_entry *end = q->entry + span->end;
    for (const sp_entry *e = q->entry + span->begin; e < end; e++) {
        const float *at = q->panel + e->offset;
        const vf value = vf_set1(e->value);
        VF_UNROLL for (int i = 0; i < R; i++) sum[i] = vf_fma(vf_load(at + i * VF_LANES), value, sum[i]);
    }
    VF_UNROLL for (int i = 0; i < R; i++) vf_store(sums + i * VF_LANES, sum[i]);
}

VF_INLINE void rows(const product *q, const sp_block *b, const sp_span *span, float *sums, bool first,
                    const cpu_epilogue *f, const int R) {
    for (int64_t o = b->first; o < b->last; o++, sums += R * VF_LANES) {
        const int64_t channel = b->group * q->v->oc + o;
        const float start = first && f->bias ? (float)item_load(f->bias_dtype, f->bias, channel) : 0;
        row(q, &span[channel * q->v->chunks], sums, first, start, R);
    }
}

static void rows_of(const product *q, const sp_block *b, const sp_span *span, float *sums, bool first,
                    const cpu_epilogue *f) {
    switch (q->v->r) {
    case 1:
        rows(q, b, span, sums, first, f, 1);
        break;
    case 2:
        rows(q, b, span, sums, first, f, 2);
        break;
    case 3:
        rows(q, b, span, sums, first, f, 3);
        break;
    case 4:
        rows(q, b, span, sums, first, f, 4);
        break;
    case 5:
        rows(q, b, span, sums, first, f, 5);
        break;
    case 6:
        rows(q, b, span, sums, first, f, 6);
        break;
    case 7:
        rows(q, b, span, sums, first, f, 7);
        break;
    default:
        rows(q, b, span, sums, first, f, 8);
        break;
    }
}

/* ---------------------------------------------------------------- the driver */
typedef struct job {
    sp_view v;
    sp_entries entries;
    cpu_epilogue f;
    sp_ends ends;
    sp_tensor in, out;
    char *room; /* of the slots: a panel and sums each */
} job;

static int64_t panel_bytes(const sp_view *v) {
    return cpu_round_up(v->chunk * v->channel * (int64_t)sizeof(float), 64);
}
static int64_t slot_bytes(const sp_view *v) {
    return panel_bytes(v) + v->part * v->r * VF_LANES * (int64_t)sizeof(float);
}

static void items(void *arg, int64_t slot) {
    const job *q = arg;
    const sp_view *v = &q->v;
    float *panel = (float *)(void *)(q->room + slot * slot_bytes(v));
    float *sums = panel + panel_bytes(v) / (int64_t)sizeof(float);
    const product product = {v, q->entries.entry, panel};
    for (int64_t i = cpu_first(v->items, v->slots, slot); i < cpu_first(v->items, v->slots, slot + 1); i++) {
        sp_block b;
        sp_block_at(v, i, &b);
        for (int64_t chunk = 0; chunk < v->chunks; chunk++) {
            const int64_t c = chunk * v->chunk, count = WEFT__MIN(v->chunk, v->ic - c);
            const sp_range range = {b.group * v->ic + c, 0, count, sp_used_of(&q->entries, b.group, chunk)};
            sp_pack(v, &b, &q->in, &range, panel);
            rows_of(&product, &b, q->entries.span + chunk, sums, chunk == 0, &q->f);
        }
        sp_finish(v, &b, &q->out, sums, &q->ends);
    }
}

static sp_tensor tensor_of(const weft__exec *e, int role) {
    const weft_tensor *t = weft__tensor(e->p, role);
    return (sp_tensor){t, e->ptr[role], !weft__is_first(t)};
}

static weft_status run(const weft__exec *e) {
    const bool back = e->p->pass != WEFT_PASS_FWD;
    job q = {.f = cpu_epilogue_of(e), .ends = sp_ends_of(e)};
    q.in = tensor_of(e, back ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC);
    q.out = tensor_of(e, back ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST);
    int64_t at[3] = {0, 0, 0};
    do {
        sp_view_of(&q.v, e->p, e->hw, back, at);
        if (!sp_entries_of(&q.entries, &q.v, e, true, e->workspace))
            return weft__ref_kernels[WEFT_OP_SPARSE_CONV]->run(e);
        q.room = (char *)e->workspace + sp_entries_bytes(&q.v);
        weft__parallel(e->ctx, q.v.slots, items, &q);
    } while (back && sp_next_class(e->p, at));
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const bool back = p->pass != WEFT_PASS_FWD;
    const char *reason = sp_refusal(p);
    int64_t at[3] = {0, 0, 0};
    double cycles = 0, bytes = 0;
    (void)variant;
    if (reason) return reason;
    do {
        sp_view v;
        if (!sp_view_of(&v, p, hw, back, at)) return "the window of one channel does not fit the cache";
        const double need = (double)sp_entries_bytes(&v) + (double)(v.slots * slot_bytes(&v));
        bytes = WEFT__MAX(bytes, need);
        cycles += v.cycles + 6.0 * (double)p->attr[WEFT_SPARSE_NNZ];
    } while (back && sp_next_class(p, at));
    d->workspace = (size_t)bytes;
    d->ns = cpu_cost(hw, weft__bytes(p), cycles * SP_CYCLE, 1);
    return NULL;
}

WEFT__KERNEL(sparse_conv_fwd) = {
    .name = WEFT__NAME("sparse_conv_fwd_panel"),
    .version = 1,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .exact = true,
    .plan = plan,
    .run = run,
};

WEFT__KERNEL(sparse_conv_bwd_data) = {
    .name = WEFT__NAME("sparse_conv_bwd_data_panel"),
    .version = 1,
    .op = WEFT_OP_SPARSE_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .steps = WEFT__STEP_SET(ACC),
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .exact = true,
    .plan = plan,
    .run = run,
};
