/* CUDA C to a cubin for one architecture: NVRTC, and the files of store.c in front of it. Needs no GPU. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "cuda/driver.h"

/* What <stdint.h> and <stddef.h> would give: NVRTC has no C library. The types are those of 64-bit Linux hosts, so that
 * structs passed by value have one layout on both sides. */
static const char prelude[] =
    "typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long int64_t;\n"
    "typedef unsigned char uint8_t; typedef unsigned short uint16_t;\n"
    "typedef unsigned uint32_t; typedef unsigned long uint64_t;\n"
    "typedef long intptr_t; typedef unsigned long uintptr_t;\n"
    "static_assert(sizeof(int64_t) == 8 && sizeof(void *) == 8 && sizeof(size_t) == 8, \"a 64-bit target\");\n"
    "#define INT32_MAX 2147483647\n"
    "#define INT32_MIN (-INT32_MAX - 1)\n"
    "#define UINT32_MAX 4294967295U\n"
    "#define INT64_MAX 9223372036854775807L\n"
    "#define INT64_MIN (-INT64_MAX - 1)\n"
    "#define UINT64_MAX 18446744073709551615UL\n"
    "#define INT64_C(x) x##L\n"
    "#define UINT64_C(x) x##UL\n"
    "#define UINT32_C(x) x##U\n";

enum { MAX_HEADERS = 256, MAX_OPTIONS = 64, MAX_DEFINES = 4096 };

typedef struct job {         /* everything that decides the code */
    const char *name, *text; /* text: prelude and source */
    size_t bytes;
    int nheaders, noptions;
    const char *headers[MAX_HEADERS], *header_names[MAX_HEADERS];
    const char *options[MAX_OPTIONS];
    char arch[64], defines[MAX_DEFINES];
} job;

static bool is_header(const char *name) {
    size_t n = strlen(name);
    return n > 2 && strcmp(name + n - 2, ".h") == 0;
}

/* Each embedded .h can be included by its bare name. */
static void job_headers(job *j) {
    for (size_t i = 0; i < weft__embedded_count && j->nheaders < MAX_HEADERS; i++) {
        const weft__embedded *e = &weft__embedded_files[i];
        if (!is_header(e->name)) continue;
        j->headers[j->nheaders] = (const char *)e->text; /* embedded texts end in a 0 that `bytes` leaves out */
        j->header_names[j->nheaders++] = e->name;
    }
}

