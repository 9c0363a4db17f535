/* PyTorch's C shim as this binding sees it: opaque handles and a table of functions found at load time, so that one
 * binary serves every PyTorch from 2.10 on, with and without CUDA, and needs no header of it. The shim's names and
 * contracts are PyTorch's. */
#ifndef WEFT_TORCH_SHIM_H
#define WEFT_TORCH_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef int32_t wt_error;  /* 0: success */
typedef uint64_t wt_value; /* one slot of an operator's stack */
typedef void *wt_handle;   /* tensor, list, string, library or guard: owned by whoever holds it */
typedef void (*wt_kernel)(wt_value *stack, uint64_t nin, uint64_t nout);
typedef void (*wt_range)(int64_t begin, int64_t end, void *arg);

/* The encoding of stack values that this binding follows: that of PyTorch 2.11. */
#define WT_BUILD_VERSION ((UINT64_C(2) << 56) | (UINT64_C(11) << 48))

/* PyTorch's implementation of a convolution and its gradient, below the dispatcher. */
#define WT_CONVOLUTION                                                                                         \
    (wt_handle input, wt_handle weight, wt_handle * bias, const int64_t *stride, int64_t strides,              \
     const int64_t *padding, int64_t paddings, const int64_t *dilation, int64_t dilations, int32_t transposed, \
     const int64_t *output_padding, int64_t output_paddings, int64_t groups, wt_handle *output)
#define WT_CONVOLUTION_BACKWARD                                                                                     \
    (wt_handle grad_output, wt_handle input, wt_handle weight, const int64_t **bias_sizes, int64_t bias_dims,       \
     const int64_t *stride, int64_t strides, const int64_t *padding, int64_t paddings, const int64_t *dilation,     \
     int64_t dilations, int32_t transposed, const int64_t *output_padding, int64_t output_paddings, int64_t groups, \
     const int32_t *output_mask, int64_t masks, wt_handle *grad_input, wt_handle *grad_weight, wt_handle *grad_bias)
/* Pooling likewise. */
#define WT_MAX_POOL                                                                                           \
    (wt_handle input, const int64_t *kernel, int64_t kernels, const int64_t *stride, int64_t strides,         \
     const int64_t *padding, int64_t paddings, const int64_t *dilation, int64_t dilations, int32_t ceil_mode, \
     wt_handle *output, wt_handle *index)
#define WT_MAX_POOL_BACKWARD                                                                                \
    (wt_handle grad_output, wt_handle input, const int64_t *kernel, int64_t kernels, const int64_t *stride, \
     int64_t strides, const int64_t *padding, int64_t paddings, const int64_t *dilation, int64_t dilations, \
     int32_t ceil_mode, wt_handle index, wt_handle *grad_input)
#define WT_AVG_POOL                                                                                      \
    (wt_handle input, const int64_t *kernel, int64_t kernels, const int64_t *stride, int64_t strides,    \
     const int64_t *padding, int64_t paddings, int32_t ceil_mode, int32_t include_pad, int64_t *divisor, \
     wt_handle *output)
#define WT_AVG_POOL_BACKWARD                                                                                \
    (wt_handle grad_output, wt_handle input, const int64_t *kernel, int64_t kernels, const int64_t *stride, \
     int64_t strides, const int64_t *padding, int64_t paddings, int32_t ceil_mode, int32_t include_pad,     \
     int64_t *divisor, wt_handle *grad_input)
#define WT_ADAPTIVE_AVG_POOL (wt_handle input, const int64_t *size, int64_t sizes, wt_handle *output)
#define WT_ADAPTIVE_AVG_POOL_BACKWARD (wt_handle grad_output, wt_handle input, wt_handle * grad_input)
/* The same as C++ sees it: at::compositeexplicitautograd::convolution(const Tensor &, ...). It throws what PyTorch
 * throws. */
