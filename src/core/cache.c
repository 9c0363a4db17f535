/* The plan cache: a hash table with chains and a list in order of use. Bounded, so that dynamic shapes cannot grow
 * it without end. */
#include <pthread.h>
#include <string.h>

#include "core/internal.h"

typedef struct entry {
    struct entry *next_in_bucket, *newer, *older;
    weft_plan *plan;
    uint64_t hash;
    size_t n;
    uint64_t key[];
} entry;

struct weft__cache {
    pthread_mutex_t lock;
    size_t capacity, count, mask;
    entry *newest, *oldest;
    entry **bucket;
};

weft__cache *weft__cache_create(const weft_ctx *ctx, size_t capacity) {
    weft__cache *c = weft__alloc(ctx, sizeof(*c));
    if (!c) return NULL;
    size_t buckets = 16;
    while (buckets < capacity && buckets < ((size_t)1 << 20)) buckets *= 2;
    c->bucket = weft__alloc(ctx, buckets * sizeof(*c->bucket));
    if (!c->bucket) {
        weft__free(ctx, c);
        return NULL;
    }
    c->capacity = capacity;
    c->mask = buckets - 1;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

pthread_mutex_t *weft__cache_lock(weft__cache *c) { return &c->lock; }

static void unlink_use(weft__cache *c, entry *e) {
    if (e->newer)
        e->newer->older = e->older;
    else
        c->newest = e->older;
    if (e->older)
        e->older->newer = e->newer;
    else
        c->oldest = e->newer;
}

static void link_newest(weft__cache *c, entry *e) {
    e->newer = NULL;
    e->older = c->newest;
    if (c->newest)
        c->newest->newer = e;
    else
        c->oldest = e;
    c->newest = e;
}

static entry **find(weft__cache *c, const uint64_t *key, size_t n, uint64_t hash) {
    entry **at = &c->bucket[hash & c->mask];
    while (*at && !((*at)->hash == hash && (*at)->n == n && memcmp((*at)->key, key, n * sizeof(*key)) == 0))
        at = &(*at)->next_in_bucket;
    return at;
}

/* Take one out; the caller releases it outside the lock, for a plan may hold the last reference to much. */
static entry *detach(weft__cache *c, entry *e) {
    if (!e) return NULL;
    *find(c, e->key, e->n, e->hash) = e->next_in_bucket;
    unlink_use(c, e);
    c->count--;
    return e;
}

static void release(const weft_ctx *ctx, entry *e) {
    if (!e) return;
    weft_plan *plan = e->plan;
    weft__free(ctx, e);
    weft_plan_release(plan);
}

weft_plan *weft__cache_get(weft__cache *c, const uint64_t *key, size_t n, uint64_t hash) {
    pthread_mutex_lock(&c->lock);
    entry *e = *find(c, key, n, hash);
    if (e && e != c->newest) {
        unlink_use(c, e);
        link_newest(c, e);
    }
    weft_plan *plan = e ? weft_plan_retain(e->plan) : NULL;
    pthread_mutex_unlock(&c->lock);
    return plan;
}

weft_status weft__cache_put(const weft_ctx *ctx, weft__cache *c, const uint64_t *key, size_t n, uint64_t hash,
                            weft_plan **plan) {
    entry *e = weft__alloc(ctx, sizeof(*e) + n * sizeof(*key));
    if (!e) return weft__fail(WEFT_ERR_MEMORY, "out of memory for the plan cache");
    e->hash = hash;
    e->n = n;
    memcpy(e->key, key, n * sizeof(*key));
    pthread_mutex_lock(&c->lock);
    entry **at = find(c, key, n, hash), *evicted = NULL;
    if (*at) { /* another thread planned the same meanwhile: its plan serves both */
        weft_plan *first = weft_plan_retain((*at)->plan);
        pthread_mutex_unlock(&c->lock);
        weft__free(ctx, e);
        weft_plan_release(*plan);
        *plan = first;
        return WEFT_OK;
    }
    e->plan = weft_plan_retain(*plan);
    *at = e;
    link_newest(c, e);
    if (++c->count > c->capacity) evicted = detach(c, c->oldest);
    pthread_mutex_unlock(&c->lock);
    release(ctx, evicted);
    return WEFT_OK;
}

void weft__cache_clear(const weft_ctx *ctx, weft__cache *c, const uint64_t *key, size_t n) {
    for (;;) {
        pthread_mutex_lock(&c->lock);
        entry *e = c->oldest;
        while (e && n && (e->n < n || memcmp(e->key, key, n * sizeof(*key)))) e = e->newer;
        e = detach(c, e);
        pthread_mutex_unlock(&c->lock);
        if (!e) return;
        release(ctx, e);
    }
}

void weft__cache_destroy(const weft_ctx *ctx, weft__cache *c) {
    if (!c) return;
    weft__cache_clear(ctx, c, NULL, 0);
    pthread_mutex_destroy(&c->lock);
    weft__free(ctx, c->bucket);
    weft__free(ctx, c);
}
