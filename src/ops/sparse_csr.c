/* Sparse weights in host memory: count and build CSR from dense weights, stretch columns, check what somebody else
 * built. */
#include "ops/conv.h"
#include "ref/sparse_conv.h"

/* The problem completed, and the three vectors it says; a pass without one of them has nothing to build for. */
typedef struct csr {
    weft_problem p;
    const weft_tensor *values, *rows, *cols;
} csr;

static weft_status open_csr(const weft_problem *p, csr *s) {
    WEFT__TRY(weft__take_problem(&s->p, p));
    s->values = weft__tensor(&s->p, WEFT_ROLE_WEIGHTS);
    s->rows = weft__tensor(&s->p, WEFT_ROLE_ROWS);
    s->cols = weft__tensor(&s->p, WEFT_ROLE_COLS);
    if (p->op != WEFT_OP_SPARSE_CONV || !s->values || !s->rows || !s->cols)
        return weft__fail(WEFT_ERR_INVALID, "problem is %s of %s, allowed: fwd, bwd_data or bwd of sparse_conv",
                          weft__pass_name(p->pass), weft__op_of(p->op)->name);
    return WEFT_OK;
}

/* Dense weights are those of the convolution of the same geometry, which checks them. */
static weft_status open_dense(const csr *s, const weft_tensor *dense, const void *weights, weft_tensor *t) {
    const weft_problem *p = &s->p;
    weft_problem q = WEFT_PROBLEM_INIT;
    if (!weights) return weft__fail(WEFT_ERR_INVALID, "weights is NULL, allowed: the dense weights");
    WEFT__TRY(weft_problem_init(&q, WEFT_OP_CONV, WEFT_PASS_FWD, p->rank));
    q.c = p->c, q.o = p->o, q.groups = p->groups;
    for (int a = 0; a < 3; a++) {
        q.in[a] = p->in[a], q.kernel[a] = p->kernel[a], q.dilation[a] = p->dilation[a];
        q.pad_lo[a] = p->pad_lo[a], q.pad_hi[a] = p->pad_hi[a];
    }
    weft_tensor *w = weft_problem_tensor(&q, WEFT_ROLE_WEIGHTS);
    if (dense)
        *w = *dense;
    else
        w->dtype = s->values->dtype;
    w->role = WEFT_ROLE_WEIGHTS;
    WEFT__TRY(weft_problem_complete(&q));
    *t = *weft__tensor(&q, WEFT_ROLE_WEIGHTS);
    return WEFT_OK;
}

static int64_t count(const weft_tensor *t, const void *weights) {
    int64_t at[5], n = 0;
    for (int64_t i = 0; i < item_numel(t); i++) n += item_load(t->dtype, weights, item_at(t, i, at)) != 0;
    return n;
}

