/* Rows of few channels, turned into planes and back, a tile at a time. Where the channels of a pixel lie together and
 * are few, vectors of them are half empty and every sum goes over lanes; turned, there are pixels in the lanes and the
 * sweeps of lines.h do.
 *
 * A tile is `count` pixels. Its planes are f32 in the nearest cache, `pitch` floats apart, a whole number of vectors,
 * and 0 behind the last pixel. Squares of lanes are transposed; of up to 4 or 8 channels a vector has several pixels,
 * which are spread to rows of 4 or 8 lanes (`wide`) and parted into even and odd lanes until each has one channel. */
#ifndef WEFT_CPU_SOFTMAX_TURN_H
#define WEFT_CPU_SOFTMAX_TURN_H

#include "cpu/simd/permute.h"
#include "cpu/softmax/lines.h"

/* Floats of the planes of a tile, and of its rows, which are written as whole vectors; few channels. */
enum { TURN = CPU_CUT(2048, 1024), TURN_ROWS = TURN + VF_LANES, TURN_MOST = 48 };

/* Whether rows are turned: up to here it takes less than their sums over lanes; the gradient has fewer of those, and
 * turns its result back. */
VF_INLINE bool turns(const lines_view *v, bool bwd) {
    const int64_t most = bwd ? WEFT__MAX(VF_LANES / 2, 4) : TURN_MOST;
    return v->inner == 1 && v->channels <= most && v->outer >= 16;
}

/* Pixels of a tile, whole vectors. */
VF_INLINE int64_t turn_pixels(int64_t channels, int64_t pixels) {
    const int64_t most = WEFT__MIN(TILE_MOST, TURN / channels / 16 * 16);
    return cpu_round_up(cpu_ceil(pixels, cpu_ceil(pixels, most)), 16);
}

/* Lanes of a row of few channels; VF_LANES: squares. */
VF_INLINE int turn_wide(int64_t channels) {
    return VF_LANES >= 8 && channels <= 4 ? 4 : VF_LANES >= 16 && channels <= 8 ? 8 : VF_LANES;
}

/* `count` vectors that are `step` elements apart; `left` elements may be read. */
VF_INLINE void turn_load(const int dtype, const void *x, int64_t at, int64_t step, int64_t left, vf v[VF_LANES],
                         const int count) {
    if ((count - 1) * step + VF_LANES <= left) {
        VF_UNROLL for (int k = 0; k < count; k++) v[k] = vf_load_as(dtype, x, at + k * step);
    } else {
        VF_UNROLL for (int k = 0; k < count; k++) v[k] = run_load(dtype, x, at + k * step, left - k * step);
    }
}

/* Lane i of a vector with pixels `from` lanes apart, for pixels `to` lanes apart. */
VF_INLINE vi turn_lanes(int64_t from, int64_t to) {
    int32_t at[VF_LANES];
    for (int i = 0; i < VF_LANES; i++) at[i] = (int32_t)(i / to * from + i % to) & (VF_LANES - 1);
    return vi_load(at);
}

/* Rows of `wide` lanes to channels, and back. */
VF_INLINE void turn_part(vf v[VF_LANES], const int wide) {
    vf even[4], odd[4];
    if (wide == VF_LANES) {
        vf_transpose(v);
    } else if (wide == 4) {
        vf_unzip4(v);
    } else {
        VF_UNROLL for (int k = 0; k < 4; k++) even[k] = vf_even(v[2 * k], v[2 * k + 1]);
        VF_UNROLL for (int k = 0; k < 4; k++) odd[k] = vf_odd(v[2 * k], v[2 * k + 1]);
        vf_unzip4(even), vf_unzip4(odd);
        VF_UNROLL for (int k = 0; k < 4; k++) v[2 * k] = even[k], v[2 * k + 1] = odd[k];
    }
}
VF_INLINE void turn_join(vf v[VF_LANES], const int wide) {
    vf even[4], odd[4];
    if (wide == VF_LANES) {
        vf_transpose(v);
    } else if (wide == 4) {
        vf_zip4(v);
    } else {
        VF_UNROLL for (int k = 0; k < 4; k++) even[k] = v[2 * k], odd[k] = v[2 * k + 1];
        vf_zip4(even), vf_zip4(odd);
        VF_UNROLL for (int k = 0; k < 4; k++) v[2 * k] = vf_zip_lo(even[k], odd[k]);
        VF_UNROLL for (int k = 0; k < 4; k++) v[2 * k + 1] = vf_zip_hi(even[k], odd[k]);
    }
}

