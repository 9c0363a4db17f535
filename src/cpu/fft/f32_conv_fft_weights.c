/* f32 weight gradient of convolution by tiled Fourier transforms, channels-first, stride 1, 2D.
 * Math:      diff_weights[o][c] = inverse(sum over tiles of X_c * conj(Y_o)) at the first kh x kw lags. A tile is
 *            32 x 32 inputs and the 33 - k rows and columns of diff_dst whose windows lie in it, zeros beside them: no
 *            lag of the window wraps around
 * Blocking:  as conv_fft_nchw.h; the product of each point has channels as rows and sums over the tiles of a strip;
 *            the spectrum of the gradient stays in memory from strip to strip. It is made in parts of the outputs, so
 *            that it and a strip stay near the last-level cache and under the limit; each part transforms src again
 * Traffic:   the spectra of src once per part, of diff_dst once, that of the gradient twice per strip
 * Roofline:  8 * 514 * tiles * c * o flops of the GEMM, as forward
 * Accuracy:  as forward: relative to the largest of the gradient. Not strict
 * Try:       weft bench conv2d:bwd_weights:f32:nchw:n1c64h256w256:o128k9p4 */
#define FFT_T 32
#include "cpu/fft/conv_fft.h"

#include "cpu/conv/gemm_bias.h"

enum { STRIP_BYTES = CPU_CUT(14 << 20, 64 << 10), PART_BYTES = CPU_CUT(10 << 20, 64 << 10) };

typedef struct params {
    gemm_bias bias;
} params;

typedef struct job {
    fft_shape s;
    fft_image src, diff;
    float *diff_weights, *w, *x, *y, *room;
    int64_t first, count; /* tiles of this strip */
} job;

/* Vectors of outputs of a part. */
static int64_t part_of(const weft_problem *p) {
    const int64_t one = FFT_F * p->groups * (p->c / p->groups) * 2 * VF_LANES * (int64_t)sizeof(float);
    const int64_t vectors = cpu_ceil(p->o / p->groups, VF_LANES), parts = cpu_ceil(vectors * one, PART_BYTES);
    return cpu_ceil(vectors, WEFT__MIN(WEFT__MAX(parts, 1), vectors));
}

static void in_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const fft_shape *s = &q->s;
    const int64_t xs = q->count * s->groups * s->ib, items = xs + q->count * s->groups * s->ob;
    const fft_tile t = fft_tile_at(q->room + slot * fft_tile_floats());
    for (int64_t i = cpu_first(items, FFT_SLOTS, slot); i < cpu_first(items, FFT_SLOTS, slot + 1); i++)
        if (i < xs)
            fft_tile_in(s, &q->src, q->first, i, s->ph, s->pw, FFT_T, FFT_T, &t, q->x, s->x_point);
        else
            fft_tile_in(s, &q->diff, q->first, i - xs, 0, 0, s->vh, s->vw, &t, q->y, s->y_point);
}

static void product_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const fft_shape *s = &q->s;
    const int64_t items = FFT_F * s->groups, panels = gemm_split(s->ic, FFT_ROWS);
    const fft_product of = {.count = q->count,
                            .x_step = s->groups * s->ib * 2 * VF_LANES,
                            .w_step = s->groups * s->ob * 2 * VF_LANES,
                            .y_row = s->ob * 2 * VF_LANES,
                            .more = q->first > 0};
    for (int64_t i = cpu_first(items, FFT_SLOTS, slot); i < cpu_first(items, FFT_SLOTS, slot + 1); i++) {
        const int64_t f = i / s->groups, g = i % s->groups;
        const float *x = q->x + f * s->x_point + g * s->ib * 2 * VF_LANES;
        const float *y = q->y + f * s->y_point + g * s->ob * 2 * VF_LANES;
        float *w = q->w + f * s->w_point + g * s->ic * of.y_row;
        for (int64_t j = 0; j < panels; j++) {
            const int64_t first = gemm_first(s->ic, panels, j), rows = gemm_first(s->ic, panels, j + 1) - first;
            const float *row[FFT_ROWS];
            for (int64_t r = 0; r < rows; r++)
                row[r] = x + (first + r) / VF_LANES * 2 * VF_LANES + (first + r) % VF_LANES;
            fft_product_rows(&of, row, y, w + first * of.y_row, s->ob, rows, true);
        }
    }
}

