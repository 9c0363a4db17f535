/* Convolution with few channels a group: what its kernels share.
 * The image of one or more groups is laid out as f32 planes with rows of one pitch, padding included. Then a tap is an
 * offset, the same for every position, and vectors run over whole blocks of rows; between the rows they compute what
 * nobody reads, span / pitch of it. With a stride, each residue of row and column has a sheet of its own, and the same
 * holds for it. Channels-last data is transposed on that way, a vector of channels at a time: so many groups are laid
 * together as fill one. */
#ifndef WEFT_CPU_CONV_GROUPED_H
#define WEFT_CPU_CONV_GROUPED_H

#include "cpu/conv/gemm_view.h"

enum { GROUPED_WANTED = 16 }; /* blocks */

/* The blocks of rows of a view, and the slab of one of them: [channel][tap along depth][residue of row, of
 * column][row][pitch]. */
typedef struct grouped_slab {
    int64_t lo[3], span[3];       /* where the window begins, and how far it reaches */
    int64_t reach[3];             /* the same in positions of the view */
    int64_t sheet;                /* floats of one residue */
    int64_t bundle, bundles;      /* groups laid together, at most; how many such bundles */
    int64_t rows, blocks, pitch;  /* rows of a block, at most; blocks of a plane; floats of a row */
    int64_t plane, channel, size; /* floats of a plane; of the planes of a channel; of the slab */
    bool last;                    /* channels-last */
} grouped_slab;

typedef struct grouped_image { /* a dense tensor */
    const void *at;
    int dtype;
    bool last;
    int64_t channels, size[3];
    gemm_factor factor; /* of its positions; channels-first */
} grouped_image;

VF_INLINE grouped_image grouped_image_of(const weft__exec *e, int role, int64_t channels, const int64_t *size,
                                         bool last) {
    return (grouped_image){.at = e->ptr[role],
                           .dtype = weft__tensor(e->p, role)->dtype,
                           .last = last,
                           .channels = channels,
                           .size = {size[0], size[1], size[2]}};
}

/* most: channels of a group, in and out. NULL, or why not. */
static inline const char *grouped_refusal(const weft_problem *p, bool fwd, int64_t most, bool *last) {
    *last = cpu_layout_refusal(p, WEFT_LAYOUT_FIRST) != NULL;
    const char *reason = gemm_refusal(p, *last ? WEFT_LAYOUT_LAST : WEFT_LAYOUT_FIRST);
    if (reason) return reason;
    if (p->stride[0] > 4 || p->stride[1] > 4 || p->stride[2] > 4) return "a stride is over 4";
    if (gemm_is_pointwise(p) || (!fwd && gemm_is_spread(p))) return "a 1x1 window, or windows side by side";
    if (p->c > most * p->groups || p->o > most * p->groups) return "too many channels a group";
    return NULL;
}

/* The slab of a view. bytes: what stays near, of the slab and of `outs` sums a position. NULL, or why not. */
static inline const char *grouped_cut(grouped_slab *d, const gemm_view *v, bool last, int64_t bytes, int64_t outs) {
    if (v->pixels == 0) return "no positions";
    d->last = last;
    for (int a = 0; a < 3; a++) {
        const int64_t end = v->x[a].at + WEFT__MAX(v->x[a].taps - 1, 0) * v->x[a].hop;
        d->lo[a] = WEFT__MIN(v->x[a].at, end), d->span[a] = WEFT__MAX(v->x[a].at, end) - d->lo[a];
        d->reach[a] = d->span[a] / v->x[a].move;
    }
    const int64_t most = d->last ? VF_LANES / WEFT__MAX(v->ci, v->co) : 1, sheets = v->x[1].move * v->x[2].move;
    d->bundles = cpu_ceil(v->groups, WEFT__MAX(most, 1)), d->bundle = cpu_ceil(v->groups, d->bundles);
    d->pitch = v->x[2].count + d->reach[2];
    const int64_t planes = d->bundle * v->ci * WEFT__MAX(v->x[0].taps, 1) * sheets;
    int64_t fit = bytes / (planes * d->pitch * 4) - d->reach[1];
    if (outs) fit = WEFT__MIN(fit, WEFT__MAX(1, bytes / (d->bundle * outs * d->pitch * 4)));
    if (outs) { /* one image of few groups is work for several threads, too */
        const int64_t rows = v->x[1].count * d->bundles * v->n * v->x[0].count / GROUPED_WANTED;
        fit = WEFT__MIN(fit, WEFT__MAX(rows, 2 * (d->reach[1] + 1)));
    }
    if (fit < 1) return "one row of the group's input is larger than a cache";
    d->blocks = cpu_ceil(v->x[1].count, WEFT__MIN(fit, v->x[1].count));
    d->rows = cpu_ceil(v->x[1].count, d->blocks);
    d->sheet = (d->rows + d->reach[1]) * d->pitch;
    d->plane = sheets * d->sheet + VF_LANES;
    d->channel = v->x[0].taps * d->plane;
    d->size = cpu_round_up(d->bundle * v->ci * d->channel + GEMM_NR, 16);
    return NULL;
}

