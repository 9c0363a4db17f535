/* The entries of the seat as PyTorch's own kernels have them: called with C++ arguments. The public
 * interface (seat.c) boxes each one, copies each list twice and takes both apart again: 1 us forward and 3 us backward.
 * A registered kernel stands in the dispatch table of its operator as {functor, boxed function, unboxed function,
 * ...}; the public interface leaves the third one NULL. It is filled in here, after these were seen to hold:
 *   - the operator's record has exactly one entry whose functor holds our boxed function, without unboxed ones;
 *   - entries at the same spacing before or after it, PyTorch's own, have functions of PyTorch in these places.
 * If anything differs nothing is written, and calls come boxed. They do so again once another library registers
 * something for the operator: PyTorch then makes its table anew.
 * Memory is read by process_vm_readv, which fails where a pointer is none. */
#include "seat.h"

#if defined(__x86_64__) && defined(__linux__) /* where a result in memory is one more pointer in front */
#include <dlfcn.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the entries */
/* The same functions serve both keys: on CUDA they are called with the functor that stands there. */
enum {
#define X(name) AT_##name,
    SEAT_OPS(X)
#undef X
        OPERATORS
};
static _Atomic(void *) cuda_functor[OPERATORS];

/* Results are moved into `to`, where C++ wants them: of a tuple the last one first. */
static void *finish(seat_call *c, void **to) {
    static _Atomic(void *) undefined;
    const int n = c->op->nout;
    if (!seat_try(c)) {
        if (seat_run_throwing(c, to)) return to;
        if (!seat_delegate(c)) seat_raise(c);
    }
    for (int i = 0; i < n; i++) {
        void **from = c->out[i];
        to[n - 1 - i] = *from;
        void *none = atomic_load_explicit(&undefined, memory_order_relaxed);
        if (!none) {
            wt_handle empty = NULL;
            wt.aoti_torch_new_uninitialized_tensor(&empty);
            atomic_store_explicit(&undefined, none = *(void **)empty, memory_order_relaxed);
            wt.aoti_torch_delete_tensor_object(empty);
        }
        *from = none;
    }
    return to;
}

static void give(wt_list *to, wt_array from) {
    to->size = from.size < WT_MAX_LIST ? from.size : WT_MAX_LIST;
    for (size_t i = 0; i < to->size; i++) to->item[i] = from.data[i];
}

static void give_all(seat_call *c, int at, wt_array from) {
    c->plain &= from.size <= 3;
    give(&c->list[at], from);
}

static void give_sizes(seat_call *c, wt_maybe_array from) {
    if ((c->biased = from.given)) give(&c->bias_sizes, from.array);
}

