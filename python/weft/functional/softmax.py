"""softmax and log_softmax: the functions, and the rules of weft::softmax, log_softmax and softmax_backward."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.functional import _get_softmax_dim
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import autocast_dtype, whole
from .._core.derived import derived
from .._core.entry import front, kept
from .._core.rules import TYPES, Rule, call, call_into, in_front
from .._core.state import any_autocast, in_dynamo
from ._ranked import named

__all__ = ["softmax", "log_softmax"]

_WIDER = {(torch.float16, torch.float32), (torch.float16, torch.float64), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.float64),
          (torch.float32, torch.float64)}


# ---------------------------------------------------------------------------------------------- the rules
# Of one row, <.,.> the sum over it:
#   softmax       dx = y (dy - <y, dy>)
#   log_softmax   dx = dy - exp(y) <1, dy>

def _gradient(ctx, grad):
    output, = ctx.saved_tensors
    return call(SOFTMAX_BACKWARD, grad, output, ctx.dim, ctx.log, ctx.dtype),


def _tangent(ctx, output, dx):
    """That of softmax is its own adjoint."""
    dx = dx.to(output.dtype)
    if ctx.log:
        return dx - (output.exp() * dx).sum(ctx.dim, True)
    return call(SOFTMAX_BACKWARD, dx, output, ctx.dim, False, output.dtype)


def _backward(grad, output, dim, log, dtype):
    return (grad - output.exp() * grad.sum(dim, True) if log else output * (grad - (output * grad).sum(dim, True))).to(dtype)


def _with_rows(t: Tensor, at: int | None, size: int) -> Tensor:
    """The batch of vmap as the first dimension; rows of one value get a dimension to be rows of."""
    t = in_front(t, at, size)
    return t if t.dim() > 1 else t.unsqueeze(1)


def _behind(t: Tensor, dim: int) -> int:
    """dim of a tensor that has a batch in front now."""
    return 1 + dim % (t.dim() - 1)


def _batch_backward(info, in_dims, grad_output, output, dim, log, dtype):
    rank = output.dim() - (in_dims[1] is not None) + 1
    dy, y = (_with_rows(t, at, info.batch_size) for t, at in ((grad_output, in_dims[0]), (output, in_dims[1])))
    return call(SOFTMAX_BACKWARD, dy, y, _behind(y, dim), log, dtype).view(y.shape[:rank]), 0


def _torch_backward(grad, output, dim, log, dtype):
    return (torch.ops.aten._log_softmax_backward_data if log else torch.ops.aten._softmax_backward_data)(grad, output, dim, dtype)


def _forward(name: str, function: Callable) -> Rule:
    def save(ctx, inputs, output):
        input, ctx.dim, _ = inputs
        ctx.log, ctx.dtype = name == "log_softmax", input.dtype
        return output,

    def batch(info, in_dims, input, dim, dtype):
        x = _with_rows(input, in_dims[0], info.batch_size)
        return call(rule, x, _behind(x, dim), dtype).view(x.shape[:input.dim()]), 0

    def by_torch(input, dim, dtype):
        return function(input, dim)
    rule = Rule(name, 1, save, _gradient, _tangent, batch, by_torch=by_torch, native=by_torch)
    return rule


SOFTMAX, LOG_SOFTMAX = _forward("softmax", torch.softmax), _forward("log_softmax", torch.log_softmax)
SOFTMAX_BACKWARD = Rule("softmax_backward", 2, *derived(_backward, 2), _batch_backward, by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- the functions

def _axis(dim: Any, rank: int) -> int:
    value = whole(dim)
    if value is None:
        raise TypeError(f"dim: is {dim!r}, allowed: an int, or None")
    rank = max(rank, 1)
    if not -rank <= value < rank:
        raise IndexError(f"dim: is {value}, allowed: {-rank} to {rank - 1}")
    return int(value)


def _twins(name: str, input: Tensor, dim: int, dtype: Optional[torch.dtype], out: Optional[Tensor]) -> Tensor:
    """What weft has no kernels for: PyTorch takes it, or refuses it in its own words."""
    result = getattr(torch.nn.functional, name)(input, dim, dtype=dtype)
    return result if out is None else out.copy_(result)


def _run(rule: Rule, name: str, input: Tensor, dim: Any, dtype: Optional[torch.dtype], out: Optional[Tensor]) -> Tensor:
    """An exact change of type is done on the way; any other first, as it may round or overflow."""
    dim = _axis(dim, input.dim())
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: is {dtype!r}, allowed: a torch.dtype, or None")
    if input.layout is not torch.strided or input.is_nested or input.dim() > 64:
        return _twins(name, input, dim, dtype, out)
    given = input.dtype
    if dtype is None:
        dtype = given
        if any_autocast() and given in (torch.float16, torch.bfloat16) and input.device.type == "cuda" and autocast_dtype(input.device) is not None:
            dtype = torch.float32   # as PyTorch, which on the CPU keeps the type
    if dtype not in TYPES and input.numel() == 0:   # PyTorch returns nothing of any type
        return _twins(name, input, dim, None if dtype is given else dtype, out)
    if dtype not in TYPES:   # so are whole and complex numbers without a dtype
        raise NotImplementedError(f"{'input' if dtype is given else 'dtype'}: is {str(dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    if dtype is not given and (given, dtype) not in _WIDER:
        input = input.to(dtype)
    return call(rule, input, dim, dtype) if out is None else call_into(rule, out, input, dim, dtype)


def _made(rule: Rule, name: str, help: str) -> Callable:
    entry = front(name)

    def function(input: Tensor, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Optional[torch.dtype] = None, *,
                 out: Optional[Tensor] = None) -> Tensor:
        entered = dim is not None and dtype is None and out is None and not in_dynamo()
        if entered:
            y = entry(input, dim)
            if y is not NotImplemented:
                return y
        if has_torch_function_unary(input):
            return handle_torch_function(function, (input,), input, dim=dim, _stacklevel=_stacklevel, dtype=dtype, out=out)
        if not isinstance(input, Tensor):
            raise AttributeError(f"input: is {type(input).__name__}, allowed: Tensor")
        if dim is None:
            dim = _get_softmax_dim(name, input.dim(), _stacklevel)
        y = _run(rule, name, input, dim, dtype, out)
        return kept(y) if entered else y
    return named(function, name, help)


softmax = _made(SOFTMAX, "softmax", """exp(x) / sum exp(x) along one dimension: torch.nn.functional.softmax. As there, the result is
contiguous whatever the format of the input, which is read as it lies. `out` may be the input itself.

    >>> weft.functional.softmax(torch.zeros(2, 4), dim=1)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
""")
log_softmax = _made(LOG_SOFTMAX, "log_softmax", """x - log sum exp(x) along one dimension: torch.nn.functional.log_softmax. The result is contiguous;
`out` may be the input itself.

    >>> weft.functional.log_softmax(torch.tensor([[1000.0, 0.0]]), dim=1)
    tensor([[    0., -1000.]])
""")
