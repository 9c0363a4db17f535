/* The pool behind parallel_for: every slot once, nested and concurrent calls, a lent pool, fork. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

enum { SLOTS = 1000 };
typedef struct tally {
    _Atomic int hits[SLOTS];
    weft_ctx *ctx;
} tally;

static void hit(void *arg, int64_t slot) { atomic_fetch_add(&((tally *)arg)->hits[slot], 1); }

static bool each_once(tally *t, int64_t slots, int times) {
    for (int64_t i = 0; i < SLOTS; i++)
        if (atomic_load(&t->hits[i]) != (i < slots ? times : 0)) return false;
    return true;
}

TEST(every_slot_runs_once) {
    static const int threads[] = {1, 2, 7};
    static const int64_t slots[] = {0, 1, 2, 3, 6, 7, 8, 100, SLOTS};
    for (size_t i = 0; i < WEFT__COUNT(threads); i++) {
        weft_ctx *ctx = test_context(threads[i]);
        for (size_t k = 0; k < WEFT__COUNT(slots); k++)
            for (int round = 0; round < 20; round++) {
                static tally t;
                memset(&t, 0, sizeof(t));
                weft__parallel(ctx, slots[k], hit, &t);
                CHECK(each_once(&t, slots[k], 1), "%d threads, %lld slots", threads[i], (long long)slots[k]);
            }
        weft_ctx_release(ctx);
    }
}

TEST(the_pool_rests_and_wakes) {
    weft_ctx *ctx = test_context(3);
    for (int round = 0; round < 5; round++) {
        static tally t;
        memset(&t, 0, sizeof(t));
        usleep(2000); /* long enough for workers to fall asleep */
        weft__parallel(ctx, 50, hit, &t);
        CHECK(each_once(&t, 50, 1), "round %d", round);
    }
    weft_ctx_release(ctx);
}

typedef struct masks {
    pthread_t caller;
    _Atomic int inside, workers, open; /* slots begun; those of workers; of these, where a signal could arrive */
} masks;

/* Neither of the two slots ends before both have begun, so one of them is a worker's. */
static void look_at_mask(void *arg, int64_t slot) {
    masks *m = arg;
    sigset_t set;
    (void)slot;
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    if (!pthread_equal(pthread_self(), m->caller)) {
        atomic_fetch_add(&m->workers, 1);
        atomic_fetch_add(&m->open, !sigismember(&set, SIGUSR1) || !sigismember(&set, SIGINT));
    }
    atomic_fetch_add(&m->inside, 1);
    for (int i = 0; i < 10000 && atomic_load(&m->inside) < 2; i++) usleep(1000);
}

TEST(signals_are_left_to_the_application) {
    weft_ctx *ctx = test_context(2);
    masks m = {.caller = pthread_self()};
    sigset_t set;
    weft__parallel(ctx, 2, look_at_mask, &m);
    pthread_sigmask(SIG_BLOCK, NULL, &set);
    weft_ctx_release(ctx);
    if (!atomic_load(&m.workers)) SKIP("no worker could be started");
    CHECK(!atomic_load(&m.open), "a worker takes signals");
    CHECK(!sigismember(&set, SIGUSR1) && !sigismember(&set, SIGINT), "the caller's signals stay blocked");
}

static void nest(void *arg, int64_t slot) {
    tally *t = arg;
    (void)slot;
    weft__parallel(t->ctx, 10, hit, t);
}

TEST(a_task_may_call_again) {
    static tally t;
    memset(&t, 0, sizeof(t));
    t.ctx = test_context(4);
    weft__parallel(t.ctx, 16, nest, &t);
    CHECK(each_once(&t, 10, 16), "nested slots");
    weft_ctx_release(t.ctx);
}

static void *use_pool(void *arg) {
    tally *t = arg;
    for (int i = 0; i < 100; i++) weft__parallel(t->ctx, 20, hit, t);
    return NULL;
}

TEST(many_callers_share_a_pool) {
    static tally t;
    memset(&t, 0, sizeof(t));
    pthread_t callers[5];
    t.ctx = test_context(3);
    for (int i = 0; i < 5; i++) CHECK(pthread_create(&callers[i], NULL, use_pool, &t) == 0, "no thread");
    for (int i = 0; i < 5; i++) pthread_join(callers[i], NULL);
    CHECK(each_once(&t, 20, 500), "slots of 5 callers");
    weft_ctx_release(t.ctx);
}

/* ---------------------------------------------------------------- a lent pool */
typedef struct lender {
    int calls;
    int64_t slots;
} lender;

static void backwards(void *user, int64_t slots, weft_task task, void *arg) {
    lender *l = user;
    l->calls++;
    l->slots += slots;
    for (int64_t i = slots - 1; i >= 0; i--) task(arg, i);
}

