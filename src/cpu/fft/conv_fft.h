/* Convolution in tiles: what the kernels by Fourier transform share. Tiles of the input, FFT_T rows and columns,
 * overlap; those of the output, FFT_T + 1 - k rows and columns each, do not. A spectrum is
 * [point][tile][group][vector of channels], a vector of real parts and one of imaginary parts. */
#ifndef WEFT_CPU_FFT_CONV_FFT_H
#define WEFT_CPU_FFT_CONV_FFT_H

#include "cpu/conv/gemm_view.h"
#include "cpu/fft/fft.h"

enum { FFT_SLOTS = 32 };
#if VF_REGS >= 32
enum { FFT_ROWS = 6, FFT_VECTORS = 2 };
#else
enum { FFT_ROWS = 4, FFT_VECTORS = 1 };
#endif
#define FFT_FACTOR (1.0f / (4 * FFT_T * FFT_T)) /* of a product of two spectra on the way back */

typedef struct fft_shape {
    bool back;
    int64_t n, groups, ic, oc; /* channels of a group, read and written */
    int64_t ih, iw, oh, ow, kh, kw, ph, pw;
    int64_t vh, vw, down, across, tiles, strip; /* valid outputs of a tile; tiles; tiles of a strip */
    int64_t ib, ob;                             /* vectors of channels of a group */
    int64_t x_point, y_point, w_point;          /* floats of one point of the spectra */
} fft_shape;

/* strip_bytes: of the spectra of a strip; most: vectors of channels written that are worked on together. */
static inline fft_shape fft_shape_of(const weft_problem *p, int64_t strip_bytes, int64_t most) {
    const bool back = p->pass == WEFT_PASS_BWD_DATA;
    fft_shape s = {.back = back, .n = p->n, .groups = p->groups, .kh = p->kernel[1], .kw = p->kernel[2]};
    s.ic = (back ? p->o : p->c) / p->groups, s.oc = (back ? p->c : p->o) / p->groups;
    s.ih = back ? p->out[1] : p->in[1], s.iw = back ? p->out[2] : p->in[2];
    s.oh = back ? p->in[1] : p->out[1], s.ow = back ? p->in[2] : p->out[2];
    s.ph = back ? s.kh - 1 - p->pad_lo[1] : p->pad_lo[1];
    s.pw = back ? s.kw - 1 - p->pad_lo[2] : p->pad_lo[2];
    s.vh = FFT_T + 1 - s.kh, s.vw = FFT_T + 1 - s.kw;
    s.down = cpu_ceil(s.oh, s.vh), s.across = cpu_ceil(s.ow, s.vw);
    s.tiles = s.n * s.down * s.across;
    s.ib = cpu_ceil(s.ic, VF_LANES), s.ob = WEFT__MIN(cpu_ceil(s.oc, VF_LANES), most);
    const int64_t one = FFT_F * s.groups * (s.ib + s.ob) * 2 * VF_LANES * (int64_t)sizeof(float);
    s.strip = cpu_round_up(WEFT__MAX(strip_bytes / one, 1), FFT_ROWS);
    s.strip = cpu_ceil(WEFT__MAX(s.tiles, 1), cpu_ceil(WEFT__MAX(s.tiles, 1), s.strip));
    s.x_point = (s.strip * s.groups * s.ib * 2 + 1) * VF_LANES; /* one more vector: no strides of 4 KB */
    s.y_point = (s.strip * s.groups * s.ob * 2 + 1) * VF_LANES;
    s.w_point = (s.groups * s.ic * s.ob * 2 + 1) * VF_LANES;
    return s;
}

/* Of the multiply-add peak, in products of spectra. */
#define FFT_SHARE (VF_REGS >= 32 ? 0.7 : 0.62)
/* Flops of one transform of a vector of channels, as many as it costs at the peak's rate. */
#define FFT_TURN (2.0 * VF_LANES * (FFT_T == 8 ? 1800 : 28000) * (VF_REGS >= 32 ? 1 : 1.2))

