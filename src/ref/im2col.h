/* Image to columns and back, the reference: each is the adjoint, and so the gradient, of the other. The image is n c
 * d h w, the columns are n c kd kh kw do ho wo. One item is one element of the output:
 *   columns[n,c,k,o] = image[n,c,o*s - p + k*d], 0 in the padding
 *   image[n,c,x]     = sum_k columns[n,c,k,(x + p - k*d)/s], whole quotients only */
#ifndef WEFT_REF_IM2COL_H
#define WEFT_REF_IM2COL_H

#include "conv.h"

WEFT_ITEM void im2col_columns(const weft_problem *p, conv_view image, conv_view columns, int64_t i) {
    int64_t at[8], in[3], offset = item_at(columns.t, i, at);
    int inside = 1;
    for (int a = 0; a < 3; a++) {
        in[a] = conv_reads(p, a, at[5 + a], at[2 + a]);
        inside = inside && in[a] >= 0;
    }
    item_out(p, columns.t, columns.ptr, offset, inside ? conv_get(image, at[0], at[1], in[0], in[1], in[2]) : 0);
}

WEFT_ITEM void im2col_image(const weft_problem *p, conv_view columns, conv_view image, int64_t i) {
    int64_t at[5], offset = item_at(image.t, i, at);
    const int64_t *step = columns.t->strides, first = at[0] * step[0] + at[1] * step[1];
    double sum = 0;
    CONV_TAPS(conv_feeds) {
        int64_t tap = r * step[2] + s * step[3] + t * step[4], window = z * step[5] + y * step[6] + x * step[7];
        sum += item_load(columns.t->dtype, columns.ptr, first + tap + window);
    }
    item_out(p, image.t, image.ptr, offset, sum);
}

WEFT_ITEM int im2col_output(const weft_problem *p) {
    return p->pass == WEFT_PASS_FWD ? WEFT_ROLE_DST : WEFT_ROLE_DIFF_SRC;
}

WEFT_ITEM int64_t im2col_count(const weft_problem *p, int phase) {
    (void)phase;
    return item_numel(item_tensor(p, im2col_output(p)));
}

WEFT_ITEM void im2col_item(const weft_problem *p, void *const *ptr, void *workspace, int phase, int64_t i) {
    (void)workspace, (void)phase;
    conv_view in = conv_see(p, ptr, p->pass == WEFT_PASS_FWD ? WEFT_ROLE_SRC : WEFT_ROLE_DIFF_DST),
              out = conv_see(p, ptr, im2col_output(p));
    if ((p->op == WEFT_OP_IM2COL) == (p->pass == WEFT_PASS_FWD))
        im2col_columns(p, in, out, i);
    else
        im2col_image(p, in, out, i);
}

#endif
