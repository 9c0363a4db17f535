/* Wisdom: what was measured, as text. A line:
 *   device weft-version tTHREADS problem kernel vVERSION ns workspace
 * Lines of other machines, thread counts, kernel versions and other versions of weft are kept and written back, just
 * not used. What was forgotten stays forgotten when the next save merges with the file: a dead line, never written,
 * marks it. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/internal.h"

enum { DEVICE, VERSION, THREADS, PROBLEM, KERNEL, KERNEL_VERSION, NS, WORKSPACE, FIELDS };

typedef struct line {
    struct line *next;         /* in its bucket: same hash of the problem */
    const char *field[FIELDS]; /* into text */
    double ns;
    size_t workspace;
    int threads, version;
    bool dead;
    char text[];
} line;

#define BUCKETS 1024
struct weft__wisdom {
    pthread_mutex_t lock;
    size_t count; /* without the dead */
    bool forgot_all;
    line *bucket[BUCKETS];
};

weft__wisdom *weft__wisdom_create(const weft_ctx *ctx) {
    weft__wisdom *w = weft__alloc(ctx, sizeof(*w));
    if (w) pthread_mutex_init(&w->lock, NULL);
    return w;
}

pthread_mutex_t *weft__wisdom_lock(weft__wisdom *w) { return &w->lock; }

/* Remove the lines of a problem (NULL: of all); with only_dead, just the marks of what was forgotten. */
static void clear(const weft_ctx *ctx, weft__wisdom *w, const char *problem, bool only_dead) {
    for (int i = 0; i < BUCKETS; i++)
        for (line **at = &w->bucket[i]; *at;) {
            line *l = *at;
            if ((only_dead && !l->dead) || (problem && strcmp(l->field[PROBLEM], problem))) {
                at = &l->next;
                continue;
            }
            *at = l->next;
            w->count -= !l->dead;
            weft__free(ctx, l);
        }
}

void weft__wisdom_destroy(const weft_ctx *ctx, weft__wisdom *w) {
    if (!w) return;
    clear(ctx, w, NULL, false);
    pthread_mutex_destroy(&w->lock);
    weft__free(ctx, w);
}

static size_t bucket_of(const char *problem) {
    uint64_t h = 14695981039346656037u;
    for (; *problem; problem++) h = (h ^ (unsigned char)*problem) * 1099511628211u;
    return (size_t)(h % BUCKETS);
}

/* ---------------------------------------------------------------- lines */
static bool whole_number(const char *text, char prefix, int *v) {
    char *end;
    if (prefix && *text++ != prefix) return false;
    long n = strtol(text, &end, 10);
    *v = (int)n;
    return *text && !*end && n >= 0 && n <= 1 << 20;
}

/* Cut the text into fields and check each; false: a bad line. */
static bool read_fields(line *l) {
    char *at = l->text;
    for (int i = 0; i < FIELDS; i++) {
        at += strspn(at, " \t");
        if (!*at) return false;
        l->field[i] = at;
        at += strcspn(at, " \t");
        if (*at) *at++ = 0;
    }
    if (at[strspn(at, " \t")]) return false;
    char *end;
    unsigned long long ns = strtoull(l->field[NS], &end, 10);
    if (*end || ns == 0 || l->field[NS][0] == '-') return false;
    unsigned long long workspace = strtoull(l->field[WORKSPACE], &end, 10);
    if (*end || l->field[WORKSPACE][0] == '-') return false;
    l->ns = (double)ns;
    l->workspace = (size_t)workspace;
    weft_problem p;
    char normal[WEFT_TEXT_MAX];
    if (!whole_number(l->field[THREADS], 't', &l->threads) || !whole_number(l->field[KERNEL_VERSION], 'v', &l->version))
        return false;
    /* another weft may know problems that this one does not */
    if (strcmp(l->field[VERSION], WEFT_VERSION)) return true;
    return weft_problem_parse(&p, l->field[PROBLEM]) == WEFT_OK &&
           weft_problem_format(&p, normal, sizeof(normal), NULL) == WEFT_OK && strcmp(normal, l->field[PROBLEM]) == 0;
}

