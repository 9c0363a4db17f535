/* What the emulated driver and the device code it runs share. The driver points `emulated` of a loaded module here. */
#ifndef EMULATOR_STATE_H
#define EMULATOR_STATE_H

#include <stddef.h>
#include <stdint.h>

enum { EMULATED_SMEM = 232448, EMULATED_WARP = 32 };

typedef struct emulated_index {
    unsigned x, y, z;
} emulated_index;

typedef struct emulated_state {
    emulated_index thread, block, grid, block_size;
    unsigned rank, cluster; /* of the block in its cluster; blocks of a cluster */
    int lane;
    /* Until every live thread of the block, warp, cluster or grid is here; or, with `poll`, for a moment. */
    void (*block_barrier)(void);
    void (*cluster_barrier)(void);
    void (*grid_barrier)(void);
    void (*poll)(void);
    /* Gives `value` to the warp and takes what the lanes of `mask` gave: 32 of them, valid until the next wait. */
    const uint64_t *(*exchange)(uint32_t mask, uint64_t value);
    /* The same place in the shared memory of another block of the cluster. */
    void *(*shared_of)(const void *place, unsigned rank);
    void (*fail)(const char *why); /* ends the launch with an error; does not return */
} emulated_state;

/* What a module exports. Shared memory lies at fixed places: the driver keeps a copy of it for each block that does not
 * run. */
#define EMULATED_STATE "emulated"              /* emulated_state * */
#define EMULATED_DYNAMIC "emulated_dynamic"    /* char [EMULATED_SMEM] */
#define EMULATED_STATIC "emulated_static_area" /* char *[2]: begin and end of __shared__ variables */

#endif
