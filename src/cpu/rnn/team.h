/* Steps that follow each other, each cut into the same units, by the threads of one parallel region: nobody is woken
 * for a step, and a thread keeps its units from step to step, so that their weights stay in its cache.
 *
 * A thread begins with the units of its own part, forth in one step and back in the next; if the others are not done
 * soon after, it helps with theirs, the last ones first. Whoever has none left waits until the step is done. A thread
 * that comes late, or never, holds nobody up: its units are taken by the others. What a unit computes does not
 * depend on who runs it. */
#ifndef WEFT_CPU_RNN_TEAM_H
#define WEFT_CPU_RNN_TEAM_H

#include <sched.h>
#include <stdatomic.h>

#include "cpu/frame.h"

enum { TEAM_UNITS = CPU_CUT(256, 2), TEAM_SPINS = 4096, TEAM_PATIENCE = 128 };

typedef struct team {
    void (*run)(void *arg, int64_t step, int64_t unit);
    void *arg;
    int64_t steps, units, parts;      /* units: at most TEAM_UNITS */
    _Atomic int64_t done;             /* units of all steps */
    _Atomic int32_t next[TEAM_UNITS]; /* the first step of this unit that nobody has taken */
} team;

VF_INLINE void team_take(team *t, int64_t step, int64_t unit) {
    int32_t free = (int32_t)step;
    if (!atomic_compare_exchange_strong_explicit(&t->next[unit], &free, (int32_t)step + 1, memory_order_relaxed,
                                                 memory_order_relaxed))
        return;
    t->run(t->arg, step, unit);
    atomic_fetch_add_explicit(&t->done, 1, memory_order_release);
}

/* Until so many units are done, or `most` turns have passed; then whether they are. */
VF_INLINE bool team_wait(team *t, int64_t done, int64_t most) {
    for (int64_t spin = 0; spin < most; spin++) {
        if (atomic_load_explicit(&t->done, memory_order_acquire) >= done) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (spin > TEAM_SPINS) sched_yield();
    }
    return false;
}

/* One thread, from the step that it finds. */
static void team_part(void *arg, int64_t part) {
    team *t = arg;
    int64_t step = atomic_load_explicit(&t->done, memory_order_acquire) / t->units;
    for (; step < t->steps; step++) {
        for (int64_t p = 0; p < t->parts; p++) {
            if (p == 1 && team_wait(t, (step + 1) * t->units, TEAM_PATIENCE)) break;
            const int64_t of = (part + p) % t->parts, first = cpu_first(t->units, t->parts, of);
            const int64_t last = cpu_first(t->units, t->parts, of + 1);
            const bool forth = (step % 2 == 0) == (p == 0);
            for (int64_t i = first; i < last; i++) team_take(t, step, forth ? i : first + last - 1 - i);
        }
        team_wait(t, (step + 1) * t->units, INT64_MAX);
    }
}

VF_INLINE void team_go(weft_ctx *ctx, team *t) {
    t->parts = WEFT__MIN(weft__ctx_threads(ctx), t->units);
    atomic_init(&t->done, 0);
    for (int64_t i = 0; i < t->units; i++) atomic_init(&t->next[i], 0);
    weft__parallel(ctx, t->parts, team_part, t);
}

#endif
