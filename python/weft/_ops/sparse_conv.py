"""Convolution with sparse weights and its gradients: derivatives and batching of weft::sparse_conv, sparse_conv_backward, and the
shapes of weft::sparse_build and sparse_positions. The result is linear in input and in the values of the weights."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._rules import Rule, call
from .._shapes import fake_of
from ._bilinear import WANT_BIAS, WANT_INPUT, WANT_WEIGHT, gradient_of_backward, tangent_of_backward
from .conv import batched, into_channels, logical, out_of_channels, rounded, through_act

_INDEX = (torch.int32, torch.int64)


@torch.library.register_fake("weft::sparse_build")
def _fake_sparse_build(weight):
    values, rows, cols = _build(weight)
    nnz = torch.library.get_ctx().new_dynamic_size()
    return values.new_empty([nnz]), rows, cols.new_empty([nnz])


_build = fake_of("sparse_build")
torch.library.register_fake("weft::sparse_positions", fake_of("sparse_positions"))


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    input, values, bias, rows, cols, shape, stride, padding, dilation, groups, act, lo, hi = inputs
    ctx.settings = (shape, stride, padding, dilation, groups)
    ctx.act, ctx.lo, ctx.hi = act, lo, hi
    if act == "clip":
        ctx.lo, ctx.hi = rounded(lo, output.dtype), rounded(hi, output.dtype)
    ctx.bias_dtype, ctx.shape = input.dtype if bias is None else bias.dtype, output.shape
    return input, values, rows, cols, output if act else None


def _gradient_of_forward(ctx, grad):
    """Of values that are not stored there is none."""
    input, values, rows, cols, output = ctx.saved_tensors
    if ctx.act:
        grad = through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
    x, v, b = ctx.needs_input_grad[:3]
    want = x * WANT_INPUT + v * WANT_WEIGHT + b * WANT_BIAS
    dx, dv, db = call(sparse_conv_backward, grad, input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)
    return dx if x else None, dv if v else None, db if b else None, None, None


def _steps(settings, shape, input, values, rows, cols):
    """The function that says what small steps of input, values and bias (each may be None) do to the result."""
    def steps(dx, dv, db):
        moved = None
        for x, v, moves in ((dx, values, dx), (input, dv, dv)):
            if moves is None:
                continue
            more = call(sparse_conv, x, v, db, rows, cols, *settings, "", 0.0, 0.0)
            moved, db = more if moved is None else moved + more, None
        if db is not None:
            moved = db.to(input.dtype).view(-1, *[1] * len(settings[1])).expand(shape)
        return moved
    return steps


def _tangent_of_forward(ctx, input, values, rows, cols, output, dx, dv, db, *no_tangents):
    moved = _steps(ctx.settings, ctx.shape, input, values, rows, cols)(dx, dv, db)
    return through_act(moved, output, ctx.act, ctx.lo, ctx.hi) if ctx.act else moved


def _save_backward(ctx, inputs, output):
    *settings, ctx.want, ctx.bias_dtype = inputs[5:]
    ctx.settings = settings
    ctx.set_materialize_grads(False)
    return inputs[:5]


def _backward(ctx, rows, cols):
    return lambda grad, input, values, want: call(sparse_conv_backward, grad, input, values, rows, cols, *ctx.settings, want, ctx.bias_dtype)


def _gradient_of_backward(ctx, *doubles):
    grad, input, values, rows, cols = ctx.saved_tensors
    steps = _steps(ctx.settings, grad.shape, input, values, rows, cols)
    return (*gradient_of_backward(ctx.needs_input_grad, ctx.want, (grad, input, values), doubles, steps, _backward(ctx, rows, cols)), None, None)


def _tangent_of_backward(ctx, grad, input, values, rows, cols, *moves):
    return tangent_of_backward(ctx.want, (grad, input, values), moves[:3], ctx.settings[0][0], ctx.bias_dtype, _backward(ctx, rows, cols))


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
sparse_conv_backward = Rule("sparse_conv_backward", 5, _save_backward, _gradient_of_backward, _tangent_of_backward,
                            _batch_backward)
