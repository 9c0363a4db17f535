"""relu, clip, tanh, sigmoid, ncrelu: derivatives, batching and the forms in place of weft::relu, clip, tanh, sigmoid, ncrelu, ncrelu_backward."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as _forward_ad
from torch import Tensor

from .._core.entry import leaves, torchs
from .._core.rules import Rule, call, check_writable, mapped
from .conv import rounded

_aten = torch.ops.aten
_BelowAutograd = torch._C._AutoDispatchBelowAutograd
_is_compiling = torch.compiler.is_compiling
_in_transform = torch._C._are_functorch_transforms_active
_grad_enabled = torch.is_grad_enabled


# ---------------------------------------------------------------------------------------------- relu, clip, tanh, sigmoid
# From the result y alone; each is a product with a diagonal, so that a tangent takes the same formula as a gradient:
#   relu dy [y > 0]   clip dy [lo < y < hi]   tanh dy (1 - y^2)   sigmoid dy y (1 - y)

_FORMULAS: dict[str, Callable] = {
    "relu": lambda d, y: _aten.threshold_backward(d, y, 0),
    "clip": lambda d, y, lo, hi: _aten.hardtanh_backward(d, y, lo, hi),
    "tanh": _aten.tanh_backward,
    "sigmoid": _aten.sigmoid_backward,
}


def _save(ctx, inputs, output):
    ctx.bounds = tuple(rounded(v, output.dtype) for v in inputs[1:])   # as results that sit on them hold them
    return output,


_NATIVE = {"relu": torch.relu, "clip": torch._C._nn.hardtanh, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
_is_dense = torch.ops.aten.is_non_overlapping_and_dense.default
_NATIVE_IN_PLACE = {"relu": torch.relu_, "clip": torch._C._nn.hardtanh_, "tanh": torch.tanh_, "sigmoid": torch.sigmoid_}


class Pointwise(Rule):
    """A rule with a form in place: in_place(input, settings) differentiates it."""

    __slots__ = ("in_place", "native_in_place", "rounds")

    def __init__(self, name: str) -> None:
        formula = _FORMULAS[name]

        def gradient(ctx: Any, grad: Any) -> Any:
            output, = ctx.saved_tensors
            return formula(grad, output, *ctx.bounds),

        def tangent(ctx: Any, output: Any, dx: Any) -> Any:
            return formula(dx, output, *ctx.bounds)

        def batch(info: Any, in_dims: Any, input: Tensor, *settings: float) -> Any:
            return call(self, input, *settings), in_dims[0]

        super().__init__(name, 1, _save, gradient, tangent, batch, by_torch=_NATIVE[name], native=_NATIVE[name])
        self.native_in_place, self.rounds = _NATIVE_IN_PLACE[name], name in ("tanh", "sigmoid")

        def forward(ctx: Any, input: Tensor, settings: tuple) -> Tensor:
            _write(self, input, settings)
            ctx.mark_dirty(input)
            ctx.save_for_backward(*_save(ctx, (input, *settings), input))
            return input

        def backward(ctx: Any, grad: Any) -> Any:
            return *gradient(ctx, grad), None

        function = type(f"weft_{name}_in_place", (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})
        self.in_place = super(torch.autograd.Function, function).apply


def _write(rule: Pointwise, input: Tensor, settings: tuple) -> None:
    check_writable("input", input)
    differs = rule.rounds and torch._debug_has_internal_overlap(input) != 1   # else the bits are the same, or it is refused
    theirs = differs and leaves(rule.number, False, input, *settings)
    if differs and not theirs and input.is_cuda and not _is_dense(input):
        input.copy_(call(rule, input, *settings))   # in scattered memory it would be the reference, which is slow and rounds in its own way
        return
    with _BelowAutograd():
        rule.native_in_place(input, *settings) if theirs else rule.out(input, *settings, input)
    if theirs:
        torchs()
    if not input.is_inference():
        torch.autograd.graph.increment_version(input)


def call_in_place(rule: Pointwise, input: Tensor, *settings: float) -> Tensor:
    """Run into the input itself. Nothing is allocated, but where the graph must see a copy: under torch.compile and torch.func, in forward
    mode, for memory that holds the negative of a tensor, and for a view that requires grad, which PyTorch may refuse to change, and says so
    before anything is written."""
    if _is_compiling() or _in_transform() or _forward_ad._current_level >= 0 or input.is_neg():
        return input.copy_(call(rule, input, *settings))
    if not _grad_enabled() or not input.requires_grad:
        _write(rule, input, settings)
        return input
    if input.is_leaf:
        raise RuntimeError("input: is a leaf that requires grad, allowed in place: a result of other operators, or a tensor without grad")
    if input._is_view():
        return input.copy_(rule.apply(input, settings))   # which keeps the result; PyTorch's own may keep the input, and that is written to
    if not leaves(rule.number, True, input, *settings):
        return rule.in_place(input, settings)
    y = rule.native_in_place(input, *settings)   # the gradient is PyTorch's either way
    torchs()
    return y


relu = Pointwise("relu")
clip = Pointwise("clip")
tanh = Pointwise("tanh")
sigmoid = Pointwise("sigmoid")


# ---------------------------------------------------------------------------------------------- ncrelu

def _spread(d: Tensor, x: Tensor) -> Tensor:
    """d into the half that x goes to: the first where x >= 0, the second where x < 0, both at NaN."""
    return torch.cat((d.masked_fill(x < 0, 0), d.masked_fill(x >= 0, 0)), 1)


def _save_input(ctx, inputs, output):
    return inputs


def _gradient_of_ncrelu(ctx, grad):
    return call(ncrelu_backward, grad, *ctx.saved_tensors),


def _tangent_of_ncrelu(ctx, input, dx):
    return _spread(dx, input)


def _save_backward(ctx, inputs, output):
    return inputs[1:]


def _gradient_of_backward(ctx, v):
    return _spread(v, *ctx.saved_tensors) if ctx.needs_input_grad[0] else None, None


def _tangent_of_backward(ctx, input, dgrad, dinput):
    return torch.zeros_like(input) if dgrad is None else call(ncrelu_backward, dgrad, input)


ncrelu = Rule("ncrelu", 1, _save_input, _gradient_of_ncrelu, _tangent_of_ncrelu, mapped("ncrelu"))
ncrelu_backward = Rule("ncrelu_backward", 2, _save_backward, _gradient_of_backward, _tangent_of_backward, mapped("ncrelu_backward", 2))
