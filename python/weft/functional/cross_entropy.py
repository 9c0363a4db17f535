"""cross_entropy: the function, and the rules of weft::cross_entropy and cross_entropy_backward."""
from __future__ import annotations

from typing import Any, NoReturn, Optional

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.overrides import handle_torch_function, has_torch_function_variadic

from .._core.arguments import foreign, raised, real, whole
from .._core.checks import need_tensors
from .._core.derived import adjoint, derived, gradients, tangents, wide
from .._core.rules import Rule, call, call_into, mapped
from .._core.state import is_compiling

__all__ = ["cross_entropy"]

_aten = torch.ops.aten
NONE, MEAN, SUM = range(3)
WEIGHT_WITH_CLASSES = "weight: requires grad and target has classes, allowed: a gradient of weight only with probabilities"
_NO_CLASSES = "input: has 0 dimensions, allowed: 1 (classes), 2 (batch, classes) or more"
_REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}
_NAMES = tuple(_REDUCTIONS)


# ---------------------------------------------------------------------------------------------- the rules

def _formula(input, target, weight, ignore_index, reduction, label_smoothing):
    """Class labels have no derivative, nor have weights with them. Probabilities by sums: PyTorch's own function of them does not take symbolic sizes
    before 2.13."""
    x = wide(input)
    if not target.is_floating_point():
        loss = torch.nn.functional.cross_entropy(x, target, None if weight is None else wide(weight.detach()), ignore_index=ignore_index,
                                                 reduction=_NAMES[reduction], label_smoothing=label_smoothing)
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
    dx = call(CROSS_ENTROPY_BACKWARD, grad, input, target, weight, lse, *ctx.settings) if x else None
    return dx, *gradients(_formula, (input, target, weight), ctx.settings, (grad,), (False, t, w))[1:]


def _tangent(ctx, input, target, weight, lse, dx, dt, dw):
    moves = (dx, dt, dw) if target.is_floating_point() else (dx, None, None)
    return *tangents(_formula, (input, target, weight), ctx.settings, moves), None


def _torch(input, target, weight, ignore_index, reduction, _):
    loss = torch.nn.functional.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=_NAMES[reduction])
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


