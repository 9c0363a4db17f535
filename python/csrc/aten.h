/* PyTorch's operators that the seat takes: the arguments of each, once, in the order of its schema. P is what is made
 * of them: P_TENSOR(X) and so on say it for each kind of argument. The names are those of SEAT_..., in seat.h. */
#ifndef WEFT_TORCH_ATEN_H
#define WEFT_TORCH_ATEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* F(X, operator, number of its results) */
#define WT_ATEN(F, X)                         \
    F(X, convolution, 1)                      \
    F(X, convolution_backward, 3)             \
    F(X, max_pool2d_with_indices, 2)          \
    F(X, max_pool2d_with_indices_backward, 1) \
    F(X, avg_pool2d, 1)                       \
    F(X, avg_pool2d_backward, 1)              \
    F(X, _adaptive_avg_pool2d, 1)             \
    F(X, _adaptive_avg_pool2d_backward, 1)
/* The same of those that the C shim has not: C++ functions alone lead to PyTorch's implementation. */
#define WT_ATEN_CPP(F, X)               \
    F(X, _softmax, 1)                   \
    F(X, _softmax_backward_data, 1)     \
    F(X, _log_softmax, 1)               \
    F(X, _log_softmax_backward_data, 1) \
    F(X, native_batch_norm, 3)          \
    F(X, native_batch_norm_backward, 3) \
    F(X, cudnn_batch_norm, 4)           \
    F(X, cudnn_batch_norm_backward, 3)

#define WT_GEOMETRY(P) \
    P##_LIST(STRIDE), P##_LIST(PADDING), P##_LIST(DILATION), P##_BOOL(TRANSPOSED), P##_LIST(EXTRA), P##_INT(GROUPS)
#define WT_DILATED(P) P##_LIST(KERNEL), P##_LIST(STRIDE), P##_LIST(PADDING), P##_LIST(DILATION), P##_BOOL(CEIL)
#define WT_DIVIDED(P) \
    P##_LIST(KERNEL), P##_LIST(STRIDE), P##_LIST(PADDING), P##_BOOL(CEIL), P##_BOOL(INCLUDE), P##_MAYBE(DIVISOR)
#define WT_ARGS_convolution(P) P##_TENSOR(X), P##_TENSOR(W), P##_OPTIONAL(BIAS), WT_GEOMETRY(P)
#define WT_ARGS_convolution_backward(P) \
    P##_TENSOR(DY), P##_TENSOR(X), P##_TENSOR(W), P##_SIZES(SIZES), WT_GEOMETRY(P), P##_MASK(MASK)
#define WT_ARGS_max_pool2d_with_indices(P) P##_TENSOR(X), WT_DILATED(P)
#define WT_ARGS_max_pool2d_with_indices_backward(P) P##_TENSOR(DY), P##_TENSOR(X), WT_DILATED(P), P##_TENSOR(INDEX)
#define WT_ARGS_avg_pool2d(P) P##_TENSOR(X), WT_DIVIDED(P)
#define WT_ARGS_avg_pool2d_backward(P) P##_TENSOR(DY), P##_TENSOR(X), WT_DIVIDED(P)
#define WT_ARGS__adaptive_avg_pool2d(P) P##_TENSOR(X), P##_LIST(EXTRA)
#define WT_ARGS__adaptive_avg_pool2d_backward(P) P##_TENSOR(DY), P##_TENSOR(X)
#define WT_ARGS__softmax(P) P##_TENSOR(X), P##_INT(AXIS), P##_BOOL(TO_FLOAT)
#define WT_ARGS__log_softmax(P) WT_ARGS__softmax(P)
#define WT_ARGS__softmax_backward_data(P) P##_TENSOR(DY), P##_TENSOR(X), P##_INT(AXIS), P##_TYPE(TYPE)
#define WT_ARGS__log_softmax_backward_data(P) WT_ARGS__softmax_backward_data(P)
#define WT_RUNNING(P) P##_OPTIONAL(MEAN), P##_OPTIONAL(VAR)
#define WT_SAVED(P) P##_OPTIONAL(SAVED_MEAN), P##_OPTIONAL(SAVED_INVSTD)
#define WT_ARGS_native_batch_norm(P)                                                                           \
    P##_TENSOR(X), P##_OPTIONAL(W), P##_OPTIONAL(BIAS), WT_RUNNING(P), P##_BOOL(TRAINING), P##_REAL(MOMENTUM), \
        P##_REAL(EPS)