static bool same_entry(const line *a, const line *b) {
    static const int key[] = {PROBLEM, DEVICE, VERSION, THREADS, KERNEL};
    for (size_t i = 0; i < WEFT__COUNT(key); i++)
        if (strcmp(a->field[key[i]], b->field[key[i]])) return false;
    return true;
}

/* Takes l over. A newer entry replaces the older, unless `keep`: then what is there, or was forgotten, stays so. */
static void insert(const weft_ctx *ctx, weft__wisdom *w, line *l, bool keep) {
    line **at = &w->bucket[bucket_of(l->field[PROBLEM])];
    bool drop = keep && w->forgot_all;
    for (line *old; (old = *at);) {
        bool forgotten = old->dead && strcmp(old->field[PROBLEM], l->field[PROBLEM]) == 0;
        bool same = !old->dead && same_entry(old, l);
        drop = drop || (keep && (forgotten || same));
        if (!same || keep) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        weft__free(ctx, old);
        w->count--;
    }
    if (drop) {
        weft__free(ctx, l);
        return;
    }
    *at = l;
    l->next = NULL;
    w->count++;
}

static weft_status add_text(const weft_ctx *ctx, weft__wisdom *w, const char *text, size_t n, bool keep, bool *good) {
    line *l = weft__alloc(ctx, sizeof(*l) + n + 1);
    if (!l) return weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom");
    memcpy(l->text, text, n);
    *good = !memchr(text, 0, n) && read_fields(l);
    if (*good)
        insert(ctx, w, l, keep);
    else
        weft__free(ctx, l);
    return WEFT_OK;
}

/* Lines end with newline; empty ones and those from # on are comments. Called with the lock held. */
static weft_status add_lines(const weft_ctx *ctx, weft__wisdom *w, const char *text, size_t length, bool keep,
                             int64_t *bad) {
    for (size_t i = 0; i < length;) {
        const char *end = memchr(text + i, '\n', length - i);
        size_t n = end ? (size_t)(end - (text + i)) : length - i, skip = n + 1;
        const char *start = text + i;
        while (n && (start[n - 1] == '\r' || start[n - 1] == ' ')) n--;
        bool good = true;
        if (n && *start != '#') WEFT__TRY(add_text(ctx, w, start, n, keep, &good));
        *bad += !good;
        i += skip;
    }
    return WEFT_OK;
}

/* ---------------------------------------------------------------- use */
const weft__kernel *weft__wisdom_find(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, uint32_t engines,
                                      size_t limit, double *ns) {
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    char text[WEFT_TEXT_MAX], device[160];
    const weft__kernel *best = NULL, *k;
    pthread_mutex_lock(&w->lock);
    size_t total = w->count;
    pthread_mutex_unlock(&w->lock);
    if (!total || weft_problem_format(p, text, sizeof(text), NULL) != WEFT_OK) return NULL;
    weft__device_name(hw, p->device, device, sizeof(device));
    *ns = HUGE_VAL;
    pthread_mutex_lock(&w->lock);
    for (line *l = w->bucket[bucket_of(text)]; l; l = l->next) {
        if (l->dead || strcmp(l->field[PROBLEM], text) || strcmp(l->field[VERSION], WEFT_VERSION) ||
            strcmp(l->field[DEVICE], device) || l->threads != hw->threads)
            continue;
        if (l->workspace > limit || l->ns >= *ns) continue;
        for (size_t i = 0; (k = weft__kernel_at(ctx, p->op, i)); i++)
            if (strcmp(k->name, l->field[KERNEL]) == 0 && k->version == l->version && (engines & k->engine) &&
                !weft__kernel_refusal(ctx, k, p, hw)) {
                best = k;
                *ns = l->ns;
            }
    }
    pthread_mutex_unlock(&w->lock);
    return best;
}

