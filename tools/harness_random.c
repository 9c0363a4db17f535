/* Random problems, each from one seed. They are small, so that thousands fit into a minute, and lean towards what
 * goes wrong: sizes next to tile edges, empty batches, odd alignment, mixed layouts, strides with gaps. Every second
 * one is of the usual kind that fast kernels take: f32 (on CUDA 16-bit types as often), dense in one layout, a common
 * window; its sizes are as odd as the others'. An operator that has a record here is drawn with thought; any other is
 * drawn field by field from its table of fields. */
#include <string.h>

#include "harness.h"

#define PICK HARNESS_PICK
enum { PRODUCTS = 100000, TRIES = 200 }; /* multiply-adds of the direct sum, about; draws until one is valid */
enum { DRAWS = 50000 };                  /* until a kernel takes one */

/* ---------------------------------------------------------------- conv */
/* Around vectors of 4, 8 and 16, rows of 14, 28 and 56, and blocks of a few rows or columns. */
static const int edges[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20,
                            23, 24, 25, 28, 29, 31, 32, 33, 34, 47, 48, 49, 50, 55, 56, 57, 63, 64, 65, 66};
static const int shorter[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 19};
static const int channels[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 40, 48, 64, 65};

static void conv_channels(weft_problem *p, harness_rng *r, bool usual) {
    int64_t how = harness_below(r, usual ? 90 : 100);
    if (how < 60) { /* depthwise, some with a multiplier */
        p->c = p->groups = HARNESS_SIZE(r, channels);
        p->o = p->c * (how < 50 ? 1 : 2 + harness_below(r, 3));
        return;
    }
    bool wide = harness_chance(r, 40);
    p->groups = how < 80 ? 2 + harness_below(r, 5) : 1;
    p->c = p->groups * (wide ? HARNESS_SIZE(r, channels) : 1 + harness_below(r, 6));
    p->o = p->groups * (wide ? HARNESS_SIZE(r, channels) : 1 + harness_below(r, 6));
}

/* One axis of the window; plain: of that size, not dilated; 0: any. */
static void conv_axis(weft_problem *p, harness_rng *r, int a, int64_t plain, int64_t stride) {
    p->kernel[a] = plain ? plain : 1 + harness_below(r, 5);
    p->stride[a] = plain || harness_chance(r, 60) ? stride : 1 + harness_below(r, 3);
    p->dilation[a] = plain || harness_chance(r, 75) ? 1 : 1 + harness_below(r, 3);
    bool usual = harness_chance(r, plain ? 70 : 30);
    p->pad_lo[a] = usual ? p->kernel[a] / 2 : harness_below(r, 4);
    p->pad_hi[a] = usual ? p->kernel[a] / 2 : harness_below(r, 4);
    p->in[a] = a == 2 ? HARNESS_SIZE(r, edges) : a == 1 ? PICK(r, shorter) : 1 + harness_below(r, 6);
    if (p->c > 66 || p->o > 66) p->in[a] = 1 + harness_below(r, 5); /* so that the channels stay as many */
    if (harness_chance(r, 1)) p->in[a] = 0;
    int64_t window = p->dilation[a] * (p->kernel[a] - 1) + 1;
    if (p->in[a] + p->pad_lo[a] + p->pad_hi[a] < window) p->in[a] = window;
}

static double conv_products(const weft_problem *p) {
    double work = (double)p->n * (double)p->o * (double)(p->c / p->groups);
    for (int a = 0; a < 3; a++) work *= (double)(p->in[a] + 2) * (double)p->kernel[a] / (double)p->stride[a];
    return work;
}

/* Bring the work down, first the batch, then channels and rows in turn, so that widths keep their edges. */
static void conv_shrink(weft_problem *p) {
    for (int turn = 0; conv_products(p) > PRODUCTS && turn < 64; turn++) {
        int64_t per_c = p->c / p->groups, per_o = p->o / p->groups;
        if (p->n > 1)
            p->n--;
        else if (turn % 2 && p->groups > 1)
            p->groups = (p->groups + 1) / 2;
        else if (turn % 2 && per_c > 1)
            per_c = (per_c + 1) / 2;
        else
            for (int a = 0; a < 3; a++) {
                int64_t least = WEFT__MAX(1, p->dilation[a] * (p->kernel[a] - 1) + 1 - p->pad_lo[a] - p->pad_hi[a]);
                if (a < 2 || turn > 32) p->in[a] = WEFT__MAX(least, p->in[a] / 2);
            }
        p->c = p->groups * per_c;
        p->o = p->groups * per_o;
    }
}

