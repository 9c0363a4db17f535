/* Callers built against another weft.h: a struct that begins with its size may be shorter than today's, down to its
 * first release, or longer; what lies behind its end is not the library's. */
#include "test.h"

static const char small[] = "conv2d:fwd:f32:nchw:n1c4h6w7:o4k3p1g4";
static weft_ctx *ctx;
static weft_plan *plan;
static weft_problem problem;

static void no_time(void *user, const weft_problem *p, weft_rates *rates) { (void)user, (void)p, rates->ns = 1; }
static weft_status no_run(void *user, const weft_problem *p, const weft_args *args, void *stream) {
    return (void)user, (void)p, (void)args, (void)stream, WEFT_OK;
}

/* ---------------------------------------------------------------- the calls */
static weft_status create(void *opts) {
    weft_ctx *made = NULL;
    const weft_status s = weft_ctx_create(&made, opts);
    weft_ctx_release(made);
    return s;
}
static weft_status make_plan(void *opts) {
    weft_plan *made = NULL;
    const weft_status s = weft_plan_create(&made, ctx, &problem, opts);
    weft_plan_release(made);
    return s;
}
static weft_status set_external(void *external) {
    weft_ctx *fresh = test_context(1);
    const weft_status s = weft_ctx_set_external(fresh, external);
    weft_ctx_release(fresh);
    return s;
}
static weft_status complete(void *p) { return weft_problem_complete(p); }
static weft_status info(void *desc) { return weft_kernel_info(ctx, &problem, 0, desc); }
static weft_status cost(void *of) { return weft_plan_cost(plan, of); }
static weft_status report(void *of) { return weft_wisdom_parse(ctx, "a bad line\n", 11, of); }

static const weft_ctx_opts ctx_opts = WEFT_CTX_OPTS_INIT;
static const weft_plan_opts plan_opts = WEFT_PLAN_OPTS_INIT;
static const weft_external external = {sizeof(external), "host_conv", 1, 0, NULL, NULL, no_time, no_run};
static const weft_kernel_desc kernel_desc = WEFT_KERNEL_DESC_INIT;
static const weft_cost plan_cost = WEFT_COST_INIT;
static const weft_wisdom_report wisdom_report = WEFT_WISDOM_REPORT_INIT;

/* least: the size of the first release, of weft.h before it had what follows that member. */
static const struct kind {
    const char *name;
    const void *init;
    size_t least, full;
    weft_status (*call)(void *);
    bool returned;
} kinds[] = {
    {"weft_ctx_opts", &ctx_opts, WEFT__LEAST(weft_ctx_opts, cache_dir), sizeof(ctx_opts), create, false},
    {"weft_plan_opts", &plan_opts, WEFT__LEAST(weft_plan_opts, kernel), sizeof(plan_opts), make_plan, false},
    {"weft_external", &external, sizeof(external), sizeof(external), set_external, false},
    {"weft_problem", &problem, sizeof(problem), sizeof(problem), complete, true},
    {"weft_kernel_desc", &kernel_desc, WEFT__LEAST(weft_kernel_desc, ns), sizeof(kernel_desc), info, true},
    {"weft_cost", &plan_cost, sizeof(plan_cost), sizeof(plan_cost), cost, true},
    {"weft_wisdom_report", &wisdom_report, sizeof(wisdom_report), sizeof(wisdom_report), report, true},
};

/* A struct that says it has `size` bytes, of which `room` are there, the last of them at a guard page. */
static void *struct_of(const struct kind *k, harness_buffer *b, size_t size, size_t room) {
    CHECK(harness_open_bytes(b, room, 8, HARNESS_END), "no memory");
    memset(b->at, 0, room);
    memcpy(b->at, k->init, WEFT__MIN(room, k->full));
    *(size_t *)b->at = size;
    return b->at;
}

static void begin(void) {
    ctx = test_context(1);
    problem = test_problem(small);
    OK(weft_plan_create(&plan, ctx, &problem, NULL));
}
static void end(harness_buffer *b) {
    harness_close(b);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

static void served(const struct kind *k, harness_buffer *b, size_t size, const char *whole) {
    const char *given = struct_of(k, b, size, size);
    char why[128];
    const weft_status s = k->call((void *)given);
    CHECK(s == WEFT_OK, "%s of %zu bytes: %s", k->name, size, weft_last_error());
    CHECK(*(const size_t *)given == size, "%s of %zu bytes says it has %zu", k->name, size, *(const size_t *)given);
    CHECK(harness_intact(b, why, sizeof(why)), "%s of %zu bytes: %s", k->name, size, why);
    if (!k->returned) return;
    CHECK(memcmp(given + sizeof(size_t), whole + sizeof(size_t), WEFT__MIN(size, k->full) - sizeof(size_t)) == 0,
          "%s of %zu bytes has other members than one of %zu", k->name, size, k->full);
    for (size_t i = k->full; i < size; i++) CHECK(!given[i], "%s of %zu bytes: byte %zu is set", k->name, size, i);
}

TEST(shorter_and_longer_structs_are_served) {
    static harness_buffer b, today;
    begin();
    for (size_t i = 0; i < WEFT__COUNT(kinds); i++) {
        const struct kind *k = &kinds[i];
        const size_t longer[] = {k->full + 8, k->full + 136, WEFT__MOST};
        char *whole = struct_of(k, &today, k->full, k->full);
        OK(k->call(whole));
        for (size_t size = k->least; size <= k->full; size += 8) served(k, &b, size, whole);
        for (size_t n = 0; n < WEFT__COUNT(longer); n++) served(k, &b, longer[n], whole);
    }
    harness_close(&today);
    end(&b);
}

/* What asks for more than this library knows is refused; so is a size that is none, and nothing behind is looked at. */
TEST(sizes_that_are_none) {
    static harness_buffer b;
    begin();
    for (size_t i = 0; i < WEFT__COUNT(kinds); i++) {
        const struct kind *k = &kinds[i];
        const size_t wrong[] = {0, 1, 8, k->least - 8, WEFT__MOST + 1, (size_t)1 << 40, SIZE_MAX / 2, SIZE_MAX};
        for (size_t n = 0; n < WEFT__COUNT(wrong); n++) {
            void *given = struct_of(k, &b, wrong[n], WEFT__MIN(WEFT__MAX(wrong[n], 8), k->full));
            const weft_status s = k->call(given);
            CHECK(s == WEFT_ERR_INVALID && strstr(weft_last_error(), "size"), "%s of %zu bytes: %s: %s", k->name,
                  wrong[n], weft_status_name(s), weft_last_error());
        }
        if (k->returned && k->call != complete) continue; /* what is written alone may hold anything */
        for (size_t at = k->full; at < k->full + 24; at++) {
            char *given = struct_of(k, &b, k->full + 24, k->full + 24);
            given[at] = 1;
            const weft_status s = k->call(given);
            CHECK(s == WEFT_ERR_INVALID, "%s with byte %zu set: %s", k->name, at, weft_status_name(s));
        }
    }
    end(&b);
}
