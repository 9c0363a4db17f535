"""Partial convolution: convolution that counts only what a mask lets through, scaled up for what is missing.

With S the sum of the mask over a window, W the size of the window in all channels it sees, u = clamp(S, 0, 1) and r = W / (S + 1e-8) * u:
the result is conv(x * m) * r, or (conv(x * m) * r + bias) * u with a bias, and the new mask is u.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core import library as _library, settings as _settings
from .._core.arguments import TYPES, Padding, Size, lowered, ranked
from .._core.rules import Rule, adjoint, call, call_into, derived, is_last, leaf, mapped, wide
from .conv import WANT_BIAS, WANT_INPUT, WANT_WEIGHT, activated, check_activation, check_tensors, convolved, formula as conv_formula, read_settings, wanted

__all__ = ["partial_conv1d", "partial_conv2d", "partial_conv3d", "partial_conv_transpose1d", "partial_conv_transpose2d", "partial_conv_transpose3d"]

MASKS = (torch.bool, torch.uint8, *TYPES)
Pair = tuple[Tensor, Tensor]


# ---------------------------------------------------------------------------------------------- the rules

def _formula(input, weight, bias, mask, sums, stride, padding, dilation, groups, transposed, output_padding, biased):
    """(A r + bias) u, or A r without a bias, from the sums of the windows; A is the convolution of what the mask lets through."""
    rank, x = len(stride), wide(input)
    if mask is not None:
        m = mask if mask.dim() == input.dim() else mask.unsqueeze(-rank - 1)
        x = x * m if m.is_floating_point() else x.masked_fill(m == 0, 0)
    y = conv_formula(x, wide(weight), None, stride, padding, dilation, groups, *([output_padding] if transposed else []))
    channels, planes = y.shape[-rank - 1], sums.shape[-rank - 1]
    s = sums if _is_one(planes) else sums.repeat_interleave(channels // planes, -rank - 1)   # one a group
    u = s.clamp(0, 1)
    window = input.shape[-rank - 1] // groups * math.prod(weight.shape[2:])
    y = y * (window / (s + 1e-8) * u)
    y = y if bias is None else y + wide(bias).view(-1, *[1] * rank)
    return (y * u if biased else y).to(input.dtype)


def _backward(grad, input, weight, mask, sums, *settings):
    *settings, biased, want, bias_dtype = settings
    bias = leaf(input.new_zeros(grad.shape[-len(settings[0]) - 1], dtype=bias_dtype)) if biased else None
    return wanted(adjoint(_formula, 3)(grad, input, weight, bias, mask, sums, *settings, biased), want)


def _is_one(size: Any) -> bool:
    if type(size) is int:
        return size == 1
    from torch.fx.experimental.symbolic_shapes import guard_or_false
    return guard_or_false(size == 1)


def _read(input, weight, bias, mask, stride, padding, dilation, groups, act, lo, hi, transposed, output_padding, legacy):
    """legacy changes no derivative."""
    return (stride, padding, dilation, groups, transposed, output_padding, bias is not None), (act, lo, hi)


# ---------------------------------------------------------------------------------------------- by PyTorch
# Some images at a time: a masked copy of a few, their convolution, and the scale by the ratio stay within the workspace limit, however large the batch.
#   forward    y = conv(x m) r u + b u with a bias, conv(x m) r without one; legacy: conv(x m) + b - b in place of conv(x m)
#   gradients  D = dy r u, or dy r; dx = m conv_backward_data(D), dw = the sum over the images of conv_backward_weight(x m, D)
# The window sums are made by weft's own kernels, exactly for whole masks, which a fast convolution of ones does not promise. So is the gradient of the bias.

def _empty(like: Tensor, sizes: Any, last: bool, dtype: torch.dtype) -> Tensor:
    """Dense, channels-first or channels-last, in any rank."""
    n, c, *spatial = sizes
    return like.new_empty([n, *spatial, c], dtype=dtype).movedim(-1, 1) if last else like.new_empty(sizes, dtype=dtype)


class _Road:
    """One call, with a batch: x, mask (n or 1, c or 1, spatial) or None, the geometry, and how many images go at once."""

    def __init__(self, input, weight, mask, stride, padding, dilation, groups, transposed, output_padding, legacy=False):
        rank = len(stride)
        count, unbatched = _library.lib.weft_torch_images(), input.dim() == rank + 1
        if mask is not None and mask.dim() < input.dim():
            mask = mask.unsqueeze(-rank - 1)
        if unbatched:
            input, mask = input.unsqueeze(0), None if mask is None else mask.unsqueeze(0)
        self.rank, self.x, self.mask, self.weight, self.groups, self.padding, self.unbatched = rank, input, mask, weight, groups, padding, unbatched
        self.even = list(padding[::2]) == list(padding[1::2])
        self.geometry = (stride, padding[::2] if self.even else [0] * rank, dilation, transposed, output_padding, groups)
        self.settings = (stride, padding, dilation)
        self.planes = 1 if mask is None or mask.shape[1] == 1 else groups
        # on the CPU PyTorch makes blocks out of planes, copies of its own on top of ours; but NVIDIA's module rounds as planes do
        self.last = is_last(input, rank) or (input.is_cpu and not legacy)
        self.shared = mask is None or mask.shape[0] == 1
        self.window = input.shape[1] // groups * math.prod(weight.shape[2:])
        n = input.shape[0]
        self.parts = (slice(0, n),) if count >= n else tuple([slice(at, min(at + count, n)) for at in range(0, n, count)])

    def of(self, t, part):
        """Some images of a tensor that has one for each, or one for all."""
        return t if t is None or len(self.parts) == 1 or t.shape[0] == 1 else t[part]

    def masked(self, t, m, into):
        if m is not None and m.is_floating_point():
            return torch.mul(t, m, out=into)
        return into.copy_(t) if m is None else into.copy_(t).masked_fill_(m == 0, 0)

    def inner(self, padded):
        """The pixels of a padded copy that are not padding."""
        for axis, (low, size) in enumerate(zip(self.padding[::2], self.x.shape[2:]), 2):
            padded = padded.narrow(axis, low, size)
        return padded

    def seen(self, x, m):
        """x * m of some images, with the padding around it if that is uneven; x itself if it is all that is needed."""
        if self.mask is None and self.even and is_last(x, self.rank) == self.last:
            return x
        if self.even:
            return self.masked(x, m, _empty(x, x.shape, self.last, x.dtype))
        sizes = [n + low + high for n, low, high in zip(x.shape[2:], self.padding[::2], self.padding[1::2])]
        copy = _empty(x, [*x.shape[:2], *sizes], self.last, x.dtype).zero_()
        self.masked(x, m, self.inner(copy))
        return copy

    def shaped(self, x, m):
        """A tensor of the shape and the format of seen(), whose values do not count: x, its memory read in the other order where it has no gaps."""
        if self.even and is_last(x, self.rank) == self.last:
            return x
        return x.view(x.shape[0], *x.shape[2:], x.shape[1]).movedim(-1, 1) if self.even and self.last and x.is_contiguous() else self.seen(x, m)

    def sums(self, x, m):
        """Of windows in all channels of a group, by a partial convolution with one channel a plane, whose data and weights do not count."""
        channels = x.shape[1] // self.groups
        if m is not None and m.shape[1] > 1:
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            m, channels = self.apart(m if m.is_floating_point() else m != 0).sum(2, dtype=wide), 1
        x = x.new_zeros((1 if self.shared else x.shape[0], self.planes, *x.shape[2:]))
        made = PARTIAL_CONV.op(x, self.weight[:self.planes, :1], None, m, *self.settings, self.planes, "", 0.0, 0.0, *self.geometry[3:5], False)[2]
        return made.mul_(channels)

    def ratio(self, sums, u, biased):
        """W / (S + 1e-8) * u, once more * u after a bias."""
        made = torch.div(u, sums + 1e-8).mul_(self.window)
        return made.mul_(u) if biased else made

    def apart(self, t):
        """The channels of each plane along an axis of their own."""
        return t.view(t.shape[0], self.planes, t.shape[1] // self.planes, *t.shape[2:])


def _planes(road, x, m, biased):
    """Sums, new mask and ratio of some images."""
    sums = road.sums(x, m)
    u = sums.clamp(0, 1)
    return sums, u, road.ratio(sums, u, biased)


def _convolve(road, x, m, bias, early, u, ratio):
    """Without the activation. With a bias ahead of the ratio, as legacy has it, or strict math, and fast, products are not rounded to TF32; else
    PyTorch's own flag decides."""
    args = (road.seen(x, m), road.weight, bias.to(x.dtype) if early else None, *road.geometry)
    free = not early and _settings.now().math in (None, "tf32")
    made = torch.convolution(*args) if free else torch.ops.aten._convolution(*args, False, False, True, False)
    t, b = road.apart(made), None if bias is None else bias.view(1, road.planes, -1, *[1] * road.rank)
    if early:
        t.sub_(b)
    t.mul_(ratio.unsqueeze(2))
    if b is not None:
        t.addcmul_(b, u.unsqueeze(2))
    return made


