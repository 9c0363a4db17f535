/* f32 convolution by tiled Fourier transforms, channels-first, stride 1, 2D: forward and data gradient.
 * Math:      out = inverse(sum_c X_c * conj(W_oc)) over tiles of FFT_T x FFT_T inputs, of which FFT_T + 1 - k rows and
 *            columns of outputs are free of wrap-around; the data gradient is the same with the window turned and
 *            channels exchanged. Partial convolution comes with factors of the positions on the way in and out
 * Blocking:  VF_LANES channels in lanes; two real rows in one complex transform; of a tile's spectrum FFT_F points are
 *            kept. The product of each point is a complex GEMM, 6 tiles x 2 vectors of outputs (AVX2: 4 x 1). Strips of
 *            tiles, so that both spectra stay near the last-level cache; weights are transformed in pack
 * Traffic:   the spectrum of the weights once per strip, those of the tiles once
 * Roofline:  8 * FFT_F * tiles * c * o flops of the GEMM
 * Accuracy:  0.4 of the bound of a direct sum, relative to the largest in the tile, not to each output. Not strict */
#ifndef WEFT_CPU_FFT_CONV_FFT_NCHW_H
#define WEFT_CPU_FFT_CONV_FFT_NCHW_H

#include "cpu/fft/conv_fft.h"

enum { STRIP_BYTES = CPU_CUT(24 << 20, 64 << 10) };

typedef struct job {
    fft_shape s;
    cpu_epilogue f;
    const gemm_factors *factors;
    fft_image in;
    const float *weights;
    float *out, *w, *x, *y, *room;
    int64_t first, count; /* tiles of this strip */
} job;

/* ---------------------------------------------------------------- weights */
/* Taps of VF_LANES windows as vectors. */
VF_INLINE void load_windows(const float *const from[VF_LANES], int64_t some, int64_t window, float *to) {
    for (int64_t k = 0; k < window; k += VF_LANES) {
        vf lane[VF_LANES];
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) lane[l] =
            l < some ? vf_load_count(from[l] + k, window - k) : vf_zero();
        vf_transpose(lane);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) vf_store(to + (k + l) * VF_LANES, lane[l]);
    }
}

/* Row y of the windows, with the factor of all transforms; none behind the last. */
VF_INLINE void weights_row(const job *q, const float *taps, int64_t y, float *to) {
    const int64_t kw = q->s.kw, window = q->s.kh * kw;
    for (int64_t x = 0; x < FFT_T; x++) {
        const int64_t tap = q->s.back ? window - 1 - (y * kw + x) : y * kw + x;
        const bool inside = x < kw && y < q->s.kh;
        vf_store(to + x * VF_LANES, inside ? vf_mul(vf_load(taps + tap * VF_LANES), vf_set1(FFT_FACTOR)) : vf_zero());
    }
}

/* One channel read by a vector of channels written. */
static void transform_weights(const job *q, int64_t item, float *room) {
    const fft_shape *s = &q->s;
    const int64_t ob = item % s->ob, c = item / s->ob % s->ic, g = item / s->ob / s->ic, window = s->kh * s->kw;
    const int64_t from_c = g * s->ic + c, some = WEFT__MIN(VF_LANES, s->oc - ob * VF_LANES);
    const fft_tile t = fft_tile_at(room);
    const float *from[VF_LANES];
    float taps[(FFT_H * FFT_H + VF_LANES) * VF_LANES];
    for (int64_t l = 0; l < some; l++) {
        const int64_t o = ob * VF_LANES + l;
        from[l] = q->weights + (s->back ? from_c * s->oc + o : (g * s->oc + o) * s->ic + c) * window;
    }
    load_windows(from, some, window, taps);
    for (int64_t y = 0; y < s->kh; y += 2) {
        weights_row(q, taps, y, t.row);
        weights_row(q, taps, y + 1, t.other);
        fft_rows(&t, y);
    }
    for (int64_t i = cpu_round_up(s->kh, 2) * FFT_H; i < FFT_ALL; i++) {
        vf_store(t.re + i * VF_LANES, vf_zero());
        vf_store(t.im + i * VF_LANES, vf_zero());
    }
    fft_columns(&t, q->w + ((g * s->ic + c) * s->ob + ob) * 2 * VF_LANES, s->w_point);
}

/* Floats of the spectrum; room for the slots that make it follows. */
static int64_t packed_points(const fft_shape *s) { return cpu_round_up(FFT_F * s->w_point, 16); }

