/* The C allocator behind PyTorch's CPU tensors: whether large blocks that were freed stay with the process. By default
 * each large result is mapped afresh and every page of it faults, which costs more than many operators do. */
#include <stdbool.h>
#if defined(__linux__)
#include <malloc.h>
#endif

#include "binding.h"

enum { PAD = 64 << 20, USUAL = 128 << 10, USUAL_MAPS = 65536 }; /* bytes; the allocator's defaults; of mappings */

/* keep: nothing is mapped apart, nothing is trimmed, the heap grows by PAD at least. Else the defaults, and what is
 * free goes back to the system. False: this C library has no such switches. */
WEFT_API bool weft_torch_keep_pages(bool keep) {
#if defined(__GLIBC__)
    const bool done = mallopt(M_MMAP_MAX, keep ? 0 : USUAL_MAPS) && mallopt(M_TRIM_THRESHOLD, keep ? -1 : USUAL) &&
                      mallopt(M_TOP_PAD, keep ? PAD : USUAL) && mallopt(M_MMAP_THRESHOLD, USUAL);
    if (!keep) weft_torch_scratch(true), malloc_trim(0);
    return done;
#else
    (void)keep;
    return false;
#endif
}
