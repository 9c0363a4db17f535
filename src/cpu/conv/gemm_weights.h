/* The weight gradient of dense and grouped convolution, both layouts, as a matrix product over positions.
 * Math:      diff_weights[o][n] = sum_q diff_dst[q][o] * image[q][n],  n = (tap, channel), q = a position of the batch
 * Blocking:  an item is a range of channels with all taps, a range of outputs and a range of positions. A strip of
 *            positions is laid out as rows of f32, channels in vectors, in the second-level cache: there channels-first
 *            data is transposed, 16-bit data converted, padding becomes zeros. Channels-last f32 is read where it is if
 *            the window is 1x1 (image) and always (diff_dst). Windows side by side (kernel = stride), channels-first:
 *            columns are in the order of the weights, a row of the window of one channel is copied at once, and takes
 *            the place of a channel (`run`). Sums wait in scratch from strip to strip
 * Sums:      positions are cut by the problem alone, and the parts are added in their order: bits do not depend on
 *            threads
 * Pairs:     the file that includes this says by GEMM_PAIRS whether products are of f32, or of bf16 by dot products of
 *            pairs of positions: then two rows of a strip become one of pairs
 * Roofline:  multiply-add peak
 * Assumes:   src and diff_dst dense in one layout, diff_weights dense channels-first, or channels-last beside such data
 * Try:       weft bench conv2d:bwd_weights:f32:nchw:n1c256h56w56:o256k3p1 */
#ifndef WEFT_CPU_CONV_GEMM_WEIGHTS_H
#define WEFT_CPU_CONV_GEMM_WEIGHTS_H

#include "cpu/conv/gemm_view.h"

enum {
    STRIP_BYTES = CPU_CUT(256 << 10, 8 << 10),
    STRIP_MOST = 256,
    STRIP_LEAST = 32,
    COLUMNS = 384,
    ROWS = 256,
    WANTED = 16,
    LEAST = 8,
    SPLIT_LEAST = 96,
    ADDERS = 8, /* slots that add the parts of the sums of an item */
    LINE = 1024 /* columns of a row that are turned at once, at most */
};

/* ns to put one weight where it belongs, on one thread. */
#define PUT_NS 0.7

typedef struct params {
    bool last;                    /* channels-last */
    bool weights_last;            /* diff_weights is [o][tap][channel], as the sums are */
    bool rows_here, columns_here; /* diff_dst, image: read where they are */
    int64_t run;                  /* elements of a row of a window that is copied at once; 0: no such rows */
    int64_t channels, outs;       /* parts of the channels and of the outputs of a group */
    int64_t splits, strip;        /* parts of the positions; positions of a strip */
    int64_t tiles;                /* floats of the sums of an item */
    int64_t bias_splits;
    size_t columns, rows, scratch; /* bytes of one slot */
    size_t partial;                /* bytes of the sums of all parts; 0: one part */
} params;
_Static_assert(sizeof(params) <= GEMM_WEIGHTS_PARAMS, "the kernels that use this one keep its parameters");

typedef struct job {
    const weft__exec *e;
    const params *d;
    gemm_view v;
    const void *src, *diff_dst;
    int src_dtype, diff_dtype;
    const gemm_factors *factors;
    float *partial;
    gemm_out out;
    gemm_scratch scratch;
    int64_t items, slots;
} job;

typedef struct item {
    int64_t group, c0, cr, m0, mr; /* channels, or rows of windows, and outputs of the group */
    int64_t q0, q1;                /* positions */
    int64_t n, vectors, pitch;     /* columns: of each channel its taps, or the run; floats from row to row of them */
} item;

static int64_t channels_of(const gemm_view *v, int64_t run) {
    return run ? v->ci * v->x[0].taps * v->x[1].taps : v->ci;
}
static int64_t columns_of(const gemm_view *v, int64_t run, int64_t channels) {
    return (run ? run : v->taps) * channels;
}
/* Each tap of a row, and each run, is written in whole vectors. */
static int64_t pitch_of(const gemm_view *v, int64_t run, int64_t channels) {
    if (run) return cpu_round_up(run * channels, VF_LANES) + (run % VF_LANES ? VF_LANES : 0);
    return cpu_round_up((v->taps - 1) * channels + cpu_round_up(channels, VF_LANES), VF_LANES);
}

