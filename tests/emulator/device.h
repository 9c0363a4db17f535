/* CUDA C as C++ for the host: what NVRTC knows by itself. Included before every source compiled for the emulator.
 * A block's threads are fibers of one thread: between two barriers each runs alone, so there are no data races to see,
 * but a thread that reads before a barrier what another writes gets the value from before (driver.c). */
#ifndef EMULATOR_DEVICE_H
#define EMULATOR_DEVICE_H

#include <math.h>
#include <string.h>

#include "state.h"

#undef INFINITY
#undef NAN
#undef INT32_MIN
#undef INT32_MAX
#undef UINT32_MAX
#undef INT64_MIN
#undef INT64_MAX
#undef UINT64_MAX
#undef INT64_C
#undef UINT64_C
#undef UINT32_C

#define EMULATED_EXPORT __attribute__((visibility("default")))
#define EMULATED_SHARED __attribute__((section("emulated_shared"), aligned(16)))

extern "C" {
EMULATED_EXPORT emulated_state *emulated;
EMULATED_EXPORT __attribute__((aligned(1024))) char emulated_dynamic[EMULATED_SMEM];
EMULATED_SHARED char emulated_static_one[16]; /* the section exists */
extern char __start_emulated_shared[], __stop_emulated_shared[];
EMULATED_EXPORT char *emulated_static_area[2] = {__start_emulated_shared, __stop_emulated_shared};
}

#define __global__ EMULATED_EXPORT
#define __device__
#define __host__
#define __constant__ static const
#define __managed__
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __shared__ static EMULATED_SHARED
#define threadIdx (emulated->thread)
#define blockIdx (emulated->block)
#define gridDim (emulated->grid)
#define blockDim (emulated->block_size)
static const int warpSize = EMULATED_WARP;

/* ---------------------------------------------------------------- vectors */
#define EMULATED_VECTOR(T, name, align2, align4)                                      \
    struct name##1 { T x; };                                                          \
    struct __align__(align2) name##2 { T x, y; };                                     \
    struct name##3 { T x, y, z; };                                                    \
    struct __align__(align4) name##4 { T x, y, z, w; };                               \
    static inline name##2 make_##name##2(T x, T y) { return name##2 {x, y}; }         \
    static inline name##3 make_##name##3(T x, T y, T z) { return name##3 {x, y, z}; } \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return name##4 {x, y, z, w}; }
EMULATED_VECTOR(float, float, 8, 16)
EMULATED_VECTOR(double, double, 16, 16)
EMULATED_VECTOR(int, int, 8, 16)
EMULATED_VECTOR(unsigned, uint, 8, 16)
EMULATED_VECTOR(short, short, 4, 8)
EMULATED_VECTOR(unsigned short, ushort, 4, 8)
EMULATED_VECTOR(char, char, 2, 4)
EMULATED_VECTOR(unsigned char, uchar, 2, 4)
EMULATED_VECTOR(long, longlong, 16, 16)
EMULATED_VECTOR(unsigned long, ulonglong, 16, 16)
struct dim3 {
    unsigned x, y, z;
};

/* ---------------------------------------------------------------- barriers and warps */
static inline void __syncthreads() { emulated->block_barrier(); }
static inline void __syncwarp(uint32_t mask = 0xffffffffu) { emulated->exchange(mask, 0); }

