/* Dense and grouped convolution and its data gradient, channels-first, bf16 by dot products of pairs: gemm_nchw.h.
 * Roofline:  twice the multiply-add peak where the CPU has the instruction; elsewhere pairs are taken apart, and the
 *            products of f32 are faster. Measured on two Zen 4 cores (multiply-adds: 235 Gflop/s): 3x3 256@56
 *            408 Gflop/s, 1x1 256@28 322, patches of 2x16x16 336, their data gradient 342
 * Assumes:   all tensors but the bias are bf16. Subnormal numbers count as 0: not for strict math
 * Try:       weft bench conv2d:fwd:bf16:nchw:n1c256h56w56:o256k3p1 */
enum { GEMM_PAIRS = 1 };
#include "cpu/conv/gemm_nchw.h"

static weft_status run_conv(const weft__exec *e) {
    static const gemm_factors none;
    return run_gemm(e, &none);
}

WEFT__KERNEL(bf16_conv_gemm_nchw) = {
    .name = WEFT__NAME("bf16_conv_nchw_gemm"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .steps = GEMM_STEPS,
    .dtypes = WEFT__DTYPE_SET(BF16),
    .exact = true,
    .not_strict = true,
    .plan = plan,
    .pack = pack,
    .run = run_conv,
};
