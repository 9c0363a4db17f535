/* im2col: image n c d h w to columns n c kd kh kw do ho wo; col2im: columns to the image they add up to. In both the
 * sizes of the problem are those of the image. F.unfold and F.fold have the same memory, seen as n, c*kd*kh*kw,
 * do*ho*wo. Channels-last columns are n kd kh kw do ho wo c; any other order is a matter of strides. */
#include "ops/conv.h"
#include "ref/im2col.h"

static const weft__field fields[] = {WEFT__DATA_FIELDS, WEFT__WINDOW_FIELDS, WEFT__DILATION_FIELD};

static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, WEFT__R(SRC), WEFT__R(DST), 0, false, false, false},
    {WEFT_PASS_BWD, WEFT__R(DIFF_DST), WEFT__R(DIFF_SRC), 0, false, true, false},
};

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    bool source = role == WEFT_ROLE_SRC || role == WEFT_ROLE_DIFF_SRC;
    weft__data_shape(t, p->n, p->c, p->in);
    if (source == (p->op == WEFT_OP_IM2COL)) return;
    t->rank = 8;
    for (int a = 0; a < 3; a++) {
        t->dims[2 + a] = p->kernel[a];
        t->dims[5 + a] = p->out[a];
    }
}

/* One addition a column element. */
static double flops(const weft_problem *p) {
    double count = (double)p->n * (double)p->c;
    for (int a = 0; a < 3; a++) count *= (double)p->kernel[a] * (double)p->out[a];
    return count;
}

static const weft__items items = {"im2col.h",   "im2col_item",      weft__one_phase,
                                  im2col_count, weft__no_workspace, im2col_item};

#define COLUMNS(NAME, name_)                                           \
    const weft__op weft__op_##name_ = {.name = #name_,                 \
                                       .op = WEFT_OP_##NAME,           \
                                       .min_rank = 1,                  \
                                       .max_rank = 3,                  \
                                       .fields = fields,               \
                                       .nfields = WEFT__COUNT(fields), \
                                       .passes = passes,               \
                                       .npasses = WEFT__COUNT(passes), \
                                       .check = weft__conv_check,      \
                                       .shape = shape,                 \
                                       .dtypes = weft__floats,         \
                                       .flops = flops,                 \
                                       .items = &items}
COLUMNS(IM2COL, im2col);
COLUMNS(COL2IM, col2im);
