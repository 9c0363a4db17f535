/* weft list: every kernel, or those of a problem's operator with what each says of it. */
#include "cli.h"

static int list_all(const cli_command *self, const weft_ctx *ctx) {
    size_t count = weft_kernel_count(ctx, NULL);
    printf("%-48s %-6s %-10s %7s  %s\n", "kernel", "engine", "isa", "version", "result");
    for (size_t i = 0; i < count; i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(ctx, NULL, i, &d) != WEFT_OK) return cli_failed(self, "%s", weft_last_error());
        printf("%-48s %-6s %-10s %7d  %s\n", d.name, d.engine, d.isa[0] ? d.isa : "-", d.version,
               d.exact ? "exact" : "bounded");
    }
    return CLI_OK;
}

static int list_for(const cli_command *self, const weft_ctx *ctx, const weft_problem *p) {
    size_t count = weft_kernel_count(ctx, p);
    char text[WEFT_TEXT_MAX], time[32], room[32];
    harness_text(p, text);
    printf("%s\n%-48s %12s %12s  %s\n", text, "kernel", "estimate", "workspace", "applies");
    for (size_t i = 0; i < count; i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(ctx, p, i, &d) != WEFT_OK) return cli_failed(self, "%s", weft_last_error());
        if (d.applies)
            printf("%-48s %12s %12s  yes\n", d.name, cli_time(d.ns, time), cli_bytes((double)d.workspace, room));
        else
            printf("%-48s %12s %12s  no: %s\n", d.name, "-", "-", d.reason);
    }
    return CLI_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
    bool operators = false;
    const cli_option options[] = {
        {"operators", NULL, "every operator instead, as Markdown", CLI_FLAG, &operators, 0, 0}};
    int code = cli_parse(self, options, WEFT__COUNT(options), &argc, argv);
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_ctx *ctx = NULL;
    if (code != CLI_OK) return code;
    if (operators && argc) return cli_misuse(self, "got a problem and --operators, allowed: one of them");
    if (operators) return operators_markdown(self);
    if (argc > 1) return cli_misuse(self, "got %d problems, allowed: one or none", argc);
    if (argc && (code = cli_problem(self, argv[0], &p)) != CLI_OK) return code;
    if ((code = cli_context(self, &ctx, NULL)) != CLI_OK) return code;
    code = argc ? list_for(self, ctx, &p) : list_all(self, ctx);
    weft_ctx_release(ctx);
    return code;
}

const cli_command cmd_list = {"list", "[PROBLEM | --operators]",
                              "every kernel; for a problem, which apply and why the others do not", NULL, run};
