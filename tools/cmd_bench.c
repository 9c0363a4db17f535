/* weft bench: how long each kernel takes, beside the floor measured in the same rounds. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { ROUNDS_MAX = 1001, LONG_ROUNDS = 3 };
#define REGRET 1.15
#define LONG_NS 1e8 /* a kernel slower than this takes part in fewer rounds */

typedef struct entry { /* one kernel on one problem */
    weft_plan *plan;
    harness_buffer workspace;
    double ns[ROUNDS_MAX];
    size_t rounds;
    double median;
} entry;

typedef struct bench {
    const cli_command *self;
    const char *kernel, *json, *set;
    int64_t rounds, threads, calls; /* calls: time the host's side of weft_execute with so many; 0: no */
    bool regret;                    /* only the table of choices */
    double worst;                   /* time of the planner's choice over that of the fastest kernel */
    int64_t over, many;             /* problems with a choice over REGRET times the best; with a choice */
    weft_ctx *ctx;
    FILE *out;
    bool comma;
    harness_buffer data[WEFT_ROLE_COUNT];
    entry *entries;
    size_t count;
    double regular, streaming; /* floors, ns; 0: not measured */
} bench;

/* ---------------------------------------------------------------- setting up */
static int add_kernels(bench *b, const weft_problem *p) {
    size_t count = weft_kernel_count(b->ctx, p);
    b->count = 0;
    b->entries = calloc(count ? count : 1, sizeof(*b->entries));
    if (!b->entries) return cli_failed(b->self, "out of memory");
    for (size_t i = 0; i < count; i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(b->ctx, p, i, &d) != WEFT_OK) return cli_failed(b->self, "%s", weft_last_error());
        char name[WEFT__NAME_MAX];
        snprintf(name, sizeof(name), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
        if (b->kernel ? strcmp(b->kernel, d.name) && strcmp(b->kernel, name) : !d.applies) continue;
        if (b->regret && strcmp(d.engine, "ref") == 0 && b->count) continue; /* never chosen, and slow */
        weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
        opts.kernel = name;
        opts.workspace_limit = WEFT_NO_LIMIT;
        entry *e = &b->entries[b->count];
        if (weft_plan_create(&e->plan, b->ctx, p, &opts) != WEFT_OK)
            return cli_failed(b->self, "%s", weft_last_error());
        b->count++;
        if (!harness_open_bytes(&e->workspace, weft_plan_workspace_bytes(e->plan), 64, HARNESS_START))
            return cli_failed(b->self, "out of memory");
    }
    return b->count ? CLI_OK : cli_failed(b->self, "no kernel applies");
}

static int add_data(bench *b, const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++) {
        harness_buffer *d = &b->data[p->tensor[i].role];
        if (!harness_open(d, &p->tensor[i], HARNESS_START))
            return cli_failed(b->self, "out of memory for %s", weft__role_name(p->tensor[i].role));
        harness_fill_input(p, d, HARNESS_REALS, (uint64_t)i);
    }
    return CLI_OK;
}

static void drop(bench *b) {
    for (size_t i = 0; i < b->count; i++) {
        weft_plan_release(b->entries[i].plan);
        harness_close(&b->entries[i].workspace);
    }
    free(b->entries);
    b->entries = NULL;
    b->count = 0;
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) harness_close(&b->data[role]);
}

/* ---------------------------------------------------------------- timing */
static weft_status once(bench *b, entry *e, double *ns) {
    const weft_problem *p = weft_plan_problem(e->plan);
    weft_args args = WEFT_ARGS_INIT;
    for (int i = 0; i < p->ntensors; i++) args.ptr[p->tensor[i].role] = b->data[p->tensor[i].role].at;
    uint64_t start = weft__now_ns();
    weft_status s = weft_execute(e->plan, &args, e->workspace.at, weft_plan_workspace_bytes(e->plan), NULL);
    *ns = (double)(weft__now_ns() - start);
    return s;
}

