/* What CPU kernels share: how work is cut into slots, when stores are streamed, the estimate, the epilogue, and the
 * refusals that are not particular to one kernel. */
#ifndef WEFT_CPU_FRAME_H
#define WEFT_CPU_FRAME_H

#include <math.h>

#include "cpu/kernel.h"
#include "cpu/simd/simd.h"

VF_INLINE int64_t cpu_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }
VF_INLINE int64_t cpu_round_up(int64_t size, int64_t tile) { return cpu_ceil(size, tile) * tile; }

/* What work is cut by, in bytes or elements. Builds for the sanitizers cut into small pieces, so that small problems
 * have second strips, parts and chunks, too. */
#ifdef WEFT__SMALL_CUTS
#define CPU_CUT(usual, small) (small)
#else
#define CPU_CUT(usual, small) (usual)
#endif

/* How many slots for `items` equal pieces of `bytes` in all: enough for many cores, each worth waking a thread for.
 * It follows from the problem alone, so results do not depend on the number of threads. */
VF_INLINE int64_t cpu_slots(int64_t items, double bytes) {
    const double want = bytes / CPU_CUT(131072, 1024);
    const int64_t most = want > 128 ? 128 : want < 1 ? 1 : (int64_t)want;
    return items < most ? items : most;
}
/* Items [first, last) of a slot. */
VF_INLINE int64_t cpu_first(int64_t items, int64_t slots, int64_t slot) { return slot * items / slots; }

/* Streaming pays where the output would push itself out of the caches before anyone reads it. Of a last-level cache
 * over 32 MB the rest is taken to be other people's. */
VF_INLINE bool cpu_streams(const weft__hw *hw, double out_bytes) {
    return out_bytes > (double)WEFT__MIN(hw->l3, (size_t)32 << 20) / 8;
}

/* ns of `flops` at `share` of this build's multiply-add peak, beside `bytes` of memory traffic. The two overlap for the
 * most part; 1 us for waking the threads. */
VF_INLINE double cpu_cost(const weft__hw *hw, double bytes, double flops, double share) {
    const double memory = bytes / hw->gbs;
    const double sums = flops / (share * hw->gflops[WEFT__ISA_HERE] * hw->threads);
    return 1000 + WEFT__MAX(memory, sums) + 0.2 * WEFT__MIN(memory, sums);
}

/* A load, a store or a shuffle of a vector, in multiply-adds of one: cores that take two steps for the multiply-adds of
 * 512 bits (Zen 4) do as many of these as of those, others half as many. */
VF_INLINE double cpu_move(const weft__hw *hw) {
#if VF_LANES >= 16
    return WEFT__MIN(1.0, WEFT__MAX(0.5, hw->gflops[WEFT__ISA_HERE] / hw->gflops[WEFT__AVX2] / 2));
#else
    (void)hw;
    return 1;
#endif
}

/* How much longer `items` alike take than if they could be shared out evenly. */
VF_INLINE double cpu_uneven(const weft__hw *hw, int64_t items) {
    return items < 1 ? 1 : (double)(cpu_ceil(items, hw->threads) * hw->threads) / (double)items;
}

/* How much faster this machine's cores are at vector work that was timed on one Zen 4 core: by their peak, 2.4 on one
 * of Zen 5. */
VF_INLINE double cpu_speed(const weft__hw *hw) { return WEFT__MAX(1.0, hw->gflops[WEFT__ISA_HERE] / 120); }

/* ns of `work` ns on one thread beside the problem's memory traffic, for kernels that are not sums of products. */
VF_INLINE double cpu_work_cost(const weft_problem *p, const weft__hw *hw, double work) {
    const double each = work / hw->threads;
    return 1000 + WEFT__MAX(each, weft__bytes(p) / hw->gbs) + 0.2 * each;
}

/* One element of a tensor of floating point, as f32. */
VF_INLINE float cpu_get(int dtype, const void *p, int64_t index) {
    float lanes[VF_LANES];
    if (dtype == WEFT_DTYPE_F32) return ((const float *)p)[index];
    vf_store(lanes, dtype == WEFT_DTYPE_F16 ? vf_load_count_as(WEFT_DTYPE_F16, p, index, 1)
                                            : vf_load_count_as(WEFT_DTYPE_BF16, p, index, 1));
    return lanes[0];
}
VF_INLINE void cpu_put(int dtype, void *p, int64_t index, float x) {
    if (dtype == WEFT_DTYPE_F32)
        ((float *)p)[index] = x;
    else if (dtype == WEFT_DTYPE_F16)
        vf_store_count_as(WEFT_DTYPE_F16, p, index, vf_set1(x), 1);
    else
        vf_store_count_as(WEFT_DTYPE_BF16, p, index, vf_set1(x), 1);
}

/* bias, then relu, then clip, each or not: an offset to begin the sum with, and an interval. */
#define CPU_EPILOGUE_STEPS (WEFT__STEP_SET(BIAS) | WEFT__STEP_SET(RELU) | WEFT__STEP_SET(CLIP))
typedef struct cpu_epilogue {
    const void *bias; /* NULL: none */
    int bias_dtype;
    float lo, hi;
} cpu_epilogue;

/* The bias may have a data type of its own. */
VF_INLINE const char *cpu_dtype_refusal(const weft_problem *p) {
    for (int i = 1; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (t->dtype != p->tensor[0].dtype && t->role != WEFT_ROLE_BIAS && t->role != WEFT_ROLE_DIFF_BIAS)
            return "src, weights and dst differ in data type";
    }
    return NULL;
}

/* NULL, or why cpu_epilogue does not describe it. */
VF_INLINE const char *cpu_epilogue_refusal(const weft_problem *p) {
    for (int i = 1; i < p->nsteps; i++)
        if (p->step[i].kind <= p->step[i - 1].kind) return "the epilogue is not in the order bias, relu, clip";
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_BIAS);
    return bias && !weft__is_first(bias) ? "the bias is not dense" : NULL;
}

VF_INLINE cpu_epilogue cpu_epilogue_of(const weft__exec *e) {
    cpu_epilogue f = {NULL, WEFT_DTYPE_F32, -INFINITY, INFINITY};
    for (int i = 0; i < e->p->nsteps; i++) {
        const weft_step *step = &e->p->step[i];
        const weft_tensor *bias = weft__tensor(e->p, WEFT_ROLE_BIAS); /* bwd has none: it asks for diff_bias */
        if (step->kind == WEFT_STEP_BIAS && bias) {
            f.bias = e->ptr[WEFT_ROLE_BIAS];
            f.bias_dtype = bias->dtype;
        }
        if (step->kind == WEFT_STEP_RELU) f.lo = 0;
        if (step->kind == WEFT_STEP_CLIP) f.lo = fmaxf(f.lo, (float)step->lo), f.hi = (float)step->hi;
    }
    return f;
}

/* Every tensor with a batch axis dense in one layout, the others (weights, bias) dense channels-first; else why not. */
VF_INLINE const char *cpu_layout_refusal(const weft_problem *p, weft_layout layout) {
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        const bool data = t->role == WEFT_ROLE_SRC || t->role == WEFT_ROLE_DST || t->role == WEFT_ROLE_DIFF_SRC ||
                          t->role == WEFT_ROLE_DIFF_DST;
        if (data && layout == WEFT_LAYOUT_FIRST && !weft__is_first(t)) return "src or dst is not dense channels-first";
        if (data && layout == WEFT_LAYOUT_LAST && !weft__is_last(t)) return "src or dst is not dense channels-last";
        if (!data && !weft__is_first(t)) return "weights or bias are not dense channels-first";
    }
    return NULL;
}

#endif
