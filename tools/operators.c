/* docs/operators.md, made from the tables: what weft list --operators prints. A row an operator; what the records
 * know (passes, data types, kernels) is read from them, the rest is written here. */
#include <string.h>

#include "cli.h"

typedef struct row {
    const char *meaning, *formula, *example;
} row;
static const row rows[WEFT_OP_COUNT] = {
    [WEFT_OP_CONV] = {"convolution, grouped, depthwise; transposed as bwd_data",
                      "y[o] = sum over i, k of x[g(o)+i, s·p+d·k-pad] · w[o,i,k]",
                      "conv2d:fwd:f32:nchw:n8c128h56w56:o128k3p1g128:bias+relu"},
    [WEFT_OP_PARTIAL_CONV] = {"convolution of what a mask lets through, rescaled by how much that is",
                              "y = (conv(x·m) · r + b) · u, r = W/(S+1e-8) · u, u = clamp(S, 0, 1), S = conv(m, 1)",
                              "partial_conv2d:fwd:f32,mask=u8,new_mask=u8:nchw:n16c64h64w64:o128k9p3:bias"},
    [WEFT_OP_SPARSE_CONV] = {"convolution with weights in CSR, columns plain or stretched to offsets",
                             "y[o] = sum over the stored w[o,i,k] of x[i, s·p+d·k-pad] · w",
                             "sparse_conv2d:fwd:f32,rows=i64,cols=i64:nchw:n32c64h56w56:o64k3p1nnz3686:bias+relu"},
    [WEFT_OP_MAX_POOL] = {"maximum of a window; the index is kept for the gradient", "y = max over k of x[s·p+d·k-pad]",
                          "max_pool2d:fwd:f32:nchw:n8c64h56w56:k3s2p1index1"},
    [WEFT_OP_AVG_POOL] = {"mean of a window, padding counted or not, or a given divisor",
                          "y = sum over k of x[s·p+k-pad] / count", "avg_pool2d:fwd:f32:nchw:n8c64h56w56:k3s2p1ceil1"},
    [WEFT_OP_ADAPTIVE_AVG_POOL] = {"mean of windows that divide the image into a given size",
                                   "y[p] = mean of x[floor(p·in/out) .. ceil((p+1)·in/out))",
                                   "adaptive_avg_pool2d:fwd:f32:nchw:n8c64h7w7:to1"},
    [WEFT_OP_RELU] = {"rectifier; NaN stays", "y = max(x, 0)", "relu2d:fwd:f32:nchw:n8c64h56w56"},
    [WEFT_OP_CLIP] = {"clip to bounds; the clipped relu has lo 0", "y = min(max(x, lo), hi)",
                      "clip2d:fwd:f32:nchw:n8c64h56w56:hi6"},
    [WEFT_OP_TANH] = {"hyperbolic tangent; its gradient from the output", "y = tanh(x), dx = dy · (1-y²)",
                      "tanh2d:bwd:f32:nchw:n8c64h56w56"},
    [WEFT_OP_SIGMOID] = {"logistic function; its gradient from the output", "y = 1/(1+exp(-x)), dx = dy · y · (1-y)",
                         "sigmoid2d:bwd:f32:nchw:n8c64h56w56"},
    [WEFT_OP_NCRELU] = {"positive and negative part of the input, side by side in the channels",
                        "y = cat(max(x, 0), min(x, 0))", "ncrelu2d:fwd:f32:nchw:n8c64h56w56"},
    [WEFT_OP_SOFTMAX] = {"softmax over the channels, maximum subtracted", "y[c] = exp(x[c]-m) / sum of exp(x-m)",
                         "softmax2d:fwd:f32:nchw:n2c19h64w64"},
    [WEFT_OP_LOG_SOFTMAX] = {"its logarithm", "y[c] = x[c] - m - log(sum of exp(x-m))",
                             "log_softmax2d:fwd:f32:nchw:n2c19h64w64"},
    [WEFT_OP_CROSS_ENTROPY] =
        {"log-softmax and negative log likelihood in one: weights, ignored label, smoothing, labels or probabilities",
         "l = lse(x) - x[t], weighted, then none, mean or sum",
         "cross_entropy2d:fwd:f32:nchw:n2c19h64w64:ignore255smooth0.1"},
    [WEFT_OP_BATCH_NORM] = {"normalisation by the batch's or the running statistics",
                            "y = (x-mean) / sqrt(var+eps) · w + b",
                            "batch_norm2d:fwd:bf16,weights=f32,bias=f32:nhwc:n8c64h14w14:train1"},
    [WEFT_OP_LRN] = {"local response normalisation across channels",
                     "y = x / (k + alpha/size · sum of x² over the window)^beta",
                     "lrn2d:fwd:f32:nchw:n2c96h27w27:size5"},
    [WEFT_OP_DGMM] = {"matrix times diagonal, from the right (side1) or the left (side0)",
                      "y[h,w] = x[h,w] · v[w], or · v[h]", "dgmm:fwd:f32:dense:n1h64w32:side1"},
    [WEFT_OP_CDGMM] = {"the same for complex numbers as pairs; gradients conjugate", "y = x · v in complex numbers",
                       "cdgmm:fwd:f32:dense:n4h64w32:side1"},
    [WEFT_OP_IM2COL] = {"windows of an image, one after another", "y[c,k,p] = x[c, s·p+d·k-pad]",
                        "im2col2d:fwd:f32:nchw:n4c64h56w56:k3p1"},
    [WEFT_OP_COL2IM] = {"its adjoint: windows summed back into an image",
                        "y[c,i] = sum over k, p with s·p+d·k-pad = i of x[c,k,p]",
                        "col2im2d:fwd:f32:nchw:n4c64h56w56:k3p1"},
    [WEFT_OP_CAUSAL_CONV] =
        {"depthwise convolution that looks only back; sequences kept apart by seq_idx, states h0, hn",
         "y[t] = silu(b + sum over k of x[t-(width-1)+k] · w[k])",
         "causal_conv1d:fwd:bf16,weights=f32,bias=f32:ncw:n1c64w128:k4:bias+silu"},
    [WEFT_OP_CAUSAL_UPDATE] = {"its next tokens; the state moves on in place, by a shift or as a ring",
                               "y[t] = silu(b + sum over k of (state, x)[t-(width-1)+k] · w[k])",
                               "causal_update1d:fwd:f32:ncw:n4c64w1:k4len3:bias+silu"},
    [WEFT_OP_RNN_RELU] = {"recurrent layer with relu", "h = relu(Wx x + bx + Wh h' + bh)",
                          "rnn_relu:fwd:f32:dense:t5n3c4o6:l2both1"},
    [WEFT_OP_RNN_TANH] = {"recurrent layer with tanh", "h = tanh(Wx x + bx + Wh h' + bh)",
                          "rnn_tanh:fwd:f32:dense:t5n3c4o6:state1"},
    [WEFT_OP_LSTM] = {"long short-term memory, projected if asked", "c = f·c' + i·g, h = o · tanh(c)",
                      "lstm:fwd:f32:dense:t100n1c512o512:train1state1"},
    [WEFT_OP_GRU] = {"gated recurrent unit", "h = (1-z)·m + z·h', m = tanh(Wx x + bx + r·(Wh h' + bh))",
                     "gru:fwd:f32:dense:t100n1c512o512:train1"},
};

