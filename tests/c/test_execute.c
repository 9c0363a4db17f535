/* Arguments of weft_execute and weft_pack: what is refused, memory that overlaps, alignment, packed weights; and the
 * tensors of a problem as a caller sees them. */
#include <math.h>

#include "ref/item.h"
#include "test.h"

static const char usual[] = "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1g4";

typedef struct run {
    weft_ctx *ctx;
    weft_plan *plan;
    weft_args args;
    void *workspace, *block[WEFT_ROLE_COUNT];
    size_t bytes;
} run;

static void *aligned(size_t bytes) {
    void *block = aligned_alloc(64, (bytes + 127) / 64 * 64);
    CHECK(block, "no memory");
    return memset(block, 0, bytes);
}

/* A plan with memory of its own for every tensor. */
static run open_run(const char *text, const char *kernel) {
    run r = {.ctx = test_context(1), .args = WEFT_ARGS_INIT};
    weft_problem p = test_problem(text);
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = kernel;
    OK(weft_plan_create(&r.plan, r.ctx, &p, &opts));
    for (int i = 0; i < p.ntensors; i++)
        r.args.ptr[p.tensor[i].role] = r.block[p.tensor[i].role] = aligned(weft_tensor_bytes(&p.tensor[i]));
    r.bytes = weft_plan_workspace_bytes(r.plan);
    r.workspace = aligned(r.bytes);
    return r;
}

static weft_status execute(run *r) { return weft_execute(r->plan, &r->args, r->workspace, r->bytes, NULL); }

static void close_run(run *r) {
    for (int i = 0; i < WEFT_ROLE_COUNT; i++) free(r->block[i]);
    free(r->workspace);
    weft_plan_release(r->plan);
    weft_ctx_release(r->ctx);
}

/* ---------------------------------------------------------------- tensors */
TEST(tensors_of_a_problem) {
    weft_problem p = test_problem("conv2d:fwd:bf16,bias=f32:nchw,src=[1000.200.20.2]:n2c4h6w7:o8k3p1:bias");
    const int before = p.ntensors;
    const weft_tensor *src = weft_problem_find(&p, WEFT_ROLE_SRC), *bias = weft_problem_find(&p, WEFT_ROLE_BIAS),
                      *dst = weft_problem_find(&p, WEFT_ROLE_DST);
    CHECK(src && bias && dst && !weft_problem_find(&p, WEFT_ROLE_MASK) && p.ntensors == before, "%d tensors",
          p.ntensors);
    CHECK(weft_tensor_bytes(src) == 2 * (1000 + 3 * 200 + 5 * 20 + 6 * 2 + 1), "%zu", weft_tensor_bytes(src));
    CHECK(weft_tensor_bytes(bias) == 32 && weft_tensor_bytes(dst) == 2 * 2 * 8 * 6 * 7, "%zu %zu",
          weft_tensor_bytes(bias), weft_tensor_bytes(dst));
    CHECK(dst->rank == 5 && dst->dims[1] == 8 && dst->dims[3] == 6, "dims of dst");
    p = test_problem("conv2d:fwd:f32:nchw:n0c4h6w7:o8k3p1");
    CHECK(weft_tensor_bytes(weft_problem_find(&p, WEFT_ROLE_SRC)) == 0, "an empty tensor has bytes");
    p.size = 1;
    CHECK(!weft_problem_find(&p, WEFT_ROLE_SRC) && !weft_problem_find(NULL, WEFT_ROLE_SRC) && !weft_tensor_bytes(NULL),
          "tensors of nothing");
}

/* ---------------------------------------------------------------- what execute refuses */
typedef struct call {
    weft_plan *plan;
    weft_args args;
    harness_buffer b[WEFT_ROLE_COUNT], workspace;
} call;

