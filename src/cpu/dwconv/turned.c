/* Depthwise convolution of small planes, channels-first: every pass. Any window, stride, dilation and padding, one to
 * three axes, f32, f16 and bf16 with f32 sums.
 * Math:      see dw.h; diff_weights[k] = sum over positions of diff_dst * src at tap k
 * Blocking:  rows of small planes do not fill vectors. So the planes of VF_LANES channels of one image are turned in
 *            scratch: lanes are channels, positions lie one after the other, with zeros for the padding. A tap is then
 *            an offset. Sums: up to 8 outputs of a row over all taps in registers; gradients of weights: up to 9 taps
 *            over all positions. Outputs are turned back and leave as one run
 * Sums:      a slot has a run of channels and a part of the images; the parts are added in their order. Slots follow
 *            from the problem alone
 * Traffic:   every tensor once; scratch is in the near caches
 * Roofline:  bandwidth; turning costs as much as a window of 3x3. Measured on two Zen 4 cores beside kernels with lanes
 *            along rows, data from memory: bf16 8x512x14x14, 3x3: forward 1.7x, all gradients 1.6x; f32 8x240x28x28,
 *            5x5: gradients 1.2x; f32 8x1024x7x7, 3x3: about the same
 * Assumes:   dense tensors, o = c, planes that fit the caches VF_LANES at a time
 * Try:       weft bench conv2d:bwd:f32:nchw:n8c1024h7w7:o1024k3p1g1024 */
#include "cpu/conv/gemm_view.h"
#include "cpu/dwconv/dw.h"

enum { OUTS = 8, TAPS = 9, WANTED = 24, PHASES = 64, MOST = 1 << 17 };

typedef struct sheet {        /* the planes of one tensor, turned: [z][y][x][VF_LANES] */
    int64_t lo[3], size[3];   /* where it begins, 0 or less; with the padding */
    int64_t in[3], at, count; /* of the tensor; where position 0 is; floats */
} sheet;
typedef struct tap {
    int64_t in, weight; /* floats from the position; number of the weight */
} tap;
typedef struct phase { /* outputs first + F j, j < count */
    int64_t first[3], count[3], step[3], taps, ntaps;
} phase;
typedef struct window {
    dw_window g;
    int64_t phases;
    const phase *phase;
    const tap *tap;
    const int32_t *place; /* of the positions of what it reads, in its sheet */
} window;

typedef struct params {
    sheet src, diff;
    int64_t blocks, runs, parts;    /* vectors of channels; runs of them and parts of the images: slots */
    int64_t width;                  /* floats of the weights, or of the sums, of a block */
    int64_t out_at, run_at, floats; /* in the scratch of a slot */
    size_t tables, sums;            /* bytes; sums: and weights */
} params;

typedef struct job {
    const weft__exec *e;
    const params *d;
    window fwd, up;
    cpu_epilogue f;
    float *weights, *sums; /* of each part and block */
    gemm_scratch scratch;
    bool stream;
} job;

static bool has_data(int pass) { return pass != WEFT_PASS_BWD_WEIGHTS; }
static bool has_weights(int pass) { return pass == WEFT_PASS_BWD_WEIGHTS || pass == WEFT_PASS_BWD; }
static int64_t taps_of(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }
static int64_t positions(const int64_t size[3]) { return size[0] * size[1] * size[2]; }

/* ---------------------------------------------------------------- geometry */
/* The tensor that a window reads. used: by it. */
static sheet sheet_of(const weft_problem *p, bool up, bool used) {
    const dw_window g = dw_window_of(p, up);
    sheet s = {.count = VF_LANES};
    for (int a = 0; a < 3; a++) {
        int64_t lo = 0, hi = g.in[a];
        if (used) dw_reach(&g, a, 0, g.out[a], &lo, &hi);
        s.in[a] = g.in[a], s.lo[a] = WEFT__MIN(lo, 0), s.size[a] = WEFT__MAX(hi, g.in[a]) - s.lo[a];
        s.at = s.at * s.size[a] - s.lo[a], s.count *= s.size[a];
    }
    s.at *= VF_LANES;
    return s;
}

