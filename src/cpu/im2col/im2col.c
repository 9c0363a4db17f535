/* Image to columns and columns to image, channels-first, any window, stride, dilation and padding, on f32, f16, bf16.
 * Each is the gradient of the other, so one kernel serves both operators. See src/ref/im2col.h.
 * Math:      columns[n,c,k,o] = image[n,c,o s - p + k d], 0 in the padding
 *            image[n,c,x] = sum_k columns[n,c,k,(x + p - k d) / s], whole quotients only
 * Blocking:  one output row at a time, vectors along it. A row of columns is a row of the image, shifted, and every
 *            second element of it for stride 2. A row of the image gathers from the rows of columns of its taps; places
 *            m, m + s, m + 2 s, ... have the same taps, and a tap of a vector of them is a run of columns. Vectors at
 *            the edges are masked; nothing is copied before
 *            Where columns are as wide as the image and stride is 1, a tap's columns are the plane, shifted, but for
 *            places whose column is outside: planes are copied as runs, by masks that are made once per slot
 * Slots:     runs of output rows, or of planes of one tap
 * Output:    leaves in whole lines, streamed past the caches where it is large
 * Traffic:   image once, columns once: memory-bound
 * Measured:  4x64x56x56, window 3, two cores of an EPYC with AVX-512, caches emptied: columns 92 to 95% of the copy's
 *            rate, 4.4 times PyTorch's speed, image 5; strides over 2 go one value after the other and are PyTorch's
 * Assumes:   both tensors dense channels-first, of one data type
 * Try:       weft bench im2col2d:fwd:f32:nchw:n4c64h56w56:k3p1 col2im2d:fwd:f32:nchw:n4c64h56w56:k3p1 */
#include "cpu/frame.h"
#include "cpu/pool/rows.h"

typedef struct params {
    int64_t slots, floats; /* floats of scratch per slot */
    bool planes;           /* columns are copied as planes */
} params;

typedef struct task {
    const weft__exec *e;
    params s;
    const void *from;
    void *to;
    int dtype;
    bool stream;
} task;

/* Elements x .. x + VF_LANES - 1 of a row that begins at `row` and has `width` elements; 0 outside. */
VF_INLINE vf cut(const void *from, int64_t row, int64_t x, int64_t width, const int dtype) {
    if (x >= 0 && x + VF_LANES <= width) return vf_load_as(dtype, from, row + x);
    if (x >= width || x <= -VF_LANES) return vf_zero();
    return x >= 0 ? vf_load_count_as(dtype, from, row + x, width - x)
                  : vf_load_in_as(dtype, vm_range(-x, width - x), from, row + x);
}

/* Elements x, x + step, x + 2 step, ... */
VF_INLINE vf cut_by(const void *from, int64_t row, int64_t x, int64_t width, int64_t step, const int dtype) {
    if (step == 1) return cut(from, row, x, width, dtype);
    if (step == 2) return vf_even(cut(from, row, x, width, dtype), cut(from, row, x + VF_LANES, width, dtype));
    float lane[VF_LANES];
    for (int i = 0; i < VF_LANES; i++) {
        const int64_t at = x + i * step;
        float one[VF_LANES] = {0};
        if (at >= 0 && at < width) vf_store(one, vf_load_count_as(dtype, from, row + at, 1));
        lane[i] = one[0];
    }
    return vf_load(lane);
}

/* Which row it is, the last count fastest: plane, tap along each axis, depth and height; of the image plane, depth and
 * height, the others 1. */
enum { PLANE, KZ, KY, KX, Z, Y, COUNTS };

/* Divisions cost as much as a row: they are for the first row of a slot. */
VF_INLINE void find(int64_t i, const int64_t size[COUNTS], int64_t at[COUNTS]) {
    for (int a = Y; a > PLANE; a--) at[a] = i % size[a], i /= size[a];
    at[PLANE] = i;
}
VF_INLINE void next(const int64_t size[COUNTS], int64_t at[COUNTS]) {
    int a = Y;
    for (; a > PLANE && ++at[a] == size[a]; a--) at[a] = 0;
    if (a == PLANE) at[PLANE]++;
}