static item item_of(const job *q, int64_t i) {
    const params *d = q->d;
    const gemm_view *v = &q->v;
    const int64_t split = i % d->splits, out = i / d->splits % d->outs, channel = i / d->splits / d->outs % d->channels;
    item it = {.group = i / d->splits / d->outs / d->channels};
    const int64_t channels = channels_of(v, d->run);
    it.c0 = gemm_first(channels, d->channels, channel);
    it.cr = gemm_first(channels, d->channels, channel + 1) - it.c0;
    it.m0 = gemm_first(v->co, d->outs, out), it.mr = gemm_first(v->co, d->outs, out + 1) - it.m0;
    it.q0 = gemm_first(v->pixels, d->splits, split), it.q1 = gemm_first(v->pixels, d->splits, split + 1);
    it.n = columns_of(v, d->run, it.cr);
    it.vectors = cpu_ceil(it.n, VF_LANES);
    it.pitch = pitch_of(v, d->run, it.cr);
    return it;
}

/* Pairs are of bf16 alone. */
#define BY_DTYPE(dtype, call, ...)                   \
    do {                                             \
        if (GEMM_PAIRS)                              \
            call(__VA_ARGS__, WEFT_DTYPE_BF16);      \
        else                                         \
            GEMM_BY_DTYPE(dtype, call, __VA_ARGS__); \
    } while (0)

/* ---------------------------------------------------------------- strips as rows of f32 */
static void find_position(const gemm_view *v, int64_t q, int64_t at[4]) {
    for (int a = 2; a >= 0; q /= v->x[a].count, a--) at[a + 1] = q % v->x[a].count;
    at[0] = q;
}

VF_INLINE void copy_run(float *to, const void *in, int64_t from, int64_t count, const int dtype) {
    int64_t j = 0;
    for (; j + VF_LANES <= count; j += VF_LANES) vf_store(to + j, vf_load_as(dtype, in, from + j));
    if (j < count) vf_store(to + j, vf_load_count_as(dtype, in, from + j, count - j));
}

/* Channels-first: lanes lo <= i < hi of VF_LANES positions from `from` on, every `move`-th, of `channels` planes, to
 * rows of pitch ld, `count` of them; other positions are zeros. Whole vectors are written. */
VF_INLINE void turn(float *to, int64_t ld, const void *in, int64_t from, int64_t plane, int64_t move, int64_t channels,
                    int64_t count, int64_t lo, int64_t hi, const float *factor, bool selects, const int dtype) {
    const vf scale = factor && lo < hi ? gemm_load_every(factor, 0, move, lo, hi, WEFT_DTYPE_F32) : vf_zero();
    for (int64_t c = 0; c < channels; c += VF_LANES) {
        vf block[VF_LANES];
        for (int i = 0; i < VF_LANES; i++) { /* unrolled: no faster, twice the time to compile */
            const int64_t at = from + (c + i) * plane;
            block[i] = c + i < channels && lo < hi ? gemm_load_every(in, at, move, lo, hi, dtype) : vf_zero();
            if (factor) block[i] = gemm_factor_apply(block[i], scale, selects);
        }
        vf_transpose(block);
        VF_UNROLL for (int i = 0; i < VF_LANES; i++) {
            if (i < count) vf_store(to + i * ld + c, block[i]);
        }
    }
}

VF_INLINE void scale_row(float *row, int64_t count, float factor, bool selects) {
    for (int64_t j = 0; j < count; j += VF_LANES)
        vf_store(row + j, gemm_factor_apply(vf_load(row + j), vf_set1(factor), selects));
}

