/* Memory between guard pages: a read or write past either end faults, and poison shows what was not written or should
 * not have been. The poison of outputs is the byte 0xff, a NaN in every floating type and one that no computation on
 * the inputs makes: what lies around an input is the byte 0x7f, a huge number or another NaN, so that a value read from
 * there and written past the end of an output shows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "harness.h"

enum { POISON = 0xff, INPUT_POISON = 0x7f, SHORE = 1024 }; /* shore: bytes looked at on the side without a guard */

static size_t page_size(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static bool reserve(harness_buffer *b, size_t bytes) {
    size_t page = page_size(), room = (bytes + page - 1) / page * page + page;
    if (b->map && b->sealed) mprotect(b->map, b->room, PROT_READ | PROT_WRITE);
    b->sealed = false;
    if (b->map && b->room >= room) return true;
    harness_close(b);
    room += room / 2 / page * page; /* grow by half: few maps over many problems */
    char *all = mmap(NULL, room + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) return false;
    b->map = all + page;
    b->room = room;
    if (mprotect(b->map, room, PROT_READ | PROT_WRITE) == 0) return true;
    harness_close(b);
    return false;
}

void harness_close(harness_buffer *b) {
    if (b->map) munmap(b->map - page_size(), b->room + 2 * page_size());
    memset(b, 0, sizeof(*b));
}

static void settle(harness_buffer *b, size_t bytes, size_t align, harness_place place, size_t before) {
    uintptr_t end = (uintptr_t)b->map + b->room - (bytes - before), start = (uintptr_t)b->map + before;
    uintptr_t at = place == HARNESS_END ? end / align * align : (start + align - 1) / align * align;
    if (place == HARNESS_ODD && at % (2 * align) == 0) at += align;
    b->at = (void *)at;
    b->low = (char *)b->at - before;
    b->bytes = bytes;
    harness_poison(b);
}

bool harness_open_bytes(harness_buffer *b, size_t bytes, size_t align, harness_place place) {
    if (!reserve(b, bytes + 2 * align)) return false;
    b->tensor.rank = 0;
    settle(b, bytes, align, place, 0);
    return true;
}

bool harness_open(harness_buffer *b, const weft_tensor *t, harness_place place) {
    int64_t lowest = 0, highest = 0; /* offsets of the outermost elements */
    bool empty = weft__numel(t) == 0;
    for (int a = 0; a < t->rank && !empty; a++) {
        int64_t reach = (t->dims[a] - 1) * t->strides[a];
        *(reach < 0 ? &lowest : &highest) += reach;
    }
    size_t size = weft__dtype_size(t->dtype), align = t->align ? (size_t)t->align : 16;
    size_t bytes = empty ? 0 : (size_t)(highest - lowest + 1) * size;
    if (!reserve(b, bytes + 2 * align)) return false;
    b->tensor = *t;
    settle(b, bytes, align, place, (size_t)-lowest * size);
    return true;
}

void harness_window(const harness_buffer *b, char **start, size_t *bytes) {
    uintptr_t map = (uintptr_t)b->map, low = (uintptr_t)b->low / 256 * 256;
    uintptr_t from = low - map > SHORE ? low - SHORE : map;
    size_t after = (size_t)(b->map + b->room - (b->low + b->bytes));
    *start = (char *)from;
    *bytes = (size_t)(b->low + b->bytes - *start) + WEFT__MIN(after, SHORE);
}

void harness_poison(harness_buffer *b) {
    char *start;
    size_t bytes;
    harness_window(b, &start, &bytes);
    memset(start, POISON, bytes);
}

/* 1 for each byte of the span that belongs to an element; NULL: no memory. */
static char *element_bytes(const harness_buffer *b) {
    const size_t size = weft__dtype_size(b->tensor.dtype);
    char *mine = calloc(b->bytes + 1, 1);
    for (harness_walk w = harness_first(&b->tensor); mine && !w.done; harness_step(&w))
        memset(mine + ((char *)b->at - b->low) + w.offset * (int64_t)size, 1, size);
    return mine;
}

static bool has_gaps(const harness_buffer *b) {
    return b->tensor.rank && b->bytes != (size_t)weft__numel(&b->tensor) * weft__dtype_size(b->tensor.dtype);
}

static void poison_input(harness_buffer *b) {
    char *start, *mine = has_gaps(b) ? element_bytes(b) : NULL;
    size_t bytes;
    harness_window(b, &start, &bytes);
    memset(start, INPUT_POISON, (size_t)(b->low - start));
    memset(b->low + b->bytes, INPUT_POISON, bytes - (size_t)(b->low - start) - b->bytes);
    for (size_t i = 0; mine && i < b->bytes; i++)
        if (!mine[i]) b->low[i] = INPUT_POISON;
    free(mine);
}

void harness_copy(harness_buffer *to, const harness_buffer *from) {
    const size_t size = weft__dtype_size(from->tensor.dtype);
    if (!has_gaps(from)) {
        memcpy(to->low, from->low, from->bytes);
        return;
    }
    for (harness_walk w = harness_first(&from->tensor); !w.done; harness_step(&w))
        memcpy((char *)to->at + w.offset * (int64_t)size, (const char *)from->at + w.offset * (int64_t)size, size);
}

void harness_seal(harness_buffer *b) {
    if (b->map && !b->sealed) poison_input(b);
    if (b->map && mprotect(b->map, b->room, PROT_READ) == 0) b->sealed = true;
}

/* ---------------------------------------------------------------- what goes in */
static double special(double x, bool numbers, harness_rng *r) {
    switch (harness_below(r, numbers ? 80 : 40)) {
    case 0:
        return numbers ? x : (double)NAN;
    case 1:
        return (double)INFINITY;
    case 2:
        return -(double)INFINITY;
    default:
        return x;
    }
}

static double value_of(harness_kind kind, bool numbers, harness_rng *r) {
    double x = harness_real(r);
    if (kind == HARNESS_INTEGERS) return floor(x * 4.5 + 0.5);
    if (fabs(x) < 0x1p-4) x = 0; /* as often as in real data: what is compared with 0 meets it */
    if (kind == HARNESS_SPECIALS || kind == HARNESS_SPECIAL_MAGNITUDES) x = special(x, numbers, r);
    return kind == HARNESS_MAGNITUDES || kind == HARNESS_SPECIAL_MAGNITUDES ? fabs(x) : x;
}

/* Every eighth f16 tensor of reals is so small that it, and what it is multiplied into, is subnormal or less. */
static double scale_of(int dtype, harness_kind kind, uint64_t seed) {
    bool reals = kind == HARNESS_REALS || kind == HARNESS_MAGNITUDES;
    return dtype == WEFT_DTYPE_F16 && reals && seed % 8 == 0 ? 0x1p-16 : 1;
}

void harness_fill(harness_buffer *b, harness_kind kind, uint64_t seed) {
    harness_rng r = {seed};
    size_t size = weft__dtype_size(b->tensor.dtype);
    double scale = scale_of(b->tensor.dtype, kind, seed);
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        harness_store(b->tensor.dtype, (char *)b->at + w.offset * (int64_t)size,
                      value_of(kind, seed % 3 == 0, &r) * scale);
}

void harness_spread(harness_buffer *b, uint64_t seed) {
    harness_rng r = {seed};
    const int dtype = b->tensor.dtype;
    const int64_t bytes = (int64_t)weft__dtype_size(dtype);
    if (dtype != WEFT_DTYPE_F32 && dtype != WEFT_DTYPE_F64 && dtype != WEFT_DTYPE_BF16) return;
    for (int a = 0; a < b->tensor.rank; a++)
        if (b->tensor.dims[a] > 1 && b->tensor.strides[a] == 0) return; /* an element would be multiplied many times */
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w)) {
        char *at = (char *)b->at + w.offset * bytes;
        harness_store(dtype, at, ldexp(harness_load(dtype, at), (int)harness_below(&r, 41) - 20));
    }
}

