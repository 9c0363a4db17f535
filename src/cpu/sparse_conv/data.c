/* Sparse convolution, forward and data gradient; f32, f16, bf16, both layouts, any geometry.
 * Math:      sums[o, q] = sum of value_j * panel[offset_j + q] over the entries j of row o, see view.h
 * Blocking:  4 to 8 vectors of pixels as sums in registers; the panel of a chunk of channels in L1, or in L2 where rows
 *            have too few entries in a smaller chunk; sums of all rows in L2 between chunks
 * Traffic:   each entry reads its 8 bytes and R aligned vectors from L1 for R multiply-adds. The panel is written once
 *            per block: some 4% of the time at 256 channels, 10% for channels-last, most of it with few channels
 *            written. The data gradient goes through the entries, and along w through its output, once for each class:
 *            most of the time with strides and few channels read
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
    char *room; /* panels, then the sums of each slot */
} job;

static int64_t sums_bytes(const sp_view *v) { return v->part * v->r * VF_LANES * (int64_t)sizeof(float); }
/* Panels for parts are kept: [group][block][chunk]; else a slot has one. */
static int64_t panels(const sp_view *v) { return v->parts > 1 ? v->p->groups * v->blocks * v->chunks : v->slots; }
static int64_t room_bytes(const sp_view *v) { return panels(v) * sp_panel_bytes(v) + v->slots * sums_bytes(v); }
static float *panel_at(const job *q, int64_t i) { return (float *)(void *)(q->room + i * sp_panel_bytes(&q->v)); }

/* Channels [first, last) of a chunk. */
static void pack(const job *q, const sp_block *b, int64_t chunk, int64_t first, int64_t last, float *panel) {
    const sp_view *v = &q->v;
    const int64_t c = chunk * v->chunk, end = WEFT__MIN(last, v->ic - c);
    const sp_range range = {b->group * v->ic + c + first, first, end - first, sp_used_of(&q->entries, b->group, chunk)};
    if (first < end) sp_pack(v, b, &q->in, &range, panel);
}

/* Pieces of VF_LANES channels: so many that there are enough for all slots. */
static int64_t pieces_of(const sp_view *v) {
    return WEFT__MIN(cpu_ceil(SP_SLOTS, panels(v)), cpu_ceil(v->chunk, VF_LANES));
}
static void stage(void *arg, int64_t slot) {
    const job *q = arg;
    const sp_view *v = &q->v;
    const int64_t pieces = pieces_of(v), all = panels(v) * pieces, slots = WEFT__MIN(all, SP_SLOTS);
    const int64_t rows = cpu_ceil(v->chunk, VF_LANES);
    for (int64_t i = cpu_first(all, slots, slot); i < cpu_first(all, slots, slot + 1); i++) {
        const int64_t panel = i / pieces, piece = i % pieces, block = panel / v->chunks;
        sp_block b;
        sp_block_at(v, block % v->blocks, &b);
        b.group = block / v->blocks;
        pack(q, &b, panel % v->chunks, cpu_first(rows, pieces, piece) * VF_LANES,
             WEFT__MIN(cpu_first(rows, pieces, piece + 1) * VF_LANES, v->chunk), panel_at(q, panel));
    }
}

static void items(void *arg, int64_t slot) {
    const job *q = arg;
    const sp_view *v = &q->v;
    float *sums = panel_at(q, panels(v)) + slot * sums_bytes(v) / (int64_t)sizeof(float);
    for (int64_t i = cpu_first(v->items, v->slots, slot); i < cpu_first(v->items, v->slots, slot + 1); i++) {
        sp_block b;
        sp_block_at(v, i, &b);
        for (int64_t chunk = 0; chunk < v->chunks; chunk++) {
            const int64_t kept = (b.group * v->blocks + i % v->blocks) * v->chunks + chunk;
            float *panel = panel_at(q, v->parts > 1 ? kept : slot);
            const product product = {v, q->entries.entry, panel};
            if (v->parts == 1) pack(q, &b, chunk, 0, v->chunk, panel);
            rows_of(&product, &b, q->entries.span + chunk, sums, chunk == 0, &q->f);
        }
        sp_finish(v, &b, &q->out, sums, &q->ends);
    }
}

static sp_tensor tensor_of(const weft__exec *e, int role) {
    const weft_tensor *t = weft__tensor(e->p, role);
    return (sp_tensor){t, e->ptr[role], sp_is_last(t)};
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
        if (q.v.parts > 1) weft__parallel(e->ctx, WEFT__MIN(panels(&q.v) * pieces_of(&q.v), SP_SLOTS), stage, &q);
        weft__parallel(e->ctx, q.v.slots, items, &q);
    } while (back && sp_next_class(e->p, at));
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const bool back = p->pass != WEFT_PASS_FWD;
    const char *reason = sp_refusal(p);
    int64_t at[3] = {0, 0, 0};
    double cycles = 0, bytes = 0, classes = 0;
    (void)variant;
    if (reason) return reason;
    do {
        sp_view v;
        if (!sp_view_of(&v, p, hw, back, at)) return "the window of one channel does not fit the cache";
        const double need = (double)sp_entries_bytes(&v) + (double)room_bytes(&v);
        bytes = WEFT__MAX(bytes, need);
        classes++;
        cycles += v.cycles * cpu_uneven(hw, v.slots) + (back ? 25.0 : 12.0) * (double)p->attr[WEFT_SPARSE_NNZ];
    } while (back && sp_next_class(p, at));
    d->workspace = (size_t)bytes;
    /* each class is a call of its own, and along w goes through all lines of the gradient */
    const weft_tensor *out = weft__tensor(p, back ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST);
    const double again = back ? 2.0 * (double)(p->stride[2] - 1) * (double)weft_tensor_bytes(out) : 0;
    d->ns = cpu_cost(hw, weft__bytes(p) + again, cycles * SP_CYCLE, 1) + 700 * (classes - 1);
    return NULL;
}

WEFT__KERNEL(sparse_conv_fwd) = {
    .name = WEFT__NAME("sparse_conv_fwd_panel"),
    .version = 2,
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
    .version = 2,
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
