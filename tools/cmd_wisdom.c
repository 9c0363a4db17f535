/* weft wisdom: look at, merge and thin out files of measured choices. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* ---------------------------------------------------------------- show */
static void print_line(char *line) {
    enum { DEVICE, VERSION, THREADS, PROBLEM, KERNEL, KERNEL_VERSION, NS, WORKSPACE, FIELDS };
    char *field[FIELDS + 1], time[32], room[32], *rest = NULL;
    int n = 0;
    for (char *at = strtok_r(line, " \t\r\n", &rest); at && n <= FIELDS; at = strtok_r(NULL, " \t\r\n", &rest))
        field[n++] = at;
    if (n != FIELDS || field[0][0] == '#') return;
    printf("  %s\n    %-46s %10s  workspace %s, %s, %s\n", field[PROBLEM], field[KERNEL],
           cli_time(strtod(field[NS], NULL), time), cli_bytes(strtod(field[WORKSPACE], NULL), room), field[THREADS],
           field[DEVICE]);
}

static int show(const cli_command *self, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        weft_ctx *ctx = NULL;
        weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
        int code = cli_context(self, &ctx, NULL);
        if (code != CLI_OK) return code;
        FILE *f = NULL;
        if (weft_wisdom_load(ctx, argv[i], &report) != WEFT_OK)
            code = cli_failed(self, "%s", weft_last_error());
        else if (!(f = fopen(argv[i], "r")))
            code = cli_failed(self, "'%s' cannot be read: %s", argv[i], strerror(errno));
        weft_ctx_release(ctx);
        if (code != CLI_OK) return code;
        printf("%s: %lld entries for this machine, %lld for others, %lld bad lines\n", argv[i],
               (long long)report.entries, (long long)report.other_machines, (long long)report.bad_lines);
        char *line = NULL;
        size_t capacity = 0;
        while (getline(&line, &capacity, f) >= 0) print_line(line);
        free(line);
        fclose(f);
    }
    return CLI_OK;
}

/* ---------------------------------------------------------------- merge */
static int merge(const cli_command *self, int argc, char **argv) {
    weft_ctx *ctx = NULL;
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    int code = cli_context(self, &ctx, NULL);
    for (int i = 1; i < argc && code == CLI_OK; i++) {
        if (weft_wisdom_load(ctx, argv[i], &report) != WEFT_OK)
            code = cli_failed(self, "%s", weft_last_error());
        else if (report.bad_lines)
            fprintf(stderr, "weft wisdom: %s: %lld bad lines skipped\n", argv[i], (long long)report.bad_lines);
    }
    if (code == CLI_OK && weft_wisdom_save(ctx, argv[0], &report) != WEFT_OK)
        code = cli_failed(self, "%s", weft_last_error());
    if (code == CLI_OK) printf("%s: %zu entries\n", argv[0], weft_wisdom_count(ctx));
    weft_ctx_release(ctx);
    return code;
}

/* ---------------------------------------------------------------- forget
 * What a context has forgotten, saving takes out of the file. */
static int forget(const cli_command *self, int argc, char **argv) {
    weft_ctx *ctx = NULL;
    int code = cli_context(self, &ctx, NULL);
    if (code == CLI_OK && weft_wisdom_load(ctx, argv[0], NULL) != WEFT_OK)
        code = cli_failed(self, "%s", weft_last_error());
    size_t before = code == CLI_OK ? weft_wisdom_count(ctx) : 0;
    for (int i = 1; i < argc && code == CLI_OK; i++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        code = cli_problem(self, argv[i], &p);
        if (code == CLI_OK && weft_wisdom_forget(ctx, &p) != WEFT_OK) code = cli_failed(self, "%s", weft_last_error());
    }
    size_t forgotten = code == CLI_OK ? before - weft_wisdom_count(ctx) : 0;
    if (code == CLI_OK && weft_wisdom_save(ctx, argv[0], NULL) != WEFT_OK)
        code = cli_failed(self, "%s", weft_last_error());
    if (code == CLI_OK) printf("%s: %zu entries forgotten\n", argv[0], forgotten);
    weft_ctx_release(ctx);
    return code;
}

/* ---------------------------------------------------------------- the three */
static const struct {
    const char *name;
    int least;
    const char *needs;
    int (*run)(const cli_command *, int, char **);
} actions[] = {
    {"show", 1, "show FILE...", show},
    {"merge", 2, "merge OUT IN...", merge},
    {"forget", 2, "forget FILE PROBLEM...", forget},
};

static int run(const cli_command *self, int argc, char **argv) {
    int code = cli_parse(self, NULL, 0, &argc, argv);
    if (code != CLI_OK) return code;
    for (size_t i = 0; argc && i < WEFT__COUNT(actions); i++) {
        if (strcmp(argv[0], actions[i].name) != 0) continue;
        if (argc - 1 < actions[i].least)
            return cli_misuse(self, "%s got %d arguments, allowed: %s", argv[0], argc - 1, actions[i].needs);
        return actions[i].run(self, argc - 1, argv + 1);
    }
    return cli_misuse(self, "got %s, allowed: show, merge, forget", argc ? argv[0] : "nothing");
}

const cli_command cmd_wisdom = {"wisdom", "show FILE... | merge OUT IN... | forget FILE PROBLEM...",
                                "look at, merge and thin out files of measured choices",
                                "show    what the files hold, and how much of it this machine uses\n"
                                "merge   all of IN into OUT, which keeps what it has\n"
                                "forget  every entry of the problems",
                                run};
