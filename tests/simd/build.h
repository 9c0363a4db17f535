/* The vector vocabulary as functions on arrays, compiled once per ISA from build.c, for the tests to call by table. */
#ifndef WEFT_TESTS_SIMD_BUILD_H
#define WEFT_TESTS_SIMD_BUILD_H

#include <stdbool.h>
#include <stdint.h>

enum { SIMD_LANES_MAX = 16, SIMD_TABLE = 64 };

typedef struct simd_in {
    float a[SIMD_LANES_MAX], b[SIMD_LANES_MAX], c[SIMD_LANES_MAX], table[SIMD_TABLE];
    int32_t i[SIMD_LANES_MAX], j[SIMD_LANES_MAX], m[SIMD_LANES_MAX], w[SIMD_LANES_MAX]; /* m, w: 0 or 1 */
    uint32_t set;                                                                       /* m as bits */
    int64_t lo, hi;
} simd_in;

typedef union simd_out {
    float f[SIMD_LANES_MAX];
    int32_t i[SIMD_LANES_MAX];
    uint32_t set;
} simd_out;

enum {
#define FLOAT(name, ...) SIMD_##name,
#define FUSED(name, ...) SIMD_##name,
#define MASK(name, ...) SIMD_##name,
#define INT(name, ...) SIMD_##name,
#define MATH(name, ...)
#include "ops.def"
#undef MATH
    SIMD_OPS
};
enum {
#undef FLOAT
#undef FUSED
#undef MASK
#undef INT
#define FLOAT(name, ...)
#define FUSED(name, ...)
#define MASK(name, ...)
#define INT(name, ...)
#define MATH(name, ...) SIMD_MATH_##name,
#include "ops.def"
#undef FLOAT
#undef FUSED
#undef MASK
#undef INT
#undef MATH
    SIMD_MATHS
};

/* Elements in memory. Floats use f of a value, integers i. NULL: the vocabulary has none. */
enum { SIMD_F32, SIMD_F16, SIMD_BF16, SIMD_I32, SIMD_U8, SIMD_I64, SIMD_TYPES };
typedef struct simd_memory {
    int bytes;
    void (*load)(simd_out *v, const void *p);
    void (*store)(void *p, const simd_out *v);
    void (*stream)(void *p, const simd_out *v);
    void (*load_count)(simd_out *v, const void *p, int64_t n);
    void (*store_count)(void *p, const simd_out *v, int64_t n);
    void (*load_in)(simd_out *v, const simd_in *in, const void *p);
    void (*store_in)(const simd_in *in, void *p, const simd_out *v);
    void (*broadcast)(simd_out *v, const void *p);
} simd_memory;

typedef struct simd_build {
    const char *isa;
    int lanes;
    bool native_dot; /* vf_dot_bf16 is an instruction: subnormal numbers count as 0 */
    void (*op[SIMD_OPS])(const simd_in *in, simd_out *out);
    void (*math[SIMD_MATHS])(const float *in, float *out, int64_t n); /* n a multiple of lanes */
    simd_memory memory[SIMD_TYPES];
    void (*transpose)(float *rows);                    /* lanes x lanes */
    void (*zip4)(float *rows), (*unzip4)(float *rows); /* 4 x lanes */
    void (*slide)(const simd_in *in, int k, simd_out *out);
    void (*dot)(float *sum, const uint16_t *a, const uint16_t *b); /* 2 x lanes of a and b */
} simd_build;

#endif
