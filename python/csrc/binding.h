/* What the parts of the binding know of each other.
 * An operator is one record (operators.def): its schema, the operator and pass of its problem, and a function.
 * Arguments are decoded by the schema and found by name, so the schema is the only description of the interface;
 * results are tensors. The function validates, fills the call's problem, allocates with PyTorch and runs the plan. */
#ifndef WEFT_TORCH_BINDING_H
#define WEFT_TORCH_BINDING_H

#include "shim.h"
#include "weft.h"

#if defined(__GNUC__)
#define WT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define WT_PRINTF(f, a)
#endif

/* ---------------------------------------------------------------- call.c: from the stack to C and back */
#define WT_MAX_ARGS 20
#define WT_MAX_OUTS 8
#define WT_MAX_LIST 8
#define WT_MAX_SCRATCH 20

typedef struct wt_tensor { /* handle NULL: an optional one that was not given */
    wt_handle handle;
    void *data;
    int64_t rank;
    const int64_t *sizes, *strides;          /* the tensor's own */
    int32_t dtype;                           /* weft_dtype; WEFT_DTYPE_NONE: one that weft does not take */
    int32_t code, device_type, device_index; /* as PyTorch numbers them */
} wt_tensor;

static inline int64_t wt_count(const int64_t *sizes, int64_t rank) { /* of elements */
    int64_t count = 1;
    for (int64_t a = 0; a < rank; a++) count *= sizes[a];
    return count;
}

typedef struct wt_list {
    int64_t item[WT_MAX_LIST];
    size_t size;
} wt_list;

typedef union wt_arg {
    wt_tensor tensor;
    wt_list list;
    int64_t integer; /* int, bool, ScalarType */
    double real;
    char text[16];
} wt_arg;

typedef enum wt_kind { WT_TENSOR, WT_TENSOR_OR_NONE, WT_LIST, WT_INT, WT_BOOL, WT_DTYPE, WT_REAL, WT_TEXT } wt_kind;

/* Within an operator ARG(stride) is the argument of that name, AT(stride) its place, -1 where the operator has none. */
#define AT(name) (call->op->at[WT_AT_##name])
#define ARG(name) (call->arg[AT(name)])
enum {
#define NAME(name) WT_AT_##name,
#include "operators.def"
    WT_NAMES
};

typedef struct wt_call wt_call;
typedef struct wt_op {
    const char *base, *schema; /* its name, but for _out, and its arguments and results */
    /* so many last arguments, out and out1, take the first results: they and "_out" are added to the schema */
    int into;
    bool in_place;              /* out may be the first argument itself */
    bool (*run)(wt_call *call); /* false: call->error says why */
    weft_op op;
    weft_pass pass;
    wt_kernel entry;
    char text[768]; /* the schema as registered; this and the rest by wt_op_prepare */
    int nargs, nout;
    wt_kind kind[WT_MAX_ARGS];
    char name[WT_MAX_ARGS][20];
    int8_t at[WT_NAMES];
} wt_op;

static inline bool wt_is_tensor(const wt_op *op, int i) { /* argument i, or None in place of one */
    return op->kind[i] == WT_TENSOR || op->kind[i] == WT_TENSOR_OR_NONE;
}

struct wt_call {
    const wt_op *op;
    wt_arg arg[WT_MAX_ARGS];
    weft_problem p; /* what is to be computed, and on what */
    weft_args args;
    wt_handle out[WT_MAX_OUTS];        /* new references, returned in this order */
    wt_handle scratch[WT_MAX_SCRATCH]; /* freed at the end */
    int nscratch;
    bool once;  /* not to be repeated for a measurement: it changes what it reads */
    bool shape; /* its tensors have no memory: only the results' sizes, strides and types are wanted */
    bool made;  /* of such a call: all results are there, and the problem was found to be right */
    bool cuda;  /* on CUDA; of a call for shapes, where it will run */
    wt_handle guard;
    int32_t device_type, device_index;
    char error[768];
};

