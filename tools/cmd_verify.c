/* weft verify: every applicable kernel against the reference, on named and on random problems. */
#include <string.h>
#include <unistd.h>

#include "cli.h"

typedef struct verify {
    const cli_command *self;
    const char *kernel, *threads, *device;
    int64_t random, seed;
    double seconds;
    bool cuda;
    int64_t failures;
    uint64_t start, shown;
    harness h;
} verify;

enum { GIVE_UP = 20 }; /* failures after which more say nothing new */

static double elapsed(const verify *v) { return (double)(weft__now_ns() - v->start) * 1e-9; }

static void report(verify *v, const weft_problem *p, uint64_t seed, const char *kernel, const char *why) {
    char text[WEFT_TEXT_MAX];
    harness_text(p, text);
    v->failures++;
    printf("FAIL %s: %s\n  problem: %s\n  repro:   weft verify --seed %llu%s%s --threads %s '%s'\n",
           *kernel ? kernel : "problem text", why, text, (unsigned long long)seed, *kernel ? " --kernel " : "", kernel,
           v->threads, text);
    fflush(stdout);
}

static void check(verify *v, const weft_problem *p, uint64_t seed, bool thorough) {
    harness_ask ask = {.seed = seed, .kernel = v->kernel, .thorough = thorough};
    char why[WEFT_TEXT_MAX * 3];
    if (!harness_round_trip(p, why, sizeof(why))) report(v, p, seed, "", why);
    if (!harness_check(&v->h, p, &ask)) report(v, p, seed, v->h.kernel, v->h.why);
}

static void progress(verify *v, int64_t done) {
    uint64_t now = weft__now_ns();
    if (!isatty(STDERR_FILENO) || now - v->shown < 300000000u) return;
    v->shown = now;
    fprintf(stderr, "\r%lld problems, %lld executions, %lld failures, %.0f s ", (long long)done, (long long)v->h.runs,
            (long long)v->failures, elapsed(v));
}

static const weft__kernel *kernel_named(const char *name) {
    const weft__kernel *const *list = NULL;
    size_t count = weft__kernels(0, &list);
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i]->name, name) == 0) return list[i];
    return NULL;
}

/* Draw i, or with a kernel the first of many draws that it takes. seed: what draws it again. */
static bool draw(verify *v, int64_t i, weft_problem *p, uint64_t *seed) {
    const weft__kernel *k = v->kernel ? kernel_named(v->kernel) : NULL;
    int device = v->cuda ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
    *seed = harness_mix((uint64_t)v->seed, (uint64_t)i);
    if (!k) return harness_stream(p, seed, device, v->h.ctx[0], (uint64_t)i);
    weft__hw hw;
    weft_problem probe = {.device = device};
    if (weft__ctx_hw(v->h.ctx[0], &probe, &hw) != WEFT_OK) return false;
    return harness_random_for(p, seed, device, v->h.ctx[0], k, &hw);
}

static int check_random(verify *v) {
    int64_t i = 0;
    for (; (v->random == 0 || i < v->random) && v->failures < GIVE_UP; i++) {
        if (v->seconds > 0 && elapsed(v) > v->seconds) break;
        weft_problem p = WEFT_PROBLEM_INIT;
        uint64_t seed;
        if (!draw(v, i, &p, &seed))
            return cli_failed(v->self, "random problem %lld of seed %lld could not be drawn: %s", (long long)i,
                              (long long)v->seed, weft_last_error());
        check(v, &p, seed, false);
        progress(v, i);
    }
    if (v->shown) fprintf(stderr, "\n");
    if (v->random && i < v->random)
        printf("stopped after %lld of %lld random problems\n", (long long)i, (long long)v->random);
    return CLI_OK;
}

static int check_named(verify *v, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        int code = cli_problem(v->self, argv[i], &p);
        if (code == CLI_OK && v->kernel) code = cli_kernel(v->self, p.op, v->kernel);
        if (code != CLI_OK) return code;
        if (v->cuda) p.device = WEFT_DEVICE_CUDA;
        weft__hw hw;
        if (weft__ctx_hw(v->h.ctx[0], &p, &hw) != WEFT_OK)
            return cli_failed(v->self, "%s: %s", argv[i], weft_last_error());
        check(v, &p, (uint64_t)v->seed, true);
    }
    return CLI_OK;
}

static const char *plural(int64_t count) { return count == 1 ? "" : "s"; }

