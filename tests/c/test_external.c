/* The host's implementation: weighed by estimate, by wisdom and by name, and never run by weft. test_measure.c has it
 * weighed by measuring. */
#include "test.h"

typedef struct host {
    int rehearsals, refusals;
    double of_peak, of_bandwidth; /* of_bandwidth 0: the same */
    const char *why;
} host;

static const char *reject(void *user, const weft_problem *p) {
    host *h = user;
    (void)p;
    h->refusals++;
    return h->why;
}

static void rates(void *user, const weft_problem *p, weft_rates *r) {
    const host *h = user;
    (void)p;
    *r = (weft_rates){10, h->of_peak, h->of_bandwidth > 0 ? h->of_bandwidth : h->of_peak};
}

static weft_status run_once(void *user, const weft_problem *p, const weft_args *args, void *stream) {
    host *h = user;
    (void)stream;
    h->rehearsals++;
    return args->ptr[WEFT_ROLE_SRC] && p->op == WEFT_OP_CONV ? WEFT_OK : WEFT_ERR_INTERNAL;
}

static weft_ctx *context_of(host *h, int version) {
    weft_ctx *ctx = test_context(1);
    weft_external r = WEFT_EXTERNAL_INIT;
    r.version = version;
    r.name = "host_conv", r.user = h, r.reject = reject, r.estimate = rates, r.run_once = run_once;
    OK(weft_ctx_set_external(ctx, &r));
    return ctx;
}

static weft_ctx *context_with(host *h) { return context_of(h, 1); }

static const char usual[] = "conv2d:fwd:f64:nchw:n1c4h12w20:o4k3p1"; /* one for which weft has the reference alone */
static const char fast_one[] = "conv2d:fwd:f32:nchw:n1c8h64w64:o8k3p1g8";

static const char *kernel_for(weft_ctx *ctx, const char *text, const weft_plan_opts *opts) {
    static char name[128];
    weft_problem p = test_problem(text);
    weft_plan *plan = NULL;
    OK(weft_plan_create(&plan, ctx, &p, opts));
    snprintf(name, sizeof(name), "%s", weft_plan_kernel_name(plan));
    weft_plan_release(plan);
    return name;
}

static const char *kernel_of(weft_ctx *ctx, const weft_plan_opts *opts) { return kernel_for(ctx, usual, opts); }

TEST(by_estimate) {
    host fast = {.of_peak = 1}, slow = {.of_peak = 1e-9}, shy = {.of_peak = 1, .why = "not today"};
    weft_ctx *ctx[3] = {context_with(&fast), context_with(&slow), context_with(&shy)};
    CHECK(!strcmp(kernel_of(ctx[0], NULL), "host_conv"), "%s", kernel_of(ctx[0], NULL));
    CHECK(!strcmp(kernel_of(ctx[1], NULL), "host_conv"), "the reference is taken over the host's own code");
    CHECK(strcmp(kernel_for(ctx[1], fast_one, NULL), "host_conv"), "a slower host is taken over a kernel of weft");
    CHECK(!strcmp(kernel_of(ctx[2], NULL), "conv_ref") && shy.refusals, "%s", kernel_of(ctx[2], NULL));
    CHECK(!fast.rehearsals && !slow.rehearsals, "%d %d rehearsals", fast.rehearsals, slow.rehearsals);
    for (int i = 0; i < 3; i++) weft_ctx_release(ctx[i]);
}

/* ns of a call, and the shares of the peak or of the bandwidth: with half of a share the rest takes twice as long. */
TEST(the_estimate_follows_the_rates) {
    weft_problem p = test_problem(usual);
    for (int memory = 0; memory < 2; memory++) {
        double ns[2];
        for (int i = 0; i < 2; i++) {
            const double share = i ? 1e-7 : 2e-7;
            host h = {.of_peak = memory ? 1 : share, .of_bandwidth = memory ? share : 1};
            weft_ctx *ctx = context_with(&h);
            weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
            OK(weft_kernel_info(ctx, &p, weft_kernel_count(ctx, &p) - 1, &d));
            CHECK(!strcmp(d.name, "host_conv") && d.applies, "%s", d.name);
            ns[i] = d.ns - 10;
            weft_ctx_release(ctx);
        }
        CHECK(ns[0] > 0 && ns[1] / ns[0] > 1.999 && ns[1] / ns[0] < 2.001, "%g and %g ns", ns[0], ns[1]);
    }
}

