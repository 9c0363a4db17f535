/* One look at the CUDA engine on a machine with a GPU, short and complete: what is there, what compiling costs, right
 * results on edges and on random problems of every pass, and the fast kernels against a plain copy of the same bytes.
 *   gpu_smoke [random problems, default 300] [seed]
 * Ends with "N passed, N failed, N skipped"; exit status 1 if anything failed. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/engine.h"
#include "harness.h"

enum { RUNS = 15, ROUNDS = 3 };
static int passed, failed;

static void judge(bool good, const char *name, const char *why) {
    good ? passed++ : failed++;
    if (!good) printf("FAIL %s: %s\n", name, why);
    fflush(stdout);
}

static double ms_since(uint64_t start) { return (double)(weft__now_ns() - start) * 1e-6; }

/* ---------------------------------------------------------------- what compiling costs */
static const char first_problem[] = "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda";
static const char other_batch[] = "conv2d:fwd:f32:nchw:n63c128h56w56:o128k3p1g128@cuda";

static double plan_ms(weft_ctx *ctx, const char *text, const char *kernel) {
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_plan *plan = NULL;
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = kernel;
    weft_status s = weft_problem_parse(&p, text);
    uint64_t start = weft__now_ns();
    if (s == WEFT_OK) s = weft_plan_create(&plan, ctx, &p, &opts);
    double ms = ms_since(start);
    judge(s == WEFT_OK, text, s == WEFT_OK ? "" : weft_last_error());
    weft_plan_release(plan);
    return ms;
}

/* Planning in a process that has loaded nothing: the first one compiles, the second finds the files. */
static int show_compile(const char *folder) {
    weft_ctx *ctx;
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.cache_dir = folder;
    if (weft_ctx_create(&ctx, &opts) != WEFT_OK) return 1;
    const char *why = "";
    void *block = NULL;
    weft__cuda *cuda = weft__ctx_cuda(ctx, &why);
    uint64_t start = weft__now_ns();
    if (!cuda || weft__cuda_alloc(cuda, 0, 1, &block) != WEFT_OK)
        return 1; /* the primary context, apart from weft's own share */
    printf("  context %.0f ms", ms_since(start));
    printf("; fast kernel %.1f ms", plan_ms(ctx, first_problem, NULL));
    printf("; other batch %.3f ms", plan_ms(ctx, other_batch, NULL));
    printf("; reference %.1f ms\n", plan_ms(ctx, first_problem, "conv_ref__cuda"));
    weft__cuda_free(cuda, 0, block);
    weft_ctx_release(ctx);
    return failed != 0;
}

static void compile_times(const char *self) {
    char folder[] = "/tmp/weft-smoke-XXXXXX", command[1024];
    if (!mkdtemp(folder)) {
        judge(false, "compile", "no folder in /tmp");
        return;
    }
    static const char *const words[] = {"compiled, nothing on disk:", "a new process, from disk:"};
    for (int i = 0; i < 2; i++) {
        printf("%s\n", words[i]);
        fflush(stdout);
        snprintf(command, sizeof(command), "'%s' --compile %s", self, folder);
        judge(system(command) == 0, "compile", words[i]);
    }
    snprintf(command, sizeof(command), "rm -r %s", folder);
    if (system(command)) printf("  %s stays behind\n", folder);
}

/* ---------------------------------------------------------------- right results */
static const char *const edges[] = {
    /* around tiles, strips, runs of planes, alignments, paddings, epilogues; sizes to fill in */
    "conv2d:fwd:f32:nchw:n%dc%dh%dw%d:o%dk3p1g%d%s@cuda",
    "conv2d:fwd:f32:nchw:n%dc%dh%dw%d:o%dk3g%d%s@cuda",
    "conv2d:fwd:f32:nchw:n%dc%dh%dw%d:o%dk3p2+1x0+2g%d%s@cuda",
    "conv2d:fwd:f32:nhwc:n%dc%dh%dw%d:o%dk3p1g%d%s@cuda",
    "conv2d:fwd:f32:nchw,src=nchw/4,dst=nchw/4:n%dc%dh%dw%d:o%dk3p1g%d%s@cuda",
};
static const int sizes[][4] = {{1, 1, 3, 3},     {3, 5, 7, 7},     {2, 3, 8, 9},    {5, 7, 14, 13}, {2, 130, 7, 7},
                               {3, 50, 56, 56},  {40, 33, 5, 3},   {7, 61, 28, 28}, {2, 3, 57, 57}, {1, 2, 113, 111},
                               {1, 3, 224, 225}, {2, 1, 40, 1025}, {1, 1, 9, 5000}, {1, 1, 700, 3}};

static void check_problem(harness *h, const char *text, const weft_problem *p, uint64_t seed, bool thorough) {
    harness_ask ask = {.seed = seed, .kernel = NULL, .thorough = thorough};
    judge(harness_check(h, p, &ask), text, h->why);
}

