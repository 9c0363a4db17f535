/* Every kernel that applies, on the one list of cases and around tile edges: exact on integers, bounded on reals,
 * between guard pages, with the same bits for 1, 2 and 7 threads. */
#include "test.h"

static harness h;

static void open_harness(void) {
    static const int threads[] = {1, 2, 7};
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    opts.workspace_limit = WEFT_NO_LIMIT;
    opts.cache_dir = "";
    if (!h.nctx) OK(harness_create(&h, &opts, threads, 3));
}

static void check_as(const weft_problem *p, harness_ask ask) {
    char text[WEFT_TEXT_MAX], why[WEFT_TEXT_MAX * 3];
    if (!harness_round_trip(p, why, sizeof(why))) test_stop(TEST_FAIL, "%s", why);
    if (harness_check(&h, p, &ask)) return;
    harness_text(p, text);
    test_stop(TEST_FAIL, "%s: %s\n  repro: weft verify --seed %llu --kernel %s '%s'", h.kernel, h.why,
              (unsigned long long)ask.seed, h.kernel, text);
}

static void check(const weft_problem *p, uint64_t seed, bool thorough) {
    check_as(p, (harness_ask){.seed = seed, .thorough = thorough});
}

TEST(cases) {
    open_harness();
    FILE *f = fopen(WEFT_CASES, "r");
    char line[WEFT_TEXT_MAX];
    int count = 0;
    CHECK(f, "%s cannot be read", WEFT_CASES);
    while (fgets(line, sizeof(line), f)) {
        line[strcspn(line, "#\r\n")] = 0;
        if (!line[0]) continue;
        weft_problem p = test_problem(line);
        check(&p, (uint64_t)++count, true);
    }
    fclose(f);
    CHECK(count > 50, "%d cases", count);
}

/* Sizes from 1 past the widest tile, window and padding as given, in both layouts, aligned and sliced. */
static void sweep(int pass, int64_t k, int64_t stride, int64_t pad, bool last) {
    for (int64_t size = 1; size <= 67; size += size < 36 ? 1 : 3) {
        weft_problem p;
        OK(weft_problem_init(&p, WEFT_OP_CONV, (weft_pass)pass, 2));
        p.n = 1 + size % 2;
        p.c = p.o = p.groups = last ? size : 2;
        p.in[1] = 1 + size * 5 % 11;
        p.in[2] = last ? 1 + size * 3 % 8 : size;
        for (int a = 1; a < 3; a++) {
            p.kernel[a] = k;
            p.stride[a] = stride;
            p.pad_lo[a] = p.pad_hi[a] = pad;
            if (p.in[a] + 2 * pad < k) p.in[a] = k;
        }
        bool reads_src = weft__pass_of(&p)->reads & WEFT__BIT(WEFT_ROLE_SRC);
        weft_problem_tensor(&p, reads_src ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST)->layout =
            last ? WEFT_LAYOUT_LAST : WEFT_LAYOUT_FIRST;
        OK(weft_problem_complete(&p));
        for (int i = 0; i < p.ntensors && size % 3 == 0; i++) p.tensor[i].align = 4;
        /* with NaN and infinity, which every fourth seed brings */
        p.math = size % 4 ? WEFT_MATH_FAST : WEFT_MATH_STRICT;
        check(&p, (uint64_t)(size % 4 ? size * 7 + pass : size), false);
    }
}

TEST(tile_edges) {
    static const struct {
        int64_t k, stride, pad;
    } windows[] = {{3, 1, 1}, {3, 1, 0}, {3, 2, 1}, {3, 1, 2}, {1, 1, 0}, {5, 1, 2}};
    open_harness();
    for (int pass = WEFT_PASS_FWD; pass < WEFT_PASS_COUNT; pass++)
        for (size_t i = 0; i < WEFT__COUNT(windows); i++)
            for (int last = 0; last < 2; last++) sweep(pass, windows[i].k, windows[i].stride, windows[i].pad, last);
}

/* Outputs that would fill much of the last-level cache take other paths in some kernels: streaming stores, prefetch. */
TEST(large) {
    static const char *const forms[] = {"conv2d:fwd:f32:nchw:n1c%lldh173w181:o%lldk3p1g%lld:bias+relu",
                                        "conv2d:fwd:f32:nhwc:n1c%lldh173w181:o%lldk3p1g%lld:bias+relu",
                                        "conv2d:bwd:f32:nchw:n1c%lldh173w181:o%lldk3p1g%lld:bias",
                                        "conv2d:bwd:f32:nhwc:n1c%lldh173w181:o%lldk3p1g%lld:bias",
                                        "conv2d:bwd_data:f32:nchw:n1c%lldh173w181:o%lldk3p1g%lld",
                                        "conv2d:bwd_data:f32:nhwc:n1c%lldh173w181:o%lldk3p1g%lld"};
    weft__hw hw;
    weft__hw_detect(&hw);
    long long c = (long long)(hw.l3 / 7 / (4 * 173 * 181)) + 1; /* a seventh of the cache, in f32 planes of that size */
    open_harness();
    if (c > 200) SKIP("a seventh of the last-level cache is %zu MB: too long for a test", hw.l3 / 7 >> 20);
    for (size_t i = 0; i < WEFT__COUNT(forms); i++) {
        char text[WEFT_TEXT_MAX];
        snprintf(text, sizeof(text), forms[i], c, c, c);
        weft_problem p = test_problem(text);
        check_as(&p, (harness_ask){.seed = 6 + i, .fast_only = true});
    }
}

TEST(random_problems) {
    open_harness();
    for (uint64_t i = 0; i < 600; i++) {
        weft_problem p;
        uint64_t seed = harness_mix(3, i);
        CHECK(harness_random(&p, seed, WEFT_DEVICE_CPU), "seed %llu: %s", (unsigned long long)seed, weft_last_error());
        check(&p, seed, false);
    }
}

/* A listed kernel is a tested one: whatever this machine can run was run above. */
TEST(no_kernel_is_left_out) {
    weft__hw hw;
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    open_harness();
    OK(weft__ctx_hw(h.ctx[0], &cpu, &hw));
    if (!h.problems) SKIP("needs the tests before it");
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        const weft__kernel *const *list;
        size_t count = weft__kernels(op, &list);
        for (size_t i = 0; i < count; i++)
            if (list[i]->engine != WEFT_ENGINE_CUDA && list[i]->isa <= hw.isa)
                CHECK(h.checked[op][i], "%s: no case applies; add one to tests/cases.txt", list[i]->name);
    }
    harness_destroy(&h);
}
