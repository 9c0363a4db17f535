/* The CUDA engine: devices, compiled functions, launches.
 * Loaded code and primary contexts stay for the life of the process: queued work and captured graphs may outlive every
 * plan. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/engine.h"

enum { MAX_DEVICES = 64, BUCKETS = 256, DEFINES = 2048 };

typedef struct function { /* the state of a CUDA plan */
    struct function *next;
    uint64_t hash;
    char *key;  /* ordinal, source, entry, defines */
    bool ready; /* until then some thread is building it */
    const weft__driver *driver;
    CUcontext context;
    CUfunction handle;
} function;

static struct {
    pthread_mutex_t lock;
    pthread_cond_t built;
    int count; /* devices; 0: not looked yet */
    struct {
        CUdevice id;
        CUcontext context;
        weft__gpu gpu;
    } device[MAX_DEVICES];
    function *bucket[BUCKETS];
} engine = {.lock = PTHREAD_MUTEX_INITIALIZER, .built = PTHREAD_COND_INITIALIZER};

/* ---------------------------------------------------------------- devices */
/* Rough figures where the driver does not tell: f32 lanes of a multiprocessor and memory of the usual board. */
static const struct {
    int cc, lanes;
    double gbs;
} generations[] = {
    {120, 128, 1500}, {100, 128, 7000}, {90, 128, 3300}, {89, 128, 900}, {86, 128, 700}, {80, 64, 1500}, {0, 64, 500},
};

static int attribute(const weft__driver *d, CUdevice id, int which) {
    int value = 0;
    return d->device_attribute(&value, which, id) == CUDA_SUCCESS_ ? value : 0;
}

static void read_gpu(const weft__driver *d, CUdevice id, int ordinal, weft__gpu *g) {
    g->ordinal = ordinal;
    g->cc = attribute(d, id, CU_CC_MAJOR) * 10 + attribute(d, id, CU_CC_MINOR);
    g->sms = WEFT__MAX(attribute(d, id, CU_MULTIPROCESSORS), 1);
    g->l2 = (size_t)attribute(d, id, CU_L2_BYTES);
    g->smem = (size_t)WEFT__MAX(attribute(d, id, CU_SMEM_OPTIN), 48 << 10);
    if (d->device_name(g->name, sizeof(g->name), id) != CUDA_SUCCESS_) snprintf(g->name, sizeof(g->name), "GPU");
    g->name[sizeof(g->name) - 1] = 0;
    size_t i = 0;
    while (generations[i].cc > g->cc) i++;
    /* Two transfers a clock; large copies reach about 0.88 of the product, and arithmetic about 0.9 of its peak. */
    double bus = 2e-6 * attribute(d, id, CU_MEMORY_CLOCK_RATE) * attribute(d, id, CU_BUS_WIDTH) / 8;
    g->gbs = bus > 50 ? 0.88 * bus : generations[i].gbs;
    double ghz = 1e-6 * attribute(d, id, CU_CLOCK_RATE);
    g->gflops = 0.9 * 2 * (ghz > 0.1 ? ghz : 1.5) * generations[i].lanes * g->sms;
}

static weft_status find_devices(const weft__driver *d) {
    int count = 0;
    WEFT__TRY(weft__driver_check(d, d->device_count(&count), "cuDeviceGetCount"));
    if (count < 1) return weft__fail(WEFT_ERR_UNSUPPORTED, "no device");
    count = WEFT__MIN(count, MAX_DEVICES);
    for (int i = 0; i < count; i++) {
        WEFT__TRY(weft__driver_check(d, d->device_get(&engine.device[i].id, i), "cuDeviceGet"));
        read_gpu(d, engine.device[i].id, i, &engine.device[i].gpu);
    }
    engine.count = count;
    return WEFT_OK;
}

