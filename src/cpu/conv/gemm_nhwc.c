/* Dense and grouped convolution and its data gradient, channels-last, as a matrix product that is never stored.
 * Math:      dst[q][o] = end(sum_k image[q][k] * weights[k][o]),  k = (tap, channel), q = a position of the batch
 * Blocking:  vectors along the output channels. A panel of packed weights, GEMM_NV vectors by a block of k, stays in
 *            the near caches while a strip of positions passes by; sums of several blocks wait in scratch. Positions
 *            are read where they are, a pointer for each position and tap, padding from a row of zeros. 16-bit data,
 *            and windows of few channels, are first copied to one row of f32 for each position (`copied`)
 * Traffic:   weights once a strip, data once a tap from the near caches
 * Roofline:  multiply-add peak
 * Assumes:   src and dst dense channels-last, weights dense channels-first
 * Try:       weft bench conv2d:fwd:f32:nhwc:n1c256h56w56:o256k3p1 */
#include "cpu/conv/gemm_view.h"

enum { KC = 256, WANTED = 24, LEAST_CHANNELS = 16, STRIP_MOST = 384, STRIP_LEAST = 48 };
enum { COPY_BYTES = CPU_CUT(384 << 10, 8 << 10) };

typedef struct params {
    int64_t block;  /* taps of a block of k, or products if copied */
    int64_t strip;  /* positions */
    int64_t parts;  /* of the panels of output channels of a group */
    int64_t strips; /* of each view */
    int64_t items;
    bool copied;
    size_t weights, bias, zeros, copy, pointers, scratch; /* bytes; copy, pointers, scratch: of one slot */
} params;
_Static_assert(sizeof(params) <= GEMM_PARAMS, "the kernels that use this one keep its parameters");

typedef struct job {
    const weft__exec *e;
    const params *d;
    bool fwd;
    const void *in;
    int in_dtype;
    const float *weights, *zeros;
    const gemm_factors *factors;
    const float *bias; /* of each channel; NULL: none */
    bool scaled;       /* results have factors: the bias is added before them */
    gemm_out out;
    gemm_end end;
    gemm_scratch scratch;
    int64_t slots;
} job;

typedef struct strip {
    int64_t group, v0, v1; /* panels of output channels of the group */
    int64_t first, count;  /* positions */
} strip;

/* ---------------------------------------------------------------- where positions are */
static void find_position(const gemm_view *v, int64_t q, int64_t at[4]) {
    for (int a = 2; a >= 0; q /= v->x[a].count, a--) at[a + 1] = q % v->x[a].count;
    at[0] = q;
}
static void next_position(const gemm_view *v, int64_t at[4]) {
    for (int a = 2; a >= 0; a--) {
        if (++at[a + 1] < v->x[a].count) return;
        at[a + 1] = 0;
    }
    at[0]++;
}

/* Element of the input that a tap reads at a position, channel 0 of the group; -1 in the padding. */
VF_INLINE int64_t input_at(const gemm_view *v, const int64_t at[4], const int64_t tap[3], int64_t group) {
    int64_t to = at[0];
    for (int a = 0; a < 3; a++) {
        const int64_t x = at[a + 1] * v->x[a].move + v->x[a].at + tap[a] * v->x[a].hop;
        if (x < 0 || x >= v->x[a].in) return -1;
        to = to * v->x[a].in + x;
    }
    return (to * v->groups + group) * v->ci;
}
VF_INLINE int64_t output_at(const gemm_view *v, const int64_t at[4], int64_t group) {
    int64_t to = at[0];
    for (int a = 0; a < 3; a++) to = to * v->x[a].out + v->x[a].first + at[a + 1] * v->x[a].step;
    return (to * v->groups + group) * (v->co / v->spread);
}
VF_INLINE void tap_of(const gemm_view *v, int64_t number, int64_t tap[3]) {
    for (int a = 2; a >= 0; number /= v->x[a].taps, a--) tap[a] = number % v->x[a].taps;
}

