"""The C entries: builtins in front of the dispatcher, for calls with plain tensors that nothing traces, transforms or watches.

Each answers NotImplemented where the long way is to be taken: through Python and PyTorch's dispatcher. What the entries read of PyTorch is no public
interface, so every fact is compared here with what Python says; if one does not hold there are no entries, and calls only take longer.
"""
from __future__ import annotations

import ctypes
import functools
import operator
import os
import sys
from collections.abc import Callable
from typing import Any, Optional

import torch
import torch.autograd.forward_ad as _forward_ad

from . import library as _library, settings as _settings

_object = ctypes.py_object
_BUILTINS: dict[str, Any] = {
    **{f"{name}{rank}d": getattr(torch, f"{name}{rank}d") for name in ("conv", "conv_transpose") for rank in (1, 2, 3)},
    **{f"max_pool{rank}d": getattr(torch, f"max_pool{rank}d") for rank in (1, 2, 3)},
    "avg_pool1d": torch.avg_pool1d, "avg_pool2d": torch._C._nn.avg_pool2d, "avg_pool3d": torch._C._nn.avg_pool3d,
    "adaptive_avg_pool1d": torch.adaptive_avg_pool1d, "adaptive_avg_pool2d": torch._C._nn.adaptive_avg_pool2d,
    "adaptive_avg_pool3d": torch._C._nn.adaptive_avg_pool3d,
    "relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "hardtanh": torch._C._nn.hardtanh,
    "softmax": torch.softmax, "log_softmax": torch.log_softmax, "batch_norm": torch.batch_norm,
    "unfold": torch._C._nn.im2col, "fold": torch._C._nn.col2im, "cross_entropy": torch._C._nn.cross_entropy_loss,
}
# of PyTorch's builtins, for their last arguments: the very objects that Python's own functions have as theirs
_DEFAULTS: dict[str, tuple] = {"conv": (None, 1, 0, 1, 1), "conv_transpose": (None, 1, 0, 0, 1, 1), "max_pool": ((), 0, 1, False),
                               "avg_pool1d": ((), 0, False, True), "avg_pool": ((), 0, False, True, None)}


def _refuse(*args: Any) -> Any:
    return NotImplemented


def _raw(*names: str) -> int:
    return functools.reduce(operator.or_, (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)).raw_repr()


def _cuda_keys() -> tuple[int, int]:
    """The key sets of a plain CUDA tensor and of one of inference mode, by the rule that those of the CPU follow: a CUDA tensor would start CUDA.
    -1, -1: they do not follow it."""
    def rule(device: str, inference: bool) -> int:
        return _raw(device, f"Autocast{device}", *() if inference else (f"Autograd{device}", "ADInplaceOrView"))

    known = [torch._C._dispatch_keys(torch.empty(1, device="cpu")).raw_repr()]
    with torch.inference_mode():
        known.append(torch._C._dispatch_keys(torch.empty(1, device="cpu")).raw_repr())
    if known != [rule("CPU", False), rule("CPU", True)]:
        return -1, -1
    return rule("CUDA", False), rule("CUDA", True)


def _test(begin: Callable, tensor: Callable, thread: Callable) -> bool:
    """Whether all that the entries read is as they take it to be."""
    types = torch.float32, torch.float64, torch.float16, torch.bfloat16
    # in their order: functionalization, names of dimensions (until 2.12), conjugates, negatives, zeros; the one that follows matters
    idle = (_raw("ADInplaceOrView") - 1) & ~(_raw("Functionalize") - 1)
    if begin(torch.Tensor, torch.nn.Parameter, _forward_ad.__dict__, "_current_level", -1, *types, *_cuda_keys(), idle) is NotImplemented:
        return False

    def fits(t: torch.Tensor, inference: bool = False) -> bool:
        return tensor(t, t._cdata, torch._C._dispatch_keys(t).raw_repr(), t.requires_grad, int(inference)) is not NotImplemented

    x = torch.empty(2, 3, device="cpu")
    kinds = [x, x.double().unsqueeze(0), x[:0], torch.nn.Parameter(x), x[1:], x.t(), torch.empty((), device="cpu", requires_grad=True)]
    with torch.inference_mode():
        kinds_inference = [torch.empty(2, device="cpu"), torch.empty(2, 3, 4, device="cpu")]
        known = thread(True)
    if not all([fits(t) for t in kinds] + [fits(t, True) for t in kinds_inference] + [fits(torch.empty(4, device="meta")), fits(x)]):
        return False
    states, records, order = [thread(), known], torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled()
    with torch.no_grad():
        states.append(thread())
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.Conjugate)):
        states.append(thread())
    expected = [(True, records, order), (True, False, order), (True, False, order), (True, records, order)]
    others = [torch.autocast("cpu", torch.bfloat16), torch.overrides.TorchFunctionMode(), torch.utils._python_dispatch.TorchDispatchMode(),
              torch._C._AutoDispatchBelowAutograd(), _forward_ad.dual_level()]
    for context in others:
        with context:
            states.append(thread())
            expected.append((False, records, order))
    return states == expected


