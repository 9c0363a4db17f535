/* f32 convolution by tiled Fourier transforms, channels-first, stride 1, 2D: forward and data gradient.
 * Math:      out = inverse(sum_c X_c * conj(W_oc)) over tiles of 32 x 32 inputs, of which 33 - k rows and columns of
 *            outputs are free of wrap-around; the data gradient is the same with the window turned and channels
 *            exchanged
 * Blocking:  VF_LANES channels in lanes; two real rows in one complex transform, 17 x 32 points kept; the product of
 *            each point is a complex GEMM, 6 tiles x 2 vectors of outputs (AVX2: 4 x 1). Strips of tiles, so that both
 *            spectra stay near the last-level cache; weights are transformed in pack
 * Traffic:   the spectrum of the weights once per strip, those of the tiles once
 * Roofline:  8 * 544 * tiles * c * o flops of the GEMM, two thirds of the time. A tile of 24 x 24 outputs takes 4352
 *            flops for a pair of channels where a direct sum with k 9 takes 93312. Measured: 51 ms for k 9, 64 ->
 *            128 channels of 256 x 256, weights transformed in the call (two Zen 4 cores)
 * Accuracy:  0.4 of the bound of a direct sum, relative to the largest in the tile, not to each output. Not strict
 * Try:       weft bench conv2d:fwd:f32:nchw:n1c64h256w256:o128k9p4 */
#include "cpu/fft/fft32.h"

enum { SLOTS = 32, STRIP_BYTES = 24 << 20 };
#if VF_REGS >= 32
enum { TILES = 6, VECTORS = 2 };
#else
enum { TILES = 4, VECTORS = 1 };
#endif

typedef struct shape {
    bool back;
    int64_t n, groups, ic, oc; /* channels of a group, read and written */
    int64_t ih, iw, oh, ow, kh, kw, ph, pw;
    int64_t vh, vw, down, across, tiles, strip; /* valid outputs of a tile; tiles; tiles of a strip */
    int64_t ib, ob;                             /* vectors of channels of a group */
    int64_t x_point, y_point, w_point;          /* floats of one point of the spectra */
} shape;

static shape shape_of(const weft_problem *p) {
    const bool back = p->pass == WEFT_PASS_BWD_DATA;
    shape s = {.back = back, .n = p->n, .groups = p->groups, .kh = p->kernel[1], .kw = p->kernel[2]};
    s.ic = (back ? p->o : p->c) / p->groups, s.oc = (back ? p->c : p->o) / p->groups;
    s.ih = back ? p->out[1] : p->in[1], s.iw = back ? p->out[2] : p->in[2];
    s.oh = back ? p->in[1] : p->out[1], s.ow = back ? p->in[2] : p->out[2];
    s.ph = back ? s.kh - 1 - p->pad_lo[1] : p->pad_lo[1];
    s.pw = back ? s.kw - 1 - p->pad_lo[2] : p->pad_lo[2];
    s.vh = FFT_T + 1 - s.kh, s.vw = FFT_T + 1 - s.kw;
    s.down = cpu_ceil(s.oh, s.vh), s.across = cpu_ceil(s.ow, s.vw);
    s.tiles = s.n * s.down * s.across;
    s.ib = cpu_ceil(s.ic, VF_LANES), s.ob = cpu_ceil(s.oc, VF_LANES);
    const int64_t one = FFT_F * s.groups * (s.ib + s.ob) * 2 * VF_LANES * (int64_t)sizeof(float);
    s.strip = cpu_round_up(WEFT__MAX(STRIP_BYTES / one, 1), TILES);
    s.strip = cpu_ceil(WEFT__MAX(s.tiles, 1), cpu_ceil(WEFT__MAX(s.tiles, 1), s.strip));
    s.x_point = (s.strip * s.groups * s.ib * 2 + 1) * VF_LANES; /* one more vector: no strides of 4 KB */
    s.y_point = (s.strip * s.groups * s.ob * 2 + 1) * VF_LANES;
    s.w_point = (s.groups * s.ic * s.ob * 2 + 1) * VF_LANES;
    return s;
}

typedef struct job {
    shape s;
    cpu_epilogue f;
    const float *in, *weights;
    float *out, *w, *x, *y, *room;
    int64_t first, count; /* tiles of this strip */
} job;

VF_INLINE float *slot_room(const job *q, int64_t slot) { return q->room + slot * fft_tile_floats(); }

/* The points of the tile's spectrum to `to`, a vector of real parts and one of imaginary parts each. */
VF_INLINE void put_points(const fft_tile *t, float *to, int64_t point) {
    for (int64_t f = 0; f < FFT_F; f++, to += point) {
        vf_store(to, vf_load(t->re + f * VF_LANES));
        vf_store(to + VF_LANES, vf_load(t->im + f * VF_LANES));
    }
}

