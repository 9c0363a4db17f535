/* Every public call with every argument wrong in turn: a named error, nothing written, nothing broken. */
#include <math.h>
#include <pthread.h>
#include <unistd.h>

#include "test.h"

static const char small[] = "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4";

/* ---------------------------------------------------------------- status and words */
TEST(status_words) {
    static const struct {
        weft_status status;
        const char *name, *text;
    } words[] = {{WEFT_OK, "OK", "success"},
#define X(NAME, meaning) {WEFT_ERR_##NAME, #NAME, meaning},
                 WEFT_ERR_LIST(X)
#undef X
    };
    for (size_t i = 0; i < WEFT__COUNT(words); i++)
        CHECK(strcmp(weft_status_name(words[i].status), words[i].name) == 0 &&
                  strcmp(weft_status_text(words[i].status), words[i].text) == 0,
              "%s means '%s'", weft_status_name(words[i].status), weft_status_text(words[i].status));
    for (int s = 0; s < WEFT_STATUS_COUNT; s++)
        CHECK(weft_status_name((weft_status)s)[0] && weft_status_text((weft_status)s)[0], "status %d has no words", s);
    CHECK(strcmp(weft_status_name(WEFT_ERR_WORKSPACE), "WORKSPACE") == 0, "%s", weft_status_name(WEFT_ERR_WORKSPACE));
    CHECK(weft_status_name((weft_status)-1)[0] && weft_status_name((weft_status)1000)[0] &&
              weft_status_text((weft_status)1000)[0],
          "no words for an unknown status");
    CHECK(strcmp(weft_version(), WEFT_VERSION) == 0, "%s", weft_version());
}

static void *look(void *arg) {
    *(size_t *)arg = strlen(weft_last_error());
    return NULL;
}

TEST(the_last_error_is_per_thread) {
    size_t length = 99;
    pthread_t other;
    weft_problem p = WEFT_PROBLEM_INIT;
    FAILS(weft_problem_parse(&p, "nonsense"), WEFT_ERR_SYNTAX, "column 1");
    CHECK(pthread_create(&other, NULL, look, &length) == 0, "no thread");
    pthread_join(other, NULL);
    CHECK(length == 0, "another thread sees an error of %zu characters", length);
}

/* ---------------------------------------------------------------- problem */
TEST(problem_calls) {
    weft_problem p = WEFT_PROBLEM_INIT;
    char text[64];
    FAILS(weft_problem_init(NULL, WEFT_OP_CONV, WEFT_PASS_FWD, 2), WEFT_ERR_INVALID, "NULL");
    FAILS(weft_problem_init(&p, WEFT_OP_NONE, WEFT_PASS_FWD, 2), WEFT_ERR_INVALID, "op is 0");
    FAILS(weft_problem_init(&p, (weft_op)77, WEFT_PASS_FWD, 2), WEFT_ERR_INVALID, "op is 77");
    FAILS(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_NONE, 2), WEFT_ERR_INVALID, "pass is 0");
    FAILS(weft_problem_init(&p, WEFT_OP_CONV, (weft_pass)77, 2), WEFT_ERR_INVALID, "pass is 77");
    FAILS(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 0), WEFT_ERR_INVALID, "rank is 0|1..3");
    FAILS(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 4), WEFT_ERR_INVALID, "rank is 4|1..3");
    FAILS(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, -1), WEFT_ERR_INVALID, "rank is -1");
    FAILS(weft_problem_complete(NULL), WEFT_ERR_INVALID, "NULL");
    FAILS(weft_problem_parse(NULL, small), WEFT_ERR_INVALID, "problem is NULL");
    FAILS(weft_problem_parse(&p, NULL), WEFT_ERR_INVALID, "text is NULL");
    FAILS(weft_problem_format(NULL, text, sizeof(text), NULL), WEFT_ERR_INVALID, "problem is NULL");
    p = test_problem(small);
    FAILS(weft_problem_format(&p, NULL, 10, NULL), WEFT_ERR_INVALID, "text is NULL");
    p.size = 0;
    strcpy(text, "old");
    FAILS(weft_problem_format(&p, text, sizeof(text), NULL), WEFT_ERR_INVALID, "size is 0");
    CHECK(text[0] == 0, "the text is '%s' after an error", text);
}