/* The image: for each position of [q0, q1) a row of taps * cr columns. */
VF_INLINE void lay_columns(const job *q, const item *it, int64_t q0, int64_t q1, float *to, const int dtype) {
    const gemm_view *v = &q->v;
    const gemm_axis *x = &v->x[2];
    const gemm_factor *f = &q->factors->in;
    const int64_t ld = it->pitch, channel = it->group * v->ci + it->c0;
    for (int64_t p = q0, step; p < q1; p += step, to += step * ld) {
        int64_t at[4];
        find_position(v, p, at);
        step = q->d->last ? 1 : WEFT__MIN(WEFT__MIN(VF_LANES, x->count - at[3]), q1 - p);
        float *row = to;
        for (int64_t r = 0; r < v->x[0].taps; r++)
            for (int64_t s = 0; s < v->x[1].taps; s++) {
                const int64_t z = at[1] * v->x[0].move + v->x[0].at + r * v->x[0].hop;
                const int64_t y = at[2] * v->x[1].move + v->x[1].at + s * v->x[1].hop;
                const bool outside = z < 0 || z >= v->x[0].in || y < 0 || y >= v->x[1].in;
                for (int64_t t = 0; t < x->taps; t++, row += it->cr) {
                    const int64_t begin = at[3] * x->move + x->at + t * x->hop;
                    const int64_t lo = begin < 0 ? cpu_ceil(-begin, x->move) : 0;
                    const int64_t hi =
                        outside || begin >= x->in ? 0 : WEFT__MIN(step, (x->in - 1 - begin) / x->move + 1);
                    const int64_t pixel = (z * v->x[1].in + y) * x->in + begin;
                    const float *scale = f->at ? f->at + at[0] * f->image + pixel : NULL;
                    if (q->d->last && lo < hi) {
                        copy_run(row, q->src, (at[0] * v->in_plane + pixel) * v->groups * v->ci + channel, it->cr,
                                 dtype);
                        if (scale) scale_row(row, it->cr, *scale, f->selects);
                    } else if (q->d->last) {
                        for (int64_t j = 0; j < it->cr; j += VF_LANES) vf_store(row + j, vf_zero());
                    } else {
                        const int64_t from = (at[0] * v->groups * v->ci + channel) * v->in_plane + pixel;
                        if (x->move == 1)
                            turn(row, ld, q->src, from, v->in_plane, 1, it->cr, step, lo, hi, scale, f->selects, dtype);
                        else if (x->move == 2)
                            turn(row, ld, q->src, from, v->in_plane, 2, it->cr, step, lo, hi, scale, f->selects, dtype);
                        else
                            turn(row, ld, q->src, from, v->in_plane, x->move, it->cr, step, lo, hi, scale, f->selects,
                                 dtype);
                    }
                }
            }
    }
}

/* Runs of 2 and 4 as one element. */
static void copy_short(float *to, int64_t ld, const float *from, int64_t count, int64_t run) {
    for (int64_t i = 0; i < count; i++, to += ld, from += run)
        if (run == 2)
            memcpy(to, from, 2 * sizeof(float));
        else if (run == 4)
            memcpy(to, from, 4 * sizeof(float));
        else
            for (int64_t j = 0; j < run; j++) to[j] = from[j];
}

/* The same where windows lie side by side: row c of the windows of a row of positions, one after the other. */
VF_INLINE void lay_runs(const job *q, const item *it, int64_t q0, int64_t q1, float *to, const int dtype) {
    const gemm_view *v = &q->v;
    const gemm_factor *f = &q->factors->in;
    const int64_t kh = v->x[1].taps, kd = v->x[0].taps, run = q->d->run, ld = it->pitch;
    for (int64_t p = q0, step; p < q1; p += step, to += step * ld) {
        int64_t at[4];
        find_position(v, p, at);
        step = WEFT__MIN(v->x[2].count - at[3], q1 - p);
        for (int64_t c = it->c0; c < it->c0 + it->cr; c++) {
            const int64_t z = at[1] * kd + c / kh % kd, y = at[2] * kh + c % kh, channel = c / kh / kd;
            const int64_t pixel = (z * v->x[1].in + y) * v->x[2].in + at[3] * run;
            const int64_t from = ((at[0] * v->groups + it->group) * v->ci + channel) * v->in_plane + pixel;
            const float *scale = f->at ? f->at + at[0] * f->image + pixel : NULL;
            float *row = to + (c - it->c0) * run;
            if (dtype == WEFT_DTYPE_F32 && !scale && run <= 4) {
                copy_short(row, ld, (const float *)q->src + from, step, run);
                continue;
            }
            for (int64_t i = 0; i < step; i++, row += ld)
                for (int64_t j = 0; j < run; j += VF_LANES) {
                    vf value = vf_load_count_as(dtype, q->src, from + i * run + j, run - j);
                    if (scale)
                        value = gemm_factor_apply(value, vf_load_count(scale + i * run + j, run - j), f->selects);
                    vf_store(row + j, value);
                }
        }
    }
}

