/* Planning and setting up batch norm, the same for both layouts. */
#include "cpu/batch_norm/norm.h"

enum {
    DATA = WEFT__BIT(WEFT_ROLE_SRC) | WEFT__BIT(WEFT_ROLE_DST) | WEFT__BIT(WEFT_ROLE_DIFF_SRC) |
           WEFT__BIT(WEFT_ROLE_DIFF_DST)
};

const char *WEFT__ISA_NAME(weft__batch_norm_plan)(const weft_problem *p, const weft__hw *hw, norm *q) {
    const char *refusal = lines_view_of(p, DATA, &q->v);
    if (refusal) return refusal;
    if (!lines_same_type(p, DATA)) return "data of several types";
    for (int i = 0; i < p->ntensors; i++)
        if (!(DATA & WEFT__BIT(p->tensor[i].role)) && !weft__is_first(&p->tensor[i]))
            return "statistics or parameters are not dense";
    q->fwd = p->pass == WEFT_PASS_FWD;
    q->train = p->attr[WEFT_BN_TRAIN] != 0;
    q->affine = p->attr[WEFT_BN_AFFINE] != 0;
    q->sums = q->train || (!q->fwd && q->affine);
    q->elements = q->v.outer * q->v.inner;
    q->stream = cpu_streams(hw, weft__bytes(p) / (q->fwd ? 2 : 3));
    return NULL;
}

norm WEFT__ISA_NAME(weft__batch_norm_begin)(const weft__exec *e) {
    norm q = *(const norm *)e->params;
    const int64_t pitch = norm_pitch(q.v.channels);
    q.e = e;
    q.x = e->ptr[WEFT_ROLE_SRC];
    q.dy = e->ptr[WEFT_ROLE_DIFF_DST];
    const bool relu = weft__has_step(e->p, WEFT_STEP_RELU);
    q.y = relu && !q.fwd ? e->ptr[WEFT_ROLE_DST] : NULL;
    q.least = relu ? 0 : -INFINITY;
    q.out = e->ptr[q.fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC];
    q.m = e->workspace;
    q.a = q.m + pitch, q.b = q.a + pitch, q.k = q.b + pitch;
    q.parts = (moments *)(void *)(q.k + pitch);
    return q;
}
