/* The CUDA engine's host side on the emulated GPU: what it says of the device, what it refuses, what it gives back, and
 * what becomes of a kernel that does not compile or a launch that the driver refuses. Run by tests/emulator/run. */
#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "counted.h"
#include "cuda/driver.h"
#include "cuda/engine.h"
#include "state.h"
#include "test.h"

/* Figures here are those of the device that the emulator has by itself. */
__attribute__((constructor)) static void no_other_generation(void) { unsetenv("EMULATOR_CC"); }

static const char relu[] = "relu1d:fwd:f32:ncw:n1c2w5@cuda";

static weft_status plan_of(weft_plan **plan, weft_ctx *ctx, const char *text) {
    weft_problem p = test_problem(text);
    return weft_plan_create(plan, ctx, &p, NULL);
}

/* ---------------------------------------------------------------- the cache of compiled code */
static int files_in(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* The library as if it had been built from another text of that embedded file. */
static void change_embedded(const char *name) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < weft__embedded_count; i++) {
        weft__embedded *e = (weft__embedded *)(uintptr_t)&weft__embedded_files[i];
        if (strcmp(e->name, name) != 0) continue;
        char *other = malloc(e->bytes + 16);
        memcpy(other, e->text, e->bytes);
        strcpy(other + e->bytes, "\n// other\n");
        char *from = (char *)((uintptr_t)e / page * page);
        const size_t span = (size_t)((char *)(e + 1) - from);
        if (mprotect(from, span, PROT_READ | PROT_WRITE) != 0) _exit(3);
        e->text = (const unsigned char *)other;
        e->bytes += 10;
        return;
    }
    _exit(4);
}

static int compile_in_a_child(const char *folder, const char *changed) {
    static const char source[] = "#include \"item.h\"\nextern \"C\" __global__ void k(int *x) { *x = 1; }\n";
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
        weft_ctx *ctx = NULL;
        size_t size;
        opts.cache_dir = folder;
        if (changed) change_embedded(changed);
        if (weft_ctx_create(&ctx, &opts) != WEFT_OK) _exit(1);
        const weft_status s = weft__cuda_compile(ctx, source, "", "sm_90", &size);
        if (s != WEFT_OK) fprintf(stderr, "%s\n", weft_last_error());
        weft_ctx_release(ctx);
        _exit(s == WEFT_OK ? 0 : 2);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return status;
}

/* Code that was compiled from other headers is not found. Before other tests: the digest of headers is made once. */
TEST(code_of_other_headers_is_not_found) {
    char folder[] = "/tmp/weft-engine-XXXXXX", command[64];
    CHECK(mkdtemp(folder), "%s", strerror(errno));
    const int first = compile_in_a_child(folder, NULL), files = files_in(folder);
    const int again = compile_in_a_child(folder, NULL), same = files_in(folder);
    const int other = compile_in_a_child(folder, "item.h"), more = files_in(folder);
    snprintf(command, sizeof(command), "rm -rf '%s'", folder);
    CHECK(system(command) == 0, "%s is left", folder);
    CHECK(first == 0 && again == 0 && other == 0, "status %x %x %x", first, again, other);
    CHECK(files == 1 && same == 1 && more == 2, "%d files, then %d, and %d with another header", files, same, more);
}

/* ---------------------------------------------------------------- the device */
TEST(the_device_is_described) {
    static char text[1 << 16];
    weft_ctx *ctx = test_context(1);
    OK(weft_ctx_describe(ctx, text, sizeof(text), NULL));
    CHECK(strstr(text, "cuda: driver 13.0, devices 1\n"), "%s", text);
    CHECK(strstr(text, "cuda 0: emulated GPU, cc 9.0, 132 SMs, L2 1 MB, about 4327 GB/s and 60217 GFLOP/s\n"), "%s",
          text);
    weft_problem p = test_problem(relu);
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &p, &hw));
    CHECK(hw.gpu && hw.gpu->smem == EMULATED_SMEM && hw.gpu->cc == 90 && hw.gpu->sms == 132,
          "%zu bytes of shared memory", hw.gpu ? hw.gpu->smem : 0);
    weft_ctx_release(ctx);
}