void harness_fill_below(harness_buffer *b, int64_t below, uint64_t seed) {
    harness_rng r = {seed};
    size_t size = weft__dtype_size(b->tensor.dtype);
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        harness_store(b->tensor.dtype, (char *)b->at + w.offset * (int64_t)size, (double)harness_below(&r, below));
}

/* ---------------------------------------------------------------- what came out */
static bool poisoned(const char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if ((unsigned char)at[i] != POISON) return false;
    return true;
}

bool harness_untouched(const harness_buffer *b) {
    char *start;
    size_t bytes;
    harness_window(b, &start, &bytes);
    return poisoned(start, bytes);
}

/* Bytes of the span that belong to no element must keep their poison; only a strided tensor has any. */
static bool gaps_kept(const harness_buffer *b, char *why, size_t capacity) {
    if (!has_gaps(b)) return true;
    char *mine = element_bytes(b);
    bool kept = mine != NULL;
    if (!mine) snprintf(why, capacity, "no memory to look for gaps");
    for (size_t i = 0; kept && i < b->bytes; i++)
        if (!mine[i] && (unsigned char)b->low[i] != POISON) {
            snprintf(why, capacity, "%s: byte %zu lies between elements and was written",
                     weft__role_name(b->tensor.role), i);
            kept = false;
        }
    free(mine);
    return kept;
}

bool harness_intact(const harness_buffer *b, char *why, size_t capacity) {
    char *start, place[128];
    size_t bytes, size = b->tensor.rank ? weft__dtype_size(b->tensor.dtype) : 1;
    const char *name = b->tensor.rank ? weft__role_name(b->tensor.role) : "workspace";
    harness_window(b, &start, &bytes);
    size_t before = (size_t)(b->low - start), after = bytes - before - b->bytes;
    if (!poisoned(start, before) || !poisoned(b->low + b->bytes, after)) {
        snprintf(why, capacity, "%s: written %s", name, poisoned(start, before) ? "past its end" : "before its start");
        return false;
    }
    if (!b->tensor.rank) return true;
    for (harness_walk w = harness_first(&b->tensor); !w.done; harness_step(&w))
        if (poisoned((char *)b->at + w.offset * (int64_t)size, size)) {
            harness_where(&w, place, sizeof(place));
            snprintf(why, capacity, "%s: not written", place);
            return false;
        }
    return gaps_kept(b, why, capacity);
}
