/* The harness on results that are wrong on purpose: what a kernel must not do is noticed, what it may do is not. A
 * kernel of this test, the reference and one fault, takes the place of one in the table. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test.h"

typedef void (*fault)(const weft__exec *e);
static fault fault_now;
static int runs, packed_inside, packed_outside;
static bool packs;

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)hw, (void)variant;
    d->ns = 1, d->workspace = 64;
    d->packed = packs ? weft_tensor_bytes(weft__tensor(p, WEFT_ROLE_WEIGHTS)) : 0;
    return NULL;
}

static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    memcpy(packed, weights, weft_tensor_bytes(weft__tensor(e->p, WEFT_ROLE_WEIGHTS)));
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    void *ptr[WEFT_ROLE_COUNT];
    weft__exec own = *e;
    memcpy(ptr, e->ptr, sizeof(ptr));
    if (e->packed) {
        ptr[WEFT_ROLE_WEIGHTS] = (void *)(uintptr_t)e->packed;
        const bool inside = e->workspace && (const char *)e->packed == (const char *)e->workspace + 64;
        *(inside ? &packed_inside : &packed_outside) += 1;
    }
    own.ptr = ptr;
    const weft_status s = weft__ref_kernels[e->p->op]->run(&own);
    runs++;
    if (fault_now) fault_now(&own);
    return s;
}

/* ---------------------------------------------------------------- the faults */
static float *out(const weft__exec *e) { return e->ptr[WEFT_ROLE_DST]; }
static int64_t count(const weft__exec *e) { return weft__numel(weft__tensor(e->p, WEFT_ROLE_DST)); }

static void behind_the_end(const weft__exec *e) { ((char *)e->ptr[WEFT_ROLE_DST])[4 * count(e)] = 1; }
static void before_the_start(const weft__exec *e) { ((char *)e->ptr[WEFT_ROLE_DST])[-1] = 1; }
static void before_the_workspace(const weft__exec *e) { ((char *)e->workspace)[-1] = 1; }
static void an_element_left_out(const weft__exec *e) { memset(&out(e)[count(e) / 2], 0xff, sizeof(float)); }
static void a_last_bit(const weft__exec *e) {
    float *y = out(e);
    while (*y == 0) y++;
    *y = nextafterf(*y, INFINITY);
}
static void a_last_bit_in_the_second_run(const weft__exec *e) {
    if (runs % 2 == 0) a_last_bit(e);
}
static void between_elements(const weft__exec *e) { out(e)[1] = 1; }
static void no_nan(const weft__exec *e) {
    for (int64_t i = 0; i < count(e); i++)
        if (isnan(out(e)[i])) out(e)[i] = 0;
}
static void nan_for_zero(const weft__exec *e) { out(e)[0] = NAN; }
static void writes_an_input(const weft__exec *e) {
    volatile float *x = e->ptr[WEFT_ROLE_SRC];
    *x = *x;
}

/* An error of so many times the bound, of a convolution with windows of one element. */
static double times;
static double bound_of(const weft__exec *e, int64_t o, int64_t w) {
    const weft_problem *p = e->p;
    const float *src = e->ptr[WEFT_ROLE_SRC], *weights = e->ptr[WEFT_ROLE_WEIGHTS];
    double sum = 0;
    for (int64_t c = 0; c < p->c; c++) sum += fabs((double)src[c * p->in[2] + w] * (double)weights[o * p->c + c]);
    return WEFT__MIN((double)p->c + 3, 8 * sqrt((double)p->c) + 3) * 0x1p-24 * sum;
}
/* Where it is largest: some data are 0. */
static void an_error(const weft__exec *e) {
    const int64_t width = e->p->in[2];
    int64_t at = 0;
    for (int64_t i = 0; i < count(e); i++)
        if (bound_of(e, i / width, i % width) > bound_of(e, at / width, at % width)) at = i;
    out(e)[at] = (float)((double)out(e)[at] + times * bound_of(e, at / width, at % width));
}

/* ---------------------------------------------------------------- the check */
static weft__kernel wrong;
static harness h;

