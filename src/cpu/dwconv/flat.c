/* Depthwise convolution at stride 1 with rows end to end, channels-first: every pass. Any window, dilation and padding,
 * one to three axes, f32, f16 and bf16 with f32 sums.
 * Math:      see dw.h; diff_weights[k] = sum over positions of center * in at tap k
 *            weights alone: in = src, center = diff_dst. All: in = diff_dst, center = src, through the window of the
 *            data gradient, and for 3x3 each tap is loaded once for both
 * Blocking:  the rows of a channel are copied into scratch end to end, see flat.h: vectors are full at any width. Sums
 *            of taps in registers, see flat_tile.c
 * Sums:      a slot has a run of channels and a part of the images; the parts are added in their order. Slots follow
 *            from the problem alone
 * Traffic:   every tensor once; scratch is in the near caches
 * Roofline:  bandwidth for small windows. Measured on two Zen 4 cores beside the best of the other kernels, data from
 *            memory: 3x3 with dilation 2 8x64x28x28 1.4x, 3 taps along 8x96x512 1.2x, 3x3x3 2x64x8x14x14 1.2x and all
 *            gradients 1.5x, 3x3 8x512x14x17 1.1x and all gradients 1.2x; two thirds as fast for 3x3 8x128x56x56
 * Assumes:   dense tensors, o = c, volumes that fit the caches
 * Try:       weft bench conv2d:bwd:bf16:nchw:n8c512h14w17:o512k3p1g512 */
#include "cpu/dwconv/flat.h"
#include "cpu/conv/gemm_view.h"
#include "cpu/simd/stage.h"

enum { WANTED = 48, BLOCK = 32, MOST = 160 << 10 };

typedef struct params {
    int64_t row, plane;  /* floats from one row in scratch to the next, from one plane to the next */
    int64_t at, count;   /* where input 0 lies; floats of the inputs */
    int64_t ins, outs;   /* vectors of a plane */
    int64_t runs, parts; /* of the channels, of the images: slots */
    int64_t width;       /* floats of the sums of a channel */
    int64_t floats;      /* of scratch, of a slot */
    size_t spots, list;  /* bytes: of the spots, of the taps */
} params;

typedef struct job {
    const weft__exec *x;
    const params *d;
    dw_window g;
    cpu_epilogue e;
    const void *in, *center, *weights; /* center NULL: no gradient of weights; weights NULL: that alone */
    void *out;
    const flat_spot *in_spot, *out_spot;
    flat_window f;
    int64_t ahead;       /* planes of inputs that a plane of outputs needs beyond its own */
    bool biased, stream; /* biased: diff_bias is asked for */
    float *scratch, *sums;
} job;

typedef struct slot {
    float *planes, *center, *weights, *raw, *staged;
} slot;

static bool has_data(int pass) { return pass != WEFT_PASS_BWD_WEIGHTS; }
static bool has_weights(int pass) { return pass == WEFT_PASS_BWD_WEIGHTS || pass == WEFT_PASS_BWD; }
static bool is_up(int pass) { return pass == WEFT_PASS_BWD_DATA || pass == WEFT_PASS_BWD; }
static int64_t taps_of(const weft_problem *p) { return p->kernel[0] * p->kernel[1] * p->kernel[2]; }
static int64_t volume_of(const int64_t size[3]) { return size[0] * size[1] * size[2]; }

/* ---------------------------------------------------------------- geometry */
static void find_spots(flat_spot *to, int64_t vectors, int64_t row, int64_t h, int64_t w) {
    const uint32_t every = (1u << VF_LANES) - 1;
    const vf_spread whole = vf_spread_of(every);
    int64_t x = 0, y = 0;
    int32_t done = 0;
    for (; vectors > 0; vectors--, to++) {
        uint32_t lanes = y < h && x + VF_LANES <= w ? every : 0;
        for (int l = 0; l < VF_LANES && lanes != every; l++)
            lanes |= (uint32_t)((y + (x + l) / row) < h && (x + l) % row < w) << l;
        *to = (flat_spot){done, __builtin_popcount(lanes), lanes == every ? whole : vf_spread_of(lanes)};
        done += to->live;
        for (x += VF_LANES; x >= row; y++) x -= row;
    }
}

