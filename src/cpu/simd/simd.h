/* One vector vocabulary for every CPU kernel; the build chooses the header, the kernel source stays the same.
 * tests/simd/ops.def states every function below beside its meaning for one lane.
 *
 *   VF_LANES, VF_REGS      f32 lanes of a vector; vector registers, for tile constants
 *   vf, vi, vmask          a vector of f32; of as many int32_t; a set of lanes
 *
 * Floats
 *   vf_zero, vf_set1       all lanes 0, or one value; vf_broadcast(p): the value at p
 *   vf_load, vf_store      any address that is a multiple of 4
 *   vf_load_in(m, p)       lanes of m from p, the others 0; touches no memory outside m
 *   vf_store_in(m, p, v)   lanes of m only; slow on AVX2: let a later store cover the excess where that is possible
 *   vf_load_count(p, n)    the first n lanes, the others 0; vf_store_count(p, v, n): the first n lanes. Any n, also < 0
 *                          or > VF_LANES; faster than by mask on AVX2
 *   vf_stream(p, v)        past the caches, p a multiple of the vector; vf_stream_end() before another thread may read
 *   vf_gather(p, i)        p[i] for each lane of i; vf_gather_in(m, p, i): 0 outside m, and touches no memory for it
 *   vf_add, vf_sub, vf_mul, vf_div, vf_sqrt, vf_neg, vf_abs, vf_copysign(size, sign)
 *   vf_fma(a, b, c)        a * b + c; vf_fms: a * b - c; vf_fnma: c - a * b; rounded once where the ISA has it
 *   vf_fma_in(m, a, b, c)  a * b + c in the lanes of m, c in the others: a lane outside never makes a NaN
 *   vf_min(a, b), vf_max   a < b ? a : b and a > b ? a : b: the second operand if either is NaN, or both are zeros
 *   vf_min_nan, vf_max_nan NaN if either operand is, as torch.maximum
 *   vf_clip(v, lo, hi)     min(max(v, lo), hi); NaN stays NaN. relu is lo = 0, hi = infinity
 *   vf_floor, vf_nearest   to whole numbers; nearest: ties to even
 *   vf_scale(v, n)         v * 2^n, n whole and within -252 .. 252, rounded once
 *   vf_lt, vf_le, vf_gt, vf_ge, vf_eq    lanes where it holds, false with NaN
 *   vf_is_nan(v)           lanes that are NaN
 *   vf_select(m, a, b)     a in the lanes of m, b in the others
 *   vf_sum(v)              of all lanes, by halves: a fixed order
 *   vf_largest(v), _smallest    of all lanes; NaN if any lane is
 *   vf_keep(v)             v, in a register from here on: stops compilers from loading it again for every use
 *   vf_prefetch(p, bytes)  the line at p + bytes into the nearest cache; may lie outside any buffer
 *
 * Lanes moved
 *   vf_even(a, b), vf_odd  every second lane of a followed by b, from lane 0 or 1
 *   vf_zip_lo(a, b), _hi   a0 b0 a1 b1 ...: the first or the second VF_LANES of it
 *   vf_zip4(v), vf_unzip4  in place: v0 v1 v2 v3 to a0 b0 c0 d0 a1 b1 ..., and back
 *   vf_reverse(v)          the last lane first
 *   vf_slide(a, b, k)      VF_LANES lanes of a followed by b, from lane k on; k constant, 0 .. VF_LANES
 *   vf_transpose(v)        in place: VF_LANES rows of VF_LANES
 *
 * Sets of lanes
 *   vm_range(lo, hi)       lanes lo <= i < hi; vm_first(n): lanes i < n; any values
 *   vm_all, vm_and, vm_or, vm_not, vm_andnot(a, b): the lanes of a that are not in b
 *   vm_any, vm_none, vm_count, vm_bits: lane i is bit i
 *
 * Integers
 *   vi_zero, vi_set1, vi_iota (0 1 2 ...), vi_load, vi_store, _in and _count as for floats
 *   vi_add, vi_sub, vi_mul (low half), vi_min, vi_max, vi_and, vi_or, vi_xor
 *   vi_shl(v, n), vi_shr, vi_sar    by n constant bits; shr fills with zeros, sar with the sign
 *   vi_lt, vi_gt, vi_eq, vi_select  as for floats
 *   vi_trunc(v), vi_nearest         of floats within int32_t, others give anything; vf_from(i): to floats
 *   vf_bits(v), vf_from_bits(i)     the same bits
 *   vi_load_u8(p), vi_store_u8      bytes; store keeps the low byte of each lane. vi_load_i64(p), vi_store_i64:
 *                                   load keeps the low half. All with _count
 *   vi_zip_lo, _hi, vi_even, vi_odd
 *
 * 16-bit floats and elements of a data type known at compile time: cpu/simd/dtype.h, included here.
 * exp, log and their family: cpu/simd/math.h. */
