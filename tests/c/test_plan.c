/* The planner and the plan: how a kernel is chosen, the cache, counting of references. */
#include <pthread.h>
#include <stdatomic.h>

#include "counted.h"
#include "test.h"

static const char usual[] = "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4";

static weft_plan *plan_of(weft_ctx *ctx, const char *text, const weft_plan_opts *opts) {
    weft_problem p = test_problem(text);
    weft_plan *plan = NULL;
    OK(weft_plan_create(&plan, ctx, &p, opts));
    return plan;
}

/* ---------------------------------------------------------------- choosing */
TEST(estimate_takes_the_least_cost) {
    weft_ctx *ctx = test_context(2);
    weft_plan *plan = plan_of(ctx, usual, NULL);
    const weft_problem *p = weft_plan_problem(plan);
    double least = 1e300;
    const char *best = "";
    for (size_t i = 0; i < weft_kernel_count(ctx, p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, p, i, &d));
        CHECK(d.applies == !d.reason, "%s applies %d, reason %s", d.name, d.applies, d.reason ? d.reason : "NULL");
        if (d.applies && d.ns < least) least = d.ns, best = d.name;
    }
    CHECK(strcmp(best, weft_plan_kernel_name(plan)) == 0, "%s is estimated least, %s was taken", best,
          weft_plan_kernel_name(plan));
    CHECK(strcmp(weft__plan_choice(plan)->why, "estimate") == 0, "%s", weft__plan_choice(plan)->why);
    weft_cost cost = WEFT_COST_INIT;
    OK(weft_plan_cost(plan, &cost));
    CHECK(cost.flops == 2.0 * 9 * 4 * 12 * 20 && cost.bytes == 4.0 * (2 * 4 * 12 * 20 + 36) && cost.ns == least,
          "%g %g %g", cost.flops, cost.bytes, cost.ns);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* A kind of step that is added later reaches no kernel that does not name it in its record. */
TEST(a_step_nobody_knows_is_refused) {
    weft_ctx *ctx = test_context(2);
    weft_problem p = test_problem(usual);
    const weft__kernel *const *list;
    size_t count = weft__kernels(p.op, &list), took = 0;
    weft__hw hw;
    weft__decision d;
    OK(weft__ctx_hw(ctx, &p, &hw));
    for (size_t i = 0; i < count; i++) {
        const weft__kernel *k = list[i];
        p.nsteps = 0;
        if (k->reference || weft__kernel_plan(ctx, k, 0, &p, &hw, &d)) continue;
        took++;
        p.nsteps = 1;
        p.step[0] = (weft_step){.kind = WEFT__STEPS};
        CHECK(weft__kernel_plan(ctx, k, 0, &p, &hw, &d), "%s takes a step that it does not know", k->name);
    }
    CHECK(took > 0, "no fast kernel takes %s", usual);
    weft_ctx_release(ctx);
}

TEST(pin) {
    weft_ctx *ctx = test_context(1);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = "conv_ref";
    weft_plan *plan = plan_of(ctx, usual, &opts);
    CHECK(strcmp(weft_plan_kernel_name(plan), "conv_ref") == 0 && strcmp(weft__plan_choice(plan)->why, "pinned") == 0,
          "%s", weft_plan_kernel_name(plan));
    weft_plan_release(plan);
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n1c4h12w20:o4k5p1g4");
    opts.kernel = "no_such_kernel";
    FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_INVALID, "no_such_kernel|conv");
    CHECK(plan == NULL, "a plan in spite of the error");
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) { /* a refusal comes with its reason */
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (d.applies) continue;
        opts.kernel = d.name;
        FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_UNSUPPORTED, d.name);
        CHECK(strstr(weft_last_error(), d.reason), "%s: %s", d.reason, weft_last_error());
    }
    weft_ctx_release(ctx);
}

