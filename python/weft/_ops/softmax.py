"""softmax, log_softmax and their gradient: derivatives and batching of weft::softmax, log_softmax, softmax_backward."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._core.rules import Rule, call, in_front
from ._derived import derived


# ---------------------------------------------------------------------------------------------- derivatives
# Of one row, <.,.> the sum over it:
#   softmax       dx = y (dy - <y, dy>)
#   log_softmax   dx = dy - exp(y) <1, dy>

def _save(log: bool) -> Callable:
    def save(ctx, inputs, output):
        input, ctx.dim, _ = inputs
        ctx.log, ctx.dtype = log, input.dtype
        return output,
    return save


def _gradient(ctx, grad):
    output, = ctx.saved_tensors
    return call(softmax_backward, grad, output, ctx.dim, ctx.log, ctx.dtype),


def _tangent(ctx, output, dx):
    """That of softmax is its own adjoint."""
    dx = dx.to(output.dtype)
    if ctx.log:
        return dx - (output.exp() * dx).sum(ctx.dim, True)
    return call(softmax_backward, dx, output, ctx.dim, False, output.dtype)


def _backward(grad, output, dim, log, dtype):
    return (grad - output.exp() * grad.sum(dim, True) if log else output * (grad - (output * grad).sum(dim, True))).to(dtype)


# ---------------------------------------------------------------------------------------------- batching

def _with_rows(t: Tensor, at: int | None, size: int) -> Tensor:
    """The batch of vmap as the first dimension; rows of one value get a dimension to be rows of."""
    t = in_front(t, at, size)
    return t if t.dim() > 1 else t.unsqueeze(1)


def _behind(t: Tensor, dim: int) -> int:
    """dim of a tensor that has a batch in front now."""
    return 1 + dim % (t.dim() - 1)


def _batch(name: str) -> Callable:
    def batch(info: Any, in_dims: Any, input: Tensor, dim: int, dtype: torch.dtype) -> Any:
        x = _with_rows(input, in_dims[0], info.batch_size)
        return call(globals()[name], x, _behind(x, dim), dtype).view(x.shape[:input.dim()]), 0
    return batch


def _batch_backward(info, in_dims, grad_output, output, dim, log, dtype):
    rank = output.dim() - (in_dims[1] is not None) + 1
    dy, y = (_with_rows(t, at, info.batch_size) for t, at in ((grad_output, in_dims[0]), (output, in_dims[1])))
    return call(softmax_backward, dy, y, _behind(y, dim), log, dtype).view(y.shape[:rank]), 0


def _native(function):
    def native(input, dim, dtype):
        return function(input, dim) if dtype == input.dtype else NotImplemented
    return native


def _torch(log: bool) -> Callable:
    function = torch.log_softmax if log else torch.softmax
    return lambda input, dim, dtype: function(input, dim)


def _torch_backward(grad, output, dim, log, dtype):
    return (torch.ops.aten._log_softmax_backward_data if log else torch.ops.aten._softmax_backward_data)(grad, output, dim, dtype)


softmax = Rule("softmax", 1, _save(False), _gradient, _tangent, _batch("softmax"), by_torch=_torch(False), native=_native(torch.softmax))
log_softmax = Rule("log_softmax", 1, _save(True), _gradient, _tangent, _batch("log_softmax"), by_torch=_torch(True), native=_native(torch.log_softmax))
softmax_backward = Rule("softmax_backward", 2, *derived(_backward, 2), _batch_backward, by_torch=_torch_backward)
