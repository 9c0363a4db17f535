/* The reference kernel of every operator: its items in a parallel loop.
 * Speed is not its aim: about 3 ns a multiply-add, from the data-type switch on every load, and 20 ns an item, which
 * divides to find its place in each tensor. */
#include "core/internal.h"

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const weft__items *items = weft__op_of(p->op)->items;
    double ns = 1.5 * weft__flops(p);
    (void)variant;
    for (int phase = 0; phase < items->phases(p); phase++) ns += 20.0 * (double)items->count(p, phase);
    d->ns = 2000 + ns / WEFT__MAX(WEFT__MIN(hw->threads, hw->cores), 1);
    d->workspace = items->workspace(p);
    return NULL;
}

typedef struct span {
    const weft__exec *e;
    const weft__items *items;
    int phase;
    int64_t count, slots;
} span;

static void run_span(void *arg, int64_t slot) {
    const span *s = arg;
    int64_t step = s->count / s->slots, rest = s->count % s->slots; /* the first `rest` slots take one more */
    int64_t i = slot * step + WEFT__MIN(slot, rest), end = i + step + (slot < rest);
    for (; i < end; i++) s->items->item(s->e->p, s->e->ptr, s->e->workspace, s->phase, i);
}

static weft_status run(const weft__exec *e) {
    const weft__items *items = weft__op_of(e->p->op)->items;
    for (int phase = 0; phase < items->phases(e->p); phase++) {
        int64_t count = items->count(e->p, phase);
        if (count == 0) continue;
        span s = {e, items, phase, count, WEFT__MIN(count, 256)};
        weft__parallel(e->ctx, s.slots, run_span, &s);
    }
    return WEFT_OK;
}

#define X(NAME, NAME_)                                                  \
    static const weft__kernel ref_##NAME_ = {.name = #NAME_ "_ref",     \
                                             .version = 1,              \
                                             .op = WEFT_OP_##NAME,      \
                                             .engine = WEFT_ENGINE_REF, \
                                             .reference = true,         \
                                             .exact = true,             \
                                             .steps = WEFT__STEPS_ALL,  \
                                             .plan = plan,              \
                                             .run = run};
WEFT_OP_LIST(X)
#undef X

const weft__kernel *const weft__ref_kernels[WEFT_OP_COUNT] = {NULL,
#define X(NAME, NAME_) &ref_##NAME_,
                                                              WEFT_OP_LIST(X)
#undef X
};