/* A problem whose best kernel wants scratch: a limit of exactly that is enough, one byte less is not. */
TEST(workspace_limit) {
    weft_ctx *ctx = test_context(1);
    static const char text[] = "conv2d:bwd_weights:f32:nchw:n2c8h24w24:o8k3p1g8";
    weft_plan *plan = plan_of(ctx, text, NULL);
    size_t need = weft_plan_workspace_bytes(plan);
    char name[128];
    snprintf(name, sizeof(name), "%s", weft_plan_kernel_name(plan));
    weft_plan_release(plan);
    CHECK(need > 0, "%s needs no workspace: the test wants another problem", name);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_problem p = test_problem(text);
    opts.workspace_limit = need;
    plan = plan_of(ctx, text, &opts);
    CHECK(strcmp(weft_plan_kernel_name(plan), name) == 0, "%s with a limit of %zu, not %s", weft_plan_kernel_name(plan),
          need, name);
    weft_plan_release(plan);
    opts.workspace_limit = need - 1;
    plan = plan_of(ctx, text, &opts);
    CHECK(weft_plan_workspace_bytes(plan) < need, "%s wants %zu, the limit is %zu", weft_plan_kernel_name(plan),
          weft_plan_workspace_bytes(plan), need - 1);
    weft_plan_release(plan);
    opts.kernel = name;
    FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_UNSUPPORTED, "workspace|limit");
    opts.workspace_limit = need;
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    weft_ctx_opts own = WEFT_CTX_OPTS_INIT; /* the context's limit, and a plan that says there is none */
    own.workspace_limit = need - 1;
    OK(weft_ctx_create(&ctx, &own));
    opts = (weft_plan_opts)WEFT_PLAN_OPTS_INIT;
    opts.kernel = name;
    FAILS(weft_plan_create(&plan, ctx, &p, &opts), WEFT_ERR_UNSUPPORTED, "workspace|limit");
    opts.workspace_limit = WEFT_NO_LIMIT;
    OK(weft_plan_create(&plan, ctx, &p, &opts));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* Every valid problem has a plan, says weft.h: the reference is not held to the limit, by estimate or by wisdom. */
TEST(the_reference_has_no_limit) {
    weft_ctx *ctx = test_context(1);
    size_t over = 0;
    for (int op = 1; op < WEFT_OP_COUNT; op++)
        for (uint64_t seed = 0; seed < 40; seed++) {
            weft_problem p = WEFT_PROBLEM_INIT;
            weft_plan_opts opts = {.size = sizeof(opts), .workspace_limit = 1};
            weft_plan *plan = NULL;
            CHECK(harness_random_of(&p, seed, WEFT_DEVICE_CPU, op), "%s", weft_last_error());
            for (int mode = WEFT_MODE_ESTIMATE; mode <= WEFT_MODE_WISDOM_ONLY; mode++) {
                opts.mode = mode;
                opts.engines = mode == WEFT_MODE_ESTIMATE ? 0 : WEFT_ENGINE_REF; /* nothing to measure */
                OK(weft_plan_create(&plan, ctx, &p, &opts));
                over += weft_plan_workspace_bytes(plan) > 1;
                weft_plan_release(plan);
            }
        }
    CHECK(over > 20, "%zu references over the limit", over);
    weft_ctx_release(ctx);
}

/* A strip that the threads share stays near the last-level cache: 12 MB, rounding apart, of any shape and groups. */
TEST(strips_of_winograd_stay_near) {
#ifdef WEFT__SMALL_CUTS
    SKIP("strips are small in this build");
#endif
    static const char *const texts[] = {
        "conv2d:fwd:f32:nchw:n8c256h112w112:o256k3p1", "conv2d:bwd_data:f32:nchw:n8c256h112w112:o256k3p1",
        "conv2d:fwd:f32:nchw:n8c512h112w112:o512k3p1g2", "conv3d:fwd:f32:ncdhw:n2c128d32h112w112:o128k3p1"};
    weft_ctx *ctx = test_context(2);
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        weft_problem p = test_problem(texts[i]);
        const weft__kernel *const *list;
        weft__decision d;
        weft__hw hw;
        int taken = 0;
        OK(weft__ctx_hw(ctx, &p, &hw));
        for (size_t n = weft__kernels(p.op, &list); n-- > 0;) {
            if (!strstr(list[n]->name, "_winograd2") || weft__kernel_plan(ctx, list[n], 0, &p, &hw, &d)) continue;
            taken++;
            CHECK(d.workspace > (size_t)6 << 20 && d.workspace < (size_t)14 << 20, "%s: %zu bytes for %s",
                  list[n]->name, d.workspace, texts[i]);
        }
        CHECK(taken > 0, "no Winograd takes %s", texts[i]);
    }
    weft_ctx_release(ctx);
}

