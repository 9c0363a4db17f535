/* weft wisdom: look at, merge and thin out files of measured choices. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cli.h"

/* ---------------------------------------------------------------- show */
static void print_line(const char *line) {
    char device[256], version[32], threads[16], problem[WEFT_TEXT_MAX], kernel[128], kernel_version[16], time[32],
        room[32];
    double ns, workspace;
    if (sscanf(line, "%255s %31s %15s %1023s %127s %15s %lf %lf", device, version, threads, problem, kernel,
               kernel_version, &ns, &workspace) == 8)
        printf("  %s\n    %-46s %10s  workspace %s, %s, %s\n", problem, kernel, cli_time(ns, time),
               cli_bytes(workspace, room), threads, device);
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
        while (getline(&line, &capacity, f) >= 0)
            if (line[0] != '#') print_line(line);
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
 * Saving merges with the file, so lines are taken out here, under the lock that saving takes, by the same
 * replacement. */
static bool names_one(const char *line, char *const *problems, int count) {
    char problem[WEFT_TEXT_MAX];
    if (line[0] == '#' || sscanf(line, "%*s %*s %*s %1023s", problem) != 1) return false;
    for (int i = 0; i < count; i++)
        if (strcmp(problems[i], problem) == 0) return true;
    return false;
}

static int filter(const cli_command *self, const char *path, char *const *problems, int count) {
    char name[4096];
    if (snprintf(name, sizeof(name), "%s.lock", path) >= (int)sizeof(name) - 32)
        return cli_misuse(self, "the file's name is too long");
    FILE *in = fopen(path, "r"), *out = NULL;
    if (!in) return cli_failed(self, "'%s' cannot be read: %s", path, strerror(errno));
    fclose(in);
    int lock = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0666), code = CLI_OK;
    while (lock >= 0 && flock(lock, LOCK_EX) != 0 && errno == EINTR) {}
    snprintf(name, sizeof(name), "%s.%ld.tmp", path, (long)getpid());
    if (lock >= 0) in = fopen(path, "r"), out = fopen(name, "w");
    if (lock < 0 || !in || !out) code = cli_failed(self, "'%s' cannot be replaced: %s", path, strerror(errno));
    char *line = NULL;
    size_t capacity = 0, forgotten = 0;
    while (code == CLI_OK && getline(&line, &capacity, in) >= 0) {
        bool drop = names_one(line, problems, count);
        forgotten += drop;
        if (!drop) fputs(line, out);
    }
    free(line);
    if (lock >= 0 && in) fclose(in);
    if (out && fclose(out) != 0 && code == CLI_OK)
        code = cli_failed(self, "'%s' cannot be written: %s", path, strerror(errno));
    if (code == CLI_OK && rename(name, path) != 0)
        code = cli_failed(self, "'%s' cannot be replaced: %s", path, strerror(errno));
    if (code != CLI_OK && out) remove(name);
    if (lock >= 0) close(lock);
    if (code == CLI_OK) printf("%s: %zu entries forgotten\n", path, forgotten);
    return code;
}

static int forget(const cli_command *self, int argc, char **argv) {
    char **normal = calloc((size_t)argc, sizeof(*normal));
    int code = normal ? CLI_OK : cli_failed(self, "out of memory");
    for (int i = 1; i < argc && code == CLI_OK; i++) {
        weft_problem p;
        if ((code = cli_problem(self, argv[i], &p)) != CLI_OK) break;
        normal[i - 1] = malloc(WEFT_TEXT_MAX);
        if (normal[i - 1])
            harness_text(&p, normal[i - 1]);
        else
            code = cli_failed(self, "out of memory");
    }
    if (code == CLI_OK) code = filter(self, argv[0], normal, argc - 1);
    for (int i = 0; normal && i < argc; i++) free(normal[i]);
    free(normal);
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
