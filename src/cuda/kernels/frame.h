/* What CUDA kernels share on the host: data as outer x channels x inner, widths of vectors, estimates, options. */
#ifndef WEFT_CUDA_FRAME_H
#define WEFT_CUDA_FRAME_H

#ifndef __CUDACC_RTC__
#include "core/internal.h"

#define CUDA_FLOATS (WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16))

static inline int64_t cuda_ceil(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* The least power of two that is n or more. */
static inline int cuda_power(int64_t n) {
    int power = 1;
    while (power < n) power *= 2;
    return power;
}

/* Tensors n c d h w in one dense order. first: outer n, inner d h w. last: outer n d h w, inner 1; so are images of one
 * pixel. */
typedef struct cuda_data {
    int64_t outer, channels, inner;
    bool last;
} cuda_data;

/* NULL, or why not: every tensor of rank 5 or more is dense in one order and of one data type (whole numbers apart). */
static inline const char *cuda_dense(const weft_problem *p, bool *last) {
    bool first = true, behind = true;
    int dtype = p->tensor[0].dtype;
    *last = false;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (t->rank < 5 && !weft__is_first(t)) return "a vector with gaps";
        if (t->rank < 5) continue;
        first = first && weft__is_first(t);
        behind = behind && weft__is_last(t);
        if ((WEFT__FLOATS & WEFT__BIT(t->dtype)) && t->role != WEFT_ROLE_LSE && t->dtype != dtype)
            return "data of several types";
    }
    *last = !first;
    return first || behind ? NULL : "a tensor is not dense channels-first or channels-last as the others are";
}

static inline const char *cuda_data_of(const weft_problem *p, cuda_data *d) {
    const char *refusal = cuda_dense(p, &d->last);
    int64_t pixels = p->in[0] * p->in[1] * p->in[2];
    d->last = d->last || pixels == 1;
    d->outer = d->last ? p->n * pixels : p->n;
    d->channels = p->c;
    d->inner = d->last ? 1 : pixels;
    return refusal;
}

/* Elements of a vector of at most 16 bytes that divides the extent and that every tensor of data is aligned for. */
static inline int cuda_vec(const weft_problem *p, int64_t extent) {
    int64_t size = (int64_t)weft__dtype_size(p->tensor[0].dtype), vec = 16 / size;
    for (int i = 0; i < p->ntensors; i++)
        while (vec > 1 && p->tensor[i].rank > 1 && p->tensor[i].dtype == p->tensor[0].dtype &&
               p->tensor[i].align % (vec * size))
            vec /= 2;
    while (extent % vec) vec /= 2;
    return (int)vec;
}

/* Threads that give every multiprocessor of a large GPU a block. Work for fewer is cut finer: the machine is idle, and
 * short code comes sooner from memory. */
enum { CUDA_WAVE = 132 * 256 };

/* The time of bytes at a share of the device's rate, and of launches. */
static inline double cuda_ns(const weft__hw *hw, double bytes, double share, int launches) {
    return 2500 + 1500 * launches + bytes / (hw->gpu->gbs * share);
}

/* Elements of a slot of shared memory for span.h: a run that begins anywhere in a line of 16 bytes, and behind it what
 * is never written. Windows reach so many elements past either end of a row, and the slots beside one are being filled
 * while it is read. */
static inline int32_t cuda_slot(int64_t elements, int64_t reach, int64_t size) {
    return (int32_t)((cuda_ceil(elements * size, 16) + cuda_ceil(reach * size, 16) + 1) * 16 / size);
}

static inline const char *cuda_type(int dtype) {
    return dtype == WEFT_DTYPE_F32 ? "f32_t" : dtype == WEFT_DTYPE_F16 ? "f16_t" : "bf16_t";
}

/* The data type, the vector, and an index that counts the elements of the largest tensor. */
static inline void cuda_defines(const weft_problem *p, int vec, weft__text *t) {
    int64_t most = 0;
    for (int i = 0; i < p->ntensors; i++) most = WEFT__MAX(most, weft__numel(&p->tensor[i]));
    weft__put(t, "-DT=%s -DVEC=%d -DINDEX=%s", cuda_type(p->tensor[0].dtype), vec,
              most < INT32_MAX / 2 ? "uint32_t" : "uint64_t");
}

/* The type of a tensor that may differ from the data's: -DNAME=type. */
static inline void cuda_define_type(const weft_problem *p, int role, const char *name, weft__text *t) {
    const weft_tensor *tensor = weft__tensor(p, role);
    weft__put(t, " -D%s=%s", name, cuda_type(tensor ? tensor->dtype : WEFT_DTYPE_F32));
}
#endif

#endif
