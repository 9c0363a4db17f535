/* What every CPU kernel file includes. The file is compiled once per ISA: WEFT__KERNEL(name) defines the record of this
 * build, WEFT__RECORD(name) refers to it, WEFT__NAME("...") is its name with the ISA behind, WEFT__ISA_HERE the ISA. */
#ifndef WEFT_CPU_KERNEL_H
#define WEFT_CPU_KERNEL_H

#include "core/internal.h"

#if defined(WEFT__BUILD_AVX512)
#define WEFT__RECORD(name) weft__cpu_##name##_avx512
#define WEFT__NAME(text) text "__avx512"
#define WEFT__ISA_HERE WEFT__AVX512
#elif defined(WEFT__BUILD_AVX2)
#define WEFT__RECORD(name) weft__cpu_##name##_avx2
#define WEFT__NAME(text) text "__avx2"
#define WEFT__ISA_HERE WEFT__AVX2
#else
#define WEFT__RECORD(name) weft__cpu_##name##_scalar
#define WEFT__NAME(text) text "__scalar"
#define WEFT__ISA_HERE WEFT__SCALAR
#endif
#define WEFT__KERNEL(name) const weft__kernel WEFT__RECORD(name)

#endif