/* Decode the schema's argument list. NULL, or what is wrong with it. */
const char *wt_op_prepare(wt_op *op);
/* The life of one call: decode, run, free every argument, return the results or raise. */
void wt_dispatch(const wt_op *op, wt_value *stack, uint64_t nin, uint64_t nout);
/* The parts of it: an empty call, and running one whose arguments are read. */
void wt_call_begin(wt_call *call, const wt_op *op);
bool wt_call_run(wt_call *call);
/* One argument off the stack: 0, or it cannot be read. A list is freed, a tensor is t->handle, the caller's. */
wt_error wt_read_tensor(wt_handle handle, wt_tensor *t);
wt_error wt_read_list(wt_handle list, wt_list *out);
/* What an optional argument points to; the box is freed, its content is the caller's. */
wt_handle wt_unbox(wt_value slot);
/* Record the reason and return false. Checks may be asked without a call: nothing is recorded. */
bool wt_fail(wt_call *call, const char *format, ...) WT_PRINTF(2, 3);
/* New tensors of t's rank, sizes, strides and code on the call's device; the rest of t is filled in. Result number
 * `slot`: the first ones may be the caller's `out`, and t then has its strides. Scratch, which is also slot -1, is
 * freed after the call. */
bool wt_result(wt_call *call, int slot, wt_tensor *t);
bool wt_scratch(wt_call *call, wt_tensor *t);
bool wt_empty(wt_call *call, wt_handle *place, wt_tensor *t); /* the caller's to free, at `place` */
/* The same beside another tensor, on its device, without an error's text; and that. */
bool wt_new(wt_tensor *t, const wt_tensor *beside, wt_handle *place);
bool wt_no_room(wt_call *call, const wt_tensor *t);
/* What PyTorch's last error says; before 2.13 it gives no reason. */
const char *wt_torch_error(const char *otherwise);
#define WT_NO_REASON "PyTorch before 2.13 gives no reason here"
bool wt_zero(wt_call *call, wt_handle tensor);
/* name: what is copied, for the error */
bool wt_copy(wt_call *call, wt_handle into, wt_handle from, const char *name);

const char *wt_dtype_name(int32_t code); /* of a PyTorch code: "float32" */
int32_t wt_wide_code(int32_t code);      /* of sums beside data of this code: float64 for itself, else float32 */
void wt_shape_text(char text[96], int64_t rank, const int64_t *sizes); /* "[2, 3]" */
/* whose: in the error, ahead of the sizes that are allowed, "the shape of input, ". */
bool wt_check_shape(wt_call *call, const char *name, const wt_tensor *t, int64_t rank, const int64_t *sizes,
                    const char *whose);
int wt_dtype_of(int32_t code); /* weft_dtype, or WEFT_DTYPE_NONE */
void wt_dtypes_init(void);

/* All operators, in the order of operators.def; their functions. */
#define X(id, ...) WT_OP_##id,
enum {
#include "operators.def"
    WT_OPS
};
extern wt_op wt_ops[WT_OPS];
#define X(id, name, given, same, function, ...) bool wt_run_##function(wt_call *call);
#include "operators.def"

/* ---------------------------------------------------------------- view.c: tensors on the axes of a problem */
typedef struct wt_view { /* n c d h w or o i d h w; absent axes have size 1 */
    wt_handle handle;
    void *data;
    int32_t dtype;
    int64_t dims[5], strides[5];
} wt_view;

/* Which of n c d h w a tensor has, a bit each; a tensor that has them. */
unsigned wt_axes(int rank, bool batch, bool channels);
wt_view wt_see_along(const wt_tensor *t, unsigned axes);
/* A tensor of rank + 2 axes, or of rank + 1: without a batch. */
wt_view wt_see(const wt_tensor *t, int rank);
/* Channels-last memory: channels are nearer than pixels. Of equal strides (one channel, or one pixel) those of a
 * tensor with one channel and a row of pixels come from a channels-last tensor. Stride 0 is one plane expanded to
 * many channels: the plane decides nothing about their order, and PyTorch takes it for channels-first. is_last of
 * weft._core.rules follows the same rule. */
