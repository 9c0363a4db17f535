/* The command: exit codes, and errors on stderr that say what was wrong and what is allowed. */
#include <ctype.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

static const char good[] = "conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4";
static char folder[] = "/tmp/weft-command-XXXXXX";
static bool has_folder;

/* A folder of our own for the tests that need one. */
static void need_folder(void) {
    if (!has_folder) CHECK(mkdtemp(folder), "no folder");
    has_folder = true;
}

/* Runs the command, both streams into text; P stands for a good problem, D for a folder of our own. */
static int run(const char *arguments, char *text, size_t capacity) {
    char line[4096] = "";
    weft__text t = {line, sizeof(line), 0};
    weft__put(&t, "'%s' ", WEFT_COMMAND);
    for (const char *at = arguments; *at; at++) {
        bool alone = (at == arguments || at[-1] == ' ') && (at[1] == 0 || at[1] == ' ' || at[1] == '/');
        if (*at == 'P' && alone)
            weft__put(&t, "%s", good);
        else if (*at == 'D' && alone)
            weft__put(&t, "%s", folder);
        else
            weft__put(&t, "%c", *at);
    }
    weft__put(&t, " 2>&1");
    FILE *f = popen(line, "r");
    CHECK(f, "no process");
    size_t n = fread(text, 1, capacity - 1, f);
    text[n] = 0;
    while (fgetc(f) != EOF) {}
    int status = pclose(f);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect(const char *arguments, int code, const char *words) {
    static char text[65536];
    int got = run(arguments, text, sizeof(text));
    CHECK(got == code, "weft %s: exit code %d, wanted %d: %.500s", arguments, got, code, text);
    for (const char *at = words; *at;) {
        char word[256];
        size_t n = strcspn(at, "|");
        snprintf(word, sizeof(word), "%.*s", (int)n, at);
        CHECK(strstr(text, word), "weft %s: no \"%s\" in: %.500s", arguments, word, text);
        at += n + (at[n] == '|');
    }
}

TEST(help) {
    static const char *const commands[] = {"info", "list", "plan", "bench", "verify", "tune", "wisdom"};
    expect("", 2, "usage: weft COMMAND");
    expect("--help", 0, "usage: weft COMMAND|verify");
    expect("--version", 0, WEFT_VERSION);
    expect("help", 0, "usage: weft COMMAND");
    expect("help plan", 0, "usage: weft plan PROBLEM|--measure");
    expect("help nonsense", 2, "no command 'nonsense'");
    expect("info --help", 0, "usage: weft info\n");
    expect("nonsense", 2, "no command 'nonsense'|info, list, plan");
    for (size_t i = 0; i < WEFT__COUNT(commands); i++) {
        char arguments[64];
        snprintf(arguments, sizeof(arguments), "%s --help", commands[i]);
        expect(arguments, 0, "usage: weft|exit codes: 0 done, 1 failed, 2 wrong use");
        snprintf(arguments, sizeof(arguments), "%s --nonsense", commands[i]);
        expect(arguments, 2, "no option --nonsense|allowed: ");
    }
}

/* docs/operators.md says what the tables say. */
TEST(operators_page_is_fresh) {
    static char made[65536], kept[65536];
    CHECK(run("list --operators", made, sizeof(made)) == 0, "weft list --operators: %.500s", made);
    FILE *f = fopen(WEFT_SOURCE "/docs/operators.md", "r");
    CHECK(f, "docs/operators.md is missing");
    kept[fread(kept, 1, sizeof(kept) - 1, f)] = 0;
    fclose(f);
    CHECK(strcmp(made, kept) == 0,
          "docs/operators.md is stale: make it anew with weft list --operators > docs/operators.md");
}

TEST(misuse) {
    expect("info x", 2, "got 'x'|usage: weft info; `weft info --help` says more");
    expect("verify --random 1 --seed -1", 2, "--seed: got '-1'|usage: weft verify [PROBLEM...]");
    expect("list P P", 2, "2 problems");
    expect("plan", 2, "0 problems");
    expect("plan conv2d:fwd:f32:nchw:n1c8h56:o8k3", 2,
           "weft plan: problem, column 28: expected 'w' and a number, got ':'\n|   ^");
    expect("plan conv2d:fwd:f32:nchw:n1c8h9w9:o8k3g3", 2, "groups is 3");
    expect("plan --kernel nonsense P", 2, "got 'nonsense'|conv_ref");
    expect("plan --limit -5 P", 2, "--limit: got '-5'|a whole number from 1");
    expect("verify", 2, "nothing to verify");
    expect("verify --random 0", 2, "--random: got '0'");
    expect("verify --random 5x", 2, "--random: got '5x'");
    expect("verify --random", 2, "--random needs");
    expect("verify --random 5 --threads 2,,3", 2, "--threads: got '2,,3'");
    expect("verify --random 5 --device tpu", 2, "--device: got 'tpu', allowed: cpu, cuda");
    expect("verify --random 5 --kernel nonsense", 2, "--kernel: got 'nonsense'");
    expect("verify --seconds nan", 2, "--seconds: got 'nan'");
    expect("bench", 2, "no problem given");
    expect("bench --rounds 0 P", 2, "--rounds: got '0'");
    expect("tune P", 2, "--wisdom is missing");
    expect("tune --wisdom D/w", 2, "no problem given");
    expect("tune --again=yes --wisdom D/w P", 2, "--again takes no value");
    expect("wisdom", 2, "got nothing, allowed: show, merge, forget");
    expect("wisdom burn D/w", 2, "got burn");
    expect("wisdom merge D/w", 2, "merge OUT IN...");
}

TEST(failures) {
    expect("wisdom show D/none", 1, "cannot be read");
    expect("wisdom forget D/none P", 1, "cannot be read");
    expect("list >/dev/full", 1, "");
    expect("bench --json D/none/x.json P", 1, "--json|could not be written");
    expect("tune --wisdom D/none/x P --seconds 0.05", 1, "--wisdom");
    expect("verify --kernel conv_ref__cuda P", 1, "applies to any");
    expect("plan --kernel conv_ref__cuda P", 1, "does not apply: for another device");
}

/* ---------------------------------------------------------------- what is printed is what the library says */
static const char *bytes_text(double v, char text[32]) {
    static const char *const units[] = {"B", "KB", "MB", "GB"};
    int u = 0;
    for (; v >= 1e4; u++) v /= 1e3;
    snprintf(text, 32, "%.4g %s", v, units[u]);
    return text;
}

static const char *time_text(double ns, char text[32]) {
    const char *unit = ns < 1e3 ? "ns" : ns < 1e6 ? "us" : ns < 1e9 ? "ms" : "s";
    snprintf(text, 32, "%.4g %s", ns < 1e3 ? ns : ns < 1e6 ? ns / 1e3 : ns < 1e9 ? ns / 1e6 : ns / 1e9, unit);
    return text;
}

WEFT__PRINTF(2, 3) static void has_line(const char *text, const char *format, ...) {
    char line[WEFT_TEXT_MAX * 2];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    CHECK(strstr(text, line), "no \"%s\" in: %.2000s", line, text);
}

/* The command and the context here: one thread and the scalar kernels, so that both see the same estimates. */
static weft_ctx *same_context(void) {
    weft_ctx *ctx = NULL;
    setenv("WEFT_ISA", "scalar", 1);
    setenv("WEFT_THREADS", "1", 1);
    OK(weft_ctx_create(&ctx, NULL));
    return ctx;
}

static const char *const printed[] = {
    "conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4@cpu",
    "conv2d:fwd:f32:nchw:n4c32h24w24:o32k3p1:bias@cpu",
    "conv2d:bwd_weights:f32:nchw:n2c16h12w12:o16k3p1@cpu",
    "lstm:fwd:f32:dense:t2n3c8o8:@cpu",
};

static void list_and_plan(weft_ctx *ctx, const char *problem) {
    static char listed[65536], planned[65536];
    char arguments[WEFT_TEXT_MAX * 2], a[32], b[32];
    weft_problem p = test_problem(problem);
    weft_plan *plan = NULL;
    weft_cost cost = WEFT_COST_INIT;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    OK(weft_plan_cost(plan, &cost));
    snprintf(arguments, sizeof(arguments), "list %s", problem);
    CHECK(run(arguments, listed, sizeof(listed)) == 0, "weft %s: %.500s", arguments, listed);
    snprintf(arguments, sizeof(arguments), "plan %s", problem);
    CHECK(run(arguments, planned, sizeof(planned)) == 0, "weft %s: %.500s", arguments, planned);
    has_line(planned, "problem:   %s\nkernel:    %s\nwhy:       %s\n", problem, weft_plan_kernel_name(plan),
             weft__plan_choice(plan)->why);
    has_line(planned, "time:      %s (estimated)\n", time_text(cost.ns, a));
    has_line(planned, "work:      %.4g Gflop, %s moved once\n", cost.flops * 1e-9, bytes_text(cost.bytes, a));
    has_line(planned, "workspace: %s\npacked:    %s\n", bytes_text((double)weft_plan_workspace_bytes(plan), a),
             bytes_text((double)weft_plan_packed_bytes(plan), b));
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        char name[WEFT__NAME_MAX];
        OK(weft_kernel_info(ctx, &p, i, &d));
        snprintf(name, sizeof(name), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
        if (!d.applies) {
            has_line(listed, "%-48s %12s %12s  no: %s\n", d.name, "-", "-", d.reason);
            has_line(planned, "  - %-46s refused: %s\n", name, d.reason);
            continue;
        }
        has_line(listed, "%-48s %12s %12s  yes\n", d.name, time_text(d.ns, a), bytes_text((double)d.workspace, b));
        has_line(planned, "  %c %-46s applies, estimate %s\n",
                 strcmp(name, weft_plan_kernel_name(plan)) == 0 ? '*' : ' ', name, time_text(d.ns, a));
    }
    weft_plan_release(plan);
}

/* A kernel that packs and needs workspace, pinned by its name with and without the variant. */
static void pinned(weft_ctx *ctx) {
    static char text[65536];
    weft_problem p = test_problem(printed[1]);
    size_t i = 0, count = weft_kernel_count(ctx, &p);
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    for (; i < count; i++) {
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (d.applies && d.packed && d.workspace > d.packed) break;
    }
    CHECK(i < count, "no kernel packs and needs workspace");
    char arguments[WEFT_TEXT_MAX * 2], a[32], b[32];
    snprintf(arguments, sizeof(arguments), "plan --kernel %s %s", d.name, printed[1]);
    CHECK(run(arguments, text, sizeof(text)) == 0, "weft %s: %.500s", arguments, text);
    has_line(text, "workspace: %s\npacked:    %s\n", bytes_text((double)d.workspace, a),
             bytes_text((double)d.packed, b));
    has_line(text, "why:       pinned\n");
    expect("plan --kernel conv_ref P", 0, /* 3024 flops of 1.5 ns, 168 items of 20 ns, 2 us to start */
           "time:      9.896 us (estimated)|work:      3.024e-06 Gflop, 1488 B moved once");
    snprintf(arguments, sizeof(arguments), "plan --limit %zu %s", d.workspace - 1, printed[1]);
    CHECK(run(arguments, text, sizeof(text)) == 0, "weft %s: %.500s", arguments, text);
    has_line(text, " %-46s applies, estimate %s, workspace over the limit\n", d.name, time_text(d.ns, a));
    snprintf(arguments, sizeof(arguments), "plan --limit %zu %s", d.workspace, printed[1]); /* that is enough */
    CHECK(run(arguments, text, sizeof(text)) == 0, "weft %s: %.500s", arguments, text);
    has_line(text, " %-46s applies, estimate %s\n", d.name, time_text(d.ns, a));
}

TEST(list_and_plan_say_what_the_library_says) {
    static char text[1 << 20];
    weft_ctx *ctx = same_context();
    for (size_t i = 0; i < WEFT__COUNT(printed); i++) list_and_plan(ctx, printed[i]);
    pinned(ctx);
    CHECK(run("list", text, sizeof(text)) == 0, "weft list: %.500s", text);
    for (size_t i = 0; i < weft_kernel_count(ctx, NULL); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, NULL, i, &d));
        has_line(text, "%-48s %-6s %-10s %7d  %s\n", d.name, d.engine, d.isa[0] ? d.isa : "-", d.version,
                 d.exact ? "exact" : "bounded");
    }
    weft_ctx_release(ctx);
}

