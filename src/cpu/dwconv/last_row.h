/* One row of taps of channels-last sums, lanes along channels: of the channels themselves (depthwise), or of those that
 * a permutation puts into their place (few channels a group). */
#ifndef WEFT_CPU_DWCONV_LAST_ROW_H
#define WEFT_CPU_DWCONV_LAST_ROW_H

#include "cpu/dwconv/last.h"
#include "cpu/simd/permute.h"

/* What the loops over channels use of a run, in registers: a store could change what lies in memory. */
typedef struct dwl_view {
    int64_t pixel, left, cols, live; /* left: column of the first tap of the first output */
    int64_t count, step, gap, next;  /* of the taps; next: floats of weights */
} dwl_view;

/* p: at the first tap of the first output. KW 0: any window. permuted: channels by `lanes`. */
VF_INLINE void dwl_add_row(const dwl_view *q, vf sum[], const void *p, const float *weights, vi lanes, const int P,
                           const int KW, const int S, const bool edge, const bool permuted, const int dtype) {
    if (KW) {
        vf weight[8];
        VF_UNROLL for (int s = 0; s < KW; s++) weight[s] = vf_keep(vf_load(weights + s * q->next));
        VF_UNROLL for (int i = 0; i < S * (P - 1) + KW; i++) {
            if (edge && (q->left + i < 0 || q->left + i >= q->cols)) continue;
            const vf loaded = vf_load_as(dtype, p, i * q->pixel);
            const vf v = permuted ? vf_permute(loaded, lanes) : vf_keep(loaded);
            VF_UNROLL for (int x = 0; x < P; x++) {
                const int s = i - S * x;
                if (s >= 0 && s < KW) sum[x] = vf_fma(v, weight[s], sum[x]);
            }
        }
        return;
    }
    for (int64_t s = 0; s < q->count; s++, weights += q->next) {
        const vf weight = vf_load(weights);
        VF_UNROLL for (int x = 0; x < P; x++) {
            const int64_t col = x * q->step + s * q->gap;
            if (edge && (q->left + col < 0 || q->left + col >= q->cols || x >= q->live)) continue;
            const vf loaded = vf_load_as(dtype, p, col * q->pixel);
            sum[x] = vf_fma(permuted ? vf_permute(loaded, lanes) : loaded, weight, sum[x]);
        }
    }
}

#endif