/* diff_dst: for each position a row of mr outputs, pitch ld. */
VF_INLINE void lay_rows(const job *q, const item *it, int64_t q0, int64_t q1, int64_t ld, float *to, const int dtype) {
    const gemm_view *v = &q->v;
    const gemm_factor *f = &q->factors->diff;
    const int64_t image = v->pixels / v->n, out = it->group * v->co + it->m0;
    for (int64_t p = q0, step; p < q1; p += step, to += step * ld) {
        const int64_t n = p / image, at = p - n * image;
        step = q->d->last ? 1 : WEFT__MIN(WEFT__MIN(VF_LANES, image - at), q1 - p);
        const float *scale = f->at ? f->at + n * f->image + at : NULL;
        if (!q->d->last) {
            turn(to, ld, q->diff_dst, (n * v->groups * v->co + out) * image + at, image, 1, it->mr, step, 0, step,
                 scale, f->selects, dtype);
            continue;
        }
        copy_run(to, q->diff_dst, p * v->groups * v->co + out, it->mr, dtype);
        if (scale) scale_row(to, it->mr, *scale, f->selects);
    }
}

/* Two rows each become one of pairs, in place; a last row alone has zeros beside it. */
static void pair_rows(float *rows, int64_t ld, int64_t count) {
    for (int64_t i = 0; i < count; i += 2)
        for (int64_t j = 0; j < ld; j += VF_LANES) {
            const vf second = i + 1 < count ? vf_load(rows + (i + 1) * ld + j) : vf_zero();
            vf_store(rows + i / 2 * ld + j, gemm_pair(vf_load(rows + i * ld + j), second));
        }
}

/* ---------------------------------------------------------------- one item */
static void run_item(const job *q, const item *it, char *scratch, float *sums) {
    const params *d = q->d;
    const gemm_view *v = &q->v;
    float *columns = (float *)(void *)scratch, *rows = (float *)(void *)(scratch + d->columns);
    const int64_t np = gemm_split(it->vectors, GEMM_NV), mp = gemm_split(it->mr, GEMM_MR);
    const int64_t strips = cpu_ceil(it->q1 - it->q0, d->strip);
    for (int64_t i = 0; i < strips; i++) {
        const int64_t q0 = it->q0 + gemm_first(it->q1 - it->q0, strips, i);
        const int64_t q1 = it->q0 + gemm_first(it->q1 - it->q0, strips, i + 1);
        const float *b = columns, *a = rows;
        int64_t ldb = it->pitch, lda = cpu_round_up(it->mr, VF_LANES);
        if (d->columns_here)
            ldb = v->groups * v->ci, b = (const float *)q->src + q0 * ldb + it->group * v->ci + it->c0;
        else if (d->run)
            BY_DTYPE(q->src_dtype, lay_runs, q, it, q0, q1, columns);
        else
            BY_DTYPE(q->src_dtype, lay_columns, q, it, q0, q1, columns);
        if (d->rows_here)
            lda = v->groups * v->co, a = (const float *)q->diff_dst + q0 * lda + it->group * v->co + it->m0;
        else
            BY_DTYPE(q->diff_dtype, lay_rows, q, it, q0, q1, lda, rows);
        if (GEMM_PAIRS) pair_rows(columns, ldb, q1 - q0), pair_rows(rows, lda, q1 - q0);
        for (int64_t j = 0; j < np; j++) {
            const int64_t n0 = gemm_first(it->vectors, np, j), n1 = gemm_first(it->vectors, np, j + 1);
            for (int64_t k = 0; k < mp; k++) {
                const int64_t m0 = gemm_first(it->mr, mp, k), m1 = gemm_first(it->mr, mp, k + 1);
                float *sum = sums + (j * mp + k) * GEMM_MR * GEMM_NR;
                gemm_tile t = {.k = GEMM_PAIRS ? cpu_ceil(q1 - q0, 2) : q1 - q0,
                               .a = a + m0,
                               .lda = lda,
                               .b = b + n0 * VF_LANES,
                               .ldb = ldb,
                               .from = i ? sum : NULL,
                               .ld_from = GEMM_NR,
                               .c = sum,
                               .ldc = GEMM_NR,
                               .tail = VF_LANES};
                gemm_multiply(&t, m1 - m0, n1 - n0);
            }
        }
    }
}

