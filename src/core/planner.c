/* The planner: which kernel. Pinned by name, else wisdom, else measured (if asked), else the least estimate among
 * those that apply and fit the workspace limit. The reference takes every problem, so there is always a plan. */
#include <math.h>
#include <string.h>

#include "core/internal.h"

#define GIVE_UP 3.0 /* times the best: a candidate that takes longer is measured no further */

/* "name" or "name#variant". */
static weft_status find_pin(const weft_ctx *ctx, const weft_problem *p, const char *name, weft__want *want) {
    const weft__kernel *k;
    char text[WEFT__NAME_MAX];
    for (size_t i = 0; (k = weft__kernel_at(ctx, p->op, i)); i++)
        for (int v = -1; v < weft__kernel_variants(k); v++) {
            weft__kernel_name(k, WEFT__MAX(v, 0), text);
            if (strcmp(v < 0 ? k->name : text, name)) continue;
            want->pin = k;
            want->variant = v;
            return WEFT_OK;
        }
    return weft__fail(WEFT_ERR_INVALID, "kernel is '%s', allowed: a kernel of %s (weft list shows them)", name,
                      weft__op_of(p->op)->name);
}

/* Does it apply and fit? *c is the choice; else the reason. */
static const char *consider(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__want *want,
                            const weft__kernel *k, int variant, weft__choice *c) {
    if (!(want->engines & k->engine)) return "its engine is switched off";
    const char *reason = weft__kernel_plan(ctx, k, variant, p, hw, &c->d);
    if (!reason && weft__decision_bytes(&c->d) > want->limit && !k->reference)
        reason = "its workspace is over the limit";
    c->kernel = k;
    c->variant = variant;
    c->why = "estimate";
    return reason;
}

static bool same_design(const weft__kernel *a, const weft__kernel *b) {
    const char *isa = strstr(a->name, "__");
    const size_t n = isa ? (size_t)(isa - a->name) : strlen(a->name);
    return a->engine == WEFT_ENGINE_CPU && b->engine == WEFT_ENGINE_CPU && strncmp(a->name, b->name, n) == 0 &&
           strncmp(b->name + n, "__", 2) == 0;
}

size_t weft__add_candidate(weft__choice *best, size_t n, const weft__choice *c) {
    size_t same = 0, at = n; /* the place that becomes free: behind all, or the dearer one's of two ISAs, or the last */
    for (size_t i = 0; i < n; i++)
        if (best[i].variant == c->variant && same_design(best[i].kernel, c->kernel)) same++, at = i;
    if (same < 2) at = n < WEFT__CANDIDATES_MAX ? n : n - 1;
    if (at < n && best[at].d.ns <= c->d.ns) return n;
    const size_t count = WEFT__MAX(n, at + 1);
    for (; at > 0 && best[at - 1].d.ns > c->d.ns; at--) best[at] = best[at - 1];
    best[at] = *c;
    return count;
}

/* Those that apply and fit, least estimate first; at most WEFT__CANDIDATES_MAX. */
static size_t candidates(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__want *want,
                         weft__choice *best) {
    const weft__kernel *k;
    size_t n = 0;
    for (size_t i = 0; (k = weft__kernel_at(ctx, p->op, i)); i++)
        for (int v = 0; v < weft__kernel_variants(k); v++) {
            weft__choice c;
            const char *reason = consider(ctx, p, hw, want, k, v, &c);
            if (reason) {
                weft__log(ctx, WEFT_LOG_DISPATCH, "dispatch: %s refused: %s", k->name, reason);
                continue;
            }
            n = weft__add_candidate(best, n, &c);
        }
    return n;
}

/* The reference defines results and is slow: it is taken, and measured, only where nothing else applies. Returns how
 * many are left. */
static size_t without_reference(weft__choice *list, size_t n) {
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!list[i].kernel->reference) list[kept++] = list[i];
    return kept ? kept : n;
}

static void remember(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__choice *c) {
    if (weft__wisdom_add(ctx, p, hw, c) != WEFT_OK) weft__log(ctx, WEFT_LOG_ERROR, "tune: %s", weft_last_error());
}