/* ---------------------------------------------------------------- weights */
/* One channel read by a vector of channels written, with the factor of all transforms. */
static void transform_weights(const job *q, int64_t item, float *room) {
    const shape *s = &q->s;
    const int64_t ob = item % s->ob, c = item / s->ob % s->ic, g = item / s->ob / s->ic, window = s->kh * s->kw;
    const int64_t from_c = g * s->ic + c, some = WEFT__MIN(VF_LANES, s->oc - ob * VF_LANES);
    const fft_tile t = fft_tile_at(room);
    const float factor = 1.0f / (4 * FFT_T * FFT_T);
    for (int64_t i = 0; i < 2 * FFT_F; i++) vf_store(t.re + i * VF_LANES, vf_zero());
    for (int64_t y = 0; y < s->kh; y += 2) {
        for (int64_t i = 0; i < 2 * FFT_T; i++) vf_store(t.row + i * VF_LANES, vf_zero());
        for (int64_t r = y; r < WEFT__MIN(y + 2, s->kh); r++)
            for (int64_t x = 0; x < s->kw; x++) {
                float *to = (r == y ? t.row : t.other) + x * VF_LANES;
                const int64_t tap = s->back ? window - 1 - (r * s->kw + x) : r * s->kw + x;
                for (int64_t l = 0; l < some; l++) {
                    const int64_t o = ob * VF_LANES + l;
                    const int64_t at = s->back ? from_c * s->oc + o : (g * s->oc + o) * s->ic + c;
                    to[l] = q->weights[at * window + tap] * factor;
                }
            }
        fft_rows(&t, y);
    }
    fft_columns(&t);
    put_points(&t, q->w + ((g * s->ic + c) * s->ob + ob) * 2 * VF_LANES, s->w_point);
}

/* Floats of the spectrum; room for the slots that make it follows. */
static int64_t packed_points(const shape *s) { return cpu_round_up(FFT_F * s->w_point, 16); }

static void weights_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const int64_t items = q->s.groups * q->s.ic * q->s.ob, slots = WEFT__MIN(items, SLOTS);
    float *room = q->w + packed_points(&q->s) + slot * fft_tile_floats();
    for (int64_t i = cpu_first(items, slots, slot); i < cpu_first(items, slots, slot + 1); i++)
        transform_weights(q, i, room);
}

/* ---------------------------------------------------------------- tiles in */
/* Row y of the input from column x on, VF_LANES channels of a group, as vectors of channels. */
VF_INLINE void load_row(const job *q, int64_t n, int64_t g, int64_t c, int64_t y, int64_t x, float *to) {
    const shape *s = &q->s;
    const int64_t some = WEFT__MIN(VF_LANES, s->ic - c);
    const bool inside = y >= 0 && y < s->ih;
    for (int64_t k = 0; k < FFT_T; k += VF_LANES) {
        const vmask m = vm_range(-(x + k), s->iw - (x + k));
        const float *from = q->in + ((n * s->groups * s->ic + g * s->ic + c) * s->ih + y) * s->iw + x + k;
        vf lane[VF_LANES];
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
            lane[l] = inside && l < some ? vf_load_in(m, from) : vf_zero();
            from += s->ih * s->iw;
        }
        vf_transpose(lane);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) vf_store(to + (k + l) * VF_LANES, lane[l]);
    }
}

static void in_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t blocks = s->groups * s->ib, items = q->count * blocks;
    const fft_tile t = fft_tile_at(slot_room(q, slot));
    for (int64_t i = cpu_first(items, SLOTS, slot); i < cpu_first(items, SLOTS, slot + 1); i++) {
        const int64_t tile = q->first + i / blocks, g = i % blocks / s->ib, c = i % s->ib * VF_LANES;
        const int64_t n = tile / s->across / s->down, top = tile / s->across % s->down * s->vh - s->ph;
        const int64_t left = tile % s->across * s->vw - s->pw;
        for (int64_t y = 0; y < FFT_T; y += 2) {
            load_row(q, n, g, c, top + y, left, t.row);
            load_row(q, n, g, c, top + y + 1, left, t.other);
            fft_rows(&t, y);
        }
        fft_columns(&t);
        put_points(&t, q->x + i * 2 * VF_LANES, s->x_point);
    }
}

