/* A CUDA driver without a GPU, for tests: libcuda.so.1 as far as src/cuda uses it. One device that looks like an H200;
 * device memory is host memory with a guard page behind each block; modules are shared objects made by nvrtc.c; a
 * launch runs at once (grid.c). */
#include <dlfcn.h>
#include <elf.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "grid.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NOT_FOUND = 500, LAUNCH_FAILED = 719 };
enum { PAGE = 4096, ALIGN = 256 };
#define API __attribute__((visibility("default")))

typedef struct module {
    void *library;
    emulated_state **state;
    char *dynamic, **fixed;
} module;
typedef struct function {
    const module *m;
    void *entry;
} function;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local void *current;

API int cuInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
API int cuDriverGetVersion(int *v) { return *v = 13000, SUCCESS; }
API int cuGetErrorName(int e, const char **text) {
    *text = e == LAUNCH_FAILED   ? "CUDA_ERROR_LAUNCH_FAILED"
            : e == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                 : "CUDA_ERROR";
    return SUCCESS;
}
API int cuGetErrorString(int e, const char **text) { return *text = e ? "said by the emulator" : "no error", SUCCESS; }

/* ---------------------------------------------------------------- the device */
API int cuDeviceGetCount(int *n) { return *n = 1, SUCCESS; }
API int cuDeviceGet(int *device, int ordinal) { return *device = ordinal, ordinal ? INVALID_VALUE : SUCCESS; }
API int cuDeviceGetName(char *name, int n, int device) {
    (void)device;
    snprintf(name, (size_t)n, "emulated GPU");
    return SUCCESS;
}
API int cuDeviceGetAttribute(int *value, int which, int device) {
    static const struct {
        int which, value;
    } table[] = {{13, 1980000}, {16, 132}, {36, 3201000}, {37, 6144}, {38, 1 << 20}, {97, EMULATED_SMEM}};
    const char *cc = getenv("EMULATOR_CC");
    const int generation = cc ? atoi(cc) : 90;
    (void)device;
    *value = which == 75 ? generation / 10 : which == 76 ? generation % 10 : 0;
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (table[i].which == which) *value = table[i].value;
    return SUCCESS;
}
API int cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device;
    return *context = &lock, SUCCESS;
}
API int cuCtxGetCurrent(void **context) { return *context = current, SUCCESS; }
API int cuCtxPushCurrent_v2(void *context) { return current = context, SUCCESS; }
API int cuCtxPopCurrent_v2(void **context) { return *context = current, current = NULL, SUCCESS; }
API int cuThreadExchangeStreamCaptureMode(int *mode) { return (void)mode, SUCCESS; }
API int cuStreamSynchronize(void *stream) { return (void)stream, SUCCESS; }

/* ---------------------------------------------------------------- modules */
/* The image of a module has no length: its section table is what the linker writes last. */
static size_t image_bytes(const Elf64_Ehdr *e) { return e->e_shoff + (size_t)e->e_shnum * e->e_shentsize; }

API int cuModuleLoadData(module **out, const void *image) {
    if (memcmp(image, ELFMAG, SELFMAG) != 0) return INVALID_IMAGE;
    const size_t bytes = image_bytes(image);
    const int fd = memfd_create("module", MFD_CLOEXEC);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (fd < 0 || write(fd, image, bytes) != (ssize_t)bytes) return INVALID_IMAGE;
    module *m = calloc(1, sizeof(*m));
    m->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (m->library) {
        m->state = dlsym(m->library, EMULATED_STATE);
        m->dynamic = dlsym(m->library, EMULATED_DYNAMIC);
        m->fixed = dlsym(m->library, EMULATED_STATIC);
    } else {
        fprintf(stderr, "emulator: %s\n", dlerror());
    }
    *out = m; /* the descriptor stays open: the loader takes equal paths for equal files */
    return m->state && m->dynamic && m->fixed ? SUCCESS : INVALID_IMAGE;
}
API int cuModuleUnload(module *m) {
    if (m->library) dlclose(m->library);
    free(m);
    return SUCCESS;
}
API int cuModuleGetFunction(function **out, const module *m, const char *name) {
    function *f = calloc(1, sizeof(*f));
    f->m = m;
    f->entry = dlsym(m->library, name);
    *out = f;
    return f->entry ? SUCCESS : NOT_FOUND;
}
API int cuFuncLoad(function *f) { return f->entry ? SUCCESS : INVALID_VALUE; }
API int cuFuncGetAttribute(int *value, int which, const function *f) {
    *value = which == 1 ? (int)(f->m->fixed[1] - f->m->fixed[0]) : 0;
    return SUCCESS;
}
API int cuFuncSetAttribute(function *f, int which, int value) { return (void)f, (void)which, (void)value, SUCCESS; }

/* ---------------------------------------------------------------- launches */
/* Arguments are one struct. One of more than 16 bytes is passed on the stack, a smaller one in registers: passing the
 * bytes both ways, and more of them than there are, serves every size. */
typedef struct bytes {
    char byte[4096];
} bytes;

