"""Modules of torch.nn and of weft.nn: which stands for which, which weft is expected to make faster, and copies of nets to try things on."""
from __future__ import annotations

import copy
import copyreg
import sys
from functools import cache
from typing import Any, Optional

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .. import nn as _nn

def twin(cls: type) -> Optional[type]:
    """The class of torch.nn that a class of weft.nn extends; None where it extends Module alone."""
    for base in cls.__mro__:
        if base.__module__.startswith("torch.nn.modules."):
            return None if base is nn.Module else base
    return None


def _pairs() -> tuple[dict[type, type], dict[type, type]]:
    classes = [cls for cls in (getattr(_nn, name) for name in _nn.__all__) if isinstance(cls, type) and issubclass(cls, nn.Module)]
    to_weft = {twin(cls): cls for cls in classes if twin(cls) is not None and twin(cls).__name__ == cls.__name__}   # type: ignore[union-attr]
    # a subclass that computes what its parent does: SpatialCrossEntropyLoss, with a rule of its own for inputs without a batch, does not
    to_torch = {cls: twin(cls) for cls in classes if twin(cls) in to_weft
                and all(getattr(cls, name, None) is getattr(to_weft[twin(cls)], name, None) for name in ("forward", "_conv_forward"))}
    return to_weft, to_torch   # type: ignore[return-value]


TO_WEFT, TO_TORCH = _pairs()
_TABLES = {"weft": TO_WEFT, "torch": TO_TORCH}


# ---------------------------------------------------------------------------------------------- subclasses of torch.nn's that others wrote

def kind_of(cls: type) -> type:
    """The class of torch.nn whose computing a subclass inherits as it is; the class itself where there is none, or where pickle could not find the subclass."""
    base = next((b for b in cls.__mro__ if b in TO_WEFT or b.__module__.startswith(("torch.nn.modules.", "weft."))), cls)
    if base not in TO_WEFT or type(cls) is not type or getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is not cls:
        return cls
    ours, between = TO_WEFT[base].__mro__, cls.__mro__[:cls.__mro__.index(base)]
    changed = {name for b in ours[:ours.index(base)] for name in vars(b) if not name.startswith("__")}
    return cls if any(changed & vars(b).keys() for b in between) else base


class _Joined(type):
    """The type of classes that joined() makes. Pickle has what they are made of, as it cannot find them."""

    joined: tuple[type, type]


@cache
def joined(ours: type, theirs: type) -> type:
    """Modules of class `theirs` as weft computes them, with a class of weft for the twin of theirs."""
    if theirs.__module__.startswith("torch.nn.modules."):
        return ours
    return _Joined(theirs.__name__, (theirs, ours), {"__module__": theirs.__module__, "__doc__": theirs.__doc__, "joined": (ours, theirs)})


copyreg.pickle(_Joined, lambda cls: (joined, cls.joined))   # type: ignore[arg-type]


def torch_class(cls: type) -> type:
    """The class itself, or the one that it stands for."""
    return cls.joined[1] if isinstance(cls, _Joined) else TO_TORCH.get(cls, cls)


def other_class(module: nn.Module, to: str) -> Optional[type]:
    """The class that stands for the module's on that side; None: it has it, or there is none."""
    cls = type(module)
    if to == "torch":
        return torch_class(cls) if isinstance(cls, _Joined) or cls in TO_TORCH else None
    return None if isinstance(cls, _Joined) or kind_of(cls) not in TO_WEFT else joined(TO_WEFT[kind_of(cls)], cls)


def _has_no_twin(module: nn.Module) -> str:
    """What an instance of weft.nn can do and its twin can not, in words; "" where there is nothing."""
    if getattr(module, "act", None) is not None:
        return f"act={module.act!r} is not in torch.nn"
    if getattr(module, "inplace", False) and isinstance(module, (nn.Tanh, nn.Sigmoid)):
        return "inplace=True is not in torch.nn"
    return ""


def reason_to_stay(module: nn.Module, to: str) -> Optional[str]:
    """Why a module that looks like one of the table keeps its class; "" for one that changes it; None for all the others."""
    table = _TABLES[to]
    if other_class(module, to) is not None:
        if "forward" in module.__dict__:
            return "has a forward of its own"
        return _has_no_twin(module) if to == "torch" else ""
    if isinstance(type(module), _Joined) or type(module).__module__.startswith("torch.nn.modules." if to == "torch" else ("torch.nn.modules.", "weft.")):   # there, or of a kind of its own
        return None
    parent = next((base for base in type(module).__mro__[1:] if base in table), None)
    return None if parent is None else f"is a subclass of {parent.__name__}"


