/* The planner: which kernel. Pinned by name, else wisdom, else measured (if asked), else the least estimate among
 * those that apply and fit the workspace limit. The reference takes every problem, so there is always a plan. */
#include <math.h>
#include <string.h>

#include "core/internal.h"

#define CANDIDATES_MAX 8 /* measured at most: the best by estimate, each given up at 3x the best time */
#define GIVE_UP 3.0

static weft_status find_pin(const weft_ctx *ctx, const weft_problem *p, const char *name, const weft__kernel **pin) {
    for (size_t i = 0; (*pin = weft__kernel_at(ctx, p->op, i)); i++)
        if (strcmp((*pin)->name, name) == 0) return WEFT_OK;
    return weft__fail(WEFT_ERR_INVALID, "kernel is '%s', allowed: a kernel of %s (weft list shows them)", name,
                      weft__op_of(p->op)->name);
}

static weft__choice choice_of(const weft__kernel *k, const weft_problem *p, const weft__hw *hw, double ns,
                              const char *why) {
    weft__choice c = {k, ns, weft__kernel_workspace(k, p, hw), k->packed ? k->packed(p, hw) : 0, why};
    return c;
}

/* Those that apply and fit, least estimate first; at most CANDIDATES_MAX. */
static size_t candidates(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__want *want,
                         weft__choice *best) {
    const weft__kernel *k;
    size_t n = 0;
    for (size_t i = 0; (k = weft__kernel_at(ctx, p->op, i)); i++) {
        const char *reason =
            want->engines & k->engine ? weft__kernel_refusal(ctx, k, p, hw) : "its engine is switched off";
        if (!reason && weft__kernel_workspace(k, p, hw) > want->limit && !k->reference)
            reason = "its workspace is over the limit";
        if (reason) {
            weft__log(ctx, WEFT_LOG_DISPATCH, "dispatch: %s refused: %s", k->name, reason);
            continue;
        }
        weft__choice c = choice_of(k, p, hw, weft__kernel_cost(ctx, k, p, hw), "estimate");
        size_t at = n < CANDIDATES_MAX ? n++ : n - 1;
        if (at == CANDIDATES_MAX - 1 && n == CANDIDATES_MAX && best[at].kernel && best[at].ns <= c.ns) continue;
        while (at > 0 && best[at - 1].ns > c.ns) {
            best[at] = best[at - 1];
            at--;
        }
        best[at] = c;
    }
    return n;
}

/* The reference is the oracle, not a candidate: it is measured only where nothing else runs. */
static void reference_last(weft__choice *list, size_t n) {
    for (size_t i = 0; i + 1 < n; i++) {
        if (!list[i].kernel->reference) continue;
        weft__choice reference = list[i];
        list[i] = list[i + 1];
        list[i + 1] = reference;
    }
}

static void measure_all(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, double seconds, weft__choice *list,
                        size_t n) {
    double best = HUGE_VAL;
    size_t winner = 0;
    uint64_t start = weft__now_ns();
    reference_last(list, n);
    for (size_t i = 0; i < n; i++) {
        double left = seconds - (double)(weft__now_ns() - start) * 1e-9, ns = HUGE_VAL;
        if (i > 0 && left <= 0) break;
        if (list[i].kernel->reference && isfinite(best)) break;
        weft_status s = weft__measure(ctx, p, hw, list[i].kernel, GIVE_UP * best, left / (double)(n - i), &ns);
        if (s != WEFT_OK) {
            weft__log(ctx, WEFT_LOG_TUNE, "tune: %s failed and is skipped: %s", list[i].kernel->name,
                      weft_last_error());
            continue;
        }
        if (!isfinite(ns)) {
            weft__log(ctx, WEFT_LOG_TUNE, "tune: %s given up, over %.0f ns (estimate %.0f)", list[i].kernel->name,
                      GIVE_UP * best, list[i].ns);
            continue;
        }
        weft__log(ctx, WEFT_LOG_TUNE, "tune: %s %.0f ns (estimate %.0f)", list[i].kernel->name, ns, list[i].ns);
        if (weft__wisdom_add(ctx, p, hw, list[i].kernel, ns, list[i].workspace) != WEFT_OK)
            weft__log(ctx, WEFT_LOG_ERROR, "tune: %s", weft_last_error());
        if (!(ns < best)) continue;
        best = ns;
        winner = i;
    }
    weft__choice c = list[winner];
    if (isfinite(best)) c.ns = best, c.why = "measured";
    list[0] = c;
}

