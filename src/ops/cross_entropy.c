/* Cross entropy of logits n c d h w: log-softmax and negative log-likelihood in one. The target is a class index a
 * place (i64), or with probs 1 a probability an element; weighted 1 adds a weight a class. fwd leaves the
 * log-sum-exp of every place, which bwd needs. A target outside 0..c-1 that is not ignored cannot be refused by
 * then: it gives NaN, see src/ref/cross_entropy.h. */
#include "ops/common.h"
#include "ops/fill.h"
#include "ref/cross_entropy.h"

static const weft__field fields[] = {
    WEFT__DATA_FIELDS,
    {"probs", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_CE_PROBABILITIES]), 0, false, 1, 1},
    {"weighted", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_CE_WEIGHTED]), 0, false, 1, 1},
    {"ignore", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_CE_IGNORE]), -100, false, 1, 1},
    {"smooth", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_CE_SMOOTHING]), 0, false, 1, 1},
    {"reduction", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_CE_REDUCTION]), WEFT_CE_MEAN, false, 1, 1},
};

#define R(role) WEFT__R(role)
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(TARGET) | R(WEIGHTS), R(DST) | R(LSE), 0, false, false, false},
    {WEFT_PASS_BWD, R(SRC) | R(TARGET) | R(WEIGHTS) | R(LSE) | R(DIFF_DST), R(DIFF_SRC), 0, false, true, false},
};

static weft_status check(weft_problem *p) {
    const int64_t *attr = p->attr;
    double smooth = p->real[WEFT_CE_SMOOTHING];
    WEFT__TRY(weft__check_data(p, 1));
    if (attr[WEFT_CE_PROBABILITIES] < 0 || attr[WEFT_CE_PROBABILITIES] > 1)
        return weft__bad_size(p, "probs", 3, attr[WEFT_CE_PROBABILITIES], "0 or 1");
    if (attr[WEFT_CE_WEIGHTED] < 0 || attr[WEFT_CE_WEIGHTED] > 1)
        return weft__bad_size(p, "weighted", 3, attr[WEFT_CE_WEIGHTED], "0 or 1");
    if (attr[WEFT_CE_REDUCTION] < WEFT_CE_NONE || attr[WEFT_CE_REDUCTION] > WEFT_CE_SUM)
        return weft__bad_size(p, "reduction", 3, attr[WEFT_CE_REDUCTION], "0 (none), 1 (mean) or 2 (sum)");
    if (!(smooth >= 0 && smooth <= 1))
        return weft__fail(WEFT_ERR_INVALID, "cross_entropy: smooth is %g, allowed: 0..1", smooth);
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    bool loss = role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_DST,
         logits = role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_SRC;
    if (role == WEFT_ROLE_WEIGHTS)
        weft__vector_shape(t, p->c);
    else if (loss && p->attr[WEFT_CE_REDUCTION] != WEFT_CE_NONE)
        weft__vector_shape(t, 1);
    else
        weft__data_shape(t, p->n, logits || (role == WEFT_ROLE_TARGET && p->attr[WEFT_CE_PROBABILITIES]) ? p->c : 1,
                         p->in);
}

static uint64_t dtypes(const weft_problem *p, int role) {
    if (role == WEFT_ROLE_LSE) return WEFT__BIT(WEFT_DTYPE_F32) | WEFT__BIT(WEFT_DTYPE_F64);
    return role == WEFT_ROLE_TARGET && !p->attr[WEFT_CE_PROBABILITIES] ? WEFT__BIT(WEFT_DTYPE_I64) : WEFT__FLOATS;
}

static uint64_t absent(const weft_problem *p) { return p->attr[WEFT_CE_WEIGHTED] ? 0 : R(WEIGHTS); }

/* Those of softmax, and a share of each class. */
static double flops(const weft_problem *p) { return 8 * weft__data_numel(p); }

static const weft__items items = {
    "cross_entropy.h",   "cross_entropy_item",    cross_entropy_phases,
    cross_entropy_count, cross_entropy_workspace, cross_entropy_item,
};

/* Classes; every tenth label is the one that is ignored. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    if (t->dtype != WEFT_DTYPE_I64) return false;
    WEFT__EACH(t, i, at, coord) {
        const int64_t label = weft__draw_below(&seed, p->c);
        ((int64_t *)ptr)[at] = weft__draw_chance(&seed, 10) ? p->attr[WEFT_CE_IGNORE] : label;
    }
    return true;
}

const weft__op weft__op_cross_entropy = {
    .name = "cross_entropy",
    .op = WEFT_OP_CROSS_ENTROPY,
    .min_rank = 1,
    .max_rank = 3,
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
