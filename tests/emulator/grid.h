#ifndef EMULATOR_GRID_H
#define EMULATOR_GRID_H

#include "state.h"

typedef struct emulated_grid {
    emulated_index grid, block;
    int gang; /* neighbouring blocks that run side by side: a cluster, or the whole grid */
    size_t smem;
    emulated_state **state; /* the module's pointer */
    char *dynamic, **fixed; /* its shared memory */
    void (*call)(const struct emulated_grid *g);
    void *entry;
    const void *args;
} emulated_grid;

/* NULL, or why the launch failed. One at a time. */
const char *emulated_launch(const emulated_grid *g);

#endif
