/* Calibrated rates: measured a few times, kept in the cache directory, not used where they must not be. */
#include <dirent.h>
#include <math.h>
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

/* What is measured takes as long as the clock says: a test that needs many measurements leaves the work out. */
static bool idle;
void __real_weft__parallel(weft_ctx *ctx, int64_t slots, weft_task task, void *arg);
void __wrap_weft__parallel(weft_ctx *ctx, int64_t slots, weft_task task, void *arg);
void __wrap_weft__parallel(weft_ctx *ctx, int64_t slots, weft_task task, void *arg) {
    if (!idle) __real_weft__parallel(ctx, slots, task, arg);
}

/* A child process has measured nothing itself: what it says came from the file, or was measured anew. */
static int cores_seen; /* 0: as many as there are */
static void child_rates(int threads, weft__hw *out) {
    int pipes[2];
    CHECK(pipe(pipes) == 0, "no pipe");
    pid_t pid = fork();
    if (pid == 0) {
        weft_ctx *ctx = context_at(folder, threads);
        weft__hw hw = hw_of(ctx);
        if (cores_seen) hw.cores = cores_seen;
        weft__rates(ctx, &hw);
        _exit(write(pipes[1], &hw, sizeof(hw)) == (ssize_t)sizeof(hw) ? 0 : 1);
    }
    close(pipes[1]);
    CHECK(read(pipes[0], out, sizeof(*out)) == (ssize_t)sizeof(*out), "the child did not answer");
    close(pipes[0]);
}

/* Each reading of the clock takes `tick` ns: every run seems to take as long, but for the last of each eleven, which
 * seems to be slow: the best counts. */
static uint64_t tick;
static int64_t minute;
static uint64_t fake_ns(void) {
    static uint64_t now;
    static int reading;
    return now += ++reading % 22 ? tick : 10 * tick;
}
static int64_t fake_seconds(void) { return 1000000 + 60 * minute; }

static weft__rate_clocks begin_fake(void) {
    const weft__rate_clocks real = weft__rates_clocks;
    unsetenv("WEFT_RATES");
    strcpy(folder + strlen(folder) - 6, "XXXXXX");
    CHECK(mkdtemp(folder), "no folder");
    weft__rates_clocks = (weft__rate_clocks){fake_ns, fake_seconds};
    return real;
}

static void end_fake(weft__rate_clocks real) {
    weft__rates_clocks = real;
    rmdir(folder);
    setenv("WEFT_RATES", "nominal", 1);
}

/* Again after 1, 4, 16, 64 and 256 minutes, and then no more. A process that comes a minute too early would find the
 * machine twice as fast, and must not look. */
TEST(some_processes_measure_and_the_highest_rates_stay) {
    enum { FAST = 100000 };
    static const struct {
        int64_t minute;
        uint64_t tick, kept; /* what the process would measure; what it says */
    } at[] = {{0, 2000000, 2000000},  {0, FAST, 2000000},    {1, 1950000, 2000000}, /* 3% more is noise */
              {4, FAST, 2000000},     {5, 4000000, 2000000}, {20, FAST, 2000000},   /* a busy moment */
              {21, 1000000, 1000000}, {84, FAST, 1000000},   {85, 800000, 800000},
              {340, FAST, 800000},    {341, 400000, 400000}, {9999, FAST, 400000}};
    enum { COUNT = sizeof(at) / sizeof(at[0]) };
    const weft__rate_clocks real = begin_fake();
    weft__hw first, got;
    minute = at[0].minute, tick = at[0].tick, child_rates(2, &first);
    for (int i = 1; i < COUNT; i++) {
        minute = at[i].minute, tick = at[i].tick, child_rates(2, &got);
        const double more = (double)at[0].tick / (double)at[i].kept;
        CHECK(got.gbs > 0.99 * more * first.gbs && got.gbs < 1.01 * more * first.gbs,
              "minute %lld: %g after %g GB/s, not %g times as much", (long long)minute, got.gbs, first.gbs, more);
        for (int isa = 0; isa <= (int)first.isa; isa++)
            CHECK(!weft__hw_runs(&first, (weft__isa)isa) || (got.gflops[isa] > 0.99 * more * first.gflops[isa] &&
                                                             got.gflops[isa] < 1.01 * more * first.gflops[isa]),
                  "minute %lld: %s has %g after %g GFLOP/s, not %g times as much", (long long)minute,
                  weft__isa_names[isa], got.gflops[isa], first.gflops[isa], more);
    }
    CHECK(each_file(true) == 1, "not one file");
    tick = at[0].tick, child_rates(2, &got); /* a damaged file is measured over */
    CHECK(got.gbs == first.gbs && each_file(false) == 1, "%g GB/s", got.gbs);
    end_fake(real);
}

