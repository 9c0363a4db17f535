/* The machine's rates for estimates: memory bandwidth and multiply-adds per ISA, with this many threads.
 * They are measured for each machine and number of threads, in about a tenth of a second, kept in the cache directory
 * and read from there by every later process. What is measured is the best of a few short runs; the first process may
 * have found the machine busy all the same, so a few later ones measure again, a minute later, then 4, 16, 64 minutes,
 * and a rate that is clearly higher takes the place of the one that was kept. After that nothing revises them.
 * WEFT_RATES=nominal goes without: tests do, and so does `deterministic`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/internal.h"
#include "cuda/driver.h"
#include "tune/rates.h"

enum { RUNS = 10, FLOATS = 6 << 20, SLOTS_MAX = 1024, KNOWN_MAX = 16, TIMES = 6, WAIT = 60 };
static const double higher = 1.1; /* than what is kept: less is noise, and choices should not change for it */
static int64_t seconds(void) { return (int64_t)time(NULL); }
weft__rate_clocks weft__rates_clocks = {weft__now_ns, seconds};

typedef struct rates {
    int threads, isa;
    int64_t times, when; /* how often they were measured; when last */
    double gbs, gflops[WEFT__ISA_COUNT];
} rates;

static struct { /* of this process */
    pthread_mutex_t lock;
    int count;
    rates of[KNOWN_MAX];
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

pthread_mutex_t *weft__rates_lock(void) { return &known.lock; }

/* The loops of each build that compiles them; a build of few files has those of the next lower one. */
#define LOOPS_DECLARE(arg, ID, isa, vectors, files, ...) LOOPS_DECLARE_##files(isa)
#define LOOPS_DECLARE_all(isa) extern const weft__rate_loops weft__cpu_rate_loops_##isa;
#define LOOPS_DECLARE_bf16(isa)
#define LOOPS_REFER(arg, ID, isa, vectors, files, ...) LOOPS_REFER_##files(isa)
#define LOOPS_REFER_all(isa) &weft__cpu_rate_loops_##isa,
#define LOOPS_REFER_bf16(isa) NULL,
WEFT__ISA_LIST(LOOPS_DECLARE, )

const weft__rate_loops *weft__rate_loops_of(int isa) {
    static const weft__rate_loops *const loops[WEFT__ISA_COUNT] = {WEFT__ISA_LIST(LOOPS_REFER, )};
    while (!loops[isa]) isa--;
    return loops[isa];
}

/* ---------------------------------------------------------------- measuring */
typedef struct job {
    const weft__rate_loops *loops;
    int64_t rounds, floats, slots; /* floats: of each slot */
    float *src, *dst;
    float sink[SLOTS_MAX];
} job;

static void multiply(void *arg, int64_t slot) {
    job *q = arg;
    q->loops->multiply_adds(q->rounds, &q->sink[slot]);
}

static void copy(void *arg, int64_t slot) {
    job *q = arg;
    q->loops->copy(q->dst + slot * q->floats, q->src + slot * q->floats, q->floats);
}

static double best_ns(weft_ctx *ctx, job *q, weft_task task) {
    double best = 1e18;
    for (int i = 0; i <= RUNS; i++) { /* the first wakes the threads and touches the pages */
        const uint64_t start = weft__rates_clocks.ns();
        weft__parallel(ctx, q->slots, task, q);
        const double ns = (double)(weft__rates_clocks.ns() - start);
        if (i > 0) best = WEFT__MIN(best, ns);
    }
    return WEFT__MAX(best, 1);
}

static bool measure(weft_ctx *ctx, const weft__hw *hw, rates *r) {
    job *q = weft__alloc(ctx, sizeof(*q));
    const size_t bytes = (size_t)FLOATS * sizeof(float) + 64;
    float *src = weft__alloc(ctx, bytes), *dst = weft__alloc(ctx, bytes);
    const bool enough = q && src && dst;
    if (enough) {
        q->slots = WEFT__MIN(hw->threads, SLOTS_MAX);
        for (int isa = 0; isa < WEFT__ISA_COUNT; isa++) {
            if (!weft__hw_runs(hw, (weft__isa)isa)) continue;
            q->loops = weft__rate_loops_of(isa);
            q->rounds = (int64_t)(5e7 / q->loops->flops); /* a millisecond or a few */
            r->gflops[isa] = q->loops->flops * (double)q->rounds / best_ns(ctx, q, multiply);
        }
        q->floats = FLOATS / q->slots / 16 * 16;
        q->src = src;
        q->dst = (float *)(((uintptr_t)dst + 63) & ~(uintptr_t)63);
        r->gbs = 2.0 * sizeof(float) * (double)(q->floats * q->slots) / best_ns(ctx, q, copy);
    }
    weft__free(ctx, dst);
    weft__free(ctx, src);
    weft__free(ctx, q);
    return enough && r->gbs > 0;
}

/* ---------------------------------------------------------------- the file */
static weft__digest key_of(const weft__hw *hw) {
    char device[160], text[256];
    weft__device_name(hw, WEFT_DEVICE_CPU, device, sizeof(device));
    int n = snprintf(text, sizeof(text), "rates 3 %s %s t%d c%d", WEFT_VERSION, device, hw->threads, hw->cores);
    weft__sha256 s;
    weft__sha256_start(&s);
    weft__sha256_add(&s, text, (size_t)n);
    return weft__sha256_end(&s);
}

static bool plausible(const weft__hw *hw, const rates *r) {
    bool good = r->times >= 0 && r->times <= TIMES && r->threads == hw->threads && r->isa == (int)hw->isa &&
                r->gbs > 0.1 && r->gbs < 1e5;
    for (int i = 0; i < WEFT__ISA_COUNT; i++)
        good = good && (!weft__hw_runs(hw, (weft__isa)i) || (r->gflops[i] > 0.01 && r->gflops[i] < 1e4));
    return good;
}

static bool from_file(const weft_ctx *ctx, const weft__hw *hw, rates *r) {
    char dir[1024];
    weft__code file = {NULL, 0};
    const weft__digest key = key_of(hw);
    if (!weft__store_dir(ctx, dir, sizeof(dir)) || !weft__store_read(ctx, dir, &key, &file)) return false;
    const bool whole = file.size == sizeof(*r);
    if (whole) memcpy(r, file.bytes, sizeof(*r));
    weft__free(ctx, file.bytes);
    return whole && plausible(hw, r);
}

static void to_file(const weft_ctx *ctx, const weft__hw *hw, rates *r) {
    char dir[1024];
    const weft__code file = {r, sizeof(*r)};
    const weft__digest key = key_of(hw);
    if (weft__store_dir(ctx, dir, sizeof(dir))) weft__store_write(dir, &key, &file);
}

/* ---------------------------------------------------------------- use */
static void keep_higher(double *kept, double now) {
    if (now > higher * *kept) *kept = now;
}

/* What is kept in the file, or measured and kept there; false: neither. */
static bool obtain(weft_ctx *ctx, const weft__hw *hw, rates *r) {
    rates now = {.threads = hw->threads, .isa = (int)hw->isa};
    const bool kept = from_file(ctx, hw, r);
    const int64_t when = weft__rates_clocks.seconds();
    if (kept && (r->times >= TIMES || when - r->when < (int64_t)WAIT << 2 * (r->times - 1))) return true;
    if (!measure(ctx, hw, &now) || !plausible(hw, &now)) return kept;
    if (!kept) *r = now;
    keep_higher(&r->gbs, now.gbs);
    for (int i = 0; i < WEFT__ISA_COUNT; i++) keep_higher(&r->gflops[i], now.gflops[i]);
    r->times++, r->when = when;
    to_file(ctx, hw, r);
    weft__log(ctx, WEFT_LOG_TUNE, "tune: rates with %d threads: %.1f GB/s, %.1f GFLOP/s per thread", r->threads, r->gbs,
              r->gflops[r->isa]);
    return true;
}

static const rates *find(const weft__hw *hw) {
    for (int i = 0; i < known.count; i++)
        if (known.of[i].threads == hw->threads && known.of[i].isa == (int)hw->isa) return &known.of[i];
    return NULL;
}

void weft__rates(weft_ctx *ctx, weft__hw *hw) {
    const char *word = weft__env("WEFT_RATES");
    if (word && strcmp(word, "nominal") == 0) return;
    rates r = {0};
    pthread_mutex_lock(&known.lock);
    const rates *there = find(hw);
    if (there) r = *there;
    pthread_mutex_unlock(&known.lock);
    if (!there) { /* without the lock: two threads may both measure, and the first to finish counts */
        if (!obtain(ctx, hw, &r)) return;
        pthread_mutex_lock(&known.lock);
        there = find(hw);
        if (there)
            r = *there;
        else if (known.count < KNOWN_MAX)
            known.of[known.count++] = r;
        pthread_mutex_unlock(&known.lock);
    }
    hw->gbs = r.gbs;
    memcpy(hw->gflops, r.gflops, sizeof(r.gflops));
}