template <class T> static inline uint64_t emulated_bits(T v) {
    static_assert(sizeof(T) <= 8, "shuffles move up to 8 bytes");
    uint64_t bits = 0;
    memcpy(&bits, &v, sizeof(v));
    return bits;
}
template <class T> static inline T emulated_value(uint64_t bits) {
    T v;
    memcpy(&v, &bits, sizeof(v));
    return v;
}
template <class T> static inline T emulated_from(uint32_t mask, T v, int source, bool inside) {
    const int own = emulated->lane;
    const uint64_t *all = emulated->exchange(mask, emulated_bits(v));
    return emulated_value<T>(all[inside ? source : own]);
}
template <class T> static inline T __shfl_sync(uint32_t mask, T v, int lane, int width = 32) {
    const int base = emulated->lane & ~(width - 1);
    return emulated_from(mask, v, base + (lane & (width - 1)), true);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int bits, int width = 32) {
    const int lane = emulated->lane, source = lane ^ bits;
    return emulated_from(mask, v, source & 31, source < (lane & ~(width - 1)) + width);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, unsigned by, int width = 32) {
    const int lane = emulated->lane, source = lane - (int)by;
    return emulated_from(mask, v, source & 31, source >= (lane & ~(width - 1)));
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, unsigned by, int width = 32) {
    const int lane = emulated->lane, source = lane + (int)by;
    return emulated_from(mask, v, source & 31, source < (lane & ~(width - 1)) + width);
}
static inline unsigned __ballot_sync(uint32_t mask, int predicate) {
    const uint64_t *all = emulated->exchange(mask, predicate != 0);
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (mask >> i & 1) && all[i] ? 1u << i : 0;
    return bits;
}
template <class T> static inline unsigned __match_any_sync(uint32_t mask, T v) {
    const uint64_t *all = emulated->exchange(mask, emulated_bits(v));
    unsigned bits = 0;
    for (int i = 0; i < 32; i++) bits |= (mask >> i & 1) && all[i] == emulated_bits(v) ? 1u << i : 0;
    return bits;
}
static inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(uint32_t mask, int predicate) { return !__ballot_sync(mask, !predicate); }
static inline unsigned __activemask() { return 0xffffffffu; }
#define EMULATED_REDUCE(name, T, expression)                              \
    static inline T __reduce_##name##_sync(uint32_t mask, T v) {          \
        const uint64_t *all = emulated->exchange(mask, emulated_bits(v)); \
        T r = v;                                                          \
        bool first = true;                                                \
        for (int i = 0; i < 32; i++)                                      \
            if (mask >> i & 1) {                                          \
                const T o = emulated_value<T>(all[i]);                    \
                r = first ? o : (expression);                             \
                first = false;                                            \
            }                                                             \
        return r;                                                         \
    }
EMULATED_REDUCE(add, unsigned, r + o)
EMULATED_REDUCE(add, int, r + o)
EMULATED_REDUCE(max, unsigned, r > o ? r : o)
EMULATED_REDUCE(max, int, r > o ? r : o)
EMULATED_REDUCE(min, unsigned, r < o ? r : o)
EMULATED_REDUCE(min, int, r < o ? r : o)
static inline int __syncthreads_or(int v) {
    static EMULATED_SHARED int any[2];
    static EMULATED_SHARED int turn;
    any[turn & 1] = 0;
    __syncthreads();
    if (v) any[turn & 1] = 1;
    __syncthreads();
    const int r = any[turn & 1];
    __syncthreads();
    if (threadIdx.x + threadIdx.y + threadIdx.z == 0) turn++;
    __syncthreads();
    return r;
}
static inline int __syncthreads_and(int v) { return !__syncthreads_or(!v); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) { emulated->poll(); }
static inline void __trap() { emulated->fail("__trap"); }
static inline long clock64() { return 0; }

/* ---------------------------------------------------------------- memory */
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline T __ldca(const T *p) { return *p; }
template <class T> static inline T __ldlu(const T *p) { return *p; }
template <class T> static inline T __ldcv(const T *p) { return *(const volatile T *)p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stwt(T *p, T v) { *p = v; }
#define EMULATED_ATOMIC(name, expression)                                 \
    template <class T, class U> static inline T atomic##name(T *p, U v) { \
        const T old = *p;                                                 \
        *p = (T)(expression);                                             \
        return old;                                                       \
    }
EMULATED_ATOMIC(Add, old + v)
EMULATED_ATOMIC(Sub, old - v)
EMULATED_ATOMIC(Exch, v)
EMULATED_ATOMIC(Max, old > (T)v ? old : (T)v)
EMULATED_ATOMIC(Min, old < (T)v ? old : (T)v)
EMULATED_ATOMIC(Or, old | v)
EMULATED_ATOMIC(And, old &v)
EMULATED_ATOMIC(Inc, old >= (T)v ? 0 : old + 1)
template <class T> static inline T atomicCAS(T *p, T compare, T v) {
    const T old = *p;
    if (old == compare) *p = v;
    return old;
}

