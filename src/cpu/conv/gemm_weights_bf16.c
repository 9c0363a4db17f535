/* The weight gradient of dense and grouped convolution, both layouts, bf16 by dot products of pairs: gemm_weights.h.
 * Roofline:  twice the multiply-add peak where the CPU has the instruction. Measured on two Zen 4 cores
 *            (multiply-adds: 235 Gflop/s): 3x3 256@56 320 Gflop/s, channels-last 315; patches of 2x16x16 298
 * Assumes:   all tensors but the bias are bf16. Subnormal numbers count as 0: not for strict math
 * Try:       weft bench conv2d:bwd_weights:bf16:nchw:n1c256h56w56:o256k3p1 */
enum { GEMM_PAIRS = 1 };
#include "cpu/conv/gemm_weights.h"

static weft_status run(const weft__exec *e) {
    static const gemm_factors none;
    return run_gemm(e, &none);
}

WEFT__KERNEL(bf16_conv_gemm_bwd_weights) = {
    .name = WEFT__NAME("bf16_conv_bwd_weights_gemm"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = GEMM_STEPS,
    .dtypes = WEFT__DTYPE_SET(BF16),
    .exact = true,
    .not_strict = true,
    .plan = plan,
    .run = run,
};
