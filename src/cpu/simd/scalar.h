/* Any machine: 4 lanes in the compiler's own vector type, which becomes SSE2, NEON or plain scalars. See simd.h.
 * fma is a product and a sum, each rounded: fmaf() is a slow call where the hardware has none. Integers are in
 * scalar_int.h. */
#ifndef WEFT_CPU_SIMD_SCALAR_H
#define WEFT_CPU_SIMD_SCALAR_H

#define VF_LANES 4
#define VF_REGS 16
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));

VF_INLINE vmask vm_range(int64_t lo, int64_t hi) {
    const int32_t l = (int32_t)(lo < 0 ? 0 : lo > 4 ? 4 : lo), h = (int32_t)(hi < 0 ? 0 : hi > 4 ? 4 : hi);
    const vmask lane = {0, 1, 2, 3};
    return (lane >= l) & (lane < h);
}
VF_INLINE vmask vm_all(void) { return (vmask){-1, -1, -1, -1}; }
VF_INLINE vmask vm_and(vmask a, vmask b) { return a & b; }
VF_INLINE vmask vm_or(vmask a, vmask b) { return a | b; }
VF_INLINE vmask vm_not(vmask m) { return ~m; }
VF_INLINE uint32_t vm_bits(vmask m) {
    return ((uint32_t)m[0] & 1) | ((uint32_t)m[1] & 2) | ((uint32_t)m[2] & 4) | ((uint32_t)m[3] & 8);
}

VF_INLINE vf vf_set1(float x) { return (vf){x, x, x, x}; }
VF_INLINE vf vf_zero(void) { return vf_set1(0); }
VF_INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
VF_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
/* Bytes are copied: integers come here too. */
VF_INLINE vf vf_load_in(vmask m, const float *p) {
    float lane[VF_LANES] = {0};
    for (int i = 0; i < VF_LANES; i++)
        if (m[i]) memcpy(lane + i, p + i, sizeof *p);
    return vf_load(lane);
}
VF_INLINE void vf_store_in(vmask m, float *p, vf v) {
    float lane[VF_LANES];
    vf_store(lane, v);
    for (int i = 0; i < VF_LANES; i++)
        if (m[i]) memcpy(p + i, lane + i, sizeof *p);
}
VF_INLINE void vf_store_count(float *p, vf v, int64_t n) { vf_store_in(vm_range(0, n), p, v); }
VF_INLINE vf vf_keep(vf v) { return v; }
VF_INLINE void vf_stream(float *p, vf v) { vf_store(p, v); }
VF_INLINE void vf_stream_end(void) {}

VF_INLINE vf vf_select(vmask m, vf a, vf b) { return (vf)(((vmask)a & m) | ((vmask)b & ~m)); }
VF_INLINE vf vf_add(vf a, vf b) { return a + b; }
VF_INLINE vf vf_sub(vf a, vf b) { return a - b; }
VF_INLINE vf vf_mul(vf a, vf b) { return a * b; }
VF_INLINE vf vf_div(vf a, vf b) { return a / b; }
VF_INLINE vf vf_sqrt(vf v) {
    return (vf){__builtin_sqrtf(v[0]), __builtin_sqrtf(v[1]), __builtin_sqrtf(v[2]), __builtin_sqrtf(v[3])};
}
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
VF_INLINE vf vf_fms(vf a, vf b, vf c) { return a * b - c; }
VF_INLINE vf vf_fnma(vf a, vf b, vf c) { return c - a * b; }
VF_INLINE vf vf_fma_in(vmask m, vf a, vf b, vf c) { return vf_select(m, a * b + c, c); }
VF_INLINE vf vf_min(vf a, vf b) { return vf_select(a < b, a, b); }
VF_INLINE vf vf_max(vf a, vf b) { return vf_select(a > b, a, b); }
/* A comparison with NaN is false and keeps v. */
VF_INLINE vf vf_clip(vf v, vf lo, vf hi) {
    v = vf_select(v < lo, lo, v);
    return vf_select(v > hi, hi, v);
}

VF_INLINE vmask vf_lt(vf a, vf b) { return a < b; }
VF_INLINE vmask vf_le(vf a, vf b) { return a <= b; }
VF_INLINE vmask vf_eq(vf a, vf b) { return a == b; }
VF_INLINE vmask vf_is_nan(vf v) { return v != v; }

VF_INLINE float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }

/* ---------------------------------------------------------------- lanes moved */
VF_INLINE vf vf_even(vf a, vf b) { return (vf){a[0], a[2], b[0], b[2]}; }
VF_INLINE vf vf_odd(vf a, vf b) { return (vf){a[1], a[3], b[1], b[3]}; }
VF_INLINE vf vf_zip_lo(vf a, vf b) { return (vf){a[0], b[0], a[1], b[1]}; }
VF_INLINE vf vf_zip_hi(vf a, vf b) { return (vf){a[2], b[2], a[3], b[3]}; }
VF_INLINE vf vf_reverse(vf v) { return (vf){v[3], v[2], v[1], v[0]}; }
VF_INLINE vf vf_slide(vf a, vf b, const int k) {
    switch (k) {
    case 1:
        return (vf){a[1], a[2], a[3], b[0]};
    case 2:
        return (vf){a[2], a[3], b[0], b[1]};
    case 3:
        return (vf){a[3], b[0], b[1], b[2]};
    default:
        return k <= 0 ? a : b;
    }
}
VF_INLINE void vf_transpose(vf v[4]) {
    const vf ac_lo = vf_zip_lo(v[0], v[2]), ac_hi = vf_zip_hi(v[0], v[2]);
    const vf bd_lo = vf_zip_lo(v[1], v[3]), bd_hi = vf_zip_hi(v[1], v[3]);
    v[0] = vf_zip_lo(ac_lo, bd_lo), v[1] = vf_zip_hi(ac_lo, bd_lo);
    v[2] = vf_zip_lo(ac_hi, bd_hi), v[3] = vf_zip_hi(ac_hi, bd_hi);
}

#endif
