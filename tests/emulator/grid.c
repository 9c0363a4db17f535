/* Runs a grid on the CPU: a gang of blocks at a time (one block, the blocks of a cluster, or the whole grid of a
 * cooperative launch), each thread a fiber. A fiber runs until it waits, so order between barriers is fixed: ascending
 * in one launch, descending in the next. A thread that needs what another wrote and does not wait for it gets the old
 * value in one of the two. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fiber.h"
#include "grid.h"

enum { STACK = 256 << 10, SNAPSHOTS = 64, MAX_WARPS = 32, IDLE_ROUNDS = 1000 };

typedef enum waits { READY, AT_WARP, AT_BLOCK, AT_CLUSTER, AT_GRID, POLLS, DONE } waits;

typedef struct fiber {
    void *sp;
    char *stack; /* NULL until it starts */
    waits state;
    uint32_t mask;            /* of the warp it waits for */
    const uint64_t *received; /* what that exchange gave */
} fiber;

typedef struct warp {
    uint32_t live, waiting;
    uint64_t given[EMULATED_WARP], snapshot[SNAPSHOTS][EMULATED_WARP];
    int next;
} warp;

typedef struct block {
    emulated_index index;
    unsigned rank;
    int live, at_barrier;
    fiber *fibers;
    warp warps[MAX_WARPS];
    char *kept; /* its shared memory while another block runs: dynamic, then static */
} block;

static struct {
    const emulated_grid *g;
    block *blocks;
    int nblocks, threads, live, at_barrier; /* at_barrier: of the gang's */
    block *running;
    fiber *current;
    int thread;
    void *scheduler;
    char **stacks; /* free ones */
    int nstacks;
    const char *error;
    size_t fixed; /* bytes of static shared memory */
    bool moved;   /* something happened in this round */
    unsigned launches;
} run;

static emulated_state state;

/* ---------------------------------------------------------------- fibers */
static char *take_stack(void) {
    if (run.nstacks) return run.stacks[--run.nstacks];
    char *s = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s == MAP_FAILED) {
        perror("emulator: a stack");
        abort();
    }
    return s;
}

static void give_stack(char *s) {
    static int capacity;
    if (run.nstacks == capacity)
        run.stacks = realloc(run.stacks, (size_t)(capacity = 2 * capacity + 64) * sizeof(char *));
    run.stacks[run.nstacks++] = s;
}

static void leave(waits why) {
    fiber *f = run.current;
    f->state = why;
    fiber_switch(&f->sp, run.scheduler);
}

static void begin(void) {
    run.g->call(run.g);
    leave(DONE);
}

/* ---------------------------------------------------------------- barriers */
static void wake(block *b, waits from) {
    for (int t = 0; t < run.threads; t++)
        if (b->fibers[t].state == from) b->fibers[t].state = READY;
    run.moved = true;
}

static void check_warp(block *b, warp *w, int first) {
    for (int lane = 0; lane < EMULATED_WARP; lane++) {
        if (!(w->waiting >> lane & 1)) continue;
        const uint32_t group = b->fibers[first + lane].mask & w->live;
        if ((w->waiting & group) != group) continue;
        uint64_t *shot = w->snapshot[w->next++ % SNAPSHOTS];
        memcpy(shot, w->given, sizeof(w->given));
        for (int i = 0; i < EMULATED_WARP; i++) {
            if (!(group >> i & 1)) continue;
            b->fibers[first + i].received = shot;
            b->fibers[first + i].state = READY;
        }
        w->waiting &= ~group;
        run.moved = true;
    }
}

static void check_block(block *b) {
    if (b->live && b->at_barrier == b->live) {
        b->at_barrier = 0;
        wake(b, AT_BLOCK);
    }
}

static void check_gang(void) {
    if (!run.live || run.at_barrier != run.live) return;
    run.at_barrier = 0;
    for (int i = 0; i < run.nblocks; i++) wake(&run.blocks[i], AT_CLUSTER), wake(&run.blocks[i], AT_GRID);
}

/* After a fiber has left: who waits for it? */
static void arrived(block *b, int t) {
    fiber *f = &b->fibers[t];
    warp *w = &b->warps[t / EMULATED_WARP];
    const uint32_t bit = 1u << t % EMULATED_WARP;
    if (f->state == AT_WARP) w->waiting |= bit;
    if (f->state == AT_BLOCK) b->at_barrier++;
    if (f->state == AT_CLUSTER || f->state == AT_GRID) run.at_barrier++;
    if (f->state == DONE) {
        w->live &= ~bit, b->live--, run.live--;
        give_stack(f->stack);
        run.moved = true;
    }
    check_warp(b, w, t / EMULATED_WARP * EMULATED_WARP);
    check_block(b);
    check_gang();
}

static void on_block_barrier(void) { leave(AT_BLOCK); }
static void on_cluster_barrier(void) { leave(AT_CLUSTER); }
static void on_grid_barrier(void) { leave(AT_GRID); }
static void on_poll(void) { leave(POLLS); }
static const uint64_t *on_exchange(uint32_t mask, uint64_t value) {
    fiber *f = run.current;
    const int lane = state.lane;
    if (!(mask >> lane & 1)) state.fail("a warp operation by a lane that is not in its mask");
    run.running->warps[run.thread / EMULATED_WARP].given[lane] = value;
    f->mask = mask;
    leave(AT_WARP);
    return f->received;
}
static void on_fail(const char *why) {
    run.error = why;
    leave(DONE);
}