static void call(const emulated_grid *g) {
    void (*entry)(uint64_t, uint64_t, bytes);
    const uint64_t *words = g->args;
    memcpy(&entry, &g->entry, sizeof(entry));
    entry(words[0], words[1], *(const bytes *)g->args);
}

static int launch(function *f, emulated_index grid, emulated_index block, size_t smem, int gang, void **args) {
    const size_t threads = (size_t)block.x * block.y * block.z, blocks = (size_t)grid.x * grid.y * grid.z;
    const size_t fixed = (size_t)(f->m->fixed[1] - f->m->fixed[0]);
    if (!threads || threads > 1024 || !blocks || grid.y > 65535 || grid.z > 65535 || smem + fixed > EMULATED_SMEM ||
        blocks % (size_t)gang)
        return INVALID_VALUE;
    bytes copy;
    memcpy(&copy, args[0], sizeof(copy)); /* past the struct lies more of the caller's stack */
    pthread_mutex_lock(&lock);
    const emulated_grid g = {.grid = grid,
                             .block = block,
                             .gang = gang,
                             .smem = smem,
                             .state = f->m->state,
                             .dynamic = f->m->dynamic,
                             .fixed = f->m->fixed,
                             .call = call,
                             .entry = f->entry,
                             .args = &copy};
    const char *error = emulated_launch(&g);
    pthread_mutex_unlock(&lock);
    if (error) fprintf(stderr, "emulator: %s\n", error);
    return error ? LAUNCH_FAILED : SUCCESS;
}

API int cuLaunchKernel(function *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned smem, void *stream, void **args, void **extra) {
    (void)stream, (void)extra;
    return launch(f, (emulated_index){gx, gy, gz}, (emulated_index){bx, by, bz}, smem, 1, args);
}

typedef struct attribute {
    uint32_t id, pad, value[16];
} attribute;
typedef struct config {
    unsigned grid[3], block[3], smem;
    void *stream;
    attribute *attributes;
    unsigned count;
} config;

API int cuLaunchKernelEx(const config *c, function *f, void **args, void **extra) {
    enum { COOPERATIVE = 2, CLUSTER = 4 };
    unsigned gang = 1;
    (void)extra;
    for (unsigned i = 0; i < c->count; i++) {
        const attribute *a = &c->attributes[i];
        if (a->id == COOPERATIVE && a->value[0]) gang = c->grid[0] * c->grid[1] * c->grid[2];
        if (a->id == CLUSTER && a->value[1] * a->value[2] != 1) return INVALID_VALUE; /* gangs are neighbours in x */
        if (a->id == CLUSTER && gang == 1) gang = a->value[0];
    }
    return launch(f, (emulated_index){c->grid[0], c->grid[1], c->grid[2]},
                  (emulated_index){c->block[0], c->block[1], c->block[2]}, c->smem, (int)gang, args);
}

/* ---------------------------------------------------------------- memory */
typedef struct header { /* at the begin of the mapping */
    size_t bytes;
    char *base;
} header;

API int cuMemAlloc_v2(uint64_t *out, size_t bytes) {
    const size_t room = (bytes + ALIGN - 1) / ALIGN * ALIGN, pages = (room + PAGE - 1) / PAGE * PAGE;
    char *base =
        mmap(NULL, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return OUT_OF_MEMORY;
    char *block = base + PAGE + pages - room;
    memset(block, 0xfb, room);
    mprotect(base + PAGE + pages, PAGE, PROT_NONE);
    *(header *)(base) = (header){pages + 2 * PAGE, base};
    *out = (uint64_t)(uintptr_t)block;
    return SUCCESS;
}
API int cuMemFree_v2(uint64_t block) {
    if (!block) return SUCCESS;
    header *h = (header *)((block & ~(uint64_t)(PAGE - 1)) - PAGE);
    return munmap(h->base, h->bytes) ? INVALID_VALUE : SUCCESS;
}
API int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { return memcpy((void *)to, from, n), SUCCESS; }
API int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t n) { return memcpy(to, (void *)from, n), SUCCESS; }
API int cuMemsetD32Async(uint64_t at, unsigned value, size_t n, void *stream) {
    (void)stream;
    for (size_t i = 0; i < n; i++) ((unsigned *)at)[i] = value;
    return SUCCESS;
}

/* ---------------------------------------------------------------- events */
API int cuEventCreate(struct timespec **e, unsigned flags) {
    (void)flags;
    return *e = calloc(1, sizeof(**e)), SUCCESS;
}
API int cuEventDestroy_v2(struct timespec *e) { return free(e), SUCCESS; }
API int cuEventRecord(struct timespec *e, void *stream) {
    return (void)stream, clock_gettime(CLOCK_MONOTONIC, e), SUCCESS;
}
API int cuEventSynchronize(struct timespec *e) { return (void)e, SUCCESS; }
API int cuEventElapsedTime(float *ms, const struct timespec *a, const struct timespec *b) {
    *ms = (float)((double)(b->tv_sec - a->tv_sec) * 1e3 + (double)(b->tv_nsec - a->tv_nsec) * 1e-6);
    return SUCCESS;
}
