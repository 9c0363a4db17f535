/* Device memory and timing for measurement, verification and benchmarks that run without a framework. */
#include "cuda/engine.h"

static weft_status enter_device(weft__cuda *cuda, int ordinal, bool *pushed) {
    CUcontext context;
    WEFT__TRY(weft__cuda_context(cuda, ordinal, &context));
    return weft__cuda_enter(cuda->driver, context, pushed);
}

weft_status weft__cuda_alloc(weft__cuda *cuda, int ordinal, size_t bytes, void **block) {
    const weft__driver *d = cuda->driver;
    CUdeviceptr at = 0;
    bool pushed;
    *block = NULL;
    WEFT__TRY(enter_device(cuda, ordinal, &pushed));
    weft_status s = weft__driver_check(d, d->mem_alloc(&at, WEFT__MAX(bytes, 1)), "cuMemAlloc");
    weft__cuda_leave(d, pushed);
    *block = (void *)(uintptr_t)at;
    return s;
}

void weft__cuda_free(weft__cuda *cuda, int ordinal, void *block) {
    bool pushed;
    if (!block || enter_device(cuda, ordinal, &pushed) != WEFT_OK) return;
    cuda->driver->mem_free((CUdeviceptr)(uintptr_t)block);
    weft__cuda_leave(cuda->driver, pushed);
}

/* Both copies wait for what is queued on the default stream. */
weft_status weft__cuda_copy_in(weft__cuda *cuda, int ordinal, void *dst, const void *src, size_t bytes) {
    bool pushed;
    if (!bytes) return WEFT_OK;
    WEFT__TRY(enter_device(cuda, ordinal, &pushed));
    CUresult r = cuda->driver->copy_in((CUdeviceptr)(uintptr_t)dst, src, bytes);
    weft__cuda_leave(cuda->driver, pushed);
    return weft__driver_check(cuda->driver, r, "cuMemcpyHtoD");
}

weft_status weft__cuda_copy_out(weft__cuda *cuda, int ordinal, void *dst, const void *src, size_t bytes) {
    bool pushed;
    if (!bytes) return WEFT_OK;
    WEFT__TRY(enter_device(cuda, ordinal, &pushed));
    CUresult r = cuda->driver->copy_out(dst, (CUdeviceptr)(uintptr_t)src, bytes);
    weft__cuda_leave(cuda->driver, pushed);
    return weft__driver_check(cuda->driver, r, "cuMemcpyDtoH");
}

/* ---------------------------------------------------------------- timing */
typedef struct stopwatch {
    const weft__driver *d;
    CUstream stream;
    CUdeviceptr flush; /* larger than twice the L2 cache */
    size_t words;
    CUevent start, stop;
} stopwatch;

/* One run: the fill empties the cache, and keeps the device busy while the host queues the rest, so that no launch gap
 * counts. */
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
    WEFT__TRY(k->run(e)); /* warm */
    WEFT__TRY(weft__driver_check(d, d->stream_wait(w->stream), "cuStreamSynchronize"));
    for (int i = 0; i < runs; i++) WEFT__TRY(time_once(w, e, k, (unsigned)i, &ns[i]));
    return WEFT_OK;
}

weft_status weft__cuda_time(const weft__exec *e, const weft__kernel *k, int runs, double *ns) {
    const char *why = NULL;
    weft__cuda *cuda = weft__ctx_cuda(e->ctx, &why);
    if (!cuda) return weft__fail(WEFT_ERR_UNSUPPORTED, "device cuda: %s", why);
    stopwatch w = {.d = cuda->driver, .stream = e->stream};
    bool pushed;
    WEFT__TRY(enter_device(cuda, e->p->ordinal, &pushed));
    w.words = (2 * weft__cuda_gpu(cuda, e->p->ordinal)->l2 + ((size_t)32 << 20)) / sizeof(uint32_t);
    weft_status s = time_runs(&w, e, k, runs, ns);
    if (w.start) w.d->event_destroy(w.start);
    if (w.stop) w.d->event_destroy(w.stop);
    if (w.flush) w.d->mem_free(w.flush);
    weft__cuda_leave(w.d, pushed);
    return s;
}
