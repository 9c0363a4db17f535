"""Which module of torch.nn stands for which of weft.nn, read off the classes themselves."""
from __future__ import annotations

from typing import Optional

import torch
from torch import nn

from .. import nn as _nn


def twin(cls: type) -> Optional[type]:
    """The class of torch.nn that a class of weft.nn extends; None where it extends Module alone."""
    for base in cls.__mro__:
        if base.__module__.startswith("torch.nn.modules."):
            return None if base is nn.Module else base
    return None


def _same_work(cls: type, other: type) -> bool:
    """Whether a subclass computes what its parent does: SpatialCrossEntropyLoss, with a rule of its own for inputs without a batch, does not."""
    return all(getattr(cls, name, None) is getattr(other, name, None) for name in ("forward", "_conv_forward"))


def _pairs() -> tuple[dict[type, type], dict[type, type]]:
    classes = [cls for cls in (getattr(_nn, name) for name in _nn.__all__) if isinstance(cls, type) and issubclass(cls, nn.Module)]
    to_weft = {twin(cls): cls for cls in classes if twin(cls) is not None and twin(cls).__name__ == cls.__name__}   # type: ignore[union-attr]
    to_torch = {cls: twin(cls) for cls in classes if twin(cls) in to_weft and _same_work(cls, to_weft[twin(cls)])}
    return to_weft, to_torch   # type: ignore[return-value]


TO_WEFT, TO_TORCH = _pairs()
TABLES = {"weft": TO_WEFT, "torch": TO_TORCH}


def _has_no_twin(module: nn.Module) -> str:
    """What an instance of weft.nn can do and its twin can not, in words; "" where there is nothing."""
    if getattr(module, "act", None) is not None:
        return f"act={module.act!r} is not in torch.nn"
    if getattr(module, "inplace", False) and isinstance(module, (nn.Tanh, nn.Sigmoid)):
        return "inplace=True is not in torch.nn"
    return ""


def reason_to_stay(module: nn.Module, to: str) -> Optional[str]:
    """Why a module that looks like one of the table keeps its class; "" for one that changes it; None for all the others."""
    table = TABLES[to]
    if type(module) in table:
        if "forward" in module.__dict__:
            return "has a forward of its own"
        return _has_no_twin(module) if to == "torch" else ""
    if type(module).__module__.startswith("torch.nn.modules." if to == "torch" else ("torch.nn.modules.", "weft.")):   # there, or of a kind of its own
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