TEST(engines) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx;
    weft_plan *plan;
    opts.engines = WEFT_ENGINE_REF;
    OK(weft_ctx_create(&ctx, &opts));
    plan = plan_of(ctx, usual, NULL);
    CHECK(strcmp(weft_plan_kernel_name(plan), "conv_ref") == 0, "%s", weft_plan_kernel_name(plan));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
    opts.engines = WEFT_ENGINE_CUDA;
    OK(weft_ctx_create(&ctx, &opts));
    weft_problem p = test_problem(usual);
    FAILS(weft_plan_create(&plan, ctx, &p, NULL), WEFT_ERR_UNSUPPORTED, "engines");
    weft_ctx_release(ctx);
    opts.engines = WEFT_ENGINE_REF | WEFT_ENGINE_CPU;
    OK(weft_ctx_create(&ctx, &opts));
    p = test_problem("conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4@cuda");
    FAILS(weft_plan_create(&plan, ctx, &p, NULL), WEFT_ERR_UNSUPPORTED, "cuda|switched off");
    weft_plan_opts ask = WEFT_PLAN_OPTS_INIT; /* pinned, its engine off for this plan */
    ask.engines = WEFT_ENGINE_CPU, ask.kernel = "conv_ref";
    p = test_problem(usual);
    FAILS(weft_plan_create(&plan, ctx, &p, &ask), WEFT_ERR_UNSUPPORTED, "conv_ref|engine is switched off");
    weft_ctx_release(ctx);
}

/* A build runs where all of its features are, whatever else there is. */
TEST(features) {
    weft__hw all, hw;
    weft__hw_detect(&all);
    CHECK(weft__hw_runs(&all, WEFT__SCALAR) && weft__hw_runs(&all, all.isa), "isa %s", weft__isa_names[all.isa]);
    for (int i = 0; i < WEFT__ISA_COUNT; i++) {
        hw = all;
        weft__hw_limit(&hw, (weft__isa)i);
        CHECK(!(hw.features & ~all.features), "limit %s gave features", weft__isa_names[i]);
        CHECK(weft__hw_runs(&hw, (weft__isa)i) == weft__hw_runs(&all, (weft__isa)i), "limit %s", weft__isa_names[i]);
        if (!weft__hw_runs(&hw, (weft__isa)i)) continue;
        CHECK((int)hw.isa == i, "limit %s is %s", weft__isa_names[i], weft__isa_names[hw.isa]);
        const uint32_t needed = hw.features; /* no more than the row's, and none to spare */
        for (int f = 0; f < WEFT__FEATURE_COUNT; f++) {
            hw.features = needed & ~(1u << f);
            CHECK(weft__hw_runs(&hw, (weft__isa)i) == !(needed >> f & 1), "%s without %s", weft__isa_names[i],
                  weft__feature_names[f]);
        }
    }
}

/* How much of a name is the design: up to the ISA. */
static size_t design(const char *name) {
    const char *isa = strstr(name, "__");
    return isa ? (size_t)(isa - name) : strlen(name);
}

/* Where a fast kernel takes the problem, that of the highest instruction set allowed that it is built for. */
TEST(isa) {
    static const char *const texts[] = {"conv2d:fwd:f32:nchw:n2c32h28w28:o32k3p1g32",
                                        "conv2d:fwd:f32:nhwc:n2c32h28w28:o32k3p1g32",
                                        "conv2d:bwd:f32:nchw:n2c32h28w28:o32k3p1g32"};
    weft__hw hw;
    weft__hw_detect(&hw);
    for (int i = 0; i < WEFT__ISA_COUNT; i++)
        for (size_t t = 0; t < WEFT__COUNT(texts); t++) {
            weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
            weft_ctx *ctx;
            opts.isa = weft__isa_names[i];
            OK(weft_ctx_create(&ctx, &opts));
            weft_plan *plan = plan_of(ctx, texts[t], NULL);
            const weft__kernel *k = weft__plan_choice(plan)->kernel;
            weft__hw limited = hw;
            weft__hw_limit(&limited, (weft__isa)i);
            const weft__kernel *const *list;
            int best = -1; /* of its builds */
            for (size_t n = weft__kernels(k->op, &list); n-- > 0;)
                if (weft__hw_runs(&limited, list[n]->isa) && !strncmp(list[n]->name, k->name, design(k->name)) &&
                    (int)list[n]->isa > best)
                    best = (int)list[n]->isa;
            CHECK((int)k->isa == best && !k->reference, "%s with isa %s", k->name, weft__isa_names[i]);
            weft_plan_release(plan);
            weft_ctx_release(ctx);
        }
}

