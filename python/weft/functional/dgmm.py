"""Matrices times a diagonal matrix, of real and of complex numbers: the functions, and the rules of weft::dgmm, cdgmm and their gradients."""
from __future__ import annotations

from functools import partial
from typing import Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import any_autocast, autocast_dtype, grad_enabled, in_dynamo, need_tensors
from .._core.entry import front, kept
from .._core.rules import Rule, adjoint, call, call_into, derived, mapped, wide

__all__ = ["dgmm", "cdgmm"]

WANT_INPUT, WANT_X = 1, 2
_SIDES = {None: "", "left": "left", "right": "right"}


def _pair(complex: bool, t: Tensor) -> int:
    """1 where the last axis holds the halves of complex numbers."""
    return int(complex and not t.dtype.is_complex)


def product(complex, input, x, side):
    """By PyTorch, which has complex numbers of float32 and float64 only."""
    a, v, pair = wide(input), wide(x), _pair(complex, input)
    if side == "left" or (not side and x.shape[0] != input.shape[-1 - pair]):
        v = v.unsqueeze(-1 - pair)
    if pair:
        return torch.stack((a[..., 0] * v[..., 0] - a[..., 1] * v[..., 1], a[..., 0] * v[..., 1] + a[..., 1] * v[..., 0]), -1).to(input.dtype)
    return (a * v).to(input.dtype)


def _numbers(complex, t):
    """As PyTorch multiplies them: pairs as complex numbers."""
    return torch.view_as_complex(t) if _pair(complex, t) else t


def _by_torch(complex, input, x, side, conjugate=False):
    a, v = _numbers(complex, input), _numbers(complex, x)
    v = v.conj_physical() if conjugate and complex else v
    v = v if side != "left" and (side or v.shape[0] == a.shape[-1]) else v.unsqueeze(-1)
    y = torch.mul(a, v, out=None if a.is_contiguous() or grad_enabled() else a.new_empty(a.shape)).contiguous()
    return torch.view_as_real(y) if _pair(complex, input) else y


def _native(complex, input, x, side):
    """Not for 16 bits: PyTorch rounds what the gradient of x sums up."""
    return NotImplemented if input.dtype in (torch.float16, torch.bfloat16) else _by_torch(complex, input, x, side)


def _by_torch_backward(complex, grad, input, x, side, want):
    """dx = sum of grad * conj(input) over all axes but that of x"""
    g, a, length = _numbers(complex, grad), _numbers(complex, input), x.shape[0]
    da = _by_torch(complex, grad, x, side, True) if want & WANT_INPUT else None
    if not want & WANT_X:
        return da, None
    kept = a.dim() - (1 if side != "left" and (side or length == a.shape[-1]) else 2)
    dx = (a.conj_physical().mul_(g) if complex else a * g).sum([axis for axis in range(a.dim()) if axis != kept])
    return da, torch.view_as_real(dx) if _pair(complex, input) else dx


def _rules(name: str, complex: bool) -> Rule:
    """Of the product and of its gradient; returns the first."""
    formula = partial(product, complex)

    def backward_formula(grad, input, x, side, want):
        da, dv = adjoint(formula, 2)(grad, input, x, side)
        return da if want & WANT_INPUT else None, dv if want & WANT_X else None

    def gradient(ctx, grad):
        a, v = ctx.needs_input_grad[:2]
        if grad is None:
            return None, None
        da, dv = call(backward, grad, *ctx.saved_tensors, *ctx.settings, a * WANT_INPUT + v * WANT_X)
        return da if a else None, dv if v else None
    save, _, tangent = derived(formula, 2)
    by_torch = partial(_by_torch, complex)
    forward = Rule(name, 2, save, gradient, tangent, mapped(name, 2, 1, lambda side: 64), by_torch=by_torch,
                   native=partial(_native, complex), plain=by_torch)   # any dimensions in front
    backward = Rule(f"{name}_backward", 3, *derived(backward_formula, 3), mapped(f"{name}_backward", 3, 0), by_torch=partial(_by_torch_backward, complex))
    return forward


DGMM, CDGMM = _rules("dgmm", False), _rules("cdgmm", True)
_dgmm = front("dgmm", partial(_by_torch, False))   # none of cdgmm: whether PyTorch takes a pair depends on where its memory begins


# ---------------------------------------------------------------------------------------------- the functions

def _run(rule: Rule, name: str, input: Tensor, x: Tensor, side: Optional[str], out: Optional[Tensor]) -> Tensor:
    if has_torch_function_variadic(input, x):
        return handle_torch_function(globals()[name], (input, x), input, x, side, out=out)
    word = _SIDES.get(side) if side is None or isinstance(side, str) else None
    if word is None or not isinstance(input, Tensor) or not isinstance(x, Tensor):
        need_tensors(name + ": {} is", {"input": input, "x": x})
        raise ValueError(f"{name}: side is {side!r}, allowed: None, 'left' or 'right'")
    if any_autocast() and input.dtype != x.dtype and autocast_dtype(input.device) is not None:
        dtype = torch.promote_types(input.dtype, x.dtype)   # the product of a 16-bit tensor and a float32 one is of the wider type, as PyTorch's is
        input, x = input.to(dtype), x.to(dtype)
    if out is not None:
        return call_into(rule, out, input, x, word)
    y = call(rule, input, x, word)
    return y if in_dynamo() else kept(y)


def dgmm(input: Tensor, x: Tensor, side: Optional[str] = None, *, out: Optional[Tensor] = None) -> Tensor:
    """A matrix times a diagonal one. input is (..., rows, columns), x the diagonal.

    side 'right' is input . diag(x), one factor a column; 'left' is diag(x) . input, one factor a row. None takes the side that the length of
    x fits, and the columns where it fits both.

        >>> weft.dgmm(torch.ones(2, 3), torch.tensor([1.0, 2.0, 3.0]))
        tensor([[1., 2., 3.],
                [1., 2., 3.]])
    """
    if out is None and not in_dynamo():
        y = _dgmm(input, x, side)
        if y is not NotImplemented:
            return y
    return _run(DGMM, "dgmm", input, x, side, out)


def cdgmm(input: Tensor, x: Tensor, side: Optional[str] = None, *, out: Optional[Tensor] = None) -> Tensor:
    """dgmm of complex numbers: complex64 or complex128 tensors, or real ones whose last dimension is 2, the halves of a number.

        >>> a, x = torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]), torch.tensor([[0.0, 1.0], [2.0, 0.0]])   # (1, 2, 2) and (2, 2)
        >>> weft.cdgmm(a, x)
        tensor([[[-2.,  1.],
                 [ 0.,  2.]]])
    """
    return _run(CDGMM, "cdgmm", input, x, side, out)
