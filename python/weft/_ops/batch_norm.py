"""Batch normalisation: shapes, derivatives and batching of weft::batch_norm, batch_norm_train and batch_norm_backward.

With xh = (x - m) r the normalised data, r the inverse deviation, w the weight (1 if there is none) and, in training,
P v = v - mean(v) - xh mean(v xh) over a channel, P v = v in evaluation:
    y = w xh + b        dx = w r P dy        dw = sum(dy xh)        db = sum(dy)
P is symmetric, and so is the slope of dx in x: one set of formulas serves gradients and tangents of both directions.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .._rules import Rule, call

_NARROW = (torch.float16, torch.bfloat16)


# ---------------------------------------------------------------------------------------------- derivatives

class _Frame:
    """The formulas at one point. In training mean and deviation are computed from the data, so that further derivatives go through them.
    Everything is float32 or wider; vectors lie on the axis of the channels, and any of them may be None."""

    def __init__(self, input: Tensor, weight: Tensor | None, mean: Tensor, spread: Tensor, training: bool, eps: float) -> None:
        self.training = training
        self.axes = (0, *range(2, input.dim()))
        self.shape = (1, -1, *[1] * (input.dim() - 2))
        x = self.wide(input)
        off = x - (x.mean(self.axes, True) if training else self.wide(mean).view(self.shape))
        self.r = ((off.square().mean(self.axes, True) if training else self.wide(spread).view(self.shape)) + eps).rsqrt()
        self.xh = off * self.r
        self.wr = self.r if weight is None else self.wide(weight).view(self.shape) * self.r

    def wide(self, t: Tensor) -> Tensor:
        return t.float() if t.dtype in _NARROW else t

    def vector(self, t: Tensor) -> Tensor:
        return self.wide(t).view(self.shape)

    def mean(self, t: Tensor) -> Tensor:
        return t.mean(self.axes, True)

    def project(self, v: Tensor) -> Tensor:
        return v - self.mean(v) - self.xh * self.mean(v * self.xh) if self.training else v

    def of_result(self, u: Tensor | None, a: Tensor | None, b: Tensor | None) -> Tensor | None:
        """w r P u + a xh + b: what steps u, a, b of data, weight and bias do to y."""
        terms = [] if u is None else [self.wr * self.project(self.wide(u))]
        terms += [] if a is None else [self.vector(a) * self.xh]
        terms += [] if b is None else [self.vector(b).expand_as(self.xh)]
        return sum(terms[1:], terms[0]) if terms else None

    def of_data(self, dy: Tensor, u: Tensor | None, a: Tensor | None) -> Tensor | None:
        """What steps u, a of data and weight do to dx; and, as the slope is symmetric, the gradient of <u, dx> + <a, dw> in the data:
        -w r^2 (xh mean(u P dy) + mean(dy xh) P u + mean(u xh) P dy) + a r P dy."""
        dy = self.wide(dy)
        along = self.project(dy)
        terms = [] if a is None else [self.vector(a) * self.r * along]
        if u is not None and self.training:
            u = self.wide(u)
            bend = self.xh * self.mean(u * along) + self.mean(dy * self.xh) * self.project(u) + self.mean(u * self.xh) * along
            terms.append(-self.wr * self.r * bend)
        return sum(terms[1:], terms[0]) if terms else None

    def of_weight(self, dy: Tensor, u: Tensor) -> Tensor:
        """sum(r u P dy): what a step u of the data does to dw."""
        return (self.r * self.wide(u) * self.project(self.wide(dy))).sum(self.axes)


def _as(t: Tensor | None, like: Tensor) -> Tensor | None:
    return None if t is None else t.to(like.dtype)


def _sum(one: Tensor | None, two: Tensor | None) -> Tensor | None:
    return two if one is None else one if two is None else one + two


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
    moved = _as(_Frame(input, weight, mean, spread, ctx.training, ctx.eps).of_result(dx, dw, db), input)
    return (moved, None, None) if ctx.training else moved


def _save_backward(ctx, inputs, output):
    ctx.rest = inputs[5:]
    ctx.set_materialize_grads(False)
    return inputs[:5]


def _gradient_of_backward(ctx, ddx, ddw, ddb):
    grad, input, weight, mean, spread = ctx.saved_tensors
    frame = _Frame(input, weight, mean, spread, *ctx.rest)
    if weight is None:
        ddw = ddb = None
    of_grad = of_input = of_weight = None
    if ctx.needs_input_grad[0]:
        of_grad = _as(frame.of_result(ddx, ddw, ddb), grad)
    if ctx.needs_input_grad[1]:
        of_input = _as(frame.of_data(grad, ddx, ddw), input)
    if ctx.needs_input_grad[2] and ddx is not None:
        of_weight = _as(frame.of_weight(grad, ddx), weight)
    return of_grad, of_input, of_weight


def _tangent_of_backward(ctx, grad, input, weight, mean, spread, ddy, dx, dw):
    frame = _Frame(input, weight, mean, spread, *ctx.rest)
    moved = _sum(frame.of_data(grad, dx, dw), frame.of_result(ddy, None, None))
    moved = input.new_zeros(input.shape) if moved is None else moved.to(input.dtype)
    if weight is None:
        return moved, input.new_zeros(0), input.new_zeros(0)
    wide = None if ddy is None else frame.wide(ddy)
    of_weight = _sum(None if dx is None else frame.of_weight(grad, dx), None if wide is None else (wide * frame.xh).sum(frame.axes))
    of_bias = None if wide is None else wide.sum(frame.axes)
    still = weight.new_zeros(weight.shape)   # torch.func wants a tangent of every result
    return (moved, *(still if t is None else t.to(weight.dtype) for t in (of_weight, of_bias)))


# ---------------------------------------------------------------------------------------------- batching

def _fold(t: Any, dim: int | None, size: int, at: int) -> Any:
    """The dimension of vmap, made in front where there is none, folded into the channels, which stand at `at`."""
    if t is None:
        return None
    t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
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


batch_norm = Rule("batch_norm", 3, _save_eval, _gradient_of_forward, _tangent_of_forward, _batch_eval, native=_native_eval)
batch_norm_train = Rule("batch_norm_train", 3, _save_train, _gradient_of_forward, _tangent_of_forward, _batch_train,
                        native=_native_train, plain=True)   # the dispatcher is slow with what is written to
batch_norm_backward = Rule("batch_norm_backward", 3, _save_backward, _gradient_of_backward, _tangent_of_backward, _batch_backward)