static void find_taps(const dw_window *g, const params *d, flat_tap *to) {
    const int64_t *k = g->p->kernel, pitch[3] = {d->plane, d->row, 1};
    dw_axis x[3];
    for (int a = 0; a < 3; a++) x[a] = dw_axis_of(g, a, 0);
    for (int64_t i = 0; i < taps_of(g->p); i++) {
        const int64_t at[3] = {i / k[2] / k[1], i / k[2] % k[1], i % k[2]};
        to[i] = (flat_tap){d->at, 0};
        for (int a = 0; a < 3; a++) {
            to[i].at += (x[a].off + at[a] * x[a].gap) * pitch[a];
            to[i].weight = to[i].weight * k[a] + x[a].first + at[a] * x[a].next;
        }
    }
}

/* ---------------------------------------------------------------- one plane */
/* The plane at from[index], its rows end to end. total: elements of the tensor. sum: of the plane, is added to. */
VF_INLINE void lay(float *to, const flat_spot *s, int64_t vectors, const void *from, int64_t index, int64_t total,
                   vf *sum, const int dtype) {
    for (int64_t j = 0; j < vectors; j++, s++) {
        const int64_t i = index + s->first;
        const vf v = i + VF_LANES <= total ? vf_load_as(dtype, from, i) : vf_load_count_as(dtype, from, i, total - i);
        const vf laid = vf_expand(&s->spread, v);
        vf_prefetch(from, i * vf_size_of(dtype) + 2048);
        vf_store(to + j * VF_LANES, laid);
        if (sum) *sum = vf_add(*sum, laid);
    }
}

/* A plane of outputs, or of gradients, or both; outputs leave in tiles. */
VF_INLINE void sum_plane(const job *q, const slot *w, const float *in, weft__stage *stage, flat_sink *k, float *sums,
                         const int dtype) {
    const int64_t outs = q->d->outs, tiles = q->weights ? gemm_split(outs, FLAT_OUTS) : 0;
    const bool both = q->center && flat_has_both(&q->f);
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t v = gemm_first(outs, tiles, i), wide = gemm_first(outs, tiles, i + 1) - v, at = v * VF_LANES;
        k->out = stage_room(stage), k->at = 0;
        if (both)
            flat_both(&q->f, in + at, w->weights, w->center + at, wide, sums, q->out_spot + v, k);
        else
            flat_sum(&q->f, in + at, w->weights, wide, q->out_spot + v, k);
        stage_commit(stage, k->at, dtype);
    }
    if (q->center && !(both && tiles)) flat_grad(&q->f, in, w->center, outs, sums);
}

/* ---------------------------------------------------------------- driver */
VF_INLINE void run_channel(const job *q, const slot *w, int64_t n, int64_t c, weft__stage *stage, flat_sink *k,
                           float *sums, const int dtype) {
    const params *d = q->d;
    const dw_window *g = &q->g;
    const int64_t u = n * g->p->c + c, channels = g->p->n * g->p->c, taps = q->f.taps;
    const int64_t in = volume_of(g->in), out = volume_of(g->out), plane = g->in[1] * g->in[2];
    vf sum = vf_zero(); /* of diff_dst */
    vf *of_in = q->biased && g->up ? &sum : NULL, *of_center = q->biased && !g->up ? &sum : NULL;
    if (q->weights) {
        dw_widen(w->raw, q->weights, c * taps, taps, dtype);
        for (int64_t i = 0; i < taps; i++) w->weights[i] = w->raw[q->f.tap[i].weight];
    }
    k->bias = q->e.bias ? cpu_get(q->e.bias_dtype, q->e.bias, c) : 0;
    for (int64_t z = 0, laid = 0; z < g->out[0]; z++) {
        const int64_t until = z + 1 < g->out[0] ? WEFT__MIN(z + q->ahead + 1, g->in[0]) : g->in[0];
        for (; laid < until; laid++)
            lay(w->planes + d->at + laid * d->plane, q->in_spot, d->ins, q->in, u * in + laid * plane, channels * in,
                of_in, dtype);
        if (q->center)
            lay(w->center, q->out_spot, d->outs, q->center, u * out + z * g->out[1] * g->out[2], channels * out,
                of_center, dtype);
        sum_plane(q, w, w->planes + z * d->plane, stage, k, sums, dtype);
    }
    if (q->biased) vf_store(sums + taps * VF_LANES, vf_add(vf_load(sums + taps * VF_LANES), sum));
}