/* Kernels and floors take turns, so that a slow spell of the machine meets all of them. */
static int time_cpu(bench *b, const weft_problem *p) {
    double in = 0, out = 0, *regular = calloc(2 * (size_t)b->rounds, sizeof(double)), *streaming = regular + b->rounds;
    if (!regular) return cli_failed(b->self, "out of memory");
    weft_status s = WEFT_OK;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        *(weft__is_output(p, t->role) ? &out : &in) += (double)weft__numel(t) * (double)weft__dtype_size(t->dtype);
    }
    for (size_t i = 0; i < b->count && s == WEFT_OK; i++) s = once(b, &b->entries[i], &b->entries[i].median); /* warm */
    for (int64_t round = 0; round < b->rounds && s == WEFT_OK; round++) {
        for (size_t i = 0; i < b->count && s == WEFT_OK; i++) {
            entry *e = &b->entries[i];
            if (e->median > LONG_NS && round >= LONG_ROUNDS) continue;
            harness_empty_caches(b->ctx);
            s = once(b, e, &e->ns[e->rounds++]);
        }
        regular[round] = harness_copy_ns(b->ctx, (size_t)in, (size_t)out, false);
        streaming[round] = harness_copy_ns(b->ctx, (size_t)in, (size_t)out, true);
    }
    for (size_t i = 0; i < b->count; i++)
        if (b->entries[i].rounds) b->entries[i].median = harness_median(b->entries[i].ns, b->entries[i].rounds);
    b->regular = harness_median(regular, (size_t)b->rounds);
    b->streaming = harness_median(streaming, (size_t)b->rounds);
    free(regular);
    return s == WEFT_OK ? CLI_OK : cli_failed(b->self, "%s", weft_last_error());
}

/* What weft_execute costs beyond the kernel: both are called `calls` times on warm data, in turn; the least of the
 * rounds counts. */
static int time_calls(bench *b, const weft_problem *p) {
    entry *e = &b->entries[0];
    const weft__choice *c = weft__plan_choice(e->plan);
    weft_args args = WEFT_ARGS_INIT;
    double least[2] = {HUGE_VAL, HUGE_VAL};
    weft__hw hw;
    if (p->device != WEFT_DEVICE_CPU || c->d.packed)
        return cli_failed(b->self, "--calls: %s packs weights or runs on a GPU, allowed: a CPU kernel that does not",
                          c->kernel->name);
    if (weft__ctx_hw(b->ctx, p, &hw) != WEFT_OK) return cli_failed(b->self, "%s", weft_last_error());
    for (int i = 0; i < p->ntensors; i++) args.ptr[p->tensor[i].role] = b->data[p->tensor[i].role].at;
    const weft__exec direct = {
        .p = p, .hw = &hw, .ctx = b->ctx, .params = c->d.params, .ptr = args.ptr, .workspace = e->workspace.at};
    for (int64_t round = 0; round < b->rounds; round++)
        for (int side = 0; side < 2; side++) {
            weft_status s = WEFT_OK;
            uint64_t start = weft__now_ns();
            for (int64_t i = 0; i < b->calls && s == WEFT_OK; i++)
                s = side ? c->kernel->run(&direct)
                         : weft_execute(e->plan, &args, e->workspace.at, weft_plan_workspace_bytes(e->plan), NULL);
            if (s != WEFT_OK) return cli_failed(b->self, "%s", weft_last_error());
            least[side] = fmin(least[side], (double)(weft__now_ns() - start) / (double)b->calls);
        }
    printf("%s: weft_execute %.0f ns, the kernel alone %.0f ns, beyond it %.0f ns\n", weft_plan_kernel_name(e->plan),
           least[0], least[1], least[0] - least[1]);
    return CLI_OK;
}

/* The engine's own timer: events around each run, the cache flushed before it. No floor is measured here. */
static int time_cuda(bench *b, const weft_problem *p) {
    weft__hw hw;
    if (weft__ctx_hw(b->ctx, p, &hw) != WEFT_OK) return cli_failed(b->self, "%s", weft_last_error());
    for (size_t i = 0; i < b->count; i++)
        if (weft__measure(b->ctx, p, &hw, weft__plan_choice(b->entries[i].plan), HUGE_VAL, 2, &b->entries[i].median) !=
            WEFT_OK)
            return cli_failed(b->self, "%s", weft_last_error());
    b->regular = b->streaming = 0;
    return CLI_OK;
}