static void weights_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t items = q->s.groups * q->s.ic * q->s.ob, slots = WEFT__MIN(items, FFT_SLOTS);
    float *room = q->w + packed_points(&q->s) + slot * fft_tile_floats();
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++)
        transform_weights(q, i, room);
}

/* ---------------------------------------------------------------- tiles in, and the product */
static void in_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const fft_shape *s = &q->s;
    const int64_t items = q->count * s->groups * s->ib;
    const fft_tile t = fft_tile_at(q->room + slot * fft_tile_floats());
    for (int64_t i = cpu_first(items, FFT_SLOTS, slot); i < cpu_first(items, FFT_SLOTS, slot + 1); i++)
        fft_tile_in(s, &q->in, q->first, i, s->ph, s->pw, FFT_T, FFT_T, &t, q->x, s->x_point);
}

static void product_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const fft_shape *s = &q->s;
    const int64_t columns = cpu_ceil(s->ob, FFT_VECTORS), items = FFT_F * s->groups * columns;
    const int64_t x_tile = s->groups * s->ib * 2 * VF_LANES;
    const fft_product of = {.count = s->ic, .w_step = s->ob * 2 * VF_LANES, .y_row = s->groups * s->ob * 2 * VF_LANES};
    const int64_t panels = gemm_split(q->count, FFT_ROWS);
    for (int64_t i = cpu_first(items, FFT_SLOTS, slot); i < cpu_first(items, FFT_SLOTS, slot + 1); i++) {
        const int64_t f = i / columns / s->groups, g = i / columns % s->groups, o = i % columns * FFT_VECTORS;
        const float *x = q->x + f * s->x_point + g * s->ib * 2 * VF_LANES;
        const float *w = q->w + f * s->w_point + (g * s->ic * s->ob + o) * 2 * VF_LANES; /* stays near */
        float *y = q->y + f * s->y_point + (g * s->ob + o) * 2 * VF_LANES;
        for (int64_t j = 0; j < panels; j++) {
            const int64_t first = gemm_first(q->count, panels, j), rows = gemm_first(q->count, panels, j + 1) - first;
            const float *row[FFT_ROWS];
            for (int64_t r = 0; r < rows; r++) row[r] = x + (first + r) * x_tile;
            fft_product_rows(&of, row, w, y + first * of.y_row, WEFT__MIN(FFT_VECTORS, s->ob - o), rows, false);
        }
    }
}

/* ---------------------------------------------------------------- tiles out */
/* Factors of VF_LANES positions; 1 where there are none. */
VF_INLINE void load_factors(const gemm_factor *f, int64_t n, int64_t at, int64_t count, float to[VF_LANES]) {
    vf_store(to, f->at ? vf_load_count(f->at + n * f->image + at, count) : vf_set1(1));
}

/* The first of the row's vectors of channels, to row y of the output from column x on. */
VF_INLINE void store_row(const job *q, int64_t n, int64_t g, int64_t o, int64_t y, int64_t x, const float *from) {
    const fft_shape *s = &q->s;
    const int64_t some = WEFT__MIN(VF_LANES, s->oc - o), wide = WEFT__MIN(s->vw, s->ow - x), first = g * s->oc + o;
    const bool scaled = q->factors->ratio.at || q->factors->out.at, selects = q->factors->out.selects;
    if (y >= s->oh) return;
    float start[VF_LANES] = {0}, ratio[VF_LANES], keep[VF_LANES];
    for (int64_t l = 0; l < some && q->f.bias; l++) start[l] = ((const float *)q->f.bias)[first + l];
    const vf bias = vf_load(start), lo = vf_set1(q->f.lo), hi = vf_set1(q->f.hi);
    for (int64_t k = 0; k < wide; k += VF_LANES) {
        float *to = q->out + ((n * s->groups * s->oc + first) * s->oh + y) * s->ow + x + k;
        vf lane[VF_LANES];
        if (scaled) load_factors(&q->factors->ratio, n, y * s->ow + x + k, wide - k, ratio);
        if (scaled) load_factors(&q->factors->out, n, y * s->ow + x + k, wide - k, keep);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
            lane[l] = vf_load(from + (k + l) * VF_LANES);
            if (scaled) lane[l] = vf_mul(lane[l], vf_set1(ratio[l]));
            lane[l] = vf_add(lane[l], bias);
            if (scaled) lane[l] = gemm_factor_apply(lane[l], vf_set1(keep[l]), selects);
            lane[l] = vf_clip(lane[l], lo, hi);
        }
        vf_transpose(lane);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
            if (l < some) vf_store_count(to, lane[l], wide - k);
            to += s->oh * s->ow;
        }
    }
}