static void out_slot(void *arg, int64_t slot) {
    const job *q = arg;
    const fft_shape *s = &q->s;
    const int64_t items = s->groups * s->ic * s->ob, window = s->kh * s->kw;
    const fft_tile t = fft_tile_at(q->room + slot * fft_tile_floats());
    for (int64_t i = cpu_first(items, FFT_SLOTS, slot); i < cpu_first(items, FFT_SLOTS, slot + 1); i++) {
        const int64_t o = q->diff.from + i % s->ob * VF_LANES, c = i / s->ob % s->ic, g = i / s->ob / s->ic;
        const int64_t some = WEFT__MIN(VF_LANES, s->oc - o); /* none behind the last part */
        fft_columns_back(&t, q->w + i * 2 * VF_LANES, s->w_point);
        for (int64_t y = 0; y < s->kh; y += 2) {
            fft_rows_back(&t, y);
            for (int64_t r = y; r < WEFT__MIN(y + 2, s->kh); r++)
                for (int64_t x = 0; x < s->kw; x++) {
                    const float *from = (r == y ? t.row : t.other) + x * VF_LANES;
                    float *to = q->diff_weights + ((g * s->oc + o) * s->ic + c) * window + r * s->kw + x;
                    for (int64_t l = 0; l < some; l++) to[l * s->ic * window] = from[l] * FFT_FACTOR;
                }
        }
    }
}

/* ---------------------------------------------------------------- the driver */
weft_status WEFT__ISA_NAME(weft__fft_weights)(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    WEFT__TRY(gemm_bias_run(e, &d->bias, factors));
    job q = {.s = fft_shape_of(e->p, STRIP_BYTES, part_of(e->p)), .diff_weights = e->ptr[WEFT_ROLE_DIFF_WEIGHTS]};
    const fft_shape *s = &q.s;
    q.src = (fft_image){e->ptr[WEFT_ROLE_SRC], s->groups, s->ic, s->ib, s->ih, s->iw, 0, factors->in};
    q.diff = (fft_image){e->ptr[WEFT_ROLE_DIFF_DST], s->groups, s->oc, s->ob, s->oh, s->ow, 0, factors->diff};
    q.x = e->workspace;
    q.y = q.x + FFT_F * s->x_point;
    q.w = q.y + FFT_F * s->y_point;
    q.room = q.w + FFT_F * s->w_point;
    for (q.diff.from = 0; q.diff.from < s->oc; q.diff.from += s->ob * VF_LANES) {
        for (q.first = 0; q.first < s->tiles; q.first += q.count) {
            q.count = WEFT__MIN(s->strip, s->tiles - q.first);
            weft__parallel(e->ctx, FFT_SLOTS, in_slot, &q);
            weft__parallel(e->ctx, FFT_SLOTS, product_slot, &q);
        }
        weft__parallel(e->ctx, FFT_SLOTS, out_slot, &q);
    }
    return WEFT_OK;
}

static weft_status run(const weft__exec *e) {
    return WEFT__ISA_NAME(weft__fft_weights)(e, &WEFT__ISA_NAME(weft__gemm_no_factors));
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    const char *reason = fft_refusal(p);
    if (reason) return reason;
    if (p->n == 0 || p->out[1] == 0 || p->out[2] == 0) return "no positions";
    params *d = WEFT__PARAMS(params, out);
    weft__decision bias = {0};
    reason = gemm_bias_plan(p, hw, variant, &bias, &d->bias);
    if (reason) return reason;
    const fft_shape s = fft_shape_of(p, STRIP_BYTES, part_of(p));
    const double parts = (double)cpu_ceil(s.oc, s.ob * VF_LANES), g = (double)s.groups, tiles = (double)s.tiles;
    const double product = 8.0 * FFT_F * tiles * g * (double)(s.ic * s.ob) * VF_LANES;
    const double turns = FFT_TURN * g * (tiles * (double)(s.ib + s.ob) + 1.5 * (double)(s.ic * s.ob));
    const double strips = (double)cpu_ceil(s.tiles, s.strip);
    const double traffic = 8.0 * FFT_F * strips * (double)(s.w_point + s.x_point + s.y_point);
    const int64_t floats = FFT_F * (s.x_point + s.y_point + s.w_point) + FFT_SLOTS * fft_tile_floats();
    out->workspace = WEFT__MAX(bias.workspace, (size_t)floats * sizeof(float));
    out->ns =
        parts * (cpu_cost(hw, weft__bytes(p) + traffic, product / FFT_SHARE + turns, 1) + 3000 * strips) + bias.ns;
    out->ns += 0.06 * (double)out->workspace; /* the first touch */
    return NULL;
}

WEFT__KERNEL(f32_conv_fft_bwd_weights_nchw) = {
    .name = WEFT__NAME("f32_conv_fft_bwd_weights_nchw_32"),
    .version = 1,
    .op = WEFT_OP_CONV,
    .engine = WEFT_ENGINE_CPU,
    .isa = WEFT__ISA_HERE,
    .passes = WEFT__PASS_SET(BWD_WEIGHTS),
    .steps = WEFT__STEP_SET(BIAS),
    .dtypes = WEFT__DTYPE_SET(F32),
    .not_strict = true,
    .tiled = true,
    .plan = plan,
    .run = run,
};
