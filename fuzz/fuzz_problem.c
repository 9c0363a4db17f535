/* Whatever the bytes, parsing a problem never crashes; what parses satisfies parse(format(p)) = p, is a fixed point
 * of complete, and an error has a text. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "harness.h"

const char *const fuzz_seeds[] = {
    "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cpu",
    "conv2d:fwd:bf16,bias=f32:nhwc:n8c64h112w112:o64k3s2p1g64:bias+relu",
    "conv2d:fwd:f32:nchw,src=[602112.4704.56.1],dst=nhwc/4:n1c8h56w56:o8k3p1g8",
    "conv2d:bwd_data:f32:nchw:n1c8h56w56:o16k3x5p1+0x2:strict@cuda",
    "conv1d:bwd:f64,diff_bias=f32:ncw,diff_bias=[2]/8:n0c4w9:o8k5s3d2p2+1g4:bias",
    "conv3d:bwd_weights:f16:ndhwc,diff_weights=odhwi:n1c2d3h4w5:o4k1x2x3p0x1+2x1:bias:tf32@cuda1",
    "conv2d:fwd:f32:nhwc:n1c1h1w1:o1k1:bias+clip-0.5_1e+30",
    "partial_conv1d:fwd:f32,mask=u8,new_mask=u8:ncw,new_mask=[9223372036854775807.1.1]:n2c2w1:o2k1",
    "partial_conv2d:fwd:f16,mask=u8:nchw:n2c4h7w9:o6k3p1g2mask2:bias+relu",
    "sparse_conv2d:bwd:f32:nhwc,rows=[9223372036854775807]:n2c4h7w9:o6k3p1g2nnz20stretched1:bias",
    "max_pool2d:bwd:f32:nchw:n2c3h9w9:k3s2p1d2ceil1index1",
    "avg_pool3d:fwd:f16:ndhwc:n2c3d4h9w9:k3s2p1pad0div7",
    "adaptive_avg_pool3d:fwd:f32:ncdhw:n2c3d4h9w9:to2x1099511627776x1",
    "lstm:bwd:f32,reserve=f32:dense:t5n3c4o6:l2both1proj2state1rows9train1seed7drop0.5",
    "gru:fwd:bf16:dense,src=[9223372036854775807.4.1]:t16777216n1099511627776c4o6",
    "cross_entropy2d:fwd:f32:nchw:n2c19h8w8:weighted1smooth0.1",
    "batch_norm2d:fwd:bf16,weights=f32,bias=f32:nhwc:n8c64h7w7:train1eps1e-5",
    "dgmm:bwd:f32:dense:n2h3w4:side1",
    "im2col2d:fwd:bf16:nchw,dst=[9223372036854775807.1.1.1.1.1]:n2c3h9w9:k3",
    NULL,
};

static void fail(const char *what, const char *text) {
    fprintf(stderr, "FAIL: %s\n  input: '%s'\n", what, text);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1), why[WEFT_TEXT_MAX * 3];
    if (!text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    weft_problem p, again;
    memset(&p, 0x5a, sizeof(p));
    p.size = sizeof(p);
    memcpy(&again, &p, sizeof(p));
    weft_status s = weft_problem_parse(&p, text);
    if (s == WEFT_OK) {
        again = p;
        if (weft_problem_complete(&again) != WEFT_OK || !harness_same_problem(&p, &again))
            fail("complete is not idempotent", text);
        if (!harness_round_trip(&p, why, sizeof(why))) fail(why, text);
    } else {
        if (s != WEFT_ERR_SYNTAX && s != WEFT_ERR_INVALID) fail(weft_status_name(s), text);
        if (!weft_last_error()[0]) fail("no text for the error", text);
        if (memcmp(&p, &again, sizeof(p)) != 0) fail("the problem was written although parsing failed", text);
    }
    free(text);
    return 0;
}
