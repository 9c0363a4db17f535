/* Partial convolution, every pass, as the dense one with factors on the way in and out: by matrix products, both
 * layouts, and by Fourier transforms, channels-first.
 * Math:      S = window sums of the mask, u = clamp(S, 0, 1), r = W / (S + 1e-8) * u
 *            fwd: dst = (conv(src * m) * r + bias) * u; gradients: diff_dst * r (* u) takes the place of diff_dst,
 *            src * m that of src, and diff_src is multiplied by m
 * Blocking:  planes of m, r and u, one channel of f32 each, are made once, for as many images at a time as 3 MB hold,
 *            in bands of rows (planes.h: the cost of a window is kd * kh + kw). The matrix product multiplies by
 *            them while it copies its panels and while it stores: no masked copy of a tensor is kept
 * Traffic:   that of the dense convolution and a few planes of one channel
 * Roofline:  multiply-add peak; by transforms below it. Measured against the matrix product on two busy Zen 4 cores,
 *            forward and both gradients: k 5, 2x64->128 of 128x128, 2.8x and 3.5x by Fourier transforms; k 3, 4x256
 *            of 32x32, 1.7x and 1.3x by Winograd. With few channels in or out (67 to 3 of 256x256)
 *            a direct sum takes the place of the matrix product, whose copy of each tap would cost more than its sums
 * Assumes:   convolution, not transposed. A mask with a channel each takes a masked copy of some images: every.h
 * Try:       weft bench partial_conv2d:fwd:f32:nchw:n4c256h32w32:o256k3p1 */
#include "cpu/partial_conv/planes.h"

extern WEFT__KERNEL(conv_gemm_nchw);
extern WEFT__KERNEL(conv_gemm_nhwc);
extern WEFT__KERNEL(conv_gemm_bwd_weights);
extern WEFT__KERNEL(conv_gemm_columns_bwd_data);
extern WEFT__KERNEL(conv_gemm_columns_bwd_weights);
extern WEFT__KERNEL(conv_grouped);
extern WEFT__KERNEL(conv_grouped_bwd_weights);
extern WEFT__KERNEL(f32_conv_fft_fwd_nchw);
extern WEFT__KERNEL(f32_conv_fft_bwd_weights_nchw);
extern WEFT__KERNEL(f32_winograd_fwd_nchw);
extern WEFT__KERNEL(f32_winograd_bwd_weights_nchw);
extern WEFT__KERNEL(f32_winograd_s2_fwd_nchw);
extern WEFT__KERNEL(f32_winograd_s2_bwd_weights_nchw);

/* The products with factors, and the records that plan and pack for them. */
typedef weft_status (*product_fn)(const weft__exec *, const gemm_factors *);
typedef struct product {
    const weft__kernel *kernel;
    product_fn run;
} product;
enum { GEMM_FIRST, GEMM_LAST, FFT_FIRST, WINOGRAD_FIRST, WINOGRAD_S2_FIRST, DIRECT_FIRST };
static const product data_by[] = {
    [GEMM_FIRST] = {&WEFT__RECORD(conv_gemm_nchw), WEFT__ISA_NAME(weft__gemm_nchw)},
    [GEMM_LAST] = {&WEFT__RECORD(conv_gemm_nhwc), WEFT__ISA_NAME(weft__gemm_nhwc)},
    /* these: the data gradient too */
    [FFT_FIRST] = {&WEFT__RECORD(f32_conv_fft_fwd_nchw), WEFT__ISA_NAME(weft__fft_nchw)},
    [WINOGRAD_FIRST] = {&WEFT__RECORD(f32_winograd_fwd_nchw), WEFT__ISA_NAME(weft__winograd_nchw)},
    [WINOGRAD_S2_FIRST] = {&WEFT__RECORD(f32_winograd_s2_fwd_nchw), WEFT__ISA_NAME(weft__winograd_nchw)},
    [DIRECT_FIRST] = {&WEFT__RECORD(conv_grouped), WEFT__ISA_NAME(weft__conv_grouped)},
};
static const product weights_by[] = {
    [GEMM_FIRST] = {&WEFT__RECORD(conv_gemm_bwd_weights), WEFT__ISA_NAME(weft__gemm_weights)},
    [GEMM_LAST] = {&WEFT__RECORD(conv_gemm_bwd_weights), WEFT__ISA_NAME(weft__gemm_weights)},
    [FFT_FIRST] = {&WEFT__RECORD(f32_conv_fft_bwd_weights_nchw), WEFT__ISA_NAME(weft__fft_weights)},
    [WINOGRAD_FIRST] = {&WEFT__RECORD(f32_winograd_bwd_weights_nchw), WEFT__ISA_NAME(weft__winograd_weights)},
    [WINOGRAD_S2_FIRST] = {&WEFT__RECORD(f32_winograd_s2_bwd_weights_nchw), WEFT__ISA_NAME(weft__winograd_weights)},
    [DIRECT_FIRST] = {&WEFT__RECORD(conv_grouped_bwd_weights), WEFT__ISA_NAME(weft__conv_grouped_weights)},
};

