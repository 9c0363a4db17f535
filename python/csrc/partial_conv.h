/* Partial convolution: one call, and the road over PyTorch's operators that its two operators share. */
#ifndef WEFT_TORCH_PARTIAL_CONV_H
#define WEFT_TORCH_PARTIAL_CONV_H

#include "binding.h"

typedef struct wt_partial {
    wt_gradients d;                 /* first: the passes of gradients are planned from it */
    wt_view mask, fresh, sums, y;   /* mask.handle NULL: none. fresh and y: forward only */
    wt_tensor bias;                 /* forward only; handle NULL: none */
    bool transposed, plane, biased; /* plane: the mask has no axis for channels; biased: the forward pass had a bias */
    bool legacy;                    /* add the bias ahead of the ratio and take it off again */
    int act;                        /* where the activation stands */
    int64_t extra[3];               /* output_padding */
    int64_t out[5];                 /* dims of the result */
} wt_partial;

int64_t wt_mask_kind(const wt_partial *q); /* 0: none, 1: one channel, 2: a channel each */

/* partial_peer.c: convolution of masked copies, some images at a time. NULL, or why it cannot be. backward: of the
 * gradients. */
const char *wt_partial_no_peer(const wt_call *call, const wt_partial *q, bool backward);
bool wt_partial_peer(wt_call *call, const void *state);          /* wt_partial */
bool wt_partial_backward_peer(wt_call *call, const void *state); /* wt_share */

#endif