#ifndef WEFT_CPU_SIMD_H
#define WEFT_CPU_SIMD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* VF_UNROLL: tiles are loops of constant length over arrays of vectors: unrolled, the arrays become registers.
 * VF_INLINE: a function whose constant arguments select what is compiled, as template arguments would.
 * Plain code on x86-64 is for tests and for machines without AVX2: it keeps its loops and calls, and compiles in a
 * tenth of the time. */
#if defined(WEFT__VECTORS_SCALAR) && defined(__x86_64__)
#define VF_UNROLL
#define VF_INLINE static inline __attribute__((unused))
#else
#if defined(__clang__)
#define VF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VF_UNROLL _Pragma("GCC unroll 32")
#endif
#define VF_INLINE static inline __attribute__((always_inline, unused))
#endif

#if defined(WEFT__VECTORS_AVX512)
#include "cpu/simd/avx512.h"
#include "cpu/simd/avx512_int.h"
#elif defined(WEFT__VECTORS_AVX2)
#include "cpu/simd/avx2.h"
#include "cpu/simd/avx2_int.h"
#else
#include "cpu/simd/scalar.h"
#include "cpu/simd/scalar_int.h"
#endif

VF_INLINE void vf_prefetch(const void *base, int64_t bytes) {
    __builtin_prefetch((const void *)((uintptr_t)base + (uintptr_t)bytes));
}

/* ---------------------------------------------------------------- the same on every ISA */
VF_INLINE vmask vm_first(int64_t n) { return vm_range(0, n); }
VF_INLINE vmask vm_andnot(vmask a, vmask b) { return vm_and(a, vm_not(b)); }
VF_INLINE bool vm_any(vmask m) { return vm_bits(m) != 0; }
VF_INLINE bool vm_none(vmask m) { return vm_bits(m) == 0; }
VF_INLINE int vm_count(vmask m) { return __builtin_popcount(vm_bits(m)); }

VF_INLINE vf vf_broadcast(const float *p) { return vf_set1(*p); }
VF_INLINE vf vf_load_count(const float *p, int64_t n) { return vf_load_in(vm_first(n), p); }
VF_INLINE vf vf_gather(const float *p, vi i) { return vf_gather_in(vm_all(), p, i); }

VF_INLINE vmask vf_gt(vf a, vf b) { return vf_lt(b, a); }
VF_INLINE vmask vf_ge(vf a, vf b) { return vf_le(b, a); }
VF_INLINE vf vf_min_nan(vf a, vf b) { return vf_select(vf_is_nan(a), a, vf_min(a, b)); }
VF_INLINE vf vf_max_nan(vf a, vf b) { return vf_select(vf_is_nan(a), a, vf_max(a, b)); }

VF_INLINE vi vi_zero(void) { return vi_set1(0); }
VF_INLINE vi vi_load_in(vmask m, const int32_t *p) { return vf_bits(vf_load_in(m, (const float *)(const void *)p)); }
VF_INLINE vi vi_load_count(const int32_t *p, int64_t n) { return vi_load_in(vm_first(n), p); }
VF_INLINE void vi_store_in(vmask m, int32_t *p, vi v) { vf_store_in(m, (float *)(void *)p, vf_from_bits(v)); }
VF_INLINE void vi_store_count(int32_t *p, vi v, int64_t n) { vf_store_count((float *)(void *)p, vf_from_bits(v), n); }
VF_INLINE vmask vi_gt(vi a, vi b) { return vi_lt(b, a); }
VF_INLINE vi vi_select(vmask m, vi a, vi b) { return vf_bits(vf_select(m, vf_from_bits(a), vf_from_bits(b))); }
VF_INLINE vi vi_even(vi a, vi b) { return vf_bits(vf_even(vf_from_bits(a), vf_from_bits(b))); }
VF_INLINE vi vi_odd(vi a, vi b) { return vf_bits(vf_odd(vf_from_bits(a), vf_from_bits(b))); }
VF_INLINE vi vi_zip_lo(vi a, vi b) { return vf_bits(vf_zip_lo(vf_from_bits(a), vf_from_bits(b))); }
VF_INLINE vi vi_zip_hi(vi a, vi b) { return vf_bits(vf_zip_hi(vf_from_bits(a), vf_from_bits(b))); }

