/* Complex Fourier transforms of FFT_T points and real ones of FFT_T x FFT_T, each point a vector: the lanes are
 * channels, so nothing is shuffled. The inverse is the forward transform with the parts of input and output exchanged,
 * times 1/FFT_T. The file that includes this says by FFT_T whether tiles have 8 or 32 rows. */
#ifndef WEFT_CPU_FFT_FFT_H
#define WEFT_CPU_FFT_FFT_H

#include "cpu/frame.h"

/* Points kept of a real row; of all rows; and those of them that say all. */
enum { FFT_H = FFT_T / 2 + 1, FFT_ALL = FFT_T * FFT_H, FFT_F = FFT_T * FFT_T / 2 + 2 };

#define FFT_R 0.70710678118654752440f

VF_INLINE void fft_pair(vf *a, vf *b) {
    const vf sum = vf_add(*a, *b);
    *b = vf_sub(*a, *b);
    *a = sum;
}

/* 4 points in order. */
VF_INLINE void fft4(vf re[4], vf im[4]) {
    fft_pair(&re[0], &re[2]), fft_pair(&im[0], &im[2]);
    fft_pair(&re[1], &re[3]), fft_pair(&im[1], &im[3]);
    fft_pair(&re[0], &re[1]), fft_pair(&im[0], &im[1]); /* 0 and 2 */
    const vf r2 = re[2], i2 = im[2], r3 = re[3], i3 = im[3];
    const vf r1 = re[1], i1 = im[1];
    re[1] = vf_add(r2, i3), im[1] = vf_sub(i2, r3);
    re[3] = vf_sub(r2, i3), im[3] = vf_add(i2, r3);
    re[2] = r1, im[2] = i1;
}

/* 8 points in order: the even and the odd by 4. */
VF_INLINE void fft8(vf re[8], vf im[8]) {
    vf er[4] = {re[0], re[2], re[4], re[6]}, ei[4] = {im[0], im[2], im[4], im[6]};
    vf dr[4] = {re[1], re[3], re[5], re[7]}, di[4] = {im[1], im[3], im[5], im[7]};
    const vf r = vf_set1(FFT_R);
    fft4(er, ei), fft4(dr, di);
    const vf a = vf_mul(vf_add(dr[1], di[1]), r), b = vf_mul(vf_sub(di[1], dr[1]), r);
    const vf c = vf_mul(vf_sub(di[3], dr[3]), r), d = vf_mul(vf_add(di[3], dr[3]), r);
    dr[1] = a, di[1] = b;
    const vf t = dr[2];
    dr[2] = di[2], di[2] = vf_sub(vf_zero(), t);
    dr[3] = c, di[3] = vf_sub(vf_zero(), d);
    VF_UNROLL for (int k = 0; k < 4; k++) {
        re[k] = vf_add(er[k], dr[k]), im[k] = vf_add(ei[k], di[k]);
        re[4 + k] = vf_sub(er[k], dr[k]), im[4 + k] = vf_sub(ei[k], di[k]);
    }
}

/* FFT_T points, `step` floats apart. */
typedef struct fft_points {
    float *re, *im;
    int64_t step;
} fft_points;

#if FFT_T == 8
static void fft_line(const fft_points *from, const fft_points *to) {
    vf r[8], i[8];
    VF_UNROLL for (int k = 0; k < 8; k++) r[k] = vf_load(from->re + k * from->step);
    VF_UNROLL for (int k = 0; k < 8; k++) i[k] = vf_load(from->im + k * from->step);
    fft8(r, i);
    VF_UNROLL for (int k = 0; k < 8; k++) vf_store(to->re + k * to->step, r[k]);
    VF_UNROLL for (int k = 0; k < 8; k++) vf_store(to->im + k * to->step, i[k]);
}
#else
/* cos and -sin of 2 pi j k / 32, j below 4, k below 8. */
static const float fft_cos[4][8] = {
    {1, 1, 1, 1, 1, 1, 1, 1},
    {1, 0.98078528f, 0.92387953f, 0.83146961f, 0.70710678f, 0.55557023f, 0.38268343f, 0.19509032f},
    {1, 0.92387953f, 0.70710678f, 0.38268343f, 0, -0.38268343f, -0.70710678f, -0.92387953f},
    {1, 0.83146961f, 0.38268343f, -0.19509032f, -0.70710678f, -0.98078528f, -0.92387953f, -0.55557023f},
};
static const float fft_sin[4][8] = {
    {0, 0, 0, 0, 0, 0, 0, 0},
    {0, -0.19509032f, -0.38268343f, -0.55557023f, -0.70710678f, -0.83146961f, -0.92387953f, -0.98078528f},
    {0, -0.38268343f, -0.70710678f, -0.92387953f, -1, -0.92387953f, -0.70710678f, -0.38268343f},
    {0, -0.55557023f, -0.92387953f, -0.98078528f, -0.70710678f, -0.19509032f, 0.38268343f, 0.83146961f},
};

