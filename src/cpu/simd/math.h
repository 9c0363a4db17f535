/* exp, log and their family in f32: the same polynomials on every ISA, within 2 ulp of the true value everywhere, with
 * the right infinities, NaN, zeros and subnormal results. tests/c/test_simd_math.c compares with libm in double.
 *
 *   vf_exp, vf_expm1       e^v, e^v - 1
 *   vf_log, vf_log1p       log v, log(1 + v); -infinity at the pole, NaN below
 *   vf_tanh, vf_sigmoid    sigmoid: 1 / (1 + e^-v)
 *
 * Largest error seen over 70 million bit patterns, in ulp, and ns per value with AVX-512 and AVX2 (one Zen 4 core):
 *            exp    expm1  log    log1p  tanh   sigmoid
 *   ulp      1.01   1.65   0.79   1.44   1.30   1.79
 *   AVX-512  0.18   0.23   0.38   0.47   0.40   0.31
 *   AVX2     0.35   0.41   0.55   0.72   0.72   0.60
 * AVX-512 and AVX2 give the same bits; the portable build, without fused multiply-adds, may differ in the last. */
#ifndef WEFT_CPU_SIMD_MATH_H
#define WEFT_CPU_SIMD_MATH_H

#include "cpu/simd/simd.h"

/* ln 2 in two parts: a whole number of up to 8 bits times the first has no rounding. */
#define VF_LN2_HI 0x1.62e4p-1f
#define VF_LN2_LO 0x1.7f7d1cp-20f

/* c[0] + c[1] x + ... + c[last] x^last. */
VF_INLINE vf vf_polynomial(vf x, const float *c, const int last) {
    vf sum = vf_set1(c[last]);
    VF_UNROLL for (int i = last - 1; i >= 0; i--) sum = vf_fma(sum, x, vf_set1(c[i]));
    return sum;
}

/* v = n ln 2 + r, |r| <= ln 2 / 2: returns e^r - 1 = r + r^2 q(r). |v| < 2^15. */
VF_INLINE vf vf_exp_reduced(vf v, vf *n) {
    static const float q[] = {0.5f, 0x1.55549p-3f, 0x1.55545ep-5f, 0x1.123b4ep-7f, 0x1.6db3e8p-10f};
    *n = vf_nearest(vf_mul(v, vf_set1(0x1.715476p+0f)));
    const vf r = vf_fnma(*n, vf_set1(VF_LN2_LO), vf_fnma(*n, vf_set1(VF_LN2_HI), v));
    return vf_fma(vf_mul(r, r), vf_polynomial(r, q, 4), r);
}

/* Outside of the interval the result is 0 or infinity, as it is at its ends. */
VF_INLINE vf vf_exp(vf v) {
    vf n;
    const vf e = vf_exp_reduced(vf_clip(v, vf_set1(-104), vf_set1(89)), &n);
    return vf_scale(vf_add(vf_set1(1), e), n);
}
/* The same of numbers up to 0. */
VF_INLINE vf vf_exp_below(vf v) {
    vf n;
    const vf e = vf_exp_reduced(vf_max(vf_set1(-104), v), &n);
    return vf_scale(vf_add(vf_set1(1), e), n);
}

/* 2^n (1 + e) - 1 = 2 (2^(n-1) e + (2^(n-1) - 1/2)): 2^n itself may be too large. The sign is that of v, also of 0. */
VF_INLINE vf vf_expm1(vf v) {
    vf n;
    const vf e = vf_exp_reduced(vf_clip(v, vf_set1(-20), vf_set1(89)), &n);
    const vf half = vf_scale(vf_set1(0.5f), n);
    const vf sum = vf_fma(half, e, vf_sub(half, vf_set1(0.5f)));
    return vf_copysign(vf_add(sum, sum), v);
}