VF_INLINE void next_tap(const gemm_view *v, int64_t tap[3]) {
    for (int a = 2; a >= 0; a--) {
        if (++tap[a] < v->x[a].taps) return;
        tap[a] = 0;
    }
}

/* rows[tile][tap][position of the tile], as GEMM_ROWS wants them. */
static void find_rows(const job *q, const gemm_view *v, const strip *s, int64_t tap0, int64_t tap1,
                      const float **rows) {
    const int64_t tiles = gemm_split(s->count, GEMM_MR);
    int64_t at[4];
    find_position(v, s->first, at);
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t first = gemm_first(s->count, tiles, i), m = gemm_first(s->count, tiles, i + 1) - first;
        for (int64_t r = 0; r < m; r++, next_position(v, at)) {
            const float **to = rows + first * (tap1 - tap0) + r;
            int64_t tap[3];
            tap_of(v, tap0, tap);
            for (int64_t t = tap0; t < tap1; t++, to += m, next_tap(v, tap)) {
                const int64_t from = input_at(v, at, tap, s->group);
                *to = from < 0 ? q->zeros : (const float *)q->in + from;
            }
        }
    }
}

VF_INLINE void copy_run(float *to, const void *in, int64_t from, int64_t count, const int dtype) {
    int64_t j = 0;
    for (; j + VF_LANES <= count; j += VF_LANES) vf_store(to + j, vf_load_as(dtype, in, from + j));
    if (j < count) vf_store(to + j, vf_load_count_as(dtype, in, from + j, count - j));
}

/* One row of v->k products for each position; a vector of room behind the last. */
VF_INLINE void copy_rows(const job *q, const gemm_view *v, const strip *s, float *to, const int dtype) {
    const gemm_factor *f = &q->factors->in;
    int64_t at[4];
    find_position(v, s->first, at);
    int64_t tap[3] = {0}; /* begins anew by itself */
    for (int64_t i = 0; i < s->count; i++, next_position(v, at))
        for (int64_t t = 0; t < v->taps; t++, to += v->ci, next_tap(v, tap)) {
            const int64_t from = input_at(v, at, tap, s->group);
            if (from < 0) {
                memset(to, 0, (size_t)v->ci * sizeof(float));
                continue;
            }
            copy_run(to, q->in, from, v->ci, dtype);
            if (!f->at) continue;
            const int64_t pixel = from / (v->groups * v->ci) - at[0] * v->in_plane;
            const vf factor = vf_set1(f->at[at[0] * f->image + pixel]);
            for (int64_t j = 0; j < v->ci; j += VF_LANES)
                vf_store(to + j, gemm_factor_apply(vf_load(to + j), factor, f->selects));
        }
}

static void copy_strip(const job *q, const gemm_view *v, const strip *s, float *to) {
    if (q->in_dtype == WEFT_DTYPE_F32)
        copy_rows(q, v, s, to, WEFT_DTYPE_F32);
    else if (q->in_dtype == WEFT_DTYPE_BF16)
        copy_rows(q, v, s, to, WEFT_DTYPE_BF16);
    else
        copy_rows(q, v, s, to, WEFT_DTYPE_F16);
}

/* ---------------------------------------------------------------- one strip */
typedef struct columns { /* a panel of output channels */
    int64_t first, count, vectors;
    const float *weights;
} columns;

static columns columns_of(const job *q, const gemm_view *v, int64_t group, int64_t i) {
    const int64_t vectors = cpu_ceil(v->co, VF_LANES), panels = gemm_split(vectors, GEMM_NV);
    const int64_t a = gemm_first(vectors, panels, i), b = gemm_first(vectors, panels, i + 1);
    const int64_t before = v->first_tap * v->ci * v->groups * vectors + (group * vectors + a) * v->k;
    return (columns){a * VF_LANES, WEFT__MIN(v->co, b * VF_LANES) - a * VF_LANES, b - a,
                     q->weights + before * VF_LANES};
}

