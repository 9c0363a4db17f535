/* What a kernel does not refuse it computes rightly: a problem that it takes, with one thing changed after another, is
 * either refused or agrees with the reference. A change is a data type, layout, gap, repeated axis or alignment of one
 * tensor, one number of the operator's fields, the epilogue or the math; they follow from the tables, so that a kernel
 * or a field that is added takes part by itself. Of a kernel the build for the highest ISA, one problem for each pass
 * and rank. WEFT_SWEEP=NAME: only the kernels with NAME in theirs. */
#include "test.h"

enum { MOST_FLOPS = 400000, MOST_ELEMENTS = 20000 }; /* of a changed problem */

static harness h;
static weft__hw hw;
static size_t tried, taken, every; /* one of so many changes is tried */

static double elements_of(const weft_problem *p) {
    double elements = 0;
    for (int i = 0; i < p->ntensors; i++) elements += (double)weft__numel(&p->tensor[i]);
    return elements;
}

/* A problem that the kernel takes, with one thing changed: refused, or right. */
static void try(const weft__kernel *k, weft_problem p) {
    char text[WEFT_TEXT_MAX];
    if (weft_problem_complete(&p) != WEFT_OK || weft__is_empty(&p)) return;
    if (weft__flops(&p) > MOST_FLOPS || elements_of(&p) > MOST_ELEMENTS) return;
    if (++tried % every) return;
    const uint64_t seed = tried * 4 + (p.math != WEFT_MATH_STRICT); /* of four: with NaN and infinity */
    if (!harness_takes(h.ctx[0], k, &p, &hw)) return;
    taken++;
    if (harness_check(&h, &p, &(harness_ask){.seed = seed, .kernel = k->name, .quick = true})) return;
    harness_text(&p, text);
    test_stop(TEST_FAIL, "%s: %s\n  repro: weft verify --seed %llu --kernel %s '%s'", h.kernel, h.why,
              (unsigned long long)seed, k->name, text);
}

/* ---------------------------------------------------------------- one tensor */
/* Its axes in the order they lie in, the nearest first, with `gap` places free behind those of one axis. */
static void spread(weft_tensor *t, int axis, int64_t first, int64_t gap) {
    bool used[WEFT_MAX_RANK] = {false};
    int64_t stride = first;
    for (int i = 0; i < t->rank; i++) {
        int next = -1;
        for (int a = t->rank - 1; a >= 0; a--)
            if (!used[a] && (next < 0 || t->strides[a] < t->strides[next])) next = a;
        used[next] = true;
        t->strides[next] = stride;
        stride *= WEFT__MAX(1, t->dims[next]) + (next == axis ? gap : 0);
    }
    t->layout = WEFT_LAYOUT_STRIDED;
}

static void change_tensor(const weft__kernel *k, const weft_problem *from, int i) {
    const weft_tensor *t = &from->tensor[i];
    const uint64_t types = weft__op_of(from->op)->dtypes(from, t->role);
    weft_problem p = *from;
    for (int16_t dtype = 1; dtype < WEFT_DTYPE_COUNT; dtype++, p = *from) {
        if (dtype == t->dtype || !(types & WEFT__BIT(dtype))) continue;
        p.tensor[i].dtype = dtype;
        p.tensor[i].align = 0;
        try(k, p);
    }
    for (int16_t layout = WEFT_LAYOUT_FIRST; layout <= WEFT_LAYOUT_LAST; layout++, p = *from) {
        p.tensor[i].layout = layout;
        if (layout != t->layout) try(k, p);
    }
    for (int axis = -1; axis < t->rank; axis++, p = *from) {
        if (axis >= 0 && t->dims[axis] < 2) continue;
        spread(&p.tensor[i], axis, axis < 0 ? 2 : 1, 3); /* -1: between all elements */
        try(k, p);
        p = *from;
        p.tensor[i].layout = WEFT_LAYOUT_STRIDED;
        if (axis < 0 || weft__is_output(from, t->role)) continue;
        p.tensor[i].strides[axis] = 0;
        try(k, p);
    }
    p.tensor[i].align = (int32_t)weft__dtype_size(t->dtype);
    try(k, p);
}

/* All tensors of one type that others have, or of the other layout. */
static void change_tensors(const weft__kernel *k, const weft_problem *from) {
    weft_problem p = *from;
    for (int16_t dtype = WEFT_DTYPE_F32; dtype <= WEFT_DTYPE_BF16; dtype++, p = *from) {
        for (int i = 0; i < p.ntensors; i++)
            if (WEFT__FLOATS & WEFT__BIT(p.tensor[i].dtype)) p.tensor[i].dtype = dtype, p.tensor[i].align = 0;
        try(k, p);
    }
    for (int16_t layout = WEFT_LAYOUT_FIRST; layout <= WEFT_LAYOUT_LAST; layout++, p = *from) {
        for (int i = 0; i < p.ntensors; i++) p.tensor[i].layout = layout;
        try(k, p);
    }
}