weft_status weft__wisdom_add(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__kernel *k, double ns,
                             size_t workspace) {
    char problem[WEFT_TEXT_MAX], device[160], text[WEFT_TEXT_MAX + 400];
    WEFT__TRY(weft_problem_format(p, problem, sizeof(problem), NULL));
    weft__device_name(hw, p->device, device, sizeof(device));
    int n = snprintf(text, sizeof(text), "%s %s t%d %s %s v%d %.0f %zu", device, WEFT_VERSION, hw->threads, problem,
                     k->name, k->version, fmax(ns, 1), workspace);
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    bool good;
    pthread_mutex_lock(&w->lock);
    weft_status s = add_text(ctx, w, text, (size_t)n, false, &good);
    pthread_mutex_unlock(&w->lock);
    return s != WEFT_OK || good
               ? s
               : weft__fail(WEFT_ERR_INTERNAL, "wisdom: a line of its own making does not parse: %s", text);
}

/* ---------------------------------------------------------------- files */
static weft_status read_file(const weft_ctx *ctx, const char *path, bool may_miss, char **text, size_t *length) {
    *text = NULL;
    *length = 0;
    /* a pipe must not hold us up before we see that it is one */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    if (!f && may_miss && errno == ENOENT) return WEFT_OK;
    if (!f) return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be read: %s", path, strerror(errno));
    struct stat st;
    weft_status s = WEFT_OK;
    if (fstat(fileno(f), &st) != 0 || !S_ISREG(st.st_mode))
        s = weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be read: not a file", path);
    else if (!(*text = weft__alloc(ctx, (size_t)st.st_size + 1)))
        s = weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom '%s'", path);
    else if ((*length = fread(*text, 1, (size_t)st.st_size, f)) != (size_t)st.st_size)
        s = weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be read whole", path);
    fclose(f);
    return s;
}

static void report_on(weft_ctx *ctx, weft__wisdom *w, weft_wisdom_report *report, int64_t bad) {
    if (!report) return;
    char device[160];
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    weft__hw hw;
    weft__ctx_hw(ctx, &cpu, &hw);
    weft__device_name(&hw, WEFT_DEVICE_CPU, device, sizeof(device));
    weft_wisdom_report r = {sizeof(r), 0, bad, 0};
    for (int i = 0; i < BUCKETS; i++)
        for (line *l = w->bucket[i]; l; l = l->next) {
            if (l->dead) continue;
            bool here = strcmp(l->field[DEVICE], device) == 0 || strncmp(l->field[DEVICE], "cuda:", 5) == 0;
            r.entries += here;
            r.other_machines += !here;
        }
    weft__return(report, &r, sizeof(r));
}

static weft_status check_report(const weft_ctx *ctx, const char *path, const weft_wisdom_report *report) {
    if (!ctx) return weft__fail(WEFT_ERR_INVALID, "ctx is NULL, allowed: a context");
    if (!path) return weft__fail(WEFT_ERR_INVALID, "path is NULL, allowed: a file's name");
    if (report && report->size < WEFT__LEAST(weft_wisdom_report, other_machines))
        return weft__fail(WEFT_ERR_INVALID, "report.size is %zu, allowed: %zu (start from WEFT_WISDOM_REPORT_INIT)",
                          report->size, sizeof(*report));
    return WEFT_OK;
}

weft_status weft_wisdom_parse(weft_ctx *ctx, const char *text, size_t length, weft_wisdom_report *report) {
    WEFT__TRY(check_report(ctx, "", report));
    if (!text && length) return weft__fail(WEFT_ERR_INVALID, "text is NULL, allowed: %zu bytes", length);
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    int64_t bad = 0;
    pthread_mutex_lock(&w->lock);
    weft_status s = add_lines(ctx, w, text, length, false, &bad);
    report_on(ctx, w, report, bad);
    pthread_mutex_unlock(&w->lock);
    weft__cache_clear(ctx, weft__ctx_cache(ctx), NULL, 0);
    if (bad) weft__log(ctx, WEFT_LOG_ERROR, "wisdom: %lld bad lines skipped", (long long)bad);
    return s;
}

weft_status weft_wisdom_load(weft_ctx *ctx, const char *path, weft_wisdom_report *report) {
    WEFT__TRY(check_report(ctx, path, report));
    char *text;
    size_t length;
    weft_status s = read_file(ctx, path, false, &text, &length);
    if (s == WEFT_OK) s = weft_wisdom_parse(ctx, text, length, report);
    weft__free(ctx, text);
    return s;
}

