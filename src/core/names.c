/* The words of the problem language, each defined once: texts, sizes, and the search for a word. */
#include <string.h>

#include "core/internal.h"

#define TEXT2(NAME, text) #text,
#define TEXT3(NAME, text, bytes) #text,
#define BYTES3(NAME, text, bytes) bytes,
const char *const weft__dtype_names[WEFT_DTYPE_COUNT] = {"none", WEFT_DTYPE_LIST(TEXT3)};

static const size_t dtype_sizes[WEFT_DTYPE_COUNT] = {0, WEFT_DTYPE_LIST(BYTES3)};

const char *const weft__role_names[WEFT_ROLE_COUNT] = {WEFT_ROLE_LIST(TEXT2)};

const char *const weft__pass_names[WEFT_PASS_COUNT] = {"none", WEFT_PASS_LIST(TEXT2)};

const char *const weft__math_names[4] = {"none", "fast", "strict", "tf32"};
const char *const weft__step_names[WEFT__STEPS] = {"none", "bias", "relu", "clip", "acc", "silu"};
#define ISA_TEXT(arg, ID, name, ...) #name,
const char *const weft__isa_names[WEFT__ISA_COUNT] = {WEFT__ISA_LIST(ISA_TEXT, )};
#define FEATURE_TEXT(ID, name, supported) #name,
const char *const weft__feature_names[WEFT__FEATURE_COUNT + 1] = {WEFT__FEATURE_LIST(FEATURE_TEXT) NULL};

#define NAME_OF(names, i) ((unsigned)(i) < WEFT__COUNT(names) ? names[i] : "?")
const char *weft__dtype_name(int dtype) { return NAME_OF(weft__dtype_names, dtype); }
const char *weft__role_name(int role) { return NAME_OF(weft__role_names, role); }
const char *weft__pass_name(int pass) { return NAME_OF(weft__pass_names, pass); }
const char *weft__math_name(int math) { return NAME_OF(weft__math_names, math); }

size_t weft__dtype_size(int dtype) { return (unsigned)dtype < WEFT_DTYPE_COUNT ? dtype_sizes[dtype] : 0; }

int weft__word(const char *const *names, int count, const char *text, size_t n) {
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == n && memcmp(names[i], text, n) == 0) return i;
    return -1;
}

/* ---------------------------------------------------------------- operators */
#define X(NAME, name) extern const weft__op weft__op_##name;
WEFT_OP_LIST(X)
#undef X

static const weft__op *const ops[WEFT_OP_COUNT] = {NULL,
#define X(NAME, name) &weft__op_##name,
                                                   WEFT_OP_LIST(X)
#undef X
};

const weft__op *weft__op_of(int op) { return (unsigned)op < WEFT_OP_COUNT ? ops[op] : NULL; }

const weft__pass_def *weft__pass_of(const weft_problem *p) {
    const weft__op *op = weft__op_of(p->op);
    for (size_t i = 0; op && i < op->npasses; i++)
        if (op->passes[i].pass == p->pass) return &op->passes[i];
    return NULL;
}

bool weft__has_step(const weft_problem *p, int kind) {
    for (int i = 0; i < p->nsteps && i < WEFT_MAX_STEPS; i++)
        if (p->step[i].kind == kind) return true;
    return false;
}

uint64_t weft__roles(const weft_problem *p) {
    const weft__pass_def *pass = weft__pass_of(p);
    if (!pass) return 0;
    uint64_t roles = pass->reads | pass->writes;
    if (!weft__has_step(p, WEFT_STEP_BIAS)) roles &= ~pass->biased;
    const weft__op *op = weft__op_of(p->op);
    return op->absent ? roles & ~op->absent(p) : roles;
}

bool weft__is_output(const weft_problem *p, int role) {
    const weft__pass_def *pass = weft__pass_of(p);
    const weft__op *op = weft__op_of(p->op);
    return pass && (pass->writes & WEFT__BIT(role)) && !(op->kept && (op->kept(p) & WEFT__BIT(role)));
}

bool weft__is_input(const weft_problem *p, int role) {
    const weft__pass_def *pass = weft__pass_of(p);
    bool old = false;
    for (int i = 0; i < p->nsteps && i < WEFT_MAX_STEPS; i++)
        old |= p->step[i].kind == WEFT_STEP_ACC && p->step[i].beta != 0;
    return pass && ((pass->reads | (old ? pass->writes : 0)) & WEFT__BIT(role));
}
