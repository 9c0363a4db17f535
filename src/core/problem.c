/* The problem: validation, derivation of what was not given, the one normal form, and the questions kernels ask of
 * it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"

/* ---------------------------------------------------------------- questions */
const weft_tensor *weft__tensor(const weft_problem *p, int role) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].role == role) return &p->tensor[i];
    return NULL;
}

int64_t weft__numel(const weft_tensor *t) {
    int64_t n = 1;
    for (int a = 0; a < t->rank; a++) n *= t->dims[a];
    return n;
}

bool weft__mul(int64_t a, int64_t b, int64_t *r) { return !__builtin_mul_overflow(a, b, r); }

/* Memory order of the axes, slowest first: n c ... for first, n ... c for last. */
static int axis_in_order(const weft_tensor *t, weft_layout layout, int i) {
    if (layout != WEFT_LAYOUT_LAST || t->rank < 3 || i == 0) return i;
    return i == t->rank - 1 ? 1 : i + 1;
}

static bool dense_in(const weft_tensor *t, weft_layout layout) {
    int64_t expected = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        int a = axis_in_order(t, layout, i);
        if (t->dims[a] == 0) return true;
        if (t->dims[a] != 1 && t->strides[a] != expected) return false;
        expected *= t->dims[a];
    }
    return true;
}

bool weft__is_first(const weft_tensor *t) { return dense_in(t, WEFT_LAYOUT_FIRST); }
bool weft__is_last(const weft_tensor *t) { return dense_in(t, WEFT_LAYOUT_LAST); }

bool weft__all_dtype(const weft_problem *p, int dtype) {
    for (int i = 0; i < p->ntensors; i++)
        if (p->tensor[i].dtype != dtype) return false;
    return true;
}

bool weft__is_empty(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++)
        if (weft__is_output(p, p->tensor[i].role) && weft__numel(&p->tensor[i]) != 0) return false;
    return true;
}

double weft__bytes(const weft_problem *p) {
    double bytes = 0;
    for (int i = 0; i < p->ntensors; i++)
        bytes += (double)weft__numel(&p->tensor[i]) * (double)weft__dtype_size(p->tensor[i].dtype);
    return bytes;
}

double weft__flops(const weft_problem *p) { return weft__op_of(p->op)->flops(p); }

weft_layout weft__default_layout(int role, weft_layout data) {
    return role == WEFT_ROLE_WEIGHTS || role == WEFT_ROLE_DIFF_WEIGHTS ? WEFT_LAYOUT_FIRST : data;
}

int weft__default_dtype(const weft_problem *p, int role, int main) {
    uint64_t allowed = weft__op_of(p->op)->dtypes(p, role);
    return allowed & WEFT__BIT(main) ? main : __builtin_ctzll(allowed);
}

weft_layout weft__data_layout(const weft_problem *p) {
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (t->rank < 3 || weft__default_layout(t->role, WEFT_LAYOUT_LAST) == WEFT_LAYOUT_FIRST) continue;
        return weft__is_first(t) || !weft__is_last(t) ? WEFT_LAYOUT_FIRST : WEFT_LAYOUT_LAST;
    }
    return WEFT_LAYOUT_FIRST;
}

int weft__visible_axes(const weft_problem *p, const weft_tensor *t, int axes[WEFT_MAX_RANK]) {
    int n = 0;
    for (int a = 0; a < t->rank; a++) {
        bool canonical = t->rank == 5 || t->rank == 8; /* n c d h w; n c kd kh kw d h w */
        if (!canonical || a < 2 || (a - 2) % 3 >= 3 - p->rank) axes[n++] = a;
    }
    return n;
}

/* ---------------------------------------------------------------- building */
void weft__problem_defaults(weft_problem *p, const weft__op *op, int rank) {
    memset(p, 0, sizeof(*p));
    p->size = sizeof(*p);
    p->op = op ? op->op : 0;
    p->rank = rank;
    p->n = p->c = p->o = p->groups = 1;
    for (int a = 0; a < 3; a++) p->in[a] = p->kernel[a] = p->stride[a] = p->dilation[a] = 1;
    for (size_t i = 0; op && i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        void *at = (char *)p + f->offset;
        if (f->kind == WEFT__FIELD_REAL)
            *(double *)at = f->fallback;
        else if (f->kind == WEFT__FIELD_INT)
            *(int64_t *)at = (int64_t)f->fallback;
    }
}

