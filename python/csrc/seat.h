/* The aten seat: weft's kernels under operators of PyTorch itself, at the dispatch keys CPU and CUDA. Above it
 * PyTorch's C++ does everything: autograd, vmap, autocast, compile.
 *   seat.c        the entries: arguments off the stack, run or delegate, results onto it
 *   seat_unboxed.c  the same with C++ arguments, where PyTorch's table of kernels is as expected
 *   seat_table.c  what was decided for a call: a table keyed by sizes, strides, types and settings
 *   seat_plan.c   deciding: the strides of the results, plans beside PyTorch's estimate
 *   seat_run.c    running weft's plans on tensors made like PyTorch's
 *   seat_conv.c   convolution and its gradient: arguments, problem, roles, the way back to PyTorch
 *   seat_pool.c   the same for pooling
 *   seat_softmax.c, seat_norm.c  for softmax and log-softmax, for batch norm
 * Another operator is its arguments in aten.h, a record (seat_op) and a line in weft._enable.OPERATORS. */
#ifndef WEFT_TORCH_SEAT_H
#define WEFT_TORCH_SEAT_H

#include <stdatomic.h>

#include "binding.h"

#define SEAT_NAME(X, name, outs) X(name)
#define SEAT_OPS(X) WT_ATEN(SEAT_NAME, X) WT_ATEN_CPP(SEAT_NAME, X)

/* Operators that are put at a key and switched on together; the order of weft._enable.OPERATORS. */
enum {
    SEAT_CONV,
    SEAT_MAX_POOL,
    SEAT_AVG_POOL,
    SEAT_ADAPTIVE_AVG_POOL,
    SEAT_SOFTMAX,
    SEAT_LOG_SOFTMAX,
    SEAT_BATCH_NORM,
    SEAT_FAMILIES
};

/* ---------------------------------------------------------------- a call */
/* Tensors given. Of the gradient of softmax X is its result; RESERVE is cuDNN's own. */
enum {
    SEAT_X,
    SEAT_W,
    SEAT_BIAS,
    SEAT_MEAN,
    SEAT_VAR,
    SEAT_DY,
    SEAT_INDEX,
    SEAT_SAVED_MEAN,
    SEAT_SAVED_INVSTD,
    SEAT_RESERVE,
    SEAT_INPUTS
};
enum { SEAT_RESULTS = 4 }; /* y and index, or dx, dw and db, or y, mean, inverse deviation and what cuDNN reserves */
enum { SEAT_OUT = SEAT_INPUTS, SEAT_SLOTS = SEAT_OUT + SEAT_RESULTS };
/* extra: output_padding, output_size */
enum { SEAT_STRIDE, SEAT_PADDING, SEAT_DILATION, SEAT_EXTRA, SEAT_KERNEL = SEAT_EXTRA, SEAT_LISTS };
enum { SEAT_TRANSPOSED, SEAT_GROUPS, SEAT_CEIL = 0, SEAT_INCLUDE, SEAT_DIVISOR, SEAT_DIVIDED, SEAT_VALUES };
enum { SEAT_AXIS, SEAT_TO_FLOAT };     /* of softmax */
enum { SEAT_TRAINING, SEAT_CUDNN };    /* of batch norm */
enum { SEAT_REDUCTION, SEAT_IGNORED }; /* of cross entropy */
enum { SEAT_EPS, SEAT_MOMENTUM, SEAT_REALS, SEAT_SMOOTHING = 0 };

typedef struct seat_call {
    const struct seat_op *op;
    bool cuda;
    bool plain;    /* every argument could be read, and none is longer than these operators have */
    bool read;     /* of tensors more than the handle */
    bool biased;   /* the gradient of a convolution: bias_sizes is given */
    bool borrowed; /* inputs are the caller's */
    int want;      /* of several gradients: WT_WANT_* */
    int32_t type;  /* of softmax: that of the gradient */
    int64_t value[SEAT_VALUES];
    double real[SEAT_REALS];
    wt_handle out[SEAT_RESULTS], guard; /* results; the CUDA device */
    const void *packed;                 /* convolution: the weights as the plan reads them, or NULL */
    wt_tensor in[SEAT_INPUTS];          /* handle NULL: none */
    wt_list list[SEAT_LISTS], bias_sizes;
} seat_call;