/* ---------------------------------------------------------------- one number */
/* Channels bring the groups and outputs along that depend on them. */
static void change_number(const weft__kernel *k, const weft_problem *from, size_t offset, int64_t value) {
    weft_problem p = *from;
    *(int64_t *)(void *)((char *)&p + offset) = value;
    if (offset == offsetof(weft_problem, c) && from->groups == from->c) {
        p.groups = value;
        p.o = from->o / from->c * value;
    } else if (offset == offsetof(weft_problem, c) || offset == offsetof(weft_problem, o)) {
        *(int64_t *)(void *)((char *)&p + offset) = value * from->groups;
    }
    try(k, p);
}

/* Small steps, and far past the limits that kernels have, of data that is small but for it. */
static void change_axes(const weft__kernel *k, const weft_problem *from, const weft__field *f) {
    for (int64_t more = 1; more <= 2; more++) {
        weft_problem p = *from;
        int64_t *at = (int64_t *)(void *)((char *)&p + f->offset);
        for (int a = 3 - from->rank; a < 3; a++) at[a] += more;
        try(k, p);
    }
}

/* Windows around the sizes of tiles and of blocks of taps, along all axes at once, padded: over data that is smaller,
 * and of one channel over data as large. */
static void change_windows(const weft__kernel *k, const weft_problem *from) {
    static const int64_t windows[] = {6, 9, 10, 17, 18, 33};
    for (size_t i = 0; i < 2 * WEFT__COUNT(windows); i++) {
        const bool large = i >= WEFT__COUNT(windows);
        const int64_t window = windows[i % WEFT__COUNT(windows)];
        weft_problem p = *from;
        if (large && from->groups == 1) p.c = 1, p.o = WEFT__MIN(p.o, 1);
        for (int a = 3 - from->rank; a < 3; a++) {
            if (from->kernel[a] == 1) continue;
            p.kernel[a] = window;
            p.pad_lo[a] = p.pad_hi[a] = window / 2;
            p.in[a] = large ? window : WEFT__MIN(from->in[a], 4);
        }
        try(k, p);
    }
}

/* Data of one plane with a window of one plane: every way to step and to pad along depth. */
static void change_depth(const weft__kernel *k, const weft_problem *flat) {
    for (int64_t i = 0; i < 27; i++) {
        weft_problem p = *flat;
        p.stride[0] = 1 + i % 3, p.pad_lo[0] = i / 3 % 3, p.pad_hi[0] = i / 9;
        try(k, p);
    }
}

static void change_field(const weft__kernel *k, const weft_problem *from, const weft__field *f) {
    static const int64_t limits[] = {260, 1030, 2047};
    const size_t values = f->kind == WEFT__FIELD_PADS ? 6 : f->kind == WEFT__FIELD_AXES ? 3 : 1;
    if (values > 1 && f->section) change_axes(k, from, f);
    for (size_t i = 0; i < values; i++) {
        const size_t offset = f->offset + i * sizeof(int64_t);
        if (values > 1 && (int)(i % 3) < 3 - from->rank) continue;
        if (f->kind == WEFT__FIELD_REAL) {
            weft_problem p = *from;
            *(double *)(void *)((char *)&p + offset) += 0.125;
            try(k, p);
            continue;
        }
        const int64_t now = *(const int64_t *)(const void *)((const char *)from + offset);
        if (f->section) { /* sizes have a sweep of their own: test_sweep.c */
            change_number(k, from, offset, now - 1);
            change_number(k, from, offset, now + 1);
            change_number(k, from, offset, 2 * now + 1);
            change_number(k, from, offset, 1);
        }
        if (f->kind == WEFT__FIELD_PADS) change_number(k, from, offset, from->kernel[i % 3]);
        weft_problem small = *from;
        small.n = 1;
        for (int a = 3 - from->rank; a < 3; a++) small.in[a] = WEFT__MIN(3, from->in[a]);
        for (size_t l = 0; l < WEFT__COUNT(limits); l++) {
            if (limits[l] > 2000) small.in[0] = small.in[1] = 1;
            change_number(k, &small, offset, limits[l]);
        }
    }
}

