/* The reference kernels of the CUDA engine: every operator has one by itself, so every valid problem has a plan on a
 * GPU. */
#include <string.h>

#include "core/internal.h"
#include "cuda/kernels/ref.h"

enum { THREADS = 256, MAX_BLOCKS = 1 << 20 };
_Static_assert(sizeof(weft__ref_args) <= 4000, "kernel parameters end at 4 KB");

/* A thread does about 0.0005 flop a nanosecond (doubles, and index arithmetic for each), and a phase of few items fills
 * few threads. */
static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const weft__items *items = weft__op_of(p->op)->items;
    const int phases = items->phases(p);
    const double full = 1024.0 * hw->gpu->sms;
    (void)variant;
    d->ns = 8000.0 * phases;
    for (int i = 0; i < phases; i++) {
        double lanes = WEFT__MAX(WEFT__MIN((double)items->count(p, i), full), 1);
        d->ns += weft__flops(p) / phases / (0.0005 * lanes);
    }
    d->workspace = items->workspace(p);
    return NULL;
}

static void defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *t) {
    const weft__op *op = weft__op_of(p->op);
    (void)hw, (void)params;
    weft__put(t, "--fmad=false -DWEFT_OP_SOURCE=\"%s\" -DWEFT_OP_ITEM=%s", op->items->source, op->items->name);
}

static weft_status run(const weft__exec *e) {
    const weft__items *items = weft__op_of(e->p->op)->items;
    weft__ref_args a = {.p = *e->p, .workspace = e->workspace};
    memcpy(a.ptr, e->ptr, sizeof(a.ptr));
    for (int phase = 0; phase < items->phases(e->p); phase++) {
        a.phase = phase;
        a.count = items->count(e->p, phase);
        if (!a.count) continue;
        const int64_t blocks = WEFT__MIN((a.count + THREADS - 1) / THREADS, MAX_BLOCKS);
        const weft__launch launch = {.grid = {(uint32_t)blocks, 1, 1}, .block = {THREADS, 1, 1}};
        WEFT__TRY(weft__cuda_launch(e, 0, &launch, &a));
    }
    return WEFT_OK;
}

#define X(NAME, op_name)                                    \
    static const weft__kernel op_name##_ref = {             \
        .name = #op_name "_ref__cuda",                      \
        .version = 1,                                       \
        .op = WEFT_OP_##NAME,                               \
        .engine = WEFT_ENGINE_CUDA,                         \
        .exact = true,                                      \
        .reference = true,                                  \
        .steps = WEFT__STEPS_ALL,                           \
        .plan = plan,                                       \
        .run = run,                                         \
        WEFT__PARTS({"ref.h", "weft_ref", defines, false}), \
    };
WEFT_OP_LIST(X)
#undef X

const weft__kernel *const weft__cuda_ref_kernels[WEFT_OP_COUNT] = {
#define X(NAME, op_name) [WEFT_OP_##NAME] = &op_name##_ref,
    WEFT_OP_LIST(X)
#undef X
};