/* A row of the columns. */
VF_INLINE void row_of_columns(const task *q, const int64_t at[COUNTS], float *to, const int dtype) {
    const weft_problem *p = q->e->p;
    const int64_t *in = p->in;
    const int64_t iz = at[Z] * p->stride[0] - p->pad_lo[0] + at[KZ] * p->dilation[0];
    const int64_t iy = at[Y] * p->stride[1] - p->pad_lo[1] + at[KY] * p->dilation[1];
    const bool inside = iz >= 0 && iz < in[0] && iy >= 0 && iy < in[1];
    const int64_t row = ((at[PLANE] * in[0] + iz) * in[1] + iy) * in[2];
    const int64_t first = at[KX] * p->dilation[2] - p->pad_lo[2];
    for (int64_t o = 0; o < p->out[2]; o += VF_LANES)
        vf_store(to + o,
                 inside ? cut_by(q->from, row, o * p->stride[2] + first, in[2], p->stride[2], dtype) : vf_zero());
}

/* The window whose tap k is place x; false: none. */
VF_INLINE bool window_of(const weft_problem *p, int a, int64_t x, int64_t k, int64_t *o) {
    const int64_t at = x + p->pad_lo[a] - k * p->dilation[a];
    *o = at;
    if (p->stride[a] == 1) return at >= 0 && at < p->out[a];
    *o = at / p->stride[a];
    return at >= 0 && at % p->stride[a] == 0 && *o < p->out[a];
}

typedef struct tap_row { /* a tap of a row of the image: where its columns begin, and the tap along the row */
    int64_t at, kx;
} tap_row;

/* Sums of places m + s j, m + s (j + 1), ... */
VF_INLINE vf places(const task *q, const tap_row *rows, int64_t count, int64_t m, int64_t j, const int dtype) {
    const weft_problem *p = q->e->p;
    vf sum = vf_zero();
    for (int64_t r = 0; r < count; r++) {
        const int64_t at = m + p->pad_lo[2] - rows[r].kx * p->dilation[2];
        if (p->stride[2] == 1)
            sum = vf_add(sum, cut(q->from, rows[r].at, at + j, p->out[2], dtype));
        else if (at % p->stride[2] == 0)
            sum = vf_add(sum, cut(q->from, rows[r].at, at / p->stride[2] + j, p->out[2], dtype));
    }
    return sum;
}

/* The same for strides without a permutation: each column goes where it belongs, one after the other. */
VF_INLINE void scatter(const task *q, const tap_row *rows, int64_t count, float *to, const int dtype) {
    const weft_problem *p = q->e->p;
    float lane[VF_LANES];
    memset(to, 0, (size_t)p->in[2] * sizeof(float));
    for (int64_t r = 0; r < count; r++)
        for (int64_t o = 0; o < p->out[2]; o += VF_LANES) {
            const int64_t first = o * p->stride[2] - p->pad_lo[2] + rows[r].kx * p->dilation[2];
            vf_store(lane, cut(q->from, rows[r].at, o, p->out[2], dtype));
            for (int64_t i = 0, x = first; i < VF_LANES && o + i < p->out[2]; i++, x += p->stride[2])
                if (x >= 0 && x < p->in[2]) to[x] += lane[i];
        }
}

/* A row of the image. */
VF_INLINE void row_of_image(const task *q, const int64_t at[COUNTS], tap_row *rows, float *to, const int dtype) {
    const weft_problem *p = q->e->p;
    int64_t count = 0, oz, oy;
    for (int64_t a = 0; a < p->kernel[0]; a++)
        for (int64_t b = 0; window_of(p, 0, at[Z], a, &oz) && b < p->kernel[1]; b++) {
            if (!window_of(p, 1, at[Y], b, &oy)) continue;
            const int64_t tap = ((at[PLANE] * p->kernel[0] + a) * p->kernel[1] + b) * p->kernel[2];
            for (int64_t c = 0; c < p->kernel[2]; c++)
                rows[count++] = (tap_row){(((tap + c) * p->out[0] + oz) * p->out[1] + oy) * p->out[2], c};
        }
    const int64_t width = p->in[2];
    if (p->stride[2] == 1) {
        for (int64_t x = 0; x < width; x += VF_LANES) vf_store(to + x, places(q, rows, count, 0, x, dtype));
    } else if (p->stride[2] == 2) {
        for (int64_t x = 0, j = 0; x < width; x += 2 * VF_LANES, j += VF_LANES) {
            const vf even = places(q, rows, count, 0, j, dtype), odd = places(q, rows, count, 1, j, dtype);
            vf_store(to + x, vf_zip_lo(even, odd));
            vf_store(to + x + VF_LANES, vf_zip_hi(even, odd));
        }
    } else {
        scatter(q, rows, count, to, dtype);
    }
}

/* ---------------------------------------------------------------- whole planes */
enum { PLANE_MOST = 1 << 16, PLANE_TAPS = 16 }; /* elements of a plane, and taps along the width, that have masks */

