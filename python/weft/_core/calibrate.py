"""How fast PyTorch is on this machine: its kinds of convolution on small made-up data, measured once and kept in the cache directory.

The planner weighs weft's kernels beside PyTorch by estimates. These come from constants until calibrate() has run here, which weft.enable() does if
nobody did before. The file is written once and never changed; every process reads it.
"""
from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Optional

import torch

from .._bench import clock as _clock
from . import library as _library

SECONDS = 1.6                       # for all of it, but for the last one
_HEADER = "weft: rates of PyTorch 3"
_lib = _library.lib
_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_PASSES = ("fwd", "bwd_data", "bwd_weights")
# window, channels of a group (0: all); sizes tiny and larger: channels, edge. A window of more than 9 in 3D would take most of the time.
_FAMILIES = {2: ((3, 1), (7, 1), (13, 1), (3, 4), (1, 0), (3, 0)), 3: ((3, 1), (5, 1), (3, 4), (1, 0), (3, 0))}
_SIZES = {2: ((8, 8), (64, 28)), 3: ((8, 4), (32, 12))}

loaded = False


def _directory() -> Optional[Path]:
    """Where the C library keeps what it measured; None: nowhere."""
    named = os.environ.get("WEFT_CACHE_DIR")
    if named is not None:
        return Path(named) if named else None
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weft"


def _file() -> Optional[Path]:
    directory = _directory()
    cpu = next((line for line in _library.describe().splitlines() if line.startswith("cpu")), "")
    key = hashlib.sha256(f"{_HEADER} {_library.version()} {torch.__version__} {cpu} {torch.get_num_threads()}".encode()).hexdigest()[:16]
    return None if directory is None else directory / f"torch-{key}.txt"


