/* The context: options, allocator, log, threads, and the owner of cache, wisdom and the CUDA engine. */
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/internal.h"

struct weft_ctx {
    weft_ctx *next;     /* of all there are, for fork */
    weft_ctx_opts opts; /* every 0 replaced by what it stands for */
    weft__hw hw;
    _Atomic int refs; /* the user's handle, and one for each plan */
    weft__pool *pool;
    pthread_mutex_t pool_lock; /* of the next two, which belong together */
    weft_parallel_for parallel_for;
    void *parallel_user;
    _Atomic int threads; /* of whichever pool runs */
    weft__cache *cache;
    weft__wisdom *wisdom;
    weft__external external; /* its name NULL: none */
    _Atomic uint32_t topics; /* logged: those of the options, or as set since */
    pthread_mutex_t cuda_lock;
    weft__cuda *cuda;
    bool cuda_tried;
    char cuda_why[256];
};

/* ---------------------------------------------------------------- memory, log, time */
static _Thread_local int in_callback; /* this thread is inside of alloc, free or log: locks may be held */

weft_status weft__check_ctx(const weft_ctx *ctx) {
    if (!ctx) return weft__fail(WEFT_ERR_INVALID, "ctx is NULL, allowed: a context");
    if (!in_callback) return WEFT_OK;
    return weft__fail(WEFT_ERR_INVALID,
                      "called from alloc, free or log, allowed there: version, status and last error");
}

void *weft__alloc(const weft_ctx *ctx, size_t bytes) {
    bytes = WEFT__MAX(bytes, 1);
    in_callback++;
    void *block = ctx->opts.alloc ? ctx->opts.alloc(ctx->opts.alloc_user, bytes) : malloc(bytes);
    in_callback--;
    if (block) memset(block, 0, bytes);
    return block;
}

void weft__free(const weft_ctx *ctx, void *block) {
    if (!block) return;
    in_callback++;
    if (ctx->opts.free)
        ctx->opts.free(ctx->opts.alloc_user, block);
    else
        free(block);
    in_callback--;
}

bool weft__logs(const weft_ctx *ctx, int topic) {
    return (atomic_load_explicit(&ctx->topics, memory_order_relaxed) & (uint32_t)topic) != 0;
}

void weft__log(const weft_ctx *ctx, int topic, const char *format, ...) {
    if (!weft__logs(ctx, topic)) return;
    char line[WEFT_TEXT_MAX * 2];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    in_callback++;
    if (ctx->opts.log)
        ctx->opts.log(ctx->opts.log_user, topic, line);
    else
        fprintf(stderr, "weft: %s\n", line);
    in_callback--;
}

uint64_t weft__now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* ---------------------------------------------------------------- options */
/* The only place where the environment is read. A program that runs with more rights than its caller does not let the
 * caller choose its libraries and files. */
const char *weft__env(const char *name) { return secure_getenv(name); }

/* A wrong word stops nobody's work: it is named on stderr, where the lines that it asks for would go. */
static uint32_t verbose_from_env(void) {
    static const char *const names[] = {"dispatch", "tune", "exec", "error", "all"};
    static const uint32_t bits[] = {WEFT_LOG_DISPATCH, WEFT_LOG_TUNE, WEFT_LOG_EXEC, WEFT_LOG_ERROR, WEFT_LOG_ALL};
    const char *at = weft__env("WEFT_VERBOSE");
    uint32_t topics = 0;
    while (at && *at) {
        size_t n = strcspn(at, ",");
        int i = weft__word(names, (int)WEFT__COUNT(names), at, n);
        if (i >= 0)
            topics |= bits[i];
        else if (n && !(n == 1 && *at == '0'))
            fprintf(stderr, "weft: WEFT_VERBOSE has '%.*s', allowed: dispatch,tune,exec,error,all\n", (int)n, at);
        at += n + (at[n] == ',');
    }
    return topics;
}