/* Every phase of a window and its taps. */
static int64_t find_taps(const dw_window *g, const sheet *s, phase *to, tap *taps) {
    const int64_t *k = g->p->kernel;
    int64_t phases = 0, n = 0;
    for (int64_t i = 0; i < g->phases[0] * g->phases[1] * g->phases[2]; i++) {
        phase *f = &to[phases++];
        dw_axis x[3];
        for (int64_t a = 2, rest = i; a >= 0; rest /= g->phases[a], a--) {
            f->first[a] = rest % g->phases[a];
            f->count[a] = WEFT__MAX(0, cpu_ceil(g->out[a] - f->first[a], g->phases[a]));
            x[a] = dw_axis_of(g, (int)a, f->first[a]), f->step[a] = x[a].step;
        }
        f->taps = n, f->ntaps = x[0].count * x[1].count * x[2].count;
        for (int64_t j = 0; j < f->ntaps; j++, n++) {
            const int64_t at[3] = {j / x[2].count / x[1].count, j / x[2].count % x[1].count, j % x[2].count};
            taps[n] = (tap){0, 0};
            for (int a = 0; a < 3; a++) {
                taps[n].in = taps[n].in * s->size[a] + x[a].off + at[a] * x[a].gap - s->lo[a];
                taps[n].weight = taps[n].weight * k[a] + x[a].first + at[a] * x[a].next;
            }
            taps[n].in *= VF_LANES;
        }
    }
    return phases;
}

static void find_places(const sheet *s, int32_t *to) {
    for (int64_t z = 0; z < s->in[0]; z++)
        for (int64_t y = 0; y < s->in[1]; y++)
            for (int64_t x = 0; x < s->in[2]; x++)
                *to++ = (int32_t)(s->at + ((z * s->size[1] + y) * s->size[2] + x) * VF_LANES);
}

/* ---------------------------------------------------------------- turning */
/* `live` runs of `count` elements from `first` on, `count` apart: vectors of their elements, to places in `to`. As many
 * elements are asked for `ahead` of them. */
VF_INLINE void turn_in(float *to, const int32_t *place, const void *from, int64_t first, int64_t live, int64_t count,
                       int64_t ahead, const int dtype) {
    const int64_t size = vf_size_of(dtype);
    for (int64_t j = 0; j < count; j += VF_LANES) {
        vf v[VF_LANES];
        for (int64_t i = 0; i < VF_LANES * VF_LANES; i += 64 / size)
            vf_prefetch(from, (first + ahead + j * VF_LANES + i) * size);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) v[l] =
            l >= live               ? vf_zero()
            : j + VF_LANES <= count ? vf_load_as(dtype, from, first + l * count + j)
                                    : vf_load_count_as(dtype, from, first + l * count + j, count - j);
        vf_transpose(v);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) if (j + l < count)
            vf_store(to + (place ? place[j + l] : (j + l) * VF_LANES), v[l]);
    }
}

/* Back: one run of f32 for each of `live` lanes, end to end. As many floats are asked for `ahead` of them. */
static void turn_out(float *to, const float *from, int64_t live, int64_t count, int64_t ahead) {
    for (int64_t j = 0; j < count; j += VF_LANES) {
        vf v[VF_LANES];
        for (int64_t i = 0; i < VF_LANES * VF_LANES && ahead; i += 16) vf_prefetch(to, (ahead + j * VF_LANES + i) * 4);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) v[l] =
            j + l < count ? vf_load(from + (j + l) * VF_LANES) : vf_zero();
        vf_transpose(v);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) if (l < live) vf_store_count(to + l * count + j, v[l], count - j);
    }
}

typedef struct block {     /* a vector of channels */
    int64_t c, live, next; /* channels from c on; how many planes after these the next block begins */
    float *src, *diff, *out, *run, *weights, *sums;
} block;