TEST(a_device_that_is_not_there) {
    static const char *const texts[] = {"relu1d:fwd:f32:ncw:n1c2w5@cuda1", "relu1d:fwd:f32:ncw:n1c2w5@cuda2",
                                        "relu1d:fwd:f32:ncw:n0c2w5@cuda1", "relu1d:fwd:f32:ncw:n1c2w5@cuda63"};
    weft_ctx *ctx = test_context(1);
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        weft_plan *plan = NULL;
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        weft_problem p = test_problem(texts[i]);
        FAILS(plan_of(&plan, ctx, texts[i]), WEFT_ERR_INVALID, "device ordinal is|allowed here: below 1");
        OK(weft_kernel_info(ctx, &p, 0, &d));
        CHECK(!d.applies && strcmp(d.reason, "no GPU") == 0, "%s for %s", d.name, texts[i]);
    }
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- memory */
static weft_ctx *counted_context(const char *nvrtc) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.alloc = counted_alloc, opts.free = counted_free, opts.nvrtc = nvrtc, opts.threads = 1;
    OK(weft_ctx_create(&ctx, &opts));
    return ctx;
}

/* Of a context that planned, of one that only looked, and of one that cannot compile. */
TEST(a_context_gives_its_memory_back) {
    weft_plan *plan = NULL;
    char text[64];
    for (int i = 0; i < 3; i++) {
        weft_ctx *ctx = counted_context(i == 2 ? "/nowhere/libnvrtc.so" : NULL);
        if (i == 0) OK(plan_of(&plan, ctx, relu));
        if (i == 1) weft_ctx_describe(ctx, text, sizeof(text), NULL);
        if (i == 2) FAILS(plan_of(&plan, ctx, "clip1d:fwd:f32:ncw:n1c2w5:hi6@cuda"), WEFT_ERR_UNSUPPORTED, "nvrtc");
        CHECK((plan != NULL) == (i == 0), "a plan without a kernel");
        weft_plan_release(plan), plan = NULL;
        weft_ctx_release(ctx);
        CHECK(atomic_load(&blocks) == 0, "context %d: %lld blocks left", i, (long long)atomic_load(&blocks));
    }
}

/* ---------------------------------------------------------------- kernels that fail */
static unsigned block_size;
static weft_status launch_it(const weft__exec *e) {
    struct {
        void *x;
        int64_t pad[4];
    } args = {e->ptr[WEFT_ROLE_DST], {0}};
    const weft__launch l = {.grid = {1, 1, 1}, .block = {block_size, 1, 1}};
    return weft__cuda_launch(e, 0, &l, &args);
}

#define SOURCE(body) "extern \"C\" __global__ void k(struct a) { " body " }\n"
#define STRUCT "struct a { float *x; long pad[4]; };\n"
static const weft__kernel good = {.name = "good",
                                  .op = WEFT_OP_RELU,
                                  .engine = WEFT_ENGINE_CUDA,
                                  .run = launch_it,
                                  WEFT__PARTS({STRUCT SOURCE(""), "k", NULL, false})},
                          broken = {.name = "broken",
                                    .op = WEFT_OP_RELU,
                                    .engine = WEFT_ENGINE_CUDA,
                                    .run = launch_it,
                                    WEFT__PARTS({STRUCT SOURCE("this is no code"), "k", NULL, false})},
                          nameless = {.name = "nameless",
                                      .op = WEFT_OP_RELU,
                                      .engine = WEFT_ENGINE_CUDA,
                                      .run = launch_it,
                                      WEFT__PARTS({STRUCT SOURCE(""), "other", NULL, false})};

static weft_status build_plan(weft_plan **plan, weft_ctx *ctx, const weft__kernel *k) {
    weft_problem p = test_problem(relu);
    const weft__choice c = {.kernel = k, .why = "pinned"};
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &p, &hw));
    return weft__plan_build(plan, ctx, &p, &hw, &c);
}

/* A failed build is no kernel: the next plan tries, and fails, again. */
TEST(what_does_not_compile_stays_so) {
    weft_ctx *ctx = counted_context(NULL);
    for (int i = 0; i < 3; i++) {
        weft_plan *plan = NULL;
        FAILS(build_plan(&plan, ctx, &broken), WEFT_ERR_INTERNAL, "nvrtc");
        FAILS(build_plan(&plan, ctx, &nameless), WEFT_ERR_DEVICE, "cuModuleGetFunction");
        CHECK(!plan, "a plan of a kernel that is not there");
    }
    weft_ctx_release(ctx);
    CHECK(atomic_load(&blocks) == 0, "%lld blocks left", (long long)atomic_load(&blocks));
}

static void *device_memory(weft_ctx *ctx, size_t bytes) {
    void *block = NULL;
    OK(weft__cuda_alloc(weft__ctx_cuda(ctx, NULL), 0, bytes, &block));
    return block;
}

