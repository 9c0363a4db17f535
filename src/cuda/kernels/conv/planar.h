/* Channels-last data as planes and back, for kernels that read planes: a part of theirs. Both sides read this file.
 * Blocking:  64 x 64 elements through shared memory per block, neighbours side by side on both ways
 * Traffic:   each element once in and once out */
#ifndef WEFT_CUDA_PLANAR_H
#define WEFT_CUDA_PLANAR_H

#include "weft.h"

enum { PLANAR_TILE = 64, PLANAR_THREADS = 256 };

/* [batch][rows][columns] to [batch][columns][rows] */
typedef struct planar_args {
    const void *from;
    void *to;
    int64_t rows, columns;
} planar_args;

#ifndef __CUDACC_RTC__
static inline bool planar_fits(int64_t n, int64_t channels, int64_t pixels) {
    return n <= 65535 && cuda_ceil(channels, PLANAR_TILE) <= 65535 && cuda_ceil(pixels, PLANAR_TILE) <= 65535;
}

static inline void planar_defines(const weft_problem *p, const weft__hw *hw, const void *params, weft__text *text) {
    (void)hw, (void)params;
    weft__put(text, "-DPLANAR_ELEMENT=uint%d_t", 8 * (int)weft__dtype_size(p->tensor[0].dtype));
}

static inline weft_status planar_run(const weft__exec *e, int part, const void *from, void *to, int64_t rows,
                                     int64_t columns) {
    const planar_args a = {from, to, rows, columns};
    const uint32_t down = (uint32_t)cuda_ceil(rows, PLANAR_TILE), across = (uint32_t)cuda_ceil(columns, PLANAR_TILE);
    const weft__launch launch = {.grid = {across, down, (uint32_t)e->p->n}, .block = {PLANAR_THREADS, 1, 1}};
    return weft__cuda_launch(e, part, &launch, &a);
}
#elif defined(PLANAR_ELEMENT)
extern "C" __global__ void __launch_bounds__(PLANAR_THREADS) planar(const __grid_constant__ planar_args a) {
    __shared__ PLANAR_ELEMENT tile[PLANAR_TILE][PLANAR_TILE + 4 / sizeof(PLANAR_ELEMENT)];
    const int64_t batch = (int64_t)blockIdx.z * a.rows * a.columns;
    const int64_t row = (int64_t)blockIdx.y * PLANAR_TILE, column = (int64_t)blockIdx.x * PLANAR_TILE;
    const int x = (int)threadIdx.x % PLANAR_TILE, y = (int)threadIdx.x / PLANAR_TILE;
#pragma unroll
    for (int i = 0; i < PLANAR_TILE; i += PLANAR_THREADS / PLANAR_TILE)
        if (row + y + i < a.rows && column + x < a.columns)
            tile[y + i][x] = ((const PLANAR_ELEMENT *)a.from)[batch + (row + y + i) * a.columns + column + x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PLANAR_TILE; i += PLANAR_THREADS / PLANAR_TILE)
        if (column + y + i < a.columns && row + x < a.rows)
            ((PLANAR_ELEMENT *)a.to)[batch + (column + y + i) * a.rows + row + x] = tile[x][y + i];
}
#endif

#endif
