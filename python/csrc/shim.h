/* PyTorch's C shim as this binding sees it: opaque handles and a table of functions found at load time, so that one
 * binary serves every PyTorch from 2.10 on, with and without CUDA, and needs no header of it. The shim's names and
 * contracts are PyTorch's. */
#ifndef WEFT_TORCH_SHIM_H
#define WEFT_TORCH_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aten.h"

typedef int32_t wt_error;  /* 0: success */
typedef uint64_t wt_value; /* one slot of an operator's stack */
typedef void *wt_handle;   /* tensor, list, string, library or guard: owned by whoever holds it */
typedef void (*wt_kernel)(wt_value *stack, uint64_t nin, uint64_t nout);
typedef void (*wt_range)(int64_t begin, int64_t end, void *arg);

/* The encoding of stack values that this binding follows: that of PyTorch 2.11. */
#define WT_BUILD_VERSION ((UINT64_C(2) << 56) | (UINT64_C(11) << 48))

/* torch::jit::tracer::getTracingState: not a null pointer within, torch.jit.trace is at work on this thread. */
#define WT_TRACING_STATE _ZN5torch3jit6tracer15getTracingStateEv
/* PyTorch's implementations of an operator, below the dispatcher: by the C shim, and as a function of C++. */
#define WT_IMPLEMENTATIONS(X, name, outs)                                              \
    X(wt_error, aoti_torch_cpu_##name, (WT_ARGS_##name(WT_SHIM), WT_SHIM_OUT_##outs))  \
    X(wt_error, aoti_torch_cuda_##name, (WT_ARGS_##name(WT_SHIM), WT_SHIM_OUT_##outs)) \
    X(void *, WT_THROWING_##name, (void *out, WT_ARGS_##name(WT_CPP)))
#define WT_FUNCTIONS(X, name, outs)                              \
    X(void *, WT_CPU(name), (void *out, WT_ARGS_##name(WT_CPP))) \
    X(void *, WT_CUDA(name), (void *out, WT_ARGS_##name(WT_CPP)))

/* X(returns, name, parameters). Missing from the first list: PyTorch is too old. The second depends on the build or
 * the version. */
#define WT_REQUIRED(X)                                                                                                 \
    X(wt_error, aoti_torch_library_init_def, (const char *ns, const char *file, uint32_t line, wt_handle *library))    \
    X(wt_error, aoti_torch_library_init_impl,                                                                          \
      (const char *ns, const char *key, const char *file, uint32_t line, wt_handle *))                                 \
    X(wt_error, aoti_torch_library_def, (wt_handle library, const char *schema))                                       \
    X(wt_error, torch_library_impl, (wt_handle library, const char *name, wt_kernel fn, uint64_t version))             \
    X(void, aoti_torch_check, (bool ok, const char *function, const char *file, uint32_t line, const char *message))   \
    X(wt_error, aoti_torch_empty_strided,                                                                              \
      (int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type,                 \
       int32_t device_index, wt_handle *tensor))                                                                       \
    X(wt_error, aoti_torch_delete_tensor_object, (wt_handle tensor))                                                   \
    X(wt_error, aoti_torch_copy_, (wt_handle dst, wt_handle src, int32_t non_blocking))                                \
    X(wt_error, aoti_torch_zero_, (wt_handle tensor))                                                                  \
    X(wt_error, aoti_torch__reinterpret_tensor,                                                                        \
      (wt_handle tensor, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, wt_handle *view)) \
    X(wt_error, aoti_torch_get_data_ptr, (wt_handle tensor, void **data))                                              \
    X(wt_error, torch_get_const_data_ptr, (wt_handle tensor, const void **data))                                       \
    X(wt_error, aoti_torch_get_dim, (wt_handle tensor, int64_t * rank))                                                \
    X(wt_error, aoti_torch_get_sizes, (wt_handle tensor, int64_t * *sizes))                                            \
    X(wt_error, aoti_torch_get_strides, (wt_handle tensor, int64_t * *strides))                                        \
    X(wt_error, aoti_torch_get_storage_offset, (wt_handle tensor, int64_t * offset))                                   \
    X(wt_error, aoti_torch_get_dtype, (wt_handle tensor, int32_t * dtype))                                             \
    X(wt_error, aoti_torch_get_device_type, (wt_handle tensor, int32_t * type))                                        \
    X(wt_error, aoti_torch_get_device_index, (wt_handle tensor, int32_t * index))                                      \
    X(int32_t, aoti_torch_dtype_float32, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_float64, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_float16, (void))                                                                       \
    X(int32_t, aoti_torch_dtype_bfloat16, (void))                                                                      \
    X(int32_t, aoti_torch_dtype_uint8, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int32, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_int64, (void))                                                                         \
    X(int32_t, aoti_torch_dtype_bool, (void))                                                                          \
    X(int32_t, aoti_torch_dtype_complex64, (void))                                                                     \
    X(int32_t, aoti_torch_dtype_complex128, (void))                                                                    \
    X(int32_t, aoti_torch_device_type_cpu, (void))                                                                     \
    X(int32_t, aoti_torch_device_type_cuda, (void))                                                                    \
    X(int32_t, aoti_torch_device_type_meta, (void))                                                                    \
    X(wt_error, torch_parallel_for, (int64_t begin, int64_t end, int64_t grain, wt_range fn, void *arg))               \
    X(wt_error, torch_get_num_threads, (uint32_t * threads))                                                           \
    X(wt_error, torch_list_size, (wt_handle list, size_t * size))                                                      \
    X(wt_error, torch_list_get_item, (wt_handle list, size_t index, wt_value * item))                                  \
    X(wt_error, torch_delete_list, (wt_handle list))                                                                   \
    X(wt_error, torch_new_list_reserve_size, (size_t size, wt_handle * list))                                          \
    X(wt_error, torch_list_push_back, (wt_handle list, wt_value item))                                                 \
    X(wt_error, aoti_torch_new_tensor_handle, (wt_handle tensor, wt_handle * copy))                                    \
    X(wt_error, torch_call_dispatcher, (const char *name, const char *overload, wt_value *stack, uint64_t version))    \
    X(wt_error, torch_string_c_str, (wt_handle string, const char **text))                                             \
    X(wt_error, torch_delete_string, (wt_handle string))

#define WT_OPTIONAL(X)                                                                                           \
    X(wt_error, torch_delete_stable_ivalue, (wt_value * box)) /* 2.13 and later */                               \
    X(void, _ZdlPv, (void *block))                            /* operator delete: what freed the boxes before */ \
    X(wt_error, torch_new_stable_ivalue, (wt_value * *box))   /* the other halves of the two above */            \
    X(void *, _Znwm, (size_t bytes))                                                                             \
    X(wt_error, aoti_torch_create_cuda_stream_guard, (void *stream, int32_t device_index, wt_handle *guard))     \
    X(wt_error, aoti_torch_delete_cuda_stream_guard, (wt_handle guard))                                          \
    X(const char *, torch_exception_get_what_without_backtrace, (void))                                          \
    X(void *const *, WT_TRACING_STATE, (void))                                                                   \
    X(wt_error, aoti_torch_is_defined, (wt_handle tensor, bool *is_defined))                                     \
    X(wt_error, aoti_torch_new_uninitialized_tensor, (wt_handle * tensor))                                       \
    WT_ATEN(WT_IMPLEMENTATIONS, X)                                                                               \
    WT_ATEN_CPP(WT_FUNCTIONS, X)                                                                                 \
    X(wt_error, aoti_torch_get_current_cuda_stream, (int32_t device_index, void **stream))                       \
    X(wt_error, aoti_torch_create_cuda_guard, (int32_t device_index, wt_handle * guard))                         \
    X(wt_error, aoti_torch_delete_cuda_guard, (wt_handle guard))

typedef struct wt_shim {
#define X(returns, name, parameters) returns(*name) parameters;
    WT_REQUIRED(X) WT_OPTIONAL(X)
#undef X
} wt_shim;
extern wt_shim wt;

/* Fill the table. NULL, or why it cannot be used. */
const char *wt_shim_load(void);
bool wt_shim_has_cuda(void);

#endif
