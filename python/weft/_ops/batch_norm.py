"""Batch normalisation: derivatives and batching of weft::batch_norm, batch_norm_train and batch_norm_backward."""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._core.rules import Rule, call, in_front
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

def _fold(t: Any, dim: int | None, size: int, at: int) -> Any:
    """The dimension of vmap, made in front where there is none, folded into the channels, which stand at `at`."""
    if t is None:
        return None
    t = in_front(t, dim, size)
    return t.movedim(0, at).flatten(at, at + 1)


def _unfold(t: Tensor, size: int, at: int) -> Tensor:
    return t.unflatten(at, (size, t.shape[at] // size)).movedim(at, 0)


def _batch_eval(info, in_dims, input, *rest):
    size = info.batch_size
    vectors = [_fold(t, d, size, 0) for t, d in zip(rest[:4], in_dims[1:])]
    return _unfold(call(batch_norm, _fold(input, in_dims[0], size, 1), *vectors, *rest[4:]), size, 1), 0


def _batch_train(info, in_dims, input, weight, bias, running_mean, running_var, eps, momentum):
    """Each of the batches has statistics of its own, and so must the running ones."""
    size = info.batch_size
    vectors = [_fold(t, d, size, 0) for t, d in zip((weight, bias, running_mean, running_var), in_dims[1:])]
    for name, t, d in (("running_mean", running_mean, in_dims[3]), ("running_var", running_var, in_dims[4])):
        if t is not None and d is None:
            raise RuntimeError(f"weft::batch_norm_train: {name} is the same for every batch that torch.vmap maps over, allowed: one for each, "
                               "as training moves it; or None")
    results = call(batch_norm_train, _fold(input, in_dims[0], size, 1), *vectors, eps, momentum)
    for t, d, moved in ((running_mean, in_dims[3], vectors[2]), (running_var, in_dims[4], vectors[3])):
        if t is not None:
            t.movedim(d, 0).copy_(moved.view(size, -1))
    return tuple(_unfold(t, size, at) for t, at in zip(results, (1, 0, 0))), (0, 0, 0)


def _batch_backward(info, in_dims, grad, input, weight, mean, spread, training, eps):
    size = info.batch_size
    data = [_fold(t, d, size, 1) for t, d in ((grad, in_dims[0]), (input, in_dims[1]))]
    vectors = [_fold(t, d, size, 0) for t, d in zip((weight, mean, spread), in_dims[2:])]
    dx, dw, db = call(batch_norm_backward, *data, *vectors, training, eps)
    if weight is None:
        return (_unfold(dx, size, 1), dw, db), (0, None, None)
    return (_unfold(dx, size, 1), _unfold(dw, size, 0), _unfold(db, size, 0)), (0, 0, 0)


def _native_eval(input, weight, bias, running_mean, running_var, eps):
    return torch.batch_norm(input, weight, bias, running_mean, running_var, False, 0.0, eps, torch.backends.cudnn.enabled)


def _native_train(input, weight, bias, running_mean, running_var, eps, momentum):
    return torch.batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled), None, None


def _torch_backward(grad, input, weight, mean, spread, training, eps):
    """With given statistics those of the batch are tensors of no elements, as its own forward pass returns them."""
    none = mean.new_empty(0)
    given = (None, None, mean, spread) if training else (mean, spread, none, none)
    return torch.ops.aten.native_batch_norm_backward(grad, input, weight, *given, training, eps, [True, weight is not None, weight is not None])


batch_norm = Rule("batch_norm", 3, _save_eval, _gradient_of_forward, _tangent_of_forward, _batch_eval, by_torch=_native_eval, native=_native_eval)
batch_norm_train = Rule("batch_norm_train", 3, _save_train, _gradient_of_forward, _tangent_of_forward, _batch_train,
                        by_torch=lambda x, weight, bias, mean, var, eps, momentum: torch.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps),
                        native=_native_train, plain=_native_train)   # the dispatcher is slow with what is written to
batch_norm_backward = Rule("batch_norm_backward", 5, *derived(_backward, 5), _batch_backward, by_torch=_torch_backward)
