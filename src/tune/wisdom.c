/* Wisdom: what was measured, as text. A line:
 *   device weft-version tTHREADS problem kernel vVERSION ns workspace
 * Lines of other machines, thread counts, kernel versions and other versions of weft are kept and written back, but
 * not used. An entry is found by its first five fields in a hash table, so reading n lines takes O(n). What was
 * forgotten stays forgotten when the next save merges with the file: a mark, never written, remembers it. */
#include "tune/wisdom.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct weft__wisdom {
    pthread_mutex_t lock;
    size_t entries, lines; /* lines: entries and marks */
    size_t buckets;        /* a power of two, at least `lines` */
    wisdom_line **bucket, *first, **end;
    uint64_t stamp, forgot_all; /* counts calls of forget; the one that forgot everything, 0: none */
};

weft__wisdom *weft__wisdom_create(const weft_ctx *ctx) {
    weft__wisdom *w = weft__alloc(ctx, sizeof(*w));
    if (!w) return NULL;
    pthread_mutex_init(&w->lock, NULL);
    w->end = &w->first;
    return w;
}

pthread_mutex_t *weft__wisdom_lock(weft__wisdom *w) { return &w->lock; }

static void free_list(const weft_ctx *ctx, wisdom_line *l) {
    for (wisdom_line *next; l; l = next) {
        next = l->later;
        weft__free(ctx, l);
    }
}

void weft__wisdom_destroy(const weft_ctx *ctx, weft__wisdom *w) {
    if (!w) return;
    free_list(ctx, w->first);
    pthread_mutex_destroy(&w->lock);
    weft__free(ctx, w->bucket);
    weft__free(ctx, w);
}

/* ---------------------------------------------------------------- the table */
static uint64_t hash_text(uint64_t h, const char *text) {
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return (h ^ 0xff) * 1099511628211u;
}

static uint64_t hash_entry(const wisdom_line *l) {
    uint64_t h = hash_text(hash_text(14695981039346656037u, l->problem), l->device);
    h = hash_text(hash_text(h, l->version), l->kernel) ^ (uint64_t)l->threads;
    return h * 0x9e3779b97f4a7c15u >> 16;
}

static bool same_entry(const wisdom_line *a, const wisdom_line *b) {
    return a->hash == b->hash && a->threads == b->threads && strcmp(a->problem, b->problem) == 0 &&
           strcmp(a->device, b->device) == 0 && strcmp(a->version, b->version) == 0 &&
           strcmp(a->kernel, b->kernel) == 0;
}

/* A mark is kept in the table as an entry of its problem whose other fields are empty. */
static wisdom_line mark_of(const char *problem) {
    wisdom_line l = {.problem = problem, .device = "", .version = "", .kernel = "", .forgotten = true};
    l.hash = hash_entry(&l);
    return l;
}

static wisdom_line *find(const weft__wisdom *w, const wisdom_line *key) {
    wisdom_line *l = w->buckets ? w->bucket[key->hash & (w->buckets - 1)] : NULL;
    while (l && !same_entry(l, key)) l = l->next;
    return l;
}

static void link_line(weft__wisdom *w, wisdom_line *l) {
    wisdom_line **bucket = &w->bucket[l->hash & (w->buckets - 1)];
    l->next = *bucket;
    *bucket = l;
}

static void append(weft__wisdom *w, wisdom_line *l) {
    link_line(w, l);
    l->later = NULL;
    *w->end = l;
    w->end = &l->later;
    w->lines++;
    w->entries += !l->forgotten;
}

/* Take out the lines that `drop` names; returns them as a list, to be freed without the lock. */
static wisdom_line *take_out(weft__wisdom *w, bool (*drop)(const wisdom_line *, const void *), const void *arg) {
    wisdom_line *out = NULL, *l = w->first;
    for (size_t i = 0; i < w->buckets; i++) w->bucket[i] = NULL;
    w->end = &w->first;
    w->first = NULL;
    w->lines = w->entries = 0;
    for (wisdom_line *later; l; l = later) {
        later = l->later;
        if (!drop(l, arg)) {
            append(w, l);
            continue;
        }
        l->later = out;
        out = l;
    }
    return out;
}

