"""The settings of weft.backends: one object, told to the C library whenever it changes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Optional

from . import library as _library
from .arguments import check_flags, check_seconds

TOPICS = {"dispatch": 1, "tune": 2, "exec": 4, "error": 8}
MATHS = {None: 0, "fast": 1, "strict": 2, "tf32": 3}
NO_LIMIT = (1 << 64) - 1
MODE_DEFAULT, MEASURE, WISDOM_ONLY = 0, 2, 3   # weft_mode


@dataclass(frozen=True)
class Settings:
    """See weft.backends for what each one means."""

    benchmark: bool = False
    fastest: bool = False
    deterministic: bool = False
    verbose: Any = False
    workspace_limit: Optional[int] = None
    math: Optional[str] = None
    delegate: bool = True
    pin: Optional[str] = None
    wisdom_only: bool = False
    measure_seconds: Optional[float] = None


def _topics(verbose: Any) -> int:
    if isinstance(verbose, bool):
        return sum(TOPICS.values()) if verbose else 0
    words = verbose.split(",") if isinstance(verbose, str) else list(verbose) if isinstance(verbose, (tuple, list, set, frozenset)) else [verbose]
    for word in words:
        if word not in TOPICS:
            raise ValueError(f"verbose: has {word!r}, allowed: True, False, or some of {', '.join(TOPICS)}")
    return sum(TOPICS[word] for word in set(words))


def _check(s: Settings) -> None:
    check_flags(benchmark=s.benchmark, fastest=s.fastest, deterministic=s.deterministic, delegate=s.delegate, wisdom_only=s.wisdom_only)
    limit = s.workspace_limit
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int)):
        raise TypeError(f"workspace_limit: is {limit!r}, allowed: a number of bytes, or None for 64 MB")
    if limit is not None and not 1 <= limit < NO_LIMIT:
        raise ValueError(f"workspace_limit: is {limit}, allowed: 1 or more bytes, or None for 64 MB; fastest=True is no limit at all")
    if s.measure_seconds is not None:
        check_seconds("measure_seconds", s.measure_seconds, ", or None for 2")
    if s.math not in MATHS:
        raise ValueError(f"math: is {s.math!r}, allowed: None, 'fast', 'strict' or 'tf32'")
    if s.pin is not None and not isinstance(s.pin, str):
        raise TypeError(f"pin: is {s.pin!r}, allowed: the name of a kernel, or None")
    if s.pin is not None and s.pin != "torch" and s.pin not in _library.kernel_names():
        raise ValueError(f"pin: is {s.pin!r}, allowed: 'torch', or a kernel of weft (weft.backends.kernel_names() lists them)")


_now = Settings()
listeners: list[Callable[[bool], None]] = []   # told after each change: may PyTorch's code be chosen freely?


def now() -> Settings:
    """The settings that hold."""
    return _now


def change(**settings: Any) -> Settings:
    """Change some settings and return what held before; nothing changes if one is wrong."""
    global _now
    allowed = asdict(_now)
    for name in settings:
        if name not in allowed:
            raise TypeError(f"{name}: is no setting, allowed: {', '.join(allowed)}")
    wanted, before = replace(_now, **settings), _now
    _check(wanted)
    mode = WISDOM_ONLY if wanted.wisdom_only else MEASURE if wanted.benchmark else MODE_DEFAULT
    _library.set_config(mode, wanted.delegate, MATHS[wanted.math], _topics(wanted.verbose),
                        NO_LIMIT if wanted.fastest else wanted.workspace_limit or 0, wanted.pin, wanted.measure_seconds or 0.0)
    _now = wanted
    for told in listeners:
        told(wanted.delegate and wanted.pin is None and wanted.math is None and not wanted.wisdom_only and not wanted.verbose)
    return before


def restore(before: Settings) -> None:
    """Go back to what `change` returned."""
    change(**asdict(before))
