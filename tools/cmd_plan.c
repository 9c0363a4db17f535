/* weft plan: which kernel a problem gets, why, and why the others do not. */
#include <string.h>

#include "cli.h"

/* Seen from the plan outwards: what it computes, what it runs, what it needs. */
static int print_plan(const cli_command *self, const weft_plan *plan) {
    char text[WEFT_TEXT_MAX], a[32], b[32];
    weft_cost cost = WEFT_COST_INIT;
    const char *why = weft__plan_choice(plan)->why;
    bool timed = strcmp(why, "measured") == 0 || strcmp(why, "wisdom") == 0;
    if (weft_plan_cost(plan, &cost) != WEFT_OK) return cli_failed(self, "%s", weft_last_error());
    harness_text(weft_plan_problem(plan), text);
    printf("problem:   %s\n", text);
    printf("kernel:    %s\n", weft_plan_kernel_name(plan));
    printf("why:       %s\n", why);
    printf("time:      %s (%s)\n", cli_time(cost.ns, a), timed ? "measured" : "estimated");
    printf("work:      %.4g Gflop, %s moved once\n", cost.flops * 1e-9, cli_bytes(cost.bytes, a));
    printf("workspace: %s\npacked:    %s\n", cli_bytes((double)weft_plan_workspace_bytes(plan), a),
           cli_bytes((double)weft_plan_packed_bytes(plan), b));
    return CLI_OK;
}

static int print_others(const cli_command *self, const weft_ctx *ctx, const weft_plan *plan, size_t limit) {
    const weft_problem *p = weft_plan_problem(plan);
    size_t count = weft_kernel_count(ctx, p);
    printf("kernels:\n");
    for (size_t i = 0; i < count; i++) {
        char time[32];
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(ctx, p, i, &d) != WEFT_OK) return cli_failed(self, "%s", weft_last_error());
        bool fits = d.workspace <= limit;
        char name[WEFT__NAME_MAX];
        snprintf(name, sizeof(name), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
        if (!d.applies)
            printf("  - %-46s refused: %s\n", name, d.reason);
        else
            printf("  %c %-46s applies, estimate %s%s\n", strcmp(weft_plan_kernel_name(plan), name) == 0 ? '*' : ' ',
                   name, cli_time(d.ns, time), fits ? "" : ", workspace over the limit");
    }
    return CLI_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
    const char *kernel = NULL, *wisdom = NULL;
    bool measure = false;
    int64_t limit = 0;
    const cli_option options[] = {
        {"kernel", "NAME", "pin this kernel", CLI_TEXT, &kernel, 0, 0},
        {"measure", NULL, "time the candidates instead of estimating", CLI_FLAG, &measure, 0, 0},
        {"limit", "BYTES", "workspace a kernel may ask for (64 MB)", CLI_COUNT, &limit, 1, 0x1p62},
        {"wisdom", "FILE", "measured choices to take into account", CLI_TEXT, &wisdom, 0, 0},
    };
    int code = cli_parse(self, options, WEFT__COUNT(options), &argc, argv);
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_ctx *ctx = NULL;
    weft_plan *plan = NULL;
    if (code != CLI_OK) return code;
    if (argc != 1) return cli_misuse(self, "got %d problems, allowed: one", argc);
    if ((code = cli_problem(self, argv[0], &p)) != CLI_OK) return code;
    if (kernel && (code = cli_kernel(self, p.op, kernel)) != CLI_OK) return code;
    if ((code = cli_context(self, &ctx, NULL)) != CLI_OK) return code;
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = kernel;
    opts.mode = measure ? WEFT_MODE_MEASURE : WEFT_MODE_DEFAULT;
    opts.workspace_limit = (size_t)limit;
    if (wisdom && weft_wisdom_load(ctx, wisdom, NULL) != WEFT_OK)
        code = cli_failed(self, "--wisdom: %s", weft_last_error());
    if (code == CLI_OK && weft_plan_create(&plan, ctx, &p, &opts) != WEFT_OK)
        code = cli_failed(self, "%s", weft_last_error());
    if (code == CLI_OK) code = print_plan(self, plan);
    if (code == CLI_OK) code = print_others(self, ctx, plan, limit ? (size_t)limit : weft__opts(ctx)->workspace_limit);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    return code;
}

const cli_command cmd_plan = {"plan", "PROBLEM [--kernel NAME] [--measure] [--limit BYTES] [--wisdom FILE]",
                              "which kernel a problem gets, why, and why not the others", NULL, run};
