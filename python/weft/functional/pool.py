"""Pooling: the functions, and the rules of weft::max_pool, avg_pool, adaptive_avg_pool and what belongs to them."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import (NoTensor, Size, check_flags, foreign, grad_enabled, in_dynamo, in_transform, is_compiling, left_to_torch, raised,
                               ranked, remembered, spread, whole)
from .._core.entry import front, kept, leaves, torchs
from .._core.rules import Rule, adjoint, call, call_into, derived, is_last, leaf, linear, mapped

__all__ = ["max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d",
           "adaptive_avg_pool3d"]

Pair = Union[Tensor, tuple[Tensor, Tensor]]
_avg_pool1d = front("avg_pool1d")
_NEAR = ", a kernel_size and dilation of at most 2^20"


# ---------------------------------------------------------------------------------------------- max

def _places(index: Tensor, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
            dilation: Sequence[int]) -> Tensor:
    """Flat places in the image from either form of the index. A window without a tap in the image has none: -1."""
    if index.dtype == torch.int64:
        return index
    rank, tap, place, step = len(kernel), index.long(), 0, 1
    inside = torch.ones_like(index, dtype=torch.bool)
    for a in reversed(range(rank)):
        start = torch.arange(index.shape[a - rank], device=index.device).view(-1, *[1] * (rank - 1 - a)) * stride[a] - padding[a]
        at = start + tap % kernel[a] * dilation[a]
        inside = inside & (at >= 0) & (at < size[a])
        place, step, tap = place + at * step, step * size[a], tap // kernel[a]
    return torch.where(inside, place, -1)


def _picked(images: Tensor, index: Tensor, window: tuple) -> Tensor:
    """Of each window, the element that the index names: the derivative of max pooling, which it is linear in."""
    rank = len(window[0])
    place = _places(index, images.shape[-rank:], *window[:4])
    values = images.flatten(-rank).gather(-1, place.flatten(-rank).clamp(min=0)).view(place.shape)
    return values.masked_fill(place < 0, 0)


def _save_max_pool(ctx, inputs, output):
    """Without an index, what a gradient needs is computed again: functions ask for the index where they see that one will be wanted."""
    ctx.window = inputs[1:]
    return inputs[:1]


def _found_again(ctx, input):
    with torch.no_grad():
        return call(MAX_POOL_INDEX, input.detach(), *ctx.window, False)[1]


def _gradient_of_max_pool(ctx, grad):
    input, = ctx.saved_tensors
    rank = len(ctx.window[0])
    return call(MAX_POOL_BACKWARD, grad, _found_again(ctx, input), tuple(input.shape[-rank:]), *ctx.window, is_last(input, rank)),


def _save_max_pool_index(ctx, inputs, output):
    """The index, and no part of the data."""
    input, *window, flat = inputs
    rank = len(window[0])
    ctx.window, ctx.size, ctx.last = tuple(window), tuple(input.shape[-rank:]), is_last(input, rank)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    return output[1:]


def _gradient_of_max_pool_index(ctx, grad, _):
    return None if grad is None else call(MAX_POOL_BACKWARD, grad, *ctx.saved_tensors, ctx.size, *ctx.window, ctx.last),


def _max_pool_backward(grad, index, size, *window):
    images = leaf(grad.new_zeros(*grad.shape[:-len(size)], *size))
    return adjoint(_picked, 1)(grad, images, index, window)[0]


# ---------------------------------------------------------------------------------------------- averages

_nn, _aten = torch._C._nn, torch.ops.aten
_AVG, _ADAPTIVE = (None, _nn.avg_pool2d, _nn.avg_pool3d), (None, _nn.adaptive_avg_pool2d, _nn.adaptive_avg_pool3d)
_MAX = (None, _nn.max_pool2d_with_indices, _nn.max_pool3d_with_indices)
_MAX_BACKWARD = (None, _aten.max_pool2d_with_indices_backward, _aten.max_pool3d_with_indices_backward)
_AVG_BACKWARD = (None, _aten.avg_pool2d_backward, _aten.avg_pool3d_backward)
_ADAPTIVE_BACKWARD = (None, _aten._adaptive_avg_pool2d_backward, _aten._adaptive_avg_pool3d_backward)


def _torch_max(input, *window):
    return _MAX[len(window[0]) - 1](input, *window[:5])


def _torch_avg(input, *settings):
    return _AVG[len(settings[0]) - 1](input, *settings[:-1], settings[-1] or None)


def _torch_adaptive(input, size):
    return _ADAPTIVE[len(size) - 1](input, size)


def _in_format(function):
    """PyTorch's averages in 3D are channels-first whatever the data: weft's keep the format."""
    def native(input, axes, *settings):
        return NotImplemented if len(axes) == 3 and not input.is_contiguous() else function(input, axes, *settings)
    return native


def _images(grad, size, last):
    """grad_output in that format, and images of the size: PyTorch's gradients ask for the input, and look at its shape alone."""
    rank = len(size)
    form = torch.contiguous_format if not last or grad.dim() < rank + 2 else torch.channels_last if rank == 2 else torch.channels_last_3d
    return grad.contiguous(memory_format=form), torch.empty([*grad.shape[:-rank], *size], dtype=grad.dtype, device=grad.device, memory_format=form)


