"""Convolution, transposed or not: the functions, and the rules of weft::conv, conv_transpose and conv_backward."""
from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic
from torch.utils.flop_counter import register_flop_formula

from .._core.arguments import Padding, Size, foreign, in_dynamo, left_to_torch, lowered, ranked, remembered, spread, whole
from .._core.entry import front
from .._core.rules import RULES, Rule, adjoint, call, call_into, derived, in_front, leaf, mapped, tangents, wide
from .._core.shapes import least_source

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv2d_depthwise"]

WANT_INPUT, WANT_WEIGHT, WANT_BIAS = 1, 2, 4
_conv2d = front("conv2d")


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


def through_act(grad, output, act, lo, hi):
    """The gradient before the activation, from its result: 0 where the result sits on a bound."""
    if not act:
        return grad
    if act == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    return torch.ops.aten.hardtanh_backward(grad, output, lo, hi)


def convolved(formula, backward, tensors, read, passed=lambda settings: settings, several=0):
    """save, gradient and tangent of a convolution of any kind, as Rule takes them. Its first tensors are input, weight and bias, the others have no gradient;
    nor have the `several` results behind the first, of which the last is kept besides. read(*inputs): the settings of the formula behind the tensors, and
    the activation. backward: the operator of the gradient; passed(settings): as it takes them."""
    def save(ctx, inputs, output):
        ctx.settings, (act, lo, hi) = read(*inputs)
        result = output[0] if several else output
        if act == "clip":   # bounds as results that sit on them hold them
            lo, hi = rounded(lo, result.dtype), rounded(hi, result.dtype)
        ctx.act, ctx.bias_dtype = (act, lo, hi), inputs[0].dtype if inputs[2] is None else inputs[2].dtype
        if several:
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*output[1:])
        return *inputs[:2], *inputs[3:tensors], *(output[-1:] if several else ()), result if act else None

    def gradient(ctx, grad, *no_grads):
        *given, result = ctx.saved_tensors
        if grad is None:
            return (None,) * tensors
        want = want_of(ctx.needs_input_grad)
        grads = call(RULES[backward], through_act(grad, result, *ctx.act), *given, *passed(ctx.settings), want, ctx.bias_dtype)
        return *wanted(grads, want), *[None] * (tensors - 3)

    def tangent(ctx, input, weight, *rest):
        *others, result = rest[:-tensors]
        dx, dw, db = rest[-tensors:][:3]
        bias = None if db is None else torch.zeros_like(db)   # the result is linear in it: anywhere
        moved, = tangents(formula, (input, weight, bias), (*others, *ctx.settings), (dx, dw, db))
        moved = through_act(moved, result, *ctx.act)
        return (moved, *[None] * several) if several else moved
    return save, gradient, tangent


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
    """In place. PyTorch refuses bounds beyond the type's largest number."""
    return y if not act else y.relu_() if act == "relu" else y.clamp_(rounded(lo, y.dtype), rounded(hi, y.dtype))


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


def _native(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, *extra):
    """A call that PyTorch's function computes, in the format that the operator is told to have: that of the data, whatever the weights'. In
    channels-last it may write outside of its memory, too: python/csrc/seat_conv.c. Of one image it gives a view, which nobody may change in place."""
    pads = padding[::2]
    if act or list(pads) != list(padding[1::2]) or not (input.is_contiguous() and weight.is_contiguous() and weight.stride(-1) == 1 and input.dim() == weight.dim()):
        return NotImplemented
    if extra:
        return _CONV_TRANSPOSE[len(stride) - 1](input, weight, bias, stride, pads, *extra, groups, dilation)
    return _CONV[len(stride) - 1](input, weight, bias, stride, pads, dilation, groups)


def _image(stride, *_):
    """The dimensions of one."""
    return len(stride) + 1


