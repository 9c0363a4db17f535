/* Dense and grouped convolution and its data gradient, channels-first, as a matrix product that is never stored.
 * Math:      dst[o][q] = end(sum_k weights[o][k] * image[k][q]),  k = (tap, channel), q = a position of the batch
 * Blocking:  a strip of positions, all images end to end, is copied into panels of GEMM_NV vectors for up to KC of
 *            k, which stay in the second-level cache while the packed weights pass by once. Padding becomes zeros on
 *            that way, 16-bit data becomes f32, strides are taken out. Sums of more than KC products wait in
 *            scratch. 1x1 windows are the same with rows of whole images; bwd_data has one view for each residue of
 *            the stride, and one for all where kernel = stride
 * In place:  of few positions (IN_PLACE) f32 weights are read where they lie, in rows along k = (channel, tap): a copy
 *            of them would cost more than the products. Strips are filled in that order then
 * Traffic:   weights from the last-level cache once a strip, data once a tap from there or nearer
 * Roofline:  multiply-add peak; the copy costs about 3 cycles a vector against M multiply-adds
 * Pairs:     the file that includes this says by GEMM_PAIRS whether products are of f32, or of bf16 by dot products of
 *            pairs of channels: then a value of panels and packed weights is a pair, and an odd channel has a zero
 * Assumes:   src and dst dense channels-first, weights dense
 * Try:       weft bench conv2d:fwd:f32:nchw:n1c256h56w56:o256k3p1 */
#ifndef WEFT_CPU_CONV_GEMM_NCHW_H
#define WEFT_CPU_CONV_GEMM_NCHW_H

#include "cpu/conv/gemm_view.h"

enum { KC = 576, STRIP_BYTES = CPU_CUT(288 << 10, 8 << 10), PANELS = 16, WANTED = 16, LEAST_ROWS = 128 };
enum { IN_PLACE = 1024, IN_PLACE_TAPS = 25 }; /* positions, and taps, at most */

typedef struct params {
    int64_t kc, strip; /* products of a block; vectors of a strip, at most */
    int64_t strips;    /* of each view */
    int64_t parts;     /* of the output channels of a group */
    int64_t items;
    bool in_place;                                 /* weights are read where they lie */
    size_t weights, bias, panels, pieces, scratch; /* bytes: packed weights, 0: they come packed; bias; of one slot */
} params;
_Static_assert(sizeof(params) <= GEMM_PARAMS, "the kernels that use this one keep its parameters");

typedef struct job {
    const weft__exec *e;
    const params *d;
    bool fwd;
    const void *in;
    int in_dtype;
    const float *weights;
    const gemm_factors *factors;
    const float *bias; /* of each channel; NULL: none */
    bool scaled;       /* results have factors: the bias is added before them */
    gemm_out out;
    gemm_end end;
    gemm_scratch scratch;
    int64_t slots;
} job;

/* An odd number of few channels leaves much of their pairs empty: taps along a row are paired instead, where both are
 * in the image for every position. */
static gemm_view view_of(const weft_problem *p, bool fwd, int64_t i) {
    gemm_view v = gemm_view_of(p, fwd, i);
    gemm_axis *x = &v.x[2];
    if (!GEMM_PAIRS || !fwd || v.ci % 2 == 0 || v.ci > 16 || x->taps % 2 || gemm_is_padded(p)) return v;
    v.across = x->hop;
    x->taps /= 2, x->hop *= 2, x->tap_step *= 2;
    v.taps /= 2, v.k /= 2;
    return v;
}

/* Values of panels and packed weights for one tap, and for all. */
VF_INLINE int64_t depth_of(const gemm_view *v) { return GEMM_PAIRS && !v->across ? cpu_ceil(v->ci, 2) : v->ci; }
VF_INLINE int64_t products_of(const gemm_view *v) { return v->taps * depth_of(v); }