/* ---------------------------------------------------------------- blocks */
static void swap_in(block *b) {
    if (run.running == b) return;
    const emulated_grid *g = run.g;
    if (run.running) {
        memcpy(run.running->kept, g->dynamic, g->smem);
        memcpy(run.running->kept + g->smem, g->fixed[0], run.fixed);
    }
    memcpy(g->dynamic, b->kept, g->smem);
    memcpy(g->fixed[0], b->kept + g->smem, run.fixed);
    run.running = b;
}

static void *on_shared_of(const void *place, unsigned rank) {
    block *b = &run.blocks[rank];
    if (b == run.running) return (void *)(uintptr_t)place;
    const char *at = place;
    if (at >= run.g->dynamic && at < run.g->dynamic + run.g->smem) return b->kept + (at - run.g->dynamic);
    return b->kept + run.g->smem + (at - run.g->fixed[0]);
}

static void start_block(block *b, emulated_index index, unsigned rank) {
    fiber *fibers = b->fibers;
    char *kept = b->kept;
    memset(b, 0, sizeof(*b));
    b->fibers = fibers, b->kept = kept, b->index = index, b->rank = rank, b->live = run.threads;
    memset(kept, 0xfb, run.g->smem + run.fixed); /* nobody may count on what is in shared memory */
    memset(fibers, 0, (size_t)run.threads * sizeof(*fibers));
    for (int t = 0; t < run.threads; t++) b->warps[t / EMULATED_WARP].live |= 1u << t % EMULATED_WARP;
}

static void resume(block *b, int t) {
    fiber *f = &b->fibers[t];
    const emulated_index size = run.g->block;
    const unsigned u = (unsigned)t;
    if (f->state == READY) run.moved = true;
    if (!f->stack) {
        f->stack = take_stack();
        f->sp = fiber_new(f->stack + STACK, begin);
    }
    f->state = READY;
    run.current = f, run.thread = t;
    state.thread = (emulated_index){u % size.x, u / size.x % size.y, u / size.x / size.y};
    state.block = b->index, state.rank = b->rank, state.lane = t % EMULATED_WARP;
    fiber_switch(&run.scheduler, f->sp);
    arrived(b, t);
}

/* Rounds over the gang until every thread is done; false: the launch failed. */
static bool run_gang(void) {
    const bool descending = run.launches & 1;
    run.live = run.nblocks * run.threads, run.at_barrier = 0, run.running = NULL;
    for (int idle = 0; run.live && !run.error;) {
        run.moved = false;
        for (int i = 0; i < run.nblocks && !run.error; i++) {
            block *b = &run.blocks[descending ? run.nblocks - 1 - i : i];
            swap_in(b);
            for (int j = 0; j < run.threads && !run.error; j++) {
                const int t = descending ? run.threads - 1 - j : j;
                if (b->fibers[t].state == READY || b->fibers[t].state == POLLS) resume(b, t);
            }
        }
        idle = run.moved ? 0 : idle + 1;
        if (idle == IDLE_ROUNDS) run.error = "every thread waits: a barrier that some threads do not reach";
    }
    for (int i = 0; i < run.nblocks && run.error; i++)
        for (int t = 0; t < run.threads; t++)
            if (run.blocks[i].fibers[t].stack && run.blocks[i].fibers[t].state != DONE)
                give_stack(run.blocks[i].fibers[t].stack);
    return !run.error;
}

const char *emulated_launch(const emulated_grid *g) {
    const size_t total = (size_t)g->grid.x * g->grid.y * g->grid.z, gang = (size_t)g->gang;
    run.g = g, run.nblocks = g->gang, run.error = NULL, run.launches++;
    run.threads = (int)(g->block.x * g->block.y * g->block.z);
    run.fixed = (size_t)(g->fixed[1] - g->fixed[0]);
    run.blocks = calloc(gang, sizeof(*run.blocks));
    for (size_t i = 0; i < gang; i++) {
        run.blocks[i].fibers = calloc((size_t)run.threads, sizeof(fiber));
        run.blocks[i].kept = malloc(g->smem + run.fixed + 1);
    }
    state = (emulated_state){.grid = g->grid,
                             .block_size = g->block,
                             .cluster = (unsigned)g->gang,
                             .block_barrier = on_block_barrier,
                             .cluster_barrier = on_cluster_barrier,
                             .grid_barrier = on_grid_barrier,
                             .poll = on_poll,
                             .exchange = on_exchange,
                             .shared_of = on_shared_of,
                             .fail = on_fail};
    *g->state = &state;
    for (size_t first = 0; first < total && !run.error; first += gang) {
        for (size_t i = 0; i < gang; i++) {
            const size_t at = first + i;
            start_block(&run.blocks[i],
                        (emulated_index){(unsigned)(at % g->grid.x), (unsigned)(at / g->grid.x % g->grid.y),
                                         (unsigned)(at / g->grid.x / g->grid.y)},
                        (unsigned)i);
        }
        run_gang();
    }
    for (size_t i = 0; i < gang; i++) free(run.blocks[i].fibers), free(run.blocks[i].kept);
    free(run.blocks);
    return run.error;
}
