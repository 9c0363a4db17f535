/* The list of kernels per operator, from kernels.def, and what can be asked of it. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"

/* The builds of a kernel: CPU is compiled for the rows of cpu/isa.h with all files, CPU_BF16 also for those with
 * bf16. */
#define ALWAYS_all(...) __VA_ARGS__
#define ALWAYS_bf16(...)
#define DECLARE(kernel, ID, isa, ...) extern const weft__kernel weft__cpu_##kernel##_##isa;
#define DECLARE_USUAL(kernel, ID, isa, vectors, files, ...) ALWAYS_##files(DECLARE(kernel, ID, isa, ))
#define CPU(op, name) WEFT__ISA_LIST(DECLARE_USUAL, name)
#define CPU_BF16(op, name) WEFT__ISA_LIST(DECLARE, name)
#define CUDA(op, name) extern const weft__kernel weft__cuda_##name;
#include "core/kernels.def"
#undef CPU
#undef CPU_BF16
#undef CUDA

#define REFER(kernel, ID, isa, ...) &weft__cpu_##kernel##_##isa,
#define REFER_USUAL(kernel, ID, isa, vectors, files, ...) ALWAYS_##files(REFER(kernel, ID, isa, ))
#define CPU(op, name) WEFT__ISA_LIST(REFER_USUAL, name)
#define CPU_BF16(op, name) WEFT__ISA_LIST(REFER, name)
#define CUDA(op, name) &weft__cuda_##name,
static const weft__kernel *const table[] = {
#include "core/kernels.def"
    NULL,
};

/* Kernels of each operator, and of all of them at index 0: pointers into one array, references last. */
#define TABLE_MAX (WEFT__COUNT(table) + 2 * WEFT_OP_COUNT)
static const weft__kernel *sorted[TABLE_MAX];
static size_t begin[WEFT_OP_COUNT + 1];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int rank(const weft__kernel *k) { return k->engine == WEFT_ENGINE_CPU ? (int)k->isa : WEFT__ISA_COUNT; }

static void sort_by_op(void) {
    size_t n = 0;
    for (int op = 1; op < WEFT_OP_COUNT; op++) {
        begin[op] = n;
        for (int isa = WEFT__ISA_COUNT; isa >= 0; isa--) /* CUDA, then the best ISA first */
            for (size_t i = 0; table[i]; i++)
                if (table[i]->op == op && rank(table[i]) == isa) sorted[n++] = table[i];
        if (weft__cuda_ref_kernels[op]) sorted[n++] = weft__cuda_ref_kernels[op];
        sorted[n++] = weft__ref_kernels[op];
    }
    begin[WEFT_OP_COUNT] = n;
}

size_t weft__kernels(int op, const weft__kernel *const **list) {
    pthread_once(&once, sort_by_op);
    if ((unsigned)op >= WEFT_OP_COUNT) return 0;
    *list = sorted + (op ? begin[op] : 0);
    return op ? begin[op + 1] - begin[op] : begin[WEFT_OP_COUNT];
}

const weft__kernel *weft__kernel_at(const weft_ctx *ctx, int op, size_t index) {
    const weft__kernel *const *list;
    size_t count = weft__kernels(op, &list);
    const weft__external *r = weft__ctx_external(ctx);
    if (index < count) return list[index];
    return index == count && op && r->of.name ? &r->kernel[op] : NULL;
}

static bool has_empty_input(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_output(p, p->tensor[i].role) && weft__numel(&p->tensor[i]) == 0) return true;
    return false;
}

int weft__kernel_variants(const weft__kernel *k) {
    int n = 0;
    while (k->variants && k->variants[n]) n++;
    return WEFT__MAX(n, 1);
}

void weft__kernel_name(const weft__kernel *k, int variant, char text[WEFT__NAME_MAX]) {
    snprintf(text, WEFT__NAME_MAX, "%s%s%s", k->name, k->variants ? "#" : "", k->variants ? k->variants[variant] : "");
}

/* What the record says, so that no plan function has to. */
static const char *refusal_of_record(const weft__kernel *k, const weft_problem *p) {
    if (k->passes && !(k->passes >> p->pass & 1)) return "for another pass";
    for (int i = 0; i < p->nsteps; i++)
        if (!(k->steps >> p->step[i].kind & 1)) return "does not perform a step of the epilogue";
    for (int i = 0; k->dtypes && i < p->ntensors; i++)
        if ((WEFT__FLOATS >> p->tensor[i].dtype & 1) && !(k->dtypes >> p->tensor[i].dtype & 1))
            return "for other data types";
    return k->not_strict && p->math == WEFT_MATH_STRICT ? "not for strict math" : NULL;
}