#define WT_ARGS_native_batch_norm_backward(P)                                                                      \
    P##_TENSOR(DY), P##_TENSOR(X), P##_OPTIONAL(W), WT_RUNNING(P), WT_SAVED(P), P##_BOOL(TRAINING), P##_REAL(EPS), \
        P##_MASK(MASK)
#define WT_ARGS_cudnn_batch_norm(P)                                                                          \
    P##_TENSOR(X), P##_TENSOR(W), P##_OPTIONAL(BIAS), WT_RUNNING(P), P##_BOOL(TRAINING), P##_REAL(MOMENTUM), \
        P##_REAL(EPS)
#define WT_ARGS_cudnn_batch_norm_backward(P) \
    P##_TENSOR(X), P##_TENSOR(DY), P##_TENSOR(W), WT_RUNNING(P), WT_SAVED(P), P##_REAL(EPS), P##_TENSOR(RESERVE)
/* What PyTorch's functions take that end in these, above autograd: convNd, conv_transposeNd, softmax, batch_norm
 * and cross_entropy, whose target is W and whose weights are BIAS. PADS: a list, or 'same'; SYM: a SymInt, by
 * address. */
#define WT_ARGS_convNd(P)                                                                                      \
    P##_TENSOR(X), P##_TENSOR(W), P##_OPTIONAL(BIAS), P##_LIST(STRIDE), P##_PADS(PADDING), P##_LIST(DILATION), \
        P##_SYM(GROUPS)
#define WT_ARGS_conv_transposeNd(P)                                                                         \
    P##_TENSOR(X), P##_TENSOR(W), P##_OPTIONAL(BIAS), P##_LIST(STRIDE), P##_LIST(PADDING), P##_LIST(EXTRA), \
        P##_SYM(GROUPS), P##_LIST(DILATION)
#define WT_ARGS_softmax(P) P##_TENSOR(X), P##_INT(AXIS), P##_NO_TYPE()
#define WT_ARGS_batch_norm(P) WT_ARGS_native_batch_norm(P), P##_BOOL(CUDNN)
#define WT_ARGS_cross_entropy(P) \
    P##_TENSOR(X), P##_TENSOR(W), P##_OPTIONAL(BIAS), P##_INT(REDUCTION), P##_SYM(IGNORED), P##_REAL(SMOOTHING)

/* ---------------------------------------------------------------- parameters of PyTorch's C shim */
#define WT_SHIM_TENSOR(at) wt_handle at
#define WT_SHIM_OPTIONAL(at) wt_handle *at
#define WT_SHIM_LIST(at) const int64_t *at, int64_t at##_size
#define WT_SHIM_SIZES(at) const int64_t **at, int64_t at##_size
#define WT_SHIM_MASK(at) const int32_t *at, int64_t at##_size
#define WT_SHIM_BOOL(at) int32_t at
#define WT_SHIM_INT(at) int64_t at
#define WT_SHIM_MAYBE(at) int64_t *at
#define WT_SHIM_OUT_1 wt_handle *
#define WT_SHIM_OUT_2 wt_handle *, wt_handle *
#define WT_SHIM_OUT_3 wt_handle *, wt_handle *, wt_handle *