/* Windows side by side that cover the image: patch embedding. */
static void conv_patches(weft_problem *p, harness_rng *r) {
    static const int windows[] = {1, 2, 4, 8}, widths[] = {2, 4, 8, 16}, counts[] = {1, 2, 3, 4, 7, 8};
    p->groups = 1;
    p->c = 1 + harness_below(r, 4);
    p->o = HARNESS_SIZE(r, channels);
    for (int a = 3 - p->rank; a < 3; a++) {
        p->kernel[a] = p->stride[a] = a < 2 ? PICK(r, windows) : PICK(r, widths);
        p->in[a] = p->kernel[a] * PICK(r, counts);
    }
    while (conv_products(p) > PRODUCTS && p->o > 1) p->o /= 2;
}

static void conv_draw(weft_problem *p, harness_rng *r, bool usual) {
    static const int windows[] = {3, 3, 3, 3, 3, 1, 5, 7};
    int64_t plain = usual || harness_chance(r, 30) ? PICK(r, windows) : 0, stride = harness_chance(r, 75) ? 1 : 2;
    p->n = harness_chance(r, 1) ? 0 : 1 + harness_below(r, 3);
    if (harness_chance(r, 3)) {
        conv_patches(p, r);
        return;
    }
    conv_channels(p, r, usual);
    for (int a = 3 - p->rank; a < 3; a++) conv_axis(p, r, a, plain, stride);
    conv_shrink(p);
}

static double conv_terms(const weft_problem *p, int role) {
    double window = (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]);
    switch (role) {
    case WEFT_ROLE_DST:
        return (double)(p->c / p->groups) * window;
    case WEFT_ROLE_DIFF_SRC:
        return (double)(p->o / p->groups) * window;
    default:
        return (double)p->n * (double)(p->out[0] * p->out[1] * p->out[2]);
    }
}

const harness_generator harness_conv = {conv_draw, conv_terms, NULL, 0, NULL, NULL};

/* random_norm.c */
extern const harness_generator harness_softmax, harness_cross_entropy, harness_batch_norm, harness_lrn, harness_clip;
/* random_pool.c */
extern const harness_generator harness_max_pool, harness_avg_pool, harness_adaptive_avg_pool, harness_columns;
extern const harness_generator harness_dgmm, harness_cdgmm; /* random_dgmm.c */
/* random_partial_conv.c, random_sparse_conv.c */
extern const harness_generator harness_partial_conv, harness_sparse_conv;
extern const harness_generator harness_rnn;                                /* random_rnn.c */
extern const harness_generator harness_causal_conv, harness_causal_update; /* random_causal_conv.c */

static const harness_generator *const generators[WEFT_OP_COUNT] = {
    [WEFT_OP_CAUSAL_CONV] = &harness_causal_conv,
    [WEFT_OP_CAUSAL_UPDATE] = &harness_causal_update,
    [WEFT_OP_RNN_RELU] = &harness_rnn,
    [WEFT_OP_RNN_TANH] = &harness_rnn,
    [WEFT_OP_LSTM] = &harness_rnn,
    [WEFT_OP_GRU] = &harness_rnn,
    [WEFT_OP_MAX_POOL] = &harness_max_pool,
    [WEFT_OP_AVG_POOL] = &harness_avg_pool,
    [WEFT_OP_ADAPTIVE_AVG_POOL] = &harness_adaptive_avg_pool,
    [WEFT_OP_IM2COL] = &harness_columns,
    [WEFT_OP_COL2IM] = &harness_columns,
    [WEFT_OP_DGMM] = &harness_dgmm,
    [WEFT_OP_CDGMM] = &harness_cdgmm,
    [WEFT_OP_SOFTMAX] = &harness_softmax,
    [WEFT_OP_LOG_SOFTMAX] = &harness_softmax,
    [WEFT_OP_CROSS_ENTROPY] = &harness_cross_entropy,
    [WEFT_OP_BATCH_NORM] = &harness_batch_norm,
    [WEFT_OP_LRN] = &harness_lrn,
    [WEFT_OP_CLIP] = &harness_clip,
    [WEFT_OP_CONV] = &harness_conv,
    [WEFT_OP_PARTIAL_CONV] = &harness_partial_conv,
    [WEFT_OP_SPARSE_CONV] = &harness_sparse_conv,
};