static weft_status unknown(const weft_problem *p) {
    char text[WEFT_TEXT_MAX];
    WEFT__TRY(weft_problem_format(p, text, sizeof(text), NULL));
    return weft__fail(WEFT_ERR_UNSUPPORTED,
                      "no wisdom for %s on this machine, with this many threads and these settings", text);
}

static weft_status choose(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__want *want,
                          weft__choice *out) {
    if (want->pin) {
        const char *reason = weft__kernel_refusal(ctx, want->pin, p, hw);
        size_t bytes = reason ? 0 : weft__kernel_workspace(want->pin, p, hw);
        if (reason) return weft__fail(WEFT_ERR_UNSUPPORTED, "kernel %s does not apply: %s", want->pin->name, reason);
        if (bytes > want->limit && !want->pin->reference)
            return weft__fail(WEFT_ERR_UNSUPPORTED, "kernel %s needs %zu bytes of workspace, the limit is %zu",
                              want->pin->name, bytes, want->limit);
        *out = choice_of(want->pin, p, hw, weft__kernel_cost(ctx, want->pin, p, hw), "pinned");
        return WEFT_OK;
    }
    double ns;
    const weft__kernel *known = weft__wisdom_find(ctx, p, hw, want->engines, want->limit, &ns);
    if (known) {
        *out = choice_of(known, p, hw, ns, "wisdom");
        return WEFT_OK;
    }
    /* nothing to know of an empty one */
    if (want->mode == WEFT_MODE_WISDOM_ONLY && !weft__is_empty(p)) return unknown(p);
    weft__choice list[CANDIDATES_MAX] = {{0}};
    size_t n = candidates(ctx, p, hw, want, list);
    if (n == 0)
        return weft__fail(WEFT_ERR_UNSUPPORTED, "no kernel takes this problem with the engines enabled (0x%x)",
                          weft__opts(ctx)->engines & want->engines);
    if (want->mode == WEFT_MODE_MEASURE && !weft__is_empty(p)) measure_all(ctx, p, hw, want->seconds, list, n);
    *out = list[0];
    return WEFT_OK;
}

static weft_status read_opts(weft_ctx *ctx, const weft_problem *p, const weft_plan_opts *opts, weft__want *want) {
    const weft_ctx_opts *o = weft__opts(ctx);
    *want = (weft__want){o->mode, WEFT_ENGINE_ALL, o->workspace_limit, NULL, o->measure_seconds};
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
    return q.kernel ? find_pin(ctx, p, q.kernel, &want->pin) : WEFT_OK;
}

weft_status weft_plan_create(weft_plan **plan, weft_ctx *ctx, const weft_problem *problem, const weft_plan_opts *opts) {
    if (!plan) return weft__fail(WEFT_ERR_INVALID, "plan is NULL, allowed: a place for the plan");
    *plan = NULL;
    if (!ctx) return weft__fail(WEFT_ERR_INVALID, "ctx is NULL, allowed: a context");
    weft_problem p;
    WEFT__TRY(weft__take_problem(&p, problem));
    weft__want want;
    WEFT__TRY(read_opts(ctx, &p, opts, &want));
    uint64_t key[WEFT__KEY_MAX];
    size_t n = weft__problem_key(&p, key), named = n;
    key[n++] = (uint64_t)want.mode | (uint64_t)want.engines << 8 | (uint64_t)weft__ctx_threads(ctx) << 16;
    key[n++] = want.limit;
    key[n++] = (uint64_t)(uintptr_t)want.pin;
    uint64_t hash = weft__hash(key, n);
    *plan = weft__cache_get(weft__ctx_cache(ctx), key, n, hash);
    if (*plan) return WEFT_OK;
    weft__hw hw;
    WEFT__TRY(weft__ctx_hw(ctx, &p, &hw));
    weft__choice c;
    WEFT__TRY(choose(ctx, &p, &hw, &want, &c));
    /* its older plans knew less */
    if (strcmp(c.why, "measured") == 0) weft__cache_clear(ctx, weft__ctx_cache(ctx), key, named);
    WEFT__TRY(weft__plan_build(plan, ctx, &p, &hw, &c));
    weft_status s = weft__cache_put(ctx, weft__ctx_cache(ctx), key, n, hash, plan);
    if (s != WEFT_OK) {
        weft_plan_release(*plan);
        *plan = NULL;
    }
    return s;
}
