/* A program of somebody else against weft.h: every section of it in turn, in what C11 and C++17 have in common. The
 * install tests build it in both languages, against an installed weft and against its sources. */
#include <math.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <weft.h>

static const char depthwise[] = "conv2d:fwd:f32:nchw:n1c2h4w4:o2k3p1g2";
enum { C = 2, H = 4, W = 4 };
alignas(64) static float src[C * H * W], weights[C * 9], dst[C * H * W];

#define MUST(condition)                                                                        \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "line %d: not %s: %s\n", __LINE__, #condition, weft_last_error()); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

/* 2. Status */
static void section_status(void) {
    MUST(strcmp(weft_version(), WEFT_VERSION) == 0);
    MUST(strcmp(weft_status_name(WEFT_ERR_SYNTAX), "SYNTAX") == 0 && weft_status_text(WEFT_OK)[0]);
#define COUNT(NAME, meaning) +1
    MUST(WEFT_STATUS_COUNT == 1 WEFT_ERR_LIST(COUNT));
#undef COUNT
    MUST(weft_ctx_create(NULL, NULL) == WEFT_ERR_INVALID && strstr(weft_last_error(), "ctx is NULL"));
}

/* 3. Words */
static void section_words(void) {
#define NAME(NAME_, name) #name,
    static const char *const roles[] = {WEFT_ROLE_LIST(NAME)}, *const ops[] = {WEFT_OP_LIST(NAME)};
#undef NAME
    MUST(sizeof(roles) / sizeof(roles[0]) == WEFT_ROLE_COUNT && strcmp(roles[WEFT_ROLE_DIFF_DST], "diff_dst") == 0);
    MUST(strcmp(ops[WEFT_OP_LSTM - 1], "lstm") == 0);
    MUST(WEFT_DTYPE_NONE == 0 && WEFT_LAYOUT_NONE == 0 && WEFT_MATH_NONE == 0 && WEFT_DEVICE_NONE == 0);
}

/* 4. The problem */
static weft_problem section_problem(void) {
    weft_problem p = WEFT_PROBLEM_INIT, q = WEFT_PROBLEM_INIT;
    char text[WEFT_TEXT_MAX];
    size_t length = 0;
    MUST(weft_problem_init(&p, WEFT_OP_CONV, WEFT_PASS_FWD, 2) == WEFT_OK);
    p.n = 1;
    p.c = p.o = p.groups = C;
    p.in[1] = H;
    p.in[2] = W;
    p.kernel[1] = p.kernel[2] = 3;
    p.pad_lo[1] = p.pad_hi[1] = p.pad_lo[2] = p.pad_hi[2] = 1;
    weft_problem_tensor(&p, WEFT_ROLE_SRC)->dtype = WEFT_DTYPE_F32;
    MUST(weft_problem_complete(&p) == WEFT_OK && weft_problem_parse(&q, depthwise) == WEFT_OK);
    MUST(memcmp(&p, &q, sizeof(p)) == 0);
    MUST(weft_problem_format(&p, text, sizeof(text), &length) == WEFT_OK && length == strlen(text));
    const weft_tensor *out = weft_problem_find(&p, WEFT_ROLE_DST);
    MUST(out && weft_tensor_bytes(out) == sizeof(dst) && out->dims[1] == C);
    MUST(!weft_problem_find(&p, WEFT_ROLE_BIAS));
    p.nsteps = 1;
    p.step[0].kind = WEFT_STEP_CLIP;
    p.step[0].lo = -1;
    p.step[0].hi = 1e6;
    MUST(weft_problem_complete(&p) == WEFT_OK);
    return p;
}

/* 5. The context */
static int lines;
static void count_line(void *user, int topic, const char *line) {
    (void)user, (void)line;
    lines += topic == WEFT_LOG_DISPATCH;
}
static void *take(void *user, size_t bytes) { return (void)user, malloc(bytes); }
static void give(void *user, void *block) { (void)user, free(block); }
static void serial(void *user, int64_t slots, weft_task task, void *arg) {
    (void)user;
    for (int64_t i = 0; i < slots; i++) task(arg, i);
}

static weft_ctx *section_context(void) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    char text[4096];
    opts.threads = 2;
    opts.engines = WEFT_ENGINE_REF | WEFT_ENGINE_CPU | WEFT_ENGINE_EXTERNAL;
    opts.log = count_line;
    opts.alloc = take;
    opts.free = give;
    opts.lock_seconds = 1;
    MUST(weft_ctx_create(&ctx, &opts) == WEFT_OK);
    MUST(weft_ctx_set_verbose(ctx, WEFT_LOG_DISPATCH) == WEFT_OK);
    MUST(weft_ctx_set_parallel_for(ctx, serial, NULL, 1) == WEFT_OK);
    MUST(weft_ctx_describe(ctx, text, sizeof(text), NULL) == WEFT_OK && strstr(text, "version: " WEFT_VERSION));
    return ctx;
}