/* ---------------------------------------------------------------- parameters of C++ */
typedef struct wt_array { /* c10::ArrayRef<long> */
    const int64_t *data;
    size_t size;
} wt_array;
typedef struct wt_maybe_array { /* c10::OptionalArrayRef<long> */
    wt_array array;
    bool given;
} wt_maybe_array;
typedef struct wt_maybe { /* an optional long */
    int64_t value;
    bool given;
} wt_maybe;
typedef struct wt_maybe_tensor { /* an optional tensor, which is one pointer */
    void *tensor;
    bool given;
} wt_maybe_tensor;
typedef struct wt_mask { /* an array of three bools */
    bool item[3];
} wt_mask;
#define WT_CPP_TENSOR(at) wt_handle at /* a reference */
#define WT_CPP_OPTIONAL(at) const wt_maybe_tensor *at
#define WT_CPP_LIST(at) wt_array at
#define WT_CPP_SIZES(at) wt_maybe_array at
#define WT_CPP_MASK(at) wt_mask at
#define WT_CPP_BOOL(at) bool at
#define WT_CPP_INT(at) int64_t at
#define WT_CPP_MAYBE(at) wt_maybe at
#define WT_CPP_PADS(at) wt_array at
#define WT_CPP_SYM(at) const int64_t *at
#define WT_CPP_REAL(at) double at
#define WT_CPP_TYPE(at) int8_t at
#define WT_CPP_NO_TYPE() uint64_t

/* The functions of C++, which throw what PyTorch throws: at::compositeexplicitautograd::convolution(const Tensor &,
 * ...), at::cpu::max_pool2d_with_indices and so on. */
/* clang-format off */
#define WT_JOINED(a, b) a##b
#define WT_THROWING_convolution \
    _ZN2at25compositeexplicitautograd11convolutionERKNS_6TensorES3_RKSt8optionalIS1_EN3c108ArrayRefIlEESA_SA_bSA_l
#define WT_THROWING_convolution_backward                                                                              \
    WT_JOINED(_ZN2at25compositeexplicitautograd20convolution_backwardERKNS_6TensorES3_S3_N3c1016OptionalArrayRefIlEE, \
              NS4_8ArrayRefIlEES8_S8_bS8_lSt5arrayIbLm3EE)
#define WT_THROWING_max_pool2d_with_indices \
    _ZN2at3cpu23max_pool2d_with_indicesERKNS_6TensorEN3c108ArrayRefIlEES6_S6_S6_b
#define WT_THROWING_max_pool2d_with_indices_backward \
    _ZN2at3cpu32max_pool2d_with_indices_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES6_S6_S6_bS3_
#define WT_THROWING_avg_pool2d _ZN2at3cpu10avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEES6_S6_bbSt8optionalIlE
#define WT_THROWING_avg_pool2d_backward \
    _ZN2at3cpu19avg_pool2d_backwardERKNS_6TensorES3_N3c108ArrayRefIlEES6_S6_bbSt8optionalIlE
#define WT_THROWING__adaptive_avg_pool2d _ZN2at3cpu20_adaptive_avg_pool2dERKNS_6TensorEN3c108ArrayRefIlEE
#define WT_THROWING__adaptive_avg_pool2d_backward _ZN2at3cpu29_adaptive_avg_pool2d_backwardERKNS_6TensorES3_

/* at::cpu::_softmax(const Tensor &, long, bool) and at::cuda::_softmax, and so on; cuDNN's are not on the CPU. */
#define WT_REST__softmax 8_softmaxERKNS_6TensorElb
#define WT_REST__softmax_backward_data 22_softmax_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE
#define WT_REST__log_softmax 12_log_softmaxERKNS_6TensorElb
#define WT_REST__log_softmax_backward_data 26_log_softmax_backward_dataERKNS_6TensorES3_lN3c1010ScalarTypeE
#define WT_REST_native_batch_norm 17native_batch_normERKNS_6TensorERKSt8optionalIS1_ES7_S7_S7_bdd
#define WT_REST_native_batch_norm_backward                                                                            \
    26native_batch_norm_backwardERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_S7_S7_bdSt5arrayIbLm3EE
#define WT_REST_cudnn_batch_norm 16cudnn_batch_normERKNS_6TensorES3_RKSt8optionalIS1_ES7_S7_bdd
#define WT_REST_cudnn_batch_norm_backward                                                                             \
    25cudnn_batch_norm_backwardERKNS_6TensorES3_S3_RKSt8optionalIS1_ES7_S7_S7_dS3_
#define WT_JOINED_LATE(a, b) WT_JOINED(a, b)
#define WT_CPU(name) WT_JOINED_LATE(_ZN2at3cpu, WT_REST_##name)
#define WT_CUDA(name) WT_JOINED_LATE(_ZN2at4cuda, WT_REST_##name)
/* clang-format on */

#endif