TEST(a_launch_that_is_refused) {
    weft_ctx *ctx = test_context(1);
    weft_plan *plan = NULL;
    weft_args args = WEFT_ARGS_INIT;
    OK(build_plan(&plan, ctx, &good));
    args.ptr[WEFT_ROLE_SRC] = device_memory(ctx, 64), args.ptr[WEFT_ROLE_DST] = device_memory(ctx, 64);
    block_size = 32;
    OK(weft_execute(plan, &args, NULL, 0, NULL));
    block_size = 2048; /* no GPU has so many threads in a block */
    FAILS(weft_execute(plan, &args, NULL, 0, NULL), WEFT_ERR_DEVICE, "cuLaunchKernel|block 2048 x 1 x 1");
    block_size = 32;
    OK(weft_execute(plan, &args, NULL, 0, NULL));
    for (int role = WEFT_ROLE_SRC; role <= WEFT_ROLE_DST; role += WEFT_ROLE_DST - WEFT_ROLE_SRC)
        weft__cuda_free(weft__ctx_cuda(ctx, NULL), 0, args.ptr[role]);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- time */
enum { SLEEP = 2000000, RUNS = 3 };
static weft_status sleep_a_little(const weft__exec *e) {
    struct timespec left = {0, SLEEP};
    (void)e;
    while (nanosleep(&left, &left) != 0) {}
    return WEFT_OK;
}

/* Nanoseconds: a run that sleeps takes no less than that, and all of them no more than the test waits. */
TEST(times_are_in_nanoseconds) {
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(relu);
    const weft__exec e = {.p = &p, .ctx = ctx};
    const weft__kernel k = {.name = "sleeper", .op = WEFT_OP_RELU, .engine = WEFT_ENGINE_CUDA, .run = sleep_a_little};
    double ns[RUNS], sum = 0;
    const uint64_t start = weft__now_ns();
    OK(weft__cuda_time(&e, &k, RUNS, ns));
    const double all = (double)(weft__now_ns() - start);
    for (int i = 0; i < RUNS; i++) {
        CHECK(ns[i] > 0.999 * SLEEP, "run %d took %g ns, it slept for %d", i, ns[i], SLEEP);
        sum += ns[i];
    }
    CHECK(sum < 1.001 * all, "%d runs took %g ns of %g", RUNS, sum, all);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- fork */
/* Nothing of CUDA is for a child: it is refused, by each call that would touch the device; the CPU is not. */
TEST(a_child_is_refused) {
    weft_ctx *ctx = test_context(1);
    weft_plan *plan = NULL;
    weft_args args = WEFT_ARGS_INIT;
    OK(build_plan(&plan, ctx, &good));
    args.ptr[WEFT_ROLE_SRC] = device_memory(ctx, 64), args.ptr[WEFT_ROLE_DST] = device_memory(ctx, 64);
    block_size = 32;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        weft_plan *other = NULL;
        void *block = NULL;
        const bool refused[] = {
            weft_execute(plan, &args, NULL, 0, NULL) == WEFT_ERR_DEVICE && strstr(weft_last_error(), "spawn"),
            build_plan(&other, ctx, &good) == WEFT_ERR_DEVICE && strstr(weft_last_error(), "spawn"),
            plan_of(&other, ctx, "tanh1d:fwd:f32:ncw:n1c2w5@cuda") == WEFT_ERR_DEVICE && !other,
            weft__cuda_alloc(weft__ctx_cuda(ctx, NULL), 0, 64, &block) == WEFT_ERR_DEVICE,
            plan_of(&other, ctx, "tanh1d:fwd:f32:ncw:n1c2w5@cpu") == WEFT_OK,
        };
        int wrong = 0;
        for (size_t i = 0; i < WEFT__COUNT(refused); i++) wrong |= refused[i] ? 0 : 1 << i;
        _exit(wrong);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK(status == 0, "status %x", status);
    OK(weft_execute(plan, &args, NULL, 0, NULL)); /* the parent goes on */
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the command */
/* weft verify runs each kernel twice, and measures on the device. */
TEST(verify_runs_twice) {
    char line[512], text[4096] = "";
    snprintf(line, sizeof(line), "'%s' verify --device cuda --kernel relu_16b__cuda relu1d:fwd:f32:ncw:n1c2w5 2>&1",
             WEFT_COMMAND);
    FILE *f = popen(line, "r");
    CHECK(f, "no process");
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    CHECK(pclose(f) == 0, "%s", text);
    /* three kinds of data in three places, each twice; the reference in each, and more for the bounds of two kinds */
    CHECK(strstr(text, "1 problem, 33 executions, 0 failures"), "%s", text);
}
