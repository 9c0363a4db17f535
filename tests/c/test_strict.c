/* Strict math: which designs are not for it, that they refuse it, and what it keeps. */
#include <math.h>

#include "test.h"

/* How much of a name is the design: up to the ISA. */
static size_t design(const char *name) {
    const char *isa = strstr(name, "__");
    return isa ? (size_t)(isa - name) : strlen(name);
}

/* Strict math is not for transforms, which spread what is large, or not a number, over a tile; for products of pairs of
 * bf16, which lose what is tiny; and for designs that multiply by the zeros of padding. Of all ISAs. */
static const char *const not_strict[] = {"bf16_conv_nchw_gemm",
                                         "bf16_conv_bwd_weights_gemm",
                                         "dwconv_fwd_nchw_turned",
                                         "dwconv_bwd_data_nchw_turned",
                                         "dwconv_bwd_weights_nchw_turned",
                                         "dwconv_bwd_nchw_turned",
                                         "dwconv_fwd_nchw_flat",
                                         "dwconv_bwd_data_nchw_flat",
                                         "dwconv_bwd_weights_nchw_flat",
                                         "dwconv_bwd_nchw_flat",
                                         "float_conv_grouped",
                                         "float_conv_bwd_weights_grouped",
                                         "f32_conv_fft_fwd_nchw_8",
                                         "f32_conv_fft_bwd_data_nchw_8",
                                         "f32_conv_fft_fwd_nchw_32",
                                         "f32_conv_fft_bwd_data_nchw_32",
                                         "f32_conv_fft_bwd_weights_nchw_32",
                                         "f32_conv3x3_fwd_nchw_winograd2",
                                         "f32_conv3x3_bwd_data_nchw_winograd2",
                                         "f32_conv3x3_bwd_weights_nchw_winograd2",
                                         "f32_conv_s2_fwd_nchw_winograd2",
                                         "f32_conv_s2_bwd_data_nchw_winograd2",
                                         "f32_conv_s2_bwd_weights_nchw_winograd2",
                                         "f32_conv_bwd_nchw_tiled_2pass",
                                         "float_partial_conv_direct_nchw",
                                         "f32_partial_conv_fft_nchw_32",
                                         "f32_partial_conv3x3_nchw_winograd2",
                                         "f32_partial_conv_s2_nchw_winograd2",
                                         "conv_grouped_bwd_weights_strips",
                                         "conv_grouped_bwd_strips",
                                         "dwconv_ncdhw_march",
                                         "dwconv_bwd_weights_fft",
                                         "dwconv_bwd_fft",
                                         "sparse_conv_fwd_tiles",
                                         "sparse_conv_bwd_data_tiles",
                                         "sparse_conv_bwd_weights_tiles"};
enum { ON_CUDA = 8 }; /* the last of them */

/* Where it stands there; -1: nowhere. */
static int place_of(const char *name) {
    int i = (int)WEFT__COUNT(not_strict) - 1;
    while (i >= 0 && (strlen(not_strict[i]) != design(name) || strncmp(name, not_strict[i], design(name)))) i--;
    return i;
}

TEST(records_say_what_is_not_strict) {
    size_t found = 0;
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        const weft__kernel *const *list;
        for (size_t n = weft__kernels(op, &list); n-- > 0;) {
            found += list[n]->not_strict;
            CHECK(list[n]->not_strict == (place_of(list[n]->name) >= 0), "%s %s strict math", list[n]->name,
                  list[n]->not_strict ? "refuses" : "takes");
        }
    }
    CHECK(found >= WEFT__COUNT(not_strict), "%zu kernels", found);
}

