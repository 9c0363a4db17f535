/* Wisdom in memory and its text. The table is changed by merge alone: lines are read and allocated before its lock is
 * taken, and freed after it. No callback of the host runs under the lock. */
#ifndef WEFT_WISDOM_H
#define WEFT_WISDOM_H

#include "core/internal.h"

#define WISDOM_HEADER "# weft wisdom" /* how a wisdom file begins */

typedef struct wisdom_line {
    struct wisdom_line *next, *later; /* in its bucket; in the order they came */
    uint64_t hash, ns, workspace, stamp;
    const char *device, *version, *problem, *kernel; /* into text */
    int threads, kernel_version;
    bool forgotten; /* a mark: the file's entries of this problem are dropped by the next save */
    char text[];
} wisdom_line;

typedef struct wisdom_lines { /* read, not yet in the table */
    wisdom_line *first, **end;
    size_t count;
    int64_t bad;
} wisdom_lines;

weft_status weft__wisdom_read_lines(const weft_ctx *ctx, const char *text, size_t length, wisdom_lines *lines);
void weft__wisdom_free_lines(const weft_ctx *ctx, wisdom_lines *lines);
/* Takes the lines over, also when it fails. An entry replaces an older one; with `keep` the table's own entries and
 * what was forgotten stay as they are. */
weft_status weft__wisdom_merge(const weft_ctx *ctx, wisdom_lines *lines, bool keep);
/* All entries as text, one line each; *length is what it takes. The stamp tells later calls of forget apart. */
size_t weft__wisdom_print(const weft_ctx *ctx, char *text, size_t capacity, uint64_t *stamp);
/* The file has forgotten too what was forgotten up to the stamp. */
void weft__wisdom_drop_marks(const weft_ctx *ctx, uint64_t stamp);
weft_status weft__wisdom_check(const weft_ctx *ctx, const char *path, const weft_wisdom_report *report);
void weft__wisdom_report(weft_ctx *ctx, weft_wisdom_report *report, int64_t bad);

#endif
