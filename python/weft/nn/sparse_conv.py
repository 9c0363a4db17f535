"""Convolution modules that skip the weights that are 0."""
from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from .. import _enable, functional as F
from .._bench import clock as _clock
from .._core import settings as _settings, text as _text
from .._core.arguments import Padding, Size
from ..backends import flags
from ..functional.sparse_conv import SparseWeight, looked
from . import conv as _dense_modules
from ._named import made
from .conv import _Conv

__all__ = ["SparseConv1d", "SparseConv2d", "SparseConv3d", "SparseConv2D", "Sparse_modes"]

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


def table(rows: Iterable[Row]) -> str:
    """Rows as text, columns lined up."""
    lines = [("layer", "input", "sparsity", "measured", "dense ms", "sparse ms", "ratio", "keeps")]
    lines += [(r.name, _text.sizes(r.shape), f"{r.sparsity:.3f}", r.what, f"{r.timing.dense_ms:.3f}", f"{r.timing.sparse_ms:.3f}", f"{r.timing.ratio:.2f}", r.kept or "-")
              for r in rows]
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


class Sparse_modes(enum.IntEnum):   # noqa: N801  the old system's name
    """What a sparse convolution does when it is called.

    Training, Inference_Sparse: compute with the weights that are not 0, or densely where that was measured to be faster, or where no weight
    is 0. Inference_Vanilla: compute densely. Test: compute both ways, raise where they differ by more than rounding, else print 'SUCCESS =>
    Same Outputs'. Benchmark: time both ways and print the table. Calibration: time both ways and keep to the faster one from then on.

        >>> weft.nn.Sparse_modes.Calibration.value
        6
    """

    Training = 1
    Inference_Vanilla = 2
    Inference_Sparse = 3
    Test = 4
    Benchmark = 5
    Calibration = 6


def read_mode(mode: Any) -> Sparse_modes:
    """The mode that a value names; ValueError if none."""
    if isinstance(mode, (int, Sparse_modes)) and not isinstance(mode, bool) and mode in list(Sparse_modes):
        return Sparse_modes(mode)
    raise ValueError(f"mode: is {mode!r}, allowed: " + ", ".join(f"Sparse_modes.{m.name} ({m.value})" for m in Sparse_modes))


