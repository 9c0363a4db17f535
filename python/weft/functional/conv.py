"""Convolution functions."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.entry import front
from .._core.arguments import Padding, Size, foreign, left_to_torch, lowered, remembered, spread, whole_groups
from .._ops import conv as _ops
from .._core.rules import call, call_into
from ._ranked import ranked

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "conv2d_depthwise"]

_in_dynamo = torch.compiler.is_dynamo_compiling   # which stops at builtins
_conv2d = front("conv2d")


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
def _geometry(rank: int, stride: Size, padding: Padding, dilation: Size, kernel: Optional[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    s, d = spread("stride", stride, rank), spread("dilation", dilation, rank)
    return s, _pads(padding, s, d, kernel, rank), d


def geometry(rank: int, stride: Size, padding: Padding, dilation: Size, weight: Tensor) -> tuple[tuple[int, ...], ...]:
    """Stride, low and high padding of each axis in turn, dilation."""
    return _geometry(rank, stride, padding, dilation, tuple(weight.shape[2:]) if isinstance(padding, str) else None)


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


def _complain(name: str, rank: int, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> None:
    """Say what is wrong with the tensors."""
    for argument, value in (("input", input), ("weight", weight), ("bias", bias)):
        if not isinstance(value, Tensor) and not (value is None and argument == "bias"):
            raise TypeError(f"{name}: {argument} is {type(value).__name__}, allowed: Tensor" + (" or None" if argument == "bias" else ""))
    if weight.dim() != rank + 2:
        raise RuntimeError(f"{name}: weight has {weight.dim()} dimensions {list(weight.shape)}, allowed: {rank + 2}")
    raise RuntimeError(f"{name}: input has {input.dim()} dimensions {list(input.shape)}, allowed: {rank + 1} (unbatched) or {rank + 2} (batched)")


def check_tensors(name: str, rank: int, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> None:
    """What the operator cannot know: that conv2d was called. Types, sizes and devices are the operator's to check."""
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor) and (bias is None or isinstance(bias, Tensor))
            and weight.ndim == rank + 2 and rank + 1 <= input.ndim <= rank + 2):
        _complain(name, rank, input, weight, bias)


# ---------------------------------------------------------------------------------------------- the two roads

def _torchs(name: str, out: Optional[Tensor], act: Optional[str], clip: tuple[float, float], *args: Any) -> Tensor:
    """PyTorch's own function, for types that weft leaves to it."""
    kind, lo, hi = check_activation(act, clip)
    y = left_to_torch(name, out, *args)
    return y if not kind else torch.relu(y) if kind == "relu" else y.clamp(lo, hi)


def _conv(function: Callable, rank: int, input: Tensor, weight: Tensor, bias: Optional[Tensor], stride: Size, padding: Padding, dilation: Size,
          groups: int, act: Optional[str], clip: tuple[float, float], out: Optional[Tensor]) -> Tensor:
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(function, (input, weight, bias), input, weight, bias, stride, padding, dilation, groups, act=act, clip=clip, out=out)
    name = function.__name__
    check_tensors(name, rank, input, weight, bias)
    if foreign(input, weight):
        return _torchs(name, out, act, clip, input, weight, bias, stride, padding, dilation, groups)
    if type(groups) is not int:
        groups = whole_groups(groups)
    s, p, d = geometry(rank, stride, padding, dilation, weight)
    input, weight, bias = lowered(input, weight, bias)
    if rank == 1:
        input = input.contiguous()   # as PyTorch does, whose results in 1D are contiguous
    args = (input, weight, bias, s, p, d, groups, *check_activation(act, clip))
    return call(_ops.conv, *args) if out is None else call_into(_ops.conv, out, *args)


