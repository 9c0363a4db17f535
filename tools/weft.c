/* weft: the command. Each subcommand is a record in its own file; this is the table of them. */
#include <string.h>

#include "cli.h"

static const cli_command *const commands[] = {&cmd_info,   &cmd_list, &cmd_plan,  &cmd_bench,
                                              &cmd_verify, &cmd_tune, &cmd_wisdom};

static void help(FILE *to) {
    fprintf(to, "usage: weft COMMAND [ARGUMENTS]\nconvolution-family operators: what there is, what is chosen, how "
                "fast, how right\n\n");
    for (size_t i = 0; i < WEFT__COUNT(commands); i++)
        fprintf(to, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(to, "\n`weft COMMAND --help` says more. A PROBLEM is a text such as\n"
                "  conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128\n"
                "variables: WEFT_ISA=");
    for (int i = 0; i < WEFT__ISA_COUNT; i++) fprintf(to, "%s%s", i ? "|" : "", weft__isa_names[i]);
    fprintf(to, ", WEFT_THREADS=N, WEFT_VERBOSE=dispatch,tune,exec,error|all\n");
}

int main(int argc, char **argv) {
    if (argc < 2) {
        help(stderr);
        return CLI_MISUSE;
    }
    if (strcmp(argv[1], "help") == 0 && argc > 2) { /* weft help plan: weft plan --help */
        static char flag[] = "--help";
        argv[1] = argv[2];
        argv[2] = flag;
        argc = 3;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return CLI_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("weft %s\n", weft_version());
        return CLI_OK;
    }
    for (size_t i = 0; i < WEFT__COUNT(commands); i++)
        if (strcmp(argv[1], commands[i]->name) == 0) {
            int code = commands[i]->run(commands[i], argc - 2, argv + 2);
            if (fflush(stdout) != 0 && code == CLI_OK)
                code = cli_failed(commands[i], "standard output could not be written");
            return CLI_END(code);
        }
    fprintf(stderr, "weft: no command '%s', allowed:", argv[1]);
    for (size_t i = 0; i < WEFT__COUNT(commands); i++) fprintf(stderr, "%s %s", i ? "," : "", commands[i]->name);
    fprintf(stderr, "\n");
    return CLI_MISUSE;
}
