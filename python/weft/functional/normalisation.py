"""Batch and local response normalisation: the functions, and the rules of weft::batch_norm, batch_norm_train, batch_norm_backward, lrn and lrn_backward."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from .._core.arguments import NoTensor, flattened, foreign, grad_enabled, in_dynamo, is_compiling, left_to_torch, need_tensors, raised, real, whole
from .._core.entry import front, kept
from .._core.rules import RULES, Rule, adjoint, call, call_into, derived, in_front, leaf, mapped, tangents, wide

__all__ = ["batch_norm", "local_response_norm"]

_INF, _ALSO = float("inf"), ", 2 dimensions or more, finite settings"
_batch_norm = front("batch_norm")


# ---------------------------------------------------------------------------------------------- batch normalisation: the rules

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


def _save(ctx, inputs, output):
    """In training the statistics of the batch, which are results without a gradient; else the running ones, which were given."""
    ctx.training, ctx.eps = isinstance(output, tuple), inputs[5]
    if not ctx.training:
        return inputs[0], inputs[1], inputs[3], inputs[4]
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)
    return inputs[0], inputs[1], output[1], output[2]


def _gradient_of_forward(ctx, grad, *_):
    if grad is None:
        return None, None, None
    dx, dw, db = call(BATCH_NORM_BACKWARD, grad, *ctx.saved_tensors, ctx.training, ctx.eps)
    return tuple(g if needed else None for g, needed in zip((dx, dw, db), ctx.needs_input_grad))


def _tangent_of_forward(ctx, input, weight, mean, spread, dx, dw, db):
    bias = None if weight is None else torch.zeros_like(weight)
    moved, = tangents(_formula, (input, weight, bias), (mean, spread, ctx.training, ctx.eps), (dx, dw, db))
    return (moved, None, None) if ctx.training else moved


def _unfold(t, size):
    at = min(t.dim() - 1, 1)
    return t.unflatten(at, (size, t.shape[at] // size)).movedim(at, 0)


def _batch(name: str, data: int):
    """Under vmap the batches are more channels, of the first `data` tensors and of all that has a value for each channel."""
    def batch(info, in_dims, *args):
        size, folded = info.batch_size, []
        if size == 0:
            return mapped(name, 5, 0)(info, in_dims, *args)   # which refuses it
        for i, (t, d) in enumerate(zip(args[:5], in_dims)):
            at = int(i < data)
            folded.append(None if t is None else in_front(t, d, size).movedim(0, at).flatten(at, at + 1))
        made = call(RULES[name], *folded, *args[5:])
        if not isinstance(made, tuple):
            return _unfold(made, size), 0
        return (tuple(_unfold(t, size) if t.numel() else t for t in made), tuple(0 if t.numel() else None for t in made)), folded
    return batch


def _batch_backward(info, in_dims, *args):
    return _batch("batch_norm_backward", 2)(info, in_dims, *args)[0]


def _batch_train(info, in_dims, *args):
    """Each of the batches has statistics of its own, and so must the running ones."""
    for name, t, d in (("running_mean", args[3], in_dims[3]), ("running_var", args[4], in_dims[4])):
        if t is not None and d is None:
            raise RuntimeError(f"weft::batch_norm_train: {name} is the same for every batch that torch.vmap maps over, allowed: one for each, "
                               "as training moves it; or None")
    made, folded = _batch("batch_norm_train", 1)(info, in_dims, *args)
    for t, d, moved in zip(args[3:5], in_dims[3:5], folded[3:]):
        if t is not None:
            t.movedim(d, 0).copy_(moved.view(info.batch_size, -1))
    return made


def _native_eval(input, weight, bias, running_mean, running_var, eps):
    return torch.batch_norm(input, weight, bias, running_mean, running_var, False, 0.0, eps, torch.backends.cudnn.enabled)


def _native_train(input, weight, bias, running_mean, running_var, eps, momentum):
    return torch.batch_norm(input, weight, bias, running_mean, running_var, True, momentum, eps, torch.backends.cudnn.enabled), None, None


def _torch_backward(grad, input, weight, mean, spread, training, eps):
    """With given statistics those of the batch are tensors of no elements, as its own forward pass returns them."""
    none = mean.new_empty(0)
    given = (None, None, mean, spread) if training else (mean, spread, none, none)
    return torch.ops.aten.native_batch_norm_backward(grad, input, weight, *given, training, eps, [True, weight is not None, weight is not None])


BATCH_NORM = Rule("batch_norm", 3, _save, _gradient_of_forward, _tangent_of_forward, _batch("batch_norm", 1),
                  by_torch=_native_eval, native=_native_eval)
BATCH_NORM_TRAIN = Rule("batch_norm_train", 3, _save, _gradient_of_forward, _tangent_of_forward, _batch_train,
                        by_torch=lambda x, weight, bias, mean, var, eps, momentum: torch.native_batch_norm(x, weight, bias, mean, var, True, momentum, eps),
                        native=_native_train, plain=_native_train)   # the dispatcher is slow with what is written to
BATCH_NORM_BACKWARD = Rule("batch_norm_backward", 5, *derived(_backward, 5), _batch_backward, by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- batch normalisation: the function

def _check(input: Tensor, mean: Optional[Tensor], var: Optional[Tensor], training: bool, eps: float) -> None:
    if training and not is_compiling() and input.numel() == input.shape[1] != 0:   # in a trace the operator compares what is known
        raise ValueError(f"batch_norm: input has the shape {list(input.shape)}, allowed in training: more than 1 value per channel")
    if eps <= 0.0 if training else eps < 0.0:
        raise ValueError(f"batch_norm: eps is {eps}, allowed{' in training: more than 0' if training else ': 0 or more'}")
    missing = "running_mean" if mean is None else "running_var"
    if mean is None or var is None:
        if not training:
            raise RuntimeError(f"batch_norm: {missing} is None, allowed in evaluation: Tensor")
        if mean is not var:
            raise ValueError(f"batch_norm: {missing} is None with the other given, allowed: both or none")
    elif (mean.requires_grad or var.requires_grad) and grad_enabled():
        raise RuntimeError(f"batch_norm: {'running_mean' if mean.requires_grad else 'running_var'} requires grad, allowed: statistics without a gradient")


def _completed(input: Tensor, weight: Optional[Tensor], bias: Optional[Tensor]) -> tuple[Optional[Tensor], Optional[Tensor]]:
    """The operators take both or none, one value a channel in one dimension."""
    if weight is not None or bias is not None:
        weight = bias.new_ones(input.shape[1]) if weight is None else weight.reshape(-1)   # type: ignore[union-attr]
        bias = weight.new_zeros(input.shape[1]) if bias is None else bias.reshape(-1)
    return weight, bias


def batch_norm(input: Tensor, running_mean: Optional[Tensor], running_var: Optional[Tensor], weight: Optional[Tensor] = None,
               bias: Optional[Tensor] = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *,
               out: Optional[Tensor] = None) -> Tensor:
    """Normalise each channel: torch.nn.functional.batch_norm. Training takes the statistics of the batch and moves the running ones.

        >>> x, mean, var = torch.randn(8, 4, 16, 16), torch.zeros(4), torch.ones(4)
        >>> weft.functional.batch_norm(x, mean, var, training=True).shape
        torch.Size([8, 4, 16, 16])
    """
    if out is None and not in_dynamo():
        y = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, True)
        if y is not NotImplemented:
            return y
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias):
        return handle_torch_function(batch_norm, (input, running_mean, running_var, weight, bias), input, running_mean, running_var, weight=weight,
                                     bias=bias, training=training, momentum=momentum, eps=eps, out=out)
    if not (isinstance(input, Tensor) and (running_mean is None or isinstance(running_mean, Tensor))
            and (running_var is None or isinstance(running_var, Tensor)) and (weight is None or isinstance(weight, Tensor))
            and (bias is None or isinstance(bias, Tensor)) and isinstance(training, bool)):
        need_tensors("batch_norm: {} is", {"input": input}, {"running_mean": running_mean, "running_var": running_var, "weight": weight, "bias": bias})
        raise TypeError(f"batch_norm: training is {training!r}, allowed: True or False")
    rank = input.dim()
    if foreign(input) or (rank == 1 and input.numel() == 0):
        return left_to_torch("batch_norm", out, input, running_mean, running_var, weight, bias, training, momentum, eps, also=_ALSO)
    if rank < 2:
        raise RuntimeError(f"batch_norm: input has {rank} dimensions {list(input.shape)}, allowed: 2 or more")
    if type(eps) is not float:
        eps = real("batch_norm: eps is", eps)
    if type(momentum) is not float:
        momentum = real("batch_norm: momentum is", momentum)
    _check(input, running_mean, running_var, training, eps)
    if not (eps < _INF and -_INF < momentum < _INF):
        return left_to_torch("batch_norm", out, input, running_mean, running_var, weight, bias, training, momentum, eps, also=_ALSO)
    if rank > 5:
        flat, into = flattened(input, out)
        y = batch_norm(flat, running_mean, running_var, weight, bias, training, momentum, eps, out=into)
        return y.view(input.shape) if out is None else out
    if (weight is None) is not (bias is None) or (weight is not None and (weight.dim() != 1 or bias.dim() != 1)):   # type: ignore[union-attr]
        weight, bias = _completed(input, weight, bias)
    args = (input, weight, bias, running_mean, running_var, eps, *((momentum,) if training else ()))
    if out is not None:
        return call_into(BATCH_NORM_TRAIN if training else BATCH_NORM, out, *args)
    y = call(BATCH_NORM_TRAIN, *args)[0] if training else call(BATCH_NORM, *args)
    return y if in_dynamo() else kept(y)


# ---------------------------------------------------------------------------------------------- local response normalisation

def _lrn_formula(input, size, alpha, beta, k):
    """What a window reaches beyond the channels counts for nothing."""
    few = min(size, 2 * input.shape[1] + 1) if isinstance(input.shape[1], int) else size
    return torch.nn.functional.local_response_norm(wide(input), few, alpha * few / size, beta, k).to(input.dtype)


LRN = Rule("lrn", 1, *derived(_lrn_formula, 1, "lrn_backward"), mapped("lrn"))
Rule("lrn_backward", 2, *derived(adjoint(_lrn_formula, 1), 2), mapped("lrn_backward", 2))


def _own(value: Any) -> bool:
    """A number that weft's kernels take: real and finite."""
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and -_INF < value < _INF