/* The number behind a key of a JSON object. */
static double field(const char *row, const char *key) {
    char quoted[64];
    snprintf(quoted, sizeof(quoted), "\"%s\": ", key);
    const char *at = strstr(row, quoted);
    CHECK(at, "no %s in %.300s", key, row);
    return strtod(at + strlen(quoted), NULL);
}

static bool near(double a, double b) { return fabs(a - b) <= 1e-3 * fabs(b); }

/* The times are the clock's; how its other figures follow from them is not. */
TEST(bench_figures_agree) {
    static char text[65536], json[65536];
    weft_ctx *ctx = same_context();
    weft_plan *plan = NULL;
    weft_problem p = test_problem(printed[0]);
    weft_cost cost = WEFT_COST_INIT;
    need_folder();
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    OK(weft_plan_cost(plan, &cost));
    CHECK(run("bench --rounds 3 --json D/rows.json P", text, sizeof(text)) == 0, "weft bench: %.500s", text);
    has_line(text, "%s\n  1488 B moved once, 3.024e-06 Gflop, floor ", printed[0]);
    has_line(text, "\n  * %-46s ", weft_plan_kernel_name(plan));
    char path[128];
    snprintf(path, sizeof(path), "%s/rows.json", folder);
    FILE *f = fopen(path, "r");
    CHECK(f, "%s is missing", path);
    json[fread(json, 1, sizeof(json) - 1, f)] = 0;
    fclose(f);
    size_t rows = 0, applies = 0;
    for (char *at = json; (at = strstr(at, "{\"problem\"")); at++, rows++) {
        char kernel[WEFT__NAME_MAX] = "", chosen[8] = "", line[WEFT__NAME_MAX + 8];
        CHECK(sscanf(strstr(at, "\"kernel\""), "\"kernel\": \"%127[^\"]\", \"chosen\": %7[a-z]", kernel, chosen) == 2,
              "%.300s", at);
        const bool taken = strcmp(kernel, weft_plan_kernel_name(plan)) == 0;
        CHECK(strcmp(chosen, taken ? "true" : "false") == 0, "%s: chosen is %s", kernel, chosen);
        snprintf(line, sizeof(line), "\n  %c %s ", taken ? '*' : ' ', kernel);
        CHECK(strstr(text, line), "no row of %s in %.2000s", kernel, text);
        const double ms = field(at, "ms"), floor_ms = field(at, "floor_ms");
        CHECK(field(at, "rounds") == 3 && ms > 0, "%.300s", at);
        CHECK(near(field(at, "gbs") * ms, cost.bytes * 1e-6), "%.300s", at);
        CHECK(near(field(at, "gflops") * ms, cost.flops * 1e-6), "%.300s", at);
        CHECK(floor_ms == fmin(field(at, "copy_ms"), field(at, "streaming_copy_ms")), "%.300s", at);
        CHECK(near(field(at, "share"), floor_ms / ms), "%.300s", at);
        char table[WEFT__NAME_MAX + 64], share[16];
        double gbs = 0, gflops = 0;
        snprintf(table, sizeof(table), "\n  %c %s %%*f %%*s %%lf %%15s %%lf", taken ? '*' : ' ', kernel);
        CHECK(sscanf(strstr(text, line), table, &gbs, share, &gflops) == 3, "no figures of %s: %.2000s", kernel, text);
        CHECK(fabs(gbs - field(at, "gbs")) <= 0.051 && fabs(gflops - field(at, "gflops")) <= 0.051, "%s: %g %g, %.300s",
              kernel, gbs, gflops, at);
    }
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        applies += d.applies;
    }
    CHECK(rows == applies, "%zu rows, %zu kernels apply", rows, applies);
    expect("bench --calls 2 --rounds 1 --kernel batch_norm_ref batch_norm1d:fwd:f32:ncw:n2c3w4:train1", 0,
           "batch_norm_ref: weft_execute |the kernel alone ");
    expect("bench --regret --rounds 1 P", 0, "worst |1 choices over 1.15 of the best");
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

