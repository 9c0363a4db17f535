/* exp, log and their family on every ISA the machine has, against libm in double: within 2 ulp everywhere. */
#include <math.h>

#include "builds.h"

enum { BATCH = 4096 };

#define FLOAT(...)
#define FUSED(...)
#define MASK(...)
#define INT(...)
#define MATH(name, vector, lane) \
    static double truth_##name(double v) { return lane; }
#include "ops.def"
#undef MATH
static const struct {
    const char *name;
    double (*truth)(double v);
} functions[SIMD_MATHS] = {
#define MATH(name, ...) [SIMD_MATH_##name] = {#name, truth_##name},
#include "ops.def"
};

/* The distance in units of the last place of the true value; an infinity is the float that would follow the largest. */
static double ulps(double want, float got) {
    if (isnan(want) || isnan(got)) return isnan(want) && isnan(got) ? 0 : INFINITY;
    if (isinf(want)) return want == got ? 0 : INFINITY;
    const int exponent = want == 0 ? -126 : (int)fmin(fmax(ilogb(want), -126), 127);
    const double value = isinf(got) ? copysign(0x1p128, got) : got;
    if (fabs(want) >= 0x1p128) return isinf(got) && (got > 0) == (want > 0) ? 0 : INFINITY;
    return fabs(want - value) / ldexp(1, exponent - 23);
}

typedef struct worst {
    double ulps;
    float at, got;
} worst;

static void compare(const simd_build *s, int f, const float *in, worst *w) {
    static float out[BATCH];
    s->math[f](in, out, BATCH);
    for (int i = 0; i < BATCH; i++) {
        const double d = ulps(functions[f].truth(in[i]), out[i]);
        if (!(d <= w->ulps)) *w = (worst){d, in[i], out[i]};
    }
}

/* Bit patterns at a distance that is prime: all exponents and signs, NaN, subnormals. */
static void sweep(const simd_build *s, int f, worst *w) {
    static float in[BATCH];
    uint32_t bits = 0;
    for (uint32_t batch = 0; batch < 700; batch++) {
        for (int i = 0; i < BATCH; i++, bits += 1499) in[i] = float_of(bits);
        compare(s, f, in, w);
    }
}

/* Where the functions are neither 0 nor 1 nor infinite, and beside every change of a branch. */
static void middle(const simd_build *s, int f, worst *w) {
    static const float places[] = {0.0f,         1.0f,        -1.0f,      0.625f,      -0.625f,      0.34657359f,
                                   -0.34657359f, 0.70710678f, 1.4142135f, 88.7228f,    89.0f,        -87.3365f,
                                   -88.7f,       -103.9f,     -104.0f,    0x1p-126f,   9.01f,        -9.01f,
                                   -17.3f,       -20.0f,      17.3f,      0.41421356f, -0.29289322f, INFINITY};
    static float in[BATCH];
    harness_rng r = {30};
    for (int batch = 0; batch < 100; batch++) {
        for (int i = 0; i < BATCH; i++)
            in[i] = (float)(harness_real(&r) * (batch % 4 == 0 ? 1 : batch % 4 == 1 ? 4 : 110));
        compare(s, f, in, w);
    }
    for (size_t p = 0; p < WEFT__COUNT(places); p++) {
        for (int i = 0; i < BATCH; i++) in[i] = float_of(bits_of(places[p]) + (uint32_t)(i - BATCH / 2));
        compare(s, f, in, w);
    }
}

TEST(within_two_units_of_the_last_place) {
    EACH_BUILD(s) {
        for (int f = 0; f < SIMD_MATHS; f++) {
            worst w = {0, 0, 0};
            sweep(s, f, &w);
            middle(s, f, &w);
            printf("%s%s: %.2f ulp at %a\n", functions[f].name, s->isa, w.ulps, w.at);
            CHECK(w.ulps <= 2, "%s%s(%a): %g ulp, got %a, wanted %a", functions[f].name, s->isa, w.at, w.ulps, w.got,
                  functions[f].truth(w.at));
        }
    }
}

TEST(zeros_keep_their_sign) {
    static const int odd[] = {SIMD_MATH_expm1, SIMD_MATH_log1p, SIMD_MATH_tanh};
    static const float in[SIMD_LANES_MAX] = {0.0f, -0.0f, 0.0f, -0.0f};
    EACH_BUILD(s) {
        for (size_t f = 0; f < WEFT__COUNT(odd); f++) {
            float out[SIMD_LANES_MAX];
            s->math[odd[f]](in, out, s->lanes);
            CHECK(same(out[0], 0.0f) && same(out[1], -0.0f), "%s%s: %a %a", functions[odd[f]].name, s->isa, out[0],
                  out[1]);
        }
    }
}
