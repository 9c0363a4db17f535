/* What weft uses of the CUDA driver and of NVRTC: declared here, found by dlopen. No CUDA header, no libcudart: one
 * binary runs with any driver and NVRTC of the last years, and without them. Both interfaces are stable C ABIs. */
#ifndef WEFT_CUDA_DRIVER_H
#define WEFT_CUDA_DRIVER_H

#include "core/internal.h"

typedef int CUresult, CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

enum {
    CUDA_SUCCESS_ = 0,
    CUDA_ERROR_NOT_INITIALIZED_ = 3,
    CUDA_ERROR_NO_DEVICE_ = 100,
    CUDA_ERROR_NOT_SUPPORTED_ = 801
};
enum { /* CUdevice_attribute */
       CU_CLOCK_RATE = 13,
       CU_MULTIPROCESSORS = 16,
       CU_MEMORY_CLOCK_RATE = 36,
       CU_BUS_WIDTH = 37,
       CU_L2_BYTES = 38,
       CU_CC_MAJOR = 75,
       CU_CC_MINOR = 76,
       CU_SMEM_OPTIN = 97
};
enum { CU_FUNC_STATIC_SMEM = 1, CU_FUNC_MAX_DYNAMIC_SMEM = 8, CU_FUNC_LARGE_CLUSTER = 14 }; /* CUfunction_attribute */
enum { CU_CAPTURE_RELAXED = 2 };                                                            /* CUstreamCaptureMode */

/* CUlaunchAttributeID, and the structs of cuLaunchKernelEx. */
enum { CU_LAUNCH_COOPERATIVE = 2, CU_LAUNCH_CLUSTER = 4, CU_LAUNCH_PROGRAMMATIC = 6 };
typedef struct CUlaunchAttribute {
    uint32_t id, pad;
    uint32_t value[16];
} CUlaunchAttribute;
typedef struct CUlaunchConfig {
    unsigned grid[3], block[3], smem;
    CUstream stream;
    CUlaunchAttribute *attributes;
    unsigned count;
} CUlaunchConfig;

