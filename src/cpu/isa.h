/* The instruction sets that CPU kernels are built for: one row each, lowest first. Everything else follows from the
 * rows: the compiler's flags, which sources are compiled, the tables of kernels, what the machine has, what WEFT_ISA
 * allows.
 *
 *   X(arg, ID, name, vectors, files, gflops, features)
 *     ID, name    WEFT__ID, and the word in kernel names and in WEFT_ISA
 *     vectors     the header of cpu/simd/: WEFT__VECTORS_<vectors> is defined in the build
 *     files       all, or a word: only sources of src/cpu/<folder>/ whose names contain it, only kernels listed with it
 *     gflops      rough f32 multiply-add rate of one thread, for estimates
 *     features    what a machine must have, and by the same name, in lower case behind -m, the compiler's flags
 *   X(ID, name, supported)   a feature; supported: an expression of cpu/hw.c
 *
 * WEFT__ONLY_SCALAR or WEFT__NO_AVX512 among the compiler's flags leaves the higher rows out: for builds that test
 * something else than the kernels, in a third of the time.
 *
 * CMake reads the rows through the compiler's preprocessor (cmake/isa.cmake): this file includes nothing. */
#ifndef WEFT_CPU_ISA_H
#define WEFT_CPU_ISA_H

#if defined(__x86_64__) && !defined(WEFT__ONLY_SCALAR)
#define WEFT__FEATURE_LIST(X)                                 \
    X(AVX2, avx2, __builtin_cpu_supports("avx2"))             \
    X(FMA, fma, __builtin_cpu_supports("fma"))                \
    X(F16C, f16c, has_f16c())                                 \
    X(AVX512F, avx512f, __builtin_cpu_supports("avx512f"))    \
    X(AVX512VL, avx512vl, __builtin_cpu_supports("avx512vl")) \
    X(AVX512BW, avx512bw, __builtin_cpu_supports("avx512bw")) \
    X(AVX512DQ, avx512dq, __builtin_cpu_supports("avx512dq")) \
    X(AVX512BF16, avx512bf16, __builtin_cpu_supports("avx512bf16"))
#define WEFT__AVX2_FEATURES AVX2 | FMA | F16C
#define WEFT__AVX512_FEATURES WEFT__AVX2_FEATURES | AVX512F | AVX512VL | AVX512BW | AVX512DQ
#define WEFT__UP_TO_AVX2(X, arg)                        \
    X(arg, SCALAR, scalar, SCALAR, all, 6, NO_FEATURES) \
    X(arg, AVX2, avx2, AVX2, all, 70, WEFT__AVX2_FEATURES)
#ifdef WEFT__NO_AVX512
#define WEFT__ISA_LIST(X, arg) WEFT__UP_TO_AVX2(X, arg)
#else
#define WEFT__ISA_LIST(X, arg)                                      \
    WEFT__UP_TO_AVX2(X, arg)                                        \
    X(arg, AVX512, avx512, AVX512, all, 130, WEFT__AVX512_FEATURES) \
    X(arg, AVX512BF16, avx512bf16, AVX512, bf16, 130, WEFT__AVX512_FEATURES | AVX512BF16)
#endif
#else
#define WEFT__FEATURE_LIST(X)
#define WEFT__ISA_LIST(X, arg) X(arg, SCALAR, scalar, SCALAR, all, 6, NO_FEATURES)
#endif

#endif