/* 32 points: four transforms of 8, twiddles, eight of 4. All is read before any is written. */
static void fft_line(const fft_points *from, const fft_points *to) {
    float tr[4][8][VF_LANES], ti[4][8][VF_LANES];
    VF_UNROLL for (int j = 0; j < 4; j++) {
        vf r[8], i[8];
        VF_UNROLL for (int n = 0; n < 8; n++) {
            r[n] = vf_load(from->re + (4 * n + j) * from->step);
            i[n] = vf_load(from->im + (4 * n + j) * from->step);
        }
        fft8(r, i);
        VF_UNROLL for (int k = 0; k < 8; k++) {
            const vf c = vf_set1(fft_cos[j][k]), s = vf_set1(fft_sin[j][k]);
            const bool one = j == 0 || k == 0;
            vf_store(tr[j][k], one ? r[k] : vf_fnma(i[k], s, vf_mul(r[k], c)));
            vf_store(ti[j][k], one ? i[k] : vf_fma(i[k], c, vf_mul(r[k], s)));
        }
    }
    for (int k = 0; k < 8; k++) {
        vf r[4], i[4];
        VF_UNROLL for (int j = 0; j < 4; j++) r[j] = vf_load(tr[j][k]), i[j] = vf_load(ti[j][k]);
        fft4(r, i);
        VF_UNROLL for (int j = 0; j < 4; j++) {
            vf_store(to->re + (k + 8 * j) * to->step, r[j]);
            vf_store(to->im + (k + 8 * j) * to->step, i[j]);
        }
    }
}

#endif

/* ---------------------------------------------------------------- tiles
 * A tile in work is two rows of points and the spectrum of all: 2 FFT_T + 2 FFT_ALL vectors. The spectrum of row y,
 * point k stands at (y * FFT_H + k). */
typedef struct fft_tile {
    float *row, *other, *re, *im;
} fft_tile;

VF_INLINE int64_t fft_tile_floats(void) { return (2 * FFT_T + 2 * FFT_ALL) * VF_LANES; }
VF_INLINE fft_tile fft_tile_at(float *room) {
    return (fft_tile){room, room + FFT_T * VF_LANES, room + 2 * FFT_T * VF_LANES,
                      room + (2 * FFT_T + FFT_ALL) * VF_LANES};
}

/* Rows y and y + 1 are in row and other: their spectra, each times 2. */
VF_INLINE void fft_rows(const fft_tile *t, int64_t y) {
    const fft_points line = {t->row, t->other, VF_LANES};
    fft_line(&line, &line);
    for (int64_t k = 0; k < FFT_H; k++) {
        const int64_t m = (FFT_T - k) % FFT_T, to = (y * FFT_H + k) * VF_LANES, next = to + FFT_H * VF_LANES;
        const vf r = vf_load(t->row + k * VF_LANES), i = vf_load(t->other + k * VF_LANES);
        const vf s = vf_load(t->row + m * VF_LANES), j = vf_load(t->other + m * VF_LANES);
        vf_store(t->re + to, vf_add(r, s)), vf_store(t->im + to, vf_sub(i, j));
        vf_store(t->re + next, vf_add(i, j)), vf_store(t->im + next, vf_sub(s, r));
    }
}

/* The other way: the spectra of rows y and y + 1 to FFT_T times the rows. */
VF_INLINE void fft_rows_back(const fft_tile *t, int64_t y) {
    for (int64_t k = 0; k < FFT_H; k++) {
        const int64_t m = (FFT_T - k) % FFT_T, from = (y * FFT_H + k) * VF_LANES, next = from + FFT_H * VF_LANES;
        const vf ar = vf_load(t->re + from), ai = vf_load(t->im + from);
        const vf br = vf_load(t->re + next), bi = vf_load(t->im + next);
        vf_store(t->row + m * VF_LANES, vf_add(ar, bi)), vf_store(t->other + m * VF_LANES, vf_sub(br, ai));
        vf_store(t->row + k * VF_LANES, vf_sub(ar, bi)), vf_store(t->other + k * VF_LANES, vf_add(ai, br));
    }
    const fft_points line = {t->other, t->row, VF_LANES};
    fft_line(&line, &line);
}

/* The spectrum of a tile outside: FFT_F points, each a vector of real parts and one of imaginary parts, `point` floats
 * apart. Point r of column k of it; of the first and the last column, those of real values, the first half. */
VF_INLINE int64_t fft_at(int64_t k) { return k == 0 ? 0 : k == FFT_H - 1 ? FFT_H : 2 * FFT_H + (k - 1) * FFT_T; }

VF_INLINE fft_points fft_column(const fft_tile *t, int64_t k) {
    return (fft_points){t->re + k * VF_LANES, t->im + k * VF_LANES, FFT_H * VF_LANES};
}

VF_INLINE void fft_columns(const fft_tile *t, float *to, int64_t point) {
    for (int64_t k = 0; k < FFT_H; k++) {
        const bool real = k == 0 || k == FFT_H - 1;
        const fft_points line = fft_column(t, k),
                         out = {to + fft_at(k) * point, to + fft_at(k) * point + VF_LANES, point};
        fft_line(&line, real ? &line : &out);
        for (int64_t r = 0; r < FFT_H && real; r++) {
            vf_store(out.re + r * point, vf_load(line.re + r * line.step));
            vf_store(out.im + r * point, vf_load(line.im + r * line.step));
        }
    }
}
VF_INLINE void fft_columns_back(const fft_tile *t, float *from, int64_t point) {
    for (int64_t k = 0; k < FFT_H; k++) {
        const bool real = k == 0 || k == FFT_H - 1;
        const fft_points line = fft_column(t, k),
                         in = {from + fft_at(k) * point, from + fft_at(k) * point + VF_LANES, point};
        for (int64_t r = 0; r < FFT_T && real; r++) {
            const int64_t at = (r < FFT_H ? r : FFT_T - r) * point;
            vf_store(line.re + r * line.step, vf_load(in.re + at));
            vf_store(line.im + r * line.step, r < FFT_H ? vf_load(in.im + at) : vf_sub(vf_zero(), vf_load(in.im + at)));
        }
        const fft_points turned = {line.im, line.re, line.step}, outside = {in.im, in.re, in.step};
        fft_line(real ? &turned : &outside, &turned);
    }
}

#endif
