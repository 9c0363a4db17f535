/* An allocator that counts: allocations so far, and blocks that are in use. */
#ifndef WEFT_TESTS_COUNTED_H
#define WEFT_TESTS_COUNTED_H

#include <stdatomic.h>
#include <stdlib.h>

static _Atomic int64_t blocks, allocations;
static void *counted_alloc(void *user, size_t bytes) {
    (void)user;
    void *block = malloc(bytes);
    atomic_fetch_add(&allocations, 1);
    if (block) atomic_fetch_add(&blocks, 1);
    return block;
}
static void counted_free(void *user, void *block) {
    (void)user;
    if (block) atomic_fetch_sub(&blocks, 1);
    free(block);
}

#endif
