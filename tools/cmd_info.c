/* weft info: the machine as weft sees it. */
#include <stdlib.h>

#include "cli.h"

static int run(const cli_command *self, int argc, char **argv) {
    int code = cli_parse(self, NULL, 0, &argc, argv);
    if (code != CLI_OK) return code;
    if (argc) return cli_misuse(self, "got '%s', allowed: no arguments", argv[0]);
    weft_ctx *ctx = NULL;
    if ((code = cli_context(self, &ctx, NULL)) != CLI_OK) return code;
    size_t length = 0;
    char *text = NULL;
    weft_status s = weft_ctx_describe(ctx, NULL, 0, &length);
    if (s == WEFT_OK && (text = malloc(length + 1))) s = weft_ctx_describe(ctx, text, length + 1, NULL);
    if (s == WEFT_OK && text)
        fputs(text, stdout);
    else
        code = cli_failed(self, "%s", text ? weft_last_error() : "out of memory");
    free(text);
    weft_ctx_release(ctx);
    return code;
}

const cli_command cmd_info = {"info", "", "the machine, the engines and the limits as weft sees them", NULL, run};
