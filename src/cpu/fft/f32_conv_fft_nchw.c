/* Tiles of 32 x 32, for windows up to 17; partial convolution has its products here, too. See conv_fft_nchw.h.
 * Roofline:  a tile of 24 x 24 outputs takes 4112 flops for a pair of channels where a direct sum with k 9 takes 93312.
 *            Measured: 51 ms for k 9, 64 -> 128 channels of 256 x 256, weights transformed in the call (two Zen 4
 *            cores), two thirds of it the product
 * Try:       weft bench conv2d:fwd:f32:nchw:n1c64h256w256:o128k9p4 */
#define FFT_T 32
#include "cpu/fft/conv_fft_nchw.h"

weft_status WEFT__ISA_NAME(weft__fft_nchw)(const weft__exec *e, const gemm_factors *factors) {
    return fft_run(e, factors);
}

FFT_KERNEL(f32_conv_fft_fwd_nchw, "f32_conv_fft_fwd_nchw_32", FWD, CPU_EPILOGUE_STEPS);
FFT_KERNEL(f32_conv_fft_bwd_data_nchw, "f32_conv_fft_bwd_data_nchw_32", BWD_DATA, 0);
