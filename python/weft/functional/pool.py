"""Pooling functions."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import NoTensor, Size, check_flags, foreign, left_to_torch, raised, remembered, spread, whole
from .._core.entry import front, kept, torchs
from .._ops import pool as _ops
from .._core.rules import call, call_into
from ._ranked import ranked

__all__ = ["max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
           "adaptive_avg_pool3d"]

Pair = Union[Tensor, tuple[Tensor, Tensor]]
_is_compiling = torch.compiler.is_compiling
_in_dynamo = torch.compiler.is_dynamo_compiling   # which stops at builtins
_in_transform = torch._C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled
_avg_pool1d = front("avg_pool1d")
_NEAR = ", a kernel_size and dilation of at most 2^20"


# ---------------------------------------------------------------------------------------------- arguments

def _is_far(*settings: tuple[int, ...]) -> bool:
    """Larger than weft takes, not larger than the twin does."""
    return any(1 << 20 < v < 1 << 31 for values in settings for v in values)


@remembered
def _window(rank: int, kernel_size: Size, stride: Optional[Size], padding: Size, dilation: Size) -> tuple:
    """Kernel, stride, padding and dilation, one value an axis, and whether that is left to PyTorch. The stride is that of the kernel where it
    is None or has no values."""
    kernel, holes = spread("kernel_size", kernel_size, rank), spread("dilation", dilation, rank)
    omitted = stride is None or (isinstance(stride, (tuple, list)) and len(stride) == 0)
    return kernel, kernel if omitted else spread("stride", stride, rank), spread("padding", padding, rank), holes, _is_far(kernel, holes)


def _check_input(name: str, rank: int, input: Any) -> None:
    """What the operator cannot know: that max_pool2d was called. Types and sizes are the operator's to check."""
    if not isinstance(input, Tensor):
        raise NoTensor(f"{name}: input is {type(input).__name__}, allowed: Tensor")
    if not rank + 1 <= input.ndim <= rank + 2:
        kind = IndexError if name == "avg_pool2d" and input.ndim <= rank else RuntimeError   # as the twin
        raise kind(f"{name}: input has {input.ndim} dimensions {list(input.shape)}, allowed: {rank + 1} (unbatched) or {rank + 2} (batched)")


def _divisor(divisor_override: Any) -> int:
    """As the operator takes it: 0 for none."""
    if divisor_override is None:
        return 0
    value = whole(divisor_override)
    if value is None:
        raise TypeError(f"divisor_override: is {divisor_override!r}, allowed: an int or None")
    if value == 0:
        raise RuntimeError("divisor_override: is 0, allowed: any other int, or None")
    return value


def _wrong_size(rank: int, output_size: Any) -> TypeError:
    return TypeError(f"output_size: is {output_size!r}, allowed: an int, or a sequence of {rank} ints" + (" or None" if rank > 1 else ""))


def _target(name: str, rank: int, output_size: Any, input: Tensor) -> tuple[int, ...]:
    """The output size of adaptive pooling, one value an axis; in 2D and 3D None keeps that of the input."""
    if not isinstance(input, Tensor):
        _check_input(name, rank, input)
    if isinstance(output_size, Tensor) and output_size.ndim == 1:
        output_size = output_size.tolist()
    if not isinstance(output_size, (tuple, list)):
        one = None if rank > 1 and isinstance(output_size, Tensor) else whole(output_size)
        if one is None:
            raise _wrong_size(rank, output_size)
        return (one,) * rank
    if rank > 1 and input.ndim <= len(output_size):
        raise ValueError(f"{name}: input has {input.ndim} dimensions {list(input.shape)}, allowed with {len(output_size)} values of output_size: "
                         f"{len(output_size) + 1} or more")
    sizes = [0 if n is None and rank > 1 else whole(n) for n in output_size]
    if None in sizes:
        raise _wrong_size(rank, output_size)
    if len(sizes) != rank:
        raise RuntimeError(f"output_size: has {len(sizes)} values {tuple(output_size)}, allowed: an int, or {rank} of them")
    return tuple(kept if given is None else n for n, given, kept in zip(sizes, output_size, input.shape[-rank:]))


# ---------------------------------------------------------------------------------------------- the three roads

def _cast(rank: int, input: Tensor) -> Tensor:
    """Under autocast on the CPU, 3D pooling of 16 bits runs in float32, as PyTorch's does; all other pooling, and that which returns
    indices, in the type of its input."""
    return raised(input)[0] if rank == 3 and input.device.type == "cpu" else input


