/* Convolution with sparse weights, 1D to 3D, grouped: the weights are nnz values with the row ends (rows, o+1 of
 * them) and the columns (cols) of a CSR matrix, i32 or i64; src/ref/sparse_conv.h has the formulas and both forms of
 * columns. src/ops/sparse_csr.c builds and checks them. */
#include "ops/conv.h"
#include "ops/fill.h"
#include "ref/sparse_conv.h"

static const weft__field fields[] = {
    WEFT__CONV_FIELDS,
    {"nnz", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_SPARSE_NNZ]), 0, true, 1, 1},
    {"stretched", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_SPARSE_STRETCHED]), 0, false, 1, 1},
};

#define R(role) WEFT__R(role)
#define CSR (R(ROWS) | R(COLS))
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS) | CSR | R(BIAS), R(DST), R(BIAS), true, false, false},
    {WEFT_PASS_BWD_DATA, R(WEIGHTS) | CSR | R(DIFF_DST), R(DIFF_SRC), 0, false, true, false},
    {WEFT_PASS_BWD_WEIGHTS, R(SRC) | CSR | R(DIFF_DST), R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS), false, true,
     false},
    {WEFT_PASS_BWD_BIAS, R(DIFF_DST), R(DIFF_BIAS), 0, false, true, false},
    {WEFT_PASS_BWD, R(SRC) | R(WEIGHTS) | CSR | R(DIFF_DST), R(DIFF_SRC) | R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS),
     false, true, false},
};

static weft_status check(weft_problem *p) {
    int64_t nnz = p->attr[WEFT_SPARSE_NNZ], stretched = p->attr[WEFT_SPARSE_STRETCHED], columns = p->c;
    WEFT__TRY(weft__conv_check(p));
    if (nnz < 0 || nnz > WEFT__BIG) return weft__bad_size(p, "nnz", 3, nnz, "0..2^40");
    if (stretched < 0 || stretched > 1) return weft__bad_size(p, "stretched", 3, stretched, "0 or 1");
    for (int a = 0; a < 3; a++) /* the padded size is also the most that dilated taps reach */
        if (!weft__mul(columns, p->in[a] + p->pad_lo[a] + p->pad_hi[a], &columns))
            return weft__fail(WEFT_ERR_INVALID, "sparse_conv: the padded input has more than 2^63 elements, "
                                                "allowed: fewer, so that columns fit 63 bits");
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    switch (role) {
    case WEFT_ROLE_WEIGHTS:
    case WEFT_ROLE_DIFF_WEIGHTS:
    case WEFT_ROLE_COLS:
        weft__vector_shape(t, p->attr[WEFT_SPARSE_NNZ]);
        break;
    case WEFT_ROLE_ROWS:
        weft__vector_shape(t, p->o + 1);
        break;
    default:
        weft__conv_shape(p, role, t);
        break;
    }
}

static uint64_t dtypes(const weft_problem *p, int role) {
    (void)p;
    return role == WEFT_ROLE_ROWS || role == WEFT_ROLE_COLS ? WEFT__BIT(WEFT_DTYPE_I32) | WEFT__BIT(WEFT_DTYPE_I64)
                                                            : WEFT__FLOATS;
}

static double flops(const weft_problem *p) {
    double places = (double)p->n * (double)p->out[0] * (double)p->out[1] * (double)p->out[2];
    if (p->pass == WEFT_PASS_BWD_BIAS) return places * (double)p->o;
    return (p->pass == WEFT_PASS_BWD ? 4 : 2) * places * (double)p->attr[WEFT_SPARSE_NNZ];
}

static const weft__items items = {"sparse_conv.h", "sparse_conv_item", conv_phases,
                                  conv_count,      weft__no_workspace, sparse_conv_item};

static int64_t draw_column(const weft_problem *p, uint64_t *seed) {
    int64_t col = weft__draw_below(seed, p->c / p->groups);
    for (int a = 0; a < 3; a++) {
        const int64_t tap = weft__draw_below(seed, p->kernel[a]), padded = p->in[a] + p->pad_lo[a] + p->pad_hi[a];
        col = p->attr[WEFT_SPARSE_STRETCHED] ? col * padded + tap * p->dilation[a] : col * p->kernel[a] + tap;
    }
    return col;
}

/* Rows of uneven length, none of them more than twice the mean of those that follow; columns in any order. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    int64_t begin = 0;
    if (t->role != WEFT_ROLE_ROWS && t->role != WEFT_ROLE_COLS) return false;
    WEFT__EACH(t, i, at, coord) {
        const int64_t rest = p->attr[WEFT_SPARSE_NNZ] - begin, left = p->o - i;
        if (t->role == WEFT_ROLE_COLS) {
            item_store(t->dtype, ptr, at, (double)draw_column(p, &seed));
            continue;
        }
        item_store(t->dtype, ptr, at, (double)(left ? begin : begin + rest));
        if (left) begin += weft__draw_below(&seed, WEFT__MIN(rest, 2 * rest / left) + 1);
    }
    return true;
}

const weft__op weft__op_sparse_conv = {
    .name = "sparse_conv",
    .op = WEFT_OP_SPARSE_CONV,
    .min_rank = 1,
    .max_rank = 3,
    .fields = fields,
    .nfields = WEFT__COUNT(fields),
    .passes = passes,
    .npasses = WEFT__COUNT(passes),
    .check = check,
    .shape = shape,
    .dtypes = dtypes,
    .flops = flops,
    .fill = fill,
    .items = &items,
};