const weft_tensor *weft_problem_find(const weft_problem *p, weft_role role) {
    if (!p || p->size < WEFT__LEAST(weft_problem, tensor) || (unsigned)p->ntensors > WEFT_MAX_TENSORS) return NULL;
    return weft__tensor(p, role);
}

size_t weft_tensor_bytes(const weft_tensor *t) {
    if (!t || (unsigned)t->rank > WEFT_MAX_RANK || !weft__numel(t)) return 0;
    int64_t last = 0;
    for (int a = 0; a < t->rank; a++) last += (t->dims[a] - 1) * t->strides[a];
    return ((size_t)last + 1) * weft__dtype_size(t->dtype);
}

weft_tensor *weft_problem_tensor(weft_problem *p, weft_role role) {
    const weft_tensor *found = weft_problem_find(p, role);
    if (found) return &p->tensor[found - p->tensor];
    if (!p || p->size < WEFT__LEAST(weft_problem, tensor) || (unsigned)role >= WEFT_ROLE_COUNT ||
        (unsigned)p->ntensors >= WEFT_MAX_TENSORS)
        return NULL;
    weft_tensor *t = &p->tensor[p->ntensors++];
    memset(t, 0, sizeof(*t));
    t->role = (int16_t)role;
    return t;
}

/* ---------------------------------------------------------------- completing: one tensor */
static void dense_strides(weft_tensor *t, weft_layout layout) {
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        int a = axis_in_order(t, layout, i);
        t->strides[a] = stride;
        stride *= WEFT__MAX(t->dims[a], 1);
    }
    t->layout = (int16_t)layout;
}

static weft_status check_dims(const weft_tensor *t, const weft_tensor *derived) {
    bool same = t->rank == derived->rank;
    for (int a = 0; same && a < t->rank; a++) same = t->dims[a] == derived->dims[a];
    if (same) return WEFT_OK;
    char text[256];
    weft__text b = {text, sizeof(text), 0};
    for (int side = 0; side < 2; side++) {
        const weft_tensor *s = side ? derived : t;
        weft__put(&b, side ? "), allowed: (" : "(");
        for (int a = 0; a < s->rank && a < WEFT_MAX_RANK; a++)
            weft__put(&b, a ? ", %lld" : "%lld", (long long)s->dims[a]);
    }
    return weft__fail(WEFT_ERR_INVALID, "%s: shape is %s)", weft__role_name(t->role), text);
}

/* Elements and bytes stay countable, also by stride. */
static weft_status check_extent(const weft_tensor *t) {
    int64_t count = 1, reach = 0, span, bytes;
    bool fits = true;
    for (int a = 0; a < t->rank; a++) {
        fits = fits && weft__mul(count, WEFT__MAX(t->dims[a], 1), &count);
        if (t->layout != WEFT_LAYOUT_STRIDED) continue;
        fits = fits && weft__mul(WEFT__MAX(t->dims[a], 1) - 1, t->strides[a], &span) &&
               !__builtin_add_overflow(reach, span, &reach);
    }
    fits = fits && weft__mul(count, (int64_t)weft__dtype_size(t->dtype), &bytes) &&
           !__builtin_add_overflow(reach, 1, &reach) && weft__mul(reach, (int64_t)weft__dtype_size(t->dtype), &bytes);
    if (!fits)
        return weft__fail(WEFT_ERR_INVALID, "%s: its size overflows 63 bits, allowed: fewer bytes than 2^63",
                          weft__role_name(t->role));
    return WEFT_OK;
}

