/* NCReLU: dst = cat(max(src, 0), min(src, 0)) along the channels, so dst has 2c of them. The gradient at 0 follows
 * the positive half. */
#include "ops/common.h"
#include "ref/ncrelu.h"

static const weft__field fields[] = {WEFT__DATA_FIELDS};

static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, WEFT__R(SRC), WEFT__R(DST), 0, false, false, false},
    {WEFT_PASS_BWD, WEFT__R(SRC) | WEFT__R(DIFF_DST), WEFT__R(DIFF_SRC), 0, false, true, false},
};

static weft_status check(weft_problem *p) { return weft__check_data(p, 0); }

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    weft__data_shape(t, p->n, role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_DST ? 2 * p->c : p->c, p->in);
}

static const weft__items items = {"ncrelu.h",   "ncrelu_item",      weft__one_phase,
                                  ncrelu_count, weft__no_workspace, ncrelu_item};

const weft__op weft__op_ncrelu = {
    .name = "ncrelu",
    .op = WEFT_OP_NCRELU,
    .min_rank = 1,
    .max_rank = 3,
    .fields = fields,
    .nfields = WEFT__COUNT(fields),
    .passes = passes,
    .npasses = WEFT__COUNT(passes),
    .check = check,
    .shape = shape,
    .dtypes = weft__floats,
    .flops = weft__data_numel,
    .items = &items,
};