weft_status weft_sparse_count(const weft_problem *p, const weft_tensor *dense, const void *weights, int64_t *nnz) {
    csr s;
    weft_tensor t;
    if (!nnz) return weft__fail(WEFT_ERR_INVALID, "nnz is NULL, allowed: a place for the count");
    WEFT__TRY(open_csr(p, &s));
    WEFT__TRY(open_dense(&s, dense, weights, &t));
    *nnz = count(&t, weights);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- columns */
/* Channel i of the group and the tap at[2..4] as a column of that form. */
static int64_t column(const weft_problem *p, bool stretched, int64_t i, const int64_t *tap) {
    for (int a = 0; a < 3; a++)
        i = stretched ? i * (p->in[a] + p->pad_lo[a] + p->pad_hi[a]) + tap[a] * p->dilation[a]
                      : i * p->kernel[a] + tap[a];
    return i;
}

/* No column of that form is larger than this, the last tap of the last channel. */
static weft_status columns_fit(const csr *s, bool stretched) {
    int64_t last[3] = {s->p.kernel[0] - 1, s->p.kernel[1] - 1, s->p.kernel[2] - 1};
    int64_t largest = column(&s->p, stretched, s->p.c / s->p.groups - 1, last);
    if (s->cols->dtype == WEFT_DTYPE_I32 && largest > INT32_MAX)
        return weft__fail(WEFT_ERR_INVALID, "cols: data type is i32, but columns go up to %lld, allowed here: i64",
                          (long long)largest);
    return WEFT_OK;
}

static int64_t get(const weft_tensor *t, const void *ptr, int64_t i) {
    return item_whole(t->dtype, ptr, i * t->strides[0]);
}

static void put(const weft_tensor *t, void *ptr, int64_t i, int64_t v) {
    if (t->dtype == WEFT_DTYPE_I32)
        ((int32_t *)ptr)[i * t->strides[0]] = (int32_t)v;
    else
        ((int64_t *)ptr)[i * t->strides[0]] = v;
}

/* ---------------------------------------------------------------- building */
weft_status weft_sparse_build(const weft_problem *p, const weft_tensor *dense, const void *weights, void *values,
                              void *rows, void *cols) {
    csr s;
    weft_tensor t;
    WEFT__TRY(open_csr(p, &s));
    WEFT__TRY(open_dense(&s, dense, weights, &t));
    int64_t nnz = s.p.attr[WEFT_SPARSE_NNZ], found = count(&t, weights), j = 0, at[5];
    if (found != nnz)
        return weft__fail(WEFT_ERR_INVALID, "weights: %lld elements are not 0, allowed: nnz of the problem, %lld",
                          (long long)found, (long long)nnz);
    if (!rows || (nnz && (!values || !cols)))
        return weft__fail(WEFT_ERR_INVALID, "%s is NULL, allowed: a place for it",
                          !rows     ? "rows"
                          : !values ? "values"
                                    : "cols");
    if (s.rows->dtype == WEFT_DTYPE_I32 && nnz > INT32_MAX)
        return weft__fail(WEFT_ERR_INVALID, "rows: data type is i32, but nnz is %lld, allowed here: i64",
                          (long long)nnz);
    bool stretched = s.p.attr[WEFT_SPARSE_STRETCHED];
    WEFT__TRY(columns_fit(&s, stretched));
    for (int64_t i = 0, total = item_numel(&t); i < total; i++) { /* canonical order: row by row, columns rising */
        double v = item_load(t.dtype, weights, item_at(&t, i, at));
        if (i % (total / s.p.o) == 0) put(s.rows, rows, at[0], j);
        if (v == 0) continue;
        put(s.cols, cols, j, column(&s.p, stretched, at[1], at + 2));
        item_store(s.values->dtype, values, j++ * s.values->strides[0], v);
    }
    put(s.rows, rows, s.p.o, j);
    return WEFT_OK;
}

weft_status weft_sparse_stretch(const weft_problem *p, const void *cols, void *stretched) {
    csr s;
    WEFT__TRY(open_csr(p, &s));
    weft_problem plain = s.p;
    plain.attr[WEFT_SPARSE_STRETCHED] = 0;
    int64_t nnz = s.p.attr[WEFT_SPARSE_NNZ], channel, tap[3];
    if (nnz && (!cols || !stretched))
        return weft__fail(WEFT_ERR_INVALID, "%s is NULL, allowed: nnz columns", cols ? "stretched" : "cols");
    WEFT__TRY(columns_fit(&s, true));
    for (int turn = 0; turn < 2; turn++) /* all are looked at before any is written; the two may be the same memory */
        for (int64_t j = 0; j < nnz; j++) {
            int64_t col = get(s.cols, cols, j);
            if (!sparse_column(&plain, col, &channel, tap))
                return weft__fail(WEFT_ERR_INVALID, "cols[%lld] is %lld, allowed: 0 or more, below c/groups * kernel",
                                  (long long)j, (long long)col);
            for (int a = 0; a < 3; a++) tap[a] /= plain.dilation[a];
            if (turn) put(s.cols, stretched, j, column(&plain, true, channel, tap));
        }
    return WEFT_OK;
}

/* ---------------------------------------------------------------- checking */
static weft_status check_rows(const csr *s, const void *rows) {
    int64_t before = 0, nnz = s->p.attr[WEFT_SPARSE_NNZ];
    for (int64_t o = 0; o <= s->p.o; o++) {
        int64_t at = get(s->rows, rows, o), least = before, most = o == 0 ? 0 : nnz;
        if (o == s->p.o) least = nnz;
        if (at < least || at < before || at > most)
            return weft__fail(WEFT_ERR_INVALID,
                              "rows[%lld] is %lld, allowed: %lld..%lld (0 first, nnz last, never falling)",
                              (long long)o, (long long)at, (long long)least, (long long)most);
        before = at;
    }
    return WEFT_OK;
}

weft_status weft_sparse_check(const weft_problem *p, const void *rows, const void *cols) {
    csr s;
    WEFT__TRY(open_csr(p, &s));
    int64_t nnz = s.p.attr[WEFT_SPARSE_NNZ], channel, distance[3];
    if (!rows || (nnz && !cols))
        return weft__fail(WEFT_ERR_INVALID, "%s is NULL, allowed: what weft_sparse_build fills",
                          rows ? "cols" : "rows");
    WEFT__TRY(check_rows(&s, rows));
    for (int64_t j = 0; j < nnz; j++) {
        int64_t col = get(s.cols, cols, j);
        bool tap = sparse_column(&s.p, col, &channel, distance);
        for (int a = 0; a < 3 && tap; a++)
            tap = distance[a] % s.p.dilation[a] == 0 && distance[a] / s.p.dilation[a] < s.p.kernel[a];
        if (!tap)
            return weft__fail(WEFT_ERR_INVALID, "cols[%lld] is %lld, allowed: %s", (long long)j, (long long)col,
                              s.p.attr[WEFT_SPARSE_STRETCHED] ? "the offset of a tap in the padded input"
                                                              : "0 or more, below c/groups * kernel");
    }
    return WEFT_OK;
}
