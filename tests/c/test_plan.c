/* The planner and the plan: how a kernel is chosen, the cache, counting of references, packed weights, and what execute
 * refuses. */
#include <pthread.h>
#include <stdatomic.h>

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

/* Counts blocks, so that what the cache lets go of shows. */
static _Atomic int64_t blocks, allocations;
static void *counted_alloc(void *user, size_t bytes) {
    (void)user;
    void *block = malloc(bytes);
    atomic_fetch_add(&allocations, 1);
    if (block) atomic_fetch_add(&blocks, 1);
    return block;
}
static void counted_free(void *user, void *block) {
    (void)user;
    if (block) atomic_fetch_sub(&blocks, 1);
    free(block);
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

/* ---------------------------------------------------------------- what execute refuses */
typedef struct call {
    weft_plan *plan;
    weft_args args;
    harness_buffer b[WEFT_ROLE_COUNT], workspace;
} call;

static void prepare(call *c, weft_ctx *ctx, const char *text) {
    memset(c, 0, sizeof(*c));
    c->plan = plan_of(ctx, text, NULL);
    c->args = (weft_args)WEFT_ARGS_INIT;
    const weft_problem *p = weft_plan_problem(c->plan);
    for (int i = 0; i < p->ntensors; i++) {
        int role = p->tensor[i].role;
        CHECK(harness_open(&c->b[role], &p->tensor[i], HARNESS_START), "no memory");
        if (!weft__is_output(p, role)) harness_fill(&c->b[role], HARNESS_REALS, 1);
        c->args.ptr[role] = c->b[role].at;
    }
    CHECK(harness_open_bytes(&c->workspace, weft_plan_workspace_bytes(c->plan), 64, HARNESS_START), "no memory");
}

static void discard(call *c) {
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) harness_close(&c->b[role]);
    harness_close(&c->workspace);
    weft_plan_release(c->plan);
}

static void refuses(call *c, const weft_args *args, void *workspace, size_t bytes, weft_status status,
                    const char *words) {
    const weft_problem *p = weft_plan_problem(c->plan);
    FAILS(weft_execute(c->plan, args, workspace, bytes, NULL), status, words);
    for (int role = 0; role < WEFT_ROLE_COUNT; role++)
        if (c->b[role].map && weft__is_output(p, role))
            CHECK(harness_untouched(&c->b[role]), "%s was written although %s", weft__role_name(role), words);
}

TEST(execute_refuses_and_writes_nothing) {
    static const char *const texts[] = {usual, "conv2d:bwd:f32:nchw:n1c4h12w20:o4k3p1g4:bias",
                                        "conv2d:fwd:f32:nhwc:n1c20h6w7:o20k3p1g20:bias+relu",
                                        "conv1d:bwd_data:f16:ncw:n1c4w9:o4k3"};
    weft_ctx *ctx = test_context(1);
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        call c;
        prepare(&c, ctx, texts[i]);
        size_t need = weft_plan_workspace_bytes(c.plan);
        char *workspace = c.workspace.at;
        for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
            if (!c.b[role].map) continue;
            weft_args args = c.args;
            args.ptr[role] = NULL;
            refuses(&c, &args, workspace, need, WEFT_ERR_INVALID, weft__role_name(role));
            args.ptr[role] = (char *)c.args.ptr[role] + 8; /* the problem promises 16 */
            refuses(&c, &args, workspace, need, WEFT_ERR_INVALID, weft__role_name(role));
            args.ptr[role] = (char *)c.args.ptr[role] + 1;
            refuses(&c, &args, workspace, need, WEFT_ERR_INVALID, weft__role_name(role));
        }
        weft_args args = c.args;
        args.size = 8;
        refuses(&c, &args, workspace, need, WEFT_ERR_INVALID, "args");
        refuses(&c, NULL, workspace, need, WEFT_ERR_INVALID, "args is NULL");
        if (need) {
            refuses(&c, &c.args, NULL, need, WEFT_ERR_WORKSPACE, "workspace is NULL");
            refuses(&c, &c.args, workspace, need - 1, WEFT_ERR_WORKSPACE, "workspace has");
            refuses(&c, &c.args, workspace, 0, WEFT_ERR_WORKSPACE, "workspace has 0");
            refuses(&c, &c.args, workspace + 8, need, WEFT_ERR_INVALID, "64");
        }
        OK(weft_execute(c.plan, &c.args, workspace, need, NULL));
        discard(&c);
    }
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