TEST(wisdom_shows_what_the_file_has) {
    char path[128], device[160], words[2048];
    weft__hw hw;
    need_folder();
    weft_ctx_release(same_context());
    weft__hw_detect(&hw);
    weft__hw_limit(&hw, WEFT__SCALAR);
    weft__device_name(&hw, WEFT_DEVICE_CPU, device, sizeof(device));
    snprintf(path, sizeof(path), "%s/given", folder);
    FILE *f = fopen(path, "w");
    CHECK(f, "%s", path);
    fprintf(f, "# weft wisdom: device version threads problem kernel\n%s %s t1 %s conv_ref v1 123456 20480\nno line\n",
            device, WEFT_VERSION, printed[0]);
    fprintf(f, "cpu:other:avx2 %s t4 %s conv_ref v1 77 0\n", WEFT_VERSION, printed[2]);
    fprintf(f, "cpu:other:avx2 %s t8 %s conv_ref v1 78 0\n", WEFT_VERSION, printed[2]);
    fclose(f);
    static char text[65536];
    CHECK(run("wisdom show D/given", text, sizeof(text)) == 0, "%.500s", text);
    snprintf(words, sizeof(words),
             "%s: 1 entries for this machine, 2 for others, 1 bad lines\n  %s\n    %-46s %10s  workspace 20.48 KB, t1, "
             "%s\n  %s\n    %-46s %10s  workspace 0 B, t4, cpu:other:avx2\n  %s\n    %-46s %10s  workspace 0 B, t8, "
             "cpu:other:avx2\n",
             path, printed[0], "conv_ref", "123.5 us", device, printed[2], "conv_ref", "77 ns", printed[2], "conv_ref",
             "78 ns");
    CHECK(strcmp(text, words) == 0, "%s instead of %s", text, words);
    expect("wisdom merge D/merged D/given", 0, "given: 1 bad lines skipped|merged: 3 entries\n");
    expect("plan --wisdom D/merged P", 0, "why:       wisdom\ntime:      123.5 us (measured)\n");
    snprintf(words, sizeof(words), "wisdom forget D/merged %s", printed[2]);
    expect(words, 0, "merged: 2 entries forgotten\n");
    expect("wisdom show D/merged", 0, "1 entries for this machine, 0 for others, 0 bad lines");
}

