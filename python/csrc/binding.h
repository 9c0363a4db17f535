/* What the parts of the binding know of each other.
 * An operator is one record: its schema and a function. Arguments are decoded by the schema, so the schema is the only description
 * of the interface; results are tensors. The function validates, fills a weft_problem, allocates with PyTorch and runs the plan. */
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
#define WT_MAX_ARGS 12
#define WT_MAX_OUTS 3
#define WT_MAX_LIST 8
#define WT_MAX_RANK 8

typedef struct wt_tensor {           /* handle NULL: an optional one that was not given */
    wt_handle handle;
    void *data;
    int64_t rank;
    const int64_t *sizes, *strides;  /* the tensor's own */
    int32_t dtype;                   /* weft_dtype; WEFT_DTYPE_NONE: one that weft does not take */
    int32_t code, device_type, device_index;   /* as PyTorch numbers them */
} wt_tensor;

typedef struct wt_list {
    int64_t item[WT_MAX_LIST];
    size_t size;
} wt_list;

typedef union wt_arg {
    wt_tensor tensor;
    wt_list list;
    int64_t integer;                 /* int, bool, ScalarType */
    double real;
    char text[16];
} wt_arg;

typedef enum wt_kind { WT_TENSOR, WT_TENSOR_OR_NONE, WT_LIST, WT_INT, WT_BOOL, WT_DTYPE, WT_REAL, WT_TEXT } wt_kind;

typedef struct wt_call wt_call;
typedef struct wt_op {
    const char *schema;
    bool (*run)(wt_call *call);      /* false: call->error says why */
    wt_kernel entry;
    int nargs;                       /* from the schema, by wt_op_prepare */
    wt_kind kind[WT_MAX_ARGS];
    char name[WT_MAX_ARGS][20];
} wt_op;

struct wt_call {
    const wt_op *op;
    wt_arg arg[WT_MAX_ARGS];
    wt_handle out[WT_MAX_OUTS];      /* new references, returned in this order */
    wt_handle scratch[2];            /* freed at the end */
    wt_handle guard;
    int32_t device_type, device_index;
    char error[768];
};

/* Decode the schema's argument list. NULL, or what is wrong with it. */
const char *wt_op_prepare(wt_op *op);
/* The life of one call: decode, run, free every argument, return the results or raise. */
void wt_dispatch(const wt_op *op, wt_value *stack, uint64_t nin, uint64_t nout);
/* Record the reason and return false. */
bool wt_fail(wt_call *call, const char *format, ...) WT_PRINTF(2, 3);
/* Allocate a result or scratch on the call's device. */
bool wt_empty(wt_call *call, wt_handle *tensor, int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t code, void **data);
const char *wt_dtype_name(int32_t code);   /* of a PyTorch code: "float32" */
int wt_dtype_of(int32_t code);             /* weft_dtype, or WEFT_DTYPE_NONE */
void wt_dtypes_init(void);

/* Another operator: WT_OPERATOR(name, schema) after its function `static bool run_<name>(wt_call *)`. */
#define WT_OPERATOR(id, text)                                                                            \
    static void enter_##id(wt_value *stack, uint64_t nin, uint64_t nout);                                \
    wt_op wt_op_##id = {.schema = text, .run = run_##id, .entry = enter_##id};                           \
    static void enter_##id(wt_value *stack, uint64_t nin, uint64_t nout) { wt_dispatch(&wt_op_##id, stack, nin, nout); }

/* Every operator there is. */
#define WT_OPERATORS(X) X(conv) X(conv_transpose) X(conv_backward)
#define X(name) extern wt_op wt_op_##name;
WT_OPERATORS(X)
#undef X

/* ---------------------------------------------------------------- context.c: the one context, and running a plan */
/* Start a call's list of kernels, which weft_torch_kernels() shows. */
void wt_kernels_clear(void);
/* The plan, from the context's cache, for the call's device; NULL: call->error says why. */
weft_plan *wt_plan(wt_call *call, weft_problem *p);
double wt_estimate(const weft_plan *plan);   /* ns */
/* Take workspace from PyTorch, execute on its current stream, release the plan. A NULL plan has failed already. */
bool wt_execute(wt_call *call, weft_plan *plan, const weft_args *args);
weft_ctx *wt_context(void);

#endif
