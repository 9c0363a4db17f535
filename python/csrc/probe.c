/* The floor of the benchmark: how fast this machine, in this run, moves bytes and multiplies, by the loops that the
 * library's rates are measured with.
 * Memory: an elementwise kernel dst[i] = src[i] over the bytes read and written, each once, with regular or streaming
 * stores; what one side has more of is only read (summed) or only written (filled). Compute: chains of fused
 * multiply-adds that touch no memory. */
#include <pthread.h>
#include <string.h>

#include "binding.h"
#include "core/internal.h"
#include "tune/rates.h"

enum { PARTS_MAX = 64 };

typedef struct probe {
    const weft__rate_loops *loops;
    const char *src;
    char *dst;
    int64_t read, write, parts, rounds;
    bool streaming;
    uint64_t sum[PARTS_MAX];
    float sink[PARTS_MAX];
} probe;

static weft__hw machine;
static void detect(void) { weft__hw_detect(&machine); }

/* On PyTorch's threads, with the ISA named or, for NULL, the best here. */
static void run_parts(probe *m, wt_range part, const char *isa) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    uint32_t threads = 1;
    const int named = isa ? weft__word(weft__isa_names, WEFT__ISA_COUNT, isa, strlen(isa)) : -1;
    pthread_once(&once, detect);
    weft__hw hw = machine;
    if (named >= 0) weft__hw_limit(&hw, (weft__isa)named);
    m->loops = weft__rate_loops_of(hw.isa);
    wt.torch_get_num_threads(&threads);
    m->parts = threads < PARTS_MAX ? threads : PARTS_MAX;
    wt.torch_parallel_for(0, m->parts, 1, part, m);
}

/* ---------------------------------------------------------------- bytes */
/* Both ends on whole lines: what is left of the last line is copied. */
static void move_streaming(const probe *m, char *dst, const char *src, int64_t bytes) {
    const int64_t whole = bytes / 64 * 64;
    m->loops->copy((float *)(void *)dst, (const float *)(const void *)src, whole / (int64_t)sizeof(float));
    memcpy(dst + whole, src + whole, (size_t)(bytes - whole));
}

static void fill_streaming(const probe *m, char *dst, int64_t bytes) {
    static const _Alignas(64) char zeros[1 << 15];
    for (int64_t i = 0; i < bytes; i += (int64_t)sizeof(zeros))
        move_streaming(m, dst + i, zeros, bytes - i < (int64_t)sizeof(zeros) ? bytes - i : (int64_t)sizeof(zeros));
}

static uint64_t read_only(const char *src, int64_t bytes) {
    uint64_t sum[8] = {0}, word[8];
    for (int64_t i = 0; i + 64 <= bytes; i += 64) {
        memcpy(word, src + i, 64);
        for (int j = 0; j < 8; j++) sum[j] += word[j];
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* Part i of n of a range, on 64-byte lines. */
static int64_t edge(int64_t bytes, int64_t i, int64_t n) { return i == n ? bytes : bytes / 64 * i / n * 64; }

static void move_part(int64_t i, int64_t end, void *arg) {
    probe *m = arg;
    const int64_t both = m->read < m->write ? m->read : m->write, more = m->read - both, rest = m->write - both;
    for (; i < end; i++) {
        int64_t at = edge(both, i, m->parts), bytes = edge(both, i + 1, m->parts) - at;
        if (m->streaming)
            move_streaming(m, m->dst + at, m->src + at, bytes);
        else
            memcpy(m->dst + at, m->src + at, (size_t)bytes);
        at = edge(more, i, m->parts);
        m->sum[i] = read_only(m->src + both + at, edge(more, i + 1, m->parts) - at);
        at = edge(rest, i, m->parts), bytes = edge(rest, i + 1, m->parts) - at;
        if (m->streaming && both % 64 == 0)
            fill_streaming(m, m->dst + both + at, bytes);
        else
            memset(m->dst + both + at, 0, (size_t)bytes);
    }
}

/* Move the bytes once. src and dst are aligned to 64. */
WEFT_API uint64_t weft_torch_move(const void *src, int64_t read, void *dst, int64_t write, int streaming) {
    probe m = {.src = src, .dst = dst, .read = read, .write = write, .streaming = streaming};
    uint64_t sum = 0;
    run_parts(&m, move_part, NULL);
    for (int i = 0; i < PARTS_MAX; i++) sum += m.sum[i];
    return sum;
}

/* ---------------------------------------------------------------- multiply-adds */
static void burn_part(int64_t i, int64_t end, void *arg) {
    for (probe *m = arg; i < end; i++) m->loops->multiply_adds(m->rounds, &m->sink[i]);
}

/* Run `rounds` of multiply-adds on every thread. Returns the flops done. */
WEFT_API double weft_torch_burn(int64_t rounds, const char *isa) {
    probe m = {.rounds = rounds};
    run_parts(&m, burn_part, isa);
    return m.loops->flops * (double)rounds * (double)m.parts;
}
