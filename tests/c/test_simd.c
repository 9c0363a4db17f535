/* The vector vocabulary of every ISA the machine has, against a loop over its lanes: tests/simd/ops.def. */
#include <math.h>

#include "builds.h"
#include "ref/item.h"

/* ---------------------------------------------------------------- data */
static float any_float(harness_rng *r) {
    static const float edges[] = {0.0f,          -0.0f,      1.0f,     -1.0f,      0.5f,      1.5f,
                                  2.5f,          -2.5f,      NAN,      INFINITY,   -INFINITY, 0x1p-126f,
                                  0x1p-149f,     -0x1p-127f, 0x1p23f,  8388607.5f, 1e30f,     3.4028e38f,
                                  -3.402823e38f, 65504.0f,   65520.0f, 0x1p-24f,   0x1p31f,   -0x1p31f};
    switch (harness_below(r, 4)) {
    case 0:
        return HARNESS_PICK(r, edges);
    case 1:
        return float_of((uint32_t)harness_next(r));
    default:
        return (float)(harness_real(r) * (harness_below(r, 2) ? 10 : 1000));
    }
}

static int32_t any_int(harness_rng *r) {
    static const int32_t edges[] = {0, 1, -1, INT32_MAX, INT32_MIN, 255, 256, 65535, -32768};
    return harness_below(r, 3) ? (int32_t)(uint32_t)harness_next(r) : HARNESS_PICK(r, edges);
}

static simd_in draw(harness_rng *r, int lanes) {
    simd_in in = {.lo = harness_below(r, lanes + 6) - 3, .hi = harness_below(r, lanes + 6) - 3};
    const int each = (int)harness_below(r, 5); /* masks: none, all, or some */
    const bool special = harness_below(r, 2);
    for (int k = 0; k < SIMD_LANES_MAX; k++) {
        in.a[k] = special ? any_float(r) : (float)harness_real(r);
        in.b[k] = harness_below(r, 8) ? any_float(r) : in.a[k];
        in.c[k] = special ? any_float(r) : (float)harness_real(r);
        in.i[k] = any_int(r);
        in.j[k] = harness_below(r, 8) ? any_int(r) : in.i[k];
        in.m[k] = each == 0 ? 0 : each == 1 ? 1 : (int32_t)harness_below(r, 2);
        in.w[k] = (int32_t)harness_below(r, 2);
        if (in.m[k] && k < lanes) in.set |= 1u << k;
    }
    for (int k = 0; k < SIMD_TABLE; k++) in.table[k] = any_float(r);
    return in;
}

/* ---------------------------------------------------------------- lanes */
static float by_halves(const float *v, int lanes) {
    float sum[SIMD_LANES_MAX];
    memcpy(sum, v, sizeof sum);
    for (int half = lanes / 2; half; half /= 2)
        for (int k = 0; k < half; k++) sum[k] += sum[k + half];
    return sum[0];
}
static float largest(const float *v, int lanes, float sign) {
    float best = sign * v[0];
    for (int k = 1; k < lanes; k++) best = isnan(best) || sign * v[k] <= best ? best : sign * v[k];
    return best == 0 ? 0 : sign * best;
}
static float lane_within(float v) {
    return isnan(v) ? 0 : v < -0x1p31f ? -0x1p31f : v > 0x7fffff80 ? (float)0x7fffff80 : v;
}

typedef enum { KIND_FLOAT, KIND_FUSED, KIND_MASK, KIND_INT } op_kind;
typedef struct expected {
    float f, other;
    int32_t i;
    bool set;
} expected;
typedef struct op_row {
    const char *name;
    op_kind kind;
    expected (*lane)(const simd_in *in, int k, int LANES);
} op_row;

#define AT(x, n) in->x[n]
#define AB(n) ((n) < LANES ? in->a[n] : in->b[(n) - LANES])
#define LANE(name, ...)                                                             \
    static expected lane_##name(const simd_in *in, int k, int LANES) {              \
        const float a = in->a[k], b = in->b[k], c = in->c[k];                       \
        const int32_t i = in->i[k], j = in->j[k];                                   \
        const bool m = in->m[k], w = in->w[k];                                      \
        (void)a, (void)b, (void)c, (void)i, (void)j, (void)m, (void)w, (void)LANES; \
        return (expected){__VA_ARGS__};                                             \
    }
#define FLOAT(name, vector, lane) LANE(name, .f = (lane))
#define FUSED(name, vector, once, twice) LANE(name, .f = (once), .other = (twice))
#define MASK(name, vector, lane) LANE(name, .set = (lane))
#define INT(name, vector, lane) LANE(name, .i = (lane))
#define MATH(...)
#include "ops.def"
#undef FLOAT
#undef FUSED
#undef MASK
#undef INT

