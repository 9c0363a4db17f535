"""Pointwise functions."""
from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_unary

from .._core.arguments import NoTensor
from .._core.entry import front, kept
from .._ops import pointwise as _ops
from .._core.rules import TYPES, call, call_into

__all__ = ["relu", "clipped_relu", "hardtanh", "tanh", "sigmoid", "ncrelu"]

Number = Union[int, float]
_strided = torch.strided
_in_dynamo = torch.compiler.is_dynamo_compiling   # which stops at builtins
_relu, _hardtanh, _tanh, _sigmoid = map(front, ("relu", "hardtanh", "tanh", "sigmoid"))


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


def _known(name: str, input: Any) -> bool:
    """A tensor that weft has kernels for; others are left to PyTorch."""
    if not isinstance(input, Tensor):
        raise NoTensor(f"{name}: input is {type(input).__name__}, allowed: Tensor")
    return input.dtype in TYPES and input.layout is _strided and not input.is_nested


# ---------------------------------------------------------------------------------------------- the two roads

def _check_place(inplace: bool, out: Optional[Tensor]) -> None:
    if inplace and out is not None:
        raise ValueError("out: is given with inplace=True, allowed: one of them")


def _torchs(name: str, inplace: bool, out: Optional[Tensor], input: Tensor, *bounds: float) -> Tensor:
    """PyTorch's own function, for types and layouts that weft leaves to it, and for bounds that are NaN."""
    _check_place(inplace, out)
    method = getattr(torch, name + "_" if inplace else name) if not bounds else torch.nn.functional.hardtanh
    result = method(input, *bounds, inplace) if bounds else method(input)
    return result if out is None else out.copy_(result)


def _run(rule: _ops.Pointwise, inplace: bool, out: Optional[Tensor], input: Tensor, *bounds: float) -> Tensor:
    if out is not None:
        _check_place(inplace, out)
        return call_into(rule, out, input, *bounds)
    if inplace:
        return _ops.call_in_place(rule, input, *bounds)
    return call(rule, input, *bounds) if _in_dynamo() else kept(call(rule, input, *bounds))


# ---------------------------------------------------------------------------------------------- public

def relu(input: Tensor, inplace: bool = False, *, out: Optional[Tensor] = None) -> Tensor:
    """max(x, 0): torch.nn.functional.relu.

        >>> weft.functional.relu(torch.tensor([-1.0, 2.0]))
        tensor([0., 2.])
    """
    if not inplace and out is None and not _in_dynamo():
        y = _relu(input)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(relu, (input,), input, inplace=inplace, out=out)
    if not _known("relu", input):
        return _torchs("relu", inplace, out, input)
    return _run(_ops.relu, inplace, out, input)


def hardtanh(input: Tensor, min_val: Number = -1.0, max_val: Number = 1.0, inplace: bool = False, *, out: Optional[Tensor] = None) -> Tensor:
    """min(max(x, min_val), max_val): torch.nn.functional.hardtanh.

        >>> weft.functional.hardtanh(torch.tensor([-3.0, 0.5, 3.0]), -1, 2)
        tensor([-1.0000,  0.5000,  2.0000])
    """
    if not inplace and out is None and not _in_dynamo():
        y = _hardtanh(input, min_val, max_val)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(hardtanh, (input,), input, min_val=min_val, max_val=max_val, inplace=inplace, out=out)
    known, lo, hi = _known("hardtanh", input), _bound("min_val", min_val), _bound("max_val", max_val)
    ordered = lo <= hi   # not so if one is NaN
    if lo > hi:
        raise ValueError(f"min_val: is {min_val}, allowed: not above max_val, {max_val}")
    if not known or not ordered:
        return _torchs("hardtanh", inplace, out, input, min_val, max_val)
    return _run(_ops.clip, inplace, out, input, lo, hi)


def clipped_relu(input: Tensor, ceiling: Number, inplace: bool = False, *, out: Optional[Tensor] = None) -> Tensor:
    """min(max(x, 0), ceiling).

        >>> weft.functional.clipped_relu(torch.tensor([-1.0, 2.0, 30.0]), 20)
        tensor([ 0.,  2., 20.])
    """
    if not inplace and out is None and not _in_dynamo():
        y = _hardtanh(input, 0.0, ceiling) if type(ceiling) in (int, float) and ceiling > 0 else _hardtanh()   # without arguments: refused
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(clipped_relu, (input,), input, ceiling, inplace=inplace, out=out)
    known, hi = _known("clipped_relu", input), _bound("ceiling", ceiling)
    if not hi > 0:
        raise ValueError(f"ceiling: is {ceiling}, allowed: a number above 0")
    if not known:
        return _torchs("hardtanh", inplace, out, input, 0, ceiling)
    return _run(_ops.clip, inplace, out, input, 0.0, hi)


def tanh(input: Tensor, *, inplace: bool = False, out: Optional[Tensor] = None) -> Tensor:
    """The hyperbolic tangent: torch.nn.functional.tanh, which has no `inplace`.

        >>> weft.functional.tanh(torch.tensor([0.0, 100.0]))
        tensor([0., 1.])
    """
    if not inplace and out is None and not _in_dynamo():
        y = _tanh(input)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(tanh, (input,), input, inplace=inplace, out=out)
    if not _known("tanh", input):
        return _torchs("tanh", inplace, out, input)
    return _run(_ops.tanh, inplace, out, input)


def sigmoid(input: Tensor, *, inplace: bool = False, out: Optional[Tensor] = None) -> Tensor:
    """1 / (1 + exp(-x)): torch.nn.functional.sigmoid, which has no `inplace`.

        >>> weft.functional.sigmoid(torch.tensor([0.0, 100.0]))
        tensor([0.5000, 1.0000])
    """
    if not inplace and out is None and not _in_dynamo():
        y = _sigmoid(input)
        if y is not NotImplemented:
            return y
    if has_torch_function_unary(input):
        return handle_torch_function(sigmoid, (input,), input, inplace=inplace, out=out)
    if not _known("sigmoid", input):
        return _torchs("sigmoid", inplace, out, input)
    return _run(_ops.sigmoid, inplace, out, input)


def ncrelu(input: Tensor, *, out: Optional[Tensor] = None) -> Tensor:
    """max(x, 0) and min(x, 0), one after the other along dimension 1, in one pass. The gradient at 0 is that of the first.

        >>> weft.ncrelu(torch.tensor([[1.0, -2.0]]))
        tensor([[ 1.,  0.,  0., -2.]])
    """
    if has_torch_function_unary(input):
        return handle_torch_function(ncrelu, (input,), input, out=out)
    if not isinstance(input, Tensor):
        raise TypeError(f"ncrelu: input is {type(input).__name__}, allowed: Tensor")
    return call(_ops.ncrelu, input) if out is None else call_into(_ops.ncrelu, out, input)
