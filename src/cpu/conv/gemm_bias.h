/* The bias gradient of weight gradients that are not a matrix product: the kernel of the matrix product sums it, with
 * the parameters that theirs hold. */
#ifndef WEFT_CPU_CONV_GEMM_BIAS_H
#define WEFT_CPU_CONV_GEMM_BIAS_H
#include "cpu/conv/gemm_view.h"

extern WEFT__KERNEL(conv_gemm_bwd_weights);

typedef struct gemm_bias {
    _Alignas(16) unsigned char params[GEMM_WEIGHTS_PARAMS];
} gemm_bias;

/* Without a diff_bias d stays as it is. */
static inline const char *gemm_bias_plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d,
                                         gemm_bias *to) {
    if (!weft__tensor(p, WEFT_ROLE_DIFF_BIAS)) return NULL;
    weft_problem h = *p;
    h.pass = WEFT_PASS_BWD_BIAS;
    const char *reason = WEFT__RECORD(conv_gemm_bwd_weights).plan(&h, hw, variant, d);
    if (!reason) memcpy(to->params, d->params, sizeof(to->params));
    return reason;
}

static inline weft_status gemm_bias_run(const weft__exec *e, const gemm_bias *bias, const gemm_factors *factors) {
    if (!weft__tensor(e->p, WEFT_ROLE_DIFF_BIAS)) return WEFT_OK;
    weft_problem h = *e->p;
    weft__exec call = *e;
    h.pass = WEFT_PASS_BWD_BIAS, call.p = &h, call.params = bias->params;
    return WEFT__ISA_NAME(weft__gemm_weights)(&call, factors);
}
#endif
