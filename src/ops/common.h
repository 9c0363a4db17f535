/* What operator records share: the size fields of data tensors, their checks, and the shape n c d h w. */
#ifndef WEFT_OPS_COMMON_H
#define WEFT_OPS_COMMON_H

#include "core/internal.h"

#define WEFT__AT(member) offsetof(weft_problem, member)
#define WEFT__R(role) WEFT__BIT(WEFT_ROLE_##role)
#define WEFT__DATA_FIELDS                                                                                   \
    {"n", WEFT__FIELD_INT, WEFT__AT(n), 1, true, 1, 0}, {"c", WEFT__FIELD_INT, WEFT__AT(c), 1, true, 1, 0}, \
        {"d", WEFT__FIELD_INT, WEFT__AT(in[0]), 1, true, 3, 0},                                             \
        {"h", WEFT__FIELD_INT, WEFT__AT(in[1]), 1, true, 2, 0}, {                                           \
        "w", WEFT__FIELD_INT, WEFT__AT(in[2]), 1, true, 1, 0                                                \
    }
#define WEFT__WINDOW_FIELDS                                          \
    {"k", WEFT__FIELD_AXES, WEFT__AT(kernel), 1, true, 1, 1},        \
        {"s", WEFT__FIELD_AXES, WEFT__AT(stride), 1, false, 1, 1}, { \
        "p", WEFT__FIELD_PADS, WEFT__AT(pad_lo), 0, false, 1, 1      \
    }
#define WEFT__DILATION_FIELD {"d", WEFT__FIELD_AXES, WEFT__AT(dilation), 1, false, 1, 1}

#define WEFT__BIG (INT64_C(1) << 40) /* far above any memory, far below overflow of sums of a few */

/* Fails with "op: name along axis is got, allowed: ..."; axis 3: none. */
weft_status weft__bad_size(const weft_problem *p, const char *name, int axis, int64_t got, const char *allowed);
/* n, c and in[] in range; c at least min_c. */
weft_status weft__check_data(const weft_problem *p, int64_t min_c);
/* kernel, stride, dilation and pads of one axis in range. */
weft_status weft__check_window(const weft_problem *p, int axis);
/* Rank 5: n, channels, spatial. */
void weft__data_shape(weft_tensor *t, int64_t n, int64_t channels, const int64_t spatial[3]);
/* Rank 1. */
void weft__vector_shape(weft_tensor *t, int64_t length);
uint64_t weft__floats(const weft_problem *p, int role); /* a dtypes function: f32, f64, f16, bf16 everywhere */
double weft__data_numel(const weft_problem *p);         /* n * c * d * h * w */
size_t weft__no_workspace(const weft_problem *p);
int weft__one_phase(const weft_problem *p);

#endif