/* Of few positions, in place of the product by matrix or Winograd where it is faster. */
static const product data_columns = {&WEFT__RECORD(conv_gemm_columns_bwd_data),
                                     WEFT__ISA_NAME(weft__gemm_columns_data)};
static const product weights_columns = {&WEFT__RECORD(conv_gemm_columns_bwd_weights),
                                        WEFT__ISA_NAME(weft__gemm_columns_weights)};

/* Of few positions the direct sums would mostly add up the lanes of vectors. */
enum { DIRECT_LEAST = 1024 };
static bool is_small(const weft_problem *p) { return p->n * p->out[0] * p->out[1] * p->out[2] < DIRECT_LEAST; }
typedef struct params {
    int how;             /* which product */
    bool columns[2];     /* the data, the weights, by columns instead */
    size_t planes, sums; /* bytes of the planes of the factors; of the running sums */
    size_t copy, extra;  /* of a masked copy of some images; of the gradients of weights of some */
    _Alignas(16) unsigned char data[GEMM_PARAMS], weights[GEMM_PARAMS];
} params;

static const product *of_weights(const weft_problem *p, const params *d) {
    if (d->columns[1]) return &weights_columns;
    return &weights_by[d->how == DIRECT_FIRST && is_small(p) ? GEMM_FIRST : d->how];
}
static const product *of_data(const params *d) { return d->columns[0] ? &data_columns : &data_by[d->how]; }

/* ---------------------------------------------------------------- driver */
/* The problem of one product: the data gradient has no bias step, which only asks for diff_bias and says that forward
 * had a bias. */
static weft_problem half_of(const weft_problem *p, int pass) {
    weft_problem h = *p;
    h.pass = pass;
    if (every_is(p) || every_step(p) < p->n) every_reduce(&h, every_step(p));
    if (p->pass != WEFT_PASS_BWD || pass == WEFT_PASS_BWD_WEIGHTS) return h;
    h.nsteps = 0;
    if (weft__has_step(p, WEFT_STEP_BIAS)) h.attr[WEFT_PARTIAL_BIASED] = 1;
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_ACC) h.step[h.nsteps++] = p->step[i];
    return h;
}

static bool has_data(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD || p->pass == WEFT_PASS_BWD_DATA || p->pass == WEFT_PASS_BWD;
}
static bool has_weights(const weft_problem *p) { return p->pass != WEFT_PASS_FWD && p->pass != WEFT_PASS_BWD_DATA; }
static int data_pass(const weft_problem *p) { return p->pass == WEFT_PASS_FWD ? WEFT_PASS_FWD : WEFT_PASS_BWD_DATA; }
static int weights_pass(const weft_problem *p) {
    return p->pass == WEFT_PASS_BWD_BIAS ? WEFT_PASS_BWD_BIAS : WEFT_PASS_BWD_WEIGHTS;
}

static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    const params *d = e->params;
    const weft_problem h = half_of(e->p, data_pass(e->p));
    weft__exec call = *e;
    call.p = &h, call.params = d->data;
    return of_data(d)->kernel->pack(&call, weights, packed);
}

static gemm_factor factor_of(const planes *q, const float *at, int64_t positions) {
    return (gemm_factor){at, q->images > 1 ? positions : 0, false};
}

static gemm_factors factors_of(const planes *q, bool fwd) {
    const weft_problem *p = q->e->p;
    const weft_tensor *mask = weft__tensor(p, WEFT_ROLE_MASK);
    gemm_factors f = {.diff = factor_of(q, q->scale, q->out), .bias = factor_of(q, q->keep, q->out)};
    if (mask && !every_is(p)) f.in = factor_of(q, q->mask, q->in), f.in.selects = mask->dtype == WEFT_DTYPE_U8;
    if (fwd) {
        f.ratio = factor_of(q, q->ratio, q->out);
        if (planes_are_biased(p)) f.out = f.bias;
    }
    return f;
}

/* Gradients of weights and bias of these images, added to those of the images before. */
static void add_extra(const weft_problem *p, int role, void *const *ptr, const float *extra) {
    const weft_tensor *t = weft__tensor(p, role);
    for (int64_t i = 0; t && i < weft__numel(t); i++) ((float *)ptr[role])[i] += extra[i];
}