weft_status weft__cuda_open(weft__cuda **out, const weft_ctx *ctx) {
    *out = NULL;
    weft_status s;
    const weft__driver *d = weft__driver_get(&s);
    if (!d) return s;
    pthread_mutex_lock(&engine.lock);
    if (!engine.count) s = find_devices(d);
    pthread_mutex_unlock(&engine.lock);
    if (s != WEFT_OK) return s;
    weft__cuda *cuda = weft__alloc(ctx, sizeof(*cuda));
    if (!cuda) return weft__fail(WEFT_ERR_MEMORY, "no memory for the CUDA engine");
    cuda->ctx = ctx;
    cuda->driver = d;
    *out = cuda;
    return WEFT_OK;
}

void weft__cuda_close(weft__cuda *cuda) {
    if (cuda) weft__free(cuda->ctx, cuda);
}

int weft__cuda_count(const weft__cuda *cuda) { return cuda ? engine.count : 0; }

const weft__gpu *weft__cuda_gpu(weft__cuda *cuda, int ordinal) {
    return ordinal >= 0 && ordinal < weft__cuda_count(cuda) ? &engine.device[ordinal].gpu : NULL;
}

/* ---------------------------------------------------------------- contexts */
static weft_status refuse_fork(void) {
    return weft__fail(WEFT_ERR_DEVICE,
                      "this process was forked after CUDA was initialised; start it with spawn instead");
}

weft_status weft__cuda_context(weft__cuda *cuda, int ordinal, CUcontext *context) {
    if (weft__driver_forked()) return refuse_fork();
    if (!weft__cuda_gpu(cuda, ordinal))
        return weft__fail(WEFT_ERR_INVALID, "device ordinal is %d, allowed here: below %d", ordinal,
                          weft__cuda_count(cuda));
    weft_status s = WEFT_OK;
    pthread_mutex_lock(&engine.lock);
    CUcontext *kept = &engine.device[ordinal].context;
    if (!*kept) {
        CUcontext fresh = NULL;
        s = weft__driver_check(cuda->driver, cuda->driver->primary_retain(&fresh, engine.device[ordinal].id),
                               "cuDevicePrimaryCtxRetain");
        if (s == WEFT_OK) *kept = fresh;
    }
    *context = *kept;
    pthread_mutex_unlock(&engine.lock);
    return s;
}

/* A thread without a context keeps that of the first device, which CUDA's runtime would give it, too: a push and a pop
 * for each launch cost 35 us in the backward pass of a convolution on PyTorch's thread (H200, bench/calls.py). */
weft_status weft__cuda_enter(const weft__driver *d, CUcontext context, bool *pushed) {
    *pushed = false;
    if (weft__driver_forked()) return refuse_fork();
    CUcontext current = NULL;
    if (d->ctx_get(&current) == CUDA_SUCCESS_ && current == context) return WEFT_OK;
    WEFT__TRY(weft__driver_check(d, d->ctx_push(context), "cuCtxPushCurrent"));
    *pushed = current || context != __atomic_load_n(&engine.device[0].context, __ATOMIC_RELAXED);
    return WEFT_OK;
}

void weft__cuda_leave(const weft__driver *d, bool pushed) {
    CUcontext gone;
    if (pushed) d->ctx_pop(&gone);
}

/* ---------------------------------------------------------------- functions */
/* Load code and find its entry. A block may use all the shared memory there is: the launch says how much it takes.
 * Loading allocates on the device, which a stream capture under way would refuse: this thread's capture mode is relaxed
 * meanwhile. */
static weft_status load(const weft__driver *d, const weft__gpu *gpu, const void *code, const char *entry,
                        CUfunction *handle) {
    CUmodule module = NULL;
    int mode = CU_CAPTURE_RELAXED, fixed = 0;
    WEFT__TRY(weft__driver_check(d, d->capture_mode(&mode), "cuThreadExchangeStreamCaptureMode"));
    weft_status s = weft__driver_check(d, d->module_load(&module, code), "cuModuleLoadData");
    if (s == WEFT_OK) s = weft__driver_check(d, d->module_function(handle, module, entry), "cuModuleGetFunction");
    if (s == WEFT_OK && d->func_load) s = weft__driver_check(d, d->func_load(*handle), "cuFuncLoad");
    if (s == WEFT_OK)
        s = weft__driver_check(d, d->func_get(&fixed, CU_FUNC_STATIC_SMEM, *handle), "cuFuncGetAttribute");
    if (s == WEFT_OK)
        s = weft__driver_check(d, d->func_set(*handle, CU_FUNC_MAX_DYNAMIC_SMEM, (int)gpu->smem - fixed),
                               "cuFuncSetAttribute");
    if (s == WEFT_OK && gpu->cc >= 90) /* clusters of more than 8 blocks */
        s = weft__driver_check(d, d->func_set(*handle, CU_FUNC_LARGE_CLUSTER, 1), "cuFuncSetAttribute");
    if (s != WEFT_OK && module) d->module_unload(module);
    d->capture_mode(&mode); /* back to what it was */
    return s;
}

