/* A kernel against the reference: the same data through both, outputs compared element by element, memory inspected,
 * bits compared between numbers of threads.
 *
 * The bound on real data. Let y be the exact value of an output element, L the number of products summed into it, M
 * the sum of their magnitudes (the reference run on |inputs| without relu and clip, which can only shrink errors), u
 * the roundoff of the accumulator (2^-24; 2^-53 for an f64 output) and v that of the output type. Summing L products
 * in any order with L roundings and up to 3 more for the epilogue errs by at most (L + 3) u M; taken as independent
 * and of mean zero the roundings stay below (8 sqrt(L) + 3) u M but with probability 2 exp(-8^2/2) < 3e-14. A kernel
 * that declares the factor f may err f times that. Both sides then round once to the output type, so
 *     |kernel - reference| <= f min(L + 3, 8 sqrt(L) + 3) u M + v (|kernel| + |reference|) + 2 tiny.
 * M itself arrives rounded to the output type, hence M (1 + 2v). Where outputs are differences of sums (softmax, batch
 * norm and the like) the reference on |inputs| is no bound of its terms: there M is the largest value of the output, of
 * either run of the reference. With tf32 math on a GPU both factors of a product
 * may lose all but 10 bits: 2^-10 M more.
 *
 * The reference on a GPU runs the same text in the same doubles without fused multiply-adds, so it must agree exactly;
 * but exp, log, tanh and pow may differ there in their last bits. Operators that say they use them may differ by
 * 2^-44 of the largest value of the output, or of 1 where all are smaller: 2^8 roundoffs of a double. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness.h"

/* ---------------------------------------------------------------- what is running, for the signal handler */
static struct {
    char problem[WEFT_TEXT_MAX], kernel[128], seed[24];
} now;

static void note(const weft_problem *p, const char *kernel, uint64_t seed) {
    if (p) harness_text(p, now.problem);
    snprintf(now.kernel, sizeof(now.kernel), "%s", kernel);
    snprintf(now.seed, sizeof(now.seed), "%llu", (unsigned long long)seed);
}

static void say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

static void fault(int signal_number) {
    say(signal_number == SIGFPE   ? "\nFAIL: arithmetic fault"
        : signal_number == SIGILL ? "\nFAIL: illegal instruction"
                                  : "\nFAIL: memory fault (outside a buffer, or writing an input)");
    if (now.kernel[0]) {
        say(" in ");
        say(now.kernel);
        say("\n  repro: weft verify --seed ");
        say(now.seed);
        say(" --kernel ");
        say(now.kernel);
        say(" '");
        say(now.problem);
        say("'");
    }
    say("\n");
    signal(signal_number, SIG_DFL); /* the instruction faults again, for a debugger or a core file */
}

void harness_catch_faults(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = fault;
    for (size_t i = 0; i < WEFT__COUNT(signals); i++) sigaction(signals[i], &action, NULL);
}

void harness_text(const weft_problem *p, char text[WEFT_TEXT_MAX]) {
    if (weft_problem_format(p, text, WEFT_TEXT_MAX, NULL) != WEFT_OK)
        snprintf(text, WEFT_TEXT_MAX, "(%s)", weft_last_error());
}

/* ---------------------------------------------------------------- life */
static bool count_kernels(harness *h) {
    const weft__kernel *const *list;
    h->take = calloc(weft__kernels(0, &list), sizeof(*h->take));
    bool room = h->take != NULL;
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        h->checked[op] = calloc(weft__kernels(op, &list), sizeof(*h->checked[op]));
        room = room && h->checked[op];
    }
    return room;
}

weft_status harness_create(harness *h, const weft_ctx_opts *opts, const int *threads, int count) {
    memset(h, 0, sizeof(*h));
    if (!count_kernels(h)) {
        harness_destroy(h);
        return weft__fail(WEFT_ERR_MEMORY, "out of memory for the list of kernels");
    }
    for (int i = 0; i < count && i < HARNESS_CTX_MAX; i++) {
        weft_ctx_opts o = *opts;
        o.threads = h->threads[i] = threads[i];
        weft_status s = weft_ctx_create(&h->ctx[i], &o);
        if (s != WEFT_OK) {
            harness_destroy(h);
            return s;
        }
        h->nctx++;
    }
    return WEFT_OK;
}

void harness_destroy(harness *h) {
    harness_buffer *sets[] = {h->in, h->out, h->want, h->size, h->first};
    for (size_t i = 0; i < WEFT__COUNT(sets); i++)
        for (int role = 0; role < WEFT_ROLE_COUNT; role++) harness_close(&sets[i][role]);
    harness_close(&h->workspace);
    harness_close(&h->packed);
    for (int op = 1; op < WEFT_OP_COUNT; op++) free(h->checked[op]);
    free(h->take);
    for (int i = 0; i < h->nctx; i++) weft_ctx_release(h->ctx[i]);
    memset(h, 0, sizeof(*h));
}

