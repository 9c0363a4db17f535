/* Cross entropy, the gradient: reads the logits once; f32, bf16, f16.
 * Math:      as in src/ref/cross_entropy.h: diff_src = exp(x_c - lse) G - g a_c with G = g sum_k a_k. A label's share
 *            is in one class, a_t = (1 - s) w_t, and s w_c / C in each
 * Blocking:  the weights of the places are summed first where the mean divides by them; then tiles as in fwd.c: per
 *            place g, G and the label in arrays, then one sweep over the classes. Few classes that lie together (8, on
 *            AVX2 4) are turned before and after
 * Traffic:   each tensor once (labels twice for a mean), large gradients are streamed
 * Roofline:  bandwidth / 8 logits per second in f32; one exp for each
 *            Measured on 2 cores of an EPYC (Zen 4, AVX-512), 2x21x256x256 f32: 0.5 of the copy
 * Assumes:   logits, gradient and probabilities dense in one order, of one type
 * Try:       weft bench cross_entropy2d:bwd:f32:nchw:n2c21h256w256:ignore255 */
#include "cpu/cross_entropy/job.h"

/* Of the places of a tile: g, G, what the own class gets, the own class. */
typedef struct state {
    _Alignas(64) float lse[TILE_ARRAY], g[TILE_ARRAY], all[TILE_ARRAY], own[TILE_ARRAY];
    _Alignas(64) int32_t label[TILE_ARRAY];
} state;

/* Of a vector of places; see begin. */
VF_INLINE void begin_vector(const job *q, const int dtype, const tile *t, state *s, int64_t i, float one,
                            float spread) {
    const int64_t place = t->place + i, left = t->count - i;
    const vi label = labels_at(q, place, left);
    const vmask ignored = vi_eq(label, vi_set1(-1)), no_class = vi_lt(label, vi_set1(-1));
    const vf nan = vf_set1(NAN), weight = weights_of(q, label);
    vf g = q->each ? run_load(dtype, q->grad, place, left) : vf_set1(one);
    g = vf_select(vf_lt(vf_abs(g), vf_set1(INFINITY)), g, nan); /* infinity times the shares that are 0 */
    g = vf_select(ignored, vf_zero(), vf_select(no_class, nan, g));
    vf own = vf_mul(vf_mul(g, vf_set1((float)(1 - q->smooth))), weight);
    own = vf_select(vi_lt(label, vi_zero()), vf_zero(), own);
    const vf all = q->smooth > 0 ? vf_add(own, vf_mul(g, vf_set1(spread))) : vf_select(no_class, nan, own);
    vf_store(s->lse + i, run_load(WEFT_DTYPE_F32, q->lse, place, left));
    vf_store(s->g + i, g);
    vi_store(s->label + i, label);
    vf_store(s->own + i, own);
    vf_store(s->all + i, vf_select(ignored, vf_zero(), all));
}

VF_INLINE void begin(const job *q, const int dtype, const tile *t, state *s) {
    const float one = q->each ? 0 : (float)((double)element(dtype, q->grad, 0) / q->total);
    const float other = (float)(q->smooth / (double)q->v.channels), spread = other * (float)q->weights_sum;
    const bool vectors = has_vectors(q);
    for (int64_t i = 0; vectors && i < t->count; i += VF_LANES) begin_vector(q, dtype, t, s, i, one, spread);
    for (int64_t i = 0; !vectors && i < t->count; i++) {
        const int64_t label = q->probs ? 0 : label_of(q, t->place + i);
        float g = label == -1 ? 0 : label < 0 ? NAN : q->each ? element(dtype, q->grad, t->place + i) : one;
        if (!isfinite(g) && !q->probs) g = NAN; /* infinity times the shares that are 0 */
        s->lse[i] = q->lse[t->place + i];
        s->g[i] = g;
        s->label[i] = (int32_t)label;
        s->own[i] = label < 0 || q->probs ? 0 : g * (float)(1 - q->smooth) * weight_of(q, label);
        s->all[i] = label == -1 ? 0 : q->smooth > 0 ? s->own[i] + g * spread : label == -2 ? NAN : s->own[i];
    }
}