def _torch_avg_backward(grad, size, *settings):
    return _AVG_BACKWARD[len(size) - 1](*_images(grad, size, settings[-1]), *settings[:-2], settings[-2] or None)


def _torch_adaptive_backward(grad, size, last):
    """To one pixel: of a window as large as the image."""
    if list(grad.shape[-len(size):]) == [1] * len(size):
        return _torch_avg_backward(grad, size, size, size, [0] * len(size), False, True, 0, last)
    return _ADAPTIVE_BACKWARD[len(size) - 1](*_images(grad, size, last))


def _batch(name: str, tensors: int = 1):
    return mapped(name, tensors, unbatched=lambda axes, *rest: len(axes) + 1)


MAX_POOL = Rule("max_pool", 1, _save_max_pool, _gradient_of_max_pool, lambda ctx, input, dx: _picked(dx, _found_again(ctx, input), ctx.window),
                _batch("max_pool"), by_torch=lambda *args: _torch_max(*args)[0])
MAX_POOL_INDEX = Rule("max_pool_index", 1, _save_max_pool_index, _gradient_of_max_pool_index,
                      lambda ctx, index, dx: (_picked(dx, index, ctx.window), None), _batch("max_pool_index"), by_torch=_torch_max)
MAX_POOL_BACKWARD = Rule("max_pool_backward", 2, *derived(_max_pool_backward, 2), _batch("max_pool_backward", 2),
                         by_torch=lambda grad, index, size, *window: _MAX_BACKWARD[len(size) - 1](*_images(grad, size, window[-1]), *window[:-1], index))
AVG_POOL = linear("avg_pool", "avg_pool_backward", lambda input, axes, *rest: (tuple(input.shape[-len(axes):]), axes, *rest, is_last(input, len(axes))),
                  _batch("avg_pool"), by_torch=_torch_avg, native=_in_format(_torch_avg))
linear("avg_pool_backward", "avg_pool", lambda grad, size, *settings: settings[:-1], _batch("avg_pool_backward"),
       by_torch=_torch_avg_backward)
ADAPTIVE_AVG_POOL = linear("adaptive_avg_pool", "adaptive_avg_pool_backward", lambda input, axes: (tuple(input.shape[-len(axes):]), is_last(input, len(axes))),
                           _batch("adaptive_avg_pool"), by_torch=_torch_adaptive, native=_in_format(_torch_adaptive))
linear("adaptive_avg_pool_backward", "adaptive_avg_pool", lambda grad, size, last: (tuple(grad.shape[-len(size):]),),
       _batch("adaptive_avg_pool_backward"), by_torch=_torch_adaptive_backward)


