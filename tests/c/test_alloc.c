/* Memory runs out at every site in turn: the call fails with WEFT_ERR_MEMORY, nothing leaks, nothing breaks. */
#include <stdatomic.h>
#include <unistd.h>

#include "test.h"

static _Atomic int64_t live, calls, fail_at;

static void *failing_alloc(void *user, size_t bytes) {
    (void)user;
    if (atomic_fetch_add(&calls, 1) + 1 == atomic_load(&fail_at)) return NULL;
    void *block = malloc(bytes);
    if (block) atomic_fetch_add(&live, 1);
    return block;
}

static void counting_free(void *user, void *block) {
    (void)user;
    if (block) atomic_fetch_sub(&live, 1);
    free(block);
}

static weft_ctx_opts options(void) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.alloc = failing_alloc;
    opts.free = counting_free;
    opts.threads = 2;
    opts.measure_seconds = 0.02;
    opts.nvrtc = "/nowhere/libnvrtc.so";
    opts.cache_dir = "";
    return opts;
}

typedef weft_status (*scenario)(weft_ctx *ctx);
static const char text[] = "conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4@cpu";
static char file[] = "/tmp/weft-alloc-XXXXXX";

static weft_status plan_with(weft_ctx *ctx, int mode) {
    weft_problem p = test_problem(text);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_plan *plan = NULL;
    opts.mode = mode;
    weft_status s = weft_plan_create(&plan, ctx, &p, &opts);
    if (s != WEFT_OK && plan) test_stop(TEST_FAIL, "a plan in spite of %s", weft_status_name(s));
    weft_plan_release(plan);
    return s;
}

static weft_status nothing(weft_ctx *ctx) { return ctx ? WEFT_OK : WEFT_ERR_INTERNAL; }
static weft_status estimate(weft_ctx *ctx) { return plan_with(ctx, WEFT_MODE_ESTIMATE); }

static weft_status describe(weft_ctx *ctx) {
    char room[4096];
    return weft_ctx_describe(ctx, room, sizeof(room), NULL);
}

static weft_status read_wisdom(weft_ctx *ctx) {
    static const char lines[] = "cpu:a:avx2 0.1.0 t2 conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4@cpu k v1 5 "
                                "0\nbad\ncpu:b:avx2 0.1.0 t2 conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4@cpu k v1 5 0\n";
    return weft_wisdom_parse(ctx, lines, sizeof(lines) - 1, NULL);
}

static weft_status save_and_load(weft_ctx *ctx) {
    WEFT__TRY(read_wisdom(ctx));
    WEFT__TRY(weft_wisdom_save(ctx, file, NULL));
    return weft_wisdom_load(ctx, file, NULL);
}

/* k = 1, 2, ... until the scenario gets through without meeting the failure. */
static void exhaust(scenario run, const char *name) {
    int64_t k = 1, met = 1;
    for (; met && k < 10000; k++) {
        weft_ctx_opts opts = options();
        weft_ctx *ctx = NULL;
        atomic_store(&calls, 0);
        atomic_store(&fail_at, k);
        weft_status s = weft_ctx_create(&ctx, &opts);
        CHECK((s == WEFT_OK) == (ctx != NULL), "%s: context %p with %s", name, (void *)ctx, weft_status_name(s));
        if (s == WEFT_OK) s = run(ctx);
        met = atomic_load(&calls) >= k;
        atomic_store(&fail_at, 0);
        CHECK(s == (met ? WEFT_ERR_MEMORY : WEFT_OK), "%s: allocation %lld fails: %s (%s)", name, (long long)k,
              weft_status_name(s), weft_last_error());
        if (met) CHECK(strstr(weft_last_error(), "memory"), "%s: the error is \"%s\"", name, weft_last_error());
        if (ctx && met) {
            s = run(ctx); /* memory is back: so is the context */
            CHECK(s == WEFT_OK, "%s after the failure of allocation %lld: %s", name, (long long)k, weft_last_error());
        }
        weft_ctx_release(ctx);
        CHECK(atomic_load(&live) == 0, "%s: %lld blocks leak when allocation %lld fails", name,
              (long long)atomic_load(&live), (long long)k);
    }
    CHECK(k > 2 && !met, "%s met %lld failures", name, (long long)k);
}