/* Lock with room for n more lines. Buckets are allocated without the lock, so others may have grown the table since:
 * look again. */
static weft_status lock_with_room(const weft_ctx *ctx, weft__wisdom *w, size_t n) {
    for (;;) {
        pthread_mutex_lock(&w->lock);
        size_t buckets = WEFT__MAX(w->buckets, 64), need = w->lines + n;
        if (need <= w->buckets) return WEFT_OK;
        pthread_mutex_unlock(&w->lock);
        while (buckets < need) buckets *= 2;
        wisdom_line **bucket = weft__alloc(ctx, buckets * sizeof(*bucket)), **old = bucket;
        if (!bucket) return weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom");
        pthread_mutex_lock(&w->lock);
        if (buckets > w->buckets) {
            old = w->bucket;
            w->bucket = bucket;
            w->buckets = buckets;
            for (wisdom_line *l = w->first; l; l = l->later) link_line(w, l);
        }
        pthread_mutex_unlock(&w->lock);
        weft__free(ctx, old);
    }
}

static bool was_forgotten(const weft__wisdom *w, const char *problem) {
    wisdom_line mark = mark_of(problem);
    return w->forgot_all || find(w, &mark);
}

weft_status weft__wisdom_merge(const weft_ctx *ctx, wisdom_lines *lines, bool keep) {
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    weft_status s = lock_with_room(ctx, w, lines->count);
    if (s != WEFT_OK) {
        weft__wisdom_free_lines(ctx, lines);
        return s;
    }
    wisdom_line *unused = NULL;
    for (wisdom_line *l = lines->first, *later; l; l = later) {
        wisdom_line *old = find(w, l);
        later = l->later;
        if (!old && !(keep && was_forgotten(w, l->problem))) {
            append(w, l);
            continue;
        }
        if (old && !keep) {
            old->kernel_version = l->kernel_version;
            old->ns = l->ns;
            old->workspace = l->workspace;
        }
        l->later = unused;
        unused = l;
    }
    pthread_mutex_unlock(&w->lock);
    free_list(ctx, unused);
    return WEFT_OK;
}

/* ---------------------------------------------------------------- lines */
static bool whole_number(const char *text, char prefix, uint64_t most, uint64_t *v) {
    char *end;
    if (prefix && *text++ != prefix) return false;
    if (*text < '0' || *text > '9') return false;
    *v = strtoull(text, &end, 10);
    return !*end && *v <= most;
}

/* Is it a problem in its normal form? In most files many lines in a row are of one problem: `good` is the last that was
 * found to be. */
static bool is_problem(const char *text, const char **good) {
    weft_problem p = WEFT_PROBLEM_INIT;
    char normal[WEFT_TEXT_MAX];
    if (*good && strcmp(*good, text) == 0) return true;
    if (weft_problem_parse(&p, text) != WEFT_OK || weft_problem_format(&p, normal, sizeof(normal), NULL) != WEFT_OK ||
        strcmp(normal, text))
        return false;
    *good = text;
    return true;
}

