"""Pooling and its gradients: derivatives and batching of weft::max_pool, avg_pool, adaptive_avg_pool and what belongs to them."""
from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._core.entry import leaves
from .._core.rules import Rule, call, is_last, linear, mapped


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


def _gradient_of_max_pool(ctx, grad):
    input, = ctx.saved_tensors
    rank = len(ctx.window[0])
    with torch.no_grad():
        index = call(max_pool_index, input.detach(), *ctx.window, False)[1]
    return call(max_pool_backward, grad, index, tuple(input.shape[-rank:]), *ctx.window, is_last(input, rank)),


def _tangent_of_max_pool(ctx, input, dx):
    with torch.no_grad():
        index = call(max_pool_index, input.detach(), *ctx.window, False)[1]
    return _picked(dx, index, ctx.window)


def _save_max_pool_index(ctx, inputs, output):
    """The index, and no part of the data."""
    input, *window, flat = inputs
    rank = len(window[0])
    ctx.window, ctx.size, ctx.last = tuple(window), tuple(input.shape[-rank:]), is_last(input, rank)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    return output[1:]


def _gradient_of_max_pool_index(ctx, grad, _):
    if grad is None:
        return None,
    return call(max_pool_backward, grad, *ctx.saved_tensors, ctx.size, *ctx.window, ctx.last),


def _tangent_of_max_pool_index(ctx, index, dx):
    return _picked(dx, index, ctx.window), None


def _save_max_pool_backward(ctx, inputs, output):
    _, index, ctx.size, *window, ctx.last = inputs
    ctx.window = tuple(window)
    return index,


def _gradient_of_max_pool_backward(ctx, ddx):
    return _picked(ddx, *ctx.saved_tensors, ctx.window), None


def _tangent_of_max_pool_backward(ctx, index, ddy, _):
    return call(max_pool_backward, ddy, index, ctx.size, *ctx.window, ctx.last)


# ---------------------------------------------------------------------------------------------- averages

def _source(input, rank):
    """The spatial size of the input, and whether it is channels-last."""
    return tuple(input.shape[-rank:]), is_last(input, rank)


def _of_avg_pool(input, *settings):
    size, last = _source(input, len(settings[0]))
    return size, *settings, last


_nn, _aten = torch._C._nn, torch.ops.aten
_AVG, _ADAPTIVE = (None, _nn.avg_pool2d, _nn.avg_pool3d), (None, _nn.adaptive_avg_pool2d, _nn.adaptive_avg_pool3d)
_MAX = (None, _nn.max_pool2d_with_indices, _nn.max_pool3d_with_indices)
_MAX_BACKWARD = (None, _aten.max_pool2d_with_indices_backward, _aten.max_pool3d_with_indices_backward)
_AVG_BACKWARD = (None, _aten.avg_pool2d_backward, _aten.avg_pool3d_backward)
_ADAPTIVE_BACKWARD = (None, _aten._adaptive_avg_pool2d_backward, _aten._adaptive_avg_pool3d_backward)


def _turns(input, rank):
    """PyTorch's averages in 3D are channels-first whatever the data: weft's keep the format."""
    return rank == 3 and not input.is_contiguous()


def _native_avg(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor):
    function = None if _turns(input, len(kernel_size)) else _AVG[len(kernel_size) - 1]
    return NotImplemented if function is None else function(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor or None)


def _native_adaptive(input, output_size):
    function = None if _turns(input, len(output_size)) else _ADAPTIVE[len(output_size) - 1]
    return NotImplemented if function is None else function(input, output_size)


def _torch_max(input, *window):
    return _MAX[len(window[0]) - 1](input, *window[:5])


def _torch_avg(input, *settings):
    return _AVG[len(settings[0]) - 1](input, *settings[:-1], settings[-1] or None)


def _images(grad, size, last):
    """grad_output in that format, and images of the size: PyTorch's gradients ask for the input, and look at its shape alone."""
    rank = len(size)
    form = torch.contiguous_format if not last or grad.dim() < rank + 2 else torch.channels_last if rank == 2 else torch.channels_last_3d
    return grad.contiguous(memory_format=form), torch.empty([*grad.shape[:-rank], *size], dtype=grad.dtype, device=grad.device, memory_format=form)


def _torch_max_backward(grad, index, size, *window):
    return _MAX_BACKWARD[len(size) - 1](*_images(grad, size, window[-1]), *window[:-1], index)


def _torch_avg_backward(grad, size, *settings):
    return _AVG_BACKWARD[len(size) - 1](*_images(grad, size, settings[-1]), *settings[:-2], settings[-2] or None)


def _torch_adaptive_backward(grad, size, last):
    """To one pixel: of a window as large as the image."""
    if list(grad.shape[-len(size):]) == [1] * len(size):
        return _torch_avg_backward(grad, size, size, size, [0] * len(size), False, True, 0, last)
    return _ADAPTIVE_BACKWARD[len(size) - 1](*_images(grad, size, last))


def _batch(name: str, tensors: int = 1):
    return mapped(name, tensors, unbatched=lambda axes, *rest: len(axes) + 1)


max_pool = Rule("max_pool", 1, _save_max_pool, _gradient_of_max_pool, _tangent_of_max_pool, _batch("max_pool"),
                by_torch=lambda *args: _torch_max(*args)[0])
max_pool_index = Rule("max_pool_index", 1, _save_max_pool_index, _gradient_of_max_pool_index, _tangent_of_max_pool_index, _batch("max_pool_index"),
                      by_torch=_torch_max)
max_pool_backward = Rule("max_pool_backward", 2, _save_max_pool_backward, _gradient_of_max_pool_backward, _tangent_of_max_pool_backward,
                         _batch("max_pool_backward", 2), by_torch=_torch_max_backward)
avg_pool = linear("avg_pool", "avg_pool_backward", _of_avg_pool, _batch("avg_pool"), by_torch=_torch_avg, native=_native_avg)
avg_pool_backward = linear("avg_pool_backward", "avg_pool", lambda grad, size, *settings: settings[:-1], _batch("avg_pool_backward"),
                           by_torch=_torch_avg_backward)
adaptive_avg_pool = linear("adaptive_avg_pool", "adaptive_avg_pool_backward", lambda input, out: _source(input, len(out)), _batch("adaptive_avg_pool"),
                           by_torch=lambda input, size: _ADAPTIVE[len(size) - 1](input, size), native=_native_adaptive)
adaptive_avg_pool_backward = linear("adaptive_avg_pool_backward", "adaptive_avg_pool", lambda grad, size, last: _source(grad, len(size))[:1],
                                    _batch("adaptive_avg_pool_backward"), by_torch=_torch_adaptive_backward)


# ---------------------------------------------------------------------------------------------- PyTorch's max pooling in training

def torch_trains(args: tuple) -> bool:
    """Does PyTorch win the pass without an index? Then it computes max pooling in training too, with an index of its own: weft's byte is for
    its own kernels. Not under torch.func, nor on CUDA where nothing keeps the order of PyTorch's sums: in 3D, for channels-last data, and where
    the user asked for order."""
    input = args[0]
    if input.is_cuda and (len(args[1]) == 3 or not input.is_contiguous() or torch.are_deterministic_algorithms_enabled()):
        return False
    return leaves(max_pool.number, False, *args)
