/* Finding PyTorch's C shim in the process. */
#include "shim.h"

#include <dlfcn.h>
#include <stdio.h>

wt_shim wt;
#define NAME_OF(name) #name /* of a macro: what it stands for */

/* libtorch.so sees the symbols of the CPU and the CUDA library; it must be loaded already, by `import torch`. */
const char *wt_shim_load(void) {
    static char why[256];
    static const struct {
        const char *name;
        size_t offset;
        bool required;
    } table[] = {
#define X(returns, name, parameters) {#name, offsetof(wt_shim, name), true},
        WT_REQUIRED(X)
#undef X
#define X(returns, name, parameters) {NAME_OF(name), offsetof(wt_shim, name), false},
            WT_OPTIONAL(X)
#undef X
    };
    void *torch = dlopen("libtorch.so", RTLD_NOW | RTLD_NOLOAD);
    if (!torch) return "libtorch.so is not loaded in this process: import torch first";
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        void *symbol = dlsym(torch, table[i].name);
        if (!symbol && table[i].required) {
            snprintf(why, sizeof(why), "this PyTorch has no %s, which weft needs: PyTorch 2.10 or later is supported",
                     table[i].name);
            return why;
        }
        *(void **)((char *)&wt + table[i].offset) = symbol;
    }
    if (!wt.torch_delete_stable_ivalue && !wt._ZdlPv)
        return "this PyTorch offers no way to free optional arguments: PyTorch 2.10 or later is supported";
    return NULL;
}

bool wt_shim_has_cuda(void) {
    return wt.aoti_torch_get_current_cuda_stream && wt.aoti_torch_create_cuda_guard && wt.aoti_torch_delete_cuda_guard;
}
