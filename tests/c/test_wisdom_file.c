/* Wisdom files: saved, merged, shared by many processes; links, modes, locks and what is not wisdom. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
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
    static const char *const names[] = {"a",      "b",      "shared", "kept", "bad",   "odd",  "link",
                                        "victim", "folder", "pipe",   "full", "marks", "owned"};
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        remove(path_of(names[i]));
        char lock[300];
        snprintf(lock, sizeof(lock), "%s.lock", path_of(names[i]));
        remove(lock);
    }
}

static void learn(weft_ctx *ctx, const char *device, const char *kernel, int ns) {
    char line[1024];
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    int n = snprintf(line, sizeof(line), "%s %s t2 %s %s v1 %d 0\n", device, WEFT_VERSION, small, kernel, ns);
    OK(weft_wisdom_parse(ctx, line, (size_t)n, &report));
    CHECK(report.bad_lines == 0, "a bad line: %s", line);
}

static const char *content(const char *name) {
    static char text[8192];
    FILE *f = fopen(path_of(name), "r");
    CHECK(f, "%s: %s", name, strerror(errno));
    text[fread(text, 1, sizeof(text) - 1, f)] = 0;
    fclose(f);
    return text;
}

static void put(const char *name, const char *text) {
    FILE *f = fopen(path_of(name), "w");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s cannot be written", name);
}

/* ---------------------------------------------------------------- files */
TEST(save_and_load) {
    weft_ctx *a = test_context(2), *b = test_context(2);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    learn(a, "cuda:some:cc90", "conv_ref", 50);
    learn(a, "cpu:another:avx2", "conv_ref", 60);
    OK(weft_wisdom_save(a, path_of("a"), &report));
    CHECK(report.entries == 1 && report.other_machines == 1 && report.bad_lines == 0, "%lld %lld",
          (long long)report.entries, (long long)report.other_machines);
    OK(weft_wisdom_load(b, path_of("a"), &report));
    CHECK(report.entries == 1 && report.other_machines == 1, "%lld %lld", (long long)report.entries,
          (long long)report.other_machines);
    char text[4096];
    OK(weft_wisdom_format(b, text, sizeof(text), NULL));
    CHECK(strcmp(text, content("a")) == 0, "%s", text);
    weft_ctx_release(a), weft_ctx_release(b);
}

/* What a file holds stays in it, whoever saves; what both know, the saver knows better. */
TEST(saving_merges) {
    weft_ctx *a = test_context(2), *b = test_context(2);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    learn(a, "cpu:one:avx2", "conv_ref", 50);
    learn(a, "cpu:both:avx2", "conv_ref", 10);
    learn(b, "cpu:two:avx2", "conv_ref", 60);
    learn(b, "cpu:both:avx2", "conv_ref", 20);
    OK(weft_wisdom_save(a, path_of("b"), &report));
    OK(weft_wisdom_save(b, path_of("b"), &report));
    CHECK(report.other_machines == 3 && weft_wisdom_count(b) == 3, "%lld entries", (long long)report.other_machines);
    const char *text = content("b");
    CHECK(strstr(text, "cpu:one:avx2") && strstr(text, "cpu:two:avx2") && strstr(text, " v1 20 0\n") &&
              !strstr(text, " v1 10 0\n"),
          "%s", text);
    weft_ctx_release(a), weft_ctx_release(b);
}

/* What was forgotten, one problem or all, does not come back from the file that it is saved to; what anybody has learnt
 * since is kept. */