/* Probabilities: G = g sum_k a_k takes a look at all of them. */
VF_INLINE void columns_shares(const job *q, const int dtype, const tile *t, state *s) {
    for (int64_t i = 0; i < t->count; i += VF_LANES) vf_store(s->all + i, vf_zero());
    for (int64_t c = 0, at = t->at; c < q->v.channels; c++, at += t->across)
        for (int64_t i = 0; i < t->count; i += VF_LANES) {
            const vf a = share_of(q, dtype, at + i, t->count - i, vf_set1(weight_of(q, c)));
            vf_store(s->all + i, vf_fma(vf_load(s->g + i), a, vf_load(s->all + i)));
        }
}

VF_INLINE float row_shares(const job *q, const int dtype, int64_t at, float g) {
    vf sum = vf_zero();
    for (int64_t c = 0; c < q->v.channels; c += VF_LANES) {
        const int64_t left = q->v.channels - c;
        const vf a = share_of(q, dtype, at + c, left, weights_at(q, c, left));
        sum = vf_fma_in(vm_first(left), vf_set1(g), a, sum);
    }
    return vf_sum(sum);
}

/* What one class of one vector of places, or one vector of classes of one place, is made from. */
typedef struct piece {
    vf lse, g, all, own, weight;
    vmask mine, ignored; /* lanes of the own class; of places that do not count */
} piece;

VF_INLINE void put(const job *q, const int dtype, int64_t at, int64_t left, piece k, const bool stream) {
    const vf e = vf_exp(vf_sub(run_load(dtype, q->x, at, left), k.lse));
    vf share;
    if (q->probs) {
        share = vf_mul(k.g, share_of(q, dtype, at, left, k.weight));
    } else {
        share = vf_select(k.mine, k.own, vf_zero());
        if (q->smooth > 0) { /* the same sum as in `all`: a single class gets 0 */
            const vf other = vf_mul(k.g, vf_set1((float)(q->smooth / (double)q->v.channels)));
            share = vf_select(k.ignored, vf_zero(), vf_add(share, vf_mul(other, k.weight)));
        }
    }
    run_store(dtype, q->out, at, vf_fms(e, k.all, share), left, stream);
}

VF_INLINE void put_places(const job *q, const int dtype, const state *s, int64_t c, int64_t at, int64_t i, int64_t left,
                          const bool stream) {
    const vi label = vi_load(s->label + i);
    const piece k = {vf_load(s->lse + i),      vf_load(s->g + i),        vf_load(s->all + i),
                     vf_load(s->own + i),      vf_set1(weight_of(q, c)), vi_eq(label, vi_set1((int32_t)c)),
                     vi_eq(label, vi_set1(-1))};
    put(q, dtype, at + i, left, k, stream);
}

VF_INLINE void columns(const job *q, const int dtype, const tile *t, state *s) {
    if (q->probs) columns_shares(q, dtype, t, s);
    for (int64_t c = 0, at = t->at; c < q->v.channels; c++, at += t->across) {
        for (int64_t i = 0; i < t->count; i += VF_LANES)
            vf_prefetch(q->x, (at + i + TILE_AHEAD * t->across) * vf_size_of(dtype));
        if (q->stream) {
            int64_t i = run_head(dtype, q->out, at, t->count);
            for (int64_t k = 0; k < i; k += VF_LANES) put_places(q, dtype, s, c, at, k, i - k, false);
            for (; i < t->count; i += VF_LANES) put_places(q, dtype, s, c, at, i, t->count - i, true);
        } else {
            for (int64_t i = 0; i < t->count; i += VF_LANES) put_places(q, dtype, s, c, at, i, t->count - i, false);
        }
    }
}

VF_INLINE void put_classes(const job *q, const int dtype, piece k, int32_t label, int64_t at, int64_t c, int64_t left,
                           const bool stream) {
    k.weight = weights_at(q, c, q->v.channels - c);
    k.mine = vi_eq(vi_add(vi_iota(), vi_set1((int32_t)c)), vi_set1(label));
    put(q, dtype, at + c, left, k, stream);
}

