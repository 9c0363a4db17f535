/* One text for a problem: the table of fields of each operator drives both directions. docs/problem.md has the grammar.
 *   op+rank : pass : dtypes : layouts : sizes : attributes [: epilogue] [: math] [@device] */
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/internal.h"

static const char *const layout_names[2][3][2] = {
    /* [weights][rank - 1][last] */
    {{"ncw", "nwc"}, {"nchw", "nhwc"}, {"ncdhw", "ndhwc"}},
    {{"oiw", "owi"}, {"oihw", "ohwi"}, {"oidhw", "odhwi"}},
};

static const char *layout_name(const weft_problem *p, int role, bool last) {
    return p->rank ? layout_names[weft__default_layout(role, WEFT_LAYOUT_LAST) == WEFT_LAYOUT_FIRST][p->rank - 1][last]
                   : "dense";
}

/* Numbers are written with a point whatever the user's locale is. */
static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;
static void make_c_locale(void) { c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0); }

static locale_t enter_c_locale(void) {
    pthread_once(&c_locale_once, make_c_locale);
    return c_locale ? uselocale(c_locale) : (locale_t)0;
}

static void leave_c_locale(locale_t old) {
    if (old) uselocale(old);
}

/* ---------------------------------------------------------------- format */
static void put_real(weft__text *t, double v) {
    char text[40];
    for (int digits = 6; digits <= 17; digits++) { /* the shortest that reads back the same */
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    weft__put(t, "%s", text);
}

static bool has_section(const weft__op *op, int section, bool required) {
    for (size_t i = 0; i < op->nfields; i++)
        if (op->fields[i].section == section && (op->fields[i].always || !required)) return true;
    return false;
}

static void put_field(weft__text *t, const weft_problem *p, const weft__field *f) {
    if (p->rank < f->min_rank) return;
    const int64_t *v = (const int64_t *)((const char *)p + f->offset), fallback = (int64_t)f->fallback;
    if (f->kind == WEFT__FIELD_REAL) {
        double real = *(const double *)(const void *)v;
        if (!f->always && real == f->fallback) return;
        weft__put(t, "%s", f->key);
        put_real(t, real);
        return;
    }
    if (f->kind == WEFT__FIELD_INT) {
        if (f->always || v[0] != fallback) weft__put(t, "%s%lld", f->key, (long long)v[0]);
        return;
    }
    bool pads = f->kind == WEFT__FIELD_PADS, plain = true, same = true;
    for (int a = 3 - p->rank; a < 3; a++) {
        same = same && v[a] == v[2] && (!pads || v[3 + a] == v[5]);
        plain = plain && v[a] == fallback && (!pads || v[3 + a] == fallback);
    }
    if (plain && !f->always) return;
    for (int a = same ? 2 : 3 - p->rank; a < 3; a++) {
        weft__put(t, "%s%lld", a == (same ? 2 : 3 - p->rank) ? f->key : "x", (long long)v[a]);
        if (pads && v[3 + a] != v[a]) weft__put(t, "+%lld", (long long)v[3 + a]);
    }
}

static void put_tensor_layout(weft__text *t, const weft_problem *p, const weft_tensor *x, weft_layout data) {
    weft_layout expected = x->rank < 3 ? WEFT_LAYOUT_FIRST : weft__default_layout(x->role, data);
    bool aligned = x->align == (int)WEFT__MAX(16, weft__dtype_size(x->dtype));
    if ((int)expected == x->layout && aligned) return;
    weft__put(t, ",%s=", weft__role_name(x->role));
    if (x->layout == WEFT_LAYOUT_STRIDED) {
        int axes[WEFT_MAX_RANK], n = weft__visible_axes(p, x, axes);
        for (int i = 0; i < n; i++) weft__put(t, i ? ".%lld" : "[%lld", (long long)x->strides[axes[i]]);
        weft__put(t, "]");
    } else {
        weft__put(t, "%s", x->rank < 3 ? "dense" : layout_name(p, x->role, x->layout == WEFT_LAYOUT_LAST));
    }
    if (!aligned) weft__put(t, "/%d", x->align);
}

static void put_steps(weft__text *t, const weft_problem *p) {
    for (int i = 0; i < p->nsteps; i++) {
        weft__put(t, "%s%s", i ? "+" : ":", weft__step_names[p->step[i].kind]);
        if (p->step[i].kind != WEFT_STEP_CLIP && p->step[i].kind != WEFT_STEP_ACC) continue;
        put_real(t, p->step[i].lo);
        weft__put(t, "_");
        put_real(t, p->step[i].hi);
    }
}

static void put_problem(weft__text *t, const weft_problem *p) {
    const weft__op *op = weft__op_of(p->op);
    weft__put(t, "%s", op->name);
    if (p->rank) weft__put(t, "%dd", p->rank);
    weft__put(t, ":%s:%s", weft__pass_name(p->pass), weft__dtype_name(p->tensor[0].dtype));
    for (int i = 1; i < p->ntensors; i++)
        if (p->tensor[i].dtype != weft__default_dtype(p, p->tensor[i].role, p->tensor[0].dtype))
            weft__put(t, ",%s=%s", weft__role_name(p->tensor[i].role), weft__dtype_name(p->tensor[i].dtype));
    weft_layout data = weft__data_layout(p);
    weft__put(t, ":%s", layout_name(p, WEFT_ROLE_SRC, data == WEFT_LAYOUT_LAST));
    for (int i = 0; i < p->ntensors; i++) put_tensor_layout(t, p, &p->tensor[i], data);
    for (int section = 0; section < 2 && has_section(op, section, false); section++) {
        weft__put(t, ":");
        for (size_t i = 0; i < op->nfields; i++)
            if (op->fields[i].section == section) put_field(t, p, &op->fields[i]);
    }
    put_steps(t, p);
    if (p->math != WEFT_MATH_FAST) weft__put(t, ":%s", weft__math_name(p->math));
    weft__put(t, p->device == WEFT_DEVICE_CPU ? "@cpu" : "@cuda");
    if (p->ordinal) weft__put(t, "%d", p->ordinal);
}

weft_status weft_problem_format(const weft_problem *p, char *text, size_t capacity, size_t *length) {
    if (!text && capacity)
        return weft__fail(WEFT_ERR_INVALID, "text is NULL, allowed: room for capacity (%zu) bytes", capacity);
    if (text && capacity) text[0] = 0;
    weft_problem q;
    WEFT__TRY(weft__take_problem(&q, p));
    weft__text t = {text, capacity, 0};
    locale_t old = enter_c_locale();
    put_problem(&t, &q);
    leave_c_locale(old);
    if (length) *length = t.length;
    if (capacity && t.length >= capacity)
        return weft__fail(WEFT_ERR_INVALID, "capacity is %zu, allowed here: at least %zu", capacity, t.length + 1);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- parse */
typedef struct scan {
    const char *text, *at;
    const char *layout[WEFT_ROLE_COUNT]; /* where a tensor's own layout begins; checked when the shapes are known */
} scan;

static weft_status expected(const scan *s, const char *what) {
    char got[24];
    size_t n = strcspn(s->at, ":@");
    snprintf(got, sizeof(got), "%.*s%s", (int)WEFT__MIN(n ? n : 1, 16u), s->at, n > 16 ? "..." : "");
    return weft__fail(WEFT_ERR_SYNTAX, "problem, column %zu: expected %s, got %s%s%s", (size_t)(s->at - s->text) + 1,
                      what, *s->at ? "'" : "", *s->at ? got : "the end", *s->at ? "'" : "");
}

static size_t word_length(const scan *s) {
    size_t n = 0;
    while (isalnum((unsigned char)s->at[n]) || s->at[n] == '_') n++;
    return n;
}

static bool accept(scan *s, char c) {
    if (*s->at != c) return false;
    s->at++;
    return true;
}

static weft_status need(scan *s, char c, const char *what) { return accept(s, c) ? WEFT_OK : expected(s, what); }

static weft_status number(scan *s, int64_t *v) {
    const char *digits = s->at + (*s->at == '-');
    if (!isdigit((unsigned char)*digits)) return expected(s, "a number");
    char *end;
    errno = 0;
    long long value = strtoll(s->at, &end, 10);
    if (errno == ERANGE) return expected(s, "a number below 2^63");
    *v = value;
    s->at = end;
    return WEFT_OK;
}

/* A word of a table from index `first` on. */
static weft_status word(scan *s, const char *const *names, int first, int count, const char *what, int *index) {
    size_t n = word_length(s);
    int i = weft__word(names + first, count - first, s->at, n);
    if (i < 0) {
        char list[256];
        weft__text t = {list, sizeof(list), 0};
        weft__put(&t, "%s:", what);
        for (int k = first; k < count; k++) weft__put(&t, " %s", names[k]);
        return expected(s, list);
    }
    *index = first + i;
    s->at += n;
    return WEFT_OK;
}

static weft_status parse_op(scan *s, weft_problem *p) {
    size_t n = word_length(s);
    for (int i = 1; i < WEFT_OP_COUNT; i++) {
        const weft__op *op = weft__op_of(i);
        for (int rank = op->min_rank; rank <= op->max_rank; rank++) {
            char name[64];
            int length = snprintf(name, sizeof(name), rank ? "%s%dd" : "%s", op->name, rank);
            if ((size_t)length != n || memcmp(name, s->at, n)) continue;
            weft__problem_defaults(p, op, rank);
            s->at += n;
            return WEFT_OK;
        }
    }
    char list[1024];
    weft__text t = {list, sizeof(list), 0};
    weft__put(&t, "an operator:");
    for (int i = 1; i < WEFT_OP_COUNT; i++)
        for (int rank = weft__op_of(i)->min_rank; rank <= weft__op_of(i)->max_rank; rank++)
            weft__put(&t, rank ? " %s%dd" : " %s", weft__op_of(i)->name, rank);
    return expected(s, list);
}

/* The tensor that an override "role=" is about: added empty, and checked against the pass at the end. */
static weft_status override(scan *s, weft_problem *p, weft_tensor **t) {
    int role = 0;
    WEFT__TRY(word(s, weft__role_names, 0, WEFT_ROLE_COUNT, "a tensor", &role));
    WEFT__TRY(need(s, '=', "'=' after the tensor"));
    *t = weft_problem_tensor(p, (weft_role)role);
    return *t ? WEFT_OK : expected(s, "fewer tensors");
}

static weft_status parse_dtypes(scan *s, weft_problem *p, int *main) {
    WEFT__TRY(word(s, weft__dtype_names, 1, WEFT_DTYPE_COUNT, "a data type", main));
    while (accept(s, ',')) {
        weft_tensor *t;
        int dtype = 0;
        WEFT__TRY(override(s, p, &t));
        WEFT__TRY(word(s, weft__dtype_names, 1, WEFT_DTYPE_COUNT, "a data type", &dtype));
        t->dtype = (int16_t)dtype;
    }
    return WEFT_OK;
}

static weft_status parse_layout(scan *s, const weft_problem *p, int role, int *layout) {
    const char *names[3] = {layout_name(p, role, false), layout_name(p, role, true), "dense"};
    int index = 0;
    WEFT__TRY(word(s, names, p->rank ? 0 : 2, 3, "a layout", &index));
    *layout = index == 1 ? WEFT_LAYOUT_LAST : WEFT_LAYOUT_FIRST;
    return WEFT_OK;
}

/* As they come; settle_layout puts them at their axes once the sizes are known. */
static weft_status parse_strides(scan *s, weft_tensor *t) {
    do {
        if (t->derived == WEFT_MAX_RANK) return expected(s, "at most 8 strides");
        WEFT__TRY(number(s, &t->strides[t->derived++]));
    } while (accept(s, '.'));
    t->layout = WEFT_LAYOUT_STRIDED;
    return need(s, ']', "']' after the last stride");
}

/* A vector is dense or has a stride; strides are as many as the axes the user sees, and go to their places. */
static weft_status settle_layout(scan *s, const weft_problem *p, weft_tensor *t) {
    weft_tensor shape = {0};
    int axes[WEFT_MAX_RANK], given = t->derived;
    char what[32];
    s->at = s->layout[t->role];
    weft__op_of(p->op)->shape(p, t->role, &shape);
    int count = weft__visible_axes(p, &shape, axes);
    snprintf(what, sizeof(what), "%d strides", count);
    if (given ? given != count : shape.rank < 3 && *s->at != 'd') return expected(s, given ? what : "a layout: dense");
    for (int i = 0; i < given; i++) shape.strides[axes[i]] = t->strides[i];
    memcpy(t->strides, shape.strides, sizeof(t->strides));
    t->derived = 0;
    return WEFT_OK;
}

static weft_status parse_layouts(scan *s, weft_problem *p, int *main) {
    WEFT__TRY(parse_layout(s, p, WEFT_ROLE_SRC, main));
    while (accept(s, ',')) {
        weft_tensor *t;
        int layout = 0;
        WEFT__TRY(override(s, p, &t));
        s->layout[t->role] = s->at;
        if (accept(s, '[')) {
            WEFT__TRY(parse_strides(s, t));
        } else {
            WEFT__TRY(parse_layout(s, p, t->role, &layout));
            t->layout = (int16_t)layout;
        }
        if (!accept(s, '/')) continue;
        int64_t align;
        WEFT__TRY(number(s, &align));
        t->align = align > 0 && align <= 4096 ? (int32_t)align : -1; /* refused by complete, with its range */
    }
    return WEFT_OK;
}

static weft_status parse_real(scan *s, double *v) {
    char *end;
    *v = strtod(s->at, &end);
    if (end == s->at) return expected(s, "a number");
    s->at = end;
    return WEFT_OK;
}

static weft_status parse_value(scan *s, weft_problem *p, const weft__field *f) {
    int64_t *v = (int64_t *)((char *)p + f->offset);
    if (f->kind == WEFT__FIELD_INT) return number(s, v);
    if (f->kind == WEFT__FIELD_REAL) return parse_real(s, (double *)(void *)v);
    bool pads = f->kind == WEFT__FIELD_PADS;
    int64_t lo[3], hi[3];
    int count = 0;
    do {
        if (count == p->rank) return expected(s, "at most one value per axis");
        WEFT__TRY(number(s, &lo[count]));
        hi[count] = lo[count];
        if (pads && accept(s, '+')) WEFT__TRY(number(s, &hi[count]));
        count++;
    } while (accept(s, 'x'));
    if (count != 1 && count != p->rank) return expected(s, "'x' and the next axis, or one value for all axes");
    for (int a = 3 - p->rank; a < 3; a++) {
        int i = count == 1 ? 0 : a - (3 - p->rank);
        v[a] = lo[i];
        if (pads) v[3 + a] = hi[i];
    }
    return WEFT_OK;
}

/* The longest key that stands here with a value behind it: a number, or infinity for a real. */
static const weft__field *field_at(const scan *s, const weft_problem *p, int section) {
    const weft__op *op = weft__op_of(p->op);
    const weft__field *best = NULL;
    for (size_t i = 0; i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        size_t n = strlen(f->key);
        if (f->section != section || p->rank < f->min_rank || strncmp(f->key, s->at, n) ||
            (best && strlen(best->key) > n))
            continue;
        const char *value = s->at + n + (s->at[n] == '-');
        if (isdigit((unsigned char)*value) || (f->kind == WEFT__FIELD_REAL && strncmp(value, "inf", 3) == 0)) best = f;
    }
    return best;
}

static weft_status parse_section(scan *s, weft_problem *p, int section) {
    const weft__op *op = weft__op_of(p->op);
    uint64_t seen = 0;
    char list[128];
    weft__text t = {list, sizeof(list), 0};
    weft__put(&t, section ? "an attribute:" : "a size:");
    for (size_t i = 0; i < op->nfields; i++)
        if (op->fields[i].section == section && p->rank >= op->fields[i].min_rank)
            weft__put(&t, " %s", op->fields[i].key);
    while (isalnum((unsigned char)*s->at)) {
        const weft__field *f = field_at(s, p, section);
        if (!f) return expected(s, list);
        uint64_t bit = UINT64_C(1) << (f - op->fields);
        if (seen & bit) return expected(s, "each letter once");
        seen |= bit;
        s->at += strlen(f->key);
        WEFT__TRY(parse_value(s, p, f));
    }
    for (size_t i = 0; i < op->nfields; i++) {
        const weft__field *f = &op->fields[i];
        if (f->section != section || !f->always || p->rank < f->min_rank || (seen & (UINT64_C(1) << i))) continue;
        snprintf(list, sizeof(list), "'%s' and a number", f->key);
        return expected(s, list);
    }
    return WEFT_OK;
}

static weft_status parse_steps(scan *s, weft_problem *p) {
    do {
        if (p->nsteps == WEFT_MAX_STEPS) return expected(s, "at most 4 epilogue steps");
        weft_step *step = &p->step[p->nsteps];
        size_t n = 0;
        while (isalpha((unsigned char)s->at[n])) n++;
        if (strncmp(s->at, "clip", 4) == 0) n = 4; /* a bound may begin with a letter: inf */
        int kind = weft__word(weft__step_names + 1, WEFT__STEPS - 1, s->at, n);
        if (kind < 0)
            return expected(
                s, "an epilogue step (bias, relu, clipLO_HI, accNEW_OLD, silu) or a math (fast, strict, tf32)");
        s->at += n;
        step->kind = kind + 1;
        p->nsteps++;
        if (step->kind != WEFT_STEP_CLIP && step->kind != WEFT_STEP_ACC) continue;
        WEFT__TRY(parse_real(s, &step->lo));
        WEFT__TRY(need(s, '_', "'_' between two numbers"));
        WEFT__TRY(parse_real(s, &step->hi));
    } while (accept(s, '+'));
    return WEFT_OK;
}

static weft_status parse_tail(scan *s, weft_problem *p) {
    while (accept(s, ':')) {
        int math = weft__word(weft__math_names + 1, 3, s->at, word_length(s));
        if (p->math || (math < 0 && p->nsteps)) return expected(s, "'@' and a device, or the end");
        if (math < 0) {
            WEFT__TRY(parse_steps(s, p));
        } else {
            p->math = math + 1;
            s->at += word_length(s);
        }
    }
    if (accept(s, '@')) {
        bool cuda = strncmp(s->at, "cuda", 4) == 0;
        if (!cuda && strncmp(s->at, "cpu", 3)) return expected(s, "a device: cpu cuda cuda<ordinal>");
        p->device = cuda ? WEFT_DEVICE_CUDA : WEFT_DEVICE_CPU;
        s->at += cuda ? 4 : 3;
        int64_t ordinal = 0;
        if (cuda && isdigit((unsigned char)*s->at)) WEFT__TRY(number(s, &ordinal));
        p->ordinal = ordinal <= 1024 ? (int32_t)ordinal : -1;
    }
    return *s->at ? expected(s, "the end") : WEFT_OK;
}

/* Whatever no override named takes the main words, where the operator allows them. */
static weft_status finish(scan *s, weft_problem *p, int dtype, int layout) {
    const weft__op *op = weft__op_of(p->op);
    if (!weft__pass_of(p)) return weft__complete(p); /* fails, with the reason */
    WEFT__TRY(op->check(p));
    uint64_t roles = weft__roles(p);
    if (!(op->dtypes(p, __builtin_ctzll(roles)) & WEFT__BIT(dtype)))
        return weft__fail(WEFT_ERR_INVALID, "data type is %s, which %s does not take", weft__dtype_name(dtype),
                          op->name);
    for (int role = 0; role < WEFT_ROLE_COUNT; role++) {
        if (!(roles & WEFT__BIT(role))) continue;
        weft_tensor *t = weft_problem_tensor(p, (weft_role)role);
        if (!t) return weft__fail(WEFT_ERR_INVALID, "the problem names more than %d tensors", WEFT_MAX_TENSORS);
        if (!t->dtype) t->dtype = (int16_t)weft__default_dtype(p, role, dtype);
        if (!t->layout) t->layout = (int16_t)weft__default_layout(role, (weft_layout)layout);
        if (s->layout[role]) WEFT__TRY(settle_layout(s, p, t));
    }
    return WEFT_OK;
}

static weft_status parse_all(scan *s, weft_problem *p) {
    int dtype = 0, layout = 0;
    WEFT__TRY(parse_op(s, p));
    WEFT__TRY(need(s, ':', "':' and a pass"));
    WEFT__TRY(word(s, weft__pass_names, 1, WEFT_PASS_COUNT, "a pass", &p->pass));
    WEFT__TRY(need(s, ':', "':' and a data type"));
    WEFT__TRY(parse_dtypes(s, p, &dtype));
    WEFT__TRY(need(s, ':', "':' and a layout"));
    WEFT__TRY(parse_layouts(s, p, &layout));
    WEFT__TRY(need(s, ':', "':' and sizes"));
    WEFT__TRY(parse_section(s, p, 0));
    /* where no attribute is required and nothing but a device follows, their colon may be left out too */
    if (has_section(weft__op_of(p->op), 1, true) || (has_section(weft__op_of(p->op), 1, false) && *s->at == ':')) {
        WEFT__TRY(need(s, ':', "':' and attributes"));
        WEFT__TRY(parse_section(s, p, 1));
    }
    WEFT__TRY(parse_tail(s, p));
    return finish(s, p, dtype, layout);
}

weft_status weft_problem_parse(weft_problem *p, const char *text) {
    WEFT__TRY(weft__check_problem_size(p));
    if (!text) return weft__fail(WEFT_ERR_INVALID, "text is NULL, allowed: a problem's text");
    if (strlen(text) >= WEFT_TEXT_MAX)
        return weft__fail(WEFT_ERR_SYNTAX, "problem, column %d: expected the end, the text has %zu characters",
                          WEFT_TEXT_MAX, strlen(text));
    weft_problem q;
    scan s = {text, text, {NULL}};
    locale_t old = enter_c_locale();
    weft_status status = parse_all(&s, &q);
    leave_c_locale(old);
    if (status == WEFT_OK) status = weft__complete(&q);
    if (status == WEFT_OK) weft__return(p, &q, sizeof(q));
    return status;
}
