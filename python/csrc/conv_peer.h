/* Convolution by PyTorch's own operators, for the planner to choose. */
#ifndef WEFT_TORCH_CONV_PEER_H
#define WEFT_TORCH_CONV_PEER_H

#include "binding.h"

typedef struct wt_conv_state { /* of a call (input, weight, bias, ...) */
    const wt_geometry *g;
    const wt_view *y;
    bool transposed;
    int64_t extra[3]; /* output_padding of a transposed one */
    int act;          /* where the activation stands */
} wt_conv_state;

bool wt_conv_has_peer(const wt_geometry *g);
bool wt_conv_backward_has_peer(const wt_call *call, const wt_geometry *g);
bool wt_conv_peer(wt_call *call, const void *state);          /* wt_conv_state */
bool wt_conv_backward_peer(wt_call *call, const void *state); /* wt_share, of conv_backward's arguments */
/* in place; act: where it stands, lo and hi follow */
bool wt_activate(wt_call *call, wt_handle y, const wt_view *v, int act, int rank);

#endif
