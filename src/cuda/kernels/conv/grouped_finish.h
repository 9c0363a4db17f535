/* The last launch of the gradients of grouped weights: sums over slices in their order, in f64. Device code only. */
#ifndef WEFT_CUDA_GROUPED_FINISH_H
#define WEFT_CUDA_GROUPED_FINISH_H

extern "C" __global__ void __launch_bounds__(FINISH_THREADS) finish(const __grid_constant__ grouped_args a) {
    const int64_t weights = (int64_t)a.groups * a.inner * a.outer * (K0 * K1 * K2);
    const int64_t all = weights + (BIASED ? (int64_t)a.groups * a.inner : 0);
    const int64_t i = (int64_t)blockIdx.x * FINISH_THREADS + threadIdx.x;
    if (i >= all) return;
    double sum = 0;
#pragma unroll 8
    for (int s = 0; s < a.slices; s++) sum += a.partial[s * all + i];
    const int64_t tap = i % (K0 * K1 * K2), in = i / (K0 * K1 * K2) % a.outer, out = i / (K0 * K1 * K2) / a.outer;
    if (i < weights)
        ((T *)a.diff_weights)[DIFF_WEIGHTS_LAST ? (out * (K0 * K1 * K2) + tap) * a.outer + in : i] =
            narrow<T>((float)sum);
    else
        ((BIAS_T *)a.diff_bias)[i - weights] = narrow<BIAS_T>((float)sum);
}

#endif
