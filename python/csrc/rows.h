/* Tensors of any rank as rows along one axis, the channels: what softmax and cross entropy work on. A problem has
 * room for four axes besides the channels, n d h w; more of them are folded where neighbours lie one after the other
 * in every tensor, and copied where not. */
#ifndef WEFT_TORCH_ROWS_H
#define WEFT_TORCH_ROWS_H

#include "binding.h"

#define WT_MAX_AXES 64 /* as many as PyTorch's own loops take */

typedef struct wt_shape {
    int rank, channel; /* channel: which axis */
    bool scalar;       /* of a tensor without dimensions: one row of one */
    int64_t sizes[WT_MAX_AXES];
} wt_shape;

typedef struct wt_rows {       /* a tensor of that shape, or of one value a row */
    wt_handle handle, copy_of; /* copy_of: where a result goes that could not be folded in place */
    void *data;
    int32_t code;
    bool channels, written;
    int64_t strides[WT_MAX_AXES]; /* along the axes of the shape; 0 along channels that it has not */
} wt_rows;

/* The shape of argument `at`; the channels are its first axis until the caller says otherwise. */
bool wt_shape_of(wt_call *call, int at, wt_shape *s);
int64_t wt_shape_rows(const wt_shape *s); /* how many; 0 too where the number is 0 */
/* Argument `at` over s: of the same sizes, with the channels left out unless `channels`. */
bool wt_rows_of(wt_call *call, int at, const wt_shape *s, bool channels, wt_rows *t);
/* Result number `slot`, dense, the channels nearest if `last`; the first may be the caller's out. */
bool wt_rows_create(wt_call *call, int slot, const wt_shape *s, bool channels, bool last, int32_t code, wt_rows *t);
/* The same in the strides that t has. */
bool wt_rows_make(wt_call *call, int slot, const wt_shape *s, int32_t code, wt_rows *t);
/* Channels-last memory, by the rule of wt_is_last; never of fewer than three axes. */
bool wt_rows_last(const wt_shape *s, const wt_rows *t);
/* All on the axes of one problem: v[i] is t[i]. */
bool wt_rows_fold(wt_call *call, const wt_shape *s, wt_rows *t, int count, wt_view *v);
/* The two halves of that: views where the axes fold, false where they do not; a dense copy of the shape in place of
 * a tensor. */
bool wt_rows_view(const wt_shape *s, const wt_rows *t, int count, wt_view *v);
bool wt_rows_copy(wt_call *call, const wt_shape *s, wt_rows *t);
/* Plan and run; what was written to a copy goes to its place. torch: PyTorch has a way to compute the call. */
bool wt_rows_run(wt_call *call, bool torch, const wt_rows *t, int count);
bool wt_rows_finish(wt_call *call, const wt_rows *t, int count); /* the last part of that */
/* The call's problem, over rows that look like v. */
weft_problem *wt_rows_begin(wt_call *call, weft_op op, weft_pass pass, const wt_view *v);

#endif