static weft_status isa_limit(const weft_ctx_opts *opts, weft__hw *hw) {
    const char *name = opts->isa ? opts->isa : weft__env("WEFT_ISA");
    if (!name || !*name) return WEFT_OK;
    int i = weft__word(weft__isa_names, WEFT__ISA_COUNT, name, strlen(name));
    if (i < 0) {
        char words[128];
        weft__text t = {words, sizeof(words), 0};
        for (int k = 0; k < WEFT__ISA_COUNT; k++) weft__put(&t, "%s%s", k ? ", " : "", weft__isa_names[k]);
        return weft__fail(WEFT_ERR_INVALID, "isa is '%s', allowed: %s", name, words);
    }
    weft__hw_limit(hw, (weft__isa)i);
    return WEFT_OK;
}

static weft_status thread_count(const weft_ctx_opts *opts, int *threads) {
    const char *env = weft__env("WEFT_THREADS");
    long n = opts->threads;
    if (!n && env && *env) {
        char *end;
        n = strtol(env, &end, 10);
        if (*end || n < 1) return weft__fail(WEFT_ERR_INVALID, "WEFT_THREADS is '%s', allowed: 1..1024", env);
    }
    if (n < 0 || n > 1024) return weft__fail(WEFT_ERR_INVALID, "threads is %ld, allowed: 0 (default) or 1..1024", n);
    if (n) *threads = (int)n;
    return WEFT_OK;
}

static weft_status check_opts(weft_ctx_opts *o) {
    if (o->engines & ~(uint32_t)WEFT_ENGINE_ALL)
        return weft__fail(WEFT_ERR_INVALID, "engines is 0x%x, allowed: a sum of WEFT_ENGINE_*", o->engines);
    if ((unsigned)o->mode > WEFT_MODE_WISDOM_ONLY)
        return weft__fail(WEFT_ERR_INVALID, "mode is %d, allowed: one of weft_mode", o->mode);
    if (!o->alloc != !o->free)
        return weft__fail(WEFT_ERR_INVALID, "%s is NULL, allowed: alloc and free together or neither",
                          o->alloc ? "free" : "alloc");
    if (!(o->measure_seconds >= 0))
        return weft__fail(WEFT_ERR_INVALID, "measure_seconds is %g, allowed: 0 or more", o->measure_seconds);
    if (!(o->lock_seconds >= 0))
        return weft__fail(WEFT_ERR_INVALID, "lock_seconds is %g, allowed: 0 or more", o->lock_seconds);
    if (!o->engines) o->engines = WEFT_ENGINE_ALL;
    if (!o->mode) o->mode = WEFT_MODE_ESTIMATE;
    if (!o->workspace_limit) o->workspace_limit = (size_t)64 << 20;
    if (!o->plan_cache) o->plan_cache = 1024;
    if (o->measure_seconds == 0) o->measure_seconds = 2;
    if (o->lock_seconds == 0) o->lock_seconds = 10;
    o->verbose |= verbose_from_env();
    return WEFT_OK;
}

/* ---------------------------------------------------------------- fork
 * A child has only the thread that forked, and the locks as they were. So every lock of every context is taken
 * before a fork and released after it on both sides: in the child nothing is held by a thread that is not there. */
static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static weft_ctx *contexts;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void each_lock(int (*act)(pthread_mutex_t *)) {
    for (weft_ctx *c = contexts; c; c = c->next) {
        pthread_mutex_t *locks[] = {&c->cuda_lock, weft__wisdom_lock(c->wisdom), weft__cache_lock(c->cache),
                                    &c->pool_lock};
        for (size_t i = 0; i < WEFT__COUNT(locks); i++) act(locks[i]);
    }
}

static void before_fork(void) {
    pthread_mutex_lock(&contexts_lock);
    pthread_mutex_lock(weft__rates_lock());
    each_lock(pthread_mutex_lock);
}

static void after_fork(void) {
    each_lock(pthread_mutex_unlock);
    pthread_mutex_unlock(weft__rates_lock());
    pthread_mutex_unlock(&contexts_lock);
}

