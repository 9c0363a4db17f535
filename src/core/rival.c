/* The host's rival, dressed as a kernel of every operator so that planning, measuring and wisdom treat it as one. */
#include "core/internal.h"

const char *weft__rival_refusal(const weft__rival *r, const weft_problem *p) { return r->of.refuses ? r->of.refuses(r->of.user, p) : NULL; }

double weft__rival_cost(const weft__rival *r, const weft_problem *p, const weft__hw *hw) {
    weft_rates rates = {0, 1, 1};
    bool cuda = p->device == WEFT_CUDA;
    double peak = cuda ? hw->gpu->gflops : hw->gflops[hw->isa] * WEFT__MAX(WEFT__MIN(hw->threads, hw->cores), 1), gbs = cuda ? hw->gpu->gbs : hw->gbs;
    r->of.rates(r->of.user, p, &rates);
    return rates.ns + WEFT__MAX(weft__flops(p) / (peak * rates.of_peak), weft__bytes(p) / (gbs * rates.of_bandwidth));
}

static weft_status rehearse(const weft__exec *e) {
    const weft_rival *r = &weft__ctx_rival(e->ctx)->of;
    weft_args args = WEFT_ARGS_INIT;
    for (int i = 0; i < WEFT_ROLE_COUNT; i++) args.ptr[i] = e->ptr[i];
    return r->rehearse(r->user, e->p, &args, e->stream);
}

weft_status weft_ctx_set_rival(weft_ctx *ctx, const weft_rival *rival) {
    if (!ctx) return weft__fail(WEFT_INVALID, "ctx is NULL, allowed: a context");
    weft_rival of;
    if (!rival || !weft__adopt(&of, sizeof(of), rival, WEFT__LEAST(weft_rival, rehearse)))
        return weft__fail(WEFT_INVALID, "rival is %s, allowed: a weft_rival started from WEFT_RIVAL_INIT", rival ? "of another size" : "NULL");
    if (!of.name || !of.name[0] || !of.rates || !of.rehearse)
        return weft__fail(WEFT_INVALID, "%s of the rival is missing, allowed: a name and functions for rates and rehearse", !of.rates ? "rates" : !of.rehearse ? "rehearse" : "name");
    weft__rival *r = weft__ctx_rival(ctx);
    if (r->of.name) return weft__fail(WEFT_INVALID, "the context has the rival %s already, allowed: one", r->of.name);
    for (int op = 1; op < WEFT_OP_COUNT; op++)
        r->kernel[op] = (weft__kernel){.name = of.name, .version = of.version, .op = op, .engine = WEFT_ENGINE_RIVAL, .run = rehearse};
    r->of = of;
    return WEFT_OK;
}