/* Lanes whose column has its tap inside, for each vector of a plane. */
static void find_masks(const weft_problem *p, int64_t kx, vmask *masks) {
    const int64_t width = p->in[2], first = kx * p->dilation[2] - p->pad_lo[2], size = p->in[1] * width;
    for (int64_t i = 0; i < size; i += VF_LANES) {
        vmask m = vm_first(0);
        for (int64_t row = i / width; row * width < WEFT__MIN(i + VF_LANES, size); row++) {
            const int64_t begin = row * width - i, lo = WEFT__MAX(-first, 0), hi = WEFT__MIN(width - first, width);
            m = vm_or(m, vm_range(WEFT__MAX(begin + lo, 0), begin + hi));
        }
        masks[i / VF_LANES] = m;
    }
}

/* Columns of one tap of a plane of `size` elements that begins at `plane`; their first is element `to`. */
VF_INLINE void shift_plane(const task *q, const vmask *masks, int64_t plane, int64_t size, int64_t down, int64_t right,
                           int64_t to, const bool stream, const int dtype) {
    for (int64_t i = 0; i < size; i += VF_LANES) {
        vmask m = masks[i / VF_LANES];
        if (i + down < 0 || i + down + VF_LANES > size) m = vm_and(m, vm_range(-i - down, size - i - down));
        const vf v = vf_load_in_as(dtype, m, q->from, plane + i + down + right);
        if (stream)
            vf_stream_as(dtype, q->to, to + i, v);
        else if (i + VF_LANES <= size)
            vf_store_as(dtype, q->to, to + i, v);
        else
            vf_store_count_as(dtype, q->to, to + i, v, size - i);
    }
}

VF_INLINE void planes_as(const task *q, int64_t slot, const int dtype) {
    const weft_problem *p = q->e->p;
    const int64_t size = p->in[1] * p->in[2], taps = p->kernel[1] * p->kernel[2];
    const int64_t all = p->n * p->c * taps, vectors = cpu_ceil(size, VF_LANES);
    vmask *masks = (vmask *)((char *)q->e->workspace + slot * q->s.floats * (int64_t)sizeof(float));
    for (int64_t kx = 0; kx < p->kernel[2]; kx++) find_masks(p, kx, masks + kx * vectors);
    for (int64_t i = cpu_first(all, q->s.slots, slot); i < cpu_first(all, q->s.slots, slot + 1); i++) {
        const int64_t ky = i % taps / p->kernel[2], kx = i % p->kernel[2];
        const int64_t down = (ky * p->dilation[1] - p->pad_lo[1]) * p->in[2],
                      right = kx * p->dilation[2] - p->pad_lo[2];
        if (q->stream)
            shift_plane(q, masks + kx * vectors, i / taps * size, size, down, right, i * size, true, dtype);
        else
            shift_plane(q, masks + kx * vectors, i / taps * size, size, down, right, i * size, false, dtype);
    }
    if (q->stream) vf_stream_end();
}

/* ---------------------------------------------------------------- slots */
static bool makes_columns(const weft_problem *p) { return (p->op == WEFT_OP_IM2COL) == (p->pass == WEFT_PASS_FWD); }

static int64_t rows_of(const weft_problem *p) {
    const int64_t planes = p->n * p->c;
    return makes_columns(p) ? planes * p->kernel[0] * p->kernel[1] * p->kernel[2] * p->out[0] * p->out[1]
                            : planes * p->in[0] * p->in[1];
}

VF_INLINE void rows_as(const task *q, int64_t slot, const bool columns, const int dtype) {
    const int64_t all = rows_of(q->e->p), end = cpu_first(all, q->s.slots, slot + 1);
    const int64_t width = columns ? q->e->p->out[2] : q->e->p->in[2];
    float *scratch = (float *)q->e->workspace + slot * q->s.floats;
    int64_t row = cpu_first(all, q->s.slots, slot);
    sink to = {scratch, q->to, row * width, 0, dtype, q->stream};
    tap_row *taps = (tap_row *)(void *)(scratch + sink_floats(width + VF_LANES));
    const weft_problem *p = q->e->p;
    const int64_t of_columns[COUNTS] = {0, p->kernel[0], p->kernel[1], p->kernel[2], p->out[0], p->out[1]};
    const int64_t of_image[COUNTS] = {0, 1, 1, 1, p->in[0], p->in[1]}, *size = columns ? of_columns : of_image;
    int64_t at[COUNTS];
    find(row, size, at);
    for (; row < end; row++, next(size, at)) {
        if (columns)
            row_of_columns(q, at, sink_room(&to), dtype);
        else
            row_of_image(q, at, taps, sink_room(&to), dtype);
        sink_commit(&to, width);
    }
    sink_end(&to);
}