static void out_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const fft_shape *s = &q->s;
    const int64_t blocks = s->groups * s->ob, items = q->count * blocks;
    const fft_tile t = fft_tile_at(q->room + slot * fft_tile_floats());
    for (int64_t i = cpu_first(items, FFT_SLOTS, slot); i < cpu_first(items, FFT_SLOTS, slot + 1); i++) {
        const int64_t tile = q->first + i / blocks, g = i % blocks / s->ob, o = i % s->ob * VF_LANES;
        const int64_t n = tile / s->across / s->down, top = tile / s->across % s->down * s->vh;
        const int64_t left = tile % s->across * s->vw;
        fft_columns_back(&t, q->y + i * 2 * VF_LANES, s->y_point);
        for (int64_t y = 0; y < WEFT__MIN(s->vh, s->oh - top); y += 2) {
            fft_rows_back(&t, y);
            store_row(q, n, g, o, top + y, left, t.row);
            if (y + 1 < s->vh) store_row(q, n, g, o, top + y + 1, left, t.other);
        }
    }
}

/* ---------------------------------------------------------------- the driver */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    job q = {.s = fft_shape_of(e->p, STRIP_BYTES, INT64_MAX), .weights = weights, .w = packed};
    weft__parallel(e->ctx, WEFT__MIN(q.s.groups * q.s.ic * q.s.ob, FFT_SLOTS), weights_slot, &q);
    return WEFT_OK;
}

static weft_status fft_run(const weft__exec *e, const gemm_factors *factors) {
    job q = {.s = fft_shape_of(e->p, STRIP_BYTES, INT64_MAX), .f = cpu_epilogue_of(e), .factors = factors};
    const fft_shape *s = &q.s;
    const float *in = e->ptr[s->back ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.in = (fft_image){in, s->groups, s->ic, s->ib, s->ih, s->iw, 0, factors->in};
    q.w = (float *)e->packed;
    q.out = e->ptr[s->back ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.x = e->workspace;
    q.y = q.x + FFT_F * s->x_point;
    q.room = q.y + FFT_F * s->y_point;
    for (q.first = 0; q.first < s->tiles; q.first += q.count) {
        q.count = WEFT__MIN(s->strip, s->tiles - q.first);
        weft__parallel(e->ctx, FFT_SLOTS, in_slot, &q);
        weft__parallel(e->ctx, FFT_SLOTS, product_slot, &q);
        weft__parallel(e->ctx, FFT_SLOTS, out_slot, &q);
    }
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) { return fft_run(e, &WEFT__ISA_NAME(weft__gemm_no_factors)); }

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = fft_refusal(p);
    (void)variant;
    if (reason) return reason;
    const fft_shape s = fft_shape_of(p, STRIP_BYTES, INT64_MAX);
    const double g = (double)s.groups, tiles = (double)s.tiles, lanes = VF_LANES;
    const double product = 8.0 * FFT_F * tiles * g * (double)(s.ic * s.ob) * lanes;
    const double both = FFT_TURN * g * tiles * ((double)s.ib + 1.5 * (double)s.ob);
    const double weights = FFT_TURN * g * (double)(s.ic * s.ob) * 0.8;
    const double strips = (double)cpu_ceil(s.tiles, s.strip);
    const double traffic = 4.0 * FFT_F * (strips * (double)s.w_point + 2.0 * (double)(s.x_point + s.y_point));
    d->packed = (size_t)(packed_points(&s) + FFT_SLOTS * fft_tile_floats()) * sizeof(float);
    d->workspace = (size_t)(FFT_F * (s.x_point + s.y_point) + FFT_SLOTS * fft_tile_floats()) * sizeof(float);
    const double touch = 0.06 * (double)(d->packed + d->workspace); /* the first */
    d->ns = cpu_cost(hw, weft__bytes(p) + traffic, product / FFT_SHARE + both + weights, 1) + 3000 * strips + touch;
    return NULL;
}

#define FFT_KERNEL(id, text, pass, allowed) \
    WEFT__KERNEL(id) = {                    \
        .name = WEFT__NAME(text),           \
        .version = 3,                       \
        .op = WEFT_OP_CONV,                 \
        .engine = WEFT_ENGINE_CPU,          \
        .isa = WEFT__ISA_HERE,              \
        .passes = WEFT__PASS_SET(pass),     \
        .steps = allowed,                   \
        .dtypes = WEFT__DTYPE_SET(F32),     \
        .not_strict = true,                 \
        .tiled = true,                      \
        .plan = plan,                       \
        .pack = pack,                       \
        .run = run,                         \
    }

#endif
