/* What Python asks by ctypes: a problem text explained, the machine described. Python parses no problem text of its own. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "binding.h"

typedef struct text { char *at; size_t capacity, length; } text;

static void say(text *t, const char *format, ...) WT_PRINTF(2, 3);
static void say(text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    bool room = t->length < t->capacity;
    int n = vsnprintf(room ? t->at + t->length : NULL, room ? t->capacity - t->length : 0, format, args);
    va_end(args);
    if (n > 0) t->length += (size_t)n;
}

static void say_list(text *t, const char *key, const int64_t *values, int count) {
    say(t, "\"%s\": [", key);
    for (int i = 0; i < count; i++) say(t, i ? ", %lld" : "%lld", (long long)values[i]);
    say(t, "], ");
}

static const char *const pass_names[] = {"none",
#define X(NAME, name) #name,
    WEFT_PASS_LIST(X)
#undef X
};
static const char *const role_names[] = {
#define X(NAME, name) #name,
    WEFT_ROLE_LIST(X)
#undef X
};
static const char *const dtype_names[] = {"none",
#define X(NAME, name, bytes) #name,
    WEFT_DTYPE_LIST(X)
#undef X
};
static const char *const layout_names[] = {"none", "first", "last", "strided"};
static const char *const step_names[] = {"none", "bias", "relu", "clip"};
static const char *const device_names[] = {"none", "cpu", "cuda"};
static const char *const math_names[] = {"none", "fast", "strict", "tf32"};

static void say_tensor(text *t, const weft_problem *p, const weft_tensor *x) {
    int64_t dims[WEFT_MAX_RANK], strides[WEFT_MAX_RANK];
    int n = 0;
    for (int a = 0; a < x->rank; a++) {
        if (x->rank == 5 && a >= 2 && a < 5 - p->rank) continue;   /* axes that the user does not see */
        dims[n] = x->dims[a];
        strides[n++] = x->strides[a];
    }
    say(t, "\"%s\": {", role_names[x->role]);
    say_list(t, "dims", dims, n);
    say_list(t, "strides", strides, n);
    say(t, "\"dtype\": \"%s\", \"layout\": \"%s\", \"align\": %d}", dtype_names[x->dtype], layout_names[x->layout], x->align);
}

/* The problem as JSON: its normal text, every attribute and every tensor, and the flops of the direct sum. Returns the length, or -1: see
 * weft_last_error. Axes are those the user sees. */
WEFT_API int64_t weft_torch_problem(const char *problem, char *json, size_t capacity) {
    weft_problem p;
    char normal[WEFT_TEXT_MAX];
    text t = {json, capacity, 0};
    if (weft_problem_parse(&p, problem) != WEFT_OK || weft_problem_format(&p, normal, sizeof(normal), NULL) != WEFT_OK) return -1;
    int hidden = 3 - p.rank;
    say(&t, "{\"text\": \"%s\", \"pass\": \"%s\", \"device\": \"%s\", \"ordinal\": %d, \"math\": \"%s\", \"rank\": %d, \"groups\": %lld, ", normal,
        pass_names[p.pass], device_names[p.device], p.ordinal, math_names[p.math], p.rank, (long long)p.groups);
    say(&t, "\"n\": %lld, \"c\": %lld, \"o\": %lld, ", (long long)p.n, (long long)p.c, (long long)p.o);
    say_list(&t, "in", p.in + hidden, p.rank);
    say_list(&t, "out", p.out + hidden, p.rank);
    say_list(&t, "kernel", p.kernel + hidden, p.rank);
    say_list(&t, "stride", p.stride + hidden, p.rank);
    say_list(&t, "dilation", p.dilation + hidden, p.rank);
    say_list(&t, "pad_lo", p.pad_lo + hidden, p.rank);
    say_list(&t, "pad_hi", p.pad_hi + hidden, p.rank);
    say(&t, "\"steps\": [");
    for (int i = 0; i < p.nsteps; i++)
        say(&t, "%s{\"kind\": \"%s\", \"lo\": %.17g, \"hi\": %.17g}", i ? ", " : "", step_names[p.step[i].kind], p.step[i].lo, p.step[i].hi);
    say(&t, "], \"tensors\": {");
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
