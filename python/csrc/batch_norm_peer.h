/* Batch normalisation by PyTorch's own operators, for the planner to choose. The state of each is the view of its
 * first result. */
#ifndef WEFT_TORCH_BATCH_NORM_PEER_H
#define WEFT_TORCH_BATCH_NORM_PEER_H

#include "binding.h"

/* data, weight: where they stand; the other parameters and statistics follow the weight. */
bool wt_batch_norm_has_peer(const wt_call *call, int data, int weight);
bool wt_batch_norm_peer(wt_call *call, const void *state);
bool wt_batch_norm_train_peer(wt_call *call, const void *state);
bool wt_batch_norm_backward_peer(wt_call *call, const void *state);

#endif