static void lacks(const char *arguments, const char *word) {
    static char text[65536];
    CHECK(run(arguments, text, sizeof(text)) == 0, "weft %s: %.500s", arguments, text);
    CHECK(!strstr(text, word), "weft %s: \"%s\" in %.500s", arguments, word, text);
}

/* A problem for which there is one kernel besides the reference: to measure it takes no time, and it is known then. */
TEST(measuring_is_asked_for) {
    static const char one[] = "relu2d:fwd:f32:nchw:n1c2h3w4@cpu";
    char line[WEFT_TEXT_MAX], path[128];
    need_folder();
    weft_ctx_release(same_context());
    snprintf(line, sizeof(line), "plan %s", one);
    expect(line, 0, "why:       only\n|(estimated)");
    snprintf(line, sizeof(line), "plan --measure %s", one);
    expect(line, 0, "why:       wisdom\n|(measured)");
    snprintf(path, sizeof(path), "%s/tuned", folder);
    FILE *f = fopen(path, "w");
    CHECK(f, "%s", path);
    for (int i = 1; i <= 3; i++) fprintf(f, "cpu:other:avx2 %s t%d %s relu_ref v1 77 0\n", WEFT_VERSION, i, one);
    fclose(f);
    snprintf(line, sizeof(line), "tune %s --wisdom D/tuned --threads 5", one);
    lacks(line, "known before");
    expect(line, 0, "tuned: 1 entries for this machine, 3 for others\n|known before; --again measures anew");
    snprintf(line, sizeof(line), "tune %s --wisdom D/tuned --threads 5 --again", one);
    expect("wisdom show D/tuned", 0, "tuned: 1 entries for this machine, 3 for others, 0 bad lines|, t5, cpu:");
    lacks(line, "known before"); /* and what others know of the problem is forgotten with it */
    expect("wisdom show D/tuned", 0, "tuned: 1 entries for this machine, 0 for others, 0 bad lines|, t5, cpu:");
    snprintf(line, sizeof(line), "tune %s --wisdom D/tuned", one);
    lacks(line, "known before");
    expect("wisdom show D/tuned", 0, "tuned: 2 entries for this machine|, t5, cpu:|, t1, cpu:");
}

