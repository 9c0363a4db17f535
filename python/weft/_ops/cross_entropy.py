"""Cross entropy and its gradient: shapes, derivatives and batching of weft::cross_entropy and cross_entropy_backward.

With x the logits of a row, p = softmax(x), l = log softmax(x), a the share of each class in its loss (src/ref/cross_entropy.h has it),
A the sum of the shares, g the gradient of the row's loss (divided by the weights of all rows for the mean) and <.,.> a sum over classes:
    loss = -<a, l>        dx = g (p A - a)        of the shares: da = -g l
Probabilities t and class weights w have gradients through a = w b, b = (1 - s) t + s / C; class labels do not, nor w with them.
"""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._rules import Rule, call
from .softmax import softmax

NONE, MEAN, SUM = range(3)
WEIGHT_WITH_CLASSES = "weight: requires grad and target has classes, allowed: a gradient of weight only with probabilities"


# ---------------------------------------------------------------------------------------------- shapes

def _classes_at(input: Tensor) -> int:
    return 1 if input.dim() > 1 else 0


def _rows(input: Tensor) -> tuple[Any, ...]:
    """The shape of one value a row."""
    return (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()


# ---------------------------------------------------------------------------------------------- the parts of the formulas

class _Parts:
    """What the formulas above are made of, in operators of PyTorch, so that they have derivatives of every order."""

    def __init__(self, input: Tensor, target: Tensor, weight: Tensor | None, settings: tuple) -> None:
        ignore_index, self.reduction, self.smoothing = settings
        self.at = _classes_at(input)
        self.input, self.classes, self.probs = input, input.shape[self.at], target.dtype == input.dtype
        self.weight = None if weight is None else weight.view(-1, *[1] * (input.dim() - 1 - self.at))
        if self.probs:
            self.counts, self.unweighted = None, self._smooth(target)
            self.shares = self._weigh(self.unweighted)
            return
        self.counts = (target != ignore_index).unsqueeze(self.at)
        label = target.unsqueeze(self.at).where(self.counts, 0)
        one = torch.zeros_like(input).scatter(self.at, label, 1.0)
        self.own = self._weigh(one) * self.counts
        self.shares = self._weigh(self._smooth(one)) * self.counts if weight is None or not self.smoothing else \
            (self.own * (1 - self.smoothing) + self.weight * (self.smoothing / self.classes)) * self.counts

    def _smooth(self, t: Tensor) -> Tensor:
        return t * (1 - self.smoothing) + self.smoothing / self.classes if self.smoothing else t

    def _weigh(self, t: Tensor) -> Tensor:
        return t if self.weight is None else t * self.weight

    def sum(self, t: Tensor) -> Tensor:
        return t.sum(self.at, True)

    def total(self) -> Any:
        """What the mean divides by."""
        return math.prod(_rows(self.input)) if self.probs else self.own.sum()

    def spread(self, grad: Tensor) -> Tensor:
        """g of every row. An ignored row has none, though its weights may be all that the mean has: 0."""
        g = grad.unsqueeze(self.at) if self.reduction == NONE else grad / self.total() if self.reduction == MEAN else grad
        return g if self.counts is None else g.where(self.counts, 0)

    def reduce(self, losses: Tensor) -> Tensor:
        """The adjoint of spread."""
        losses = losses if self.counts is None else losses.where(self.counts, 0)
        if self.reduction == NONE:
            return losses.squeeze(self.at)
        return losses.sum() / self.total() if self.reduction == MEAN else losses.sum()

    def softmax(self) -> Tensor:
        return call(softmax, self.input, self.at, self.input.dtype)

    def to_target_and_weight(self, da: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor | None, Tensor | None]:
        """From the gradient of the shares; of labels there is none, and none of the weights with them."""
        if not self.probs:
            if wanted[1]:
                raise RuntimeError(WEIGHT_WITH_CLASSES)
            return None, None
        of_target = self._weigh(da) * (1 - self.smoothing) if wanted[0] else None
        return of_target, (da * self.unweighted).movedim(self.at, 0).reshape(self.classes, -1).sum(1) if wanted[1] else None

    def moved_shares(self, dt: Tensor | None, dw: Tensor | None) -> Tensor | None:
        """What small steps of probabilities and weights do to the shares."""
        moved = None
        if dt is not None and self.probs:
            moved = self._weigh(dt) * (1 - self.smoothing)
        if dw is not None and self.probs:
            more = self.unweighted * dw.view(self.weight.shape)
            moved = more if moved is None else moved + more
        return moved


# ---------------------------------------------------------------------------------------------- derivatives

def _save(ctx, inputs, output):
    ctx.settings = inputs[3:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    return (*inputs[:3], output[1])


def _gradient(ctx, grad, _):
    if grad is None:
        return None, None, None
    input, target, weight, lse = ctx.saved_tensors
    x, t, w = ctx.needs_input_grad[:3]
    dx = call(cross_entropy_backward, grad, input, target, weight, lse, *ctx.settings) if x else None
    if not (t or w):
        return dx, None, None
    parts = _Parts(input, target, weight, ctx.settings)
    return dx, *parts.to_target_and_weight(parts.spread(grad) * -torch.log_softmax(input, parts.at), (t, w))


def _tangent(ctx, input, target, weight, lse, dx, dt, dw):
    parts = _Parts(input, target, weight, ctx.settings)
    moved, da = torch.zeros_like(lse, dtype=input.dtype).unsqueeze(parts.at), parts.moved_shares(dt, dw)
    if dx is not None:
        moved = moved + parts.sum((parts.softmax() * parts.sum(parts.shares) - parts.shares) * dx)
    if da is not None:
        moved = moved - parts.sum(torch.log_softmax(input, parts.at) * da)
    return parts.reduce(moved), None


def _save_backward(ctx, inputs, output):
    ctx.settings = inputs[5:]
    return inputs[:5]


def _gradient_of_backward(ctx, v):
    """dx is a function of g, x and the shares; lse follows from x. With m = <p, v>:
    of g: A m - <a, v>;   of x: g A p (v - m);   of the shares: g (m - v)."""
    grad, input, target, weight, _ = ctx.saved_tensors
    of_g, of_x, *others = ctx.needs_input_grad[:4]
    parts = _Parts(input, target, weight, ctx.settings)
    p, all_shares, g = parts.softmax(), parts.sum(parts.shares), parts.spread(grad)
    m = parts.sum(p * v)
    return (parts.reduce(all_shares * m - parts.sum(parts.shares * v)) if of_g else None,
            g * all_shares * p * (v - m) if of_x else None,
            *(parts.to_target_and_weight(g * (m - v), others) if any(others) else (None, None)), None)


def _tangent_of_backward(ctx, grad, input, target, weight, lse, dgrad, dx, dt, dw, dlse):
    parts = _Parts(input, target, weight, ctx.settings)
    p, all_shares, g, da = parts.softmax(), parts.sum(parts.shares), parts.spread(grad), parts.moved_shares(dt, dw)
    moved = torch.zeros_like(input)
    if dgrad is not None:
        moved = moved + parts.spread(dgrad) * (p * all_shares - parts.shares)
    if dx is not None:
        moved = moved + g * all_shares * p * (dx - parts.sum(p * dx))
    return moved if da is None else moved + g * (p * parts.sum(da) - da)


# ---------------------------------------------------------------------------------------------- batching

def _joined(t: Tensor, at: int | None, size: int, batched: bool) -> Tensor:
    """The batch of vmap joined to the batch that is there, or as the batch."""
    t = t.unsqueeze(0).expand(size, *t.shape) if at is None else t.movedim(at, 0)
    return t.flatten(0, 1) if batched else t


def _totals(input: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, size: int) -> Any:
    """What the mean divides by, for each of the batch of vmap."""
    if target.dtype == input.dtype:
        return math.prod(_rows(input)) // size
    counts = target != ignore_index
    weights = counts.to(input.dtype) if weight is None else weight[target.where(counts, 0)] * counts
    return weights.reshape(size, -1).sum(1)


def _check_weight(name: str, at: int | None) -> None:
    if at is not None:
        raise RuntimeError(f"weft::{name}: weight: cannot be mapped over a dimension by torch.vmap, allowed: one for the whole batch")


def _batch(info, in_dims, input, target, weight, ignore_index, reduction, label_smoothing):
    _check_weight("cross_entropy", in_dims[2])
    size, batched = info.batch_size, input.dim() - (in_dims[0] is not None) > 1
    x, t = _joined(input, in_dims[0], size, batched), _joined(target, in_dims[1], size, batched)
    loss, lse = (r.unflatten(0, (size, -1)) if batched else r for r in call(cross_entropy, x, t, weight, ignore_index, NONE, label_smoothing))
    if reduction != NONE:
        loss = loss.reshape(size, -1).sum(1)
    if reduction == MEAN:
        loss = loss / _totals(x, t, weight, ignore_index, size)
    return (loss, lse), (0, 0)


def _batch_backward(info, in_dims, grad_output, input, target, weight, lse, ignore_index, reduction, label_smoothing):
    _check_weight("cross_entropy_backward", in_dims[3])
    size, batched = info.batch_size, input.dim() - (in_dims[1] is not None) > 1
    x, t, kept = (_joined(value, at, size, batched) for value, at in ((input, in_dims[1]), (target, in_dims[2]), (lse, in_dims[4])))
    grad = _joined(grad_output, in_dims[0], size, batched and reduction == NONE)
    if reduction == MEAN:
        grad = grad / _totals(x, t, weight, ignore_index, size)
    if reduction != NONE and batched:
        grad = grad.view(size, 1).expand(size, x.shape[0] // size).flatten().view(-1, *[1] * (kept.dim() - 1)).expand(kept.shape)
    dx = call(cross_entropy_backward, grad, x, t, weight, kept, ignore_index, NONE, label_smoothing)
    return (dx.unflatten(0, (size, -1)) if batched else dx), 0


cross_entropy = Rule("cross_entropy", 3, _save, _gradient, _tangent, _batch)
cross_entropy_backward = Rule("cross_entropy_backward", 5, _save_backward, _gradient_of_backward, _tangent_of_backward, _batch_backward)