/* Every fifth problem of a convolution has real data that span many orders of magnitude side by side: a method that
 * works on tiles loses the small ones there, and its bound must say so. */
static bool wide(const weft_problem *p, harness_kind kind, uint64_t seed) {
    const bool sums = p->op == WEFT_OP_CONV || p->op == WEFT_OP_PARTIAL_CONV || p->op == WEFT_OP_SPARSE_CONV;
    return sums && seed % 5 == 0 && (kind == HARNESS_REALS || kind == HARNESS_MAGNITUDES);
}

bool harness_inputs(harness *h, const weft_problem *p, harness_kind kind, harness_place place, uint64_t seed) {
    for (int i = 0; i < p->ntensors; i++) {
        int role = p->tensor[i].role;
        if (!weft__is_input(p, role)) continue;
        if (!harness_open(&h->in[role], &p->tensor[i], place)) return false;
        harness_fill_input(p, &h->in[role], kind, harness_mix(seed, (uint64_t)role));
        if (wide(p, kind, seed)) harness_spread(&h->in[role], harness_mix(seed, (uint64_t)role + 99));
    }
    harness_relate_inputs(p, h->in, kind, seed);
    for (int i = 0; i < p->ntensors; i++)
        if (weft__is_input(p, p->tensor[i].role)) harness_seal(&h->in[p->tensor[i].role]);
    return true;
}

/* ---------------------------------------------------------------- the reference */
static weft_problem on_cpu(const weft_problem *p) {
    weft_problem q = *p;
    q.device = WEFT_DEVICE_CPU;
    q.ordinal = 0;
    return q;
}

/* The same sums without what follows them. */
static weft_problem without_clipping(const weft_problem *p) {
    weft_problem q = on_cpu(p);
    q.nsteps = 0;
    for (int i = 0; i < p->nsteps; i++) {
        weft_step s = p->step[i];
        if (s.kind == WEFT_STEP_ACC) s.alpha = fabs(s.alpha), s.beta = fabs(s.beta);
        const bool gradient = s.kind == WEFT_STEP_RELU && p->pass != WEFT_PASS_FWD; /* it reads dst: not what follows */
        if (s.kind == WEFT_STEP_BIAS || s.kind == WEFT_STEP_ACC || gradient) q.step[q.nsteps++] = s;
    }
    return q;
}

static bool failed(harness *h, const char *kernel, const char *what) {
    char text[sizeof(h->why)];
    snprintf(text, sizeof(text), "%s", what);
    snprintf(h->kernel, sizeof(h->kernel), "%s", kernel);
    snprintf(h->why, sizeof(h->why), "%s", text);
    return false;
}

/* With results of 32 bits in place of 16, so that a kernel's is compared with one that was not rounded, if the operator
 * has such a problem. */
static weft_problem widened(const weft_problem *p) {
    weft_problem q = on_cpu(p);
    for (int i = 0; i < q.ntensors; i++) {
        weft_tensor *t = &q.tensor[i];
        const bool narrow = t->dtype == WEFT_DTYPE_F16 || t->dtype == WEFT_DTYPE_BF16;
        if (narrow && weft__is_output(p, t->role) && !weft__is_input(p, t->role))
            t->dtype = WEFT_DTYPE_F32, t->align = 4;
    }
    return weft_problem_complete(&q) == WEFT_OK ? q : on_cpu(p);
}

static bool reference(harness *h, const weft_problem *p, harness_kind kind, harness_place place, uint64_t seed) {
    const char *name = weft__ref_kernels[p->op]->name;
    h->l3 = 0;
    weft_problem plain = kind == HARNESS_REALS ? widened(p) : on_cpu(p);
    const weft_problem plain_sums = without_clipping(p), sums = widened(&plain_sums);
    note(p, name, seed);
    if (kind != HARNESS_INTEGERS) {
        const harness_kind sizes = kind == HARNESS_REALS ? HARNESS_MAGNITUDES : HARNESS_SPECIAL_MAGNITUDES;
        if (!harness_inputs(h, &sums, sizes, place, seed)) return failed(h, name, "no memory for inputs");
        if (harness_run(h, h->ctx[0], &sums, name, h->in, h->size, HARNESS_END, false) != WEFT_OK)
            return failed(h, name, weft_last_error());
    }
    if (!harness_inputs(h, &plain, kind, place, seed)) return failed(h, name, "no memory for inputs");
    if (harness_run(h, h->ctx[0], &plain, name, h->in, h->want, HARNESS_END, false) != WEFT_OK)
        return failed(h, name, weft_last_error());
    return true;
}

