/* Measuring on a clock that the test moves: which runs count, what is given up, what is remembered and what is chosen.
 * The program is linked so that the library reads this clock (weft__now_ns); a lent pool moves it by the time that the
 * test gives to the kernel being measured, and the log says when the next one's turn comes. */
#include "test.h"

enum {
    CANDIDATES = WEFT__CANDIDATES_MAX,
    RUNS = 16,
    REST = 6000
}; /* REST: ns of a kernel that the test says nothing of */
static uint64_t clock_ns;
uint64_t __wrap_weft__now_ns(void);
uint64_t __wrap_weft__now_ns(void) { return clock_ns; }

/* What each kernel takes in each of its runs, the first of which warms up; 0 ends a list, the value before it holds. */
static struct bed {
    uint64_t ns[CANDIDATES][RUNS];
    int candidate, runs[CANDIDATES];
    char name[CANDIDATES][128], given_up[CANDIDATES];
} bed;

static void pool(void *user, int64_t slots, weft_task task, void *arg) {
    struct bed *b = user;
    for (int64_t i = 0; i < slots; i++) task(arg, i);
    if (b->candidate >= CANDIDATES) return;
    const uint64_t *ns = b->ns[b->candidate];
    int last = 0, run = b->runs[b->candidate]++;
    while (last < run && last < RUNS - 1 && ns[last + 1]) last++;
    clock_ns += ns[last] ? ns[last] : REST;
}

static void listen(void *user, int topic, const char *line) {
    struct bed *b = user;
    if (topic != WEFT_LOG_TUNE || strncmp(line, "tune: ", 6) != 0 || b->candidate >= CANDIDATES) return;
    snprintf(b->name[b->candidate], sizeof(b->name[0]), "%.*s", (int)strcspn(line + 6, " "), line + 6);
    b->given_up[b->candidate] = strstr(line, "given up") != NULL;
    b->candidate++;
}

static weft_ctx *context(unsigned engines, double seconds) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.engines = engines;
    opts.measure_seconds = seconds;
    opts.verbose = WEFT_LOG_TUNE;
    opts.log = listen;
    opts.log_user = &bed;
    opts.cache_dir = "";
    OK(weft_ctx_create(&ctx, &opts));
    OK(weft_ctx_set_parallel_for(ctx, pool, &bed, 1));
    return ctx;
}

/* One call of the pool per run, one kernel per instruction set and at least two of those. */
static const char usual[] = "conv2d:fwd:f32:nchw:n2c32h32w32:o32k3p1g32";

static weft_plan *plan_in(weft_ctx *ctx, int mode) {
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_problem p = test_problem(usual);
    weft_plan *plan = NULL;
    opts.mode = mode;
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    return plan;
}

static double ns_of(const weft_plan *plan) { return weft__plan_choice(plan)->d.ns; }
static const char *why_of(const weft_plan *plan) { return weft__plan_choice(plan)->why; }

static weft_plan *measure(weft_ctx *ctx, struct bed times) {
    bed = times;
    weft_plan *plan = plan_in(ctx, WEFT_MODE_MEASURE);
    if (!bed.name[1][0] && !bed.runs[1]) SKIP("one instruction set: nothing to choose from");
    return plan;
}

TEST(the_fastest_is_chosen_and_all_are_remembered) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{5000}, {3000}, {4000}}});
    CHECK(strcmp(weft_plan_kernel_name(plan), bed.name[1]) == 0 && strcmp(why_of(plan), "measured") == 0 &&
              ns_of(plan) == 3000,
          "%s by %s in %g ns", weft_plan_kernel_name(plan), why_of(plan), ns_of(plan));
    CHECK(weft_wisdom_count(ctx) == (size_t)bed.candidate, "%zu of %d", weft_wisdom_count(ctx), bed.candidate);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

TEST(the_median_counts_and_the_warm_run_does_not) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{10, 700, 100, 600, 200, 500, 300, 400}, {600}}});
    CHECK(strcmp(weft_plan_kernel_name(plan), bed.name[0]) == 0 && ns_of(plan) == 400, "%g ns", ns_of(plan));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* Of equal times the first one's: the least estimate. */
