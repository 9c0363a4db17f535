/* weft bench on a clock that the test moves: what is printed and written follows from the times. The program has the
 * command in it, linked so that it reads this clock (weft__now_ns). */
#include <unistd.h>

#include "cli.h"
#include "test.h"

static const char text[] = "conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4@cpu";
static const char *const in_a_set[] = {text, NULL};
const cli_set cli_sets[] = {{"short", in_a_set}, {NULL, NULL}};

/* ---------------------------------------------------------------- the clock */
/* The command reads it in pairs: of each kernel once to warm up, and in each round, then of the two copies. */
enum { KERNELS = 64, ROUNDS = 5, REGULAR = 2500, STREAMING = 2000, SLOW = 200000000 };
static struct {
    uint64_t now, ns[3][KERNELS]; /* of the first, second and third problem */
    int kernels, problem, round, at, calls;
    bool inside, slow;
} bed;

static uint64_t duration(void) {
    if (bed.calls) return (uint64_t)bed.calls * (bed.at % 2 ? 600 : 1000) + (bed.round == 1 ? 0 : 5000);
    if (bed.slow && bed.at == 0) return SLOW;
    if (bed.round < 0) return 1000;
    if (bed.at >= bed.kernels) return bed.at == bed.kernels ? REGULAR : STREAMING;
    return bed.ns[bed.problem][bed.at] * (bed.round == 1 ? 9 : 1); /* the median does not see it */
}

static void next(void) {
    const int last = bed.calls ? 2 : bed.kernels + (bed.round < 0 ? 0 : 2);
    if (++bed.at < last) return;
    bed.at = 0, bed.round++;
    if (bed.round == ROUNDS) bed.round = bed.calls ? 0 : -1, bed.problem++;
    if (bed.slow && bed.round >= 3) bed.at = 1; /* it takes part in three rounds */
}

uint64_t __wrap_weft__now_ns(void);
uint64_t __wrap_weft__now_ns(void) {
    if (bed.inside) bed.now += duration(), next();
    bed.inside = !bed.inside;
    return bed.now;
}

void __wrap_harness_empty_caches(weft_ctx *ctx); /* nothing is measured here */
void __wrap_harness_empty_caches(weft_ctx *ctx) { (void)ctx; }

/* ---------------------------------------------------------------- the command */
static char said[1 << 16];

static void bench(const char *arguments) {
    char line[512], *argv[16], *rest = NULL;
    int argc = 0;
    snprintf(line, sizeof(line), "%s", arguments);
    for (char *word = strtok_r(line, " ", &rest); word && argc < 16; word = strtok_r(NULL, " ", &rest))
        argv[argc++] = word;
    FILE *file = tmpfile();
    CHECK(file, "no file");
    fflush(stdout);
    const int old = dup(1);
    dup2(fileno(file), 1);
    const int code = cmd_bench.run(&cmd_bench, argc, argv);
    fflush(stdout);
    dup2(old, 1);
    close(old);
    rewind(file);
    said[fread(said, 1, sizeof(said) - 1, file)] = 0;
    fclose(file);
    CHECK(code == CLI_OK, "weft bench %s: %d", arguments, code);
}

WEFT__PRINTF(1, 2) static void says(const char *format, ...) {
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    CHECK(strstr(said, line), "no \"%s\" in %.3000s", line, said);
}

/* The names of the kernels that take part, and the number of the one that is chosen. */
static char name[KERNELS][WEFT__NAME_MAX];
static weft_cost cost;
static int begin(bool regret) {
    weft_problem p = test_problem(text);
    weft_ctx *ctx = NULL;
    weft_plan *plan = NULL;
    int chosen = -1;
    memset(&bed, 0, sizeof(bed));
    bed.round = -1;
    cost = (weft_cost)WEFT_COST_INIT;
    OK(weft_ctx_create(&ctx, NULL));
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    OK(weft_plan_cost(plan, &cost));
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (!d.applies || (regret && strcmp(d.engine, "ref") == 0)) continue;
        CHECK(bed.kernels < KERNELS, "more kernels than the test has room for");
        char *to = name[bed.kernels];
        snprintf(to, WEFT__NAME_MAX, "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
        if (strcmp(to, weft_plan_kernel_name(plan)) == 0) chosen = bed.kernels;
        bed.kernels++;
    }
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    CHECK(chosen >= 0 && bed.kernels > 1, "%d kernels", bed.kernels);
    return chosen;
}

