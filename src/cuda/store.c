/* Compiled code on disk. Many processes may share the folder: a file appears whole by rename, under a name that is the
 * digest of everything that made it, and carries its length and checksum. Nothing here is fatal: without the file weft
 * compiles again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/driver.h"

typedef struct header {
    char magic[8];
    uint64_t size;
    weft__digest key, sum;
} header;
static const char magic[8] = "weftcub";
#define MAX_CODE ((uint64_t)64 << 20)

/* Two lanes of multiply-and-mix: names and checksums, no defence against forgery. */
void weft__digest_start(weft__digest *d) {
    d->a = UINT64_C(0xcbf29ce484222325);
    d->b = UINT64_C(0x9e3779b97f4a7c15);
}

void weft__digest_add(weft__digest *d, const void *bytes, size_t n) {
    const unsigned char *at = bytes;
    uint64_t a = d->a, b = d->b;
    for (size_t i = 0; i < n; i++) {
        a = (a ^ at[i]) * UINT64_C(0x100000001b3);
        b = (((b << 7) | (b >> 57)) + at[i]) * UINT64_C(0xff51afd7ed558ccd);
    }
    d->a = a ^ n;
    d->b = b ^ (b >> 31);
}

static weft__digest digest_of(const weft__code *code) {
    weft__digest d;
    weft__digest_start(&d);
    weft__digest_add(&d, code->bytes, code->size);
    return d;
}

static bool same(weft__digest x, weft__digest y) { return x.a == y.a && x.b == y.b; }

bool weft__store_dir(const weft_ctx *ctx, char *dir, size_t capacity) {
    const char *said = weft__opts(ctx)->cache_dir, *xdg = weft__env("XDG_CACHE_HOME"), *home = weft__env("HOME");
    if (!said) said = weft__env("WEFT_CACHE_DIR");
    int n = 0;
    if (said)
        n = snprintf(dir, capacity, "%s", said);
    else if (xdg && xdg[0] == '/')
        n = snprintf(dir, capacity, "%s/weft", xdg);
    else if (home && home[0] == '/')
        n = snprintf(dir, capacity, "%s/.cache/weft", home);
    return n > 0 && (size_t)n < capacity;
}

static int path_of(char *path, size_t capacity, const char *dir, weft__digest key, const char *ending) {
    int n = snprintf(path, capacity, "%s/%016llx%016llx.%s", dir, (unsigned long long)key.a, (unsigned long long)key.b,
                     ending);
    return n > 0 && (size_t)n < capacity;
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

bool weft__store_read(const char *dir, weft__digest key, weft__code *code) {
    char path[1200];
    if (!path_of(path, sizeof(path), dir, key, "cubin")) return false;
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    header h;
    bool whole = fread(&h, sizeof(h), 1, f) == 1 && memcmp(h.magic, magic, sizeof(magic)) == 0 && same(h.key, key) &&
                 h.size > 0 && h.size <= MAX_CODE;
    code->size = whole ? (size_t)h.size : 0;
    code->bytes = whole ? malloc(code->size) : NULL;
    whole = code->bytes && fread(code->bytes, 1, code->size, f) == code->size && fgetc(f) == EOF &&
            same(digest_of(code), h.sum);
    fclose(f);
    if (!whole) {
        free(code->bytes);
        code->bytes = NULL;
    }
    return whole;
}

bool weft__store_write(const char *dir, weft__digest key, const weft__code *code) {
    char path[1200], temporary[1200];
    if (!path_of(path, sizeof(path), dir, key, "cubin") || !path_of(temporary, sizeof(temporary), dir, key, "XXXXXX"))
        return false;
    make_dirs(dir);
    int fd = mkstemp(temporary);
    if (fd < 0) return false;
    FILE *f = fdopen(fd, "wb");
    if (!f) {
        close(fd);
        unlink(temporary);
        return false;
    }
    header h = {.size = code->size, .key = key, .sum = digest_of(code)};
    memcpy(h.magic, magic, sizeof(magic));
    bool done = fwrite(&h, sizeof(h), 1, f) == 1 && fwrite(code->bytes, 1, code->size, f) == code->size;
    done = fclose(f) == 0 && done && rename(temporary, path) == 0;
    if (!done) unlink(temporary);
    return done;
}
