"""Cross entropy and its gradient: derivatives and batching of weft::cross_entropy and cross_entropy_backward."""
from __future__ import annotations

import torch

from .._core.rules import Rule, call, mapped
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

def _batch(name, tensors, weight):
    each = mapped(name, tensors, 0)

    def batch(info, in_dims, *args):
        if in_dims[weight] is not None:
            raise RuntimeError(f"weft::{name}: weight: cannot be mapped over a dimension by torch.vmap, allowed: one for the whole batch")
        return each(info, in_dims, *args)
    return batch


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


cross_entropy = Rule("cross_entropy", 3, _save, _gradient, _tangent, _batch("cross_entropy", 3, 2), by_torch=_torch)
cross_entropy_backward = Rule("cross_entropy_backward", 5, *derived(_backward, 5), _batch("cross_entropy_backward", 5, 3), by_torch=_torch_backward)
