/* Local response normalisation across channels (cross-map), with torch.nn.functional.local_response_norm's window
 * and scale: an even size reaches one channel further down than up, and alpha is divided by the size also where the
 * window is cut. */
#include <math.h>

#include "ops/common.h"
#include "ref/lrn.h"

static const weft__field fields[] = {
    WEFT__DATA_FIELDS,
    {"size", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_LRN_SIZE]), 5, true, 1, 1},
    {"alpha", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_LRN_ALPHA]), 1e-4, false, 1, 1},
    {"beta", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_LRN_BETA]), 0.75, false, 1, 1},
    {"k", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_LRN_K]), 1, false, 1, 1},
};

static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, WEFT__R(SRC), WEFT__R(DST), 0, false, false, false},
    {WEFT_PASS_BWD, WEFT__R(SRC) | WEFT__R(DIFF_DST), WEFT__R(DIFF_SRC), 0, false, true, false},
};

static weft_status check(weft_problem *p) {
    static const struct {
        const char *name;
        int real;
    } reals[] = {{"alpha", WEFT_LRN_ALPHA}, {"beta", WEFT_LRN_BETA}, {"k", WEFT_LRN_K}};
    WEFT__TRY(weft__check_data(p, 0));
    if (p->attr[WEFT_LRN_SIZE] < 1 || p->attr[WEFT_LRN_SIZE] > WEFT__BIG)
        return weft__bad_size(p, "size", 3, p->attr[WEFT_LRN_SIZE], "1..2^40");
    for (size_t i = 0; i < WEFT__COUNT(reals); i++)
        if (!isfinite(p->real[reals[i].real]))
            return weft__fail(WEFT_ERR_INVALID, "lrn: %s is %g, allowed: a finite number", reals[i].name,
                              p->real[reals[i].real]);
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    (void)role;
    weft__data_shape(t, p->n, p->c, p->in);
}

/* A multiply-add for each channel of the window, for the gradient in each of the windows that it sums over, and a
 * power. */
static double flops(const weft_problem *p) {
    double window = (double)WEFT__MIN(p->attr[WEFT_LRN_SIZE], WEFT__MAX(p->c, 1)), scale = 2 * window + 20;
    return weft__data_numel(p) * (p->pass == WEFT_PASS_FWD ? scale : (window + 1) * scale);
}

static const weft__items items = {"lrn.h", "lrn_item", weft__one_phase, lrn_count, weft__no_workspace, lrn_item};

const weft__op weft__op_lrn = {
    .name = "lrn",
    .op = WEFT_OP_LRN,
    .min_rank = 1,
    .max_rank = 3,
    .fields = fields,
    .nfields = WEFT__COUNT(fields),
    .passes = passes,
    .npasses = WEFT__COUNT(passes),
    .check = check,
    .shape = shape,
    .dtypes = weft__floats,
    .flops = flops,
    .transcendental = true,
    .items = &items,
};