/* ---------------------------------------------------------------- packed weights */
static const char *fake_plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)p, (void)hw, (void)variant;
    d->workspace = 1, d->packed = 65;
    return NULL;
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

enum { SCRATCH = 64, PACKED = 128 };
static int packings, packed_runs;
static const void *packed_at;
static weft_status fake_pack(const weft__exec *e, const void *weights, void *packed) {
    (void)e;
    packings++;
    memset(packed, *(const char *)weights, PACKED);
    return WEFT_OK;
}
static weft_status fake_run(const weft__exec *e) {
    packed_runs++;
    packed_at = e->packed;
    return e->packed && ((const char *)e->packed)[PACKED - 1] == 9 ? WEFT_OK : WEFT_ERR_INTERNAL;
}

/* Without packed weights a call packs behind the scratch; with them it needs the scratch alone, and no weights. */
TEST(packed_weights_need_less) {
    static const weft__kernel kernel = {
        .name = "fake", .op = WEFT_OP_CONV, .engine = WEFT_ENGINE_CPU, .pack = fake_pack, .run = fake_run};
    static char memory[SCRATCH + PACKED] __attribute__((aligned(64))), packed[PACKED] __attribute__((aligned(64)));
    static float src[960], dst[960], weights[36] __attribute__((aligned(16)));
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(usual);
    weft__hw hw;
    weft_plan *plan;
    OK(weft__ctx_hw(ctx, &p, &hw));
    weft__choice c = {.kernel = &kernel, .d = {.workspace = SCRATCH, .packed = PACKED}, .why = "pinned"};
    for (int i = 0; i < p.ntensors; i++) p.tensor[i].align = 4;
    OK(weft__plan_build(&plan, ctx, &p, &hw, &c));
    weft_args args = WEFT_ARGS_INIT;
    args.ptr[WEFT_ROLE_SRC] = src, args.ptr[WEFT_ROLE_WEIGHTS] = weights, args.ptr[WEFT_ROLE_DST] = dst;
    memset(weights, 9, sizeof(weights));
    packings = packed_runs = 0;
    FAILS(weft_execute(plan, &args, memory, SCRATCH + PACKED - 1, NULL), WEFT_ERR_WORKSPACE, "191 bytes|192 or more");
    OK(weft_execute(plan, &args, memory, SCRATCH + PACKED, NULL));
    CHECK(packings == 1 && packed_at == memory + SCRATCH, "packed %d times, %td bytes into the workspace", packings,
          (const char *)packed_at - memory);
    OK(weft_pack(plan, weights, packed, NULL));
    args.packed = packed;
    args.ptr[WEFT_ROLE_WEIGHTS] = NULL;
    FAILS(weft_execute(plan, &args, memory, SCRATCH - 1, NULL), WEFT_ERR_WORKSPACE, "63 bytes|64 or more");
    OK(weft_execute(plan, &args, memory, SCRATCH, NULL));
    CHECK(packings == 2 && packed_at == packed, "packed again, or not what was given");
    args.packed = packed + 8;
    FAILS(weft_execute(plan, &args, memory, SCRATCH, NULL), WEFT_ERR_INVALID, "packed|64");
    args.packed = NULL;
    FAILS(weft_execute(plan, &args, memory, SCRATCH + PACKED, NULL), WEFT_ERR_INVALID, "weights");
    CHECK(packed_runs == 2, "%d runs", packed_runs);
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* Nothing to write: no pointer is asked for. */
TEST(empty_problems_run) {
    weft_ctx *ctx = test_context(1);
    weft_plan *plan = plan_of(ctx, "conv2d:fwd:f32:nchw:n0c4h12w20:o4k3p1g4", NULL);
    weft_args args = WEFT_ARGS_INIT;
    OK(weft_execute(plan, &args, NULL, 0, NULL));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}