TEST(forgotten_stays_forgotten) {
    weft_problem p = test_problem(small);
    for (int all = 0; all < 2; all++) {
        weft_ctx *a = test_context(2), *b = test_context(2);
        learn(a, "cuda:some:cc90", "conv_ref", 50);
        OK(weft_wisdom_save(a, path_of("kept"), NULL));
        OK(weft_wisdom_load(b, path_of("kept"), NULL));
        OK(weft_wisdom_forget(b, all ? NULL : &p));
        CHECK(weft_wisdom_count(b) == 0, "%zu entries", weft_wisdom_count(b));
        OK(weft_wisdom_save(b, path_of("kept"), NULL));
        CHECK(weft_wisdom_count(b) == 0 && !strstr(content("kept"), small), "it is back: %s", content("kept"));
        learn(b, "cuda:some:cc90", "conv_ref", 70);
        OK(weft_wisdom_save(b, path_of("kept"), NULL));
        CHECK(strstr(content("kept"), " v1 70 0\n"), "%s", content("kept"));
        learn(a, "cuda:other:cc90", "conv_ref", 80);
        OK(weft_wisdom_save(a, path_of("kept"), NULL));
        OK(weft_wisdom_save(b, path_of("kept"), NULL));
        CHECK(strstr(content("kept"), " v1 80 0\n"), "what another process learnt is gone: %s", content("kept"));
        weft_ctx_release(a), weft_ctx_release(b);
        remove(path_of("kept"));
    }
}

/* The mark of what was forgotten is gone once it is saved, of every problem: what others learn of it afterwards
 * stays. */
TEST(what_is_learnt_after_forgetting_stays) {
    enum { PROBLEMS = 5 };
    char line[1024], problem[PROBLEMS][128];
    weft_ctx *a = test_context(2), *b = test_context(2);
    for (int i = 0; i < PROBLEMS; i++)
        snprintf(problem[i], sizeof(problem[i]), "conv2d:fwd:f32:nchw:n%dc4h12w20:o4k3p1g4@cpu", i + 1);
    for (int round = 1; round <= 2;
         round++) { /* the other learns and saves; this one forgets and saves, and saves again */
        for (int i = 0; i < PROBLEMS; i++) {
            int n = snprintf(line, sizeof(line), "cuda:some:cc90 %s t2 %s conv_ref v1 %d 0\n", WEFT_VERSION, problem[i],
                             10 * round + i);
            OK(weft_wisdom_parse(b, line, (size_t)n, NULL));
        }
        OK(weft_wisdom_save(b, path_of("marks"), NULL));
        OK(weft_wisdom_save(a, path_of("marks"), NULL));
        CHECK(weft_wisdom_count(a) == PROBLEMS, "round %d: %zu entries", round, weft_wisdom_count(a));
        for (int i = 0; i < PROBLEMS; i++) {
            snprintf(line, sizeof(line), "%s conv_ref v1 %d 0\n", problem[i], 10 * round + i);
            CHECK(strstr(content("marks"), line), "round %d: no %s in %s", round, line, content("marks"));
            weft_problem p = test_problem(problem[i]);
            OK(weft_wisdom_forget(a, &p));
        }
        OK(weft_wisdom_save(a, path_of("marks"), NULL));
        CHECK(!strstr(content("marks"), "cuda:some"), "round %d: it is back: %s", round, content("marks"));
    }
    weft_ctx_release(a), weft_ctx_release(b);
    remove(path_of("marks"));
}

/* Another thread forgets in the middle of a save, wherever the save calls the allocator. */
static weft_ctx *saved;
static int moment;
static const weft_problem *forgotten;
static weft_status forgot;

static void *forget_now(void *arg) { return forgot = weft_wisdom_forget(saved, forgotten), arg; }
static void maybe_forget(void) {
    pthread_t thread;
    if (!saved || moment-- != 0) return;
    if (pthread_create(&thread, NULL, forget_now, NULL) == 0) pthread_join(thread, NULL);
}
static void *forgetting_alloc(void *user, size_t bytes) { return (void)user, maybe_forget(), malloc(bytes); }
static void forgetting_free(void *user, void *block) { (void)user, maybe_forget(), free(block); }