def _call(rank: int, passes: str, dtype: str, last: bool, family: tuple[int, int], size: tuple[int, int]) -> tuple[str, Callable[[], object]]:
    """A problem's text, and PyTorch's operator for it on made-up data."""
    (window, divisor), (channels, edge) = family, size
    edge, groups = max(edge, window), channels // divisor if divisor else 1
    batch = 2 if rank == 3 and not divisor else 1   # one volume that is small goes another way: torch_conv.c, COLUMNS
    layout = ("nhwc" if last else "nchw") if rank == 2 else ("ndhwc" if last else "ncdhw")
    sizes = "".join(f"{axis}{edge}" for axis in "dhw"[3 - rank:])
    text = f"conv{rank}d:{passes}:{dtype}:{layout}:n{batch}c{channels}{sizes}:o{channels}k{window}p{window // 2}g{groups}@cpu"
    form = torch.contiguous_format if not last else torch.channels_last if rank == 2 else torch.channels_last_3d
    x = torch.ones(batch, channels, *[edge] * rank, dtype=_TYPES[dtype]).contiguous(memory_format=form)
    w = torch.ones(channels, channels // groups, *[window] * rank, dtype=_TYPES[dtype]).contiguous(memory_format=form)
    geometry = ([1] * rank, [window // 2] * rank, [1] * rank, False, [0] * rank, groups)
    mask = [passes == "bwd_data", passes == "bwd_weights", False]
    if passes == "fwd":
        return text, lambda: torch.convolution(x, w, None, *geometry)
    return text, lambda: torch.ops.aten.convolution_backward(x, x, w, None, *geometry, mask)


def _least(run: Callable[[], object]) -> float:
    """ns of the fastest of several runs, for 2 ms and at least twice: other work only adds. What takes 20 ms is not repeated."""
    run()
    best, spent, times = float("inf"), 0, 0
    while times < 2 or (spent < 2e6 and times < 30):
        start = time.perf_counter_ns()
        run()
        took = time.perf_counter_ns() - start
        best, spent, times = min(best, took), spent + took, times + 1
        if took > 2e7:
            break
    return best


def _way_in() -> float:
    """ns that torch.ops, the only way to PyTorch's gradient alone, takes more than a builtin of torch."""
    x, w = torch.ones(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    args = (x, w, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    return max(_least(lambda: torch.ops.aten.convolution(*args)) - _least(lambda: torch.convolution(*args)), 0.0)


def _measure() -> list[tuple[str, float]]:
    from .._enable import bypassed
    lines: list[tuple[str, float]] = []
    end = time.monotonic() + SECONDS
    with torch.no_grad(), bypassed():
        way_in = _way_in()
        kinds = [(*kind, family) for kind in itertools.product(_TYPES, _SIZES, (False, True)) for family in _FAMILIES[kind[1]]]
        for (dtype, rank, last, family), passes in itertools.product(kinds, _PASSES):   # the common ones first: time may run out
            if time.monotonic() > end:
                return lines
            for size in _SIZES[rank]:
                text, run = _call(rank, passes, dtype, last, family, size)
                took = _least(run)
                lines.append((text, took if passes == "fwd" else max(took - way_in, 1.0)))
    return lines


def _learn(lines: list[tuple[str, float]]) -> int:
    """Tell the C library; the two gradients together take the time of both."""
    known = {}
    for (tiny, tiny_ns), (large, large_ns) in zip(lines[::2], lines[1::2]):
        _lib.weft_torch_learn(tiny.encode(), tiny_ns, large.encode(), large_ns)
        known[tiny], known[large] = tiny_ns, large_ns
    for (tiny, _), (large, _) in zip(lines[::2], lines[1::2]):
        pair = [(text.replace(":bwd_data:", ":bwd:"), known[text] + known[other]) for text in (tiny, large)
                if ":bwd_data:" in text and (other := text.replace(":bwd_data:", ":bwd_weights:")) in known]
        if len(pair) == 2:
            _lib.weft_torch_learn(pair[0][0].encode(), pair[0][1], pair[1][0].encode(), pair[1][1])
    return len(lines)


def _read(path: Optional[Path]) -> list[tuple[str, float]]:
    try:
        header, *rest = path.read_text().splitlines() if path is not None else [""]
        return [(text, float(ns)) for text, ns in (line.split() for line in rest)] if header == _HEADER and len(rest) % 2 == 0 else []
    except (OSError, ValueError):
        return []


def _write(path: Path, lines: list[tuple[str, float]]) -> None:
    """Whole or not at all; a file that is there already stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write("\n".join([_HEADER, *(f"{text} {ns:.0f}" for text, ns in lines)]) + "\n")
        os.link(name, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(name)


def _nominal() -> bool:
    return os.environ.get("WEFT_RATES") == "nominal"


def load() -> bool:
    """Use what was measured on this machine before, if it was."""
    global loaded
    if not loaded and not _nominal():
        loaded = _learn(_read(_file())) > 0
    return loaded


def describe() -> str:
    """What is known of PyTorch on this machine, for `python -m weft info`: a line, and one for each measurement, ns of PyTorch's call."""
    path = _file()
    if _nominal():
        return "calibration: not used, WEFT_RATES is 'nominal'"
    lines = _read(path)
    if not lines:
        return "calibration: none, estimates of PyTorch are constants; weft.backends.calibrate() measures them"
    return "\n".join([f"calibration: {len(lines)} measurements of PyTorch's convolutions in {path}", *(f"  {text} {ns:.0f} ns" for text, ns in lines)])


def calibrate(again: bool = False) -> int:
    """Measure, keep and use; again: also where it was measured before. Returns the measurements in use."""
    global loaded
    path = _file()
    lines = [] if again else _read(path)
    if not lines:
        lines = _measure()
        try:
            if again and path is not None:
                path.unlink(missing_ok=True)
            if path is not None:
                _write(path, lines)
                lines = _read(path) or lines   # another process may have been first: all use the same
        except OSError:
            pass                               # used here all the same
    loaded = True
    if again:
        _lib.weft_torch_unlearn()
    return _learn(lines)


def ensure() -> None:
    """For weft.enable(): what is known, else a measurement; none under deterministic algorithms, where rates are nominal, nor beside other work,
    which would be measured with it."""
    if not load() and not _nominal() and not torch.are_deterministic_algorithms_enabled() and not _clock.busy(0.1):
        calibrate()