bool wt_is_last(const wt_view *v);
bool wt_is_empty(const wt_view *v);
/* Strides without gaps; false: the size overflows. axis: from the nearest to the farthest; NULL: the last is the
 * nearest. */
bool wt_dense_along(int64_t *strides, const int64_t *sizes, int64_t rank, const int *axis);
bool wt_dense(int64_t strides[5], const int64_t dims[5], bool last);
bool wt_is_dense(const wt_view *v, bool last);
/* The same elements at the same places: strides of axes of one element name no other memory, and may differ. */
bool wt_lie_alike(int64_t rank, const int64_t *sizes, const int64_t *strides, const int64_t *others);
/* Result number `slot`, of these dims, dense in that format (or the caller's out). slot -1: scratch. */
bool wt_create_along(wt_call *call, int slot, wt_view *v, const int64_t dims[5], unsigned axes, bool last,
                     int32_t code);
bool wt_create(wt_call *call, int slot, wt_view *v, const int64_t dims[5], int rank, bool last, bool batched,
               int32_t code);
/* The same of one dimension; 0: a result that is not wanted. */
bool wt_create_vector(wt_call *call, int slot, wt_view *v, int64_t length, int32_t code);
/* A gradient may come in any strides (that of a sum has all 0); kernels are made for the format of the data it
 * belongs to: copy it there. */
bool wt_match_format(wt_call *call, wt_view *v, int rank, bool last, bool batched, int32_t code, const char *name);
/* The call's problem, of the batch, channels and sizes of a view; tensors and attributes follow. */
weft_problem *wt_begin(wt_call *call, weft_op op, weft_pass pass, int rank, const wt_view *data);
void wt_describe(weft_problem *p, weft_role role, const wt_view *v); /* a tensor, without its memory */
int32_t wt_alignment(const void *data);                              /* bytes, 16 at most */
void wt_put(wt_call *call, weft_role role, const wt_view *v);
/* Tensors by their roles: WT_PUT(call, {WEFT_ROLE_SRC, &x}, {WEFT_ROLE_DST, &y}); Those that take no part in the
 * problem, as its pass, attributes and steps have it, are left out. */
#define WT_PUT(call, ...) \
    wt_put_all(call, (const wt_placed[]){__VA_ARGS__}, sizeof((const wt_placed[]){__VA_ARGS__}) / sizeof(wt_placed))
typedef struct wt_placed {
    weft_role role;
    const wt_view *view;
} wt_placed;
void wt_put_all(wt_call *call, const wt_placed *tensors, size_t count);
wt_view wt_see_vector(const wt_tensor *t);
void wt_put_vector(wt_call *call, weft_role role, int at); /* argument `at`, if it is given */
/* Argument `at`, a list of one value per axis or, with `second`, of a low and a high one, onto d h w; each from `least`
 * to 2^bits, or any if bits is 0. At most 2^20, beside sizes of at most 2^40, keeps every sum and product below
 * 2^63. */
bool wt_read_axes(wt_call *call, int at, int rank, int64_t least, int bits, int64_t *first, int64_t *second);
bool wt_check_axes(wt_call *call, const char *name, int rank, const int64_t *values, int64_t least, int bits);
/* An expanded tensor may claim any size: more than memory can hold is refused before anything is computed from it. */
bool wt_check_sizes(wt_call *call, int at);
bool wt_is_float(int32_t dtype);
bool wt_is_half(int32_t dtype);
bool wt_check_float(wt_call *call, int at);
bool wt_check_same_type(wt_call *call, int at, int as);
/* So many dimensions, of floating-point data. allowed: the same in words. */
bool wt_check_data(wt_call *call, int at, int least, int most, const char *allowed);

/* ---------------------------------------------------------------- geometry.c: what convolution and windows share */
typedef struct wt_geometry { /* along d h w */
    int rank;
    bool batched, up; /* up: ceil_mode */
    int64_t groups, in[3], out[3], kernel[3], stride[3], dilation[3], pad_lo[3], pad_hi[3];
} wt_geometry;

