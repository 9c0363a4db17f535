/* Finding CPython in the process. */
#include "python.h"

#include <dlfcn.h>

wt_python py;

bool wt_python_load(void) {
    static const struct {
        const char *name;
        size_t offset;
    } table[] = {
#define X(returns, name, parameters) {#name, offsetof(wt_python, name)},
        WT_PYTHON_FUNCTIONS(X)
#undef X
#define X(name) {#name, offsetof(wt_python, name)},
            WT_PYTHON_OBJECTS(X)
#undef X
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        void *symbol = dlsym(RTLD_DEFAULT, table[i].name);
        if (!symbol) return false;
        *(void **)((char *)&py + table[i].offset) = symbol;
    }
    return true;
}
