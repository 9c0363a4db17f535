/* What a fuzz target gives to whoever drives it: libFuzzer, or fuzz/main.c. */
#ifndef WEFT_FUZZ_H
#define WEFT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern const char *const fuzz_seeds[]; /* valid inputs to begin with; ends with NULL */

#endif