def _in_parts(road, last, run):
    """The results of run(x, m), some images at a time, as of all of them."""
    whole = None
    for part in road.parts:
        made = run(road.x[part], road.of(road.mask, part))
        if whole is None:
            whole = [_empty(t, [road.x.shape[0], *t.shape[1:]], last, t.dtype) for t in made]
        for t, into in zip(made, whole):
            into[part].copy_(t)
        del made
    return whole


def _torch(input, weight, bias, mask, stride, padding, dilation, groups, act, lo, hi, transposed, output_padding, legacy):
    early, biased = legacy and bias is not None, bias is not None
    road = _Road(input, weight, mask, stride, padding, dilation, groups, transposed, output_padding, early)
    x, m, last = road.x, road.mask, is_last(input, road.rank)
    kept = _planes(road, x, m, biased) if road.shared or len(road.parts) == 1 else None

    def run(x, m):
        sums, u, ratio = kept or _planes(road, x, m, biased)
        y = activated(_convolve(road, x, m, bias, early, u, ratio), act, lo, hi)
        return (y,) if kept else (y, sums, u)
    made = run(x, m) if len(road.parts) == 1 else _in_parts(road, last, run)
    y, sums, u = (*made, *kept[:2]) if kept else made
    fresh = u.to(input.dtype if mask is None else mask.dtype)
    if m is not None and m.shape[1] > 1:
        fresh = fresh.repeat_interleave(y.shape[1] // road.planes, 1)
    fresh = fresh.squeeze(1) if mask is not None and mask.dim() < input.dim() else fresh
    return (y.squeeze(0), fresh.squeeze(0), sums.squeeze(0)) if road.unbatched else (y, fresh, sums)


def _torch_backward(grad, input, weight, mask, sums, stride, padding, dilation, groups, transposed, output_padding, biased, want, bias_dtype):
    road = _Road(input, weight, mask, stride, padding, dilation, groups, transposed, output_padding)
    dy, s = (grad.unsqueeze(0), sums.unsqueeze(0)) if road.unbatched else (grad, sums)
    dx = _empty(input, road.x.shape, is_last(input, road.rank), input.dtype) if want & WANT_INPUT else None
    backward = torch.ops.aten.convolution_backward
    total = weight.new_zeros(weight.shape, dtype=s.dtype) if want & WANT_WEIGHT and len(road.parts) > 1 else None

    def compute(part, ratio):
        """The gradient of the weights by these images."""
        of_s, of_dy, x, m = road.of(s, part), road.of(dy, part), road.of(road.x, part), road.of(road.mask, part)
        ratio = road.ratio(of_s, of_s.clamp(0, 1), biased) if ratio is None else ratio
        d = _empty(input, of_dy.shape, road.last, input.dtype)
        torch.mul(of_dy.unflatten(1, (road.planes, -1)), ratio.unsqueeze(2), out=road.apart(d))
        dw = backward(d, road.seen(x, m), weight, None, *road.geometry, [False, True, False])[1] if want & WANT_WEIGHT else None
        if dx is not None:
            made = backward(d, road.shaped(x, m), weight, None, *road.geometry, [True, False, False])[0]
            road.masked(made if road.even else road.inner(made), m, road.of(dx, part))
        return dw if total is None else total.add_(dw)
    ratio, dw, db = road.ratio(s, s.clamp(0, 1), biased) if road.shared else None, None, None
    for part in road.parts:
        dw = compute(part, ratio)
    if want & WANT_BIAS:
        db = PARTIAL_CONV_BACKWARD.op(grad, input, weight, mask, sums, *road.settings, groups, transposed, output_padding, biased, WANT_BIAS, bias_dtype)[2]
    return dx.squeeze(0) if dx is not None and road.unbatched else dx, None if dw is None else dw.to(weight.dtype), db


PARTIAL_CONV = Rule("partial_conv", 4, *convolved(_formula, "partial_conv_backward", 4, _read, several=2), mapped("partial_conv", 4, 0), by_torch=_torch)
PARTIAL_CONV_BACKWARD = Rule("partial_conv_backward", 5, *derived(_backward, 5), mapped("partial_conv_backward", 5, 0), by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- the functions

def _partial_conv(function: Callable, rank: int, tensors: tuple[Any, ...], stride: Size, padding: Padding, dilation: Size, groups: int,
                  output_padding: Optional[Size], act: Optional[str], clip: tuple[float, float], out: Optional[Pair], legacy: bool) -> Pair:
    """output_padding None: not transposed."""
    input, weight, bias, mask = tensors
    if has_torch_function_variadic(input, weight, bias, mask):
        settings = (stride, padding, dilation, groups) if output_padding is None else (stride, padding, output_padding, groups, dilation)
        return handle_torch_function(function, tensors, *tensors, *settings, act=act, clip=clip, out=out, legacy=legacy)
    check_tensors(function.__name__, rank, input, weight, bias, mask)
    settings, extra = read_settings(rank, stride, padding, dilation, groups, output_padding, weight)
    input, weight, bias = lowered(input, weight, bias)
    args = (input, weight, bias, mask, *settings, *check_activation(act, clip), extra is not None, extra or (0,) * rank, bool(legacy))
    if out is not None:
        return call_into(PARTIAL_CONV, out, *args)
    y, new_mask, _ = call(PARTIAL_CONV, *args)
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

            >>> holes = torch.rand(2, 1, {x9}) > 0.5
            >>> y, mask = weft.functional.partial_conv{rank}d(torch.randn(2, 4, {x9}), torch.randn(8, 4, {x3}), torch.zeros(8), holes, padding=1, act="relu")
            >>> y.shape, mask.shape, mask.dtype
            (torch.Size([2, 8, {x9}]), torch.Size([2, 1, {x9}]), torch.bool)
        """
        return _partial_conv(partial_conv, rank, (input, weight, bias, mask), stride, padding, dilation, groups, None, act, clip, out, legacy)
    return partial_conv


partial_conv1d, partial_conv2d, partial_conv3d = ranked(_partial_conv_of)


def _partial_conv_transpose_of(rank: int) -> Callable:
    def partial_conv_transpose(input: Tensor, weight: Tensor, bias: Optional[Tensor] = None, mask: Optional[Tensor] = None, stride: Size = 1,
                               padding: Size = 0, output_padding: Size = 0, groups: int = 1, dilation: Size = 1, *, act: Optional[str] = None,
                               clip: tuple[float, float] = (0.0, 6.0), out: Optional[Pair] = None, legacy: bool = False) -> Pair:
        """{rank}D transposed partial convolution: (result, new mask). partial_conv{rank}d says what masks are; a window here is what meets a pixel
        of the result.

            >>> weft.functional.partial_conv_transpose{rank}d(torch.randn(2, 4, {x8}), torch.randn(4, 1, {x3}), stride=2, output_padding=1, groups=4)[0].shape
            torch.Size([2, 4, {x18}])
        """
        return _partial_conv(partial_conv_transpose, rank, (input, weight, bias, mask), stride, padding, dilation, groups, output_padding, act, clip,
                             out, legacy)
    return partial_conv_transpose


partial_conv_transpose1d, partial_conv_transpose2d, partial_conv_transpose3d = ranked(_partial_conv_transpose_of)
