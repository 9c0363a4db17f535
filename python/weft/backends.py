"""What runs underneath, and how it is chosen: the habit of torch.backends.cudnn.

    >>> x, w = torch.randn(1, 4, 8, 8), torch.randn(4, 4, 3, 3)
    >>> weft.backends.benchmark = True                 # measure the candidates once for each new shape, and remember
    >>> with weft.backends.flags(fastest=True, verbose=True):
    ...     y = weft.functional.conv2d(x, w)
    >>> with weft.backends.pin("torch"):               # this kernel wherever it applies
    ...     y = weft.functional.conv2d(x, w)

Settings hold for the whole process and every thread of it:
    benchmark         measure the best candidates of a problem that is not known yet, on private buffers, and remember the times. Which kernel
                      wins may then differ between runs; with wisdom it does not. Off: the least estimate.
    measure_seconds   how long one such measurement may take, at least a run of each candidate; None is 2 s
    wisdom_only       a problem that wisdom does not know is an error that names it: nothing is estimated or measured
    fastest           no limit on workspace
    workspace_limit   bytes a kernel may ask for; None is 64 MB. The reference kernels may take more: every problem has a kernel
    deterministic     there for those who set it everywhere: every kernel of weft gives the same bits on each run anyway
    math              'fast': errors at most 4 times those of the direct sum in float32; 'strict': errors like the direct sum;
                      'tf32': products of convolutions may be rounded to 10 bits on GPUs; None: fast, and where PyTorch's own code
                      runs, its flags (torch.backends.cudnn.allow_tf32)
    delegate          PyTorch's own code is a candidate where it has the same operator; False: weft's kernels only, whose bits do not depend
                      on the number of threads, as those of PyTorch's sums may
    verbose           True, or some of 'dispatch', 'tune', 'exec', 'error': lines on stderr
    pin               the name of a kernel that is to run wherever it applies; see pin()
"""
from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Optional

from ._core import calibrate as _calibrate, library as _library, settings as _settings
from ._core import wisdom
from ._core.arguments import check_flags

__all__ = ["calibrate", "describe", "flags", "keep_pages", "kernel_names", "kernels", "library", "pin", "set_flags", "wisdom",
           "benchmark", "delegate", "deterministic", "fastest", "math", "measure_seconds", "verbose", "wisdom_only", "workspace_limit"]

_SETTINGS = ("benchmark", "delegate", "deterministic", "fastest", "math", "measure_seconds", "verbose", "wisdom_only", "workspace_limit")


def calibrate(again: bool = False) -> int:
    """Measure how fast PyTorch's own convolutions are on this machine, in less than 2 seconds, and keep it in the cache directory; estimates use it
    from then on, in every process. weft.enable() does so if nobody did. again: measure also where it was done before. Returns how many were measured.

        >>> weft.backends.calibrate() > 0
        True
    """
    check_flags(again=again)
    return _calibrate.calibrate(again)


def describe() -> str:
    """The machine and the engines, one "key: value" line each; an engine that is absent says why.

        >>> "cpu" in weft.backends.describe()
        True
    """
    return _library.describe()


def keep_pages(keep: bool = True) -> bool:
    """Tell the C allocator, for the whole process, to keep the memory of large CPU tensors that were freed, instead of giving it back to the system.
    Each large result is otherwise mapped afresh, and its page faults cost more than many operators; PyTorch's own operators gain as much as weft's.
    The cost: the process holds as much memory as it ever used at once, and up to 64 MB more. False: back to the allocator's defaults, and what is
    free now is given back. Returns whether the C library has this switch (glibc has).

        >>> weft.backends.keep_pages() == weft.backends.keep_pages(False)
        True
    """
    check_flags(keep=keep)
    return bool(_library.lib.weft_torch_keep_pages(keep))


def kernels() -> str:
    """The names of the kernels that the last operator on this thread ran, joined by " + "; "torch" is PyTorch's own code.

        >>> y = weft.functional.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 3))
        >>> weft.backends.kernels() != ""
        True
    """
    return _library.kernels()


def kernel_names() -> list[str]:
    """The names of all kernels of weft, for pin().

        >>> "conv_ref" in weft.backends.kernel_names()
        True
    """
    return sorted(_library.kernel_names())


def library() -> str:
    """The path of the C library in use.

        >>> weft.backends.library().endswith("libweft_torch.so")
        True
    """
    return str(_library.path)


def set_flags(**settings: Any) -> dict[str, Any]:
    """Change settings for good and return their old values. All or none: an error changes nothing.

        >>> old = weft.backends.set_flags(benchmark=True, workspace_limit=1 << 20)
        >>> weft.backends.set_flags(**old)["benchmark"]
        True
    """
    before = _settings.change(**settings)
    return {name: getattr(before, name) for name in settings}


@contextmanager
def flags(**settings: Any) -> Iterator[None]:
    """Settings inside a `with` block; the old ones return at its end, also after an error.

        >>> with weft.backends.flags(math="strict", delegate=False):
        ...     y = weft.functional.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 3))
    """
    before = _settings.change(**settings)
    try:
        yield
    finally:
        _settings.restore(before)


def pin(kernel: Optional[str]) -> Any:
    """Run this kernel wherever it applies; other problems keep the planner's choice, and kernels() shows what ran. "torch" is PyTorch's own
    code. None takes the pin out. In a `with` statement the pin holds to the end of the block.

        >>> with weft.backends.pin("conv_ref"):
        ...     y = weft.functional.conv1d(torch.ones(1, 1, 3), torch.ones(1, 1, 3))
        ...     weft.backends.kernels()
        'conv_ref'
    """
    block = ExitStack()
    block.callback(_settings.change, pin=_settings.change(pin=kernel).pin)
    return block


class _Backends(types.ModuleType):
    """Settings are attributes of the module: reading and assigning them goes to the C library. A name that is none is refused."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _SETTINGS and not name.startswith("_") and not callable(value):
            raise AttributeError(f"{name}: is no setting of weft.backends, allowed: {', '.join(_SETTINGS)}" + ("; pin() is a function" if name == "pin" else ""))
        super().__setattr__(name, value)


def _setting(name: str) -> property:
    return property(lambda module: getattr(_settings.now(), name), lambda module, value: _settings.change(**{name: value}) and None)


for _name in _SETTINGS:
    setattr(_Backends, _name, _setting(_name))
sys.modules[__name__].__class__ = _Backends