_SHARED = "weight: cannot be mapped over a dimension by torch.vmap, allowed: one for the whole batch"
CROSS_ENTROPY = Rule("cross_entropy", 3, _save, _gradient, _tangent, mapped("cross_entropy", 3, 0, shared={2: _SHARED}), by_torch=_torch)
CROSS_ENTROPY_BACKWARD = Rule("cross_entropy_backward", 5, *derived(_backward, 5), mapped("cross_entropy_backward", 5, 0, shared={3: _SHARED}),
                              by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- the function

def _read_reduction(reduction: Any) -> int:
    if reduction == "elementwise_mean":
        return _reduction.get_enum(reduction)   # warns
    raise ValueError(f"reduction: is {reduction!r}, allowed: 'none', 'mean' or 'sum'")


def _read_smoothing(value: Any) -> float:
    """As PyTorch: what is not positive smooths nothing."""
    value = real("label_smoothing: is", value)
    if value > 1:
        raise RuntimeError(f"label_smoothing: is {value:g}, allowed: 0 to 1")
    return value if value > 0 else 0.0


def _read_ignored(value: Any) -> int:
    number = whole(value)
    if number is None:
        raise TypeError(f"ignore_index: is {value!r}, allowed: an int")
    if not -2**63 <= number < 2**63:
        raise ValueError(f"ignore_index: is {number}, allowed: -2^63 to 2^63 - 1")
    return number


def _probabilities(input: Tensor, target: Tensor, weight: Optional[Tensor], ignore_index: int) -> tuple[Any, ...]:
    """input, target and weight of one type: PyTorch computes in the widest of them."""
    if not target.is_floating_point():
        raise RuntimeError(f"target: is {str(target.dtype)[6:]} and has the shape of input, {list(input.shape)}, allowed: a floating-point type for "
                           f"probabilities, or one dimension less for classes")
    if input.dim() == 0:
        raise IndexError(_NO_CLASSES)
    if ignore_index >= 0:
        raise RuntimeError(f"ignore_index: is {ignore_index} and target has probabilities, allowed: a negative number, which ignores nothing")
    dtype = torch.promote_types(input.dtype, target.dtype)
    if weight is not None:
        dtype = torch.promote_types(dtype, weight.dtype)
        weight = weight.to(dtype)
    return input.to(dtype), target.to(dtype), weight


def _refuse_shape(input: Tensor, target: Tensor, rows: tuple[int, ...]) -> NoReturn:
    """With the class of PyTorch's error."""
    if input.dim() == 0:
        raise IndexError(_NO_CLASSES)
    if input.dim() == 1:
        kind: Any = ValueError if target.dim() == 1 and not target.is_floating_point() else RuntimeError
    else:
        kind = ValueError if target.dim() == 0 or target.shape[0] != input.shape[0] else RuntimeError
    raise kind(f"target: has the shape {list(target.shape)}, allowed with an input of {list(input.shape)}: {list(rows)} for classes, "
               f"{list(input.shape)} for probabilities")


def _labels(input: Tensor, target: Tensor, weight: Optional[Tensor]) -> Tensor:
    """Classes as int64, one a row."""
    rows = input.shape[:1] + input.shape[2:] if input.dim() > 1 else ()
    if target.dim() != len(rows) or (not is_compiling() and target.shape != rows):   # in a trace the operator compares what is known
        if input.dim() != 1 or target.shape != (1,):
            _refuse_shape(input, target, tuple(rows))
        target = target.view(())
    if target.dtype is not torch.int64:
        if target.dtype is not torch.uint8 or input.dim() > 2:
            raise RuntimeError(f"target: is {str(target.dtype)[6:]}, allowed: int64{' or uint8' if input.dim() <= 2 else ''} for classes")
        target = target.long()
    if weight is not None and weight.requires_grad and torch.is_grad_enabled():
        raise RuntimeError(WEIGHT_WITH_CLASSES)
    return target


def _run(out: Optional[Tensor], *args: Any) -> Tensor:
    if out is not None:
        return call_into(CROSS_ENTROPY, out, *args)
    return call(CROSS_ENTROPY, *args)[0]


def _run_or_name_the_label(out: Optional[Tensor], *args: Any) -> Tensor:
    """An operator can only raise RuntimeError; PyTorch has another kind for a label that is no class."""
    try:
        return _run(out, *args)
    except RuntimeError as error:
        text = str(error)
        if "allowed: a class, " not in text:
            raise
    raise IndexError(text)


def cross_entropy(input: Tensor, target: Tensor, weight: Optional[Tensor] = None, size_average: Optional[bool] = None, ignore_index: int = -100,
                  reduce: Optional[bool] = None, reduction: str = "mean", label_smoothing: float = 0.0, *, out: Optional[Tensor] = None) -> Tensor:
    """Log-softmax and negative log-likelihood in one pass: torch.nn.functional.cross_entropy. input is (C), (N, C) or (N, C, d1, ..., dk);
    target has a class a row, or a probability an element. Channels-last logits are read as they lie.

    On the CPU a label that is no class raises IndexError (RuntimeError within torch.compile); on CUDA, where PyTorch stops the program,
    the loss and the gradients it leads to are NaN.

        >>> weft.functional.cross_entropy(torch.zeros(2, 4, 8, 8), torch.zeros(2, 8, 8, dtype=torch.int64))
        tensor(1.3863)
    """
    if has_torch_function_variadic(input, target, weight):
        return handle_torch_function(cross_entropy, (input, target, weight), input, target, weight=weight, size_average=size_average,
                                     ignore_index=ignore_index, reduce=reduce, reduction=reduction, label_smoothing=label_smoothing, out=out)
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
    how = _REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    how = _read_reduction(reduction) if how is None else how
    if not (isinstance(input, Tensor) and isinstance(target, Tensor) and (weight is None or isinstance(weight, Tensor))):
        need_tensors("{}: is", {"input": input, "target": target}, {"weight": weight})
    if type(ignore_index) is not int or not -2**63 <= ignore_index < 2**63:
        ignore_index = _read_ignored(ignore_index)
    if type(label_smoothing) is not float or not 0.0 <= label_smoothing <= 1.0:
        label_smoothing = _read_smoothing(label_smoothing)
    if foreign(input):
        raise NotImplementedError(f"input: is {str(input.dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    if input.is_nested or input.dim() > 64 or (weight is not None and weight.is_complex()):   # PyTorch takes them, or says why not
        loss = torch.nn.functional.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing)
        return loss if out is None else out.copy_(loss)
    input, target, weight = raised(input, target, weight)
    if input.dim() == target.dim() and (target.is_floating_point() if is_compiling() else input.shape == target.shape):
        input, target, weight = _probabilities(input, target, weight, ignore_index)
    else:
        target = _labels(input, target, weight)
    args = (out, input, target, weight, ignore_index, how, label_smoothing)
    return _run(*args) if is_compiling() else _run_or_name_the_label(*args)
