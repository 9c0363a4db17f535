/* weft tune: measure the candidates of each problem and keep the result in a file. */
#include <unistd.h>

#include "cli.h"

static void progress(void *user, int topic, const char *line) {
    (void)user;
    if (topic == WEFT_LOG_TUNE) fprintf(stderr, "  %s\n", line);
}

static int tune_one(const cli_command *self, weft_ctx *ctx, const weft_problem *p, bool again, int number, int total) {
    char text[WEFT_TEXT_MAX], time[32];
    harness_text(p, text);
    fprintf(stderr, "[%d/%d] %s\n", number, total, text);
    if (again && weft_wisdom_forget(ctx, p) != WEFT_OK) return cli_failed(self, "%s", weft_last_error());
    size_t before = weft_wisdom_count(ctx);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.mode = WEFT_MODE_MEASURE;
    weft_plan *plan = NULL;
    weft_cost cost = WEFT_COST_INIT;
    if (weft_plan_create(&plan, ctx, p, &opts) != WEFT_OK) return cli_failed(self, "%s: %s", text, weft_last_error());
    weft_status s = weft_plan_cost(plan, &cost);
    printf("%s  %s  %s%s\n", text, weft_plan_kernel_name(plan), cli_time(cost.ns, time),
           weft_wisdom_count(ctx) == before ? "  (known before; --again measures anew)" : "");
    fflush(stdout);
    weft_plan_release(plan);
    return s == WEFT_OK ? CLI_OK : cli_failed(self, "%s", weft_last_error());
}

static int run(const cli_command *self, int argc, char **argv) {
    const char *file = NULL;
    bool again = false;
    double seconds = 0;
    int64_t threads = 0;
    const cli_option options[] = {
        {"wisdom", "FILE", "read if it exists, and written with what was measured", CLI_TEXT, &file, 0, 0},
        {"again", NULL, "measure what the file already knows", CLI_FLAG, &again, 0, 0},
        {"seconds", "T", "time limit of one problem (2)", CLI_REAL, &seconds, 0, 86400},
        {"threads", "N", "of the pool (one per core); wisdom is kept per number", CLI_COUNT, &threads, 1, 1024},
    };
    int code = cli_parse(self, options, WEFT__COUNT(options), &argc, argv);
    if (code != CLI_OK) return code;
    if (!argc) return cli_misuse(self, "no problem given, allowed: one or more PROBLEM");
    if (!file) return cli_misuse(self, "--wisdom is missing, allowed: the file to keep the result in");
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.verbose = WEFT_LOG_TUNE;
    opts.log = progress;
    opts.measure_seconds = seconds;
    opts.threads = (int32_t)threads;
    weft_ctx *ctx = NULL;
    weft_problem p = WEFT_PROBLEM_INIT;
    for (int i = 0; i < argc; i++) /* all are read before any is measured */
        if ((code = cli_problem(self, argv[i], &p)) != CLI_OK) return code;
    if ((code = cli_context(self, &ctx, &opts)) != CLI_OK) return code;
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    if (access(file, F_OK) == 0 && weft_wisdom_load(ctx, file, &report) != WEFT_OK)
        code = cli_failed(self, "--wisdom: %s", weft_last_error());
    for (int i = 0; i < argc && code == CLI_OK; i++) {
        weft_problem_parse(&p, argv[i]);
        code = tune_one(self, ctx, &p, again, i + 1, argc);
        /* each: an interrupt costs one problem */
        if (code == CLI_OK && weft_wisdom_save(ctx, file, &report) != WEFT_OK)
            code = cli_failed(self, "--wisdom: %s", weft_last_error());
    }
    if (code == CLI_OK)
        fprintf(stderr, "%s: %lld entries for this machine, %lld for others\n", file, (long long)report.entries,
                (long long)report.other_machines);
    weft_ctx_release(ctx);
    return code;
}

const cli_command cmd_tune = {
    "tune", "PROBLEM... --wisdom FILE [--again] [--seconds T]",
    "measure the candidates of each problem, keep the result in a file",
    "Load the file with weft_wisdom_load and the measured choices are taken without measuring again.", run};
