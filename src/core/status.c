/* Errors are values: a status to branch on, and a text per thread for the person who must fix it. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/internal.h"

static _Thread_local char last_error[WEFT_TEXT_MAX * 2];

static const struct {
    const char *name, *text;
} statuses[] = {{"OK", "success"},
#define X(name, text) {#name, text},
                WEFT_ERR_LIST(X)
#undef X
};

const char *weft_version(void) { return WEFT_VERSION; }

const char *weft_status_name(weft_status s) {
    return (unsigned)s < WEFT__COUNT(statuses) ? statuses[s].name : "UNKNOWN";
}

const char *weft_status_text(weft_status s) {
    return (unsigned)s < WEFT__COUNT(statuses) ? statuses[s].text : "not a status of this library";
}

const char *weft_last_error(void) { return last_error; }

weft_status weft__fail(weft_status s, const char *format, ...) {
    char text[sizeof(last_error)]; /* an argument may be the last error itself */
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(last_error, sizeof(last_error), "%s", text);
    return s;
}

bool weft__has_size(const void *given, size_t least) {
    const size_t size = *(const size_t *)given;
    return size >= least && size <= WEFT__MOST;
}

bool weft__adopt(void *to, size_t known, const void *from, size_t least) {
    size_t given = *(const size_t *)from;
    if (given < least || given > WEFT__MOST) return false;
    for (size_t i = known; i < given; i++)
        if (((const char *)from)[i]) return false;
    memset(to, 0, known);
    memcpy(to, from, WEFT__MIN(given, known));
    *(size_t *)to = known;
    return true;
}

void weft__return(void *to, const void *from, size_t known) {
    size_t given = *(const size_t *)to;
    memcpy(to, from, WEFT__MIN(given, known));
    if (given > known) memset((char *)to + known, 0, given - known);
    *(size_t *)to = given;
}

void weft__put(weft__text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    size_t room = t->length < t->capacity ? t->capacity - t->length : 0;
    int n = vsnprintf(room ? t->at + t->length : NULL, room, format, args);
    va_end(args);
    if (n > 0) t->length += (size_t)n;
}
