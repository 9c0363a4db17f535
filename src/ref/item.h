/* The vocabulary of reference items: text that is both C and CUDA C.
 * An operator is written once as items: item(problem, ptr, workspace, phase, i) computes output i of a phase alone,
 * in gather form, so items may run in any order on any thread. C runs them in a parallel loop, the CUDA engine one per
 * thread. Values are loaded to double, summed in double, and rounded once on the way out. */
#ifndef WEFT_REF_ITEM_H
#define WEFT_REF_ITEM_H

#include "weft.h"

#ifdef __CUDACC_RTC__
/* inlined, the type switches of every load multiply the compile time by four */
#define WEFT_ITEM static __device__ __noinline__
#else
#include <math.h>
#define WEFT_ITEM static inline __attribute__((unused))
#endif

/* ---------------------------------------------------------------- 16-bit floats
 * e exponent bits, m mantissa bits: f16 is (5, 10), bf16 is (8, 7). */
typedef union item_bits {
    double f;
    uint64_t u;
} item_bits;

WEFT_ITEM double item_unpack(uint32_t v, int e, int m) {
    uint64_t sign = (uint64_t)(v >> (e + m)) << 63;
    uint32_t exponent = (v >> m) & ((1u << e) - 1), mantissa = v & ((1u << m) - 1);
    int bias = (1 << (e - 1)) - 1;
    item_bits b;
    if (exponent == (1u << e) - 1) { /* infinity, NaN */
        b.u = sign | (UINT64_C(0x7ff) << 52) | ((uint64_t)mantissa << (52 - m));
        return b.f;
    }
    if (exponent == 0) { /* zero, subnormal: mantissa * 2^(1 - bias - m) */
        b.u = (uint64_t)(1 - bias - m + 1023) << 52;
        b.f *= (double)mantissa;
        b.u |= sign;
        return b.f;
    }
    b.u = sign | ((uint64_t)((int)exponent - bias + 1023) << 52) | ((uint64_t)mantissa << (52 - m));
    return b.f;
}

/* To nearest, ties to even, straight from double: no double rounding through f32. */
WEFT_ITEM uint32_t item_pack(double v, int e, int m) {
    item_bits b;
    b.f = v;
    uint32_t sign = (uint32_t)(b.u >> 63) << (e + m), infinity = ((1u << e) - 1) << m;
    uint64_t mantissa = b.u & ((UINT64_C(1) << 52) - 1);
    int exponent = (int)((b.u >> 52) & 0x7ff), bias = (1 << (e - 1)) - 1;
    if (exponent == 0x7ff) return sign | infinity | (mantissa ? 1u << (m - 1) : 0);
    if (exponent == 0) return sign; /* a double subnormal is far below half of the least value */
    int unbiased = exponent - 1023, shift = 52 - m;
    if (unbiased < 1 - bias) shift += 1 - bias - unbiased;
    if (shift > 54) return sign;
    mantissa |= UINT64_C(1) << 52;
    uint64_t q = mantissa >> shift, rest = mantissa & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
    if (rest > half || (rest == half && (q & 1))) q++;
    /* a carry runs into the exponent */
    uint64_t value = unbiased < 1 - bias ? q : ((uint64_t)(unbiased + bias - 1) << m) + q;
    return sign | (value >= infinity ? infinity : (uint32_t)value);
}

WEFT_ITEM double item_nan(void) {
    item_bits b;
    b.u = UINT64_C(0x7ff8) << 48;
    return b.f;
}

/* ---------------------------------------------------------------- elements
 * Without a default, so that the compiler names the switch that a new data type is missing from. What is no element
 * here (complex numbers are pairs) reads as NaN, and is not written. */
#define ITEM_NO_ELEMENT    \
    case WEFT_DTYPE_NONE:  \
    case WEFT_DTYPE_C64:   \
    case WEFT_DTYPE_C128:  \
    case WEFT_DTYPE_COUNT: \
        break

WEFT_ITEM double item_load(int dtype, const void *ptr, int64_t at) {
    switch ((weft_dtype)dtype) {
    case WEFT_DTYPE_F32:
        return ((const float *)ptr)[at];
    case WEFT_DTYPE_F64:
        return ((const double *)ptr)[at];
    case WEFT_DTYPE_F16:
        return item_unpack(((const uint16_t *)ptr)[at], 5, 10);
    case WEFT_DTYPE_BF16:
        return item_unpack(((const uint16_t *)ptr)[at], 8, 7);
    case WEFT_DTYPE_U8:
        return ((const uint8_t *)ptr)[at];
    case WEFT_DTYPE_I32:
        return ((const int32_t *)ptr)[at];
    case WEFT_DTYPE_I64:
        return (double)((const int64_t *)ptr)[at];
        ITEM_NO_ELEMENT;
    }
    return item_nan();
}