#define WT_THROWING_CONVOLUTION \
    _ZN2at25compositeexplicitautograd11convolutionERKNS_6TensorES3_RKSt8optionalIS1_EN3c108ArrayRefIlEESA_SA_bSA_l
#define WT_JOINED(a, b) a##b
#define WT_THROWING_CONVOLUTION_BACKWARD                                                                              \
    WT_JOINED(_ZN2at25compositeexplicitautograd20convolution_backwardERKNS_6TensorES3_S3_N3c1016OptionalArrayRefIlEE, \
              NS4_8ArrayRefIlEES8_S8_bS8_lSt5arrayIbLm3EE)
/* at::cpu::max_pool2d_with_indices(const Tensor &, ...) and so on */
#define WT_THROWING_MAX_POOL _ZN2at3cpu23max_pool2d_with_indicesERKNS_6TensorEN3c108ArrayRefIlEES6_S6_S6_b
#define WT_THROWING_MAX_POOL_BACKWARD \
    _ZN2at3cpu32max_pool2d_with_indices_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES6_S6_S6_bS3_
#define WT_THROWING_AVG_POOL _ZN2at3cpu10avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEES6_S6_bbSt8optionalIlE
#define WT_THROWING_AVG_POOL_BACKWARD \
    _ZN2at3cpu19avg_pool2d_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES6_S6_bbSt8optionalIlE
#define WT_THROWING_ADAPTIVE_AVG_POOL _ZN2at3cpu20_adaptive_avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEE
#define WT_THROWING_ADAPTIVE_AVG_POOL_BACKWARD _ZN2at3cpu29_adaptive_avg_pool2d_backwardERKNS_6TensorES3_
/* torch::jit::tracer::getTracingState: not a null pointer within, torch.jit.trace is at work on this thread. */
#define WT_TRACING_STATE _ZN5torch3jit6tracer15getTracingStateEv
typedef struct wt_array { /* c10::ArrayRef<long> */
    const int64_t *data;
    size_t size;
} wt_array;
typedef struct wt_maybe_array { /* c10::OptionalArrayRef<long> */
    wt_array array;
    bool given;
} wt_maybe_array;
typedef struct wt_maybe { /* an optional long of C++ */
    int64_t value;
    bool given;
} wt_maybe;
typedef struct wt_mask { /* an array of three bools of C++ */
    bool item[3];
} wt_mask;

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

