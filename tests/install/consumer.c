/* A stranger's program, built against an installed weft: one 3x3 depthwise convolution of ones, whose sums are
 * known. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

enum { C = 2, H = 4, W = 4 };

static int fail(const char *call) {
    fprintf(stderr, "%s: %s\n", call, weft_last_error());
    return 1;
}

int main(void) {
    if (strcmp(weft_version(), WEFT_VERSION)) {
        fprintf(stderr, "header %s, library %s\n", WEFT_VERSION, weft_version());
        return 1;
    }
    _Alignas(16) float src[C * H * W];
    _Alignas(16) float weights[C * 9];
    _Alignas(16) float dst[C * H * W] = {0};
    for (int i = 0; i < C * H * W; i++) src[i] = 1;
    for (int i = 0; i < C * 9; i++) weights[i] = 1;

    weft_ctx *ctx = NULL;
    weft_plan *plan = NULL;
    weft_problem p = WEFT_PROBLEM_INIT;
    if (weft_ctx_create(&ctx, NULL)) return fail("weft_ctx_create");
    if (weft_problem_parse(&p, "conv2d:fwd:f32:nchw:n1c2h4w4:o2k3p1g2")) return fail("weft_problem_parse");
    if (weft_plan_create(&plan, ctx, &p, NULL)) return fail("weft_plan_create");
    size_t bytes = weft_plan_workspace_bytes(plan);
    void *workspace = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : NULL;
    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = src;
    args.ptr[WEFT_ROLE_WEIGHTS] = weights;
    args.ptr[WEFT_ROLE_DST] = dst;
    if (weft_execute(plan, &args, workspace, bytes, NULL)) return fail("weft_execute");
    free(workspace);
    weft_plan_release(plan);
    weft_ctx_release(ctx);

    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            float rows = y == 0 || y == H - 1 ? 2 : 3, columns = x == 0 || x == W - 1 ? 2 : 3;
            for (int c = 0; c < C; c++)
                if (dst[(c * H + y) * W + x] != rows * columns) {
                    fprintf(stderr, "dst[%d][%d][%d] is %g, not %g\n", c, y, x, (double)dst[(c * H + y) * W + x],
                            (double)(rows * columns));
                    return 1;
                }
        }
    printf("weft %s works\n", weft_version());
    return 0;
}
