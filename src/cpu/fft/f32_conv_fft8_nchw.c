/* Tiles of 8 x 8, for windows of 4 and 5 on small images: 64 values for a pair of channels, 1024 in tiles of 32. See
 * conv_fft_nchw.h.
 * Roofline:  a tile of 4 x 4 outputs takes 272 flops for a pair of channels where a direct sum with k 5 takes 800.
 *            Measured on two Zen 4 cores, weights transformed in the call: 1.7 ms for 64 -> 192 channels of 27 x 27
 *            with k 5, half of it the product; float_conv_nchw_gemm 2.5, tiles of 32 7.2
 * Try:       weft bench conv2d:fwd:f32:nchw:n1c64h27w27:o192k5p2 */
#define FFT_T 8
#include "cpu/fft/conv_fft_nchw.h"

FFT_KERNEL(f32_conv_fft8_fwd_nchw, "f32_conv_fft_fwd_nchw_8", FWD, CPU_EPILOGUE_STEPS);
FFT_KERNEL(f32_conv_fft8_bwd_data_nchw, "f32_conv_fft_bwd_data_nchw_8", BWD_DATA, 0);
