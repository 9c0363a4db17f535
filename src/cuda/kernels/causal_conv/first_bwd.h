/* The gradients of causal convolution, tokens side by side: the device half of first.cu. */
/* dz of TOK tokens from the windows of x and from diff_dst; 0 where there is no token. */
template <bool WHOLE>
static __device__ __forceinline__ void diff_sums_of(const causal_args &a, const place &p, int t, window (&x)[LOW + 1],
                                                    const pack<T, TOK> &dy, float (&dz)[TOK]) {
    float z[TOK];
    if (SILU || (WEIGHTS && NARROW)) sums_of<WHOLE>(a, p, t, x, z);
    widen_all(dy, dz);
#pragma unroll
    for (int i = 0; i < TOK && SILU; i++) dz[i] *= slope(z[i]);
    if (!WHOLE && t + TOK > a.w)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i >= a.w) dz[i] = 0;
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (x[0].seq[SEQ ? i : 0] < 0) dz[i] = 0;
}

/* dz of the tokens g lanes behind: of this chunk, or of the one behind it. The first `count` of them. */
static __device__ __forceinline__ void behind(const place &p, int g, int count, const float (&dz)[TOK],
                                              const float (&kept)[TOK], float (&to)[TOK]) {
#pragma unroll
    for (int i = 0; i < TOK; i++)
        if (i < count) to[i] = __shfl_sync(0xffffffffu, p.lane < g ? kept[i] : dz[i], (p.lane + g) % LANES, LANES);
}

/* Adds w[b] dz[t + i + b] for the taps b = g TOK + r. */
template <bool WHOLE>
static __device__ __forceinline__ void diff_taps(const causal_args &a, const place &p, int t, int g,
                                                 const float *weight, const float (&low)[TOK], const float (&high)[TOK],
                                                 float (&dx)[TOK]) {
#pragma unroll
    for (int r = 0; r < TOK; r++) {
        if (g * TOK + r >= K) continue;
#pragma unroll
        for (int i = 0; i < TOK; i++) {
            const int to = t + i + g * TOK + r;
            bool counts = true;
            if (SEQ)
                counts = seq_at(a, p.n, to) == seq_at(a, p.n, t + i);
            else if (STRICT && !WHOLE)
                counts = to >= 0 && to < a.w;
            if (counts)
                dx[i] = fmaf(weight[r], i + r < TOK ? low[(i + r) & (TOK - 1)] : high[(i + r) & (TOK - 1)], dx[i]);
        }
    }
}

/* diff_src of TOK tokens; before the first token, diff_h0. The whole warp calls. */
template <bool WHOLE>
static __device__ __forceinline__ void put_diff(const causal_args &a, const place &p, int t, const float (&dz)[TOK],
                                                const float (&kept)[TOK]) {
    float dx[TOK] = {}, low[TOK], high[TOK];
#pragma unroll
    for (int i = 0; i < TOK; i++) low[i] = dz[i];
    if (NARROW) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            behind(p, g + 1, K - 1 - g * TOK, dz, kept, high);
            diff_taps<WHOLE>(a, p, t, g, p.weight + (NARROW ? g * TOK : 0), low, high, dx);
#pragma unroll
            for (int i = 0; i < TOK; i++) low[i] = high[i];
        }
    } else {
#pragma unroll 1
        for (int g = 0; g < GROUPS; g++) {
            float weight[TOK];
#pragma unroll
            for (int r = 0; r < TOK; r++) weight[r] = g * TOK + r < K ? weight_at(a, p.c, g * TOK + r) : 0;
            behind(p, g + 1, TOK, dz, kept, high);
            diff_taps<WHOLE>(a, p, t, g, weight, low, high, dx);
#pragma unroll
            for (int i = 0; i < TOK; i++) low[i] = high[i];
        }
    }
    if (SEQ)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (seq_at(a, p.n, t + i) < 0) dx[i] = 0;
    if (!WHOLE && a.diff_hn.at && t + TOK > a.w - (K - 1))
#pragma unroll
        for (int i = 0; i < TOK; i++) {
            const int held = t + i - a.w + K - 1;
            if (held >= 0 && held < K - 1 && t + i >= 1 - K)
                dx[i] += widen(row_of<T>(a.diff_hn, p.n, p.c)[held * a.diff_hn.by_t]);
        }
    put<WHOLE>(a, p, a.diff_src, t, dx);
    if (!WHOLE && HAS_H0 && t < 0 && p.live)
#pragma unroll
        for (int i = 0; i < TOK; i++)
            if (t + i < 0 && t + i >= 1 - K)
                ((T *)row_of<T>(a.diff_h0, p.n, p.c))[(t + i + K - 1) * a.diff_h0.by_t] = narrow<T>(dx[i]);
}

