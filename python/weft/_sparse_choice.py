"""Dense or sparse: both timed on the same input, and the table of what was found."""
from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from . import _enable
from ._core import settings as _settings

ROUNDS = 11              # samples of each side at most; the median of so many is not moved by a few interruptions
SAMPLE = 1e-3            # seconds a sample lasts at least, by repetition: far above the resolution of the clock
REPEATS = 50             # and at most so many times


class Timing(NamedTuple):
    """Milliseconds of both sides."""

    dense_ms: float
    sparse_ms: float

    @property
    def ratio(self) -> float:
        """How many times faster the sparse side is."""
        return self.dense_ms / max(self.sparse_ms, 1e-9)

    @property
    def side(self) -> str:
        return "sparse" if self.sparse_ms < self.dense_ms else "dense"


class Row(NamedTuple):
    """One layer of a table. kept: the side that a calibration has chosen for it, "" where there was none."""

    name: str
    shape: tuple[int, ...]
    sparsity: float
    what: str
    timing: Timing
    kept: str


def _sample(run: Callable[[], Any], times: int, device: torch.device) -> float:
    """Seconds a run."""
    wait = (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)
    wait()
    start = time.perf_counter()
    for _ in range(times):
        run()
    wait()
    return (time.perf_counter() - start) / times


@_enable.suspended()
def measure(runs: Mapping[str, Callable[[], Any]], device: torch.device) -> Timing:
    """Times of runs["dense"] and runs["sparse"]: medians of samples taken in turn, for as long as weft.backends.measure_seconds allows. The
    first run of each warms up; it counts only where that took all the time there was."""
    deadline = time.perf_counter() + (_settings.now().measure_seconds or 2.0)
    samples = {side: [_sample(run, 1, device)] for side, run in runs.items()}
    times = {side: min(REPEATS, max(1, round(SAMPLE / max(first[0], 1e-9)))) for side, first in samples.items()}
    while len(samples["dense"]) <= ROUNDS and time.perf_counter() < deadline:
        for side, run in runs.items():
            samples[side].append(_sample(run, times[side], device))
    return Timing(*(1e3 * statistics.median(samples[side][1:] or samples[side]) for side in ("dense", "sparse")))


def _cells(row: Row) -> tuple[str, ...]:
    times = (f"{row.timing.dense_ms:.3f}", f"{row.timing.sparse_ms:.3f}", f"{row.timing.ratio:.2f}")
    return (row.name, "x".join(map(str, row.shape)), f"{row.sparsity:.3f}", row.what, *times, row.kept or "-")


def table(rows: Iterable[Row]) -> str:
    """Rows as text, columns lined up."""
    lines = [("layer", "input", "sparsity", "measured", "dense ms", "sparse ms", "ratio", "keeps"), *map(_cells, rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    left = (0, 1, 3, 7)
    return "\n".join("  ".join(c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths))).rstrip() for line in lines)


@torch.no_grad()
def apart(dense: Tensor, sparse: Tensor, input: Tensor, weight: Tensor, bias: Optional[Tensor], terms: int) -> tuple[float, float]:
    """The largest difference where the dense result is finite (elsewhere 0 times infinity has come in), and what rounding allows: of a sum of
    n products each side is within sqrt(n) eps of the sum of their sizes, which is at most max|x| sum|w| + |b|; then the result is rounded."""
    if dense.numel() == 0:
        return 0.0, 0.0
    eps, work = torch.finfo(dense.dtype).eps, torch.finfo(torch.float64 if dense.dtype == torch.float64 else torch.float32).eps
    finite, wide = dense.isfinite(), torch.float64
    if not finite.any():
        return 0.0, 0.0
    top = input[input.isfinite()].abs().max().to(wide) if input.isfinite().any() else torch.zeros((), dtype=wide)
    size = top * weight.to(wide).abs().flatten(1).sum(1).max() + (0 if bias is None else bias.to(wide).abs().max())
    distance = (sparse.to(wide) - dense.to(wide))[finite].abs().max()
    per_row = max(1, math.ceil(terms / weight.shape[0]))
    return float(distance), float(4 * eps * dense[finite].abs().max().to(wide) + 4 * work * math.sqrt(per_row) * size)
