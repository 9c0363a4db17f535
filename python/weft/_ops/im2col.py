"""Columns and images: shapes, derivatives and batching of weft::im2col and col2im, each the gradient of the other."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .._rules import TYPES, Rule, call, check


# ---------------------------------------------------------------------------------------------- shapes

def _rank(kernel_size: Any) -> int:
    check(1 <= len(kernel_size) <= 3, lambda: f"kernel_size: has {len(kernel_size)} values, allowed: 1 (1D), 2 (2D) or 3 (3D)")
    return len(kernel_size)


def _check_input(input: Tensor, unbatched: int) -> bool:
    """In the kernel's words; true for a batch."""
    check(input.dim() in (unbatched, unbatched + 1),
          lambda: f"input: has {input.dim()} dimensions, allowed: {unbatched + 1} (batched) or {unbatched} (unbatched)")
    check(input.dtype in TYPES, lambda: f"input: is {str(input.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    batched = input.dim() > unbatched
    for a, n in list(enumerate(input.shape))[batched:]:
        check(n > 0, lambda: f"input: has 0 elements along dimension {a}, allowed: 1 or more; only the batch may be empty")
    return batched


def _windows(name: str, size: Sequence[Any], kernel_size: Any, stride: Any, padding: Any, dilation: Any) -> list[Any]:
    """How many windows an image of that size has along each axis."""
    rank = len(kernel_size)
    for setting, values, least in (("kernel_size", kernel_size, 1), ("stride", stride, 1), ("padding", padding, 0), ("dilation", dilation, 1)):
        check(len(values) == rank, lambda: f"{setting}: has {len(values)} values, allowed: {rank} (one for each of {rank} spatial axes)")
        for a, v in enumerate(values):
            check(v >= least, lambda: f"{setting}: is {v} along spatial axis {a}, allowed: {least} or more")
    spare = [n + 2 * p - d * (k - 1) - 1 for n, k, p, d in zip(size, kernel_size, padding, dilation)]
    for a, n in enumerate(spare):
        check(n >= 0, lambda: f"{name}: spatial axis {a} has {size[a]} elements, too few for kernel_size {kernel_size[a]}, padding {padding[a]}, "
                              f"dilation {dilation[a]}")
    return [n // s + 1 for n, s in zip(spare, stride)]


def _product(values: Sequence[Any]) -> Any:
    total = 1
    for v in values:
        total = total * v
    return total


def _fake_im2col(input, kernel_size, stride, padding, dilation, flat):
    rank = _rank(kernel_size)
    batched = _check_input(input, rank + 1)
    windows = _windows("input", input.shape[-rank:], kernel_size, stride, padding, dilation)
    channels = input.shape[batched]
    columns = [channels * _product(kernel_size), _product(windows)] if flat else [channels, *kernel_size, *windows]
    return input.new_empty([*input.shape[:batched], *columns])


def _fake_col2im(input, size, kernel_size, stride, padding, dilation, flat):
    rank, name = _rank(kernel_size), "output_size" if flat else "input_size"
    batched = _check_input(input, 2 if flat else 2 * rank + 1)
    check(len(size) == rank, lambda: f"size: has {len(size)} values, allowed: {rank} (one for each of {rank} spatial axes)")
    for a, n in enumerate(size):
        check(n >= 1, lambda: f"{name}: is {n} along spatial axis {a}, allowed: 1 to 2^40")
    windows = _windows(name, size, kernel_size, stride, padding, dilation)
    channels = input.shape[batched]
    if flat:
        taps = _product(kernel_size)
        check(channels % taps == 0, lambda: f"input: has {channels} elements along dimension {int(batched)}, allowed: a multiple of the elements of a window, "
                                            f"{taps}, from kernel_size")
        channels = channels // taps
    expected = [channels * taps, _product(windows)] if flat else [channels, *kernel_size, *windows]
    for a, n in enumerate(expected, batched):
        check(input.shape[a] == n, lambda: f"input: has {input.shape[a]} elements along dimension {a}, allowed with this {name}, kernel_size, stride, "
                                           f"padding and dilation: {n}")
    return input.new_empty([*input.shape[:batched], channels, *size])


# ---------------------------------------------------------------------------------------------- derivatives: both operators are linear

def _save_im2col(ctx, inputs, output):
    ctx.size, ctx.settings = inputs[0].shape[-len(inputs[1]):], inputs[1:]
    return ()


def _save_col2im(ctx, inputs, output):
    ctx.size, ctx.settings = inputs[1], inputs[2:]
    return ()


def _gradient_of_im2col(ctx, grad):
    return (call(col2im, grad, ctx.size, *ctx.settings),)


def _gradient_of_col2im(ctx, grad):
    return (call(im2col, grad, *ctx.settings),)


def _tangent_of_im2col(ctx, dx):
    return call(im2col, dx, *ctx.settings)


def _tangent_of_col2im(ctx, dx):
    return call(col2im, dx, ctx.size, *ctx.settings)


# ---------------------------------------------------------------------------------------------- batching

def _batch(name):
    """A larger batch; of tensors without one, simply a batch."""
    def batch(info, in_dims, input, *settings):
        x, flat, rank = input.movedim(in_dims[0], 0), settings[-1], len(settings[-2])
        unbatched = rank + 1 if name == "im2col" else 2 if flat else 2 * rank + 1
        if x.dim() == unbatched + 1:
            return call(globals()[name], x, *settings), 0
        return call(globals()[name], x.flatten(0, 1), *settings).unflatten(0, x.shape[:2]), 0
    return batch


im2col = Rule("im2col", 1, _fake_im2col, _save_im2col, _gradient_of_im2col, _tangent_of_im2col, _batch("im2col"))
col2im = Rule("col2im", 1, _fake_col2im, _save_col2im, _gradient_of_col2im, _tangent_of_col2im, _batch("col2im"))
