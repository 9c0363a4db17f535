"""Partial convolution, transposed or not, and its gradients: derivatives and batching of weft::partial_conv, partial_conv_backward.

Kept for backward: input, weight, mask and the window sums; never a masked copy of input.
"""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._core.rules import TYPES, Rule, call, in_front
from ._derived import adjoint, derived, leaf, tangents, wide
from .conv import (WANT_BIAS, WANT_INPUT, WANT_WEIGHT, batched, into_channels, logical, no_bias, out_of_channels, save_epilogue, through_act, want_of,
                   wanted)
from .conv import formula as conv_formula

MASKS = (torch.bool, torch.uint8, *TYPES)


# ---------------------------------------------------------------------------------------------- gradients

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


def _save_forward(ctx, inputs, output):
    input, weight, bias, mask, stride, padding, dilation, groups, act, lo, hi, transposed, output_padding, _ = inputs   # legacy changes no derivative
    y, new_mask, sums = output
    ctx.mark_non_differentiable(new_mask, sums)
    ctx.set_materialize_grads(False)
    ctx.settings = (stride, padding, dilation, groups, transposed, output_padding, bias is not None)
    save_epilogue(ctx, input, bias, act, lo, hi, y.dtype)
    return input, weight, mask, sums, y if act else None


def _gradient_of_forward(ctx, grad, *no_grads):
    """Of the mask there is none."""
    if grad is None:
        return None, None, None, None
    input, weight, mask, sums, output = ctx.saved_tensors
    want = want_of(ctx.needs_input_grad)
    grads = call(partial_conv_backward, through_act(grad, output, *ctx.act), input, weight, mask, sums, *ctx.settings, want, ctx.bias_dtype)
    return *wanted(grads, want), None


def _tangent_of_forward(ctx, input, weight, mask, sums, output, dx, dw, db, dmask):
    moved, = tangents(_formula, (input, weight, no_bias(db)), (mask, sums, *ctx.settings), (dx, dw, db))
    return through_act(moved, output, *ctx.act), None, None


# ---------------------------------------------------------------------------------------------- batching

def _batched_mask(mask: Tensor, dim: int | None, size: int, rank: int, plane: bool, unbatched: bool) -> Tensor:
    """(vmap's batch, n, c, spatial)"""
    t = in_front(mask, dim, size)
    t = t.unsqueeze(-rank - 1) if plane else t
    return t.unsqueeze(1) if unbatched else t


def _over_channels(mask: Tensor, channels: int) -> Tensor:
    """(batch, n, 1 or c, spatial) as (n, batch * c, spatial)"""
    return into_channels(mask.expand(*mask.shape[:2], channels, *mask.shape[3:]))


def _batch_forward(info, in_dims, input, weight, bias, mask, stride, padding, dilation, groups, *rest):
    """A batch of inputs under one weight is a larger batch; one with its own weights is more groups, and a mask of every channel."""
    size, full = info.batch_size, logical(weight, in_dims[1])
    rank, unbatched = full - 2, logical(input, in_dims[0]) < full
    x = batched(input, in_dims[0], size, full)
    plane = mask is not None and logical(mask, in_dims[3]) < logical(input, in_dims[0])
    m = None if mask is None else _batched_mask(mask, in_dims[3], size, rank, plane, unbatched)
    larger = in_dims[1] is None and in_dims[2] is None
    if larger:
        lies = None if m is None else m.expand(size, x.shape[1], *m.shape[2:]).flatten(0, 1)
        results = call(partial_conv, x.flatten(0, 1), weight, bias, lies, stride, padding, dilation, groups, *rest)
    else:
        b = None if bias is None else batched(bias, in_dims[2], size, 1).flatten()
        lies = None if m is None else _over_channels(m, x.shape[2])
        results = call(partial_conv, into_channels(x), batched(weight, in_dims[1], size, full).flatten(0, 1), b, lies, stride, padding, dilation,
                       groups * size, *rest)

    def back(t: Tensor, one_batch: bool, one_channel: bool) -> Tensor:
        t = t.unflatten(0, (size, x.shape[1])) if larger else out_of_channels(t, size, False)
        t = t[:, :1] if one_batch else t
        t = t[:, :, :1] if one_channel else t
        return t.squeeze(1) if unbatched else t
    y, *more = results
    if m is None:
        return (back(y, False, False), *(t.squeeze(0) if unbatched else t for t in more)), (0, None, None)
    new_mask, sums = (back(t, _is_one(m.shape[1]), _is_one(m.shape[2])) for t in more)
    return (back(y, False, False), new_mask.squeeze(-rank - 1) if plane else new_mask, sums), (0, 0, 0)


def _batch_backward(info, in_dims, grad, input, weight, mask, sums, stride, padding, dilation, groups, transposed, output_padding, biased, want, bias_dtype):
    size, full = info.batch_size, logical(weight, in_dims[2])
    rank, unbatched = full - 2, logical(input, in_dims[1]) < full
    dy, x = (into_channels(batched(t, d, size, full)) for t, d in ((grad, in_dims[0]), (input, in_dims[1])))
    w = batched(weight, in_dims[2], size, full).flatten(0, 1)
    if mask is None:   # the sums are the same for all
        s = sums if in_dims[4] is None else sums.select(in_dims[4], 0)
        m, s = None, s.unsqueeze(0) if unbatched else s
    else:
        plane = logical(mask, in_dims[3]) < logical(input, in_dims[1])
        m = _over_channels(_batched_mask(mask, in_dims[3], size, rank, plane, unbatched), x.shape[1] // size)
        s = _over_channels(batched(sums, in_dims[4], size, full), groups)
    dx, dw, db = call(partial_conv_backward, dy, x, w, m, s, stride, padding, dilation, groups * size, transposed, output_padding, biased, want, bias_dtype)
    dx = out_of_channels(dx, size, unbatched) if want & WANT_INPUT else dx
    dw = dw.unflatten(0, (size, -1)) if want & WANT_WEIGHT else dw
    db = db.unflatten(0, (size, -1)) if want & WANT_BIAS else db
    return (dx, dw, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


partial_conv = Rule("partial_conv", 4, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward)
partial_conv_backward = Rule("partial_conv_backward", 5, *derived(_backward, 5), _batch_backward)