/* Cut the text into fields and check each; false: a bad line. */
static bool read_fields(wisdom_line *l, const char **good) {
    enum { DEVICE, VERSION, THREADS, PROBLEM, KERNEL, KERNEL_VERSION, NS, WORKSPACE, FIELDS };
    char *at = l->text, *field[FIELDS];
    for (int i = 0; i < FIELDS; i++) {
        at += strspn(at, " \t");
        if (!*at) return false;
        field[i] = at;
        at += strcspn(at, " \t");
        if (*at) *at++ = 0;
    }
    uint64_t threads, version;
    if (at[strspn(at, " \t")] || !whole_number(field[THREADS], 't', 1 << 20, &threads) ||
        !whole_number(field[KERNEL_VERSION], 'v', 1 << 20, &version) ||
        !whole_number(field[NS], 0, INT64_MAX, &l->ns) || !l->ns ||
        !whole_number(field[WORKSPACE], 0, INT64_MAX, &l->workspace))
        return false;
    l->device = field[DEVICE], l->version = field[VERSION], l->problem = field[PROBLEM], l->kernel = field[KERNEL];
    l->threads = (int)threads;
    l->kernel_version = (int)version;
    l->hash = hash_entry(l);
    /* another weft may know problems that this one does not */
    return strcmp(l->version, WEFT_VERSION) || is_problem(l->problem, good);
}

static weft_status read_line(const weft_ctx *ctx, const char *text, size_t n, const char **good, wisdom_lines *lines) {
    wisdom_line *l = weft__alloc(ctx, sizeof(*l) + n + 1);
    if (!l) return weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom");
    memcpy(l->text, text, n);
    if (memchr(text, 0, n) || !read_fields(l, good)) {
        lines->bad++;
        weft__free(ctx, l);
        return WEFT_OK;
    }
    *lines->end = l;
    lines->end = &l->later;
    lines->count++;
    return WEFT_OK;
}

/* Lines end with a newline; empty ones and those whose first character is # are comments. */
weft_status weft__wisdom_read_lines(const weft_ctx *ctx, const char *text, size_t length, wisdom_lines *lines) {
    const char *good = NULL;
    *lines = (wisdom_lines){0};
    lines->end = &lines->first;
    for (size_t i = 0, skip; i < length; i += skip) {
        const char *start = text + i, *end = memchr(start, '\n', length - i);
        size_t n = end ? (size_t)(end - start) : length - i;
        skip = n + 1;
        while (n && strchr(" \t\r", start[n - 1]) && start[n - 1]) n--;
        while (n && (*start == ' ' || *start == '\t')) start++, n--;
        weft_status s = n && *start != '#' ? read_line(ctx, start, n, &good, lines) : WEFT_OK;
        if (s == WEFT_OK) continue;
        weft__wisdom_free_lines(ctx, lines);
        return s;
    }
    return WEFT_OK;
}

void weft__wisdom_free_lines(const weft_ctx *ctx, wisdom_lines *lines) {
    free_list(ctx, lines->first);
    *lines = (wisdom_lines){0};
}

/* ---------------------------------------------------------------- use */
/* The line of one choice, if there is one: its time, else HUGE_VAL. The lock is held for the look-up alone: whether a
 * kernel applies is for the host's code to say where the kernel is the host's. */
static double known_ns(weft__wisdom *w, const char *problem, const char *device, int threads, const weft__choice *c) {
    char name[WEFT__NAME_MAX];
    weft__kernel_name(c->kernel, c->variant, name);
    wisdom_line key = {.problem = problem, .device = device, .version = WEFT_VERSION, .kernel = name};
    key.threads = threads;
    key.hash = hash_entry(&key);
    pthread_mutex_lock(&w->lock);
    const wisdom_line *l = find(w, &key);
    double ns = l && l->kernel_version == c->kernel->version ? (double)l->ns : HUGE_VAL;
    pthread_mutex_unlock(&w->lock);
    return ns;
}

