/* Convolution, 1D to 3D, grouped; depthwise is groups = c, transposed is bwd_data.
 *   dst[n,o,z,y,x] = sum_{i,r,s,t} src[n, g*(c/groups)+i, z*sd - pd + r*dd, ...] * weights[o,i,r,s,t],  g = o / (o_total/groups)
 * The record here says what a valid problem is; src/ref/conv.h says what it computes. */
#include "core/internal.h"
#include "ref/conv.h"

#define AT(member) offsetof(weft_problem, member)
static const weft__field fields[] = {
    {"n", WEFT__FIELD_INT, AT(n), 1, true, 1, 0},
    {"c", WEFT__FIELD_INT, AT(c), 1, true, 1, 0},
    {"d", WEFT__FIELD_INT, AT(in[0]), 1, true, 3, 0},
    {"h", WEFT__FIELD_INT, AT(in[1]), 1, true, 2, 0},
    {"w", WEFT__FIELD_INT, AT(in[2]), 1, true, 1, 0},
    {"o", WEFT__FIELD_INT, AT(o), 1, true, 1, 1},
    {"k", WEFT__FIELD_AXES, AT(kernel), 1, true, 1, 1},
    {"s", WEFT__FIELD_AXES, AT(stride), 1, false, 1, 1},
    {"p", WEFT__FIELD_PADS, AT(pad_lo), 0, false, 1, 1},
    {"d", WEFT__FIELD_AXES, AT(dilation), 1, false, 1, 1},
    {"g", WEFT__FIELD_INT, AT(groups), 1, false, 1, 1},
};

#define R(role) WEFT__BIT(WEFT_##role)
static const weft__pass_def passes[] = {
    {WEFT_FWD, R(SRC) | R(WEIGHTS) | R(BIAS), R(DST), R(BIAS), true},
    {WEFT_BWD_DATA, R(WEIGHTS) | R(DIFF_DST) | R(BIAS), R(DIFF_SRC), R(BIAS), true},
    {WEFT_BWD_WEIGHTS, R(SRC) | R(DIFF_DST), R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS), false},
    {WEFT_BWD_BIAS, R(DIFF_DST), R(DIFF_BIAS), 0, false},
    {WEFT_BWD, R(SRC) | R(WEIGHTS) | R(DIFF_DST), R(DIFF_SRC) | R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS), false},
};

static weft_status bad(const char *name, int axis, int64_t got, const char *allowed) {
    static const char *const axes[] = {"d", "h", "w", ""};
    return weft__fail(WEFT_INVALID, "conv: %s%s%s is %lld, allowed: %s", name, axis < 3 ? " along " : "", axes[axis],
                      (long long)got, allowed);
}

/* The size of dst along one axis: floor((in + lo + hi - (dilation*(kernel-1) + 1)) / stride) + 1. */
static weft_status check_axis(weft_problem *p, int a) {
    const int64_t big = INT64_C(1) << 40;   /* far above any memory, far below overflow of the sums here */
    if (p->in[a] < 0 || p->in[a] > big) return bad("input size", a, p->in[a], "0..2^40");
    if (p->kernel[a] < 1 || p->kernel[a] > (1 << 20)) return bad("kernel size", a, p->kernel[a], "1..2^20");
    if (p->stride[a] < 1 || p->stride[a] > big) return bad("stride", a, p->stride[a], "1..2^40");
    if (p->dilation[a] < 1 || p->dilation[a] > (1 << 20)) return bad("dilation", a, p->dilation[a], "1..2^20");
    if (p->pad_lo[a] < 0 || p->pad_lo[a] > big) return bad("low padding", a, p->pad_lo[a], "0..2^40");
    if (p->pad_hi[a] < 0 || p->pad_hi[a] > big) return bad("high padding", a, p->pad_hi[a], "0..2^40");
    int64_t window = p->dilation[a] * (p->kernel[a] - 1) + 1;
    int64_t padded = p->in[a] + p->pad_lo[a] + p->pad_hi[a];
    if (padded < window) {
        static const char *const axes[] = {"d", "h", "w"};
        return weft__fail(WEFT_INVALID, "conv: the window along %s is %lld (kernel %lld, dilation %lld), allowed: at most the padded input, %lld",
                          axes[a], (long long)window, (long long)p->kernel[a], (long long)p->dilation[a], (long long)padded);
    }
    p->out[a] = (padded - window) / p->stride[a] + 1;
    return WEFT_OK;
}

static weft_status check(weft_problem *p) {
    const int64_t big = INT64_C(1) << 40;
    if (p->n < 0 || p->n > big) return bad("batch n", 3, p->n, "0..2^40");
    if (p->c < 1 || p->c > big) return bad("channels c", 3, p->c, "1..2^40");
    if (p->o < 1 || p->o > big) return bad("output channels o", 3, p->o, "1..2^40");
    if (p->groups < 1) return bad("groups", 3, p->groups, "1 or more");
    if (p->c % p->groups || p->o % p->groups)
        return weft__fail(WEFT_INVALID, "conv: groups is %lld, allowed: a divisor of both channels (c %lld, o %lld)",
                          (long long)p->groups, (long long)p->c, (long long)p->o);
    for (int a = 0; a < 3; a++) WEFT__TRY(check_axis(p, a));
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    bool weights = role == WEFT_WEIGHTS || role == WEFT_DIFF_WEIGHTS;
    bool src = role == WEFT_SRC || role == WEFT_DIFF_SRC;
    t->rank = 5;
    if (role == WEFT_BIAS || role == WEFT_DIFF_BIAS) {
        t->rank = 1;
        t->dims[0] = p->pass == WEFT_BWD_DATA ? p->c : p->o;   /* bwd_data with a bias is transposed convolution */
        return;
    }
    t->dims[0] = weights ? p->o : p->n;
    t->dims[1] = weights ? p->c / p->groups : src ? p->c : p->o;
    for (int a = 0; a < 3; a++) t->dims[2 + a] = weights ? p->kernel[a] : src ? p->in[a] : p->out[a];
}

static uint32_t dtypes(const weft_problem *p, int role) {
    (void)p, (void)role;
    return WEFT__FLOATS;
}

static double flops(const weft_problem *p) {
    double outputs = (double)p->n * (double)p->o * (double)p->out[0] * (double)p->out[1] * (double)p->out[2];
    double macs = outputs * (double)(p->c / p->groups) * (double)p->kernel[0] * (double)p->kernel[1] * (double)p->kernel[2];
    if (p->pass == WEFT_BWD_BIAS) return outputs;
    return p->pass == WEFT_BWD ? 4 * macs : 2 * macs;
}

static const weft__items items = {"conv.h", conv_phases, conv_count, conv_workspace, conv_item};

const weft__op weft__op_conv = {
    .name = "conv", .op = WEFT_CONV, .min_rank = 1, .max_rank = 3,
    .fields = fields, .nfields = WEFT__COUNT(fields), .passes = passes, .npasses = WEFT__COUNT(passes),
    .check = check, .shape = shape, .dtypes = dtypes, .flops = flops, .items = &items,
};