/* The products of images n .. n + step. `call` is a copy: its pointers and problem are of this step alone. */
static weft_status run_images(const planes *q, weft__exec call, int64_t n) {
    const params *d = q->e->params;
    const weft_problem *p = q->e->p;
    const int64_t step = every_step(p);
    gemm_factors f = factors_of(q, p->pass == WEFT_PASS_FWD);
    void *ptr[WEFT_ROLE_COUNT];
    memcpy(ptr, q->e->ptr, sizeof(ptr));
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        const bool data = t->role == WEFT_ROLE_SRC || t->role == WEFT_ROLE_DST || t->role == WEFT_ROLE_DIFF_SRC ||
                          t->role == WEFT_ROLE_DIFF_DST;
        if (data && n)
            ptr[t->role] = (char *)ptr[t->role] + n * (weft__numel(t) / p->n) * (int64_t)weft__dtype_size(t->dtype);
    }
    call.ptr = ptr;
    if (d->copy) {
        void *copy = (char *)q->e->workspace + d->planes + d->sums;
        every_apply(q->e, n, step, ptr[WEFT_ROLE_SRC], copy, weft__tensor(p, WEFT_ROLE_SRC)->dtype);
        ptr[WEFT_ROLE_SRC] = copy;
    }
    if (has_weights(p)) {
        const weft_problem h = half_of(p, weights_pass(p));
        const weft_tensor *weights = weft__tensor(p, WEFT_ROLE_DIFF_WEIGHTS);
        float *extra = (float *)(void *)((char *)q->e->workspace + d->planes + d->sums + d->copy), *bias = extra;
        if (n) {
            bias += cpu_round_up(weft__numel(weights), 16);
            ptr[WEFT_ROLE_DIFF_WEIGHTS] = extra, ptr[WEFT_ROLE_DIFF_BIAS] = bias;
        }
        call.p = &h, call.params = d->weights;
        WEFT__TRY(of_weights(p, d)->run(&call, &f));
        if (n) add_extra(p, WEFT_ROLE_DIFF_WEIGHTS, q->e->ptr, extra);
        if (n) add_extra(p, WEFT_ROLE_DIFF_BIAS, q->e->ptr, bias);
    }
    if (!has_data(p)) return WEFT_OK;
    if (p->pass != WEFT_PASS_FWD) f.out = f.in, f.in = f.diff;
    const weft_problem h = half_of(p, data_pass(p));
    call.p = &h, call.params = d->data;
    WEFT__TRY(of_data(d)->run(&call, &f));
    if (every_is(p) && p->pass != WEFT_PASS_FWD)
        every_apply(q->e, n, step, ptr[WEFT_ROLE_DIFF_SRC], ptr[WEFT_ROLE_DIFF_SRC],
                    weft__tensor(p, WEFT_ROLE_DIFF_SRC)->dtype);
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    planes q = planes_of(e);
    weft__exec call = *e;
    call.workspace = (char *)e->workspace + d->planes + d->sums + d->copy + d->extra;
    do { /* also without images: sums and the new mask of a problem without a mask */
        if (q.first == 0 || !every_is_shared(p)) planes_run(&q);
        WEFT__TRY(run_images(&q, call, q.first));
        q.first += every_step(p);
    } while (q.first < p->n);
    return WEFT_OK;
}

/* Is the other product faster, by rates that no machine measured: it follows from the problem alone, as the bits do. */
static bool has_faster(const weft_problem *p, const weft__hw *hw, const product *own, const product *other) {
    weft__hw nominal = *hw;
    weft__hw_nominal(&nominal);
    weft__decision a = {0}, b = {0};
    return !own->kernel->plan(p, &nominal, 0, &a) && !other->kernel->plan(p, &nominal, 0, &b) && b.ns < a.ns;
}