static void check_results(int problems, uint64_t seed) {
    static const char *const steps[] = {"", ":bias", ":bias+relu", ":clip-2_3+bias"};
    static harness h;
    const weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    const int threads = 0;
    if (harness_create(&h, &opts, &threads, 1) != WEFT_OK) {
        judge(false, "harness", weft_last_error());
        return;
    }
    char text[WEFT_TEXT_MAX];
    weft_problem p = WEFT_PROBLEM_INIT;
    uint64_t start = weft__now_ns();
    for (size_t e = 0; e < WEFT__COUNT(edges); e++)
        for (size_t i = 0; i < WEFT__COUNT(sizes); i++) {
            const int *s = sizes[i];
            snprintf(text, sizeof(text), edges[e], s[0], s[1], s[2], s[3], s[1], s[1],
                     steps[(e + i) % WEFT__COUNT(steps)]);
            if (weft_problem_parse(&p, text) != WEFT_OK)
                judge(false, text, weft_last_error());
            else
                check_problem(&h, text, &p, e * 100 + i, s[1] * s[2] * s[3] < 30000);
        }
    printf("edges: %d passed, %d failed, %.0f s\n", passed, failed, ms_since(start) * 1e-3);
    for (int i = 0; i < problems; i++) {
        uint64_t one = harness_mix(seed, (uint64_t)i);
        if (!harness_random(&p, one, WEFT_DEVICE_CUDA)) {
            judge(false, "random", "no valid problem from the seed");
            continue;
        }
        harness_text(&p, text);
        check_problem(&h, text, &p, one, false);
    }
    printf(
        "with %d random problems (seed %llu): %d passed, %d failed, %lld runs, worst error %.3f of its bound, %.0f s\n",
        problems, (unsigned long long)seed, passed, failed, (long long)h.runs, h.worst, ms_since(start) * 1e-3);
    harness_destroy(&h);
}

/* ---------------------------------------------------------------- contexts */
static void *context_after_use(void *cuda) {
    void *block = NULL;
    CUcontext current = NULL;
    if (weft__cuda_alloc(cuda, 0, 1, &block) == WEFT_OK) ((weft__cuda *)cuda)->driver->ctx_get(&current);
    weft__cuda_free(cuda, 0, block);
    return current;
}

/* A thread that had none keeps the first device's, so that it is not made current again for each launch. */
static void check_context(weft__cuda *cuda) {
    pthread_t thread;
    void *kept = NULL;
    CUcontext first = NULL;
    bool ran = pthread_create(&thread, NULL, context_after_use, cuda) == 0 && pthread_join(thread, &kept) == 0;
    judge(ran && weft__cuda_context(cuda, 0, &first) == WEFT_OK && first && kept == first, "context of a new thread",
          "it is not the first device's");
}

/* ---------------------------------------------------------------- times */
static const char copy_source[] = "struct args { const float4 *src; float4 *dst; int64_t n; };\n"
                                  "extern \"C\" __global__ void copy(const args a) {\n"
                                  "  const float4 *src = a.src; float4 *dst = a.dst; const int64_t n = a.n;\n"
                                  "  for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += "
                                  "(int64_t)gridDim.x * blockDim.x) dst[i] = src[i];\n}\n";

/* Half of the problem's bytes read, half written: the floor of a kernel whose src and dst are of one size. */
static weft_status copy_run(const weft__exec *e) {
    int64_t n = (int64_t)(weft__bytes(e->p) / 32);
    void *src = e->ptr[WEFT_ROLE_SRC], *dst = e->ptr[WEFT_ROLE_DST];
    int64_t blocks = WEFT__MIN((n + 255) / 256, 1 << 20);
    const struct {
        void *src, *dst;
        int64_t n;
    } args = {src, dst, n};
    const weft__launch launch = {.grid = {(uint32_t)blocks, 1, 1}, .block = {256, 1, 1}};
    return weft__cuda_launch(e, 0, &launch, &args);
}
static const weft__kernel copy_kernel = {
    .name = "copy", .run = copy_run, WEFT__PARTS({copy_source, "copy", NULL, false})};

static weft_status fill_src(weft__cuda *cuda, void *device, size_t bytes) {
    float *host = malloc(bytes);
    if (!host) return weft__fail(WEFT_ERR_MEMORY, "no memory on the host");
    harness_rng r = {7};
    for (size_t i = 0; i < bytes / 4; i++) host[i] = (float)harness_real(&r);
    weft_status s = weft__cuda_copy_in(cuda, 0, device, host, bytes);
    free(host);
    return s;
}

/* Medians over rounds that alternate between kernel and copy, so that both see the same clocks. */
static weft_status time_both(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__kernel *k,
                             void **ptr, double us[2]) {
    static double ns[2][RUNS * ROUNDS];
    const weft__kernel *kernels[2] = {k, &copy_kernel};
    weft__choice choice[2] = {{.kernel = k}, {.kernel = &copy_kernel}};
    void *functions[2][WEFT__PARTS_MAX];
    weft__exec e[2];
    if (weft__kernel_plan(ctx, k, 0, p, hw, &choice[0].d)) return WEFT_ERR_UNSUPPORTED;
    for (int i = 0; i < 2; i++) {
        e[i] = (weft__exec){
            .p = p, .hw = hw, .ctx = ctx, .params = choice[i].d.params, .ptr = ptr, .functions = functions[i]};
        WEFT__TRY(weft__cuda_prepare(weft__ctx_cuda(ctx, NULL), &choice[i], p, hw, functions[i]));
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < 2; i++) WEFT__TRY(weft__cuda_time(&e[i], kernels[i], RUNS, ns[i] + round * RUNS));
    for (int i = 0; i < 2; i++) us[i] = harness_median(ns[i], RUNS * ROUNDS) * 1e-3;
    return WEFT_OK;
}

