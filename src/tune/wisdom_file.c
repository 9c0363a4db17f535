/* Wisdom files. Many processes may share one: a saver holds <file>.lock while it reads the file, merges it with what it
 * knows and replaces it by rename. The lock is a flock, which belongs to the open file: a child of fork shares it,
 * so it is released by name and not by closing. A new file is written beside the old one under a name nobody can
 * guess, with the mode and owner of the old one; a symbolic link stays a link, its target is replaced. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "tune/wisdom.h"

#define PATH_MOST 4096
#define TEMP_ENDING ".weft-tmp" /* <file>.<16 hexadecimal digits>.weft-tmp */
enum { TEMP_DIGITS = 16 };

/* ---------------------------------------------------------------- reading */
static weft_status read_file(const weft_ctx *ctx, const char *path, bool may_miss, char **text, size_t *length,
                             struct stat *st) {
    *text = NULL;
    *length = 0;
    st->st_mode = 0;
    /* a pipe must not hold us up before we see that it is one */
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
    if (!f && may_miss && errno == ENOENT) return WEFT_OK;
    if (!f) return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be read: %s", path, strerror(errno));
    weft_status s = WEFT_OK;
    if (fstat(fd, st) != 0 || !S_ISREG(st->st_mode))
        s = weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be read: not a file", path);
    else if (!(*text = weft__alloc(ctx, (size_t)st->st_size + 1)))
        s = weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom '%s'", path);
    else if ((*length = fread(*text, 1, (size_t)st->st_size, f)) != (size_t)st->st_size)
        s = weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be read whole", path);
    fclose(f);
    return s;
}

weft_status weft_wisdom_load(weft_ctx *ctx, const char *path, weft_wisdom_report *report) {
    WEFT__TRY(weft__wisdom_check(ctx, path, report));
    char *text;
    size_t length;
    struct stat st;
    weft_status s = read_file(ctx, path, false, &text, &length, &st);
    if (s == WEFT_OK) s = weft_wisdom_parse(ctx, text, length, report);
    weft__free(ctx, text);
    return s;
}

/* ---------------------------------------------------------------- names */
static weft_status too_long(const char *path) {
    return weft__fail(WEFT_ERR_INVALID, "path has %zu characters, allowed: up to 4000", strlen(path));
}

/* The file itself behind symbolic links; it need not exist yet. */
static weft_status resolve(const char *path, char file[PATH_MOST]) {
    if (strlen(path) > 4000) return too_long(path);
    strcpy(file, path);
    for (int links = 0; links < 40; links++) {
        char target[PATH_MOST];
        ssize_t n = readlink(file, target, sizeof(target) - 1);
        if (n < 0) return WEFT_OK; /* not a link; what else is wrong shows when it is opened */
        target[n] = 0;
        char *slash = strrchr(file, '/');
        size_t folder = target[0] == '/' || !slash ? 0 : (size_t)(slash - file) + 1;
        if (folder + (size_t)n > 4000) return too_long(path);
        memmove(file + folder, target, (size_t)n + 1);
    }
    return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be written: too many symbolic links", path);
}

static bool is_temporary(const char *name, const char *base) {
    size_t n = strlen(base);
    if (strncmp(name, base, n) || name[n] != '.') return false;
    name += n + 1;
    return strspn(name, "0123456789abcdef") == TEMP_DIGITS && strcmp(name + TEMP_DIGITS, TEMP_ENDING) == 0;
}

/* Temporary files exist only under the lock, so those seen by its holder are of savers that were killed. */
static void remove_stale(const char *file) {
    char folder[PATH_MOST];
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - file) + 1 : 1, slash ? file : ".");
    DIR *d = opendir(folder);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));)
        if (is_temporary(e->d_name, base)) unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
}

/* ---------------------------------------------------------------- the lock */
static int open_lock(const char *file) {
    char name[PATH_MOST];
    snprintf(name, sizeof(name), "%s.lock", file);
    int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, fd = open(name, flags);
    return fd < 0 && errno == ENOENT ? open(name, flags | O_CREAT, 0666) : fd;
}

static weft_status lock_file(const weft_ctx *ctx, const char *file, int *lock) {
    double seconds = weft__opts(ctx)->lock_seconds;
    uint64_t start = weft__now_ns();
    *lock = open_lock(file);
    if (*lock < 0) return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be locked: %s", file, strerror(errno));
    for (long wait_ms = 1; flock(*lock, LOCK_EX | LOCK_NB) != 0; wait_ms = WEFT__MIN(2 * wait_ms, 50)) {
        int error = errno;
        bool late = (double)(weft__now_ns() - start) * 1e-9 >= seconds;
        if ((error == EWOULDBLOCK && !late) || error == EINTR) {
            nanosleep(&(struct timespec){0, wait_ms * 1000000}, NULL);
            continue;
        }
        close(*lock);
        if (error == EWOULDBLOCK)
            return weft__fail(WEFT_ERR_IO, "wisdom '%s' has been locked by another process for %g s (lock_seconds)",
                              file, seconds);
        return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be locked: %s", file, strerror(error));
    }
    return WEFT_OK;
}

