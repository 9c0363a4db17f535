/* The weight gradient of dense and grouped convolution, both layouts, products of f32: see gemm_weights.h. */
enum { GEMM_PAIRS = 0 };
#include "cpu/conv/gemm_weights.h"

weft_status WEFT__ISA_NAME(weft__gemm_weights)(const weft__exec *e, const gemm_factors *factors) {
    return run_gemm(e, factors);
}
static weft_status run(const weft__exec *e) { return run_gemm(e, &WEFT__ISA_NAME(weft__gemm_no_factors)); }

WEFT__KERNEL(conv_gemm_bwd_weights) = {
    .name = WEFT__NAME("float_conv_bwd_weights_gemm"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS) | WEFT__PASS_SET(BWD_BIAS),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .plan = plan,
    .run = run,
};