static void summary(const verify *v) {
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        const weft__kernel *const *list = NULL;
        size_t count = weft__kernels(op, &list);
        for (size_t i = 0; i < count; i++)
            if (v->h.checked[op][i])
                printf("  %-48s %8lld problem%s\n", list[i]->name, (long long)v->h.checked[op][i],
                       plural(v->h.checked[op][i]));
    }
    printf("%lld problem%s, %lld execution%s, %lld failure%s, %.1f s; largest error %.2f of its bound\n",
           (long long)v->h.problems, plural(v->h.problems), (long long)v->h.runs, plural(v->h.runs),
           (long long)v->failures, plural(v->failures), elapsed(v), v->h.worst);
}

static int known_anywhere(const cli_command *self, const char *kernel) {
    if (kernel_named(kernel)) return CLI_OK;
    return cli_misuse(self, "--kernel: got '%s', allowed: a name from `weft list`", kernel);
}

static int execute(verify *v, int argc, char **argv) {
    int threads[HARNESS_CTX_MAX], count = cli_list(v->threads, threads, HARNESS_CTX_MAX);
    if (!count)
        return cli_misuse(v->self, "--threads: got '%s', allowed: up to %d numbers from 1 to 1024, as in 1,2,7",
                          v->threads, HARNESS_CTX_MAX);
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.workspace_limit = WEFT_NO_LIMIT;
    if (harness_create(&v->h, &opts, threads, count) != WEFT_OK) return cli_failed(v->self, "%s", weft_last_error());
    v->start = weft__now_ns();
    weft_problem probe = {.device = v->cuda ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU};
    weft__hw hw;
    int code = CLI_OK;
    if (weft__ctx_hw(v->h.ctx[0], &probe, &hw) != WEFT_OK)
        code = cli_failed(v->self, "--device: %s", weft_last_error());
    if (code == CLI_OK) code = check_named(v, argc, argv);
    if (code == CLI_OK && (v->random || v->seconds > 0)) code = check_random(v);
    if (code == CLI_OK) summary(v);
    if (code == CLI_OK && !v->h.problems)
        code = cli_failed(v->self, "no kernel asked for applies to any of the problems");
    harness_destroy(&v->h);
    return code != CLI_OK ? code : v->failures ? CLI_FAILED : CLI_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
    static verify v; /* large, and zero to begin with */
    v.self = self;
    v.device = "cpu";
    v.seed = 1;
    const cli_option options[] = {
        {"random", "N", "draw N random problems, every second one for a fast kernel; with --kernel, N that it takes",
         CLI_COUNT, &v.random, 1, 1e15},
        {"seconds", "T", "draw random problems for T seconds", CLI_REAL, &v.seconds, 0, 1e9},
        {"seed", "S", "of problems and data (1)", CLI_COUNT, &v.seed, 0, 0x1p64},
        {"kernel", "NAME", "only this kernel", CLI_TEXT, &v.kernel, 0, 0},
        {"threads", "LIST", "numbers of threads that must give the same bits (1,2,7; on a GPU 1,1: two runs)", CLI_TEXT,
         &v.threads, 0, 0},
        {"device", "cpu|cuda", "where to run; cuda compares with the reference on the CPU (cpu)", CLI_TEXT, &v.device,
         0, 0},
    };
    int code = cli_parse(self, options, WEFT__COUNT(options), &argc, argv);
    if (code != CLI_OK) return code;
    v.cuda = strcmp(v.device, "cuda") == 0;
    if (!v.cuda && strcmp(v.device, "cpu") != 0)
        return cli_misuse(self, "--device: got '%s', allowed: cpu, cuda", v.device);
    if (!v.threads) v.threads = v.cuda ? "1,1" : "1,2,7";
    if (!argc && !v.random && v.seconds <= 0)
        return cli_misuse(self, "nothing to verify, allowed: PROBLEM..., --random N or --seconds T");
    if (v.kernel && (code = known_anywhere(self, v.kernel)) != CLI_OK) return code;
    harness_catch_faults();
    return execute(&v, argc, argv);
}

const cli_command cmd_verify = {
    "verify", "[PROBLEM...] [--random N] [--seconds T] [OPTIONS]", "check kernels against the reference",
    "Every applicable kernel runs on integers (exact kernels must agree exactly), on reals (within a bound\n"
    "that follows from the data type, the length of the sum and the kernel's stated factor) and on NaN and\n"
    "infinity, between guard pages, on poisoned outputs. A failure prints the problem, the kernel, the seed\n"
    "and a command that repeats it.",
    run};
