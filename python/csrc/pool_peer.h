/* Pooling by PyTorch's own operators, for the planner to choose. */
#ifndef WEFT_TORCH_POOL_PEER_H
#define WEFT_TORCH_POOL_PEER_H

#include "binding.h"

typedef struct wt_pool {
    int rank;
    bool batched;
    int64_t in[3], out[3];
    int64_t kernel[3], stride[3], pad[3], dilation[3];
    bool up; /* ceil_mode */
} wt_pool;

typedef struct wt_pool_state {
    const wt_pool *g;
    /* the call's first result; the index and grad_output, where it has them */
    const wt_view *result, *index, *gradient;
    int include; /* where count_include_pad stands; the divisor follows it */
} wt_pool_state;

/* pool.c: the size of the result along axis a; false: the input is too small. The problem, without its tensors and
 * without what only one kind of pooling has. */
bool wt_pool_out_size(wt_pool *g, int a);
void wt_pool_describe(weft_problem *p, const wt_pool *g, weft_op op, weft_pass pass, const wt_view *data);

wt_peer wt_pool_peer(const wt_call *call, const wt_pool_state *c, weft_op op); /* NULL: none */
wt_peer wt_pool_backward_peer(const wt_call *call, const wt_pool_state *c, weft_op op);

#endif
