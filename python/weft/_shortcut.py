"""The short way to PyTorch's own code in training.

Where the planner leaves every pass of a call to PyTorch, a Python function of autograd around it only costs time, twice: PyTorch's own function
knows its gradient in C++. So the first call of a kind is watched, forward and backward: did a kernel of weft run? If none did, later calls of
the same kind (shapes, strides, types, settings) go straight to PyTorch's function. Any change of the settings starts this anew.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Optional

import torch
from torch import Tensor

from . import _entry, _library, _settings

_MOST = 4096                              # kinds of calls remembered for an operator
_runs = _library.lib.weft_torch_runs      # how many kernels of weft this thread has run
_bypass = _library.lib.weft_torch_seat_bypass
_note = _library.lib.weft_torch_note      # for weft.backends.kernels()
_profiled = torch.autograd._profiler_enabled
_NOTHING = nullcontext()
_all: list[Shortcut] = []
_open = True
seat_on = False   # weft.enable() holds: what was left to PyTorch must not come back to weft by it


def settings_changed(allowed: bool) -> None:
    """Forget what was seen; `allowed`: PyTorch's code may be chosen freely."""
    global _open
    _open = allowed
    for shortcut in _all:
        shortcut.known.clear()
        shortcut.plain.clear()


_settings.listeners.append(settings_changed)


class _Watch(threading.local):
    key: Any = None


watch = _Watch()


def _first(result: Any) -> Tensor:
    """The result itself, or the first of several."""
    return result[0] if isinstance(result, tuple) else result


class Shortcut:
    """native(*args) is PyTorch's function with the operator's arguments; NotImplemented: not for these."""

    __slots__ = ("name", "native", "known", "plain", "without_gradient")

    def __init__(self, name: str, native: Callable, without_gradient: bool = False) -> None:
        """without_gradient: the short way is worth its question also where no gradient is wanted."""
        self.name, self.native, self.without_gradient = name, native, without_gradient
        self.plain: dict[Any, Any] = {}   # as known, for calls without a gradient
        self.known: dict[Any, Any] = {}   # the strides of the result where PyTorch's way is open, False where it is not
        _all.append(self)

    def kind(self, args: tuple) -> Optional[tuple]:
        """What the planner's choices depend on; None for tensors that only stand for others, in a trace: no kernel runs on them."""
        for a in args:
            if isinstance(a, Tensor) and type(a) is not Tensor and type(a) is not torch.nn.Parameter:
                return None
        return tuple([(a.shape, a.stride(), a.dtype, a.device, a.requires_grad) if isinstance(a, Tensor) else tuple(a) if type(a) is list else a
                      for a in args])

    def call(self, args: tuple, apply: Callable) -> Any:
        """apply(): weft's way."""
        kind = self.kind(args)
        if kind is None:
            return apply()
        known = self.known.get(kind)
        if known is None:
            watch.key = kind
            try:
                return apply()
            finally:
                watch.key = None
        if known is False:
            return apply()
        return self._natively(self.known, kind, known, args, apply)

    def call_plain(self, args: tuple, apply: Callable) -> Any:
        """The same where no gradient is wanted: one pass tells all."""
        kind = self.kind(args)
        if kind is None:
            return apply()
        known = self.plain.get(kind)
        if known is None:
            before = _runs()
            output = apply()
            self._learn(kind, _first(output).stride() if _runs() == before else False, self.plain)
            return output
        return apply() if known is False else self._natively(self.plain, kind, known, args, apply)

    def _natively(self, where: dict, kind: Any, strides: Any, args: tuple, apply: Callable) -> Any:
        with torch.profiler.record_function(f"weft::{self.name}") if _profiled() else _NOTHING:
            result = self._bypassing(args) if seat_on else self.native(*args)
        if result is NotImplemented:
            where[kind] = False
            return apply()
        _note()
        first = _first(result)
        if first.stride() == strides:
            _entry.torchs()
            return result
        where[kind] = False   # its format is another one: this time copied, as a second run might change what it reads again
        kept = first.new_empty_strided(first.shape, strides).copy_(first)
        return (kept, *result[1:]) if isinstance(result, tuple) else kept

    def _bypassing(self, args: tuple) -> Any:
        _bypass(1)
        try:
            return self.native(*args)
        finally:
            _bypass(-1)

    def forward_ran(self, kind: Any, before: int, output: Any) -> Optional[tuple]:
        """After a watched forward pass: what to hand to the backward pass."""
        if _runs() != before:
            self._learn(kind, False)
            return None
        return kind, _first(output).stride()

    def backward_ran(self, seen: tuple, before: int) -> None:
        """After the backward pass of a watched call."""
        kind, strides = seen
        self._learn(kind, strides if _runs() == before else False)

    def _learn(self, kind: Any, what: Any, where: Optional[dict] = None) -> None:
        where = self.known if where is None else where
        if len(where) >= _MOST:
            where.clear()
        where[kind] = what