TEST(forgotten_during_a_save) {
    const weft_problem p = test_problem(small);
    for (int all = 0; all < 2; all++)
        for (int at = 0, left = -1; left < 0; at++) {
            weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
            weft_ctx *ctx = NULL;
            opts.threads = 1, opts.alloc = forgetting_alloc, opts.free = forgetting_free;
            OK(weft_ctx_create(&ctx, &opts));
            remove(path_of("marks"));
            learn(ctx, "cuda:some:cc90", "conv_ref", 50);
            OK(weft_wisdom_save(ctx, path_of("marks"), NULL));
            saved = ctx, moment = at, forgotten = all ? NULL : &p, forgot = WEFT_ERR_INTERNAL;
            const weft_status first = weft_wisdom_save(ctx, path_of("marks"), NULL);
            saved = NULL, left = moment; /* not below 0: the save was over before */
            OK(first);
            if (left >= 0) forgot = weft_wisdom_forget(ctx, forgotten);
            OK(forgot);
            OK(weft_wisdom_save(ctx, path_of("marks"), NULL));
            CHECK(weft_wisdom_count(ctx) == 0 && !strstr(content("marks"), small), "at %d it came back: %s", at,
                  content("marks"));
            weft_ctx_release(ctx);
            CHECK(at < 100, "no end of a save");
        }
    remove(path_of("marks"));
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

/* Names in the folder that contain the text. */
static int files_with(const char *part) {
    char command[512], answer[32] = "";
    snprintf(command, sizeof(command), "ls -A '%s' | grep -cF -- '%s'", folder, part);
    FILE *f = popen(command, "r");
    CHECK(f && fgets(answer, sizeof(answer), f), "%s", command);
    pclose(f);
    return atoi(answer);
}

/* A folder in the way of the file: nothing is left behind. */
TEST(a_failed_save_leaves_nothing) {
    weft_ctx *ctx = test_context(1);
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    CHECK(mkdir(path_of("odd"), 0777) == 0 || errno == EEXIST, "mkdir");
    weft_status s = weft_wisdom_save(ctx, path_of("odd"), NULL);
    CHECK(s == WEFT_ERR_IO, "%s", weft_status_name(s));
    CHECK(weft_wisdom_count(ctx) == 1, "what was known is gone");
    rmdir(path_of("odd"));
    CHECK(files_with("odd.") == 1 && files_with("odd.lock") == 1, "more than the lock is left");
    weft_ctx_release(ctx);
}

/* A device that is full, as far as a process can have one: no file may grow past a limit. What was saved before stays,
 * byte for byte, and nothing else is left. */
TEST(a_full_device_leaves_the_old_file) {
    weft_ctx *ctx = test_context(1);
    struct rlimit before, small_one;
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    OK(weft_wisdom_save(ctx, path_of("full"), NULL));
    char *old = strdup(content("full"));
    for (int i = 0; i < 20; i++) {
        char device[32];
        snprintf(device, sizeof(device), "cpu:n%d:avx2", i);
        learn(ctx, device, "conv_ref", 60);
    }
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "no limit");
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    for (size_t bytes = 0; bytes <= strlen(old) + 200; bytes += strlen(old) + 100) { /* nothing, or a part */
        small_one = (struct rlimit){bytes, before.rlim_max};
        fflush(NULL);
        CHECK(setrlimit(RLIMIT_FSIZE, &small_one) == 0, "%s", strerror(errno));
        const weft_status s = weft_wisdom_save(ctx, path_of("full"), NULL);
        setrlimit(RLIMIT_FSIZE, &before);
        CHECK(s == WEFT_ERR_IO && strstr(weft_last_error(), "cannot be written"), "%s with room for %zu bytes: %s",
              weft_status_name(s), bytes, weft_last_error());
        CHECK(strcmp(content("full"), old) == 0, "with room for %zu bytes it became %s", bytes, content("full"));
        CHECK(files_with("weft-tmp") == 0, "half a file is left");
    }
    signal(SIGXFSZ, handler);
    OK(weft_wisdom_save(ctx, path_of("full"), NULL));
    CHECK(strstr(content("full"), "cpu:n19:avx2"), "%s", content("full"));
    free(old);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- what is there stays */
/* A pipe, and a device, are no files: neither read nor replaced. */
TEST(what_is_no_file) {
    weft_ctx *ctx = test_context(1);
    struct stat st;
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    CHECK(mkfifo(path_of("pipe"), 0600) == 0, "%s", strerror(errno));
    FAILS(weft_wisdom_load(ctx, path_of("pipe"), NULL), WEFT_ERR_IO, "pipe|not a file");
    FAILS(weft_wisdom_save(ctx, path_of("pipe"), NULL), WEFT_ERR_IO, "pipe|not a file");
    CHECK(stat(path_of("pipe"), &st) == 0 && S_ISFIFO(st.st_mode), "the pipe is gone");
    FAILS(weft_wisdom_load(ctx, "/dev/null", NULL), WEFT_ERR_IO, "/dev/null|not a file");
    weft_ctx_release(ctx);
}

/* Bad lines are counted by whatever reads them. */
TEST(bad_lines_of_a_file) {
    weft_ctx *ctx = test_context(1), *other = test_context(1);
    weft_wisdom_report loaded = WEFT_WISDOM_REPORT_INIT, merged = WEFT_WISDOM_REPORT_INIT;
    char text[1024];
    snprintf(text, sizeof(text), "# weft wisdom\nbad\ncpu:two:avx2 %s t1 %s conv_ref v1 60 0\nworse\n", WEFT_VERSION,
             small);
    put("bad", text);
    OK(weft_wisdom_load(ctx, path_of("bad"), &loaded));
    OK(weft_wisdom_save(other, path_of("bad"), &merged));
    CHECK(loaded.bad_lines == 2 && merged.bad_lines == 2 && merged.other_machines == 1,
          "%lld and %lld bad, %lld others", (long long)loaded.bad_lines, (long long)merged.bad_lines,
          (long long)merged.other_machines);
    OK(weft_wisdom_save(other, path_of("bad"), &merged));
    CHECK(merged.bad_lines == 0, "%lld bad lines were written", (long long)merged.bad_lines);
    weft_ctx_release(ctx), weft_ctx_release(other);
}

TEST(what_is_not_wisdom_is_left_alone) {
    static const char *const foreign[] = {"#!/bin/sh\nrm -rf x\n", "a\n", "# notes\n", "{\"json\": 1}"};
    static const char *const good[] = {"", " \n\n", "# weft wisdom: nothing yet\n"};
    weft_ctx *ctx = test_context(1);
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    for (size_t i = 0; i < WEFT__COUNT(foreign); i++) {
        put("bad", foreign[i]);
        FAILS(weft_wisdom_save(ctx, path_of("bad"), NULL), WEFT_ERR_IO, "is not wisdom|bad");
        CHECK(strcmp(content("bad"), foreign[i]) == 0, "it became %s", content("bad"));
    }
    for (size_t i = 0; i < WEFT__COUNT(good); i++) {
        put("bad", good[i]);
        OK(weft_wisdom_save(ctx, path_of("bad"), NULL));
        CHECK(strstr(content("bad"), "cpu:one:avx2"), "%s", content("bad"));
    }
    char line[512]; /* entries without the header, such as a user's own selection of lines */
    snprintf(line, sizeof(line), "cpu:two:avx2 %s t1 %s conv_ref v1 60 0\n", WEFT_VERSION, small);
    put("bad", line);
    OK(weft_wisdom_save(ctx, path_of("bad"), NULL));
    CHECK(strstr(content("bad"), "cpu:one:avx2") && strstr(content("bad"), line), "%s", content("bad"));
    weft_ctx_release(ctx);
}

TEST(mode_and_link_are_kept) {
    weft_ctx *ctx = test_context(1);
    struct stat st;
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    CHECK(mkdir(path_of("folder"), 0777) == 0 || errno == EEXIST, "mkdir");
    put("folder/real", "");
    CHECK(chmod(path_of("folder/real"), 0604) == 0, "chmod");
    CHECK(symlink("folder/real", path_of("link")) == 0, "symlink: %s", strerror(errno));
    mode_t mask = umask(027); /* not even that cuts the mode of a file that is replaced */
    OK(weft_wisdom_save(ctx, path_of("link"), NULL));
    umask(mask);
    CHECK(lstat(path_of("link"), &st) == 0 && S_ISLNK(st.st_mode), "the link is gone");
    CHECK(stat(path_of("folder/real"), &st) == 0 && (st.st_mode & 0777) == 0604, "mode %o", st.st_mode & 0777);
    CHECK(strstr(content("folder/real"), "cpu:one:avx2"), "%s", content("folder/real"));
    remove(path_of("folder/real")); /* the link leads to a file that is not there yet */
    OK(weft_wisdom_save(ctx, path_of("link"), NULL));
    CHECK(strstr(content("folder/real"), "cpu:one:avx2"), "%s", content("folder/real"));
    umask(027);
    remove(path_of("kept"));
    OK(weft_wisdom_save(ctx, path_of("kept"), NULL));
    umask(mask);
    CHECK(stat(path_of("kept"), &st) == 0 && (st.st_mode & 0777) == 0640, "mode %o of a new file", st.st_mode & 0777);
    remove(path_of("folder/real")), remove(path_of("folder/real.lock")), rmdir(path_of("folder"));
    weft_ctx_release(ctx);
}

/* However a link says where the file is, the file is replaced and every link stays. */
TEST(links_of_every_kind) {
    static const struct {
        const char *from, *to; /* "/": an absolute path */
    } links[] = {{"link", "/folder/real"}, {"link", "folder/real"},    {"folder/link", "real"},
                 {"folder/link", "/kept"}, {"folder/link", "../kept"}, {"link", "folder/../kept"}};
    weft_ctx *ctx = test_context(1);
    struct stat st;
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    CHECK(mkdir(path_of("folder"), 0777) == 0 || errno == EEXIST, "mkdir");
    remove(path_of("link"));
    for (size_t i = 0; i < WEFT__COUNT(links); i++)
        for (int exists = 0; exists < 2; exists++) {
            const char *real = strstr(links[i].to, "kept") ? "kept" : "folder/real";
            remove(path_of(real));
            if (exists) put(real, "");
            const char *target = links[i].to[0] == '/' ? path_of(links[i].to + 1) : links[i].to;
            CHECK(symlink(target, path_of(links[i].from)) == 0, "%s", strerror(errno));
            OK(weft_wisdom_save(ctx, path_of(links[i].from), NULL));
            CHECK(lstat(path_of(links[i].from), &st) == 0 && S_ISLNK(st.st_mode), "%s is no link any more",
                  links[i].from);
            CHECK(lstat(path_of(real), &st) == 0 && S_ISREG(st.st_mode), "%s to %s: no file", links[i].from, target);
            CHECK(strstr(content(real), "cpu:one:avx2"), "%s to %s: %s", links[i].from, target, content(real));
            remove(path_of(links[i].from));
        }
    remove(path_of("folder/real")), remove(path_of("folder/real.lock"));
    CHECK(rmdir(path_of("folder")) == 0, "more than the file is left");
    weft_ctx_release(ctx);
}

/* root saves what another user owns: it stays theirs. The lock is for everybody, as far as the mask lets it. */
TEST(owner_and_lock_are_for_others) {
    weft_ctx *ctx = test_context(1);
    struct stat st;
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    for (int i = 0; i < 2; i++) {
        remove(path_of("owned")), remove(path_of("owned.lock"));
        mode_t mask = umask(i ? 027 : 0);
        OK(weft_wisdom_save(ctx, path_of("owned"), NULL));
        umask(mask);
        CHECK(stat(path_of("owned.lock"), &st) == 0 && (st.st_mode & 0777) == (i ? 0640 : 0666), "mode %o of the lock",
              st.st_mode & 0777);
    }
    const uid_t user = geteuid() == 0 ? 12345 : geteuid();
    const gid_t group = geteuid() == 0 ? 12346 : getegid();
    CHECK(chown(path_of("owned"), user, group) == 0, "%s", strerror(errno));
    OK(weft_wisdom_save(ctx, path_of("owned"), NULL));
    CHECK(stat(path_of("owned"), &st) == 0 && st.st_uid == user && st.st_gid == group, "it is now of %d:%d",
          (int)st.st_uid, (int)st.st_gid);
    weft_ctx_release(ctx);
    if (geteuid() != 0) SKIP("only root can give a file away");
}

/* A link laid under a name that could be guessed; and what killed savers left is removed, but nothing else. */
TEST(temporary_files) {
    weft_ctx *ctx = test_context(1);
    char guess[64];
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    put("victim", "precious");
    snprintf(guess, sizeof(guess), "kept.%ld.tmp", (long)getpid());
    CHECK(symlink(path_of("victim"), path_of(guess)) == 0, "symlink");
    put("kept.0123456789abcdef.weft-tmp", "half a");
    put("kept.backup.tmp", "mine");
    static const char *const others[] = {"kept-0123456789abcdef.weft-tmp", "other.0123456789abcdef.weft-tmp",
                                         "kept.0123456789abcde.weft-tmp", "kept.0123456789abcdef.weft-tmp2"};
    for (size_t i = 0; i < WEFT__COUNT(others); i++) put(others[i], "of another file");
    OK(weft_wisdom_save(ctx, path_of("kept"), NULL));
    CHECK(strcmp(content("victim"), "precious") == 0, "written through a link: %s", content("victim"));
    for (size_t i = 0; i < WEFT__COUNT(others); i++) {
        CHECK(strcmp(content(others[i]), "of another file") == 0, "%s is gone", others[i]);
        remove(path_of(others[i]));
    }
    CHECK(files_with("weft-tmp") == 0 && strcmp(content("kept.backup.tmp"), "mine") == 0, "%d left",
          files_with("weft-tmp"));
    remove(path_of(guess)), remove(path_of("kept.backup.tmp"));
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the lock */
static weft_ctx *impatient(void *(*alloc)(void *, size_t), void (*free_it)(void *, void *)) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.threads = 1, opts.lock_seconds = 0.05, opts.alloc = alloc, opts.free = free_it;
    OK(weft_ctx_create(&ctx, &opts));
    learn(ctx, "cpu:one:avx2", "conv_ref", 50);
    return ctx;
}

TEST(a_lock_that_is_held) {
    weft_ctx *ctx = impatient(NULL, NULL);
    int fd = open(path_of("a.lock"), O_RDWR | O_CREAT, 0666);
    CHECK(fd >= 0 && flock(fd, LOCK_EX) == 0, "%s", strerror(errno));
    FAILS(weft_wisdom_save(ctx, path_of("a"), NULL), WEFT_ERR_IO, "locked by another process|0.05 s|lock_seconds");
    flock(fd, LOCK_UN);
    OK(weft_wisdom_save(ctx, path_of("a"), NULL));
    close(fd);
    weft_ctx_release(ctx);
}

static bool armed;
static pid_t child;

static void *forking_alloc(void *user, size_t bytes) {
    (void)user;
    if (armed) { /* in the middle of a save */
        armed = false;
        child = fork();
        while (child == 0) pause();
    }
    return malloc(bytes);
}
static void plain_free(void *user, void *block) {
    (void)user;
    free(block);
}

/* A child of fork shares the open lock file: it must not keep the lock after the parent has saved. */
TEST(a_fork_during_a_save) {
    weft_ctx *ctx = impatient(forking_alloc, plain_free);
    OK(weft_wisdom_save(ctx, path_of("a"), NULL));
    armed = true;
    weft_status first = weft_wisdom_save(ctx, path_of("a"), NULL), second = weft_wisdom_save(ctx, path_of("a"), NULL);
    CHECK(!armed && child > 0, "no fork");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(first == WEFT_OK && second == WEFT_OK, "%s, then %s: %s", weft_status_name(first), weft_status_name(second),
          weft_last_error());
    weft_ctx_release(ctx);
    remove_files();
    CHECK(rmdir(folder) == 0, "%s is not empty", folder);
}
