/* Recurrent layers on 16-bit data: what is not f32 is made so in the workspace before the f32 passes run, and results
 * are rounded once behind them. Sums, gates and states between the steps are f32; see layers.h.
 * Traffic:   data, weights and gradients once more each way, against Wh once a step: of 100 steps a hundredth
 * Assumes:   rows contiguous, as the passes do */
#include "cpu/rnn/layers.h"

enum { PIECES = 64 }; /* of a tensor */

typedef struct copy {
    const weft_tensor *t; /* as the caller has it */
    void *at;
    float *wide; /* its elements, dense */
    bool narrow; /* from wide to it */
} copy;

static int64_t rows_of(const weft_tensor *t) { return weft__numel(t) / WEFT__MAX(t->dims[t->rank - 1], 1); }

VF_INLINE void copy_row(const copy *q, int64_t at, float *wide, int64_t count, const int dtype) {
    for (int64_t i = 0; i < count; i += VF_LANES)
        if (q->narrow)
            vf_store_count_as(dtype, q->at, at + i, vf_load_count(wide + i, count - i), count - i);
        else
            vf_store_count(wide + i, vf_load_count_as(dtype, q->at, at + i, count - i), count - i);
}

/* Vectors have no rows to cut: their elements are. */
static void copy_piece(void *arg, int64_t piece) {
    const copy *q = arg;
    const weft_tensor *t = q->t;
    const int64_t width = t->dims[t->rank - 1], rows = rows_of(t), cut = rows == 1 ? width : rows;
    const int64_t first = cpu_first(cut, PIECES, piece), last = cpu_first(cut, PIECES, piece + 1);
    for (int64_t row = rows == 1 ? 0 : first; row < (rows == 1 ? 1 : last); row++) {
        int64_t at = 0, rest = row;
        for (int a = t->rank - 2; a >= 0; a--) at += rest % t->dims[a] * t->strides[a], rest /= t->dims[a];
        const int64_t begin = rows == 1 ? first : 0, count = rows == 1 ? last - first : width;
        if (t->dtype == WEFT_DTYPE_F16)
            copy_row(q, at + begin, q->wide + row * width + begin, count, WEFT_DTYPE_F16);
        else
            copy_row(q, at + begin, q->wide + row * width + begin, count, WEFT_DTYPE_BF16);
    }
}

static bool is_narrow(const weft_tensor *t) { return t->dtype == WEFT_DTYPE_F16 || t->dtype == WEFT_DTYPE_BF16; }
static int64_t floats_of(const weft_tensor *t) { return cpu_round_up(weft__numel(t), 16); }

/* The same tensor, dense and f32. */
static weft_tensor widened(const weft_tensor *t) {
    weft_tensor w = *t;
    int64_t step = 1;
    w.dtype = WEFT_DTYPE_F32;
    for (int a = t->rank - 1; a >= 0; a--) w.strides[a] = step, step *= t->dims[a];
    return w;
}

size_t layers_wide_bytes(const weft_problem *p) {
    int64_t floats = 0;
    for (int i = 0; i < p->ntensors; i++) floats += is_narrow(&p->tensor[i]) ? floats_of(&p->tensor[i]) : 0;
    return (size_t)floats * sizeof(float);
}

weft_status layers_run_wide(const weft__exec *e, weft_status (*run)(const weft__exec *e)) {
    const size_t bytes = layers_wide_bytes(e->p);
    if (!bytes) return run(e);
    weft_problem p = *e->p;
    void *ptr[WEFT_ROLE_COUNT];
    copy list[WEFT_ROLE_COUNT];
    int count = 0;
    float *at = e->workspace;
    memcpy(ptr, e->ptr, sizeof(ptr));
    for (int i = 0; i < p.ntensors; i++) {
        const weft_tensor *t = &e->p->tensor[i];
        if (!is_narrow(t)) continue;
        list[count] = (copy){t, ptr[t->role], at, false};
        ptr[t->role] = at;
        p.tensor[i] = widened(t);
        at += floats_of(t);
        if (!weft__is_output(e->p, t->role)) weft__parallel(e->ctx, PIECES, copy_piece, &list[count]);
        count += weft__is_output(e->p, t->role);
    }
    weft__exec wide = *e;
    wide.p = &p, wide.ptr = ptr, wide.workspace = (char *)e->workspace + bytes;
    const weft_status status = run(&wide);
    for (int i = 0; i < count; i++) {
        list[i].narrow = true;
        weft__parallel(e->ctx, PIECES, copy_piece, &list[i]);
    }
    return status;
}