/* ---------------------------------------------------------------- the comparison */
typedef struct tolerance {
    bool exact, positions, integers, wide; /* wide: the reference's results are not rounded to the output type */
    double sum, rounding, tiny, greatest;  /* greatest: from there on a value may become infinite */
} tolerance;

/* The largest finite magnitude, `most` if that is larger. */
static double largest(const weft_tensor *t, const char *at, double most) {
    int64_t bytes = (int64_t)weft__dtype_size(t->dtype);
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        double x = fabs(harness_load(t->dtype, at + w.offset * bytes));
        if (isfinite(x)) most = fmax(most, x);
    }
    return most;
}

static tolerance allowed(const weft_problem *p, const weft__kernel *k, const weft_tensor *t, harness_kind kind) {
    double u = t->dtype == WEFT_DTYPE_F64 ? 0x1p-53 : 0x1p-24, v = harness_roundoff(t->dtype),
           terms = harness_terms(p, t->role);
    tolerance a = {.exact = kind == HARNESS_INTEGERS && k->exact, .positions = kind == HARNESS_SPECIALS, .rounding = v};
    a.integers = kind == HARNESS_INTEGERS;
    a.tiny = 2 * harness_tiny(t->dtype);
    a.sum = (k->bound > 0 ? k->bound : 1) * fmin(terms + 3, 8 * sqrt(terms) + 3) * u * (1 + 2 * v);
    if (p->math == WEFT_MATH_TF32 && p->device == WEFT_DEVICE_CUDA) a.sum += 0x1p-10;
    return a;
}

/* Where NaN and infinity must be: under strict math exactly where the formula sends them, else there at least. */
static bool same_place(const weft_problem *p, double got, double want) {
    if (p->math == WEFT_MATH_STRICT) {
        if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
        return !(isinf(want) || isinf(got)) || got == want;
    }
    return isnan(want) ? isnan(got) : isinf(want) ? !isfinite(got) : true;
}

/* What a tile may hold beside its outputs: the product of the largest operands, which meet in some place of a transform
 * though no output has it. Partial convolution multiplies by the mask, and by a ratio: at most the taps of a window. */
static double largest_in_tile(harness *h, const weft_problem *p, int role) {
    static const int operands[] = {WEFT_ROLE_SRC, WEFT_ROLE_WEIGHTS, WEFT_ROLE_DIFF_DST};
    double product = p->op == WEFT_OP_PARTIAL_CONV ? (double)(p->kernel[0] * p->kernel[1] * p->kernel[2]) : 1;
    for (size_t i = 0; i < WEFT__COUNT(operands); i++) {
        const weft_tensor *t = weft__tensor(p, operands[i]);
        const bool other = (role == WEFT_ROLE_DIFF_SRC && operands[i] == WEFT_ROLE_SRC) ||
                           (role == WEFT_ROLE_DIFF_WEIGHTS && operands[i] == WEFT_ROLE_WEIGHTS);
        if (t && !other) product *= largest(t, h->in[t->role].at, 0);
    }
    const weft_tensor *mask = weft__tensor(p, WEFT_ROLE_MASK);
    if (mask) product *= largest(mask, h->in[mask->role].at, 1);
    return role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_WEIGHTS ? product : 0;
}

/* What the errors of a tensor are measured against where it is not element by element: 0. */
static double common_size(harness *h, const weft_problem *p, const weft__kernel *k, const weft_tensor *t) {
    if (!k->tiled && !harness_differences(p)) return 0;
    const double all = largest(&h->size[t->role].tensor, h->size[t->role].at,
                               largest(&h->want[t->role].tensor, h->want[t->role].at, 0));
    return k->tiled ? fmax(all, largest_in_tile(h, p, t->role)) : all;
}

/* The values of one element, the kernel's x and the reference's y: near enough? *bound becomes what was allowed. */
static bool near(const weft_problem *p, const tolerance *a, double x, double y, double size, double *bound) {
    *bound = 0;
    if (a->positions && !same_place(p, x, y)) return false;
    if (a->positions && !(isfinite(x) && isfinite(y) && isfinite(size))) return true;
    if (!a->integers) *bound = a->sum * size;
    if (!a->exact) *bound += a->rounding * (fabs(x) + (a->wide ? fabs(y) / 8 : fabs(y))) + a->tiny;
    if (a->wide && isinf(x) && fabs(y) >= a->greatest) return (x > 0) == (y > 0);
    return fabs(x - y) <= *bound || x == y || (isnan(x) && isnan(y));
}