TEST(info_is_the_description) {
    static char said[65536], want[65536];
    weft_ctx *ctx = same_context();
    CHECK(run("info", said, sizeof(said)) == 0, "weft info: %.500s", said);
    OK(weft_ctx_describe(ctx, want, sizeof(want), NULL));
    CHECK(strcmp(said, want) == 0, "%s instead of %s", said, want);
    weft_ctx_release(ctx);
}

TEST(passes_and_sets_of_the_bench) {
    expect("bench --rounds 1 --kernel relu_ref relu1d:train:f32:ncw:n1c2w3", 0,
           "relu1d:fwd:f32:ncw:n1c2w3@cpu\n|relu1d:bwd:f32:ncw:n1c2w3@cpu\n");
    expect("bench --set nonsense", 2, "--set: got 'nonsense', allowed: |cpu, |gpu");
    expect("bench --kernel conv_ref relu1d:fwd:f32:ncw:n1c2w3", 2, "--kernel: got 'conv_ref'|relu_ref");
    expect("bench --calls 2 --kernel conv_ref__cuda P", 1, "does not apply: for another device");
    expect("verify --seconds 0.01", 0, " 0 failures, ");
    expect("verify --seconds 1000 --random 2 --threads 1", 0, "2 problems, ");
}

/* The mark stands below the column that the error names. */
TEST(the_mark_below_a_wrong_problem) {
    static const char *const wrong[] = {"conf2d:fwd", "conv2d:fwd:f33:nchw:n1c8h9w9:o8k3",
                                        "conv2d:fwd:f32:nchw:n1c8h56:o8k3", "conv2d:fwd:f32:nchw:n1c8h9w9:o8k3:relu+"};
    for (size_t i = 0; i < WEFT__COUNT(wrong); i++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        char arguments[256], text[2048], want[2048];
        int column = 0;
        FAILS(weft_problem_parse(&p, wrong[i]), WEFT_ERR_SYNTAX, "column");
        CHECK(sscanf(weft_last_error(), "problem, column %d", &column) == 1, "%s", weft_last_error());
        snprintf(arguments, sizeof(arguments), "plan '%s'", wrong[i]);
        CHECK(run(arguments, text, sizeof(text)) == 2, "%s", text);
        snprintf(want, sizeof(want), "weft plan: %s\n  %s\n  %*s\n", weft_last_error(), wrong[i], column, "^");
        CHECK(strcmp(text, want) == 0, "%s instead of %s", text, want);
    }
}

