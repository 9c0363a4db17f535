/* The host's implementation, presented as a kernel of every operator so that planning, measuring and wisdom treat it
 * as one. */
#include <string.h>

#include "core/internal.h"

const char *weft__external_plan(const weft__external *x, const weft_problem *p, const weft__hw *hw, weft__decision *d) {
    const char *reason = x->of.reject ? x->of.reject(x->of.user, p) : NULL;
    if (reason) return reason;
    weft_rates rates = {0, 1, 1};
    const bool cuda = p->device == WEFT_DEVICE_CUDA;
    const double cores = WEFT__MAX(WEFT__MIN(hw->threads, hw->cores), 1);
    const double peak = cuda ? hw->gpu->gflops : hw->gflops[hw->isa] * cores, gbs = cuda ? hw->gpu->gbs : hw->gbs;
    x->of.estimate(x->of.user, p, &rates);
    d->ns = rates.ns + WEFT__MAX(weft__flops(p) / (peak * rates.of_peak), weft__bytes(p) / (gbs * rates.of_bandwidth));
    return NULL;
}

static weft_status run_once(const weft__exec *e) {
    const weft_external *r = &weft__ctx_external(e->ctx)->of;
    weft_args args = WEFT_ARGS_INIT;
    for (int i = 0; i < WEFT_ROLE_COUNT; i++) args.ptr[i] = e->ptr[i];
    return r->run_once(r->user, e->p, &args, e->stream);
}

weft_status weft_ctx_set_external(weft_ctx *ctx, const weft_external *external) {
    WEFT__TRY(weft__check_ctx(ctx));
    weft_external of;
    if (!external || !weft__adopt(&of, sizeof(of), external, WEFT__LEAST(weft_external, run_once)))
        return weft__fail(WEFT_ERR_INVALID, "external is %s, allowed: a weft_external started from WEFT_EXTERNAL_INIT",
                          external ? "of another size" : "NULL");
    if (!of.name || !of.name[0] || !of.estimate || !of.run_once)
        return weft__fail(WEFT_ERR_INVALID,
                          "%s of external is missing, allowed: a name and functions for estimate and run_once",
                          !of.estimate   ? "estimate"
                          : !of.run_once ? "run_once"
                                         : "name");
    if (of.name[strcspn(of.name, " \t\r\n#")] || strlen(of.name) >= WEFT__NAME_MAX)
        return weft__fail(WEFT_ERR_INVALID,
                          "name of external is '%.40s', allowed: up to %d characters without spaces or #", of.name,
                          WEFT__NAME_MAX - 1);
    weft__external *r = weft__ctx_external(ctx);
    if (r->of.name)
        return weft__fail(WEFT_ERR_INVALID, "the context has the external implementation %s already, allowed: one",
                          r->of.name);
    for (int op = 1; op < WEFT_OP_COUNT; op++)
        r->kernel[op] = (weft__kernel){.name = of.name,
                                       .version = of.version,
                                       .op = op,
                                       .engine = WEFT_ENGINE_EXTERNAL,
                                       .steps = WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP),
                                       .run = run_once};
    r->of = of;
    return WEFT_OK;
}
