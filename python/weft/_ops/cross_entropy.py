"""Cross entropy and its gradient: derivatives and batching of weft::cross_entropy and cross_entropy_backward."""
from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._core.rules import Rule, call, in_front
from ._derived import adjoint, derived, gradients, tangents, wide

_aten = torch.ops.aten
NONE, MEAN, SUM = range(3)
_REDUCTIONS = ("none", "mean", "sum")
WEIGHT_WITH_CLASSES = "weight: requires grad and target has classes, allowed: a gradient of weight only with probabilities"


# ---------------------------------------------------------------------------------------------- derivatives

def _formula(input, target, weight, ignore_index, reduction, label_smoothing):
    """Class labels have no derivative, nor have weights with them. Probabilities by sums: PyTorch's own function of them does not take symbolic sizes
    before 2.13."""
    x = wide(input)
    if not target.is_floating_point():
        loss = torch.nn.functional.cross_entropy(x, target, None if weight is None else wide(weight.detach()), ignore_index=ignore_index,
                                                 reduction=_REDUCTIONS[reduction], label_smoothing=label_smoothing)
        return loss.to(input.dtype)
    classes = 1 if x.dim() > 1 else 0
    shares = wide(target)
    if label_smoothing:
        shares = shares * (1 - label_smoothing) + label_smoothing / x.shape[classes]
    if weight is not None:
        shares = shares * wide(weight).view(-1, *[1] * (x.dim() - classes - 1))
    loss = -(torch.log_softmax(x, classes) * shares).sum(classes)
    return (loss if reduction == NONE else loss.mean() if reduction == MEAN else loss.sum()).to(input.dtype)


def _backward(grad, input, target, weight, lse, *settings):
    """lse follows from the input."""
    return adjoint(_formula, 1)(grad, input, target, weight, *settings)[0]


def _save(ctx, inputs, output):
    ctx.settings = inputs[3:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    return (*inputs[:3], output[1])


def _gradient(ctx, grad, _):
    """Probabilities and class weights beside them have gradients; class labels do not, nor weights with them."""
    if grad is None:
        return None, None, None
    input, target, weight, lse = ctx.saved_tensors
    x, t, w = ctx.needs_input_grad[:3]
    if w and not target.is_floating_point():
        raise RuntimeError(WEIGHT_WITH_CLASSES)
    dx = call(cross_entropy_backward, grad, input, target, weight, lse, *ctx.settings) if x else None
    return dx, *gradients(_formula, (input, target, weight), ctx.settings, (grad,), (False, t, w))[1:]


def _tangent(ctx, input, target, weight, lse, dx, dt, dw):
    moves = (dx, dt, dw) if target.is_floating_point() else (dx, None, None)
    return *tangents(_formula, (input, target, weight), ctx.settings, moves), None


# ---------------------------------------------------------------------------------------------- batching

def _rows(input: Tensor) -> tuple[Any, ...]:
    """The shape of one value a row."""
    return (*input.shape[:1], *input.shape[2:]) if input.dim() > 1 else ()


def _joined(t: Tensor, at: int | None, size: int, batched: bool) -> Tensor:
    """The batch of vmap joined to the batch that is there, or as the batch."""
    t = in_front(t, at, size)
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


# ---------------------------------------------------------------------------------------------- by PyTorch

def _torch(input, target, weight, ignore_index, reduction, _):
    loss = torch.nn.functional.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction])
    return loss, torch.logsumexp(input, min(input.dim() - 1, 1))


def _torch_backward(grad, input, target, weight, lse, ignore_index, reduction, _):
    """Its likelihood knows rows (n, c) and images (n, c, h, w): other ranks are read as images."""
    dim, images = min(input.dim() - 1, 1), input.dim() > 2
    forward, backward = (_aten.nll_loss2d_forward, _aten.nll_loss2d_backward) if images else (_aten.nll_loss_forward, _aten.nll_loss_backward)
    logs = torch.log_softmax(input, dim)
    if images:
        n, c, *places = logs.shape
        logs, target = logs.reshape(n, c, places[0], -1), target.reshape(n, places[0], -1)
        grad = grad.reshape(target.shape) if grad.dim() else grad
    total = forward(logs, target, weight, reduction, ignore_index)[1]
    of_logs = backward(grad, logs, target, weight, reduction, ignore_index, total)
    return _aten._log_softmax_backward_data(of_logs, logs, dim, input.dtype).reshape(input.shape)


cross_entropy = Rule("cross_entropy", 3, _save, _gradient, _tangent, _batch, by_torch=_torch)
cross_entropy_backward = Rule("cross_entropy_backward", 5, *derived(_backward, 5), _batch_backward, by_torch=_torch_backward)