TEST(context) { exhaust(nothing, "context"); }
TEST(describing) { exhaust(describe, "describe"); }
TEST(planning) { exhaust(estimate, "estimate"); }

static weft_problem drawn;

static weft_status plan_drawn(weft_ctx *ctx) {
    weft_plan *plan = NULL;
    weft_status s = weft_plan_create(&plan, ctx, &drawn, NULL);
    weft_plan_release(plan);
    return s;
}

TEST(planning_every_operator) {
    for (int op = 1; op < WEFT_OP_COUNT; op++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            CHECK(harness_random_of(&drawn, seed, WEFT_DEVICE_CPU, op), "%s: %s", weft__op_of(op)->name,
                  weft_last_error());
            exhaust(plan_drawn, weft__op_of(op)->name);
        }
}

TEST(reading_wisdom) { exhaust(read_wisdom, "wisdom"); }

TEST(saving_wisdom) {
    int fd = mkstemp(file);
    CHECK(fd >= 0, "no file");
    close(fd);
    remove(file);
    exhaust(save_and_load, "save and load");
    char lock[64];
    snprintf(lock, sizeof(lock), "%s.lock", file);
    remove(lock);
    remove(file);
}

/* Measuring skips a candidate that cannot have its buffers, so it may succeed all the same: never a crash, never a
 * leak. */
TEST(measuring) {
    for (int64_t k = 1; k < 200; k++) {
        weft_ctx_opts opts = options();
        weft_ctx *ctx = NULL;
        atomic_store(&calls, 0);
        atomic_store(&fail_at, k);
        weft_status s = weft_ctx_create(&ctx, &opts);
        if (s == WEFT_OK) s = plan_with(ctx, WEFT_MODE_MEASURE);
        bool met = atomic_load(&calls) >= k;
        atomic_store(&fail_at, 0);
        CHECK(s == WEFT_OK || (met && s == WEFT_ERR_MEMORY), "allocation %lld fails: %s (%s)", (long long)k,
              weft_status_name(s), weft_last_error());
        weft_ctx_release(ctx);
        CHECK(atomic_load(&live) == 0, "%lld blocks leak when allocation %lld fails", (long long)atomic_load(&live),
              (long long)k);
        if (!met) return;
    }
    CHECK(false, "no end of allocations");
}

/* The hot path allocates nothing. */
TEST(execute_allocates_nothing) {
    weft_ctx_opts opts = options();
    weft_ctx *ctx;
    weft_plan *plan;
    weft_problem p = test_problem(text);
    static float src[4 * 6 * 7 + 16], weights[36 + 16], dst[4 * 6 * 7 + 16];
    static char workspace[1 << 20] __attribute__((aligned(64)));
    OK(weft_ctx_create(&ctx, &opts));
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    CHECK(weft_plan_workspace_bytes(plan) <= sizeof(workspace), "%zu", weft_plan_workspace_bytes(plan));
    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = (void *)(((uintptr_t)src + 15) & ~(uintptr_t)15);
    args.ptr[WEFT_ROLE_WEIGHTS] = (void *)(((uintptr_t)weights + 15) & ~(uintptr_t)15);
    args.ptr[WEFT_ROLE_DST] = (void *)(((uintptr_t)dst + 15) & ~(uintptr_t)15);
    int64_t before = atomic_load(&calls);
    for (int i = 0; i < 100; i++) OK(weft_execute(plan, &args, workspace, sizeof(workspace), NULL));
    CHECK(atomic_load(&calls) == before, "%lld allocations", (long long)(atomic_load(&calls) - before));
    for (int i = 0; i < 100; i++) { /* nor does planning again */
        weft_plan *again;
        OK(weft_plan_create(&again, ctx, &p, NULL));
        weft_plan_release(again);
    }
    CHECK(atomic_load(&calls) == before, "%lld allocations to find a plan", (long long)(atomic_load(&calls) - before));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    CHECK(atomic_load(&live) == 0, "%lld blocks leak", (long long)atomic_load(&live));
}
