/* Depthwise 3x3 stride 2, channels-first, both gradients: the data gradient, then the weight gradient.
 * Math:      of the two kernels it runs
 * Traffic:   diff_dst, a quarter of src, is read twice: 10 bytes an element of src where one pass would take 9
 * Roofline:  that of the two kernels; measured against a copy of the same bytes:
 *            54% with AVX-512, 56% with AVX2 (one Zen 4 core, data from memory, 8x64x112x112)
 * Try:       weft bench conv2d:bwd:f32:nchw:n8c64h112w112:o64k3s2p1g64 */
#include "cpu/conv/dwconv3x3.h"

extern WEFT__KERNEL(dwconv3x3s2_bwd_data_nchw);
extern WEFT__KERNEL(dwconv3x3_bwd_weights_nchw);

/* The problem of one pass: the epilogue, which asks for diff_bias, goes with the weights. */
static weft_problem half_of(const weft_problem *p, weft_pass pass) {
    weft_problem h = *p;
    h.pass = pass;
    if (pass == WEFT_PASS_BWD_DATA) h.nsteps = 0;
    return h;
}

static weft_status run(const weft__exec *e) {
    const weft_problem data = half_of(e->p, WEFT_PASS_BWD_DATA), weights = half_of(e->p, WEFT_PASS_BWD_WEIGHTS);
    weft__exec call = *e;
    call.p = &data;
    WEFT__TRY(WEFT__RECORD(dwconv3x3s2_bwd_data_nchw).run(&call));
    call.p = &weights;
    return WEFT__RECORD(dwconv3x3_bwd_weights_nchw).run(&call);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *why = dw_refusal(p, 2, 2, false);
    if (why) return why;
    const weft_problem of_data = half_of(p, WEFT_PASS_BWD_DATA), of_weights = half_of(p, WEFT_PASS_BWD_WEIGHTS);
    weft__decision data = {0}, weights = {0};
    WEFT__RECORD(dwconv3x3s2_bwd_data_nchw).plan(&of_data, hw, variant, &data);
    WEFT__RECORD(dwconv3x3_bwd_weights_nchw).plan(&of_weights, hw, variant, &weights);
    d->workspace = WEFT__MAX(data.workspace, weights.workspace);
    d->ns = dw_cost(p, hw, 4.5 * (double)(p->n * p->c) * (double)(p->in[1] * p->in[2]), p->in[2]);
    return NULL;
}

DW_RECORD(dwconv3x3s2_bwd, "dwconv3x3s2_bwd_2pass", BWD, WEFT__STEP_SET(BIAS), .pack = NULL);