static void prepare(call *c, weft_ctx *ctx, const char *text) {
    memset(c, 0, sizeof(*c));
    weft_problem wanted = test_problem(text);
    OK(weft_plan_create(&c->plan, ctx, &wanted, NULL));
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

/* ---------------------------------------------------------------- overlap */
TEST(outputs_that_overlap) {
    run r = open_run("conv2d:fwd:f32:nchw:n1c4h12w16:o4k3p1g4", NULL);
    char *src = r.args.ptr[WEFT_ROLE_SRC];
    const int64_t bytes = 4 * 12 * 16 * 4;
    OK(execute(&r));
    static const int64_t shifts[] = {0, 64, -64, 4 * 12 * 16 * 4 - 64, 64 - 4 * 12 * 16 * 4};
    for (size_t i = 0; i < WEFT__COUNT(shifts); i++) {
        char *room = aligned((size_t)(3 * bytes));
        r.args.ptr[WEFT_ROLE_SRC] = room + bytes;
        r.args.ptr[WEFT_ROLE_DST] = room + bytes + shifts[i];
        FAILS(execute(&r), WEFT_ERR_INVALID, "src and dst overlap");
        for (int64_t k = 0; k < 3 * bytes; k++) CHECK(room[k] == 0, "written although refused");
        for (int side = -1; side < 2; side += 2) { /* neighbours are fine */
            r.args.ptr[WEFT_ROLE_DST] = room + bytes + side * bytes;
            OK(execute(&r));
        }
        free(room);
    }
    r.args.ptr[WEFT_ROLE_SRC] = src;
    r.args.ptr[WEFT_ROLE_DST] = r.args.ptr[WEFT_ROLE_WEIGHTS];
    FAILS(execute(&r), WEFT_ERR_INVALID, "weights and dst overlap");
    close_run(&r);
    r = open_run("conv2d:bwd:f32:nchw:n1c4h12w16:o4k3p1g4", NULL); /* two outputs */
    r.args.ptr[WEFT_ROLE_DIFF_WEIGHTS] = r.args.ptr[WEFT_ROLE_DIFF_SRC];
    FAILS(execute(&r), WEFT_ERR_INVALID, "diff_src and diff_weights overlap");
    r.args.ptr[WEFT_ROLE_DIFF_WEIGHTS] = r.block[WEFT_ROLE_DIFF_WEIGHTS];
    r.args.ptr[WEFT_ROLE_SRC] = r.args.ptr[WEFT_ROLE_DIFF_DST]; /* two inputs may be one */
    OK(execute(&r));
    close_run(&r);
}

TEST(outputs_in_place) {
    static const struct {
        const char *text;
        int in, out;
        bool good;
    } cases[] = {
        {"relu2d:fwd:f32:nchw:n1c4h12w16", WEFT_ROLE_SRC, WEFT_ROLE_DST, true},
        {"tanh2d:bwd:f16:nhwc:n1c4h12w16", WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_SRC, true},
        {"clip2d:fwd:f32:nchw:n1c4h12w16", WEFT_ROLE_SRC, WEFT_ROLE_DST, true},
        {"sigmoid1d:bwd:f32:ncw:n1c4w16", WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_SRC, true},
        {"softmax2d:fwd:f32:nchw:n1c4h12w16", WEFT_ROLE_SRC, WEFT_ROLE_DST, true},
        {"log_softmax2d:bwd:f32:nchw:n1c4h12w16", WEFT_ROLE_DIFF_DST, WEFT_ROLE_DIFF_SRC, true},
        {"relu2d:fwd:f32,dst=f16:nchw:n1c4h12w16", WEFT_ROLE_SRC, WEFT_ROLE_DST, false},
        {"relu2d:fwd:f32:nchw,dst=nhwc:n1c4h12w16", WEFT_ROLE_SRC, WEFT_ROLE_DST, false},
        {"max_pool2d:fwd:f32:nchw:n1c4h12w16:k1", WEFT_ROLE_SRC, WEFT_ROLE_DST, false},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        if (weft_problem_parse(&p, cases[i].text) != WEFT_OK) continue; /* of two data types, where there are none */
        run r = open_run(cases[i].text, NULL);
        r.args.ptr[cases[i].out] = r.args.ptr[cases[i].in];
        const weft_status s = execute(&r);
        CHECK((s == WEFT_OK) == cases[i].good, "%s in place: %s", cases[i].text, weft_status_name(s));
        close_run(&r);
    }
}

/* Of an operator that may run in place no other two tensors may be one. */
TEST(which_tensors_may_be_one) {
    static const struct {
        const char *text;
        int x, y;
    } cases[] = {
        {"relu2d:bwd:f32:nchw:n1c4h12w16", WEFT_ROLE_DST, WEFT_ROLE_DIFF_SRC},
        {"tanh2d:bwd:f32:nchw:n1c4h12w16", WEFT_ROLE_DST, WEFT_ROLE_DIFF_SRC},
        {"clip2d:bwd:f32:nchw:n1c4h12w16:lo0hi6", WEFT_ROLE_DST, WEFT_ROLE_DIFF_SRC},
        {"softmax2d:bwd:f32:nchw:n1c4h12w16", WEFT_ROLE_DST, WEFT_ROLE_DIFF_SRC},
        {"log_softmax2d:bwd:f32:nchw:n1c4h12w16", WEFT_ROLE_DST, WEFT_ROLE_DIFF_SRC},
    };
    for (size_t i = 0; i < WEFT__COUNT(cases); i++) {
        run r = open_run(cases[i].text, NULL);
        CHECK(r.block[cases[i].x] && r.block[cases[i].y], "%s has other tensors", cases[i].text);
        OK(execute(&r));
        r.args.ptr[cases[i].y] = r.args.ptr[cases[i].x];
        FAILS(execute(&r), WEFT_ERR_INVALID, "overlap");
        close_run(&r);
    }
}

/* src and dst of so many bytes, one strided and one dense, next to each other, and sharing 16 bytes. */
static void check_apart(const char *text, int64_t src, int64_t dst) {
    run r = open_run(text, NULL);
    char *room = aligned(dst + src + dst);
    const int64_t apart[] = {src, -dst, src - 16, 16 - dst};
    r.args.ptr[WEFT_ROLE_SRC] = room + dst;
    for (size_t i = 0; i < WEFT__COUNT(apart); i++) {
        r.args.ptr[WEFT_ROLE_DST] = room + dst + apart[i];
        if (i < 2)
            OK(execute(&r));
        else
            FAILS(execute(&r), WEFT_ERR_INVALID, "src and dst overlap");
    }
    free(room);
    close_run(&r);
}

/* Two halves of the channels of one channels-last tensor: they interleave and share nothing. */
TEST(tensors_that_interleave) {
    run r = open_run("conv2d:fwd:f32:nhwc,src=[1536.1.128.8]/16,dst=[1536.1.128.8]/16:n1c4h12w16:o4k3p1g4", NULL);
    char *room = aligned(1536 * 4 + 64);
    r.args.ptr[WEFT_ROLE_SRC] = room;
    r.args.ptr[WEFT_ROLE_DST] = room + 16;
    OK(execute(&r));
    r.args.ptr[WEFT_ROLE_DST] = room;
    FAILS(execute(&r), WEFT_ERR_INVALID, "src and dst overlap");
    close_run(&r);
    free(room);
    /* a strided input, of which only the last elements, or the first, lie in a dense output */
    check_apart("conv2d:fwd:f32:nhwc,src=[1536.1.128.8]/16:n1c4h12w16:o4k3p1g4", 1532 * 4, 768 * 4);
}

/* The other way round: a dense input in which the first or the last elements of a strided output lie. */
TEST(a_strided_output_and_a_dense_input) {
    check_apart("conv2d:fwd:f32:nhwc,dst=[1536.1.128.8]/16:n1c4h12w16:o4k3p1g4", 768 * 4, 1532 * 4);
}

/* ---------------------------------------------------------------- packed weights */
static const char packs[] = "dwconv_fwd_nhwc";

static weft_plan *plan_that_packs(weft_ctx *ctx, const char *text) {
    weft_problem p = test_problem(text);
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    weft_plan *plan = NULL;
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    char name[160];
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (!d.applies || !d.packed || strncmp(d.name, packs, strlen(packs))) continue;
        snprintf(name, sizeof(name), "%s%s%s", d.name, d.variant[0] ? "#" : "", d.variant);
        opts.kernel = name;
        OK(weft_plan_create(&plan, ctx, &p, &opts));
        return plan;
    }
    test_stop(TEST_FAIL, "no kernel %s packs weights of %s", packs, text);
}