/* ---------------------------------------------------------------- laying planes */
VF_INLINE void grouped_zero(float *to, int64_t count) {
    for (int64_t j = 0; j < count; j += VF_LANES) vf_store(to + j, vf_zero());
}

/* A place in an image: of plane z every down-th row from y on, `height` of them, and every move-th column from x on,
 * `pitch` of them; outside the image are zeros. */
typedef struct grouped_place {
    int64_t n, channel, count; /* count channels from `channel` on */
    int64_t z, y, x, height, pitch;
    int64_t down, move;
} grouped_place;

/* Columns lo <= j < hi of it are in the image. */
VF_INLINE void grouped_columns(const grouped_image *m, const grouped_place *at, int64_t *lo, int64_t *hi) {
    *lo = at->x < 0 ? WEFT__MIN(cpu_ceil(-at->x, at->move), at->pitch) : 0;
    *hi = at->x < m->size[2] ? WEFT__MIN(at->pitch, cpu_ceil(m->size[2] - at->x, at->move)) : 0;
}

VF_INLINE bool grouped_is_outside(const grouped_image *m, const grouped_place *at, int64_t row) {
    return at->z < 0 || at->z >= m->size[0] || at->y + row * at->down < 0 || at->y + row * at->down >= m->size[1];
}

/* Columns lo .. hi of a row, every move-th from `from` on; whole vectors are written. */
VF_INLINE void grouped_lay_row(const grouped_image *m, int64_t from, const int64_t move, int64_t lo, int64_t hi,
                               float *row, const int dtype) {
    int64_t j = lo;
    for (; j + VF_LANES <= hi && move == 1; j += VF_LANES) vf_store(row + j, vf_load_as(dtype, m->at, from + j));
    for (; j < hi; j += VF_LANES) vf_store(row + j, gemm_load_every(m->at, from + j * move, move, 0, hi - j, dtype));
}
static inline void grouped_mask_row(const gemm_factor *f, int64_t from, int64_t move, int64_t lo, int64_t hi,
                                    float *row) {
    for (int64_t j = lo; j < hi; j += VF_LANES) {
        const vf factor = gemm_load_every(f->at, from + j * move, move, 0, hi - j, WEFT_DTYPE_F32);
        vf_store(row + j, gemm_factor_apply(vf_load(row + j), factor, f->selects));
    }
}

VF_INLINE void grouped_lay_first(const grouped_image *m, const grouped_place *at, float *to, int64_t channel,
                                 const int dtype) {
    int64_t lo, hi;
    grouped_columns(m, at, &lo, &hi);
    for (int64_t c = 0; c < at->count; c++) {
        float *row = to + c * channel;
        const int64_t plane = ((at->n * m->channels + at->channel + c) * m->size[0] + at->z) * m->size[1] + at->y;
        for (int64_t i = 0; i < at->height; i++, row += at->pitch) {
            const int64_t from = (plane + i * at->down) * m->size[2] + at->x;
            if (grouped_is_outside(m, at, i) || lo >= hi) {
                grouped_zero(row, at->pitch);
                continue;
            }
            grouped_zero(row, lo);
            if (at->move == 1)
                grouped_lay_row(m, from, 1, lo, hi, row, dtype);
            else if (at->move == 2)
                grouped_lay_row(m, from, 2, lo, hi, row, dtype);
            else
                grouped_lay_row(m, from, at->move, lo, hi, row, dtype);
            if (m->factor.at) {
                const int64_t y = at->z * m->size[1] + at->y + i * at->down;
                grouped_mask_row(&m->factor, at->n * m->factor.image + y * m->size[2] + at->x, at->move, lo, hi, row);
            }
            grouped_zero(row + hi, at->pitch - hi);
        }
        vf_store(row, vf_zero());
    }
}

