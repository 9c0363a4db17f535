/* One vector vocabulary for every CPU kernel; the build chooses the header, the kernel source stays the same.
 *
 *   VF_LANES, VF_REGS      f32 lanes of a vector; vector registers, for tile constants
 *   vf, vmask              a vector of f32; a set of lanes
 *   vf_zero, vf_set1       all lanes 0, or one value
 *   vf_load, vf_store      any address that is a multiple of 4
 *   vf_load_in(m, p)       lanes of m from p, the others 0; touches no memory outside m
 *   vf_store_in(m, p, v)   lanes of m only; slow on AVX2: let a later store cover the excess where that is possible
 *   vf_stream(p, v)        past the caches, p a multiple of the vector; vf_stream_end() before another thread may read
 *   vf_add, vf_mul         a + b, a * b
 *   vf_fma(a, b, c)        a * b + c; rounded once where the ISA has it
 *   vf_fma_in(m, a, b, c)  the same in the lanes of m, c in the others: a lane outside never makes a NaN
 *   vf_clip(v, lo, hi)     min(max(v, lo), hi); NaN stays NaN. relu is lo = 0, hi = infinity
 *   vf_sum(v)              of all lanes, by halves: a fixed order
 *   vf_even(a, b), vf_odd  every second lane of a followed by b, from lane 0 or 1
 *   vf_zip_lo(a, b), _hi   a0 b0 a1 b1 ...: the first or the second VF_LANES of it
 *   vm_range(lo, hi)       lanes lo <= i < hi; any values
 *   vm_and, vm_all         the lanes in both; every lane
 *   vf_keep(v)             v, in a register from here on: stops compilers from loading it again for every use
 *   vf_prefetch(p, bytes)  the line at p + bytes into the nearest cache; may lie outside any buffer
 *
 * Kernels of 16-bit types add vf_load_f16, vf_load_bf16 and their stores to each header; registers hold the same vf. */
#ifndef WEFT_CPU_SIMD_H
#define WEFT_CPU_SIMD_H

#include <stdint.h>

/* Tiles are loops of constant length over arrays of vectors: unrolled, the arrays become registers. */
#if defined(__clang__)
#define VF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VF_UNROLL _Pragma("GCC unroll 32")
#endif
/* A function whose constant arguments select what is compiled, as template arguments would. */
#define VF_INLINE static inline __attribute__((always_inline, unused))

#if defined(WEFT__BUILD_AVX512)
#include "cpu/simd/avx512.h"
#elif defined(WEFT__BUILD_AVX2)
#include "cpu/simd/avx2.h"
#else
#include "cpu/simd/scalar.h"
#endif

VF_INLINE void vf_prefetch(const void *base, int64_t bytes) {
    __builtin_prefetch((const void *)((uintptr_t)base + (uintptr_t)bytes));
}

#endif