/* One row of sums, [tap][channel], as diff_weights has it, [channel][tap]. */
static void put_line(const job *q, const item *it, int64_t at, const float *line) {
    const int64_t taps = q->v.taps;
    float turned[LINE + VF_LANES * VF_LANES];
    for (int64_t c = 0; c < it->cr; c += VF_LANES)
        for (int64_t t = 0; t < taps; t += VF_LANES) {
            vf block[VF_LANES];
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) block[l] =
                t + l < taps ? vf_load(line + (t + l) * it->cr + c) : vf_zero();
            vf_transpose(block);
            VF_UNROLL for (int l = 0; l < VF_LANES; l++) if (c + l < it->cr)
                vf_store_count(turned + (c + l) * taps + t, block[l], taps - t);
        }
    gemm_put_run(&q->out, at, 1, turned, it->n, 0, false);
}

/* Of the blocks of rows k0 <= k < k1: columns (tap, channel) of a row of sums to diff_weights[o][channel][tap], where
 * it fits as one line; runs are in that order. */
static void put_sums(const job *q, const item *it, const float *sums, int64_t k0, int64_t k1) {
    const gemm_view *v = &q->v;
    const int64_t np = gemm_split(it->vectors, GEMM_NV), mp = gemm_split(it->mr, GEMM_MR);
    const bool whole = !q->d->run && !q->d->weights_last && it->n <= LINE;
    float line[LINE + VF_LANES];
    for (int64_t k = k0; k < k1; k++) {
        const int64_t m0 = gemm_first(it->mr, mp, k), m1 = gemm_first(it->mr, mp, k + 1);
        for (int64_t m = m0; m < m1; m++) {
            const int64_t o = it->group * v->co + it->m0 + m;
            for (int64_t j = 0; j < np; j++) {
                const float *row = sums + (j * mp + k) * GEMM_MR * GEMM_NR + (m - m0) * GEMM_NR;
                const int64_t n0 = gemm_first(it->vectors, np, j) * VF_LANES;
                const int64_t n1 = WEFT__MIN(it->n, gemm_first(it->vectors, np, j + 1) * VF_LANES);
                if (q->d->run) gemm_put_run(&q->out, o * v->k + it->c0 * q->d->run + n0, 1, row, n1 - n0, 0, false);
                for (int64_t n = n0; n < n1 && whole; n += VF_LANES) vf_store(line + n, vf_load(row + n - n0));
                for (int64_t n = n0, count; n < n1 && !q->d->run && !whole; n += count) {
                    const int64_t tap = n / it->cr, c = n - tap * it->cr;
                    count = WEFT__MIN(n1 - n, it->cr - c);
                    const int64_t channel = it->c0 + c, first = (o * v->ci + channel) * v->taps + tap;
                    const int64_t to = q->d->weights_last ? (o * v->taps + tap) * v->ci + channel : first;
                    gemm_put_run(&q->out, to, q->d->weights_last ? 1 : v->taps, row + n - n0, count, 0, false);
                }
            }
            if (whole) put_line(q, it, (o * v->ci + it->c0) * v->taps, line);
        }
    }
}

static void task(void *arg, int64_t slot) {
    job *q = arg;
    const params *d = q->d;
    const int mine = gemm_take(&q->scratch);
    char *scratch = q->scratch.base + (size_t)mine * q->scratch.bytes;
    for (int64_t i = cpu_first(q->items, q->slots, slot); i < cpu_first(q->items, q->slots, slot + 1); i++) {
        const item it = item_of(q, i);
        float *sums = d->partial ? q->partial + i * d->tiles : (float *)(void *)(scratch + d->columns + d->rows);
        run_item(q, &it, scratch, sums);
        if (!d->partial) put_sums(q, &it, sums, 0, gemm_split(it.mr, GEMM_MR));
    }
    gemm_give(&q->scratch, mine);
}