static const op_row rows[SIMD_OPS] = {
#define FLOAT(name, ...) [SIMD_##name] = {#name, KIND_FLOAT, lane_##name},
#define FUSED(name, ...) [SIMD_##name] = {#name, KIND_FUSED, lane_##name},
#define MASK(name, ...) [SIMD_##name] = {#name, KIND_MASK, lane_##name},
#define INT(name, ...) [SIMD_##name] = {#name, KIND_INT, lane_##name},
#include "ops.def"
};

/* The sign of a zero that largest returns is not stated. */
static bool lane_agrees(const op_row *row, const expected *want, const simd_out *got, int k) {
    switch (row->kind) {
    case KIND_FLOAT:
        return same(want->f, got->f[k]) || (row->lane == lane_largest && got->f[k] == 0 && want->f == 0) ||
               (row->lane == lane_smallest && got->f[k] == 0 && want->f == 0);
    case KIND_FUSED:
        return same(want->f, got->f[k]) || same(want->other, got->f[k]);
    case KIND_MASK:
        return want->set == (got->set >> k & 1);
    default:
        return want->i == got->i[k];
    }
}

TEST(every_function_is_its_lane) {
    harness_rng r = {20};
    EACH_BUILD(s) {
        for (int round = 0; round < 4000; round++) {
            const simd_in in = draw(&r, s->lanes);
            for (int op = 0; op < SIMD_OPS; op++) {
                simd_out got = {{0}};
                s->op[op](&in, &got);
                for (int k = 0; k < s->lanes; k++) {
                    const expected want = rows[op].lane(&in, k, s->lanes);
                    CHECK(lane_agrees(&rows[op], &want, &got, k),
                          "%s%s lane %d: %a or %a or %d, got %a or %d or set %x; a %a b %a c %a i %d j %d m %d",
                          rows[op].name, s->isa, k, want.f, want.other, want.i, got.f[k], got.i[k], got.set, in.a[k],
                          in.b[k], in.c[k], in.i[k], in.j[k], in.m[k]);
                }
                CHECK(rows[op].kind != KIND_MASK || got.set >> s->lanes == 0, "%s%s: bits beyond the lanes: %x",
                      rows[op].name, s->isa, got.set);
            }
        }
    }
}

TEST(every_range_of_lanes) {
    EACH_BUILD(s) {
        simd_in in = {.lo = 0};
        for (in.lo = -2; in.lo <= s->lanes + 2; in.lo++)
            for (in.hi = -2; in.hi <= s->lanes + 2; in.hi++) {
                simd_out got;
                s->op[SIMD_range](&in, &got);
                for (int k = 0; k < s->lanes; k++)
                    CHECK((got.set >> k & 1) == (k >= in.lo && k < in.hi), "%s: %lld..%lld: %x", s->isa,
                          (long long)in.lo, (long long)in.hi, got.set);
            }
        in.lo = INT64_MIN, in.hi = INT64_MAX;
        simd_out got;
        s->op[SIMD_range](&in, &got);
        CHECK(got.set == (1u << s->lanes) - 1, "%s: the widest range: %x", s->isa, got.set);
    }
}

/* ---------------------------------------------------------------- lanes moved */
TEST(rows_become_columns) {
    EACH_BUILD(s) {
        const int n = s->lanes;
        float rows[SIMD_LANES_MAX * SIMD_LANES_MAX], four[4 * SIMD_LANES_MAX];
        for (int i = 0; i < n * n; i++) rows[i] = (float)i;
        s->transpose(rows);
        for (int i = 0; i < n * n; i++) CHECK(rows[i] == (float)(i % n * n + i / n), "%s: %d: %g", s->isa, i, rows[i]);
        for (int i = 0; i < 4 * n; i++) four[i] = (float)i;
        s->zip4(four);
        for (int i = 0; i < 4 * n; i++) CHECK(four[i] == (float)(i % 4 * n + i / 4), "%s: %d: %g", s->isa, i, four[i]);
        s->unzip4(four);
        for (int i = 0; i < 4 * n; i++) CHECK(four[i] == (float)i, "%s: back: %d: %g", s->isa, i, four[i]);
    }
}

TEST(slides_by_every_constant) {
    harness_rng r = {21};
    EACH_BUILD(s) {
        const simd_in in = draw(&r, s->lanes);
        for (int k = 0; k <= s->lanes; k++) {
            simd_out out;
            s->slide(&in, k, &out);
            for (int i = 0; i < s->lanes; i++) {
                const float want = i + k < s->lanes ? in.a[i + k] : in.b[i + k - s->lanes];
                CHECK(same(want, out.f[i]), "%s: by %d, lane %d", s->isa, k, i);
            }
        }
    }
}

