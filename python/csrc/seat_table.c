/* What the seat has decided, by all that the decision depends on. A lookup reads about forty words and takes one lock;
 * nothing is planned twice. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "seat.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int64_t settings; /* counts their changes */

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
__attribute__((constructor)) static void guard_forks(void) { pthread_atfork(before_fork, after_fork, after_fork); }

/* ---------------------------------------------------------------- the key */
int seat_key_tensor(int64_t *key, int n, const wt_tensor *t) {
    if (!t->handle) {
        key[n] = 0;
        return n + 1;
    }
    key[n++] = 1 | t->rank << 1 | (int64_t)t->code << 8 | (int64_t)wt_alignment(t->data) << 24 |
               (int64_t)t->device_type << 32 | (int64_t)(t->device_index & 0xff) << 40;
    for (int64_t a = 0; a < t->rank; a++) key[n++] = t->sizes[a];
    for (int64_t a = 0; a < t->rank; a++) key[n++] = t->strides[a];
    return n;
}

/* Three tensors of at most five axes and seven of one, or none; four lists of at most three values: 80 words. */
static int make_key(const seat_call *c, int math, int64_t key[SEAT_KEY_MAX]) {
    uint32_t threads = 1;
    int n = 0;
    wt.torch_get_num_threads(&threads);
    key[n++] = c->biased | c->want << 1 | math << 8 | (int64_t)threads << 16 | (int64_t)c->type << 48;
    key[n++] = atomic_load_explicit(&settings, memory_order_relaxed);
    key[n++] = (int64_t)(uintptr_t)c->op;
    for (int i = 0; i < SEAT_VALUES; i++) key[n++] = c->value[i];
    for (int i = 0; i < SEAT_REALS; i++) memcpy(&key[n++], &c->real[i], sizeof(*key));
    for (int i = 0; i < SEAT_INPUTS; i++) n = seat_key_tensor(key, n, &c->in[i]);
    for (int i = 0; i < SEAT_LISTS; i++) {
        key[n++] = (int64_t)c->list[i].size;
        for (size_t j = 0; j < c->list[i].size; j++) key[n++] = c->list[i].item[j];
    }
    return n;
}

uint64_t seat_hash(const int64_t *key, int n) {
    uint64_t h = 0;
    for (int i = 0; i < n; i++) {
        h = (h ^ (uint64_t)key[i]) * UINT64_C(0x9E3779B97F4A7C15);
        h ^= h >> 32;
    }
    return h;
}

uint64_t seat_problem(const seat_call *c) {
    int64_t key[SEAT_KEY_MAX];
    int n = 0;
    key[n++] = c->op->family;
    for (int i = 0; i < SEAT_VALUES && c->op->family != SEAT_BATCH_NORM; i++) key[n++] = c->value[i]; /* nor these */
    n = seat_key_tensor(key, n, &c->in[SEAT_X]);
    n = seat_key_tensor(key, n, &c->in[SEAT_W]);
    for (int i = 0; i < SEAT_LISTS && c->op->family != SEAT_ADAPTIVE_AVG_POOL; i++) /* its gradient has no list */
        for (size_t j = 0; j < c->list[i].size; j++) key[n++] = c->list[i].item[j];
    return seat_hash(key, n);
}

/* ---------------------------------------------------------------- the table */
seat_node *seat_look(const seat_table *t, uint64_t hash, const int64_t *key, int words) {
    seat_node *n = t->bucket[hash % SEAT_BUCKETS];
    while (n && (n->hash != hash || n->words != words || memcmp(n->key, key, (size_t)words * sizeof(*key))))
        n = n->next;
    return n;
}

void seat_keep(seat_table *t, seat_node *node, int64_t settings) {
    const bool over = t->count == SEAT_NODES_MAX || t->settings != settings;
    for (int i = 0; i < SEAT_BUCKETS && over; i++) {
        for (seat_node *n = t->bucket[i], *next; n; n = next) next = n->next, t->release(n);
        t->bucket[i] = NULL;
    }
    if (over) t->count = 0, t->settings = settings;
    t->count++;
    node->next = t->bucket[node->hash % SEAT_BUCKETS];
    t->bucket[node->hash % SEAT_BUCKETS] = node;
}

void seat_release(seat_entry *e) {
    if (!e || atomic_fetch_sub(&e->refs, 1) != 1) return;
    for (int i = 0; i < e->nsteps; i++) weft_plan_release(e->step[i].plan);
    free(e);
}

static void release(seat_node *node) { seat_release((seat_entry *)node); }
static seat_table table = {.release = release};

/* The entry of this key, or the one that is to be kept: two threads may decide the same call at once, and the first
 * one's stays. A reference more is the caller's. */
static seat_entry *look(uint64_t hash, const int64_t *key, int words, seat_entry *fresh) {
    pthread_mutex_lock(&lock);
    seat_entry *e = (seat_entry *)seat_look(&table, hash, key, words);
    if (!e && fresh) seat_keep(&table, &fresh->node, key[1]), e = fresh;
    if (e) atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&lock);
    if (fresh && e != fresh) seat_release(fresh);
    return e;
}

seat_entry *seat_find(const seat_call *c, int math) {
    int64_t key[SEAT_KEY_MAX];
    int n = make_key(c, math, key);
    uint64_t hash = seat_hash(key, n);
    seat_entry *e = look(hash, key, n, NULL);
    if (e) return e;
    e = calloc(1, sizeof(*e));
    if (!e) return NULL;
    atomic_init(&e->refs, 1);
    e->node = (seat_node){NULL, hash, n, memcpy(e->key, key, (size_t)n * sizeof(*key))};
    seat_decide(c, math, e);
    return look(hash, key, n, e);
}

void wt_seat_forget(void) { atomic_fetch_add(&settings, 1); }
int64_t wt_seat_settings(void) { return atomic_load_explicit(&settings, memory_order_relaxed); }

/* ---------------------------------------------------------------- the report */
/* One line for each call that was decided: backward, calls, ns by weft, ns by PyTorch, kernels or "torch", reason or
 * "", problem; separated by tabs. Returns the length it takes. forget: calls are counted from 0 again. */
WEFT_API int64_t weft_torch_seat_report(char *text, size_t capacity, int forget) {
    size_t length = 0;
    if (capacity) text[0] = 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < SEAT_BUCKETS; i++)
        for (seat_entry *e = (seat_entry *)table.bucket[i]; e; e = (seat_entry *)e->node.next) {
            uint64_t calls = forget ? atomic_exchange(&e->calls, 0) : atomic_load(&e->calls);
            bool taken = atomic_load(&e->taken);
            if (!calls) continue;
            bool room = length < capacity;
            length += (size_t)snprintf(
                room ? text + length : NULL, room ? capacity - length : 0, "%d\t%llu\t%.0f\t%.0f\t%s%s%s\t%s\t%s\n",
                (int)e->op->backward, (unsigned long long)calls, e->ns, e->torch_ns,
                taken ? weft_plan_kernel_name(e->step[0].plan) : "torch", taken && e->nsteps > 1 ? " + " : "",
                taken && e->nsteps > 1 ? weft_plan_kernel_name(e->step[1].plan) : "", taken ? "" : e->reason, e->text);
        }
    pthread_mutex_unlock(&lock);
    return (int64_t)length;
}
