/* A small pool behind parallel_for(slots, task). One job runs at a time; a caller that finds the pool busy (another
 * thread's job, or a task that calls again) runs its slots itself. Workers that are asleep never hold up a job: only
 * those that joined are waited for. After fork the child starts its own workers on first use. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "core/internal.h"

typedef struct job {
    weft_task task;
    void *arg;
    int64_t slots;
    _Atomic int64_t next;
} job;

struct weft__pool {
    pthread_mutex_t owner; /* held by the caller whose job runs */
    pthread_mutex_t lock;  /* guards what follows */
    pthread_cond_t work, done;
    job *current; /* open to joiners; NULL: closed */
    int inside;   /* workers in the job */
    bool stop;
    _Atomic unsigned generation; /* bumped for each job, so that workers may spin a little before they sleep */
    _Atomic unsigned process;    /* whose workers these are; 0: none started */
    int threads, started;
    pthread_t *workers;
};

static void run_slots(job *j) {
    for (int64_t i; (i = atomic_fetch_add_explicit(&j->next, 1, memory_order_relaxed)) < j->slots;) j->task(j->arg, i);
}

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void *worker(void *arg) {
    weft__pool *pool = arg;
    unsigned seen = 0;
    for (;;) {
        for (int spin = 0; spin < 1000 && atomic_load_explicit(&pool->generation, memory_order_relaxed) == seen; spin++)
            pause_cpu();
        pthread_mutex_lock(&pool->lock);
        while (!pool->stop && (!pool->current || atomic_load(&pool->generation) == seen))
            pthread_cond_wait(&pool->work, &pool->lock);
        if (pool->stop) break;
        job *j = pool->current;
        seen = atomic_load(&pool->generation);
        pool->inside++;
        pthread_mutex_unlock(&pool->lock);
        run_slots(j);
        pthread_mutex_lock(&pool->lock);
        if (--pool->inside == 0) pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void init_locks(weft__pool *pool) {
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
}

/* Called with `owner` held. Fewer workers than asked for, even none, is fine: the caller works too. */
static void start_workers(weft__pool *pool) {
    const unsigned process = weft__process();
    if (atomic_load(&pool->process) == process) return;
    if (atomic_load(&pool->process) != 0) init_locks(pool); /* a child: the parent's workers and waiters are not here */
    pool->current = NULL;
    pool->inside = pool->started = 0;
    sigset_t all, old; /* the application's signals are not for these threads */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    while (pool->started < pool->threads - 1 && pthread_create(&pool->workers[pool->started], NULL, worker, pool) == 0)
        pool->started++;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    atomic_store(&pool->process, process);
}

weft_status weft__pool_create(const weft_ctx *ctx, weft__pool **out, int threads) {
    weft__pool *pool = weft__alloc(ctx, sizeof(*pool));
    pthread_t *workers = weft__alloc(ctx, (size_t)WEFT__MAX(threads, 1) * sizeof(*workers));
    if (!pool || !workers) {
        weft__free(ctx, pool);
        weft__free(ctx, workers);
        return weft__fail(WEFT_ERR_MEMORY, "out of memory for a pool of %d threads", threads);
    }
    pool->threads = threads;
    pool->workers = workers;
    pthread_mutex_init(&pool->owner, NULL);
    init_locks(pool);
    *out = pool;
    return WEFT_OK;
}

void weft__pool_destroy(const weft_ctx *ctx, weft__pool *pool) {
    if (!pool) return;
    if (atomic_load(&pool->process) == weft__process()) {
        pthread_mutex_lock(&pool->lock);
        pool->stop = true;
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
        for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
        pthread_mutex_destroy(&pool->lock);
        pthread_cond_destroy(&pool->work);
        pthread_cond_destroy(&pool->done);
    }
    weft__free(ctx, pool->workers);
    weft__free(ctx, pool);
}

void weft__pool_run(weft__pool *pool, int64_t slots, weft_task task, void *arg) {
    if (slots <= 1 || pool->threads <= 1 || pthread_mutex_trylock(&pool->owner) != 0) {
        for (int64_t i = 0; i < slots; i++) task(arg, i);
        return;
    }
    job j = {.task = task, .arg = arg, .slots = slots};
    atomic_init(&j.next, 0);
    start_workers(pool);
    pthread_mutex_lock(&pool->lock);
    pool->current = &j;
    atomic_fetch_add(&pool->generation, 1);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    run_slots(&j);
    pthread_mutex_lock(&pool->lock);
    pool->current = NULL;
    while (pool->inside) pthread_cond_wait(&pool->done, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
    pthread_mutex_unlock(&pool->owner);
}
