"""Convolution, transposed convolution and their gradients: derivatives and batching of weft::conv, conv_transpose, conv_backward."""
from __future__ import annotations

import math
import struct
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from .._rules import Rule, call
from .._shapes import least_source
from ._bilinear import WANT_BIAS, WANT_INPUT, WANT_WEIGHT, gradient_of_backward, tangent_of_backward


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


def _save_forward(ctx, inputs, output):
    """For conv and conv_transpose alike: the geometry, the activation, and its result where there is one."""
    input, weight, bias, stride, padding, dilation, groups, act, lo, hi = inputs[:10]
    ctx.geometry = (stride, padding, dilation, groups)
    ctx.act, ctx.lo, ctx.hi = act, lo, hi
    if act == "clip":
        ctx.lo, ctx.hi = rounded(lo, output.dtype), rounded(hi, output.dtype)
    ctx.bias_dtype = input.dtype if bias is None else bias.dtype
    ctx.shape = output.shape
    ctx.transposed = len(inputs) > 10
    return input, weight, output if act else None


def through_act(grad, output, act, lo, hi):
    """The gradient before the activation, from its result: 0 where the result sits on a bound."""
    if act == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    return torch.ops.aten.hardtanh_backward(grad, output, lo, hi)


def _gradient_of_forward(ctx, grad):
    input, weight, output = ctx.saved_tensors
    if ctx.act:
        grad = through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
    x, w, b = ctx.needs_input_grad[:3]
    want = x * WANT_INPUT + w * WANT_WEIGHT + b * WANT_BIAS
    dx, dw, db = call(conv_backward, grad, input, weight, *ctx.geometry, ctx.transposed, want, ctx.bias_dtype)
    return dx if x else None, dw if w else None, db if b else None


def _save_backward(ctx, inputs, output):
    ctx.rest = inputs[3:]
    ctx.set_materialize_grads(False)
    return inputs[:3]


def linear(transposed, size, input, weight, bias, stride, padding, dilation, groups):
    """The forward operator without activation. size: the spatial size of its result."""
    args = (input, weight, bias, stride, padding, dilation, groups, "", 0.0, 0.0)
    if not transposed:
        return call(conv, *args)
    rank = len(stride)
    least = least_source(input.shape[-rank:], weight.shape[2:], stride, padding, dilation)
    return call(conv_transpose, *args, [n - m for n, m in zip(size, least)])


def _of_small_steps(transposed, shape, geometry, input, weight, dx, dw, db):
    """What small steps of input, weight and bias (each may be None) do to the result: the operator is linear in each of them."""
    rank, moved = len(geometry[0]), None
    size = shape[-rank:]
    if dw is not None:
        moved, db = linear(transposed, size, input, dw, db, *geometry), None
    if dx is not None:
        more = linear(transposed, size, dx, weight, db, *geometry)
        moved, db = more if moved is None else moved + more, None
    if db is not None:
        moved = db.to(input.dtype).view(-1, *[1] * rank).expand(shape)
    return moved


def _tangent_of_forward(ctx, input, weight, output, dx, dw, db):
    moved = _of_small_steps(ctx.transposed, ctx.shape, ctx.geometry, input, weight, dx, dw, db)
    return through_act(moved, output, ctx.act, ctx.lo, ctx.hi) if ctx.act else moved


def _backward(ctx):
    *geometry, transposed, _, bias_dtype = ctx.rest
    return lambda grad, input, weight, want: call(conv_backward, grad, input, weight, *geometry, transposed, want, bias_dtype)


def _tangent_of_backward(ctx, grad, input, weight, *moves):
    *geometry, transposed, want, bias_dtype = ctx.rest
    return tangent_of_backward(want, (grad, input, weight), moves, grad.shape[-len(geometry[0]) - 1], bias_dtype, _backward(ctx))


def _gradient_of_backward(ctx, *doubles):
    grad, input, weight = ctx.saved_tensors
    *geometry, transposed, want, bias_dtype = ctx.rest

    def steps(dx, dw, db):
        return _of_small_steps(transposed, grad.shape, geometry, input, weight, dx, dw, db)
    return gradient_of_backward(ctx.needs_input_grad, want, (grad, input, weight), doubles, steps, _backward(ctx))


