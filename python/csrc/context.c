/* The one context behind the operators: made at load, lent PyTorch's threads, given PyTorch's memory and stream. */
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "entry.h"
#include "settings.h"

static weft_ctx *context;
static atomic_int lent_threads; /* as last told to the context */
static wt_handle libraries[8];  /* registrations live as long as these */

weft_ctx *wt_context(void) { return context; }

/* ---------------------------------------------------------------- PyTorch's threads */
typedef struct loan {
    weft_task task;
    void *arg;
} loan;

static void run_slots(int64_t begin, int64_t end, void *arg) {
    const loan *l = arg;
    for (int64_t slot = begin; slot < end; slot++) l->task(l->arg, slot);
}

static void lend(void *user, int64_t slots, weft_task task, void *arg) {
    (void)user;
    loan l = {task, arg};
    if (slots == 1)
        task(arg, 0);
    else if (wt.torch_parallel_for(0, slots, 1, run_slots, &l))
        run_slots(0, slots, &l); /* slots may run twice: each only writes its own part */
}

int wt_threads(void) {
    uint32_t threads = 1;
    wt.torch_get_num_threads(&threads);
    return (int)threads;
}

/* torch.set_num_threads() may be called at any time; results do not depend on the number, estimates do. */
void wt_follow_threads(void) {
    const int threads = wt_threads();
    if (threads == atomic_load_explicit(&lent_threads, memory_order_relaxed)) return;
    if (weft_ctx_set_parallel_for(context, lend, NULL, threads) == WEFT_OK)
        atomic_store_explicit(&lent_threads, threads, memory_order_relaxed);
}

/* ---------------------------------------------------------------- running */
static _Thread_local struct {
    const char *name[4];
    int count;
} kernels;

void wt_kernels_clear(void) {
    if (!wt_is_inside()) kernels.count = 0;
}

/* The kernels that this thread's last operator ran, joined by " + "; for the benchmark. */
WEFT_API const char *weft_torch_kernels(void) {
    static _Thread_local char text[512];
    int at = 0;
    text[0] = 0;
    for (int i = 0; i < kernels.count && at < (int)sizeof(text); i++)
        at += snprintf(text + at, sizeof(text) - (size_t)at, "%s%s", i ? " + " : "", kernels.name[i]);
    return text;
}

void wt_kernels_add(const char *name) {
    if (kernels.count < 4) kernels.name[kernels.count++] = name;
}

/* Python called PyTorch's own function itself. */
void wt_note_torch(void) {
    wt_kernels_clear();
    wt_kernels_add("torch");
}

bool entry_is_torchs(void) {
    bool torchs = kernels.count > 0;
    for (int i = 0; i < kernels.count; i++) torchs &= !strcmp(kernels.name[i], "torch");
    return torchs;
}

static wt_config config = {.delegate = 1};
const wt_config *wt_settings(void) { return &config; }

/* The settings of weft.backends, all at once. Returns NULL, or what is wrong. */
WEFT_API const char *weft_torch_set(int32_t mode, int32_t delegate, int32_t math, uint32_t verbose,
                                    size_t workspace_limit, const char *pin, double measure_seconds) {
    if (weft_ctx_set_verbose(context, verbose) != WEFT_OK) return weft_last_error();
    config = (wt_config){mode, delegate, math, verbose, workspace_limit, measure_seconds, ""};
    snprintf(config.pin, sizeof(config.pin), "%s", pin ? pin : "");
    wt_seat_forget();
    return NULL;
}

static weft_plan *plan_by(weft_problem *p, const weft_plan_opts *opts) {
    weft_plan *plan = NULL;
    return weft_plan_create(&plan, context, p, opts) == WEFT_OK ? plan : NULL;
}

weft_plan *wt_plan_by(weft_problem *p, bool once, uint32_t engines) {
    weft_plan_opts opts = WEFT_PLAN_OPTS_INIT;
    opts.mode = once ? WEFT_MODE_ESTIMATE : config.mode;
    opts.measure_seconds = config.measure_seconds;
    opts.workspace_limit = config.workspace_limit;
    opts.engines = engines;
    if (p->device == WEFT_DEVICE_CPU) wt_follow_threads();
    weft_plan *plan = NULL;
    if (config.pin[0]) { /* one for another operator or pass is not for this problem */
        weft_plan_opts pinned = opts;
        pinned.kernel = config.pin;
        pinned.engines |= WEFT_ENGINE_REF;
        plan = plan_by(p, &pinned);
    }
    return plan ? plan : plan_by(p, &opts);
}

weft_plan *wt_plan_among(wt_call *call, bool external) {
    weft_problem *p = &call->p;
    bool cuda = call->cuda;
    if (call->shape && !wt_is_asked()) {
        call->made = weft_problem_complete(p) == WEFT_OK || wt_fail(call, "%s", weft_last_error());
        return NULL;
    }
    p->device = cuda ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
    p->ordinal = cuda && !call->shape ? call->device_index : 0;
    p->math = config.math;
    uint32_t engines = WEFT_ENGINE_ALL & ~(uint32_t)(external && config.delegate ? 0 : WEFT_ENGINE_EXTERNAL);
    weft_plan *plan = wt_plan_by(p, call->once, engines);
    if (!plan) wt_fail(call, "%s", weft_last_error());
    return plan;
}

double wt_estimate(const weft_plan *plan) {
    weft_cost cost = WEFT_COST_INIT;
    return weft_plan_cost(plan, &cost) == WEFT_OK ? cost.ns : 0;
}

static _Thread_local wt_capture *capture;
void wt_capture_into(wt_capture *to) { capture = to; }

