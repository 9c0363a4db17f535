/* The floor of the benchmark: how fast this machine, in this run, moves bytes and multiplies.
 * Memory: an elementwise kernel dst[i] = src[i] over the bytes read and written, each once, with regular or
 *         streaming stores; what one
 * side has more of is only read (summed) or only written (filled). Compute: chains of fused multiply-adds that touch
 * no memory. */
#include <string.h>

#include "binding.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define WT_X86 1
#endif

typedef struct move {
    const char *src;
    char *dst;
    int64_t read, write;
    int64_t parts;
    int streaming;
    uint64_t sink[64];
} move;

static void move_regular(char *restrict dst, const char *restrict src, int64_t bytes) {
    memcpy(dst, src, (size_t)bytes);
}

/* Both ends on whole lines: what is left of the last line is copied. */
static void move_streaming(char *restrict dst, const char *restrict src, int64_t bytes) {
#ifdef WT_X86
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64)
        for (int j = 0; j < 64; j += 16)
            _mm_stream_si128((__m128i *)(void *)(dst + i + j),
                             _mm_loadu_si128((const __m128i *)(const void *)(src + i + j)));
    memcpy(dst + i, src + i, (size_t)(bytes - i));
    _mm_sfence();
#else
    move_regular(dst, src, bytes);
#endif
}

static void fill_streaming(char *dst, int64_t bytes) {
#ifdef WT_X86
    int64_t i = 0;
    for (; i + 64 <= bytes; i += 64)
        for (int j = 0; j < 64; j += 16) _mm_stream_si128((__m128i *)(void *)(dst + i + j), _mm_setzero_si128());
    memset(dst + i, 0, (size_t)(bytes - i));
    _mm_sfence();
#else
    memset(dst, 0, (size_t)bytes);
#endif
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

static void move_parts(int64_t begin, int64_t end, void *arg) {
    move *m = arg;
    int64_t both = m->read < m->write ? m->read : m->write;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = edge(both, i, m->parts), bytes = edge(both, i + 1, m->parts) - at;
        (m->streaming ? move_streaming : move_regular)(m->dst + at, m->src + at, bytes);
        int64_t rest = m->read - both;
        at = edge(rest, i, m->parts);
        m->sink[i] += read_only(m->src + both + at, edge(rest, i + 1, m->parts) - at);
        rest = m->write - both;
        at = edge(rest, i, m->parts);
        bytes = edge(rest, i + 1, m->parts) - at;
        if (m->streaming && both % 64 == 0)
            fill_streaming(m->dst + both + at, bytes);
        else
            memset(m->dst + both + at, 0, (size_t)bytes);
    }
}

/* Move the bytes once on PyTorch's threads. src and dst are aligned to 64. */
WEFT_API uint64_t weft_torch_move(const void *src, int64_t read, void *dst, int64_t write, int streaming) {
    uint32_t threads = 1;
    uint64_t sum = 0;
    wt.torch_get_num_threads(&threads);
    move m = {src, dst, read, write, threads < 64 ? threads : 64, streaming, {0}};
    wt.torch_parallel_for(0, m.parts, 1, move_parts, &m);
    for (int i = 0; i < 64; i++) sum += m.sink[i];
    return sum;
}

/* ---------------------------------------------------------------- multiply-adds */
typedef struct burn {
    int64_t rounds;
    int isa;
    float sink[64];
} burn;
#define CHAINS 12 /* more than latency times ports */

#ifdef WT_X86
#define BURN(name, isa, vector, set1, fmadd, first)                    \
    __attribute__((target(isa))) static float name(int64_t rounds) {   \
        vector a[CHAINS], x = set1(0.999f), y = set1(0.001f);          \
        for (int j = 0; j < CHAINS; j++) a[j] = set1((float)j);        \
        for (int64_t i = 0; i < rounds; i++)                           \
            for (int j = 0; j < CHAINS; j++) a[j] = fmadd(a[j], x, y); \
        for (int j = 1; j < CHAINS; j++) a[0] = fmadd(a[0], x, a[j]);  \
        return first(a[0]);                                            \
    }
BURN(burn_avx512, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_cvtss_f32)
BURN(burn_avx2, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_cvtss_f32)
#endif

static float burn_scalar(int64_t rounds) {
    float a[CHAINS];
    for (int j = 0; j < CHAINS; j++) a[j] = (float)j;
    for (int64_t i = 0; i < rounds; i++)
        for (int j = 0; j < CHAINS; j++) a[j] = a[j] * 0.999f + 0.001f;
    for (int j = 1; j < CHAINS; j++) a[0] += a[j];
    return a[0];
}

static int lanes_of(int isa) { return isa == 2 ? 16 : isa == 1 ? 8 : 1; }

static void burn_parts(int64_t begin, int64_t end, void *arg) {
    burn *b = arg;
    for (int64_t i = begin; i < end; i++) {
#ifdef WT_X86
        b->sink[i] = b->isa == 2 ? burn_avx512(b->rounds) : b->isa == 1 ? burn_avx2(b->rounds) : burn_scalar(b->rounds);
#else
        b->sink[i] = burn_scalar(b->rounds);
#endif
    }
}

/* Run `rounds` of multiply-adds on every thread of PyTorch, with the ISA named or, for NULL, the best here. Returns
 * the flops done. */
WEFT_API double weft_torch_burn(int64_t rounds, const char *isa) {
    uint32_t threads = 1;
    burn b = {rounds, 0, {0}};
    wt.torch_get_num_threads(&threads);
    int64_t parts = threads < 64 ? threads : 64;
#ifdef WT_X86
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    b.isa = __builtin_cpu_supports("avx512f") ? 2 : avx2;
    if (isa && !strcmp(isa, "avx2") && b.isa > 1) b.isa = 1;
#endif
    if (isa && !strcmp(isa, "scalar")) b.isa = 0;
    wt.torch_parallel_for(0, parts, 1, burn_parts, &b);
    return 2.0 * CHAINS * (double)rounds * lanes_of(b.isa) * (double)parts;
}