def set_class(module: nn.Module, cls: type) -> None:
    """Gives a module another class: parameters, buffers, hooks and all who hold it stay."""
    object.__setattr__(module, "__class__", cls)


def same_storage(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf over the same memory, with a gradient of its own."""
    leaf = tensor.detach()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(leaf, tensor.requires_grad)
    return leaf.requires_grad_(tensor.requires_grad)


# ---------------------------------------------------------------------------------------------- a copy to try things on

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether someone watches or changes what goes through the module."""
    return any(getattr(module, name) for name in HOOKS)


def shadow(modules: Any) -> Any:
    """The copy of a module, or of a list of them. Forward and backward through it leave the originals alone: parameters are leaves over the same
    memory, so gradients go elsewhere; buffers, which batch normalisation writes to, are copied."""
    memo: dict[int, Any] = {}
    for module in (m for top in (modules if isinstance(modules, list) else [modules]) for m in top.modules()):
        for buffer in module._buffers.values():
            if buffer is not None and not is_lazy(buffer):
                memo.setdefault(id(buffer), buffer.detach().clone())
        for value in (*module._parameters.values(), *module.__dict__.values()):
            if isinstance(value, Tensor) and not is_lazy(value):
                memo.setdefault(id(value), same_storage(value))
        for name in (*HOOKS, "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called"):
            if hasattr(module, name):
                memo[id(getattr(module, name))] = type(getattr(module, name))()
    try:
        return copy.deepcopy(modules, memo)
    except Exception as error:
        raise RuntimeError(f"net: can not be copied, which example and fuse need, {type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------------------------------- what is expected to be faster
# Kinds of modules of which every row of docs/benchmarks is at least as fast as PyTorch.

_LEVEL = "weft is not expected to be faster"


def _conv(module: nn.Module, dtype: torch.dtype, device: str) -> str:
    """One filter per channel, and few channels in a group in 3D; the format of the weights is taken for that of the data. Of one channel in a filter
    is_contiguous() is true in either format, the strides tell."""
    rank, inside = module.weight.dim() - 2, module.in_channels // module.groups
    if module.groups > 1 and inside == 1:
        last = module.weight.stride(1) == 1
        if device == "cpu" and ((dtype is torch.bfloat16 and rank < 3) or (last and max(module.kernel_size) > 9)):
            return "PyTorch's depthwise convolution is as fast in this type and format"
        return ""
    if device == "cpu" and rank == 3 and 1 < module.groups and inside < 8 and dtype is torch.float32:
        return ""
    return "PyTorch's dense convolution is as fast" if module.groups == 1 else "PyTorch's grouped convolution is as fast"


def _adaptive(module: nn.Module, dtype: torch.dtype, device: str) -> str:
    sizes = module.output_size if isinstance(module.output_size, (tuple, list)) else (module.output_size,)
    return "to one pixel PyTorch takes a mean, which is as fast" if all(n == 1 for n in sizes) else ""


_ALWAYS = dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.Softmax, nn.LogSoftmax, nn.CrossEntropyLoss, nn.LocalResponseNorm, nn.Unfold, nn.Fold), lambda *_: "")
_KINDS = {**_ALWAYS, nn.Conv1d: _conv, nn.Conv2d: _conv, nn.Conv3d: _conv, nn.AdaptiveAvgPool2d: _adaptive,
          nn.Tanh: lambda module, dtype, device: "" if device == "cpu" else _LEVEL}
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


def why_not(module: nn.Module, net: nn.Module) -> str:
    """"" for a module of torch.nn that weft is expected to make faster; else why not. Where a module has no parameters, those of the net tell its type
    and device.

        >>> from weft._convert import pairs as _pairs
        >>> conv = torch.nn.Conv2d(8, 8, 3, groups=8)
        >>> _pairs.why_not(conv, conv), _pairs.why_not(torch.nn.ReLU(), conv)
        ('', 'weft is not expected to be faster')
    """
    if type(module) in (nn.RNN, nn.LSTM, nn.GRU):
        return "a recurrent layer of torch.nn is what quantize_dynamic looks for"
    given = next((t for owner in (module, net) for t in owner.parameters() if t.is_floating_point()), None)
    dtype, device = (torch.get_default_dtype(), "cpu") if given is None else (given.dtype, given.device.type)
    kind = kind_of(type(module))
    if kind not in _KINDS or dtype not in _TYPES or device not in ("cpu", "cuda"):
        return _LEVEL
    return _KINDS[kind](module, dtype, device)