# ---------------------------------------------------------------------------------------------- arguments

@remembered
def _window(rank: int, kernel_size: Size, stride: Optional[Size], padding: Size, dilation: Size) -> tuple:
    """Kernel, stride, padding and dilation, one value an axis, and whether that is left to PyTorch. The stride is that of the kernel where it
    is None or has no values."""
    kernel, holes = spread("kernel_size", kernel_size, rank), spread("dilation", dilation, rank)
    far = any(1 << 20 < v < 1 << 31 for v in (*kernel, *holes))   # larger than weft takes, not larger than the twin does
    omitted = stride is None or (isinstance(stride, (tuple, list)) and len(stride) == 0)
    return kernel, kernel if omitted else spread("stride", stride, rank), spread("padding", padding, rank), holes, far


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


def _max_pool(rank: int, args: tuple) -> Tensor:
    """Without an index, but for what a gradient needs: a byte for each window, or PyTorch's own."""
    if not grad_enabled() or not (args[0].requires_grad or (not is_compiling() and in_transform())):
        return call(MAX_POOL, *args)
    # Where PyTorch wins the pass without an index it computes training too, with an index of its own: weft's byte is for its own kernels. Not on CUDA where
    # nothing keeps the order of PyTorch's sums: in 3D, for channels-last data, and where the user asked for order.
    unordered = args[0].is_cuda and (rank == 3 or not args[0].is_contiguous() or torch.are_deterministic_algorithms_enabled())
    if rank == 1 or is_compiling() or unordered or not leaves(MAX_POOL.number, False, *args):
        return call(MAX_POOL_INDEX, *args, False)[0]
    y = _TRAINED[rank - 2](*args)
    torchs()
    return y


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
    if out is not None:
        return call_into(AVG_POOL, out, *args)
    y = call(AVG_POOL, *args)
    return y if in_dynamo() else kept(y)


# ---------------------------------------------------------------------------------------------- public

def _max_pool_of(rank: int) -> Callable:
    entry = front(f"max_pool{rank}d")

    def max_pool(input: Tensor, kernel_size: Size, stride: Optional[Size] = None, padding: Size = 0, dilation: Size = 1, ceil_mode: bool = False,
                 return_indices: bool = False, *, out: Optional[Pair] = None) -> Any:
        """{rank}D max pooling: torch.nn.functional.max_pool{rank}d. With return_indices, `out` is a pair (values, indices).

            >>> y, where = weft.functional.max_pool{rank}d(torch.randn(2, 8, {x9}), 2, ceil_mode=True, return_indices=True)
            >>> y.shape, where.dtype
            (torch.Size([2, 8, {x5}]), torch.int64)
        """
        if not return_indices and out is None and not in_dynamo():
            y = entry(input, kernel_size, () if stride is None else stride, padding, dilation, ceil_mode)
            if y is not NotImplemented:
                return y
        if has_torch_function_unary(input):
            return handle_torch_function(max_pool, (input,), input, kernel_size, stride=stride, padding=padding, dilation=dilation,
                                         ceil_mode=ceil_mode, return_indices=return_indices, out=out)
        name = max_pool.__name__
        _check_input(name, rank, input)
        if foreign(input):
            return left_to_torch(name, out, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)
        check_flags(ceil_mode=ceil_mode)
        kernel, step, pads, holes, far = _window(rank, kernel_size, stride, padding, dilation)
        if far:
            return left_to_torch(name, out, input, kernel, step, pads, holes, ceil_mode, return_indices, also=_NEAR)
        args = (input if return_indices else _cast(rank, input), kernel, step, pads, holes, ceil_mode)
        if out is not None:
            return tuple(call_into(MAX_POOL_INDEX, out, *args, True)) if return_indices else call_into(MAX_POOL, out, *args)
        if return_indices:
            return call(MAX_POOL_INDEX, *args, True)
        y = _max_pool(rank, args)
        return y if in_dynamo() else kept(y)
    return max_pool