/* Panels of a strip: panel j has `k` rows of its own width and begins at gemm_panel(). */
typedef struct strip {
    int64_t group, m0, m1;         /* panels of output channels of the group */
    int64_t first, count, vectors; /* positions */
    int64_t np;                    /* panels */
    int64_t k;                     /* rows of a panel */
    float *panels;
    struct piece *pieces; /* room for a lane and one more of each vector, for one tap or for all */
} strip;

VF_INLINE int64_t panel_first(const strip *s, int64_t j) { return gemm_first(s->vectors, s->np, j) * VF_LANES; }
VF_INLINE int64_t panel_width(const strip *s, int64_t j) { return panel_first(s, j + 1) - panel_first(s, j); }
/* With room for a vector behind each: rows are written with excess. */
VF_INLINE float *panel_at(const strip *s, int64_t j) { return s->panels + panel_first(s, j) * s->k + j * VF_LANES; }
VF_INLINE int64_t strip_floats(int64_t vectors, int64_t k) {
    return cpu_round_up(vectors * VF_LANES * k + cpu_ceil(vectors, GEMM_NV) * VF_LANES, 16);
}

VF_INLINE int64_t pieces_of(int64_t vectors) { return vectors * (VF_LANES + 1); }

/* ---------------------------------------------------------------- positions to panels */
typedef struct run { /* consecutive positions of one row */
    int64_t n, at[3];
    int lane, count;
} run;
typedef struct piece {    /* what a tap reads of at most one vector of it: lanes lo <= i < hi are inside the image */
    int64_t from, factor; /* in the image, and in the plane of factors */
    float *to;            /* in row 0 of its panel */
    int64_t width;
    int lo, hi;
    vmask inside; /* also: what a factor selects */
} piece;

static run find_run(const gemm_view *v, int64_t q, int64_t end, int64_t first) {
    run r = {.lane = (int)(q - first)};
    int64_t rest = q;
    for (int a = 2; a >= 0; rest /= v->x[a].count, a--) r.at[a] = rest % v->x[a].count;
    r.n = rest;
    r.count = (int)WEFT__MIN(v->x[2].count - r.at[2], end - q);
    return r;
}

/* What tap number `tap` reads of the strip in the image of channel 0 of the group, a vector or less at a time. */
static int find_pieces(const gemm_view *v, const strip *strip, int64_t tap, int64_t factors, piece *pieces) {
    const gemm_axis *x = &v->x[2];
    const int64_t t = tap % x->taps, s = tap / x->taps % v->x[1].taps, r = tap / x->taps / v->x[1].taps;
    int found = 0;
    for (int64_t j = 0; j < strip->np; j++) {
        const int64_t first = strip->first + panel_first(strip, j), width = panel_width(strip, j);
        const int64_t end = WEFT__MIN(first + width, strip->first + strip->count);
        for (int64_t q = first; q < end;) {
            const run u = find_run(v, q, end, first);
            const int64_t z = u.at[0] * v->x[0].move + v->x[0].at + r * v->x[0].hop;
            const int64_t y = u.at[1] * v->x[1].move + v->x[1].at + s * v->x[1].hop;
            const bool outside = z < 0 || z >= v->x[0].in || y < 0 || y >= v->x[1].in;
            const int64_t begin = u.at[2] * x->move + x->at + t * x->hop;
            const int64_t lo = begin < 0 ? cpu_ceil(-begin, x->move) : 0;
            const int64_t hi = outside || begin >= x->in ? 0 : WEFT__MIN(u.count, (x->in - 1 - begin) / x->move + 1);
            const int64_t image = (u.n * v->groups + strip->group) * v->ci * v->in_plane;
            const int64_t row = (z * v->x[1].in + y) * x->in + begin;
            for (int i = 0; i < u.count; i += VF_LANES, found++) {
                piece *p = &pieces[found];
                p->to = panel_at(strip, j) + u.lane + i, p->width = width;
                p->lo = (int)WEFT__MAX(WEFT__MIN(lo - i, VF_LANES), 0);
                p->hi = (int)WEFT__MAX(WEFT__MIN(hi - i, VF_LANES), 0);
                p->inside = vm_range(p->lo, p->hi);
                p->from = p->lo < p->hi ? image + row + i * x->move : 0;
                p->factor = p->lo < p->hi ? u.n * factors + row + i * x->move : 0;
            }
            q += u.count;
        }
    }
    return found;
}

