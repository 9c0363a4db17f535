/* The relation of the dests of a tile to their sources, compiled in: K, S, P, D of the axes d h w, and the MODE. For
 * device code only.
 *   fwd         source = dest * stride - pad + tap * dilation
 *   gradients   dest = source * stride - pad + tap * dilation
 * A tile of gradients begins at a dest with (dest + pad) % stride = 0. */
#ifndef WEFT_CUDA_TAPS_H
#define WEFT_CUDA_TAPS_H

enum { TAPS = K0 * K1 * K2, SUMS = TAPS + BIASED };
enum { FWD = MODE == MODE_FWD, DATA = MODE == MODE_DATA || MODE == MODE_BOTH, WEIGHTS = MODE >= MODE_WEIGHTS };
enum { PHASE1 = FWD ? 0 : P1 % S1, PHASE2 = FWD ? 0 : P2 % S2 };
template <int A> static __device__ constexpr int kernel() { return A == 0 ? K0 : A == 1 ? K1 : K2; }
template <int A> static __device__ constexpr int stride() { return A == 0 ? S0 : A == 1 ? S1 : S2; }
template <int A> static __device__ constexpr int dilation() { return A == 0 ? D0 : A == 1 ? D1 : D2; }
template <int A> static __device__ constexpr int padding() { return A == 0 ? P0 : A == 1 ? P1 : P2; }

/* Sources of a tile of `many` dests, counted from its first dest * stride - pad, or (first dest + pad) / stride. */
template <int A> static __device__ constexpr int low() {
    return FWD ? 0 : -((kernel<A>() - 1) * dilation<A>() / stride<A>());
}
template <int A> static __device__ constexpr int high(int many) {
    return FWD ? (many - 1) * stride<A>() + (kernel<A>() - 1) * dilation<A>() : (many - 1) / stride<A>();
}
/* The tap between dest k and source l of a tile; negative: none. */
template <int A> static __device__ constexpr int tap(int k, int l) {
    const int d = FWD ? l - k * stride<A>() : k - l * stride<A>();
    return d >= 0 && d % dilation<A>() == 0 && d / dilation<A>() < kernel<A>() ? d / dilation<A>() : -1;
}

/* The source of a tile that counts as 0. */
template <int A> static __device__ __forceinline__ int origin(int dest) {
    return FWD ? dest * stride<A>() - padding<A>() : (dest + padding<A>()) / stride<A>();
}

/* The source that a tap of a dest meets; -1: none. */
template <int A, class Args> static __device__ __forceinline__ int source_of(const Args &a, int dest, int tap) {
    int s = FWD ? dest * stride<A>() - padding<A>() + tap * dilation<A>() : dest + padding<A>() - tap * dilation<A>();
    if (!FWD) {
        if (s < 0 || s % stride<A>()) return -1;
        s /= stride<A>();
    }
    return s >= 0 && s < a.from[A] ? s : -1;
}

#endif
