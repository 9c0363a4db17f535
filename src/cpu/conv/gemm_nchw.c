/* Dense and grouped convolution and its data gradient, channels-first, products of f32: see gemm_nchw.h. */
enum { GEMM_PAIRS = 0 };
#include "cpu/conv/gemm_nchw.h"

const gemm_factors WEFT__ISA_NAME(weft__gemm_no_factors);

weft_status WEFT__ISA_NAME(weft__gemm_nchw)(const weft__exec *e, const gemm_factors *factors) {
    return run_gemm(e, factors);
}
static weft_status run_conv(const weft__exec *e) { return run_gemm(e, &WEFT__ISA_NAME(weft__gemm_no_factors)); }

WEFT__KERNEL(conv_gemm_nchw) = {
    .name = WEFT__NAME("float_conv_nchw_gemm"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .plan = plan,
    .pack = pack,
    .run = run_conv,
};