/* ---------------------------------------------------------------- the epilogue, the math */
static void change_steps(const weft__kernel *k, const weft_problem *from) {
    enum { BIAS = WEFT_STEP_BIAS, RELU = WEFT_STEP_RELU, CLIP = WEFT_STEP_CLIP, ACC = WEFT_STEP_ACC };
    static const int16_t lists[][3] = {
        {0},          {BIAS},       {RELU},       {CLIP},           {ACC},
        {BIAS, RELU}, {RELU, BIAS}, {CLIP, BIAS}, {CLIP, RELU},     {BIAS, ACC},
        {RELU, ACC},  {CLIP, ACC},  {CLIP, CLIP}, {WEFT_STEP_SILU}, {BIAS, WEFT_STEP_SILU}};
    for (size_t i = 0; i < WEFT__COUNT(lists); i++) {
        weft_problem p = *from;
        p.nsteps = 0;
        for (int s = 0; s < 3 && lists[i][s]; s++)
            p.step[p.nsteps++] = (weft_step){.kind = lists[i][s], .lo = lists[i][s] == ACC ? 2 : -0.5, .hi = 0.5};
        const uint64_t roles = weft__roles(&p);
        int count = 0;
        for (int t = 0; t < p.ntensors; t++)
            if (roles & WEFT__BIT(p.tensor[t].role)) p.tensor[count++] = p.tensor[t];
        p.ntensors = count;
        try(k, p);
    }
    for (int math = WEFT_MATH_FAST; math <= WEFT_MATH_TF32; math++) {
        weft_problem p = *from;
        p.math = math;
        try(k, p);
    }
}

static void change(const weft__kernel *k, const weft_problem *p) {
    const weft__op *op = weft__op_of(p->op);
    for (int i = 0; i < p->ntensors; i++) change_tensor(k, p, i);
    change_tensors(k, p);
    for (size_t i = 0; i < op->nfields; i++)
        if (op->fields[i].min_rank <= p->rank) change_field(k, p, &op->fields[i]);
    change_windows(k, p);
    change_steps(k, p);
}

/* ---------------------------------------------------------------- problems to change */
static weft_problem *cases;
static size_t ncases;

/* A problem of rank 2 with that depth and that window there, which is a change, too; false: not one that the kernel
 * takes. */
static bool deepen(const weft__kernel *k, weft_problem *p, int64_t depth, int64_t window) {
    if (p->rank != 2 || weft__op_of(p->op)->max_rank < 3) return false;
    p->rank = 3;
    p->in[0] = depth;
    if (p->op == WEFT_OP_ADAPTIVE_AVG_POOL) p->attr[WEFT_ADAPTIVE_AVG_POOL_TO] = 2;
    p->kernel[0] = window;
    if (weft_problem_complete(p) != WEFT_OK) return false;
    try(k, *p);
    return harness_takes(h.ctx[0], k, p, &hw);
}

/* The smallest of the cases that the kernel takes in this pass and rank; NULL: none. */
static const weft_problem *smallest(const weft__kernel *k, int pass, int rank) {
    const weft_problem *best = NULL;
    for (size_t i = 0; i < ncases; i++) {
        const weft_problem *p = &cases[i];
        if (p->op != k->op || p->pass != pass || p->rank != rank || (best && weft__bytes(p) >= weft__bytes(best)))
            continue;
        if (harness_takes(h.ctx[0], k, p, &hw)) best = p;
    }
    return best;
}

static void change_for(const weft__kernel *k) {
    for (int pass = 0; pass < WEFT_PASS_COUNT; pass++)
        for (int rank = 0; rank <= 3; rank++) {
            const weft_problem *p = smallest(k, pass, rank);
            if (p) change(k, p);
            if (p && !smallest(k, pass, 3)) {
                weft_problem deep = *p, single = *p, flat = *p;
                const bool both = deepen(k, &deep, 3, 2), one = deepen(k, &single, 3, 1);
                if (both || one) change(k, both ? &deep : &single);
                if (deepen(k, &flat, 1, 1)) change_depth(k, &flat);
            }
        }
}

TEST(one_change) {
    static const int threads[] = {2};
    const weft__kernel *const *list;
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    const char *only = getenv("WEFT_SWEEP");
    opts.workspace_limit = WEFT_NO_LIMIT;
    opts.cache_dir = "";
    OK(harness_create(&h, &opts, threads, 1));
    OK(weft__ctx_hw(h.ctx[0], &cpu, &hw));
    every = test_slow() ? 1 : test_sanitized() ? 8 : getenv("WEFT_ISA") ? 3 : 1; /* what is refused is the same */
    cases = test_cases(&ncases);
    size_t count = weft__kernels(0, &list);
    for (size_t i = 0; i < count; i++) {
        if (list[i]->reference || list[i]->engine != WEFT_ENGINE_CPU || !test_is_best(&hw, list, count, i)) continue;
        if (!only || strstr(list[i]->name, only)) change_for(list[i]);
    }
    CHECK(only || (taken > tried / every / 8 && taken < tried / every), "%zu changes, %zu of them taken", tried, taken);
    free(cases);
    harness_destroy(&h);
}