TEST(by_name_and_by_engine) {
    host h = {.of_peak = 1e-9};
    weft_ctx *ctx = context_with(&h);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = "host_conv";
    CHECK(!strcmp(kernel_of(ctx, &opts), "host_conv"), "%s", kernel_of(ctx, &opts));
    h.of_peak = 1;
    opts.kernel = NULL, opts.engines = WEFT_ENGINE_REF | WEFT_ENGINE_CPU;
    CHECK(!strcmp(kernel_of(ctx, &opts), "conv_ref"), "%s", kernel_of(ctx, &opts));
    opts.engines = 0;
    CHECK(!strcmp(kernel_of(ctx, &opts), "host_conv"), "%s", kernel_of(ctx, &opts));
    opts.engines = 64;
    weft_problem p = test_problem(usual);
    weft_plan *plan = NULL;
    FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_INVALID, "engines is 0x40");
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    size_t n = weft_kernel_count(ctx, &p);
    OK(weft_kernel_info(ctx, &p, n - 1, &d));
    CHECK(!strcmp(d.name, "host_conv") && !strcmp(d.engine, "external") && d.applies && d.ns > 0, "%s %s", d.name,
          d.engine);
    weft_ctx_release(ctx);
}

TEST(by_wisdom) {
    host h = {.of_peak = 1e-9};
    weft_ctx *ctx = context_with(&h);
    char line[1024], device[200];
    weft_problem p = test_problem(fast_one);
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &p, &hw));
    weft__device_name(&hw, WEFT_DEVICE_CPU, device, sizeof(device));
    int n = snprintf(line, sizeof(line), "%s %s t1 %s@cpu host_conv v1 5 0\n", device, WEFT_VERSION, fast_one);
    OK(weft_wisdom_parse(ctx, line, (size_t)n, NULL));
    CHECK(!strcmp(kernel_for(ctx, fast_one, NULL), "host_conv"), "wisdom is not used");
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.engines = WEFT_ENGINE_REF | WEFT_ENGINE_CPU;
    CHECK(strcmp(kernel_for(ctx, fast_one, &opts), "host_conv"), "wisdom of an engine that is off is used");
    opts.engines = 0, opts.mode = WEFT_MODE_MEASURE; /* a single candidate has won already */
    CHECK(!strcmp(kernel_of(ctx, &opts), "host_conv"), "%s", kernel_of(ctx, &opts));
    CHECK(!h.rehearsals, "%d runs", h.rehearsals);
    weft_ctx_release(ctx);
}

/* Wisdom of another version of the host's code is not used; what is measured is kept under its own. */
TEST(by_wisdom_of_its_version) {
    host h = {.of_peak = 1e-9};
    for (int mine = 1; mine <= 3; mine++)
        for (int kept = 1; kept <= 3; kept++) {
            weft_ctx *ctx = context_of(&h, mine);
            char line[1024], device[200];
            weft_problem p = test_problem(fast_one);
            weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
            weft__hw hw;
            OK(weft__ctx_hw(ctx, &p, &hw));
            weft__device_name(&hw, WEFT_DEVICE_CPU, device, sizeof(device));
            int n = snprintf(line, sizeof(line), "%s %s t1 %s@cpu host_conv v%d 5 0\n", device, WEFT_VERSION, fast_one,
                             kept);
            OK(weft_wisdom_parse(ctx, line, (size_t)n, NULL));
            CHECK(!strcmp(kernel_for(ctx, fast_one, NULL), "host_conv") == (mine == kept),
                  "wisdom of version %d for version %d", kept, mine);
            OK(weft_kernel_info(ctx, &p, weft_kernel_count(ctx, &p) - 1, &d));
            CHECK(d.version == mine, "it says version %d", d.version);
            weft_ctx_release(ctx);
        }
}

