"""Pooling and its gradients: shapes, derivatives and batching of weft::max_pool, avg_pool, adaptive_avg_pool and what belongs to them."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._entry import leaves
from .._rules import TYPES, Rule, call, check, dense, is_last, known

BYTE_TAPS = 256   # windows of so many places have an index of one byte


# ---------------------------------------------------------------------------------------------- shapes

def _check_data(name: str, t: Tensor, list_name: str, values: Sequence[Any]) -> int:
    rank = len(values)
    check(1 <= rank <= 3, lambda: f"{list_name}: has {rank} values, allowed: 1 (1D), 2 (2D) or 3 (3D)")
    check(t.dim() in (rank + 1, rank + 2), lambda: f"{name}: has {t.dim()} dimensions, allowed: {rank + 2} (batched) or {rank + 1} (unbatched)")
    check(t.dtype in TYPES, lambda: f"{name}: is {str(t.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    return rank


def _check_filled(input: Tensor, axes: int) -> None:
    for a in range(input.dim() - axes, input.dim()):
        check(input.shape[a] != 0, lambda: f"input: has 0 elements along dimension {a}, allowed: 1 or more; only the batch may be empty")


def _check_axes(name: str, values: Sequence[Any], rank: int, least: int, most: int, power: str) -> None:
    check(len(values) == rank, lambda: f"{name}: has {len(values)} values, allowed: {rank} (one for each of {rank} spatial axes)")
    for a, v in enumerate(values):
        check(known(v >= least) and known(v <= most), lambda: f"{name}: is {v} along spatial axis {a}, allowed: {least} to {power}")


def _out_sizes(name: str, sizes: Sequence[Any], kernel: Sequence[Any], stride: Sequence[Any], padding: Sequence[Any], dilation: Sequence[Any],
               ceil_mode: bool, whole: bool = False) -> list[Any]:
    """Spatial sizes of the result, with the checks of the kernel. In ceil mode the last window must start before the padding at the end."""
    rank, out = len(kernel), []
    for setting, values, most in (("kernel_size", kernel, 20), ("stride", stride, 40), ("dilation", dilation, 20)):
        _check_axes(setting, values, rank, 1, 1 << most, f"2^{most}")
    check(len(padding) == rank, lambda: f"padding: has {len(padding)} values, allowed: {rank} (one for each of {rank} spatial axes)")
    for a, (n, k, s, p, d) in enumerate(zip(sizes, kernel, stride, padding, dilation)):
        check(known(p >= 0) and known(p <= k // 2), lambda: f"padding: is {p} along spatial axis {a}, allowed: 0 to half of kernel_size, {k // 2}")
        room = n + 2 * p - d * (k - 1) - 1 + (s - 1 if ceil_mode else 0)
        check(known(room >= 0) and (not whole or known(n >= k)),
              lambda: f"{name}: spatial axis {a} has {n} elements, too few for kernel_size {k}, stride {s}, padding {p}, dilation {d}")
        out.append(torch.sym_min(room // s + 1, (n + p + s - 1) // s) if ceil_mode else room // s + 1)
    return out


def _result(input: Tensor, rank: int, spatial: Sequence[Any]) -> Tensor:
    return dense(input, [*input.shape[:-rank], *spatial], is_last(input, rank), rank)


def _fake_max_pool(input, kernel_size, stride, padding, dilation, ceil_mode):
    rank = _check_data("input", input, "kernel_size", kernel_size)
    _check_filled(input, rank + 1)
    return _result(input, rank, _out_sizes("input", input.shape[-rank:], kernel_size, stride, padding, dilation, ceil_mode))


def _index_type(kernel_size: Sequence[int], flat: bool) -> torch.dtype:
    return torch.int64 if flat or math.prod(kernel_size) > BYTE_TAPS else torch.uint8


def _fake_max_pool_index(input, kernel_size, stride, padding, dilation, ceil_mode, flat):
    y = _fake_max_pool(input, kernel_size, stride, padding, dilation, ceil_mode)
    return y, y.new_empty_strided(y.shape, y.stride(), dtype=_index_type(kernel_size, flat))


def _fake_avg_pool(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor):
    rank = _check_data("input", input, "kernel_size", kernel_size)
    _check_filled(input, rank + 1)
    return _result(input, rank, _out_sizes("input", input.shape[-rank:], kernel_size, stride, padding, [1] * rank, ceil_mode, rank == 3))


def _fake_adaptive_avg_pool(input, output_size):
    rank = _check_data("input", input, "output_size", output_size)
    _check_filled(input, rank + (rank == 3 and input.dim() == 5))
    _check_axes("output_size", output_size, rank, 0, 1 << 40, "2^40")
    return _result(input, rank, output_size)


def _check_fits(name: str, t: Tensor, like: Tensor, spatial: Sequence[Any]) -> None:
    for n, expected in zip(t.shape, [*like.shape[:-len(spatial)], *spatial]):
        check(n == expected, lambda: f"{name}: its shape does not fit input_size: {n} elements where the geometry gives {expected}")


def _fake_gradient(grad_output: Tensor, input_size: Sequence[Any], channels_last: bool) -> Tensor:
    rank = len(input_size)
    return dense(grad_output, [*grad_output.shape[:-rank], *input_size], channels_last, rank)


def _check_gradient(grad_output: Tensor, input_size: Sequence[Any]) -> int:
    rank = _check_data("grad_output", grad_output, "input_size", input_size)
    _check_axes("input_size", input_size, rank, 1, 1 << 40, "2^40")
    return rank


def _fake_max_pool_backward(grad_output, index, input_size, kernel_size, stride, padding, dilation, ceil_mode, channels_last):
    _check_gradient(grad_output, input_size)
    out = _out_sizes("input_size", input_size, kernel_size, stride, padding, dilation, ceil_mode)
    _check_fits("grad_output", grad_output, grad_output, out)
    check(index.dtype in (torch.int64, _index_type(kernel_size, False)),
          lambda: f"index: is {str(index.dtype)[6:]}, allowed: int64, or uint8 where a window has at most 256 places")
    check(index.dim() == grad_output.dim(), lambda: f"index: has {index.dim()} dimensions, allowed: as many as grad_output, {grad_output.dim()}")
    check(index.device == grad_output.device, lambda: f"index: is on {index.device}, allowed: the device of grad_output, {grad_output.device}")
    _check_fits("index", index, grad_output, out)
    return _fake_gradient(grad_output, input_size, channels_last)


def _fake_avg_pool_backward(grad_output, input_size, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor, channels_last):
    rank = _check_gradient(grad_output, input_size)
    out = _out_sizes("input_size", input_size, kernel_size, stride, padding, [1] * rank, ceil_mode, rank == 3)
    _check_fits("grad_output", grad_output, grad_output, out)
    return _fake_gradient(grad_output, input_size, channels_last)


def _fake_adaptive_avg_pool_backward(grad_output, input_size, channels_last):
    _check_gradient(grad_output, input_size)
    return _fake_gradient(grad_output, input_size, channels_last)


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


# ---------------------------------------------------------------------------------------------- averages: linear, nothing is kept

def _save_mean(ctx, inputs, output):
    rank = len(inputs[1])
    ctx.rest, ctx.size, ctx.last = inputs[1:], tuple(inputs[0].shape[-rank:]), is_last(inputs[0], rank)
    return ()


def _save_mean_backward(ctx, inputs, output):
    ctx.rest, ctx.size = inputs[1:], tuple(inputs[0].shape[-len(inputs[1]):])
    return ()


def _gradient_of_avg_pool(ctx, grad):
    return call(avg_pool_backward, grad, ctx.size, *ctx.rest, ctx.last),


def _tangent_of_avg_pool(ctx, dx):
    return call(avg_pool, dx, *ctx.rest)


def _gradient_of_avg_pool_backward(ctx, ddx):
    return call(avg_pool, ddx, *ctx.rest[1:-1]),


def _tangent_of_avg_pool_backward(ctx, ddy):
    return call(avg_pool_backward, ddy, *ctx.rest)


def _gradient_of_adaptive(ctx, grad):
    return call(adaptive_avg_pool_backward, grad, ctx.size, ctx.last),


def _tangent_of_adaptive(ctx, dx):
    return call(adaptive_avg_pool, dx, *ctx.rest)


def _gradient_of_adaptive_backward(ctx, ddx):
    return call(adaptive_avg_pool, ddx, ctx.size),


def _tangent_of_adaptive_backward(ctx, ddy):
    return call(adaptive_avg_pool_backward, ddy, *ctx.rest)


# ---------------------------------------------------------------------------------------------- batching

def _batch(name: str, tensors: int = 1) -> Callable:
    """A batch of images is a larger batch. The argument after the tensors has the length of the rank."""
    def batch(info, in_dims, *args):
        size, rank = info.batch_size, len(args[tensors])
        given = [t.unsqueeze(0).expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(args[:tensors], in_dims)]
        folded = given[0].dim() == rank + 3
        images = given[0].shape[1]
        results = call(globals()[name], *[t.flatten(0, 1) for t in given] if folded else given, *args[tensors:])
        several = isinstance(results, tuple)
        results = tuple(t.unflatten(0, (size, images)) if folded else t for t in (results if several else (results,)))
        return (results, (0,) * len(results)) if several else (results[0], 0)
    return batch


_nn = torch._C._nn
_AVG, _ADAPTIVE = (None, _nn.avg_pool2d, _nn.avg_pool3d), (None, _nn.adaptive_avg_pool2d, _nn.adaptive_avg_pool3d)


def _turns(input, rank):
    """PyTorch's averages in 3D are channels-first whatever the data: weft's keep the format."""
    return rank == 3 and not input.is_contiguous()


def _native_avg(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor):
    function = None if _turns(input, len(kernel_size)) else _AVG[len(kernel_size) - 1]
    return NotImplemented if function is None else function(input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor or None)


def _native_adaptive(input, output_size):
    function = None if _turns(input, len(output_size)) else _ADAPTIVE[len(output_size) - 1]
    return NotImplemented if function is None else function(input, output_size)


max_pool = Rule("max_pool", 1, _fake_max_pool, _save_max_pool, _gradient_of_max_pool, _tangent_of_max_pool, _batch("max_pool"))
max_pool_index = Rule("max_pool_index", 1, _fake_max_pool_index, _save_max_pool_index, _gradient_of_max_pool_index, _tangent_of_max_pool_index,
                      _batch("max_pool_index"))
max_pool_backward = Rule("max_pool_backward", 2, _fake_max_pool_backward, _save_max_pool_backward, _gradient_of_max_pool_backward,
                         _tangent_of_max_pool_backward, _batch("max_pool_backward", 2))
avg_pool = Rule("avg_pool", 1, _fake_avg_pool, _save_mean, _gradient_of_avg_pool, _tangent_of_avg_pool, _batch("avg_pool"), native=_native_avg)
avg_pool_backward = Rule("avg_pool_backward", 1, _fake_avg_pool_backward, _save_mean_backward, _gradient_of_avg_pool_backward, _tangent_of_avg_pool_backward,
                         _batch("avg_pool_backward"))
adaptive_avg_pool = Rule("adaptive_avg_pool", 1, _fake_adaptive_avg_pool, _save_mean, _gradient_of_adaptive, _tangent_of_adaptive,
                         _batch("adaptive_avg_pool"), native=_native_adaptive)
adaptive_avg_pool_backward = Rule("adaptive_avg_pool_backward", 1, _fake_adaptive_avg_pool_backward, _save_mean_backward, _gradient_of_adaptive_backward,
                                  _tangent_of_adaptive_backward, _batch("adaptive_avg_pool_backward"))


# ---------------------------------------------------------------------------------------------- PyTorch's max pooling in training

def torch_trains(args: tuple) -> bool:
    """Does PyTorch win the pass without an index? Then it computes max pooling in training too, with an index of its own: weft's byte is for
    its own kernels. Not under torch.func, nor on CUDA where nothing keeps the order of PyTorch's sums: in 3D, for channels-last data, and where
    the user asked for order."""
    input = args[0]
    if input.is_cuda and (len(args[1]) == 3 or not input.is_contiguous() or torch.are_deterministic_algorithms_enabled()):
        return False
    return leaves(max_pool.number, False, *args)
