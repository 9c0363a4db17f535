"""Images to columns and back: torch.nn.functional.unfold and fold, and the same with every axis kept, in 1D, 2D and 3D. Results are
contiguous whatever the format of the input, as those of the twins are, so that columns can be viewed as a matrix."""
from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import Size, foreign, in_dynamo, left_to_torch, remembered, spread, whole
from .._core.entry import front, kept
from .._core.rules import call, call_into, linear, mapped
from .._core.shapes import SIZES, even, least_source

__all__ = ["unfold", "fold", "im2col", "col2im"]

_unfold, _fold = front("unfold"), front("fold")


# ---------------------------------------------------------------------------------------------- the rules

def _plane(value, one):
    """Of both axes of an image."""
    return (*[one] * (2 - len(value)), *value)


def _torch_im2col(input, kernel_size, stride, padding, dilation, flat):
    if flat and len(kernel_size) == 2:
        return torch._C._nn.im2col(input, kernel_size, dilation, padding, stride)
    size, window = input.shape[-len(kernel_size):], (_plane(kernel_size, 1), _plane(dilation, 1), _plane(padding, 0), _plane(stride, 1))
    made = torch._C._nn.im2col(input.reshape(-1, input.shape[-len(size) - 1], *_plane(size, 1)), *window)
    return made.reshape(SIZES["im2col"](input, kernel_size, stride, padding, dilation, flat)[0])


def _torch_col2im(input, size, kernel_size, stride, padding, dilation, flat):
    if flat and len(size) == 2:
        return torch._C._nn.col2im(input, size, kernel_size, dilation, padding, stride)
    shape, = SIZES["col2im"](input, size, kernel_size, stride, padding, dilation, flat)
    batch, rows = math.prod(shape[:-len(size) - 1]), shape[-len(size) - 1] * math.prod(kernel_size)
    window = (_plane(kernel_size, 1), _plane(dilation, 1), _plane(padding, 0), _plane(stride, 1))
    return torch._C._nn.col2im(input.reshape(batch, rows, -1), _plane(size, 1), *window).reshape(shape)


def _exact(function):
    """Not for 16 bits, whose sums, those of a gradient, PyTorch rounds; and for PyTorch's own layout alone: others are views, which nobody may change in
    place."""
    def native(input, *settings):
        twins = settings[-1] and len(settings[0]) == 2 and input.dtype in (torch.float32, torch.float64)
        return function(input, *settings) if twins else NotImplemented
    return native


IM2COL = linear("im2col", "col2im", lambda input, kernel_size, *rest: (input.shape[-len(kernel_size):], kernel_size, *rest),
                 mapped("im2col", unbatched=lambda kernel_size, *rest: len(kernel_size) + 1),
                 by_torch=_torch_im2col, native=_exact(_torch_im2col), plain=_torch_im2col)
COL2IM = linear("col2im", "im2col", lambda input, size, *settings: settings,
                 mapped("col2im", unbatched=lambda size, *settings: 2 if settings[-1] else 2 * len(size) + 1),
                 by_torch=_torch_col2im, native=_exact(_torch_col2im), plain=_torch_col2im)
TWIN = 0   # stands for a rank: 2, by the rules of unfold and fold


# ---------------------------------------------------------------------------------------------- arguments

def _two(name: str, value: Any) -> tuple[int, ...]:
    """Height and width as the twins read them: one int for both, or whatever gives two."""
    if not hasattr(value, "__iter__"):
        return spread(name, value, 2)
    some = (None,) if isinstance(value, Tensor) and not value.dim() else tuple(value)
    read = tuple(int(v) if i and isinstance(v, bool) else whole(v) for i, v in enumerate(some))   # True stands for 1, but not in front
    if None in read:
        raise TypeError(f"{name}: is {value!r}, allowed: an int, or a sequence of 2 ints")
    if len(read) != 2:
        raise RuntimeError(f"{name}: has {len(read)} values {some}, allowed: an int, or 2 of them")
    return read


@remembered
def _axes(rank: int, **settings: Any) -> tuple[tuple[int, ...], ...]:
    """One value an axis; TWIN: two, read as unfold and fold do."""
    return tuple(spread(name, value, rank) if rank is not TWIN else _two(name, value) for name, value in settings.items())


def _check_tensor(name: str, input: Any) -> None:
    if not isinstance(input, Tensor):
        raise TypeError(f"{name}: input is {type(input).__name__}, allowed: Tensor")


# ---------------------------------------------------------------------------------------------- public