VF_INLINE vf read_piece(const piece *p, const void *in, int64_t from, int64_t move, const int dtype) {
    if (move == 1) return vf_load_in_as(dtype, p->inside, in, from);
    return gemm_load_every(in, from, move, p->lo, p->hi, dtype);
}

/* Row k of every panel: of a channel, or of a pair. Whole vectors are written: the excess is written again by what
 * follows. */
VF_INLINE void fill_row(const job *q, const gemm_view *v, int64_t c, int64_t k, const piece *pieces, int npieces,
                        int64_t move, const int dtype, const bool factor) {
    const gemm_factor *f = &q->factors->in;
    const int64_t channel = (GEMM_PAIRS && !v->across ? 2 * c : c) * v->in_plane;
    const int64_t second = v->across ? v->across : v->in_plane;
    const bool two = v->across || 2 * c + 1 < v->ci;
    for (int i = 0; i < npieces; i++) {
        const piece *p = &pieces[i];
        vf value = read_piece(p, q->in, p->from + channel, move, dtype);
        if (factor && !f->selects) value = vf_mul(value, read_piece(p, f->at, p->factor, move, WEFT_DTYPE_F32));
        if (factor && f->selects && move != 1) value = vf_select(p->inside, value, vf_zero());
        if (GEMM_PAIRS)
            value = gemm_pair(value, two ? read_piece(p, q->in, p->from + channel + second, move, dtype) : vf_zero());
        vf_store(p->to + k * p->width, value);
    }
}

/* The pieces of a tap, without the positions that a factor leaves out: found once for all channels. */
VF_INLINE int select_pieces(const job *q, const gemm_view *v, const strip *s, int64_t tap, piece *pieces,
                            const bool factor) {
    const gemm_factor *f = &q->factors->in;
    const int found = find_pieces(v, s, tap, f->image, pieces);
    for (int i = 0; i < found && factor && f->selects; i++) {
        const vf kept = read_piece(&pieces[i], f->at, pieces[i].factor, v->x[2].move, WEFT_DTYPE_F32);
        pieces[i].inside = vm_andnot(pieces[i].inside, vf_eq(kept, vf_zero()));
    }
    return found;
}

/* Products k0 .. k1 of a strip into its panels, in the order tap, channel, or channel, tap. */
VF_INLINE void fill(const job *q, const gemm_view *v, const strip *s, int64_t k0, int64_t k1, const int dtype,
                    const bool factor) {
    const int64_t last = s->np - 1, width = panel_width(s, last), move = v->x[2].move;
    const bool ragged = s->count < s->vectors * VF_LANES, in_place = q->d->in_place;
    const int64_t depth = depth_of(v);
    int64_t tap = in_place ? k0 % v->taps : k0 / depth, c = in_place ? k0 / v->taps : k0 % depth;
    int npieces = 0;
    for (int64_t t = 0; t < v->taps && in_place; t++)
        npieces = select_pieces(q, v, s, t, s->pieces + t * pieces_of(s->vectors), factor);
    for (int64_t row = 0; row < k1 - k0; row++) {
        const piece *pieces = in_place ? s->pieces + tap * pieces_of(s->vectors) : s->pieces;
        if (!in_place && (row == 0 || c == 0)) npieces = select_pieces(q, v, s, tap, s->pieces, factor);
        if (ragged) vf_store(panel_at(s, last) + (row + 1) * width - VF_LANES, vf_zero());
        if (move == 1)
            fill_row(q, v, c, row, pieces, npieces, 1, dtype, factor);
        else if (move == 2)
            fill_row(q, v, c, row, pieces, npieces, 2, dtype, factor);
        else
            fill_row(q, v, c, row, pieces, npieces, move, dtype, factor);
        if (in_place && ++tap == v->taps) tap = 0, c++;
        if (!in_place && ++c == depth) c = 0, tap++;
    }
}

