/* The two loops that calibration times: independent multiply-adds in registers, and a copy with streaming stores. */
#include "cpu/kernel.h"
#include "cpu/simd/simd.h"
#include "tune/rates.h"

enum { CHAINS = 10 }; /* more than latency times issue width of the cores at hand, fewer than any ISA has registers */

static void multiply_adds(int64_t rounds, float *sink) {
    vf sum[CHAINS], factor = vf_set1(0.999f), add = vf_set1(0.001f);
    VF_UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_set1((float)i);
    for (int64_t r = 0; r < rounds; r++) {
        VF_UNROLL for (int i = 0; i < CHAINS; i++) sum[i] = vf_keep(vf_fma(sum[i], factor, add));
    }
    vf all = sum[0];
    VF_UNROLL for (int i = 1; i < CHAINS; i++) all = vf_add(all, sum[i]);
    *sink = vf_sum(all);
}

static void copy(float *dst, const float *src, int64_t count) {
    for (int64_t i = 0; i + VF_LANES <= count; i += VF_LANES) vf_stream(dst + i, vf_load(src + i));
    vf_stream_end();
}

const weft__rate_loops WEFT__RECORD(rate_loops) = {2.0 * CHAINS * VF_LANES, multiply_adds, copy};
