"""weft.enable(): weft's kernels under PyTorch's own operators.

The C side sits at the dispatch keys of PyTorch's operators (python/csrc/seat.h). Here it is put there, once, and switched on and off.
python -m weft run is at the end: any program with weft.enable() on, and a report of what it did.
"""
from __future__ import annotations

import os
import runpy
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch

from ._core import calibrate as _calibrate, entry as _entry, library as _library, settings as _settings

# in the order of the families in python/csrc/seat.h
OPERATORS = {"convolution": ("aten::convolution", "aten::convolution_backward"),
             "max_pool2d": ("aten::max_pool2d_with_indices", "aten::max_pool2d_with_indices_backward"),
             "avg_pool2d": ("aten::avg_pool2d", "aten::avg_pool2d_backward"),
             "adaptive_avg_pool2d": ("aten::_adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d_backward"),
             "softmax": ("aten::_softmax", "aten::_softmax_backward_data"),
             "log_softmax": ("aten::_log_softmax", "aten::_log_softmax_backward_data"),
             "batch_norm": ("aten::native_batch_norm", "aten::native_batch_norm_backward")}
_FAMILY = {name: i for i, name in enumerate(OPERATORS)}
_DEVICE = {"cpu": 0, "cuda": 1}
_lib = _library.lib
_lock = threading.Lock()
_seated: dict[tuple[str, str], bool] = {}   # by device and operator: registered, or refused for good


_UNBOXED = ("2.11.", "2.13.")


def _held(name: str, key: str) -> bool:
    """Whether a library other than PyTorch has put its own operator at the key."""
    there = [line for line in torch._C._dispatch_dump(name).splitlines() if line.startswith(f"{key}: ")]
    return any(f"/Register{key}" not in line for line in there)


def _put(key: str, operator: str) -> Optional[str]:
    """Register; None, or why not. PyTorch warns of operators that replace its own: inside one of its functions the warning comes to Python.
    Calls come unboxed with the releases of PyTorch that this was tested with."""
    unboxed = torch.__version__.startswith(_UNBOXED) and os.environ.get("WEFT_UNBOXED", "1") != "0"
    why: list[Optional[bytes]] = []

    def register(value: float) -> float:
        why.append(_lib.weft_torch_seat_register(key.encode(), _FAMILY[operator], unboxed))
        return value

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1).apply_(register)
    return None if why[0] is None else why[0].decode()


def _register(device: str, operator: str) -> bool:
    """Put an operator and its gradient at the device's key, if nobody else is there."""
    key = device.upper()
    for name in OPERATORS[operator]:
        if _held(name, key):
            warnings.warn(f"weft.enable: another library has put its own {name} at {key}; weft leaves it there and {operator} is not enabled on {device}",
                          RuntimeWarning, stacklevel=5)
            return False
    why = _put(key, operator)
    if why is not None:
        warnings.warn(f"weft.enable: {operator} is not enabled on {device}: {why}", RuntimeWarning, stacklevel=5)
    return why is None


def seated(device: str, operator: str = "convolution") -> bool:
    """Whether the operator is at the device's key; it is put there if it can be."""
    with _lock:
        if (device, operator) not in _seated:
            _seated[device, operator] = _register(device, operator)
        return _seated[device, operator]


def _devices(device: Any) -> list[str]:
    if device is None:
        return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    kind = torch.device(device).type
    if kind not in _DEVICE:
        raise ValueError(f"device: is {device!r}, allowed: 'cpu', 'cuda', or None for both")
    if kind == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("device: is 'cuda', allowed here: 'cpu' (PyTorch sees no GPU)")
    return [kind]


def _check(operators: tuple, math: Optional[str]) -> None:
    for name in operators:
        if name not in OPERATORS:
            raise ValueError(f"operators: has {name!r}, allowed: {', '.join(map(repr, OPERATORS))}, or none for all of them")
    if math not in (None, "strict", "fast"):
        raise ValueError(f"math: is {math!r}, allowed: None, 'strict' or 'fast'")


@contextmanager
def _restored() -> Iterator[None]:
    """What holds now returns at the end."""
    before = _lib.weft_torch_seat_state(), _lib.weft_torch_seat_math()
    try:
        yield
    finally:
        _lib.weft_torch_seat_switch(*before)


def enable(*operators: str, device: Any = None, math: Optional[str] = None) -> None:
    """Run PyTorch's own convolutions, 2D pooling, softmax and batch norm on weft's kernels wherever these are faster: every torch.nn.Conv2d and
    torch.nn.BatchNorm2d of any program, forward and backward. Everything else goes straight to PyTorch. Holds for the whole process, until disable().

    operators: "convolution", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "softmax", "log_softmax", "batch_norm"; none: all of them. device: "cpu"
    or "cuda"; None: both, where there is a GPU. math: "strict", the default, keeps to errors like the direct sum in float32; "fast" allows 4 times as much (weft.backends.math, where set,
    counts before it).

        >>> weft.enable()
        >>> torch.nn.Conv2d(8, 8, 3, padding=1, groups=8)(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 8, 32, 32])
        >>> weft.disable()
    """
    _check(operators, math)
    wanted = _devices(device)
    _calibrate.ensure()
    bits = [2 * _FAMILY[name] + _DEVICE[d] for d in wanted for name in dict.fromkeys(operators or OPERATORS) if seated(d, name)]   # python/csrc/seat.c
    _lib.weft_torch_seat_switch(sum(1 << bit for bit in bits), _settings.MATHS[math or "strict"])