TEST(the_table_and_the_rows) {
    static char json[1 << 16], file[] = "/tmp/weft-bench-XXXXXX", arguments[256];
    const int chosen = begin(false), fd = mkstemp(file);
    CHECK(fd >= 0, "no file");
    for (int i = 0; i < bed.kernels; i++) bed.ns[0][i] = 4000 + 2000 * (uint64_t)i;
    snprintf(arguments, sizeof(arguments), "--rounds 5 --threads 1 --json %s %s", file, text);
    bench(arguments);
    FILE *f = fdopen(fd, "r");
    json[f ? fread(json, 1, sizeof(json) - 1, f) : 0] = 0;
    if (f) fclose(f);
    remove(file);
    says("%s\n  1488 B moved once, %.4g Gflop, floor 2 us (copy %.1f GB/s regular, %.1f streaming)\n", text,
         cost.flops * 1e-9, cost.bytes / REGULAR, cost.bytes / STREAMING);
    for (int i = 0; i < bed.kernels; i++) {
        char row[1024], time[32], share[16];
        const double ns = (double)bed.ns[0][i];
        snprintf(time, sizeof(time), "%.4g us", ns * 1e-3);
        snprintf(share, sizeof(share), "%.0f%%", 100 * STREAMING / ns);
        says("\n  %c %-46s %10s %8.1f %6s %9.1f %7d\n", i == chosen ? '*' : ' ', name[i], time, cost.bytes / ns, share,
             cost.flops / ns, ROUNDS);
        snprintf(
            row, sizeof(row),
            "{\"problem\": \"%s\", \"kernel\": \"%s\", \"chosen\": %s, \"ms\": %.6g, \"rounds\": %d, \"gbs\": %.5g, "
            "\"gflops\": %.5g, \"floor_ms\": 0.002, \"copy_ms\": 0.0025, \"streaming_copy_ms\": 0.002, \"share\": "
            "%.4g}",
            text, name[i], i == chosen ? "true" : "false", ns * 1e-6, ROUNDS, cost.bytes / ns, cost.flops / ns,
            STREAMING / ns);
        CHECK(strstr(json, row), "no %s in %.3000s", row, json);
    }
}

TEST(a_slow_kernel_takes_part_in_three_rounds) {
    begin(false);
    bed.slow = true;
    for (int i = 0; i < bed.kernels; i++) bed.ns[0][i] = 4000;
    bench("--rounds 5 --threads 1 --set short");
    says(" %-46s %10s %8.1f %6s %9.1f %7d\n", name[0], "200 ms", cost.bytes / SLOW, "0%", cost.flops / SLOW, 3);
    says(" %-46s %10s %8.1f %6s %9.1f %7d\n", name[1], "4 us", cost.bytes / 4000, "50%", cost.flops / 4000, ROUNDS);
}

/* The choice is the best; a tenth slower than the best; two and a half times as slow. */
TEST(regret_is_the_choice_over_the_best) {
    static const uint64_t best[] = {10000, 10000, 4000}, taken[] = {10000, 11000, 10000};
    char arguments[512];
    const int chosen = begin(true), other = chosen ? 0 : 1;
    for (int problem = 0; problem < 3; problem++)
        for (int i = 0; i < bed.kernels; i++)
            bed.ns[problem][i] = i == chosen ? taken[problem] : i == other && problem ? best[problem] : 50000;
    snprintf(arguments, sizeof(arguments), "--regret --rounds 5 --threads 1 %s %s %s", text, text, text);
    bench(arguments);
    says(" 1.00  %-72s %s 10 us\n", text, name[chosen]);
    says(" 1.10  %-72s %s 11 us, best %s 10 us\n", text, name[chosen], name[other]);
    says(" 2.50! %-72s %s 10 us, best %s 4 us\n", text, name[chosen], name[other]);
    says("worst 2.50; 1 of 3 choices over 1.15 of the best\n");
}

TEST(what_a_call_costs_beyond_the_kernel) {
    begin(false);
    bed.calls = 7, bed.round = 0;
    bench("--calls 7 --rounds 5 --threads 1 --kernel batch_norm_ref batch_norm1d:fwd:f32:ncw:n2c3w4:train1");
    says("batch_norm_ref: weft_execute 1000 ns, the kernel alone 600 ns, beyond it 400 ns\n");
}