/* No two elements of an output share a place: in order of stride, each axis steps past all of the faster ones. */
static bool overlaps(const weft_tensor *t) {
    int64_t past = 1;
    bool used[WEFT_MAX_RANK] = {false};
    for (int k = 0; k < t->rank; k++) {
        int least = -1;
        for (int a = 0; a < t->rank; a++)
            if (!used[a] && (least < 0 || t->strides[a] < t->strides[least])) least = a;
        used[least] = true;
        if (t->dims[least] <= 1) continue;
        if (t->strides[least] < past) return true;
        past += (t->dims[least] - 1) * t->strides[least];
    }
    return false;
}

static weft_status check_strides(const weft_problem *p, const weft_tensor *t) {
    for (int a = 0; a < t->rank; a++)
        if (t->strides[a] < 0)
            return weft__fail(WEFT_ERR_INVALID, "%s: stride of axis %d is %lld, allowed: 0 or more",
                              weft__role_name(t->role), a, (long long)t->strides[a]);
    WEFT__TRY(check_extent(t));
    if (weft__is_output(p, t->role) && weft__numel(t) && overlaps(t))
        return weft__fail(
            WEFT_ERR_INVALID,
            "%s: its strides make elements overlap, allowed for an output: a place of its own for each element",
            weft__role_name(t->role));
    return WEFT_OK;
}

/* An output element may not be empty of meaning: prefer the default tag, then first, last, strides. */
static void normal_layout(const weft_problem *p, weft_tensor *t, weft_layout wanted) {
    if (t->layout != WEFT_LAYOUT_STRIDED && t->layout == (int)wanted) return;
    if (weft__numel(t) == 0 || dense_in(t, wanted))
        dense_strides(t, wanted);
    else if (dense_in(t, WEFT_LAYOUT_FIRST))
        dense_strides(t, WEFT_LAYOUT_FIRST);
    else if (p->rank && dense_in(t, WEFT_LAYOUT_LAST))
        dense_strides(t, WEFT_LAYOUT_LAST);
    else {
        t->layout = WEFT_LAYOUT_STRIDED;
        for (int a = 0; a < t->rank; a++)
            if (t->dims[a] == 1) t->strides[a] = 0;
    }
}

static weft_status complete_tensor(const weft_problem *p, weft_tensor *t, int dtype, weft_layout layout) {
    const weft__op *op = weft__op_of(p->op);
    const char *name = weft__role_name(t->role);
    weft_tensor derived = {0};
    op->shape(p, t->role, &derived);
    if (t->rank && !t->derived) WEFT__TRY(check_dims(t, &derived));
    t->derived = 1;
    t->rank = derived.rank;
    memcpy(t->dims, derived.dims, sizeof(t->dims));
    uint64_t allowed = op->dtypes(p, t->role);
    if (t->dtype == WEFT_DTYPE_NONE) t->dtype = (int16_t)weft__default_dtype(p, t->role, dtype);
    if (!(allowed & WEFT__BIT(t->dtype)))
        return weft__fail(WEFT_ERR_INVALID, "%s: data type is %s (%d), which %s does not take there", name,
                          weft__dtype_name(t->dtype), t->dtype, op->name);
    if (t->layout == WEFT_LAYOUT_NONE) t->layout = (int16_t)weft__default_layout(t->role, layout);
    if (t->layout == WEFT_LAYOUT_STRIDED) {
        WEFT__TRY(check_strides(p, t));
    } else {
        WEFT__TRY(check_extent(t));
        dense_strides(t, (weft_layout)t->layout);
    }
    if (t->align == 0) t->align = (int32_t)WEFT__MAX(16, weft__dtype_size(t->dtype));
    if (t->align < 0 || (t->align & (t->align - 1)) || (size_t)t->align < weft__dtype_size(t->dtype) || t->align > 4096)
        return weft__fail(WEFT_ERR_INVALID,
                          "%s: alignment is %d, allowed: a power of two from the element size (%zu) to 4096", name,
                          t->align, weft__dtype_size(t->dtype));
    return WEFT_OK;
}