static _Atomic unsigned forks = 1; /* changes in every child; process ids do not: each PID namespace has its own 1 */
unsigned weft__process(void) { return atomic_load(&forks); }

static void in_child(void) {
    atomic_fetch_add(&forks, 1);
    after_fork();
}

static void register_fork(void) { pthread_atfork(before_fork, after_fork, in_child); }

static void enlist(weft_ctx *ctx) {
    pthread_once(&fork_once, register_fork);
    pthread_mutex_lock(&contexts_lock);
    ctx->next = contexts;
    contexts = ctx;
    pthread_mutex_unlock(&contexts_lock);
}

static void delist(weft_ctx *ctx) {
    pthread_mutex_lock(&contexts_lock);
    for (weft_ctx **at = &contexts; *at; at = &(*at)->next)
        if (*at == ctx) {
            *at = ctx->next;
            break;
        }
    pthread_mutex_unlock(&contexts_lock);
}

/* ---------------------------------------------------------------- life */
static void destroy(weft_ctx *ctx) {
    delist(ctx);
    weft__cache_destroy(ctx, ctx->cache);
    weft__wisdom_destroy(ctx, ctx->wisdom);
    weft__cuda_close(ctx->cuda);
    weft__pool_destroy(ctx, ctx->pool);
    pthread_mutex_destroy(&ctx->cuda_lock);
    pthread_mutex_destroy(&ctx->pool_lock);
    weft__free(ctx, (char *)ctx->opts.nvrtc);
    weft__free(ctx, (char *)ctx->opts.cache_dir);
    weft_ctx last = {.opts = ctx->opts}; /* the allocator that frees the block lives in the block */
    weft__free(&last, ctx);
}

static weft_status own_text(const weft_ctx *ctx, const char **text) {
    if (!*text) return WEFT_OK;
    char *copy = weft__alloc(ctx, strlen(*text) + 1);
    if (copy) strcpy(copy, *text);
    *text = copy;
    return copy ? WEFT_OK : weft__fail(WEFT_ERR_MEMORY, "out of memory for the context");
}

static weft_status fill(weft_ctx *ctx) {
    const char *cache_dir = ctx->opts.cache_dir;
    ctx->opts.cache_dir = NULL; /* so that a failure in between frees only what is owned */
    WEFT__TRY(own_text(ctx, &ctx->opts.nvrtc));
    ctx->opts.cache_dir = cache_dir;
    WEFT__TRY(own_text(ctx, &ctx->opts.cache_dir));
    WEFT__TRY(weft__pool_create(ctx, &ctx->pool, ctx->hw.threads));
    ctx->cache = weft__cache_create(ctx, ctx->opts.plan_cache);
    ctx->wisdom = weft__wisdom_create(ctx);
    return ctx->cache && ctx->wisdom ? WEFT_OK : weft__fail(WEFT_ERR_MEMORY, "out of memory for the context");
}

weft_status weft_ctx_create(weft_ctx **out, const weft_ctx_opts *opts) {
    if (!out) return weft__fail(WEFT_ERR_INVALID, "ctx is NULL, allowed: a place for the context");
    *out = NULL;
    weft_ctx seed = {.opts = WEFT_CTX_OPTS_INIT};
    if (opts && !weft__adopt(&seed.opts, sizeof(seed.opts), opts, WEFT__LEAST(weft_ctx_opts, cache_dir)))
        return weft__fail(WEFT_ERR_INVALID, "opts.size is %zu, allowed: %zu (start from WEFT_CTX_OPTS_INIT)",
                          opts->size, sizeof(seed.opts));
    WEFT__TRY(check_opts(&seed.opts));
    weft__hw_detect(&seed.hw);
    WEFT__TRY(isa_limit(&seed.opts, &seed.hw));
    WEFT__TRY(thread_count(&seed.opts, &seed.hw.threads));
    weft_ctx *ctx = weft__alloc(&seed, sizeof(*ctx));
    if (!ctx) return weft__fail(WEFT_ERR_MEMORY, "out of memory for the context");
    ctx->opts = seed.opts;
    ctx->opts.isa = NULL; /* spent; the caller's text may go away */
    ctx->hw = seed.hw;
    atomic_init(&ctx->refs, 1);
    atomic_init(&ctx->topics, ctx->opts.verbose);
    atomic_init(&ctx->threads, ctx->hw.threads);
    pthread_mutex_init(&ctx->cuda_lock, NULL);
    pthread_mutex_init(&ctx->pool_lock, NULL);
    weft_status s = fill(ctx);
    if (s != WEFT_OK) {
        destroy(ctx);
        return s;
    }
    enlist(ctx);
    *out = ctx;
    return WEFT_OK;
}