# ---------------------------------------------------------------------------------------------- batching

def batched(t: Tensor, dim: int | None, size: int, full: int) -> Tensor:
    """t with the batch of vmap in front, and of `full` further dimensions: an unbatched image gets a batch of one."""
    t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t if t.dim() == full + 1 else t.unsqueeze(1)


def into_channels(t: Tensor) -> Tensor:
    return t.movedim(0, 1).flatten(1, 2)


def out_of_channels(t: Tensor, size: int, unbatched: bool) -> Tensor:
    t = t.unflatten(1, (size, t.shape[1] // size)).movedim(1, 0)
    return t.squeeze(1) if unbatched else t


def logical(t: Tensor, dim: int | None) -> int:
    return t.dim() - (dim is not None)


def _batch_forward(rule_name):
    """A batch of inputs under one weight is a larger batch; one with its own weights is more groups."""
    def batch(info, in_dims, input, weight, bias, stride, padding, dilation, groups, *rest):
        size, full = info.batch_size, logical(weight, in_dims[1])
        rule, unbatched = globals()[rule_name], logical(input, in_dims[0]) < full
        x = batched(input, in_dims[0], size, full)
        if in_dims[1] is None and in_dims[2] is None:
            y = call(rule, x.flatten(0, 1), weight, bias, stride, padding, dilation, groups, *rest).unflatten(0, (size, x.shape[1]))
            return (y.squeeze(1) if unbatched else y), 0
        w = batched(weight, in_dims[1], size, full).flatten(0, 1)
        b = None if bias is None else batched(bias, in_dims[2], size, 1).flatten()
        y = call(rule, into_channels(x), w, b, stride, padding, dilation, groups * size, *rest)
        return out_of_channels(y, size, unbatched), 0
    return batch


def _batch_backward(info, in_dims, grad, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    size, full = info.batch_size, logical(weight, in_dims[2])
    unbatched = logical(input, in_dims[1]) < full
    dy, x = (into_channels(batched(t, d, size, full)) for t, d in ((grad, in_dims[0]), (input, in_dims[1])))
    w = batched(weight, in_dims[2], size, full).flatten(0, 1)
    dx, dw, db = call(conv_backward, dy, x, w, stride, padding, dilation, groups * size, transposed, want, bias_dtype)
    dx = out_of_channels(dx, size, unbatched) if want & WANT_INPUT else dx
    dw = dw.unflatten(0, (size, -1)) if want & WANT_WEIGHT else dw
    db = db.unflatten(0, (size, -1)) if want & WANT_BIAS else db
    return (dx, dw, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


# ---------------------------------------------------------------------------------------------- PyTorch's own

_CONV = (torch.conv1d, torch.conv2d, torch.conv3d)
_CONV_TRANSPOSE = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def _is_plain(input, weight, padding, act):
    """A call that PyTorch's function computes, in the format that the operator is told to have: that of the data, whatever the weights'. In
    channels-last it may write outside of its memory, too: python/csrc/seat_conv.c."""
    return not act and padding[::2] == padding[1::2] and input.is_contiguous() and weight.is_contiguous() and weight.stride(-1) == 1


def _native_conv(input, weight, bias, stride, padding, dilation, groups, act, lo, hi):
    if not _is_plain(input, weight, padding, act):
        return NotImplemented
    return _CONV[len(stride) - 1](input, weight, bias, stride, padding[::2], dilation, groups)


def _native_conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding):
    if not _is_plain(input, weight, padding, act):
        return NotImplemented
    return _CONV_TRANSPOSE[len(stride) - 1](input, weight, bias, stride, padding[::2], output_padding, groups, dilation)


conv = Rule("conv", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward("conv"), native=_native_conv,
            plain=True)   # to hand five lists over to PyTorch costs more than to ask first
conv_transpose = Rule("conv_transpose", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward("conv_transpose"),
                      native=_native_conv_transpose, plain=True)
conv_backward = Rule("conv_backward", 3, _save_backward, _gradient_of_backward, _tangent_of_backward, _batch_backward)


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