TEST(the_id_of_packed_weights) {
    static const char base[] = "conv2d:fwd:f32:nhwc:n1c24h12w16:o24k3p1g24";
    static const char *const same[] = {"conv2d:fwd:f32:nhwc:n3c24h12w16:o24k3p1g24",
                                       "conv2d:fwd:f32:nhwc:n1c24h30w9:o24k3p1g24:relu"};
    static const char *const other[] = {"conv2d:fwd:f32:nhwc:n1c32h12w16:o32k3p1g32",
                                        "conv2d:fwd:f32:nhwc:n1c12h12w16:o24k3p1g12"}; /* weights of the same sizes */
    weft_ctx *ctx = test_context(1);
    weft_plan *first = plan_that_packs(ctx, base), *plan;
    const uint64_t id = weft_plan_packed_id(first);
    CHECK(id, "0 for a plan that packs");
    for (size_t i = 0; i < WEFT__COUNT(same); i++) {
        plan = plan_that_packs(ctx, same[i]);
        if (strcmp(weft_plan_kernel_name(plan), weft_plan_kernel_name(first)) == 0)
            CHECK(weft_plan_packed_id(plan) == id, "%s has another id", same[i]);
        weft_plan_release(plan);
    }
    for (size_t i = 0; i < WEFT__COUNT(other); i++) {
        plan = plan_that_packs(ctx, other[i]);
        CHECK(weft_plan_packed_id(plan) != id, "%s has the same id", other[i]);
        weft_plan_release(plan);
    }
    weft_plan_release(first);
    weft_ctx_release(ctx);
    run r = open_run("conv2d:fwd:f32:nchw:n1c4h12w16:o4k3p1g4", "conv_ref");
    CHECK(weft_plan_packed_id(r.plan) == 0 && weft_plan_packed_id(NULL) == 0, "an id without packed weights");
    close_run(&r);
}