VF_INLINE vf vf_abs(vf v) { return vf_from_bits(vi_and(vf_bits(v), vi_set1(INT32_MAX))); }
VF_INLINE vf vf_neg(vf v) { return vf_from_bits(vi_xor(vf_bits(v), vi_set1(INT32_MIN))); }
VF_INLINE vf vf_copysign(vf size, vf sign) {
    return vf_from_bits(vi_or(vf_bits(vf_abs(size)), vi_and(vf_bits(sign), vi_set1(INT32_MIN))));
}

/* An int64_t is two lanes, the low half first. */
VF_INLINE vi vi_load_i64_count(const int64_t *p, int64_t n) {
    const int32_t *half = (const int32_t *)(const void *)p;
    return vi_even(vi_load_count(half, 2 * n), vi_load_count(half + VF_LANES, 2 * n - VF_LANES));
}
VF_INLINE vi vi_load_i64(const int64_t *p) {
    const int32_t *half = (const int32_t *)(const void *)p;
    return vi_even(vi_load(half), vi_load(half + VF_LANES));
}
VF_INLINE void vi_store_i64_count(int64_t *p, vi v, int64_t n) {
    int32_t *half = (int32_t *)(void *)p;
    vi_store_count(half, vi_zip_lo(v, vi_sar(v, 31)), 2 * n);
    vi_store_count(half + VF_LANES, vi_zip_hi(v, vi_sar(v, 31)), 2 * n - VF_LANES);
}
VF_INLINE void vi_store_i64(int64_t *p, vi v) {
    int32_t *half = (int32_t *)(void *)p;
    vi_store(half, vi_zip_lo(v, vi_sar(v, 31)));
    vi_store(half + VF_LANES, vi_zip_hi(v, vi_sar(v, 31)));
}

VF_INLINE void vf_zip4(vf v[4]) {
    const vf ac_lo = vf_zip_lo(v[0], v[2]), ac_hi = vf_zip_hi(v[0], v[2]);
    const vf bd_lo = vf_zip_lo(v[1], v[3]), bd_hi = vf_zip_hi(v[1], v[3]);
    v[0] = vf_zip_lo(ac_lo, bd_lo), v[1] = vf_zip_hi(ac_lo, bd_lo);
    v[2] = vf_zip_lo(ac_hi, bd_hi), v[3] = vf_zip_hi(ac_hi, bd_hi);
}
VF_INLINE void vf_unzip4(vf v[4]) {
    const vf ac_lo = vf_even(v[0], v[1]), ac_hi = vf_even(v[2], v[3]);
    const vf bd_lo = vf_odd(v[0], v[1]), bd_hi = vf_odd(v[2], v[3]);
    v[0] = vf_even(ac_lo, ac_hi), v[2] = vf_odd(ac_lo, ac_hi);
    v[1] = vf_even(bd_lo, bd_hi), v[3] = vf_odd(bd_lo, bd_hi);
}

/* By halves: lanes slid by half of what is left, until one is left. */
VF_INLINE float vf_largest(vf v) {
    float lane[VF_LANES];
    v = vf_max_nan(v, vf_slide(v, v, VF_LANES / 2));
    v = vf_max_nan(v, vf_slide(v, v, VF_LANES / 4));
    if (VF_LANES > 4) v = vf_max_nan(v, vf_slide(v, v, VF_LANES / 8));
    if (VF_LANES > 8) v = vf_max_nan(v, vf_slide(v, v, 1));
    vf_store(lane, v);
    return lane[0];
}
VF_INLINE float vf_smallest(vf v) { return -vf_largest(vf_neg(v)); }

#include "cpu/simd/dtype.h"

#endif