/* What takes a problem in fast math refuses it in strict math, and no strict plan names it. */
TEST(strict_plans) {
    static const char *const texts[] = {
        "conv2d:fwd:f32:nchw:n8c64h28w28:o64k3p1",           "conv2d:bwd_data:f32:nchw:n8c64h28w28:o64k3p1",
        "conv2d:bwd:f32:nchw:n8c64h28w28:o64k3p1",           "conv2d:bwd_weights:f32:nchw:n8c64h28w28:o64k3p1",
        "conv2d:bwd_weights:f32:nchw:n2c8h96w96:o8k15p7",    "conv2d:fwd:f32:nchw:n2c8h96w96:o8k15p7g8",
        "conv2d:bwd_data:f32:nchw:n2c8h96w96:o8k15p7g8",     "conv2d:fwd:f32:nchw:n2c8h48w48:o8k5p2",
        "conv2d:bwd_data:f32:nchw:n2c8h48w48:o8k5p2",        "conv2d:bwd_weights:f32:nchw:n2c8h96w96:o8k15p7g8",
        "conv2d:fwd:f32:nchw:n1c24h7w7:o24k3p1g24",          "conv2d:bwd_data:f32:nchw:n1c24h7w7:o24k3p1g24",
        "conv2d:bwd:f32:nchw:n1c24h7w7:o24k3p1g24",          "conv2d:bwd_weights:f32:nchw:n1c24h7w7:o24k3p1g24",
        "conv2d:fwd:bf16:nchw:n2c64h28w28:o64k3p1",          "conv2d:bwd_weights:bf16:nchw:n2c64h28w28:o64k3p1",
        "conv2d:fwd:f32:nchw:n2c32h28w28:o32k3p1g4",         "conv2d:bwd_weights:f32:nchw:n2c32h28w28:o32k3p1g4",
        "conv2d:fwd:f32:nchw:n2c16h28w28:o16k5s2p2",         "conv2d:bwd_data:f32:nchw:n2c16h28w28:o16k5s2p2",
        "conv2d:bwd_weights:f32:nchw:n2c16h28w28:o16k3s2p1", "partial_conv2d:fwd:f32:nchw:n2c16h28w28:o16k3s2p1",
        "partial_conv2d:fwd:f32:nchw:n2c16h28w28:o16k3p1",   "partial_conv2d:fwd:f32:nchw:n2c16h64w64:o16k15p7"};
    weft_ctx *ctx = test_context(2);
    bool seen[WEFT__COUNT(not_strict)] = {false};
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        weft_problem fast = test_problem(texts[i]), strict = fast;
        const weft__kernel *const *list;
        weft__decision d;
        weft__hw hw;
        strict.math = WEFT_MATH_STRICT;
        OK(weft_problem_complete(&strict));
        OK(weft__ctx_hw(ctx, &fast, &hw));
        for (size_t n = weft__kernels(fast.op, &list); n-- > 0;) {
            const int at = place_of(list[n]->name);
            if (at < 0 || weft__kernel_plan(ctx, list[n], 0, &fast, &hw, &d)) continue;
            seen[at] = true;
            const char *why = weft__kernel_plan(ctx, list[n], 0, &strict, &hw, &d);
            CHECK(why && strstr(why, "strict"), "%s takes %s in strict math: %s", list[n]->name, texts[i],
                  why ? why : "");
        }
        weft_plan *plan = NULL;
        OK(weft_plan_create(&plan, ctx, &strict, NULL));
        CHECK(place_of(weft_plan_kernel_name(plan)) < 0, "%s for %s", weft_plan_kernel_name(plan), texts[i]);
        weft_plan_release(plan);
    }
    for (size_t k = 0; k < WEFT__COUNT(not_strict) - ON_CUDA; k++)
        CHECK(seen[k], "%s took none of the problems", not_strict[k]);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- what it keeps */
enum { C = 32, SIZE = 12, DATA = C * SIZE * SIZE, WEIGHTS = C * 4 * 9 };
static float src[DATA], dy[DATA], weights[WEIGHTS];

/* What is infinite and what is no number in the gradients, of the kernel of that name. */
static void classes_of(weft_ctx *ctx, const weft_problem *p, const char *kernel, int to[DATA + WEIGHTS]) {
    static float dx[DATA], dw[WEIGHTS];
    weft_args args = WEFT_ARGS_INIT;
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_plan *plan = NULL;
    args.ptr[WEFT_ROLE_SRC] = src, args.ptr[WEFT_ROLE_WEIGHTS] = weights, args.ptr[WEFT_ROLE_DIFF_DST] = dy;
    args.ptr[WEFT_ROLE_DIFF_SRC] = dx, args.ptr[WEFT_ROLE_DIFF_WEIGHTS] = dw;
    opts.kernel = kernel;
    OK(weft_plan_create(&plan, ctx, p, &opts));
    const size_t bytes = weft_plan_workspace_bytes(plan);
    void *workspace = aligned_alloc(64, bytes + 64);
    OK(weft_execute(plan, &args, workspace, bytes, NULL));
    for (int i = 0; i < DATA; i++) to[i] = isnan(dx[i]) ? 2 : isinf(dx[i]);
    for (int i = 0; i < WEIGHTS; i++) to[DATA + i] = isnan(dw[i]) ? 2 : isinf(dw[i]);
    free(workspace);
    weft_plan_release(plan);
}

/* A kernel of both gradients hands each to one of the others: to a strict one. An infinite weight, and an infinite
 * input, beside the border: a zero of the padding times either is no number. */
TEST(strict_gradients_send_infinity_where_it_belongs) {
    static int want[DATA + WEIGHTS], got[DATA + WEIGHTS];
    weft_problem p = test_problem("conv2d:bwd:f32:nchw,src=nchw/4,weights=oihw/4,diff_dst=nchw/4,diff_src=nchw/4,"
                                  "diff_weights=oihw/4:n1c32h12w12:o32k3p1g8:strict");
    weft_ctx *ctx = test_context(1);
    int runs = 0;
    for (int i = 0; i < DATA; i++) src[i] = dy[i] = 1;
    for (int i = 0; i < WEIGHTS; i++) weights[i] = 1;
    weights[0] = weights[9 * 7 + 8] = src[0] = src[DATA - 1] = INFINITY;
    classes_of(ctx, &p, "conv_ref", want);
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (!d.applies) continue;
        classes_of(ctx, &p, d.name, got);
        for (int k = 0; k < DATA + WEIGHTS; k++)
            CHECK(got[k] == want[k], "%s: element %d of class %d, not %d", d.name, k, got[k], want[k]);
        runs++;
    }
    CHECK(runs > 1, "%d kernels", runs);
    weft_ctx_release(ctx);
}