static weft_status write_all(weft__wisdom *w, const char *path, const char *temp) {
    FILE *f = fopen(temp, "wb");
    if (!f) return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be written: %s", path, strerror(errno));
    fprintf(f, "# weft wisdom: device version threads problem kernel kernel-version ns workspace\n");
    for (int i = 0; i < BUCKETS; i++)
        for (line *l = w->bucket[i]; l; l = l->next)
            for (int k = 0; k < FIELDS && !l->dead; k++) fprintf(f, "%s%c", l->field[k], k + 1 < FIELDS ? ' ' : '\n');
    bool written = fflush(f) == 0 && !ferror(f) && fsync(fileno(f)) == 0;
    written = fclose(f) == 0 && written;
    if (written && rename(temp, path) == 0) return WEFT_OK;
    weft_status s = weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be written: %s", path, strerror(errno));
    remove(temp);
    return s;
}

/* Under the lock of <path>.lock: read what others saved, add ours over it, and replace the file in one step. */
weft_status weft_wisdom_save(weft_ctx *ctx, const char *path, weft_wisdom_report *report) {
    WEFT__TRY(check_report(ctx, path, report));
    char temp[4096], *text;
    size_t length;
    if (snprintf(temp, sizeof(temp), "%s.lock", path) >= (int)sizeof(temp) - 32)
        return weft__fail(WEFT_ERR_INVALID, "path has %zu characters, allowed: up to 4000", strlen(path));
    int lock = open(temp, O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (lock < 0) return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be locked: %s", path, strerror(errno));
    int locked;
    while ((locked = flock(lock, LOCK_EX)) != 0 && errno == EINTR) {}
    text = NULL;
    weft_status s = locked == 0 ? read_file(ctx, path, true, &text, &length)
                                : weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be locked: %s", path, strerror(errno));
    if (s == WEFT_OK) {
        weft__wisdom *w = weft__ctx_wisdom(ctx);
        int64_t bad = 0;
        snprintf(temp, sizeof(temp), "%s.%ld.tmp", path, (long)getpid());
        pthread_mutex_lock(&w->lock);
        s = add_lines(ctx, w, text, length, true, &bad);
        if (s == WEFT_OK) s = write_all(w, path, temp);
        if (s == WEFT_OK) { /* the file has forgotten too: from here on others' lines count again */
            w->forgot_all = false;
            clear(ctx, w, NULL, true);
        }
        report_on(ctx, w, report, bad);
        pthread_mutex_unlock(&w->lock);
    }
    weft__free(ctx, text);
    close(lock);
    return s;
}

weft_status weft_wisdom_forget(weft_ctx *ctx, const weft_problem *p) {
    if (!ctx) return weft__fail(WEFT_ERR_INVALID, "ctx is NULL, allowed: a context");
    char text[WEFT_TEXT_MAX];
    if (p) WEFT__TRY(weft_problem_format(p, text, sizeof(text), NULL));
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    line *mark = p ? weft__alloc(ctx, sizeof(*mark) + strlen(text) + 1) : NULL;
    if (p && !mark) return weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom");
    pthread_mutex_lock(&w->lock);
    clear(ctx, w, p ? text : NULL, false);
    if (mark) {
        strcpy(mark->text, text);
        mark->field[PROBLEM] = mark->text;
        mark->dead = true;
        mark->next = w->bucket[bucket_of(text)];
        w->bucket[bucket_of(text)] = mark;
    } else {
        w->forgot_all = true;
    }
    pthread_mutex_unlock(&w->lock);
    weft__cache_clear(ctx, weft__ctx_cache(ctx), NULL, 0);
    return WEFT_OK;
}

size_t weft_wisdom_count(const weft_ctx *ctx) {
    if (!ctx) return 0;
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    pthread_mutex_lock(&w->lock);
    size_t n = w->count;
    pthread_mutex_unlock(&w->lock);
    return n;
}