/* ---------------------------------------------------------------- any operator */
static void any_draw(weft_problem *p, harness_rng *r, bool usual) {
    (void)usual;
    const weft__op *op = weft__op_of(p->op);
    for (size_t i = 0; i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        int64_t *at = (int64_t *)(void *)((char *)p + f->offset);
        if (f->min_rank > p->rank) continue;
        if (f->kind == WEFT__FIELD_REAL) {
            *(double *)(void *)at = f->fallback + (double)harness_below(r, 9) * 0.25;
            continue;
        }
        int first = f->kind == WEFT__FIELD_INT ? 0 : 3 - p->rank, last = f->kind == WEFT__FIELD_INT ? 1 : 3;
        for (int a = first; a < last; a++) {
            at[a] = f->section == 0 ? PICK(r, shorter) : (int64_t)f->fallback + harness_below(r, 3);
            if (f->kind == WEFT__FIELD_PADS) at[a + 3] = harness_below(r, 3);
        }
    }
}

void harness_draw_data(weft_problem *p, harness_rng *r, double most) {
    p->n = harness_chance(r, 2) ? 0 : 1 + harness_below(r, 3);
    p->c = HARNESS_SIZE(r, channels);
    for (int a = 3 - p->rank; a < 3; a++)
        p->in[a] = harness_chance(r, 1) ? 0 : p->c > 66 ? 1 + harness_below(r, 4) : PICK(r, shorter);
    if (p->in[2] && p->c < 10 && harness_chance(r, 40)) p->in[2] = HARNESS_SIZE(r, edges);
    for (int turn = 0; (double)p->n * (double)p->c * (double)p->in[0] * (double)p->in[1] * (double)p->in[2] > most;
         turn++) {
        int64_t *size = turn % 4 < 3 ? &p->in[turn % 4] : &p->c;
        *size = (*size + 1) / 2;
    }
}

double harness_terms(const weft_problem *p, int role) {
    const harness_generator *g = generators[p->op];
    const weft_tensor *t = weft__tensor(p, role);
    if (g && g->terms) return g->terms(p, role);
    return WEFT__MAX(1, weft__flops(p) / 2 / (double)WEFT__MAX(1, weft__numel(t)));
}

bool harness_differences(const weft_problem *p) {
    return generators[p->op] && generators[p->op]->differences >> p->pass & 1;
}

void harness_fill_input(const weft_problem *p, harness_buffer *b, harness_kind kind, uint64_t seed) {
    const harness_generator *g = generators[p->op];
    const weft__op *op = weft__op_of(p->op);
    if (op->fill && op->fill(p, &b->tensor, b->at, seed)) {
        if (g && g->spoil && (kind == HARNESS_SPECIALS || kind == HARNESS_SPECIAL_MAGNITUDES)) g->spoil(p, b, seed);
        return;
    }
    if (WEFT__FLOATS & WEFT__BIT(b->tensor.dtype))
        harness_fill(b, kind, seed);
    else
        harness_fill_below(b, 2, seed);
    if (g && g->settle && kind != HARNESS_INTEGERS) g->settle(p, b, kind, seed);
}

void harness_relate_inputs(const weft_problem *p, harness_buffer *in, harness_kind kind, uint64_t seed) {
    const harness_generator *g = generators[p->op];
    if (g && g->relate) g->relate(p, in, kind, seed);
}