TEST(problem_tensor) {
    weft_problem p = WEFT_PROBLEM_INIT;
    OK(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 2));
    CHECK(!weft_problem_tensor(NULL, WEFT_ROLE_SRC), "a tensor of NULL");
    CHECK(!weft_problem_tensor(&p, (weft_role)-1) && !weft_problem_tensor(&p, WEFT_ROLE_COUNT), "a tensor of no role");
    weft_tensor *src = weft_problem_tensor(&p, WEFT_ROLE_SRC);
    CHECK(src && weft_problem_tensor(&p, WEFT_ROLE_SRC) == src && p.ntensors == 1, "%d tensors", p.ntensors);
    p.ntensors = 1000;
    CHECK(!weft_problem_tensor(&p, WEFT_ROLE_DST), "a tensor of a broken problem");
    struct {
        weft_problem p;
        weft_tensor behind;
    } full = {.p = WEFT_PROBLEM_INIT}; /* one of every role does not fit */
    OK(weft_problem_init(&full.p, WEFT_OP_CONV, WEFT_PASS_FWD, 2));
    memset(&full.behind, 0x55, sizeof(full.behind));
    const weft_tensor before = full.behind;
    for (int role = 0; role < WEFT_ROLE_COUNT; role++)
        CHECK(!weft_problem_tensor(&full.p, (weft_role)role) == (role >= WEFT_MAX_TENSORS), "tensor %d", role);
    CHECK(full.p.ntensors == WEFT_MAX_TENSORS && memcmp(&full.behind, &before, sizeof(before)) == 0,
          "%d tensors, or what lies behind was written", full.p.ntensors);
}

/* ---------------------------------------------------------------- context */
static void refuses_options(weft_ctx_opts opts, const char *words) {
    weft_ctx *ctx = (weft_ctx *)&opts;
    FAILS(weft_ctx_create(&ctx, &opts), WEFT_ERR_INVALID, words);
    CHECK(ctx == NULL, "a context in spite of %s", words);
}

static void *some_alloc(void *user, size_t bytes) {
    (void)user;
    return malloc(bytes);
}
static void some_free(void *user, void *block) {
    (void)user;
    free(block);
}

TEST(context_options) {
    const weft_ctx_opts good = WEFT_CTX_OPTS_INIT;
    weft_ctx_opts o;
    FAILS(weft_ctx_create(NULL, NULL), WEFT_ERR_INVALID, "ctx is NULL");
    o = good, o.size = 0, refuses_options(o, "size is 0");
    struct {
        weft_ctx_opts opts;
        int64_t later;
    } newer = {WEFT_CTX_OPTS_INIT, 1}; /* an option unknown here */
    newer.opts.size = sizeof(newer);
    weft_ctx *ctx = NULL;
    FAILS(weft_ctx_create(&ctx, &newer.opts), WEFT_ERR_INVALID, "size");
    o = good, o.engines = 16, refuses_options(o, "engines");
    o = good, o.threads = -1, refuses_options(o, "threads is -1");
    o = good, o.threads = 5000, refuses_options(o, "threads is 5000");
    o = good, o.threads = 1025, refuses_options(o, "threads is 1025");
    o = good, o.mode = 9, refuses_options(o, "mode is 9");
    o = good, o.mode = -9, refuses_options(o, "mode is -9");
    o = good, o.measure_seconds = -1, refuses_options(o, "measure_seconds");
    o = good, o.measure_seconds = (double)NAN, refuses_options(o, "measure_seconds");
    o = good, o.alloc = some_alloc, refuses_options(o, "free is NULL");
    o = good, o.free = some_free, refuses_options(o, "alloc is NULL");
    o = good, o.isa = "sse9", refuses_options(o, "sse9|allowed: scalar");
    o = good, o.lock_seconds = -1, refuses_options(o, "lock_seconds");
    o = good, o.lock_seconds = (double)NAN, refuses_options(o, "lock_seconds");
}

/* What weft.h says that 0 stands for. */
TEST(context_defaults) {
    weft_ctx *ctx = NULL;
    OK(weft_ctx_create(&ctx, NULL));
    const weft_ctx_opts *o = weft__opts(ctx);
    CHECK(o->engines == WEFT_ENGINE_ALL && o->mode == WEFT_MODE_ESTIMATE, "engines 0x%x, mode %d", o->engines, o->mode);
    CHECK(o->measure_seconds == 2 && o->lock_seconds == 10, "%g s to measure, %g s for a lock", o->measure_seconds,
          o->lock_seconds);
    CHECK(o->workspace_limit == (size_t)64 << 20 && o->plan_cache == 1024, "%zu bytes of workspace, %zu plans",
          o->workspace_limit, o->plan_cache);
    weft_ctx_release(ctx);
}