max_pool1d, max_pool2d, max_pool3d = ranked(_max_pool_of)


def avg_pool1d(input: Tensor, kernel_size: Size, stride: Optional[Size] = None, padding: Size = 0, ceil_mode: bool = False,
               count_include_pad: bool = True, *, out: Optional[Tensor] = None) -> Tensor:
    """1D average pooling: torch.nn.functional.avg_pool1d.

        >>> weft.functional.avg_pool1d(torch.ones(1, 1, 4), 3, stride=1, padding=1, count_include_pad=False)
        tensor([[[1., 1., 1., 1.]]])
    """
    if out is None and not in_dynamo():
        y = _avg_pool1d(input, kernel_size, () if stride is None else stride, padding, ceil_mode, count_include_pad)
        if y is not NotImplemented:
            return y
    return _avg_pool(avg_pool1d, 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, (), out)


def _avg_pool_of(rank: int) -> Callable:
    entry = front(f"avg_pool{rank}d")

    def avg_pool(input: Tensor, kernel_size: Size, stride: Optional[Size] = None, padding: Size = 0, ceil_mode: bool = False,
                 count_include_pad: bool = True, divisor_override: Optional[int] = None, *, out: Optional[Tensor] = None) -> Tensor:
        """{rank}D average pooling: torch.nn.functional.avg_pool{rank}d.

            >>> weft.functional.avg_pool{rank}d(torch.randn(2, 8, {x9}), 3, stride=2, padding=1, divisor_override=1).shape
            torch.Size([2, 8, {x5}])
        """
        if out is None and not in_dynamo():
            y = entry(input, kernel_size, () if stride is None else stride, padding, ceil_mode, count_include_pad, divisor_override)
            if y is not NotImplemented:
                return y
        return _avg_pool(avg_pool, rank, input, kernel_size, stride, padding, ceil_mode, count_include_pad, (divisor_override,), out)
    return avg_pool


avg_pool2d, avg_pool3d = ranked(_avg_pool_of, (2, 3))


def _adaptive_avg_pool_of(rank: int) -> Callable:
    entry = front(f"adaptive_avg_pool{rank}d")

    def adaptive_avg_pool(input: Tensor, output_size: Union[int, None, Sequence[Optional[int]]], *, out: Optional[Tensor] = None) -> Tensor:
        """{rank}D average pooling to a given size; in 2D and 3D None keeps that of the input: torch.nn.functional.adaptive_avg_pool{rank}d.

            >>> weft.functional.adaptive_avg_pool{rank}d(torch.randn(2, 4, {x9}), 7).shape
            torch.Size([2, 4, {x7}])
        """
        if out is None and not in_dynamo():
            y = entry(input, output_size)
            if y is not NotImplemented:
                return y
        if has_torch_function_unary(input):
            return handle_torch_function(adaptive_avg_pool, (input,), input, output_size, out=out)
        name = adaptive_avg_pool.__name__
        size = (output_size,) * rank if type(output_size) is int else _target(name, rank, output_size, input)
        # to one element the twin takes a plain mean: in 3D also of a tensor of any rank, and of nothing, which is NaN
        if (size == (1,) * rank and out is None and isinstance(input, Tensor)
                and ((rank == 3 and input.ndim not in (4, 5)) or (not is_compiling() and input.numel() == 0))):
            return left_to_torch(name, out, input, output_size)
        _check_input(name, rank, input)
        if foreign(input):
            return left_to_torch(name, out, input, output_size)
        input = _cast(rank, input)
        if out is not None:
            return call_into(ADAPTIVE_AVG_POOL, out, input, size)
        y = call(ADAPTIVE_AVG_POOL, input, size)
        return y if in_dynamo() else kept(y)
    return adaptive_avg_pool


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = ranked(_adaptive_avg_pool_of)
