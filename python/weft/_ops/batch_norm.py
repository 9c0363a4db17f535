"""Batch normalisation: derivatives and batching of weft::batch_norm, batch_norm_train and batch_norm_backward."""
from __future__ import annotations

import torch

from .._core.rules import Rule, call, mapped
from ._derived import adjoint, derived, leaf, tangents, wide


# ---------------------------------------------------------------------------------------------- derivatives

def _formula(input, weight, bias, mean, spread, training, eps):
    """In training mean and deviation are computed from the data, so that derivatives go through them."""
    axes, shape = (0, *range(2, input.dim())), (1, -1, *[1] * (input.dim() - 2))
    x = wide(input)
    off = x - (x.mean(axes, True) if training else wide(mean).view(shape))
    y = off * ((off.square().mean(axes, True) if training else wide(spread).view(shape)) + eps).rsqrt()
    return (y if weight is None else y * wide(weight).view(shape) + wide(bias).view(shape)).to(input.dtype)


def _backward(grad, input, weight, mean, spread, training, eps):
    bias = None if weight is None else leaf(torch.zeros_like(weight))
    return adjoint(_formula, 3)(grad, input, weight, bias, mean, spread, training, eps)


def _save_eval(ctx, inputs, output):
    input, weight, _, mean, var, eps = inputs
    ctx.training, ctx.eps = False, eps
    return input, weight, mean, var


def _save_train(ctx, inputs, output):
    ctx.training, ctx.eps = True, inputs[5]
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)
    return inputs[0], inputs[1], output[1], output[2]


def _gradient_of_forward(ctx, grad, *_):
    if grad is None:
        return None, None, None
    dx, dw, db = call(batch_norm_backward, grad, *ctx.saved_tensors, ctx.training, ctx.eps)
    return tuple(g if needed else None for g, needed in zip((dx, dw, db), ctx.needs_input_grad))


def _tangent_of_forward(ctx, input, weight, mean, spread, dx, dw, db):
    bias = None if weight is None else torch.zeros_like(weight)
    moved, = tangents(_formula, (input, weight, bias), (mean, spread, ctx.training, ctx.eps), (dx, dw, db))
    return (moved, None, None) if ctx.training else moved


# ---------------------------------------------------------------------------------------------- batching

def _batch_train(info, in_dims, *args):
    """Each of the batches has statistics of its own, and so must the running ones."""
    for name, t, d in (("running_mean", args[3], in_dims[3]), ("running_var", args[4], in_dims[4])):
        if t is not None and d is None:
            raise RuntimeError(f"weft::batch_norm_train: {name} is the same for every batch that torch.vmap maps over, allowed: one for each, "
                               "as training moves it; or None")
    return mapped("batch_norm_train", 5, 0)(info, in_dims, *args)


def _native_eval(input, weight, bias, running_mean, running_var, eps):
    return torch.batch_norm(input, weight, bias, running_mean, running_var, False, 0.0, eps, torch.backends.cudnn.enabled)


def _native_train(input, weight, bias, running_mean, running_var, eps, momentum):
    return torch.batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled), None, None


def _torch_backward(grad, input, weight, mean, spread, training, eps):
    """With given statistics those of the batch are tensors of no elements, as its own forward pass returns them."""
    none = mean.new_empty(0)
    given = (None, None, mean, spread) if training else (mean, spread, none, none)
    return torch.ops.aten.native_batch_norm_backward(grad, input, weight, *given, training, eps, [True, weight is not None, weight is not None])


batch_norm = Rule("batch_norm", 3, _save_eval, _gradient_of_forward, _tangent_of_forward, mapped("batch_norm", 5, 1), by_torch=_native_eval, native=_native_eval)
batch_norm_train = Rule("batch_norm_train", 3, _save_train, _gradient_of_forward, _tangent_of_forward, _batch_train,
                        by_torch=lambda x, weight, bias, mean, var, eps, momentum: torch.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps),
                        native=_native_train, plain=_native_train)   # the dispatcher is slow with what is written to
batch_norm_backward = Rule("batch_norm_backward", 5, *derived(_backward, 5), mapped("batch_norm_backward", 5, 0), by_torch=_torch_backward)
