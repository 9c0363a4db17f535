/* Partial convolution (inpainting; padding without a border effect), 1D to 3D, grouped, also transposed;
 * src/ref/partial_conv.h has the formulas. The mask takes part in the problem through attributes:
 *   mask 0          none: only the padding is missing ("partial convolution based padding"); sums and new_mask are
 *   (1, 1, out) mask 1          one channel for all of c: mask (n, 1, in), new_mask and sums (n, 1, out) mask 2
 *   a channel each: mask (n, c, in), new_mask (n, o, out), sums (n, groups, out) shared 1        one mask for the
 *   whole batch: n is 1 in these shapes biased 1        gradient passes without a bias step, of a forward pass that
 *   had one: its factor u reaches the other gradients too,
 *                   which shows where a float mask makes 0 < S < 1. A bias step says it by itself
 *   transposed 1    transposed convolution: out = (in-1)*stride - lo - hi + dilation*(kernel-1) + 1 + outpad,
 *   weights (c, o/groups, kernel)
 * sums are f32 or f64, also beside 16-bit data: they count beyond 2048. */
#include "ops/conv.h"
#include "ops/fill.h"
#include "ref/partial_conv.h"

static const weft__field fields[] = {
    WEFT__CONV_FIELDS,
    {"mask", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_PARTIAL_MASK]), 1, false, 1, 1},
    {"shared", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_PARTIAL_SHARED]), 0, false, 1, 1},
    {"biased", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_PARTIAL_BIASED]), 0, false, 1, 1},
    {"transposed", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_PARTIAL_TRANSPOSED]), 0, false, 1, 1},
    {"outpad", WEFT__FIELD_AXES, WEFT__AT(attr[WEFT_PARTIAL_OUTPAD]), 0, false, 1, 1},
};

#define R(role) WEFT__R(role)
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS) | R(BIAS) | R(MASK), R(DST) | R(NEW_MASK) | R(SUMS), R(BIAS), true, false,
     false},
    {WEFT_PASS_BWD_DATA, R(WEIGHTS) | R(DIFF_DST) | R(MASK) | R(SUMS), R(DIFF_SRC), 0, false, true, false},
    {WEFT_PASS_BWD_WEIGHTS, R(SRC) | R(DIFF_DST) | R(MASK) | R(SUMS), R(DIFF_WEIGHTS) | R(DIFF_BIAS), R(DIFF_BIAS),
     false, true, false},
    {WEFT_PASS_BWD_BIAS, R(DIFF_DST) | R(SUMS), R(DIFF_BIAS), 0, false, true, false},
    {WEFT_PASS_BWD, R(SRC) | R(WEIGHTS) | R(DIFF_DST) | R(MASK) | R(SUMS), R(DIFF_SRC) | R(DIFF_WEIGHTS) | R(DIFF_BIAS),
     R(DIFF_BIAS), false, true, false},
};

static weft_status check_transposed(weft_problem *p) {
    WEFT__TRY(weft__conv_check_channels(p));
    for (int a = 0; a < 3; a++) {
        WEFT__TRY(weft__check_window(p, a));
        int64_t extra = p->attr[WEFT_PARTIAL_OUTPAD + a], reach, window = p->dilation[a] * (p->kernel[a] - 1) + 1;
        if (extra < 0 || (extra && extra >= WEFT__MAX(p->stride[a], p->dilation[a])))
            return weft__bad_size(p, "outpad", a, extra, "0 or more, below the stride or the dilation");
        /* pads take off at most 2 * 2^40 */
        bool fits = weft__mul(p->in[a] - 1, p->stride[a], &reach) && reach < 4 * WEFT__BIG;
        p->out[a] = fits ? reach - p->pad_lo[a] - p->pad_hi[a] + window + extra : INT64_MAX;
        if (p->out[a] < 1 || p->out[a] > WEFT__BIG)
            return weft__bad_size(p, "transposed output size", a, p->out[a],
                                  "1..2^40: (in-1)*stride - lo - hi + dilation*(kernel-1) + 1 + outpad");
    }
    return WEFT_OK;
}

