/* Scratch memory of plans on the CPU: a block for each thread, kept from call to call. From PyTorch's allocator it
 * would be mapped afresh for each large call, and its page faults cost more than many kernels: the gradient of a 3x3
 * convolution of 8x64x28x28 took 1.4 to 4.5 ms in place of 1.1. What is larger than KEPT, or would make more than
 * KEPT_BY_ALL of all threads, is PyTorch's. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "binding.h"

enum { KEPT = 64 << 20, KEPT_BY_ALL = 256 << 20, HUGE_PAGE = 2 << 20 };
static _Atomic size_t kept_by_all;

typedef struct block {
    void *at;
    size_t size;
    bool used; /* by a call further out on this thread */
} block;
static pthread_key_t key;
static bool has_key;

static void let_go(block *b) {
    free(b->at);
    atomic_fetch_sub(&kept_by_all, b->size);
    b->at = NULL, b->size = 0;
}

static void give_back(void *of) {
    let_go(of);
    free(of);
}
__attribute__((constructor)) static void make_key(void) { has_key = !pthread_key_create(&key, give_back); }

static block *block_here(bool make) {
    block *b = has_key ? pthread_getspecific(key) : NULL;
    if (b || !make || !has_key || !(b = calloc(1, sizeof(*b)))) return b;
    if (!pthread_setspecific(key, b)) return b;
    free(b);
    return NULL;
}

static void *new_memory(size_t bytes) {
    void *at = NULL;
    if (posix_memalign(&at, bytes < HUGE_PAGE ? 64 : HUGE_PAGE, bytes)) return NULL;
#if defined(MADV_HUGEPAGE)
    if (bytes >= HUGE_PAGE) madvise(at, bytes, MADV_HUGEPAGE);
#endif
    return at;
}

void *wt_scratch_take(size_t bytes) {
    block *b = bytes <= KEPT ? block_here(true) : NULL;
    if (!b || b->used) return NULL;
    if (b->size < bytes) {
        const size_t page = bytes < HUGE_PAGE ? 4096 : HUGE_PAGE, size = (bytes + page - 1) / page * page;
        if (atomic_load(&kept_by_all) - b->size + size > KEPT_BY_ALL) return NULL;
        let_go(b);
        b->at = new_memory(size);
        b->size = b->at ? size : 0;
        atomic_fetch_add(&kept_by_all, b->size);
    }
    b->used = b->at != NULL;
    return b->at;
}

void wt_scratch_return(void) { block_here(false)->used = false; }

/* Bytes that this thread keeps. forget: they go back first. */
WEFT_API int64_t weft_torch_scratch(bool forget) {
    block *b = block_here(false);
    if (!b) return 0;
    if (forget && !b->used) let_go(b);
    return (int64_t)b->size;
}