/* ---------------------------------------------------------------- completing: the whole */
static weft_status check_head(weft_problem *p) {
    const weft__op *op = weft__op_of(p->op);
    if (!op) return weft__fail(WEFT_ERR_INVALID, "op is %d, allowed: one of weft_op", p->op);
    if (p->rank < op->min_rank || p->rank > op->max_rank)
        return weft__fail(WEFT_ERR_INVALID, "rank is %d, allowed for %s: %d..%d", p->rank, op->name, op->min_rank,
                          op->max_rank);
    if (!weft__pass_of(p))
        return weft__fail(WEFT_ERR_INVALID, "pass is %d (%s), which %s does not have", p->pass,
                          weft__pass_name(p->pass), op->name);
    if (p->device == WEFT_DEVICE_NONE) p->device = WEFT_DEVICE_CPU;
    if (p->device != WEFT_DEVICE_CPU && p->device != WEFT_DEVICE_CUDA)
        return weft__fail(WEFT_ERR_INVALID, "device is %d, allowed: one of weft_device", p->device);
    if (p->ordinal < 0 || p->ordinal > (p->device == WEFT_DEVICE_CPU ? 0 : 1024))
        return weft__fail(WEFT_ERR_INVALID, "device ordinal is %d, allowed: 0 for the CPU, 0..1024 for CUDA",
                          p->ordinal);
    if (p->math == WEFT_MATH_NONE) p->math = WEFT_MATH_FAST;
    if ((unsigned)p->math > WEFT_MATH_TF32)
        return weft__fail(WEFT_ERR_INVALID, "math is %d, allowed: one of weft_math", p->math);
    for (int a = 0; a < 3 - p->rank; a++)
        if (p->in[a] != 1 || p->kernel[a] != 1 || p->stride[a] != 1 || p->dilation[a] != 1 || p->pad_lo[a] ||
            p->pad_hi[a])
            return weft__fail(WEFT_ERR_INVALID,
                              "axis %c is used in a problem of rank %d, allowed: unit sizes and no padding there",
                              "dhw"[a], p -> rank);
    return WEFT_OK;
}

static weft_status wrong_size(const weft_problem *p) {
    return weft__fail(WEFT_ERR_INVALID, "problem.size is %zu, allowed: %zu (start from WEFT_PROBLEM_INIT)", p->size,
                      sizeof(*p));
}

weft_status weft__check_problem_size(const weft_problem *p) {
    if (!p) return weft__fail(WEFT_ERR_INVALID, "problem is NULL, allowed: a weft_problem to fill");
    return p->size < WEFT__LEAST(weft_problem, tensor) || p->size > WEFT__MOST ? wrong_size(p) : WEFT_OK;
}

weft_status weft_problem_init(weft_problem *p, weft_op op, weft_pass pass, int rank) {
    WEFT__TRY(weft__check_problem_size(p));
    weft_problem q;
    weft__problem_defaults(&q, weft__op_of(op), rank);
    q.op = op;
    q.pass = pass;
    WEFT__TRY(check_head(&q));
    weft__return(p, &q, sizeof(q));
    return WEFT_OK;
}

/* Only what the operator's fields name counts: the rest goes back to its default, so that equal problems have equal
 * keys. */
static void drop_unused(weft_problem *p) {
    weft_problem q;
    const weft__op *op = weft__op_of(p->op);
    weft__problem_defaults(&q, op, p->rank);
    for (size_t i = 0; i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        size_t values = f->kind == WEFT__FIELD_PADS ? 6 : f->kind == WEFT__FIELD_AXES ? 3 : 1;
        memcpy((char *)&q + f->offset, (const char *)p + f->offset, values * sizeof(int64_t));
    }
    size_t begin = offsetof(weft_problem, n);
    memcpy((char *)p + begin, (const char *)&q + begin, offsetof(weft_problem, nsteps) - begin);
}