static weft_status check(weft_problem *p) {
    static const struct {
        const char *name;
        int attr, most;
        const char *allowed;
    } ranges[] = {
        {"mask", WEFT_PARTIAL_MASK, 2, "0 (none), 1 (one channel) or 2 (every channel)"},
        {"shared", WEFT_PARTIAL_SHARED, 1, "0 or 1"},
        {"biased", WEFT_PARTIAL_BIASED, 1, "0 or 1"},
        {"transposed", WEFT_PARTIAL_TRANSPOSED, 1, "0 or 1"},
    };
    for (size_t i = 0; i < WEFT__COUNT(ranges); i++) {
        int64_t got = p->attr[ranges[i].attr];
        if (got < 0 || got > ranges[i].most) return weft__bad_size(p, ranges[i].name, 3, got, ranges[i].allowed);
    }
    /* nothing to share: one text for one problem */
    if (p->attr[WEFT_PARTIAL_MASK] == 0) p->attr[WEFT_PARTIAL_SHARED] = 0;
    if (p->pass == WEFT_PASS_FWD || p->pass == WEFT_PASS_BWD_BIAS || conv_biased(p)) p->attr[WEFT_PARTIAL_BIASED] = 0;
    if (p->attr[WEFT_PARTIAL_TRANSPOSED]) return check_transposed(p);
    for (int a = 0; a < 3; a++) {
        int64_t extra = p->attr[WEFT_PARTIAL_OUTPAD + a];
        if (extra) return weft__bad_size(p, "outpad", a, extra, "0 unless transposed is 1");
    }
    return weft__conv_check(p);
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    bool every = p->attr[WEFT_PARTIAL_MASK] == 2, one = p->attr[WEFT_PARTIAL_MASK] == 0 || p->attr[WEFT_PARTIAL_SHARED];
    int64_t n = one ? 1 : p->n;
    switch (role) {
    case WEFT_ROLE_MASK:
        weft__data_shape(t, n, every ? p->c : 1, p->in);
        return;
    case WEFT_ROLE_NEW_MASK:
        weft__data_shape(t, n, every ? p->o : 1, p->out);
        return;
    case WEFT_ROLE_SUMS:
        weft__data_shape(t, n, every ? p->groups : 1, p->out);
        return;
    default:
        weft__conv_shape(p, role, t);
    }
    if (p->attr[WEFT_PARTIAL_TRANSPOSED] && (role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_DIFF_WEIGHTS))
        weft__data_shape(t, p->c, p->o / p->groups, p->kernel);
}

/* A new mask of u8 comes only from what counts whole: u8, or no mask. */
static uint64_t dtypes(const weft_problem *p, int role) {
    const weft_tensor *mask = weft__tensor(p, WEFT_ROLE_MASK);
    bool whole = p->attr[WEFT_PARTIAL_MASK] == 0 || (mask && mask->dtype == WEFT_DTYPE_U8);
    switch (role) {
    case WEFT_ROLE_MASK:
        return WEFT__FLOATS | WEFT__BIT(WEFT_DTYPE_U8);
    case WEFT_ROLE_NEW_MASK:
        return whole ? WEFT__FLOATS | WEFT__BIT(WEFT_DTYPE_U8) : WEFT__FLOATS;
    case WEFT_ROLE_SUMS:
        return WEFT__BIT(WEFT_DTYPE_F32) | WEFT__BIT(WEFT_DTYPE_F64);
    default:
        return WEFT__FLOATS;
    }
}

static uint64_t absent(const weft_problem *p) { return p->attr[WEFT_PARTIAL_MASK] == 0 ? R(MASK) : 0; }

/* Transposed, each position of src meets the window, not each of dst. */
static double flops(const weft_problem *p) {
    double flops = weft__conv_flops(p);
    if (!p->attr[WEFT_PARTIAL_TRANSPOSED] || p->pass == WEFT_PASS_BWD_BIAS) return flops;
    for (int a = 0; a < 3; a++) flops *= (double)p->in[a] / (double)p->out[a];
    return flops;
}

static const weft__items items = {"partial_conv.h",   "partial_conv_item", partial_conv_phases,
                                  partial_conv_count, weft__no_workspace,  partial_conv_item};

/* Holes, ones, and in float masks some quarters between; sums that a window can give. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    const int64_t window = p->c / p->groups * p->kernel[0] * p->kernel[1] * p->kernel[2];
    if (t->role != WEFT_ROLE_MASK && t->role != WEFT_ROLE_SUMS) return false;
    WEFT__EACH(t, i, at, coord) {
        const bool whole = t->dtype == WEFT_DTYPE_U8 || weft__draw_chance(&seed, 80);
        const int64_t v =
            t->role == WEFT_ROLE_SUMS ? weft__draw_below(&seed, window + 1) : weft__draw_chance(&seed, 70);
        item_store(t->dtype, ptr, at, whole ? (double)v : (double)weft__draw_below(&seed, 5) / 4);
    }
    return true;
}

const weft__op weft__op_partial_conv = {
    .name = "partial_conv",
    .op = WEFT_OP_PARTIAL_CONV,
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
    .items = &items,
};
