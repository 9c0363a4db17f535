"""A copy of a net to try things on: parameters share their memory with the original, everything else is its own, hooks are left out."""
from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from .pairs import same_storage

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