TEST(of_equal_times_the_first_is_chosen) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{3000}, {3000}, {3000}}});
    CHECK(strcmp(weft_plan_kernel_name(plan), bed.name[0]) == 0, "%s, not %s", weft_plan_kernel_name(plan),
          bed.name[0]);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

TEST(three_times_the_best_is_given_up) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{1000}, {3001}, {3001}, {3001}}});
    CHECK(bed.given_up[1] && bed.runs[1] == 1, "%d runs of a hopeless kernel", bed.runs[1]);
    CHECK(!bed.given_up[0] && bed.runs[0] == 8, "%d runs of the best", bed.runs[0]);
    CHECK(weft_wisdom_count(ctx) == 1, "%zu entries", weft_wisdom_count(ctx));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    ctx = context(WEFT_ENGINE_CPU, 1);
    plan = measure(ctx, (struct bed){.ns = {{1000}, {3000, 900}, {3000}, {3000}}});
    CHECK(!bed.given_up[1] && strcmp(weft_plan_kernel_name(plan), bed.name[1]) == 0,
          "a warm run of three times the best is the end of it");
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

TEST(the_time_limit_holds) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1e-6);
    bed = (struct bed){.ns = {{2000}, {1}, {1}, {1}}};
    weft_plan *plan = plan_in(ctx, WEFT_MODE_MEASURE);
    CHECK(bed.runs[0] == 2 && !bed.runs[1], "%d and %d runs in no time", bed.runs[0], bed.runs[1]);
    CHECK(strcmp(weft_plan_kernel_name(plan), bed.name[0]) == 0 && ns_of(plan) == 2000, "%g ns", ns_of(plan));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_problem p = test_problem(usual);
    opts.mode = WEFT_MODE_MEASURE;
    opts.measure_seconds = 1e-6; /* the plan's own limit, over the context's */
    ctx = context(WEFT_ENGINE_CPU, 1);
    bed = (struct bed){.ns = {{2000}, {1}, {1}, {1}}};
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    CHECK(bed.runs[0] == 2 && !bed.runs[1], "%d and %d runs within the plan's limit", bed.runs[0], bed.runs[1]);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* A slow kernel uses up its share of the time, not that of the others; of two runs the slower one counts. */
TEST(every_candidate_has_its_share) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{300000000}, {1000}}});
    CHECK(bed.runs[1] > 1 && strcmp(weft_plan_kernel_name(plan), bed.name[1]) == 0, "%d runs of the second one",
          bed.runs[1]);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    ctx = context(WEFT_ENGINE_CPU, 1e-3);
    bed = (struct bed){.ns = {{10, 1000, 3000000}, {1}}};
    plan = plan_in(ctx, WEFT_MODE_MEASURE);
    CHECK(bed.runs[0] == 3, "%d runs within a millisecond", bed.runs[0]);
    CHECK(ns_of(plan) == 3000000 || bed.runs[1], "%g ns", ns_of(plan));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

TEST(the_reference_is_not_measured_beside_others) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU | WEFT_ENGINE_REF, 1);
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{5000}, {4000}, {3000}}});
    for (int i = 0; i < bed.candidate; i++) CHECK(!strstr(bed.name[i], "_ref"), "%s was measured", bed.name[i]);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

static weft_plan *plan_without_limit(weft_ctx *ctx) {
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_problem p = test_problem(usual);
    weft_plan *plan = NULL;
    opts.workspace_limit = WEFT_NO_LIMIT;
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    return plan;
}

/* An estimate after a measurement is what was measured, also where an estimate was made before, with these settings or
 * with others. */
