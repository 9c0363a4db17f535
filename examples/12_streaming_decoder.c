/* A streaming decoder in C: the first tokens of a sequence in one call, then one token at a time by causal_update,
 * which keeps the last tokens in a state. Both ways give the same numbers.
 * Build and run:  make && build/example_12_streaming_decoder */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

enum { C = 24, TOKENS = 12, FIRST = 7, WIDTH = 4 };

/* The whole sequence; its beginning, which leaves its last tokens in hn; one token behind a state. */
static const char *const texts[] = {
    "causal_conv1d:fwd:f32:nwc:n1c24w12:k4:bias+silu",
    "causal_conv1d:fwd:f32:nwc:n1c24w7:k4last1:bias+silu",
    "causal_update1d:fwd:f32:nwc:n1c24w1:k4len3:bias+silu",
};
enum { WHOLE, BEGIN, NEXT, PLANS };

static int run(const weft_plan *plan, weft_args *args) {
    size_t bytes = (weft_plan_workspace_bytes(plan) + 63) / 64 * 64;
    void *workspace = bytes ? aligned_alloc(64, bytes) : NULL;
    weft_status status = weft_execute(plan, args, workspace, bytes, NULL);
    free(workspace);
    return status == WEFT_OK;
}

int main(void) {
    /* tokens one after another, the channels of each side by side: nwc */
    _Alignas(16) float x[TOKENS][C], whole[TOKENS][C], stream[TOKENS][C], state[WIDTH - 1][C];
    _Alignas(16) float weights[C][WIDTH], bias[C];
    weft_ctx *ctx = NULL;
    weft_plan *plan[PLANS] = {NULL};
    int failed = 1;

    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < C; c++) x[t][c] = (float)((t * 7 + c * 5) % 13) / 6 - 1;
    for (int c = 0; c < C; c++) {
        bias[c] = 0.1f * (float)(c % 3);
        for (int j = 0; j < WIDTH; j++) weights[c][j] = (float)((c + 3 * j) % 5) / 4 - 0.5f;
    }

    if (weft_ctx_create(&ctx, NULL) != WEFT_OK) goto done;
    for (int i = 0; i < PLANS; i++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        if (weft_problem_parse(&p, texts[i]) != WEFT_OK) goto done;
        if (weft_plan_create(&plan[i], ctx, &p, NULL) != WEFT_OK) goto done;
    }

    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = x;
    args.ptr[WEFT_ROLE_WEIGHTS] = weights;
    args.ptr[WEFT_ROLE_BIAS] = bias;
    args.ptr[WEFT_ROLE_DST] = whole;
    if (!run(plan[WHOLE], &args)) goto done;

    args.ptr[WEFT_ROLE_DST] = stream;
    args.ptr[WEFT_ROLE_HN] = state;
    if (!run(plan[BEGIN], &args)) goto done;
    args.ptr[WEFT_ROLE_STATE] = state;
    for (int t = FIRST; t < TOKENS; t++) {
        args.ptr[WEFT_ROLE_SRC] = x[t];
        args.ptr[WEFT_ROLE_DST] = stream[t];
        if (!run(plan[NEXT], &args)) goto done;
    }

    float most = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int c = 0; c < C; c++) most = fmaxf(most, fabsf(whole[t][c] - stream[t][c]));
    printf("%d tokens at once by %s,\nthen one at a time by %s\n", FIRST, weft_plan_kernel_name(plan[BEGIN]),
           weft_plan_kernel_name(plan[NEXT]));
    printf("largest difference from the whole sequence: %g\n", (double)most);
    failed = most > 1e-6f;

done:
    if (failed) fprintf(stderr, "failed: %s\n", weft_last_error());
    for (int i = 0; i < PLANS; i++) weft_plan_release(plan[i]);
    weft_ctx_release(ctx);
    return failed;
}