/* ---------------------------------------------------------------- what was decided */
typedef struct seat_step { /* one plan, and which tensor is which of its roles */
    weft_plan *plan;
    int n;
    uint8_t role[8], slot[8];
} seat_step;

typedef struct seat_shape { /* of a result */
    int rank;
    int32_t code;
    int64_t sizes[8], strides[8];
} seat_shape;

/* A table by words, of records that begin with a node. Bounded: a program of ever new sizes starts again from an empty
 * table, and so does one that changes its settings, as records of others are never found again. */
enum { SEAT_BUCKETS = 1024, SEAT_NODES_MAX = 1024 };
typedef struct seat_node {
    struct seat_node *next;
    uint64_t hash;
    int words;
    const int64_t *key;
} seat_node;
typedef struct seat_table {
    void (*release)(seat_node *node);
    int count;
    int64_t settings;
    seat_node *bucket[SEAT_BUCKETS];
} seat_table;
seat_node *seat_look(const seat_table *t, uint64_t hash, const int64_t *key, int words);
void seat_keep(seat_table *t, seat_node *node, int64_t settings);

enum { SEAT_STEPS = 2, SEAT_KEY_MAX = 96 };
typedef struct seat_entry {
    seat_node node;
    const struct seat_op *op;
    _Atomic int refs;
    _Atomic bool taken; /* by weft; else PyTorch's, for this reason */
    bool sound;         /* nothing is wrong with the arguments */
    const char *reason;
    int nsteps;
    seat_step step[SEAT_STEPS];
    seat_shape out[SEAT_RESULTS];
    seat_shape x, dy; /* rank not 0: input, grad_output is copied into this first */
    bool sums;        /* diff_bias is a sum of PyTorch's */
    bool moves;       /* the running statistics are written */
    int unwanted;     /* bits of results that a plan computes beside those that are asked for */
    _Atomic uint64_t calls;
    double ns, torch_ns; /* estimates */
    char text[192];      /* the problem, cut where it is longer */
    int64_t key[SEAT_KEY_MAX];
} seat_entry;

/* The entry for a call, made on first sight; NULL: no memory. Released after use. */
seat_entry *seat_find(const seat_call *c, int math);
void seat_release(seat_entry *e);
uint64_t seat_problem(const seat_call *c);                     /* the same for an operator and its gradient */
void seat_decide(const seat_call *c, int math, seat_entry *e); /* fills a zeroed entry */
/* All that a decision depends on in a tensor, into a key from word n on; returns the next one. Bits 48 and up of the
 * first word are free. */
int seat_key_tensor(int64_t *key, int n, const wt_tensor *t);
uint64_t seat_hash(const int64_t *key, int n);

/* ---------------------------------------------------------------- deciding */
typedef struct seat_draft { /* a decision being made */
    const seat_call *c;
    seat_entry *e;
    int math;
    bool last;                      /* PyTorch computes in channels-last */
    bool result_last[SEAT_RESULTS]; /* and gives that result in it */
    wt_geometry g;
    wt_view view[SEAT_SLOTS]; /* what each plan's roles are; results have no memory yet */
} seat_draft;

/* Each is NULL, or why it is PyTorch's to compute or to refuse. Tensors: all but a bias have the rank of the data, and
 * all but an index its type. */
const char *seat_see_tensors(seat_draft *d);
/* The format of the results is `last`, and `sure` of it; else PyTorch shows it. */
const char *seat_fix_format(seat_draft *d, bool last, bool sure);
/* Input, grad_output: a copy in that format, where it has another. */
const char *seat_fix_input(seat_draft *d, bool may_copy);
const char *seat_fix_gradient(seat_draft *d);
bool seat_is_beside(const wt_tensor *t, const wt_tensor *x); /* on its device */
/* Data like x: type, device and sizes. */
const char *seat_compare(const wt_tensor *t, const wt_tensor *x);
/* A result of these dims and this type, dense in PyTorch's format. */
bool seat_add_result(seat_draft *d, int i, const int64_t dims[5], int32_t code);
/* A list of one value, or one for each axis, each `least` or more, onto d h w. */
bool seat_read_axes(const wt_list *l, int rank, int64_t least, int64_t *to);

