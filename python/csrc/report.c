/* What Python asks by ctypes: a problem text explained, the machine described. Python parses no problem text of its
 * own. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"
#include "seat.h"

typedef struct text {
    char *at;
    size_t capacity, length;
} text;

static void say(text *t, const char *format, ...) WT_PRINTF(2, 3);
static void say(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    bool room = t->length < t->capacity;
    int n = vsnprintf(room ? t->at + t->length : NULL, room ? t->capacity - t->length : 0, format, args);
    va_end(args);
    if (n > 0) t->length += (size_t)n;
}

/* The texts of `count` values, by a format of one, between brackets. Reals are strings: JSON has no infinity. */
#define SAY_EACH(t, key, count, format, value)                                     \
    do {                                                                           \
        say(t, "\"%s\": [", key);                                                  \
        for (int i = 0; i < (count); i++) say(t, i ? ", " format : format, value); \
        say(t, "], ");                                                             \
    } while (0)

static void say_list(text *t, const char *key, const int64_t *values, int count) {
    SAY_EACH(t, key, count, "%lld", (long long)values[i]);
}

static const char *const device_names[] = {"none", "cpu", "cuda"};

static void say_tensor(text *t, const weft_problem *p, const weft_tensor *x) {
    int64_t dims[WEFT_MAX_RANK], strides[WEFT_MAX_RANK];
    int n = 0;
    for (int a = 0; a < x->rank; a++) {
        if (x->rank == 5 && a >= 2 && a < 5 - p->rank) continue; /* axes that the user does not see */
        dims[n] = x->dims[a];
        strides[n++] = x->strides[a];
    }
    say(t, "\"%s\": {", weft__role_names[x->role]);
    say_list(t, "dims", dims, n);
    say_list(t, "strides", strides, n);
    say(t, "\"dtype\": \"%s\", \"align\": %d}", weft__dtype_names[x->dtype], x->align);
}

/* Roles that stand for the same data in different passes share a family; others are alone in theirs. */
static int family(int role) {
    static const int shared[WEFT_ROLE_COUNT] = {
        [WEFT_ROLE_SRC] = 1,  [WEFT_ROLE_DIFF_SRC] = 1,  [WEFT_ROLE_WEIGHTS] = 2, [WEFT_ROLE_DIFF_WEIGHTS] = 2,
        [WEFT_ROLE_BIAS] = 3, [WEFT_ROLE_DIFF_BIAS] = 3, [WEFT_ROLE_DST] = 4,     [WEFT_ROLE_DIFF_DST] = 4};
    return shared[role] ? shared[role] : 5 + role;
}

static const weft_tensor *partner(const weft_problem *p, int role) {
    for (int i = 0; i < p->ntensors; i++)
        if (family(p->tensor[i].role) == family(role)) return &p->tensor[i];
    return NULL;
}

static bool is_rnn(int op) {
    return op == WEFT_OP_RNN_RELU || op == WEFT_OP_RNN_TANH || op == WEFT_OP_LSTM || op == WEFT_OP_GRU;
}

/* The steps of p that q's pass takes. Only a convolution has an epilogue on bwd_data; a partial one must know that
 * there was a bias, and the gradient of a recurrent layer that its forward pass kept the reserve. */
static void take_steps(const weft_problem *p, weft_problem *q) {
    /* the causal convolution computes its activation again in every pass */
    bool ends = q->pass == WEFT_PASS_FWD || (q->pass == WEFT_PASS_BWD_DATA && q->op == WEFT_OP_CONV) ||
                q->op == WEFT_OP_CAUSAL_CONV,
         takes_bias = ends || q->pass != WEFT_PASS_BWD_DATA;
    /* said by the attribute instead of a step */
    bool biased = q->op == WEFT_OP_PARTIAL_CONV && p->attr[WEFT_PARTIAL_BIASED];
    if (biased && takes_bias) q->step[q->nsteps++].kind = WEFT_STEP_BIAS;
    for (int i = 0; i < p->nsteps; i++) {
        int kind = p->step[i].kind;
        biased |= kind == WEFT_STEP_BIAS;
        if (kind == WEFT_STEP_BIAS ? takes_bias : ends && kind != WEFT_STEP_ACC) q->step[q->nsteps++] = p->step[i];
    }
    if (q->op == WEFT_OP_PARTIAL_CONV) q->attr[WEFT_PARTIAL_BIASED] = biased && !takes_bias;
    if (is_rnn(q->op) && q->pass == WEFT_PASS_BWD) q->attr[WEFT_RNN_TRAIN] = 1;
}

/* The same geometry and data in another pass; activations go where the pass has none. */
static weft_status change_pass(weft_problem *p, int pass) {
    weft_problem q = WEFT_PROBLEM_INIT, bare;
    if (weft_problem_init(&q, (weft_op)p->op, (weft_pass)pass, p->rank) != WEFT_OK) return WEFT_ERR_INVALID;
    size_t from = offsetof(weft_problem, n), to = offsetof(weft_problem, nsteps);
    memcpy((char *)&q + from, (const char *)p + from, to - from);
    q.device = p->device, q.ordinal = p->ordinal, q.math = p->math;
    take_steps(p, &q);
    bare = q;
    weft_status s = weft_problem_complete(&bare); /* shows which tensors take part */
    for (int i = 0; s == WEFT_OK && i < bare.ntensors; i++) {
        const weft_tensor *like = partner(p, bare.tensor[i].role);
        if (!like) continue;
        weft_tensor *t = weft_problem_tensor(&q, (weft_role)bare.tensor[i].role);
        t->dtype = like->dtype, t->layout = like->layout, t->align = like->align;
        memcpy(t->strides, like->strides, sizeof(t->strides));
    }
    if (s == WEFT_OK) s = weft_problem_complete(&q);
    *p = q;
    return s;
}

