/* The plan as an object, and the run: arguments are checked against the problem before anything is written. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"

struct weft_plan {
    weft_problem p;
    weft__hw hw;
    weft__choice choice;
    weft_ctx *ctx;
    uint64_t roles; /* that need a pointer */
    bool empty;
    struct { /* of each tensor, for the check that outputs overlap nothing */
        size_t bytes;
        bool dense, output;
    } extent[WEFT_MAX_TENSORS];
    void *functions[WEFT__PARTS_MAX]; /* CUDA */
    char name[WEFT__NAME_MAX];
    _Atomic int refs;
};

weft_status weft__plan_build(weft_plan **out, weft_ctx *ctx, const weft_problem *p, const weft__hw *hw,
                             const weft__choice *c) {
    weft_plan *plan = weft__alloc(ctx, sizeof(*plan));
    if (!plan) return weft__fail(WEFT_ERR_MEMORY, "out of memory for a plan");
    plan->p = *p;
    plan->hw = *hw;
    plan->choice = *c;
    weft__kernel_name(c->kernel, c->variant, plan->name);
    plan->empty = weft__is_empty(p);
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (weft__numel(t)) plan->roles |= WEFT__BIT(t->role);
        plan->extent[i].bytes = weft_tensor_bytes(t);
        plan->extent[i].dense = plan->extent[i].bytes == (size_t)weft__numel(t) * weft__dtype_size(t->dtype);
        plan->extent[i].output = weft__is_output(p, t->role);
    }
    atomic_init(&plan->refs, 1);
    if (c->kernel->engine == WEFT_ENGINE_CUDA && !plan->empty) {
        weft_status s = weft__cuda_prepare(weft__ctx_cuda(ctx, NULL), c, p, hw, plan->functions);
        if (s != WEFT_OK) {
            weft__free(ctx, plan);
            return s;
        }
    }
    plan->ctx = weft__ctx_retain(ctx);
    if (weft__logs(ctx, WEFT_LOG_DISPATCH)) {
        char text[WEFT_TEXT_MAX];
        if (weft_problem_format(p, text, sizeof(text), NULL) == WEFT_OK)
            weft__log(ctx, WEFT_LOG_DISPATCH, "dispatch: %s -> %s (%s, %.0f ns, workspace %zu)", text, plan->name,
                      c->why, c->d.ns, weft__decision_bytes(&c->d));
    }
    *out = plan;
    return WEFT_OK;
}

weft_plan *weft_plan_retain(weft_plan *plan) {
    if (plan) atomic_fetch_add_explicit(&plan->refs, 1, memory_order_relaxed);
    return plan;
}

void weft_plan_release(weft_plan *plan) {
    if (!plan || atomic_fetch_sub_explicit(&plan->refs, 1, memory_order_acq_rel) != 1) return;
    weft_ctx *ctx = plan->ctx;
    weft__free(ctx, plan);
    weft__ctx_drop(ctx);
}

const weft_problem *weft_plan_problem(const weft_plan *plan) { return plan ? &plan->p : NULL; }
const char *weft_plan_kernel_name(const weft_plan *plan) { return plan ? plan->name : ""; }
size_t weft_plan_workspace_bytes(const weft_plan *plan) {
    return plan && !plan->empty ? weft__decision_bytes(&plan->choice.d) : 0;
}
size_t weft_plan_packed_bytes(const weft_plan *plan) { return plan ? plan->choice.d.packed : 0; }

uint64_t weft_plan_packed_id(const weft_plan *plan) {
    if (!weft_plan_packed_bytes(plan)) return 0;
    const weft_tensor *t = weft__tensor(&plan->p, WEFT_ROLE_WEIGHTS);
    uint64_t words[8 + 2 * WEFT_MAX_RANK + (WEFT__NAME_MAX + WEFT__PARAM_BYTES) / 8] = {
        WEFT_VERSION_MAJOR << 16 | WEFT_VERSION_MINOR,
        (uint64_t)plan->choice.kernel->version,
        weft_plan_packed_bytes(plan),
        (uint64_t)plan->p.pass,
        (uint64_t)plan->p.groups,
        (uint64_t)t->dtype};
    uint64_t *at = words + 8;
    memcpy(at, t->dims, sizeof(t->dims));
    memcpy(at += WEFT_MAX_RANK, t->strides, sizeof(t->strides));
    strcpy((char *)(at += WEFT_MAX_RANK), plan->name);
    memcpy(at + WEFT__NAME_MAX / 8, plan->choice.d.params, WEFT__PARAM_BYTES);
    return weft__hash(words, WEFT__COUNT(words)) | 1; /* 0: not packed */
}

