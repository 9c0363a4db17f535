"""Batch normalisation."""
from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import flattened, foreign, left_to_torch, real
from .._core.entry import front, kept
from .._ops import batch_norm as _ops
from .._core.rules import call, call_into

__all__ = ["batch_norm"]

_grad_enabled = torch.is_grad_enabled
_is_compiling = torch.compiler.is_compiling
_in_dynamo = torch.compiler.is_dynamo_compiling   # which stops at builtins
_INF = float("inf")
_batch_norm = front("batch_norm")


def _complain(input: Any, training: Any, *others: Any) -> None:
    """Say what is wrong with the kind of an argument."""
    if not isinstance(input, Tensor):
        raise TypeError(f"batch_norm: input is {type(input).__name__}, allowed: Tensor")
    for name, value in zip(("running_mean", "running_var", "weight", "bias"), others):
        if not (value is None or isinstance(value, Tensor)):
            raise TypeError(f"batch_norm: {name} is {type(value).__name__}, allowed: Tensor or None")
    raise TypeError(f"batch_norm: training is {training!r}, allowed: True or False")


def _check_statistics(mean: Optional[Tensor], var: Optional[Tensor], training: bool) -> None:
    if mean is None or var is None:
        if not training:
            raise RuntimeError(f"batch_norm: {'running_mean' if mean is None else 'running_var'} is None, allowed in evaluation: Tensor")
        if mean is not var:
            raise ValueError(f"batch_norm: {'running_mean' if mean is None else 'running_var'} is None with the other given, allowed: both or none")
    elif (mean.requires_grad or var.requires_grad) and _grad_enabled():
        raise RuntimeError(f"batch_norm: {'running_mean' if mean.requires_grad else 'running_var'} requires grad, allowed: statistics without a gradient")


def _check_training(input: Tensor, eps: float) -> None:
    channels = input.shape[1]
    if not _is_compiling() and input.numel() == channels and channels != 0:   # in a trace the operator compares what is known
        raise ValueError(f"batch_norm: input has the shape {list(input.shape)}, allowed in training: more than 1 value per channel")
    if eps <= 0.0:
        raise ValueError(f"batch_norm: eps is {eps}, allowed in training: more than 0")


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
    if out is None and not _in_dynamo():
        y = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps, True)
        if y is not NotImplemented:
            return y
    if has_torch_function_variadic(input, running_mean, running_var, weight, bias):
        return handle_torch_function(batch_norm, (input, running_mean, running_var, weight, bias), input, running_mean, running_var, weight=weight,
                                     bias=bias, training=training, momentum=momentum, eps=eps, out=out)
    if not (isinstance(input, Tensor) and (running_mean is None or isinstance(running_mean, Tensor))
            and (running_var is None or isinstance(running_var, Tensor)) and (weight is None or isinstance(weight, Tensor))
            and (bias is None or isinstance(bias, Tensor)) and isinstance(training, bool)):
        _complain(input, training, running_mean, running_var, weight, bias)
    rank = input.dim()
    if foreign(input) or (rank == 1 and input.numel() == 0):
        return left_to_torch("batch_norm", out, input, running_mean, running_var, weight, bias, training, momentum, eps, also=", 2 dimensions or more, finite settings")
    if rank < 2:
        raise RuntimeError(f"batch_norm: input has {rank} dimensions {list(input.shape)}, allowed: 2 or more")
    if type(eps) is not float:
        eps = real("batch_norm: eps is", eps)
    if type(momentum) is not float:
        momentum = real("batch_norm: momentum is", momentum)
    if training:
        _check_training(input, eps)
    elif eps < 0.0:
        raise ValueError(f"batch_norm: eps is {eps}, allowed: 0 or more")
    _check_statistics(running_mean, running_var, training)
    if not (eps < _INF and -_INF < momentum < _INF):
        return left_to_torch("batch_norm", out, input, running_mean, running_var, weight, bias, training, momentum, eps, also=", 2 dimensions or more, finite settings")
    if rank > 5:
        flat, into = flattened(input, out)
        y = batch_norm(flat, running_mean, running_var, weight, bias, training, momentum, eps, out=into)
        return y.view(input.shape) if out is None else out
    if (weight is None) is not (bias is None) or (weight is not None and (weight.dim() != 1 or bias.dim() != 1)):   # type: ignore[union-attr]
        weight, bias = _completed(input, weight, bias)
    args = (input, weight, bias, running_mean, running_var, eps, *((momentum,) if training else ()))
    if out is not None:
        return call_into(_ops.batch_norm_train if training else _ops.batch_norm, out, *args)
    y = call(_ops.batch_norm_train, *args)[0] if training else call(_ops.batch_norm, *args)
    return y if _in_dynamo() else kept(y)