const char *weft__kernel_plan(const weft_ctx *ctx, const weft__kernel *k, int variant, const weft_problem *p,
                              const weft__hw *hw, weft__decision *d) {
    const bool external = k->engine == WEFT_ENGINE_EXTERNAL, cuda = p->device == WEFT_DEVICE_CUDA;
    memset(d, 0, sizeof(*d));
    if (k->op != p->op) return "for another operator";
    if (!external && (k->engine == WEFT_ENGINE_CUDA) != cuda) return "for another device";
    if (!(weft__opts(ctx)->engines & k->engine)) return "its engine is switched off";
    if (k->engine == WEFT_ENGINE_CPU && !weft__hw_runs(hw, k->isa))
        return "the CPU, or WEFT_ISA, does not have its instructions";
    if (cuda && !hw->gpu) return "no GPU";
    if (!k->reference && has_empty_input(p)) return "an input is empty";
    const char *reason = refusal_of_record(k, p);
    if (reason) return reason;
    reason = external ? weft__external_plan(weft__ctx_external(ctx), p, hw, d) : k->plan(p, hw, variant, d);
    d->workspace = (d->workspace + 63) & ~(size_t)63;
    d->packed = (d->packed + 63) & ~(size_t)63;
    return reason;
}

size_t weft__decision_bytes(const weft__decision *d) { return d->workspace + d->packed; }

/* ---------------------------------------------------------------- public */
/* The index-th kernel and variant; false: there are fewer. */
static bool candidate_at(const weft_ctx *ctx, int op, size_t index, const weft__kernel **k, int *variant) {
    for (size_t i = 0; (*k = weft__kernel_at(ctx, op, i)); i++) {
        const size_t variants = (size_t)weft__kernel_variants(*k);
        *variant = (int)index;
        if (index < variants) return true;
        index -= variants;
    }
    return false;
}

size_t weft_kernel_count(const weft_ctx *ctx, const weft_problem *p) {
    const weft__kernel *k;
    size_t n = 0;
    for (size_t i = 0; ctx && (k = weft__kernel_at(ctx, p ? p->op : 0, i)); i++) n += (size_t)weft__kernel_variants(k);
    return n;
}

weft_status weft_kernel_info(const weft_ctx *ctx, const weft_problem *p, size_t index, weft_kernel_desc *desc) {
    WEFT__TRY(weft__check_ctx(ctx));
    if (!desc || !weft__has_size(desc, WEFT__LEAST(weft_kernel_desc, ns)))
        return weft__fail(WEFT_ERR_INVALID,
                          "desc is %s, allowed: a weft_kernel_desc started from WEFT_KERNEL_DESC_INIT",
                          desc ? "of another size" : "NULL");
    weft_problem q;
    if (p) WEFT__TRY(weft__take_problem(&q, p));
    const weft__kernel *k;
    int variant;
    if (!candidate_at(ctx, p ? q.op : 0, index, &k, &variant))
        return weft__fail(WEFT_ERR_INVALID, "index is %zu, allowed: below %zu", index,
                          weft_kernel_count(ctx, p ? &q : NULL));
    static const char *const engines[] = {"", "ref", "cpu", "", "cuda", "", "", "", "external"};
    weft_kernel_desc d = {.size = sizeof(d),
                          .name = k->name,
                          .variant = k->variants ? k->variants[variant] : "",
                          .engine = engines[k->engine],
                          .op = k->op,
                          .version = k->version,
                          .exact = k->exact};
    d.isa = k->engine == WEFT_ENGINE_CPU ? weft__isa_names[k->isa] : "";
    weft__hw hw;
    weft__decision decision;
    if (p && weft__ctx_hw((weft_ctx *)ctx, &q, &hw) != WEFT_OK)
        hw.gpu = NULL; /* the engine opens once, under its lock */
    if (p && !weft__opts(ctx)->deterministic) weft__rates((weft_ctx *)ctx, &hw);
    if (p) d.reason = weft__kernel_plan(ctx, k, variant, &q, &hw, &decision);
    d.applies = p && !d.reason;
    if (d.applies) {
        d.workspace = weft__decision_bytes(&decision);
        d.packed = decision.packed;
        d.ns = decision.ns;
    }
    weft__return(desc, &d, sizeof(d));
    return WEFT_OK;
}