static void with_variable(const char *name, const char *value, const char *words) {
    weft_ctx *ctx = NULL;
    setenv(name, value, 1);
    weft_status s = weft_ctx_create(&ctx, NULL);
    unsetenv(name);
    test_fails(s, WEFT_ERR_INVALID, words, name, __LINE__);
}

TEST(context_variables) {
    char *isa = getenv("WEFT_ISA"), kept[32] = "";
    if (isa) snprintf(kept, sizeof(kept), "%s", isa);
    with_variable("WEFT_THREADS", "many", "WEFT_THREADS|many");
    with_variable("WEFT_THREADS", "0", "WEFT_THREADS|0");
    with_variable("WEFT_THREADS", "99999", "99999");
    with_variable("WEFT_ISA", "mmx", "mmx");
    if (kept[0]) setenv("WEFT_ISA", kept, 1);
}

/* ---------------------------------------------------------------- options before variables */
static char *kept_variable(const char *name) { return getenv(name) ? strdup(getenv(name)) : NULL; }
static void set_variable(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static weft_ctx *with_options(weft_ctx_opts opts) {
    weft_ctx *ctx = NULL;
    OK(weft_ctx_create(&ctx, &opts));
    return ctx;
}

static weft__hw hw_with(weft_ctx_opts opts) {
    weft_problem p = {.device = WEFT_DEVICE_CPU};
    weft__hw hw;
    weft_ctx *ctx = with_options(opts);
    OK(weft__ctx_hw(ctx, &p, &hw));
    weft_ctx_release(ctx);
    return hw;
}

TEST(an_option_counts_before_its_variable) {
    static const int threads[] = {0, 1, 5};
    const weft_ctx_opts none = WEFT_CTX_OPTS_INIT;
    weft_ctx_opts o = none;
    char *const before[] = {kept_variable("WEFT_THREADS"), kept_variable("WEFT_ISA"), kept_variable("WEFT_NVRTC")};
    weft__hw all;
    weft__hw_detect(&all);
    for (size_t i = 0; i < WEFT__COUNT(threads); i++) {
        o = none, o.threads = threads[i];
        set_variable("WEFT_THREADS", "3");
        CHECK(hw_with(o).threads == (threads[i] ? threads[i] : 3), "%d threads, asked for %d", hw_with(o).threads,
              threads[i]);
        set_variable("WEFT_THREADS", "");
        CHECK(threads[i] == 0 || hw_with(o).threads == threads[i], "%d threads", hw_with(o).threads);
    }
    set_variable("WEFT_THREADS", before[0]);
    for (int option = -1; option < WEFT__ISA_COUNT; option++)
        for (int variable = -1; variable < WEFT__ISA_COUNT; variable++) {
            const int counts = option >= 0 ? option : variable;
            weft__hw want = all;
            if (counts >= 0) weft__hw_limit(&want, (weft__isa)counts);
            o = none, o.isa = option >= 0 ? weft__isa_names[option] : NULL;
            set_variable("WEFT_ISA", variable >= 0 ? weft__isa_names[variable] : "");
            const weft__hw got = hw_with(o);
            CHECK(got.isa == want.isa && got.features == want.features, "option %s beside WEFT_ISA=%s gave %s",
                  o.isa ? o.isa : "none", getenv("WEFT_ISA"), weft__isa_names[got.isa]);
        }
    set_variable("WEFT_ISA", before[1]);
    set_variable("WEFT_NVRTC", "/of/the/variable");
    for (int i = 0; i < 2; i++) {
        static char text[1 << 16];
        o = none, o.nvrtc = i ? "/of/the/option" : NULL;
        weft_ctx *ctx = with_options(o);
        OK(weft_ctx_describe(ctx, text, sizeof(text), NULL));
        CHECK(strstr(text, i ? "/of/the/option" : "/of/the/variable"), "%s", text);
        weft_ctx_release(ctx);
    }
    set_variable("WEFT_NVRTC", before[2]);
    for (size_t i = 0; i < WEFT__COUNT(before); i++) free(before[i]);
}

/* Topics of the variable are added to those of the options, and to those that are set later. */
TEST(topics_add_up) {
    enum { TOPICS = 4 };
    static const char *const words[TOPICS] = {"dispatch", "tune", "exec", "error"};
    weft_ctx_opts o = WEFT_CTX_OPTS_INIT;
    char *before = kept_variable("WEFT_VERBOSE");
    for (int variable = -1; variable < TOPICS; variable++)
        for (unsigned option = 0; option <= WEFT_LOG_ALL; option++)
            for (int later = 0; later < 2; later++) {
                set_variable("WEFT_VERBOSE", variable < 0 ? NULL : words[variable]);
                o.verbose = later ? WEFT_LOG_ALL & ~option : option;
                weft_ctx *ctx = with_options(o);
                if (later) OK(weft_ctx_set_verbose(ctx, option));
                for (int topic = 0; topic < TOPICS; topic++)
                    CHECK(weft__logs(ctx, 1 << topic) == (topic == variable || (option >> topic & 1)),
                          "%s with topics 0x%x, set %s, beside WEFT_VERBOSE=%s", words[topic], option,
                          later ? "later" : "at first", variable < 0 ? "" : words[variable]);
                weft_ctx_release(ctx);
            }
    set_variable("WEFT_VERBOSE", before);
    free(before);
}

/* A wrong word in WEFT_VERBOSE is named on stderr; the words beside it count and the context is made. */
TEST(a_wrong_word_of_the_log) {
    char said[512] = "", *verbose = getenv("WEFT_VERBOSE") ? strdup(getenv("WEFT_VERBOSE")) : NULL;
    weft_ctx *ctx = NULL;
    FILE *file = tmpfile();
    CHECK(file, "no file");
    fflush(stderr);
    int old = dup(2);
    dup2(fileno(file), 2);
    setenv("WEFT_VERBOSE", "1,dispatch,everything", 1);
    weft_status s = weft_ctx_create(&ctx, NULL);
    dup2(old, 2);
    close(old);
    rewind(file);
    said[fread(said, 1, sizeof(said) - 1, file)] = 0;
    fclose(file);
    if (verbose)
        setenv("WEFT_VERBOSE", verbose, 1);
    else
        unsetenv("WEFT_VERBOSE");
    free(verbose);
    OK(s);
    CHECK(strstr(said, "'1'") && strstr(said, "'everything'") && strstr(said, "allowed: dispatch"), "%s", said);
    CHECK(weft__logs(ctx, WEFT_LOG_DISPATCH), "the good word is lost");
    weft_ctx_release(ctx);
}

static void no_pool(void *user, int64_t slots, weft_task task, void *arg) {
    (void)user;
    for (int64_t i = 0; i < slots; i++) task(arg, i);
}

TEST(context_calls) {
    weft_ctx *ctx = test_context(1);
    char text[16];
    size_t length = 0;
    weft_ctx_release(NULL);
    FAILS(weft_ctx_set_verbose(NULL, 0), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_ctx_set_verbose(ctx, 16), WEFT_ERR_INVALID, "topics is 0x10");
    FAILS(weft_ctx_set_verbose(ctx, WEFT_LOG_ALL | 1u << 31), WEFT_ERR_INVALID, "topics is 0x8000000f");
    FAILS(weft_ctx_set_parallel_for(NULL, NULL, NULL, 0), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_ctx_set_parallel_for(ctx, no_pool, NULL, 0), WEFT_ERR_INVALID, "threads is 0");
    FAILS(weft_ctx_set_parallel_for(ctx, no_pool, NULL, 4096), WEFT_ERR_INVALID, "threads is 4096");
    FAILS(weft_ctx_set_parallel_for(ctx, no_pool, NULL, 1025), WEFT_ERR_INVALID, "threads is 1025");
    FAILS(weft_ctx_describe(NULL, text, sizeof(text), NULL), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_ctx_describe(ctx, NULL, 10, NULL), WEFT_ERR_INVALID, "text is NULL");
    FAILS(weft_ctx_describe(ctx, text, sizeof(text), &length), WEFT_ERR_INVALID, "capacity is 16");
    CHECK(strlen(text) == sizeof(text) - 1 && length > sizeof(text), "%zu", length);
    char *all = malloc(length + 1);
    OK(weft_ctx_describe(ctx, all, length + 1, NULL));
    CHECK(strstr(all, "threads: 1\n") && strstr(all, "cuda: "), "%s", all);
    CHECK(strlen(all) == length, "%zu of %zu", strlen(all), length);
    char limits[160];
    snprintf(limits, sizeof(limits), "workspace limit: 64 MB\nplan cache: 1024\nwisdom: 0 entries\nkernels: %zu\n",
             weft_kernel_count(ctx, NULL));
    CHECK(strstr(all, limits), "no \"%s\" in %s", limits, all);
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &cpu, &hw));
    snprintf(limits, sizeof(limits), "cache: L1 %zu KB, L2 %zu KB, L3 %zu KB\n", hw.l1 >> 10, hw.l2 >> 10, hw.l3 >> 10);
    CHECK(strstr(all, limits), "no \"%s\" in %s", limits, all);
    free(all);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the log */
