/* Fourier transforms of N complex points in the registers of one thread, N of the factors 2, 3 and 5. For device code
 * only. Everything is unrolled: indices and roots of unity are constants, and orders cost nothing.
 * N = R M: where R and M have no common factor, points are numbered so that no roots stand between the two steps (Good,
 * Thomas); else they do (Cooley, Tukey). The inverse is the transform with real and imaginary parts exchanged. */
#ifndef WEFT_CUDA_FFT_H
#define WEFT_CUDA_FFT_H

struct point {
    float re, im;
};

/* cos(2 pi e / n), by symmetry from an angle of at most pi / 2. */
static __device__ constexpr double root_cos(int e, int n) {
    e = (e % n + n) % n;
    if (2 * e > n) e = n - e;
    if (4 * e > n) return -root_cos(n - 2 * e, 2 * n);
    if (4 * e == n) return 0;
    const double x = 6.283185307179586476925 * e / n;
    double term = 1, sum = 1;
    for (int i = 1; i < 14; i++) {
        term *= -x * x / ((2 * i - 1) * (2 * i));
        sum += term;
    }
    return sum;
}
static __device__ constexpr double root_sin(int e, int n) { return root_cos(4 * e - n, 4 * n); }

template <int N> struct roots {
    float re[N], im[N]; /* exp(-2 pi i e / N) */
};
template <int N> static __device__ constexpr roots<N> roots_of() {
    roots<N> r = {};
    for (int e = 0; e < N; e++) r.re[e] = (float)root_cos(e, N), r.im[e] = (float)-root_sin(e, N);
    return r;
}

static __device__ constexpr int power_part(int n, int p) { return n % p ? 1 : p * power_part(n / p, p); }
static __device__ constexpr int common(int a, int b) { return b ? common(b, a % b) : a; }

/* The first factor: all of one prime where there are others, else a small one. */
static __device__ constexpr int factor_of(int n) {
    const int two = power_part(n, 2), three = power_part(n, 3), five = power_part(n, 5);
    if (two > 1 && two < n) return two;
    if (three > 1 && three < n) return three;
    return two > 1 ? 4 : three > 1 ? 3 : five > 1 ? 5 : n;
}

/* The number below R M with these remainders by R and M: r * residue<R, M>() + m * residue<M, R>(). */
template <int R, int M> static __device__ constexpr int residue() {
    int x = 0;
    if (common(R, M) != 1) return 0;
    while (x % R != 1 % R) x += M;
    return x;
}
/* Where the points of the two steps come from and go to. */
template <int R, int M> static __device__ __forceinline__ constexpr int from_of(int r, int m) {
    return common(R, M) == 1 ? (M * r + R * m) % (R * M) : m * R + r;
}
template <int R, int M> static __device__ __forceinline__ constexpr int to_of(int q, int k) {
    if (common(R, M) != 1) return k + M * q;
    constexpr int u = residue<R, M>(), v = residue<M, R>();
    return (q * u + k * v) % (R * M);
}

static __device__ __forceinline__ point operator+(point a, point b) { return {a.re + b.re, a.im + b.im}; }
static __device__ __forceinline__ point operator-(point a, point b) { return {a.re - b.re, a.im - b.im}; }
static __device__ __forceinline__ point operator*(point a, point b) {
    return {fmaf(a.re, b.re, -(a.im * b.im)), fmaf(a.re, b.im, a.im * b.re)};
}
static __device__ __forceinline__ point turned(point a) { return {a.im, -a.re}; } /* times -i */
static __device__ __forceinline__ point exchanged(point a) { return {a.im, a.re}; }
static __device__ __forceinline__ point conjugate(point a) { return {a.re, -a.im}; }
static __device__ __forceinline__ point add_scaled(point a, float f, point b) {
    return {fmaf(f, b.re, a.re), fmaf(f, b.im, a.im)};
}

template <int N> struct fft {
    enum { R = factor_of(N), M = N / R, APART = common(R, M) == 1 };
    static __device__ __forceinline__ void run(point (&v)[N]) {
        constexpr roots<N> w = roots_of<N>();
        point part[R][M];
#pragma unroll
        for (int r = 0; r < R; r++) {
#pragma unroll
            for (int m = 0; m < M; m++) part[r][m] = v[from_of<R, M>(r, m)];
            fft<M>::run(part[r]);
        }
#pragma unroll
        for (int k = 0; k < M; k++) {
            point t[R];
#pragma unroll
            for (int r = 0; r < R; r++) {
                const int e = r * k % N;
                if (APART || e == 0)
                    t[r] = part[r][k];
                else if (4 * e == N)
                    t[r] = turned(part[r][k]);
                else
                    t[r] = part[r][k] * point{w.re[e], w.im[e]};
            }
            fft<R>::run(t);
#pragma unroll
            for (int q = 0; q < R; q++) v[to_of<R, M>(q, k)] = t[q];
        }
    }
};

template <> struct fft<1> {
    static __device__ __forceinline__ void run(point (&)[1]) {}
};

template <> struct fft<2> {
    static __device__ __forceinline__ void run(point (&v)[2]) {
        const point a = v[0];
        v[0] = a + v[1];
        v[1] = a - v[1];
    }
};

template <> struct fft<3> {
    static __device__ __forceinline__ void run(point (&v)[3]) {
        constexpr float half_root = 0.86602540378f;
        const point sum = v[1] + v[2], apart = turned(v[1] - v[2]), middle = add_scaled(v[0], -0.5f, sum);
        v[0] = v[0] + sum;
        v[1] = add_scaled(middle, half_root, apart);
        v[2] = add_scaled(middle, -half_root, apart);
    }
};

template <> struct fft<4> {
    static __device__ __forceinline__ void run(point (&v)[4]) {
        const point a = v[0] + v[2], b = v[0] - v[2], c = v[1] + v[3], d = turned(v[1] - v[3]);
        v[0] = a + c;
        v[1] = b + d;
        v[2] = a - c;
        v[3] = b - d;
    }
};

template <> struct fft<5> {
    static __device__ __forceinline__ void run(point (&v)[5]) {
        constexpr float c1 = 0.30901699437f, c2 = -0.80901699437f, s1 = 0.95105651629f, s2 = 0.58778525229f;
        const point a = v[1] + v[4], b = v[2] + v[3], d = turned(v[1] - v[4]), e = turned(v[2] - v[3]);
        const point m1 = add_scaled(add_scaled(v[0], c1, a), c2, b), m2 = add_scaled(add_scaled(v[0], c2, a), c1, b);
        const point zero = {0, 0}, t1 = add_scaled(add_scaled(zero, s1, d), s2, e),
                    t2 = add_scaled(add_scaled(zero, s2, d), -s1, e);
        v[0] = v[0] + a + b;
        v[1] = m1 + t1;
        v[2] = m2 + t2;
        v[3] = m2 - t2;
        v[4] = m1 - t1;
    }
};

#endif
