"""Partial convolution, transposed or not, and its gradients: derivatives and batching of weft::partial_conv, partial_conv_backward.

Given the mask, the result is linear in input and in weight, so derivatives of any order are the two operators again. Kept for backward:
input, weight, mask and the window sums; never a masked copy of input.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._rules import TYPES, Rule, call
from ._bilinear import WANT_BIAS, WANT_INPUT, WANT_WEIGHT, gradient_of_backward, tangent_of_backward
from .conv import batched, into_channels, logical, out_of_channels, rounded, through_act

MASKS = (torch.bool, torch.uint8, *TYPES)


# ---------------------------------------------------------------------------------------------- shapes

def _is_one(size: Any) -> bool:
    if type(size) is int:
        return size == 1
    from torch.fx.experimental.symbolic_shapes import guard_or_false
    return guard_or_false(size == 1)


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    input, weight, bias, mask, stride, padding, dilation, groups, act, lo, hi, transposed, output_padding, _ = inputs   # legacy changes no derivative
    y, new_mask, sums = output
    ctx.mark_non_differentiable(new_mask, sums)
    ctx.set_materialize_grads(False)
    ctx.settings = (stride, padding, dilation, groups, transposed, output_padding)
    ctx.act, ctx.lo, ctx.hi = act, lo, hi
    if act == "clip":
        ctx.lo, ctx.hi = rounded(lo, y.dtype), rounded(hi, y.dtype)
    ctx.biased, ctx.bias_dtype, ctx.shape = bias is not None, input.dtype if bias is None else bias.dtype, y.shape
    return input, weight, mask, sums, y if act else None


def _gradient_of_forward(ctx, grad, *no_grads):
    """Of the mask there is none."""
    if grad is None:
        return None, None, None, None
    input, weight, mask, sums, output = ctx.saved_tensors
    if ctx.act:
        grad = through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
    x, w, b = ctx.needs_input_grad[:3]
    want = x * WANT_INPUT + w * WANT_WEIGHT + b * WANT_BIAS
    dx, dw, db = call(partial_conv_backward, grad, input, weight, mask, sums, *ctx.settings, ctx.biased, want, ctx.bias_dtype)
    return dx if x else None, dw if w else None, db if b else None, None


def _save_backward(ctx, inputs, output):
    *settings, ctx.biased, ctx.want, ctx.bias_dtype = inputs[5:]
    ctx.settings = settings
    ctx.set_materialize_grads(False)
    return inputs[:5]


def _forward(settings, input, weight, bias, mask):
    *geometry, transposed, output_padding = settings
    return call(partial_conv, input, weight, bias, mask, *geometry, "", 0.0, 0.0, transposed, output_padding, False)[0]


def _of_small_steps(settings, biased, shape, input, weight, mask, sums, dx, dw, db):
    """What small steps of input, weight and bias (each may be None) do to the result (A*r + bias)*u, or A*r without a bias. The factor u
    of A*r comes with a bias of 0."""
    moved = None
    rank = len(settings[0])
    still = weight.new_zeros(shape[-rank - 1]) if biased and (dx is not None or dw is not None) else None
    for x, w, moves in ((dx, weight, dx), (input, dw, dw)):
        if moves is None:
            continue
        more = _forward(settings, x, w, still if db is None else db, mask)
        moved, db = more if moved is None else moved + more, None
    if db is not None:
        u = sums.clamp(0, 1)
        if not _is_one(u.shape[-rank - 1]):   # one a group
            u = u.repeat_interleave(shape[-rank - 1] // u.shape[-rank - 1], -rank - 1)
        moved = (db.view(-1, *[1] * rank) * u).to(input.dtype).expand(shape)
    return moved


def _tangent_of_forward(ctx, input, weight, mask, sums, output, dx, dw, db, dmask):
    moved = _of_small_steps(ctx.settings, ctx.biased, ctx.shape, input, weight, mask, sums, dx, dw, db)
    if moved is None:   # only the mask moved
        moved = input.new_zeros(ctx.shape)
    return through_act(moved, output, ctx.act, ctx.lo, ctx.hi) if ctx.act else moved, None, None


def _backward(ctx, mask, sums):
    return lambda grad, input, weight, want: call(partial_conv_backward, grad, input, weight, mask, sums, *ctx.settings, ctx.biased, want, ctx.bias_dtype)


def _gradient_of_backward(ctx, *doubles):
    grad, input, weight, mask, sums = ctx.saved_tensors

    def steps(dx, dw, db):
        return _of_small_steps(ctx.settings, ctx.biased, grad.shape, input, weight, mask, sums, dx, dw, db)
    return (*gradient_of_backward(ctx.needs_input_grad, ctx.want, (grad, input, weight), doubles, steps, _backward(ctx, mask, sums)), None, None)


def _tangent_of_backward(ctx, grad, input, weight, mask, sums, *moves):
    channels = grad.shape[-len(ctx.settings[0]) - 1]
    return tangent_of_backward(ctx.want, (grad, input, weight), moves[:3], channels, ctx.bias_dtype, _backward(ctx, mask, sums))


# ---------------------------------------------------------------------------------------------- batching

def _batched_mask(mask: Tensor, dim: int | None, size: int, rank: int, plane: bool, unbatched: bool) -> Tensor:
    """(vmap's batch, n, c, spatial)"""
    t = mask.unsqueeze(0).expand(size, *mask.shape) if dim is None else mask.movedim(dim, 0)
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
partial_conv_backward = Rule("partial_conv_backward", 5, _save_backward, _gradient_of_backward, _tangent_of_backward,
                             _batch_backward)