wt_geometry wt_plain_geometry(int rank); /* of unit sizes and steps, without padding */
/* The problem of that geometry, without its tensors and without what only one operator has. */
weft_problem *wt_begin_with(weft_problem *p, weft_op op, weft_pass pass, const wt_geometry *g, int64_t n, int64_t c);
bool wt_read_geometry(wt_call *call, wt_geometry *g);
bool wt_check_length(wt_call *call, int at, int64_t length, const char *what); /* one dimension of length */
bool wt_check_bias(wt_call *call, int64_t channels);
bool wt_check_bias_dtype(wt_call *call); /* of a gradient */
/* groups times the second dimension of the weights: the channels on the side of src. */
bool wt_grouped_channels(wt_call *call, const wt_geometry *g, const wt_view *w, int64_t *channels);
/* Channels of data and weights. data_axis: which dimension of the weights, times groups if it is 1, counts the
 * data's channels. */
bool wt_check_channels(wt_call *call, const wt_geometry *g, const wt_view *x, const wt_view *w, int data_axis,
                       const char *name);
/* A tensor that must have these dims, and the rank that such dims have beside input. */
bool wt_see_exactly(wt_call *call, int at, const wt_geometry *g, const int64_t dims[5], wt_view *v);
/* A convolution from src to dst; batch, channels and sizes are those of src and the weights. */
void wt_begin_conv(weft_problem *p, weft_op op, weft_pass pass, const wt_geometry *g, const wt_view *src,
                   const wt_view *weights);
void wt_add_step(weft_problem *p, int kind, double lo, double hi);
bool wt_check_act(wt_call *call);
bool wt_put_epilogue(wt_call *call); /* bias and act of a forward operator */
/* The size of dst from that of src, or, with extra (output_padding), of src from dst; what is not positive is an
 * error, but for an empty batch of src. */
bool wt_out_sizes(wt_call *call, const wt_geometry *g, const wt_view *x, const wt_view *w, const int64_t *extra,
                  int64_t dims[5]);

/* ---------------------------------------------------------------- window.c: windows that move over an image */
/* How many windows start within so many elements, 0 if there is no room for one; and how far so many of them reach. */
int64_t wt_windows(int64_t padded, int64_t kernel, int64_t dilation, int64_t stride);
int64_t wt_span(int64_t windows, int64_t kernel, int64_t dilation, int64_t stride);
bool wt_window_begin(wt_call *call, wt_geometry *g, int list); /* the rank, from the length of a list */
/* Argument `at`: a tensor of so many axes, or of one more, a batch. Only the batch may be empty: from which axis on.
 */
bool wt_window_rank(wt_call *call, wt_geometry *g, int at, int unbatched);
bool wt_window_filled(wt_call *call, int at, int64_t from);
bool wt_window_read(wt_call *call, wt_geometry *g); /* the caller checks the padding */
bool wt_window_out(wt_geometry *g, int a);          /* the size of the result along axis a; false: there is no window */
/* All of them. name: what holds the sizes; whole: the input without padding must hold the kernel. */
bool wt_window_sizes(wt_call *call, wt_geometry *g, const char *name, bool whole);

/* ---------------------------------------------------------------- geometry.c: gradients */
enum { WT_WANT_INPUT = 1, WT_WANT_WEIGHT = 2, WT_WANT_BIAS = 4 };
typedef struct wt_gradients wt_gradients;
struct wt_gradients { /* of y = conv(x, w): results 0, 1 and 2 are dx, dw and db */
    wt_geometry g;
    wt_view dy, x, w, dx, dw, db;
    int64_t want;
    void (*begin)(wt_call *call, const wt_gradients *d, weft_pass pass); /* the problem, without the tensors above */
    bool torch, torch_bias; /* PyTorch has a way to compute them; a bias alone */
};
/* Input and weight, checked and seen, and the geometry. */
bool wt_open_pair(wt_call *call, wt_gradients *d);
bool wt_create_wanted(wt_call *call, wt_gradients *d, bool vector); /* vector: the weights are one */
bool wt_zero_wanted(wt_call *call); /* the gradients of an empty result: sums of nothing */
bool wt_run_wanted(wt_call *call, const wt_gradients *d);
/* One pass from x to dy, the roles of both as the pass has them; fwd gives the input's of a transposed one. */
bool wt_run_pass(wt_call *call, const wt_gradients *d, weft_pass pass, bool bias);

