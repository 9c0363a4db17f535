"""Partial convolution: convolution that counts only what a mask lets through, scaled up for what is missing.

With S the sum of the mask over a window, W the size of the window in all channels it sees, u = clamp(S, 0, 1) and r = W / (S + 1e-8) * u:
the result is conv(x * m) * r, or (conv(x * m) * r + bias) * u with a bias, and the new mask is u.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import Padding, Size, lowered, spread, whole_groups
from .._ops import partial_conv as _ops
from .._core.rules import call, call_into
from ._ranked import ranked
from .conv import check_activation, check_tensors, geometry

__all__ = ["partial_conv1d", "partial_conv2d", "partial_conv3d", "partial_conv_transpose1d", "partial_conv_transpose2d", "partial_conv_transpose3d"]

Pair = tuple[Tensor, Tensor]


def _partial_conv(function: Callable, rank: int, tensors: tuple[Any, ...], stride: Size, padding: Padding, dilation: Size, groups: int,
                  output_padding: Optional[Size], act: Optional[str], clip: tuple[float, float], out: Optional[Pair], legacy: bool) -> Pair:
    """output_padding None: not transposed."""
    input, weight, bias, mask = tensors
    if has_torch_function_variadic(input, weight, bias, mask):
        settings = (stride, padding, dilation, groups) if output_padding is None else (stride, padding, output_padding, groups, dilation)
        return handle_torch_function(function, tensors, *tensors, *settings, act=act, clip=clip, out=out, legacy=legacy)
    name = function.__name__
    check_tensors(name, rank, input, weight, bias)
    if mask is not None and not isinstance(mask, Tensor):
        raise TypeError(f"{name}: mask is {type(mask).__name__}, allowed: Tensor or None")
    if type(groups) is not int:
        groups = whole_groups(groups)
    transposed = output_padding is not None
    if transposed and isinstance(padding, str):
        raise TypeError(f"padding: is {padding!r}, allowed: an int, or a sequence of {rank} ints")
    s, p, d = geometry(rank, stride, padding, dilation, weight)
    extra = spread("output_padding", output_padding, rank) if output_padding is not None else (0,) * rank
    input, weight, bias = lowered(input, weight, bias)
    args = (input, weight, bias, mask, s, p, d, groups, *check_activation(act, clip), transposed, extra, bool(legacy))
    if out is not None:
        return call_into(_ops.partial_conv, out, *args)
    y, new_mask, _ = call(_ops.partial_conv, *args)
    return y, new_mask


def _partial_conv_of(rank: int) -> Callable:
    def partial_conv(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, stride: Size = 1,
                     padding: Padding = 0, dilation: Size = 1, groups: int = 1, *, act: Optional[str] = None,
                     clip: tuple[float, float] = (0.0, 6.0), out: Optional[Pair] = None, legacy: bool = False) -> Pair:
        """{rank}D partial convolution: (result, new mask).

        mask: (N or 1, C or 1, H, W) in 2D, or (N or 1, H, W) for all channels; without the batch beside unbatched input. A float mask multiplies; a
        bool or uint8 one selects, so that a NaN in a hole stays out. None: ones, so that only the padding is missing. Masks have no gradient.
        The new mask has the type and the axes of the mask, with as many channels as the result where the mask has more than one; without a
        mask it is (1, 1, H, W), in the type of the input. act: 'relu', or 'clip' to the bounds of `clip`, after the bias.
        legacy: add the bias ahead of the factor r and take it off again, in the type of the result and without TF32, to round as NVIDIA's module.
        """
        return _partial_conv(partial_conv, rank, (input, weight, bias, mask), stride, padding, dilation, groups, None, act, clip, out, legacy)
    return partial_conv


partial_conv1d, partial_conv2d, partial_conv3d = ranked(_partial_conv_of, """
    >>> y, mask = weft.functional.partial_conv1d(torch.randn(2, 4, 100), torch.randn(8, 4, 5), mask=torch.rand(2, 100) > 0.5, padding="same")
    >>> y.shape, mask.shape, mask.dtype
    (torch.Size([2, 8, 100]), torch.Size([2, 100]), torch.bool)
    """, """
    >>> x, holes = torch.randn(2, 4, 32, 32), torch.rand(2, 1, 32, 32) > 0.5
    >>> y, mask = weft.functional.partial_conv2d(x, torch.randn(8, 4, 3, 3), torch.zeros(8), holes, padding=1, act="relu")
    >>> y.shape, mask.shape, mask.dtype
    (torch.Size([2, 8, 32, 32]), torch.Size([2, 1, 32, 32]), torch.bool)
    """, """
    >>> y, mask = weft.functional.partial_conv3d(torch.randn(1, 4, 9, 9, 9), torch.randn(8, 4, 3, 3, 3), padding=1)
    >>> y.shape, mask.shape
    (torch.Size([1, 8, 9, 9, 9]), torch.Size([1, 1, 9, 9, 9]))
    """)


def _partial_conv_transpose_of(rank: int) -> Callable:
    def partial_conv_transpose(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, stride: Size = 1,
                               padding: Size = 0, output_padding: Size = 0, groups: int = 1, dilation: Size = 1, *, act: Optional[str] = None,
                               clip: tuple[float, float] = (0.0, 6.0), out: Optional[Pair] = None, legacy: bool = False) -> Pair:
        """{rank}D transposed partial convolution: (result, new mask). partial_conv{rank}d says what masks are; a window here is what meets a pixel
        of the result."""
        return _partial_conv(partial_conv_transpose, rank, (input, weight, bias, mask), stride, padding, dilation, groups, output_padding, act, clip,
                             out, legacy)
    return partial_conv_transpose


partial_conv_transpose1d, partial_conv_transpose2d, partial_conv_transpose3d = ranked(_partial_conv_transpose_of, """
    >>> weft.functional.partial_conv_transpose1d(torch.randn(2, 4, 10), torch.randn(4, 3, 4), stride=2, padding=1)[0].shape
    torch.Size([2, 3, 20])
    """, """
    >>> weft.functional.partial_conv_transpose2d(torch.randn(2, 4, 8, 8), torch.randn(4, 1, 3, 3), stride=2, output_padding=1, groups=4)[0].shape
    torch.Size([2, 4, 18, 18])
    """, """
    >>> weft.functional.partial_conv_transpose3d(torch.randn(1, 4, 5, 5, 5), torch.randn(4, 2, 2, 2, 2), stride=2)[0].shape
    torch.Size([1, 2, 10, 10, 10])
    """)