/* Parts of the positions, added to the first in their order; a slot has some blocks of rows of the sums. */
static void add_parts(void *arg, int64_t slot) {
    const job *q = arg;
    const params *d = q->d;
    const int64_t first = slot / ADDERS * d->splits, piece = slot % ADDERS;
    const item it = item_of(q, first);
    const int64_t np = gemm_split(it.vectors, GEMM_NV), mp = gemm_split(it.mr, GEMM_MR);
    const int64_t k0 = gemm_first(mp, ADDERS, piece), k1 = gemm_first(mp, ADDERS, piece + 1);
    for (int64_t i = 1; i < d->splits; i++)
        for (int64_t j = 0; j < np; j++) {
            float *to = q->partial + first * d->tiles + (j * mp + k0) * GEMM_MR * GEMM_NR;
            const float *from = to + i * d->tiles;
            for (int64_t n = 0; n < (k1 - k0) * GEMM_MR * GEMM_NR; n += VF_LANES)
                vf_store(to + n, vf_add(vf_load(to + n), vf_load(from + n)));
        }
    put_sums(q, &it, q->partial + first * d->tiles, k0, k1);
}

/* ---------------------------------------------------------------- the bias */
/* One slot: a part of the positions and every output, summed to partial[slot][o]. */
VF_INLINE void sum_outputs(const job *q, int64_t slot, const int dtype) {
    const gemm_view *v = &q->v;
    const gemm_factor *f = &q->factors->bias;
    const int64_t o = v->groups * v->co, image = v->pixels / v->n;
    const int64_t q0 = gemm_first(v->pixels, q->d->bias_splits, slot);
    const int64_t q1 = gemm_first(v->pixels, q->d->bias_splits, slot + 1), ld = cpu_round_up(o, VF_LANES);
    float *sums = q->partial + slot * ld;
    for (int64_t j = 0; j < ld; j += VF_LANES) vf_store(sums + j, vf_zero());
    if (q->d->last) {
        for (int64_t p = q0; p < q1; p++)
            for (int64_t j = 0; j < o; j += VF_LANES) {
                const float factor = f->at ? f->at[p / image * f->image + p % image] : 1;
                const vf value = vf_load_count_as(dtype, q->diff_dst, p * o + j, o - j);
                vf_store(sums + j, vf_fma(value, vf_set1(factor), vf_load(sums + j)));
            }
        return;
    }
    for (int64_t p = q0, count; p < q1; p += count) {
        const int64_t n = p / image, at = p - n * image;
        count = WEFT__MIN(q1 - p, image - at);
        for (int64_t i = 0; i < o; i++) {
            const int64_t from = (n * o + i) * image + at;
            vf sum = vf_zero();
            for (int64_t j = 0; j < count; j += VF_LANES) {
                const vf value = vf_load_count_as(dtype, q->diff_dst, from + j, count - j);
                const vf factor = f->at ? vf_load_count(f->at + n * f->image + at + j, count - j) : vf_set1(1);
                sum = vf_fma(value, factor, sum);
            }
            sums[i] += vf_sum(sum);
        }
    }
}
static void sum_task(void *arg, int64_t slot) {
    const job *q = arg;
    BY_DTYPE(q->diff_dtype, sum_outputs, q, slot);
}

static void run_bias(job *q) {
    const int64_t o = q->v.groups * q->v.co, ld = cpu_round_up(o, VF_LANES);
    q->partial = q->e->workspace;
    weft__parallel(q->e->ctx, q->d->bias_splits, sum_task, q);
    for (int64_t i = 1; i < q->d->bias_splits; i++)
        for (int64_t j = 0; j < ld; j += VF_LANES)
            vf_store(q->partial + j, vf_add(vf_load(q->partial + j), vf_load(q->partial + i * ld + j)));
    gemm_out out = gemm_out_of(q->e, WEFT_ROLE_DIFF_BIAS, NULL);
    gemm_put_run(&out, 0, 1, q->partial, o, 0, false);
}

