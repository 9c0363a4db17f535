"""Matrices times a diagonal: derivatives and batching of weft::dgmm, cdgmm and their gradients."""
from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from .._core.rules import Rule, call, in_front
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


# ---------------------------------------------------------------------------------------------- batching

class _Batch:
    """Matrices with a diagonal each are one matrix with a long one: the batch goes beside the columns, or beside the rows."""

    of_forward: Rule
    of_backward: Rule

    def __init__(self, complex: bool) -> None:
        self.complex = complex

    def _side(self, input, x, side):
        return side or ("right" if x.shape[1] == input.shape[-1 - _pair(self.complex, input)] else "left")

    def _axis(self, t, side):
        """That of the columns or rows that x has numbers for."""
        return t.dim() - (1 if side == "right" else 2) - _pair(self.complex, t)

    def _beside(self, t, side):
        axis = self._axis(t, side)
        return t.movedim(0, axis - 1).flatten(axis - 1, axis)

    def _apart(self, t, side, size):
        axis = self._axis(t, side)
        return t.unflatten(axis, (size, -1)).movedim(axis, 0)

    def forward(self, info, in_dims, input, x, side):
        size = info.batch_size
        if in_dims[1] is None:
            return call(self.of_forward, input.movedim(in_dims[0], 0), x, side), 0
        a, v = (in_front(t, d, size) for t, d in zip((input, x), in_dims))
        side = self._side(a, v, side)
        return self._apart(call(self.of_forward, self._beside(a, side), v.flatten(0, 1), side), side, size), 0

    def backward(self, info, in_dims, grad, input, x, side, want):
        size = info.batch_size
        g, a, v = (in_front(t, d, size) for t, d in zip((grad, input, x), in_dims))
        side = self._side(a, v, side)
        da, dv = call(self.of_backward, self._beside(g, side), self._beside(a, side), v.flatten(0, 1), side, want)
        da = self._apart(da, side, size) if want & WANT_INPUT else da
        dv = dv.unflatten(0, (size, -1)) if want & WANT_X else dv
        return (da, dv), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_X))


def _rules(name: str, complex: bool) -> tuple[Rule, Rule]:
    formula, batch = partial(product, complex), _Batch(complex)

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
    forward = batch.of_forward = Rule(name, 2, save, gradient, tangent, batch.forward, by_torch=partial(_by_torch, complex),
                                    plain=partial(_by_torch, complex))
    backward = batch.of_backward = Rule(f"{name}_backward", 3, *derived(backward_formula, 3), batch.backward,
                                          by_torch=partial(_by_torch_backward, complex))
    return forward, backward


dgmm, dgmm_backward = _rules("dgmm", False)
cdgmm, cdgmm_backward = _rules("cdgmm", True)