static const char *plan_with(const weft_problem *p, const weft__hw *hw, int how, weft__decision *out) {
    if (p->attr[WEFT_PARTIAL_TRANSPOSED]) return "transposed";
    if (weft__has_step(p, WEFT_STEP_BIAS) && p->pass == WEFT_PASS_FWD && p->step[0].kind != WEFT_STEP_BIAS)
        return "the epilogue is not in the order bias, relu, clip";
    const weft_tensor *sums = weft__tensor(p, WEFT_ROLE_SUMS), *mask = weft__tensor(p, WEFT_ROLE_MASK);
    if (sums && p->pass != WEFT_PASS_FWD && !weft__is_first(sums)) return "sums are not dense";
    if (mask && !every_is(p) && !weft__is_first(mask)) return "the mask is not dense";
    const char *reason = every_refusal(p);
    if (reason) return reason;
    params *d = WEFT__PARAMS(params, out);
    d->how = how;
    const int64_t step = every_step(p);
    const weft_tensor *src = weft__tensor(p, WEFT_ROLE_SRC), *of_weight = weft__tensor(p, WEFT_ROLE_DIFF_WEIGHTS);
    if (every_is(p) && src)
        d->copy = (size_t)cpu_round_up(step * every_image(p) * (int64_t)weft__dtype_size(src->dtype), 64);
    if (step < p->n && of_weight)
        d->extra = (size_t)cpu_round_up(weft__numel(of_weight) + p->o + 32, 16) * sizeof(float);
    d->planes = planes_bytes(p), d->sums = planes_sum_bytes(p);
    weft__decision data = {0}, weights = {0};
    if (has_data(p)) {
        const weft_problem h = half_of(p, data_pass(p));
        d->columns[0] = p->pass != WEFT_PASS_FWD && has_faster(&h, hw, of_data(d), &data_columns);
        reason = of_data(d)->kernel->plan(&h, hw, 0, &data);
    }
    if (has_weights(p) && !reason) {
        const weft_problem h = half_of(p, weights_pass(p));
        d->columns[1] = p->pass != WEFT_PASS_BWD_BIAS && has_faster(&h, hw, of_weights(p, d), &weights_columns);
        reason = of_weights(p, d)->kernel->plan(&h, hw, 0, &weights);
    }
    if (reason) return reason;
    memcpy(d->data, data.params, GEMM_PARAMS), memcpy(d->weights, weights.params, GEMM_PARAMS);
    out->workspace = d->planes + d->sums + d->copy + d->extra + WEFT__MAX(data.workspace, weights.workspace);
    out->packed = data.packed;
    out->ns = (data.ns + weights.ns) * (step ? (double)(p->n / step) : 1);
    if (every_is(p)) out->ns += 3.0 * (double)(p->n * every_image(p)) * 4 / hw->gbs;
    return NULL;
}

/* Results are scaled in runs of one row, of `most` positions at most: ns on one thread. */
static double scaled_ns(const weft_problem *p, int64_t most) {
    const int64_t runs = p->out[0] * p->out[1] * cpu_ceil(p->out[2], WEFT__MAX(most, 1));
    return p->pass == WEFT_PASS_FWD ? 40 * (double)(p->n * p->o) * (double)runs : 0;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const bool last = cpu_layout_refusal(p, WEFT_LAYOUT_FIRST) != NULL;
    const char *reason = plan_with(p, hw, last ? GEMM_LAST : GEMM_FIRST, out);
    if (!reason && !last) out->ns += scaled_ns(p, GEMM_NR) / hw->threads;
    return reason;
}
static const char *plan_fft(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_with(p, hw, FFT_FIRST, out);
}
static const char *plan_winograd(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_with(p, hw, WINOGRAD_FIRST, out);
}
static const char *plan_winograd_s2(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_with(p, hw, WINOGRAD_S2_FIRST, out);
}
static const char *plan_direct(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const char *reason = cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
    if (!reason && p->pass == WEFT_PASS_BWD_WEIGHTS && is_small(p)) reason = "few positions: a matrix product";
    if (!reason) reason = plan_with(p, hw, DIRECT_FIRST, out);
    const double src = (double)(p->c * p->in[0] * p->in[1]), diff = (double)(p->o * p->out[0] * p->out[1]);
    const double laid = (double)p->n * (src + (has_weights(p) ? diff : 0));
    if (!reason) out->ns += (scaled_ns(p, p->out[2]) + 20 * laid) / hw->threads; /* rows are laid, then masked */
    return reason;
}

WEFT__KERNEL(partial_conv_gemm) = {
    .name = WEFT__NAME("float_partial_conv_gemm"),
    .version = 2,
    .op = WEFT_OP_PARTIAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .bound = 2,
    .plan = plan,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(partial_conv_direct) = {
    .name = WEFT__NAME("float_partial_conv_direct_nchw"),
    .version = 2,
    .op = WEFT_OP_PARTIAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .not_strict = true,
    .bound = 2,
    .plan = plan_direct,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_partial_conv_fft) = {
    .name = WEFT__NAME("f32_partial_conv_fft_nchw_32"),
    .version = 1,
    .op = WEFT_OP_PARTIAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .bound = 2,
    .plan = plan_fft,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_partial_conv_winograd) = {
    .name = WEFT__NAME("f32_partial_conv3x3_nchw_winograd2"),
    .version = 2,
    .op = WEFT_OP_PARTIAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .bound = 2,
    .plan = plan_winograd,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_partial_conv_winograd_s2) = {
    .name = WEFT__NAME("f32_partial_conv_s2_nchw_winograd2"),
    .version = 1,
    .op = WEFT_OP_PARTIAL_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA) | WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .bound = 2,
    .plan = plan_winograd_s2,
    .pack = pack,
    .run = run,
};