/* Of equal estimates the first in the list is taken: the best instruction set comes first, the reference last. */
TEST(the_best_isa_is_listed_first) {
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        const weft__kernel *const *list;
        const size_t count = weft__kernels(op, &list);
        int isa = WEFT__ISA_COUNT;
        for (size_t i = 0; i < count; i++) {
            if (list[i]->engine != WEFT_ENGINE_CPU) continue;
            CHECK((int)list[i]->isa <= isa, "%s comes before %s", list[i - 1]->name, list[i]->name);
            isa = (int)list[i]->isa;
        }
        CHECK(count && list[count - 1]->reference, "operator %d does not end with its reference", op);
    }
}

TEST(wisdom_only_takes_what_is_known) {
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(usual);
    weft_plan *plan = NULL;
    weft_plan_opts ask = WEFT_PLAN_OPTS_INIT;
    ask.mode = WEFT_MODE_WISDOM_ONLY;
    FAILS(weft_plan_create(&plan, ctx, &p, &ask), WEFT_ERR_UNSUPPORTED,
          "no wisdom for conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4@cpu");
    CHECK(plan == NULL, "a plan of a problem that is not known");
    ask.mode = WEFT_MODE_MEASURE;
    ask.measure_seconds = -1;
    FAILS(weft_plan_create(&plan, ctx, &p, &ask), WEFT_ERR_INVALID, "measure_seconds is -1");
    ask.measure_seconds = 0.1;
    weft_plan_release(plan_of(ctx, usual, &ask));
    ask.mode = WEFT_MODE_WISDOM_ONLY;
    plan = plan_of(ctx, usual, &ask);
    CHECK(strcmp(weft__plan_choice(plan)->why, "measured") == 0, "%s", weft__plan_choice(plan)->why);
    weft_plan_release(plan);
    /* empty: there is nothing to know */
    weft_plan_release(plan_of(ctx, "conv2d:fwd:f32:nchw:n0c4h12w20:o4k3p1g4", &ask));
    weft_ctx_release(ctx);
}

