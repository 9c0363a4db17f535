/* The ten lines of weft.h with every check in: a 3x3 depthwise convolution that blurs one bright pixel per channel.
 * Build and run:  make && build/example_00_hello */
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

enum { C = 2, H = 5, W = 6 };

int main(void) {
    /* a problem promises 16-byte alignment unless its text says less: see docs/problem.md */
    _Alignas(16) float src[C * H * W] = {0};
    _Alignas(16) float weights[C * 3 * 3];
    _Alignas(16) float dst[C * H * W];
    for (int c = 0; c < C; c++) {
        src[(c * H + 2) * W + 2 + c] = 1; /* the bright pixel */
        for (int k = 0; k < 9; k++) weights[c * 9 + k] = (float)(c + 1);
    }

    weft_ctx *ctx = NULL;
    weft_plan *plan = NULL;
    weft_problem p = WEFT_PROBLEM_INIT;
    void *workspace = NULL;
    int failed = 1;

    if (weft_ctx_create(&ctx, NULL) != WEFT_OK) goto done;
    if (weft_problem_parse(&p, "conv2d:fwd:f32:nchw:n1c2h5w6:o2k3p1g2") != WEFT_OK) goto done;
    if (weft_plan_create(&plan, ctx, &p, NULL) != WEFT_OK) goto done;

    size_t bytes = (weft_plan_workspace_bytes(plan) + 63) / 64 * 64; /* often 0 */
    if (bytes && !(workspace = aligned_alloc(64, bytes))) goto done;
    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = src;
    args.ptr[WEFT_ROLE_WEIGHTS] = weights;
    args.ptr[WEFT_ROLE_DST] = dst;
    if (weft_execute(plan, &args, workspace, bytes, NULL) != WEFT_OK) goto done;
    failed = 0;

    printf("weft %s, kernel %s\n", weft_version(), weft_plan_kernel_name(plan));
    for (int c = 0; c < C; c++) {
        printf("channel %d\n", c);
        for (int y = 0; y < H; y++) {
            for (int x = 0; x < W; x++) printf("%4g", (double)dst[(c * H + y) * W + x]);
            printf("\n");
        }
    }

done:
    if (failed) fprintf(stderr, "failed: %s\n", weft_last_error());
    free(workspace);
    weft_plan_release(plan); /* NULL is fine */
    weft_ctx_release(ctx);
    return failed;
}