def local_response_norm(input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, *, out: Optional[Tensor] = None) -> Tensor:
    """Divide by a power of the energy of `size` channels around each: torch.nn.functional.local_response_norm.

        >>> weft.functional.local_response_norm(torch.randn(2, 8, 16, 16), 5).shape
        torch.Size([2, 8, 16, 16])
    """
    if has_torch_function_unary(input):
        return handle_torch_function(local_response_norm, (input,), input, size, alpha=alpha, beta=beta, k=k, out=out)
    if not isinstance(input, Tensor):
        raise NoTensor(f"local_response_norm: input is {type(input).__name__}, allowed: Tensor")
    rank = input.dim()
    if rank < 3:
        raise ValueError(f"local_response_norm: input has {rank} dimensions {list(input.shape)}, allowed: 3 or more")
    if not is_compiling() and input.numel() == 0 and out is None:
        return input   # as PyTorch does, whatever the settings; in a trace the operator takes what is empty
    if type(size) is not int:
        width = whole(size)
        if width is None:
            raise TypeError(f"local_response_norm: size is {size!r}, allowed: an int")
        size = width
    if foreign(input) or not (_own(alpha) and _own(beta) and _own(k)):
        for name, value in (("alpha", alpha), ("beta", beta), ("k", k)):
            if not isinstance(value, (int, float, complex, Tensor)):
                raise TypeError(f"local_response_norm: {name} is {value!r}, allowed: a float")
        return left_to_torch("local_response_norm", out, input, size, alpha, beta, k, also=", finite numbers")
    if rank > 3 or input.is_cuda:   # PyTorch's averages over three axes, and its powers on CUDA, are float32 under autocast
        input, = raised(input)
    if rank > 5:
        flat, into = flattened(input, out)
        y = local_response_norm(flat, size, alpha, beta, k, out=into)
        return y.view(input.shape) if out is None else out
    args = (input, size, float(alpha), float(beta), float(k))
    return call(LRN, *args) if out is None else call_into(LRN, out, *args)
