/* Timing on the CPU: caches emptied, medians, and the floor: how long a plain elementwise loop takes to read and
 * write the same bytes once. Regular stores first read the line they replace; streaming stores do not. The floor is
 * the better of the two. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "harness.h"

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double harness_median(double *values, size_t n) {
    qsort(values, n, sizeof(*values), compare);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/* ---------------------------------------------------------------- memory kept between calls, its pages present */
typedef struct region {
    char *at;
    size_t bytes;
} region;
static region flush_region, in_region, out_region;

static bool want(region *r, size_t bytes) {
    if (r->bytes >= bytes) return true;
    if (r->at) munmap(r->at, r->bytes);
    r->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    r->bytes = r->at == MAP_FAILED ? 0 : bytes;
    if (!r->bytes) return false;
    memset(r->at, 1, bytes);
    return true;
}

/* ---------------------------------------------------------------- loops over 64-byte lines */
static volatile uint64_t sink;

static void read_lines(const char *from, size_t bytes) {
    uint64_t a = 0, b = 0, c = 0, d = 0; /* every byte through a register, four chains */
    for (size_t i = 0; i + 32 <= bytes; i += 32) {
        uint64_t v[4];
        memcpy(v, from + i, sizeof(v));
        a += v[0];
        b += v[1];
        c += v[2];
        d += v[3];
    }
    sink = a ^ b ^ c ^ d;
}

static void write_lines(char *to, const char *from, size_t bytes, bool streaming) {
#ifdef __SSE2__
    if (streaming) {
        for (size_t i = 0; i + 16 <= bytes; i += 16) {
            __m128i v = from ? _mm_loadu_si128((const __m128i *)(const void *)(from + i)) : _mm_set1_epi8(1);
            _mm_stream_si128((__m128i *)(void *)(to + i), v);
        }
        _mm_sfence();
        return;
    }
#endif
    (void)streaming;
    const size_t piece = 8192; /* short enough that memcpy itself does not turn to streaming */
    for (size_t i = 0; i < bytes; i += piece) {
        size_t n = WEFT__MIN(piece, bytes - i);
        if (from)
            memcpy(to + i, from + i, n);
        else
            memset(to + i, 1, n);
    }
}

typedef struct job {
    size_t in, out;
    int64_t slots;
    bool streaming;
} job;

/* A slot's share of a range, in whole 64-byte lines. */
static size_t share(size_t bytes, int64_t slot, int64_t slots) {
    return slot == slots ? bytes : (size_t)((double)bytes * (double)slot / (double)slots) / 64 * 64;
}

static void copy_slot(void *arg, int64_t slot) {
    const job *j = arg;
    size_t both = WEFT__MIN(j->in, j->out), from = share(both, slot, j->slots), to = share(both, slot + 1, j->slots);
    write_lines(out_region.at + from, in_region.at + from, to - from, j->streaming);
    size_t rest = WEFT__MAX(j->in, j->out) - both;
    from = both / 64 * 64 + share(rest, slot, j->slots);
    to = both / 64 * 64 + share(rest, slot + 1, j->slots);
    if (j->in > j->out)
        read_lines(in_region.at + from, to - from);
    else
        write_lines(out_region.at + from, NULL, to - from, j->streaming);
}

double harness_copy_ns(weft_ctx *ctx, size_t in, size_t out, bool streaming) {
    job j = {in, out, 0, streaming};
    j.slots = (int64_t)WEFT__MAX(1, WEFT__MIN((in + out) / 65536, 64));
    if (!want(&in_region, in + 64) || !want(&out_region, out + 64)) return 0;
    harness_empty_caches(ctx);
    uint64_t start = weft__now_ns();
    weft__parallel(ctx, j.slots, copy_slot, &j);
    return (double)(weft__now_ns() - start);
}

static void flush_slot(void *arg, int64_t slot) {
    (void)arg;
    (void)slot;
    read_lines(flush_region.at, flush_region.bytes);
}

/* Twice the last level, at most 256 MB, is read by as many slots as there are threads, so that private caches empty
 * too. */
void harness_empty_caches(weft_ctx *ctx) {
    static weft__hw hw;
    if (!hw.threads) weft__hw_detect(&hw);
    if (want(&flush_region, WEFT__MIN(WEFT__MAX(2 * hw.l3, (size_t)16 << 20), (size_t)256 << 20)))
        weft__parallel(ctx, WEFT__MAX(1, hw.threads), flush_slot, NULL);
}