VF_INLINE void grouped_lay_last(const grouped_image *m, const grouped_place *at, float *to, int64_t channel,
                                const int dtype) {
    int64_t lo, hi;
    grouped_columns(m, at, &lo, &hi);
    for (int64_t i = 0; i < at->height; i++, to += at->pitch) {
        const bool outside = grouped_is_outside(m, at, i) || lo >= hi;
        for (int64_t c = 0; c < at->count; c++) grouped_zero(to + c * channel, outside ? at->pitch : lo);
        if (outside) continue;
        const int64_t pixel = ((at->n * m->size[0] + at->z) * m->size[1] + at->y + i * at->down) * m->size[2] + at->x;
        for (int64_t j = lo; j < hi; j += VF_LANES)
            for (int64_t c = 0; c < at->count; c += VF_LANES) {
                vf block[VF_LANES];
                VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                    const int64_t from = (pixel + (j + l) * at->move) * m->channels + at->channel + c;
                    block[l] = j + l < hi ? vf_load_count_as(dtype, m->at, from, at->count - c) : vf_zero();
                }
                vf_transpose(block);
                VF_UNROLL for (int l = 0; l < VF_LANES; l++) {
                    if (c + l < at->count) vf_store(to + (c + l) * channel + j, block[l]);
                }
            }
        for (int64_t c = 0; c < at->count; c++) grouped_zero(to + c * channel + hi, at->pitch - hi);
    }
    for (int64_t c = 0; c < at->count; c++) vf_store(to + c * channel, vf_zero());
}

/* The place as f32, `channel` floats from one channel to the next; a vector of zeros behind each. */
static inline void grouped_lay(const grouped_image *m, const grouped_place *at, float *to, int64_t channel) {
    if (m->last)
        GEMM_BY_DTYPE(m->dtype, grouped_lay_last, m, at, to, channel);
    else
        GEMM_BY_DTYPE(m->dtype, grouped_lay_first, m, at, to, channel);
}

/* ---------------------------------------------------------------- a slab that moves along depth */
typedef struct grouped_block { /* rows y0 .. y1 of plane z of a bundle */
    int64_t n, first, groups;  /* groups of the bundle */
    int64_t z, y0, y1;
} grouped_block;

/* Block number i, depth innermost: neighbours share planes. */
VF_INLINE grouped_block grouped_block_of(const grouped_slab *d, const gemm_view *v, int64_t bundle, int64_t i) {
    const int64_t z = i % v->x[0].count, block = i / v->x[0].count % d->blocks;
    grouped_block b = {.n = i / v->x[0].count / d->blocks, .first = gemm_first(v->groups, d->bundles, bundle), .z = z};
    b.groups = gemm_first(v->groups, d->bundles, bundle + 1) - b.first;
    b.y0 = gemm_first(v->x[1].count, d->blocks, block), b.y1 = gemm_first(v->x[1].count, d->blocks, block + 1);
    return b;
}

/* Neighbours along depth have all planes but one in common. */
VF_INLINE bool grouped_rolls(const gemm_view *v) {
    return v->x[0].move == 1 && (v->x[0].taps == 1 || v->x[0].hop == 1 || v->x[0].hop == -1);
}
/* Which of the planes of a channel tap r along depth is in. */
VF_INLINE int64_t grouped_ring(const gemm_view *v, int64_t z, int64_t r) {
    const int64_t taps = v->x[0].taps, iz = z + v->x[0].at + r * v->x[0].hop;
    return grouped_rolls(v) ? (iz % taps + taps) % taps : r;
}

/* The planes a block reads; `next`: the slab has those of the plane before. */
static inline void grouped_move(const grouped_slab *d, const gemm_view *v, const grouped_image *m,
                                const grouped_block *b, bool next, float *slab) {
    const bool some = next && b->z > 0 && grouped_rolls(v);
    const int64_t down = v->x[1].move, move = v->x[2].move;
    for (int64_t r = 0; r < v->x[0].taps; r++) {
        const int64_t z = b->z * v->x[0].move + v->x[0].at + r * v->x[0].hop;
        if (some && z < b->z + d->lo[0] + d->span[0]) continue;
        float *to = slab + grouped_ring(v, b->z, r) * d->plane;
        for (int64_t i = 0; i < down * move; i++, to += d->sheet) {
            const grouped_place at = {.n = b->n,
                                      .channel = b->first * v->ci,
                                      .count = b->groups * v->ci,
                                      .z = z,
                                      .y = b->y0 * down + d->lo[1] + i / move,
                                      .x = d->lo[2] + i % move,
                                      .height = b->y1 - b->y0 + d->reach[1],
                                      .pitch = d->pitch,
                                      .down = down,
                                      .move = move};
            grouped_lay(m, &at, to, d->channel);
        }
    }
}

/* Where tap (r, s, t) of a channel is, from position 0 of its planes. */
VF_INLINE int64_t grouped_offset(const grouped_slab *d, const gemm_view *v, int64_t z, int64_t r, int64_t s,
                                 int64_t t) {
    const int64_t y = v->x[1].at + s * v->x[1].hop - d->lo[1], x = v->x[2].at + t * v->x[2].hop - d->lo[2];
    const int64_t down = v->x[1].move, move = v->x[2].move, sheet = y % down * move + x % move;
    return grouped_ring(v, z, r) * d->plane + sheet * d->sheet + y / down * d->pitch + x / move;
}

#endif