/* "--name value" and "--name=value" are one; behind "--" nothing is an option. */
TEST(spellings_of_options) {
    static const char *const same[][2] = {
        {"plan --kernel conv_ref P", "plan --kernel=conv_ref P"},
        {"plan --limit 1 P", "plan --limit=1 P"},
        {"plan --kernel conv_ref P", "plan --kernel conv_ref -- P"},
        {"plan P --kernel conv_ref", "plan --kernel conv_ref P"},
        {"plan --limit 1x P", "plan --limit=1x P"},
        {"bench --rounds 0 P", "bench --rounds=0 P"},
        {"verify --random 5 --threads 2,,3", "verify --random=5 --threads=2,,3"},
        {"verify --seconds nan", "verify --seconds=nan"},
    };
    static char text[2][65536];
    for (size_t i = 0; i < WEFT__COUNT(same); i++) {
        const int first = run(same[i][0], text[0], sizeof(text[0])), second = run(same[i][1], text[1], sizeof(text[1]));
        CHECK(first == second && strcmp(text[0], text[1]) == 0, "weft %s gave %d: %.300s; weft %s gave %d: %.300s",
              same[i][0], first, text[0], same[i][1], second, text[1]);
    }
    expect("plan -- --kernel", 2, "problem, column 1|  --kernel\n");
    expect("list -- --operators", 2, "problem, column 1|  --operators\n");
    expect("plan -- P --help", 2, "got 2 problems");
    expect("verify --random=3 --seed=3 --threads=1", 0, "3 problems");
    expect("bench --rounds=1 --kernel=conv_ref P", 0, " conv_ref ");
}