#define WT_OPTIONAL(X)                                                                                                 \
    X(wt_error, torch_delete_stable_ivalue, (wt_value * box)) /* 2.13 and later */                                     \
    X(void, _ZdlPv, (void *block))                            /* operator delete: what freed the boxes before */       \
    X(wt_error, torch_new_stable_ivalue, (wt_value * *box))   /* the other halves of the two above */                  \
    X(void *, _Znwm, (size_t bytes))                                                                                   \
    X(wt_error, aoti_torch_create_cuda_stream_guard, (void *stream, int32_t device_index, wt_handle *guard))           \
    X(wt_error, aoti_torch_delete_cuda_stream_guard, (wt_handle guard))                                                \
    X(const char *, torch_exception_get_what_without_backtrace, (void))                                                \
    X(void *const *, WT_TRACING_STATE, (void))                                                                         \
    X(wt_error, aoti_torch_is_defined, (wt_handle tensor, bool *is_defined))                                           \
    X(wt_error, aoti_torch_new_uninitialized_tensor, (wt_handle * tensor))                                             \
    X(wt_error, aoti_torch_cpu_convolution, WT_CONVOLUTION)                                                            \
    X(wt_error, aoti_torch_cuda_convolution, WT_CONVOLUTION)                                                           \
    X(wt_error, aoti_torch_cpu_convolution_backward, WT_CONVOLUTION_BACKWARD)                                          \
    X(wt_error, aoti_torch_cuda_convolution_backward, WT_CONVOLUTION_BACKWARD)                                         \
    X(void *, WT_THROWING_CONVOLUTION,                                                                                 \
      (void *out, wt_handle input, wt_handle weight, const void *bias, wt_array stride, wt_array padding,              \
       wt_array dilation, bool transposed, wt_array output_padding, int64_t groups))                                   \
    X(wt_error, aoti_torch_cpu_max_pool2d_with_indices, WT_MAX_POOL)                                                   \
    X(wt_error, aoti_torch_cuda_max_pool2d_with_indices, WT_MAX_POOL)                                                  \
    X(wt_error, aoti_torch_cpu_max_pool2d_with_indices_backward, WT_MAX_POOL_BACKWARD)                                 \
    X(wt_error, aoti_torch_cuda_max_pool2d_with_indices_backward, WT_MAX_POOL_BACKWARD)                                \
    X(wt_error, aoti_torch_cpu_avg_pool2d, WT_AVG_POOL)                                                                \
    X(wt_error, aoti_torch_cuda_avg_pool2d, WT_AVG_POOL)                                                               \
    X(wt_error, aoti_torch_cpu_avg_pool2d_backward, WT_AVG_POOL_BACKWARD)                                              \
    X(wt_error, aoti_torch_cuda_avg_pool2d_backward, WT_AVG_POOL_BACKWARD)                                             \
    X(wt_error, aoti_torch_cpu__adaptive_avg_pool2d, WT_ADAPTIVE_AVG_POOL)                                             \
    X(wt_error, aoti_torch_cuda__adaptive_avg_pool2d, WT_ADAPTIVE_AVG_POOL)                                            \
    X(wt_error, aoti_torch_cpu__adaptive_avg_pool2d_backward, WT_ADAPTIVE_AVG_POOL_BACKWARD)                           \
    X(wt_error, aoti_torch_cuda__adaptive_avg_pool2d_backward, WT_ADAPTIVE_AVG_POOL_BACKWARD)                          \
    X(void *, WT_THROWING_MAX_POOL,                                                                                    \
      (void *out, wt_handle input, wt_array kernel, wt_array stride, wt_array padding, wt_array dilation,              \
       bool ceil_mode))                                                                                                \
    X(void *, WT_THROWING_MAX_POOL_BACKWARD,                                                                           \
      (void *out, wt_handle grad_output, wt_handle input, wt_array kernel, wt_array stride, wt_array padding,          \
       wt_array dilation, bool ceil_mode, wt_handle index))                                                            \
    X(void *, WT_THROWING_AVG_POOL,                                                                                    \
      (void *out, wt_handle input, wt_array kernel, wt_array stride, wt_array padding, bool ceil_mode,                 \
       bool include_pad, wt_maybe divisor))                                                                            \
    X(void *, WT_THROWING_AVG_POOL_BACKWARD,                                                                           \
      (void *out, wt_handle grad_output, wt_handle input, wt_array kernel, wt_array stride, wt_array padding,          \
       bool ceil_mode, bool include_pad, wt_maybe divisor))                                                            \
    X(void *, WT_THROWING_ADAPTIVE_AVG_POOL, (void *out, wt_handle input, wt_array size))                              \
    X(void *, WT_THROWING_ADAPTIVE_AVG_POOL_BACKWARD, (void *out, wt_handle grad_output, wt_handle input))             \
    X(void *, WT_THROWING_CONVOLUTION_BACKWARD,                                                                        \
      (void *out, wt_handle grad_output, wt_handle input, wt_handle weight, wt_maybe_array bias_sizes,                 \
       wt_array stride, wt_array padding, wt_array dilation, bool transposed, wt_array output_padding, int64_t groups, \
       wt_mask mask))                                                                                                  \
    X(wt_error, aoti_torch_get_current_cuda_stream, (int32_t device_index, void **stream))                             \
    X(wt_error, aoti_torch_create_cuda_guard, (int32_t device_index, wt_handle * guard))                               \
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