/* ---------------------------------------------------------------- driver */
static weft_status run_gemm(const weft__exec *e, const gemm_factors *factors) {
    const params *d = e->params;
    const weft_problem *p = e->p;
    job q = {.e = e, .d = d, .v = gemm_view_of(p, true, 0), .diff_dst = e->ptr[WEFT_ROLE_DIFF_DST], .factors = factors};
    q.diff_dtype = weft__tensor(p, WEFT_ROLE_DIFF_DST)->dtype;
    if (p->math == WEFT_MATH_STRICT && p->pass != WEFT_PASS_BWD_BIAS && gemm_is_padded(p) &&
        !gemm_all_finite(weft__tensor(p, WEFT_ROLE_DIFF_DST), q.diff_dst)) {
        gemm_run_reference(e);
        return WEFT_OK;
    }
    if (weft__tensor(p, WEFT_ROLE_DIFF_BIAS)) run_bias(&q);
    if (p->pass == WEFT_PASS_BWD_BIAS) return WEFT_OK;
    q.src = e->ptr[WEFT_ROLE_SRC], q.src_dtype = weft__tensor(p, WEFT_ROLE_SRC)->dtype;
    q.out = gemm_out_of(e, WEFT_ROLE_DIFF_WEIGHTS, NULL);
    q.items = q.v.groups * d->channels * d->outs * d->splits;
    q.slots = WEFT__MIN(q.items, GEMM_SLOTS);
    q.partial = e->workspace;
    q.scratch.base = (char *)e->workspace + d->partial, q.scratch.bytes = d->scratch;
    weft__parallel(e->ctx, q.slots, task, &q);
    if (d->partial) weft__parallel(e->ctx, q.items / d->splits * ADDERS, add_parts, &q);
    return WEFT_OK;
}

static size_t bias_bytes(const weft_problem *p, params *d, const gemm_view *v) {
    const double bytes = (double)v->pixels * (double)(v->groups * v->co) * 4;
    if (!weft__tensor(p, WEFT_ROLE_DIFF_BIAS)) return 0;
    d->bias_splits = cpu_slots(WEFT__MIN(v->pixels, 32), bytes);
    return (size_t)(d->bias_splits * cpu_round_up(v->groups * v->co, VF_LANES)) * sizeof(float);
}

/* The layout of everything but diff_weights; NULL, or why not. */
static const char *layout_of(const weft_problem *p, params *d) {
    const weft_problem rest = gemm_drop_last(p);
    d->weights_last = gemm_weights_last(p);
    d->last = cpu_layout_refusal(&rest, WEFT_LAYOUT_FIRST) != NULL;
    if (d->weights_last && !d->last) return "diff_weights is channels-last beside channels-first data";
    const char *reason = gemm_refusal(&rest, d->last ? WEFT_LAYOUT_LAST : WEFT_LAYOUT_FIRST);
    if (reason && p->pass != WEFT_PASS_BWD_BIAS) return reason;
    return p->pass == WEFT_PASS_BWD_BIAS && d->last && cpu_layout_refusal(p, WEFT_LAYOUT_LAST) ? reason : NULL;
}

/* Positions of a strip, where the channels are cut into so many parts. */
static int64_t strip_of(const gemm_view *v, int64_t run, int64_t channels) {
    const int64_t cr = cpu_ceil(channels_of(v, run), channels);
    const int64_t strip = STRIP_BYTES / (cpu_round_up(columns_of(v, run, cr), VF_LANES) * 4);
    return WEFT__MAX(STRIP_LEAST, WEFT__MIN(strip, STRIP_MOST));
}

/* The parts of the channels, as few as have at most COLUMNS, or more in whole vectors where cores then have as much to
 * do each; parts of the positions, long ones; short ones, then parts of the outputs, where cores would have nothing to
 * do. */
