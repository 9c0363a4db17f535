"""softmax, log_softmax and cross_entropy: the functions, and the rules of weft::softmax, log_softmax, softmax_backward, cross_entropy and
cross_entropy_backward."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Optional

import torch
from torch import Tensor
from torch.nn import _reduction
from torch.nn.functional import _get_softmax_dim
from torch.overrides import handle_torch_function, has_torch_function_unary, has_torch_function_variadic

from .._core.arguments import TYPES, any_autocast, autocast_dtype, foreign, in_dynamo, is_compiling, named, need_tensors, raised, real, whole
from .._core.entry import front, kept
from .._core.rules import Rule, adjoint, call, call_into, derived, gradients, in_front, mapped, tangents, wide

__all__ = ["softmax", "log_softmax", "cross_entropy"]

_aten = torch.ops.aten
NONE, MEAN, SUM = range(3)
WEIGHT_WITH_CLASSES = "weight: requires grad and target has classes, allowed: a gradient of weight only with probabilities"
_NO_CLASSES = "input: has 0 dimensions, allowed: 1 (classes), 2 (batch, classes) or more"
_REDUCTIONS = {"none": NONE, "mean": MEAN, "sum": SUM}
_NAMES = tuple(_REDUCTIONS)
_WIDER = {(torch.float16, torch.float32), (torch.float16, torch.float64), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.float64),
          (torch.float32, torch.float64)}


# ---------------------------------------------------------------------------------------------- softmax: the rules
# Of one row, <.,.> the sum over it:
#   softmax       dx = y (dy - <y, dy>)
#   log_softmax   dx = dy - exp(y) <1, dy>

def _gradient(ctx, grad):
    output, = ctx.saved_tensors
    return call(SOFTMAX_BACKWARD, grad, output, ctx.dim, ctx.log, ctx.dtype),


def _tangent(ctx, output, dx):
    """That of softmax is its own adjoint."""
    dx = dx.to(output.dtype)
    if ctx.log:
        return dx - (output.exp() * dx).sum(ctx.dim, True)
    return call(SOFTMAX_BACKWARD, dx, output, ctx.dim, False, output.dtype)


def _backward(grad, output, dim, log, dtype):
    return (grad - output.exp() * grad.sum(dim, True) if log else output * (grad - (output * grad).sum(dim, True))).to(dtype)


def _with_rows(t: Tensor, at: int | None, size: int) -> Tensor:
    """The batch of vmap as the first dimension; rows of one value get a dimension to be rows of."""
    t = in_front(t, at, size)
    return t if t.dim() > 1 else t.unsqueeze(1)


def _behind(t: Tensor, dim: int) -> int:
    """dim of a tensor that has a batch in front now."""
    return 1 + dim % (t.dim() - 1)


def _batch_backward(info, in_dims, grad_output, output, dim, log, dtype):
    rank = output.dim() - (in_dims[1] is not None) + 1
    dy, y = (_with_rows(t, at, info.batch_size) for t, at in ((grad_output, in_dims[0]), (output, in_dims[1])))
    return call(SOFTMAX_BACKWARD, dy, y, _behind(y, dim), log, dtype).view(y.shape[:rank]), 0


def _torch_backward(grad, output, dim, log, dtype):
    return (torch.ops.aten._log_softmax_backward_data if log else torch.ops.aten._softmax_backward_data)(grad, output, dim, dtype)


def _forward(name: str, function: Callable) -> Rule:
    def save(ctx, inputs, output):
        input, ctx.dim, _ = inputs
        ctx.log, ctx.dtype = name == "log_softmax", input.dtype
        return output,

    def batch(info, in_dims, input, dim, dtype):
        x = _with_rows(input, in_dims[0], info.batch_size)
        return call(rule, x, _behind(x, dim), dtype).view(x.shape[:input.dim()]), 0

    def by_torch(input, dim, dtype):
        return function(input, dim)
    rule = Rule(name, 1, save, _gradient, _tangent, batch, by_torch=by_torch, native=by_torch)
    return rule


SOFTMAX, LOG_SOFTMAX = _forward("softmax", torch.softmax), _forward("log_softmax", torch.log_softmax)
SOFTMAX_BACKWARD = Rule("softmax_backward", 2, *derived(_backward, 2), _batch_backward, by_torch=_torch_backward)


# ---------------------------------------------------------------------------------------------- softmax: the functions

def _axis(dim: Any, rank: int) -> int:
    value = whole(dim)
    if value is None:
        raise TypeError(f"dim: is {dim!r}, allowed: an int, or None")
    rank = max(rank, 1)
    if not -rank <= value < rank:
        raise IndexError(f"dim: is {value}, allowed: {-rank} to {rank - 1}")
    return int(value)


def _twins(name: str, input: Tensor, dim: int, dtype: Optional[torch.dtype], out: Optional[Tensor]) -> Tensor:
    """What weft has no kernels for: PyTorch takes it, or refuses it in its own words."""
    result = getattr(torch.nn.functional, name)(input, dim, dtype=dtype)
    return result if out is None else out.copy_(result)


def _run(rule: Rule, name: str, input: Tensor, dim: Any, dtype: Optional[torch.dtype], out: Optional[Tensor]) -> Tensor:
    """An exact change of type is done on the way; any other first, as it may round or overflow."""
    dim = _axis(dim, input.dim())
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: is {dtype!r}, allowed: a torch.dtype, or None")
    if input.layout is not torch.strided or input.is_nested or input.dim() > 64:
        return _twins(name, input, dim, dtype, out)
    given = input.dtype
    if dtype is None:
        dtype = given
        if any_autocast() and given in (torch.float16, torch.bfloat16) and input.device.type == "cuda" and autocast_dtype(input.device) is not None:
            dtype = torch.float32   # as PyTorch, which on the CPU keeps the type
    if dtype not in TYPES and input.numel() == 0:   # PyTorch returns nothing of any type
        return _twins(name, input, dim, None if dtype is given else dtype, out)
    if dtype not in TYPES:   # so are whole and complex numbers without a dtype
        raise NotImplementedError(f"{'input' if dtype is given else 'dtype'}: is {str(dtype)[6:]}, allowed: float32, float64, float16 or bfloat16")
    if dtype is not given and (given, dtype) not in _WIDER:
        input = input.to(dtype)
    return call(rule, input, dim, dtype) if out is None else call_into(rule, out, input, dim, dtype)


def _made(rule: Rule, name: str, help: str) -> Callable:
    entry = front(name)

    def function(input: Tensor, dim: Optional[int] = None, _stacklevel: int = 3, dtype: Optional[torch.dtype] = None, *,
                 out: Optional[Tensor] = None) -> Tensor:
        entered = dim is not None and dtype is None and out is None and not in_dynamo()
        if entered:
            y = entry(input, dim)
            if y is not NotImplemented:
                return y
        if has_torch_function_unary(input):
            return handle_torch_function(function, (input,), input, dim=dim, _stacklevel=_stacklevel, dtype=dtype, out=out)
        if not isinstance(input, Tensor):
            raise AttributeError(f"input: is {type(input).__name__}, allowed: Tensor")
        if dim is None:
            dim = _get_softmax_dim(name, input.dim(), _stacklevel)
        y = _run(rule, name, input, dim, dtype, out)
        return kept(y) if entered else y
    return named(function, name, help)


softmax = _made(SOFTMAX, "softmax", """exp(x) / sum exp(x) along one dimension: torch.nn.functional.softmax. As there, the result is
contiguous whatever the format of the input, which is read as it lies. `out` may be the input itself.

    >>> weft.functional.softmax(torch.zeros(2, 4), dim=1)[0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
""")
log_softmax = _made(LOG_SOFTMAX, "log_softmax", """x - log sum exp(x) along one dimension: torch.nn.functional.log_softmax. The result is contiguous;
`out` may be the input itself.

    >>> weft.functional.log_softmax(torch.tensor([[1000.0, 0.0]]), dim=1)
    tensor([[    0., -1000.]])
""")


# ---------------------------------------------------------------------------------------------- cross entropy: the rules

def _formula_of_loss(input, target, weight, ignore_index, reduction, label_smoothing):
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


def _backward_of_loss(grad, input, target, weight, lse, *settings):
    """lse follows from the input."""
    return adjoint(_formula_of_loss, 1)(grad, input, target, weight, *settings)[0]


def _save_loss(ctx, inputs, output):
    ctx.settings = inputs[3:]
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    return (*inputs[:3], output[1])


def _gradient_of_loss(ctx, grad, _):
    """Probabilities and class weights beside them have gradients; class labels do not, nor weights with them."""
    if grad is None:
        return None, None, None
    input, target, weight, lse = ctx.saved_tensors
    x, t, w = ctx.needs_input_grad[:3]
    if w and not target.is_floating_point():
        raise RuntimeError(WEIGHT_WITH_CLASSES)
    dx = call(CROSS_ENTROPY_BACKWARD, grad, input, target, weight, lse, *ctx.settings) if x else None
    return dx, *gradients(_formula_of_loss, (input, target, weight), ctx.settings, (grad,), (False, t, w))[1:]


def _tangent_of_loss(ctx, input, target, weight, lse, dx, dt, dw):
    moves = (dx, dt, dw) if target.is_floating_point() else (dx, None, None)
    return *tangents(_formula_of_loss, (input, target, weight), ctx.settings, moves), None


def _torch_loss(input, target, weight, ignore_index, reduction, _):
    loss = torch.nn.functional.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=_NAMES[reduction])
    return loss, torch.logsumexp(input, min(input.dim() - 1, 1))


def _native_loss(input, target, weight, ignore_index, reduction, label_smoothing):
    """The loss alone; its gradient is PyTorch's, which is channels-first whatever the data."""
    if not input.is_contiguous():
        return NotImplemented
    return torch.nn.functional.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=_NAMES[reduction],
                                             label_smoothing=label_smoothing), None