/* Each option has its name, what stands for its value, and a text. */
TEST(help_says_every_option) {
    static const char *const options[][2] = {
        {"list", "operators"},      {"plan", "kernel NAME"},       {"plan", "measure"},     {"plan", "limit BYTES"},
        {"plan", "wisdom FILE"},    {"bench", "kernel NAME"},      {"bench", "rounds N"},   {"bench", "threads N"},
        {"bench", "set NAME"},      {"bench", "regret"},           {"bench", "calls N"},    {"bench", "json FILE"},
        {"verify", "random N"},     {"verify", "seconds T"},       {"verify", "seed S"},    {"verify", "kernel NAME"},
        {"verify", "threads LIST"}, {"verify", "device cpu|cuda"}, {"tune", "wisdom FILE"}, {"tune", "again"},
        {"tune", "seconds T"},      {"tune", "threads N"},
    };
    static char text[65536];
    for (size_t i = 0; i < WEFT__COUNT(options); i++) {
        char arguments[64], left[64];
        snprintf(arguments, sizeof(arguments), "%s --help", options[i][0]);
        CHECK(run(arguments, text, sizeof(text)) == 0, "weft %s: %.500s", arguments, text);
        snprintf(left, sizeof(left), "\n  --%-18s ", options[i][1]);
        const char *at = strstr(text, left);
        CHECK(at && isalpha((unsigned char)at[strlen(left)]), "weft %s: no \"%s\" with a text: %s", arguments, left,
              text);
    }
}

TEST(a_walk) {
    need_folder();
    expect("info", 0, "isa: |threads: |cuda: ");
    expect("list", 0, "conv_ref");
    expect("list P", 0, "conv_ref|yes|no: ");
    expect("plan P", 0, "problem:|kernel:|why:       estimate|refused: ");
    expect("plan --kernel conv_ref P", 0, "conv_ref\n|pinned");
    expect("verify P --seed 18446744073709551615", 0, "1 problem, |0 failures");
    /* integers, reals and specials in three places, with three numbers of threads; reals are bounded by one run more */
    expect("verify P --kernel conv_ref", 0, "1 problem, 42 executions, 0 failures");
    expect("verify --random 20 --seed 3 --threads 1,3", 0, "20 problems|0 failures");
    expect("bench --rounds 1 --kernel conv_ref --json D/x.json P", 0, "conv_ref|floor");
    expect("tune P --wisdom D/w --seconds 0.1", 0, "conv2d:fwd");
    expect("tune P --wisdom D/w --seconds 0.1", 0, "known before");
    expect("wisdom show D/w", 0, "0 bad lines|conv2d:fwd");
    expect("tune P dgmm:fwd:f32:dense:n1h2w2:side1@cuda63 --wisdom D/part --seconds 0.1", 1, "weft tune: ");
    expect("wisdom show D/part", 0, "0 bad lines|conv2d:fwd"); /* what came before the failure is kept */
    expect("wisdom merge D/w2 D/w", 0, "entries");
    expect("plan --wisdom D/w2 P", 0, "why:       wisdom|(measured)");
    expect("wisdom forget D/w2 P", 0, "forgotten");
    expect("wisdom show D/w2", 0, "0 entries for this machine");
    char clean[128];
    snprintf(clean, sizeof(clean), "rm -rf '%s'", folder);
    CHECK(system(clean) == 0, "%s is left", folder);
}