static void note_execution(weft_plan *plan, const weft_args *args) {
    weft_plan_release(capture->plan);
    capture->runs++;
    capture->plan = weft_plan_retain(plan);
    capture->args = *args;
}

bool wt_run_plan(const weft_plan *plan, const weft_args *args, const wt_tensor *beside, wt_call *call) {
    const int64_t bytes = (int64_t)weft_plan_workspace_bytes(plan), unit = 1;
    const bool cuda = weft_plan_problem(plan)->device == WEFT_DEVICE_CUDA;
    _Alignas(64) char few[8192]; /* of a small problem: an allocation takes as long as the computing */
    void *kept = !cuda && bytes > (int64_t)sizeof(few) ? wt_scratch_take((size_t)bytes) : NULL;
    const bool large = bytes > (cuda ? 0 : (int64_t)sizeof(few)) && !kept;
    wt_tensor space = {.rank = 1, .sizes = &bytes, .strides = &unit, .code = wt.aoti_torch_dtype_uint8()};
    void *stream = NULL;
    space.data = cuda ? NULL : kept ? kept : few;
    if (cuda && wt.aoti_torch_get_current_cuda_stream(beside->device_index, &stream))
        return wt_fail(call, "PyTorch has no current stream on cuda:%d", beside->device_index);
    if (large && !wt_new(&space, beside, &space.handle)) return wt_no_room(call, &space);
    bool ok = weft_execute(plan, args, space.data, (size_t)bytes, stream) == WEFT_OK;
    if (kept) wt_scratch_return();
    if (large) wt.aoti_torch_delete_tensor_object(space.handle); /* on CUDA it is handed on in stream order */
    if (ok) wt_kernels_add(weft_plan_kernel_name(plan));
    return ok || wt_fail(call, "%s", weft_last_error());
}

bool wt_execute(wt_call *call, weft_plan *plan, const weft_args *args) {
    bool ok = plan && wt_run_plan(plan, args, &call->arg[0].tensor, call);
    if (ok && capture) note_execution(plan, args);
    weft_plan_release(plan);
    return ok;
}

/* ---------------------------------------------------------------- loading */
#define X(id, ...)                                                         \
    static void enter_##id(wt_value *stack, uint64_t nin, uint64_t nout) { \
        wt_dispatch(&wt_ops[WT_OP_##id], stack, nin, nout);                \
    }
#include "operators.def"
wt_op wt_ops[] = {
#define X(id, name, given, same, function, of, by, text) \
    {.base = name,                                       \
     .schema = text,                                     \
     .into = given,                                      \
     .in_place = same,                                   \
     .run = wt_run_##function,                           \
     .op = WEFT_OP_##of,                                 \
     .pass = WEFT_PASS_##by,                             \
     .entry = enter_##id},
#include "operators.def"
};

static const char *register_operators(void) {
    static char why[256];
    /* weft_shapes: the same operators on tensors without memory; weft._core.shapes asks them what results are like.
     * weft_compiled: the same below autograd, for graphs of torch.compile (weft._core.traced) */
    static const struct {
        const char *space, *key;
    } places[] = {{"weft", NULL},           {"weft", "CPU"},          {"weft", "CUDA"},
                  {"weft_shapes", NULL},    {"weft_shapes", "Meta"},  {"weft_compiled", NULL},
                  {"weft_compiled", "CPU"}, {"weft_compiled", "CUDA"}};
    enum { PLACES = sizeof(places) / sizeof(places[0]) };
    _Static_assert(PLACES == sizeof(libraries) / sizeof(libraries[0]), "one for each place");
    const char *file = "python/csrc/context.c";
    for (int k = 0; k < PLACES; k++) {
        if (places[k].key
                ? wt.aoti_torch_library_init_impl(places[k].space, places[k].key, file, __LINE__, &libraries[k])
                : wt.aoti_torch_library_init_def(places[k].space, file, __LINE__, &libraries[k]))
            return "the operators of weft are registered already: another copy of libweft_torch.so is loaded";
    }
    for (wt_op *op = wt_ops; op < wt_ops + WT_OPS; op++) {
        char name[48];
        wt_error failed = wt_op_prepare(op) != NULL;
        snprintf(name, sizeof(name), "%s%s", op->base, op->into ? "_out" : "");
        for (int k = 0; k < PLACES && !failed; k++)
            failed = places[k].key ? wt.torch_library_impl(libraries[k], name, op->entry, WT_BUILD_VERSION)
                                   : wt.aoti_torch_library_def(libraries[k], op->text);
        if (failed) {
            snprintf(why, sizeof(why), "PyTorch refused the operator %s", name);
            return why;
        }
    }
    return NULL;
}

static const char *start(const char *nvrtc) {
    static char path[4096];
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    const char *why = wt_shim_load();
    if (why) return why;
    wt_dtypes_init();
    if (nvrtc) {
        snprintf(path, sizeof(path), "%s", nvrtc);
        opts.nvrtc = path;
    }
    if (weft_ctx_create(&context, &opts) != WEFT_OK || weft_ctx_set_external(context, &wt_external) != WEFT_OK)
        return weft_last_error();
    wt_follow_threads();
    return register_operators();
}

/* Called by `import weft`, after `import torch`. nvrtc: path of the library to compile CUDA kernels with, or NULL.
 * Returns NULL, or why weft cannot be used with this PyTorch; what the first call found holds for every later one.
 * Touches nothing of CUDA. */
WEFT_API const char *weft_torch_init(const char *nvrtc) {
    static bool started;
    static char why[512];
    if (!started) {
        const char *reason = start(nvrtc);
        started = true;
        snprintf(why, sizeof(why), "%s", reason ? reason : "");
    }
    return why[0] ? why : NULL;
}
