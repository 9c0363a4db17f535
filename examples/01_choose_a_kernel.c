/* How weft chooses: list the kernels of a problem and why some do not apply, measure the rest, and keep the result
 * in a file. Build and run:  make && build/example_01_choose_a_kernel [problem] */
#include <stdio.h>
#include <weft.h>

#define TRY(call)                                                  \
    do {                                                           \
        if ((call) != WEFT_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, weft_last_error()); \
            return 1;                                              \
        }                                                          \
    } while (0)

static int list_kernels(const weft_ctx *ctx, const weft_problem *p) {
    for (size_t i = 0; i < weft_kernel_count(ctx, p); i++) {
        weft_kernel_desc k = WEFT_KERNEL_DESC_INIT;
        TRY(weft_kernel_info(ctx, p, i, &k));
        if (k.applies)
            printf("  %-44s %9.1f us estimated\n", k.name, k.ns / 1000);
        else
            printf("  %-44s no: %s\n", k.name, k.reason);
    }
    return 0;
}

static int choose(weft_ctx *ctx, const weft_problem *p, weft_mode mode, const char *label) {
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.mode = mode;
    weft_plan *plan;
    TRY(weft_plan_create(&plan, ctx, p, &opts));
    weft_cost cost = WEFT_COST_INIT;
    TRY(weft_plan_cost(plan, &cost));
    printf("%s: %s, %.1f us for %.3g flops and %.3g bytes\n", label, weft_plan_kernel_name(plan), cost.ns / 1000,
           cost.flops, cost.bytes);
    weft_plan_release(plan);
    return 0;
}

int main(int argc, char **argv) {
    const char *text = argc > 1 ? argv[1] : "conv2d:fwd:f32:nchw:n1c16h28w28:o16k3p1g16";
    const char *file = "example.wisdom";
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.measure_seconds = 0.2;
    weft_ctx *ctx;
    weft_problem p = WEFT_PROBLEM_INIT;
    TRY(weft_ctx_create(&ctx, &opts));
    TRY(weft_problem_parse(&p, text));
    printf("%s\n", text);
    if (list_kernels(ctx, &p)) return 1;
    if (choose(ctx, &p, WEFT_MODE_ESTIMATE, "by estimate")) return 1;
    if (choose(ctx, &p, WEFT_MODE_MEASURE, "by measurement")) return 1;
    TRY(weft_wisdom_save(ctx, file, NULL));
    weft_ctx_release(ctx);

    /* Another program, another day: what was measured is read back, and estimating now means looking it up. */
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    TRY(weft_ctx_create(&ctx, NULL));
    TRY(weft_wisdom_load(ctx, file, &report));
    printf("%s holds %lld entries for this machine\n", file, (long long)report.entries);
    if (choose(ctx, &p, WEFT_MODE_ESTIMATE, "by wisdom")) return 1;
    weft_ctx_release(ctx);
    remove(file);
    remove("example.wisdom.lock"); /* what processes that save at the same time wait for */
    return 0;
}