/* ---------------------------------------------------------------- 16-bit floats */
static const struct {
    int type, exponent, mantissa;
} halves[] = {{SIMD_F16, 5, 10}, {SIMD_BF16, 8, 7}};

TEST(halves_load_as_the_reference) {
    EACH_BUILD(s) {
        for (size_t t = 0; t < WEFT__COUNT(halves); t++) {
            const simd_memory *memory = &s->memory[halves[t].type];
            for (uint32_t first = 0; first < 65536; first += (uint32_t)s->lanes) {
                uint16_t h[SIMD_LANES_MAX];
                simd_out got, one;
                for (int k = 0; k < s->lanes; k++) h[k] = (uint16_t)(first + (uint32_t)k);
                memory->load(&got, h);
                for (int k = 0; k < s->lanes; k++) {
                    const float want = (float)item_unpack(h[k], halves[t].exponent, halves[t].mantissa);
                    memory->broadcast(&one, h + k);
                    CHECK(same(want, got.f[k]), "%s: %04x: %a, got %a", s->isa, h[k], want, got.f[k]);
                    CHECK(same(want, one.f[0]) && same(want, one.f[s->lanes - 1]), "%s: broadcast %04x", s->isa, h[k]);
                }
            }
        }
    }
}

/* Every value of the type, every middle between two, and the floats beside them. */
static void half_neighbours(uint32_t h, int e, int m, float v[SIMD_LANES_MAX]) {
    const double low = item_unpack(h, e, m), high = item_unpack(h + 1, e, m);
    const float at = (float)low, mid = (float)(low + (high - low) / 2);
    v[0] = at, v[1] = nextafterf(at, INFINITY), v[2] = nextafterf(at, -INFINITY);
    v[3] = mid, v[4] = nextafterf(mid, INFINITY), v[5] = nextafterf(mid, -INFINITY);
    for (int k = 0; k < 6; k++) v[6 + k] = -v[k];
    v[12] = v[13] = v[14] = v[15] = at;
}

TEST(halves_round_as_the_reference) {
    harness_rng r = {22};
    EACH_BUILD(s) {
        for (size_t t = 0; t < WEFT__COUNT(halves); t++) {
            const int e = halves[t].exponent, m = halves[t].mantissa;
            const uint32_t quiet = 1u << (m - 1), infinity = ((1u << e) - 1) << m;
            for (uint32_t h = 0; h < 40000; h++) {
                simd_out v;
                uint16_t got[SIMD_LANES_MAX];
                if (h <= infinity) half_neighbours(h, e, m, v.f);
                for (int k = 0; k < SIMD_LANES_MAX && h > infinity; k++) v.f[k] = any_float(&r);
                for (int part = 0; part < SIMD_LANES_MAX; part += s->lanes) {
                    simd_out some;
                    memcpy(some.f, v.f + part, (size_t)s->lanes * sizeof(float));
                    s->memory[halves[t].type].store(got + part, &some);
                }
                for (int k = 0; k < SIMD_LANES_MAX; k++) {
                    const uint32_t want = item_pack(v.f[k], e, m);
                    const bool nan = (got[k] & infinity) == infinity && (got[k] & quiet);
                    CHECK(isnan(v.f[k]) ? nan : want == got[k], "%s: %a to %d-bit mantissa: %04x, got %04x", s->isa,
                          v.f[k], m, want, got[k]);
                }
            }
        }
    }
}

TEST(pairs_of_bf16_multiply_and_add) {
    harness_rng r = {23};
    EACH_BUILD(s) {
        for (int round = 0; round < 2000; round++) {
            uint16_t a[2 * SIMD_LANES_MAX], b[2 * SIMD_LANES_MAX];
            float sum[SIMD_LANES_MAX], got[SIMD_LANES_MAX];
            for (int k = 0; k < 2 * s->lanes; k++) {
                a[k] = (uint16_t)item_pack(harness_real(&r), 8, 7);
                b[k] = (uint16_t)item_pack(harness_real(&r) * 100, 8, 7);
            }
            for (int k = 0; k < s->lanes; k++) got[k] = sum[k] = (float)harness_real(&r);
            s->dot(got, a, b);
            for (int k = 0; k < s->lanes; k++) {
                const double x = item_unpack(a[2 * k], 8, 7) * item_unpack(b[2 * k], 8, 7);
                const double y = item_unpack(a[2 * k + 1], 8, 7) * item_unpack(b[2 * k + 1], 8, 7);
                const double want = sum[k] + x + y, bound = 0x1p-23 * (fabs(sum[k]) + fabs(x) + fabs(y));
                CHECK(fabs(want - got[k]) <= bound, "%s: lane %d: %a, got %a", s->isa, k, want, got[k]);
            }
        }
    }
}