_WITHOUT = ({}, _refuse, _refuse, lambda on, everywhere=False: _library.lib.weft_torch_seat_bypass(1 if on else -1, everywhere), lambda result: result, _refuse,
            lambda *args: False)


_fronts_of: Any = None   # the library, where there are entries


def _make() -> tuple[dict[str, Callable], Callable, Callable, Callable, Callable, Callable, Callable]:
    if os.environ.get("WEFT_ENTRY", "1") == "0" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return _WITHOUT
    lib = ctypes.PyDLL(_library.path)   # with the GIL, as the functions deal in objects
    lib.weft_torch_entry_test.restype = lib.weft_torch_entry.restype = lib.weft_torch_entry_run.restype = _object
    lib.weft_torch_entry_run.argtypes = [ctypes.c_int32]
    lib.weft_torch_entry.argtypes = [ctypes.c_char_p, _object, _object]
    lib.weft_torch_entry_seat.argtypes = [_object]
    lib.weft_torch_entry_seat.restype = None
    try:
        if not _test(*(lib.weft_torch_entry_test(i) for i in range(3))):
            return _WITHOUT
    except Exception:   # of a PyTorch that lacks one of the names above
        return _WITHOUT
    global _fronts_of
    _fronts_of = lib
    lib.weft_torch_entry_seat(_register_seat)
    made = {name: lib.weft_torch_entry(name.encode(), builtin, _DEFAULTS.get(name) or _DEFAULTS.get(name.rstrip("123d"), ()))
            for name, builtin in _BUILTINS.items()}
    return (made, *(lib.weft_torch_entry_run(i) for i in range(6)))   # type: ignore[return-value]


def _register_seat(family: int, cuda: bool) -> bool:
    from .. import _enable
    return _enable.seated("cuda" if cuda else "cpu", tuple(_enable.OPERATORS)[family])


# torchs(): the call that was refused is PyTorch's. kept(result): the same; the answer that the long way found is that of the next call of the kind.
# bypass(True or False): the seat is passed by on this thread; with a further True, on all. update: causal_conv1d_update by its operator's arguments; the state's version is to be
# counted by the caller. leaves(number, gradient, *arguments): the planner leaves the operator's call, and with gradient its gradient, to PyTorch
fronts, run, torchs, bypass, kept, update, leaves = _make()
available = bool(fronts)
if available:
    _settings.listeners.append(_library.lib.weft_torch_entry_open)
    _library.lib.weft_torch_entry_open(1)


def front(name: str, by_torch: Optional[Callable] = None) -> Callable:
    """The entry of a function. Called with the arguments of PyTorch's builtin, it returns the result or NotImplemented. Not for torch.compile, which
    would stop at it. by_torch: a function of the same arguments, where PyTorch has no builtin."""
    if by_torch is not None and _fronts_of is not None:
        return _fronts_of.weft_torch_entry(name.encode(), by_torch, ())
    return fronts.get(name, _refuse)


def number(name: str) -> int:
    """Of an operator, for run(number, *arguments), which returns its result or NotImplemented and records no gradient."""
    return _library.lib.weft_torch_entry_op(name.encode())
