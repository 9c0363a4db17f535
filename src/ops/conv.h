/* What the operators of the convolution family share: text fields, the check of the geometry, shapes, flops. */
#ifndef WEFT_OPS_CONV_H
#define WEFT_OPS_CONV_H

#include "ops/common.h"

#define WEFT__CONV_FIELDS                                                                                             \
    WEFT__DATA_FIELDS, {"o", WEFT__FIELD_INT, WEFT__AT(o), 1, true, 1, 1}, WEFT__WINDOW_FIELDS, WEFT__DILATION_FIELD, \
    {                                                                                                                 \
        "g", WEFT__FIELD_INT, WEFT__AT(groups), 1, false, 1, 1                                                        \
    }

/* n, c, in[], o and groups in range. */
weft_status weft__conv_check_channels(const weft_problem *p);
/* All of the geometry in range; sets out[]: floor((in + lo + hi - (dilation*(kernel-1) + 1)) / stride) + 1 along
 * each axis. */
weft_status weft__conv_check(weft_problem *p);
/* src n c in, dst n o out, weights o c/groups kernel, bias o, and their gradients. */
void weft__conv_shape(const weft_problem *p, int role, weft_tensor *t);
double weft__conv_flops(const weft_problem *p);

#endif
