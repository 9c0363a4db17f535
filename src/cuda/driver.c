/* libcuda and libnvrtc by dlopen, each with a reason when it is not there. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"

typedef struct symbol {
    const char *name;
    size_t offset;
} symbol;

/* Fill a table of function pointers; the name of the first missing one, or NULL. POSIX lets dlsym results become
 * functions. */
static const char *resolve(void *library, const symbol *symbols, size_t n, void *table) {
    for (size_t i = 0; i < n; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found) return symbols[i].name;
        memcpy((char *)table + symbols[i].offset, &found, sizeof(found));
    }
    return NULL;
}

/* ---------------------------------------------------------------- the driver */
static struct {
    pthread_mutex_t lock;
    bool ready;
    volatile bool forked;
    weft__driver table;
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void mark_forked(void) { driver.forked = true; }

bool weft__driver_forked(void) { return driver.forked; }

weft_status weft__driver_check(const weft__driver *d, CUresult r, const char *call) {
    if (r == CUDA_SUCCESS_) return WEFT_OK;
    const char *name = NULL, *text = NULL;
    d->error_name(r, &name);
    d->error_text(r, &text);
    return weft__fail(WEFT_ERR_DEVICE, "%s: %s (%d): %s", call, name ? name : "unknown error", r, text ? text : "");
}

static weft_status open_driver(weft__driver *d) {
    static const symbol symbols[] = {
#define X(member, symbol, parameters) {symbol, offsetof(weft__driver, member)},
        WEFT__DRIVER_LIST(X)
#undef X
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return weft__fail(WEFT_ERR_UNSUPPORTED, "libcuda.so.1: not found (no NVIDIA driver on this machine)");
    const char *missing = resolve(library, symbols, WEFT__COUNT(symbols), d);
    if (missing) return weft__fail(WEFT_ERR_UNSUPPORTED, "libcuda.so.1: has no %s (the driver is too old)", missing);
    static const symbol optional[] = {
#define X(member, symbol, parameters) {symbol, offsetof(weft__driver, member)},
        WEFT__DRIVER_OPTIONAL_LIST(X)
#undef X
    };
    for (size_t i = 0; i < WEFT__COUNT(optional); i++) resolve(library, &optional[i], 1, d);
    CUresult r = d->init(0);
    if (r == CUDA_ERROR_NO_DEVICE_) return weft__fail(WEFT_ERR_UNSUPPORTED, "no device");
    if (r == CUDA_ERROR_NOT_INITIALIZED_)
        return weft__fail(WEFT_ERR_DEVICE,
                          "cuInit failed: this process was forked from one that had initialised CUDA; use spawn");
    return weft__driver_check(d, r, "cuInit");
}

const weft__driver *weft__driver_get(weft_status *status) {
    *status = WEFT_OK;
    if (driver.forked) { /* the lock may be held by a thread that does not exist here */
        *status = weft__fail(WEFT_ERR_DEVICE, "this process was forked after CUDA was initialised; use spawn");
        return NULL;
    }
    pthread_mutex_lock(&driver.lock);
    if (!driver.ready) {
        *status = open_driver(&driver.table);
        driver.ready = *status == WEFT_OK;
        if (driver.ready) pthread_atfork(NULL, NULL, mark_forked);
    }
    pthread_mutex_unlock(&driver.lock);
    return *status == WEFT_OK ? &driver.table : NULL;
}

/* ---------------------------------------------------------------- NVRTC */
/* NVRTC opens its builtins by bare name, which fails unless their folder is on the search path: open them beside it. */
void weft__nvrtc_builtins(const weft__nvrtc *nvrtc) {
    char path[sizeof(nvrtc->path) + 64];
    const char *slash = strrchr(nvrtc->path, '/');
    int folder = slash ? (int)(slash - nvrtc->path + 1) : 0;
    snprintf(path, sizeof(path), "%.*slibnvrtc-builtins.so.%d.%d", folder, nvrtc->path, nvrtc->major, nvrtc->minor);
    dlopen(path, RTLD_LAZY | RTLD_GLOBAL); /* absent: the compile says so */
}

static weft_status adopt_nvrtc(void *library, const char *asked, weft__nvrtc *nvrtc) {
    static const symbol symbols[] = {
#define X(result, member, symbol, parameters) {symbol, offsetof(weft__nvrtc, member)},
        WEFT__NVRTC_LIST(X)
#undef X
    };
    const char *missing = resolve(library, symbols, WEFT__COUNT(symbols), nvrtc);
    if (missing) return weft__fail(WEFT_ERR_UNSUPPORTED, "libnvrtc: %s: has no %s", asked, missing);
    if (nvrtc->version(&nvrtc->major, &nvrtc->minor))
        return weft__fail(WEFT_ERR_DEVICE, "libnvrtc: %s: no version", asked);
    void *symbol_in_it;
    memcpy(&symbol_in_it, &nvrtc->version, sizeof(symbol_in_it));
    Dl_info info;
    bool known = dladdr(symbol_in_it, &info) && info.dli_fname;
    snprintf(nvrtc->path, sizeof(nvrtc->path), "%s", known ? info.dli_fname : asked);
    return WEFT_OK;
}

weft_status weft__nvrtc_open(const weft_ctx *ctx, weft__nvrtc *nvrtc) {
    static const char *const names[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    const weft_ctx_opts *opts = weft__opts(ctx);
    const char *path = opts->nvrtc ? opts->nvrtc : weft__env("WEFT_NVRTC");
    memset(nvrtc, 0, sizeof(*nvrtc));
    if (path && *path) {
        void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
        if (!library) return weft__fail(WEFT_ERR_UNSUPPORTED, "libnvrtc: %s", dlerror());
        return adopt_nvrtc(library, path, nvrtc);
    }
    /* a loaded one of any name goes first */
    static const int ways[] = {RTLD_LAZY | RTLD_NOLOAD, RTLD_LAZY | RTLD_LOCAL};
    for (size_t w = 0; w < WEFT__COUNT(ways); w++)
        for (size_t i = 0; i < WEFT__COUNT(names); i++) {
            void *library = dlopen(names[i], ways[w]);
            if (library) return adopt_nvrtc(library, names[i], nvrtc);
        }
    return weft__fail(WEFT_ERR_UNSUPPORTED, "libnvrtc: not found; set WEFT_NVRTC to its path");
}
