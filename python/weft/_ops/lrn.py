"""Local response normalisation: shapes, derivatives and batching of weft::lrn and lrn_backward.

With q = k + alpha / size * W(x^2), W the sum over the window of channels and V its transpose, c = 2 alpha beta / size:
    y = x q^-beta        dx = dy q^-beta - c x V(dy x q^(-beta-1))
"""
from __future__ import annotations

import torch
from torch import Tensor

from .._rules import Rule, call


# ---------------------------------------------------------------------------------------------- derivatives

def _wide(t: Tensor) -> Tensor:
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


class _Frame:
    """The formulas at one point, in float32 or wider."""

    def __init__(self, input: Tensor, size: int, alpha: float, beta: float, k: float) -> None:
        self.x, self.beta = _wide(input), beta
        most = max(input.shape[1] - 1, 0)   # what a window reaches beyond the channels counts for nothing
        self.below, self.above = min(size // 2, most), min((size - 1) // 2, most)
        self.slope = 2 * alpha / size
        self.q = k + alpha / size * self.window(self.x * self.x)
        self.c = self.slope * beta

    def _around(self, t: Tensor, below: int, above: int) -> Tensor:
        return torch.nn.functional.pad(t, (*(0, 0) * (t.dim() - 2), below, above)).unfold(1, below + above + 1, 1).sum(-1)

    def window(self, t: Tensor) -> Tensor:
        return self._around(t, self.below, self.above)

    def transposed(self, t: Tensor) -> Tensor:
        return self._around(t, self.above, self.below)

    def of_result(self, u: Tensor) -> Tensor:
        """What a step u of the data does to y: u q^-beta - c x q^(-beta-1) W(x u)."""
        return u * self.q.pow(-self.beta) - self.c * self.x * self.q.pow(-self.beta - 1) * self.window(self.x * u)

    def of_gradient(self, dy: Tensor) -> Tensor:
        """dx, linear in dy."""
        return dy * self.q.pow(-self.beta) - self.c * self.x * self.transposed(dy * self.x * self.q.pow(-self.beta - 1))

    def of_data(self, dy: Tensor, u: Tensor) -> Tensor:
        """What a step u of the data does to dx; and, as the slope is symmetric, the gradient of <u, dx> in the data. With s = W(x u):
        2 alpha / size * x V((c (beta + 1) x s / q - beta u) dy q^(-beta-1)) - c (s dy q^(-beta-1) + u V(dy x q^(-beta-1)))."""
        s, scaled = self.window(self.x * u), dy * self.q.pow(-self.beta - 1)
        through_q = self.transposed((self.c * (self.beta + 1) * self.x * s / self.q - self.beta * u) * scaled)
        return self.slope * self.x * through_q - self.c * (s * scaled + u * self.transposed(scaled * self.x))


def _save_lrn(ctx, inputs, output):
    ctx.rest = inputs[1:]
    return inputs[:1]


def _gradient_of_lrn(ctx, grad):
    return (call(lrn_backward, grad, *ctx.saved_tensors, *ctx.rest),)


def _tangent_of_lrn(ctx, input, dx):
    return _Frame(input, *ctx.rest).of_result(_wide(dx)).to(input.dtype)


def _save_backward(ctx, inputs, output):
    ctx.rest = inputs[2:]
    return inputs[:2]


def _gradient_of_backward(ctx, ddx):
    grad, input = ctx.saved_tensors
    frame, ddx = _Frame(input, *ctx.rest), _wide(ddx)
    of_grad, of_input = ctx.needs_input_grad[:2]
    return (frame.of_result(ddx).to(grad.dtype) if of_grad else None, frame.of_data(_wide(grad), ddx).to(input.dtype) if of_input else None)


def _tangent_of_backward(ctx, grad, input, ddy, dx):
    frame = _Frame(input, *ctx.rest)
    moved = [] if ddy is None else [frame.of_gradient(_wide(ddy))]
    moved += [] if dx is None else [frame.of_data(_wide(grad), _wide(dx))]
    return sum(moved[1:], moved[0]).to(input.dtype)


# ---------------------------------------------------------------------------------------------- batching

def _batches(rule: str, tensors: int):
    """A batch of batches is a larger batch."""
    def batch(info, in_dims, *args):
        data = [t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(args[:tensors], in_dims)]
        shape = data[0].shape[:2]
        return call(globals()[rule], *(t.flatten(0, 1) for t in data), *args[tensors:]).unflatten(0, shape), 0
    return batch


lrn = Rule("lrn", 1, _save_lrn, _gradient_of_lrn, _tangent_of_lrn, _batches("lrn", 1))
lrn_backward = Rule("lrn_backward", 2, _save_backward, _gradient_of_backward, _tangent_of_backward, _batches("lrn_backward", 2))
