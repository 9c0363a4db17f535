"""Matrices times a diagonal: derivatives and batching of weft::dgmm, cdgmm and their gradients.

y = a v, where v is the number of x that belongs to the row or column. The operators are bilinear; gradients take the conjugate of the other
factor, which is PyTorch's convention and, of pairs, plain calculus."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._rules import Rule, call

WANT_INPUT, WANT_X = 1, 2
_COMPLEX = (torch.complex64, torch.complex128)


# ---------------------------------------------------------------------------------------------- shapes

def _pair(complex: bool, t: Tensor) -> int:
    """1 where the last axis holds the halves of complex numbers."""
    return int(complex and not t.dtype.is_complex)


# ---------------------------------------------------------------------------------------------- derivatives

def _sum(*terms: Any) -> Any:
    """Of those that are there; None without one."""
    total = None
    for t in terms:
        total = t if total is None else total if t is None else total + t
    return total


class _Derivatives:
    """Those of one operator; forward and backward are its two rules, set once they exist."""

    forward: Rule
    backward: Rule

    @staticmethod
    def save(ctx, inputs, output):
        ctx.side = inputs[2]
        return inputs[:2]

    def gradient(self, ctx, grad):
        input, x = ctx.saved_tensors
        a, v = ctx.needs_input_grad[:2]
        da, dv = call(self.backward, grad, input, x, ctx.side, a * WANT_INPUT + v * WANT_X)
        return da if a else None, dv if v else None

    def moved(self, side, input, x, da, dv):
        """What small steps of input and x, each may be None, do to the result."""
        return _sum(None if da is None else call(self.forward, da, x, side), None if dv is None else call(self.forward, input, dv, side))

    def tangent(self, ctx, input, x, da, dv):
        return self.moved(ctx.side, input, x, da, dv)

    @staticmethod
    def save_backward(ctx, inputs, output):
        ctx.side, ctx.want = inputs[3:]
        ctx.set_materialize_grads(False)
        return inputs[:3]

    def part(self, which, *args):
        """One of the two gradients; None if a tensor that it needs is."""
        return None if any(t is None for t in args[:3]) else call(self.backward, *args, which)[which - 1]

    def gradient_of_backward(self, ctx, dda, ddv):
        """With g the gradient of y: da = g conj(v), dv = sum g conj(a), so that
        of g: dda v + a ddv;  of a: g conj(ddv);  of v: sum g conj(dda)."""
        grad, input, x = ctx.saved_tensors
        dda, ddv = dda if ctx.want & WANT_INPUT else None, ddv if ctx.want & WANT_X else None
        of_grad, of_input, of_x = ctx.needs_input_grad[:3]
        return (self.moved(ctx.side, input, x, dda, ddv) if of_grad else None,
                self.part(WANT_INPUT, grad, input, ddv, ctx.side) if of_input else None,
                self.part(WANT_X, grad, dda, x, ctx.side) if of_x else None)

    def tangent_of_backward(self, ctx, grad, input, x, dg, da, dv):
        moved = []
        for which, like, args in ((WANT_INPUT, input, (grad, input, dv)), (WANT_X, x, (grad, da, x))):
            wanted = ctx.want & which
            step = _sum(self.part(which, dg, input, x, ctx.side), self.part(which, *args, ctx.side)) if wanted else None
            moved.append(like.new_zeros(like.shape if wanted else (0,)) if step is None else step)   # torch.func wants a tangent of every result
        return tuple(moved)


# ---------------------------------------------------------------------------------------------- batching

def _in_front(t: Tensor, dim: int | None, size: int) -> Tensor:
    return t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)


class _Batch:
    """Matrices with a diagonal each are one matrix with a long one: the batch goes beside the columns, or beside the rows."""

    def __init__(self, complex: bool, derivatives: _Derivatives) -> None:
        self.complex, self.rules = complex, derivatives

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
            return call(self.rules.forward, input.movedim(in_dims[0], 0), x, side), 0
        a, v = (_in_front(t, d, size) for t, d in zip((input, x), in_dims))
        side = self._side(a, v, side)
        return self._apart(call(self.rules.forward, self._beside(a, side), v.flatten(0, 1), side), side, size), 0

    def backward(self, info, in_dims, grad, input, x, side, want):
        size = info.batch_size
        g, a, v = (_in_front(t, d, size) for t, d in zip((grad, input, x), in_dims))
        side = self._side(a, v, side)
        da, dv = call(self.rules.backward, self._beside(g, side), self._beside(a, side), v.flatten(0, 1), side, want)
        da = self._apart(da, side, size) if want & WANT_INPUT else da
        dv = dv.unflatten(0, (size, -1)) if want & WANT_X else dv
        return (da, dv), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_X))


def _rules(name: str, complex: bool) -> tuple[Rule, Rule]:
    d = _Derivatives()
    batch = _Batch(complex, d)
    d.forward = Rule(name, 2, d.save, d.gradient, d.tangent, batch.forward)
    d.backward = Rule(f"{name}_backward", 3, d.save_backward, d.gradient_of_backward, d.tangent_of_backward, batch.backward)
    return d.forward, d.backward


dgmm, dgmm_backward = _rules("dgmm", False)
cdgmm, cdgmm_backward = _rules("cdgmm", True)
