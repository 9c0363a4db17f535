/* Cross entropy forward: losses or their sum or mean, and the log-sum-exp of each place; f32, bf16, f16.
 * Math:      as in src/ref/cross_entropy.h. With z_c = x_c - m and l = log sum exp z: loss = sum_c a_c (l - z_c).
 *            A label with smoothing s is (1 - s) w_t (l - z_t) + s / C sum_c w_c (l - z_c)
 * Blocking:  a tile of places: the greatest, exp and sum, then what the label of each place picks. Classes a plane
 *            apart: places in lanes (lines.h); classes together: up to 48 are turned first (turn.h), more lie in lanes.
 *            Sums over places in double by slot
 * Traffic:   each tensor once
 * Roofline:  bandwidth / 4 logits per second in f32; one exp for each
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 2x21x256x256 f32: 0.55 to 0.63 of the copy. 8x4x94x94 on
 *            one core from warm caches: 0.22 ms channels-first, 0.25 channels-last, with classes in lanes 1.2
 * Assumes:   logits and probabilities dense in one order, of one type with the loss
 * Try:       weft bench cross_entropy2d:fwd:f32:nchw:n2c21h256w256:ignore255 */
#include "cpu/cross_entropy/job.h"

/* Of the places of a tile: the greatest, log sum exp(x - m), sum_c a_c (l - z_c). */
typedef struct state {
    _Alignas(64) float m[TILE_ARRAY], log_sum[TILE_ARRAY], dot[TILE_ARRAY];
} state;

/* What smoothing and probabilities add: shares of every class. */
VF_INLINE void columns_dot(const job *q, const int dtype, const tile *t, state *s) {
    for (int64_t i = 0; i < t->count; i += VF_LANES) vf_store(s->dot + i, vf_zero());
    for (int64_t c = 0, at = t->at; c < q->v.channels; c++, at += t->across) {
        const vf w = vf_set1(weight_of(q, c));
        for (int64_t i = 0; i < t->count; i += VF_LANES) {
            const vf z = vf_sub(run_load(dtype, q->x, at + i, t->count - i), vf_load(s->m + i));
            const vf a = q->probs ? share_of(q, dtype, at + i, t->count - i, w) : w;
            vf_store(s->dot + i, vf_fma(a, vf_sub(vf_load(s->log_sum + i), z), vf_load(s->dot + i)));
        }
    }
}

VF_INLINE float row_dot(const job *q, const int dtype, int64_t at, float m, float log_sum) {
    vf sum = vf_zero();
    for (int64_t c = 0; c < q->v.channels; c += VF_LANES) {
        const int64_t left = q->v.channels - c;
        const vf z = vf_sub(run_load(dtype, q->x, at + c, left), vf_set1(m)), w = weights_at(q, c, left);
        const vf a = q->probs ? share_of(q, dtype, at + c, left, w) : w;
        sum = vf_fma_in(vm_first(left), a, vf_sub(vf_set1(log_sum), z), sum);
    }
    return vf_sum(sum);
}

VF_INLINE void sweep(const job *q, const int dtype, const tile *t, state *s) {
    const bool columns = q->v.inner > 1;
    if (columns) {
        sweep_max(dtype, &q->v, q->x, t->at, t->count, s->m);
        sweep_exp(dtype, &q->v, q->x, t->at, t->count, s->m, s->log_sum, NULL, 0, t->count);
    }
    for (int64_t i = 0; !columns && i < t->count; i++) {
        const int64_t at = t->at + i * t->along;
        s->m[i] = row_greatest(dtype, q->x, at, q->v.channels);
        s->log_sum[i] = row_exp_sum(dtype, q->x, at, q->v.channels, s->m[i], NULL);
    }
    for (int64_t i = 0; i < t->count; i += VF_LANES) {
        const vf log_sum = vf_log(vf_load(s->log_sum + i));
        vf_store(s->log_sum + i, log_sum);
        run_store(WEFT_DTYPE_F32, q->lse, t->place + i, vf_add(vf_load(s->m + i), log_sum), t->count - i, false);
    }
    if (!q->probs && !(q->smooth > 0)) return;
    if (columns) columns_dot(q, dtype, t, s);
    for (int64_t i = 0; !columns && i < t->count; i++)
        s->dot[i] = row_dot(q, dtype, t->at + i * t->along, s->m[i], s->log_sum[i]);
}

/* The loss of place i, and its weight. */
VF_INLINE float loss_of(const job *q, const int dtype, const tile *t, const state *s, int64_t i, float *weight) {
    const float l = s->log_sum[i];
    *weight = 1;
    if (q->probs) return s->dot[i];
    const int64_t label = label_of(q, t->place + i);
    *weight = label == -1 ? 0 : label < 0 ? NAN : weight_of(q, label);
    if (label < 0) return *weight;
    const float own = (float)(1 - q->smooth) * *weight;
    float loss = 0;
    if (own != 0 || !(q->smooth > 0))
        loss = own * (l - (element(dtype, q->x, t->at + label * t->across + i * t->along) - s->m[i]));
    if (q->smooth > 0) loss += (float)(q->smooth / (double)q->v.channels) * s->dot[i];
    return loss;
}