static bool same_values(harness *h, const weft_problem *p, const weft__kernel *k, const weft_tensor *t,
                        harness_kind kind) {
    tolerance a = allowed(p, k, t, kind);
    const weft_tensor *of_want = &h->want[t->role].tensor, *of_size = &h->size[t->role].tensor;
    const char *out = h->out[t->role].at, *want = h->want[t->role].at, *size = h->size[t->role].at;
    a.wide = of_want->dtype != t->dtype;
    a.greatest = t->dtype == WEFT_DTYPE_F16 ? 65504 : 0x1.fep127;
    if (k->reference) a.sum = 0; /* the same sums in the same order */
    if (k->reference && p->device == WEFT_DEVICE_CUDA && weft__op_of(p->op)->transcendental) {
        a.exact = false;
        a.tiny += 0x1p-44 * largest(of_want, want, 1);
    }
    const int64_t bytes = (int64_t)weft__dtype_size(t->dtype), wide = (int64_t)weft__dtype_size(of_want->dtype);
    const int64_t sized = (int64_t)weft__dtype_size(of_size->dtype);
    const double all = kind == HARNESS_INTEGERS ? 0 : common_size(h, p, k, t);
    for (harness_walk w = harness_first(t); !w.done; harness_step(&w)) {
        const double x = harness_load(t->dtype, out + w.offset * bytes);
        const double y = harness_load(of_want->dtype, want + w.offset * wide);
        const double m = a.integers ? 0 : all > 0 ? all : fabs(harness_load(of_size->dtype, size + w.offset * sized));
        double bound;
        const bool good = near(p, &a, x, y, m, &bound);
        if (bound > 0 && isfinite(x)) h->worst = fmax(h->worst, fabs(x - y) / bound);
        if (good) continue;
        char place[128];
        harness_where(&w, place, sizeof(place));
        snprintf(h->why, sizeof(h->why), "%s = %.9g, the reference has %.9g, allowed difference %.3g", place, x, y,
                 bound);
        return false;
    }
    return true;
}

/* Integer data through a kernel that is not exact: its error scales with the sums, which only reals come with. */
static bool comparable(const weft__kernel *k, harness_kind kind) { return kind != HARNESS_INTEGERS || k->exact; }

static bool outputs_good(harness *h, const weft_problem *p, const weft__kernel *k, harness_kind kind) {
    if (!harness_intact(&h->workspace, h->why, sizeof(h->why))) return false;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (!weft__is_output(p, t->role)) continue;
        if (!harness_intact(&h->out[t->role], h->why, sizeof(h->why))) return false;
        if (comparable(k, kind) && !same_values(h, p, k, t, kind)) return false;
    }
    return true;
}

static bool same_bits(harness *h, const weft_problem *p, int ctx) {
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        const harness_buffer *a = &h->first[role], *b = &h->out[role];
        if (!(weft__roles(p) & WEFT__BIT(role)) || !weft__is_output(p, role) || a->bytes == 0) continue;
        if (memcmp(a->low, b->low, a->bytes) == 0) continue;
        snprintf(h->why, sizeof(h->why), "%s: other bits with %d threads than with %d", weft__role_name(role),
                 h->threads[ctx], h->threads[0]);
        return false;
    }
    return true;
}

/* Kernels stream large outputs past the caches. Told of a cache this small they do so on problems of any size. */
enum { TINY_CACHE = 4096 };

/* One kernel on the data at hand, with every number of threads. */
static bool check_variant(harness *h, const weft_problem *p, const weft__kernel *k, int variant, harness_kind kind,
                          harness_place place, const harness_ask *ask) {
    uint64_t seed = ask->seed;
    char name[WEFT__NAME_MAX];
    weft__kernel_name(k, variant, name);
    note(NULL, name, seed);
    h->l3 = ask->cache ? ask->cache : (seed + (uint64_t)kind) % 2 ? 0 : TINY_CACHE;
    for (int i = 0; i < h->nctx; i++) {
        bool keep = i == 0 && h->nctx > 1;
        if (harness_run(h, h->ctx[i], p, name, h->in, h->out, place, seed >> 8 & 1) != WEFT_OK)
            return failed(h, name, weft_last_error());
        bool good = i == 0 ? outputs_good(h, p, k, kind) : same_bits(h, p, i);
        if (!good) return failed(h, name, h->why);
        for (int role = 0; keep && role < WEFT_ROLE_COUNT; role++) {
            harness_buffer swap = h->first[role];
            h->first[role] = h->out[role];
            h->out[role] = swap;
        }
    }
    return true;
}

