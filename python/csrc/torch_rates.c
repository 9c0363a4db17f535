/* How fast PyTorch's own operators are, for the planner's estimates: constants that keep the order right (torch_cpu.c,
 * torch_cuda.c), and for convolution on the CPU what weft.backends.calibrate() has measured, kind by kind.
 * A kind is what makes PyTorch take another way through its code: rank, window and groups, pass, layout, data type. */
#include <math.h>
#include <string.h>

#include "core/internal.h"
#include "seat.h"
#include "torch_rates.h"

enum { GROUPS = 3, FAMILIES = 6, PASSES = 4, LAYOUTS = 2, TYPES = 3, KINDS = 2 * FAMILIES * PASSES * LAYOUTS * TYPES };
static const double tie = 0.9; /* weft must be faster than this share of PyTorch's time */

static struct {
    int way;
    double ns, slower; /* of a call; times what the way costs by its constants; 0: not measured */
} known[KINDS];
static _Thread_local const weft_rates *instead; /* of an estimate of PyTorch: what the machine could do */

/* Depthwise by the size of the window, groups, dense 1x1, dense. */
static int family_of(const weft_problem *p) {
    int64_t window = 1, inside = p->c / (p->groups ? p->groups : 1);
    for (int a = 0; a < 3; a++) window = p->kernel[a] > window ? p->kernel[a] : window;
    if (inside == 1 && p->groups > 1) return window <= 3 ? 0 : window <= 9 ? 1 : 2;
    return p->groups > 1 ? GROUPS : window == 1 ? 4 : 5;
}

/* In 1D PyTorch puts channels-last data in the other order, and the results back. */
static bool runs_last(const weft_problem *p) { return wt_rates_last(p) && p->rank > 1; }

static int kind_of(const weft_problem *p) {
    static const int pass[WEFT_PASS_COUNT] = {
        [WEFT_PASS_FWD] = 1, [WEFT_PASS_BWD_DATA] = 2, [WEFT_PASS_BWD_WEIGHTS] = 3, [WEFT_PASS_BWD] = 4};
    static const int type[WEFT_DTYPE_COUNT] = {[WEFT_DTYPE_F32] = 1, [WEFT_DTYPE_BF16] = 2, [WEFT_DTYPE_F16] = 3};
    const weft_tensor *t = &p->tensor[0];
    if (p->op != WEFT_OP_CONV || p->device != WEFT_DEVICE_CPU || !pass[p->pass] || !type[t->dtype]) return -1;
    int kind = (p->rank == 3) * FAMILIES + family_of(p);
    kind = (kind * PASSES + pass[p->pass] - 1) * LAYOUTS + runs_last(p);
    return kind * TYPES + type[t->dtype] - 1;
}

/* What was measured tells of problems that go the same way. */
static void guess_cpu_conv(const weft_problem *p, weft_rates *r) {
    const int kind = kind_of(p);
    const bool last = runs_last(p);
    wt_conv_work w = wt_torch_conv(p, last);
    if (kind >= 0 && known[kind].slower > 0 && known[kind].way == w.way) {
        w.flops *= known[kind].slower;
        w.ns = known[kind].ns;
    }
    if (wt_rates_last(p) && !last) w.ns += 0.5 * (double)p->n * (double)(p->c * p->in[2] + p->o * p->out[2]);
    /* what is moved counts as operations; of a slow memory it is as much, twice of what is put in another order */
    *r = (weft_rates){w.ns, w.asked / w.flops, last ? 0.9 : 0.45};
}

void wt_torch_rates(void *user, const weft_problem *p, weft_rates *r) {
    (void)user;
    *r = p->device == WEFT_DEVICE_CUDA ? wt_guess_cuda(p) : wt_guess_cpu(p);
    const bool conv = p->op == WEFT_OP_CONV && p->device == WEFT_DEVICE_CPU && p->pass != WEFT_PASS_BWD_BIAS;
    if (conv) guess_cpu_conv(p, r);
    r->ns *= tie, r->of_peak /= tie, r->of_bandwidth /= tie;
    if (instead) *r = *instead;
}