def disable() -> None:
    """Back to PyTorch's own operators. Backward passes that are still to come run there too.

        >>> weft.disable()
    """
    _lib.weft_torch_seat_switch(0, _lib.weft_torch_seat_math())


@contextmanager
def enabled(*operators: str, device: Any = None, math: Optional[str] = None) -> Iterator[None]:
    """enable() inside a `with` block, for the whole process; what held before returns at its end.

        >>> with weft.enabled():
        ...     y = torch.nn.functional.conv1d(torch.randn(1, 4, 100), torch.randn(4, 1, 5), groups=4)
    """
    with _restored():
        enable(*operators, device=device, math=math)
        yield


def is_enabled() -> bool:
    """Whether PyTorch's operators go by weft now."""
    return bool(_lib.weft_torch_seat_state())


@contextmanager
def suspended() -> Iterator[None]:
    """Off inside a `with` block, for every thread: what is measured as PyTorch is PyTorch, its backward threads included."""
    with _restored():
        disable()
        yield


@contextmanager
def bypassed() -> Iterator[None]:
    """PyTorch's operators are PyTorch's own, on every thread: for measuring it."""
    _entry.bypass(True, True)
    try:
        yield
    finally:
        _entry.bypass(False, True)


def as_torch(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same call as PyTorch alone computes it, also where weft would take the gradient of a convolution that its own functions share with it."""
    bypass = _entry.bypass

    def alone() -> Any:
        bypass(True, True)
        try:
            return run()
        finally:
            bypass(False, True)
    return alone


class Seen(NamedTuple):
    """One kind of call that came by while weft was enabled."""

    problem: str
    backward: bool
    calls: int
    kernel: str    # "torch": left to PyTorch
    reason: str    # why
    ns: float      # estimates for one call
    torch_ns: float


def seen(forget: bool = False) -> list[Seen]:
    """Every kind of call since the start, or since forget=True was said."""
    buffer, size = None, 1 << 16
    while buffer is None or size > len(buffer):
        buffer = _library.buffer(size)
        size = _lib.weft_torch_seat_report(buffer, len(buffer), 0) + 1
    if forget:
        _lib.weft_torch_seat_report(buffer, 0, 1)
    rows = [line.split("\t") for line in buffer.value.decode().splitlines()]
    return [Seen(r[6], r[0] == "1", int(r[1]), r[4], r[5], float(r[2]), float(r[3])) for r in rows]


def from_environment() -> None:
    """WEFT_ENABLE=1 enables at import."""
    value = os.environ.get("WEFT_ENABLE", "")
    if value == "1":
        enable()
    elif value not in ("", "0"):
        warnings.warn(f"WEFT_ENABLE is {value!r}, allowed: 1 or 0; weft is not enabled", RuntimeWarning, stacklevel=3)


# ---------------------------------------------------------------------------------------------- python -m weft run

_SITE = str(Path(__file__).resolve().parent / "_site")
_EXTRA_US = {False: 0.4, True: 1.0}   # what a call costs more that is not taken, forward and backward: docs/enable.md


def _for_children() -> None:
    """Processes that the program starts enable weft as well."""
    os.environ["WEFT_ENABLE"] = "1"
    path = os.environ.get("PYTHONPATH", "")
    if _SITE not in path.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join([_SITE, path] if path else [_SITE])


def _time(ns: float) -> str:
    return f"{ns / 1e9:.2f} s" if ns >= 1e9 else f"{ns / 1e6:.1f} ms" if ns >= 1e6 else f"{ns / 1e3:.1f} us"


def report() -> str:
    """A table of the calls that came by in this process: problem, calls, kernel or why not, time saved by estimate."""
    rows = sorted(seen(), key=lambda s: (s.kernel == "torch", -(s.torch_ns - s.ns) * s.calls, s.problem))
    if not rows:
        return "weft: no convolution or pooling of PyTorch came by in this process"
    saved = sum((s.torch_ns - s.ns) * s.calls for s in rows if s.kernel != "torch")
    spent = sum(_EXTRA_US[s.backward] * 1e3 * s.calls for s in rows if s.kernel == "torch")
    lines = ["calls    saved      kernel, or why not; problem"]
    for s in rows:
        left = s.kernel == "torch"
        lines.append(f"{s.calls:<8} {'-' if left else _time((s.torch_ns - s.ns) * s.calls):<10} {'torch: ' + s.reason if left else s.kernel}; {s.problem}")
    taken, total = sum(s.calls for s in rows if s.kernel != "torch"), sum(s.calls for s in rows)
    lines.append(f"weft took {taken} of {total} calls and saved {_time(saved)} by estimate; the others cost {_time(spent)} more")
    if spent > saved:
        lines.append("weft.enable() does not pay for this program on this machine")
    return "\n".join(lines)


def run(target: str, args: list[str], module: bool, with_report: bool) -> int:
    """The program as `python target args` or `python -m target args` would run it; its exit status is this one's."""
    if not module and not Path(target).exists():
        print(f"python -m weft run: {target} is not there, allowed: the path of a script, or -m MODULE", file=sys.stderr)
        return 2
    _for_children()
    enable()
    sys.argv = [target, *args]
    code: Optional[object] = 0
    try:
        if module:
            sys.path[0] = os.getcwd()
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = str(Path(target).resolve().parent) if not Path(target).is_dir() else sys.path[0]
            runpy.run_path(target, run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    finally:
        if with_report:
            sys.stdout.flush()
            print(report(), file=sys.stderr)
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1
