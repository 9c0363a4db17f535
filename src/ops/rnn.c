/* Recurrent layers: rnn_relu, rnn_tanh, lstm, gru. src/ref/rnn.h has the formulas and how weights, biases, the
 * reserve and packed sequences lie in memory. Batch-first data are strides. Without `state` the first states are 0
 * and have no gradient. */
#include "ops/common.h"
#include "ops/fill.h"
#include "ref/rnn.h"

#define ATTR(key, name, fallback, always) \
    {key, WEFT__FIELD_INT, WEFT__AT(attr[WEFT_RNN_##name]), fallback, always, 0, always ? 0 : 1}
static const weft__field fields[] = {
    ATTR("t", STEPS, 1, true),
    {"n", WEFT__FIELD_INT, WEFT__AT(n), 1, true, 0, 0},
    {"c", WEFT__FIELD_INT, WEFT__AT(c), 1, true, 0, 0},
    {"o", WEFT__FIELD_INT, WEFT__AT(o), 1, true, 0, 0},
    ATTR("l", LAYERS, 1, false),
    ATTR("both", BIDIRECTIONAL, 0, false),
    ATTR("proj", PROJECTION, 0, false),
    ATTR("b", BIAS, 1, false),
    ATTR("state", STATE, 0, false),
    ATTR("rows", ROWS, 0, false),
    ATTR("train", TRAIN, 0, false),
    ATTR("seed", SEED, 0, false),
    {"drop", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_RNN_DROPOUT]), 0, false, 0, 1},
};

#define R(role) WEFT__R(role)
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS) | R(BIAS) | R(H0) | R(C0) | R(LENGTHS), R(DST) | R(HN) | R(CN) | R(RESERVE), 0,
     false, false, false},
    {WEFT_PASS_BWD,
     R(SRC) | R(WEIGHTS) | R(H0) | R(C0) | R(LENGTHS) | R(RESERVE) | R(DIFF_DST) | R(DIFF_HN) | R(DIFF_CN),
     R(DIFF_SRC) | R(DIFF_WEIGHTS) | R(DIFF_BIAS) | R(DIFF_H0) | R(DIFF_C0), 0, false, true, false},
};

static uint64_t absent(const weft_problem *p) {
    uint64_t roles = 0;
    if (p->op != WEFT_OP_LSTM) roles |= R(C0) | R(CN) | R(DIFF_C0) | R(DIFF_CN);
    if (!p->attr[WEFT_RNN_STATE]) roles |= R(H0) | R(C0) | R(DIFF_H0) | R(DIFF_C0);
    if (!p->attr[WEFT_RNN_BIAS]) roles |= R(BIAS) | R(DIFF_BIAS);
    if (!p->attr[WEFT_RNN_ROWS]) roles |= R(LENGTHS);
    if (p->pass == WEFT_PASS_FWD && !p->attr[WEFT_RNN_TRAIN]) roles |= R(RESERVE);
    return roles;
}