#define GIVE_TENSOR(at) c.in[SEAT_##at].handle = at
#define GIVE_OPTIONAL(at) c.in[SEAT_##at].handle = at->given ? seat_defined((wt_handle)(uintptr_t) & at->tensor) : NULL
#define GIVE_LIST(at) give_all(&c, SEAT_##at, at)
#define GIVE_SIZES(at) give_sizes(&c, at)
#define GIVE_MASK(at) c.want = at.item[0] | at.item[1] << 1 | at.item[2] << 2
#define GIVE_BOOL(at) c.value[SEAT_##at] = at
#define GIVE_INT(at) c.value[SEAT_##at] = at
#define GIVE_REAL(at) c.real[SEAT_##at] = at
#define GIVE_TYPE(at) c.type = TYPE
#define GIVE_MAYBE(at) c.value[SEAT_##at] = at.given ? at.value : 0, c.value[SEAT_##at + 1] = at.given
#define X(name)                                                                                           \
    static void *unboxed_##name(void *to, void *functor, uint64_t keys, WT_ARGS_##name(WT_CPP)) {         \
        __attribute__((cleanup(seat_free_call))) seat_call c;                                             \
        seat_begin_call(&c, &seat_op_##name,                                                              \
                        functor == atomic_load_explicit(&cuda_functor[AT_##name], memory_order_relaxed)); \
        c.borrowed = true;                                                                                \
        (void)keys;                                                                                       \
        WT_ARGS_##name(GIVE);                                                                             \
        return finish(&c, to);                                                                            \
    }
SEAT_OPS(X)
#undef X

static const struct {
    const seat_op *op;
    void (*entry)(void);
} entries[OPERATORS] = {
#define X(name) {&seat_op_##name, (void (*)(void))unboxed_##name},
    SEAT_OPS(X)
#undef X
};

/* ---------------------------------------------------------------- PyTorch's table */
enum { WORDS = 1024, SPACING_MIN = 4, SPACING_MAX = 8, AROUND = 120 };

static size_t read_words(const void *from, uintptr_t *to, size_t words) {
    struct iovec here = {to, words * sizeof(*to)}, there = {(void *)(uintptr_t)from, words * sizeof(*to)};
    ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    return got > 0 ? (size_t)got / sizeof(*to) : 0;
}

static bool holds(uintptr_t functor, uintptr_t boxed) {
    uintptr_t word[8];
    if (!functor || functor & 7) return false;
    for (size_t i = read_words((const void *)functor, word, 8); i-- > 0;)
        if (word[i] == boxed) return true;
    return false;
}

static bool is_torchs(uintptr_t code) {
    Dl_info info;
    return code && dladdr((const void *)code, &info) && info.dli_fname && strstr(info.dli_fname, "libtorch");
}

/* Do entries of PyTorch's stand around this one? */
static bool has_neighbours(const uintptr_t *word, size_t n, size_t at) {
    for (size_t spacing = SPACING_MIN; spacing <= SPACING_MAX; spacing++) {
        int found = 0;
        for (int k = -AROUND; k <= AROUND; k++) {
            const int64_t i = (int64_t)at + k * (int64_t)spacing;
            if (!k || i < 0 || i + 4 > (int64_t)n) continue;
            found += is_torchs(word[i + 1]) && (is_torchs(word[i + 2]) || is_torchs(word[i + 3]));
        }
        if (found >= 2) return true;
    }
    return false;
}

/* The record of an operator, whose table lies inside; NULL: it cannot be found. */
static uintptr_t *record_of(const char *name) {
    typedef struct text { /* a string of C++, and one of no letters behind it: the name of an operator */
        const char *data;
        size_t size;
        char inside[16];
    } text;
    void *torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    void *(*singleton)(void) = NULL;
    void *(*find)(void *to, void *dispatcher, const text *operator_name) = NULL;
    if (!torch) return NULL;
    *(void **)&singleton = dlsym(torch, "_ZN3c1010Dispatcher13realSingletonEv");
    *(void **)&find = dlsym(torch, "_ZN3c1010Dispatcher10findSchemaERKNS_12OperatorNameE");
    if (!singleton || !find) return NULL;
    text given[2] = {{name, strlen(name), ""}, {NULL, 0, ""}};
    given[1].data = given[1].inside;
    struct {
        uintptr_t *record, iterator;
        bool found;
    } handle = {NULL, 0, false};
    find(&handle, singleton(), given);
    return handle.found ? handle.record : NULL;
}

bool seat_unbox(const seat_op *op, wt_kernel boxed, bool cuda) {
    char name[64] = "aten::";
    uintptr_t word[WORDS], *record = record_of(strncat(name, op->name, sizeof(name) - 8));
    size_t n = record ? read_words(record, word, WORDS) : 0, at = 0, which = 0;
    int found = 0;
    for (size_t i = 0; i + 4 <= n; i++)
        if (word[i] && is_torchs(word[i + 1]) && !word[i + 2] && !word[i + 3] && holds(word[i], (uintptr_t)boxed))
            at = i, found++;
    if (found != 1 || !has_neighbours(word, n, at)) return false;
    while (entries[which].op != op) which++;
    if (cuda) atomic_store(&cuda_functor[which], (void *)word[at]);
    atomic_store((_Atomic uintptr_t *)&record[at + 2], (uintptr_t)entries[which].entry);
    return true;
}
#else
bool seat_unbox(const seat_op *op, wt_kernel boxed, bool cuda) {
    (void)op, (void)boxed, (void)cuda;
    return false;
}
#endif
