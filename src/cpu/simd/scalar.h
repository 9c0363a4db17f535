/* Any machine: 4 lanes in the compiler's own vector type, which becomes SSE2, NEON or plain scalars. See simd.h.
 * fma is a product and a sum, each rounded: fmaf() is a slow call where the hardware has none. */
#ifndef WEFT_CPU_SIMD_SCALAR_H
#define WEFT_CPU_SIMD_SCALAR_H

#include <string.h>

#define VF_LANES 4
#define VF_REGS 16
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));

VF_INLINE vf vf_set1(float x) { return (vf){x, x, x, x}; }
VF_INLINE vf vf_zero(void) { return vf_set1(0); }
VF_INLINE vf vf_load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
VF_INLINE void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
VF_INLINE vf vf_load_in(vmask m, const float *p) {
    return (vf){m[0] ? p[0] : 0, m[1] ? p[1] : 0, m[2] ? p[2] : 0, m[3] ? p[3] : 0};
}
VF_INLINE void vf_store_in(vmask m, float *p, vf v) {
    for (int i = 0; i < VF_LANES; i++)
        if (m[i]) p[i] = v[i];
}
VF_INLINE vf vf_keep(vf v) { return v; }
VF_INLINE void vf_stream(float *p, vf v) { vf_store(p, v); }
VF_INLINE void vf_stream_end(void) {}

VF_INLINE vf vf_select(vmask m, vf a, vf b) { return (vf)(((vmask)a & m) | ((vmask)b & ~m)); }
VF_INLINE vf vf_add(vf a, vf b) { return a + b; }
VF_INLINE vf vf_mul(vf a, vf b) { return a * b; }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
VF_INLINE vf vf_fma_in(vmask m, vf a, vf b, vf c) { return vf_select(m, a * b + c, c); }
/* A comparison with NaN is false and keeps v. */
VF_INLINE vf vf_clip(vf v, vf lo, vf hi) {
    v = vf_select(v < lo, lo, v);
    return vf_select(v > hi, hi, v);
}

VF_INLINE float vf_sum(vf v) { return (v[0] + v[2]) + (v[1] + v[3]); }
VF_INLINE vf vf_even(vf a, vf b) { return (vf){a[0], a[2], b[0], b[2]}; }
VF_INLINE vf vf_odd(vf a, vf b) { return (vf){a[1], a[3], b[1], b[3]}; }
VF_INLINE vf vf_zip_lo(vf a, vf b) { return (vf){a[0], b[0], a[1], b[1]}; }
VF_INLINE vf vf_zip_hi(vf a, vf b) { return (vf){a[2], b[2], a[3], b[3]}; }

VF_INLINE vmask vm_range(int64_t lo, int64_t hi) {
    const int32_t l = (int32_t)(lo < 0 ? 0 : lo > 4 ? 4 : lo), h = (int32_t)(hi < 0 ? 0 : hi > 4 ? 4 : hi);
    const vmask lane = {0, 1, 2, 3};
    return (lane >= l) & (lane < h);
}
VF_INLINE vmask vm_and(vmask a, vmask b) { return a & b; }
VF_INLINE vmask vm_all(void) { return (vmask){-1, -1, -1, -1}; }

#endif