/* "-DA=1 -DB=2" to single options; no shell is involved, so quotes stay as they are. */
static weft_status job_options(job *j, const char *defines, const char *arch) {
    static const char *const always[] = {"--std=c++17", "--device-as-default-execution-space"};
    if (snprintf(j->arch, sizeof(j->arch), "--gpu-architecture=%s", arch) >= (int)sizeof(j->arch) ||
        snprintf(j->defines, sizeof(j->defines), "%s", defines ? defines : "") >= (int)sizeof(j->defines))
        return weft__fail(WEFT_ERR_INTERNAL, "cuda: options of %s are too long", j->name);
    j->options[j->noptions++] = j->arch;
    for (size_t i = 0; i < WEFT__COUNT(always); i++) j->options[j->noptions++] = always[i];
    char *rest = NULL;
    for (char *word = strtok_r(j->defines, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (j->noptions == MAX_OPTIONS)
            return weft__fail(WEFT_ERR_INTERNAL, "cuda: %s has more than %d options", j->name, MAX_OPTIONS);
        j->options[j->noptions++] = word;
    }
    return WEFT_OK;
}

static weft__digest headers_digest; /* the same for every job */
static pthread_once_t headers_once = PTHREAD_ONCE_INIT;

static void digest_headers(void) {
    weft__sha256 s;
    weft__sha256_start(&s);
    for (size_t i = 0; i < weft__embedded_count; i++) {
        const weft__embedded *e = &weft__embedded_files[i];
        if (!is_header(e->name)) continue;
        weft__sha256_add(&s, e->name, strlen(e->name) + 1);
        weft__sha256_add(&s, &e->bytes, sizeof(e->bytes));
        weft__sha256_add(&s, e->text, e->bytes);
    }
    headers_digest = weft__sha256_end(&s);
}

static weft__digest job_digest(const job *j, const weft__nvrtc *nvrtc) {
    weft__sha256 s;
    const uint64_t counts[] = {(uint64_t)nvrtc->major, (uint64_t)nvrtc->minor, j->bytes, (uint64_t)j->noptions};
    weft__sha256_start(&s);
    weft__sha256_add(&s, counts, sizeof(counts));
    weft__sha256_add(&s, j->text, j->bytes);
    pthread_once(&headers_once, digest_headers);
    weft__sha256_add(&s, &headers_digest, sizeof(headers_digest));
    for (int i = 0; i < j->noptions; i++) weft__sha256_add(&s, j->options[i], strlen(j->options[i]) + 1);
    return weft__sha256_end(&s);
}

/* The first lines of the compiler's log: the first error is the one that matters. */
static weft_status compile_error(const weft_ctx *ctx, const job *j, const weft__nvrtc *nvrtc, nvrtcProgram program,
                                 int error) {
    enum { COMPILATION = 6, LINES = 8, CHARACTERS = 1200 };
    char excerpt[CHARACTERS] = "";
    size_t size = 0;
    char *log = !nvrtc->log_size(program, &size) && size ? weft__alloc(ctx, size + 1) : NULL;
    if (log && !nvrtc->log(program, log)) {
        log[size] = 0;
        char *end = log;
        for (int i = 0; i < LINES && *end; i++) end += strcspn(end, "\n") + (end[strcspn(end, "\n")] != 0);
        snprintf(excerpt, sizeof(excerpt), "%.*s", (int)(end - log), log);
    }
    weft__free(ctx, log);
    return weft__fail(error == COMPILATION ? WEFT_ERR_INTERNAL : WEFT_ERR_DEVICE, "nvrtc %d.%d: %s with %s: %s\n%s",
                      nvrtc->major, nvrtc->minor, j->name, j->arch, nvrtc->error_text(error), excerpt);
}

static weft_status compile(const weft_ctx *ctx, const job *j, const weft__nvrtc *nvrtc, weft__code *code) {
    nvrtcProgram program = NULL;
    weft__nvrtc_builtins(nvrtc);
    int error = nvrtc->create(&program, j->text, j->name, j->nheaders, j->headers, j->header_names);
    if (error) return weft__fail(WEFT_ERR_DEVICE, "nvrtc: %s: %s", j->name, nvrtc->error_text(error));
    weft_status s = WEFT_OK;
    code->bytes = NULL;
    if ((error = nvrtc->compile(program, j->noptions, j->options)) || (error = nvrtc->code_size(program, &code->size)))
        s = compile_error(ctx, j, nvrtc, program, error);
    else if (!(code->bytes = weft__alloc(ctx, code->size)))
        s = weft__fail(WEFT_ERR_MEMORY, "nvrtc: %s: no memory for %zu bytes of code", j->name, code->size);
    else if ((error = nvrtc->code(program, code->bytes)))
        s = weft__fail(WEFT_ERR_DEVICE, "nvrtc: %s: %s", j->name, nvrtc->error_text(error));
    nvrtc->destroy(&program);
    if (s != WEFT_OK) {
        weft__free(ctx, code->bytes);
        code->bytes = NULL;
    }
    return s;
}

static weft_status find_or_compile(const weft_ctx *ctx, const job *j, weft__code *code) {
    uint64_t start = weft__now_ns();
    weft__nvrtc nvrtc;
    WEFT__TRY(weft__nvrtc_open(ctx, &nvrtc));
    char dir[1024];
    bool keep = weft__store_dir(ctx, dir, sizeof(dir));
    weft__digest key = job_digest(j, &nvrtc);
    bool found = keep && weft__store_read(ctx, dir, &key, code);
    bool kept = found;
    if (!found) {
        WEFT__TRY(compile(ctx, j, &nvrtc, code));
        kept = keep && weft__store_write(dir, &key, code);
    }
    if (weft__logs(ctx, WEFT_LOG_TUNE))
        weft__log(ctx, WEFT_LOG_TUNE, "cuda: %s %s %s in %.1f ms, %zu bytes, %s %s", j->name, strchr(j->arch, '=') + 1,
                  found ? "found" : "compiled", (double)(weft__now_ns() - start) * 1e-6, code->size,
                  kept   ? "kept in"
                  : keep ? "could not be kept in"
                         : "not kept:",
                  keep ? dir : "no cache folder");
    return WEFT_OK;
}

weft_status weft__code_get(const weft_ctx *ctx, const char *source, const char *defines, const char *arch,
                           weft__code *code) {
    const weft__embedded *e = weft__embedded_find(source);
    const char *name = e ? e->name : "source", *text = e ? (const char *)e->text : source;
    size_t capacity = sizeof(prelude) + strlen(name) + strlen(text) + 32;
    char *whole = weft__alloc(ctx, capacity);
    job *j = weft__alloc(ctx, sizeof(*j));
    weft_status s = whole && j ? WEFT_OK : weft__fail(WEFT_ERR_MEMORY, "cuda: no memory to compile %s", name);
    if (s == WEFT_OK) {
        j->name = name;
        j->text = whole;
        j->bytes = (size_t)snprintf(whole, capacity, "%s#line 1 \"%s\"\n%s", prelude, name, text);
        job_headers(j);
        s = job_options(j, defines, arch);
    }
    if (s == WEFT_OK) s = find_or_compile(ctx, j, code);
    weft__free(ctx, j);
    weft__free(ctx, whole);
    return s;
}

weft_status weft__cuda_compile(const weft_ctx *ctx, const char *source, const char *defines, const char *arch,
                               size_t *size) {
    weft__code code = {NULL, 0};
    *size = 0;
    WEFT__TRY(weft__code_get(ctx, source, defines, arch, &code));
    *size = code.size;
    weft__free(ctx, code.bytes);
    return WEFT_OK;
}