static weft_status check_steps(weft_problem *p) {
    const weft__pass_def *pass = weft__pass_of(p);
    if (p->nsteps < 0 || p->nsteps > WEFT_MAX_STEPS)
        return weft__fail(WEFT_ERR_INVALID, "the epilogue has %d steps, allowed: 0..%d", p->nsteps, WEFT_MAX_STEPS);
    int biases = 0;
    for (int i = 0; i < p->nsteps; i++) {
        weft_step *s = &p->step[i];
        if (s->kind < WEFT_STEP_BIAS || s->kind >= WEFT__STEPS)
            return weft__fail(WEFT_ERR_INVALID, "epilogue step %d is %d, allowed: one of weft_step_kind", i, s->kind);
        if (s->kind == WEFT_STEP_BIAS && (!pass->biased || biases++))
            return weft__fail(WEFT_ERR_INVALID, "epilogue step %d is bias, allowed: once, in a pass that takes a bias",
                              i);
        bool acc = s->kind == WEFT_STEP_ACC, silu = s->kind == WEFT_STEP_SILU;
        if (s->kind != WEFT_STEP_BIAS && !(acc ? pass->acc : silu ? pass->silu : pass->epilogue))
            return weft__fail(WEFT_ERR_INVALID, "epilogue step %d is %s, which pass %s of %s does not take", i,
                              weft__step_names[s->kind], weft__pass_name(p->pass), weft__op_of(p->op)->name);
        if (acc && (i != p->nsteps - 1 || !isfinite(s->alpha) || !isfinite(s->beta)))
            return weft__fail(
                WEFT_ERR_INVALID,
                "epilogue step %d accumulates with factors %g and %g, allowed: finite ones, in the last step", i,
                s->alpha, s->beta);
        if (s->kind != WEFT_STEP_CLIP && !acc)
            s->lo = s->hi = 0;
        else if (s->kind == WEFT_STEP_CLIP && !(s->lo <= s->hi))
            return weft__fail(WEFT_ERR_INVALID, "epilogue step %d clips to %g..%g, allowed: low not above high", i,
                              s->lo, s->hi);
    }
    return WEFT_OK;
}

static weft_status check_words(const weft_problem *p) {
    if (p->ntensors < 0 || p->ntensors > WEFT_MAX_TENSORS)
        return weft__fail(WEFT_ERR_INVALID, "the problem has %d tensors, allowed: 0..%d", p->ntensors,
                          WEFT_MAX_TENSORS);
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if ((unsigned)t->role >= WEFT_ROLE_COUNT)
            return weft__fail(WEFT_ERR_INVALID, "tensor %d: role is %d, allowed: one of weft_role", i, t->role);
        if ((unsigned)t->dtype >= WEFT_DTYPE_COUNT)
            return weft__fail(WEFT_ERR_INVALID, "%s: data type is %d, allowed: one of weft_dtype",
                              weft__role_name(t->role), t->dtype);
        if ((unsigned)t->layout > WEFT_LAYOUT_STRIDED)
            return weft__fail(WEFT_ERR_INVALID, "%s: layout is %d, allowed: one of weft_layout",
                              weft__role_name(t->role), t->layout);
        if (t->rank < 0 || t->rank > WEFT_MAX_RANK)
            return weft__fail(WEFT_ERR_INVALID, "%s: rank is %d, allowed: 0..%d", weft__role_name(t->role), t->rank,
                              WEFT_MAX_RANK);
    }
    return WEFT_OK;
}

static weft_status check_roles(const weft_problem *p, uint64_t roles) {
    uint64_t seen = 0;
    for (int i = 0; i < p->ntensors; i++) {
        int role = p->tensor[i].role;
        if (!(roles & WEFT__BIT(role)))
            return weft__fail(WEFT_ERR_INVALID, "%s takes no part in pass %s of %s%s", weft__role_name(role),
                              weft__pass_name(p->pass), weft__op_of(p->op)->name,
                              weft__pass_of(p)->biased & WEFT__BIT(role) ? " without a bias step in the epilogue" : "");
        if (seen & WEFT__BIT(role)) return weft__fail(WEFT_ERR_INVALID, "%s is given twice", weft__role_name(role));
        seen |= WEFT__BIT(role);
    }
    return WEFT_OK;
}