/* Time one candidate within `seconds`; false: it failed or was given up. */
static bool measure_one(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, double best, double seconds,
                        weft__choice *c) {
    char name[WEFT__NAME_MAX];
    double ns = HUGE_VAL;
    weft__kernel_name(c->kernel, c->variant, name);
    if (weft__measure(ctx, p, hw, c, GIVE_UP * best, seconds, &ns) != WEFT_OK) {
        weft__log(ctx, WEFT_LOG_TUNE, "tune: %s failed and is skipped: %s", name, weft_last_error());
        return false;
    }
    if (!isfinite(ns)) {
        weft__log(ctx, WEFT_LOG_TUNE, "tune: %s given up, over %.0f ns (estimate %.0f)", name, GIVE_UP * best, c->d.ns);
        return false;
    }
    weft__log(ctx, WEFT_LOG_TUNE, "tune: %s %.0f ns (estimate %.0f)", name, ns, c->d.ns);
    c->d.ns = ns;
    c->why = "measured";
    remember(ctx, p, hw, c);
    return true;
}

/* The fastest to list[0]. */
static void measure_all(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, double seconds, weft__choice *list,
                        size_t n) {
    double best = HUGE_VAL;
    size_t winner = 0;
    uint64_t start = weft__now_ns();
    for (size_t i = 0; i < n; i++) {
        double left = seconds - (double)(weft__now_ns() - start) * 1e-9;
        if (i > 0 && left <= 0) break;
        if (!measure_one(ctx, p, hw, best, left / (double)(n - i), &list[i]) || !(list[i].d.ns < best)) continue;
        best = list[i].d.ns;
        winner = i;
    }
    list[0] = list[winner];
}

static weft_status unknown(const weft_problem *p) {
    char text[WEFT_TEXT_MAX];
    WEFT__TRY(weft_problem_format(p, text, sizeof(text), NULL));
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "no wisdom for %s on this machine, with this many threads and these settings", text);
}

static weft_status choose_pinned(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__want *want,
                                 weft__choice *out) {
    const weft__kernel *k = want->pin;
    const int first = WEFT__MAX(want->variant, 0), last = want->variant < 0 ? weft__kernel_variants(k) : first + 1;
    const char *reason = NULL;
    weft__choice c = {0};
    out->kernel = NULL;
    for (int v = first; v < last; v++) {
        const char *why_not = consider(ctx, p, hw, want, k, v, &c);
        if (why_not)
            reason = why_not;
        else if (!out->kernel || c.d.ns < out->d.ns)
            *out = c;
    }
    if (!out->kernel && weft__decision_bytes(&c.d) > want->limit)
        return weft__fail(WEFT_ERR_UNSUPPORTED, "kernel %s needs %zu bytes of workspace, the limit is %zu", k->name,
                          weft__decision_bytes(&c.d), want->limit);
    if (!out->kernel) return weft__fail(WEFT_ERR_UNSUPPORTED, "kernel %s does not apply: %s", k->name, reason);
    out->why = "pinned";
    return WEFT_OK;
}

static weft_status choose(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__want *want,
                          weft__choice *out) {
    if (want->pin) return choose_pinned(ctx, p, hw, want, out);
    if (!want->deterministic && weft__wisdom_find(ctx, p, hw, want->engines, want->limit, out)) return WEFT_OK;
    weft__choice list[WEFT__CANDIDATES_MAX];
    size_t n = without_reference(list, candidates(ctx, p, hw, want, list));
    if (n == 0)
        return weft__fail(WEFT_ERR_UNSUPPORTED, "no kernel takes this problem with the engines enabled (0x%x)",
                          weft__opts(ctx)->engines & want->engines);
    if (weft__is_empty(p)) {
        list[0].why = "only"; /* nothing to measure, nothing to know */
    } else if (want->mode == WEFT_MODE_WISDOM_ONLY) {
        return unknown(p);
    } else if (n == 1) { /* nothing to time; asked for, it is remembered with its estimate */
        list[0].why = want->mode == WEFT_MODE_MEASURE ? "wisdom" : "only";
        if (want->mode == WEFT_MODE_MEASURE) remember(ctx, p, hw, &list[0]);
    } else if (want->mode == WEFT_MODE_MEASURE) {
        measure_all(ctx, p, hw, want->seconds, list, n);
    }
    *out = list[0];
    return WEFT_OK;
}

