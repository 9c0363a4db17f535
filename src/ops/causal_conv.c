/* Short causal convolution, 1D, depthwise: each output sees the k - 1 tokens before it and none behind.
 * The records here say what a valid problem is; src/ref/causal_conv.h says what they compute.
 *   causal_conv    a whole sequence: src, dst n c w; weights c k; h0, hn n c k-1; seq_idx n w. The low padding is
 *                  always k - 1 and the high one 0; left out, they are filled in.
 *   causal_update  w new tokens of each sequence behind a state: state rows c len, read and written; lengths, index n.
 * Gradient passes read weights and bias too: silu's slope is computed again from src. */
#include <string.h>

#include "ops/common.h"
#include "ops/fill.h"
#include "ref/causal_conv.h"

#define SIZE(key, member, section) {key, WEFT__FIELD_INT, WEFT__AT(member), 1, true, 1, section}
#define SEQUENCE_FIELDS SIZE("n", n, 0), SIZE("c", c, 0), SIZE("w", in[2], 0), SIZE("k", kernel[2], 1)
#define FLAG(key, attribute) {key, WEFT__FIELD_INT, WEFT__AT(attr[WEFT_CAUSAL_##attribute]), 0, false, 1, 1}
static const weft__field fields[] = {
    SEQUENCE_FIELDS,       {"p", WEFT__FIELD_PADS, WEFT__AT(pad_lo), 0, false, 1, 1},
    FLAG("first", H0),     FLAG("last", HN),
    FLAG("seqs", SEQ_IDX),
};
static const weft__field update_fields[] = {
    SEQUENCE_FIELDS,      {"len", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_CAUSAL_LEN]), 0, true, 1, 1},
    FLAG("rows", ROWS),   FLAG("ring", RING),
    FLAG("index", INDEX),
};

#define R(role) WEFT__R(role)
#define GIVEN (R(SRC) | R(WEIGHTS) | R(BIAS) | R(H0) | R(SEQ_IDX))
#define BACK (GIVEN | R(DIFF_DST) | R(DIFF_HN))
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, GIVEN, R(DST) | R(HN), R(BIAS), false, false, true},
    {WEFT_PASS_BWD_DATA, BACK, R(DIFF_SRC) | R(DIFF_H0), R(BIAS), false, true, true},
    {WEFT_PASS_BWD_WEIGHTS, BACK & ~R(DIFF_HN), R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(BIAS) | R(DIFF_BIAS), false, true,
     true},
    {WEFT_PASS_BWD, BACK, R(DIFF_SRC) | R(DIFF_H0) | R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(BIAS) | R(DIFF_BIAS), false,
     true, true},
};
static const weft__pass_def update_passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS) | R(BIAS) | R(STATE) | R(LENGTHS) | R(INDEX), R(DST) | R(STATE), R(BIAS), false,
     false, true},
};

static weft_status check_flags(const weft_problem *p, const weft__field *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int64_t got = *(const int64_t *)(const void *)((const char *)p + f[i].offset);
        if (got != 0 && got != 1) return weft__bad_size(p, f[i].key, 3, got, "0 or 1");
    }
    return WEFT_OK;
}

/* The sequence, the window and the order of the steps. */
static weft_status check_common(weft_problem *p) {
    WEFT__TRY(weft__check_data(p, 1));
    WEFT__TRY(weft__check_window(p, 2));
    memcpy(p->out, p->in, sizeof(p->out));
    for (int i = 1; i < p->nsteps; i++)
        if (p->step[i - 1].kind == WEFT_STEP_SILU && p->step[i].kind != WEFT_STEP_ACC)
            return weft__fail(WEFT_ERR_INVALID,
                              "%s: epilogue step %d comes after silu, allowed: bias, then silu, each or not",
                              weft__op_of(p->op)->name, i);
    return WEFT_OK;
}

static weft_status check(weft_problem *p) {
    WEFT__TRY(check_common(p));
    WEFT__TRY(check_flags(p, fields + WEFT__COUNT(fields) - 3, 3));
    if (!p->pad_lo[2] && !p->pad_hi[2]) p->pad_lo[2] = p->kernel[2] - 1;
    if (p->pad_lo[2] != p->kernel[2] - 1)
        return weft__bad_size(p, "low padding", 2, p->pad_lo[2], "the kernel size less 1");
    if (p->pad_hi[2]) return weft__bad_size(p, "high padding", 2, p->pad_hi[2], "0");
    if (p->attr[WEFT_CAUSAL_SEQ_IDX] && (p->attr[WEFT_CAUSAL_H0] || p->attr[WEFT_CAUSAL_HN]))
        return weft__fail(WEFT_ERR_INVALID, "causal_conv: seqs is 1 beside states, allowed: seq_idx or first and last");
    return WEFT_OK;
}