/* Of integer tensors: exact beyond 2^53 too. Of others the least number, which is no index of anything. */
WEFT_ITEM int64_t item_whole(int dtype, const void *ptr, int64_t at) {
    switch (dtype) {
    case WEFT_DTYPE_U8:
        return ((const uint8_t *)ptr)[at];
    case WEFT_DTYPE_I32:
        return ((const int32_t *)ptr)[at];
    case WEFT_DTYPE_I64:
        return ((const int64_t *)ptr)[at];
    default:
        return INT64_MIN;
    }
}

WEFT_ITEM void item_store(int dtype, void *ptr, int64_t at, double v) {
    switch ((weft_dtype)dtype) {
    case WEFT_DTYPE_F32:
        ((float *)ptr)[at] = (float)v;
        break;
    case WEFT_DTYPE_F64:
        ((double *)ptr)[at] = v;
        break;
    case WEFT_DTYPE_F16:
        ((uint16_t *)ptr)[at] = (uint16_t)item_pack(v, 5, 10);
        break;
    case WEFT_DTYPE_BF16:
        ((uint16_t *)ptr)[at] = (uint16_t)item_pack(v, 8, 7);
        break;
    case WEFT_DTYPE_U8:
        ((uint8_t *)ptr)[at] = (uint8_t)v;
        break;
    case WEFT_DTYPE_I32:
        ((int32_t *)ptr)[at] = (int32_t)v;
        break;
    case WEFT_DTYPE_I64:
        ((int64_t *)ptr)[at] = (int64_t)v;
        break;
        ITEM_NO_ELEMENT;
    }
}

/* ---------------------------------------------------------------- tensors */
/* The tensor of a role that takes part. */
WEFT_ITEM const weft_tensor *item_tensor(const weft_problem *p, int role) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == role) return &p->tensor[i];
    return p->tensor;
}

WEFT_ITEM int64_t item_numel(const weft_tensor *t) {
    int64_t n = 1;
    for (int a = 0; a < t->rank; a++) n *= t->dims[a];
    return n;
}

/* Logical index i, last axis fastest, to coordinates and to the offset in memory. */
WEFT_ITEM int64_t item_at(const weft_tensor *t, int64_t i, int64_t *coord) {
    int64_t at = 0;
    for (int a = t->rank - 1; a >= 0; a--) {
        coord[a] = i % t->dims[a];
        i /= t->dims[a];
        at += coord[a] * t->strides[a];
    }
    return at;
}

/* One step of the epilogue. NaN stays NaN, and what is no step gives it. */
WEFT_ITEM double item_step(const weft_problem *p, void *const *ptr, const weft_step *s, int64_t channel, double v) {
    const weft_tensor *b;
    switch ((weft_step_kind)s->kind) {
    case WEFT_STEP_BIAS:
        b = item_tensor(p, WEFT_ROLE_BIAS);
        return v + item_load(b->dtype, ptr[WEFT_ROLE_BIAS], channel * b->strides[0]);
    case WEFT_STEP_RELU:
        return v < 0 ? 0 : v;
    case WEFT_STEP_CLIP:
        return v < s->lo ? s->lo : v > s->hi ? s->hi : v;
    case WEFT_STEP_ACC:
        return v; /* see item_out */
    case WEFT_STEP_SILU:
        return v / (1 + exp(-v));
    case WEFT_STEP_NONE:
        break;
    }
    return item_nan();
}

/* The epilogue, in its order. */
WEFT_ITEM double item_epilogue(const weft_problem *p, void *const *ptr, int64_t channel, double v) {
    for (int i = 0; i < p->nsteps; i++) v = item_step(p, ptr, &p->step[i], channel, v);
    return v;
}

/* An output leaves through here: the accumulation step, if the problem ends in one, and one rounding. */
WEFT_ITEM void item_out(const weft_problem *p, const weft_tensor *t, void *ptr, int64_t at, double v) {
    const weft_step *last = p->nsteps ? &p->step[p->nsteps - 1] : p->step;
    if (p->nsteps && last->kind == WEFT_STEP_ACC)
        v = last->alpha * v + (last->beta != 0 ? last->beta * item_load(t->dtype, ptr, at) : 0);
    item_store(t->dtype, ptr, at, v);
}

#endif
