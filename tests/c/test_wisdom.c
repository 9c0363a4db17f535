/* Wisdom in memory: what is read, kept, used and forgotten. Files: test_wisdom_file.c. */
#include <pthread.h>

#include "test.h"

static const char small[] = "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4@cpu";
static const char *here(weft_ctx *ctx) {
    static char device[200];
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &cpu, &hw));
    weft__device_name(&hw, WEFT_DEVICE_CPU, device, sizeof(device));
    return device;
}

static void learn(weft_ctx *ctx, const char *device, int threads, const char *problem, const char *kernel, int version,
                  double ns, size_t workspace) {
    char line[2048];
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    int n = snprintf(line, sizeof(line), "%s %s t%d %s %s v%d %.0f %zu\n", device, WEFT_VERSION, threads, problem,
                     kernel, version, ns, workspace);
    OK(weft_wisdom_parse(ctx, line, (size_t)n, &report));
    CHECK(report.bad_lines == 0, "a bad line: %s", line);
}

static const char *chosen(weft_ctx *ctx, const char **why) {
    static char name[128];
    weft_problem p = test_problem(small);
    weft_plan *plan = NULL;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    snprintf(name, sizeof(name), "%s", weft_plan_kernel_name(plan));
    *why = weft__plan_choice(plan)->why;
    weft_plan_release(plan);
    return name;
}

/* ---------------------------------------------------------------- use */
TEST(wisdom_is_preferred) {
    weft_ctx *ctx = test_context(2);
    const char *why, *name = chosen(ctx, &why);
    CHECK(strcmp(why, "estimate") == 0, "%s", why);
    learn(ctx, here(ctx), 2, small, "conv_ref", 1, 50, 0);
    name = chosen(ctx, &why); /* the plan of before is not what the cache gives now */
    CHECK(strcmp(name, "conv_ref") == 0 && strcmp(why, "wisdom") == 0, "%s by %s", name, why);
    weft_problem p = test_problem(small);
    OK(weft_wisdom_forget(ctx, &p));
    CHECK(weft_wisdom_count(ctx) == 0, "%zu entries", weft_wisdom_count(ctx));
    chosen(ctx, &why);
    CHECK(strcmp(why, "estimate") == 0, "%s after forgetting", why);
    weft_ctx_release(ctx);
}

/* Neither wisdom nor a measurement decides where choices are to be deterministic: for one plan, or by the context for
 * all of them. */
TEST(deterministic_choices_know_no_wisdom) {
    for (int by_context = 0; by_context < 2; by_context++) {
        weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
        weft_plan_opts ask = WEFT_PLAN_OPTS_INIT;
        weft_ctx *ctx;
        weft_problem p = test_problem(small);
        opts.threads = 2, opts.deterministic = by_context, ask.deterministic = !by_context;
        OK(weft_ctx_create(&ctx, &opts));
        learn(ctx, here(ctx), 2, small, "conv_ref", 1, 50, 0);
        for (int mode = WEFT_MODE_ESTIMATE; mode <= WEFT_MODE_MEASURE; mode++) {
            weft_plan *plan = NULL;
            ask.mode = mode;
            OK(weft_plan_create(&plan, ctx, &p, &ask));
            CHECK(strcmp(weft__plan_choice(plan)->why, "estimate") == 0, "mode %d, by the context %d: %s by %s", mode,
                  by_context, weft_plan_kernel_name(plan), weft__plan_choice(plan)->why);
            weft_plan_release(plan);
        }
        weft_ctx_release(ctx);
    }
}

/* In one context too, and one kind of plan does not take the other's place. */
TEST(a_deterministic_plan_is_one_of_its_own) {
    weft_ctx *ctx = test_context(2);
    weft_problem p = test_problem(small);
    learn(ctx, here(ctx), 2, small, "conv_ref", 1, 50, 0);
    for (int i = 0; i < 4; i++) {
        weft_plan_opts ask = WEFT_PLAN_OPTS_INIT;
        weft_plan *plan = NULL;
        ask.deterministic = i % 2;
        OK(weft_plan_create(&plan, ctx, &p, &ask));
        CHECK(strcmp(weft__plan_choice(plan)->why, i % 2 ? "estimate" : "wisdom") == 0, "plan %d: %s by %s", i,
              weft_plan_kernel_name(plan), weft__plan_choice(plan)->why);
        weft_plan_release(plan);
    }
    weft_ctx_release(ctx);
}