/* The problem as JSON: its normal text, every attribute and every tensor. pass: NULL, or the pass to change to.
 * Returns the length, or -1: see weft_last_error. Axes are those the user sees. */
WEFT_API int64_t weft_torch_problem(const char *problem, const char *pass, char *json, size_t capacity) {
    weft_problem p = WEFT_PROBLEM_INIT;
    char normal[WEFT_TEXT_MAX];
    text t = {json, capacity, 0};
    if (weft_problem_parse(&p, problem) != WEFT_OK) return -1;
    const int to = pass ? weft__word(weft__pass_names, WEFT_PASS_COUNT, pass, strlen(pass)) : p.pass;
    if (to != p.pass && change_pass(&p, to < 0 ? WEFT_PASS_NONE : to) != WEFT_OK) return -1;
    if (weft_problem_format(&p, normal, sizeof(normal), NULL) != WEFT_OK) return -1;
    const int hidden = 3 - p.rank;
    const struct {
        const char *key;
        const int64_t *values;
    } lists[] = {{"in", p.in},         {"out", p.out},           {"kernel", p.kernel},
                 {"stride", p.stride}, {"dilation", p.dilation}, {"pad_lo", p.pad_lo},
                 {"pad_hi", p.pad_hi}};
    say(&t,
        "{\"text\": \"%s\", \"op\": \"%s\", \"pass\": \"%s\", \"device\": \"%s\", \"ordinal\": %d, \"math\": \"%s\", "
        "\"rank\": %d, \"groups\": %lld, \"n\": %lld, \"c\": %lld, \"o\": %lld, ",
        normal, weft__op_of(p.op)->name, weft__pass_names[p.pass], device_names[p.device], p.ordinal,
        weft__math_names[p.math], p.rank, (long long)p.groups, (long long)p.n, (long long)p.c, (long long)p.o);
    for (size_t i = 0; i < WEFT__COUNT(lists); i++) say_list(&t, lists[i].key, lists[i].values + hidden, p.rank);
    say_list(&t, "attr", p.attr, WEFT_MAX_ATTRS);
    SAY_EACH(&t, "real", WEFT_MAX_ATTRS, "\"%.17g\"", p.real[i]);
    say(&t, "\"flops\": %.17g, ", weft__op_of(p.op)->flops(&p));
#define STEP weft__step_names[p.step[i].kind], p.step[i].lo, p.step[i].hi
    SAY_EACH(&t, "steps", p.nsteps, "{\"kind\": \"%s\", \"lo\": \"%.17g\", \"hi\": \"%.17g\"}", STEP);
#undef STEP
    say(&t, "\"tensors\": {");
    for (int i = 0; i < p.ntensors; i++) {
        say(&t, i ? ", " : "");
        say_tensor(&t, &p, &p.tensor[i]);
    }
    say(&t, "}}");
    return (int64_t)t.length;
}

/* The machine as weft sees it; the length, or -1. */
WEFT_API int64_t weft_torch_describe(char *out, size_t capacity) {
    size_t length = 0;
    return weft_ctx_describe(wt_context(), out, capacity, &length) == WEFT_OK ? (int64_t)length : -1;
}

/* weft_version and weft_last_error are found in this library by their own names. */
WEFT_API const char *weft_torch_version(void) { return weft_version(); }
WEFT_API const char *weft_torch_error(void) { return weft_last_error(); }

/* The name of kernel i of all of weft's; NULL: there are fewer. */
WEFT_API const char *weft_torch_kernel_name(size_t i) {
    weft_kernel_desc d = WEFT_KERNEL_DESC_INIT;
    return i < weft_kernel_count(wt_context(), NULL) && weft_kernel_info(wt_context(), NULL, i, &d) == WEFT_OK ? d.name
                                                                                                               : NULL;
}

/* load, save (with a path), forget or count. report: entries, bad lines, entries of other machines. NULL, or what
 * went wrong. */
WEFT_API const char *weft_torch_wisdom(const char *action, const char *path, int64_t report[3]) {
    weft_wisdom_report r = WEFT_WISDOM_REPORT_INIT;
    weft_ctx *ctx = wt_context();
    weft_status s = WEFT_OK;
    if (!strcmp(action, "load"))
        s = weft_wisdom_load(ctx, path, &r);
    else if (!strcmp(action, "save"))
        s = weft_wisdom_save(ctx, path, &r);
    else if (!strcmp(action, "forget"))
        s = weft_wisdom_forget(ctx, NULL);
    else
        r.entries = (int64_t)weft_wisdom_count(ctx);
    wt_seat_forget(); /* calls that were decided by other wisdom */
    report[0] = r.entries, report[1] = r.bad_lines, report[2] = r.other_machines;
    return s == WEFT_OK ? NULL : weft_last_error();
}