/* The planes of a block of image n, into a sheet whose padding is zeros. */
static void lay(const job *q, const sheet *s, const int32_t *place, int role, int64_t n, const block *b, float *to) {
    const int64_t plane = positions(s->in), c = q->e->p->c;
    DW_BY_DTYPE(q->e->p->tensor[0].dtype, turn_in, to, place, q->e->ptr[role], (n * c + b->c) * plane, b->live, plane,
                b->next * plane)
}

/* ---------------------------------------------------------------- sums */
typedef struct ends {
    vf bias, lo, hi;
} ends;

/* P outputs of a row. */
VF_INLINE void outputs(const window *w, const phase *f, const float *in, const float *weights, float *out,
                       const ends *e, const int P, const bool dense) {
    const int64_t step = dense ? VF_LANES : f->step[2] * VF_LANES;
    const tap *t = w->tap + f->taps;
    vf sum[OUTS];
    VF_UNROLL for (int x = 0; x < P; x++) sum[x] = e->bias;
    for (int64_t i = 0; i < f->ntaps; i++) {
        const vf weight = vf_keep(vf_load(weights + t[i].weight * VF_LANES));
        const float *from = in + t[i].in;
        VF_UNROLL for (int x = 0; x < P; x++) sum[x] = vf_fma(vf_load(from + x * step), weight, sum[x]);
    }
    VF_UNROLL for (int x = 0; x < P; x++) vf_store(out + x * w->g.phases[2] * VF_LANES, vf_clip(sum[x], e->lo, e->hi));
}

VF_INLINE void row_of_outputs(const window *w, const phase *f, const float *in, const float *weights, float *out,
                              const ends *e, const bool dense) {
    const int64_t tiles = gemm_split(f->count[2], OUTS);
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t x = gemm_first(f->count[2], tiles, i), wide = gemm_first(f->count[2], tiles, i + 1) - x;
        const float *from = in + x * f->step[2] * VF_LANES;
        float *to = out + x * w->g.phases[2] * VF_LANES;
        switch (wide) {
#define WIDE(P)                                        \
    case P:                                            \
        outputs(w, f, from, weights, to, e, P, dense); \
        break;
            DW_TO_8(WIDE)
#undef WIDE
        default:
            break;
        }
    }
}

static void sum_all(const window *w, const sheet *s, const float *in, const float *weights, float *out, const ends *e) {
    const int64_t *F = w->g.phases;
    for (int64_t i = 0; i < w->phases; i++) {
        const phase *f = &w->phase[i];
        for (int64_t z = 0; z < f->count[0]; z++)
            for (int64_t y = 0; y < f->count[1]; y++) {
                const float *from = in + (z * f->step[0] * s->size[1] + y * f->step[1]) * s->size[2] * VF_LANES;
                const int64_t row = (f->first[0] + F[0] * z) * w->g.out[1] + f->first[1] + F[1] * y;
                float *to = out + (row * w->g.out[2] + f->first[2]) * VF_LANES;
                if (f->step[2] == 1)
                    row_of_outputs(w, f, from, weights, to, e, true);
                else
                    row_of_outputs(w, f, from, weights, to, e, false);
            }
    }
}

/* ---------------------------------------------------------------- gradients of weights */
/* sums of T taps, over a plane of positions of diff_dst. */
VF_INLINE void gradient(const phase *f, const tap *t, const sheet *src, const sheet *diff, const float *in,
                        const float *center, float *sums, const int T) {
    vf sum[TAPS];
    VF_UNROLL for (int i = 0; i < T; i++) sum[i] = vf_load(sums + t[i].weight * VF_LANES);
    for (int64_t y = 0; y < f->count[1]; y++) {
        const float *from = in + y * f->step[1] * src->size[2] * VF_LANES, *c = center + y * diff->size[2] * VF_LANES;
        const float *at[TAPS];
        VF_UNROLL for (int i = 0; i < T; i++) at[i] = from + t[i].in;
        for (int64_t x = 0, j = 0; x < f->count[2]; x++, j += f->step[2] * VF_LANES) {
            const vf d = vf_keep(vf_load(c + x * VF_LANES));
            VF_UNROLL for (int i = 0; i < T; i++) sum[i] = vf_fma(vf_load(at[i] + j), d, sum[i]);
        }
    }
    VF_UNROLL for (int i = 0; i < T; i++) vf_store(sums + t[i].weight * VF_LANES, sum[i]);
}