/* The same number of threads on other cores, as in a container that has fewer of them, does not share a file. */
TEST(each_number_of_cores_has_its_rates) {
    const weft__rate_clocks real = begin_fake();
    weft__hw hw[4];
    idle = true, minute = 0;
    for (int i = 0; i < 4; i++) {
        cores_seen = i % 2 ? 2 : 4, tick = i ? 1000000 : 2000000;
        child_rates(2, &hw[i]);
    }
    cores_seen = 0, idle = false;
    CHECK(hw[1].gbs > 1.9 * hw[0].gbs, "%g GB/s with 4 cores, %g with 2", hw[0].gbs, hw[1].gbs);
    CHECK(hw[2].gbs == hw[0].gbs && hw[3].gbs == hw[1].gbs && each_file(false) == 2, "measured again, or one file");
    end_fake(real);
}

/* A process keeps the rates of sixteen numbers of threads; of more of them each plan measures anew. Before the tests
 * that leave some in this process, of which the child here is a copy. */
TEST(a_process_with_many_numbers_of_threads) {
    enum { KEPT = 16, MANY = 20 };
    const weft__rate_clocks real = begin_fake();
    double gbs[2][MANY];
    int pipes[2];
    CHECK(pipe(pipes) == 0, "no pipe");
    fflush(NULL);
    if (fork() == 0) {
        weft_ctx *ctx = context_at("", 1);
        const weft__hw one = hw_of(ctx);
        idle = true;
        for (int round = 0; round < 2; round++)
            for (int i = 0; i < MANY; i++) {
                weft__hw hw = one;
                hw.threads = 100 + i, tick = round ? 1000000 : 2000000;
                weft__rates(ctx, &hw);
                gbs[round][i] = hw.gbs;
            }
        _exit(write(pipes[1], gbs, sizeof(gbs)) == (ssize_t)sizeof(gbs) ? 0 : 1);
    }
    close(pipes[1]);
    const ssize_t n = read(pipes[0], gbs, sizeof(gbs));
    close(pipes[0]);
    end_fake(real);
    CHECK(n == (ssize_t)sizeof(gbs), "the child did not answer");
    for (int i = 0; i < MANY; i++) {
        const double more = gbs[1][i] / gbs[0][i], want = i < KEPT ? 1 : 2;
        CHECK(more > 0.99 * want && more < 1.01 * want, "number %d: %g GB/s, then %g", i + 1, gbs[0][i], gbs[1][i]);
    }
}

