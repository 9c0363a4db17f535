/* Loads and stores of vectors on every ISA the machine has: whole, by count, by set of lanes, between guard pages. */
#include <math.h>

#include "builds.h"
#include "ref/item.h"

static const int dtypes[SIMD_TYPES] = {
    [SIMD_F32] = WEFT_DTYPE_F32, [SIMD_F16] = WEFT_DTYPE_F16, [SIMD_BF16] = WEFT_DTYPE_BF16,
    [SIMD_I32] = WEFT_DTYPE_I32, [SIMD_U8] = WEFT_DTYPE_U8,   [SIMD_I64] = WEFT_DTYPE_I64,
};
static bool is_float(int type) { return type <= SIMD_BF16; }

typedef struct subject { /* one type of one build, and memory of `count` elements between guards */
    const simd_build *s;
    int type, bytes, lanes;
    const simd_memory *memory;
    harness_buffer buffer;
} subject;

static void reserve(subject *u, int64_t count, harness_place place) {
    size_t bytes = (size_t)(count > 0 ? count : 0) * (size_t)u->bytes;
    CHECK(harness_open_bytes(&u->buffer, bytes, (size_t)u->bytes, place), "no memory");
}

static void put(const subject *u, int64_t at, int64_t value) {
    if (is_float(u->type))
        item_store(dtypes[u->type], u->buffer.at, at, (double)value);
    else if (u->type == SIMD_U8)
        ((uint8_t *)u->buffer.at)[at] = (uint8_t)value;
    else if (u->type == SIMD_I32)
        ((int32_t *)u->buffer.at)[at] = (int32_t)value;
    else
        ((int64_t *)u->buffer.at)[at] = value;
}
static double get(const subject *u, int64_t at) { return item_load(dtypes[u->type], u->buffer.at, at); }

static double lane(const subject *u, const simd_out *v, int k) { return is_float(u->type) ? (double)v->f[k] : v->i[k]; }
/* Values every type holds; integers also negative, and with more bits than a byte where that is lost. */
static int64_t value_at(const subject *u, int k) { return u->type == SIMD_U8 || k % 2 ? 3 + 5 * k : -(3 + 5 * k); }
static simd_out values(const subject *u) {
    simd_out v;
    for (int k = 0; k < SIMD_LANES_MAX; k++)
        if (is_float(u->type))
            v.f[k] = (float)value_at(u, k);
        else
            v.i[k] = (int32_t)value_at(u, k) + (u->type == SIMD_U8 ? 256 * k : 0);
    return v;
}

/* Elements from .. to of a vector are in memory, at the buffer's begin. */
static void fill(subject *u, int from, int to, harness_place place) {
    reserve(u, to - from, place);
    for (int k = from; k < to; k++) put(u, k - from, value_at(u, k));
}
static void check_loaded(const subject *u, const simd_out *v, int from, int to, uint32_t set) {
    for (int k = 0; k < u->lanes; k++) {
        const double want = k >= from && k < to && (set >> k & 1) ? (double)value_at(u, k) : 0;
        CHECK(lane(u, v, k) == want, "%s type %d, lanes %d..%d of %x: lane %d is %g", u->s->isa, u->type, from, to, set,
              k, lane(u, v, k));
    }
}
static void check_stored(const subject *u, int from, int to, uint32_t set) {
    char why[256];
    CHECK(harness_intact(&u->buffer, why, sizeof why), "%s type %d, lanes %d..%d: %s", u->s->isa, u->type, from, to,
          why);
    const unsigned char *bytes = u->buffer.at;
    for (int k = from; k < to; k++) {
        const size_t at = (size_t)(k - from) * (size_t)u->bytes;
        bool poison = true;
        for (int b = 0; b < u->bytes; b++) poison &= bytes[at + (size_t)b] == 0xff;
        if (set >> k & 1)
            CHECK(get(u, k - from) == (double)value_at(u, k), "%s type %d, lanes %d..%d of %x: %d is %g", u->s->isa,
                  u->type, from, to, set, k, get(u, k - from));
        else
            CHECK(poison, "%s type %d, lanes %d..%d of %x: %d was written", u->s->isa, u->type, from, to, set, k);
    }
}

static void by_count(subject *u, harness_place place) {
    const simd_out all = values(u);
    for (int n = -2; n <= u->lanes + 2; n++) {
        const int end = n < 0 ? 0 : n > u->lanes ? u->lanes : n;
        simd_out v;
        fill(u, 0, end, place);
        u->memory->load_count(&v, u->buffer.at, n);
        check_loaded(u, &v, 0, end, ~0u);
        reserve(u, end, place);
        u->memory->store_count(u->buffer.at, &all, n);
        check_stored(u, 0, end, ~0u);
    }
}

static void whole(subject *u, harness_place place) {
    const simd_out all = values(u);
    simd_out v;
    fill(u, 0, u->lanes, place);
    u->memory->load(&v, u->buffer.at);
    check_loaded(u, &v, 0, u->lanes, ~0u);
    reserve(u, u->lanes, place);
    u->memory->store(u->buffer.at, &all);
    check_stored(u, 0, u->lanes, ~0u);
    if (!u->memory->stream) return;
    CHECK(harness_open_bytes(&u->buffer, (size_t)(u->lanes * u->bytes), (size_t)(u->lanes * u->bytes), place),
          "memory");
    u->memory->stream(u->buffer.at, &all);
    check_stored(u, 0, u->lanes, ~0u);
}

/* Lanes from .. to less those not in `pick`: memory begins at lane from and ends at lane to. */
static void by_set(subject *u, int from, int to, uint32_t pick, harness_place place) {
    const simd_out all = values(u);
    simd_in in = {.lo = 0};
    for (int k = from; k < to; k++) in.m[k] = (int32_t)(pick >> k & 1);
    simd_out v;
    fill(u, from, to, place);
    u->memory->load_in(&v, &in, (char *)u->buffer.at - from * u->bytes);
    check_loaded(u, &v, from, to, pick);
    reserve(u, to - from, place);
    u->memory->store_in(&in, (char *)u->buffer.at - from * u->bytes, &all);
    check_stored(u, from, to, pick);
}

static void each_subject(void (*test)(subject *u, harness_place place)) {
    EACH_BUILD(s) {
        for (int type = 0; type < SIMD_TYPES; type++) {
            subject u = {s, type, s->memory[type].bytes, s->lanes, &s->memory[type], {0}};
            test(&u, HARNESS_END);
            test(&u, HARNESS_START);
            harness_close(&u.buffer);
        }
    }
}

static void every_set(subject *u, harness_place place) {
    harness_rng r = {24};
    if (!u->memory->load_in) return;
    for (int from = 0; from <= u->lanes; from++)
        for (int to = from; to <= u->lanes; to++) {
            by_set(u, from, to, ~0u, place);
            by_set(u, from, to, (uint32_t)harness_next(&r), place);
        }
}

TEST(whole_vectors) { each_subject(whole); }
TEST(by_count_touches_no_more) { each_subject(by_count); }
TEST(by_set_touches_no_more) { each_subject(every_set); }
