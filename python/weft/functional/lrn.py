"""Local response normalisation: the function, and derivatives and batching of weft::lrn and lrn_backward."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import NoTensor, flattened, foreign, left_to_torch, raised, whole
from .._core.derived import adjoint, derived, wide
from .._core.rules import Rule, call, call_into, mapped
from .._core.state import is_compiling

__all__ = ["local_response_norm"]

_INF = float("inf")


def _formula(input, size, alpha, beta, k):
    """What a window reaches beyond the channels counts for nothing."""
    few = min(size, 2 * input.shape[1] + 1) if isinstance(input.shape[1], int) else size
    return torch.nn.functional.local_response_norm(wide(input), few, alpha * few / size, beta, k).to(input.dtype)


def _gradient(ctx, grad):
    return None if grad is None else call(LRN_BACKWARD, grad, *ctx.saved_tensors, *ctx.settings),


_save, _, _tangent = derived(_formula, 1)
LRN = Rule("lrn", 1, _save, _gradient, _tangent, mapped("lrn"))
LRN_BACKWARD = Rule("lrn_backward", 2, *derived(adjoint(_formula, 1), 2), mapped("lrn_backward", 2))


def _own(value: Any) -> bool:
    """A number that weft's kernels take: real and finite."""
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and -_INF < value < _INF


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, *, out: Optional[Tensor] = None) -> Tensor:
    """Divide by a power of the energy of `size` channels around each: torch.nn.functional.local_response_norm.

        >>> weft.functional.local_response_norm(torch.randn(2, 8, 16, 16), 5).shape
        torch.Size([2, 8, 16, 16])
    """
    if has_torch_function_unary(input):
        return handle_torch_function(local_response_norm, (input,), input, size, alpha=alpha, beta=beta, k=k, out=out)
    if not isinstance(input, Tensor):
        raise NoTensor(f"local_response_norm: input is {type(input).__name__}, allowed: Tensor")
    rank = input.dim()
    if rank < 3:
        raise ValueError(f"local_response_norm: input has {rank} dimensions {list(input.shape)}, allowed: 3 or more")
    if not is_compiling() and input.numel() == 0 and out is None:
        return input   # as PyTorch does, whatever the settings; in a trace the operator takes what is empty
    if type(size) is not int:
        width = whole(size)
        if width is None:
            raise TypeError(f"local_response_norm: size is {size!r}, allowed: an int")
        size = width
    if foreign(input) or not (_own(alpha) and _own(beta) and _own(k)):
        for name, value in (("alpha", alpha), ("beta", beta), ("k", k)):
            if not isinstance(value, (int, float, complex, Tensor)):
                raise TypeError(f"local_response_norm: {name} is {value!r}, allowed: a float")
        return left_to_torch("local_response_norm", out, input, size, alpha, beta, k, also=", finite numbers")
    if rank > 3 or input.is_cuda:   # PyTorch's averages over three axes, and its powers on CUDA, are float32 under autocast
        input, = raised(input)
    if rank > 5:
        flat, into = flattened(input, out)
        y = local_response_norm(flat, size, alpha, beta, k, out=into)
        return y.view(input.shape) if out is None else out
    args = (input, size, float(alpha), float(beta), float(k))
    return call(LRN, *args) if out is None else call_into(LRN, out, *args)