/* X(member, exported name, parameters). The exported names carry the version of the ABI. */
#define WEFT__DRIVER_LIST(X)                                                                                          \
    X(init, "cuInit", (unsigned))                                                                                     \
    X(version, "cuDriverGetVersion", (int *))                                                                         \
    X(error_name, "cuGetErrorName", (CUresult, const char **))                                                        \
    X(error_text, "cuGetErrorString", (CUresult, const char **))                                                      \
    X(device_count, "cuDeviceGetCount", (int *))                                                                      \
    X(device_get, "cuDeviceGet", (CUdevice *, int))                                                                   \
    X(device_name, "cuDeviceGetName", (char *, int, CUdevice))                                                        \
    X(device_attribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                                               \
    X(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                            \
    X(ctx_get, "cuCtxGetCurrent", (CUcontext *))                                                                      \
    X(ctx_push, "cuCtxPushCurrent_v2", (CUcontext))                                                                   \
    X(ctx_pop, "cuCtxPopCurrent_v2", (CUcontext *))                                                                   \
    X(module_load, "cuModuleLoadData", (CUmodule *, const void *))                                                    \
    X(module_unload, "cuModuleUnload", (CUmodule))                                                                    \
    X(module_function, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *))                                 \
    X(func_get, "cuFuncGetAttribute", (int *, int, CUfunction))                                                       \
    X(func_set, "cuFuncSetAttribute", (CUfunction, int, int))                                                         \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *))                                                     \
    X(launch, "cuLaunchKernel",                                                                                       \
      (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(mem_alloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                            \
    X(mem_free, "cuMemFree_v2", (CUdeviceptr))                                                                        \
    X(copy_in, "cuMemcpyHtoD_v2", (CUdeviceptr, const void *, size_t))                                                \
    X(copy_out, "cuMemcpyDtoH_v2", (void *, CUdeviceptr, size_t))                                                     \
    X(fill, "cuMemsetD32Async", (CUdeviceptr, unsigned, size_t, CUstream))                                            \
    X(event_create, "cuEventCreate", (CUevent *, unsigned))                                                           \
    X(event_destroy, "cuEventDestroy_v2", (CUevent))                                                                  \
    X(event_record, "cuEventRecord", (CUevent, CUstream))                                                             \
    X(event_wait, "cuEventSynchronize", (CUevent))                                                                    \
    X(event_ms, "cuEventElapsedTime", (float *, CUevent, CUevent))                                                    \
    X(stream_wait, "cuStreamSynchronize", (CUstream))

/* NULL where the driver is too old for them: 12.4 for the first, 11.8 for launch_ex, 12.0 for tensor maps. */
#define WEFT__DRIVER_OPTIONAL_LIST(X)                                                                              \
    X(func_load, "cuFuncLoad", (CUfunction))                                                                       \
    X(launch_ex, "cuLaunchKernelEx", (const CUlaunchConfig *, CUfunction, void **, void **))                       \
    X(tensor_map, "cuTensorMapEncodeTiled",                                                                        \
      (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int, \
       int, int, int))

typedef struct weft__driver {
#define X(member, symbol, parameters) CUresult(*member) parameters;
    WEFT__DRIVER_LIST(X)
#undef X
#define X(member, symbol, parameters) CUresult(*member) parameters;
    WEFT__DRIVER_OPTIONAL_LIST(X)
#undef X
} weft__driver;

/* The driver, opened and initialised once per process; NULL with the reason recorded by weft__fail, *status its
 * class. */
const weft__driver *weft__driver_get(weft_status *status);
/* This process was forked after cuInit: nothing of CUDA may be called. */
bool weft__driver_forked(void);
/* CUDA_SUCCESS to WEFT_OK, anything else to WEFT_ERR_DEVICE with name and text of the error. */
weft_status weft__driver_check(const weft__driver *d, CUresult r, const char *call);

/* ---------------------------------------------------------------- NVRTC */
typedef struct nvrtcProgram_st *nvrtcProgram;
/* X(result, member, exported name, parameters) */
#define WEFT__NVRTC_LIST(X)                                                                        \
    X(int, version, "nvrtcVersion", (int *, int *))                                                \
    X(const char *, error_text, "nvrtcGetErrorString", (int))                                      \
    X(int, create, "nvrtcCreateProgram",                                                           \
      (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *)) \
    X(int, destroy, "nvrtcDestroyProgram", (nvrtcProgram *))                                       \
    X(int, compile, "nvrtcCompileProgram", (nvrtcProgram, int, const char *const *))               \
    X(int, log_size, "nvrtcGetProgramLogSize", (nvrtcProgram, size_t *))                           \
    X(int, log, "nvrtcGetProgramLog", (nvrtcProgram, char *))                                      \
    X(int, code_size, "nvrtcGetCUBINSize", (nvrtcProgram, size_t *))                               \
    X(int, code, "nvrtcGetCUBIN", (nvrtcProgram, char *))

typedef struct weft__nvrtc {
#define X(result, member, symbol, parameters) result(*member) parameters;
    WEFT__NVRTC_LIST(X)
#undef X
    int major, minor;
    char path[512];
} weft__nvrtc;

/* opts->nvrtc, WEFT_NVRTC, then the usual names, a loaded library first. Never closed: NVRTC does not take it well. */
weft_status weft__nvrtc_open(const weft_ctx *ctx, weft__nvrtc *nvrtc);
/* What a compile needs beyond that; code found on disk does not pay for it. */
void weft__nvrtc_builtins(const weft__nvrtc *nvrtc);

/* ---------------------------------------------------------------- compile.c, store.c */
typedef struct weft__code {
    void *bytes;
    size_t size;
} weft__code; /* a cubin, from the context's allocator */

/* A cubin of an embedded or given source, from disk or compiled. source: an embedded file's name, else the text
 * itself. */
weft_status weft__code_get(const weft_ctx *ctx, const char *source, const char *defines, const char *arch,
                           weft__code *code);

typedef struct weft__digest {
    unsigned char byte[32];
} weft__digest;
typedef struct weft__sha256 {
    uint32_t h[8];
    uint64_t bytes;
    unsigned char block[64];
} weft__sha256;
void weft__sha256_start(weft__sha256 *s);
void weft__sha256_add(weft__sha256 *s, const void *bytes, size_t n);
weft__digest weft__sha256_end(weft__sha256 *s);

/* Files of the cache: DIGEST.cubin. A file that cannot be read, is not whole, or that others may write, is as good as
 * absent. */
/* The directory for compiled code; false: none wanted. */
bool weft__store_dir(const weft_ctx *ctx, char *dir, size_t capacity);
bool weft__store_read(const weft_ctx *ctx, const char *dir, const weft__digest *key, weft__code *code);
bool weft__store_write(const char *dir, const weft__digest *key, const weft__code *code);

#endif