/* ---------------------------------------------------------------- for weft.backends.calibrate() */
static double estimate(const weft_problem *p, const weft_rates *by) {
    wt_rehearse(wt_never, NULL);
    instead = by;
    const double ns = wt_external_ns(p);
    instead = NULL;
    wt_rehearse(NULL, NULL);
    return ns;
}
static double estimate_text(const char *problem, const weft_rates *by) {
    weft_problem p = WEFT_PROBLEM_INIT;
    return weft_problem_parse(&p, problem) == WEFT_OK ? estimate(&p, by) : -1;
}

/* What the machine could do a problem in, ns; and PyTorch by estimate. -1: the text is wrong. */
static const weft_rates machine = {0, 1, 1}, peak = {0, 1, INFINITY};
WEFT_API double weft_torch_bare_ns(const char *problem) { return estimate_text(problem, &machine); }
WEFT_API double weft_torch_estimate_ns(const char *problem) { return estimate_text(problem, NULL); }

/* The least estimate of weft's own kernels within the limit of workspace; infinity: only the reference. */
WEFT_API double weft_torch_own_ns(const char *problem) {
    weft_problem p = WEFT_PROBLEM_INIT;
    double least = INFINITY;
    wt_follow_threads();
    const size_t limit = wt_settings()->workspace_limit ? wt_settings()->workspace_limit : (size_t)64 << 20;
    if (weft_problem_parse(&p, problem) != WEFT_OK) return -1;
    for (size_t i = weft_kernel_count(wt_context(), &p); i-- > 0;) {
        weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
        if (weft_kernel_info(wt_context(), &p, i, &d) != WEFT_OK || !d.applies || d.workspace > limit) continue;
        if (!strcmp(d.engine, "cpu") || !strcmp(d.engine, "cuda")) least = fmin(least, d.ns);
    }
    return least;
}

/* Two measurements of the kind that both problems are of, a tiny one and a larger: the cost of a call, and how much
 * slower the way is than its constants say. Within some three fifths the constants, which are of many problems, stand;
 * and where groups of four channels, which are measured, are fast: others are not. false: they say nothing. */
WEFT_API bool weft_torch_learn(const char *tiny, double tiny_ns, const char *large, double large_ns) {
    static const double noise = 1.6;
    weft_problem p[2] = {WEFT_PROBLEM_INIT, WEFT_PROBLEM_INIT};
    if (weft_problem_parse(&p[0], tiny) != WEFT_OK || weft_problem_parse(&p[1], large) != WEFT_OK) return false;
    const int kind = kind_of(&p[1]);
    if (kind < 0 || !(large_ns > tiny_ns) || !(tiny_ns > 0)) return false;
    const wt_conv_work least = wt_torch_conv(&p[0], wt_rates_last(&p[0])),
                       most = wt_torch_conv(&p[1], wt_rates_last(&p[1]));
    const double at_peak = estimate(&p[1], &peak) / most.asked; /* ns of an operation */
    const double slower = (large_ns - tiny_ns) / (at_peak * (most.flops - least.flops));
    if (!(most.flops > least.flops) || !isfinite(slower)) return false;
    const bool at_best = family_of(&p[1]) == GROUPS && slower < 1;
    const bool agrees = at_best || (slower < noise && slower > 1 / noise);
    known[kind].way = most.way;
    known[kind].slower = agrees ? 1 : slower;
    known[kind].ns = agrees ? most.ns : fmax(tiny_ns - slower * at_peak * least.flops, 0);
    wt_seat_forget();
    return true;
}

/* Back to the constants. */
WEFT_API void weft_torch_unlearn(void) {
    memset(known, 0, sizeof(known));
    wt_seat_forget();
}
