/* What every CPU kernel file includes. The file is compiled once per ISA: WEFT__KERNEL(name) defines the record of this
 * build, WEFT__RECORD(name) refers to it, WEFT__NAME("...") is its name with the ISA behind, WEFT__ISA_HERE the ISA.
 * A function or table that the kernels of one build share across files is named WEFT__ISA_NAME(name), in the header that
 * declares it and in the source, a src/cpu/<folder>/<file>.c, that defines it: one of each per ISA. */
#ifndef WEFT_CPU_KERNEL_H
#define WEFT_CPU_KERNEL_H

#include "core/internal.h"

#if defined(WEFT__BUILD_AVX512)
#define WEFT__ISA_NAME(name) name##_avx512
#define WEFT__NAME(text) text "__avx512"
#define WEFT__ISA_HERE WEFT__AVX512
#elif defined(WEFT__BUILD_AVX2)
#define WEFT__ISA_NAME(name) name##_avx2
#define WEFT__NAME(text) text "__avx2"
#define WEFT__ISA_HERE WEFT__AVX2
#else
#define WEFT__ISA_NAME(name) name##_scalar
#define WEFT__NAME(text) text "__scalar"
#define WEFT__ISA_HERE WEFT__SCALAR
#endif
#define WEFT__RECORD(name) WEFT__ISA_NAME(weft__cpu_##name)
#define WEFT__KERNEL(name) const weft__kernel WEFT__RECORD(name)

#endif