static void fill_strip(const job *q, const gemm_view *v, const strip *s, int64_t k0, int64_t k1) {
    const bool factor = q->factors->in.at != NULL;
    if (GEMM_PAIRS)
        fill(q, v, s, k0, k1, WEFT_DTYPE_BF16, false);
    else if (q->in_dtype == WEFT_DTYPE_F32 && !factor)
        fill(q, v, s, k0, k1, WEFT_DTYPE_F32, false);
    else if (q->in_dtype == WEFT_DTYPE_F32)
        fill(q, v, s, k0, k1, WEFT_DTYPE_F32, true);
    else if (q->in_dtype == WEFT_DTYPE_BF16)
        fill(q, v, s, k0, k1, WEFT_DTYPE_BF16, factor);
    else
        fill(q, v, s, k0, k1, WEFT_DTYPE_F16, factor);
}

/* ---------------------------------------------------------------- one strip */
/* A tile whose positions are not one run of f32, as it is, through a tile in the nearest cache. */
static void put_tile(const job *q, const gemm_view *v, const strip *s, int64_t m, int64_t rows, int64_t first,
                     int64_t count, float *tile) {
    for (int64_t p = first; p < first + count;) {
        const run u = find_run(v, p, first + count, first);
        int64_t at = 0;
        for (int a = 0; a < 3; a++) at = at * v->x[a].out + v->x[a].first + u.at[a] * v->x[a].step;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t row = s->group * v->co + m + r, channel = row / v->spread, step = v->x[2].step;
            const int64_t to = at + gemm_spread_at(q->e->p, v, row % v->spread);
            float *values = tile + r * GEMM_NR + u.lane;
            if (q->scaled) gemm_scale(q->factors, u.n, to, step, values, u.count, q->bias ? q->bias[channel] : 0);
            gemm_put_run(&q->out, (u.n * v->groups * v->co / v->spread + channel) * v->out_plane + to, step, values,
                         u.count, channel, false);
        }
        p += u.count;
    }
}

/* Rows of weights in panels, or where they lie. */
static void multiply(const job *q, gemm_tile *t, int64_t rows, int64_t vectors) {
    const float *lines[GEMM_MR];
    if (GEMM_PAIRS || !q->d->in_place) {
        gemm_multiply(t, rows, vectors);
        return;
    }
    for (int64_t i = 0; i < rows; i++) lines[i] = t->a + i * t->lda;
    t->rows = lines, t->segments = 1;
    gemm_run(t, GEMM_ROWS, rows, vectors);
}

static void run_tile(const job *q, const gemm_view *v, const strip *s, gemm_tile *t, int64_t m, int64_t rows,
                     int64_t first, int64_t count, int64_t vectors) {
    const int64_t image = v->pixels / v->n, n = first / image;
    const bool direct = q->out.dtype == WEFT_DTYPE_F32 && !q->out.acc && !q->scaled &&
                        first + count <= (n + 1) * image && v->x[0].step == 1 && v->x[1].step == 1 && v->x[2].step == 1;
    float tile[GEMM_MR * GEMM_NR];
    gemm_end end = q->end;
    t->tail = (int)(count - (vectors - 1) * VF_LANES);
    if (direct) {
        t->c = (float *)q->out.dst + ((n * v->groups + s->group) * v->co + m) * v->out_plane + first - n * image;
        t->ldc = v->out_plane;
        if (end.row_bias) end.row_bias += s->group * v->co + m;
        t->end = &end;
    } else {
        t->c = tile, t->ldc = GEMM_NR, t->end = NULL;
    }
    multiply(q, t, rows, vectors);
    if (!direct) put_tile(q, v, s, m, rows, first, count, tile);
}

