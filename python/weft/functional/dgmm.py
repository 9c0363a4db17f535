"""Matrices times a diagonal matrix, of real and of complex numbers."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import autocast_dtype
from .._ops import dgmm as _ops
from .._core.rules import Rule, call, call_into

__all__ = ["dgmm", "cdgmm"]

_SIDES = {None: "", "left": "left", "right": "right"}
_any_autocast = torch._C._is_any_autocast_enabled


def _complain(name: str, input: Any, x: Any, side: Any) -> None:
    for argument, t in (("input", input), ("x", x)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: {argument} is {type(t).__name__}, allowed: Tensor")
    raise ValueError(f"{name}: side is {side!r}, allowed: None, 'left' or 'right'")


def _promoted(input: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Under autocast a 16-bit tensor may meet a float32 one: the product is then of the wider type, as PyTorch's is."""
    if input.dtype == x.dtype or autocast_dtype(input.device) is None:
        return input, x
    dtype = torch.promote_types(input.dtype, x.dtype)
    return input.to(dtype), x.to(dtype)


def _run(rule: Rule, name: str, input: Tensor, x: Tensor, side: Optional[str], out: Optional[Tensor]) -> Tensor:
    if has_torch_function_variadic(input, x):
        return handle_torch_function(globals()[name], (input, x), input, x, side, out=out)
    word = _SIDES.get(side) if side is None or isinstance(side, str) else None
    if word is None or not isinstance(input, Tensor) or not isinstance(x, Tensor):
        _complain(name, input, x, side)
    if _any_autocast():
        input, x = _promoted(input, x)
    return call(rule, input, x, word) if out is None else call_into(rule, out, input, x, word)


def dgmm(input: Tensor, x: Tensor, side: Optional[str] = None, *, out: Optional[Tensor] = None) -> Tensor:
    """A matrix times a diagonal one. input is (..., rows, columns), x the diagonal.

    side 'right' is input . diag(x), one factor a column; 'left' is diag(x) . input, one factor a row. None takes the side that the length of
    x fits, and the columns where it fits both.

        >>> weft.dgmm(torch.ones(2, 3), torch.tensor([1.0, 2.0, 3.0]))
        tensor([[1., 2., 3.],
                [1., 2., 3.]])
    """
    return _run(_ops.dgmm, "dgmm", input, x, side, out)


def cdgmm(input: Tensor, x: Tensor, side: Optional[str] = None, *, out: Optional[Tensor] = None) -> Tensor:
    """dgmm of complex numbers: complex64 or complex128 tensors, or real ones whose last dimension is 2, the halves of a number.

        >>> a, x = torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]])   # (1, 2, 2) and (2, 2)
        >>> weft.cdgmm(a, x)
        tensor([[[-2.,  1.],
                 [ 0.,  2.]]])
    """
    return _run(_ops.cdgmm, "cdgmm", input, x, side, out)
