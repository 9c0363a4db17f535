/* Is a call plain, and what are its tensors? What is read here is no public interface: entry_test checks every fact
 * against what Python says, once, and without it there are no entries. */
#include <dlfcn.h>
#include <string.h>

#include "entry.h"

/* Names as C++ has them: c10::impl::raw_local_dispatch_key_set (a variable of each thread, two words, both 0 in plain
 * eager mode), at::impl::PythonTorchFunctionTLS::stack_len(), at::hasCallbacks(), c10::GradMode::is_enabled(),
 * c10::TensorImpl::requires_grad() const, THPVariable_Wrap(const TensorBase &) and its older form by value,
 * at::globalContext(), at::Context::deterministicAlgorithms() const. */
#define KEYS "_ZN3c104impl26raw_local_dispatch_key_setE"
static struct {
    void *c10;
    int64_t (*function_modes)(void);
    bool (*has_callbacks)(void);
    bool (*records)(void);
    bool (*requires_grad)(const void *impl);
    py_object *(*wrap)(const void *tensor);
    const void *(*context)(void);
    bool (*deterministic)(const void *context);
} torch;
static struct {
    py_object *tensor, *parameter;        /* the two exact types that are plain */
    py_object *levels, *level, *no_level; /* forward mode: a module's dict, a name in it, and its value while off */
    size_t offset;                        /* of a tensor's key set in its implementation */
    uint64_t keys[4];                     /* of a plain tensor: KEYS_... */
    uint64_t inference[2];                /* the thread's words in inference mode */
    uint64_t idle;                        /* of the second word: keys that no plain tensor has */
    py_object *dtype[4];
    int32_t code[4];
} facts;

enum { KEYS_PLAIN, KEYS_INFERENCE, KEYS_CUDA, KEYS_CUDA_INFERENCE }; /* the first two on the CPU */

static uint64_t *keys_here(void) {
    static _Thread_local uint64_t *keys;
    if (!keys) keys = dlsym(torch.c10, KEYS);
    return keys;
}

/* On CUDA PyTorch's own backward calls back, as for a checkpoint, with one of the idle keys excluded. */
static bool keys_are(uint64_t included, uint64_t excluded) {
    const uint64_t *keys = keys_here();
    return keys[0] == included && !((keys[1] ^ excluded) & ~facts.idle);
}

static bool is_inference(void) { return keys_are(facts.inference[0], facts.inference[1]); }

bool entry_is_plain_here(void) {
    return (keys_are(0, 0) || is_inference()) && !torch.function_modes() && !torch.has_callbacks() &&
           py.PyDict_GetItem(facts.levels, facts.level) == facts.no_level;
}

static const char *impl_of(const py_object *object) { return *(const char *const *)((const char *)object + 16); }

static uint64_t keys_of(const py_object *object) {
    uint64_t keys;
    memcpy(&keys, impl_of(object) + facts.offset, sizeof(keys));
    return keys;
}

bool entry_read(py_object *object, wt_tensor *t) {
    if (object == py._Py_NoneStruct) {
        memset(t, 0, sizeof(*t));
        return true;
    }
    if (object->type != facts.tensor && object->type != facts.parameter) return false;
    const uint64_t keys = keys_of(object);
    bool plain = false;
    for (int i = 0; i < 4 && !plain; i++) plain = keys == facts.keys[i];
    return plain && !wt_read_tensor((wt_handle)((char *)object + 16), t);
}

bool entry_read_dtype(const py_object *object, int64_t *code) {
    for (int i = 0; i < 4; i++) {
        if (object != facts.dtype[i]) continue;
        *code = facts.code[i];
        return true;
    }
    return false;
}

bool entry_requires_grad(const wt_tensor *t) { return t->handle && torch.requires_grad(*(void **)t->handle); }
bool entry_may_write(const py_object *tensor) {
    const uint64_t keys = keys_of(tensor);
    const bool normal = keys == facts.keys[KEYS_PLAIN] || keys == facts.keys[KEYS_CUDA];
    return !torch.requires_grad(impl_of(tensor)) && (is_inference() || normal);
}
bool entry_records(void) { return torch.records(); }
bool entry_is_deterministic(void) { return torch.deterministic(torch.context()); }

py_object *entry_wrap(wt_handle tensor) {
    py_object *made = torch.wrap(tensor);
    wt.aoti_torch_delete_tensor_object(tensor);
    return made;
}

static py_object *given(py_object *constant) {
    py.Py_IncRef(constant);
    return constant;
}
py_object *entry_none(void) { return given(py._Py_NoneStruct); }
py_object *entry_bool(bool value) { return given(value ? py._Py_TrueStruct : py._Py_FalseStruct); }
py_object *entry_refuse(void) { return given(py._Py_NotImplementedStruct); }

/* ---------------------------------------------------------------- the self-test */
static void *find(const char *library, const char *const names[]) {
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD), *symbol = NULL;
    for (int i = 0; handle && names[i] && !symbol; i++) symbol = dlsym(handle, names[i]);
    return symbol;
}

