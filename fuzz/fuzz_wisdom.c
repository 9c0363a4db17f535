/* Whatever the bytes, reading wisdom never crashes and never fails but for memory; each line is an entry, a comment
 * or bad. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"
#include "harness.h"

const char *const fuzz_seeds[] = {
    "# weft wisdom\ncpu:Some-CPU:avx2 0.1.0 t2 conv2d:fwd:f32:nchw:n1c8h9w9:o8k3p1g8@cpu conv_ref v1 12345 0\n",
    "cpu:A:scalar 0.1.0 t1 conv1d:fwd:f16:nwc:n1c8w9:o8k3p1:bias@cpu conv_ref v1 1 64\ncuda:B:cc90 0.1.0 t1 "
    "conv2d:bwd:f32:nchw:n1c8h9w9:o8k3@cuda k v3 7 0\n",
    "bad\n\n \r\n\t\n#\ncpu:A:avx2 9.9.9 t8 conv2d:fwd:f32:nchw:n1c8h9w9:o8k3p1g8@cpu other v2 5 1048576",
    NULL,
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static weft_ctx *ctx;
    if (!ctx && weft_ctx_create(&ctx, NULL) != WEFT_OK) abort();
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    size_t lines = 1;
    for (size_t i = 0; i < size; i++) lines += data[i] == '\n';
    weft_wisdom_forget(ctx, NULL);
    weft_status s = weft_wisdom_parse(ctx, (const char *)data, size, &report);
    size_t entries = weft_wisdom_count(ctx);
    if (s == WEFT_OK && (size_t)(report.entries + report.other_machines) == entries &&
        entries + (size_t)report.bad_lines <= lines)
        return 0;
    fprintf(stderr, "FAIL: status %s, %zu entries, %lld bad lines, %zu lines\n", weft_status_name(s), entries,
            (long long)report.bad_lines, lines);
    fwrite(data, 1, size, stderr);
    abort();
}
