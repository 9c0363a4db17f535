/* The entries: weft's functions as builtins of Python, in front of the dispatcher. A call with plain tensors,
 * outside of everything that traces, transforms or watches, is looked up by its arguments and runs what was decided
 * for its kind: a plan of weft, or PyTorch's own builtin. Everything else gets NotImplemented, and Python takes the
 * long way.
 *   entry.c        the builtins: look up, run, wrap
 *   entry_guard.c  is this a plain call? and reading tensors; facts about PyTorch that are checked at load
 *   entry_table.c  what was decided, by all that it depends on
 *   entry_read.c   settings of a call, read from its key
 *   entry_seat.c   convolution, and what has a seat and a gradient, which go by the seat
 *   entry_torch.c  PyTorch's operators without its reading of Python's arguments
 *   entry_op.c     other operators, by the schema of weft's own
 *   entry_ask.c    does the planner leave a call to PyTorch, forward and backward?
 * Everything here holds the GIL but for the computing itself, so nothing is locked. */
#ifndef WEFT_TORCH_ENTRY_H
#define WEFT_TORCH_ENTRY_H

#include "python.h"
#include "seat.h"

enum { ENTRY_TENSORS = 6, ENTRY_WORDS = 112 };
enum { ENTRY_LONG_NS = 20000, ENTRY_LONG_COUNT = 8192 };                              /* beyond, the GIL is released */
enum { ENTRY_SHORT_NS = 1500, ENTRY_SHORT_CUDA_NS = 5000, ENTRY_SHORT_COUNT = 4096 }; /* see run_alone */

/* ---------------------------------------------------------------- the guard */
bool entry_is_open(void);       /* weft.backends leaves the choice to the planner */
bool entry_is_plain_here(void); /* on this thread, now */
/* A plain tensor, read without taking a reference; None is no tensor: handle NULL. */
bool entry_read(py_object *object, wt_tensor *t);
bool entry_read_dtype(const py_object *object, int64_t *code);
bool entry_int(py_object *value, int64_t *to);
bool entry_ints(py_object *values, int64_t *to, intptr_t most, size_t *count); /* of a tuple or a list */
bool entry_requires_grad(const wt_tensor *t);
bool entry_may_write(
    const py_object *tensor);            /* one of inference mode only there, one that requires a gradient never */
bool entry_records(void);                /* gradient mode */
bool entry_is_deterministic(void);       /* torch.use_deterministic_algorithms */
py_object *entry_wrap(wt_handle tensor); /* a new object; the handle is freed */
py_object *entry_none(void);
py_object *entry_bool(bool value);
py_object *entry_refuse(void); /* NotImplemented */

/* ---------------------------------------------------------------- what was decided */
typedef enum entry_way {
    ENTRY_UNKNOWN,
    ENTRY_LONG,  /* Python's way */
    ENTRY_TORCH, /* PyTorch's operator */
    ENTRY_MARK,  /* the same, and the seat below it takes what weft wins */
    ENTRY_SEAT,  /* the seat's plans, here */
    ENTRY_SHIM,  /* PyTorch's convolution below the dispatcher */
    ENTRY_OP,    /* weft's operator */
} entry_way;

/* An operator that was one plan on its tensors as they lie, and one new tensor: the plan is run again without asking
 * the operator. */
enum { ENTRY_RESULT = ENTRY_TENSORS }; /* its slot, behind those of the front's tensors */
typedef struct entry_replay {
    seat_step step;
    seat_shape out;
} entry_replay;

typedef struct entry_record {
    seat_node node;
    int refs;
    entry_way way;
    bool slow;   /* the GIL is released while it runs */
    bool direct; /* list and value are read: PyTorch's operator can be called from C */
    seat_entry *seat;
    wt_list list[SEAT_LISTS]; /* settings as the seat has them */
    int64_t value[SEAT_VALUES];
    double real[SEAT_REALS];
    const wt_op *op; /* of an operator: its settings, without tensors */
    wt_arg *arg;
    entry_replay *replay; /* NULL: it is run by its function */
    int64_t word[];
} entry_record;

typedef enum entry_kind {
    ENTRY_CONV = 1,
    ENTRY_CONV_TRANSPOSE,
    ENTRY_MAX_POOL,
    ENTRY_AVG_POOL,
    ENTRY_ADAPTIVE_AVG_POOL,
    ENTRY_SOFTMAX,
    ENTRY_LOG_SOFTMAX,
    ENTRY_BATCH_NORM,
    ENTRY_CROSS_ENTROPY,
    ENTRY_UNARY,
    ENTRY_OTHER
} entry_kind;

