/* What every CPU kernel file includes. The file is compiled once per row of cpu/isa.h, which gives the name
 * WEFT__BUILD: WEFT__KERNEL(name) defines the record of this build, WEFT__RECORD(name) refers to it,
 * WEFT__NAME("...") is its name with the ISA behind, WEFT__ISA_HERE the ISA. A function or table that the kernels of
 * one build share across files is named WEFT__ISA_NAME(name), in the header that declares it and in the source, a
 * src/cpu/<folder>/<file>.c, that defines it: one of each per ISA. */
#ifndef WEFT_CPU_KERNEL_H
#define WEFT_CPU_KERNEL_H

#include "core/internal.h"

#define WEFT__PASTE(name, isa) name##_##isa
#define WEFT__PASTE_VALUES(name, isa) WEFT__PASTE(name, isa)
#define WEFT__TEXT(word) #word
#define WEFT__TEXT_OF_VALUE(word) WEFT__TEXT(word)
#define WEFT__ISA_NAME(name) WEFT__PASTE_VALUES(name, WEFT__BUILD)
#define WEFT__NAME(text) text "__" WEFT__TEXT_OF_VALUE(WEFT__BUILD)
#define WEFT__ISA_HERE WEFT__BUILD_ID
#define WEFT__RECORD(name) WEFT__ISA_NAME(weft__cpu_##name)
#define WEFT__KERNEL(name) const weft__kernel WEFT__RECORD(name)

#endif