TEST(alignment_of_pack) {
    weft_ctx *ctx = test_context(1);
    weft_plan *plan = plan_that_packs(ctx, "conv2d:fwd:f32:nhwc,weights=oihw/32:n1c24h12w16:o24k3p1g24");
    char *weights = aligned(24 * 9 * 4 + 64), *packed = aligned(weft_plan_packed_bytes(plan) + 64);
    FAILS(weft_pack(plan, weights + 16, packed, NULL), WEFT_ERR_INVALID, "weights|multiple of 32");
    FAILS(weft_pack(plan, weights, packed + 16, NULL), WEFT_ERR_INVALID, "packed|multiple of 64");
    FAILS(weft_pack(plan, NULL, packed, NULL), WEFT_ERR_INVALID, "weights is NULL");
    FAILS(weft_pack(plan, weights, NULL, NULL), WEFT_ERR_INVALID, "packed is NULL");
    OK(weft_pack(plan, weights, packed, NULL));
    free(weights), free(packed);
    weft_plan_release(plan);
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

/* Whatever changes how weights are packed changes the id: those of the first are not taken for those of another. */
static const struct other {
    const char *what, *text;
    const char *name;
    int version;
    size_t packed;
    unsigned char first, last; /* of the kernel's parameters */
} others[] = {
    {"itself", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 0},
    {"another pass", "conv2d:bwd_data:f32:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 0},
    {"other strides", "conv2d:fwd:f32:nchw,weights=[72.18.6.2]:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 0},
    {"other groups", "conv2d:fwd:f32:nchw:n1c8h12w20:o4k3p1g2", "fake", 1, PACKED, 0, 0},
    {"more channels", "conv2d:fwd:f32:nchw:n1c4h12w20:o5k3p1", "fake", 1, PACKED, 0, 0},
    {"another window", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k9x1p0", "fake", 1, PACKED, 0, 0},
    {"f64", "conv2d:fwd:f64:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 0},
    {"f16", "conv2d:fwd:f16:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 0},
    {"bf16", "conv2d:fwd:bf16:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 0},
    {"another kernel", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1", "other", 1, PACKED, 0, 0},
    {"another version", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1", "fake", 2, PACKED, 0, 0},
    {"more bytes", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1", "fake", 1, 2 * PACKED, 0, 0},
    {"other tiles", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 1, 0},
    {"other parameters at the end", "conv2d:fwd:f32:nchw:n1c4h12w20:o4k3p1", "fake", 1, PACKED, 0, 1},
};

TEST(the_id_tells_apart_what_is_packed_in_another_way) {
    enum { COUNT = sizeof(others) / sizeof(others[0]) };
    weft_ctx *ctx = test_context(1);
    uint64_t id[COUNT];
    for (int i = 0; i < COUNT; i++) {
        const struct other *o = &others[i];
        const weft__kernel kernel = {
            .name = o->name, .version = o->version, .op = WEFT_OP_CONV, .engine = WEFT_ENGINE_CPU};
        weft__choice c = {.kernel = &kernel, .d = {.packed = o->packed}, .why = "pinned"};
        c.d.params[0] = o->first, c.d.params[WEFT__PARAM_BYTES - 1] = o->last;
        weft_problem p = test_problem(o->text);
        weft__hw hw;
        weft_plan *plan;
        OK(weft__ctx_hw(ctx, &p, &hw));
        OK(weft__plan_build(&plan, ctx, &p, &hw, &c));
        id[i] = weft_plan_packed_id(plan);
        weft_plan_release(plan);
        for (int k = 0; k < i; k++) CHECK(id[i] != id[k], "%s and %s have one id", o->what, others[k].what);
    }
    weft_ctx_release(ctx);
}

/* A kernel that does not pack reads the weights themselves, whatever stands beside them. */
TEST(packed_weights_nobody_asked_for) {
    run r = open_run(usual, "conv_ref");
    r.args.packed = r.args.ptr[WEFT_ROLE_WEIGHTS];
    OK(execute(&r));
    r.args.ptr[WEFT_ROLE_WEIGHTS] = NULL;
    FAILS(execute(&r), WEFT_ERR_INVALID, "weights|NULL");
    close_run(&r);
}

TEST(an_empty_problem_needs_no_workspace) {
    static const weft__kernel kernel = {.name = "fake", .op = WEFT_OP_CONV, .engine = WEFT_ENGINE_CPU};
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n0c4h12w20:o4k3p1g4");
    weft__choice c = {.kernel = &kernel, .d = {.workspace = SCRATCH, .packed = PACKED}, .why = "pinned"};
    weft__hw hw;
    weft_plan *plan;
    OK(weft__ctx_hw(ctx, &p, &hw));
    OK(weft__plan_build(&plan, ctx, &p, &hw, &c));
    CHECK(weft_plan_workspace_bytes(plan) == 0, "%zu bytes", weft_plan_workspace_bytes(plan));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* Nothing to write: no pointer is asked for. */
TEST(empty_problems_run) {
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem("conv2d:fwd:f32:nchw:n0c4h12w20:o4k3p1g4");
    weft_plan *plan = NULL;
    OK(weft_plan_create(&plan, ctx, &p, NULL));
    weft_args args = WEFT_ARGS_INIT;
    OK(weft_execute(plan, &args, NULL, 0, NULL));
    weft_plan_release(plan);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- reference items */
/* What is no data type is not read as one, and what is no step is not taken for one. */
TEST(unknown_words_in_items) {
    static const int dtypes[] = {WEFT_DTYPE_NONE, WEFT_DTYPE_C64, WEFT_DTYPE_C128, WEFT_DTYPE_COUNT, 99, -1};
    int64_t value = 7;
    for (size_t i = 0; i < WEFT__COUNT(dtypes); i++) {
        CHECK(isnan(item_load(dtypes[i], &value, 0)), "data type %d reads as %g", dtypes[i],
              item_load(dtypes[i], &value, 0));
        CHECK(item_whole(dtypes[i], &value, 0) == INT64_MIN, "data type %d reads as a number", dtypes[i]);
        item_store(dtypes[i], &value, 0, 3);
        CHECK(value == 7, "data type %d was written", dtypes[i]);
    }
    weft_problem p = test_problem("relu2d:fwd:f32:nchw:n1c1h1w1");
    static const int kinds[] = {WEFT_STEP_NONE, WEFT__STEPS, 99, -1};
    for (size_t i = 0; i < WEFT__COUNT(kinds); i++) {
        weft_step s = {.kind = kinds[i]};
        CHECK(isnan(item_step(&p, NULL, &s, 0, 1)), "step %d gives %g", kinds[i], item_step(&p, NULL, &s, 0, 1));
    }
    weft_step relu = {.kind = WEFT_STEP_RELU}, clip = {.kind = WEFT_STEP_CLIP, .lo = -1, .hi = 2};
    CHECK(item_step(&p, NULL, &relu, 0, -3) == 0 && item_step(&p, NULL, &relu, 0, 3) == 3 &&
              item_step(&p, NULL, &clip, 0, -3) == -1 && item_step(&p, NULL, &clip, 0, 3) == 2 &&
              isnan(item_step(&p, NULL, &relu, 0, (double)NAN)) && isnan(item_step(&p, NULL, &clip, 0, (double)NAN)),
          "relu or clip");
}

/* Offsets of packed sequences are data: no value of them reads outside, or overflows (run under UBSan too). */
TEST(hostile_lengths) {
    static const int64_t values[] = {INT64_MIN, -1, 0, 1, 5, INT64_MAX};
    static const char *const texts[] = {"lstm:fwd:f32:dense:t3n2c2o2:rows5", "gru:bwd:f32:dense:t3n2c2o2:rows5train1"};
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        run r = open_run(texts[i], NULL);
        int64_t *lengths = r.args.ptr[WEFT_ROLE_LENGTHS];
        harness_rng g = {i};
        for (int round = 0; round < 300; round++) {
            for (int k = 0; k < 4; k++) lengths[k] = HARNESS_PICK(&g, values);
            OK(execute(&r));
        }
        close_run(&r);
    }
}

/* So are lengths of a ring: any number stands for a place of the ring, one below 0 too, for every kernel. */
TEST(hostile_ring_lengths) {
    static const char text[] = "causal_update1d:fwd:f32:ncw:n1c20w2:k3len5ring1";
    static const int32_t values[] = {0, 3, 4, 5, 9, -1, -2, -5, -6, INT32_MIN, INT32_MAX};
    enum { STATE = 20 * 5, ROOM = 3 * STATE, OUT = 40 };
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(text);
    int runs = 0;
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (!d.applies) continue;
        run r = open_run(text, d.name);
        float *src = r.args.ptr[WEFT_ROLE_SRC], *weights = r.args.ptr[WEFT_ROLE_WEIGHTS];
        float *dst = r.args.ptr[WEFT_ROLE_DST], *room = aligned(ROOM * sizeof(float)), want[ROOM + OUT];
        r.args.ptr[WEFT_ROLE_STATE] = room + STATE - 4; /* 16 bytes: the state lies in the middle */
        for (int k = 0; k < OUT; k++) src[k] = (float)(k + 1);
        for (int k = 0; k < 60; k++) weights[k] = (float)(k % 3 + 1);
        for (size_t at = 0; at < WEFT__COUNT(values); at++)
            for (int turn = 0; turn < 2; turn++) { /* first what the number stands for */
                const int32_t within = (values[at] % 5 + 5) % 5;
                *(int32_t *)r.args.ptr[WEFT_ROLE_LENGTHS] = turn ? values[at] : within;
                for (int k = 0; k < ROOM; k++) room[k] = (float)(1000 + k);
                OK(execute(&r));
                if (turn) {
                    CHECK(memcmp(want, room, ROOM * sizeof(float)) == 0, "%s: length %d is not %d", d.name, values[at],
                          within);
                    CHECK(memcmp(want + ROOM, dst, OUT * sizeof(float)) == 0, "%s: dst of length %d", d.name,
                          values[at]);
                }
                memcpy(want, room, ROOM * sizeof(float)), memcpy(want + ROOM, dst, OUT * sizeof(float));
            }
        runs++;
        free(room);
        close_run(&r);
    }
    CHECK(runs > 1, "%d kernels", runs);
    weft_ctx_release(ctx);
}

/* So are the numbers of rows of a state: one that is none of them is padding, for every kernel. Its output is 0, and no
 * row moves. */
TEST(hostile_rows) {
    static const char text[] = "causal_update1d:fwd:f32:ncw:n1c20w2:k3len2rows3index1";
    static const int32_t none[] = {3, 4, -1, INT32_MIN, INT32_MAX};
    weft_ctx *ctx = test_context(1);
    weft_problem p = test_problem(text);
    int runs = 0;
    for (size_t i = 0; i < weft_kernel_count(ctx, &p); i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        OK(weft_kernel_info(ctx, &p, i, &d));
        if (!d.applies) continue;
        run r = open_run(text, d.name);
        float *src = r.args.ptr[WEFT_ROLE_SRC], *weights = r.args.ptr[WEFT_ROLE_WEIGHTS];
        float *dst = r.args.ptr[WEFT_ROLE_DST], *state = aligned(2 * 3 * 20 * 2 * sizeof(float));
        r.args.ptr[WEFT_ROLE_STATE] = state; /* with room behind it, which is not to be written to */
        for (int k = 0; k < 40; k++) src[k] = 1;
        for (int k = 0; k < 60; k++) weights[k] = 1;
        for (size_t at = 0; at < WEFT__COUNT(none); at++) {
            *(int32_t *)r.args.ptr[WEFT_ROLE_INDEX] = none[at];
            for (int k = 0; k < 40; k++) dst[k] = 7;
            OK(execute(&r));
            for (int k = 0; k < 40; k++) CHECK(dst[k] == 0, "%s: %g for row %d", d.name, (double)dst[k], none[at]);
            for (int k = 0; k < 240; k++) CHECK(state[k] == 0, "%s: row %d was written to", d.name, none[at]);
        }
        runs++;
        free(state);
        close_run(&r);
    }
    CHECK(runs > 1, "%d kernels", runs);
    weft_ctx_release(ctx);
}

/* ---------------------------------------------------------------- the harness itself */
/* A kernel without the mask of its tail: what it reads behind the input must not look like untouched output. */
TEST(a_missing_tail_mask_is_noticed) {
    static const char *const texts[] = {"relu1d:fwd:f32:ncw:n1c1w5",
                                        "relu1d:fwd:f32:ncw,src=[10.10.2],dst=[10.10.2]:n1c1w5"};
    for (size_t i = 0; i < WEFT__COUNT(texts); i++) {
        weft_problem p = test_problem(texts[i]);
        static harness_buffer in, out;
        char why[256] = "";
        CHECK(harness_open(&in, weft_problem_find(&p, WEFT_ROLE_SRC), HARNESS_END) &&
                  harness_open(&out, weft_problem_find(&p, WEFT_ROLE_DST), HARNESS_END),
              "no memory");
        harness_fill(&in, HARNESS_REALS, 1);
        harness_seal(&in);
        const float *src = in.at;
        float *dst = out.at;
        const int step = i ? 2 : 1;
        for (int k = 0; k < 5; k++) dst[k * step] = 1.5f * src[k * step];
        CHECK(harness_intact(&out, why, sizeof(why)), "%s", why);
        const int stray = i ? 1 : 5; /* between elements; behind the last */
        dst[stray] = 1.5f * src[stray];
        CHECK(!harness_intact(&out, why, sizeof(why)), "not noticed in %s", texts[i]);
        harness_close(&in), harness_close(&out);
    }
}
