/* The test framework: one program is one file.
 *   TEST(name) { CHECK(x == 1, "x is %d", x); }
 * Each test prints "ok NAME", "FAIL NAME: why" or "skip NAME: why"; the program ends with "N passed, N failed, N
 * skipped" and exit status 1 if any failed. An argument runs only the tests whose names contain it. */
#ifndef WEFT_TEST_H
#define WEFT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

typedef struct test_case {
    const char *name;
    void (*run)(void);
    struct test_case *next;
} test_case;

static test_case *test_list, **test_end = &test_list;
static jmp_buf test_leave;
static enum { TEST_OK, TEST_FAIL, TEST_SKIP } test_result;
static char test_why[4096];

#define TEST(NAME)                                                   \
    static void case_##NAME(void);                                   \
    __attribute__((constructor)) static void case_add_##NAME(void) { \
        static test_case self = {#NAME, case_##NAME, NULL};          \
        *test_end = &self;                                           \
        test_end = &self.next;                                       \
    }                                                                \
    static void case_##NAME(void)

/* Ends the running test; from the thread that runs it only. */
WEFT__PRINTF(2, 3) __attribute__((noreturn, unused)) static void test_stop(int result, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(test_why, sizeof(test_why), format, args);
    va_end(args);
    test_result = result;
    longjmp(test_leave, 1);
}

WEFT__PRINTF(3, 4)
__attribute__((noreturn, unused)) static void test_failed(int line, const char *condition, const char *format, ...) {
    char text[sizeof(test_why) / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    test_stop(TEST_FAIL, "line %d: not %s: %s", line, condition, text);
}

#define CHECK(condition, ...)                                             \
    do {                                                                  \
        if (!(condition)) test_failed(__LINE__, #condition, __VA_ARGS__); \
    } while (0)
#define SKIP(...) test_stop(TEST_SKIP, __VA_ARGS__)

/* A weft call that must succeed. */
#define OK(call)                                                                                      \
    do {                                                                                              \
        weft_status ok_status = (call);                                                               \
        if (ok_status != WEFT_OK)                                                                     \
            test_stop(TEST_FAIL, "line %d: %s: %s: %s", __LINE__, #call, weft_status_name(ok_status), \
                      weft_last_error());                                                             \
    } while (0)

/* A weft call that must fail with a status, and with a text that contains each of the words separated by '|'. */
#define FAILS(call, status, words) test_fails((call), (status), (words), #call, __LINE__)
__attribute__((unused)) static void test_fails(weft_status got, weft_status want, const char *words, const char *call,
                                               int line) {
    if (got != want)
        test_stop(TEST_FAIL, "line %d: %s gave %s, wanted %s (%s)", line, call, weft_status_name(got),
                  weft_status_name(want), weft_last_error());
    for (const char *at = words; *at;) {
        char word[256];
        size_t n = strcspn(at, "|");
        snprintf(word, sizeof(word), "%.*s", (int)n, at);
        if (!strstr(weft_last_error(), word))
            test_stop(TEST_FAIL, "line %d: %s: the error is \"%s\", without \"%s\"", line, call, weft_last_error(),
                      word);
        at += n + (at[n] == '|');
    }
}

__attribute__((unused)) static weft_problem test_problem(const char *text) {
    weft_problem p = WEFT_PROBLEM_INIT;
    weft_status s = weft_problem_parse(&p, text);
    if (s != WEFT_OK) test_stop(TEST_FAIL, "'%s': %s", text, weft_last_error());
    return p;
}

/* The list of cases that every kernel is held to: tests/cases.txt. The caller frees it. */
__attribute__((unused)) static weft_problem *test_cases(size_t *count) {
    weft_problem *cases = NULL;
    FILE *f = fopen(WEFT_CASES, "r");
    char line[WEFT_TEXT_MAX];
    CHECK(f, "%s cannot be read", WEFT_CASES);
    for (*count = 0; fgets(line, sizeof(line), f);) {
        line[strcspn(line, "#\r\n")] = 0;
        if (!line[0]) continue;
        weft_problem *grown = realloc(cases, (*count + 1) * sizeof(*cases));
        CHECK(grown, "no memory");
        cases = grown;
        cases[(*count)++] = test_problem(line);
    }
    fclose(f);
    return cases;
}

/* This machine runs kernel i of the list, and no build of the same design for a higher ISA. */
__attribute__((unused)) static bool test_is_best(const weft__hw *hw, const weft__kernel *const *list, size_t count,
                                                 size_t i) {
    const size_t design = (size_t)(strstr(list[i]->name, "__") - list[i]->name) + 2;
    for (size_t k = 0; k < count; k++)
        if (list[k]->isa > list[i]->isa && weft__hw_runs(hw, list[k]->isa) &&
            strncmp(list[k]->name, list[i]->name, design) == 0)
            return false;
    return weft__hw_runs(hw, list[i]->isa);
}

__attribute__((unused)) static weft_ctx *test_context(int threads) {
    weft_ctx_opts opts = WEFT_CTX_OPTS_INIT;
    weft_ctx *ctx = NULL;
    opts.threads = threads;
    opts.cache_dir = "";
    weft_status s = weft_ctx_create(&ctx, &opts);
    if (s != WEFT_OK) test_stop(TEST_FAIL, "context: %s", weft_last_error());
    return ctx;
}

/* Everything in full was asked for: make slow. */
__attribute__((unused)) static bool test_slow(void) {
    const char *v = getenv("WEFT_SLOW");
    return v && *v && strcmp(v, "0") != 0;
}

__attribute__((unused)) static bool test_sanitized(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    return false;
#endif
}

int main(int argc, char **argv) {
    static int counts[3];
    harness_catch_faults();
    setenv("WEFT_RATES", "nominal", 0); /* choices in tests do not depend on the clock */
    for (test_case *t = test_list; t; t = t->next) {
        if (argc > 1 && !strstr(t->name, argv[1])) continue;
        test_result = TEST_OK;
        if (setjmp(test_leave) == 0) t->run();
        counts[test_result]++;
        static const char *const words[] = {"ok", "FAIL", "skip"};
        printf("%s %s%s%s\n", words[test_result], t->name, test_result == TEST_OK ? "" : ": ",
               test_result == TEST_OK ? "" : test_why);
        fflush(stdout);
    }
    printf("%d passed, %d failed, %d skipped\n", counts[TEST_OK], counts[TEST_FAIL], counts[TEST_SKIP]);
    return counts[TEST_FAIL] ? 1 : 0;
}

#endif