const weft__choice *weft__plan_choice(const weft_plan *plan) { return &plan->choice; }

weft_status weft_plan_cost(const weft_plan *plan, weft_cost *cost) {
    if (!plan) return weft__fail(WEFT_ERR_INVALID, "plan is NULL, allowed: a plan");
    if (!cost || !weft__has_size(cost, WEFT__LEAST(weft_cost, ns)))
        return weft__fail(WEFT_ERR_INVALID, "cost is %s, allowed: a weft_cost started from WEFT_COST_INIT",
                          cost ? "of another size" : "NULL");
    weft_cost c = {sizeof(c), weft__flops(&plan->p), weft__bytes(&plan->p), plan->choice.d.ns};
    weft__return(cost, &c, sizeof(c));
    return WEFT_OK;
}

/* ---------------------------------------------------------------- checks */
static weft_status misaligned(const weft_tensor *t, const void *ptr) {
    return weft__fail(WEFT_ERR_INVALID,
                      "%s: the pointer %p is not a multiple of %d, allowed: the alignment the problem states",
                      weft__role_name(t->role), ptr, t->align);
}

static weft_status check_pointers(const weft_plan *plan, const weft_args *args) {
    for (int i = 0; i < plan->p.ntensors; i++) {
        const weft_tensor *t = &plan->p.tensor[i];
        const void *ptr = args->ptr[t->role];
        bool packed = t->role == WEFT_ROLE_WEIGHTS && plan->choice.d.packed && args->packed;
        if (!(plan->roles & WEFT__BIT(t->role)) || packed) continue;
        if (!ptr)
            return weft__fail(WEFT_ERR_INVALID, "%s: the pointer is NULL, allowed: %lld elements of %s",
                              weft__role_name(t->role), (long long)weft__numel(t), weft__dtype_name(t->dtype));
        if ((uintptr_t)ptr % (uintptr_t)t->align) return misaligned(t, ptr);
    }
    return WEFT_OK;
}

/* The first or the last byte of x lies in y. */
static bool reaches(uintptr_t x, size_t x_bytes, uintptr_t y, size_t y_bytes) {
    return x - y < y_bytes || x + x_bytes - 1 - y < y_bytes;
}

static bool may_share(const weft_problem *p, const weft_tensor *x, const weft_tensor *y) {
    const bool pair = (x->role == WEFT_ROLE_SRC && y->role == WEFT_ROLE_DST) ||
                      (x->role == WEFT_ROLE_DIFF_SRC && y->role == WEFT_ROLE_DIFF_DST);
    return pair && weft__op_of(p->op)->in_place && x->dtype == y->dtype &&
           memcmp(x->strides, y->strides, sizeof(x->strides)) == 0;
}

/* Two tensors, one of them an output, that certainly have a byte in common: the same first element, or an end of one
 * inside the other, which is dense. Strided tensors that interleave may be good, and are left to the caller. */
static weft_status check_overlap(const weft_plan *plan, const weft_args *args) {
    for (int i = 0; i < plan->p.ntensors; i++)
        for (int k = i + 1; k < plan->p.ntensors; k++) {
            const weft_tensor *x = &plan->p.tensor[i], *y = &plan->p.tensor[k];
            const uintptr_t at = (uintptr_t)args->ptr[x->role], to = (uintptr_t)args->ptr[y->role];
            const size_t x_bytes = plan->extent[i].bytes, y_bytes = plan->extent[k].bytes;
            if (!(plan->extent[i].output || plan->extent[k].output) || !at || !to || !x_bytes || !y_bytes) continue;
            if (at != to && !(plan->extent[k].dense && reaches(at, x_bytes, to, y_bytes)) &&
                !(plan->extent[i].dense && reaches(to, y_bytes, at, x_bytes)))
                continue;
            if (at == to && may_share(&plan->p, x, y)) continue;
            return weft__fail(WEFT_ERR_INVALID,
                              "%s and %s overlap in memory, allowed: outputs apart from all other tensors%s",
                              weft__role_name(x->role), weft__role_name(y->role),
                              weft__op_of(plan->p.op)->in_place ? ", or the same data with the same strides" : "");
        }
    return WEFT_OK;
}