class _SparseConv(_Conv):
    """What SparseConv1d, SparseConv2d and SparseConv3d add to their twins. What they keep besides the parameters is not in the state_dict."""

    _sparse_function: Any
    _rank: int
    _kept: Optional[Kept] = None                     # None: the weights have not been looked at; here for modules that are given this class
    _mode = Sparse_modes.Training
    _prints = True                                    # the row of the Benchmark mode; False: a net prints the whole table
    _timings: Optional[dict[tuple, Timing]] = None    # of calibration and weft.backends.benchmark, by problem, the latest at the end
    _row: Optional[Row] = None                        # what was last measured
    _OWN = ("_kept", "_mode", "_prints", "_timings", "_row")

    # ------------------------------------------------------------------------------------------ the weights that are kept

    def _mask(self) -> Optional[Tensor]:
        return self._buffers.get("weight_mask")

    def _source(self) -> Tensor:
        """The parameter behind the weights."""
        original = self._parameters.get("weight_orig")
        return self.weight if original is None else original

    def refresh(self) -> None:
        """Look again which weights are 0: after they were written to by anything but training, load_state_dict or weft.prune. Where
        torch.nn.utils.prune has put a mask, that decides. In eval mode the values are read again too.

            >>> conv = weft.nn.SparseConv2d(1, 1, 2)
            >>> conv.weight.data[..., 0] = 0
            >>> conv.refresh(); conv.nnz, conv.sparsity
            (2, 0.5)
        """
        before, mask = self._kept, self._mask()
        if self._source().device.type == "meta":
            self._kept = None
            return
        with torch.inference_mode(False), torch.no_grad():
            self._kept = Kept(self.weight.detach() if mask is None else mask.detach(), mask)
        if before is not None and not before.same(self._kept):
            self._timings = self._row = None          # they were of other weights

    def _look(self, *tensors: Any) -> Optional[Kept]:
        """What is known of the weights, after a look where that is due."""
        due = self._kept is None or self._kept.mask is not self._mask()
        if due and not as_traced() and all(isinstance(t, Tensor) for t in tensors):
            self.refresh()
        return self._kept

    @property
    def nnz(self) -> int:
        """How many weights are not left out.

            >>> weft.nn.SparseConv2d(2, 3, 1).nnz
            6
        """
        kept = self._look()
        return self.weight.numel() if kept is None else kept.nnz

    @property
    def sparsity(self) -> float:
        """The share of the weights that are left out.

            >>> conv = weft.nn.SparseConv2d(2, 3, 1)
            >>> weft.prune.magnitude(conv, 0.5); conv.sparsity
            0.5
        """
        kept = self._look()
        return 0.0 if kept is None else kept.sparsity

    def _weights(self, kept: Kept, weight: Tensor) -> SparseWeight:
        """Values are gathered at each call, and kept only in eval mode, where nobody asks for their gradient."""
        if as_traced() or not isinstance(weight, Tensor):
            return kept.gathered(weight)
        wanted = wants_gradient(weight)
        kept.trained = not self.training and (kept.trained or wanted)
        if self.training or kept.trained:
            kept.source = None
            return kept.gathered(weight)
        return kept.remembered(weight, weight if self._mask() is None else self._source())

    # ------------------------------------------------------------------------------------------ both ways of computing

    def _dense(self, input: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Tensor:
        """A gradient goes to the weights that are kept, as in the sparse way."""
        kept = self._kept
        if kept is not None and not kept.full and wants_gradient(weight):
            weight = kept.gathered(weight).to_dense()
        return type(self)._function(input, weight, bias, self.stride, padding, self.dilation, self.groups, act=self.act, clip=self.clip)

    def _sparse(self, input: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Tensor:
        kept = self._kept
        held = weight if kept is None else self._weights(kept, weight)
        return type(self)._sparse_function(input, held, bias, self.stride, padding, self.dilation, self.groups, act=self.act, clip=self.clip)

    def _side(self, input: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> str:
        """dense or sparse, as was measured; sparse where nothing was, and some weight is 0."""
        kept = self._look(input, weight)
        if kept is None or kept.full:
            return "dense"
        grad = wants_gradient(input, weight, bias)
        if not as_traced() and isinstance(input, Tensor):
            found = (self._timings or {}).get(_problem(input, grad))
            if found is not None:
                return found.side
            if _settings.now().benchmark and not (input.is_cuda and torch.cuda.is_current_stream_capturing()):
                return self._decide(input, weight, bias, padding).side
        return self._decision(grad) or "sparse"

    def _decision(self, grad: bool) -> str:
        """What the last measurement said, of this kind if there was one; "" without any."""
        sides = {problem[-1]: timing.side for problem, timing in (self._timings or {}).items()}
        return sides.get(grad) or sides.get(not grad) or ""

    @property
    def decision(self) -> Optional[str]:
        """'dense' or 'sparse', as the last Calibration (or measurement for weft.backends.benchmark) has found; None before.

            >>> weft.nn.SparseConv2d(2, 3, 1).decision is None
            True
        """
        return list(self._timings.values())[-1].side if self._timings else None

    # ------------------------------------------------------------------------------------------ measuring

    def _measure(self, input: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Timing:
        """Forward, and backward where a gradient is wanted."""
        leaves = [None if t is None else t.detach().requires_grad_(wants_gradient(t)) for t in (input, weight, bias)]
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        if self._kept is not None:
            self._kept.csr(weight)

        def run(way: Any) -> None:
            y = way(*leaves, padding)
            if wanted:
                torch.autograd.grad(y, wanted, torch.ones_like(y))
        trained = self._kept is not None and self._kept.trained
        timing = measure({"dense": lambda: run(self._dense), "sparse": lambda: run(self._sparse)}, input.device)
        if self._kept is not None:
            self._kept.trained, self._kept.source = trained, None   # what was gathered is of the detached weights
        kept = self._decision(bool(wanted))
        self._row = Row(type(self).__name__, tuple(input.shape), self.sparsity, "fwd + bwd" if wanted else "fwd", timing, kept)
        return timing

    def _decide(self, input: Tensor, weight: Tensor, bias: Optional[Tensor], padding: Padding) -> Timing:
        timing = self._measure(input, weight, bias, padding)
        problem = _problem(input, wants_gradient(input, weight, bias))
        self._timings = {**{p: t for p, t in (self._timings or {}).items() if p != problem}, problem: timing}
        self._row = self._row._replace(kept=timing.side)   # type: ignore[union-attr]
        return timing

    # ------------------------------------------------------------------------------------------ the modes

    def set_mode(self, mode: Sparse_modes = Sparse_modes.Training) -> None:
        """What calls do from now on.

            >>> conv = weft.nn.SparseConv2D(1, 6, 5)
            >>> conv.set_mode(weft.nn.Sparse_modes.Test)
            >>> conv(torch.randn(1, 1, 32, 32)).shape
            SUCCESS => Same Outputs
            torch.Size([1, 6, 28, 28])
        """
        self._mode, self._prints = read_mode(mode), True

    def _planned(self, *args: Any) -> Tensor:
        return self._sparse(*args) if self._side(*args) == "sparse" else self._dense(*args)

    def _tested(self, *args: Any) -> Tensor:
        kept = self._look(*args[:2])
        with flags(math="strict"):
            with torch.no_grad():
                dense = type(self)._function(*args[:3], self.stride, args[3], self.dilation, self.groups, act=self.act, clip=self.clip)
            sparse = self._sparse(*args)
        distance, allowed = apart(dense, sparse.detach(), *args[:3], terms=self.nnz if kept is None else kept.nnz)
        if not distance <= allowed:
            raise RuntimeError(f"{type(self).__name__}: dense and sparse outputs are {distance:.3g} apart, allowed for {str(dense.dtype)[6:]}: {allowed:.3g}; "
                               "after weights were written to, refresh() looks again which are 0")
        print("SUCCESS => Same Outputs")
        return sparse

    def _benchmarked(self, *args: Any) -> Tensor:
        self._look(*args[:2])
        self._measure(*args)
        if self._prints:
            print(table([self._row]))   # type: ignore[list-item]
        return self._sparse(*args)

    def _calibrated(self, *args: Any) -> Tensor:
        self._look(*args[:2])
        return self._sparse(*args) if self._decide(*args).side == "sparse" else self._dense(*args)

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Optional[Tensor]) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, self._reversed_padding_repeated_twice, mode=self.padding_mode)
            padding = 0
        return _WAYS[self._mode](self, input, weight, bias, padding)

    # ------------------------------------------------------------------------------------------ what a module does

    def train(self, mode: bool = True) -> _SparseConv:
        if self._kept is not None:
            self._kept.source, self._kept.trained = None, False
        return super().train(mode)   # type: ignore[misc]

    def _apply(self, fn: Any, recurse: bool = True) -> _SparseConv:
        moved, kept = super()._apply(fn, recurse), self._kept   # type: ignore[misc]
        device = self._source().device
        if kept is not None and device.type == "meta":
            self._kept = None
        elif kept is not None:
            kept.source, kept.mask = None, self._mask()
            kept.pattern = None if kept.pattern is None else kept.pattern.to(device)
        return moved

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)   # type: ignore[misc]
        self.refresh()

    def extra_repr(self) -> str:
        text = super().extra_repr()
        if self._kept is not None and not self._kept.full:
            text += f", sparsity={self._kept.sparsity:.3f}"
        return text if self._mode == Sparse_modes.Training else f"{text}, mode={self._mode.name}"

    # ------------------------------------------------------------------------------------------ to and from dense

    @classmethod
    def from_dense(cls, module: torch.nn.Module) -> Any:
        """A sparse module with the parameters, buffers, hooks and mode of a dense one; the parameters are the same objects.

            >>> conv = torch.nn.Conv2d(4, 8, 3)
            >>> weft.nn.SparseConv2d.from_dense(conv).weight is conv.weight
            True
        """
        twin = getattr(torch.nn, f"Conv{cls._rank}d")
        if not isinstance(module, twin) or hasattr(module, "parametrizations"):
            got = type(module).__name__ + (" with parametrizations" if isinstance(module, twin) else "")
            raise TypeError(f"module: is {got}, allowed: torch.nn.Conv{cls._rank}d")
        made = _with_class(module, cls)
        made.refresh()
        return made

    def to_dense(self) -> torch.nn.Module:
        """The torch.nn module (with `act`, the weft.nn module) with the same parameters, buffers, hooks and mode.

            >>> type(weft.nn.SparseConv2d(4, 8, 3).to_dense())
            <class 'torch.nn.modules.conv.Conv2d'>
        """
        home = torch.nn if self.act is None else _dense_modules
        made = _with_class(self, getattr(home, f"Conv{self._rank}d"))
        for name in self._OWN + (("act", "clip") if self.act is None else ()):
            made.__dict__.pop(name, None)
        return made


_WAYS = {
    Sparse_modes.Training: _SparseConv._planned, Sparse_modes.Inference_Vanilla: _SparseConv._dense, Sparse_modes.Inference_Sparse: _SparseConv._planned,
    Sparse_modes.Test: _SparseConv._tested, Sparse_modes.Benchmark: _SparseConv._benchmarked, Sparse_modes.Calibration: _SparseConv._calibrated,
}


def _problem(input: Tensor, grad: bool) -> tuple:
    return tuple(input.shape), input.stride(), input.dtype, input.device, grad


def _with_class(module: torch.nn.Module, cls: type) -> Any:
    """Another module with the same contents; tables of its own, so that what is registered with one does not reach the other."""
    made = cls.__new__(cls)
    made.__dict__.update({name: value.copy() if isinstance(value, (dict, set)) else value for name, value in module.__dict__.items()})
    return made


SparseConv1d = made("SparseConv1d", (_SparseConv, torch.nn.Conv1d), "torch.nn.Conv1d that skips the weights that are 0; SparseConv2d says how.",
                    'weft.nn.SparseConv1d(4, 8, 5, padding="same", act="relu")(torch.randn(2, 4, 100)).shape', (2, 8, 100),
                    _function=staticmethod(F.conv1d), _sparse_function=staticmethod(F.sparse_conv1d), _rank=1)


class SparseConv2d(_SparseConv, torch.nn.Conv2d):
    """torch.nn.Conv2d that skips the weights that are 0: same arguments, `act` for a fused activation, same state_dict with a dense `weight`.

    Which weights are 0 is looked at by the first call, load_state_dict, weft.prune and refresh(); masks of torch.nn.utils.prune count as
    they change. From then on the others are left out, and their gradient is 0: what is pruned stays so. The values that are kept are read
    at each call in training mode, and once in eval mode: after writing to weights there, call refresh(). Where no weight is 0, or a
    measurement (Sparse_modes.Calibration, or weft.backends.benchmark) has found that faster, the computation is dense; its gradients are
    the same. Under torch.compile and torch.func a module whose weights were not looked at yet computes densely: call refresh() before.

        >>> conv = weft.nn.SparseConv2d(8, 16, 3, padding=1)
        >>> weft.prune.magnitude(conv, 0.9)
        >>> conv
        weft.SparseConv2d(8, 16, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), sparsity=0.900)
        >>> conv(torch.randn(2, 8, 32, 32)).shape
        torch.Size([2, 16, 32, 32])
    """

    _function, _sparse_function, _rank = staticmethod(F.conv2d), staticmethod(F.sparse_conv2d), 2


SparseConv3d = made("SparseConv3d", (_SparseConv, torch.nn.Conv3d), "torch.nn.Conv3d that skips the weights that are 0; SparseConv2d says how.",
                    "weft.nn.SparseConv3d(8, 8, 3, groups=8)(torch.randn(1, 8, 9, 9, 9)).shape", (1, 8, 7, 7, 7),
                    _function=staticmethod(F.conv3d), _sparse_function=staticmethod(F.sparse_conv3d), _rank=3)


class SparseConv2D(SparseConv2d):
    """SparseConv2d with the order of arguments of Escoin's PyTorch module: bias before groups, and no bias unless asked for.

        >>> conv = weft.nn.SparseConv2D(1, 6, 5)
        >>> conv.set_mode(weft.nn.Sparse_modes.Inference_Sparse)
        >>> conv(torch.randn(1, 1, 32, 32)).shape
        torch.Size([1, 6, 28, 28])
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1, padding: Padding = 0, dilation: Size = 1,
                 bias: bool = False, groups: int = 1, *, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
                 act: Optional[str] = None, clip: tuple[float, float] = (0.0, 6.0)) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype, act=act, clip=clip)
