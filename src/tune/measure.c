/* Timing a kernel on private buffers: warm, the caches emptied before each run, median of a few runs, given up early
 * when hopeless. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"
#include "ref/item.h"

#define RUNS_MAX 7
#define FILL_DRAWN ((size_t)1 << 16) /* values that are drawn for a tensor */

typedef struct buffers {
    weft_ctx *ctx;
    weft__cuda *cuda; /* NULL: host memory */
    int ordinal;
    void *block[WEFT_ROLE_COUNT], *ptr[WEFT_ROLE_COUNT];
    void *workspace_block, *workspace, *flush;
    size_t flush_bytes;
} buffers;

/* What the operator says of the tensor, else values around one in size: no subnormals, no overflow, nothing a kernel
 * could shorten; whole numbers are 0 and 1. */
static void fill(const weft_problem *p, const weft_tensor *t, void *ptr) {
    const weft__op *op = weft__op_of(p->op);
    const bool real = WEFT__FLOATS & WEFT__BIT(t->dtype);
    uint64_t seed = 88172645463325252u + (uint64_t)t->role;
    const size_t size = weft__dtype_size(t->dtype), n = weft_tensor_bytes(t) / size, drawn = WEFT__MIN(n, FILL_DRAWN);
    for (size_t i = 0; i < drawn; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        item_store(t->dtype, ptr, (int64_t)i,
                   real ? (double)(int64_t)(seed >> 40) * 0x1p-23 - 1.0 : (double)(seed >> 63));
    }
    for (size_t i = drawn; i < n; i += WEFT__MIN(i, n - i)) /* and again, so that large tensors take no time */
        memcpy((char *)ptr + i * size, ptr, WEFT__MIN(i, n - i) * size);
    if (op->fill && weft__is_input(p, t->role)) op->fill(p, t, ptr, seed);
}

static weft_status take(buffers *b, size_t bytes, void **block, void **ptr) {
    if (b->cuda) {
        WEFT__TRY(weft__cuda_alloc(b->cuda, b->ordinal, bytes + 64, block));
    } else {
        *block = weft__alloc(b->ctx, bytes + 64);
        if (!*block) return weft__fail(WEFT_ERR_MEMORY, "out of memory for %zu bytes to measure with", bytes);
    }
    *ptr = (void *)(((uintptr_t)*block + 63) & ~(uintptr_t)63);
    return WEFT_OK;
}

static void give(buffers *b, void *block) {
    if (b->cuda && block)
        weft__cuda_free(b->cuda, b->ordinal, block);
    else
        weft__free(b->ctx, block);
}

static weft_status take_tensor(buffers *b, const weft_problem *p, const weft_tensor *t) {
    size_t bytes = weft_tensor_bytes(t);
    WEFT__TRY(take(b, bytes, &b->block[t->role], &b->ptr[t->role]));
    if (!b->cuda) {
        fill(p, t, b->ptr[t->role]);
        return WEFT_OK;
    }
    void *host = weft__alloc(b->ctx, bytes);
    if (!host) return weft__fail(WEFT_ERR_MEMORY, "out of memory for %zu bytes to measure with", bytes);
    fill(p, t, host);
    weft_status s = weft__cuda_copy_in(b->cuda, b->ordinal, b->ptr[t->role], host, bytes);
    weft__free(b->ctx, host);
    return s;
}

static weft_status take_all(buffers *b, const weft_problem *p, const weft__hw *hw, size_t workspace) {
    for (int i = 0; i < p->ntensors; i++) WEFT__TRY(take_tensor(b, p, &p->tensor[i]));
    if (workspace) WEFT__TRY(take(b, workspace, &b->workspace_block, &b->workspace));
    if (b->cuda) return WEFT_OK; /* the engine empties the GPU's cache itself */
    b->flush_bytes = WEFT__MIN(2 * hw->l3, (size_t)256 << 20);
    b->flush = weft__alloc(b->ctx, b->flush_bytes);
    return b->flush
               ? WEFT_OK
               : weft__fail(WEFT_ERR_MEMORY, "out of memory for %zu bytes to empty the caches with", b->flush_bytes);
}

static void give_all(buffers *b) {
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) give(b, b->block[role]);
    give(b, b->workspace_block);
    weft__free(b->ctx, b->flush);
}

static void empty_caches(const buffers *b) {
    volatile const char *at = b->flush;
    char sum = 0;
    for (size_t i = 0; i < b->flush_bytes; i += 64) sum = (char)(sum + at[i]);
    (void)sum;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static weft_status time_cpu(const buffers *b, const weft__exec *e, const weft__kernel *k, double give_up,
                            double seconds, double *runs, int *n) {
    uint64_t begin = weft__now_ns();
    for (int i = -1; i < RUNS_MAX; i++) { /* -1 warms up, and gives up on the hopeless */
        if (i >= 0) empty_caches(b);
        uint64_t start = weft__now_ns();
        WEFT__TRY(k->run(e));
        double ns = (double)(weft__now_ns() - start);
        if (i >= 0) runs[(*n)++] = ns;
        if (ns > give_up || (*n > 0 && (double)(weft__now_ns() - begin) * 1e-9 > seconds)) break;
    }
    return WEFT_OK;
}

weft_status weft__measure(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__choice *c,
                          double give_up_ns, double seconds, double *ns) {
    const weft__kernel *k = c->kernel;
    buffers b = {
        .ctx = ctx, .cuda = p->device == WEFT_DEVICE_CUDA ? weft__ctx_cuda(ctx, NULL) : NULL, .ordinal = p->ordinal};
    void *functions[WEFT__PARTS_MAX] = {NULL};
    weft__exec e = {.p = p, .hw = hw, .ctx = ctx, .params = c->d.params, .ptr = b.ptr, .functions = functions};
    double runs[RUNS_MAX];
    int n = 0;
    weft_status s = take_all(&b, p, hw, weft__decision_bytes(&c->d));
    e.workspace = b.workspace;
    if (s == WEFT_OK && k->engine == WEFT_ENGINE_CUDA) s = weft__cuda_prepare(b.cuda, c, p, hw, functions);
    if (s == WEFT_OK && c->d.packed) {
        e.packed = (char *)b.workspace + c->d.workspace;
        s = k->pack(&e, b.ptr[WEFT_ROLE_WEIGHTS], (void *)e.packed);
    }
    if (s == WEFT_OK && b.cuda) s = weft__cuda_time(&e, k, n = 1, runs); /* one tells whether more are worth it */
    if (s == WEFT_OK && b.cuda && runs[0] <= give_up_ns && runs[0] * 1e-9 * RUNS_MAX < seconds)
        s = weft__cuda_time(&e, k, n = RUNS_MAX, runs);
    if (s == WEFT_OK && !b.cuda) s = time_cpu(&b, &e, k, give_up_ns, seconds, runs, &n);
    give_all(&b);
    if (s != WEFT_OK) return s;
    if (n) qsort(runs, (size_t)n, sizeof(runs[0]), by_value);
    *ns = n ? runs[n / 2] : HUGE_VAL;
    return WEFT_OK;
}