bool weft__wisdom_find(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, uint32_t engines, size_t limit,
                       weft__choice *best) {
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    char text[WEFT_TEXT_MAX], device[160];
    weft__choice c = {.why = "wisdom"};
    double least = HUGE_VAL;
    if (!weft_wisdom_count(ctx) || weft_problem_format(p, text, sizeof(text), NULL) != WEFT_OK) return false;
    weft__device_name(hw, p->device, device, sizeof(device));
    for (size_t i = 0; (c.kernel = weft__kernel_at(ctx, p->op, i)); i++)
        for (c.variant = 0; c.variant < weft__kernel_variants(c.kernel); c.variant++) {
            if (!(engines & c.kernel->engine)) continue;
            const double ns = known_ns(w, text, device, hw->threads, &c);
            if (ns >= least || weft__kernel_plan(ctx, c.kernel, c.variant, p, hw, &c.d)) continue;
            if (weft__decision_bytes(&c.d) > limit && !c.kernel->reference) continue;
            c.d.ns = least = ns;
            *best = c;
        }
    return least < HUGE_VAL;
}

weft_status weft__wisdom_add(weft_ctx *ctx, const weft_problem *p, const weft__hw *hw, const weft__choice *c) {
    char problem[WEFT_TEXT_MAX], device[160], name[WEFT__NAME_MAX], text[WEFT_TEXT_MAX + 512];
    WEFT__TRY(weft_problem_format(p, problem, sizeof(problem), NULL));
    weft__device_name(hw, p->device, device, sizeof(device));
    weft__kernel_name(c->kernel, c->variant, name);
    int n = snprintf(text, sizeof(text), "%s %s t%d %s %s v%d %.0f %zu", device, WEFT_VERSION, hw->threads, problem,
                     name, c->kernel->version, fmin(fmax(c->d.ns, 1), 1e18), weft__decision_bytes(&c->d));
    wisdom_lines lines;
    weft_status s = weft__wisdom_read_lines(ctx, text, (size_t)n, &lines);
    if (s == WEFT_OK && lines.bad)
        s = weft__fail(WEFT_ERR_INTERNAL, "wisdom: a line of its own making does not parse: %s", text);
    if (s == WEFT_OK) s = weft__wisdom_merge(ctx, &lines, false);
    return s;
}

/* ---------------------------------------------------------------- public */
weft_status weft__wisdom_check(const weft_ctx *ctx, const char *path, const weft_wisdom_report *report) {
    WEFT__TRY(weft__check_ctx(ctx));
    if (!path) return weft__fail(WEFT_ERR_INVALID, "path is NULL, allowed: a file's name");
    if (report && !weft__has_size(report, WEFT__LEAST(weft_wisdom_report, other_machines)))
        return weft__fail(WEFT_ERR_INVALID, "report.size is %zu, allowed: %zu (start from WEFT_WISDOM_REPORT_INIT)",
                          report->size, sizeof(*report));
    return WEFT_OK;
}

void weft__wisdom_report(weft_ctx *ctx, weft_wisdom_report *report, int64_t bad) {
    if (!report) return;
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    char device[160];
    weft_problem cpu = {.device = WEFT_DEVICE_CPU};
    weft__hw hw;
    weft__ctx_hw(ctx, &cpu, &hw);
    weft__device_name(&hw, WEFT_DEVICE_CPU, device, sizeof(device));
    weft_wisdom_report r = {sizeof(r), 0, bad, 0};
    pthread_mutex_lock(&w->lock);
    for (const wisdom_line *l = w->first; l; l = l->later) {
        if (l->forgotten) continue;
        bool here = strcmp(l->device, device) == 0 || strncmp(l->device, "cuda:", 5) == 0;
        r.entries += here;
        r.other_machines += !here;
    }
    pthread_mutex_unlock(&w->lock);
    weft__return(report, &r, sizeof(r));
}

weft_status weft_wisdom_parse(weft_ctx *ctx, const char *text, size_t length, weft_wisdom_report *report) {
    WEFT__TRY(weft__wisdom_check(ctx, "", report));
    if (!text && length) return weft__fail(WEFT_ERR_INVALID, "text is NULL, allowed: %zu bytes", length);
    wisdom_lines lines;
    WEFT__TRY(weft__wisdom_read_lines(ctx, text, length, &lines));
    int64_t bad = lines.bad;
    WEFT__TRY(weft__wisdom_merge(ctx, &lines, false));
    weft__wisdom_report(ctx, report, bad);
    weft__cache_clear(ctx, weft__ctx_cache(ctx), NULL, 0);
    if (bad) weft__log(ctx, WEFT_LOG_ERROR, "wisdom: %lld bad lines skipped", (long long)bad);
    return WEFT_OK;
}

