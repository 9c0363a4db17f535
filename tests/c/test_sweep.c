/* Every kernel that applies, on the one list of cases, around tile edges and on large problems: exact on integers,
 * bounded on reals, between guard pages, with the same bits for 1, 2 and 16 threads. All of it follows from the tables:
 * a fast kernel of any operator gets problems that it takes, with one size after another swept past its tiles, and one
 * that outgrows the caches. WEFT_SLOW=1 (make slow) tries every size; else a fixed part of them. WEFT_SWEEP=NAME
 * resizes problems only for the kernels with NAME in theirs. */
#include "test.h"

static harness h;
static weft__hw hw;

static void open_harness(void) {
    static const int threads[] = {1, 2, 16};
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    opts.workspace_limit = WEFT_NO_LIMIT;
    opts.cache_dir = "";
    if (!h.nctx) OK(harness_create(&h, &opts, threads, 3));
    OK(weft__ctx_hw(h.ctx[0], &cpu, &hw));
}

static void check(const weft_problem *p, harness_ask ask) {
    char text[WEFT_TEXT_MAX], why[WEFT_TEXT_MAX * 3];
    if (!harness_round_trip(p, why, sizeof(why))) test_stop(TEST_FAIL, "%s", why);
    if (harness_check(&h, p, &ask)) return;
    harness_text(p, text);
    test_stop(TEST_FAIL, "%s: %s\n  repro: weft verify --seed %llu --kernel %s '%s'", h.kernel, h.why,
              (unsigned long long)ask.seed, h.kernel, text);
}

/* ---------------------------------------------------------------- the list of cases */
static weft_problem *cases;
static size_t ncases;

static void read_cases(void) {
    if (!cases) cases = test_cases(&ncases);
}

TEST(cases) {
    open_harness();
    read_cases();
    CHECK(ncases > 50, "%zu cases", ncases);
    const size_t step = test_sanitized() ? 2 : 1;
    for (size_t i = 0; i < ncases; i += step) check(&cases[i], (harness_ask){.seed = i + 1, .thorough = test_slow()});
}

/* ---------------------------------------------------------------- problems for a kernel */
enum { PER_KERNEL = 3 };
typedef struct base {
    weft_problem p;
    const weft__kernel *k;
    bool first; /* of its kernel */
} base;
static base *bases;
static size_t nbases;
static bool whole; /* every kernel takes part: how much was tried says something */

static bool dense(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].layout == WEFT_LAYOUT_STRIDED) return false;
    return true;
}

/* false: another kernel brought it already. */
static bool add_base(const weft_problem *p, const weft__kernel *k, bool first) {
    for (size_t i = 0; i < nbases; i++)
        if (harness_same_problem(&bases[i].p, p)) return false;
    base *grown = realloc(bases, (nbases + 1) * sizeof(*bases));
    CHECK(grown, "no memory");
    bases = grown;
    bases[nbases++] = (base){*p, k, first};
    return true;
}

/* From the cases, then at random; those that an instruction set's sister kernel takes too are shared. */
static void find_bases(const weft__kernel *k) {
    weft_problem p;
    int found = 0;
    for (size_t i = 0; i < ncases && found < PER_KERNEL - 1; i++) {
        if (cases[i].op != k->op || !dense(&cases[i]) || !harness_takes(h.ctx[0], k, &cases[i], &hw)) continue;
        add_base(&cases[i], k, found++ == 0);
    }
    for (uint64_t seed = 1; found < PER_KERNEL; seed++) {
        uint64_t drawn = harness_mix(11, seed);
        if (!harness_random_for(&p, &drawn, WEFT_DEVICE_CPU, h.ctx[0], k, &hw)) break;
        if (dense(&p)) add_base(&p, k, found++ == 0);
    }
    CHECK(found, "%s: no case applies; add one to tests/cases.txt", k->name);
}