static void put_passes(const weft__op *op) {
    for (size_t i = 0; i < op->npasses; i++) printf("%s%s", i ? ", " : "", weft__pass_name(op->passes[i].pass));
}

/* Of the first tensor: the type of the data. Others of the problem may differ where their role allows it. */
static void put_dtypes(const weft_problem *p) {
    uint64_t allowed = weft__op_of(p->op)->dtypes(p, p->tensor[0].role);
    for (int d = 1, any = 0; d < WEFT_DTYPE_COUNT; d++)
        if (allowed & WEFT__BIT(d)) printf("%s%s", any++ ? ", " : "", weft__dtype_name(d));
}

/* Each kernel once, without its instruction set. */
static void put_kernels(int op) {
    const weft__kernel *const *list;
    size_t count = weft__kernels(op, &list);
    char last[128] = "";
    for (int cuda = 0; cuda < 2; cuda++)
        for (size_t i = 0; i < count; i++) {
            const char *end = strstr(list[i]->name, "__");
            char name[128];
            snprintf(name, sizeof(name), "%.*s", end ? (int)(end - list[i]->name) : 127, list[i]->name);
            bool best = list[i]->engine == WEFT_ENGINE_CUDA || list[i]->engine == WEFT_ENGINE_REF ||
                        list[i]->isa == WEFT__SCALAR;
            if (!best || (list[i]->engine == WEFT_ENGINE_CUDA) != cuda || strcmp(name, last) == 0) continue;
            printf("%s%s`%s`", last[0] ? ", " : "", cuda ? "cuda " : "", name);
            snprintf(last, sizeof(last), "%s", name);
        }
}

int operators_markdown(const cli_command *self) {
    printf(
        "# Operators\n\nMade by `weft list --operators > docs/operators.md`; a test fails when it is stale. The "
        "reference takes every\n"
        "problem of its operator on both engines, with sums in double and one rounding to the output's type, so its "
        "error is half\n"
        "a unit in the last place; exp, log, tanh and pow add the last bits of a double. A fast kernel equals it "
        "exactly on integers\n"
        "and errs on reals by at most the direct f32 sum's bound (tools/harness.c states it). Every operator takes "
        "channels-first,\n"
        "channels-last and strided tensors, empty batches, and more than 2^31 elements; gradient passes take "
        "`:accNEW_OLD`.\n\n"
        "| operator | meaning | formula | example | passes | data types | kernels |\n|---|---|---|---|---|---|---|\n");
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        if (!rows[op].example)
            return cli_failed(self, "operator %s has no row in tools/operators.c", weft__op_of(op)->name);
        if (weft_problem_parse(&p, rows[op].example) != WEFT_OK)
            return cli_failed(self, "%s: %s", rows[op].example, weft_last_error());
        printf("| %s | %s | %s | `%s` | ", weft__op_of(op)->name, rows[op].meaning, rows[op].formula, rows[op].example);
        put_passes(weft__op_of(op));
        printf(" | ");
        put_dtypes(&p);
        printf(" | ");
        put_kernels(op);
        printf(" |\n");
    }
    return CLI_OK;
}