def _conv_transpose(function: Callable, rank: int, input: Tensor, weight: Tensor, bias: Optional[Tensor], stride: Size, padding: Size,
                    output_padding: Size, groups: int, dilation: Size, act: Optional[str], clip: tuple[float, float], out: Optional[Tensor]) -> Tensor:
    if has_torch_function_variadic(input, weight, bias):
        return handle_torch_function(function, (input, weight, bias), input, weight, bias, stride, padding, output_padding, groups, dilation,
                                     act=act, clip=clip, out=out)
    name = function.__name__
    check_tensors(name, rank, input, weight, bias)
    if foreign(input, weight):
        return _torchs(name, out, act, clip, input, weight, bias, stride, padding, output_padding, groups, dilation)
    if type(groups) is not int:
        groups = whole_groups(groups)
    if isinstance(padding, str):
        raise TypeError(f"padding: is {padding!r}, allowed: an int, or a sequence of {rank} ints")
    s, p, d = geometry(rank, stride, padding, dilation, weight)
    input, weight, bias = lowered(input, weight, bias)
    extra = spread("output_padding", output_padding, rank)
    args = (input, weight, bias, s, p, d, groups, *check_activation(act, clip), extra)
    return call(_ops.conv_transpose, *args) if out is None else call_into(_ops.conv_transpose, out, *args)


# ---------------------------------------------------------------------------------------------- public

def _conv_of(rank: int) -> Callable:
    entry = front(f"conv{rank}d")

    def conv(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
             groups: int = 1, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0), out: Optional[Tensor] = None) -> Tensor:
        """{rank}D convolution: torch.nn.functional.conv{rank}d, with an optional fused activation ('relu', or 'clip' to the bounds of `clip`)."""
        if act is None and out is None and not _in_dynamo():
            y = entry(input, weight, bias, stride, padding, dilation, groups)
            if y is not NotImplemented:
                return y
        return _conv(conv, rank, input, weight, bias, stride, padding, dilation, groups, act, clip, out)
    return conv


conv1d, conv2d, conv3d = ranked(_conv_of, """
    >>> weft.functional.conv1d(torch.randn(2, 4, 100), torch.randn(8, 4, 5), padding="same").shape
    torch.Size([2, 8, 100])
    """, """
    >>> weft.functional.conv2d(torch.randn(2, 8, 32, 32), torch.randn(8, 1, 3, 3), padding=1, groups=8, act="relu").shape
    torch.Size([2, 8, 32, 32])
    """, """
    >>> weft.functional.conv3d(torch.randn(1, 8, 9, 9, 9), torch.randn(8, 1, 3, 3, 3), groups=8).shape
    torch.Size([1, 8, 7, 7, 7])
    """)


def _conv_transpose_of(rank: int) -> Callable:
    entry = front(f"conv_transpose{rank}d")

    def conv_transpose(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, stride: Size = 1, padding: Size = 0, output_padding: Size = 0,
                       groups: int = 1, dilation: Size = 1, *, act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0),
                       out: Optional[Tensor] = None) -> Tensor:
        """{rank}D transposed convolution: torch.nn.functional.conv_transpose{rank}d, with an optional fused activation."""
        if act is None and out is None and not _in_dynamo():
            y = entry(input, weight, bias, stride, padding, output_padding, groups, dilation)
            if y is not NotImplemented:
                return y
        return _conv_transpose(conv_transpose, rank, input, weight, bias, stride, padding, output_padding, groups, dilation, act, clip, out)
    return conv_transpose


conv_transpose1d, conv_transpose2d, conv_transpose3d = ranked(_conv_transpose_of, """
    >>> weft.functional.conv_transpose1d(torch.randn(2, 4, 10), torch.randn(4, 3, 4), stride=2, padding=1).shape
    torch.Size([2, 3, 20])
    """, """
    >>> weft.functional.conv_transpose2d(torch.randn(2, 4, 8, 8), torch.randn(4, 1, 3, 3), stride=2, output_padding=1, groups=4).shape
    torch.Size([2, 4, 18, 18])
    """, """
    >>> weft.functional.conv_transpose3d(torch.randn(1, 4, 5, 5, 5), torch.randn(4, 2, 2, 2, 2), stride=2).shape
    torch.Size([1, 2, 10, 10, 10])
    """)


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
    if act is None and out is None and not _in_dynamo():
        y = _conv2d(input, weight, bias, stride, padding, dilation, channels)
        if y is not NotImplemented:
            return y
    return _conv(conv2d, 2, input, weight, bias, stride, padding, dilation, channels, act, clip, out)
