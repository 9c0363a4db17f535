/* PyTorch's operators called from C, above autograd, as its builtins call them, but for their reading of Python's
 * arguments, which takes as long as the rest of a small call. The functions are those of C++, at::_ops::conv2d::call
 * and so on: what they throw must not come to Python's frames, so each runs inside of torch_parallel_for, a public
 * function that runs another one here and catches what it throws. After a failure the builtin is called, and says why.
 */
#include "entry.h"

#define OPTIONAL_TENSOR "RKSt8optionalIS2_E"
#define CONV(n, more) "_ZN2at4_ops" #n "4callERKNS_6TensorES4_" OPTIONAL_TENSOR more
#define SYM_AXES "N3c108ArrayRefINS9_6SymIntEEE"
#define POOL_AXES "N3c108ArrayRefIlEES7_S7_"

static const struct {
    const char *name, *symbol;
} symbols[] = {
    {"conv1d", CONV(6conv1d, SYM_AXES "SC_SC_SB_")},
    {"conv2d", CONV(6conv2d, SYM_AXES "SC_SC_SB_")},
    {"conv3d", CONV(6conv3d, SYM_AXES "SC_SC_SB_")},
    {"conv_transpose1d", CONV(16conv_transpose1d, SYM_AXES "SC_SC_SB_SC_")},
    {"conv_transpose2d", CONV(22conv_transpose2d_input, SYM_AXES "SC_SC_SB_SC_")},
    {"conv_transpose3d", CONV(22conv_transpose3d_input, SYM_AXES "SC_SC_SB_SC_")},
    {"max_pool2d", "_ZN2at4_ops10max_pool2d4callERKNS_6TensorE" POOL_AXES "S7_b"},
    {"avg_pool2d", "_ZN2at4_ops10avg_pool2d4callERKNS_6TensorE" POOL_AXES "bbSt8optionalIlE"},
    {"adaptive_avg_pool2d", "_ZN2at4_ops19adaptive_avg_pool2d4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEE"},
    {"softmax", "_ZN2at4_ops11softmax_int4callERKNS_6TensorElSt8optionalIN3c1010ScalarTypeEE"},
    {"batch_norm", "_ZN2at4_ops10batch_norm4callERKNS_6TensorE" OPTIONAL_TENSOR "S8_S8_S8_bddb"},
    {"cross_entropy", "_ZN2at4_ops18cross_entropy_loss4callERKNS_6TensorES4_RKSt8optionalIS2_ElN3c106SymIntEd"},
    {"log_softmax", "_ZN2at4_ops15log_softmax_int4callERKNS_6TensorElSt8optionalIN3c1010ScalarTypeEE"},
};

#if defined(__x86_64__) /* where a result in memory is one more pointer in front */
#include <dlfcn.h>
#include <string.h>

void *entry_find_torch(const char *name) {
    void *torch = dlopen("libtorch.so", RTLD_NOW | RTLD_NOLOAD);
    for (size_t i = 0; torch && i < sizeof(symbols) / sizeof(symbols[0]); i++)
        if (!strcmp(symbols[i].name, name)) return dlsym(torch, symbols[i].symbol);
    return NULL;
}
#else
void *entry_find_torch(const char *name) {
    (void)name, (void)symbols;
    return NULL;
}
#endif

typedef struct direct_call {
    const entry_call *k;
    const entry_record *r;
    void *out; /* where the tensor is made */
} direct_call;

#define GIVEN_TENSOR(at) in[SEAT_##at].handle
#define GIVEN_OPTIONAL(at) \
    &(wt_maybe_tensor) { in[SEAT_##at].handle ? *(void **)in[SEAT_##at].handle : NULL, in[SEAT_##at].handle }
#define GIVEN_LIST(at) ((wt_array){r->list[SEAT_##at].item, r->list[SEAT_##at].size})
#define GIVEN_PADS(at) GIVEN_LIST(at)
#define GIVEN_BOOL(at) r->value[SEAT_##at]
#define GIVEN_INT(at) r->value[SEAT_##at]
#define GIVEN_SYM(at) &r->value[SEAT_##at]
#define GIVEN_MAYBE(at) ((wt_maybe){r->value[SEAT_##at], r->value[SEAT_##at + 1]})
#define GIVEN_NO_TYPE() 0
#define GIVEN_REAL(at) r->real[SEAT_##at]

static void call_now(int64_t begin, int64_t end, void *arg) {
    const direct_call *c = arg;
    const entry_record *r = c->r;
    const wt_tensor *in = c->k->in;
    void (*const f)(void) = c->k->front->torch;
    (void)begin, (void)end;
    switch (c->k->front->kind) {
#define X(kind, args)                                              \
    case kind:                                                     \
        ((void *(*)(void *, args(WT_CPP)))f)(c->out, args(GIVEN)); \
        break;
        ENTRY_SETTINGS(X)
#undef X
    case ENTRY_UNARY:
    case ENTRY_OTHER:
        break;
    }
}

bool entry_call_torch(const entry_call *k, entry_record *r, wt_handle *out) {
    direct_call c = {k, r, NULL};
    if (!r->direct || !k->front->torch || wt.aoti_torch_new_uninitialized_tensor(out)) return false;
    c.out = *out;
    void *const undefined = *(void **)c.out;
    r->refs++;
    void *thread = r->slow ? py.PyEval_SaveThread() : NULL;
    const bool ok = !wt.torch_parallel_for(0, 1, 1, call_now, &c);
    if (thread) py.PyEval_RestoreThread(thread);
    entry_release(r);
    if (ok) return true;
    *(void **)c.out = undefined; /* what was made there before it threw is gone */
    wt.aoti_torch_delete_tensor_object(*out);
    return false;
}
