/* softmax and log_softmax over the channels. Any dimension of a dense tensor is the channels of the same memory seen as
 * n = what lies before it, c = the dimension, w = what lies behind it; a whole instance is c = everything.
 * bwd uses the output only. Both passes may run in place: dst may be src, diff_src may be diff_dst. */
#include "ops/common.h"
#include "ref/softmax.h"

static const weft__field fields[] = {WEFT__DATA_FIELDS};

static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, WEFT__R(SRC), WEFT__R(DST), 0, false, false, false},
    {WEFT_PASS_BWD, WEFT__R(DST) | WEFT__R(DIFF_DST), WEFT__R(DIFF_SRC), 0, false, true, false},
};

static weft_status check(weft_problem *p) { return weft__check_data(p, 0); }

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    (void)role;
    weft__data_shape(t, p->n, p->c, p->in);
}

/* Maximum, difference, exponential, sum and quotient of every element. */
static double flops(const weft_problem *p) { return 5 * weft__data_numel(p); }

static const weft__items items = {"softmax.h",   "softmax_item",     weft__one_phase,
                                  softmax_count, weft__no_workspace, softmax_item};

#define SOFTMAX(NAME, name_)                                           \
    const weft__op weft__op_##name_ = {.name = #name_,                 \
                                       .op = WEFT_OP_##NAME,           \
                                       .min_rank = 1,                  \
                                       .max_rank = 3,                  \
                                       .fields = fields,               \
                                       .nfields = WEFT__COUNT(fields), \
                                       .passes = passes,               \
                                       .npasses = WEFT__COUNT(passes), \
                                       .check = check,                 \
                                       .shape = shape,                 \
                                       .dtypes = weft__floats,         \
                                       .flops = flops,                 \
                                       .in_place = true,               \
                                       .transcendental = true,         \
                                       .items = &items}
SOFTMAX(SOFTMAX, softmax);
SOFTMAX(LOG_SOFTMAX, log_softmax);