/* Of a problem with one kernel alone there is wisdom, too, once it was asked for: a plan without is no answer. */
TEST(the_only_kernel_is_known_once_asked_for) {
    static const char text[] = "conv1d:fwd:f64:ncw:n1c1w9:o1k3";
    static const struct {
        int mode;
        const char *why; /* NULL: it is not known */
    } steps[] = {{WEFT_MODE_ESTIMATE, "only"},
                 {WEFT_MODE_WISDOM_ONLY, NULL},
                 {WEFT_MODE_MEASURE, "wisdom"},
                 {WEFT_MODE_WISDOM_ONLY, "wisdom"}};
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(text);
    for (size_t i = 0; i < WEFT__COUNT(steps); i++) {
        weft_plan *plan = NULL;
        weft_plan_opts ask = WEFT_PLAN_OPTS_INIT;
        ask.mode = steps[i].mode;
        if (!steps[i].why) {
            FAILS(weft_plan_create(&plan, ctx, &p, &ask), WEFT_ERR_UNSUPPORTED, "no wisdom for conv1d");
            continue;
        }
        OK(weft_plan_create(&plan, ctx, &p, &ask));
        CHECK(strcmp(weft__plan_choice(plan)->why, steps[i].why) == 0, "step %zu: %s", i, weft__plan_choice(plan)->why);
        weft_plan_release(plan);
    }
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the cache */
TEST(equal_problems_share_a_plan) {
    weft_ctx *ctx = test_context(1);
    weft_plan *a = plan_of(ctx, usual, NULL),
              *b = plan_of(ctx, "conv2d:fwd:f32:nchw:c4n1w20h12:k3x3o4g4p1:fast@cpu", NULL);
    CHECK(a == b, "two plans for one problem");
    weft_plan *c = plan_of(ctx, "conv2d:fwd:f32:nchw:n2c4h12w20:o4k3p1g4", NULL);
    CHECK(c != a, "one plan for two problems");
    weft_plan *strict = plan_of(ctx, "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4:strict", NULL);
    CHECK(strict != a && weft_plan_problem(strict)->math == WEFT_MATH_STRICT, "one plan for fast and for strict math");
    weft_plan_release(strict);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = "conv_ref";
    weft_plan *d = plan_of(ctx, usual, &opts);
    CHECK(d != a || strcmp(weft_plan_kernel_name(a), "conv_ref") == 0, "a pinned plan is the other one");
    CHECK(weft_plan_retain(a) == a, "retain");
    weft_plan_release(a), weft_plan_release(a), weft_plan_release(b), weft_plan_release(c), weft_plan_release(d);
    CHECK(weft_plan_retain(NULL) == NULL, "retain of NULL");
    weft_plan_release(NULL);
    weft_ctx_release(ctx);
}

static weft_plan *sized(weft_ctx *ctx, int n) {
    char text[128];
    snprintf(text, sizeof(text), "conv1d:fwd:f64:ncw:n%dc1w9:o1k3", n);
    return plan_of(ctx, text, NULL);
}

TEST(the_cache_is_bounded_and_drops_the_oldest) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx;
    opts.plan_cache = 4;
    opts.alloc = counted_alloc;
    opts.free = counted_free;
    OK(weft_ctx_create(&ctx, &opts));
    weft_plan *first = sized(ctx, 1);
    for (int n = 2; n <= 4; n++) weft_plan_release(sized(ctx, n));
    weft_plan *again = sized(ctx, 1); /* used again: now the newest */
    CHECK(again == first, "not from the cache");
    weft_plan_release(again);
    int64_t full = atomic_load(&blocks);
    weft_plan_release(sized(ctx, 5)); /* 2 goes */
    again = sized(ctx, 1);
    CHECK(again == first, "the plan used last was dropped");
    weft_plan_release(again);
    for (int n = 100; n < 400; n++) weft_plan_release(sized(ctx, n));
    CHECK(atomic_load(&blocks) <= full + 2, "%lld blocks, %lld with a full cache", (long long)atomic_load(&blocks),
          (long long)full);
    again = sized(ctx, 1);
    CHECK(again != first, "a dropped plan came back");
    weft_ctx_release(ctx); /* plans outlive the context */
    CHECK(weft_plan_problem(first)->n == 1 && strcmp(weft_plan_kernel_name(again), "conv_ref") == 0,
          "plans after the context");
    weft_plan_release(first), weft_plan_release(again);
    CHECK(atomic_load(&blocks) == 0, "%lld blocks left", (long long)atomic_load(&blocks));
}

/* The same as a list that the test keeps, for any order of use: the plan that was used longest ago goes. */
TEST(the_cache_drops_what_was_used_longest_ago) {
    enum { ROOM = 5, KEYS = 8 };
    weft_ctx *ctx = test_context(1);
    weft__cache *cache = weft__cache_create(ctx, ROOM);
    weft_plan *plan = sized(ctx, 1);
    uint64_t kept[ROOM + 1];
    int count = 0;
    harness_rng r = {7};
    for (int round = 0; round < 3000; round++) {
        const uint64_t key = (uint64_t)harness_below(&r, KEYS), hash = key % 3; /* some share a bucket */
        int at = 0;
        while (at < count && kept[at] != key) at++;
        weft_plan *found = weft__cache_get(cache, &key, 1, hash);
        CHECK((found != NULL) == (at < count), "round %d: key %d is %s", round, (int)key, found ? "there" : "gone");
        weft_plan_release(found);
        if (at == count) OK(weft__cache_put(ctx, cache, &key, 1, hash, &plan));
        if (at == count) count == ROOM ? at-- : count++; /* the last goes, or there is room */
        memmove(kept + 1, kept, (size_t)at * sizeof(*kept));
        kept[0] = key;
    }
    weft_plan_release(plan);
    weft__cache_destroy(ctx, cache);
    weft_ctx_release(ctx);
}

/* A plan of the cache that does not serve a later request is let go of. */
TEST(replaced_plans_are_released) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx;
    opts.alloc = counted_alloc, opts.free = counted_free;
    atomic_store(&blocks, 0);
    OK(weft_ctx_create(&ctx, &opts));
    for (int mode = WEFT_MODE_ESTIMATE; mode <= WEFT_MODE_WISDOM_ONLY; mode++) {
        weft_plan_opts ask = {.size = sizeof(ask), .mode = mode};
        weft_plan_release(plan_of(ctx, "conv1d:fwd:f64:ncw:n1c1w9:o1k3", &ask));
    }
    weft_ctx_release(ctx);
    CHECK(atomic_load(&blocks) == 0, "%lld blocks left", (long long)atomic_load(&blocks));
}