/* A run of channels of a part of the images; where weights have gradients, few channels at a time. */
VF_INLINE void run_slot(const job *q, int64_t index, const int dtype) {
    const params *d = q->d;
    const weft_problem *p = q->x->p;
    const int64_t part = index / d->runs, run = index % d->runs, taps = cpu_round_up(q->f.taps, 16);
    const int64_t n0 = cpu_first(p->n, d->parts, part), n1 = cpu_first(p->n, d->parts, part + 1);
    const int64_t c0 = cpu_first(p->c, d->runs, run), c1 = cpu_first(p->c, d->runs, run + 1);
    const int64_t block = q->center ? BLOCK : c1 - c0, out = volume_of(q->g.out);
    slot w = {.planes = q->scratch + index * d->floats};
    w.weights = w.planes + d->count, w.raw = w.weights + taps, w.center = w.raw + taps;
    w.staged = w.center + (q->center ? d->outs * VF_LANES : 0);
    memset(w.planes, 0, (size_t)d->count * sizeof(float));
    float *sums = q->sums + part * p->c * d->width;
    if (q->center) memset(sums + c0 * d->width, 0, (size_t)((c1 - c0) * d->width) * sizeof(float));
    for (int64_t c = c0; c < c1; c += block)
        for (int64_t n = n0; n < n1; n++) {
            const int64_t first = n * p->c + c, last = n * p->c + WEFT__MIN(c1, c + block);
            flat_sink k = {NULL, 0, 0, q->e.lo, q->e.hi};
            weft__stage stage = {.stream = q->stream};
            if (q->weights) {
                char *to = (char *)q->out + first * out * vf_size_of(dtype);
                stage_begin(&stage, w.staged, to, q->stream, dtype);
                stage_in_place(&stage, to, (last - first) * out, FLAT_OUTS * VF_LANES, dtype);
            }
            for (int64_t i = first; i < last; i++)
                run_channel(q, &w, n, i - n * p->c, &stage, &k, sums + (i - n * p->c) * d->width, dtype);
            if (q->weights) stage_end(&stage, dtype);
        }
}

static void task_f32(void *arg, int64_t index) { run_slot(arg, index, WEFT_DTYPE_F32); }
static void task_f16(void *arg, int64_t index) { run_slot(arg, index, WEFT_DTYPE_F16); }
static void task_bf16(void *arg, int64_t index) { run_slot(arg, index, WEFT_DTYPE_BF16); }

/* The parts of some channels, added in their order, and the lanes of them. */
static void finish(void *arg, int64_t run) {
    const job *q = arg;
    const params *d = q->d;
    const weft_problem *p = q->x->p;
    const weft_tensor *bias = weft__tensor(p, WEFT_ROLE_DIFF_BIAS);
    for (int64_t c = cpu_first(p->c, d->runs, run); c < cpu_first(p->c, d->runs, run + 1); c++)
        for (int64_t i = 0; i <= q->f.taps; i++) {
            const float *from = q->sums + c * d->width + i * VF_LANES;
            vf sum = vf_load(from);
            for (int64_t part = 1; part < d->parts; part++) sum = vf_add(sum, vf_load(from + part * p->c * d->width));
            if (i < q->f.taps)
                cpu_put(p->tensor[0].dtype, q->x->ptr[WEFT_ROLE_DIFF_WEIGHTS], c * q->f.taps + q->f.tap[i].weight,
                        vf_sum(sum));
            else if (bias)
                cpu_put(bias->dtype, q->x->ptr[WEFT_ROLE_DIFF_BIAS], c, vf_sum(sum));
        }
}

