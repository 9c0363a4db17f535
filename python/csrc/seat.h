/* The aten seat: weft's kernels under PyTorch's own operators aten::convolution and aten::convolution_backward, at the
 * dispatch keys CPU and CUDA. Above it PyTorch's C++ does everything: autograd, vmap, autocast, compile.
 *   seat.c        the operators: arguments off the stack, run or delegate, results onto it
 *   seat_table.c  what was decided for a call: a table keyed by sizes, strides, types and settings
 *   seat_plan.c   deciding: the problem, the strides of the results, plans beside PyTorch's estimate
 *   seat_run.c    running: PyTorch's implementation, or weft's plans on tensors made like PyTorch's */
#ifndef WEFT_TORCH_SEAT_H
#define WEFT_TORCH_SEAT_H

#include <stdatomic.h>

#include "binding.h"

enum { SEAT_X, SEAT_W, SEAT_BIAS, SEAT_DY, SEAT_INPUTS };                  /* tensors given */
enum { SEAT_OUT = SEAT_INPUTS, SEAT_SLOTS = SEAT_OUT + 3 };                /* results: y, or dx, dw and db */
enum { SEAT_STRIDE, SEAT_PADDING, SEAT_DILATION, SEAT_EXTRA, SEAT_LISTS }; /* extra: output_padding */

typedef struct seat_call {
    bool backward, transposed;
    bool plain;                /* every argument could be read, and none is longer than a convolution's */
    int want;                  /* backward: WT_WANT_* */
    wt_tensor in[SEAT_INPUTS]; /* handle NULL: none */
    wt_list list[SEAT_LISTS], bias_sizes;
    bool biased; /* backward: bias_sizes is given */
    int64_t groups;
    wt_handle out[3], guard; /* results; the CUDA device */
    const void *packed;      /* forward: the weights as the plan reads them, or NULL */
} seat_call;

/* ---------------------------------------------------------------- what was decided */
typedef struct seat_step { /* one plan, and which tensor is which of its roles */
    weft_plan *plan;
    int n;
    uint8_t role[8], slot[8];
} seat_step;

typedef struct seat_shape { /* of a result */
    int rank;
    int64_t sizes[5], strides[5];
} seat_shape;

enum { SEAT_STEPS = 2, SEAT_KEY_MAX = 64 };
typedef struct seat_entry {
    struct seat_entry *next;
    _Atomic int refs;
    _Atomic bool taken; /* by weft; else PyTorch's, for this reason */
    bool sound;         /* nothing is wrong with the arguments */
    const char *reason;
    int nsteps;
    seat_step step[SEAT_STEPS];
    seat_shape out[3];
    seat_shape dy; /* rank not 0: grad_output is copied into this first */
    bool sums;     /* diff_bias is a sum of PyTorch's */
    _Atomic uint64_t calls;
    double ns, torch_ns; /* estimates */
    char text[192];      /* the problem, cut where it is longer */
    uint64_t hash;
    int words;
    int64_t key[SEAT_KEY_MAX];
} seat_entry;

/* The entry for a call, made on first sight; NULL: no memory. Released after use. */
seat_entry *seat_find(const seat_call *c, int math);
void seat_release(seat_entry *e);
uint64_t seat_problem(const seat_call *c);                     /* the same for a convolution and its gradient */
void seat_decide(const seat_call *c, int math, seat_entry *e); /* fills a zeroed entry */

/* PyTorch's implementation; false: it failed, see its text. */
bool seat_delegate(seat_call *c);
/* weft's plans; false: nothing was done and PyTorch is to do it. */
bool seat_run(seat_call *c, seat_entry *e);
void seat_drop_results(seat_call *c);
bool seat_bypassed(void); /* on this thread */
bool seat_is_cuda(const seat_call *c);
bool seat_is_dangerous(const seat_call *c); /* PyTorch alone would write outside of its memory */
/* PyTorch's rule: a tensor of four or five axes looks like channels-last. */
bool seat_suggests_last(const wt_tensor *t);

/* ---------------------------------------------------------------- for the rest of the binding */
void wt_seat_bypass(int step);  /* +1 and -1: on this thread the seat hands everything to PyTorch */
void wt_seat_mark(int step);    /* +1 and -1: on this thread the seat takes convolutions for weft's own functions */
void wt_seat_forget(void);      /* the settings have changed */
int64_t wt_seat_settings(void); /* counts their changes */

#endif
