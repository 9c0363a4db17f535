/* f32 depthwise 3x3 stride 2, both gradients, either layout: the data gradient, then the weight gradient.
 * Math:      of the two kernels it runs
 * Traffic:   diff_dst, a quarter of src, is read twice: 10 bytes an element of src where one pass would take 9
 * Roofline:  that of the two kernels; measured against a copy of the same bytes:
 *            54% with AVX-512, 56% with AVX2 (one Zen 4 core, data from memory, 8x64x112x112)
 * Try:       weft bench conv2d:bwd:f32:nchw:n8c64h112w112:o64k3s2p1g64 */
#include "cpu/conv/dwconv3x3.h"

extern WEFT__KERNEL(f32_dwconv3x3s2_bwd_data_nchw);
extern WEFT__KERNEL(f32_dwconv3x3s2_bwd_data_nhwc);
extern WEFT__KERNEL(f32_dwconv3x3_bwd_weights_nchw);
extern WEFT__KERNEL(f32_dwconv3x3_bwd_weights_nhwc);

/* The two problems: pass by pass, with the epilogue where it asks for diff_bias; and who solves them. */
typedef struct halves {
    weft_problem data, weights;
    const weft__kernel *of_data, *of_weights;
} halves;

static halves halves_of(const weft_problem *p) {
    const bool first = !dw_ok_up(p, WEFT_PASS_BWD, DW_FIRST);
    halves h = {*p, *p,
                first ? &WEFT__RECORD(f32_dwconv3x3s2_bwd_data_nchw) : &WEFT__RECORD(f32_dwconv3x3s2_bwd_data_nhwc),
                first ? &WEFT__RECORD(f32_dwconv3x3_bwd_weights_nchw) : &WEFT__RECORD(f32_dwconv3x3_bwd_weights_nhwc)};
    h.data.pass = WEFT_PASS_BWD_DATA;
    h.data.nsteps = 0;
    h.weights.pass = WEFT_PASS_BWD_WEIGHTS;
    return h;
}

static weft_status pack(const weft__exec *e, const void *weights, void *to) {
    const halves h = halves_of(e->p);
    weft__exec call = *e;
    call.p = &h.data;
    return h.of_data->pack(&call, weights, to);
}

static weft_status run(const weft__exec *e) {
    const halves h = halves_of(e->p);
    weft__exec call = *e;
    call.p = &h.data;
    WEFT__TRY(h.of_data->run(&call));
    call.p = &h.weights;
    return h.of_weights->run(&call);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = dw_ok_up(p, WEFT_PASS_BWD, DW_FIRST) ? dw_ok_up(p, WEFT_PASS_BWD, DW_LAST) : NULL;
    if (reason) return reason;
    const halves h = halves_of(p);
    weft__decision data = {0}, weights = {0};
    h.of_data->plan(&h.data, hw, variant, &data);
    h.of_weights->plan(&h.weights, hw, variant, &weights);
    d->workspace = WEFT__MAX(data.workspace, weights.workspace);
    d->packed = data.packed;
    d->ns = dw_cost(p, hw, 4.5 * (double)(p->n * p->c) * (double)(p->in[1] * p->in[2]));
    return NULL;
}

WEFT__KERNEL(f32_dwconv3x3s2_bwd) = {
    .name = WEFT__NAME("f32_dwconv3x3s2_bwd_2pass"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .exact = true,
    .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
    .plan = plan,
    .pack = pack,
    .run = run,
};