VF_INLINE void row(const job *q, const int dtype, const state *s, int64_t at, int64_t i) {
    const int64_t count = q->v.channels;
    const float all = q->probs ? row_shares(q, dtype, at, s->g[i]) : s->all[i];
    const piece k = {vf_set1(s->lse[i]),
                     vf_set1(s->g[i]),
                     vf_set1(all),
                     vf_set1(s->own[i]),
                     vf_zero(),
                     vm_first(0),
                     vm_first(s->label[i] == -1 ? VF_LANES : 0)};
    if (q->stream) {
        int64_t c = run_head(dtype, q->out, at, count);
        for (int64_t j = 0; j < c; j += VF_LANES) put_classes(q, dtype, k, s->label[i], at, j, c - j, false);
        for (; c < count; c += VF_LANES) put_classes(q, dtype, k, s->label[i], at, c, count - c, true);
    } else {
        for (int64_t c = 0; c < count; c += VF_LANES) put_classes(q, dtype, k, s->label[i], at, c, count - c, false);
    }
}

static void planes_of(const job *q, const tile *t, state *s) { columns(q, WEFT_DTYPE_F32, t, s); }

VF_INLINE void slot_of(const job *q, int64_t slot, const int dtype) {
    state s;
    planes room;
    const job own = job_of_planes(q, &room);
    const int64_t last = cpu_first(q->tiles, q->slots, slot + 1);
    for (int64_t item = cpu_first(q->tiles, q->slots, slot); item < last; item++) {
        const tile t = tile_of(q, item);
        begin(q, dtype, &t, &s);
        if (q->turned) {
            const tile turned = turn_tile(q, dtype, &t, &room);
            planes_of(&own, &turned, &s);
            turn_out(dtype, room.x, q->places, q->v.channels, t.count, room.other, q->out, t.at, q->stream);
        } else if (q->v.inner > 1) {
            columns(q, dtype, &t, &s);
        } else {
            for (int64_t i = 0; i < t.count; i++) row(q, dtype, &s, t.at + i * t.along, i);
        }
    }
    if (q->stream) vf_stream_end();
}

static void slot_f32(void *q, int64_t slot) { slot_of(q, slot, WEFT_DTYPE_F32); }
static void slot_f16(void *q, int64_t slot) { slot_of(q, slot, WEFT_DTYPE_F16); }
static void slot_bf16(void *q, int64_t slot) { slot_of(q, slot, WEFT_DTYPE_BF16); }

/* The weights of the places of a slot. */
static void slot_weights(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t places = q->v.outer * q->v.inner, last = cpu_first(places, q->slots, slot + 1);
    double sum = 0;
    int64_t i = cpu_first(places, q->slots, slot);
    if (has_vectors(q))
        for (; i < last; i += VF_LANES) sum += sum_in_double(weights_of(q, labels_at(q, i, last - i)));
    for (; i < last; i++) {
        const int64_t label = label_of(q, i);
        sum += label == -1 ? 0 : label < 0 ? (double)NAN : (double)weight_of(q, label);
    }
    q->parts[slot].weight = sum;
}

static double total_of(const weft__exec *e, job *q) {
    double total = 0;
    if (e->p->attr[WEFT_CE_REDUCTION] != WEFT_CE_MEAN) return 1;
    if (q->probs) return (double)(q->v.outer * q->v.inner);
    weft__parallel(e->ctx, q->slots, slot_weights, q);
    for (int64_t i = 0; i < q->slots; i++) total += q->parts[i].weight;
    return total;
}

static weft_status run(const weft__exec *e) {
    static const weft_task tasks[WEFT_DTYPE_COUNT] = {
        [WEFT_DTYPE_F32] = slot_f32, [WEFT_DTYPE_F16] = slot_f16, [WEFT_DTYPE_BF16] = slot_bf16};
    job q = WEFT__ISA_NAME(weft__cross_entropy_job)(e);
    q.total = total_of(e, &q);
    weft__parallel(e->ctx, q.slots, tasks[weft__tensor(e->p, WEFT_ROLE_SRC)->dtype], &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    return WEFT__ISA_NAME(weft__cross_entropy_plan)(p, hw, d);
}

WEFT__KERNEL(cross_entropy_bwd) = {
    .name = WEFT__NAME("cross_entropy_bwd_tiles"),
    .version = 2,
    .op = WEFT_OP_CROSS_ENTROPY,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD),
    .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16),
    .bound = 4,
    .plan = plan,
    .run = run,
};
