"""Convolution, transposed convolution and their gradients: derivatives and batching of weft::conv, conv_transpose, conv_backward."""
from __future__ import annotations

import math
import struct
from functools import lru_cache

import torch
from torch.utils.flop_counter import register_flop_formula

from .._core.rules import Rule, call, mapped
from .._core.shapes import least_source
from ._derived import adjoint, derived, leaf, tangents, wide

WANT_INPUT, WANT_WEIGHT, WANT_BIAS = 1, 2, 4


# ---------------------------------------------------------------------------------------------- gradients

_FORMATS = {torch.float16: "e", torch.float32: "f", torch.float64: "d"}


@lru_cache(maxsize=1024)
def rounded(value: float, dtype: torch.dtype) -> float:
    """A bound as a result of that type holds it. Clipping and rounding to the nearest commute, so a result that sits on its bound equals this.
    Kernels for 16-bit types clip in float32."""
    if dtype in (torch.float16, torch.bfloat16):
        value = rounded(value, torch.float32)
    if dtype == torch.bfloat16:   # the upper half of a float32, to the nearest even
        bits, = struct.unpack("<I", struct.pack("<f", value))
        bits = bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000
        return struct.unpack("<f", struct.pack("<I", bits))[0]
    try:
        return struct.unpack(_FORMATS[dtype], struct.pack(_FORMATS[dtype], value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def want_of(needs):
    x, w, b = needs[:3]
    return x * WANT_INPUT + w * WANT_WEIGHT + b * WANT_BIAS


def wanted(grads, want):
    """None in place of what is not wanted."""
    return tuple(g if want & bit else None for g, bit in zip(grads, (WANT_INPUT, WANT_WEIGHT, WANT_BIAS)))


def save_epilogue(ctx, input, bias, act, lo, hi, dtype):
    """The type of the bias, and the activation with bounds as results that sit on them hold them."""
    ctx.bias_dtype = input.dtype if bias is None else bias.dtype
    ctx.act = (act, rounded(lo, dtype), rounded(hi, dtype)) if act == "clip" else (act, lo, hi)


def through_act(grad, output, act, lo, hi):
    """The gradient before the activation, from its result: 0 where the result sits on a bound."""
    if not act:
        return grad
    if act == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    return torch.ops.aten.hardtanh_backward(grad, output, lo, hi)


def _save_forward(ctx, inputs, output):
    """For conv and conv_transpose alike: the geometry, the activation, and its result where there is one."""
    input, weight, bias, stride, padding, dilation, groups, act, lo, hi, *extra = inputs
    ctx.settings = (stride, padding, dilation, groups, *extra)
    save_epilogue(ctx, input, bias, act, lo, hi, output.dtype)
    return input, weight, output if act else None


def _gradient_of_forward(ctx, grad):
    input, weight, output = ctx.saved_tensors
    want = want_of(ctx.needs_input_grad)
    return wanted(call(conv_backward, through_act(grad, output, *ctx.act), input, weight, *ctx.settings[:4], len(ctx.settings) > 4, want, ctx.bias_dtype), want)


def no_bias(db):
    """Of what is linear in the bias, where to take the derivative."""
    return None if db is None else torch.zeros_like(db)


def _tangent_of_forward(ctx, input, weight, output, dx, dw, db):
    moved, = tangents(formula, (input, weight, no_bias(db)), ctx.settings, (dx, dw, db))
    return through_act(moved, output, *ctx.act)


# ---------------------------------------------------------------------------------------------- by PyTorch

_pad = torch.nn.functional.pad
_CONV = (torch.conv1d, torch.conv2d, torch.conv3d)
_CONV_TRANSPOSE = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def _is_even(padding):
    return list(padding[::2]) == list(padding[1::2])


def around(padding):
    """As torch.nn.functional.pad takes it: the last axis first."""
    return [p for a in reversed(range(len(padding) // 2)) for p in padding[2 * a:2 * a + 2]]


def plainly(x, w, bias, stride, padding, dilation, groups, output_padding=None):
    """The convolution without an activation, transposed with output_padding. Padding that is uneven is put on, or cut off, apart."""
    rank, even = len(stride), _is_even(padding)
    pads = padding[::2] if even else [0] * rank
    if output_padding is None:
        return _CONV[rank - 1](x if even else _pad(x, around(padding)), w, bias, stride, pads, dilation, groups)
    y = _CONV_TRANSPOSE[rank - 1](x, w, bias, stride, pads, output_padding, groups, dilation)
    return y if even else _pad(y, [-p for p in around(padding)])


def formula(input, weight, bias, *geometry):
    x = wide(input)
    return plainly(x, wide(weight), None if bias is None else bias.to(x.dtype), *geometry).to(input.dtype)


def activated(y, act, lo, hi):
    """In place."""
    return y if not act else y.relu_() if act == "relu" else y.clamp_(lo, hi)


def _torch(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, *extra):
    return activated(plainly(input, weight, bias, stride, padding, dilation, groups, *extra), act, lo, hi)


def _torch_backward(grad, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    rank, around_it = len(stride), around(padding)
    batched, even = input.dim() == rank + 2, _is_even(padding)
    dy, x = (grad, input) if batched else (grad.unsqueeze(0), input.unsqueeze(0))
    if want == WANT_BIAS:
        return None, None, dy.sum([a for a in range(rank + 2) if a != 1])
    extra, pads = [0] * rank, padding[::2] if even else [0] * rank
    if transposed:
        least = least_source(input.shape[-rank:], weight.shape[2:], stride, padding, dilation)
        extra = [n - m for n, m in zip(grad.shape[-rank:], least)]
    if not even:
        dy, x = (_pad(dy, around_it), x) if transposed else (dy, _pad(x, around_it))
    if x.is_cpu and want & WANT_WEIGHT and x.shape[1] < 16 and math.prod(weight.shape[2:]) == 1 and max(stride) > 1:
        dy, x, weight = dy.contiguous(), x.contiguous(), weight.contiguous()   # else it writes outside of its memory: python/csrc/seat_conv.c
    mask = [bool(want & bit) for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS)]
    dx, dw, db = torch.ops.aten.convolution_backward(dy, x, weight, [dy.shape[1]] if mask[2] else None, stride, pads, dilation, transposed, extra, groups, mask)
    if mask[0] and not even and not transposed:
        dx = _pad(dx, [-p for p in around_it])
    return dx if batched or not mask[0] else dx.squeeze(0), dw, db


def _backward(grad, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    rank, extra = len(stride), []
    if transposed:
        least = least_source(input.shape[-rank:], weight.shape[2:], stride, padding, dilation)
        extra = [[n - m for n, m in zip(grad.shape[-rank:], least)]]
    bias = leaf(input.new_zeros(grad.shape[-rank - 1], dtype=bias_dtype))
    return wanted(adjoint(formula, 3)(grad, input, weight, bias, stride, padding, dilation, groups, *extra), want)


def _is_plain(input, weight, padding, act):
    """A call that PyTorch's function computes, in the format that the operator is told to have: that of the data, whatever the weights'. In
    channels-last it may write outside of its memory, too: python/csrc/seat_conv.c."""
    return not act and _is_even(padding) and input.is_contiguous() and weight.is_contiguous() and weight.stride(-1) == 1


def _native_conv(input, weight, bias, stride, padding, dilation, groups, act, lo, hi):
    if not _is_plain(input, weight, padding, act):
        return NotImplemented
    return _CONV[len(stride) - 1](input, weight, bias, stride, padding[::2], dilation, groups)


def _native_conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding):
    if not _is_plain(input, weight, padding, act):
        return NotImplemented
    return _CONV_TRANSPOSE[len(stride) - 1](input, weight, bias, stride, padding[::2], output_padding, groups, dilation)


def _image(stride, *_):
    """The dimensions of one."""
    return len(stride) + 1


conv = Rule("conv", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, mapped("conv", 3, 1, _image), by_torch=_torch, native=_native_conv,
            plain=_native_conv)   # to hand five lists over to PyTorch costs more than to ask first
conv_transpose = Rule("conv_transpose", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, mapped("conv_transpose", 3, 1, _image),
                      by_torch=_torch, native=_native_conv_transpose, plain=_native_conv_transpose)
conv_backward = Rule("conv_backward", 3, *derived(_backward, 3), mapped("conv_backward", 3, 0), by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- torch.utils.flop_counter

def _flops(input, weight, dst, transposed):
    """Two for each product, as PyTorch counts: every position of the smaller side of the convolution sees every weight once for each image."""
    batch = input[0] if len(input) == len(weight) else 1
    return 2 * batch * math.prod((input if transposed else dst)[2 - len(weight):]) * math.prod(weight)


@register_flop_formula(torch.ops.weft.conv)
def _conv_flops(input, weight, *args, out_shape=None, **kwargs):
    return _flops(input, weight, out_shape, False)


@register_flop_formula(torch.ops.weft.conv_transpose)
def _conv_transpose_flops(input, weight, *args, out_shape=None, **kwargs):
    return _flops(input, weight, out_shape, True)


@register_flop_formula(torch.ops.weft.conv_backward)
def _conv_backward_flops(grad_output, input, weight, stride, padding, dilation, groups, transposed, want, *args, out_shape=None, **kwargs):
    """As much for the gradient of the input and of the weights, where they are wanted."""
    return _flops(input, weight, grad_output, transposed) * ((want & 1) + (want >> 1 & 1))