static void open_bases(void) {
    const weft__kernel *const *list;
    const char *only = getenv("WEFT_SWEEP");
    open_harness();
    read_cases();
    if (bases) return;
    whole = !only;
    size_t count = weft__kernels(0, &list);
    for (size_t i = 0; i < count; i++) {
        if (list[i]->reference || list[i]->engine != WEFT_ENGINE_CPU || !test_is_best(&hw, list, count, i)) continue;
        if (!only || strstr(list[i]->name, only)) find_bases(list[i]);
    }
    CHECK(nbases || !only, "WEFT_SWEEP is '%s', allowed: a part of the name of a kernel that `weft list` shows", only);
}

/* The problem with one of its sizes changed: channels along with the groups and outputs that depend on them, an output
 * axis where the window no longer fits left out. false: not a problem. */
static bool resize(weft_problem *p, const weft_problem *from, const weft__field *f, int axis, int64_t size) {
    *p = *from;
    ((int64_t *)(void *)((char *)p + f->offset))[axis] = size;
    bool channels = f->offset == offsetof(weft_problem, c), outputs = f->offset == offsetof(weft_problem, o);
    if (channels && from->groups == from->c && from->groups > 1) {
        p->groups = size;
        p->o = from->o / from->c * size;
    } else if (channels || outputs) {
        *(channels ? &p->c : &p->o) = size * from->groups;
    }
    return weft_problem_complete(p) == WEFT_OK;
}

typedef void (*sweep_fn)(const base *b, const weft__field *f, int axis);

/* Every size of a problem: those of the data and the output channels. */
static void each_size(const base *b, sweep_fn visit) {
    const weft__op *op = weft__op_of(b->p.op);
    for (size_t i = 0; i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        bool size = f->section == 0 || f->offset == offsetof(weft_problem, o);
        if (!size || f->kind == WEFT__FIELD_REAL || f->kind == WEFT__FIELD_PADS || f->min_rank > b->p.rank) continue;
        if (f->offset == offsetof(weft_problem, n)) continue;
        int begin = f->kind == WEFT__FIELD_AXES ? 3 - b->p.rank : 0, end = f->kind == WEFT__FIELD_AXES ? 3 : 1;
        for (int axis = begin; axis < end; axis++) visit(b, f, axis);
    }
}

/* ---------------------------------------------------------------- tile edges */
/* Around one and two vectors of 4, 8 and 16, and blocks of a few of them. */
static const int64_t edges[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,  16,  17,
                                18, 19, 20, 23, 24, 25, 28, 29, 31, 32, 33, 34, 36, 40, 47,  48,  49,
                                55, 56, 57, 63, 64, 65, 66, 67, 79, 80, 81, 95, 96, 97, 127, 128, 129};
static const double most_flops = 1e6;
static size_t quick_sizes, swept, planned, left_out;

static void count_sizes(const base *b, const weft__field *f, int axis) {
    (void)b, (void)f, (void)axis;
    planned += WEFT__COUNT(edges);
}

static void sweep_size(const base *b, const weft__field *f, int axis) {
    for (size_t i = 0; i < WEFT__COUNT(edges); i++) {
        weft_problem p;
        size_t number = swept++;
        size_t every = test_slow() ? 1 : (planned + quick_sizes - 1) / quick_sizes;
        if (number % every != b->p.op % every) continue;
        if (!resize(&p, &b->p, f, axis, edges[i]) || weft__flops(&p) > most_flops) {
            left_out++;
            continue;
        }
        for (int t = 0; t < p.ntensors && number % 3 == 0; t++)
            p.tensor[t].align = (int32_t)weft__dtype_size(p.tensor[t].dtype);
        if (number % 4 == 0) p.math = WEFT_MATH_STRICT; /* with NaN and infinity, which every fourth seed brings */
        check(&p, (harness_ask){.seed = number, .fast_only = true});
    }
}

TEST(tile_edges) {
    open_bases();
    quick_sizes = test_sanitized() ? 100 : 600;
    planned = swept = left_out = 0;
    for (size_t i = 0; i < nbases; i++) each_size(&bases[i], count_sizes);
    for (size_t i = 0; i < nbases; i++) each_size(&bases[i], sweep_size);
    CHECK(left_out < (whole ? planned / 2 : planned), "%zu of %zu problems are not valid or too large", left_out,
          planned);
}