/* Up to three of bias, relu and clip in any order, a bias at most once; then, where it is allowed, accumulation. */
static void draw_epilogue(weft_problem *p, harness_rng *r) {
    static const int counts[] = {0, 0, 0, 0, 1, 1, 1, 2, 2, 3};
    static const double lows[] = {0, -1, -0.3, -7};
    const weft__pass_def *pass = weft__pass_of(p);
    bool bias = pass->biased;
    for (int left = PICK(r, counts); left > 0; left--) {
        int16_t kind = harness_chance(r, 50) ? WEFT_STEP_BIAS : harness_chance(r, 50) ? WEFT_STEP_RELU : WEFT_STEP_CLIP;
        if (kind == WEFT_STEP_BIAS ? !bias : !pass->epilogue) continue;
        weft_step *s = &p->step[p->nsteps++];
        s->kind = kind;
        if (kind == WEFT_STEP_BIAS) bias = false;
        if (kind != WEFT_STEP_CLIP) continue;
        s->lo = PICK(r, lows);
        s->hi = s->lo + (harness_chance(r, 50) ? 6 : 0.5);
    }
    if (pass->silu && harness_chance(r, 60)) p->step[p->nsteps++].kind = WEFT_STEP_SILU;
    static const double factors[] = {1, 0, -1, 0.5, 2};
    if (!pass->acc || !harness_chance(r, 15)) return;
    double fresh = PICK(r, factors), old = PICK(r, factors);
    p->step[p->nsteps++] = (weft_step){.kind = WEFT_STEP_ACC, .alpha = fresh, .beta = old};
}

/* Any order of the axes, gaps behind some of them; inputs sometimes repeat an axis with stride 0. Whole numbers are
 * offsets, indices or labels, which must differ where the operator's fill says so: they do not repeat. */
static void draw_strides(const weft_problem *p, weft_tensor *t, harness_rng *r) {
    weft_tensor shape = {0};
    weft__op_of(p->op)->shape(p, t->role, &shape);
    bool used[WEFT_MAX_RANK] = {false}, whole = t->dtype == WEFT_DTYPE_I32 || t->dtype == WEFT_DTYPE_I64;
    bool repeats = !whole && !weft__is_output(p, t->role);
    int64_t stride = harness_chance(r, 80) ? 1 : 2;
    t->layout = WEFT_LAYOUT_STRIDED;
    for (int k = 0; k < shape.rank; k++) {
        int a = harness_chance(r, 50) ? shape.rank - 1 : (int)harness_below(r, shape.rank);
        while (used[a]) a = (a + shape.rank - 1) % shape.rank;
        used[a] = true;
        t->strides[a] = stride;
        if (repeats && harness_chance(r, 3)) t->strides[a] = 0;
        stride *= WEFT__MAX(1, shape.dims[a]) + (harness_chance(r, 30) ? harness_below(r, 5) : 0);
    }
}

/* The wanted type where the role takes it, else any that it takes. */
static int16_t draw_dtype(const weft_problem *p, int role, int16_t wanted, harness_rng *r) {
    uint64_t allowed = weft__op_of(p->op)->dtypes(p, role);
    while (!(allowed & WEFT__BIT(wanted))) wanted = (int16_t)(1 + harness_below(r, WEFT_DTYPE_COUNT - 1));
    return wanted;
}

static void draw_tensors(weft_problem *p, harness_rng *r, bool usual) {
    static const int16_t dtypes[] = {WEFT_DTYPE_F32, WEFT_DTYPE_F32, WEFT_DTYPE_F32, WEFT_DTYPE_F32, WEFT_DTYPE_F32,
                                     WEFT_DTYPE_F32, WEFT_DTYPE_F64, WEFT_DTYPE_F16, WEFT_DTYPE_BF16};
    static const int16_t layouts[] = {WEFT_LAYOUT_FIRST, WEFT_LAYOUT_FIRST, WEFT_LAYOUT_FIRST,  WEFT_LAYOUT_LAST,
                                      WEFT_LAYOUT_LAST,  WEFT_LAYOUT_LAST,  WEFT_LAYOUT_STRIDED};
    const bool narrow = usual && p->device == WEFT_DEVICE_CUDA && harness_chance(r, 50);
    int16_t dtype = narrow  ? dtypes[7 + harness_below(r, 2)]
                    : usual ? WEFT_DTYPE_F32
                            : PICK(r, dtypes),
            layout = usual ? layouts[2 + harness_below(r, 2)] : PICK(r, layouts);
    bool mixed = !usual && harness_chance(r, 15), wide_bias = harness_chance(r, 50), sliced = harness_chance(r, 25);
    uint64_t roles = weft__roles(p);
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        if (!(roles & WEFT__BIT(role))) continue;
        weft_tensor *t = weft_problem_tensor(p, (weft_role)role);
        bool bias = role == WEFT_ROLE_BIAS || role == WEFT_ROLE_DIFF_BIAS;
        t->dtype = draw_dtype(p, role, bias && wide_bias && dtype != WEFT_DTYPE_F64 ? WEFT_DTYPE_F32 : dtype, r);
        t->layout = bias ? WEFT_LAYOUT_FIRST : mixed ? PICK(r, layouts) : layout;
        if (role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_DIFF_WEIGHTS)
            t->layout = harness_chance(r, 70) ? WEFT_LAYOUT_FIRST : t->layout;
        if (t->layout == WEFT_LAYOUT_STRIDED) draw_strides(p, t, r);
        int32_t least = (int32_t)weft__dtype_size(t->dtype), slice = (int32_t)4 << harness_below(r, 2);
        if (sliced)
            t->align = WEFT__MAX(least, slice);
        else if (harness_chance(r, 5))
            t->align = least << harness_below(r, 6);
    }
}