/* What planning costs, counted and not timed: a plan in the cache takes no memory, a new one its own and the cache's
 * entry. build/bench_planning has the times. */
TEST(planning_allocates_little) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx;
    opts.alloc = counted_alloc;
    opts.free = counted_free;
    OK(weft_ctx_create(&ctx, &opts));
    weft_plan_release(plan_of(ctx, usual, NULL));
    atomic_store(&allocations, 0);
    weft_plan_release(plan_of(ctx, usual, NULL));
    CHECK(atomic_load(&allocations) == 0, "%lld allocations for a plan in the cache",
          (long long)atomic_load(&allocations));
    weft_plan_release(plan_of(ctx, "conv2d:fwd:f32:nchw:n2c4h12w20:o4k3p1g4", NULL));
    CHECK(atomic_load(&allocations) == 2, "%lld allocations for a new plan", (long long)atomic_load(&allocations));
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- many threads */
enum { WORKERS = 6, ROUNDS = 60, SHAPES = 5 };
typedef struct worker {
    weft_ctx *ctx;
    weft_problem p;
    int number;
    char why[256];
} worker;

static bool one_round(worker *w, int shape) {
    weft_problem p = w->p;
    weft_plan *plan = NULL;
    float src[8 * 9] = {0}, weights[8] = {0}, dst[8 * 9];
    p.nsteps = 1;
    p.step[0] = (weft_step){.kind = WEFT_STEP_CLIP, .lo = -100, .hi = shape + 1}; /* another problem for each shape */
    for (int i = 0; i < 8; i++) weights[i] = (float)(i + 1);
    for (int i = 0; i < 72; i++) src[i] = (float)i;
    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = src, args.ptr[WEFT_ROLE_WEIGHTS] = weights, args.ptr[WEFT_ROLE_DST] = dst;
    char workspace[1 << 16] __attribute__((aligned(64)));
    if (weft_plan_create(&plan, w->ctx, &p, NULL) != WEFT_OK || weft_plan_workspace_bytes(plan) > sizeof(workspace) ||
        weft_execute(plan, &args, workspace, sizeof(workspace), NULL) != WEFT_OK) {
        snprintf(w->why, sizeof(w->why), "%.200s", weft_last_error());
        weft_plan_release(plan);
        return false;
    }
    weft_plan_release(plan);
    for (int i = 0; i < 72; i++) {
        float want = src[i] * weights[i / 9];
        if (dst[i] == (want > (float)(shape + 1) ? (float)(shape + 1) : want)) continue;
        snprintf(w->why, sizeof(w->why), "element %d is %g", i, (double)dst[i]);
        return false;
    }
    return true;
}

static void *work(void *arg) {
    worker *w = arg;
    for (int i = 0; i < ROUNDS && !w->why[0]; i++) one_round(w, (i + w->number) % SHAPES);
    return NULL;
}