def unfold(input: Tensor, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1, *, out: Optional[Tensor] = None) -> Tensor:
    """torch.nn.functional.unfold: (N, C, H, W) to (N, C * kh * kw, windows), or the same without N. `out` takes the result.

        >>> weft.functional.unfold(torch.randn(2, 3, 8, 8), 3, padding=1).shape
        torch.Size([2, 27, 64])
    """
    entered = out is None and not in_dynamo()
    if entered:
        y = _unfold(input, kernel_size, dilation, padding, stride)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(unfold, (input,), input, kernel_size, dilation=dilation, padding=padding, stride=stride, out=out)
    _check_tensor("unfold", input)
    if foreign(input):
        return left_to_torch("unfold", out, input, kernel_size, dilation, padding, stride)
    if not 3 <= input.dim() <= 4:
        kind = IndexError if input.dim() < 3 else RuntimeError   # as the twin
        raise kind(f"unfold: input has {input.dim()} dimensions {list(input.shape)}, allowed: 3 (unbatched) or 4 (batched)")
    args = (input, *_axes(TWIN, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation), True)
    if entered:
        return kept(call(IM2COL, *args))
    return call(IM2COL, *args) if out is None else call_into(IM2COL, out, *args)


def fold(input: Tensor, output_size: Size, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1, *,
         out: Optional[Tensor] = None) -> Tensor:
    """torch.nn.functional.fold: (N, C * kh * kw, windows) to (N, C, *output_size), or the same without N. `out` takes the result.

        >>> weft.functional.fold(torch.randn(2, 27, 64), (8, 8), 3, padding=1).shape
        torch.Size([2, 3, 8, 8])
    """
    entered = out is None and not in_dynamo()
    if entered:
        y = _fold(input, output_size, kernel_size, dilation, padding, stride)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(fold, (input,), input, output_size, kernel_size, dilation=dilation, padding=padding, stride=stride, out=out)
    _check_tensor("fold", input)
    if foreign(input):
        return left_to_torch("fold", out, input, output_size, kernel_size, dilation, padding, stride)
    if not 2 <= input.dim() <= 3:
        raise RuntimeError(f"fold: input has {input.dim()} dimensions {list(input.shape)}, allowed: 2 (unbatched) or 3 (batched)")
    args = (input, *_axes(TWIN, output_size=output_size, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation), True)
    if entered:
        return kept(call(COL2IM, *args))
    return call(COL2IM, *args) if out is None else call_into(COL2IM, out, *args)


def im2col(input: Tensor, kernel_size: Size, stride: Size, padding: Size, *, dilation: Size = 1, out: Optional[Tensor] = None) -> Tensor:
    """The windows of an image, every axis kept: (C, H, W) to (C, kh, kw, Ho, Wo), (N, C, H, W) to (N, C, kh, kw, Ho, Wo).

    A sequence for kernel_size, stride, padding or dilation says 1D, 2D or 3D by its length: with kernel_size=(3,) an input (N, C, L) is 1D,
    with (3, 3, 3) an input (C, D, H, W) is 3D. Ints alone are 1D for (C, L), 2D for three and four dimensions, 3D for five.

        >>> weft.im2col(torch.randn(3, 8, 10), (3, 4), stride=2, padding=1).shape
        torch.Size([3, 3, 4, 4, 5])
    """
    if has_torch_function_unary(input):
        return handle_torch_function(im2col, (input,), input, kernel_size, stride, padding, dilation=dilation, out=out)
    _check_tensor("im2col", input)
    many = [len(value) for value in (kernel_size, stride, padding, dilation) if isinstance(value, (tuple, list))]
    rank = many[0] if many else {2: 1, 5: 3}.get(input.dim(), 2)
    args = (input, *_axes(rank, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation), False)
    return call(IM2COL, *args) if out is None else call_into(IM2COL, out, *args)


def col2im(input: Tensor, kernel_size: Size, stride: Size, padding: Size, input_size: Optional[Size] = None, *, dilation: Size = 1,
           out: Optional[Tensor] = None) -> Tensor:
    """Columns to the image they add up to, the adjoint of im2col: (C, kh, kw, Ho, Wo) to (C, H, W), and batches; 1D and 3D likewise.

    input_size is the (H, W) of the image; where it is None, the least one: (Ho - 1) * stride - 2 * padding + dilation * (kh - 1) + 1.

        >>> weft.col2im(torch.randn(3, 3, 4, 4, 5), (3, 4), stride=2, padding=1).shape
        torch.Size([3, 7, 10])
    """
    if has_torch_function_unary(input):
        return handle_torch_function(col2im, (input,), input, kernel_size, stride, padding, input_size, dilation=dilation, out=out)
    _check_tensor("col2im", input)
    rank = (input.dim() - 1) // 2
    if not 1 <= rank <= 3:
        raise RuntimeError(f"col2im: input has {input.dim()} dimensions {list(input.shape)}, allowed: 3 or 4 (1D), 5 or 6 (2D), 7 or 8 (3D)")
    k, s, p, d = _axes(rank, kernel_size=kernel_size, stride=stride, padding=padding, dilation=dilation)
    if input_size is None:
        size = [whole(n) for n in least_source(input.shape[-rank:], k, s, even(p), d)]   # in a trace of torch.jit a size is a tensor
    else:
        size = spread("input_size", input_size, rank)
    args = (input, size, k, s, p, d, False)
    return call(COL2IM, *args) if out is None else call_into(COL2IM, out, *args)
