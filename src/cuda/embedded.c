/* Texts embedded at build time, found by their path. */
#include <string.h>

#include "core/internal.h"

const weft__embedded *weft__embedded_find(const char *name) {
    for (size_t i = 0; i < weft__embedded_count; i++)
        if (strcmp(weft__embedded_files[i].name, name) == 0) return &weft__embedded_files[i];
    return NULL;
}