TEST(many_threads_plan_and_execute) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx;
    opts.threads = 3;
    opts.plan_cache = 3; /* fewer than shapes: plans come and go meanwhile */
    OK(weft_ctx_create(&ctx, &opts));
    static worker workers[WORKERS];
    pthread_t threads[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] =
            (worker){ctx, test_problem("conv1d:fwd:f32:ncw,src=ncw/4,weights=oiw/4,dst=ncw/4:n1c8w9:o8k1g8"), i, ""};
        CHECK(pthread_create(&threads[i], NULL, work, &workers[i]) == 0, "no thread");
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < WORKERS; i++) CHECK(!workers[i].why[0], "thread %d: %s", i, workers[i].why);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the cache by itself */
/* One hash, two keys: not one plan. A second plan for a key gives way to the first and is released. */
TEST(the_cache_compares_keys) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx;
    opts.alloc = counted_alloc;
    opts.free = counted_free;
    atomic_store(&blocks, 0);
    OK(weft_ctx_create(&ctx, &opts));
    weft_plan *a = sized(ctx, 1), *b = sized(ctx, 2), *second = weft_plan_retain(b);
    weft__cache *cache = weft__cache_create(ctx, 4);
    const uint64_t key[] = {1, 2}, other[] = {1, 3}, hash = 5;
    OK(weft__cache_put(ctx, cache, key, 2, hash, &a));
    CHECK(!weft__cache_get(cache, other, 2, hash) && !weft__cache_get(cache, key, 1, hash), "a plan of another key");
    OK(weft__cache_put(ctx, cache, key, 2, hash, &second));
    CHECK(second == a, "a second plan for the same key");
    weft__cache_clear(ctx, cache, other, 2);
    weft_plan *found = weft__cache_get(cache, key, 2, hash);
    CHECK(found == a, "dropped with another key");
    weft__cache_clear(ctx, cache, key, 1); /* those that begin so */
    CHECK(!weft__cache_get(cache, key, 2, hash), "not dropped");
    weft_plan_release(found), weft_plan_release(second), weft_plan_release(a), weft_plan_release(b);
    weft__cache_destroy(ctx, cache);
    weft_ctx_release(ctx);
    CHECK(atomic_load(&blocks) == 0, "%lld blocks left", (long long)atomic_load(&blocks));
}

/* Of one kernel, two of its variants too; its name alone is the variant with the least estimate. */
TEST(two_pins_are_two_plans) {
    static const char *const texts[] = {usual, "conv2d:fwd:f32:nhwc:n2c256h14w14:o256k3p1g256",
                                        "conv2d:fwd:f32:nhwc:n2c2048h28w28:o2048k3p1g2048"};
    weft_ctx *ctx = test_context(1);
    int variants = 0;
    for (size_t k = 0; k < WEFT__COUNT(texts); k++) {
        weft_problem p = test_problem(texts[k]);
        for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
            weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
            weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
            char name[WEFT__NAME_MAX];
            OK(weft_kernel_info(ctx, &p, i, &d));
            if (!d.applies) continue;
            snprintf(name, sizeof(name), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
            opts.kernel = name;
            weft_plan *plan = plan_of(ctx, texts[k], &opts);
            CHECK(strcmp(weft_plan_kernel_name(plan), name) == 0, "%s instead of %s", weft_plan_kernel_name(plan),
                  name);
            weft_plan_release(plan);
            if (!d.variant[0]) continue;
            variants++;
            opts.kernel = d.name;
            plan = plan_of(ctx, texts[k], &opts);
            CHECK(weft__plan_choice(plan)->d.ns <= d.ns, "%s is %s, slower than %s", d.name,
                  weft_plan_kernel_name(plan), name);
            weft_plan_release(plan);
        }
    }
    CHECK(variants > 2, "%d variants", variants);
    weft_ctx_release(ctx);
}

static const char *fake_plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)p, (void)hw, (void)variant;
    d->workspace = 1, d->packed = 65;
    return NULL;
}

/* Nothing can be measured of an empty problem, so a plan that was made without is as good. */
TEST(an_empty_problem_is_planned_once) {
    weft_ctx *ctx = test_context(1);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_plan *first = plan_of(ctx, "conv2d:fwd:f32:nchw:n0c4h12w20:o4k3p1g4", NULL);
    opts.mode = WEFT_MODE_MEASURE;
    weft_plan *again = plan_of(ctx, "conv2d:fwd:f32:nchw:n0c4h12w20:o4k3p1g4", &opts);
    CHECK(again == first, "planned again to be measured");
    weft_plan_release(first), weft_plan_release(again);
    weft_ctx_release(ctx);
}

/* Scratch and packed weights come in whole cache lines, so that the one may lie behind the other. */
TEST(bytes_are_rounded_up) {
    static const weft__kernel kernel = {
        .name = "fake", .op = WEFT_OP_CONV, .engine = WEFT_ENGINE_CPU, .plan = fake_plan};
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(usual);
    weft__decision d;
    weft__hw hw;
    OK(weft__ctx_hw(ctx, &p, &hw));
    const char *why = weft__kernel_plan(ctx, &kernel, 0, &p, &hw, &d);
    CHECK(!why && d.workspace == 64 && d.packed == 128 && weft__decision_bytes(&d) == 192, "%s %zu %zu", why ? why : "",
          d.workspace, d.packed);
    weft_ctx_release(ctx);
}