TEST(wisdom_of_others_is_not_used) {
    weft_ctx *ctx = test_context(2);
    const char *why;
    learn(ctx, "cpu:another:avx2", 2, small, "conv_ref", 1, 50, 0);
    learn(ctx, here(ctx), 5, small, "conv_ref", 1, 50, 0);
    learn(ctx, here(ctx), 2, "conv2d:fwd:f32:nchw:n2c4h12w20:o4k3p1g4@cpu", "conv_ref", 1, 50, 0);
    learn(ctx, here(ctx), 2, small, "no_such_kernel", 1, 50, 0);
    CHECK(weft_wisdom_count(ctx) == 4, "%zu entries", weft_wisdom_count(ctx));
    chosen(ctx, &why);
    CHECK(strcmp(why, "estimate") == 0, "%s", why);
    learn(ctx, here(ctx), 2, small, "conv_ref", 99, 50, 0);
    chosen(ctx, &why);
    CHECK(strcmp(why, "estimate") == 0, "%s by another version of a kernel", why);
    weft_ctx_release(ctx);
}

/* The workspace limit is about what the kernel needs now; the line's number is of when it was measured. */
TEST(the_limit_is_compared_with_the_kernels_need) {
    weft_problem p = test_problem("conv2d:bwd_weights:f32:nchw:n4c8h24w24:o8k3p1g8@cpu");
    weft_ctx *ctx = test_context(2);
    char text[WEFT_TEXT_MAX], name[128] = "";
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    for (size_t i = 0; i < weft_kernel_count(ctx, &p) && !name[0]; i++) {
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (d.applies && d.workspace && strcmp(d.engine, "cpu") == 0) snprintf(name, sizeof(name), "%s", d.name);
    }
    CHECK(name[0], "no kernel needs workspace for this problem");
    OK(weft_problem_format(&p, text, sizeof(text), NULL));
    for (int fits = 0; fits < 2; fits++) {
        OK(weft_wisdom_forget(ctx, NULL));
        learn(ctx, here(ctx), 2, text, name, d.version, 1, fits ? (size_t)1 << 40 : 0);
        weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
        weft_plan *plan = NULL;
        opts.workspace_limit = d.workspace - !fits;
        OK(weft_plan_create(&plan, ctx, &p, &opts));
        const char *why = weft__plan_choice(plan)->why;
        CHECK((strcmp(why, "wisdom") == 0) == fits, "%s by %s with a limit of %zu", weft_plan_kernel_name(plan), why,
              opts.workspace_limit);
        weft_plan_release(plan);
    }
    weft_ctx_release(ctx);
}

