/* A MobileNet block by itself: 1x1 that widens, 3x3 depthwise, 1x1 that narrows, with bias and ReLU6 fused. Weights are
 * packed once and serve every call; one workspace, as large as the neediest layer's, serves all layers. The same block
 * by the reference kernel tells whether it is right.  Build and run:  make && build/example_10_mobilenet_block */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft.h>

#define TRY(call)                                                  \
    do {                                                           \
        if ((call) != WEFT_OK) {                                   \
            fprintf(stderr, "%s: %s\n", #call, weft_last_error()); \
            exit(1);                                               \
        }                                                          \
    } while (0)

enum { LAYERS = 3 };
static const char *const text[LAYERS] = {
    "conv2d:fwd:f32:nhwc:n2c24h28w28:o144k1:bias+clip0_6",
    "conv2d:fwd:f32:nhwc:n2c144h28w28:o144k3p1g144:bias+clip0_6",
    "conv2d:fwd:f32:nhwc:n2c144h28w28:o24k1:bias",
};

typedef struct layer {
    weft_plan *plan;
    float *weights, *bias;
    void *packed; /* NULL: this kernel takes the weights as they are */
    size_t out_bytes;
} layer;

typedef struct block {
    layer layer[LAYERS];
    void *workspace;
    size_t workspace_bytes;
} block;

static void *take(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!p) exit(1);
    return p;
}

static size_t bytes_of(const weft_problem *p, int role) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == role) return weft_tensor_bytes(&p->tensor[i]);
    return 0;
}

/* Numbers between -1 and 1, the same in every run. */
static void fill(float *to, size_t bytes, float scale) {
    static uint32_t state = 1;
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        state = state * 1664525u + 1013904223u;
        to[i] = scale * ((float)(state >> 8) / 8388608.0f - 1.0f);
    }
}

/* kernel: for every layer; NULL: weft chooses. weights: of another block, or NULL. */
static block open_block(weft_ctx *ctx, const char *kernel, const block *like) {
    block b = {0};
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &b.layer[i];
        weft_problem p = WEFT_PROBLEM_INIT;
        weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
        opts.kernel = kernel;
        TRY(weft_problem_parse(&p, text[i]));
        TRY(weft_plan_create(&l->plan, ctx, &p, &opts));
        const weft_problem *full = weft_plan_problem(l->plan);
        const size_t weights = bytes_of(full, WEFT_ROLE_WEIGHTS), bias = bytes_of(full, WEFT_ROLE_BIAS);
        l->out_bytes = bytes_of(full, WEFT_ROLE_DST);
        l->weights = like ? like->layer[i].weights : take(weights);
        l->bias = like ? like->layer[i].bias : take(bias);
        if (!like) fill(l->weights, weights, 0.4f), fill(l->bias, bias, 0.1f);
        if (weft_plan_packed_bytes(l->plan)) {
            l->packed = take(weft_plan_packed_bytes(l->plan));
            TRY(weft_pack(l->plan, l->weights, l->packed, NULL));
        }
        const size_t need = weft_plan_workspace_bytes(l->plan);
        if (need > b.workspace_bytes) b.workspace_bytes = need;
    }
    if (b.workspace_bytes) b.workspace = take(b.workspace_bytes);
    return b;
}

/* src -> the last of `out`, one buffer for each layer. */
static void run(const block *b, float *src, float *out[LAYERS]) {
    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &b->layer[i];
        weft_args args = WEFT_ARGS_INIT;
        args.packed = l->packed;
        args.ptr[WEFT_ROLE_SRC] = i ? out[i - 1] : src;
        args.ptr[WEFT_ROLE_WEIGHTS] = l->weights;
        args.ptr[WEFT_ROLE_BIAS] = l->bias;
        args.ptr[WEFT_ROLE_DST] = out[i];
        TRY(weft_execute(l->plan, &args, b->workspace, b->workspace_bytes, NULL));
    }
}

static void close_block(block *b, bool weights) {
    for (int i = 0; i < LAYERS; i++) {
        weft_plan_release(b->layer[i].plan);
        free(b->layer[i].packed);
        if (weights) free(b->layer[i].weights), free(b->layer[i].bias);
    }
    free(b->workspace);
}

int main(void) {
    weft_ctx *ctx = NULL;
    TRY(weft_ctx_create(&ctx, NULL));
    block fast = open_block(ctx, NULL, NULL), slow = open_block(ctx, "conv_ref", &fast);
    float *mine[LAYERS], *theirs[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        mine[i] = take(fast.layer[i].out_bytes), theirs[i] = take(fast.layer[i].out_bytes);
        printf("%-64s %s\n", text[i], weft_plan_kernel_name(fast.layer[i].plan));
    }
    const size_t src_bytes = bytes_of(weft_plan_problem(fast.layer[0].plan), WEFT_ROLE_SRC);
    float *src = take(src_bytes), worst = 0, largest = 0;
    fill(src, src_bytes, 1);
    run(&fast, src, mine);
    run(&slow, src, theirs);
    for (size_t i = 0; i < fast.layer[LAYERS - 1].out_bytes / sizeof(float); i++) {
        worst = fmaxf(worst, fabsf(mine[LAYERS - 1][i] - theirs[LAYERS - 1][i]));
        largest = fmaxf(largest, fabsf(theirs[LAYERS - 1][i]));
    }
    const bool right = largest > 0 && worst <= 1e-5f * largest;
    printf("one workspace of %zu bytes; largest difference %.1e of %.1f: %s\n", fast.workspace_bytes, (double)worst,
           (double)largest, right ? "right" : "WRONG");
    for (int i = 0; i < LAYERS; i++) free(mine[i]), free(theirs[i]);
    free(src);
    close_block(&slow, false);
    close_block(&fast, true);
    weft_ctx_release(ctx);
    return right ? 0 : 1;
}
