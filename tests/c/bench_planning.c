/* How long planning takes: by estimate, with wisdom loaded, and from the cache. The bars are 50 us and 1 us.
 *   build/bench_planning */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static double median_ns(weft_ctx *ctx, const weft_problem *base, int runs, bool cached) {
    double *ns = calloc((size_t)runs, sizeof(double));
    for (int i = -1; ns && i < runs; i++) {
        weft_problem p = *base;
        weft_plan *plan = NULL;
        if (!cached) p.n = 2 + i, p.ntensors = 0; /* tensors follow the new batch */
        uint64_t start = weft__now_ns();
        weft_status s = weft_plan_create(&plan, ctx, &p, NULL);
        if (i >= 0) ns[i] = (double)(weft__now_ns() - start);
        if (s != WEFT_OK) exit(1);
        weft_plan_release(plan);
    }
    double median = ns ? harness_median(ns, (size_t)runs) : 0;
    free(ns);
    return median;
}

int main(void) {
    static const char line[] = "cpu:none:scalar 0.1.0 t1 conv1d:fwd:f32:ncw:n1c1w9:o1k3@cpu conv_ref v1 100 0\n";
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_ctx *ctx = NULL;
    if (weft_ctx_create(&ctx, NULL) != WEFT_OK ||
        weft_problem_parse(&p, "conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128") != WEFT_OK)
        return 1;
    double estimate = median_ns(ctx, &p, 2000, false), cached = median_ns(ctx, &p, 20000, true);
    if (weft_wisdom_parse(ctx, line, strlen(line), NULL) != WEFT_OK) return 1;
    double wise = median_ns(ctx, &p, 2000, false);
    printf("planning by estimate %.2f us, with wisdom loaded %.2f us, from the cache %.3f us\n", estimate * 1e-3,
           wise * 1e-3, cached * 1e-3);
    weft_ctx_release(ctx);
    return 0;
}