bool harness_random(weft_problem *p, uint64_t seed, int device) { return harness_random_of(p, seed, device, 0); }

bool harness_random_of(weft_problem *p, uint64_t seed, int device, int wanted) {
    harness_rng r = {seed};
    for (int i = 0; i < TRIES; i++) {
        int any = 1 + (int)harness_below(&r, WEFT_OP_COUNT - 1);
        const weft__op *op = weft__op_of(wanted ? wanted : any);
        const weft__pass_def *pass = &op->passes[harness_below(&r, (int64_t)op->npasses)];
        bool usual = harness_chance(&r, 50);
        int rank = op->min_rank + (int)harness_below(&r, op->max_rank - op->min_rank + 1);
        if (usual) rank = WEFT__MAX(op->min_rank, WEFT__MIN(2, op->max_rank));
        p->size = sizeof(*p);
        if (weft_problem_init(p, (weft_op)op->op, (weft_pass)pass->pass, rank) != WEFT_OK) return false;
        p->device = device;
        p->math = harness_chance(&r, 80) ? WEFT_MATH_FAST : harness_chance(&r, 70) ? WEFT_MATH_STRICT : WEFT_MATH_TF32;
        draw_epilogue(p, &r);
        const harness_generator *g = generators[op->op];
        bool known = g && g->draw;
        (known ? g->draw : any_draw)(p, &r, usual);
        bool valid = op->check(p) == WEFT_OK; /* sets the sizes that shapes follow from */
        if (valid) draw_tensors(p, &r, usual);
        if (valid && weft_problem_complete(p) == WEFT_OK) return true;
        if (known) return false; /* a record draws only valid problems */
    }
    return false;
}

bool harness_random_for(weft_problem *p, uint64_t *seed, int device, const weft_ctx *ctx, const weft__kernel *k,
                        const weft__hw *hw) {
    for (uint64_t t = 0; t < DRAWS; t++, *seed = harness_mix(*seed, t)) {
        if (!harness_random_of(p, *seed, device, k->op)) return false;
        if (harness_takes(ctx, k, p, hw)) return true;
    }
    weft__fail(WEFT_ERR_UNSUPPORTED, "none of %d problems is for %s: name problems for it", DRAWS, k->name);
    return false;
}

/* The fast kernel number i, around the table, that runs on this machine; NULL: there is none. */
static const weft__kernel *fast_kernel(int device, const weft__hw *hw, uint64_t i) {
    const weft__kernel *const *list;
    const size_t count = weft__kernels(0, &list);
    size_t usable = 0;
    for (int pass = 0; pass < 2; pass++) {
        const size_t wanted = pass ? i % usable : SIZE_MAX;
        usable = 0;
        for (size_t k = 0; k < count; k++) {
            bool cuda = list[k]->engine == WEFT_ENGINE_CUDA;
            if (list[k]->reference || cuda != (device == WEFT_DEVICE_CUDA) || !weft__hw_runs(hw, list[k]->isa))
                continue;
            if (usable++ == wanted) return list[k];
        }
        if (!usable) return NULL;
    }
    return NULL;
}

bool harness_stream(weft_problem *p, uint64_t *seed, int device, weft_ctx *ctx, uint64_t i) {
    weft__hw hw;
    weft_problem probe = {.device = device};
    if (weft__ctx_hw(ctx, &probe, &hw) != WEFT_OK) return false;
    const weft__kernel *k = i % 2 ? fast_kernel(device, &hw, i / 2) : NULL;
    if (k && harness_random_for(p, seed, device, ctx, k, &hw)) return true;
    return harness_random(p, *seed, device);
}