/* The results of one position: a run of channels, one for each tap if they are spread. */
static void put_row(const job *q, const gemm_view *v, const strip *s, const columns *c, const int64_t at[4],
                    float *values) {
    const int64_t channels = v->co / v->spread, first = output_at(v, at, s->group), width = v->groups * channels;
    for (int64_t j = c->first, count; j < c->first + c->count; j += count, values += count) {
        const int64_t tap = j / channels, channel = s->group * channels + j % channels;
        const int64_t to = first + gemm_spread_at(q->e->p, v, tap) * width;
        count = WEFT__MIN(c->first + c->count - j, channels - j % channels);
        if (q->scaled)
            gemm_scale_channels(q->factors, at[0], to / width - at[0] * v->out_plane, values, count,
                                q->bias ? q->bias + channel : NULL);
        gemm_put_run(&q->out, to + j % channels, 1, values, count, channel, true);
    }
}

static void finish_tile(const job *q, const gemm_view *v, const strip *s, const columns *c, gemm_tile *t, int64_t first,
                        int64_t m) {
    const bool direct = q->out.dtype == WEFT_DTYPE_F32 && !q->out.acc && !q->scaled && v->x[0].step == 1 &&
                        v->x[1].step == 1 && v->x[2].step == 1;
    float tile[GEMM_MR * GEMM_NR + VF_LANES];
    int64_t at[4];
    gemm_end end = q->end;
    find_position(v, s->first + first, at);
    if (direct) {
        t->c = (float *)q->out.dst + output_at(v, at, s->group) + c->first;
        t->ldc = v->groups * v->co;
        if (end.col_bias) end.col_bias += s->group * v->co + c->first;
        t->end = &end;
    } else {
        t->c = tile, t->ldc = GEMM_NR, t->end = NULL;
    }
    t->tail = (int)(c->count - (c->vectors - 1) * VF_LANES);
    gemm_run(t, GEMM_ROWS, m, c->vectors);
    for (int64_t r = 0; r < m && !direct; r++, next_position(v, at)) put_row(q, v, s, c, at, tile + r * GEMM_NR);
}

/* The sums of block [k0, k1) of one panel of output channels, for every position of the strip. */
static void run_block(const job *q, const gemm_view *v, const strip *s, const columns *c, int64_t k0, int64_t k1,
                      const float *copy, const float *const *rows, float *sums) {
    const int64_t tiles = gemm_split(s->count, GEMM_MR), taps = q->d->copied ? 1 : (k1 - k0) / v->ci;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t first = gemm_first(s->count, tiles, i), m = gemm_first(s->count, tiles, i + 1) - first;
        const float *row[GEMM_MR];
        float *sum = sums + i * GEMM_MR * GEMM_NR;
        for (int64_t r = 0; r < m && q->d->copied; r++) row[r] = copy + (first + r) * v->k + k0;
        gemm_tile t = {.k = q->d->copied ? k1 - k0 : v->ci,
                       .segments = taps,
                       .rows = q->d->copied ? row : rows + first * taps,
                       .b = c->weights + k0 * c->vectors * VF_LANES,
                       .ldb = c->vectors * VF_LANES,
                       .from = k0 ? sum : NULL,
                       .ld_from = GEMM_NR};
        if (k1 < v->k) {
            t.c = sum, t.ldc = GEMM_NR, t.tail = VF_LANES;
            gemm_run(&t, GEMM_ROWS, m, c->vectors);
        } else {
            finish_tile(q, v, s, c, &t, first, m);
        }
    }
}

static void run_strip(const job *q, const gemm_view *v, const strip *s, char *scratch) {
    const params *d = q->d;
    float *copy = (float *)(void *)scratch, *sums = (float *)(void *)(scratch + d->copy + d->pointers);
    const float **rows = (const float **)(void *)(scratch + d->copy);
    const int64_t block = d->copied ? d->block : d->block * v->ci;
    if (d->copied) copy_strip(q, v, s, copy);
    /* the pointers of all taps, block by block; a block's are s->count * its taps */
    for (int64_t t = 0; t < v->taps && !d->copied; t += d->block)
        find_rows(q, v, s, t, WEFT__MIN(v->taps, t + d->block), rows + s->count * t);
    for (int64_t i = s->v0; i < s->v1; i++) {
        const columns c = columns_of(q, v, s->group, i);
        for (int64_t k0 = 0; k0 == 0 || k0 < v->k; k0 += block)
            run_block(q, v, s, &c, k0, WEFT__MIN(v->k, k0 + block), copy,
                      (const float *const *)rows + (d->copied ? 0 : s->count * (k0 / v->ci)), sums);
    }
}