typedef struct range {
    int attr;
    int64_t low, high;
    const char *name, *allowed;
} range;
static weft_status check(weft_problem *p) {
    static const range ranges[] = {
        {WEFT_RNN_STEPS, 1, 1 << 24, "steps t", "1..2^24"},
        {WEFT_RNN_LAYERS, 1, 1 << 10, "layers l", "1..1024"},
        {WEFT_RNN_BIDIRECTIONAL, 0, 1, "both", "0 or 1"},
        {WEFT_RNN_PROJECTION, 0, 1 << 20, "projection proj", "0 (none) or below o"},
        {WEFT_RNN_BIAS, 0, 1, "bias b", "0 or 1"},
        {WEFT_RNN_STATE, 0, 1, "state", "0 or 1"},
        {WEFT_RNN_ROWS, 0, WEFT__BIG, "packed rows", "0..2^40"},
        {WEFT_RNN_TRAIN, 0, 1, "train", "0 or 1"},
    };
    WEFT__TRY(weft__check_data(p, 1));
    if (p->o < 1 || p->o > (1 << 20)) return weft__bad_size(p, "hidden size o", 3, p->o, "1..2^20");
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++) {
        int64_t v = p->attr[ranges[i].attr];
        if (v < ranges[i].low || v > ranges[i].high) return weft__bad_size(p, ranges[i].name, 3, v, ranges[i].allowed);
    }
    int64_t proj = p->attr[WEFT_RNN_PROJECTION], rows = p->attr[WEFT_RNN_ROWS], all;
    if (proj && (p->op != WEFT_OP_LSTM || proj >= p->o))
        return weft__bad_size(p, "projection proj", 3, proj, "for lstm only, below o");
    if (!weft__mul(p->attr[WEFT_RNN_STEPS], p->n, &all) || rows > all)
        return weft__bad_size(p, "packed rows", 3, rows, "at most t*n");
    if (!(p->real[WEFT_RNN_DROPOUT] >= 0 && p->real[WEFT_RNN_DROPOUT] <= 1))
        return weft__fail(WEFT_ERR_INVALID, "%s: drop is %g, allowed: 0..1", weft__op_of(p->op)->name,
                          p->real[WEFT_RNN_DROPOUT]);
    if (p->pass == WEFT_PASS_BWD && !p->attr[WEFT_RNN_TRAIN])
        return weft__bad_size(p, "train", 3, 0, "1 for bwd: it reads the reserve");
    double record =
        (double)rnn_of(p, NULL, NULL).record * (double)p->attr[WEFT_RNN_LAYERS] * 2 * (double)WEFT__MAX(all, 1);
    if (record > 0x1p58 || (double)p->o * 4 * ((double)p->c + (double)p->o) * (double)p->attr[WEFT_RNN_LAYERS] > 0x1p58)
        return weft__fail(WEFT_ERR_INVALID,
                          "%s: its weights or states overflow 63 bits, allowed: fewer bytes than 2^63",
                          weft__op_of(p->op)->name);
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    rnn v = rnn_of(p, NULL, NULL);
    bool src = role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_SRC;
    switch (role) {
    case WEFT_ROLE_WEIGHTS:
    case WEFT_ROLE_DIFF_WEIGHTS:
        weft__vector_shape(t, rnn_begin(&v, v.L, 0));
        break;
    case WEFT_ROLE_BIAS:
    case WEFT_ROLE_DIFF_BIAS:
        weft__vector_shape(t, v.L * v.D * 2 * v.G * v.H);
        break;
    case WEFT_ROLE_RESERVE:
        weft__vector_shape(t, v.L * v.D * v.rows * v.record);
        break;
    case WEFT_ROLE_LENGTHS:
        weft__vector_shape(t, v.T + 1);
        break;
    case WEFT_ROLE_SRC:
    case WEFT_ROLE_DIFF_SRC:
    case WEFT_ROLE_DST:
    case WEFT_ROLE_DIFF_DST:
        t->rank = p->attr[WEFT_RNN_ROWS] ? 2 : 3;
        t->dims[0] = p->attr[WEFT_RNN_ROWS] ? v.rows : v.T;
        t->dims[1] = v.n;
        t->dims[t->rank - 1] = src ? v.c : v.D * v.P;
        break;
    default: {
        bool cell =
            role == WEFT_ROLE_C0 || role == WEFT_ROLE_CN || role == WEFT_ROLE_DIFF_C0 || role == WEFT_ROLE_DIFF_CN;
        *t = (weft_tensor){.role = t->role, .rank = 3, .dims = {v.L * v.D, v.n, cell ? v.H : v.P}};
    }
    }
}

static uint64_t dtypes(const weft_problem *p, int role) {
    (void)p;
    return role == WEFT_ROLE_LENGTHS   ? WEFT__BIT(WEFT_DTYPE_I64)
           : role == WEFT_ROLE_RESERVE ? WEFT__BIT(WEFT_DTYPE_F32) | WEFT__BIT(WEFT_DTYPE_F64)
                                       : WEFT__FLOATS;
}

static double flops(const weft_problem *p) {
    rnn v = rnn_of(p, NULL, NULL);
    return (p->pass == WEFT_PASS_BWD ? 4.0 : 2.0) * (double)v.rows * (double)rnn_begin(&v, v.L, 0);
}

static const weft__items items = {"rnn.h", "rnn_item", rnn_phases, rnn_count, rnn_workspace, rnn_item};

/* Offsets of the steps' rows: all n sequences at the first step, then never more than before, `rows` in all. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    int64_t begin = 0, alive = p->n;
    if (t->role != WEFT_ROLE_LENGTHS) return false;
    WEFT__EACH(t, i, at, coord) {
        const int64_t left = p->attr[WEFT_RNN_STEPS] - i, rest = p->attr[WEFT_RNN_ROWS] - begin;
        item_store(t->dtype, ptr, at, (double)begin);
        if (left <= 0) break;
        const int64_t least = (rest + left - 1) / left; /* fewer now would leave more than the later steps can take */
        if (i) alive = least + weft__draw_below(&seed, WEFT__MIN(alive, rest) - least + 1);
        begin += alive;
    }
    return true;
}

#define RNN(NAME, name_)                                               \
    const weft__op weft__op_##name_ = {.name = #name_,                 \
                                       .op = WEFT_OP_##NAME,           \
                                       .fields = fields,               \
                                       .nfields = WEFT__COUNT(fields), \
                                       .passes = passes,               \
                                       .npasses = WEFT__COUNT(passes), \
                                       .check = check,                 \
                                       .shape = shape,                 \
                                       .dtypes = dtypes,               \
                                       .absent = absent,               \
                                       .flops = flops,                 \
                                       .fill = fill,                   \
                                       .transcendental = true,         \
                                       .items = &items}
RNN(RNN_RELU, rnn_relu);
RNN(RNN_TANH, rnn_tanh);
RNN(LSTM, lstm);
RNN(GRU, gru);