def _torch_backward_of_loss(grad, input, target, weight, lse, ignore_index, reduction, _):
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
CROSS_ENTROPY = Rule("cross_entropy", 3, _save_loss, _gradient_of_loss, _tangent_of_loss, mapped("cross_entropy", 3, 0, shared={2: _SHARED}), by_torch=_torch_loss,
                     native=_native_loss)
CROSS_ENTROPY_BACKWARD = Rule("cross_entropy_backward", 5, *derived(_backward_of_loss, 5), mapped("cross_entropy_backward", 5, 0, shared={3: _SHARED}),
                              by_torch=_torch_backward_of_loss)


# ---------------------------------------------------------------------------------------------- cross entropy: the function

_cross_entropy = front("cross_entropy")


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


def _loss_of(out: Optional[Tensor], *args: Any) -> Tensor:
    return call(CROSS_ENTROPY, *args)[0] if out is None else call_into(CROSS_ENTROPY, out, *args)


def _loss_or_label(*args: Any) -> Tensor:
    """An operator can only raise RuntimeError; PyTorch has another kind for a label that is no class."""
    try:
        return _loss_of(*args)
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
    how = _REDUCTIONS.get(reduction) if isinstance(reduction, str) else None
    entered = how is not None and out is None and size_average is None and reduce is None and not in_dynamo()
    if entered:
        loss = _cross_entropy(input, target, weight, how, ignore_index, label_smoothing)
        if loss is not NotImplemented:
            return loss
    if has_torch_function_variadic(input, target, weight):
        return handle_torch_function(cross_entropy, (input, target, weight), input, target, weight=weight, size_average=size_average,
                                     ignore_index=ignore_index, reduce=reduce, reduction=reduction, label_smoothing=label_smoothing, out=out)
    if size_average is not None or reduce is not None:
        reduction = _reduction.legacy_get_string(size_average, reduce)
        how = _REDUCTIONS[reduction]
    if how is None:
        if reduction != "elementwise_mean":
            raise ValueError(f"reduction: is {reduction!r}, allowed: 'none', 'mean' or 'sum'")
        how = _reduction.get_enum(reduction)   # warns
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
    loss = (_loss_of if is_compiling() else _loss_or_label)(out, input, target, weight, ignore_index, how, label_smoothing)
    return kept(loss) if entered else loss
