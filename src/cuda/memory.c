/* Device memory and timing for measurement, verification and benchmarks that run without a framework. */
#include "cuda/engine.h"

weft_status weft__cuda_alloc(weft__cuda *cuda, int ordinal, size_t bytes, void **block) {
    const weft__driver *d = cuda->driver;
    CUcontext context;
    CUdeviceptr at = 0;
    bool pushed;
    *block = NULL;
    WEFT__TRY(weft__cuda_context(cuda, ordinal, &context));
    WEFT__TRY(weft__cuda_enter(d, context, &pushed));
    weft_status s = weft__driver_check(d, d->mem_alloc(&at, WEFT__MAX(bytes, 1)), "cuMemAlloc");
    weft__cuda_leave(d, pushed);
    *block = (void *)(uintptr_t)at;
    return s;
}

void weft__cuda_free(weft__cuda *cuda, int ordinal, void *block) {
    CUcontext context;
    bool pushed;
    if (!block || weft__cuda_context(cuda, ordinal, &context) != WEFT_OK) return;
    if (weft__cuda_enter(cuda->driver, context, &pushed) != WEFT_OK) return;
    cuda->driver->mem_free((CUdeviceptr)(uintptr_t)block);
    weft__cuda_leave(cuda->driver, pushed);
}

/* Both copies wait for all work queued on the default stream. */
weft_status weft__cuda_copy_in(weft__cuda *cuda, int ordinal, void *dst, const void *src, size_t bytes) {
    const weft__driver *d = cuda->driver;
    CUcontext context;
    bool pushed;
    if (!bytes) return WEFT_OK;
    WEFT__TRY(weft__cuda_context(cuda, ordinal, &context));
    WEFT__TRY(weft__cuda_enter(d, context, &pushed));
    weft_status s = weft__driver_check(d, d->copy_in((CUdeviceptr)(uintptr_t)dst, src, bytes), "cuMemcpyHtoD");
    weft__cuda_leave(d, pushed);
    return s;
}

weft_status weft__cuda_copy_out(weft__cuda *cuda, int ordinal, void *dst, const void *src, size_t bytes) {
    const weft__driver *d = cuda->driver;
    CUcontext context;
    bool pushed;
    if (!bytes) return WEFT_OK;
    WEFT__TRY(weft__cuda_context(cuda, ordinal, &context));
    WEFT__TRY(weft__cuda_enter(d, context, &pushed));
    weft_status s = weft__driver_check(d, d->copy_out(dst, (CUdeviceptr)(uintptr_t)src, bytes), "cuMemcpyDtoH");
    weft__cuda_leave(d, pushed);
    return s;
}

/* ---------------------------------------------------------------- timing */
typedef struct stopwatch {
    const weft__driver *d;
    CUstream stream;
    CUdeviceptr flush;               /* larger than twice the L2 cache */
    size_t words;
    CUevent start, stop;
} stopwatch;

/* One run: the fill empties the cache, and keeps the device busy while the host queues the rest, so that no launch gap counts. */
static weft_status time_once(stopwatch *w, const weft__exec *e, const weft__kernel *k, unsigned round, double *ns) {
    const weft__driver *d = w->d;
    float ms = 0;
    WEFT__TRY(weft__driver_check(d, d->fill(w->flush, round, w->words, w->stream), "cuMemsetD32Async"));
    WEFT__TRY(weft__driver_check(d, d->event_record(w->start, w->stream), "cuEventRecord"));
    WEFT__TRY(k->run(e));
    WEFT__TRY(weft__driver_check(d, d->event_record(w->stop, w->stream), "cuEventRecord"));
    WEFT__TRY(weft__driver_check(d, d->event_wait(w->stop), "cuEventSynchronize"));
    WEFT__TRY(weft__driver_check(d, d->event_ms(&ms, w->start, w->stop), "cuEventElapsedTime"));
    *ns = 1e6 * (double)ms;
    return WEFT_OK;
}

static weft_status time_runs(stopwatch *w, const weft__exec *e, const weft__kernel *k, int runs, double *ns) {
    const weft__driver *d = w->d;
    WEFT__TRY(weft__driver_check(d, d->mem_alloc(&w->flush, w->words * sizeof(uint32_t)), "cuMemAlloc"));
    WEFT__TRY(weft__driver_check(d, d->event_create(&w->start, 0), "cuEventCreate"));
    WEFT__TRY(weft__driver_check(d, d->event_create(&w->stop, 0), "cuEventCreate"));
    WEFT__TRY(k->run(e));            /* warm */
    WEFT__TRY(weft__driver_check(d, d->stream_wait(w->stream), "cuStreamSynchronize"));
    for (int i = 0; i < runs; i++) WEFT__TRY(time_once(w, e, k, (unsigned)i, &ns[i]));
    return WEFT_OK;
}

weft_status weft__cuda_time(const weft__exec *e, const weft__kernel *k, int runs, double *ns) {
    const char *why = NULL;
    weft__cuda *cuda = weft__ctx_cuda(e->ctx, &why);
    if (!cuda) return weft__fail(WEFT_UNSUPPORTED, "device cuda: %s", why);
    stopwatch w = {.d = cuda->driver, .stream = e->stream};
    CUcontext context;
    bool pushed;
    WEFT__TRY(weft__cuda_context(cuda, e->p->ordinal, &context));
    WEFT__TRY(weft__cuda_enter(w.d, context, &pushed));
    w.words = (2 * weft__cuda_gpu(cuda, e->p->ordinal)->l2 + ((size_t)32 << 20)) / sizeof(uint32_t);
    weft_status s = time_runs(&w, e, k, runs, ns);
    if (w.start) w.d->event_destroy(w.start);
    if (w.stop) w.d->event_destroy(w.stop);
    if (w.flush) w.d->mem_free(w.flush);
    weft__cuda_leave(w.d, pushed);
    return s;
}
