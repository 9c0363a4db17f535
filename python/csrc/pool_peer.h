/* Pooling by PyTorch's own operators, for the planner to choose. */
#ifndef WEFT_TORCH_POOL_PEER_H
#define WEFT_TORCH_POOL_PEER_H

#include "binding.h"

typedef struct wt_pool_state {
    const wt_window *g;
    /* the call's first result; the index and grad_output, where it has them */
    const wt_view *result, *index, *gradient;
    int include; /* where count_include_pad stands; the divisor follows it */
} wt_pool_state;

wt_peer wt_pool_peer(const wt_call *call, const wt_pool_state *c, weft_op op); /* NULL: none */
wt_peer wt_pool_backward_peer(const wt_call *call, const wt_pool_state *c, weft_op op);

#endif