static void add_all(const window *w, const params *d, const float *in, const float *diff, float *sums, bool bias) {
    const phase *f = &w->phase[0];
    const sheet *s = &d->src, *y = &d->diff;
    const int64_t panels = gemm_split(f->ntaps, TAPS);
    for (int64_t z = 0; z < f->count[0]; z++) {
        const float *from = in + z * f->step[0] * s->size[1] * s->size[2] * VF_LANES;
        const float *center = diff + y->at + z * y->size[1] * y->size[2] * VF_LANES;
        for (int64_t i = 0; i < panels; i++) {
            const int64_t first = gemm_first(f->ntaps, panels, i);
            const tap *t = w->tap + f->taps + first;
            switch (gemm_first(f->ntaps, panels, i + 1) - first) {
#define MANY(T)                                      \
    case T:                                          \
        gradient(f, t, s, y, from, center, sums, T); \
        break;
                DW_TO_8(MANY)
                MANY(9)
#undef MANY
            default:
                break;
            }
        }
        if (!bias) continue;
        float *to = sums + f->ntaps * VF_LANES;
        vf sum = vf_load(to);
        for (int64_t r = 0; r < f->count[1]; r++)
            for (int64_t x = 0; x < f->count[2]; x++)
                sum = vf_add(sum, vf_load(center + (r * y->size[2] + x) * VF_LANES));
        vf_store(to, sum);
    }
}

/* ---------------------------------------------------------------- driver */
static void run_block(const job *q, const block *b, int64_t n) {
    const weft_problem *p = q->e->p;
    const params *d = q->d;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    if (p->pass != WEFT_PASS_BWD_DATA) lay(q, &d->src, q->fwd.place, WEFT_ROLE_SRC, n, b, b->src);
    if (!fwd) lay(q, &d->diff, q->up.place, WEFT_ROLE_DIFF_DST, n, b, b->diff);
    if (has_weights(p->pass))
        add_all(&q->fwd, d, b->src, b->diff, b->sums, weft__tensor(p, WEFT_ROLE_DIFF_BIAS) != NULL);
    if (!has_data(p->pass)) return;
    const int64_t plane = positions(fwd ? p->out : p->in);
    float bias[VF_LANES] = {0};
    for (int64_t l = 0; l < b->live && q->f.bias; l++) bias[l] = cpu_get(q->f.bias_dtype, q->f.bias, b->c + l);
    const ends e = {vf_load(bias), vf_set1(q->f.lo), vf_set1(q->f.hi)};
    sum_all(fwd ? &q->fwd : &q->up, fwd ? &d->src : &d->diff, fwd ? b->src : b->diff, b->weights, b->out, &e);
    const int64_t at = (n * p->c + b->c) * plane;
    if (p->tensor[0].dtype == WEFT_DTYPE_F32 && !q->stream) {
        turn_out((float *)q->e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC] + at, b->out, b->live, plane,
                 b->next * plane);
        return;
    }
    turn_out(b->run, b->out, b->live, plane, 0);
    DW_BY_DTYPE(p->tensor[0].dtype, dw_narrow, q->e->ptr[fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC], at, b->run,
                b->live * plane, q->stream)
}

static block block_of(const job *q, int64_t part, int64_t index, float *scratch) {
    const weft_problem *p = q->e->p;
    const params *d = q->d;
    block b = {.c = index * VF_LANES, .src = scratch, .diff = scratch + d->src.count};
    b.live = WEFT__MIN(p->c - b.c, VF_LANES);
    b.out = scratch + d->out_at, b.run = scratch + d->run_at;
    b.weights = q->weights + (part * d->blocks + index) * d->width;
    b.sums = q->sums + (part * d->blocks + index) * d->width;
    return b;
}

