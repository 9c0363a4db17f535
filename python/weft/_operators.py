"""The operators of libweft_torch.so made to differentiate, trace and batch.

A rule gathers what one operator needs: the operator itself, two functions written once (what to save, what its gradient is), and the
forms PyTorch wants them in: an old-style autograd.Function for eager code (the cheapest), a setup_context one for torch.func, and
registrations for torch.compile. `call` picks the form. Nothing here touches the elements of a tensor.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad
from torch import Tensor

from . import _library  # noqa: F401  loads the operators

_C = torch._C
_BelowAutograd = _C._AutoDispatchBelowAutograd
_is_compiling = torch.compiler.is_compiling
_in_transform = _C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled

WANT_INPUT, WANT_WEIGHT, WANT_BIAS = 1, 2, 4


class Rule:
    """One operator and its gradient. tensors: how many leading arguments are tensors; only they have gradients.

    save(ctx, inputs, output) notes what the others need and returns the tensors to keep; gradient(ctx, *grads) returns one gradient for
    each of those tensors; tangent(ctx, *tangents) is its forward-mode counterpart, given one tangent for each.
    """

    __slots__ = ("op", "tensors", "function", "apply", "transformed")

    def __init__(self, name: str, tensors: int, save: Callable, gradient: Callable, tangent: Callable, batch: Callable) -> None:
        op = getattr(torch.ops.weft, name).default
        nothing = (None,) * (len(op._schema.arguments) - tensors)
        self.op, self.tensors = op, tensors

        def forward(ctx: Any, *packed: Any) -> Any:
            """Settings come as one argument: each argument of a Function costs time, also on the way back."""
            args = packed[:-1] + packed[-1]
            with _BelowAutograd():
                output = op(*args)
            ctx.save_for_backward(*save(ctx, args, output))
            return output

        def setup(ctx: Any, inputs: tuple, output: Any) -> None:
            kept = save(ctx, inputs, output)
            ctx.save_for_backward(*kept)
            ctx.save_for_forward(*kept)

        def backward(ctx: Any, *grads: Any) -> Any:
            return gradient(ctx, *grads) + (None,)

        def backward_in_full(ctx: Any, *grads: Any) -> Any:
            return gradient(ctx, *grads) + nothing

        self.function = type(f"weft_{name}", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
        self.apply = super(torch.autograd.Function, self.function).apply   # without the preparations for torch.func: 2.5 us of 14
        self.transformed = type(f"weft_{name}_transformed", (torch.autograd.Function,), {
            "forward": staticmethod(lambda *args: op(*args)), "setup_context": staticmethod(setup), "vmap": staticmethod(batch),
            "backward": staticmethod(backward_in_full), "jvp": staticmethod(lambda ctx, *tangents: tangent(ctx, *tangents[:tensors]))})
        torch.library.register_autograd(op, backward_in_full, setup_context=setup)
        torch.library.register_vmap(op, batch)


def call(rule: Rule, *args: Any) -> Any:
    """Run the rule's operator in the form that the caller's context needs."""
    if _is_compiling():
        return rule.op(*args)
    if _in_transform() or _forward_ad._current_level >= 0:
        return rule.transformed.apply(*args)
    if _grad_enabled():
        for t in args[:rule.tensors]:
            if t is not None and t.requires_grad:
                return rule.apply(*args[:rule.tensors], args[rule.tensors:])
    with _BelowAutograd():
        return rule.op(*args)


# ---------------------------------------------------------------------------------------------- shapes

def _is_last(t: Tensor, rank: int) -> bool:
    """Channels-last memory, by the rule of python/csrc/conv.c."""
    channel, pixel = t.stride(-rank - 1), t.stride(-1)
    return channel < pixel or (channel == pixel and t.shape[-rank - 1] == 1 and t.shape[-1] > 1)


def _dense(like: Tensor, sizes: Sequence[int], last: bool, rank: int) -> Tensor:
    """An empty tensor of these sizes, dense and channels-first or -last."""
    axes = list(range(len(sizes)))
    if last:
        channel = len(sizes) - rank - 1
        axes.append(axes.pop(channel))
    strides, step = [0] * len(sizes), 1
    for a in reversed(axes):
        strides[a] = step
        step = step * sizes[a]
    return like.new_empty_strided(sizes, strides)


def _check_shapes(input: Tensor, weight: Tensor, pads: Sequence[int]) -> int:
    rank = weight.dim() - 2
    torch._check(1 <= rank <= 3, lambda: f"weight: has {weight.dim()} dimensions, allowed: 3 (1D), 4 (2D) or 5 (3D)")
    torch._check(input.dim() in (rank + 1, rank + 2),
                 lambda: f"input: has {input.dim()} dimensions, allowed: {rank + 2} (batched) or {rank + 1} (unbatched)")
    torch._check(input.device == weight.device, lambda: f"weight: is on {weight.device}, allowed: the device of input, {input.device}")
    torch._check(len(pads) == 2 * rank, lambda: f"padding: has {len(pads)} values, allowed: {2 * rank}")
    return rank


def _fake_conv(input, weight, bias, stride, padding, dilation, groups, act, lo, hi):
    rank = _check_shapes(input, weight, padding)
    torch._check(input.shape[-rank - 1] == weight.shape[1] * groups,
                 lambda: f"input: has {input.shape[-rank - 1]} channels, allowed: {weight.shape[1] * groups}")
    spatial = [(input.shape[-rank + a] + padding[2 * a] + padding[2 * a + 1] - dilation[a] * (weight.shape[2 + a] - 1) - 1) // stride[a] + 1
               for a in range(rank)]
    return _dense(input, [*input.shape[:-rank - 1], weight.shape[0], *spatial], _is_last(input, rank), rank)


def _fake_conv_transpose(input, weight, bias, stride, padding, dilation, groups, act, lo, hi, output_padding):
    rank = _check_shapes(input, weight, padding)
    torch._check(input.shape[-rank - 1] == weight.shape[0],
                 lambda: f"input: has {input.shape[-rank - 1]} channels, allowed: {weight.shape[0]}")
    spatial = [(input.shape[-rank + a] - 1) * stride[a] - padding[2 * a] - padding[2 * a + 1] + dilation[a] * (weight.shape[2 + a] - 1)
               + output_padding[a] + 1 for a in range(rank)]
    return _dense(input, [*input.shape[:-rank - 1], weight.shape[1] * groups, *spatial], _is_last(input, rank), rank)


def _fake_conv_backward(grad_output, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    rank = _check_shapes(input, weight, padding)
    none = [0]
    return (_dense(input, input.shape, _is_last(input, rank), rank) if want & WANT_INPUT else input.new_empty(none),
            _dense(weight, weight.shape, _is_last(weight, rank), rank) if want & WANT_WEIGHT else input.new_empty(none),
            input.new_empty([grad_output.shape[-rank - 1]] if want & WANT_BIAS else none, dtype=bias_dtype))


# ---------------------------------------------------------------------------------------------- gradients

def _save_forward(ctx, inputs, output):
    """For conv and conv_transpose alike: the geometry, the activation, and its result where there is one."""
    input, weight, bias, stride, padding, dilation, groups, act, lo, hi = inputs[:10]
    ctx.geometry = (stride, padding, dilation, groups)
    ctx.act, ctx.lo, ctx.hi = act, lo, hi
    ctx.bias_dtype = input.dtype if bias is None else bias.dtype
    ctx.shape = output.shape
    ctx.transposed = len(inputs) > 10
    return input, weight, output if act else None


def _through_act(grad, output, act, lo, hi):
    """The gradient before the activation, from its result: 0 where the result sits on a bound."""
    if act == "relu":
        return torch.ops.aten.threshold_backward(grad, output, 0)
    return torch.ops.aten.hardtanh_backward(grad, output, lo, hi)


def _gradient_of_forward(ctx, grad):
    input, weight, output = ctx.saved_tensors
    if ctx.act:
        grad = _through_act(grad, output, ctx.act, ctx.lo, ctx.hi)
    x, w, b = ctx.needs_input_grad[:3]
    want = x * WANT_INPUT + w * WANT_WEIGHT + b * WANT_BIAS
    dx, dw, db = call(conv_backward, grad, input, weight, *ctx.geometry, ctx.transposed, want, ctx.bias_dtype)
    return dx if x else None, dw if w else None, db if b else None


def _save_backward(ctx, inputs, output):
    ctx.rest = inputs[3:]
    ctx.set_materialize_grads(False)
    return inputs[:3]


def _linear(transposed, size, input, weight, bias, stride, padding, dilation, groups):
    """The forward operator without activation. size: the spatial size of its result."""
    args = (input, weight, bias, stride, padding, dilation, groups, "", 0.0, 0.0)
    if not transposed:
        return call(conv, *args)
    rank = len(stride)
    least = [(input.shape[-rank + a] - 1) * stride[a] - padding[2 * a] - padding[2 * a + 1] + dilation[a] * (weight.shape[2 + a] - 1) + 1
             for a in range(rank)]
    return call(conv_transpose, *args, [n - m for n, m in zip(size, least)])


def _of_small_steps(transposed, shape, geometry, input, weight, dx, dw, db):
    """What small steps of input, weight and bias (each may be None) do to the result: the operator is linear in each of them."""
    rank, moved = len(geometry[0]), None
    size = shape[-rank:]
    if dw is not None:
        moved, db = _linear(transposed, size, input, dw, db, *geometry), None
    if dx is not None:
        more = _linear(transposed, size, dx, weight, db, *geometry)
        moved, db = more if moved is None else moved + more, None
    if db is not None:
        moved = db.to(input.dtype).view(-1, *[1] * rank).expand(shape)
    return moved


def _tangent_of_forward(ctx, dx, dw, db):
    input, weight, output = ctx.saved_tensors
    moved = _of_small_steps(ctx.transposed, ctx.shape, ctx.geometry, input, weight, dx, dw, db)
    return _through_act(moved, output, ctx.act, ctx.lo, ctx.hi) if ctx.act else moved


def _tangent_of_backward(ctx, ddy, dx, dw):
    """Each result is bilinear: dx in (dy, weight), dw in (dy, input); db is linear in dy."""
    grad, input, weight = ctx.saved_tensors
    *geometry, transposed, want, bias_dtype = ctx.rest
    moved = [None, None, None]
    for args, some in (((ddy, input, weight), want), ((grad, input, dw), want & WANT_INPUT), ((grad, dx, weight), want & WANT_WEIGHT)):
        if not some or any(t is None for t in args):
            continue
        for i, more in enumerate(call(conv_backward, *args, *geometry, transposed, some, bias_dtype)):
            if some & (1 << i):
                moved[i] = more if moved[i] is None else moved[i] + more
    channels = grad.shape[-len(geometry[0]) - 1]
    still = ((input, input.shape), (weight, weight.shape), (grad, (channels,)))   # torch.func wants a tangent of every result
    return tuple(m if m is not None else t.new_zeros(shape if want & (1 << i) else (0,), dtype=bias_dtype if i == 2 else None)
                 for i, (m, (t, shape)) in enumerate(zip(moved, still)))


def _gradient_of_backward(ctx, ddx, ddw, ddb):
    """The operator is linear in input and in weight, so that, with y its result and dy the gradient of y:
    grad of dy = y(ddx, weight) + y(input, ddw) + ddb;  grad of input = dx(dy, ddw);  grad of weight = dw(dy, ddx)."""
    grad, input, weight = ctx.saved_tensors
    *geometry, transposed, want, bias_dtype = ctx.rest
    ddx = ddx if want & WANT_INPUT else None
    ddw = ddw if want & WANT_WEIGHT else None
    ddb = ddb if want & WANT_BIAS else None
    of_grad = of_input = of_weight = None
    if ctx.needs_input_grad[0]:
        of_grad = _of_small_steps(transposed, grad.shape, geometry, input, weight, ddx, ddw, ddb)
    if ctx.needs_input_grad[1] and ddw is not None:
        of_input = call(conv_backward, grad, input, ddw, *geometry, transposed, WANT_INPUT, bias_dtype)[0]
    if ctx.needs_input_grad[2] and ddx is not None:
        of_weight = call(conv_backward, grad, ddx, weight, *geometry, transposed, WANT_WEIGHT, bias_dtype)[1]
    return of_grad, of_input, of_weight


# ---------------------------------------------------------------------------------------------- batching

def _batched(t: Tensor, dim: int | None, size: int, full: int) -> Tensor:
    """t with the batch of vmap in front, and of `full` further dimensions: an unbatched image gets a batch of one."""
    t = t.unsqueeze(0).expand(size, *t.shape) if dim is None else t.movedim(dim, 0)
    return t if t.dim() == full + 1 else t.unsqueeze(1)


def _into_channels(t: Tensor) -> Tensor:
    return t.movedim(0, 1).flatten(1, 2)


def _out_of_channels(t: Tensor, size: int, unbatched: bool) -> Tensor:
    t = t.unflatten(1, (size, -1)).movedim(1, 0)
    return t.squeeze(1) if unbatched else t


def _logical(t: Tensor, dim: int | None) -> int:
    return t.dim() - (dim is not None)


def _batch_forward(rule_name):
    """A batch of inputs under one weight is a larger batch; one with its own weights is more groups."""
    def batch(info, in_dims, input, weight, bias, stride, padding, dilation, groups, *rest):
        size, full = info.batch_size, _logical(weight, in_dims[1])
        rule, unbatched = globals()[rule_name], _logical(input, in_dims[0]) < full
        x = _batched(input, in_dims[0], size, full)
        if in_dims[1] is None and in_dims[2] is None:
            y = call(rule, x.flatten(0, 1), weight, bias, stride, padding, dilation, groups, *rest).unflatten(0, (size, -1))
            return (y.squeeze(1) if unbatched else y), 0
        w = _batched(weight, in_dims[1], size, full).flatten(0, 1)
        b = None if bias is None else _batched(bias, in_dims[2], size, 1).flatten()
        y = call(rule, _into_channels(x), w, b, stride, padding, dilation, groups * size, *rest)
        return _out_of_channels(y, size, unbatched), 0
    return batch


def _batch_backward(info, in_dims, grad, input, weight, stride, padding, dilation, groups, transposed, want, bias_dtype):
    size, full = info.batch_size, _logical(weight, in_dims[2])
    unbatched = _logical(input, in_dims[1]) < full
    dy, x = (_into_channels(_batched(t, d, size, full)) for t, d in ((grad, in_dims[0]), (input, in_dims[1])))
    w = _batched(weight, in_dims[2], size, full).flatten(0, 1)
    dx, dw, db = call(conv_backward, dy, x, w, stride, padding, dilation, groups * size, transposed, want, bias_dtype)
    dx = _out_of_channels(dx, size, unbatched) if want & WANT_INPUT else dx
    dw = dw.unflatten(0, (size, -1)) if want & WANT_WEIGHT else dw
    db = db.unflatten(0, (size, -1)) if want & WANT_BIAS else db
    return (dx, dw, db), tuple(0 if want & bit else None for bit in (WANT_INPUT, WANT_WEIGHT, WANT_BIAS))


for _name, _fake in (("conv", _fake_conv), ("conv_transpose", _fake_conv_transpose), ("conv_backward", _fake_conv_backward)):
    torch.library.register_fake(f"weft::{_name}", _fake)

conv = Rule("conv", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward("conv"))
conv_transpose = Rule("conv_transpose", 3, _save_forward, _gradient_of_forward, _tangent_of_forward, _batch_forward("conv_transpose"))
conv_backward = Rule("conv_backward", 3, _save_backward, _gradient_of_backward, _tangent_of_backward, _batch_backward)