/* 6. The plan */
static void section_plan(weft_ctx *ctx, const weft_problem *p) {
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    weft_args args = WEFT_ARGS_INIT;
    weft_cost cost = WEFT_COST_INIT;
    weft_plan *plan = NULL;
    opts.workspace_limit = WEFT_NO_LIMIT;
    opts.engines = WEFT_ENGINE_REF | WEFT_ENGINE_CPU;
    for (int i = 0; i < C * H * W; i++) src[i] = 1;
    for (int i = 0; i < C * 9; i++) weights[i] = 1;
    MUST(weft_plan_create(&plan, ctx, p, &opts) == WEFT_OK && lines > 0);
    MUST(weft_plan_problem(plan)->n == 1 && weft_plan_kernel_name(plan)[0]);
    MUST(weft_plan_cost(plan, &cost) == WEFT_OK && cost.flops > 0 && cost.bytes > 0);
    MUST((weft_plan_packed_id(plan) != 0) == (weft_plan_packed_bytes(plan) != 0));
    size_t bytes = (weft_plan_workspace_bytes(plan) + 127) / 64 * 64, packed_bytes = weft_plan_packed_bytes(plan) + 64;
    void *workspace = aligned_alloc(64, bytes), *packed = aligned_alloc(64, (packed_bytes + 63) / 64 * 64);
    args.ptr[WEFT_ROLE_SRC] = src;
    args.ptr[WEFT_ROLE_WEIGHTS] = weights;
    args.ptr[WEFT_ROLE_DST] = dst;
    MUST(weft_pack(plan, weights, packed, NULL) == WEFT_OK);
    args.packed = weft_plan_packed_bytes(plan) ? packed : NULL;
    MUST(weft_execute(plan, &args, workspace, bytes, NULL) == WEFT_OK);
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++) {
            int rows = y == 0 || y == H - 1 ? 2 : 3, columns = x == 0 || x == W - 1 ? 2 : 3;
            MUST(fabs((double)dst[y * W + x] - rows * columns) == 0 && dst[y * W + x] == dst[(H + y) * W + x]);
        }
    args.ptr[WEFT_ROLE_DST] = src;
    MUST(weft_execute(plan, &args, workspace, bytes, NULL) == WEFT_ERR_INVALID);
    free(packed);
    free(workspace);
    weft_plan_release(weft_plan_retain(plan));
    weft_plan_release(plan);
    weft_plan_release(NULL);
}

/* 7. Kernels */
static const char *never(void *user, const weft_problem *p) { return (void)user, (void)p, "only an example"; }
static void rate(void *user, const weft_problem *p, weft_rates *rates) {
    (void)user, (void)p;
    rates->ns = 1000;
    rates->of_peak = rates->of_bandwidth = 0.5;
}
static weft_status run_once(void *user, const weft_problem *p, const weft_args *args, void *stream) {
    (void)user, (void)p, (void)args, (void)stream;
    return WEFT_ERR_UNSUPPORTED;
}

static void section_kernels(weft_ctx *ctx, const weft_problem *p) {
    weft_external external = WEFT_EXTERNAL_INIT;
    external.name = "example";
    external.reject = never;
    external.estimate = rate;
    external.run_once = run_once;
    MUST(weft_ctx_set_external(ctx, &external) == WEFT_OK);
    size_t count = weft_kernel_count(ctx, p), applies = 0;
    for (size_t i = 0; i < count; i++) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        MUST(weft_kernel_info(ctx, p, i, &d) == WEFT_OK && d.name[0] && (d.applies || d.reason));
        applies += d.applies != 0;
    }
    MUST(applies > 0);
}

/* 8. Wisdom */
static void section_wisdom(weft_ctx *ctx, const weft_problem *p) {
    weft_wisdom_report report = WEFT_WISDOM_REPORT_INIT;
    char text[4096];
    static const char line[] =
        "cpu:other:avx2 " WEFT_VERSION " t2 conv2d:fwd:f32:nchw:n1c2h4w4:o2k3p1g2@cpu k v1 5 0\n";
    size_t length = 0;
    MUST(weft_wisdom_parse(ctx, line, sizeof(line) - 1, &report) == WEFT_OK && report.other_machines == 1);
    MUST(weft_wisdom_format(ctx, text, sizeof(text), &length) == WEFT_OK && strstr(text, "cpu:other:avx2"));
    MUST(weft_wisdom_save(ctx, "/nowhere/at/all", &report) == WEFT_ERR_IO);
    MUST(weft_wisdom_load(ctx, "/nowhere/at/all", &report) == WEFT_ERR_IO);
    MUST(weft_wisdom_forget(ctx, p) == WEFT_OK && weft_wisdom_forget(ctx, NULL) == WEFT_OK);
    MUST(weft_wisdom_count(ctx) == 0);
}

/* 9. Sparse weights */
static void section_sparse(void) {
    weft_problem p = WEFT_PROBLEM_INIT;
    static const float dense[2 * 9] = {0, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3};
    float values[3];
    int32_t rows[3], cols[3], stretched[3];
    int64_t nnz = 0;
    MUST(weft_problem_parse(&p, "sparse_conv2d:fwd:f32:nchw:n1c1h8w8:o2k3nnz0") == WEFT_OK);
    MUST(weft_sparse_count(&p, NULL, dense, &nnz) == WEFT_OK && nnz == 3);
    MUST(weft_problem_parse(&p, "sparse_conv2d:fwd:f32:nchw:n1c1h8w8:o2k3nnz3") == WEFT_OK);
    MUST(weft_sparse_build(&p, NULL, dense, values, rows, cols) == WEFT_OK && rows[2] == 3 && cols[1] == 4);
    MUST(weft_sparse_check(&p, rows, cols) == WEFT_OK);
    MUST(weft_sparse_stretch(&p, cols, stretched) == WEFT_OK && stretched[1] == 9);
}

int main(void) {
    section_status();
    section_words();
    weft_problem p = section_problem();
    weft_ctx *ctx = section_context();
    section_plan(ctx, &p);
    section_kernels(ctx, &p);
    section_wisdom(ctx, &p);
    section_sparse();
    weft_ctx_release(ctx);
    printf("weft %s works\n", weft_version());
    return 0;
}