/* Data type and layout of the first tensor that has one: those without follow it. */
static void first_given(const weft_problem *p, int *dtype, weft_layout *layout) {
    *dtype = WEFT_DTYPE_NONE;
    *layout = WEFT_LAYOUT_NONE;
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        if (*dtype == WEFT_DTYPE_NONE) *dtype = t->dtype;
        if (*layout == WEFT_LAYOUT_NONE && t->layout != WEFT_LAYOUT_STRIDED &&
            weft__default_layout(t->role, WEFT_LAYOUT_LAST) == WEFT_LAYOUT_LAST && t->rank != 1)
            *layout = (weft_layout)t->layout;
    }
    if (*dtype == WEFT_DTYPE_NONE) *dtype = WEFT_DTYPE_F32;
    if (*layout == WEFT_LAYOUT_NONE) *layout = WEFT_LAYOUT_FIRST;
}

weft_status weft__take_problem(weft_problem *p, const weft_problem *given) {
    if (!given) return weft__fail(WEFT_ERR_INVALID, "problem is NULL, allowed: a weft_problem");
    if (!weft__adopt(p, sizeof(*p), given, WEFT__LEAST(weft_problem, tensor))) return wrong_size(given);
    return weft__complete(p);
}

weft_status weft_problem_complete(weft_problem *p) {
    weft_problem q;
    WEFT__TRY(weft__take_problem(&q, p));
    weft__return(p, &q, sizeof(q));
    return WEFT_OK;
}

weft_status weft__complete(weft_problem *p) {
    WEFT__TRY(check_head(p));
    WEFT__TRY(check_words(p));
    drop_unused(p);
    WEFT__TRY(check_steps(p));
    WEFT__TRY(weft__op_of(p->op)->check(p));
    uint64_t roles = weft__roles(p);
    WEFT__TRY(check_roles(p, roles));
    int dtype, count = 0;
    weft_layout layout;
    first_given(p, &dtype, &layout);
    weft_tensor done[WEFT_MAX_TENSORS];
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        if (!(roles & WEFT__BIT(role))) continue;
        const weft_tensor *given = weft__tensor(p, role);
        if (given)
            done[count] = *given;
        else
            done[count] = (weft_tensor){.role = (int16_t)role};
        WEFT__TRY(complete_tensor(p, &done[count], dtype, layout));
        count++;
    }
    memcpy(p->tensor, done, sizeof(done[0]) * (size_t)count);
    p->ntensors = count;
    weft_layout data = weft__data_layout(p);
    for (int i = 0; i < count; i++)
        normal_layout(p, &p->tensor[i],
                      p->tensor[i].rank < 3 || !p->rank ? WEFT_LAYOUT_FIRST
                                                        : weft__default_layout(p->tensor[i].role, data));
    return WEFT_OK;
}

/* ---------------------------------------------------------------- the cache key */
size_t weft__problem_key(const weft_problem *p, uint64_t *key) {
    size_t n = 0;
    key[n++] = (uint64_t)p->op | (uint64_t)p->pass << 8 | (uint64_t)p->device << 16 | (uint64_t)p->math << 24 |
               (uint64_t)p->rank << 32 | (uint64_t)p->nsteps << 40;
    key[n++] = (uint64_t)p->ordinal;
    /* the geometry, in one run */
    size_t words = (offsetof(weft_problem, out) - offsetof(weft_problem, n)) / sizeof(int64_t);
    memcpy(key + n, &p->n, words * sizeof(int64_t));
    n += words;
    for (int i = 0; i < p->nsteps; i++) {
        key[n++] = (uint64_t)p->step[i].kind;
        memcpy(key + n, &p->step[i].lo, 2 * sizeof(*key)); /* lo and hi */
        n += 2;
    }
    for (int i = 0; i < p->ntensors; i++) {
        const weft_tensor *t = &p->tensor[i];
        key[n++] = (uint64_t)t->role | (uint64_t)t->dtype << 16 | (uint64_t)t->layout << 24 | (uint64_t)t->align << 32;
        if (t->layout != WEFT_LAYOUT_STRIDED) continue; /* dims and dense strides follow from the geometry */
        memcpy(key + n, t->strides, sizeof(int64_t) * (size_t)t->rank);
        n += (size_t)t->rank;
    }
    return n;
}

/* Multiply and fold, a word at a time. */
uint64_t weft__hash(const uint64_t *words, size_t n) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ words[i]) * 0xd6e8feb86659fd93u;
        h ^= h >> 32;
    }
    return h;
}