static void cut(params *d, const gemm_view *v) {
    const int64_t channels = channels_of(v, d->run), vectors = cpu_ceil(channels, VF_LANES);
    const int64_t most = d->run ? channels : vectors, least = WEFT__MIN(cpu_ceil(v->ci * v->taps, COLUMNS), most);
    double best = 0;
    for (int64_t parts = least; parts <= WEFT__MIN(most, 2 * least); parts++) {
        const int64_t wide = v->groups * parts * d->outs, strip = strip_of(v, d->run, parts);
        if (parts > least && (d->run || vectors % parts || channels % VF_LANES)) continue;
        const int64_t splits = gemm_parts(wide, WEFT__MIN(cpu_ceil(2 * WANTED, wide), v->pixels / (2 * strip)));
        const int64_t items = wide * splits;
        const double busy =
            (double)items / (double)cpu_round_up(items, WANTED) - 0.03 * (double)(splits - 1) - 0.005 * (double)parts;
        if (parts > least && busy <= best) continue;
        best = busy, d->channels = parts, d->splits = splits, d->strip = strip;
    }
    const int64_t wide = v->groups * d->channels * d->outs;
    if (wide * d->splits < LEAST) d->splits = WEFT__MAX(1, WEFT__MIN(cpu_ceil(LEAST, wide), v->pixels / SPLIT_LEAST));
    while (v->groups * d->channels * d->outs * d->splits < LEAST / 2 && v->co / d->outs > 8 * GEMM_MR) d->outs *= 2;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *out) {
    (void)variant;
    params *d = WEFT__PARAMS(params, out);
    const char *reason = layout_of(p, d);
    if (reason) return reason;
    const bool last = d->last;
    if (GEMM_PAIRS && !gemm_is_bf16(p)) return "not all is bf16";
    const gemm_view v = gemm_view_of(p, true, 0);
    out->workspace = bias_bytes(p, d, &v);
    out->ns = cpu_cost(hw, weft__bytes(p), 0, 1);
    if (p->pass == WEFT_PASS_BWD_BIAS) return NULL;
    const bool f32 = weft__tensor(p, WEFT_ROLE_SRC)->dtype == WEFT_DTYPE_F32;
    const bool plain = p->op == WEFT_OP_CONV && !GEMM_PAIRS; /* no factors, and no pairs to make */
    d->rows_here = plain && last && weft__tensor(p, WEFT_ROLE_DIFF_DST)->dtype == WEFT_DTYPE_F32;
    d->run = !last && gemm_is_spread(p) ? p->kernel[2] : 0;
    d->outs = cpu_ceil(v.co, ROWS);
    cut(d, &v);
    d->columns_here = plain && last && f32 && gemm_is_pointwise(p) && v.ci % (d->channels * VF_LANES) == 0;
    const int64_t cr = cpu_ceil(channels_of(&v, d->run), d->channels);
    const int64_t vectors = cpu_ceil(columns_of(&v, d->run, cr), VF_LANES);
    const int64_t items = v.groups * d->channels * d->outs, mr = cpu_ceil(v.co, d->outs);
    d->tiles = gemm_split(vectors, GEMM_NV) * gemm_split(mr, GEMM_MR) * GEMM_MR * GEMM_NR;
    d->columns = d->columns_here ? 0 : (size_t)(d->strip * pitch_of(&v, d->run, cr) + VF_LANES) * sizeof(float);
    d->rows = d->rows_here ? 0 : (size_t)(d->strip * cpu_round_up(mr, VF_LANES) + VF_LANES) * sizeof(float);
    d->columns = (size_t)cpu_round_up((int64_t)d->columns, 64), d->rows = (size_t)cpu_round_up((int64_t)d->rows, 64);
    d->partial = d->splits > 1 ? (size_t)(items * d->splits * d->tiles) * sizeof(float) : 0;
    d->scratch = d->columns + d->rows + (d->partial ? 0 : (size_t)d->tiles * sizeof(float));
    const size_t bytes = d->partial + (size_t)WEFT__MIN(items * d->splits, GEMM_SLOTS) * d->scratch;
    out->workspace = WEFT__MAX(out->workspace, bytes);
    /* Multiply-adds of whole vectors, and the layout: channels-first, 180 for the taps and positions of a block that is
     * transposed, 4 vectors for a run; channels-last, 200 for each of them and 4 for each channel. Every other position
     * is twice the work, and 16 bits are where vectors are narrow. */
    const double positions = (double)v.pixels, n = (double)(vectors * VF_LANES * d->channels), m = (double)v.co;
    const double parts = (double)d->channels * (double)d->outs, halves = f32 || VF_LANES >= 16 ? 1 : 2.5,
                 turned = 14 * VF_LANES * halves * (v.x[2].move > 1 ? 1.6 : 1);
    const double block = last ? 200 + 4 * (double)cr : turned * (double)cpu_ceil(cr, VF_LANES);
    const double side = d->rows_here ? 0 : last ? 200 + 4 * (double)mr : turned * (double)cpu_ceil(mr, VF_LANES);
    const double runs = 4.0 * (double)(cr * cpu_round_up(d->run, VF_LANES));
    const double lay = parts * ((d->columns_here ? 0 : d->run ? runs : block * (double)v.taps) + side);
    const double speed = GEMM_PAIRS ? 2 / GEMM_PAIR_COST : 1;
    const double sums = 2 * (double)v.groups * positions * (n * m / speed + lay);
    out->ns += cpu_cost(hw, weft__bytes(p), cpu_uneven(hw, items * d->splits) * sums, GEMM_SHARE) +
               PUT_NS * (double)(v.groups * v.co * v.k) / hw->threads;
    return NULL;
}

#endif