typedef struct lines {
    int count, topics;
    char last[4096];
} lines;

static void keep(void *user, int topic, const char *line) {
    lines *l = user;
    l->count++;
    l->topics |= topic;
    snprintf(l->last, sizeof(l->last), "%s", line);
}

TEST(log_callback) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    lines l = {0, 0, ""};
    weft_ctx *ctx;
    weft_plan *plan;
    weft_problem p = test_problem(small);
    opts.log = keep;
    opts.log_user = &l;
    OK(weft_ctx_create(&ctx, &opts));
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    CHECK(l.count == (getenv("WEFT_VERBOSE") ? l.count : 0), "%d lines though none were asked for", l.count);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    opts.verbose = WEFT_LOG_DISPATCH;
    OK(weft_ctx_create(&ctx, &opts));
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    CHECK(l.count > 0 && (l.topics & WEFT_LOG_DISPATCH) && strstr(l.last, small), "%d lines, the last: %s", l.count,
          l.last);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* A callback that holds weft up from inside, be it log, alloc or free: refused, not a deadlock. What it may call
 * works. */
enum { OF_LOG, OF_ALLOC, OF_FREE, CALLBACKS };
static weft_ctx *called;
static int entered[CALLBACKS], let_in[CALLBACKS];
static void call_again(int callback) {
    char text[64];
    weft_plan *plan = NULL;
    static weft_problem p = WEFT_PROBLEM_INIT;
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    weft_ctx *ctx = called;
    if (!ctx) return;
    called = NULL; /* once: what would not be refused would come here again */
    if (p.op == 0) p = test_problem(small);
    entered[callback]++;
    const weft_status got[] = {weft_plan_create(&plan, ctx, &p, NULL), weft_ctx_describe(ctx, text, sizeof(text), NULL),
                               weft_wisdom_forget(ctx, NULL), weft_kernel_info(ctx, &p, 0, &d),
                               weft_ctx_set_verbose(ctx, 0)};
    for (size_t i = 0; i < WEFT__COUNT(got); i++) let_in[callback] += got[i] != WEFT_ERR_INVALID;
    let_in[callback] += !strstr(weft_last_error(), "called from alloc, free or log") || !weft_version()[0];
    called = ctx;
}
static void call_from_log(void *user, int topic, const char *line) {
    (void)user, (void)topic, (void)line;
    call_again(OF_LOG);
}
static void *call_from_alloc(void *user, size_t bytes) { return (void)user, call_again(OF_ALLOC), malloc(bytes); }
static void call_from_free(void *user, void *block) { (void)user, call_again(OF_FREE), free(block); }