static bool find_all(void) {
    torch.c10 = dlopen("libc10.so", RTLD_NOW | RTLD_NOLOAD);
    if (!torch.c10 || !dlsym(torch.c10, KEYS)) return false;
#define FIND(to, library, ...) *(void **)&torch.to = find(library, (const char *const[]){__VA_ARGS__, NULL})
    FIND(function_modes, "libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv");
    FIND(has_callbacks, "libtorch_cpu.so", "_ZN2at12hasCallbacksEv");
    FIND(context, "libtorch_cpu.so", "_ZN2at13globalContextEv");
    FIND(deterministic, "libtorch_cpu.so", "_ZNK2at7Context23deterministicAlgorithmsEv");
    FIND(records, "libc10.so", "_ZN3c108GradMode10is_enabledEv");
    FIND(requires_grad, "libc10.so", "_ZNK3c1010TensorImpl13requires_gradEv");
    FIND(wrap, "libtorch_python.so", "_Z16THPVariable_WrapRKN2at10TensorBaseE",
         "_Z16THPVariable_WrapN2at10TensorBaseE");
#undef FIND
    return torch.function_modes && torch.has_callbacks && torch.records && torch.requires_grad && torch.wrap &&
           torch.context && torch.deterministic;
}

/* (Tensor, Parameter, dict of torch.autograd.forward_ad, "_current_level", -1, four types of data): kept for good; the
 * key sets of CUDA tensors, plain and of inference mode, -1 where they are not known; and the keys that no plain tensor
 * has. */
static py_object *begin(py_object *self, py_object *const *args, intptr_t nargs) {
    (void)self;
    if (nargs != 12 || !find_all()) return entry_refuse();
    for (int i = 0; i < 9; i++) py.Py_IncRef(args[i]);
    for (int i = 0; i < 4; i++) facts.dtype[i] = args[5 + i];
    facts.code[0] = wt.aoti_torch_dtype_float32(), facts.code[1] = wt.aoti_torch_dtype_float64();
    facts.code[2] = wt.aoti_torch_dtype_float16(), facts.code[3] = wt.aoti_torch_dtype_bfloat16();
    facts.tensor = args[0], facts.parameter = args[1];
    for (int i = 0; i < 2; i++) facts.keys[KEYS_CUDA + i] = (uint64_t)py.PyLong_AsLongLong(args[9 + i]);
    facts.idle = (uint64_t)py.PyLong_AsLongLong(args[11]);
    facts.levels = args[2], facts.level = args[3], facts.no_level = args[4];
    return entry_none();
}

/* (tensor, its _cdata, its key set, whether it requires grad, KEYS_...): true if all of it is found. Tensors of
 * several kinds narrow the offset down to where each one's key set is. */
static py_object *test_tensor(py_object *self, py_object *const *args, intptr_t nargs) {
    (void)self;
    bool same = nargs == 5 && (args[0]->type == facts.tensor || args[0]->type == facts.parameter) &&
                (long long)(intptr_t)impl_of(args[0]) == py.PyLong_AsLongLong(args[1]);
    if (!same) return entry_refuse();
    const char *impl = impl_of(args[0]);
    const uint64_t keys = (uint64_t)py.PyLong_AsLongLong(args[2]);
    const long long kind = py.PyLong_AsLongLong(args[4]);
    if (kind < 0 || kind > KEYS_INFERENCE) return entry_refuse();
    static uint64_t possible = ~UINT64_C(0); /* one bit for each word from 64 to 176, inside of any implementation */
    uint64_t here = 0;
    for (int i = 0; i < 15; i++) here |= (uint64_t)!memcmp(impl + 64 + 8 * i, &keys, 8) << i;
    possible &= here;
    if (!possible || torch.requires_grad(impl) != (args[3] == py._Py_TrueStruct)) return entry_refuse();
    facts.offset = 64 + 8 * (size_t)__builtin_ctzll(possible);
    facts.keys[kind] = keys;
    return entry_none();
}

/* What this thread's state is: plain, gradients, deterministic algorithms. With True its words are kept as those of
 * inference mode. */
static py_object *test_thread(py_object *self, py_object *const *args, intptr_t nargs) {
    (void)self;
    if (nargs == 1 && args[0] == py._Py_TrueStruct) memcpy(facts.inference, keys_here(), sizeof(facts.inference));
    const bool state[] = {entry_is_plain_here(), entry_records(), entry_is_deterministic()};
    py_object *made = py.PyTuple_New(3);
    for (int i = 0; made && i < 3; i++) py.PyTuple_SetItem(made, i, entry_bool(state[i]));
    return made;
}

/* The builtins of the test by number; NULL: no more. Called with the GIL. */
WEFT_API py_object *weft_torch_entry_test(int32_t which) {
    static py_method methods[] = {{"begin", begin, PY_FASTCALL, NULL},
                                  {"test_tensor", test_tensor, PY_FASTCALL, NULL},
                                  {"test_thread", test_thread, PY_FASTCALL, NULL}};
    if (!wt_python_load()) return NULL;
    return py.PyCFunction_NewEx(&methods[which], NULL, NULL);
}
