/* Cross entropy of classes by PyTorch's own operators, for the planner to choose. */
#ifndef WEFT_TORCH_CROSS_ENTROPY_PEER_H
#define WEFT_TORCH_CROSS_ENTROPY_PEER_H

#include "binding.h"

typedef struct wt_ce_state {
    /* where the logits stand, with target and weight after them; and ignore_index, with reduction and smoothing */
    int input, settings;
    wt_handle result, lse; /* to be written; lse in the forward pass only */
} wt_ce_state;

wt_peer wt_cross_entropy_peer(const wt_call *call, const wt_ce_state *c, bool gradient); /* NULL: none */

#endif