static weft_status time_problem(weft_ctx *ctx, const char *text) {
    weft_problem p = WEFT_PROBLEM_INIT;
    weft__hw hw;
    WEFT__TRY(weft_problem_parse(&p, text));
    WEFT__TRY(weft__ctx_hw(ctx, &p, &hw));
    weft__cuda *cuda = weft__ctx_cuda(ctx, NULL);
    void *ptr[WEFT_ROLE_COUNT] = {NULL};
    weft_status s = WEFT_OK;
    for (int i = 0; i < p.ntensors && s == WEFT_OK;
         i++) { /* room behind each: the copy takes the mean of all bytes for src and dst */
        size_t bytes = (size_t)weft__numel(&p.tensor[i]) * 4, room = bytes + ((size_t)1 << 20);
        s = weft__cuda_alloc(cuda, 0, room, &ptr[p.tensor[i].role]);
        if (s == WEFT_OK) s = fill_src(cuda, ptr[p.tensor[i].role], room);
    }
    const weft__kernel *const *list;
    size_t count = weft__kernels(p.op, &list);
    for (size_t i = 0; i < count && s == WEFT_OK; i++) {
        weft__decision d;
        if (list[i]->reference || weft__kernel_plan(ctx, list[i], 0, &p, &hw, &d)) continue;
        double us[2] = {0, 0};
        s = time_both(ctx, &p, &hw, list[i], ptr, us);
        if (s == WEFT_OK)
            printf("%-58s %-34s %8.1f us, copy %8.1f us (%4.0f GB/s), share %.2f, estimate %8.1f us\n", text,
                   list[i]->name, us[0], us[1], weft__bytes(&p) / us[1] * 1e-3, us[1] / us[0], d.ns * 1e-3);
    }
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) weft__cuda_free(cuda, 0, ptr[role]);
    return s;
}

static void show_times(weft_ctx *ctx) {
    static const char *const timed[] = {
        "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128@cuda",
        "conv2d:fwd:f32:nchw:n64c128h56w56:o128k3p1g128:bias+relu@cuda",
        "conv2d:fwd:f32:nchw:n64c128h57w57:o128k3p1g128@cuda",
        "conv2d:fwd:f32:nchw:n64c64h112w112:o64k3p1g64@cuda",
        "conv2d:fwd:f32:nchw:n64c256h28w28:o256k3p1g256@cuda",
        "conv2d:fwd:f32:nchw:n64c512h14w14:o512k3p1g512@cuda",
        "conv2d:fwd:f32:nchw:n64c1024h7w7:o1024k3p1g1024@cuda",
        "conv2d:fwd:f32:nchw:n8c32h512w512:o32k3p1g32@cuda",
        "conv2d:fwd:f32:nchw:n1c32h112w112:o32k3p1g32@cuda",
        "conv2d:fwd:f32:nhwc:n64c128h56w56:o128k3p1g128@cuda",
        "conv2d:fwd:f32:nhwc:n64c512h14w14:o512k3p1g512@cuda",
        "conv2d:fwd:f32:nhwc:n64c1024h7w7:o1024k3p1g1024@cuda",
        "conv2d:fwd:f32:nhwc:n64c50h56w56:o50k3p1g50@cuda",
    };
    for (size_t i = 0; i < WEFT__COUNT(timed); i++) {
        weft_status s = time_problem(ctx, timed[i]);
        judge(s == WEFT_OK, timed[i], s == WEFT_OK ? "" : weft_last_error());
    }
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--compile") == 0) return show_compile(argv[2]);
    weft_ctx *ctx;
    char text[8192];
    if (weft_ctx_create(&ctx, NULL) != WEFT_OK || weft_ctx_describe(ctx, text, sizeof(text), NULL) != WEFT_OK) {
        printf("FAIL context: %s\n0 passed, 1 failed, 0 skipped\n", weft_last_error());
        return 1;
    }
    const char *lines = strstr(text, "\ncuda: ");
    printf("%s", lines ? lines + 1 : text);
    bool here = weft__ctx_cuda(ctx, NULL) != NULL;
    if (here) {
        harness_catch_faults();
        compile_times(argv[0]);
        check_context(weft__ctx_cuda(ctx, NULL));
        check_results(argc > 1 ? atoi(argv[1]) : 300, argc > 2 ? strtoull(argv[2], NULL, 10) : 7);
        show_times(ctx);
    }
    weft_ctx_release(ctx);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, here ? 0 : 1);
    return failed ? 1 : 0;
}