static weft_status check_workspace(const weft_plan *plan, const void *packed, const void *workspace, size_t bytes) {
    size_t need = weft_plan_workspace_bytes(plan) - (packed ? plan->choice.d.packed : 0);
    if (packed && plan->choice.d.packed && (uintptr_t)packed % 64)
        return weft__fail(WEFT_ERR_INVALID, "packed %p is not a multiple of 64, allowed: 64-byte alignment", packed);
    if (!need) return WEFT_OK;
    if (!workspace) return weft__fail(WEFT_ERR_WORKSPACE, "workspace is NULL, allowed: %zu bytes", need);
    if (bytes < need)
        return weft__fail(WEFT_ERR_WORKSPACE, "workspace has %zu bytes, allowed: %zu or more", bytes, need);
    if ((uintptr_t)workspace % 64)
        return weft__fail(WEFT_ERR_INVALID, "workspace %p is not a multiple of 64, allowed: 64-byte alignment",
                          workspace);
    return WEFT_OK;
}

static weft__exec exec_of(const weft_plan *plan, void *const *ptr, void *workspace, void *stream) {
    weft__exec e = {&plan->p, &plan->hw, plan->ctx, plan->choice.d.params, ptr,
                    NULL,     workspace, stream,    plan->functions};
    return e;
}

/* ---------------------------------------------------------------- run */
weft_status weft_pack(const weft_plan *plan, const void *weights, void *packed, void *stream) {
    if (!plan) return weft__fail(WEFT_ERR_INVALID, "plan is NULL, allowed: a plan");
    if (!plan->choice.d.packed) return WEFT_OK;
    if (!weights || !packed)
        return weft__fail(WEFT_ERR_INVALID, "%s is NULL, allowed: a pointer", weights ? "packed" : "weights");
    const weft_tensor *t = weft__tensor(&plan->p, WEFT_ROLE_WEIGHTS);
    if (t && (uintptr_t)weights % (uintptr_t)t->align) return misaligned(t, weights);
    if ((uintptr_t)packed % 64)
        return weft__fail(WEFT_ERR_INVALID, "packed %p is not a multiple of 64, allowed: 64-byte alignment", packed);
    weft__exec e = exec_of(plan, NULL, NULL, stream);
    return plan->choice.kernel->pack(&e, weights, packed);
}

weft_status weft_execute(const weft_plan *plan, const weft_args *args, void *workspace, size_t bytes, void *stream) {
    if (!plan) return weft__fail(WEFT_ERR_INVALID, "plan is NULL, allowed: a plan");
    if (!args || args->size < WEFT__LEAST(weft_args, ptr))
        return weft__fail(WEFT_ERR_INVALID, "args is %s, allowed: a weft_args started from WEFT_ARGS_INIT",
                          args ? "of another size" : "NULL");
    if (plan->empty) return WEFT_OK;
    if (plan->choice.kernel->engine == WEFT_ENGINE_EXTERNAL)
        return weft__fail(
            WEFT_ERR_UNSUPPORTED,
            "the plan names %s, the host's own code, allowed: plans of weft's kernels (the host runs its own)",
            plan->choice.kernel->name);
    WEFT__TRY(check_pointers(plan, args));
    WEFT__TRY(check_overlap(plan, args));
    WEFT__TRY(check_workspace(plan, args->packed, workspace, bytes));
    const weft__kernel *k = plan->choice.kernel;
    weft__exec e = exec_of(plan, args->ptr, workspace, stream);
    e.packed = args->packed;
    if (plan->choice.d.packed && !e.packed) {
        void *room = (char *)workspace + plan->choice.d.workspace;
        WEFT__TRY(k->pack(&e, args->ptr[WEFT_ROLE_WEIGHTS], room));
        e.packed = room;
    }
    if (!weft__logs(plan->ctx, WEFT_LOG_EXEC)) return k->run(&e);
    uint64_t start = weft__now_ns();
    weft_status s = k->run(&e);
    char text[WEFT_TEXT_MAX] = "";
    weft_problem_format(&plan->p, text, sizeof(text), NULL);
    weft__log(plan->ctx, WEFT_LOG_EXEC, "exec: %s %s %s %llu ns", text, k->name, weft_status_name(s),
              (unsigned long long)(weft__now_ns() - start));
    return s;
}
