/* Compiled code on disk. Many processes may share the folder: a file appears whole by rename, under a name that is the
 * digest of everything that made it, and carries its length and the digest of its content. What is read runs on the
 * GPU: a file, or a folder, that others could have written is not used. Nothing here is fatal: without the file weft
 * compiles again. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/driver.h"

typedef struct header {
    char magic[8];
    uint64_t size;
    weft__digest key, sum; /* sum: of key and code */
} header;
static const char magic[8] = "weftcu2";
#define MAX_CODE ((uint64_t)64 << 20)

static weft__digest digest_of(const weft__digest *key, const weft__code *code) {
    weft__sha256 s;
    weft__sha256_start(&s);
    weft__sha256_add(&s, key, sizeof(*key));
    weft__sha256_add(&s, code->bytes, code->size);
    return weft__sha256_end(&s);
}

static bool same(const weft__digest *x, const weft__digest *y) { return memcmp(x, y, sizeof(*x)) == 0; }

bool weft__store_dir(const weft_ctx *ctx, char *dir, size_t capacity) {
    const char *given = weft__opts(ctx)->cache_dir, *xdg = weft__env("XDG_CACHE_HOME"), *home = weft__env("HOME");
    if (!given) given = weft__env("WEFT_CACHE_DIR");
    int n = 0;
    if (given)
        n = snprintf(dir, capacity, "%s", given);
    else if (xdg && xdg[0] == '/')
        n = snprintf(dir, capacity, "%s/weft", xdg);
    else if (home && home[0] == '/')
        n = snprintf(dir, capacity, "%s/.cache/weft", home);
    return n > 0 && (size_t)n < capacity;
}

static void name_of(char name[80], const weft__digest *key, const char *ending) {
    for (int i = 0; i < 32; i++) snprintf(name + 2 * i, 3, "%02x", key->byte[i]);
    snprintf(name + 64, 16, ".%s", ending);
}

/* Nobody but this user and root can change it. */
static bool is_private(const struct stat *st) {
    return (st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* The folder, open; -1: not there, or others can write to it. */
static int open_dir(const char *dir) {
    struct stat st;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && is_private(&st)) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* mkdir -p */
static void make_dirs(const char *dir) {
    char path[1024];
    if (snprintf(path, sizeof(path), "%s", dir) >= (int)sizeof(path)) return;
    for (char *at = path + 1; *at; at++)
        if (*at == '/') {
            *at = 0;
            mkdir(path, 0700);
            *at = '/';
        }
    mkdir(path, 0700); /* failures show when the file is opened */
}

/* A pipe must not hold us up: it is opened without waiting and then seen not to be a file. */
static FILE *open_file(int folder, const char *name) {
    struct stat st;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    FILE *f = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && is_private(&st) ? fdopen(fd, "rb") : NULL;
    if (fd >= 0 && !f) close(fd);
    return f;
}

bool weft__store_read(const weft_ctx *ctx, const char *dir, const weft__digest *key, weft__code *code) {
    char name[80];
    name_of(name, key, "cubin");
    int folder = open_dir(dir);
    FILE *f = folder >= 0 ? open_file(folder, name) : NULL;
    if (folder >= 0) close(folder);
    if (!f) return false;
    header h;
    bool whole = fread(&h, sizeof(h), 1, f) == 1 && memcmp(h.magic, magic, sizeof(magic)) == 0 && same(&h.key, key) &&
                 h.size > 0 && h.size <= MAX_CODE;
    code->size = whole ? (size_t)h.size : 0;
    code->bytes = whole ? weft__alloc(ctx, code->size) : NULL;
    whole = code->bytes && fread(code->bytes, 1, code->size, f) == code->size && fgetc(f) == EOF;
    if (whole) {
        const weft__digest sum = digest_of(key, code);
        whole = same(&sum, &h.sum);
    }
    fclose(f);
    if (!whole) {
        weft__free(ctx, code->bytes);
        code->bytes = NULL;
    }
    return whole;
}

bool weft__store_write(const char *dir, const weft__digest *key, const weft__code *code) {
    char name[80], path[1200], temporary[1200];
    name_of(name, key, "cubin");
    if (snprintf(path, sizeof(path), "%s/%s", dir, name) >= (int)sizeof(path)) return false;
    name_of(name, key, "XXXXXX");
    snprintf(temporary, sizeof(temporary), "%s/%s", dir, name);
    make_dirs(dir);
    int folder = open_dir(dir);
    if (folder < 0) return false;
    close(folder);
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0) return false;
    FILE *f = fdopen(fd, "wb");
    if (!f) {
        close(fd);
        unlink(temporary);
        return false;
    }
    header h = {.size = code->size, .key = *key, .sum = digest_of(key, code)};
    memcpy(h.magic, magic, sizeof(magic));
    bool done = fwrite(&h, sizeof(h), 1, f) == 1 && fwrite(code->bytes, 1, code->size, f) == code->size;
    done = fclose(f) == 0 && done && rename(temporary, path) == 0;
    if (!done) unlink(temporary);
    return done;
}