/* Sums of dz x over the tokens of a segment. */
struct totals {
    float own[TAPS], bias; /* of this lane */
    float *unit;           /* wide windows: of all lanes, in shared memory */
};

template <bool WHOLE>
static __device__ __forceinline__ void add_up(const causal_args &a, const place &p, int t, const window (&x)[LOW + 1],
                                              const float (&dz)[TOK], totals &s) {
#pragma unroll
    for (int i = 0; i < TOK; i++) s.bias += dz[i];
    if (NARROW) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            each_tap<WHOLE>(a.w, t, g, x[0], x[g < LOW ? g : LOW], x[g + 1 < LOW ? g + 1 : LOW],
                            [&](int r, int i, float v) {
                                float &sum = s.own[NARROW ? g * TOK + r : 0];
                                sum = fmaf(dz[i], v, sum);
                            });
        return;
    }
    window high = x[0], low;
#pragma unroll 1
    for (int g = 0; g < GROUPS; g++) {
        float sum[TOK] = {};
        open_window<WHOLE>(a, p, t - (g + 1) * TOK, low);
        each_tap<WHOLE>(a.w, t, g, x[0], high, low, [&](int r, int i, float v) { sum[r] = fmaf(dz[i], v, sum[r]); });
#pragma unroll
        for (int r = 0; r < TOK; r++) {
            const float all = lanes_all<plus, LANES>(sum[r]);
            if (p.lane == r % LANES && g * TOK + r < K) s.unit[g * TOK + r] += all;
        }
        high = low;
    }
}

/* The sums of a block's units of one channel in their order: all there are, or a part for causal_sums. */
static __device__ __forceinline__ void put_totals(const causal_args &a, const place &p, totals &s) {
    enum { MANY = NARROW ? K + 1 : 1 };
    __shared__ float room[UNITS][MANY];
    const uint32_t some = blockIdx.x / (uint32_t)a.parts, part = blockIdx.x - some * (uint32_t)a.parts;
    const float bias = lanes_all<plus, LANES>(s.bias);
    if (!NARROW) {
        float *to = a.partial + ((int64_t)part * a.c + p.c) * (K + 1);
        __syncwarp(); /* the unit's sums were written by other lanes */
        if (!p.live) return;
        if (p.lane == 0) a.parts > 1 ? (void)(to[K] = bias) : put_sum(a, p.c, K, bias);
        for (int b = p.lane; b < K; b += LANES) a.parts > 1 ? (void)(to[b] = s.unit[b]) : put_sum(a, p.c, b, s.unit[b]);
        return;
    }
#pragma unroll
    for (int b = 0; b < MANY; b++) {
        const float all = b < K ? lanes_all<plus, LANES>(s.own[b < TAPS ? b : 0]) : bias;
        if (p.lane == 0) room[threadIdx.x / LANES][b] = p.live ? all : 0;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < UNITS / SHARE * MANY; i += CAUSAL_THREADS) {
        const int which = i / MANY, b = i % MANY;
        const int64_t c = (int64_t)some * (UNITS / SHARE) + which;
        float sum = 0;
#pragma unroll
        for (int u = 0; u < SHARE; u++) sum += room[which * SHARE + u][b];
        if (c >= a.c) continue;
        if (a.parts > 1)
            a.partial[((int64_t)part * a.c + c) * MANY + b] = sum;
        else
            put_sum(a, c, b, sum);
    }
}

/* A chunk: its gradients, and what they add to the sums; dz of it stays in kept. */
template <bool WHOLE>
static __device__ __forceinline__ void backward(const causal_args &a, const place &p, int t,
                                                const pack<T, TOK> (&raw)[LOW + 1], const pack<T, TOK> &dy,
                                                float (&kept)[TOK], totals &s) {
    window x[LOW + 1];
    float dz[TOK];
#pragma unroll
    for (int g = 0; g <= LOW; g++) open_window<WHOLE>(a, p, t - g * TOK, raw[g], x[g]);
    diff_sums_of<WHOLE>(a, p, t, x, dy, dz);
    if (WEIGHTS) add_up<WHOLE>(a, p, t, x, dz, s);
    if (!DATA) return;
    put_diff<WHOLE>(a, p, t, dz, kept);
#pragma unroll
    for (int i = 0; i < TOK; i++) kept[i] = dz[i];
}

/* The chunks of a unit from the last to the first, on their way through shared memory: a lane's 16 bytes are a slot. */
struct ring {
    uint4 (*src)[CAUSAL_THREADS], (*diff_dst)[CAUSAL_THREADS]; /* [stage] */
    const T *src_row, *diff_dst_row;                           /* of the next chunk, which begins at t0 */
    int t0, left;                                              /* left: chunks that are not on their way */