static weft_status build(weft__cuda *cuda, const char *name, const weft__part *part, int ordinal, const char *defines,
                         function *f) {
    const weft__driver *d = cuda->driver;
    const weft__gpu *gpu = &engine.device[ordinal].gpu;
    char arch[16];
    snprintf(arch, sizeof(arch), "sm_%d%s", gpu->cc, part->arch_specific && gpu->cc >= 90 ? "a" : "");
    weft__code code = {NULL, 0};
    bool pushed = false;
    f->driver = d;
    WEFT__TRY(weft__cuda_context(cuda, ordinal, &f->context));
    WEFT__TRY(weft__code_get(cuda->ctx, part->source, defines, arch, &code));
    uint64_t start = weft__now_ns();
    weft_status s = weft__cuda_enter(d, f->context, &pushed);
    if (s == WEFT_OK) s = load(d, gpu, code.bytes, part->entry, &f->handle);
    weft__cuda_leave(d, pushed);
    weft__free(cuda->ctx, code.bytes);
    if (s != WEFT_OK) return weft__fail(s, "%s: %s", name, weft_last_error());
    if (weft__logs(cuda->ctx, WEFT_LOG_TUNE))
        weft__log(cuda->ctx, WEFT_LOG_TUNE, "cuda: %s loaded on device %d in %.1f ms: %s", name, ordinal,
                  (double)(weft__now_ns() - start) * 1e-6, defines);
    return WEFT_OK;
}

/* The entry of that key, or a fresh one for the caller to build (*mine). Waits while another thread builds it. Lock
 * held. Entries stay for the life of the process, which no context's allocator does: they are malloc's. */
static function *claim(const char *key, uint64_t hash, bool *mine) {
    function **bucket = &engine.bucket[hash % BUCKETS];
    for (function *f = *bucket; f;) {
        if (f->hash != hash || strcmp(f->key, key) != 0) {
            f = f->next;
        } else if (f->ready) {
            return f;
        } else {
            pthread_cond_wait(&engine.built, &engine.lock);
            f = *bucket; /* built, or failed and gone */
        }
    }
    function *fresh = calloc(1, sizeof(*fresh));
    char *copy = fresh ? strdup(key) : NULL;
    if (!copy) {
        free(fresh);
        return NULL;
    }
    fresh->key = copy;
    fresh->hash = hash;
    fresh->next = *bucket;
    *mine = true;
    return *bucket = fresh;
}

/* Lock held. */
static void discard(function *f) {
    function **at = &engine.bucket[f->hash % BUCKETS];
    while (*at != f) at = &(*at)->next;
    *at = f->next;
    free(f->key);
    free(f);
}

/* One part of a kernel to be made ready. */
typedef struct preparation {
    weft__cuda *cuda;
    const char *name;
    const weft__part *part;
    int ordinal;
    uint64_t hash;
    function *made;
    weft_status status;
    pthread_t thread;
    bool started; /* the thread */
    char why[512];
    char defines[DEFINES], key[DEFINES + 256];
} preparation;