TEST(weft_does_not_run_it) {
    host h = {.of_peak = 1};
    weft_ctx *ctx = context_with(&h);
    weft_problem p = test_problem(usual);
    weft_plan *plan = NULL;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    weft_args args = WEFT_ARGS_INIT;
    FAILS(weft_execute(plan, &args, NULL, 0, NULL), WEFT_ERR_UNSUPPORTED, "the plan names host_conv");
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

TEST(wrong_implementations) {
    host h = {0};
    weft_ctx *ctx = test_context(1);
    weft_external r = WEFT_EXTERNAL_INIT;
    FAILS(weft_ctx_set_external(NULL, &r), WEFT_ERR_INVALID, "ctx is NULL");
    FAILS(weft_ctx_set_external(ctx, NULL), WEFT_ERR_INVALID, "external is NULL");
    FAILS(weft_ctx_set_external(ctx, &r), WEFT_ERR_INVALID, "estimate of external is missing");
    r.estimate = rates;
    FAILS(weft_ctx_set_external(ctx, &r), WEFT_ERR_INVALID, "run_once of external is missing");
    r.run_once = run_once;
    FAILS(weft_ctx_set_external(ctx, &r), WEFT_ERR_INVALID, "name of external is missing");
    r.name = "host_conv", r.user = &h, r.size = 8;
    FAILS(weft_ctx_set_external(ctx, &r), WEFT_ERR_INVALID, "external is of another size");
    r.size = sizeof(r);
    OK(weft_ctx_set_external(ctx, &r));
    FAILS(weft_ctx_set_external(ctx, &r), WEFT_ERR_INVALID, "has the external implementation host_conv already");
    weft_ctx_release(ctx);
}

/* With one candidate there is nothing to compare: it is not run, and its time is the estimate, also where a measurement
 * is asked for. */
TEST(one_candidate_is_not_measured) {
    static const uint32_t engines[] = {WEFT_ENGINE_REF, WEFT_ENGINE_EXTERNAL, WEFT_ENGINE_REF | WEFT_ENGINE_EXTERNAL};
    for (size_t i = 0; i < WEFT__COUNT(engines); i++) {
        host h = {.of_peak = 1};
        weft_ctx *ctx = context_with(&h);
        weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
        weft_problem p = test_problem(usual);
        weft_plan *plan = NULL;
        weft_cost cost = WEFT_COST_INIT;
        opts.engines = engines[i];
        opts.mode = WEFT_MODE_ESTIMATE;
        OK(weft_plan_create(&plan, ctx, &p, &opts)); /* that plan is in the cache, and says nothing of wisdom */
        weft_plan_release(plan);
        opts.mode = WEFT_MODE_WISDOM_ONLY;
        FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_UNSUPPORTED, "no wisdom for");
        opts.mode = WEFT_MODE_MEASURE;
        OK(weft_plan_create(&plan, ctx, &p, &opts));
        OK(weft_plan_cost(plan, &cost));
        CHECK(weft_wisdom_count(ctx) == 1, "engines %u: %zu entries", engines[i], weft_wisdom_count(ctx));
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        for (size_t k = 0; strcmp(d.name ? d.name : "", weft_plan_kernel_name(plan)); k++)
            OK(weft_kernel_info(ctx, &p, k, &d));
        CHECK(h.rehearsals == 0 && cost.ns == d.ns && strcmp(weft__plan_choice(plan)->why, "measured"),
              "engines %u: %s by %s, %g ns, estimated %g", engines[i], weft_plan_kernel_name(plan),
              weft__plan_choice(plan)->why, cost.ns, d.ns);
        weft_plan_release(plan);
        weft_ctx_release(ctx);
    }
}