/* The arguments of PyTorch's functions that can be read and called here. */
#define ENTRY_SETTINGS(X)                                    \
    X(ENTRY_CONV, WT_ARGS_convNd)                            \
    X(ENTRY_CONV_TRANSPOSE, WT_ARGS_conv_transposeNd)        \
    X(ENTRY_MAX_POOL, WT_ARGS_max_pool2d_with_indices)       \
    X(ENTRY_AVG_POOL, WT_ARGS_avg_pool2d)                    \
    X(ENTRY_ADAPTIVE_AVG_POOL, WT_ARGS__adaptive_avg_pool2d) \
    X(ENTRY_SOFTMAX, WT_ARGS_softmax)                        \
    X(ENTRY_LOG_SOFTMAX, WT_ARGS_softmax)                    \
    X(ENTRY_BATCH_NORM, WT_ARGS_batch_norm)                  \
    X(ENTRY_CROSS_ENTROPY, WT_ARGS_cross_entropy)

typedef struct entry_front {
    const char *name;
    int tensors; /* so many leading arguments are tensors, or None */
    entry_kind kind;
    int rank;            /* of convolution and pooling: spatial axes */
    void (*torch)(void); /* PyTorch's operator as a function of C++, or NULL */
    py_object *builtin;  /* PyTorch's, of the same arguments */
    py_object *defaults; /* of its last arguments: what equals them is not given */
} entry_front;

typedef struct entry_call { /* one call of a front */
    entry_front *front;
    py_object *const *arg;
    int nargs;
    py_object *packs; /* NULL, or a dict of packed weights by their id */
    bool records;     /* a gradient is wanted */
    wt_tensor in[ENTRY_TENSORS];
    bool wants[ENTRY_TENSORS];
    uint64_t hash;
    int words, settings; /* settings: where those begin among the words */
    int64_t word[ENTRY_WORDS];
} entry_call;

/* How a setting lies in a key: a word that says what it is, and its values. */
enum { ENTRY_IS_NONE = 1, ENTRY_IS_FALSE, ENTRY_IS_TRUE, ENTRY_IS_INT, ENTRY_IS_FLOAT, ENTRY_IS_INTS, ENTRY_IS_TEXT };

bool entry_read_call(entry_call *k); /* the tensors and the key; false: not plain */
bool entry_make_key(entry_call *k);  /* false: an argument that no key can have */
bool entry_on_cuda(const entry_call *k);
/* On CUDA the device of the call becomes the current one until it is left. */
bool entry_enter_device(const entry_call *k, wt_handle *guard);
void entry_leave_device(wt_handle guard);
entry_record *entry_look(const entry_call *k);
entry_record *entry_keep(const entry_call *k, entry_way way); /* NULL: no memory */
void entry_release(entry_record *r);

/* ---------------------------------------------------------------- by operator */
bool entry_read_settings(const entry_call *k, entry_record *r); /* false: not of a kind that has them, or not plain */
/* PyTorch's operator on these tensors; false: it could not be called, or failed, and its builtin says why. */
bool entry_call_torch(const entry_call *k, entry_record *r, wt_handle *out);
void *entry_find_torch(const char *name);
bool entry_has_seat(const entry_call *k);
entry_way entry_decide_seat(const entry_call *k, entry_record *r); /* fills r */
bool entry_run_seat(const entry_call *k, const entry_record *r, const void *packed, wt_handle *out);
/* The weights as the plan reads them, from k->packs, packed at first sight; NULL: there are none. A new reference. */
py_object *entry_pack(const entry_call *k, const entry_record *r, const void **packed);
bool entry_register_seat(int family, bool cuda); /* true: the seat of SEAT_... is at the device's key */
/* weft's operator on these tensors; the number of results, or -1. */
int entry_run_op(const entry_call *k, const entry_record *r, wt_handle out[WT_MAX_OUTS]);
/* The arguments of an operator, by its number and schema; false: they cannot be read here. */
bool entry_read_op(long long number, py_object *const *args, intptr_t nargs, wt_call *call);
py_object *entry_leaves(py_object *self, py_object *const *args, intptr_t nargs); /* entry_ask.c, for Python */
bool entry_is_torchs(void);            /* the last operator of this thread ran PyTorch's code alone */
void entry_offer(const entry_call *k); /* the long way is taken for this call; NULL: for none */

#endif