size_t weft__wisdom_print(const weft_ctx *ctx, char *text, size_t capacity, uint64_t *stamp) {
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    weft__text t = {text, capacity, 0};
    weft__put(&t, "%s: device version threads problem kernel kernel-version ns workspace\n", WISDOM_HEADER);
    pthread_mutex_lock(&w->lock);
    for (const wisdom_line *l = w->first; l; l = l->later)
        if (!l->forgotten)
            weft__put(&t, "%s %s t%d %s %s v%d %llu %llu\n", l->device, l->version, l->threads, l->problem, l->kernel,
                      l->kernel_version, (unsigned long long)l->ns, (unsigned long long)l->workspace);
    if (stamp) *stamp = w->stamp;
    pthread_mutex_unlock(&w->lock);
    return t.length;
}

weft_status weft_wisdom_format(const weft_ctx *ctx, char *text, size_t capacity, size_t *length) {
    WEFT__TRY(weft__check_ctx(ctx));
    if (!text && capacity)
        return weft__fail(WEFT_ERR_INVALID, "text is NULL, allowed: room for capacity (%zu) bytes", capacity);
    size_t n = weft__wisdom_print(ctx, text, capacity, NULL);
    if (length) *length = n;
    if (capacity && n >= capacity)
        return weft__fail(WEFT_ERR_INVALID, "capacity is %zu, allowed here: at least %zu", capacity, n + 1);
    return WEFT_OK;
}

static bool of_problem(const wisdom_line *l, const void *problem) {
    return !problem || strcmp(l->problem, problem) == 0;
}

weft_status weft_wisdom_forget(weft_ctx *ctx, const weft_problem *p) {
    WEFT__TRY(weft__check_ctx(ctx));
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    wisdom_line *mark = NULL;
    if (p) {
        char text[WEFT_TEXT_MAX];
        WEFT__TRY(weft_problem_format(p, text, sizeof(text), NULL));
        mark = weft__alloc(ctx, sizeof(*mark) + strlen(text) + 1);
        if (!mark) return weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom");
        *mark = mark_of(text);
        mark->problem = strcpy(mark->text, text);
    }
    weft_status s = lock_with_room(ctx, w, 1);
    if (s != WEFT_OK) {
        weft__free(ctx, mark);
        return s;
    }
    wisdom_line *out = take_out(w, of_problem, p ? mark->problem : NULL);
    w->stamp++;
    if (mark)
        mark->stamp = w->stamp, append(w, mark);
    else
        w->forgot_all = w->stamp;
    pthread_mutex_unlock(&w->lock);
    free_list(ctx, out);
    weft__cache_clear(ctx, weft__ctx_cache(ctx), NULL, 0);
    return WEFT_OK;
}

static bool old_mark(const wisdom_line *l, const void *stamp) {
    return l->forgotten && l->stamp <= *(const uint64_t *)stamp;
}

void weft__wisdom_drop_marks(const weft_ctx *ctx, uint64_t stamp) {
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    pthread_mutex_lock(&w->lock);
    if (w->forgot_all <= stamp) w->forgot_all = 0;
    wisdom_line *out = take_out(w, old_mark, &stamp);
    pthread_mutex_unlock(&w->lock);
    free_list(ctx, out);
}

size_t weft_wisdom_count(const weft_ctx *ctx) {
    if (!ctx) return 0;
    weft__wisdom *w = weft__ctx_wisdom(ctx);
    pthread_mutex_lock(&w->lock);
    size_t n = w->entries;
    pthread_mutex_unlock(&w->lock);
    return n;
}