_TRAINED = (torch.max_pool2d, torch.max_pool3d)


def _max_pool(function: Callable, rank: int, input: Tensor, kernel_size: Size, stride: Optional[Size], padding: Size, dilation: Size, ceil_mode: bool,
              return_indices: bool, out: Any) -> Any:
    if has_torch_function_unary(input):
        return handle_torch_function(function, (input,), input, kernel_size, stride=stride, padding=padding, dilation=dilation,
                                     ceil_mode=ceil_mode, return_indices=return_indices, out=out)
    name = function.__name__
    _check_input(name, rank, input)
    if foreign(input):
        return left_to_torch(name, out, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
    check_flags(ceil_mode=ceil_mode)
    kernel, step, pads, holes, far = _window(rank, kernel_size, stride, padding, dilation)
    if far:
        return left_to_torch(name, out, input, kernel, step, pads, holes, ceil_mode, return_indices, also=_NEAR)
    args = (input if return_indices else _cast(rank, input), kernel, step, pads, holes, ceil_mode)
    if out is not None:
        return tuple(call_into(_ops.max_pool_index, out, *args, True)) if return_indices else call_into(_ops.max_pool, out, *args)
    if return_indices:
        return call(_ops.max_pool_index, *args, True)
    if _grad_enabled() and (input.requires_grad or (not _is_compiling() and _in_transform())):
        if rank > 1 and not _is_compiling() and _ops.torch_trains(args):
            y = _TRAINED[rank - 2](*args)
            torchs()
            return y
        return call(_ops.max_pool_index, *args, False)[0]   # what a gradient needs: a byte for each window
    return call(_ops.max_pool, *args)


def _avg_pool(function: Callable, rank: int, input: Tensor, kernel_size: Size, stride: Optional[Size], padding: Size, ceil_mode: bool,
              count_include_pad: bool, divisor_override: tuple, out: Optional[Tensor]) -> Tensor:
    """divisor_override: nothing in 1D, where there is none, else one value."""
    if has_torch_function_unary(input):
        more = {"divisor_override": divisor_override[0]} if divisor_override else {}
        return handle_torch_function(function, (input,), input, kernel_size, stride=stride, padding=padding, ceil_mode=ceil_mode,
                                     count_include_pad=count_include_pad, **more, out=out)
    name = function.__name__
    _check_input(name, rank, input)
    if foreign(input):
        return left_to_torch(name, out, input, kernel_size, stride, padding, ceil_mode, count_include_pad, *divisor_override)
    check_flags(ceil_mode=ceil_mode, count_include_pad=count_include_pad)
    kernel, step, pads, _, far = _window(rank, kernel_size, stride, padding, 1)
    divisor = _divisor(*divisor_override) if divisor_override else 0
    if far:
        return left_to_torch(name, out, input, kernel, step, pads, ceil_mode, count_include_pad, *divisor_override, also=_NEAR)
    args = (_cast(rank, input), kernel, step, pads, ceil_mode, count_include_pad, divisor)
    return call(_ops.avg_pool, *args) if out is None else call_into(_ops.avg_pool, out, *args)


def _is_odd_mean(rank: int, input: Any) -> bool:
    """To one element the twin takes a plain mean: in 3D also of a tensor of any rank, and of nothing, which is NaN. Those are left to it."""
    return isinstance(input, Tensor) and ((rank == 3 and input.ndim not in (4, 5)) or (not _is_compiling() and input.numel() == 0))


def _adaptive_avg_pool(function: Callable, rank: int, input: Tensor, output_size: Any, out: Optional[Tensor]) -> Tensor:
    if has_torch_function_unary(input):
        return handle_torch_function(function, (input,), input, output_size, out=out)
    name = function.__name__
    size = (output_size,) * rank if type(output_size) is int else _target(name, rank, output_size, input)
    if size == (1,) * rank and out is None and _is_odd_mean(rank, input):
        return left_to_torch(name, out, input, output_size)
    _check_input(name, rank, input)
    if foreign(input):
        return left_to_torch(name, out, input, output_size)
    input = _cast(rank, input)
    return call(_ops.adaptive_avg_pool, input, size) if out is None else call_into(_ops.adaptive_avg_pool, out, input, size)


# ---------------------------------------------------------------------------------------------- public

def _max_pool_of(rank: int) -> Callable:
    entry = front(f"max_pool{rank}d")

    def max_pool(input: Tensor, kernel_size: Size, stride: Optional[Size] = None, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False,
                 return_indices: bool = False, *, out: Optional[Pair] = None) -> Any:
        """{rank}D max pooling: torch.nn.functional.max_pool{rank}d. With return_indices, `out` is a pair (values, indices)."""
        if not return_indices and out is None and not _in_dynamo():
            y = entry(input, kernel_size, () if stride is None else stride, padding, dilation, ceil_mode)
            if y is not NotImplemented:
                return y
            return kept(_max_pool(max_pool, rank, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, out))
        return _max_pool(max_pool, rank, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices, out)
    return max_pool


max_pool1d, max_pool2d, max_pool3d = ranked(_max_pool_of, """
    >>> weft.functional.max_pool1d(torch.randn(2, 4, 100), 3, stride=2, padding=1).shape
    torch.Size([2, 4, 50])
    """, """
    >>> y, where = weft.functional.max_pool2d(torch.randn(2, 8, 32, 32), 2, return_indices=True)
    >>> y.shape, where.dtype
    (torch.Size([2, 8, 16, 16]), torch.int64)
    """, """
    >>> weft.functional.max_pool3d(torch.randn(1, 8, 9, 9, 9), (1, 3, 3), ceil_mode=True).shape
    torch.Size([1, 8, 9, 3, 3])
    """)


def avg_pool1d(input: Tensor, kernel_size: Size, stride: Optional[Size] = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, *, out: Optional[Tensor] = None) -> Tensor:
    """1D average pooling: torch.nn.functional.avg_pool1d.

        >>> weft.functional.avg_pool1d(torch.ones(1, 1, 4), 3, stride=1, padding=1, count_include_pad=False)
        tensor([[[1., 1., 1., 1.]]])
    """
    if out is None and not _in_dynamo():
        y = _avg_pool1d(input, kernel_size, () if stride is None else stride, padding, ceil_mode, count_include_pad)
        if y is not NotImplemented:
            return y
        return kept(_avg_pool(avg_pool1d, 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, (), out))
    return _avg_pool(avg_pool1d, 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, (), out)


def _avg_pool_of(rank: int) -> Callable:
    entry = front(f"avg_pool{rank}d")

    def avg_pool(input: Tensor, kernel_size: Size, stride: Optional[Size] = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: Optional[int] = None, *, out: Optional[Tensor] = None) -> Tensor:
        """{rank}D average pooling: torch.nn.functional.avg_pool{rank}d."""
        if out is None and not _in_dynamo():
            y = entry(input, kernel_size, () if stride is None else stride, padding, ceil_mode, count_include_pad, divisor_override)
            if y is not NotImplemented:
                return y
            return kept(_avg_pool(avg_pool, rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad, (divisor_override,), out))
        return _avg_pool(avg_pool, rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad, (divisor_override,), out)
    return avg_pool


avg_pool2d, avg_pool3d = ranked(_avg_pool_of, "", """
    >>> weft.functional.avg_pool2d(torch.randn(2, 8, 32, 32), 3, stride=2, padding=1).shape
    torch.Size([2, 8, 16, 16])
    """, """
    >>> weft.functional.avg_pool3d(torch.randn(1, 8, 9, 9, 9), 3, divisor_override=1).shape
    torch.Size([1, 8, 3, 3, 3])
    """)[1:]


def _adaptive_avg_pool_of(rank: int) -> Callable:
    entry = front(f"adaptive_avg_pool{rank}d")

    def adaptive_avg_pool(input: Tensor, output_size: Union[int, None, Sequence[Optional[int]]], *, out: Optional[Tensor] = None) -> Tensor:
        """{rank}D average pooling to a given size; in 2D and 3D None keeps that of the input: torch.nn.functional.adaptive_avg_pool{rank}d."""
        if out is None and not _in_dynamo():
            y = entry(input, output_size)
            if y is not NotImplemented:
                return y
            return kept(_adaptive_avg_pool(adaptive_avg_pool, rank, input, output_size, out))
        return _adaptive_avg_pool(adaptive_avg_pool, rank, input, output_size, out)
    return adaptive_avg_pool


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = ranked(_adaptive_avg_pool_of, """
    >>> weft.functional.adaptive_avg_pool1d(torch.randn(2, 4, 100), 7).shape
    torch.Size([2, 4, 7])
    """, """
    >>> weft.functional.adaptive_avg_pool2d(torch.randn(2, 8, 32, 32), (None, 1)).shape
    torch.Size([2, 8, 32, 1])
    """, """
    >>> weft.functional.adaptive_avg_pool3d(torch.randn(1, 8, 9, 9, 9), 1).shape
    torch.Size([1, 8, 1, 1, 1])
    """)
