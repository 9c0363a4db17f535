/* Options by table, errors in one form: "weft bench: --rounds: got 'x', allowed: a whole number from 1 to 1000". */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

static void complain(const cli_command *self, const char *format, va_list args) {
    fprintf(stderr, "weft %s: ", self->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
}

int cli_misuse(const cli_command *self, const char *format, ...) {
    va_list args;
    va_start(args, format);
    complain(self, format, args);
    va_end(args);
    fprintf(stderr, "usage: weft %s%s%s; `weft %s --help` says more\n", self->name, *self->arguments ? " " : "",
            self->arguments, self->name);
    return CLI_MISUSE;
}

int cli_failed(const cli_command *self, const char *format, ...) {
    va_list args;
    va_start(args, format);
    complain(self, format, args);
    va_end(args);
    return CLI_FAILED;
}

void cli_help(const cli_command *self, const cli_option *options, size_t count) {
    printf("usage: weft %s%s%s\n%s\n", self->name, *self->arguments ? " " : "", self->arguments, self->summary);
    if (self->details) printf("\n%s\n", self->details);
    printf("\noptions\n");
    for (size_t i = 0; i < count; i++) {
        char left[64];
        snprintf(left, sizeof(left), "--%s %s", options[i].name, options[i].value ? options[i].value : "");
        printf("  %-20s %s\n", left, options[i].help);
    }
    printf("  %-20s %s\n\nexit codes: 0 done, 1 failed, 2 wrong use\n", "--help", "this text");
}

static const char *const kinds[] = {"nothing", "a text", "a whole number", "a number"};

static int assign(const cli_command *self, const cli_option *o, const char *text) {
    char *end = NULL;
    errno = 0;
    if (o->kind == CLI_TEXT) {
        *(const char **)o->to = text;
        return CLI_OK;
    }
    unsigned long long whole = o->kind == CLI_COUNT ? strtoull(text, &end, 10) : 0; /* seeds use all 64 bits */
    double number = o->kind == CLI_COUNT ? (double)whole : strtod(text, &end);
    if (end == text || *end || errno || *text == '-' || !(number >= o->least && number <= o->most))
        return cli_misuse(self, "--%s: got '%s', allowed: %s from %.15g to %.15g", o->name, text, kinds[o->kind],
                          o->least, o->most);
    if (o->kind == CLI_COUNT)
        *(int64_t *)o->to = (int64_t)whole;
    else
        *(double *)o->to = number;
    return CLI_OK;
}

static int unknown(const cli_command *self, const cli_option *options, size_t count, const char *got) {
    char names[512] = "";
    weft__text t = {names, sizeof(names), 0};
    for (size_t i = 0; i < count; i++) weft__put(&t, "--%s, ", options[i].name);
    return cli_misuse(self, "no option %s, allowed: %s--help", got, names);
}

int cli_parse(const cli_command *self, const cli_option *options, size_t count, int *argc, char **argv) {
    int kept = 0;
    bool plain = false; /* behind "--" */
    for (int i = 0; i < *argc; i++) {
        const char *arg = argv[i];
        if (plain || arg[0] != '-' || arg[1] == 0) {
            argv[kept++] = argv[i];
            continue;
        }
        if (strcmp(arg, "--") == 0) {
            plain = true;
            continue;
        }
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) {
            cli_help(self, options, count);
            return CLI_HELP;
        }
        size_t k = 0, n = strcspn(arg, "=");
        while (k < count &&
               (arg[1] != '-' || strlen(options[k].name) != n - 2 || strncmp(arg + 2, options[k].name, n - 2) != 0))
            k++;
        if (k == count) return unknown(self, options, count, arg);
        const cli_option *o = &options[k];
        if (o->kind == CLI_FLAG) {
            if (arg[n]) return cli_misuse(self, "--%s takes no value, got '%s'", o->name, arg + n + 1);
            *(bool *)o->to = true;
            continue;
        }
        if (!arg[n] && ++i == *argc) return cli_misuse(self, "--%s needs %s", o->name, kinds[o->kind]);
        int code = assign(self, o, arg[n] ? arg + n + 1 : argv[i]);
        if (code != CLI_OK) return code;
    }
    *argc = kept;
    return CLI_OK;
}

/* The text below the error, and a mark below its column. */
int cli_problem(const cli_command *self, const char *text, weft_problem *p) {
    int column = 0;
    if (weft_problem_parse(p, text) == WEFT_OK) return CLI_OK;
    fprintf(stderr, "weft %s: %s\n  %s\n", self->name, weft_last_error(), text);
    if (sscanf(weft_last_error(), "problem, column %d", &column) == 1) fprintf(stderr, "  %*s^\n", column - 1, "");
    return CLI_MISUSE;
}

int cli_context(const cli_command *self, weft_ctx **ctx, const weft_ctx_opts *opts) {
    if (weft_ctx_create(ctx, opts) == WEFT_OK) return CLI_OK;
    return cli_failed(self, "%s", weft_last_error());
}

int cli_kernel(const cli_command *self, int op, const char *name) {
    const weft__kernel *const *list = NULL;
    size_t count = weft__kernels(op, &list);
    for (size_t i = 0; i < count; i++)
        for (int v = -1; v < weft__kernel_variants(list[i]); v++) {
            char text[WEFT__NAME_MAX];
            weft__kernel_name(list[i], WEFT__MAX(v, 0), text);
            if (strcmp(v < 0 ? list[i]->name : text, name) == 0) return CLI_OK;
        }
    return cli_misuse(self, "--kernel: got '%s', allowed: a name from `weft list PROBLEM`, such as %s", name,
                      list[count - 1]->name);
}

int cli_list(const char *text, int *values, int room) {
    int n = 0;
    while (n < room) {
        char *end;
        long v = strtol(text, &end, 10);
        if (end == text || v < 1 || v > 1024) return 0;
        values[n++] = (int)v;
        if (*end == 0) return n;
        if (*end != ',') return 0;
        text = end + 1;
    }
    return 0;
}

const char *cli_bytes(double bytes, char text[32]) {
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB"};
    size_t u = 0;
    while (bytes >= 1e4 && u + 1 < WEFT__COUNT(units)) {
        bytes /= 1e3;
        u++;
    }
    snprintf(text, 32, "%.4g %s", bytes, units[u]);
    return text;
}

const char *cli_time(double ns, char text[32]) {
    static const struct {
        double scale;
        const char *unit;
    } units[] = {{1e9, "s"}, {1e6, "ms"}, {1e3, "us"}, {1, "ns"}};
    size_t u = 0;
    while (u + 1 < WEFT__COUNT(units) && ns < units[u].scale) u++;
    snprintf(text, 32, isfinite(ns) ? "%.4g %s" : "not measured", ns / units[u].scale, units[u].unit);
    return text;
}

const char *const *cli_find_set(const cli_command *self, const char *name) {
    char known[256] = "";
    weft__text t = {known, sizeof(known), 0};
    for (const cli_set *s = cli_sets; s->name; s++) {
        if (strcmp(s->name, name) == 0) return s->problems;
        weft__put(&t, "%s%s", t.length ? ", " : "", s->name);
    }
    cli_misuse(self, "--set: got '%s', allowed: %s", name, known);
    return NULL;
}