/* ---------------------------------------------------------------- context.c: the one context, and running a plan */
/* Start a call's list of kernels, which weft_torch_kernels() shows. */
void wt_kernels_clear(void);
void wt_kernels_add(const char *name);
void wt_note_torch(void);                  /* PyTorch's code alone ran */
double wt_estimate(const weft_plan *plan); /* ns */
/* Take workspace from PyTorch, execute on its current stream. call: whose error it is, or NULL. */
bool wt_run_plan(const weft_plan *plan, const weft_args *args, const wt_tensor *beside, wt_call *call);
/* scratch.c: memory that stays with the thread; NULL: too much, or in use. */
void *wt_scratch_take(size_t bytes);
void wt_scratch_return(void);
WEFT_API int64_t weft_torch_scratch(bool forget);
/* The same beside the call's first tensor; releases the plan. A NULL plan has failed already. */
bool wt_execute(wt_call *call, weft_plan *plan, const weft_args *args);
/* What an operator executes on this thread, from here to NULL: the last plan, a reference, and its arguments. */
typedef struct wt_capture {
    int runs;
    weft_plan *plan;
    weft_args args;
} wt_capture;
void wt_capture_into(wt_capture *to);
weft_ctx *wt_context(void);

/* ---------------------------------------------------------------- torch.c: PyTorch's own code for the same problem
 * An operator that PyTorch has too says so of a call: the planner weighs PyTorch as an alternative to weft's kernels,
 * and where it wins, weft_torch::<operator> computes the call by PyTorch's operators. Results that were made for weft
 * are dropped then. It must give the same on every run: it is rehearsed on the call's own tensors when it is measured.
 * want: which results, a bit each, for operators that have such an argument; WT_ALL; 0: PyTorch takes no part. */
enum { WT_ALL = -1 };
weft_plan *wt_plan_with(wt_call *call, int64_t want); /* for the call's device; NULL: call->error says why */
void wt_plan_alone(bool on);                          /* on this thread PyTorch takes no part */
bool wt_is_torch(const weft_plan *plan);              /* PyTorch won */
/* From here to NULL an operator on this thread plans and then fails: who would compute it? */
typedef struct wt_question {
    bool torchs, allowed; /* PyTorch won; it may */
    weft_problem problem;
} wt_question;
void wt_ask(wt_question *q);
bool wt_is_asked(void);
/* Execute the plan, or have PyTorch compute where it won; releases the plan. A NULL plan has failed already. */
bool wt_finish(wt_call *call, weft_plan *plan, const weft_args *args, int64_t want);
/* Plan the call's problem, and run whichever won. torch: PyTorch has a way to compute this call. */
bool wt_run(wt_call *call, bool torch);
bool wt_by_torch(wt_call *call, int64_t want);
bool wt_is_inside(void); /* this thread is within such a call: PyTorch takes no part in operators of weft there */

void wt_drop(wt_call *call, int slot); /* free result `slot`, if it is there */
/* The arguments of an operator, for torch_call_dispatcher; 0 is None. */
typedef struct wt_stack {
    wt_value item[WT_MAX_ARGS];
    int n;
    bool failed;
} wt_stack;
void wt_push(wt_stack *s, wt_value value);
wt_value wt_of_tensor(wt_stack *s, wt_handle tensor);
wt_value wt_of_list(wt_stack *s, const int64_t *values, int count);
wt_value wt_boxed(wt_stack *s, wt_value content); /* one that is optional, and given */

#endif
