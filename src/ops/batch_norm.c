/* Batch normalisation over n and the spatial axes of n c d h w. train 1 takes the statistics of the batch and, with
 * track 1, moves the running ones (mean and var, read and written); train 0 takes the running ones as they are.
 * affine 1 has a weight and a bias a channel. bwd works in both. relu may follow; bwd then reads dst too, and takes
 * diff_dst where dst is above 0. Statistics are f32 or f64 and parameters any float
 * type, whatever the data is. */
#include <math.h>

#include "ops/common.h"
#include "ops/fill.h"
#include "ref/batch_norm.h"

static const weft__field fields[] = {
    WEFT__DATA_FIELDS,
    {"train", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_BN_TRAIN]), 1, true, 1, 1},
    {"affine", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_BN_AFFINE]), 1, false, 1, 1},
    {"track", WEFT__FIELD_INT, WEFT__AT(attr[WEFT_BN_TRACK]), 1, false, 1, 1},
    {"eps", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_BN_EPS]), 1e-5, false, 1, 1},
    {"momentum", WEFT__FIELD_REAL, WEFT__AT(real[WEFT_BN_MOMENTUM]), 0.1, false, 1, 1},
};

#define R(role) WEFT__R(role)
#define RUNNING (R(MEAN) | R(VAR))
#define SAVED (R(SAVE_MEAN) | R(SAVE_INVSTD))
#define PARAMETERS (R(WEIGHTS) | R(BIAS) | R(DIFF_WEIGHTS) | R(DIFF_BIAS))
static const weft__pass_def passes[] = {
    {WEFT_PASS_FWD, R(SRC) | R(WEIGHTS) | R(BIAS) | RUNNING, R(DST) | RUNNING | SAVED, 0, true, false, false},
    {WEFT_PASS_BWD, R(SRC) | R(WEIGHTS) | RUNNING | SAVED | R(DST) | R(DIFF_DST),
     R(DIFF_SRC) | R(DIFF_WEIGHTS) | R(DIFF_BIAS), 0, true, true, false},
};

static uint64_t absent(const weft_problem *p) {
    bool train = p->attr[WEFT_BN_TRAIN], running = !train || (p->pass == WEFT_PASS_FWD && p->attr[WEFT_BN_TRACK]);
    bool result = p->pass == WEFT_PASS_FWD || weft__has_step(p, WEFT_STEP_RELU);
    return (p->attr[WEFT_BN_AFFINE] ? 0 : PARAMETERS) | (train ? 0 : SAVED) | (running ? 0 : RUNNING) |
           (result ? 0 : R(DST));
}

static uint64_t kept(const weft_problem *p) { return p->attr[WEFT_BN_TRAIN] ? 0 : RUNNING; }

static weft_status check(weft_problem *p) {
    static const struct {
        const char *name;
        int attr;
    } switches[] = {
        {"train", WEFT_BN_TRAIN},
        {"affine", WEFT_BN_AFFINE},
        {"track", WEFT_BN_TRACK},
    };
    double eps = p->real[WEFT_BN_EPS], momentum = p->real[WEFT_BN_MOMENTUM];
    WEFT__TRY(weft__check_data(p, 1));
    for (int i = 0; i < p->nsteps; i++)
        if (p->step[i].kind == WEFT_STEP_CLIP)
            return weft__fail(WEFT_ERR_INVALID, "batch_norm: epilogue step %d is clip, allowed: relu", i);
    for (size_t i = 0; i < WEFT__COUNT(switches); i++) {
        int64_t v = p->attr[switches[i].attr];
        if (v < 0 || v > 1) return weft__bad_size(p, switches[i].name, 3, v, "0 or 1");
    }
    if (!(eps >= 0 && isfinite(eps)))
        return weft__fail(WEFT_ERR_INVALID, "batch_norm: eps is %g, allowed: 0 or more, finite", eps);
    if (!isfinite(momentum))
        return weft__fail(WEFT_ERR_INVALID, "batch_norm: momentum is %g, allowed: a finite number", momentum);
    if (!p->attr[WEFT_BN_TRAIN] && !p->attr[WEFT_BN_TRACK])
        return weft__fail(WEFT_ERR_INVALID,
                          "batch_norm: track is 0 with train 0, allowed there: 1, as the running statistics are used");
    if (p->attr[WEFT_BN_TRAIN] && p->n == 1 && p->in[0] == 1 && p->in[1] == 1 && p->in[2] == 1)
        return weft__fail(
            WEFT_ERR_INVALID,
            "batch_norm: there is 1 value per channel (n 1, spatial size 1), allowed in training: more than 1");
    return WEFT_OK;
}

static void shape(const weft_problem *p, int role, weft_tensor *t) {
    bool data =
        role == WEFT_ROLE_SRC || role == WEFT_ROLE_DST || role == WEFT_ROLE_DIFF_SRC || role == WEFT_ROLE_DIFF_DST;
    if (data)
        weft__data_shape(t, p->n, p->c, p->in);
    else
        weft__vector_shape(t, p->c);
}

static uint64_t dtypes(const weft_problem *p, int role) {
    (void)p;
    return (RUNNING | SAVED) & WEFT__BIT(role) ? WEFT__BIT(WEFT_DTYPE_F32) | WEFT__BIT(WEFT_DTYPE_F64) : WEFT__FLOATS;
}

/* Difference, scale, weight and bias of every element, and as much again where statistics or gradients are summed. */
static double flops(const weft_problem *p) {
    return (p->pass == WEFT_PASS_FWD && !p->attr[WEFT_BN_TRAIN] ? 4 : 8) * weft__data_numel(p);
}

static const weft__items items = {
    "batch_norm.h", "batch_norm_item", batch_norm_phases, batch_norm_count, batch_norm_workspace, batch_norm_item,
};

/* Variances and inverse deviations are above 0: 0.25 .. 2.25. */
static bool fill(const weft_problem *p, const weft_tensor *t, void *ptr, uint64_t seed) {
    (void)p;
    if (t->role != WEFT_ROLE_VAR && t->role != WEFT_ROLE_SAVE_INVSTD) return false;
    WEFT__EACH(t, i, at, coord) item_store(t->dtype, ptr, at, 0.25 + (double)(weft__draw(&seed) >> 11) * 0x1p-52);
    return true;
}

const weft__op weft__op_batch_norm = {
    .name = "batch_norm",
    .op = WEFT_OP_BATCH_NORM,
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
    .kept = kept,
    .flops = flops,
    .fill = fill,
    .items = &items,
};