static void run_strip(const job *q, const gemm_view *v, const strip *s, float *sums) {
    const int64_t mp = gemm_split(v->co, GEMM_MR), products = products_of(v);
    const float *weights = q->weights + (v->first_tap * depth_of(v) * v->groups + s->group * products) * v->co;
    for (int64_t k0 = 0; k0 == 0 || k0 < products; k0 += q->d->kc) {
        const int64_t k1 = WEFT__MIN(products, k0 + q->d->kc);
        fill_strip(q, v, s, k0, k1);
        for (int64_t i = s->m0; i < s->m1; i++) {
            const int64_t m = gemm_first(v->co, mp, i), rows = gemm_first(v->co, mp, i + 1) - m;
            for (int64_t j = 0; j < s->np; j++) {
                const int64_t first = panel_first(s, j), width = panel_width(s, j);
                float *sum = sums + ((i - s->m0) * s->np + j) * GEMM_MR * GEMM_NR;
                gemm_tile t = {.k = k1 - k0,
                               .a = weights + m * products + (q->d->in_place ? k0 : k0 * rows),
                               .lda = q->d->in_place ? products : rows,
                               .from = k0 ? sum : NULL,
                               .ld_from = GEMM_NR,
                               .b = panel_at(s, j),
                               .ldb = width};
                if (k1 < products) {
                    t.c = sum, t.ldc = GEMM_NR, t.tail = VF_LANES;
                    multiply(q, &t, rows, width / VF_LANES);
                } else {
                    run_tile(q, v, s, &t, m, rows, s->first + first, WEFT__MIN(width, s->count - first),
                             width / VF_LANES);
                }
            }
        }
    }
}

/* ---------------------------------------------------------------- driver */
/* Strip number i of the view, in the order group, part, position: of few positions it may be empty. */
static strip strip_of(const params *d, const gemm_view *v, int64_t i) {
    const int64_t at = i % d->strips, part = i / d->strips % d->parts;
    const int64_t vectors = cpu_ceil(v->pixels, VF_LANES), mp = gemm_split(v->co, GEMM_MR);
    const int64_t begin = gemm_first(vectors, d->strips, at), end = gemm_first(vectors, d->strips, at + 1);
    strip s = {.group = i / d->strips / d->parts,
               .m0 = gemm_first(mp, d->parts, part),
               .m1 = gemm_first(mp, d->parts, part + 1),
               .first = begin * VF_LANES,
               .vectors = end - begin,
               .k = d->kc};
    s.count = WEFT__MIN(v->pixels, end * VF_LANES) - s.first;
    s.np = gemm_split(s.vectors, GEMM_NV);
    return s;
}

/* The views of a strip follow each other: they write between each other's elements, and threads that do so at the same
 * time take the lines of the cache from each other. */