static void execute(weft_ctx *ctx, const char *text, float *dst, size_t count) {
    weft_problem p = test_problem(text);
    weft_plan *plan = NULL;
    static harness_buffer src, weights, out, workspace;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    CHECK(harness_open(&src, weft__tensor(&p, WEFT_ROLE_SRC), HARNESS_START) &&
              harness_open(&weights, weft__tensor(&p, WEFT_ROLE_WEIGHTS), HARNESS_START) &&
              harness_open(&out, weft__tensor(&p, WEFT_ROLE_DST), HARNESS_START) &&
              harness_open_bytes(&workspace, weft_plan_workspace_bytes(plan), 64, HARNESS_START),
          "no memory");
    harness_fill(&src, HARNESS_REALS, 1);
    harness_fill(&weights, HARNESS_REALS, 2);
    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = src.at, args.ptr[WEFT_ROLE_WEIGHTS] = weights.at, args.ptr[WEFT_ROLE_DST] = out.at;
    OK(weft_execute(plan, &args, workspace.at, weft_plan_workspace_bytes(plan), NULL));
    CHECK(out.bytes == count * sizeof(float), "%zu bytes", out.bytes);
    memcpy(dst, out.at, out.bytes);
    weft_plan_release(plan);
    harness_close(&src), harness_close(&weights), harness_close(&out), harness_close(&workspace);
}

enum { OUTPUTS = 3 * 40 * 16 * 24 };
static const char work[] = "conv2d:fwd:f32:nchw:n3c40h16w24:o40k3p1g40";

TEST(a_lent_pool_is_used) {
    static float own[OUTPUTS], lent[OUTPUTS];
    weft_ctx *ctx = test_context(2);
    lender l = {0, 0};
    execute(ctx, work, own, OUTPUTS);
    OK(weft_ctx_set_parallel_for(ctx, backwards, &l, 3));
    execute(ctx, work, lent, OUTPUTS);
    CHECK(l.calls > 0 && l.slots > 1, "%d calls, %lld slots", l.calls, (long long)l.slots);
    CHECK(memcmp(own, lent, sizeof(own)) == 0, "other bits from a lent pool");
    OK(weft_ctx_set_parallel_for(ctx, NULL, NULL, 0));
    CHECK(weft__ctx_threads(ctx) == 2, "%d threads after the lent pool was taken back", weft__ctx_threads(ctx));
    int calls = l.calls;
    execute(ctx, work, lent, OUTPUTS);
    CHECK(l.calls == calls, "the lent pool is used after it was taken back");
    weft_ctx_release(ctx);
}

TEST(bits_do_not_depend_on_threads) {
    static const char *const texts[] = {work, "conv2d:fwd:f32:nhwc:n3c40h16w24:o40k3p1g40"};
    static float one[OUTPUTS], many[OUTPUTS];
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        weft_ctx *first = test_context(1);
        execute(first, texts[i], one, OUTPUTS);
        weft_ctx_release(first);
        for (int threads = 2; threads <= 9; threads++) {
            weft_ctx *ctx = test_context(threads);
            execute(ctx, texts[i], many, OUTPUTS);
            weft_ctx_release(ctx);
            CHECK(memcmp(one, many, sizeof(one)) == 0, "other bits with %d threads", threads);
        }
    }
}

