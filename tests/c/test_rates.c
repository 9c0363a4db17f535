/* Calibrated rates: measured a few times, kept in the cache directory, not used where they must not be. */
#include <dirent.h>
#include <unistd.h>

#include "test.h"
#include "tune/rates.h"

static char folder[] = "/tmp/weft-rates-XXXXXX";

static weft_ctx *context_at(const char *cache, int threads) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.threads = threads;
    opts.cache_dir = cache;
    OK(weft_ctx_create(&ctx, &opts));
    return ctx;
}

static weft__hw hw_of(weft_ctx *ctx) {
    weft_problem p = {.device = WEFT_DEVICE_CPU};
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &p, &hw));
    return hw;
}

/* Changes, or removes, every file in the folder; how many there were. */
static int each_file(bool damage) {
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[600];
        if (e->d_name[0] == '.') continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        n++;
        if (!damage) {
            unlink(path);
            continue;
        }
        FILE *f = fopen(path, "r+b");
        fseek(f, -3, SEEK_END);
        fputc(0x5a, f);
        fclose(f);
    }
    if (d) closedir(d);
    return n;
}

/* A child process has measured nothing itself: what it says came from the file, or was measured anew. */
static void child_rates(weft__hw *out) {
    int pipes[2];
    CHECK(pipe(pipes) == 0, "no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        weft_ctx *ctx = context_at(folder, 2);
        weft__hw hw = hw_of(ctx);
        weft__rates(ctx, &hw);
        _exit(write(pipes[1], &hw, sizeof(hw)) == (ssize_t)sizeof(hw) ? 0 : 1);
    }
    close(pipes[1]);
    CHECK(read(pipes[0], out, sizeof(*out)) == (ssize_t)sizeof(*out), "the child did not answer");
    close(pipes[0]);
}

/* Each reading of the clock takes `tick` ns: every run seems to take as long. */
static uint64_t tick;
static int64_t minute;
static uint64_t fake_ns(void) {
    static uint64_t now;
    return now += tick;
}
static int64_t fake_seconds(void) { return 1000000 + 60 * minute; }

TEST(some_processes_measure_and_the_highest_rates_stay) {
    static const struct {
        int64_t minute;
        uint64_t tick;
    } at[] = {{0, 4000000},  {0, 100},      {1, 3900000},   {5, 1000000}, {20, 100},
              {21, 4000000}, {85, 4000000}, {400, 4000000}, {9999, 100}};
    enum { COUNT = sizeof(at) / sizeof(at[0]) };
    const weft__rate_clocks real = weft__rates_clocks;
    unsetenv("WEFT_RATES");
    CHECK(mkdtemp(folder), "no folder");
    weft__rates_clocks = (weft__rate_clocks){fake_ns, fake_seconds};
    weft__hw got[COUNT + 1];
    for (int i = 0; i < COUNT; i++) minute = at[i].minute, tick = at[i].tick, child_rates(&got[i]);
    CHECK(got[1].gbs == got[0].gbs, "measured again at once: %g and %g GB/s", got[0].gbs, got[1].gbs);
    CHECK(got[2].gbs == got[0].gbs, "3%% more is noise: %g and %g GB/s", got[0].gbs, got[2].gbs);
    CHECK(got[3].gbs > 3.9 * got[0].gbs && got[3].gflops[0] > 3.9 * got[0].gflops[0], "%g after %g GB/s", got[3].gbs,
          got[0].gbs);
    for (int i = 4; i < COUNT; i++) /* too early; busy moments; and then no more */
        CHECK(got[i].gbs == got[3].gbs && memcmp(got[i].gflops, got[3].gflops, sizeof(got[i].gflops)) == 0,
              "process %d: %g after %g GB/s", i, got[i].gbs, got[3].gbs);
    CHECK(each_file(true) == 1, "not one file");
    tick = at[0].tick, child_rates(&got[COUNT]); /* a damaged file is measured over */
    CHECK(got[COUNT].gbs == got[0].gbs && each_file(false) == 1, "%g GB/s", got[COUNT].gbs);
    weft__rates_clocks = real;
    rmdir(folder);
    setenv("WEFT_RATES", "nominal", 1);
}

TEST(nominal_where_asked_for) {
    weft_ctx *ctx = context_at("", 2);
    weft__hw hw = hw_of(ctx), same = hw;
    weft__rates(ctx, &hw);
    CHECK(memcmp(&hw, &same, sizeof(hw)) == 0, "WEFT_RATES=nominal changed the rates");
    weft_ctx_release(ctx);
}

/* Deterministic choices use neither the number of threads nor anything measured. */
TEST(deterministic_choices_do_not_depend_on_threads) {
    double ns[2];
    unsetenv("WEFT_RATES");
    for (int i = 0; i < 2; i++) {
        weft_ctx *ctx = context_at("", i ? 7 : 1);
        weft_problem p = test_problem("conv2d:fwd:f32:nchw:n8c64h56w56:o64k3p1g64");
        weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
        weft_plan *plan = NULL;
        weft_cost cost = WEFT_COST_INIT;
        opts.deterministic = 1;
        opts.mode = WEFT_MODE_MEASURE;
        OK(weft_plan_create(&plan, ctx, &p, &opts));
        OK(weft_plan_cost(plan, &cost));
        ns[i] = cost.ns;
        CHECK(strcmp(weft__plan_choice(plan)->why, "estimate") == 0, "%s", weft__plan_choice(plan)->why);
        weft_plan_release(plan);
        weft_ctx_release(ctx);
    }
    setenv("WEFT_RATES", "nominal", 1);
    CHECK(ns[0] == ns[1], "%g ns with one thread, %g with seven", ns[0], ns[1]);
}

/* The first choice for a problem holds when the number of threads changes. */
static void run_here(void *user, int64_t slots, weft_task task, void *arg) {
    (void)user;
    for (int64_t i = 0; i < slots; i++) task(arg, i);
}

TEST(the_first_choice_holds) {
    weft_ctx *ctx = context_at("", 1);
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n8c64h56w56:o64k3p1g64");
    weft_plan *first = NULL, *second = NULL;
    OK(weft_plan_create(&first, ctx, &p, NULL));
    OK(weft_ctx_set_parallel_for(ctx, run_here, NULL, 64));
    OK(weft_plan_create(&second, ctx, &p, NULL));
    CHECK(first == second, "another plan after the number of threads changed");
    weft_plan_release(first);
    weft_plan_release(second);
    weft_ctx_release(ctx);
}