/* ---------------------------------------------------------------- large */
/* Outputs that would fill much of the last-level cache: real streaming stores, prefetching, many slots. But for make
 * slow the kernels are told of a quarter of it. Channels are whole cache lines, as streaming wants them; the seed lays
 * one kind of data at a cache line and the other beside it. */
static weft_problem grown;
static double wanted_bytes, most_work;

static double output_bytes(const weft_problem *p) {
    double most = 0;
    for (int i = 0; i < p->ntensors; i++)
        if (weft__is_output(p, p->tensor[i].role))
            most = WEFT__MAX(most, (double)weft__numel(&p->tensor[i]) * (double)weft__dtype_size(p->tensor[i].dtype));
    return most;
}

static bool is_large(void) { return output_bytes(&grown) >= wanted_bytes || weft__flops(&grown) >= most_work; }

static void grow_size(const base *b, const weft__field *f, int axis) {
    weft_problem p;
    int64_t size = ((int64_t *)(void *)((char *)&grown + f->offset))[axis];
    bool channels = f->offset == offsetof(weft_problem, c) || f->offset == offsetof(weft_problem, o);
    if (size >= 1 << 12) return; /* an axis that brings no data with it: steps of packed sequences */
    if (channels || is_large() || !resize(&p, &grown, f, axis, 2 * size + 1)) return;
    if (harness_takes(h.ctx[0], b->k, &p, &hw)) grown = p;
}

static void grow(const base *b) {
    const weft__op *op = weft__op_of(b->p.op);
    weft_problem p;
    grown = b->p;
    for (size_t i = 0; i < op->nfields; i++)
        if (op->fields[i].offset == offsetof(weft_problem, c) && resize(&p, &b->p, &op->fields[i], 0, 48) &&
            harness_takes(h.ctx[0], b->k, &p, &hw))
            grown = p;
    for (int turn = 0; turn < 24 && !is_large(); turn++) each_size(&(base){grown, b->k, true}, grow_size);
}

TEST(large) {
    open_bases();
    const size_t cache = WEFT__MIN(hw.l3, (size_t)32 << 20) / (test_slow() ? 1 : 4);
    wanted_bytes = 1.05 * (double)cache / 8;
    most_work = test_slow() ? 1e9 : 8e6;
    size_t streamed = 0, count = 0;
    if (test_sanitized()) SKIP("too long under a sanitizer");
    const char *isa = getenv("WEFT_ISA");
    if (isa && strcmp(isa, "scalar") == 0 && !test_slow()) SKIP("plain code has no streaming stores (make slow)");
    for (size_t i = 0; i < nbases; i++) {
        if (!bases[i].first) continue;
        grow(&bases[i]);
        streamed += output_bytes(&grown) >= wanted_bytes;
        count++;
        check(&grown, (harness_ask){.seed = 4 + i % 2 * 8 + 1, .fast_only = true, .cache = cache});
    }
    CHECK(!whole || count == 0 || streamed > 0, "none of %zu problems outgrows the cache", count);
}

/* ---------------------------------------------------------------- any problem */
/* A few: `weft verify --random` has many. */
TEST(random_problems) {
    open_harness();
    for (uint64_t i = 0; i < (test_sanitized() ? 100 : 200); i++) {
        weft_problem p;
        uint64_t seed = harness_mix(3, i);
        CHECK(harness_stream(&p, &seed, WEFT_DEVICE_CPU, h.ctx[0], i), "problem %llu: %s", (unsigned long long)i,
              weft_last_error());
        check(&p, (harness_ask){.seed = seed});
    }
}

/* A listed kernel is a tested one: whatever this machine can run was run above. */
TEST(no_kernel_is_left_out) {
    open_harness();
    if (!h.problems) SKIP("needs the tests before it");
    if (test_sanitized()) SKIP("too few problems under a sanitizer");
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        const weft__kernel *const *list;
        size_t count = weft__kernels(op, &list);
        for (size_t i = 0; i < count; i++)
            if (list[i]->engine != WEFT_ENGINE_CUDA && weft__hw_runs(&hw, list[i]->isa))
                CHECK(h.checked[op][i], "%s: no case applies; add one to tests/cases.txt", list[i]->name);
    }
    harness_destroy(&h);
    free(cases), free(bases);
}