/* The slot of a scalar kernel, which every machine runs, is this test's from now on. */
static void begin(bool exact) {
    static const int threads[] = {1, 2};
    const weft__kernel *const *list;
    size_t at = weft__kernels(WEFT_OP_CONV, &list);
    while (at-- > 0 && (list[at]->engine != WEFT_ENGINE_CPU || list[at]->isa != WEFT__SCALAR)) {}
    wrong = (weft__kernel){.name = "wrong__scalar", .version = 1, .op = WEFT_OP_CONV, .engine = WEFT_ENGINE_CPU};
    wrong.steps = WEFT__STEPS_ALL, wrong.exact = exact, wrong.plan = plan, wrong.pack = pack, wrong.run = run;
    ((const weft__kernel **)(uintptr_t)list)[at] = &wrong;
    runs = packed_inside = packed_outside = 0, packs = false;
    const weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    OK(harness_create(&h, &opts, threads, 2));
}

/* Seeds of one kind of data in one place: exact kernels on integers, others on reals. */
static uint64_t seed_for(harness_place place, bool exact) {
    uint64_t seed = 6;
    while (seed % 4 == 0 || seed % 5 == 0 || (seed / 4 + (exact ? 0 : 1)) % HARNESS_PLACES != (uint64_t)place) seed++;
    return seed;
}

static bool passes(const char *text, fault f, uint64_t seed, bool thorough) {
    const weft_problem p = test_problem(text);
    const harness_ask ask = {.seed = seed, .kernel = wrong.name, .quick = !thorough, .thorough = thorough};
    fault_now = f;
    runs = 0;
    const bool good = harness_check(&h, &p, &ask);
    fault_now = NULL;
    CHECK(runs > 0, "%s: the kernel did not run: %s", text, h.why);
    return good;
}

static const char small[] = "conv1d:fwd:f32:ncw:n2c3w8:o4k3p1";
static const char strided[] = "conv1d:fwd:f32:ncw,dst=[64.16.2]:n2c3w8:o4k3p1";

TEST(what_is_right_passes) {
    static const char *const texts[] = {small, strided, "conv1d:fwd:f64:ncw:n2c3w8:o4k3p1",
                                        "conv1d:fwd:bf16:nwc:n2c3w8:o4k3p1:bias+relu"};
    for (int exact = 0; exact < 2; exact++) {
        begin(exact);
        for (size_t i = 0; i < WEFT__COUNT(texts); i++)
            CHECK(passes(texts[i], NULL, 1, true), "%s: %s", texts[i], h.why);
        harness_destroy(&h);
    }
}

TEST(what_is_wrong_is_noticed) {
    static const struct {
        const char *what, *text, *why;
        fault f;
        harness_place place;
    } faults[] = {
        {"a write behind the end", small, "written past its end", behind_the_end, HARNESS_START},
        {"a write before the start", small, "written before its start", before_the_start, HARNESS_END},
        {"a write before the start of a strided one", strided, "before its start", before_the_start, HARNESS_END},
        {"a write before the workspace", small, "workspace: written before", before_the_workspace, HARNESS_END},
        {"an element left out", small, "not written", an_element_left_out, HARNESS_END},
        {"a last bit on integers", small, "the reference has", a_last_bit, HARNESS_END},
        {"other bits in a second run", small, "other bits", a_last_bit_in_the_second_run, HARNESS_END},
        {"a write between elements", strided, "lies between elements", between_elements, HARNESS_END},
        {"a NaN that the reference does not have", small, "dst[0,0,0,0,0]", nan_for_zero, HARNESS_END},
    };
    begin(true);
    for (size_t i = 0; i < WEFT__COUNT(faults); i++) {
        const uint64_t seed = seed_for(faults[i].place, true);
        CHECK(!passes(faults[i].text, faults[i].f, seed, false), "%s passes", faults[i].what);
        CHECK(strstr(h.why, faults[i].why), "%s is called \"%s\"", faults[i].what, h.why);
        CHECK(strcmp(h.kernel, wrong.name) == 0, "%s happened in %s", faults[i].what, h.kernel);
    }
    CHECK(!passes(small, no_nan, 4, true), "a NaN that is lost passes");
    harness_destroy(&h);
}

