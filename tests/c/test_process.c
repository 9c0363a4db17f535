/* What surrounds a call: rights of the process, forks, stacks. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static int lines_of(const char *command) {
    int n = 0, c;
    FILE *f = popen(command, "r");
    CHECK(f, "%s", command);
    while ((c = fgetc(f)) != EOF) n += c == '\n';
    pclose(f);
    return n;
}

/* ---------------------------------------------------------------- the environment */
TEST(the_environment_is_read_in_one_place) {
    const char *folders = WEFT_SOURCE "/src " WEFT_SOURCE "/include " WEFT_SOURCE "/tools " WEFT_SOURCE "/python/csrc";
    char command[1024];
    snprintf(command, sizeof(command), "grep -rnw getenv %s", folders);
    CHECK(lines_of(command) == 0, "%s finds some", command);
    snprintf(command, sizeof(command), "grep -rn 'secure_getenv(' %s", folders);
    CHECK(lines_of(command) == 1, "%s finds %d", command, lines_of(command));
}

static const char setuid_name[] = "weft-setuid";

/* Run twice: here, where variables count, and from a_setuid_program, where they do not. */
TEST(variables_and_rights) {
    bool secure = getauxval(AT_SECURE) != 0;
    if (strstr(program_invocation_name, setuid_name) && !secure) SKIP("setuid has no effect here");
    static const char *const names[] = {"WEFT_NVRTC", "WEFT_CACHE_DIR", "XDG_CACHE_HOME", "HOME"};
    for (size_t i = 0; i < WEFT__COUNT(names); i++) {
        setenv(names[i], "/of/the/caller", 1);
        CHECK(!weft__env(names[i]) == secure, "%s is %s", names[i], secure ? "read" : "not read");
    }
    setenv("WEFT_THREADS", "wrong", 1);
    weft_ctx *ctx = NULL;
    weft_status s = weft_ctx_create(&ctx, NULL);
    unsetenv("WEFT_THREADS");
    weft_ctx_release(ctx);
    CHECK((s == WEFT_OK) == secure, "%s with a wrong WEFT_THREADS", weft_status_name(s));
}

TEST(a_setuid_program) {
#ifdef __SANITIZE_ADDRESS__
    SKIP("sanitizers do not start in setuid programs");
#endif
    if (geteuid() != 0) SKIP("only root can make a program that runs as somebody else");
    char folder[] = "/tmp/weft-process-XXXXXX", program[64], command[256];
    CHECK(mkdtemp(folder), "%s", strerror(errno));
    snprintf(program, sizeof(program), "%s/%s", folder, setuid_name);
    snprintf(command, sizeof(command), "cp /proc/%ld/exe %s", (long)getpid(), program);
    CHECK(system(command) == 0 && chown(program, 65534, 65534) == 0 && chmod(program, 04755) == 0, "%s", command);
    snprintf(command, sizeof(command), "%s variables_and_rights", program);
    fflush(NULL);
    int status = system(command);
    remove(program);
    rmdir(folder);
    CHECK(status == 0, "status %d", status);
}

/* ---------------------------------------------------------------- fork */
static void no_work(void *arg, int64_t slot) { (void)arg, (void)slot; }

/* Parent and child are both process 1 of their namespaces: the child must not wait for threads that it does not
 * have. */
static int in_namespaces(void) {
    if (unshare(CLONE_NEWPID) != 0) return 77;
    pid_t first = fork();
    if (first == 0) {
        weft_ctx *ctx = NULL;
        weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
        opts.threads = 3;
        if (getpid() != 1 || weft_ctx_create(&ctx, &opts) != WEFT_OK) _exit(2);
        weft__parallel(ctx, 100, no_work, NULL);
        if (unshare(CLONE_NEWPID) != 0) _exit(3);
        pid_t second = fork();
        if (second == 0) {
            alarm(600);
            if (getpid() != 1) _exit(4);
            weft__parallel(ctx, 100, no_work, NULL);
            weft_ctx_release(ctx);
            _exit(0);
        }
        int status = 1;
        waitpid(second, &status, 0);
        weft_ctx_release(ctx);
        _exit(status == 0 ? 0 : 5);
    }
    int status = 1;
    waitpid(first, &status, 0);
    return status == 0 ? 0 : 1;
}