/* Every role of the problem: its tensor, and the step's slot of it. */
void seat_put_roles(const seat_draft *d, weft_problem *p, seat_step *s);
/* The step's plan, by one of weft's fast kernels; NULL: there is none, or PyTorch won where it took part. ns: estimates
 * of both. */
weft_plan *seat_plan(seat_draft *d, weft_problem *p, seat_step *s, bool beside_torch, double *ns, double *torch_ns);
/* The entry is one step: weft's or PyTorch's as the planner has it; without PyTorch weft's where it has one. */
bool seat_plan_alone(seat_draft *d, weft_problem *p, bool beside_torch);

/* ---------------------------------------------------------------- one call, in the order of use */
void seat_begin_call(seat_call *c, const struct seat_op *op, bool cuda);
wt_handle seat_defined(wt_handle tensor); /* NULL: not defined */
bool seat_try(seat_call *c);              /* by weft; false: it is PyTorch's */
/* PyTorch's implementation by its C++ function: its results, the last one first. false: it cannot be called. */
bool seat_run_throwing(seat_call *c, void **made);
void seat_raise(const seat_call *c); /* after seat_delegate has failed: does not return */
void seat_free_call(seat_call *c);
/* After registering: let PyTorch call the operator without boxing. false: its table is not as expected. */
bool seat_unbox(const struct seat_op *op, wt_kernel boxed, bool cuda);

/* ---------------------------------------------------------------- running */
bool seat_read(seat_call *c); /* the tensors; false: not plain */
/* PyTorch's implementation; false: it failed, see its text. */
bool seat_delegate(seat_call *c);
/* weft's plans; false: nothing was done and PyTorch is to do it. */
bool seat_run(seat_call *c, seat_entry *e);
void seat_drop_results(seat_call *c);
/* The parts of it: a tensor of that shape, owned at `place`; a step on tensors by slot. beside: one of the device. */
bool seat_make(const seat_shape *s, const wt_tensor *beside, wt_tensor *t, wt_handle *place);
bool seat_run_step(const seat_step *s, void *const *slot, const void *packed, const wt_tensor *beside);
bool seat_bypassed(void);             /* on this thread */
bool seat_is_dangerous(seat_call *c); /* the gradient of a convolution: PyTorch would write outside of its memory */
/* PyTorch's rule: a tensor of four or five axes looks like channels-last. */
bool seat_suggests_last(const wt_tensor *t);

/* ---------------------------------------------------------------- an operator */
typedef struct seat_op {
    const char *name;
    int family, nout;
    bool backward, only_cuda;
    const char *(*read)(seat_draft *d); /* the call; NULL, or why it is PyTorch's. Sets e->sound, sees the tensors */
    bool (*choose)(seat_draft *d);      /* the steps; false: PyTorch's */
    bool (*has_torch)(bool cuda);       /* this PyTorch has a way back */
    bool (*torch)(seat_call *c);        /* by it; false: it failed. NULL: only the following one */
    /* The same by the C++ function, which throws PyTorch's own exceptions, type and text, through these frames, and
     * copies no list: its results, the last one first. false: it cannot be called. */
    bool (*throwing)(seat_call *c, void *made[SEAT_RESULTS]);
} seat_op;

/* A record: SEAT_OP(name, family, results, of a gradient, by_torch). SEAT_BY_TORCH makes the function by_torch_<name>
 * that calls the shim. The arguments of the C shim, and of C++, from the call c: */