/* ---------------------------------------------------------------- arithmetic */
static inline float __uint_as_float(unsigned v) { return emulated_value<float>(v); }
static inline float __int_as_float(int v) { return emulated_value<float>((unsigned)v); }
static inline unsigned __float_as_uint(float v) { return (unsigned)emulated_bits(v); }
static inline int __float_as_int(float v) { return (int)emulated_bits(v); }
static inline double __longlong_as_double(long v) { return emulated_value<double>((uint64_t)v); }
static inline long __double_as_longlong(double v) { return (long)emulated_bits(v); }
static inline float rsqrtf(float v) { return 1 / sqrtf(v); }
static inline float __frsqrt_rn(float v) { return 1 / sqrtf(v); }
static inline double rsqrt(double v) { return 1 / sqrt(v); }
#define __expf(v) expf(v)
#define __exp10f(v) powf(10, v)
#define __logf(v) logf(v)
#define __log2f(v) log2f(v)
#define __powf(a, b) powf(a, b)
#define __sinf(v) sinf(v)
#define __cosf(v) cosf(v)
#define __sincosf(v, s, c) sincosf(v, s, c)
static inline void sincospif(float v, float *s, float *c) { *s = (float)sin(M_PI * v), *c = (float)cos(M_PI * v); }
static inline float cospif(float v) { return (float)cos(M_PI * v); }
static inline float sinpif(float v) { return (float)sin(M_PI * v); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float v) { return 1 / v; }
static inline float __fsqrt_rn(float v) { return sqrtf(v); }
static inline float __saturatef(float v) { return v > 0 ? v < 1 ? v : 1 : 0; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
__attribute__((optimize("fp-contract=off"))) static inline float __fmul_rn(float a, float b) { return a * b; }
__attribute__((optimize("fp-contract=off"))) static inline float __fadd_rn(float a, float b) { return a + b; }
__attribute__((optimize("fp-contract=off"))) static inline float __fsub_rn(float a, float b) { return a - b; }
__attribute__((optimize("fp-contract=off"))) static inline double __dmul_rn(double a, double b) { return a * b; }
__attribute__((optimize("fp-contract=off"))) static inline double __dadd_rn(double a, double b) { return a + b; }
static inline int __float2int_rn(float v) { return (int)rintf(v); }
static inline int __float2int_rd(float v) { return (int)floorf(v); }
static inline int __float2int_rz(float v) { return (int)v; }
static inline float __int2float_rn(int v) { return (float)v; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return (uint64_t)((__extension__(unsigned __int128) a) * b >> 64);
}
static inline int __mul24(int a, int b) { return a * b; }
static inline int __popc(unsigned v) { return __builtin_popcount(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long v) { return v ? __builtin_clzl((unsigned long)v) : 64; }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline unsigned __brev(unsigned v) {
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const uint64_t both = (uint64_t)b << 32 | a;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) r |= (unsigned)(both >> 8 * (s >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned by) {
    return (unsigned)(((uint64_t)hi << 32 | lo) >> (by & 31));
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned by) {
    return (unsigned)(((uint64_t)hi << 32 | lo) << (by & 31) >> 32);
}
#define EMULATED_PAIR(T)                                    \
    static inline T min(T a, T b) { return b < a ? b : a; } \
    static inline T max(T a, T b) { return a < b ? b : a; }
EMULATED_PAIR(int)
EMULATED_PAIR(unsigned)
EMULATED_PAIR(long)
EMULATED_PAIR(unsigned long)
static inline long min(long a, int b) { return b < a ? b : a; }
static inline long min(int a, long b) { return b < a ? b : a; }
static inline long max(long a, int b) { return a < b ? b : a; }
static inline long max(int a, long b) { return a < b ? b : a; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }
static inline uint64_t __cvta_generic_to_shared(const void *p) { return (uint64_t)p; }
static inline const void *__cvta_generic_to_global(const void *p) { return p; }
static inline void *__cvta_shared_to_generic(uint64_t p) { return (void *)p; }

#endif