/* ---------------------------------------------------------------- driver */
static int64_t panels_of(const gemm_view *v) { return gemm_split(cpu_ceil(v->co, VF_LANES), GEMM_NV); }

/* The views of a strip follow each other: gemm_nchw.h has the reason. A view of few positions may have an empty one. */
static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const int mine = gemm_take(&q->scratch);
    const int64_t views = gemm_views(q->e->p), begin = cpu_first(d->items, q->slots, slot);
    gemm_view v = gemm_view_of(q->e->p, q->fwd, begin % views);
    for (int64_t i = begin; i < cpu_first(d->items, q->slots, slot + 1); i++) {
        if (i > begin && views > 1) v = gemm_view_of(q->e->p, q->fwd, i % views);
        const int64_t item = i / views, at = item % d->strips, part = item / d->strips % d->parts;
        strip s = {.group = item / d->strips / d->parts,
                   .v0 = gemm_first(panels_of(&v), d->parts, part),
                   .v1 = gemm_first(panels_of(&v), d->parts, part + 1),
                   .first = gemm_first(v.pixels, d->strips, at)};
        s.count = gemm_first(v.pixels, d->strips, at + 1) - s.first;
        if (s.count) run_strip(q, &v, &s, q->scratch.base + (size_t)mine * q->scratch.bytes);
    }
    gemm_give(&q->scratch, mine);
}

typedef struct pack_job {
    const weft_problem *p;
    bool fwd;
    const void *weights;
    int dtype;
    float *to;
} pack_job;

enum { PACK_CHANNELS = 16 };
/* A block of reduced channels at a time, so that the taps of a channel, which lie together, are read from the nearest
 * cache. Columns past the last channel are zeros. */
VF_INLINE void pack_columns(const pack_job *q, const gemm_view *v, int64_t group, int64_t first, int64_t width,
                            float *to, const int dtype) {
    const int64_t out = gemm_weight_out(q->p, v, q->fwd), in = gemm_weight_in(q->p, v, q->fwd);
    const int64_t count = WEFT__MIN(width, v->co - first), channels = v->co / v->spread;
    int64_t column[GEMM_NR];
    for (int64_t j = 0; j < count; j++)
        column[j] = v->spread == 1 ? (first + j) * out : (first + j) % channels * v->spread + (first + j) / channels;
    for (int64_t c0 = 0; c0 < v->ci; c0 += PACK_CHANNELS)
        for (int64_t tap = 0; tap < v->taps; tap++) {
            const int64_t at = gemm_weight_at(q->p, v, group, tap);
            for (int64_t c = c0; c < WEFT__MIN(c0 + PACK_CHANNELS, v->ci); c++) {
                float *row = to + (tap * v->ci + c) * width;
                for (int64_t j = 0; j < count; j++) row[j] = gemm_load(dtype, q->weights, at + c * in + column[j]);
                for (int64_t j = count; j < width; j++) row[j] = 0;
            }
        }
}

/* Forward the weights of an output are one row, [channel][tap]: blocks of VF_LANES outputs and products are transposed.
 */
VF_INLINE void turn_columns(const pack_job *q, const gemm_view *v, int64_t group, int64_t first, int64_t width,
                            float *to, const int dtype) {
    for (int64_t j = 0; j < width; j += VF_LANES)
        for (int64_t k = 0, tap = 0, c = 0; k < v->k; k += VF_LANES) {
            vf block[VF_LANES];
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                const int64_t from = (group * v->co + first + j + l) * v->k + k;
                block[l] = first + j + l < v->co ? vf_load_count_as(dtype, q->weights, from, v->k - k) : vf_zero();
            }
            vf_transpose(block);
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                if (k + l >= v->k) break;
                vf_store(to + (tap * v->ci + c) * width + j, block[l]);
                if (++tap == v->taps) tap = 0, c++;
            }
        }
}

