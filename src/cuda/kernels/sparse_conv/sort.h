/* Entries by input channel, for the data gradient with sparse weights. For device code only. */
#ifndef WEFT_CUDA_SPARSE_SORT_H
#define WEFT_CUDA_SPARSE_SORT_H

/* The row of entry j among rows low .. high - 1: the last that begins at or before it. */
static __device__ __forceinline__ int row_of(const sparse_args &a, int64_t j, int low, int high) {
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (row_begin(a, middle) <= j)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Where the entries of an input channel are, and where those of its group end that have no channel. */
struct sorted {
    int begin, end, group_end;
};

/* put(j, at, low) for each entry j of an input channel, in their order; `at` is its place among those of all channels,
 * low its group's first output channel. A block has the channel; its warps have neighbouring parts of the group's
 * entries. */
template <class F> static __device__ __forceinline__ sorted sort_channel(const sparse_args &a, int channel, F put) {
    enum { WARPS = THREADS / 32 };
    __shared__ int before[WARPS], own[WARPS]; /* of each warp's part: entries of channels before this, and of this */
    const int group = channel / a.inside, mine = channel - group * a.inside, low = group * a.outs;
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const int begin = (int)row_begin(a, low), end = (int)row_begin(a, low + a.outs);
    const int part = (max(end - begin, 0) + WARPS * 32 - 1) / (WARPS * 32) * 32;
    const int from = begin + warp * part, to = min(from + part, end);
    int count = 0, less = 0;
#pragma unroll 4
    for (int j = from; j < to; j += 32) {
        const int c = j + lane < to ? column_of(a, j + lane).channel : -1;
        count += __popc(__ballot_sync(0xffffffffu, c == mine));
        less += __popc(__ballot_sync(0xffffffffu, (unsigned)c < (unsigned)mine));
    }
    if (lane == 0) before[warp] = less, own[warp] = count;
    __syncthreads();
    int first = begin, at = 0, all = 0;
    for (int i = 0; i < WARPS; i++) {
        first += before[i];
        if (i < warp) at += own[i];
        all += own[i];
    }
    at += first;
#pragma unroll 4
    for (int j = from; j < to; j += 32) {
        const bool is = j + lane < to && column_of(a, j + lane).channel == mine;
        const unsigned votes = __ballot_sync(0xffffffffu, is);
        if (is) put(j + lane, at + __popc(votes & ((1u << lane) - 1)), low);
        at += __popc(votes);
    }
    return {first, first + all, mine + 1 == a.inside ? end : first + all};
}

#endif