static weft_status describe_part(weft__cuda *cuda, const weft__choice *c, const weft__part *part, const weft_problem *p,
                                 const weft__hw *hw, preparation *job) {
    weft__text t = {job->defines, sizeof(job->defines), 0};
    job->cuda = cuda, job->name = c->kernel->name, job->part = part, job->ordinal = p->ordinal;
    job->made = NULL, job->status = WEFT_OK, job->started = false, job->defines[0] = job->why[0] = 0;
    if (part->defines) part->defines(p, hw, c->d.params, &t);
    int n = snprintf(job->key, sizeof(job->key), "%d %s %s %s", p->ordinal, part->source, part->entry, job->defines);
    if (t.length >= sizeof(job->defines) || n >= (int)sizeof(job->key))
        return weft__fail(WEFT_ERR_INTERNAL, "%s: its defines are longer than %d characters", job->name, DEFINES);
    job->hash = 14695981039346656037u;
    for (int i = 0; i < n; i++) job->hash = (job->hash ^ (unsigned char)job->key[i]) * 1099511628211u;
    return WEFT_OK;
}

/* Find it or build it, without the lock: others may prepare other kernels meanwhile. */
static void *prepare_part(void *arg) {
    preparation *job = arg;
    bool mine = false;
    pthread_mutex_lock(&engine.lock);
    function *f = claim(job->key, job->hash, &mine);
    pthread_mutex_unlock(&engine.lock);
    if (!f) job->status = weft__fail(WEFT_ERR_MEMORY, "%s: no memory to prepare it", job->name);
    if (mine) {
        job->status = build(job->cuda, job->name, job->part, job->ordinal, job->defines, f);
        pthread_mutex_lock(&engine.lock);
        if (job->status == WEFT_OK)
            f->ready = true;
        else
            discard(f);
        pthread_cond_broadcast(&engine.built);
        pthread_mutex_unlock(&engine.lock);
    }
    if (job->status == WEFT_OK)
        job->made = f;
    else
        snprintf(job->why, sizeof(job->why), "%s", weft_last_error());
    return NULL;
}

static bool is_ready(const preparation *job) {
    const function *f = engine.bucket[job->hash % BUCKETS];
    while (f && (f->hash != job->hash || strcmp(f->key, job->key) != 0)) f = f->next;
    return f && f->ready;
}

/* The same text is compiled for an earlier part: this one waits for that, and finds the code on disk. */
static bool follows(const preparation *jobs, int i) {
    for (int k = 0; k < i; k++)
        if (jobs[k].part->source == jobs[i].part->source && strcmp(jobs[k].defines, jobs[i].defines) == 0) return true;
    return false;
}

/* Parts that are not ready are built side by side, each in a thread of its own; those that follow others after them. */
static weft_status prepare_all(preparation *jobs, int count) {
    int missing = 0;
    pthread_mutex_lock(&engine.lock);
    for (int i = 0; i < count; i++) missing += jobs[i].started = !is_ready(&jobs[i]) && !follows(jobs, i);
    pthread_mutex_unlock(&engine.lock);
    for (int i = 0; i < count; i++)
        jobs[i].started =
            jobs[i].started && missing > 1 && !pthread_create(&jobs[i].thread, NULL, prepare_part, &jobs[i]);
    for (int i = 0; i < count; i++)
        if (jobs[i].started) pthread_join(jobs[i].thread, NULL);
    weft_status s = WEFT_OK;
    for (int i = 0; i < count && s == WEFT_OK; i++) {
        if (!jobs[i].started) prepare_part(&jobs[i]);
        if (jobs[i].status != WEFT_OK) s = weft__fail(jobs[i].status, "%s", jobs[i].why);
    }
    return s;
}

weft_status weft__cuda_prepare(weft__cuda *cuda, const weft__choice *c, const weft_problem *p, const weft__hw *hw,
                               void *functions[WEFT__PARTS_MAX]) {
    int count = 0;
    if (weft__driver_forked()) return refuse_fork();
    while (count < WEFT__PARTS_MAX && c->kernel->parts[count].source) count++;
    preparation *jobs = weft__alloc(cuda->ctx, (size_t)count * sizeof(*jobs));
    if (!jobs && count) return weft__fail(WEFT_ERR_MEMORY, "%s: no memory to prepare it", c->kernel->name);
    weft_status s = WEFT_OK;
    for (int i = 0; i < count && s == WEFT_OK; i++) s = describe_part(cuda, c, &c->kernel->parts[i], p, hw, &jobs[i]);
    if (s == WEFT_OK) s = prepare_all(jobs, count);
    for (int i = 0; i < count && s == WEFT_OK; i++) functions[i] = jobs[i].made;
    weft__free(cuda->ctx, jobs);
    return s;
}

