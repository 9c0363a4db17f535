/* What weft_execute costs the host on CUDA beside a bare cuLaunchKernel. The bar is 1 us above it.
 *   build/bench_launch */
#include <math.h>
#include <stdio.h>

#include "cuda/engine.h"
#include "harness.h"

enum { CALLS = 400, ROUNDS = 30 }; /* calls: fewer than the driver queues */

static const char empty_source[] =
    "struct args { int64_t v[16]; };\nextern \"C\" __global__ void empty(const args a) {}\n";

typedef struct both {
    const weft__driver *d;
    CUfunction empty;
    weft_plan *plan;
    weft_args args;
} both;

static weft_status load_empty(weft_ctx *ctx, weft__cuda *cuda, both *b) {
    char arch[16];
    weft__code code = {NULL, 0};
    CUmodule module;
    CUcontext context;
    bool pushed; /* stays current: neither side pays for the change */
    snprintf(arch, sizeof(arch), "sm_%d", weft__cuda_gpu(cuda, 0)->cc);
    b->d = cuda->driver;
    WEFT__TRY(weft__code_get(ctx, empty_source, "", arch, &code));
    WEFT__TRY(weft__cuda_context(cuda, 0, &context));
    WEFT__TRY(weft__cuda_enter(b->d, context, &pushed));
    WEFT__TRY(weft__driver_check(b->d, b->d->module_load(&module, code.bytes), "cuModuleLoadData"));
    return weft__driver_check(b->d, b->d->module_function(&b->empty, module, "empty"), "cuModuleGetFunction");
}

static weft_status prepare(weft_ctx *ctx, weft__cuda *cuda, const char *text, both *b) {
    weft_problem p = WEFT_PROBLEM_INIT;
    WEFT__TRY(load_empty(ctx, cuda, b));
    WEFT__TRY(weft_problem_parse(&p, text));
    WEFT__TRY(weft_plan_create(&b->plan, ctx, &p, NULL));
    for (int i = 0; i < p.ntensors; i++)
        WEFT__TRY(weft__cuda_alloc(cuda, 0, (size_t)weft__numel(&p.tensor[i]) * 8, &b->args.ptr[p.tensor[i].role]));
    return WEFT_OK;
}

/* ns of one call, the least of the rounds; the device keeps up, and is waited for between rounds. */
static weft_status time_both(both *b, weft__cuda *cuda, double least[2]) {
    int64_t numbers[16] = {0};
    least[0] = least[1] = HUGE_VAL;
    for (int round = 0; round < ROUNDS; round++)
        for (int side = 0; side < 2; side++) {
            weft_status s = WEFT_OK;
            const uint64_t start = weft__now_ns();
            for (int i = 0; i < CALLS && s == WEFT_OK; i++)
                s = side ? weft_execute(b->plan, &b->args, NULL, 0, NULL)
                         : weft__driver_check(
                               b->d, b->d->launch(b->empty, 8, 1, 1, 256, 1, 1, 0, NULL, (void *[]){numbers}, NULL),
                               "cuLaunchKernel");
            least[side] = fmin(least[side], (double)(weft__now_ns() - start) / CALLS);
            char byte;
            if (s == WEFT_OK) s = weft__cuda_copy_out(cuda, 0, &byte, b->args.ptr[WEFT_ROLE_DST], 1);
            if (s != WEFT_OK) return s;
        }
    return WEFT_OK;
}

int main(void) {
    weft_ctx *ctx = NULL;
    const char *why = "";
    if (weft_ctx_create(&ctx, NULL) != WEFT_OK) return 1;
    weft__cuda *cuda = weft__ctx_cuda(ctx, &why);
    both b = {.args = WEFT_ARGS_INIT};
    double ns[2];
    if (!cuda) {
        printf("skipped: %s\n", why);
        return 0;
    }
    if (prepare(ctx, cuda, "relu2d:fwd:f32:nchw:n1c8h16w16@cuda", &b) != WEFT_OK ||
        time_both(&b, cuda, ns) != WEFT_OK) {
        printf("failed: %s\n", weft_last_error());
        return 1;
    }
    printf("%s: weft_execute %.0f ns, bare cuLaunchKernel %.0f ns, above it %.0f ns\n", weft_plan_kernel_name(b.plan),
           ns[1], ns[0], ns[1] - ns[0]);
    return 0;
}