/* ---------------------------------------------------------------- product */
/* T tiles by V vectors of outputs at one point: y = sum_c x conj(w). */
VF_INLINE void block(const shape *s, const float *x, const float *w, float *y, const int T, const int V) {
    const int64_t x_tile = s->groups * s->ib * 2 * VF_LANES, y_tile = s->groups * s->ob * 2 * VF_LANES;
    vf re[6][2], im[6][2];
    VF_UNROLL for (int t = 0; t < T; t++) { VF_UNROLL for (int v = 0; v < V; v++) re[t][v] = im[t][v] = vf_zero(); }
    for (int64_t c = 0; c < s->ic; c++, w += s->ob * 2 * VF_LANES) {
        const float *at = x + c / VF_LANES * 2 * VF_LANES + c % VF_LANES;
        vf wr[2], wi[2];
        VF_UNROLL for (int v = 0; v < V; v++) {
            wr[v] = vf_keep(vf_load(w + 2 * v * VF_LANES));
            wi[v] = vf_keep(vf_load(w + (2 * v + 1) * VF_LANES));
        }
        VF_UNROLL for (int t = 0; t < T; t++) {
            const vf xr = vf_set1(at[t * x_tile]), xi = vf_set1(at[t * x_tile + VF_LANES]);
            VF_UNROLL for (int v = 0; v < V; v++) {
                re[t][v] = vf_fma(xr, wr[v], re[t][v]);
                im[t][v] = vf_fma(xi, wr[v], im[t][v]);
                re[t][v] = vf_fma(xi, wi[v], re[t][v]);
                im[t][v] = vf_fnma(xr, wi[v], im[t][v]);
            }
        }
    }
    VF_UNROLL for (int t = 0; t < T; t++) {
        VF_UNROLL for (int v = 0; v < V; v++) {
            vf_store(y + t * y_tile + 2 * v * VF_LANES, re[t][v]);
            vf_store(y + t * y_tile + (2 * v + 1) * VF_LANES, im[t][v]);
        }
    }
}

VF_INLINE void columns(const shape *s, const float *x, const float *w, float *y, int64_t tiles, const int V) {
    const int64_t x_tile = s->groups * s->ib * 2 * VF_LANES, y_tile = s->groups * s->ob * 2 * VF_LANES;
    int64_t t = 0;
    for (; t + TILES <= tiles; t += TILES) block(s, x + t * x_tile, w, y + t * y_tile, TILES, V);
    for (; t < tiles; t++) block(s, x + t * x_tile, w, y + t * y_tile, 1, V);
}

static void product_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t items = FFT_F * s->groups;
    for (int64_t i = cpu_first(items, SLOTS, slot); i < cpu_first(items, SLOTS, slot + 1); i++) {
        const int64_t f = i / s->groups, g = i % s->groups;
        const float *x = q->x + f * s->x_point + g * s->ib * 2 * VF_LANES;
        const float *w = q->w + f * s->w_point + g * s->ic * s->ob * 2 * VF_LANES;
        float *y = q->y + f * s->y_point + g * s->ob * 2 * VF_LANES;
        int64_t o = 0;
        for (; o + VECTORS <= s->ob; o += VECTORS)
            columns(s, x, w + o * 2 * VF_LANES, y + o * 2 * VF_LANES, q->count, VECTORS);
        for (; o < s->ob; o++) columns(s, x, w + o * 2 * VF_LANES, y + o * 2 * VF_LANES, q->count, 1);
    }
}

/* ---------------------------------------------------------------- tiles out */
/* The first of the row's vectors of channels, to row y of the output from column x on. */
VF_INLINE void store_row(const job *q, int64_t n, int64_t g, int64_t o, int64_t y, int64_t x, const float *from) {
    const shape *s = &q->s;
    const int64_t some = WEFT__MIN(VF_LANES, s->oc - o), wide = WEFT__MIN(s->vw, s->ow - x), first = g * s->oc + o;
    if (y >= s->oh) return;
    float start[VF_LANES] = {0};
    for (int64_t l = 0; l < some && q->f.bias; l++) start[l] = ((const float *)q->f.bias)[first + l];
    const vf bias = vf_load(start), lo = vf_set1(q->f.lo), hi = vf_set1(q->f.hi);
    for (int64_t k = 0; k < wide; k += VF_LANES) {
        float *to = q->out + ((n * s->groups * s->oc + first) * s->oh + y) * s->ow + x + k;
        vf lane[VF_LANES];
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) lane[l] =
            vf_clip(vf_add(vf_load(from + (k + l) * VF_LANES), bias), lo, hi);
        vf_transpose(lane);
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
            if (l < some) vf_store_count(to, lane[l], wide - k);
            to += s->oh * s->ow;
        }
    }
}