/* v = 2^n (1 + f), 1 + f within sqrt(1/2) .. sqrt(2): log v = n ln 2 + f - f^2 / 2 + f^3 p(f). */
VF_INLINE vf vf_log(vf v) {
    static const float p[] = {0x1.555546p-2f,  -0x1.ffffeep-3f, 0x1.99a4dap-3f,  -0x1.5562b4p-3f, 0x1.2339e4p-3f,
                              -0x1.fb4fe4p-4f, 0x1.e5fe8cp-4f,  -0x1.e289b6p-4f, 0x1.1b7d72p-4f};
    const vmask tiny = vf_lt(v, vf_set1(0x1p-126f));
    const vi bits = vf_bits(vf_select(tiny, vf_mul(v, vf_set1(0x1p23f)), v));
    const vi whole = vi_sar(vi_sub(bits, vi_set1(0x3f3504f3)), 23); /* from the bits of sqrt(1/2) on */
    const vf f = vf_sub(vf_from_bits(vi_sub(bits, vi_shl(whole, 23))), vf_set1(1)), ff = vf_mul(f, f);
    const vf n = vf_sub(vf_from(whole), vf_select(tiny, vf_set1(23), vf_zero()));
    vf rest = vf_mul(vf_mul(ff, f), vf_polynomial(f, p, 8));
    rest = vf_fnma(ff, vf_set1(0.5f), vf_fma(n, vf_set1(VF_LN2_LO), rest));
    const vf sum = vf_fma(n, vf_set1(VF_LN2_HI), vf_add(f, rest));
    const vf pole = vf_set1(-__builtin_inff()), infinity = vf_set1(__builtin_inff());
    const vf other =
        vf_select(vf_eq(v, vf_zero()), pole, vf_select(vf_lt(v, vf_zero()), vf_set1(__builtin_nanf("")), v));
    return vf_select(vm_and(vf_gt(v, vf_zero()), vf_lt(v, infinity)), sum, other);
}

/* log(u) + (what 1 + v lost) / u; nothing is lost where u is 0, infinity or NaN. */
VF_INLINE vf vf_log1p(vf v) {
    const vf u = vf_add(v, vf_set1(1)), lost = vf_sub(v, vf_sub(u, vf_set1(1)));
    const vmask add = vm_and(vf_gt(u, vf_zero()), vf_lt(u, vf_set1(__builtin_inff())));
    const vf log = vf_log(u), sum = vf_select(add, vf_add(log, vf_div(lost, u)), log);
    return vf_select(vf_eq(v, vf_zero()), v, sum);
}

/* 1 - 2 / (e^2|v| + 1), and v + v^3 p(v^2) near 0. */
VF_INLINE vf vf_tanh(vf v) {
    static const float p[] = {-0x1.555534p-2f, 0x1.110788p-3f, -0x1.b847bep-5f, 0x1.526a4ap-6f, -0x1.76f91cp-8f};
    const vf size = vf_abs(v), square = vf_mul(v, v);
    const vf below = vf_div(vf_set1(2), vf_add(vf_exp(vf_add(size, size)), vf_set1(1)));
    const vf near = vf_fma(vf_mul(size, square), vf_polynomial(square, p, 4), size);
    return vf_copysign(vf_select(vf_lt(size, vf_set1(0.625f)), near, vf_sub(vf_set1(1), below)), v);
}

/* e = e^-|v| does not overflow: e / (1 + e) for negative v, 1 less that for others. What 1 + e loses corrects the
 * quotient, as if it were divided by 1. */
VF_INLINE vf vf_sigmoid(vf v) {
    const vf e = vf_exp_below(vf_from_bits(vi_or(vf_bits(v), vi_set1(INT32_MIN)))), one = vf_set1(1);
    const vf sum = vf_add(e, one), lost = vf_sub(e, vf_sub(sum, one)), near = vf_div(e, sum);
    const vf below = vf_fnma(near, lost, near);
    return vf_select(vf_lt(v, vf_zero()), below, vf_sub(one, below));
}

#endif