TEST(estimate_measure_estimate) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan *before = plan_in(ctx, WEFT_MODE_ESTIMATE);
    weft_plan_release(plan_without_limit(ctx));
    weft_problem q = test_problem("conv2d:fwd:f32:nchw:n3c32h32w32:o32k3p1g32");
    weft_plan *other = NULL, *again = NULL;
    OK(weft_plan_create(&other, ctx, &q, NULL));
    CHECK(strcmp(why_of(before), "estimate") == 0, "%s", why_of(before));
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{5000}, {3000}, {4000}}});
    CHECK(strcmp(weft_plan_kernel_name(plan), weft_plan_kernel_name(before)) != 0, "the test wants another kernel");
    weft_plan *after = plan_in(ctx, WEFT_MODE_ESTIMATE);
    CHECK(strcmp(weft_plan_kernel_name(after), weft_plan_kernel_name(plan)) == 0 &&
              strcmp(why_of(after), "measured") == 0 && ns_of(after) == 3000,
          "%s by %s", weft_plan_kernel_name(after), why_of(after));
    weft_plan_release(after);
    after = plan_without_limit(ctx);
    CHECK(strcmp(weft_plan_kernel_name(after), weft_plan_kernel_name(plan)) == 0 &&
              strcmp(why_of(after), "wisdom") == 0 && ns_of(after) == 3000,
          "an older plan is kept: %s by %s", weft_plan_kernel_name(after), why_of(after));
    OK(weft_plan_create(&again, ctx, &q, NULL));
    CHECK(again == other, "a plan of another problem was dropped too");
    weft_plan_release(other), weft_plan_release(again);
    CHECK(bed.candidate >= 2 && bed.runs[0] == 8, "measured again");
    weft_plan_release(before), weft_plan_release(plan), weft_plan_release(after);
    weft_ctx_release(ctx);
}

