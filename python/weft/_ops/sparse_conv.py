"""Convolution with sparse weights and its gradients: derivatives and batching of weft::sparse_conv, sparse_conv_backward, and the
shapes of weft::sparse_build and sparse_positions. The result is linear in input and in the values of the weights."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._core.rules import Rule, call
from .._core.shapes import fake_of
from ._derived import adjoint, derived, leaf, tangents, wide
from .conv import (WANT_BIAS, WANT_INPUT, WANT_WEIGHT, batched, into_channels, logical, no_bias, out_of_channels, save_epilogue, through_act, want_of,
                   wanted)
from .conv import formula as conv_formula


@torch.library.register_fake("weft::sparse_build")
def _fake_sparse_build(weight):
    values, rows, cols = _build(weight)
    nnz = torch.library.get_ctx().new_dynamic_size()
    return values.new_empty([nnz]), rows, cols.new_empty([nnz])


_build = fake_of("sparse_build")
torch.library.register_fake("weft::sparse_positions", fake_of("sparse_positions"))


# ---------------------------------------------------------------------------------------------- gradients

def _formula(input, values, bias, rows, cols, shape, *geometry):
    """By dense weights; of values that are not stored there is no gradient."""
    counts = rows[1:].long() - rows[:-1].long()
    at = torch.repeat_interleave(torch.arange(shape[0], device=rows.device), counts, output_size=values.shape[0]) * math.prod(shape[1:]) + cols.long()
    dense = wide(values).new_zeros(math.prod(shape)).index_put((at,), wide(values)).view(*shape)
    return conv_formula(wide(input), dense, bias, *geometry).to(input.dtype)


def _backward(grad, input, values, rows, cols, shape, *settings):
    *geometry, want, bias_dtype = settings
    return wanted(adjoint(_formula, 3)(grad, input, values, leaf(input.new_zeros(shape[0], dtype=bias_dtype)), rows, cols, shape, *geometry), want)


def _save_forward(ctx, inputs, output):
    input, values, bias, rows, cols, *geometry, act, lo, hi = inputs
    ctx.settings = geometry
    save_epilogue(ctx, input, bias, act, lo, hi, output.dtype)
    return input, values, rows, cols, output if act else None


def _gradient_of_forward(ctx, grad):
    input, values, rows, cols, output = ctx.saved_tensors
    want = want_of(ctx.needs_input_grad)
    grads = call(sparse_conv_backward, through_act(grad, output, *ctx.act), input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)
    return *wanted(grads, want), None, None


def _tangent_of_forward(ctx, input, values, rows, cols, output, dx, dv, db, *no_tangents):
    moved, = tangents(_formula, (input, values, no_bias(db)), (rows, cols, *ctx.settings), (dx, dv, db))
    return through_act(moved, output, *ctx.act)


# ---------------------------------------------------------------------------------------------- batching

def _repeated(in_dims: Any, rows: Tensor, cols: Tensor, nnz: Any, size: int) -> tuple[Tensor, Tensor]:
    """The pattern for `size` times the groups: columns count within a group."""
    if in_dims[0] is not None or in_dims[1] is not None:
        raise RuntimeError("weft::sparse_conv: rows and cols cannot be mapped over a dimension by torch.vmap; all values share one pattern")
    begins = rows[:-1].long() + nnz * torch.arange(size, device=rows.device).unsqueeze(1)
    return torch.cat([begins.flatten(), rows.new_full((1,), nnz * size, dtype=torch.int64)]), cols.repeat(size)


def _batch_forward(info, in_dims, input, values, bias, rows, cols, shape, stride, padding, dilation, groups, *rest):
    """A batch of inputs under one weight is a larger batch; one with its own values is more groups."""
    size, full = info.batch_size, len(shape)
    unbatched = logical(input, in_dims[0]) < full
    x = batched(input, in_dims[0], size, full)
    if not any(d is not None for d in in_dims[1:5]):
        y = call(sparse_conv, x.flatten(0, 1), values, bias, rows, cols, shape, stride, padding, dilation, groups, *rest).unflatten(0, (size, x.shape[1]))
        return (y.squeeze(1) if unbatched else y), 0
    v = batched(values, in_dims[1], size, 1)
    b = None if bias is None else batched(bias, in_dims[2], size, 1).flatten()
    rows, cols = _repeated(in_dims[3:5], rows, cols, v.shape[1], size)
    y = call(sparse_conv, into_channels(x), v.flatten(), b, rows, cols, [shape[0] * size, *shape[1:]], stride, padding, dilation, groups * size, *rest)
    return out_of_channels(y, size, unbatched), 0


def _batch_backward(info, in_dims, grad, input, values, rows, cols, shape, stride, padding, dilation, groups, want, bias_dtype):
    size, full = info.batch_size, len(shape)
    unbatched = logical(input, in_dims[1]) < full
    dy, x = (into_channels(batched(t, d, size, full)) for t, d in ((grad, in_dims[0]), (input, in_dims[1])))
    v = batched(values, in_dims[2], size, 1)
    rows, cols = _repeated(in_dims[3:5], rows, cols, v.shape[1], size)
    dx, dv, db = call(sparse_conv_backward, dy, x, v.flatten(), rows, cols, [shape[0] * size, *shape[1:]], stride, padding, dilation, groups * size,
                      want, bias_dtype)
    dx = out_of_channels(dx, size, unbatched) if want & WANT_INPUT else dx
    dv, db = dv.view(v.shape) if want & WANT_WEIGHT else dv, db.view(size, shape[0]) if want & WANT_BIAS else db
    return (dx, dv, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


sparse_conv = Rule("sparse_conv", 5, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward)
sparse_conv_backward = Rule("sparse_conv_backward", 5, *derived(_backward, 5), _batch_backward)