static void out_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const shape *s = &q->s;
    const int64_t blocks = s->groups * s->ob, items = q->count * blocks;
    const fft_tile t = fft_tile_at(slot_room(q, slot));
    for (int64_t i = cpu_first(items, SLOTS, slot); i < cpu_first(items, SLOTS, slot + 1); i++) {
        const int64_t tile = q->first + i / blocks, g = i % blocks / s->ob, o = i % s->ob * VF_LANES;
        const int64_t n = tile / s->across / s->down, top = tile / s->across % s->down * s->vh;
        const int64_t left = tile % s->across * s->vw;
        const float *from = q->y + i * 2 * VF_LANES;
        for (int64_t f = 0; f < FFT_F; f++, from += s->y_point) {
            vf_store(t.re + f * VF_LANES, vf_load(from));
            vf_store(t.im + f * VF_LANES, vf_load(from + VF_LANES));
        }
        fft_columns_back(&t);
        for (int64_t y = 0; y < WEFT__MIN(s->vh, s->oh - top); y += 2) {
            fft_rows_back(&t, y);
            store_row(q, n, g, o, top + y, left, t.row);
            if (y + 1 < s->vh) store_row(q, n, g, o, top + y + 1, left, t.other);
        }
    }
}

/* ---------------------------------------------------------------- the driver */
static weft_status pack(const weft__exec *e, const void *weights, void *packed) {
    job q = {.s = shape_of(e->p), .weights = weights, .w = packed};
    weft__parallel(e->ctx, WEFT__MIN(q.s.groups * q.s.ic * q.s.ob, SLOTS), weights_slot, &q);
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    job q = {.s = shape_of(e->p), .f = cpu_epilogue_of(e), .w = (float *)e->packed};
    q.in = e->ptr[q.s.back ? WEFT_ROLE_DIFF_DST : WEFT_ROLE_SRC];
    q.out = e->ptr[q.s.back ? WEFT_ROLE_DIFF_SRC : WEFT_ROLE_DST];
    q.x = e->workspace;
    q.y = q.x + FFT_F * q.s.x_point;
    q.room = q.y + FFT_F * q.s.y_point;
    for (q.first = 0; q.first < q.s.tiles; q.first += q.count) {
        q.count = WEFT__MIN(q.s.strip, q.s.tiles - q.first);
        weft__parallel(e->ctx, SLOTS, in_slot, &q);
        weft__parallel(e->ctx, SLOTS, product_slot, &q);
        weft__parallel(e->ctx, SLOTS, out_slot, &q);
    }
    return WEFT_OK;
}

static const char *refusal(const weft_problem *p) {
    const char *reason = cpu_epilogue_refusal(p);
    if (reason) return reason;
    if (p->in[0] != 1 || p->kernel[0] != 1 || p->pad_lo[0] || p->pad_hi[0]) return "three spatial axes";
    for (int a = 1; a < 3; a++) {
        if (p->stride[a] != 1 || p->dilation[a] != 1) return "stride or dilation is not 1";
        if (p->kernel[a] > FFT_T / 2 + 1) return "the window is over 17: too few valid outputs in a tile of 32";
        if (p->in[a] < p->kernel[a]) return "the input is smaller than the window";
        if (p->pad_lo[a] >= p->kernel[a] || p->pad_hi[a] >= p->kernel[a]) return "outputs that see only padding";
    }
    if (p->kernel[1] * p->kernel[2] < 15) return "the window has under 15 taps: a direct sum is shorter";
    return cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    const char *reason = refusal(p);
    (void)variant;
    if (reason) return reason;
    const shape s = shape_of(p);
    const double g = (double)s.groups, tiles = (double)s.tiles, lanes = VF_LANES;
    const double product = 8.0 * FFT_F * tiles * g * (double)(s.ic * s.ob) * lanes;
    const double turns = 2 * lanes * 24000 * g; /* flops of one transform of a vector of channels, at the peak's rate */
    const double both = turns * tiles * (double)(s.ib + 1.5 * s.ob), weights = turns * (double)(s.ic * s.ob) * 0.8;
    const double strips = (double)cpu_ceil(s.tiles, s.strip);
    const double traffic = 4.0 * FFT_F * (strips * (double)s.w_point + 2.0 * (double)(s.x_point + s.y_point));
    d->packed = (size_t)(packed_points(&s) + SLOTS * fft_tile_floats()) * sizeof(float);
    d->workspace = (size_t)(FFT_F * (s.x_point + s.y_point) + SLOTS * fft_tile_floats()) * sizeof(float);
    /* and the first touch of all that memory, which callers seldom keep */
    const double touch = 0.6 * (double)d->packed + 0.4 * (double)d->workspace;
    d->ns = cpu_cost(hw, weft__bytes(p) + traffic, product / 0.8 + both + weights, 1) + 3000 * strips + touch;
    return NULL;
}

WEFT__KERNEL(f32_conv_fft_fwd_nchw) = {
    .name = WEFT__NAME("f32_conv_fft_fwd_nchw_32"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(FWD),
    .steps = CPU_EPILOGUE_STEPS,
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};

WEFT__KERNEL(f32_conv_fft_bwd_data_nchw) = {
    .name = WEFT__NAME("f32_conv_fft_bwd_data_nchw_32"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_DATA),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan,
    .pack = pack,
    .run = run,
};
