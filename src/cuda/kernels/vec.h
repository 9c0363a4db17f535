/* Elements of f32, f16 and bf16 as floats, by vectors of up to 16 bytes. For device code only. */
#ifndef WEFT_CUDA_VEC_H
#define WEFT_CUDA_VEC_H

#include "ptx.h"

#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)

/* exp(x) for x <= 0 or not far above: the error of 2 + |x| units in the last place counts little where exp(x) is
 * small beside 1. */
static __device__ __forceinline__ float exp_small(float x) { return ptx_ex2(x * 1.44269504f); }

typedef float f32_t;
struct f16_t {
    uint16_t bits;
};
struct bf16_t {
    uint16_t bits;
};

static __device__ __forceinline__ float widen(f32_t v) { return v; }
static __device__ __forceinline__ float widen(bf16_t v) { return __uint_as_float((uint32_t)v.bits << 16); }
static __device__ __forceinline__ float widen(f16_t v) { return ptx_f16_to_f32(v.bits); }

/* To nearest, ties to even. */
template <class E> static __device__ __forceinline__ E narrow(float v);
template <> __device__ __forceinline__ f32_t narrow<f32_t>(float v) { return v; }
template <> __device__ __forceinline__ f16_t narrow<f16_t>(float v) { return {ptx_f32_to_f16(v)}; }
template <> __device__ __forceinline__ bf16_t narrow<bf16_t>(float v) { return {ptx_f32_to_bf16(v)}; }

template <bool, class A, class B> struct either {
    typedef A type;
};
template <class A, class B> struct either<false, A, B> {
    typedef B type;
};

/* One access of that many bytes, or several of the widest kind that they are a multiple of. */
template <int BYTES> struct access {
    typedef
        typename either<BYTES % 4 == 0, uint32_t, typename either<BYTES % 2 == 0, uint16_t, uint8_t>::type>::type few;
    typedef typename either<BYTES % 16 == 0, uint4, typename either<BYTES % 8 == 0, uint2, few>::type>::type unit;
    struct word {
        unit part[BYTES / sizeof(unit)];
    };
};
template <> struct access<16> {
    typedef uint4 word;
};
template <> struct access<8> {
    typedef uint2 word;
};
template <> struct access<4> {
    typedef uint32_t word;
};
template <> struct access<2> {
    typedef uint16_t word;
};
template <> struct access<1> {
    typedef uint8_t word;
};

template <class E, int N> union pack {
    typename access<N * sizeof(E)>::word word;
    E v[N];
    __device__ __forceinline__ pack() {}
};

/* As they are: 16-bit values kept so take half the registers. */
template <class E, int N> static __device__ __forceinline__ void load_raw(const E *at, pack<E, N> &to) {
    to.word = *(const typename access<N * sizeof(E)>::word *)at;
}

template <class E, int N> static __device__ __forceinline__ void load(const E *at, float (&to)[N]) {
    pack<E, N> p;
    p.word = *(const typename access<N * sizeof(E)>::word *)at;
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = widen(p.v[i]);
}

/* Two of 16 bits by one instruction. */
static __device__ __forceinline__ uint32_t narrow_two(f16_t, float lo, float hi) { return ptx_f32_to_f16x2(lo, hi); }
static __device__ __forceinline__ uint32_t narrow_two(bf16_t, float lo, float hi) { return ptx_f32_to_bf16x2(lo, hi); }

template <class E, int N> static __device__ __forceinline__ void store(E *at, const float (&from)[N]) {
    union {
        typename access<N * sizeof(E)>::word word;
        uint32_t two[N > 1 ? N / 2 : 1];
        E v[N];
    } p;
    if constexpr (sizeof(E) == 2 && N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) p.two[i] = narrow_two(E(), from[2 * i], from[2 * i + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) p.v[i] = narrow<E>(from[i]);
    }
    *(typename access<N * sizeof(E)>::word *)at = p.word;
}

#endif
