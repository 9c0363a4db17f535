/* Convolution, 1D to 3D, grouped; depthwise is groups = c, transposed is bwd_data.
 *   dst[n,o,z,y,x] = sum_{i,r,s,t} src[n, g*(c/groups)+i, z*sd - pd + r*dd, ...] * weights[o,i,r,s,t],  g = o /
 *   (o_total/groups)
 * The record here says what a valid problem is; src/ref/conv.h says what it computes. */
#include "ops/conv.h"
#include "ref/conv.h"

static const weft__field fields[] = {WEFT__CONV_FIELDS};

#define R(role) WEFT__R(role)
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS) | R(BIAS), R(DST), R(BIAS), true, false, false},
    {WEFT_PASS_BWD_DATA, R(WEIGHTS) | R(DIFF_DST) | R(BIAS), R(DIFF_SRC), R(BIAS), true, true, false},
    {WEFT_PASS_BWD_WEIGHTS, R(SRC) | R(DIFF_DST), R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS), false, true, false},
    {WEFT_PASS_BWD_BIAS, R(DIFF_DST), R(DIFF_BIAS), 0, false, true, false},
    {WEFT_PASS_BWD, R(SRC) | R(WEIGHTS) | R(DIFF_DST), R(DIFF_SRC) | R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS),
     false, true, false},
};

static weft_status check_axis(weft_problem *p, int a) {
    WEFT__TRY(weft__check_window(p, a));
    int64_t window = p->dilation[a] * (p->kernel[a] - 1) + 1;
    int64_t padded = p->in[a] + p->pad_lo[a] + p->pad_hi[a];
    if (padded < window)
        return weft__fail(WEFT_ERR_INVALID,
                          "%s: the window along %c is %lld (kernel %lld, dilation %lld), "
                          "allowed: at most the padded input, %lld",
                          weft__op_of(p->op)->name, "dhw"[a], (long long)window, (long long)p -> kernel[a],
                          (long long)p -> dilation[a], (long long)padded);
    p->out[a] = (padded - window) / p->stride[a] + 1;
    return WEFT_OK;
}

weft_status weft__conv_check_channels(const weft_problem *p) {
    WEFT__TRY(weft__check_data(p, 1));
    if (p->o < 1 || p->o > WEFT__BIG) return weft__bad_size(p, "output channels o", 3, p->o, "1..2^40");
    if (p->groups < 1) return weft__bad_size(p, "groups", 3, p->groups, "1 or more");
    if (p->c % p->groups || p->o % p->groups)
        return weft__fail(WEFT_ERR_INVALID, "%s: groups is %lld, allowed: a divisor of both channels (c %lld, o %lld)",
                          weft__op_of(p->op)->name, (long long)p->groups, (long long)p->c, (long long)p->o);
    return WEFT_OK;
}

weft_status weft__conv_check(weft_problem *p) {
    WEFT__TRY(weft__conv_check_channels(p));
    for (int a = 0; a < 3; a++) WEFT__TRY(check_axis(p, a));
    return WEFT_OK;
}

void weft__conv_shape(const weft_problem *p, int role, weft_tensor *t) {
    switch (role) {
    case WEFT_ROLE_WEIGHTS:
    case WEFT_ROLE_DIFF_WEIGHTS:
        weft__data_shape(t, p->o, p->c / p->groups, p->kernel);
        break;
    case WEFT_ROLE_BIAS:
    case WEFT_ROLE_DIFF_BIAS:
        weft__vector_shape(t, p->o);
        break;
    case WEFT_ROLE_SRC:
    case WEFT_ROLE_DIFF_SRC:
        weft__data_shape(t, p->n, p->c, p->in);
        break;
    default:
        weft__data_shape(t, p->n, p->o, p->out);
        break;
    }
}

double weft__conv_flops(const weft_problem *p) {
    double outputs = (double)p->n * (double)p->o * (double)p->out[0] * (double)p->out[1] * (double)p->out[2];
    double macs =
        outputs * (double)(p->c / p->groups) * (double)p->kernel[0] * (double)p->kernel[1] * (double)p->kernel[2];
    if (p->pass == WEFT_PASS_BWD_BIAS) return outputs;
    return p->pass == WEFT_PASS_BWD ? 4 * macs : 2 * macs;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    weft__conv_shape(p, role, t);
    /* bwd_data with a bias is transposed convolution */
    if (role == WEFT_ROLE_BIAS && p->pass == WEFT_PASS_BWD_DATA) weft__vector_shape(t, p->c);
}

static const weft__items items = {"conv.h", "conv_item", conv_phases, conv_count, conv_workspace, conv_item};

const weft__op weft__op_conv = {
    .name = "conv",
    .op = WEFT_OP_CONV,
    .min_rank = 1,
    .max_rank = 3,
    .fields = fields,
    .nfields = WEFT__COUNT(fields),
    .passes = passes,
    .npasses = WEFT__COUNT(passes),
    .check = weft__conv_check,
    .shape = shape,
    .dtypes = weft__floats,
    .flops = weft__conv_flops,
    .items = &items,
};