static void rows(void *arg, int64_t slot) {
    const task *q = arg;
    const bool columns = makes_columns(q->e->p);
#define ROWS(type) \
    (q->s.planes ? planes_as(q, slot, type) : columns ? rows_as(q, slot, true, type) : rows_as(q, slot, false, type))
    if (q->dtype == WEFT_DTYPE_F32)
        ROWS(WEFT_DTYPE_F32);
    else if (q->dtype == WEFT_DTYPE_F16)
        ROWS(WEFT_DTYPE_F16);
    else
        ROWS(WEFT_DTYPE_BF16);
#undef ROWS
}

static weft_status run(const weft__exec *e) {
    const bool fwd = e->p->pass == WEFT_PASS_FWD;
    const weft_tensor *to = weft__tensor(e->p, fwd ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC);
    task q = {.e = e, .s = *(const params *)e->params, .dtype = to->dtype, .to = e->ptr[to->role]};
    q.from = e->ptr[fwd ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST];
    q.stream = cpu_streams(e->hw, (double)weft__numel(to) * (double)weft__dtype_size(to->dtype));
    if (q.s.planes && (e->p->in[1] * e->p->in[2] % 16 || (uintptr_t)q.to % 64)) q.stream = false;
    weft__parallel(e->ctx, q.s.slots, rows, &q);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the record */
/* Columns lie as the planes of the image do, and their masks have room. */
static bool takes_planes(const weft_problem *p) {
    if (!makes_columns(p) || p->in[0] != 1 || p->out[0] != 1 || p->kernel[0] != 1) return false;
    for (int a = 1; a < 3; a++)
        if (p->stride[a] != 1 || p->in[a] != p->out[a]) return false;
    return p->kernel[2] <= PLANE_TAPS && p->in[1] * p->in[2] <= PLANE_MOST;
}

static const char *plan(const weft_problem *p, const weft__hw *hw, int variant, weft__decision *d) {
    (void)variant;
    if (!weft__all_dtype(p, p->tensor[0].dtype)) return "tensors of several data types";
    if (!weft__is_first(&p->tensor[0]) || !weft__is_first(&p->tensor[1])) return "a tensor is not dense channels-first";
    const bool columns = makes_columns(p);
    const int64_t width = columns ? p->out[2] : p->in[2], all = rows_of(p);
    const double taps = (double)p->kernel[0] * (double)p->kernel[1] * (double)p->kernel[2];
    if (taps > 1 << 14) return "a window has over 2^14 places";
    if (width > 1 << 20) return "a row has over 2^20 elements";
    params *s = WEFT__PARAMS(params, d);
    s->floats = sink_floats(width + VF_LANES) + (columns ? 0 : cpu_round_up((int64_t)taps * 4, 16));
    s->slots = cpu_slots(all, weft__bytes(p));
    s->planes = takes_planes(p);
    if (s->planes) {
        const int64_t masks = cpu_ceil(p->in[1] * p->in[2], VF_LANES) * p->kernel[2];
        s->floats = cpu_round_up(masks * (int64_t)sizeof(vmask), 64) / 4;
        s->slots = WEFT__MIN(cpu_slots(all / p->out[1], weft__bytes(p)), 64);
    }
    d->workspace = (size_t)(s->slots * s->floats) * sizeof(float);
    const bool slow = p->stride[2] > 2; /* one value after the other */
    const double cells = weft__flops(p), vectors = (double)all * (double)cpu_ceil(width, VF_LANES);
    const double ns = (s->planes ? 0 : 12 * (double)all) + (slow      ? 0.9 * cells
                                                            : columns ? 2 * vectors
                                                                      : 1.5 * cells / VF_LANES + vectors);
    d->ns = cpu_work_cost(p, hw, ns / cpu_speed(hw));
    return NULL;
}

#define COLUMNS(NAME, word)                                                            \
    WEFT__KERNEL(word) = {                                                             \
        .name = WEFT__NAME(#word "_nchw_1v"),                                          \
        .version = 1,                                                                  \
        .op = WEFT_OP_##NAME,                                                          \
        .engine = WEFT_ENGINE_CPU,                                                     \
        .isa = WEFT__ISA_HERE,                                                         \
        .dtypes = WEFT__DTYPE_SET(F32) | WEFT__DTYPE_SET(F16) | WEFT__DTYPE_SET(BF16), \
        .exact = true,                                                                 \
        .plan = plan,                                                                  \
        .run = run,                                                                    \
    }
COLUMNS(IM2COL, im2col);
COLUMNS(COL2IM, col2im);