/* The same of a vector of places of f32 without smoothing. */
VF_INLINE vf losses_of(const job *q, const tile *t, const state *s, int64_t i, vf *weight) {
    const vi label = labels_at(q, t->place + i, t->count - i), one = vi_set1((int32_t)t->along);
    const vi from = vi_add(vi_mul(label, vi_set1((int32_t)t->across)), vi_mul(vi_iota(), one));
    const vf own = vf_gather_in(vi_lt(vi_set1(-1), label), (const float *)q->x + t->at + i * t->along, from);
    *weight = weights_of(q, label);
    const vf loss = vf_mul(*weight, vf_sub(vf_load(s->log_sum + i), vf_sub(own, vf_load(s->m + i))));
    return vf_select(vi_eq(label, vi_set1(-1)), vf_zero(), loss);
}

/* Losses of a tile, in the place of what is no longer needed; what they and their weights add up to. */
VF_INLINE void pick(const job *q, const int dtype, const tile *t, state *s, sums *all) {
    if (dtype == WEFT_DTYPE_F32 && !(q->smooth > 0) && has_vectors(q)) {
        for (int64_t i = 0; i < t->count; i += VF_LANES) {
            vf weight;
            const vf loss = losses_of(q, t, s, i, &weight);
            all->loss += sum_in_double(loss);
            all->weight += sum_in_double(weight);
            vf_store(s->m + i, loss);
        }
        return;
    }
    for (int64_t i = 0; i < t->count; i++) {
        float weight;
        const float loss = loss_of(q, dtype, t, s, i, &weight);
        all->loss += loss;
        all->weight += weight;
        s->m[i] = loss;
    }
}

static void planes_of(const job *q, const tile *t, state *s, sums *all) {
    sweep(q, WEFT_DTYPE_F32, t, s);
    pick(q, WEFT_DTYPE_F32, t, s, all);
}

VF_INLINE void slot_of(const job *q, int64_t slot, const int dtype) {
    state s;
    planes room;
    sums all = {0, 0};
    const job own = job_of_planes(q, &room);
    const int64_t last = cpu_first(q->tiles, q->slots, slot + 1);
    for (int64_t item = cpu_first(q->tiles, q->slots, slot); item < last; item++) {
        const tile t = tile_of(q, item);
        if (q->turned) {
            const tile turned = turn_tile(q, dtype, &t, &room);
            planes_of(&own, &turned, &s, &all);
        } else {
            sweep(q, dtype, &t, &s);
            pick(q, dtype, &t, &s, &all);
        }
        for (int64_t i = 0; q->each && i < t.count; i += VF_LANES)
            run_store(dtype, q->out, t.place + i, vf_load(s.m + i), t.count - i, false);
    }
    q->parts[slot] = all;
}

static void slot_f32(void *q, int64_t slot) { slot_of(q, slot, WEFT_DTYPE_F32); }
static void slot_f16(void *q, int64_t slot) { slot_of(q, slot, WEFT_DTYPE_F16); }
static void slot_bf16(void *q, int64_t slot) { slot_of(q, slot, WEFT_DTYPE_BF16); }

static weft_status run(const weft__exec *e) {
    static const weft_task tasks[WEFT_DTYPE_COUNT] = {
        [WEFT_DTYPE_F32] = slot_f32, [WEFT_DTYPE_F16] = slot_f16, [WEFT_DTYPE_BF16] = slot_bf16};
    const int dtype = weft__tensor(e->p, WEFT_ROLE_SRC)->dtype;
    job q = WEFT__ISA_NAME(weft__cross_entropy_job)(e);
    sums all = {0, 0};
    weft__parallel(e->ctx, q.slots, tasks[dtype], &q);
    if (q.each) return WEFT_OK;
    for (int64_t i = 0; i < q.slots; i++) all.loss += q.parts[i].loss, all.weight += q.parts[i].weight;
    const vf loss = vf_set1((float)(e->p->attr[WEFT_CE_REDUCTION] == WEFT_CE_MEAN ? all.loss / all.weight : all.loss));
    if (dtype == WEFT_DTYPE_F32) vf_store_count_as(WEFT_DTYPE_F32, q.out, 0, loss, 1);
    if (dtype == WEFT_DTYPE_F16) vf_store_count_as(WEFT_DTYPE_F16, q.out, 0, loss, 1);
    if (dtype == WEFT_DTYPE_BF16) vf_store_count_as(WEFT_DTYPE_BF16, q.out, 0, loss, 1);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    return WEFT__ISA_NAME(weft__cross_entropy_plan)(p, hw, d);
}

WEFT__KERNEL(cross_entropy_fwd) = {
    .name = WEFT__NAME("cross_entropy_fwd_tiles"),
    .version = 2,
    .op = WEFT_OP_CROSS_ENTROPY,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .bound = 4,
    .plan = plan,
    .run = run,
};
