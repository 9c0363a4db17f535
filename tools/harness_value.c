/* Elements of every data type as doubles, random numbers, and the walk over a tensor. The 16-bit conversions are
 * written from the formats alone, apart from those of the library, so that a fault there shows. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "harness.h"

/* ---------------------------------------------------------------- 16-bit floats
 * man mantissa bits, exponents emin .. emax */
typedef struct format {
    int man, emin, emax;
} format;
static const format f16 = {10, -14, 15}, bf16 = {7, -126, 127};

static uint16_t narrow(double v, format f) {
    uint16_t sign = signbit(v) ? 0x8000 : 0, infinity = (uint16_t)((f.emax - f.emin + 2) << f.man);
    if (isnan(v)) return (uint16_t)(sign | infinity | 1u << (f.man - 1));
    double a = fabs(v), significand;
    int e = 0;
    if (isinf(a)) return sign | infinity;
    frexp(a, &e);
    e = WEFT__MAX(e - 1, f.emin);            /* a = m * 2^e with m < 2; below emin the mantissa shortens */
    significand = rint(ldexp(a, f.man - e)); /* to nearest even: the mode nobody here changes */
    if (significand >= ldexp(1, f.man + 1)) {
        significand /= 2;
        e++;
    }
    if (e > f.emax) return sign | infinity;
    int q = (int)significand, field = q < 1 << f.man ? 0 : e - f.emin + 1;
    return (uint16_t)(sign | field << f.man | (q & ((1 << f.man) - 1)));
}

static double widen(uint16_t bits, format f) {
    int field = (bits & 0x7fff) >> f.man, q = bits & ((1 << f.man) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (field == f.emax - f.emin + 2) return q ? (double)NAN : sign * (double)INFINITY;
    if (field) q += 1 << f.man;
    return sign * ldexp(q, (field ? field - 1 : 0) + f.emin - f.man);
}

/* ---------------------------------------------------------------- one load and one store a data type */
#define PLAIN(name, type)                          \
    static double load_##name(const void *at) {    \
        type x;                                    \
        memcpy(&x, at, sizeof(x));                 \
        return (double)x;                          \
    }                                              \
    static void store_##name(void *at, double v) { \
        type x = (type)v;                          \
        memcpy(at, &x, sizeof(x));                 \
    }
#define HALF(name)                                 \
    static double load_##name(const void *at) {    \
        uint16_t x;                                \
        memcpy(&x, at, 2);                         \
        return widen(x, name);                     \
    }                                              \
    static void store_##name(void *at, double v) { \
        uint16_t x = narrow(v, name);              \
        memcpy(at, &x, 2);                         \
    }
PLAIN(f32, float)
PLAIN(f64, double)
PLAIN(u8, uint8_t)
PLAIN(i32, int32_t)
PLAIN(i64, int64_t)
HALF(f16)
HALF(bf16)

typedef struct dtype_def {
    double (*load)(const void *);
    void (*store)(void *, double);
    double roundoff, tiny;
} dtype_def;
static const dtype_def defs[WEFT_DTYPE_COUNT] = {
    [WEFT_DTYPE_F32] = {load_f32, store_f32, 0x1p-24, 0x1p-149},
    [WEFT_DTYPE_F64] = {load_f64, store_f64, 0x1p-53, 0x1p-1074},
    [WEFT_DTYPE_F16] = {load_f16, store_f16, 0x1p-11, 0x1p-24},
    [WEFT_DTYPE_BF16] = {load_bf16, store_bf16, 0x1p-8, 0x1p-133},
    [WEFT_DTYPE_U8] = {load_u8, store_u8, 0, 0},
    [WEFT_DTYPE_I32] = {load_i32, store_i32, 0, 0},
    [WEFT_DTYPE_I64] = {load_i64, store_i64, 0, 0},
};

double harness_load(int dtype, const void *at) { return defs[dtype].load(at); }
void harness_store(int dtype, void *at, double value) { defs[dtype].store(at, value); }
double harness_roundoff(int dtype) { return defs[dtype].roundoff; }
double harness_tiny(int dtype) { return defs[dtype].tiny; }

/* ---------------------------------------------------------------- random numbers: a counter through a strong mixer */
static uint64_t scramble(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t harness_mix(uint64_t a, uint64_t b) {
    return scramble(scramble(a + 0x9e3779b97f4a7c15u) ^ (b + 0x632be59bd9b4e019u));
}
uint64_t harness_next(harness_rng *r) { return scramble(r->state += 0x9e3779b97f4a7c15u); }
int64_t harness_below(harness_rng *r, int64_t n) { return (int64_t)(harness_next(r) % (uint64_t)n); }
double harness_real(harness_rng *r) { return (double)(harness_next(r) >> 11) * 0x1p-52 - 1; }
bool harness_chance(harness_rng *r, int percent) { return harness_below(r, 100) < percent; }

/* ---------------------------------------------------------------- the walk */
harness_walk harness_first(const weft_tensor *t) {
    harness_walk w = {.t = t, .done = weft__numel(t) == 0};
    return w;
}

void harness_step(harness_walk *w) {
    for (int a = w->t->rank - 1; a >= 0; a--) {
        w->offset += w->t->strides[a];
        if (++w->index[a] < w->t->dims[a]) return;
        w->offset -= w->t->strides[a] * w->t->dims[a];
        w->index[a] = 0;
    }
    w->done = true;
}

void harness_where(const harness_walk *w, char *text, size_t capacity) {
    weft__text t = {text, capacity, 0};
    weft__put(&t, "%s[", weft__role_name(w->t->role));
    for (int a = 0; a < w->t->rank; a++) weft__put(&t, a ? ",%lld" : "%lld", (long long)w->index[a]);
    weft__put(&t, "]");
}
