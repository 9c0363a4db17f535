"""Pointwise functions, and the rules of weft::relu, clip, tanh, sigmoid, ncrelu, ncrelu_backward with the forms in place."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional, Union

import torch
import torch.autograd.forward_ad as _forward_ad
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import TYPES, BelowAutograd, NoTensor, grad_enabled, in_dynamo, in_transform, is_compiling, named
from .._core.entry import front, kept, leaves, torchs
from .._core.rules import Rule, adjoint, call, call_into, check_writable, derived, mapped
from .conv import rounded

__all__ = ["relu", "clipped_relu", "hardtanh", "tanh", "sigmoid", "ncrelu"]

_aten = torch.ops.aten
Number = Union[int, float]
_strided = torch.strided
_relu, _hardtanh = front("relu"), front("hardtanh")


# ---------------------------------------------------------------------------------------------- relu, clip, tanh, sigmoid
# From the result y alone; each is a product with a diagonal, so that a tangent takes the same formula as a gradient:
#   relu dy [y > 0]   clip dy [lo < y < hi]   tanh dy (1 - y^2)   sigmoid dy y (1 - y)

def _save(ctx, inputs, output):
    ctx.bounds = tuple(rounded(v, output.dtype) for v in inputs[1:])   # as results that sit on them hold them
    return output,


_is_dense = torch.ops.aten.is_non_overlapping_and_dense.default


class Pointwise(Rule):
    """A rule with a form in place: in_place(input, settings) differentiates it."""

    __slots__ = ("in_place", "native_in_place", "rounds")

    def __init__(self, name: str, native: Callable, native_in_place: Callable, formula: Callable) -> None:
        def gradient(ctx: Any, grad: Any) -> Any:
            output, = ctx.saved_tensors
            return formula(grad, output, *ctx.bounds),

        def tangent(ctx: Any, output: Any, dx: Any) -> Any:
            return formula(dx, output, *ctx.bounds)

        def batch(info: Any, in_dims: Any, input: Tensor, *settings: float) -> Any:
            return call(self, input, *settings), in_dims[0]

        super().__init__(name, 1, _save, gradient, tangent, batch, by_torch=native, native=native)
        self.native_in_place, self.rounds = native_in_place, name in ("tanh", "sigmoid")

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
    with BelowAutograd():
        rule.native_in_place(input, *settings) if theirs else rule.out(input, *settings, input)
    if theirs:
        torchs()
    if not input.is_inference():
        torch.autograd.graph.increment_version(input)


def call_in_place(rule: Pointwise, input: Tensor, *settings: float) -> Tensor:
    """Run into the input itself. Nothing is allocated, but where the graph must see a copy: under torch.compile and torch.func, in forward
    mode, for memory that holds the negative of a tensor, and for a view that requires grad, which PyTorch may refuse to change, and says so
    before anything is written."""
    if is_compiling() or in_transform() or _forward_ad._current_level >= 0 or input.is_neg():
        return input.copy_(call(rule, input, *settings))
    if not grad_enabled() or not input.requires_grad:
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


RELU = Pointwise("relu", torch.relu, torch.relu_, lambda d, y: _aten.threshold_backward(d, y, 0))
CLIP = Pointwise("clip", torch._C._nn.hardtanh, torch._C._nn.hardtanh_, _aten.hardtanh_backward)
TANH = Pointwise("tanh", torch.tanh, torch.tanh_, _aten.tanh_backward)
SIGMOID = Pointwise("sigmoid", torch.sigmoid, torch.sigmoid_, _aten.sigmoid_backward)


# ---------------------------------------------------------------------------------------------- ncrelu

def _halves(x: Tensor) -> Tensor:
    """Into the first half where x >= 0, into the second where x < 0, into both at NaN."""
    return torch.cat((x.masked_fill(x < 0, 0), x.masked_fill(x >= 0, 0)), 1)


NCRELU = Rule("ncrelu", 1, *derived(_halves, 1, "ncrelu_backward"), mapped("ncrelu"))
Rule("ncrelu_backward", 2, *derived(adjoint(_halves, 1), 2), mapped("ncrelu_backward", 2))


# ---------------------------------------------------------------------------------------------- arguments

def _bound(name: str, value: Any) -> float:
    """A number, or a tensor that stands for one."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise RuntimeError(f"{name}: is a tensor of {value.numel()} elements {list(value.shape)}, allowed: a number")
        if value.dim() or value.requires_grad or value.is_complex():
            raise TypeError(f"{name}: is a tensor of {value.dim()} dimensions" + (" that requires grad" if value.requires_grad else "")
                            + ", allowed: a real number, or a tensor without dimensions and grad")
        return float(value)
    if not isinstance(value, (int, float, torch.SymInt, torch.SymFloat)):
        raise TypeError(f"{name}: is {value!r}, allowed: a real number")
    return float(value)


def _known(name: str, input: Any, inplace: bool, out: Any) -> bool:
    """A tensor that weft has kernels for; others are left to PyTorch."""
    if inplace and out is not None:
        raise ValueError("out: is given with inplace=True, allowed: one of them")
    if not isinstance(input, Tensor):
        raise NoTensor(f"{name}: input is {type(input).__name__}, allowed: Tensor")
    return input.dtype in TYPES and input.layout is _strided and not input.is_nested