static inline const char *fft_refusal(const weft_problem *p) {
    const char *reason = cpu_epilogue_refusal(p);
    if (reason) return reason;
    if (p->in[0] != 1 || p->kernel[0] != 1 || p->pad_lo[0] || p->pad_hi[0]) return "three spatial axes";
    for (int a = 1; a < 3; a++) {
        if (p->stride[a] != 1 || p->dilation[a] != 1) return "stride or dilation is not 1";
        if (p->kernel[a] > FFT_T / 2 + 1) return "the window is over half a tile: too few valid outputs";
        if (p->in[a] < p->kernel[a]) return "the input is smaller than the window";
        if (p->pad_lo[a] >= p->kernel[a] || p->pad_hi[a] >= p->kernel[a]) return "outputs that see only padding";
    }
    if (p->kernel[1] * p->kernel[2] < 15) return "the window has under 15 taps: a direct sum is shorter";
    return cpu_layout_refusal(p, WEFT_LAYOUT_FIRST);
}

/* ---------------------------------------------------------------- tiles of an image to spectra */
typedef struct fft_image {
    const float *at;
    int64_t groups, channels, blocks, h, w; /* channels of a group; vectors of them that are transformed */
    int64_t from;                           /* the first of these channels */
    gemm_factor factor;                     /* of each position */
} fft_image;

/* The first `wide` columns of row y from column x on, VF_LANES channels of a group, as vectors of channels. */
VF_INLINE void fft_load_row(const fft_image *m, int64_t n, int64_t g, int64_t c, int64_t y, int64_t x, int64_t wide,
                            float *to) {
    const int64_t some = WEFT__MIN(VF_LANES, m->channels - c);
    const bool inside = y >= 0 && y < m->h && wide > 0;
    for (int64_t k = 0; k < FFT_T; k += VF_LANES) {
        const vmask in = vm_range(-(x + k), WEFT__MIN(m->w - (x + k), wide - k));
        const float *from = m->at + ((n * m->groups * m->channels + g * m->channels + c) * m->h + y) * m->w + x + k;
        vf lane[VF_LANES];
        VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
            lane[l] = inside && l < some ? vf_load_in(in, from) : vf_zero();
            from += m->h * m->w;
        }
        if (m->factor.at && inside) {
            const vf factor = vf_load_in(in, m->factor.at + n * m->factor.image + y * m->w + x + k);
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) lane[l] =
                gemm_factor_apply(lane[l], factor, m->factor.selects);
        }
        vf_transpose(lane);
        VF_UNROLL for (int l = 0; l < WEFT__MIN(VF_LANES, FFT_T); l++) vf_store(to + (k + l) * VF_LANES, lane[l]);
    }
}

/* Tile number i of a strip that begins at tile `first`, counting vectors of channels too: the spectrum of `high` rows
 * and `wide` columns from (top - ph, left - pw) on. */
VF_INLINE void fft_tile_in(const fft_shape *s, const fft_image *m, int64_t first, int64_t i, int64_t ph, int64_t pw,
                           int64_t high, int64_t wide, const fft_tile *t, float *to, int64_t point) {
    const int64_t blocks = m->groups * m->blocks, tile = first + i / blocks;
    const int64_t g = i % blocks / m->blocks, c = m->from + i % m->blocks * VF_LANES;
    const int64_t n = tile / s->across / s->down, top = tile / s->across % s->down * s->vh - ph;
    const int64_t left = tile % s->across * s->vw - pw;
    for (int64_t y = 0; y < FFT_T; y += 2) {
        fft_load_row(m, n, g, c, top + y, left, y < high ? wide : 0, t->row);
        fft_load_row(m, n, g, c, top + y + 1, left, y + 1 < high ? wide : 0, t->other);
        fft_rows(t, y);
    }
    fft_columns(t, to + i * 2 * VF_LANES, point);
}

/* ---------------------------------------------------------------- products of spectra at one point
 * y[r] = sum_j x(r, j) conj(w[j]) of R rows and V vectors. Rows are tiles and j channels (x_step 0: a vector of real
 * parts, a vector of imaginary parts, and so on), or rows are channels and j tiles, x_step apart. */