/* The same where only the plan with other settings was made before. */
TEST(a_measurement_counts_for_other_settings) {
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    weft_plan_release(plan_without_limit(ctx));
    weft_plan *plan = measure(ctx, (struct bed){.ns = {{5000}, {3000}, {4000}}});
    weft_plan *after = plan_without_limit(ctx);
    CHECK(strcmp(weft_plan_kernel_name(after), weft_plan_kernel_name(plan)) == 0 && ns_of(after) == 3000,
          "an older plan is kept: %s by %s", weft_plan_kernel_name(after), why_of(after));
    weft_plan_release(plan), weft_plan_release(after);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- candidates */
TEST(two_instruction_sets_of_a_design_are_measured) {
    static const weft__kernel a512 = {.name = "a__avx512", .engine = WEFT_ENGINE_CPU},
                              a2 = {.name = "a__avx2", .engine = WEFT_ENGINE_CPU},
                              a0 = {.name = "a__scalar", .engine = WEFT_ENGINE_CPU},
                              b0 = {.name = "b__scalar", .engine = WEFT_ENGINE_CPU};
    const weft__choice all[] = {{.kernel = &a512, .d.ns = 30},
                                {.kernel = &a2, .d.ns = 20},
                                {.kernel = &a0, .d.ns = 10},
                                {.kernel = &b0, .d.ns = 40},
                                {.kernel = &a0, .d.ns = 50, .variant = 1}};
    const char *const want[] = {"a__scalar", "a__avx2", "b__scalar", "a__scalar"};
    weft__choice list[WEFT__CANDIDATES_MAX];
    size_t n = 0;
    for (int i = 0; i < 5; i++) n = weft__add_candidate(list, n, &all[i]);
    CHECK(n == 4, "%zu candidates", n);
    for (size_t i = 0; i < n && i < 4; i++)
        CHECK(strcmp(list[i].kernel->name, want[i]) == 0, "candidate %zu is %s", i, list[i].kernel->name);
    static const weft__kernel host = {.name = "a", .engine = WEFT_ENGINE_EXTERNAL}; /* of the same name by chance */
    n = weft__add_candidate(list, 0, &(weft__choice){.kernel = &host, .d.ns = 60});
    for (int i = 0; i < 2; i++) n = weft__add_candidate(list, n, &all[i]);
    CHECK(n == 3 && list[2].kernel == &host, "%zu candidates, the host's code taken for an instruction set", n);
}

TEST(of_equal_estimates_the_first_stays_first) {
    enum { KERNELS = WEFT__CANDIDATES_MAX + 2 };
    static char name[KERNELS][16];
    static weft__kernel kernel[KERNELS];
    weft__choice list[WEFT__CANDIDATES_MAX];
    size_t n = 0;
    for (int i = 0; i < KERNELS; i++) {
        snprintf(name[i], sizeof(name[i]), "k%d__avx2", i);
        kernel[i].name = name[i], kernel[i].engine = WEFT_ENGINE_CPU;
        n = weft__add_candidate(list, n, &(weft__choice){.kernel = &kernel[i], .d.ns = i % 3 == 1 ? 5 : 7});
    }
    for (size_t i = 1; i < n; i++)
        CHECK(list[i - 1].d.ns < list[i].d.ns ||
                  (list[i - 1].d.ns == list[i].d.ns && list[i - 1].kernel < list[i].kernel),
              "%s before %s", list[i - 1].kernel->name, list[i].kernel->name);
    static const weft__kernel wide = {.name = "a__avx2", .engine = WEFT_ENGINE_CPU},
                              narrow = {.name = "a__scalar", .engine = WEFT_ENGINE_CPU};
    n = weft__add_candidate(list, 0, &(weft__choice){.kernel = &wide, .d.ns = 9});
    n = weft__add_candidate(list, n, &(weft__choice){.kernel = &narrow, .d.ns = 9});
    CHECK(n == 2 && list[0].kernel == &wide && list[1].kernel == &narrow, "%s is first of %zu", list[0].kernel->name,
          n);
}

TEST(a_full_list_keeps_the_least_estimates) {
    static char name[12][16];
    static weft__kernel kernel[12];
    weft__choice list[WEFT__CANDIDATES_MAX];
    size_t n = 0;
    for (int i = 0; i < 12; i++) {
        snprintf(name[i], sizeof(name[i]), "k%d__avx2", i);
        kernel[i].name = name[i], kernel[i].engine = WEFT_ENGINE_CPU;
        n = weft__add_candidate(list, n, &(weft__choice){.kernel = &kernel[i], .d.ns = 7 * i % 12});
    }
    CHECK(n == WEFT__CANDIDATES_MAX, "%zu candidates", n);
    for (size_t i = 0; i < n; i++) CHECK(list[i].d.ns == (double)i, "candidate %zu has %g ns", i, list[i].d.ns);
}

/* Variants of a kernel are measured like kernels; the name with the variant is what wisdom keeps and finds. */
TEST(a_variant_is_chosen_by_measurement) {
    static const char text[] = "conv2d:fwd:f32:nhwc:n2c256h14w14:o256k3p1g256";
    weft_problem p = test_problem(text);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_plan *plan = NULL;
    int second = -1;
    char wanted[128], wisdom[8192];
    size_t length = 0;
    opts.mode = WEFT_MODE_MEASURE;
    weft_ctx *ctx = context(WEFT_ENGINE_CPU, 1);
    bed = (struct bed){0};
    OK(weft_plan_create(&plan, ctx, &p, &opts)); /* in what order they are measured */
    const size_t name = strcspn(bed.name[0], "#");
    for (int i = 1; i < bed.candidate; i++)
        if (bed.name[0][name] && strncmp(bed.name[i], bed.name[0], name + 1) == 0) second = i;
    CHECK(second > 0, "no second variant of %s is measured", bed.name[0]);
    weft_plan_release(plan), weft_ctx_release(ctx);
    if (second < 0) return;
    snprintf(wanted, sizeof(wanted), "%s", bed.name[second]);
    bed = (struct bed){0};
    for (int i = 0; i < CANDIDATES; i++) bed.ns[i][0] = i == second ? 2000 : 2500;
    ctx = context(WEFT_ENGINE_CPU, 1);
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    CHECK(strcmp(weft_plan_kernel_name(plan), wanted) == 0 && strcmp(why_of(plan), "measured") == 0, "%s by %s",
          weft_plan_kernel_name(plan), why_of(plan));
    OK(weft_wisdom_format(ctx, wisdom, sizeof(wisdom), &length));
    CHECK(strstr(wisdom, wanted) != NULL, "wisdom does not name %s", wanted);
    weft_plan_release(plan), weft_ctx_release(ctx);
    ctx = context(WEFT_ENGINE_CPU, 1);
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    OK(weft_wisdom_parse(ctx, wisdom, length, &report));
    opts.mode = WEFT_MODE_WISDOM_ONLY;
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    CHECK(strcmp(weft_plan_kernel_name(plan), wanted) == 0 && strcmp(why_of(plan), "wisdom") == 0, "%s by %s",
          weft_plan_kernel_name(plan), why_of(plan));
    weft_plan_release(plan), weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the host's implementation */
typedef struct host {
    uint64_t ns;
    int runs;
    bool fails;
} host;

static void rates(void *user, const weft_problem *p, weft_rates *r) {
    (void)user, (void)p;
    *r = (weft_rates){1e9, 1, 1}; /* hopeless by estimate: measured last */
}

static weft_status run_once(void *user, const weft_problem *p, const weft_args *args, void *stream) {
    host *e = user;
    (void)stream;
    e->runs++;
    clock_ns += e->ns;
    for (int i = 0; i < p->ntensors; i++)
        if (!args->ptr[p->tensor[i].role]) return WEFT_ERR_INTERNAL;
    return e->fails ? weft__fail(WEFT_ERR_INTERNAL, "not today") : WEFT_OK;
}

static weft_plan *measure_beside(host *e, weft_ctx **ctx) {
    weft_external x = WEFT_EXTERNAL_INIT;
    x.name = "host_conv", x.user = e, x.estimate = rates, x.run_once = run_once;
    *ctx = context(WEFT_ENGINE_CPU | WEFT_ENGINE_EXTERNAL, 1);
    OK(weft_ctx_set_external(*ctx, &x));
    return measure(*ctx, (struct bed){.ns = {{5000}, {3000}, {4000}}});
}

TEST(the_host_wins_by_a_nanosecond) {
    host quick = {.ns = 2999}, slow = {.ns = 3001}, broken = {.ns = 1, .fails = true};
    weft_ctx *ctx;
    weft_plan *plan = measure_beside(&quick, &ctx);
    CHECK(strcmp(weft_plan_kernel_name(plan), "host_conv") == 0 && quick.runs == 8, "%s after %d runs",
          weft_plan_kernel_name(plan), quick.runs);
    weft_plan_release(plan), weft_ctx_release(ctx);
    plan = measure_beside(&slow, &ctx);
    CHECK(strcmp(weft_plan_kernel_name(plan), "host_conv") != 0 && slow.runs == 8, "%s after %d runs",
          weft_plan_kernel_name(plan), slow.runs);
    weft_plan_release(plan), weft_ctx_release(ctx);
    plan = measure_beside(&broken, &ctx); /* one that fails is left out */
    CHECK(strcmp(weft_plan_kernel_name(plan), "host_conv") != 0 && broken.runs == 1, "%s after %d runs",
          weft_plan_kernel_name(plan), broken.runs);
    weft_plan_release(plan), weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the data that is measured on */
static int inspected;
static const int64_t *numbers(const weft__exec *e, int role, int64_t *count) {
    *count = weft__numel(weft__tensor(e->p, role));
    return e->ptr[role];
}

static const char *wrong_sparse(const weft__exec *e) {
    return weft_sparse_check(e->p, e->ptr[WEFT_ROLE_ROWS], e->ptr[WEFT_ROLE_COLS]) == WEFT_OK ? NULL : "no CSR matrix";
}
static const char *wrong_labels(const weft__exec *e) {
    int64_t n, classes = 0;
    const int64_t *label = numbers(e, WEFT_ROLE_TARGET, &n);
    for (int64_t i = 0; i < n; i++) {
        if (label[i] != -100 && (label[i] < 0 || label[i] >= e->p->c)) return "a label is no class";
        classes |= label[i] >= 0 ? (int64_t)1 << label[i] : 0;
    }
    return classes & (classes - 1) ? NULL : "one class for all";
}
static const char *wrong_lengths(const weft__exec *e) {
    int64_t n;
    const int64_t *begin = numbers(e, WEFT_ROLE_LENGTHS, &n);
    for (int64_t i = 1; i < n; i++)
        if (begin[i] <= begin[i - 1] || begin[i] - begin[i - 1] > e->p->n) return "steps do not follow each other";
    return begin[0] == 0 && begin[n - 1] == e->p->attr[WEFT_RNN_ROWS] ? NULL : "not all rows";
}
static const char *wrong_index(const weft__exec *e) {
    int64_t n, most = 0;
    const int64_t *index = numbers(e, WEFT_ROLE_INDEX, &n);
    for (int64_t i = 0; i < n; i++) {
        if (index[i] < 0 || index[i] >= e->p->in[1] * e->p->in[2]) return "an index lies outside";
        most = WEFT__MAX(most, index[i]);
    }
    return most > 1 ? NULL : "every index is 0 or 1";
}
static const char *wrong_variance(const weft__exec *e) {
    const float *var = e->ptr[WEFT_ROLE_VAR];
    for (int64_t c = 0; c < e->p->c; c++)
        if (!(var[c] > 0)) return "a variance is not above 0";
    return NULL;
}
static const char *wrong_mask(const weft__exec *e) {
    const uint8_t *mask = e->ptr[WEFT_ROLE_MASK];
    int64_t n = weft__numel(weft__tensor(e->p, WEFT_ROLE_MASK)), ones = 0;
    for (int64_t i = 0; i < n; i++) {
        if (mask[i] > 1) return "a mask is neither 0 nor 1";
        ones += mask[i];
    }
    return ones > n / 2 && ones < n ? NULL : "no holes, or nothing else";
}

static const char *wrong_sequences(const weft__exec *e) {
    const int32_t *seq = e->ptr[WEFT_ROLE_SEQ_IDX];
    int64_t n = weft__numel(weft__tensor(e->p, WEFT_ROLE_SEQ_IDX)), padding = 0, changes = 0;
    for (int64_t i = 0; i < n; i++) {
        if (seq[i] < -1 || seq[i] > n) return "a number is no sequence";
        padding += seq[i] == -1;
        changes += i && seq[i] != seq[i - 1];
    }
    return padding && padding < n / 2 && changes > 2 && changes < n / 2 ? NULL : "no padding, or no sequences";
}
static const char *wrong_state_rows(const weft__exec *e) {
    const int32_t *row = e->ptr[WEFT_ROLE_INDEX];
    int64_t missing = 0, seen = 0;
    for (int64_t i = 0; i < e->p->n; i++) {
        if (row[i] < -1 || row[i] >= e->p->attr[WEFT_CAUSAL_ROWS]) return "a row is none of the state's";
        if (row[i] >= 0 && seen >> row[i] & 1) return "two sequences share a row";
        missing += row[i] < 0;
        seen |= row[i] < 0 ? 0 : (int64_t)1 << row[i];
    }
    return missing && seen & (seen - 1) ? NULL : "no row is missing, or hardly one is there";
}
/* Also where a tensor is larger than what is drawn for it. */
static const char *wrong_values(const weft__exec *e) {
    enum { PIECE = 4096 };
    const weft_tensor *t = weft__tensor(e->p, WEFT_ROLE_SRC);
    const float *x = e->ptr[WEFT_ROLE_SRC];
    for (int64_t i = 0; i < weft__numel(t); i += PIECE) {
        float least = 1, most = -1;
        for (int64_t k = i; k < WEFT__MIN(i + PIECE, weft__numel(t)); k++)
            least = WEFT__MIN(least, x[k]), most = WEFT__MAX(most, x[k]);
        if (!(least >= -1 && least < -0.9f && most <= 1 && most > 0.9f)) return "values that are not from -1 to 1";
    }
    return NULL;
}

/* Scratch is the kernel's, and packed weights lie behind it: a run leaves them as they were. */
enum { SCRATCH = 128, PACKED = 64 };
static weft_status pack_sevens(const weft__exec *e, const void *weights, void *packed) {
    memset(packed, weights == e->ptr[WEFT_ROLE_WEIGHTS] ? 7 : 0, PACKED);
    return WEFT_OK;
}
static const char *wrong_packed(const weft__exec *e) {
    memset(e->workspace, 1, SCRATCH);
    for (int i = 0; i < PACKED; i++)
        if (((const char *)e->packed)[i] != 7) return "packed weights are not what was packed";
    return NULL;
}

static const char *no_complaint(const weft__exec *e) { return (void)e, NULL; }
static const char *(*inspect)(const weft__exec *);
static weft_status run_inspection(const weft__exec *e) {
    inspected++;
    const char *why = inspect(e);
    return why ? weft__fail(WEFT_ERR_INTERNAL, "%s", why) : WEFT_OK;
}

TEST(measured_on_data_that_means_something) {
    static const struct {
        const char *text;
        const char *(*wrong)(const weft__exec *);
    } cases[] = {
        {"sparse_conv2d:fwd:f32,rows=i64,cols=i64:nchw:n2c8h9w9:o16k3p1nnz200", wrong_sparse},
        {"sparse_conv2d:bwd_data:f32,rows=i32,cols=i32:nchw:n2c8h9w9:o16k3p1g2nnz100stretched1", wrong_sparse},
        {"cross_entropy2d:fwd:f32:nchw:n2c19h8w8:ignore-100", wrong_labels},
        {"lstm:fwd:f32:dense:t9n5c4o6:rows30", wrong_lengths},
        {"max_pool2d:bwd:f32,index=i64:nchw:n2c3h9w9:k3s2p1", wrong_index},
        {"batch_norm2d:fwd:f32:nchw:n2c8h9w9:train0", wrong_variance},
        {"partial_conv2d:fwd:f32,mask=u8,new_mask=u8:nchw:n2c4h9w9:o4k3p1mask2", wrong_mask},
        {"causal_conv1d:fwd:f32,seq_idx=i32:ncw:n2c3w200:k3seqs1", wrong_sequences},
        {"causal_update1d:fwd:f32:ncw:n30c3w1:k3len2rows40index1", wrong_state_rows},
        {"relu1d:fwd:f32:ncw:n2c3w50000", wrong_values},
        {"conv2d:fwd:f32:nchw:n2c4h9w9:o4k3p1", wrong_packed},
    };
    weft_ctx *ctx = test_context(1);
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        weft_problem p = test_problem(cases[i].text);
        weft__kernel k = {.name = "inspection", .op = p.op, .engine = WEFT_ENGINE_CPU, .run = run_inspection};
        weft__choice c = {.kernel = &k, .why = "pinned", .d.workspace = SCRATCH};
        k.pack = pack_sevens, c.d.packed = cases[i].wrong == wrong_packed ? PACKED : 0;
        weft__hw hw;
        double ns;
        OK(weft__ctx_hw(ctx, &p, &hw));
        inspect = cases[i].wrong;
        inspected = 0;
        weft_status s = weft__measure(ctx, &p, &hw, &c, 1e18, 1, &ns);
        CHECK(s == WEFT_OK && inspected > 0, "%s: %s", cases[i].text, weft_last_error());
    }
    weft_ctx_release(ctx);
}

/* Before each run as much memory is read as empties the last-level cache: it is among what measuring allocates. */
static size_t largest_block;
static void *watching_alloc(void *user, size_t bytes) {
    (void)user;
    largest_block = WEFT__MAX(largest_block, bytes);
    return malloc(bytes);
}
static void plain_free(void *user, void *block) { (void)user, free(block); }

TEST(caches_are_emptied) {
    static const size_t sizes[] = {(size_t)1 << 20, (size_t)6 << 20, (size_t)1 << 30}; /* of the cache */
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    weft_problem p = test_problem("relu1d:fwd:f32:ncw:n2c3w9");
    weft__kernel k = {.name = "inspection", .op = p.op, .engine = WEFT_ENGINE_CPU, .run = run_inspection};
    weft__choice c = {.kernel = &k, .why = "pinned"};
    opts.threads = 1, opts.cache_dir = "", opts.alloc = watching_alloc, opts.free = plain_free;
    OK(weft_ctx_create(&ctx, &opts));
    for (size_t i = 0; i < WEFT__COUNT(sizes); i++) {
        weft__hw hw;
        double ns;
        OK(weft__ctx_hw(ctx, &p, &hw));
        hw.l3 = sizes[i], hw.l2 = hw.l1 = 4096;
        largest_block = 0, inspect = no_complaint;
        OK(weft__measure(ctx, &p, &hw, &c, 1e18, 1e-9, &ns));
        CHECK(largest_block == WEFT__MIN(2 * sizes[i], (size_t)256 << 20), "%zu bytes for a cache of %zu",
              largest_block, sizes[i]);
    }
    weft_ctx_release(ctx);
}
