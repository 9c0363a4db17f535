/* What the subcommands share: options by table, errors in one form, exit codes. */
#ifndef WEFT_CLI_H
#define WEFT_CLI_H

#include <stdio.h>

#include "harness.h"

enum { CLI_OK, CLI_FAILED, CLI_MISUSE, CLI_HELP }; /* HELP ends the command with OK */

typedef struct cli_option {
    const char *name;  /* without the dashes */
    const char *value; /* what stands for its value in the help; NULL: a flag */
    const char *help;
    enum { CLI_FLAG, CLI_TEXT, CLI_COUNT, CLI_REAL } kind; /* to: bool, const char *, int64_t, double */
    void *to;
    double least, most; /* of CLI_COUNT and CLI_REAL */
} cli_option;

typedef struct cli_command {
    const char *name, *arguments, *summary;
    const char *details; /* for its help; NULL: none */
    int (*run)(const struct cli_command *self, int argc, char **argv);
} cli_command;

extern const cli_command cmd_info, cmd_list, cmd_plan, cmd_bench, cmd_verify, cmd_tune, cmd_wisdom;

/* Options out of argv, the rest stays in its order: argc becomes how many. CLI_OK to go on, else what to return. */
int cli_parse(const cli_command *self, const cli_option *options, size_t count, int *argc, char **argv);
void cli_help(const cli_command *self, const cli_option *options, size_t count);
int cli_misuse(const cli_command *self, const char *format, ...) WEFT__PRINTF(2, 3); /* prints, returns CLI_MISUSE */
int cli_failed(const cli_command *self, const char *format, ...) WEFT__PRINTF(2, 3); /* prints, returns CLI_FAILED */
#define CLI_END(code) ((code) == CLI_HELP ? CLI_OK : (code))

int operators_markdown(const cli_command *self); /* operators.c: docs/operators.md on stdout */
int cli_problem(const cli_command *self, const char *text, weft_problem *p);
int cli_context(const cli_command *self, weft_ctx **ctx, const weft_ctx_opts *opts);
/* An error that names the kernels of the operator if there is none of that name. */
int cli_kernel(const cli_command *self, int op, const char *name);
/* "1,2,7" into values; how many, or 0 if it is not such a list. */
int cli_list(const char *text, int *values, int room);
/* The lists of bench/, ended by a NULL name; problems, ended by NULL, may have the pass train: forward and
 * gradients. */
typedef struct cli_set {
    const char *name;
    const char *const *problems;
} cli_set;
extern const cli_set cli_sets[];
/* The problems of a set; NULL and an error that names the sets if there is none of that name. */
const char *const *cli_find_set(const cli_command *self, const char *name);
const char *cli_bytes(double bytes, char text[32]);
const char *cli_time(double ns, char text[32]);

#endif
