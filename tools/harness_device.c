/* One execution on the problem's device. For a GPU every buffer is mirrored with the poison around it, so that what
 * is found on the host afterwards, gaps and surroundings included, is what the kernel left. */
#include <string.h>

#include "harness.h"

enum { WORKSPACE = WEFT_ROLE_COUNT, PACKED, MIRRORS };

typedef struct mirror {
    harness_buffer *b;
    char *start;
    size_t bytes;
    void *device;
} mirror;

static weft_status mirror_in(weft__cuda *cuda, int ordinal, mirror *m, harness_buffer *b) {
    m->b = b;
    harness_window(b, &m->start, &m->bytes);
    WEFT__TRY(weft__cuda_alloc(cuda, ordinal, m->bytes, &m->device));
    return weft__cuda_copy_in(cuda, ordinal, m->device, m->start, m->bytes);
}

/* The device's pointer has the host's offset from a multiple of 256. */
static void *there(const mirror *m) { return m->b ? (char *)m->device + ((char *)m->b->at - m->start) : NULL; }

/* With packed weights neither the weights nor the room for packing them is asked for. */
static size_t workspace_bytes(const weft_plan *plan, bool prepacked) {
    size_t all = weft_plan_workspace_bytes(plan); /* 0 where there is nothing to compute */
    return all && prepacked ? all - weft_plan_packed_bytes(plan) : all;
}

static weft_status launch(const weft_plan *plan, weft_args *args, mirror *m, bool prepacked) {
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) args->ptr[role] = there(&m[role]);
    if (prepacked) {
        WEFT__TRY(weft_pack(plan, args->ptr[WEFT_ROLE_WEIGHTS], there(&m[PACKED]), NULL));
        args->packed = there(&m[PACKED]);
        args->ptr[WEFT_ROLE_WEIGHTS] = NULL;
    }
    return weft_execute(plan, args, there(&m[WORKSPACE]), workspace_bytes(plan, prepacked), NULL);
}

static weft_status run_cuda(harness *h, weft_ctx *ctx, const weft_plan *plan, harness_buffer *const *buffers,
                            bool prepacked) {
    const char *why = "";
    weft__cuda *cuda = weft__ctx_cuda(ctx, &why);
    if (!cuda) return weft__fail(WEFT_ERR_UNSUPPORTED, "cuda: %s", why);
    const weft_problem *p = weft_plan_problem(plan);
    weft_args args = WEFT_ARGS_INIT;
    mirror m[MIRRORS];
    memset(m, 0, sizeof(m));
    weft_status s = WEFT_OK;
    for (int role = 0; role < WEFT_ROLE_COUNT && s == WEFT_OK; role++)
        if (buffers[role]) s = mirror_in(cuda, p->ordinal, &m[role], buffers[role]);
    if (s == WEFT_OK && workspace_bytes(plan, prepacked)) s = mirror_in(cuda, p->ordinal, &m[WORKSPACE], &h->workspace);
    if (s == WEFT_OK && prepacked) s = mirror_in(cuda, p->ordinal, &m[PACKED], &h->packed);
    if (s == WEFT_OK) s = launch(plan, &args, m, prepacked);
    for (int i = 0; i < MIRRORS; i++) {
        if (!m[i].device) continue;
        if (s == WEFT_OK && !m[i].b->sealed)
            s = weft__cuda_copy_out(cuda, p->ordinal, m[i].start, m[i].device, m[i].bytes);
        weft__cuda_free(cuda, p->ordinal, m[i].device);
    }
    return s;
}

static weft_status run_cpu(harness *h, const weft_plan *plan, harness_buffer *const *buffers, bool prepacked) {
    weft_args args = WEFT_ARGS_INIT;
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) args.ptr[role] = buffers[role] ? buffers[role]->at : NULL;
    if (prepacked) {
        WEFT__TRY(weft_pack(plan, args.ptr[WEFT_ROLE_WEIGHTS], h->packed.at, NULL));
        args.packed = h->packed.at;
        args.ptr[WEFT_ROLE_WEIGHTS] = NULL;
        harness_seal(&h->packed);
    }
    size_t bytes = workspace_bytes(plan, prepacked);
    return weft_execute(plan, &args, bytes ? h->workspace.at : NULL, bytes, NULL);
}

static weft_status run_plan(harness *h, weft_ctx *ctx, const weft_plan *plan, harness_buffer *in, harness_buffer *out,
                            harness_place place, bool prepacked) {
    const weft_problem *p = weft_plan_problem(plan);
    harness_buffer *buffers[WEFT_ROLE_COUNT] = {NULL};
    for (int i = 0; i < p->ntensors; i++) {
        int role = p->tensor[i].role;
        bool written = weft__is_output(p, role);
        buffers[role] = written ? &out[role] : &in[role];
        if (written && !harness_open(&out[role], &p->tensor[i], place))
            return weft__fail(WEFT_ERR_MEMORY, "no memory for %s", weft__role_name(role));
        /* the poison of gaps too */
        if (written && weft__is_input(p, role)) harness_copy(&out[role], &in[role]);
    }
    prepacked = prepacked && weft_plan_packed_bytes(plan);
    if (!harness_open_bytes(&h->workspace, workspace_bytes(plan, prepacked), 64, HARNESS_END) ||
        !harness_open_bytes(&h->packed, weft_plan_packed_bytes(plan), 64, HARNESS_END))
        return weft__fail(WEFT_ERR_MEMORY, "no memory for the workspace");
    h->runs++;
    return p->device == WEFT_DEVICE_CUDA ? run_cuda(h, ctx, plan, buffers, prepacked)
                                         : run_cpu(h, plan, buffers, prepacked);
}

/* The plan for a machine with another cache; NULL: the kernel does not apply there. */
static weft_status plan_elsewhere(const harness *h, weft_ctx *ctx, const weft_problem *p, const char *kernel,
                                  weft_plan **plan) {
    weft__choice c = {.why = "pinned"};
    char name[WEFT__NAME_MAX];
    weft__hw hw;
    WEFT__TRY(weft__ctx_hw(ctx, p, &hw));
    hw.l3 = h->l3;
    for (size_t i = 0; (c.kernel = weft__kernel_at(ctx, p->op, i)); i++)
        for (c.variant = 0; c.variant < weft__kernel_variants(c.kernel); c.variant++) {
            weft__kernel_name(c.kernel, c.variant, name);
            if (strcmp(name, kernel) == 0 && !weft__kernel_plan(ctx, c.kernel, c.variant, p, &hw, &c.d))
                return weft__plan_build(plan, ctx, p, &hw, &c);
        }
    return WEFT_OK;
}

weft_status harness_run(harness *h, weft_ctx *ctx, const weft_problem *p, const char *kernel, harness_buffer *in,
                        harness_buffer *out, harness_place place, bool prepacked) {
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.kernel = kernel;
    opts.workspace_limit = WEFT_NO_LIMIT;
    weft_plan *plan = NULL;
    if (h->l3 && p->device == WEFT_DEVICE_CPU) WEFT__TRY(plan_elsewhere(h, ctx, p, kernel, &plan));
    if (!plan) WEFT__TRY(weft_plan_create(&plan, ctx, p, &opts));
    weft_status s = run_plan(h, ctx, plan, in, out, place, prepacked);
    weft_plan_release(plan);
    return s;
}