/* Every variant that applies. */
static bool check_kernel(harness *h, const weft_problem *p, const weft__kernel *k, harness_kind kind,
                         harness_place place, const harness_ask *ask) {
    weft__hw hw;
    weft__decision d;
    if (weft__ctx_hw(h->ctx[0], p, &hw) != WEFT_OK) return failed(h, k->name, weft_last_error());
    for (int v = 0; v < weft__kernel_variants(k); v++)
        if (!weft__kernel_plan(h->ctx[0], k, v, p, &hw, &d) && !check_variant(h, p, k, v, kind, place, ask))
            return false;
    return true;
}

bool harness_takes(const weft_ctx *ctx, const weft__kernel *k, const weft_problem *p, const weft__hw *hw) {
    weft__decision d;
    for (int v = 0; v < weft__kernel_variants(k); v++)
        if (!weft__kernel_plan(ctx, k, v, p, hw, &d)) return true;
    return false;
}

/* The kernels asked for that apply: a set of indices. */
static size_t applicable(harness *h, const weft_problem *p, const harness_ask *ask, const weft__kernel *const *list,
                         size_t count) {
    weft__hw hw;
    size_t n = 0;
    if (weft__ctx_hw(h->ctx[0], p, &hw) != WEFT_OK) return 0;
    for (size_t i = 0; i < count; i++) {
        bool wanted =
            !(ask->fast_only && list[i]->reference) && (!ask->kernel || strcmp(ask->kernel, list[i]->name) == 0);
        h->take[i] = wanted && harness_takes(h->ctx[0], list[i], p, &hw);
        n += h->take[i];
        h->checked[p->op][i] += h->take[i];
    }
    return n;
}

static bool any_exact(const harness *h, const weft__kernel *const *list, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (h->take[i] && list[i]->exact) return true;
    return false;
}

/* NaN and infinity: every fourth time, and always where math is strict about them. */
static bool specials(const weft_problem *p, const harness_ask *ask) {
    return ask->thorough || ask->seed % 4 == 0 || (p->math == WEFT_MATH_STRICT && !ask->quick);
}

bool harness_check(harness *h, const weft_problem *p, const harness_ask *ask) {
    const weft__kernel *const *list = NULL;
    size_t count = weft__kernels(p->op, &list);
    h->why[0] = h->kernel[0] = 0;
    if (!applicable(h, p, ask, list, count)) return true;
    h->problems++;
    const int needless = !ask->quick ? HARNESS_KINDS : any_exact(h, list, count) ? HARNESS_REALS : HARNESS_INTEGERS;
    for (int kind = HARNESS_INTEGERS; kind <= HARNESS_SPECIALS; kind++) {
        if (kind == needless || (kind == HARNESS_SPECIALS && !specials(p, ask))) continue;
        for (int place = 0; place < HARNESS_PLACES; place++) {
            if (!ask->thorough && (uint64_t)place != (ask->seed / 4 + (uint64_t)kind) % HARNESS_PLACES) continue;
            if (!reference(h, p, (harness_kind)kind, (harness_place)place, ask->seed)) return false;
            for (size_t i = 0; i < count; i++)
                if (h->take[i] && !check_kernel(h, p, list[i], (harness_kind)kind, (harness_place)place, ask))
                    return false;
        }
    }
    return true;
}

/* ---------------------------------------------------------------- problem and text */
bool harness_same_problem(const weft_problem *a, const weft_problem *b) {
    uint64_t x[WEFT__KEY_MAX], y[WEFT__KEY_MAX];
    size_t n = weft__problem_key(a, x);
    return n == weft__problem_key(b, y) && memcmp(x, y, n * sizeof(*x)) == 0;
}

bool harness_round_trip(const weft_problem *p, char *why, size_t capacity) {
    char text[WEFT_TEXT_MAX], again[WEFT_TEXT_MAX];
    weft_problem q = WEFT_PROBLEM_INIT;
    if (weft_problem_format(p, text, sizeof(text), NULL) != WEFT_OK) {
        snprintf(why, capacity, "format: %s", weft_last_error());
    } else if (weft_problem_parse(&q, text) != WEFT_OK) {
        snprintf(why, capacity, "parse of its own text '%s': %s", text, weft_last_error());
    } else if (weft_problem_format(&q, again, sizeof(again), NULL) != WEFT_OK || strcmp(text, again) != 0) {
        snprintf(why, capacity, "'%s' comes back as '%s'", text, again);
    } else if (!harness_same_problem(p, &q)) {
        snprintf(why, capacity, "'%s' reads back as another problem", text);
    } else {
        return true;
    }
    return false;
}