TEST(a_fork_with_the_same_process_id) {
    if (test_sanitized()) SKIP("sanitizers do not follow threads over a fork, and their allocator may be locked then");
    if (geteuid() != 0) SKIP("only root can make namespaces");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) _exit(in_namespaces());
    int status = 1;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) SKIP("no namespaces here");
    CHECK(status == 0, "status %x", status);
}

/* ---------------------------------------------------------------- stack */
static void ignore_line(void *user, int topic, const char *line) { (void)user, (void)topic, (void)line; }

/* Everything that a caller may do, on the stack that weft.h asks for. */
static void *use_everything(void *arg) {
    static char text[WEFT_TEXT_MAX], room[1 << 16];
    static weft_problem p;
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    size_t *executed = arg;
    opts.threads = 1;
    opts.measure_seconds = 1e-3;
    opts.verbose = WEFT_LOG_ALL;
    opts.log = ignore_line;
    if (weft_ctx_create(&ctx, &opts) != WEFT_OK) return NULL;
    weft_ctx_describe(ctx, room, sizeof(room), NULL);
    for (int op = 1; op < WEFT_OP_COUNT; op++)
        for (uint64_t seed = 0; seed < 40; seed++) {
            weft_plan_opts want = WEFT_PLAN_OPTS_INIT;
            weft_plan *plan = NULL;
            if (!harness_random_of(&p, seed, WEFT_DEVICE_CPU, op)) continue;
            want.mode = seed % 8 ? WEFT_MODE_ESTIMATE : WEFT_MODE_MEASURE;
            want.engines = seed % 4 == 1 ? WEFT_ENGINE_REF : 0;
            weft_problem_format(&p, text, sizeof(text), NULL);
            weft_problem_parse(&p, text);
            weft_problem_parse(&p, "nonsense");
            if (weft_plan_create(&plan, ctx, &p, &want) != WEFT_OK) continue;
            weft_args args = WEFT_ARGS_INIT;
            void *block[WEFT_MAX_TENSORS], *workspace = NULL;
            for (int i = 0; i < p.ntensors; i++) {
                size_t bytes = (weft_tensor_bytes(&p.tensor[i]) + 8191) / 4096 * 4096;
                block[i] = aligned_alloc(4096, bytes);
                args.ptr[p.tensor[i].role] = memset(block[i], 0, bytes);
            }
            size_t bytes = (weft_plan_workspace_bytes(plan) + 127) / 64 * 64;
            workspace = aligned_alloc(64, bytes);
            *executed += weft_execute(plan, &args, workspace, bytes, NULL) == WEFT_OK;
            free(workspace);
            for (int i = 0; i < p.ntensors; i++) free(block[i]);
            weft_plan_release(plan);
        }
    size_t n = 0;
    weft_wisdom_format(ctx, room, sizeof(room), &n);
    weft_wisdom_parse(ctx, room, strlen(room), NULL);
    weft_wisdom_save(ctx, "/tmp/weft-process-wisdom", NULL);
    weft_wisdom_load(ctx, "/tmp/weft-process-wisdom", NULL);
    remove("/tmp/weft-process-wisdom"), remove("/tmp/weft-process-wisdom.lock");
    weft_ctx_release(ctx);
    return NULL;
}

TEST(a_stack_of_64_kb) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    SKIP("sanitizers use more stack");
#endif
    pthread_attr_t attr;
    pthread_t thread;
    size_t executed = 0;
    pthread_attr_init(&attr);
    CHECK(pthread_attr_setstacksize(&attr, 64 << 10) == 0, "no such stack");
    CHECK(pthread_create(&thread, &attr, use_everything, &executed) == 0, "no thread");
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    CHECK(executed > 500, "%zu problems were executed", executed);
}
