/* What src/cpu/rates/loops.c gives for each ISA, and the clocks of measuring. */
#ifndef WEFT_TUNE_RATES_H
#define WEFT_TUNE_RATES_H

#include <stdint.h>

typedef struct weft__rate_loops {
    double flops; /* of one round */
    void (*multiply_adds)(int64_t rounds, float *sink);
    void (*copy)(float *dst, const float *src, int64_t count); /* dst: a multiple of 64 bytes */
} weft__rate_loops;
const weft__rate_loops *weft__rate_loops_of(int isa);

/* What measuring goes by, and by which it is done again; tests set others. */
typedef struct weft__rate_clocks {
    uint64_t (*ns)(void);
    int64_t (*seconds)(void);
} weft__rate_clocks;
extern weft__rate_clocks weft__rates_clocks;

#endif