/* ---------------------------------------------------------------- what is printed */
static void print_table(const bench *b, const weft_problem *p, const char *text, const char *chosen) {
    char room[32], time[32];
    double bytes = weft__bytes(p), flops = weft__flops(p), floor = fmin(b->regular, b->streaming);
    printf("%s\n  %s moved once, %.4g Gflop", text, cli_bytes(bytes, room), flops * 1e-9);
    if (floor > 0) {
        printf(", floor %s", cli_time(floor, time));
        printf(" (copy %.1f GB/s regular, %.1f streaming)", bytes / b->regular, bytes / b->streaming);
    }
    printf("\n    %-46s %10s %8s %6s %9s %7s\n", "kernel", "time", "GB/s", "floor", "Gflop/s", "rounds");
    for (size_t i = 0; i < b->count; i++) {
        const entry *e = &b->entries[i];
        const char *name = weft_plan_kernel_name(e->plan);
        char share[16] = "-";
        if (floor > 0) snprintf(share, sizeof(share), "%.0f%%", 100 * floor / e->median);
        printf("  %c %-46s %10s %8.1f %6s %9.1f %7zu\n", strcmp(name, chosen) == 0 ? '*' : ' ', name,
               cli_time(e->median, time), bytes / e->median, share, flops / e->median, e->rounds);
    }
}

/* One line: what the planner takes beside the fastest. */
static void print_regret(bench *b, const char *text, const char *chosen) {
    const entry *best = b->entries, *taken = NULL;
    char time[2][32];
    for (size_t i = 0; i < b->count; i++) {
        if (b->entries[i].median < best->median) best = &b->entries[i];
        if (strcmp(weft_plan_kernel_name(b->entries[i].plan), chosen) == 0) taken = &b->entries[i];
    }
    if (!taken) return;
    const double regret = taken->median / best->median;
    b->many++;
    b->over += regret > REGRET;
    b->worst = fmax(b->worst, regret);
    printf("%5.2f%c %-72s %s %s", regret, regret > REGRET ? '!' : ' ', text, chosen, cli_time(taken->median, time[0]));
    if (best != taken) printf(", best %s %s", weft_plan_kernel_name(best->plan), cli_time(best->median, time[1]));
    printf("\n");
}

static void write_json(bench *b, const weft_problem *p, const char *text, const char *chosen) {
    double bytes = weft__bytes(p), flops = weft__flops(p), floor = fmin(b->regular, b->streaming);
    for (size_t i = 0; i < b->count; i++) {
        const entry *e = &b->entries[i];
        const char *name = weft_plan_kernel_name(e->plan);
        fprintf(b->out,
                "%s  {\"problem\": \"%s\", \"kernel\": \"%s\", \"chosen\": %s, \"ms\": %.6g, \"rounds\": %zu, \"gbs\": "
                "%.5g, \"gflops\": %.5g, ",
                b->comma ? ",\n" : "", text, name, strcmp(name, chosen) == 0 ? "true" : "false", e->median * 1e-6,
                e->rounds, bytes / e->median, flops / e->median);
        if (floor > 0)
            fprintf(b->out, "\"floor_ms\": %.6g, \"copy_ms\": %.6g, \"streaming_copy_ms\": %.6g, \"share\": %.4g}",
                    floor * 1e-6, b->regular * 1e-6, b->streaming * 1e-6, floor / e->median);
        else
            fprintf(b->out, "\"floor_ms\": null, \"share\": null}");
        b->comma = true;
    }
}

static int bench_one(bench *b, const char *given) {
    weft_problem p = WEFT_PROBLEM_INIT;
    char text[WEFT_TEXT_MAX], chosen[128] = "";
    int code = cli_problem(b->self, given, &p);
    if (code == CLI_OK && b->kernel) code = cli_kernel(b->self, p.op, b->kernel);
    if (code != CLI_OK) return code;
    weft_plan *plan = NULL;
    if (weft_plan_create(&plan, b->ctx, &p, NULL) != WEFT_OK) return cli_failed(b->self, "%s", weft_last_error());
    snprintf(chosen, sizeof(chosen), "%s", weft_plan_kernel_name(plan));
    weft_plan_release(plan);
    harness_text(&p, text);
    code = add_kernels(b, &p);
    if (code == CLI_OK && p.device == WEFT_DEVICE_CPU) code = add_data(b, &p);
    if (code == CLI_OK && b->calls) code = time_calls(b, &p);
    if (code == CLI_OK && !b->calls) code = p.device == WEFT_DEVICE_CPU ? time_cpu(b, &p) : time_cuda(b, &p);
    if (code == CLI_OK && b->calls) {
        drop(b);
        return code;
    }
    if (code == CLI_OK && b->regret)
        print_regret(b, text, chosen);
    else if (code == CLI_OK)
        print_table(b, &p, text, chosen);
    if (code == CLI_OK && b->out) write_json(b, &p, text, chosen);
    drop(b);
    fflush(stdout);
    return code;
}

