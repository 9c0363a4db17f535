/* Pooling: max_pool, avg_pool, adaptive_avg_pool (global average is to1). Sizes, padding and ceil mode follow torch;
 * low and high padding may differ. A text without s has stride 1. */
#include "ops/common.h"
#include "ops/fill.h"
#include "ref/pool.h"

static const weft__field max_fields[] = {
    WEFT__DATA_FIELDS,
    WEFT__WINDOW_FIELDS,
    WEFT__DILATION_FIELD,
    {"ceil", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_POOL_CEIL]), 0, false, 1, 1},
    {"index", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_MAX_POOL_INDEX]), 0, false, 1, 1},
};
static const weft__field avg_fields[] = {
    WEFT__DATA_FIELDS,
    WEFT__WINDOW_FIELDS,
    {"ceil", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_POOL_CEIL]), 0, false, 1, 1},
    {"include_pad", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_AVG_POOL_INCLUDE_PAD]), 1, false, 1, 1},
    {"divisor", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_AVG_POOL_DIVISOR]), 0, false, 1, 1},
};
static const weft__field adaptive_fields[] = {
    WEFT__DATA_FIELDS,
    {"to", WEFT__FIELD_AXES, WEFT__AT(attr[WEFT_ADAPTIVE_AVG_POOL_TO]), 1, true, 1, 1},
};

#define R(role) WEFT__R(role)
static const weft__pass_def max_passes[] = {
    {WEFT_PASS_FWD, R(SRC), R(DST) | R(INDEX), 0, false, false, false},
    {WEFT_PASS_BWD, R(INDEX) | R(DIFF_DST), R(DIFF_SRC), 0, false, true, false},
};
static const weft__pass_def avg_passes[] = {
    {WEFT_PASS_FWD, R(SRC), R(DST), 0, false, false, false},
    {WEFT_PASS_BWD, R(DIFF_DST), R(DIFF_SRC), 0, false, true, false},
};

/* ---------------------------------------------------------------- geometry */
static weft_status check_sizes(const weft_problem *p) {
    WEFT__TRY(weft__check_data(p, 0));
    for (int a = 0; a < 3; a++)
        if (p->in[a] < 1) return weft__bad_size(p, "input size", a, p->in[a], "1..2^40");
    return WEFT_OK;
}

static weft_status check_switch(const weft_problem *p, int attr, const char *name) {
    int64_t v = p->attr[attr];
    return v == 0 || v == 1 ? WEFT_OK : weft__bad_size(p, name, 3, v, "0 or 1");
}

/* out = floor((in + lo + hi - window) / stride) + 1; with ceil: rounded up, less a last window that starts past the
 * input. */
static weft_status check_axis(weft_problem *p, int a) {
    WEFT__TRY(weft__check_window(p, a));
    int64_t window = p->dilation[a] * (p->kernel[a] - 1) + 1, up = p->attr[WEFT_POOL_CEIL] ? p->stride[a] - 1 : 0;
    int64_t padded = p->in[a] + p->pad_lo[a] + p->pad_hi[a], pad = WEFT__MAX(p->pad_lo[a], p->pad_hi[a]);
    const char *name = weft__op_of(p->op)->name;
    if (pad > p->kernel[a] / 2)
        return weft__fail(WEFT_ERR_INVALID,
                          "%s: padding along %c is %lld, allowed: at most half of the kernel size, %lld", name,
                          "dhw"[a], (long long)pad, (long long)(p->kernel[a] / 2));
    if (padded + up < window)
        return weft__fail(
            WEFT_ERR_INVALID,
            "%s: the window along %c is %lld (kernel %lld, dilation %lld), allowed: at most the padded input, %lld%s",
            name, "dhw"[a], (long long)window, (long long)p -> kernel[a], (long long)p -> dilation[a],
            (long long)(padded + up), up ? " (in ceil mode with stride - 1 more)" : "");
    p->out[a] = (padded + up - window) / p->stride[a] + 1;
    if (up && (p->out[a] - 1) * p->stride[a] >= p->in[a] + p->pad_lo[a]) p->out[a]--;
    return WEFT_OK;
}

static double volume(const int64_t size[3]) { return (double)size[0] * (double)size[1] * (double)size[2]; }

