/* Both gradients of dense and grouped convolution, either layout: the data gradient, then the weight gradient. One
 * record takes the exact kernels alone, the other those in tiles too, by Fourier transform and Winograd.
 * Math:      of the two kernels it runs
 * Traffic:   diff_dst twice; next to the multiply-adds that costs nothing
 * Try:       weft bench conv2d:bwd:f32:nchw:n8c128h28w28:o128k3p1 */
#include "cpu/conv/gemm_view.h"

extern WEFT__KERNEL(conv_gemm_nchw);
extern WEFT__KERNEL(conv_gemm_nhwc);
extern WEFT__KERNEL(conv_grouped);
extern WEFT__KERNEL(conv_gemm_bwd_weights);
extern WEFT__KERNEL(conv_grouped_bwd_weights);
extern WEFT__KERNEL(conv_gemm_columns_bwd_data);
extern WEFT__KERNEL(conv_gemm_columns_bwd_weights);
extern WEFT__KERNEL(f32_conv_fft8_bwd_data_nchw);
extern WEFT__KERNEL(f32_conv_fft_bwd_data_nchw);
extern WEFT__KERNEL(f32_conv_fft_bwd_weights_nchw);
extern WEFT__KERNEL(f32_winograd_bwd_data_nchw);
extern WEFT__KERNEL(f32_winograd_bwd_weights_nchw);
extern WEFT__KERNEL(f32_winograd_s2_bwd_data_nchw);
extern WEFT__KERNEL(f32_winograd_s2_bwd_weights_nchw);

static const weft__kernel *const of_data[] = {&WEFT__RECORD(conv_gemm_nchw),
                                              &WEFT__RECORD(conv_gemm_nhwc),
                                              &WEFT__RECORD(conv_grouped),
                                              &WEFT__RECORD(conv_gemm_columns_bwd_data),
                                              &WEFT__RECORD(f32_conv_fft8_bwd_data_nchw),
                                              &WEFT__RECORD(f32_conv_fft_bwd_data_nchw),
                                              &WEFT__RECORD(f32_winograd_bwd_data_nchw),
                                              &WEFT__RECORD(f32_winograd_s2_bwd_data_nchw)};
static const weft__kernel *const of_weights[] = {
    &WEFT__RECORD(conv_gemm_bwd_weights),         &WEFT__RECORD(conv_grouped_bwd_weights),
    &WEFT__RECORD(conv_gemm_columns_bwd_weights), &WEFT__RECORD(f32_conv_fft_bwd_weights_nchw),
    &WEFT__RECORD(f32_winograd_bwd_weights_nchw), &WEFT__RECORD(f32_winograd_s2_bwd_weights_nchw)};

typedef struct params {
    int data, weights; /* who solves it */
    _Alignas(16) unsigned char half[2][GEMM_PARAMS];
} params;

/* The problem of one pass: that of the data without diff_weights, whose layout is not its own, and without the bias in
 * the epilogue, which only asks for diff_bias. */
static weft_problem half_of(const weft_problem *p, int pass) {
    weft_problem h = *p;
    h.pass = pass;
    if (pass == WEFT_PASS_BWD_WEIGHTS) return h;
    h.nsteps = h.ntensors = 0;
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role != WEFT_ROLE_DIFF_WEIGHTS) h.tensor[h.ntensors++] = p->tensor[i];
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_ACC) h.step[h.nsteps++] = p->step[i];
    return h;
}

static weft_status pack(const weft__exec *e, const void *weights, void *to) {
    const params *d = e->params;
    const weft_problem h = half_of(e->p, WEFT_PASS_BWD_DATA);
    weft__exec call = *e;
    call.p = &h, call.params = d->half[0];
    return of_data[d->data]->pack(&call, weights, to);
}

static weft_status run(const weft__exec *e) {
    const params *d = e->params;
    weft_problem h = half_of(e->p, WEFT_PASS_BWD_DATA);
    weft__exec call = *e;
    call.p = &h, call.params = d->half[0];
    WEFT__TRY(of_data[d->data]->run(&call));
    h = half_of(e->p, WEFT_PASS_BWD_WEIGHTS);
    call.params = d->half[1];
    return of_weights[d->weights]->run(&call);
}

/* The fastest of the kernels that are exact, of those that are not, or of all, by rates that no machine measured: which
 * it is follows from the problem alone, and so do the bits. NULL: found. */
enum { EXACT, TILED, ANY };
static const char *choose(const weft__kernel *const *list, size_t count, int kind, const weft_problem *p,
                          const weft__hw *hw, int *which, weft__decision *best) {
    const char *reason = NULL;
    double least = HUGE_VAL;
    weft__hw nominal = *hw;
    weft__hw_nominal(&nominal);
    for (size_t i = 0; i < count; i++) {
        weft__decision d = {0};
        if (kind != ANY && (kind == EXACT) != list[i]->exact) continue;
        const bool strict = p->math == WEFT_MATH_STRICT && list[i]->not_strict;
        const char *why = strict ? "strict math" : list[i]->plan(p, &nominal, 0, &d);
        if (why) reason = why;
        if (!why && d.ns < least) least = d.ns, *which = (int)i;
    }
    if (least == HUGE_VAL) return reason ? reason : "no kernel";
    *best = (weft__decision){0};
    return list[*which]->plan(p, hw, 0, best);
}

/* Not exact: a kernel in tiles for the data gradient, or for that of the weights where the other has none. Whether it
 * applies follows from the problem alone. */
static const char *plan_of(const weft_problem *p, const weft__hw *hw, weft__decision *out, bool exact) {
    params *d = WEFT__PARAMS(params, out);
    const size_t ndata = WEFT__COUNT(of_data), nweights = WEFT__COUNT(of_weights);
    weft__decision data, weights;
    weft_problem h = half_of(p, WEFT_PASS_BWD_DATA);
    const char *reason = choose(of_data, ndata, exact ? EXACT : TILED, &h, hw, &d->data, &data), *data_reason = reason;
    if (reason && !exact) reason = choose(of_data, ndata, EXACT, &h, hw, &d->data, &data);
    if (reason) return reason;
    h = half_of(p, WEFT_PASS_BWD_WEIGHTS);
    reason = choose(of_weights, nweights, exact ? EXACT : data_reason ? TILED : ANY, &h, hw, &d->weights, &weights);
    if (reason) return data_reason ? data_reason : reason;
    memcpy(d->half[0], data.params, GEMM_PARAMS), memcpy(d->half[1], weights.params, GEMM_PARAMS);
    out->workspace = WEFT__MAX(data.workspace, weights.workspace);
    out->packed = data.packed;
    out->ns = data.ns + weights.ns;
    return NULL;
}
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_of(p, hw, out, true);
}
static const char *plan_tiled(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    return plan_of(p, hw, out, false);
}

WEFT__KERNEL(conv_gemm_bwd) = {
    .name = WEFT__NAME("float_conv_bwd_gemm_2pass"),
    .version = 2,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_conv_tiled_bwd_nchw) = {
    .name = WEFT__NAME("f32_conv_bwd_nchw_tiled_2pass"),
    .version = 2,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD),
    .steps = WEFT__STEP_SET(BIAS),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan_tiled,
    .pack = pack,
    .run = run,
};