TEST(calls_from_a_callback) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_plan *plan = NULL;
    weft_problem p = test_problem(small);
    weft_ctx *ctx = NULL;
    opts.log = call_from_log, opts.alloc = call_from_alloc, opts.free = call_from_free;
    opts.verbose = WEFT_LOG_DISPATCH;
    OK(weft_ctx_create(&ctx, &opts));
    called = ctx;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    weft_plan_release(plan);
    OK(weft_wisdom_forget(ctx, NULL));
    called = NULL;
    for (int i = 0; i < CALLBACKS; i++)
        CHECK(entered[i] && !let_in[i], "callback %d: entered %d times, %d calls let in", i, entered[i], let_in[i]);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- plan */
TEST(plan_calls) {
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(small), wrong = p;
    weft_plan *plan = (weft_plan *)&p;
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_cost cost = WEFT_COST_INIT;
    FAILS(weft_plan_create(NULL, ctx, &p, NULL), WEFT_ERR_INVALID, "plan is NULL");
    FAILS(weft_plan_create(&plan, NULL, &p, NULL), WEFT_ERR_INVALID, "ctx is NULL");
    CHECK(plan == NULL, "a plan without a context");
    FAILS(weft_plan_create(&plan, ctx, NULL, NULL), WEFT_ERR_INVALID, "problem is NULL");
    opts.size = 4;
    FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_INVALID, "opts.size is 4");
    opts = (weft_plan_opts)WEFT_PLAN_OPTS_INIT;
    opts.mode = 7;
    FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_INVALID, "mode is 7");
    wrong.groups = 3;
    FAILS(weft_plan_create(&plan, ctx, &wrong, NULL), WEFT_ERR_INVALID, "groups is 3");
    wrong = p, wrong.size = 1;
    FAILS(weft_plan_create(&plan, ctx, &wrong, NULL), WEFT_ERR_INVALID, "size is 1");
    CHECK(!weft_plan_problem(NULL) && !weft_plan_kernel_name(NULL)[0] && weft_plan_workspace_bytes(NULL) == 0 &&
              weft_plan_packed_bytes(NULL) == 0,
          "questions to NULL");
    FAILS(weft_plan_cost(NULL, &cost), WEFT_ERR_INVALID, "plan is NULL");
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    FAILS(weft_plan_cost(plan, NULL), WEFT_ERR_INVALID, "cost is NULL");
    cost.size = 1;
    FAILS(weft_plan_cost(plan, &cost), WEFT_ERR_INVALID, "cost");
    FAILS(weft_pack(NULL, NULL, NULL, NULL), WEFT_ERR_INVALID, "plan is NULL");
    FAILS(weft_execute(NULL, NULL, NULL, 0, NULL), WEFT_ERR_INVALID, "plan is NULL");
    FAILS(weft_execute(plan, NULL, NULL, 0, NULL), WEFT_ERR_INVALID, "args is NULL");
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* A problem for a GPU where there is none: an error that says why, and no plan. */
TEST(no_gpu) {
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4@cuda1000");
    weft_plan *plan = NULL;
    weft_status s = weft_plan_create(&plan, ctx, &p, NULL);
    CHECK((s == WEFT_ERR_UNSUPPORTED || s == WEFT_ERR_INVALID) && !plan && strstr(weft_last_error(), "device"),
          "%s: %s", weft_status_name(s), weft_last_error());
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- kernels */
TEST(kernel_calls) {
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(small), wrong = p;
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    size_t all = weft_kernel_count(ctx, NULL), count = weft_kernel_count(ctx, &p);
    CHECK(count >= 1 && all >= count && weft_kernel_count(NULL, &p) == 0, "%zu of %zu kernels", count, all);
    FAILS(weft_kernel_info(NULL, &p, 0, &d), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_kernel_info(ctx, &p, 0, NULL), WEFT_ERR_INVALID, "desc is NULL");
    FAILS(weft_kernel_info(ctx, &p, count, &d), WEFT_ERR_INVALID, "index");
    FAILS(weft_kernel_info(ctx, NULL, all, &d), WEFT_ERR_INVALID, "index");
    d.size = 2;
    FAILS(weft_kernel_info(ctx, &p, 0, &d), WEFT_ERR_INVALID, "desc");
    d = (weft_kernel_desc)WEFT_KERNEL_DESC_INIT;
    wrong.rank = 9;
    FAILS(weft_kernel_info(ctx, &wrong, 0, &d), WEFT_ERR_INVALID, "rank is 9");
    for (size_t i = 0; i < all; i++) {
        OK(weft_kernel_info(ctx, NULL, i, &d));
        CHECK(d.name[0] && d.engine[0] && d.isa && d.version >= 1 && !d.reason, "kernel %zu", i);
    }
    const weft__kernel *const *list;
    size_t at = 0;
    for (size_t i = 0, kernels = weft__kernels(0, &list); i < kernels; i++) /* what it says is what the table has */
        for (int v = 0; v < weft__kernel_variants(list[i]); v++) {
            const weft__kernel *k = list[i];
            OK(weft_kernel_info(ctx, NULL, at++, &d));
            CHECK(strcmp(d.name, k->name) == 0 && d.op == k->op && d.version == k->version && d.exact == k->exact,
                  "%s: op %d, version %d, exact %d", d.name, d.op, d.version, d.exact);
            CHECK(strcmp(d.variant, k->variants ? k->variants[v] : "") == 0 &&
                      strcmp(d.isa, k->engine == WEFT_ENGINE_CPU ? weft__isa_names[k->isa] : "") == 0,
                  "%s: variant %s, isa %s", d.name, d.variant, d.isa);
            if (strstr(d.name, "winograd") || strstr(d.name, "_fft")) CHECK(!d.exact, "%s is exact", d.name);
        }
    OK(weft_kernel_info(ctx, &p, count - 1, &d));
    CHECK(strcmp(d.engine, "ref") == 0 && d.applies, "the last kernel is %s", d.name);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- wisdom */
TEST(wisdom_calls) {
    weft_ctx *ctx = test_context(1);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT, other = {1, 0, 0, 0};
    weft_problem wrong = test_problem(small);
    wrong.c = 0;
    FAILS(weft_wisdom_load(NULL, "x", &report), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_wisdom_load(ctx, NULL, &report), WEFT_ERR_INVALID, "path is NULL");
    FAILS(weft_wisdom_load(ctx, "x", &other), WEFT_ERR_INVALID, "report.size is 1");
    FAILS(weft_wisdom_save(NULL, "x", &report), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_wisdom_save(ctx, NULL, &report), WEFT_ERR_INVALID, "path is NULL");
    FAILS(weft_wisdom_save(ctx, "x", &other), WEFT_ERR_INVALID, "report.size is 1");
    FAILS(weft_wisdom_parse(NULL, "", 0, &report), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_wisdom_parse(ctx, NULL, 5, &report), WEFT_ERR_INVALID, "text is NULL");
    FAILS(weft_wisdom_parse(ctx, "", 0, &other), WEFT_ERR_INVALID, "report.size is 1");
    OK(weft_wisdom_parse(ctx, NULL, 0, &report));
    OK(weft_wisdom_parse(ctx, "", 0, NULL));
    FAILS(weft_wisdom_forget(NULL, NULL), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_wisdom_forget(ctx, &wrong), WEFT_ERR_INVALID, "channels c is 0");
    OK(weft_wisdom_forget(ctx, NULL));
    CHECK(weft_wisdom_count(NULL) == 0, "entries of NULL");
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- sparse weights */
TEST(sparse_calls) {
    static float dense[8 * 4 * 3] = {0, 1, 2}, values[2];
    static int64_t rows[9], cols[2], nnz;
    weft_problem p = test_problem("sparse_conv1d:fwd:f32,rows=i64,cols=i64:ncw:n1c4w9:o8k3nnz2"),
                 other = test_problem(small);
    OK(weft_sparse_count(&p, NULL, dense, &nnz));
    CHECK(nnz == 2, "%lld", (long long)nnz);
    OK(weft_sparse_build(&p, NULL, dense, values, rows, cols));
    OK(weft_sparse_check(&p, rows, cols));
    OK(weft_sparse_stretch(&p, cols, cols));
    FAILS(weft_sparse_count(&p, NULL, NULL, &nnz), WEFT_ERR_INVALID, "weights is NULL");
    FAILS(weft_sparse_count(&p, NULL, dense, NULL), WEFT_ERR_INVALID, "nnz is NULL");
    FAILS(weft_sparse_build(&p, NULL, NULL, values, rows, cols), WEFT_ERR_INVALID, "weights is NULL");
    FAILS(weft_sparse_build(&p, NULL, dense, NULL, rows, cols), WEFT_ERR_INVALID, "values is NULL");
    FAILS(weft_sparse_build(&p, NULL, dense, values, NULL, cols), WEFT_ERR_INVALID, "rows is NULL");
    FAILS(weft_sparse_build(&p, NULL, dense, values, rows, NULL), WEFT_ERR_INVALID, "cols is NULL");
    FAILS(weft_sparse_stretch(&p, NULL, cols), WEFT_ERR_INVALID, "cols is NULL");
    FAILS(weft_sparse_stretch(&p, cols, NULL), WEFT_ERR_INVALID, "stretched is NULL");
    FAILS(weft_sparse_check(&p, NULL, cols), WEFT_ERR_INVALID, "rows is NULL");
    FAILS(weft_sparse_check(&p, rows, NULL), WEFT_ERR_INVALID, "cols is NULL");
    FAILS(weft_sparse_check(NULL, rows, cols), WEFT_ERR_INVALID, "problem is NULL");
    FAILS(weft_sparse_check(&other, rows, cols), WEFT_ERR_INVALID, "sparse_conv");
}