/* The parts of the sums of one vector of channels, added in their order. */
static void finish(void *arg, int64_t index) {
    const job *q = arg;
    const params *d = q->d;
    const weft_problem *p = q->e->p;
    const int64_t taps = taps_of(p);
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_DIFF_BIAS);
    const block b = block_of(q, 0, index, NULL);
    for (int64_t i = 1; i < d->parts; i++)
        for (int64_t j = 0; j < d->width; j += VF_LANES)
            vf_store(b.sums + j, vf_add(vf_load(b.sums + j), vf_load(b.sums + i * d->blocks * d->width + j)));
    turn_out(b.weights, b.sums, b.live, taps, 0);
    DW_BY_DTYPE(p->tensor[0].dtype, dw_narrow, q->e->ptr[WEFT_ROLE_DIFF_WEIGHTS], b.c * taps, b.weights, b.live * taps,
                false)
    for (int64_t l = 0; l < b.live && bias; l++)
        cpu_put(bias->dtype, q->e->ptr[WEFT_ROLE_DIFF_BIAS], b.c + l, b.sums[taps * VF_LANES + l]);
}

static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const weft_problem *p = q->e->p;
    const int mine = gemm_take(&q->scratch);
    float *scratch = (float *)(void *)(q->scratch.base + (size_t)mine * q->scratch.bytes);
    const int64_t part = slot / d->runs, run = slot % d->runs, taps = taps_of(p);
    const int64_t b0 = cpu_first(d->blocks, d->runs, run), b1 = cpu_first(d->blocks, d->runs, run + 1);
    memset(scratch, 0, (size_t)(d->src.count + d->diff.count) * sizeof(float));
    for (int64_t i = b0; i < b1; i++) {
        const block b = block_of(q, part, i, scratch);
        if (has_weights(p->pass)) memset(b.sums, 0, (size_t)d->width * sizeof(float));
        if (!has_data(p->pass)) continue;
        DW_BY_DTYPE(p->tensor[0].dtype, turn_in, b.weights, NULL, q->e->ptr[WEFT_ROLE_WEIGHTS], b.c * taps, b.live,
                    taps, 0)
    }
    for (int64_t n = cpu_first(p->n, d->parts, part); n < cpu_first(p->n, d->parts, part + 1); n++)
        for (int64_t i = b0; i < b1; i++) {
            block b = block_of(q, part, i, scratch);
            b.next = i + 1 < b1 ? VF_LANES : p->c - (b1 - 1 - b0) * VF_LANES;
            run_block(q, &b, n);
        }
    if (q->stream) vf_stream_end();
    gemm_give(&q->scratch, mine);
    for (int64_t i = b0; i < b1 && has_weights(p->pass) && d->parts == 1; i++) finish(q, i);
}

