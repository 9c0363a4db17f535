/* The CUDA engine as the rest of weft sees it. Included by core/internal.h, which has the types. */
#ifndef WEFT_CUDA_H
#define WEFT_CUDA_H

weft_status weft__cuda_open(weft__cuda **cuda, const weft_ctx *ctx);
void weft__cuda_close(weft__cuda *cuda);
const weft__gpu *weft__cuda_gpu(weft__cuda *cuda, int ordinal); /* NULL: no such device */
int weft__cuda_count(const weft__cuda *cuda);
/* Compile (or find in memory or on disk) the parts of a chosen kernel for a problem: functions kept by the engine. */
weft_status weft__cuda_prepare(weft__cuda *cuda, const weft__choice *c, const weft_problem *p, const weft__hw *hw,
                               void *functions[WEFT__PARTS_MAX]);
/* Queue one part on the stream. args: the one struct that the device function takes by value. cluster: all 0 for none.
 * cooperative: every block runs at once and may wait for the others. programmatic: may begin before the kernel queued
 * before it has ended, and waits inside (griddepcontrol.wait) before it reads what that one wrote. */
typedef struct weft__launch {
    uint32_t grid[3], block[3], cluster[3];
    size_t smem;
    bool cooperative, programmatic;
} weft__launch;
weft_status weft__cuda_launch(const weft__exec *e, int part, const weft__launch *launch, const void *args);
weft_status weft__cuda_alloc(weft__cuda *cuda, int ordinal, size_t bytes, void **block);
void weft__cuda_free(weft__cuda *cuda, int ordinal, void *block);
weft_status weft__cuda_copy_in(weft__cuda *cuda, int ordinal, void *dst, const void *src, size_t bytes);
weft_status weft__cuda_copy_out(weft__cuda *cuda, int ordinal, void *dst, const void *src, size_t bytes);
/* Time `runs` executions by events, the cache flushed before each: ns of each. */
weft_status weft__cuda_time(const weft__exec *e, const weft__kernel *k, int runs, double *ns);
/* Compile only, no GPU needed: for tests. options as in weft__part.defines; arch "sm_90". *size: bytes of code. */
weft_status weft__cuda_compile(const weft_ctx *ctx, const char *source, const char *defines, const char *arch,
                               size_t *size);
/* The lines of weft_ctx_describe about CUDA. */
void weft__cuda_describe(weft_ctx *ctx, weft__text *t);

/* Texts embedded at build time, named by their path below include, src/ref or src/cuda/kernels: "weft.h", "item.h",
 * "conv/NAME.cu". */
typedef struct weft__embedded {
    const char *name;
    const unsigned char *text;
    size_t bytes;
} weft__embedded;
extern const weft__embedded weft__embedded_files[];
extern const size_t weft__embedded_count;
const weft__embedded *weft__embedded_find(const char *name);

#endif
