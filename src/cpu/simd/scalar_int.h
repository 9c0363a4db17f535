/* Any machine: integers, 16-bit floats and bytes. See simd.h and dtype.h. */
#ifndef WEFT_CPU_SIMD_SCALAR_INT_H
#define WEFT_CPU_SIMD_SCALAR_INT_H

typedef uint32_t vi_unsigned __attribute__((vector_size(16))); /* sums that wrap, shifts that fill with zeros */

VF_INLINE vi vf_bits(vf v) { return (vi)v; }
VF_INLINE vf vf_from_bits(vi v) { return (vf)v; }
VF_INLINE vi vi_trunc(vf v) { return __builtin_convertvector(v, vi); }
VF_INLINE vf vf_from(vi v) { return __builtin_convertvector(v, vf); }

VF_INLINE vi vi_set1(int32_t x) { return (vi){x, x, x, x}; }
VF_INLINE vi vi_iota(void) { return (vi){0, 1, 2, 3}; }
VF_INLINE vi vi_load(const int32_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
VF_INLINE void vi_store(int32_t *p, vi v) { memcpy(p, &v, sizeof v); }
VF_INLINE vi vi_add(vi a, vi b) { return (vi)((vi_unsigned)a + (vi_unsigned)b); }
VF_INLINE vi vi_sub(vi a, vi b) { return (vi)((vi_unsigned)a - (vi_unsigned)b); }
VF_INLINE vi vi_mul(vi a, vi b) { return (vi)((vi_unsigned)a * (vi_unsigned)b); }
VF_INLINE vi vi_and(vi a, vi b) { return a & b; }
VF_INLINE vi vi_or(vi a, vi b) { return a | b; }
VF_INLINE vi vi_xor(vi a, vi b) { return a ^ b; }
VF_INLINE vi vi_shl(vi v, const int n) { return (vi)((vi_unsigned)v << (uint32_t)n); }
VF_INLINE vi vi_shr(vi v, const int n) { return (vi)((vi_unsigned)v >> (uint32_t)n); }
VF_INLINE vi vi_sar(vi v, const int n) { return v >> n; }
VF_INLINE vmask vi_lt(vi a, vi b) { return a < b; }
VF_INLINE vmask vi_eq(vi a, vi b) { return a == b; }
VF_INLINE vi vi_min(vi a, vi b) { return (a & (a < b)) | (b & (a >= b)); }
VF_INLINE vi vi_max(vi a, vi b) { return (a & (a > b)) | (b & (a <= b)); }
VF_INLINE vf vf_gather_in(vmask m, const float *p, vi i) {
    return (vf){m[0] ? p[i[0]] : 0, m[1] ? p[i[1]] : 0, m[2] ? p[i[2]] : 0, m[3] ? p[i[3]] : 0};
}

/* Beyond 2^23 every float is whole, and NaN compares false. The sign is that of v, also of a zero. */
VF_INLINE vf vf_whole_or(vf v, vf whole) {
    const vi sign = vi_set1(INT32_MIN), bits = vf_bits(v);
    const vmask small = vf_from_bits(bits & ~sign) < vf_set1(0x1p23f);
    return vf_select(small, vf_from_bits((vf_bits(whole) & ~sign) | (bits & sign)), v);
}
VF_INLINE vf vf_floor(vf v) {
    const vf near = vf_from(vi_trunc(vf_select(vf_from_bits(vf_bits(v) & INT32_MAX) < vf_set1(0x1p23f), v, vf_zero())));
    return vf_whole_or(v, near - vf_select(near > v, vf_set1(1), vf_zero()));
}
/* The sum with 2^23 has no room for a fraction and rounds it away. */
VF_INLINE vf vf_nearest(vf v) {
    const vf size = vf_from_bits(vf_bits(v) & INT32_MAX);
    return vf_whole_or(v, (size + vf_set1(0x1p23f)) - vf_set1(0x1p23f));
}
VF_INLINE vi vi_nearest(vf v) { return vi_trunc(vf_nearest(v)); }

/* v * 2^n in two exact steps but for the last: a half of n each, so that neither factor leaves the range. */
VF_INLINE vf vf_scale(vf v, vf n) {
    const vi whole = vi_trunc(n), half = whole >> 1, rest = whole - half;
    return v * vf_from_bits((half + 127) << 23) * vf_from_bits((rest + 127) << 23);
}

VF_INLINE vi vi_load_u8(const uint8_t *p) { return (vi){p[0], p[1], p[2], p[3]}; }
VF_INLINE void vi_store_u8(uint8_t *p, vi v) {
    for (int i = 0; i < VF_LANES; i++) p[i] = (uint8_t)v[i];
}
VF_INLINE vi vi_load_u8_count(const uint8_t *p, int64_t n) {
    return (vi){n > 0 ? p[0] : 0, n > 1 ? p[1] : 0, n > 2 ? p[2] : 0, n > 3 ? p[3] : 0};
}
VF_INLINE void vi_store_u8_count(uint8_t *p, vi v, int64_t n) {
    for (int i = 0; i < VF_LANES; i++)
        if (i < n) p[i] = (uint8_t)v[i];
}

/* VF_LANES values of 16 bits. */
typedef uint16_t vh __attribute__((vector_size(8)));
VF_INLINE vh vh_load(const uint16_t *p) {
    vh v;
    memcpy(&v, p, sizeof v);
    return v;
}
VF_INLINE void vh_store(uint16_t *p, vh v) { memcpy(p, &v, sizeof v); }
VF_INLINE vh vh_load_in(vmask m, const uint16_t *p) {
    vh v = {0, 0, 0, 0};
    for (int i = 0; i < VF_LANES; i++)
        if (m[i]) v[i] = p[i];
    return v;
}
VF_INLINE void vh_store_in(vmask m, uint16_t *p, vh v) {
    for (int i = 0; i < VF_LANES; i++)
        if (m[i]) p[i] = v[i];
}
VF_INLINE vh vh_load_count(const uint16_t *p, int64_t n) { return vh_load_in(vm_range(0, n), p); }
VF_INLINE void vh_store_count(uint16_t *p, vh v, int64_t n) { vh_store_in(vm_range(0, n), p, v); }
VF_INLINE void vh_stream(uint16_t *p, vh v) { vh_store(p, v); }
VF_INLINE vi vi_from_u16(vh v) { return (vi){v[0], v[1], v[2], v[3]}; }
VF_INLINE vh vi_to_u16(vi v) { return (vh){(uint16_t)v[0], (uint16_t)v[1], (uint16_t)v[2], (uint16_t)v[3]}; }

/* The exponent's bias is moved by 112; infinities and NaN move twice, subnormals are counted in 2^-24. */
VF_INLINE vf vf_from_f16(vh v) {
    const vi bits = vi_from_u16(v), size = (bits & 0x7fff) << 13, sign = vi_shl(bits & 0x8000, 16);
    const vi normal = size + (112 << 23), huge = size + (224 << 23);
    const vi tiny = vf_bits(vf_from(bits & 0x3ff) * vf_set1(0x1p-24f));
    vi value = (normal & (size < (31 << 23))) | (huge & (size >= (31 << 23)));
    value = (tiny & (size < (1 << 23))) | (value & (size >= (1 << 23)));
    return vf_from_bits(value | sign);
}
/* Ties to even: half of the last kept bit less one, and that bit. The sum with 1/2 rounds subnormals to whole 2^-24. */
VF_INLINE vh vf_to_f16(vf v) {
    const vi bits = vf_bits(v), size = bits & INT32_MAX, sign = vi_shr(bits, 16) & 0x8000;
    const vi normal = vi_sar(vi_add(size - (112 << 23), 0xfff + (size >> 13 & 1)), 13);
    const vi tiny = vf_bits(vf_from_bits(size) + vf_set1(0.5f)) - vf_bits(vf_set1(0.5f));
    const vi huge = 0x7c00 | (0x200 & (size > 0x7f800000));
    vi value = (tiny & (size < 0x38800000)) | (normal & (size >= 0x38800000));
    value = (value & (size < 0x47800000)) | (huge & (size >= 0x47800000));
    return vi_to_u16(value | sign);
}

#endif
