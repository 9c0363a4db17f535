/* relu, clip (the clipped relu is clip with lo 0), tanh, sigmoid, on any shape as n c d h w. bwd uses the output
 * only, so both passes may run in place: dst may be src, diff_src may be diff_dst. */
#include "ops/common.h"
#include "ref/pointwise.h"

static const weft__field plain_fields[] = {WEFT__DATA_FIELDS};
static const weft__field clip_fields[] = {
    WEFT__DATA_FIELDS,
    {"lo", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_CLIP_LO]), 0, false, 1, 1},
    {"hi", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_CLIP_HI]), 6, true, 1, 1},
};

static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, WEFT__R(SRC), WEFT__R(DST), 0, false, false, false},
    {WEFT_PASS_BWD, WEFT__R(DST) | WEFT__R(DIFF_DST), WEFT__R(DIFF_SRC), 0, false, true, false},
};

static weft_status check(weft_problem *p) {
    if (p->op == WEFT_OP_CLIP && !(p->real[WEFT_CLIP_LO] <= p->real[WEFT_CLIP_HI]))
        return weft__fail(WEFT_ERR_INVALID, "clip: bounds are %g..%g, allowed: lo not above hi", p->real[WEFT_CLIP_LO],
                          p->real[WEFT_CLIP_HI]);
    return weft__check_data(p, 0);
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    (void)role;
    weft__data_shape(t, p->n, p->c, p->in);
}

static const weft__items items = {"pointwise.h",   "pointwise_item",   weft__one_phase,
                                  pointwise_count, weft__no_workspace, pointwise_item};

#define POINTWISE(NAME, name_, fields_, smooth)                         \
    const weft__op weft__op_##name_ = {.name = #name_,                  \
                                       .op = WEFT_OP_##NAME,            \
                                       .min_rank = 1,                   \
                                       .max_rank = 3,                   \
                                       .fields = fields_,               \
                                       .nfields = WEFT__COUNT(fields_), \
                                       .passes = passes,                \
                                       .npasses = WEFT__COUNT(passes),  \
                                       .check = check,                  \
                                       .shape = shape,                  \
                                       .dtypes = weft__floats,          \
                                       .flops = weft__data_numel,       \
                                       .in_place = true,                \
                                       .transcendental = smooth,        \
                                       .items = &items}
POINTWISE(RELU, relu, plain_fields, false);
POINTWISE(CLIP, clip, clip_fields, false);
POINTWISE(TANH, tanh, plain_fields, true);
POINTWISE(SIGMOID, sigmoid, plain_fields, true);
