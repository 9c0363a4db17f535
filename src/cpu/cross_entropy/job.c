/* Planning and setting up a job of cross entropy, the same for both passes. */
#include "cpu/cross_entropy/job.h"

static int64_t padded(int64_t channels) { return cpu_round_up(channels + VF_LANES, 16); }

const char *WEFT__ISA_NAME(weft__cross_entropy_plan)(const weft_problem *p, const weft__hw *hw, weft__decision *d) {
    job *q = WEFT__PARAMS(job, d);
    const bool probs = p->attr[WEFT_CE_PROBABILITIES] != 0, bwd = p->pass == WEFT_PASS_BWD;
    const uint64_t target = probs ? WEFT__BIT(WEFT_ROLE_TARGET) : 0;
    const char *refusal = lines_view_of(p, DATA_ROLES | target, &q->v);
    if (refusal) return refusal;
    if (!lines_same_type(p, DATA_ROLES | target | WEFT__BIT(WEFT_ROLE_DST) | WEFT__BIT(WEFT_ROLE_DIFF_DST)))
        return "the loss or the probabilities have another type than the logits";
    for (int i = 0; i < p->ntensors; i++)
        if (!weft__is_first(&p->tensor[i]) && !((DATA_ROLES | target) & WEFT__BIT(p->tensor[i].role)))
            return "the target, the losses or the weights are not dense";
    if (q->v.channels >= 1 << 30) return "2^30 classes or more";
    const int64_t planes = cpu_ceil(q->v.inner, q->places = tile_pixels(&q->v, SWEEP / (bwd ? 2 : 1)));
    q->turned = turns(&q->v, bwd);
    if (q->v.inner == 1) q->places = WEFT__MIN(q->v.outer, TILE_MOST / 8);
    if (q->turned) q->places = turn_pixels(q->v.channels, q->v.outer);
    q->tiles = q->v.inner == 1 ? cpu_ceil(q->v.outer, q->places) : q->v.outer * planes;
    const double bytes = weft__bytes(p), elements = weft__flops(p) / 8;
    q->slots = cpu_slots(q->tiles, bytes);
    q->stream = bwd && lines_stream(&q->v, p->tensor[0].dtype) && cpu_streams(hw, bytes / 2);
    q->smooth = p->real[WEFT_CE_SMOOTHING];
    q->ignore = p->attr[WEFT_CE_IGNORE];
    q->weighted = p->attr[WEFT_CE_WEIGHTED] != 0;
    q->each = p->attr[WEFT_CE_REDUCTION] == WEFT_CE_NONE;
    d->workspace = (size_t)q->slots * sizeof(sums) + (size_t)padded(q->v.channels) * sizeof(float);
    const bool rows = q->v.inner == 1 && !q->turned;
    const int64_t run = rows ? q->v.channels : q->places;
    const double lanes = (double)cpu_round_up(run, VF_LANES) / (double)run;
    d->ns = lines_cost(hw, bytes, elements * lanes, 1, (bwd ? 3 : 2) + q->turned, q->slots) +
            (double)(q->v.outer * q->v.inner) * (rows ? (bwd ? 4 : 10) : 2) /
                (WEFT__MIN(hw->threads, (double)q->slots) * cpu_speed(hw));
    return NULL;
}

job WEFT__ISA_NAME(weft__cross_entropy_job)(const weft__exec *e) {
    const weft_problem *p = e->p;
    job q = *(const job *)e->params;
    const bool probs = p->attr[WEFT_CE_PROBABILITIES] != 0;
    float *weights = (float *)((char *)e->workspace + (size_t)q.slots * sizeof(sums));
    q.parts = e->workspace;
    q.weights = weights;
    q.x = e->ptr[WEFT_ROLE_SRC];
    q.probs = probs ? e->ptr[WEFT_ROLE_TARGET] : NULL;
    q.labels = probs ? NULL : e->ptr[WEFT_ROLE_TARGET];
    q.lse = e->ptr[WEFT_ROLE_LSE];
    q.grad = e->ptr[WEFT_ROLE_DIFF_DST];
    q.out = e->ptr[p->pass == WEFT_PASS_BWD ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.weights_sum = (double)q.v.channels;
    if (!q.weighted) return q;
    const int dtype = weft__tensor(p, WEFT_ROLE_WEIGHTS)->dtype;
    q.weights_sum = 0;
    for (int64_t c = 0; c < padded(q.v.channels); c++) {
        weights[c] = c >= q.v.channels         ? 0
                     : dtype == WEFT_DTYPE_F32 ? element(WEFT_DTYPE_F32, e->ptr[WEFT_ROLE_WEIGHTS], c)
                     : dtype == WEFT_DTYPE_F16 ? element(WEFT_DTYPE_F16, e->ptr[WEFT_ROLE_WEIGHTS], c)
                                               : element(WEFT_DTYPE_BF16, e->ptr[WEFT_ROLE_WEIGHTS], c);
        q.weights_sum += weights[c];
    }
    return q;
}