static weft_status run(const weft__exec *e) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    const bool up = is_up(p->pass), data = has_data(p->pass), weights = has_weights(p->pass);
    const int dtype = p->tensor[0].dtype;
    flat_spot *spots = e->workspace;
    flat_tap *list = (flat_tap *)(void *)((char *)e->workspace + d->spots);
    job q = {.x = e, .d = d, .g = dw_window_of(p, up), .e = cpu_epilogue_of(e)};
    q.f = (flat_window){list, taps_of(p), p->kernel[2] == 3 && p->dilation[2] == 1};
    q.in = e->ptr[up ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.center = weights ? e->ptr[up ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST] : NULL;
    q.weights = data ? e->ptr[WEFT_ROLE_WEIGHTS] : NULL;
    q.out = e->ptr[up ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.in_spot = spots, q.out_spot = spots + d->ins;
    q.biased = weft__tensor(p, WEFT_ROLE_DIFF_BIAS) != NULL;
    q.ahead = dw_axis_of(&q.g, 0, 0).off + (p->kernel[0] - 1) * p->dilation[0];
    q.scratch = (float *)(void *)((char *)e->workspace + d->spots + d->list);
    q.sums = q.scratch + d->parts * d->runs * d->floats;
    q.stream = data && cpu_streams(e->hw, (double)(p->n * p->c * volume_of(q.g.out)) * (double)weft__dtype_size(dtype));
    find_spots(spots, d->ins, d->row, q.g.in[1], q.g.in[2]);
    find_spots(spots + d->ins, d->outs, d->row, q.g.out[1], q.g.out[2]);
    find_taps(&q.g, d, list);
    weft__parallel(e->ctx, d->parts * d->runs,
                   dtype == WEFT_DTYPE_F32   ? task_f32
                   : dtype == WEFT_DTYPE_F16 ? task_f16
                                             : task_bf16,
                   &q);
    if (weights) weft__parallel(e->ctx, d->runs, finish, &q);
    return WEFT_OK;
}

/* Columns, rows or planes of zeros between those of the tensor; before: the first. */
static int64_t gap_of(const dw_window *g, int axis, int64_t *before) {
    int64_t lo, hi;
    dw_reach(g, axis, 0, g->out[axis], &lo, &hi);
    *before = WEFT__MAX(0, -lo);
    return WEFT__MAX(*before, WEFT__MAX(0, hi - g->in[axis]));
}

static void cut(params *d, const dw_window *g) {
    int64_t before[3], gap[3];
    for (int a = 0; a < 3; a++) gap[a] = gap_of(g, a, &before[a]);
    d->row = WEFT__MAX(g->in[2] + gap[2], g->out[2]);
    d->plane = cpu_round_up(WEFT__MAX(g->in[1] + gap[1], g->out[1]) * d->row, 16);
    d->ins = cpu_ceil((g->in[1] - 1) * d->row + g->in[2], VF_LANES);
    d->outs = cpu_ceil((g->out[1] - 1) * d->row + g->out[2], VF_LANES);
    d->at = cpu_round_up(before[0] * d->plane + before[1] * d->row + before[2], 16);
    d->count = d->at + (WEFT__MAX(g->in[0], g->out[0]) + gap[0]) * d->plane + (gap[1] + 1) * d->row + gap[2];
    d->count = cpu_round_up(d->count + 3 * VF_LANES, 16);
}

/* In vectors of multiply-adds at the peak, measured on a Zen 4 core with data in its caches. */
static double cost(const weft_problem *p, const weft__hw *hw, const params *d, const dw_window *g) {
    const bool data = has_data(p->pass), weights = has_weights(p->pass), wide = VF_LANES >= 16;
    const bool threes = FLAT_SLID && p->kernel[2] == 3 && p->dilation[2] == 1;
    const int64_t held = p->kernel[0] * d->plane; /* by the taps of a plane: the nearest cache, or the next */
    const double taps = (double)taps_of(p), each = threes ? 1.35 : 2;
    const double convert = p->tensor[0].dtype == WEFT_DTYPE_F32 ? 0 : wide ? 3 : 5;
    const double lay = (wide ? 5 : 8) + convert, put = (wide ? 6 : 9) + convert;
    const double output = (data ? each * taps + put : 0) + (weights ? (wide ? 1.1 : 1.6) * each * taps + lay : 0);
    const double channel = output * (double)(d->outs * g->out[0]) + lay * (double)(d->ins * g->in[0]) + 80 + 3 * taps;
    const double sums = channel *
                            (held > 16384  ? 1.6
                             : held > 6144 ? 1.1
                                           : 1) *
                            (double)(p->n * p->c) +
                        (weights ? 14 * taps * (double)(d->parts * p->c) : 0);
    const double idle = WEFT__MAX(1, (double)hw->threads / (double)(p->n * p->c));
    const double alone = (weights ? 6000 : 2000) + 12 * (double)(d->ins + d->outs); /* ns on one thread */
    /* a large plane is copied before it is summed: memory waits meanwhile */
    const double waits = 0.5 + 1.5 * WEFT__MIN(1, (double)d->plane / 2560);
    const double peak = hw->gflops[WEFT__ISA_HERE] * hw->threads;
    return alone + 2 * VF_LANES * sums * idle / peak + waits * weft__bytes(p) / hw->gbs;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const char *why = dw_refusal(p, WEFT_LAYOUT_FIRST);
    if (why) return why;
    if (p->o != p->c) return "a channel multiplier: o differs from c";
    if (p->stride[0] * p->stride[1] * p->stride[2] != 1) return "stride is not 1";
    if (p->n < 1 || volume_of(p->out) < 1) return "no positions";
    const int64_t taps = taps_of(p);
    if (taps > MOST || volume_of(p->in) > MOST || volume_of(p->out) > MOST) return "planes larger than the caches";
    const bool data = has_data(p->pass), weights = has_weights(p->pass);
    const dw_window g = dw_window_of(p, is_up(p->pass));
    params *d = WEFT__PARAMS(params, out);
    cut(d, &g);
    if (d->count > MOST) return "planes larger than the caches";
    const int64_t want = WEFT__MIN(cpu_slots(p->n * p->c, weft__bytes(p)), WANTED);
    if (weights) {
        d->runs = WEFT__MIN(p->c, want), d->parts = WEFT__MIN(p->n, cpu_ceil(want, d->runs));
    } else {
        d->parts = WEFT__MIN(p->n, want), d->runs = WEFT__MIN(p->c, cpu_ceil(want, d->parts));
    }
    d->width = weights ? (taps + 1) * VF_LANES : 0;
    d->floats = d->count + 2 * cpu_round_up(taps, 16) + (weights ? d->outs * VF_LANES : 0);
    d->floats = cpu_round_up(d->floats + (data ? stage_floats(FLAT_OUTS * VF_LANES) : 0), 16);
    d->spots = (size_t)cpu_round_up((d->ins + d->outs) * (int64_t)sizeof(flat_spot), 64);
    d->list = (size_t)cpu_round_up(taps * (int64_t)sizeof(flat_tap), 64);
    const int64_t floats = d->parts * d->runs * d->floats + d->parts * p->c * d->width;
    out->workspace = d->spots + d->list + (size_t)floats * sizeof(float);
    out->ns = cost(p, hw, d, &g);
    return NULL;
}

DW_EVERY_PASS(flat);