#define SEAT_C_TENSOR(at) c->in[SEAT_##at].handle
#define SEAT_C_OPTIONAL(at) c->in[SEAT_##at].handle ? &c->in[SEAT_##at].handle : NULL
#define SEAT_C_LIST(at) c->list[SEAT_##at].item, (int64_t)c->list[SEAT_##at].size
#define SEAT_C_SIZES(at) c->biased ? &(const int64_t *){c->bias_sizes.item} : NULL, (int64_t)c->bias_sizes.size
#define SEAT_C_MASK(at) (const int32_t[]){c->want & 1, c->want >> 1 & 1, c->want >> 2 & 1}, 3
#define SEAT_C_BOOL(at) (int32_t) c->value[SEAT_##at]
#define SEAT_C_INT(at) c->value[SEAT_##at]
#define SEAT_C_MAYBE(at) c->value[SEAT_##at + 1] ? &c->value[SEAT_##at] : NULL
#define SEAT_C_OUT_1 &c->out[0]
#define SEAT_C_OUT_2 &c->out[0], &c->out[1]
#define SEAT_C_OUT_3 &c->out[0], &c->out[1], &c->out[2]
#define SEAT_CPP_TENSOR(at) c->in[SEAT_##at].handle
#define SEAT_CPP_OPTIONAL(at) \
    &(wt_maybe_tensor) { c->in[SEAT_##at].handle ? *(void **)c->in[SEAT_##at].handle : NULL, c->in[SEAT_##at].handle }
#define SEAT_CPP_LIST(at) ((wt_array){c->list[SEAT_##at].item, c->list[SEAT_##at].size})
#define SEAT_CPP_SIZES(at) ((wt_maybe_array){{c->bias_sizes.item, c->bias_sizes.size}, c->biased})
#define SEAT_CPP_MASK(at) ((wt_mask){{c->want & 1, c->want >> 1 & 1, c->want >> 2 & 1}})
#define SEAT_CPP_BOOL(at) c->value[SEAT_##at]
#define SEAT_CPP_INT(at) c->value[SEAT_##at]
#define SEAT_CPP_MAYBE(at) ((wt_maybe){c->value[SEAT_##at], c->value[SEAT_##at + 1]})
#define SEAT_CPP_REAL(at) c->real[SEAT_##at]
#define SEAT_CPP_TYPE(at) (int8_t) c->type
#if defined(__x86_64__) /* where a result in memory is one more pointer in front */
#define SEAT_HAS_CPP(function) (wt.function != NULL)
#else
#define SEAT_HAS_CPP(function) false
#endif
#define SEAT_BY_TORCH(id, outs)                                                            \
    static bool by_torch_##id(seat_call *c) {                                              \
        return c->cuda ? !wt.aoti_torch_cuda_##id(WT_ARGS_##id(SEAT_C), SEAT_C_OUT_##outs) \
                       : !wt.aoti_torch_cpu_##id(WT_ARGS_##id(SEAT_C), SEAT_C_OUT_##outs); \
    }
#define SEAT_OP(id, of, outs, back, by_torch)                                                           \
    static bool has_##id(bool cuda) { return cuda ? wt.aoti_torch_cuda_##id : wt.aoti_torch_cpu_##id; } \
    static bool throwing_##id(seat_call *c, void *made[SEAT_RESULTS]) {                                 \
        if (c->cuda || !SEAT_HAS_CPP(WT_THROWING_##id)) return false;                                   \
        wt.WT_THROWING_##id(made, WT_ARGS_##id(SEAT_CPP));                                              \
        return true;                                                                                    \
    }                                                                                                   \
    const seat_op seat_op_##id = {#id, of, outs, back, false, read_call, choose, has_##id, by_torch, throwing_##id};
/* The same of those without a shim; SEAT_CPP_CALL: by their function on that device. */
#define SEAT_CPP_CALL(id)                                                                                   \
    static bool has_##id(bool cuda) { return cuda ? SEAT_HAS_CPP(WT_CUDA(id)) : SEAT_HAS_CPP(WT_CPU(id)); } \
    static bool call_##id(seat_call *c, void *made[SEAT_RESULTS]) {                                         \
        if (!has_##id(c->cuda)) return false;                                                               \
        (c->cuda ? wt.WT_CUDA(id) : wt.WT_CPU(id))(made, WT_ARGS_##id(SEAT_CPP));                           \
        return true;                                                                                        \
    }
#define SEAT_CPP_OP(id, of, outs, back, only_cuda, throwing) \
    const seat_op seat_op_##id = {#id, of, outs, back, only_cuda, read_call, choose, has_##id, NULL, throwing};

#define X(name) extern const seat_op seat_op_##name;
SEAT_OPS(X)
#undef X

/* ---------------------------------------------------------------- for the rest of the binding */
void wt_seat_bypass(int step);  /* +1 and -1: on this thread the seat hands everything to PyTorch */
void wt_seat_mark(int step);    /* +1 and -1: on this thread the seat takes operators for weft's own functions */
void wt_seat_forget(void);      /* the settings have changed */
int64_t wt_seat_settings(void); /* counts their changes */
/* The same for Python; everywhere: on every thread, while PyTorch is measured. */
WEFT_API void weft_torch_seat_bypass(int32_t step, int32_t everywhere);

#endif
