/* The builds this machine runs, WEFT_ISA considered, best first. */
#ifndef WEFT_TESTS_SIMD_BUILDS_H
#define WEFT_TESTS_SIMD_BUILDS_H

#include "build.h"
#include "test.h"

#define SIMD_DECLARE(arg, ID, isa, ...) extern const simd_build simd_build_##isa;
#define SIMD_REFER(arg, ID, isa, ...) &simd_build_##isa,
WEFT__ISA_LIST(SIMD_DECLARE, )

typedef struct simd_builds {
    const simd_build *at[WEFT__ISA_COUNT + 1]; /* NULL at the end */
} simd_builds;

static simd_builds simd_usable(void) {
    static const simd_build *const all[WEFT__ISA_COUNT] = {WEFT__ISA_LIST(SIMD_REFER, )};
    const weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c1h3w3:o1k3");
    weft_ctx *ctx = test_context(1);
    weft__hw hw;
    simd_builds list = {{NULL}};
    int n = 0;
    OK(weft__ctx_hw(ctx, &p, &hw));
    weft_ctx_release(ctx);
    for (int isa = WEFT__ISA_COUNT - 1; isa >= 0; isa--)
        if (weft__hw_runs(&hw, (weft__isa)isa)) list.at[n++] = all[isa];
    return list;
}

/* for each build s of the machine */
#define EACH_BUILD(s)                         \
    const simd_builds usable = simd_usable(); \
    for (int nth = 0; usable.at[nth]; nth++)  \
        for (const simd_build *s = usable.at[nth]; s; s = NULL)

__attribute__((unused)) static float float_of(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static uint32_t bits_of(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
__attribute__((unused)) static bool same(float a, float b) { return (a != a && b != b) || bits_of(a) == bits_of(b); }

#endif