static void pack_panel_of(const pack_job *q, const gemm_view *v, int64_t group, const columns *c, float *to) {
    const int64_t width = c->vectors * VF_LANES;
    if (q->fwd)
        GEMM_BY_DTYPE(q->dtype, turn_columns, q, v, group, c->first, width, to);
    else if (q->dtype == WEFT_DTYPE_F32)
        pack_columns(q, v, group, c->first, width, to, WEFT_DTYPE_F32);
    else
        pack_columns(q, v, group, c->first, width, to, q->dtype);
}

/* One slot: one panel of output channels of one group, for every view. */
static void pack_panel(void *arg, int64_t slot) {
    const pack_job *q = arg;
    for (int64_t number = 0; number < gemm_views(q->p); number++) {
        const gemm_view v = gemm_view_of(q->p, q->fwd, number);
        const job to = {.weights = q->to};
        const columns c = columns_of(&to, &v, slot / panels_of(&v), slot % panels_of(&v));
        float *at = q->to + (c.weights - q->to);
        pack_panel_of(q, &v, slot / panels_of(&v), &c, at);
    }
}

static void pack_into(const weft__exec *e, const void *weights, void *packed) {
    pack_job q = {e->p, e->p->pass == WEFT_PASS_FWD, weights, weft__tensor(e->p, WEFT_ROLE_WEIGHTS)->dtype, packed};
    const gemm_view v = gemm_view_of(e->p, q.fwd, 0);
    weft__parallel(e->ctx, v.groups * panels_of(&v), pack_panel, &q);
}
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    pack_into(e, weights, packed);
    return WEFT_OK;
}