static void unlock_file(int lock) {
    flock(lock, LOCK_UN);
    close(lock);
}

/* ---------------------------------------------------------------- writing */
static int open_temporary(const char *file, mode_t mode, char name[PATH_MOST]) {
    for (int attempt = 0; attempt < 100; attempt++) {
        uint64_t random = weft__now_ns() * 0x9e3779b97f4a7c15u ^ (uint64_t)(uintptr_t)name ^ (uint64_t)getpid() << 40;
        uint64_t better;
        if (getrandom(&better, sizeof(better), GRND_NONBLOCK) == sizeof(better)) random = better;
        snprintf(name, PATH_MOST, "%s.%016llx" TEMP_ENDING, file, (unsigned long long)random);
        int fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static bool write_whole(int fd, const char *text, size_t length) {
    while (length) {
        ssize_t n = write(fd, text, length);
        if (n < 0 && errno != EINTR) return false;
        if (n < 0) continue;
        text += n;
        length -= (size_t)n;
    }
    return fsync(fd) == 0;
}

/* old: the file that is replaced; st_mode 0: none. */
static weft_status replace(const char *file, const struct stat *old, const char *text, size_t length) {
    char temp[PATH_MOST];
    bool exists = old->st_mode != 0;
    int fd = open_temporary(file, exists ? old->st_mode & 0777 : 0666, temp);
    if (fd < 0) return weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be written: %s", file, strerror(errno));
    bool kept = true; /* a user who may not give files away still saves, as their owner */
    if (exists && fchown(fd, old->st_uid, old->st_gid) != 0) kept = errno == EPERM;
    if (exists) kept = fchmod(fd, old->st_mode & 0777) == 0 && kept;
    bool written = write_whole(fd, text, length) && kept;
    written = close(fd) == 0 && written;
    if (written && rename(temp, file) == 0) return WEFT_OK;
    weft_status s = weft__fail(WEFT_ERR_IO, "wisdom '%s' cannot be written: %s", file, strerror(errno));
    unlink(temp);
    return s;
}

/* A file is wisdom if it begins with the header, has an entry, or has nothing at all. */
static bool is_foreign(const char *text, size_t length, const wisdom_lines *lines) {
    if (lines->count || strncmp(text, WISDOM_HEADER, strlen(WISDOM_HEADER)) == 0) return false;
    for (size_t i = 0; i < length; i++)
        if (!strchr(" \t\r\n", text[i]) || !text[i]) return true;
    return false;
}

static weft_status print_all(const weft_ctx *ctx, char **text, size_t *length, uint64_t *stamp) {
    for (size_t room = weft__wisdom_print(ctx, NULL, 0, stamp) + 1;; room = *length + 1) {
        *text = weft__alloc(ctx, room);
        if (!*text) return weft__fail(WEFT_ERR_MEMORY, "out of memory for wisdom");
        *length = weft__wisdom_print(ctx, *text, room, stamp);
        if (*length < room) return WEFT_OK;
        weft__free(ctx, *text); /* another thread measured in between */
    }
}

/* With the lock held. */
static weft_status merge_and_replace(weft_ctx *ctx, const char *file, int64_t *bad) {
    char *text;
    size_t length;
    struct stat old;
    wisdom_lines lines = {0};
    weft_status s = read_file(ctx, file, true, &text, &length, &old);
    if (s == WEFT_OK && text) s = weft__wisdom_read_lines(ctx, text, length, &lines);
    *bad = lines.bad;
    if (s == WEFT_OK && text && is_foreign(text, length, &lines))
        s = weft__fail(WEFT_ERR_IO,
                       "'%s' is not wisdom and is left alone, allowed: a wisdom file, an empty or a new one", file);
    weft__free(ctx, text);
    if (s == WEFT_OK) s = weft__wisdom_merge(ctx, &lines, true);
    text = NULL;
    uint64_t stamp = 0;
    if (s == WEFT_OK) s = print_all(ctx, &text, &length, &stamp);
    if (s == WEFT_OK) {
        remove_stale(file);
        s = replace(file, &old, text, length);
        weft__free(ctx, text);
    }
    if (s == WEFT_OK) weft__wisdom_drop_marks(ctx, stamp);
    return s;
}

weft_status weft_wisdom_save(weft_ctx *ctx, const char *path, weft_wisdom_report *report) {
    WEFT__TRY(weft__wisdom_check(ctx, path, report));
    char file[PATH_MOST];
    int lock;
    int64_t bad = 0;
    WEFT__TRY(resolve(path, file));
    WEFT__TRY(lock_file(ctx, file, &lock));
    weft_status s = merge_and_replace(ctx, file, &bad);
    unlock_file(lock);
    weft__wisdom_report(ctx, report, bad);
    return s;
}