weft_ctx *weft__ctx_retain(weft_ctx *ctx) {
    atomic_fetch_add(&ctx->refs, 1);
    return ctx;
}

void weft__ctx_drop(weft_ctx *ctx) {
    if (atomic_fetch_sub(&ctx->refs, 1) == 1) destroy(ctx);
}

void weft_ctx_release(weft_ctx *ctx) {
    if (!ctx) return;
    weft__cache_clear(ctx, ctx->cache, NULL, 0); /* its plans hold the context */
    weft__ctx_drop(ctx);
}

/* ---------------------------------------------------------------- threads */
weft_status weft_ctx_set_parallel_for(weft_ctx *ctx, weft_parallel_for fn, void *user, int threads) {
    WEFT__TRY(weft__check_ctx(ctx));
    if (fn && (threads < 1 || threads > 1024))
        return weft__fail(WEFT_ERR_INVALID, "threads is %d, allowed: 1..1024", threads);
    pthread_mutex_lock(&ctx->pool_lock);
    ctx->parallel_for = fn;
    ctx->parallel_user = user;
    atomic_store(&ctx->threads, fn ? threads : ctx->hw.threads);
    pthread_mutex_unlock(&ctx->pool_lock);
    return WEFT_OK;
}

void weft__parallel(weft_ctx *ctx, int64_t slots, weft_task task, void *arg) {
    if (slots == 1) {
        task(arg, 0);
        return;
    }
    pthread_mutex_lock(&ctx->pool_lock);
    weft_parallel_for given = ctx->parallel_for;
    void *user = ctx->parallel_user;
    pthread_mutex_unlock(&ctx->pool_lock);
    if (given)
        given(user, slots, task, arg);
    else
        weft__pool_run(ctx->pool, slots, task, arg);
}

/* ---------------------------------------------------------------- parts */
int weft__ctx_threads(const weft_ctx *ctx) { return atomic_load(&ctx->threads); }
const weft_ctx_opts *weft__opts(const weft_ctx *ctx) { return &ctx->opts; }
weft_status weft_ctx_set_verbose(weft_ctx *ctx, uint32_t topics) {
    WEFT__TRY(weft__check_ctx(ctx));
    if (topics & ~(uint32_t)WEFT_LOG_ALL)
        return weft__fail(WEFT_ERR_INVALID, "topics is 0x%x, allowed: a sum of WEFT_LOG_*", topics);
    atomic_store_explicit(&ctx->topics, topics | verbose_from_env(), memory_order_relaxed);
    return WEFT_OK;
}

weft__external *weft__ctx_external(const weft_ctx *ctx) { return (weft__external *)&ctx->external; }
weft__wisdom *weft__ctx_wisdom(const weft_ctx *ctx) { return ctx->wisdom; }
weft__cache *weft__ctx_cache(const weft_ctx *ctx) { return ctx->cache; }