static weft_status run(const weft__exec *e) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    const int64_t taps = taps_of(p);
    job q = {.e = e, .d = d, .f = cpu_epilogue_of(e)};
    phase *phases = e->workspace;
    tap *list = (tap *)(void *)(phases + 1 + PHASES);
    int32_t *place = (int32_t *)(void *)(list + 2 * taps), *of_diff = place + positions(p->in);
    q.fwd = (window){.g = dw_window_of(p, false), .phase = phases, .tap = list, .place = place};
    q.up = (window){.g = dw_window_of(p, true), .phase = phases + 1, .tap = list + taps, .place = of_diff};
    find_places(&d->src, place), find_places(&d->diff, of_diff);
    if (p->pass != WEFT_PASS_BWD_DATA) q.fwd.phases = find_taps(&q.fwd.g, &d->src, phases, list);
    if (has_data(p->pass) && p->pass != WEFT_PASS_FWD)
        q.up.phases = find_taps(&q.up.g, &d->diff, phases + 1, list + taps);
    q.weights = (float *)(void *)((char *)e->workspace + d->tables);
    q.sums = q.weights + d->parts * d->blocks * d->width;
    q.scratch.base = (char *)e->workspace + d->tables + d->sums;
    q.scratch.bytes = (size_t)d->floats * sizeof(float);
    const weft_tensor *out = weft__tensor(p, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC);
    q.stream = out && cpu_streams(e->hw, (double)weft__numel(out) * (double)weft__dtype_size(out->dtype));
    weft__parallel(e->ctx, d->parts * d->runs, task, &q);
    if (has_weights(p->pass) && d->parts > 1) weft__parallel(e->ctx, d->blocks, finish, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_FIRST);
    if (why) return why;
    if (p->o != p->c) return "a channel multiplier: o differs from c";
    if (p->stride[0] * p->stride[1] * p->stride[2] > PHASES) return "the stride has too many residues";
    if (p->n < 1 || positions(p->out) < 1) return "no positions";
    params *d = WEFT__PARAMS(params, out);
    const int64_t taps = taps_of(p);
    const bool weights = has_weights(p->pass), data = has_data(p->pass), fwd = p->pass == WEFT_PASS_FWD;
    if (positions(p->in) > MOST || positions(p->out) > MOST || taps > MOST) return "planes larger than the caches";
    d->src = sheet_of(p, false, p->pass != WEFT_PASS_BWD_DATA);
    d->diff = sheet_of(p, true, !fwd && data);
    if (p->pass == WEFT_PASS_BWD_DATA) d->src.count = 0;
    if (fwd) d->diff.count = 0;
    const int64_t plane = positions(fwd ? p->out : p->in) * VF_LANES;
    d->out_at = d->src.count + d->diff.count;
    d->run_at = d->out_at + (data ? plane : 0);
    d->floats = cpu_round_up(d->run_at + (data ? plane + VF_LANES : 0), 16);
    if (d->floats > MOST) return "planes larger than the caches";
    /* long runs of channels are read as one piece; sums want few parts */
    d->blocks = cpu_ceil(p->c, VF_LANES);
    const int64_t want = WEFT__MIN(cpu_slots(d->blocks * p->n, weft__bytes(p)), WANTED);
    if (weights) {
        d->runs = WEFT__MIN(d->blocks, want), d->parts = WEFT__MIN(p->n, cpu_ceil(want, d->runs));
    } else {
        d->parts = WEFT__MIN(p->n, want), d->runs = WEFT__MIN(d->blocks, cpu_ceil(want, d->parts));
    }
    d->width = (taps + 1) * VF_LANES;
    d->tables = (1 + PHASES) * sizeof(phase) + 2 * (size_t)taps * sizeof(tap);
    d->tables += (size_t)(positions(p->in) + positions(p->out)) * sizeof(int32_t);
    d->tables = (size_t)cpu_round_up((int64_t)d->tables, 64);
    d->sums = (size_t)((weights ? 2 : 1) * d->parts * d->blocks * d->width) * sizeof(float);
    out->workspace = d->tables + d->sums + (size_t)(d->parts * d->runs * d->floats) * sizeof(float);
    /* for each vector: multiply-adds, and turning, 16 for each position in or out */
    const double in = (double)positions(p->in), to = (double)positions(p->out);
    const double sums = (double)taps * to * ((data ? 1.2 : 0) + (weights ? 1.2 : 0)) +
                        16 * ((fwd || weights ? in : 0) + (fwd ? 0 : to) + (data ? (fwd ? to : in) : 0));
    const bool f32 = p->tensor[0].dtype == WEFT_DTYPE_F32;
    const double narrow = fwd ? (f32 ? 0.66 : 0.72) : (f32 ? 0.72 : 0.85), share = VF_LANES >= 16 ? 0.9 : narrow;
    out->ns = 1000 + cpu_cost(hw, weft__bytes(p), 2 * sums * VF_LANES * (double)(d->blocks * p->n), share);
    return NULL;
}

DW_EVERY_PASS(turned);