/* Rates are those of a number of threads: in the file, and within a process. */
TEST(each_number_of_threads_has_its_rates) {
    const weft__rate_clocks real = begin_fake();
    weft__hw two, three, again;
    minute = 0, tick = 2000000, child_rates(2, &two);
    /* 6 Mi floats are read and written, and 5e7 flops are done, in those 2 ms */
    CHECK(fabs(two.gbs - 25.17) < 0.05 && fabs(two.gflops[two.isa] - 25) < 0.5 && fabs(two.gflops[0] - 25) < 0.5,
          "%g GB/s, %g and %g GFLOP/s", two.gbs, two.gflops[two.isa], two.gflops[0]);
    tick = 1000000, child_rates(3, &three);
    CHECK(three.threads == 3 && three.gbs > 1.9 * two.gbs, "%g GB/s with 2 threads, %g with 3", two.gbs, three.gbs);
    tick = 500000, child_rates(2, &again);
    CHECK(again.gbs == two.gbs && each_file(false) == 2, "%g GB/s after those of 3 threads, not %g", again.gbs,
          two.gbs);
    double gbs[2];
    for (int i = 0; i < 2; i++) {
        weft_ctx *ctx = context_at("", 2 + i);
        weft__hw hw = hw_of(ctx);
        tick = i ? 1000000 : 2000000;
        weft__rates(ctx, &hw);
        gbs[i] = hw.gbs;
        weft_ctx_release(ctx);
    }
    CHECK(gbs[0] == two.gbs && gbs[1] > 1.9 * gbs[0], "%g GB/s with 2 threads, %g with 3", gbs[0], gbs[1]);
    end_fake(real);
}

/* A context that is limited to an older instruction set has rates of its own. */
TEST(each_instruction_set_has_its_rates) {
    const weft__rate_clocks real = begin_fake();
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft__hw hw[2];
    opts.threads = 5, opts.cache_dir = "";
    for (int i = 0; i < 2; i++) {
        weft_ctx *ctx = NULL;
        opts.isa = i ? "scalar" : NULL;
        OK(weft_ctx_create(&ctx, &opts));
        hw[i] = hw_of(ctx);
        tick = i ? 1000000 : 2000000;
        weft__rates(ctx, &hw[i]);
        weft_ctx_release(ctx);
    }
    end_fake(real);
    if (hw[0].isa == hw[1].isa) SKIP("the machine has only scalar instructions");
    CHECK(hw[1].gbs > 1.9 * hw[0].gbs, "%g GB/s of all instructions, %g of scalar ones", hw[0].gbs, hw[1].gbs);
}

/* Memory runs out at each allocation in turn: the rates stay nominal, and nothing leaks. */
static int allocations, fail_at, live;
static void *scarce(void *user, size_t bytes) {
    (void)user;
    if (++allocations == fail_at) return NULL;
    live++;
    return malloc(bytes);
}
static void give_back(void *user, void *block) {
    (void)user;
    live--;
    free(block);
}

TEST(nominal_where_memory_runs_out) {
    const weft__rate_clocks real = begin_fake();
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.threads = 6, opts.cache_dir = "", opts.alloc = scarce, opts.free = give_back;
    OK(weft_ctx_create(&ctx, &opts));
    const weft__hw nominal = hw_of(ctx);
    const int before = live;
    tick = 1; /* a clock so slow that what it measures is not believed */
    for (fail_at = 1;; fail_at++) {
        weft__hw hw = nominal;
        allocations = 0;
        weft__rates(ctx, &hw);
        CHECK(live == before, "%d blocks leak where allocation %d fails", live - before, fail_at);
        CHECK(memcmp(&hw, &nominal, sizeof(hw)) == 0, "allocation %d failed, and there are rates", fail_at);
        if (allocations < fail_at) break;
    }
    CHECK(fail_at == 4, "%d allocations", fail_at - 1);
    fail_at = 0;
    weft_ctx_release(ctx);
    end_fake(real);
}

/* One thread does not have the bandwidth of all cores, also where nothing was measured. */
TEST(nominal_bandwidth_is_that_of_the_threads) {
    weft_ctx *one = context_at("", 1);
    const int cores = hw_of(one).cores;
    weft_ctx *all = context_at("", cores), *more = context_at("", WEFT__MIN(2 * cores, 1024));
    CHECK(fabs(hw_of(one).gbs * cores - hw_of(all).gbs) < 1e-9 * hw_of(all).gbs, "%g GB/s of one thread, %g of %d",
          hw_of(one).gbs, hw_of(all).gbs, cores);
    CHECK(hw_of(more).gbs == hw_of(all).gbs, "more threads than cores have %g GB/s, not %g", hw_of(more).gbs,
          hw_of(all).gbs);
    weft_ctx_release(one), weft_ctx_release(all), weft_ctx_release(more);
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
