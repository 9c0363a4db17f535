/* See build.h. Compiled once per ISA. */
#include "build.h"
#include "cpu/kernel.h"
#include "cpu/simd/math.h"

static vmask set_of(const int32_t *m) { return vi_eq(vi_load(m), vi_set1(1)); }
/* Within int32_t, NaN to 0. */
static vf within(vf v) {
    return vf_clip(vf_select(vf_is_nan(v), vf_zero(), v), vf_set1(-0x1p31f), vf_set1(0x7fffff80));
}

/* ---------------------------------------------------------------- ops.def */
#define VECTORS                                                          \
    const vf a = vf_load(in->a), b = vf_load(in->b), c = vf_load(in->c); \
    const vi i = vi_load(in->i), j = vi_load(in->j);                     \
    const vmask m = set_of(in->m), w = set_of(in->w);                    \
    (void)a, (void)b, (void)c, (void)i, (void)j, (void)m, (void)w, (void)within;
#define FLOAT(name, vector, ...) \
    static void op_##name(const simd_in *in, simd_out *out) { VECTORS vf_store(out->f, vector); }
#define FUSED FLOAT
#define INT(name, vector, ...) \
    static void op_##name(const simd_in *in, simd_out *out) { VECTORS vi_store(out->i, vector); }
#define MASK(name, vector, ...) \
    static void op_##name(const simd_in *in, simd_out *out) { VECTORS out->set = vm_bits(vector); }
#define MATH(name, vector, ...)                                       \
    static void math_##name(const float *in, float *out, int64_t n) { \
        for (int64_t at = 0; at < n; at += VF_LANES) {                \
            const vf v = vf_load(in + at);                            \
            vf_store(out + at, vector);                               \
        }                                                             \
    }
#include "ops.def"
#undef FLOAT
#undef FUSED
#undef INT
#undef MASK
#undef MATH

/* ---------------------------------------------------------------- elements in memory */
#define FLOATS(type, dtype)                                                                           \
    static void load_##type(simd_out *v, const void *p) { vf_store(v->f, vf_load_as(dtype, p, 0)); }  \
    static void store_##type(void *p, const simd_out *v) { vf_store_as(dtype, p, 0, vf_load(v->f)); } \
    static void stream_##type(void *p, const simd_out *v) {                                           \
        vf_stream_as(dtype, p, 0, vf_load(v->f));                                                     \
        vf_stream_end();                                                                              \
    }                                                                                                 \
    static void load_count_##type(simd_out *v, const void *p, int64_t n) {                            \
        vf_store(v->f, vf_load_count_as(dtype, p, 0, n));                                             \
    }                                                                                                 \
    static void store_count_##type(void *p, const simd_out *v, int64_t n) {                           \
        vf_store_count_as(dtype, p, 0, vf_load(v->f), n);                                             \
    }                                                                                                 \
    static void load_in_##type(simd_out *v, const simd_in *in, const void *p) {                       \
        vf_store(v->f, vf_load_in_as(dtype, set_of(in->m), p, 0));                                    \
    }                                                                                                 \
    static void store_in_##type(const simd_in *in, void *p, const simd_out *v) {                      \
        vf_store_in_as(dtype, set_of(in->m), p, 0, vf_load(v->f));                                    \
    }                                                                                                 \
    static void broadcast_##type(simd_out *v, const void *p) { vf_store(v->f, vf_broadcast_as(dtype, p, 0)); }
FLOATS(f32, WEFT_DTYPE_F32)
FLOATS(f16, WEFT_DTYPE_F16)
FLOATS(bf16, WEFT_DTYPE_BF16)

#define INTS(type, suffix)                                                                       \
    static void load_##type(simd_out *v, const void *p) { vi_store(v->i, vi_load##suffix(p)); }  \
    static void store_##type(void *p, const simd_out *v) { vi_store##suffix(p, vi_load(v->i)); } \
    static void load_count_##type(simd_out *v, const void *p, int64_t n) {                       \
        vi_store(v->i, vi_load##suffix##_count(p, n));                                           \
    }                                                                                            \
    static void store_count_##type(void *p, const simd_out *v, int64_t n) {                      \
        vi_store##suffix##_count(p, vi_load(v->i), n);                                           \
    }
INTS(i32, )
INTS(u8, _u8)
INTS(i64, _i64)
static void load_in_i32(simd_out *v, const simd_in *in, const void *p) { vi_store(v->i, vi_load_in(set_of(in->m), p)); }
static void store_in_i32(const simd_in *in, void *p, const simd_out *v) {
    vi_store_in(set_of(in->m), p, vi_load(v->i));
}

/* ---------------------------------------------------------------- shapes */
static void on_rows(float *rows, const int count, void (*move)(vf *v)) {
    vf v[VF_LANES];
    for (int r = 0; r < count; r++) v[r] = vf_load(rows + r * VF_LANES);
    move(v);
    for (int r = 0; r < count; r++) vf_store(rows + r * VF_LANES, v[r]);
}
static void vectors_transpose(vf *v) { vf_transpose(v); }
static void vectors_zip4(vf *v) { vf_zip4(v); }
static void vectors_unzip4(vf *v) { vf_unzip4(v); }
static void transpose(float *rows) { on_rows(rows, VF_LANES, vectors_transpose); }
static void zip4(float *rows) { on_rows(rows, 4, vectors_zip4); }
static void unzip4(float *rows) { on_rows(rows, 4, vectors_unzip4); }

static void slide(const simd_in *in, int k, simd_out *out) {
    const vf a = vf_load(in->a), b = vf_load(in->b);
    VF_UNROLL for (int constant = 0; constant <= VF_LANES; constant++) if (k == constant)
        vf_store(out->f, vf_slide(a, b, constant));
}

static void dot(float *sum, const uint16_t *a, const uint16_t *b) {
    vf_store(sum, vf_dot_bf16(vf_load(sum), vi_load((const void *)a), vi_load((const void *)b)));
}

const simd_build WEFT__ISA_NAME(simd_build) = {
    .isa = WEFT__NAME(""),
    .lanes = VF_LANES,
#ifdef __AVX512BF16__
    .native_dot = true,
#endif
#define FLOAT(name, ...) .op[SIMD_##name] = op_##name,
#define FUSED FLOAT
#define MASK FLOAT
#define INT FLOAT
#define MATH(name, ...) .math[SIMD_MATH_##name] = math_##name,
#include "ops.def"
#define FLOATS_OF(type)                                                                                               \
    load_##type, store_##type, stream_##type, load_count_##type, store_count_##type, load_in_##type, store_in_##type, \
        broadcast_##type
#define INTS_OF(type) load_##type, store_##type, NULL, load_count_##type, store_count_##type
    .memory = {[SIMD_F32] = {4, FLOATS_OF(f32)},
               [SIMD_F16] = {2, FLOATS_OF(f16)},
               [SIMD_BF16] = {2, FLOATS_OF(bf16)},
               [SIMD_I32] = {4, INTS_OF(i32), load_in_i32, store_in_i32, NULL},
               [SIMD_U8] = {1, INTS_OF(u8), NULL, NULL, NULL},
               [SIMD_I64] = {8, INTS_OF(i64), NULL, NULL, NULL}},
    .transpose = transpose,
    .zip4 = zip4,
    .unzip4 = unzip4,
    .slide = slide,
    .dot = dot,
};