    static __device__ __forceinline__ void copy(const causal_args &a, uint4 *slot, const T *row, int t) {
        if (VEC == TOK)
            ptx_copy_some(slot, row + t, max(min((a.w - t) * (int)sizeof(T), 16), 0));
        else
            *slot = fetch(a, row, t).word;
    }
    __device__ __forceinline__ void fill(const causal_args &a, const place &p, int stage, int top) {
        if (left > 0) {
            copy(a, &src[stage][threadIdx.x], src_row, t0 + p.lane * TOK);
            copy(a, &diff_dst[stage][threadIdx.x], diff_dst_row, t0 + p.lane * TOK);
            left--;
            t0 -= CHUNK;
            if (t0 < p.begin) {
                t0 = top;
                src_row += a.src.by_n;
                diff_dst_row += a.diff_dst.by_n;
            }
        }
        ptx_copy_commit();
    }
    /* The slots of this lane and of those before it, the last ones of the chunk before; first: that is no chunk of the
     * unit. */
    __device__ __forceinline__ void take(const causal_args &a, const place &p, int stage, int t, bool first,
                                         pack<T, TOK> (&raw)[LOW + 1], pack<T, TOK> &dy) const {
        const int before = stage + 1 < STAGES ? stage + 1 : 0;
        raw[0].word = src[stage][threadIdx.x];
        dy.word = diff_dst[stage][threadIdx.x];
#pragma unroll
        for (int g = 1; g <= LOW; g++) {
            const bool own = p.lane >= g;
            raw[g].word = src[own ? stage : before][threadIdx.x - g + (own ? 0 : LANES)];
            if (first && !own) raw[g] = fetch(a, row_of<T>(a.src, p.n, p.c), t - g * TOK);
        }
    }
};

extern "C" __global__ void __launch_bounds__(CAUSAL_THREADS) causal_bwd(const __grid_constant__ causal_args a) {
    __shared__ uint4 slots[2][STAGES][CAUSAL_THREADS];
    __shared__ float unit_sums[NARROW ? 1 : UNITS * K];
    place p = open_row(a);
    const int top = p.begin + max(p.end - 1 - p.begin, 0) / CHUNK * CHUNK, turns = (int)min((int64_t)a.each, a.n - p.n);
    ring w = {slots[0],
              slots[1],
              row_of<T>(a.src, p.n, p.c),
              row_of<T>(a.diff_dst, p.n, p.c),
              top,
              turns * ((top - p.begin) / CHUNK + 1)};
#pragma unroll
    for (int k = 0; k < STAGES - 1; k++) w.fill(a, p, k, top);
    float kept[TOK];
    totals s = {};
    if (!NARROW) {
        s.unit = unit_sums + threadIdx.x / LANES * K;
        for (int b = p.lane; b < K; b += LANES) s.unit[b] = 0;
    }
    for (int turn = 0, stage = 0; turn < turns; turn++, p.n++) {
#pragma unroll
        for (int i = 0; i < TOK; i++) kept[i] = 0;
        if (DATA && p.end < a.w && p.lane * TOK < K - 1) { /* dz behind the segment */
            const int t = p.end + p.lane * TOK;
            window x[LOW + 1];
            open_window<false>(a, p, t, x[0]);
            open_low<false>(a, p, t, x);
            diff_sums_of<false>(a, p, t, x, fetch(a, row_of<T>(a.diff_dst, p.n, p.c), t), kept);
        }
        for (int t0 = top; t0 >= p.begin; t0 -= CHUNK, stage = stage + 1 < STAGES ? stage + 1 : 0) {
            __syncwarp(); /* the stage that is filled next was read by other lanes */
            w.fill(a, p, stage ? stage - 1 : STAGES - 1, top);
            ptx_copy_wait<STAGES - 2>(); /* this chunk and the one before it */
            __syncwarp();
            pack<T, TOK> raw[LOW + 1], dy;
            const int t = t0 + p.lane * TOK;
            w.take(a, p, stage, t, t0 == p.begin, raw, dy);
            if (t0 >= REACH && t0 + CHUNK + REACH <= a.w)
                backward<true>(a, p, t, raw, dy, kept, s);
            else
                backward<false>(a, p, t, raw, dy, kept, s);
        }
        if (DATA && HAS_H0 && p.begin == 0) {
            const float none[TOK] = {};
            put_diff<false>(a, p, (p.lane - LANES) * TOK, none, kept);
        }
    }
    if (WEIGHTS) put_totals(a, p, s);
}