static weft_status read_opts(weft_ctx *ctx, const weft_problem *p, const weft_plan_opts *opts, weft__want *want) {
    const weft_ctx_opts *o = weft__opts(ctx);
    *want = (weft__want){.mode = o->mode,
                         .deterministic = o->deterministic,
                         .engines = WEFT_ENGINE_ALL,
                         .limit = o->workspace_limit,
                         .seconds = o->measure_seconds};
    if (!opts) return WEFT_OK;
    weft_plan_opts q;
    if (!weft__adopt(&q, sizeof(q), opts, WEFT__LEAST(weft_plan_opts, kernel)))
        return weft__fail(WEFT_ERR_INVALID, "opts.size is %zu, allowed: %zu (start from WEFT_PLAN_OPTS_INIT)",
                          opts->size, sizeof(q));
    if ((unsigned)q.mode > WEFT_MODE_WISDOM_ONLY)
        return weft__fail(WEFT_ERR_INVALID, "mode is %d, allowed: one of weft_mode", q.mode);
    if (q.engines & ~(uint32_t)WEFT_ENGINE_ALL)
        return weft__fail(WEFT_ERR_INVALID, "engines is 0x%x, allowed: a sum of WEFT_ENGINE_*", q.engines);
    if (!(q.measure_seconds >= 0))
        return weft__fail(WEFT_ERR_INVALID, "measure_seconds is %g, allowed: 0 or more", q.measure_seconds);
    if (q.mode) want->mode = q.mode;
    if (q.engines) want->engines = q.engines;
    if (q.workspace_limit) want->limit = q.workspace_limit;
    if (q.measure_seconds > 0) want->seconds = q.measure_seconds;
    want->deterministic |= q.deterministic != 0;
    return q.kernel ? find_pin(ctx, p, q.kernel, want) : WEFT_OK;
}

/* A plan made for another mode may serve: one that was not measured does not where that, or wisdom, is asked for. */
static bool serves(const weft_plan *plan, const weft__want *want) {
    const char *why = weft__plan_choice(plan)->why;
    return want->mode == WEFT_MODE_ESTIMATE || weft__is_empty(weft_plan_problem(plan)) ||
           (strcmp(why, "estimate") && strcmp(why, "only"));
}

weft_status weft_plan_create(weft_plan **plan, weft_ctx *ctx, const weft_problem *problem, const weft_plan_opts *opts) {
    if (!plan) return weft__fail(WEFT_ERR_INVALID, "plan is NULL, allowed: a place for the plan");
    *plan = NULL;
    WEFT__TRY(weft__check_ctx(ctx));
    weft_problem p;
    WEFT__TRY(weft__take_problem(&p, problem));
    weft__want want;
    WEFT__TRY(read_opts(ctx, &p, opts, &want));
    if (want.deterministic) want.mode = WEFT_MODE_ESTIMATE;
    uint64_t key[WEFT__KEY_MAX];
    size_t n = weft__problem_key(&p, key), named = n;
    key[n++] = (uint64_t)want.engines | (uint64_t)want.deterministic << 32 | (uint64_t)(want.variant + 1) << 40;
    key[n++] = want.limit;
    key[n++] = (uint64_t)(uintptr_t)want.pin;
    uint64_t hash = weft__hash(key, n);
    *plan = weft__cache_get(weft__ctx_cache(ctx), key, n, hash);
    if (*plan && serves(*plan, &want)) return WEFT_OK;
    const bool known = *plan != NULL;
    weft_plan_release(*plan);
    *plan = NULL;
    weft__hw hw;
    WEFT__TRY(weft__ctx_hw(ctx, &p, &hw));
    if (want.deterministic)
        weft__hw_nominal(&hw);
    else
        weft__rates(ctx, &hw);
    weft__choice c;
    WEFT__TRY(choose(ctx, &p, &hw, &want, &c));
    /* its older plans knew less */
    if (known || strcmp(c.why, "measured") == 0) weft__cache_clear(ctx, weft__ctx_cache(ctx), key, named);
    WEFT__TRY(weft__plan_build(plan, ctx, &p, &hw, &c));
    weft_status s = weft__cache_put(ctx, weft__ctx_cache(ctx), key, n, hash, plan);
    if (s != WEFT_OK) {
        weft_plan_release(*plan);
        *plan = NULL;
    }
    return s;
}
