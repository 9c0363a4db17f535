/* The epilogue of a CUDA kernel in f32: which steps, in which order, is compiled in; their numbers are arguments.
 * Both sides read this file. */
#ifndef WEFT_CUDA_EPILOGUE_H
#define WEFT_CUDA_EPILOGUE_H

#include "weft.h"

typedef struct weft__epilogue {
    float lo[WEFT_MAX_STEPS], hi[WEFT_MAX_STEPS];
    double exact_lo[WEFT_MAX_STEPS], exact_hi[WEFT_MAX_STEPS];
} weft__epilogue;

#ifndef __CUDACC_RTC__
/* What weft__epilogue_apply performs: the .steps of a kernel that calls it. */
#define WEFT__EPILOGUE_STEPS (WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP))

static inline void weft__epilogue_defines(const weft_problem *p, weft__text *t) {
    for (int i = 0; i < WEFT_MAX_STEPS; i++) weft__put(t, " -DSTEP%d=%d", i, i < p->nsteps ? p->step[i].kind : 0);
}

static inline weft__epilogue weft__epilogue_args(const weft_problem *p) {
    weft__epilogue e = {{0}, {0}, {0}, {0}};
    for (int i = 0; i < p->nsteps; i++) {
        e.lo[i] = (float)(e.exact_lo[i] = p->step[i].lo);
        e.hi[i] = (float)(e.exact_hi[i] = p->step[i].hi);
    }
    return e;
}
#else
static __device__ constexpr bool weft__epilogue_biased() {
    return STEP0 == WEFT_STEP_BIAS || STEP1 == WEFT_STEP_BIAS || STEP2 == WEFT_STEP_BIAS || STEP3 == WEFT_STEP_BIAS;
}

/* A step follows a clip: the bound enters a sum, which is rounded once. */
static __device__ constexpr bool weft__epilogue_wide() {
    return (STEP0 == WEFT_STEP_CLIP && STEP1) || (STEP1 == WEFT_STEP_CLIP && STEP2) ||
           (STEP2 == WEFT_STEP_CLIP && STEP3);
}

static __device__ __forceinline__ float weft__epilogue_apply_wide(const weft__epilogue &e, double bias, double v) {
    constexpr int steps[WEFT_MAX_STEPS] = {STEP0, STEP1, STEP2, STEP3};
#pragma unroll
    for (int i = 0; i < WEFT_MAX_STEPS; i++) {
        if (steps[i] == WEFT_STEP_BIAS) v += bias;
        if (steps[i] == WEFT_STEP_RELU) v = v < 0 ? 0 : v;
        if (steps[i] == WEFT_STEP_CLIP) v = v < e.exact_lo[i] ? e.exact_lo[i] : v > e.exact_hi[i] ? e.exact_hi[i] : v;
    }
    return (float)v;
}

/* Comparisons and not fminf, fmaxf: NaN stays NaN. */
static __device__ __forceinline__ float weft__epilogue_apply(const weft__epilogue &e, float bias, float v) {
    constexpr int steps[WEFT_MAX_STEPS] = {STEP0, STEP1, STEP2, STEP3};
    if (weft__epilogue_wide()) return weft__epilogue_apply_wide(e, bias, v);
#pragma unroll
    for (int i = 0; i < WEFT_MAX_STEPS; i++) {
        if (steps[i] == WEFT_STEP_BIAS) v += bias;
        if (steps[i] == WEFT_STEP_RELU) v = v < 0 ? 0 : v;
        if (steps[i] == WEFT_STEP_CLIP) v = v < e.lo[i] ? e.lo[i] : v > e.hi[i] ? e.hi[i] : v;
    }
    return v;
}
#endif

#endif
