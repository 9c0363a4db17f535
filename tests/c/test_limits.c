/* Plans alone, nothing is run: that estimates share work out among threads, and what is too large for 32 bits. */
#include "test.h"

static weft_problem *cases;
static size_t ncases;

static double ns_of(const weft_ctx *ctx, const weft__kernel *k, const weft_problem *p, const weft__hw *hw,
                    int threads) {
    weft__hw of = *hw;
    weft__decision d = {0};
    of.threads = threads;
    return weft__kernel_plan(ctx, k, 0, p, &of, &d) ? 0 : d.ns;
}

/* t threads are at most t times as fast as one, and never slower. On a machine that computes so slowly that waking
 * them and the memory cost nothing beside the work. */
TEST(threads_share_the_work_that_there_is) {
    static const int threads[] = {2, 3, 16, 64, 1000};
    const weft__kernel *const *list;
    const size_t count = weft__kernels(0, &list);
    weft_ctx *ctx = test_context(1);
    size_t seen = 0;
    cases = test_cases(&ncases);
    for (size_t i = 0; i < ncases; i++) {
        const weft_problem *p = &cases[i];
        char text[WEFT_TEXT_MAX];
        weft__hw hw;
        OK(weft__ctx_hw(ctx, p, &hw));
        for (size_t isa = 0; isa < WEFT__COUNT(hw.gflops); isa++) hw.gflops[isa] *= 1e-6;
        harness_text(p, text);
        for (size_t n = 0; n < count; n++) {
            if (list[n]->op != p->op || list[n]->engine != WEFT_ENGINE_CPU || list[n]->reference) continue;
            const double one = ns_of(ctx, list[n], p, &hw, 1);
            for (size_t t = 0; one > 0 && t < WEFT__COUNT(threads); t++, seen++) {
                const double many = ns_of(ctx, list[n], p, &hw, threads[t]);
                CHECK(many * threads[t] > 0.99 * one, "%s: %g ns, with %d threads %g: %s", list[n]->name, one,
                      threads[t], many, text);
                CHECK(many < 1.01 * one, "%s: %g ns, with %d threads %g: %s", list[n]->name, one, threads[t], many,
                      text);
            }
        }
    }
    CHECK(seen > 1000, "%zu estimates", seen);
    free(cases);
    weft_ctx_release(ctx);
}

/* Where places of a channel are numbered in 32 bits. */
TEST(channels_of_2_to_the_31_places_are_refused) {
    static const char *const texts[] = {
        "max_pool2d:fwd:f32:nchw:n1c1h46341w46341:k2s2",  "max_pool2d:fwd:f32:nhwc:n1c1h65536w65536:k3s2p1",
        "avg_pool2d:fwd:f32:nchw:n1c1h65536w65536:k2s2",  "avg_pool2d:bwd:f32:nchw:n1c1h32768w65536:k2s2",
        "avg_pool3d:fwd:f32:ndhwc:n1c1d3h32768w32768:k2", "max_pool1d:fwd:f32:ncw:n1c1w2147483648:k4s2",
    };
    const weft__kernel *const *list;
    weft_ctx *ctx = test_context(1);
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        const weft_problem p = test_problem(texts[i]);
        weft__decision d;
        weft__hw hw;
        OK(weft__ctx_hw(ctx, &p, &hw));
        for (size_t n = weft__kernels(p.op, &list); n-- > 0;)
            if (list[n]->engine == WEFT_ENGINE_CPU && !list[n]->reference)
                CHECK(weft__kernel_plan(ctx, list[n], 0, &p, &hw, &d), "%s takes %s", list[n]->name, texts[i]);
    }
    weft_ctx_release(ctx);
}