/* The plain call where it will do: older drivers have no other. */
static CUresult launch_on(const function *f, const weft__launch *l, void *stream, void **args) {
    const weft__driver *d = f->driver;
    const uint32_t *g = l->grid, *b = l->block, *c = l->cluster;
    if (!c[0] && !l->cooperative && !l->programmatic)
        return d->launch(f->handle, g[0], g[1], g[2], b[0], b[1], b[2], (unsigned)l->smem, stream, args, NULL);
    if (!d->launch_ex) return CUDA_ERROR_NOT_SUPPORTED_;
    CUlaunchAttribute attribute[3];
    unsigned n = 0;
    memset(attribute, 0, sizeof(attribute));
    if (c[0]) {
        attribute[n].id = CU_LAUNCH_CLUSTER;
        memcpy(attribute[n++].value, c, 3 * sizeof(*c));
    }
    if (l->cooperative) attribute[n].id = CU_LAUNCH_COOPERATIVE, attribute[n++].value[0] = 1;
    if (l->programmatic) attribute[n].id = CU_LAUNCH_PROGRAMMATIC, attribute[n++].value[0] = 1;
    const CUlaunchConfig config = {{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, (unsigned)l->smem, stream, attribute, n};
    return d->launch_ex(&config, f->handle, args, NULL);
}

weft_status weft__cuda_launch(const weft__exec *e, int part, const weft__launch *l, const void *args) {
    const function *f = e->functions[part];
    if (!f) return weft__fail(WEFT_ERR_INTERNAL, "cuda: launch of part %d, which was not prepared", part);
    const weft__driver *d = f->driver;
    bool pushed;
    WEFT__TRY(weft__cuda_enter(d, f->context, &pushed));
    CUresult r = launch_on(f, l, e->stream, (void *[]){(void *)args});
    weft__cuda_leave(d, pushed);
    if (r == CUDA_SUCCESS_) return WEFT_OK;
    weft__driver_check(d, r, "cuLaunchKernel");
    return weft__fail(
        WEFT_ERR_DEVICE, "%s; grid %u x %u x %u, block %u x %u x %u, %zu bytes of shared memory, function %.200s",
        weft_last_error(), l->grid[0], l->grid[1], l->grid[2], l->block[0], l->block[1], l->block[2], l->smem, f->key);
}

/* ---------------------------------------------------------------- describe */
void weft__cuda_describe(weft_ctx *ctx, weft__text *t) {
    const char *why = NULL;
    weft__cuda *cuda = weft__ctx_cuda(ctx, &why);
    int version = 0;
    if (cuda && cuda->driver->version(&version) == CUDA_SUCCESS_)
        weft__put(t, "cuda: driver %d.%d, devices %d\n", version / 1000, version % 1000 / 10, engine.count);
    else
        weft__put(t, "cuda: absent: %s\n", why ? why : "the driver does not answer");
    for (int i = 0; i < weft__cuda_count(cuda); i++) {
        const weft__gpu *g = &engine.device[i].gpu;
        weft__put(t, "cuda %d: %s, cc %d.%d, %d SMs, L2 %zu MB, about %.0f GB/s and %.0f GFLOP/s\n", i, g->name,
                  g->cc / 10, g->cc % 10, g->sms, g->l2 >> 20, g->gbs, g->gflops);
    }
    weft__nvrtc nvrtc;
    if (weft__nvrtc_open(ctx, &nvrtc) == WEFT_OK)
        weft__put(t, "nvrtc: %d.%d, %s\n", nvrtc.major, nvrtc.minor, nvrtc.path);
    else
        weft__put(t, "nvrtc: absent: %s\n", weft_last_error());
    char dir[1024];
    weft__put(t, "cuda cache: %s\n", weft__store_dir(ctx, dir, sizeof(dir)) ? dir : "none");
}