/* ---------------------------------------------------------------- fork */
TEST(a_child_has_a_pool) {
    static float before[OUTPUTS], after[OUTPUTS];
    weft_ctx *ctx = test_context(3);
    execute(ctx, work, before, OUTPUTS);
    if (test_sanitized()) SKIP("sanitizers do not follow threads over a fork, and their allocator may be locked then");
    for (int round = 0; round < 5; round++) {
        fflush(NULL);
        pid_t child = fork();
        CHECK(child >= 0, "fork");
        if (child == 0) {
            static tally t;
            alarm(600); /* a pool that waits for the parent's workers would hang */
            for (int i = 0; i < 10; i++) weft__parallel(ctx, 30, hit, &t);
            if (!each_once(&t, 30, 10)) _exit(1);
            execute(ctx, work, after, OUTPUTS);
            weft_ctx_release(ctx);
            _exit(memcmp(before, after, sizeof(before)) != 0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        CHECK(status == 0, "the child ended with status 0x%x", status);
        execute(ctx, work, after, OUTPUTS);
        CHECK(memcmp(before, after, sizeof(before)) == 0, "the parent's result changed");
    }
    weft_ctx_release(ctx);
}

static _Atomic bool forking;

static void *keep_planning(void *arg) {
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4");
    while (atomic_load(&forking)) {
        weft_plan *plan = NULL;
        if (weft_plan_create(&plan, arg, &p, NULL) != WEFT_OK) return arg;
        weft_plan_release(plan);
    }
    return NULL;
}

/* A lock held by another thread at the moment of the fork must not be held for ever in the child. */
TEST(a_child_of_busy_threads_can_plan) {
    if (test_sanitized()) SKIP("sanitizers do not follow threads over a fork, and their allocator may be locked then");
    weft_ctx *ctx = test_context(2);
    pthread_t threads[3];
    atomic_store(&forking, true);
    for (size_t i = 0; i < WEFT__COUNT(threads); i++)
        CHECK(!pthread_create(&threads[i], NULL, keep_planning, ctx), "no thread");
    int hung = 0;
    fflush(NULL);
    for (int round = 0; round < 100; round++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(600);
            weft_problem p = test_problem("conv2d:fwd:f32:nchw:n2c4h6w7:o4k3p1g4");
            weft_plan *plan = NULL;
            _exit(weft_plan_create(&plan, ctx, &p, NULL) != WEFT_OK);
        }
        int status = -1;
        waitpid(child, &status, 0);
        hung += status != 0;
    }
    atomic_store(&forking, false);
    for (size_t i = 0; i < WEFT__COUNT(threads); i++) pthread_join(threads[i], NULL);
    weft_ctx_release(ctx);
    CHECK(hung == 0, "%d of 100 children hung or failed", hung);
}

/* ---------------------------------------------------------------- every lock over a fork */
enum { LOCKS = 64 };
static pthread_mutex_t *locked[LOCKS];
static int lock_count;
static _Thread_local bool recording;

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m) {
    int i = 0;
    while (recording && i < lock_count && locked[i] != m) i++;
    if (recording && i == lock_count && i < LOCKS) locked[lock_count++] = m;
    return __real_pthread_mutex_lock(m);
}

static int still_held(pthread_mutex_t *const *list, int n) {
    int held = 0;
    for (int i = 0; i < n; i++)
        if (pthread_mutex_trylock(list[i]) == 0)
            pthread_mutex_unlock(list[i]);
        else
            held++;
    return held;
}

/* Calls that a child may make, and with them every lock of a context. */
static void use_the_context(weft_ctx *ctx) {
    char text[8192];
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4");
    weft_plan *plan = NULL;
    weft_ctx *other = test_context(1);
    OK(weft_ctx_describe(ctx, text, sizeof(text), NULL));
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    weft_plan_release(plan);
    OK(weft_wisdom_parse(ctx, "# nothing\n", 10, NULL));
    OK(weft_wisdom_forget(ctx, NULL));
    OK(weft_ctx_set_parallel_for(ctx, NULL, NULL, 0));
    weft_ctx_release(other);
}

/* What calls lock is taken before a fork, so that no thread holds it then, and free after it on both sides. */
TEST(a_fork_takes_every_lock) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    pthread_mutex_t *of_calls[LOCKS];
    opts.engines = WEFT_ENGINE_REF | WEFT_ENGINE_CPU; /* the driver of CUDA is not for children */
    opts.threads = 1;
    OK(weft_ctx_create(&ctx, &opts));
    char *rates = getenv("WEFT_RATES") ? strdup(getenv("WEFT_RATES")) : NULL;
    unsetenv("WEFT_RATES"); /* they have a lock */
    use_the_context(ctx);   /* measured here, and not while locks are looked at */
    lock_count = 0, recording = true;
    use_the_context(ctx);
    recording = false;
    if (rates) setenv("WEFT_RATES", rates, 1);
    free(rates);
    const int calls = lock_count;
    memcpy(of_calls, locked, sizeof(locked));
    /* of the context released meanwhile only what it shares is left */
    fflush(NULL);
    lock_count = 0, recording = true;
    const pid_t child = fork();
    recording = false;
    if (child == 0) _exit(still_held(locked, lock_count));
    int status = -1, shared = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%d locks are held in the child", WEXITSTATUS(status));
    CHECK(still_held(locked, lock_count) == 0, "%d locks are held in the parent", still_held(locked, lock_count));
    pthread_mutex_t *const own[] = {weft__wisdom_lock(weft__ctx_wisdom(ctx)), weft__cache_lock(weft__ctx_cache(ctx)),
                                    weft__rates_lock()};
    for (size_t i = 0; i < WEFT__COUNT(own); i++) {
        int at = 0, call = 0;
        while (at < lock_count && locked[at] != own[i]) at++;
        while (call < calls && of_calls[call] != own[i]) call++;
        CHECK(at < lock_count, "lock %zu is not taken before a fork", i);
        CHECK(call < calls, "no call here takes lock %zu", i);
    }
    for (int i = 0; i < calls; i++)
        for (int k = 0; k < lock_count; k++) shared += of_calls[i] == locked[k];
    /* those three, the list of contexts, and the context's for CUDA and the pool; others were of a context now gone */
    CHECK(shared >= 6, "%d of %d locks that calls take are taken before a fork", shared, calls);
    weft_ctx_release(ctx);
}
