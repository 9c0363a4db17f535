/* dgmm: n matrices of h rows and w columns times a diagonal given as a vector: A diag(v) (side 1, v of length w) or
 * diag(v) A (side 0, v of length h). cdgmm: the same for complex numbers, stored as pairs along a last axis of 2,
 * the memory of complex tensors. Further leading axes are part of n. */
#include "ops/common.h"
#include "ref/dgmm.h"

static const weft__field fields[] = {
    {"n", WEFT__FIELD_INT, WEFT__AT(n), 1, true, 0, 0},
    {"h", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_DGMM_ROWS]), 1, true, 0, 0},
    {"w", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_DGMM_COLS]), 1, true, 0, 0},
    {"side", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_DGMM_SIDE]), 1, true, 0, 1},
};

#define R(role) WEFT__R(role)
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS), R(DST), 0, false, false, false},
    {WEFT_PASS_BWD_DATA, R(WEIGHTS) | R(DIFF_DST), R(DIFF_SRC), 0, false, true, false},
    {WEFT_PASS_BWD_WEIGHTS, R(SRC) | R(DIFF_DST), R(DIFF_WEIGHTS), 0, false, true, false},
    {WEFT_PASS_BWD, R(SRC) | R(WEIGHTS) | R(DIFF_DST), R(DIFF_SRC) | R(DIFF_WEIGHTS), 0, false, true, false},
};

static weft_status check(weft_problem *p) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch n", p->n}, {"rows h", p->attr[WEFT_DGMM_ROWS]}, {"columns w", p->attr[WEFT_DGMM_COLS]}};
    for (size_t i = 0; i < WEFT__COUNT(sizes); i++)
        if (sizes[i].value < 0 || sizes[i].value > WEFT__BIG)
            return weft__bad_size(p, sizes[i].name, 3, sizes[i].value, "0..2^40");
    if (p->attr[WEFT_DGMM_SIDE] != 0 && p->attr[WEFT_DGMM_SIDE] != 1)
        return weft__bad_size(p, "side", 3, p->attr[WEFT_DGMM_SIDE],
                              "0 (left, one factor per row) or 1 (right, one factor per column)");
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    if (role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_DIFF_WEIGHTS) {
        weft__vector_shape(t, p->attr[p->attr[WEFT_DGMM_SIDE] ? WEFT_DGMM_COLS : WEFT_DGMM_ROWS]);
    } else {
        t->rank = 3;
        t->dims[0] = p->n;
        t->dims[1] = p->attr[WEFT_DGMM_ROWS];
        t->dims[2] = p->attr[WEFT_DGMM_COLS];
    }
    if (p->op == WEFT_OP_CDGMM) t->dims[t->rank++] = 2;
}

/* A multiplication a number and output; a complex one is four multiplications and two additions. */
static double flops(const weft_problem *p) {
    double numbers = (double)p->n * (double)p->attr[WEFT_DGMM_ROWS] * (double)p->attr[WEFT_DGMM_COLS];
    return numbers * (p->op == WEFT_OP_CDGMM ? 6 : 1) *
           (p->pass == WEFT_PASS_FWD || p->pass == WEFT_PASS_BWD_DATA ? 1
            : p->pass == WEFT_PASS_BWD                                ? 3
                                                                      : 2);
}

static const weft__items items = {"dgmm.h", "dgmm_item", dgmm_phases, dgmm_count, weft__no_workspace, dgmm_item};

#define DGMM(NAME, name_)                                              \
    const weft__op weft__op_##name_ = {.name = #name_,                 \
                                       .op = WEFT_OP_##NAME,           \
                                       .min_rank = 0,                  \
                                       .max_rank = 0,                  \
                                       .fields = fields,               \
                                       .nfields = WEFT__COUNT(fields), \
                                       .passes = passes,               \
                                       .npasses = WEFT__COUNT(passes), \
                                       .check = check,                 \
                                       .shape = shape,                 \
                                       .dtypes = weft__floats,         \
                                       .flops = flops,                 \
                                       .items = &items}
DGMM(DGMM, dgmm);
DGMM(CDGMM, cdgmm);
