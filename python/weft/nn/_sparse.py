"""What modules with sparse weights are made of: which weights are not 0 and their values in eval mode; both ways timed, and the table of what was found."""
from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _enable
from .._bench import clock as _clock
from .._core import settings as _settings, text as _text
from ..functional.sparse_conv import SparseWeight, looked

ROUNDS = 11              # samples of each side at most; the median of so many is not moved by a few interruptions


# ---------------------------------------------------------------------------------------------- what is remembered

def as_traced() -> bool:
    """Someone records or transforms what is done with tensors: their elements cannot be looked at, and nothing is to be remembered."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def wants_gradient(*tensors: Optional[Tensor]) -> bool:
    """What stands for a tensor in a trace of torch.fx may want one."""
    return torch.is_grad_enabled() and any(t is not None and (not isinstance(t, Tensor) or t.requires_grad) for t in tensors)


class Kept:
    """Which weights are not 0, and their values as last gathered."""

    def __init__(self, dense: Tensor, mask: Optional[Tensor]) -> None:
        self.mask = mask                              # of torch.nn.utils.prune, if the pattern is that of one
        self.nnz = int(torch.count_nonzero(dense))
        self.full = self.nnz == dense.numel()         # no pattern is made before somebody asks for it
        self.sparsity = 1 - self.nnz / max(dense.numel(), 1)
        self.pattern: Optional[SparseWeight] = None if self.full else self._look(dense)
        self.source: Optional[Tensor] = None          # the parameter that the pattern's values are of; None: nobody knows
        self.trained = False                          # gradients were asked for in eval mode: values may change at any time

    @staticmethod
    def _look(dense: Tensor) -> SparseWeight:
        pattern = looked(dense if dense.is_floating_point() else dense.float())
        pattern._find_positions()
        return pattern

    def csr(self, weight: Tensor) -> SparseWeight:
        """The pattern, also where it is that of all elements."""
        if self.pattern is None:
            with torch.inference_mode(False), torch.no_grad():
                self.pattern = self._look(torch.ones_like(weight, device="cpu")).to(weight.device)
        return self.pattern

    def same(self, other: Kept) -> bool:
        """Whether the patterns are equal."""
        if self.pattern is None or other.pattern is None:
            return self.full and other.full
        a, b = self.pattern, other.pattern
        return a.shape == b.shape and a.nnz == b.nnz and all(torch.equal(x.cpu(), y.cpu()) for x, y in ((a.rows, b.rows), (a.cols, b.cols)))

    def gathered(self, weight: Tensor) -> SparseWeight:
        """The pattern with the values that weights have now, with a gradient."""
        pattern = self.csr(weight)
        return pattern._with(pattern.gather(weight))

    def remembered(self, weight: Tensor, source: Tensor) -> SparseWeight:
        """The pattern with the values that the parameter `source` had when they were last gathered."""
        if self.source is not source or self.pattern is None or self.pattern.values.dtype != weight.dtype:
            with torch.inference_mode(False), torch.no_grad():   # else a tensor of inference mode would stay here, no good for gradients
                self.pattern, self.source = self.gathered(weight.detach()), source
        return self.pattern

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "source": None}


# ---------------------------------------------------------------------------------------------- dense or sparse

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


@_enable.suspended()
def measure(runs: Mapping[str, Callable[[], Any]], device: torch.device) -> Timing:
    """Times of runs["dense"] and runs["sparse"], for as long as weft.backends.measure_seconds allows."""
    ms = _clock.medians({side: _clock.wall(run, device) for side, run in runs.items()}, ROUNDS, _settings.now().measure_seconds or 2.0)
    return Timing(ms["dense"], ms["sparse"])


def _cells(row: Row) -> tuple[str, ...]:
    times = (f"{row.timing.dense_ms:.3f}", f"{row.timing.sparse_ms:.3f}", f"{row.timing.ratio:.2f}")
    return (row.name, _text.sizes(row.shape), f"{row.sparsity:.3f}", row.what, *times, row.kept or "-")


def table(rows: Iterable[Row]) -> str:
    """Rows as text, columns lined up."""
    lines = [("layer", "input", "sparsity", "measured", "dense ms", "sparse ms", "ratio", "keeps"), *map(_cells, rows)]
    return "\n".join(_text.table(lines, (0, 1, 3, 7)))


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