weft__cuda *weft__ctx_cuda(weft_ctx *ctx, const char **why) {
    pthread_mutex_lock(&ctx->cuda_lock);
    if (!ctx->cuda_tried) {
        ctx->cuda_tried = true;
        if (!(ctx->opts.engines & WEFT_ENGINE_CUDA))
            snprintf(ctx->cuda_why, sizeof(ctx->cuda_why), "switched off by the context's options");
        else if (weft__cuda_open(&ctx->cuda, ctx) != WEFT_OK)
            snprintf(ctx->cuda_why, sizeof(ctx->cuda_why), "%.250s", weft_last_error());
    }
    weft__cuda *cuda = ctx->cuda;
    pthread_mutex_unlock(&ctx->cuda_lock);
    if (why) *why = cuda ? NULL : ctx->cuda_why;
    return cuda;
}

weft_status weft__ctx_hw(weft_ctx *ctx, const weft_problem *p, weft__hw *hw) {
    *hw = ctx->hw;
    hw->threads = atomic_load(&ctx->threads);
    hw->gbs *= (double)WEFT__MIN(hw->threads, hw->cores) / hw->cores;
    if (p->device != WEFT_DEVICE_CUDA) return WEFT_OK;
    const char *why;
    weft__cuda *cuda = weft__ctx_cuda(ctx, &why);
    if (!cuda) return weft__fail(WEFT_ERR_UNSUPPORTED, "device cuda: %s", why);
    hw->gpu = weft__cuda_gpu(cuda, p->ordinal);
    if (!hw->gpu)
        return weft__fail(WEFT_ERR_INVALID, "device ordinal is %d, allowed here: below %d", p->ordinal,
                          weft__cuda_count(cuda));
    return WEFT_OK;
}

weft_status weft_ctx_describe(weft_ctx *ctx, char *text, size_t capacity, size_t *length) {
    WEFT__TRY(weft__check_ctx(ctx));
    if (!text && capacity)
        return weft__fail(WEFT_ERR_INVALID, "text is NULL, allowed: room for capacity (%zu) bytes", capacity);
    char device[160];
    pthread_mutex_lock(&ctx->pool_lock);
    bool given = ctx->parallel_for != NULL;
    pthread_mutex_unlock(&ctx->pool_lock);
    weft__device_name(&ctx->hw, WEFT_DEVICE_CPU, device, sizeof(device));
    weft__text t = {text, capacity, 0};
    weft__put(&t, "version: %s\ncpu: %s\nisa: %s\nfeatures:", WEFT_VERSION, device, weft__isa_names[ctx->hw.isa]);
    for (int i = 0; i < WEFT__FEATURE_COUNT; i++)
        if (ctx->hw.features >> i & 1) weft__put(&t, " %s", weft__feature_names[i]);
    weft__put(&t, "\nthreads: %d%s\n", atomic_load(&ctx->threads), given ? " (of the caller)" : "");
    weft__put(&t, "cache: L1 %zu KB, L2 %zu KB, L3 %zu KB\n", ctx->hw.l1 >> 10, ctx->hw.l2 >> 10, ctx->hw.l3 >> 10);
    weft__hw hw = ctx->hw;
    hw.threads = atomic_load(&ctx->threads);
    weft__rates(ctx, &hw);
    weft__put(&t, "rates: memory %.1f GB/s; multiply-adds per thread", hw.gbs);
    for (int i = 0; i <= (int)hw.isa; i++) weft__put(&t, "%s %s %.1f", i ? "," : "", weft__isa_names[i], hw.gflops[i]);
    weft__put(&t, " GFLOP/s\n");
    weft__put(&t, "workspace limit: %zu MB\nplan cache: %zu\nwisdom: %zu entries\nkernels: %zu\n",
              ctx->opts.workspace_limit >> 20, ctx->opts.plan_cache, weft_wisdom_count(ctx),
              weft_kernel_count(ctx, NULL));
    weft__cuda_describe(ctx, &t);
    if (length) *length = t.length;
    if (capacity && t.length >= capacity)
        return weft__fail(WEFT_ERR_INVALID, "capacity is %zu, allowed here: at least %zu", capacity, t.length + 1);
    return WEFT_OK;
}