def _batch_backward(info, in_dims, grad, input, weight, stride, padding, dilation, groups, *settings):
    """Gradients by each of the batch of vmap, as those of per-sample training, are those of more groups."""
    size, want, unbatched = info.batch_size, settings[1], input.dim() - (in_dims[1] is not None) < weight.dim() - (in_dims[2] is not None)
    dy, x, w = (in_front(t, d, size) for t, d in zip((grad, input, weight), in_dims))
    if unbatched:
        dy, x = dy.unsqueeze(1), x.unsqueeze(1)
    dy, x = (t.movedim(0, 1).flatten(1, 2) for t in (dy, x))
    made = call(CONV_BACKWARD, dy, x, w.flatten(0, 1), stride, padding, dilation, groups * size, *settings)
    dx, dw, db = (t.unflatten(at, (size, t.shape[at] // size)).movedim(at, 0) if want & bit else t
                  for t, at, bit in zip(made, (1, 0, 0), (WANT_INPUT, WANT_WEIGHT, WANT_BIAS)))
    dx = dx.squeeze(1) if unbatched and want & WANT_INPUT else dx
    return (dx, dw, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


_FORWARD = convolved(formula, "conv_backward", 3, lambda x, w, b, stride, padding, dilation, groups, act, lo, hi, *extra:
                     ((stride, padding, dilation, groups, *extra), (act, lo, hi)), lambda settings: (*settings[:4], len(settings) > 4))
CONV = Rule("conv", 3, *_FORWARD, mapped("conv", 3, 1, _image), by_torch=_torch, native=_native, plain=_native)   # to hand five lists over to PyTorch costs more than to ask first
CONV_TRANSPOSE = Rule("conv_transpose", 3, *_FORWARD, mapped("conv_transpose", 3, 1, _image), by_torch=_torch, native=_native, plain=_native)
CONV_BACKWARD = Rule("conv_backward", 3, *derived(_backward, 3), _batch_backward, by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- torch.utils.flop_counter

def _flops(input, weight, dst, transposed):
    """Two for each product, as PyTorch counts: every position of the smaller side of the convolution sees every weight once for each image."""
    batch = input[0] if len(input) == len(weight) else 1
    return 2 * batch * math.prod((input if transposed else dst)[2 - len(weight):]) * math.prod(weight)


_spaces = torch.ops.weft, torch.ops.weft_compiled
for _name, _transposed in (("conv", False), ("conv_transpose", True)):
    register_flop_formula([getattr(space, _name) for space in _spaces])(lambda input, weight, *args, out_shape=None, transposed=_transposed, **kwargs: _flops(input, weight, out_shape, transposed))


@register_flop_formula([space.conv_backward for space in _spaces])
def _conv_backward_flops(grad_output, input, weight, stride, padding, dilation, groups, transposed, want, *args, out_shape=None, **kwargs):
    """As much for the gradient of the input and of the weights, where they are wanted."""
    return _flops(input, weight, grad_output, transposed) * ((want & 1) + (want >> 1 & 1))


# ---------------------------------------------------------------------------------------------- arguments

def _pads(padding: Padding, stride: tuple[int, ...], dilation: tuple[int, ...], kernel: Optional[Sequence[int]], rank: int) -> tuple[int, ...]:
    """Low and high padding of each axis in turn. 'same' puts the odd pixel of an even window at the end."""
    if not isinstance(padding, str):
        return tuple(p for axis in spread("padding", padding, rank) for p in (axis, axis))
    if padding == "valid":
        return (0, 0) * rank
    if padding != "same":
        raise RuntimeError(f"padding: is {padding!r}, allowed: ints, 'valid' or 'same'")
    if any(s != 1 for s in stride):
        raise RuntimeError(f"padding: is 'same' with stride {stride}, allowed: 'same' only with a stride of 1")
    totals = [d * (k - 1) for d, k in zip(dilation, kernel or ())]
    return tuple(p for total in totals for p in (total // 2, total - total // 2))


@remembered
def _settings(rank: int, stride: Size, padding: Padding, dilation: Size, groups: Any, output_padding: Optional[Size], kernel: Optional[Sequence[int]]) -> tuple:
    many = whole(groups)
    if many is None:
        raise TypeError(f"groups: is {groups!r}, allowed: an int")
    if output_padding is not None and isinstance(padding, str):
        raise TypeError(f"padding: is {padding!r}, allowed: an int, or a sequence of {rank} ints")
    s, d = spread("stride", stride, rank), spread("dilation", dilation, rank)
    return (s, _pads(padding, s, d, kernel, rank), d, many), None if output_padding is None else spread("output_padding", output_padding, rank)


def read_settings(rank: int, stride: Size, padding: Padding, dilation: Size, groups: Any, output_padding: Optional[Size], weight: Any) -> tuple:
    """Stride, low and high padding of each axis in turn, dilation and groups, as the operators take them; and output_padding, None of what is not
    transposed."""
    return _settings(rank, stride, padding, dilation, groups, output_padding, tuple(weight.shape[2:]) if isinstance(padding, str) else None)


def geometry(rank: int, stride: Size, padding: Padding, dilation: Size, weight: Tensor) -> tuple[tuple[int, ...], ...]:
    """The first three of them."""
    return read_settings(rank, stride, padding, dilation, 1, None, weight)[0][:3]


def check_activation(act: Optional[str], clip: tuple[float, float]) -> tuple[str, float, float]:
    """The activation as the operators take it; ValueError if it is wrong."""
    if act is None:
        return "", 0.0, 0.0
    if act == "relu":
        return "relu", 0.0, 0.0
    if act != "clip":
        raise ValueError(f"act: is {act!r}, allowed: None, 'relu' or 'clip'")
    lo, hi = clip
    if not lo <= hi:
        raise ValueError(f"clip: is ({lo}, {hi}), allowed: a low bound not above the high one")
    return "clip", float(lo), float(hi)


_OR_NONE = (Tensor, type(None))


def check_tensors(name: str, rank: int, input: Any, weight: Any, bias: Any, mask: Any = None, kinds: tuple[type, ...] = (Tensor,)) -> None:
    """What the operator cannot know: that conv2d was called. Types, sizes and devices are the operator's to check. kinds: of weight."""
    if (isinstance(input, Tensor) and isinstance(weight, kinds) and (bias is None or isinstance(bias, Tensor)) and (mask is None or isinstance(mask, Tensor))
            and weight.ndim == rank + 2 and rank + 1 <= input.ndim <= rank + 2):
        return
    for argument, value, right in (("input", input, (Tensor,)), ("weight", weight, kinds), ("bias", bias, _OR_NONE), ("mask", mask, _OR_NONE)):
        if not isinstance(value, right):
            words = ["None" if kind is type(None) else kind.__name__ for kind in right]
            raise TypeError(f"{name}: {argument} is {type(value).__name__}, allowed: {' or '.join(words)}")
    if weight.ndim != rank + 2:
        raise RuntimeError(f"{name}: weight has {weight.ndim} dimensions {list(weight.shape)}, allowed: {rank + 2}")
    raise RuntimeError(f"{name}: input has {input.dim()} dimensions {list(input.shape)}, allowed: {rank + 1} (unbatched) or {rank + 2} (batched)")


# ---------------------------------------------------------------------------------------------- the two roads

def _torchs(name: str, out: Optional[Tensor], act: Optional[str], clip: tuple[float, float], *args: Any) -> Tensor:
    """PyTorch's own function, for types that weft leaves to it."""
    kind, lo, hi = check_activation(act, clip)
    y = left_to_torch(name, out, *args)
    return y if not kind else torch.relu(y) if kind == "relu" else y.clamp(lo, hi)


def _conv(function: Callable, rank: int, input: Tensor, weight: Tensor, bias: Optional[Tensor], stride: Size, padding: Padding, dilation: Size,
          groups: int, output_padding: Optional[Size], act: Optional[str], clip: tuple[float, float], out: Optional[Tensor]) -> Tensor:
    """output_padding None: not transposed."""
    given = (stride, padding, dilation, groups) if output_padding is None else (stride, padding, output_padding, groups, dilation)
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(function, (input, weight, bias), input, weight, bias, *given, act=act, clip=clip, out=out)
    check_tensors(function.__name__, rank, input, weight, bias)
    if foreign(input, weight):
        return _torchs(function.__name__, out, act, clip, input, weight, bias, *given)
    settings, extra = read_settings(rank, stride, padding, dilation, groups, output_padding, weight)
    input, weight, bias = lowered(input, weight, bias)
    if rank == 1 and extra is None:
        input = input.contiguous()   # as PyTorch does, whose results in 1D are contiguous
    rule, args = CONV, (input, weight, bias, *settings, *check_activation(act, clip))
    if extra is not None:
        rule, args = CONV_TRANSPOSE, (*args, extra)
    return call(rule, *args) if out is None else call_into(rule, out, *args)


# ---------------------------------------------------------------------------------------------- public

def _conv_of(rank: int) -> Callable:
    entry = front(f"conv{rank}d")

    def conv(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
             groups: int = 1, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0), out: Optional[Tensor] = None) -> Tensor:
        """{rank}D convolution: torch.nn.functional.conv{rank}d, with an optional fused activation ('relu', or 'clip' to the bounds of `clip`).

            >>> weft.functional.conv{rank}d(torch.randn(2, 8, {x9}), torch.randn(8, 1, {x3}), padding="same", groups=8, act="relu").shape
            torch.Size([2, 8, {x9}])
        """
        if act is None and out is None and not in_dynamo():
            y = entry(input, weight, bias, stride, padding, dilation, groups)
            if y is not NotImplemented:
                return y
        return _conv(conv, rank, input, weight, bias, stride, padding, dilation, groups, None, act, clip, out)
    return conv


conv1d, conv2d, conv3d = ranked(_conv_of)


def _conv_transpose_of(rank: int) -> Callable:
    entry = front(f"conv_transpose{rank}d")

    def conv_transpose(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                       groups: int = 1, dilation: Size = 1, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0),
                       out: Optional[Tensor] = None) -> Tensor:
        """{rank}D transposed convolution: torch.nn.functional.conv_transpose{rank}d, with an optional fused activation.

            >>> weft.functional.conv_transpose{rank}d(torch.randn(2, 4, {x8}), torch.randn(4, 1, {x3}), stride=2, output_padding=1, groups=4).shape
            torch.Size([2, 4, {x18}])
        """
        if act is None and out is None and not in_dynamo():
            y = entry(input, weight, bias, stride, padding, output_padding, groups, dilation)
            if y is not NotImplemented:
                return y
        if output_padding is None:   # to _conv it says that nothing is transposed
            spread("output_padding", output_padding, rank)
        return _conv(conv_transpose, rank, input, weight, bias, stride, padding, dilation, groups, output_padding, act, clip, out)
    return conv_transpose


conv_transpose1d, conv_transpose2d, conv_transpose3d = ranked(_conv_transpose_of)


def conv2d_depthwise(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Size = 1, padding: Padding = 0,
                     dilation: Size = 1, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0),
                     out: Optional[Tensor] = None) -> Tensor:
    """Depthwise 2D convolution: conv2d with as many groups as channels. weight is (m * channels, 1, kh, kw); m is the channel multiplier.

        >>> weft.conv2d_depthwise(torch.randn(2, 8, 32, 32), torch.randn(16, 1, 3, 3), padding=1).shape
        torch.Size([2, 16, 32, 32])
    """
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(conv2d_depthwise, (input, weight, bias), input, weight, bias, stride, padding, dilation, act=act, clip=clip, out=out)
    check_tensors("conv2d_depthwise", 2, input, weight, bias)
    channels = input.shape[-3]
    if channels == 0:
        raise RuntimeError(f"conv2d_depthwise: input has 0 channels {list(input.shape)}, allowed: 1 or more")
    if weight.shape[1] != 1 or weight.shape[0] % channels:
        raise RuntimeError(f"conv2d_depthwise: weight is {list(weight.shape)}, allowed with {channels} input channels: "
                           f"(a multiple of {channels}, 1, kh, kw)")
    if act is None and out is None and not in_dynamo():
        y = _conv2d(input, weight, bias, stride, padding, dilation, channels)
        if y is not NotImplemented:
            return y
    return _conv(conv2d, 2, input, weight, bias, stride, padding, dilation, channels, None, act, clip, out)