static weft_status check_max(weft_problem *p) {
    WEFT__TRY(check_sizes(p));
    if (p->pass == WEFT_PASS_BWD) p->attr[WEFT_MAX_POOL_INDEX] = 1;
    WEFT__TRY(check_switch(p, WEFT_POOL_CEIL, "ceil"));
    WEFT__TRY(check_switch(p, WEFT_MAX_POOL_INDEX, "index"));
    for (int a = 0; a < 3; a++) WEFT__TRY(check_axis(p, a));
    const weft_tensor *index = weft__tensor(p, WEFT_ROLE_INDEX);
    if (index && index->dtype == WEFT_DTYPE_U8 && volume(p->kernel) > 256)
        return weft__fail(
            WEFT_ERR_INVALID,
            "max_pool: index is u8 and a window has %.0f places, allowed: at most 256, or an index of i32 or i64",
            volume(p->kernel));
    if (index && index->dtype == WEFT_DTYPE_I32 && volume(p->in) > INT32_MAX)
        return weft__fail(
            WEFT_ERR_INVALID,
            "max_pool: index is i32 and a channel has %.0f places, allowed: at most 2^31 - 1, or an index of i64",
            volume(p->in));
    return WEFT_OK;
}

static weft_status check_avg(weft_problem *p) {
    WEFT__TRY(check_sizes(p));
    WEFT__TRY(check_switch(p, WEFT_POOL_CEIL, "ceil"));
    WEFT__TRY(check_switch(p, WEFT_AVG_POOL_INCLUDE_PAD, "include_pad"));
    for (int a = 0; a < 3; a++) {
        if (p->dilation[a] != 1) return weft__bad_size(p, "dilation", a, p->dilation[a], "1");
        WEFT__TRY(check_axis(p, a));
    }
    return WEFT_OK;
}

/* Bounds of windows are quotients of in * to: those stay in 62 bits. */
static weft_status check_adaptive(weft_problem *p) {
    WEFT__TRY(check_sizes(p));
    for (int a = 0; a < 3; a++) {
        int64_t *to = &p->attr[WEFT_ADAPTIVE_AVG_POOL_TO + a];
        if (a < 3 - p->rank) *to = 1;
        int64_t most = (INT64_C(1) << 61) / (p->in[a] + 1);
        if (*to < 0 || *to > WEFT__BIG || *to > most)
            return weft__bad_size(p, "output size", a, *to,
                                  most < WEFT__BIG ? "0..2^61 / (input size + 1)" : "0..2^40");
        p->out[a] = *to;
    }
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    weft__data_shape(t, p->n, p->c, role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_SRC ? p->in : p->out);
}

/* An index type must hold every index. */
static uint64_t max_dtypes(const weft_problem *p, int role) {
    if (role != WEFT_ROLE_INDEX) return WEFT__FLOATS;
    uint64_t tap = volume(p->kernel) <= 256 ? WEFT__BIT(WEFT_DTYPE_U8) : 0,
             place = volume(p->in) <= INT32_MAX ? WEFT__BIT(WEFT_DTYPE_I32) : 0;
    return tap | place | WEFT__BIT(WEFT_DTYPE_I64);
}

static uint64_t max_absent(const weft_problem *p) { return p->attr[WEFT_MAX_POOL_INDEX] ? 0 : R(INDEX); }

/* One comparison or addition a tap; windows of adaptive pooling hold in / out places, or one where out is larger. */
static double flops(const weft_problem *p) {
    double planes = (double)p->n * (double)p->c;
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) return planes * WEFT__MAX(volume(p->in), volume(p->out));
    return planes * volume(p->out) * volume(p->kernel);
}

static const weft__items items = {"pool.h", "pool_item", weft__one_phase, pool_count, weft__no_workspace, pool_item};

/* An index is one of the window (u8) or of the channel, mostly of another window: then it is passed over. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    const int64_t *size = t->dtype == WEFT_DTYPE_U8 ? p->kernel : p->in;
    if (t->role != WEFT_ROLE_INDEX) return false;
    WEFT__EACH(t, i, at, coord)
    item_store(t->dtype, ptr, at, (double)weft__draw_below(&seed, size[0] * size[1] * size[2]));
    return true;
}

#define POOL(NAME, name_, kind, passes_, dtypes_, absent_)                    \
    const weft__op weft__op_##name_ = {.name = #name_,                        \
                                       .op = WEFT_OP_##NAME,                  \
                                       .min_rank = 1,                         \
                                       .max_rank = 3,                         \
                                       .fields = kind##_fields,               \
                                       .nfields = WEFT__COUNT(kind##_fields), \
                                       .passes = passes_,                     \
                                       .npasses = WEFT__COUNT(passes_),       \
                                       .check = check_##kind,                 \
                                       .shape = shape,                        \
                                       .dtypes = dtypes_,                     \
                                       .absent = absent_,                     \
                                       .flops = flops,                        \
                                       .fill = fill,                          \
                                       .items = &items}
POOL(MAX_POOL, max_pool, max, max_passes, max_dtypes, max_absent);
POOL(AVG_POOL, avg_pool, avg, avg_passes, weft__floats, NULL);
POOL(ADAPTIVE_AVG_POOL, adaptive_avg_pool, adaptive, avg_passes, weft__floats, NULL);