static weft_status check_update(weft_problem *p) {
    int64_t *rows = &p->attr[WEFT_CAUSAL_ROWS], len = p->attr[WEFT_CAUSAL_LEN];
    WEFT__TRY(check_common(p));
    WEFT__TRY(check_flags(p, update_fields + WEFT__COUNT(update_fields) - 2, 2));
    if (len < p->kernel[2] - 1 || len > WEFT__BIG)
        return weft__bad_size(p, "len", 3, len, "the kernel size less 1, or more");
    if (p->attr[WEFT_CAUSAL_RING] && !len) return weft__bad_size(p, "len", 3, len, "1 or more in a ring");
    if (!*rows) *rows = p->n;
    if (*rows < 0 || *rows > WEFT__BIG || (!p->attr[WEFT_CAUSAL_INDEX] && *rows != p->n))
        return weft__bad_size(p, "rows", 3, *rows, p->attr[WEFT_CAUSAL_INDEX] ? "0..2^40" : "n without index");
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    int64_t before[3] = {1, 1, p->kernel[2] - 1}, held[3] = {1, 1, p->attr[WEFT_CAUSAL_LEN]};
    switch (role) {
    case WEFT_ROLE_WEIGHTS:
    case WEFT_ROLE_DIFF_WEIGHTS:
        weft__data_shape(t, p->c, 1, p->kernel);
        return;
    case WEFT_ROLE_BIAS:
    case WEFT_ROLE_DIFF_BIAS:
        weft__vector_shape(t, p->c);
        return;
    case WEFT_ROLE_LENGTHS:
    case WEFT_ROLE_INDEX:
        weft__vector_shape(t, p->n);
        return;
    case WEFT_ROLE_H0:
    case WEFT_ROLE_HN:
    case WEFT_ROLE_DIFF_H0:
    case WEFT_ROLE_DIFF_HN:
        weft__data_shape(t, p->n, p->c, before);
        return;
    case WEFT_ROLE_STATE:
        weft__data_shape(t, p->attr[WEFT_CAUSAL_ROWS], p->c, held);
        return;
    case WEFT_ROLE_SEQ_IDX:
        weft__data_shape(t, p->n, 1, p->in);
        return;
    default:
        weft__data_shape(t, p->n, p->c, p->in);
    }
}

static uint64_t dtypes(const weft_problem *p, int role) {
    (void)p;
    bool whole = role == WEFT_ROLE_SEQ_IDX || role == WEFT_ROLE_LENGTHS || role == WEFT_ROLE_INDEX;
    return whole ? WEFT__BIT(WEFT_DTYPE_I32) : WEFT__FLOATS;
}

static uint64_t absent(const weft_problem *p) {
    return (p->attr[WEFT_CAUSAL_H0] ? 0 : R(H0) | R(DIFF_H0)) | (p->attr[WEFT_CAUSAL_HN] ? 0 : R(HN) | R(DIFF_HN)) |
           (p->attr[WEFT_CAUSAL_SEQ_IDX] ? 0 : R(SEQ_IDX));
}

static uint64_t update_absent(const weft_problem *p) {
    return (p->attr[WEFT_CAUSAL_RING] ? 0 : R(LENGTHS)) | (p->attr[WEFT_CAUSAL_INDEX] ? 0 : R(INDEX));
}

/* Gradients that need silu's slope compute z first. */
static double flops(const weft_problem *p) {
    double sums = p->pass == WEFT_PASS_FWD ? 1 : p->pass == WEFT_PASS_BWD ? 2 : 1;
    if (p->pass != WEFT_PASS_FWD && weft__has_step(p, WEFT_STEP_SILU)) sums += 1;
    return 2 * sums * weft__data_numel(p) * (double)p->kernel[2];
}

/* Sequences of a few tokens with some padding between them; rows of the state that differ, some of them missing. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    const int64_t rows = p->attr[WEFT_CAUSAL_ROWS], shift = weft__draw_below(&seed, rows);
    int64_t seq = 0;
    if (t->role != WEFT_ROLE_SEQ_IDX && t->role != WEFT_ROLE_LENGTHS && t->role != WEFT_ROLE_INDEX) return false;
    WEFT__EACH(t, i, at, coord) {
        int64_t v = weft__draw_below(&seed, 1000);
        if (t->role == WEFT_ROLE_SEQ_IDX) {
            if (weft__draw_chance(&seed, 15)) seq = weft__draw_below(&seed, 6) - 1;
            v = seq;
        } else if (t->role == WEFT_ROLE_INDEX) {
            v = i >= rows || weft__draw_chance(&seed, 15) ? -1 : (i + shift) % rows;
        }
        item_store(t->dtype, ptr, at, (double)v);
    }
    return true;
}

static const weft__items items = {"causal_conv.h",   "causal_conv_item", causal_conv_phases,
                                  causal_conv_count, weft__no_workspace, causal_conv_item};
static const weft__items update_items = {"causal_conv.h",     "causal_update_item", causal_update_phases,
                                         causal_update_count, weft__no_workspace,   causal_update_item};

const weft__op weft__op_causal_conv = {
    .name = "causal_conv",
    .op = WEFT_OP_CAUSAL_CONV,
    .min_rank = 1,
    .max_rank = 1,
    .fields = fields,
    .nfields = WEFT__COUNT(fields),
    .passes = passes,
    .npasses = WEFT__COUNT(passes),
    .check = check,
    .shape = shape,
    .dtypes = dtypes,
    .absent = absent,
    .flops = flops,
    .fill = fill,
    .transcendental = true,
    .items = &items,
};

const weft__op weft__op_causal_update = {
    .name = "causal_update",
    .op = WEFT_OP_CAUSAL_UPDATE,
    .min_rank = 1,
    .max_rank = 1,
    .fields = update_fields,
    .nfields = WEFT__COUNT(update_fields),
    .passes = update_passes,
    .npasses = WEFT__COUNT(update_passes),
    .check = check_update,
    .shape = shape,
    .dtypes = dtypes,
    .absent = update_absent,
    .flops = flops,
    .fill = fill,
    .transcendental = true,
    .items = &update_items,
};