/* train stands for fwd and bwd. */
static int bench_text(bench *b, const char *given) {
    const char *train = strstr(given, ":train:");
    char text[WEFT_TEXT_MAX];
    if (!train || strlen(given) >= sizeof(text)) return bench_one(b, given);
    static const char *const passes[] = {"fwd", "bwd"};
    for (int i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), "%.*s:%s:%s", (int)(train - given), given, passes[i], train + strlen(":train:"));
        int code = bench_one(b, text);
        if (code != CLI_OK) return code;
    }
    return CLI_OK;
}

static int run(const cli_command *self, int argc, char **argv) {
    bench b = {.self = self, .rounds = 15};
    const cli_option options[] = {
        {"kernel", "NAME", "only this kernel", CLI_TEXT, &b.kernel, 0, 0},
        {"rounds", "N", "timed rounds (15); kernels over 0.1 s take part in 3", CLI_COUNT, &b.rounds, 1, ROUNDS_MAX},
        {"threads", "N", "of the pool (one per core)", CLI_COUNT, &b.threads, 1, 1024},
        {"set", "NAME", "the problems of bench/NAME.txt of the source tree", CLI_TEXT, &b.set, 0, 0},
        {"regret", NULL, "one line per problem: the planner's choice over the fastest kernel", CLI_FLAG, &b.regret, 0,
         0},
        {"calls", "N", "time what weft_execute costs beyond the first kernel, over N calls", CLI_COUNT, &b.calls, 1,
         1e9},
        {"json", "FILE", "write the rows as a list of objects too", CLI_TEXT, &b.json, 0, 0},
    };
    int code = cli_parse(self, options, WEFT__COUNT(options), &argc, argv);
    if (code != CLI_OK) return code;
    const char *const *set = b.set ? cli_find_set(self, b.set) : NULL;
    if (b.set && !set) return CLI_MISUSE;
    if (!argc && !set) return cli_misuse(self, "no problem given, allowed: one or more PROBLEM, or --set NAME");
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.threads = (int32_t)b.threads;
    if ((code = cli_context(self, &b.ctx, &opts)) != CLI_OK) return code;
    if (b.json && !(b.out = fopen(b.json, "w")))
        code = cli_failed(self, "--json: '%s' could not be written: %s", b.json, strerror(errno));
    if (b.out) fputs("[\n", b.out);
    for (int i = 0; i < argc && code == CLI_OK; i++) code = bench_text(&b, argv[i]);
    for (; set && *set && code == CLI_OK; set++) code = bench_text(&b, *set);
    if (b.regret && code == CLI_OK)
        printf("worst %.2f; %lld of %lld choices over %.2f of the best\n", b.worst, (long long)b.over,
               (long long)b.many, REGRET);
    if (b.out) {
        fputs(b.comma ? "\n]\n" : "]\n", b.out);
        if (fclose(b.out) != 0 && code == CLI_OK)
            code = cli_failed(self, "--json: '%s' could not be written: %s", b.json, strerror(errno));
    }
    weft_ctx_release(b.ctx);
    return code;
}

const cli_command cmd_bench = {
    "bench", "[--kernel NAME] [--set NAME] [--regret] [--rounds N] [--json FILE] PROBLEM...",
    "time kernels beside the floor measured in the same run",
    "Every applicable kernel runs warm with caches emptied before each run; medians over interleaved rounds.\n"
    "The floor is a plain loop that reads and writes the same bytes once, the better of regular and streaming\n"
    "stores. * marks the kernel the planner takes. The pass train stands for fwd and bwd.",
    run};