/* Of several kernels the one with the least time, in whichever order they were learnt. */
TEST(the_fastest_entry_wins) {
    weft_problem p = test_problem(small);
    for (size_t turn = 0; turn < 2; turn++) {
        weft_ctx *ctx = test_context(2);
        const char *why;
        char names[2][WEFT__NAME_MAX];
        size_t found = 0;
        for (size_t i = 0; i < weft_kernel_count(ctx, &p) && found < 2; i++) {
            weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
            OK(weft_kernel_info(ctx, &p, i, &d));
            if (!d.applies) continue;
            snprintf(names[found], sizeof(names[0]), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
            learn(ctx, here(ctx), 2, small, names[found], d.version, found == turn ? 50 : 70, 0);
            found++;
        }
        CHECK(found == 2, "%zu kernels apply", found);
        const char *name = chosen(ctx, &why);
        CHECK(strcmp(name, names[turn]) == 0 && strcmp(why, "wisdom") == 0, "%s by %s, not %s", name, why, names[turn]);
        weft_ctx_release(ctx);
    }
}

/* Of equal times that of the kernel which the list has first: the best instruction set, the reference last. */
TEST(of_equal_entries_the_first_kernel_wins) {
    weft_ctx *ctx = test_context(2);
    weft_problem p = test_problem(small);
    char first[WEFT__NAME_MAX] = "", name[WEFT__NAME_MAX];
    const char *why;
    size_t known = 0;
    for (size_t i = weft_kernel_count(ctx, &p); i-- > 0;) { /* learnt in the other order */
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (!d.applies) continue;
        snprintf(name, sizeof(name), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
        memcpy(first, name, sizeof(first));
        learn(ctx, here(ctx), 2, small, name, d.version, 50, 0);
        known++;
    }
    const char *got = chosen(ctx, &why);
    CHECK(known > 1 && strcmp(got, first) == 0 && strcmp(why, "wisdom") == 0, "%s by %s, not %s of %zu", got, why,
          first, known);
    weft_ctx_release(ctx);
}

TEST(a_newer_entry_replaces) {
    weft_ctx *ctx = test_context(2);
    learn(ctx, here(ctx), 2, small, "conv_ref", 7, 50, 0); /* of another version of the kernel */
    learn(ctx, here(ctx), 2, small, "conv_ref", 1, 70, 128);
    CHECK(weft_wisdom_count(ctx) == 1, "%zu entries", weft_wisdom_count(ctx));
    char text[4096];
    size_t length = 0;
    OK(weft_wisdom_format(ctx, text, sizeof(text), &length));
    CHECK(strstr(text, "conv_ref v1 70 128\n"), "%s", text);
    weft_problem p = test_problem(small);
    weft_plan *plan = NULL;
    weft_cost cost = WEFT_COST_INIT;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    OK(weft_plan_cost(plan, &cost));
    CHECK(cost.ns == 70, "%g ns", cost.ns);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- bad lines */
TEST(bad_lines_are_counted) {
    static const char *const bad[] = {"rubbish",
                                      "cpu:a:avx2",
                                      "cpu:a:avx2 0.1.0 t2 conv9d:fwd k v1 1 0",
                                      "cpu:a:avx2 0.1.0 2 P k v1 1 0",
                                      "cpu:a:avx2 0.1.0 t2 P k 1 1 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 0 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 -5 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 5 -1",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 x 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 5 0 more",
                                      "cpu:a:avx2 0.1.0 t-2 P k v1 5 0",
                                      "cpu:a:avx2 0.1.0 t4294967298 P k v1 5 0",
                                      "cpu:a:avx2 0.1.0 x2 P k v1 5 0",
                                      "cpu:a:avx2 0.1.0 t2 P k x1 5 0",
                                      "cpu:a:avx2 0.1.0 t1048577 P k v1 5 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1048577 5 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 5 9223372036854775808",
                                      "cpu:a:avx2 0.1.0 t2 P k v4294967297 5 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 9223372036854775808 0",
                                      "cpu:a:avx2 0.1.0 t2 P k v1 nan 0",
                                      "cpu:a:avx2 0.1.0 t2 conv2d:fwd:f32:nchw:n1c4h12w20:o4k3x3p1g4 k v1 5 0"};
    weft_ctx *ctx = test_context(1);
    for (size_t i = 0; i < WEFT__COUNT(bad); i++) {
        char text[4096], line[1024];
        const char *at = strchr(bad[i], 'P'); /* P stands for a good problem */
        snprintf(line, sizeof(line), "%.*s%s%s", at ? (int)(at - bad[i]) : (int)strlen(bad[i]), bad[i], at ? small : "",
                 at ? at + 1 : "");
        int n = snprintf(text, sizeof(text), "# comment\n \t # indented\n\n%s\r\ncpu:a:avx2 0.1.0 t2 %s k v1 5 0", line,
                         small);
        weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
        OK(weft_wisdom_forget(ctx, NULL));
        OK(weft_wisdom_parse(ctx, text, (size_t)n, &report));
        CHECK(report.bad_lines == 1 && report.other_machines == 1 && report.entries == 0,
              "'%s': %lld bad, %lld others, %lld here", line, (long long)report.bad_lines,
              (long long)report.other_machines, (long long)report.entries);
    }
    weft_ctx_release(ctx);
}

/* Lines of another version of weft may be of problems that this one does not know: they are kept as they are. */
TEST(lines_of_other_versions_are_kept) {
    static const char text[] = "cpu:a:avx2 9.9.9 t2 conv9d:fwd:f8:not:known k v1 5 0\n"
                               "cpu:a:avx2 0.0.1 t2 old_operator:fwd k v1 6 0\n";
    weft_ctx *ctx = test_context(1);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    char written[1024];
    OK(weft_wisdom_parse(ctx, text, strlen(text), &report));
    CHECK(report.bad_lines == 0 && report.other_machines == 2, "%lld bad, %lld others", (long long)report.bad_lines,
          (long long)report.other_machines);
    OK(weft_wisdom_format(ctx, written, sizeof(written), NULL));
    CHECK(strstr(written, text), "%s", written);
    weft_ctx_release(ctx);
}

static char said[512];
static void listen(void *user, int topic, const char *line) {
    (void)user;
    if (topic == WEFT_LOG_ERROR) snprintf(said, sizeof(said), "%s", line);
}

TEST(bad_lines_are_logged) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.log = listen, opts.verbose = WEFT_LOG_ERROR;
    OK(weft_ctx_create(&ctx, &opts));
    said[0] = 0;
    static const char good[] = "# a comment\n", bad[] = "one\ntwo\n# three\nfour\n";
    OK(weft_wisdom_parse(ctx, good, strlen(good), NULL));
    CHECK(!said[0], "a comment: %s", said);
    OK(weft_wisdom_parse(ctx, bad, strlen(bad), NULL));
    CHECK(strstr(said, "wisdom: 3 bad lines skipped"), "%s", said);
    weft_ctx_release(ctx);
}

/* The largest numbers that a line may have. */
TEST(large_numbers_are_read) {
    weft_ctx *ctx = test_context(1);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    char text[1024];
    int n = snprintf(text, sizeof(text),
                     "cpu:a:avx2 0.1.0 t1048576 %s k v1048576 9223372036854775807 9223372036854775807", small);
    OK(weft_wisdom_parse(ctx, text, (size_t)n, &report));
    CHECK(report.bad_lines == 0 && report.other_machines == 1, "%lld bad", (long long)report.bad_lines);
    weft_ctx_release(ctx);
}

/* 200,000 lines of one problem: with a search through all of them for each, this would take minutes. */
TEST(reading_takes_as_long_as_the_text_is) {
    enum { LINES = 200000 };
    size_t room = LINES * (sizeof(small) + 64), n = 0;
    char *text = malloc(room);
    CHECK(text, "no memory");
    for (int i = 0; i < LINES; i++)
        n += (size_t)snprintf(text + n, room - n, "cpu:a:avx2 %s t1 %s kernel%d v1 5 0\n", WEFT_VERSION, small, i);
    weft_ctx *ctx = test_context(1);
    for (int round = 0; round < 2; round++) {
        OK(weft_wisdom_parse(ctx, text, n, NULL));
        CHECK(weft_wisdom_count(ctx) == LINES, "%zu entries", weft_wisdom_count(ctx));
    }
    free(text);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- text */
TEST(to_a_buffer_and_back) {
    weft_ctx *a = test_context(2), *b = test_context(2);
    char text[4096], again[4096];
    size_t length = 0;
    learn(a, here(a), 2, small, "conv_ref", 1, 50, 0);
    learn(a, "cpu:another:avx2", 4, small, "conv_ref", 3, 60, 128);
    FAILS(weft_wisdom_format(NULL, text, sizeof(text), NULL), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_wisdom_format(a, NULL, 5, NULL), WEFT_ERR_INVALID, "text is NULL");
    FAILS(weft_wisdom_format(a, text, 20, &length), WEFT_ERR_INVALID, "capacity is 20");
    CHECK(strlen(text) == 19 && length > 100, "%zu of %zu", strlen(text), length);
    OK(weft_wisdom_format(a, text, length + 1, &length));
    CHECK(strlen(text) == length, "%zu of %zu", strlen(text), length);
    OK(weft_wisdom_parse(b, text, length, NULL));
    OK(weft_wisdom_format(b, again, sizeof(again), NULL));
    CHECK(strcmp(text, again) == 0 && strstr(text, " conv_ref v3 60 128\n"), "%s", again);
    weft_ctx_release(a), weft_ctx_release(b);
}

/* ---------------------------------------------------------------- callbacks */
static weft_ctx *watched;
static int calls, under_the_lock;

static void look(void) {
    if (!watched) return;
    pthread_mutex_t *lock = weft__wisdom_lock(weft__ctx_wisdom(watched));
    calls++;
    if (pthread_mutex_trylock(lock) == 0)
        pthread_mutex_unlock(lock);
    else
        under_the_lock++;
}
static void *looking_alloc(void *user, size_t bytes) { return look(), (void)user, malloc(bytes); }
static void looking_free(void *user, void *block) { look(), (void)user, free(block); }
static const char *looking_reject(void *user, const weft_problem *p) { return look(), (void)user, (void)p, NULL; }
static void no_time(void *user, const weft_problem *p, weft_rates *rates) {
    (void)user, (void)p;
    look();
    rates->ns = 1;
}
static weft_status do_nothing(void *user, const weft_problem *p, const weft_args *args, void *stream) {
    (void)user, (void)p, (void)args, (void)stream;
    return look(), WEFT_OK;
}

/* The host's functions may call weft: none of them is called with the lock of wisdom held. Its name is kept whole. */
TEST(callbacks_without_the_lock_and_a_long_name) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_external external = WEFT_EXTERNAL_INIT;
    char name[6000], text[16000];
    memset(name, 'n', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    opts.alloc = looking_alloc, opts.free = looking_free, opts.threads = 2, opts.mode = WEFT_MODE_MEASURE;
    external.name = "two words", external.reject = looking_reject, external.estimate = no_time;
    external.run_once = do_nothing;
    weft_ctx *ctx = NULL;
    OK(weft_ctx_create(&ctx, &opts));
    FAILS(weft_ctx_set_external(ctx, &external), WEFT_ERR_INVALID, "two words|without spaces");
    external.name = name;
    FAILS(weft_ctx_set_external(ctx, &external), WEFT_ERR_INVALID, "nnnn|up to 127 characters");
    name[127] = 0;
    OK(weft_ctx_set_external(ctx, &external));
    watched = ctx;
    const char *why = NULL;
    chosen(ctx, &why);
    CHECK(strcmp(why, "measured") == 0, "%s", why);
    OK(weft_wisdom_format(ctx, text, sizeof(text), NULL));
    CHECK(strstr(text, name), "the name is cut");
    OK(weft_wisdom_forget(ctx, NULL));
    OK(weft_wisdom_parse(ctx, text, strlen(text), NULL));
    learn(ctx, here(ctx), 2, small, name, 1, 1, 0); /* the fastest by far: the clock does not decide */
    weft_problem p = test_problem(small);
    weft_plan *plan = NULL;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    CHECK(strcmp(weft_plan_kernel_name(plan), name) == 0 && strcmp(weft__plan_choice(plan)->why, "wisdom") == 0,
          "%.20s by %s", weft_plan_kernel_name(plan), weft__plan_choice(plan)->why);
    weft_plan_release(plan);
    watched = NULL;
    CHECK(calls > 10 && under_the_lock == 0, "%d of %d calls with the lock held", under_the_lock, calls);
    weft_ctx_release(ctx);
}