weft_status WEFT__ISA_NAME(weft__gemm_nhwc)(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    job q = {.e = e, .d = d, .fwd = p->pass == WEFT_PASS_FWD, .slots = WEFT__MIN(d->items, GEMM_SLOTS)};
    char *room = e->workspace;
    q.weights = e->packed;
    if (d->weights) {
        if (!gemm_all_finite(weft__tensor(p, WEFT_ROLE_WEIGHTS), e->ptr[WEFT_ROLE_WEIGHTS])) {
            gemm_run_reference(e);
            return WEFT_OK;
        }
        pack_into(e, e->ptr[WEFT_ROLE_WEIGHTS], room);
        q.weights = (const float *)(const void *)room;
        room += d->weights;
    }
    const int in = q.fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST, out = q.fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC;
    gemm_clear_rest(e);
    q.in = e->ptr[in], q.in_dtype = weft__tensor(p, in)->dtype;
    q.out = gemm_out_of(e, out, (float *)(void *)room);
    q.factors = factors, q.scaled = factors->ratio.at || factors->out.at;
    q.bias = q.out.bias;
    if (q.scaled) q.out.bias = NULL;
    q.end = (gemm_end){NULL, q.out.bias, q.out.lo, q.out.hi};
    room += d->bias;
    memset(room, 0, d->zeros);
    q.zeros = (const float *)(const void *)room;
    room += d->zeros;
    q.scratch.base = room, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__gemm_nhwc)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const char *reason = gemm_refusal(p, WEFT_LAYOUT_LAST);
    if (reason) return reason;
    if (gemm_views(p) > GEMM_VIEWS) return "the stride has too many residues";
    params *d = WEFT__PARAMS(params, out);
    const gemm_view v = gemm_view_of(p, fwd, 0);
    const int64_t window = gemm_window(p) / v.spread;
    int64_t longest = 1, taps = 1;
    for (int64_t i = 0; i < gemm_views(p); i++) {
        longest = WEFT__MAX(longest, gemm_view_of(p, fwd, i).k);
        taps = WEFT__MAX(taps, gemm_view_of(p, fwd, i).taps);
    }
    const bool f32 = weft__tensor(p, fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST)->dtype == WEFT_DTYPE_F32;
    d->copied = p->op != WEFT_OP_CONV || !f32 || (window > 1 && v.ci < LEAST_CHANNELS);
    const int64_t blocks = cpu_ceil(longest, KC);
    d->block = d->copied ? cpu_ceil(longest, blocks) : cpu_ceil(taps, WEFT__MIN(blocks, taps));
    /* positions: enough for the weights to pass seldom, few enough for the caches and for every core */
    int64_t strip = d->copied ? COPY_BYTES / (longest * 4) : STRIP_MOST;
    strip = WEFT__MIN(strip, v.pixels * p->groups * gemm_views(p) / WANTED);
    strip = WEFT__MAX(WEFT__MIN(strip, STRIP_MOST), STRIP_LEAST);
    d->strip = cpu_round_up(strip, GEMM_MR);
    d->parts = 1;
    d->strips = cpu_ceil(v.pixels, d->strip); /* the first view has the most positions */
    const int64_t items = p->groups * gemm_views(p) * d->strips;
    if (items && items < WANTED) d->parts = WEFT__MIN(cpu_ceil(WANTED, items), panels_of(&v));
    d->items = items * d->parts;
    const int64_t lanes = cpu_round_up(v.co, VF_LANES);
    const size_t packed = (size_t)(v.ci * lanes * p->groups * window) * sizeof(float);
    const bool strict = p->math == WEFT_MATH_STRICT && (!fwd || gemm_is_padded(p));
    d->weights = strict ? (size_t)cpu_round_up((int64_t)packed, 64) : 0;
    out->packed = strict ? 0 : packed;
    d->bias = gemm_bias_bytes(p, v.co / v.spread * v.groups);
    d->zeros = (size_t)cpu_round_up(v.ci, 16) * sizeof(float);
    d->copy = d->copied ? (size_t)cpu_round_up(d->strip * longest + VF_LANES, 16) * sizeof(float) : 0;
    d->pointers = d->copied ? 0 : (size_t)cpu_round_up(d->strip * taps, 8) * sizeof(float *);
    d->scratch = d->copy + d->pointers;
    if (cpu_ceil(longest, d->copied ? d->block : d->block * v.ci) > 1)
        d->scratch += (size_t)(gemm_split(d->strip, GEMM_MR) * GEMM_MR * GEMM_NR) * sizeof(float);
    out->workspace = d->weights + d->bias + d->zeros + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    /* multiply-adds of whole vectors, slower in narrow tiles, where each broadcast serves one or two, above all with
     * few channels in a tap; the copy: as many as 4 of a vector, and 200 for each position and tap; and 10 ns for each
     * position of a panel */
    const double positions = (double)p->n * (double)(fwd ? v.pixels / p->n : p->out[0] * p->out[1] * p->out[2]);
    const double copy = d->copied ? (double)d->parts * (200 + 4 * (double)v.ci) : 0;
    const double narrow = lanes == VF_LANES ? 2 : lanes == 2 * VF_LANES ? (v.ci > 16 ? 1.15 : 1.5) : 1;
    const double sums =
        2 * (narrow * (double)lanes * (double)v.ci + copy) * (double)window * (double)p->groups * positions;
    const double pack = GEMM_PACK_NS * (double)(packed / sizeof(float)) / (hw->threads * cpu_speed(hw));
    const double put = 10 * (double)(p->groups * panels_of(&v) * gemm_views(p) * v.pixels) / hw->threads;
    out->ns = cpu_cost(hw, weft__bytes(p), cpu_uneven(hw, d->items) * sums, GEMM_SHARE) + pack + put;
    return NULL;
}

WEFT__KERNEL(conv_gemm_nhwc) = {
    .name = WEFT__NAME("float_conv_nhwc_gemm"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD) | WEFT__PASS_SET(BWD_DATA),
    .steps = GEMM_STEPS,
    .dtypes = GEMM_DTYPES,
    .exact = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};
