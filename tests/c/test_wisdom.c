/* Wisdom: what is read, kept, used, merged and forgotten; many processes on one file. */
#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static const char small[] = "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4@cpu";
static char folder[] = "/tmp/weft-wisdom-XXXXXX";

static const char *path_of(const char *name) {
    static char path[2][256];
    static int turn;
    turn = !turn;
    if (strstr(folder, "XXXXXX") && !mkdtemp(folder)) test_stop(TEST_FAIL, "no folder for files");
    snprintf(path[turn], sizeof(path[turn]), "%s/%s", folder, name);
    return path[turn];
}

static void remove_files(void) {
    static const char *const names[] = {"a", "b", "shared", "kept", "bad", "odd"};
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        remove(path_of(names[i]));
        char lock[300];
        snprintf(lock, sizeof(lock), "%s.lock", path_of(names[i]));
        remove(lock);
    }
}

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
    learn(ctx, here(ctx), 2, small, "conv_ref", 1, 50, (size_t)1 << 40);
    chosen(ctx, &why);
    CHECK(strcmp(why, "estimate") == 0, "%s beyond the workspace limit", why);
    weft_ctx_release(ctx);
}

TEST(a_newer_entry_replaces) {
    weft_ctx *ctx = test_context(2);
    learn(ctx, here(ctx), 2, small, "conv_ref", 1, 50, 0);
    learn(ctx, here(ctx), 2, small, "conv_ref", 1, 70, 0);
    CHECK(weft_wisdom_count(ctx) == 1, "%zu entries", weft_wisdom_count(ctx));
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
                                      "cpu:a:avx2 0.1.0 t2 P k v1 nan 0",
                                      "cpu:a:avx2 0.1.0 t2 conv2d:fwd:f32:nchw:n1c4h12w20:o4k3x3p1g4 k v1 5 0"};
    weft_ctx *ctx = test_context(1);
    for (size_t i = 0; i < WEFT__COUNT(bad); i++) {
        char text[4096], line[1024];
        const char *at = strchr(bad[i], 'P'); /* P stands for a good problem */
        snprintf(line, sizeof(line), "%.*s%s%s", at ? (int)(at - bad[i]) : (int)strlen(bad[i]), bad[i], at ? small : "",
                 at ? at + 1 : "");
        int n = snprintf(text, sizeof(text), "# comment\n\n%s\r\ncpu:a:avx2 0.1.0 t2 %s k v1 5 0", line, small);
        weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
        OK(weft_wisdom_forget(ctx, NULL));
        OK(weft_wisdom_parse(ctx, text, (size_t)n, &report));
        CHECK(report.bad_lines == 1 && report.other_machines == 1 && report.entries == 0,
              "'%s': %lld bad, %lld others, %lld here", line, (long long)report.bad_lines,
              (long long)report.other_machines, (long long)report.entries);
    }
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- files */
TEST(save_and_load) {
    weft_ctx *a = test_context(2), *b = test_context(2);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    learn(a, here(a), 2, small, "conv_ref", 1, 50, 0);
    learn(a, "cpu:another:avx2", 4, small, "conv_ref", 1, 60, 128);
    OK(weft_wisdom_save(a, path_of("a"), &report));
    CHECK(report.entries == 1 && report.other_machines == 1 && report.bad_lines == 0, "%lld %lld",
          (long long)report.entries, (long long)report.other_machines);
    OK(weft_wisdom_load(b, path_of("a"), &report));
    CHECK(report.entries == 1 && report.other_machines == 1, "%lld %lld", (long long)report.entries,
          (long long)report.other_machines);
    const char *why;
    chosen(b, &why);
    CHECK(strcmp(why, "wisdom") == 0, "%s", why);
    weft_ctx_release(a), weft_ctx_release(b);
}