VF_INLINE void turn_in_as(const int dtype, const void *x, int64_t at, int64_t channels, int64_t count, float *to,
                          int64_t pitch, const int wide) {
    const int64_t step = VF_LANES / wide * channels;
    const vi lanes = turn_lanes(channels, wide);
    for (int64_t i = 0; i < count; i += VF_LANES)
        for (int64_t c = 0; c < channels; c += wide) {
            vf v[VF_LANES];
            turn_load(dtype, x, at + i * channels + c, step, (count - i) * channels - c, v, wide);
            VF_UNROLL for (int k = 0; k < wide; k++) v[k] = wide < VF_LANES ? vf_permute(v[k], lanes) : v[k];
            turn_part(v, wide);
            VF_UNROLL for (int k = 0; k < wide; k++) {
                if (c + k < channels) vf_store(to + (c + k) * pitch + i, v[k]);
            }
        }
}

/* The excess of each vector is covered by what is written after it, so the last channels of some pixels go first. */
VF_INLINE void turn_rows(const float *from, int64_t pitch, int64_t channels, int64_t count, float *rows,
                         const int wide) {
    const int64_t step = VF_LANES / wide * channels;
    const vi lanes = turn_lanes(wide, channels);
    for (int64_t i = 0; i < count; i += VF_LANES)
        for (int64_t c = (channels - 1) / wide * wide; c >= 0; c -= wide) {
            vf v[VF_LANES];
            VF_UNROLL for (int k = 0; k < wide; k++) v[k] =
                c + k < channels ? vf_load(from + (c + k) * pitch + i) : vf_zero();
            turn_join(v, wide);
            VF_UNROLL for (int k = 0; k < wide; k++)
                vf_store(rows + i * channels + k * step + c, wide < VF_LANES ? vf_permute(v[k], lanes) : v[k]);
        }
}

/* Rows from x[at] on to planes. */
VF_INLINE void turn_in(const int dtype, const void *x, int64_t at, int64_t channels, int64_t count, float *to,
                       int64_t pitch) {
    const int wide = turn_wide(channels);
    if (wide == VF_LANES)
        turn_in_as(dtype, x, at, channels, count, to, pitch, VF_LANES);
    else if (wide == 4)
        turn_in_as(dtype, x, at, channels, count, to, pitch, 4);
    else
        turn_in_as(dtype, x, at, channels, count, to, pitch, WEFT__MIN(8, VF_LANES));
}

/* Planes to rows out[at] on, by way of `rows`. */
VF_INLINE void turn_out(const int dtype, const float *from, int64_t pitch, int64_t channels, int64_t count, float *rows,
                        void *out, int64_t at, const bool stream) {
    const int wide = turn_wide(channels);
    const int64_t all = count * channels, head = stream ? run_head(dtype, out, at, all) : 0;
    if (wide == VF_LANES)
        turn_rows(from, pitch, channels, count, rows, VF_LANES);
    else if (wide == 4)
        turn_rows(from, pitch, channels, count, rows, 4);
    else
        turn_rows(from, pitch, channels, count, rows, WEFT__MIN(8, VF_LANES));
    for (int64_t k = 0; k < head; k += VF_LANES) run_store(dtype, out, at + k, vf_load(rows + k), head - k, false);
    for (int64_t k = head; k < all; k += VF_LANES) run_store(dtype, out, at + k, vf_load(rows + k), all - k, stream);
}

/* softmax or its logarithm of the planes of a tile, in place. */
VF_INLINE void turn_softmax(const bool log, float *x, int64_t pitch, int64_t channels, int64_t count) {
    const int64_t all = channels * pitch;
    for (float *i = x; i < x + count; i += VF_LANES) {
        vf most = vf_set1(-INFINITY), sum = vf_zero();
        for (int64_t c = 0; c < all; c += pitch) most = vf_max(vf_load(i + c), most);
        for (int64_t c = 0; c < all; c += pitch) {
            const vf z = vf_sub(vf_load(i + c), most), e = vf_exp_below(z);
            vf_store(i + c, log ? z : e);
            sum = vf_add(sum, e);
        }
        const vf by = log ? vf_log(sum) : vf_div(vf_set1(1), sum);
        for (int64_t c = 0; c < all; c += pitch)
            vf_store(i + c, log ? vf_sub(vf_load(i + c), by) : vf_mul(vf_load(i + c), by));
    }
}

/* The gradient of that in the place of the results y. */
VF_INLINE void turn_softmax_grad(const bool log, float *y, const float *dy, int64_t pitch, int64_t channels,
                                 int64_t count) {
    const int64_t all = channels * pitch;
    for (int64_t i = 0; i < count; i += VF_LANES) {
        vf sum = vf_zero();
        for (int64_t c = i; c < all; c += pitch)
            sum = log ? vf_add(sum, vf_load(dy + c)) : vf_fma(vf_load(y + c), vf_load(dy + c), sum);
        for (int64_t c = i; c < all; c += pitch) {
            const vf own = vf_load(y + c), d = vf_load(dy + c);
            vf_store(y + c, log ? vf_fnma(vf_exp(own), sum, d) : vf_mul(own, vf_sub(d, sum)));
        }
    }
}

#endif