# ---------------------------------------------------------------------------------------------- the two roads

def _torchs(name: str, inplace: bool, out: Optional[Tensor], input: Tensor, *bounds: float) -> Tensor:
    """PyTorch's own function, for types and layouts that weft leaves to it, and for bounds that are NaN."""
    method = getattr(torch, name + "_" if inplace else name) if not bounds else torch.nn.functional.hardtanh
    result = method(input, *bounds, inplace) if bounds else method(input)
    return result if out is None else out.copy_(result)


def _run(rule: Pointwise, inplace: bool, out: Optional[Tensor], input: Tensor, *bounds: float) -> Tensor:
    if out is not None:
        return call_into(rule, out, input, *bounds)
    if inplace:
        return call_in_place(rule, input, *bounds)
    return call(rule, input, *bounds) if in_dynamo() else kept(call(rule, input, *bounds))


# ---------------------------------------------------------------------------------------------- public

def relu(input: Tensor, inplace: bool = False, *, out: Optional[Tensor] = None) -> Tensor:
    """max(x, 0): torch.nn.functional.relu.

        >>> weft.functional.relu(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if not inplace and out is None and not in_dynamo():
        y = _relu(input)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(relu, (input,), input, inplace=inplace, out=out)
    if not _known("relu", input, inplace, out):
        return _torchs("relu", inplace, out, input)
    return _run(RELU, inplace, out, input)


def hardtanh(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False, *, out: Optional[Tensor] = None) -> Tensor:
    """min(max(x, min_val), max_val): torch.nn.functional.hardtanh.

        >>> weft.functional.hardtanh(torch.tensor([-3.0, 0.5, 3.0]), -1, 2)
        tensor([-1.0000,  0.5000,  2.0000])
    """
    if not inplace and out is None and not in_dynamo():
        y = _hardtanh(input, min_val, max_val)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(hardtanh, (input,), input, min_val=min_val, max_val=max_val, inplace=inplace, out=out)
    known, lo, hi = _known("hardtanh", input, inplace, out), _bound("min_val", min_val), _bound("max_val", max_val)
    ordered = lo <= hi   # not so if one is NaN
    if lo > hi:
        raise ValueError(f"min_val: is {min_val}, allowed: not above max_val, {max_val}")
    if not known or not ordered:
        return _torchs("hardtanh", inplace, out, input, min_val, max_val)
    return _run(CLIP, inplace, out, input, lo, hi)


def clipped_relu(input: Tensor, ceiling: Number, inplace: bool = False, *, out: Optional[Tensor] = None) -> Tensor:
    """min(max(x, 0), ceiling).

        >>> weft.functional.clipped_relu(torch.tensor([-1.0, 2.0, 30.0]), 20)
        tensor([ 0.,  2., 20.])
    """
    if not inplace and out is None and not in_dynamo():
        y = _hardtanh(input, 0.0, ceiling) if type(ceiling) in (int, float) and ceiling > 0 else _hardtanh()   # without arguments: refused
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(clipped_relu, (input,), input, ceiling, inplace=inplace, out=out)
    known, hi = _known("clipped_relu", input, inplace, out), _bound("ceiling", ceiling)
    if not hi > 0:
        raise ValueError(f"ceiling: is {ceiling}, allowed: a number above 0")
    if not known:
        return _torchs("hardtanh", inplace, out, input, 0, ceiling)
    return _run(CLIP, inplace, out, input, 0.0, hi)


def _smooth(rule: Pointwise, entry: Callable, name: str, help: str) -> Callable:
    def function(input: Tensor, *, inplace: bool = False, out: Optional[Tensor] = None) -> Tensor:
        if not inplace and out is None and not in_dynamo():
            y = entry(input)
            if y is not NotImplemented:
                return y
        if has_torch_function_unary(input):
            return handle_torch_function(function, (input,), input, inplace=inplace, out=out)
        return _run(rule, inplace, out, input) if _known(name, input, inplace, out) else _torchs(name, inplace, out, input)
    return named(function, name, help)


tanh = _smooth(TANH, front("tanh"), "tanh", """The hyperbolic tangent: torch.nn.functional.tanh, which has no `inplace`.

    >>> weft.functional.tanh(torch.tensor([0.0, 100.0]))
    tensor([0., 1.])
""")
sigmoid = _smooth(SIGMOID, front("sigmoid"), "sigmoid", """1 / (1 + exp(-x)): torch.nn.functional.sigmoid, which has no `inplace`.

    >>> weft.functional.sigmoid(torch.tensor([0.0, 100.0]))
    tensor([0.5000, 1.0000])
""")


def ncrelu(input: Tensor, *, out: Optional[Tensor] = None) -> Tensor:
    """max(x, 0) and min(x, 0), one after the other along dimension 1, in one pass. The gradient at 0 is that of the first.

        >>> weft.ncrelu(torch.tensor([[1.0, -2.0]]))
        tensor([[ 1.,  0.,  0., -2.]])
    """
    if has_torch_function_unary(input):
        return handle_torch_function(ncrelu, (input,), input, out=out)
    if not isinstance(input, Tensor):
        raise TypeError(f"ncrelu: input is {type(input).__name__}, allowed: Tensor")
    return call(NCRELU, input) if out is None else call_into(NCRELU, out, input)