static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const int mine = gemm_take(&q->scratch);
    char *scratch = q->scratch.base + (size_t)mine * q->scratch.bytes;
    const int64_t views = gemm_views(q->e->p), begin = cpu_first(d->items, q->slots, slot);
    gemm_view v = view_of(q->e->p, q->fwd, begin % views);
    for (int64_t i = begin; i < cpu_first(d->items, q->slots, slot + 1); i++) {
        if (i > begin && views > 1) v = view_of(q->e->p, q->fwd, i % views);
        strip s = strip_of(d, &v, i / views);
        s.panels = (float *)(void *)scratch;
        s.pieces = (piece *)(void *)(scratch + d->panels);
        if (s.vectors) run_strip(q, &v, &s, (float *)(void *)(scratch + d->panels + d->pieces));
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

/* Two elements of bf16 in the place of one float; the second 0 if it is nowhere. */
VF_INLINE float pair_of(const void *in, int64_t first, int64_t second) {
    const uint16_t *h = in;
    const uint32_t bits = h[first] | (uint32_t)(second < 0 ? 0 : h[second]) << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* A block of reduced channels at a time, so that the taps of a channel, which lie together, are read from the nearest
 * cache. */
enum { PACK_CHANNELS = 16 };
VF_INLINE void pack_rows(const pack_job *q, const gemm_view *v, int64_t group, int64_t m, int64_t rows, float *to,
                         const int dtype) {
    const int64_t out = gemm_weight_out(q->p, v, q->fwd), in = gemm_weight_in(q->p, v, q->fwd);
    const int64_t depth = depth_of(v), each = GEMM_PAIRS && !v->across ? 2 : 1, second = v->across ? 1 : in;
    for (int64_t c0 = 0; c0 < depth; c0 += PACK_CHANNELS)
        for (int64_t tap = 0; tap < v->taps; tap++) {
            const int64_t at = gemm_weight_at(q->p, v, group, tap) + m * out;
            for (int64_t c = c0; c < WEFT__MIN(c0 + PACK_CHANNELS, depth); c++)
                for (int64_t r = 0; r < rows; r++) {
                    const int64_t from = at + each * c * in + r * out;
                    const bool two = v->across || 2 * c + 1 < v->ci;
                    to[(tap * depth + c) * rows + r] = GEMM_PAIRS ? pair_of(q->weights, from, two ? from + second : -1)
                                                                  : gemm_load(dtype, q->weights, from);
                }
        }
}

/* One slot: one panel of output channels of one group, for every view. */
static void pack_panel(void *arg, int64_t slot) {
    const pack_job *q = arg;
    for (int64_t number = 0; number < gemm_views(q->p); number++) {
        const gemm_view v = view_of(q->p, q->fwd, number);
        const int64_t mp = gemm_split(v.co, GEMM_MR), group = slot / mp;
        const int64_t m = gemm_first(v.co, mp, slot % mp), rows = gemm_first(v.co, mp, slot % mp + 1) - m;
        float *to = q->to + v.first_tap * depth_of(&v) * v.co * v.groups + (group * v.co + m) * products_of(&v);
        if (q->dtype == WEFT_DTYPE_F32)
            pack_rows(q, &v, group, m, rows, to, WEFT_DTYPE_F32);
        else
            pack_rows(q, &v, group, m, rows, to, q->dtype);
    }
}

static void pack_into(const weft__exec *e, const void *weights, void *packed) {
    pack_job q = {e->p, e->p->pass == WEFT_PASS_FWD, weights, weft__tensor(e->p, WEFT_ROLE_WEIGHTS)->dtype, packed};
    const gemm_view v = view_of(e->p, q.fwd, 0);
    weft__parallel(e->ctx, v.groups * gemm_split(v.co, GEMM_MR), pack_panel, &q);
}
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    pack_into(e, weights, packed);
    return WEFT_OK;
}

static weft_status run_gemm(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    job q = {.e = e, .d = d, .fwd = p->pass == WEFT_PASS_FWD, .slots = WEFT__MIN(d->items, GEMM_SLOTS)};
    const weft_tensor *weights = weft__tensor(p, WEFT_ROLE_WEIGHTS);
    char *room = e->workspace;
    q.weights = d->in_place ? e->ptr[WEFT_ROLE_WEIGHTS] : e->packed;
    if (d->weights) {
        if (!gemm_all_finite(weights, e->ptr[WEFT_ROLE_WEIGHTS])) {
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
    q.end = (gemm_end){q.out.bias, NULL, q.out.lo, q.out.hi};
    room += d->bias;
    q.scratch.base = room, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    return WEFT_OK;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    const bool fwd = p->pass == WEFT_PASS_FWD;
    const char *reason = gemm_refusal(p, WEFT_LAYOUT_FIRST);
    if (reason) return reason;
    if (GEMM_PAIRS && !gemm_is_bf16(p)) return "not all is bf16";
    params *d = WEFT__PARAMS(params, out);
    if (gemm_views(p) > GEMM_VIEWS) return "the stride has too many residues";
    const gemm_view v = view_of(p, fwd, 0);
    const int64_t window = gemm_window(p) / v.spread / (v.across ? 2 : 1);
    int64_t longest = 1;
    for (int64_t i = 0; i < gemm_views(p); i++) {
        const gemm_view u = view_of(p, fwd, i);
        longest = WEFT__MAX(longest, products_of(&u));
    }
    d->kc = cpu_ceil(longest, cpu_ceil(longest, KC));
    const int64_t vectors = cpu_ceil(v.pixels, VF_LANES), panels = cpu_ceil(vectors, GEMM_NV);
    int64_t strip = STRIP_BYTES / (d->kc * GEMM_NR * 4);
    strip = WEFT__MIN(strip, panels * p->groups * gemm_views(p) / WANTED);
    d->strip = GEMM_NV * WEFT__MAX(1, WEFT__MIN(strip, PANELS));
    d->parts = 1, d->strips = cpu_ceil(vectors, d->strip); /* the first view has the most positions */
    const int64_t items = p->groups * gemm_views(p) * d->strips, mp = gemm_split(v.co, GEMM_MR);
    if (items && items < WANTED) d->parts = gemm_parts(items, v.co / LEAST_ROWS);
    d->items = items * d->parts;
    const size_t packed = (size_t)(depth_of(&v) * v.co * p->groups * window) * sizeof(float);
    const bool strict = p->math == WEFT_MATH_STRICT && (!fwd || gemm_is_padded(p));
    d->in_place = !GEMM_PAIRS && fwd && !strict && v.pixels <= IN_PLACE && v.taps <= IN_PLACE_TAPS &&
                  weft__tensor(p, WEFT_ROLE_WEIGHTS)->dtype == WEFT_DTYPE_F32;
    d->weights = strict ? cpu_round_up((int64_t)packed, 64) : 0;
    out->packed = strict || d->in_place ? 0 : packed;
    d->bias = gemm_bias_bytes(p, v.co / v.spread * v.groups);
    d->panels = (size_t)strip_floats(d->strip, d->kc) * sizeof(float);
    d->pieces = (size_t)cpu_round_up((d->in_place ? v.taps : 1) * pieces_of(d->strip) * (int64_t)sizeof(piece), 64);
    d->scratch = d->panels + d->pieces;
    if (longest > d->kc)
        d->scratch +=
            (size_t)(cpu_ceil(mp, d->parts) * cpu_ceil(d->strip, GEMM_NV) * GEMM_MR * GEMM_NR) * sizeof(float);
    out->workspace = d->weights + d->bias + (size_t)WEFT__MIN(d->items, GEMM_SLOTS) * d->scratch;
    /* multiply-adds; the copy: a vector costs as much as 8 of them, with a stride more, and each piece of a row 5 ns;
     * results that lie apart: 3 ns */
    const int64_t move = v.x[2].move;
    const double masks = VF_REGS == 32 ? 1 : 1.6; /* where a mask is a vector */
    const double copy = masks * (double)(d->parts * (move == 1 ? 8 : move == 2 ? 20 : 40));
    const double sums = 2 * ((double)v.co + copy) * (double)depth_of(&v) * (double)window * (double)p->groups *
                        (double)(fwd ? vectors * VF_LANES : p->n * p->out[0] * p->out[1] * p->out[2]);
    const double slow = GEMM_PAIRS ? GEMM_PAIR_COST : 1;
    const double apart =
        v.x[2].step == 1 ? 0 : 3 * (double)p->n * (double)p->c * (double)(p->in[0] * p->in[1] * p->in[2]);
    const double pack = d->in_place ? 0 : GEMM_PACK_NS * (double)(packed / sizeof(float)) / hw->threads;
    const double rows = (double)(p->n * (fwd ? p->out[0] * p->out[1] : p->in[0] * p->in[1]));
    const double pieces = window == 1 && move == 1 ? 0 : 5 * (double)(fwd ? p->c : p->o) * (double)window * rows;
    out->ns = cpu_cost(hw, weft__bytes(p), cpu_uneven(hw, d->items) * slow * sums, GEMM_SHARE) + pack +
              (pieces + apart) / hw->threads;
    return NULL;
}

#endif