/* Half of the bound passes and twice the bound does not, of short sums and of long ones. */
TEST(the_bound_is_where_it_is_said_to_be) {
    static const char *const texts[] = {"conv1d:fwd:f32:ncw:n1c1w8:o4k1", "conv1d:fwd:f32:ncw:n1c4w8:o4k1",
                                        "conv1d:fwd:f32:ncw:n1c400w8:o4k1", "conv1d:fwd:f32:ncw:n1c3000w8:o4k1"};
    begin(false);
    for (size_t i = 0; i < WEFT__COUNT(texts); i++)
        for (int allowed = 1; allowed <= 4; allowed *= 4) { /* a kernel may declare up to four times the bound */
            const uint64_t seed = seed_for(HARNESS_START, false);
            wrong.bound = allowed;
            times = 0.5 * allowed;
            CHECK(passes(texts[i], an_error, seed, false), "%s: %g bounds: %s", texts[i], times, h.why);
            times = 2.0 * allowed + 1; /* rounding to f32 takes a little */
            CHECK(!passes(texts[i], an_error, seed, false), "%s: %g bounds pass", texts[i], times);
        }
    harness_destroy(&h);
}

/* Writing an input ends the process, with a word about where. */
TEST(inputs_cannot_be_written) {
    begin(true);
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 2);
        passes(small, writes_an_input, seed_for(HARNESS_START, true), false);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    harness_destroy(&h);
    CHECK(status != 0, "an input was written and nobody noticed");
}

/* Weights packed beforehand are tried with every second value of a bit of the seed, others in the call. */
TEST(weights_are_packed_beforehand_and_not) {
    begin(true);
    packs = true;
    for (uint64_t seed = 1; seed < 2048; seed += 128) CHECK(passes(small, NULL, seed, false), "%s", h.why);
    harness_destroy(&h);
    CHECK(packed_inside >= 8 && packed_outside >= 8, "%d calls packed, %d had packed weights", packed_inside,
          packed_outside);
}

/* ---------------------------------------------------------------- random problems */
/* What tests rely on random problems to be: each kind is a fair share of them. */
TEST(random_problems_are_of_every_kind) {
    enum { DRAWN = 4000 };
    enum { UNALIGNED, STRIDED, LAST, EPILOGUE, STRICT, EMPTY, WIDE, KINDS };
    static const struct {
        const char *what;
        double least, most; /* percent */
    } shares[KINDS] = {{"sliced", 20, 32},          {"strided", 5, 30}, {"channels-last", 15, 60},
                       {"with an epilogue", 5, 60}, {"strict", 8, 22},  {"without data", 1, 12},
                       {"not of f32", 10, 50}};
    int seen[KINDS] = {0};
    for (uint64_t seed = 0; seed < DRAWN; seed++) {
        weft_problem p = WEFT_PROBLEM_INIT;
        bool is[KINDS] = {false};
        CHECK(harness_random(&p, seed, WEFT_DEVICE_CPU), "%s", weft_last_error());
        for (int i = 0; i < p.ntensors; i++) {
            const weft_tensor *t = &p.tensor[i];
            is[UNALIGNED] |= t->align < 16 && t->align > 2 && weft__dtype_size(t->dtype) == 4;
            is[STRIDED] |= t->layout == WEFT_LAYOUT_STRIDED;
            is[LAST] |= t->layout == WEFT_LAYOUT_LAST;
            is[WIDE] |= (WEFT__FLOATS >> t->dtype & 1) && t->dtype != WEFT_DTYPE_F32;
            is[EMPTY] |= weft__numel(t) == 0;
        }
        is[EPILOGUE] = p.nsteps > 0, is[STRICT] = p.math == WEFT_MATH_STRICT;
        for (int kind = 0; kind < KINDS; kind++) seen[kind] += is[kind];
    }
    for (int kind = 0; kind < KINDS; kind++) {
        const double percent = 100.0 * seen[kind] / DRAWN;
        CHECK(percent >= shares[kind].least && percent <= shares[kind].most, "%.1f%% are %s, not %g to %g", percent,
              shares[kind].what, shares[kind].least, shares[kind].most);
    }
}
