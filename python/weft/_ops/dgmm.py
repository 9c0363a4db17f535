"""Matrices times a diagonal: derivatives and batching of weft::dgmm, cdgmm and their gradients."""
from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .._core.rules import Rule, call, mapped
from ._derived import adjoint, derived, wide

WANT_INPUT, WANT_X = 1, 2


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
    y = torch.mul(a, v, out=a.new_empty(a.shape))   # contiguous
    return torch.view_as_real(y) if _pair(complex, input) else y


def _by_torch_backward(complex, grad, input, x, side, want):
    """dx = sum of grad * conj(input) over all axes but that of x"""
    g, a, length = _numbers(complex, grad), _numbers(complex, input), x.shape[0]
    da = _by_torch(complex, grad, x, side, True) if want & WANT_INPUT else None
    if not want & WANT_X:
        return da, None
    kept = a.dim() - (1 if side != "left" and (side or length == a.shape[-1]) else 2)
    dx = (a.conj_physical().mul_(g) if complex else a * g).sum([axis for axis in range(a.dim()) if axis != kept])
    return da, torch.view_as_real(dx) if _pair(complex, input) else dx


# ---------------------------------------------------------------------------------------------- rules

def _rules(name: str, complex: bool) -> tuple[Rule, Rule]:
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
    forward = Rule(name, 2, save, gradient, tangent, mapped(name, 2, 1, lambda side: 64), by_torch=by_torch, plain=by_torch)   # any dimensions in front
    backward = Rule(f"{name}_backward", 3, *derived(backward_formula, 3), mapped(f"{name}_backward", 3, 0), by_torch=partial(_by_torch_backward, complex))
    return forward, backward


dgmm, dgmm_backward = _rules("dgmm", False)
cdgmm, cdgmm_backward = _rules("cdgmm", True)