typedef struct fft_product {
    int64_t count, x_step, w_step, y_row;
    bool more; /* y has a sum already */
} fft_product;

VF_INLINE void fft_block(const fft_product *q, const float *const x[FFT_ROWS], const float *w, float *y, const int R,
                         const int V, const bool by_tile) {
    vf re[FFT_ROWS][FFT_VECTORS], im[FFT_ROWS][FFT_VECTORS];
    VF_UNROLL for (int r = 0; r < R; r++) {
        VF_UNROLL for (int v = 0; v < V; v++) {
            re[r][v] = q->more ? vf_load(y + r * q->y_row + 2 * v * VF_LANES) : vf_zero();
            im[r][v] = q->more ? vf_load(y + r * q->y_row + (2 * v + 1) * VF_LANES) : vf_zero();
        }
    }
    for (int64_t j = 0; j < q->count; j++, w += q->w_step) {
        const int64_t at = by_tile ? j * q->x_step : j / VF_LANES * 2 * VF_LANES + j % VF_LANES;
        vf wr[FFT_VECTORS], wi[FFT_VECTORS];
        VF_UNROLL for (int v = 0; v < FFT_VECTORS; v++) {
            wr[v] = v < V ? vf_keep(vf_load(w + 2 * v * VF_LANES)) : vf_zero();
            wi[v] = v < V ? vf_keep(vf_load(w + (2 * v + 1) * VF_LANES)) : vf_zero();
        }
        VF_UNROLL for (int r = 0; r < R; r++) {
            const vf xr = vf_set1(x[r][at]), xi = vf_set1(x[r][at + VF_LANES]);
            VF_UNROLL for (int v = 0; v < V; v++) {
                re[r][v] = vf_fma(xr, wr[v], re[r][v]);
                im[r][v] = vf_fma(xi, wr[v], im[r][v]);
                re[r][v] = vf_fma(xi, wi[v], re[r][v]);
                im[r][v] = vf_fnma(xr, wi[v], im[r][v]);
            }
        }
    }
    VF_UNROLL for (int r = 0; r < R; r++) {
        VF_UNROLL for (int v = 0; v < V; v++) {
            vf_store(y + r * q->y_row + 2 * v * VF_LANES, re[r][v]);
            vf_store(y + r * q->y_row + (2 * v + 1) * VF_LANES, im[r][v]);
        }
    }
}

/* At most FFT_ROWS rows by `vectors` vectors. */
VF_INLINE void fft_rows_product(const fft_product *q, const float *const x[FFT_ROWS], const float *w, float *y,
                                int64_t vectors, const int R, const bool by_tile) {
    int64_t o = 0;
    for (; o + FFT_VECTORS <= vectors; o += FFT_VECTORS)
        fft_block(q, x, w + o * 2 * VF_LANES, y + o * 2 * VF_LANES, R, FFT_VECTORS, by_tile);
    for (; o < vectors; o++) fft_block(q, x, w + o * 2 * VF_LANES, y + o * 2 * VF_LANES, R, 1, by_tile);
}

VF_INLINE void fft_product_rows(const fft_product *q, const float *const x[FFT_ROWS], const float *w, float *y,
                                int64_t vectors, int64_t rows, const bool by_tile) {
    if (rows == 1)
        fft_rows_product(q, x, w, y, vectors, 1, by_tile);
    else if (rows == 2)
        fft_rows_product(q, x, w, y, vectors, 2, by_tile);
    else if (rows == 3)
        fft_rows_product(q, x, w, y, vectors, 3, by_tile);
    else if (rows == 4)
        fft_rows_product(q, x, w, y, vectors, 4, by_tile);
#if VF_REGS >= 32
    else if (rows == 5)
        fft_rows_product(q, x, w, y, vectors, 5, by_tile);
    else
        fft_rows_product(q, x, w, y, vectors, 6, by_tile);
#endif
}

#endif