/* What a file holds stays in it, whoever saves; what both know, the saver knows better. */
TEST(saving_merges) {
    weft_ctx *a = test_context(2), *b = test_context(2);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    learn(a, "cpu:one:avx2", 2, small, "conv_ref", 1, 50, 0);
    learn(a, "cpu:both:avx2", 2, small, "conv_ref", 1, 10, 0);
    learn(b, "cpu:two:avx2", 2, small, "conv_ref", 1, 60, 0);
    learn(b, "cpu:both:avx2", 2, small, "conv_ref", 1, 20, 0);
    OK(weft_wisdom_save(a, path_of("b"), &report));
    OK(weft_wisdom_save(b, path_of("b"), &report));
    CHECK(report.other_machines == 3 && weft_wisdom_count(b) == 3, "%lld entries", (long long)report.other_machines);
    FILE *f = fopen(path_of("b"), "r");
    char text[4096];
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    text[n] = 0;
    fclose(f);
    CHECK(strstr(text, "cpu:one:avx2") && strstr(text, "cpu:two:avx2") && strstr(text, " v1 20 0\n") &&
              !strstr(text, " v1 10 0\n"),
          "%s", text);
    weft_ctx_release(a), weft_ctx_release(b);
}

enum { SAVERS = 6, EACH = 8 };

static int save_some(int saver) {
    weft_ctx *ctx = NULL;
    if (weft_ctx_create(&ctx, NULL) != WEFT_OK) return 1;
    for (int i = 0; i < EACH; i++) {
        char line[512];
        int n = snprintf(line, sizeof(line), "cpu:saver%d:avx2 0.1.0 t%d %s conv_ref v1 5 0\n", saver, i + 1, small);
        if (weft_wisdom_parse(ctx, line, (size_t)n, NULL) != WEFT_OK ||
            weft_wisdom_save(ctx, path_of("shared"), NULL) != WEFT_OK)
            return 1;
    }
    weft_ctx_release(ctx);
    return 0;
}

TEST(many_processes_lose_nothing) {
    path_of("shared"); /* the folder, before the processes part */
    pid_t children[SAVERS];
    for (int i = 0; i < SAVERS; i++) {
        fflush(NULL);
        children[i] = fork();
        CHECK(children[i] >= 0, "fork: %s", strerror(errno));
        if (children[i] == 0) _exit(save_some(i));
    }
    int failed = 0;
    for (int i = 0; i < SAVERS; i++) {
        int status = 1;
        waitpid(children[i], &status, 0);
        failed += status != 0;
    }
    CHECK(failed == 0, "%d savers failed", failed);
    weft_ctx *ctx = test_context(1);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    OK(weft_wisdom_load(ctx, path_of("shared"), &report));
    CHECK(report.other_machines == SAVERS * EACH && report.bad_lines == 0, "%lld entries of %d, %lld bad",
          (long long)report.other_machines, SAVERS * EACH, (long long)report.bad_lines);
    weft_ctx_release(ctx);
}

TEST(a_file_that_cannot_be) {
    weft_ctx *ctx = test_context(1);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    FAILS(weft_wisdom_load(ctx, "/nowhere/at/all", &report), WEFT_ERR_IO, "/nowhere/at/all|cannot be read");
    FAILS(weft_wisdom_load(ctx, "/tmp", &report), WEFT_ERR_IO, "/tmp");
    FAILS(weft_wisdom_save(ctx, "/nowhere/at/all", &report), WEFT_ERR_IO, "/nowhere/at/all");
    FAILS(weft_wisdom_save(ctx, "/proc/weft-wisdom", &report), WEFT_ERR_IO, "/proc/weft-wisdom");
    char longer[6000];
    memset(longer, 'a', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    FAILS(weft_wisdom_save(ctx, longer, &report), WEFT_ERR_INVALID, "path");
    weft_ctx_release(ctx);
}

/* A folder in the way of the file: nothing is left behind. */
TEST(a_failed_save_leaves_nothing) {
    weft_ctx *ctx = test_context(1);
    learn(ctx, "cpu:one:avx2", 2, small, "conv_ref", 1, 50, 0);
    CHECK(mkdir(path_of("odd"), 0777) == 0 || errno == EEXIST, "mkdir");
    weft_status s = weft_wisdom_save(ctx, path_of("odd"), NULL);
    CHECK(s == WEFT_ERR_IO, "%s", weft_status_name(s));
    CHECK(weft_wisdom_count(ctx) == 1, "what was known is gone");
    char temp[400];
    snprintf(temp, sizeof(temp), "%s.%ld.tmp", path_of("odd"), (long)getpid());
    CHECK(access(temp, F_OK) != 0, "%s is left", temp);
    rmdir(path_of("odd"));
    weft_ctx_release(ctx);
    remove_files();
    rmdir(folder);
}
